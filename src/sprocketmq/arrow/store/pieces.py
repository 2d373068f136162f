"""What a task reads of a store: byte ranges of commit log segments, queue files and index files, and known damage."""

from collections.abc import Iterable
from typing import NamedTuple

from sprocketmq.errors import StoreDamaged


class LogPiece(NamedTuple):
    """Bytes ``[start, end)`` of the segment at log offset ``base``. Records begin at ``start``, and at ``end`` unless none follow."""

    path: str
    base: int
    start: int
    end: int
    segment_bytes: int

    @property
    def weight(self) -> int:
        """Bytes to read."""
        return self.end - self.start


class UnitPiece(NamedTuple):
    """Bytes ``[start, end)`` of a queue file. ``first`` is the number of the file's first unit in the queue."""

    path: str
    topic: str
    queue_id: int
    first: int
    start: int
    end: int

    @property
    def weight(self) -> int:
        """Bytes to read."""
        return self.end - self.start


class IndexPiece(NamedTuple):
    """Entries in bytes ``[start, end)`` of an index file with ``slots`` hash slots. Times are relative to ``begin_ms``."""

    path: str
    slots: int
    begin_ms: int
    start: int
    end: int

    @property
    def weight(self) -> int:
        """Bytes to read."""
        return self.end - self.start


class DamagePiece(NamedTuple):
    """Unreadable bytes ``[start, end)`` of a file and the reason: one row of a damage report."""

    path: str
    start: int
    end: int
    problem: str

    @property
    def weight(self) -> int:
        """Nothing is read."""
        return 0


Piece = LogPiece | UnitPiece | IndexPiece | DamagePiece


def pack(pieces: Iterable[Piece], split_bytes: int) -> list[list[Piece]]:
    """Group neighbouring pieces into tasks of up to ``split_bytes``."""
    tasks: list[list[Piece]] = []
    room = -1
    for piece in pieces:
        if piece.weight > room:
            tasks.append([])
            room = split_bytes
        tasks[-1].append(piece)
        room -= piece.weight
    return tasks


def damaged(path: str, at: int, problem: str) -> StoreDamaged:
    """Return the error to raise when damage fails a read."""
    return StoreDamaged(path, at, f"{problem}. Option onCorrupt=skip reads on behind it, onCorrupt=report also lists it in column corrupt")
