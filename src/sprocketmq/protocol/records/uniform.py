"""Chunks of messages with the same lengths, as most pulls are: located by comparing bytes at a stride, not message by message."""

from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING

import msgspec

from sprocketmq.protocol.batch import repeated
from sprocketmq.protocol.codes import SYSFLAG_ANY_HOST_V6, SYSFLAG_COMPRESSED, SYSFLAG_INNER_BATCH, SYSFLAG_NEED_UNWRAP
from sprocketmq.protocol.layout import BATCH_ENTRY_HEAD_BYTES, FIXED_OVERHEAD, RECORD_HEAD_BYTES, RECORD_LAYOUT
from sprocketmq.protocol.records.encoding import MAGICS
from sprocketmq.protocol.records.received import MAX_CUT_BYTES, ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

_WALKED = ("size", "magic", "sys_flag", "body_length")
WALK = RECORD_LAYOUT.part(*_WALKED)
_WALKED_BYTES = [field.offset + i for field in map(RECORD_LAYOUT.fields.__getitem__, _WALKED) for i in range(field.size)]
INNER = SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP
# Records whose body is at another offset, or not stored as it was sent.
UNUSUAL = SYSFLAG_ANY_HOST_V6 | SYSFLAG_COMPRESSED
# Bodies that one format cuts out.
_CUT = 32


class UniformChunk(msgspec.Struct, gc=False, eq=False):
    """Consecutive messages whose records, or batch entries, have the same lengths: located together, created when they are taken."""

    data: bytes
    broker_name: str
    # Of the first record, or of the one that holds the batch.
    pos: int
    size: int
    count: int
    # The distance from one message to the next, and where the first body begins.
    step: int
    body_at: int
    length: int
    inner: bool

    def messages(self, start: int, stop: int) -> "Iterable[ReceivedMessage]":
        """Create the messages ``[start, stop)`` with their bodies: cutting out all at once costs less than each one when it is read."""
        step = self.step
        before = BATCH_ENTRY_HEAD_BYTES if self.inner else RECORD_HEAD_BYTES
        bodies: list[bytes] = []
        while (count := stop - start - len(bodies)) > 0:
            cut = _cut_of(step, before, self.length, min(count, _CUT))
            bodies += cut.unpack_from(self.data, self.body_at - before + (start + len(bodies)) * step)
        return map(_ChunkMessage, repeat(self), range(start, stop), bodies)


class _ChunkMessage(ReceivedMessage, gc=False, eq=False):
    """A message of a chunk."""

    _chunk: UniformChunk
    _number: int
    body: bytes

    @property
    def broker_name(self) -> str:
        return self._chunk.broker_name

    @property
    def _data(self) -> bytes:
        return self._chunk.data

    @property
    def _pos(self) -> int:
        chunk = self._chunk
        return chunk.pos if chunk.inner else chunk.pos + self._number * chunk.step

    @property
    def _size(self) -> int:
        return self._chunk.size

    @property
    def _body_at(self) -> int:
        chunk = self._chunk
        return chunk.body_at + self._number * chunk.step

    @property
    def _body_end(self) -> int:
        return self._body_at + self._chunk.length

    @property
    def _index(self) -> int:
        return self._number if self._chunk.inner else -1

    @property
    def _entry_end(self) -> int:
        chunk = self._chunk
        return chunk.body_at - BATCH_ENTRY_HEAD_BYTES + (self._number + 1) * chunk.step


def chunk_of_records(data: bytes, broker_name: str) -> UniformChunk | None:
    """Return all of ``data`` as one chunk when it is several ordinary records with the same lengths, else None."""
    total = len(data)
    if total < 2 * FIXED_OVERHEAD:
        return None
    size, magic, sys_flag, length = WALK.unpack_from(data)
    if (
        magic not in MAGICS
        or size < FIXED_OVERHEAD
        or not 0 <= length <= min(size - FIXED_OVERHEAD, MAX_CUT_BYTES)
        or sys_flag & (UNUSUAL | INNER)
        or total % size
        or total == size
    ):
        return None
    if not repeated(data, 0, total, size, _WALKED_BYTES):
        return None
    return UniformChunk(data, broker_name, 0, size, total // size, size, RECORD_HEAD_BYTES, length, False)


@lru_cache(maxsize=256)
def _cut_of(step: int, before: int, length: int, count: int) -> Struct:
    """Return the format that cuts ``length`` bytes after ``before`` others out of each of ``count`` steps."""
    return Struct(f"{before}x{length}s{step - before - length}x" * count)
