"""A pulled buffer of stored records, located in arrays: where the body, topic and properties of every message lie.

A pull answers with records exactly as the commit log holds them (protocol/layout.py draws one). ``record_walk`` follows their sizes;
everything else is done for all records at once by gathering windows of the buffer. ``columns`` makes Arrow columns of the result.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sprocketmq.arrow.record_walk import Buffer, entry_positions, inflate_bodies, record_positions
from sprocketmq.arrow.stored_properties import StoredProperties
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.codes import (
    SYSFLAG_ANY_HOST_V6,
    SYSFLAG_BORN_HOST_V6,
    SYSFLAG_COMPRESSED,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_NEED_UNWRAP,
    SYSFLAG_STORE_HOST_V6,
)
from sprocketmq.protocol.layout import (
    BATCH_ENTRY_HEAD_BYTES,
    BATCH_ENTRY_LAYOUT,
    BATCH_ENTRY_OVERHEAD,
    FIXED_OVERHEAD,
    HEAD_BYTES_WITHOUT_HOSTS,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_LAYOUT,
)
from sprocketmq.storage.layout_arrays import RECORD_HEAD_DTYPE, values_at

_FLAG_AT = RECORD_LAYOUT.offset("flag")
_ENTRY_FLAG_AT = BATCH_ENTRY_LAYOUT.offset("flag")
_ENTRY_BODY_LENGTH_AT = BATCH_ENTRY_LAYOUT.offset("body_length")
_INNER = SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP


class PulledRows:
    """The messages of one buffer of whole records, located but not decoded; bodies are still compressed.

    With ``unwrap`` inner batches become the messages in them. Without it each is one row, whose body is the batch as its producer encoded
    it. ``positions`` are the positions of the records, for callers that have followed the sizes already. ``offsets`` are the queue
    offsets of the rows, in order; ``counts`` is the number of offsets each row covers, None for one each. Raises RemoteProtocolError when
    a record does not fit the buffer, or when the parts of a record do not add up to its size.
    """

    __slots__ = (
        *("array", "batch", "batch_num", "body_length", "body_pos", "born_width", "compressed", "counts", "data", "flag_pos", "heads"),
        *("inner", "ipv4", "offsets", "props_length", "props_pos", "record", "record_pos", "record_size", "store_width", "sys_flags"),
        *("topic_length", "topic_pos"),
    )

    def __init__(self, data: Buffer, *, unwrap: bool = True, positions: Sequence[int] | None = None) -> None:
        self.data = data
        self.array = np.frombuffer(data, np.uint8)
        pos: Any = record_positions(data) if positions is None else np.array(positions, np.int64)
        self._locate(pos)
        inner = (self.sys_flags & _INNER) == _INNER
        if inner.any() and (self.compressed & inner).any():
            # No known producer compresses batches. For one that does, the records are rewritten with plain bodies and located again.
            self.data = inflate_bodies(
                data, pos, self.record_size, self.body_pos, self.body_length, self.sys_flags, inner & self.compressed
            )
            self.array = np.frombuffer(self.data, np.uint8)
            self._locate(record_positions(self.data))
            inner = (self.sys_flags & _INNER) == _INNER
        self.flag_pos: Any = None  # position of each row's flag; None while it is in the record's head
        self.inner: Any = None  # mask of rows unwrapped from inner batches; None without such rows
        self.batch: Any = None  # mask of rows that are, or come from, an inner batch; with its message count
        self.batch_num: Any = None
        self.record: Any = None  # index of each row's record; None while every record is one row
        self.offsets = self.heads["queue_offset"].astype(np.int64)
        self.counts: Any = None
        if inner.any():
            if unwrap:
                self._unwrap(inner)
            else:
                self.batch = inner
                self.counts = self.batch_num = self._stated_counts(inner)

    def _locate(self, pos: Any) -> None:
        """Locate the parts of every record and check that they fit."""
        self.record_pos = pos
        self.record_size: Any = np.diff(np.append(pos, len(self.array)))
        _require(self.record_size >= FIXED_OVERHEAD, "a record is shorter than the shortest there is")
        end = pos + self.record_size
        heads = self.heads = self.gather(pos, RECORD_HEAD_DTYPE)  # past the born host only right when both hosts are IPv4
        _require(heads["size"] == self.record_size, "a record does not end where the next begins")
        self.sys_flags = heads["sys_flag"].astype(np.int32)
        magic = heads["magic"]
        v2 = magic == MAGIC_V2
        known = v2 | (magic == MAGIC_V1)
        if not known.all():
            at = int(np.argmin(known))
            raise RemoteProtocolError(f"record at byte {int(pos[at])} has magic {int(magic[at]) & 0xFFFFFFFF:#x}")
        self.born_width = np.where(self.sys_flags & SYSFLAG_BORN_HOST_V6, HOST_V6_BYTES, HOST_V4_BYTES)
        self.store_width = np.where(self.sys_flags & SYSFLAG_STORE_HOST_V6, HOST_V6_BYTES, HOST_V4_BYTES)
        self.ipv4 = not (self.sys_flags & SYSFLAG_ANY_HOST_V6).any()
        self.compressed = (self.sys_flags & SYSFLAG_COMPRESSED) != 0
        body = pos + HEAD_BYTES_WITHOUT_HOSTS + self.born_width + self.store_width
        _require(body + 3 <= end, "a record is shorter than its header")
        length = (heads["body_length"] if self.ipv4 else self.int_at(body - 4)).astype(np.int64)
        topic = body + length + 1 + v2
        _require((length >= 0) & (topic + 2 <= end), "the body of a record does not fit its size")
        topic_length = self.array[topic - 1].astype(np.int64)
        if v2.any():
            topic_length = np.where(v2, self.short_at(topic - 2), topic_length)
        props = topic + topic_length + 2
        _require((topic_length >= 0) & (props <= end), "the topic of a record does not fit its size")
        props_length = self.short_at(props - 2).astype(np.int64)
        _require((props_length >= 0) & (props + props_length == end), "the parts of a record do not make up its size")
        self.body_pos, self.body_length = body, length
        self.topic_pos, self.topic_length = topic, topic_length
        self.props_pos, self.props_length = props, props_length

    def _unwrap(self, inner: Any) -> None:
        """Replace each inner-batch record by the messages in its body."""
        counts: Any = np.ones(len(self.record_pos), np.int64)
        counts[inner], entry = self._entries(self.body_pos[inner], self.body_length[inner])
        rec: Any = np.repeat(np.arange(len(counts)), counts)
        first_row = np.cumsum(counts) - counts
        at = np.arange(len(rec)) - first_row[rec]
        is_inner = inner[rec]
        body, body_length = self.body_pos[rec], self.body_length[rec]
        props, props_length = self.props_pos[rec], self.props_length[rec]
        flag_at = self.record_pos[rec] + _FLAG_AT
        size = self.int_at(entry).astype(np.int64)
        length = self.int_at(entry + _ENTRY_BODY_LENGTH_AT).astype(np.int64)
        _require((length >= 0) & (length <= size - BATCH_ENTRY_OVERHEAD), "the body of an inner message does not fit its size")
        p = self.short_at(entry + BATCH_ENTRY_HEAD_BYTES + length).astype(np.int64)
        _require((p >= 0) & (p + length + BATCH_ENTRY_OVERHEAD == size), "the properties of an inner message do not fit its size")
        body[is_inner], body_length[is_inner] = entry + BATCH_ENTRY_HEAD_BYTES, length
        props[is_inner], props_length[is_inner] = entry + length + BATCH_ENTRY_OVERHEAD, p
        flag_at[is_inner] = entry + _ENTRY_FLAG_AT
        self.body_pos, self.body_length, self.props_pos, self.props_length, self.flag_pos = body, body_length, props, props_length, flag_at
        self.compressed = self.compressed[rec] & ~is_inner
        self.inner = self.batch = is_inner
        self.batch_num = counts[rec]
        self.record = rec
        self.offsets = self.offsets[rec] + at

    def _entries(self, start: Any, length: Any) -> tuple[Any, Any]:
        """Return the message count of each inner batch, and the positions of all messages."""
        first = np.zeros(len(start), np.int64)
        some = length >= BATCH_ENTRY_OVERHEAD
        first[some] = self.int_at(start[some])
        # Messages of one batch often have one size: then it divides the batch, and is found at each multiple of itself.
        even = some & (first >= BATCH_ENTRY_OVERHEAD)
        even[even] = length[even] % first[even] == 0
        counts: Any = np.where(even, length // np.maximum(first, 1), 0)
        of = np.repeat(np.arange(len(start)), counts)
        entry: Any = start[of] + (np.arange(len(of)) - (np.cumsum(counts) - counts)[of]) * first[of]
        even[of[self.int_at(entry) != first[of]]] = False
        if even.all():
            return counts, entry
        entries: list[Any] = []
        at = 0
        for i, is_even in enumerate(even.tolist()):
            stop = at + int(counts[i])
            if is_even:
                entries.append(entry[at:stop])
            else:
                walked = entry_positions(self.data, int(start[i]), int(start[i] + length[i]))
                counts[i] = len(walked)
                entries.append(walked)
            at = stop
        return counts, np.concatenate(entries)

    def _stated_counts(self, inner: Any) -> Any:
        """Return the message count of each record from its broker's property INNER_NUM; 1 for other records and malformed values."""
        counts: Any = np.ones(len(inner), np.int64)
        stated = StoredProperties(self.slices(self.props_pos[inner], self.props_length[inner])).column("INNER_NUM")
        counts[inner] = [int(text) if text and len(text) < 10 and text.isdecimal() else 1 for text in stated.to_pylist()]
        return counts

    def __len__(self) -> int:
        return len(self.offsets)

    def trim(self, start: int, end: int) -> None:
        """Keep the rows whose queue offset is in [start, end). An inner batch that holds ``start`` or ``end`` is cut there."""
        self._keep((self.offsets >= start) & (self.offsets < end))

    def keep_topics(self, topics: Collection[bytes]) -> None:
        """Keep the rows of the topics with these names."""
        wanted: Any = np.zeros(len(self.topic_pos), bool)
        for name in topics:
            at = np.flatnonzero(self.topic_length == len(name))
            wanted[at] |= (self.window(self.topic_pos[at], len(name)) == np.frombuffer(name, np.uint8)).all(axis=1)
        self._keep(wanted if self.record is None else wanted[self.record])

    def keep_tags(self, tags: Collection[str]) -> None:
        """Keep the rows with one of ``tags``. Brokers compare only hashes, and of an inner batch only the tag of the whole."""
        found = StoredProperties(self.slices(self.props_pos, self.props_length)).column("TAGS").dictionary_encode()
        wanted = [i for i, tag in enumerate(found.dictionary.to_pylist()) if tag in tags]
        self._keep(np.isin(found.indices.fill_null(-1).to_numpy(), wanted))

    def _keep(self, keep: Any) -> None:
        if keep.all():
            return
        self.record = np.flatnonzero(keep) if self.record is None else self.record[keep]
        for name in ("offsets", "body_pos", "body_length", "props_pos", "props_length", "compressed"):
            setattr(self, name, getattr(self, name)[keep])
        for name in ("flag_pos", "inner", "batch", "batch_num", "counts"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name)[keep])

    # --- gathering ---

    def gather(self, at: Any, kind: Any) -> Any:
        """Return the values of type ``kind`` at each position, in stored byte order."""
        return values_at(self.array, at, kind)

    def window(self, at: Any, width: int) -> Any:
        """Return the ``width`` bytes at each position, as a matrix."""
        return self.gather(at, f"V{width}").view(np.uint8).reshape(-1, width)

    def int_at(self, at: Any) -> Any:
        """Return the int32 at each position."""
        return self.gather(at, ">i4").astype(np.int32)

    def long_at(self, at: Any) -> Any:
        """Return the int64 at each position."""
        return self.gather(at, ">i8").astype(np.int64)

    def short_at(self, at: Any) -> Any:
        """Return the int16 at each position."""
        return self.gather(at, ">i2").astype(np.int16)

    def slices(self, at: Any, length: Any) -> pa.Array:
        """Return slices of the buffer as a compact binary array. ``at`` is increasing and the slices do not overlap."""
        base = int(at[0]) if len(at) else 0
        bounds: Any = np.zeros(2 * len(at) + 1, np.int32)
        bounds[:-1:2] = at - base
        bounds[1::2] = at + length - base
        bounds[-1] = bounds[-2] if len(at) else 0
        stop = base + int(bounds[-1])
        data = pa.py_buffer(memoryview(self.data)[base:stop])
        slots = pa.Array.from_buffers(pa.binary(), 2 * len(at), [None, pa.py_buffer(bounds), data])
        return slots.take(pa.array(np.arange(len(at), dtype=np.int64) * 2))


def _require(fits: Any, problem: str) -> None:
    if not fits.all():
        raise RemoteProtocolError(f"{problem} (record or message {int(np.argmin(fits))} of the pulled buffer)")
