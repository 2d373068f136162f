"""The clients against our own nameserver and broker, over sockets."""

import asyncio
from pathlib import Path

import pytest
from tests.inside import instance_of
from tests.ports import hold
from tests.waiting import next_millisecond

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.server import Broker
from sprocketmq.client import AdminClient, Producer, PullConsumer, PushConsumer
from sprocketmq.client.consume.pull_requests import PullStatus
from sprocketmq.client.send.batching import Batching
from sprocketmq.errors import BrokerError, ConfigError, InvalidName, MessageTooLarge, NameserverUnavailable, TopicNotFound
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.storage.store import StoreConfig
from sprocketmq.testing import eventually


class Real:
    """A nameserver and one broker of ours; both can be taken away and put back at their ports."""

    def __init__(self, root: Path, **options) -> None:
        self.root = root
        self.options = options
        self.namesrv = NameServer(NameServerConfig(port=0))
        self.broker: Broker

    async def start(self) -> None:
        await self.namesrv.start()
        await self.start_broker()

    async def start_broker(self, port: int = 0) -> None:
        store = StoreConfig(root=self.root, commitlog_segment_bytes=1 << 24, preallocate=False)
        self.broker = Broker(BrokerConfig(store=store, port=port, namesrv=(self.namesrv.address,), **self.options))
        await self.broker.start()

    async def restart_broker(self, *, killed: bool = False) -> None:
        await (self.broker.abort() if killed else self.broker.stop())
        with hold(self.broker.port):
            await self.start_broker(self.broker.port)

    async def restart_namesrv(self, pause: asyncio.Event) -> None:
        address = self.namesrv.address
        port = int(address.rpartition(":")[2])
        await self.namesrv.stop()
        with hold(port):
            await pause.wait()
            self.namesrv = NameServer(NameServerConfig(port=port))
            await self.namesrv.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self.namesrv.stop()


@pytest.fixture
async def real(tmp_path):
    running = Real(tmp_path / "store")
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def strict(tmp_path):
    """A broker that creates no topics and groups by itself."""
    running = Real(tmp_path / "store", auto_create_topic=False)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def producer(real):
    async with Producer("pg", namesrv=real.namesrv.address) as p:
        yield p


@pytest.fixture
async def admin(real):
    async with AdminClient(namesrv=real.namesrv.address) as a:
        yield a


async def read_all(namesrv: str, topic: str, **options) -> list:
    messages = []
    async with PullConsumer("reader", namesrv=namesrv) as consumer:
        for queue in await consumer.queues(topic):
            offset = 0
            while (result := await consumer.pull(queue, offset, **options)).status in (PullStatus.FOUND, PullStatus.NO_MATCH):
                messages += result.messages
                offset = result.next_offset
    return messages


async def test_what_is_sent_is_what_is_read(real, producer):
    sent = {}
    for i in range(40):
        message = Message("first", b"body %d" % i, tag="ab"[i % 2], keys=[f"k{i}"], properties={"n": str(i)}, flag=i)
        result = await producer.send(message)
        sent[result.broker_name, result.queue_id, result.queue_offset] = (message, result)
    large = Message("first", b"large " * 5000)
    result = await producer.send(large)
    sent[result.broker_name, result.queue_id, result.queue_offset] = (large, result)
    received = await read_all(real.namesrv.address, "first")
    assert len(received) == len(sent) == 41
    for got in received:
        message, result = sent[got.broker_name, got.queue_id, got.queue_offset]
        assert (got.topic, got.body, got.tag, got.keys, got.flag) == ("first", message.body, message.tag, list(message.keys), message.flag)
        assert (got.msg_id, got.offset_msg_id) == (result.msg_id, result.offset_msg_id)
        assert got.properties.get("n") == message.properties.get("n")


async def test_a_batch_is_read_back_with_the_ids_and_offsets_it_was_told(real, producer):
    results = await producer.send_batch([Message("batches", b"%d" % i, tag="t", keys=[f"k{i}"]) for i in range(250)])
    received = await read_all(real.namesrv.address, "batches", max_messages=100)
    assert [(m.msg_id, m.offset_msg_id, m.queue_offset, m.body) for m in received] == [
        (r.msg_id, r.offset_msg_id, r.queue_offset, b"%d" % i) for i, r in enumerate(results)
    ]


async def test_tags_select_messages_at_the_broker(real, producer):
    await producer.send_batch([Message("tags", b"%d" % i, tag="abc"[i % 3]) for i in range(30)])
    received = await read_all(real.namesrv.address, "tags", expression="a || c")
    assert {m.tag for m in received} == {"a", "c"}
    assert len(received) == 20


async def test_the_first_message_creates_the_topic_and_its_own_route_is_used_soon(real, producer):
    await producer.send(Message("born", b"x"))
    await eventually(lambda: "born" in instance_of(producer).routes)
    assert [(q.topic, q.queue_id) for q in await producer.queues("born")] == [("born", i) for i in range(4)]


async def test_an_unknown_topic_is_not_found_where_topics_are_not_created_automatically(strict):
    async with Producer("pg", namesrv=strict.namesrv.address) as producer:
        for send in (producer.send, producer.submit):
            with pytest.raises(TopicNotFound, match="create it first"):
                await send(Message("nope", b"x"))
        with pytest.raises(TopicNotFound):
            await producer.send_batch([Message("nope", b"x")])
        async with AdminClient(namesrv=strict.namesrv.address) as admin:
            await admin.create_topic("nope", queues=2)
        assert (await producer.send(Message("nope", b"x"))).queue_offset == 0


async def test_a_broker_with_a_lower_limit_refuses_and_says_so(tmp_path):
    real = Real(tmp_path / "store", max_message_bytes=2000)
    await real.start()
    async with Producer("pg", namesrv=real.namesrv.address, compression=None) as producer:
        with pytest.raises(BrokerError, match="2000") as e:
            await producer.send(Message("t", b"x" * 2001))
        assert e.value.code == 13
        with pytest.raises(MessageTooLarge):
            await producer.send(Message("t", bytes(4_194_305)))
        await producer.send(Message("t", b"x" * 2000))
    await real.stop()


# --- trouble ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
async def test_a_broker_restart_in_the_middle_loses_nothing_that_was_acknowledged(real, killed):
    acknowledged: list[str] = []
    async with Producer("pg", namesrv=real.namesrv.address, timeout_s=60) as producer:
        await producer.send(Message("t", b"x"))
        stop = asyncio.Event()

        async def work():
            while not stop.is_set():
                acknowledged.append((await producer.send(Message("t", b"x"))).msg_id)

        workers = [asyncio.ensure_future(work()) for _ in range(8)]
        await eventually(lambda: len(acknowledged) >= 100)
        await real.restart_broker(killed=killed)
        before = len(acknowledged)
        await eventually(lambda: len(acknowledged) >= before + 100)
        stop.set()
        await asyncio.gather(*workers)
    stored = [m.msg_id for m in await read_all(real.namesrv.address, "t", max_messages=1000)]
    assert set(acknowledged) <= set(stored)


async def test_sends_and_pulls_go_on_while_the_nameserver_is_away(real, producer):
    await producer.send(Message("t", b"1"))
    pause = asyncio.Event()
    async with PullConsumer("cg", namesrv=real.namesrv.address) as consumer:
        queue = (await consumer.queues("t"))[0]
        away = asyncio.ensure_future(real.restart_namesrv(pause))
        await eventually(lambda: real.namesrv._server._server is None)
        for _ in range(4):
            await producer.send(Message("t", b"2"))
        assert (await consumer.pull(queue, 0)).status is PullStatus.FOUND
        with pytest.raises(NameserverUnavailable):
            await consumer.queues("other")
        pause.set()
        await away
        await producer.send(Message("t", b"3"))


async def test_a_consumer_goes_on_after_a_broker_restart_where_it_was(real, producer):
    await producer.send_batch([Message("t", b"%d" % i) for i in range(100)])
    got: list[bytes] = []
    async with PushConsumer("cg", "t", namesrv=real.namesrv.address, consume_from="first", batch_max=10) as consumer:
        listening = consumer.listen(lambda batch: got.extend(m.body for m in batch))
        await eventually(lambda: len(got) >= 100)
        await consumer.commit()
        await real.restart_broker()
        await producer.send_batch([Message("t", b"%d" % i) for i in range(100, 200)])
        await eventually(lambda: len(set(got)) >= 200)
    await listening
    assert set(got) == {b"%d" % i for i in range(200)}
    async with PushConsumer("cg", "t", namesrv=real.namesrv.address, consume_from="first") as consumer:
        result = await producer.send(Message("t", b"last"))
        async for batch in consumer.batches():
            assert [(m.body, m.queue_offset) for m in batch] == [(b"last", result.queue_offset)]
            batch.ack()
            break


async def test_two_members_share_and_hand_over(real, producer, admin):
    await admin.create_topic("shared", queues=4)
    got: dict[str, list[bytes]] = {"a": [], "b": []}

    def member(name: str) -> PushConsumer:
        return PushConsumer("cg", "shared", namesrv=real.namesrv.address, consume_from="first")

    async with member("a") as a:
        a.listen(lambda batch: got["a"].extend(m.body for m in batch))
        async with member("b") as b:
            b.listen(lambda batch: got["b"].extend(m.body for m in batch))
            await eventually(lambda: len(a.assignment) == len(b.assignment) == 2)
            for i in range(40):
                await producer.send(Message("shared", b"%d" % i))
            await eventually(lambda: len(got["a"]) + len(got["b"]) >= 40)
            assert len(got["a"]) == len(got["b"]) == 20
        await eventually(lambda: len(a.assignment) == 4)
        for i in range(40, 60):
            await producer.send(Message("shared", b"%d" % i))
        await eventually(lambda: len(got["a"]) >= 40)
    assert sorted(got["a"] + got["b"]) == sorted(b"%d" % i for i in range(60))
    assert list((await admin.committed("cg", "shared")).values()) == [15] * 4


async def test_a_group_that_starts_at_a_time_reads_from_there(real, producer):
    await producer.send(Message("t", b"old", queue=MessageQueue("t", "broker-a", 0)))
    at = next_millisecond() / 1000
    await producer.send(Message("t", b"new", queue=MessageQueue("t", "broker-a", 0)))
    async with PushConsumer("cg", "t", namesrv=real.namesrv.address, consume_from=at) as consumer:
        async for batch in consumer.batches():
            assert [m.body for m in batch] == [b"new"]
            break


# --- administration -----------------------------------------------------------------------------------------------------


async def test_topics_are_created_changed_listed_and_deleted(real, producer, admin):
    await admin.create_topic("orders", queues=3)
    assert "orders" in await admin.topics()
    assert "orders" in await admin.topics(cluster="DefaultCluster")
    assert await admin.topics(cluster="nope") == []
    assert await admin.queues("orders") == [MessageQueue("orders", "broker-a", i) for i in range(3)]
    await admin.create_topic("orders", queues=5, perm=6)
    config = (await admin.topic_config("orders"))["broker-a"]
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (5, 5, 6)
    await producer.send(Message("orders", b"x"))
    await admin.delete_topic("orders")
    assert "orders" not in await admin.topics()
    with pytest.raises(TopicNotFound):
        await admin.route("orders")
    await admin.delete_topic("orders")


async def test_creating_a_topic_again_with_the_same_attributes_is_harmless(real, admin):
    for _ in range(2):
        await admin.create_topic("fifo", attributes={"message.type": "FIFO", "cleanup.policy": "DELETE"})
    assert (await admin.topic_config("fifo"))["broker-a"].attributes == {"message.type": "FIFO", "cleanup.policy": "DELETE"}
    with pytest.raises(BrokerError, match="unchangeable"):
        await admin.create_topic("fifo", attributes={"cleanup.policy": "COMPACTION"})


async def test_routes_clusters_and_statistics_can_be_looked_at(real, producer, admin):
    await admin.create_topic("orders", queues=2)
    await producer.send_batch([Message("orders", b"x", queue=MessageQueue("orders", "broker-a", 1))] * 5)
    route = await admin.route("orders")
    assert route.broker_datas[0].broker_addrs == {0: real.broker.address}
    cluster = await admin.cluster()
    assert cluster.cluster_addr_table == {"DefaultCluster": ["broker-a"]}
    stats = await admin.topic_stats("orders")
    assert {q.queue_id: (o.min_offset, o.max_offset) for q, o in stats.offset_table.items()} == {0: (0, 0), 1: (0, 5)}
    assert (await admin.broker_runtime(real.broker.address))["msgPutTotalTodayNow"]
    queue = MessageQueue("orders", "broker-a", 1)
    assert (await admin.min_offset(queue), await admin.max_offset(queue), await admin.offset_at(queue, 0)) == (0, 5, 0)


async def test_group_offsets_can_be_looked_at_and_set(real, producer, admin):
    await admin.create_topic("orders", queues=1)
    queue = MessageQueue("orders", "broker-a", 0)
    await producer.send_batch([Message("orders", b"x")] * 5)
    assert await admin.committed("cg", "orders") == {queue: None}
    async with PushConsumer("cg", "orders", namesrv=real.namesrv.address, consume_from="first") as consumer:
        async for batch in consumer.batches():
            batch.ack()
            break
    await admin.commit("cg", queue, 3)
    assert await admin.committed("cg", "orders") == {queue: 3}
    stats = await admin.consume_stats("cg", "orders")
    assert [(o.broker_offset, o.consumer_offset) for o in stats.offset_table.values()] == [(5, 3)]


async def test_administration_that_cannot_be_is_refused(real, admin):
    for wrong in ({"queues": 0}, {"queues": 1 << 20}, {"perm": 9}, {"cluster": "nope"}, {"broker": "nobody"}):
        with pytest.raises(ConfigError):
            await admin.create_topic("orders", **wrong)
    with pytest.raises(ConfigError):
        await admin.create_topic("a b")
    for system in ("TBW102", "SELF_TEST_TOPIC", "rmq_sys_wheel_timer"):
        with pytest.raises(InvalidName, match="system topic"):
            await admin.create_topic(system)
    for look in (admin.topic_stats, admin.route, admin.queues, admin.topic_config):
        with pytest.raises(TopicNotFound):
            await look("nope")


@pytest.mark.parametrize("batching", [None, Batching(max_delay_ms=1)], ids=["singly", "gathered"])
async def test_messages_go_to_the_queues_that_a_topic_has_left(real, batching):
    async with AdminClient(namesrv=real.namesrv.address) as admin:
        await admin.create_topic("shrinking", queues=16)
        async with Producer("pg", namesrv=real.namesrv.address, batching=batching) as producer:
            await producer.send(Message("shrinking", b"first"))
            await admin.create_topic("shrinking", queues=2)
            singly = [Message("shrinking", b"%d" % n, tag=f"t{n}") for n in range(32)]
            keyed = [Message("shrinking", b"k%d" % n, ordering_key=f"k{n}") for n in range(32)]
            if batching is None:  # else a batch of several keys has one queue
                singly += keyed
            batches = asyncio.gather(*(producer.send_batch([Message("shrinking", b"b")] * 3) for _ in range(8)))
            results = await asyncio.gather(*(producer.send(message) for message in singly))
            assert {result.queue_id for result in (*results, *(result for batch in await batches for result in batch))} == {0, 1}
            assert {(await producer.send(message)).queue_id for message in keyed} == {0, 1}
            with pytest.raises(BrokerError, match=r"queueId\[9\] is illegal"):
                await producer.send(Message("shrinking", b"x", queue=MessageQueue("shrinking", "broker-a", 9)))
