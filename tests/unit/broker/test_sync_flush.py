"""SYNC_FLUSH: sends are answered when the disk has them, or is late, or fails; and what is bounded meanwhile."""

import asyncio

import pytest
from asking import exchange
from tests.inside import unsent

from sprocketmq.errors import ConnectionLost, StoreFailed, StoreWriteFailed
from sprocketmq.net.link import Link
from sprocketmq.protocol.bodies import RuntimeInfo
from sprocketmq.protocol.command import Command, encode_command
from sprocketmq.protocol.records import pack_host
from sprocketmq.testing import eventually

SYNC = {"flush_disk_type": "SYNC_FLUSH"}
HOST = pack_host("127.0.0.1", 40000)


@pytest.fixture
async def start(start_broker, disk, connect):
    """Start a broker with SYNC_FLUSH on the slow disk, with topic ``orders``, and return it and a connection."""

    async def start(*, store=SYNC, **settings):
        broker = await start_broker("sync", disk=disk, store=store, **settings)
        broker.topics.create_internal("orders", 4)
        return broker, await connect(broker)

    yield start
    disk.let_go()


def send(ask, body=b"body", **options):
    fields = {key: options.pop(key) for key in list(options) if key not in ("queue", "properties")}
    return ask.request(310, ask.send_ext("orders", **options, **fields), body)


# --- the answer ---------------------------------------------------------------------------------------------------------


async def test_a_send_is_answered_when_the_disk_has_it(start, disk):
    broker, ask = await start()
    disk.hold()
    waiting = send(ask)
    await eventually(lambda: disk.flushes)
    assert broker.acks.waiting == 1
    assert not waiting.done()
    disk.let_go()
    answer = await waiting
    assert (answer.code, answer.remark, answer.ext["queueOffset"]) == (0, None, "0")
    assert answer.ext.keys() == {"queueId", "transactionId", "msgId", "TRACE_ON", "MSG_REGION", "queueOffset"}
    assert broker.unflushed_bytes == 0
    assert broker.acks.waiting == 0


async def test_a_flush_that_takes_a_second_is_logged(start, disk, clock, said):
    _, ask = await start()
    disk.hold()
    waiting = send(ask)
    await eventually(lambda: disk.flushes)
    clock.advance(1.5)
    disk.let_go()
    assert (await waiting).code == 0
    assert said("slow_flush") == ["slow_flush took_s=1.5"]


async def test_batches_wait_as_well(start, disk):
    broker, ask = await start()
    disk.hold()
    waiting = asyncio.ensure_future(ask.send_batch("orders", [b"a", b"b"]))
    await eventually(lambda: disk.flushes)
    assert broker.acks.waiting == 1
    disk.let_go()
    assert (await waiting).ext["msgId"].count(",") == 1


async def test_sends_that_come_while_the_disk_works_share_the_next_flush(start, disk, connect):
    broker, ask = await start()
    asks = [ask, *[await connect(broker) for _ in range(4)]]
    disk.hold()
    first = send(ask)
    await eventually(lambda: disk.flushes == 1)
    others = [send(asks[n % 5], queue=n % 4) for n in range(50)]
    await eventually(lambda: broker.acks.waiting == 51)
    disk.let_go()
    answers = await asyncio.gather(first, *others)
    assert {answer.code for answer in answers} == {0}
    assert disk.flushes == 2


async def test_answers_of_one_flush_leave_in_one_write_per_connection(start, disk, monkeypatch):
    broker, ask = await start()
    frames = b"".join(encode_command(Command(310, opaque=n, ext=ask.send_ext("orders"), body=b"x")) for n in range(20))
    disk.hold()
    answering = asyncio.ensure_future(exchange(broker.address, frames, answers=20))
    await eventually(lambda: broker.acks.waiting == 20)
    writes = []
    flush = Link.flush

    def counted(link):
        if unsent(link):
            writes.append(len(unsent(link)))
        flush(link)

    monkeypatch.setattr(Link, "flush", counted)
    disk.let_go()
    answers = await answering
    assert sorted(answer.opaque for answer in answers) == list(range(20))
    assert writes == [20]


@pytest.mark.parametrize("fields", [{"properties": "WAIT\x01false\x02"}, {"properties": "KEYS\x01k\x02WAIT\x01no\x02"}])
async def test_a_message_that_does_not_want_to_wait_is_answered_when_it_is_written(start, disk, fields):
    broker, ask = await start()
    disk.hold()
    assert (await send(ask, **fields)).code == 0
    await eventually(lambda: disk.flushes == 1)  # the disk is asked all the same
    assert broker.acks.waiting == 0


async def test_one_way_sends_keep_nobody_waiting(start, disk):
    broker, ask = await start()
    disk.hold()
    frames = encode_command(Command(310, opaque=1, flag=2, ext=ask.send_ext("orders"), body=b"quiet"))
    frames += encode_command(Command(31, opaque=2, ext={"topic": "orders", "queueId": "0"}))
    await exchange(broker.address, frames)
    assert broker.acks.waiting == 0
    assert broker.unflushed_bytes > 0


async def test_what_waits_and_how_long_flushes_take_is_told(start, disk, clock):
    broker, ask = await start(max_waiting_sends=77)
    assert (await send(ask)).code == 0
    disk.hold()
    waiting = send(ask)
    await eventually(lambda: disk.flushes == 2)
    clock.advance(1.5)
    table = RuntimeInfo.decode((await ask(28)).body).table
    assert (table["flushDiskType"], table["flushTimesTotal"], table["diskWritable"]) == ("SYNC_FLUSH", "1", "true")
    names = ("sendThreadPoolQueueSize", "sendThreadPoolQueueHeadWaitTimeMills", "sendThreadPoolQueueCapacity")
    assert [table[name] for name in names] == ["1", "1500", "77"]
    assert table["remainHowManyDataToFlush"] == f"{broker.unflushed_bytes} B" != "0 B"
    disk.let_go()
    await waiting
    await eventually(lambda: broker.flusher.count == 2)
    table = RuntimeInfo.decode((await ask(28)).body).table
    assert (table["flushTimesTotal"], table["flushEntireTimeMax"], table["flushTimeAverage"]) == ("2", "1500.0", "750.000")
    assert [table[name] for name in names] == ["0", "0", "77"]


async def test_asynchronous_flushing_waits_for_nothing(start, disk):
    broker, ask = await start(store={"flush_disk_type": "ASYNC_FLUSH"}, flush_interval_s=0.001)
    disk.hold()
    for _ in range(3):
        assert (await send(ask)).code == 0
    await eventually(lambda: disk.flushes == 1)
    assert (await send(ask)).code == 0
    assert await ask.bodies("orders") == [b"body"] * 4
    assert broker.acks.waiting == 0


# --- what readers see ---------------------------------------------------------------------------------------------------


async def test_readers_see_a_message_when_the_disk_has_it(start, disk):
    broker, ask = await start()
    disk.hold()
    sending = send(ask, b"late")
    await eventually(lambda: disk.flushes)
    assert broker.store.max_offset("orders", 0) == 0
    assert await ask.bodies("orders") == []
    waiting = asyncio.ensure_future(ask.bodies("orders", wait_ms=20_000))
    await eventually(lambda: broker.pulls.held_count == 1)
    disk.let_go()
    assert await waiting == [b"late"]
    assert (await sending).code == 0


async def test_a_pull_is_woken_by_the_flush_that_covers_what_it_waits_for(start, disk):
    broker, ask = await start()
    disk.hold()
    first = send(ask, b"a", queue=1)
    await eventually(lambda: disk.flushes == 1)
    second = send(ask, b"b", queue=2, properties="TAGS\x01t\x02")
    third = send(ask, b"c", queue=2, properties="TAGS\x01u\x02")
    await eventually(lambda: broker.acks.waiting == 3)
    pulls = [
        asyncio.ensure_future(ask.bodies("orders", wait_ms=20_000, queue=queue, expression=expression))
        for queue, expression in ((1, "*"), (2, "*"), (2, "u"))
    ]
    await eventually(lambda: broker.pulls.held_count == 3)
    disk.let_go()
    assert await asyncio.gather(*pulls) == [[b"a"], [b"b", b"c"], [b"c"]]
    assert {answer.code for answer in await asyncio.gather(first, second, third)} == {0}


async def test_readers_of_uncommitted_messages_see_them_at_once(start, disk):
    broker, ask = await start(store={**SYNC, "read_uncommitted": True})
    waiting = asyncio.ensure_future(ask.bodies("orders", wait_ms=20_000))
    await eventually(lambda: broker.pulls.held_count == 1)
    disk.hold()
    sending = send(ask, b"early")
    assert await waiting == [b"early"]
    assert not sending.done()
    disk.let_go()
    assert (await sending).code == 0


# --- late and lost ------------------------------------------------------------------------------------------------------


async def test_a_send_that_waits_too_long_is_told_so_and_is_stored(start, disk, clock):
    broker, ask = await start(sync_flush_timeout_s=3.0)
    disk.hold()
    early = send(ask, b"early")
    await eventually(lambda: broker.acks.waiting == 1)
    clock.advance(2.0)
    later = send(ask, b"later")
    await eventually(lambda: broker.acks.waiting == 2)
    clock.advance(1.0)
    broker.flusher.expire()
    answer = await early
    assert (answer.code, answer.remark, answer.ext["queueOffset"]) == (10, None, "0")
    assert answer.ext.keys() == {"queueId", "transactionId", "msgId", "TRACE_ON", "MSG_REGION", "queueOffset"}
    assert not later.done()
    disk.let_go()
    assert (await later).code == 0
    assert await ask.bodies("orders") == [b"early", b"later"]


async def test_lateness_is_noticed_without_being_asked(start, disk, clock):
    broker, ask = await start(sync_flush_timeout_s=0.02)
    disk.hold()
    waiting = send(ask)
    await eventually(lambda: broker.acks.waiting == 1)
    clock.advance(0.02)  # the timer looks again and again until then
    assert (await waiting).code == 10


async def test_when_a_flush_fails_everything_that_waits_is_refused_and_so_is_all_after_it(start, disk):
    broker, ask = await start()
    assert (await send(ask, b"safe")).code == 0
    disk.hold()
    waiting = [send(ask, b"lost") for _ in range(3)]
    await eventually(lambda: broker.acks.waiting == 3)
    disk.fail()
    answers = await asyncio.gather(*waiting)
    assert [answer.code for answer in answers] == [14] * 3
    assert all("the disk failed" in answer.remark for answer in answers)
    assert isinstance(await asyncio.wait_for(broker.wait_failed(), 60), StoreFailed)
    disk.error = 0
    for properties in ("", "WAIT\x01false\x02"):
        assert (await send(ask, properties=properties)).code == 14
    assert await ask.bodies("orders") == [b"safe"]
    assert broker.acks.waiting == 0


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_send_that_is_written_while_a_flush_fails_is_not_acknowledged(start, disk, mode):
    broker, ask = await start(store={"flush_disk_type": mode})
    assert (await send(ask, b"before")).code == 0

    def flush_fails():
        disk.error = 5
        with pytest.raises(StoreFailed):
            broker.store.flush()

    disk.before_write = flush_fails
    assert (await send(ask, b"meanwhile")).code == 14
    assert await ask.bodies("orders") == [b"before"]
    assert isinstance(broker.failure, StoreFailed)  # serve ends with an error


async def test_a_flush_that_ends_in_a_surprise_is_a_failed_one(start, monkeypatch):
    broker, ask = await start()
    monkeypatch.setattr(broker.store, "flush_log", lambda: 1 / 0)
    assert (await send(ask)).code == 14
    assert "ZeroDivisionError" in str(broker.failure)
    monkeypatch.undo()


async def test_sends_do_not_wait_for_the_queues_on_their_way_to_the_disk(start, disk):
    broker, ask = await start()
    assert (await send(ask)).code == 0
    disk.hold_queues()
    broker.flusher.settle()
    await eventually(lambda: disk.queue_flushes)
    for _ in range(3):
        assert (await send(ask)).code == 0
    assert broker.flusher.settled_end < broker.flusher.flushed_end
    broker.flusher.settle()  # one at a time
    disk.let_go()
    await eventually(lambda: broker.flusher.settled_end > 0)


async def test_a_log_that_grew_much_is_settled_without_being_asked(start, monkeypatch):
    monkeypatch.setattr("sprocketmq.storage.maintenance.SNAPSHOT_EVERY_BYTES", 10_000)
    monkeypatch.setattr("sprocketmq.storage.maintenance.SNAPSHOT_EVERY_BYTES_A_QUEUE", 0)
    broker, ask = await start()
    assert (await send(ask)).code == 0
    assert broker.flusher.settled_end == -1
    assert (await send(ask, bytes(10_000))).code == 0
    await eventually(lambda: broker.flusher.settled_end > 10_000)


async def test_a_broker_that_stops_lets_a_settling_end(start, disk):
    broker, ask = await start()
    assert (await send(ask)).code == 0
    disk.hold_queues()
    broker.flusher.settle()
    await eventually(lambda: disk.queue_flushes)
    stopping = asyncio.ensure_future(broker.stop())
    await eventually(lambda: broker.flusher.stopping)
    assert not stopping.done()
    disk.let_go()
    await stopping


async def test_what_a_crash_left_off_the_disk_does_not_count_against_the_limit(start, start_broker, connect):
    broker, ask = await start(store={"flush_disk_type": "ASYNC_FLUSH"}, flush_interval_s=3600)
    await send(ask, bytes(50_000))
    await broker.abort()
    again = await start_broker("sync", store=SYNC, max_waiting_bytes=10_000)
    await eventually(lambda: again.unflushed_bytes == 0)
    assert (await send(await connect(again))).code == 0


async def test_queues_a_full_disk_has_no_room_for_keep_nobody_waiting(start, monkeypatch):
    broker, ask = await start()
    flush = broker.store.flush

    def no_room(*, thorough=False):
        flush(thorough=False)
        if thorough:
            raise StoreWriteFailed("queues", "No space left on device")
        return broker.store.commitlog_flushed_offset

    monkeypatch.setattr(broker.store, "flush", no_room)
    waiting = send(ask)
    broker.flusher.settle()
    assert (await waiting).code == 0
    assert broker.flusher.settled_end < broker.store.commitlog_max_offset
    monkeypatch.undo()
    broker.flusher.settle()
    await eventually(lambda: broker.flusher.settled_end == broker.store.commitlog_max_offset)
    assert broker.failure is None


async def test_messages_answered_for_are_there_after_a_crash(start, disk, start_broker, connect):
    broker, ask = await start()
    for n in range(20):
        assert (await send(ask, b"%d" % n, properties="WAIT\x01true\x02" if n % 2 else "WAIT\x01false\x02")).code == 0
    await broker.abort()
    again = await connect(await start_broker("sync", store=SYNC))
    assert await again.bodies("orders") == [b"%d" % n for n in range(20)]


# --- connections that end, brokers that stop ----------------------------------------------------------------------------


async def test_a_client_that_left_is_not_answered_and_harms_nobody(start, disk, connect):
    broker, ask = await start()
    other = await connect(broker)
    disk.hold()
    lost, kept = send(other, b"gone"), send(ask, b"here")
    await eventually(lambda: broker.acks.waiting == 2)
    other.conn.abort("gone")
    await eventually(lambda: broker.connection_count == 1)
    disk.let_go()
    assert (await kept).code == 0
    with pytest.raises(ConnectionLost):
        await lost
    assert sorted(await ask.bodies("orders")) == [b"gone", b"here"]
    assert broker.acks.waiting == 0


async def test_a_broker_that_stops_answers_everything_that_waits_and_takes_nothing_new(start, disk):
    broker, ask = await start()
    disk.hold()
    waiting = [send(ask) for _ in range(3)]
    await eventually(lambda: broker.acks.waiting == 3)
    stopping = asyncio.ensure_future(broker.stop())
    await eventually(lambda: broker.staged.closing)
    answer = await send(ask, b"too late")
    assert (answer.code, answer.remark) == (14, "service not available now. It may be caused by: the broker is stopping")
    assert not stopping.done()
    disk.let_go()
    await stopping
    assert [answer.code for answer in await asyncio.gather(*waiting)] == [0] * 3


async def test_a_broker_that_stops_waits_for_a_dead_disk_no_longer_than_a_send_does(start, disk, clock):
    broker, ask = await start()
    disk.hold()
    waiting = send(ask)
    await eventually(lambda: broker.acks.waiting == 1)
    stopping = asyncio.ensure_future(broker.stop())
    await eventually(lambda: broker.flusher.draining)
    clock.advance(5.0)
    broker.flusher.expire()
    assert (await waiting).code == 10
    disk.let_go()
    await stopping


async def test_a_killed_broker_answers_nothing(start, disk):
    broker, ask = await start()
    disk.hold()
    waiting = send(ask)
    await eventually(lambda: broker.acks.waiting == 1)
    killing = asyncio.ensure_future(broker.abort())
    with pytest.raises(ConnectionLost):
        await waiting
    disk.let_go()
    await killing


# --- limits -------------------------------------------------------------------------------------------------------------


async def test_sends_that_wait_are_bounded_by_their_number(start, disk):
    broker, ask = await start(max_waiting_sends=5)
    disk.hold()
    sends = [send(ask, b"%d" % n) for n in range(8)]
    await eventually(lambda: sum(one.done() for one in sends) == 3)
    assert broker.acks.waiting == 5
    disk.let_go()
    answers = await asyncio.gather(*sends)
    assert [answer.code for answer in answers] == [0] * 5 + [2] * 3
    assert answers[-1].remark == "[OVERLOAD]system busy, start flow control for a while"
    assert await ask.bodies("orders") == [b"%d" % n for n in range(5)]
    assert (await send(ask)).code == 0


async def test_what_is_not_on_the_disk_is_bounded_by_its_bytes(start, disk, clock):
    broker, ask = await start(max_waiting_bytes=10_000)
    disk.hold()
    large = send(ask, bytes(50_000))
    await eventually(lambda: broker.acks.waiting == 1)
    for properties in ("", "WAIT\x01false\x02"):
        assert (await send(ask, properties=properties)).code == 2
    clock.advance(5.0)
    broker.flusher.expire()
    assert (await large).code == 10
    assert (await send(ask)).code == 2  # nothing waits any more, but the disk is no further
    disk.let_go()
    await eventually(lambda: not broker.unflushed_bytes)
    assert (await send(ask)).code == 0


async def test_a_send_that_is_refused_or_cannot_be_written_takes_no_room(start, disk):
    broker, ask = await start(max_waiting_sends=2)

    def refuse():
        raise OSError(28, "No space left on device")

    for _ in range(5):
        assert (await send(ask, queue=99)).code == 29
        disk.before_write = refuse
        assert (await send(ask)).code == 14
        disk.before_write = lambda: None
    assert broker.acks.waiting == 0
    assert (await send(ask)).code == 0


@pytest.mark.parametrize("took_s", [1.2, 60.0])
async def test_after_a_write_that_took_too_long_sends_are_refused_for_a_moment(start, disk, clock, took_s, said):
    _, ask = await start(store={"flush_disk_type": "ASYNC_FLUSH"})
    disk.before_write = lambda: clock.advance(took_s)
    assert (await send(ask)).code == 0
    disk.before_write = lambda: None
    assert said("slow_commit") == [f"slow_commit took_s={took_s:g}"]
    assert RuntimeInfo.decode((await ask(28)).body).table["pageCacheLockTimeMills"] == f"{took_s * 1000:.0f}"
    answer = await send(ask)
    assert (answer.code, answer.remark) == (2, "[PC_SYNCHRONIZED]broker busy, start flow control for a while")
    assert (await ask.bodies("orders")) == [b"body"]
    clock.advance(1.0)
    assert RuntimeInfo.decode((await ask(28)).body).table["pageCacheLockTimeMills"] == "0"
    assert (await send(ask)).code == 0


async def test_a_write_within_the_limit_is_no_reason_to_refuse(start, disk, clock, said):
    _, ask = await start(os_page_cache_busy_timeout_ms=2000)
    disk.before_write = lambda: clock.advance(1.9)
    for _ in range(3):
        assert (await send(ask)).code == 0
    assert not said("slow_commit")
