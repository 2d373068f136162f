"""The queues of a store according to its directories, before any is opened: which exist, of which kind, with which file size.

consumequeue/TOPIC/QUEUE_ID/            plain queues: one unit per message
batchconsumequeue/TOPIC/QUEUE_ID/       batch queues: one unit per record
"""

from collections.abc import Iterable, Mapping

from sprocketmq.protocol.layout import BATCH_UNIT_BYTES, QUEUE_UNIT_BYTES
from sprocketmq.storage.config import ConfigFile
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.log.segments import segment_entries, segment_size_of

PLAIN_ROOT = "consumequeue"
BATCH_ROOT = "batchconsumequeue"
_UNIT_BYTES = {PLAIN_ROOT: QUEUE_UNIT_BYTES, BATCH_ROOT: BATCH_UNIT_BYTES}
# The number of queues of a kind that are examined to determine the file size.
_MAX_SAMPLES = 64

# Root directory, topic, queue id.
QueueOnDisk = tuple[str, str, int]


def list_queues(fs: FileSystem, root: str) -> list[QueueOnDisk]:
    """Return the directories that look like queues."""
    found = []
    for kind in (PLAIN_ROOT, BATCH_ROOT):
        for topic in fs.list(f"{root}/{kind}"):
            if topic.is_dir:
                names = [queue.name for queue in fs.list(f"{root}/{kind}/{topic.name}") if queue.is_dir]
                found += [(kind, topic.name, int(name)) for name in names if name.isascii() and name.isdigit() and len(name) < 10]
    return found


def find_batch_topics(fs: FileSystem, root: str, queues: Iterable[QueueOnDisk]) -> frozenset[str]:
    """Return the topics whose queues are batch queues: according to their configuration, or without one, their directory."""
    topics = {entry.name for entry in fs.list(f"{root}/{BATCH_ROOT}") if entry.is_dir}
    filled = {topic for kind, topic, _ in queues if kind == BATCH_ROOT}
    config = ConfigFile(f"{root}/config/topics.json", fs).load() or {}
    table = config.get("topicConfigTable")
    if isinstance(table, dict):
        for name, topic in table.items():
            if not isinstance(topic, dict):
                continue
            attributes = topic.get("attributes")
            kind = attributes.get("queue.type") if isinstance(attributes, dict) else None
            if kind == "BatchCQ":
                topics.add(name)
            elif kind == "SimpleCQ" or name not in filled:  # the file has no checksum: damage must not hide a topic's messages
                topics.discard(name)
    return frozenset(topics)


def file_sizes(fs: FileSystem, root: str, queues: Iterable[QueueOnDisk], configured: Mapping[str, int], *, trusted: bool) -> dict[str, int]:
    """Return the file size of each kind of queue: that of most queues on disk, else the ``configured`` one.

    Apache's broker opens no store with mixed sizes. Unless ``trusted``, a file shorter than configured that is alone in its queue may have
    lost its end in a power failure: its size counts only if another queue has the same.
    """
    sizes = dict(configured)
    for kind, unit_bytes in _UNIT_BYTES.items():
        votes: dict[int, int] = {}
        doubted: dict[int, int] = {}
        for topic, queue_id in [found[1:] for found in queues if found[0] == kind][:_MAX_SAMPLES]:
            directory = f"{root}/{kind}/{topic}/{queue_id}"
            segments = segment_entries(fs.list(directory))
            size = segment_size_of(segments)
            alone = len(segments) == 1 and not trusted
            if not size or size % unit_bytes:
                continue
            if alone and size not in sizes.values() and _ends_in_data(fs, f"{directory}/{segments[0][1].name}", size):
                continue
            counted = doubted if alone and size < sizes[kind] else votes
            counted[size] = counted.get(size, 0) + 1
        for size, count in doubted.items():
            if count > 1 or size in votes:
                votes[size] = votes.get(size, 0) + count
        if votes:
            sizes[kind] = max(votes, key=lambda size: (votes[size], size))
    return sizes


def _ends_in_data(fs: FileSystem, path: str, size: int) -> bool:
    """Return whether a file ends in data, where the writes ended before a power failure, instead of at its full length."""
    try:
        file = fs.open(path, read_only=True)
    except OSError:
        return True
    try:
        return any(file.pread(QUEUE_UNIT_BYTES, size - QUEUE_UNIT_BYTES))
    finally:
        file.close()
