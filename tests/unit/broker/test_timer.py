"""Messages with a delivery time of their own."""

import pytest
from test_delay import fire, later

from sprocketmq.broker import timer
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.names import TIMER_TOPIC
from sprocketmq.protocol.records import decode_records


async def timed(ask, body=b"body", *, after_ms, clock=None, **options):
    """Send a message that is to come ``after_ms`` from now, by its time when there is a clock."""
    asked = f"TIMER_DELAY_MS\x01{after_ms}\x02" if clock is None else f"TIMER_DELIVER_MS\x01{clock.time_ms() + after_ms}\x02"
    answer = await ask.send("orders", body, properties=asked, **options)
    assert answer.code == 0, answer.remark
    return answer


@pytest.mark.parametrize(("name", "value"), [("TIMER_DELAY_SEC", 7), ("TIMER_DELAY_MS", 7000), ("TIMER_DELIVER_MS", None)])
async def test_a_timed_message_comes_at_its_time(broker, clock, ask, name, value):
    value = value or clock.time_ms() + 7000
    assert (await ask.send("orders", queue=1, properties=f"{name}\x01{value}\x02TAGS\x01red\x02")).code == 0
    later(broker, clock, 6.999)
    assert await ask.bodies("orders", queue=1) == []
    later(broker, clock, 0.001)
    (message,) = decode_records((await ask.pull("orders", 0, queue=1, expression="red")).body)
    assert message.body == b"body"
    assert message.properties["TIMER_OUT_MS"] == str(clock.time_ms())


async def test_a_time_that_has_passed_is_no_delay(ask, clock):
    for after in (0, -5, -(10**12)):
        await timed(ask, after_ms=after, clock=clock)
    assert len(await ask.bodies("orders")) == 3


async def test_messages_come_in_the_order_of_their_times(broker, clock, ask):
    for number in (5, 3, 9, 1, 3):
        await timed(ask, b"%d" % number, after_ms=number * 1000)
    for passed in range(1, 10):
        later(broker, clock, 1)
        assert await ask.bodies("orders") == [b"1", b"3", b"3", b"5", b"9"][: sum(n <= passed for n in (1, 3, 3, 5, 9))]


async def test_many_messages_of_one_time(broker, clock, ask):
    for number in range(300):
        await timed(ask, b"%d" % number, after_ms=1000)
    later(broker, clock, 1)
    assert await ask.bodies("orders", count=1000) == [b"%d" % n for n in range(300)]


@pytest.mark.parametrize("hours", [72, 1])
async def test_times_too_far_away_are_refused(start_broker, connect, hours):
    broker = await start_broker(store={"file_reserved_hours": float(hours)})
    broker.topics.create_internal("orders", 1)
    ask = await connect(broker)
    await timed(ask, after_ms=hours * 3_600_000)
    answer = await ask.send("orders", properties=f"TIMER_DELAY_MS\x01{hours * 3_600_000 + 1}\x02")
    assert answer.code == 13
    assert "should not be bigger than the max delay" in answer.remark


async def test_a_time_that_is_no_number(ask):
    answer = await ask.send("orders", properties="TIMER_DELIVER_MS\x01soon\x02")
    assert (answer.code, answer.remark) == (1, "property TIMER_DELIVER_MS is 'soon', not a number")


async def test_only_so_many_wait(broker, ask, monkeypatch):
    monkeypatch.setattr(timer, "MAX_WAITING", 2)
    for _ in range(2):
        await timed(ask, after_ms=1000)
    answer = await ask.send("orders", properties="TIMER_DELAY_MS\x011000\x02")
    assert answer.code == 2
    assert "flow control" in answer.remark


async def test_clients_do_not_send_to_the_brokers_own_queue_of_timed_messages(ask):
    assert (await ask.send(TIMER_TOPIC)).code == 16


@pytest.fixture
async def restarted(start_broker, connect):
    async def start():
        broker = await start_broker()
        broker.topics.create_internal("orders", 1)
        return broker, await connect(broker)

    return start


async def test_stops_and_starts_lose_and_repeat_nothing(restarted, clock):
    broker, ask = await restarted()
    for number in (9, 2, 5, 1, 7, 3):
        await timed(ask, b"%d" % number, after_ms=number * 1000)
    for passed in range(1, 10):
        later(broker, clock, 1)
        assert await ask.bodies("orders") == [b"%d" % n for n in (1, 2, 3, 5, 7, 9) if n <= passed]
        await broker.stop()
        broker, ask = await restarted()
        fire(broker)
    assert broker.delays.timers.waiting == 0


@pytest.mark.parametrize("saved_after", [0, 2, 6, None])
async def test_a_killed_broker_repeats_nothing_that_it_delivered(restarted, clock, tmp_path, saved_after):
    broker, ask = await restarted()
    file = tmp_path / "store/config/timers.json"
    for number in (19, 2, 5, 11, 7, 3, 8, 10, 13, 14, 15):
        await timed(ask, b"%d" % number, after_ms=number * 1000)
    for passed in range(9):
        if passed == saved_after:
            broker.store.flush_log()
            broker.delays.progress.finish()
            broker.files.save_delays()
            await broker.files.timers.saved()
        later(broker, clock, 1)
    assert len(await ask.bodies("orders")) == 5
    await broker.abort()
    assert file.exists() == (saved_after is not None)
    broker, ask = await restarted()
    assert broker.delays.timers.waiting == 6
    later(broker, clock, 20)
    assert await ask.bodies("orders") == [b"%d" % n for n in (2, 3, 5, 7, 8, 10, 11, 13, 14, 15, 19)]
    await broker.stop()
    broker, ask = await restarted()
    fire(broker)
    assert len(await ask.bodies("orders")) == 11


async def test_a_commit_that_fails_is_tried_again(broker, clock, ask, monkeypatch):
    await timed(ask, after_ms=1000)

    def refuse():
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(broker.store, "commit", refuse)
        later(broker, clock, 1)
    assert await ask.bodies("orders") == []
    later(broker, clock, 0.5)
    assert await ask.bodies("orders") == [b"body"]


async def test_a_send_that_failed_leaves_nothing_waiting(broker, clock, ask, monkeypatch):
    def refuse():
        broker.store.discard()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(broker.store, "commit", refuse)
        assert (await ask.send("orders", b"refused", properties="TIMER_DELAY_MS\x011000\x02")).code == 14
    broker.cleaning.writable = True
    await timed(ask, b"taken", after_ms=2000)
    later(broker, clock, 1)
    assert await ask.bodies("orders") == []
    later(broker, clock, 1)
    assert await ask.bodies("orders") == [b"taken"]


@pytest.mark.parametrize("text", ['{"base":1}', '{"base":"x"}', '{"logOffset":[]}', '{"delivered":"?"}', '{"delivered":5}'])
async def test_a_file_that_is_none_stops_the_start(start_broker, tmp_path, text):
    (tmp_path / "store/config").mkdir(parents=True)
    (tmp_path / "store/config/timers.json").write_text(text)
    with pytest.raises(ConfigError, match="is not a file as brokers write it"):
        await start_broker()


async def test_a_damaged_timed_message_is_left_where_it_is(broker, clock, ask, tmp_path, caplog):
    places = [int((await timed(ask, b"message %d" % n, after_ms=1000)).ext["msgId"][16:], 16) for n in range(2)]
    (segment,) = (tmp_path / "store/commitlog").iterdir()
    with segment.open("r+b") as file:
        file.seek(places[0] + 88)
        file.write(b"XX")
    later(broker, clock, 1)
    assert await ask.bodies("orders") == [b"message 1"]
    assert "is not delivered" in caplog.text
    assert broker.delays.timers.waiting == 0


async def test_a_timed_dead_letter_is_one_at_once(broker, ask):
    broker.groups.find("cg")
    answer = await ask.send("%RETRY%cg", properties="TIMER_DELAY_SEC\x01100\x02DELAY\x0119\x02", j="17", l="16")
    assert answer.code == 0, answer.remark
    assert await ask.bodies("%DLQ%cg") == [b"body"]
