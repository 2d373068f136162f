import asyncio
import gc
import logging

import pytest
from consuming import push, take
from fake_cluster import FakeCluster, answer, hang_up, silence
from tests.inside import held_messages, process_queues, run_due
from tests.waiting import stays

from sprocketmq.client import Producer, PushConsumer
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume import group_member, pull_loop, ready_queues
from sprocketmq.client.consume import push as push_module
from sprocketmq.clock import ManualClock
from sprocketmq.errors import BrokerError, ClientClosed, ConfigError, InvalidName
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.headers import PullRequest
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.testing import eventually

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)
    monkeypatch.setattr(pull_loop, "PULL_PAUSE_S", 0.001)
    monkeypatch.setattr(group_member, "REBALANCE_RETRY_S", 0.001)


async def fill(cluster: FakeCluster, amount: int, *, queue: int | None = None, tag: str | None = None, topic: str = "t") -> None:
    place = None if queue is None else MessageQueue(topic, "broker-a", queue)
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        for i in range(amount):
            await producer.send(Message(topic, b"%d" % i, tag=tag, queue=place))


def pulls_of_queue(cluster: FakeCluster) -> list[PullRequest]:
    pulls = [c.header(PullRequest) for c in cluster.broker.seen if c.code == Q.PULL_MESSAGE]
    return [pull for pull in pulls if (pull.topic, pull.queue_id) == ("t", 0)]


def broken_broker(cluster: FakeCluster) -> None:
    """Have nothing taken back and nothing published from now on."""
    cluster.broker.on_CONSUMER_SEND_MSG_BACK = answer(R.SYSTEM_ERROR, "no")
    cluster.broker.on_SEND_MESSAGE_V2 = answer(R.NO_PERMISSION, "no")


# --- joining ------------------------------------------------------------------------------------------------------------


async def test_a_single_member_consumes_every_queue_in_order(cluster):
    await fill(cluster, 20)
    async with push(cluster, batch_max=3) as consumer:
        seen: dict[MessageQueue, list[int]] = {}
        total = 0
        async for batch in consumer.batches():
            assert 1 <= len(batch) <= 3
            assert {m.queue_id for m in batch} == {batch.queue.queue_id}
            seen.setdefault(batch.queue, []).extend(m.queue_offset for m in batch)
            total += len(batch)
            if total == 20:
                batch.ack()
                break
        assert consumer.assignment == [MessageQueue("t", "broker-a", i) for i in range(4)]
    assert all(offsets == list(range(5)) for offsets in seen.values())
    assert len(seen) == 4
    assert cluster.broker.offsets == {("cg", "t", i): 5 for i in range(4)}


async def test_a_closed_consumer_keeps_no_messages(cluster):
    await fill(cluster, 20)
    async with push(cluster) as consumer:
        await eventually(lambda: held_messages(consumer, QUEUE) == 5)
    assert held_messages(consumer, QUEUE) == 0
    assert not any(cluster.broker.offsets.values())


async def test_the_heartbeat_describes_the_group(cluster):
    async with push(cluster, {"t": "a || b"}, consume_from="last"):
        consumer_data = cluster.broker.beats[0].consumer_data_set[0]
    assert (consumer_data.group_name, consumer_data.consume_type, consumer_data.message_model) == ("cg", "CONSUME_PASSIVELY", "CLUSTERING")
    assert consumer_data.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert [(s.topic, s.sub_string, s.tags_set) for s in consumer_data.subscription_data_set] == [
        ("t", "a || b", ["a", "b"]),
        ("%RETRY%cg", "*", []),
    ]


async def test_two_members_share_the_queues_and_the_rest_takes_over_when_one_leaves(cluster):
    await fill(cluster, 8)
    async with push(cluster) as first:
        await take(first, 8)
        async with push(cluster) as second:
            await eventually(lambda: len(first.assignment) == 2 and len(second.assignment) == 2)
            assert not set(first.assignment) & set(second.assignment)
            await fill(cluster, 8)
            got = await asyncio.gather(take(first, 4), take(second, 4))
            assert sorted(got[0] + got[1]) == sorted(b"%d" % i for i in range(8))
        await eventually(lambda: len(first.assignment) == 4)
        await fill(cluster, 8)
        assert len(await take(first, 8)) == 8


async def test_offsets_are_committed_when_a_queue_is_given_up(cluster):
    await fill(cluster, 8)
    async with push(cluster, clock=ManualClock()) as first:
        await take(first, 8)
        async with push(cluster) as second:
            await eventually(lambda: len(second.assignment) == 2)
            for queue in second.assignment:
                assert cluster.broker.offsets["cg", "t", queue.queue_id] == 2


async def test_a_queue_is_released_while_others_wait_for_their_previous_owner(cluster):
    await fill(cluster, 4)
    async with push(cluster, clock=ManualClock()) as consumer:
        await take(consumer, 4)
        members = cluster.broker.groups["cg"]
        (own_id,) = members

        def are_now(*others):
            members.update(dict.fromkeys(others, members[own_id]))
            for gone in members.keys() - {own_id, *others}:
                del members[gone]
            cluster.broker.notify("cg")

        are_now("x")
        await eventually(lambda: [queue.queue_id for queue in consumer.assignment] == [0, 1])
        asked = cluster.broker.count(Q.GET_CONSUMER_LIST_BY_GROUP)
        are_now()  # the clock stands still, so that two queues are waited for until the members change again
        await cluster.broker.until(lambda: cluster.broker.count(Q.GET_CONSUMER_LIST_BY_GROUP) > asked)
        are_now("x", "y", "z")
        await eventually(lambda: [queue.queue_id for queue in consumer.assignment] == [0])
        await eventually(lambda: cluster.broker.offsets.get(("cg", "t", 1)) == 1)


async def test_a_queue_of_which_nothing_was_consumed_is_released_without_a_request(cluster):
    async with push(cluster, clock=ManualClock()) as consumer:
        await cluster.broker.until(lambda: cluster.broker.count(Q.QUERY_CONSUMER_OFFSET) == 5)  # and the queue of retries
        members = cluster.broker.groups["cg"]
        members["x"] = next(iter(members.values()))
        cluster.broker.notify("cg")
        await eventually(lambda: [queue.queue_id for queue in consumer.assignment] == [0, 1])
        assert cluster.broker.count(Q.QUERY_CONSUMER_OFFSET) == 5
        assert cluster.broker.count(Q.UPDATE_CONSUMER_OFFSET) == 0


async def test_subscriptions_are_compared_once_for_many_changes_of_members(cluster):
    clock = ManualClock()
    async with push(cluster, clock=clock) as consumer:
        await eventually(lambda: len(consumer.assignment) == 4)
        members = cluster.broker.groups["cg"]
        compared = cluster.broker.count(Q.GET_CONSUMER_CONNECTION_LIST)

        async def joins(name):
            members[name] = next(iter(members.values()))
            listed = cluster.broker.count(Q.GET_CONSUMER_LIST_BY_GROUP)
            cluster.broker.notify("cg")
            await cluster.broker.until(lambda: cluster.broker.count(Q.GET_CONSUMER_LIST_BY_GROUP) > listed)

        for name in "uvwxyz":  # a round begins when the one before has compared
            await joins(name)
        assert cluster.broker.count(Q.GET_CONSUMER_CONNECTION_LIST) == compared + 1
        clock.advance(group_member.COMPARE_S)
        await joins("zz")
        await cluster.broker.until(lambda: cluster.broker.count(Q.GET_CONSUMER_CONNECTION_LIST) == compared + 2)


async def test_a_topic_that_does_not_exist_yet_is_waited_for(cluster, caplog):
    with caplog.at_level(logging.WARNING):
        async with push(cluster, ["later"]) as consumer:
            await cluster.namesrv.until(lambda: cluster.namesrv.count(Q.GET_ROUTEINFO_BY_TOPIC) > 4)
            cluster.put("later")
            await fill(cluster, 3, topic="later")
            assert len(await take(consumer, 3)) == 3
    assert caplog.text.count("does not exist yet") == 1


@pytest.mark.parametrize(
    ("committed", "level", "said"),
    [
        (None, logging.INFO, "consumer group cg: MessageQueue(topic='t', broker_name='broker-a', queue_id=0) begins at 3"),
        (1, logging.WARNING, "offset 1 of MessageQueue(topic='t', broker_name='broker-a', queue_id=0) is out of range, continuing at 3"),
    ],
)
async def test_messages_that_have_left_the_log_are_a_warning_for_a_group_that_was_behind_only(cluster, caplog, committed, level, said):
    await fill(cluster, 5, queue=0)
    cluster.broker.begins["t", 0] = 3
    if committed is not None:
        cluster.broker.offsets["cg", "t", 0] = committed
    with caplog.at_level(logging.INFO, "sprocketmq"):
        async with push(cluster) as consumer:
            assert await take(consumer, 2) == [b"3", b"4"]
    assert [record.levelno for record in caplog.records if said in record.getMessage()] == [level]


async def test_a_broker_that_does_not_know_the_group_yet_gets_a_heartbeat(cluster, caplog):
    await fill(cluster, 1)
    cluster.broker.script(Q.GET_CONSUMER_LIST_BY_GROUP, answer(R.SYSTEM_ERROR, "no consumer for this group, cg"))
    cluster.broker.script(Q.PULL_MESSAGE, *[answer(R.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")] * 4)
    async with push(cluster) as consumer:
        assert await take(consumer, 1) == [b"0"]
    assert cluster.broker.count(Q.HEART_BEAT) > 1
    assert "pull of" not in caplog.text


async def test_a_broker_restart_is_survived(cluster):
    await fill(cluster, 4)
    async with push(cluster) as consumer:
        await take(consumer, 4)
        await cluster.broker.stop()
        cluster.broker.groups.clear()
        await cluster.broker.restart()
        await fill(cluster, 4)
        assert len(await take(consumer, 4)) == 4


# --- where to start -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "offset"), [("first", 0), ("last", 5), (1_700_000_000.5, 1)])
async def test_a_new_group_starts_where_it_is_told(cluster, start, offset):
    await fill(cluster, 5, queue=0)
    async with push(cluster, consume_from=start) as consumer:
        await eventually(lambda: QUEUE in consumer.assignment)
        assert process_queues(consumer)[QUEUE].persisted == offset
    if not isinstance(start, str):
        header = next(c for c in cluster.broker.seen if c.code == Q.SEARCH_OFFSET_BY_TIMESTAMP)
        assert header.ext["timestamp"] == "1700000000500"


async def test_a_new_group_at_the_end_asks_for_the_offsets_and_the_ends_of_all_queues_together(cluster):
    await fill(cluster, 5, queue=0)
    async with push(cluster, consume_from="last") as consumer:
        await eventually(lambda: len(consumer.assignment) == 4)
        asked = [c.code for c in cluster.broker.seen if c.ext.get("topic") == "t"]
    assert [code for code in asked if code in (Q.QUERY_CONSUMER_OFFSET, Q.GET_MAX_OFFSET)] == [
        *[Q.QUERY_CONSUMER_OFFSET] * 4,
        *[Q.GET_MAX_OFFSET] * 4,
    ]


async def test_a_known_group_goes_on_where_it_was(cluster):
    await fill(cluster, 5, queue=0)
    cluster.broker.offsets["cg", "t", 0] = 3
    async with push(cluster) as consumer:
        assert await take(consumer, 2) == [b"3", b"4"]


async def test_an_offset_out_of_range_is_moved_as_the_broker_says(cluster):
    await fill(cluster, 5, queue=0)
    cluster.broker.offsets["cg", "t", 0] = 99
    async with push(cluster) as consumer:
        await eventually(lambda: QUEUE in consumer.assignment and process_queues(consumer)[QUEUE].next_offset == 5)
        await fill(cluster, 1, queue=0)
        assert await take(consumer, 1) == [b"0"]


async def test_a_start_offset_that_cannot_be_had_is_asked_again(cluster):
    await fill(cluster, 4)
    cluster.broker.script(Q.QUERY_CONSUMER_OFFSET, *[answer(R.SYSTEM_ERROR)] * 3)
    async with push(cluster) as consumer:
        assert len(await take(consumer, 4)) == 4


# --- delivery -----------------------------------------------------------------------------------------------------------


async def test_tags_are_checked_again_and_what_did_not_match_is_passed_over(cluster):
    await fill(cluster, 3, queue=0, tag="other")
    await fill(cluster, 2, queue=0, tag="mine")
    await fill(cluster, 1, queue=0, tag="other")
    async with push(cluster, {"t": "mine"}) as consumer:
        assert await take(consumer, 2) == [b"0", b"1"]
    assert cluster.broker.offsets["cg", "t", 0] == 6


async def test_a_loop_left_by_break_without_ack_gets_the_batch_again(cluster):
    await fill(cluster, 2, queue=0)
    async with push(cluster, batch_max=1) as consumer:
        async for batch in consumer.batches():
            assert batch[0].queue_offset == 0
            break
        assert await take(consumer, 1) == [b"0"]
    assert cluster.broker.offsets["cg", "t", 0] == 1


async def test_a_loop_left_by_an_exception_commits_nothing_of_its_batch(cluster):
    await fill(cluster, 3, queue=0)
    async with push(cluster, batch_max=1) as consumer:
        with pytest.raises(RuntimeError):
            async for batch in consumer.batches():
                if batch[0].queue_offset == 1:
                    raise RuntimeError("the handler's own")
    assert cluster.broker.offsets["cg", "t", 0] == 1
    async with push(cluster, batch_max=1) as consumer:
        assert await take(consumer, 2) == [b"1", b"2"]


async def test_a_loop_that_never_waits_leaves_the_event_loop_room(cluster, monkeypatch):
    monkeypatch.setattr(ready_queues, "YIELD_S", 0.0)
    await fill(cluster, 20, queue=0)
    turns = 0

    async def other_work():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with push(cluster, batch_max=1) as consumer:
        await eventually(lambda: held_messages(consumer, QUEUE) == 20)
        task = asyncio.ensure_future(other_work())
        assert await take(consumer, 20) == [b"%d" % i for i in range(20)]
        assert turns >= 20
        task.cancel()


async def test_listen_hands_every_batch_to_the_handler(cluster):
    await fill(cluster, 12)
    got: list[bytes] = []

    async def handler(batch):
        await asyncio.sleep(0)
        got.extend(m.body for m in batch)

    async with push(cluster, batch_max=2) as consumer:
        task = consumer.listen(handler, concurrency=3)
        await eventually(lambda: len(got) == 12)
    assert task.done()
    assert task.exception() is None
    assert {offset for (_, _, _), offset in cluster.broker.offsets.items()} == {3}


async def test_listen_takes_a_plain_function_and_runs_as_many_at_once_as_asked(cluster):
    await fill(cluster, 4)
    running = most = 0
    all_in = asyncio.Event()

    async def handler(batch):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 4:
            all_in.set()
        await all_in.wait()
        running -= 1

    async with push(cluster, batch_max=1) as consumer:
        consumer.listen(handler, concurrency=4)
        async with asyncio.timeout(60):
            await all_in.wait()
    assert most == 4
    got = []
    async with push(cluster, group="other") as consumer:
        consumer.listen(got.extend)
        await eventually(lambda: len(got) == 4)


async def test_workers_are_started_when_there_is_work_for_them(cluster):
    def workers():
        return sum(getattr(task.get_coro(), "__qualname__", "") == "Handlers._work" for task in asyncio.all_tasks())

    let_go = asyncio.Event()
    running = 0

    async def handler(batch):
        nonlocal running
        running += 1
        await let_go.wait()

    async with push(cluster, batch_max=1) as consumer:
        consumer.listen(handler, concurrency=20)
        await eventually(lambda: len(consumer.assignment) == 4)
        assert workers() == 1
        await fill(cluster, 5)
        await eventually(lambda: running == 5)
        assert workers() == 6
        let_go.set()
    assert workers() == 0


async def test_a_batch_that_no_broker_takes_back_is_there_after_a_restart(cluster):
    await fill(cluster, 2, queue=0)
    broken_broker(cluster)

    def broken(batch):
        raise ValueError

    async with push(cluster, batch_max=1) as consumer:
        consumer.listen(broken)
        await eventually(lambda: held_messages(consumer, QUEUE) == 2)
    assert cluster.broker.offsets.get(("cg", "t", 0), 0) == 0
    async with push(cluster) as consumer:
        assert await take(consumer, 2) == [b"0", b"1"]


async def test_pulling_pauses_while_too_much_waits_and_goes_on_when_it_is_consumed(cluster):
    await fill(cluster, 300, queue=0)
    async with push(cluster, max_cached=100, max_span=10_000) as consumer:
        await eventually(lambda: QUEUE in process_queues(consumer) and process_queues(consumer)[QUEUE].full)
        pulls = len(pulls_of_queue(cluster))
        assert held_messages(consumer, QUEUE) <= 100 + 50
        await stays(lambda: len(pulls_of_queue(cluster)) == pulls)
        assert len(await take(consumer, 300)) == 300


async def test_a_larger_batch_max_raises_the_pull_and_the_limits_with_it(cluster):
    await fill(cluster, 200, queue=0)
    async with push(cluster, batch_max=200, max_cached=1) as consumer:
        async for batch in consumer.batches():
            assert len(batch) == 200
            batch.ack()
            break
    header = next(c.header(PullRequest) for c in cluster.broker.seen if c.code == Q.PULL_MESSAGE)
    assert header.max_msg_nums == 200
    assert header.max_msg_bytes > 200 * 4096


# --- commits ------------------------------------------------------------------------------------------------------------


async def test_offsets_are_committed_every_5_seconds_one_way(cluster):
    clock = ManualClock()
    await fill(cluster, 4)
    async with push(cluster, clock=clock, batch_max=1) as consumer:
        await eventually(lambda: len(cluster.broker.held) == 5)
        await take(consumer, 4)
        assert cluster.broker.offsets == {}
        clock.advance(5)
        run_due(consumer)
        await cluster.broker.until(lambda: len(cluster.broker.offsets) == 4)
        assert all(c.is_oneway for c in cluster.broker.seen if c.code == Q.UPDATE_CONSUMER_OFFSET)


async def test_pulls_carry_the_offset_so_far(cluster):
    await fill(cluster, 1, queue=0)
    async with push(cluster) as consumer:
        await take(consumer, 1)
        await fill(cluster, 1, queue=0)
        await take(consumer, 1)
        await cluster.broker.until(lambda: cluster.broker.offsets.get(("cg", "t", 0)))
        header = next(c.header(PullRequest) for c in cluster.broker.seen if c.code == Q.PULL_MESSAGE and c.ext["commitOffset"] != "0")
        assert header.sys_flag == 3
        assert header.commit_offset >= 1


async def test_close_waits_for_running_handlers_and_commits_what_they_did(cluster):
    await fill(cluster, 1, queue=0)
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handler(batch):
        started.set()
        await go_on.wait()

    consumer = PushConsumer("cg", "t", namesrv=cluster.namesrv.address, consume_from="first")
    await consumer.start()
    consumer.listen(handler)
    await started.wait()
    closing = asyncio.ensure_future(consumer.close())
    await stays(lambda: not closing.done())
    go_on.set()
    await closing
    assert cluster.broker.offsets["cg", "t", 0] == 1
    assert cluster.broker.groups["cg"] == {}


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_handler_may_close_its_consumer(cluster, orderly):
    await fill(cluster, 3, queue=0)
    handled, again = [], []
    consumer = PushConsumer("cg", "t", namesrv=cluster.namesrv.address, consume_from="first", batch_max=1, orderly=orderly)

    async def handler(batch):
        handled.append(batch[0].body)
        await consumer.close()
        again.append(await asyncio.create_task(consumer.close()))

    async with consumer:
        await consumer.listen(handler)
    assert len(handled) == len(again) == 1
    assert cluster.broker.offsets["cg", "t", 0] == 1  # what the handler was called with is consumed when it returns
    assert cluster.broker.groups["cg"] == {}


async def test_close_gives_up_a_handler_that_hangs_says_so_and_does_not_commit_its_batch(cluster, monkeypatch, caplog):
    monkeypatch.setattr(push_module, "CLOSE_GRACE_S", 0.02)
    await fill(cluster, 1, queue=0)
    started = asyncio.Event()

    async def handler(batch):
        started.set()
        await asyncio.Event().wait()

    async with push(cluster) as consumer:
        task = consumer.listen(handler)
        await started.wait()
    assert task.cancelled()
    assert cluster.broker.offsets.get(("cg", "t", 0), 0) == 0
    assert "group cg: a handler did not end within 0.02 s of the close and is cancelled" in caplog.text


async def test_close_ends_a_listener_that_gives_way_to_other_tasks(cluster, monkeypatch):
    """It gives way between two batches; at that moment it holds no batch and waits for none."""
    clock = ManualClock()
    consumer = PushConsumer("cg", "t", namesrv=cluster.namesrv.address, clock=clock)
    await consumer.start()
    given_way = asyncio.Event()
    go_on = asyncio.Event()

    class Asyncio:
        def __getattr__(self, name):
            return getattr(asyncio, name)

        async def sleep(self, _):
            given_way.set()
            await go_on.wait()

    monkeypatch.setattr(ready_queues, "asyncio", Asyncio())
    listening = consumer.listen(print)
    await given_way.wait()
    closing = asyncio.ensure_future(consumer.close())
    await eventually(lambda: "closing" in repr(consumer))
    go_on.set()
    await closing
    assert not listening.cancelled()
    assert listening.result() is None


async def test_batches_ends_when_the_consumer_is_closed(cluster):
    consumer = PushConsumer("cg", "t", namesrv=cluster.namesrv.address)
    await consumer.start()

    async def read():
        return [batch async for batch in consumer.batches()]

    readers = [asyncio.ensure_future(read()) for _ in range(3)]
    await stays(lambda: not any(reader.done() for reader in readers))
    await consumer.close()
    assert await asyncio.gather(*readers) == [[], [], []]
    with pytest.raises(ClientClosed):
        consumer.listen(print)


# --- refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [23, 26, 16])
async def test_a_lasting_refusal_ends_batches_and_listen_with_its_error(cluster, code):
    for _ in range(40):
        cluster.broker.script(Q.PULL_MESSAGE, answer(code, "not for you"))
    async with push(cluster) as consumer:
        listening = consumer.listen(print)
        with pytest.raises(BrokerError, match="not for you"):
            async with asyncio.timeout(60):
                async for _ in consumer.batches():
                    pass
        with pytest.raises(BrokerError):
            await listening


async def test_a_refusal_that_ends_a_listener_is_raised_once_and_left_nowhere(cluster, caplog):
    cluster.broker.on_PULL_MESSAGE = answer(R.NO_PERMISSION, "not for you")
    async with push(cluster) as consumer:
        with pytest.raises(BrokerError, match="not for you"):
            await asyncio.wait_for(consumer.run(print, concurrency=5), 60)
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_faults_between_pulls_lose_nothing(cluster):
    await fill(cluster, 20, queue=0)
    cluster.broker.script(Q.PULL_MESSAGE, hang_up, answer(R.SYSTEM_BUSY), hang_up, answer(1, "boom"))
    async with push(cluster) as consumer:
        assert await take(consumer, 20) == [b"%d" % i for i in range(20)]


@pytest.mark.parametrize(
    ("group", "topics", "options"),
    [
        ("a b", "t", {}),
        ("g", {"a b": "*"}, {}),
        ("g", [], {}),
        ("g", "t", {"batch_max": 0}),
        ("g", "t", {"batch_max": 5000}),
        ("g", "t", {"consume_from": "middle"}),
        ("g", "t", {"consume_from": -1}),
        ("g", "t", {"max_span": 0}),
    ],
)
def test_bad_arguments_are_refused(group, topics, options):
    with pytest.raises(ConfigError):
        PushConsumer(group, topics, namesrv="127.0.0.1:1", **options)


@pytest.mark.parametrize("expression", ["||", {"queue.type": "BatchCQ"}, None, 3])
def test_a_bad_expression_is_refused(expression):
    with pytest.raises(InvalidName):
        PushConsumer("g", {"t": expression}, namesrv="127.0.0.1:1")


async def test_a_concurrency_below_one_is_refused(cluster):
    async with push(cluster) as consumer:
        with pytest.raises(ConfigError):
            consumer.listen(print, concurrency=0)


async def test_the_members_are_asked_for_once_for_topics_that_are_balanced_together(cluster):
    topics = [f"many{number}" for number in range(20)]
    for topic in topics:
        cluster.put(topic)
    async with push(cluster, topics, clock=ManualClock()) as consumer:
        await eventually(lambda: len(consumer.assignment) == 4 * len(topics))
        assert cluster.broker.count(Q.GET_CONSUMER_LIST_BY_GROUP) < len(topics)


async def test_a_list_of_members_that_does_not_come_is_asked_for_again(cluster):
    cluster.broker.script(Q.GET_CONSUMER_LIST_BY_GROUP, silence)
    async with push(cluster) as consumer:
        await eventually(lambda: len(consumer.assignment) == 4)


async def test_a_start_offset_that_is_refused_for_now_is_asked_for_again(cluster):
    cluster.broker.offsets["cg", "t", 2] = 1
    cluster.broker.script(Q.QUERY_CONSUMER_OFFSET, *[answer(R.SYSTEM_BUSY)] * 4)
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        for body in (b"consumed", b"next"):
            await producer.send(Message("t", body, queue=MessageQueue("t", "broker-a", 2)))
    async with push(cluster) as consumer:
        assert await take(consumer, 1) == [b"next"]
        await eventually(lambda: len(consumer.assignment) == 4)
