"""The progress of ``sprocketmq bench omb``: two lines on stderr that are redrawn, only if it is a terminal."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.live import Live

    from sprocketmq.omb.run import Progress


class Board:
    """Shows the progress of one run."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: "Progress") -> None:
        """Show what happened in the last second."""
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(f"{self._title}\n{text_of(progress)}"), refresh=True)


def text_of(progress: "Progress") -> str:
    """Return the progress as one line."""
    left = "" if progress.left_s is None else f" {progress.left_s:,.0f} s left"
    errors = f" | {progress.error_rate:,.0f} errors/s" if progress.error_rate else ""
    return (
        f"{progress.phase}{left} | sent {progress.publish_rate:,.0f}/s | received {progress.consume_rate:,.0f}/s{errors}"
        f" | backlog {progress.backlog:,} | publish p50 {progress.publish_p50_ms:,.2f} ms, p99 {progress.publish_p99_ms:,.2f} ms"
        f" | end to end p99 {progress.end_to_end_p99_ms:,.2f} ms"
    )
