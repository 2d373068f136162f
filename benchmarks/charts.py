"""Draw ``docs/images/performance.svg`` from the figures under ``benchmarks/results``: ``python -m benchmarks.charts``

The picture depends on the committed figures only, so a test draws it again and compares. Each row has two bars: SprocketMQ, and what it was
measured beside in the same run.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.report import RESULTS

CHART = Path(__file__).parents[1] / "docs" / "images" / "performance.svg"

WIDTH, MARGIN, BAR_WIDTH = 480, 16, 330
TITLE_HEIGHT, ROW_HEIGHT, BAR_HEIGHT = 58, 62, 14

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de }
  text { fill: #1f2328; font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
  .title { font-size: 16px; font-weight: 600 }
  .note { font-size: 12.5px; fill: #59636e }
  .value { font-size: 12.5px }
  .ours { fill: #0969da }
  .other { fill: #afb8c1 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #151b23; stroke: #3d444d }
    text { fill: #f0f6fc }
    .note { fill: #9198a1 }
    .ours { fill: #4493f8 }
    .other { fill: #59636e }
  }
"""


@dataclass(frozen=True)
class Row:
    """One comparison: what was done, and the two rates per second."""

    label: str
    ours: float
    other: float


@dataclass(frozen=True)
class Panel:
    """Rows that share a unit, a scale and the thing they are compared with."""

    title: str
    note: str
    rows: list[Row]


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def against_apache() -> list[Panel]:
    """Return our client and broker beside Apache's Java client and broker."""

    def row(label: str, file: str, workload: str) -> Row:
        sides = load(file)["workloads"][workload]
        return Row(label, sides["ours"]["messages_per_s"]["median"], sides["theirs"]["messages_per_s"]["median"])

    rebuild = load("load-rebuild")
    note = f"grey: Apache RocketMQ {load('load-send')['setting']['apache_version']} with its Java client"
    sending = Panel(
        "Sending, messages per second",
        note,
        [
            row("single sends, 64 in flight", "load-send", "sync-64"),
            row("explicit batches of 100, 4 senders", "load-send", "batch-4x100"),
            row("256 awaited sends at a time, AutoBatch", "load-batching", "auto-sync-256"),
            row("AutoBatch to a plain topic", "load-batching", "auto-plain"),
            row("AutoBatch to batch queues", "load-batching", "auto-batchcq"),
        ],
    )
    reading = Panel(
        "Reading, messages per second",
        note,
        [
            row("push consumer, plain topic", "load-consume", "consume-plain"),
            row("push consumer, batch queues", "load-consume", "consume-batchcq"),
            Row("queues and key index rebuilt from the log", *(median(rebuild[k]["messages_per_s"]) for k in ("two", "apache"))),
        ],
    )
    return [sending, reading]


def median(figures: dict[str, Any]) -> float:
    return float(figures["median"])


def in_spark() -> Panel:
    """Return the Spark formats beside the other way to do the same work in Spark."""
    sink, land, store, read, rebuild = map(load, ("spark-sink", "spark-land", "spark-store", "spark-read", "load-spark-rebuild"))

    return Panel(
        "Spark local[2], rows per second",
        "grey: the alternative named in each row",
        [
            Row("topic read; the same from Apache's broker", *(median(read["rows_per_s"][k]) for k in ("ours-plain", "apache-plain"))),
            Row("topic written; a producer in foreachPartition", median(sink["rows_per_s"]), median(sink["row_by_row_rows_per_s"])),
            Row("topic landed as Parquet; Spark's own writer", *(median(land["rows_per_s"][k]) for k in ("direct", "spark"))),
            Row("store scanned; Parquet with the same rows", *(median(store["rows_per_s"][k]) for k in ("full", "parquet"))),
            Row("index rebuilt by tasks; Apache's broker alone", *(median(rebuild[k]["messages_per_s"]) for k in ("spark", "apache"))),
        ],
    )


def thousands(rate: float) -> str:
    return f"{rate / 1000:,.0f}k"


def draw(panels: list[Panel]) -> str:
    """Return the panels as one SVG, one below the other, each on its own scale."""
    body: list[str] = []
    top = MARGIN
    for panel in panels:
        body += [
            f'<text class="title" x="{MARGIN}" y="{top + 20}">{escape(panel.title)}</text>',
            f'<text class="note" x="{MARGIN}" y="{top + 40}">blue: SprocketMQ, {escape(panel.note)}</text>',
        ]
        top += TITLE_HEIGHT
        most = max(max(row.ours, row.other) for row in panel.rows)
        for row in panel.rows:
            body.append(f'<text x="{MARGIN}" y="{top + 12}">{escape(row.label)}</text>')
            for kind, rate, y in (("ours", row.ours, top + 19), ("other", row.other, top + 19 + BAR_HEIGHT + 2)):
                length = max(2, round(BAR_WIDTH * rate / most))
                text = f"{thousands(rate)}, {rate / row.other:.1f} x" if kind == "ours" else thousands(rate)
                body += [
                    f'<rect class="{kind}" x="{MARGIN}" y="{y}" width="{length}" height="{BAR_HEIGHT}" rx="2"/>',
                    f'<text class="value" x="{MARGIN + length + 6}" y="{y + 11.5}">{text}</text>',
                ]
            top += ROW_HEIGHT
        top += MARGIN
    label = "; ".join(f"{row.label}: {thousands(row.ours)} against {thousands(row.other)}" for panel in panels for row in panel.rows)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img" aria-label="{escape(label)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{top - 1}" rx="6"/>',
            *body,
            "</svg>\n",
        ]
    )


def chart() -> str:
    """Return the SVG that belongs to the committed figures."""
    return draw([*against_apache(), in_spark()])


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--output", type=Path, default=CHART, help="the file to write")
    asked = arguments.parse_args()
    asked.output.write_text(chart(), encoding="utf-8")
    print(f"drawn: {asked.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
