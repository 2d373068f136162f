"""``top``: rates from two samples, and what it prints where there is no terminal."""

import pytest

from sprocketmq.cli.live_rates import Rates, Seen
from sprocketmq.cli.top import PER_SAMPLE, Picture, tables, turn
from sprocketmq.client.admin import BrokerState, GroupProgress, QueueProgress
from sprocketmq.protocol.message import MessageQueue

MASTER = BrokerState("broker-a", 0, "10.0.0.1:10911", "c", "ASYNC_MASTER", "V5_5_0")


def progress(committed, end):
    return GroupProgress("g", [QueueProgress(MessageQueue("t", "broker-a", 0), committed, end, committed, 0)], 0.0)


def test_it_prints_one_interval_where_there_is_no_terminal(cli, mq):
    cli("produce", "watched", stdin=b"1\n2\n3\n")
    cli("consume", "watched", "--group", "watching", "--from", "first", "--count", "1")
    done = cli("top", "--interval", "0.1")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[1].split("\t")[:3] == ["broker-a", "0", "async_master"]
    assert "watched\t0\t" in done.out
    assert "watching\t0\t2\tnever" in done.out
    found = cli("top", "--interval", "0.1", "--json").json
    assert [(row["topic"], row["stored"]) for row in found["topics"]] == [("watched", 3)]
    assert found["problem"] is None


def test_a_cluster_that_is_away_is_one_sentence(cli, mq):
    done = cli("top", "--namesrv", "127.0.0.1:1")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "no nameserver answered" in done.err


def test_rates_need_two_samples_and_none_is_negative():
    seen = Seen()
    seen.add(1.0, {"in": 10})
    assert seen.rate("in") is None
    seen.add(3.0, {"in": 30})
    assert seen.rate("in") == 10
    seen.add(4.0, {"in": 5})  # the broker was started anew
    assert seen.rate("in") is None
    assert seen.rate("unknown") is None


def test_a_group_has_caught_up_when_it_consumes_faster_than_messages_arrive():
    rates = Rates()
    rates.group(0.0, progress(0, 1000))
    row, queues = rates.group(10.0, progress(600, 1100))
    assert (row.out_per_s, row.lag, row.caught_up_s) == (60, 500, 10)
    assert [(queue.queue, queue.lag, queue.out_per_s) for queue in queues] == [("t broker-a 0", 500, 60)]
    row, _ = rates.group(20.0, progress(600, 1200))
    assert (row.lag, row.caught_up_s) == (600, None)
    row, queues = rates.group(30.0, progress(1200, 1200))
    assert (row.lag, row.caught_up_s, queues) == (0, 0, [])


@pytest.mark.parametrize("runtime", [{}, {"msgPutTotalTodayNow": "many", "commitLogDiskRatio": "-1"}])
def test_what_a_broker_does_not_say_is_unknown(runtime):
    rates = Rates()
    for at in (1.0, 2.0):
        row = rates.broker(at, MASTER, runtime)
    assert (row.in_per_s, row.out_per_s, row.disk_ratio, row.held_pulls) == (None, None, None, "-")
    assert tables(Picture(brokers=[row]), 10)[0][1] == [("broker-a", "0", "async_master", "-", "-", "-", "-", "-")]


def test_names_from_the_cluster_cannot_write_on_the_terminal():
    picture = Picture(brokers=[Rates().broker(0.0, MASTER, {"heldPulls": "\x1b[2J"})])
    assert tables(picture, 10)[0][1][0][-1] == r"\x1b[2J"


def test_what_is_gone_is_forgotten():
    rates = Rates()
    rates.topic(0.0, "t", 1, 1, None)
    rates.group(0.0, progress(0, 0))
    rates.forget({"t"}, set())
    assert (list(rates.topics), list(rates.groups)) == (["t"], [])


def test_many_topics_take_turns():
    names = [str(i) for i in range(PER_SAMPLE * 2 + 10)]
    asked = [turn(names, number) for number in range(5)]
    assert {len(turn) for turn in asked} == {PER_SAMPLE}
    assert {name for turn in asked for name in turn} == set(names)
    assert turn(names[:3], 7) == names[:3]
