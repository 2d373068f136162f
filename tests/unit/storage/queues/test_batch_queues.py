"""Topics with batch queues: a batch is one record and one unit, is found by any offset in it, and is never cut."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.inside import forget_mapped, queue_of

from sprocketmq.errors import FatalError, InvalidMessage, MessageTooLarge
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.layout import BATCH_UNIT
from sprocketmq.protocol.records import decode_records, pack_host
from sprocketmq.storage.store import ReadStatus

STOPS = ["restart", "crash"]


@pytest.fixture
def batches(bench: Any) -> Any:
    bench.store.declare_batch_topic("orders")
    return bench


def bodies_of(base: int, count: int) -> list[bytes]:
    return [b"%d" % i for i in range(base, base + count)]


def fill(bench: Any, counts: list[int], queue: int = 0, **extra: Any) -> None:
    """Send batches of these sizes; every body is its own queue offset."""
    base = bench.store.max_offset("orders", queue)
    for count in counts:
        assert bench.send_inner_batch(bodies_of(base, count), queue=queue, **extra)[0] == base
        base += count


def all_read(bench: Any, queue: int = 0, topic: str = "orders", **limits: Any) -> bool:
    """Return whether every message between the queue's ends is read, in order and with its own body."""
    messages = bench.messages(topic, queue, **limits)
    low, high = bench.store.min_offset(topic, queue), bench.store.max_offset(topic, queue)
    assert [m.queue_offset for m in messages] == list(range(low, high))
    assert [m.body for m in messages] == bodies_of(low, high - low)
    return bool(messages)


def units(bench: Any, queue: int = 0) -> list[tuple[int, ...]]:
    files = sorted((bench.root / "batchconsumequeue" / "orders" / str(queue)).glob("*"))
    data = b"".join(path.read_bytes() for path in files)
    return [unit for unit in BATCH_UNIT.iter_unpack(data) if unit[1]]


def read_range(bench: Any, offset: int, count: int, **limits: Any) -> tuple[int, int, int]:
    result = bench.store.read("orders", 0, offset, max_count=count, max_bytes=1 << 20, **limits)
    found = [m.queue_offset for buffer in result.buffers for m in decode_records(buffer, verify_crc=True)]
    assert found == list(range(found[0], found[-1] + 1))
    assert result.count == len(found)
    return found[0], found[-1], result.next_offset


# --- what is stored ---


def test_a_batch_is_one_record_with_one_unit(batches: Any) -> None:
    placed = batches.send_inner_batch([b"a", b"b", b"c"], tag="t")
    assert placed == (0, 0)
    placed = batches.send_inner_batch([b"d", b"e"])
    assert placed[0] == 3
    first, second = decode_records(batches.store.record_at(0)), decode_records(batches.store.record_at(placed[1]))
    assert [m.body for m in first + second] == [b"a", b"b", b"c", b"d", b"e"]
    assert first[0].sys_flag & 0xC0 == 0xC0
    raw = bytes(batches.store.record_at(placed[1]))
    assert raw.endswith(b"UNIQ_KEY\x01u\x02INNER_NUM\x012\x02INNER_BASE\x013\x02")
    batches.store.flush(thorough=True)
    now = batches.clock.time_ms()
    assert units(batches) == [
        (0, placed[1], tags_code("t"), now, 0, 3, -1, 0),
        (placed[1], len(raw), 0, now, 3, 2, -1, 0),
    ]
    assert not (batches.root / "consumequeue" / "orders").exists()


def test_singles_and_exploded_batches_get_a_unit_each(batches: Any) -> None:
    batches.send(b"0", tag="t")
    assert batches.send_batch([b"1", b"2", b"3"], tag="u")[0] == 1
    fill(batches, [4, 1])
    batches.send(b"9")
    assert all_read(batches)
    batches.store.flush(thorough=True)
    assert [unit[4:6] for unit in units(batches)] == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 4), (8, 1), (9, 1)]
    assert [m.sys_flag for m in batches.messages()][:4] == [0] * 4


@pytest.mark.parametrize("stop", STOPS)
def test_ipv6_hosts_and_long_topic_names_are_kept(make_bench: Callable[..., Any], stop: str) -> None:
    bench = make_bench(batchqueue_segment_bytes=46 * 3)
    topic = "%RETRY%" + "g" * 180
    bench.store.declare_batch_topic(topic)
    bench.store.store_host = pack_host("2001:db8::1", 10911)
    for base in range(0, 20, 2):
        born = pack_host("2001:db8::2", base + 1) if base % 4 else pack_host("192.0.2.7", 40001)
        body = encode_batch([(0, body, b"") for body in bodies_of(base, 2)])
        bench.store.stage_inner_batch(topic, 1, body, b"", count=2, tags_code=0, born_timestamp_ms=1, born_host=born)
        bench.store.commit()
    getattr(bench, stop)()
    assert all_read(bench, 1, topic)
    assert {m.born_host for m in bench.messages(topic, 1)} == {f"[2001:db8::2]:{base + 1}" for base in range(2, 20, 4)} | {
        "192.0.2.7:40001"
    }


def test_a_batch_that_does_not_fit_goes_to_the_next_segment(batches: Any) -> None:
    sizes = [7, 300, 1, 40]
    for _ in range(40):
        fill(batches, sizes)
    assert len(batches.store.segments()) > 1
    assert all_read(batches)
    assert all_read(batches.crash())


# --- what is refused ---


def test_an_inner_batch_on_a_topic_without_batch_queues_is_refused(bench: Any) -> None:
    with pytest.raises(InvalidMessage, match="no batch queues"):
        bench.send_inner_batch([b"a"])
    with pytest.raises(InvalidMessage, match="inner batch"):
        bench.send(b"a", sys_flag=0x80)
    assert bench.store.topics_on_disk() in ([], ["orders"])
    assert bench.store.commitlog_max_offset == 0


@pytest.mark.parametrize("count", [0, -1, 32768])
def test_a_count_that_does_not_fit_a_unit_is_refused(batches: Any, count: int) -> None:
    with pytest.raises(InvalidMessage, match="1 to 32767"):
        batches.store.stage_inner_batch("orders", 0, b"", b"", count=count, tags_code=0, born_timestamp_ms=1, born_host=b"12345678")


@pytest.mark.parametrize("properties", [b"INNER_NUM\x015\x02", b"A\x01b\x02INNER_BASE\x010", b"k\x01" + b"v" * 32740])
def test_properties_that_lie_about_the_batch_or_are_too_long_are_refused(batches: Any, properties: bytes) -> None:
    with pytest.raises(InvalidMessage):
        batches.store.stage_inner_batch("orders", 0, b"", properties, count=1, tags_code=0, born_timestamp_ms=1, born_host=b"12345678")
    batches.store.commit()
    assert batches.store.commitlog_max_offset == 0


def test_a_batch_over_the_limit_is_refused(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(max_message_bytes=1000)
    bench.store.declare_batch_topic("orders")
    with pytest.raises(MessageTooLarge):
        bench.send_inner_batch([b"x" * 999])
    with pytest.raises(MessageTooLarge):
        bench.send_batch([b"x" * 1001])
    fill(bench, [2])
    assert all_read(bench)


def test_a_topic_with_messages_cannot_change_its_kind_of_queue(bench: Any) -> None:
    bench.send(b"x")
    with pytest.raises(FatalError, match="plain queues"):
        bench.store.declare_batch_topic("orders")
    with pytest.raises(InvalidMessage):
        bench.store.declare_batch_topic("../orders")
    bench.store.declare_batch_topic("batches")
    bench.store.declare_batch_topic("batches")
    assert bench.store.batch_topics == {"batches"}


def test_what_is_discarded_or_refused_by_the_disk_leaves_no_trace(batches: Any) -> None:
    fill(batches, [3])
    batches.stage_inner_batch([b"never"] * 5)
    batches.store.discard()
    fill(batches, [2, 2])
    batches.stage_inner_batch([b"never"] * 5)
    batches.stage(b"never")
    batches.fs.fail("pwrite", 28, path="commitlog")
    batches.fs.fail("pwritev", 28, path="commitlog")
    with pytest.raises(Exception, match="No space"):
        batches.store.commit()
    batches.fs.heal()
    assert batches.store.max_offset("orders", 0) == 7
    fill(batches, [1])
    assert all_read(batches)
    assert all_read(batches.crash())


# --- reading ---


def test_reads_return_what_apaches_broker_was_seen_to_return(batches: Any) -> None:
    fill(batches, [2, 5, 1, 17, 3, 40])
    assert read_range(batches, 0, 1) == (0, 1, 2)
    assert read_range(batches, 0, 3) == (0, 1, 2)
    assert read_range(batches, 0, 7) == (0, 6, 7)
    assert read_range(batches, 0, 32) == (0, 27, 28)
    assert read_range(batches, 3, 32) == (2, 27, 28)
    assert read_range(batches, 10, 1) == (8, 24, 25)
    assert read_range(batches, 67, 32) == (28, 67, 68)
    at_end = batches.store.read("orders", 0, 68)
    assert (at_end.status, at_end.next_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 68)
    behind = batches.store.read("orders", 0, 69)
    assert (behind.status, behind.next_offset) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 68)


def test_the_stop_count_is_looked_at_before_a_batch_is_added(batches: Any) -> None:
    fill(batches, [12] * 8)
    assert read_range(batches, 0, 64, stop_count=32) == (0, 35, 36)
    assert read_range(batches, 0, 64) == (0, 59, 60)
    assert read_range(batches, 0, 64, stop_count=0) == (0, 11, 12)


def test_bytes_limit_a_read_but_one_batch_always_comes(batches: Any) -> None:
    for base in (0, 3, 6):
        batches.send_inner_batch([b"x" * 500] * 3)
        assert batches.store.max_offset("orders", 0) == base + 3
    one = batches.store.read("orders", 0, 0, max_bytes=1)
    assert (one.count, one.next_offset) == (3, 3)
    size = len(one.buffers[0])
    assert batches.store.read("orders", 0, 0, max_bytes=2 * size - 1).count == 3
    two = batches.store.read("orders", 0, 1, max_bytes=2 * size)
    assert (two.count, two.next_offset, len(two.buffers)) == (6, 6, 1)


def test_every_offset_finds_its_batch_in_memory_and_in_any_file(batches: Any) -> None:
    rng = random.Random(11)
    counts = [rng.choice([1, 1, 2, 3, 30]) for _ in range(700)]
    fill(batches, counts)
    assert len(list((batches.root / "batchconsumequeue" / "orders" / "0").iterdir())) > 50
    starts = [sum(counts[:i]) for i in range(len(counts))]
    for _ in range(2):
        for start, count in zip(starts, counts, strict=True):
            for offset in {start, start + count // 2, start + count - 1}:
                assert read_range(batches, offset, 1) == (start, start + count - 1, start + count)
        batches.restart()


def test_a_filtered_read_looks_at_16000_bytes_of_units_counted_by_their_messages(batches: Any) -> None:
    fill(batches, [10] * 50, tag="a")
    nobody = frozenset({tags_code("b")})
    result = batches.store.read("orders", 0, 0, tag_codes=nobody)
    assert (result.status, result.next_offset, result.work) == (ReadStatus.NO_MATCHED_MESSAGE, 350, 350)
    assert batches.store.read("orders", 0, 350, tag_codes=nobody).next_offset == 500
    assert batches.store.read("orders", 0, 0, max_count=400, tag_codes=nobody).next_offset == 400


def test_a_filtered_read_passes_over_batches_with_other_tags(batches: Any) -> None:
    fill(batches, [3, 3], tag="a")
    fill(batches, [4], tag="b")
    fill(batches, [2])
    found = batches.messages(tag_codes=frozenset({tags_code("b")}))
    assert [m.queue_offset for m in found] == [6, 7, 8, 9]
    result = batches.store.read("orders", 0, 1, tag_codes=frozenset({tags_code("c")}))
    assert (result.status, result.next_offset, result.buffers) == (ReadStatus.NO_MATCHED_MESSAGE, 12, [])


def test_batches_that_are_no_neighbours_come_in_order(batches: Any) -> None:
    for base in range(0, 200, 2):
        batches.send_inner_batch(bodies_of(base, 2))
        batches.send(b"between", topic="others")
    assert read_range(batches, 0, 10) == (0, 9, 10)
    assert read_range(batches, 0, 500) == (0, 199, 200)


def test_times_find_batches_as_in_the_reference(batches: Any) -> None:
    times = []
    for base in range(0, 40, 4):
        batches.clock.advance(10)
        times.append(batches.clock.time_ms())
        batches.send_inner_batch(bodies_of(base, 4))

    def look(timestamp_ms: int, *, upper: bool = False) -> int:
        return batches.store.offset_by_time("orders", 0, timestamp_ms, upper=upper)

    for _ in range(2):
        for i, time_ms in enumerate(times):
            assert look(time_ms) == look(time_ms, upper=True) == 4 * i
            assert look(time_ms - 1) == 4 * i
            assert look(time_ms - 1, upper=True) == max(4 * i - 4, 0)
            assert batches.store.store_time("orders", 0, 4 * i + 3) == time_ms
        assert look(0) == look(0, upper=True) == 0
        assert look(times[-1] + 1) == 36  # the reference gives the last batch, not the end
        assert batches.store.store_time("orders", 0, 40) == -1
        assert batches.store.earliest_store_time("orders", 0) == times[0]
        batches.restart()


def test_equal_times_give_the_first_or_the_last_batch_of_them(batches: Any) -> None:
    fill(batches, [2] * 300)
    when = batches.clock.time_ms()
    batches.clock.advance(1)
    fill(batches, [2])
    assert batches.store.offset_by_time("orders", 0, when) == 0
    assert batches.store.offset_by_time("orders", 0, when, upper=True) == 598


def test_a_queue_nobody_wrote_to_is_empty(batches: Any) -> None:
    assert batches.store.read("orders", 3, 0).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    assert (batches.store.min_offset("orders", 3), batches.store.max_offset("orders", 3)) == (0, 0)
    assert batches.store.offset_by_time("orders", 3, 5) == 0


# --- coming back ---


@pytest.mark.parametrize("stop", STOPS)
def test_batches_come_back_and_the_offsets_go_on(batches: Any, stop: str) -> None:
    for round_ in range(4):
        fill(batches, [1, 5, 2] * 20, queue=round_ % 2)
        if round_ == 1:
            batches.store.flush(thorough=True)
        getattr(batches, stop)()
        assert batches.report.damaged == []
        if stop == "restart":
            assert batches.report.records == 0
    assert all_read(batches, 0)
    assert all_read(batches, 1)


def test_the_files_after_a_crash_are_those_after_an_orderly_stop(make_bench: Callable[..., Any]) -> None:
    kept = []
    for stop in STOPS:
        bench = make_bench(stop)
        bench.store.declare_batch_topic("orders")
        fill(bench, [1, 5, 2] * 30)
        bench.store.flush(thorough=True)
        fill(bench, [9] * 30)
        getattr(bench, stop)()
        bench.stop()
        files = sorted((bench.root / "batchconsumequeue" / "orders" / "0").glob("*"))
        kept.append([(path.name, path.read_bytes()) for path in files])
    assert kept[0] == kept[1]
    assert [name for name, _ in kept[0]] == [f"{460 * i:020d}" for i in range(12)]


@pytest.mark.parametrize("stop", STOPS)
def test_a_snapshot_from_before_batch_queues_makes_the_log_be_read(batches: Any, stop: str) -> None:
    fill(batches, [4] * 40)
    batches.send(b"plain", topic="others")
    batches.store.flush(thorough=True)
    getattr(batches, "stop" if stop == "restart" else "kill")()
    raw = (batches.root / "dispatched").read_bytes()
    from sprocketmq.protocol.hashing import crc32

    old = raw[:4] + (1).to_bytes(4, "big") + raw[8:36] + (0).to_bytes(4, "big")
    name = b"others"
    plain_length = 2 + len(name) + 32 - 4
    old = old[:32] + (1).to_bytes(4, "big") + (0).to_bytes(4, "big") + raw[48 : 48 + plain_length]
    (batches.root / "dispatched").write_bytes(old + crc32(old).to_bytes(4, "big"))
    batches.reopen()
    assert batches.report.reason == "the queue snapshot does not know batch queues"
    assert all_read(batches)
    assert batches.bodies("others") == [b"plain"]


def test_a_deleted_topic_may_come_back_with_the_other_kind_of_queues(batches: Any) -> None:
    fill(batches, [3] * 50)
    batches.store.delete_topic("orders")
    assert batches.store.batch_topics == frozenset()
    assert not (batches.root / "batchconsumequeue" / "orders").exists()
    batches.send(b"plain")
    for stop in STOPS:
        getattr(batches, stop)()
        assert batches.bodies() == [b"plain"]
    batches.store.delete_topic("orders")
    batches.store.declare_batch_topic("orders")
    fill(batches, [2, 2])
    for stop in STOPS:
        getattr(batches, stop)()
        assert all_read(batches)
        assert batches.store.max_offset("orders", 0) == 4


def test_a_topic_without_messages_may_come_back_with_the_other_kind_of_queues(bench: Any) -> None:
    bench.store.declare_batch_topic("orders")
    bench.store.delete_topic("orders")
    assert bench.store.batch_topics == frozenset()
    assert not (bench.root / "batchconsumequeue" / "orders").exists()
    bench.send(b"plain")
    bench.restart()
    assert bench.bodies() == [b"plain"]
    assert (bench.root / "consumequeue" / "orders" / "0").exists()


def test_what_a_deletion_left_behind_does_not_decide_about_a_new_topic(batches: Any) -> None:
    fill(batches, [3] * 20)
    batches.store.flush(thorough=True)
    batches.fs.remove_tree = lambda path: None  # type: ignore[method-assign]
    batches.store.delete_topic("orders")
    del batches.fs.remove_tree
    assert (batches.root / "batchconsumequeue" / "orders" / "0").exists()
    batches.crash()
    assert batches.store.batch_topics == frozenset()
    assert not (batches.root / "batchconsumequeue" / "orders").exists()


# --- SYNC_FLUSH ---


def test_with_sync_flush_readers_see_what_was_published_after_a_flush(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(flush_disk_type="SYNC_FLUSH")
    store = bench.store
    store.declare_batch_topic("orders")
    bench.send_inner_batch(bodies_of(0, 3))
    bench.send(b"plain", topic="others")
    assert (store.max_offset("orders", 0), store.max_offset("others", 0)) == (0, 0)
    assert store.read("orders", 0, 0).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    assert store.commitlog_visible_offset == store.commitlog_flushed_offset == 0
    end = store.flush()
    assert end == store.commitlog_max_offset == store.commitlog_flushed_offset
    bench.send_inner_batch(bodies_of(3, 2))
    store.publish(end)
    assert store.commitlog_visible_offset == end
    assert all_read(bench)
    assert (store.max_offset("orders", 0), bench.bodies("others")) == (3, [b"plain"])
    assert store.read("orders", 0, 3).status is ReadStatus.OFFSET_OVERFLOW_ONE
    store.publish(store.flush())
    assert store.max_offset("orders", 0) == 5
    assert all_read(bench)


def test_with_sync_flush_everything_recovered_is_flushed_and_visible(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(flush_disk_type="SYNC_FLUSH")
    bench.store.declare_batch_topic("orders")
    bench.send_inner_batch(bodies_of(0, 3))
    bench.crash()
    assert bench.store.commitlog_flushed_offset == bench.store.commitlog_visible_offset == bench.store.commitlog_max_offset > 0
    assert all_read(bench)


def test_reading_uncommitted_shows_what_is_written(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(flush_disk_type="SYNC_FLUSH", read_uncommitted=True)
    bench.send(b"x")
    assert bench.bodies() == [b"x"]
    assert bench.store.commitlog_visible_offset == bench.store.commitlog_max_offset > bench.store.commitlog_flushed_offset


# --- damage ---


DAMAGES = ["zeros", "bases", "counts", "places", "sizes", "noise", "short", "gone"]


def damage(path: Any, how: str, at: int, rng: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    fields = {"bases": (28, 8), "counts": (36, 2), "places": (0, 8), "sizes": (8, 4), "zeros": (0, 46), "noise": (0, 46)}
    if how == "short":
        path.write_bytes(raw[: at * 46 + 20])
    elif how == "gone":
        path.unlink()
    else:
        start, length = fields[how]
        raw[at * 46 + start : at * 46 + start + length] = bytes(length) if how == "zeros" else rng.randbytes(length)
        path.write_bytes(raw)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_unit_is_made_anew_when_it_is_read(batches: Any, how: str) -> None:
    rng = random.Random(5)
    fill(batches, [1, 4, 2, 7] * 200)
    batches.restart()
    whole = [path.read_bytes() for path in sorted((batches.root / "batchconsumequeue" / "orders" / "0").iterdir())]
    for number in (0, 3, 41, 78):
        forget_mapped(batches.store)
        damage(batches.batch_file(start=460 * number), how, rng.randrange(10), rng)
        assert all_read(batches, max_count=rng.choice([1, 10, 1000]))
    batches.store.flush(thorough=True)
    if how not in {"short", "gone"}:
        assert [path.read_bytes() for path in sorted((batches.root / "batchconsumequeue" / "orders" / "0").iterdir())] == whole


@pytest.mark.parametrize("how", DAMAGES)
def test_lookups_are_right_in_damaged_files(batches: Any, how: str) -> None:
    rng = random.Random(6)
    times = {}
    counts = [1, 4, 2, 7] * 150
    base = 0
    for count in counts:
        batches.clock.advance(1)
        for offset in range(base, base + count):
            times[offset] = batches.clock.time_ms()
        fill(batches, [count])
        base += count
    batches.restart()
    for _ in range(25):
        forget_mapped(batches.store)
        for number in rng.sample(range(60), 3):
            damage(batches.batch_file(start=460 * number), how, rng.randrange(10), rng)
        offset = rng.randrange(base)
        assert batches.store.store_time("orders", 0, offset) == times[offset]
        first, last, _ = read_range(batches, offset, 1)
        assert first <= offset <= last
        assert batches.store.offset_by_time("orders", 0, times[offset]) == first
        if how in {"short", "gone"}:  # a start makes them whole, so that there is something to damage next time
            batches.crash()
    assert all_read(batches)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("how", ["zeros", "ones", "random", "gone", "short"])
def test_a_damaged_unit_is_not_taken_for_one_whose_record_has_left_the_log(batches: Any, how: str, number: int) -> None:
    fill(batches, [1 + i % 5 for i in range(1500)])
    batches.store.flush()
    batches.store.delete_before(batches.config["commitlog_segment_bytes"])
    low, high = batches.store.min_offset("orders", 0), batches.store.max_offset("orders", 0)
    first = queue_of(batches.store, "orders", 0).min_unit
    assert 0 < low < high
    batches.stop()
    path = batches.batch_file(start=(first // 10 + number) * 460)
    size = path.stat().st_size
    match how:
        case "zeros":
            path.write_bytes(bytes(size))
        case "ones":
            path.write_bytes(b"\xff" * size)
        case "random":
            path.write_bytes(random.Random(number).randbytes(size))
        case "gone":
            path.unlink()
        case "short":
            path.write_bytes(path.read_bytes()[:100])
    batches.reopen()
    for end in (1, 2):
        messages = batches.messages()
        assert [m.body for m in messages] == bodies_of(low, high - low), end
        assert (batches.store.min_offset("orders", 0), batches.store.max_offset("orders", 0)) == (low, high)
        batches.store.flush()
        batches.store.delete_before(2 * batches.config["commitlog_segment_bytes"])
        low = batches.store.min_offset("orders", 0)


def test_a_batch_whose_record_is_damaged_is_passed_over(batches: Any) -> None:
    fill(batches, [3] * 30)
    places = [batches.messages()[3 * i].commitlog_offset for i in range(30)]
    with batches.segment().open("r+b") as log:
        for lost in (7, 29):
            log.seek(places[lost])
            log.write(b"\xff" * 60)
    found = [m.queue_offset for m in batches.messages()]
    assert found == [i for i in range(90) if i // 3 not in {7, 29}]
    assert batches.store.max_offset("orders", 0) == 90
    assert batches.store.store_time("orders", 0, 22) == -1
    fill(batches, [2])
    assert [m.queue_offset for m in batches.messages()] == [*found, 90, 91]
    batches.crash()
    assert [m.queue_offset for m in batches.messages()] == [*found, 90, 91]


# --- what has expired ---


def test_deleting_old_segments_moves_the_min_offsets_to_whole_batches(batches: Any) -> None:
    for base in range(0, 3000, 3):
        batches.send_inner_batch([body.rjust(100) for body in bodies_of(base, 3)])
        batches.send(b"%d" % base, topic="others")
    batches.store.flush(thorough=True)
    segments = batches.store.segments()
    assert len(segments) > 5
    paths = batches.store.delete_before(segments[3][0] + 1)
    assert [path for path in paths if "commitlog" in path] == [path for _, _, path in segments[:3]]
    assert batches.store.commitlog_min_offset == segments[3][0]
    for topic in ("orders", "others"):
        low = batches.store.min_offset(topic, 0)
        first = batches.messages(topic)[0]
        assert first.queue_offset == low > 0
        assert batches.store.read(topic, 0, low - 1).status is ReadStatus.OFFSET_TOO_SMALL
        assert first.commitlog_offset >= segments[3][0]
        assert [path for path in paths if f"/{topic}/" in path]
    low = batches.store.min_offset("orders", 0)
    assert low % 3 == 0
    for stop in STOPS:
        getattr(batches, stop)()
        assert batches.report.reason == ""
        assert batches.store.min_offset("orders", 0) == low
        assert [int(m.body) for m in batches.messages()] == list(range(low, 3000))


@pytest.mark.parametrize("stop", STOPS)
def test_a_queue_that_expired_as_a_whole_keeps_its_offsets(batches: Any, stop: str) -> None:
    fill(batches, [5] * 10)
    batches.send(b"x", topic="others")
    while len(batches.store.segments()) < 3:
        batches.send(b"x" * 3000, topic="filler")
    batches.store.flush(thorough=True)
    batches.store.delete_before(batches.store.segments()[-1][0])
    for _ in range(2):
        for topic, end in (("orders", 50), ("others", 1)):
            assert (batches.store.min_offset(topic, 0), batches.store.max_offset(topic, 0)) == (end, end)
            assert batches.store.read(topic, 0, end).status is ReadStatus.OFFSET_OVERFLOW_ONE
        getattr(batches, stop)()
    (batches.root / "dispatched").unlink()
    getattr(batches, stop)()
    assert batches.store.min_offset("orders", 0) == 50
    fill(batches, [2])
    assert all_read(batches)


def test_the_segment_written_to_and_what_is_not_flushed_stay(batches: Any) -> None:
    while len(batches.store.segments()) < 3:
        batches.send_inner_batch([b"x" * 1000] * 3)
    assert batches.store.delete_before(1 << 40) == []
    batches.store.flush()
    last = batches.store.segments()[-1]
    batches.store.delete_before(1 << 40)
    assert batches.store.segments() == [last]
    batches.send_inner_batch([b"y"])
    assert batches.bodies()[-1] == b"y"
    batches.store.release_deleted()
