"""Rows of Arrow batches to the requests of batch sends: no Python for a row, and one copy of its body.

A batch body is entries back to back (protocol/batch.py draws one), and so is the data of an Arrow binary array. The heads, the bodies
and the property strings of all rows are columns; joined row by row they are one binary array whose data are the batch bodies, and whose
offsets say where they may be cut. Rows that go to different queues are put next to each other first, in their order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sprocketmq.client.send.encoding import MAX_UNITED_BYTES
from sprocketmq.errors import FatalError, InvalidName
from sprocketmq.protocol.batch import ENTRY_OVERHEAD
from sprocketmq.protocol.hashing import java_hash
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import RETRY_PREFIX, check_send_topic, check_tag
from sprocketmq.protocol.properties import (
    KEYS,
    MAX_PROPERTIES_LENGTH,
    PRIORITY,
    RESERVED,
    RETRY_TOPIC,
    SHARDING_KEY,
    TAGS,
    priority_of,
)

_HEAD = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("length", ">i4")])
_MAX_I32, _MAX_MS = 2**31 - 1, (2**63 - 1) // 1000
# A deterministic id: ten bytes of a hash where address, process and salt are, no time (the month's beginning), two bytes more.
_ID_HASH_BYTES = 12
# Rows of so many bytes are encoded at a time: the first batches are on their way while the rest is made.
SLICE_BYTES = 8 << 20

QueuesOf = Callable[[str], Sequence[MessageQueue]]


class RowRefused(FatalError):
    """A row cannot be a message; ``row`` counts from 0 in what the task was given."""

    def __init__(self, row: int, problem: str, partition: int | None = None) -> None:
        where = f"row {row}" if partition is None else f"row {row} of partition {partition}"
        super().__init__(f"{where} cannot be written to RocketMQ: {problem}")
        self.row = row
        self.problem = problem
        self.partition = partition

    def __reduce__(self) -> tuple[type["RowRefused"], tuple[int, str, int | None]]:
        return type(self), (self.row, self.problem, self.partition)


@dataclass(slots=True)
class Lot:
    """Rows that make one request: entries ``first`` to ``last`` (not included) of ``rows``.

    ``single`` says that it is one message and no batch. ``queue`` is None for any queue. ``born_ms`` is None for the time of the send.
    """

    rows: "EncodedRows"
    first: int
    last: int
    topic: str
    queue: MessageQueue | None
    single: bool
    born_ms: int | None = None

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def row(self) -> int:
        """Where the first row is in the task's input."""
        return int(self.rows.numbers[self.first])

    def body(self) -> memoryview:
        """Return what the request carries: the batch body, or the body of the message."""
        rows, at = self.rows, self.first
        if not self.single:
            return rows.data[rows.bounds[at] : rows.bounds[self.last]]
        start = int(rows.bounds[at]) + 20
        return rows.data[start : start + int(rows.lengths[at])]

    def properties(self, new_id: Callable[[], str]) -> str:
        """Return the property string of the request: the message's, or what a batch is found by, with an id of its own."""
        rows, at = self.rows, self.first
        if self.single:
            start = int(rows.bounds[at]) + ENTRY_OVERHEAD + int(rows.lengths[at])
            return str(rows.data[start : rows.bounds[at + 1]], "utf-8")
        text = ""
        if rows.keys is not None:
            united = pc.unique(rows.keys.slice(at, len(self)).drop_null()).to_pylist()
            text = f"KEYS\x01{' '.join(united)}\x02" if united else ""
        tags = rows.tags
        if tags is not None and bool((rows.tag_codes[at : self.last] == rows.tag_codes[at]).all()) and (tag := tags[at].as_py()):
            text += f"TAGS\x01{tag}\x02"
        return f"{text}WAIT\x01{'true' if rows.wait_store_ok else 'false'}\x02UNIQ_KEY\x01{new_id()}\x02"

    def flag(self) -> int:
        """Return the flag of a message sent by itself; those of a batch are in its entries."""
        return int(self.rows.flags[self.first]) if self.single and self.rows.flags is not None else 0

    def halves(self) -> tuple["Lot", "Lot"]:
        """Return the lot in two; one of two rows gives two single messages."""
        middle = (self.first + self.last) // 2
        return self._part(self.first, middle), self._part(middle, self.last)

    def _part(self, first: int, last: int) -> "Lot":
        return Lot(self.rows, first, last, self.topic, self.queue, last - first == 1, self.born_ms)


@dataclass(slots=True)
class EncodedRows:
    """Rows as entries. ``bounds`` says where each begins in ``data``, ``lengths`` how long its body is, ``numbers`` which row it was.

    ``source`` are the rows themselves in the order of the entries, for those that are refused later.
    """

    data: memoryview
    bounds: Any
    lengths: Any
    numbers: Any
    source: pa.RecordBatch
    wait_store_ok: bool
    flags: Any = None
    keys: pa.Array | None = None
    tags: pa.Array | None = None
    tag_codes: Any = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, counts in messages: what a batch may have, and what a body may have."""

    batch_bytes: int
    batch_messages: int
    message_bytes: int


@dataclass(frozen=True, slots=True)
class _Priority:
    """What a row with a priority asks for: the queue of that number, or the last one; ``broker`` is None for any."""

    broker: str | None
    number: int


class Router:
    """Says which queue a row goes to. ``queues_of`` returns the queues of a topic that take messages, in order, at least one."""

    def __init__(self, queues_of: QueuesOf) -> None:
        self._queues_of = queues_of
        self._turn: dict[tuple[str, str], int] = {}

    def by_sharding_key(self, topic: str, key: str) -> MessageQueue:
        """Return the queue of a sharding key: that of Java's SelectMessageQueueByHash."""
        queues = self._queues_of(topic)
        return queues[abs(java_hash(key)) % len(queues)]

    def named(self, topic: str, broker: str | None, queue_id: int | None) -> MessageQueue:
        """Return the queue that was asked for; without a number, the broker's next one. Raises ValueError when there is none."""
        queues = self._queues_of(topic)
        fitting = [q for q in queues if (broker is None or q.broker_name == broker) and (queue_id is None or q.queue_id == queue_id)]
        brokers = sorted({q.broker_name for q in queues})
        if not fitting:
            wanted = "queue" if queue_id is None else f"queue {queue_id}"
            at = "" if broker is None else f" on broker {broker!r}"
            there = ", ".join(f"{name} ({sum(q.broker_name == name for q in queues)} queues)" for name in brokers)
            raise ValueError(f"topic {topic!r} has no {wanted}{at} that takes messages; it is on {there}")
        if queue_id is not None:
            if len(fitting) > 1:
                raise ValueError(
                    f"topic {topic!r} has a queue {queue_id} on each of {', '.join(brokers)}: name one in a column 'brokerName'"
                )
            return fitting[0]
        turn = self._turn[topic, broker or ""] = self._turn.get((topic, broker or ""), -1) + 1
        return fitting[turn % len(fitting)]

    def by_priority(self, topic: str, broker: str | None, priority: int) -> MessageQueue:
        """Return where brokers store a single message of that priority. Raises ValueError when the topic is not on ``broker``."""
        broker = self.named(topic, broker, None).broker_name
        last = max(queue.queue_id for queue in self._queues_of(topic) if queue.broker_name == broker)
        return self.named(topic, broker, min(priority, last))


class Ids:
    """Message ids of rows: new ones, or with ``scope`` the same for the same rows each time.

    With keys the id is made of the key alone. Without, it is made of ``scope`` (the query, its batch and its partition), everything that is
    sent of the row, and how many equal rows were before it: rows that come in another order the next time have the same ids as a whole.
    """

    def __init__(self, take: Callable[[int], Sequence[str]], scope: str | None) -> None:
        self._take = take
        self._scope = scope
        self._seen = Occurrences()

    @property
    def deterministic(self) -> bool:
        return self._scope is not None

    def new(self, count: int) -> pa.Array:
        """Return ids nobody else has."""
        texts = self._take(count)
        return _fixed("".join(texts).encode(), count, len(texts[0]))

    def of_keys(self, keys: pa.Array) -> pa.Array:
        """Return the ids of rows by their keys, which are not null. A key that is a message id itself is taken as it is."""
        texts = keys.to_pylist()
        raw = [blake2b(key, digest_size=_ID_HASH_BYTES, person=b"sprocketmq-key").digest() for key in texts]
        made = _id_texts(np.frombuffer(b"".join(raw), np.uint8).reshape(-1, _ID_HASH_BYTES))
        are_ids = pc.match_substring_regex(keys, "^(?:[0-9A-F]{32}|[0-9A-F]{56})$")
        return pc.if_else(are_ids, keys, made)

    def of_content(self, *columns: pa.Array) -> pa.Array:
        """Return the ids of rows by all that is in ``columns`` (binary, without nulls, all of one length)."""
        count = len(columns[0])
        # With the lengths before them, no two rows that differ have the same bytes.
        lengths = np.column_stack([pc.binary_length(column).to_numpy() for column in columns]).astype(">i4")
        data, bounds = _parts(_joined([_fixed(lengths.tobytes(), count, 4 * len(columns)), *columns], count))
        cuts = bounds.tolist()
        start = blake2b((self._scope or "").encode(), digest_size=_ID_HASH_BYTES, person=b"sprocketmq-row")
        digests = []
        for low, high in pairwise(cuts):
            h = start.copy()
            h.update(data[low:high])
            digests.append(h.digest())
        raw = np.frombuffer(bytearray(b"".join(digests)), np.uint8).reshape(-1, _ID_HASH_BYTES)
        repeats = self._seen.number(np.ascontiguousarray(raw[:, :8]).view(np.uint64).ravel())
        for row in np.flatnonzero(repeats).tolist():
            again = blake2b(digests[row] + int(repeats[row]).to_bytes(8, "big"), digest_size=_ID_HASH_BYTES).digest()
            raw[row] = np.frombuffer(again, np.uint8)
        return _id_texts(raw)


class Occurrences:
    """Counts equal numbers: how often each was there before. Takes 8 bytes for a number, in sorted arrays that grow by doubling."""

    def __init__(self) -> None:
        self._levels: list[Any] = []

    def number(self, values: Any) -> Any:
        """Return for each value how many equal ones came before it, in this call and in those before."""
        order = np.argsort(values, kind="stable")
        ranked = values[order]
        first = np.searchsorted(ranked, ranked, "left")
        before: Any = np.empty(len(values), np.int64)
        before[order] = np.arange(len(values)) - first
        for level in self._levels:
            before += np.searchsorted(level, values, "right") - np.searchsorted(level, values, "left")
        self._levels.append(ranked)
        while len(self._levels) > 1 and len(self._levels[-2]) <= 2 * len(self._levels[-1]):
            last = self._levels.pop()
            self._levels[-1] = np.sort(np.concatenate([self._levels[-1], last]), kind="stable")
        return before


class RowEncoder:
    """Makes lots of the rows of one task.

    ``columns`` says where each column is (``options.check_columns``), ``topic`` the topic of all rows, None for that of the column.
    ``by_tag`` keeps rows with different tags out of one batch, ``single`` makes a request of each row, as retry topics demand.
    ``refused`` is called with rows that are larger than they may be, and why; without it they raise RowRefused.
    """

    def __init__(
        self,
        columns: Mapping[str, int],
        router: Router,
        ids: Ids,
        limits: Limits,
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
        # Consumers of a retry topic read there which topic the message belongs to.
        self._kept = frozenset({RETRY_TOPIC} if topic is not None and topic.startswith(RETRY_PREFIX) else ())

    def lots(self, batch: pa.RecordBatch) -> Iterator[Lot]:
        """Yield the requests of a batch of rows, in order for each queue. Raises RowRefused for a row that cannot be a message."""
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

    def _slice(self, batch: pa.RecordBatch, numbers: Any) -> Iterator[Lot]:
        bodies, batch, numbers = self._checked_bodies(batch, numbers)
        if not len(bodies):
            return
        fields = _Fields(self._columns, batch, numbers)
        pairs = self._pairs(fields)
        tags = self._tag_column(fields, pairs)
        topics = self._topic_column(fields)
        singles = fields.present("delayTimeLevel", "deliverTimestamp")
        queues = self._queue_column(fields, topics, self._priorities(fields, pairs, singles))
        if topics is not None:
            retries = pc.starts_with(topics.dictionary, RETRY_PREFIX).to_numpy(zero_copy_only=False)
            if retries.any():
                singles = singles | retries[topics.indices.to_numpy()]
        groups: list[Any] = [topics.indices.to_numpy()] if topics is not None else []
        if queues is not None:
            groups.append(queues[1])
        tag_codes = None
        if tags is not None:
            # Null is a code of its own, as some rows may have no tag.
            tag_codes = tags.dictionary_encode(null_encoding="encode").indices.to_numpy()
            if self._by_tag:
                groups.append(tag_codes)
        order, code = _grouped(groups, len(bodies))
        if order is not None:
            take = pa.array(order)
            batch, numbers = batch.take(take), numbers[order]
            bodies = _binary(batch.column(self._columns["body"]))
            fields = _Fields(self._columns, batch, numbers)
            singles = singles[order]
            pairs = None if pairs is None else pairs.take(take)
            tags = None if tags is None else tags.take(take)
            tag_codes = None if tag_codes is None else tag_codes[order]
        keys = self._key_column(fields, pairs)
        rows = self._encoded(fields, bodies, pairs, keys, tags)
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
                if queues is not None:
                    queue = self._settle(queues[0][queues[1][place]], topic, int(numbers[low]))
                yield Lot(rows, first, last, topic, queue, last - first == 1, born_ms)

    # --- checks and columns ---

    def _checked_bodies(self, batch: pa.RecordBatch, numbers: Any) -> tuple[pa.Array, pa.RecordBatch, Any]:
        """Return the bodies with the rows that are small enough. Raises RowRefused for one without a body."""
        bodies = _binary(batch.column(self._columns["body"]))
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

    def _topic_column(self, fields: "_Fields") -> pa.DictionaryArray | None:
        """Return the topics of the rows, checked, as codes; None when the option says the topic of all."""
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

    def _priorities(self, fields: "_Fields", pairs: "_Pairs | None", delayed: Any) -> Any:
        """Return the priority of each row, -1 without one; None when no row has one.

        As brokers do with single messages: a value that is no number counts as none, and so does that of a delayed row, or of one with a
        sharding key.
        """
        asked = None if pairs is None else pairs.values_of(PRIORITY)
        if pairs is None or asked is None:
            return None
        encoded = asked.fill_null("").dictionary_encode()
        known = np.array([priority_of({PRIORITY: text}) for text in encoded.dictionary.to_pylist()], np.int64)
        sharding = fields.column("shardingKey") if "shardingKey" in self._columns else pairs.values_of(SHARDING_KEY)
        without = delayed
        if sharding is not None:
            without = without | pc.not_equal(sharding.cast(pa.string()), "").fill_null(False).to_numpy(zero_copy_only=False)
        return np.where(without, -1, np.maximum(known[encoded.indices.to_numpy()], -1))

    def _queue_column(self, fields: "_Fields", topics: pa.DictionaryArray | None, priorities: Any) -> tuple[list[Any], Any] | None:
        """Return the places rows ask for, and for each row which one: a queue, (broker, queue number), a priority, or None for any."""
        found = [(name, fields.column(name)) for name in ("shardingKey", "brokerName", "queueId")]
        names = [name for name, column in found if column is not None]
        columns = [column if name == "queueId" else column.cast(pa.string()) for name, column in found if column is not None]
        if priorities is not None:
            names.append("priority")
            columns.append(pa.array(priorities))
        if not columns:
            return None
        codes = [column.dictionary_encode(null_encoding="encode") for column in columns]
        if topics is not None:
            codes.append(topics)
        combined: Any = np.zeros(len(fields.numbers), np.int64)
        for code in codes:
            combined = combined * len(code.dictionary) + code.indices.to_numpy().astype(np.int64)
        _, at, inverse = np.unique(combined, return_index=True, return_inverse=True)
        places: list[Any] = []
        known: dict[Any, int] = {}
        of_place = []
        for row in at.tolist():
            values = {name: column[row].as_py() for name, column in zip(names, columns, strict=True)}
            topic = self._topic if topics is None else topics[row].as_py()
            key, broker, queue_id = values.get("shardingKey"), values.get("brokerName"), values.get("queueId")
            place: Any = None
            if values.get("priority", -1) >= 0:
                place = _Priority(broker, values["priority"])
            elif broker is not None or queue_id is not None:
                place = (broker, queue_id)
            elif key is not None:
                place = self._router.by_sharding_key(topic or "", key)
            of_place.append(known.setdefault(place, len(known)))
            if known[place] == len(places):
                places.append(place)
        return places, np.array(of_place)[inverse]

    def _settle(self, place: Any, topic: str, row: int) -> MessageQueue | None:
        if place is None or isinstance(place, MessageQueue):
            return place
        try:
            if isinstance(place, _Priority):
                return self._router.by_priority(topic, place.broker, place.number)
            return self._router.named(topic, *place)
        except ValueError as e:
            raise RowRefused(row, str(e)) from None

    def _pairs(self, fields: "_Fields") -> "_Pairs | None":
        column = fields.column("properties")
        return None if column is None else _Pairs(column, fields.number)

    def _tag_column(self, fields: "_Fields", pairs: "_Pairs | None") -> pa.Array | None:
        """Return the tags, checked, null for none. Without a column ``tags`` the property TAGS counts, as the source reads it."""
        column = fields.column("tags")
        if column is None and "tags" not in self._columns and pairs is not None:
            column = pairs.values_of(TAGS)
        if column is None:
            return None
        tags = _null_if_empty(column.cast(pa.string()))
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

    def _key_column(self, fields: "_Fields", pairs: "_Pairs | None") -> pa.Array | None:
        """Return the keys as RocketMQ has them, words between blanks, null for none; the property KEYS stands in as TAGS does."""
        column = fields.column("keys")
        if column is None and "keys" not in self._columns and pairs is not None:
            column = pairs.values_of(KEYS)
        if column is None:
            return None
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            column = _words(column.cast(pa.list_(pa.string())))
        keys = _null_if_empty(column.cast(pa.string()))
        _refuse_separators(keys, "its keys hold", fields.number)
        return keys

    # --- entries ---

    def _encoded(
        self, fields: "_Fields", bodies: pa.Array, pairs: "_Pairs | None", keys: pa.Array | None, tags: pa.Array | None
    ) -> EncodedRows:
        count = len(bodies)
        front: list[Any] = []
        if pairs is not None:
            taken = {SHARDING_KEY} if "shardingKey" in self._columns else set()
            front.append(pairs.strings(lambda name: (name not in RESERVED or name in self._kept) and name not in taken))
        if keys is not None:
            front.append(_property(KEYS, keys))
        front += self._delays(fields)
        sharding = fields.column("shardingKey")
        if sharding is not None:
            named = _null_if_empty(sharding.cast(pa.string()))
            _refuse_separators(named, "its shardingKey holds", fields.number)
            front.append(_property(SHARDING_KEY, named))
        front.append(b"WAIT\x01true\x02" if self._wait else b"WAIT\x01false\x02")
        if tags is not None:
            front.append(_property(TAGS, tags))
        flags = fields.integers("flag", -(2**31), _MAX_I32)
        lengths = pc.binary_length(bodies).to_numpy().astype(np.int64)
        before = _joined(front, count)
        ids = self._message_ids(fields, bodies, before, flags)
        strings = _joined([before, b"UNIQ_KEY\x01", ids, b"\x02"], count)
        string_lengths = pc.binary_length(strings).to_numpy().astype(np.int64)
        heads: Any = np.zeros(count, _HEAD)
        heads["size"] = ENTRY_OVERHEAD + lengths + string_lengths
        heads["length"] = lengths
        if flags is not None:
            heads["flag"] = flags
        # A string that is too long does not fit its field; those rows are left out when the lots are cut.
        sizes = np.minimum(string_lengths, MAX_PROPERTIES_LENGTH).astype(">i2")
        entries = _joined([_fixed(heads.tobytes(), count, 20), bodies, _fixed(sizes.tobytes(), count, 2), strings], count)
        data, bounds = _parts(entries)
        return EncodedRows(data, bounds, lengths, fields.numbers, fields.batch, self._wait, flags, keys, tags)

    def _message_ids(self, fields: "_Fields", bodies: pa.Array, before: pa.Array, flags: Any) -> pa.Array:
        if not self._ids.deterministic:
            return self._ids.new(len(bodies))
        if "dedupKey" in self._columns:
            return self._ids.of_keys(_binary(fields.required("dedupKey", "a row without one has no id; coalesce it to something")))
        places = [_binary(column.cast(pa.string()).fill_null("")) for column in map(fields.column, _PLACES) if column is not None]
        if flags is not None:
            places.append(_fixed(flags.astype(">i4").tobytes(), len(bodies), 4))
        return self._ids.of_content(bodies, before, *places)

    def _delays(self, fields: "_Fields") -> list[pa.Array]:
        found: list[pa.Array] = []
        levels = fields.column("delayTimeLevel")
        times = fields.milliseconds("deliverTimestamp")
        if levels is not None:
            fields.integers("delayTimeLevel", 0, _MAX_I32)
            some = _null_if_zero(levels.cast(pa.int64()))
            if times is not None:
                both = some.is_valid().to_numpy(zero_copy_only=False) & (times >= 0)
                if both.any():
                    raise RowRefused(fields.number(np.argmax(both)), "it has a delayTimeLevel and a deliverTimestamp; give one of them")
            found.append(_property("DELAY", some.cast(pa.string())))
        if times is not None:
            found.append(_property("TIMER_DELIVER_MS", pa.array(times, mask=times < 0).cast(pa.string())))
        return found

    def _cut(self, rows: EncodedRows, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield where batches of rows ``low`` to ``high`` begin and end: as many rows as fit, at least one."""
        limits = self._limits
        bounds = rows.bounds
        strings = bounds[low + 1 : high + 1] - bounds[low:high] - rows.lengths[low:high] - ENTRY_OVERHEAD
        united = None
        if rows.keys is not None:
            united = np.concatenate([[0], np.cumsum(pc.binary_length(rows.keys.slice(low, high - low)).fill_null(0).to_numpy() + 1)])
        long = strings > MAX_PROPERTIES_LENGTH
        fences = []
        if long.any():
            part = rows.source.slice(low, high - low)
            self._refuse(
                part,
                long,
                rows.numbers[low:high],
                lambda i: f"its properties, keys and tag take {strings[i]} bytes, the limit is {MAX_PROPERTIES_LENGTH}",
            )
            fences = (np.flatnonzero(long) + low).tolist()
        first = low
        for fence in [*fences, high]:
            while first < fence:
                last = int(np.searchsorted(bounds, bounds[first] + limits.batch_bytes, "right")) - 1
                last = min(max(first + 1, last), fence, first + limits.batch_messages)
                if united is not None:
                    full = int(np.searchsorted(united, united[first - low] + MAX_UNITED_BYTES, "right")) - 1 + low
                    last = min(last, max(first + 1, full))
                yield first, last
                first = last
            first = fence + 1


_PLACES = ("topic", "brokerName", "queueId")


class _Fields:
    """The columns of one slice of rows; ``numbers`` says which row of the task each is."""

    def __init__(self, columns: Mapping[str, int], batch: pa.RecordBatch, numbers: Any) -> None:
        self._columns = columns
        self.batch = batch
        self.numbers = numbers

    def number(self, place: Any) -> int:
        return int(self.numbers[int(place)])

    def column(self, name: str) -> pa.Array | None:
        """Return a column, None when there is none or it is null throughout."""
        place = self._columns.get(name)
        if place is None:
            return None
        column = self.batch.column(place)
        return None if column.null_count == len(column) else column

    def required(self, name: str, hint: str) -> pa.Array:
        column = self.batch.column(self._columns[name])
        if column.null_count:
            nulls = column.is_null().to_numpy(zero_copy_only=False)
            raise RowRefused(self.number(np.argmax(nulls)), f"its {name} is null; {hint}")
        return column

    def present(self, *names: str) -> Any:
        """Return for each row whether one of the columns says something (not null, not 0)."""
        found: Any = np.zeros(len(self.numbers), bool)
        for name in names:
            column = self.column(name)
            if column is not None:
                valid = column.is_valid().to_numpy(zero_copy_only=False)
                if pa.types.is_integer(column.type):
                    valid &= column.fill_null(0).to_numpy() != 0
                found |= valid
        return found

    def integers(self, name: str, low: int, high: int) -> Any:
        """Return a column of numbers, 0 for null. Raises RowRefused for one out of bounds."""
        column = self.column(name)
        if column is None:
            return None
        values = column.cast(pa.int64()).fill_null(0).to_numpy()
        wrong = (values < low) | (values > high)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise RowRefused(self.number(at), f"its {name} is {values[at]}, it must be from {low} to {high}")
        return values

    def milliseconds(self, name: str) -> Any:
        """Return times as milliseconds since 1970, -1 for null. Raises RowRefused for one before 1970."""
        column = self.column(name)
        if column is None:
            return None
        if pa.types.is_timestamp(column.type):
            micros = column.cast(pa.timestamp("us")).cast(pa.int64())
            values = np.floor_divide(micros.fill_null(-1000).to_numpy(), 1000)
        else:
            values = column.cast(pa.int64()).fill_null(-1).to_numpy()
        wrong = (values < 0) & column.is_valid().to_numpy(zero_copy_only=False)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise RowRefused(self.number(at), f"its {name} is {values[at]} ms since 1970, it must be 0 or more")
        return values


class _Pairs:
    """The name/value pairs of a map column: ``names`` and ``values`` of all rows, ``bounds`` says where each row's begin."""

    def __init__(self, column: pa.MapArray, number: Callable[[Any], int]) -> None:
        self._number = number
        offsets = column.offsets.to_numpy()
        if column.null_count:
            # What lies below a null row is nobody's.
            size = np.where(column.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
            self.bounds = np.concatenate([[0], np.cumsum(size)])
            index = np.repeat(offsets[:-1] - self.bounds[:-1], size) + np.arange(int(self.bounds[-1]))
            self.names, self.values = column.keys.take(pa.array(index)), column.items.take(pa.array(index))
        else:
            first, length = int(offsets[0]), int(offsets[-1] - offsets[0])
            self.bounds = offsets.astype(np.int64) - first
            self.names, self.values = column.keys.slice(first, length), column.items.slice(first, length)
        self.names, self.values = self.names.cast(pa.string()), self.values.cast(pa.string())
        encoded = self.names.dictionary_encode()
        self.codes = encoded.indices.to_numpy()
        self.known: list[str] = encoded.dictionary.to_pylist()

    @property
    def row(self) -> Any:
        """Which row each pair belongs to."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

    def take(self, order: pa.Array) -> "_Pairs":
        """Return the pairs of rows in another order."""
        rows = order.to_numpy()
        size = np.diff(self.bounds)[rows]
        twin = object.__new__(_Pairs)
        twin._number = self._number
        twin.bounds = np.concatenate([[0], np.cumsum(size)])
        index = np.repeat(self.bounds[rows] - twin.bounds[:-1], size) + np.arange(int(twin.bounds[-1]))
        twin.names, twin.values = self.names.take(pa.array(index)), self.values.take(pa.array(index))
        twin.codes, twin.known = self.codes[index], self.known
        return twin

    def values_of(self, name: str) -> pa.Array | None:
        """Return the values of one property, null for rows without it; None when no row has it."""
        if name not in self.known:
            return None
        pair = np.flatnonzero(self.codes == self.known.index(name))
        index: Any = np.full(len(self.bounds) - 1, -1)
        index[self.row[pair]] = pair
        return self.values.take(pa.array(index, mask=index < 0))

    def strings(self, wanted: Callable[[str], bool]) -> pa.Array:
        """Return the property string of each row with the pairs whose name is wanted; those without a value are left out."""
        keep = np.array([wanted(name) for name in self.known], bool)[self.codes] if len(self.codes) else np.zeros(0, bool)
        full = pc.not_equal(self.values, "").fill_null(False).to_numpy(zero_copy_only=False)
        keep &= full
        names, values, bounds, row = self.names, self.values, self.bounds, self.row
        if not keep.all():
            mask = pa.array(keep)
            names, values, row = names.filter(mask), values.filter(mask), row[keep]
            bounds = np.concatenate([[0], np.cumsum(keep)])[bounds]
        pairs = pc.binary_join_element_wise(names, "\x01", values, "\x02", "")
        data, cuts = _parts(pairs)
        raw = np.frombuffer(data, np.uint8)
        if np.count_nonzero(raw == 1) != len(pairs) or np.count_nonzero(raw == 2) != len(pairs):
            for column in (names, values):
                _refuse_separators(column, "a name or value of its properties holds", lambda at: self._number(row[at]))
        empty = pc.equal(names, "").to_numpy(zero_copy_only=False)
        if empty.any():
            raise RowRefused(self._number(row[np.argmax(empty)]), "a name in its properties is empty")
        return pa.Array.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(np.ascontiguousarray(cuts[bounds], np.int32)), pa.py_buffer(data)]
        )


# --- arrays ---


def _binary(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _fixed(data: bytes, count: int, width: int) -> pa.Array:
    """Return ``count`` pieces of ``width`` bytes as a binary array."""
    bounds = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def _parts(column: pa.Array) -> tuple[memoryview, Any]:
    """Return the data of a binary or string array without nulls, and where each piece begins in it."""
    _, bounds, data = column.buffers()
    cuts = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1] if len(column) else np.zeros(1, np.int32)
    return memoryview(data) if data is not None else memoryview(b""), cuts


def _joined(parts: Sequence[Any], count: int) -> pa.Array:
    """Return the parts of each row back to back, a null part being nothing; parts that are bytes are the same in all rows."""
    if len(parts) == 1 and isinstance(parts[0], bytes):
        return _fixed(parts[0] * count, count, len(parts[0]))
    pieces = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else _binary(part) for part in parts]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()), null_handling="skip")


def _words(lists: pa.ListArray) -> pa.Array:
    """Return the texts of each list between blanks, leaving out nulls, for which Arrow would make the whole text null."""
    values = lists.flatten()
    if values.null_count:
        kept = values.is_valid().to_numpy(zero_copy_only=False)
        sizes = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
        counts = np.concatenate([[0], np.cumsum(kept)])[np.concatenate([[0], np.cumsum(sizes)])]
        lists = pa.ListArray.from_arrays(pa.array(counts, pa.int32()), values.drop_null())
    return pc.binary_join(lists, " ")


def _property(name: str, values: pa.Array) -> pa.Array:
    """Return the property of each row as it is written, null where it has none."""
    return pc.binary_join_element_wise(f"{name}\x01", values, "\x02", "", null_handling="emit_null")


def _null_if_empty(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _null_if_zero(numbers: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(numbers, 0), pa.scalar(None, pa.int64()), numbers)


def _refuse_separators(texts: pa.Array, what: str, number: Callable[[Any], int]) -> None:
    """Raise RowRefused for the first text with one of the two characters that separate properties."""
    for separator in ("\x01", "\x02"):
        found = pc.match_substring(texts, separator).fill_null(False).to_numpy(zero_copy_only=False)
        if found.any():
            raise RowRefused(number(np.argmax(found)), f"{what} the character {separator!r}, which separates properties")


def _grouped(groups: Sequence[Any], count: int) -> tuple[Any, Any]:
    """Return the order that puts rows with equal codes together, None for the order they are in, and the code of each row in it."""
    if not groups:
        return None, None
    code: Any = np.zeros(count, np.int64)
    for group in groups:
        code = code * (int(group.max()) + 1) + group
    if (code == code[0]).all():
        return None, None
    if (code[1:] >= code[:-1]).all():
        return None, code
    order = np.argsort(code, kind="stable")
    return order, code[order]


_HEX = np.array([list(f"{n:02X}".encode()) for n in range(256)], np.uint8)


def _id_texts(raw: Any) -> pa.Array:
    """Return hashes as message ids of 32 hex digits."""
    digits: Any = np.full((len(raw), 32), ord("0"), np.uint8)
    text = _HEX[raw].reshape(len(raw), -1)
    digits[:, :20] = text[:, :20]
    digits[:, 28:] = text[:, 20:24]
    return _fixed(digits.tobytes(), len(raw), 32)
