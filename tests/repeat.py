"""Run the whole suite several times in a row, in a new random order each time, beside busy processes (``make test-repeat``).

With ``--disturbed`` only the tests without Spark, whose event loops and threads run late (``tests/disturbed.py``, ``make test-disturbed``).

A test that depends on the order, on what another test left behind or on how fast the machine is passes most of the time. This finds it:
two processes that only count keep both cores busy while the suite runs, its two parts at a time, as in ``.ci/run``. Each run's result is
appended to ``--report`` as one JSON line as soon as it ends. Started again, it goes on after the runs in that file: ten take hours. The
exit status is the number of runs that failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

# What the suite starts: the same two commands as `make test`.
PARTS = {
    "unit": ["-n", "4", "--dist", "worksteal"],
    "spark": ["-m", "spark and not long", "tests/spark", "tests/spark_faults"],
}
# No run takes longer, whatever goes wrong in it.
RUN_LIMIT_S = 3600
BUSY = f"import time\nend = time.monotonic() + {RUN_LIMIT_S}\nwhile time.monotonic() < end: pass"

_SUMMARY = re.compile(r"=+ (.*(?:passed|failed|error).*) in [\d.]+s")
_SEED = re.compile(r"randomly-seed=(\d+)")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def run_part(name: str, arguments: list[str], log: Path) -> dict[str, object]:
    """Run one part of the suite; return its result and the seed that repeats its order."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments], capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
        )
        output, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as e:
        output, code = f"{e.stdout!r}\nno result within {RUN_LIMIT_S} s", -1
    log.write_text(output)
    summary = _SUMMARY.findall(output)
    seed = _SEED.search(output)
    return {
        "part": name,
        "exit_status": code,
        "summary": summary[-1] if summary else "no summary",
        "failed": sorted(set(_FAILED.findall(output))),
        "seed": int(seed[1]) if seed else None,
        "seconds": round(time.monotonic() - started),
    }


def main() -> int:
    """Run the suite ``--runs`` times and return how many runs failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10, help="runs in all, with those in the report")
    parser.add_argument("--busy", type=int, default=2, help="busy processes beside each run")
    parser.add_argument("--report", type=Path, default=Path("test-repeat.jsonl"))
    parser.add_argument(
        "--disturbed", action="store_true", help="run the tests without Spark, with their event loops and threads disturbed"
    )
    options = parser.parse_args()
    parts_wanted = {"unit": [*PARTS["unit"], "-p", "tests.disturbed"]} if options.disturbed else PARTS
    failures = 0
    before = len(options.report.read_text().splitlines()) if options.report.exists() else 0
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    for run in range(before + 1, options.runs + 1):
        busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(options.busy)]
        try:
            with ThreadPoolExecutor() as at_once:
                started = [
                    at_once.submit(run_part, name, part, options.report.with_suffix(f".{run}.{name}.log"))
                    for name, part in parts_wanted.items()
                ]
                parts = [part.result() for part in started]
        finally:
            for process in busy:
                process.kill()
                process.wait()
        failed = any(part["exit_status"] for part in parts)
        failures += failed
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        result = {"run": run, "commit": commit, "ended": ended, "cores": os.cpu_count(), "parts": parts}
        with options.report.open("a") as report:
            report.write(json.dumps(result) + "\n")
        print(
            f"run {run}: {'FAILED' if failed else 'passed'}; " + "; ".join(f"{part['part']} {part['summary']}" for part in parts),
            flush=True,
        )
    return failures


if __name__ == "__main__":
    sys.exit(main())
