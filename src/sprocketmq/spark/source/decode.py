"""Stored records as pulled, to Arrow columns.

A pull answers with records exactly as the commit log holds them (protocol/records.py draws one). Python walks their size fields,
which is the only step that must be sequential; everything else is done over all records of the buffer at once: header integers by
gathering windows of the buffer, bodies by one ``take`` over a binary array whose slots are the bodies and the gaps between them,
properties by looking for the two separator bytes in all property strings together.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.batch import ENTRY_OVERHEAD
from sprocketmq.protocol.codes import (
    SYSFLAG_BORN_HOST_V6,
    SYSFLAG_COMPRESSED,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_NEED_UNWRAP,
    SYSFLAG_STORE_HOST_V6,
)
from sprocketmq.protocol.compression import decompress
from sprocketmq.protocol.records import FIXED_OVERHEAD, MAGIC_V1, MAGIC_V2, unpack_host
from sprocketmq.spark.source.schema import MAP_TYPE, arrow_schema

# How many records of one size are looked at together, and how many at least make that worth while.
MOST_ALIKE = 1024
LEAST_ALIKE = 16

DEFAULT_BATCH_ROWS = 4000
DEFAULT_BATCH_BYTES = 4 << 20

# The start of a record whose hosts are IPv4, which every record is long enough for; up to the born host in every record.
_HEAD = np.dtype(
    [
        *(("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("queue_id", ">i4"), ("flag", ">i4"), ("offset", ">i8"), ("position", ">i8")),
        *(("sys_flag", ">i4"), ("born", ">i8"), ("born_host", "V8"), ("store", ">i8"), ("store_host", "V8"), ("reconsumed", ">i4")),
        *(("prepared", ">i8"), ("body_length", ">i4")),
    ]
)
_INT = Struct(">i").unpack_from
_INNER = SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP
_MAX_MS = (2**63 - 1) // 1000
# Two ASCII digits for each byte value.
_HEX = np.array([list(f"{i:02X}".encode()) for i in range(256)], np.uint8)


class PulledRows:
    """The messages of one buffer of whole records, located but not decoded; bodies are still compressed.

    With ``unwrap`` inner batches become the messages in them; without, each is one row, whose body is the batch as its producer encoded it.
    ``positions`` says where each record starts, in order, for a caller who has followed their sizes to the end of the buffer already.
    ``offsets`` are the queue offsets of the rows, in order, and ``counts`` how many offsets each takes: None means one. Raises
    RemoteProtocolError when a record does not fit the buffer, or the parts of a record do not make up its size.
    """

    __slots__ = (
        *("_array", "_batch", "_batch_num", "_body", "_body_length", "_born", "_compressed", "_data", "_flag_at", "_heads", "_inner"),
        *("_ipv4", "_props", "_props_length", "_rec", "_rec_pos", "_rec_size", "_store", "_sys", "_topic", "_topic_length"),
        *("counts", "offsets"),
    )

    def __init__(self, data: bytes | bytearray | memoryview, *, unwrap: bool = True, positions: Sequence[int] | None = None) -> None:
        self._data = data
        self._array = np.frombuffer(data, np.uint8)
        pos: Any = _record_positions(data) if positions is None else np.array(positions, np.int64)
        self._locate(pos)
        inner = (self._sys & _INNER) == _INNER
        if inner.any() and (self._compressed & inner).any():
            # No producer compresses batches. Should one do so, the records are written out again with plain bodies and located anew.
            self._data = _inflate_inner(data, pos, self._rec_size, self._body, self._body_length, self._sys, inner & self._compressed)
            self._array = np.frombuffer(self._data, np.uint8)
            self._locate(_record_positions(self._data))
            inner = (self._sys & _INNER) == _INNER
        self._flag_at: Any = None  # of each row, when some are messages out of inner batches; else records know
        self._inner: Any = None  # which rows are messages out of inner batches; None when none is
        self._batch: Any = None  # which rows are, or are of, an inner batch, and how many messages it has
        self._batch_num: Any = None
        self._rec: Any = None  # row -> record; None while every record is one row
        self.offsets = self._heads["offset"].astype(np.int64)
        self.counts: Any = None
        if inner.any():
            if unwrap:
                self._unwrap(inner)
            else:
                self._batch = inner
                self.counts = self._batch_num = self._stated_counts(inner)

    def _locate(self, pos: Any) -> None:
        """Find the parts of every record and check that they fit."""
        self._rec_pos = pos
        self._rec_size: Any = np.diff(np.append(pos, len(self._array)))
        _require(self._rec_size >= FIXED_OVERHEAD, "a record is shorter than the shortest there is")
        end = pos + self._rec_size
        heads = self._heads = self._gather(pos, f"V{_HEAD.itemsize}").view(_HEAD)  # copies bytes, where fields would be copied one by one
        _require(heads["size"] == self._rec_size, "a record does not end where the next begins")
        self._sys = heads["sys_flag"].astype(np.int32)
        magic = heads["magic"]
        v2 = magic == MAGIC_V2
        known = v2 | (magic == MAGIC_V1)
        if not known.all():
            at = int(np.argmin(known))
            raise RemoteProtocolError(f"record at byte {int(pos[at])} has magic {int(magic[at]) & 0xFFFFFFFF:#x}")
        self._born = np.where(self._sys & SYSFLAG_BORN_HOST_V6, 20, 8)
        self._store = np.where(self._sys & SYSFLAG_STORE_HOST_V6, 20, 8)
        self._ipv4 = not (self._sys & (SYSFLAG_BORN_HOST_V6 | SYSFLAG_STORE_HOST_V6)).any()
        self._compressed = (self._sys & SYSFLAG_COMPRESSED) != 0
        body = pos + 72 + self._born + self._store
        _require(body + 3 <= end, "a record is shorter than its header")
        length = (heads["body_length"] if self._ipv4 else self._int(body - 4)).astype(np.int64)
        topic = body + length + 1 + v2
        _require((length >= 0) & (topic + 2 <= end), "the body of a record does not fit its size")
        topic_length = self._array[topic - 1].astype(np.int64)
        if v2.any():
            topic_length = np.where(v2, self._short(topic - 2), topic_length)
        props = topic + topic_length + 2
        _require((topic_length >= 0) & (props <= end), "the topic of a record does not fit its size")
        props_length = self._short(props - 2).astype(np.int64)
        _require((props_length >= 0) & (props + props_length == end), "the parts of a record do not make up its size")
        self._body, self._body_length = body, length
        self._topic, self._topic_length = topic, topic_length
        self._props, self._props_length = props, props_length

    def _unwrap(self, inner: Any) -> None:
        """Replace each inner-batch record by the messages in its body."""
        counts: Any = np.ones(len(self._rec_pos), np.int64)
        counts[inner], entry = self._entries(self._body[inner], self._body_length[inner])
        rec: Any = np.repeat(np.arange(len(counts)), counts)
        first_row = np.cumsum(counts) - counts
        at = np.arange(len(rec)) - first_row[rec]
        is_inner = inner[rec]
        body, body_length = self._body[rec], self._body_length[rec]
        props, props_length = self._props[rec], self._props_length[rec]
        flag_at = self._rec_pos[rec] + 16  # as in _HEAD
        size = self._int(entry).astype(np.int64)
        length = self._int(entry + 16).astype(np.int64)
        _require((length >= 0) & (length <= size - ENTRY_OVERHEAD), "the body of an inner message does not fit its size")
        p = self._short(entry + 20 + length).astype(np.int64)
        _require((p >= 0) & (p + length + ENTRY_OVERHEAD == size), "the properties of an inner message do not fit its size")
        body[is_inner], body_length[is_inner] = entry + 20, length
        props[is_inner], props_length[is_inner] = entry + length + 22, p
        flag_at[is_inner] = entry + 12
        self._body, self._body_length, self._props, self._props_length, self._flag_at = body, body_length, props, props_length, flag_at
        self._compressed = self._compressed[rec] & ~is_inner
        self._inner = self._batch = is_inner
        self._batch_num = counts[rec]
        self._rec = rec
        self.offsets = self.offsets[rec] + at

    def _entries(self, start: Any, length: Any) -> tuple[Any, Any]:
        """Return how many messages each inner batch has, and where all of them start."""
        first = np.zeros(len(start), np.int64)
        some = length >= ENTRY_OVERHEAD
        first[some] = self._int(start[some])
        # Messages of one batch are often of one size: then it divides the batch, and stands where each of them would start.
        even = some & (first >= ENTRY_OVERHEAD)
        even[even] = length[even] % first[even] == 0
        counts: Any = np.where(even, length // np.maximum(first, 1), 0)
        of = np.repeat(np.arange(len(start)), counts)
        entry: Any = start[of] + (np.arange(len(of)) - (np.cumsum(counts) - counts)[of]) * first[of]
        even[of[self._int(entry) != first[of]]] = False
        if even.all():
            return counts, entry
        entries: list[Any] = []
        at = 0
        for i, is_even in enumerate(even.tolist()):
            stop = at + int(counts[i])
            if is_even:
                entries.append(entry[at:stop])
            else:
                walked = _walk_entries(self._data, int(start[i]), int(start[i] + length[i]))
                counts[i] = len(walked)
                entries.append(walked)
            at = stop
        return counts, np.concatenate(entries)

    def _stated_counts(self, inner: Any) -> Any:
        """Return how many messages each record holds, by what its broker wrote into its properties; one where that makes no sense."""
        counts: Any = np.ones(len(inner), np.int64)
        stated = _Pairs(self._slots(self._props[inner], self._props_length[inner])).column("INNER_NUM")
        counts[inner] = [int(text) if text and len(text) < 10 and text.isdecimal() else 1 for text in stated.to_pylist()]
        return counts

    def __len__(self) -> int:
        return len(self.offsets)

    def trim(self, start: int, end: int) -> None:
        """Keep the rows whose queue offset is in [start, end). An inner batch that holds ``start`` or ``end`` is cut there."""
        self._keep((self.offsets >= start) & (self.offsets < end))

    def keep_topics(self, topics: Collection[bytes]) -> None:
        """Keep the rows of the topics with these names."""
        wanted: Any = np.zeros(len(self._topic), bool)
        for name in topics:
            at = np.flatnonzero(self._topic_length == len(name))
            wanted[at] |= (self._window(self._topic[at], len(name)) == np.frombuffer(name, np.uint8)).all(axis=1)
        self._keep(wanted if self._rec is None else wanted[self._rec])

    def keep_tags(self, tags: Collection[str]) -> None:
        """Keep the rows with one of ``tags``: brokers compare hashes, and the tag of an inner batch for all messages in it."""
        found = _Pairs(self._slots(self._props, self._props_length)).column("TAGS").dictionary_encode()
        wanted = [i for i, tag in enumerate(found.dictionary.to_pylist()) if tag in tags]
        self._keep(np.isin(found.indices.fill_null(-1).to_numpy(), wanted))

    def _keep(self, keep: Any) -> None:
        if keep.all():
            return
        self._rec = np.flatnonzero(keep) if self._rec is None else self._rec[keep]
        for name in ("offsets", "_body", "_body_length", "_props", "_props_length", "_compressed"):
            setattr(self, name, getattr(self, name)[keep])
        for name in ("_flag_at", "_inner", "_batch", "_batch_num", "counts"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name)[keep])

    def batches(
        self,
        columns: Sequence[str],
        broker_name: str | None,
        *,
        batch_rows: int = DEFAULT_BATCH_ROWS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as batches of at most ``batch_rows`` rows and about ``batch_bytes`` of bodies (one row may be more).

        ``broker_name`` None: the records are from no broker anybody named, the column is null.
        """
        schema = arrow_schema(columns)
        want_body = "body" in columns
        total = np.cumsum(self._body_length + self._props_length)
        lo, rows = 0, len(self)
        while lo < rows:
            before = int(total[lo - 1]) if lo else 0
            hi = min(lo + batch_rows, max(lo + 1, int(np.searchsorted(total, before + batch_bytes, "right"))))
            hi = min(hi, rows)
            inflated: dict[int, bytes] = {}
            if want_body:
                hi = self._inflate(lo, hi, batch_bytes, inflated)
            yield _Batch(self, slice(lo, hi), broker_name, inflated).build(columns, schema)
            lo = hi

    def _inflate(self, lo: int, hi: int, limit: int, into: dict[int, bytes]) -> int:
        """Inflate the compressed bodies of rows lo to hi until they take ``limit`` bytes; return the row after the last one done."""
        held = 0
        rows: Any = np.flatnonzero(self._compressed[lo:hi]) + lo
        for row in rows.tolist():
            start = int(self._body[row])
            sys_flag = int(self._sys[row if self._rec is None else self._rec[row]])
            body = decompress(memoryview(self._data)[start : start + int(self._body_length[row])], sys_flag)
            into[row - lo] = body
            held += len(body)
            if held >= limit:
                return int(row) + 1
        return hi

    # --- gathering ---

    def _gather(self, at: Any, kind: Any) -> Any:
        """Return the values of type ``kind`` at each position, as stored."""
        return _values_at(self._array, at, kind)

    def _window(self, at: Any, width: int) -> Any:
        """Return the ``width`` bytes at each position, as a matrix."""
        return self._gather(at, f"V{width}").view(np.uint8).reshape(-1, width)

    def _int(self, at: Any) -> Any:
        return self._gather(at, ">i4").astype(np.int32)

    def _long(self, at: Any) -> Any:
        return self._gather(at, ">i8").astype(np.int64)

    def _short(self, at: Any) -> Any:
        return self._gather(at, ">i2").astype(np.int16)

    def _slots(self, at: Any, length: Any) -> pa.Array:
        """Return the pieces of the buffer as a compact binary array. ``at`` is increasing and pieces do not overlap."""
        base = int(at[0]) if len(at) else 0
        bounds: Any = np.zeros(2 * len(at) + 1, np.int32)
        bounds[:-1:2] = at - base
        bounds[1::2] = at + length - base
        bounds[-1] = bounds[-2] if len(at) else 0
        stop = base + int(bounds[-1])
        data = pa.py_buffer(memoryview(self._data)[base:stop])
        slots = pa.Array.from_buffers(pa.binary(), 2 * len(at), [None, pa.py_buffer(bounds), data])
        return slots.take(pa.array(np.arange(len(at), dtype=np.int64) * 2))


class _Batch:
    """Builds the columns of one slice of rows."""

    def __init__(self, rows: PulledRows, part: slice, broker_name: str | None, inflated: dict[int, bytes]) -> None:
        self.rows = rows
        self.part = part
        self.count = part.stop - part.start
        self.broker_name = broker_name
        self.inflated = inflated
        self.rec = np.arange(part.start, part.stop) if rows._rec is None else rows._rec[part]
        self.pos = rows._rec_pos[self.rec]
        self.after_born = self.pos + 48 + rows._born[self.rec]
        self.after_hosts = self.after_born + 8 + rows._store[self.rec]
        self.inner: Any = None if rows._inner is None else rows._inner[part]
        self.batch: Any = None if rows._batch is None else rows._batch[part]
        self._pairs: _Pairs | None = None

    def build(self, columns: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([_BUILDERS[name](self) for name in columns], schema=schema)

    # --- properties ---

    @property
    def pairs(self) -> "_Pairs":
        if self._pairs is None:
            self._pairs = _Pairs(self.rows._slots(self.rows._props[self.part], self.rows._props_length[self.part]))
        return self._pairs

    def properties(self) -> pa.Array:
        return self.pairs.as_map()

    def tags(self) -> pa.Array:
        return self.pairs.column("TAGS")

    def keys(self) -> pa.Array:
        return self.pairs.column("KEYS")

    def msg_id(self) -> pa.Array:
        unique = self.pairs.column("UNIQ_KEY")
        return unique.fill_null(self.offset_msg_id()) if unique.null_count else unique

    # --- bytes and text ---

    def body(self) -> pa.Array:
        rows = self.rows
        length = rows._body_length[self.part]
        if not self.inflated:
            return rows._slots(rows._body[self.part], length)
        # The stored bytes of compressed bodies are left out; the inflated ones come from behind.
        where = np.fromiter(self.inflated, np.int64, len(self.inflated))
        length = length.copy()
        length[where] = 0
        index = np.arange(self.count)
        index[where] = self.count + np.arange(len(where))
        plain = rows._slots(rows._body[self.part], length)
        return pa.concat_arrays([plain, pa.array(self.inflated.values(), pa.binary())]).take(pa.array(index))

    def topic(self) -> pa.Array:
        rows = self.rows
        at, length = rows._topic[self.rec], rows._topic_length[self.rec]
        first = int(length[0])
        # A queue holds one topic, except where records were dispatched to several queues; a log holds many.
        if (length == first).all():
            names = rows._window(at, first) if first else np.empty((self.count, 0), np.uint8)
            if (names == names[0]).all():
                return pa.repeat(pa.scalar(names[0].tobytes().decode("utf-8", "replace")), self.count)
        # Messages of one inner batch have it from the same place.
        _, once, each = np.unique(at, return_index=True, return_inverse=True)
        found = rows._slots(at[once], length[once])
        try:
            text = found.cast(pa.string())
        except pa.ArrowInvalid:
            text = pa.array([name.decode("utf-8", "replace") for name in found.to_pylist()], pa.string())
        return text.take(pa.array(each))

    def broker(self) -> pa.Array:
        return pa.repeat(pa.scalar(self.broker_name, pa.string()), self.count)

    def _host(self, at: Any, length: Any) -> pa.Array:
        """Return hosts as ``ip:port``; few differ within a batch, so each is written once."""
        text = np.empty(self.count, object)
        for width in (8, 20):
            which = np.flatnonzero(length == width)
            if len(which):
                found, index = np.unique(self.rows._window(at[which], width).view(f"V{width}").ravel(), return_inverse=True)
                text[which] = np.array([_host_text(bytes(raw)) for raw in found], object)[index]
        return pa.array(text, pa.string())

    def born_host(self) -> pa.Array:
        return self._host(self.pos + 48, self.rows._born[self.rec])

    def store_host(self) -> pa.Array:
        return self._host(self.after_born + 8, self.rows._store[self.rec])

    def offset_msg_id(self) -> pa.Array:
        store = self.rows._store[self.rec]
        parts, order = [], []
        for width in (8, 20):
            which = np.flatnonzero(store == width)
            if len(which):
                host = self.rows._window(self.after_born[which] + 8, width)
                raw = np.hstack([host, self.rows._window(self.pos[which] + 28, 8)])
                digits = 2 * (width + 8)
                bounds: Any = np.arange(0, digits * (len(which) + 1), digits, dtype=np.int32)
                parts.append(
                    pa.Array.from_buffers(pa.string(), len(which), [None, pa.py_buffer(bounds), pa.py_buffer(_HEX[raw].tobytes())])
                )
                order.append(which)
        ids = parts[0] if len(parts) == 1 else pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(order))))
        if self.inner is None:
            return ids
        # A message of an inner batch has no record of its own that such an id could point at.
        return ids.take(pa.array(np.arange(self.count), mask=self.inner))

    # --- numbers ---

    def _head(self, field: str, kind: type) -> Any:
        """Return a field of each row's record in this machine's byte order."""
        return self.rows._heads[field][self.rec].astype(kind)

    def _of_record(self, values: Any) -> pa.Array:
        """Return numbers only whole records have; null for a message of an inner batch."""
        return pa.array(values, mask=self.inner) if self.inner is not None else pa.array(values)

    def queue_id(self) -> pa.Array:
        return pa.array(self._head("queue_id", np.int32))

    def queue_offset(self) -> pa.Array:
        return pa.array(self.rows.offsets[self.part])

    def flag(self) -> pa.Array:
        rows = self.rows
        return pa.array(self._head("flag", np.int32) if rows._flag_at is None else rows._int(rows._flag_at[self.part]))

    def sys_flag(self) -> pa.Array:
        # The body column is inflated, so the bit that says otherwise goes, as in the reference client.
        return pa.array(self.rows._sys[self.rec] & ~np.int32(SYSFLAG_COMPRESSED))

    def _timestamp(self, ms: Any) -> pa.Array:
        # Producers choose the born time: one that microseconds cannot hold becomes the nearest that they can.
        micros = np.clip(ms, -_MAX_MS, _MAX_MS) * 1000
        return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), self.count, [None, pa.py_buffer(micros)])

    def born_timestamp(self) -> pa.Array:
        return self._timestamp(self._head("born", np.int64))

    def store_timestamp(self) -> pa.Array:
        rows = self.rows
        return self._timestamp(self._head("store", np.int64) if rows._ipv4 else rows._long(self.after_born))

    def commitlog_offset(self) -> pa.Array:
        return pa.array(self._head("position", np.int64))

    def store_size(self) -> pa.Array:
        return self._of_record(self._head("size", np.int32))

    def body_crc(self) -> pa.Array:
        return self._of_record(self._head("crc", np.int32))

    def reconsume_times(self) -> pa.Array:
        times = self.rows._int(self.after_hosts)
        return pa.array(times if self.inner is None else np.where(self.inner, np.int32(0), times))

    def prepared_offset(self) -> pa.Array:
        return pa.array(self.rows._long(self.after_hosts + 4))

    def batch_base_offset(self) -> pa.Array:
        if self.batch is None:
            return pa.nulls(self.count, pa.int64())
        return pa.array(self._head("offset", np.int64), mask=~self.batch)

    def batch_num(self) -> pa.Array:
        if self.batch is None:
            return pa.nulls(self.count, pa.int32())
        return pa.array(self.rows._batch_num[self.part].astype(np.int32), mask=~self.batch)


_BUILDERS: dict[str, Callable[[_Batch], pa.Array]] = {
    "topic": _Batch.topic,
    "brokerName": _Batch.broker,
    "queueId": _Batch.queue_id,
    "queueOffset": _Batch.queue_offset,
    "body": _Batch.body,
    "tags": _Batch.tags,
    "keys": _Batch.keys,
    "properties": _Batch.properties,
    "flag": _Batch.flag,
    "sysFlag": _Batch.sys_flag,
    "bornTimestamp": _Batch.born_timestamp,
    "storeTimestamp": _Batch.store_timestamp,
    "bornHost": _Batch.born_host,
    "storeHost": _Batch.store_host,
    "msgId": _Batch.msg_id,
    "offsetMsgId": _Batch.offset_msg_id,
    "commitLogOffset": _Batch.commitlog_offset,
    "storeSize": _Batch.store_size,
    "bodyCRC": _Batch.body_crc,
    "reconsumeTimes": _Batch.reconsume_times,
    "preparedTransactionOffset": _Batch.prepared_offset,
    "batchBaseOffset": _Batch.batch_base_offset,
    "batchNum": _Batch.batch_num,
}


class _Pairs:
    """The name/value pairs of many property strings.

    ``names`` and ``values`` hold the pairs of all rows, ``bounds`` says where each row's pairs start (one more entry than rows). When every
    row has the same names in the same order, as the messages of one producer mostly do, ``common`` is them, and names are not looked up.
    """

    __slots__ = ("bounds", "codes", "common", "known", "names", "row", "rows", "values")

    def __init__(self, strings: pa.Array) -> None:
        self.rows = len(strings)
        self.common: list[str] | None = None
        found = _split_pairs(strings)
        if found is None:
            self._hold(*_split_pairs_leniently(strings))
            return
        self.common = found.common_names(self.rows)
        values = _pieces(found.text, found.assigns + 1, found.ends)
        if self.common is not None:
            self.names, self.values, self.bounds = _repeated(self.common, self.rows), values, found.bounds
            return
        self._hold(_pieces(found.text, found.starts, found.assigns), values, found.bounds)
        if self._has_duplicates():
            self._hold(*_split_pairs_leniently(strings))

    def _hold(self, names: pa.Array, values: pa.Array, bounds: Any) -> None:
        self.names, self.values, self.bounds = names, values, bounds
        encoded = names.dictionary_encode()
        self.codes: Any = encoded.indices.to_numpy()
        self.known = encoded.dictionary
        self.row: Any = np.repeat(np.arange(self.rows), np.diff(bounds))

    def _has_duplicates(self) -> bool:
        """Tell whether a row has a name twice, which a map column cannot hold."""
        kinds = len(self.known)
        cells = self.row * kinds + self.codes
        if self.rows * kinds <= 16 * len(cells):
            return bool(len(cells)) and int(np.bincount(cells).max()) > 1
        return len(np.unique(cells)) != len(cells)

    def as_map(self) -> pa.Array:
        return pa.MapArray.from_arrays(pa.array(self.bounds, pa.int32()), self.names, self.values, type=MAP_TYPE)

    def column(self, name: str) -> pa.Array:
        """Return the values of one property, null where a row has none."""
        if self.common is not None:
            if name not in self.common:
                return pa.nulls(self.rows, pa.string())
            return self.values.take(pa.array(np.arange(self.common.index(name), len(self.values), len(self.common))))
        code = self.known.index(pa.scalar(name)).as_py()
        if code < 0:
            return pa.nulls(self.rows, pa.string())
        pair = np.flatnonzero(self.codes == code)
        if len(pair) == self.rows:
            return self.values.take(pa.array(pair))
        index: Any = np.zeros(self.rows, np.int64)
        absent: Any = np.ones(self.rows, bool)
        rows = self.row[pair]
        index[rows] = pair
        absent[rows] = False
        return self.values.take(pa.array(index, mask=absent))


class _Split(NamedTuple):
    """Where the pairs of property strings are in all their text: starts of names, the separators after names and values; rows' bounds."""

    text: Any
    starts: Any
    assigns: Any
    ends: Any
    bounds: Any

    def common_names(self, rows: int) -> list[str] | None:
        """Return the names of each row if all have the same in the same order, and none twice."""
        each = len(self.ends) // rows if rows else 0
        if not each or (self.bounds != np.arange(0, (rows + 1) * each, each)).any():
            return None
        lengths = (self.assigns - self.starts).reshape(rows, each)
        if (lengths != lengths[0]).any():
            return None
        names = []
        for i, length in enumerate(lengths[0].tolist()):
            found = _values_at(self.text, self.starts[i::each], f"V{length}").view(np.uint8).reshape(rows, length)
            if (found != found[0]).any():
                return None
            start = int(self.starts[i])
            names.append(bytes(self.text[start : start + length]).decode())
        return names if len(set(names)) == each else None


def _split_pairs(strings: pa.Array) -> _Split | None:
    r"""Split well-formed property strings (``name 0x01 value 0x02`` and nothing else); None when one is not.

    Then the separators of all strings together alternate, each string ends with 0x02, and every piece lies between two
    neighbouring separators.
    """
    _, bounds_buffer, data = strings.buffers()
    bounds = np.frombuffer(bounds_buffer, np.int32)[: len(strings) + 1] if len(strings) else np.zeros(1, np.int32)
    text = np.frombuffer(data, np.uint8)[: bounds[-1]] if data is not None else np.empty(0, np.uint8)
    assigns = np.flatnonzero(text == 1)
    ends = np.flatnonzero(text == 2)
    filled = bounds[1:][np.diff(bounds) > 0]
    if len(assigns) != len(ends) or not (text[filled - 1] == 2).all():
        return None
    starts: Any = np.empty(len(ends), np.int64)
    if len(ends):
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
    if not ((starts < assigns) & (assigns + 1 < ends)).all() or not _is_utf8(text):
        return None
    return _Split(text, starts, assigns, ends, np.searchsorted(ends, bounds).astype(np.int32))


def _pieces(text: Any, starts: Any, ends: Any) -> pa.Array:
    """Return the pieces of UTF-8 text as a compact string array; they are in order and do not overlap."""
    cuts: Any = np.empty(2 * len(starts) + 1, np.int32)
    cuts[:-1:2], cuts[1::2], cuts[-1] = starts, ends, len(text)
    pieces = pa.Array.from_buffers(pa.string(), 2 * len(starts), [None, pa.py_buffer(cuts), pa.py_buffer(text)])
    return pieces.take(pa.array(np.arange(0, 2 * len(starts), 2)))


def _repeated(names: Sequence[str], rows: int) -> pa.Array:
    """Return ``names`` so many times over as a string array."""
    encoded = [name.encode() for name in names]
    ends = np.cumsum([len(name) for name in encoded])
    cuts: Any = np.zeros(len(names) * rows + 1, np.int32)
    cuts[1:] = (np.arange(rows)[:, None] * ends[-1] + ends).ravel()
    return pa.Array.from_buffers(pa.string(), len(names) * rows, [None, pa.py_buffer(cuts), pa.py_buffer(b"".join(encoded) * rows)])


def _split_pairs_leniently(strings: pa.Array) -> tuple[pa.Array, pa.Array, Any]:
    """Split property strings one by one, as the reference reads them: pieces without name or value fall out, a later pair wins."""
    names: list[str] = []
    values: list[str] = []
    bounds = [0]
    for raw in strings.to_pylist():
        pairs = {}
        for piece in raw.decode("utf-8", "replace").split("\x02"):
            name, _, value = piece.partition("\x01")
            if name and value:
                pairs[name] = value
        names += pairs
        values += pairs.values()
        bounds.append(len(names))
    return pa.array(names, pa.string()), pa.array(values, pa.string()), np.array(bounds, np.int32)


def _is_utf8(text: Any) -> bool:
    try:
        str(text.data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _values_at(data: Any, at: Any, kind: Any) -> Any:
    """Return the values of type ``kind`` at each position of an array of bytes."""
    size = np.dtype(kind).itemsize
    if len(data) < size:
        return np.empty(0, kind)
    # An array of overlapping values, one for each byte they may start at.
    every: Any = np.ndarray((len(data) - size + 1,), kind, data, strides=(1,))
    return every[at]


def _host_text(raw: bytes) -> str:
    ip, port = unpack_host(raw)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _require(fits: Any, problem: str) -> None:
    if not fits.all():
        raise RemoteProtocolError(f"{problem} (record or message {int(np.argmin(fits))} of the pulled buffer)")


def _record_positions(data: bytes | bytearray | memoryview) -> Any:
    """Return where each record starts, following their sizes.

    Where one record is as long as the next, as those of one producer often are, a look tells how many more are: sizes are then compared in
    an array. Looks that find nothing become rare.
    """
    total = len(data)
    array = np.frombuffer(data, np.uint8)
    runs: list[Any] = []
    positions: list[int] = []
    add = positions.append
    last = total - FIXED_OVERHEAD
    unpack = _INT
    pos = before = until_look = 0
    wait = 1
    while pos <= last:
        (size,) = unpack(data, pos)
        if size < FIXED_OVERHEAD:
            raise RemoteProtocolError(f"record at byte {pos} has an impossible size {size}")
        if size == before and until_look <= 0:
            expected = np.arange(pos, pos + min((total - pos) // size, MOST_ALIKE) * size, size)
            unlike = np.flatnonzero(_values_at(array, expected, ">i4") != size)
            alike = int(unlike[0]) if len(unlike) else len(expected)
            if alike >= LEAST_ALIKE:
                runs += [np.array(positions, np.int64), expected[:alike]]
                positions.clear()
                pos += alike * size
                wait = 1
                continue
            wait = until_look = min(2 * wait, MOST_ALIKE)
        add(pos)
        pos += size
        before = size
        until_look -= 1
    if pos != total:
        raise RemoteProtocolError(f"the pulled buffer has {total} bytes but its records end at byte {pos}")
    return np.concatenate([*runs, np.array(positions, np.int64)])


def _walk_entries(data: bytes | bytearray | memoryview, start: int, end: int) -> Any:
    """Return where each message of an inner batch starts, following their sizes."""
    unpack = _INT
    found: list[int] = []
    pos = start
    last = end - ENTRY_OVERHEAD
    while pos <= last:
        found.append(pos)
        (size,) = unpack(data, pos)
        if size < ENTRY_OVERHEAD:
            raise RemoteProtocolError(f"inner message at byte {pos} has an impossible size {size}")
        pos += size
    if pos != end:
        raise RemoteProtocolError(f"an inner batch ends at byte {end} but its messages at byte {pos}")
    return np.array(found, np.int64)


def _inflate_inner(
    data: bytes | bytearray | memoryview, pos: Any, size: Any, body: Any, length: Any, sys_flag: Any, which: Any
) -> bytearray:
    """Return the records with the bodies of ``which`` inflated and their sizes and flags adjusted."""
    view = memoryview(data)
    out = bytearray()
    pack = Struct(">i").pack_into
    parts = (pos.tolist(), size.tolist(), body.tolist(), length.tolist(), sys_flag.tolist(), which.tolist())
    for p, s, b, n, f, is_wanted in zip(*parts, strict=True):
        if not is_wanted:
            out += view[p : p + s]
            continue
        plain = decompress(view[b : b + n], f)
        at = len(out)
        out += view[p:b]
        pack(out, at, s - n + len(plain))
        pack(out, at + 36, f & ~SYSFLAG_COMPRESSED)
        pack(out, at + (b - p) - 4, len(plain))
        out += plain
        out += view[b + n : p + s]
    return out
