"""Comparing queues with the log: every record must have its unit, every unit its record. Import it late: it brings numpy.

Records come in windows, in log order. The units a window's records should have are compared with those in the files in one go for each
queue; which units were met is remembered as ranges, and at the end what lies outside them is looked at.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.codes import SYSFLAG_INNER_BATCH, SYSFLAG_TRANSACTION_COMMITTED, SYSFLAG_TRANSACTION_MASK
from sprocketmq.protocol.hashing import tags_code_raw
from sprocketmq.protocol.layout import FILLER_SIZE
from sprocketmq.protocol.names import MAX_INTERNAL_TOPIC_LENGTH, SCHEDULE_TOPIC, name_problem
from sprocketmq.protocol.properties import find_property
from sprocketmq.storage.fs import File, FileSystem
from sprocketmq.storage.inspect.findings import ERROR, NOTE, WARNING, Findings
from sprocketmq.storage.inspect.log_windows import Window, groups_of
from sprocketmq.storage.inspect.overview import StoreDirectory
from sprocketmq.storage.layout_arrays import BATCH_UNIT_DTYPE, QUEUE_UNIT_DTYPE
from sprocketmq.storage.log.segments import segment_entries, segment_name, segment_size_of

# Queues whose state is kept; a log that names more is not one that a broker wrote.
MAX_QUEUES = 200_000
# Ranges remembered for each queue; one is what a sound queue has.
MAX_RANGES = 1000
MAX_OPEN_FILES = 128
# The fields of a batch unit that follow from its record.
_JUDGED = ("log_offset", "size", "tags_code", "store_time_ms", "queue_offset", "count")
_CHUNK_UNITS = 1 << 15
_MAX_HOLE_UNITS = 4096

# Smaller tag codes are addresses in consumequeue_ext.
_LOWEST_TAG_CODE = -(1 << 31)
_SCHEDULE = SCHEDULE_TOPIC.encode()
_Longs = NDArray[np.int64]


class OpenFiles:
    """The most recently read files, open for reading only."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._files: OrderedDict[str, File] = OrderedDict()

    def read(self, path: str, length: int, at: int) -> bytes:
        file = self._files.get(path)
        if file is None:
            self._files[path] = file = self._fs.open(path, read_only=True)
            if len(self._files) > MAX_OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        else:
            self._files.move_to_end(path)
        return file.pread(length, at)

    def data_after(self, path: str, at: int) -> int | None:
        """Return where the file's first data at or after ``at`` is, as far as the system knows; None behind the last."""
        self.read(path, 1, at)
        return self._files[path].data_after(at)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class Ranges:
    """Ranges ``[start, stop)`` that grow at their end; past ``MAX_RANGES`` the last two become one."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: list[list[int]] = []

    def add(self, start: int, stop: int) -> None:
        if self.pairs and (start == self.pairs[-1][1] or len(self.pairs) >= MAX_RANGES):
            self.pairs[-1][1] = max(stop, self.pairs[-1][1])
        else:
            self.pairs.append([start, stop])

    def cut(self, stop: int) -> None:
        """Forget everything from ``stop`` on."""
        self.pairs = [[a, min(b, stop)] for a, b in self.pairs if a < stop]

    def outside(self, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of [0, end) that are not in here, which must not overlap."""
        at = 0
        for a, b in sorted(self.pairs):
            if at < a:
                yield at, min(a, end)
            at = max(at, b)
        if at < end:
            yield at, end


class QueueCheck:
    """One queue under comparison. ``next`` is the queue offset behind the last record seen, None before the first."""

    __slots__ = (
        "_missing",
        "_problems",
        "batch",
        "cursor",
        "directory",
        "file_bytes",
        "files",
        "last",
        "met",
        "next",
        "queue_id",
        "topic",
        "unit",
    )

    def __init__(self, topic: str, queue_id: int, directory: str, files: dict[int, int], file_bytes: int, *, batch: bool) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.directory = directory
        self.files = files
        self.file_bytes = file_bytes
        self.batch = batch
        self.unit = BATCH_UNIT_DTYPE if batch else QUEUE_UNIT_DTYPE
        self.next: int | None = None
        self.last = -1  # where the last row of records without a gap began
        self.cursor: int | None = None  # the unit of a batch queue that should come next
        self.met = Ranges()
        self._missing = Ranges()
        self._problems: list[tuple[int, str]] = []

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.queue_id}"

    @property
    def units(self) -> int:
        """How many units the files have room for, counted from the beginning of the queue's stream."""
        return max((start + size for start, size in self.files.items()), default=0) // self.unit.itemsize

    def place(self, unit: int) -> tuple[str, int]:
        """Return the path and the byte in it where a unit is."""
        at = unit * self.unit.itemsize
        start = at - at % self.file_bytes if self.file_bytes else 0
        return f"{self.directory}/{segment_name(start)}", at - start

    def read(self, files: OpenFiles, first: int, count: int) -> NDArray[Any]:
        """Return ``count`` units from number ``first`` on; zeros where there is no file."""
        at, end = first * self.unit.itemsize, (first + count) * self.unit.itemsize
        parts = []
        while at < end:
            start = at - at % self.file_bytes if self.file_bytes else at
            stop = min(end, start + self.file_bytes) if self.file_bytes else end
            data = files.read(f"{self.directory}/{segment_name(start)}", stop - at, at - start) if start in self.files else b""
            parts.append(data.ljust(stop - at, b"\0"))
            at = stop
        return np.frombuffer(b"".join(parts), self.unit)

    # --- records, in log order ---

    def continue_at(self, first: int, physical: int, lost: int, findings: Findings, log_path: tuple[str, int]) -> None:
        """Take note that the next record has queue offset ``first``: the one that is due, an earlier one, or a later one.

        ``lost`` is where the last damage of the log began; -1 for none: offsets may be missing behind it.
        """
        due, before = self.next, self.last
        self.next, self.last = first, physical
        if due is None or first == due:
            return
        if first < due:
            # Offsets given out again, as after the deletion of a topic: what came before has no units any more.
            self._problems = [p for p in self._problems if p[0] < first]
            self._missing.cut(first)
            if self.batch:
                self.cursor = None
            else:
                self.met.cut(first)
        elif lost < before:
            path, at = log_path
            what = f"queue {self.name} goes on at offset {first}, but {due} is due: the messages between are missing in the log"
            findings.add(ERROR, "offset gap", path, at, what, f"sprocketmq inspect {path} --offset {physical}")

    def compare_plain(self, files: OpenFiles, first: int, physicals: _Longs, sizes: _Longs, codes: _Longs | None) -> None:
        """Compare the units from queue offset ``first`` on with what they should be; ``codes`` None leaves the tag codes alone."""
        count = len(physicals)
        self.next = first + count
        found = self.read(files, first, count)
        same = (found["log_offset"] == physicals) & (found["size"] == sizes)
        if codes is not None:
            same &= (found["tags_code"] == codes) | (found["tags_code"] < _LOWEST_TAG_CODE)
        self.met.add(first, first + count)
        if same.all():
            return
        for i in np.flatnonzero(~same).tolist():
            unit = found[i]
            if unit["size"] == 0 or unit["size"] == FILLER_SIZE:
                self._missing.add(first + i, first + i + 1)
            else:
                expected = f"place {physicals[i]}, size {sizes[i]}, tag code {'any' if codes is None else codes[i]}"
                self._differs(first + i, f"place {unit['log_offset']}, size {unit['size']}, tag code {unit['tags_code']}", expected)

    def compare_batch(
        self, files: OpenFiles, bases: _Longs, counts: _Longs, physicals: _Longs, sizes: _Longs, codes: _Longs, times_ms: _Longs
    ) -> None:
        """Compare the units of consecutive records of a batch queue with what they should be."""
        self.next = int(bases[-1] + counts[-1])
        if self.cursor is None:
            self.cursor = self.unit_at(files, int(physicals[0]))
        found = self.read(files, self.cursor, len(bases))
        same = (found["log_offset"] == physicals) & (found["size"] == sizes) & (found["tags_code"] == codes)
        same &= (found["store_time_ms"] == times_ms) & (found["queue_offset"] == bases) & (found["count"] == counts)
        if same.all():
            self.met.add(self.cursor, self.cursor + len(bases))
            self.cursor += len(bases)
            return
        for i in range(len(bases)):
            expected = (int(physicals[i]), int(sizes[i]), int(codes[i]), int(times_ms[i]), int(bases[i]), int(counts[i]))
            number = self.cursor
            unit = self.read(files, number, 1)[0]
            if unit["log_offset"] != expected[0] or unit["size"] <= 0:
                number = self.unit_at(files, expected[0])
                unit = self.read(files, number, 1)[0]
            if unit["log_offset"] != expected[0] or unit["size"] <= 0:
                self._missing.add(expected[4], expected[4] + expected[5])
                continue
            self.met.add(number, number + 1)
            self.cursor = number + 1
            names = ("place", "size", "tag code", "store time", "base", "count")
            actual = tuple(int(unit[name]) for name in _JUDGED)
            if actual != expected:
                differing = [k for k in range(6) if actual[k] != expected[k]]
                said = ", ".join(f"{names[k]} {actual[k]}" for k in differing)
                self._differs(number, said, ", ".join(f"{names[k]} {expected[k]}" for k in differing))

    def unit_at(self, files: OpenFiles, physical: int) -> int:
        """Return the number of the first unit whose record is at or behind a log position.

        Empty units count as if they were not there, up to ``_MAX_HOLE_UNITS`` in a row; longer rows of them are behind everything.
        """
        low, high = min(self.files, default=0) // self.unit.itemsize, self.units
        end = high
        while low < high:
            middle = (low + high) // 2
            found, unit = self._first_used(files, middle, high)
            if unit is not None and unit["log_offset"] < physical:
                low = found + 1
            else:
                high = middle
        found, unit = self._first_used(files, low, end)
        return low if unit is None else found

    def _first_used(self, files: OpenFiles, start: int, stop: int) -> tuple[int, Any]:
        """Return number and content of the first unit from ``start`` on that is not empty, None as content when there is none near."""
        unit = self.read(files, start, 1)[0] if start < stop else None
        if unit is None or unit["size"] > 0:
            return start, unit
        units = self.read(files, start, min(_MAX_HOLE_UNITS, stop - start))
        used = np.flatnonzero(units["size"] > 0)
        return (start + int(used[0]), units[used[0]]) if len(used) else (start, None)

    def _differs(self, unit: int, said: str, expected: str) -> None:
        if len(self._problems) < MAX_RANGES:
            self._problems.append((unit, f"unit {unit} of {self.name} says {said}, its record has {expected}"))

    # --- at the end ---

    def finish(self, files: OpenFiles, context: "_Context") -> None:
        """Report what differs, what is missing and what is there without a record."""
        findings, repair = context.findings, context.repair(self.batch)
        for unit, what in self._problems:
            findings.add(ERROR, "wrong unit", *self.place(unit), what, repair)
        end = self.next or 0
        for start, stop in self._missing.pairs:
            path, at = self.place(start) if not self.batch else (self.directory, None)
            if stop == end and context.in_use:
                context.behind(self.batch, stop - start)
            else:
                what = f"messages {start} to {stop - 1} of queue {self.name} have no unit"
                findings.add(ERROR, "missing unit", path, at, what, repair)
        for start, stop in self.met.outside(self.units):
            self._check_others(files, context, start, stop)

    def _check_others(self, files: OpenFiles, context: "_Context", start: int, stop: int) -> None:
        """Look at units that no record in the log has: expired, filler and empty ones are as they should be."""
        beyond = lost = wrong = 0
        first_beyond = first_wrong = -1
        for at, units in self.written(files, start, stop):
            place = units["log_offset"].astype(np.int64)
            size = units["size"]
            used = ((size != 0) | (place != 0)) & ((size != FILLER_SIZE) | (place != 0))
            used &= (place >= context.log_min) | (place < 0) | (size < 0)
            if not used.any():
                continue
            in_lost = np.zeros(len(units), bool)
            for a, b in context.lost:
                in_lost |= used & (place >= a) & (place < b)
            is_beyond = used & ~in_lost & (place >= context.log_end)
            is_wrong = used & ~in_lost & ~is_beyond
            lost += int(in_lost.sum())
            if is_beyond.any():
                first_beyond = at + int(np.argmax(is_beyond)) if first_beyond < 0 else first_beyond
                beyond += int(is_beyond.sum())
            if is_wrong.any():
                first_wrong = at + int(np.argmax(is_wrong)) if first_wrong < 0 else first_wrong
                wrong += int(is_wrong.sum())
        repair = context.repair(self.batch)
        if lost:
            what = f"{lost:,} units of queue {self.name} point into the damaged part of the log: those messages are lost"
            context.findings.add(ERROR, "lost messages", *self.place(start), what, repair)
        if beyond:
            what = f"{beyond:,} units of queue {self.name} point behind the log's end at {context.log_end}"
            severity = NOTE if context.in_use else ERROR
            context.findings.add(severity, "unit ahead", *self.place(first_beyond), what, "" if context.in_use else repair)
        if wrong:
            what = f"{wrong:,} units of queue {self.name} point to where none of its messages is"
            context.findings.add(ERROR, "orphan unit", *self.place(first_wrong), what, repair)

    def written(self, files: OpenFiles, start: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the units of a range with the number of the first, some thousand at a time; holes in the files are passed over."""
        width = self.unit.itemsize
        for file_start, size in sorted(self.files.items()):
            first, end = file_start // width, (file_start + size) // width
            at = max(start, first)
            while at < min(stop, end):
                data = files.data_after(self.place(at)[0], at * width - file_start)
                if data is None:
                    break
                at = max(at, (file_start + data) // width)
                count = min(_CHUNK_UNITS, stop - at, end - at)
                if count > 0:
                    yield at, self.read(files, at, count)
                at += max(count, 1)


class _Context:
    """What all queues are judged by at the end."""

    def __init__(self, root: str, findings: Findings, *, log_min: int, log_end: int, lost: list[tuple[int, int]], in_use: bool) -> None:
        self.root = root
        self.findings = findings
        self.log_min = log_min
        self.log_end = log_end
        self.lost = lost
        self.in_use = in_use
        self._behind = {False: [0, 0], True: [0, 0]}

    def behind(self, batch: bool, messages: int) -> None:
        """Take note that the files of a queue lack its last messages, as those of a running broker do."""
        self._behind[batch][0] += 1
        self._behind[batch][1] += messages

    def report_behind(self) -> None:
        """Say in one line each how many plain and batch queues are behind."""
        for batch, (queues, messages) in self._behind.items():
            if queues:
                what = f"the files of {queues:,} queues are {messages:,} messages behind the log: a running broker has them in memory, a start catches up"
                path = f"{self.root}/{'batchconsumequeue' if batch else 'consumequeue'}"
                self.findings.add(NOTE, "queues behind", path, None, what)

    def repair(self, batch: bool) -> str:
        return f"sprocketmq rebuild {self.root} --only {'batchconsumequeue' if batch else 'consumequeue'}"


class QueueChecks:
    """All queues of a store. ``take`` gets the log's windows in order, ``finish`` reports."""

    def __init__(
        self, store: StoreDirectory, findings: Findings, *, batch_topics: frozenset[str], deleted: Mapping[str, int], in_use: bool
    ) -> None:
        self._store = store
        self._deleted = deleted
        self._findings = findings
        self._batch_topics = batch_topics
        self._in_use = in_use
        self._files = OpenFiles(store.fs)
        self._topics: dict[bytes, int] = {}
        self._names: list[str] = []
        self._codes: dict[bytes, int] = {}
        self._queues: dict[int, QueueCheck] = {}
        self.lost: list[tuple[int, int]] = []
        self._lost_at = -1
        for kind in ("consumequeue", "batchconsumequeue"):
            for topic, queue_id, directory in store.queues(kind):
                self._open(topic, queue_id, directory, batch=kind == "batchconsumequeue")

    def __iter__(self) -> Iterator[QueueCheck]:
        return iter(self._queues.values())

    def get(self, topic: str, queue_id: int) -> QueueCheck | None:
        """Return the check of one queue, None when neither the log nor a directory has it."""
        number = self._topics.get(topic.encode())
        return None if number is None else self._queues.get(number << 32 | queue_id)

    def _topic(self, name: bytes) -> int:
        number = self._topics.get(name)
        if number is None:
            if len(self._topics) >= MAX_QUEUES:
                return -1
            number = self._topics[name] = len(self._names)
            self._names.append(name.decode("utf-8", "replace"))
        return number

    def _open(self, topic: str, queue_id: int, directory: str, *, batch: bool) -> None:
        """Look at a queue's files by their names and lengths, which must make one row."""
        found = segment_entries(self._store.fs.list(directory))
        unit = (BATCH_UNIT_DTYPE if batch else QUEUE_UNIT_DTYPE).itemsize
        size = segment_size_of(found) or 0
        repair = f"sprocketmq rebuild {self._store.root} --only {'batchconsumequeue' if batch else 'consumequeue'}"
        if size % unit:
            what = f"files of {size} bytes cannot hold units of {unit}"
            self._findings.add(ERROR, "queue files", directory, None, what, repair)
            found, size = [], 0
        expected = found[0][0] if found else 0
        for start, entry in found:
            path = f"{directory}/{entry.name}"
            if start != expected or start % size:
                what = f"the file for byte {expected} of the queue is missing, the next one is {entry.name}"
                self._findings.add(ERROR, "queue files", f"{directory}/{segment_name(expected)}", None, what, repair)
            if entry.size != size and not (self._in_use and start == found[-1][0]):
                what = f"the file has {entry.size:,} bytes where this queue's files have {size:,}"
                self._findings.add(ERROR, "queue files", path, min(entry.size, size), what, repair)
            expected = start + size
        files = {start: min(entry.size, size) for start, entry in found if size and not start % size}
        number = self._topic(topic.encode("utf-8", "surrogateescape"))
        if number >= 0 and len(self._queues) < MAX_QUEUES:
            key = number << 32 | queue_id
            if key in self._queues:
                what = f"topic {topic} has plain queues and batch queues; Apache's broker refuses to start so"
                self._findings.add(ERROR, "queue kind", directory, None, what, "remove the kind that topics.json does not name")
                if (topic in self._batch_topics) != batch:
                    return
            self._queues[key] = QueueCheck(topic, queue_id, directory, files, size, batch=batch)

    def damaged(self, start: int, end: int) -> None:
        """Take note that a stretch of the log holds no records: offsets may be missing behind it."""
        if len(self.lost) < MAX_RANGES:
            self.lost.append((start, end))
        self._lost_at = start

    def take(self, window: Window, path: str, segment_start: int) -> None:
        """Compare the units of a window's records."""
        kind = window.sys_flags & SYSFLAG_TRANSACTION_MASK
        has_unit = (kind == 0) | (kind == SYSFLAG_TRANSACTION_COMMITTED)
        known = self._topics
        topic_numbers = np.fromiter((known[t] if t in known else self._topic(t) for t in window.topics), np.int64, len(window))
        keys = np.where(has_unit & (topic_numbers >= 0), topic_numbers << 32 | window.queue_ids, -1)
        codes = self._codes_of(window.properties)
        for key, chosen in groups_of(keys):
            if key >= 0 and (queue := self._queue(key)) is not None:
                self._take(queue, window, chosen, codes[chosen], path, segment_start)

    def _queue(self, key: int) -> QueueCheck | None:
        queue = self._queues.get(key)
        if queue is None and len(self._queues) < MAX_QUEUES:
            topic, queue_id = self._names[key >> 32], key & 0xFFFFFFFF
            batch = topic in self._batch_topics
            directory = f"{self._store.root}/{'batchconsumequeue' if batch else 'consumequeue'}/{topic}/{queue_id}"
            queue = self._queues[key] = QueueCheck(topic, queue_id, directory, {}, 0, batch=batch)
        return queue

    def _take(self, queue: QueueCheck, window: Window, chosen: _Longs, codes: _Longs, path: str, segment_start: int) -> None:
        deleted = self._deleted.get(queue.topic)
        if deleted is not None:  # messages before the topic's deletion have no units
            later = window.log_offsets[chosen] >= deleted
            chosen, codes = chosen[later], codes[later]
        if queue.batch:
            if not len(chosen):
                return
            inner = [_inner(window.properties[i]) for i in chosen.tolist()]
            offsets = np.array(
                [base if base is not None else int(window.queue_offsets[i]) for (base, _), i in zip(inner, chosen, strict=True)]
            )
            counts = np.array([count for _, count in inner], np.int64)
        else:
            plain = (window.sys_flags[chosen] & SYSFLAG_INNER_BATCH) == 0
            chosen, codes = chosen[plain], codes[plain]
            offsets = window.queue_offsets[chosen]
            counts = np.ones(len(chosen), np.int64)
        if not len(chosen):
            return
        borders = (np.flatnonzero(offsets[1:] != offsets[:-1] + counts[:-1]) + 1).tolist()
        for start, stop in zip([0, *borders], [*borders, len(chosen)], strict=True):
            part = chosen[start:stop]
            physical = int(window.log_offsets[part[0]])
            place = (path, physical - segment_start)
            queue.continue_at(int(offsets[start]), physical, self._lost_at, self._findings, place)
            physicals, sizes = window.log_offsets[part], window.sizes[part]
            if queue.batch:
                queue.compare_batch(
                    self._files, offsets[start:stop], counts[start:stop], physicals, sizes, codes[start:stop], window.times_ms[part]
                )
            else:
                # A parked message's code is its delivery time, which depends on the writing broker's delay levels.
                judged = None if queue.topic == SCHEDULE_TOPIC else codes[start:stop]
                queue.compare_plain(self._files, int(offsets[start]), physicals, sizes, judged)

    def _codes_of(self, properties: Sequence[bytes]) -> _Longs:
        cache = self._codes
        found = np.zeros(len(properties), np.int64)
        for i, text in enumerate(properties):
            at = text.find(b"TAGS\x01")
            if at < 0:
                continue
            if at == 0 or text[at - 1] == 2:
                end = text.find(b"\x02", at)
                tag = text[at + 5 : end] if end >= 0 else text[at + 5 :]
            else:  # inside another name or value
                tag = find_property(text, b"TAGS") or b""
            code = cache.get(tag)
            if code is None:
                code = tags_code_raw(tag) if tag else 0
                if len(cache) < 65_536:
                    cache[tag] = code
            found[i] = code
        return found

    def finish(self, log_min: int, log_end: int, configured: frozenset[str] | None) -> None:
        """Report everything; ``configured`` are the topics of topics.json, None without one."""
        context = _Context(self._store.root, self._findings, log_min=log_min, log_end=log_end, lost=self.lost, in_use=self._in_use)
        without: dict[str, int] = {}
        for queue in self._queues.values():
            deleted = configured is not None and queue.topic not in configured
            if not queue.files and (deleted or name_problem(queue.topic, MAX_INTERNAL_TOPIC_LENGTH)):
                without[queue.topic] = without.get(queue.topic, 0) + 1
            else:
                queue.finish(self._files, context)
        context.report_behind()
        for topic in without:
            what = (
                f"messages of topic {topic!r} are in the log, but there is no such topic (deleted, most likely) and it has no queue files"
            )
            self._findings.add(NOTE, "no topic", f"{self._store.root}/commitlog", None, what)
        if len(self._queues) >= MAX_QUEUES:
            self._findings.add(WARNING, "too many", self._store.root, None, f"only the first {MAX_QUEUES:,} queues were looked at")

    def close(self) -> None:
        """Close the files."""
        self._files.close()


def _inner(properties: bytes) -> tuple[int | None, int]:
    """Return base offset and count of a batch queue's record: of an inner batch as its properties say, else None and 1."""
    base, count = find_property(properties, b"INNER_BASE"), find_property(properties, b"INNER_NUM")
    if base and count and base.isdigit() and count.isdigit() and len(base) < 19 and len(count) < 6:
        return int(base), int(count)
    return None, 1
