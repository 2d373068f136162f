"""Sequences of files of equal length that together form one stream of bytes: the commit log and the consume queues.

A file's name is the stream offset of its first byte, as 20 decimal digits. Every file has its full length from the start, filled with
zeros; nothing in it says how much of it is used.
"""

from collections import OrderedDict
from itertools import pairwise

from sprocketmq.errors import StoreDamaged
from sprocketmq.storage.fs import Entry, File, FileSystem

NAME_DIGITS = 20
# Open queue files of a store with thousands of queues; the commit log's few segments are not counted here.
MAX_OPEN_QUEUE_FILES = 256


def segment_name(start: int) -> str:
    """Return the file name of the segment that starts at stream offset ``start``."""
    return f"{start:020d}"


def parse_segment_name(name: str) -> int | None:
    """Return the stream offset a file name stands for, or None when it is not a segment's name."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


def segment_entries(entries: list[Entry]) -> list[tuple[int, Entry]]:
    """Return ``(start, entry)`` of the segments among the files of a directory, in stream order; other names are left out."""
    found = [(parse_segment_name(e.name), e) for e in entries if not e.is_dir]
    return sorted((start, e) for start, e in found if start is not None)


def segment_size_of(segments: list[tuple[int, Entry]]) -> int | None:
    """Return the segment length a directory was written with, or None when its files do not determine it.

    With two or more files it is the distance of their names, which damage to a file's content or length cannot change; with one file, its
    length. If all files have one length and all distances are a multiple of it, it is that length, and files are missing in between.
    """
    if len(segments) >= 2:
        distance = min(b[0] - a[0] for a, b in pairwise(segments))
        lengths = {entry.size for _, entry in segments}
        length = lengths.pop()
        return length if not lengths and 0 < length < distance and distance % length == 0 else distance
    return segments[0][1].size or None if segments else None


def check_row(directory: str, segments: list[tuple[int, Entry]], size: int) -> None:
    """Raise StoreDamaged when a file is missing among the segments of ``size`` bytes in a directory, or one is longer than that."""
    expected = segments[0][0] if segments else 0
    for start, entry in segments:
        if start != expected or start % size:
            missing = segment_name(expected)
            raise StoreDamaged(f"{directory}/{missing}", 0, f"the segment is missing, the next one there is {entry.name}")
        if entry.size > size:
            raise StoreDamaged(f"{directory}/{entry.name}", size, f"the file has {entry.size} bytes where segments have {size}")
        expected = start + size


class FilePool:
    """Keeps the most recently used files open, up to a limit, and reopens the others on demand.

    For one thread. A returned file is valid only until the next call.
    """

    __slots__ = ("_files", "_fs", "_limit")

    def __init__(self, fs: FileSystem, limit: int = MAX_OPEN_QUEUE_FILES) -> None:
        self._fs = fs
        self._limit = limit
        self._files: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str, *, size: int | None = None) -> File:
        """Return the open file at ``path``; with ``size`` make it, that long, when it is missing or shorter. Raises OSError."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        file = self._fs.open(path, create=size is not None)
        if size is not None and file.size() < size:
            try:
                file.truncate(size)
            except OSError:
                file.close()
                raise
        self._files[path] = file
        if len(self._files) > self._limit:
            self._files.popitem(last=False)[1].close()
        return file

    def drop(self, path: str) -> None:
        """Close one file that is about to be deleted."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def forget(self, prefix: str = "") -> None:
        """Close the files whose path starts with ``prefix``, all without one."""
        for path in [path for path in self._files if path.startswith(prefix)]:
            self._files.pop(path).close()
