"""Messages staged and committed come back by queue offset: whole, in order, within limits, filtered by tag."""

import mmap
from typing import Any

import pytest

from sprocketmq.errors import InvalidMessage, MessageTooLarge
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.records import encode_record, pack_host
from sprocketmq.storage.queues.reading import MAX_BUFFERS
from sprocketmq.storage.store import ReadStatus

BIG = 1 << 30


def test_a_message_comes_back_as_it_was_sent(bench: Any) -> None:
    offset, physical = bench.send(b"hello", tag="a", flag=7, reconsume_times=2)
    (m,) = bench.messages()
    assert (offset, physical) == (0, 0)
    assert (m.body, m.topic, m.queue_id, m.queue_offset, m.commitlog_offset) == (b"hello", "orders", 0, 0, 0)
    assert (m.tag, m.flag, m.reconsume_times, m.born_timestamp_ms) == ("a", 7, 2, 5)
    assert m.store_timestamp_ms == bench.clock.time_ms()
    assert (m.born_host, m.store_host) == ("192.0.2.7:40001", "127.0.0.1:10911")


def test_what_is_staged_is_invisible_until_commit(bench: Any) -> None:
    bench.stage(b"one")
    assert bench.store.max_offset("orders", 0) == 0
    assert bench.store.read("orders", 0, 0).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    bench.store.commit()
    assert bench.bodies() == [b"one"]
    bench.stage(b"two")
    assert bench.store.read("orders", 0, 1).status is ReadStatus.OFFSET_OVERFLOW_ONE
    bench.store.commit()
    assert bench.bodies() == [b"one", b"two"]


def test_discarded_messages_give_their_offsets_back(bench: Any) -> None:
    bench.send(b"kept")
    end = bench.store.commitlog_max_offset
    assert bench.stage(b"dropped") == (1, end)
    bench.stage_batch([b"dropped", b"too"], queue=3)
    bench.store.discard()
    assert bench.send(b"next") == (1, end)
    assert bench.bodies() == [b"kept", b"next"]
    assert bench.store.max_offset("orders", 3) == 0


def test_queues_count_on_their_own(bench: Any) -> None:
    for i in range(12):
        assert bench.send(b"%d" % i, queue=i % 3)[0] == i // 3
    assert bench.bodies(queue=1) == [b"1", b"4", b"7", b"10"]
    assert bench.send(b"other", topic="payments")[0] == 0
    assert bench.store.topics_on_disk() == ["orders", "payments"]


def test_a_commit_writes_everything_staged_with_one_call(bench: Any) -> None:
    bench.send(b"first")  # creates the segment
    bench.fs.calls.clear()
    for i in range(50):
        bench.stage(b"%d" % i, queue=i % 4)
    bench.store.commit()
    assert [call for call, path in bench.fs.calls if "commitlog" in path] == ["pwritev"]
    bench.fs.calls.clear()
    bench.send_batch([b"x" * 100] * 50)
    assert [call for call, path in bench.fs.calls if "commitlog" in path] == ["pwrite"]


def test_a_batch_becomes_records_of_their_own(bench: Any) -> None:
    bench.send(b"before")
    first, places = bench.send_batch([b"a", b"bb", b"", b"dddd"], tag="t")
    assert first == 1
    messages = bench.messages(start=1)
    assert [m.body for m in messages] == [b"a", b"bb", b"", b"dddd"]
    assert [m.queue_offset for m in messages] == [1, 2, 3, 4]
    assert [m.commitlog_offset for m in messages] == places
    assert all(m.tag == "t" and m.keys == ["k"] for m in messages)
    assert len({m.store_timestamp_ms for m in messages}) == 1
    assert bench.store.stage_batch("orders", 0, [], sys_flag=0, born_timestamp_ms=1, born_host=b"12345678") == (5, [])


def test_the_hot_paths_write_what_the_record_codec_writes(bench: Any) -> None:
    common = {
        "topic": b"orders",
        "queue_id": 5,
        "born_timestamp_ms": 77,
        "born_host": pack_host("192.0.2.7", 1),
        "store_timestamp_ms": bench.clock.time_ms(),
        "store_host": bench.store.store_host,
        "sys_flag": 0x301,
        "reconsume_times": 3,
    }
    shared = {"sys_flag": 0x301, "born_timestamp_ms": 77, "born_host": common["born_host"], "reconsume_times": 3}
    bench.store.stage_message("orders", 5, b"body", b"TAGS\x01a\x02", tags_code=1, flag=9, **shared)
    first = encode_record(body=b"body", properties=b"TAGS\x01a\x02", queue_offset=0, physical_offset=0, flag=9, **common)
    entries = [(4, memoryview(b"x" * 300), b""), (0, memoryview(b""), b"KEYS\x01k")]
    bench.store.stage_batch("orders", 5, entries, **shared)
    bench.store.commit()
    expected = first
    for i, (flag, body, properties) in enumerate(entries):
        expected += encode_record(body=body, properties=properties, queue_offset=i + 1, physical_offset=len(expected), flag=flag, **common)
    assert bench.segment().read_bytes()[: len(expected)] == expected
    assert bytes(bench.store.read("orders", 5, 0).buffers[0]) == expected


@pytest.mark.parametrize("born", ["192.0.2.7", "2001:db8::7"])
@pytest.mark.parametrize("store", ["127.0.0.1", "::1"])
def test_hosts_of_both_families_are_stored(bench: Any, born: str, store: str) -> None:
    bench.store.store_host = pack_host(store, 1)
    common = {"born_timestamp_ms": 1, "born_host": pack_host(born, 2)}
    bench.store.stage_message("orders", 0, b"single", b"TAGS\x01a\x02", tags_code=97, **common)
    bench.store.stage_batch("orders", 0, [(0, memoryview(b"batch"), b"TAGS\x01b\x02")] * 2, sys_flag=0, **common)
    bench.store.commit()
    bench.crash()
    messages = bench.messages()
    assert [(m.body, m.tag) for m in messages] == [(b"single", "a"), (b"batch", "b"), (b"batch", "b")]
    assert {m.born_host.rpartition(":")[0].strip("[]") for m in messages} == {born}
    assert {m.store_host.rpartition(":")[0].strip("[]") for m in messages} == {store}
    assert bench.bodies(tag_codes=frozenset({98})) == [b"batch", b"batch"]


def test_a_topic_over_127_bytes_takes_the_second_record_version(bench: Any) -> None:
    topic = "%RETRY%" + "g" * 130
    bench.send(b"late", topic=topic, tag="x")
    bench.send_batch([b"later", b"latest"], topic=topic)
    assert bench.segment().read_bytes()[4:8] == bytes.fromhex("daa320ab")
    bench.crash()
    assert [(m.topic, m.body) for m in bench.messages(topic)] == [(topic, b"late"), (topic, b"later"), (topic, b"latest")]


def test_neighbours_in_the_log_come_as_one_view_of_the_mapping(bench: Any) -> None:
    bench.send_batch([b"%d" % i for i in range(30)])
    bench.send(b"elsewhere", queue=1)
    bench.send_batch([b"%d" % i for i in range(20)])
    result = bench.store.read("orders", 0, 0, max_count=100)
    assert (result.status, result.count, result.next_offset, len(result.buffers)) == (ReadStatus.FOUND, 50, 50, 2)
    assert all(isinstance(buffer.obj, mmap.mmap) and buffer.readonly for buffer in result.buffers)


def test_many_small_runs_come_as_one_copy(bench: Any) -> None:
    for i in range(2 * (MAX_BUFFERS + 5)):
        bench.stage(b"%d" % i, queue=i % 2)
    bench.store.commit()
    result = bench.store.read("orders", 0, 0, max_count=MAX_BUFFERS)
    assert len(result.buffers) == MAX_BUFFERS
    result = bench.store.read("orders", 0, 0, max_count=MAX_BUFFERS + 1)
    assert (len(result.buffers), result.count) == (1, MAX_BUFFERS + 1)
    assert len(bench.bodies(max_count=1000)) == MAX_BUFFERS + 5


def test_a_view_outlives_the_store(bench: Any) -> None:
    bench.send(b"still here")
    (view,) = bench.store.read("orders", 0, 0).buffers
    bench.stop()
    assert b"still here" in bytes(view)


def test_limits_of_count_and_bytes_hold_and_one_message_always_comes(bench: Any) -> None:
    bench.send_batch([b"x" * 900] * 20)
    size = bench.store.read("orders", 0, 0, max_count=1).buffers[0].nbytes
    assert bench.store.read("orders", 0, 3, max_count=7).next_offset == 10
    assert bench.store.read("orders", 0, 0, max_bytes=size * 5, max_count=BIG).count == 5
    assert bench.store.read("orders", 0, 0, max_bytes=size * 5 - 1, max_count=BIG).count == 4
    assert bench.store.read("orders", 0, 0, max_bytes=0).count == 1
    assert bench.store.read("orders", 0, 0, max_count=0).count == 1
    assert bench.store.read("orders", 0, 0, max_count=BIG, max_bytes=BIG).count == 20


def test_limits_hold_across_runs_too(bench: Any) -> None:
    for i in range(40):
        bench.stage(b"x" * 500, queue=i % 2)
    bench.store.commit()
    size = bench.store.read("orders", 0, 0, max_count=1).buffers[0].nbytes
    for wanted in range(1, 20):
        result = bench.store.read("orders", 1, 0, max_bytes=size * wanted, max_count=BIG)
        assert (result.count, sum(map(len, result.buffers))) == (wanted, size * wanted)


def test_offsets_outside_the_queue_say_where_to_go_on(bench: Any) -> None:
    assert bench.store.read("nobody", 0, 5).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    bench.send_batch([b"x"] * 3)
    at_end = bench.store.read("orders", 0, 3)
    assert (at_end.status, at_end.next_offset, at_end.min_offset, at_end.max_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 3, 0, 3)
    beyond = bench.store.read("orders", 0, 9)
    assert (beyond.status, beyond.next_offset) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 3)
    below = bench.store.read("orders", 0, -1)
    assert (below.status, below.next_offset, below.buffers) == (ReadStatus.OFFSET_TOO_SMALL, 0, [])


def test_only_wanted_tags_come_and_the_scan_moves_on(make_bench: Any) -> None:
    bench = make_bench(max_filter_units=50)
    for i in range(200):
        bench.stage(b"%d" % i, tag="even" if i % 2 == 0 else "odd")
    bench.stage(b"untagged")
    bench.store.commit()
    even = frozenset({tags_code("even")})
    result = bench.store.read("orders", 0, 0, max_count=10, tag_codes=even)
    assert (result.count, result.next_offset) == (10, 19)
    assert bench.bodies(tag_codes=even) == [b"%d" % i for i in range(0, 200, 2)]
    assert bench.bodies(tag_codes=even | {tags_code("odd")}) == [b"%d" % i for i in range(200)]
    nothing = bench.store.read("orders", 0, 0, tag_codes=frozenset({12345}))
    assert (nothing.status, nothing.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 50)


@pytest.mark.parametrize(("max_count", "reached"), [(1, 800), (32, 800), (900, 900)])
def test_a_filtered_read_looks_at_16000_bytes_of_units_or_what_was_asked_for(bench: Any, max_count: int, reached: int) -> None:
    for _ in range(10):
        bench.send_batch([b"x"] * 100)
    result = bench.store.read("orders", 0, 0, max_count=max_count, tag_codes=frozenset({12345}))
    assert (result.status, result.next_offset, result.work) == (ReadStatus.NO_MATCHED_MESSAGE, reached, reached)


def test_tags_of_a_batch_are_found_wherever_they_stand(bench: Any) -> None:
    properties = [
        b"TAGS\x01a\x02KEYS\x01k\x02",
        b"KEYS\x01k\x02TAGS\x01a\x02",
        b"KEYS\x01k\x02TAGS\x01a",
        b"MYTAGS\x01a\x02",
        b"K\x01TAGS\x02",
        b"",
    ]
    entries = [(0, memoryview(b"%d" % i), p) for i, p in enumerate(properties)]
    bench.store.stage_batch("orders", 0, entries, sys_flag=0, born_timestamp_ms=1, born_host=b"12345678")
    bench.store.commit()
    wanted = frozenset({tags_code("a")})
    assert bench.bodies(tag_codes=wanted) == [b"0", b"1", b"2"]
    assert bench.crash().bodies(tag_codes=wanted) == [b"0", b"1", b"2"]
    assert bench.bodies(tag_codes=frozenset({0})) == [b"3", b"4", b"5"]


def test_a_record_is_found_by_its_place_in_the_log(bench: Any) -> None:
    _, first = bench.send(b"one")
    _, second = bench.send(b"two")
    record = bench.store.record_at(second)
    assert record is not None
    assert b"two" in bytes(record)
    for nowhere in (first + 1, bench.store.commitlog_max_offset, -1, 1 << 60):
        assert bench.store.record_at(nowhere) is None


def test_messages_over_the_limits_are_refused_and_nothing_of_them_is_staged(make_bench: Any) -> None:
    bench = make_bench(max_message_bytes=1000)
    common = {"tags_code": 0, "born_timestamp_ms": 1, "born_host": b"12345678"}
    with pytest.raises(MessageTooLarge) as caught:
        bench.stage(b"x" * 1001)
    assert (caught.value.size, caught.value.limit) == (1001, 1000)
    with pytest.raises(InvalidMessage, match="limit is 32767"):
        bench.store.stage_message("orders", 0, b"", b"p" * 32768, **common)
    with pytest.raises(MessageTooLarge):
        bench.stage_batch([b"x" * 900] * 80)  # more than a segment
    assert bench.send(b"x" * 1000) == (0, 0)
    assert bench.send_batch([b"x"] * 2)[0] == 1


@pytest.mark.parametrize("topic", ["../../etc", "a/b", "", ".", "..", "a\0b", "x" * 300, "tøpic"])
def test_a_topic_that_is_no_directory_name_is_refused(bench: Any, topic: str) -> None:
    with pytest.raises(InvalidMessage, match="is not valid"):
        bench.stage(b"x", topic=topic)
    with pytest.raises(InvalidMessage, match="queue id"):
        bench.stage(b"x", queue=-1)


def test_records_never_cross_segments_and_a_blank_fills_the_rest(bench: Any) -> None:
    sent = [b"%04d" % i + b"x" * (i * 37 % 3000) for i in range(200)]
    for i, body in enumerate(sent):
        if i % 5 == 4:
            bench.store.commit()
        bench.stage(body)
    bench.store.commit()
    assert bench.bodies(max_count=64) == sent
    assert len(list((bench.root / "commitlog").iterdir())) > 3
    first = bench.segment().read_bytes()
    last = max((m for m in bench.messages() if m.commitlog_offset < 65536), key=lambda m: m.commitlog_offset)
    blank_at = last.commitlog_offset + last.store_size
    assert int.from_bytes(first[blank_at : blank_at + 4], "big") == 65536 - blank_at
    assert first[blank_at + 4 : blank_at + 8] == bytes.fromhex("cbd43194")
    assert bench.crash().bodies(max_count=1000) == sent


def test_a_record_that_leaves_exactly_eight_bytes_still_fits(make_bench: Any) -> None:
    bench = make_bench(commitlog_segment_bytes=4096)
    _, start = bench.send(b"")
    size = bench.store.commitlog_max_offset
    for _ in range((4096 - 8) // size - 1):
        bench.send(b"")
    left = 4096 - 8 - bench.store.commitlog_max_offset
    if left:
        bench.send(b"x" * max(0, left - size)) if left >= size else None
    bench.send_batch([b"", b""])
    assert all(m.commitlog_offset % 4096 + m.store_size <= 4088 for m in bench.messages())
    assert bench.crash().store.max_offset("orders", 0) == len(bench.messages())
    assert start == 0


def test_a_batch_never_spans_two_segments(bench: Any) -> None:
    for _ in range(12):
        _, places = bench.send_batch([b"x" * 1000] * 20)
        assert places[0] // 65536 == places[-1] // 65536
    assert len(bench.bodies()) == 240


def test_store_times_never_go_back(bench: Any) -> None:
    bench.send(b"1")
    bench.clock.jump_wall(-3600)
    bench.send(b"2")
    bench.send_batch([b"3"])
    times = [m.store_timestamp_ms for m in bench.messages()]
    assert times == sorted(times)
    bench.crash().send(b"4")
    assert bench.messages()[-1].store_timestamp_ms == times[-1]


def test_the_messages_of_a_commit_have_one_store_time(bench: Any) -> None:
    """Also the first one after a commit, and the first of the next segment, is at most as old as its own staging."""
    times = []
    for _ in range(2):
        bench.clock.advance(1.0)
        times += [bench.clock.time_ms()] * 3
        for _ in range(3):
            bench.stage(b"x" * 30_000)  # a segment has room for two
            bench.clock.advance(0.001)
        bench.store.commit()
    found = [m.store_timestamp_ms for m in bench.messages()]
    assert found == sorted(found)
    assert all(0 <= at - since <= 2 for at, since in zip(found, times, strict=True))


def test_thousands_of_messages_in_one_commit(bench: Any) -> None:
    for i in range(3000):
        bench.stage(b"%d" % i)
    bench.store.commit()
    assert bench.bodies(max_count=5000) == [b"%d" % i for i in range(3000)]
