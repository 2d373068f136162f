"""Measure what TLS and signatures cost: one broker that takes plain and encrypted connections, and our client in another process.

1 KiB bodies, 8 queues of a plain topic, ASYNC_FLUSH. ``auto`` submits messages through AutoBatch with its defaults, 4,096 in flight;
``consume`` has a push consumer take what was sent, from the first offset. The kinds of a workload take turns: ``plain``, ``tls`` (TLS 1.3),
``signed`` (each request has a signature, which this broker does not check) and ``both``. A ratio is that of the medians to ``plain``;
``client_us`` is the client's processor time of a message. Exits 1 when a ratio misses its goal.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import uvloop

from benchmarks.load.child_servers import ChildServers, child_servers, send_all
from benchmarks.load.rounds import turns, verdict
from benchmarks.report import write_result
from sprocketmq import Credentials, Producer, PushConsumer, TlsConfig
from sprocketmq.net.server_tls import ServerTls, TlsMode
from sprocketmq.security.directory import create

TOPIC = "Secured"
QUEUES = 8
IN_FLIGHT = 4096
CREDENTIALS = Credentials("alice", "a secret of thirty-two characters")
KINDS = ("plain", "tls", "signed", "both")
GOALS = {"auto": {"tls": 0.5, "signed": 0.85}, "consume": {"tls": 0.6}}


def security(kind: str, directory: Path) -> dict[str, object]:
    """Return the arguments of a client of this kind."""
    encrypted = kind in ("tls", "both")
    return {
        "tls": TlsConfig(directory / "secure" / "client" / "ca.pem") if encrypted else False,
        "credentials": CREDENTIALS if kind in ("signed", "both") else None,
    }


async def auto(namesrv: str, count: int, options: Mapping[str, object]) -> float:
    """Send ``count`` messages after a tenth of them, and return the seconds they took."""
    async with Producer("pg", namesrv=namesrv, auto_batch=True, max_in_flight=IN_FLIGHT, **options) as producer:  # type: ignore[arg-type]
        await send_all(producer, TOPIC, count // 10)
        began = time.perf_counter()
        await send_all(producer, TOPIC, count)
        return time.perf_counter() - began


async def consume(namesrv: str, count: int, options: Mapping[str, object]) -> float:
    """Consume ``count`` messages with a new group after a tenth of them, and return the seconds they took."""
    group = f"cg-{time.time_ns()}"
    taken, began = -(count // 10), 0.0
    async with PushConsumer(group, TOPIC, namesrv=namesrv, consume_from="first", batch_max=256, **options) as consumer:  # type: ignore[arg-type]
        async for batch in consumer.batches():
            taken += len(batch)
            if taken >= 0 and not began:
                began, taken = time.perf_counter(), 0
            if taken >= count:
                return time.perf_counter() - began
    raise AssertionError("a consumer that is not closed goes on")


WORKLOADS = {"auto": auto, "consume": consume}


def one(name: str, kind: str, servers: ChildServers, directory: Path, count: int) -> dict[str, float]:
    """Take one figure."""
    servers.rest(drop_page_cache=name != "consume")
    server_s, client_s = servers.cpu_s(), time.process_time()
    elapsed = uvloop.run(WORKLOADS[name](servers.namesrv, count, security(kind, directory)))
    client_s = time.process_time() - client_s
    server_s = servers.cpu_s() - server_s
    return {
        "messages_per_s": round(count / elapsed),
        "client_us": round(client_s / count / 1.1e-6, 3),
        "server_us": round(server_s / count / 1.1e-6, 3),
    }


def measure(directory: Path, options: argparse.Namespace) -> dict[str, object]:
    """Take all figures and return them with their ratios."""
    create(directory / "secure", ["127.0.0.1"])
    tls = ServerTls(TlsMode.PERMISSIVE, directory / "secure" / "server.pem", directory / "secure" / "server.key")
    figures: dict[str, object] = {}
    with child_servers(directory / "store", TOPIC, tls=tls) as servers:
        for name in WORKLOADS:
            taken: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
            for number in range(options.rounds):
                for _, kind in turns(number, [name], KINDS):
                    found = one(name, kind, servers, directory, options.count)
                    taken[kind].append(found)
                    us = f"client {found['client_us']:5.2f} us   server {found['server_us']:5.2f} us"
                    print(f"{name:8} {kind:7} {found['messages_per_s']:10,.0f} messages/s   {us}", flush=True)
            rates = {kind: statistics.median(one["messages_per_s"] for one in found) for kind, found in taken.items()}
            ratios = {kind: verdict(rates[kind] / rates["plain"], GOALS[name].get(kind, 0.0)) for kind in KINDS if kind != "plain"}
            figures[name] = {"rounds": taken, "ratios": ratios}
            print(f"{name:8} " + "   ".join(f"{kind} / plain {ratio['ratio']:.2f}" for kind, ratio in ratios.items()), flush=True)
    return figures


def main() -> int:
    """Parse options, run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="figures of each kind (5)")
    parser.add_argument("--count", type=int, default=400_000, help="messages of a figure (400,000)")
    parser.add_argument("--directory", type=Path, help="where the store goes (a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sprocketmq-secured-", dir=options.directory) as directory:
        figures = measure(Path(directory), options)
    write_result("load-secured", figures)
    ratios = [ratio for found in figures.values() for ratio in found["ratios"].values()]  # type: ignore[index]
    return 0 if all(ratio["reached"] for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
