"""AdminClient shows and changes settings, makes lists of topics and groups, and reads statistics and time spans."""

import pytest

from sprocketmq import AdminClient, Message, Producer, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import BrokerError, ConfigError, InvalidName, TopicNotFound
from sprocketmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig


@pytest.fixture(scope="module")
def mq():
    with LocalCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
async def admin(mq):
    async with AdminClient(namesrv=mq.namesrv) as client:
        yield client


async def test_settings_of_a_broker_are_shown_and_changed(mq, admin):
    first, second = mq.brokers
    await admin.update_broker_config(first, {"autoCreateSubscriptionGroup": False, "max_connections": 500})
    changed = await admin.broker_config(first)
    assert (changed["autoCreateSubscriptionGroup"], changed["max_connections"]) == ("false", "500")
    assert (await admin.broker_config(second))["autoCreateSubscriptionGroup"] == "true"
    with pytest.raises(BrokerError, match="'fileReservedTime' cannot be changed while the broker runs"):
        await admin.update_broker_config(first, {"fileReservedTime": 1})
    await admin.update_broker_config(first, {"autoCreateSubscriptionGroup": True})


@pytest.mark.parametrize("changes", [{"a\nb": "1"}, {"a": "1\nauthenticationEnabled=false"}, {"a=b": "1"}, {"": "1"}])
async def test_a_setting_that_is_no_line_is_refused_before_it_is_sent(mq, admin, changes):
    with pytest.raises(ConfigError, match="cannot be written as a setting"):
        await admin.update_broker_config(mq.brokers[0], changes)


async def test_settings_of_a_nameserver_are_shown_and_changed(mq, admin):
    before = await admin.namesrv_config()
    assert before["listenPort"] == mq.namesrv.rpartition(":")[2]
    await admin.update_namesrv_config({"max_connections": 1234})
    assert (await admin.namesrv_config(mq.namesrv))["max_connections"] == "1234"
    with pytest.raises(BrokerError, match="'kvConfigPath' cannot be changed while the nameserver runs"):
        await admin.update_namesrv_config({"max_connections": 5, "kvConfigPath": "/tmp/x"}, address=mq.namesrv)
    assert (await admin.namesrv_config())["max_connections"] == "1234"


async def test_topics_are_created_in_lists_that_may_be_repeated(admin):
    wanted = [TopicConfig("listed", 2, 2), TopicConfig("listed-batches", 1, 1, attributes={"queue.type": "BatchCQ"})]
    await admin.create_topics(wanted)
    await admin.create_topics([*wanted, TopicConfig("listed-too", 3, 3)], broker="broker-a")
    configs = await admin.topic_configs()
    assert configs["listed"] == {"broker-a": wanted[0], "broker-b": wanted[0]}
    assert configs["listed-batches"]["broker-b"].attributes == {"queue.type": "BatchCQ"}
    assert list(configs["listed-too"]) == ["broker-a"]
    with pytest.raises(InvalidName):
        await admin.create_topics([TopicConfig("fine"), TopicConfig("not fine")])
    with pytest.raises(BrokerError, match="conflict with system topic"):
        await admin.create_topics([TopicConfig("fine"), TopicConfig("TBW102")])
    assert "fine" not in await admin.topic_configs()


async def test_groups_are_created_in_lists(admin):
    wanted = [SubscriptionGroupConfig("listed1", retry_max_times=2), SubscriptionGroupConfig("listed2")]
    await admin.create_groups(wanted)
    assert (await admin.group_config("listed1")) == {"broker-a": wanted[0], "broker-b": wanted[0]}


async def test_a_group_is_forbidden_a_topic_and_allowed_again(admin):
    await admin.create_topics([TopicConfig("secret", 1, 1)])
    assert await admin.group_readable("cg", "secret") == {"broker-a": True, "broker-b": True}
    assert await admin.group_readable("cg", "secret", readable=False) == {"broker-a": False, "broker-b": False}
    assert await admin.group_readable("cg", "secret", readable=True) == {"broker-a": True, "broker-b": True}


async def test_time_spans_and_statistics(mq, admin):
    await admin.create_topics([TopicConfig("timed", 1, 1)], broker="broker-a")
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        await producer.send_batch([Message("timed", b"x")] * 5)
    (span,) = await admin.consume_time_spans("cg", "timed")
    assert span.min_time_stamp == span.max_time_stamp > 0
    assert (span.message_queue.broker_name, span.message_queue.queue_id) == ("broker-a", 0)
    with pytest.raises(TopicNotFound):
        await admin.consume_time_spans("cg", "nosuch")
    stats = await admin.broker_stats(mq.brokers[0], "TOPIC_PUT_NUMS", "timed")
    assert stats is not None
    assert stats.stats_minute.sum == 5
    assert await admin.broker_stats(mq.brokers[0], "TOPIC_PUT_NUMS", "nosuch") is None


def test_blocking_code_has_the_same_methods(mq):
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        admin.create_topics([TopicConfig("blocking", 1, 1)])
        admin.update_broker_config(mq.brokers[1], {"slaveReadEnable": False})
        assert admin.broker_config(mq.brokers[1])["slaveReadEnable"] == "false"
        admin.update_namesrv_config({"max_connections": 999})
        assert admin.namesrv_config()["max_connections"] == "999"
        assert admin.consume_time_spans("cg", "blocking")[0].max_time_stamp == -1
        assert admin.broker_stats(mq.brokers[0], "TOPIC_PUT_NUMS", "nosuch") is None
        assert all(admin.group_readable("cg", "blocking").values())
        admin.create_groups([SubscriptionGroupConfig("blocking")])
