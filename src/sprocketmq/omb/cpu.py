"""CPU time of other processes."""

import os
from collections.abc import Iterable
from pathlib import Path


def cpu_s(pids: Iterable[int]) -> float | None:
    """Return the CPU seconds, user and kernel, of the processes so far; None when there are none or one is unknown."""
    used = [_cpu_s(pid) for pid in pids]
    known = [one for one in used if one is not None]
    return sum(known) if known and len(known) == len(used) else None


def _cpu_s(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
