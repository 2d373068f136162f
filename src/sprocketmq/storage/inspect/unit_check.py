"""Checking the units of a queue against the log: does each point to a record of this topic, queue and queue offset? Loads numpy.

This goes from the units to the log, while queues are made from the log, so a mistake in making them shows. Bodies are not read.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.codes import SYSFLAG_ANY_HOST_V6, SYSFLAG_INNER_BATCH
from sprocketmq.protocol.layout import FILLER_SIZE, MAGIC_V1, RECORD_LAYOUT
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.layout_arrays import BATCH_UNIT_DTYPE, QUEUE_UNIT_DTYPE, dtype_of, values_at
from sprocketmq.storage.log.recovery import parse_record
from sprocketmq.storage.log.segments import segment_entries, segment_name

_HEAD = dtype_of(RECORD_LAYOUT, "size", "magic", "queue_id", "queue_offset", "log_offset", "sys_flag", "body_length")
_MAX_SEGMENTS = 64
_CHUNK_UNITS = 1 << 16
_Longs = NDArray[np.int64]
_Flags = NDArray[np.bool_]


class Segments:
    """The segments of a log, mapped into memory when they are first needed; at most ``_MAX_SEGMENTS`` stay mapped."""

    def __init__(self, fs: FileSystem, directory: str, segment_bytes: int) -> None:
        self._fs = fs
        self._directory = directory
        self._bytes = segment_bytes
        self._views: OrderedDict[int, memoryview] = OrderedDict()

    def view(self, start: int) -> memoryview:
        """Return the segment that begins at a log offset, an empty view when there is none."""
        view = self._views.get(start)
        if view is None:
            try:
                file = self._fs.open(f"{self._directory}/{segment_name(start)}", read_only=True)
            except FileNotFoundError:
                return memoryview(b"")
            try:
                view = file.map(min(file.size(), self._bytes))
            finally:
                file.close()
            self._views[start] = view
            if len(self._views) > _MAX_SEGMENTS:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(start)
        return view

    def confirmed(self, topic: bytes, queue_id: int, offsets: _Longs, log_offsets: _Longs, sizes: _Longs) -> _Flags:
        """Return for each unit whether a record of this size, topic, queue and queue offset begins at its log offset.

        For a record that covers several queue offsets, it is the first. Log offsets and sizes may be any numbers.
        """
        confirmed = np.zeros(len(log_offsets), np.bool_)
        starts = log_offsets - log_offsets % self._bytes
        for start in np.unique(starts).tolist():
            if start >= 0:
                rows = np.flatnonzero(starts == start)
                confirmed[rows] = self._in_segment(start, topic, queue_id, offsets[rows], log_offsets[rows], sizes[rows])
        return confirmed

    def _in_segment(self, start: int, topic: bytes, queue_id: int, offsets: _Longs, log_offsets: _Longs, sizes: _Longs) -> _Flags:
        view = self.view(start)
        file_pos = log_offsets - start
        good = (sizes > _HEAD.itemsize) & (file_pos + sizes <= len(view))
        heads = values_at(view, np.where(good, file_pos, 0), _HEAD) if len(view) > _HEAD.itemsize else np.zeros(len(file_pos), _HEAD)
        sys_flag = heads["sys_flag"].astype(np.int64)
        good &= (heads["log_offset"] == log_offsets) & (heads["size"] == sizes) & (heads["queue_id"] == queue_id)
        usual = good & (heads["magic"] == MAGIC_V1) & ((sys_flag & (SYSFLAG_ANY_HOST_V6 | SYSFLAG_INNER_BATCH)) == 0)
        body = heads["body_length"].astype(np.int64)
        topic_pos = file_pos + _HEAD.itemsize + body
        matches: _Flags = usual & (heads["queue_offset"] == offsets) & (body >= 0) & (topic_pos + 1 + len(topic) <= file_pos + sizes)
        rows = np.flatnonzero(matches)
        field = bytes((len(topic) & 0xFF,)) + topic
        matches[rows] = values_at(view, topic_pos[rows], f"V{len(field)}") == np.void(field)
        for row in np.flatnonzero(good & ~usual).tolist():
            record = parse_record(view, start, int(file_pos[row]), check_crc=False)
            found = None if record is None else (record.topic, record.queue_id, record.queue_offset)
            matches[row] = found == (topic, queue_id, int(offsets[row]))
        return matches


def units_in(fs: FileSystem, directory: str, unit: "np.dtype[Any]") -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the units in the files of a queue, several thousand at a time, with the number of the first; holes are skipped."""
    for start, entry in segment_entries(fs.list(directory)):
        file = fs.open(f"{directory}/{entry.name}", read_only=True)
        try:
            file_pos = file.data_after(0)
            while file_pos is not None and file_pos < entry.size:
                file_pos -= file_pos % unit.itemsize
                data = file.pread(_CHUNK_UNITS * unit.itemsize, file_pos)
                found = np.frombuffer(data, unit, len(data) // unit.itemsize)
                if not len(found):
                    break
                yield (start + file_pos) // unit.itemsize, found
                file_pos = file.data_after(file_pos + len(found) * unit.itemsize)
        finally:
            file.close()


def check_queue(fs: FileSystem, directory: str, topic: str, queue_id: int, segments: Segments, *, batch: bool) -> tuple[int, str]:
    """Return how many units point to records and what is wrong with the first that the log does not confirm ("" without one)."""
    name = topic.encode()
    confirmed = 0
    for first, units in units_in(fs, directory, BATCH_UNIT_DTYPE if batch else QUEUE_UNIT_DTYPE):
        used = (units["size"] > 0) & (units["size"] != FILLER_SIZE)
        rows = np.flatnonzero(used)
        offsets = units["queue_offset"][rows].astype(np.int64) if batch else rows + first
        log_offsets, sizes = units["log_offset"][rows].astype(np.int64), units["size"][rows].astype(np.int64)
        good = segments.confirmed(name, queue_id, offsets, log_offsets, sizes)
        if not good.all():
            row = int(np.argmin(good))
            where = f"unit {int(rows[row]) + first} of queue {topic}/{queue_id}"
            return confirmed, f"{where} points to log offset {log_offsets[row]}, where no such record is"
        confirmed += len(rows)
    return confirmed, ""
