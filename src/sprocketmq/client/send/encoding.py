"""Messages as send requests: checked, turned into property strings, header text and batch bodies; built for speed.

The header of a send is JSON text whose front part depends on group, topic and queue only. It is made once for each queue; a message
adds five fields. No dict is built for a message.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from struct import Struct
from struct import error as StructError
from typing import overload

import msgspec

from sprocketmq.client.routes import DEFAULT_TOPIC_QUEUES
from sprocketmq.errors import BatchError, InvalidMessage, InvalidName, LocalProtocolError, MessageTooLarge
from sprocketmq.protocol.batch import MAX_BATCH_COUNT
from sprocketmq.protocol.compression import CompressionType, compress, compression_flag
from sprocketmq.protocol.ids import MessageIdFactory, MessageIds
from sprocketmq.protocol.layout import BATCH_ENTRY_HEAD as ENTRY_HEAD
from sprocketmq.protocol.message import NO_PROPERTIES, Message, MessageQueue, Receipt, SendResult, SendStatus, not_a_message
from sprocketmq.protocol.names import DEFAULT_TOPIC, RETRY_PREFIX, check_send_topic, check_tag
from sprocketmq.protocol.properties import (
    DELAY,
    KEYS,
    MAX_PROPERTIES_LENGTH,
    PRIORITY,
    RESERVED,
    SHARDING_KEY,
    TAGS,
    WAIT,
    encode_properties,
    priority_of,
)

_SHORT = Struct(">h")
_json = msgspec.json.encode

# Tags seen so far, kept as checked text; a producer with more different tags than this starts its table over.
_MAX_TAGS = 4096

# Properties that a message has a field for.
_FIELDS = {TAGS: "tag", KEYS: "keys", WAIT: "wait_store_ok", DELAY: "delay_level", "TIMER_DELIVER_MS": "deliver_at_ms"}

# The properties of a whole batch, with the keys of all its messages, may take 32,767 bytes; the broker adds some of its own.
MAX_UNITED_BYTES = 28 << 10


class PriorityQueue(MessageQueue, frozen=True, order=True, gc=False):
    """Where messages with a priority go: the queue with its number, or the last; without a broker's name at any broker."""


def queue_of(message: Message) -> MessageQueue | None:
    """Return the queue whose batches a message may join: that of its priority, its own, or None for any."""
    if message.properties is NO_PROPERTIES or not isinstance(message.properties, Mapping):
        return message.queue
    asked = message.properties.get(PRIORITY)
    if type(asked) is not str or SHARDING_KEY in message.properties or (priority := priority_of({PRIORITY: asked})) < 0:
        return message.queue
    return PriorityQueue(message.topic, message.queue.broker_name if message.queue is not None else "", priority)


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


# A message in a batch: ``(size, head, body, front, united)``. Head, body, front, its id and 0x02 follow each other, ``size`` bytes in all;
# ``united`` are the bytes its keys add to those of the batch.
Entry = tuple[int, bytes, bytes, bytes, int]
# The front of an entry without keys and properties, and how many bytes such an entry has beside its body.
Common = tuple[bytes, int]


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
        self._tails: dict[str | None, tuple[int, bytes, int]] = {}
        # What the properties of batch requests have before the id, as JSON without quotes, by wait_store_ok and tag.
        self._outer: dict[tuple[bool, str | None], bytes] = {}

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
        """Return the property string of ``message`` with its id, which comes last.

        Raises InvalidName for a bad tag, InvalidMessage for bad keys or pairs; ``index`` is the message's in a batch, for the errors.
        """
        try:
            head = self._heads[message.tag]
        except (KeyError, TypeError):
            head = self._remember(message.tag, index)
        if message.keys or message.properties or not message.wait_store_ok or message.delay_level or message.deliver_at_ms is not None:
            text = f"{self._extra(message, index)}{head}{uniq_key}\x02"
        else:
            text = f"WAIT\x01true\x02{head}{uniq_key}\x02"
        try:
            # No text has more than four bytes a character.
            if len(text) * 4 > MAX_PROPERTIES_LENGTH and len(text.encode()) > MAX_PROPERTIES_LENGTH:
                raise InvalidMessage(f"the properties take {len(text.encode())} bytes, the limit is {MAX_PROPERTIES_LENGTH}", index=index)
        except UnicodeEncodeError as e:
            raise _not_text(e, index) from None
        return text

    def single(self, message: Message) -> tuple[str, bytes]:
        """Return ``(UNIQ_KEY, property string as JSON)`` of a message sent by itself. Raises what ``properties`` raises."""
        if message.flag:
            _check_flag(message.flag, None)
        uniq_key = self._ids.next()
        try:
            return uniq_key, _json(self.properties(message, uniq_key))
        except UnicodeEncodeError as e:
            raise _not_text(e, None) from None

    def _remember(self, tag: str | None, index: int | None) -> str:
        try:
            head = "UNIQ_KEY\x01" if tag is None else f"TAGS\x01{check_tag(tag)}\x02UNIQ_KEY\x01"
            front = f"WAIT\x01true\x02{head}".encode()
        except InvalidName as e:
            raise InvalidName(e.kind, e.name, e.reason, index=index) from None
        except UnicodeEncodeError as e:
            raise _not_text(e, index) from None
        size = len(front) + self._id_length + 1
        if size > MAX_PROPERTIES_LENGTH:
            return head  # too long to send; the caller says so
        if len(self._heads) >= _MAX_TAGS:
            self._heads.clear()
            self._tails.clear()
        self._heads[tag] = head
        self._tails[tag] = 2 + size, _SHORT.pack(size) + front, 0
        return head

    def _extra(self, message: Message, index: int | None) -> str:
        """Return what the property string has before tag and id, checked."""
        text = ""
        if message.properties:
            if not isinstance(message.properties, Mapping):
                raise InvalidMessage(f"the properties must be a mapping of text to text, not {message.properties!r}", index=index)
            for name, value in message.properties.items():
                if name in RESERVED:
                    advice = f"give it as {_FIELDS[name]}" if name in _FIELDS else "choose another name"
                    raise InvalidMessage(f"the property {name!r} belongs to RocketMQ: {advice}", index=index)
                if type(name) is not str or type(value) is not str:
                    raise InvalidMessage(f"the property {name!r} must be text with a text value, not {value!r}", index=index)
            if PRIORITY in message.properties:
                _check_priority(message, index)
            try:
                text = encode_properties(message.properties).decode()
            except LocalProtocolError as e:
                raise InvalidMessage(f"bad property: {e}", index=index) from None
        if message.keys:
            text += f"KEYS\x01{' '.join(_checked_keys(message.keys, index))}\x02"
        if message.delay_level:
            text += f"DELAY\x01{message.delay_level}\x02"
        elif message.deliver_at_ms is not None:
            text += f"TIMER_DELIVER_MS\x01{message.deliver_at_ms}\x02"
        return f"{text}WAIT\x01{'true' if message.wait_store_ok else 'false'}\x02"

    # --- batches ---

    def entry(self, message: Message, index: int | None = None) -> Entry:
        """Return a message as it stands in a batch body, whatever the limit. Raises InvalidMessage or InvalidName."""
        body = message.body
        n = len(body)
        if not n:
            self.body(message, index)
        length, front, united = self._front(message, index)
        size = 20 + n + length
        try:
            return size, ENTRY_HEAD.pack(size, 0, 0, message.flag, n), body, front, united
        except StructError:
            _check_flag(message.flag, index)
            raise

    def common(self, tag: str | None) -> Common | None:
        """Return what the entries of messages with this tag and nothing else have in common; None when no message had it lately."""
        known = self._tails.get(tag)
        return None if known is None else (known[1], 20 + known[0])

    def _front(self, message: Message, index: int | None) -> tuple[int, bytes, int]:
        """Return what an entry has behind its body: how many bytes in all, and what comes before the id; and ``united`` of ``entry``."""
        try:
            known: tuple[int, bytes, int] | None = self._tails[message.tag]
        except (KeyError, TypeError):
            self._remember(message.tag, index)
            known = self._tails.get(message.tag)
        keys = message.keys
        united = 0
        try:
            if known is None or message.properties or not message.wait_store_ok or message.delay_level or message.deliver_at_ms is not None:
                text = self.properties(message, "", index).encode()
                length = len(text) + self._id_length
                front = text[:-1]
                if keys:
                    united = len((keys if isinstance(keys, str) else " ".join(keys)).encode()) + 1
            elif keys:
                words = " ".join(_checked_keys(keys, index)).encode()
                united = len(words) + 1
                length = known[0] + 3 + united
                front = b"KEYS\x01%b\x02%b" % (words, known[1][2:])
            else:
                return known
        except UnicodeEncodeError as e:
            raise _not_text(e, index) from None
        if length > MAX_PROPERTIES_LENGTH:
            raise InvalidMessage(f"the properties take {length} bytes, the limit is {MAX_PROPERTIES_LENGTH}", index=index)
        return 2 + length, _SHORT.pack(length) + front, united

    def batch(self, messages: Sequence[Message]) -> list["EncodedBatch"]:
        """Encode ``messages`` into as few batch bodies as fit the limit, in order; sizes are exact, in bytes.

        A batch body also ends where the keys of its messages would be too long together. Raises BatchError for an empty batch, a delayed
        message, a retry topic, a second topic, queue or wait_store_ok (naming the first such message), and what single messages raise,
        with the index; MessageTooLarge also when one message does not fit a batch by itself.
        """
        if not messages:
            raise BatchError("the batch is empty: give at least one message")
        first = messages[0]
        _check_member(first, first, 0)
        try:
            check_send_topic(first.topic)
        except InvalidName as e:
            raise InvalidName(e.kind, e.name, e.reason, index=0) from None
        topic, queue, wait = first.topic, first.queue, first.wait_store_ok
        with_priority = type(queue_of(first)) is PriorityQueue
        limit = self._max_bytes
        tails, pack_head = self._tails, ENTRY_HEAD.pack
        batches: list[EncodedBatch] = []
        # Four pieces an entry: head, body, properties up to the message's id, and its end with the id, which comes last.
        parts: list[bytes] = []
        united: dict[str, None] = {}
        united_bytes = more = used = start = index = 0
        common = first.tag
        try:
            for message in messages:
                if (
                    (message.topic is not topic and message.topic != topic)
                    or message.queue is not queue
                    or message.wait_store_ok is not wait
                    or message.delay_level
                    or message.deliver_at_ms is not None
                    or with_priority
                    or message.properties
                ):
                    _check_member(first, message, index)
                body = message.body
                n = len(body)
                tag = message.tag
                keys: Collection[str] = ()
                if wait and not message.keys and not message.properties and tag in tails:
                    length, front, more = tails[tag]
                else:
                    length, front, more = self._front(message, index)
                    if more:
                        keys = (message.keys,) if isinstance(message.keys, str) else message.keys
                size = 20 + n + length
                if not n or size > limit:
                    self.body(message, index)
                    raise MessageTooLarge(size, limit, index=index)
                if (
                    used + size > limit
                    or index - start >= MAX_BATCH_COUNT
                    or (keys and united_bytes and united_bytes + more > MAX_UNITED_BYTES)
                ):
                    batches.append(self._join(parts, common, united))
                    parts.clear()
                    united.clear()
                    start, used, united_bytes, common = index, 0, 0, tag
                if keys:
                    united_bytes += more
                    for key in keys:
                        united[key] = None
                if tag is not common and tag != common:
                    common = None
                parts += (pack_head(size, 0, 0, message.flag, n), body, front, b"")
                used += size
                index += 1
        except UnicodeEncodeError as e:
            raise _not_text(e, index) from None
        except StructError:
            _check_flag(messages[index].flag, index)
            raise
        except (AttributeError, TypeError):
            # Something that is no message at all, or a field of an impossible type.
            _check_member(first, messages[index], index)
            self.properties(messages[index], "", index)
            raise
        batches.append(self._join(parts, common, united))
        return batches

    def _join(self, parts: list[bytes], tag: str | None, keys: Iterable[str]) -> "EncodedBatch":
        ids = self._ids.take(len(parts) // 4)
        parts[3::4] = [prefix + end for prefix, ends in ids.pieces() for end in ends]
        return EncodedBatch(b"".join(parts), ids, tag, list(keys))

    def outer_properties(self, *, wait_store_ok: bool, tag: str | None = None, keys: Collection[str] = ()) -> bytes:
        """Return the property string of a batch request as JSON: WAIT, an id of the batch's own, and what its messages are found by.

        ``tag`` is that of all its messages, ``keys`` those of any. Topics that store a batch as one record filter and index by these.
        """
        same = self._outer.get((wait_store_ok, tag))
        if same is None:
            text = "" if tag is None else f"TAGS\x01{tag}\x02"
            same = _json(f"{text}WAIT\x01{'true' if wait_store_ok else 'false'}\x02UNIQ_KEY\x01")[1:-1]
            if len(self._outer) >= _MAX_TAGS:
                self._outer.clear()
            self._outer[wait_store_ok, tag] = same
        found_by = _json(f"KEYS\x01{' '.join(keys)}\x02")[1:-1] if keys else b""
        return b'"%b%b%b\\u0002"' % (found_by, same, self._ids.next().encode())


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One batch body, and of its messages, in order: the ids; the tag that all have, or None; the keys, each once."""

    body: bytes
    uniq_keys: MessageIds
    tag: str | None = None
    keys: Sequence[str] = ()


def _checked_keys(keys: Collection[str], index: int | None) -> Collection[str]:
    if isinstance(keys, str):
        keys = (keys,)
    elif type(keys) is not list and type(keys) is not tuple and not isinstance(keys, Collection):
        raise InvalidMessage(f"the keys must be a list of words, not {keys!r}", index=index)
    for key in keys:
        # As nearly every key is: of all that separates words only the blank is printable.
        if type(key) is str and key and key.isprintable() and " " not in key:
            continue
        if type(key) is not str or key.split() != [key] or "\x01" in key or "\x02" in key:
            raise InvalidMessage(f"bad key {key!r}: a key is one word, as keys are stored separated by blanks", index=index)
    return keys


def _check_flag(flag: object, index: int | None) -> None:
    if type(flag) is not int or not -(2**31) <= flag < 2**31:
        raise InvalidMessage(f"the flag must be a whole number of 32 bits, not {flag!r}", index=index)


def _check_priority(message: Message, index: int | None) -> None:
    if priority_of(message.properties) < 0:
        asked = message.properties[PRIORITY]
        raise InvalidMessage(f"the property {PRIORITY!r} must be a whole number from 0 to 2,147,483,647, not {asked!r}", index=index)
    if message.delay_level or message.deliver_at_ms is not None or SHARDING_KEY in message.properties:
        raise InvalidMessage(f"a message that is delayed or has a {SHARDING_KEY} has no priority: leave out {PRIORITY!r}", index=index)


def _not_text(error: UnicodeEncodeError, index: int | None) -> InvalidMessage:
    return InvalidMessage(f"tag, keys and properties must be valid text: {error.reason}", index=index)


def _check_member(first: Message, message: Message, index: int) -> None:
    """Raise what keeps a message out of the batch that ``first`` begins, by the reference's rules in its order."""
    if not isinstance(message, Message):
        raise not_a_message(message, index)
    if message.delay_level or message.deliver_at_ms is not None:
        raise BatchError("it is to be delivered later: send delayed messages one by one, a batch takes none", index=index)
    if str(message.topic).startswith(RETRY_PREFIX):
        raise BatchError(f"topic {message.topic!r} is a retry topic: those take no batches", index=index)
    if message.topic != first.topic:
        raise BatchError(f"topic {message.topic!r} differs from {first.topic!r}: a batch has one topic", index=index)
    if message.queue != first.queue:
        raise BatchError(f"queue {message.queue} differs from {first.queue}: a batch goes to one queue", index=index)
    if message is not first and queue_of(message) != queue_of(first):
        raise BatchError("its priority differs from the first message's: a batch goes to one queue, which the priority names", index=index)
    if message.wait_store_ok != first.wait_store_ok:
        raise BatchError("wait_store_ok differs from the first message's: a batch has one", index=index)


class BatchResults(Sequence[SendResult]):
    """The results of a batch, one for each message, in order; each is built when it is asked for.

    Compares equal to any sequence with the same results.
    """

    __slots__ = ("_length", "_receipts", "broker_name", "status", "topic")

    def __init__(self, topic: str, broker_name: str = "") -> None:
        self.topic = topic
        self.broker_name = broker_name
        self.status = SendStatus.SEND_OK
        self._receipts: list[tuple[int, Receipt]] = []  # with the place of its first message
        self._length = 0

    def add(self, receipt: Receipt) -> None:
        """Append the results of one batch request. The worst status of all requests becomes that of the whole."""
        self._receipts.append((self._length, receipt))
        self._length += len(receipt.msg_ids)
        self.broker_name = receipt.broker_name
        if receipt.status is not SendStatus.SEND_OK:
            self.status = receipt.status

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
        start, receipt = next(pair for pair in reversed(self._receipts) if pair[0] <= at)
        return SendResult(receipt, at - start)

    def __iter__(self) -> Iterator[SendResult]:
        for _, receipt in self._receipts:
            yield from map(SendResult, repeat(receipt), range(len(receipt.msg_ids)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._length} results in {self.topic!r}, {self.status.name}>"
