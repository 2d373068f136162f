"""The stored record: what a commit log holds and what a pull returns, byte for byte (docs/internals/messages.md#stored-record).

``layout.py`` draws its layout.
"""

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, overload

import msgspec

from sprocketmq.errors import LocalProtocolError, RemoteProtocolError
from sprocketmq.protocol.batch import MAX_BATCH_COUNT, common_lengths, repeated
from sprocketmq.protocol.codes import (
    SYSFLAG_ANY_HOST_V6,
    SYSFLAG_BORN_HOST_V6,
    SYSFLAG_COMPRESSED,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_NEED_UNWRAP,
    SYSFLAG_STORE_HOST_V6,
    SYSFLAG_TRANSACTION_MASK,
)
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.ids import offset_msg_id
from sprocketmq.protocol.layout import (
    BATCH_ENTRY_LAYOUT,
    BATCH_ENTRY_OVERHEAD,
    FIXED_OVERHEAD,
    INT16,
    INT32,
    INT64,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_HEAD,
    RECORD_LAYOUT,
    TWO_INT32,
)
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH, RETRY_TOPIC, decode_properties, find_property

_SYSFLAG_AND_LENGTH = RECORD_LAYOUT.part("sys_flag", "body_length", start="sys_flag")
_AFTER_HOSTS = RECORD_LAYOUT.part("reconsume_times", "prepared_offset", "body_length", start="reconsume_times")
_INNER = SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP
_MAGICS = frozenset({MAGIC_V1, MAGIC_V2})
_WALK = RECORD_LAYOUT.part("size", "magic", "sys_flag", "body_length")
# So many bodies are cut out by one format.
_CUT = 32
_WALKED = (*range(8), *range(36, 40), *range(84, 88))  # its bytes
_ENTRY = BATCH_ENTRY_LAYOUT.part("size", "body_length")
# Bodies up to this many bytes are cut out again each time: their memory is used again at once, which is faster than to keep them.
_SMALL = 8192
# Records whose body is elsewhere, or not stored as it was sent.
_UNUSUAL = SYSFLAG_ANY_HOST_V6 | SYSFLAG_COMPRESSED


def pack_host(ip: str, port: int) -> bytes:
    """Return a host as stored: 8 bytes for an IPv4 address, 20 for an IPv6 one. Raises LocalProtocolError when ``ip`` is no address."""
    try:
        return ip_address(ip.partition("%")[0]).packed + INT32.pack(port)
    except ValueError:
        raise LocalProtocolError(f"{ip!r} is not an IP address") from None


def unpack_host(data: bytes | memoryview) -> tuple[str, int]:
    """Return ``(ip, port)`` of a stored host of 8 or 20 bytes."""
    raw = bytes(data)
    if len(raw) == 8:
        return str(IPv4Address(raw[:4])), INT32.unpack_from(raw, 4)[0]
    if len(raw) == 20:
        return str(IPv6Address(raw[:16])), INT32.unpack_from(raw, 16)[0]
    raise RemoteProtocolError(f"a host has 8 or 20 bytes, not {len(raw)}")


def encode_record(
    *,
    topic: bytes,
    body: bytes | memoryview,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
) -> bytes:
    """Return one stored record. The host-family bits of ``sys_flag`` are set from the host lengths; a topic over 127 bytes makes it v2."""
    sys_flag &= ~SYSFLAG_ANY_HOST_V6
    if len(born_host) == 20:
        sys_flag |= SYSFLAG_BORN_HOST_V6
    if len(store_host) == 20:
        sys_flag |= SYSFLAG_STORE_HOST_V6
    if len(properties) > MAX_PROPERTIES_LENGTH:
        raise LocalProtocolError(f"the properties take {len(properties)} bytes, the limit is {MAX_PROPERTIES_LENGTH}")
    if len(topic) > 127:
        magic, topic_head = MAGIC_V2, INT16.pack(len(topic))
    else:
        magic, topic_head = MAGIC_V1, bytes((len(topic),))
    tail = topic_head + topic + INT16.pack(len(properties)) + properties
    size = 72 + len(born_host) + len(store_host) + len(body) + len(tail)
    head = (size, magic, crc32(body), queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp_ms)
    rest = (reconsume_times, prepared_offset, len(body))
    if sys_flag & SYSFLAG_ANY_HOST_V6:
        packed = b"".join(
            (
                RECORD_HEAD.pack(*head, b"", 0, b"", 0, 0, 0)[:48],
                born_host,
                INT64.pack(store_timestamp_ms),
                store_host,
                _AFTER_HOSTS.pack(*rest),
            )
        )
    else:
        packed = RECORD_HEAD.pack(*head, born_host, store_timestamp_ms, store_host, *rest)
    return b"".join((packed, body, tail))


def walk_records(data: bytes | memoryview) -> list[tuple[int, int]]:
    """Return ``(position, size)`` of each record of concatenated records.

    Raises RemoteProtocolError when a size is impossible or a magic number is not a record's.
    """
    total = len(data)
    unpack = TWO_INT32.unpack_from
    magics = _MAGICS
    found: list[tuple[int, int]] = []
    add = found.append
    pos = 0
    while total - pos >= FIXED_OVERHEAD:
        size, magic = unpack(data, pos)
        if magic not in magics or size < FIXED_OVERHEAD or size > total - pos:
            raise _damage(data, pos)
        add((pos, size))
        pos += size
    if pos < total:
        raise _damage(data, pos)
    return found


def _damage(data: bytes | memoryview, pos: int) -> RemoteProtocolError:
    """Return what is wrong with the record at ``pos``."""
    left = len(data) - pos
    if left < FIXED_OVERHEAD:
        return RemoteProtocolError(f"record at byte {pos} is cut short: {left} bytes are left")
    size, magic = TWO_INT32.unpack_from(data, pos)
    if magic not in _MAGICS:
        return RemoteProtocolError(f"record at byte {pos} has magic {magic & 0xFFFFFFFF:#x}")
    return RemoteProtocolError(f"record at byte {pos} has an impossible size {size}")


class ReceivedMessage(
    msgspec.Struct, gc=False, eq=False, kw_only=True
):  # the cheapest object to make; a fast consumer makes half a million a second
    """One stored message; its fields decode when they are touched.

    It keeps the received buffer alive: to keep one message of a large pull for long, keep its ``body``, which is its own.
    ``body`` is inflated when it was compressed. Fields raise RemoteProtocolError when the record is damaged.

    Consumers set ``restored`` on messages of a retry topic, whose ``topic`` is then the one they were sent to first, and count in
    ``failures`` how often a message failed in this process without being sent back.
    """

    _properties: dict[str, str] | None = None
    restored: bool = False
    failures: int = 0

    if TYPE_CHECKING:  # what subclasses say: where a message is

        @property
        def broker_name(self) -> str: ...

        @property
        def body(self) -> bytes:
            """The body as it was sent. Inflating is capped; RemoteProtocolError when it does not inflate."""

        @property
        def _data(self) -> bytes | memoryview: ...

        @property
        def _pos(self) -> int: ...

        @property
        def _size(self) -> int: ...

        # Where the body is in the buffer when it is stored as it was sent; -1 when that has to be looked for.
        @property
        def _body_at(self) -> int: ...

        @property
        def _body_end(self) -> int: ...

        # Of a message of an inner batch: its place in it (else -1), and where its entry ends.
        @property
        def _index(self) -> int: ...

        @property
        def _entry_end(self) -> int: ...

    # --- where things are ---

    def _read(self, layout: Struct, offset: int) -> int:
        try:
            return layout.unpack_from(self._data, self._pos + offset)[0]  # type: ignore[no-any-return]
        except struct.error:
            raise RemoteProtocolError("record is cut short") from None

    def _hosts_shift(self) -> tuple[int, int]:
        sys_flag = self.sys_flag
        born = 20 if sys_flag & SYSFLAG_BORN_HOST_V6 else 8
        store = 20 if sys_flag & SYSFLAG_STORE_HOST_V6 else 8
        return born, store

    def _body_span(self) -> tuple[int, int, int]:
        """Return where the stored body starts and ends in the buffer, and the sysFlag; most readers want nothing else."""
        data, pos = self._data, self._pos
        try:
            sys_flag, length = _SYSFLAG_AND_LENGTH.unpack_from(data, pos + 36)
            at = 88
            if sys_flag & SYSFLAG_ANY_HOST_V6:
                at = 72 + sum(self._hosts_shift())
                (length,) = INT32.unpack_from(data, pos + at - 4)
        except struct.error:
            raise RemoteProtocolError("record is cut short") from None
        if length < 0 or at + length + 3 > self._size:
            raise RemoteProtocolError(f"body length {length} does not fit a record of {self._size} bytes")
        start = pos + at
        return start, start + length, sys_flag

    def _tail(self) -> tuple[int, int, int, int]:
        """Return where topic and properties start and end in the buffer."""
        data, end = self._data, self._pos + self._size
        _, topic_at, _ = self._body_span()
        try:
            if INT32.unpack_from(data, self._pos + 4)[0] == MAGIC_V2:
                (length,) = INT16.unpack_from(data, topic_at)
                topic_at += 2
            else:
                length = data[topic_at]
                topic_at += 1
            props_at = topic_at + length + 2
            if length < 0 or props_at > end:
                raise RemoteProtocolError(f"topic length {length} does not fit a record of {self._size} bytes")
            (length,) = INT16.unpack_from(data, props_at - 2)
        except (struct.error, IndexError):
            raise RemoteProtocolError("record is cut short") from None
        if length < 0 or props_at + length > end:
            raise RemoteProtocolError(f"property length {length} does not fit a record of {self._size} bytes")
        return topic_at, props_at - 2, props_at, props_at + length

    def _bytes(self, at: int, length: int) -> bytes:
        return bytes(self._data[self._pos + at : self._pos + at + length])

    # --- fields ---

    @property
    def store_size(self) -> int:
        """Bytes of the whole record; of the outer record for a message of an inner batch."""
        return self._size

    @property
    def body_crc(self) -> int:
        """CRC of the stored (maybe compressed) body as the broker computed it."""
        return self._read(INT32, 8)

    @property
    def queue_id(self) -> int:
        return self._read(INT32, 12)

    @property
    def flag(self) -> int:
        if self._index < 0:
            return self._read(INT32, 16)
        return INT32.unpack_from(self._data, self._body_at - 8)[0]  # type: ignore[no-any-return]

    @property
    def queue_offset(self) -> int:
        """The message's own place in its queue, also inside an inner batch."""
        try:
            (base,) = INT64.unpack_from(self._data, self._pos + 20)
        except struct.error:
            raise RemoteProtocolError("record is cut short") from None
        return base if self._index < 0 else base + self._index  # type: ignore[no-any-return]

    @property
    def commitlog_offset(self) -> int:
        return self._read(INT64, 28)

    @property
    def sys_flag(self) -> int:
        return self._read(INT32, 36)

    @property
    def born_timestamp_ms(self) -> int:
        return self._read(INT64, 40)

    @property
    def born_host(self) -> str:
        """``ip:port`` of the sender as the broker saw it."""
        return _host_text(self._bytes(48, self._hosts_shift()[0]))

    @property
    def store_timestamp_ms(self) -> int:
        return self._read(INT64, 48 + self._hosts_shift()[0])

    def _store_host(self) -> bytes:
        born, store = self._hosts_shift()
        return self._bytes(56 + born, store)

    @property
    def raw_hosts(self) -> tuple[bytes, bytes]:
        """The hosts it was born on and stored on, as stored."""
        return self._bytes(48, self._hosts_shift()[0]), self._store_host()

    @property
    def store_host(self) -> str:
        """``ip:port`` of the broker that stored it."""
        return _host_text(self._store_host())

    @property
    def reconsume_times(self) -> int:
        """How often the message came again, as it was sent back by its consumer group or failed in this consumer."""
        if self._index >= 0:
            return self.failures
        born, store = self._hosts_shift()
        return self._read(INT32, 56 + born + store) + self.failures

    @property
    def is_inner(self) -> bool:
        """Whether it is one message of an inner batch: all of a batch share one record."""
        return self._index >= 0

    @property
    def prepared_offset(self) -> int:
        born, store = self._hosts_shift()
        return self._read(INT64, 60 + born + store)

    @property
    def copied_from(self) -> int | None:
        """Where in the log the record is that a broker made this one from: a parked message, or one that was given back; else None."""
        offset = self.prepared_offset
        return None if not offset or self.sys_flag & SYSFLAG_TRANSACTION_MASK else max(offset, 0)

    @property
    def raw_topic(self) -> bytes:
        """The topic whose queues hold it, as stored."""
        start, end, _, _ = self._tail()
        return bytes(self._data[start:end])

    @property
    def topic(self) -> str:
        if self.restored and (original := self.properties.get(RETRY_TOPIC)):
            return original
        start, end, _, _ = self._tail()
        try:
            return str(self._data[start:end], "utf-8")
        except UnicodeDecodeError:
            raise RemoteProtocolError("topic of a record is not UTF-8") from None

    @property
    def stored_body(self) -> memoryview:
        """The body as stored, compressed or not, without a copy."""
        start, end = self._body_at, self._body_end
        if start < 0:
            start, end, _ = self._body_span()
        return memoryview(self._data)[start:end]

    @property
    def raw_properties(self) -> bytes:
        """The property string as stored."""
        if self._index >= 0:
            return bytes(self._data[self._body_end + 2 : self._entry_end])
        _, _, start, end = self._tail()
        return bytes(self._data[start:end])

    @property
    def properties(self) -> dict[str, str]:
        """All properties, the standard ones (TAGS, KEYS, UNIQ_KEY ...) included."""
        if self._properties is None:
            self._properties = decode_properties(self.raw_properties)
        return self._properties

    @property
    def tag(self) -> str | None:
        if self._properties is None:  # consumers check every tag, and most look at nothing else of the properties
            try:
                raw = find_property(self.raw_properties, b"TAGS")
                return raw.decode() if raw else None
            except UnicodeDecodeError:
                raise RemoteProtocolError("tag of a record is not UTF-8") from None
        return self._properties.get("TAGS")

    def has_tag(self, tags: Collection[bytes]) -> bool:
        """Whether the message has one of ``tags``, given as stored."""
        data = self._data
        if self._body_at >= 0 and type(data) is bytes:
            # Most records have it behind another property; looking for it there needs no cutting.
            end = self._pos + self._size if self._index < 0 else self._entry_end
            at = data.find(b"\x02TAGS\x01", self._body_end, end) + 6
            stop = data.find(b"\x02", at, end) if at > 5 else -1
            if stop >= 0:
                return data[at:stop] in tags
        return find_property(self.raw_properties, b"TAGS") in tags

    @property
    def keys(self) -> list[str]:
        return self.properties.get("KEYS", "").split()

    @property
    def msg_id(self) -> str:
        """The id its producer gave it (UNIQ_KEY), else the broker's offset id."""
        return self.properties.get("UNIQ_KEY") or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The broker's id: its address and the record's place in the commit log, in hex."""
        return offset_msg_id(self._store_host(), self.commitlog_offset)

    def verify_crc(self) -> None:
        """Raise RemoteProtocolError when the stored body does not match its CRC. Messages of an inner batch carry none."""
        if self._index < 0 and crc32(self.stored_body) != self.body_crc:
            raise RemoteProtocolError(f"body of the message at queue offset {self.queue_offset} does not match its CRC")

    def __repr__(self) -> str:
        return f"ReceivedMessage({self.topic!r}, queue {self.queue_id} offset {self.queue_offset}, msg_id={self.msg_id!r})"


class Record(ReceivedMessage, gc=False, eq=False):
    """A message by where its record is in a buffer: ``Record(data, position, size)``."""

    _data: bytes | memoryview
    _pos: int
    _size: int
    broker_name: str = ""
    _body_at: int = -1
    _body_end: int = -1
    _index: int = -1
    _entry_end: int = -1
    _body: bytes | None = None

    @property
    def body(self) -> bytes:
        """The body as it was sent. Inflating is capped; RemoteProtocolError when it does not inflate."""
        at, end = self._body_at, self._body_end
        if at >= 0 and end - at <= _SMALL:
            return self._data[at:end]  # type: ignore[return-value]  # messages whose body is located are made of bytes
        body = self._body
        if body is None:
            start, end, sys_flag = (at, end, 0) if at >= 0 else self._body_span()
            stored = self._data[start:end]
            if sys_flag & SYSFLAG_COMPRESSED:
                from sprocketmq.protocol.compression import decompress  # few messages need it

                body = decompress(stored, sys_flag)
            else:
                body = bytes(stored)
            self._body = body
        return body


class _Run(msgspec.Struct, gc=False, eq=False):
    """Messages in a row whose records, or entries of an inner batch, have the same lengths: found together, made when they are wanted."""

    data: bytes
    broker_name: str
    # Of the first record, or the one that holds the batch.
    pos: int
    size: int
    count: int
    # From one message to the next, and the first body.
    step: int
    body_at: int
    length: int
    inner: bool

    def messages(self, start: int, stop: int) -> "Iterable[ReceivedMessage]":
        """Make the messages from place ``start`` to ``stop``, with their bodies: of all, that costs less than of each when it is read."""
        step = self.step
        before = 20 if self.inner else 88
        bodies: list[bytes] = []
        while (count := stop - start - len(bodies)) > 0:
            cut = _cut_of(step, before, self.length, min(count, _CUT))
            bodies += cut.unpack_from(self.data, self.body_at - before + (start + len(bodies)) * step)
        return map(_Member, repeat(self), range(start, stop), bodies)


class _Member(ReceivedMessage, gc=False, eq=False):
    """A message of a run."""

    _run: _Run
    _place: int
    body: bytes

    @property
    def broker_name(self) -> str:
        return self._run.broker_name

    @property
    def _data(self) -> bytes:
        return self._run.data

    @property
    def _pos(self) -> int:
        run = self._run
        return run.pos if run.inner else run.pos + self._place * run.step

    @property
    def _size(self) -> int:
        return self._run.size

    @property
    def _body_at(self) -> int:
        run = self._run
        return run.body_at + self._place * run.step

    @property
    def _body_end(self) -> int:
        return self._body_at + self._run.length

    @property
    def _index(self) -> int:
        return self._place if self._run.inner else -1

    @property
    def _entry_end(self) -> int:
        run = self._run
        return run.body_at - 20 + (self._place + 1) * run.step


class LocatedMessages(Sequence[ReceivedMessage]):
    """Messages of a pull, found and checked, and made when they are taken: a slice is a list of them.

    Messages that wait for their consumer cost no more than their bytes this way, and those it takes are in the processor's cache.
    """

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: list[_Run | Record] = []
        self._count = 0

    def add(self, part: "_Run | Record") -> None:
        self._parts.append(part)
        self._count += part.count if type(part) is _Run else 1

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
            if type(part) is _Run:
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

    With ``verify_crc`` every stored body is checked first. Raises RemoteProtocolError for damage. With ``whole``, an inner batch that does
    not unwrap is no damage: its record is returned as one message, and appended to ``whole``.
    """
    return locate_records(data, broker_name=broker_name, verify_crc=verify_crc, whole=whole)[:]


def locate_records(
    data: bytes | memoryview, *, broker_name: str = "", verify_crc: bool = False, whole: list[ReceivedMessage] | None = None
) -> LocatedMessages:
    """Find and check what ``decode_records`` returns, without making it."""
    data = data if type(data) is bytes else bytes(data)
    total = len(data)
    found = LocatedMessages()
    unpack = _WALK.unpack_from
    magics = _MAGICS
    pos = 0
    if not verify_crc and (run := _run_of_records(data, broker_name)) is not None:
        found.add(run)
        return found
    while pos < total:
        try:
            size, magic, sys_flag, length = unpack(data, pos)
        except struct.error:
            size = magic = sys_flag = length = 0
        if magic not in magics or size < FIXED_OVERHEAD or size > total - pos:
            raise _damage(data, pos)
        if sys_flag & _UNUSUAL or length < 0 or length > size - FIXED_OVERHEAD:
            message = Record(data, pos, size, broker_name)
        else:
            body_at = pos + 88
            if sys_flag & _INNER == _INNER and not verify_crc:
                alike = common_lengths(data, body_at, body_at + length)
                if alike is not None and alike[1] <= _SMALL:  # as most batches are
                    step = alike[0]
                    found.add(_Run(data, broker_name, pos, size, length // step, step, body_at + 20, alike[1], True))
                    pos += size
                    continue
            message = Record(data, pos, size, broker_name, body_at, body_at + length)
        if verify_crc:
            message.verify_crc()
        if sys_flag & _INNER == _INNER:
            try:
                _unwrap(message, found)
            except RemoteProtocolError:
                if whole is None:
                    raise
                whole.append(message)
                found.add(message)
        else:
            found.add(message)
        pos += size
    return found


def _run_of_records(data: bytes, broker_name: str) -> _Run | None:
    """Return all of ``data`` as one run, when that is several usual records with the same lengths; else None."""
    total = len(data)
    if total < 2 * FIXED_OVERHEAD:
        return None
    size, magic, sys_flag, length = _WALK.unpack_from(data)
    if (
        magic not in _MAGICS
        or size < FIXED_OVERHEAD
        or not 0 <= length <= min(size - FIXED_OVERHEAD, _SMALL)
        or sys_flag & (_UNUSUAL | _INNER)
        or total % size
        or total == size
    ):
        return None
    if not repeated(data, 0, total, size, _WALKED):
        return None
    return _Run(data, broker_name, 0, size, total // size, size, 88, length, False)


@lru_cache(maxsize=256)
def _cut_of(step: int, before: int, length: int, count: int) -> Struct:
    """Return what cuts ``length`` bytes after ``before`` others out of each of ``count`` steps."""
    return Struct(f"{before}x{length}s{step - before - length}x" * count)


def _unwrap(outer: Record, into: LocatedMessages) -> None:
    """Add the messages of an inner-batch record: offsets count up from the record's, flag, body and properties are their own.

    Raises RemoteProtocolError where ``split_batch`` does, and has added nothing then.
    """
    data, pos, size, broker_name = outer._data, outer._pos, outer._size, outer.broker_name
    at, total, _ = outer._body_span()
    messages: list[Record] = []
    add = messages.append
    unpack_head = _ENTRY.unpack_from
    unpack_short = INT16.unpack_from
    index = 0
    while total - at >= BATCH_ENTRY_OVERHEAD:
        entry_size, length = unpack_head(data, at)
        body_end = at + 20 + length
        end = at + entry_size
        if length < 0 or body_end + 2 > end or end > total:
            raise RemoteProtocolError(f"batch entry {index} has an impossible size {entry_size} or body length {length}")
        if body_end + 2 + unpack_short(data, body_end)[0] != end:
            raise RemoteProtocolError(f"batch entry {index} has an impossible property length {unpack_short(data, body_end)[0]}")
        add(Record(data, pos, size, broker_name, at + 20, body_end, index, end))
        at = end
        index += 1
    if at != total:
        raise RemoteProtocolError(
            f"batch entry {index} is cut short: {total - at} bytes are left, an entry has at least {BATCH_ENTRY_OVERHEAD}"
        )
    if index > MAX_BATCH_COUNT:
        raise RemoteProtocolError(f"a batch has {index} messages, the limit is {MAX_BATCH_COUNT}")
    for message in messages:
        into.add(message)


def _host_text(raw: bytes) -> str:
    ip, port = unpack_host(raw)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
