"""A store on a simulated disk with files so small that a short workload fills many, and reading it as a consumer does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.records import ReceivedMessage, decode_records, pack_host, walk_records
from sprocketmq.storage.config import ConfigFile, StoreConfig
from sprocketmq.storage.store import MessageStore, ReadStatus
from sprocketmq.testing.rig.crash_book import CrashFound, Key
from sprocketmq.testing.rig.simulated_disk import SimFileSystem

ROOT: Final = Path("/store")
HOST: Final = pack_host("127.0.0.1", 10911)
BATCH_TOPIC: Final = "lists"
TOPICS: Final = ("orders", "%RETRY%billing", BATCH_TOPIC)
TOPICS_FILE: Final = {"topicConfigTable": {BATCH_TOPIC: {"topicName": BATCH_TOPIC, "attributes": {"queue.type": "BatchCQ"}}}}
QUEUES: Final = 2
# File sizes at which a short workload fills many files of every kind.
SMALL_FILES: Final[dict[str, Any]] = {
    "commitlog_segment_bytes": 16 << 10,
    "consumequeue_segment_bytes": 20 * 25,
    "batchqueue_segment_bytes": 46 * 10,
    "max_hash_slots": 25,
    "max_index_entries": 100,
}


def open_store(fs: SimFileSystem, flush: str) -> MessageStore:
    """Return an open store on a simulated file system, with small files and one topic of batch queues."""
    store = MessageStore(StoreConfig(ROOT, flush_disk_type=flush, **SMALL_FILES), fs=fs, clock=fs.clock)
    store.store_host = HOST
    store.open()
    topics = ConfigFile(ROOT / "config/topics.json", fs)
    if topics.load() is None:  # as a broker does, before the first message of the topic
        topics.save(TOPICS_FILE)
    store.declare_batch_topic(BATCH_TOPIC)
    return store


def read_queue(store: MessageStore, key: Key, *, damage_seen: list[int] | None = None) -> tuple[int, int, dict[int, bytes]]:
    """Return a queue's min and max offset and the bodies by offset, checked as a consumer checks them.

    The log offsets of records that a consumer recognises as damaged are added to ``damage_seen``; without it they raise
    RemoteProtocolError. Raises CrashFound when offsets go back or a read makes no progress.
    """
    low, high = store.min_offset(*key), store.max_offset(*key)
    found: dict[int, bytes] = {}
    offset, last = low, -1
    while offset < high:
        result = store.read(*key, offset, max_count=1000, max_bytes=16 << 20)
        if result.next_offset <= offset:
            raise CrashFound(f"a read of {key} at {offset} in [{low}, {high}) makes no progress: {result.status.value}")
        if result.status not in {ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING}:
            raise CrashFound(f"a read of {key} at {offset} in [{low}, {high}) returns {result.status.value}")
        for buffer in result.buffers:
            for message in _messages(buffer, key, damage_seen):
                if message.queue_offset <= last or (message.topic, message.queue_id) != key:
                    if damage_seen is None:
                        raise CrashFound(f"{key} has {message!r} at {message.queue_offset} behind {last}")
                    damage_seen.append(message.commitlog_offset)
                    continue
                last = message.queue_offset
                found[last] = message.body
        offset = result.next_offset
    return low, high, found


def _messages(buffer: memoryview, key: Key, damage_seen: list[int] | None) -> Iterator[ReceivedMessage]:
    if damage_seen is None:
        yield from decode_records(buffer, verify_crc=True)
        return
    for at, size in walk_records(buffer):
        record = buffer[at : at + size]
        try:
            messages = [(m, m.topic, m.queue_id) for m in decode_records(record, verify_crc=True)]
            known = [m for m, topic, queue_id in messages if (topic, queue_id) == key and m.body is not None]
        except RemoteProtocolError:
            known = []
        if not known:
            damage_seen.append(int.from_bytes(record[28:36], "big"))
        yield from known
