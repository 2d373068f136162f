"""Intermediate files of a distributed rebuild: the parsed chunks of each split, by group of queues, until queues and key index are built.

::

    chunk 0                                    chunk 1
    +---------+---------+-----+---------------+---------+----
    | group 0 | group 1 | ... | key entries   | group 0 | ...         a group: its queue chunks as MessagePack, empty if none
    +---------+---------+-----+---------------+---------+----         key entries: all hashes (i32), all log offsets (i64), all times (i64)

A task that builds a group's queues, or one index file, reads only its pieces of every chunk, in log order. Numbers are little-endian.
Import this module late: it brings numpy.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from sprocketmq.protocol.hashing import crc32
from sprocketmq.storage.chunks import KeyEntries, ParsedChunk, QueueChunk
from sprocketmq.storage.fs import FileSystem

_HASH = np.dtype("<i4")
_LONG = np.dtype("<i8")
ENTRY_BYTES = 20

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[QueueChunk]).decode


class SpooledChunk(NamedTuple):
    """A parsed chunk in the file at ``path``: group g is between ``borders[g]`` and ``borders[g + 1]``, the keys follow.

    The other fields are those of ``ParsedChunk``; ``entries`` is the number of its key entries.
    """

    start: int
    end: int
    records: int
    last_log_offset: int
    last_time_ms: int
    path: str
    borders: tuple[int, ...]
    entries: int


class Piece(NamedTuple):
    """``length`` bytes, or key entries, of a file: from ``file_pos`` on; for entries, ``of`` begin there and ``skip`` are skipped."""

    path: str
    file_pos: int
    length: int
    skip: int = 0
    of: int = 0


class Spool:
    """One file under construction."""

    def __init__(self, fs: FileSystem, path: str, groups: int) -> None:
        self._file = fs.open(path, create=True)
        self._groups = groups
        self._end = 0

    def add(self, chunk: ParsedChunk) -> SpooledChunk:
        """Append a chunk and return its location. Raises OSError."""
        groups: list[list[QueueChunk]] = [[] for _ in range(self._groups)]
        for queue_chunk in chunk.queue_chunks:
            groups[(crc32(queue_chunk.topic) + queue_chunk.queue_id) % self._groups].append(queue_chunk)
        pieces = [_encode(group) if group else b"" for group in groups]
        borders = [self._end]
        for piece in pieces:
            borders.append(borders[-1] + len(piece))
        entries = 0
        if chunk.keys is not None:
            entries = len(chunk.keys.hashes)
            columns = ((chunk.keys.hashes, _HASH), (chunk.keys.log_offsets, _LONG), (chunk.keys.times_ms, _LONG))
            pieces += [np.ascontiguousarray(column, kind).tobytes() for column, kind in columns]
        data = b"".join(pieces)
        self._file.pwrite(data, self._end)
        self._end += len(data)
        return SpooledChunk(*chunk[:5], self._file.path, tuple(borders), entries)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def group_pieces(chunks: Iterable[SpooledChunk], group: int) -> list[Piece]:
    """Return the pieces with the queue chunks of a group, in log order."""
    return [
        Piece(chunk.path, chunk.borders[group], chunk.borders[group + 1] - chunk.borders[group])
        for chunk in chunks
        if chunk.borders[group + 1] > chunk.borders[group]
    ]


def entry_pieces(chunks: Iterable[SpooledChunk], per_file: int) -> list[list[Piece]]:
    """Return the pieces of each index file, which takes ``per_file`` entries, in log order."""
    files: list[list[Piece]] = []
    room = 0
    for chunk in chunks:
        skip = 0
        while skip < chunk.entries:
            if not room:
                files.append([])
                room = per_file
            count = min(room, chunk.entries - skip)
            files[-1].append(Piece(chunk.path, chunk.borders[-1], count, skip, chunk.entries))
            skip += count
            room -= count
    return files


def read_chunks(fs: FileSystem, pieces: Iterable[Piece]) -> Iterator[list[QueueChunk]]:
    """Yield the queue chunks of pieces. Raises OSError."""
    for piece, data in _reads(fs, ((piece, piece.file_pos, piece.length) for piece in pieces)):
        yield _decode(data) if piece.length else []


def read_entries(fs: FileSystem, pieces: Iterable[Piece]) -> Iterator[KeyEntries]:
    """Yield the key entries of pieces. Raises OSError."""
    for piece, data in _reads(fs, ((piece, piece.file_pos, piece.of * ENTRY_BYTES) for piece in pieces)):
        some = slice(piece.skip, piece.skip + piece.length)
        hashes = np.frombuffer(data, _HASH, piece.of)[some]
        log_offsets = np.frombuffer(data, _LONG, piece.of, 4 * piece.of)[some]
        yield KeyEntries(hashes, log_offsets, np.frombuffer(data, _LONG, piece.of, 12 * piece.of)[some])


def last_entry(fs: FileSystem, piece: Piece) -> tuple[int, int]:
    """Return time (ms) and log offset of the last key entry of a piece. Raises OSError."""
    entries = next(read_entries(fs, [piece]))
    return int(entries.times_ms[-1]), int(entries.log_offsets[-1])


def _reads(fs: FileSystem, pieces: Iterable[tuple[Piece, int, int]]) -> Iterator[tuple[Piece, bytes]]:
    path = ""
    file = None
    try:
        for piece, file_pos, length in pieces:
            if file is None or piece.path != path:
                if file is not None:
                    file.close()
                path = piece.path
                file = fs.open(path, read_only=True)
            data = file.pread(length, file_pos)
            if len(data) != length:
                raise OSError(5, f"the file is {length - len(data)} bytes too short", path)
            yield piece, data
    finally:
        if file is not None:
            file.close()
