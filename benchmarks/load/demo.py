"""The demo as a benchmark: `sprocketmq demo` in a process of its own, its rates and its whole time against their goals."""

import argparse
import json
import subprocess
import sys
import tempfile
import time

from benchmarks.report import write_result

GOAL_ELAPSED_S = 120
GOAL_MESSAGES_PER_S = 60_000


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="sprocketmq-bench-") as directory:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "sprocketmq", "demo", "--json", "--output", f"{directory}/out"],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        elapsed = time.monotonic() - began
    if done.returncode:
        print(done.stdout or "the demo failed")
        return 1
    report = json.loads(done.stdout)
    del report["output"]
    path = write_result(
        "demo", {"goals": {"elapsed_s": GOAL_ELAPSED_S, "messages_per_s": GOAL_MESSAGES_PER_S}, "process_s": round(elapsed, 2), **report}
    )
    rate = report["produce"]["messages_per_s"]
    print(f"{rate:,.0f} messages/s in, {report['table']['rows_per_s']:,.0f} rows/s out, {elapsed:.1f} s -> {path}")
    return 0 if elapsed < GOAL_ELAPSED_S and rate > GOAL_MESSAGES_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
