"""Rows of Arrow batches as requests: each is read back by the decoders of the protocol."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.protocol.batch import split_batch
from sprocketmq.protocol.hashing import java_hash
from sprocketmq.protocol.ids import MessageIdFactory, parse_uniq_key
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.properties import decode_properties
from sprocketmq.spark.sink.encode import SLICE_BYTES, BatchLimits, RowEncoder
from sprocketmq.spark.sink.message_ids import Occurrences, RowIds
from sprocketmq.spark.sink.routing import Router
from sprocketmq.spark.sink.row_fields import RowRefused

TYPES = {
    "body": pa.binary(),
    "topic": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "queueId": pa.int32(),
    "brokerName": pa.string(),
    "shardingKey": pa.string(),
    "delayTimeLevel": pa.int32(),
    "deliverTimestamp": pa.timestamp("us", tz="UTC"),
    "flag": pa.int32(),
    "bornTimestamp": pa.timestamp("us", tz="UTC"),
    "dedupKey": pa.string(),
}
QUEUES = [MessageQueue("T", broker, i) for broker in ("a", "b") for i in range(3)]
_factory = MessageIdFactory("10.0.0.1", 7)


def batch_of(**columns):
    return pa.RecordBatch.from_arrays([pa.array(values, TYPES[name]) for name, values in columns.items()], names=list(columns))


def encoder(batch, *, scope=None, topic="T", batch_bytes=1 << 20, batch_messages=32767, message_bytes=1 << 22, **more):
    columns = {name: i for i, name in enumerate(batch.schema.names)}
    limits = BatchLimits(batch_bytes, batch_messages, message_bytes)
    ids = RowIds(_factory.take, scope)
    if "topic" in columns:
        topic = None
    return RowEncoder(
        columns, Router(lambda name: [MessageQueue(name, q.broker_name, q.queue_id) for q in QUEUES]), ids, limits, topic=topic, **more
    )


def requests(batch, **more):
    return list(encoder(batch, **more).batches(batch))


def messages(lots):
    """Return (topic, queue, flag, body, properties) of every message, as a reader has them."""
    found = []
    for lot in lots:
        if lot.single:
            properties = decode_properties(lot.properties(_factory.next).encode())
            found.append((lot.topic, lot.queue, lot.flag(), bytes(lot.body()), properties))
        else:
            entries = split_batch(lot.body())
            assert len(entries) == len(lot)
            found += [(lot.topic, lot.queue, e.flag, bytes(e.body), decode_properties(e.properties)) for e in entries]
    return found


def outer(lot):
    return decode_properties(lot.properties(_factory.next).encode())


def test_rows_are_a_batch_body_that_readers_take_apart():
    batch = batch_of(
        body=[b"one", b"two two", b"3"],
        tags=["a", None, "b"],
        keys=["k1", "k2 k3", None],
        properties=[[("x", "1")], None, [("y", "2"), ("z", "ö")]],
        flag=[0, 7, -1],
    )
    [lot] = requests(batch)
    assert (lot.topic, lot.queue, lot.single, lot.born_ms, lot.row) == ("T", None, False, None, 0)
    found = messages([lot])
    assert [(flag, body) for _, _, flag, body, _ in found] == [(0, b"one"), (7, b"two two"), (-1, b"3")]
    ids = [properties.pop("UNIQ_KEY") for *_, properties in found]
    assert len(set(ids)) == 3
    assert [properties for *_, properties in found] == [
        {"x": "1", "KEYS": "k1", "WAIT": "true", "TAGS": "a"},
        {"KEYS": "k2 k3", "WAIT": "true"},
        {"y": "2", "z": "ö", "WAIT": "true", "TAGS": "b"},
    ]
    of_batch = outer(lot)
    assert of_batch["KEYS"].split() == ["k1", "k2", "k3"], "a topic that keeps batches whole finds messages by them"
    assert "TAGS" not in of_batch, "not all have the same"
    assert of_batch["UNIQ_KEY"] not in ids


def test_a_batch_has_the_tag_that_all_its_messages_have():
    [lot] = requests(batch_of(body=[b"1", b"2"], tags=["a", "a"]))
    assert outer(lot)["TAGS"] == "a"


def test_bodies_may_be_text_and_columns_large():
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["grün", "x"], pa.large_string()),
            pa.array(["t", None], pa.large_string()),
            pa.array([["a", "b"], []], pa.list_(pa.string())),
        ],
        names=["body", "tags", "keys"],
    )
    found = messages(requests(batch))
    assert [body for _, _, _, body, _ in found] == ["grün".encode(), b"x"]
    assert [properties.get("KEYS") for *_, properties in found] == ["a b", None]


def test_keys_beside_a_null_in_an_array_are_kept():
    keys = pa.array([["a", None, "b"], [None], None, [], ["c"]], pa.list_(pa.string()))
    whole = pa.RecordBatch.from_arrays([pa.array([b"x"] * 5), keys], names=["body", "keys"])
    assert [properties.get("KEYS") for *_, properties in messages(requests(whole))] == ["a b", None, None, None, "c"]
    assert [properties.get("KEYS") for *_, properties in messages(requests(whole.slice(1)))] == [None, None, None, "c"]


def test_slices_of_batches_are_encoded_alone():
    whole = batch_of(
        body=[b"%d" % i for i in range(10)],
        tags=["", *(f"t{i}" for i in range(1, 5)), "", *(f"t{i}" for i in range(6, 10))],
        keys=[f"k{i}" if i != 4 else None for i in range(10)],
        shardingKey=[f"s{i}" if i != 6 else "" for i in range(10)],
        properties=[[("n", str(i))] for i in range(10)],
        brokerName=["a"] * 10,
        queueId=[0] * 10,
    )
    found = messages(requests(whole.slice(3, 4)))
    names = ("n", "TAGS", "KEYS", "__SHARDINGKEY")
    assert [(body, *map(p.get, names)) for _, _, _, body, p in found] == [
        (b"3", "3", "t3", "k3", "s3"),
        (b"4", "4", "t4", None, "s4"),
        (b"5", "5", None, "k5", "s5"),
        (b"6", "6", "t6", "k6", None),
    ]


WORDS = st.text(st.sampled_from("abcäß"), max_size=5)
ROWS = st.fixed_dictionaries(
    {
        "body": st.binary(min_size=1, max_size=20),
        "tags": st.none() | WORDS,
        "keys": st.none() | st.lists(st.none() | st.text("kx", min_size=1, max_size=4), max_size=3),
        "properties": st.none()
        | st.dictionaries(st.sampled_from(["a", "bb", "ccc"]), WORDS, max_size=3).map(lambda pairs: list(pairs.items())),
        "queueId": st.integers(0, 2),
        "shardingKey": st.none() | WORDS,
        "delayTimeLevel": st.none() | st.integers(0, 3),
        "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
        "bornTimestamp": st.none() | st.sampled_from([dt.datetime(2024, 5, day, tzinfo=dt.UTC) for day in (1, 2)]),
        "dedupKey": st.text("dk", min_size=1, max_size=3) | st.sampled_from([_factory.next(), _factory.next()]),
    }
)


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()], ids=str)
@given(rows=st.lists(ROWS, min_size=1, max_size=20), data=st.data())
def test_part_of_a_batch_is_encoded_like_a_batch_of_its_rows(text, rows, data):
    kinds = TYPES | {"keys": pa.list_(pa.string())} | dict.fromkeys(["tags", "shardingKey", "dedupKey"], text)
    schema = pa.schema([*((name, kinds[name]) for name in rows[0]), ("brokerName", pa.string())])
    rows = [row | {"brokerName": "a"} for row in rows]
    first = data.draw(st.integers(0, len(rows) - 1), "first")
    last = data.draw(st.integers(first + 1, len(rows)), "last")
    part = pa.RecordBatch.from_pylist(rows, schema).slice(first, last - first)
    whole = pa.RecordBatch.from_pylist(rows[first:last], schema)
    assert messages(requests(part, scope="s")) == messages(requests(whole, scope="s"))


def test_ids_of_a_slices_keys_are_those_of_its_rows():
    ids = [_factory.next() for _ in range(6)]
    keys = [f"k{i}" if i % 2 else ids[i] for i in range(6)]
    whole = batch_of(body=[b"%d" % i for i in range(6)], dedupKey=keys)
    found, of_slice = ids_of(whole), ids_of(whole.slice(2, 3))
    assert of_slice == {body: found[body] for body in (b"2", b"3", b"4")}
    assert (of_slice[b"2"], of_slice[b"4"]) == (ids[2], ids[4])


@pytest.mark.parametrize("blank", [" ", "\t", "\u3000"])
def test_a_key_of_an_array_that_is_no_word_is_refused(blank):
    keys = pa.array([["no"], ["a", None, "b"], [], None, ["c", f"new{blank}york"]], pa.list_(pa.string()))
    rows = pa.RecordBatch.from_arrays([pa.array([b"x"] * 5), keys], names=["body", "keys"]).slice(1)
    with pytest.raises(RowRefused, match="has blanks, and a key is one word") as refused:
        requests(rows)
    assert refused.value.row == 3


def test_batches_end_where_bytes_or_messages_are_enough():
    batch = batch_of(body=[b"x" * 1000] * 25)
    by_bytes = requests(batch, batch_bytes=5500)
    assert [len(lot) for lot in by_bytes] == [5, 5, 5, 5, 5]
    assert all(len(lot.body()) <= 5500 for lot in by_bytes)
    assert [len(lot) for lot in requests(batch, batch_messages=10)] == [10, 10, 5]
    assert [lot.row for lot in by_bytes] == [0, 5, 10, 15, 20]


def test_batches_end_where_their_keys_are_enough():
    lots = requests(batch_of(body=[b"x"] * 100, keys=[f"{i:01000d}" for i in range(100)]))
    assert all(len(lot.properties(_factory.next)) < 32000 for lot in lots)
    assert sum(map(len, lots)) == 100
    assert len(lots) == 4


def test_what_no_batch_holds_goes_by_itself():
    lots = requests(batch_of(body=[b"a", b"b" * 2000, b"c", b"d"]), batch_bytes=1024)
    assert [(len(lot), lot.single) for lot in lots] == [(1, True), (1, True), (2, False)]
    assert bytes(lots[1].body()) == b"b" * 2000


def test_more_than_a_slice_is_encoded_in_pieces():
    rows = 3 * SLICE_BYTES // 100_000
    lots = requests(batch_of(body=[b"x" * 100_000] * rows))
    assert sum(map(len, lots)) == rows
    assert len({id(lot.rows) for lot in lots}) > 1
    assert [lot.row for lot in lots] == sorted(lot.row for lot in lots)


def test_row_numbers_go_on_from_batch_to_batch():
    batch = batch_of(body=[b"x", None])
    made = encoder(batch)
    list(made.batches(batch.slice(0, 1)))
    with pytest.raises(RowRefused, match="row 2 cannot be written to RocketMQ: its body is null"):
        list(made.batches(batch))


# --- where rows go ---


def test_rows_with_a_sharding_key_go_where_java_sends_them():
    keys = [f"order-{i % 7}" for i in range(50)]
    found = messages(requests(batch_of(body=[b"%d" % i for i in range(50)], shardingKey=keys)))
    assert len(found) == 50
    for _, queue, _, body, properties in found:
        key = keys[int(body)]
        assert queue == QUEUES[abs(java_hash(key)) % len(QUEUES)]
        assert properties["__SHARDINGKEY"] == key
    for queue in QUEUES:
        numbers = [int(body) for _, at, _, body, _ in found if at == queue]
        assert numbers == sorted(numbers), "rows keep their order in a queue"


def test_rows_without_a_sharding_key_go_anywhere():
    found = messages(requests(batch_of(body=[b"1", b"2"], shardingKey=[None, "k"])))
    assert {body: queue is None for _, queue, _, body, _ in found} == {b"1": True, b"2": False}


def test_rows_go_to_the_queue_they_name():
    batch = batch_of(body=[b"0", b"1", b"2", b"3"], queueId=[2, 0, 2, None], brokerName=["a", "b", "a", "b"])
    found = {body: queue for _, queue, _, body, _ in messages(requests(batch))}
    assert found[b"0"] == found[b"2"] == MessageQueue("T", "a", 2)
    assert found[b"1"] == MessageQueue("T", "b", 0)
    assert found[b"3"].broker_name == "b", "any queue of that broker"


def test_a_queue_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(RowRefused, match=r"row 1 .* has no queue 9 on broker 'a' .* a \(3 queues\), b \(3 queues\)"):
        requests(batch_of(body=[b"0", b"1"], queueId=[0, 9], brokerName=["a", "a"]))
    with pytest.raises(RowRefused, match="has a queue 1 on each of a, b: name one in a column 'brokerName'"):
        requests(batch_of(body=[b"0"], queueId=[1]))


def test_rows_with_a_priority_go_together_to_the_queue_it_names():
    asked = ["1", "9", None, "1", "high", "-1", "+2"]
    properties = [None if value is None else [("_SYS_MSG_PRIORITY_", value)] for value in asked]
    lots = requests(batch_of(body=[b"%d" % i for i in range(7)], properties=properties, brokerName=["a"] * 6 + ["b"]))
    found = {body: queue for _, queue, _, body, _ in messages(lots)}
    assert found[b"0"] == found[b"3"] == MessageQueue("T", "a", 1)
    assert found[b"1"] == MessageQueue("T", "a", 2), "beyond the last queue is the last"
    assert found[b"6"] == MessageQueue("T", "b", 2)
    assert sorted(len(lot) for lot in lots) == [1, 1, 2, 3], "what is no priority counts as none, as for brokers"


def test_a_priority_goes_before_a_queue_and_after_a_sharding_key_and_a_delay():
    urgent = [("_SYS_MSG_PRIORITY_", "0")]
    batch = batch_of(
        body=[b"0", b"1", b"2"], properties=[urgent] * 3, queueId=[2] * 3, brokerName=["b"] * 3, delayTimeLevel=[None, 1, None]
    )
    found = {body: queue.queue_id for _, queue, _, body, _ in messages(requests(batch))}
    assert found == {b"0": 0, b"1": 2, b"2": 0}
    batch = batch_of(body=[b"0", b"1"], properties=[urgent] * 2, shardingKey=["k", None])
    found = {body: queue.queue_id for _, queue, _, body, _ in messages(requests(batch))}
    assert found == {b"0": QUEUES[abs(java_hash("k")) % len(QUEUES)].queue_id, b"1": 0}
    batch = batch_of(body=[b"0"], properties=[[*urgent, ("__SHARDINGKEY", "k")]])
    assert [queue for _, queue, *_ in messages(requests(batch))] == [None]


def test_rows_go_to_their_topics():
    batch = batch_of(body=[b"0", b"1", b"2"], topic=["B", "A", "B"])
    assert sorted((topic, body) for topic, _, _, body, _ in messages(requests(batch))) == [("A", b"1"), ("B", b"0"), ("B", b"2")]
    with pytest.raises(RowRefused, match=r"row 1 .* its topic is null"):
        requests(batch_of(body=[b"0", b"1"], topic=["A", None]))
    with pytest.raises(RowRefused, match=r"row 1 .* only ASCII letters"):
        requests(batch_of(body=[b"0", b"1"], topic=["A", "a/b"]))


def test_auto_keeps_tags_apart():
    batch = batch_of(body=[b"0", b"1", b"2", b"3"], tags=["x", "y", "x", None])
    lots = requests(batch, by_tag=True)
    assert sorted((len(lot), outer(lot).get("TAGS") or "") for lot in lots) == [(1, ""), (1, "y"), (2, "x")]


def test_single_makes_a_request_of_each_row():
    lots = requests(batch_of(body=[b"0", b"1"], flag=[5, 6]), single=True)
    assert [(lot.single, lot.flag(), bytes(lot.body())) for lot in lots] == [(True, 5, b"0"), (True, 6, b"1")]
    assert all(lot.single for lot in requests(batch_of(body=[b"0", b"1"]), topic="%RETRY%g")), "retry topics take no batches"


def test_delayed_rows_go_by_themselves():
    at = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    batch = batch_of(body=[b"0", b"1", b"2", b"3"], delayTimeLevel=[0, 3, None, None], deliverTimestamp=[None, None, at, None])
    found = messages(requests(batch))
    assert [p.get("DELAY") for *_, p in found] == [None, "3", None, None]
    assert [p.get("TIMER_DELIVER_MS") for *_, p in found] == [None, None, str(int(at.timestamp() * 1000)), None]
    assert [(len(lot), lot.single) for lot in requests(batch)] == [(1, True)] * 4
    both = batch_of(body=[b"0"], delayTimeLevel=[1], deliverTimestamp=[at])
    with pytest.raises(RowRefused, match="a delayTimeLevel and a deliverTimestamp; give one of them"):
        requests(both)
    with pytest.raises(RowRefused, match="its delayTimeLevel is -1"):
        requests(batch_of(body=[b"0"], delayTimeLevel=[-1]))


def test_batches_end_where_the_born_time_changes():
    first, then = (dt.datetime(2024, 5, day, tzinfo=dt.UTC) for day in (1, 2))
    lots = requests(batch_of(body=[b"0", b"1", b"2", b"3"], bornTimestamp=[first, first, then, None]))
    ms = [int(when.timestamp() * 1000) for when in (first, then)]
    assert [(len(lot), lot.born_ms) for lot in lots] == [(2, ms[0]), (1, ms[1]), (1, None)]


# --- properties ---


def test_rocketmqs_own_properties_are_left_out():
    properties = [("UNIQ_KEY", "old"), ("CLUSTER", "c"), ("mine", "1"), ("RETRY_TOPIC", "R"), ("empty", "")]
    [(*_, found)] = messages(requests(batch_of(body=[b"x"], properties=[properties])))
    assert found.pop("UNIQ_KEY") != "old"
    assert found == {"mine": "1", "WAIT": "true"}


def test_tags_and_keys_may_come_from_the_properties():
    batch = batch_of(body=[b"x", b"y"], properties=[[("TAGS", "a"), ("KEYS", "k")], [("n", "1")]])
    found = [p for *_, p in messages(requests(batch))]
    assert [(p.get("TAGS"), p.get("KEYS")) for p in found] == [("a", "k"), (None, None)]
    with_column = batch_of(body=[b"x"], properties=[[("TAGS", "a")]], tags=[None])
    [(*_, found)] = messages(requests(with_column))
    assert "TAGS" not in found, "a column is asked first"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": [b""]}, "its body is empty"),
        ({"body": [b"x"], "tags": ["a||b"]}, "subscription expressions"),
        ({"body": [b"x"], "keys": ["a\x01b"]}, "its keys hold"),
        ({"body": [b"x"], "shardingKey": ["a\x02b"]}, "its shardingKey holds"),
        ({"body": [b"x"], "properties": [[("a", "1\x02")]]}, "properties holds the character"),
        ({"body": [b"x"], "properties": [[("a\x01b", "1")]]}, "properties holds the character"),
        ({"body": [b"x"], "properties": [[("", "1")]]}, "a name in its properties is empty"),
        ({"body": [b"x"], "properties": [[("a", "b" * 40_000)]]}, "the limit is 32767.*onTooLarge=dead-letter"),
        ({"body": [b"x" * 3000]}, "its body has 3000 bytes, the limit is 2048.*onTooLarge=dead-letter"),
        ({"body": [b"x"], "dedupKey": [None]}, "its dedupKey is null"),
    ],
)
def test_a_row_that_is_no_message_is_named(columns, words):
    padded = {name: [{"body": b"ok", "dedupKey": "k"}.get(name), *values] for name, values in columns.items()}
    with pytest.raises(RowRefused, match=words) as refused:
        requests(batch_of(**padded), message_bytes=2048, scope="s")
    assert refused.value.row == 1


def test_rows_too_large_can_be_put_aside():
    aside = []
    batch = batch_of(body=[b"0", b"1" * 3000, b"2", b"3"], keys=["a", "b", "c" * 40_000, "d"], queueId=[1, 0, 1, 0], brokerName=["a"] * 4)
    lots = requests(batch, message_bytes=2048, refused=lambda rows, reasons: aside.append((rows.column("body").to_pylist(), reasons)))
    assert sorted(body for _, _, _, body, _ in messages(lots)) == [b"0", b"3"]
    [(large, [why_large]), (long, [why_long])] = aside
    assert (large, long) == ([b"1" * 3000], [b"2"])
    assert "its body has 3000 bytes, the limit is 2048 (maxMessageBytes)" in why_large
    assert "the limit is 32767" in why_long


def test_halves_of_a_lot_are_its_rows():
    [lot] = requests(batch_of(body=[b"%d" % i for i in range(5)]))
    first, second = lot.halves()
    assert [body for _, _, _, body, _ in messages([first, second])] == [b"%d" % i for i in range(5)]
    assert all(half.single for half in first.halves())
    assert second.row == 2


# --- ids ---


def ids_of(batch, scope="query-1/0", **more):
    return {body: p["UNIQ_KEY"] for _, _, _, body, p in messages(requests(batch, scope=scope, **more))}


def test_deterministic_ids_are_the_same_for_the_same_rows_in_any_order():
    rows = {"body": [b"a", b"b", b"c"], "tags": ["x", "y", None], "flag": [1, 2, 3]}
    again = {name: values[::-1] for name, values in rows.items()}
    assert ids_of(batch_of(**rows)) == ids_of(batch_of(**again)) == ids_of(batch_of(**rows), batch_messages=1)
    assert not set(ids_of(batch_of(**rows)).values()) & set(ids_of(batch_of(**rows), scope="query-2/0").values())


def test_deterministic_ids_tell_apart_all_that_is_sent():
    one = {"body": [b"a"], "tags": ["x"], "keys": ["k"], "properties": [[("p", "1")]], "flag": [1], "queueId": [0], "brokerName": ["a"]}
    other = {"body": [b"b"], "tags": ["y"], "keys": ["l"], "properties": [[("p", "2")]], "flag": [2], "queueId": [1], "brokerName": ["b"]}
    found = set(ids_of(batch_of(**one)).values())
    for name in one:
        found |= set(ids_of(batch_of(**{**one, name: other[name]})).values())
    assert len(found) == 1 + len(one)


def test_equal_rows_have_ids_of_their_own_that_are_the_same_the_next_time():
    def run():
        batch = batch_of(body=[b"same"] * 5)
        made = encoder(batch, scope="s")
        return [p["UNIQ_KEY"] for _ in range(2) for *_, p in messages(list(made.batches(batch)))]

    first = run()
    assert len(set(first)) == 10
    assert run() == first


def test_ids_of_keys_depend_on_the_key_alone():
    one = ids_of(batch_of(body=[b"a", b"b"], dedupKey=["k1", "k2"]), scope="s")
    other = ids_of(batch_of(body=[b"b", b"a"], dedupKey=["k1", "k2"]), scope="t")
    assert one == {b"a": other[b"b"], b"b": other[b"a"]}


def test_a_key_that_is_an_id_is_kept():
    known = _factory.next()
    found = ids_of(batch_of(body=[b"a", b"b", b"c"], dedupKey=[known, known.lower(), known * 2]))
    assert found[b"a"] == known
    assert len({known, *found.values()}) == 3


def test_deterministic_ids_are_message_ids():
    [text] = ids_of(batch_of(body=[b"a"])).values()
    assert len(text) == 32
    parse_uniq_key(text)


@given(st.lists(st.lists(st.integers(0, 6), max_size=30), max_size=12))
def test_occurrences_count_what_came_before(batches):
    seen = Occurrences()
    counts = {}
    for batch in batches:
        expected = []
        for value in batch:
            expected.append(counts.get(value, 0))
            counts[value] = counts.get(value, 0) + 1
        assert seen.number(np.array(batch, np.uint64)).tolist() == expected
    assert len(seen._levels) <= 8
