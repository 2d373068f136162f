"""Processor time of the processes that a benchmark started: of given ones, or of all descendants by what they are."""

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")

# A process is a Spark JVM, one of Spark's Python workers, or a server.
Kinds = Mapping[str, float]


def cpu_s(*pids: int) -> float:
    """Return the seconds of processor time, user and kernel, that processes have used, to the nanosecond. Raises OSError for one that is gone."""
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)  # the clock that clock_getcpuclockid(3) names


def processor_s() -> Mapping[str, float]:
    """Return the seconds of processor time, user and kernel, of all descendants by kind: jvm, worker or server.

    What processes that ended had used is missing: take differences around work in which none ends.
    """
    children: dict[int, list[int]] = {}
    seconds: dict[int, tuple[str, float]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().split(b"\0")
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            seconds[int(entry.name)] = _kind(command), (int(fields[11]) + int(fields[12])) / _TICKS
    total: defaultdict[str, float] = defaultdict(float)
    unseen = children.get(os.getpid(), [])
    while unseen:
        process = unseen.pop()
        unseen += children.get(process, [])
        kind, spent = seconds[process]
        total[kind] += spent
    return total


def _kind(command: list[bytes]) -> str:
    if command[0].endswith(b"/java"):
        return "jvm"
    return "worker" if any(b"pyspark" in word or b"sessions.daemon" in word for word in command) else "server"


def us_a_row(before: Kinds, after: Kinds, rows: int) -> dict[str, float]:
    """Return the microseconds of processor time a row between two calls of ``processor_s``, by kind and in all."""
    found = {kind: round((after[kind] - before.get(kind, 0.0)) / rows * 1e6, 3) for kind in after}
    return {**found, "all": round(sum(found.values()), 3)}
