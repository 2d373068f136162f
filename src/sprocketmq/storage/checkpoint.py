"""The ``checkpoint`` file: up to which point derived data was on disk at the last flush.

``protocol/layout.py`` draws it.

SprocketMQ recovers from the queue snapshot (``snapshot.py``); these fields tell Apache's broker where to start when it opens the store.
"""

from dataclasses import dataclass

from sprocketmq.protocol.layout import CHECKPOINT, CHECKPOINT_FILE_BYTES
from sprocketmq.storage.fs import FileSystem


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
        """Return the content of the file; zeros when it is missing, unreadable, too short or holds impossible (negative) values."""
        try:
            raw = fs.read(path)
        except OSError:
            return cls()
        if len(raw) < CHECKPOINT.size:
            return cls()
        fields = CHECKPOINT.unpack_from(raw)
        return cls(*fields) if min(fields) >= 0 else cls()

    def encode(self) -> bytes:
        """Return the whole file."""
        return CHECKPOINT.pack(
            self.commitlog_timestamp_ms,
            self.queues_timestamp_ms,
            self.index_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_offset,
            self.queues_physical_offset,
        ).ljust(CHECKPOINT_FILE_BYTES, b"\0")

    def save(self, fs: FileSystem, path: str) -> None:
        """Write the file in place and sync it; it is one sector, so a torn write cannot mix old and new. Raises OSError."""
        file = fs.open(path, create=True)
        try:
            file.pwrite(self.encode(), 0)
            file.fdatasync()
        finally:
            file.close()
