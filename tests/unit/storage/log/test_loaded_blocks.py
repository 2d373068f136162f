"""Blocks of the log that are read around the page cache: what reads find in them, and when their memory is used again."""

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sprocketmq.storage import fs
from sprocketmq.storage.log import loaded_blocks
from sprocketmq.storage.log.commit_log import CommitLog, Segment
from sprocketmq.storage.log.loaded_blocks import LoadedBlock, LoadedBlocks, LogPart
from sprocketmq.storage.queues import cold_reads
from sprocketmq.storage.store import ColdRead, ReadStatus

BLOCK = 16 << 10
STORES = itertools.count()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 KiB, of which eight fit in memory; nothing counts as the end of the log, or as in the page cache."""
    for module in (loaded_blocks, cold_reads):
        monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(loaded_blocks, "MAX_BLOCKS", 8)
    monkeypatch.setattr(cold_reads, "MAX_BLOCKS_BYTES", 4 * BLOCK)
    monkeypatch.setattr(cold_reads, "DENSE_UNITS", 4)
    monkeypatch.setattr(cold_reads, "NEAR_UNITS", 4)
    monkeypatch.setattr(cold_reads, "TAIL_BYTES", 0)
    monkeypatch.setattr(cold_reads, "resident", lambda *_: False)


@pytest.fixture
def read_blocks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The parts of files that were read around the page cache, read with plain reads where the file system of the tests cannot."""
    done: list[tuple[int, int]] = []

    def read(path: str, begin: int, end: int, into: memoryview) -> bool:
        done.append((begin, end))
        with open(path, "rb") as file:
            file.seek(begin)
            into[: end - begin] = file.read(end - begin)
        return True

    monkeypatch.setattr(loaded_blocks, "read_around_cache", read)
    return done


def load_all(store: Any, offset: int, units: int, queue: int = 0) -> Iterator[ColdRead]:
    """Load what a read needs, as the broker does: at most three times. Yields what was found each time; the last is not released."""
    for _ in range(3):
        found = store.find_cold("orders", queue, offset, units)
        if found is None:
            return
        yield found
        if not found.waits:
            return
        found.load()


def read_cold(bench: Any, offset: int, units: int = 64, queue: int = 0) -> Any:
    """Read as a pull that waits for the disk does."""
    held: list[ColdRead] = []
    limit = None
    for found in load_all(bench.store, offset, units, queue):
        held.append(found)
        limit = found.max_units
    result = bench.store.read("orders", queue, offset, max_count=units, max_units=limit)
    for found in held:
        found.release()
    return result


def a_log_of(bench: Any, count: int = 200, size: int = 1000) -> list[bytes]:
    bodies = [b"%05d" % n + b"x" * size for n in range(count)]
    for at in range(0, count, 5):
        bench.send_batch(bodies[at : at + 5])
        bench.send_batch([b"other" * 60] * 3, queue=1)
    return bodies


@pytest.mark.usefixtures("read_blocks")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batched=st.booleans(), sizes=st.lists(st.integers(1, 12_000), min_size=20, max_size=60), units=st.integers(4, 64))
def test_reads_from_blocks_return_what_reads_from_the_page_cache_do(make_bench: Any, batched: bool, sizes: list[int], units: int) -> None:
    bench = make_bench(f"store{next(STORES)}")
    if batched:
        bench.store.declare_batch_topic("orders")
    for number, size in enumerate(sizes):
        send = bench.send_inner_batch if batched else bench.send_batch
        send([b"%05d" % number * (size // 10 + 1)] * 2, queue=number % 3)
    for queue in range(3):
        end = bench.store.max_offset("orders", queue)
        cold, offset = b"", 0
        while offset < end:
            result = read_cold(bench, offset, units, queue)
            assert result.status is ReadStatus.FOUND
            cold += b"".join(result.buffers)
            offset = result.next_offset
        bench.restart()
        warm, offset = b"", 0
        while offset < end:
            result = bench.store.read("orders", queue, offset)
            warm += b"".join(result.buffers)
            offset = result.next_offset
        assert cold == warm
    bench.stop()


def test_whole_blocks_are_loaded_before_the_segment_that_is_written(make_bench: Any, read_blocks: list[tuple[int, int]]) -> None:
    bench = make_bench()
    bodies = a_log_of(bench)
    offset = 0
    found: list[bytes] = []
    while offset < len(bodies):
        result = read_cold(bench, offset)
        offset = result.next_offset
        found += result.buffers
    assert b"".join(found).count(b"x" * 1000) == len(bodies)
    assert read_blocks
    assert all(begin % BLOCK == 0 and end - begin == BLOCK for begin, end in read_blocks)


@pytest.mark.usefixtures("read_blocks")
def test_the_segment_that_is_written_is_read_through_the_page_cache(make_bench: Any) -> None:
    bench = make_bench(commitlog_segment_bytes=1 << 20)
    a_log_of(bench, 50)
    found = bench.store.find_cold("orders", 0, 0, 40)
    assert found.parts
    assert all(path.endswith("0" * 20) for path, _, _ in found.parts)


@pytest.mark.usefixtures("read_blocks")
def test_what_was_read_does_not_change_when_the_memory_is_used_again(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_blocks, "MAX_BLOCKS", 4)
    bench = make_bench()
    a_log_of(bench)
    first = read_cold(bench, 0)
    copied = b"".join(first.buffers)
    for offset in range(30, 180, 30):
        read_cold(bench, offset)
    assert b"".join(first.buffers) == copied


@pytest.mark.usefixtures("read_blocks")
def test_a_read_takes_what_is_in_memory_rather_than_wait(make_bench: Any) -> None:
    bench = make_bench()
    a_log_of(bench)
    held = list(load_all(bench.store, 0, 20))
    again = bench.store.find_cold("orders", 0, 0, 200)
    assert again is not None
    assert not again.waits
    assert 4 <= again.max_units < 200
    for found in held:
        found.release()


def test_a_damaged_queue_unit_leads_to_no_block(make_bench: Any, read_blocks: list[tuple[int, int]]) -> None:
    bench = make_bench()
    a_log_of(bench)
    bench.stop()
    with bench.queue_file().open("r+b") as file:
        file.seek(20 * 6)
        file.write(b"\x7f" * 12)
    bench.reopen()
    result = read_cold(bench, 0, 20)
    assert result.status is ReadStatus.FOUND
    assert b"00006" in b"".join(bench.bodies()[6:7])


# --- pins and memory ---


class Blocks:
    """The blocks of a log of 40 blocks in ten segments, without a queue."""

    def __init__(self, bench: Any) -> None:
        self.log = CommitLog(fs.REAL_FS, f"{bench.root}/commitlog", 4 * BLOCK, preallocate=False)
        self.log.load()
        self.loaded = LoadedBlocks(self.log)

    def pin(self, number: int) -> LoadedBlock | None:
        segment = self.log.segments[number // 4]
        begin = number % 4 * BLOCK
        return self.loaded.pin(number, [(segment.file.path, begin, begin + BLOCK)])

    def load(self, number: int) -> LoadedBlock:
        block = self.pin(number)
        assert block is not None
        block.load()
        return block


@pytest.fixture
def blocks(make_bench: Any, read_blocks: list[tuple[int, int]]) -> Iterator[Blocks]:
    bench = make_bench()
    for n in range(700):
        bench.send(b"%05d" % n + b"y" * 900)
    bench.stop()
    found = Blocks(bench)
    found.log.committed_end = len(found.log.segments) * 4 * BLOCK
    yield found
    found.log.close()


def test_a_block_is_loaded_once_however_many_ask_for_it(blocks: Blocks, read_blocks: list[tuple[int, int]]) -> None:
    one, other = blocks.pin(1), blocks.pin(1)
    assert one is other
    for block in (one, other):
        assert block is not None
        block.load()
    assert len(read_blocks) == 1
    assert blocks.loaded.has(1)


def test_pinned_blocks_stay_and_the_one_pinned_longest_ago_goes(blocks: Blocks) -> None:
    held = [blocks.load(number) for number in range(8)]
    assert blocks.pin(8) is None
    blocks.loaded.unpin(held[3])
    blocks.loaded.unpin(held[1])
    taken = blocks.load(8)
    assert taken.memory is held[1].memory
    assert [number for number in range(9) if blocks.loaded.has(number)] == [0, 2, 3, 4, 5, 6, 7, 8]


def test_a_block_that_is_wanted_again_goes_through_the_page_cache(blocks: Blocks) -> None:
    for number in range(12):
        blocks.loaded.unpin(blocks.load(number))
    assert not blocks.loaded.has(0)
    assert blocks.pin(0) is None
    assert blocks.pin(11) is not None


def test_memory_is_given_back_when_nothing_was_used_since_the_last_call(blocks: Blocks) -> None:
    held = blocks.load(0)
    blocks.loaded.unpin(blocks.load(1))
    blocks.loaded.give_back()
    assert blocks.loaded.has(1)
    blocks.loaded.give_back()
    assert (blocks.loaded.has(0), blocks.loaded.has(1)) == (True, False)
    blocks.loaded.unpin(held)
    blocks.loaded.give_back()
    assert blocks.loaded.end == 0


def test_a_cut_log_drops_its_blocks_and_their_memory_is_used_again_when_nothing_pins_it(blocks: Blocks) -> None:
    held, free = blocks.load(0), blocks.load(1)
    blocks.loaded.unpin(free)
    blocks.log.cuts += 1
    assert not blocks.loaded.has(0)
    again = blocks.load(0)
    assert again is not held
    assert again.memory is free.memory
    blocks.loaded.unpin(held)
    assert blocks.load(2).memory is held.memory


def test_a_file_system_that_cannot_read_around_the_page_cache_is_asked_once(blocks: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_blocks, "read_around_cache", lambda *_: False)
    block = blocks.load(0)
    assert not blocks.loaded.has(0)
    blocks.loaded.unpin(block)
    assert blocks.pin(0) is None
    assert blocks.pin(1) is None


def test_a_file_that_is_gone_leaves_other_blocks_alone(blocks: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    path = blocks.log.segments[0].file.path

    def gone(*_: object) -> bool:
        raise FileNotFoundError(errno.ENOENT, "gone", path)

    with monkeypatch.context() as patch:
        patch.setattr(loaded_blocks, "read_around_cache", gone)
        blocks.loaded.unpin(blocks.load(0))
    assert not blocks.loaded.has(0)
    assert blocks.load(1).loaded
    assert blocks.load(0).loaded


def test_a_record_is_found_in_a_block_across_two_and_outside(blocks: Blocks) -> None:
    plain = {
        at: bytes(segment.view[at - segment.start :][:600]) for at in (100, BLOCK - 200, 3 * BLOCK) if (segment := blocks.log.locate(at))
    }
    blocks.load(0)
    for at, expected in plain.items():
        part = blocks.loaded.locate(at, 600)
        assert part is not None
        assert bytes(part.view[at - part.start :][:600]) == expected
        assert at + 600 <= part.start + part.size
    assert isinstance(blocks.loaded.locate(100, 600), LogPart)
    assert isinstance(blocks.loaded.locate(100, -1), Segment)
    assert isinstance(blocks.loaded.locate(4 * BLOCK - 10, 600), Segment)  # no record crosses the end of a segment
    assert blocks.loaded.locate(1 << 40, 600) is None


# --- the file system's own ---


def test_a_file_is_read_around_the_page_cache(tmp_path: Path) -> None:
    data = os.urandom(64 << 10)
    (tmp_path / "file").write_bytes(data)
    memory = fs.reusable_memory(32 << 10)
    if not fs.read_around_cache(str(tmp_path / "file"), 16 << 10, 48 << 10, memory):
        pytest.skip("this file system reads through its page cache only")
    assert bytes(memory) == data[16 << 10 : 48 << 10]
    with pytest.raises(OSError, match="moved no bytes"):
        fs.read_around_cache(str(tmp_path / "file"), 48 << 10, 80 << 10, memory)
    with pytest.raises(FileNotFoundError):
        fs.read_around_cache(str(tmp_path / "other"), 0, 4096, memory)


def test_a_system_without_such_reads_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sprocketmq.storage.fs._DIRECT", 0)
    assert not fs.read_around_cache(str(tmp_path / "any"), 0, 4096, fs.reusable_memory(4096))


def test_a_position_between_pages_is_read_right_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 64)
    memory = fs.reusable_memory(8 << 10)
    if fs.read_around_cache(str(tmp_path / "file"), 100, 200, memory[1:]):  # Btrfs can
        assert memory[1:101] == bytes(range(100, 200))
