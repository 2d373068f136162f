"""Old messages leave the store: file by file, step by step, on a full disk and across crashes."""

import errno
import random
from pathlib import Path

import pytest
from tests.inside import log_of

from sprocketmq.errors import StoreWriteFailed
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import decode_records, pack_host
from sprocketmq.storage import maintenance
from sprocketmq.storage.snapshot import Snapshot
from sprocketmq.storage.store import MessageStore, ReadStatus, StoreConfig
from sprocketmq.testing.rig.simulated_disk import MODES, SimFileSystem, SimulatedCrash

SEGMENT = 64 << 10
HOST = pack_host("127.0.0.1", 10911)
SIZES = {"commitlog_segment_bytes": SEGMENT, "consumequeue_segment_bytes": 20 * 20, "batchqueue_segment_bytes": 46 * 10}


def body_of(i):
    return b"%06d" % i + b"x" * 1000


def fill(bench, segments=5, queues=3):
    """Send to some queues in turn until the log has so many segments, flush, and return what each queue got."""
    sent = {queue: [] for queue in range(queues)}
    i = 0
    while len(bench.store.segments()) < segments or bench.store.commitlog_max_offset % SEGMENT < SEGMENT // 2:
        queue = i % queues
        bench.send(body_of(i), queue=queue)
        sent[queue].append(body_of(i))
        i += 1
    bench.store.flush(thorough=True)
    return sent


def run(steps, between=lambda: None):
    """Go through the steps of a deletion as a broker does; ``between`` is what it does meanwhile."""
    for work in steps:
        if work is not None:
            work()
        between()


def second_last(store):
    return store.segments()[-1][0]


def test_what_is_left_is_read_from_the_new_beginning(make_bench):
    bench = make_bench(**SIZES)
    sent = fill(bench)
    paths = []
    run(bench.store.delete_steps(second_last(bench.store), paths))
    assert len(bench.store.segments()) == 1
    assert not any(Path(path).exists() for path in paths)
    assert sum("consumequeue" in path for path in paths) > 3
    for queue, bodies in sent.items():
        low = bench.store.min_offset("orders", queue)
        assert 0 < low < len(bodies)
        assert bench.bodies(queue=queue) == bodies[low:]
        result = bench.store.read("orders", queue, 0)
        assert (result.status, result.next_offset, result.min_offset) == (ReadStatus.OFFSET_TOO_SMALL, low, low)
        assert bench.store.offset_by_time("orders", queue, 0) == low
        assert bench.store.store_time("orders", queue, low - 1) == -1


def test_steps_leave_what_one_call_leaves(make_bench):
    whole, stepped = make_bench("whole", **SIZES), make_bench("stepped", **SIZES)
    for bench in (whole, stepped):
        fill(bench)
    paths = []
    gone = whole.store.delete_before(second_last(whole.store))
    run(stepped.store.delete_steps(second_last(stepped.store), paths))
    assert sorted(p.replace("/whole/", "/stepped/") for p in gone) == sorted(paths)
    assert [whole.store.min_offset("orders", q) for q in range(3)] == [stepped.store.min_offset("orders", q) for q in range(3)]


def test_nobody_reads_what_has_left_the_log_while_the_steps_go_on(make_bench, monkeypatch):
    monkeypatch.setattr(maintenance, "QUEUES_PER_STEP", 1)
    bench = make_bench(**SIZES)
    sent = fill(bench, queues=10)
    store = bench.store
    seen = set()

    def look():
        for queue, bodies in sent.items():
            result = store.read("orders", queue, 0)
            assert result.status is ReadStatus.OFFSET_TOO_SMALL
            low = result.next_offset
            assert store.min_offset("orders", queue) == low
            first = decode_records(store.read("orders", queue, low, max_count=1).buffers[0])[0]
            assert first.body == bodies[low]
            seen.add((queue, low))
        bench.send(b"meanwhile", topic="other")

    run(store.delete_steps(second_last(store), []), look)
    assert len(seen) == 10
    assert set(bench.bodies("other")) == {b"meanwhile"}


def test_a_topic_deleted_between_the_steps_is_no_trouble(make_bench, monkeypatch):
    monkeypatch.setattr(maintenance, "QUEUES_PER_STEP", 1)
    bench = make_bench(**SIZES)
    fill(bench)
    bench.send(b"kept", topic="other")
    steps = bench.store.delete_steps(second_last(bench.store), [])
    next(steps)
    bench.store.delete_topic("orders")
    run(steps)
    assert bench.restart().bodies("other") == [b"kept"]
    assert bench.store.topics_on_disk() == ["other"]


def test_steps_that_nobody_goes_on_with_are_made_up_for_by_the_next_deletion(make_bench):
    bench = make_bench(**SIZES)
    sent = fill(bench, 6)
    steps = bench.store.delete_steps(bench.store.segments()[3][0], [])
    next(steps)
    steps.close()
    paths = []
    run(bench.store.delete_steps(second_last(bench.store), paths))
    low = bench.store.min_offset("orders", 0)
    assert bench.bodies() == sent[0][low:]
    assert not bench.queue_file().exists()
    assert bench.crash().bodies() == sent[0][low:]


def test_what_no_flush_has_brought_to_the_disk_stays(make_bench):
    bench = make_bench(**SIZES)
    while len(bench.store.segments()) < 4:
        bench.send(body_of(0))
    assert bench.store.delete_before(1 << 40) == []
    bench.store.flush()
    assert len(bench.store.delete_before(1 << 40)) >= 3


def test_a_queue_whose_messages_are_all_gone_keeps_its_offsets(make_bench):
    bench = make_bench(**SIZES)
    for _ in range(5):
        bench.send(b"early", topic="rare")
    fill(bench)
    run(bench.store.delete_steps(second_last(bench.store), []))
    for again in (bench, bench.restart(), bench.crash()):
        assert (again.store.min_offset("rare", 0), again.store.max_offset("rare", 0)) == (5, 5)
        assert again.store.read("rare", 0, 0).status is ReadStatus.OFFSET_TOO_SMALL
    assert bench.send(b"late", topic="rare")[0] == 5
    assert bench.bodies("rare") == [b"late"]


def test_batch_queues_begin_at_the_first_batch_that_is_left(make_bench):
    bench = make_bench(**SIZES)
    store = bench.store
    store.declare_batch_topic("lists")
    sent = 0
    while len(store.segments()) < 4:
        body = encode_batch([(0, body_of(sent + n), b"") for n in range(10)])
        store.stage_inner_batch("lists", 0, body, b"", count=10, tags_code=0, born_timestamp_ms=1, born_host=HOST)
        store.commit()
        sent += 10
    store.flush(thorough=True)
    paths = []
    run(store.delete_steps(second_last(store), paths))
    low = store.min_offset("lists", 0)
    assert low > 0
    assert low % 10 == 0
    assert store.read("lists", 0, 0).next_offset == low
    for again in (bench, bench.restart(), bench.crash()):
        result = again.store.read("lists", 0, low, max_count=10)
        assert [m.body for m in decode_records(result.buffers[0])] == [body_of(i) for i in range(low, low + 10)]
        assert again.store.max_offset("lists", 0) == sent


def test_index_files_go_with_the_messages_they_point_at(make_bench):
    bench = make_bench(**SIZES, max_hash_slots=20, max_index_entries=50)
    i = 0
    while len(bench.store.segments()) < 4:
        bench.stage(body_of(i), tag=None)
        properties = encode_properties({"KEYS": f"k{i}"})
        bench.store.stage_message("orders", 0, body_of(i), properties, tags_code=0, born_timestamp_ms=1, born_host=HOST)
        bench.store.commit()
        bench.clock.advance(1)
        i += 1
    bench.store.flush(thorough=True)
    before = len(list((bench.root / "index").iterdir()))
    paths = []
    run(bench.store.delete_steps(second_last(bench.store), paths))
    gone = [path for path in paths if "/index/" in path]
    assert gone
    assert len(list((bench.root / "index").iterdir())) == before - len(gone)
    assert bench.store.query("orders", "k0") == []
    assert len(bench.store.query("orders", f"k{i - 1}")) == 1


def test_a_full_disk_gets_its_space_back_before_anything_else_is_written(make_bench):
    bench = make_bench(**SIZES)
    sent = fill(bench)
    held = len(bench.store.segments())
    bench.fs.fail("pwrite", errno.ENOSPC, path="dispatched")
    run(bench.store.delete_steps(second_last(bench.store), []))
    assert len(list((bench.root / "commitlog").iterdir())) <= held
    assert len(log_of(bench.store).dropped) == 0
    low = bench.store.min_offset("orders", 0)
    assert bench.bodies() == sent[0][low:]
    # Its queue files stay: the snapshot that counts on them could not be replaced.
    assert bench.queue_file().exists()
    bench.fs.heal()
    assert bench.crash().bodies() == sent[0][low:]
    assert not bench.report.rebuilt


def test_a_disk_that_refuses_to_delete_is_an_error_and_the_store_goes_on(make_bench, monkeypatch):
    bench = make_bench(**SIZES)
    sent = fill(bench)
    with monkeypatch.context() as patch:

        def unlink(path):
            raise OSError(errno.EROFS, "Read-only file system", path)

        patch.setattr(bench.fs, "unlink", unlink, raising=False)
        with pytest.raises(StoreWriteFailed, match="Read-only"):
            run(bench.store.delete_steps(second_last(bench.store), []))
    assert bench.bodies() == sent[0]
    run(bench.store.delete_steps(second_last(bench.store), []))
    assert len(bench.store.segments()) == 1


def test_readers_keep_what_they_hold_and_the_space_comes_back_after_them(make_bench):
    bench = make_bench(**SIZES)
    sent = fill(bench)
    held = bench.store.read("orders", 0, 0, max_count=5).buffers
    run(bench.store.delete_steps(second_last(bench.store), []))
    assert len(log_of(bench.store).dropped) == 1
    assert [m.body for buffer in held for m in decode_records(buffer)] == sent[0][:5]
    bench.store.release_deleted()
    assert len(log_of(bench.store).dropped) == 1
    held.clear()
    bench.store.release_deleted()
    assert len(log_of(bench.store).dropped) == 0


def test_a_snapshot_from_before_the_logs_beginning_is_no_trouble(make_bench):
    bench = make_bench(**SIZES)
    sent = fill(bench, 3)
    old = (bench.root / "dispatched").read_bytes()
    for i in range(200):
        bench.send(body_of(i))
        sent[0].append(body_of(i))
    bench.store.flush()
    run(bench.store.delete_steps(second_last(bench.store), []))
    low = bench.store.min_offset("orders", 0)
    bench.kill()
    (bench.root / "dispatched").write_bytes(old)
    bench.reopen()
    assert bench.bodies() == sent[0][low:]
    assert bench.store.max_offset("orders", 0) == len(sent[0])


# --- crashes ---


def grown(fs):
    """A store of some segments on a simulated disk, flushed, and what queue 0 of it got."""
    store = MessageStore(StoreConfig(Path("/store"), commitlog_segment_bytes=8 << 10, consumequeue_segment_bytes=20 * 5), fs=fs)
    store.open()
    sent = []
    while len(store.segments()) < 5:
        sent.append(b"%04d" % len(sent) + b"y" * 400)
        store.stage_message("orders", 0, sent[-1], b"", tags_code=0, born_timestamp_ms=1, born_host=HOST)
        store.commit()
    store.flush(thorough=True)
    return store, sent


def read_all(store):
    low, high = store.min_offset("orders", 0), store.max_offset("orders", 0)
    found = []
    while low + len(found) < high:
        result = store.read("orders", 0, low + len(found), max_count=1000)
        assert result.status is ReadStatus.FOUND
        found += [m.body for buffer in result.buffers for m in decode_records(buffer, verify_crc=True)]
    return low, found


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_in_the_middle_of_a_deletion_loses_nothing_that_was_to_stay(mode):
    rng = random.Random(mode)
    fs = SimFileSystem()
    store, sent = grown(fs)
    begin = fs.calls
    position = second_last(store)
    run(store.delete_steps(position, []))
    end = fs.calls
    low_after, _ = read_all(store)
    assert end - begin > 5
    for call in range(begin, end + 1):
        disk = SimFileSystem()
        store, sent = grown(disk)
        assert disk.calls == begin
        disk.crash_at(call)
        try:
            run(store.delete_steps(position, []))
        except SimulatedCrash:
            pass
        else:
            assert call == end
        after = disk.crash(rng, mode)
        again = MessageStore(store.config, fs=after)
        report = again.open()
        low, found = read_all(again)
        assert low <= low_after
        assert found == sent[low:], (mode, call)
        assert report.damaged == []
        again.flush()
        run(again.delete_steps(position, []))
        assert read_all(again) == (low_after, sent[low_after:])
        again.close()


def in_one_go(store):
    store.delete_before(second_last(store))
    store.flush(thorough=True)


def with_a_flush_in_between(store):
    run(store.delete_steps(second_last(store), []), lambda: store.flush(thorough=True))


@pytest.mark.parametrize("delete", [in_one_go, with_a_flush_in_between])
@pytest.mark.parametrize("mode", MODES)
def test_queues_give_up_no_message_that_a_power_failure_can_bring_back(mode, delete):
    rng = random.Random(mode)
    disk = SimFileSystem()
    store, sent = grown(disk)
    places = [int.from_bytes(store.read("orders", 0, offset, max_count=1).buffers[0][28:36], "big") for offset in range(len(sent))]
    given_up = []

    def power_failure(_call, _path):
        after = disk.crash(rng, mode)
        snapshot = Snapshot.load(after, "/store")
        low = snapshot.queues[0].min_offset if snapshot is not None else 0
        log_min = min(int(path[-20:]) for path in after.paths() if path.startswith("/store/commitlog/"))
        assert low == 0 or places[low - 1] < log_min
        given_up.append(low)

    disk.on_call = power_failure
    delete(store)
    power_failure("", "")
    disk.on_call = None
    assert given_up[-1] == store.min_offset("orders", 0) > 0
    store.close()


def test_a_start_after_a_kill_brings_names_to_the_disk_that_the_killed_one_did_not():
    disk = SimFileSystem()
    config = StoreConfig(Path("/store"), commitlog_segment_bytes=8 << 10, preallocate=False)
    killed = MessageStore(config, fs=disk)
    killed.open()
    killed.stage_message("orders", 0, b"one", b"", tags_code=0, born_timestamp_ms=1, born_host=HOST)
    killed.commit()
    killed.abandon()
    store = MessageStore(config, fs=disk)
    store.open()
    store.stage_message("orders", 0, b"two", b"", tags_code=0, born_timestamp_ms=1, born_host=HOST)
    store.commit()
    store.flush()
    again = MessageStore(config, fs=disk.crash(random.Random(1), "drop"))
    again.open()
    assert read_all(again) == (0, [b"one", b"two"])
    again.close()
    store.close()
