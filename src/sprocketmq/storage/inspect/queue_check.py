"""Comparing the units of one queue with the records of the log, and reporting what is left. Loads numpy."""

import shlex
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.layout import FILLER_SIZE, LOWEST_TAGS_CODE
from sprocketmq.storage.inspect.findings import ERROR, NOTE, Findings
from sprocketmq.storage.inspect.queue_units import OpenFiles, QueueUnits

# Ranges remembered for each queue; a sound queue has one.
MAX_RANGES = 1000

# The fields of a batch unit that follow from its record.
_JUDGED = ("log_offset", "size", "tags_code", "store_time_ms", "queue_offset", "count")
_Longs = NDArray[np.int64]


class Ranges:
    """Ranges ``[start, stop)``, added in order; beyond ``MAX_RANGES`` the last one is extended instead."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: list[list[int]] = []

    def add(self, start: int, stop: int) -> None:
        if self.pairs and (start == self.pairs[-1][1] or len(self.pairs) >= MAX_RANGES):
            self.pairs[-1][1] = max(stop, self.pairs[-1][1])
        else:
            self.pairs.append([start, stop])

    def cut(self, stop: int) -> None:
        """Remove everything from ``stop`` on."""
        self.pairs = [[a, min(b, stop)] for a, b in self.pairs if a < stop]

    def outside(self, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[0, end)`` that no range covers."""
        covered = 0
        for start, stop in sorted(self.pairs):
            if covered < start:
                yield covered, min(start, end)
            covered = max(covered, stop)
        if covered < end:
            yield covered, end


class QueueCheck:
    """One queue under comparison. ``next_offset`` is the queue offset after the last record seen, None before the first."""

    __slots__ = ("_last_log_offset", "_met", "_missing", "_next_unit", "_problems", "next_offset", "units")

    def __init__(self, units: QueueUnits) -> None:
        self.units = units
        self.next_offset: int | None = None
        self._last_log_offset = -1  # of the first record in the last run of records without a gap
        self._next_unit: int | None = None  # of a batch queue: the unit that should come next
        self._met = Ranges()
        self._missing = Ranges()
        self._problems: list[tuple[int, str]] = []

    @property
    def name(self) -> str:
        return f"{self.units.topic}/{self.units.queue_id}"

    # --- records, in log order ---

    def continue_at(self, first: int, log_offset: int, damaged_from: int, findings: Findings, place: tuple[str, int]) -> None:
        """Record that the next record has queue offset ``first``, which may be the one due, an earlier one or a later one.

        ``damaged_from`` is where the last damage of the log began, -1 without any: queue offsets may be missing after it. ``place`` is the
        record's path and file position.
        """
        due, before = self.next_offset, self._last_log_offset
        self.next_offset, self._last_log_offset = first, log_offset
        if due is None or first == due:
            return
        if first < due:
            # Queue offsets are assigned again, as after the deletion of a topic: earlier records no longer have units.
            self._problems = [p for p in self._problems if p[0] < first]
            self._missing.cut(first)
            if self.units.batch:
                self._next_unit = None
            else:
                self._met.cut(first)
        elif damaged_from < before:
            path, file_pos = place
            what = f"queue {self.name} continues at offset {first}, but {due} is due: the messages between are missing in the log"
            findings.add(ERROR, "offset gap", path, file_pos, what, f"sprocketmq inspect {shlex.quote(path)} --offset {log_offset}")

    def compare_plain(self, files: OpenFiles, first: int, log_offsets: _Longs, sizes: _Longs, codes: _Longs | None) -> None:
        """Compare the units from queue offset ``first`` on with those expected; with ``codes`` None, tag codes are not compared."""
        count = len(log_offsets)
        self.next_offset = first + count
        found = self.units.read(files, first, count)
        same = (found["log_offset"] == log_offsets) & (found["size"] == sizes)
        if codes is not None:
            same &= (found["tags_code"] == codes) | (found["tags_code"] < LOWEST_TAGS_CODE)
        self._met.add(first, first + count)
        if same.all():
            return
        for i in np.flatnonzero(~same).tolist():
            unit = found[i]
            if unit["size"] == 0 or unit["size"] == FILLER_SIZE:
                self._missing.add(first + i, first + i + 1)
            else:
                expected = f"log offset {log_offsets[i]}, size {sizes[i]}, tag code {'any' if codes is None else codes[i]}"
                self._differs(first + i, f"log offset {unit['log_offset']}, size {unit['size']}, tag code {unit['tags_code']}", expected)

    def compare_batch(
        self, files: OpenFiles, bases: _Longs, counts: _Longs, log_offsets: _Longs, sizes: _Longs, codes: _Longs, times_ms: _Longs
    ) -> None:
        """Compare the units of consecutive records of a batch queue with those expected."""
        self.next_offset = int(bases[-1] + counts[-1])
        if self._next_unit is None:
            self._next_unit = self.units.unit_at(files, int(log_offsets[0]))
        found = self.units.read(files, self._next_unit, len(bases))
        same = (found["log_offset"] == log_offsets) & (found["size"] == sizes) & (found["tags_code"] == codes)
        same &= (found["store_time_ms"] == times_ms) & (found["queue_offset"] == bases) & (found["count"] == counts)
        if same.all():
            self._met.add(self._next_unit, self._next_unit + len(bases))
            self._next_unit += len(bases)
            return
        for i in range(len(bases)):
            expected = (int(log_offsets[i]), int(sizes[i]), int(codes[i]), int(times_ms[i]), int(bases[i]), int(counts[i]))
            number = self._next_unit
            unit = self.units.read(files, number, 1)[0]
            if unit["log_offset"] != expected[0] or unit["size"] <= 0:
                number = self.units.unit_at(files, expected[0])
                unit = self.units.read(files, number, 1)[0]
            if unit["log_offset"] != expected[0] or unit["size"] <= 0:
                self._missing.add(expected[4], expected[4] + expected[5])
                continue
            self._met.add(number, number + 1)
            self._next_unit = number + 1
            names = ("log offset", "size", "tag code", "store time", "base", "count")
            actual = tuple(int(unit[name]) for name in _JUDGED)
            if actual != expected:
                differing = [k for k in range(6) if actual[k] != expected[k]]
                said = ", ".join(f"{names[k]} {actual[k]}" for k in differing)
                self._differs(number, said, ", ".join(f"{names[k]} {expected[k]}" for k in differing))

    def _differs(self, unit: int, said: str, expected: str) -> None:
        if len(self._problems) < MAX_RANGES:
            self._problems.append((unit, f"unit {unit} of {self.name} says {said}, its record has {expected}"))

    # --- at the end ---

    def finish(self, files: OpenFiles, context: "QueueJudgement") -> None:
        """Report units that differ, are missing, or have no record."""
        findings, repair = context.findings, context.repair(self.units.batch)
        for unit, what in self._problems:
            findings.add(ERROR, "wrong unit", *self.units.locate(unit), what, repair)
        end = self.next_offset or 0
        for start, stop in self._missing.pairs:
            path, file_pos = self.units.locate(start) if not self.units.batch else (self.units.directory, None)
            if stop == end and context.in_use:
                context.behind(self.units.batch, stop - start)
            else:
                what = f"messages {start} to {stop - 1} of queue {self.name} have no unit"
                findings.add(ERROR, "missing unit", path, file_pos, what, repair)
        for start, stop in self._met.outside(self.units.count):
            self._check_others(files, context, start, stop)

    def _check_others(self, files: OpenFiles, context: "QueueJudgement", start: int, stop: int) -> None:
        """Check units that no record in the log has: expired, filler and empty ones are allowed."""
        beyond = lost = wrong = 0
        first_beyond = first_wrong = -1
        for number, units in self.units.written(files, start, stop):
            log_offset = units["log_offset"].astype(np.int64)
            size = units["size"]
            used = ((size != 0) | (log_offset != 0)) & ((size != FILLER_SIZE) | (log_offset != 0))
            used &= (log_offset >= context.log_min) | (log_offset < 0) | (size < 0)
            if not used.any():
                continue
            in_lost = np.zeros(len(units), bool)
            for a, b in context.lost:
                in_lost |= used & (log_offset >= a) & (log_offset < b)
            is_beyond = used & ~in_lost & (log_offset >= context.log_end)
            is_wrong = used & ~in_lost & ~is_beyond
            lost += int(in_lost.sum())
            if is_beyond.any():
                first_beyond = number + int(np.argmax(is_beyond)) if first_beyond < 0 else first_beyond
                beyond += int(is_beyond.sum())
            if is_wrong.any():
                first_wrong = number + int(np.argmax(is_wrong)) if first_wrong < 0 else first_wrong
                wrong += int(is_wrong.sum())
        repair = context.repair(self.units.batch)
        if lost:
            what = f"{lost:,} units of queue {self.name} point into the damaged part of the log: those messages are lost"
            context.findings.add(ERROR, "lost messages", *self.units.locate(start), what, repair)
        if beyond:
            what = f"{beyond:,} units of queue {self.name} point behind the log's end at {context.log_end}"
            severity = NOTE if context.in_use else ERROR
            context.findings.add(severity, "unit ahead", *self.units.locate(first_beyond), what, "" if context.in_use else repair)
        if wrong:
            what = f"{wrong:,} units of queue {self.name} point to where none of its messages is"
            context.findings.add(ERROR, "orphan unit", *self.units.locate(first_wrong), what, repair)


class QueueJudgement:
    """The shared context for the final findings of all queues, and the number of queues that are behind."""

    def __init__(self, root: str, findings: Findings, *, log_min: int, log_end: int, lost: list[tuple[int, int]], in_use: bool) -> None:
        self.root = root
        self.findings = findings
        self.log_min = log_min
        self.log_end = log_end
        self.lost = lost
        self.in_use = in_use
        self._behind = {False: [0, 0], True: [0, 0]}

    def behind(self, batch: bool, messages: int) -> None:
        """Record that the files of a queue lack its last messages, as those of a running broker do."""
        self._behind[batch][0] += 1
        self._behind[batch][1] += messages

    def report_behind(self) -> None:
        """Report in one finding each how many plain and batch queues are behind."""
        for batch, (queues, messages) in self._behind.items():
            if queues:
                what = (
                    f"the files of {queues:,} queues are {messages:,} messages behind the log: "
                    "a running broker has them in memory, a start catches up"
                )
                path = f"{self.root}/{'batchconsumequeue' if batch else 'consumequeue'}"
                self.findings.add(NOTE, "queues behind", path, None, what)

    def repair(self, batch: bool) -> str:
        """Return the command that rebuilds the queues."""
        return f"sprocketmq rebuild {shlex.quote(self.root)} --only {'batchconsumequeue' if batch else 'consumequeue'}"
