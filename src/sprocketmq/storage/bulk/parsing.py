"""Parsing a range of the commit log with arrays instead of objects: the fast counterpart of ``recovery.parse_records``.

The sizes of the records are walked one by one, as each gives the start of the next. Everything else is done for all of them at once:
heads are gathered into a structured array, lengths and log offsets checked, topics distinguished, records grouped by queue, units packed.
Property strings of one length form a table, and rows with the same names at the same positions are decoded by columns. Bodies are only
read for their CRC. Rare records go through ``recovery.parse_record`` one by one: the second record version and IPv6 hosts.

This module brings numpy; import it late.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sprocketmq.protocol.codes import (
    SYSFLAG_ANY_HOST_V6,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_TRANSACTION_COMMITTED,
    SYSFLAG_TRANSACTION_MASK,
)
from sprocketmq.protocol.hashing import full_crc32, java_hash
from sprocketmq.protocol.layout import FIXED_OVERHEAD, INT32, MAGIC_V1, MAGIC_V2, RECORD_HEAD_BYTES, RECORD_LAYOUT
from sprocketmq.protocol.names import SCHEDULE_TOPIC
from sprocketmq.storage.bulk.property_tables import KeySeeds, PropertyLayout
from sprocketmq.storage.chunks import KeyEntries, ParsedChunk, QueueChunk
from sprocketmq.storage.index.key_hashing import entries_of_topics
from sprocketmq.storage.layout_arrays import BATCH_UNIT_DTYPE, QUEUE_UNIT_DTYPE, dtype_of, values_at
from sprocketmq.storage.log.recovery import (
    SECTOR_BYTES,
    Scanned,
    covered_offsets,
    is_whole_batch,
    parse_record,
    sector_lost,
    unit_code,
)

_HEAD = dtype_of(
    RECORD_LAYOUT, "size", "magic", "crc", "queue_id", "queue_offset", "log_offset", "sys_flag", "store_time_ms", "body_length"
)
_ROLLED_BACK = SYSFLAG_TRANSACTION_MASK
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
# Topics of one name length are distinguished by comparing all of them with one; beyond this many, with a dictionary.
_MAX_COMPARED_TOPICS = 16
# A table of property strings needs at least this many rows, and one length gets at most this many tables; the rest is read one by one.
_MIN_TABLE_ROWS = 40
_MAX_TABLES = 4
# After this many layouts that hardly any row shared, the properties of a range are too different for tables.
_MAX_POOR_LAYOUTS = 8
# Keys of the rest are extracted from this many property bytes at a time: hostile ones hold a key in every second byte.
_KEY_SLICE_BYTES = 1 << 18

# A chunk with more property bytes than this ends after _MAX_WORDS words: each may be a key, which takes 20 bytes in an answer.
_MANY_PROPERTY_BYTES = 1 << 20
_MAX_WORDS = 1 << 18
_NO_ENTRIES = KeyEntries(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))

_Ints = NDArray[np.int64]


def parse_chunk(
    view: memoryview, base: int, begin: int, limit: int, *, batch_topics: frozenset[bytes] = frozenset(), keys: bool = True
) -> ParsedChunk:
    """Parse the records that begin in ``[begin, limit)`` of ``view``; the last may end after ``limit``.

    ``view`` is a whole segment and begins at log offset ``base``; a record is expected at ``begin``. The chunk ends where the next
    record is not valid (body CRC included), and earlier when it has very many keys. Queues of ``batch_topics`` get 46-byte units.
    Without ``keys`` none are gathered.
    """
    records = _Records(view, base, begin, limit)
    if not records.count:
        return ParsedChunk(base + begin, base + begin, 0, 0, 0, [], None)
    records.find_topics()
    entries = records.read_properties(keys=keys)
    return ParsedChunk(
        start=base + begin,
        end=records.end,
        records=records.count,
        last_log_offset=int(records.log_offset[-1]),
        last_time_ms=int(records.store_time[-1]),
        queue_chunks=records.queue_chunks(batch_topics),
        keys=entries,
        unqueued=records.unqueued(batch_topics),
    )


class _Records:
    """The valid records at the beginning of a range, as columns; ``odd`` are those parsed one by one, by row."""

    def __init__(self, view: memoryview, base: int, begin: int, limit: int) -> None:
        self.view = view
        starts = _walk(view, begin, limit)
        data = np.frombuffer(view, np.uint8)
        file_pos = np.array(starts, np.int64)
        heads = values_at(view, file_pos, _HEAD)
        size = heads["size"].astype(np.int64)
        body = heads["body_length"].astype(np.int64)
        sys_flag = heads["sys_flag"].astype(np.int64)
        odd = (heads["magic"] == MAGIC_V2) | ((sys_flag & SYSFLAG_ANY_HOST_V6) != 0)
        good = (
            (heads["magic"] == MAGIC_V1)
            & ~odd
            & (heads["log_offset"] == file_pos + base)
            & (heads["queue_id"] >= 0)
            & (heads["queue_offset"] >= 0)
            & (body >= 0)
            & (body <= size - FIXED_OVERHEAD)
        )
        # Only good rows are read beyond the head; the others read their own first bytes instead.
        topic_pos = np.where(good, file_pos + RECORD_HEAD_BYTES + body, file_pos)
        topic_length = data[topic_pos].astype(np.int64)
        good &= (topic_length > 0) & (topic_length <= size - body - FIXED_OVERHEAD)
        length_pos = np.where(good, topic_pos + 1 + topic_length, file_pos)
        properties_length = data[length_pos].astype(np.int64) << 8 | data[length_pos + 1]
        good &= (properties_length == size - body - topic_length - FIXED_OVERHEAD) & (properties_length < 1 << 15)

        count = _leading(good | odd)
        self.odd: dict[int, Scanned] = {}
        for row in np.flatnonzero(odd[:count]).tolist():
            record = parse_record(view, base, starts[row], check_crc=True)
            if record is None:
                count = row
                break
            self.odd[row] = record
        body_pos = file_pos + RECORD_HEAD_BYTES
        body_end = np.where(good, topic_pos, body_pos)
        crcs = [full_crc32(view[a:b]) for a, b in zip(body_pos[:count].tolist(), body_end[:count].tolist(), strict=True)]
        same = (np.array(crcs, np.int64) & 0x7FFFFFFF) == heads["crc"][:count]
        count = _leading(same | (body[:count] <= 0) | odd[:count])
        # Sectors that were lost show in the last byte, except in the middle of long properties.
        last_byte = data[np.where(good, file_pos + size - 1, file_pos)]
        torn = good & (properties_length > 0) & ((properties_length >= SECTOR_BYTES) | (last_byte == 0))
        for row in np.flatnonzero(torn[:count]).tolist():
            properties = bytes(view[int(length_pos[row]) + 2 : starts[row] + int(size[row])])
            if sector_lost(properties, base + int(length_pos[row]) + 2):
                count = row
                break
        if (
            int(np.where(good, properties_length, 0)[:count].sum()) + sum(len(record.properties) for record in self.odd.values())
            > _MANY_PROPERTY_BYTES
        ):
            words = _blanks(data, begin, length_pos[:count] + 2, file_pos[:count] + size[:count], good[:count])
            for row, record in self.odd.items():
                if row < count:
                    words[row] = record.properties.count(b" ")
            count = min(count, max(1, int(np.searchsorted(np.cumsum(words), _MAX_WORDS))))
        inner = np.flatnonzero(good[:count] & ((sys_flag[:count] & SYSFLAG_INNER_BATCH) != 0))
        for row in inner.tolist():
            properties = bytes(view[int(length_pos[row]) + 2 : starts[row] + int(size[row])])
            covered = covered_offsets(properties, 0)[1]
            if not is_whole_batch(view[int(body_pos[row]) : int(topic_pos[row])], covered, int(sys_flag[row])):
                count = row
                break
        self.count = count
        if not count:
            return

        self.end = base + starts[count - 1] + int(size[count - 1])
        self.size = size[:count]
        self.sys_flag = sys_flag[:count]
        self.log_offset = file_pos[:count] + base
        self.queue_id = heads["queue_id"][:count].astype(np.int64)
        self.queue_offset = heads["queue_offset"][:count].astype(np.int64)
        self.store_time = heads["store_time_ms"][:count].astype(np.int64)
        self.covered = np.ones(count, np.int64)
        self.code = np.zeros(count, np.int64)
        self.usual = np.flatnonzero(good[:count])
        self.topic_pos = topic_pos[:count] + 1
        self.topic_length = topic_length[:count]
        self.properties_pos = length_pos[:count] + 2
        self.properties_length = properties_length[:count]
        self.odd = {row: record for row, record in self.odd.items() if row < count}
        for row, record in self.odd.items():
            self.queue_id[row] = record.queue_id
            self.queue_offset[row] = record.queue_offset
            self.code[row] = record.tags_code
            self.store_time[row] = record.store_time_ms
            self.covered[row] = record.count

    def find_topics(self) -> None:
        """Distinguish the topics: fill ``names``, and for each row the index of its topic in it."""
        self.names: list[bytes] = []
        self.topic = np.zeros(self.count, np.int64)
        numbers: dict[bytes, int] = {}

        def number(name: bytes) -> int:
            if name not in numbers:
                numbers[name] = len(self.names)
                self.names.append(name)
            return numbers[name]

        for row, record in self.odd.items():
            self.topic[row] = number(record.topic)
        lengths = self.topic_length[self.usual]
        for length in np.flatnonzero(np.bincount(lengths)).tolist():
            rows = self.usual[lengths == length]
            names = values_at(self.view, self.topic_pos[rows], f"V{length}")
            for _ in range(_MAX_COMPARED_TOPICS):
                same = names == names[0]
                self.topic[rows[same]] = number(names[0].tobytes())
                rows, names = rows[~same], names[~same]
                if not len(rows):
                    break
            raw = names.tobytes()
            self.topic[rows] = [number(raw[start : start + length]) for start in range(0, len(raw), length)]

    def read_properties(self, *, keys: bool) -> KeyEntries | None:
        """Fill in tag codes and the queue offsets of inner batches; return the key entries of all records, in log order."""
        rest = self.usual
        parked = self.names.index(_SCHEDULE_TOPIC) if _SCHEDULE_TOPIC in self.names else -1
        special = ((self.sys_flag[rest] & SYSFLAG_INNER_BATCH) != 0) | (self.topic[rest] == parked)
        texts: dict[int, bytes] = {row: record.properties for row, record in self.odd.items()}
        for row in rest[special].tolist():
            text = self._properties(row)
            texts[row] = text
            self.code[row] = unit_code(self.names[self.topic[row]], text, int(self.store_time[row]))
            if self.sys_flag[row] & SYSFLAG_INNER_BATCH:
                self.queue_offset[row], self.covered[row] = covered_offsets(text, int(self.queue_offset[row]))
        rest = rest[~special]

        entries: list[KeyEntries] = []
        seeds = [java_hash(name.decode("utf-8", "replace") + "#") & 0xFFFFFFFF for name in self.names]
        tag_seeds = [java_hash(name.decode("utf-8", "replace") + "#T#") & 0xFFFFFFFF for name in self.names]
        starts = KeySeeds(np.array(seeds, np.uint32), np.array(tag_seeds, np.uint32))
        lengths = self.properties_length[rest]
        left: list[_Ints] = []
        poor = 0
        for length in np.flatnonzero(np.bincount(lengths)).tolist():
            rows = rest[lengths == length]
            if not length:
                continue
            for _ in range(_MAX_TABLES):
                if len(rows) < _MIN_TABLE_ROWS or poor >= _MAX_POOR_LAYOUTS:
                    break
                table = values_at(self.view, self.properties_pos[rows], f"V{length}").view(np.uint8).reshape(len(rows), length)
                layout = PropertyLayout(table[0].tobytes())
                fits = layout.fitting(table)
                if fits.all():
                    taken, rows = rows, rows[:0]
                else:
                    taken, table, rows = rows[fits], table[fits], rows[~fits]
                poor += len(taken) < _MIN_TABLE_ROWS
                if not len(taken):
                    left.append(rows[:1])
                    rows = rows[1:]
                    continue
                columns = np.ascontiguousarray(table.T).astype(np.uint32)
                self.code[taken] = layout.codes(columns)
                if keys:
                    indexed = (self.sys_flag[taken] & SYSFLAG_TRANSACTION_MASK) != _ROLLED_BACK
                    if not indexed.all():
                        taken, columns = taken[indexed], columns[:, indexed]
                    hashes = layout.key_hashes(columns, starts, self.topic[taken])
                    if hashes.size:
                        each = hashes.shape[1]
                        times = np.repeat(self.store_time[taken], each)
                        entries.append(KeyEntries(hashes.reshape(-1), np.repeat(self.log_offset[taken], each), times))
            left.append(rows)
        if left:
            rows = np.concatenate(left)
            begins = self.properties_pos[rows].tolist()
            ends = (self.properties_pos[rows] + self.properties_length[rows]).tolist()
            found = [bytes(self.view[begin:end]) for begin, end in zip(begins, ends, strict=True)]
            self.code[rows] = [unit_code(b"", text, 0) for text in found]
            texts.update(zip(rows.tolist(), found, strict=True))
        if not keys:
            return None
        entries += self._keys_of(texts)
        return _merged(entries)

    def _properties(self, row: int) -> bytes:
        file_pos = int(self.properties_pos[row])
        return bytes(self.view[file_pos : file_pos + int(self.properties_length[row])])

    def _keys_of(self, texts: dict[int, bytes]) -> list[KeyEntries]:
        """Return the key entries of single records, given by row and property string."""
        rows = np.array(sorted(texts), np.int64)
        rows = rows[(self.sys_flag[rows] & SYSFLAG_TRANSACTION_MASK) != _ROLLED_BACK]
        strings = [texts[row] for row in rows.tolist()]
        entries = []
        first = gathered = 0
        for i, text in enumerate(strings, 1):
            gathered += len(text)
            if gathered >= _KEY_SLICE_BYTES or i == len(strings):
                some = rows[first:i]
                found = entries_of_topics(self.names, self.topic[some], strings[first:i], self.log_offset[some], self.store_time[some])
                entries.append(found)
                first = i
                gathered = 0
        return entries

    def queue_chunks(self, batch_topics: frozenset[bytes]) -> list[QueueChunk]:
        """Return the units of all records that have one, by queue."""
        transaction = self.sys_flag & SYSFLAG_TRANSACTION_MASK
        wanted = (transaction == 0) | (transaction == SYSFLAG_TRANSACTION_COMMITTED)
        batch = np.array([name in batch_topics for name in self.names], np.bool_)[self.topic]
        wanted &= batch | ((self.sys_flag & SYSFLAG_INNER_BATCH) == 0)
        key = self.topic << 32 | self.queue_id
        rows = np.flatnonzero(wanted)
        if len(rows) and (key[rows] != key[rows[0]]).any():
            rows = rows[np.argsort(key[rows], kind="stable")]
        key, first, covered = key[rows], self.queue_offset[rows], self.covered[rows]
        borders = np.flatnonzero((key[1:] != key[:-1]) | (first[1:] != first[:-1] + covered[:-1])) + 1
        begins = [0, *borders.tolist()] if len(rows) else []
        ends = [*borders.tolist(), len(rows)]
        units = self._units(rows)
        batch_units = self._batch_units(rows) if batch.any() else units
        found = []
        for begin, end in zip(begins, ends, strict=bool(begins)):
            row = int(rows[begin])
            found.append(
                QueueChunk(
                    topic=self.names[self.topic[row]],
                    queue_id=int(self.queue_id[row]),
                    first_offset=int(first[begin]),
                    next_offset=int(first[end - 1] + covered[end - 1]),
                    first_log_offset=int(self.log_offset[row]),
                    units=(batch_units if batch[row] else units)[begin:end].tobytes(),
                )
            )
        found.sort(key=lambda queue_chunk: queue_chunk.first_log_offset)  # queues are created in log order
        return found

    def unqueued(self, batch_topics: frozenset[bytes]) -> tuple[bytes, ...]:
        """Return the topics with inner batches that are not among ``batch_topics``."""
        inner = np.unique(self.topic[(self.sys_flag & SYSFLAG_INNER_BATCH) != 0]).tolist()
        return tuple(self.names[number] for number in inner if self.names[number] not in batch_topics)

    def _units(self, rows: _Ints) -> NDArray[Any]:
        units = np.empty(len(rows), QUEUE_UNIT_DTYPE)
        units["log_offset"] = self.log_offset[rows]
        units["size"] = self.size[rows]
        units["tags_code"] = self.code[rows]
        return units

    def _batch_units(self, rows: _Ints) -> NDArray[Any]:
        units = np.zeros(len(rows), BATCH_UNIT_DTYPE)
        units["log_offset"] = self.log_offset[rows]
        units["size"] = self.size[rows]
        units["tags_code"] = self.code[rows]
        units["store_time_ms"] = self.store_time[rows]
        units["queue_offset"] = self.queue_offset[rows]
        units["count"] = self.covered[rows]
        units["compacted_offset"] = -1
        return units


def _merged(entries: list[KeyEntries]) -> KeyEntries:
    """Merge key entries into one array set, in log order."""
    entries = [some for some in entries if len(some.hashes)] or [_NO_ENTRIES]
    if len(entries) == 1:
        return entries[0]
    log_offsets = np.concatenate([some.log_offsets for some in entries])
    order = np.argsort(log_offsets, kind="stable")  # a record's entries are in one of them, in their order
    hashes = np.concatenate([some.hashes for some in entries])
    times = np.concatenate([some.times_ms for some in entries])
    return KeyEntries(hashes[order], log_offsets[order], times[order])


def _walk(view: memoryview, begin: int, limit: int) -> list[int]:
    """Return the positions of records in ``[begin, limit)``, following the record sizes as far as they are plausible."""
    starts: list[int] = []
    add = starts.append
    unpack = INT32.unpack_from
    total = len(view)
    limit = min(limit, total - FIXED_OVERHEAD + 1)
    file_pos = begin
    previous = repeated = 0
    probe = 64
    while file_pos < limit:
        size = unpack(view, file_pos)[0]
        if size < FIXED_OVERHEAD or size > total - file_pos:
            break
        if size == previous:
            repeated += 1
            if repeated >= 8:
                # Many of one size: look at a stride of them at once.
                many = min(probe, (limit - file_pos - 1) // size + 1, (total - file_pos) // size)
                sizes = np.ndarray((many,), ">i4", view, file_pos, (size,))
                same = _leading(sizes == size)
                starts.extend(range(file_pos, file_pos + same * size, size))
                file_pos += same * size
                repeated = 0
                probe = min(probe * 2, 1 << 16) if same == many else 64
                continue
        else:
            previous = size
            repeated = 0
        add(file_pos)
        file_pos += size
    return starts


def _blanks(data: NDArray[np.uint8], begin: int, starts: _Ints, ends: _Ints, which: NDArray[np.bool_]) -> _Ints:
    """Return how many blanks are in each of some stretches of ``data``, none of them before ``begin``; 0 for those not in ``which``."""
    blanks = np.flatnonzero(data[begin : int(ends[-1])] == 0x20) + begin
    return np.where(which, np.searchsorted(blanks, ends) - np.searchsorted(blanks, starts), 0)


def _leading(flags: NDArray[np.bool_]) -> int:
    """Return how many are true before the first false one."""
    return len(flags) if flags.all() else int(flags.argmin())
