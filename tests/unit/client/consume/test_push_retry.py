"""What becomes of messages whose handler fails, hangs or asks for them again: client side."""

import asyncio
import logging

import pytest
from consuming import push
from fake_cluster import FakeCluster, answer, hang_up
from tests.inside import held_messages, process_queues, run_due, settling
from tests.waiting import stays

from sprocketmq.client import Producer, PushConsumer
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume import give_backs, group_member, pull_loop
from sprocketmq.clock import ManualClock
from sprocketmq.errors import ConfigError
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import SendMessageV2
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.protocol.properties import decode_properties, encode_properties
from sprocketmq.protocol.records import encode_record, pack_host
from sprocketmq.testing import eventually

QUEUE = MessageQueue("t", "broker-a", 0)
RETRY = "%RETRY%cg"
HOST = pack_host("127.0.0.1", 10911)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)
    monkeypatch.setattr(pull_loop, "PULL_PAUSE_S", 0.001)
    monkeypatch.setattr(group_member, "REBALANCE_RETRY_S", 0.001)


async def fill(cluster: FakeCluster, amount: int) -> None:
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        for i in range(amount):
            await producer.send(Message("t", b"%d" % i, tag="a", keys=[f"k{i}"], queue=QUEUE))


def put_record(cluster: FakeCluster, body: bytes, *, topic: str = "t", offset: int | None = None, **fields) -> None:
    """Store a record as it is."""
    queue = cluster.broker.queues[topic, 0]
    defaults = {"properties": b"", "sys_flag": 0, "physical_offset": len(queue) * 1000}
    queue.append(
        encode_record(
            topic=topic.encode(),
            body=body,
            queue_id=0,
            queue_offset=len(queue) if offset is None else offset,
            born_timestamp_ms=1,
            born_host=HOST,
            store_timestamp_ms=2,
            store_host=HOST,
            **{**defaults, **fields},
        )
    )


def put_inner_batch(cluster: FakeCluster, amount: int) -> None:
    entries = [(0, b"%d" % i, encode_properties({"UNIQ_KEY": f"ID{i}", "KEYS": f"k{i}"})) for i in range(amount)]
    put_record(cluster, encode_batch(entries), properties=encode_properties({"UNIQ_KEY": "OUTER"}), sys_flag=0xC0)
    # The fake counts records: nothing is at the offsets in between.
    cluster.broker.queues["t", 0] += [b""] * (amount - 1)


def published(cluster: FakeCluster) -> list[SendMessageV2]:
    headers = [c.header(SendMessageV2) for c in cluster.broker.seen if c.code == Q.SEND_MESSAGE_V2]
    return [header for header in headers if header.topic == RETRY]


def committed(cluster: FakeCluster) -> int:
    return cluster.broker.offsets.get(("cg", "t", 0), 0)


# --- single messages ----------------------------------------------------------------------------------------------------


async def test_a_message_given_to_retry_is_sent_back_alone_and_its_siblings_are_consumed(cluster):
    await fill(cluster, 4)
    async with push(cluster) as consumer:
        async for batch in consumer.batches():
            assert len(batch) == 4
            batch.retry(batch[1], delay_level=5)
            batch.ack()
            break
        await eventually(lambda: cluster.broker.returned)
    [header] = cluster.broker.returned
    assert (header.group, header.offset, header.delay_level, header.max_reconsume_times) == ("cg", 1000, 5, 16)
    assert (header.origin_topic, header.origin_msg_id, header.broker_name) == ("t", batch[1].msg_id, "broker-a")
    assert published(cluster) == []
    assert committed(cluster) == 4


async def test_a_handler_that_raises_has_everything_sent_back_but_what_it_called_done(cluster, caplog):
    await fill(cluster, 3)

    def handler(batch):
        batch.done(batch[0])
        batch.retry(batch[2], -1)
        raise ValueError("not today")

    async with push(cluster) as consumer:
        consumer.listen(handler)
        await eventually(lambda: len(cluster.broker.returned) == 2)
    assert sorted((h.offset, h.delay_level) for h in cluster.broker.returned) == [(1000, 0), (2000, -1)]
    assert committed(cluster) == 3
    assert "not today" in caplog.text


async def test_the_commit_offset_waits_for_the_send_back(cluster):
    await fill(cluster, 3)
    waiting: list[tuple[ServerConnection, Command]] = []
    cluster.broker.script(Q.CONSUMER_SEND_MSG_BACK, lambda conn, command: bool(waiting.append((conn, command))) or True)
    async with push(cluster) as consumer:
        consumer.listen(lambda batch: batch.retry(batch[1]))
        await eventually(lambda: waiting)
        await consumer.commit()
        assert committed(cluster) == 1
        waiting[0][0].respond(waiting[0][1], R.SUCCESS)
        await eventually(lambda: held_messages(consumer, QUEUE) == 0)
        await consumer.commit()
        assert committed(cluster) == 3


@pytest.mark.parametrize("refusal", [answer(R.SYSTEM_ERROR, "look message by offset failed"), answer(R.NO_PERMISSION)])
async def test_what_the_broker_does_not_take_back_is_published_to_the_retry_topic(cluster, refusal):
    await fill(cluster, 2)
    cluster.broker.script(Q.CONSUMER_SEND_MSG_BACK, refusal)
    async with push(cluster, max_reconsume_times=7) as consumer:
        consumer.listen(lambda batch: batch.retry(batch[1]) if batch.queue == QUEUE else None)
        await eventually(lambda: published(cluster))
        await eventually(lambda: held_messages(consumer, QUEUE) == 0)
    [header] = published(cluster)
    assert (header.producer_group, header.reconsume_times, header.max_reconsume_times) == ("CLIENT_INNER_PRODUCER", 1, 7)
    properties = decode_properties(header.properties.encode())
    uniq_key = properties["UNIQ_KEY"]
    assert properties == {
        "RETRY_TOPIC": "t",
        "RECONSUME_TIME": "1",
        "MAX_RECONSUME_TIMES": "7",
        "ORIGIN_MESSAGE_ID": uniq_key,
        "UNIQ_KEY": uniq_key,
        "DELAY": "3",
        "TAGS": "a",
        "KEYS": "k1",
        "WAIT": "true",
    }
    assert committed(cluster) == 2


async def test_a_published_dead_letter_counts_more_retries_than_are_allowed(cluster):
    await fill(cluster, 1)
    cluster.broker.script(Q.CONSUMER_SEND_MSG_BACK, answer(R.SYSTEM_ERROR))
    async with push(cluster) as consumer:
        consumer.listen(lambda batch: batch.retry(batch[0], -1) if not published(cluster) else None)
        await eventually(lambda: published(cluster))
    assert (published(cluster)[0].reconsume_times, published(cluster)[0].max_reconsume_times) == (1, 0)


async def test_what_no_broker_takes_is_handed_out_here_again_after_5_seconds(cluster, caplog):
    await fill(cluster, 3)
    clock = ManualClock()
    cluster.broker.on_CONSUMER_SEND_MSG_BACK = answer(R.SYSTEM_ERROR, "no")
    cluster.broker.on_SEND_MESSAGE_V2 = answer(R.NO_PERMISSION, "no")
    seen: list[tuple[list[int], int, int]] = []

    def handler(batch):
        seen.append(([m.queue_offset for m in batch], batch.attempts, batch[0].reconsume_times))
        if len(seen) == 1:
            batch.retry(batch[1])

    async with push(cluster, clock=clock) as consumer:
        consumer.listen(handler)
        await eventually(lambda: held_messages(consumer, QUEUE) == 1)
        await eventually(lambda: "was not taken back" in caplog.text and not settling(consumer))
        await consumer.commit()
        assert committed(cluster) == 1
        clock.advance(4.9)
        run_due(consumer)
        await asyncio.sleep(0)
        assert len(seen) == 1
        clock.advance(0.2)
        run_due(consumer)
        await eventually(lambda: len(seen) == 2)
    assert seen == [([0, 1, 2], 0, 0), ([1], 1, 1)]
    assert committed(cluster) == 3


async def test_a_lost_connection_loses_no_message_that_was_to_be_sent_back(cluster):
    await fill(cluster, 1)
    cluster.broker.script(Q.CONSUMER_SEND_MSG_BACK, hang_up, hang_up)
    async with push(cluster) as consumer:
        consumer.listen(lambda batch: batch.retry(batch[0]))
        await eventually(lambda: cluster.broker.returned)
    assert committed(cluster) == 1


async def test_our_broker_is_asked_again_while_it_is_away_as_it_takes_no_message_twice(cluster, monkeypatch):
    monkeypatch.setattr(give_backs, "RESEND_S", 0.001)
    await fill(cluster, 1)
    cluster.broker.script(Q.CONSUMER_SEND_MSG_BACK, *[hang_up] * 8)
    async with push(cluster) as consumer:
        consumer.listen(lambda batch: batch.retry(batch[0]))
        await eventually(lambda: cluster.broker.returned)
    assert published(cluster) == []
    assert committed(cluster) == 1


async def test_another_broker_is_not_as_it_may_have_the_message_and_it_is_published(cluster, monkeypatch):
    monkeypatch.setattr(pull_loop, "OWN_LANGUAGE", 0)
    await fill(cluster, 1)
    cluster.broker.script(Q.CONSUMER_SEND_MSG_BACK, *[hang_up] * 3)
    async with push(cluster) as consumer:
        consumer.listen(lambda batch: batch.retry(batch[0]) if batch.queue == QUEUE else None)
        await eventually(lambda: published(cluster))
    assert cluster.broker.returned == []
    assert committed(cluster) == 1


async def test_close_waits_for_messages_on_their_way_back(cluster):
    await fill(cluster, 1)
    late: list[asyncio.TimerHandle] = []

    def answer_later(conn, command):
        late.append(asyncio.get_running_loop().call_later(0.02, lambda: conn.respond(command, R.SUCCESS)))
        return True

    cluster.broker.script(Q.CONSUMER_SEND_MSG_BACK, answer_later)
    async with push(cluster) as consumer:
        async for batch in consumer.batches():
            batch.retry(batch[0])
            batch.ack()
            break
    assert late
    assert committed(cluster) == 1


async def test_a_handler_may_do_to_its_list_what_it_likes(cluster):
    await fill(cluster, 4)

    def handler(batch):
        first = batch[0]
        while batch:
            batch.pop()
        batch.retry(first)

    async with push(cluster) as consumer:
        consumer.listen(handler)
        await eventually(lambda: cluster.broker.returned)
        await eventually(lambda: held_messages(consumer, QUEUE) == 0)
    assert [header.offset for header in cluster.broker.returned] == [0]
    assert committed(cluster) == 4


async def test_a_level_that_cannot_be_is_refused_where_it_is_given(cluster):
    await fill(cluster, 1)
    async with push(cluster) as consumer:
        async for batch in consumer.batches():
            with pytest.raises(ConfigError, match="19"):
                batch.retry(batch[0], delay_level=19)
            batch.ack()
            break
    assert cluster.broker.returned == []


# --- the retry topic ----------------------------------------------------------------------------------------------------


async def test_messages_of_the_retry_topic_come_under_the_topic_they_were_sent_to(cluster):
    put_record(cluster, b"again", topic=RETRY, properties=encode_properties({"RETRY_TOPIC": "t", "UNIQ_KEY": "ID"}), reconsume_times=2)
    async with push(cluster, consume_from="last") as consumer:
        async with asyncio.timeout(60):
            async for batch in consumer.batches():
                [message] = batch
                assert (message.topic, message.body, message.reconsume_times) == ("t", b"again", 2)
                assert batch.queue.topic == RETRY
                batch.retry(message)
                batch.ack()
                break
        await eventually(lambda: cluster.broker.returned)
        assert consumer.assignment == [MessageQueue("t", "broker-a", i) for i in range(4)]
    assert cluster.broker.returned[0].origin_topic == "t"
    assert cluster.broker.offsets["cg", RETRY, 0] == 1


async def test_a_broadcasting_group_has_no_retry_topic_and_drops_what_fails(cluster, caplog, tmp_path):
    await fill(cluster, 2)

    def handler(batch):
        raise ValueError("for nothing")

    async with push(cluster, mode="broadcasting", offsets_dir=tmp_path) as consumer:
        consumer.listen(handler)
        await eventually(lambda: process_queues(consumer).get(QUEUE) and process_queues(consumer)[QUEUE].commit_offset == 2)
        assert RETRY not in {queue.topic for queue in process_queues(consumer)}
    assert cluster.broker.returned == []
    assert "dropped, as the group broadcasts" in caplog.text


# --- inner batches ------------------------------------------------------------------------------------------------------


async def test_one_message_of_an_inner_batch_is_sent_back_by_its_id(cluster):
    put_inner_batch(cluster, 3)
    async with push(cluster) as consumer:
        consumer.listen(lambda batch: batch.retry(batch[1]))
        await eventually(lambda: cluster.broker.returned)
    [header] = cluster.broker.returned
    assert (header.offset, header.origin_msg_id) == (0, "ID1")
    assert published(cluster) == []
    assert committed(cluster) == 3


async def test_a_broker_that_cannot_is_never_asked_and_the_message_is_published(cluster, monkeypatch):
    put_inner_batch(cluster, 3)
    monkeypatch.setattr(pull_loop, "OWN_LANGUAGE", 0)
    async with push(cluster) as consumer:
        consumer.listen(lambda batch: batch.retry(batch[1]) if len(batch) == 3 else None)
        await eventually(lambda: published(cluster))
    [header] = published(cluster)
    assert cluster.broker.count(Q.CONSUMER_SEND_MSG_BACK) == 0
    assert (header.sys_flag, header.reconsume_times, header.max_reconsume_times) == (0, 1, 16)
    properties = decode_properties(header.properties.encode())
    assert (properties["UNIQ_KEY"], properties["KEYS"], properties["RETRY_TOPIC"]) == ("ID1", "k1", "t")
    assert committed(cluster) == 3


async def test_a_broker_that_refused_one_is_not_asked_again(cluster):
    put_inner_batch(cluster, 3)
    cluster.broker.on_CONSUMER_SEND_MSG_BACK = answer(R.SYSTEM_ERROR, "MESSAGE_ILLEGAL")

    def handler(batch):
        if len(batch) == 3:
            raise ValueError

    async with push(cluster) as consumer:
        consumer.listen(handler)
        await eventually(lambda: len(published(cluster)) == 3)
        put_inner_batch(cluster, 3)
    assert cluster.broker.count(Q.CONSUMER_SEND_MSG_BACK) <= 3


async def test_a_batch_that_does_not_unwrap_comes_as_one_message_and_the_queue_goes_on(cluster, caplog):
    put_record(cluster, b"rubbish", sys_flag=0xC0)
    put_record(cluster, b"next")
    got: list[bytes] = []
    async with push(cluster) as consumer:
        consumer.listen(lambda batch: got.extend(m.body for m in batch))
        await eventually(lambda: got == [b"rubbish", b"next"])
    assert "cannot be unwrapped" in caplog.text
    assert committed(cluster) == 2


# --- timeouts -----------------------------------------------------------------------------------------------------------


async def test_a_handler_that_takes_too_long_is_told_and_its_messages_are_sent_back(cluster, caplog):
    await fill(cluster, 3)
    clock = ManualClock()
    held: list = []
    go_on = asyncio.Event()

    async def handler(batch):
        held.append(batch)
        batch.done(batch[0])
        await go_on.wait()

    async with push(cluster, clock=clock, consume_timeout_s=60) as consumer:
        consumer.listen(handler)
        await eventually(lambda: held)
        clock.advance(59)
        run_due(consumer)
        await stays(lambda: not held[0].timed_out)
        clock.advance(16)
        run_due(consumer)
        await eventually(lambda: len(cluster.broker.returned) == 2)
        assert held[0].timed_out
        await eventually(lambda: held_messages(consumer, QUEUE) == 0)
        await consumer.commit()
        assert committed(cluster) == 3
        go_on.set()
    assert [(h.offset, h.delay_level) for h in cluster.broker.returned] == [(1000, 3), (2000, 3)]
    assert "held 3 messages" in caplog.text
    assert len(held) == 1


# --- handlers that return, or are cancelled ----------------------------------------------------------------------------


async def test_what_a_handler_returns_is_ignored_with_one_warning(cluster, caplog):
    await fill(cluster, 3)
    with caplog.at_level(logging.WARNING):
        async with push(cluster, batch_max=1) as consumer:
            consumer.listen(lambda batch: "RECONSUME_LATER")
            await eventually(lambda: process_queues(consumer).get(QUEUE) and process_queues(consumer)[QUEUE].commit_offset == 3)
    assert caplog.text.count("which is ignored") == 1
    assert cluster.broker.returned == []


async def test_a_handler_that_is_cancelled_gives_its_batch_back_here(cluster):
    await fill(cluster, 1)
    taken: list = []

    async def handler(batch):
        taken.append(batch)
        await asyncio.Event().wait()

    async with push(cluster) as consumer:
        task = consumer.listen(handler, concurrency=1)
        await eventually(lambda: taken)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async for batch in consumer.batches():
            assert batch is taken[0]
            batch.ack()
            break
    assert cluster.broker.returned == []


async def test_a_handler_that_cancels_itself_counts_as_failed_and_the_next_batch_is_handled(cluster):
    await fill(cluster, 2)
    seen: list[int] = []

    async def handler(batch):
        seen.append(batch[0].queue_offset)
        if len(seen) == 1:
            raise asyncio.CancelledError

    async with push(cluster, batch_max=1) as consumer:
        consumer.listen(handler, concurrency=1)
        await eventually(lambda: len(seen) == 2)
        await eventually(lambda: cluster.broker.returned)
    assert [header.offset for header in cluster.broker.returned] == [0]
    assert committed(cluster) == 2


# --- orderly ------------------------------------------------------------------------------------------------------------


async def test_an_orderly_handler_that_fails_gets_the_same_messages_again_before_any_other(cluster):
    await fill(cluster, 4)
    clock = ManualClock()
    seen: list[list[int]] = []

    def handler(batch):
        seen.append([m.queue_offset for m in batch])
        if len(seen) < 3:
            raise ValueError

    async with push(cluster, orderly=True, batch_max=2, suspend_s=10, clock=clock) as consumer:
        consumer.listen(handler)
        for number in (1, 2):
            await eventually(lambda n=number: len(seen) == n)
            await stays(lambda n=number: len(seen) == n)
            clock.advance(10)
            run_due(consumer)
        await eventually(lambda: len(seen) == 4)
    assert seen == [[0, 1], [0, 1], [0, 1], [2, 3]]
    assert committed(cluster) == 4
    assert cluster.broker.returned == []


async def test_an_orderly_message_that_failed_too_often_becomes_a_dead_letter_and_the_rest_goes_on(cluster):
    await fill(cluster, 3)
    clock = ManualClock()
    seen: list[list[tuple[int, int]]] = []

    def handler(batch):
        if batch.queue == QUEUE:
            seen.append([(m.queue_offset, m.reconsume_times) for m in batch])
        if batch.queue == QUEUE and batch[0].queue_offset == 0:
            batch.retry(batch[0])

    async with push(cluster, orderly=True, batch_max=2, max_reconsume_times=1, clock=clock) as consumer:
        consumer.listen(handler)
        await eventually(lambda: len(seen) == 1)
        for number in (2, 3):
            await stays(lambda n=number: len(seen) == n - 1)
            clock.advance(1)
            run_due(consumer)
            await eventually(lambda n=number: len(seen) >= n)
            await eventually(lambda: not settling(consumer))
        await eventually(lambda: len(seen) == 4)
    assert seen == [[(0, 0), (1, 0)], [(0, 1), (1, 0)], [(1, 0)], [(2, 0)]]
    [header] = published(cluster)
    assert (header.reconsume_times, header.max_reconsume_times) == (2, 1)
    assert committed(cluster) == 3


async def test_an_orderly_message_without_a_limit_can_be_given_up_by_its_handler(cluster):
    await fill(cluster, 3)
    seen: list[list[int]] = []

    def handler(batch):
        if batch.queue == QUEUE:
            seen.append([m.queue_offset for m in batch])
            batch.retry(batch[1], -1)

    async with push(cluster, orderly=True) as consumer:
        consumer.listen(handler)
        await eventually(lambda: published(cluster))
    assert seen == [[0, 1, 2]]
    assert (published(cluster)[0].reconsume_times, published(cluster)[0].max_reconsume_times) == (1, 0)
    assert committed(cluster) == 3


# --- pause, resume, seek ------------------------------------------------------------------------------------------------


async def test_a_paused_queue_is_neither_pulled_nor_handed_out_until_resumed(cluster):
    async with push(cluster) as consumer:
        await eventually(lambda: len(consumer.assignment) == 4)
        consumer.pause(QUEUE)
        assert consumer.paused == [QUEUE]
        await fill(cluster, 2)
        got: list[bytes] = []
        consumer.listen(lambda batch: got.extend(m.body for m in batch))
        await stays(lambda: got == [])
        pulls = cluster.broker.count(Q.PULL_MESSAGE)
        await stays(lambda: cluster.broker.count(Q.PULL_MESSAGE) == pulls)
        consumer.resume()
        await eventually(lambda: got == [b"0", b"1"])
        assert consumer.paused == []


async def test_seek_goes_on_at_the_offset_and_forgets_what_was_pulled(cluster):
    await fill(cluster, 5)
    got: list[int] = []
    async with push(cluster, batch_max=1) as consumer:
        async for batch in consumer.batches():
            got.append(batch[0].queue_offset)
            if got == [0, 1]:
                consumer.seek(QUEUE, 4)
            if got == [0, 1, 4]:
                consumer.seek(QUEUE, 0)
            if len(got) == 5:
                batch.ack()
                break
    assert got == [0, 1, 4, 0, 1]
    assert committed(cluster) == 2


async def test_seek_to_time_asks_the_broker_for_the_offset(cluster):
    await fill(cluster, 3)
    got: list[int] = []
    async with push(cluster, consume_from="last") as consumer:
        await eventually(lambda: len(consumer.assignment) == 4)
        await consumer.seek_to_time("t", 1234)
        consumer.listen(lambda batch: got.extend(m.queue_offset for m in batch))
        await eventually(lambda: got == [1, 2])
    asked = [c.ext for c in cluster.broker.seen if c.code == Q.SEARCH_OFFSET_BY_TIMESTAMP and c.ext["timestamp"] == "1234"]
    assert {ext["queueId"] for ext in asked} == {"0"}  # the others are empty


async def test_queues_of_others_cannot_be_moved_or_paused(cluster):
    stranger = MessageQueue("other", "broker-a", 0)
    async with push(cluster) as consumer:
        with pytest.raises(ConfigError, match="not assigned"):
            consumer.pause(stranger)
        with pytest.raises(ConfigError, match="not assigned"):
            consumer.seek(stranger, 1)
        with pytest.raises(ConfigError, match="not assigned"):
            await consumer.seek_to_time(stranger, 1)
        with pytest.raises(ConfigError, match="no queue of 'other'"):
            await consumer.seek_to_time("other", 1)
        with pytest.raises(ConfigError, match="-1"):
            consumer.seek(QUEUE, -1)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "anycast"},
        {"max_reconsume_times": -1},
        {"consume_timeout_s": 0},
        {"suspend_s": 0},
        {"batch_max": 1025},
    ],
)
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(ConfigError):
        PushConsumer("cg", "t", namesrv="127.0.0.1:1", **options)
