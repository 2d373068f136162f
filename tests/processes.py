"""The processes below one, as a Spark driver's JVM and the Python workers of its tasks: how to find and end them, and what they took."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)


def descendants(pid: int) -> list[psutil.Process]:
    """Return the processes below ``pid``, none when it is gone."""
    with contextlib.suppress(*GONE):
        return psutil.Process(pid).children(recursive=True)
    return []


def jvms(pid: int) -> list[psutil.Process]:
    """Return the JVMs below ``pid``."""
    return [process for process in descendants(pid) if _name(process) == "java"]


def task_workers(pid: int) -> list[psutil.Process]:
    """Return the Python processes below ``pid`` that run tasks: the forks of the daemons that Spark starts for them."""
    return [process for process in descendants(pid) if _is_task_worker(process)]


def kill(processes: Iterable[psutil.Process]) -> int:
    """Kill these and return how many were there to be killed: Spark ends idle workers by itself, and a parent's end ends others."""
    killed = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
            killed += 1
    return killed


def ended(process: psutil.Process) -> bool:
    """Return whether a process has ended; its entry may wait to be read by a parent."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def peak_rss_bytes(pid: int) -> int:
    """Return the most memory that ``pid`` has ever had resident; 0 when it is gone. Linux only."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    return 0


def _is_task_worker(process: psutil.Process) -> bool:
    return _runs_tasks(process) and any(_runs_tasks(parent) for parent in _parent(process))


def _runs_tasks(process: psutil.Process) -> bool:
    # The daemon and its forks have the same command line; the daemons that plan reads run another module.
    with contextlib.suppress(*GONE):
        return process.cmdline()[-1:] == ["pyspark.worker"]
    return False


def _parent(process: psutil.Process) -> Iterator[psutil.Process]:
    with contextlib.suppress(*GONE):
        if parent := process.parent():
            yield parent


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(*GONE):
        return process.name()
    return ""
