"""Pages of the mapped log leave the memory of the process, and reads find them again."""

import pytest

from sprocketmq.storage.fs import mapped_file_bytes
from sprocketmq.storage.log import unmapping

SEGMENT = 16 << 20
BODY = b"x" * (1 << 20)


@pytest.fixture
def filled(make_bench, monkeypatch):
    """A store with a log of 48 MiB, of which the last MiB stays mapped."""
    monkeypatch.setattr(unmapping, "MAPPED_TAIL_BYTES", 1 << 20)
    monkeypatch.setattr(unmapping, "STEP_BYTES", 4 << 20)
    bench = make_bench(commitlog_segment_bytes=SEGMENT)
    for _ in range(42):
        bench.send(BODY)
    return bench


def read_all(bench):
    """Read every message's bytes and return their number."""
    found = [bench.store.read("orders", 0, offset, max_count=1) for offset in range(42)]
    return sum(len(bytes(buffer)) >= len(BODY) for result in found for buffer in result.buffers)


@pytest.mark.skipif(not mapped_file_bytes(), reason="the system does not tell what is mapped")
def test_what_was_read_leaves_the_memory_of_the_process_and_can_be_read_again(filled):
    assert read_all(filled) == 42
    before = mapped_file_bytes()
    for _ in filled.store.unmap_in_steps():
        pass
    assert mapped_file_bytes() <= before - (30 << 20)
    assert read_all(filled) == 42


def test_buffers_of_a_read_outlive_the_unmapping_of_their_pages(filled):
    result = filled.store.read("orders", 0, 0, max_count=8, max_bytes=8 << 20)
    for _ in filled.store.unmap_in_steps():
        pass
    assert all(bytes(buffer).count(b"x") >= len(BODY) for buffer in result.buffers)


def test_segments_may_go_between_two_steps(filled):
    read_all(filled)
    steps = filled.store.unmap_in_steps()
    next(steps)
    filled.store.delete_before(2 * SEGMENT)
    filled.store.release_deleted()
    assert sum(1 for _ in steps) > 0


def test_a_log_that_is_all_tail_stays_mapped(make_bench):
    bench = make_bench()
    bench.send(b"only")
    assert list(bench.store.unmap_in_steps()) == []
