"""Messages as send requests: checked, turned into property strings, header text and batch bodies; built for speed.

The header of a send is JSON text whose front part depends on group, topic and queue only. It is made once for each queue; a message
adds five fields. No dict is built for a message.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from struct import Struct
from typing import overload

import msgspec

from sprocketmq.client.routes import DEFAULT_TOPIC_QUEUES
from sprocketmq.errors import BatchError, InvalidMessage, LocalProtocolError, MessageTooLarge
from sprocketmq.protocol.batch import ENTRY_HEAD, MAX_BATCH_COUNT
from sprocketmq.protocol.compression import CompressionType, compress, compression_flag
from sprocketmq.protocol.headers import SendResponse
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.message import Message, MessageQueue, SendResult, SendStatus
from sprocketmq.protocol.names import DEFAULT_TOPIC, RETRY_PREFIX, check_tag
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH, RESERVED, encode_properties

_SHORT = Struct(">h")
_json = msgspec.json.encode

# Tags seen so far, kept as checked text; a producer with more different tags than this starts its table over.
_MAX_TAGS = 4096


def header_prefix(group: str, queue: MessageQueue, *, batch: bool) -> bytes:
    """Return the part of a V2 send header that is the same for every message of ``group`` to ``queue``."""
    return b'{"a":%b,"b":%b,"c":"%b","d":"%d","e":"%d","j":"0","k":"false","m":"%b","n":%b,"f":"' % (
        _json(group),
        _json(queue.topic),
        DEFAULT_TOPIC.encode(),
        DEFAULT_TOPIC_QUEUES,
        queue.queue_id,
        b"true" if batch else b"false",
        _json(queue.broker_name),
    )


def header(prefix: bytes, sys_flag: int, born_timestamp_ms: int, flag: int, properties: bytes) -> bytes:
    """Return a whole send header as JSON text; ``properties`` is the property string as a JSON string."""
    return b'%b%d","g":"%d","h":"%d","i":%b}' % (prefix, sys_flag, born_timestamp_ms, flag, properties)


class MessageEncoder:
    """Checks messages and encodes them for one producer.

    ``compress_over_bytes`` and ``compression`` concern single messages only; a batch is never compressed.
    """

    def __init__(
        self,
        ids: MessageIdFactory,
        *,
        max_message_bytes: int,
        compression: CompressionType | None,
        compress_over_bytes: int,
    ) -> None:
        self._ids = ids
        self._id_length = len(ids.next())
        self._max_bytes = max_message_bytes
        self._compression = compression
        self._compress_over = compress_over_bytes if compression is not None else max_message_bytes + 1
        # Checked tags: the property string up to the id, and the same as a batch entry ends, with its length.
        self._heads: dict[str | None, str] = {}
        self._tails: dict[str | None, tuple[int, bytes]] = {}

    # --- one message ---

    def body(self, message: Message, index: int | None = None) -> tuple[bytes, int]:
        """Return ``(body, sys_flag)`` to send. Raises InvalidMessage for an empty body, MessageTooLarge for one over the limit."""
        body = message.body
        size = len(body)
        if not 0 < size <= self._max_bytes:
            if size:
                raise MessageTooLarge(size, self._max_bytes, index=index)
            raise InvalidMessage("the body is empty: RocketMQ refuses messages without one", index=index)
        if size < self._compress_over or index is not None or self._compression is None:
            return body, 0
        return compress(body, self._compression), compression_flag(self._compression)

    def properties(self, message: Message, uniq_key: str, index: int | None = None) -> str:
        """Return the property string of ``message`` with its id. Raises InvalidName for a bad tag, InvalidMessage for bad keys or pairs."""
        try:
            head = self._heads[message.tag]
        except KeyError:
            head = self._remember(message.tag)
        if message.keys or message.properties or not message.wait_store_ok or message.delay_level or message.deliver_at_ms is not None:
            text = f"{self._extra(message, index)}{head}{uniq_key}\x02"
        else:
            text = f"WAIT\x01true\x02{head}{uniq_key}\x02"
        if len(text) * 4 > MAX_PROPERTIES_LENGTH and len(text.encode()) > MAX_PROPERTIES_LENGTH:
            raise InvalidMessage(f"the properties take {len(text.encode())} bytes, the limit is {MAX_PROPERTIES_LENGTH}", index=index)
        return text

    def single(self, message: Message) -> tuple[str, bytes]:
        """Return ``(UNIQ_KEY, property string as JSON)`` of a message sent by itself."""
        uniq_key = self._ids.next()
        try:
            return uniq_key, _json(self.properties(message, uniq_key))
        except UnicodeEncodeError as e:
            raise InvalidMessage(f"tag, keys and properties must be valid text: {e.reason}") from None

    def _remember(self, tag: str | None) -> str:
        head = "UNIQ_KEY\x01" if tag is None else f"TAGS\x01{check_tag(tag)}\x02UNIQ_KEY\x01"
        front = f"WAIT\x01true\x02{head}".encode()
        size = len(front) + self._id_length + 1
        if size > MAX_PROPERTIES_LENGTH:
            return head  # too long to send; the caller says so
        if len(self._heads) >= _MAX_TAGS:
            self._heads.clear()
            self._tails.clear()
        self._heads[tag] = head
        self._tails[tag] = 2 + size, _SHORT.pack(size) + front
        return head

    def _extra(self, message: Message, index: int | None) -> str:
        text = ""
        if message.properties:
            for name, value in message.properties.items():
                if name in RESERVED:
                    raise InvalidMessage(f"the property {name!r} belongs to RocketMQ: choose another name", index=index)
                if type(name) is not str or type(value) is not str:
                    raise InvalidMessage(f"the property {name!r} must be text with a text value, not {value!r}", index=index)
            try:
                text = encode_properties(message.properties).decode()
            except LocalProtocolError as e:
                raise InvalidMessage(f"bad property: {e}", index=index) from None
        keys: Sequence[str] = (message.keys,) if isinstance(message.keys, str) else message.keys
        for key in keys:
            if type(key) is not str or key.split() != [key] or "\x01" in key or "\x02" in key:
                raise InvalidMessage(f"bad key {key!r}: a key is one word, as keys are stored separated by blanks", index=index)
        if keys:
            text += f"KEYS\x01{' '.join(keys)}\x02"
        if message.delay_level:
            text += f"DELAY\x01{message.delay_level}\x02"
        elif message.deliver_at_ms is not None:
            text += f"TIMER_DELIVER_MS\x01{message.deliver_at_ms}\x02"
        return f"{text}WAIT\x01{'true' if message.wait_store_ok else 'false'}\x02"

    # --- batches ---

    def batch(self, messages: Sequence[Message]) -> list["EncodedBatch"]:
        """Encode ``messages`` into as few batch bodies as fit the limit, in order; sizes are exact, in bytes.

        Raises BatchError for an empty batch, a delayed message, a retry topic, a second topic, queue or wait_store_ok (naming the first
        such message), and what single messages raise, with the index; MessageTooLarge also when one message does not fit a batch by itself.
        """
        if not messages:
            raise BatchError("the batch is empty: give at least one message")
        first = messages[0]
        topic, queue, wait = first.topic, first.queue, first.wait_store_ok
        if str(topic).startswith(RETRY_PREFIX):
            raise BatchError(f"topic {topic!r} is a retry topic: those take no batches", index=0)
        limit = self._max_bytes
        tails, pack_head, pack_short = self._tails, ENTRY_HEAD.pack, _SHORT.pack
        batches: list[EncodedBatch] = []
        ids = self._ids.take(len(messages))
        parts: list[bytes] = []
        add = parts.append
        used = start = index = 0
        try:
            for message, uniq_key in zip(messages, ids, strict=True):
                if (
                    (message.topic is not topic and message.topic != topic)
                    or message.queue is not queue
                    or message.wait_store_ok is not wait
                    or message.delay_level
                    or message.deliver_at_ms is not None
                ):
                    _check_member(first, message, index)
                body = message.body
                n = len(body)
                if wait and not message.keys and not message.properties and message.tag in tails:
                    length, front = tails[message.tag]
                    tail = b"%b%b\x02" % (front, uniq_key.encode())
                    size = 20 + n + length
                else:
                    properties = self.properties(message, uniq_key, index).encode()
                    tail = pack_short(len(properties)) + properties
                    size = 20 + n + len(tail)
                if not n or size > limit:
                    self.body(message, index)
                    raise MessageTooLarge(size, limit, index=index)
                if used + size > limit or index - start >= MAX_BATCH_COUNT:
                    batches.append(EncodedBatch(b"".join(parts), ids[start:index]))
                    parts.clear()
                    start, used = index, 0
                add(pack_head(size, 0, 0, message.flag, n))
                add(body)
                add(tail)
                used += size
                index += 1
        except UnicodeEncodeError as e:
            raise InvalidMessage(f"tag, keys and properties must be valid text: {e.reason}", index=index) from None
        batches.append(EncodedBatch(b"".join(parts), ids[start:]))
        return batches

    def outer_properties(self, *, wait_store_ok: bool) -> bytes:
        """Return the property string of a batch request as JSON: WAIT and an id of the batch's own."""
        return _json(f"WAIT\x01{'true' if wait_store_ok else 'false'}\x02UNIQ_KEY\x01{self._ids.next()}\x02")


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One batch body and the ids of its messages, in order."""

    body: bytes
    uniq_keys: list[str]


def _check_member(first: Message, message: Message, index: int) -> None:
    if message.delay_level or message.deliver_at_ms is not None:
        raise BatchError("it is to be delivered later: send delayed messages one by one, a batch takes none", index=index)
    if message.topic != first.topic:
        raise BatchError(f"topic {message.topic!r} differs from {first.topic!r}: a batch has one topic", index=index)
    if message.queue != first.queue:
        raise BatchError(f"queue {message.queue} differs from {first.queue}: a batch goes to one queue", index=index)
    if message.wait_store_ok != first.wait_store_ok:
        raise BatchError("wait_store_ok differs from the first message's: a batch has one", index=index)


class BatchResults(Sequence[SendResult]):
    """The results of a batch, one for each message, in order; each is built when it is asked for.

    Compares equal to any sequence with the same results.
    """

    __slots__ = ("_chunks", "_length", "broker_name", "status", "topic")

    def __init__(self, topic: str, broker_name: str = "") -> None:
        self.topic = topic
        self.broker_name = broker_name
        self.status = SendStatus.SEND_OK
        self._chunks: list[_Chunk] = []
        self._length = 0

    def add(self, uniq_keys: list[str], response: SendResponse, status: SendStatus, broker_name: str) -> None:
        """Append the results of one batch request. The worst status of all requests becomes that of the whole."""
        self._chunks.append(_Chunk(self._length, uniq_keys, response, status, broker_name, self.topic))
        self._length += len(uniq_keys)
        self.broker_name = broker_name
        if status is not SendStatus.SEND_OK:
            self.status = status

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> SendResult: ...
    @overload
    def __getitem__(self, index: slice) -> list[SendResult]: ...
    def __getitem__(self, index: int | slice) -> SendResult | list[SendResult]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        at = index + self._length if index < 0 else index
        if not 0 <= at < self._length:
            raise IndexError(f"result {index} of a batch of {self._length}")
        chunk = next(c for c in reversed(self._chunks) if c.start <= at)
        return chunk.result(at - chunk.start)

    def __iter__(self) -> Iterator[SendResult]:
        for chunk in self._chunks:
            yield from map(chunk.result, range(len(chunk.uniq_keys)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._length} results in {self.topic!r}, {self.status.name}>"


class _Chunk:
    """The results of one batch request, as answered."""

    __slots__ = ("_broker_name", "_offset_ids", "_response", "_status", "_topic", "start", "uniq_keys")

    def __init__(self, start: int, uniq_keys: list[str], response: SendResponse, status: SendStatus, broker_name: str, topic: str) -> None:
        self.start = start
        self.uniq_keys = uniq_keys
        self._response = response
        self._status = status
        self._broker_name = broker_name
        self._topic = topic
        self._offset_ids: list[str] | None = None

    def result(self, i: int) -> SendResult:
        response = self._response
        if self._offset_ids is None:
            ids = response.msg_id.split(",")
            # A queue of inner batches stores all as one record with one id; a plain queue lists an id for each message.
            self._offset_ids = ids if len(ids) == len(self.uniq_keys) else list(repeat(response.msg_id, len(self.uniq_keys)))
        return SendResult(
            self._status,
            self.uniq_keys[i],
            self._offset_ids[i],
            self._topic,
            self._broker_name,
            response.queue_id,
            response.queue_offset + i,
        )
