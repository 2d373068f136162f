"""The result of an audit as values, rows, DataFrames, and one self-contained HTML page without scripts, fonts or links."""

import os
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sprocketmq._version import __version__
from sprocketmq.storage.inspect.findings import ERROR, NOTE, WARNING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sprocketmq.spark.jobs.audit.merge import AuditFinding

# Maximum lines of queues with a problem, and of others.
MAX_BAD_QUEUES = 2000
MAX_SOUND_QUEUES = 500
_WIDTH = 1000
_MIN_MARK = 2.0  # so that one damaged record in a terabyte is visible

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf8; --ink: #1d1f23; --soft: #666a73; --line: #dfdcd5; --card: #ffffff;
  --good: #2f7d5b; --error: #b3312c; --warning: #a86a00; --note: #4a6a94; --track: #e9e6df; }
@media (prefers-color-scheme: dark) { :root { --paper: #17181b; --ink: #e7e6e3; --soft: #9a9ea8; --line: #33363c; --card: #1f2125;
  --good: #62b48e; --error: #ee7a72; --warning: #dfa94e; --note: #8fb0dc; --track: #2b2e34; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 78rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.5rem 0 .75rem; }
p { margin: 0; color: var(--soft); }
code { font: .88em ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.verdict { display: inline-block; margin: 1rem 0 0; padding: .35rem .8rem; border-radius: .4rem; font-weight: 600; color: #fff; }
.verdict.good { background: #2f7d5b; } .verdict.bad { background: #b3312c; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.5rem, 1fr)); gap: .75rem; margin-top: 1.5rem; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem; }
.tile b { display: block; font-size: 1.15rem; white-space: nowrap; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .85rem; }
svg { display: block; width: 100%; height: 28px; border-radius: .3rem; }
.scale { display: flex; justify-content: space-between; font-size: .8rem; color: var(--soft); margin-top: .3rem; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .45rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.zero { color: var(--soft); } td.hot { color: var(--error); font-weight: 600; }
.pill { font-size: .8rem; font-weight: 600; white-space: nowrap; }
.error { color: var(--error); } .warning { color: var(--warning); } .note { color: var(--note); }
.next { margin-top: .25rem; color: var(--soft); } .where { color: var(--soft); }
.bar { width: 8rem; height: .55rem; border-radius: .3rem; margin-top: .4rem; }
footer { margin-top: 2.5rem; font-size: .8rem; color: var(--soft); }
"""

_FINDING_COLUMNS = (
    "severity string, kind string, topic string, queueId int, queueOffset bigint, count bigint, file string, position bigint, what string,"
    " next string"
)
_QUEUE_COLUMNS = (
    "topic string, queueId int, kind string, firstOffset bigint, nextOffset bigint, messages bigint, records bigint, units bigint,"
    " missing bigint, wrong bigint, orphans bigint, gaps bigint, duplicates bigint"
)


@dataclass(frozen=True)
class QueueAudit:
    """One queue: offsets ``[first_offset, next_offset)`` in the log, its messages and records there, the units in its files.

    ``missing`` messages have no unit, ``wrong`` units differ from their record, ``orphans`` are units without a record. ``gaps`` are queue
    offsets without a message in the log, ``duplicates`` those with two, except for a topic that was deleted and created again.
    """

    topic: str
    queue_id: int
    kind: str
    first_offset: int
    next_offset: int
    messages: int
    records: int
    units: int
    missing: int
    wrong: int
    orphans: int
    gaps: int
    duplicates: int

    @property
    def ok(self) -> bool:
        return not (self.missing or self.wrong or self.orphans or self.gaps or self.duplicates)


@dataclass(frozen=True)
class AuditSummary:
    """The result of an audit: ``findings``, most severe first and some of each kind, and a line for each queue.

    ``ok`` is true when there are only notes. ``damaged`` are stretches of the log without valid records (file, begin, end).
    """

    store: str
    in_use: bool
    log_begin: int
    log_end: int
    records: int
    queues: tuple[QueueAudit, ...]
    index_files: int
    index_entries: int
    keys_met: int
    damaged: tuple[tuple[str, int, int], ...]
    findings: "tuple[AuditFinding, ...]"
    errors: int
    warnings: int
    notes: int
    splits: int
    tasks_at_a_time: int
    elapsed_s: float

    @property
    def ok(self) -> bool:
        return not self.errors and not self.warnings

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        counted = ", ".join(
            f"{count:,} {word}{'' if count == 1 else 's'}"
            for count, word in ((self.errors, "error"), (self.warnings, "warning"), (self.notes, "note"))
            if count
        )
        return f"{'in order' if self.ok else 'NOT in order'}{f': {counted}' if counted else ''}"

    def rows(self) -> list[tuple[str, str]]:
        """Return label and value for each line of the summary table."""
        from sprocketmq.spark.jobs.audit.merge import number

        log_bytes = self.log_end - self.log_begin
        units, messages = sum(queue.units for queue in self.queues), sum(queue.messages for queue in self.queues)
        return [
            ("store", f"{self.store}{' (in use, or its broker was killed)' if self.in_use else ''}"),
            ("log", f"{self.records:,} records, {log_bytes:,} bytes, {number(len(self.damaged), 'damaged stretch', 'damaged stretches')}"),
            ("queues", f"{len(self.queues):,} with {messages:,} messages and {units:,} units"),
            ("index", f"{self.index_entries:,} entries in {number(self.index_files, 'file', 'files')}, {self.keys_met:,} keys found"),
            ("took", f"{self.elapsed_s:.1f} s in {self.splits:,} splits, {self.tasks_at_a_time} at a time"),
            ("verdict", self.verdict),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {**asdict(self), "ok": self.ok}

    def findings_frame(self, spark: "SparkSession") -> "DataFrame":
        """Return the findings as a DataFrame."""
        rows = [tuple(asdict(finding).values()) for finding in self.findings]
        return spark.createDataFrame(rows, _FINDING_COLUMNS)

    def queues_frame(self, spark: "SparkSession") -> "DataFrame":
        """Return the queues as a DataFrame."""
        return spark.createDataFrame([tuple(asdict(queue).values()) for queue in self.queues], _QUEUE_COLUMNS)

    def html(self) -> str:
        """Return the report as one self-contained HTML page."""
        return page(self)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file. Raises OSError."""
        Path(path).write_text(self.html(), encoding="utf-8")


def page(summary: AuditSummary) -> str:
    """Return the whole page."""
    log_bytes = summary.log_end - summary.log_begin
    tiles = [
        ("records", f"{summary.records:,}"),
        ("of log", _size(log_bytes)),
        ("queues", f"{len(summary.queues):,}"),
        ("units", f"{sum(queue.units for queue in summary.queues):,}"),
        ("index entries", f"{summary.index_entries:,}"),
        ("errors", f"{summary.errors:,}"),
        ("warnings", f"{summary.warnings:,}"),
        ("notes", f"{summary.notes:,}"),
    ]
    used = "A broker uses this store, was killed on it, or did when it was copied." if summary.in_use else ""
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        f"<title>Audit of {escape(summary.store)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n",
        f"<h1>Audit of <code>{escape(summary.store)}</code></h1>\n<p>Queues and key index compared with the commit log. {used}</p>\n",
        f'<div class="verdict {"good" if summary.ok else "bad"}">{escape(summary.verdict)}</div>\n',
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{value}</b><span>{label}</span></div>' for label, value in tiles)
        + "</div>\n",
        _log_strip(summary),
        _findings(summary),
        _queues(summary.queues),
        (
            f"<footer>SprocketMQ {escape(__version__)}; {summary.elapsed_s:.1f} s in {summary.splits:,} splits,"
            f" {summary.tasks_at_a_time} at a time</footer>\n"
        ),
        "</body>\n</html>\n",
    ]
    return "".join(parts)


def _log_strip(summary: AuditSummary) -> str:
    """Return the log as a strip with the damage marked."""
    length = summary.log_end - summary.log_begin
    if length <= 0:
        return ""
    marks = []
    for path, begin, end in summary.damaged:
        x = (begin - summary.log_begin) / length * _WIDTH
        width = max((end - begin) / length * _WIDTH, _MIN_MARK)
        label = escape(f"{path}: {begin} to {end}")
        marks.append(
            f'<rect x="{min(x, _WIDTH - width):.2f}" width="{width:.2f}" height="28" fill="var(--error)"><title>{label}</title></rect>'
        )
    count = len(summary.damaged)
    damaged = f"{count:,} damaged stretch{'' if count == 1 else 'es'}" if count else "no damage"
    return (
        f'<h2>Commit log: {damaged}</h2>\n<svg viewBox="0 0 {_WIDTH} 28" preserveAspectRatio="none" role="img"'
        ' aria-label="the log, damage marked">'
        f'<rect width="{_WIDTH}" height="28" fill="var(--good)" opacity=".55"/>{"".join(marks)}</svg>\n'
        f'<div class="scale"><span>{summary.log_begin:,}</span><span>{summary.log_end:,}</span></div>\n'
    )


def _findings(summary: AuditSummary) -> str:
    if not summary.findings:
        return "<h2>Findings</h2>\n<p>None: everything is in order.</p>\n"
    total = summary.errors + summary.warnings + summary.notes
    more = f" (the first {len(summary.findings):,} of {total:,})" if total > len(summary.findings) else ""
    head = (
        '<tr><th>Severity</th><th>Kind</th><th>Queue</th><th class="n">Offset</th><th class="n">Count</th>'
        "<th>What, where, and what next</th></tr>"
    )
    rows = "".join(map(_finding, summary.findings))
    return f'<h2>Findings{more}</h2>\n<div class="wide"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>\n'


def _finding(finding: "AuditFinding") -> str:
    queue = "" if finding.topic is None else escape(finding.topic) + ("" if finding.queue_id is None else f"/{finding.queue_id}")
    where = escape(finding.path) + (f", byte {finding.position:,}" if finding.position is not None else "")
    offset = "" if finding.queue_offset is None else f"{finding.queue_offset:,}"
    mark = {ERROR: "&#9679; error", WARNING: "&#9650; warning", NOTE: "&#9675; note"}[finding.severity]
    step = escape(finding.next_step)
    if finding.next_step.startswith("sprocketmq"):
        step = f"<code>{step}</code>"
    following = f'<div class="next">Next: {step}</div>' if step else ""
    return (
        f'<tr><td class="pill {finding.severity}">{mark}</td><td>{escape(finding.kind)}</td><td><code>{queue}</code></td>'
        f'<td class="n">{offset}</td><td class="n">{finding.count:,}</td>'
        f'<td>{escape(finding.what)}<div class="where"><code>{where}</code></div>{following}</td></tr>\n'
    )


def _queues(queues: tuple[QueueAudit, ...]) -> str:
    if not queues:
        return ""
    bad = [queue for queue in queues if not queue.ok]
    sound = [queue for queue in queues if queue.ok]
    rows = "".join(map(_queue, [*bad[:MAX_BAD_QUEUES], *sound[:MAX_SOUND_QUEUES]]))
    names = ("Messages", "Units", "Missing", "Wrong", "Orphans", "Gaps", "Twice")
    head = (
        "<tr><th>Queue</th><th>Kind</th><th>Offsets</th><th>With a unit</th>" + "".join(f'<th class="n">{n}</th>' for n in names) + "</tr>"
    )
    more = "".join(
        f"<p>{count:,} more queues {how}.</p>\n"
        for count, how in ((len(bad) - MAX_BAD_QUEUES, "have problems"), (len(sound) - MAX_SOUND_QUEUES, "are in order"))
        if count > 0
    )
    return f'<h2>Queues</h2>\n<div class="wide"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>\n{more}'


def _queue(queue: QueueAudit) -> str:
    share = (queue.messages - queue.missing) / queue.messages if queue.messages else 1.0
    good = max(min(share, 1.0), 0.0) * 100
    bar = (
        f'<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="{good:.0f} of 100">'
        f'<rect width="100" height="6" fill="{"var(--track)" if queue.missing == 0 else "var(--error)"}"/>'
        f'<rect width="{good:.2f}" height="6" fill="var(--good)"/></svg>'
    )
    numbers = "".join(
        f'<td class="n{" hot" if value else " zero"}">{value:,}</td>'
        for value in (queue.missing, queue.wrong, queue.orphans, queue.gaps, queue.duplicates)
    )
    return (
        f"<tr><td><code>{escape(queue.topic)}/{queue.queue_id}</code></td><td>{queue.kind}</td>"
        f'<td class="n">{queue.first_offset:,} &ndash; {queue.next_offset:,}</td><td>{bar}</td>'
        f'<td class="n">{queue.messages:,}</td><td class="n">{queue.units:,}</td>{numbers}</tr>\n'
    )


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
