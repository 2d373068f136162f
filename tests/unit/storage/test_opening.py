"""Who may open a directory, and what a broker finds said about it when it may not."""

import errno
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sprocketmq.errors import ConfigError, StoreDamaged, StoreLocked, StoreNotSupported, StoreNotWritable
from sprocketmq.storage.fs import RealFileSystem
from sprocketmq.storage.store import MessageStore, StoreConfig

HOLD = """
import sys
from pathlib import Path
from sprocketmq.storage.store import MessageStore, StoreConfig
store = MessageStore(StoreConfig(Path(sys.argv[1])))
store.open()
print("open", flush=True)
sys.stdin.readline()
store.close()
"""


class FoldingFileSystem(RealFileSystem):
    """Finds a file or directory by its name in any case, as macOS does."""

    def exists(self, path: str) -> bool:
        return super().exists(path) or any(other.name.casefold() == Path(path).name.casefold() for other in Path(path).parent.iterdir())


@pytest.mark.parametrize(("fs", "folds"), [(RealFileSystem(), False), (FoldingFileSystem(), True)])
def test_an_open_store_knows_whether_names_of_topics_may_differ_in_case_only(tmp_path: Path, fs: RealFileSystem, folds: bool) -> None:
    store = MessageStore(StoreConfig(tmp_path), fs=fs)
    store.open()
    assert store.folds_case == folds
    store.close()


def test_two_stores_of_one_process_cannot_share_a_directory(bench: Any) -> None:
    second = MessageStore(StoreConfig(bench.root))
    with pytest.raises(StoreLocked, match=f"{re.escape(str(bench.root))} is in use by another broker \\(process {os.getpid()}\\): stop it"):
        second.open()
    bench.send(b"the first goes on")
    bench.stop()
    second.open()
    second.close()


def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        store = MessageStore(StoreConfig(tmp_path))
        with pytest.raises(StoreLocked) as caught:
            store.open()
        assert caught.value.pid == holder.pid
        holder.communicate("\n", timeout=120)
        assert holder.returncode == 0
    store.open()
    store.close()


def test_a_failed_open_leaves_the_directory_to_others(bench: Any) -> None:
    bench.stop()
    bench.fs.fail("open", errno.EACCES, path="abort")
    with pytest.raises(StoreNotWritable, match="Permission denied"):
        bench.reopen()
    bench.fs.heal()
    bench.reopen()


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS])
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, make_bench: Any, error: int) -> None:
    bench = make_bench()
    bench.stop()
    bench.fs.fail("open", error, path="lock")
    with pytest.raises(
        StoreNotWritable, match=f"{re.escape(str(bench.root))} is not writable: {os.strerror(error)}; choose another directory"
    ):
        bench.reopen()


def test_a_file_where_the_directory_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for root in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(StoreNotWritable):
            MessageStore(StoreConfig(root)).open()


def test_a_log_that_is_no_log_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    file = tmp_path / "commitlog" / ("0" * 20)
    file.write_bytes(b"something else entirely" * 1000)
    with pytest.raises(StoreDamaged, match="is this a RocketMQ commit log"):
        MessageStore(StoreConfig(tmp_path)).open()
    with file.open("rb") as kept:  # which is as long as a segment now
        assert kept.read(23_000) == b"something else entirely" * 1000


def test_a_missing_segment_in_the_middle_is_named(bench: Any) -> None:
    for _ in range(8):
        bench.send_batch([b"x" * 1000] * 30)
    bench.stop()
    bench.segment(65536).unlink()
    with pytest.raises(StoreDamaged, match=r"00000000000000065536 .*missing"):
        bench.reopen()


@pytest.mark.parametrize("field", ["consumequeue_segment_bytes", "commitlog_segment_bytes", "max_message_bytes", "max_filter_units"])
def test_sizes_that_cannot_work_are_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        StoreConfig(tmp_path, **{field: -1})
    with pytest.raises(ConfigError):
        StoreConfig(tmp_path, consumequeue_segment_bytes=30)


def test_closing_twice_and_closing_what_was_never_open_is_fine(tmp_path: Path) -> None:
    store = MessageStore(StoreConfig(tmp_path))
    store.close()
    store.open()
    store.close()
    store.close()


def test_a_small_store_opens_in_a_few_milliseconds(bench: Any) -> None:
    bench.send_batch([b"x" * 100] * 100)
    spent_s = []
    for _ in range(5):
        began_s = time.thread_time()  # of the processor, which what else a machine does hardly changes
        bench.restart()
        spent_s.append(time.thread_time() - began_s)
    assert min(spent_s) < 0.05


def test_a_file_system_that_cannot_map_files_is_refused_before_it_takes_messages(make_bench: Any) -> None:
    """Some of FUSE's cannot: what was written there could not be read."""
    bench = make_bench()
    bench.stop()
    bench.fs.fail("map", errno.ENODEV)
    store = MessageStore(StoreConfig(bench.root), fs=bench.fs)
    with pytest.raises(
        StoreNotSupported, match="its file system cannot map files into memory, which is how messages are read; choose a directory"
    ):
        store.open()
    bench.fs.heal()
    store.open()
    store.close()
