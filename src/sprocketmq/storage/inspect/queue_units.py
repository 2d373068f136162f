"""Reading the units of a queue from its files, by their numbers. Loads numpy.

Numbers count from the beginning of the queue's stream of files: in a consume queue a unit's number is its queue offset.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sprocketmq.storage.fs import File, FileSystem
from sprocketmq.storage.layout_arrays import BATCH_UNIT_DTYPE, QUEUE_UNIT_DTYPE
from sprocketmq.storage.log.segments import segment_name

MAX_OPEN_FILES = 128
_CHUNK_UNITS = 1 << 15
_MAX_HOLE_UNITS = 4096


class OpenFiles:
    """The files that were read last, open for reading only."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._files: OrderedDict[str, File] = OrderedDict()

    def read(self, path: str, length: int, file_pos: int) -> bytes:
        file = self._files.get(path)
        if file is None:
            self._files[path] = file = self._fs.open(path, read_only=True)
            if len(self._files) > MAX_OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        else:
            self._files.move_to_end(path)
        return file.pread(length, file_pos)

    def data_after(self, path: str, file_pos: int) -> int | None:
        """Return the position of a file's first data at or after ``file_pos``, as far as the file system knows; None after the last."""
        self.read(path, 1, file_pos)
        return self._files[path].data_after(file_pos)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class QueueUnits:
    """The units of one queue. ``files`` are the lengths of its files by their start; each has ``file_bytes``, the last may be shorter."""

    __slots__ = ("batch", "directory", "dtype", "file_bytes", "files", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, directory: str, files: dict[int, int], file_bytes: int, *, batch: bool) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.directory = directory
        self.files = files
        self.file_bytes = file_bytes
        self.batch = batch
        self.dtype = BATCH_UNIT_DTYPE if batch else QUEUE_UNIT_DTYPE

    @property
    def count(self) -> int:
        """How many units the files have room for, counted from the beginning of the queue's stream."""
        return max((start + size for start, size in self.files.items()), default=0) // self.dtype.itemsize

    def locate(self, unit: int) -> tuple[str, int]:
        """Return the path and the file position of a unit."""
        stream_pos = unit * self.dtype.itemsize
        start = stream_pos - stream_pos % self.file_bytes if self.file_bytes else 0
        return f"{self.directory}/{segment_name(start)}", stream_pos - start

    def read(self, files: OpenFiles, first: int, count: int) -> NDArray[Any]:
        """Return ``count`` units from number ``first`` on; zeros where there is no file."""
        stream_pos, end = first * self.dtype.itemsize, (first + count) * self.dtype.itemsize
        parts = []
        while stream_pos < end:
            start = stream_pos - stream_pos % self.file_bytes if self.file_bytes else stream_pos
            stop = min(end, start + self.file_bytes) if self.file_bytes else end
            data = (
                files.read(f"{self.directory}/{segment_name(start)}", stop - stream_pos, stream_pos - start) if start in self.files else b""
            )
            parts.append(data.ljust(stop - stream_pos, b"\0"))
            stream_pos = stop
        return np.frombuffer(b"".join(parts), self.dtype)

    def unit_at(self, files: OpenFiles, log_offset: int) -> int:
        """Return the number of the first unit whose record is at or after a log offset.

        Up to ``_MAX_HOLE_UNITS`` empty units in a row are skipped; longer runs count as the end of the queue.
        """
        low, high = min(self.files, default=0) // self.dtype.itemsize, self.count
        end = high
        while low < high:
            middle = (low + high) // 2
            found, unit = self._first_used(files, middle, high)
            if unit is not None and unit["log_offset"] < log_offset:
                low = found + 1
            else:
                high = middle
        found, unit = self._first_used(files, low, end)
        return low if unit is None else found

    def _first_used(self, files: OpenFiles, start: int, stop: int) -> tuple[int, Any]:
        """Return number and content of the first unit from ``start`` on that is not empty, None as content when none is near."""
        unit = self.read(files, start, 1)[0] if start < stop else None
        if unit is None or unit["size"] > 0:
            return start, unit
        units = self.read(files, start, min(_MAX_HOLE_UNITS, stop - start))
        used = np.flatnonzero(units["size"] > 0)
        return (start + int(used[0]), units[used[0]]) if len(used) else (start, None)

    def written(self, files: OpenFiles, start: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the units of a range, several thousand at a time, with the number of the first; holes in the files are skipped."""
        width = self.dtype.itemsize
        for file_start, size in sorted(self.files.items()):
            first, end = file_start // width, (file_start + size) // width
            number = max(start, first)
            while number < min(stop, end):
                data = files.data_after(self.locate(number)[0], number * width - file_start)
                if data is None:
                    break
                number = max(number, (file_start + data) // width)
                count = min(_CHUNK_UNITS, stop - number, end - number)
                if count > 0:
                    yield number, self.read(files, number, count)
                number += max(count, 1)
