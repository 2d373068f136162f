"""Derived files made anew are those Apache's broker made, and nothing else is touched."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.recorded_stores import unpack

from sprocketmq.errors import ConfigError, StoreDamaged, StoreLocked, StoreNotSupported, StoreNotWritable
from sprocketmq.storage.bulk.rebuild import DERIVED, WORK_DIRECTORY, rebuild
from sprocketmq.storage.checkpoint import Checkpoint
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.store import MessageStore, StoreConfig

CLEAN = ["plain", "propcrc", "compressed", "delay-retry", "batchcq"]
MakeBench = Callable[..., Any]  # of conftest.Bench


def files(root: Path, *names: str) -> dict[str, bytes]:
    """Return the content of all files, or those under some names."""
    found = [path for path in root.rglob("*") if path.is_file()]
    return {str(p.relative_to(root)): p.read_bytes() for p in found if not names or p.relative_to(root).parts[0] in names}


def queue_files(root: Path) -> dict[str, bytes]:
    return files(root, "consumequeue", "batchconsumequeue")


def index_files(root: Path) -> list[bytes]:
    """Return the content of the index files in order; their names are times."""
    return [data for _, data in sorted(files(root, "index").items())]


@pytest.mark.parametrize("name", CLEAN)
def test_in_another_directory_the_files_equal_apaches_and_the_store_is_only_read(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    before = files(root)
    report = rebuild(root, tmp_path / "new", workers=1)
    assert files(root) == before
    assert queue_files(tmp_path / "new") == queue_files(root)
    assert [len(data) for data in index_files(tmp_path / "new")] == [len(data) for data in index_files(root)]
    assert index_files(tmp_path / "new") == index_files(root)
    assert {path.name for path in (tmp_path / "new").iterdir()} <= set(DERIVED)
    assert (report.records > 0, report.damaged, report.lost_workers) == (True, [], 0)
    assert report.queues == len({str(Path(path).parent) for path in queue_files(root)})


@pytest.mark.parametrize("name", CLEAN)
def test_in_place_the_log_and_the_configuration_stay_and_the_next_start_reads_nothing(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    derived = queue_files(root), index_files(root)
    kept = {path: data for path, data in files(root).items() if Path(path).parts[0] in {"commitlog", "config"}}
    for path in queue_files(root):
        (root / path).write_bytes(b"\xee" * 77)
    # Sizes cannot be told from ruins; they come from the configuration then.
    sizes = StoreConfig(root, consumequeue_segment_bytes=1000, batchqueue_segment_bytes=460)
    rebuild(root, workers=1, config=sizes)
    assert (queue_files(root), index_files(root)) == derived
    assert {path: data for path, data in files(root).items() if path in kept} == kept
    assert not (root / WORK_DIRECTORY).exists()
    store = MessageStore(StoreConfig(root, max_hash_slots=64, max_index_entries=256))
    report = store.open()
    assert (report.clean, report.rebuilt, report.records) == (True, False, 0)
    store.close()


def test_the_checkpoint_says_that_everything_is_on_the_disk(tmp_path: Path) -> None:
    root = unpack("plain", tmp_path)
    old = Checkpoint.load(REAL_FS, str(root / "checkpoint"))
    report = rebuild(root, workers=1)
    new = Checkpoint.load(REAL_FS, str(root / "checkpoint"))
    assert new.queues_timestamp_ms == new.index_timestamp_ms == new.commitlog_timestamp_ms >= old.commitlog_timestamp_ms
    assert 0 < new.queues_physical_offset < report.log_end
    assert new.master_flushed_offset == old.master_flushed_offset


@pytest.mark.parametrize("what", [["index"], ["consumequeue"], ["batchconsumequeue", "checkpoint"], ["checkpoint"]])
def test_only_what_was_chosen_is_made(what: list[str], tmp_path: Path) -> None:
    root = unpack("batchcq", tmp_path)
    report = rebuild(root, tmp_path / "new", what=what, workers=1)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(what)
    assert sorted(report.what) == sorted(what)
    before = files(root)
    rebuild(root, what=what, workers=1)
    after = files(root)
    assert {path for path in before if Path(path).parts[0] not in {*what, "lock"} and before[path] != after.get(path)} == set()


def test_our_own_store_and_its_deleted_topics(make_bench: MakeBench) -> None:
    bench = make_bench()
    for i in range(120):
        bench.send(b"body-%d" % i, "orders", i % 3)
        bench.send(b"gone-%d" % i, "gone")
    bench.store.delete_topic("gone")
    bench.send(b"after", "gone")
    bench.stop()
    before = queue_files(bench.root)
    rebuild(bench.root, workers=1)
    assert queue_files(bench.root) == before
    bench.reopen()
    assert (bench.report.rebuilt, bench.report.records) == (False, 0)
    assert bench.bodies("gone") == [b"after"]
    bench.stop()
    (bench.root / "dispatched").unlink()
    rebuild(bench.root, workers=1)
    bench.reopen()
    assert bench.report.rebuilt is False, "the note is new, and deletions are forgotten with the old one"
    assert len(bench.bodies("gone")) in {1, 121}


def test_a_queue_whose_messages_have_all_left_the_log_keeps_its_offsets(make_bench: MakeBench) -> None:
    bench = make_bench()
    for _ in range(40):
        bench.send(b"x" * 20, "old")
    for _ in range(200):
        bench.send(b"x" * 600)
    bench.stop()
    bench.segment().unlink()
    bench.reopen()
    bench.stop()
    report = rebuild(bench.root, workers=1)
    assert report.kept_queues == 1
    bench.reopen()
    assert bench.report.rebuilt is False
    assert (bench.store.min_offset("old", 0), bench.store.max_offset("old", 0)) == (40, 40)
    assert bench.send(b"next", "old")[0] == 40


def test_a_store_of_a_killed_broker_keeps_its_marker_and_its_tail(make_bench: MakeBench) -> None:
    bench = make_bench()
    for i in range(60):
        bench.send(b"body-%d" % i)
    bench.kill()
    data = bytearray(bench.segment().read_bytes())
    used = len(data.rstrip(b"\0"))
    data[used - 5 : used + 30] = b"\xee" * 35
    bench.segment().write_bytes(data)
    report = rebuild(bench.root, workers=1)
    assert (report.records, report.damaged) == (59, [])
    assert (bench.root / "abort").exists()
    assert bench.segment().read_bytes() == data
    bench.reopen()
    assert bench.report.rebuilt is False
    assert len(bench.bodies()) == 59


def test_damage_in_the_middle_is_told_and_skipped(make_bench: MakeBench) -> None:
    bench = make_bench()
    places = [bench.send(b"body-%d" % i)[1] for i in range(60)]
    bench.stop()
    data = bytearray(bench.segment().read_bytes())
    data[places[30] + 89] ^= 1
    bench.segment().write_bytes(data)
    report = rebuild(bench.root, bench.root.parent / "new", workers=1)
    assert (report.records, [d[1:] for d in report.damaged]) == (59, [(places[30], places[31])])


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    report = rebuild(unpack("plain", tmp_path), tmp_path / "new", workers=1, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (report.log_end, report.log_end)


def test_a_broker_that_runs_keeps_its_store_from_being_changed_but_may_be_read(make_bench: MakeBench) -> None:
    bench = make_bench()
    for i in range(10):
        bench.send(b"body-%d" % i)
    before = files(bench.root)
    with pytest.raises(StoreLocked):
        rebuild(bench.root, workers=1)
    assert files(bench.root) == before
    assert rebuild(bench.root, bench.root.parent / "new", workers=1).records == 10
    assert files(bench.root) == before


def test_bad_requests_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    root = unpack("plain", tmp_path)
    before = files(root)
    with pytest.raises(ConfigError, match="consumequeue, batchconsumequeue, index, checkpoint; not tables"):
        rebuild(root, what=["tables"])
    with pytest.raises(ConfigError, match="none of them"):
        rebuild(root, what=[])
    (tmp_path / "new" / "index").mkdir(parents=True)
    with pytest.raises(ConfigError, match="already has index"):
        rebuild(root, tmp_path / "new")
    with pytest.raises(StoreDamaged, match="no commit log"):
        rebuild(tmp_path / "new")
    with pytest.raises(StoreDamaged, match="no commit log"):
        rebuild(tmp_path / "missing", tmp_path / "other")
    assert not (tmp_path / "missing").exists()
    assert not (tmp_path / "other").exists()
    (root / "commitlog" / f"{65536:020d}").unlink()
    with pytest.raises(StoreDamaged, match=f"{65536:020d}.*missing"):
        rebuild(root)
    assert {path: data for path, data in files(root).items() if not path.endswith("lock")}.items() <= before.items()


@pytest.mark.parametrize("call", ["fdatasync", "rename", "pwrite", "make_dirs"])
@pytest.mark.parametrize("skip", [0, 2])
def test_a_disk_that_refuses_costs_nothing_that_a_start_does_not_derive_again(call: str, skip: int, make_bench: MakeBench) -> None:
    bench = make_bench()
    for i in range(60):
        bench.send(b"body-%d" % i, "orders", i % 2)
    bench.stop()
    before = queue_files(bench.root)
    bench.fs.fail(call, errno.ENOSPC, path=WORK_DIRECTORY if call != "rename" else "", skip=skip)
    try:
        rebuild(bench.root, workers=0, fs=bench.fs)
    except StoreNotWritable:
        assert call == "rename" or queue_files(bench.root) == before
    bench.fs.heal()
    bench.reopen()
    assert len(bench.bodies()) == 30
    bench.stop()
    rebuild(bench.root, workers=1)
    assert queue_files(bench.root) == before
    assert not (bench.root / WORK_DIRECTORY).exists()


def test_leftovers_of_an_interrupted_run_go(tmp_path: Path) -> None:
    root = unpack("plain", tmp_path)
    shutil.copytree(root / "consumequeue", root / WORK_DIRECTORY / "consumequeue")
    before = queue_files(root)
    rebuild(root, workers=1)
    assert queue_files(root) == before
    assert not (root / WORK_DIRECTORY).exists()


def test_queues_in_a_database_are_not_replaced_but_files_may_be_made_elsewhere(tmp_path: Path) -> None:
    root = unpack("plain", tmp_path)
    queues = queue_files(root)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "batchconsumequeue", ignore_errors=True)
    (root / "consumequeue").mkdir()
    (root / "consumequeue" / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(StoreNotSupported):
        rebuild(root, workers=1)
    assert (root / "consumequeue" / "CURRENT").exists()
    rebuild(root, tmp_path / "new", workers=1, config=StoreConfig(root, consumequeue_segment_bytes=1000))
    assert queue_files(tmp_path / "new") == queues


def test_segments_that_lost_their_ends_are_read_as_far_as_they_go_and_stay_as_they_are(make_bench: MakeBench) -> None:
    bench = make_bench(commitlog_segment_bytes=8192)
    places = [bench.send(b"x" * 300)[1] for _ in range(60)]
    bench.stop()
    segments = sorted((bench.root / "commitlog").iterdir())
    cut = next(place for place in places if place > 8192 + 4000) - 8192
    for path, length in ((segments[1], cut), (segments[-1], 3)):
        with path.open("r+b") as file:
            file.truncate(length)
    last = int(segments[-1].name)
    kept = [place for place in places if place < 8192 + cut or 2 * 8192 <= place < last]
    report = rebuild(bench.root, bench.root.parent / "new", workers=1)
    assert report.records == len(kept)
    assert (segments[1].stat().st_size, segments[-1].stat().st_size) == (cut, 3)
