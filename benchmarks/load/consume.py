"""Measure push consuming: our consumer and broker against Apache's Java consumer and broker, interleaved in one run on one machine.

Every round a new consumer group reads all messages of a topic from the first offset, in batches, reading every body: 1,000,000 of 1 KiB
in 8 queues, on a plain topic and on one of batch queues (batches of 32). Both sides' topics are filled by our producer with the same
messages. Batch size, pull size and what may be cached of a queue are raised alike in both clients; both brokers have their defaults, with
which Apache's ends a pull after 32 messages or 256 KiB, whatever it was asked for, and ours after 4,096 or 4 MiB. With
--apache-limits raised Apache's broker gets our limits as well. Exits 1 when a ratio misses its goal, 2 when the machine cannot run
the comparison.
"""

import sys

from benchmarks.load import rounds
from benchmarks.load.rounds import BODY_BYTES, Comparison, Workload
from benchmarks.load.sides import OurClient, Side, Topic

PLAIN, BATCH_QUEUES = "ConsumeTest", "ConsumeTestBatchCQ"
TOPICS = (Topic(PLAIN, rounds.QUEUES), Topic(BATCH_QUEUES, rounds.QUEUES, batch_queues=True))
FILL_BATCH = 32
BATCH_MAX = 256
PULL_BYTES = 2 << 20
MAX_CACHED = 8 * BATCH_MAX
TIMEOUT_S = 60.0
OUR_LIMITS = {"maxTransferCountOnMessageInMemory": "4096", "maxTransferBytesOnMessageInMemory": str(4 << 20)}


def reading(name: str, goal: float | None, messages: int, topic: str) -> Workload:
    """Return the workload that reads a topic of so many messages."""
    arguments = {"count": messages, "batch_max": BATCH_MAX, "pull_bytes": PULL_BYTES, "max_cached": MAX_CACHED, "timeout_s": TIMEOUT_S}
    return Workload(name, "load_consume", goal, arguments, topic)


def comparison(messages: int, *, raised: bool) -> Comparison:
    """Return the benchmark for so many messages in each topic; with ``raised``, against an Apache broker with our limits."""

    def fill(side: Side) -> None:
        client = OurClient(side.namesrv)
        try:
            for topic in TOPICS:
                client.call("fill", topic=topic.name, count=messages, batch=FILL_BATCH, body_bytes=BODY_BYTES)
        finally:
            client.stop()

    return Comparison(
        "load-consume-raised" if raised else "load-consume",
        (
            reading("consume-plain", 8.0, messages, PLAIN),
            reading("consume-batchcq", 8.0, messages, BATCH_QUEUES),
        ),
        TOPICS,
        disk_bytes=max(12 << 30, 6 * messages * BODY_BYTES),
        writes=False,
        prepare=fill,
        setting={
            "messages": messages,
            "batch_max": BATCH_MAX,
            "pull_bytes": PULL_BYTES,
            "max_cached": MAX_CACHED,
            "fill_batch": FILL_BATCH,
        },
        apache_settings=OUR_LIMITS if raised else {},
    )


def main() -> int:
    """Parse options, run, and return the exit code."""
    parser = rounds.parser(comparison(0, raised=False), __doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages in each topic (1,000,000)")
    parser.add_argument(
        "--apache-limits", choices=["default", "raised"], default="default", help="how much Apache's broker answers a pull with"
    )
    options = parser.parse_args()
    return rounds.main(comparison(options.messages, raised=options.apache_limits == "raised"), options)


if __name__ == "__main__":
    sys.exit(main())
