"""A log in splits: nothing of it is left out or comes twice, and parts that follow each other join."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.bulk.parsing import parse_chunk
from sprocketmq.storage.bulk.pipeline import TASK_BYTES
from sprocketmq.storage.bulk.rebuild import open_log
from sprocketmq.storage.bulk.splits import MAX_SPLIT_BYTES, MIN_SPLIT_BYTES, cut_splits, parts, split_bytes_for
from sprocketmq.storage.bulk.spool import Spool, entry_pieces, group_pieces, last_entry, read_chunks, read_entries
from sprocketmq.storage.bulk.stitching import Answer, LogOrder
from sprocketmq.storage.chunks import ParsedChunk
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.store import MessageStore, StoreConfig

HOST = pack_host("127.0.0.1", 10911)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = random.Random(3)
    store = MessageStore(StoreConfig(tmp_path / "store", commitlog_segment_bytes=64 << 10, preallocate=False))
    store.store_host = HOST
    store.open()
    for i in range(300):
        properties = b"UNIQ_KEY\x01%032X\x02TAGS\x01a\x02" % i
        size = 9000 if i % 50 == 7 else rng.randrange(700)
        store.stage_message(f"t{i % 3}", i % 2, rng.randbytes(size), properties, tags_code=97, born_timestamp_ms=1, born_host=HOST)
        store.commit()
    store.close()
    return tmp_path / "store"


def in_order(log: CommitLog, answers: list[Answer[ParsedChunk]]) -> list[ParsedChunk]:
    waiting = iter(answers)
    order: LogOrder[ParsedChunk] = LogOrder(log, log.min_offset, resync=True)
    read = [0]

    def again(segment: object, begin: int, limit: int) -> ParsedChunk:
        read[0] += 1
        found = log.find(begin)
        assert found is not None
        return parse_chunk(segment.view, segment.start, begin, limit)  # type: ignore[attr-defined]

    found = list(order.stretches(lambda: next(waiting, None), again))
    assert order.damaged == []
    return found


@pytest.mark.parametrize("split_bytes", [500, 4000, 20_000, 1 << 20])
def test_parts_cover_each_split_without_a_gap_and_join_into_the_log(root: Path, split_bytes: int) -> None:
    log = open_log(REAL_FS, str(root))
    splits = cut_splits(log, split_bytes)
    assert all(split.limit - split.begin <= split_bytes for split in splits)
    assert all(a.limit <= b.begin for a, b in pairwise(splits))
    answers = []
    for split in splits:
        found = list(parts(REAL_FS, split, batch_topics=frozenset(), keys=True))
        assert found[0].begin == split.begin
        assert found[-1].limit >= split.limit
        assert all(a.limit == b.begin for a, b in pairwise(found))
        answers += found
    chunks = in_order(log, answers)
    assert sum(chunk.records for chunk in chunks) == 300
    assert sum(len(chunk.keys.hashes) for chunk in chunks if chunk.keys is not None) == 600
    log.close()


def test_what_was_never_written_is_in_no_split(tmp_path: Path) -> None:
    store = MessageStore(StoreConfig(tmp_path, commitlog_segment_bytes=64 << 20, preallocate=False))
    store.store_host = HOST
    store.open()
    store.stage_message("t", 0, b"x", b"", tags_code=0, born_timestamp_ms=1, born_host=HOST)
    store.commit()
    store.close()
    log = open_log(REAL_FS, str(tmp_path))
    (split,) = cut_splits(log, MIN_SPLIT_BYTES)
    assert (split.begin, split.limit, split.size) == (0, TASK_BYTES, 64 << 20)
    log.close()


def test_splits_are_as_long_as_fits_the_log_and_the_tasks() -> None:
    assert split_bytes_for(0, 2) == split_bytes_for(1 << 20, 8) == MIN_SPLIT_BYTES
    assert split_bytes_for(1 << 40, 8) == MAX_SPLIT_BYTES
    assert split_bytes_for(1 << 30, 4) == (1 << 30) // 16
    assert split_bytes_for((1 << 30) + 12345, 5) % TASK_BYTES == 0


@pytest.mark.parametrize("per_file", [1, 7, 599, 600, 601])
def test_what_goes_into_a_spool_comes_out_in_log_order(root: Path, tmp_path: Path, per_file: int) -> None:
    log = open_log(REAL_FS, str(root))
    answers = [a for split in cut_splits(log, 5000) for a in parts(REAL_FS, split, batch_topics=frozenset(), keys=True)]
    chunks = in_order(log, answers)
    spools = [Spool(REAL_FS, str(tmp_path / f"{i}"), 3) for i in range(2)]
    spooled = [spools[i % 2].add(chunk) for i, chunk in enumerate(chunks)]
    for spool in spools:
        spool.close()
    runs = [run for group in range(3) for some in read_chunks(REAL_FS, group_pieces(spooled, group)) for run in some]
    assert sorted(runs) == sorted(run for chunk in chunks for run in chunk.queue_chunks)
    queues: dict[tuple[bytes, int], int] = {}
    for run in runs:
        assert run.first_offset == queues.get((run.topic, run.queue_id), 0)
        queues[run.topic, run.queue_id] = run.next_offset
    files = entry_pieces(spooled, per_file)
    assert [sum(piece.length for piece in pieces) for pieces in files[:-1]] == [per_file] * (len(files) - 1)
    entries = [entry for pieces in files for some in read_entries(REAL_FS, pieces) for entry in zip(*some, strict=True)]
    assert entries == [entry for chunk in chunks if chunk.keys is not None for entry in zip(*chunk.keys, strict=True)]
    assert last_entry(REAL_FS, files[-1][-1]) == (int(entries[-1][2]), int(entries[-1][1]))
    log.close()


def test_a_spool_that_is_too_short_is_an_error(root: Path, tmp_path: Path) -> None:
    log = open_log(REAL_FS, str(root))
    (answer, *_) = parts(REAL_FS, cut_splits(log, 5000)[0], batch_topics=frozenset(), keys=True)
    assert answer.stretch is not None
    spool = Spool(REAL_FS, str(tmp_path / "spool"), 1)
    spooled = spool.add(answer.stretch)
    spool.close()
    data = (tmp_path / "spool").read_bytes()
    (tmp_path / "spool").write_bytes(data[:-1])
    with pytest.raises(OSError, match="is 1 bytes too short"):
        list(read_entries(REAL_FS, entry_pieces([spooled], 1000)[0]))
    log.close()
