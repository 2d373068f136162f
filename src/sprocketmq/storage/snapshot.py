"""The ``dispatched`` file: the ends of all queues as of one log offset, so that a start need not read the log before it again.

Only SprocketMQ uses it; Apache's broker ignores it. It is derived from the log: if it is missing, or does not match the log or the queues,
all queues are derived again.

::

    0        4         8          16         24      28       32            36            40            44           48
    +--------+---------+----------+----------+-------+--------+-------------+-------------+-------------+------------+---------------
    | "SPMQ" | version | log end  | last     | its   | CRC of | number of   | number of   | number of   | bytes of   | plain queues,
    |        | i32 = 2 | i64      | record   | size  | its    | plain queues| batch queues| deletions   | index state| batch queues,
    |        |         |          | i64      | i32   | bytes  | i32         | i32         | i32         | i32        | ...
    +--------+---------+----------+----------+-------+--------+-------------+-------------+-------------+------------+---------------
    plain queue: topic length i16, topic, queue id i32, min offset i64, next offset i64, last unit's log offset i64, its size i32
    batch queue: the same, then the numbers of its first unit and of the next one, i64 each
    deletion:    topic length i16, topic, log offset i64: records of the topic before it have no queue
    index state: as the key index wrote it
    at the end:  the CRC of everything before it (i32)

Version 1 has neither batch queues nor index state, and the number of deletions at byte 36; it is still read.

``log_offset`` is the end of a record in the commit log: every record before it has its unit in a queue file, and both are on disk.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct

from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.layout import INT16, INT32, INT64
from sprocketmq.storage.fs import FileSystem

FILE_NAME = "dispatched"
VERSION = 2

_MAGIC = b"SPMQ"
_START = Struct(">4si")
_HEAD = Struct(">4siqqiiiiii")
_HEAD_V1 = Struct(">4siqqiiii")
_QUEUE = Struct(">iqqqi")
_UNITS = Struct(">qq")


@dataclass(frozen=True)
class QueueState:
    """One queue as of the snapshot; ``last`` is its last unit's log offset and size, (0, 0) without units.

    ``units`` are the numbers of a batch queue's first and next unit; None for a plain queue.
    """

    topic: str
    queue_id: int
    min_offset: int
    next: int
    last: tuple[int, int]
    units: tuple[int, int] | None = None


@dataclass(frozen=True)
class Snapshot:
    """The content of the file. ``last_record`` is (log offset, size, CRC) of the record that ends at ``log_offset``, size 0 if none.

    One of version 1 says nothing of batch queues.
    """

    log_offset: int = 0
    last_record: tuple[int, int, int] = (0, 0, 0)
    queues: tuple[QueueState, ...] = ()
    deleted: dict[str, int] = field(default_factory=dict)
    index: bytes = b""
    version: int = VERSION

    def encode(self) -> bytes:
        """Return the whole file."""
        plain = [queue for queue in self.queues if queue.units is None]
        batch = [queue for queue in self.queues if queue.units is not None]
        counts = (len(plain), len(batch), len(self.deleted), len(self.index))
        parts = [_HEAD.pack(_MAGIC, VERSION, self.log_offset, *self.last_record, *counts)]
        for q in plain + batch:
            parts += (*_name(q.topic), _QUEUE.pack(q.queue_id, q.min_offset, q.next, *q.last))
            if q.units is not None:
                parts.append(_UNITS.pack(*q.units))
        for topic, log_offset in self.deleted.items():
            parts += (*_name(topic), INT64.pack(log_offset))
        parts.append(self.index)
        data = b"".join(parts)
        return data + INT32.pack(crc32(data))

    @classmethod
    def decode(cls, data: bytes) -> "Snapshot | None":
        """Return the snapshot in ``data``, or None when it is damaged or of a version we do not know."""
        try:
            if crc32(data[:-4]) != INT32.unpack(data[-4:])[0]:
                return None
            magic, version = _START.unpack_from(data)
            if magic != _MAGIC or version not in (1, VERSION):
                return None
            batch_count = index_bytes = 0
            if version == 1:
                reader = _Reader(data, _HEAD_V1.size)
                _, _, log_offset, last, size, crc, plain_count, deleted_count = _HEAD_V1.unpack_from(data)
            else:
                reader = _Reader(data, _HEAD.size)
                _, _, log_offset, last, size, crc, plain_count, batch_count, deleted_count, index_bytes = _HEAD.unpack_from(data)
            queues = (*reader.queues(plain_count, batch=False), *reader.queues(batch_count, batch=True))
            deleted = {reader.name(): reader.take(INT64)[0] for _ in range(deleted_count)}
            index = data[reader.pos : reader.pos + index_bytes]
        except (struct.error, UnicodeDecodeError):
            return None
        return cls(log_offset, (last, size, crc), queues, deleted, index, version)

    @classmethod
    def load(cls, fs: FileSystem, root: str) -> "Snapshot | None":
        """Return the store's snapshot, or None when there is no readable one."""
        try:
            return cls.decode(fs.read(f"{root}/{FILE_NAME}"))
        except OSError:
            return None

    def save(self, fs: FileSystem, root: str) -> None:
        """Replace the file in one durable step. Raises OSError; the old one then still stands."""
        temporary = f"{root}/{FILE_NAME}.tmp"
        file = fs.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwrite(self.encode(), 0)
            file.fdatasync()
        finally:
            file.close()
        fs.rename(temporary, f"{root}/{FILE_NAME}")
        fs.fsync_dir(root)


class _Reader:
    def __init__(self, data: bytes, pos: int) -> None:
        self.data = data
        self.pos = pos

    def take(self, layout: Struct) -> tuple[int, ...]:
        self.pos += layout.size
        return layout.unpack_from(self.data, self.pos - layout.size)

    def name(self) -> str:
        (length,) = self.take(INT16)
        self.pos += length
        return self.data[self.pos - length : self.pos].decode()

    def queues(self, count: int, *, batch: bool) -> Iterator[QueueState]:
        for _ in range(count):
            topic = self.name()
            queue_id, min_offset, next_offset, last, size = self.take(_QUEUE)
            units = None
            if batch:
                first, end = self.take(_UNITS)
                units = (first, end)
            yield QueueState(topic, queue_id, min_offset, next_offset, (last, size), units)


def _name(topic: str) -> Iterable[bytes]:
    name = topic.encode()
    return INT16.pack(len(name)), name
