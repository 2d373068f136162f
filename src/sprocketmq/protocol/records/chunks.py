"""Chunks of messages that are located together and created when they are taken.

Most pulls have messages with the same lengths: these are located by comparing bytes at a stride, not message by message.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import compress, repeat
from struct import Struct
from typing import TYPE_CHECKING, final

import msgspec

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.batch import common_lengths, repeated
from sprocketmq.protocol.codes import SYSFLAG_ANY_HOST_V6, SYSFLAG_COMPRESSED, SYSFLAG_INNER_BATCH, SYSFLAG_NEED_UNWRAP
from sprocketmq.protocol.layout import BATCH_ENTRY_HEAD_BYTES, FIXED_OVERHEAD, RECORD_HEAD_BYTES, RECORD_LAYOUT
from sprocketmq.protocol.records.encoding import MAGICS
from sprocketmq.protocol.records.inner import inner_bodies
from sprocketmq.protocol.records.received import MAX_CUT_BYTES, TAGS_BEHIND, ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

_WALKED = ("size", "magic", "sys_flag", "body_length")
WALK = RECORD_LAYOUT.part(*_WALKED)
_WALKED_BYTES = [field.offset + i for field in map(RECORD_LAYOUT.fields.__getitem__, _WALKED) for i in range(field.size)]
INNER = SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP
# Records whose body is at another offset, or not stored as it was sent.
UNUSUAL = SYSFLAG_ANY_HOST_V6 | SYSFLAG_COMPRESSED
_QUEUE_OFFSET_AT = RECORD_LAYOUT.offset("queue_offset")
_QUEUE_OFFSET_BEFORE_BODY = RECORD_HEAD_BYTES - _QUEUE_OFFSET_AT
_queue_offset_at = RECORD_LAYOUT.part("queue_offset", start="queue_offset").unpack_from
# Bodies that one format cuts out.
_CUT = 32


@final
class Chunk(msgspec.Struct, gc=False, eq=False):
    """Consecutive records, or the entries of one inner batch: located together, created as messages when they are taken."""

    data: bytes
    broker_name: str
    # Where the bodies begin and end. There is one more beginning than bodies: each record or entry ends ``head`` bytes before the next
    # body. Both are ranges when all records or entries have the same lengths.
    begins: Sequence[int]
    ends: Sequence[int]
    count: int
    # The bytes of a record or entry before its body.
    head: int
    # Of the record that holds an inner batch: where it is, and its size; else -1 and 0.
    pos: int = -1
    size: int = 0

    @property
    def stop(self) -> int:
        """Where the last record or entry ends."""
        return self.begins[-1] - self.head

    def messages(self, start: int, stop: int) -> "Iterable[ReceivedMessage]":
        """Create the messages ``[start, stop)``."""
        begins, numbers = self.begins, range(start, stop)
        if type(begins) is range:
            return map(_UniformMessage, repeat(self), numbers, self._cut(begins, start, stop - start))
        return map(_MixedMessage, repeat(self), numbers, begins[start:stop], self.ends[start:stop])

    def _cut(self, begins: range, start: int, count: int) -> list[bytes]:
        """Return the bodies of ``count`` messages: cutting out all at once costs less than each one when it is read."""
        step, head, length = begins.step, self.head, self.ends[0] - begins.start
        at = begins.start - head + start * step
        bodies: list[bytes] = []
        while count > 0:
            some = min(count, _CUT)
            bodies += _cut_of(step, head, length, some).unpack_from(self.data, at)
            at += some * step
            count -= some
        return bodies

    def with_tags(self, tags: Collection[bytes]) -> "Chunk | list[ReceivedMessage]":
        """Return the messages that have one of ``tags``, given as stored: the chunk itself when all have."""
        find, data, head = self.data.find, self.data, self.head
        following = iter(self.begins)
        next(following)
        found: list[bool] = []
        for number, (body_end, begin) in enumerate(zip(self.ends, following, strict=True)):
            end = begin - head
            # Like ``has_tag``, without creating a message.
            at = find(TAGS_BEHIND, body_end, end) + 6
            stop = find(b"\x02", at, end) if at > 5 else -1
            if stop >= 0:
                found.append(data[at:stop] in tags)
            elif at > 5 or find(b"TAGS\x01", body_end, end) >= 0:
                (message,) = self.messages(number, number + 1)
                found.append(message.has_tag(tags))
            else:
                found.append(False)
        return self if all(found) else list(compress(self.messages(0, len(found)), found))


class _ChunkMessage(ReceivedMessage, gc=False, eq=False):
    """A message of a chunk: its number there."""

    _chunk: Chunk
    _number: int

    @property
    def broker_name(self) -> str:
        return self._chunk.broker_name

    @property
    def _data(self) -> bytes:
        return self._chunk.data

    @property
    def _pos(self) -> int:
        chunk = self._chunk
        return chunk.pos if chunk.pos >= 0 else self._body_at - chunk.head

    @property
    def _size(self) -> int:
        chunk = self._chunk
        return chunk.size or chunk.begins[self._number + 1] - self._body_at

    @property
    def _index(self) -> int:
        return self._number if self._chunk.pos >= 0 else -1

    @property
    def _entry_end(self) -> int:
        chunk = self._chunk
        return chunk.begins[self._number + 1] - chunk.head

    def _body_span(self) -> tuple[int, int, int]:
        return (self._body_at, self._body_end, 0) if self._chunk.pos < 0 else ReceivedMessage._body_span(self)  # noqa: SLF001 - the base class

    def _after_body(self) -> tuple[bytes, int, int]:
        chunk = self._chunk
        return chunk.data, self._body_end, chunk.begins[self._number + 1] - chunk.head

    @property
    def queue_offset(self) -> int:
        """The message's own queue offset, also inside an inner batch."""
        chunk = self._chunk
        if chunk.pos < 0:
            return _queue_offset_at(chunk.data, self._body_at - _QUEUE_OFFSET_BEFORE_BODY)[0]  # type: ignore[no-any-return]
        return self._number + _queue_offset_at(chunk.data, chunk.pos + _QUEUE_OFFSET_AT)[0]  # type: ignore[no-any-return]


class _UniformMessage(_ChunkMessage, gc=False, eq=False):
    """A message of a chunk whose messages have the same lengths."""

    body: bytes

    @property
    def _body_at(self) -> int:
        return self._chunk.begins[self._number]

    @property
    def _body_end(self) -> int:
        return self._chunk.ends[self._number]


class _MixedMessage(_ChunkMessage, gc=False, eq=False):
    """A message of a chunk whose messages have several lengths."""

    _body_at: int
    _body_end: int
    _body: bytes | None = None

    @property
    def body(self) -> bytes:
        """The body as it was sent."""
        at, end = self._body_at, self._body_end
        if end - at <= MAX_CUT_BYTES:
            return self._chunk.data[at:end]
        body = self._body
        if body is None:
            body = self._body = self._chunk.data[at:end]
        return body


def chunk_of_equal_records(data: bytes, broker_name: str) -> Chunk | None:
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
    return _equal(data, broker_name, 0, total // size, size, RECORD_HEAD_BYTES, length)


def chunk_of_records(data: bytes, start: int, broker_name: str) -> Chunk | None:
    """Return the ordinary records from ``start`` up to the first other or damaged one; None unless there are several."""
    total = len(data)
    last = total - FIXED_OVERHEAD
    begins: list[int] = []
    ends: list[int] = []
    begin, end = begins.append, ends.append
    unpack, head = WALK.unpack_from, RECORD_HEAD_BYTES
    unlike = UNUSUAL | INNER
    magic = unpack(data, start)[1]
    if magic not in MAGICS:
        return None
    pos = start
    while pos <= last:
        size, kind, sys_flag, length = unpack(data, pos)
        if kind != magic or sys_flag & unlike or length < 0 or size < length + FIXED_OVERHEAD or pos + size > total:
            break
        begin(body_at := pos + head)
        end(body_at + length)
        pos += size
    if len(ends) < 2:
        return None
    begin(pos + head)
    return Chunk(data, broker_name, begins, ends, len(ends), head)


def chunk_of_batch(data: bytes, broker_name: str, pos: int, size: int, length: int) -> Chunk | None:
    """Return the messages of the inner batch in the record at ``pos``, whose body has ``length`` bytes.

    None when it cannot be unwrapped.
    """
    at = pos + RECORD_HEAD_BYTES
    head = BATCH_ENTRY_HEAD_BYTES
    alike = common_lengths(data, at, at + length)
    if alike is not None and alike[1] <= MAX_CUT_BYTES:
        return _equal(data, broker_name, at, length // alike[0], alike[0], head, alike[1], pos, size)
    try:
        begins, ends = inner_bodies(data, at, at + length)
    except RemoteProtocolError:
        return None
    return Chunk(data, broker_name, begins, ends, len(ends), head, pos, size)


def _equal(data: bytes, broker_name: str, at: int, count: int, step: int, head: int, length: int, pos: int = -1, size: int = 0) -> Chunk:
    begin = at + head
    end = begin + length
    stop = begin + count * step
    return Chunk(data, broker_name, range(begin, stop + 1, step), range(end, stop, step), count, head, pos, size)


@lru_cache(maxsize=256)
def _cut_of(step: int, before: int, length: int, count: int) -> Struct:
    """Return the format that cuts ``length`` bytes after ``before`` others out of each of ``count`` steps."""
    return Struct(f"{before}x{length}s{step - before - length}x" * count)
