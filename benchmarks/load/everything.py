"""Measure what it costs to see everything: metrics, traces of 1 % of the messages, JSON logs and an open dashboard, beside none of it.

1 KiB bodies, 8 queues of a plain topic and of one of batch queues, AutoBatch with 4,096 messages in flight, ASYNC_FLUSH. Each side has its
servers and its client in processes of their own on this machine; they take turns. With everything on, a scraper reads the metrics every
2 seconds and a viewer of the dashboard follows its stream and asks for its lists of topics and groups every 5 seconds, as an open page
does; the dashboard is a process of its own, whose processor time stands apart.

Goal: client and broker together take at most 1.05 times the processor time a message. Exits 1 when it is missed.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ports import free_ports

from benchmarks.load import rounds
from benchmarks.load.rounds import QUEUES, Workload, one_round, store_directory, turns, verdict, wait_until_quiet
from benchmarks.load.sides import OurClient, Side, Topic, create_topic, serve
from benchmarks.processor import cpu_s
from benchmarks.report import write_result

GOAL = 1.05
OFF, ON = "off", "on"
TRACED = 0.01
DISK_BYTES = 16 << 30
SCRAPE_S, PAGE_S = 2.0, 5.0
TOPICS = {"plain": Topic("Plain", QUEUES), "batch queues": Topic("Batches", QUEUES, batch_queues=True)}
PARTS = ("client_us", "broker_us", "dashboard_us")


@dataclass(frozen=True)
class Watched(Side):
    """A side with its three processes apart, and what watches it."""

    broker_pid: int = 0
    client_pid: int = 0
    dashboard_pid: int | None = None
    metrics: str = ""
    dashboard: str = ""

    def seconds(self) -> dict[str, float]:
        """Return the processor time of each process so far."""
        found = {"client_us": self.client_pid, "broker_us": self.broker_pid, "dashboard_us": self.dashboard_pid}
        return {name: 0.0 if pid is None else cpu_s(pid) for name, pid in found.items()}


@contextlib.contextmanager
def unwatched(directory: Path) -> Iterator[Watched]:
    """Run servers and client with nothing on."""
    with serve(directory, "--log-level", "WARNING") as (namesrv, pid), client_of(namesrv) as client:
        process = client.process.pid
        yield Watched(OFF, namesrv, client, (pid, process), directory / "store", pid, process)


@contextlib.contextmanager
def watched(directory: Path) -> Iterator[Watched]:
    """Run them with metrics, logs and a dashboard."""
    port = free_ports()
    logs = ("--log-level", "INFO", "--log-format", "json", "--log-file", str(directory / "broker.log"))
    with serve(directory, "--metrics", str(port), *logs) as (namesrv, pid), client_of(namesrv) as client:
        command = [sys.executable, "-m", "sprocketmq", "dashboard", "--namesrv", namesrv, "--port", "0"]
        dashboard = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert dashboard.stdout is not None
            ready = dict(word.split("=", 1) for word in dashboard.stdout.readline().split() if "=" in word)
            pids = pid, client.process.pid, dashboard.pid
            metrics = f"http://127.0.0.1:{port}/metrics"
            yield Watched(ON, namesrv, client, pids, directory / "store", *pids, metrics, ready["dashboard"])
        finally:
            dashboard.terminate()
            dashboard.wait(30)


@contextlib.contextmanager
def client_of(namesrv: str) -> Iterator[OurClient]:
    """Run a client process."""
    client = OurClient(namesrv)
    try:
        yield client
    finally:
        client.stop()


@contextlib.contextmanager
def watching(side: Watched) -> Iterator[None]:
    """Scrape the metrics and look at the dashboard of a side that has them, while the block runs."""
    over = threading.Event()

    def each(seconds: float, urls: Sequence[str]) -> None:
        while not over.wait(seconds):
            for url in urls:
                with urllib.request.urlopen(url, timeout=60) as page:
                    page.read()

    def follow() -> None:
        with urllib.request.urlopen(f"{side.dashboard}/api/live", timeout=60) as stream:
            while not over.is_set() and stream.readline():
                pass

    def started(work: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments)
        thread.start()
        return thread

    threads = []
    if side.dashboard:
        lists = [f"{side.dashboard}/api/{name}" for name in ("topics", "groups")]
        threads = [started(each, SCRAPE_S, [side.metrics]), started(each, PAGE_S, lists), started(follow)]
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def figures_of(side: Watched, sides: Sequence[Watched], topic: Topic, options: argparse.Namespace) -> dict[str, float]:
    """Return the rate, and the processor time a message of each process."""
    for one in sides:
        one.drop_page_cache()
        one.empty_old_files()
    wait_until_quiet(options.settle)
    arguments = {"senders": 2, "in_flight": 4096, "auto_batch": True, "traced": TRACED if side.name == ON else 0.0}
    before = side.seconds()
    with watching(side):
        found = one_round(side, sides, Workload("auto", "load_submit", None, arguments, topic.name), options.warm, options.seconds)
        after = side.seconds()
    if found["errors"]:
        raise RuntimeError(f"{side.name}: {found['errors']} sends failed, the first with {found['first_error']}")
    # Messages are sent also before and after what is counted, at the same rate.
    messages = found["messages_per_s"] * (options.warm + options.seconds)
    return {"messages_per_s": round(found["messages_per_s"]), **{p: round((after[p] - before[p]) / messages * 1e6, 3) for p in PARTS}}


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run all rounds and return figures and verdicts."""
    done: dict[str, dict[str, list[dict[str, float]]]] = {kind: {OFF: [], ON: []} for kind in TOPICS}
    with contextlib.ExitStack() as running:
        sides = [running.enter_context(make(directory / name)) for name, make in ((OFF, unwatched), (ON, watched))]
        for side in sides:
            for topic in TOPICS.values():
                create_topic(side, topic)
                one_round(side, sides, Workload("warm", "load_submit", None, AUTO, topic.name), rounds.OUR_FIRST_WARM_S, 1.0)
        for number in range(options.rounds):
            for (kind, topic), side in turns(number, TOPICS.items(), sides):
                found = figures_of(side, sides, topic, options)
                done[kind][side.name].append(found)
                parts = "   ".join(f"{part} {found[part]:.2f}" for part in PARTS)
                print(f"round {number + 1}  {kind:12} {side.name:3} {found['messages_per_s']:>9,} messages/s   {parts}", flush=True)
    verdicts = {}
    for kind, taken in done.items():
        cost = {name: statistics.median(one["client_us"] + one["broker_us"] for one in found) for name, found in taken.items()}
        verdicts[kind] = verdict(cost[ON] / cost[OFF], GOAL, at_most=True)
    return {"rounds": done, "verdicts": verdicts}


AUTO = {"senders": 2, "in_flight": 4096, "auto_batch": True}


def main() -> int:
    """Run the comparison and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each side and kind of topic (7)")
    parser.add_argument("--warm", type=float, default=1.0, help="seconds of load before counting (1)")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds counted (4)")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds to wait at most for other load to end, before each figure (10)")
    parser.add_argument("--directory", type=Path, help="where the stores go (a temporary directory)")
    options = parser.parse_args()
    with store_directory(options.directory, DISK_BYTES) as directory:
        result = measure(options, directory)
    setting = {"traced": TRACED, "scrape_interval_s": SCRAPE_S, "page_interval_s": PAGE_S, "measure_s": options.seconds, "queues": QUEUES}
    write_result("load-everything", {"setting": setting, **result})
    print(json.dumps(result["verdicts"]))
    return 0 if all(one["reached"] for one in result["verdicts"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
