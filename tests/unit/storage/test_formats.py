"""Files other than the log and the queues: their bytes, and what a damaged one is worth."""

import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import LocalProtocolError
from sprocketmq.storage.checkpoint import Checkpoint
from sprocketmq.storage.config import ConfigFile, dump_pretty
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.log.segments import FilePool, parse_segment_name, segment_name
from sprocketmq.storage.snapshot import QueueState, Snapshot


def test_segments_are_named_by_where_they_start() -> None:
    assert segment_name(1 << 30) == "00000000001073741824"
    assert parse_segment_name("00000000001073741824") == 1 << 30
    for other in ("1073741824", "0000000000107374182x", "00000000001073741824.bak", "٠" * 20):
        assert parse_segment_name(other) is None


def test_a_running_store_has_lock_abort_marker_and_full_length_files(make_bench: Any) -> None:
    bench = make_bench()
    bench.send_batch([b"x" * 50] * 3, tag="a")
    assert (bench.root / "lock").read_bytes() == b"lock"
    assert (bench.root / "abort").read_bytes() == str(os.getpid()).encode()
    assert bench.segment().stat().st_size == 65536
    bench.stop()
    assert not (bench.root / "abort").exists()
    units = bench.queue_file().read_bytes()
    assert len(units) == 1000
    size = 91 + 6 + 50 + len(b"KEYS\x01k\x02TAGS\x01a\x02")
    assert units[:60] == b"".join(struct.pack(">qiq", i * size, size, ord("a")) for i in range(3))
    assert not units[60:].strip(b"\0")


def test_files_take_no_more_disk_than_what_is_in_them(make_bench: Any) -> None:
    bench = make_bench(commitlog_segment_bytes=1 << 30, consumequeue_segment_bytes=6_000_000, preallocate=False)
    bench.send(b"small")
    bench.stop()
    assert bench.segment().stat().st_size == 1 << 30
    assert bench.segment().stat().st_blocks * 512 < 1 << 20


def test_blocks_are_reserved_ahead_when_asked(make_bench: Any) -> None:
    bench = make_bench(commitlog_segment_bytes=1 << 20)
    bench.send(b"small")
    assert bench.segment().stat().st_blocks * 512 >= 1 << 20
    assert bench.segment().stat().st_size == 1 << 20


def test_the_checkpoint_tells_apache_how_far_queues_are_on_the_disk(bench: Any) -> None:
    _, physical = bench.send(b"first")
    bench.clock.advance(1)
    _, physical = bench.send(b"last")
    bench.store.flush(thorough=True)
    raw = (bench.root / "checkpoint").read_bytes()
    assert len(raw) == 4096
    now = bench.clock.time_ms()
    assert struct.unpack_from(">qqqqqq", raw) == (now, now, 0, 0, 0, physical)
    assert not raw[48:].strip(b"\0")


@pytest.mark.parametrize("content", [None, b"", b"\0" * 20, b"\xff" * 4096])
def test_an_unusable_checkpoint_counts_as_zeros(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "checkpoint"
    if content is not None:
        path.write_bytes(content)
    assert Checkpoint.load(REAL_FS, str(path)) == Checkpoint()


names = st.text(alphabet="abcXYZ%|_-09", min_size=1, max_size=255)
offsets = st.integers(0, (1 << 62) - 1)
states = st.builds(QueueState, names, st.integers(0, 1 << 30), offsets, offsets, st.tuples(offsets, st.integers(0, 1 << 30)))
snapshots = st.builds(
    Snapshot,
    offsets,
    st.tuples(offsets, st.integers(0, 1 << 30), st.integers(0, (1 << 31) - 1)),
    st.lists(states, max_size=5).map(tuple),
    st.dictionaries(names, offsets, max_size=3),
)


@given(snapshots)
def test_a_snapshot_decodes_to_what_was_encoded(snapshot: Snapshot) -> None:
    assert Snapshot.decode(snapshot.encode()) == snapshot


@given(snapshots, st.data())
def test_a_damaged_snapshot_is_no_snapshot(snapshot: Snapshot, data: st.DataObject) -> None:
    raw = bytearray(snapshot.encode())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 127))
    assert Snapshot.decode(bytes(raw)) is None
    assert Snapshot.decode(snapshot.encode()[:at]) is None


@given(st.binary(max_size=200))
def test_no_bytes_make_a_snapshot_fail(raw: bytes) -> None:
    assert Snapshot.decode(raw) is None


def test_a_configuration_file_has_the_references_layout(tmp_path: Path) -> None:
    value = {"offsetTable": {"orders@billing": {0: 15, 1: 12}}, "groups": ["a", "b"], "none": {}, "empty": [], "on": True, "name": "x\ty"}
    file = ConfigFile(tmp_path / "config" / "consumerOffset.json")
    file.save(value)
    assert Path(file.path).read_bytes() == (
        b'{\n\t"offsetTable":{\n\t\t"orders@billing":{\n\t\t\t0:15,\n\t\t\t1:12\n\t\t}\n\t},'
        b'\n\t"groups":[\n\t\t"a",\n\t\t"b"\n\t],\n\t"none":{},\n\t"empty":[],\n\t"on":true,\n\t"name":"x\\ty"\n}'
    )
    assert file.load() == value


def test_the_previous_configuration_is_kept_and_used_when_the_new_one_is_damaged(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path / "topics.json")
    assert file.load() is None
    file.save({"version": 1})
    file.save({"version": 2})
    assert file.load() == {"version": 2}
    for damage in (b"", b"\0" * 50, b'{"version":', b"[]", b"\xff\xfe"):
        Path(file.path).write_bytes(damage)
        assert file.load() == {"version": 1}
    Path(file.path).unlink()
    assert file.load() == {"version": 1}
    Path(file.path + ".bak").write_bytes(b"")
    assert file.load() is None


def test_a_failed_save_leaves_the_old_configuration(bench: Any, eio: int) -> None:
    file = ConfigFile(bench.root / "config" / "topics.json", bench.fs)
    file.save({"version": 1})
    for call in ("pwrite", "fdatasync", "rename"):
        bench.fs.fail(call, eio, path="topics.json")
        with pytest.raises(OSError, match=r"topics\.json"):
            file.save({"version": 2})
        bench.fs.heal()
        assert file.load() == {"version": 1}


def test_values_json_has_no_form_for_are_refused() -> None:
    for value in ({"a": object()}, {1.5: 1}, {("a", 1): 1}, {"a": {b"x": 1}}):
        with pytest.raises(LocalProtocolError):
            dump_pretty(value)


def open_below(root: Path | str) -> int:
    """Return how many files in ``root`` this process has open; 0 where the system does not tell."""
    fds = Path("/proc/self/fd")
    if not fds.exists():
        return 0
    return sum(str(root) in os.readlink(fd) for fd in fds.iterdir() if fd.is_symlink())


def test_only_so_many_queue_files_stay_open(tmp_path: Path) -> None:
    pool = FilePool(REAL_FS, limit=3)
    for i in range(10):
        pool.get(f"{tmp_path}/{i}", size=100).pwrite(b"%d" % i, 0)
    assert open_below(tmp_path) <= 3
    assert [pool.get(f"{tmp_path}/{i}").pread(1, 0) for i in range(10)] == [b"%d" % i for i in range(10)]
    assert len(pool._files) == 3
    pool.forget()
    assert not pool._files


def test_a_store_of_many_queues_keeps_few_files_open(make_bench: Any) -> None:
    bench = make_bench(consumequeue_segment_bytes=6_000_000)
    for queue in range(600):
        bench.stage(b"%d" % queue, queue=queue)
    bench.store.commit()
    bench.fs.calls.clear()
    bench.store.flush(thorough=True)
    assert sum(call == "fdatasync" for call, _ in bench.fs.calls) < 10
    bench.crash()
    assert bench.report.records == 0
    assert [bench.bodies(queue=queue) for queue in range(600)] == [[b"%d" % queue] for queue in range(600)]
    assert open_below(bench.root) < 300
