"""The ``checkpoint`` file: how far derived data had come when it was last on the disk.

::

    0                8                 16                24                 32                 40                   48    4096
    +----------------+-----------------+-----------------+------------------+------------------+--------------------+-----+
    | commit log     | consume queues  | index files     | master's flushed | last valid record| newest record whose| 0   |
    | flushed up to  | flushed up to   | flushed up to   | offset (slaves)  | found by recovery| queue entry is on  |     |
    | this store time| this store time | this store time |                  |                  | the disk           |     |
    | i64            | i64             | i64             | i64              | i64              | i64                |     |
    +----------------+-----------------+-----------------+------------------+------------------+--------------------+-----+

Our own recovery goes by the queue snapshot (``snapshot.py``); these fields tell Apache's broker where to begin when it opens the store.
"""

from dataclasses import dataclass
from struct import Struct

from sprocketmq.storage.fs import FileSystem

FILE_BYTES = 4096

_FIELDS = Struct(">qqqqqq")


@dataclass
class Checkpoint:
    """The fields in file order; 0 where nothing is known. Times are store timestamps in ms, offsets are bytes of the commit log."""

    commitlog_timestamp_ms: int = 0
    queues_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    queues_physical_offset: int = 0

    @classmethod
    def load(cls, fs: FileSystem, path: str) -> "Checkpoint":
        """Return what the file says; zeros when it is missing, unreadable, too short or holds impossible (negative) values."""
        try:
            raw = fs.read(path)
        except OSError:
            return cls()
        if len(raw) < _FIELDS.size:
            return cls()
        fields = _FIELDS.unpack_from(raw)
        return cls(*fields) if min(fields) >= 0 else cls()

    def encode(self) -> bytes:
        """Return the whole file."""
        return _FIELDS.pack(
            self.commitlog_timestamp_ms,
            self.queues_timestamp_ms,
            self.index_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_offset,
            self.queues_physical_offset,
        ).ljust(FILE_BYTES, b"\0")

    def save(self, fs: FileSystem, path: str) -> None:
        """Write the file in place and sync it; it is one sector, so a torn write cannot mix old and new. Raises OSError."""
        file = fs.open(path, create=True)
        try:
            file.pwrite(self.encode(), 0)
            file.fdatasync()
        finally:
            file.close()
