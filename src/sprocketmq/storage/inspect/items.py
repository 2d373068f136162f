"""What inspecting a file yields: items with their fields, each with its position in the file."""

from typing import Any, NamedTuple

from sprocketmq.errors import ConfigError

# How much of a body or of a damaged range an item carries.
PREVIEW_BYTES = 4096


class NotAStoreFile(ConfigError):
    """A path that is not a file or directory of a store, or does not have what was asked for."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class Field(NamedTuple):
    """One field of an item: ``length`` bytes, ``pos`` bytes after the item's first; ``value`` is something that JSON can hold.

    Derived fields have length 0.
    """

    name: str
    pos: int
    length: int
    value: Any


class Item(NamedTuple):
    """One thing in a file: a record, a unit, an index entry, a range of zeros.

    ``number`` identifies it: its log offset, queue offset or entry number. ``file_pos`` is its first byte in the file. ``kind``:
    record, blank, unit, filler, header, slots, entry, fields, queue, deletion, json, text, unwritten (zeros) or damaged. ``problem`` says
    what cannot be right about it.
    """

    kind: str
    number: int
    file_pos: int
    length: int
    fields: tuple[Field, ...] = ()
    problem: str = ""

    def get(self, name: str) -> Any:
        """Return the value of a field, None when the item has none of that name."""
        return next((field.value for field in self.fields if field.name == name), None)


def preview(data: bytes) -> dict[str, str]:
    """Return at most ``PREVIEW_BYTES`` bytes as JSON can hold them: as text when they are text, else in base64."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError as e:
        if len(data) == PREVIEW_BYTES and e.start > len(data) - 4:  # the end of the preview cuts a character
            return {"text": data[: e.start].decode()}
    from base64 import b64encode

    return {"base64": b64encode(data).decode()}
