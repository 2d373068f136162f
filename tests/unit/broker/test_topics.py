"""The topic table and the attribute language."""

import pytest

from sprocketmq.broker.attributes import AttributeRefused, change_attributes, parse_changes
from sprocketmq.broker.topics import TopicRefused, TopicTable
from sprocketmq.clock import ManualClock
from sprocketmq.errors import FatalError
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.headers import CreateTopic


@pytest.fixture
def changes():
    return []


@pytest.fixture
def table(changes):
    return TopicTable(cluster_name="c", broker_name="b", auto_create=True, clock=ManualClock(), changed=changes.append)


def request(name="orders", **fields):
    return CreateTopic(**{"topic": name, "read_queue_nums": 4, "write_queue_nums": 4, "perm": 6, **fields})


def test_a_new_broker_has_its_own_topics(table):
    names = {topic.name for topic in table}
    assert {"TBW102", "BenchmarkTest", "c", "b", "SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX", "c_REPLY_TOPIC"} <= names
    assert table.get("TBW102").config.perm == 7
    assert (table.get("c").config.write_queue_nums, table.get("b").config.write_queue_nums) == (16, 1)
    assert "TBW102" not in TopicTable(cluster_name="c", broker_name="b", auto_create=False)


def test_the_trace_topic_is_the_brokers_own_when_it_is_enabled():
    table = TopicTable(cluster_name="c", broker_name="b", auto_create=False, trace_topic="Traces")
    topic = table.get("Traces")
    assert (topic.config.write_queue_nums, topic.config.read_queue_nums, topic.config.perm, topic.refusal) == (1, 1, 6, None)
    with pytest.raises(TopicRefused, match="system topic"):
        table.delete("Traces")
    assert "Traces" not in TopicTable(cluster_name="c", broker_name="b", auto_create=False)


def test_names_that_are_one_directory_are_not_taken_twice():
    table = TopicTable(cluster_name="c", broker_name="b", auto_create=True, clock=ManualClock(), folds_case=lambda: True)
    table.create_or_update(request("Orders"))
    with pytest.raises(TopicRefused, match=r"topic\[orders\] cannot be created: it differs from topic\[Orders\] only in case"):
        table.create_or_update(request("orders"))
    with pytest.raises(TopicRefused, match="choose another name"):
        table.create_for_send("ORDERS", "TBW102", 4)
    with pytest.raises(TopicRefused, match="only in case"):
        table.create_or_update(request("bills"), request("Bills"))
    assert [name for name in ("Orders", "orders", "ORDERS", "bills", "Bills") if name in table] == ["Orders"]
    assert table.create_or_update(request("Orders", perm=4))


def test_a_directory_that_an_existing_topic_has_in_another_case_is_not_a_topic_of_its_own():
    class Store:
        batch_topics = frozenset()

        def topics_on_disk(self):
            return ["Orders", "Bills"]

        def max_offset(self, topic, queue_id):
            return 1

    table = TopicTable(cluster_name="c", broker_name="b", auto_create=True, clock=ManualClock(), folds_case=lambda: True)
    table.create_or_update(request("orders"))
    table.adopt(Store())
    assert [name for name in ("orders", "Orders", "Bills") if name in table] == ["orders", "Bills"]


def test_names_that_differ_in_case_are_topics_of_their_own_elsewhere(table):
    assert table.create_or_update(request("Orders"), request("orders"))


def test_creating_and_changing_advance_the_version_and_an_identical_repeat_does_not(table, changes):
    before = table.data_version
    assert table.create_or_update(request())
    assert table.data_version.counter == before.counter + 1
    assert not table.create_or_update(request())
    assert table.create_or_update(request(read_queue_nums=8))
    assert table.data_version.counter == before.counter + 2
    assert [[config.topic_name for config in change] for change in changes] == [["orders"], ["orders"]]


def test_a_topic_keeps_its_identity_when_it_changes(table):
    table.create_or_update(request())
    topic = table.get("orders")
    table.create_or_update(request(read_queue_nums=8, perm=4))
    assert table.get("orders") is topic
    assert (topic.read_queues, topic.max_queue_id, topic.readable) == (8, 7, True)
    assert topic.refusal == (16, "the topic[orders] sending message is forbidden")


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"topic": "bad name"}, 29, "contains illegal characters"),
        ({"topic": ""}, 29, "is blank"),
        ({"topic": "x" * 128}, 29, "longer than topic max length 127"),
        ({"topic": "TBW102"}, 29, "The topic[TBW102] is conflict with system topic."),
        ({"topic": "rmq_sys_mine"}, 29, "conflict with system topic"),
        ({"topic": "b"}, 29, "conflict with system topic"),
        ({"read_queue_nums": -1}, 29, "0 to 16384 queues"),
        ({"write_queue_nums": 2**31 - 1}, 29, "0 to 16384 queues"),
        ({"perm": 16}, 29, "perm[16] is illegal"),
        ({"perm": -1}, 29, "perm[-1] is illegal"),
        ({"topic_filter_type": "NONE"}, 29, "topicFilterType[NONE] is illegal"),
        ({"topic_sys_flag": -1}, 29, "topicSysFlag[-1] is illegal"),
        ({"attributes": "+cleanup.policy=COMPACTION"}, 1, "this broker does not compact topics"),
        ({"attributes": "+message.type=MIXED"}, 29, "MIXED message type is not supported."),
        ({"perm": 14}, 29, "perm[14] is illegal"),
        ({"attributes": "+queue.type=NoSuch"}, 1, "value is not in set: [SimpleCQ, BatchCQ]"),
    ],
)
def test_refused_topics_change_nothing(table, changes, fields, code, words):
    with pytest.raises(TopicRefused) as caught:
        table.create_or_update(request(**fields))
    assert caught.value.code == code
    assert words in caught.value.remark
    assert changes == []


def test_attributes_are_kept_and_described(table):
    table.create_or_update(request(attributes="+message.type=DELAY,+reserve.time=-1"))
    topic = table.get("orders")
    assert topic.config.attributes == {"message.type": "DELAY", "reserve.time": "-1"}
    assert topic.describe().endswith("attributes={message.type=DELAY, reserve.time=-1}]")


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ("+reserve.time=3600", "Update topic reserveTime not supported"),
        ("+lite.topic.expiration=30", "no lite topics"),
        ("+message.type=LITE", "no lite topics"),
        ("+cleanup.policy=COMPACTION", "does not compact"),
    ],
)
def test_attributes_without_an_effect_are_refused_by_name(table, changes, attributes, words):
    table.create_or_update(request("there"))
    changes.clear()
    for name in ("orders", "there") if "cleanup" not in attributes else ("orders",):
        with pytest.raises(TopicRefused) as caught:
            table.create_or_update(request(name, attributes=attributes))
        assert caught.value.code == 1
        assert words in caught.value.remark
    assert changes == []


def test_a_topic_of_apaches_store_keeps_its_attributes_and_is_served(table):
    tree = table.snapshot()
    attributes = {"message.type": "MIXED", "reserve.time": "3600", "lite.topic.expiration": "30"}
    tree["topicConfigTable"]["moved"] = {"topicName": "moved", "attributes": attributes}
    table.load(tree)
    assert table.get("moved").refusal is None
    table.create_or_update(request("moved", read_queue_nums=9))
    assert table.get("moved").config.attributes == attributes
    table.create_or_update(request("moved", attributes="-reserve.time"))
    assert "reserve.time" not in table.get("moved").config.attributes


def test_the_table_survives_its_file(table):
    table.create_or_update(request(attributes="+message.type=FIFO", order=True))
    again = TopicTable(cluster_name="c", broker_name="b", auto_create=True, clock=ManualClock())
    again.load(table.snapshot())
    assert again.get("orders").config == table.get("orders").config
    assert again.data_version == table.data_version


def test_topics_of_another_kind_are_kept_but_not_served(table):
    tree = table.snapshot()
    tree["topicConfigTable"]["rocks"] = {"topicName": "rocks", "attributes": {"queue.type": "RocksDBCQ"}}
    table.load(tree)
    topic = table.get("rocks")
    assert topic.refusal[0] == 1
    assert "this broker has no RocksDBCQ queues" in topic.refusal[1]
    assert table.snapshot()["topicConfigTable"]["rocks"]["attributes"] == {"queue.type": "RocksDBCQ"}


def test_a_topic_of_batch_queues_is_declared_before_it_is_there():
    declared = []
    table = TopicTable(cluster_name="c", broker_name="b", auto_create=True, clock=ManualClock(), declare=declared.append)
    table.create_or_update(request(attributes="+queue.type=BatchCQ"))
    table.create_or_update(request(topic="plain"))
    assert declared == ["orders"]
    assert (table.get("orders").batch_queues, table.get("plain").batch_queues) == (True, False)
    table.create_or_update(request(read_queue_nums=9))
    assert table.get("orders").config.attributes == {"queue.type": "BatchCQ"}
    assert declared == ["orders"]


def test_a_topic_of_batch_queues_the_store_refuses_is_not_there():
    def refuse(name):
        raise FatalError(f"topic {name} has messages in plain queues")

    table = TopicTable(cluster_name="c", broker_name="b", auto_create=True, clock=ManualClock(), declare=refuse)
    with pytest.raises(TopicRefused, match="plain queues"):
        table.create_or_update(request(attributes="+queue.type=BatchCQ"))
    assert "orders" not in table


def test_deleting(table, changes):
    table.create_or_update(request())
    assert table.delete("orders").name == "orders"
    assert table.delete("orders") is None
    with pytest.raises(TopicRefused):
        table.delete("TBW102")
    assert changes[-1] == []


def test_auto_creation_takes_the_template(table):
    assert table.create_for_send("new", "TBW102", 4).config.write_queue_nums == 4
    assert table.create_for_send("none", "orders", 4) is None
    assert table.create_for_send("%RETRY%g", "nosuch", 4).config.write_queue_nums == 1
    with pytest.raises(TopicRefused):
        table.create_for_send("bad name", "TBW102", 4)


# --- attributes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "text", "result"),
    [
        (None, "", {}),
        (None, None, {}),
        (None, "+queue.type=SimpleCQ", {"queue.type": "SimpleCQ"}),
        (None, "+message.type=NORMAL,+reserve.time=-1", {"message.type": "NORMAL", "reserve.time": "-1"}),
        ({"message.type": "NORMAL"}, "+message.type=FIFO", {"message.type": "FIFO"}),
        ({"message.type": "NORMAL"}, "-message.type", {}),
        ({"queue.type": "BatchCQ"}, "", {"queue.type": "BatchCQ"}),
        ({}, "+lite.topic.expiration=43200", {"lite.topic.expiration": "43200"}),
    ],
)
def test_attribute_changes(current, text, result):
    assert change_attributes(current, parse_changes(text)) == result


@pytest.mark.parametrize(
    ("current", "text", "words"),
    [
        (None, "+queue.type=NoSuch", "value is not in set: [SimpleCQ, BatchCQ]"),
        ({"queue.type": "BatchCQ"}, "+queue.type=BatchCQ", "attempt to update an unchangeable attribute. key: queue.type"),
        (None, "+nosuch=1", "unsupported key: nosuch"),
        (None, "queue.type=BatchCQ", "add/alter attribute format is wrong: queue.type"),
        (None, "queue.type", "delete attribute format is wrong: queue.type"),
        (None, "+reserve.time=1,+reserve.time=2", "key duplication: +reserve.time"),
        ({"reserve.time": "1"}, "+reserve.time=1,-reserve.time", "key duplication: reserve.time"),
        ({}, "-message.type", "attempt to delete a nonexistent key: message.type"),
        (None, "-message.type", "only add attribute is supported while creating topic. key: message.type"),
        (None, "+a+b=1", "kv string format wrong."),
        (None, "+=1", "kv string format wrong."),
        (None, "+lite.topic.expiration=43201", "value is not in range(-1, 43200)"),
        (None, "+reserve.time=soon", 'For input string: "soon"'),
    ],
)
def test_refused_attribute_changes(current, text, words):
    with pytest.raises(AttributeRefused) as caught:
        change_attributes(current, parse_changes(text))
    assert str(caught.value) == words


# --- over the wire ------------------------------------------------------------------------------------------------------


def wire(name="made", **fields):
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "",
        "force": "false",
        **fields,
    }


async def test_a_created_topic_is_on_disk_when_the_answer_comes(ask, tmp_path):
    assert (await ask(RequestCode.UPDATE_AND_CREATE_TOPIC, wire(attributes="+message.type=FIFO"))).code == 0
    text = (tmp_path / "store/config/topics.json").read_text()
    assert '"made":{' in text
    assert '"message.type":"FIFO"' in text
    assert (await ask(17, wire())).code == 0


async def test_a_refused_topic_is_answered_with_the_reason(ask, broker):
    answer = await ask(17, wire("bad!"))
    assert (answer.code, answer.ext) == (29, {})
    answer = await ask(17, wire(attributes="+queue.type=NoSuch"))
    assert (answer.code, answer.remark) == (1, "value is not in set: [SimpleCQ, BatchCQ]")
    answer = await ask(17, {"topic": "x"})
    assert "readQueueNums" in answer.remark
    assert "made" not in broker.topics
