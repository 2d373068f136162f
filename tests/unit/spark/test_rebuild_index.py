"""rebuild-index without Spark: what its tasks and its driver make is what `sprocketmq rebuild` makes, whatever happens on the way."""

import errno
import json
import os
import random
import shutil
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest
from tests.interop import stores
from tests.recorded_stores import unpack
from tests.unit.spark.store_jobs import (
    SMALL_FILES,
    Writer,
    files,
    filled,
    index_files,
    queue_files,
    run_here,
    without_spark,
    without_syncing,
)

from sprocketmq.cli import pipeline
from sprocketmq.cli.app import main
from sprocketmq.errors import ConfigError, StoreDamaged, StoreLocked, StoreNotWritable
from sprocketmq.protocol.records import decode_records
from sprocketmq.spark.jobs import rebuild_index as job
from sprocketmq.spark.jobs.tasks import StoreNotShared, StoreUnreadable, failure_of
from sprocketmq.storage.bulk import rebuild as rebuilding
from sprocketmq.storage.bulk.rebuild import WORK_DIRECTORY, rebuild
from sprocketmq.storage.bulk.spool import Spool
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.fs import REAL_FS, RealFileSystem
from sprocketmq.storage.inspect.items import NotAStoreFile
from sprocketmq.storage.inspect.unit_check import Segments, check_queue
from sprocketmq.storage.inspect.verification import verify
from sprocketmq.storage.store import MessageStore

FIXTURES = ["plain", "batchcq", "compressed", "delay-retry", "crash", "crash-lag", "propcrc"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    without_syncing(monkeypatch)


@pytest.fixture
def rebuild_index(monkeypatch):
    """Return the job with its tasks in this process."""
    without_spark(monkeypatch, job)
    return partial(job.rebuild_index, None)


def sizes(root):
    return StoreConfig(root, **SMALL_FILES)


@pytest.mark.parametrize("split_bytes", [0, 1500])
@pytest.mark.parametrize("name", FIXTURES)
def test_the_files_are_those_of_the_rebuild_in_one_process(name, split_bytes, tmp_path, rebuild_index):
    root = unpack(name, tmp_path)
    before = files(root)
    there = rebuild(root, tmp_path / "there", workers=1)
    made = rebuild_index(root, to=tmp_path / "here", split_bytes=split_bytes)
    assert files(root) == before
    assert queue_files(tmp_path / "here") == queue_files(tmp_path / "there")
    assert index_files(tmp_path / "here") == index_files(tmp_path / "there")
    assert (tmp_path / "here" / "checkpoint").read_bytes() == (tmp_path / "there" / "checkpoint").read_bytes()
    assert not (tmp_path / "here" / WORK_DIRECTORY).exists()
    assert (made.records, made.queues, made.index_entries) == (there.records, there.queues, there.index_entries)
    assert (made.log_begin, made.log_end) == (there.log_begin, there.log_end)
    assert made.index_files == len(index_files(tmp_path / "there"))


def test_a_store_with_everything_in_it_in_many_small_files(tmp_path, rebuild_index):
    names = stores.Names("spark")
    writer = stores.Writer(tmp_path / "store", 10911, names)
    said = writer.write()
    writer.store.close()
    root = tmp_path / "store"
    before = not_parked(root), index_files(root)
    made = rebuild_index(root, split_bytes=100_000)
    assert (not_parked(root), index_files(root)) == before
    assert made.index_files > 3
    assert (made.units, made.left_out) == (sum(1 for _ in units_of(root)), 0)
    store = MessageStore(stores.store_config(root))
    report = store.open()
    assert (report.clean, report.rebuilt, report.records) == (True, False, 0)
    assert stores.listing(store, names) == said
    store.close()
    assert verify(str(root)).ok


def not_parked(root):
    """Return the queue files but those of delayed messages, whose units hold a time that the test's writer gave a moment earlier."""
    return {path: data for path, data in queue_files(root).items() if stores.SCHEDULE not in path}


def units_of(root):
    for path, data in queue_files(root).items():
        width = 46 if path.startswith("batch") else 20
        yield from (data[at : at + width] for at in range(0, len(data), width) if any(data[at : at + width]))


def test_index_files_with_any_number_of_entries_follow_each_other(tmp_path, rebuild_index):
    for entries in (23, 100, 101, 301, 5000):
        filled(tmp_path / f"{entries}", 75, max_index_entries=entries)
        before = index_files(tmp_path / f"{entries}")
        rebuild_index(tmp_path / f"{entries}")
        assert index_files(tmp_path / f"{entries}") == before


def test_in_place_nothing_else_is_touched_and_what_was_ruined_is_whole(tmp_path, rebuild_index):
    root = unpack("batchcq", tmp_path)
    derived = queue_files(root), index_files(root)
    kept = {path: data for path, data in files(root).items() if Path(path).parts[0] in {"commitlog", "config"}}
    for path in queue_files(root):
        (root / path).write_bytes(b"\xee" * 77)
    shutil.rmtree(root / "index")
    config = StoreConfig(root, consumequeue_segment_bytes=1000, batchqueue_segment_bytes=460, max_hash_slots=64, max_index_entries=256)
    rebuild_index(root, config=config)
    assert (queue_files(root), index_files(root)) == derived
    assert {path: data for path, data in files(root).items() if path in kept} == kept
    assert verify(str(root)).errors == 0


@pytest.mark.parametrize("what", [["index"], ["consumequeue"], ["batchconsumequeue", "checkpoint"], ["checkpoint"]])
def test_only_what_was_chosen_is_made(what, tmp_path, rebuild_index):
    root = unpack("batchcq", tmp_path)
    made = rebuild_index(root, to=tmp_path / "new", what=what)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(what)
    assert sorted(made.what) == sorted(what)


def test_deleted_topics_and_expired_queues_stay_what_they_are(tmp_path, rebuild_index):
    root = tmp_path / "store"
    writer = Writer(root)
    for _ in range(40):
        writer.send("old")
        writer.send("gone")
    writer.store.delete_topic("gone")
    writer.send("gone")
    for _ in range(200):
        writer.send("orders", body=b"x" * 600)
    writer.close()
    (root / "commitlog" / f"{0:020d}").unlink()
    writer = Writer(root)
    ends = {topic: (writer.store.min_offset(topic, 0), writer.store.max_offset(topic, 0)) for topic in ("old", "gone", "orders")}
    writer.close()
    made = rebuild_index(root)
    assert made.kept_queues >= 1
    assert (made.units, made.records - made.units) == (sum(end - begin for begin, end in ends.values()), made.left_out)
    writer = Writer(root)
    assert {topic: (writer.store.min_offset(topic, 0), writer.store.max_offset(topic, 0)) for topic in ends} == ends
    assert writer.send("old") == 40
    writer.close()


@pytest.mark.parametrize("seed", range(6))
def test_damage_costs_what_it_costs_the_rebuild_in_one_process(seed, tmp_path, rebuild_index):
    rng = random.Random(seed)
    root = tmp_path / "store"
    filled(root, 300)
    segments = sorted((root / "commitlog").iterdir())
    for _ in range(rng.randrange(1, 6)):
        path = rng.choice(segments[:-1])
        data = bytearray(path.read_bytes())
        at = rng.randrange(len(data))
        data[at : at + rng.choice([1, 30, 3000])] = rng.randbytes(1)
        path.write_bytes(data[: 64 << 10].ljust(64 << 10, b"\0"))
    there = rebuild(root, tmp_path / "there", workers=1)
    made = rebuild_index(root, to=tmp_path / "here", split_bytes=rng.choice([3000, 20_000]))
    assert queue_files(tmp_path / "here") == queue_files(tmp_path / "there")
    assert index_files(tmp_path / "here") == index_files(tmp_path / "there")
    assert [(d.path, d.start, d.end) for d in there.damaged] == list(made.damaged)
    assert made.records == there.records


def test_records_inside_a_body_do_not_count(tmp_path, rebuild_index):
    root = tmp_path / "store"
    path = root / "commitlog" / f"{0:020d}"
    writer = Writer(root, commitlog_segment_bytes=1 << 20)
    writer.send()
    record = path.read_bytes()[: int.from_bytes(path.read_bytes()[:4], "big")]
    end = len(record)
    for _ in range(8):
        # A body that is full of records, each of which says just the place where it lies: nothing in it tells that it is none.
        body = b"".join(record[:28] + (end + 88 + at).to_bytes(8, "big") + record[36:] for at in range(0, 40 * len(record), len(record)))
        writer.send("forged", body=body)
        physical = max(writer.places.values())
        end = physical + int.from_bytes(path.read_bytes()[physical : physical + 4], "big")
    writer.close()
    before = queue_files(root), index_files(root)
    for split_bytes in (1000, 5000):
        assert rebuild_index(root, split_bytes=split_bytes).records == 9
        assert (queue_files(root), index_files(root)) == before


# --- what is refused, and what fails ---


def test_a_store_in_use_is_left_alone_but_may_be_read(tmp_path, rebuild_index):
    root = tmp_path / "store"
    writer = Writer(root)
    for _ in range(30):
        writer.send()
    before = files(root)
    with pytest.raises(StoreLocked, match="in use"):
        rebuild_index(root)
    assert files(root) == before
    assert rebuild_index(root, to=tmp_path / "new").records == 30
    assert files(root) == before
    writer.close()


def test_bad_requests_are_refused_before_anything_is_made(tmp_path, rebuild_index):
    root = unpack("plain", tmp_path)
    before = files(root)
    (tmp_path / "taken" / "index").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for arguments, options, error, said in [
        ([root], {"what": ["tables"]}, ConfigError, "not tables"),
        ([root], {"to": root / "inside"}, ConfigError, "lies in the store itself"),
        ([root], {"to": tmp_path / "taken"}, ConfigError, "already has index"),
        ([root], {"split_bytes": -1}, ConfigError, "split_bytes"),
        ([tmp_path / "empty"], {}, NotAStoreFile, "no store in this directory"),
        ([tmp_path / "missing"], {}, NotAStoreFile, "no store in this directory"),
        ([root / "commitlog"], {}, NotAStoreFile, "it is a part of the store"),
    ]:
        with pytest.raises(error, match=said):
            rebuild_index(*arguments, **options)
    assert files(root) == before
    shutil.rmtree(root / "commitlog")
    with pytest.raises(StoreDamaged, match="no commit log"):
        rebuild_index(root)


def test_a_worker_that_does_not_see_the_store_says_so(tmp_path, monkeypatch):
    root = unpack("plain", tmp_path)
    before = files(root)
    mark = root / WORK_DIRECTORY / "mark"

    def elsewhere(spark, title, work, items, *, on_progress=None):
        content = mark.read_text()
        mark.unlink()
        try:
            return run_here(spark, title, work, items)
        finally:
            mark.write_text(content)

    def another(spark, title, work, items, *, on_progress=None):
        mark.write_text("of another machine's directory")
        return run_here(spark, title, work, items)

    for run in (elsewhere, another):
        without_spark(monkeypatch, job, run=run)
        with pytest.raises(StoreNotShared, match=r"does not see .*rebuilding/mark.* on a file system that all workers have") as raised:
            job.rebuild_index(None, root)
        assert raised.value.host == os.uname().nodename
        assert {path: data for path, data in files(root).items() if path != "lock"} == {p: d for p, d in before.items() if p != "lock"}


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    root = unpack("plain", tmp_path)

    def broken(spark, title, work, items, *, on_progress=None):
        return [failure_of(OSError(errno.EIO, "Input/output error"), path=items[0].path)]

    without_spark(monkeypatch, job, run=broken)
    with pytest.raises(StoreUnreadable, match=r"commitlog/0+ cannot be read on .*Input/output error"):
        job.rebuild_index(None, root)


@pytest.mark.parametrize("can", [True, False])
def test_systems_that_cannot_exchange_names_do_it_in_two_steps(can, tmp_path, monkeypatch, rebuild_index):
    root = unpack("batchcq", tmp_path)
    before = queue_files(root), index_files(root)
    asked = []
    real = RealFileSystem.exchange
    monkeypatch.setattr(RealFileSystem, "exchange", lambda self, one, other: asked.append(other) or (can and real(self, one, other)))
    rebuild_index(root)
    assert [Path(path).name for path in asked] == ["consumequeue", "batchconsumequeue", "index"]
    assert (queue_files(root), index_files(root)) == before
    assert not (root / WORK_DIRECTORY).exists()


def test_a_disk_that_refuses_changes_nothing(tmp_path, monkeypatch, rebuild_index):
    root = unpack("plain", tmp_path)
    before = files(root)

    def full(self, chunk):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "spool")

    monkeypatch.setattr(Spool, "add", full)
    with pytest.raises(StoreNotWritable, match="No space left on device"):
        rebuild_index(root)
    assert {path: data for path, data in files(root).items() if path != "lock"} == {p: d for p, d in before.items() if p != "lock"}


def test_files_that_do_not_fit_the_log_are_not_taken(tmp_path, monkeypatch, rebuild_index):
    root = unpack("batchcq", tmp_path)
    before = files(root)
    monkeypatch.setattr("sprocketmq.storage.inspect.unit_check.check_queue", lambda *args, **options: (0, "unit 3 points nowhere"))
    with pytest.raises(job.RebuildUnconfirmed, match="nothing was changed: unit 3 points nowhere"):
        rebuild_index(root)
    assert {path: data for path, data in files(root).items() if path != "lock"} == {p: d for p, d in before.items() if p != "lock"}


@pytest.mark.parametrize("name", ["plain", "batchcq", "compressed"])
def test_the_log_contradicts_units_that_were_changed(name, tmp_path):
    root = unpack(name, tmp_path)
    segments = Segments(REAL_FS, f"{root}/commitlog", 65536)
    rng = random.Random(7)
    asked = 0
    for path in sorted(queue_files(root)):
        kind, topic, queue_id, _ = path.split("/")
        directory = str(root / kind / topic / queue_id)
        batch = kind.startswith("batch")
        width = 46 if batch else 20
        sound = check_queue(REAL_FS, directory, topic, int(queue_id), segments, batch=batch)
        assert sound[0] > 0
        assert sound[1] == ""
        assert check_queue(REAL_FS, directory, topic + "x", int(queue_id), segments, batch=batch)[1]
        assert check_queue(REAL_FS, directory, topic, int(queue_id) + 1, segments, batch=batch)[1]
        data = bytearray((root / path).read_bytes())
        used = len(bytes(data).rstrip(b"\0")) // width
        number = rng.randrange(max(used, 1))
        changed = bytearray(data)
        changed[number * width + 11] ^= 1  # its size
        (root / path).write_bytes(changed)
        assert "points to log offset" in check_queue(REAL_FS, directory, topic, int(queue_id), segments, batch=batch)[1]
        changed = bytearray(data)
        changed[number * width + 6] ^= 1  # its place
        (root / path).write_bytes(changed)
        assert "points to log offset" in check_queue(REAL_FS, directory, topic, int(queue_id), segments, batch=batch)[1]
        (root / path).write_bytes(data)
        asked += 1
    assert asked > 2


class Died(BaseException):
    """The process is gone; nothing it would do afterwards happens."""


@pytest.mark.parametrize("when", ["while files are made", "while they change places", "while they are renamed"])
def test_a_crash_at_any_step_leaves_a_store_that_has_everything(when, tmp_path, monkeypatch, rebuild_index):
    if when == "while they are renamed":  # as on many network file systems
        monkeypatch.setattr(RealFileSystem, "exchange", lambda *_: False)
    original = tmp_path / "original"
    writer = Writer(original, **LARGE_FILES)
    bodies = {key: b"%s %d %d" % (key[0].encode(), key[1], key[2]) for key in [("orders", i % 2, i // 2) for i in range(20)]}
    for (topic, queue_id, _), body in bodies.items():
        writer.send(topic, queue_id, body)
    writer.close()
    step = 0
    while True:
        root = tmp_path / f"{step}"
        shutil.copytree(original, root)
        left = [step if when == "while files are made" else 1 << 30]
        with monkeypatch.context() as patch, suppress(Died):
            for call in ("rename", "unlink", "fsync_dir", "exchange", "make_dirs"):
                patch.setattr(RealFileSystem, call, dying(getattr(RealFileSystem, call), left))
            patch.setattr(RealFileSystem, "remove_tree", when_alive(RealFileSystem.remove_tree, left))
            patch.setattr(rebuilding._Rebuild, "_put_in_place", from_here(rebuilding._Rebuild._put_in_place, left, step))
            rebuild_index(root)
        found = verify(str(root))
        # Between two renames a directory is absent; the broker then derives it from the log.
        lacking = {"missing unit"} if when == "while they are renamed" else set()
        assert {finding.kind for finding in found.findings if finding.severity != "note"} <= lacking, found.findings
        store = MessageStore(StoreConfig(root, **(SMALL_FILES | LARGE_FILES)))
        store.open()
        assert {key: body_at(store, *key) for key in bodies} == bodies
        store.close()
        shutil.rmtree(root)
        if left[0] >= 0:
            break
        step += 1
    assert step >= 8


# One file of each kind, so that there are not too many steps.
LARGE_FILES = {"commitlog_segment_bytes": 1 << 20, "consumequeue_segment_bytes": 20_000, "max_hash_slots": 100, "max_index_entries": 400}


def body_at(store, topic, queue_id, offset):
    result = store.read(topic, queue_id, offset, max_count=1, max_bytes=1 << 20)
    return next(iter(decode_records(result.buffers[0], verify_crc=True))).body


def when_alive(call, left):
    return lambda *args: call(*args) if left[0] >= 0 else None


def from_here(call, left, steps):
    """Begin to count the steps when the call does, unless they are counted already."""

    def begin(*args):
        left[0] = steps if left[0] > 1 << 20 else left[0]
        return call(*args)

    return begin


def dying(call, left):
    def step(*args):
        left[0] -= 1
        if left[0] < 0:
            raise Died
        return call(*args)

    return step


# --- progress, summary, command line ---


def test_progress_comes_to_its_end_and_the_summary_says_what_was_done(tmp_path, rebuild_index):
    root = unpack("plain", tmp_path)
    told = []
    made = rebuild_index(root, progress=told.append)
    assert {progress.detail for progress in told} == {"reading the log", "making files"}
    assert told[-1].done == told[-1].total
    rows = dict(made.rows())
    assert rows["read"].startswith("147 records, 152,401 bytes of log")
    assert rows["index"] == "489 entries in 2 files"
    assert json.loads(json.dumps(made.as_dict()))["units"] == made.units


@pytest.fixture
def command(monkeypatch, capfd, tmp_path):
    """Return ``command(*arguments)``: run `sprocketmq pipeline rebuild-index` with its tasks in this process."""
    without_spark(monkeypatch, job)
    monkeypatch.setattr(pipeline, "_session", lambda title, options: nullcontext())

    def run(*arguments):
        code = main(["pipeline", "rebuild-index", *map(str, arguments)])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


def test_the_command_prints_a_summary_and_refuses_what_is_wrong(tmp_path, command):
    root = unpack("plain", tmp_path)
    before = queue_files(root)
    code, out, _ = command(root, "--json")
    assert (code, json.loads(out)["records"]) == (0, 147)
    assert queue_files(root) == before
    code, out, _ = command(root, "--to", tmp_path / "new", "--only", "index", "--split-mib", "16")
    assert code == 0
    assert "489 entries in 2 files" in out
    for arguments, expected, said in [
        ([root, "--only", "queues"], 2, "--only takes consumequeue"),
        ([root, "--to", root / "inside"], 2, "lies in the store itself"),
        ([tmp_path / "missing"], 2, "no store in this directory"),
        ([root, "--split-mib", "-1"], 2, "split-mib"),
    ]:
        code, _, err = command(*arguments)
        assert (code, said in err) == (expected, True), err
    running = MessageStore(StoreConfig(root))
    running.open()
    code, _, err = command(root)
    running.close()
    assert code == 1
    assert "is in use by another broker" in err
    assert "choose another directory with --to" in err
