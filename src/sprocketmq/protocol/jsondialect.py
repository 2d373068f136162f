"""JSON as RocketMQ writes it: maps may have bare integers or whole message queues as keys (docs/internals/remoting.md#json-bodies).

::

    {0: "127.0.0.1:10911"}                                             bare integer keys
    {{"brokerName": "a", "queueId": 0, "topic": "t"}: 5}               a message queue as key
"""

import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

import msgspec

from sprocketmq.errors import LocalProtocolError, RemoteProtocolError
from sprocketmq.protocol.message import MessageQueue

MAX_DEPTH = 64

_SPACE = re.compile(r"[ \t\n\r]*").match
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?").match
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile("true|false|null").match

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def loads(data: bytes | bytearray | memoryview | str) -> Any:
    """Return the value of a JSON text, strict or in RocketMQ's dialect.

    Bare integer keys become ``int``, quoted ones stay ``str``; a message queue as key becomes ``(topic, broker name, queue id)``.
    Raises RemoteProtocolError for anything else, too deep nesting included.
    """
    try:
        return _decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        pass  # not strict JSON; the parser below reports the error if it is valid in neither
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
        value, pos = _value(text, _SPACE(text, 0).end(), 0)  # type: ignore[union-attr]
        pos = _SPACE(text, pos).end()  # type: ignore[union-attr]
    except IndexError:
        raise RemoteProtocolError("JSON ends too early") from None
    except ValueError as e:  # of numbers, strings, UTF-8
        raise RemoteProtocolError(f"JSON does not parse: {e}") from None
    if pos != len(text):
        raise RemoteProtocolError(f"JSON has more text after its value, at character {pos}")
    return value


def _value(text: str, pos: int, depth: int) -> tuple[Any, int]:
    first = text[pos]
    if first == '"':
        return _string(text, pos)
    if first == "{":
        return _object(text, pos + 1, depth + 1)
    if first == "[":
        return _array(text, pos + 1, depth + 1)
    if number := _NUMBER(text, pos):
        whole, fraction, exponent = number.groups()
        if fraction or exponent:
            return float(number.group()), number.end()
        return int(whole), number.end()
    if word := _WORD(text, pos):
        return _WORDS[word.group()], word.end()
    raise RemoteProtocolError(f"JSON has no value at character {pos}")


def _string(text: str, pos: int) -> tuple[str, int]:
    value, end = scanstring(text, pos + 1, True)
    if not value.isascii():
        value.encode()  # half of a surrogate pair raises here, not where the text is used later
    return value, end


def _object(text: str, pos: int, depth: int) -> tuple[dict[Any, Any], int]:
    if depth > MAX_DEPTH:
        raise RemoteProtocolError(f"JSON is nested deeper than {MAX_DEPTH}")
    result: dict[Any, Any] = {}
    pos = _SPACE(text, pos).end()  # type: ignore[union-attr]
    if text[pos] == "}":
        return result, pos + 1
    while True:
        key: Any
        first = text[pos]
        if first == '"':
            key, pos = _string(text, pos)
        elif first == "{":
            queue, pos = _object(text, pos + 1, depth + 1)
            key = _queue_key(queue)
        elif (number := _NUMBER(text, pos)) and number.group() == number.group(1):
            key, pos = int(number.group()), number.end()
        else:
            raise RemoteProtocolError(f"JSON has no key at character {pos}")
        pos = _SPACE(text, pos).end()  # type: ignore[union-attr]
        if text[pos] != ":":
            raise RemoteProtocolError(f"JSON has no colon at character {pos}")
        pos = _SPACE(text, pos + 1).end()  # type: ignore[union-attr]
        result[key], pos = _value(text, pos, depth)
        pos = _SPACE(text, pos).end()  # type: ignore[union-attr]
        if text[pos] == "}":
            return result, pos + 1
        if text[pos] != ",":
            raise RemoteProtocolError(f"JSON has no comma at character {pos}")
        pos = _SPACE(text, pos + 1).end()  # type: ignore[union-attr]


def _array(text: str, pos: int, depth: int) -> tuple[list[Any], int]:
    if depth > MAX_DEPTH:
        raise RemoteProtocolError(f"JSON is nested deeper than {MAX_DEPTH}")
    result: list[Any] = []
    pos = _SPACE(text, pos).end()  # type: ignore[union-attr]
    if text[pos] == "]":
        return result, pos + 1
    while True:
        value, pos = _value(text, pos, depth)
        result.append(value)
        pos = _SPACE(text, pos).end()  # type: ignore[union-attr]
        if text[pos] == "]":
            return result, pos + 1
        if text[pos] != ",":
            raise RemoteProtocolError(f"JSON has no comma at character {pos}")
        pos = _SPACE(text, pos + 1).end()  # type: ignore[union-attr]


def _queue_key(queue: dict[Any, Any]) -> tuple[str, str, int]:
    topic, broker_name, queue_id = queue.get("topic"), queue.get("brokerName"), queue.get("queueId")
    if isinstance(queue_id, str) and queue_id.isdecimal():
        queue_id = int(queue_id)
    if not isinstance(topic, str) or not isinstance(broker_name, str) or type(queue_id) is not int:
        raise RemoteProtocolError("a JSON object used as a key is not a message queue (topic, brokerName, queueId)")
    return topic, broker_name, queue_id


def dumps_with_queue_keys(value: Any) -> bytes:
    """Return ``value`` as JSON whose maps keyed by queues have them as objects, the only form the reference reads.

    ``value`` is made of dicts, lists and scalars; a key may be text, an integer (written quoted, which every reader takes), a
    MessageQueue or its ``(topic, broker name, queue id)``. Raises LocalProtocolError for anything else.
    """
    parts: list[bytes] = []
    try:
        _write(value, parts.append)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as e:
        raise LocalProtocolError(f"value cannot be written as JSON: {e}") from None
    return b"".join(parts)


def _write(value: Any, add: Any) -> None:
    if isinstance(value, dict):
        separator = b"{"
        for key, item in value.items():
            add(separator)
            add(_key(key))
            _write(item, add)
            separator = b","
        add(b"}" if value else b"{}")
    elif isinstance(value, list | tuple):
        separator = b"["
        for item in value:
            add(separator)
            _write(item, add)
            separator = b","
        add(b"]" if value else b"[]")
    else:
        add(_encode(value))


def _key(key: Any) -> bytes:
    if isinstance(key, str):
        return _encode(key) + b":"
    if isinstance(key, MessageQueue):
        topic, broker_name, queue_id = key.topic, key.broker_name, key.queue_id
    elif isinstance(key, tuple):
        topic, broker_name, queue_id = key
    elif type(key) is int:
        return b'"%d":' % key
    else:
        raise TypeError(f"a {type(key).__name__} cannot be a key")
    return b'{"brokerName":%b,"queueId":%d,"topic":%b}:' % (_encode(broker_name), queue_id, _encode(topic))
