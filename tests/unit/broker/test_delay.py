"""Delayed messages: parked under their level, delivered at their time, once, whatever happens to the broker meanwhile."""

import json

import pytest
from tests.recorded_stores import unpack

from sprocketmq.broker import delay_progress
from sprocketmq.broker.forward_clock import ForwardClock
from sprocketmq.errors import ConfigError, StoreWriteFailed
from sprocketmq.protocol.records import Record, decode_records
from sprocketmq.storage.appender import Appender
from sprocketmq.storage.config import DELAY_LEVELS, delay_levels_ms
from sprocketmq.storage.store import MessageStore, StoreConfig
from sprocketmq.testing import eventually

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
PARKED = [b"delay-3", b"delay-over"]
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def later(broker, clock, seconds):
    clock.advance(seconds)
    fire(broker)


def fire(broker):
    """Deliver all that is due, as the timers of some turns of the loop do."""
    done = -1
    while done != broker.delays.delivered:
        done = broker.delays.delivered
        broker.delays.fire()


async def delayed(ask, level, body=b"body", *, topic="orders", properties="", **options):
    answer = await ask.send(topic, body, properties=f"DELAY\x01{level}\x02{properties}", **options)
    assert answer.code == 0, answer.remark
    return answer


async def messages(ask, topic="orders", **options):
    return decode_records((await ask.pull(topic, 0, **options)).body)


# --- levels ---


@pytest.mark.parametrize(("level", "seconds"), list(enumerate(LEVELS_S, 1)))
async def test_each_level_has_its_delay(broker, clock, ask, level, seconds):
    await delayed(ask, level)
    later(broker, clock, seconds - 0.001)
    assert await ask.bodies("orders") == []
    later(broker, clock, 0.001)
    assert await ask.bodies("orders") == [b"body"]


async def test_levels_above_the_last_count_as_the_last(broker, clock, ask):
    for level in (19, 99, 2**31 - 1):
        await delayed(ask, level)
    (parked, *_) = decode_records(b"".join(broker.store.read(SCHEDULE, 17, 0).buffers))
    assert parked.properties["DELAY"] == "18"
    later(broker, clock, 7200)
    assert len(await ask.bodies("orders")) == 3


async def test_levels_below_one_are_no_delay(broker, ask):
    for level in (0, -1, -5):
        await delayed(ask, level)
    assert [m.properties["DELAY"] for m in await messages(ask)] == ["0", "-1", "-5"]


async def test_the_answer_has_the_queue_that_was_asked_for_and_the_offset_in_the_levels_queue(broker, ask):
    await delayed(ask, 3)
    answer = await delayed(ask, 3, queue=2)
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("2", "1")


async def test_a_parked_message_says_where_it_belongs_and_its_unit_when_it_is_due(broker, clock, ask):
    await delayed(ask, 3, queue=2, properties="TAGS\x01red\x02TIMER_DELAY_MS\x015\x02")
    (parked,) = decode_records(b"".join(broker.store.read(SCHEDULE, 2, 0).buffers))
    assert parked.properties["REAL_TOPIC"] == "orders"
    assert parked.properties["REAL_QID"] == "2"
    assert "TIMER_DELAY_MS" not in parked.properties
    assert broker.store.units(SCHEDULE, 2, 0, 1)[0][2] == clock.time_ms() + 10_000


async def test_a_delivered_message_is_the_parked_one_in_its_real_queue(broker, clock, ask):
    await delayed(ask, 1, b"text", queue=3, properties="TAGS\x01red\x02KEYS\x01k\x02mine\x01yes\x02UNIQ_KEY\x01U1\x02", f="1", h="7", j="2")
    (parked,) = decode_records(b"".join(broker.store.read(SCHEDULE, 0, 0).buffers))
    later(broker, clock, 1)
    (message,) = await messages(ask, queue=3, expression="red")
    for name in ("stored_body", "flag", "sys_flag", "raw_properties", "born_timestamp_ms", "raw_hosts", "reconsume_times"):
        assert getattr(message, name) == getattr(parked, name), name
    assert (message.queue_id, message.queue_offset, message.store_timestamp_ms) == (3, 0, clock.time_ms())
    assert message.copied_from == parked.commitlog_offset
    assert len(broker.store.query("orders", "k")) == 1


async def test_messages_of_one_level_keep_their_order_and_levels_do_not_wait_for_each_other(broker, clock, ask):
    for number in range(600):
        await delayed(ask, 2 + number % 2, b"%d" % number)
    later(broker, clock, 5)
    assert await ask.bodies("orders", count=1000) == [b"%d" % n for n in range(0, 600, 2)]
    later(broker, clock, 5)
    assert (await ask.bodies("orders", count=1000))[300:] == [b"%d" % n for n in range(1, 600, 2)]


async def test_a_consumer_that_waits_gets_a_delayed_message_at_its_time(broker, clock, ask, connect):
    waiting = await connect(broker)
    await delayed(ask, 1)
    pull = waiting.pull("orders", 0, wait_ms=20_000)
    await ask.heartbeat()
    later(broker, clock, 1)
    assert [m.body for m in decode_records((await pull).body)] == [b"body"]


async def test_a_timer_fires_without_being_asked(broker, clock, ask):
    await delayed(ask, 1)
    clock.advance(1)
    broker.delays.start()
    assert [m.body for m in decode_records((await ask.pull("orders", 0, wait_ms=20_000)).body)] == [b"body"]


async def test_delayed_messages_go_to_batch_queues_one_by_one(broker, clock, ask):
    broker.topics.create_internal("lists", 1, attributes={"queue.type": "BatchCQ"})
    broker.store.declare_batch_topic("lists")
    for body in (b"a", b"b"):
        await delayed(ask, 1, body, topic="lists")
    later(broker, clock, 1)
    assert await ask.bodies("lists") == [b"a", b"b"]


async def test_a_batch_is_not_delayed(ask):
    for properties in ("DELAY\x011\x02", "TIMER_DELAY_MS\x015\x02"):
        assert (await ask.send_batch("orders", [b"a"], properties=properties)).code == 13


async def test_messages_of_a_deleted_topic_are_there_when_it_is_created_again(broker, clock, ask, caplog):
    await delayed(ask, 1)
    await delayed(ask, 1)
    broker.topics.delete("orders")
    later(broker, clock, 1)
    assert caplog.text.count("topic orders was deleted") == 1
    broker.topics.create_internal("orders", 4)
    assert len(await ask.bodies("orders")) == 2


async def test_several_messages_are_delivered_with_few_commits(broker, clock, ask, monkeypatch):
    for _ in range(100):
        await delayed(ask, 1)
    commits = []
    commit = broker.store.commit
    monkeypatch.setattr(broker.store, "commit", lambda: commits.append(1) or commit())
    later(broker, clock, 1)
    assert len(await ask.bodies("orders", count=200)) == 100
    assert len(commits) <= 3


# --- other levels ---


async def test_levels_can_be_set(start_broker, connect, clock):
    broker = await start_broker(store={"message_delay_level": "2s 1d"})
    broker.topics.create_internal("orders", 1)
    ask = await connect(broker)
    await delayed(ask, 1, b"first")
    await delayed(ask, 9, b"second")
    later(broker, clock, 2)
    assert await ask.bodies("orders") == [b"first"]
    later(broker, clock, 86_400 - 3)
    assert await ask.bodies("orders") == [b"first"]
    later(broker, clock, 1)
    assert await ask.bodies("orders") == [b"first", b"second"]


async def test_messages_of_levels_that_are_gone_come_at_their_time(start_broker, connect, clock):
    broker = await start_broker()
    broker.topics.create_internal("orders", 1)
    await delayed(await connect(broker), 5)
    await broker.stop()
    broker = await start_broker(store={"message_delay_level": "1s"})
    ask = await connect(broker)
    later(broker, clock, 59)
    assert await ask.bodies("orders") == []
    later(broker, clock, 1)
    assert await ask.bodies("orders") == [b"body"]


async def test_units_made_anew_have_the_times_of_the_levels_that_are_set(start_broker, connect, clock, tmp_path):
    levels = " ".join(f"{n}m" for n in range(1, 31))
    broker = await start_broker(store={"message_delay_level": levels})
    ask = await connect(broker)
    broker.topics.create_internal("orders", 1)
    for level in (1, 18, 30, 30):
        await delayed(ask, level)
    units = {q: broker.store.units(SCHEDULE, q, 0, 2) for q in (0, 17, 29)}
    await broker.abort()
    for path in (tmp_path / "store" / "consumequeue").rglob("0*0"):
        path.unlink()
    again = await start_broker(store={"message_delay_level": levels})
    assert {q: again.store.units(SCHEDULE, q, 0, 2) for q in (0, 17, 29)} == units


@pytest.mark.parametrize("text", ["", "1", "1x", "s", "1s 0m", "-1s", "1.5s", "٣s", "400d", " ".join(["1s"] * 257)])
def test_levels_that_are_none_are_refused(text, tmp_path):
    with pytest.raises(ConfigError, match="message_delay_level"):
        StoreConfig(root=tmp_path, message_delay_level=text)


def test_the_usual_levels():
    assert delay_levels_ms(DELAY_LEVELS) == tuple(1000 * seconds for seconds in LEVELS_S)


# --- the clock ---


async def test_setting_the_clock_back_delays_nothing_and_repeats_nothing(broker, clock, ask):
    await delayed(ask, 1, b"before")
    clock.jump_wall(-3600)
    await delayed(ask, 3, b"after")
    later(broker, clock, 1)
    assert await ask.bodies("orders") == [b"before"]
    clock.advance(5)
    await delayed(ask, 3, b"after that")
    later(broker, clock, 4)
    assert await ask.bodies("orders") == [b"before", b"after"]
    later(broker, clock, 5.9)
    assert await ask.bodies("orders") == [b"before", b"after"]
    later(broker, clock, 0.2)
    assert await ask.bodies("orders") == [b"before", b"after", b"after that"]


async def test_a_clock_that_was_set_forward_and_back_delivers_once(broker, clock, ask):
    await delayed(ask, 18)
    clock.jump_wall(3 * 3600)
    fire(broker)
    clock.jump_wall(-3 * 3600)
    later(broker, clock, 8000)
    assert await ask.bodies("orders") == [b"body"]


async def test_a_start_under_an_earlier_clock_goes_on_from_the_logs_time(start_broker, connect, clock):
    broker = await start_broker()
    broker.topics.create_internal("orders", 1)
    await delayed(await connect(broker), 3)
    await broker.stop()
    clock.jump_wall(-3600)
    broker = await start_broker()
    ask = await connect(broker)
    fire(broker)
    assert await ask.bodies("orders") == []
    later(broker, clock, 10)
    assert await ask.bodies("orders") == [b"body"]


# --- restarts ---


@pytest.fixture
async def restarted(start_broker, connect):
    """Start a broker on the test's store and return it with a connection."""

    async def start(**settings):
        broker = await start_broker(**settings)
        broker.topics.create_internal("orders", 1)
        return broker, await connect(broker)

    return start


async def test_a_stop_and_a_start_lose_and_repeat_nothing(restarted, clock):
    broker, ask = await restarted()
    for number in range(5):
        await delayed(ask, 2, b"%d" % number)
        clock.advance(1)
    fire(broker)
    assert await ask.bodies("orders") == [b"0"]
    await broker.stop()
    clock.advance(2)
    broker, ask = await restarted()
    fire(broker)
    assert await ask.bodies("orders") == [b"0", b"1", b"2"]
    later(broker, clock, 60)
    assert await ask.bodies("orders") == [b"0", b"1", b"2", b"3", b"4"]


async def test_what_came_due_while_the_broker_was_away_is_delivered_when_it_is_back(restarted, clock):
    broker, ask = await restarted()
    for level in (1, 18):
        await delayed(ask, level, b"%d" % level)
    await broker.stop()
    clock.advance(100_000)
    broker, ask = await restarted()
    fire(broker)
    assert sorted(await ask.bodies("orders")) == [b"1", b"18"]


@pytest.mark.parametrize("saved_after", [0, 3, 7, None])
async def test_a_killed_broker_repeats_nothing_that_it_delivered(restarted, clock, tmp_path, saved_after):
    """``saved_after`` is how much was delivered when the positions were last saved; None: never, the file is gone."""
    broker, ask = await restarted()
    for number in range(10):
        await delayed(ask, 1 + number % 2, b"%d" % number)
    file = tmp_path / "store/config/delayOffset.json"
    for number in range(10):
        if number == saved_after:
            broker.delays.progress.note()
            broker.store.flush_log()
            if saved_after:
                assert broker.delays.progress.note()
            else:
                broker.delays.progress.finish()
            broker.files.delays.touch()
            await broker.files.delays.saved()
        later(broker, clock, 0.7)
    before = sorted(await ask.bodies("orders"))
    assert len(before) == 10
    await broker.abort()
    if saved_after is None:
        file.unlink()
        file.with_name("delayOffset.json.bak").unlink(missing_ok=True)
    broker, ask = await restarted()
    later(broker, clock, 60)
    assert sorted(await ask.bodies("orders")) == before
    assert broker.delays.offsets() == {1: (5, 5), 2: (5, 5)}


async def test_a_broker_that_is_killed_again_and_again_delivers_each_once(restarted, clock):
    sent = []
    for life in range(6):
        broker, ask = await restarted()
        for number in range(4):
            sent.append(b"%d.%d" % (life, number))
            await delayed(ask, 2, sent[-1])
            later(broker, clock, 1)
        await broker.abort()
    broker, ask = await restarted()
    later(broker, clock, 5)
    assert await ask.bodies("orders", count=100) == sent


async def deliver_and_damage(broker, ask, clock, tmp_path, lost):
    """Have five messages delivered, kill the broker before it saves that, and damage the copies of some."""
    for number in range(5):
        await delayed(ask, 1, b"%d" % number)
    later(broker, clock, 1)
    copies = [broker.store.units("orders", 0, number, 1)[0][0] for number in range(5)]
    await broker.abort()
    (segment,) = (path for path in (tmp_path / "store/commitlog").iterdir() if path.name.isdigit())
    with segment.open("r+b") as file:
        for number in lost:
            file.seek(copies[number] + 88)
            file.write(b"X")


async def test_a_copy_that_lost_power_took_is_made_again_and_those_behind_it_are_not(restarted, clock, tmp_path):
    broker, ask = await restarted()
    await deliver_and_damage(broker, ask, clock, tmp_path, [1, 2])
    for _ in range(2):
        broker, ask = await restarted()
        later(broker, clock, 60)
        assert sorted(await ask.bodies("orders", count=100)) == [b"0", b"1", b"2", b"3", b"4"]
        assert broker.delays.offsets() == {1: (5, 5)}
        await broker.abort()


async def test_copies_that_a_full_disk_does_not_take_at_a_start_are_made_when_there_is_room(
    restarted, clock, tmp_path, monkeypatch, caplog
):
    broker, ask = await restarted()
    await deliver_and_damage(broker, ask, clock, tmp_path, [3])

    full, stage_copy = True, Appender.stage_copy

    def stage(*arguments, **options):
        if full:
            raise StoreWriteFailed("store", "no space left on device")
        return stage_copy(*arguments, **options)

    monkeypatch.setattr(Appender, "stage_copy", stage)
    broker, ask = await restarted()
    full = False
    assert "1 delayed messages of level 1 have to wait" in caplog.text
    later(broker, clock, 60)
    assert set(await ask.bodies("orders", count=100)) == {b"0", b"1", b"2", b"3", b"4"}


async def test_the_first_record_of_a_log_is_delivered_once_too(restarted, clock):
    broker, ask = await restarted()
    await delayed(ask, 1)
    later(broker, clock, 1)
    await broker.abort()
    broker, ask = await restarted()
    later(broker, clock, 5)
    assert await ask.bodies("orders") == [b"body"]


async def test_positions_of_apaches_broker_are_taken_and_those_of_ours_are_what_it_reads(restarted, clock, tmp_path):
    broker, ask = await restarted()
    for number in range(3):
        await delayed(ask, 1, b"%d" % number)
    await broker.stop()
    file = tmp_path / "store/config/delayOffset.json"
    assert '"offsetTable":{\n\t\t1:0\n\t}' in file.read_text()
    file.write_text('{"dataVersion":{"counter":9,"stateVersion":0,"timestamp":1},"offsetTable":{1:2,2:7}}')
    broker, ask = await restarted()
    later(broker, clock, 1)
    assert await ask.bodies("orders") == [b"2"]


async def test_our_broker_delivers_what_apaches_left_parked(start_broker, connect, clock, tmp_path):
    """Two messages of level 18 wait in the recorded store; the positions say that all others were delivered."""
    unpack("delay-retry", tmp_path)
    clock.jump_wall(1_795_230_140 - clock.time_ms() / 1000)
    sizes = {"commitlog_segment_bytes": 65536, "consumequeue_segment_bytes": 1000, "batchqueue_segment_bytes": 460}
    broker = await start_broker(store={**sizes, "max_hash_slots": 64, "max_index_entries": 256})
    ask = await connect(broker)
    fire(broker)
    topics = ("DelayT", "RetryT", "%RETRY%cg_retry", "%RETRY%cg_retry2", "%DLQ%cg_retry")
    before = {(topic, queue): await ask.bodies(topic, queue=queue) for topic in topics for queue in range(2)}
    later(broker, clock, 7200)
    after = {key: (await ask.bodies(key[0], queue=key[1]))[len(bodies) :] for key, bodies in before.items()}
    assert sorted(body for bodies in after.values() for body in bodies) == PARKED
    assert broker.delays.offsets() == {1: (5, 5), 2: (1, 1), 3: (2, 2), 5: (1, 1), 18: (2, 2)}


@pytest.mark.parametrize("text", ['{"offsetTable":[]}', '{"offsetTable":{"x":1}}', '{"offsetTable":{"1":"x"}}', '{"logOffset":"x"}'])
async def test_a_file_of_positions_that_is_none_stops_the_start(start_broker, tmp_path, text):
    (tmp_path / "store/config").mkdir(parents=True)
    (tmp_path / "store/config/delayOffset.json").write_text(text)
    with pytest.raises(ConfigError, match="is not a file as brokers write it"):
        await start_broker()


async def test_positions_are_saved_when_the_disk_has_what_they_speak_of(broker, clock, ask):
    await delayed(ask, 1)
    assert not broker.delays.progress.note()
    later(broker, clock, 1)
    broker.store.flush_log()
    stale = broker.delays.progress.snapshot()
    await ask.send("orders", b"not flushed")
    assert not broker.delays.progress.note()
    assert not broker.delays.progress.note()
    assert broker.delays.progress.snapshot() is stale
    broker.store.flush_log()
    assert broker.delays.progress.note()
    assert broker.delays.progress.snapshot()["offsetTable"] == {1: 1}
    assert not broker.delays.progress.note()


@pytest.mark.parametrize("timed", [False, True])
async def test_a_killed_broker_reads_little_of_the_log_again_however_long_messages_waited(restarted, clock, monkeypatch, timed):
    monkeypatch.setattr(delay_progress, "SAVE_AFTER_BYTES", 4096)
    broker, ask = await restarted()
    if timed:
        assert (await ask.send("orders", b"late", properties=f"TIMER_DELIVER_MS\x01{clock.time_ms() + 3_600_000}\x02")).code == 0
    else:
        await delayed(ask, 18, b"late")
    for _ in range(8):
        await ask.send("orders", bytes(1024))
        broker.store.flush_log()
        if broker.delays.progress.note():
            broker.files.save_delays()
            await broker.files.delays.saved()
            await broker.files.timers.saved()
    await broker.abort()
    begins = []
    scan = MessageStore.deliveries_since
    monkeypatch.setattr(MessageStore, "deliveries_since", lambda store, begin: begins.append(begin) or scan(store, begin))
    broker, ask = await restarted()
    assert begins[0] > broker.store.commitlog_max_offset - 3 * 4096
    later(broker, clock, 7200)
    assert (await ask.bodies("orders"))[-1] == b"late"


async def test_progress_is_not_saved_again_while_nothing_waits_or_the_log_has_grown_little(broker, clock, ask, monkeypatch):
    monkeypatch.setattr(delay_progress, "SAVE_AFTER_BYTES", 4096)

    async def grow(size):
        await ask.send("orders", bytes(size))
        broker.store.flush_log()
        return broker.delays.progress.note() or broker.delays.progress.note()

    assert not await grow(8192)
    await delayed(ask, 1)
    assert await grow(16)
    assert not await grow(1024)
    assert await grow(4096)
    later(broker, clock, 1)
    assert await grow(16)
    assert not await grow(8192)


# --- what goes wrong ---


async def test_a_full_disk_holds_delayed_messages_back(broker, clock, ask):
    await delayed(ask, 1)
    broker.cleaning.writable = False
    later(broker, clock, 1)
    assert await ask.bodies("orders") == []
    broker.cleaning.writable = True
    later(broker, clock, 0.5)
    assert await ask.bodies("orders") == [b"body"]


async def test_a_commit_that_fails_is_tried_again(broker, clock, ask, monkeypatch, caplog):
    for number in range(3):
        await delayed(ask, 1, b"%d" % number)

    def refuse():
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(broker.store, "commit", refuse)
        later(broker, clock, 1)
    assert "delayed messages have to wait" in caplog.text
    assert await ask.bodies("orders") == []
    later(broker, clock, 0.5)
    assert await ask.bodies("orders") == [b"0", b"1", b"2"]


async def test_a_damaged_message_is_left_where_it_is_and_the_others_come(broker, clock, ask, tmp_path, caplog):
    places = [int((await delayed(ask, 1, b"message %d" % n)).ext["msgId"][16:], 16) for n in range(3)]
    (segment,) = (tmp_path / "store/commitlog").iterdir()
    with segment.open("r+b") as file:
        file.seek(places[1] + 88)
        file.write(b"XX")
    later(broker, clock, 1)
    assert await ask.bodies("orders") == [b"message 0", b"message 2"]
    assert "delayed message 1 of SCHEDULE_TOPIC_XXXX, queue 0, is not delivered" in caplog.text


@pytest.mark.parametrize("real", ["REAL_TOPIC\x01../x\x02REAL_QID\x010\x02", "REAL_TOPIC\x01orders\x02REAL_QID\x01x\x02", ""])
async def test_a_message_without_a_real_queue_stays_parked(broker, clock, ask, caplog, real):
    broker.store.stage_copy(
        SCHEDULE, 0, b"x", f"DELAY\x011\x02{real}".encode(), copied_from=None, born_timestamp_ms=1, born_host=b"12345678"
    )
    broker.store.commit()
    await delayed(ask, 1)
    later(broker, clock, 1)
    assert await ask.bodies("orders") == [b"body"]
    assert "is not delivered" in caplog.text


async def test_delivered_messages_wait_for_the_disk_with_sync_flush(start_broker, connect, clock):
    broker = await start_broker(store={"flush_disk_type": "SYNC_FLUSH"})
    broker.topics.create_internal("orders", 1)
    ask, waiting = await connect(broker), await connect(broker)
    await delayed(ask, 1)
    pull = waiting.pull("orders", 0, wait_ms=20_000)
    await ask.heartbeat()
    later(broker, clock, 1)
    assert [m.body for m in decode_records((await pull).body)] == [b"body"]
    broker.delays._look(broker.delays._levels[0])
    assert broker.delays._levels[0].due_ms is None


def test_a_copy_says_where_it_is_from():
    assert Record(bytes(200), 0, 200).copied_from is None


async def test_properties_that_are_no_text_stay_parked(broker, clock, ask, caplog):
    properties = b"REAL_TOPIC\x01orders\x02REAL_QID\x010\x02DELAY\x011\x02x\x01\xff\x02"
    broker.store.stage_copy(SCHEDULE, 0, b"x", properties, copied_from=None, born_timestamp_ms=1, born_host=b"12345678")
    broker.store.commit()
    await delayed(ask, 1)
    later(broker, clock, 1)
    assert await ask.bodies("orders") == [b"body"]
    assert "not UTF-8" in caplog.text


async def test_tools_see_how_far_each_level_is(broker, clock, ask):
    for level in (1, 1, 3):
        await delayed(ask, level)
    assert (await ask.send("orders", properties="TIMER_DELAY_SEC\x01100\x02")).code == 0
    later(broker, clock, 1)
    table = json.loads((await ask(28)).body)["table"]
    assert {name: value for name, value in table.items() if name.startswith("schedule")} == {
        "scheduleMessageOffset_1": "2,2",
        "scheduleMessageOffset_3": "0,1",
    }
    assert table["timedMessagesWaiting"] == "1"


async def test_what_left_the_log_before_its_time_is_told(start_broker, connect, clock, caplog):
    broker = await start_broker(store={"commitlog_segment_bytes": 4096})
    broker.topics.create_internal("orders", 1)
    ask = await connect(broker)
    for _ in range(20):
        await delayed(ask, 18, b"x" * 900)
    broker.store.flush(thorough=True)
    broker.store.delete_before(broker.store.commitlog_max_offset)
    later(broker, clock, 7200)
    left = broker.store.max_offset(SCHEDULE, 17) - broker.store.min_offset(SCHEDULE, 17)
    assert 0 < left < 20
    await eventually(lambda: broker.store.max_offset("orders", 0) == left)
    assert len(await ask.bodies("orders")) == left
    assert f"{20 - left} delayed messages of level 18 have left the log" in caplog.text


async def test_parked_messages_are_no_leftovers_of_a_topic(broker, clock, ask):
    await delayed(ask, 1)
    assert (await ask.send("orders", properties="TIMER_DELAY_SEC\x011\x02")).code == 0
    assert (await ask(316)).code == 0
    later(broker, clock, 1)
    assert len(await ask.bodies("orders")) == 2


def test_time_goes_on_at_its_pace_after_the_clock_was_set_back_however_often_it_is_asked(clock):
    forward = ForwardClock(clock)
    before = forward.now_ms()
    clock.jump_wall(-3600)
    for _ in range(10_000):
        clock.advance(0.0003)
        forward.now_ms()
    assert forward.now_ms() - before == pytest.approx(3000, abs=1)
