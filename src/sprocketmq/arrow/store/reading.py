"""Read pieces of store files into Arrow batches, without a broker.

Record sizes are followed some megabytes at a time; everything else is decoded in arrays by ``PulledRows``, straight from the mapped file.
Bodies are touched only for column ``body`` or ``verifyCrc``.

Where no record is found, the next one is searched for and the bytes between are damage: it fails the read, is left out, or becomes a row
that states its place and the problem.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from sprocketmq.arrow.decode import decode_rows
from sprocketmq.arrow.pulled_rows import PulledRows
from sprocketmq.arrow.store.pieces import IndexPiece, LogPiece, Piece, UnitPiece, damaged
from sprocketmq.arrow.store.tables import CORRUPT, CORRUPT_TYPE, StoreOptions, store_arrow_schema
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.codes import SYSFLAG_ANY_HOST_V6, SYSFLAG_INNER_BATCH
from sprocketmq.protocol.hashing import full_crc32
from sprocketmq.protocol.layout import (
    BLANK,
    FILLER_SIZE,
    FIXED_OVERHEAD,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    INT32,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_HEAD_BYTES,
    RECORD_LAYOUT,
)
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import REAL_FS, FileSystem, will_need
from sprocketmq.storage.inspect.record_items import PROPERTY_CRC_BYTES, dissect, property_crc
from sprocketmq.storage.inspect.segment_items import next_record
from sprocketmq.storage.layout_arrays import BATCH_UNIT_DTYPE, INDEX_ENTRY_DTYPE, QUEUE_UNIT_DTYPE, dtype_of, values_at
from sprocketmq.storage.log.recovery import parse_record

log = logging.getLogger(__name__)

# Units or index entries read at once: some megabytes of file and of columns.
_ROWS_AT_ONCE = 1 << 16
# Records whose body is at another offset, or is a batch whose message count must match its properties.
_UNUSUAL = SYSFLAG_ANY_HOST_V6 | SYSFLAG_INNER_BATCH
_UNDERSCORE = ord("_")
# After so many records of one length in a row, an array search for more of them pays off.
_ALIKE = 16

_HEAD = dtype_of(RECORD_LAYOUT, "magic", "queue_id", "queue_offset", "log_offset")
_MAX_MS = (2**63 - 1) // 1000


class StoreReader:
    """Reads pieces one after the other into batches of the columns in ``options``."""

    def __init__(self, options: StoreOptions, fs: FileSystem = REAL_FS) -> None:
        self._options = options
        self._fs = fs
        self._schema = store_arrow_schema(options)
        self._of_file = {name for name in options.columns if name in ("file", CORRUPT)}
        # A batch without columns would lose its number of rows.
        self._decoded = [name for name in options.columns if name not in self._of_file] or ["queueId"]
        self._unwrap = options.inner_batch == "unwrap"
        self._touches_bodies = "body" in options.columns or options.verify_crc
        self._topics = [topic.encode() for topic in options.topics]

    def read(self, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the pieces in order.

        Raises StoreDamaged at damage with onCorrupt=fail; also for a file that was removed, became unreadable or became shorter after the
        read was planned.
        """
        for piece in pieces:
            try:
                if isinstance(piece, LogPiece):
                    yield from self._log(piece)
                elif isinstance(piece, UnitPiece):
                    yield from self._units(piece)
                elif isinstance(piece, IndexPiece):
                    yield from self._entries(piece)
                else:
                    yield from self._damage(piece.path, piece.start, piece.end, piece.problem)
            except FileNotFoundError:
                what = "the file was removed after the read was planned: the broker expired it, or somebody moved it"
                yield from self._damage(piece.path, piece.start, piece.end, what)
            except OSError as e:
                yield from self._damage(piece.path, piece.start, piece.end, f"the file cannot be read: {e.strerror or e}")

    # --- rows ---

    def _with_file_columns(self, path: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the columns ``file`` and ``corrupt`` to decoded rows."""
        if not self._of_file:
            return batch
        count = batch.num_rows
        arrays = []
        for name in self._options.columns:
            if name == "file":
                arrays.append(pa.repeat(pa.scalar(path), count))
            elif name == CORRUPT:
                arrays.append(pa.nulls(count, CORRUPT_TYPE))
            else:
                arrays.append(batch.column(name))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _damage(self, path: str, start: int, end: int, problem: str) -> Iterator[pa.RecordBatch]:
        """Handle unreadable bytes as option onCorrupt says: raise, log a warning, or yield a row for the report."""
        if self._options.on_corrupt == "fail":
            raise damaged(path, start, problem)
        if self._options.on_corrupt == "skip":
            log.warning("leaving out bytes %d to %d of %s (onCorrupt is skip): %s", start, end, path, problem)
            return
        found = {"file": path, "offset": start, "length": end - start, "problem": problem}
        arrays = []
        for field in self._schema:
            if field.name == CORRUPT:
                arrays.append(pa.array([found], CORRUPT_TYPE))
            else:
                arrays.append(pa.array([path if field.name == "file" else None], field.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    # --- the commit log ---

    def _log(self, piece: LogPiece) -> Iterator[pa.RecordBatch]:
        file = self._fs.open(piece.path, read_only=True)
        try:
            # Reading a mapping beyond the end of its file would kill the process (SIGBUS).
            end = min(piece.end, file.size())
            view = file.map(end) if end else memoryview(b"")
        finally:
            file.close()
        if end < piece.end:
            what = f"the file ends at byte {end}: it has become shorter since the read was planned"
            yield from self._damage(piece.path, end, piece.end, what)
        at, since = piece.start, 0
        while at < end:
            if self._touches_bodies:
                will_need(view, at, at + 2 * self._options.batch_bytes)
            bounds = _chain(view, piece.base, at, self._options.batch_bytes)
            rows = None
            if len(bounds) > 1:
                try:
                    rows = self._located(view, bounds)
                except RemoteProtocolError:
                    bounds = _leading_whole(view, piece.base, bounds)
            if len(bounds) == 1:
                if _ends_in_blank(view, at, piece):
                    return
                begin = at
                found, problem = self._next_after_damage(piece, begin, since)
                at = min(found, end)
                yield from self._damage(piece.path, begin, at, problem)
                continue
            failed = _failed_checks(view, piece.base, bounds) if self._options.verify_crc else []
            yield from self._records(piece, view, bounds, None if failed else rows, failed)
            at = int(bounds[-1])
            last = parse_record(view, piece.base, int(bounds[-2]), check_crc=False)
            since = since if last is None else last.store_time_ms

    def _located(self, view: memoryview, bounds: Any) -> PulledRows:
        return PulledRows(view[int(bounds[0]) : int(bounds[-1])], unwrap=self._unwrap, positions=bounds[:-1] - bounds[0])

    def _records(
        self, piece: LogPiece, view: memoryview, bounds: Any, rows: PulledRows | None, failed: list[int]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records between ``bounds``; records in ``failed`` and records that cannot be decoded are damage.

        ``rows`` are all records when none failed. Where decoding fails, shorter and shorter runs of records are tried, down to the bad
        record, and longer runs again after it.
        """
        first, count = 0, len(bounds) - 1
        step, given = count, 0  # given: rows yielded before the decoding of later ones failed
        stops = [*failed, count]
        while first < count:
            if first == stops[0]:
                at, end = bounds[first : first + 2].tolist()
                what = self._problem(piece, at) or "its batch has not as many messages as its properties say"
                yield from self._damage(piece.path, at, end, what)
                del stops[0]
                first += 1
                continue
            stop = min(first + step, stops[0])
            passed = 0
            try:
                if rows is None:
                    rows = self._located(view, bounds[first : stop + 1])
                if self._topics:
                    rows.keep_topics(self._topics)
                batches = decode_rows(
                    rows,
                    self._decoded,
                    self._options.broker_name,
                    batch_rows=self._options.batch_rows,
                    batch_bytes=self._options.batch_bytes,
                )
                for batch in batches:
                    if passed + batch.num_rows > given:
                        yield self._with_file_columns(piece.path, batch.slice(max(given - passed, 0)))
                    passed += batch.num_rows
            except RemoteProtocolError as e:
                rows, given = None, max(given, passed)
                if stop - first > 1:
                    step = max((stop - first) // 8, 1)
                    continue
                at, end = bounds[first : stop + 1].tolist()
                yield from self._damage(piece.path, at, end, self._problem(piece, at) or str(e))
            rows, given = None, max(given - passed, 0)
            first, step = stop, step * 2

    def _problem(self, piece: LogPiece, at: int) -> str:
        with FileView(self._fs, piece.path) as file:
            return dissect(file, at, piece.base, piece.segment_bytes - at).problem

    def _next_after_damage(self, piece: LogPiece, at: int, since: int) -> tuple[int, str]:
        """Return the start of the next record after damage (at most the end of the piece), and the problem at ``at``."""
        with FileView(self._fs, piece.path) as file:
            end = min(next_record(file, at, piece.base, piece.segment_bytes, since_ms=since), piece.end)
            found = dissect(file, at, piece.base, piece.segment_bytes - at)
            if not any(file.read(at, 8)):
                return end, "there are zeros where a record should be"
            return end, found.problem or f"a record of {found.length} bytes goes past byte {end}, where another begins"

    # --- queues and index ---

    def _units(self, piece: UnitPiece) -> Iterator[pa.RecordBatch]:
        is_batch = self._options.table == "batchcq"
        layout = BATCH_UNIT_DTYPE if is_batch else QUEUE_UNIT_DTYPE
        for at, units in self._rows_of(piece.path, piece.start, piece.end, layout):
            number = piece.first + at // layout.itemsize
            good = (units["log_offset"] >= 0) & (units["size"] > 0)
            if is_batch:
                good &= (units["queue_offset"] >= 0) & (units["count"] > 0)
            for first, stop in _runs(~good):
                fields = ", ".join(
                    f"{name} {units[name][first]}" for name in ("log_offset", "size", *(("queue_offset", "count") if is_batch else ()))
                )
                what = f"{stop - first} units from number {number + first} on are impossible ({fields})"
                yield from self._damage(piece.path, at + first * layout.itemsize, at + stop * layout.itemsize, what)
            if not is_batch:
                good &= (units["log_offset"] != 0) | (units["size"] != FILLER_SIZE)
            kept = np.flatnonzero(good)
            found = units[kept]
            columns = {
                "topic": pa.repeat(pa.scalar(piece.topic), len(kept)),
                "queueId": pa.repeat(pa.scalar(piece.queue_id, pa.int32()), len(kept)),
                "queueOffset": _numbers(found["queue_offset"], np.int64) if is_batch else pa.array(kept + number),
                "commitLogOffset": _numbers(found["log_offset"], np.int64),
                "size": _numbers(found["size"], np.int32),
                "tagsCode": _numbers(found["tags_code"], np.int64),
            }
            if is_batch:
                columns["batchBaseOffset"] = columns["queueOffset"]
                columns["batchNum"] = _numbers(found["count"], np.int32)
                columns["storeTimestamp"] = _timestamps(found["store_time_ms"])
            yield from self._built(piece.path, len(kept), columns)

    def _entries(self, piece: IndexPiece) -> Iterator[pa.RecordBatch]:
        first = INDEX_HEADER_BYTES + 4 * piece.slots
        for at, entries in self._rows_of(piece.path, piece.start, piece.end, INDEX_ENTRY_DTYPE):
            good = (entries["key_hash"] >= 0) & (entries["log_offset"] >= 0) & (entries["seconds"] >= 0)
            for begin, stop in _runs(~good):
                fields = ", ".join(f"{name} {entries[name][begin]}" for name in ("key_hash", "log_offset", "seconds"))
                number = (at - first) // INDEX_ENTRY_BYTES + begin
                what = f"{stop - begin} entries from number {number} on are impossible ({fields})"
                yield from self._damage(piece.path, at + begin * INDEX_ENTRY_BYTES, at + stop * INDEX_ENTRY_BYTES, what)
            found = entries[good]
            columns = {
                "keyHash": _numbers(found["key_hash"], np.int32),
                "commitLogOffset": _numbers(found["log_offset"], np.int64),
                "timeDiff": _numbers(found["seconds"], np.int32),
                "storeTimestamp": _timestamps(piece.begin_ms + found["seconds"].astype(np.int64) * 1000),
                "slot": _numbers(found["key_hash"] % piece.slots, np.int32),
            }
            yield from self._built(piece.path, len(found), columns)

    def _rows_of(self, path: str, start: int, end: int, layout: Any) -> Iterator[tuple[int, Any]]:
        """Yield (file position, rows) of equally long rows in bytes ``[start, end)``, some at a time."""
        file = self._fs.open(path, read_only=True)
        try:
            while start < end:
                wanted = min(end - start, _ROWS_AT_ONCE * layout.itemsize)
                data = file.pread(wanted, start)
                whole = len(data) - len(data) % layout.itemsize
                if whole < wanted:
                    what = f"the file ends at byte {start + len(data)}: it has become shorter since the read was planned"
                    yield from self._damage(path, start + whole, end, what)
                    end = start + whole
                if whole:
                    yield start, np.frombuffer(data, layout, whole // layout.itemsize)
                start += wanted
        finally:
            file.close()

    def _built(self, path: str, count: int, columns: dict[str, pa.Array]) -> Iterator[pa.RecordBatch]:
        columns["file"] = pa.repeat(pa.scalar(path), count)
        columns[CORRUPT] = pa.nulls(count, CORRUPT_TYPE)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._options.columns], schema=self._schema)
        for start in range(0, count, self._options.batch_rows):
            yield batch.slice(start, self._options.batch_rows)


def _chain(view: memoryview, base: int, at: int, room: int) -> Any:
    """Return the starts of the records from ``at`` on and the end of the last: about ``room`` bytes, at least one record.

    The chain ends at bytes without a record's magic, with another log offset than their own, or that do not fit the view.
    """
    places: list[int] = []
    add = places.append
    unpack = INT32.unpack_from
    total = len(view)
    last = min(total - FIXED_OVERHEAD, at + room - 1)
    before = alike = 0
    while at <= last:
        (size,) = unpack(view, at)
        if size < FIXED_OVERHEAD or size > total - at:
            break
        add(at)
        at += size
        alike = alike + 1 if size == before else 0
        before = size
        if alike == _ALIKE and at <= last:
            # As long as records keep this length, their sizes are that many bytes apart.
            sizes: Any = np.ndarray((min((last - at) // size + 1, (total - at) // size),), ">i4", view, at, (size,))
            others = np.flatnonzero(sizes != size)
            run = int(others[0]) if len(others) else len(sizes)
            places += range(at, at + run * size, size)
            at += run * size
            alike = 0
    bounds = np.array([*places, at], np.int64)
    if places:
        heads = values_at(view, bounds[:-1], _HEAD)
        good = ((heads["magic"] == MAGIC_V1) | (heads["magic"] == MAGIC_V2)) & (heads["log_offset"] == bounds[:-1] + base)
        good &= (heads["queue_id"] >= 0) & (heads["queue_offset"] >= 0)
        if not good.all():
            bounds = bounds[: int(np.argmin(good)) + 1]
    return bounds


def _leading_whole(view: memoryview, base: int, bounds: Any) -> Any:
    """Return ``bounds`` up to the first record whose parts do not add up to its size."""
    for i, (at, end) in enumerate(pairwise(bounds.tolist())):
        if parse_record(view[:end], base, at, check_crc=False) is None:
            return bounds[: i + 1]
    return bounds


def _failed_checks(view: memoryview, base: int, bounds: Any) -> list[int]:
    """Return the records whose body or whole does not match its checksum."""
    failed = []
    unpack = INT32.unpack_from
    crc_at, sys_flag_at, length_at = (RECORD_LAYOUT.offset(name) for name in ("crc", "sys_flag", "body_length"))
    for i, (at, end) in enumerate(pairwise(bounds.tolist())):
        (sys_flag,) = unpack(view, at + sys_flag_at)
        if sys_flag & _UNUSUAL or not view[end - 1]:
            good = parse_record(view[:end], base, at, check_crc=True) is not None
        else:
            (length,) = unpack(view, at + length_at)
            body = at + RECORD_HEAD_BYTES
            good = not length or full_crc32(view[body : body + length]) & 0x7FFFFFFF == unpack(view, at + crc_at)[0]
        if good and view[end - PROPERTY_CRC_BYTES] == _UNDERSCORE:
            stated = property_crc(bytes(view[end - PROPERTY_CRC_BYTES : end]))
            good = stated is None or stated == full_crc32(view[at : end - PROPERTY_CRC_BYTES]) & 0x7FFFFFFF
        if not good:
            failed.append(i)
    return failed


def _ends_in_blank(view: memoryview, at: int, piece: LogPiece) -> bool:
    """Return whether the BLANK that fills the rest of the segment begins at ``at``."""
    return len(view) - at >= BLANK.size and BLANK.unpack_from(view, at) == (piece.segment_bytes - at, MAGIC_BLANK)


def _runs(marked: Any) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], marked, [False])).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _numbers(values: Any, kind: type) -> pa.Array:
    return pa.array(values.astype(kind))


def _timestamps(milliseconds: Any) -> pa.Array:
    # One that microseconds cannot hold becomes the nearest that they can.
    micros = np.clip(milliseconds.astype(np.int64), -_MAX_MS, _MAX_MS) * 1000
    return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(micros), [None, pa.py_buffer(micros)])
