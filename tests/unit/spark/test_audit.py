"""audit without Spark: sound stores are in order, and damage is found, named, and located, whatever it is."""

import errno
import json
import random
import shlex
import shutil
from contextlib import nullcontext
from functools import partial
from struct import pack_into, unpack_from

import pytest
from tests.interop import stores
from tests.recorded_stores import unpack
from tests.unit.spark.store_jobs import Writer, files, filled, queue_files, run_here, without_spark, without_syncing

from sprocketmq.cli import pipeline
from sprocketmq.cli.app import main
from sprocketmq.errors import ConfigError, FatalError, StoreDamaged
from sprocketmq.spark.jobs import rebuild_index
from sprocketmq.spark.jobs.audit import job
from sprocketmq.spark.jobs.tasks import UNSEEN, StoreNotShared, StoreUnreadable, failure_of
from sprocketmq.storage.inspect.findings import ERROR, NOTE, WARNING
from sprocketmq.storage.inspect.items import NotAStoreFile
from sprocketmq.storage.inspect.verification import verify

CLEAN = ["plain", "batchcq", "compressed", "delay-retry", "propcrc"]
# What only a verification looks at: small files, times, names.
NOT_AUDITED = {
    "checkpoint",
    "checkpoint ahead",
    "snapshot",
    "snapshot ahead",
    "offset",
    "offset ahead",
    "topics",
    "store time",
    "unknown topic",
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    without_syncing(monkeypatch)


@pytest.fixture
def audit(monkeypatch):
    """Return the job with its tasks in this process."""
    without_spark(monkeypatch, job)
    return partial(job.audit, None)


def seen(summary, *severities):
    return {(f.severity, f.kind) for f in summary.findings if not severities or f.severity in severities}


def only(summary, kind):
    (found,) = [f for f in summary.findings if f.kind == kind]
    return found


@pytest.mark.parametrize("split_bytes", [0, 9000, 1500])
@pytest.mark.parametrize("name", CLEAN)
def test_stores_of_apaches_broker_are_in_order(name, split_bytes, tmp_path, audit):
    root = unpack(name, tmp_path)
    before = files(root)
    found = audit(root, split_bytes=split_bytes)
    assert (found.ok, seen(found, ERROR, WARNING), found.verdict[:8]) == (True, set(), "in order")
    assert files(root) == before
    known = verify(str(root))
    assert (found.records, found.log_begin, found.log_end, found.index_entries) == (
        known.records,
        known.log_start,
        known.log_end,
        known.index_entries,
    )
    assert all(queue.ok and queue.units == queue.records for queue in found.queues)
    assert found.keys_met >= found.index_entries


@pytest.mark.parametrize("name", ["crash", "crash-lag"])
def test_what_a_killed_broker_leaves_is_noted_and_no_problem(name, tmp_path, audit):
    found = audit(unpack(name, tmp_path), split_bytes=3000)
    assert found.in_use
    assert seen(found, ERROR, WARNING) == set()


def test_a_store_with_everything_in_it_is_in_order_also_while_it_is_open(tmp_path, audit):
    names = stores.Names("audit")
    writer = stores.Writer(tmp_path / "store", 10911, names)
    writer.write()
    found = audit(tmp_path / "store", split_bytes=50_000)
    assert (found.in_use, seen(found, ERROR, WARNING)) == (True, set())
    assert {(ERROR, "queue behind")} != seen(found)
    writer.store.close()
    found = audit(tmp_path / "store", split_bytes=50_000)
    assert (found.in_use, found.findings) == (False, ())
    assert sum(queue.messages for queue in found.queues) > sum(queue.records for queue in found.queues)


def test_a_topic_that_was_deleted_and_made_again_is_no_problem(tmp_path, audit):
    writer = Writer(tmp_path / "store")
    for _ in range(30):
        writer.send("gone")
        writer.send()
    writer.store.delete_topic("gone")
    for _ in range(10):
        writer.send("gone")
    writer.close()
    found = audit(tmp_path / "store", split_bytes=2000)
    assert seen(found, ERROR, WARNING) == set()
    (tmp_path / "store" / "dispatched").unlink()  # which notes deletions: without it the log alone speaks
    found = audit(tmp_path / "store", split_bytes=2000)
    assert seen(found, ERROR, WARNING) == set()
    assert all(queue.ok for queue in found.queues)
    again = only(found, "duplicate")
    assert (again.severity, again.topic, again.queue_id, again.queue_offset, again.count) == (NOTE, "gone", 0, 0, 10)


# --- damage ---


@pytest.fixture
def store(tmp_path):
    """A store of our own: queues orders/0, orders/1 and bills/0, and where its messages are."""
    writer = filled(tmp_path / "store")
    writer.root = tmp_path / "store"
    return writer


def change(path, at, data):
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def segment(store, physical):
    start = physical - physical % (64 << 10)
    return store.root / "commitlog" / f"{start:020d}", physical - start


def unit(store, topic, queue_id, offset):
    start = offset * 20 - offset * 20 % 1000
    return store.root / "consumequeue" / topic / str(queue_id) / f"{start:020d}", offset * 20 - start


def test_a_flipped_bit_in_a_body_is_damage_a_gap_and_a_lost_message(store, audit):
    physical = store.places["orders", 1, 77]
    path, at = segment(store, physical)
    change(path, at + 90, bytes([path.read_bytes()[at + 90] ^ 1]))
    found = audit(store.root, split_bytes=5000)
    damaged = only(found, "damaged log")
    assert (damaged.severity, damaged.path, damaged.position) == (ERROR, str(path), at)
    assert "CRC" in damaged.what
    assert f"inspect {shlex.quote(str(path))} --offset {physical}" in damaged.next_step
    gap = only(found, "gap")
    assert (gap.topic, gap.queue_id, gap.queue_offset, gap.count) == ("orders", 1, 77, 1)
    assert (gap.path, gap.position) == (damaged.path, damaged.position)
    assert "where they were, are damaged" in gap.what
    lost = only(found, "lost message")
    assert (lost.topic, lost.queue_id, lost.queue_offset, lost.path) == ("orders", 1, 77, str(unit(store, "orders", 1, 77)[0]))
    assert not found.ok
    (queue,) = [queue for queue in found.queues if (queue.topic, queue.queue_id) == ("orders", 1)]
    assert (queue.gaps, queue.missing, queue.orphans) == (1, 0, 0)
    assert "lost key" in {f.kind for f in found.findings}


def test_units_that_are_gone_wrong_or_nobodys(store, audit):
    path, at = unit(store, "orders", 0, 60)
    change(path, at, bytes(40))
    path, at = unit(store, "orders", 1, 3)
    change(path, at + 11, b"\x07")
    path, at = unit(store, "bills", 0, 140)
    change(path, at, (store.root / "consumequeue/bills/0" / f"{0:020d}").read_bytes()[:20])
    found = audit(store.root, split_bytes=5000)
    missing = only(found, "missing unit")
    assert (missing.topic, missing.queue_id, missing.queue_offset, missing.count) == ("orders", 0, 60, 2)
    assert (missing.path, missing.position) == (str(unit(store, "orders", 0, 60)[0]), unit(store, "orders", 0, 60)[1])
    assert missing.next_step == f"sprocketmq pipeline rebuild-index {shlex.quote(str(store.root))} --only consumequeue"
    wrong = only(found, "wrong unit")
    assert (wrong.topic, wrong.queue_id, wrong.queue_offset) == ("orders", 1, 3)
    orphan = only(found, "orphan unit")
    assert (orphan.topic, orphan.queue_id, orphan.queue_offset) == ("bills", 0, 140)
    assert seen(found, WARNING) == set()
    assert [(q.topic, q.queue_id, q.messages, q.units, q.missing, q.wrong, q.orphans) for q in found.queues] == [
        ("bills", 0, 134, 135, 0, 0, 1),
        ("orders", 0, 200, 198, 2, 0, 0),
        ("orders", 1, 200, 200, 0, 1, 0),
    ]


def test_units_of_batches_that_are_gone_or_wrong(tmp_path, audit):
    root = unpack("batchcq", tmp_path)
    first, second = (root / "batchconsumequeue" / "Bcq1" / str(queue_id) / f"{0:020d}" for queue_id in (0, 1))
    change(first, 3 * 46, bytes(46))  # of the batches of 2, 5, 1, 17, 3 and 40 messages the fourth
    change(second, 36, (9).to_bytes(2, "big"))  # a batch of 4
    for split_bytes in (0, 1500):
        found = audit(root, split_bytes=split_bytes)
        missing = only(found, "missing unit")
        assert (missing.topic, missing.queue_id, missing.queue_offset, missing.count) == ("Bcq1", 0, 8, 17)
        assert missing.next_step == f"sprocketmq pipeline rebuild-index {shlex.quote(str(root))} --only batchconsumequeue"
        wrong = only(found, "wrong unit")
        assert (wrong.topic, wrong.queue_id, wrong.queue_offset, wrong.path, wrong.position) == ("Bcq1", 1, 0, str(second), 0)
        assert "count 9; its message has count 4" in wrong.what
        assert {(q.topic, q.queue_id): (q.messages, q.records, q.units) for q in found.queues if q.topic == "Bcq1"} == {
            ("Bcq1", 0): (68, 6, 5),
            ("Bcq1", 1): (4, 1, 1),
        }


def test_a_queue_file_that_is_missing_or_short(store, audit):
    (store.root / "consumequeue/orders/0" / f"{1000:020d}").unlink()
    short = store.root / "consumequeue/orders/1" / f"{2000:020d}"
    short.write_bytes(short.read_bytes()[:500])
    found = audit(store.root)
    kinds = [(f.kind, f.topic, f.queue_id) for f in found.findings if f.severity == ERROR]
    assert ("queue files", "orders", 0) in kinds
    assert ("queue files", "orders", 1) in kinds
    assert ("missing unit", "orders", 0) in kinds


def test_a_header_that_says_another_queue_offset(store, audit):
    physical = store.places["orders", 0, 50]
    path, at = segment(store, physical)
    content = bytearray(path.read_bytes())
    pack_into(">q", content, at + 20, 50 + (1 << 16))
    path.write_bytes(content)
    found = audit(store.root)
    damaged = only(found, "damaged header")
    assert (damaged.topic, damaged.queue_id, damaged.queue_offset, damaged.position) == ("orders", 0, 50, at)


def test_two_records_of_one_queue_offset(store, audit):
    for offset in (50, 51, 52):
        path, at = segment(store, store.places["orders", 0, offset + 3])
        content = bytearray(path.read_bytes())
        pack_into(">q", content, at + 20, offset)
        path.write_bytes(content)
    found = audit(store.root)
    twice = only(found, "duplicate")
    assert (twice.severity, twice.topic, twice.queue_id, twice.queue_offset, twice.count) == (ERROR, "orders", 0, 50, 3)
    assert only(found, "gap").queue_offset == 53


def test_index_entries_that_are_wrong_or_gone(store, audit):
    paths = sorted((store.root / "index").iterdir())
    at = 40 + 4 * 50 + 20 * 18  # a unique key: each message has one, a key and a tag, in this order
    physical = unpack_from(">q", paths[1].read_bytes(), at + 4)[0]
    change(paths[1], at, (12345).to_bytes(4, "big"))
    paths[-1].unlink()
    found = audit(store.root)
    orphan = only(found, "orphan entry")
    assert (orphan.severity, orphan.path, orphan.position) == (ERROR, str(paths[1]), at)
    missing = only(found, "missing key")
    assert (missing.severity, missing.count) == (WARNING, 1)
    assert f"the message at {physical}" in missing.what
    assert only(found, "index behind").severity == WARNING
    assert orphan.next_step == f"sprocketmq pipeline rebuild-index {shlex.quote(str(store.root))} --only index"
    assert not [f for f in audit(store.root, index=False).findings if "index" in f.kind or "key" in f.kind]
    shutil.rmtree(store.root / "index")
    found = audit(store.root)
    assert (found.ok, only(found, "no index").severity) == (True, NOTE)


def test_chains_and_headers_of_index_files(store, audit):
    path = min((store.root / "index").iterdir())
    change(path, 40 + 4 * 7, b"\xff")
    found = audit(store.root)
    assert {f.kind for f in found.findings} <= {"index slot", "orphan slot", "index header"}
    assert not found.ok


@pytest.mark.parametrize("name", ["plain", "batchcq"])
@pytest.mark.parametrize("seed", range(2))
def test_an_audit_finds_whatever_a_verification_finds(name, seed, tmp_path, audit):
    root = unpack(name, tmp_path)
    rng = random.Random(f"{name} {seed}")
    paths = [
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] in ("consumequeue", "batchconsumequeue", "index", "commitlog")
    ]
    for _ in range(8):
        path = rng.choice(paths)
        content = path.read_bytes()
        used = len(content.rstrip(b"\0"))
        if not used:
            continue
        at = rng.randrange(used)
        change(path, at, bytes([content[at] ^ 1 << rng.randrange(8)]))
        known = verify(str(root))
        found = audit(root, split_bytes=rng.choice([0, 2000]))
        told = {(f.kind, f.path, f.offset, f.what) for f in known.findings if f.severity == ERROR and f.kind not in NOT_AUDITED}
        assert bool(told) == bool(found.errors), (path, at, told, found.findings)
        path.write_bytes(content)


def test_after_rebuild_index_everything_is_in_order(store, audit, monkeypatch):
    without_spark(monkeypatch, rebuild_index)
    for path in queue_files(store.root):
        (store.root / path).write_bytes(b"\x01" * 1000)
    assert not audit(store.root).ok
    rebuild_index.rebuild_index(None, store.root, config=store.config)
    assert audit(store.root).findings == ()


def test_many_findings_of_a_kind_are_counted_and_some_are_told(store, audit):
    for directory in ("orders/0", "orders/1", "bills/0"):
        for path in (store.root / "consumequeue" / directory).iterdir():
            content = bytearray(path.read_bytes())
            for at in range(0, len(content), 40):
                content[at + 10] ^= 1
            path.write_bytes(content)
    found = audit(store.root)
    assert sum(queue.wrong for queue in found.queues) > 200
    assert len([f for f in found.findings if f.kind == "wrong unit"]) == 20
    assert found.errors >= 60


# --- bad input ---


def test_what_cannot_be_audited(tmp_path, audit, monkeypatch):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(NotAStoreFile, match="no store in this directory"):
            audit(path)
    root = unpack("plain", tmp_path)
    with pytest.raises(ConfigError, match="split_bytes"):
        audit(root, split_bytes=-5)
    middle = sorted((root / "commitlog").iterdir())[1]
    content = middle.read_bytes()
    middle.unlink()
    with pytest.raises(StoreDamaged, match="the segment is missing"):
        audit(root)
    middle.write_bytes(content)

    def elsewhere(spark, title, work, items, *, on_progress=None):
        return [failure_of(FileNotFoundError(errno.ENOENT, "No such file or directory", items[0][0].path), UNSEEN)]

    def removed(spark, title, work, items, *, on_progress=None):
        return run_here(spark, title, work, [(items[0][0]._replace(path=items[0][0].path + "9"), items[0][1])])

    def broken(spark, title, work, items, *, on_progress=None):
        return [failure_of(OSError(errno.EIO, "Input/output error", f"{root}/consumequeue/PlainA/0/{0:020d}"))]

    def another(spark, title, work, items, *, on_progress=None):
        return run_here(spark, title, work, [(split, b"x" * len(head)) for split, head in items])

    for run, error, said in (
        (elsewhere, StoreNotShared, "does not see .*No such file or directory.*on a file system that all workers have"),
        (another, StoreNotShared, "another file is there"),
        (removed, FatalError, "was removed meanwhile"),
        (broken, StoreUnreadable, "cannot be read on .*Input/output error"),
    ):
        without_spark(monkeypatch, job, run=run)
        with pytest.raises(error, match=said):
            job.audit(None, root)


# --- the report ---


def test_the_page_has_every_finding_and_needs_nothing_else(store, audit, tmp_path):
    path, at = unit(store, "orders", 0, 60)
    change(path, at, bytes(20))
    path, at = segment(store, store.places["bills", 0, 9])
    change(path, at + 92, b"\xff\xfe")
    found = audit(store.root)
    found.save_html(tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text()
    for finding in found.findings:
        assert finding.kind in page
    assert "NOT in order" in page
    assert "orders/0" in page
    assert page.count("<tr>") >= len(found.findings) + len(found.queues)
    assert not [word for word in ("http:", "https:", "<script", "<link", "src=", "@import", "url(") if word in page]
    shutil.rmtree(store.root)
    evil = filled(tmp_path / "<b>&evil")
    page = audit(evil.config.root).html()
    assert "<b>&evil" not in page
    assert "&lt;b&gt;&amp;evil" in page
    assert "everything is in order" in page


@pytest.fixture
def command(monkeypatch, capfd):
    """Return ``command(*arguments)``: run `sprocketmq pipeline audit` with its tasks in this process."""
    without_spark(monkeypatch, job)
    monkeypatch.setattr(pipeline, "_session", lambda title, options: nullcontext())

    def run(*arguments):
        code = main(["pipeline", "audit", *map(str, arguments)])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


def test_the_command_prints_findings_and_its_exit_code_tells(store, tmp_path, command):
    code, out, _ = command(store.root)
    assert (code, out.splitlines()[-1]) == (0, "verdict\tin order")
    path, at = unit(store, "orders", 0, 60)
    change(path, at, bytes(20))
    code, out, _ = command(store.root, "--html", tmp_path / "page.html")
    assert code == 1
    assert f"error\tmissing unit\torders/0\t60\t1\t{path}, byte {at}\t" in out
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    code, out, _ = command(store.root, "--json", "--no-index")
    told = json.loads(out)
    assert (code, told["ok"], told["errors"], told["findings"][0]["queue_offset"]) == (1, False, 1, 60)
    for arguments, said in [
        ([tmp_path / "missing"], "no store in this directory"),
        ([store.root, "--html", tmp_path / "no" / "page.html"], "no such directory to write the file in"),
    ]:
        code, _, err = command(*arguments)
        assert (code, said in err) == (2, True), err


def test_progress_comes_to_its_end(store, audit):
    told = []
    audit(store.root, progress=told.append)
    assert {progress.detail for progress in told} == {"comparing the log", "looking at files"}
    assert told[-1].done == told[-1].total
