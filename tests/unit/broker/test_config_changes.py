"""Settings of a running broker: those that requests change, those that they may only see."""

import asyncio
import logging
from dataclasses import fields, replace

import pytest

from sprocketmq.broker import BrokerConfig
from sprocketmq.broker.config_changes import CHANGEABLE, ChangedSettings
from sprocketmq.cli.apache_names import SETTINGS
from sprocketmq.errors import ConfigError
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.bodies import TopicRoute
from sprocketmq.protocol.settings import decode_settings
from sprocketmq.storage.config import ConfigFile
from sprocketmq.storage.store import StoreConfig
from sprocketmq.testing import eventually


async def settings_of(ask):
    return decode_settings((await ask(26)).body)


async def change(ask, text):
    answer = await ask(25, {}, text.encode())
    return answer.code, answer.remark


async def test_every_setting_that_may_change_takes_effect_and_is_shown(ask, broker):
    wanted = {
        "brokerPermission": "4",
        "autoCreateTopicEnable": "false",
        "autoCreateSubscriptionGroup": "false",
        "slaveReadEnable": "false",
        "accessMessageInMemoryMaxRatio": "30",
        "sendThreadPoolQueueCapacity": "77",
        "pullThreadPoolQueueCapacity": "78",
        "max_connections": "79",
        **{key: "5" for key in CHANGEABLE if key.startswith("maxTransfer")},
    }
    assert wanted.keys() == CHANGEABLE.keys()
    before = await settings_of(ask)
    assert all(before[key] != value for key, value in wanted.items())
    assert await change(ask, "".join(f"{key}={value}\n" for key, value in wanted.items())) == (0, None)
    after = await settings_of(ask)
    assert {key: after[key] for key in wanted} == wanted
    assert {key: after[key] for key in before.keys() - wanted} == {key: before[key] for key in before.keys() - wanted}
    assert (broker.topics.auto_create, broker.groups.auto_create, broker.acks.max_sends) == (False, False, 77)
    assert (await ask.send("new")).code == 17


async def test_no_body_changes_nothing(ask):
    assert await change(ask, "") == (0, None)


@pytest.mark.parametrize("text", ["autoCreateTopicEnable=false\nfileReservedTime=1\n", "autoCreateTopicEnable=false\nbrokerPermission=9\n"])
async def test_all_changes_of_a_request_are_made_or_none(ask, broker, text):
    code, remark = await change(ask, text)
    assert code in (16, 29)
    assert "nothing was changed" in remark
    assert broker.topics.auto_create
    assert not broker.settings.changes


@pytest.mark.parametrize(
    "key",
    ["storePathRootDir", "namesrvAddr", "brokerRole", "fileReservedTime", "deleteWhen", "authenticationEnabled", "filterServerNums"],
)
async def test_other_settings_are_refused_by_name(ask, key):
    code, remark = await change(ask, f"{key}=1\n")
    assert code == 16
    assert remark.startswith(f"'{key}' cannot be changed while the broker runs")
    assert "autoCreateTopicEnable" in remark
    assert "docs/guide/broker-settings.md" in remark


async def test_changes_outlive_a_restart(ask, broker, start_broker, connect):
    assert await change(ask, "autoCreateTopicEnable=false\nbrokerPermission=4\n") == (0, None)
    await broker.stop()
    again = await start_broker(like=broker)
    assert not again.topics.auto_create
    assert again.topics.permission == 4
    at_again = await connect(again)
    assert await change(at_again, "brokerPermission=6\n") == (0, None)
    assert again.settings.snapshot() == {"autoCreateTopicEnable": {"value": "false", "given": "true"}}


async def test_a_setting_that_was_edited_since_counts(ask, broker, start_broker, caplog):
    assert await change(ask, "max_connections=50\nslaveReadEnable=false\n") == (0, None)
    await broker.stop()
    with caplog.at_level(logging.WARNING):
        again = await start_broker(max_connections=60)
    assert again.settings.config.max_connections == 60
    assert not again.settings.config.slave_read_enable
    assert "max_connections was changed to 50 while it was 10000; it is given as 60 now, which counts" in caplog.text


def test_entries_of_the_file_that_are_not_valid_are_left_out(tmp_path, caplog):
    settings = ChangedSettings(BrokerConfig(store=StoreConfig(root=tmp_path)))
    settings.load(
        {
            "brokerPermission": {"value": "9", "given": "6"},
            "authenticationEnabled": {"value": "false", "given": "true"},
            "max_connections": "9",
            7: {},
            "slaveReadEnable": {"value": "false", "given": "true"},
        }
    )
    assert settings.changes == {"slaveReadEnable": False}
    assert caplog.text.count("is not valid and is left out") == 4


def test_the_old_limits_of_pulls_do_not_overrule_a_change(tmp_path):
    settings = ChangedSettings(BrokerConfig(store=StoreConfig(root=tmp_path), max_transfer_count=10))
    settings.take({"maxTransferCountOnMessageInMemory": 20})
    assert settings.config.max_transfer_count_on_message_in_memory == 20
    assert settings.config.max_transfer_count_on_message_in_disk == 10


def test_the_bounds_are_those_of_the_configuration(tmp_path):
    config = BrokerConfig(store=StoreConfig(root=tmp_path))
    names = {field.name for field in fields(BrokerConfig)}
    for name, kind in CHANGEABLE.values():
        assert name in names
        if hasattr(kind, "low"):
            for value in (kind.low, kind.high):
                replace(config, **{name: value})
            for value in (kind.low - 1, kind.high + 1):
                with pytest.raises(ConfigError, match=name):
                    replace(config, **{name: value})


async def test_a_change_that_cannot_be_saved_is_undone(ask, broker, monkeypatch):
    def fail(self, value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ConfigFile, "save", fail)
    code, remark = await change(ask, "autoCreateTopicEnable=false\n")
    assert code == 1
    assert remark.startswith("nothing was changed, as ")
    assert "No space left on device" in remark
    assert broker.topics.auto_create
    assert (await settings_of(ask))["autoCreateTopicEnable"] == "true"


async def test_changes_at_the_same_time_are_all_made(ask, broker):
    answers = await asyncio.gather(*(change(ask, f"{key}=5\n") for key in CHANGEABLE if key.startswith("maxTransfer")))
    assert answers == [(0, None)] * 4
    assert len(broker.settings.snapshot()) == 4


async def test_a_broker_that_may_not_be_written_loses_its_producers_through_the_route(start_broker, namesrv, connect):
    broker = await start_broker(namesrv=(namesrv.address,))
    broker.topics.create_internal("orders", 4)
    ask = await connect(broker)
    pool = ConnectionPool(expected="nameserver")
    asking = await pool.get(namesrv.address)

    async def perms():
        answer = await asking.request(105, ext={"topic": "orders"})
        return [queue.perm for queue in TopicRoute.decode(answer.body).queue_datas] if answer.code == 0 else []

    await eventually(lambda: "orders" in namesrv.routes.topics())
    assert await perms() == [6]
    assert await change(ask, "brokerPermission=4\n") == (0, None)
    assert await perms() == [4]
    assert (await ask.send("orders")).code == 0  # of a producer that has not heard yet
    assert await change(ask, "brokerPermission=6\n") == (0, None)
    assert await perms() == [6]
    await pool.close()


async def test_permissions_hold_for_ordered_topics_and_for_pulls(ask, broker):
    await ask(17, {**ordered("steps"), "order": "true"})
    assert await change(ask, "brokerPermission=4\n") == (0, None)
    answer = await ask.send("steps")
    assert (answer.code, answer.remark) == (16, "the broker's permission forbids sends to the ordered topic[steps]")
    assert await change(ask, "brokerPermission=2\n") == (0, None)
    assert (await ask.send("steps")).code == 0
    answer = await ask.pull("steps", 0)
    assert (answer.code, answer.ext) == (16, {"forbiddenType": "1"})
    assert answer.remark == "this broker's permission forbids pulling messages"
    assert await change(ask, "brokerPermission=6\n") == (0, None)
    assert await ask.bodies("steps") == [b"body"]


def ordered(name):
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }


async def test_topics_are_created_by_sends_again_where_there_was_no_template(start_broker, connect):
    broker = await start_broker(auto_create_topic=False)
    ask = await connect(broker)
    assert (await ask.send("new")).code == 17
    assert await change(ask, "autoCreateTopicEnable=true\n") == (0, None)
    assert (await ask.send("new")).code == 0


async def test_a_slave_takes_changes_of_its_own(pair, connect):
    master, slave = await pair()
    ask = await connect(slave)
    assert await change(ask, "slaveReadEnable=false\n") == (0, None)
    assert (await ask.pull("orders", 0)).code == 2
    assert master.settings.config.slave_read_enable


async def test_every_setting_of_apaches_that_there_is_here_is_shown(ask):
    optional = {"haListenPort", "haMasterAddress", "maxHaTransferByteInSecond", "metricsPromExporterPort"}
    assert SETTINGS.keys() - optional <= (await settings_of(ask)).keys()


async def test_secrets_are_masked(start_broker, connect, namesrv):
    secret = "a secret of sixteen characters"
    broker = await start_broker(ha_port=0, ha_secret=secret, namesrv=(namesrv.address,))
    shown = await settings_of(await connect(broker))
    assert shown["ha_secret"] == "******"
    assert secret not in str(shown)
