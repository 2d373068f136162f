"""Files and ports on macOS, in a process that meets what is different there (``tests/macos/sitecustomize.py``)."""

import pytest
from tests.systems import run_on

FIRST = """
import fcntl, os
synced = []
def control(fd, command, *args):
    synced.append(command == fcntl.F_FULLFSYNC)
    if REFUSED:
        raise OSError(REFUSED, os.strerror(REFUSED))
    return 0
def fsync(fd):
    synced.append("fsync")
fcntl.fcntl, os.fsync = control, fsync
from sprocketmq.storage.fs import REAL_FS
file = REAL_FS.open("file", create=True)
"""


@pytest.fixture
def on_macos(tmp_path):
    """Return a function that runs a program in an empty directory, as on macOS, and returns what it prints."""

    def run(program, **names):
        done = run_on("macos", "\n".join([*(f"{name} = {value!r}" for name, value in names.items()), program]), tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_files_and_directories_leave_the_cache_of_the_drive(on_macos):
    program = FIRST + "file.fdatasync(); REAL_FS.fsync_dir('.'); print(synced)"
    assert on_macos(program, REFUSED=0) == "[True, True]"


@pytest.mark.parametrize("error", [25, 45, 95, 22], ids=["ENOTTY", "ENOTSUP of macOS", "ENOTSUP", "EINVAL"])
def test_a_file_system_without_that_is_synced_as_far_as_it_can(on_macos, error):
    program = FIRST + "file.fdatasync(); REAL_FS.fsync_dir('.'); print(synced)"
    assert on_macos(program, REFUSED=error) == "[True, 'fsync', True, 'fsync']"


@pytest.mark.parametrize("error", [5, 6, 28], ids=["EIO", "ENXIO", "ENOSPC"])
def test_a_failing_disk_is_not_taken_for_such_a_file_system(on_macos, error):
    program = FIRST + "try: file.fdatasync()\nexcept OSError as e: print(e.errno, synced)"
    assert on_macos(program, REFUSED=error) == f"{error} [True]"


def test_data_is_found_that_the_file_system_takes_for_a_hole(on_macos):
    program = """
import os
from sprocketmq.storage.fs import REAL_FS
file = REAL_FS.open("file", create=True)
file.pwrite(b"x" * 100, 8192)
print([file.data_after(offset) for offset in (0, 8200, 8292)])
try:
    print(os.lseek(os.open("file", os.O_RDONLY), 0, os.SEEK_DATA))
except OSError as e:
    print(e.strerror)
"""
    assert on_macos(program) == "[0, 8200, None]\nNo such device or address"


def test_a_killed_store_recovers_all_messages(on_macos):
    program = """
from pathlib import Path
from sprocketmq.embedded import LocalCluster
from sprocketmq.sync import Producer, PullConsumer
from sprocketmq import Message
with LocalCluster(store=Path("store")) as cluster, Producer("g", namesrv=cluster.namesrv) as producer:
    first = [producer.send(Message("orders", b"before")).queue_offset for _ in range(8)]
    cluster.kill_broker()
    cluster.start_broker()
    more = [producer.send(Message("orders", b"after")).queue_offset for _ in range(8)]
    with PullConsumer("readers", namesrv=cluster.namesrv) as consumer:
        print(sum(len(consumer.pull(queue, 0, max_messages=32).messages) for queue in consumer.queues("orders")))
"""
    assert on_macos(program) == "16"


def test_the_port_of_a_stopped_broker_is_free_for_the_next_one(on_macos):
    """A socket that only reserves a port keeps others from binding it there, whatever their options."""
    program = """
import socket
from sprocketmq.embedded import LocalCluster
with LocalCluster() as cluster:
    cluster.stop_broker()
    host, _, port = cluster.address("broker-a").partition(":")
    with socket.socket() as other:
        other.bind((host, int(port)))
        other.listen()
        print("bound")
    cluster.start_broker()
    print(cluster.address("broker-a") == f"{host}:{port}")
"""
    assert on_macos(program) == "bound\nTrue"
