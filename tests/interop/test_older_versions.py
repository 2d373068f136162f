"""Older releases of Apache's servers with our client, and of its Java client with our broker: what most clusters run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.interop import apache
from tests.interop.compare import assert_as_sent, ours, variety
from tests.interop.ours import OurProcess
from tests.interop.reading import dead_letters, java_pull_all, pull_all
from tests.interop.test_auto_batch import assert_all_clients_read, described

from sprocketmq import AdminClient, Batching, Message, Producer, PushConsumer
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import InvalidMessage
from sprocketmq.testing import eventually

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

# Releases that Maven Central has whole.
RELEASES = [pytest.param("4.9.7", marks=pytest.mark.long), "5.1.4", pytest.param("5.3.3", marks=pytest.mark.long)]


class Older(NamedTuple):
    """A nameserver and a broker of a release."""

    version: str
    namesrv: str
    cluster: str


@pytest.fixture(scope="module", params=RELEASES)
def older(session_home: Path, request: pytest.FixtureRequest) -> Iterator[Older]:
    """Run servers of each release."""
    home = session_home / f"apache-{request.param}"
    with ExitStack() as running:
        namesrv = running.enter_context(apache.ApacheNamesrv(home / "namesrv", version=request.param))
        broker = running.enter_context(apache.ApacheBroker(home / "broker", namesrv.address, version=request.param))
        yield Older(request.param, namesrv.address, broker.cluster)


@pytest.fixture(scope="module", params=RELEASES)
def older_java(session_home: Path, request: pytest.FixtureRequest) -> Iterator[apache.JavaClient]:
    """Run the Java client of each release."""
    with apache.JavaClient(session_home / f"java-{request.param}", version=request.param) as client:
        yield client


async def test_messages_arrive_as_our_client_sent_them(java: apache.JavaClient, older: Older) -> None:
    sent = {"OlderSingly": variety("OlderSingly"), "OlderTogether": variety("OlderTogether")}
    async with AdminClient(namesrv=older.namesrv) as admin, Producer("older", namesrv=older.namesrv) as producer:
        for topic in sent:
            await admin.create_topic(topic, queues=2, cluster=older.cluster)
        results = {
            "OlderSingly": [await producer.send(ours(one)) for one in sent["OlderSingly"]],
            "OlderTogether": await producer.send_batch([ours(one) for one in sent["OlderTogether"]]),
        }
        for topic, described_as in sent.items():
            theirs = java_pull_all(java, older.namesrv, topic)
            assert theirs == await pull_all(older.namesrv, topic)
            by_id = {view["msg_id"]: view for view in theirs}
            for one, result in zip(described_as, results[topic], strict=True):
                view = by_id[result.msg_id]
                assert_as_sent(view, one)
                assert (result.queue_id, result.queue_offset, result.offset_msg_id) == tuple(
                    view[name] for name in ("queue_id", "queue_offset", "offset_msg_id")
                )
            assert [found.body for found in await admin.query_by_key(topic, "k1")] == [b"with everything"]
            assert (await admin.topic_config(topic))["apache-a"].write_queue_nums == 2


async def test_what_our_client_batches_by_itself_has_its_own_keys_and_ids(java: apache.JavaClient, older: Older) -> None:
    topic = "OlderGathered"
    async with (
        AdminClient(namesrv=older.namesrv) as admin,
        Producer("older", namesrv=older.namesrv, batching=Batching(max_delay_ms=20)) as producer,
    ):
        await admin.create_topic(topic, queues=2, cluster=older.cluster)
        sent = described(topic)
        await asyncio.gather(*(producer.send(ours(one)) for one in sent))
        assert producer.batching_stats.batches < len(sent) / 4
        await assert_all_clients_read(java, older.namesrv, topic, sent)
        assert [found.properties["number"] for found in await admin.query_by_key(topic, "key-7")] == ["7"]


async def test_brokers_of_ours_and_of_an_older_release_in_one_cluster(
    tmp_path: Path, older: Older, java: apache.JavaClient, request: pytest.FixtureRequest
) -> None:
    """Half of the messages goes to either broker, each in the shape that it understands."""
    topic, group = "OlderShared", "older_shared"
    where = (
        "--namesrv",
        older.namesrv,
        "--cluster",
        older.cluster,
        "--name",
        "ours-joining",
        "--port",
        "0",
        "--store",
        str(tmp_path / "store"),
    )
    joining = OurProcess(tmp_path / "joining", "broker", *where)
    request.addfinalizer(joining.stop)
    async with (
        AdminClient(namesrv=older.namesrv) as admin,
        Producer("older", namesrv=older.namesrv, batching=Batching(max_delay_ms=20)) as producer,
    ):
        await admin.create_topic(topic, queues=2, cluster=older.cluster)
        route = await admin.route(topic)
        assert {data.broker_name for data in route.broker_datas} == {"apache-a", "ours-joining"}
        sent = described(topic)
        results = await asyncio.gather(*(producer.send(ours(one)) for one in sent))
        assert {result.broker_name for result in results} == {"apache-a", "ours-joining"}
        await assert_all_clients_read(java, older.namesrv, topic, sent)
        assert [found.properties["number"] for found in await admin.query_by_key(topic, "key-7")] == ["7"]
    assert len(java.consume(older.namesrv, group, topic, len(sent))) == len(sent)


async def test_a_delivery_time_is_kept_or_refused(older: Older) -> None:
    topic = "OlderTimed"
    async with AdminClient(namesrv=older.namesrv) as admin, Producer("older", namesrv=older.namesrv) as producer:
        await admin.create_topic(topic, queues=1, cluster=older.cluster)
        due_ms = SYSTEM_CLOCK.time_ms() + 3000
        message = Message(topic, b"timed", deliver_at_ms=due_ms)
        if older.version < "5":
            with pytest.raises(InvalidMessage, match="at once"):
                await producer.send(message)
            return
        await producer.send(message)
    async with PushConsumer("older_timed", topic, namesrv=older.namesrv, consume_from="first") as consumer:
        async for batch in consumer.batches():
            assert [one.body for one in batch] == [b"timed"]
            break
    assert SYSTEM_CLOCK.time_ms() >= due_ms - 1000  # Apache's timer wheel counts seconds


async def test_our_consumer_retries_gives_up_and_goes_on_where_it_stopped(older: Older) -> None:
    topic, group = "OlderConsumed", "older_group"
    handled: Counter[bytes] = Counter()

    async def handle(batch: object) -> None:
        for message in batch:  # type: ignore[attr-defined]
            handled[message.body] += 1
            if message.body == b"bad":
                batch.retry(message, delay_level=1)  # type: ignore[attr-defined]

    async with AdminClient(namesrv=older.namesrv) as admin, Producer("older", namesrv=older.namesrv) as producer:
        await admin.create_topic(topic, queues=2, cluster=older.cluster)
        for body in (b"good", b"bad", b"late"):
            await producer.send(Message(topic, body, delay_level=1 if body == b"late" else 0))
        async with PushConsumer(group, topic, namesrv=older.namesrv, consume_from="first", max_reconsume_times=1) as consumer:
            listening = consumer.listen(handle)
            (dead,) = await dead_letters(older.namesrv, group, 1)
            await eventually(lambda: handled.total() == 4)
            listening.cancel()
        assert (dead["body"], handled) == (b"bad", {b"good": 1, b"bad": 2, b"late": 1})
        handled.clear()
        await producer.send(Message(topic, b"more"))
        async with PushConsumer(group, topic, namesrv=older.namesrv) as consumer:
            consumer.listen(handle)
            await eventually(lambda: handled[b"more"])
        assert handled == {b"more": 1}


async def test_an_older_java_client_sends_and_reads_at_our_broker(older_java: apache.JavaClient, our_cluster: OurProcess) -> None:
    namesrv, topic = our_cluster.namesrv, f"Javas{older_java.home.name.replace('.', '_')}"
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=2)
    sent = variety(topic)
    results = older_java.send(namesrv, sent[:4])
    together = older_java.send_batch(namesrv, sent[4:])
    ids = [result["msg_id"] for result in results] + together["msg_id"].split(",")
    found = await pull_all(namesrv, topic)
    by_id = {view["msg_id"]: view for view in found}
    for one, msg_id in zip(sent, ids, strict=True):
        assert_as_sent(by_id[msg_id], one)
    theirs = java_pull_all(older_java, namesrv, topic)
    for mine, other in zip(found, theirs, strict=True):
        assert {**mine, "sys_flag": 0} == {**other, "sys_flag": 0}  # clients before 5.0 do not tell how a body was compressed


async def test_an_older_java_consumer_refuses_messages_at_our_broker(older_java: apache.JavaClient, our_cluster: OurProcess) -> None:
    namesrv, topic = our_cluster.namesrv, f"Refused{older_java.home.name.replace('.', '_')}"
    group = f"{topic}_group"
    async with AdminClient(namesrv=namesrv) as admin, Producer("older", namesrv=namesrv) as producer:
        await admin.create_topic(topic, queues=2)
        await producer.send_batch([Message(topic, b"bad" if number == 3 else b"%d" % number) for number in range(10)])
    with older_java.push_consumer(namesrv, group, topic, refuse="bad", max_reconsume_times=1) as consumer:
        taken = await asyncio.to_thread(consumer.take, 11)
        (dead,) = await dead_letters(namesrv, group, 1)
    assert Counter(message["body"] for message in taken)[b"bad"] == 2
    assert dead["body"] == b"bad"
    with older_java.push_consumer(namesrv, group, topic) as consumer:
        async with Producer("older", namesrv=namesrv) as producer:
            await producer.send(Message(topic, b"more"))
        assert [message["body"] for message in await asyncio.to_thread(consumer.take, 1)] == [b"more"]
