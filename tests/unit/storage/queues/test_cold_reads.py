"""Finding out what a read needs from the disk: the real page cache where the file system drops it, a made-up one elsewhere."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.log import loaded_blocks
from sprocketmq.storage.queues import cold_reads
from sprocketmq.storage.store import ColdRead, ReadStatus


@pytest.fixture(autouse=True)
def no_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "TAIL_BYTES", 0)


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be in the page cache."""
    monkeypatch.setattr(cold_reads, "resident", lambda *_: False)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "BLOCK_BYTES", 10_000)
    monkeypatch.setattr(loaded_blocks, "BLOCK_BYTES", 10_000)


def drop_cache(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def log_parts(found: ColdRead | None) -> list[tuple[int, int]]:
    assert found is not None
    return [(begin, end) for _, begin, end in found.parts]


@pytest.mark.parametrize("batched", [False, True])
def test_what_left_the_page_cache_is_found_and_loaded(bench: Any, batched: bool) -> None:
    if batched:
        bench.store.declare_batch_topic("orders")
    for _ in range(100):
        send = bench.send_inner_batch if batched else bench.send_batch
        send([b"x" * 1000] * 4)
    assert bench.store.find_cold("orders", 0, 0, 100) is None
    bench.restart()  # a mapping keeps its pages in the cache
    drop_cache(bench.root)
    steps = 0
    while (found := bench.store.find_cold("orders", 0, 0, 100)) is not None:
        assert found.parts
        found.load()
        steps += 1
    if not steps:
        pytest.skip("this file system keeps its page cache")
    assert steps <= 2
    assert bench.store.read("orders", 0, 0, max_count=100).status is ReadStatus.FOUND


def test_the_end_of_the_log_counts_as_cached(bench: Any, cold: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(10):
        bench.send_batch([b"x" * 1000] * 10)
    assert bench.store.find_cold("orders", 0, 0, 10) is not None
    monkeypatch.setattr(cold_reads, "TAIL_BYTES", 50_000)
    assert bench.store.find_cold("orders", 0, 90, 10) is None
    assert bench.store.find_cold("orders", 0, 0, 10) is not None


@pytest.mark.parametrize("offset", [-1, 10, 11])
def test_an_offset_outside_the_queue_needs_nothing(bench: Any, cold: None, offset: int) -> None:
    bench.send_batch([b"x"] * 10)
    assert bench.store.find_cold("orders", 0, offset, 10) is None
    assert bench.store.find_cold("unknown", 0, 0, 10) is None


def test_many_records_that_lie_close_are_loaded_by_whole_blocks(bench: Any, cold: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "BLOCK_BYTES", 100_000)
    monkeypatch.setattr(loaded_blocks, "BLOCK_BYTES", 100_000)
    monkeypatch.setattr(loaded_blocks, "MAX_BLOCKS", 0)  # they go through the page cache
    for _ in range(40):
        bench.send_batch([b"x" * 1000] * 10)
        bench.send(b"between", "other")
    found = bench.store.find_cold("orders", 0, 100, 256)
    assert found is not None
    assert found.max_units == 256
    length = sum(end - begin for begin, end in log_parts(found))
    assert length % 100_000 == 0
    assert length > 256 * 1000


def test_a_read_that_would_need_many_blocks_is_limited(bench: Any, cold: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "MAX_BLOCKS_BYTES", 50_000)
    for _ in range(40):
        bench.send_batch([b"x" * 1000] * 10)
    found = bench.store.find_cold("orders", 0, 0, 400)
    assert found is not None
    assert 30 <= found.max_units <= 50


def test_records_far_apart_are_loaded_by_themselves(bench: Any, cold: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "GAP_BYTES", 1000)
    places = []
    for n in range(5):
        places.append(bench.send(b"%d" % n)[1])
        bench.send(b"x" * 5000, "other")
    found = bench.store.find_cold("orders", 0, 0, 32)
    assert [begin for begin, _ in log_parts(found)] == places
    assert all(end - begin < 500 for begin, end in log_parts(found))
    # All records of the other topic are close to one another when the gaps are bridged.
    monkeypatch.setattr(cold_reads, "GAP_BYTES", 10_000)
    assert len(log_parts(bench.store.find_cold("orders", 0, 0, 32))) == 1


@pytest.mark.parametrize(("name", "value"), [("MAX_RUNS", 3), ("MAX_READ_BYTES", 300)])
def test_a_read_is_limited_to_what_was_loaded(bench: Any, cold: None, monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    monkeypatch.setattr(cold_reads, "GAP_BYTES", 1000)
    monkeypatch.setattr(cold_reads, name, value)
    for n in range(9):
        bench.send(b"%d" % n)
        bench.send(b"x" * 5000, "other")
    found = bench.store.find_cold("orders", 0, 2, 32)
    assert found is not None
    assert 1 <= found.max_units <= 3
    result = bench.store.read("orders", 0, 2, max_count=32, max_units=found.max_units)
    assert (result.status, result.count, result.next_offset) == (ReadStatus.FOUND, found.max_units, 2 + found.max_units)


def test_a_cached_block_is_asked_for_once_in_two_seconds(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def resident(view: memoryview, begin: int, end: int) -> bool:
        asked.append((begin, end))
        return True

    monkeypatch.setattr(cold_reads, "resident", resident)
    bench.send_batch([b"x" * 1000] * 40)
    for _ in range(3):
        assert bench.store.find_cold("orders", 0, 0, 40) is None
    assert len(asked) == 1


@pytest.mark.parametrize("batched", [False, True])
def test_blocks_that_lack_a_page_here_and_there_are_made_whole(
    bench: Any, small_blocks: None, monkeypatch: pytest.MonkeyPatch, batched: bool
) -> None:
    lacking = [(4096, 8192), (20_480, 28_672)]

    def missing(view: memoryview, begin: int, end: int, most: int) -> list[tuple[int, int]]:
        return [part for part in lacking if begin <= part[0] < end]

    monkeypatch.setattr(cold_reads, "resident", lambda view, begin, end: not missing(view, begin, end, 0))
    monkeypatch.setattr(cold_reads, "missing_parts", missing)
    if batched:
        bench.store.declare_batch_topic("orders")
    for _ in range(40):
        (bench.send_inner_batch if batched else bench.send_batch)([b"x" * 1000])
    found = bench.store.find_cold("orders", 0, 0, 40, 40)
    assert found is not None
    assert (log_parts(found), found.max_units, found.slight) == (lacking, 40, True)
    lacking.clear()
    assert bench.store.find_cold("orders", 0, 0, 40, 40) is None


def test_a_read_of_blocks_of_which_one_is_missing_is_one_of_the_disk(
    bench: Any, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(view: memoryview, begin: int, end: int, most: int) -> list[tuple[int, int]] | None:
        if end >= 30_000:
            return None
        return [(4096, 8192)] if begin <= 4096 < end else []

    monkeypatch.setattr(cold_reads, "resident", lambda view, begin, end: missing(view, begin, end, 0) == [])
    monkeypatch.setattr(cold_reads, "missing_parts", missing)
    for _ in range(40):
        bench.send_batch([b"x" * 1000])
    found = bench.store.find_cold("orders", 0, 0, 40, 40)
    assert found is not None
    assert not found.slight


def test_the_end_of_a_full_segment_which_nobody_has_written_is_not_missing(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def resident(view: memoryview, begin: int, end: int) -> bool:
        asked.append(bytes(view[begin:end]))
        return True

    monkeypatch.setattr(cold_reads, "resident", resident)
    for _ in range(10):
        bench.send_batch([b"x" * 900] * 10)
    assert bench.store.commitlog_max_offset > 64 << 10
    assert bench.store.find_cold("orders", 0, 0, 100) is None
    first, second = asked
    assert (64 << 10) - 10_000 < len(first) < (64 << 10) - 100
    assert first[-8:-4] == ((64 << 10) + 8 - len(first)).to_bytes(4, "big"), "it ends with the head of a BLANK"
    assert len(second) == bench.store.commitlog_max_offset - (64 << 10)
    bench.restart()
    assert bench.store.find_cold("orders", 0, 0, 100) is None
    assert len(asked[2]) == 64 << 10, "this process has not seen where the segment's records end"


@pytest.mark.parametrize("batched", [False, True])
def test_the_blocks_of_a_cached_log_are_asked_for_once_for_all_queues(
    bench: Any, small_blocks: None, monkeypatch: pytest.MonkeyPatch, batched: bool
) -> None:
    asked = []

    def resident(view: memoryview, begin: int, end: int) -> bool:
        asked.append((begin, end))
        return True

    monkeypatch.setattr(cold_reads, "resident", resident)
    if batched:
        bench.store.declare_batch_topic("orders")
    for queue in range(40):
        (bench.send_inner_batch if batched else bench.send_batch)([b"x" * 1000], queue=queue)
    for queue in range(40):
        assert bench.store.find_cold("orders", queue, 0, 8, 8) is None
    assert len(asked) == len(set(asked)) == bench.store.commitlog_max_offset // 10_000 + 1


@pytest.mark.parametrize("more", range(1, 13))
@pytest.mark.parametrize("batched", [False, True])
def test_reads_skip_nothing_however_many_blocks_were_looked_up(
    bench: Any, small_blocks: None, monkeypatch: pytest.MonkeyPatch, batched: bool, more: int
) -> None:
    monkeypatch.setattr(cold_reads, "MAX_BLOCKS_MORE", more)
    if batched:
        bench.store.declare_batch_topic("orders")
    for _ in range(40):
        (bench.send_inner_batch if batched else bench.send_batch)([b"x" * 500] * 5)
    assert bench.store.find_cold("orders", 0, 100, 10, 10) is None
    result = bench.store.read("orders", 0, 100, max_count=10)
    assert (result.status, result.count, result.next_offset) == (ReadStatus.FOUND, 10, 110)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("batched", [False, True])
def test_whatever_is_cached_reads_return_the_next_messages(bench: Any, monkeypatch: pytest.MonkeyPatch, batched: bool, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(cold_reads, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(loaded_blocks, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(cold_reads, "MAX_BLOCKS_MORE", chance.randint(1, 8))
    monkeypatch.setattr(cold_reads, "resident", lambda *_: chance.random() < 0.9)
    if batched:
        bench.store.declare_batch_topic("orders")
    sent: list[list[bytes]] = [[] for _ in range(4)]
    following = [0] * 4
    for step in range(300):
        queue = chance.randrange(4)
        bodies = sent[queue]
        if not bodies or chance.random() < 0.3:
            more = [b"%d" % (len(bodies) + n) * chance.randint(1, 200) for n in range(chance.randint(1, 5))]
            (bench.send_inner_batch if batched else bench.send_batch)(more, queue=queue)
            bodies += more
        offset = following[queue] if following[queue] < len(bodies) and chance.random() < 0.6 else chance.randrange(len(bodies))
        count = chance.randint(1, 40)
        found = bench.store.find_cold("orders", queue, offset, count, count)
        limit = None
        if found is not None:
            found.load()
            limit = found.max_units
        result = bench.store.read("orders", queue, offset, max_count=count, max_units=limit)
        messages = [m for m in decode_records(b"".join(result.buffers)) if m.queue_offset >= offset]
        assert [m.body for m in messages] == bodies[offset : result.next_offset]
        assert messages
        following[queue] = result.next_offset
        if found is not None:
            found.release()
        bench.clock.advance(chance.choice([0, 0, 0, 0.5, cold_reads.FRESH_S]))
        if step % 100 == 99:
            bench.restart()
            if batched:
                bench.store.declare_batch_topic("orders")


@pytest.fixture
def scattered(bench: Any, cold: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store whose topic ``orders`` has 30 messages that lie far apart; nothing of the log is in the page cache."""
    monkeypatch.setattr(cold_reads, "GAP_BYTES", 1000)
    for n in range(30):
        bench.send(b"%d" % n)
        bench.send(b"x" * 5000, "other")
    return bench


def test_the_runs_of_a_read_that_continues_are_loaded_further(scattered: Any) -> None:
    find = scattered.store.find_cold
    first = find("orders", 0, 0, 4)
    assert len(log_parts(first)) == 4, "it may be the only one"
    first.load()
    assert find("orders", 0, 0, 4) is None
    second = find("orders", 0, 4, 4)
    assert len(log_parts(second)) == 26
    second.load()
    assert [find("orders", 0, offset, 4) for offset in range(4, 27)] == [None] * 23
    scattered.clock.advance(cold_reads.FRESH_S)
    assert len(log_parts(find("orders", 0, 8, 4))) == 22


def test_the_runs_that_are_loaded_further_are_limited(scattered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "AHEAD_BYTES", 700)
    scattered.store.find_cold("orders", 0, 0, 2)
    total = sum(end - begin for begin, end in log_parts(scattered.store.find_cold("orders", 0, 2, 2)))
    assert 400 < total <= 700
    # What is asked for may take more.
    assert len(log_parts(scattered.store.find_cold("orders", 0, 4, 20))) == 20


def test_reads_that_continue_while_runs_are_loaded_wait_for_the_same(scattered: Any) -> None:
    find = scattered.store.find_cold
    find("orders", 0, 0, 4)
    loading = find("orders", 0, 4, 4)
    waiting = find("orders", 0, 8, 4)
    assert (waiting.key, waiting.max_units) == (loading.key, 4)
    loading.load()
    assert find("orders", 0, 8, 4) is None
    # When the first of them is refused, another one loads them.
    scattered.clock.advance(cold_reads.FRESH_S)
    refused, loads = find("orders", 0, 20, 4), find("orders", 0, 22, 4)
    assert refused.key == loads.key
    loads.load()
    assert find("orders", 0, 23, 4) is None


def test_a_reader_elsewhere_in_the_queue_does_not_continue(scattered: Any) -> None:
    scattered.store.find_cold("orders", 0, 20, 4)
    assert len(log_parts(scattered.store.find_cold("orders", 0, 3, 4))) == 4


@pytest.mark.parametrize("batched", [False, True])
def test_a_read_has_what_came_after_it_was_looked_up(bench: Any, batched: bool) -> None:
    if batched:
        bench.store.declare_batch_topic("orders")
    send = bench.send_inner_batch if batched else bench.send_batch
    send([b"x"] * 4)
    bench.restart()  # the first units are in the files
    if batched:
        bench.store.declare_batch_topic("orders")
    assert bench.store.find_cold("orders", 0, 0, 100) is None
    (bench.send_inner_batch if batched else bench.send_batch)([b"y"] * 4)
    assert bench.store.read("orders", 0, 0, max_count=100).count == 8


@pytest.mark.parametrize("batched", [False, True])
def test_a_consumer_that_reads_on_finds_what_was_looked_up_ahead(bench: Any, monkeypatch: pytest.MonkeyPatch, batched: bool) -> None:
    in_cache = True
    monkeypatch.setattr(cold_reads, "resident", lambda *_: in_cache)
    if batched:
        bench.store.declare_batch_topic("orders")
    for _ in range(50):
        (bench.send_inner_batch if batched else bench.send_batch)([b"x"] * 4)
    assert bench.store.find_cold("orders", 0, 0, 8, 8) is None
    in_cache = False
    assert bench.store.find_cold("orders", 0, 120, 80, 80) is None
    assert bench.store.find_cold("orders", 0, 120, 80, 80) is None
    bench.clock.advance(cold_reads.FRESH_S)
    found = bench.store.find_cold("orders", 0, 120, 80, 80)
    assert found is not None
    assert found.parts
    assert found.max_units == (20 if batched else 80)


def test_a_read_of_batches_by_tag_is_looked_up_in_full(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    in_cache = True
    monkeypatch.setattr(cold_reads, "resident", lambda *_: in_cache)
    bench.store.declare_batch_topic("orders")
    for _ in range(50):
        bench.send_inner_batch([b"x"] * 4)
    assert bench.store.find_cold("orders", 0, 0, 8, 8) is None
    bench.clock.advance(cold_reads.FRESH_S)
    in_cache = False
    found = bench.store.find_cold("orders", 0, 0, 50)  # any of the units may have the tag
    assert found is not None
    assert found.max_units == 50


def test_a_file_that_was_deleted_is_left_out(tmp_path: Path) -> None:
    ColdRead([(str(tmp_path / "gone"), 0, 100)], 1).load()
