"""Measure what message traces cost: one broker, and our client in another process with traces off, of 1 % of the messages, and of all.

1 KiB bodies, 8 queues of a plain topic, ASYNC_FLUSH. ``auto`` submits messages through AutoBatch with its defaults, 4,096 in flight;
``single`` does so without batches; ``consume`` has the handler of a push consumer take what was sent, from the first offset. The kinds of a
workload take turns. ``cost`` is what the median message costs more than with traces off, in processor time of the client and of both sides;
the goal is that of the client. ``traced`` is the share of the records that were written: the rest was dropped to keep to ``cpu_share``.
Exits 1 when a cost misses its goal.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from benchmarks.load.child_servers import ChildServers, child_servers, send_all
from benchmarks.load.rounds import turns, verdict
from benchmarks.report import write_result
from sprocketmq import Producer, PushConsumer, TraceConfig, TraceStats

TOPIC = "Traced"
QUEUES = 8
IN_FLIGHT = 4096
KINDS: dict[str, bool | TraceConfig] = {"off": False, "1%": TraceConfig(sample=0.01), "all": True}
# At most this much more processor time of the client for a message.
GOAL = 0.05


class Measured(NamedTuple):
    """One figure: seconds, the client's seconds of processor time meanwhile, and how many records were written and dropped."""

    elapsed_s: float
    client_s: float
    stats: TraceStats


async def submit(namesrv: str, count: int, trace: bool | TraceConfig, *, auto_batch: bool) -> Measured:
    """Send ``count`` messages after a tenth of them."""
    async with Producer("pg", namesrv=namesrv, auto_batch=auto_batch, max_in_flight=IN_FLIGHT, trace=trace) as producer:
        await send_all(producer, TOPIC, count // 10)
        began, cpu = time.perf_counter(), time.process_time()
        await send_all(producer, TOPIC, count)
        elapsed_s, client_s = time.perf_counter() - began, time.process_time() - cpu
    return Measured(elapsed_s, client_s, producer.trace_stats)


async def auto(namesrv: str, count: int, trace: bool | TraceConfig) -> Measured:
    """Send with AutoBatch."""
    return await submit(namesrv, count, trace, auto_batch=True)


async def single(namesrv: str, count: int, trace: bool | TraceConfig) -> Measured:
    """Send a fifth of the messages, each by itself."""
    measured = await submit(namesrv, count // 5, trace, auto_batch=False)
    return measured._replace(elapsed_s=measured.elapsed_s * 5, client_s=measured.client_s * 5)


async def consume(namesrv: str, count: int, trace: bool | TraceConfig) -> Measured:
    """Consume ``count`` messages with a new group after a tenth of them."""
    taken, began, ended, cpu = -(count // 10), 0.0, 0.0, 0.0
    enough = asyncio.Event()

    def handle(batch: list[Any]) -> None:
        nonlocal taken, began, ended, cpu
        taken += len(batch)
        if taken >= 0 and not began:
            began, cpu, taken = time.perf_counter(), time.process_time(), 0
        if taken >= count and not ended:
            ended, cpu = time.perf_counter(), time.process_time() - cpu
            enough.set()

    group = f"cg-{time.time_ns()}"
    async with PushConsumer(group, TOPIC, namesrv=namesrv, consume_from="first", batch_max=256, trace=trace) as consumer:
        consumer.listen(handle)
        await enough.wait()
    return Measured(ended - began, cpu, consumer.trace_stats)


Workload = Callable[[str, int, bool | TraceConfig], Coroutine[Any, Any, Measured]]
WORKLOADS: dict[str, Workload] = {"auto": auto, "single": single, "consume": consume}


def one(name: str, kind: str, servers: ChildServers, count: int) -> dict[str, float]:
    """Take one figure."""
    servers.rest(drop_page_cache=name != "consume")
    server_s = servers.cpu_s()
    elapsed_s, client_s, stats = uvloop.run(WORKLOADS[name](servers.namesrv, count, KINDS[kind]))
    server_s = servers.cpu_s() - server_s
    messages = count * 1.1 / (5 if name == "single" else 1)
    records = stats.written + stats.dropped
    return {
        "messages_per_s": round(count / elapsed_s),
        "client_us": round(client_s / count * 1e6, 3),
        "server_us": round(server_s / messages * 1e6, 3),
        "traced": round(stats.written / records, 3) if records else 0.0,
    }


def costs(taken: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, object]]:
    """Return what each kind costs more than none."""
    client = {kind: statistics.median(one["client_us"] for one in found) for kind, found in taken.items()}
    both = {kind: statistics.median(one["client_us"] + one["server_us"] for one in found) for kind, found in taken.items()}
    return {
        kind: {**verdict(client[kind] / client["off"] - 1, GOAL, at_most=True), "both_sides": round(both[kind] / both["off"] - 1, 3)}
        for kind in taken
        if kind != "off"
    }


def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Take all figures and return them with the costs."""
    figures: dict[str, Any] = {}
    with child_servers(directory / "store", TOPIC, trace_topic_enable=True) as servers:
        for name in WORKLOADS:
            taken: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
            for number in range(options.rounds):
                for _, kind in turns(number, [name], list(KINDS)):
                    found = one(name, kind, servers, options.count)
                    taken[kind].append(found)
                    print(f"{name:8} {kind:4} " + "   ".join(f"{what} {value:,}" for what, value in found.items()), flush=True)
            figures[name] = {"rounds": taken, "costs": costs(taken)}
            print(f"{name:8} " + "   ".join(f"{kind}: {cost['ratio']:+.1%}" for kind, cost in figures[name]["costs"].items()), flush=True)
    return figures


def main() -> int:
    """Parse options, run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="figures of each kind (5)")
    parser.add_argument("--count", type=int, default=1_500_000, help="messages of a figure (1,500,000)")
    parser.add_argument("--directory", type=Path, help="where the store goes (a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sprocketmq-traces-", dir=options.directory) as directory:
        figures = measure(Path(directory), options)
    write_result("load-traces", figures)
    return 0 if all(cost["reached"] for found in figures.values() for cost in found["costs"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
