"""Watch a streaming query: a live bar with rows per second and the lag of each queue, and a plot of the whole run afterwards.

Works in a terminal and in Jupyter; neither IPython nor a terminal is needed to call it.
"""

import base64
import html
import io
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from sprocketmq.errors import ConfigError
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.errors import in_one_sentence, notebook_shell
from sprocketmq.spark.source.offsets import Offsets, WrongCheckpoint, decode_offsets
from sprocketmq.spark.version_checks import require, spark_version

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType

POLL_S = 0.5
KEPT_BATCHES = 10_000
# Queues in the table and the plot: those with the greatest lag.
SHOWN_QUEUES = 12
PLOTTED_QUEUES = 8


@dataclass(frozen=True)
class BatchFigures:
    """One micro-batch: start (epoch seconds), rows, duration, and the lag of each queue after it."""

    batch_id: int
    began_s: float
    rows: int
    rows_per_s: float
    duration_ms: int
    lag: Offsets


class QueryHistory:
    """The micro-batches of a streaming query. Jupyter displays it as a table and a plot."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Only the latest: a query may run for months.
        self.batches: deque[BatchFigures] = deque(maxlen=KEPT_BATCHES)
        self.rows: int = 0

    @property
    def rows_per_s(self) -> float:
        """Rows per second of the last batch with rows, 0 before the first one."""
        return next((batch.rows_per_s for batch in reversed(self.batches) if batch.rows), 0.0)

    @property
    def lag(self) -> Offsets:
        """Unread messages of each queue after the last batch; empty for other formats and before Spark 4.2, which does not report them."""
        return self.batches[-1].lag if self.batches else {}

    def add(self, progress: Mapping[str, Any]) -> bool:
        """Add a progress report of Spark; return False for one that was added before."""
        last = self.batches[-1] if self.batches else None
        if last is not None and _place(progress) <= (last.batch_id, last.began_s):
            return False
        figures = batch_figures(progress)
        self.batches.append(figures)
        self.rows += figures.rows
        return True

    def plot(self) -> "Figure":
        """Return a figure of rows per second and lag over time; save it with ``.savefig("query.png")``. Needs matplotlib."""
        require("matplotlib", "the plot", "pip install 'sprocketmq[notebook]'")
        return _figure(self)

    def summary(self) -> str:
        """Return one line: rows, rows per second, and lag where it is known."""
        batch = f"batch {self.batches[-1].batch_id}" if self.batches else "no batch yet"
        behind = f", {sum(self.lag.values()):,} behind" if self.lag else ""
        return f"{self.name}: {batch}, {self.rows:,} rows, {self.rows_per_s:,.0f} rows/s{behind}"

    def table(self) -> list[tuple[str, str]]:
        """Return up to SHOWN_QUEUES (queue, lag) pairs, greatest lag first, and a line for the rest."""
        ordered = sorted(self.lag.items(), key=lambda item: (-item[1], item[0]))
        lines = [(queue_label(queue), f"{lag:,}") for queue, lag in ordered[:SHOWN_QUEUES]]
        if len(ordered) > SHOWN_QUEUES:
            rest = ordered[SHOWN_QUEUES:]
            lines.append((f"{len(rest)} more queues", f"{sum(lag for _, lag in rest):,}"))
        return lines

    def _repr_html_(self) -> str:
        if find_spec("matplotlib") is None:
            return _html(self)
        file = io.BytesIO()
        _figure(self).savefig(file, format="png")
        return f"{_html(self)}<img src='data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}'>"


class StreamingQuery(Protocol):
    """The used part of PySpark's class of this name."""

    @property
    def name(self) -> str | None: ...
    @property
    def recentProgress(self) -> list[Any]: ...  # noqa: N802 - Spark's name
    def awaitTermination(self, timeout: float | None = None) -> bool | None: ...  # noqa: N802


def watch(query: StreamingQuery, *, seconds: float | None = None) -> QueryHistory:
    """Show the progress of a streaming query until it ends, for ``seconds``, or until Ctrl-C (the stop button); return its history.

    The query itself keeps running. A bar, rows per second and the lag of each queue are shown on standard error of a terminal, or below the
    Jupyter cell; elsewhere nothing is shown. The bar is full when the query has read all messages. Raises the query's failure as one
    sentence: ConfigError for a wrong option, FatalError for everything else.
    """
    if seconds is not None and seconds <= 0:
        raise ConfigError(f"seconds is {seconds}, it has to be more than 0 (None: until the query ends)")
    history = QueryHistory(query.name or "query")
    deadline = None if seconds is None else time.monotonic() + seconds
    with _display() as show:
        try:
            while True:
                left = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
                ended = query.awaitTermination(max(left, 0.001))
                if [True for report in query.recentProgress if history.add(report)]:
                    show(history)
                if ended or (deadline is not None and time.monotonic() >= deadline):
                    return history
        except KeyboardInterrupt:
            return history
        except Exception as e:
            told = in_one_sentence(e)
            if told is e:
                raise
            raise told from e


def batch_figures(progress: Mapping[str, Any]) -> BatchFigures:
    """Return the figures of a progress report (a StreamingQueryProgress or its JSON). Sources of other formats have no lag."""
    lag: Offsets = {}
    if spark_version() >= (4, 2):  # before, what it reports as the latest offset is the end of the batch
        for source in progress["sources"]:
            lag |= source_lag(source)
    duration = progress.get("durationMs") or {}
    batch_id, began_s = _place(progress)
    return BatchFigures(
        batch_id=batch_id,
        began_s=began_s,
        # Reports of Spark Connect have these for each source only.
        rows=sum(int(source.get("numInputRows") or 0) for source in progress["sources"]),
        rows_per_s=sum(float(source.get("processedRowsPerSecond") or 0.0) for source in progress["sources"]),
        duration_ms=int(duration.get("triggerExecution") or progress.get("batchDuration") or 0),
        lag=lag,
    )


def _place(progress: Mapping[str, Any]) -> tuple[int, float]:
    """Return the batch id and the time (epoch s) of a progress report, by which reports are ordered."""
    return int(progress["batchId"]), datetime.fromisoformat(progress["timestamp"]).timestamp()


def source_lag(source: Mapping[str, Any]) -> Offsets:
    """Return the lag of each queue of a source: its latest offset at the time of the report minus the end offset of the batch."""
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    return {queue: max(0, offset - end.get(queue, offset)) for queue, offset in latest.items()}


def _offsets(value: Any) -> Offsets:
    try:
        decoded = json.loads(value) if isinstance(value, str) else value
        return decode_offsets(decoded) if isinstance(decoded, dict) else {}
    except (ValueError, WrongCheckpoint):
        return {}


def queue_label(queue: MessageQueue) -> str:
    """Return the short name of a queue: ``orders/broker-a/3``."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


# --- showing it -----------------------------------------------------------------------------------------------------------


class _Show(Protocol):
    def __call__(self, history: QueryHistory) -> None: ...


@contextmanager
def _display() -> Iterator[_Show]:
    """Yield the function that displays a history: below the notebook cell, on the terminal, or nowhere."""
    shell = notebook_shell()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        yield _cell()
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield lambda history: live.update(_rendered(history), refresh=True)


def _cell() -> _Show:
    from importlib import import_module

    display = import_module("IPython.display")
    handle = display.display(display.HTML(""), display_id=True)
    return lambda history: handle.update(display.HTML(_html(history)))


def _rendered(history: QueryHistory) -> "RenderableType":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    lines: list[RenderableType] = [Text(history.summary())]
    if history.lag:
        total = history.rows + sum(history.lag.values())
        lines.append(ProgressBar(total=max(total, 1), completed=history.rows, width=60))
        table = Table("queue", "behind", box=None, pad_edge=False)
        table.columns[1].justify = "right"
        for label, lag in history.table():
            table.add_row(Text(label), lag)
        lines.append(table)
    return Group(*lines)


def _html(history: QueryHistory) -> str:
    if not history.lag:
        return f"<div>{html.escape(history.summary())}</div>"
    total = history.rows + sum(history.lag.values())
    bar = f"<progress max='{max(total, 1)}' value='{history.rows}' style='width:30em'></progress>"
    rows = "".join(f"<tr><td>{html.escape(label)}</td><td style='text-align:right'>{lag}</td></tr>" for label, lag in history.table())
    table = f"<table><tr><th>queue</th><th>behind</th></tr>{rows}</table>"
    return f"<div>{html.escape(history.summary())}<br>{bar}{table}</div>"


def _figure(history: QueryHistory) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    batches = history.batches
    has_lag = any(batch.lag for batch in batches)
    plots = figure.subplots(2 if has_lag else 1, 1, sharex=True, squeeze=False)[:, 0]
    begin = batches[0].began_s if batches else 0.0
    seconds = [batch.began_s - begin + batch.duration_ms / 1000 for batch in batches]
    speed = plots[0]
    speed.plot(seconds, [batch.rows_per_s for batch in batches], drawstyle="steps-pre", color="tab:blue")
    speed.set_ylabel("rows/s")
    speed.set_title(history.summary(), fontsize="medium")
    if has_lag:
        _plot_lag(plots[1], seconds, list(batches))
    plots[-1].set_xlabel("seconds")
    for axes in plots:
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
    return figure


def _plot_lag(axes: "Axes", seconds: list[float], batches: list[BatchFigures]) -> None:
    axes.plot(seconds, [sum(batch.lag.values()) for batch in batches], color="black", linewidth=2, label="all queues")
    peak: dict[MessageQueue, int] = {}
    for batch in batches:
        for queue, lag in batch.lag.items():
            peak[queue] = max(peak.get(queue, 0), lag)
    for queue in sorted(peak, key=lambda queue: (-peak[queue], queue))[:PLOTTED_QUEUES]:
        axes.plot(seconds, [batch.lag.get(queue, 0) for batch in batches], linewidth=1, label=queue_label(queue))
    axes.set_ylabel("messages behind")
    axes.legend(fontsize="x-small", ncols=3)
