"""Inspecting the file ``dispatched``, a broker's snapshot: how far the derived files go, the state of every queue, deleted topics."""

from collections.abc import Iterator
from dataclasses import fields

from sprocketmq.protocol.layout import INT32
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.inspect.items import Field, Item
from sprocketmq.storage.inspect.json_items import MAX_JSON_BYTES
from sprocketmq.storage.snapshot import VERSION, Snapshot


def snapshot_items(view: FileView) -> Iterator[Item]:
    """Yield the snapshot's own fields, an item for each queue and one for each deleted topic."""
    data = view.read_all(MAX_JSON_BYTES)
    snapshot = Snapshot.decode(data) if data is not None else None
    version = INT32.unpack_from(data, 4)[0] if data is not None and len(data) >= 8 else None
    if snapshot is None:
        problem = "it is damaged or cut short: the next start reads the whole log instead"
        if data is not None and data[:4] == b"SPMQ" and version is not None and version > VERSION:
            problem = f"version {version} is newer than this SprocketMQ knows ({VERSION})"
        yield Item("damaged", 0, 0, view.size, (), problem)
        return
    head = (
        Field("version", 4, 4, version),
        Field("position", 8, 8, snapshot.log_offset),
        Field("last_record", 16, 16, list(snapshot.last_record)),
        Field("queues", 32, 4, len(snapshot.queues)),
        Field("deletions", 36, 4, len(snapshot.deleted)),
    )
    yield Item("fields", 0, 0, view.size, head)
    for number, state in enumerate(snapshot.queues):
        values = {f.name: getattr(state, f.name) for f in fields(state)}
        shown = tuple(Field(name, 0, 0, list(v) if isinstance(v, tuple) else v) for name, v in values.items() if _is_simple(v))
        yield Item("queue", number, 0, 0, shown)
    for number, (topic, position) in enumerate(snapshot.deleted.items()):
        yield Item("deletion", number, 0, 0, (Field("topic", 0, 0, topic), Field("position", 0, 0, position)))


def _is_simple(value: object) -> bool:
    return isinstance(value, str | int | bool) or (isinstance(value, tuple) and all(isinstance(v, int) for v in value))
