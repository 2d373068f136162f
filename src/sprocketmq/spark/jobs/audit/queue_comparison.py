"""Compare the units of queue files with those that follow from the log, in arrays."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.layout import BATCH_UNIT_BYTES, FILLER_SIZE, LOWEST_TAGS_CODE, QUEUE_UNIT_BYTES
from sprocketmq.spark.jobs.audit.facts import MAX_EXAMPLES, Difference, QueueFacts, Range
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.inspect.queue_check import Ranges
from sprocketmq.storage.inspect.queue_units import OpenFiles, QueueUnits
from sprocketmq.storage.log.segments import segment_entries, segment_size_of


class QueueComparison:
    """Compares the records of one chain with the units of one queue."""

    def __init__(self) -> None:
        self._ranges: list[Range] = []
        self._differences: list[Difference] = []
        self._missing = self._wrong = 0

    def facts(self) -> QueueFacts:
        """Return the results so far."""
        return QueueFacts(self._ranges, self._differences, self._missing, self._wrong)

    def _add(self, new: Range) -> None:
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last.next == new.first and last.unit_end == new.unit:
            records = last.records + new.records
            self._ranges[-1] = last._replace(next=new.next, unit_end=new.unit_end, last_log_offset=new.last_log_offset, records=records)
        else:
            self._ranges.append(new)

    def _differs(self, difference: Difference) -> None:
        if difference.actual:
            self._wrong += 1
        else:
            self._missing += difference.next_offset - difference.offset
            last = self._differences[-1] if self._differences else None
            if last is not None and not last.actual and last.next_offset == difference.offset:
                self._differences[-1] = last._replace(next_offset=difference.next_offset)
                return
        if len(self._differences) < MAX_EXAMPLES:
            self._differences.append(difference)

    def compare_plain(self, check: QueueUnits, files: OpenFiles, first: int, units: NDArray[Any], *, codes: bool) -> None:
        """Compare the units in the files from queue offset ``first`` with those that follow from the log."""
        count = len(units)
        found = check.read(files, first, count)
        log_offsets = units["log_offset"]
        self._add(Range(first, first + count, first, first + count, int(log_offsets[0]), int(log_offsets[-1]), count))
        if codes and found.tobytes() == units.tobytes():
            return
        same = (found["log_offset"] == log_offsets) & (found["size"] == units["size"])
        if codes:
            same &= (found["tags_code"] == units["tags_code"]) | (found["tags_code"] < LOWEST_TAGS_CODE)
        for i in np.flatnonzero(~same).tolist():
            unit, expected = found[i], units[i]
            actual = ""
            if unit["size"] not in (0, FILLER_SIZE):
                actual = f"log offset {unit['log_offset']}, size {unit['size']}, tag code {unit['tags_code']}"
            due = f"log offset {expected['log_offset']}, size {expected['size']}, tag code {expected['tags_code'] if codes else 'any'}"
            self._differs(Difference(first + i, first + i + 1, first + i, int(expected["log_offset"]), actual, due))

    def compare_batch(self, check: QueueUnits, files: OpenFiles, units: NDArray[Any], next_offset: int) -> None:
        """Compare the units of consecutive records of a batch queue with those that follow from the log."""
        count = len(units)
        start = self._ranges[-1].unit_end if self._ranges and self._ranges[-1].next == int(units["queue_offset"][0]) else -1
        if start < 0:
            start = check.unit_at(files, int(units["log_offset"][0]))
        found = check.read(files, start, count)
        base, log_offset = int(units["queue_offset"][0]), int(units["log_offset"][0])
        if all((found[name] == units[name]).all() for name in _COMPARED):
            self._add(Range(base, next_offset, start, start + count, log_offset, int(units["log_offset"][-1]), count))
            return
        number = start
        for expected in units:
            base, covered, log_offset = int(expected["queue_offset"]), int(expected["count"]), int(expected["log_offset"])
            unit = check.read(files, number, 1)[0]
            if unit["log_offset"] != log_offset or unit["size"] <= 0:
                number = check.unit_at(files, log_offset)
                unit = check.read(files, number, 1)[0]
            there = unit["log_offset"] == log_offset and unit["size"] > 0
            self._add(Range(base, base + covered, number, number + there, log_offset, log_offset, 1))
            if not there:
                self._differs(Difference(base, base + covered, -1, log_offset, "", f"log offset {log_offset}"))
                continue
            names = [name for name in _COMPARED if unit[name] != expected[name]]
            if names:
                actual, due = (", ".join(f"{name} {row[name]}" for name in names) for row in (unit, expected))
                self._differs(Difference(base, base + covered, number, log_offset, actual, due))
            number += 1


# Fields of a batch unit that follow from its record.
_COMPARED = ("log_offset", "size", "tags_code", "store_time_ms", "queue_offset", "count")


def open_queue(fs: FileSystem, root: str, topic: str, queue_id: int, *, batch: bool) -> QueueUnits:
    """Return the files of a queue for reading; without files when there are none."""
    directory = f"{root}/{'batchconsumequeue' if batch else 'consumequeue'}/{topic}/{queue_id}"
    found = segment_entries(fs.list(directory))
    size = segment_size_of(found) or 0
    if size % (BATCH_UNIT_BYTES if batch else QUEUE_UNIT_BYTES):
        found, size = [], 0
    files = {start: min(entry.size, size) for start, entry in found if size and not start % size}
    return QueueUnits(topic, queue_id, directory, files, size, batch=batch)


class Others(NamedTuple):
    """Units without a record in the log, by problem: their count, and the number of the first.

    ``lost`` point into stretches without records, ``ahead`` behind the log's end, ``orphans`` to a log offset without a message of the
    queue. ``used`` counts all units that are neither empty, filler nor expired.
    """

    used: int
    lost: tuple[int, int]
    ahead: tuple[int, int]
    orphans: tuple[int, int]


def other_units(
    check: QueueUnits, files: OpenFiles, met: Iterable[tuple[int, int]], log: tuple[int, int], lost: Iterable[tuple[int, int]]
) -> Others:
    """Classify the units outside the ranges ``met``. ``log`` are the first and end offset of the log. Raises OSError."""
    ranges = Ranges()
    used = 0
    for start, stop in met:
        ranges.pairs.append([start, stop])
        used += stop - start
    kinds: dict[str, tuple[int, int]] = {"lost": (0, -1), "ahead": (0, -1), "orphans": (0, -1)}
    for start, stop in ranges.outside(check.count):
        for at, units in check.written(files, start, stop):
            place, size = units["log_offset"].astype(np.int64), units["size"]
            is_used = ((size != 0) | (place != 0)) & ((size != FILLER_SIZE) | (place != 0))
            is_used &= (place >= log[0]) | (place < 0) | (size < 0)
            if not is_used.any():
                continue
            used += int(is_used.sum())
            is_lost = np.zeros(len(units), np.bool_)
            for begin, end in lost:
                is_lost |= is_used & (place >= begin) & (place < end)
            is_ahead = is_used & ~is_lost & (place >= log[1])
            for kind, which in (("lost", is_lost), ("ahead", is_ahead), ("orphans", is_used & ~is_lost & ~is_ahead)):
                count, first = kinds[kind]
                if which.any():
                    kinds[kind] = count + int(which.sum()), at + int(np.argmax(which)) if first < 0 else first
    return Others(used, kinds["lost"], kinds["ahead"], kinds["orphans"])
