"""``sprocketmq consume`` while its broker is stopped and started again."""

import asyncio
import contextlib
import re
from types import SimpleNamespace

import pytest

from sprocketmq import MessageQueue
from sprocketmq.cli import consume
from sprocketmq.client.outages import Outages
from sprocketmq.clock import ManualClock
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import BrokerError, ConnectFailed, TopicNotFound
from sprocketmq.testing import eventually

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def cluster():
    with LocalCluster() as mq:
        yield mq


@pytest.mark.parametrize("member", [(), ("--group", "g")], ids=["without a group", "in a group"])
def test_consume_goes_on_when_its_broker_comes_back_and_says_both_once(cluster, spawn, member):
    cluster.create_topic("orders", queues=4)
    reader = spawn(cluster, "consume", "orders", "--from", "first", *member)
    send(cluster, spawn, b"1\n2\n")
    assert lines(reader, 2) == {b"1", b"2"}
    cluster.stop_broker()
    lost = reader.stderr.readline().decode()
    cluster.start_broker()
    again = reader.stderr.readline().decode()
    send(cluster, spawn, b"3\n4\n5\n")
    assert lines(reader, 3) == {b"3", b"4", b"5"}
    reader.terminate()
    assert reader.communicate(timeout=120) == (b"", b"sprocketmq: stopped by SIGTERM\n")
    assert reader.returncode == 143
    who = "consumer group g" if member else "consume orders"
    assert re.match(rf"sprocketmq: \d\d:\d\d:\d\d {who}: cannot pull from broker broker-a, trying again until it answers: ", lost)
    assert re.match(rf"sprocketmq: \d\d:\d\d:\d\d {who}: connected again to broker broker-a after \d+\.\d s$", again)


def send(cluster, spawn, text):
    writer = spawn(cluster, "produce", "orders")
    writer.communicate(text, timeout=120)
    assert writer.returncode == 0


def lines(reader, count):
    return {reader.stdout.readline().strip() for _ in range(count)}


class Consumer:
    """A pull consumer whose pulls end as told: a result, or an error. So do looks for the first offset, if there are any."""

    def __init__(self, *ends, firsts=(), answered=()):
        self.ends = list(ends)
        self.firsts = list(firsts)
        self.answered = set(answered)
        self.outages = Outages(ManualClock())

    async def first(self):
        if self.firsts:
            raise self.firsts.pop(0)
        return 7

    async def pull(self, queue, offset, **_):
        if not self.ends:
            raise asyncio.CancelledError
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return SimpleNamespace(messages=[offset], next_offset=offset + 1)


async def read(consumer, monkeypatch):
    written = []
    monkeypatch.setattr(consume, "PULL_PAUSE_S", 0)
    try:
        await consume._follow(consumer, QUEUE, consumer.first, "*", SimpleNamespace(write=written.extend), consumer.answered)
    except asyncio.CancelledError:
        return written
    finally:
        consumer.written = written


async def test_a_broker_that_refuses_while_it_stops_does_not_end_reading(monkeypatch):
    refusal = BrokerError(1, "the store is closed")
    assert await read(Consumer("ok", *[refusal] * 4, "ok", *[refusal] * 4, "ok"), monkeypatch) == [7, 8, 9]


async def test_a_broker_that_goes_on_refusing_or_does_so_at_once_ends_reading(monkeypatch):
    refusal = BrokerError(16, "no permission")
    for ends in (["ok", *[refusal] * 5, "ok"], [refusal, "ok"]):
        consumer = Consumer(*ends)
        with pytest.raises(BrokerError, match="no permission"):
            await read(consumer, monkeypatch)
        assert consumer.ends == ["ok"]


async def test_a_broker_that_stops_before_a_queue_was_read_is_waited_for_if_it_has_answered_for_another(monkeypatch):
    gone, refusal = ConnectFailed("127.0.0.1:1", "broker", "connection refused"), BrokerError(1, "the store is closed")
    another = Consumer("ok", refusal, "ok", firsts=[gone, refusal, gone], answered={"broker-a"})
    assert await read(another, monkeypatch) == [7, 8]
    for error in (gone, refusal):
        with pytest.raises(type(error)):
            await read(Consumer("ok", firsts=[error]), monkeypatch)


async def test_a_topic_without_a_route_while_its_broker_is_away_does_not_end_reading(monkeypatch):
    looked = []

    class Away:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *error):
            pass

        async def queues(self, topic):
            looked.append(topic)
            if len(looked) > 1:
                raise TopicNotFound(topic)
            return []

    monkeypatch.setattr(consume, "PullConsumer", lambda *_, **__: Away())
    monkeypatch.setattr(consume, "ROUTE_REFRESH_S", 0)
    options = SimpleNamespace(topic="orders", start="first", expression="*")
    reading = asyncio.ensure_future(consume._as_viewer(SimpleNamespace(options={}), options, None))
    await eventually(lambda: len(looked) > 5 or reading.done())
    assert not reading.done()
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading


async def test_the_first_pull_of_a_queue_waits_for_no_message(monkeypatch):
    consumer = Consumer("ok", "ok")
    waited = []
    pull = consumer.pull

    async def noted(*arguments, wait_ms, **limits):
        waited.append(wait_ms)
        return await pull(*arguments, **limits)

    consumer.pull = noted
    await read(consumer, monkeypatch)
    assert waited == [0, consume.WAIT_MS, consume.WAIT_MS]
