"""The simulated file system: like the real one as long as the power is on, and as forgetful as promised when it goes."""

import errno
import random
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sprocketmq.clock import ManualClock
from sprocketmq.storage.fs import RealFileSystem
from sprocketmq.storage.store import MessageStore, StoreConfig
from sprocketmq.testing.rig.simulated_disk import MODES, SECTOR_BYTES, SimFileSystem, SimulatedCrash

NAMES = ["/d/a", "/d/b", "/d/e/c", "/x"]
names = st.sampled_from(NAMES)
places = st.integers(0, 3) | st.integers(4090, 4100) | st.integers(0, 20_000)
pieces = st.binary(max_size=40) | st.integers(0, 9000).map(lambda n: b"z" * n)
steps = st.one_of(
    st.tuples(st.just("open"), names),
    st.tuples(st.just("pwrite"), names, pieces, places),
    st.tuples(st.just("pwritev"), names, st.lists(pieces, max_size=3), places),
    st.tuples(st.just("pread"), names, places, places),
    st.tuples(st.just("truncate"), names, places),
    st.tuples(st.just("size"), names),
    st.tuples(st.just("map"), names, st.integers(1, 9000)),
    st.tuples(st.just("fdatasync"), names),
    st.tuples(st.just("fallocate"), names, places, st.integers(1, 100)),
    st.tuples(st.just("read"), names),
    st.tuples(st.just("exists"), st.sampled_from([*NAMES, "/d", "/d/a/b"])),
    st.tuples(st.just("list"), st.sampled_from(["/", "/d", "/d/e", "/nowhere"])),
    st.tuples(st.just("make_dirs"), st.sampled_from(["/d", "/d/e", "/d/a/f"])),
    st.tuples(st.just("rename"), names, names),
    st.tuples(st.just("unlink"), names),
    st.tuples(st.just("remove_tree"), st.sampled_from(["/d", "/d/e", "/nowhere"])),
    st.tuples(st.just("fsync_dir"), st.sampled_from(["/d", "/nowhere"])),
)


class Hands:
    """Does the same on any file system and says what came of it."""

    def __init__(self, fs: Any, root: str) -> None:
        self.fs = fs
        self.root = root
        self.files: dict[str, Any] = {}
        self.views: list[Any] = []

    def do(self, step: tuple[Any, ...]) -> Any:
        call, path, *rest = step
        try:
            if call == "open":
                if path in self.files:
                    self.files.pop(path).close()
                self.files[path] = self.fs.open(self.root + path, create=True)
                return None
            if call == "map":
                if path in self.files and rest[0] <= self.files[path].size():
                    self.views.append(self.files[path].map(rest[0]))
                return None
            if call in {"pwrite", "pwritev", "pread", "truncate", "size", "fdatasync", "fallocate"}:
                if path not in self.files or (call == "fallocate" and sum(rest) > self.files[path].size()):
                    return None  # the engine only reserves inside the length
                if call == "truncate" and any(len(view) > rest[0] for view in self.views):
                    return None  # the real one would kill us for looking behind the end
                return getattr(self.files[path], call)(*rest)
            if call == "rename":
                if self.is_directory(path):
                    return None  # the engine renames files only
                return self.fs.rename(self.root + path, self.root + rest[0])
            result = getattr(self.fs, call)(self.root + path)
        except OSError as e:
            return type(e)
        return result

    def is_directory(self, path: str) -> bool:
        parent, _, name = (self.root + path).rpartition("/")
        return any(entry.is_dir for entry in self.fs.list(parent or "/") if entry.name == name)

    def close(self) -> list[bytes]:
        for file in self.files.values():
            file.close()
        return [bytes(view) for view in self.views]


@settings(max_examples=150)
@given(st.lists(steps, max_size=25))
@example([("open", "/d/b"), ("make_dirs", "/d/a/f"), ("rename", "/d/b", "/d/a")])
def test_it_does_what_the_real_one_does(program: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        sim_fs = SimFileSystem()
        sim_fs.make_dirs("/d")
        Path(directory, "d").mkdir()
        real, sim = Hands(RealFileSystem(), directory), Hands(sim_fs, "")
        assert [real.do(step) for step in program] == [sim.do(step) for step in program]
        assert real.close() == sim.close()


def written(fs: SimFileSystem, path: str = "/d/f") -> bytes:
    return fs.read(path)


def a_file(*, synced: bytes = b"") -> tuple[SimFileSystem, Any]:
    fs = SimFileSystem()
    fs.make_dirs("/d")
    file = fs.open("/d/f", create=True)
    file.pwrite(synced, 0)
    file.fdatasync()
    fs.fsync_dir("/d")
    fs.fsync_dir("/")
    return fs, file


@pytest.mark.parametrize("mode", MODES)
def test_what_was_synced_survives_every_crash(mode: Any) -> None:
    fs, _ = a_file(synced=b"safe")
    assert written(fs.crash(random.Random(1), mode)) == b"safe"


def test_what_was_not_synced_is_dropped_kept_or_cut() -> None:
    fs, file = a_file(synced=b"safe")
    file.pwrite(b"x" * 2000, 4)
    assert written(fs.crash(random.Random(1), "drop")) == b"safe"
    assert written(fs.crash(random.Random(1), "keep")) == b"safe" + b"x" * 2000
    lengths = set()
    fs.on_call = lambda call, path: lengths.update(len(written(fs.crash(random.Random(seed), "cut"))) for seed in range(40))
    file.pwrite(b"y" * 1000, 2004)
    assert lengths == {2004, 2048, 2560, 3004}


def test_torn_writes_tear_at_sectors_and_reordered_ones_are_whole() -> None:
    fs, file = a_file(synced=bytes(4 * SECTOR_BYTES))
    for i in range(4):
        file.pwrite(bytes([i + 1]) * SECTOR_BYTES, i * SECTOR_BYTES)
    file.pwrite(b"\x09" * 2 * SECTOR_BYTES, SECTOR_BYTES)
    torn = {written(fs.crash(random.Random(seed), "torn")) for seed in range(300)}
    whole = {written(fs.crash(random.Random(seed), "reorder")) for seed in range(300)}
    for content in torn | whole:
        sectors = [content[at : at + SECTOR_BYTES] for at in range(0, len(content), SECTOR_BYTES)]
        assert all(len(set(sector)) == 1 for sector in sectors)
    both = [(content[SECTOR_BYTES] == 9, content[2 * SECTOR_BYTES] == 9) for content in whole]
    assert all(a == b for a, b in both)
    assert any(content[SECTOR_BYTES] != 9 and content[2 * SECTOR_BYTES] == 9 for content in torn)
    assert any(content[0] == 0 and content[3 * SECTOR_BYTES] == 4 for content in whole), "a later write may be there without an earlier"


def test_a_name_needs_its_directory_synced() -> None:
    fs, _ = a_file()
    fs.open("/d/new", create=True).fdatasync()
    assert not fs.crash(random.Random(1), "drop").exists("/d/new")
    fs.fsync_dir("/d")
    assert fs.crash(random.Random(1), "drop").exists("/d/new")
    fs.rename("/d/new", "/d/f")
    assert written(fs.crash(random.Random(1), "drop")) == b""
    seen = {tuple(fs.crash(random.Random(seed), "reorder").paths()) for seed in range(40)}
    assert seen == {("/d/f", "/d/new"), ("/d/f",)}


def test_the_same_seed_gives_the_same_disk() -> None:
    fs, file = a_file()
    for i in range(30):
        file.pwrite(b"%d" % i * 600, i * 700)
        fs.open(f"/d/{i}", create=True)
    for mode in MODES:
        one, other = (fs.crash(random.Random(5), mode) for _ in range(2))
        assert {path: one.read(path) for path in one.paths()} == {path: other.read(path) for path in other.paths()}


def test_pages_of_a_failed_sync_never_reach_the_disk_though_the_next_sync_succeeds() -> None:
    fs, file = a_file(synced=b"safe")
    file.pwrite(b"lost", 4)
    fs.fail("fdatasync", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        file.fdatasync()
    file.pwrite(b"late", 8)
    file.fdatasync()
    assert written(fs) == b"safelostlate"
    assert written(fs.crash(random.Random(1), "drop")) == b"safe\0\0\0\0late"


def test_a_full_disk_takes_what_fits_and_has_room_again_after_a_removal() -> None:
    fs = SimFileSystem(capacity=3 * 4096)
    first, second = fs.open("/1", create=True), fs.open("/2", create=True)
    first.pwrite(b"a" * 4096, 0)
    first.truncate(1 << 30)  # a hole takes nothing
    with pytest.raises(OSError, match="No space"):
        second.pwrite(b"b" * 20_000, 0)
    assert second.size() == 2 * 4096
    assert fs.usage("/") == (3 * 4096, 0)
    with pytest.raises(OSError, match="No space"):
        first.fallocate(4096, 4096)
    fs.unlink("/2")
    assert fs.usage("/")[1] == 2 * 4096
    first.fallocate(4096, 4096)
    with pytest.raises(OSError, match="No space"):
        fs.open("/3", create=True).pwrite(b"c" * 8192, 0)
    first.pwrite(b"into what was reserved", 5000)


def test_a_gigabyte_of_holes_costs_nothing_and_a_view_shows_later_writes() -> None:
    fs, file = a_file()
    file.truncate(1 << 30)
    view = file.map(1 << 30)
    file.pwrite(b"far", (1 << 30) - 3)
    assert bytes(view[-3:]) == b"far"
    assert file.data_after(0) == (1 << 30) - 4096
    file.close()
    assert bytes(view[:3]) == b"\0\0\0"
    with closing(fs.crash(random.Random(1), "keep").open("/d/f")) as kept:
        assert kept.size() == 1 << 30


def test_a_slow_disk_moves_the_clock() -> None:
    clock = ManualClock()
    fs = SimFileSystem(clock=clock)
    before = clock.monotonic()
    fs.slow("fdatasync", 0.2, times=2)
    file = fs.open("/f", create=True)
    for _ in range(3):
        file.fdatasync()
    assert clock.monotonic() - before == pytest.approx(0.4)


def test_the_plug_can_be_pulled_at_any_call_and_nothing_works_after_it() -> None:
    fs = SimFileSystem()
    file = fs.open("/f", create=True)
    fs.crash_at(2)
    file.pwrite(b"1", 0)
    with pytest.raises(SimulatedCrash):
        file.pwrite(b"2", 1)
    with pytest.raises(SimulatedCrash):
        fs.exists("/f")
    file.close()
    assert fs.crash(random.Random(1), "keep").read("/f") == b"1"


def test_a_store_runs_on_it_and_can_be_saved_to_real_files(tmp_path: Path) -> None:
    fs = SimFileSystem()
    store = MessageStore(StoreConfig(Path("/store"), commitlog_segment_bytes=65536), fs=fs)
    store.open()
    store.stage_message("orders", 0, b"hello", b"", tags_code=0, born_timestamp_ms=1, born_host=store.store_host)
    store.commit()
    store.close()
    fs.save(tmp_path)
    again = MessageStore(StoreConfig(tmp_path / "store", commitlog_segment_bytes=65536))
    assert again.open().clean
    assert again.max_offset("orders", 0) == 1
    again.close()


def test_a_read_only_file_takes_no_writes() -> None:
    fs, _ = a_file(synced=b"safe")
    file = fs.open("/d/f", read_only=True)
    for change in (lambda: file.pwrite(b"x", 0), lambda: file.pwritev([b"x"], 0), lambda: file.truncate(0)):
        with pytest.raises(OSError):
            change()
    with pytest.raises(FileNotFoundError):
        fs.open("/d/none", create=True, read_only=True)
    assert file.pread(9, 0) == b"safe"
