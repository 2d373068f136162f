"""Comparing queues with the log: every record must have its unit, every unit its record. Loads numpy.

Records come in windows, in log order. The units that the records of a window should have are compared with those in the files, all of one
queue at once. Which units were met is remembered as ranges, and at the end the units outside them are checked.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.codes import SYSFLAG_INNER_BATCH, SYSFLAG_TRANSACTION_COMMITTED, SYSFLAG_TRANSACTION_MASK
from sprocketmq.protocol.hashing import tags_code_raw
from sprocketmq.protocol.names import MAX_INTERNAL_TOPIC_LENGTH, SCHEDULE_TOPIC, name_problem
from sprocketmq.protocol.properties import find_property
from sprocketmq.storage.inspect.findings import ERROR, NOTE, WARNING, Findings
from sprocketmq.storage.inspect.log_windows import Window, groups_of
from sprocketmq.storage.inspect.queue_check import MAX_RANGES, QueueCheck, QueueJudgement
from sprocketmq.storage.inspect.queue_units import OpenFiles, QueueUnits
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.layout_arrays import BATCH_UNIT_DTYPE, QUEUE_UNIT_DTYPE
from sprocketmq.storage.log.segments import segment_entries, segment_name, segment_size_of

# Queues whose state is kept; no broker writes a log that names more.
MAX_QUEUES = 200_000
_MAX_TAG_CODES = 65_536
_Longs = NDArray[np.int64]


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
        self._damaged: list[tuple[int, int]] = []
        self._damaged_from = -1
        for kind in ("consumequeue", "batchconsumequeue"):
            for topic, queue_id, directory in store.queues(kind):
                self._open(topic, queue_id, directory, batch=kind == "batchconsumequeue")

    def __iter__(self) -> Iterator[QueueCheck]:
        return iter(self._queues.values())

    def get(self, topic: str, queue_id: int) -> QueueCheck | None:
        """Return the check of one queue, None when neither the log nor a directory has the queue."""
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
        """Check the names and lengths of a queue's files, which must follow each other, and begin to check the queue."""
        found = segment_entries(self._store.fs.list(directory))
        unit = (BATCH_UNIT_DTYPE if batch else QUEUE_UNIT_DTYPE).itemsize
        size = segment_size_of(found) or 0
        repair = f"sprocketmq rebuild {shlex.quote(self._store.root)} --only {'batchconsumequeue' if batch else 'consumequeue'}"
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
            self._queues[key] = QueueCheck(QueueUnits(topic, queue_id, directory, files, size, batch=batch))

    def damaged(self, start: int, end: int) -> None:
        """Record that a range of the log holds no records, so that queue offsets may be missing after it."""
        if len(self._damaged) < MAX_RANGES:
            self._damaged.append((start, end))
        self._damaged_from = start

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
            queue = self._queues[key] = QueueCheck(QueueUnits(topic, queue_id, directory, {}, 0, batch=batch))
        return queue

    def _take(self, queue: QueueCheck, window: Window, chosen: _Longs, codes: _Longs, path: str, segment_start: int) -> None:
        deleted = self._deleted.get(queue.units.topic)
        if deleted is not None:  # messages before the topic's deletion have no units
            later = window.log_offsets[chosen] >= deleted
            chosen, codes = chosen[later], codes[later]
        if queue.units.batch:
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
            log_offset = int(window.log_offsets[part[0]])
            place = (path, log_offset - segment_start)
            queue.continue_at(int(offsets[start]), log_offset, self._damaged_from, self._findings, place)
            log_offsets, sizes = window.log_offsets[part], window.sizes[part]
            if queue.units.batch:
                queue.compare_batch(
                    self._files, offsets[start:stop], counts[start:stop], log_offsets, sizes, codes[start:stop], window.times_ms[part]
                )
            else:
                # A parked message's code is its delivery time, which depends on the writing broker's delay levels.
                judged = None if queue.units.topic == SCHEDULE_TOPIC else codes[start:stop]
                queue.compare_plain(self._files, int(offsets[start]), log_offsets, sizes, judged)

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
            else:  # "TAGS" is part of another name, or of a value
                tag = find_property(text, b"TAGS") or b""
            code = cache.get(tag)
            if code is None:
                code = tags_code_raw(tag) if tag else 0
                if len(cache) < _MAX_TAG_CODES:
                    cache[tag] = code
            found[i] = code
        return found

    def finish(self, log_min: int, log_end: int, configured: frozenset[str] | None) -> None:
        """Report the findings; ``configured`` are the topics of topics.json, None without one."""
        context = QueueJudgement(
            self._store.root, self._findings, log_min=log_min, log_end=log_end, lost=self._damaged, in_use=self._in_use
        )
        without: dict[str, int] = {}
        for queue in self._queues.values():
            deleted = configured is not None and queue.units.topic not in configured
            if not queue.units.files and (deleted or name_problem(queue.units.topic, MAX_INTERNAL_TOPIC_LENGTH)):
                without[queue.units.topic] = without.get(queue.units.topic, 0) + 1
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
    """Return first queue offset and number of messages of an inner batch from its properties; None and 1 for another record."""
    base, count = find_property(properties, b"INNER_BASE"), find_property(properties, b"INNER_NUM")
    if base and count and base.isdigit() and count.isdigit() and len(base) < 19 and len(count) < 6:
        return int(base), int(count)
    return None, 1
