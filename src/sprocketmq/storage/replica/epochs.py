r"""The epochs of a log: which master wrote which part of it. Two logs are equal up to the end of the last epoch that they share.

A master begins an epoch before it writes its first byte. The file ``epochFileCheckpoint`` in the store's root has the reference's format:
lines of text, first the number of epochs, then the CRC-32 of the following lines (31 bits), then ``epoch-start`` for each, oldest first.

::

    2\n
    773307083\n
    7-7000\n
    8-8000\n
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from sprocketmq.errors import ConfigError, StoreFailed, StoreWriteFailed
from sprocketmq.protocol.hashing import crc32
from sprocketmq.storage.fs import NO_ROOM, FileSystem

FILE_NAME = "epochFileCheckpoint"


class Epoch(NamedTuple):
    """An epoch's number, from 1 on, and the log offset of the first byte written in it."""

    number: int
    start: int


def encode_epochs(epochs: Sequence[Epoch]) -> bytes:
    """Return the whole file."""
    lines = "".join(f"{number}-{start}\n" for number, start in epochs).encode()
    return b"%d\n%d\n%b" % (len(epochs), crc32(lines), lines)


def decode_epochs(data: bytes) -> tuple[Epoch, ...]:
    """Return the epochs of a file, none when it is damaged. A CRC of 0 is not compared, as in the reference."""
    lines = data.split(b"\n")
    try:
        count, crc = int(lines[0]), int(lines[1])
        epochs = tuple(Epoch(*map(int, line.split(b"-"))) for line in lines[2 : 2 + count])
    except (IndexError, ValueError, TypeError):
        return ()
    if len(epochs) != count or crc not in (0, crc32(b"".join(line + b"\n" for line in lines[2 : 2 + count]))):
        return ()
    return epochs if _in_order(epochs) else ()


def _in_order(epochs: Sequence[Epoch]) -> bool:
    return all(a.number < b.number and a.start <= b.start for a, b in pairwise(epochs))


def common_end(ours: Sequence[Epoch], our_end: int, theirs: Sequence[Epoch], their_end: int) -> int:
    """Return the log offset up to which two logs are equal by their epochs, -1 when they share no epoch.

    The newest epoch that both have with the same start is theirs in common up to where the first of the two ended it: at the start of its
    next epoch, or at the log's end.
    """
    ends = dict(zip(theirs, [*(e.start for e in theirs[1:]), their_end], strict=False))
    for epoch, end in reversed(list(zip(ours, [*(e.start for e in ours[1:]), our_end], strict=False))):
        if epoch in ends:
            return min(end, ends[epoch], our_end, their_end)
    return -1


class EpochFile:
    """The epochs of one store, in memory and on disk. Every change is on the disk when its call returns.

    Changes raise StoreWriteFailed when a full disk has no room, and then change nothing; StoreFailed when the disk fails.
    """

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self.entries: tuple[Epoch, ...] = ()
        self._highest = 0  # the newest number in the file, also of an epoch that a crash lost

    def load(self, log_end: int) -> None:
        """Read the file; epochs that begin after the end of the log are dropped, as a crash lost all of them. A missing file has none."""
        try:
            entries = decode_epochs(self._fs.read(self._path))
        except OSError:
            entries = ()
        self.entries = tuple(epoch for epoch in entries if epoch.start <= log_end)
        self._highest = entries[-1].number if entries else 0

    @property
    def _path(self) -> str:
        return f"{self._root}/{FILE_NAME}"

    @property
    def last(self) -> Epoch:
        """The current epoch; number 0 without one."""
        return self.entries[-1] if self.entries else Epoch(0, 0)

    @property
    def following(self) -> int:
        """The number for the next epoch: higher than every one in the file, as slaves may know epochs that a crash has lost here."""
        return max(self._highest, self.last.number) + 1

    def begin(self, number: int, start: int) -> None:
        """Begin an epoch at the end of the log, before the first byte of it is written; or where a crash has damaged the log.

        Epochs that began there or later are replaced. Raises ConfigError for a number that is not higher than the last one.
        """
        if number <= self.last.number:
            raise ConfigError(f"epoch {number} at log offset {start} cannot follow epoch {self.last.number} at {self.last.start}")
        self._save((*(epoch for epoch in self.entries if epoch.start < start), Epoch(number, start)))

    def adopt(self, epochs: Iterable[Epoch]) -> None:
        """Take over the epochs of the master that is followed, before bytes of them are appended.

        Raises ConfigError when they are not in order.
        """
        entries = tuple(epochs)
        if not _in_order(entries):
            raise ConfigError(f"the master's epochs {list(entries)} are not in order; its epoch file is damaged")
        if entries != self.entries:
            self._save(entries)

    def cut_back(self, log_offset: int) -> None:
        """Drop the epochs that begin after ``log_offset``: the log was cut there."""
        kept = tuple(epoch for epoch in self.entries if epoch.start <= log_offset)
        if kept != self.entries:
            self._save(kept)

    def _save(self, entries: tuple[Epoch, ...]) -> None:
        temporary = f"{self._path}.tmp"
        try:
            file = self._fs.open(temporary, create=True)
            try:
                file.truncate(0)
                file.pwrite(encode_epochs(entries), 0)
                file.fdatasync()
            finally:
                file.close()
            self._fs.rename(temporary, self._path)
            self._fs.fsync_dir(self._root)
        except OSError as e:
            if e.errno in NO_ROOM:
                raise StoreWriteFailed(self._path, e.strerror or str(e)) from e
            raise StoreFailed(self._path, e.strerror or str(e)) from e
        self.entries = entries
