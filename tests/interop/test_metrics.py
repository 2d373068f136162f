"""The metrics of both brokers after the same traffic of both clients: names, types, labels and buckets, and what they count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.apache import ApacheBroker, ApacheNamesrv, JavaClient
from tests.interop.ours import namesrv_and_broker
from tests.interop.reading import dead_letters
from tests.interop.sides import DELAY_LEVELS, Side, until
from tests.ports import LOOPBACK, free_ports
from tests.scraping import Family, Page, scrape

from sprocketmq import AdminClient, Message, Producer, TransactionOutcome, TransactionProducer
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.records import ReceivedMessage, decode_records

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

RECORDED = Page((Path(__file__).parents[1] / "fixtures" / "metrics" / "apache-5.5.0.txt").read_text())
GROUP = "metrics_group"
PLAIN, INNER, DELAYED, TIMED = "MetricsPlain", "MetricsInner", "MetricsDelayed", "MetricsTimed"
PAID, POPPED, POP_GROUP = "MetricsPaid", "MetricsPopped", "metrics_pops"
# What SprocketMQ has no counterpart for; the guide says why.
MISSING = {"rocketmq_pop_revive_out_message", "rocketmq_pop_buffer_scan_time_consume_milliseconds"}
# Milliseconds here, as the name says; seconds there.
IN_SECONDS = "rocketmq_finish_message_latency_milliseconds"
# Apache's broker has this label for what was popped only.
OF_POPS = {"rocketmq_messages_out": {"is_retry"}, "rocketmq_throughput_out": {"is_retry"}}


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[tuple[Side, str], ...]]:
    """Both brokers, each with the address of its metrics."""
    home = tmp_path_factory.mktemp("metrics")
    port = free_ports()
    settings = apache.SMALL_STORE | {
        "messageDelayLevel": DELAY_LEVELS,
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": str(port),
        "metricsPromExporterHost": LOOPBACK,
        "metricsLabel": "env:test",
    }
    ours_settings = {"message_delay_level": DELAY_LEVELS, "metrics_exporter": "prom", "metrics_port": 0, "metrics_label": "env:test"}
    with namesrv_and_broker(home / "ours", **ours_settings) as ours:
        namesrv = ApacheNamesrv(home / "namesrv")
        try:
            broker = ApacheBroker(home / "broker", namesrv.address, settings=settings)
            try:
                yield (
                    (Side("ours", ours.namesrv, ours.broker, "broker-a", "DefaultCluster"), ours.metrics),
                    (Side("apaches", namesrv.address, broker.address, broker.name, broker.cluster), f"{LOOPBACK}:{port}"),
                )
            finally:
                broker.kill()
        finally:
            namesrv.kill()


async def transactions(java: JavaClient, side: Side) -> TransactionProducer:
    """Commit two transactions, roll one back, and return a producer that leaves one without an outcome."""

    async def check(_: ReceivedMessage) -> TransactionOutcome:
        return TransactionOutcome.UNKNOWN

    with java.transactions(side.namesrv, "java_payers", PAID, {b"kept": "commit", b"dropped": "rollback"}):
        pass
    producer = TransactionProducer("payers", check, namesrv=side.namesrv)
    await producer.start()
    async with producer.transaction(Message(PAID, b"kept")):
        pass
    async with producer.transaction(Message(PAID, b"open")) as transaction:
        transaction.defer()
    return producer


class Pops:
    """A POP client of one queue of POPPED that speaks single requests."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._pool = ConnectionPool(expected="broker")
        self._place = {"consumerGroup": POP_GROUP, "topic": POPPED, "queueId": "0"}

    async def _ask(self, code: int, ext: dict[str, str]) -> Command:
        conn = await self._pool.get(self._side.address)
        return await conn.request(code, ext={**self._place, **ext}, timeout_s=60)

    async def pop(self) -> list[str]:
        """Return the receipt of each message."""
        now = str(int(time.time() * 1000))
        ext = {"maxMsgNums": "8", "invisibleTime": "10000", "pollTime": "0", "bornTime": now, "initMode": "0", "expType": "TAG", "exp": "*"}
        answer = await self._ask(RequestCode.POP_MESSAGE, {**ext, "order": "false"})
        receipts = []
        for message in decode_records(answer.body):
            start = answer.ext["startOffsetInfo"].split(" ")[-1]
            kept = f"{start} {answer.ext['popTime']} {answer.ext['invisibleTime']} {answer.ext['reviveQid']} 0 {self._side.broker} 0"
            receipts.append(message.properties.get("POP_CK") or f"{kept} {message.queue_offset}")
        return receipts

    async def settle(self, receipt: str, *, invisible_ms: int = 0) -> None:
        """Acknowledge a message, or have it come again after another time."""
        ext = {"extraInfo": receipt + " ", "offset": receipt.split(" ")[7]}
        if invisible_ms:
            answer = await self._ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {**ext, "invisibleTime": str(invisible_ms)})
        else:
            answer = await self._ask(RequestCode.ACK_MESSAGE, ext)
        assert answer.code == 0, answer.remark

    async def close(self) -> None:
        await self._pool.close()


async def pops(side: Side) -> Pops:
    """Pop four messages: two are acknowledged, one is to come again soon, and one after its time."""
    await side.create_topic(POPPED, queues=1)
    async with AdminClient(namesrv=side.namesrv) as admin:
        await admin.create_group(POP_GROUP)
    async with Producer("popped", namesrv=side.namesrv) as producer:
        for number in range(4):
            await producer.send(Message(POPPED, b"%d" % number))
    client = Pops(side)
    receipts: list[str] = []
    async with asyncio.timeout(60):
        while len(receipts) < 4:
            receipts += await client.pop()
    await client.settle(receipts[0])
    await client.settle(receipts[1])
    await client.settle(receipts[2], invisible_ms=1000)
    return client


async def traffic(java: JavaClient, side: Side, metrics: str) -> Page:
    """Send and consume at one broker by both clients, and scrape it while a consumer is online."""
    for topic in (PLAIN, DELAYED, TIMED):
        await side.create_topic(topic)
    await side.create_topic(INNER, batch_queues=True)
    await side.create_topic(PAID)
    popping = await pops(side)
    paying = await transactions(java, side)
    bodies = [b"bad", *[b"good %d" % number for number in range(9)]]
    plain = [{"topic": PLAIN, "body": body} for body in bodies]
    await asyncio.to_thread(java.send, side.namesrv, plain)
    await asyncio.to_thread(java.send_batch, side.namesrv, plain[1:8])
    async with Producer("metrics_producer", namesrv=side.namesrv) as producer:
        await producer.send_batch([Message(INNER, b"inner")] * 12)
        await producer.send(Message(PLAIN, b"x" * 3000))
        await producer.send(Message(DELAYED, b"delayed", delay_level=1))
        await producer.send(Message(TIMED, b"timed", deliver_at_ms=int(time.time() * 1000) + 1500))
        with java.push_consumer(side.namesrv, GROUP, PLAIN, refuse="bad", max_reconsume_times=0) as consumer:
            await asyncio.to_thread(consumer.take, 10 + 7 + 1)
            await dead_letters(side.namesrv, GROUP, 1)
            found: list[Page] = []

            def all_done() -> bool:
                page = asyncio.run(scrape(metrics))
                found.append(page)
                lag = page.values("rocketmq_consumer_lag_messages", "consumer_group", topic=PLAIN)
                delayed = page.values("rocketmq_messages_in_total", "topic", topic=DELAYED)
                return lag == {(GROUP,): 0} and bool(delayed) and bool(page.values("rocketmq_timer_dequeue_total", "topic"))

            await until("the delivery of all messages", all_done)
            async with asyncio.timeout(120):
                while found[-1].values("rocketmq_pop_revive_retry_messages_total", "topic") != {(POPPED,): 2}:
                    await popping.pop()
                    found.append(await scrape(metrics))
            await popping.close()
            await paying.close()
            return found[-1]


@pytest.fixture(scope="module")
def pages(java: JavaClient, scraped: tuple[tuple[Side, str], ...]) -> tuple[Page, Page]:
    """Scrapes of our broker and of Apache's."""
    ours, apaches = (asyncio.run(traffic(java, side, metrics)) for side, metrics in scraped)
    return ours, apaches


def without_labels_of_pops(page: Page) -> dict[str, Family]:
    return {name: replace(family, labels=family.labels - OF_POPS.get(name, set())) for name, family in page.families().items()}


def test_names_types_labels_and_buckets_are_alike(pages: tuple[Page, Page]) -> None:
    ours, apaches = pages[0].families(), without_labels_of_pops(pages[1])
    assert apaches.keys() - ours.keys() == MISSING
    assert {name for name in ours if not name.startswith("sprocketmq_")} - apaches.keys() == set()
    in_seconds = ours[IN_SECONDS]
    ours[IN_SECONDS] = replace(in_seconds, bounds=tuple(bound / 1000 for bound in in_seconds.bounds))
    for name in apaches.keys() - MISSING:
        assert ours[name] == apaches[name], name


def test_the_recorded_scrape_is_still_what_apaches_broker_says(pages: tuple[Page, Page]) -> None:
    apaches = without_labels_of_pops(pages[1])
    for name, family in RECORDED.families().items():
        assert apaches[name] == family, name


@pytest.mark.parametrize(
    ("name", "labels", "wanted"),
    [
        ("rocketmq_messages_in_total", ("message_type", "is_system"), {"topic": PLAIN}),
        ("rocketmq_messages_in_total", ("message_type", "is_system"), {"topic": INNER}),
        ("rocketmq_messages_in_total", ("message_type", "is_system"), {"topic": DELAYED}),
        ("rocketmq_messages_in_total", ("message_type", "is_system"), {"topic": "SCHEDULE_TOPIC_XXXX"}),
        ("rocketmq_message_size_count", ("message_type", "is_system"), {"topic": PLAIN}),
        ("rocketmq_message_size_count", ("message_type", "is_system"), {"topic": INNER}),
        ("rocketmq_message_size_bucket", ("message_type", "le"), {"topic": PLAIN}),
        ("rocketmq_messages_out_total", ("consumer_group", "is_system"), {"topic": PLAIN}),
        ("rocketmq_messages_out_total", ("consumer_group", "is_system"), {"topic": "SCHEDULE_TOPIC_XXXX"}),
        ("rocketmq_send_to_dlq_messages_total", ("topic", "consumer_group", "is_system"), {}),
        # Apache's broker has its own bookkeeping of pops there, too.
        ("rocketmq_timer_enqueue_total", ("topic",), {"topic": TIMED}),
        ("rocketmq_timer_dequeue_total", ("topic",), {"topic": TIMED}),
        ("rocketmq_timing_messages", ("topic",), {"topic": TIMED}),
        (
            "rocketmq_consumer_connections",
            ("consumer_group", "language", "version", "consume_mode", "is_system"),
            {"consumer_group": GROUP},
        ),
        ("rocketmq_consumer_lag_messages", ("topic", "is_retry", "is_system"), {"consumer_group": GROUP}),
        ("rocketmq_consumer_ready_messages", ("topic", "is_retry", "is_system"), {"consumer_group": GROUP}),
        ("rocketmq_consumer_inflight_messages", ("topic", "is_retry", "is_system"), {"consumer_group": GROUP}),
        ("rocketmq_broker_permission", ("node_type", "env"), {}),
        ("rocketmq_commit_messages_total", ("topic",), {}),
        ("rocketmq_rollback_messages_total", ("topic",), {}),
        ("rocketmq_half_messages", ("topic",), {}),
        ("rocketmq_messages_in_total", ("message_type", "is_system"), {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}),
        ("rocketmq_finish_message_latency_milliseconds_count", ("topic",), {}),
        ("rocketmq_pop_revive_retry_messages_total", ("consumer_group", "topic", "put_status"), {}),
        ("rocketmq_topic_create_execution_time_milliseconds_count", ("invocation_status", "is_system"), {}),
    ],
)
def test_they_count_the_same(pages: tuple[Page, Page], name: str, labels: tuple[str, ...], wanted: dict[str, str]) -> None:
    ours, apaches = (page.values(name, *labels, **wanted) for page in pages)
    assert apaches
    assert ours == apaches


def test_records_have_the_size_that_they_have_at_the_other(pages: tuple[Page, Page]) -> None:
    """Records of a cluster with a longer name are longer, as each has it."""
    for topic, count in ((PLAIN, 18), (INNER, 1)):
        ours, apaches = (page.value("rocketmq_throughput_in_total", topic=topic) for page in pages)
        assert abs(ours - apaches) <= 20 * count


def test_requests_are_named_alike(pages: tuple[Page, Page]) -> None:
    def kinds(page: Page) -> set[tuple[str, ...]]:
        found = page.values("rocketmq_rpc_latency_milliseconds_count", "request_code", "response_code", "is_long_polling", "result")
        return {kind for kind in found if kind[0].startswith(("send_", "pull_", "heart", "update_and_create_topic", "consumer_send"))}

    ours, apaches = map(kinds, pages)
    common = {("send_message_v2", "success", "false", "success"), ("send_batch_message", "success", "false", "success")}
    assert common <= ours & apaches
    assert {kind[0] for kind in ours} == {kind[0] for kind in apaches}
