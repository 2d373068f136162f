"""Measure pops and acknowledgements of batches of 32, at our broker and at Apache's, by the same client.

1 KiB bodies, 8 queues of a plain topic. The client pops 32 messages with each request, several requests at a time over one connection, reads
where they are, and acknowledges them: with one request for a pop, or (``single``) with a request for each message. Both brokers get the same
messages from our producer first, and are warmed until Apache's has compiled its code: its first figures are a fifth of its last.
``client_us`` and ``server_us`` are processor time of a message. Exits 1 when a goal is missed.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import uvloop
from tests.interop import apache

from benchmarks.load.child_servers import child_servers, send_all
from benchmarks.load.popping import BATCH_ACK, FOUND, acknowledged, pop, receipts
from benchmarks.load.rounds import QUEUES, turns, verdict
from benchmarks.processor import cpu_s
from benchmarks.report import write_result
from sprocketmq import AdminClient, Producer
from sprocketmq.net.client import Connection, ConnectionPool

if TYPE_CHECKING:
    from sprocketmq.protocol.command import Command

TOPIC = "Popped"
GOALS = {"rate": 100_000.0, "ours / apache": 1.2}
# How many requests are in flight.
KINDS = {"batch": 4, "batch, 16 at a time": 16, "single": 4}
GOAL = "batch"
WARM_ROUNDS = 3
ACK = 200051


class Cluster(NamedTuple):
    """One broker: its name and address, and what tells the processor time of its processes."""

    namesrv: str
    broker: str
    address: str
    cpu_s: Callable[[], float]


async def pop_all(cluster: Cluster, kind: str, count: int) -> float:
    """Pop and acknowledge ``count`` messages with a new group, and return the seconds they took."""
    group = f"g{time.time_ns()}"
    pool = ConnectionPool(expected="broker")
    conn = await pool.get(cluster.address)
    taken = 0

    async def work() -> None:
        nonlocal taken
        while taken < count:
            answer = await pop(conn, group, TOPIC)
            if answer is None:
                continue
            ext = answer.ext
            taken += sum(len(offsets) for _, _, offsets in receipts(ext))
            if kind != "single":
                answers = [conn.request(BATCH_ACK, ext={}, body=acknowledged(group, TOPIC, cluster.broker, ext), timeout_s=30)]
            else:
                answers = list(singly(conn, group, cluster.broker, ext))
            for answer in await asyncio.gather(*answers):
                assert answer.code == FOUND, answer.remark

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(KINDS[kind])))
    elapsed = time.perf_counter() - began
    await pool.close()
    return elapsed


def singly(conn: Connection, group: str, broker: str, ext: dict[str, str]) -> Iterator["asyncio.Future[Command]"]:
    """Acknowledge each message of an answer."""
    for queue, start, offsets in receipts(ext):
        for offset in offsets:
            handle = f"{start} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} 0 {broker} {queue} {offset}"
            fields = {"consumerGroup": group, "topic": TOPIC, "queueId": str(queue), "extraInfo": handle, "offset": str(offset)}
            yield conn.request(ACK, ext=fields, timeout_s=30)


async def fill(cluster: Cluster, count: int) -> None:
    """Send the messages, with some to spare."""
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
    async with Producer("pg", namesrv=cluster.namesrv, auto_batch=True) as producer:
        await send_all(producer, TOPIC, count + count // 4)


def one(cluster: Cluster, kind: str, count: int) -> dict[str, float]:
    """Take one figure."""
    server_s, client_s = cluster.cpu_s(), time.process_time()
    elapsed = uvloop.run(pop_all(cluster, kind, count))
    client_s, server_s = time.process_time() - client_s, cluster.cpu_s() - server_s
    return {
        "messages_per_s": round(count / elapsed),
        "client_us": round(client_s / count / 1e-6, 3),
        "server_us": round(server_s / count / 1e-6, 3),
    }


def measure(directory: Path, options: argparse.Namespace) -> dict[str, object]:
    """Take all figures and return them with their ratios."""
    with ExitStack() as stack:
        servers = stack.enter_context(child_servers(directory / "ours", TOPIC))
        namesrv = stack.enter_context(apache.ApacheNamesrv(directory / "namesrv"))
        broker = stack.enter_context(apache.ApacheBroker(directory / "apache", namesrv.address, flags=apache.MEASURED_BROKER, unhurried={}))
        clusters = {
            "ours": Cluster(servers.namesrv, "broker-a", address_of(servers.namesrv), servers.cpu_s),
            "apache": Cluster(namesrv.address, broker.name, broker.address, lambda: cpu_s(broker.process.pid)),
        }
        for cluster in clusters.values():
            uvloop.run(fill(cluster, options.count))
            for kind in [*KINDS] * WARM_ROUNDS:
                one(cluster, kind, options.count)
        taken: dict[str, dict[str, list[dict[str, float]]]] = {kind: {name: [] for name in clusters} for kind in KINDS}
        for number in range(options.rounds):
            for kind, name in turns(number, tuple(KINDS), tuple(clusters)):
                found = one(clusters[name], kind, options.count)
                taken[kind][name].append(found)
                us = f"client {found['client_us']:5.2f} us   server {found['server_us']:5.2f} us"
                print(f"{kind:20} {name:7} {found['messages_per_s']:10,.0f} messages/s   {us}", flush=True)
    figures: dict[str, object] = {}
    for kind, sides in taken.items():
        rates = {name: statistics.median(one["messages_per_s"] for one in found) for name, found in sides.items()}
        goals = GOALS if kind == GOAL else {}
        ratio = verdict(rates["ours"] / rates["apache"], goals.get("ours / apache", 0.0))
        figures[kind] = {"rounds": sides, "rates": rates, "ratio": ratio, "reached": rates["ours"] >= goals.get("rate", 0.0)}
        print(f"{kind:20} ours / apache {ratio['ratio']:.2f}", flush=True)
    return figures


def address_of(namesrv: str) -> str:
    """Return the address of the one broker."""

    async def ask() -> str:
        async with AdminClient(namesrv=namesrv) as admin:
            return next(iter((await admin.cluster()).broker_addr_table.values())).broker_addrs[0]

    return uvloop.run(ask())


def main() -> int:
    """Parse options, run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="figures of each kind (5)")
    parser.add_argument("--count", type=int, default=100_000, help="messages of a figure (100,000)")
    parser.add_argument("--directory", type=Path, help="where the stores go (a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sprocketmq-pops-", dir=options.directory) as directory:
        figures = measure(Path(directory), options)
    write_result("load-pops", figures)
    return 0 if all(found["reached"] and found["ratio"]["reached"] for found in figures.values()) else 1  # type: ignore[index]


if __name__ == "__main__":
    sys.exit(main())
