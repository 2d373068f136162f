"""A store as it is after years of traffic: log offsets of 32 TiB and queue offsets beyond 2^33, with the first messages that are left."""

import json
import time
from pathlib import Path

from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.codes import SYSFLAG_INNER_BATCH, SYSFLAG_NEED_UNWRAP
from sprocketmq.protocol.records import encode_record, pack_host
from sprocketmq.storage.bulk.rebuild import rebuild

SEGMENT_BYTES = 1 << 30
LOG_BEGINS = 1 << 45
# The first unit of a queue file of the usual size.
QUEUE_BEGINS = 300_000 * 28_634
HOST = pack_host("127.0.0.1", 10911)
IN_BATCH = 3


def make_aged_store(root: Path, plain: str, batches: str, queues: int) -> None:
    """Make a store with a topic of plain queues that has a message in each, and one of batch queues that has a batch in each.

    Body and key of a message are ``<queue>.<index>``.
    """
    now = round(time.time() * 1000)
    log = b""
    for queue in range(queues):
        inner = [
            (0, b"%d.%d" % (queue, i), b"WAIT\x01true\x02KEYS\x01%d.%d\x02UNIQ_KEY\x01%032X\x02" % (queue, i, queue * IN_BATCH + i))
            for i in range(IN_BATCH)
        ]
        outer = b"UNIQ_KEY\x01%032X\x02INNER_NUM\x01%d\x02INNER_BASE\x01%d\x02" % (1000 + queue, IN_BATCH, QUEUE_BEGINS)
        for topic, body, properties, flags in (
            (plain, b"%d.0" % queue, b"WAIT\x01true\x02KEYS\x01%d.0\x02UNIQ_KEY\x01%032X\x02" % (queue, 2000 + queue), 0),
            (batches, encode_batch(inner), outer, SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP),
        ):
            log += encode_record(
                topic=topic.encode(),
                body=body,
                properties=properties,
                queue_id=queue,
                queue_offset=QUEUE_BEGINS,
                physical_offset=LOG_BEGINS + len(log),
                born_timestamp_ms=now,
                born_host=HOST,
                store_timestamp_ms=now,
                store_host=HOST,
                sys_flag=flags,
            )
    (root / "commitlog").mkdir(parents=True)
    with (root / "commitlog" / f"{LOG_BEGINS:020d}").open("wb") as segment:
        segment.write(log)
        segment.truncate(SEGMENT_BYTES)
    (root / "config").mkdir()
    table = {
        name: {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "order": False, "attributes": attributes}
        for name, attributes in ((plain, {}), (batches, {"queue.type": "BatchCQ"}))
    }
    version = {"timestamp": now, "counter": 1, "stateVersion": 0}
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table, "dataVersion": version}))
    rebuild(root)
