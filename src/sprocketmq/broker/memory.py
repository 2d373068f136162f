"""How much memory messages can be in: the machine's, or what a container leaves this process of it."""

import contextlib
import os
from pathlib import Path, PurePosixPath

_UNKNOWN = 1 << 62


def memory_bytes(system: Path = Path("/")) -> int:
    """Return the machine's memory, or the lowest limit of the control groups of this process when that is less; huge when unknown.

    The page cache counts in such a limit, as does the process. ``system`` is where the files of the kernel are found.
    """
    return min(_machine(), *_group_limits(system))


def _machine() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return _UNKNOWN


def _group_limits(system: Path) -> list[int]:
    """Return the memory limits of the groups from this process's own up to the root, of either version of control groups."""
    limits = [_UNKNOWN]
    with contextlib.suppress(OSError, ValueError):
        for line in (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            number, controllers, group = line.split(":", 2)
            if number == "0":
                files, name = system / "sys/fs/cgroup", "memory.max"
            elif "memory" in controllers.split(","):
                files, name = system / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            else:
                continue
            own = PurePosixPath(group.strip("/"))
            for each in (own, *own.parents):
                with contextlib.suppress(OSError, ValueError):  # not mounted here, or "max"
                    limits.append(int((files / each / name).read_text(encoding="ascii")))
    return limits
