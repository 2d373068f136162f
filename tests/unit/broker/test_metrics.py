"""What a broker's metrics say of the traffic it had, scraped over HTTP."""

import asyncio
import re
from pathlib import Path

import pytest
from asking import Asking, create_topic
from pairs import follows
from tests.scraping import Page, scrape

from sprocketmq.broker.metrics import loop_lag
from sprocketmq.broker.replication.roles import Role
from sprocketmq.broker.scraping.collector import METRICS
from sprocketmq.cli.serving_metrics import PROCESSES
from sprocketmq.errors import ConfigError, PortInUse
from sprocketmq.protocol.compression import CompressionType, compress, compression_flag
from sprocketmq.testing import eventually

APACHE = Page((Path(__file__).parents[2] / "fixtures" / "metrics" / "apache-5.5.0.txt").read_text())
COMMON = {"cluster", "node_type", "node_id", "otel_scope_name"}


@pytest.fixture
async def broker(start_broker):
    broker = await start_broker(metrics_exporter="prom", metrics_port=0, cluster_name="west", metrics_label="env:test")
    broker.topics.create_internal("orders", 4)
    return broker


@pytest.fixture
async def ask(broker):
    asking = Asking(broker)
    await asking.open()
    yield asking
    await asking.close()


@pytest.fixture
def page(broker):
    return lambda: scrape(broker.metrics.address)


async def test_names_types_labels_and_bounds_are_those_of_the_reference(ask, broker, page, clock):
    await ask(17, create_topic("Inner", attributes="+queue.type=BatchCQ"))
    await ask(200, {}, b'{"groupName":"cg"}')
    await ask.heartbeat(consumers=["cg"], producers=["pg"])
    await ask.send("orders")
    await ask.send("orders", properties="DELAY\x011\x02")
    await ask.send("orders", properties=f"TIMER_DELIVER_MS\x01{clock.time_ms() + 2000}\x02")
    await ask.pull("orders", 0)
    clock.advance(3)
    broker.delays.fire()
    await ask(36, {"offset": "0", "group": "cg", "delayLevel": "-1"})
    ours, theirs = (await page()).families(), APACHE.families()
    for name in sorted(ours.keys() & theirs.keys()):
        assert ours[name] == theirs[name], name
    # What has no counterpart here, and what the recording has no traffic for.
    assert theirs.keys() - ours.keys() == {"rocketmq_pop_buffer_scan_time_consume_milliseconds"}
    assert {name for name in ours.keys() - theirs.keys() if not name.startswith("sprocketmq_")} == {
        "rocketmq_consumer_group_create_execution_time_milliseconds",
        "rocketmq_send_to_dlq_messages",
    }


async def test_every_series_says_which_broker_it_is_of(ask, page):
    await ask.send("orders")
    for name, labels, _ in (await page()).samples:
        if name != "target_info":
            assert {label: labels[label] for label in (*COMMON, "env")} == {
                "cluster": "west",
                "node_type": "broker",
                "node_id": "broker-a",
                "otel_scope_name": "broker-meter",
                "env": "test",
            }


async def test_messages_are_counted_as_they_come_and_go(ask, page):
    await ask(17, create_topic("inner", attributes="+queue.type=BatchCQ"))
    await ask.send("orders", b"x" * 5000)
    await ask.send_batch("orders", [b"a"] * 10)
    await ask.send_batch("inner", [b"a"] * 7, properties="UNIQ_KEY\x017F0000010000000000000000000000AB\x02")
    await ask.pull("orders", 0)
    await ask.pull("inner", 0)
    await ask.send("orders", properties="__SHARDINGKEY\x01k\x02")
    found = await page()
    assert found.values("rocketmq_messages_in_total", "topic", "message_type", is_system="false") == {
        ("orders", "normal"): 11,
        ("orders", "fifo"): 1,
        ("inner", "normal"): 7,
    }
    assert found.values("rocketmq_messages_out_total", "topic", "consumer_group") == {("orders", "cg"): 11, ("inner", "cg"): 7}
    assert found.value("rocketmq_message_size_bucket", topic="orders", message_type="normal", le="1024.0") == 1
    assert found.value("rocketmq_message_size_count", topic="orders", message_type="normal") == 2
    assert found.values("sprocketmq_batch_messages_sum", "stored_as") == {("records",): 10, ("one_record",): 7}
    assert found.value("sprocketmq_batch_bytes_count") == 2
    assert found.value("sprocketmq_send_commit_seconds_count") == 4
    assert found.value("rocketmq_rpc_latency_milliseconds_count", request_code="send_batch_message") == 2
    assert found.value("rocketmq_rpc_latency_milliseconds_count", request_code="pull_message", is_long_polling="false") == 2
    total = sum(found.values("rocketmq_throughput_in_total", "topic", "message_type").values())
    assert sum(found.values("rocketmq_throughput_out_total", "topic").values()) < total


async def test_what_clients_put_into_retry_topics_is_counted_at_its_delivery_only(ask, broker, clock, page):
    await ask.send("orders")
    assert (await ask(36, {"offset": "0", "group": "cg", "delayLevel": "1"})).code == 0
    before = await page()
    assert "%RETRY%cg" not in {labels.get("topic") for name, labels, _ in before.samples}
    clock.advance(2)
    broker.delays.fire()
    assert (await page()).value("rocketmq_messages_in_total", topic="%RETRY%cg", message_type="delay") == 1
    assert (await page()).value("rocketmq_messages_out_total", topic="SCHEDULE_TOPIC_XXXX", consumer_group="SCHEDULE_CONSUMER") == 1


async def test_lag_of_an_online_group(ask, broker, clock, page):
    names = ("lag_messages", "inflight_messages", "ready_messages", "lag_latency_milliseconds", "queueing_latency_milliseconds")

    async def lags():
        found = await page()
        return [found.value(f"rocketmq_consumer_{name}", topic="orders") for name in names]

    assert not (await page()).values("rocketmq_consumer_lag_messages", "topic")
    await ask.heartbeat(consumers=["cg"])
    for _ in range(10):
        await ask.send("orders")
        clock.advance(1)
    assert await lags() == [0, 0, 0, 0, 0]  # nothing committed, nothing pulled
    broker.offsets.commit("cg", "orders", 0, 2)
    assert await lags() == [8, 0, 0, 8000, 0]
    await ask.pull("orders", 2, count=3)
    assert await lags() == [8, 3, 5, 8000, 5000]
    broker.offsets.commit("cg", "orders", 0, 10)
    await ask.pull("orders", 10)
    assert await lags() == [0, 0, 0, 0, 0]


async def test_long_polls_are_counted_apart_with_their_whole_wait(ask, clock, page):
    pull = asyncio.ensure_future(ask.pull("orders", 0, wait_ms=20_000))
    await eventually(lambda: ask.broker.pulls.held_count == 1)
    assert (await page()).value("sprocketmq_held_pulls") == 1
    clock.advance(4)
    await ask.send("orders")
    await pull
    found = await page()
    assert found.value("sprocketmq_held_pulls") == 0
    sums = {"request_code": "pull_message", "response_code": "success", "is_long_polling": "true"}
    assert found.value("rocketmq_rpc_latency_milliseconds_sum", **sums) == pytest.approx(4000)


async def test_refusals_by_reason(ask, page):
    await ask(310, ask.send_ext("orders", queue=99), b"x")
    await ask(310, ask.send_ext("orders"), b"")
    await ask(310, ask.send_ext("SCHEDULE_TOPIC_XXXX"), b"x")
    await ask(9999)
    await ask(9998)
    found = await page()
    reasons = {reason: count for (reason,), count in found.values("sprocketmq_refusals_total", "reason").items() if count}
    assert reasons == {"invalid_parameter": 1, "system_error": 1, "no_permission": 1, "request_code_not_supported": 2}
    assert found.value("rocketmq_rpc_latency_milliseconds_count", request_code="unknown") == 2


async def test_one_way_requests_are_counted(ask, page):
    ask.conn.oneway(15, ext={"consumerGroup": "cg", "topic": "orders", "queueId": "0", "commitOffset": "0"})
    await ask.send("orders")
    assert (await page()).value("rocketmq_rpc_latency_milliseconds_count", request_code="update_consumer_offset", result="oneway") == 1


async def test_bytes_that_compression_saved(ask, page):
    body = b"hello " * 2000
    packed = compress(body, CompressionType.ZLIB)
    flag = str(compression_flag(CompressionType.ZLIB))
    for _ in range(3):
        assert (await ask.send("orders", packed, f=flag)).code == 0
    assert (await ask.send("orders", b"no zlib stream", f=flag)).code == 0
    saved = (await page()).value("sprocketmq_compression_saved_bytes_total")
    assert saved == pytest.approx(3 * (len(body) - len(packed)), rel=0.1)


async def test_timed_messages_by_when_they_are_due(ask, broker, clock, page):
    for seconds in (3, 30, 40, 4000):
        await ask.send("orders", properties=f"TIMER_DELIVER_MS\x01{clock.time_ms() + seconds * 1000}\x02")
    found = await page()
    counts = found.values("rocketmq_timer_message_snapshot", "timer_bound_s")
    assert {bound: count for (bound,), count in counts.items() if count} == {"5": 1, "60": 2, "14400": 1}
    assert found.value("rocketmq_timer_dequeue_lag") == 4
    assert found.value("rocketmq_timer_enqueue_total", topic="orders") == 4
    clock.advance(10)
    broker.delays.fire()
    found = await page()
    assert (found.value("rocketmq_timer_dequeue_total", topic="orders"), found.value("rocketmq_timer_dequeue_lag")) == (1, 3)


async def test_series_over_the_limit_are_one_and_one_log_line(start_broker, caplog):
    broker = await start_broker(metrics_exporter="prom", metrics_port=0, metrics_max_series=3)
    asking = Asking(broker)
    await asking.open()
    for number in range(6):
        await asking.send(f"topic-{number}")
    for _ in range(2):
        found = (await scrape(broker.metrics.address)).values("rocketmq_messages_in_total", "topic")
        assert (len(found), found["other",]) == (4, 3)
    await asking.close()
    assert sum("metrics_over_limit metric=rocketmq_messages_in_total max_series=3" in record.getMessage() for record in caplog.records) == 1


async def test_the_lag_of_replicas(start_broker, namesrv):
    settings = {"metrics_exporter": "prom", "metrics_port": 0, "namesrv": (namesrv.address,), "ha_port": 0}
    master = await start_broker("master", role=Role.ASYNC_MASTER, **settings)
    slave = await start_broker("slave", role=Role.SLAVE, broker_id=1, **settings)
    await eventually(lambda: follows(slave))
    asking = Asking(master)
    await asking.open()
    await asking.send("orders")
    await asking.close()
    await eventually(lambda: slave.store.commitlog_max_offset == master.store.commitlog_max_offset)
    await eventually(lambda: all(one.behind_bytes == 0 for one in master.replication.slaves))
    found = (await scrape(master.metrics.address)).values("sprocketmq_replica_lag_bytes", "slave")
    assert list(found.values()) == [0]
    found = await scrape(slave.metrics.address)
    assert found.values("sprocketmq_replica_lag_bytes", "slave") == {(slave.address,): 0}
    assert found.value("sprocketmq_queue_behind_bytes") >= 0


async def test_how_late_the_loop_is(broker, page, monkeypatch):
    assert (await page()).value("sprocketmq_loop_lag_seconds") >= 0
    times = iter([10.0, 10.0 + loop_lag.PROBE_S + 0.5])
    probe = loop_lag.LoopLag(lambda: next(times))
    monkeypatch.setattr(asyncio, "sleep", lambda _: asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0))
    await probe.probe()
    assert probe.longest_s == pytest.approx(0.5)


async def test_sends_wait_for_the_flush(start_broker):
    broker = await start_broker(metrics_exporter="prom", metrics_port=0, store={"flush_disk_type": "SYNC_FLUSH"})
    asking = Asking(broker)
    await asking.open()
    await asyncio.gather(*(asking.send("orders") for _ in range(5)))
    found = await scrape(broker.metrics.address)
    assert found.value("sprocketmq_send_flush_seconds_count") == found.value("sprocketmq_send_commit_seconds_count") == 5
    assert found.value("rocketmq_rpc_latency_milliseconds_count", request_code="send_message_v2", response_code="success") == 5
    await asking.close()


async def test_without_the_setting_nothing_listens_and_nothing_observes(start_broker):
    broker = await start_broker()
    assert broker.metrics is None


async def test_a_port_that_is_taken_is_said_in_one_sentence(broker, start_broker):
    port = int(broker.metrics.address.rsplit(":", 1)[1])
    with pytest.raises(PortInUse, match=f"cannot listen on 127.0.0.1:{port}"):
        await start_broker("other", metrics_exporter="prom", metrics_port=port)


@pytest.mark.parametrize(
    "settings", [{"metrics_exporter": "otlp"}, {"metrics_label": "cluster:x"}, {"metrics_port": 70000}, {"metrics_max_series": 0}]
)
async def test_settings_that_cannot_work_are_refused(start_broker, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        await start_broker(**settings)


def test_the_guide_lists_every_metric_as_it_is():
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", guide, re.MULTILINE)
    listed = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows]
    assert listed == [(metric.name, metric.kind, metric.labels, metric.text) for metric in (*METRICS, *PROCESSES)]


def test_every_metric_has_a_sentence_and_labels_of_its_own():
    names = [metric.name for metric in (*METRICS, *PROCESSES)]
    assert len(set(names)) == len(names)
    for metric in (*METRICS, *PROCESSES):
        assert metric.text.endswith(".")
        assert not COMMON & set(metric.labels)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
