"""Measure what a user waits for before the first message: importing the package, `serve` until it takes traffic, the pytest fixture.

Each figure is the median of 7; every import and every server is a process of its own. Exits 1 when one misses its goal.
"""

import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from benchmarks.load.sides import serve
from benchmarks.report import spread, write_result

REPEATS = 7
GOALS = {"import_ms": 150.0, "serve_ready_ms": 600.0, "serve_idle_rss_mb": 90.0, "fixture_ms": 200.0}
# What every client program imports; the names of the package load when they are first used.
IMPORT = "import time; begin = time.perf_counter(); import sprocketmq; {names}; print((time.perf_counter() - begin) * 1000)"
CLIENT = "sprocketmq.Producer, sprocketmq.PushConsumer, sprocketmq.AdminClient, sprocketmq.Message"

FIXTURE_TESTS = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_uses_it(rocketmq, number):
    assert rocketmq.namesrv
"""


def import_ms(names: str) -> float:
    """Import in a fresh interpreter; its own start does not count."""
    done = subprocess.run([sys.executable, "-c", IMPORT.format(names=names)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def serving() -> tuple[float, float]:
    """Start `serve` with a new store; return ms from process start to its ready line, and its resident MB a second later."""
    with tempfile.TemporaryDirectory(prefix="sprocketmq-startup-") as directory:
        begin = time.perf_counter()
        with serve(Path(directory)) as (_, pid):
            ready_ms = (time.perf_counter() - begin) * 1000
            time.sleep(1)
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        (resident_kb,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")]
        return ready_ms, resident_kb / 1000


def fixture_ms() -> list[float]:
    """Run tests that use the fixture and do nothing; return what each took, set-up and tear-down included, in ms.

    The first also imports the broker; it is left out.
    """
    with tempfile.TemporaryDirectory(prefix="sprocketmq-startup-") as directory:
        test, report = Path(directory) / "test_fixture.py", Path(directory) / "report.xml"
        test.write_text(FIXTURE_TESTS.format(count=REPEATS + 1), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-c", "/dev/null", str(test)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)
        if done.returncode != 0:
            raise RuntimeError(f"the fixture's tests failed:\n{done.stdout[-2000:]}")
        cases = ET.parse(report).getroot().iter("testcase")
        return [float(case.attrib["time"]) * 1000 for case in cases][1:]


def main() -> int:
    """Measure, write the result file, print, and return the exit code."""
    serve_figures = [serving() for _ in range(REPEATS)]
    figures: dict[str, dict[str, Any]] = {
        "import_ms": spread((import_ms("pass") for _ in range(REPEATS)), 1),
        "import_client_ms": spread((import_ms(CLIENT) for _ in range(REPEATS)), 1),
        "serve_ready_ms": spread((ready for ready, _ in serve_figures), 1),
        "serve_idle_rss_mb": spread((resident for _, resident in serve_figures), 1),
        "fixture_ms": spread(fixture_ms(), 1),
    }
    missed = [name for name, goal in GOALS.items() if figures[name]["median"] >= goal]
    write_result("load-startup", {"goals_below": GOALS, "missed": missed, **figures})
    for name, values in figures.items():
        goal = f"  (goal below {GOALS[name]:.0f}{', MISSED' if name in missed else ''})" if name in GOALS else ""
        print(f"{name:18} {values['median']:8.1f}   {values['min']:.1f} to {values['max']:.1f}{goal}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
