"""The base class of JSON bodies, and the parts that several of them share."""

from typing import Any, ClassVar, Self, TypeVar

import msgspec

from sprocketmq.errors import LocalProtocolError, RemoteProtocolError
from sprocketmq.protocol.jsondialect import dumps_with_queue_keys, loads
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.ranges import Int32, Int64

_T = TypeVar("_T")
_decoders: dict[type, Any] = {}
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError)


class Body(msgspec.Struct, rename="camel"):
    """The base class of JSON bodies."""

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Return the body in ``data``. Raises RemoteProtocolError when it is not JSON of this shape."""
        decode = _decoders.get(cls)
        if decode is None:
            decode = _decoders[cls] = msgspec.json.Decoder(cls, strict=False).decode
        try:
            return decode(data)
        except _UNREADABLE:
            return convert(cls._understood(loads(data)), cls)

    @classmethod
    def _understood(cls, tree: Any) -> Any:
        """Return decoded JSON that does not fit as it is, with what the reference would read in another way than written."""
        return tree

    def encode(self) -> bytes:
        """Return the body as JSON. Raises LocalProtocolError when a value cannot be written."""
        try:
            return msgspec.json.encode(plain(self))
        except (TypeError, ValueError, RecursionError) as e:
            raise LocalProtocolError(f"{type(self).__name__} cannot be written as JSON: {e}") from None

    @classmethod
    def decode_array(cls, data: bytes | memoryview) -> list[Self]:
        """Return the bodies of an array, none of no data. Raises RemoteProtocolError when it is not a JSON array of this shape."""
        return convert(loads(data), list[cls]) if data else []  # type: ignore[valid-type]

    @staticmethod
    def encode_array(bodies: "list[Any]") -> bytes:
        """Return ``bodies`` as a JSON array."""
        return b"[%b]" % b",".join([body.encode() for body in bodies])


class QueueTables(Body):
    """A body with maps keyed by message queues: ``_tables`` names each, with the type of its values."""

    _tables: ClassVar[dict[str, Any]] = {}

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        tree = loads(data)
        if not isinstance(tree, dict):
            raise RemoteProtocolError(f"{cls.__name__} is a JSON {type(tree).__name__}, not an object")
        return cls.of_tree(tree)

    @classmethod
    def of_tree(cls, tree: dict[Any, Any]) -> Self:
        tables = {}
        for name, kind in cls._tables.items():
            wire_name = cls.__struct_encode_fields__[cls.__struct_fields__.index(name)]
            tables[name] = queue_table(tree.pop(wire_name, None), kind, wire_name)
        body = convert(tree, cls)
        for name, table in tables.items():
            setattr(body, name, table)
        return body

    def encode(self) -> bytes:
        return dumps_with_queue_keys(plain(self))


def convert(tree: Any, kind: type[_T]) -> _T:
    """Return decoded JSON as a value of type ``kind``. Raises RemoteProtocolError when it does not fit."""
    try:
        return msgspec.convert(_without_nulls(tree), kind, strict=False)
    except _UNREADABLE as e:
        name = getattr(kind, "__name__", str(kind))
        raise RemoteProtocolError(f"body does not fit {name}: {e}") from None


def _without_nulls(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_nulls(value) for key, value in tree.items() if value is not None}
    if isinstance(tree, list):
        return [_without_nulls(value) for value in tree]
    return tree


def plain(value: Any) -> Any:
    """Return a value with bodies replaced by dictionaries with the wire's names, without members that are None."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {wire: plain(item) for wire, name in names if (item := getattr(value, name)) is not None}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def queue_table(tree: Any, kind: Any, name: str) -> dict[MessageQueue, Any]:
    """Return the map ``name``, whose keys are message queues and whose values are of type ``kind``. Raises RemoteProtocolError."""
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise RemoteProtocolError(f"{name} is a {type(tree).__name__}, not an object")
    table = {}
    for key, value in tree.items():
        queue = key
        if isinstance(queue, str):  # writers of strict JSON send the queue as JSON text
            ref = convert(loads(queue), QueueRef)
            queue = (ref.topic, ref.broker_name, ref.queue_id)
        if not isinstance(queue, tuple):
            raise RemoteProtocolError(f"{name} has the key {key!r}, which is not a message queue")
        table[MessageQueue(*queue)] = convert(value, kind)
    return table


# --- shared parts ---


class DataVersion(Body, frozen=True):  # type: ignore[misc]  # msgspec allows a frozen child
    """When a table last changed. Equal versions mean equal tables."""

    state_version: Int64 = 0
    timestamp: Int64 = 0
    counter: Int64 = 0

    def next(self, now_ms: int) -> "DataVersion":
        """Return the version after one more change, made at ``now_ms``."""
        return DataVersion(self.state_version, now_ms, self.counter + 1)


class QueueRef(Body, frozen=True, order=True):  # type: ignore[misc]
    """A message queue as a JSON object."""

    topic: str
    broker_name: str
    queue_id: Int32

    @classmethod
    def of(cls, queue: MessageQueue) -> Self:
        return cls(queue.topic, queue.broker_name, queue.queue_id)

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)
