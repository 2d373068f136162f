"""What kind of file a path is, by its path in a store or by its content, and the items in it."""

from codecs import getincrementaldecoder
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from sprocketmq.protocol.layout import (
    BATCH_UNIT,
    CHECKPOINT_FILE_BYTES,
    FIXED_OVERHEAD,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INT64,
    QUEUE_UNIT,
    RECORD_LAYOUT,
)
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import REAL_FS, FileSystem
from sprocketmq.storage.index.index_format import is_file_name
from sprocketmq.storage.index.slot_count import hash_slots_of
from sprocketmq.storage.inspect.batch_queue_items import batch_queue_items, batch_queue_items_from
from sprocketmq.storage.inspect.checkpoint_items import checkpoint_items
from sprocketmq.storage.inspect.consume_queue_items import queue_items, queue_items_from
from sprocketmq.storage.inspect.index_items import index_items
from sprocketmq.storage.inspect.items import Item, NotAStoreFile
from sprocketmq.storage.inspect.json_items import json_items
from sprocketmq.storage.inspect.segment_items import MAGICS, item_start, log_items, topic_items
from sprocketmq.storage.inspect.snapshot_items import snapshot_items
from sprocketmq.storage.inspect.text_items import text_items
from sprocketmq.storage.log.segments import parse_segment_name, segment_entries, segment_size_of
from sprocketmq.storage.snapshot import FILE_NAME as DISPATCHED


@dataclass(frozen=True)
class StoreFile:
    """What a file is. ``kind``: commitlog, consumequeue, batchconsumequeue, index, checkpoint, dispatched, abort, lock, json or text.

    ``start`` is the number in its name, for files with such names; ``root`` the store it belongs to, empty when it is outside of one.
    """

    path: str
    kind: str
    start: int = 0
    segment_bytes: int = 0
    topic: str = ""
    queue_id: int = 0
    root: str = ""


_SMALL = {
    "checkpoint": "checkpoint",
    DISPATCHED: DISPATCHED,
    "abort": "abort",
    "abort.bak": "abort",
    "lock": "lock",
    "epochFileCheckpoint": "text",
}


def identify(path: str, fs: FileSystem = REAL_FS) -> StoreFile:
    """Return what the file at ``path`` (absolute) is, by its path in a store or else by its content.

    Raises NotAStoreFile when it is not a file of a store, OSError when it cannot be read.
    """
    parts = path.split("/")
    name = parts[-1]
    start = parse_segment_name(name)
    with FileView(fs, path) as view:
        if start is not None:
            if len(parts) > 2 and parts[-2] in ("commitlog", "damaged"):
                siblings = segment_entries(fs.list("/".join(parts[:-1]))) if parts[-2] == "commitlog" else []
                size = segment_size_of(siblings) if len(siblings) > 1 else None
                return StoreFile(path, "commitlog", start, size or view.size, root="/".join(parts[:-2]))
            if len(parts) > 4 and parts[-4] in ("consumequeue", "batchconsumequeue"):
                queue_id = int(parts[-2]) if parts[-2].isascii() and parts[-2].isdigit() else 0
                return StoreFile(path, parts[-4], start, view.size, parts[-3], queue_id, "/".join(parts[:-4]))
        elif len(parts) > 2 and parts[-2] == "index" and is_file_name(name):
            return StoreFile(path, "index", root="/".join(parts[:-2]))
        elif name in _SMALL:
            return StoreFile(path, _SMALL[name], root="/".join(parts[:-1]))
        elif name.removesuffix(".bak").removesuffix(".tmp").endswith(".json"):
            return StoreFile(path, "json", root="/".join(parts[:-2]) if parts[-2] == "config" else "")
        kind = _kind_by_content(view)
        if kind is None:
            raise NotAStoreFile(
                path,
                "this is not a file of a store: name a commit log, queue, index, checkpoint or configuration file, or its directory",
            )
        if kind == "commitlog" and start is None:  # a copy under another name: its first record has the log offset
            start = INT64.unpack(view.read(RECORD_LAYOUT.offset("log_offset"), 8))[0]
        return StoreFile(path, kind, start or 0, view.size)


def _kind_by_content(view: FileView) -> str | None:
    head = view.read(0, FIXED_OVERHEAD)
    if not head:
        return None
    if head[:4] == b"SPMQ":
        return DISPATCHED
    if head.lstrip()[:1] in (b"{", b"[") and _is_text(head):
        return "json"
    if len(head) == FIXED_OVERHEAD and head[4:8] in MAGICS:
        return "commitlog"
    if view.size == CHECKPOINT_FILE_BYTES and view.data_from(48) == view.size:
        return "checkpoint"
    if len(head) >= INDEX_HEADER_BYTES and INDEX_HEADER.unpack_from(head)[5] > 1 and hash_slots_of(view) is not None:
        return "index"
    if view.size % BATCH_UNIT.size == 0 and all(not i.problem and i.kind != "filler" for i in _first(batch_queue_items(view))):
        return "batchconsumequeue" if head[42:46] == b"\0\0\0\0" and head[38:42] == b"\xff\xff\xff\xff" else None
    if view.size % QUEUE_UNIT.size == 0 and head.strip(b"\0") and all(not i.problem for i in _first(queue_items(view, 0))):
        return "consumequeue"
    return None


def _is_text(head: bytes) -> bool:
    """Whether the first bytes of a file are UTF-8 without control characters; the last character may be cut off."""
    try:
        getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(byte >= 0x20 or byte in b"\t\n\r" for byte in head)


def _first(items: Iterator[Item]) -> list[Item]:
    return list(islice(items, 8))


def items_of(file: StoreFile, view: FileView, *, offset: int | None = None, topic: str | None = None) -> Iterator[Item]:
    """Yield what is in a file, from ``offset`` on; of the commit log, with ``topic``, only the records of one topic.

    ``offset`` is a log offset for the commit log (the record that contains it comes first), a queue offset for queues, an entry's number
    for an index file; other files take none. Raises NotAStoreFile when the file has no such offset.
    """
    if file.kind == "commitlog":
        start = 0 if offset is None else item_start(view, file.start, file.segment_bytes, offset)
        if topic is not None:
            return topic_items(view, file.start, topic, segment_bytes=file.segment_bytes, start=start)
        return log_items(view, file.start, segment_bytes=file.segment_bytes, start=start)
    if file.kind == "consumequeue":
        return queue_items_from(view, file.start // QUEUE_UNIT.size, offset, file.topic)
    if file.kind == "batchconsumequeue":
        return batch_queue_items_from(view, offset)
    if file.kind == "index":
        return index_items(view, hash_slots_of(view), first_entry=offset or 1)
    if offset is not None:
        raise NotAStoreFile(file.path, f"--offset means nothing for this kind of file ({file.kind})")
    if file.kind == "checkpoint":
        return checkpoint_items(view)
    if file.kind == DISPATCHED:
        return snapshot_items(view)
    if file.kind == "json":
        return json_items(view)
    return text_items(view, abort=file.kind == "abort")
