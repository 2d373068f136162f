"""Locating the messages in a buffer of concatenated records, and unwrapping inner batches."""

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import overload

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.layout import FIXED_OVERHEAD, RECORD_HEAD_BYTES
from sprocketmq.protocol.records.chunks import (
    INNER,
    UNUSUAL,
    WALK,
    Chunk,
    chunk_of_batch,
    chunk_of_equal_records,
    chunk_of_records,
)
from sprocketmq.protocol.records.encoding import MAGICS, damage_at
from sprocketmq.protocol.records.received import ReceivedMessage, Record


class LocatedMessages(Sequence[ReceivedMessage]):
    """The messages of a pull, located and checked but created only when they are taken: a slice is a list of messages.

    Messages waiting for their consumer cost only their bytes, and those that are taken are in the processor's cache.
    """

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: list[Chunk | ReceivedMessage] = []
        self._count = 0

    def add(self, part: Chunk | ReceivedMessage) -> None:
        self._parts.append(part)
        self._count += part.count if type(part) is Chunk else 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self._list(0, self._count))

    @overload
    def __getitem__(self, index: int) -> ReceivedMessage: ...

    @overload
    def __getitem__(self, index: slice) -> list[ReceivedMessage]: ...

    def __getitem__(self, index: int | slice) -> ReceivedMessage | list[ReceivedMessage]:
        if not isinstance(index, slice):
            at = index + self._count if index < 0 else index
            if not 0 <= at < self._count:
                raise IndexError(index)
            return self._list(at, at + 1)[0]
        start, stop, step = index.indices(self._count)
        found = self._list(start, stop)
        return found if step == 1 else self._list(0, self._count)[index]

    def with_tags(self, tags: Collection[bytes]) -> "LocatedMessages":
        """Return those that have one of ``tags``, given as stored."""
        found = LocatedMessages()
        for part in self._parts:
            if type(part) is Chunk:
                chosen = part.with_tags(tags)
                for one in (chosen,) if type(chosen) is Chunk else chosen:
                    found.add(one)
            elif part.has_tag(tags):
                found.add(part)
        return found

    def _list(self, start: int, stop: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        for part in self._parts:
            if stop <= 0:
                break
            if type(part) is Chunk:
                count = part.count
                if start < count:
                    found += part.messages(max(start, 0), min(stop, count))
                start -= count
                stop -= count
            else:
                if start <= 0:
                    found.append(part)
                start -= 1
                stop -= 1
        return found


def decode_records(
    data: bytes | memoryview, *, broker_name: str = "", verify_crc: bool = False, whole: list[ReceivedMessage] | None = None
) -> list[ReceivedMessage]:
    """Return the messages of concatenated records, inner batches unwrapped, in order.

    With ``verify_crc`` every stored body is checked first. Raises RemoteProtocolError for damage. With ``whole``, an inner batch that
    cannot be unwrapped raises nothing: its record is returned as one message and appended to ``whole``.
    """
    return locate_records(data, broker_name=broker_name, verify_crc=verify_crc, whole=whole)[:]


def locate_records(
    data: bytes | memoryview, *, broker_name: str = "", verify_crc: bool = False, whole: list[ReceivedMessage] | None = None
) -> LocatedMessages:
    """Locate and check the messages that ``decode_records`` returns, without creating them."""
    data = data if type(data) is bytes else bytes(data)
    total = len(data)
    found = LocatedMessages()
    unpack = WALK.unpack_from
    magics = MAGICS
    pos = 0
    if not verify_crc and (chunk := chunk_of_equal_records(data, broker_name)) is not None:
        found.add(chunk)
        return found
    while pos < total:
        try:
            size, magic, sys_flag, length = unpack(data, pos)
        except struct.error:
            size = magic = sys_flag = length = 0
        if magic not in magics or size < FIXED_OVERHEAD or size > total - pos:
            raise damage_at(data, pos)
        is_batch = sys_flag & INNER == INNER
        if sys_flag & UNUSUAL or length < 0 or length > size - FIXED_OVERHEAD:
            message = Record(data, pos, size, broker_name)
        else:
            if not verify_crc:
                chunk = chunk_of_batch(data, broker_name, pos, size, length) if is_batch else chunk_of_records(data, pos, broker_name)
                if chunk is not None:
                    found.add(chunk)
                    pos = pos + size if is_batch else chunk.stop
                    continue
            body_at = pos + RECORD_HEAD_BYTES
            message = Record(data, pos, size, broker_name, body_at, body_at + length)
        if verify_crc:
            message.verify_crc()
        if is_batch:
            try:
                for inner in message.inner_messages():
                    found.add(inner)
            except RemoteProtocolError:
                if whole is None:
                    raise
                whole.append(message)
                found.add(message)
        else:
            found.add(message)
        pos += size
    return found
