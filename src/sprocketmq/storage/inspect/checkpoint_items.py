"""Inspecting the file ``checkpoint``: six times and offsets."""

from collections.abc import Iterator

from sprocketmq.protocol.layout import CHECKPOINT, CHECKPOINT_FILE_BYTES, CHECKPOINT_LAYOUT
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.inspect.items import Field, Item


def checkpoint_items(view: FileView) -> Iterator[Item]:
    """Yield the checkpoint as one item."""
    data = view.read(0, CHECKPOINT_FILE_BYTES)
    if len(data) < CHECKPOINT.size:
        yield Item("damaged", 0, 0, len(data), (), f"{len(data)} bytes are too few, a checkpoint has {CHECKPOINT_FILE_BYTES}")
        return
    values = CHECKPOINT.unpack_from(data)
    fields = CHECKPOINT_LAYOUT.fields.values()
    found = tuple(Field(field.name, field.offset, field.size, value) for field, value in zip(fields, values, strict=True))
    yield Item("fields", 0, 0, len(data), found, "a field is negative: the file counts as missing" if min(values) < 0 else "")
