"""Checks on a directory before a store opens in it. They run first, so that nothing is changed when the directory is refused.

Derived files need no check: they are rebuilt. A directory is refused when this engine would lose its data or cannot read it: other files,
queues and settings in a RocksDB database, messages that exist only in tiered storage or a compacted log, a newer format, a missing log.
"""

import shlex
from collections.abc import Iterator
from struct import Struct

from sprocketmq.errors import SprocketError, StoreDamaged, StoreNotSupported
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.jsondialect import loads
from sprocketmq.protocol.layout import INT32
from sprocketmq.storage.checkpoint import Checkpoint
from sprocketmq.storage.fs import Entry, FileSystem
from sprocketmq.storage.log.segments import segment_entries
from sprocketmq.storage.snapshot import FILE_NAME as DISPATCHED
from sprocketmq.storage.snapshot import VERSION as DISPATCHED_VERSION
from sprocketmq.storage.snapshot import Snapshot

# A directory with any of these is a store.
STORE_NAMES = frozenset(
    {
        *("commitlog", "consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "config", "checkpoint", "abort", "abort.bak"),
        *("lock", "damaged", "rebuilding", "rocksdbstore", "timerwheel", "timerlog", "compaction", DISPATCHED, f"{DISPATCHED}.tmp"),
    }
)
# Names that do not count: the root directory of a file system has this one.
_HARMLESS_NAMES = frozenset({"lost+found"})
# A RocksDB database has this file in its directory.
_ROCKSDB_MARK = "CURRENT"
_QUEUE_DATABASES = ("consumequeue", "consumequeue_rocksdb", "consumequeue_r")
_CONFIG_DATABASES = ("topics", "subscriptionGroups", "consumerOffsets", "metadata", "rdb")
_TIERED = "config/tieredStoreMetadata.json"
_SHOWN_NAMES = 3

_MAGIC_AND_VERSION = Struct(">4si")


def check_directory(fs: FileSystem, root: str) -> None:
    """Raise when a store must not open in ``root``; a missing or empty directory is fine. Changes nothing.

    Raises StoreNotSupported for a directory that is not a store or cannot be opened by this engine; StoreDamaged when the commit log is
    missing although other files refer to messages in it; OSError when the directory cannot be read.
    """
    entries = fs.list(root)
    names = {entry.name for entry in entries}
    if not names:
        return
    _check_is_store(root, entries)
    _check_rocksdb(fs, root, names)
    _check_elsewhere(fs, root, names)
    snapshot = check_version(fs, root) if DISPATCHED in names else None
    if not any(entry.size for _, entry in segment_entries(fs.list(f"{root}/commitlog"))):
        _check_log_is_gone(fs, root, names, snapshot)


def _check_is_store(root: str, entries: list[Entry]) -> None:
    names = {entry.name for entry in entries}
    others = sorted(name for name in names - _HARMLESS_NAMES if not name.startswith("."))
    if others and not names & STORE_NAMES:
        some = ", ".join(others[:_SHOWN_NAMES]) + (", ..." if len(others) > _SHOWN_NAMES else "")
        raise StoreNotSupported(
            root, f"this directory holds files ({some}), but no store", "choose an empty directory, or one that holds a store"
        )


def _check_rocksdb(fs: FileSystem, root: str, names: set[str]) -> None:
    """Refuse stores whose queues or settings are in RocksDB and nowhere else (storeType=defaultRocksDB and its relatives)."""
    for name in _QUEUE_DATABASES:
        if name not in names or not fs.exists(f"{root}/{name}/{_ROCKSDB_MARK}"):
            continue
        if not _has_queue_files(fs, root):
            raise StoreNotSupported(
                f"{root}/{name}",
                "the queues of this store are in a RocksDB database, which only Apache's broker reads",
                f"move {root}/{name} away and run sprocketmq rebuild {shlex.quote(root)}: it makes queue files from the commit log",
            )
    config = {entry.name for entry in fs.list(f"{root}/config")} if "config" in names else set()
    for name in _CONFIG_DATABASES:
        if name in config and "topics.json" not in config and fs.exists(f"{root}/config/{name}/{_ROCKSDB_MARK}"):
            raise StoreNotSupported(
                f"{root}/config/{name}",
                "topics and offsets of this store are in a RocksDB database, which only Apache's broker reads",
                "export them as JSON into the directory above it with Apache's mqadmin rocksDBConfigToJson (topics.json,"
                " subscriptionGroup.json, consumerOffset.json)",
            )


def _has_queue_files(fs: FileSystem, root: str) -> bool:
    """Return whether there are file queues as well: a broker can write both."""
    return any(
        entry.is_dir and fs.list(f"{root}/{kind}/{entry.name}")
        for kind in ("consumequeue", "batchconsumequeue")
        for entry in fs.list(f"{root}/{kind}")
    )


def _check_elsewhere(fs: FileSystem, root: str, names: set[str]) -> None:
    """Refuse stores with messages that are only in tiered storage or in a compacted log, not in the commit log."""
    if "config" in names and fs.exists(f"{root}/{_TIERED}") and _has_tiers(fs, f"{root}/{_TIERED}"):
        raise StoreNotSupported(
            f"{root}/{_TIERED}",
            "older messages of this store are in tiered storage, which only Apache's broker reads",
            "to continue with what is in the commit log alone, move this file away",
        )
    if "compaction" in names:
        for topic in fs.list(f"{root}/compaction/compactionLog"):
            if topic.is_dir and any(_data_below(fs, f"{root}/compaction/compactionLog/{topic.name}")):
                raise StoreNotSupported(
                    f"{root}/compaction/compactionLog/{topic.name}",
                    "this topic is compacted: its older messages are only here, where only Apache's broker reads them",
                    f"to continue with what is in the commit log alone, move {root}/compaction away",
                )


def _has_tiers(fs: FileSystem, path: str) -> bool:
    """Return whether the metadata of tiered storage names any file; True when it cannot be read."""
    try:
        found = loads(fs.read(path))
    except (OSError, SprocketError):
        return True
    return not isinstance(found, dict) or any(bool(table) for name, table in found.items() if str(name).lower().find("filesegment") >= 0)


def _data_below(fs: FileSystem, directory: str) -> Iterator[bool]:
    for queue in fs.list(directory):
        if queue.is_dir:
            yield from (bool(entry.size) for entry in fs.list(f"{directory}/{queue.name}"))


def check_mapping(fs: FileSystem, root: str) -> None:
    """Raise OSError when files of a new store could not be mapped; those of an old one are mapped when it is opened.

    Not every file system of FUSE can. It would take messages, which nobody could read.
    """
    if fs.list(f"{root}/commitlog"):
        return
    path = f"{root}/config/mapped"
    file = fs.open(path, create=True)
    try:
        file.pwrite(b"can this be mapped?", 0)
        file.map(1)
    finally:
        file.close()
        fs.unlink(path)


def check_version(fs: FileSystem, root: str) -> Snapshot | None:
    """Return the store's snapshot, None when it is missing or damaged. Raises StoreNotSupported for one of a newer version."""
    path = f"{root}/{DISPATCHED}"
    try:
        data = fs.read(path)
    except OSError:
        return None
    snapshot = Snapshot.decode(data)
    if snapshot is None and len(data) > _MAGIC_AND_VERSION.size + INT32.size:
        magic, version = _MAGIC_AND_VERSION.unpack_from(data)
        # The version counts only if the checksum is right; otherwise the file is damaged.
        if magic == b"SPMQ" and version > DISPATCHED_VERSION and crc32(data[: -INT32.size]) == INT32.unpack(data[-INT32.size :])[0]:
            raise StoreNotSupported(
                path,
                f"this store was last written by a newer SprocketMQ (format {version} at byte 4,"
                f" this one knows up to {DISPATCHED_VERSION})",
                "use the newer SprocketMQ, or remove this file to have the queues made anew from the commit log",
            )
    return snapshot


def _check_log_is_gone(fs: FileSystem, root: str, names: set[str], snapshot: Snapshot | None) -> None:
    """Refuse a store whose commit log is empty although a checkpoint or a snapshot refers to messages in it."""
    known = Checkpoint.load(fs, f"{root}/checkpoint") if "checkpoint" in names else Checkpoint()
    if known.commitlog_timestamp_ms or (snapshot is not None and snapshot.log_offset):
        witness = "checkpoint" if known.commitlog_timestamp_ms else DISPATCHED
        raise StoreDamaged(
            f"{root}/commitlog",
            0,
            f"there is no commit log, but {witness} knows of messages in it: put its files back (storePathCommitLog of an Apache broker may"
            f" have had them elsewhere), or remove {witness} to begin with an empty log",
        )
