"""A store comes back after an orderly stop and after a kill: everything committed, nothing else, and it goes on where it was."""

import random
import shutil
from typing import Any

import pytest
from tests.inside import queue_of

from sprocketmq.storage import maintenance
from sprocketmq.storage.log.recovery import parse_records
from sprocketmq.storage.store import ReadStatus

RESTARTS = ["restart", "crash"]


@pytest.mark.parametrize("how", RESTARTS)
def test_everything_committed_comes_back(bench: Any, how: str) -> None:
    sent = [b"%d" % i * (i % 50) for i in range(300)]
    for i, body in enumerate(sent):
        bench.send(body, queue=i % 3, tag="t")
    getattr(bench, how)()
    for queue in range(3):
        assert bench.bodies(queue=queue) == sent[queue::3]
    assert bench.send(b"next", queue=1)[0] == 100
    assert bench.report.clean == (how == "restart")
    assert (bench.report.cut_bytes, bench.report.damaged) == (0, [])


@pytest.mark.parametrize("how", RESTARTS)
def test_an_empty_store_comes_back_empty(bench: Any, how: str) -> None:
    getattr(bench, how)()
    assert bench.store.commitlog_max_offset == 0
    assert bench.send(b"first") == (0, 0)


def test_what_was_only_staged_is_gone_after_a_kill(bench: Any) -> None:
    bench.send(b"committed")
    bench.stage(b"staged")
    bench.crash()
    assert bench.bodies() == [b"committed"]


def test_an_orderly_start_reads_nothing_of_the_log(bench: Any) -> None:
    bench.send_batch([b"x" * 100] * 300)
    bench.restart()
    assert (bench.report.clean, bench.report.rebuilt, bench.report.records) == (True, False, 0)
    assert bench.report.scanned_from == bench.report.log_end == bench.store.commitlog_max_offset


def test_a_start_after_a_kill_reads_only_what_followed_the_last_thorough_flush(bench: Any) -> None:
    bench.send_batch([b"x" * 100] * 300)
    bench.store.flush(thorough=True)
    bench.send_batch([b"y" * 100] * 7)
    bench.store.flush()
    bench.crash()
    assert (bench.report.clean, bench.report.rebuilt, bench.report.records) == (False, False, 7)
    assert len(bench.bodies()) == 307
    assert bench.crash().report.records == 7


def test_a_long_way_since_the_last_thorough_flush_makes_the_next_one_thorough(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SNAPSHOT_EVERY_BYTES", 10_000)
    monkeypatch.setattr(maintenance, "SNAPSHOT_EVERY_BYTES_A_QUEUE", 0)
    bench.send_batch([b"x" * 1000] * 12)
    bench.store.flush()
    assert bench.crash().report.records == 0


def test_units_ahead_of_the_snapshot_are_taken_as_they_are(bench: Any) -> None:
    bench.send_batch([b"%d" % i for i in range(20)])
    bench.store.flush(thorough=True)
    mark = bench.store._appender.committed
    bench.send_batch([b"%d" % i for i in range(20, 120)])
    bench.store._appender.committed = mark  # a flush that began before these were committed, and saw their units all the same
    bench.store.flush(thorough=True)
    bench.crash()
    assert bench.report.records == 100
    assert bench.bodies() == [b"%d" % i for i in range(120)]
    assert bench.store.max_offset("orders", 0) == 120


@pytest.mark.parametrize("cut_at", [1, 3, 4, 8, 20, 50, 88, 95, 200, 300, 387])
def test_a_torn_last_record_is_cut_and_its_place_used_again(bench: Any, cut_at: int) -> None:
    bench.send_batch([b"a" * 300, b"b" * 300])
    _, torn = bench.send(b"c" * 300)
    end = bench.store.commitlog_max_offset
    bench.kill()
    with bench.segment().open("r+b") as f:
        f.seek(torn + cut_at)
        f.write(b"\0" * (end - torn - cut_at))
    bench.reopen()
    assert bench.bodies() == [b"a" * 300, b"b" * 300]
    assert bench.report.cut_bytes <= cut_at  # counted up to the last byte that is not zero
    assert bench.report.cut_bytes or cut_at < 3
    assert bench.report.damaged == []
    assert not bench.segment().read_bytes()[torn:].strip(b"\0")
    assert bench.send(b"d" * 300) == (2, torn)
    assert bench.crash().bodies() == [b"a" * 300, b"b" * 300, b"d" * 300]


def test_a_file_that_lost_its_tail_gets_its_length_back(bench: Any) -> None:
    bench.send_batch([b"a" * 300, b"b" * 300])
    _, torn = bench.send(b"c" * 300)
    bench.kill()
    with bench.segment().open("r+b") as f:
        f.truncate(torn + 100)
    bench.reopen()
    assert bench.bodies() == [b"a" * 300, b"b" * 300]
    assert bench.segment().stat().st_size == 65536
    bench.send(b"d")
    assert bench.crash().bodies()[-1] == b"d"


def test_remnants_behind_a_torn_record_never_come_back(bench: Any) -> None:
    """The record behind a torn one was written before; a new record of the torn one's length must not bring it back to life."""
    bench.send(b"a" * 300)
    _, torn = bench.send(b"b" * 300)
    bench.clock.advance(-60)
    bench.send(b"c" * 300)
    bench.kill()
    data = bytearray(bench.segment().read_bytes())
    size = bench.store.commitlog_max_offset  # closed: nothing is located any more, so take lengths from the file
    size = int.from_bytes(data[torn : torn + 4], "big")
    data[torn + size : torn + 2 * size] = data[torn + size : torn + 2 * size].replace(b"c", b"C")  # its CRC no longer fits
    data[torn + 100 : torn + 110] = b"\0" * 10
    bench.segment().write_bytes(data)
    bench.reopen()
    assert bench.bodies() == [b"a" * 300]
    bench.send(b"d" * 300)
    assert bench.crash().bodies() == [b"a" * 300, b"d" * 300]


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("field", [0, 4, 8, 28, 84, 150])
def test_damage_in_the_middle_costs_the_damaged_record_only(bench: Any, how: str, field: int) -> None:
    sent = [b"%03d" % i + b"x" * 200 for i in range(100)]
    places = [bench.send(body)[1] for body in sent]
    getattr(bench, how)()
    data = bytearray(bench.segment().read_bytes())
    data[places[40] + field + 3] ^= 0x55
    bench.segment().write_bytes(data)
    (bench.root / "dispatched").unlink(missing_ok=True)  # so that the whole log is read
    bench.reopen()
    assert bench.bodies() == sent[:40] + sent[41:]
    assert [(d.start, d.end) for d in bench.report.damaged] == [(places[40], places[41])]
    assert bench.store.max_offset("orders", 0) == 100
    assert bench.send(b"more")[0] == 100


@pytest.mark.parametrize("field", [12, 20])
def test_damage_no_checksum_covers_costs_that_record_only(bench: Any, field: int) -> None:
    """Queue id and queue offset: the record is whole, but says it is another queue's or another offset's."""
    sent = [b"%03d" % i + b"x" * 200 for i in range(100)]
    places = [bench.send(body)[1] for body in sent]
    bench.kill()
    data = bytearray(bench.segment().read_bytes())
    data[places[40] + field + (3 if field == 12 else 7)] ^= 0x55
    bench.segment().write_bytes(data)
    bench.reopen()
    assert bench.bodies() == sent[:40] + sent[41:]
    assert bench.send(b"more")[0] == 100


def test_damage_over_the_end_of_a_segment_does_not_hide_the_next(bench: Any) -> None:
    sent = [b"%03d" % i + b"x" * 1000 for i in range(150)]
    places = [bench.send(body)[1] for body in sent]
    bench.kill()
    last = max(i for i, place in enumerate(places) if place < 65536)
    data = bytearray(bench.segment().read_bytes())
    data[places[last] :] = random.Random(1).randbytes(65536 - places[last])
    bench.segment().write_bytes(data)
    bench.reopen()
    assert bench.bodies() == sent[:last] + sent[last + 1 :]
    assert [(d.start, d.end) for d in bench.report.damaged] == [(places[last], 65536)]


def test_a_later_segment_without_a_single_record_is_put_aside_not_deleted(bench: Any) -> None:
    for i in range(100):
        bench.send(b"%03d" % i + b"x" * 1000)
    bench.kill()
    bench.segment(65536).write_bytes(b"garbage!" * 8192)
    bench.reopen()
    assert bench.store.commitlog_max_offset == 65536
    assert bench.report.cut_bytes == 65536
    assert (bench.root / "damaged" / "00000000000000065536").read_bytes() == b"garbage!" * 8192
    bench.send_batch([b"y" * 1000] * 10)
    bench.crash()
    assert bench.bodies()[-1] == b"y" * 1000


def test_a_preallocated_empty_segment_at_the_end_is_no_trouble(bench: Any) -> None:
    bench.send(b"x")
    bench.stop()
    bench.segment(65536).write_bytes(b"\0" * 65536)
    bench.segment(131072).write_bytes(b"")
    bench.reopen()
    assert bench.bodies() == [b"x"]
    for _ in range(100):
        bench.send(b"y" * 1000)
    assert len(bench.crash().bodies()) == 101


def test_a_log_that_begins_later_keeps_its_queue_offsets(bench: Any) -> None:
    sent = [b"%03d" % i + b"x" * 1000 for i in range(200)]
    for i, body in enumerate(sent):
        bench.send(body, queue=i % 2)
    bench.send(b"old", queue=5)
    bench.restart()
    bench.stop()
    bench.segment(0).unlink()
    first = next(i for i, body in enumerate(sent) if body in bench.segment(65536).read_bytes())
    bench.reopen()
    low = bench.store.min_offset("orders", 0)
    assert low == (first + 1) // 2
    assert bench.bodies(queue=0) == sent[2 * low :: 2]
    assert bench.store.read("orders", 0, 0).status is ReadStatus.OFFSET_TOO_SMALL
    # The same from the log alone.
    bench.stop()
    (bench.root / "dispatched").unlink()
    bench.reopen()
    assert bench.report.rebuilt
    assert bench.store.min_offset("orders", 0) == low
    assert bench.bodies(queue=0) == sent[2 * low :: 2]
    assert bench.send(b"new", queue=0)[0] == 100


def test_a_queue_whose_messages_all_left_the_log_keeps_counting(bench: Any) -> None:
    for i in range(60):
        bench.send(b"%d" % i, queue=7)
    for _ in range(100):
        bench.send(b"x" * 1000)
    bench.stop()
    bench.segment(0).unlink()
    for forget in (False, True):
        if forget:
            (bench.root / "dispatched").unlink()
        bench.reopen()
        assert bench.report.rebuilt == forget
        assert (bench.store.min_offset("orders", 7), bench.store.max_offset("orders", 7)) == (60, 60)
        bench.stop()
    bench.reopen()
    assert bench.send(b"new", queue=7)[0] == 60


def test_a_deleted_topic_stays_deleted_whatever_happens_next(bench: Any) -> None:
    for i in range(10):
        bench.send(b"old %d" % i)
        bench.send(b"other", topic="payments")
    bench.store.flush(thorough=True)
    bench.send(b"old")
    bench.store.delete_topic("orders")
    bench.store.delete_topic("never-there")
    assert bench.store.topics_on_disk() == ["payments"]
    assert bench.store.max_offset("orders", 0) == 0
    assert not (bench.root / "consumequeue" / "orders").exists()
    bench.crash()
    assert bench.store.topics_on_disk() == ["payments"]
    bench.queue_file("payments").unlink()
    bench.crash()
    assert bench.report.rebuilt
    assert bench.store.topics_on_disk() == ["payments"]
    assert bench.send(b"new")[0] == 0
    bench.crash()
    assert bench.bodies() == [b"new"]
    assert len(bench.bodies("payments")) == 10


def test_a_topic_deleted_and_made_again_has_only_its_new_messages_even_without_the_note(bench: Any) -> None:
    for i in range(120):
        bench.send(b"old %d" % i)
    bench.store.delete_topic("orders")
    for i in range(30):
        bench.send(b"new %d" % i)
    bench.kill()
    (bench.root / "dispatched").unlink()
    bench.reopen()
    assert bench.bodies() == [b"new %d" % i for i in range(30)]
    assert bench.restart().bodies() == [b"new %d" % i for i in range(30)]


def test_a_kill_between_the_steps_of_a_deletion_does_no_harm(bench: Any, eio: int) -> None:
    bench.send(b"x")
    bench.store.flush(thorough=True)
    bench.fs.remove_tree = lambda path: None
    bench.store.delete_topic("orders")
    del bench.fs.remove_tree
    assert bench.queue_file().exists()
    bench.crash()
    assert bench.store.topics_on_disk() == []
    assert not bench.queue_file().exists()
    assert bench.send(b"new")[0] == 0


def test_segments_grow_with_whatever_size_the_store_has(make_bench: Any) -> None:
    bench = make_bench(commitlog_segment_bytes=8192)
    for i in range(50):
        bench.send(b"%d" % i * 300)
    bench.stop()
    bench.config["commitlog_segment_bytes"] = 1 << 20
    bench.config["consumequeue_segment_bytes"] = 6_000_000
    bench.reopen()
    for i in range(50, 100):
        bench.send(b"%d" % i * 300)
    bench.store.flush(thorough=True)
    assert {path.stat().st_size for path in (bench.root / "commitlog").iterdir()} == {8192}
    assert {path.stat().st_size for path in bench.queue_file().parent.iterdir()} == {1000}
    assert bench.crash().bodies() == [b"%d" % i * 300 for i in range(100)]


def test_a_record_larger_than_a_scan_window_is_read(make_bench: Any) -> None:
    bench = make_bench(commitlog_segment_bytes=16 << 20, max_message_bytes=8 << 20)
    sent = [b"small", b"L" * (5 << 20), b"small again", b"M" * 70_000]
    for body in sent:
        bench.send(body)
    assert bench.crash().bodies() == sent
    assert bench.report.damaged == []


def test_parked_messages_get_their_delivery_time_back(bench: Any) -> None:
    properties = b"DELAY\x013\x02TAGS\x01a\x02"
    bench.store.stage_message("SCHEDULE_TOPIC_XXXX", 2, b"x", properties, tags_code=0, born_timestamp_ms=1, born_host=b"12345678")
    bench.store.commit()
    bench.crash()
    assert queue_of(bench.store, "SCHEDULE_TOPIC_XXXX", 2).unit(0)[2] == bench.clock.time_ms() + 10_000


def test_halves_of_transactions_and_inner_batches_get_no_plain_unit(bench: Any) -> None:
    for sys_flag in (0x4, 0xC, 0x8, 0x0):
        bench.send(b"%d" % sys_flag, queue=sys_flag, sys_flag=sys_flag)
    bench.store.declare_batch_topic("batches")
    bench.send_inner_batch([b"a", b"b"], topic="batches")
    bench.kill()
    for path in (bench.root / "consumequeue").rglob("0*0"):
        path.unlink()
    shutil.rmtree(bench.root / "batchconsumequeue")
    bench.reopen()
    assert [queue for queue in (0x4, 0xC, 0x8, 0x0) if bench.store.max_offset("orders", queue)] == [0x8, 0x0]
    assert bench.store.topics_on_disk() == ["orders"]


def test_topics_that_were_given_batch_queues_get_them_from_the_log(bench: Any) -> None:
    bench.send_batch([b"x", b"y"], topic="batches")
    bench.send(b"z", topic="declared")
    bench.kill()
    (bench.root / "batchconsumequeue" / "batches" / "0").mkdir(parents=True)
    (bench.root / "config" / "topics.json").write_text('{"topicConfigTable":{"declared":{"attributes":{"queue.type":"BatchCQ"}}}}')
    for topic in ("batches", "declared"):
        assert not (bench.root / "consumequeue" / topic).exists()
    bench.reopen()
    assert bench.bodies("batches") == [b"x", b"y"]
    assert bench.bodies("declared") == [b"z"]
    bench.restart()
    assert not list((bench.root / "consumequeue").iterdir())
    for topic in ("batches", "declared"):
        assert (bench.root / "batchconsumequeue" / topic / "0" / f"{0:020d}").exists()


def test_topics_in_the_log_that_are_no_directory_names_are_passed_over(bench: Any) -> None:
    bench.send(b"x", topic="aaaaaaaa")
    bench.send(b"y", topic="good")
    bench.kill()
    bench.segment().write_bytes(bench.segment().read_bytes().replace(b"aaaaaaaa", b"../../up"))
    bench.reopen()
    assert bench.store.topics_on_disk() == ["good"]
    assert not (bench.root.parent / "up").exists()
    assert bench.report.records == 2


def test_impossible_queue_offsets_in_the_log_cost_no_memory(bench: Any) -> None:
    bench.send(b"x")
    _, second = bench.send(b"y")
    bench.send(b"z", queue=1)
    bench.kill()
    for offset in (1 << 40, 1 << 62):
        data = bytearray(bench.segment().read_bytes())
        data[second + 20 : second + 28] = offset.to_bytes(8, "big")
        bench.segment().write_bytes(data)
        bench.reopen()
        assert bench.store.max_offset("orders", 0) == 1
        assert bench.bodies(queue=1) == [b"z"]
        bench.kill()


def test_no_bytes_make_the_record_parser_fail(bench: Any) -> None:
    bench.send_batch([b"%d" % i * 20 for i in range(20)], tag="a")
    good = bench.segment().read_bytes()[: bench.store.commitlog_max_offset]
    rng = random.Random(7)
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.choice((1, 4, 8))] = rng.choice((b"\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\x80\0\0\0", rng.randbytes(8)))
        cut = rng.randrange(len(data)) if rng.random() < 0.3 else len(data)
        records, used, wanted = parse_records(memoryview(data)[:cut], 0, 65536, check_crc=True)
        assert used == sum(record.size for record in records) <= cut
        assert 0 <= wanted <= 65536


@pytest.mark.parametrize("before", [1, 4, 5])
def test_a_last_record_that_claims_to_begin_its_queue_again_costs_only_itself(bench: Any, before: int) -> None:
    """No checksum covers a record's queue offset. A deleted topic would begin again with it, but the store has noted no deletion."""
    for i in range(before):
        bench.send(b"%d" % i)
    bench.store.flush(thorough=True)
    _, place = bench.send(b"damaged")
    bench.kill()
    with bench.segment().open("r+b") as f:
        f.seek(place + 20)
        f.write(bytes(8))
    bench.reopen()
    assert bench.bodies() == [b"%d" % i for i in range(before)]
    assert bench.send(b"next")[0] == before


def test_a_lone_queue_file_that_lost_its_end_sets_no_size_for_the_others(bench: Any) -> None:
    """A power failure may leave a file short, with zeros at its end where writes were lost."""
    bench.send(b"one")
    bench.store.flush(thorough=True)
    bench.kill()
    path = bench.queue_file()
    path.write_bytes(path.read_bytes()[:380])
    bench.reopen()
    bench.send(b"two", queue=1)
    bench.stop()
    assert {p.stat().st_size for p in (bench.root / "consumequeue").rglob("0*") if p.is_file()} == {1000}
    assert bench.reopen().bodies() == [b"one"]
