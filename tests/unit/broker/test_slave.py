"""A slave beside its master: it follows log and metadata, refuses what would change them, and serves reads."""

import json
import time

from pairs import caught_up, follows

from sprocketmq.broker.replication.roles import Role
from sprocketmq.protocol.bodies import SubscriptionGroupConfig
from sprocketmq.testing import eventually


async def test_a_slave_has_the_masters_messages_and_tables(pair, connect):
    master, slave = await pair()
    at_master = await connect(master)
    for i in range(20):
        assert (await at_master.send("orders", b"%d" % i, queue=i % 4)).code == 0
    master.groups.put(SubscriptionGroupConfig("billing"))
    master.offsets.commit("billing", "orders", 2, 3)
    await eventually(lambda: caught_up(master, slave) and slave.offsets.get("billing", "orders", 2) == 3)
    assert "billing" in slave.groups
    assert slave.topics.get("orders").config == master.topics.get("orders").config
    at_slave = await connect(slave)
    assert await at_slave.bodies("orders", queue=1, group="billing") == [b"1", b"5", b"9", b"13", b"17"]


async def test_a_slave_refuses_changes_and_names_its_master(pair, connect):
    master, slave = await pair()
    at_slave = await connect(slave)
    answers = {
        14: await at_slave.send("orders"),
        11: await at_slave(37),
        16: await at_slave(215, {"topic": "orders"}),
        1: await at_slave(36, {"offset": "0", "group": "billing", "delayLevel": "0"}),
    }
    for code, answer in answers.items():
        assert answer.code == code
        assert answer.remark.endswith(f"this broker is a slave, send this request to the master at {master.address}")


async def test_pulls_held_at_a_slave_wake_when_its_master_gets_a_message(pair, connect):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    await at_slave.heartbeat(consumers=["cg"])
    slave.role.master_alive = False  # it sends consumers to one that is alive
    held = at_slave.pull("orders", 0, wait_ms=20_000)
    await eventually(lambda: slave.pulls.held_count == 1)
    await at_master.send("orders", b"news")
    assert (await held).code == 0


async def test_offsets_committed_at_a_slave_without_a_master_are_handed_over(pair, connect, start_broker):
    master, slave = await pair()
    master.groups.put(SubscriptionGroupConfig("billing"))
    master.offsets.commit("billing", "orders", 0, 5)
    master.offsets.commit("billing", "orders", 1, 9)
    await eventually(lambda: slave.offsets.get("billing", "orders", 1) == 9)
    await master.stop()
    at_slave = await connect(slave)
    for queue_id, offset in ((0, 7), (1, 3)):
        ext = {"consumerGroup": "billing", "topic": "orders", "queueId": str(queue_id), "commitOffset": str(offset)}
        assert (await at_slave(15, ext)).code == 0
    slave.files.save_offsets()
    await slave.stop()
    again = await start_broker("master", like=master)
    slave = await start_broker("slave", like=slave)
    await eventually(lambda: again.offsets.get("billing", "orders", 0) == 7)
    await eventually(lambda: slave.offsets.own == {})
    # The master's is higher: the group went on there before it was lost.
    assert [again.offsets.get("billing", "orders", 1), slave.offsets.get("billing", "orders", 1)] == [9, 9]


async def test_a_master_that_lost_offsets_gets_them_back_from_its_slave(pair, start_broker):
    master, slave = await pair(save_offsets_interval_s=3600.0)
    master.groups.put(SubscriptionGroupConfig("billing"))
    master.offsets.commit("billing", "orders", 0, 5)
    await master.files.offsets.touch()
    master.offsets.commit("billing", "orders", 0, 50)
    await eventually(lambda: slave.offsets.get("billing", "orders", 0) == 50)
    await master.abort()
    again = await start_broker("master", like=master)
    assert again.offsets.get("billing", "orders", 0) == 5
    await eventually(lambda: again.offsets.get("billing", "orders", 0) == 50)
    again.offsets.reset("billing", "orders", 0, 1)  # by an administrator, after that
    await eventually(lambda: slave.offsets.get("billing", "orders", 0) == 1)
    assert again.offsets.get("billing", "orders", 0) == 1


async def test_topics_and_groups_that_the_master_deletes_go(pair, connect):
    master, slave = await pair()
    at_master = await connect(master)
    await at_master.send("orders")
    master.groups.put(SubscriptionGroupConfig("billing"))
    await eventually(lambda: "billing" in slave.groups and slave.store.max_offset("orders", 0) == 1)
    await at_master(215, {"topic": "orders"})
    await at_master(207, {"groupName": "billing"})
    await eventually(lambda: "billing" not in slave.groups and "orders" not in slave.topics)
    assert slave.store.max_offset("orders", 0) == 0


async def test_a_new_batch_topic_is_known_to_slaves_before_its_creation_is_answered(pair, connect):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    fields = {"defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    more = {"topicSysFlag": "0", "order": "false", "attributes": "+queue.type=BatchCQ"}
    assert (await at_master(17, {"topic": "batches", **fields, **more})).code == 0
    await at_master.send("batches", b"alone")
    await eventually(lambda: slave.store.max_offset("batches", 0) == 1)
    assert "batches" in slave.store.batch_topics
    assert await at_slave.bodies("batches") == [b"alone"]


async def test_a_topic_of_the_masters_last_moment_is_read_from_the_slave(pair, connect):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    await slave.replication.metadata.stop()
    master.topics.create_internal("late", 4)
    await at_master.send("late", b"kept", queue=2)
    await eventually(lambda: slave.store.max_offset("late", 2) == 1)
    assert "late" not in slave.topics
    await master.abort()
    await eventually(lambda: "late" in slave.topics)
    assert await at_slave.bodies("late", queue=2) == [b"kept"]


async def test_master_and_slave_tell_their_state(pair, connect):
    master, slave = await pair()
    at_master, at_slave = await connect(master), await connect(slave)
    await at_master.send("orders")
    await eventually(lambda: master.replication.slaves[0].behind_bytes == 0)
    end = master.store.commitlog_max_offset
    status = json.loads((await at_master(907)).body)
    assert (status["master"], status["inSyncSlaveNums"], status["masterCommitLogMaxOffset"]) == (True, 1, end)
    assert [(one["slaveAckOffset"], one["diff"], one["inSync"]) for one in status["haConnectionInfo"]] == [(end, 0, True)]
    status = json.loads((await at_slave(907)).body)
    assert (status["master"], status["haClientRuntimeInfo"]["maxOffset"]) == (False, end)
    assert status["haClientRuntimeInfo"]["masterAddr"] == master.replication.ha_address
    for name in ("lastReadTimestamp", "lastWriteTimestamp"):
        assert 0 <= time.time() * 1000 - status["haClientRuntimeInfo"][name] < 60_000
    epochs = [json.loads((await ask(1007)).body) for ask in (at_master, at_slave)]
    assert [one["epochList"] for one in epochs] == [[{"epoch": 1, "startOffset": 0, "endOffset": (1 << 63) - 1}]] * 2
    assert [(one["brokerName"], one["brokerId"], one["maxOffset"]) for one in epochs] == [("broker-a", 0, end), ("broker-a", 1, end)]
    table = json.loads((await at_slave(28)).body)["table"]
    assert (table["brokerRole"], table["replicationState"], table["replicationBehindBytes"]) == ("SLAVE", "following", "0")
    assert (await at_slave(906)).ext == {"masterAddress": master.address, "masterHaAddress": master.replication.ha_address}


async def test_a_slave_says_what_it_waits_for(pair, start_broker, namesrv):
    master = await start_broker("lonely", namesrv=(namesrv.address,))
    slave = await start_broker("its-slave", namesrv=(namesrv.address,), role=Role.SLAVE, broker_id=1)
    await eventually(lambda: "give it ha_port" in slave.replication.follower.reason)
    assert not follows(slave)
    assert master.role.broker_id == 0
