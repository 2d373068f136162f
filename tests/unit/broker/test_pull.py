"""Pulls: what is found, what is refused, who waits and what wakes them."""

import asyncio
from collections import Counter

import pytest
from tests.inside import queue_of

from sprocketmq.broker import held_pulls
from sprocketmq.broker.checked_pull import response_code
from sprocketmq.errors import ConnectionLost
from sprocketmq.protocol.hashing import java_hash
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.store import ReadStatus
from sprocketmq.testing import eventually


async def held(broker, count):
    """Wait until ``count`` pulls wait."""
    await eventually(lambda: broker.pulls.held_count == count, what=f"{count} pulls that wait")


def fields(answer):
    return (answer.code, answer.remark, *(int(answer.ext[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset")))


@pytest.mark.parametrize(
    ("status", "offset", "code"),
    [
        (ReadStatus.FOUND, 0, 0),
        (ReadStatus.NO_MATCHED_MESSAGE, 3, 20),
        (ReadStatus.MESSAGE_WAS_REMOVING, 3, 20),
        (ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 19),
        (ReadStatus.NO_MESSAGE_IN_QUEUE, 3, 21),
        (ReadStatus.OFFSET_OVERFLOW_ONE, 3, 19),
        (ReadStatus.OFFSET_OVERFLOW_BADLY, 3, 21),
        (ReadStatus.OFFSET_TOO_SMALL, 3, 21),
    ],
)
def test_each_status_has_its_code(status, offset, code):
    assert response_code(status, offset) == code


async def test_messages_come_in_queue_order_with_where_to_go_on(ask):
    for n in range(5):
        await ask.send("orders", b"%d" % n)
    answer = await ask.pull("orders", 1, count=3)
    assert fields(answer) == (0, "FOUND", 4, 0, 5)
    assert answer.ext == {**answer.ext, "suggestWhichBrokerId": "0", "topicSysFlag": "0", "groupSysFlag": "0"}
    assert [(bytes(m.body), m.queue_offset) for m in decode_records(answer.body)] == [(b"1", 1), (b"2", 2), (b"3", 3)]


async def test_lite_pulls_are_pulls(ask):
    await ask.send("orders", b"x")
    answer = await ask(361, ask.pull_ext("orders", 0, sysFlag="22"))
    assert len(decode_records(answer.body)) == 1


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (2, (19, "OFFSET_OVERFLOW_ONE", 2, 0, 2)),
        (3, (21, "OFFSET_OVERFLOW_BADLY", 2, 0, 2)),
        (-1, (21, "OFFSET_TOO_SMALL", 0, 0, 2)),
        (2**63 - 1, (21, "OFFSET_OVERFLOW_BADLY", 2, 0, 2)),
    ],
)
async def test_offsets_outside_the_queue(ask, offset, expected):
    for _ in range(2):
        await ask.send("orders")
    assert fields(await ask.pull("orders", offset)) == expected


async def test_an_empty_queue(ask):
    assert fields(await ask.pull("orders", 0)) == (19, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)
    assert (await ask.pull("orders", 1)).code == 21


async def test_tags_filter_by_hash(ask):
    assert java_hash("Aa") == java_hash("BB")
    for tag in ("Aa", "x", "BB", "y"):
        await ask.send("orders", tag.encode(), properties=f"TAGS\x01{tag}\x02")
    assert await ask.bodies("orders", expression="x || y") == [b"x", b"y"]
    assert await ask.bodies("orders", expression="Aa") == [b"Aa", b"BB"]
    answer = await ask.pull("orders", 0, expression="nothing")
    assert fields(answer) == (20, "NO_MATCHED_MESSAGE", 4, 0, 4)


async def test_bytes_and_count_are_bounded_but_one_message_always_comes(start_broker, connect):
    ask = await connect(await start_broker(max_transfer_count=3, max_transfer_bytes=2000))
    for n in range(6):
        await ask.send("orders", bytes([n]) * 700)
    assert len(await ask.bodies("orders", count=100)) == 2
    assert len(await ask.bodies("orders", count=100, maxMsgBytes="1")) == 1
    assert len(await ask.bodies("orders", count=0)) == 1
    assert len(await ask.bodies("orders", count=-5)) == 1
    assert len(await ask.bodies("orders", maxMsgBytes="2147483647")) == 2
    for _ in range(6):
        await ask.send("small", b"x", queue=0)
    assert len(await ask.bodies("small", count=100)) == 3


# --- refusals -----------------------------------------------------------------------------------------------------------


async def test_an_unknown_topic(ask):
    answer = await ask.pull("unknown", 0)
    assert (answer.code, answer.ext) == (17, {})
    assert answer.remark.startswith("topic[unknown] not exist, apply first please! \n")


@pytest.mark.parametrize("queue", [-1, 4, 2**31 - 1])
async def test_a_queue_the_topic_does_not_have(ask, queue):
    answer = await ask.pull("orders", 0, queue=queue)
    assert answer.code == 29
    assert answer.remark.startswith(f"queueId[{queue}] is illegal, topic:[orders] topicConfig.readQueueNums:[4] consumer:[/127.0.0.1:")


async def test_a_topic_that_may_not_be_read(ask, broker):
    broker.topics.create_internal("writeonly", 1, perm=2)
    answer = await ask.pull("writeonly", 0)
    assert (answer.code, answer.ext) == (16, {"forbiddenType": "3"})


async def test_a_group_that_may_not_consume(ask, broker):
    group = broker.groups.find("cg")
    group.consume_enable = False
    answer = await ask.pull("orders", 0)
    assert (answer.code, answer.ext, answer.remark) == (16, {"forbiddenType": "2"}, "subscription group no permission, cg")


async def test_a_group_that_does_not_exist(start_broker, connect):
    ask = await connect(await start_broker(auto_create_group=False))
    answer = await ask.pull("TBW102", 0)
    assert answer.code == 26
    assert answer.remark.startswith("subscription group [cg] does not exist")


@pytest.mark.parametrize("group", ["", "bad group", "g" * 121])
async def test_a_group_name_that_is_none(ask, group):
    assert (await ask.pull("orders", 0, group=group)).code == 29


async def test_expressions_that_cannot_be_served(ask):
    answer = await ask.pull("orders", 0, expression="||")
    assert (answer.code, answer.remark) == (23, "parse the consumer's subscription failed")


async def test_without_a_subscription_of_its_own_a_pull_takes_the_groups(ask):
    def pull(**more):
        return ask.pull("orders", 0, sysFlag="0", **more)

    answer = await pull()
    assert (answer.code, answer.remark.partition("\n")[0]) == (24, "the consumer's group info not exist")
    await ask.heartbeat(consumers=["cg"], topics=["other"])
    answer = await pull()
    assert (answer.code, answer.remark.partition("\n")[0]) == (24, "the consumer's subscription not exist")
    await ask.heartbeat(consumers=["cg"], expression="a", version=5)
    answer = await pull(subVersion="6")
    assert (answer.code, answer.remark) == (25, "the consumer's subscription not latest")
    await ask.send("orders", b"a", properties="TAGS\x01a\x02")
    await ask.send("orders", b"b", properties="TAGS\x01b\x02")
    answer = await pull(subVersion="5")
    assert [bytes(m.body) for m in decode_records(answer.body)] == [b"a"]


async def test_broadcasting_can_be_forbidden(ask, broker):
    await ask.heartbeat(consumers=["cg"], message_model="BROADCASTING")
    broker.groups.get("cg").consume_broadcast_enable = False
    answer = await ask.pull("orders", 0, sysFlag="0")
    assert (answer.code, answer.ext) == (16, {"forbiddenType": "4"})


async def test_a_pull_may_commit_an_offset(ask, broker):
    await ask.pull("orders", 0, sysFlag="5", commitOffset="7")
    assert broker.offsets.get("cg", "orders", 0) == 7
    await ask.pull("orders", 0, sysFlag="4", commitOffset="9")
    await ask.pull("orders", 0, sysFlag="5", commitOffset="-1")
    assert broker.offsets.get("cg", "orders", 0) == 7


# --- waiting ------------------------------------------------------------------------------------------------------------


async def test_a_waiting_pull_is_woken_by_a_message(ask, broker):
    waiting = ask.pull("orders", 0, wait_ms=30_000)
    await held(broker, 1)
    assert not waiting.done()
    await ask.send("orders", b"at last")
    answer = await waiting
    assert fields(answer) == (0, "FOUND", 1, 0, 1)
    assert [bytes(m.body) for m in decode_records(answer.body)] == [b"at last"]
    assert broker.pulls.held_count == 0


async def test_all_who_wait_on_a_queue_are_woken_and_nobody_else(ask, broker, connect):
    other = await connect(broker)
    waiting = [ask.pull("orders", 0, wait_ms=30_000), other.pull("orders", 0, wait_ms=30_000, group="other")]
    elsewhere = other.pull("orders", 0, queue=1, wait_ms=30_000)
    await held(broker, 3)
    await ask.send("orders", b"x")
    assert [(await pull).code for pull in waiting] == [0, 0]
    assert not elsewhere.done()
    assert broker.pulls.held_count == 1


async def test_messages_with_other_tags_do_not_wake(ask, broker):
    waiting = ask.pull("orders", 0, expression="mine", wait_ms=30_000)
    await held(broker, 1)
    for _ in range(3):
        await ask.send("orders", b"theirs", properties="TAGS\x01theirs\x02")
    assert not waiting.done()
    await ask.send("orders", b"mine", properties="TAGS\x01mine\x02")
    answer = await waiting
    assert fields(answer) == (0, "FOUND", 4, 0, 4)
    assert [bytes(m.body) for m in decode_records(answer.body)] == [b"mine"]


async def test_a_batch_of_other_tags_does_not_wake_and_the_deadline_tells_how_far_it_got(ask, broker, clock):
    waiting = ask.pull("orders", 0, expression="mine", wait_ms=1000)
    await held(broker, 1)
    await ask.send_batch("orders", [b"a", b"b"], each=b"TAGS\x01theirs\x02")
    assert not waiting.done()
    clock.advance(1.2)
    broker.pulls.held.expire()
    assert fields(await waiting) == (19, "OFFSET_OVERFLOW_ONE", 2, 0, 2)


async def test_a_batch_with_the_tag_wakes(ask, broker):
    waiting = ask.pull("orders", 0, expression="mine", wait_ms=30_000)
    await held(broker, 1)
    await ask.send_batch("orders", [b"a", b"b"], each=b"TAGS\x01mine\x02")
    assert len(decode_records((await waiting).body)) == 2


async def test_a_pull_waits_until_its_deadline_and_no_longer(ask, broker, clock):
    short = ask.pull("orders", 0, wait_ms=1000)
    long = ask.pull("orders", 0, queue=1, wait_ms=5000)
    await held(broker, 2)
    clock.advance(0.9)
    broker.pulls.held.expire()
    await asyncio.sleep(0)
    assert not short.done()
    clock.advance(0.3)
    broker.pulls.held.expire()
    assert fields(await short) == (19, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)
    assert not long.done()
    clock.advance(4.0)
    broker.pulls.held.expire()
    assert (await long).code == 19
    assert broker.pulls.held_count == 0


async def test_the_deadline_comes_by_itself(start_broker, connect):
    from sprocketmq.broker import Broker
    from sprocketmq.clock import SYSTEM_CLOCK

    broker = await start_broker(clock=SYSTEM_CLOCK)
    broker.topics.create_internal("orders", 1)
    ask = await connect(broker)
    answer = await asyncio.wait_for(ask.pull("orders", 0, wait_ms=50), 60)
    assert answer.code == 19
    assert isinstance(broker, Broker)


async def test_a_wait_has_an_upper_limit(ask, broker, clock):
    waiting = ask.pull("orders", 0, wait_ms=2**62)
    await held(broker, 1)
    clock.advance(121)
    broker.pulls.held.expire()
    assert (await waiting).code == 19


@pytest.mark.parametrize("offset", [5, -1])
async def test_what_is_not_at_the_end_does_not_wait(ask, broker, offset):
    await ask.send("orders")
    assert (await ask.pull("orders", offset, wait_ms=30_000)).code == 21
    assert (await ask.pull("orders", 0, expression="nothing", wait_ms=30_000)).code == 20
    assert broker.pulls.held_count == 0


async def test_a_lost_connection_takes_its_pulls_along(ask, broker, connect):
    other = await connect(broker)
    lost = [other.pull("orders", 0, queue=queue, wait_ms=30_000) for queue in range(4)]
    stays = ask.pull("orders", 0, wait_ms=30_000)
    await held(broker, 5)
    await other.close()
    await held(broker, 1)
    await asyncio.gather(*lost, return_exceptions=True)
    await ask.send("orders")
    assert (await stays).code == 0
    assert broker.pulls.held.deadlines == {}
    assert broker.topics.get("orders").held == {}


async def test_a_deleted_topic_wakes_who_waits_for_it(ask, broker):
    waiting = ask.pull("orders", 0, wait_ms=30_000)
    await held(broker, 1)
    assert (await ask(215, {"topic": "orders"})).code == 0
    assert (await waiting).code == 17
    assert broker.pulls.held_count == 0


async def test_the_number_of_waiting_pulls_is_bounded(start_broker, connect):
    broker = await start_broker(max_held_pulls=2)
    broker.topics.create_internal("orders", 4)
    ask = await connect(broker)
    waiting = [ask.pull("orders", 0, queue=queue, wait_ms=30_000) for queue in range(2)]
    answer = await ask.pull("orders", 0, queue=2, wait_ms=30_000)
    assert (answer.code, answer.remark) == (2, "[OVERLOAD]system busy, start flow control for a while")
    await ask.send("orders", queue=0)
    assert (await waiting[0]).code == 0


async def test_many_waiting_pulls_share_one_timer(ask, broker):
    waiting = [ask.pull("orders", 0, queue=n % 4, wait_ms=1000 + n * 10) for n in range(100)]
    await held(broker, 100)
    assert len(broker.pulls.held.deadlines) <= 12
    for queue in range(4):
        await ask.send("orders", queue=queue)
    assert {(await pull).code for pull in waiting} == {0}
    assert broker.pulls.held.deadlines == {}


async def test_a_client_that_does_not_read_gets_no_more_data(start_broker, connect):
    """Pulls behind a full socket are told to come again; memory stays bounded."""
    broker = await start_broker()
    ask = await connect(broker)
    for _ in range(4):
        await ask.send("big", bytes(1 << 20), queue=0)
    answers = await asyncio.gather(*(ask.pull("big", 0) for _ in range(40)))
    codes = [answer.code for answer in answers]
    assert set(codes) == {0, 20}
    assert 5 <= codes.count(0) <= 12
    refused = next(answer for answer in answers if answer.code == 20)
    assert refused.ext["nextBeginOffset"] == "0"
    assert (await ask.pull("big", 0)).code == 0


async def test_an_earlier_deadline_comes_first(start_broker, connect):
    from sprocketmq.clock import SYSTEM_CLOCK

    broker = await start_broker(clock=SYSTEM_CLOCK)
    broker.topics.create_internal("orders", 2)
    ask = await connect(broker)
    late = ask.pull("orders", 0, wait_ms=400)
    early = ask.pull("orders", 0, queue=1, wait_ms=50)
    assert (await asyncio.wait_for(early, 60)).code == 19
    assert not late.done()
    assert (await asyncio.wait_for(late, 60)).code == 19


# --- long scans -----------------------------------------------------------------------------------------------------------


class Turns:
    """Counts the turns of the loop and, for each, the work of the reads for held pulls."""

    def __init__(self, broker, monkeypatch):
        self.now = 0
        self.work = Counter()
        self.reads = Counter()
        read = broker.store.read

        def counted(*arguments, **options):
            result = read(*arguments, **options)
            self.work[self.now] += result.work + held_pulls.READ_WORK
            self.reads[self.now] += 1
            return result

        monkeypatch.setattr(broker.store, "read", counted)
        self._next()

    def _next(self):
        self.now += 1
        asyncio.get_running_loop().call_soon(self._next)


@pytest.fixture
async def narrow(start_broker, monkeypatch):
    """A broker that looks at 4 units a read and at about 20 a turn, with topic ``rare`` of one queue."""
    monkeypatch.setattr(held_pulls, "TURN_WORK", 20)
    monkeypatch.setattr(held_pulls, "READ_WORK", 1)
    broker = await start_broker("narrow", store={"max_filter_units": 4})
    broker.topics.create_internal("rare", 1)
    return broker


def stage(broker, topic, tag, count=1):
    """Store messages as if sent, without telling the waiting pulls."""
    for _ in range(count):
        common = {"tags_code": java_hash(tag), "born_timestamp_ms": 1, "born_host": b"12345678"}
        broker.store.stage_message(topic, 0, tag.encode(), f"TAGS\x01{tag}\x02".encode(), **common)
    broker.store.commit()


async def wait_for_mine(client, broker, others=300):
    """Return a pull for the tag ``mine`` that waits behind so many messages of other tags."""
    waiting = client.pull("rare", 0, expression="mine", count=1, wait_ms=30_000)
    await held(broker, 1)
    stage(broker, "rare", "theirs", others)
    return waiting


def wake(broker):
    broker.pulls.arrived(broker.topics.get("rare"), 0, None)


async def test_a_long_scan_for_a_rare_tag_takes_a_bounded_part_of_each_turn(narrow, connect, monkeypatch):
    client = await connect(narrow)
    waiting = await wait_for_mine(client, narrow)
    stage(narrow, "rare", "mine")
    turns = Turns(narrow, monkeypatch)
    wake(narrow)
    answer = await waiting
    assert [bytes(m.body) for m in decode_records(answer.body)] == [b"mine"]
    assert max(turns.work.values()) <= 20 + 5
    assert sum(turns.reads.values()) == 301 // 4 + 1
    assert len(turns.reads) >= 15
    assert narrow.pulls.held_count == 0


async def test_other_connections_have_their_turn_during_a_long_scan(narrow, connect):
    client, other = await connect(narrow), await connect(narrow)
    assert (await other.send("orders")).code == 0  # makes the topic, which waits for a thread that saves the table of topics
    waiting = await wait_for_mine(client, narrow, 5000)
    stage(narrow, "rare", "mine")
    wake(narrow)
    assert (await other.send("orders")).code == 0
    assert not waiting.done()
    assert (await waiting).code == 0


async def test_several_long_scans_advance_together(narrow, connect):
    clients = [await connect(narrow) for _ in range(3)]
    pulls = [client.pull("rare", 0, expression="mine", count=1, wait_ms=30_000) for client in clients]
    await held(narrow, 3)
    stage(narrow, "rare", "theirs", 300)
    wake(narrow)
    assert narrow.pulls.held_count == 3
    for _ in range(5):
        offsets = sorted(p.offset for p in narrow.topics.get("rare").held[0])
        assert offsets[-1] - offsets[0] <= 4
        await asyncio.sleep(0)
    stage(narrow, "rare", "mine")
    assert [(await answer).code for answer in pulls] == [0, 0, 0]


async def test_a_scan_that_finds_nothing_waits_at_the_end_and_misses_nothing_that_comes_later(narrow, connect):
    client = await connect(narrow)
    waiting = await wait_for_mine(client, narrow)
    wake(narrow)
    await eventually(lambda: next(iter(narrow.topics.get("rare").held[0])).offset == 300)
    assert narrow.pulls.held_count == 1
    await client.send("rare", b"mine", properties="TAGS\x01mine\x02")
    answer = await waiting
    assert [bytes(m.body) for m in decode_records(answer.body)] == [b"mine"]


async def test_messages_that_arrive_during_a_scan_are_delivered_once(narrow, connect):
    client = await connect(narrow)
    waiting = await wait_for_mine(client, narrow)
    wake(narrow)
    stage(narrow, "rare", "mine")
    wake(narrow)
    wake(narrow)
    answer = await waiting
    assert fields(answer)[0] == 0
    assert [m.queue_offset for m in decode_records(answer.body)] == [300]
    assert fields(await client.pull("rare", 301, expression="mine")) == (19, "OFFSET_OVERFLOW_ONE", 301, 0, 301)


@pytest.mark.parametrize("end", ["connection", "topic", "broker"])
async def test_what_ends_during_a_scan_is_left_alone(narrow, connect, end):
    client = await connect(narrow)
    waiting = await wait_for_mine(client, narrow, 5000)
    stage(narrow, "rare", "mine")
    wake(narrow)
    if end == "connection":
        await client.close()
        await held(narrow, 0)
    elif end == "topic":
        other = await connect(narrow)
        assert (await other(215, {"topic": "rare"})).code == 0
        assert (await waiting).code == 17
    else:
        await narrow.stop()
    if end != "topic":
        with pytest.raises(ConnectionLost):
            await waiting
    assert narrow.pulls.held_count == 0 or end == "broker"


async def test_a_queue_that_shrinks_during_a_scan_tells_where_it_begins(narrow, connect):
    client = await connect(narrow)
    waiting = await wait_for_mine(client, narrow)
    wake(narrow)
    queue_of(narrow.store, "rare", 0).min_offset = 250  # as the deletion of old segments leaves it
    assert fields(await waiting) == (21, "OFFSET_TOO_SMALL", 250, 250, 300)


async def test_a_deadline_during_a_scan_answers_with_where_it_got_to(narrow, connect, clock):
    client = await connect(narrow)
    waiting = await wait_for_mine(client, narrow, 5000)
    wake(narrow)
    clock.advance(31)
    narrow.pulls.held.expire()
    answer = await waiting
    assert answer.code == 20
    assert 0 < int(answer.ext["nextBeginOffset"]) < 5000
    assert narrow.pulls.held_count == 0


async def test_thousands_of_deadlines_are_answered_over_several_turns(narrow, connect, clock, monkeypatch):
    client = await connect(narrow)
    pulls = [client.pull("rare", 0, wait_ms=30_000) for _ in range(300)]
    await held(narrow, 300)
    turns = Turns(narrow, monkeypatch)
    clock.advance(31)
    narrow.pulls.held.expire()
    assert {(await answer).code for answer in pulls} == {19}
    assert max(turns.reads.values()) <= 20
    assert narrow.pulls.held_count == 0


async def test_a_wake_up_scans_past_many_messages_of_other_tags(ask, broker, start_broker, connect):
    from sprocketmq.broker import Broker, BrokerConfig
    from sprocketmq.storage.store import StoreConfig

    config = BrokerConfig(store=StoreConfig(root=broker.config.store.root.parent / "few", preallocate=False, max_filter_units=4), port=0)
    few = Broker(config, clock=broker.clock)
    await few.start()
    few.topics.create_internal("orders", 1)
    client = await connect(few)
    waiting = client.pull("orders", 0, expression="mine", count=1, wait_ms=30_000)
    await held(few, 1)
    for _ in range(20):
        await client.send("orders", b"theirs", properties="TAGS\x01theirs\x02")
    await client.send("orders", b"mine", properties="TAGS\x01mine\x02")
    answer = await waiting
    assert [bytes(m.body) for m in decode_records(answer.body)] == [b"mine"]
    await client.close()
    await few.stop()
