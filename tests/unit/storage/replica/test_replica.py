"""A replica that gets the raw bytes of its master's log, cut anywhere, ends up with the master's log, queues and index, byte for byte."""

import errno
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sprocketmq.errors import FatalError, LogOffsetOutside, ReplicaGap, StoreFailed, StoreIsReplica, StoreWriteFailed
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.codes import SYSFLAG_BORN_HOST_V6
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.names import SCHEDULE_TOPIC
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.replica import dispatching
from sprocketmq.storage.replica.replica import Replica
from sprocketmq.storage.store import MessageStore

BATCH_TOPICS = ("lists", "more-lists")
PLAIN_TOPICS = ("orders", "%RETRY%billing", "%RETRY%" + "g" * 130)
MakeBench = Callable[..., object]


def declare(bench):
    for topic in BATCH_TOPICS:
        bench.store.declare_batch_topic(topic)


def send(bench, rng: random.Random) -> None:
    """Stage one thing of any kind the broker stages, and commit it now and then."""
    store = bench.store
    kind = rng.random()
    topic, queue = rng.choice(PLAIN_TOPICS + BATCH_TOPICS), rng.randrange(3)
    tag = rng.choice((None, "a", "b"))
    body = rng.randbytes(rng.choice((0, 1, 40, 300, 3000)))
    keys = {"KEYS": f"k{rng.randrange(50)} k{rng.randrange(50)}", "UNIQ_KEY": f"{rng.getrandbits(128):032X}"} if rng.random() < 0.7 else {}
    text = encode_properties({**({"TAGS": tag} if tag else {}), **keys})
    common = {"born_timestamp_ms": 5, "born_host": pack_host("192.0.2.7", 40001)}
    if kind < 0.5:
        store.stage_message(topic, queue, body, text, tags_code=tags_code(tag), **common)
    elif kind < 0.65:
        bench.stage_batch([rng.randbytes(30) for _ in range(rng.choice((1, 2, 30)))], topic, queue, tag=tag)
    elif kind < 0.8:
        batch = encode_batch([(0, rng.randbytes(20), b"") for _ in range(5)])
        store.stage_inner_batch(rng.choice(BATCH_TOPICS), queue, batch, text, count=5, tags_code=tags_code(tag), **common)
    elif kind < 0.88:
        level = rng.randrange(1, 5)
        parked = text + encode_properties({"DELAY": str(level), "REAL_TOPIC": "orders", "REAL_QID": "0"})
        delay = (1000, 5000, 10_000, 30_000)[level - 1]
        store.stage_copy(SCHEDULE_TOPIC, level - 1, body, parked, copied_from=None, delay_ms=delay, **common)
    elif kind < 0.94:
        store.stage_message(PLAIN_TOPICS[0], queue, body, text, tags_code=tags_code(tag), sys_flag=rng.choice((4, 8, 12)), **common)
    else:
        common["born_host"] = pack_host("2001:db8::7", 40001)
        store.stage_message(topic, queue, body, text, tags_code=tags_code(tag), sys_flag=SYSFLAG_BORN_HOST_V6, **common)
    bench.clock.advance(rng.choice((0, 0.01, 3)))
    if rng.random() < 0.5:
        store.commit()


def fill(bench, rng: random.Random, count: int = 300) -> None:
    declare(bench)
    for _ in range(count):
        send(bench, rng)
    bench.store.commit()


def pump(master: MessageStore, replica: Replica, rng: random.Random, *, largest: int = 40_000, stop: int | None = None) -> None:
    """Bring the replica up to the master's end, or to ``stop``, in pieces of any size, dispatching now and then."""
    stop = master.commitlog_max_offset if stop is None else stop
    while replica.end < stop:
        data = master.raw(replica.end, min(rng.choice((1, 7, 91, 1000, largest)), stop - replica.end))
        assert data
        replica.append(replica.end, data)
        while rng.random() < 0.7 and replica.dispatch(rng.choice((1, 5000, 1 << 20))):
            pass
    while replica.dispatch(1 << 20):
        pass


def files(root: Path, kind: str) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted((root / kind).rglob("*")) if p.is_file()}


def log_bytes(store: MessageStore) -> bytes:
    parts, log_offset = [], store.commitlog_min_offset
    while data := store.raw(log_offset, 1 << 20):
        parts.append(bytes(data))
        log_offset += len(data)
    return b"".join(parts)


def assert_equal(master, other) -> None:
    """Compare two stores file by file, after flushing both."""
    for bench in (master, other):
        bench.store.publish(bench.store.flush(thorough=True))
    assert log_bytes(master.store) == log_bytes(other.store)
    for kind in ("consumequeue", "batchconsumequeue"):
        ours, theirs = files(master.root, kind), files(other.root, kind)
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if ours[name] != theirs[name]] == []
    # The names are times of the wall clock, when the files were made.
    assert list(files(master.root, "index").values()) == list(files(other.root, "index").values())
    for topic in master.store.topics_on_disk():
        for queue in range(4):
            assert master.store.min_offset(topic, queue) == other.store.min_offset(topic, queue)
            assert master.store.max_offset(topic, queue) == other.store.max_offset(topic, queue)
    for key in (f"k{i}" for i in range(0, 50, 7)):
        for topic in (*PLAIN_TOPICS, *BATCH_TOPICS):
            assert list(map(bytes, master.store.query(topic, key))) == list(map(bytes, other.store.query(topic, key)))


@pytest.fixture
def pair(make_bench):
    """A master with some messages and an empty replica of it."""
    master = make_bench("master")
    other = make_bench("replica")
    declare(other)
    return master, other


@pytest.mark.parametrize("arrays_from", [0, 1 << 30, 4], ids=["arrays", "one by one", "mixed"])
@pytest.mark.parametrize("seed", range(6))
def test_a_replica_has_the_masters_files(pair, seed, arrays_from, monkeypatch):
    monkeypatch.setattr(dispatching, "ARRAYS_FROM_RECORDS", arrays_from)
    master, other = pair
    rng = random.Random(f"files {seed}")
    replica = other.store.follow()
    for _ in range(3):
        fill(master, rng, 120)
        pump(master.store, replica, rng)
    assert replica.end == replica.record_end == replica.dispatched_end == master.store.commitlog_max_offset
    assert_equal(master, other)


def test_a_record_is_in_no_queue_before_all_of_it_arrived(pair):
    master, other = pair
    master.stage(b"x" * 500)
    master.store.commit()
    replica = other.store.follow()
    end = master.store.commitlog_max_offset
    for at in range(end):
        assert not replica.dispatch(1 << 20)
        assert (replica.dispatched_end, replica.record_end, other.store.max_offset("orders", 0)) == (0, 0, 0)
        replica.append(at, master.store.raw(at, 1))
    assert replica.record_end == end
    replica.dispatch(1 << 20)
    assert (replica.dispatched_end, other.store.max_offset("orders", 0)) == (end, 1)


def test_bytes_at_another_place_are_refused(pair):
    _, other = pair
    replica = other.store.follow()
    replica.append(0, b"\0\0\0")
    for at in (0, 2, 4):
        with pytest.raises(ReplicaGap) as caught:
            replica.append(at, b"x")
        assert (caught.value.log_offset, caught.value.end) == (at, 3)


def test_a_replica_takes_no_messages_of_its_own_until_it_leads(pair):
    master, other = pair
    master.stage(b"from the master")
    master.stage(b"only a part of it")
    master.store.commit()
    replica = other.store.follow()
    assert other.store.follow() is replica
    replica.append(0, master.store.raw(0, master.store.commitlog_max_offset - 5))
    with pytest.raises(StoreIsReplica, match="is a replica"):
        other.stage(b"refused")
    other.store.lead()
    assert other.store.commitlog_max_offset == int.from_bytes(master.store.raw(0, 4))
    assert other.stage(b"its own")[0] == 1
    other.store.commit()
    assert other.bodies() == [b"from the master", b"its own"]
    assert other.restart().bodies() == [b"from the master", b"its own"]


def test_a_store_that_is_not_open_cannot_follow(bench):
    bench.stop()
    with pytest.raises(FatalError, match="open it before"):
        bench.store.follow()


def test_raw_bytes_end_at_the_segment_and_at_the_log(bench):
    while bench.store.commitlog_max_offset < 70_000:
        bench.stage(b"x" * 3000)
        bench.store.commit()
    assert len(bench.store.raw(100, 1 << 20)) == (64 << 10) - 100
    assert len(bench.store.raw(100, 10)) == 10
    end = bench.store.commitlog_max_offset
    assert len(bench.store.raw(64 << 10, 1 << 20)) == end - (64 << 10)
    assert bytes(bench.store.raw(end, 10)) == b""
    bench.stage(b"not committed")
    assert bytes(bench.store.raw(end, 10)) == b""
    for outside in (-1, end + 1):
        with pytest.raises(LogOffsetOutside):
            bench.store.raw(outside, 1)
    bench.store.commit()
    bench.store.flush()
    bench.store.delete_before(64 << 10)
    with pytest.raises(LogOffsetOutside):
        bench.store.raw(0, 1)


def test_an_empty_replica_starts_where_its_masters_log_begins(pair, make_bench):
    master, other = pair
    rng = random.Random("min")
    fill(master, rng, 500)
    master.store.flush(thorough=True)
    master.store.delete_before(128 << 10)
    begin = master.store.commitlog_min_offset
    assert begin == 128 << 10
    replica = other.store.follow()
    with pytest.raises(FatalError, match="not the start of a segment"):
        replica.start_at(1000)
    replica.start_at(begin)
    pump(master.store, replica, rng)
    assert log_bytes(master.store) == log_bytes(other.store)
    for topic in (*PLAIN_TOPICS, *BATCH_TOPICS):
        for queue in range(3):
            assert master.store.max_offset(topic, queue) == other.store.max_offset(topic, queue)
            assert master.store.min_offset(topic, queue) == other.store.min_offset(topic, queue)
    with pytest.raises(FatalError, match="only an empty one"):
        replica.start_at(begin)
    replica = other.restart().store.follow()
    assert replica.end == master.store.commitlog_max_offset


def test_with_sync_flush_readers_of_a_replica_see_what_is_on_its_disk(make_bench):
    master, other = make_bench("master"), make_bench("replica", flush_disk_type="SYNC_FLUSH")
    for body in (b"one", b"two"):
        master.stage(body)
    master.store.commit()
    replica = other.store.follow()
    pump(master.store, replica, random.Random(0))
    assert (other.store.max_offset("orders", 0), other.store.commitlog_visible_offset) == (0, 0)
    other.store.publish(other.store.flush())
    assert other.bodies() == [b"one", b"two"]
    assert other.store.commitlog_visible_offset == replica.end


def test_readers_are_shown_what_a_cut_inside_a_commit_has_left(make_bench):
    bench = make_bench("former", flush_disk_type="SYNC_FLUSH")
    for queue, body in ((0, b"one"), (1, b"two"), (0, b"three"), (0, b"four")):
        _, cut = bench.stage(body, queue=queue)
    bench.store.commit()
    replica = bench.store.follow()
    replica.truncate(cut)
    assert (bench.store.max_offset("orders", 0), bench.store.max_offset("orders", 1)) == (0, 0), "it is not known to be on the disk"
    bench.store.publish(bench.store.flush())
    assert bench.bodies() == [b"one", b"three"]
    assert bench.store.max_offset("orders", 1) == 1


def test_a_full_disk_tears_nothing(pair):
    master, other = pair
    rng = random.Random("full")
    fill(master, rng, 400)
    replica = other.store.follow()
    pump(master.store, replica, rng, stop=60_000)
    for torn in (100, 0):
        end = replica.end
        other.fs.fail("pwrite", errno.ENOSPC, path="commitlog", torn=torn)
        with pytest.raises(StoreWriteFailed):
            replica.append(end, master.store.raw(end, 1 << 20))
        other.fs.heal()
        assert replica.end == end
        assert not any(Path(other.store.segments()[end >> 16][2]).read_bytes()[end % (64 << 10) :])
        replica.append(end, master.store.raw(end, 1 << 20))
    pump(master.store, replica, rng)
    assert_equal(master, other)


def test_what_has_arrived_of_a_record_is_kept_when_the_disk_refuses_its_end(pair):
    master, other = pair
    master.stage(b"a body that arrives in two pieces" * 9)
    master.store.commit()
    log = master.store.raw(0, 1 << 20)
    replica = other.store.follow()
    replica.append(0, log[:200])
    replica.append(200, log[200:300])
    other.fs.fail("pwrite", errno.ENOSPC, path="commitlog")
    with pytest.raises(StoreWriteFailed):
        replica.append(300, log[300:])
    assert replica.end == 300
    other.fs.heal()
    replica.append(300, log[300:])
    assert replica.end == len(log) == replica.record_end
    replica.dispatch(1 << 20)
    assert_equal(master, other)


def test_after_a_failed_flush_nothing_is_appended(pair, eio):
    master, other = pair
    master.stage(b"one")
    master.store.commit()
    replica = other.store.follow()
    pump(master.store, replica, random.Random(0))
    end = replica.end
    other.fs.fail("fdatasync", eio, path="commitlog")
    with pytest.raises(StoreFailed):
        other.store.flush()
    with pytest.raises(StoreFailed):
        replica.append(end, b"\0")
    assert replica.end == end


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.parametrize("seed", range(4))
def test_a_reopened_replica_goes_on_at_the_end_of_its_last_record(pair, seed, how):
    master, other = pair
    rng = random.Random(f"reopen {seed}")
    for _ in range(4):
        replica = other.store.follow()
        fill(master, rng, 60)
        stop = rng.randrange(replica.end, master.store.commitlog_max_offset + 1)
        pump(master.store, replica, rng, stop=stop)
        expected = replica.record_end
        getattr(other, how)()
        replica = other.store.follow()
        assert other.report.clean == (how == "restart")
        assert replica.end == replica.dispatched_end == expected or replica.end % (64 << 10) == 0
    pump(master.store, replica, rng)
    assert_equal(master, other)
    other.store.lead()
    fill(other, rng, 20)


@pytest.mark.parametrize("seed", range(8))
def test_differences_and_record_boundaries_are_found(pair, seed):
    master, other = pair
    rng = random.Random(f"boundaries {seed}")
    fill(master, rng, 250)
    replica = other.store.follow()
    end = master.store.commitlog_max_offset - rng.randrange(3000)
    pump(master.store, replica, rng, stop=end)
    borders = [0]
    while borders[-1] < end:
        head = bytes(master.store.raw(borders[-1], 4))
        borders.append(borders[-1] + int.from_bytes(head))
    for _ in range(50):
        at = rng.randrange(end)
        assert replica.record_boundary(at) == max(b for b in borders if b <= at)
        data = bytearray(master.store.raw(at, rng.randrange(1, 90_000)))
        assert replica.differs(at, data) is None
        place = rng.randrange(len(data))
        data[place] ^= 1
        assert replica.differs(at, data) == (at + place if at + place < end else None)
    assert replica.record_boundary(end) == replica.record_boundary(end + 1000) == max(b for b in borders if b <= end)
    with pytest.raises(LogOffsetOutside):
        replica.differs(end + 1, b"x")


@pytest.mark.parametrize("seed", range(8))
def test_a_cut_replica_is_like_one_that_never_had_more(pair, make_bench, seed):
    master, other = pair
    rng = random.Random(f"cut {seed}")
    fill(master, rng, 150)
    replica = other.store.follow()
    pump(master.store, replica, rng)
    if rng.random() < 0.5:
        other.store.flush(thorough=True)
    at = rng.randrange(replica.end)
    end = replica.record_boundary(at)
    replica.truncate(at)
    assert replica.end == replica.record_end == replica.dispatched_end == other.store.commitlog_max_offset == end
    fresh = make_bench("fresh")
    declare(fresh)
    pump(master.store, fresh.store.follow(), rng, stop=end)
    assert_equal(fresh, other)
    if rng.random() < 0.5:
        getattr(other, rng.choice(("restart", "crash")))()
        replica = other.store.follow()
        assert replica.end == end
    pump(master.store, replica, rng)
    assert_equal(master, other)


def test_a_promoted_replica_that_is_cut_follows_again(pair):
    master, other = pair
    rng = random.Random("promoted")
    fill(master, rng, 100)
    replica = other.store.follow()
    common = replica.record_boundary(master.store.commitlog_max_offset)
    pump(master.store, replica, rng)
    common = replica.end
    other.store.lead()
    fill(other, rng, 50)
    fill(master, rng, 70)
    replica = other.store.follow()
    difference = None
    at = common
    while difference is None:
        data = master.store.raw(at, 1000)
        difference = replica.differs(at, data)
        at += len(data)
    replica.truncate(difference)
    assert replica.end == common
    pump(master.store, replica, rng)
    assert_equal(master, other)


@pytest.mark.parametrize("arrays_from", [0, 1 << 30], ids=["arrays", "one by one"])
@pytest.mark.parametrize("first", ["single", "inner batch", "only single"])
def test_a_topic_of_batch_queues_may_be_known_later_than_its_records(make_bench, monkeypatch, arrays_from, first):
    monkeypatch.setattr(dispatching, "ARRAYS_FROM_RECORDS", arrays_from)
    master, other = make_bench("master"), make_bench("replica")
    declare(master)
    replica = other.store.follow()
    for i in range(5):
        if first != "inner batch":
            master.stage(b"one", "lists", i % 2)
        master.stage(b"plain", "orders")
        master.store.commit()
        if i in {1, 2}:
            pump(master.store, replica, random.Random(0))
        if first != "only single":
            master.stage_inner_batch([b"two", b"three"], "lists", i % 2)
    master.store.commit()
    pump(master.store, replica, random.Random(0))
    other.store.declare_batch_topic("lists")
    assert_equal(master, other)
    other.crash()
    assert other.bodies("lists") == master.bodies("lists")


@pytest.mark.parametrize("arrays_from", [0, 1 << 30], ids=["arrays", "one by one"])
def test_a_damaged_record_of_the_master_is_passed_over(pair, monkeypatch, arrays_from):
    monkeypatch.setattr(dispatching, "ARRAYS_FROM_RECORDS", arrays_from)
    master, other = pair
    ends = [master.stage(b"%d" % i * 400)[1] for i in range(300)]
    master.store.commit()
    replica = other.store.follow()
    while replica.end < master.store.commitlog_max_offset:
        data = bytearray(master.store.raw(replica.end, 3000))
        if replica.end <= ends[3] + 200 < replica.end + len(data):
            data[ends[3] + 200 - replica.end] ^= 1
        replica.append(replica.end, data)
        replica.dispatch(1 << 20)
    while replica.dispatch(1 << 20):
        pass
    assert [(found.start, found.end) for found in replica.damaged] == [(ends[3], ends[4])]
    assert other.store.max_offset("orders", 0) == 300
    assert other.bodies(max_count=1000) == [b"%d" % i * 400 for i in range(300) if i != 3]


def test_bytes_that_are_no_record_do_not_stop_the_next_segment(pair):
    master, other = pair
    rng = random.Random("garbage")
    fill(master, rng, 300)
    replica = other.store.follow()
    pump(master.store, replica, rng, stop=20_000)
    garbage = rng.randbytes((64 << 10) - replica.end)
    for at in range(0, len(garbage), 7000):
        replica.append(replica.end, garbage[at : at + 7000])
        replica.dispatch(1 << 20)
    assert replica.record_end == replica.dispatched_end < 20_000
    pump(master.store, replica, rng)
    assert replica.record_end == replica.dispatched_end == replica.end
    assert replica.damaged[0].end == 64 << 10


def hole(pair) -> tuple[int, int]:
    """Kill the replica with 300 messages, of which the disk has lost one, and open it; return where that one begins and ends."""
    master, other = pair
    ends = [master.stage(b"%d" % i * 400)[1] for i in range(300)]
    master.store.commit()
    pump(master.store, other.store.follow(), random.Random(0))
    other.kill()
    with other.segment().open("r+b") as file:
        file.seek(ends[20] + 50)
        file.write(bytes(300))
    other.reopen()
    return ends[20], ends[21]


@pytest.mark.parametrize("how", ["at once", "after a clean stop", "after another crash"])
def test_a_hole_that_a_power_failure_left_is_filled_by_the_master(pair, how):
    master, other = pair
    begin, end = hole(pair)
    assert [(found.start, found.end) for found in other.report.damaged] == [(begin, end)]
    replica = other.store.follow()
    if how != "at once":
        other.restart() if how == "after a clean stop" else other.crash()
        replica = other.store.follow()
    assert (replica.end, replica.record_end, replica.dispatched_end, replica.doubtful) == (begin, begin, begin, True)
    assert other.bodies(max_count=1000) == [b"%d" % i * 400 for i in range(300) if i != 20]
    assert replica.differs(0, master.store.raw(0, 60_000)) is None
    assert replica.record_boundary(begin + 5) == begin
    assert not replica.dispatch(1 << 20)
    with pytest.raises(ReplicaGap):
        replica.append(end, b"x")
    pump(master.store, replica, random.Random(1))
    assert not replica.doubtful
    assert replica.damaged == []
    assert_equal(master, other)
    other.restart()
    assert other.report.clean
    assert other.store.follow().end == master.store.commitlog_max_offset


def test_a_replica_with_a_hole_that_is_promoted_keeps_what_is_behind_it(pair):
    _, other = pair
    hole(pair)
    other.store.follow()
    other.store.lead()
    assert other.stage(b"on")[0] == 300
    other.store.commit()
    assert other.restart().report.clean
    assert other.bodies(max_count=1000) == [*(b"%d" % i * 400 for i in range(300) if i != 20), b"on"]


def test_a_replica_deletes_by_its_own_rule(pair):
    master, other = pair
    rng = random.Random("retention")
    fill(master, rng, 500)
    replica = other.store.follow()
    pump(master.store, replica, rng, stop=150_000)
    replica.append(replica.end, master.store.raw(replica.end, 1 << 20))  # its records are in no queue yet
    assert replica.dispatched_end < (192 << 10) <= replica.end
    other.store.publish(other.store.flush(thorough=True))
    other.store.delete_before(192 << 10)
    assert other.store.commitlog_min_offset == 128 << 10
    assert master.store.commitlog_min_offset == 0
    pump(master.store, replica, rng)
    getattr(other, rng.choice(("restart", "crash")))()
    assert other.store.follow().end == master.store.commitlog_max_offset
    for topic in (*PLAIN_TOPICS, *BATCH_TOPICS):
        for queue in range(3):
            low, high = other.store.min_offset(topic, queue), other.store.max_offset(topic, queue)
            assert high == master.store.max_offset(topic, queue)
            assert other.bodies(topic, queue, max_count=1000) == master.bodies(topic, queue, start=low, max_count=1000)


def test_a_topic_that_was_deleted_and_made_again_begins_anew(pair):
    master, other = pair
    replica = other.store.follow()
    for body in (b"old", b"older"):
        master.stage(body)
        master.store.commit()
    pump(master.store, replica, random.Random(0))
    master.store.delete_topic("orders")
    master.stage(b"new")
    master.store.commit()
    pump(master.store, replica, random.Random(0))
    assert other.bodies() == master.bodies() == [b"new"]
    assert other.restart().bodies() == [b"new"]


def test_flushes_in_another_thread_see_a_consistent_replica(pair):
    master, other = pair
    rng = random.Random("threads")
    replica = other.store.follow()
    stop = threading.Event()
    problems: list[BaseException] = []

    def flush() -> None:
        try:
            while not stop.wait(0.02):
                other.store.flush(thorough=True)
                other.store.index_pending()
        except BaseException as e:
            problems.append(e)

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        for _ in range(3):
            fill(master, rng, 60)
            pump(master.store, replica, rng)
            replica.truncate(rng.randrange(replica.end))
            pump(master.store, replica, rng)
    finally:
        stop.set()
        thread.join()
    assert problems == []
    assert_equal(master, other)
    other.crash()
    assert_equal(master, other)


def test_a_replica_that_was_cut_to_nothing_may_start_elsewhere(pair):
    master, other = pair
    rng = random.Random("elsewhere")
    fill(master, rng, 400)
    replica = other.store.follow()
    pump(master.store, replica, rng, stop=50_000)
    replica.truncate(0)
    assert replica.end == 0
    assert other.store.topics_on_disk() == []
    replica.start_at(64 << 10)
    pump(master.store, replica, rng)
    assert other.store.segments()[0][0] == 64 << 10
    assert other.crash().store.commitlog_min_offset == 64 << 10
    assert other.store.follow().end == master.store.commitlog_max_offset
