"""Samples: what brokers of both kinds report, foreign versions, bounds, and how often they are asked."""

import asyncio
from collections import deque
from contextlib import AsyncExitStack

import pytest

from sprocketmq.clock import ManualClock
from sprocketmq.errors import BrokerError, RequestTimeout
from sprocketmq.protocol.bodies import BrokerData, ClusterInfo
from sprocketmq.web import collect
from sprocketmq.web.alarms import alarms_of
from sprocketmq.web.collect import MAX_BROKERS, Collector, number, view_of, whole
from sprocketmq.web.samples import BrokerView

# Of Apache 5.5.0, shortened: no brokerVersion and no role; windows that are not filled are empty.
APACHE = {
    "brokerVersionDesc": "V5_5_0",
    "putTps": "12.5 0.0 ",
    "getTransferredTps": " ",
    "msgPutTotalTodayNow": "1000",
    "msgPutTotalTodayMorning": "400",
    "msgGetTotalTodayNow": "0",
    "msgGetTotalTodayMorning": "0",
    "commitLogDirCapacity": "Total : 252.0 GiB, Free : 231.0 GiB.",
    "commitLogDiskRatio": "0.08",
    "bootTimestamp": "1700000000000",
    "earliestMessageTimeStamp": "1700000000001",
    "dispatchBehindBytes": "0",
}
BROKER = BrokerView("broker-a", 0, "10.0.0.1:10911", "c")


class FakeAdmin:
    """Brokers by address with what they report, or the error they answer with."""

    def __init__(self, brokers: dict[str, dict[str, str] | Exception]) -> None:
        self.brokers = brokers
        self.asked: deque[str] = deque()

    async def cluster(self) -> ClusterInfo:
        table = {f"b{i}": BrokerData("c", f"b{i}", {0: address}) for i, address in enumerate(self.brokers)}
        return ClusterInfo(table, {"c": list(table)})

    async def broker_runtime(self, address: str) -> dict[str, str]:
        self.asked.append(address)
        answer = self.brokers[address]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def broker_config(self, address: str) -> dict[str, str]:
        return {"brokerRole": "SYNC_MASTER"}


@pytest.fixture
async def sampled():
    """``await sampled(admin, clock)``: return a collector that has taken its first sample; it is closed when the test ends."""
    async with AsyncExitStack() as stack:

        async def start(admin: FakeAdmin, clock: ManualClock | None = None) -> Collector:
            async def get() -> FakeAdmin:
                return admin

            collector = Collector(get, clock or ManualClock())
            stack.push_async_callback(collector.close)
            collector.start()
            async with asyncio.timeout(60):
                await collector.fresh()
            return collector

        yield start


def test_a_broker_of_apache_is_read():
    view = view_of(BROKER, APACHE, "ASYNC_MASTER")
    assert (view.version, view.in_rate, view.out_rate, view.in_today, view.disk_used) == ("V5_5_0", 12.5, None, 600, 0.08)
    assert (view.disk_total, view.disk_free, view.held_pulls, view.writable) == (252 * 2**30, 231 * 2**30, None, None)


@pytest.mark.parametrize("text", ["", "x", "NaN", "inf", "-inf", "1e999", "0x1f", "1_0e", "九"])
def test_what_is_no_number_is_unknown(text):
    assert number(text) is None
    assert whole(text) is None


def test_a_foreign_version_is_shown_as_far_as_it_is_understood():
    odd = dict.fromkeys(APACHE, "<b>?</b>") | {"commitLogDirCapacity": "Total : 9e9 XiB, Free : . B."}
    view = view_of(BROKER, odd, "")
    assert (view.in_rate, view.disk_total, view.booted_ms) == (None, None, None)
    assert view_of(BROKER, {}, "") == BROKER


async def test_roles_come_from_the_settings_where_the_statistics_have_none(sampled):
    collector = await sampled(FakeAdmin({"h:1": APACHE}))
    assert collector.view.brokers[0].role == "SYNC_MASTER"


async def test_a_broker_that_does_not_answer_has_a_sentence_and_the_others_are_shown(sampled):
    refusal = BrokerError(3, "request type 28 not supported", address="h:3")
    collector = await sampled(FakeAdmin({"h:1": APACHE, "h:2": RequestTimeout("h:2", 28, 5000), "h:3": refusal}))
    one, two, three = collector.view.brokers
    assert (one.problem, two.problem[:20]) == ("", "no answer from h:2 t")
    assert "request type 28 not supported" in three.problem
    assert [alarm.kind for alarm in collector.view.alarms] == ["away", "away"]


async def test_rates_are_the_growth_of_counters(sampled):
    clock = ManualClock()
    admin = FakeAdmin({"h:1": {**APACHE, "brokerRole": "SLAVE"}})
    collector = await sampled(admin, clock)
    assert collector.view.brokers[0].in_rate == 12.5  # the broker's own, at first
    admin.brokers["h:1"] = {**APACHE, "msgPutTotalTodayNow": "1500"}
    clock.advance(20)
    collector.wake()
    async with asyncio.timeout(60):
        await collector.fresh()
    assert collector.view.brokers[0].in_rate == 25.0
    assert collector.history["h:1"].in_rate == [12.5, 25.0]


async def test_a_broker_that_disappears_stays_as_long_as_its_history(sampled):
    clock = ManualClock()
    admin = FakeAdmin({"h:1": APACHE, "h:2": APACHE})
    collector = await sampled(admin, clock)
    del admin.brokers["h:2"]
    for wait_s, shown in ((30, {"h:1": False, "h:2": True}), (3700, {"h:1": False})):
        clock.advance(wait_s)
        collector.wake()
        async with asyncio.timeout(60):
            view = await collector.fresh()
        assert {broker.address: broker.gone for broker in view.brokers} == shown
    assert set(collector.history) == {"h:1"}


async def test_brokers_and_their_history_are_bounded(sampled, monkeypatch):
    monkeypatch.setattr(collect, "POINTS", 3)
    clock = ManualClock()
    admin = FakeAdmin({f"h:{i}": {} for i in range(MAX_BROKERS + 10)})
    collector = await sampled(admin, clock)
    assert (len(collector.view.brokers), collector.view.left_out) == (MAX_BROKERS, 10)
    for _ in range(5):
        clock.advance(11)
        collector.wake()
        async with asyncio.timeout(60):
            await collector.fresh()
    assert {len(history.time_ms) for history in collector.history.values()} == {3}


async def test_viewers_do_not_add_samples(sampled):
    admin = FakeAdmin({"h:1": APACHE})
    collector = await sampled(admin)
    asked = len(admin.asked)
    streams = [collector.updates() for _ in range(50)]
    for stream in streams:
        await anext(stream)
    assert len(admin.asked) == asked
    for stream in streams:
        await stream.aclose()


async def test_who_follows_samples_comes_to_an_end_when_the_dashboard_stops(sampled):
    collector = await sampled(FakeAdmin({"h:1": APACHE}))

    async def follow() -> int:
        return len([view async for view in collector.updates()])

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    await collector.close()
    async with asyncio.timeout(60):
        assert await following == 1


def test_alarms_tell_what_is_wrong_the_worst_first():
    import msgspec

    def broker(**changes) -> BrokerView:
        return msgspec.structs.replace(BROKER, **changes)

    assert [alarm.kind for alarm in alarms_of([])] == ["no_brokers"]
    assert alarms_of([broker(disk_used=0.5, writable=True)]) == []
    found = alarms_of(
        [
            broker(disk_used=0.8),
            broker(name="b", disk_used=0.9, writable=False),
            broker(name="c", id=1, following="diverged", behind_bytes=1 << 30),
            broker(name="d", dispatch_behind=1 << 30, sends_waiting=5000),
        ]
    )
    assert [(alarm.kind, alarm.level) for alarm in found] == [
        *[("disk", "bad"), ("not_writable", "bad"), ("no_master", "bad"), ("disk", "warn")],
        *[("not_following", "warn"), ("slave_behind", "warn"), ("index_behind", "warn"), ("sends_waiting", "warn")],
    ]
