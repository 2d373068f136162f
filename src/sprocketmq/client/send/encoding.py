"""Messages encoded for sending: property strings, single messages, and batch bodies split by exact size."""

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sprocketmq.client.send.message_checks import check_flag, check_member, check_priority, checked_keys, not_text
from sprocketmq.client.send.queue_choice import PriorityQueue, queue_of
from sprocketmq.errors import BatchError, InvalidMessage, InvalidName, LocalProtocolError, MessageTooLarge
from sprocketmq.protocol.batch import MAX_BATCH_COUNT, PROPERTY_LENGTH_BYTES, entry_head, property_length
from sprocketmq.protocol.compression import CompressionType, compress, compression_flag
from sprocketmq.protocol.ids import MessageIdFactory, MessageIds
from sprocketmq.protocol.layout import BATCH_ENTRY_HEAD_BYTES
from sprocketmq.protocol.message import Message, check_ordering_key
from sprocketmq.protocol.names import check_send_topic, check_tag
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
)

_json = msgspec.json.encode

# The table of checked tags is emptied when it has this many.
_MAX_TAGS = 4096
# The table of checked property names holds at most this many.
_MAX_NAMES = 4096

# Properties that a message has a field for.
_FIELDS = {TAGS: "tag", KEYS: "keys", WAIT: "wait_store_ok", DELAY: "delay_level", "TIMER_DELIVER_MS": "deliver_at_ms"}

# The properties of a whole batch, with the keys of all its messages, may take 32,767 bytes; the broker adds its own properties.
MAX_MERGED_KEYS_BYTES = 28 << 10


# A message in a batch: ``(size, head, body, prefix, merged)``. Head, body, prefix, id and 0x02 follow each other, ``size`` bytes in all;
# ``merged`` is the number of bytes its keys add to the merged keys of the batch.
Entry = tuple[int, bytes, bytes, bytes, int]
# The prefix of an entry without keys and properties, and how many bytes such an entry has beside its body.
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
        self.ids = ids
        self._id_length = len(ids.next())
        self._max_bytes = max_message_bytes
        self._compression = compression
        self._compress_over = compress_over_bytes if compression is not None else max_message_bytes + 1
        # By checked tag: the property string up to the id; and the same as part of a batch entry, with its length.
        self._heads: dict[str | None, str] = {}
        self._tails: dict[str | None, tuple[int, bytes, int]] = {}
        # Names of properties that were checked, except PRIORITY, which chooses a queue.
        self._names: set[str] = set()
        # By wait_store_ok and tag: the property string of a batch request up to the id, as JSON without quotes.
        self._outer: dict[tuple[bool, str | None], bytes] = {}

    # --- one message ---

    def _check_size(self, size: int, index: int | None) -> None:
        """Raise InvalidMessage for an empty body, MessageTooLarge for one over the limit."""
        if size > self._max_bytes:
            raise MessageTooLarge(size, self._max_bytes, index=index)
        if not size:
            raise InvalidMessage("the body is empty: RocketMQ refuses messages without one", index=index)

    def properties(self, message: Message, uniq_key: str, index: int | None = None) -> str:
        """Return the property string of ``message`` with its id, which comes last.

        Raises InvalidName for a bad tag, InvalidMessage for bad keys or pairs; ``index`` is the message's in a batch, for the errors.
        """
        try:
            head = self._heads[message.tag]
        except (KeyError, TypeError):
            head = self._remember(message.tag, index)
        if (
            message.keys
            or message.properties
            or message.wait_store_ok is not True
            or message.delay_level
            or message.deliver_at_ms is not None
            or message.ordering_key is not None
        ):
            text = f"{self._extra(message, index)}{head}{uniq_key}\x02"
        else:
            text = f"WAIT\x01true\x02{head}{uniq_key}\x02"
        try:
            # A character has at most four bytes.
            if len(text) * 4 > MAX_PROPERTIES_LENGTH and len(text.encode()) > MAX_PROPERTIES_LENGTH:
                raise InvalidMessage(f"the properties take {len(text.encode())} bytes, the limit is {MAX_PROPERTIES_LENGTH}", index=index)
        except UnicodeEncodeError as e:
            raise not_text(e, index) from None
        return text

    def single(self, message: Message) -> tuple[str, bytes, bytes, int]:
        """Return ``(UNIQ_KEY, property string as JSON, body, sys_flag)`` of a message sent by itself.

        Raises MessageTooLarge, InvalidMessage for an empty body, and what ``properties`` raises.
        """
        body, sys_flag = message.body, 0
        size = len(body)
        if not 0 < size <= self._max_bytes:
            self._check_size(size, None)
        if size >= self._compress_over and self._compression is not None:
            body, sys_flag = compress(body, self._compression), compression_flag(self._compression)
        if message.flag:
            check_flag(message.flag, None)
        uniq_key = self.ids.next()
        try:
            return uniq_key, _json(self.properties(message, uniq_key)), body, sys_flag
        except UnicodeEncodeError as e:
            raise not_text(e, None) from None

    def _remember(self, tag: str | None, index: int | None) -> str:
        try:
            head = "UNIQ_KEY\x01" if tag is None else f"TAGS\x01{check_tag(tag)}\x02UNIQ_KEY\x01"
            prefix = f"WAIT\x01true\x02{head}".encode()
        except InvalidName as e:
            raise InvalidName(e.kind, e.name, e.reason, index=index) from None
        except UnicodeEncodeError as e:
            raise not_text(e, index) from None
        size = len(prefix) + self._id_length + 1
        if size > MAX_PROPERTIES_LENGTH:
            return head  # too long to send: the caller raises the error
        if len(self._heads) >= _MAX_TAGS:
            self._heads.clear()
            self._tails.clear()
        self._heads[tag] = head
        self._tails[tag] = PROPERTY_LENGTH_BYTES + size, property_length(size) + prefix, 0
        return head

    def _extra(self, message: Message, index: int | None) -> str:
        """Return the part of the property string before tag and id, checked."""
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
                check_priority(message, index)
            try:
                text = encode_properties(message.properties).decode()
            except LocalProtocolError as e:
                raise InvalidMessage(f"bad property: {e}", index=index) from None
            if PRIORITY not in message.properties and len(self._names) < _MAX_NAMES:
                self._names.update(message.properties)
        if message.ordering_key is not None:
            check_ordering_key(message, index)
            text += f"{SHARDING_KEY}\x01{message.ordering_key}\x02"
        if message.keys:
            text += f"KEYS\x01{' '.join(checked_keys(message.keys, index))}\x02"
        if message.delay_level:
            text += f"DELAY\x01{message.delay_level}\x02"
        elif message.deliver_at_ms is not None:
            text += f"TIMER_DELIVER_MS\x01{message.deliver_at_ms}\x02"
        if type(message.wait_store_ok) is not bool:
            raise InvalidMessage(f"wait_store_ok must be True or False, not {message.wait_store_ok!r}", index=index)
        return f"{text}WAIT\x01{'true' if message.wait_store_ok else 'false'}\x02"

    def plain_properties(self, properties: Mapping[str, str]) -> bytes:
        """Return the user's properties as a property string begins with them.

        Empty when ``properties`` checks them: for a name that no message had before, a value that is empty or no text, and other mappings.
        """
        if type(properties) is not dict:
            return b""
        names = self._names
        text = ""
        for name, value in properties.items():
            if name not in names or type(value) is not str or not value:
                return b""
            text += f"{name}\x01{value}\x02"
        count = len(properties)
        if text.count("\x01") != count or text.count("\x02") != count:
            return b""
        try:
            return text.encode()
        except UnicodeEncodeError:
            return b""

    # --- batches ---

    def entry(self, message: Message, index: int | None = None) -> Entry:
        """Return a message as an entry of a batch body, without looking at the limit. Raises InvalidMessage or InvalidName."""
        body = message.body
        n = len(body)
        if not n:
            self._check_size(n, index)
        length, prefix, merged = self._entry_prefix(message, index)
        size = BATCH_ENTRY_HEAD_BYTES + n + length
        try:
            return size, entry_head(size, message.flag, n), body, prefix, merged
        except struct.error:
            check_flag(message.flag, index)
            raise

    def common(self, tag: str | None) -> Common | None:
        """Return the common part of entries of messages with this tag and nothing else; None for a tag not in the table."""
        known = self._tails.get(tag)
        return None if known is None else (known[1], BATCH_ENTRY_HEAD_BYTES + known[0])

    def _entry_prefix(self, message: Message, index: int | None) -> tuple[int, bytes, int]:
        """Return the length of what follows the body in an entry, the part of it before the id, and ``merged`` as in ``entry``."""
        try:
            known: tuple[int, bytes, int] | None = self._tails[message.tag]
        except (KeyError, TypeError):
            self._remember(message.tag, index)
            known = self._tails.get(message.tag)
        keys = message.keys
        merged = 0
        try:
            if (
                known is None
                or message.properties
                or message.wait_store_ok is not True
                or message.delay_level
                or message.deliver_at_ms is not None
                or message.ordering_key is not None
            ):
                text = self.properties(message, "", index).encode()
                length = len(text) + self._id_length
                prefix = text[:-1]
                if keys:
                    merged = len((keys if isinstance(keys, str) else " ".join(keys)).encode()) + 1
            elif keys:
                words = " ".join(checked_keys(keys, index)).encode()
                merged = len(words) + 1
                length = known[0] + 3 + merged
                prefix = b"KEYS\x01%b\x02%b" % (words, known[1][PROPERTY_LENGTH_BYTES:])
            else:
                return known
        except UnicodeEncodeError as e:
            raise not_text(e, index) from None
        if length > MAX_PROPERTIES_LENGTH:
            raise InvalidMessage(f"the properties take {length} bytes, the limit is {MAX_PROPERTIES_LENGTH}", index=index)
        return PROPERTY_LENGTH_BYTES + length, property_length(length) + prefix, merged

    def batch(self, messages: Sequence[Message]) -> list["EncodedBatch"]:
        """Encode ``messages`` into as few batch bodies as fit the limit, in order; sizes are exact, in bytes.

        A batch body also ends where the keys of its messages would be too long together. Raises BatchError for an empty batch, a delayed
        message, a retry topic, a second topic, queue or wait_store_ok (naming the first such message), and what single messages raise,
        with the index; MessageTooLarge also when one message does not fit a batch by itself.
        """
        if not messages:
            raise BatchError("the batch is empty: give at least one message")
        first = messages[0]
        check_member(first, first, 0)
        try:
            check_send_topic(first.topic)
        except InvalidName as e:
            raise InvalidName(e.kind, e.name, e.reason, index=0) from None
        topic, queue, wait = first.topic, first.queue, first.wait_store_ok
        with_priority = type(queue_of(first)) is PriorityQueue
        key = first.ordering_key
        plain = wait is True and key is None
        limit = self._max_bytes
        tails, pack_head, head_bytes = self._tails, entry_head, BATCH_ENTRY_HEAD_BYTES
        batches: list[EncodedBatch] = []
        # Four parts for each entry: head, body, prefix, and the id, which is filled in last.
        parts: list[bytes] = []
        merged: dict[str, None] = {}
        merged_bytes = more = used = start = index = 0
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
                    or message.ordering_key is not key
                ):
                    check_member(first, message, index)
                body = message.body
                n = len(body)
                tag = message.tag
                keys: Collection[str] = ()
                if plain and not message.keys and not message.properties and tag in tails:
                    length, prefix, more = tails[tag]
                else:
                    length, prefix, more = self._entry_prefix(message, index)
                    if more:
                        keys = (message.keys,) if isinstance(message.keys, str) else message.keys
                size = head_bytes + n + length
                if not n or size > limit:
                    self._check_size(n, index)
                    raise MessageTooLarge(size, limit, index=index)
                if (
                    used + size > limit
                    or index - start >= MAX_BATCH_COUNT
                    or (keys and merged_bytes and merged_bytes + more > MAX_MERGED_KEYS_BYTES)
                ):
                    batches.append(self._join(parts, common, merged))
                    parts.clear()
                    merged.clear()
                    start, used, merged_bytes, common = index, 0, 0, tag
                if keys:
                    merged_bytes += more
                    for key in keys:
                        merged[key] = None
                if tag is not common and tag != common:
                    common = None
                parts += (pack_head(size, message.flag, n), body, prefix, b"")
                used += size
                index += 1
        except UnicodeEncodeError as e:
            raise not_text(e, index) from None
        except struct.error:
            check_flag(messages[index].flag, index)
            raise
        except (AttributeError, TypeError):
            # Not a message, or a field of a wrong type.
            check_member(first, messages[index], index)
            self.properties(messages[index], "", index)
            raise
        batches.append(self._join(parts, common, merged))
        return batches

    def _join(self, parts: list[bytes], tag: str | None, keys: Iterable[str]) -> "EncodedBatch":
        ids = self.ids.take(len(parts) // 4)
        parts[3::4] = [prefix + end for prefix, ends in ids.pieces() for end in ends]
        return EncodedBatch(b"".join(parts), ids, tag, list(keys))

    def outer_properties(self, *, wait_store_ok: bool, tag: str | None = None, keys: Collection[str] = ()) -> bytes:
        """Return the property string of a batch request as JSON: keys, tag, WAIT, and an id of the batch's own.

        ``tag`` is the one that all its messages have, ``keys`` those of any. Topics that store a batch as one record filter and index by
        these.
        """
        same = self._outer.get((wait_store_ok, tag))
        if same is None:
            text = "" if tag is None else f"TAGS\x01{tag}\x02"
            same = _json(f"{text}WAIT\x01{'true' if wait_store_ok else 'false'}\x02UNIQ_KEY\x01")[1:-1]
            if len(self._outer) >= _MAX_TAGS:
                self._outer.clear()
            self._outer[wait_store_ok, tag] = same
        found_by = _json(f"KEYS\x01{' '.join(keys)}\x02")[1:-1] if keys else b""
        return b'"%b%b%b\\u0002"' % (found_by, same, self.ids.next().encode())


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One batch body; the ids of its messages in order; the tag that all have, or None; the keys of all, each once."""

    body: bytes
    uniq_keys: MessageIds
    tag: str | None = None
    keys: Sequence[str] = ()
