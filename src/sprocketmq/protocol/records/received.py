"""A received message: its fields are decoded from the record when they are read."""

import struct
from collections.abc import Collection
from struct import Struct
from typing import TYPE_CHECKING

import msgspec

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.codes import (
    SYSFLAG_ANY_HOST_V6,
    SYSFLAG_BORN_HOST_V6,
    SYSFLAG_COMPRESSED,
    SYSFLAG_STORE_HOST_V6,
    SYSFLAG_TRANSACTION_MASK,
)
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.ids import offset_msg_id
from sprocketmq.protocol.layout import (
    BATCH_ENTRY_HEAD_BYTES,
    BATCH_ENTRY_LAYOUT,
    HEAD_BYTES_WITHOUT_HOSTS,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    INT16,
    INT32,
    INT64,
    MAGIC_V2,
    RECORD_HEAD_BYTES,
    RECORD_LAYOUT,
)
from sprocketmq.protocol.properties import RETRY_TOPIC, decode_properties, find_property
from sprocketmq.protocol.records.encoding import host_text
from sprocketmq.protocol.records.inner import inner_bodies

# Bodies up to this size are sliced again at each access: their memory is reused at once, which is faster than keeping them.
MAX_CUT_BYTES = 8192

_MAGIC_AT = RECORD_LAYOUT.offset("magic")
_CRC_AT = RECORD_LAYOUT.offset("crc")
_QUEUE_ID_AT = RECORD_LAYOUT.offset("queue_id")
_FLAG_AT = RECORD_LAYOUT.offset("flag")
_QUEUE_OFFSET_AT = RECORD_LAYOUT.offset("queue_offset")
_LOG_OFFSET_AT = RECORD_LAYOUT.offset("log_offset")
_SYS_FLAG_AT = RECORD_LAYOUT.offset("sys_flag")
_BORN_TIME_AT = RECORD_LAYOUT.offset("born_time_ms")
_BORN_HOST_AT = RECORD_LAYOUT.offset("born_host")
# The offsets of these when the hosts before them took no bytes.
_STORE_HOST_AT = RECORD_LAYOUT.offset("store_host") - HOST_V4_BYTES
_PREPARED_AT = RECORD_LAYOUT.offset("prepared_offset") - 2 * HOST_V4_BYTES
_FLAG_BEFORE_BODY = BATCH_ENTRY_HEAD_BYTES - BATCH_ENTRY_LAYOUT.offset("flag")
_SYSFLAG_AND_LENGTH = RECORD_LAYOUT.part("sys_flag", "body_length", start="sys_flag")
# Names of properties as they stand in a property string after another property.
TAGS_BEHIND, UNIQ_KEY_BEHIND = b"\x02TAGS\x01", b"\x02UNIQ_KEY\x01"
_unpack_int16 = INT16.unpack_from
_unpack_int32 = INT32.unpack_from
_unpack_int64 = INT64.unpack_from


# The cheapest kind of object to create: a fast consumer creates half a million a second.
class ReceivedMessage(msgspec.Struct, gc=False, eq=False, kw_only=True):
    """One stored message; its fields are decoded when they are read.

    It keeps the received buffer alive: to keep one message of a large pull for long, keep its ``body``, which is a copy. ``body`` is
    decompressed. Fields raise RemoteProtocolError when the record is damaged.

    Consumers set ``restored`` on messages of a retry topic, whose ``topic`` is then the one they were first sent to. ``failures`` counts
    how often a message failed in this process without being sent back.
    """

    _properties: dict[str, str] | None = None
    restored: bool = False
    failures: int = 0

    if TYPE_CHECKING:  # subclasses have these: where the message is

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

        # Where the body is in the buffer when it is stored as it was sent; -1 when it has to be located first.
        @property
        def _body_at(self) -> int: ...

        @property
        def _body_end(self) -> int: ...

        # Of a message of an inner batch: its index in it (else -1), and where its entry ends.
        @property
        def _index(self) -> int: ...

        @property
        def _entry_end(self) -> int: ...

        def _after_body(self) -> tuple[bytes, int, int]:
            """Return the buffer, and where in it what follows the body begins and ends; nothing when the body has to be located first."""

    # --- positions in the buffer ---

    def _read(self, layout: Struct, offset: int) -> int:
        try:
            return layout.unpack_from(self._data, self._pos + offset)[0]  # type: ignore[no-any-return]
        except struct.error:
            raise RemoteProtocolError("record is cut short") from None

    def _hosts_shift(self) -> tuple[int, int]:
        sys_flag = self.sys_flag
        born = HOST_V6_BYTES if sys_flag & SYSFLAG_BORN_HOST_V6 else HOST_V4_BYTES
        store = HOST_V6_BYTES if sys_flag & SYSFLAG_STORE_HOST_V6 else HOST_V4_BYTES
        return born, store

    def _body_span(self) -> tuple[int, int, int]:
        """Return where the stored body starts and ends in the buffer, and the sysFlag; most readers need nothing else."""
        data, pos = self._data, self._pos
        try:
            sys_flag, length = _SYSFLAG_AND_LENGTH.unpack_from(data, pos + _SYS_FLAG_AT)
            at = RECORD_HEAD_BYTES
            if sys_flag & SYSFLAG_ANY_HOST_V6:
                at = HEAD_BYTES_WITHOUT_HOSTS + sum(self._hosts_shift())
                (length,) = _unpack_int32(data, pos + at - 4)
        except struct.error:
            raise RemoteProtocolError("record is cut short") from None
        if length < 0 or at + length + 3 > self._size:
            raise RemoteProtocolError(f"body length {length} does not fit a record of {self._size} bytes")
        start = pos + at
        return start, start + length, sys_flag

    def _tail(self) -> tuple[int, int, int, int]:
        """Return where topic and properties start and end in the buffer."""
        data, pos = self._data, self._pos
        end = pos + self._size
        _, topic_at, _ = self._body_span()
        try:
            if _unpack_int32(data, pos + _MAGIC_AT)[0] == MAGIC_V2:
                (length,) = _unpack_int16(data, topic_at)
                topic_at += 2
            else:
                length = data[topic_at]
                topic_at += 1
            props_at = topic_at + length + 2
            if length < 0 or props_at > end:
                raise RemoteProtocolError(f"topic length {length} does not fit a record of {end - pos} bytes")
            (length,) = _unpack_int16(data, props_at - 2)
        except (struct.error, IndexError):
            raise RemoteProtocolError("record is cut short") from None
        if length < 0 or props_at + length > end:
            raise RemoteProtocolError(f"property length {length} does not fit a record of {end - pos} bytes")
        return topic_at, props_at - 2, props_at, props_at + length

    def _find(self, name: bytes) -> bytes | None:
        """Return the raw value of a property without decoding the others; ``name`` as it stands after another one (``TAGS_BEHIND``)."""
        # Most records have it there; searching in the buffer needs no slice.
        data, start, end = self._after_body()
        at = data.find(name, start, end)
        if at >= 0:
            at += len(name)
            stop = data.find(b"\x02", at, end)
            if stop >= 0:
                return data[at:stop]
        elif end and data.find(name[1:], start, end) < 0:
            return None
        return find_property(self.raw_properties, name[1:-1])

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
        return self._read(INT32, _CRC_AT)

    @property
    def queue_id(self) -> int:
        """The number of the queue, on its broker, that holds the message."""
        return self._read(INT32, _QUEUE_ID_AT)

    @property
    def flag(self) -> int:
        """The number that the producer set as ``Message.flag``; the broker does not use it."""
        if self._index < 0:
            return self._read(INT32, _FLAG_AT)
        return _unpack_int32(self._data, self._body_at - _FLAG_BEFORE_BODY)[0]  # type: ignore[no-any-return]

    @property
    def queue_offset(self) -> int:
        """The message's own queue offset, also inside an inner batch."""
        try:
            (base,) = _unpack_int64(self._data, self._pos + _QUEUE_OFFSET_AT)
        except struct.error:
            raise RemoteProtocolError("record is cut short") from None
        return base if self._index < 0 else base + self._index  # type: ignore[no-any-return]

    @property
    def commitlog_offset(self) -> int:
        """The offset of the record in the broker's commit log; one for all messages of an inner batch."""
        return self._read(INT64, _LOG_OFFSET_AT)

    @property
    def sys_flag(self) -> int:
        """The bits of the record: compression, transaction, inner batch, IPv6 hosts."""
        return self._read(INT32, _SYS_FLAG_AT)

    @property
    def born_timestamp_ms(self) -> int:
        """When the producer made the message, by its clock: milliseconds since 1970."""
        return self._read(INT64, _BORN_TIME_AT)

    @property
    def born_host(self) -> str:
        """``ip:port`` of the sender as the broker saw it."""
        return host_text(self._bytes(_BORN_HOST_AT, self._hosts_shift()[0]))

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored the message, by its clock: milliseconds since 1970."""
        return self._read(INT64, _BORN_HOST_AT + self._hosts_shift()[0])

    def _store_host(self) -> bytes:
        born, store = self._hosts_shift()
        return self._bytes(_STORE_HOST_AT + born, store)

    @property
    def raw_hosts(self) -> tuple[bytes, bytes]:
        """The hosts it was born on and stored on, as stored."""
        return self._bytes(_BORN_HOST_AT, self._hosts_shift()[0]), self._store_host()

    @property
    def store_host(self) -> str:
        """``ip:port`` of the broker that stored it."""
        return host_text(self._store_host())

    @property
    def reconsume_times(self) -> int:
        """How often the message was redelivered because its group sent it back or it failed in this consumer."""
        if self._index >= 0:
            return self.failures
        born, store = self._hosts_shift()
        return self._read(INT32, _STORE_HOST_AT + born + store) + self.failures

    @property
    def is_inner(self) -> bool:
        """Whether it is a message of an inner batch; all messages of a batch share one record."""
        return self._index >= 0

    @property
    def prepared_offset(self) -> int:
        """The log offset of the half message, for one that a transaction committed; see also ``copied_from``."""
        born, store = self._hosts_shift()
        return self._read(INT64, _PREPARED_AT + born + store)

    @property
    def copied_from(self) -> int | None:
        """The log offset of the record that the broker made this one from (a parked message, or one sent back), else None."""
        offset = self.prepared_offset
        return None if not offset or self.sys_flag & SYSFLAG_TRANSACTION_MASK else max(offset, 0)

    @property
    def raw_topic(self) -> bytes:
        """The topic whose queues hold it, as stored."""
        start, end, _, _ = self._tail()
        return bytes(self._data[start:end])

    @property
    def topic(self) -> str:
        """The topic; of a message that comes again from a retry topic, the one it was first sent to."""
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
        """The tag that brokers filter by, None without one."""
        if self._properties is None:  # consumers check every tag, and most need no other property
            try:
                raw = self._find(TAGS_BEHIND)
                return raw.decode() if raw else None
            except UnicodeDecodeError:
                raise RemoteProtocolError("tag of a record is not UTF-8") from None
        return self._properties.get("TAGS")

    def has_tag(self, tags: Collection[bytes]) -> bool:
        """Whether the message has one of ``tags``, given as stored."""
        return self._find(TAGS_BEHIND) in tags

    @property
    def keys(self) -> list[str]:
        """The keys that the message can be looked up by."""
        return self.properties.get("KEYS", "").split()

    @property
    def msg_id(self) -> str:
        """The id its producer gave it (UNIQ_KEY), else the broker's offset id."""
        return self.properties.get("UNIQ_KEY") or self.offset_msg_id

    @property
    def unique_key(self) -> str | None:
        """The id its producer gave it (UNIQ_KEY), None without one; in most records the other properties are not decoded for it."""
        if self._properties is None:
            raw = self._find(UNIQ_KEY_BEHIND)
            return raw.decode(errors="replace") if raw else None
        return self._properties.get("UNIQ_KEY")

    @property
    def offset_msg_id(self) -> str:
        """The broker's id: its address and the record's log offset, in hex."""
        return offset_msg_id(self._store_host(), self.commitlog_offset)

    def verify_crc(self) -> None:
        """Raise RemoteProtocolError when the stored body does not match its CRC. Messages of an inner batch carry none."""
        if self._index < 0 and crc32(self.stored_body) != self.body_crc:
            raise RemoteProtocolError(f"body of the message at queue offset {self.queue_offset} does not match its CRC")

    def __repr__(self) -> str:
        return f"ReceivedMessage({self.topic!r}, queue {self.queue_id} offset {self.queue_offset}, msg_id={self.msg_id!r})"


class Record(ReceivedMessage, gc=False, eq=False):
    """A message whose record begins at ``pos`` of a buffer: ``Record(data, pos, size)``."""

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
        if at >= 0 and end - at <= MAX_CUT_BYTES:
            return self._data[at:end]  # type: ignore[return-value]  # located bodies are in bytes
        body = self._body
        if body is None:
            start, end, sys_flag = (at, end, 0) if at >= 0 else self._body_span()
            stored = self._data[start:end]
            if sys_flag & SYSFLAG_COMPRESSED:
                from sprocketmq.protocol.compression import decompress  # rarely needed

                body = decompress(stored, sys_flag)
            else:
                body = bytes(stored)
            self._body = body
        return body

    def _after_body(self) -> tuple[bytes, int, int]:
        data = self._data
        if self._body_at < 0 or type(data) is not bytes:
            return b"", 0, 0
        return data, self._body_end, self._pos + self._size if self._index < 0 else self._entry_end

    def inner_messages(self) -> list["Record"]:
        """Return the messages of an inner-batch record: offsets count up from the record's, flag, body and properties are their own.

        Raises RemoteProtocolError as ``split_batch`` does.
        """
        data, pos, size, broker_name = self._data, self._pos, self._size, self.broker_name
        start, stop, _ = self._body_span()
        begins, ends = inner_bodies(data, start, stop)
        return [
            Record(data, pos, size, broker_name, begin, end, index, begins[index + 1] - BATCH_ENTRY_HEAD_BYTES)
            for index, (begin, end) in enumerate(zip(begins, ends, strict=False))
        ]
