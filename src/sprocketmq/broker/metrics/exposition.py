"""Prometheus' text format (version 0.0.4), written in pieces.

A broker with 10,000 topics has more of it than one turn of the loop may take.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from sprocketmq.broker.metrics.counters import OTHER, Histogram
from sprocketmq.errors import ConfigError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
# Lines of one piece: about half a millisecond of work.
LINES_PER_PIECE = 250

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_RESERVED = {"cluster", "node_type", "node_id", "otel_scope_name", "le"}

Value = float | int | Histogram
# The values of a metric's own labels, and its value; None where the writer may pause.
Row = tuple[tuple[str, ...], Value] | None


class Metric(NamedTuple):
    """One metric: its name as it is scraped, type, own labels, what it is, and how its rows are read."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    rows: Callable[..., Iterable[Row]]


def read_labels(text: str) -> dict[str, str]:
    """Return the labels of ``k:v,k:v``. Raises ConfigError for names that Prometheus does not allow, or that every series has already."""
    labels: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        name, colon, value = pair.strip().partition(":")
        if not colon or not _LABEL_NAME.fullmatch(name) or name.startswith("__") or name in _RESERVED:
            raise ConfigError(
                f"metrics_label has {pair!r}: write name:value, and several with commas between; a name has letters, digits and _,"
                f" begins with no digit, and is none of {', '.join(sorted(_RESERVED))}"
            )
        labels[name] = value
    return labels


def escaped(value: str) -> str:
    """Return a label value as it stands between quotes."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value


def number(value: float) -> str:
    """Return a number as Prometheus reads it."""
    return str(value) if type(value) is int else repr(float(value))


class Writer:
    """Writes metrics with the labels that all series have.

    A metric has at most ``max_series`` series (a histogram counts as one); what is over is added up in one more, whose labels are all
    ``other``; of ages the largest counts. ``over`` has the names of the metrics of which the last page had more.
    """

    def __init__(self, labels: Mapping[str, str], max_series: int) -> None:
        self._common = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
        self._max_series = max_series
        self.over: set[str] = set()

    def pieces(self, metric: Metric, rows: Iterable[Row]) -> Iterator[str]:
        """Yield the text of one metric, "" where nothing is ready and others may have a turn."""
        lines = [f"# HELP {metric.name} {metric.text}\n# TYPE {metric.name} {metric.kind}\n"]
        count = 0
        rest: Value | None = None
        write = self._histogram if metric.kind == HISTOGRAM else self._number
        for row in rows:
            if row is None:
                yield ""
                continue
            count += 1
            labels, value = row
            if count > self._max_series:
                rest = value if rest is None else _both(rest, value, metric)
            else:
                write(lines, metric, labels, value)
            if len(lines) >= LINES_PER_PIECE:
                yield "".join(lines)
                lines.clear()
        if rest is not None:
            self.over.add(metric.name)
            write(lines, metric, (OTHER,) * len(metric.labels), rest)
        elif metric.name in self.over:
            self.over.discard(metric.name)
        if count:
            yield "".join(lines)

    def _labels(self, metric: Metric, values: tuple[str, ...]) -> str:
        return "".join([self._common, *[f',{name}="{escaped(value)}"' for name, value in zip(metric.labels, values, strict=True)]])

    def _number(self, lines: list[str], metric: Metric, labels: tuple[str, ...], value: Value) -> None:
        assert not isinstance(value, Histogram)
        lines.append(f"{metric.name}{{{self._labels(metric, labels)}}} {number(value)}\n")

    def _histogram(self, lines: list[str], metric: Metric, labels: tuple[str, ...], value: Value) -> None:
        assert isinstance(value, Histogram)
        own = self._labels(metric, labels)
        name = metric.name
        seen = 0
        for bound, count in zip((*map(float, value.bounds), "+Inf"), value.counts, strict=True):
            seen += count
            lines.append(f'{name}_bucket{{{own},le="{bound}"}} {seen}\n')
        lines.append(f"{name}_count{{{own}}} {seen}\n{name}_sum{{{own}}} {number(value.total)}\n")


def _both(one: Value, other: Value, metric: Metric) -> Value:
    """Return the sum of two values, or the larger one of two ages."""
    if isinstance(one, Histogram) and isinstance(other, Histogram):
        total = Histogram(one.bounds)
        total.counts = [a + b for a, b in zip(one.counts, other.counts, strict=True)]
        total.total = one.total + other.total
        return total
    assert not isinstance(one, Histogram)
    assert not isinstance(other, Histogram)
    return max(one, other) if metric.kind == GAUGE and metric.name.endswith("_milliseconds") else one + other
