"""Where rows become batches: Arrow batches are encoded into the bodies of batch sends, column by column, with one copy of each body.

A batch body is entries back to back (protocol/layout.py draws one), and so is the data of an Arrow binary array. Heads, bodies and property
strings of all rows are columns; joined row by row they are one binary array whose data holds the batch bodies, and whose offsets are the
places where it can be cut. Rows for different queues are first put side by side, in their order.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sprocketmq.arrow.arrays import (
    as_binary,
    fixed_width,
    grouping_order,
    joined,
    joined_words,
    null_if_empty,
    null_if_zero,
    property_strings,
)
from sprocketmq.client.send.encoding import MAX_MERGED_KEYS_BYTES
from sprocketmq.errors import InvalidName
from sprocketmq.protocol.layout import INT32
from sprocketmq.protocol.names import RETRY_PREFIX, check_send_topic, check_tag
from sprocketmq.protocol.properties import KEYS, MAX_PROPERTIES_LENGTH, RESERVED, RETRY_TOPIC, SHARDING_KEY, TAGS
from sprocketmq.spark.sink.batch_entries import encode_entries, property_lengths
from sprocketmq.spark.sink.message_ids import RowIds
from sprocketmq.spark.sink.routing import Router, row_priorities
from sprocketmq.spark.sink.row_batches import EncodedRows, RowBatch
from sprocketmq.spark.sink.row_fields import RowFields, RowRefused, refuse_separators, refuse_split_words
from sprocketmq.spark.sink.row_properties import RowProperties

_MAX_I32 = 2**31 - 1
# Bytes of rows that are encoded at a time, so that the first batches are sent while the rest is encoded.
SLICE_BYTES = 8 << 20
# Columns besides body and properties that a deterministic id depends on.
_TARGET_COLUMNS = ("topic", "brokerName", "queueId")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The most bytes and messages of a batch, and the most bytes of a message body."""

    batch_bytes: int
    batch_messages: int
    message_bytes: int


class RowEncoder:
    """Encodes the rows of one task into send requests.

    ``columns`` are the column indexes (``options.check_columns``); ``topic`` is the topic of all rows, None for that of the column.
    ``by_tag`` keeps rows with different tags in different batches; ``single`` sends each row by itself, as retry topics require.
    ``refused`` is called with rows that are too large and the reasons; without it they raise RowRefused.
    """

    def __init__(
        self,
        columns: Mapping[str, int],
        router: Router,
        ids: RowIds,
        limits: BatchLimits,
        *,
        topic: str | None = None,
        wait_store_ok: bool = True,
        by_tag: bool = False,
        single: bool = False,
        refused: Callable[[pa.RecordBatch, list[str]], None] | None = None,
    ) -> None:
        self._columns = columns
        self._router = router
        self._ids = ids
        self._limits = limits
        self._topic = topic
        self._wait = wait_store_ok
        self._by_tag = by_tag
        self._single = single or (topic is not None and topic.startswith(RETRY_PREFIX))
        self._refused = refused
        self._rows = 0
        self._topics: set[str] = set()
        self._tags: set[str] = set()
        # Consumers of a retry topic read the original topic from this property.
        self._kept = frozenset({RETRY_TOPIC} if topic is not None and topic.startswith(RETRY_PREFIX) else ())

    def batches(self, batch: pa.RecordBatch) -> Iterator[RowBatch]:
        """Yield the requests for a batch of rows, in order for each queue. Raises RowRefused for a row that cannot be a message."""
        start, rows = 0, batch.num_rows
        while start < rows:
            step = rows - start
            size = batch.column(self._columns["body"]).slice(start).nbytes
            if size > SLICE_BYTES:
                step = max(1, step * SLICE_BYTES // size)
            numbers = np.arange(self._rows + start, self._rows + start + step)
            yield from self._slice(batch.slice(start, step), numbers)
            start += step
        self._rows += rows

    def _slice(self, batch: pa.RecordBatch, numbers: Any) -> Iterator[RowBatch]:
        bodies, batch, numbers = self._checked_bodies(batch, numbers)
        if not len(bodies):
            return
        fields = RowFields(self._columns, batch, numbers)
        column = fields.column("properties")
        properties = None if column is None else RowProperties(column, fields.number)
        tags = self._tag_column(fields, properties)
        topics = self._topic_column(fields)
        singles = fields.present("delayTimeLevel", "deliverTimestamp")
        targets = self._router.targets(fields, self._topic, topics, row_priorities(fields, properties, singles))
        if topics is not None:
            retries = pc.starts_with(topics.dictionary, RETRY_PREFIX).to_numpy(zero_copy_only=False)
            if retries.any():
                singles = singles | retries[topics.indices.to_numpy()]
        groups: list[Any] = [topics.indices.to_numpy()] if topics is not None else []
        if targets is not None:
            groups.append(targets[1])
        tag_codes = None
        if tags is not None:
            # Null gets a code of its own: rows without a tag are a group.
            tag_codes = tags.dictionary_encode(null_encoding="encode").indices.to_numpy()
            if self._by_tag:
                groups.append(tag_codes)
        order, code = grouping_order(groups, len(bodies))
        if order is not None:
            take = pa.array(order)
            batch, numbers = batch.take(take), numbers[order]
            bodies = as_binary(batch.column(self._columns["body"]))
            fields = RowFields(self._columns, batch, numbers)
            singles = singles[order]
            properties = None if properties is None else properties.take(take)
            tags = None if tags is None else tags.take(take)
            tag_codes = None if tag_codes is None else tag_codes[order]
        keys = self._key_column(fields, properties)
        rows = self._encoded(fields, bodies, properties, keys, tags)
        rows.tag_codes = tag_codes
        born = fields.milliseconds("bornTimestamp")
        breaks: Any = np.zeros(len(bodies), bool)
        if code is not None:
            breaks[1:] |= np.diff(code) != 0
        if born is not None:
            breaks[1:] |= np.diff(born) != 0
        if self._single:
            singles = np.ones(len(bodies), bool)
        breaks |= singles
        breaks[1:] |= singles[:-1]
        starts = [0, *(np.flatnonzero(breaks[1:]) + 1).tolist(), len(bodies)]
        original = order if order is not None else np.arange(len(bodies))
        for low, high in pairwise(starts):
            place = int(original[low])
            topic = self._topic or topics.dictionary[int(topics.indices[place].as_py())].as_py()  # type: ignore[union-attr]
            queue = None
            born_ms = int(born[low]) if born is not None and born[low] >= 0 else None
            for first, last in self._cut(rows, low, high):
                if targets is not None:
                    queue = self._router.resolve(targets[0][targets[1][place]], topic, int(numbers[low]))
                yield RowBatch(rows, first, last, topic, queue, last - first == 1, born_ms)

    # --- checks and columns ---

    def _checked_bodies(self, batch: pa.RecordBatch, numbers: Any) -> tuple[pa.Array, pa.RecordBatch, Any]:
        """Return bodies, rows and numbers without rows that are too large. Raises RowRefused for a row without a body."""
        bodies = as_binary(batch.column(self._columns["body"]))
        if bodies.null_count:
            at = int(numbers[np.argmax(bodies.is_null().to_numpy(zero_copy_only=False))])
            raise RowRefused(at, "its body is null; filter such rows out, or give them a body")
        lengths = pc.binary_length(bodies).to_numpy()
        if not lengths.all():
            at = int(numbers[np.argmin(lengths)])
            raise RowRefused(at, "its body is empty, and RocketMQ takes no message without one; filter such rows out")
        large = lengths > self._limits.message_bytes
        if large.any():
            limit = self._limits.message_bytes
            self._refuse(batch, large, numbers, lambda i: f"its body has {lengths[i]} bytes, the limit is {limit} (maxMessageBytes)")
            keep = pa.array(~large)
            bodies, batch, numbers = bodies.filter(keep), batch.filter(keep), numbers[~large]
        return bodies, batch, numbers

    def _refuse(self, batch: pa.RecordBatch, which: Any, numbers: Any, why: Callable[[int], str]) -> None:
        rows = np.flatnonzero(which).tolist()
        if self._refused is None:
            raise RowRefused(int(numbers[rows[0]]), f"{why(rows[0])}. Send less, or have such rows put aside with onTooLarge=dead-letter")
        self._refused(batch.filter(pa.array(which)), [why(row) for row in rows])

    def _topic_column(self, fields: RowFields) -> pa.DictionaryArray | None:
        """Return the checked topics of the rows, or None when all have the topic of the option."""
        if self._topic is not None:
            return None
        column = fields.required("topic", "give it one, or all rows one with the option 'topic'")
        encoded = column.dictionary_encode()
        for code, topic in enumerate(encoded.dictionary.to_pylist()):
            if topic not in self._topics:
                try:
                    self._topics.add(check_send_topic(topic))
                except InvalidName as e:
                    raise RowRefused(fields.number(np.argmax(encoded.indices.to_numpy() == code)), str(e)) from None
        return encoded

    def _tag_column(self, fields: RowFields, properties: RowProperties | None) -> pa.Array | None:
        """Return the checked tags, null for none. Without a column ``tags`` they come from property TAGS, where the source reads them."""
        column = fields.column("tags")
        if column is None and not fields.has("tags") and properties is not None:
            column = properties.values_of(TAGS)
        if column is None:
            return None
        tags = null_if_empty(column.cast(pa.string()))
        for tag in pc.unique(tags).drop_null().to_pylist():
            if tag not in self._tags:
                try:
                    check_tag(tag)
                except InvalidName as e:
                    raise RowRefused(
                        fields.number(np.argmax(pc.equal(tags, tag).fill_null(False).to_numpy(zero_copy_only=False))), str(e)
                    ) from None
                if len(self._tags) < 100_000:
                    self._tags.add(tag)
        return tags

    def _key_column(self, fields: RowFields, properties: RowProperties | None) -> pa.Array | None:
        """Return the keys joined with blanks, null for none. Without a column ``keys`` they come from property KEYS."""
        column = fields.column("keys")
        if column is None and not fields.has("keys") and properties is not None:
            column = properties.values_of(KEYS)
        if column is None:
            return None
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            lists = column.cast(pa.list_(pa.string()))
            refuse_split_words(lists, fields.number)
            column = joined_words(lists)
        keys = null_if_empty(column.cast(pa.string()))
        refuse_separators(keys, "its keys hold", fields.number)
        return keys

    # --- entries ---

    def _encoded(
        self, fields: RowFields, bodies: pa.Array, properties: RowProperties | None, keys: pa.Array | None, tags: pa.Array | None
    ) -> EncodedRows:
        count = len(bodies)
        prefix: list[Any] = []
        if properties is not None:
            taken = {SHARDING_KEY} if fields.has("shardingKey") else set()
            prefix.append(properties.strings(lambda name: (name not in RESERVED or name in self._kept) and name not in taken))
        if keys is not None:
            prefix.append(property_strings(KEYS, keys))
        prefix += self._delays(fields)
        sharding = fields.column("shardingKey")
        if sharding is not None:
            named = null_if_empty(sharding.cast(pa.string()))
            refuse_separators(named, "its shardingKey holds", fields.number)
            prefix.append(property_strings(SHARDING_KEY, named))
        prefix.append(b"WAIT\x01true\x02" if self._wait else b"WAIT\x01false\x02")
        if tags is not None:
            prefix.append(property_strings(TAGS, tags))
        flags = fields.integers("flag", -(2**31), _MAX_I32)
        lengths = pc.binary_length(bodies).to_numpy().astype(np.int64)
        before = joined(prefix, count)
        ids = self._message_ids(fields, bodies, before, flags)
        strings = joined([before, b"UNIQ_KEY\x01", ids, b"\x02"], count)
        # A property string that is too long does not fit its length field: `_cut` refuses those rows.
        data, bounds = encode_entries(flags, bodies, lengths, strings)
        return EncodedRows(data, bounds, lengths, fields.numbers, fields.batch, self._wait, flags, keys, tags)

    def _message_ids(self, fields: RowFields, bodies: pa.Array, before: pa.Array, flags: Any) -> pa.Array:
        if not self._ids.deterministic:
            return self._ids.new(len(bodies))
        if fields.has("dedupKey"):
            return self._ids.of_keys(as_binary(fields.required("dedupKey", "a row without one has no id; coalesce it to something")))
        places = [as_binary(column.cast(pa.string()).fill_null("")) for column in map(fields.column, _TARGET_COLUMNS) if column is not None]
        if flags is not None:
            places.append(fixed_width(flags.astype(">i4").tobytes(), len(bodies), INT32.size))
        return self._ids.of_content(bodies, before, *places)

    def _delays(self, fields: RowFields) -> list[pa.Array]:
        found: list[pa.Array] = []
        levels = fields.column("delayTimeLevel")
        times = fields.milliseconds("deliverTimestamp")
        if levels is not None:
            fields.integers("delayTimeLevel", 0, _MAX_I32)
            some = null_if_zero(levels.cast(pa.int64()))
            if times is not None:
                both = some.is_valid().to_numpy(zero_copy_only=False) & (times >= 0)
                if both.any():
                    raise RowRefused(fields.number(np.argmax(both)), "it has a delayTimeLevel and a deliverTimestamp; give one of them")
            found.append(property_strings("DELAY", some.cast(pa.string())))
        if times is not None:
            found.append(property_strings("TIMER_DELIVER_MS", pa.array(times, mask=times < 0).cast(pa.string())))
        return found

    def _cut(self, rows: EncodedRows, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of batches of rows ``[low, high)``: as many rows as fit, at least one."""
        limits = self._limits
        bounds = rows.bounds
        strings = property_lengths(bounds[low : high + 1], rows.lengths[low:high])
        key_bytes = None
        if rows.keys is not None:
            key_bytes = np.concatenate([[0], np.cumsum(pc.binary_length(rows.keys.slice(low, high - low)).fill_null(0).to_numpy() + 1)])
        long = strings > MAX_PROPERTIES_LENGTH
        refused: list[int] = []
        if long.any():
            part = rows.source.slice(low, high - low)
            self._refuse(
                part,
                long,
                rows.numbers[low:high],
                lambda i: f"its properties, keys and tag take {strings[i]} bytes, the limit is {MAX_PROPERTIES_LENGTH}",
            )
            refused = (np.flatnonzero(long) + low).tolist()
        first = low
        for stop in [*refused, high]:
            while first < stop:
                last = int(np.searchsorted(bounds, bounds[first] + limits.batch_bytes, "right")) - 1
                last = min(max(first + 1, last), stop, first + limits.batch_messages)
                if key_bytes is not None:
                    full = int(np.searchsorted(key_bytes, key_bytes[first - low] + MAX_MERGED_KEYS_BYTES, "right")) - 1 + low
                    last = min(last, max(first + 1, full))
                yield first, last
                first = last
            first = stop + 1
