"""What benchmarks do to stores: fill them, and what happens to their files between rounds."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_FILL = """
import os, sys
from pathlib import Path
from sprocketmq.protocol.batch import BatchEntry
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.store import MessageStore, StoreConfig
root, total, topic, queues, killed = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5] == "killed"
host = pack_host("127.0.0.1", 10911)
store = MessageStore(StoreConfig(root))
store.open()
bodies = [memoryview(os.urandom(1024)) for _ in range(32)]
number = flushed = 0
while store.commitlog_max_offset < total:
    entries = [BatchEntry(0, b, b"UNIQ_KEY\\x017F00000100%022X\\x02TAGS\\x01tag%d\\x02" % (number + i, i % 3)) for i, b in enumerate(bodies)]
    store.stage_batch(topic, number // 32 % queues, entries, sys_flag=0, born_timestamp_ms=1, born_host=host)
    store.commit()
    number += 32
    if store.commitlog_max_offset - flushed >= 64 << 20:
        flushed = store.flush()
print(number, flush=True)
if killed:
    os._exit(0)
store.close()
"""

# Smaller files take no memory that matters.
LARGE_FILE_BYTES = 1 << 20

# What a broker may still read of a log that nobody consumes: files made ahead, queues and index in the making, a slave that is behind.
NEWEST_FILES = 4

DERIVED = ("consumequeue", "batchconsumequeue", "index", "checkpoint", "dispatched")


def fill(root: Path, size: int, topic: str, *, queues: int = 8, killed: bool = False) -> int:
    """Fill a store with ``size`` bytes of log in another process, as a broker does: in batches of 1 KiB bodies, flushing every 64 MiB.

    With ``killed`` the process ends without closing the store. Returns the number of messages.
    """
    command = [sys.executable, "-c", _FILL, str(root), str(size), topic, str(queues), "killed" if killed else "closed"]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def drop_derived(root: Path) -> None:
    """Remove everything that follows from the commit log."""
    for name in DERIVED:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def give_back(paths: Iterable[Path]) -> None:
    """Have the system write out files and forget their page cache, as far as they are not mapped."""
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # its broker has deleted or renamed it meanwhile
            continue
        try:
            os.fdatasync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def empty_old_files(commit_log: Path) -> None:
    """Give the disk room of a commit log's files back, but for the newest; they keep their sizes, and nobody may read them any more.

    A fast machine writes a gigabyte a second: without this, the disk of most machines is full before the last round, and a broker that
    finds its disk nearly full refuses messages.
    """
    for path in sorted(commit_log.iterdir())[:-NEWEST_FILES]:
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            if found.st_blocks:
                subprocess.run(["fallocate", "--punch-hole", "--offset", "0", "--length", str(found.st_size), path], check=True)


def give_back_logs(root: Path) -> None:
    """Do as ``give_back`` with the large files of commit logs, and of Kafka's logs, below ``root``, while brokers delete and make some."""
    found = []
    for parent, _, names in os.walk(root):
        for path in [Path(parent, name) for name in names if Path(parent).name == "commitlog" or name.endswith(".log")]:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size >= LARGE_FILE_BYTES:
                    found.append(path)
    give_back(found)


def take_in(paths: Iterable[Path], count: int) -> None:
    """Have the system read the first ``count`` bytes of files, in order, into the page cache."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count > 0 and (data := file.read(min(count, 1 << 20))):
                count -= len(data)
        if count <= 0:
            return
