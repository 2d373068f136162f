"""AdminClient shows masters and slaves: what they are, and how far the slaves follow."""

from dataclasses import replace

import pytest

from sprocketmq import AdminClient
from sprocketmq.client.admin import BrokerState
from sprocketmq.client.admin.replication import pair, with_lags
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import BrokerError
from sprocketmq.protocol.bodies import HaConnectionInfo

MASTER = BrokerState("broker-a", 0, "10.0.0.1:10911", "c", "SYNC_MASTER", "V5_5_0", log_end=1000)
SLAVE = BrokerState("broker-a", 1, "10.0.0.2:10911", "c", "SLAVE", "V5_5_0", log_end=900)


def link(address, acked, *, in_sync=True):
    return HaConnectionInfo(address, slave_ack_offset=acked, in_sync=in_sync)


def test_a_slave_is_behind_by_what_it_lacks_of_its_masters_log():
    master = replace(MASTER, slaves=(link("10.0.0.2:40000", 880),))
    assert with_lags([SLAVE, master]) == [replace(SLAVE, behind_bytes=100, in_sync=True), master]


def test_a_slave_that_still_compares_is_not_in_sync():
    master = replace(MASTER, slaves=(link("10.0.0.2:40000", 880),))
    assert with_lags([replace(SLAVE, following="comparing"), master])[0].in_sync is False


def test_a_slave_that_has_more_by_now_is_not_behind():
    (slave, _) = with_lags([replace(SLAVE, log_end=1200), MASTER])
    assert (slave.behind_bytes, slave.in_sync) == (0, False)


@pytest.mark.parametrize("master", [None, replace(MASTER, problem="no answer", log_end=None), replace(MASTER, broker_name="broker-b")])
def test_without_its_master_nothing_is_known_of_a_slaves_lag(master):
    states = [SLAVE] if master is None else [SLAVE, master]
    assert with_lags(states)[0] == SLAVE


def test_connections_are_told_apart_by_host_and_then_by_how_far_they_are():
    near, far = replace(SLAVE, log_end=950), replace(SLAVE, broker_id=2, address="10.0.0.2:10921", log_end=500)
    other = replace(SLAVE, broker_id=3, address="10.0.0.3:10911")
    links = [link("10.0.0.2:40001", 490), link("/10.0.0.2:40002", 940), link("10.0.0.9:40003", 1)]
    pairs = pair(links, [MASTER, far, other, near])
    assert pairs == {near.address: links[1], far.address: links[0], other.address: links[2]}  # the last connects from another address
    assert pair([links[0]], [near, far]) == {near.address: links[0]}
    assert pair([], [near]) == {}


async def test_brokers_are_listed_by_name_and_those_that_do_not_answer_with_the_reason():
    async with LocalCluster(brokers=2, in_process=False) as mq, AdminClient(namesrv=mq.namesrv, timeout_s=60) as admin:
        first, second = await admin.brokers()
        assert (first.broker_name, first.broker_id, first.address) == ("broker-a", 0, mq.brokers[0])
        assert (first.role, first.version, first.cluster, first.problem) == ("ASYNC_MASTER", "V5_5_0", "DefaultCluster", "")
        assert (first.log_end, first.in_sync_slaves, first.slaves, first.behind_bytes) == (0, 0, (), None)
        assert second.broker_name == "broker-b"
        assert await admin.brokers("broker-b") == [second]
        assert (await admin.ha_status(mq.brokers[0])).master
        assert (await admin.broker_config(mq.brokers[1]))["brokerName"] == "broker-b"


async def test_a_slave_tells_how_it_follows():
    async with LocalCluster(replicas=1) as mq, AdminClient(namesrv=mq.namesrv, timeout_s=60) as admin:
        await admin.create_topic("orders", queues=1)

        master, slave = await admin.brokers("broker-a")
        while slave.following != "following" or not slave.in_sync or master.in_sync_slaves != 1:
            master, slave = await admin.brokers("broker-a")
        assert (slave.broker_id, slave.role, slave.address, slave.epoch) == (1, "SLAVE", mq.address("broker-a-1"), 1)
        assert (slave.behind_bytes, slave.behind_ms) == (0, 0)
        assert [(entry.epoch, entry.start_offset) for entry in (await admin.broker_epochs(slave.address)).epoch_list] == [(1, 0)]
        with pytest.raises(BrokerError, match="epoch 1 is not higher than 1"):
            await admin.change_master(slave.address, slave.address, 1)
