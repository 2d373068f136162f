"""Room ahead of the log's writes, and what becomes of it when the disk is full or the log is cut."""

import errno
import random
import threading
from pathlib import Path

import pytest

from sprocketmq.errors import StoreFailed
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.fs import RealFileSystem
from sprocketmq.storage.log import commit_log, preallocation
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.log.preallocation import Preallocator
from sprocketmq.storage.log.segments import segment_name
from sprocketmq.storage.store import MessageStore, StoreConfig
from sprocketmq.testing import wait_until
from sprocketmq.testing.rig.simulated_disk import MODES, SimFileSystem, SimulatedCrash

MIB = 1 << 20
WAIT_S = 60


class SlowFileSystem(RealFileSystem):
    """Files whose reservations wait until they may go on; ``reserved`` are the ranges, ``error`` fails them."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.reserved = []
        self.error = None
        self.threads = set()

    def open(self, path, **options):
        self.threads.add(threading.current_thread().name)
        file = super().open(path, **options)
        fs = self

        class Watched:
            def __getattr__(self, name):
                return getattr(file, name)

            def fallocate(self, offset, length):
                fs.began.set()
                assert fs.gate.wait(WAIT_S)
                if fs.error:
                    raise OSError(fs.error, "refused")
                fs.reserved.append((offset, length))

        watched = Watched()
        watched.path = path
        return watched


@pytest.fixture
def fs():
    return SlowFileSystem()


@pytest.fixture
def ahead(fs, tmp_path):
    made = Preallocator(fs, str(tmp_path), background=True)
    yield made
    fs.gate.set()
    made.close()


def until(condition):
    """Let the worker's thread go on until something holds."""
    wait_until(condition, timeout_s=WAIT_S)


def test_the_next_segment_is_made_in_another_thread(fs, ahead, tmp_path):
    path = str(tmp_path / segment_name(MIB))
    ahead.prepare(path, MIB, MIB)
    until(lambda: ahead.ready)
    assert fs.threads == {"sprocketmq-preallocate"}
    file = ahead.take(MIB)
    assert (file.path, file.size(), fs.reserved, ahead.reserved_end) == (path, MIB, [(0, MIB)], 2 * MIB)
    assert not ahead.ready
    assert ahead.take(MIB) is None
    file.close()


def test_blocks_are_reserved_in_calls_of_a_bounded_size_and_no_further_than_the_segment(fs, ahead, tmp_path):
    with_room = RealFileSystem().open(str(tmp_path / "segment"), create=True)
    watched = fs.open(str(tmp_path / "segment"))
    ahead.extend(watched, 0, 100 * MIB, 60 * MIB)
    until(lambda: ahead.reserved_end == 100 * MIB)
    assert fs.reserved == [(60 * MIB, 16 * MIB), (76 * MIB, 16 * MIB), (92 * MIB, 8 * MIB)]
    with_room.close()
    watched.close()


def test_only_one_job_runs_at_a_time(fs, ahead, tmp_path):
    fs.gate.clear()
    ahead.prepare(str(tmp_path / segment_name(0)), 0, MIB)
    assert fs.began.wait(WAIT_S)
    ahead.prepare(str(tmp_path / segment_name(MIB)), MIB, MIB)
    fs.gate.set()
    until(lambda: ahead.ready)
    file = ahead.take(0)
    assert not (tmp_path / segment_name(MIB)).exists()
    file.close()


def test_who_gets_there_first_takes_what_is_made_so_far(fs, ahead, tmp_path):
    fs.gate.clear()
    ahead.prepare(str(tmp_path / segment_name(0)), 0, 64 * MIB)
    assert fs.began.wait(WAIT_S)
    begun = ahead._generation

    def go_on_when_overtaken():
        until(lambda: ahead._generation > begun)
        fs.gate.set()

    opener = threading.Thread(target=go_on_when_overtaken)
    opener.start()
    file = ahead.take(0)
    opener.join()
    assert (file.size(), fs.reserved, ahead.reserved_end) == (64 * MIB, [(0, 16 * MIB)], 16 * MIB)
    file.close()


def test_a_full_disk_leaves_no_segment_behind(fs, ahead, tmp_path):
    fs.error = errno.ENOSPC
    ahead.prepare(str(tmp_path / segment_name(0)), 0, MIB)
    until(lambda: fs.began.is_set() and not ahead.busy)
    assert ahead.take(0) is None
    assert list(tmp_path.iterdir()) == []
    fs.error = None
    ahead.prepare(str(tmp_path / segment_name(0)), 0, MIB)
    until(lambda: ahead.ready)


def test_giving_up_takes_the_file_away_and_stopping_leaves_it(fs, tmp_path):
    for keep in (False, True):
        ahead = Preallocator(fs, str(tmp_path), background=False)
        ahead.prepare(str(tmp_path / segment_name(0)), 0, MIB)
        assert ahead.ready
        if not keep:
            ahead.reset()
        ahead.close()
        assert (ahead.ready, ahead.reserved_end) == (False, 0)
        assert (tmp_path / segment_name(0)).exists() == keep


def test_closing_ends_the_thread_and_another_job_starts_one(fs, ahead, tmp_path):
    ahead.prepare(str(tmp_path / segment_name(0)), 0, MIB)
    ahead.close()
    ahead.close()
    assert not any(t.name == "sprocketmq-preallocate" for t in threading.enumerate())
    ahead.prepare(str(tmp_path / segment_name(MIB)), MIB, MIB)
    until(lambda: ahead.ready)


# --- the log that uses it ---


@pytest.fixture
def make_log(tmp_path):
    made = []

    def make(segment_bytes=64 << 10, fs=None):
        log = CommitLog(fs or RealFileSystem(), str(tmp_path), segment_bytes, preallocate=True)
        log.load()
        log.end_at(0, cut=False)
        made.append(log)
        return log

    yield make
    for log in made:
        log.close()


def append(log, size=10_000):
    if log.staged_end + size + 8 > log.limit:
        log.roll()
    log.pieces.append(b"x" * size)
    log.staged_end += size
    log.commit()


def test_a_log_has_its_next_segment_before_it_needs_it(make_log, tmp_path):
    log = make_log()
    append(log)
    until(lambda: log.ahead.ready)
    assert sorted(p.name for p in tmp_path.iterdir()) == [segment_name(0), segment_name(65536)]
    assert len(log.segments) == 1
    for _ in range(6):
        append(log)
    assert [s.start for s in log.segments] == [0, 65536]
    assert log.segments[1].view[:10_000] == b"x" * 10_000
    log.flush()


def test_the_appender_reserves_what_the_thread_did_not(make_log, fs):
    fs.gate.clear()
    fs.gate.set()
    log = make_log(64 * MIB, fs)
    append(log, 4 * MIB)
    assert fs.reserved == [(0, 16 * MIB)]
    append(log, 4 * MIB)
    assert fs.reserved == [(0, 16 * MIB)]
    append(log, MIB)  # less than half of it is left: the next step
    assert fs.reserved[1:] == [(16 * MIB, 16 * MIB), (32 * MIB, 16 * MIB), (48 * MIB, 16 * MIB)]
    append(log, MIB)  # with all of it reserved, the next segment
    assert fs.reserved[4:] == [(0, 16 * MIB), (16 * MIB, 16 * MIB), (32 * MIB, 16 * MIB), (48 * MIB, 16 * MIB)]


@pytest.fixture
def at_once(monkeypatch):
    """Let each job of a log run in the call that asks for it."""
    monkeypatch.setattr(commit_log, "RealFileSystem", type(None))


class Reserved(SlowFileSystem):
    """Has ``free_bytes`` on its disk."""

    free_bytes = 1 << 40

    def usage(self, path):
        return self.free_bytes, self.free_bytes


def grow(log, until_end):
    while log.committed_end < until_end:
        append(log, 4 * MIB)


def test_a_segment_has_all_of_its_blocks_before_the_log_reaches_it(make_log, at_once):
    fs = Reserved()
    log = make_log(256 * MIB, fs)
    grow(log, 120 * MIB)
    assert sum(length for _, length in fs.reserved) == 144 * MIB, "two steps"
    assert not log.ahead.ready
    grow(log, 148 * MIB)
    assert log.ahead.ready, "half of the segment is written"
    grow(log, 200 * MIB)
    assert sum(length for _, length in fs.reserved) == 512 * MIB
    before = len(fs.reserved)
    grow(log, 256 * MIB + 120 * MIB)
    assert [s.start for s in log.segments] == [0, 256 * MIB]
    assert fs.reserved[before:] == [], "nothing is reserved where the log is written"
    grow(log, 256 * MIB + 200 * MIB)
    assert sum(length for _, length in fs.reserved) == 768 * MIB


def test_a_disk_that_is_nearly_full_keeps_its_room_for_other_files(make_log, at_once):
    fs = Reserved()
    fs.free_bytes = preallocation.ROOMY_SEGMENTS * 256 * MIB - 1
    log = make_log(256 * MIB, fs)
    grow(log, 250 * MIB)
    assert sum(length for _, length in fs.reserved) == 256 * MIB + preallocation.STEP_BYTES
    grow(log, 256 * MIB + 40 * MIB)
    assert sum(length for _, length in fs.reserved) == 256 * MIB + preallocation.STEP_BYTES, "as far as the log has not used them up"
    grow(log, 256 * MIB + 100 * MIB)
    assert sum(length for _, length in fs.reserved) == 256 * MIB + 2 * preallocation.STEP_BYTES


def test_cutting_the_log_gives_up_the_next_segment(make_log, tmp_path):
    log = make_log()
    append(log)
    until(lambda: log.ahead.ready and not log.ahead.busy)  # while it syncs the name the next request would be passed over
    log.end_at(10_000, cut=True)
    assert [p.name for p in tmp_path.iterdir()] == [segment_name(0)]
    append(log)
    until(lambda: log.ahead.ready)


def test_a_roll_over_many_segments_makes_those_nobody_made(make_log):
    log = make_log()
    for _ in range(20):
        log.pieces.append(b"y" * 60_000)
        log.staged_end += 60_000
        log.roll()
    log.pieces.append(b"z")
    log.staged_end += 1
    log.commit()
    assert [s.start for s in log.segments] == [i * 65536 for i in range(21)]
    assert all(bytes(s.view[:60_000]) == b"y" * 60_000 for s in log.segments[:-1])


def test_without_preallocation_there_is_no_thread_and_no_next_segment(tmp_path):
    log = CommitLog(RealFileSystem(), str(tmp_path), 64 << 10, preallocate=False)
    for _ in range(13):
        append(log)
    assert len(list(tmp_path.iterdir())) == len(log.segments) == 3
    log.close()
    assert not any(t.name == "sprocketmq-preallocate" for t in threading.enumerate())


def test_where_the_records_of_a_full_segment_end_is_known_until_it_is_cut(tmp_path):
    log = CommitLog(RealFileSystem(), str(tmp_path), 64 << 10, preallocate=False)
    for _ in range(7):
        append(log)
    assert [segment.written_end for segment in log.segments] == [60_008, 131_072]
    log.end_at(30_000, cut=True)
    assert [segment.written_end for segment in log.segments] == [65_536]
    log.close()


def test_a_store_that_stopped_ends_with_a_segment_of_zeros_and_opens_again(make_bench):
    bench = make_bench()
    bench.send(b"x" * 1000)
    bench.stop()
    assert bench.segment(65536).read_bytes() == bytes(65536)
    bench.reopen()
    assert bench.report.clean
    assert (bench.report.records, bench.report.cut_bytes) == (0, 0)
    for _ in range(100):
        bench.send(b"y" * 1000)
    assert len(bench.crash().bodies()) == 101
    assert bench.report.damaged == []


def test_the_numbers_fit_each_other():
    assert commit_log.PREALLOCATE_LOW_BYTES < commit_log.PREALLOCATE_STEP_BYTES <= preallocation.STEP_BYTES


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_while_segments_are_made_never_leaves_a_gap(mode):
    rng = random.Random(mode)
    config = StoreConfig(Path("/store"), commitlog_segment_bytes=4 << 10, consumequeue_segment_bytes=400)
    host = pack_host("127.0.0.1", 10911)

    def send_much(store):
        for count in (1, 20, 1, 30):  # within a segment, and over several at once, where nobody has made them
            for _ in range(count):
                store.stage_message("orders", 0, b"x" * 500, b"", tags_code=0, born_timestamp_ms=1, born_host=host)
            store.commit()

    whole = SimFileSystem()
    store = MessageStore(config, fs=whole)
    store.open()
    begin = whole.calls
    send_much(store)
    for call in range(begin, whole.calls):
        disk = SimFileSystem()
        store = MessageStore(config, fs=disk)
        store.open()
        disk.crash_at(call)
        with pytest.raises(SimulatedCrash):
            send_much(store)
        for _ in range(4):
            again = MessageStore(config, fs=disk.crash(rng, mode))
            again.open()
            send_much(again)
            again.close()


def test_a_segment_can_be_taken_before_its_name_is_on_the_disk(fs, ahead, tmp_path, monkeypatch):
    synced = []
    held = threading.Event()

    def fsync_dir(path):
        synced.append(path)
        if len(synced) == 2:
            assert held.wait(WAIT_S)

    monkeypatch.setattr(fs, "fsync_dir", fsync_dir, raising=False)
    ahead.prepare(str(tmp_path / segment_name(MIB)), MIB, MIB)
    until(lambda: len(synced) == 2)
    file = ahead.take(MIB)
    assert file.size() == MIB
    assert ahead.named != MIB
    held.set()
    until(lambda: ahead.named == MIB)
    file.close()


def test_a_name_that_did_not_reach_the_disk_fails_the_next_flush(make_log):
    fs = SlowFileSystem()
    log = make_log(64 << 10, fs)
    append(log)
    log.flush()
    log.ahead.failure = OSError(errno.EIO, "Input/output error")
    append(log)
    with pytest.raises(StoreFailed, match="Input/output"):
        log.flush()
    with pytest.raises(StoreFailed):
        append(log)
