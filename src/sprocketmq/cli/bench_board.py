"""The table of ``sprocketmq bench batch``."""

import asyncio
import sys
from typing import TYPE_CHECKING, Self

from sprocketmq.cli.bench_load import WAYS, Figures, Load, Way
from sprocketmq.cli.output import live_display, print_table

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

REDRAW_S = 0.25


class Board:
    """The table of figures: redrawn while measuring on a terminal, otherwise printed at the end."""

    COLUMNS = ("way", "messages/s", "x single", "p50 ms", "p99 ms", "p99.9 ms", "per request", "disk B/msg", "broker CPU us/msg")

    def __init__(self, *, as_json: bool) -> None:
        self._live: Live | None = None
        self._as_json = as_json
        self.done: list[Figures] = []

    def __enter__(self) -> Self:
        if not self._as_json and sys.stdout.isatty():
            self._live = live_display(self._table(None))
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    async def follow(self, load: Load) -> None:
        """Redraw while ``load`` runs, until cancelled."""
        while True:
            self.show(load)
            await asyncio.sleep(REDRAW_S)

    def show(self, load: Load | None = None) -> None:
        """Redraw with the finished figures and the current rate."""
        if self._live is not None:
            self._live.update(self._table(load), refresh=True)

    def finish(self) -> None:
        """Print the table if it was not drawn."""
        if self._live is None:
            print_table(self.COLUMNS, [self._row(WAYS[i], one) for i, one in enumerate(self.done)])

    def _row(self, way: Way, one: Figures) -> tuple[str, ...]:
        single = self.done[0].messages_per_s
        return (
            way.title,
            f"{one.messages_per_s:,.0f}",
            f"{one.messages_per_s / single:.1f}" if single else "-",
            f"{one.p50_ms:.2f}",
            f"{one.p99_ms:.2f}",
            f"{one.p999_ms:.2f}",
            f"{one.messages_per_request:,.0f}",
            "-" if one.disk_bytes_per_message is None else f"{one.disk_bytes_per_message:,.0f}",
            "-" if one.broker_cpu_us_per_message is None else f"{one.broker_cpu_us_per_message:.1f}",
        )

    def _table(self, load: Load | None) -> "Table":
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD)
        for i, column in enumerate(self.COLUMNS):
            table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        for i, way in enumerate(WAYS):
            if i < len(self.done):
                table.add_row(*self._row(way, self.done[i]))
            elif i == len(self.done) and load is not None:
                table.add_row(way.title, f"{load.rate:,.0f}", *[""] * (len(self.COLUMNS) - 2), style="bold cyan")
            else:
                table.add_row(way.title, style="dim")
        return table
