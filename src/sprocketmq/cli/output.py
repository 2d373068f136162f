"""How commands print: JSON lines, plain tables, counts."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

# Cells are cut where they are made; this only keeps rich from its own limit, the terminal's width.
MAX_TABLE_WIDTH = 10_000


def print_json(value: Any) -> None:
    """Print one JSON document on one line."""
    print(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headings: with rich on a terminal, tab-separated without headings' decoration elsewhere."""
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
    # Squeezed into a narrow terminal cells would be cut; the terminal's own wrapping keeps all of them, and copies well.
    wide = console.options.update(max_width=MAX_TABLE_WIDTH)
    console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table, markup=False)


def plural(count: int, noun: str) -> str:
    """Return ``1 message``, ``2,000 messages``."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"
