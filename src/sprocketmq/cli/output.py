"""Output of commands: JSON lines, tables, counts, text that is safe on a terminal."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.live import Live

# Replaces rich's own limit, the width of the terminal.
MAX_TABLE_WIDTH = 10_000


def print_json(value: Any) -> None:
    """Print one JSON document on one line."""
    print(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headings: formatted by rich on a terminal, tab-separated elsewhere."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            print("\t".join(str(cell) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console = Console()
    # Rich would cut cells in a narrow terminal; the terminal's own wrapping keeps them, and they can be copied.
    wide = console.options.update(max_width=MAX_TABLE_WIDTH)
    console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table, markup=False)


def live_display(drawn: Any = None, *, screen: bool = False) -> "Live":
    """Return a display that is redrawn on the terminal; ``screen`` uses the alternate screen and preserves the content."""
    from rich.console import Console
    from rich.live import Live

    # With a console of its own: the one that rich shares may have been made for another standard output.
    return Live(drawn, console=Console(), auto_refresh=False, screen=screen)


def plural(count: int, noun: str) -> str:
    """Return ``1 message``, ``2,000 messages``."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def clean(text: str) -> str:
    """Return ``text`` with characters escaped that a terminal would not just display."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
