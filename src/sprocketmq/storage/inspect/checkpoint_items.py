"""Inspecting the file ``checkpoint``: six times and offsets."""

from collections.abc import Iterator
from dataclasses import fields
from struct import Struct

from sprocketmq.storage.checkpoint import FILE_BYTES, Checkpoint
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.inspect.items import Field, Item


def checkpoint_items(view: FileView) -> Iterator[Item]:
    """Yield the checkpoint as one item."""
    data = view.read(0, FILE_BYTES)
    names = [field.name for field in fields(Checkpoint)]
    if len(data) < 8 * len(names):
        yield Item("damaged", 0, 0, len(data), (), f"{len(data)} bytes are too few, a checkpoint has {FILE_BYTES}")
        return
    values = Struct(f">{len(names)}q").unpack_from(data)
    found = tuple(Field(name, 8 * i, 8, value) for i, (name, value) in enumerate(zip(names, values, strict=True)))
    yield Item("fields", 0, 0, len(data), found, "a field is negative: the file counts as missing" if min(values) < 0 else "")
