"""What is given to the clients that they cannot take: refused at once, by name, and nothing leaks."""

import asyncio
import copy
import logging
import math
import pickle

import pytest
import uvloop
from consuming import push, take
from fake_cluster import answer
from tests.inside import listeners

import sprocketmq
from sprocketmq import AdminClient, Batching, Message, MessageQueue, Producer, PullConsumer, PushConsumer, TlsConfig, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ConfigError, InvalidName, NotAMessage, SprocketError
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R

QUEUE = MessageQueue("t", "broker-a", 0)
NAMESRV = "127.0.0.1:9876"
BATCHINGS = (None, Batching(), Batching(adaptive=True))

# --- what is no message -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", BATCHINGS, ids=repr)
@pytest.mark.parametrize("wrong", [b"x", "x", None, 5], ids=repr)
async def test_what_is_no_message_is_refused_and_takes_no_room(cluster, wrong, batching):
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=batching) as producer:
        calls = [lambda: producer.send(wrong), lambda: producer.send(wrong, timeout_s=60), lambda: producer.send_batch(wrong)]
        calls += [lambda: producer.send_batch([Message("t", b"x"), wrong])]
        for call in calls:
            with pytest.raises(TypeError, match="Message"):
                await call()
        for more in ((), (lambda result, error: None,)):
            with pytest.raises(NotAMessage, match=r"it is not a Message but .*: give a Message\('topic', b'body'\)"):
                producer.submit(wrong, *more)
        with pytest.raises(TypeError, match="send_batch takes a list of messages"):
            await producer.send_batch(Message("t", b"x"))
        with pytest.raises(NotAMessage):
            await producer.send(Message)
        assert producer.in_flight == producer.batching_stats.held_bytes == 0
        assert (await asyncio.wait_for(producer.send(Message("t", b"x")), 60)).topic == "t"


async def test_a_received_message_is_sent_on_as_a_message_of_its_own(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"x", queue=QUEUE))
        async with PullConsumer("cg", namesrv=cluster.namesrv.address) as consumer:
            (received,) = (await consumer.pull(QUEUE, 0)).messages
        for batching in BATCHINGS:
            async with Producer("pg", namesrv=cluster.namesrv.address, batching=batching) as other:
                for call in (other.send, other.submit):
                    with pytest.raises(NotAMessage, match="make a Message of its topic, body, tag and keys"):
                        await call(received)
                assert other.in_flight == 0


async def test_a_callback_that_is_none_harms_no_other_message_of_its_batch(cluster, caplog):
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=Batching()) as producer:
        first = producer.submit(Message("t", b"x"))
        producer.submit(Message("t", b"x"), 3.0)  # meant as a time-out
        last = producer.submit(Message("t", b"x"))
        await asyncio.wait_for(producer.flush(), 60)
        assert [(await future).topic for future in (first, last)] == ["t", "t"]
        assert "the callback of a sent message cannot be called" in caplog.text
        caplog.clear()
        cluster.broker.script(Q.SEND_MESSAGE_V2, answer(R.MESSAGE_ILLEGAL, "no"))
        producer.submit(Message("t", b"x"), 3.0)
        await asyncio.wait_for(producer.flush(), 60)
        await asyncio.sleep(0)
        assert "cannot be called" in caplog.text


def test_the_blocking_producer_refuses_what_is_no_message_and_takes_no_room():
    with LocalCluster() as mq, sync.Producer("pg", namesrv=mq.namesrv) as producer:
        for wrong in (b"x", "x", None):
            for call in (producer.send, producer.submit):
                with pytest.raises(TypeError, match="Message"):
                    call(wrong)
        with pytest.raises(TypeError):
            producer.send_batch(b"x")
        with pytest.raises(ConfigError, match="callback"):
            producer.submit(Message("t", b"x"), 3.0)
        assert producer.in_flight == 0
        producer.send(Message("t", b"x"))
        (received,) = mq.messages("t", count=1)
        with pytest.raises(NotAMessage, match="make a Message of its topic"):
            producer.send(received)
        assert producer.in_flight == 0


# --- arguments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Producer("pg", namesrv=9876), "namesrv must be 'HOST:PORT' or a list"),
        (lambda: Producer("pg", namesrv=[9876]), "namesrv must be 'HOST:PORT' or a list"),
        (lambda: Producer("pg", namesrv=NAMESRV, timeout_s="3"), "timeout_s must be a number more than 0, not '3'"),
        (lambda: Producer("pg", namesrv=NAMESRV, timeout_s=float("nan")), "timeout_s must be a number more than 0, not nan"),
        (lambda: Producer("pg", namesrv=NAMESRV, retries="2"), "retries must be a whole number"),
        (lambda: Producer("pg", namesrv=NAMESRV, max_in_flight=1.5), "max_in_flight must be a whole number"),
        (lambda: Producer("pg", namesrv=NAMESRV, max_in_flight=True), "max_in_flight must be a whole number"),
        (lambda: Producer("pg", namesrv=NAMESRV, compress_over_bytes="4096"), "compress_over_bytes must be a whole number"),
        (lambda: AdminClient(namesrv=NAMESRV, timeout_s="5"), "timeout_s must be a number"),
        (lambda: AdminClient(namesrv=b"127.0.0.1:9876"), "namesrv must be"),
        (lambda: PushConsumer("cg", 5, namesrv=NAMESRV), "subscribe to a topic, a list of topics or a mapping"),
        (lambda: PushConsumer("cg", b"t", namesrv=NAMESRV), "topic 116 is not valid: it must be a str"),
        (lambda: PushConsumer("cg", ["t", 5], namesrv=NAMESRV), "topic 5 is not valid: it must be a str"),
        (lambda: PushConsumer("cg", {"t": ["a", "b"]}, namesrv=NAMESRV), "subscription .* is not valid: it must be text"),
        (lambda: PushConsumer("cg", "t", namesrv=NAMESRV, batch_max="32"), "batch_max must be a whole number from 1 to 1,024"),
        (lambda: PushConsumer("cg", "t", namesrv=NAMESRV, consume_timeout_s="9"), "consume_timeout_s must be a number more than 0"),
        (lambda: PushConsumer("cg", "t", namesrv=NAMESRV, suspend_s=0), "suspend_s must be a number more than 0"),
        (lambda: PushConsumer("cg", "t", namesrv=NAMESRV, max_cached="1"), "max_cached must be a whole number"),
        (lambda: PushConsumer("cg", "t", namesrv=NAMESRV, max_reconsume_times="1"), "max_reconsume_times must be a whole number"),
        (lambda: sync.PushConsumer("cg", "t", namesrv=9876), "namesrv must be"),
        (lambda: PushConsumer("cg", "t", namesrv=NAMESRV, orderly="no"), "orderly must be True or False, not 'no'"),
        (lambda: PullConsumer("cg", namesrv=NAMESRV, auto_commit=0), "auto_commit must be True or False, not 0"),
        (lambda: Producer("pg", namesrv=NAMESRV, auto_batch=Batching()), "auto_batch must be True or False"),
        (lambda: PullConsumer("cg", namesrv=NAMESRV, rebalance="fair"), "rebalance must be one of average, circle"),
        (lambda: Batching(adaptive="no"), "adaptive must be True or False, not 'no'"),
        (lambda: TlsConfig(verify="no"), "verify must be True or False, not 'no'"),
        (lambda: LocalCluster(secure="no"), "secure must be True or False, not 'no'"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused_by_name(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("module", [sprocketmq, sync], ids=["async", "sync"])
def test_a_client_is_not_copied_to_another_process(module, duplicate):
    for client in (
        module.Producer("pg", namesrv=NAMESRV),
        module.PushConsumer("cg", "t", namesrv=NAMESRV),
        module.PullConsumer("cg", namesrv=NAMESRV),
        module.AdminClient(namesrv=NAMESRV),
    ):
        with pytest.raises(TypeError, match=f"a {type(client).__name__} cannot be copied or sent to another process: make one there"):
            duplicate(client)


async def test_calls_with_arguments_of_a_wrong_type_are_refused_by_name(cluster):
    address = cluster.namesrv.address
    async with (
        Producer("pg", namesrv=address) as producer,
        Producer("pg", namesrv=address, auto_batch=True) as gathering,
        PullConsumer("cg", namesrv=address) as pull,
        AdminClient(namesrv=address) as admin,
        push(cluster) as consumer,
    ):
        for call, words in (
            (lambda: producer.send(Message("t", b"x"), timeout_s="3"), "timeout_s must be a number of seconds over 0, not '3'"),
            (lambda: producer.send(Message("t", b"x"), timeout_s=0), "timeout_s must be a number of seconds over 0, not 0"),
            (lambda: producer.send(Message("t", b"x"), timeout_s=True), "timeout_s must be a number of seconds over 0, not True"),
            (lambda: producer.send(Message("t", b"x", wait_store_ok="no")), "wait_store_ok must be True or False, not 'no'"),
            (lambda: producer.send_batch([Message("t", b"x", wait_store_ok=1)]), "wait_store_ok must be True or False, not 1"),
            (lambda: gathering.send(Message("t", b"x", wait_store_ok="no")), "wait_store_ok must be True or False, not 'no'"),
            (lambda: pull.pull("t", 0), "the queue must be a MessageQueue"),
            (lambda: pull.pull(QUEUE, "0"), "offset must be a whole number from 0 to .*, not '0'"),
            (lambda: pull.pull(QUEUE, 1.5), "offset must be a whole number from 0 to .*, not 1.5"),
            (lambda: pull.pull(QUEUE, 2**63), "offset must be a whole number from 0 to .*, not 9223372036854775808"),
            (lambda: pull.pull(QUEUE, 0, max_messages=1.5), "max_messages must be a whole number, 1 or more, not 1.5"),
            (lambda: pull.pull(QUEUE, 0, max_bytes=0), "max_bytes must be a whole number, 1 or more, not 0"),
            (lambda: pull.pull(QUEUE, 0, wait_ms=math.inf), "wait_ms must be a whole number from 0 to .*, not inf"),
            (lambda: pull.pull(QUEUE, 0, read_from="replica"), "read_from must be 'master', 'slave' or 'any', not 'replica'"),
            (lambda: pull.pull(QUEUE, 0, timeout_s=0), "timeout_s must be a number of seconds over 0, not 0"),
            (lambda: pull.commit(QUEUE, "0"), "offset must be a whole number"),
            (lambda: pull.commit(QUEUE, math.nan), "offset must be a whole number"),
            (lambda: pull.commit(QUEUE, 2**63), "offset must be a whole number"),
            (lambda: pull.offset_at(QUEUE, math.nan), "timestamp_ms must be a whole number"),
            (lambda: pull.offset_at(QUEUE, 2**70), "timestamp_ms must be a whole number"),
            (lambda: pull.poll(10**400), "no queues to poll"),
            (lambda: pull.max_offset("t"), "the queue must be a MessageQueue"),
            (lambda: pull.commit("t", 0), "the queue must be a MessageQueue"),
            (lambda: pull.assign(["t"]), "the queue must be a MessageQueue"),
            (lambda: pull.pull(QUEUE, 0, expression=5, expression_type="SQL92"), "is a string such as"),
            (lambda: admin.create_topic("u", queues="8"), "queues must be a whole number"),
            (lambda: admin.create_topic("u", attributes="queue.type=BatchCQ"), "attributes must be a mapping"),
            (lambda: admin.create_topic("u", attributes={"+queue.type": "BatchCQ"}), "write it as 'queue.type', without the sign"),
            (lambda: admin.reset_offset("g", "t", 0), "the queue must be a MessageQueue"),
            (lambda: admin.commit("g", QUEUE, "0"), "offset must be a whole number"),
            (lambda: admin.create_group("g", retry_queues="1"), "retry_queues must be a whole number"),
            (lambda: admin.create_group("g", enabled="no"), "enabled must be True or False, not 'no'"),
            (lambda: admin.delete_group("g", dead_letters="no"), "dead_letters must be True or False, not 'no'"),
        ):
            with pytest.raises(ConfigError, match=words):
                await call()
        with pytest.raises(ConfigError, match="read_from must be"):
            pull.prepare_pulls(QUEUE, max_bytes=1, read_from=None)
        with pytest.raises(ConfigError, match="offset must be a whole number"):
            consumer.seek(QUEUE, "0")
        with pytest.raises(ConfigError, match="the handler must be a function"):
            consumer.listen(None)
        with pytest.raises(ConfigError, match="concurrency must be a whole number"):
            consumer.listen(print, concurrency="2")


# --- tags, expressions, topics ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["a && b", "a||b", " a", "", "*"])
@pytest.mark.parametrize("batching", BATCHINGS, ids=repr)
async def test_a_tag_that_no_subscription_means_is_refused(cluster, tag, batching):
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=batching) as producer:
        with pytest.raises(InvalidName, match="tag"):
            await producer.send(Message("t", b"x", tag=tag))
        with pytest.raises(InvalidName, match="message 0 of the batch: tag"):
            await producer.send_batch([Message("t", b"x", tag=tag)])
        assert producer.in_flight == producer.batching_stats.held_bytes == 0


@pytest.mark.parametrize("expression", ["a && b", "a&&b", "* || a", "a || *"])
async def test_an_expression_that_is_meant_otherwise_is_refused(cluster, expression):
    with pytest.raises(InvalidName, match=r"join tags by '\|\|' only"):
        PushConsumer("cg", {"t": expression}, namesrv=NAMESRV)
    async with PullConsumer("cg", namesrv=cluster.namesrv.address) as consumer:
        for call in (
            lambda: consumer.subscribe({"t": expression}),
            lambda: consumer.assign([QUEUE], expression),
            lambda: consumer.pull(QUEUE, 0, expression=expression),
        ):
            with pytest.raises(InvalidName, match="a message has one tag"):
                await call()


@pytest.mark.parametrize("expression", ["a|b", "a | b"])
async def test_one_bar_between_tags_is_logged(caplog, expression):
    with caplog.at_level(logging.WARNING):
        PushConsumer("cg", {"t": expression}, namesrv=NAMESRV)
    assert f"has a tag with '|' in it, {expression!r}: to subscribe to several tags, write 'a || b'" in caplog.text


async def test_a_tag_with_a_blank_inside_is_sent_and_selected_as_one_and_logged(caplog):
    async with LocalCluster() as mq, Producer("pg", namesrv=mq.namesrv) as producer:
        for tag in ("a b", "a", "b"):
            await producer.send(Message("t", tag.encode(), tag=tag))
        with caplog.at_level(logging.WARNING):
            consumer = PushConsumer("cg", {"t": "a b || b"}, namesrv=mq.namesrv, consume_from="first")
        assert "has a tag with blanks in it, 'a b': to subscribe to several tags, write 'a || b'" in caplog.text
        async with consumer:
            assert sorted(await take(consumer, 2)) == [b"a b", b"b"]


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "rmq_sys_wheel_timer"])
@pytest.mark.parametrize("batching", BATCHINGS, ids=repr)
async def test_system_topics_take_no_messages(cluster, topic, batching):
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=batching) as producer:
        message = Message(topic, b"x")
        for call in (lambda: producer.send(message), lambda: producer.send_batch([message]), lambda: producer.submit(message)):
            with pytest.raises(InvalidName, match="topic"):
                await call()
        assert producer.in_flight == 0


async def test_system_topics_are_not_created(cluster):
    async with AdminClient(namesrv=cluster.namesrv.address) as admin:
        for topic in ("TBW102", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_mine", "SELF_TEST_TOPIC"):
            with pytest.raises(InvalidName, match="system topic"):
                await admin.create_topic(topic)


# --- listening ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_task_group_listens_with_run_and_is_told_so(run):
    async def main() -> list[bytes]:
        seen: list[bytes] = []

        async with LocalCluster() as mq:
            async with Producer("pg", namesrv=mq.namesrv) as producer:
                await producer.send(Message("t", b"x"))
            async with PushConsumer("cg", "t", namesrv=mq.namesrv, consume_from="first") as consumer:

                async def handle(batch) -> None:
                    seen.extend(m.body for m in batch)
                    task.cancel()

                async with asyncio.TaskGroup() as group:
                    task = group.create_task(consumer.run(handle))
                assert task.cancelled()
                assert not listeners(consumer)
                listening = consumer.listen(handle)
                with pytest.raises(ExceptionGroup) as e:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(listening)
                assert "create_task(consumer.run(handler))" in str(e.value.exceptions[0])
                assert not listening.done()
                listening.cancel()
                await asyncio.wait([listening])
                assert listening.cancelled()
        return seen

    assert run(main()) == [b"x"]


async def test_a_second_handler_is_refused_while_the_first_listens(cluster):
    async with push(cluster) as consumer:
        first = consumer.listen(lambda batch: None)
        with pytest.raises(ConfigError, match=r"group cg listens already.*concurrency.*cancel the task"):
            consumer.listen(lambda batch: None)
        first.cancel()
        second = consumer.listen(lambda batch: None)
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not second.done()


async def test_run_ends_when_the_consumer_is_closed_and_raises_what_ended_it(cluster):
    async with push(cluster) as consumer:
        running = asyncio.ensure_future(consumer.run(lambda batch: None))
        await asyncio.sleep(0)
    await asyncio.wait_for(running, 60)
    cluster.broker.on_PULL_MESSAGE = answer(R.NO_PERMISSION, "no")
    async with push(cluster) as consumer:
        with pytest.raises(SprocketError):
            await asyncio.wait_for(consumer.run(lambda batch: None), 60)
