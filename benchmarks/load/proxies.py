"""Measure the gRPC endpoint beside Apache's proxy, each in front of its own broker, with Apache's Java client of version 5.

1 KiB bodies, 8 queues. ``send``: a message with each call, 64 calls in flight. ``receive``: 32 messages with each call, 4 calls in flight,
and an acknowledgement of each message, as the client makes them. ``ours`` is ``sprocketmq proxy`` in front of our broker; ``serve`` is
``sprocketmq serve --grpc``; ``apache`` is Apache's proxy in front of its broker. Processor time of a
message is that of the client, and of proxy and broker together. Exits 1 when a goal is missed.
"""

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple

from tests.interop import apache, proxies

from benchmarks.load.rounds import BODY_BYTES, QUEUES, turns, verdict
from benchmarks.processor import cpu_s
from benchmarks.report import write_result
from sprocketmq import AdminClient

TOPIC, GROUP = "ThroughTheProxy", "proxied"
GOAL = 1.0
WARM_ROUNDS = 3
# Messages that are there beforehand: calls in flight receive more than were asked for.
SPARE = 4_000
OPERATIONS = {"send": f"send %d 64 {BODY_BYTES}", "receive": "receive %d 4"}


class Endpoint(NamedTuple):
    """An endpoint under test: the client that is connected to it, and the processes behind it; their children count as well."""

    client: apache.JavaProcess
    pids: list[int]

    def ask(self, line: str) -> tuple[float, float]:
        """Have the client do something; return seconds, and seconds of its processor time."""
        process = self.client.process
        assert process.stdin is not None
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()
        words = answer(process.stdout, self.client)
        return float(words[1]), float(words[2])

    def cpu_s(self) -> float:
        """Return the processor time of the servers."""
        pids = list(self.pids)
        for pid in self.pids:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):  # of each thread
                pids += map(int, children.read_text(encoding="utf-8").split())
        return cpu_s(*pids)


def answer(stream: IO[bytes] | None, client: apache.JavaProcess) -> list[str]:
    """Return the words of the client's next answer. Raises ApacheFailed when it gives none."""
    assert stream is not None
    while line := stream.readline().decode():
        words = line.split()
        if words and words[0] in {"ready", "done"}:
            return words
        if words == ["failed"]:
            break
    raise apache.ApacheFailed(f"the client failed:\n{client.tail()}")


@contextlib.contextmanager
def command(directory: Path, *arguments: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Run a command of ours until it is ready; yield its pid and the words of its ready line."""
    directory.mkdir(parents=True)
    with (directory / "output.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sprocketmq", *arguments], stdout=subprocess.PIPE, stderr=log, cwd=directory, text=True
        )
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("ready"), (directory / "output.log").read_text(encoding="utf-8")
            yield process.pid, dict(word.partition("=")[::2] for word in ready.split()[1:])
        finally:
            process.terminate()
            process.wait(60)


async def prepare(namesrv: str, cluster: str | None) -> None:
    """Create the topic, and the group at its first messages."""
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES, cluster=cluster)
        await admin.create_group(GROUP)
        for queue in await admin.queues(TOPIC):
            await admin.commit(GROUP, queue, 0)


def connected(stack: ExitStack, home: Path, address: str, pids: list[int]) -> Endpoint:
    """Connect a client to an endpoint."""
    arguments = (str(proxies.JAVA5 / "Rates.java"), address, TOPIC, GROUP)
    flags = apache.MEASURED_CLIENT
    client = stack.enter_context(
        apache.JavaProcess(*arguments, home=home, flags=flags, library=proxies.java5_jars(), stdin=True)  # its launcher compiles it
    )
    answer(client.process.stdout, client)
    endpoint = Endpoint(client, pids)
    endpoint.ask(OPERATIONS["send"] % SPARE)
    return endpoint


def started(stack: ExitStack, directory: Path) -> dict[str, Endpoint]:
    """Start everything."""
    pid, words = stack.enter_context(command(directory / "broker", "serve", "--store", "mq", "--port", "0", "--namesrv-port", "0"))
    asyncio.run(prepare(words["namesrv"], None))
    proxy, at = stack.enter_context(command(directory / "proxy", "proxy", "--namesrv", words["namesrv"], "--port", "0"))
    endpoints = {"ours": connected(stack, directory / "c1", at["grpc"], [pid, proxy])}
    pid, words = stack.enter_context(
        command(directory / "serve", "serve", "--store", "mq", "--port", "0", "--namesrv-port", "0", "--grpc", "0")
    )
    asyncio.run(prepare(words["namesrv"], None))
    endpoints["serve"] = connected(stack, directory / "c2", words["grpc"], [pid])
    namesrv = stack.enter_context(apache.ApacheNamesrv(directory / "namesrv"))
    broker = stack.enter_context(apache.ApacheBroker(directory / "apache", namesrv.address, flags=apache.MEASURED_BROKER, unhurried={}))
    asyncio.run(prepare(namesrv.address, broker.cluster))
    theirs = stack.enter_context(
        proxies.ApacheProxy(directory / "apaches-proxy", namesrv.address, broker.cluster, flags=apache.MEASURED_BROKER)
    )
    endpoints["apache"] = connected(stack, directory / "c3", theirs.address, [broker.process.pid, theirs.process.pid])
    return endpoints


def one(endpoint: Endpoint, operation: str, count: int) -> dict[str, float]:
    """Take one figure."""
    before = endpoint.cpu_s()
    elapsed, client_s = endpoint.ask(OPERATIONS[operation] % count)
    return {
        "messages_per_s": round(count / elapsed),
        "client_us": round(client_s / count / 1e-6, 1),
        "server_us": round((endpoint.cpu_s() - before) / count / 1e-6, 1),
    }


def measure(directory: Path, options: argparse.Namespace) -> dict[str, object]:
    """Take all figures and return them with their ratios."""
    with ExitStack() as stack:
        endpoints = started(stack, directory)
        taken: dict[str, dict[str, list[dict[str, float]]]] = {name: {side: [] for side in endpoints} for name in OPERATIONS}
        for number in range(-WARM_ROUNDS, options.rounds):
            for operation, side in turns(number, OPERATIONS, tuple(endpoints)):
                found = one(endpoints[side], operation, options.count)
                if number >= 0:
                    taken[operation][side].append(found)
                us = f"client {found['client_us']:6.1f} us   servers {found['server_us']:6.1f} us"
                print(
                    f"{operation:8} {side:7} {found['messages_per_s']:8,.0f} messages/s   {us}{'' if number >= 0 else '   (warm)'}",
                    flush=True,
                )
    figures: dict[str, object] = {}
    for operation, sides in taken.items():
        rates = {side: statistics.median(found["messages_per_s"] for found in figures) for side, figures in sides.items()}
        ratios = {side: verdict(rates[side] / rates["apache"], GOAL) for side in ("ours", "serve")}
        figures[operation] = {"rounds": sides, "rates": rates, "ratios": ratios}
        print(f"{operation:8}", *[f"{side} / apache {ratio['ratio']:.2f}" for side, ratio in ratios.items()], sep="   ", flush=True)
    return figures


def main() -> int:
    """Parse options, run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="figures of each kind (5)")
    parser.add_argument("--count", type=int, default=10_000, help="messages of a figure (10,000)")
    parser.add_argument("--directory", type=Path, help="where the stores go (a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sprocketmq-proxies-", dir=options.directory) as directory:
        figures = measure(Path(directory), options)
    write_result("load-proxies", figures)
    reached = [ratio["reached"] for found in figures.values() for ratio in found["ratios"].values()]  # type: ignore[index]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
