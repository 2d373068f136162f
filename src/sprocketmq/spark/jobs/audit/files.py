"""The second round of an audit: find units and index entries without a record in the log. Without Spark."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from sprocketmq.spark.jobs.audit.merge import AuditFinding, Log, QueueView, number, unit_findings
from sprocketmq.spark.jobs.audit.queue_comparison import open_queue, other_units
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.inspect.findings import ERROR, NOTE, Findings
from sprocketmq.storage.inspect.index_file_check import IndexFileCheck
from sprocketmq.storage.inspect.queue_units import OpenFiles
from sprocketmq.storage.log.segments import segment_entries, segment_name, segment_size_of

_COPY = "put a copy of the log's segment back (a slave has one)"


class QueueCheckResult(NamedTuple):
    """The used units of a queue's files, the number of units without a message, and findings."""

    units: int
    orphans: int
    findings: list[AuditFinding]


def check_queue_files(fs: FileSystem, view: QueueView, log: Log, *, in_use: bool) -> QueueCheckResult:
    """Check the files of a queue after its records were compared. Raises OSError."""
    check = open_queue(fs, log.root, view.topic, view.queue_id, batch=view.batch)
    files = OpenFiles(fs)
    try:
        places: list[tuple[str, int | None]] = [
            check.locate(one.unit) if one.unit >= 0 else (check.directory, None) for one in view.differences
        ]
        findings = list(unit_findings(view, log, places, in_use=in_use))
        findings += _row_findings(fs, view, check.directory, log, in_use=in_use)
        others = other_units(check, files, view.met, (log.begin, log.end), [(begin, end) for _, begin, end in log.damaged])
        for (count, first), severity, kind, what in (
            (others.lost, ERROR, "lost message", "into the damaged part of the log: what was there is lost"),
            (others.ahead, NOTE if in_use else ERROR, "unit ahead", f"behind the log's end at {log.end}"),
            (others.orphans, ERROR, "orphan unit", "to where none of the queue's messages is"),
        ):
            if count:
                offset = int(check.read(files, first, 1)[0]["queue_offset"]) if view.batch else first
                step = "nothing: a start sees to it" if severity == NOTE else log.rebuild(view.kind)
                if kind == "lost message":
                    step = f"{_COPY}, else {step}"
                findings.append(
                    view.finding(
                        severity, kind, offset, count, check.locate(first), f"{number(count, 'unit points', 'units point')} {what}", step
                    )
                )
        # Comparison of plain queues counts expected units, including missing ones.
        used = others.used - (0 if view.batch else view.missing)
        return QueueCheckResult(used, others.orphans[0], findings)
    finally:
        files.close()


def _row_findings(fs: FileSystem, view: QueueView, directory: str, log: Log, *, in_use: bool) -> list[AuditFinding]:
    """Return problems of the sequence of queue files: a missing file, or one with another length."""
    found = segment_entries(fs.list(directory))
    size = segment_size_of(found) or 0
    repair = log.rebuild(view.kind)
    unit_bytes = 46 if view.batch else 20
    if size % unit_bytes:
        what = f"files of {size} bytes cannot hold units of {unit_bytes}"
        return [view.finding(ERROR, "queue files", None, len(found), (directory, None), what, repair)]
    findings = []
    expected = found[0][0] if found else 0
    for start, entry in found:
        if start != expected:
            what = f"the file for byte {expected} of the queue is missing, the next one is {entry.name}"
            missing = (f"{directory}/{segment_name(expected)}", None)
            findings.append(view.finding(ERROR, "queue files", None, 1, missing, what, repair))
        if entry.size != size and not (in_use and start == found[-1][0]):
            what = f"the file has {entry.size:,} bytes where this queue's files have {size:,}"
            where = (f"{directory}/{entry.name}", min(entry.size, size))
            findings.append(view.finding(ERROR, "queue files", None, 1, where, what, repair))
        expected = start + size
    return findings


def check_index_file(
    fs: FileSystem, path: str, log: Log, covered: Iterable[tuple[int, int]], *, slots: int | None, in_use: bool
) -> list[AuditFinding]:
    """Check an index file by itself, and that its entries point to records. Raises OSError.

    ``covered`` are the stretches of the log with records, in order.
    """
    own = Findings()
    check = IndexFileCheck(fs, path, own, log.rebuild("index"), slots=slots)
    borders = np.array([border for pair in covered for border in pair], np.int64)
    ahead = lost = 0
    first_ahead = first_lost = -1
    for first, entries in check.chunks():
        places = entries["log_offset"].astype(np.int64)
        is_ahead = places >= log.end
        # With an odd number of borders before it, the log offset lies in a stretch with records.
        is_lost = (places >= log.begin) & ~is_ahead & (np.searchsorted(borders, places, "right") % 2 == 0)
        if is_ahead.any():
            first_ahead = first + int(np.argmax(is_ahead)) if first_ahead < 0 else first_ahead
            ahead += int(is_ahead.sum())
        if is_lost.any():
            first_lost = first + int(np.argmax(is_lost)) if first_lost < 0 else first_lost
            lost += int(is_lost.sum())
    check.finish()
    findings = [
        AuditFinding(found.severity, found.kind, None, None, None, 1, found.path or path, found.offset, found.what, found.repair)
        for found in own.sorted()
    ]
    repair = log.rebuild("index")
    if ahead:
        severity, step = (NOTE, "nothing: a start sees to it") if in_use else (ERROR, repair)
        what = f"{number(ahead, 'entry points', 'entries point')} behind the log's end at {log.end}"
        findings.append(AuditFinding(severity, "index ahead", None, None, None, ahead, path, check.entry_at(first_ahead), what, step))
    if lost:
        what = f"{number(lost, 'entry points', 'entries point')} into the damaged part of the log: what was there is lost"
        step = f"{_COPY}, else {repair}"
        findings.append(AuditFinding(ERROR, "lost key", None, None, None, lost, path, check.entry_at(first_lost), what, step))
    return findings
