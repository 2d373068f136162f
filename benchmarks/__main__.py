"""Run every benchmark in turn, then draw the chart of the README from what they measured.

Each benchmark writes its own JSON under ``benchmarks/results``. Exit code 1 when one misses its goal.
"""

import subprocess
import sys
import time

BENCHMARKS = (
    "benchmarks.micro.codec",
    "benchmarks.micro.store",
    "benchmarks.micro.index",
    "benchmarks.micro.filters",
    "benchmarks.micro.calls",
    "benchmarks.micro.pops",
    "benchmarks.micro.replica",
    "benchmarks.micro.broker",
    "benchmarks.micro.client",
    "benchmarks.micro.traces",
    "benchmarks.micro.turns",
    "benchmarks.load.engine",
    "benchmarks.load.scale",
    "benchmarks.load.queues",
    "benchmarks.load.rebuild",
    "benchmarks.load.restart",
    "benchmarks.load.startup",
    "benchmarks.load.idle_connections",
    "benchmarks.load.crowds",
    "benchmarks.load.cpu",
    "benchmarks.load.brokers",
    "benchmarks.load.send",
    "benchmarks.load.batching",
    "benchmarks.load.consume",
    "benchmarks.load.latency",
    "benchmarks.load.pops",
    "benchmarks.load.proxies",
    "benchmarks.load.cold_reads",
    "benchmarks.load.slow_disk",
    "benchmarks.load.replication",
    "benchmarks.load.replica_catch_up",
    "benchmarks.load.failover",
    "benchmarks.load.secured",
    "benchmarks.load.metrics",
    "benchmarks.load.traces",
    "benchmarks.load.everything",
    "benchmarks.load.dashboard",
    "benchmarks.load.spark_start",
    "benchmarks.load.spark_read",
    "benchmarks.load.spark_sink",
    "benchmarks.load.spark_store",
    "benchmarks.load.spark_land",
    "benchmarks.load.spark_triggers",
    "benchmarks.load.spark_memory",
    "benchmarks.load.spark_rebuild",
    "benchmarks.load.omb",
    "benchmarks.load.kafka",
    "benchmarks.load.demo",
    "benchmarks.charts",
)


def main(names: list[str]) -> int:
    missed = []
    for module in [name for name in BENCHMARKS if not names or any(part in name for part in names)]:
        print(f"== {module}", flush=True)
        began = time.monotonic()
        code = subprocess.run([sys.executable, "-m", module], check=False).returncode
        print(f"== {module}: {'ok' if code == 0 else f'exit code {code}'}, {time.monotonic() - began:.0f} s", flush=True)
        if code:
            missed.append(module)
    if missed:
        print(f"missed their goals or failed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
