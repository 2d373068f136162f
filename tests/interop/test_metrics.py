"""The metrics of both brokers after the same traffic of both clients: names, types, labels and buckets, and what they count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.apache import ApacheBroker, ApacheNamesrv, JavaClient
from tests.interop.ours import namesrv_and_broker
from tests.interop.reading import dead_letters
from tests.interop.sides import DELAY_LEVELS, Side, until
from tests.scraping import Page, scrape

from sprocketmq import Message, Producer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

RECORDED = Page((Path(__file__).parents[1] / "fixtures" / "metrics" / "apache-5.5.0.txt").read_text())
GROUP = "metrics_group"
PLAIN, INNER, DELAYED, TIMED = "MetricsPlain", "MetricsInner", "MetricsDelayed", "MetricsTimed"
# What SprocketMQ has no counterpart for; the guide says why.
MISSING = {"rocketmq_timing_messages"}
NOT_HERE = ("rocketmq_pop_", "rocketmq_half_", "rocketmq_commit_", "rocketmq_rollback_", "rocketmq_finish_")


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[tuple[Side, str], ...]]:
    """Both brokers, each with the address of its metrics."""
    home = tmp_path_factory.mktemp("metrics")
    port = apache.free_ports()
    settings = apache.SMALL_STORE | {
        "messageDelayLevel": DELAY_LEVELS,
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": str(port),
        "metricsPromExporterHost": apache.LOOPBACK,
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
                    (Side("apaches", namesrv.address, broker.address, broker.name, broker.cluster), f"{apache.LOOPBACK}:{port}"),
                )
            finally:
                broker.kill()
        finally:
            namesrv.kill()


async def traffic(java: JavaClient, side: Side, metrics: str) -> Page:
    """Send and consume at one broker by both clients, and scrape it while a consumer is online."""
    for topic in (PLAIN, DELAYED, TIMED):
        await side.create_topic(topic)
    await side.create_topic(INNER, batch_queues=True)
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
            return found[-1]


@pytest.fixture(scope="module")
def pages(java: JavaClient, scraped: tuple[tuple[Side, str], ...]) -> tuple[Page, Page]:
    """Scrapes of our broker and of Apache's."""
    ours, apaches = (asyncio.run(traffic(java, side, metrics)) for side, metrics in scraped)
    return ours, apaches


def test_names_types_labels_and_buckets_are_alike(pages: tuple[Page, Page]) -> None:
    ours, apaches = (page.families() for page in pages)
    theirs = {name for name in apaches if not name.startswith(NOT_HERE)}
    assert theirs - ours.keys() == MISSING
    assert {name for name in ours if not name.startswith("sprocketmq_")} - theirs == set()
    for name in theirs - MISSING:
        assert ours[name] == apaches[name], name


def test_the_recorded_scrape_is_still_what_apaches_broker_says(pages: tuple[Page, Page]) -> None:
    apaches = pages[1].families()
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
        ("rocketmq_timer_enqueue_total", ("topic",), {}),
        ("rocketmq_timer_dequeue_total", ("topic",), {}),
        (
            "rocketmq_consumer_connections",
            ("consumer_group", "language", "version", "consume_mode", "is_system"),
            {"consumer_group": GROUP},
        ),
        ("rocketmq_consumer_lag_messages", ("topic", "is_retry", "is_system"), {"consumer_group": GROUP}),
        ("rocketmq_consumer_ready_messages", ("topic", "is_retry", "is_system"), {"consumer_group": GROUP}),
        ("rocketmq_consumer_inflight_messages", ("topic", "is_retry", "is_system"), {"consumer_group": GROUP}),
        ("rocketmq_broker_permission", ("node_type", "env"), {}),
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
