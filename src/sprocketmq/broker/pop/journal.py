"""The journal of pops, which survives a restart and a kill: changes are appended, and sometimes a new file begins with a snapshot.

A record is its length and its checksum (both 32 bits) and a msgpack list. Appends are written once a turn of the event loop, and their
requests are answered after that; the file is not forced to the disk. A power failure loses its end: messages whose acknowledgement was
there are delivered again, and none is lost, as committed offsets never pass what is not acknowledged.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from struct import Struct
from typing import Any
from zlib import crc32

import msgspec

from sprocketmq.errors import SprocketError
from sprocketmq.events import event
from sprocketmq.storage.fs import File, FileSystem

log = logging.getLogger(__name__)

# A file of this size is replaced by a snapshot when that is at most half as long.
REWRITE_BYTES = 16 << 20

_HEAD = Struct(">II")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def frame(record: list[Any]) -> bytes:
    """Return a record in its file format."""
    payload = _encode(record)
    return _HEAD.pack(len(payload), crc32(payload)) + payload


def frames(data: bytes) -> Iterator[tuple[list[Any], int]]:
    """Yield the records of a file, each with its end, up to the first incomplete one."""
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        payload = data[at + _HEAD.size : at + _HEAD.size + length]
        if not payload or len(payload) < length or crc32(payload) != checksum:
            return
        at += _HEAD.size + length
        yield _decode(payload), at


class Journal:
    """The file at ``path``. ``soon(call)`` runs ``call`` at the end of this turn of the event loop; ``snapshot()`` yields all records."""

    snapshot: Callable[[], Iterable[list[Any]]]

    def __init__(self, path: str, fs: FileSystem, *, soon: Callable[[Callable[[], None]], object]) -> None:
        self._path = path
        self._fs = fs
        self._soon = soon
        self._file: File | None = None
        self._size = 0
        self._rewrite_at = REWRITE_BYTES
        # A write has failed: later changes must go to a new file.
        self._torn = False
        self._pending: list[bytes] = []
        self._answers: list[Callable[[OSError | SprocketError | None], None]] = []

    def load(self) -> list[list[Any]]:
        """Return the records of the file, none when there is no file. What follows the last whole record is cut off at the next write."""
        if not self._fs.exists(self._path):
            return []
        data = self._fs.read(self._path)
        found = list(frames(data))
        self._size = found[-1][1] if found else 0
        if self._size < len(data):
            event(log, logging.WARNING, "pop_journal_cut", path=self._path, bytes=len(data) - self._size)
        self._rewrite_at = max(REWRITE_BYTES, 2 * self._size)
        return [record for record, _ in found]

    @property
    def wants_snapshot(self) -> bool:
        """Whether the file is long enough to be replaced."""
        return self._size >= self._rewrite_at

    def append(self, record: list[Any]) -> None:
        """Write a record at the end of this turn of the loop."""
        if not self._pending and not self._answers:
            self._soon(self.write)
        self._pending.append(frame(record))

    def when_written(self, answer: Callable[[OSError | SprocketError | None], None]) -> None:
        """Call ``answer(failure)`` when everything appended so far is written, or could not be."""
        if not self._pending and not self._answers:
            self._soon(self.write)
        self._answers.append(answer)

    def write(self) -> None:
        """Write what was appended, and answer. After a failed write only a whole snapshot is written, so that the file has no gap."""
        answers, self._answers = self._answers, []
        data = b"".join(self._pending)
        self._pending.clear()
        failure: OSError | SprocketError | None = None
        if data or self._torn:
            try:
                if self._torn:
                    self._rewrite(self.snapshot())
                    self._torn = False
                else:
                    self._append(data)
            except (OSError, SprocketError) as e:
                event(log, logging.ERROR, "pop_journal_failed", path=self._path, reason=e)
                self._torn = True
                failure = e
        for answer in answers:
            answer(failure)

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._open()
        assert self._file is not None
        self._file.pwrite(data, self._size)
        self._size += len(data)

    def remove(self) -> None:
        """Remove the file, and drop what was to be written. Raises OSError."""
        self._pending.clear()
        self._close_file()
        self._size, self._torn = 0, False
        if self._fs.exists(self._path):
            self._fs.unlink(self._path)

    def _open(self) -> None:
        self._fs.make_dirs(str(PurePosixPath(self._path).parent))
        self._file = self._fs.open(self._path, create=True)
        self._file.truncate(self._size)

    def replace(self) -> None:
        """Replace the file by a snapshot. Raises OSError and SprocketError; the old file stays then."""
        self.write()
        self._rewrite(self.snapshot())

    def _rewrite(self, records: Iterable[list[Any]]) -> None:
        data = b"".join([frame(record) for record in records])
        fresh = f"{self._path}.new"
        self._fs.make_dirs(str(PurePosixPath(self._path).parent))
        file = self._fs.open(fresh, create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
        finally:
            file.close()
        self._close_file()
        self._fs.rename(fresh, self._path)
        self._size = len(data)
        self._rewrite_at = max(REWRITE_BYTES, 2 * self._size)

    def close(self) -> None:
        """Write what was appended and close the file."""
        if self._pending or self._answers or self._torn:
            self.write()
        self._close_file()

    def abandon(self) -> None:
        """Close the file without writing what is pending."""
        self._pending.clear()
        self._answers.clear()
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
