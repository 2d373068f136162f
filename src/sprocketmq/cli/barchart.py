"""Bar charts as SVG, written as text: a picture that browsers show, without a plotting library."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

# Distinct for most kinds of colour blindness as well (Okabe and Ito).
COLOURS = ("#7f8c99", "#e69f00", "#56b4e9", "#009e73")
# The bars of one row, from the first to the last.
_OPACITIES = (1.0, 0.65, 0.35)

_MARGIN = 24
_PANEL_WIDTH = 468
_LABEL_WIDTH = 152
_VALUE_WIDTH = 84
_TITLE_HEIGHT = 64
_HEADING_HEIGHT = 34
_ROW_HEIGHT = 46
_ROW_BARS = 36
_PANEL_GAP = 22


@dataclass(frozen=True)
class Panel:
    """One chart: ``rows`` are labels with one bar for each of ``series`` (None: not measured); ``form`` writes a value at its bar."""

    heading: str
    rows: Sequence[tuple[str, Sequence[float | None]]]
    form: Callable[[float], str]
    series: Sequence[str] = ("",)

    @property
    def height(self) -> int:
        return _HEADING_HEIGHT + _ROW_HEIGHT * len(self.rows)


def draw(title: str, subtitle: str, panels: Sequence[Panel]) -> str:
    """Return the charts as an SVG document, two beside each other; the n-th rows of all have the same colour."""
    parts: list[str] = []
    top = _TITLE_HEIGHT
    for left_index in range(0, len(panels), 2):
        pair = panels[left_index : left_index + 2]
        for column, panel in enumerate(pair):
            parts += _panel(panel, _MARGIN + column * (_PANEL_WIDTH + _MARGIN), top)
        top += max(panel.height for panel in pair) + _PANEL_GAP
    width, height = 3 * _MARGIN + 2 * _PANEL_WIDTH, top
    font = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13" fill="#1f2933"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" {font}>',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            f'<text x="{_MARGIN}" y="30" font-size="18" font-weight="600">{escape(title)}</text>',
            f'<text x="{_MARGIN}" y="50" fill="#616e7c">{escape(subtitle)}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(panel: Panel, x: int, y: int) -> list[str]:
    parts = [f'<text x="{x}" y="{y + 18}" font-size="14" font-weight="600">{escape(panel.heading)}</text>']
    if len(panel.series) > 1:
        parts += _legend(panel.series, x + _PANEL_WIDTH, y + 18)
    room = _PANEL_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH
    largest = max((value for _, values in panel.rows for value in values if value is not None), default=0.0)
    start = x + _LABEL_WIDTH
    bar = _ROW_BARS / len(panel.series)
    for number, (label, values) in enumerate(panel.rows):
        top = y + _HEADING_HEIGHT + number * _ROW_HEIGHT
        middle = top + _ROW_BARS / 2
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<text x="{start - 8}" y="{middle + 4.5:g}" text-anchor="end">{escape(label)}</text>')
        for index, value in enumerate(values):
            at = top + index * bar
            if value is None:
                parts.append(f'<text x="{start + 4}" y="{at + bar / 2 + 4:g}" fill="#9aa5b1">not measured</text>')
                continue
            length = max(1.0, room * value / largest) if largest else 1.0
            parts.append(
                f'<rect x="{start}" y="{at:g}" width="{length:.1f}" height="{bar - 1:g}" fill="{colour}"'
                f' fill-opacity="{_OPACITIES[index % len(_OPACITIES)]}"/>'
            )
            size = min(13.0, bar)
            parts.append(
                f'<text x="{start + length + 5:.1f}" y="{at + bar / 2 + size * 0.36:.1f}" font-size="{size:g}">'
                f"{escape(panel.form(value))}</text>"
            )
    bottom = y + panel.height - (_ROW_HEIGHT - _ROW_BARS) + 4
    parts.append(f'<line x1="{start - 0.5}" y1="{y + _HEADING_HEIGHT - 4}" x2="{start - 0.5}" y2="{bottom}" stroke="#9aa5b1"/>')
    return parts


def _legend(series: Sequence[str], right: int, y: int) -> list[str]:
    """Name the bars of a row, right-aligned."""
    parts = []
    for index in reversed(range(len(series))):
        right -= 8 * len(series[index])
        parts.append(f'<text x="{right}" y="{y}" font-size="12">{escape(series[index])}</text>')
        right -= 16
        opacity = _OPACITIES[index % len(_OPACITIES)]
        parts.append(f'<rect x="{right}" y="{y - 10}" width="12" height="11" fill="#52606d" fill-opacity="{opacity}"/>')
        right -= 14
    return parts
