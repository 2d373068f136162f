"""Measure what metrics cost: our broker and client with ``--metrics``, scraped all the while, and without, in turns.

1 KiB bodies, 8 batch queues, ASYNC_FLUSH; each side has servers and a client in processes of their own on this machine:

auto-batchcq     submitted messages through AutoBatch, 4,096 in flight
consume-batchcq  a new consumer group reads a filled topic from its first message, every body

The broker also has ``--topics`` topics with a message each, so that its page is that of a real cluster. Goals: with metrics at least 0.97 of
the rate without, and at least 0.97 of the messages for each second of CPU time that the broker takes. Exits 1 when a goal is missed, 2 when
the machine cannot run the comparison.
"""

import argparse
import contextlib
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_ports

from benchmarks.load import rounds
from benchmarks.load.consume import FILL_BATCH, reading
from benchmarks.load.rounds import (
    AUTO,
    BODY_BYTES,
    QUEUES,
    Figures,
    Workload,
    one_round,
    report_verdicts,
    store_directory,
    turns,
    verdict,
    wait_until_quiet,
)
from benchmarks.load.sides import OurClient, Side, Topic, create_topic, serve
from benchmarks.processor import cpu_s
from benchmarks.report import spread, write_result
from sprocketmq import Message, sync

SENT = Topic("LoadTest", QUEUES, batch_queues=True)
FILLED = Topic("ConsumeTest", QUEUES, batch_queues=True)
OFF, ON = "off", "on"
GOAL = 0.97
DISK_BYTES = 16 << 30


@dataclass(frozen=True)
class Measured(Side):
    """A side with the process whose CPU time counts, and its metrics, "" without."""

    server_pid: int = 0
    metrics: str = ""


@contextlib.contextmanager
def ours(directory: Path, name: str) -> Iterator[Measured]:
    """Run our nameserver and broker in one process, with metrics on the side of that name, and our client."""
    port = free_ports()
    with serve(directory, *(["--metrics", str(port)] if name == ON else [])) as (namesrv, pid):
        client = OurClient(namesrv)
        try:
            yield Measured(
                name,
                namesrv,
                client,
                (pid, client.process.pid),
                directory / "store",
                pid,
                f"http://127.0.0.1:{port}/metrics" if name == ON else "",
            )
        finally:
            client.stop()


@contextlib.contextmanager
def scraping(side: Measured, interval_s: float) -> Iterator[None]:
    """Scrape a side's metrics every ``interval_s`` seconds, as Prometheus does, while the block runs."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(interval_s):
            with urllib.request.urlopen(side.metrics, timeout=60) as page:
                page.read()

    thread = threading.Thread(target=scrape)
    if side.metrics:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if side.metrics:
            thread.join()


def fill(side: Measured, options: argparse.Namespace) -> None:
    """Fill the topic to be read, and the many topics that make a long page."""
    side.client.call("fill", topic=FILLED.name, count=options.messages, batch=FILL_BATCH, body_bytes=BODY_BYTES)
    with sync.Producer("pg", namesrv=side.namesrv) as producer:
        for number in range(options.topics):
            producer.send(Message(f"Other{number}", b"x"))


def measured(side: Measured, sides: Sequence[Measured], workload: Workload, options: argparse.Namespace) -> Figures:
    """Run one workload on one side when the machine is quiet; adds the broker's CPU time a message to the figures."""
    if workload.name == AUTO.name:
        for one in sides:
            one.drop_page_cache()
            one.empty_old_files()
    wait_until_quiet(options.settle)
    before = cpu_s(side.server_pid)
    with scraping(side, options.scrape):
        figures = one_round(side, sides, workload, options.warm, options.seconds)
    if figures["errors"]:
        raise RuntimeError(f"{side.name} {workload.name}: {figures['errors']} failed, the first with {figures['first_error']}")
    # A timed load sends also before and after what is counted, at the same rate.
    messages = figures["messages"] if workload.name != AUTO.name else figures["messages_per_s"] * (options.warm + options.seconds)
    figures["broker_cpu_us"] = (cpu_s(side.server_pid) - before) / messages * 1e6
    return figures


def summary(done: dict[str, list[Figures]]) -> Figures:
    """Return medians and spreads of each side."""
    return {
        name: {
            "messages_per_s": spread((one["messages_per_s"] for one in figures), 0),
            **{key: spread(one[key] for one in figures) for key in ("broker_cpu_us", "foreign_cpu")},
        }
        for name, figures in done.items()
    }


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Figures]:
    """Run all rounds and return figures and verdicts."""
    # Reading comes first: sending writes more than a disk may hold, and its rounds give back what was written before.
    workloads = (reading("consume-batchcq", None, options.messages, FILLED.name), AUTO)
    done: dict[str, dict[str, list[Figures]]] = {w.name: {} for w in workloads}
    with contextlib.ExitStack() as running:
        sides = [running.enter_context(ours(directory / name, name)) for name in (OFF, ON)]
        for side in sides:
            for topic in (SENT, FILLED):
                create_topic(side, topic)
            fill(side, options)
        for workload in workloads:
            for side in sides:
                one_round(side, sides, workload, rounds.OUR_FIRST_WARM_S, 1.0)
            for number in range(options.rounds):
                for _, side in turns(number, (workload,), sides):
                    figures = measured(side, sides, workload, options)
                    done[workload.name].setdefault(side.name, []).append(figures)
                    cpu = f"CPU us a message: broker {figures['broker_cpu_us']:.2f}"
                    print(f"round {number + 1}  {rounds.line(workload, side, figures)}   {cpu}", flush=True)
    result: dict[str, Figures] = {name: summary(figures) for name, figures in done.items()}
    found: dict[str, Figures] = {}
    for name, one in result.items():
        off, on = one[OFF], one[ON]
        found[f"{name}, rate"] = verdict(on["messages_per_s"]["median"] / off["messages_per_s"]["median"], GOAL)
        found[f"{name}, messages a CPU second"] = verdict(off["broker_cpu_us"]["median"] / on["broker_cpu_us"]["median"], GOAL)
    return {"workloads": result, "verdicts": found}


def main() -> int:
    """Run the comparison and return the exit code."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.load.metrics", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("--rounds", type=int, default=9, help="rounds of each side and workload (9)")
    p.add_argument("--messages", type=int, default=2_000_000, help="messages in the topic to be read (2,000,000)")
    p.add_argument("--topics", type=int, default=500, help="topics with a message each (500)")
    p.add_argument("--scrape", type=float, default=2.0, help="seconds between scrapes (2; Prometheus waits for 15 by default)")
    p.add_argument("--warm", type=float, default=1.0, help="seconds of load before counting (1)")
    p.add_argument("--seconds", type=float, default=4.0, help="seconds counted (4)")
    p.add_argument("--settle", type=float, default=10.0, help="seconds to wait at most for other load to end, before each figure (10)")
    p.add_argument("--directory", type=Path, help="where the stores go (a temporary directory)")
    p.add_argument("--dry", action="store_true", help="print the figures only: write no JSON")
    options = p.parse_args()
    with store_directory(options.directory, DISK_BYTES) as directory:
        result = measure(options, directory)
    setting = {
        **{name: getattr(options, name) for name in ("rounds", "topics")},
        "scrape_interval_s": options.scrape,
        "measure_s": options.seconds,
        "messages_consumed": options.messages,
        "body_bytes": BODY_BYTES,
        "queues": QUEUES,
        "flush": "ASYNC_FLUSH",
    }
    if not options.dry:
        write_result("load-metrics", {"setting": setting, **result})
    return 0 if report_verdicts(result["verdicts"]) else 1


if __name__ == "__main__":
    sys.exit(main())
