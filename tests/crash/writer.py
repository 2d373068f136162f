"""Append to a store until killed; every line on standard output is a promise: ``queue offset id`` of a message that was acknowledged.

Run as ``python writer.py DIRECTORY SEED``. A thread flushes meanwhile, as a broker's does.
"""

import os
import random
import sys
import threading
from pathlib import Path

from sprocketmq.protocol.batch import encode_batch, split_batch
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.store import MessageStore, StoreConfig

TOPIC = "ledger"
QUEUES = 4
SEGMENT_BYTES = 256 << 10
QUEUE_SEGMENT_BYTES = 4000


def body_of(identity: str) -> bytes:
    """The body follows from the id, so a reader can tell a wrong one."""
    rng = random.Random(identity)
    return identity.encode() + b" " + rng.randbytes(rng.choice((0, 10, 300, 1024, 5000)))


def main(root: Path, seed: str) -> None:
    rng = random.Random(seed)
    store = MessageStore(StoreConfig(root, commitlog_segment_bytes=SEGMENT_BYTES, consumequeue_segment_bytes=QUEUE_SEGMENT_BYTES))
    store.store_host = host = pack_host("127.0.0.1", 10911)
    store.open()
    pause = threading.Event()

    def flush() -> None:
        flush_rng = random.Random(seed + "flush")
        while not pause.wait(flush_rng.uniform(0, 0.02)):
            store.flush(thorough=flush_rng.random() < 0.5)

    threading.Thread(target=flush, daemon=True).start()
    count = 0
    while True:
        promises = []
        for _ in range(rng.choice((1, 1, 3, 20))):
            queue = rng.randrange(QUEUES)
            size = rng.choice((1, 1, 2, 50))
            ids = [f"{seed}-{count + i}" for i in range(size)]
            count += size
            if size == 1:
                offset, _ = store.stage_message(
                    TOPIC, queue, body_of(ids[0]), b"TAGS\x01t\x02", tags_code=tags_code("t"), born_timestamp_ms=1, born_host=host
                )
            else:
                entries = split_batch(encode_batch([(0, body_of(identity), b"TAGS\x01t\x02") for identity in ids]))
                offset, _ = store.stage_batch(TOPIC, queue, entries, sys_flag=0, born_timestamp_ms=1, born_host=host)
            promises += [f"{queue} {offset + i} {identity}\n" for i, identity in enumerate(ids)]
        store.commit()
        os.write(1, "".join(promises).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
