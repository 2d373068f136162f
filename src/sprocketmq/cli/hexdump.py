"""Bytes of one item of a file in rows of 16, each field in its colour, and a legend of the fields."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.inspect.items import PREVIEW_BYTES, Field, Item

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow", "bright_green", "bright_magenta")
_ROW = 16


def print_hex(item: Item, view: FileView, *, title: str, shown: Callable[[str, Any], str]) -> None:
    """Print an item's bytes (at most the first 4,096) and what they mean; colours only where the output is a terminal."""
    console = Console(highlight=False)
    console.print(Text(title, style="bold"), soft_wrap=True)
    data = view.read(item.file_pos, min(item.length, PREVIEW_BYTES))
    if item.kind == "unwritten":
        console.print(Text(f"  {len(data):,} zeros and more" if item.length > len(data) else f"  {len(data):,} zeros"))
        return
    fields = [field for field in item.fields if field.length]
    style = ["dim"] * len(data)
    for i, field in enumerate(fields):
        stop = min(field.pos + field.length, len(data))
        style[field.pos : stop] = [_COLOURS[i % len(_COLOURS)]] * max(0, stop - field.pos)
    for row in range(0, len(data), _ROW):
        console.print(_row(item.file_pos + row, data[row : row + _ROW], style[row : row + _ROW]), soft_wrap=True)
    if item.length > len(data):
        console.print(Text(f"  ... {item.length - len(data):,} more bytes"))
    for i, field in enumerate(fields):
        console.print(_legend(item.file_pos, field, _COLOURS[i % len(_COLOURS)], shown(field.name, field.value)), soft_wrap=True)
    console.print()


def _row(at: int, data: bytes, style: list[str]) -> Text:
    line = Text()
    line.append(f"{at:012x}  ", style="dim")
    for i, byte in enumerate(data):
        line.append(f"{byte:02x}", style=style[i])
        line.append("  " if i == _ROW // 2 - 1 else " ")
    line.append(" " * (3 * (_ROW - len(data)) + (1 if len(data) < _ROW // 2 else 0) + 1))
    for i, byte in enumerate(data):
        line.append(chr(byte) if 32 <= byte < 127 else ".", style=style[i])
    return line


def _legend(at: int, field: Field, colour: str, value: str) -> Text:
    line = Text("  ")
    line.append("■ ", style=colour)
    line.append(f"{at + field.pos:012x} +{field.length:<6} ", style="dim")
    line.append(f"{field.name.replace('_', ' '):<22}", style=colour)
    line.append(value if len(value) <= 200 else value[:200] + " ...")
    return line
