"""Requests that tell when messages were stored, which are not in memory: they wait for the disk, and nothing else does."""

import asyncio

import pytest

from sprocketmq.broker import store_times
from sprocketmq.broker.cold_reads import MAX_RECORD_LOADS
from sprocketmq.protocol.bodies import BrokerConsumeStats, ConsumeStats, ConsumeTimeSpans, TopicStats
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.storage.queues import cold_reads as finder
from sprocketmq.testing import eventually

SENT = 3


@pytest.fixture
async def times(ask, clock):
    """Send a message to each queue of the topic, let a group read them, and return their store times."""
    sent = []
    assert (await ask(Q.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"cg"}')).code == 0
    for queue in range(SENT):
        clock.advance(1)
        sent.append(clock.time_ms())
        assert (await ask.send("orders", queue=queue)).code == 0
        fields = {"consumerGroup": "cg", "topic": "orders", "queueId": str(queue), "commitOffset": "1"}
        assert (await ask(Q.UPDATE_CONSUMER_OFFSET, fields)).code == 0
    return sent


def of_queues(table, field):
    return [getattr(value, field) for _, value in sorted(table.items(), key=lambda item: item[0].queue_id)][:SENT]


async def last_of_topic(ask):
    return of_queues(TopicStats.decode((await ask(Q.GET_TOPIC_STATS_INFO, {"topic": "orders"})).body).offset_table, "last_update_timestamp")


async def last_consumed(ask):
    return of_queues(ConsumeStats.decode((await ask(Q.GET_CONSUME_STATS, {"consumerGroup": "cg"})).body).offset_table, "last_timestamp")


async def last_consumed_by_all(ask):
    groups = BrokerConsumeStats.decode((await ask(Q.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})).body).consume_stats_list
    ((stats,),) = (tables for one in groups for group, tables in one.items() if group == "cg")
    return of_queues(stats.offset_table, "last_timestamp")


async def first_of_spans(ask):
    spans = ConsumeTimeSpans.decode((await ask(Q.QUERY_CONSUME_TIME_SPAN, {"topic": "orders", "group": "cg"})).body)
    return [span.min_time_stamp for span in spans.consume_time_span_set][:SENT]


async def first_of_queue(ask):
    return [
        int((await ask(Q.GET_EARLIEST_MSG_STORETIME, {"topic": "orders", "queueId": str(queue)})).ext["timestamp"]) for queue in range(SENT)
    ]


ALL = [last_of_topic, last_consumed, last_consumed_by_all, first_of_spans, first_of_queue]


@pytest.mark.parametrize("asking", ALL)
async def test_a_request_waits_for_the_disk_and_no_other_does(ask, times, cold_disk, asking):
    waiting = asyncio.ensure_future(asking(ask))
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("others")).code == 0
    assert not waiting.done()
    cold_disk.go.set()
    assert await waiting == times


@pytest.mark.parametrize("asking", ALL)
async def test_the_answer_is_that_of_messages_in_memory_however_many_are_read_at_once(ask, times, cold_disk, monkeypatch, asking):
    monkeypatch.setattr(store_times, "AT_ONCE", 2)
    cold_disk.go.set()
    assert await asking(ask) == times


async def test_a_disk_that_loses_everything_again_delays_a_request_only_so_often(ask, times, cold_disk, monkeypatch):
    reads = []
    monkeypatch.setattr(finder, "resident", lambda *_: False)
    monkeypatch.setattr(finder, "read_through", lambda *_: reads.append(1))
    assert await last_of_topic(ask) == times
    assert len(reads) <= MAX_RECORD_LOADS * SENT


async def test_requests_that_wait_for_the_disk_are_limited(ask, times, cold_disk, monkeypatch):
    monkeypatch.setattr(store_times, "MAX_WAITING", 1)
    waiting = asyncio.ensure_future(last_of_topic(ask))
    await eventually(lambda: cold_disk.began)
    answer = await ask(Q.GET_CONSUME_STATS, {"consumerGroup": "cg"})
    assert (answer.code, "system busy" in answer.remark) == (R.SYSTEM_BUSY, True)
    cold_disk.go.set()
    assert await waiting == times


async def test_a_queue_that_cannot_be_read_answers_with_the_error(broker, ask, times, cold_disk, monkeypatch, caplog):
    waiting = asyncio.ensure_future(ask(Q.GET_TOPIC_STATS_INFO, {"topic": "orders"}))
    await eventually(lambda: cold_disk.began)

    def fails(*_, **__):
        raise OSError("no disk")

    monkeypatch.setattr(type(broker.store), "store_time", fails)
    cold_disk.go.set()
    answer = await waiting
    assert (answer.code, answer.remark) == (R.SYSTEM_ERROR, "internal error: OSError: no disk")
    assert "request 202 for times of messages" in caplog.text
