"""Results as one SVG document: rates over time, and latencies by quantile; several results lie over each other."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from sprocketmq.omb.result import Result

# Distinct for most kinds of colour blindness (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

_WIDTH = 960
_LEFT = 84
_RIGHT = 40
_TITLE_HEIGHT = 56
_PANEL_HEIGHT = 260
_PLOT_HEIGHT = 176
_LEGEND_ROW = 20
# Percentages of the axis of quantiles, which has a decade for each further nine.
_NINES = (0.0, 90.0, 99.0, 99.9, 99.99, 99.999)
_MAX_NINES = 5.0


@dataclass(frozen=True)
class _Line:
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class _Axis:
    """Maps values to 0 ... 1, and has ticks."""

    ticks: Sequence[tuple[float, str]]
    scale: Callable[[float], float]


def draw(named: Sequence[tuple[str, Result]]) -> str:
    """Return the results, each with the name that the legend gives it."""
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(named))]
    panels: list[list[str]] = [_rates(named, colours)]
    for heading, key in (
        ("Publish latency by quantile, milliseconds", "aggregatedPublishLatencyQuantiles"),
        ("End-to-end latency by quantile, milliseconds", "aggregatedEndToEndLatencyQuantiles"),
    ):
        if any(result.get(key) for _, result in named):
            panels.append(_quantiles(heading, [(result.get(key) or {}) for _, result in named], colours))
    legend_height = _LEGEND_ROW * len(named) + 8
    parts = []
    top = _TITLE_HEIGHT + legend_height
    for panel in panels:
        parts += [f'<g transform="translate(0 {top})">', *panel, "</g>"]
        top += _PANEL_HEIGHT
    title = named[0][1].get("workload") or "OpenMessaging benchmark"
    font = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13" fill="#1f2933"'
    legend = []
    for number, ((name, _), colour) in enumerate(zip(named, colours, strict=True)):
        y = _TITLE_HEIGHT + _LEGEND_ROW * number
        legend.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + 24}" y2="{y}" stroke="{colour}" stroke-width="3"/>')
        legend.append(f'<text x="{_LEFT + 32}" y="{y + 4.5:g}">{escape(name)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}" {font}>',
            f"<title>{escape(title)}</title>",
            f'<rect width="{_WIDTH}" height="{top}" fill="#ffffff"/>',
            f'<text x="{_LEFT}" y="32" font-size="18" font-weight="600">{escape(title)}</text>',
            *legend,
            *parts,
            "</svg>\n",
        ]
    )


def _rates(named: Sequence[tuple[str, Result]], colours: Sequence[str]) -> list[str]:
    lines = []
    for (_, result), colour in zip(named, colours, strict=True):
        step = (result.get("sprocketmq") or {}).get("sampleSeconds") or 10.0
        for key, dashed in (("publishRate", False), ("consumeRate", True)):
            rates = result.get(key) or []
            if any(rates):
                lines.append(_Line([(step * (i + 1), rate) for i, rate in enumerate(rates)], colour, dashed))
    longest = max((x for line in lines for x, _ in line.points), default=1.0)
    highest = max((y for line in lines for _, y in line.points), default=1.0)
    return _panel("Messages per second: published (solid), consumed (dashed), by seconds", lines, _linear(longest), _linear(highest))


def _quantiles(heading: str, curves: Sequence[dict[str, float]], colours: Sequence[str]) -> list[str]:
    lines = []
    for curve, colour in zip(curves, colours, strict=True):
        points = sorted((float(percent), value) for percent, value in curve.items())
        if points:
            lines.append(_Line([(percent, max(value, 1e-3)) for percent, value in points], colour))
    values = [y for line in lines for _, y in line.points]
    x_axis = _Axis([(nine, f"{nine:g}%") for nine in _NINES], lambda percent: _nines(percent) / _MAX_NINES)
    return _panel(heading, lines, x_axis, _logarithmic(min(values), max(values)))


def _nines(percent: float) -> float:
    """Return 1 for 90 %, 2 for 99 % and so on."""
    return min(_MAX_NINES, -math.log10(max(1 - percent / 100, 10**-_MAX_NINES)))


def _linear(highest: float) -> _Axis:
    step = 10 ** math.floor(math.log10(highest)) if highest > 0 else 1.0
    while highest / step > 6:
        step *= 2
    while highest / step < 2:
        step /= 2
    count = math.ceil(highest / step) if highest > 0 else 1
    top = count * step
    return _Axis([(i * step, f"{i * step:,.10g}") for i in range(count + 1)], lambda value: value / top)


def _logarithmic(lowest: float, highest: float) -> _Axis:
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    last = max(last, first + 1)
    return _Axis(
        [(10.0**power, f"{10.0**power:,.10g}") for power in range(first, last + 1)],
        lambda value: (math.log10(value) - first) / (last - first),
    )


def _panel(heading: str, lines: Sequence[_Line], x_axis: _Axis, y_axis: _Axis) -> list[str]:
    width = _WIDTH - _LEFT - _RIGHT
    top = 32

    def x_of(value: float) -> float:
        return _LEFT + width * x_axis.scale(value)

    def y_of(value: float) -> float:
        return top + _PLOT_HEIGHT * (1 - y_axis.scale(value))

    parts = [f'<text x="{_LEFT}" y="16" font-size="14" font-weight="600">{escape(heading)}</text>']
    for value, label in y_axis.ticks:
        y = y_of(value)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + width}" y2="{y:.1f}" stroke="#e4e7eb"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" font-size="12" text-anchor="end">{label}</text>')
    for value, label in x_axis.ticks:
        parts.append(f'<text x="{x_of(value):.1f}" y="{top + _PLOT_HEIGHT + 18}" font-size="12" text-anchor="middle">{label}</text>')
    for line in lines:
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        if len(line.points) == 1:
            ((x, y),) = line.points
            parts.append(f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{line.colour}"/>')
            continue
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}/>')
    return parts
