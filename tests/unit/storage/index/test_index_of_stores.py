"""A store finds its messages by key whatever happens to its index files, which stay identical to those of an index made anew."""

import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.inside import log_of

from sprocketmq.clock import ManualClock
from sprocketmq.protocol.batch import encode_batch, split_batch
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.index import index_follower, numpy_loading
from sprocketmq.storage.index import key_index as index_module
from sprocketmq.storage.index.key_index import KeyIndex
from sprocketmq.storage.log.recovery import LogScan

if TYPE_CHECKING:
    from conftest import Bench

HOST = bytes(8)
GEOMETRY = {"max_hash_slots": 31, "max_index_entries": 40}


@pytest.fixture
def bench(make_bench: Callable[..., "Bench"]) -> "Bench":
    return make_bench(**GEOMETRY)


def send(bench: "Bench", numbers: range, *, batch: bool = False, commit: bool = True) -> None:
    """Messages with keys ``k<n>``, ``u<n>`` and one of three tags; in one batch, or one by one."""
    strings = [encode_properties({"UNIQ_KEY": f"u{n}", "KEYS": f"k{n} all", "TAGS": f"t{n % 3}"}) for n in numbers]
    if batch:
        entries = split_batch(encode_batch([(0, b"%d" % n, p) for n, p in zip(numbers, strings, strict=True)]))
        bench.store.stage_batch("orders", 0, entries, sys_flag=0, born_timestamp_ms=5, born_host=HOST)
    else:
        for n, p in zip(numbers, strings, strict=True):
            bench.store.stage_message("orders", 0, b"%d" % n, p, tags_code=0, born_timestamp_ms=5, born_host=HOST)
    if commit:
        bench.store.commit()
    bench.clock.advance(0.3)


def found(bench: "Bench", key: str, **how: Any) -> list[int]:
    return [int(bytes(m.body)) for record in bench.store.query("orders", key, **how) for m in decode_records(record)]


def check(bench: "Bench", count: int, *, first: int = 0) -> None:
    """Check that exactly these messages are found and the files equal those of an index made from the whole log."""
    for n in range(count):
        expected = [n] if n >= first else []
        assert (found(bench, f"k{n}"), found(bench, f"u{n}")) == (expected, expected)
    assert found(bench, "all", max_count=10_000) == [*range(first, count)]
    assert found(bench, "t1", by_tag=True, max_count=10_000) == [n for n in range(first, count) if n % 3 == 1]
    assert found(bench, f"k{count}") == []


def files(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.iterdir())]


def check_files(bench: "Bench") -> None:
    store = bench.store
    store.flush(thorough=True)
    fresh = bench.root.parent / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    index = KeyIndex(REAL_FS, str(fresh), hash_slots=31, entries_per_file=40, clock=ManualClock())
    index.load(log_min=0, log_end=0, state=None)
    scan = LogScan(log_of(store), 0, check_crc=True, resync=True, stop=store.commitlog_max_offset)
    for records in scan.batches():
        index.add_records(records, scan.end)
    index.sync()
    index.close()
    assert files(bench.root / "index") == files(fresh)


def test_messages_are_found_at_once_and_after_restarts(bench: "Bench") -> None:
    send(bench, range(30))
    send(bench, range(30, 70), batch=True)
    check(bench, 70)
    bench.restart()
    check(bench, 70)
    check_files(bench)
    send(bench, range(70, 80))
    bench.crash()
    check(bench, 80)
    check_files(bench)
    assert bench.report.scanned_from > 0


def test_messages_not_committed_are_not_found(bench: "Bench") -> None:
    send(bench, range(5))
    send(bench, range(5, 9), commit=False)
    assert found(bench, "k6") == []
    bench.store.discard()
    send(bench, range(5, 7))
    check(bench, 7)
    check_files(bench)


def test_messages_that_are_not_flushed_are_found_when_they_are_published(make_bench: Callable[..., "Bench"]) -> None:
    bench = make_bench(**GEOMETRY, flush_disk_type="SYNC_FLUSH")
    send(bench, range(3))
    assert found(bench, "all") == []
    bench.store.publish(bench.store.flush())
    check(bench, 3)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_kill_at_any_time_loses_no_key(bench: "Bench", times: int) -> None:
    count = 0
    for round_ in range(times):
        send(bench, range(count, count + 17), batch=bool(round_ % 2))
        bench.store.flush(thorough=True)
        send(bench, range(count + 17, count + 37))
        bench.store.index.lag()
        found(bench, "k0")  # indexes everything, without a sync
        send(bench, range(count + 37, count + 40))
        count += 40
        bench.crash()
    check(bench, count)
    check_files(bench)


def remove_all(directory: Path) -> None:
    shutil.rmtree(directory)


def remove_first(directory: Path) -> None:
    min(directory.iterdir()).unlink()


def empty_last(directory: Path) -> None:
    max(directory.iterdir()).write_bytes(b"")


def shorten_first(directory: Path) -> None:
    path = min(directory.iterdir())
    path.write_bytes(path.read_bytes()[:-5])


def spoil_headers(directory: Path) -> None:
    for path in directory.iterdir():
        path.write_bytes(b"\xff" * 40 + path.read_bytes()[40:])


def spoil_slots(directory: Path) -> None:
    for path in directory.iterdir():
        data = path.read_bytes()
        path.write_bytes(data[:40] + b"\xff" * 124 + data[164:])


def spoil_entries(directory: Path) -> None:
    for path in directory.iterdir():
        data = path.read_bytes()
        path.write_bytes(data[:164] + b"\xff" * (len(data) - 164))


def add_a_stranger(directory: Path) -> None:
    shutil.copy(min(directory.iterdir()), directory / "29991231235959999")


DAMAGE = [remove_all, remove_first, empty_last, shorten_first, spoil_headers, spoil_slots, spoil_entries, add_a_stranger]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("note", ["kept", "lost"])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damaged_index_files_are_made_anew(bench: "Bench", damage: Callable[[Path], None], note: str, killed: bool) -> None:
    send(bench, range(40))
    bench.store.flush(thorough=True)
    send(bench, range(40, 45))
    bench.kill() if killed else bench.stop()
    damage(bench.root / "index")
    if note == "lost":
        (bench.root / "dispatched").unlink()
    bench.reopen()
    assert found(bench, "all", max_count=100) == [*range(45)]
    if damage is not spoil_slots or note == "lost":
        check(bench, 45)
        check_files(bench)


def test_an_index_switched_on_later_has_everything(make_bench: Callable[..., "Bench"]) -> None:
    bench = make_bench(**GEOMETRY, message_index_enable=False)
    send(bench, range(20))
    assert found(bench, "k1") == []
    bench.config["message_index_enable"] = True
    bench.restart()
    check(bench, 20)
    bench.config["message_index_enable"] = False
    bench.restart()
    send(bench, range(20, 40))
    bench.config["message_index_enable"] = True
    bench.restart()
    check(bench, 40)
    check_files(bench)


def test_keys_after_a_lost_log_end_are_dropped(bench: "Bench") -> None:
    send(bench, range(10))
    bench.store.flush(thorough=True)
    end = bench.store.commitlog_max_offset
    send(bench, range(10, 20))
    bench.store.flush(thorough=True)
    bench.kill()
    log = bench.segment().read_bytes()
    bench.segment().write_bytes(log[:end] + bytes(len(log) - end))
    bench.reopen()
    check(bench, 10)
    send(bench, range(10, 30))
    check(bench, 30)
    check_files(bench)


def test_keys_expire_with_their_log(make_bench: Callable[..., "Bench"]) -> None:
    bench = make_bench(**GEOMETRY, commitlog_segment_bytes=4096)
    for n in range(0, 90, 10):
        send(bench, range(n, n + 10))
    bench.store.flush(thorough=True)
    before = len(files(bench.root / "index"))
    starts = [start for start, _, _ in bench.store.segments()]
    gone = bench.store.delete_before(starts[-2])
    assert [path for path in gone if "/index/" in path]
    assert len(files(bench.root / "index")) == before - len([path for path in gone if "/index/" in path])
    left = [m.queue_offset for m in bench.messages()]
    check(bench, 90, first=left[0])
    bench.restart()
    check(bench, 90, first=left[0])
    bench.crash()
    check(bench, 90, first=left[0])


def test_the_index_catches_up_after_the_disk_was_full_for_it(bench: "Bench") -> None:
    send(bench, range(30))
    bench.store.flush(thorough=True)
    bench.fs.fail("pwrite", 28, path="/index/")
    send(bench, range(30, 60))
    bench.store.flush(thorough=True)
    assert bench.store.index_lag[0] > 0
    assert found(bench, "k20") == [20]
    send(bench, range(60, 70))
    bench.fs.heal()
    bench.store.flush(thorough=True)
    assert bench.store.index_lag == (0, 0)
    send(bench, range(70, 75))
    check(bench, 75)
    check_files(bench)
    bench.restart()
    check(bench, 75)


@pytest.mark.parametrize("thorough", [False, True])
def test_the_index_catches_up_after_commits_that_did_not_wait_for_it(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch, *, thorough: bool
) -> None:
    go_on = threading.Event()
    monkeypatch.delitem(sys.modules, "sprocketmq.storage.index.index_arrays", raising=False)
    monkeypatch.setattr(numpy_loading, "load_arrays", go_on.wait)
    limits = {"MAX_PENDING_SENDS": 8, "MAX_PENDING_SENDS_WHILE_BUSY": 8, "MAX_WAIT_S": 0}
    for name, value in limits.items():
        monkeypatch.setattr(index_module, name, value)
    send(bench, range(30))
    lag = bench.store.index_lag[0]
    send(bench, range(30, 60))
    assert bench.store.index_lag[0] > lag
    assert bench.store.index_failure is None
    go_on.set()
    if thorough:
        bench.store.flush(thorough=True)
    else:
        bench.store.index_pending()
    assert bench.store.index_lag == (0, 0)
    send(bench, range(60, 65))
    check(bench, 65)
    check_files(bench)


def test_what_a_query_needs_is_read_from_the_newest_on_and_limited(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    send(bench, range(20))
    read: list[Any] = []
    monkeypatch.setattr(index_follower, "MAX_LOADED_BYTES", 1000)
    monkeypatch.setattr(bench.fs, "check", lambda call, path, _=None, args=(): read.append((call, path, *args)))
    bench.store.load_for_query("orders", "all", max_count=10)
    of_log = [args for call, path, *args in read if call == "pread" and "commitlog" in path]
    found = [(offset, length) for length, offset in of_log if length > 4]
    newest = [m for record in bench.store.query("orders", "all", max_count=10) for m in decode_records(record)][::-1]
    assert found[:-1] == [(m.commitlog_offset, m.store_size) for m in newest[: len(found) - 1]]
    assert sum(length for _, length in found) == 1000
    bench.store.load_for_query("orders", "none")
    bench.store.load_for_query("others", "all")


def test_small_stores_are_indexed_without_numpy(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sprocketmq.storage.index.index_arrays", raising=False)
    for round_ in range(3):
        send(bench, range(20 * round_, 20 * round_ + 20))
        bench.restart()
    assert "sprocketmq.storage.index.index_arrays" not in sys.modules
    check(bench, 60)
    check_files(bench)


def test_much_traffic_is_indexed_as_it_comes(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    import sprocketmq.storage.index.index_arrays  # noqa: F401

    monkeypatch.setattr(index_module, "MAX_PENDING_BYTES", 3000)
    for n in range(0, 200, 10):
        send(bench, range(n, n + 10), batch=True)
        assert bench.store.index_lag[0] < 5000
    check(bench, 200)
    check_files(bench)
