"""Stores with everything in them that a store can hold, in many small files, for brokers to open.

``python -m tests.interop.stores ROOT PORT WORD clean|killed`` writes one with the engine itself, prints what is in it as JSON, and then stops: in the
orderly way, or by SIGKILL.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.interop.compare import our_view

from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.protocol.batch import encode_batch, split_batch
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import decode_records, pack_host
from sprocketmq.storage.config import ConfigFile
from sprocketmq.storage.store import MessageStore, ReadStatus, StoreConfig

# Several files of each kind for some thousand messages. A store opens in Apache's broker only with the sizes it was written with.
COMMITLOG_BYTES = 256 << 10
QUEUE_BYTES = 20 * 200
BATCH_QUEUE_BYTES = 46 * 40
HASH_SLOTS = 500
INDEX_ENTRIES = 1500

OUR_SETTINGS = {
    "commitlog_segment_bytes": COMMITLOG_BYTES,
    "consumequeue_segment_bytes": QUEUE_BYTES,
    "batchqueue_segment_bytes": BATCH_QUEUE_BYTES,
    "max_hash_slots": HASH_SLOTS,
    "max_index_entries": INDEX_ENTRIES,
}
APACHE_SETTINGS = {
    "mappedFileSizeCommitLog": str(COMMITLOG_BYTES),
    "mappedFileSizeConsumeQueue": str(QUEUE_BYTES),
    "mapperFileSizeBatchConsumeQueue": str(BATCH_QUEUE_BYTES),
    "maxHashSlotNum": str(HASH_SLOTS),
    "maxIndexNum": str(INDEX_ENTRIES),
}

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class Names:
    """The topics of a store and how many queues each has, and its consumer group.

    Each store has names of its own: the Java client remembers for half a minute which broker a topic was at.
    """

    def __init__(self, word: str) -> None:
        self.word = word
        self.group = f"moving_{word}"
        self.plain = f"MovingPlain_{word}"
        self.batch = f"MovingBatch_{word}"
        self.retry = f"%RETRY%{self.group}"
        self.queues = {self.plain: 3, self.batch: 2, self.retry: 1, SCHEDULE: 18}


HOST = pack_host("127.0.0.1", 40001)
TWO_HOURS_LEVEL = 18

Listing = dict[str, list[dict[str, Any]]]


def store_config(root: Path) -> StoreConfig:
    """Return the configuration of a store with small files."""
    return StoreConfig(root, **OUR_SETTINGS)  # type: ignore[arg-type]


class Writer:
    """Put messages of every kind into a store that nobody else has open, as the broker at ``port``."""

    def __init__(self, root: Path, port: int, names: Names) -> None:
        self.names = names
        self.store = MessageStore(store_config(root))
        self.store.store_host = pack_host("127.0.0.1", port)
        self._ids = MessageIdFactory("127.0.0.1")
        self._random = random.Random(20)
        self._born_ms = 1_700_000_000_000
        _write_config(root, names)
        self.store.open()
        self.store.declare_batch_topic(names.batch)

    def _properties(self, number: int, *, extra: dict[str, str] | None = None) -> tuple[bytes, str]:
        tag = ("TagA", "TagB", "标签")[number % 3]
        keys = f"order-{number} all-{number % 7}"
        named = {"UNIQ_KEY": self._ids.next(), "KEYS": keys, "TAGS": tag, "WAIT": "true", "number": str(number)}
        return encode_properties(named | (extra or {})), tag

    def single(self, topic: str, queue_id: int, number: int, *, extra: dict[str, str] | None = None, code: int | None = None) -> None:
        """Append one message."""
        properties, tag = self._properties(number, extra=extra)
        self.store.stage_message(
            topic,
            queue_id,
            b"%d " % number + self._random.randbytes(self._random.randrange(600)),
            properties,
            tags_code=tags_code(tag) if code is None else code,
            born_timestamp_ms=self._born_ms,
            born_host=HOST,
            reconsume_times=3 if topic == self.names.retry else 0,
        )
        self.store.commit()

    def _batch_body(self, numbers: range) -> bytes:
        return encode_batch(
            [(0, b"%d " % n + self._random.randbytes(self._random.randrange(600)), self._properties(n)[0]) for n in numbers]
        )

    def exploded(self, topic: str, queue_id: int, numbers: range) -> None:
        """Append a batch as a record a message."""
        entries = split_batch(self._batch_body(numbers))
        self.store.stage_batch(topic, queue_id, entries, sys_flag=0, born_timestamp_ms=self._born_ms, born_host=HOST)
        self.store.commit()

    def inner(self, queue_id: int, numbers: range) -> None:
        """Append a batch as one record, with the tag and all keys of its messages outside."""
        keys = " ".join(f"order-{n}" for n in numbers)
        outer = {"UNIQ_KEY": self._ids.next(), "WAIT": "true", "TAGS": "TagA", "KEYS": keys}
        self.store.stage_inner_batch(
            self.names.batch,
            queue_id,
            self._batch_body(numbers),
            encode_properties(outer),
            count=len(numbers),
            tags_code=tags_code("TagA"),
            born_timestamp_ms=self._born_ms,
            born_host=HOST,
        )
        self.store.commit()

    def parked(self, number: int) -> None:
        """Append a message that is to be delivered in two hours."""
        delay = {"DELAY": str(TWO_HOURS_LEVEL), "REAL_TOPIC": self.names.plain, "REAL_QID": "1"}
        self.single(SCHEDULE, TWO_HOURS_LEVEL - 1, number, extra=delay, code=SYSTEM_CLOCK.time_ms() + 2 * 3600 * 1000)

    def write(self) -> Listing:
        """Write some of everything and return what is in the store, as it reads it itself."""
        names = self.names
        for round_ in range(60):
            at = round_ * 100
            for queue_id in range(names.queues[names.plain]):
                self.single(names.plain, queue_id, at + queue_id)
                self.exploded(names.plain, queue_id, range(at + 10 + queue_id * 10, at + 16 + queue_id * 11))
            self.single(names.batch, 0, at + 50)
            self.exploded(names.batch, 0, range(at + 51, at + 53))
            self.inner(0, range(at + 53, at + 54 + round_ % 20))
            self.inner(1, range(at + 80, at + 88))
            if round_ % 6 == 0:
                origin = {"RETRY_TOPIC": names.plain, "ORIGIN_MESSAGE_ID": "7F000001000078BF0000000000000000"}
                self.single(names.retry, 0, at + 99, extra=origin)
                self.parked(at + 98)
        return listing(self.store, names)


def _write_config(root: Path, names: Names) -> None:
    def topic(name: str, queues: int) -> dict[str, Any]:
        attributes = {"queue.type": "BatchCQ"} if name == names.batch else {}
        sizes = {"readQueueNums": queues, "writeQueueNums": queues}
        return {
            "topicName": name,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
            **sizes,
            "attributes": attributes,
        }

    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    table = {name: topic(name, queues) for name, queues in names.queues.items()}
    ConfigFile(root / "config/topics.json").save({"dataVersion": version, "topicConfigTable": table})
    offsets = {f"{names.plain}@{names.group}": {0: 10, 1: 20, 2: 30}}
    ConfigFile(root / "config/consumerOffset.json").save({"dataVersion": version, "offsetTable": offsets})
    # Without an entry Apache's schedule service would begin at the first parked message; it does so here as well, and finds it too early.
    ConfigFile(root / "config/delayOffset.json").save({"dataVersion": version, "offsetTable": {TWO_HOURS_LEVEL: 0}})


def _all_records(store: MessageStore, topic: str, queue_id: int) -> list[memoryview]:
    buffers: list[memoryview] = []
    offset = store.min_offset(topic, queue_id)
    while (result := store.read(topic, queue_id, offset, max_count=1000, max_bytes=1 << 24)).status is ReadStatus.FOUND:
        buffers += result.buffers
        offset = result.next_offset
    return buffers


def listing(store: MessageStore, names: Names) -> Listing:
    """Return every message of an open store, by topic, in queue order."""
    found: Listing = {}
    for topic, queues in names.queues.items():
        messages = [
            message
            for queue_id in range(queues)
            for buffer in _all_records(store, topic, queue_id)
            for message in decode_records(buffer, verify_crc=True)
        ]
        found[topic] = [our_view(message) for message in messages]
    return found


def read_closed(root: Path, names: Names) -> Listing:
    """Open the store in ``root``, list it and close it again."""
    store = MessageStore(store_config(root))
    store.open()
    try:
        return listing(store, names)
    finally:
        store.close()


def write_in_a_process(root: Path, port: int, names: Names, how: str) -> Listing:
    """Have a process write a store and stop ``clean`` or ``killed``; return what it said is in it."""
    command = [sys.executable, "-m", "tests.interop.stores", str(root), str(port), names.word, how]
    project = Path(__file__).parents[2]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=False, text=True, cwd=project)
    assert done.returncode == (-signal.SIGKILL if how == "killed" else 0)
    said: Listing = json.loads(done.stdout)
    return {topic: [{**view, "body": base64.b64decode(view["body"])} for view in views] for topic, views in said.items()}


def main(root: Path, port: int, word: str, how: str) -> None:
    """Write a store, say what is in it, and end."""
    writer = Writer(root, port, Names(word))
    said = writer.write()
    print(
        json.dumps({topic: [{**v, "body": base64.b64encode(v["body"]).decode()} for v in views] for topic, views in said.items()}),
        flush=True,
    )
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    writer.store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
