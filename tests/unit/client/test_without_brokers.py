"""Clients while no broker is registered: a nameserver that has just started knows none, and topics cannot be created then."""

import asyncio

import pytest

from sprocketmq import AdminClient, Batching, MessageQueue, PullConsumer, sync
from sprocketmq.client import Producer
from sprocketmq.client.send import outbox
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import NoBroker, RetriableError, TopicNotFound
from sprocketmq.protocol.bodies import BrokerData, ClusterInfo
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.message import Message
from sprocketmq.testing import eventually


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(outbox, "MASTER_PAUSE_S", 0.001)


@pytest.fixture
def registered(cluster, monkeypatch):
    """The names of the brokers that the nameserver knows; none at first."""
    names = []

    def answer(conn, command):
        info = ClusterInfo({name: BrokerData("c", name, {0: cluster.broker.address}) for name in names}, {"c": names})
        conn.respond(command, R.SUCCESS, body=info.encode())

    monkeypatch.setattr(cluster.namesrv, "on_GET_BROKER_CLUSTER_INFO", answer)
    return names


@pytest.mark.parametrize("batching", [None, Batching()], ids=["single", "AutoBatch"])
async def test_a_first_send_waits_until_brokers_register(cluster, registered, batching):
    route = cluster.namesrv.routes.pop("t")
    async with Producer("pg", namesrv=cluster.namesrv.address, timeout_s=60, batching=batching) as producer:
        sending = asyncio.create_task(producer.send(Message("t", b"x")))
        await eventually(lambda: cluster.namesrv.count(Q.GET_BROKER_CLUSTER_INFO) > 2)
        assert not sending.done()
        cluster.namesrv.routes["t"] = route
        registered.append("broker-a")
        assert (await sending).queue_offset == 0


async def test_without_brokers_a_send_fails_at_its_timeout_with_what_to_do(cluster, registered):
    cluster.namesrv.routes.clear()
    async with Producer("pg", namesrv=cluster.namesrv.address, timeout_s=0.2) as producer:
        with pytest.raises(NoBroker, match=r"start a broker \(sprocketmq serve\), or wait") as caught:
            await producer.send(Message("t", b"x"))
    assert isinstance(caught.value, RetriableError)
    assert (caught.value.topic, caught.value.namesrv) == ("t", cluster.namesrv.address)


async def test_a_oneway_send_waits_too(cluster, registered):
    cluster.namesrv.routes.clear()
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        with pytest.raises(NoBroker):
            await producer.send_oneway(Message("t", b"x"), timeout_s=0.2)


async def test_an_unknown_topic_of_registered_brokers_is_reported_at_once(cluster, registered):
    cluster.namesrv.routes.clear()
    registered.append("broker-a")
    async with Producer("pg", namesrv=cluster.namesrv.address, timeout_s=60) as producer:
        with pytest.raises(TopicNotFound):
            await producer.send(Message("t", b"x"))
    assert cluster.namesrv.count(Q.GET_BROKER_CLUSTER_INFO) == 1


async def test_to_a_user_who_may_not_list_brokers_the_topic_is_unknown(cluster):
    cluster.namesrv.routes.clear()
    cluster.namesrv.script(Q.GET_BROKER_CLUSTER_INFO, lambda conn, command: conn.respond(command, R.NO_PERMISSION) or True)
    async with Producer("pg", namesrv=cluster.namesrv.address, timeout_s=60) as producer:
        with pytest.raises(TopicNotFound):
            await producer.send(Message("t", b"x"))


async def test_without_brokers_a_look_at_a_topic_says_so_too(cluster, registered):
    cluster.namesrv.routes.clear()
    async with PullConsumer("g", namesrv=cluster.namesrv.address) as consumer, AdminClient(namesrv=cluster.namesrv.address) as admin:
        for look in (lambda: consumer.queues("t"), lambda: consumer.pull(MessageQueue("t", "broker-a", 0), 0), lambda: admin.route("t")):
            with pytest.raises(NoBroker, match="topic 't' can neither be written nor read now"):
                await look()
        registered.append("broker-b")
        with pytest.raises(TopicNotFound):
            await admin.route("t")


def test_a_new_producer_gets_over_a_restart_of_the_nameserver():
    with LocalCluster() as mq:
        mq.create_topic("orders")
        mq.stop_namesrv()
        mq.start_namesrv()
        with sync.Producer("shop", namesrv=mq.namesrv, timeout_s=60) as producer:
            producer.send(Message("orders", b"3 apples"))


async def test_a_producer_may_start_before_its_broker():
    with LocalCluster() as mq:
        mq.stop_broker("broker-a")
        async with Producer("shop", namesrv=mq.namesrv, timeout_s=60) as producer, AdminClient(namesrv=mq.namesrv) as admin:
            assert not (await admin.cluster()).broker_addr_table
            sending = asyncio.create_task(producer.send(Message("orders", b"3 apples")))
            await asyncio.to_thread(mq.start_broker, "broker-a")
            assert (await sending).queue_offset == 0
