"""Measure sends: our client and broker against Apache's Java client and broker, interleaved in one run on one machine.

Three workloads with 1 KiB bodies on 8 queues and ASYNC_FLUSH: awaited sends one after the other, with 64 in flight, and explicit batches of
100 from 4 senders. A JVM keeps getting faster for some 20 s of load, so it gets that much of each workload first; every figure is then
counted after at least 3 s more of the same load. Exits 1 when a ratio is under its goal, 2 when the machine
cannot run the comparison.
"""

import sys

from benchmarks.load import rounds
from benchmarks.load.rounds import Comparison, Workload
from benchmarks.load.sides import Topic

COMPARISON = Comparison(
    "load-send",
    (
        # One sender's rate is the inverse of its latency: 1.25 times theirs is 0.8 of it.
        Workload("lone", "load_single", 1.25, {"senders": 1}),
        Workload("sync-64", "load_single", 3.0, {"senders": 64}),
        Workload("batch-4x100", "load_batch", 2.5, {"senders": 4, "batch": 100}),
    ),
    (Topic("LoadTest", rounds.QUEUES),),
    disk_bytes=20 << 30,
)


if __name__ == "__main__":
    sys.exit(rounds.main(COMPARISON, rounds.offer_memory(rounds.parser(COMPARISON, __doc__)).parse_args()))
