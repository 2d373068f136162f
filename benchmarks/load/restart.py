"""Start on a store of 4 GiB: left in order, after a kill, and with nothing but its log; and rebuild what is derived from the log.

Each start is a process of its own, timed from the process's start to the moment the store is open. Memory is what the process and those it
started hold beyond mapped files (RssAnon), sampled every few milliseconds. Exits 1 when the clean start takes a second or more, another
more than a second and one for each GiB it reads, or when memory passes 300 MB.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.load.stores import drop_derived, fill
from benchmarks.report import write_result

GIB = 1 << 30
MAX_ANONYMOUS_MB = 300.0
CLEAN_S = 1.0

OPEN = """
import json, sys
from pathlib import Path
from sprocketmq.storage.store import MessageStore, StoreConfig
store = MessageStore(StoreConfig(Path(sys.argv[1])))
report = store.open()
print(json.dumps({"read_bytes": report.log_end - report.scanned_from, "records": report.records, "clean": report.clean,
                  "rebuilt": report.rebuilt, "workers": report.workers, "lost_workers": report.lost_workers}), flush=True)
store.close()
"""
REBUILD = """
import json, sys
from pathlib import Path
from sprocketmq.storage.bulk.rebuild import rebuild
report = rebuild(Path(sys.argv[1]))
print(json.dumps({"read_bytes": report.log_end - report.log_begin, "records": report.records, "workers": report.workers,
                  "lost_workers": report.lost_workers}), flush=True)
"""


def anonymous_kb(pid: int) -> int:
    """Return the anonymous memory of a process and of all it started, 0 when it is gone."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1])
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
            total += anonymous_kb(int(child))
    return total


def run(program: str, root: Path) -> dict[str, Any]:
    """Run a program on the store; return what it printed, when it printed it, and the most memory it held."""
    begin = time.perf_counter()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen([sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        text = b""
        seconds = 0.0
        peak_kb = 0
        while process.poll() is None:
            peak_kb = max(peak_kb, anonymous_kb(process.pid))
            text += process.stdout.read() or b""
            if text and not seconds:
                seconds = time.perf_counter() - begin
            time.sleep(0.004)
        text += process.stdout.read() or b""
        seconds = seconds or time.perf_counter() - begin
    if process.returncode:
        raise RuntimeError(f"the program ended with {process.returncode}")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {
        **json.loads(text),
        "seconds": round(seconds, 3),
        "cpu_s": round(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, 3),  # of all its processes, closing included
        "peak_anonymous_mb": round(peak_kb / 1000, 1),
    }
    figures["read_gib"] = round(figures.pop("read_bytes") / GIB, 3)
    return figures


def measure(root: Path, gib: float) -> dict[str, dict[str, Any]]:
    print(f"{fill(root, int(gib * GIB), 'restart', killed=True):,} messages written", flush=True)
    figures = {"after_a_kill": run(OPEN, root), "in_order": run(OPEN, root)}
    drop_derived(root)
    (root / "abort").write_text("1")
    figures["log_alone"] = run(OPEN, root)
    figures["rebuild"] = run(REBUILD, root)
    figures["in_order_after_rebuild"] = run(OPEN, root)
    return figures


def main() -> int:
    """Measure, write the result file, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=4.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sprocketmq-restart-") as directory:
        figures = measure(Path(directory) / "store", options.gib)
    missed = []
    for name, found in figures.items():
        limit = CLEAN_S + found["read_gib"]
        found["limit_s"] = round(limit, 2) if name != "rebuild" else None
        late = name != "rebuild" and found["seconds"] >= limit
        large = found["peak_anonymous_mb"] >= MAX_ANONYMOUS_MB
        missed += [name] if late or large else []
        goal = (
            f"  (goal below {limit:.2f} s and {MAX_ANONYMOUS_MB:.0f} MB)"
            if name != "rebuild"
            else f"  (goal below {MAX_ANONYMOUS_MB:.0f} MB)"
        )
        print(
            f"{name:24} {found['seconds']:7.2f} s   {found['cpu_s']:6.2f} s CPU   read {found['read_gib']:.2f} GiB   {found['peak_anonymous_mb']:6.1f} MB"
            f"{goal}{', MISSED' if late or large else ''}"
        )
    write_result("load-restart", {"gib": options.gib, "missed": missed, "max_anonymous_mb": MAX_ANONYMOUS_MB, **figures})
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
