"""What becomes of sends and changes while a broker has no master; and of sends to a topic that allows reading only."""

import asyncio

import pytest
from fake_cluster import FakeBroker
from tests.inside import instance_of

from sprocketmq import AdminClient, Batching
from sprocketmq.client import Producer, away, instance
from sprocketmq.client.send import outbox, requests
from sprocketmq.errors import ConnectFailed, FatalError, NameserverUnavailable, NoMaster, RetriableError, SprocketError, TopicReadOnly
from sprocketmq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRoute
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.testing import eventually


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(requests, "RETRY_PAUSE_S", 0.001)
    monkeypatch.setattr(outbox, "MASTER_PAUSE_S", 0.001)
    monkeypatch.setattr(instance, "REFRESH_SOON_S", 0.001)


@pytest.fixture
async def slave():
    """A broker of the cluster's only name, to be promoted."""
    broker = FakeBroker("broker-a")
    await broker.start()
    yield broker
    await broker.close()


def put(cluster, *brokers):
    """Have the nameserver know these brokers, ``(name, id, address)``, of topic ``t``."""
    names = sorted({name for name, _, _ in brokers})
    addresses = {name: {number: address for one, number, address in brokers if one == name} for name in names}
    cluster.namesrv.routes["t"] = TopicRoute(
        [BrokerData("c", name, addresses[name]) for name in names], [QueueData(name, 4, 4, 6) for name in names]
    )


def looked_up(cluster):
    return cluster.namesrv.count(Q.GET_ROUTEINFO_BY_TOPIC)


async def asked_again(cluster):
    before = looked_up(cluster)
    await eventually(lambda: looked_up(cluster) > before + 2)


@pytest.mark.parametrize("batching", [None, Batching()], ids=["single", "AutoBatch"])
async def test_a_first_send_waits_for_a_master(cluster, slave, batching):
    put(cluster, ("broker-a", 1, slave.address))
    async with Producer("pg", namesrv=cluster.namesrv.address, timeout_s=60, batching=batching) as producer:
        sending = asyncio.create_task(producer.send(Message("t", b"x")))
        await asked_again(cluster)
        put(cluster, ("broker-a", 0, slave.address))
        assert (await sending).broker_name == "broker-a"


async def test_without_a_master_nothing_is_stored_and_the_error_says_what_helps(cluster, slave, monkeypatch):
    monkeypatch.setattr(outbox, "MASTER_PAUSE_S", 3600.0)  # no time is left for a second look
    put(cluster, ("broker-a", 1, slave.address))
    async with Producer("pg", namesrv=cluster.namesrv.address, timeout_s=60) as producer:
        with pytest.raises(NoMaster, match="sprocketmq failover broker-a") as caught:
            await producer.send(Message("t", b"x"))
    assert isinstance(caught.value, RetriableError)
    assert (caught.value.topic, caught.value.brokers) == ("t", ("broker-a",))


async def test_a_nameserver_without_an_answer_meanwhile_does_not_hide_that_there_is_no_master(cluster, monkeypatch):
    looks = []

    async def look_up(topic, *, budget_s):
        looks.append(topic)
        if len(looks) == 1:
            raise NoMaster(["broker-a"], topic)
        monkeypatch.setattr(outbox, "MASTER_PAUSE_S", 3600.0)  # no time is left for a third look
        raise NameserverUnavailable(["127.0.0.1:1"])

    async with Producer("pg", namesrv=cluster.namesrv.address, timeout_s=60) as producer:
        monkeypatch.setattr(instance_of(producer), "publish_route", look_up)
        with pytest.raises(NoMaster):
            await producer.send(Message("t", b"x"))
    assert looks == ["t", "t"]


@pytest.mark.parametrize("queue", [None, MessageQueue("t", "broker-a", 1)], ids=["any queue", "a chosen queue"])
async def test_sends_go_on_once_a_slave_is_the_master(cluster, slave, queue):
    async with Producer("pg", namesrv=cluster.namesrv.address, timeout_s=60) as producer:
        await producer.send(Message("t", b"before", queue=queue))
        await cluster.broker.stop()
        put(cluster, ("broker-a", 1, slave.address))
        sending = asyncio.create_task(producer.send(Message("t", b"meanwhile", queue=queue)))
        await asked_again(cluster)
        assert not sending.done()
        put(cluster, ("broker-a", 0, slave.address))
        await sending
        await producer.send(Message("t", b"after", queue=queue))
    assert len([record for records in slave.queues.values() for record in records]) == 2


@pytest.mark.parametrize("unknown", [True, False], ids=["a route without a master", "a master that is away"])
async def test_a_new_master_soon_knows_a_producer_that_sends_nothing(cluster, slave, monkeypatch, unknown):
    monkeypatch.setattr(instance, "ROUTE_REFRESH_S", 3600.0)
    monkeypatch.setattr(away, "LOOK_S", 0.001)
    put(cluster, ("broker-a", 0, cluster.broker.address), ("broker-a", 1, slave.address))
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"x"))
        await cluster.broker.stop()
        if unknown:
            put(cluster, ("broker-a", 1, slave.address))
            await instance_of(producer).fetch_route("t")
        else:
            await eventually(lambda: is_refused(instance_of(producer), cluster.broker.address))
        assert not slave.beats
        put(cluster, ("broker-a", 0, slave.address))
        await slave.until(lambda: slave.beats)
    assert [producer.group_name for producer in slave.beats[0].producer_data_set] == ["pg"]


async def is_refused(client, address):
    try:
        await client.ask(address, Q.GET_BROKER_RUNTIME_INFO, ext={})
    except ConnectFailed:
        return True
    except SprocketError:
        return False


async def submit(producer, message):
    told = asyncio.get_running_loop().create_future()
    producer.submit(message, lambda result, error: told.set_result(result) if error is None else told.set_exception(error))
    await told


WAYS = pytest.mark.parametrize(
    "way",
    [Producer.send, lambda producer, message: producer.send_batch([message]), submit, Producer.send_oneway],
    ids=["send", "send_batch", "submit", "send_oneway"],
)


async def left_without_a_master(cluster, producer, queue):
    """Have the producer know the topic, whose broker of ``queue`` has a slave only."""
    first, second = cluster.brokers
    await producer.send(Message("t", b"x"))
    put(cluster, (first.name, 0, first.address), (second.name, 1, second.address))
    await eventually(lambda: producer_sees(producer, "t", {first.name}))
    assert queue.broker_name == second.name


@WAYS
async def test_a_chosen_queue_waits_for_the_master_of_its_broker(two_brokers, monkeypatch, way):
    monkeypatch.setattr(away, "LOOK_S", 0.001)
    first, second = two_brokers.brokers
    queue = MessageQueue("t", second.name, 0)
    async with Producer("pg", namesrv=two_brokers.namesrv.address, timeout_s=60) as producer:
        await left_without_a_master(two_brokers, producer, queue)
        stored = len(second.queues.get(("t", 0), []))
        sending = asyncio.create_task(way(producer, Message("t", b"chosen", queue=queue)))
        await asked_again(two_brokers)
        assert not sending.done()
        put(two_brokers, (first.name, 0, first.address), (second.name, 0, second.address))
        await sending
        await second.until(lambda: len(second.queues.get(("t", 0), [])) > stored)


@WAYS
async def test_a_chosen_queue_whose_broker_gets_no_master_is_refused_for_now_and_others_are_taken(two_brokers, monkeypatch, way):
    monkeypatch.setattr(outbox, "MASTER_PAUSE_S", 3600.0)  # no time is left for a second look
    first, second = two_brokers.brokers
    queue = MessageQueue("t", second.name, 0)
    async with Producer("pg", namesrv=two_brokers.namesrv.address, timeout_s=60) as producer:
        await left_without_a_master(two_brokers, producer, queue)
        with pytest.raises(NoMaster, match=f"a master of {second.name}: topic 't' takes no messages now"):
            await way(producer, Message("t", b"x", queue=queue))
        assert {(await producer.send(Message("t", b"x"))).broker_name for _ in range(8)} == {first.name}


async def test_a_send_that_was_on_its_way_goes_on_waiting_when_the_route_has_no_master_any_more(two_brokers, monkeypatch):
    monkeypatch.setattr(away, "LOOK_S", 0.001)
    first, second = two_brokers.brokers
    queue = MessageQueue("t", second.name, 0)
    async with Producer("pg", namesrv=two_brokers.namesrv.address, timeout_s=60) as producer:
        await producer.send(Message("t", b"before", queue=queue))
        address = second.address
        await second.stop()
        sending = asyncio.create_task(producer.send(Message("t", b"on its way", queue=queue)))
        await eventually(lambda: is_refused(instance_of(producer), address))
        put(two_brokers, (first.name, 0, first.address), (second.name, 1, address))
        await eventually(lambda: producer_sees(producer, "t", {first.name}))
        await asked_again(two_brokers)
        assert not sending.done()
        promoted = FakeBroker(second.name)
        await promoted.start()
        try:
            put(two_brokers, (first.name, 0, first.address), (second.name, 0, promoted.address))
            assert (await sending).broker_name == second.name
        finally:
            await promoted.close()


async def producer_sees(producer, topic, names):
    await instance_of(producer).fetch_route(topic)
    return {queue.broker_name for queue in await producer.queues(topic)} == names


@pytest.mark.parametrize("known", [False, True], ids=["from the beginning", "meanwhile"])
async def test_a_topic_that_nobody_may_write_is_no_unknown_one(cluster, known):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        if known:
            await producer.send(Message("t", b"x"))
        cluster.namesrv.put("t", cluster.broker, perm=4)
        await instance_of(producer).fetch_route("t")
        with pytest.raises(TopicReadOnly, match="perm=6") as caught:
            await producer.send(Message("t", b"x"))
    assert isinstance(caught.value, FatalError)


@pytest.mark.parametrize(
    "change",
    [
        lambda admin: admin.create_topic("x"),
        lambda admin: admin.delete_topic("t"),
        lambda admin: admin.create_group("g"),
        lambda admin: admin.delete_group("g"),
        lambda admin: admin.reset_offsets("g", "t", "first"),
    ],
    ids=["a new topic", "a topic less", "a new group", "a group less", "offsets"],
)
async def test_without_a_master_nothing_is_changed(cluster, slave, change):
    put(cluster, ("broker-a", 1, slave.address))
    info = ClusterInfo({"broker-a": BrokerData("c", "broker-a", {1: slave.address})}, {"c": ["broker-a"]})
    cluster.namesrv.script(Q.GET_BROKER_CLUSTER_INFO, lambda conn, command: conn.respond(command, R.SUCCESS, body=info.encode()) or True)
    async with AdminClient(namesrv=cluster.namesrv.address) as admin:
        with pytest.raises(NoMaster, match=r"of broker-a: nothing is changed.*sprocketmq failover broker-a"):
            await change(admin)
