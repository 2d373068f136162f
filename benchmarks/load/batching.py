"""Measure batches: our client and broker against Apache's Java client and broker, interleaved in one run on one machine.

1 KiB bodies, 8 queues, ASYNC_FLUSH; AutoBatch with its defaults (32 KiB, 10 ms) on both sides:

auto-batchcq   submitted messages through AutoBatch to a topic of batch queues, 4,096 in flight
auto-plain     the same to a plain topic
batch-4x100    explicit batches of 100 from 4 senders
auto-sync-256  awaited sends through AutoBatch: 256 tasks against 256 threads, plain topic

Our own side alone: the first with the adaptive mode (right after it, as its ratio is a small difference) and with single sends instead, at
the same number in flight, and lone messages in adaptive mode beside lone plain ones. Exits 1 when a ratio misses its goal, 2 when the machine cannot run the comparison.
"""

import argparse
import contextlib
import statistics
import sys
from collections.abc import Mapping, Sequence

from benchmarks.load import rounds
from benchmarks.load.rounds import BODY_BYTES, Comparison, Figures, Rounds, Workload, verdict
from benchmarks.load.sides import Side, Topic

PLAIN, BATCH_QUEUES = "LoadTest", "LoadTestBatchCQ"
IN_FLIGHT = 4096
SUBMIT = {"senders": 2, "in_flight": IN_FLIGHT}
OVER_SINGLES = 3.4
LONE = 1.2
# Of AutoBatch's rate, what its adaptive mode keeps.
ADAPTIVE = 0.9


def conclude(sides: Sequence[Side], done: Rounds, options: argparse.Namespace) -> Mapping[str, Figures]:
    """Compare our side with itself: AutoBatch with single sends, and the adaptive mode with both."""
    found: dict[str, Figures] = {}
    rates = {name: statistics.median(one["messages_per_s"] for one in figures["ours"]) for name, figures in done.items() if figures["ours"]}
    if {"auto-batchcq", "single", "adaptive-batchcq"} <= rates.keys():
        found["auto / single"] = verdict(rates["auto-batchcq"] / rates["single"], OVER_SINGLES)
        found["adaptive / auto"] = verdict(rates["adaptive-batchcq"] / rates["auto-batchcq"], ADAPTIVE)
    if options.lone and sides[0].name == "ours":
        found["lone adaptive"] = lone(sides, options)
    return found


def lone(sides: Sequence[Side], options: argparse.Namespace) -> Figures:
    """Return the latencies of messages that have the machine for themselves: plain sends and the adaptive mode, in turns."""
    with contextlib.ExitStack() as still:
        for other in sides[1:]:
            still.enter_context(other.paused())
        rounds.wait_until_quiet(options.settle)
        taken = sides[0].client.call("load_lone", topic=PLAIN, body_bytes=BODY_BYTES, count=options.lone, spacing_s=options.spacing)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return {
        **{name: {"p50_ms": round(medians[name], 4), "messages": len(values)} for name, values in taken.items()},
        "spacing_s": options.spacing,
        **verdict(medians["adaptive"] / medians["plain"], LONE, at_most=True),
    }


COMPARISON = Comparison(
    "load-batching",
    (
        Workload("auto-batchcq", "load_submit", 3.0, {**SUBMIT, "auto_batch": True}, BATCH_QUEUES),
        Workload("adaptive-batchcq", "load_submit", None, {**SUBMIT, "adaptive": True}, BATCH_QUEUES, only="ours"),
        Workload("auto-plain", "load_submit", 2.2, {**SUBMIT, "auto_batch": True}, PLAIN),
        Workload("batch-4x100", "load_batch", 2.5, {"senders": 4, "batch": 100}, PLAIN),
        Workload("auto-sync-256", "load_single", 2.5, {"senders": 256, "auto_batch": True}, PLAIN),
        Workload("single", "load_submit", None, SUBMIT, PLAIN, only="ours"),
    ),
    (Topic(PLAIN, rounds.QUEUES), Topic(BATCH_QUEUES, rounds.QUEUES, batch_queues=True)),
    disk_bytes=20 << 30,
    conclude=conclude,
    setting={"auto_batch": {"max_bytes": 32 * 1024, "max_delay_ms": 10}, "in_flight": IN_FLIGHT},
)


def main() -> int:
    """Parse options, run, and return the exit code."""
    parser = rounds.offer_memory(rounds.parser(COMPARISON, __doc__, warm=1.0, first_warm=12.0, seconds=2.5))
    parser.add_argument("--lone", type=int, default=60, help="lone messages of each kind for the adaptive mode; 0 leaves it out (60)")
    parser.add_argument("--spacing", type=float, default=0.1, help="seconds before each lone message (0.1; the goal speaks of 1)")
    return rounds.main(COMPARISON, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
