"""Hooks of clients: when each is called and with what, and that no hook harms a program."""

import asyncio
import contextvars
import threading

import msgspec
import pytest
from consuming import push, take
from fake_cluster import FakeCluster, answer

from sprocketmq import Batching, ClientHooks, Message, Producer, PullConsumer, PushConsumer, sync
from sprocketmq.client import hook_calls as hook_calls_module
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume import pull_loop
from sprocketmq.client.send import requests as requests_module
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import BrokerError, ConfigError, InvalidMessage, NotAMessage, TopicNotFound
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.testing import eventually

QUEUE = MessageQueue("t", "broker-a", 0)
LATE = Batching(max_delay_ms=30_000)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(requests_module, "RETRY_PAUSE_S", 0.001)
    monkeypatch.setattr(requests_module, "BUSY_PAUSE_S", 0.001)
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)
    monkeypatch.setattr(pull_loop, "PULL_PAUSE_S", 0.001)


class Recorder(ClientHooks):
    """Keeps every event, and gives each first method's token to the test."""

    def __init__(self) -> None:
        self.created: list[Message] = []
        self.began: list[object] = []
        self.events: list[tuple[str, object]] = []
        self.tokens: list[object] = []
        self.threads: set[int] = set()

    def of(self, name: str) -> list:
        return [event for kind, event in list(self.events) if kind == name]

    def message_created(self, message):
        self.threads.add(threading.get_ident())
        self.created.append(message)
        number = str(len(self.created))
        return msgspec.structs.replace(message, properties={**message.properties, "number": number})

    def sending(self, event):
        self.began.append(event)
        return len(self.began)

    def sent(self, event, token):
        self.tokens.append(token)
        self.events.append(("sent", event))

    def pulled(self, event):
        self.events.append(("pulled", event))

    def handling(self, event):
        self.began.append(event)
        return event.message_ids

    def handled(self, event, token):
        assert token == event.message_ids
        self.events.append(("handled", event))

    def given_back(self, event):
        self.events.append(("given back", event))


class Raising(ClientHooks):
    """Raises in every method."""

    def message_created(self, message):
        raise ValueError("the hook is broken")

    sending = pulled = handling = given_back = message_created

    def sent(self, event, token):
        raise AssertionError("its first method has raised, so this one is not called")

    handled = sent


async def stored(cluster: FakeCluster) -> list:
    """What the broker has, in the order of queues."""
    async with PullConsumer("reader", namesrv=cluster.namesrv.address) as consumer:
        found = []
        for queue in await consumer.queues("t"):
            found += (await consumer.pull(queue, 0, max_messages=1000)).messages
        return found


# --- sending ------------------------------------------------------------------------------------------------------------


async def test_a_send_is_one_event_with_its_message(cluster):
    hook = Recorder()
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[hook]) as producer:
        result = await producer.send(Message("t", b"body", queue=QUEUE, properties={"mine": "1"}))
    (event,) = hook.of("sent")
    assert (event.topic, event.group, event.message_count, event.body_bytes) == ("t", "pg", 1, 4)
    assert [dict(message.properties) for message in event.messages] == [{"mine": "1", "number": "1"}]
    assert list(event.message_ids) == [result.msg_id]
    assert (event.queue, event.address, event.tries) == (QUEUE, cluster.broker.address, 1)
    assert event.client_id
    assert event.error is None
    assert event.receipt.queue_offset == result.queue_offset
    assert event.duration_s >= 0
    assert not event.gathered
    assert hook.tokens == [1]
    assert hook.began[0].queue is None
    assert [message.properties["number"] for message in await stored(cluster)] == ["1"]


async def test_the_users_message_is_not_changed(cluster):
    message = Message("t", b"body")
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[Recorder()]) as producer:
        await producer.send(message)
        await producer.submit(message)
    assert not message.properties
    assert sorted(m.properties["number"] for m in await stored(cluster)) == ["1", "2"]


async def test_messages_are_seen_before_autobatch_encodes_them_and_their_batch_is_one_event(cluster):
    hook = Recorder()
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=LATE, hooks=[hook]) as producer:
        futures = [producer.submit(Message("t", b"%d" % i)) for i in range(3)]
        futures.append(asyncio.ensure_future(producer.send(Message("t", b"3"))))
        done = []
        producer.submit(Message("t", b"4"), lambda result, error: done.append((result, error)))
        await asyncio.sleep(0)
        await producer.flush()
        results = await asyncio.gather(*futures)
        await producer.send(Message("t", b"by itself"), timeout_s=30)
    batch, alone = hook.of("sent")
    assert (batch.message_count, batch.gathered, alone.message_count, alone.gathered) == (5, True, 1, False)
    assert sorted(message.body for message in batch.messages) == [b"0", b"1", b"2", b"3", b"4"]
    assert {result.msg_id for result in results} | {done[0][0].msg_id} == set(batch.message_ids)
    assert sorted(m.properties["number"] for m in await stored(cluster)) == ["1", "2", "3", "4", "5", "6"]


async def test_a_batch_of_one_and_an_adaptive_one_are_events_as_well(cluster):
    for batching in (LATE, Batching(adaptive=True)):
        hook = Recorder()
        async with Producer("pg", namesrv=cluster.namesrv.address, batching=batching, hooks=[hook]) as producer:
            future = producer.submit(Message("t", b"one"))
            await producer.flush()
            await future
        (event,) = hook.of("sent")
        assert (event.message_count, event.gathered, [m.body for m in event.messages]) == (1, True, [b"one"])


async def test_a_batch_in_several_requests_is_several_events(cluster):
    hook = Recorder()
    async with Producer("pg", namesrv=cluster.namesrv.address, max_message_bytes=500, hooks=[hook]) as producer:
        results = await producer.send_batch([Message("t", bytes([65 + i]) * 150) for i in range(6)])
        with pytest.raises(NotAMessage):
            await producer.send_batch([None])
    events = hook.of("sent")
    assert len(events) > 1
    assert [m.body[:1] for event in events for m in event.messages] == [b"A", b"B", b"C", b"D", b"E", b"F"]
    assert [i for event in events for i in event.message_ids] == [result.msg_id for result in results]


async def test_an_encoded_request_is_an_event_without_messages(cluster):
    hook = Recorder()
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[hook]) as producer:
        await producer.send_encoded("t", b"body", "UNIQ_KEY\x01abc\x02", batch=False)
        batch = encode_batch([(0, b"x", b"UNIQ_KEY\x01a\x02"), (0, b"y", b"UNIQ_KEY\x01b\x02")])
        await producer.send_encoded("t", batch, "UNIQ_KEY\x01abc\x02", batch=True)
        cluster.broker.script(Q.SEND_BATCH_MESSAGE, answer(R.MESSAGE_ILLEGAL, "no"))
        with pytest.raises(BrokerError):
            await producer.send_encoded("t", b"no batch", "UNIQ_KEY\x01abc\x02", batch=True)
    single, several, damaged = hook.of("sent")
    assert [event.message_count for event in (single, several, damaged)] == [1, 2, 1]
    assert (list(single.messages), list(single.message_ids)) == ([], [])


async def test_tries_and_errors_are_reported(cluster):
    hook = Recorder()
    busy, refused = answer(R.SYSTEM_BUSY, "busy"), answer(R.MESSAGE_ILLEGAL, "no")
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[hook]) as producer:
        cluster.broker.script(Q.SEND_MESSAGE_V2, busy, busy)
        await producer.send(Message("t", b"x"))
        cluster.broker.script(Q.SEND_MESSAGE_V2, refused)
        with pytest.raises(BrokerError):
            await producer.send(Message("t", b"x"))
        with pytest.raises(TopicNotFound):
            await producer.send(Message("nowhere", b"x"), timeout_s=30)
        task = asyncio.create_task(producer.send(Message("t", b"x")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    tried, failed, lost, cancelled = hook.of("sent")
    assert (tried.tries, tried.error) == (3, None)
    assert type(failed.error) is BrokerError
    assert type(lost.error) is TopicNotFound
    assert lost.queue is None
    assert type(cancelled.error) is asyncio.CancelledError


# --- consuming ----------------------------------------------------------------------------------------------------------


async def fill(cluster: FakeCluster, amount: int) -> None:
    async with Producer("filler", namesrv=cluster.namesrv.address) as producer:
        for i in range(amount):
            await producer.send(Message("t", b"%d" % i, queue=QUEUE))


async def test_pulls_handler_calls_and_give_backs_are_events(cluster):
    await fill(cluster, 3)
    hook, seen = Recorder(), []

    async def handler(batch):
        seen.extend(batch)
        if batch[0].body == b"0":
            batch.done(batch[0])
            raise ValueError("no")

    async with push(cluster, hooks=[hook], batch_max=2) as consumer:
        consumer.listen(handler)
        await eventually(lambda: hook.of("given back"))
        await eventually(lambda: len(hook.of("handled")) >= 2)
    pulled = [event for event in hook.of("pulled") if event.messages]
    assert sum(event.message_count for event in pulled) == 3
    assert all(event.queue == QUEUE and event.address == cluster.broker.address and event.error is None for event in pulled)
    failed = next(event for event in hook.of("handled") if event.error is not None)
    assert (failed.topic, failed.message_count, [m.body for m in failed.retried]) == ("t", 2, [b"1"])
    assert not failed.iterated
    other = next(event for event in hook.of("handled") if event.error is None)
    assert ([m.body for m in other.messages], list(other.retried)) == ([b"2"], [])
    (given,) = hook.of("given back")
    assert ([m.body for m in given.messages], list(given.failed), given.error) == ([b"1"], [], None)


async def test_a_context_variable_set_by_a_hook_is_seen_in_the_handler(cluster):
    await fill(cluster, 1)
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="")

    class Setter(ClientHooks):
        def handling(self, event):
            return var.set(event.message_ids[0])

        def handled(self, event, token):
            var.reset(token)

    seen = []
    async with push(cluster, hooks=[Setter()]) as consumer:
        consumer.listen(lambda batch: seen.append((var.get(), batch[0].msg_id)))
        await eventually(lambda: seen)
    assert seen[0][0] == seen[0][1]


async def test_iterating_reports_what_was_consumed_and_what_was_left(cluster):
    await fill(cluster, 3)
    hook = Recorder()
    async with push(cluster, hooks=[hook], batch_max=1) as consumer:
        async for batch in consumer.batches():
            if batch[0].body == b"1":
                break
        assert await take(consumer, 2) == [b"1", b"2"]
    assert [(event.messages[0].body, event.left, event.iterated) for event in hook.of("handled")] == [
        (b"0", False, True),
        (b"1", True, True),
        (b"1", False, True),
        (b"2", False, True),
    ]


async def test_pull_and_poll_are_events(cluster):
    await fill(cluster, 2)
    hook = Recorder()
    async with PullConsumer("cg", namesrv=cluster.namesrv.address, hooks=[hook], consume_from="first") as consumer:
        await consumer.pull(QUEUE, 0)
        await consumer.pull(QUEUE, 2)
        cluster.broker.script(Q.PULL_MESSAGE, answer(R.NO_PERMISSION, "no"))
        with pytest.raises(BrokerError):
            await consumer.pull(QUEUE, 0)
        await consumer.assign([QUEUE])
        assert len(await consumer.poll()) == 2
    full, empty, refused, polled = hook.of("pulled")[:4]
    assert [full.message_count, empty.message_count, polled.message_count] == [2, 0, 2]
    assert type(refused.error) is BrokerError


async def test_orderly_dead_letters_are_given_back(cluster):
    await fill(cluster, 1)
    cluster.namesrv.put("%RETRY%cg", cluster.broker)
    hook = Recorder()

    def handler(batch):
        raise ValueError("no")

    async with push(cluster, hooks=[hook], orderly=True, max_reconsume_times=0) as consumer:
        consumer.listen(handler)
        await eventually(lambda: hook.of("given back"))
    event = hook.of("given back")[0]
    assert (event.dead_letters, event.message_count) == (True, 1)


# --- the blocking clients -----------------------------------------------------------------------------------------------


def test_blocking_clients_call_hooks_in_the_thread_of_the_caller_and_show_handlers_their_context():
    sending, consuming, seen = Recorder(), Recorder(), []
    var: contextvars.ContextVar[str] = contextvars.ContextVar("blocking", default="")

    class Setter(ClientHooks):
        def handling(self, event):
            var.set("set by a hook")

    with LocalCluster() as cluster:
        with sync.Producer("pg", namesrv=cluster.namesrv, hooks=[sending]) as producer:
            producer.send(Message("t", b"1"))
            producer.submit(Message("t", b"2")).result()
            producer.submit(Message("t", b"3"), lambda result, error: None)
            producer.flush()
        assert sending.threads == {threading.get_ident()}
        assert len(sending.of("sent")) == 3
        with sync.PushConsumer(
            "cg", "t", namesrv=cluster.namesrv, consume_from="first", batch_max=1, hooks=[consuming, Setter()]
        ) as consumer:
            bodies = set()
            for batch in consumer.batches():
                bodies.add(batch[0].body)
                if len(bodies) == 3:
                    batch.ack()
                    break
        assert [(event.iterated, event.left) for event in consuming.of("handled")] == [(True, False)] * 3
        with sync.PushConsumer("another", "t", namesrv=cluster.namesrv, consume_from="first", hooks=[Setter()]) as consumer:
            done = threading.Event()

            def handler(batch):
                seen.append((threading.get_ident(), var.get()))
                done.set()

            consumer.listen(handler)
            assert done.wait(30)
    assert seen[0][0] != threading.get_ident()
    assert seen[0][1] == "set by a hook"


# --- bad hooks ----------------------------------------------------------------------------------------------------------


async def test_a_hook_that_raises_everywhere_is_logged_once_and_harms_nobody(cluster, caplog):
    hook, working = Raising(), Recorder()
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[hook, working]) as producer:
        for i in range(3):
            await producer.send(Message("t", b"%d" % i, queue=QUEUE))
    assert [m.body for m in await stored(cluster)] == [b"0", b"1", b"2"]
    assert len(working.of("sent")) == 3
    async with push(cluster, hooks=[hook]) as consumer:
        assert await take(consumer, 3) == [b"0", b"1", b"2"]
    logged = [record for record in caplog.records if "the hook Raising." in record.getMessage()]
    assert len(logged) == 2  # once for each client
    assert "the hook is broken" in caplog.text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topic": "another"}, "another topic"),
        ({"body": b"another"}, "another body"),
        ({"queue": MessageQueue("t", "broker-a", 1)}, "another queue"),
        ({"delay_level": 3}, "another delay_level"),
        ({"properties": {"UNIQ_KEY": "mine"}}, "'UNIQ_KEY', which cannot be sent"),
        ({"properties": {"a": "x\x02y"}}, "cannot be sent"),
        ({"properties": {"": "x"}}, "cannot be sent"),
        ({"properties": {"a": 1}}, "cannot be sent"),
        ({"properties": {"a": "\ud800"}}, "text that cannot be sent"),
        ({"properties": None}, "not a mapping"),
        ({"properties": {"large": "x" * 40_000}}, "over the limit"),
    ],
)
@pytest.mark.parametrize("batching", [None, LATE])
async def test_a_message_that_a_hook_may_not_make_is_sent_as_it_was(cluster, caplog, change, reason, batching):
    class Changing(ClientHooks):
        def message_created(self, message):
            return msgspec.structs.replace(message, **change)

    async with Producer("pg", namesrv=cluster.namesrv.address, batching=batching, hooks=[Changing()]) as producer:
        future = producer.submit(Message("t", b"body", queue=QUEUE))
        await producer.flush()
        await future
    (message,) = await stored(cluster)
    assert (message.body, message.queue_id) == (b"body", 0)
    assert reason in caplog.text


async def test_a_message_that_a_hook_changes_in_place_is_restored(cluster, caplog):
    class Changing(ClientHooks):
        def message_created(self, message):
            message.topic, message.body = "another", b"another"

    message = Message("t", b"body")
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[Changing()]) as producer:
        await producer.send(message)
    assert (message.topic, message.body) == ("t", b"body")
    assert [m.body for m in await stored(cluster)] == [b"body"]
    assert "changed the field 'topic'" in caplog.text


async def test_a_hook_that_returns_no_message_changes_nothing(cluster, caplog):
    class Odd(ClientHooks):
        def message_created(self, message):
            return "text"

    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[Odd()]) as producer:
        await producer.send(Message("t", b"body"))
    assert [m.body for m in await stored(cluster)] == [b"body"]
    assert "returned a str and no Message" in caplog.text


async def test_errors_of_messages_are_the_same_with_hooks(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[Recorder()]) as producer:
        with pytest.raises(NotAMessage):
            await producer.send("text")
        with pytest.raises(NotAMessage):
            producer.submit(None)
        with pytest.raises(InvalidMessage, match="empty"):
            await producer.send(Message("t", b""))
        with pytest.raises(InvalidMessage, match="properties must be"):
            await producer.send(Message("t", b"x", properties=5))


async def test_a_hook_that_blocks_is_logged_once(cluster, caplog, monkeypatch):
    monkeypatch.setattr(hook_calls_module, "SLOW_S", -1.0)
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[Recorder()]) as producer:
        await producer.send(Message("t", b"body"))
    assert caplog.text.count("hooks must not block") == 1


class Async(ClientHooks):
    async def sent(self, event, token):
        pass


@pytest.mark.parametrize(
    ("hooks", "reason"), [([object()], "derived from ClientHooks"), (Recorder(), "a list"), (None, "a list"), ([Async()], "coroutine")]
)
@pytest.mark.parametrize("make", [Producer, PullConsumer, lambda group, **more: PushConsumer(group, "t", **more)])
def test_what_is_no_hook_is_refused(make, hooks, reason):
    with pytest.raises(ConfigError, match=reason):
        make("g", namesrv="127.0.0.1:9876", hooks=hooks)


async def test_only_what_a_hook_overrides_is_called(cluster):
    class Pulls(ClientHooks):
        pass

    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[Pulls()], batching=LATE) as producer:
        future = producer.submit(Message("t", b"body"))
        await producer.flush()
        await future
    async with push(cluster, hooks=[Pulls()]) as consumer:
        assert await take(consumer, 1) == [b"body"]
