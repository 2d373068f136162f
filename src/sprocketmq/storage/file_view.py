"""A file read through a window of 1 MiB, for code with many small reads: few system calls."""

from collections.abc import Iterator
from typing import Self

from sprocketmq.protocol.hashing import full_crc32
from sprocketmq.storage.fs import File, FileSystem

WINDOW_BYTES = 1 << 20
ZEROS = bytes(WINDOW_BYTES)


class FileView:
    """A file opened read-only. Every method raises OSError as the system does."""

    __slots__ = ("_file", "_window", "_window_pos", "path", "size")

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.path = path
        self._file: File = fs.open(path, read_only=True)
        self.size = self._file.size()
        self._window = b""
        self._window_pos = 0

    def read(self, file_pos: int, length: int) -> bytes:
        """Return up to ``length`` bytes (at most ``WINDOW_BYTES``) from ``file_pos``; fewer only at the end of the file."""
        length = max(0, min(length, WINDOW_BYTES, self.size - file_pos))
        begin = file_pos - self._window_pos
        if begin < 0 or begin + length > len(self._window):
            self._window = self._file.pread(min(WINDOW_BYTES, max(self.size - file_pos, 0)), file_pos)
            self._window_pos = file_pos
            begin = 0
        return self._window[begin : begin + length]

    def read_all(self, limit: int) -> bytes | None:
        """Return the whole file, None when it is longer than ``limit``."""
        if self.size > limit:
            return None
        parts = []
        file_pos = 0
        while file_pos < self.size and (data := self.read(file_pos, WINDOW_BYTES)):
            parts.append(data)
            file_pos += len(data)
        return b"".join(parts)

    def crc(self, file_pos: int, length: int) -> int:
        """Return the 31-bit CRC of a range of any length."""
        crc = 0
        while length > 0 and (data := self.read(file_pos, length)):
            crc = full_crc32(data, crc)
            file_pos += len(data)
            length -= len(data)
        return crc & 0x7FFFFFFF

    def data_from(self, file_pos: int) -> int:
        """Return the position of the first non-zero byte at or after ``file_pos``, the file's size without one. Holes are not read."""
        while file_pos < self.size:
            found = self._file.data_after(file_pos)
            if found is None:
                return self.size
            file_pos = max(file_pos, found)
            data = self.read(file_pos, WINDOW_BYTES)
            if not data:
                return self.size
            if data != ZEROS[: len(data)]:
                return file_pos + len(data) - len(data.lstrip(b"\0"))
            file_pos += len(data)
        return self.size

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def occurrences(data: bytes, needle: bytes) -> Iterator[int]:
    """Yield the index of every occurrence of ``needle`` in ``data``, overlapping ones included."""
    pos = data.find(needle)
    while pos >= 0:
        yield pos
        pos = data.find(needle, pos + 1)
