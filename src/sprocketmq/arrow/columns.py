"""Arrow columns of located rows: one method for each column of the `rocketmq` format.

Bodies are one ``take`` over a binary array whose slots are the bodies and the gaps between them; header integers are gathered windows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sprocketmq.arrow.arrays import HEX_DIGITS
from sprocketmq.arrow.pulled_rows import PulledRows
from sprocketmq.arrow.stored_properties import StoredProperties
from sprocketmq.protocol.codes import SYSFLAG_COMPRESSED
from sprocketmq.protocol.layout import HOST_V4_BYTES, HOST_V6_BYTES, INT32, INT64, RECORD_LAYOUT
from sprocketmq.protocol.records import unpack_host

_BORN_HOST_AT = RECORD_LAYOUT.offset("born_host")
_LOG_OFFSET_AT = RECORD_LAYOUT.offset("log_offset")
_MAX_MS = (2**63 - 1) // 1000


class ColumnBuilder:
    """Builds the columns of the rows ``part`` of a buffer.

    ``broker_name`` None makes column brokerName null. ``inflated`` are decompressed bodies by their index within the slice.
    """

    def __init__(self, rows: PulledRows, part: slice, broker_name: str | None, inflated: dict[int, bytes]) -> None:
        self.rows = rows
        self.part = part
        self.count = part.stop - part.start
        self.broker_name = broker_name
        self.inflated = inflated
        self.rec = np.arange(part.start, part.stop) if rows.record is None else rows.record[part]
        self.pos = rows.record_pos[self.rec]
        self.after_born = self.pos + _BORN_HOST_AT + rows.born_width[self.rec]
        self.after_hosts = self.after_born + INT64.size + rows.store_width[self.rec]
        self.inner: Any = None if rows.inner is None else rows.inner[part]
        self.batch: Any = None if rows.batch is None else rows.batch[part]
        self._pairs: StoredProperties | None = None

    def build(self, columns: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
        """Return the columns as a batch of ``schema``."""
        return pa.RecordBatch.from_arrays([_BUILDERS[name](self) for name in columns], schema=schema)

    # --- properties ---

    @property
    def pairs(self) -> StoredProperties:
        if self._pairs is None:
            self._pairs = StoredProperties(self.rows.slices(self.rows.props_pos[self.part], self.rows.props_length[self.part]))
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
        length = rows.body_length[self.part]
        if not self.inflated:
            return rows.slices(rows.body_pos[self.part], length)
        # Compressed bodies become empty slices; the inflated ones are appended and taken instead.
        where = np.fromiter(self.inflated, np.int64, len(self.inflated))
        length = length.copy()
        length[where] = 0
        index = np.arange(self.count)
        index[where] = self.count + np.arange(len(where))
        plain = rows.slices(rows.body_pos[self.part], length)
        return pa.concat_arrays([plain, pa.array(self.inflated.values(), pa.binary())]).take(pa.array(index))

    def topic(self) -> pa.Array:
        rows = self.rows
        at, length = rows.topic_pos[self.rec], rows.topic_length[self.rec]
        first = int(length[0])
        # The records of a queue have one topic, unless they were dispatched to several queues; those of a log have many.
        if (length == first).all():
            names = rows.window(at, first) if first else np.empty((self.count, 0), np.uint8)
            if (names == names[0]).all():
                return pa.repeat(pa.scalar(names[0].tobytes().decode("utf-8", "replace")), self.count)
        # Messages of one inner batch share the topic of their record.
        _, once, each = np.unique(at, return_index=True, return_inverse=True)
        found = rows.slices(at[once], length[once])
        try:
            text = found.cast(pa.string())
        except pa.ArrowInvalid:
            text = pa.array([name.decode("utf-8", "replace") for name in found.to_pylist()], pa.string())
        return text.take(pa.array(each))

    def broker(self) -> pa.Array:
        return pa.repeat(pa.scalar(self.broker_name, pa.string()), self.count)

    def _host(self, at: Any, length: Any) -> pa.Array:
        """Return hosts as ``ip:port``; a batch has few different ones, so each is formatted once."""
        text = np.empty(self.count, object)
        for width in (HOST_V4_BYTES, HOST_V6_BYTES):
            which = np.flatnonzero(length == width)
            if len(which):
                found, index = np.unique(self.rows.window(at[which], width).view(f"V{width}").ravel(), return_inverse=True)
                text[which] = np.array([_host_text(bytes(raw)) for raw in found], object)[index]
        return pa.array(text, pa.string())

    def born_host(self) -> pa.Array:
        return self._host(self.pos + _BORN_HOST_AT, self.rows.born_width[self.rec])

    def store_host(self) -> pa.Array:
        return self._host(self.after_born + INT64.size, self.rows.store_width[self.rec])

    def offset_msg_id(self) -> pa.Array:
        store = self.rows.store_width[self.rec]
        parts, order = [], []
        for width in (HOST_V4_BYTES, HOST_V6_BYTES):
            which = np.flatnonzero(store == width)
            if len(which):
                host = self.rows.window(self.after_born[which] + INT64.size, width)
                raw = np.hstack([host, self.rows.window(self.pos[which] + _LOG_OFFSET_AT, INT64.size)])
                digits = 2 * (width + INT64.size)
                bounds: Any = np.arange(0, digits * (len(which) + 1), digits, dtype=np.int32)
                parts.append(
                    pa.Array.from_buffers(pa.string(), len(which), [None, pa.py_buffer(bounds), pa.py_buffer(HEX_DIGITS[raw].tobytes())])
                )
                order.append(which)
        ids = parts[0] if len(parts) == 1 else pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(order))))
        if self.inner is None:
            return ids
        # Messages of an inner batch have no record of their own for such an id to refer to.
        return ids.take(pa.array(np.arange(self.count), mask=self.inner))

    # --- numbers and times ---

    def _head(self, field: str, kind: type) -> Any:
        """Return a field of each row's record in native byte order."""
        return self.rows.heads[field][self.rec].astype(kind)

    def _of_record(self, values: Any) -> pa.Array:
        """Return numbers that only whole records have, null for messages of an inner batch."""
        return pa.array(values, mask=self.inner) if self.inner is not None else pa.array(values)

    def queue_id(self) -> pa.Array:
        return pa.array(self._head("queue_id", np.int32))

    def queue_offset(self) -> pa.Array:
        return pa.array(self.rows.offsets[self.part])

    def flag(self) -> pa.Array:
        rows = self.rows
        return pa.array(self._head("flag", np.int32) if rows.flag_pos is None else rows.int_at(rows.flag_pos[self.part]))

    def sys_flag(self) -> pa.Array:
        # Bodies are decompressed, so the compression bit is cleared, as in the reference client.
        return pa.array(self.rows.sys_flags[self.rec] & ~np.int32(SYSFLAG_COMPRESSED))

    def _timestamp(self, ms: Any) -> pa.Array:
        # Producers choose the born time: clip it to what int64 microseconds can hold.
        micros = np.clip(ms, -_MAX_MS, _MAX_MS) * 1000
        return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), self.count, [None, pa.py_buffer(micros)])

    def born_timestamp(self) -> pa.Array:
        return self._timestamp(self._head("born_time_ms", np.int64))

    def store_timestamp(self) -> pa.Array:
        rows = self.rows
        return self._timestamp(self._head("store_time_ms", np.int64) if rows.ipv4 else rows.long_at(self.after_born))

    def commitlog_offset(self) -> pa.Array:
        return pa.array(self._head("log_offset", np.int64))

    def store_size(self) -> pa.Array:
        return self._of_record(self._head("size", np.int32))

    def body_crc(self) -> pa.Array:
        return self._of_record(self._head("crc", np.int32))

    def reconsume_times(self) -> pa.Array:
        times = self.rows.int_at(self.after_hosts)
        return pa.array(times if self.inner is None else np.where(self.inner, np.int32(0), times))

    def prepared_offset(self) -> pa.Array:
        return pa.array(self.rows.long_at(self.after_hosts + INT32.size))

    def batch_base_offset(self) -> pa.Array:
        if self.batch is None:
            return pa.nulls(self.count, pa.int64())
        return pa.array(self._head("queue_offset", np.int64), mask=~self.batch)

    def batch_num(self) -> pa.Array:
        if self.batch is None:
            return pa.nulls(self.count, pa.int32())
        return pa.array(self.rows.batch_num[self.part].astype(np.int32), mask=~self.batch)


_BUILDERS: dict[str, Callable[[ColumnBuilder], pa.Array]] = {
    "topic": ColumnBuilder.topic,
    "brokerName": ColumnBuilder.broker,
    "queueId": ColumnBuilder.queue_id,
    "queueOffset": ColumnBuilder.queue_offset,
    "body": ColumnBuilder.body,
    "tags": ColumnBuilder.tags,
    "keys": ColumnBuilder.keys,
    "properties": ColumnBuilder.properties,
    "flag": ColumnBuilder.flag,
    "sysFlag": ColumnBuilder.sys_flag,
    "bornTimestamp": ColumnBuilder.born_timestamp,
    "storeTimestamp": ColumnBuilder.store_timestamp,
    "bornHost": ColumnBuilder.born_host,
    "storeHost": ColumnBuilder.store_host,
    "msgId": ColumnBuilder.msg_id,
    "offsetMsgId": ColumnBuilder.offset_msg_id,
    "commitLogOffset": ColumnBuilder.commitlog_offset,
    "storeSize": ColumnBuilder.store_size,
    "bodyCRC": ColumnBuilder.body_crc,
    "reconsumeTimes": ColumnBuilder.reconsume_times,
    "preparedTransactionOffset": ColumnBuilder.prepared_offset,
    "batchBaseOffset": ColumnBuilder.batch_base_offset,
    "batchNum": ColumnBuilder.batch_num,
}


def _host_text(raw: bytes) -> str:
    ip, port = unpack_host(raw)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
