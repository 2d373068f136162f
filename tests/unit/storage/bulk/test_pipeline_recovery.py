"""A store that opens with the concurrent reader must end up with the very files the classic one makes."""

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.recorded_stores import unpack

from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.bulk.pipeline import LogPipeline
from sprocketmq.storage.log import recovery
from sprocketmq.storage.log.recovery import RecoveryReport
from sprocketmq.storage.snapshot import Snapshot
from sprocketmq.storage.store import MessageStore, StoreConfig

NAMES = ["plain", "batchcq", "delay-retry", "compressed", "crash", "crash-lag", "propcrc"]
BORN_HOST = pack_host("192.0.2.7", 40001)
INDEX = {"max_hash_slots": 64, "max_index_entries": 256}
MakeBench = Callable[..., Any]  # of conftest.Bench


@pytest.fixture(autouse=True)
def _small_stores_count_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "CONCURRENT_BYTES", 0)
    assert LogPipeline.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(LogPipeline.__init__.__kwdefaults__, "task_bytes", 4096)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogPipeline, "_start_workers", lambda self: None)


def files(root: Path) -> dict[str, bytes]:
    """Return the content of all files; those of the index, which are named for the time, by number."""
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.name not in {"abort", "lock"}]
    index = [path for path in paths if path.parent.name == "index"]
    found = {str(path.relative_to(root)): path.read_bytes() for path in paths if path not in index}
    found |= {f"index/{i}": path.read_bytes() for i, path in enumerate(index)}
    snapshot = Snapshot.decode(found["dispatched"])
    assert snapshot is not None
    found["dispatched"] = replace(snapshot, index=b"").encode()  # it names the index files
    return found


def recovered(root: Path, *, concurrent: bool, **config: Any) -> tuple[RecoveryReport, dict[str, bytes]]:
    """Open a copy of a store, close it, and return what that found and left."""
    copy = root.with_name(f"{root.name}-{'concurrent' if concurrent else 'classic'}")
    shutil.copytree(root, copy)
    store = MessageStore(StoreConfig(copy, enable_build_consume_queue_concurrently=concurrent, **INDEX, **config))
    report = store.open()
    store.close()
    return report, files(copy)


def same_both_ways(root: Path, **config: Any) -> RecoveryReport:
    classic, expected = recovered(root, concurrent=False, **config)
    concurrent, found = recovered(root, concurrent=True, **config)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    assert any(name.startswith("index") for name in found)
    assert classic.workers == 0
    assert concurrent.workers > 0
    assert concurrent.lost_workers == 0
    for name in ("clean", "rebuilt", "scanned_from", "log_end", "records", "cut_bytes"):
        assert getattr(concurrent, name) == getattr(classic, name), name
    assert [d[1:] for d in concurrent.damaged] == [d[1:] for d in classic.damaged]
    return concurrent


def drop_derived(root: Path) -> None:
    for name in ("consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("dispatched", "checkpoint"):
        (root / name).unlink(missing_ok=True)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("derived", [True, False], ids=["with-derived", "without-derived"])
@pytest.mark.parametrize("name", NAMES)
def test_stores_of_apache(name: str, derived: bool, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    if not derived:
        drop_derived(root)
    report = same_both_ways(root, commitlog_segment_bytes=65536, consumequeue_segment_bytes=1000, batchqueue_segment_bytes=460)
    assert report.rebuilt
    assert report.records > 0


def busy_store(bench: Any, seed: int) -> None:
    """Fill a store with messages, batches and inner batches in several queues; delete a topic and use it again."""
    draw = random.Random(seed)
    bench.store.declare_batch_topic("batchy")
    for i in range(280):
        bench.clock.advance(0.01)
        body = draw.randbytes(draw.choice([0, 20, 300, 300, 6000]))
        topic = draw.choice(["orders", "orders", "events", "%RETRY%" + "g" * 130])
        match draw.randrange(6):
            case 0:
                bench.send_batch([body[:500]] * draw.randrange(1, 30), topic, draw.randrange(3), tag=draw.choice([None, "A", "BB"]))
            case 1:
                count = draw.randrange(1, 9)
                inner = encode_batch([(0, body[:500], b"")] * count)
                fields = {"count": count, "tags_code": 0, "born_timestamp_ms": 5, "born_host": BORN_HOST}
                bench.store.stage_inner_batch("batchy", draw.randrange(2), inner, b"UNIQ_KEY\x01%d\x02" % i, **fields)
                bench.store.commit()
            case 2:
                bench.send(body[:900], "batchy", draw.randrange(2))
            case _:
                bench.send(body, topic, draw.randrange(3), tag=draw.choice([None, "A", "BB"]))
        if i in {150, 250}:
            bench.store.delete_topic("events")
        if i == 200 and draw.random() < 0.5:
            bench.store.flush(thorough=True)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("harm", ["killed", "torn", "damaged", "no-note", "deleted-topic-comes-back"])
def test_killed_and_damaged_stores(make_bench: MakeBench, seed: int, harm: str) -> None:
    bench = make_bench()
    busy_store(bench, seed)
    bench.kill()
    draw = random.Random(seed)
    end = max(int(path.name) for path in (bench.root / "commitlog").iterdir())
    if harm == "torn":
        path = bench.segment(end)
        data = path.read_bytes()
        used = len(data.rstrip(b"\0"))
        cut = max(used - draw.randrange(1, 200), 0)
        path.write_bytes(data[:cut].ljust(len(data), b"\0"))
    elif harm == "damaged":
        for _ in range(3):
            path = bench.segment(draw.randrange(0, end + 1, 64 << 10))
            data = bytearray(path.read_bytes())
            at = draw.randrange(len(data) - 100)
            data[at : at + 50] = draw.randbytes(50)
            path.write_bytes(data)
    elif harm == "no-note":
        drop_derived(bench.root)
    elif harm == "deleted-topic-comes-back":
        (bench.root / "dispatched").unlink(missing_ok=True)
    report = same_both_ways(bench.root, commitlog_segment_bytes=64 << 10, consumequeue_segment_bytes=1000, batchqueue_segment_bytes=460)
    assert not report.clean


def test_worker_processes_recover_a_store(make_bench: MakeBench) -> None:
    bench = make_bench()
    busy_store(bench, 9)
    bench.kill()
    drop_derived(bench.root)
    report = same_both_ways(bench.root, consumequeue_segment_bytes=1000, batchqueue_segment_bytes=460, pipeline_workers=2)
    assert report.workers == 2


def test_a_short_log_is_read_here(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "CONCURRENT_BYTES", 64 << 20)
    bench = make_bench()
    busy_store(bench, 1)
    told: list[tuple[int, int]] = []
    bench.kill()
    store = bench._new()
    report = store.open(lambda done, total: told.append((done, total)))
    store.abandon()
    assert report.workers == 0
    assert report.records > 0
    assert told
    assert told[-1][0] <= told[-1][1]
