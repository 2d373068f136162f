"""Messages that a consumer refuses come again after the right delays, the right number of times, and then are dead letters, once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
from tests.interop.apache import ConsumerOptions, JavaClient
from tests.interop.compare import INNER, assert_same_views, our_view
from tests.interop.reading import dead_letters, java_pull_all, pull_all, until_readable
from tests.interop.sides import RETRY_DELAYS_S, Side, until

from sprocketmq import AdminClient, PushConsumer
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.testing import eventually

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TIMES = len(RETRY_DELAYS_S)
# What two readings of the machine's clock may be apart, as they are rounded to milliseconds.
CLOCKS_MS = 5


def bodies(count: int) -> list[bytes]:
    """Return bodies of which every fifth is one that consumers of these tests refuse."""
    return [b"%b %d" % (b"bad" if number % 5 == 2 else b"good", number) for number in range(count)]


async def send_described(java: JavaClient, side: Side, topic: str, count: int, *, in_batches: bool) -> list[dict[str, Any]]:
    """Send messages with tags, keys and properties; return how both clients read them."""
    described = [
        {"topic": topic, "body": body, "tag": "TagA", "keys": [f"key-{number}"], "properties": {"number": str(number)}, "flag": number}
        for number, body in enumerate(bodies(count))
    ]
    if in_batches:
        for start in range(0, count, 10):
            await asyncio.to_thread(java.send_batch, side.namesrv, described[start : start + 10])
    else:
        await asyncio.to_thread(java.send, side.namesrv, described)
    await until_readable(side.namesrv, topic, count)
    return await pull_all(side.namesrv, topic)


async def committed(side: Side, group: str, topic: str) -> None:
    """Wait until the broker has what a Java consumer committed when it stopped: it does so one-way, and others' questions may overtake it."""

    async def whole() -> bool:
        queues = (await admin.progress(group, topic)).queues
        return bool(queues) and all(queue.committed_offset == queue.end_offset for queue in queues)

    async with AdminClient(namesrv=side.namesrv) as admin:
        await eventually(whole)


def assert_delivered(received: Sequence[Mapping[str, Any]], sent: Sequence[Mapping[str, Any]], times: int = TIMES) -> None:
    """Assert that a Java consumer got what it refused `times` times again, each after its delay, and all else once."""
    attempts: dict[bytes, list[Mapping[str, Any]]] = {}
    for message in sorted(received, key=lambda message: message["received_ms"]):
        attempts.setdefault(message["body"], []).append(message)
    assert set(attempts) == {view["body"] for view in sent}
    for view in sent:
        came = attempts[view["body"]]
        assert [message["reconsume_times"] for message in came] == list(range(times + 1 if view["body"].startswith(b"bad") else 1))
        for message in came:
            assert (message["topic"], message["msg_id"]) == (view["topic"], view["msg_id"])
            assert_same_content(message, view)
        waited = [after["received_ms"] - before["received_ms"] for before, after in pairwise(came)]
        assert all(took >= delay * 1000 - CLOCKS_MS for took, delay in zip(waited, RETRY_DELAYS_S, strict=False)), waited


def assert_same_content(found: Mapping[str, Any], view: Mapping[str, Any]) -> None:
    """Assert that a message has everything its sender set."""
    for name in ("body", "tag", "flag"):
        assert found[name] == view[name]
    keys = found["keys"].split() if isinstance(found["keys"], str) else found["keys"]
    assert keys == view["keys"]
    assert found["properties"]["number"] == view["properties"]["number"]


def assert_dead(found: Sequence[Mapping[str, Any]], sent: Sequence[Mapping[str, Any]], times: int = TIMES) -> None:
    """Assert that the dead letters are the refused messages, once each, and say where they are from."""
    refused = {view["msg_id"]: view for view in sent if view["body"].startswith(b"bad")}
    assert sorted(view["msg_id"] for view in found) == sorted(refused)
    for view in found:
        origin = refused[view["msg_id"]]
        assert_same_content(view, origin)
        assert view["reconsume_times"] == times + 1
        assert view["properties"]["RETRY_TOPIC"] == origin["topic"]
        assert view["properties"]["ORIGIN_MESSAGE_ID"] in {origin["offset_msg_id"], origin["msg_id"]}
        assert not view["sys_flag"] & INNER


@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_what_java_listeners_refuse_ends_among_the_dead_letters(java: JavaClient, side: Side, batch_queues: bool) -> None:
    topic = await side.create_topic(f"JavaRefuses_{batch_queues}", batch_queues=batch_queues)
    sent = await send_described(java, side, topic, 30, in_batches=batch_queues)
    refused = sum(view["body"].startswith(b"bad") for view in sent)
    with ExitStack() as running:
        consumers = {}
        for how in ("later", "exception", "null"):
            group = f"java_{how}_{batch_queues}"
            options: ConsumerOptions = {"refuse": "bad.*", "refuse_by": how, "max_reconsume_times": TIMES}
            consumers[group] = running.enter_context(java.push_consumer(side.namesrv, group, topic, **options))
        received = {group: await asyncio.to_thread(consumer.take, len(sent) + TIMES * refused) for group, consumer in consumers.items()}
        dead = {group: await dead_letters(side.namesrv, group, refused) for group in consumers}
    for group, consumer in consumers.items():
        assert_delivered(received[group] + consumer.rest, sent)
        assert_dead(dead[group], sent)
        assert_same_views(java_pull_all(java, side.namesrv, f"%DLQ%{group}"), dead[group])


class PythonListener:
    """A handler of ours that refuses the bad messages in one of the ways that there are, and what it received."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.received: list[dict[str, Any]] = []

    def __call__(self, batch: ReceivedBatch) -> None:
        self.received += [{**our_view(message), "received_ms": SYSTEM_CLOCK.time_ms()} for message in batch]
        bad = [message for message in batch if message.body.startswith(b"bad")]
        if self.how == "accept" or not bad:
            return
        if self.how == "retry":
            for message in bad:
                batch.retry(message)
        elif self.how == "give up":
            for message in bad:
                batch.retry(message, -1)
        else:
            for message in batch:
                if message not in bad:
                    batch.done(message)
            raise RuntimeError("refused by the test")

    async def has(self, count: int) -> None:
        """Wait until it received that many."""
        await until(f"{count} messages", lambda: len(self.received) >= count)


@contextlib.asynccontextmanager
async def listening(side: Side, group: str, topic: str, how: str, **options: Any) -> AsyncIterator[PythonListener]:
    """Run a push consumer of ours, from the first offset, with a listener of that kind."""
    async with PushConsumer(group, {topic: "*"}, namesrv=side.namesrv, consume_from="first", **options) as consumer:
        listener = PythonListener(how)
        consumer.listen(listener)
        yield listener


@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_what_python_handlers_refuse_ends_among_the_dead_letters(java: JavaClient, side: Side, batch_queues: bool) -> None:
    topic = await side.create_topic(f"PythonRefuses_{batch_queues}", batch_queues=batch_queues)
    sent = await send_described(java, side, topic, 30, in_batches=batch_queues)
    refused = sum(view["body"].startswith(b"bad") for view in sent)
    async with contextlib.AsyncExitStack() as running:
        listeners = {}
        for how in ("retry", "raise"):
            group = f"python_{how}_{batch_queues}"
            listeners[group] = await running.enter_async_context(listening(side, group, topic, how, max_reconsume_times=TIMES))
        for listener in listeners.values():
            await listener.has(len(sent) + TIMES * refused)
        dead = {group: await dead_letters(side.namesrv, group, refused) for group in listeners}
    for group, listener in listeners.items():
        assert_delivered(listener.received, sent)
        assert_dead(dead[group], sent)
        assert_same_views(java_pull_all(java, side.namesrv, f"%DLQ%{group}"), dead[group])


@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_a_message_can_be_given_up_at_once(java: JavaClient, side: Side, batch_queues: bool) -> None:
    topic = await side.create_topic(f"GivenUp_{batch_queues}", batch_queues=batch_queues)
    sent = await send_described(java, side, topic, 10, in_batches=batch_queues)
    refused = sum(view["body"].startswith(b"bad") for view in sent)
    # Apache's broker takes no message of a batch back, and what its client publishes instead has forgotten that it is given up.
    forgotten = batch_queues and side.make == "apaches"
    mine_group, java_group = f"python_gives_up_{batch_queues}", f"java_gives_up_{batch_queues}"
    with java.push_consumer(side.namesrv, java_group, topic, refuse="bad.*", refuse_times=1, delay_level=-1) as theirs:
        async with listening(side, mine_group, topic, "give up") as mine:
            await mine.has(len(sent))
            assert_dead(await dead_letters(side.namesrv, mine_group, refused), sent, times=0)
        received = await asyncio.to_thread(theirs.take, len(sent) + (refused if forgotten else 0))
        if not forgotten:
            assert_dead(await dead_letters(side.namesrv, java_group, refused), sent, times=0)
    assert_delivered(mine.received, sent, times=0)
    assert_delivered(received + theirs.rest, sent, times=1 if forgotten else 0)


@pytest.mark.parametrize("batch_queues", [False, True], ids=["plain", "batch queues"])
async def test_what_one_make_of_member_refused_waits_for_the_next_session_of_the_other(
    java: JavaClient, side: Side, batch_queues: bool
) -> None:
    topic, group = await side.create_topic(f"Sessions_{batch_queues}", batch_queues=batch_queues), f"sessions_{batch_queues}"
    sent = await send_described(java, side, topic, 20, in_batches=batch_queues)
    bad = {view["body"]: view for view in sent if view["body"].startswith(b"bad")}
    with java.push_consumer(side.namesrv, group, topic, refuse="bad.*", delay_level=2) as first:  # the longest: it is gone by then
        assert len(await asyncio.to_thread(first.take, len(sent))) == len(sent)
        await eventually(lambda: first.held() == 0)
    await committed(side, group, topic)
    async with listening(side, group, topic, "retry") as second:
        await second.has(len(bad))
    with java.push_consumer(side.namesrv, group, topic) as third:
        received = await asyncio.to_thread(third.take, len(bad))
        await eventually(lambda: third.held() == 0)
    await committed(side, group, f"%RETRY%{group}")
    async with listening(side, group, topic, "accept") as fourth:
        (last,) = await asyncio.to_thread(java.send, side.namesrv, [{"topic": topic, "body": b"last"}])
        await fourth.has(1)
    assert [message["msg_id"] for message in fourth.received] == [last["msg_id"]], "what the others accepted does not come again"
    for times, messages in ((1, second.received), (2, received + third.rest)):
        assert sorted(message["body"] for message in messages) == sorted(bad)
        for message in messages:
            assert (message["topic"], message["msg_id"], message["reconsume_times"]) == (topic, bad[message["body"]]["msg_id"], times)
            assert_same_content(message, bad[message["body"]])


async def test_an_orderly_java_listener_gives_up_a_message_after_its_tries_and_goes_on(java: JavaClient, side: Side) -> None:
    topic = await side.create_topic("OrderlyGivesUp", queues=1)
    sent = await send_described(java, side, topic, 10, in_batches=False)
    refused = sum(view["body"].startswith(b"bad") for view in sent)
    options: ConsumerOptions = {"orderly": True, "refuse": "bad.*", "max_reconsume_times": 2}
    with java.push_consumer(side.namesrv, "orderly_gives_up", topic, **options) as consumer:
        received = await asyncio.to_thread(consumer.take, len(sent) + 2 * refused)
        dead = await dead_letters(side.namesrv, "orderly_gives_up", refused)
    came = [message["body"] for message in received + consumer.rest]
    expected = [body for view in sent for body in [view["body"]] * (3 if view["body"].startswith(b"bad") else 1)]
    assert came == expected
    assert_dead(dead, sent, times=2)
