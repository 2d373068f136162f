import asyncio
import logging
from contextlib import asynccontextmanager

import pytest
from fake_cluster import FakeCluster
from tests.inside import id_of, process_queues
from tests.records import stored

from sprocketmq.client import Producer, PushConsumer
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume import group_member as member_module
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.bodies import (
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumerStatus,
    ResetOffsets,
    build_subscription,
)
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.testing import eventually

QUEUES = [MessageQueue("t", "broker-a", i) for i in range(4)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)
    monkeypatch.setattr(member_module, "REBALANCE_RETRY_S", 0.001)


class Asked:
    """A member with four queues, and the broker's side of its connection."""

    def __init__(self, cluster: FakeCluster, consumer: PushConsumer) -> None:
        self.cluster = cluster
        self.consumer = consumer

    async def ask(self, code: int, body: bytes = b"", **ext: str):
        conn = self.cluster.broker.groups["cg"][id_of(self.consumer)]
        return await conn.request(code, ext=ext, body=body, timeout_s=60)

    def tell(self, code: int, body: bytes = b"", **ext: str) -> None:
        conn = self.cluster.broker.groups["cg"][id_of(self.consumer)]
        conn.oneway(code, ext=ext, body=body)


@asynccontextmanager
async def member(cluster: FakeCluster, messages: int = 0, **options):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        for i in range(messages):
            await producer.send(Message("t", b"%d" % i, queue=QUEUES[i % 4]))
    async with PushConsumer("cg", "t", namesrv=cluster.namesrv.address, **({"consume_from": "first"} | options)) as consumer:
        await eventually(lambda: len(consumer.assignment) == 4)
        yield Asked(cluster, consumer)


def record(body: bytes, **properties: str) -> bytes:
    return stored(body, properties, queue_id=1, queue_offset=7)


# --- where it is --------------------------------------------------------------------------------------------------------


async def test_a_member_tells_what_it_consumed_of_a_topic(cluster):
    async with member(cluster, 8) as asked:
        bodies = []
        async for batch in asked.consumer.batches():
            bodies += batch
            if len(bodies) == 8:
                batch.ack()
                break
        answer = await asked.ask(221, topic="t", group="cg")
        assert answer.code == R.SUCCESS
        assert ConsumerStatus.decode(answer.body).message_queue_table == dict.fromkeys(QUEUES, 2)
        other = await asked.ask(221, topic="elsewhere", group="cg")
        assert ConsumerStatus.decode(other.body).message_queue_table == {}


async def test_a_member_tells_how_it_is_doing(cluster):
    async with member(cluster, 8, orderly=True, batch_max=5) as asked:
        await eventually(lambda: sum(pq.held_messages for pq in process_queues(asked.consumer).values()) == 8)
        batch = await anext(asked.consumer.batches())
        answer = await asked.ask(307, consumerGroup="cg", clientId="x", jstackEnable="false")
        info = ConsumerRunningInfo.decode(answer.body)
    assert answer.code == R.SUCCESS
    assert {queue for queue in info.mq_table if queue.topic == "t"} == set(QUEUES)
    of_queue = info.mq_table[batch.queue]
    assert (of_queue.commit_offset, of_queue.cached_msg_count, of_queue.cached_msg_max_offset) == (0, 2, 1)
    assert of_queue.locked
    assert not of_queue.droped
    assert abs(of_queue.last_consume_timestamp - SYSTEM_CLOCK.time_ms()) < 60_000
    assert abs(of_queue.last_pull_timestamp - SYSTEM_CLOCK.time_ms()) < 60_000
    assert {subscription.topic for subscription in info.subscription_set} == {"t", "%RETRY%cg"} == set(info.status_table)
    expected = {
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMEORDERLY": "true",
        "PROP_NAMESERVER_ADDR": cluster.namesrv.address,
        "consumeMessageBatchMaxSize": "5",
        "consumerGroup": "cg",
        "messageModel": "CLUSTERING",
    }
    assert info.properties.items() >= expected.items()
    assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0


# --- going elsewhere ----------------------------------------------------------------------------------------------------


async def test_a_reset_moves_the_queues_that_are_assigned_and_commits_at_once(cluster):
    async with member(cluster, 8) as asked:
        got = asyncio.Queue()

        async def handler(batch):
            for message in batch:
                got.put_nowait((batch.queue.queue_id, message.queue_offset))

        asked.consumer.listen(handler)
        async with asyncio.timeout(60):
            assert {await got.get() for _ in range(8)} == {(queue, offset) for queue in range(4) for offset in range(2)}
        table = {QUEUES[1]: 0, QUEUES[2]: 1, MessageQueue("t", "elsewhere", 0): 5, MessageQueue("other", "broker-a", 0): 5}
        asked.tell(220, ResetOffsets(table).encode(), topic="t", group="cg", timestamp="0", isForce="true")
        async with asyncio.timeout(60):
            assert {await got.get() for _ in range(3)} == {(1, 0), (1, 1), (2, 1)}
        await asked.consumer.commit()
    assert [cluster.broker.offsets["cg", "t", i] for i in range(4)] == [2, 2, 2, 2]


async def test_without_force_a_reset_only_goes_back(cluster):
    async with member(cluster, 8) as asked:
        table = dict.fromkeys(QUEUES, 2)
        asked.tell(220, ResetOffsets(table).encode(), topic="t", group="cg", timestamp="0", isForce="false")
        answer = await asked.ask(221, topic="t", group="cg")
        assert ConsumerStatus.decode(answer.body).message_queue_table == dict.fromkeys(QUEUES, 0)


# --- consuming one message ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
async def test_one_message_is_handled_at_once_and_the_result_told(cluster, plain):
    seen = []

    async def handler(batch):
        seen.append((batch.queue, [message.body for message in batch]))

    def plain_handler(batch):
        seen.append((batch.queue, [message.body for message in batch]))

    async with member(cluster) as asked:
        asked.consumer.listen(plain_handler if plain else handler)
        ext = {"consumerGroup": "cg", "clientId": "x", "msgId": "m", "brokerName": "broker-a", "topic": "t"}
        answer = await asked.ask(309, record(b"hello", UNIQ_KEY="m"), **ext)
        result = ConsumeDirectlyResult.decode(answer.body)
    assert seen == [(QUEUES[1], [b"hello"])]
    assert (result.consume_result, result.order, result.auto_commit) == ("CR_SUCCESS", False, True)
    assert not cluster.broker.offsets


async def test_a_handler_that_raises_or_wants_the_message_again_is_told_so(cluster):
    async def handler(batch):
        if batch[0].body == b"later":
            batch.retry(batch[0])
        else:
            raise ValueError("no such order")

    async with member(cluster) as asked:
        asked.consumer.listen(handler)
        later = ConsumeDirectlyResult.decode((await asked.ask(309, record(b"later"), consumerGroup="cg")).body)
        failed = ConsumeDirectlyResult.decode((await asked.ask(309, record(b"bad"), consumerGroup="cg")).body)
    assert later.consume_result == "CR_LATER"
    assert (failed.consume_result, failed.remark) == ("CR_THROW_EXCEPTION", "ValueError: no such order")
    assert cluster.broker.count(Q.CONSUMER_SEND_MSG_BACK) == 0


async def test_a_consumer_without_a_handler_says_so(cluster):
    async with member(cluster) as asked:
        result = ConsumeDirectlyResult.decode((await asked.ask(309, record(b"x"), consumerGroup="cg")).body)
    assert result.consume_result == "CR_RETURN_NULL"
    assert "listen()" in result.remark


async def test_of_an_inner_batch_the_message_that_was_meant_is_handled(cluster):
    seen = []
    batch = encode_batch([(0, b"%d" % i, encode_properties({"UNIQ_KEY": f"m{i}"})) for i in range(3)])
    whole = stored(batch, {"INNER_NUM": "3", "INNER_BASE": "7"}, queue_id=1, queue_offset=7, sys_flag=64 | 128)
    async with member(cluster) as asked:
        asked.consumer.listen(lambda batch: seen.extend(message.body for message in batch))
        await asked.ask(309, whole, consumerGroup="cg", msgId="m1")
        unknown = await asked.ask(309, whole, consumerGroup="cg", msgId="m9")
    assert seen == [b"1"]
    assert (unknown.code, unknown.remark) == (R.SYSTEM_ERROR, "the request has 0 messages to consume, not one")


# --- what cannot be answered --------------------------------------------------------------------------------------------


async def test_requests_for_another_group_or_of_an_unknown_kind_are_refused_and_the_member_lives_on(cluster):
    async with member(cluster, 4) as asked:
        for code, ext in (
            (221, {"topic": "t", "group": "other"}),
            (307, {"consumerGroup": "other", "clientId": "x"}),
            (309, {"consumerGroup": "other"}),
        ):
            answer = await asked.ask(code, **ext)
            assert (answer.code, answer.remark) == (R.SYSTEM_ERROR, "The Consumer Group <other> not exist in this consumer")
        assert (await asked.ask(39)).code == R.REQUEST_CODE_NOT_SUPPORTED
        for code in (221, 307, 309):
            assert (await asked.ask(code)).code == R.SYSTEM_ERROR  # without its header
        assert (await asked.ask(309, b"rubbish", consumerGroup="cg")).code == R.SYSTEM_ERROR
        asked.tell(220, b"rubbish", topic="t", group="cg", timestamp="0", isForce="true")
        asked.tell(40, consumerGroup="other")
        asked.tell(40)
        async with asyncio.timeout(60):
            assert len(await anext(asked.consumer.batches())) == 1


# --- what other members want --------------------------------------------------------------------------------------------


def wishes(cluster: FakeCluster, **subscriptions: str) -> None:
    body = ConsumerConnection(subscription_table={t: build_subscription(t, text, 1) for t, text in subscriptions.items()})
    cluster.broker.on_GET_CONSUMER_CONNECTION_LIST = lambda conn, command: conn.respond(command, R.SUCCESS, body=body.encode())


async def test_a_member_that_wants_something_else_than_the_group_is_warned_once(cluster, caplog):
    wishes(cluster, t="b || a", more="*")
    with caplog.at_level(logging.WARNING):
        async with PushConsumer("cg", {"t": "a"}, namesrv=cluster.namesrv.address) as consumer:
            await consumer._member.check.compare()
    assert [record.getMessage() for record in caplog.records if "subscribe to the same" in record.getMessage()] == [
        f"consumer group cg: another member subscribes to {theirs} of topic {topic}, this one to {ours}: all members must subscribe to the"
        " same, or they miss messages; give one of them another group"
        for topic, theirs, ours in (("more", "everything", "nothing"), ("t", "tags 'a || b'", "tags 'a'"))
    ]


async def test_members_that_want_the_same_in_other_words_are_not_warned(cluster, caplog):
    wishes(cluster, **{"t": "b||a ", "%RETRY%cg": "*"})
    async with PushConsumer("cg", {"t": "a || b"}, namesrv=cluster.namesrv.address):
        pass
    assert "subscribe to the same" not in caplog.text
