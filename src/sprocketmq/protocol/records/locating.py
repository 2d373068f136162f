"""Locating the messages in a buffer of concatenated records, and unwrapping inner batches."""

import struct
from collections.abc import Iterator, Sequence
from typing import overload

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.batch import common_lengths
from sprocketmq.protocol.layout import BATCH_ENTRY_HEAD_BYTES, FIXED_OVERHEAD, RECORD_HEAD_BYTES
from sprocketmq.protocol.records.encoding import MAGICS, damage_at
from sprocketmq.protocol.records.received import MAX_CUT_BYTES, ReceivedMessage, Record
from sprocketmq.protocol.records.uniform import INNER, UNUSUAL, WALK, UniformChunk, chunk_of_records


class LocatedMessages(Sequence[ReceivedMessage]):
    """The messages of a pull, located and checked but created only when they are taken: a slice is a list of messages.

    Messages waiting for their consumer cost only their bytes, and those that are taken are in the processor's cache.
    """

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: list[UniformChunk | Record] = []
        self._count = 0

    def add(self, part: "UniformChunk | Record") -> None:
        self._parts.append(part)
        self._count += part.count if type(part) is UniformChunk else 1

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

    def _list(self, start: int, stop: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        for part in self._parts:
            if stop <= 0:
                break
            if type(part) is UniformChunk:
                count = part.count
                if start < count:
                    found += part.messages(max(start, 0), min(stop, count))
                start -= count
                stop -= count
            else:
                if start <= 0:
                    found.append(part)  # type: ignore[arg-type]
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
    if not verify_crc and (chunk := chunk_of_records(data, broker_name)) is not None:
        found.add(chunk)
        return found
    while pos < total:
        try:
            size, magic, sys_flag, length = unpack(data, pos)
        except struct.error:
            size = magic = sys_flag = length = 0
        if magic not in magics or size < FIXED_OVERHEAD or size > total - pos:
            raise damage_at(data, pos)
        if sys_flag & UNUSUAL or length < 0 or length > size - FIXED_OVERHEAD:
            message = Record(data, pos, size, broker_name)
        else:
            body_at = pos + RECORD_HEAD_BYTES
            if sys_flag & INNER == INNER and not verify_crc:
                alike = common_lengths(data, body_at, body_at + length)
                if alike is not None and alike[1] <= MAX_CUT_BYTES:  # as most batches are
                    step = alike[0]
                    found.add(
                        UniformChunk(data, broker_name, pos, size, length // step, step, body_at + BATCH_ENTRY_HEAD_BYTES, alike[1], True)
                    )
                    pos += size
                    continue
            message = Record(data, pos, size, broker_name, body_at, body_at + length)
        if verify_crc:
            message.verify_crc()
        if sys_flag & INNER == INNER:
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
