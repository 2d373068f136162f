"""Progress bars on stderr, only if it is a terminal: pipes and logs stay clean, and rich is not imported."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich import progress as rich_progress

# Redrawing for every batch would cost more than sending the batch.
REDRAW_EVERY = 256


class MessageProgress:
    """Progress in messages, and in bytes of input where its size is known (``total_bytes``)."""

    def __init__(self, total_bytes: int | None, verb: str) -> None:
        self._bar: rich_progress.Progress | None = None
        self._messages = 0
        self._bytes = 0
        self._total = total_bytes
        self._verb = verb

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                *([BarColumn(), TextColumn("{task.percentage:>3.0f}%")] if self._total else []),
                TextColumn("{task.fields[messages]:,} messages"),
                TextColumn("{task.fields[rate]:,.0f}/s"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._verb, total=self._total, messages=0, rate=0.0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._redraw()
            self._bar.stop()

    def read(self, count: int) -> None:
        """Add ``count`` bytes of input."""
        self._bytes += count
        if self._bar is not None:
            self._redraw()

    def sent(self, count: int) -> None:
        """Add ``count`` messages."""
        before = self._messages // REDRAW_EVERY
        self._messages += count
        if self._bar is not None and self._messages // REDRAW_EVERY != before:
            self._redraw()

    def _redraw(self) -> None:
        assert self._bar is not None
        elapsed = self._bar.tasks[self._task].elapsed or 0.0
        rate = self._messages / elapsed if elapsed else 0.0
        self._bar.update(self._task, completed=self._bytes, messages=self._messages, rate=rate)


class ByteProgress:
    """Progress in bytes of a known total; call it with both."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._bar: rich_progress.Progress | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
            self._bar = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._verb, total=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Set the progress to ``done`` of ``total`` bytes."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
