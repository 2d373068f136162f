"""Checks of messages that are to be sent; ``index`` is the message's place in a batch, for the errors."""

from collections.abc import Collection

from sprocketmq.client.send.queue_choice import queue_of
from sprocketmq.errors import BatchError, InvalidMessage
from sprocketmq.protocol.message import Message, not_a_message
from sprocketmq.protocol.names import RETRY_PREFIX
from sprocketmq.protocol.properties import PRIORITY, SHARDING_KEY, priority_of


def checked_keys(keys: Collection[str], index: int | None) -> Collection[str]:
    """Return ``keys`` as a collection of words. Raises InvalidMessage."""
    if isinstance(keys, str):
        keys = (keys,)
    elif type(keys) is not list and type(keys) is not tuple and not isinstance(keys, Collection):
        raise InvalidMessage(f"the keys must be a list of words, not {keys!r}", index=index)
    for key in keys:
        # Nearly every key: ``isprintable()`` rejects every whitespace character except ' '.
        if type(key) is str and key and key.isprintable() and " " not in key:
            continue
        if type(key) is not str or key.split() != [key] or "\x01" in key or "\x02" in key:
            raise InvalidMessage(f"bad key {key!r}: a key is one word, as keys are stored separated by blanks", index=index)
    return keys


def check_flag(flag: object, index: int | None) -> None:
    """Raise InvalidMessage unless ``flag`` is a 32-bit integer."""
    if type(flag) is not int or not -(2**31) <= flag < 2**31:
        raise InvalidMessage(f"the flag must be a whole number of 32 bits, not {flag!r}", index=index)


def check_priority(message: Message, index: int | None) -> None:
    """Raise InvalidMessage unless the message's priority is valid and nothing else about it rules out a priority."""
    if priority_of(message.properties) < 0:
        asked = message.properties[PRIORITY]
        raise InvalidMessage(f"the property {PRIORITY!r} must be a whole number from 0 to 2,147,483,647, not {asked!r}", index=index)
    keyed = message.ordering_key is not None or SHARDING_KEY in message.properties
    if message.delay_level or message.deliver_at_ms is not None or keyed:
        raise InvalidMessage(f"a message that is delayed or has an ordering key has no priority: leave out {PRIORITY!r}", index=index)


def not_text(error: UnicodeEncodeError, index: int | None) -> InvalidMessage:
    """Return the InvalidMessage for text that cannot be encoded."""
    return InvalidMessage(f"tag, keys and properties must be valid text: {error.reason}", index=index)


def check_member(first: Message, message: Message, index: int) -> None:
    """Raise why a message cannot join the batch that ``first`` begins, by the reference's rules in its order."""
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
    if message.ordering_key != first.ordering_key:
        raise BatchError(
            "its ordering key differs from the first message's: send a batch for each key, or each message by itself with AutoBatch",
            index=index,
        )
    if message is not first and queue_of(message) != queue_of(first):
        raise BatchError("its priority differs from the first message's: a batch goes to one queue, which the priority names", index=index)
    if message.wait_store_ok != first.wait_store_ok:
        raise BatchError("wait_store_ok differs from the first message's: a batch has one", index=index)
