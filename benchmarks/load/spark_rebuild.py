"""Derive queues and key index of one store from its log with Spark, beside `sprocketmq rebuild` and Apache's broker recovering.

The store has 5,000,000 messages of 1 KiB in 8 queues, each with a unique key and a tag, in the page cache; the same as in
`benchmarks.load.rebuild`. All sides take turns. The Spark session is warm: it has made the files of a small store before. Counted are

* for Spark and `sprocketmq rebuild` (one process, and two) the whole of it: reading, making files, syncing them, putting them in their
  places, and for Spark asking the log about every unit that was written;
* for Apache's broker the time from the first queue file of its recovery until the last record is in its queue and its keys are in the
  index; its files are only as far as the system then.

Also measured is an audit of what was made. Exits 1 when Spark makes fewer than 600,000 messages/s.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from tests.interop import apache

from benchmarks.load.rebuild import BODY_BYTES, QUEUES, apaches, directory, ours, read_whole, write_store
from benchmarks.load.stores import drop_derived
from benchmarks.report import spread, write_result
from sprocketmq.spark import session
from sprocketmq.spark.jobs.audit import audit
from sprocketmq.spark.jobs.rebuild_index import rebuild_index

GOAL_MESSAGES_PER_S = 600_000
CORES = 2
WARM_UP_MESSAGES = 200_000
WARM_UP_ROUNDS = 3


def with_spark(spark: Any, root: Path, count: int) -> dict[str, float]:
    """Make the files, and return how long that took and how long an audit of them."""
    drop_derived(root)
    began = time.perf_counter()
    made = rebuild_index(spark, root)
    complete_s = time.perf_counter() - began
    if (made.records, made.units, made.index_entries, made.damaged) != (count, count, 2 * count, ()):
        raise RuntimeError(f"not what the log holds: {made}")
    began = time.perf_counter()
    found = audit(spark, root)
    if not found.ok or found.records != count:
        raise RuntimeError(f"what was made is not in order: {found.verdict}")
    return {"complete_s": complete_s, "audit_s": time.perf_counter() - began}


def main() -> int:
    """Measure, write the result file, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where the store goes: 7 GB (a temporary directory)")
    parser.add_argument("--without-apache", action="store_true", help="leave out the rival")
    options = parser.parse_args()
    count = options.messages
    if not options.without_apache:
        apache.require()
    rounds: dict[str, list[dict[str, Any]]] = {"spark": [], "one": [], "two": [], "apache": []}
    with directory(options.directory) as top:
        root = top / "store"
        last = write_store(root, count)
        spark = session("rebuild", cores=CORES, log_file=top / "spark.log")
        write_store(top / "small", WARM_UP_MESSAGES)
        for _ in range(WARM_UP_ROUNDS):
            with_spark(spark, top / "small", WARM_UP_MESSAGES)
        for number in range(options.rounds):
            read_whole(root)
            rounds["spark"].append(with_spark(spark, root, count))
            rounds["one"].append(ours(root, 1))
            rounds["two"].append(ours(root, 2))
            if not options.without_apache:
                rounds["apache"].append(apaches(root, top / f"apache-{number}", last))
        spark.stop()
    setting = {"messages": count, "body_bytes": BODY_BYTES, "queues": QUEUES, "rounds": options.rounds, "cores": CORES}
    figures: dict[str, Any] = {}
    for name, done in rounds.items():
        if done:
            figures[name] = {key: spread((each[key] for each in done), 3) for key in done[0] if key.endswith("_s")}
            counted = "dispatched_s" if name == "apache" else "complete_s"
            figures[name]["messages_per_s"] = spread((count / each[counted] for each in done), 0)
    figures["spark"]["audit_messages_per_s"] = spread((count / each["audit_s"] for each in rounds["spark"]), 0)
    rate = figures["spark"]["messages_per_s"]["median"]
    ratios = {f"spark_over_{name}": round(rate / figures[name]["messages_per_s"]["median"], 2) for name in figures if name != "spark"}
    reached = rate >= GOAL_MESSAGES_PER_S
    result = {"setting": setting, "goal_messages_per_s": GOAL_MESSAGES_PER_S, "reached": reached, "ratios": ratios, **figures}
    write_result("load-spark-rebuild", result)
    for name, one in figures.items():
        each = one["messages_per_s"]
        print(f"{name:8} {each['median']:>10,.0f}/s   {each['min']:,.0f} to {each['max']:,.0f}")
    print(f"{'audit':8} {figures['spark']['audit_messages_per_s']['median']:>10,.0f}/s")
    print(
        f"goal {GOAL_MESSAGES_PER_S:,} messages/s: {'reached' if reached else 'MISSED'}; "
        + ", ".join(f"{k} {v}" for k, v in ratios.items())
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
