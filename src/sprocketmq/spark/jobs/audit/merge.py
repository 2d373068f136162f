"""Merge the results of an audit's tasks in the driver: one view of each queue, and findings with a next step. Pure, without Spark.

Chains arrive in log order. When a queue continues at a later offset than expected, there is a gap; at an earlier one, offsets were given
twice. A single record with an unexpected offset, followed by the expected one, has a damaged header, which no checksum covers.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sprocketmq.spark.jobs.audit.facts import MAX_EXAMPLES, Chain, Difference, KeyFacts, QueueFacts, Range
from sprocketmq.storage.inspect.findings import ERROR, NOTE, WARNING
from sprocketmq.storage.log.segments import segment_name

# Differences of each queue that are reported; more are only counted.
MAX_DIFFERENCES = 1000
SEVERITIES = (ERROR, WARNING, NOTE)


def number(count: int, one: str, many: str) -> str:
    """Return a count with the singular or plural noun."""
    return f"{count:,} {one if count == 1 else many}"


@dataclass(frozen=True)
class AuditFinding:
    """One kind of problem with ``count`` cases: messages, units, keys or bytes, depending on the kind.

    ``queue_offset`` is that of the first message; ``path`` and ``position`` (a byte of that file) are where to look. Fields without meaning
    for the kind are None. ``next_step`` is a command, or what to do.
    """

    severity: str
    kind: str
    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    count: int
    path: str
    position: int | None
    what: str
    next_step: str


class Log(NamedTuple):
    """The log as read by the audit: log offsets ``[begin, end)``, and the stretches without records (file, begin, end)."""

    root: str
    begin: int
    end: int
    segment_bytes: int
    damaged: tuple[tuple[str, int, int], ...]

    def place(self, log_offset: int) -> tuple[str, int]:
        """Return the segment's path and the file position of a log offset."""
        start = log_offset - log_offset % self.segment_bytes if self.segment_bytes else 0
        return f"{self.root}/commitlog/{segment_name(start)}", log_offset - start

    def damaged_between(self, begin: int, end: int) -> tuple[str, int, int] | None:
        """Return the first stretch without records between two log offsets."""
        return next((found for found in self.damaged if begin <= found[1] and found[2] <= end), None)

    def inspect(self, log_offset: int) -> str:
        """Return the command that shows a log offset."""
        return f"sprocketmq inspect {shlex.quote(self.place(log_offset)[0])} --offset {log_offset}"

    def rebuild(self, only: str) -> str:
        """Return the command that rebuilds derived files."""
        return f"sprocketmq pipeline rebuild-index {shlex.quote(self.root)} --only {only}"


@dataclass
class AuditFindings:
    """Collects findings, at most ``MAX_EXAMPLES`` of each kind, and counts all of them."""

    found: list[AuditFinding] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, *findings: AuditFinding) -> None:
        """Add findings."""
        for one in findings:
            self.counts[one.severity, one.kind] += 1
            if self.counts[one.severity, one.kind] <= MAX_EXAMPLES:
                self.found.append(one)

    def sorted(self) -> tuple[AuditFinding, ...]:
        """Return the collected findings by severity, topic and queue."""
        return tuple(
            sorted(self.found, key=lambda f: (SEVERITIES.index(f.severity), f.topic or "", f.queue_id or 0, f.queue_offset or 0, f.kind))
        )

    def total(self, severity: str) -> int:
        """Return the number of findings of a severity, including those not collected."""
        return sum(count for (found, _), count in self.counts.items() if found == severity)


@dataclass
class QueueView:
    """One queue according to the log. ``met`` are the units with records, in log order; ``next`` is the next expected offset."""

    topic: str
    queue_id: int
    batch: bool
    first: int = 0
    next: int = 0
    records: int = 0
    messages: int = 0
    missing: int = 0
    wrong: int = 0
    gaps: int = 0
    duplicates: int = 0
    units: int = 0
    orphans: int = 0
    met: list[tuple[int, int]] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    findings: list[AuditFinding] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return "batchconsumequeue" if self.batch else "consumequeue"

    def finding(
        self, severity: str, kind: str, offset: int | None, count: int, where: tuple[str, int | None], what: str, next_step: str
    ) -> AuditFinding:
        """Return a finding about this queue."""
        return AuditFinding(severity, kind, self.topic, self.queue_id, offset, count, where[0], where[1], what, next_step)


@dataclass
class _Again:
    """Offsets that were given twice: from the range ``found`` up to ``high``."""

    found: Range
    high: int
    count: int = 0


class Merge:
    """Merges chains, which are added in log order."""

    def __init__(self, batch_topics: frozenset[str]) -> None:
        self._batch_topics = batch_topics
        self._facts: dict[tuple[str, int], list[QueueFacts]] = {}
        self._keys: list[KeyFacts] = []
        self.covered: list[tuple[int, int]] = []
        self.records = 0

    def take(self, chain: Chain) -> None:
        """Add the next chain."""
        self.records += chain.records
        if self.covered and self.covered[-1][1] == chain.start:
            self.covered[-1] = (self.covered[-1][0], chain.end)
        else:
            self.covered.append((chain.start, chain.end))
        for key, facts in chain.queues.items():
            self._facts.setdefault(key, []).append(facts)
        if chain.keys is not None:
            self._keys.append(chain.keys)

    @property
    def keys_met(self) -> int:
        """Number of keys that have their index entry."""
        return sum(facts.matched for facts in self._keys)

    def queues(self, log: Log) -> dict[tuple[str, int], QueueView]:
        """Return every queue with records, with what follows from the log alone."""
        return {key: self._queue(key, facts, log) for key, facts in sorted(self._facts.items())}

    def _queue(self, key: tuple[str, int], facts: list[QueueFacts], log: Log) -> QueueView:
        view = QueueView(*key, batch=key[0] in self._batch_topics)
        for one in facts:
            view.missing += one.missing
            view.wrong += one.wrong
            for difference in one.differences:
                last = view.differences[-1] if view.differences else None
                if last is not None and not last.actual and not difference.actual and last.next_offset == difference.offset:
                    view.differences[-1] = last._replace(next_offset=difference.next_offset)
                elif len(view.differences) < MAX_DIFFERENCES:
                    view.differences.append(difference)
        ranges = [found for one in facts for found in one.ranges]
        view.first = view.next = ranges[0].first
        last_log_offset = -1
        again: _Again | None = None
        for i, found in enumerate(ranges):
            following = ranges[i + 1] if i + 1 < len(ranges) else None
            view.records += found.records
            if found.first != view.next and found.records == 1 and following is not None and following.first == view.next + 1:
                self._damaged_header(view, found, log)
                view.next += 1
                view.messages += 1
                continue
            if found.first > view.next:
                self._gap(view, found, last_log_offset, log)
            elif found.first < view.next:
                if again is not None:
                    self._report_again(view, again, log)
                again = _Again(found, view.next)
                self._forget_from(view, found)
            if again is not None and found.first < again.high:
                again.count += min(again.high, found.next) - found.first
            view.messages += found.next - found.first
            view.next = found.next
            last_log_offset = found.last_log_offset
            if found.unit_end > found.unit:
                view.met.append((found.unit, found.unit_end))
        if again is not None:
            self._report_again(view, again, log)
        return view

    @staticmethod
    def _damaged_header(view: QueueView, found: Range, log: Log) -> None:
        what = (
            f"the record at {found.log_offset} says queue offset {found.first}, where {view.next} is due and the next one goes on from it"
        )
        view.findings.append(
            view.finding(ERROR, "damaged header", view.next, 1, log.place(found.log_offset), what, log.inspect(found.log_offset))
        )
        # The wrong unit was compared. The unit of the expected offset is classified later with the unmatched ones.
        view.differences = [d for d in view.differences if d.log_offset != found.log_offset]

    @staticmethod
    def _gap(view: QueueView, found: Range, last_log_offset: int, log: Log) -> None:
        count = found.first - view.next
        view.gaps += count
        damaged = log.damaged_between(max(last_log_offset, 0), found.log_offset)
        what = f"from offset {view.next} on {number(count, 'message is', 'messages are')} missing in the log"
        if damaged is not None:
            place = log.place(damaged[1])
            what += f": the log's bytes {damaged[1]} to {damaged[2]}, where they were, are damaged"
            step = "put a copy of the segment back (a slave has one), or have the producers send them again"
        else:
            place = log.place(found.log_offset)
            what += ", although nothing is damaged there"
            step = log.inspect(found.log_offset)
        view.findings.append(view.finding(ERROR, "gap", view.next, count, place, what, step))

    @staticmethod
    def _forget_from(view: QueueView, found: Range) -> None:
        """Drop the differences of units from a repeated range on: these units belong to the later messages."""
        gone = [d for d in view.differences if d.offset >= found.first and d.log_offset < found.log_offset]
        view.missing -= sum(d.next_offset - d.offset for d in gone if not d.actual)
        view.wrong -= sum(1 for d in gone if d.actual)
        view.differences = [d for d in view.differences if d not in gone]
        if not view.batch:
            view.met = [(a, min(b, found.first)) for a, b in view.met if a < found.first]

    @staticmethod
    def _report_again(view: QueueView, again: "_Again", log: Log) -> None:
        found = again.found
        deleted = found.first == 0
        view.duplicates += 0 if deleted else again.count
        given = number(again.count, "queue offset is", "queue offsets are")
        what = f"from offset {found.first} on {given} given to messages a second time"
        what += ", as after the topic was deleted and made again: only the later messages can be read" if deleted else ""
        step = "nothing, when the topic was deleted" if deleted else log.inspect(found.log_offset)
        severity = NOTE if deleted else ERROR
        view.findings.append(view.finding(severity, "duplicate", found.first, again.count, log.place(found.log_offset), what, step))

    def key_findings(self, log: Log, *, in_use: bool) -> Iterator[AuditFinding]:
        """Yield missing and surplus entries of the key index."""
        directory = f"{log.root}/index"
        repair = log.rebuild("index")
        examples = [one for facts in self._keys for one in facts.examples]
        orphans = sum(facts.orphans for facts in self._keys)
        for one in [one for one in examples if one.path][:MAX_EXAMPLES]:
            what = f"an entry (hash {one.hash}) points to {one.log_offset}, where no message has such a key"
            yield AuditFinding(ERROR, "orphan entry", None, None, None, orphans, one.path, one.at, what, repair)
        missing = sum(facts.missing for facts in self._keys)
        if missing:
            first = next(facts.places[0] for facts in self._keys if facts.missing)
            absent = number(missing, "key of a message is", "keys of messages are")
            what = f"{absent} not in the index, the first belongs to the message at {first}: queries miss them"
            yield AuditFinding(WARNING, "missing key", None, None, None, missing, *log.place(first), what, repair)
        for count, severity, kind, what in (
            (
                sum(facts.wrong_times for facts in self._keys),
                ERROR,
                "index time",
                "index entries with another time than their message has: queries by time may miss them",
            ),
            (
                sum(facts.missing_tags for facts in self._keys),
                NOTE,
                "index without tags",
                "tags of messages that are not in the index, as brokers before 5.5 leave them out",
            ),
            (
                sum(facts.before for facts in self._keys),
                NOTE,
                "index begins later",
                "keys of messages that are older than the oldest index file",
            ),
            (
                sum(facts.behind for facts in self._keys),
                NOTE if in_use else WARNING,
                "index behind",
                "keys of the newest messages that are not in the index yet",
            ),
        ):
            if count:
                step = "nothing: a running broker catches up" if in_use and kind == "index behind" else repair
                yield AuditFinding(severity, kind, None, None, None, count, directory, None, f"{count:,} {what}", step)


def unit_findings(view: QueueView, log: Log, places: Iterable[tuple[str, int | None]], *, in_use: bool) -> Iterator[AuditFinding]:
    """Yield missing and wrong units of a queue; ``places`` are (file, position) for each of the queue's ``differences``."""
    repair = log.rebuild(view.kind)
    for one, where in zip(view.differences, places, strict=True):
        if one.actual:
            what = f"unit {one.unit} says {one.actual}; its message has {one.expected}"
            yield view.finding(ERROR, "wrong unit", one.offset, 1, where, what, repair)
            continue
        count = one.next_offset - one.offset
        tail = one.next_offset >= view.next
        what = f"from offset {one.offset} on {number(count, 'message has', 'messages have')} no unit: consumers do not see them"
        if in_use and tail:
            step = "nothing: a running broker has them in memory, and a start catches up"
            yield view.finding(NOTE, "queue behind", one.offset, count, where, what, step)
        else:
            yield view.finding(ERROR, "missing unit", one.offset, count, where, what, repair)
