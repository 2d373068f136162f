"""Typed JSON bodies: both ways, tolerant where the reference is, refusing what does not fit."""

import inspect
import json
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import InvalidName, LocalProtocolError, RemoteProtocolError
from sprocketmq.protocol import bodies
from sprocketmq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumeOffset,
    ConsumerOffsets,
    ConsumerStatus,
    ConsumeStats,
    DataVersion,
    HeartbeatData,
    KvTable,
    LockBatchRequest,
    QueueData,
    QueueRef,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicOffset,
    TopicRoute,
    TopicStats,
    build_subscription,
)
from sprocketmq.protocol.jsondialect import loads
from sprocketmq.protocol.message import MessageQueue

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
queues = st.builds(MessageQueue, text, text, int32)
versions = st.builds(DataVersion, int64, int64, int64)
topics = st.builds(TopicConfig, text, int32, int32, int32, text, int32, st.booleans(), st.dictionaries(text, text, max_size=3))
brokers = st.builds(BrokerData, text, text, st.dictionaries(int64, text, max_size=3), st.booleans(), st.none() | text)
floats = st.floats(allow_nan=False, allow_infinity=False)

ANY_BODY = st.one_of(
    topics,
    versions,
    st.builds(TopicConfigTable, st.dictionaries(text, topics, max_size=3), versions),
    st.builds(TopicRoute, st.lists(brokers, max_size=3), st.lists(st.builds(QueueData, text, int32, int32, int32, int32), max_size=3)),
    st.builds(ClusterInfo, st.dictionaries(text, brokers, max_size=3), st.dictionaries(text, st.lists(text, max_size=3), max_size=3)),
    st.builds(TopicList, st.lists(text, max_size=4), st.none() | text),
    st.builds(KvTable, st.dictionaries(text, text, max_size=4)),
    st.builds(LockBatchRequest, text, text, st.lists(st.builds(QueueRef, text, text, int32), max_size=3)),
    st.builds(ConsumerOffsets, st.dictionaries(text, st.dictionaries(int32, int64, max_size=3), max_size=3)),
    st.builds(TopicStats, st.dictionaries(queues, st.builds(TopicOffset, int64, int64, int64), max_size=4), floats),
    st.builds(
        ConsumerStatus, st.dictionaries(queues, int64, max_size=3), st.dictionaries(text, st.dictionaries(queues, int64, max_size=3))
    ),
    st.builds(ConsumeStats, st.dictionaries(queues, st.builds(ConsumeOffset, int64, int64, int64, int64), max_size=4), floats),
)


@given(ANY_BODY)
def test_a_body_decodes_to_what_was_encoded(body):
    raw = body.encode()
    assert type(body).decode(raw) == body
    assert type(body).decode(memoryview(raw)) == body


def every_body() -> list[type[bodies.Body]]:
    return [
        kind
        for _, kind in inspect.getmembers(bodies, inspect.isclass)
        if issubclass(kind, bodies.Body) and not kind.__name__.startswith("_")
    ]


def smallest(kind: type[bodies.Body]) -> bodies.Body:
    required = kind.__struct_fields__[: len(kind.__struct_fields__) - len(kind.__struct_defaults__)]
    values: dict[str, Any] = {name: 1 if name.endswith(("nums", "id")) and name != "client_id" else "x" for name in required}
    if "readable" in values:
        values["readable"] = True
    if "subscription_data" in values:
        values["subscription_data"] = build_subscription("T", "*", 1)
    if "message_queue" in values:
        values["message_queue"] = QueueRef("T", "b", 1)
    return kind(**values)


@pytest.mark.parametrize("kind", every_body(), ids=lambda kind: kind.__name__)
def test_every_body_survives_with_nothing_but_its_required_members(kind):
    body = smallest(kind)
    assert kind.decode(body.encode()) == body
    tree = loads(body.encode())
    assert None not in tree.values()


@pytest.mark.parametrize("kind", every_body(), ids=lambda kind: kind.__name__)
def test_every_body_ignores_unknown_and_null_members(kind):
    body = smallest(kind)
    tree = loads(body.encode())
    optional = kind.__struct_encode_fields__[len(kind.__struct_encode_fields__) - len(kind.__struct_defaults__) :]
    tree.update(dict.fromkeys(optional))
    tree["somethingNew"] = {"deep": [None, {"er": 1}]}
    assert kind.decode(json.dumps(tree).encode()) == body


@pytest.mark.parametrize("kind", every_body(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b"1", b'"x"', b"{", b"\xff", b"[" * 100_000], ids=range(8))
def test_every_body_refuses_what_is_no_object(kind, raw):
    with pytest.raises(RemoteProtocolError):
        kind.decode(raw)


def test_numbers_may_come_as_text():
    assert TopicConfig.decode(b'{"topicName":"T","perm":"6","readQueueNums":"4"}') == TopicConfig("T", 4, 16, 6)


def test_integer_keys_may_be_bare_or_quoted():
    for raw in (b'{"brokerName":"b","cluster":"c","brokerAddrs":{0:"x:1"}}', b'{"brokerName":"b","cluster":"c","brokerAddrs":{"0":"x:1"}}'):
        assert BrokerData.decode(raw).broker_addrs == {0: "x:1"}


def test_what_we_write_is_strict_json_unless_queues_are_keys():
    assert json.loads(BrokerData("c", "b", {0: "x:1"}).encode())["brokerAddrs"] == {"0": "x:1"}
    assert TopicStats({MessageQueue("t", "b", 1): TopicOffset(0, 5, 9)}).encode() == (
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:{"minOffset":0,"maxOffset":5,"lastUpdateTimestamp":9}},"topicPutTps":0.0}'
    )


def test_a_queue_key_may_also_be_json_text_in_a_string():
    raw = b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"t\\"}":{"maxOffset":7}}}'
    assert TopicStats.decode(raw).offset_table == {MessageQueue("t", "b", 1): TopicOffset(0, 7)}


@pytest.mark.parametrize("table", [b"[]", b"1", b'{"x":1}', b'{"{}":1}', b"{5:1}", b'{{"brokerName":"b","queueId":1,"topic":"t"}:"x"}'])
def test_a_queue_table_of_another_shape_is_refused(table):
    with pytest.raises(RemoteProtocolError):
        TopicStats.decode(b'{"offsetTable":%b}' % table)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"readQueueNums":4}',
        b'{"topicName":5}',
        b'{"topicName":"T","perm":"x"}',
        b'{"topicName":"T","perm":2147483648}',
        b'{"topicName":"T","order":"maybe"}',
        b'{"topicName":"T","attributes":[]}',
        b'{"topicName":"T","attributes":{"a":{}}}',
    ],
)
def test_members_that_do_not_fit_are_refused(raw):
    with pytest.raises(RemoteProtocolError, match="TopicConfig"):
        TopicConfig.decode(raw)


def test_text_that_is_not_unicode_is_refused_when_written():
    with pytest.raises(LocalProtocolError, match="TopicConfig"):
        TopicConfig("\ud800").encode()


def test_the_next_data_version_counts_and_dates_the_change():
    assert DataVersion(1, 5, 7).next(99) == DataVersion(1, 99, 8)
    assert hash(DataVersion(1, 5, 7)) == hash(DataVersion(1, 5, 7))


def test_defaults_are_the_references():
    assert (TopicConfig("T").read_queue_nums, TopicConfig("T").write_queue_nums, TopicConfig("T").perm) == (16, 16, 6)
    group = SubscriptionGroupConfig("g")
    assert (group.retry_queue_nums, group.retry_max_times, group.consume_enable, group.which_broker_when_consume_slowly) == (1, 16, True, 1)


def test_defaults_are_not_shared():
    TopicConfig("a").attributes["x"] = "y"
    assert TopicConfig("b").attributes == {}


def test_a_queue_travels_as_an_object():
    queue = MessageQueue("t", "b", 3)
    assert QueueRef.of(queue).queue == queue


# --- subscriptions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", ["*", "", " * ", "  "])
def test_everything_is_a_star_without_tags(expression):
    subscription = build_subscription("T", expression, 5)
    assert (subscription.sub_string, subscription.tags_set, subscription.code_set, subscription.sub_version) == ("*", [], [], 5)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("TagA", ["TagA"]), ("TagA || TagB", ["TagA", "TagB"]), ("TagA||TagB||TagA||", ["TagA", "TagB"]), ("a b || c", ["a b", "c"])],
)
def test_tags_are_cut_at_double_bars(expression, tags):
    subscription = build_subscription("T", expression, 5)
    assert subscription.tags_set == tags
    assert subscription.sub_string == expression
    assert subscription.expression_type == "TAG"


def test_tag_codes_are_java_hashes():
    assert build_subscription("T", "TagA || TagB", 5).code_set == [2598919, 2598920]


def test_an_expression_of_bars_only_is_refused():
    with pytest.raises(InvalidName, match="names no tag"):
        build_subscription("T", " || ", 5)


def test_a_heartbeat_carries_its_groups():
    heartbeat = HeartbeatData(
        "192.0.2.2@1", [bodies.ProducerData("pg")], [bodies.ConsumerData("cg", subscription_data_set=[build_subscription("T", "*", 1)])]
    )
    tree = json.loads(heartbeat.encode())
    assert tree["clientID"] == "192.0.2.2@1"
    assert tree["producerDataSet"] == [{"groupName": "pg"}]
    assert tree["consumerDataSet"][0]["subscriptionDataSet"][0]["topic"] == "T"


# --- compressed registration --------------------------------------------------------------------------------------------


def piece(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def registration(*, topics: tuple[bytes, ...] = (b'T 4 8 6 SINGLE_TAG {"queue.type":"BatchCQ"}',), mappings: bytes = b"\0\0\0\0") -> bytes:
    version = piece(b'{"counter":1,"stateVersion":0,"timestamp":5}')
    return version + struct.pack(">i", len(topics)) + b"".join(map(piece, topics)) + piece(b'["f:1"]') + mappings


def test_a_compressed_registration_gives_the_same_body():
    body = RegisterBrokerBody.decode_compressed(zlib.compress(registration(), 9))
    assert body == RegisterBrokerBody(
        TopicConfigTable({"T": TopicConfig("T", 4, 8, 6, attributes={"queue.type": "BatchCQ"})}, DataVersion(0, 5, 1)),
        ["f:1"],
    )


def test_topic_mappings_follow_from_release_5_on():
    mapped = registration(mappings=struct.pack(">i", 1) + piece(b'{"topic":"T","x":1}'))
    assert RegisterBrokerBody.decode_compressed(zlib.compress(mapped), 513).topic_config_serialize_wrapper.topic_queue_mapping_info_map == {
        "T": {"topic": "T", "x": 1}
    }
    old = RegisterBrokerBody.decode_compressed(zlib.compress(registration(mappings=b"")), 401)
    assert list(old.topic_config_serialize_wrapper.topic_config_table) == ["T"]


def test_attributes_of_a_topic_may_be_missing():
    body = RegisterBrokerBody.decode_compressed(zlib.compress(registration(topics=(b"A 1 2 6 SINGLE_TAG", b"B 1 2 6 MULTI_TAG "))))
    table = body.topic_config_serialize_wrapper.topic_config_table
    assert [t.attributes for t in table.values()] == [{}, {}]
    assert table["B"].topic_filter_type == "MULTI_TAG"


def test_every_cut_of_a_compressed_registration_is_refused():
    whole = registration()
    for end in range(len(whole)):
        with pytest.raises(RemoteProtocolError):
            RegisterBrokerBody.decode_compressed(zlib.compress(whole[:end]))


@pytest.mark.parametrize(
    "topic", [b"", b"T", b"T 4 8 6", b"T x 8 6 SINGLE_TAG", b"\xff 4 8 6 SINGLE_TAG", b"T 4 8 6 SINGLE_TAG [", b"T 4 8 6 SINGLE_TAG []"]
)
def test_a_topic_line_of_another_shape_is_refused(topic):
    with pytest.raises(RemoteProtocolError):
        RegisterBrokerBody.decode_compressed(zlib.compress(registration(topics=(topic,))))


def test_a_registration_that_does_not_inflate_is_refused():
    with pytest.raises(RemoteProtocolError):
        RegisterBrokerBody.decode_compressed(b"plain")


def test_a_heartbeat_may_have_the_numbers_of_its_enums():
    """As Apache's client for C++ writes it."""
    wire = (
        b'{"clientID":"1@DEFAULT","consumerDataSet":[{"consumeFromWhere":%d,"consumeType":1,"groupName":"g","messageModel":1,'
        b'"subscriptionDataSet":[{"subString":"*","subVersion":"1796015536165","topic":"t"}]}]}\n'
    )
    (group,) = HeartbeatData.decode(wire % 4).consumer_data_set
    assert (group.consume_type, group.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert group.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert group.subscription_data_set[0].sub_version == 1796015536165
    with pytest.raises(RemoteProtocolError, match="HeartbeatData"):
        HeartbeatData.decode(wire % 6)


@pytest.mark.parametrize("wire", [b"[]", b'{"consumerDataSet":1}', b'{"clientID":"c","consumerDataSet":[1]}'])
def test_what_is_no_heartbeat_is_refused(wire):
    with pytest.raises(RemoteProtocolError):
        HeartbeatData.decode(wire)
