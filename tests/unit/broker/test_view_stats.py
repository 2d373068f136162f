"""Statistics of the last minute, hour and day (315), and what 28 tells of commits."""

import pytest

from sprocketmq.broker.metrics.counters import BrokerCounters
from sprocketmq.broker.metrics.windows import STEP_OBJECTS, Windows
from sprocketmq.clock import ManualClock
from sprocketmq.protocol.bodies import BrokerStats, RuntimeInfo


class FakeTopic:
    """A topic as the counters know it."""

    def __init__(self, name):
        self.name = name
        self.counters = None


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def counters(clock):
    return BrokerCounters(clock)


@pytest.fixture
def windows(counters, clock):
    return Windows(counters, clock)


def put(counters, topic, messages):
    counters.of_topic(topic).of_type("normal").add(messages, messages * 100, [100], 0.0)
    counters.put_messages += messages


def sums(grown):
    return [window.amounts[0] for window in grown]


def run(clock, windows, seconds):
    """Let time pass, with a sample every 10 s."""
    for _ in range(seconds // 10):
        clock.advance(10)
        windows.sample()


def test_each_window_forgets_what_is_older(counters, clock, windows):
    topic = FakeTopic("orders")
    put(counters, topic, 5)
    assert sums(windows.of_topic(topic.counters)) == [5, 5, 5]
    run(clock, windows, 80)
    assert sums(windows.of_topic(topic.counters)) == [0, 5, 5]
    put(counters, topic, 3)
    assert sums(windows.of_topic(topic.counters)) == [3, 8, 8]
    run(clock, windows, 4200)
    assert sums(windows.of_topic(topic.counters)) == [0, 0, 8]
    run(clock, windows, 90_000)
    assert sums(windows.of_topic(topic.counters)) == [0, 0, 0]


def test_a_steady_rate_is_the_rate_of_every_window(counters, clock, windows):
    topic = FakeTopic("orders")
    for _ in range(26 * 360):
        put(counters, topic, 50)
        run(clock, windows, 10)
    minute, hour, day = windows.of_topic(topic.counters)
    for window, length in ((minute, 60), (hour, 3600), (day, 86_400)):
        assert window.rate(0) == pytest.approx(5, rel=0.01)
        assert window.seconds == pytest.approx(length, rel=0.2)
        assert window.amounts == (window.amounts[0], window.amounts[0] * 100, window.amounts[0] // 50)


def test_a_topic_that_is_made_between_samples_counts_from_its_start(counters, clock, windows):
    run(clock, windows, 7200)
    topic = FakeTopic("late")
    put(counters, topic, 4)
    assert sums(windows.of_topic(topic.counters)) == [4, 4, 4]
    run(clock, windows, 10)
    assert sums(windows.of_topic(topic.counters)) == [4, 4, 4]


def test_samples_that_were_late_are_better_than_none(counters, clock, windows):
    topic = FakeTopic("orders")
    clock.advance(100_000)
    put(counters, topic, 4)
    (minute, *_) = windows.of_topic(topic.counters)
    assert (minute.amounts[0], minute.seconds) == (4, 100_000)


def test_system_topics_are_left_out_and_deleted_topics_still_count(counters, clock, windows):
    kept, gone, system = FakeTopic("orders"), FakeTopic("gone"), FakeTopic("RMQ_SYS_TRACE_TOPIC")
    for topic in (kept, gone, system):
        put(counters, topic, 10)
    for topic, group in ((kept, "cg"), (system, "cg")):
        counters.of_group(topic, group).get_messages += 4
    counters.get_messages += 8
    run(clock, windows, 10)
    del topic, gone
    put(counters, kept, 1)
    run(clock, windows, 10)
    minute = windows.of_broker()[0]
    assert minute.amounts[:4] == (31, 8, 21, 4)


def test_other_work_comes_between_the_steps_of_a_sample(counters, clock, windows):
    topics = [FakeTopic(f"t{n}") for n in range(3 * STEP_OBJECTS)]
    for topic in topics:
        put(counters, topic, 1)
    clock.advance(10)
    steps = windows.steps()
    for _ in range(3):
        next(steps)
        assert sums(windows.of_topic(topics[0].counters)) == [1, 1, 1], "the sample does not count before its end"
    assert list(steps) == []
    assert sums(windows.of_topic(topics[-1].counters)) == [1, 1, 1]


def test_samples_of_a_deleted_topic_go_with_it(counters, clock, windows):
    topics = [FakeTopic(f"t{n}") for n in range(100)]
    for topic in topics:
        put(counters, topic, 1)
        counters.of_group(topic, "cg").get_messages += 1
    run(clock, windows, 20)
    assert len(counters.topics) == len(counters.groups) == 100
    topics.clear()
    del topic
    run(clock, windows, 10)
    assert len(counters.topics) == len(counters.groups) == 0


# --- asked of a broker ---


async def minute_of(ask, name, key):
    answer = await ask(315, {"statsName": name, "statsKey": key})
    assert answer.code == 0, answer.remark
    return BrokerStats.decode(answer.body).stats_minute


async def test_every_statistic_that_tools_ask_for(ask, broker, clock):
    broker.groups.find("cg")
    await ask.send_batch("orders", [b"x" * 10] * 8)
    await ask.send("orders", b"x" * 10)
    sent = await ask.pull("orders", 0)
    assert sent.code == 0
    await ask(36, {"offset": "0", "group": "cg", "delayLevel": "1", "originTopic": "orders", "originMsgId": "", "unitMode": "false"})
    clock.advance(20)
    numbers = await minute_of(ask, "TOPIC_PUT_NUMS", "orders")
    assert (numbers.sum, numbers.tps, numbers.avgpt) == (9, 9 / 20, 4.5), "messages for each send request"
    assert (await minute_of(ask, "TOPIC_PUT_SIZE", "orders")).sum > 90
    numbers = await minute_of(ask, "GROUP_GET_NUMS", "orders@cg")
    assert (numbers.sum, numbers.avgpt) == (9, 9.0), "messages for each pull"
    assert (await minute_of(ask, "GROUP_GET_SIZE", "orders@cg")).sum == len(sent.body)
    back = await minute_of(ask, "SNDBCK_PUT_NUMS", "orders@cg")
    assert (back.sum, back.avgpt) == (1, 1.0)
    broker.windows.sample()
    for name, total in (("BROKER_PUT_NUMS", 9), ("BROKER_GET_NUMS", 9), ("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", 9)):
        of_all = await minute_of(ask, name, "DefaultCluster")
        assert of_all.sum >= total, name
        assert of_all.avgpt == 0.0
    assert (await minute_of(ask, "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "DefaultCluster")).sum == 9
    assert (await minute_of(ask, "CHANNEL_ACTIVITY", "CONNECT")).sum >= 1


# What rocketmq-exporter reads as numbers: if one were missing, it would export nothing of a broker.
EXPORTED = """
    msgPutTotalTodayNow sendThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueHeadWaitTimeMills msgGetTotalTodayNow queryThreadPoolQueueSize
    bootTimestamp msgPutTotalYesterdayMorning msgGetTotalYesterdayMorning pullThreadPoolQueueSize commitLogMinOffset
    pullThreadPoolQueueHeadWaitTimeMills dispatchMaxBuffer brokerVersion consumeQueueDiskRatio pageCacheLockTimeMills commitLogDiskRatio
    commitLogMaxOffset getMessageEntireTimeMax msgPutTotalTodayMorning putMessageTimesTotal msgGetTotalTodayMorning sendThreadPoolQueueSize
    startAcceptSendRequestTimeStamp putMessageEntireTimeMax earliestMessageTimeStamp remainTransientStoreBufferNumbs
    queryThreadPoolQueueCapacity putMessageAverageSize dispatchBehindBytes putMessageSizeTotal sendThreadPoolQueueCapacity
    pullThreadPoolQueueCapacity putLatency99 putLatency999
"""


@pytest.mark.parametrize("sends", [0, 3])
async def test_runtime_information_has_all_that_exporters_need(ask, sends):
    for _ in range(sends):
        await ask.send("orders")
    table = RuntimeInfo.decode((await ask(28)).body).table
    for name in EXPORTED.split():
        whole = not name.startswith(("putLatency", "putMessageAverage")) and not name.endswith("Ratio")
        assert (int if whole else float)(table[name]) >= -1, name
    for name in ("putTps", "getMissTps", "getTransferedTps", "getTransferredTps", "getTotalTps", "getFoundTps"):
        assert len([float(word) for word in table[name].split()]) == 3, name
    words = table["commitLogDirCapacity"].split(" ")
    assert [words[0], words[1], words[3], words[4], words[5], words[7]] == ["Total", ":", "GiB,", "Free", ":", "GiB."]
    assert all(float(words[place]) >= 0 for place in (2, 6))
    for name, value in table.items():
        if name.startswith("scheduleMessageOffset_"):
            assert len([int(part) for part in value.split(",")]) == 2


async def test_runtime_information_tells_how_long_commits_took(ask, broker):
    for _ in range(3):
        await ask.send("orders")
    broker.counters.commit.add(0.3)
    broker.counters.commit.add(60.0)
    table = RuntimeInfo.decode((await ask(28)).body).table
    classes = dict(part.rsplit(":", 1) for part in table["putMessageDistributeTime"].split())
    assert list(classes)[:2] == ["[<=0ms]", "[0~10ms]"]
    assert list(classes)[-2:] == ["[5~10s]", "[10s~]"]
    assert len(classes) == 13
    assert sum(map(int, classes.values())) == 5
    assert (classes["[200~500ms]"], classes["[10s~]"]) == ("1", "1")
    assert float(table["putLatency99"]) > 0
    assert float(table["putLatency999"]) == 10_000.0
    assert table["remainHowManyDataToFlush"].endswith(" B")
    for value in table.values():
        assert "nan" not in value.lower().split()
        assert "inf" not in value.lower().split()
