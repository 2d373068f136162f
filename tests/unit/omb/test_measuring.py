"""Latencies, rates and samples: what is recorded, and against which time."""

import asyncio
import random
import struct
import time
import xml.etree.ElementTree as ET

import pytest
from hdrh.histogram import HdrHistogram

from sprocketmq.errors import ConfigError
from sprocketmq.omb import charts, comparison, result
from sprocketmq.omb.drivers import driver_names, make_driver
from sprocketmq.omb.histogram import Latencies, merged
from sprocketmq.omb.pacing import Alarm, Limiter
from sprocketmq.omb.plan import HISTOGRAM_DIGITS, HISTOGRAM_HIGHEST_US, WorkerPlan, WorkerReport, from_line, to_line
from sprocketmq.omb.sending import Load
from sprocketmq.omb.tally import Tally
from sprocketmq.omb.workload import Workload

PATIENCE_S = 60


def test_values_recorded_together_count_as_values_recorded_one_by_one():
    chance = random.Random(7)
    values = [int(chance.lognormvariate(8, 2)) + 1 for _ in range(5_000)]
    together, singly = Latencies(), HdrHistogram(1, HISTOGRAM_HIGHEST_US, HISTOGRAM_DIGITS)
    together.record(values)
    for value in values:
        singly.record_value(value)
    for percent in (0, 50, 90, 99, 99.9, 100):
        assert together.quantile(percent) == singly.get_value_at_percentile(percent)
    assert together.count == 5_000
    assert together.mean == singly.get_mean_value()


def test_histograms_merge_as_if_all_values_had_been_recorded_in_one():
    parts = [Latencies() for _ in range(3)]
    whole = Latencies()
    for number, part in enumerate(parts):
        values = list(range(1 + number * 1000, 1001 + number * 1000))
        part.record(values)
        whole.record(values)
    found = merged(part.encode() for part in [*parts, Latencies()])
    assert (found.count, found.quantile(50), found.quantile(99), found.max) == (3000, whole.quantile(50), whole.quantile(99), whole.max)
    assert list(found.quantiles(10)) == list(whole.quantiles(10))


def test_values_out_of_range_count_as_the_nearest_bound():
    latencies = Latencies()
    latencies.record([-5, 0, 1 << 60])
    assert latencies.count == 3
    assert latencies.quantile(50) == 1
    assert latencies.max == pytest.approx(HISTOGRAM_HIGHEST_US, rel=1e-3)


def test_nothing_recorded_is_nothing():
    empty = Latencies()
    empty.record([])
    assert (empty.encode(), empty.mean, empty.max, empty.quantile(99), list(empty.quantiles(10))) == ("", 0.0, 0, 0, [])


def test_a_limiter_counts_from_its_start_however_late_messages_are():
    limiter = Limiter(1000.0, 5_000_000)
    assert limiter.due(4_000_000) == 0
    assert limiter.due(5_000_000) == 1
    assert limiter.take(1) == 5_000_000
    assert limiter.due(5_500_000) == 0
    assert limiter.next_ns == 6_000_000
    assert limiter.due(15_000_000) == 10
    assert [limiter.take(4), limiter.take(4), limiter.take(2)] == [6_000_000, 10_000_000, 14_000_000]
    assert limiter.due(15_000_000) == 0


async def test_an_alarm_rings_at_its_moment_and_not_before():
    alarm = Alarm()
    try:
        for wait_ns in (0, 300_000, 2_000_000):
            moment = time.perf_counter_ns() + wait_ns
            async with asyncio.timeout(PATIENCE_S):
                await alarm.until(moment)
            assert time.perf_counter_ns() >= moment - 20_000
    finally:
        alarm.close()


class FullProducer:
    """Accepts nothing until ``open`` is set, then acknowledges at once."""

    def __init__(self):
        self.open = asyncio.Event()
        self.sent = []

    def send(self, key, payload, done, tag=None):
        if not self.open.is_set():
            return False
        self.sent.append((key, payload, tag))
        done(None)
        return True

    async def room(self):
        await self.open.wait()


def plan(**values):
    return WorkerPlan(**({"worker": "producers-0", "driver": "d", "producers": ("t",), "payloads": (b"-" * 20,)} | values))


async def test_messages_that_were_due_while_the_client_was_stuck_count_with_all_their_delay():
    tally, producer = Tally("producers-0"), FullProducer()
    load = Load(plan(rate=1000.0), [producer], tally)
    running = asyncio.ensure_future(load.run())
    load.begin()
    asyncio.get_running_loop().call_later(0.3, producer.open.set)
    async with asyncio.timeout(PATIENCE_S):
        while len(tally.publish_ns) < 400:
            assert not running.done()
            await asyncio.sleep(0)
    running.cancel()
    # 300 messages were due meanwhile: the first waited for 0.3 s, the others less and less.
    first = sorted(tally.publish_ns[:300], reverse=True)
    assert first[0] >= 290_000_000
    assert first[145] >= 145_000_000
    report = tally.report()
    assert merged([report.publish_delay]).quantile(100) >= 290_000
    assert report.sent == len(producer.sent)


async def test_at_the_maximum_rate_waiting_for_room_is_no_latency():
    tally, producer = Tally("producers-0"), FullProducer()
    load = Load(plan(), [producer], tally)
    running = asyncio.ensure_future(load.run())
    load.begin()
    asyncio.get_running_loop().call_later(0.2, producer.open.set)
    async with asyncio.timeout(PATIENCE_S):
        while len(tally.publish_ns) < 1000:
            await asyncio.sleep(0)
    load.hold()
    running.cancel()
    assert sorted(tally.publish_ns)[500] < 100_000_000
    assert not tally.delay_ns


async def test_payloads_keys_and_tags_take_turns_and_each_payload_has_its_stamp():
    tally, producer = Tally("producers-0"), FullProducer()
    producer.open.set()
    load = Load(
        plan(payloads=(b"." * 12, b"," * 10), keys=("a", "b", "c"), tags=("x", "y"), producers=("t", "t")), [producer, producer], tally
    )
    before = time.time_ns() // 1000
    for _ in range(3):
        await load.probe()
    after = time.time_ns() // 1000
    assert [(key, tag, len(payload)) for key, payload, tag in producer.sent] == [
        (b"a", "x", 12),
        (b"b", "y", 10),
        (b"c", "x", 12),
        (b"a", "y", 10),
        (b"b", "x", 12),
        (b"c", "y", 10),
    ]
    for _, payload, _ in producer.sent:
        assert before <= struct.unpack_from(">Q", payload)[0] <= after
    assert tally.report().sent_bytes == 66


def test_a_report_is_what_happened_since_the_last_one():
    tally = Tally("w")
    tally.on_received(iter([time.time_ns() // 1000 - 5_000] * 3), 30)
    tally.failed(ValueError("no"))
    report = from_line(to_line(tally.report()), WorkerReport)
    assert (report.received, report.received_bytes, report.send_errors, report.first_error) == (3, 30, 1, "ValueError: no")
    assert merged([report.end_to_end]).quantile(50) >= 5_000
    assert (tally.report().received, tally.report().first_error) == (0, "")


def report(worker, sent, received=0, elapsed=1.0):
    return WorkerReport(worker=worker, sent=sent, received=received, elapsed_s=elapsed)


def test_samples_add_up_the_rates_of_all_workers_and_a_short_rest_belongs_to_the_last_sample():
    reports = {
        "producers-0": [report("producers-0", 100), report("producers-0", 300), report("producers-0", 10, elapsed=0.1)],
        "consumers-0": [report("consumers-0", 0, 90), report("consumers-0", 0, 200)],
    }
    found = result.make(Workload(message_size=10), "d", reports, [report("producers-0", 7), report("consumers-0", 0, 5)])
    assert found["publishRate"] == [100, pytest.approx(310 / 1.1)]
    assert found["consumeRate"] == [90, 200]
    assert found["backlog"] == [12, 122]
    assert len(found["publishLatency99pct"]) == 2


def test_combined_reports_are_one_of_the_whole_time():
    parts = []
    for number in range(3):
        tally = Tally("w")
        tally.publish_ns.extend([1_000_000 * (number + 1)] * 10)
        tally.on_received([time.time_ns() // 1000] * 4, 40)
        tally.failed(ValueError(f"error {number}"))
        parts.append(tally.report())
    whole = result.combined(parts)
    assert (whole.sent, whole.received, whole.received_bytes, whole.send_errors) == (30, 12, 120, 3)
    assert whole.first_error == "ValueError: error 0"
    assert whole.elapsed_s == pytest.approx(sum(part.elapsed_s for part in parts))
    assert merged([whole.publish]).quantile(50) == merged([parts[1].publish]).quantile(50)
    assert result.combined(parts[:1]) is parts[0]


def test_pictures_of_one_and_of_several_results_are_drawn():
    latencies = Latencies()
    latencies.record(range(100, 90_000, 7))
    of_worker = [
        WorkerReport(worker="p", sent=10 * i, received=9 * i, elapsed_s=1.0, publish=latencies.encode(), end_to_end=latencies.encode())
        for i in range(1, 5)
    ]
    one = result.make(Workload(message_size=10, name="<title>"), "d", {"p": of_worker}, [])
    nothing = {"workload": "w", "driver": "omb", "publishRate": [], "consumeRate": []}
    for named in ([("a & b", one)], [("a", one), ("b", one), ("old", nothing)], [("old", nothing)]):
        root = ET.fromstring(charts.draw(named))
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert {name for name, _ in named} <= set(texts)
    rows = comparison.table([("a", one), ("old", nothing)])
    assert all(len(row) == len(comparison.COLUMNS) == len(comparison.KEYS) for row in rows)
    assert (rows[0][2], rows[0][3], rows[1][2], rows[1][-1]) == ("25", "1.00", "0", "-")


def test_unknown_drivers_and_settings_are_refused():
    assert "sprocketmq" in driver_names()
    with pytest.raises(ConfigError, match="there is no driver 'pulsar': choose one of"):
        make_driver("pulsar", {})
    with pytest.raises(ConfigError, match=r"unknown field batchQueue: its settings are namesrv"):
        make_driver("sprocketmq", {"batchQueue": True})
    with pytest.raises(ConfigError, match="maxInFlight"):
        make_driver("sprocketmq", {"maxInFlight": "many"})
