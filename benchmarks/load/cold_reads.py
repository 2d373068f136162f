"""Send while another group reads old messages from the disk, beside the same sends alone: what one consumer far behind costs the senders.

A store is filled, the page cache of its files is dropped, and a broker is started on it, with what ``serve`` does for its process. A client
sends at a steady rate, each message by itself, in rounds: alone, then while a pull consumer reads the store from its first message on, as
fast as it can; the cache is dropped again before each such round. The broker, the sender and the reader are processes of their own; the
reader is scheduled as SCHED_IDLE, because one on another machine would take no CPU from the senders. Exits 1 when the median over the rounds
of the senders' p99 beside the reader is more than 1.5 times the one alone.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.load.stores import fill, give_back
from benchmarks.report import spread, write_result
from sprocketmq.storage.config import DELAY_LEVELS

GIB = 1 << 30
GOAL = 1.5
QUEUES = 8

SERVE = """
import asyncio, sys
from pathlib import Path
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.server import Broker
from sprocketmq.net.loops import new_event_loop
from sprocketmq.net.own_process import settle_own_process
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.protocol.bodies import TopicConfig
from sprocketmq.storage.store import StoreConfig

async def serve():
    namesrv = NameServer(NameServerConfig(port=0))
    await namesrv.start()
    store = StoreConfig(Path(sys.argv[1]), disk_warning_ratio=1.0, message_delay_level=sys.argv[2])
    broker = Broker(BrokerConfig(store=store, port=0, namesrv=(namesrv.address,), transaction_timeout_s=float(sys.argv[3])))
    await broker.start()
    settle_own_process()
    print(namesrv.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await broker.stop()
    await namesrv.stop()

with asyncio.Runner(loop_factory=new_event_loop) as runner:
    runner.run(serve())
"""
READ = """
import os
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # before the imports, which take a tenth of a second
import asyncio, json, sys, time
from sprocketmq import PullConsumer

async def read():
    total = count = 0
    async with PullConsumer("far_behind", namesrv=sys.argv[1]) as consumer:
        queues = {queue: 0 for queue in await consumer.queues("old")}
        began = time.monotonic()
        async def one(queue):
            nonlocal total, count
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset, max_messages=4096, max_bytes=4 << 20, timeout_s=60)
                total += len(result.body)
                count += result.next_offset - offset
                offset = result.next_offset
        await asyncio.gather(*map(one, queues))
        print(json.dumps({"bytes": total, "messages": count, "seconds": time.monotonic() - began}), flush=True)

asyncio.run(read())
"""


class Serving:
    """A nameserver and a broker in a process of their own, in the control group of this directory if one is given."""

    def __init__(
        self, root: Path, *, delay_levels: str = DELAY_LEVELS, transaction_timeout_s: float = 6.0, cgroup: Path | None = None
    ) -> None:
        command = [sys.executable, "-c", SERVE, str(root), delay_levels, str(transaction_timeout_s)]
        if cgroup is not None:
            command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(cgroup / "cgroup.procs"), *command]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.namesrv = self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.communicate(timeout=60)


async def send(namesrv: str, rate: float, until: Any, *, timeout_s: float = 3.0) -> list[float]:
    """Send ``rate`` messages a second until ``until(seconds)``, and return the milliseconds that each took from its due time."""
    from sprocketmq import Message, Producer

    taken: list[float] = []
    async with Producer("senders", namesrv=namesrv, timeout_s=timeout_s) as producer:
        await producer.send(Message("new", b"x" * 1024))
        began = time.monotonic()

        async def one(due: float) -> None:
            await producer.send(Message("new", b"x" * 1024))
            taken.append((time.monotonic() - due) * 1000)

        tasks: set[asyncio.Task[None]] = set()
        number = 0
        while not until(time.monotonic() - began):
            due = began + number / rate
            if (pause := due - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            task = asyncio.create_task(one(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
        await asyncio.gather(*tasks)
    return taken


def figures(taken: list[float]) -> dict[str, float]:
    """Return the percentiles of a round, in milliseconds."""
    ordered = sorted(taken)
    at = {f"p{q:g}_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * q / 100))], 3) for q in (50, 99, 99.9)}
    return {"sends": len(ordered), **at, "max_ms": round(ordered[-1], 3)}


def one_round(root: Path, rate: float, seconds: float) -> dict[str, Any]:
    """Measure sends alone for ``seconds``, then beside the reader until it has read everything."""
    give_back(path for path in root.rglob("*") if path.is_file())
    serving = Serving(root)
    try:
        asyncio.run(send(serving.namesrv, rate, lambda spent: spent > 2))
        alone = figures(asyncio.run(send(serving.namesrv, rate, lambda spent: spent > seconds)))
        reader = subprocess.Popen([sys.executable, "-c", READ, serving.namesrv], stdout=subprocess.PIPE, text=True)
        beside = figures(asyncio.run(send(serving.namesrv, rate, lambda _: reader.poll() is not None)))
        assert reader.stdout is not None
        read = json.loads(reader.stdout.read())
    finally:
        serving.stop()
    read["mb_per_s"] = round(read["bytes"] / read["seconds"] / 1e6, 1)
    return {
        "alone": alone,
        "beside": beside,
        "read": read,
        "p99_ratio": round(beside["p99_ms"] / alone["p99_ms"], 3),
    }


def main() -> int:
    """Measure, write the result file, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=4.0, help="size of the old messages (4)")
    parser.add_argument("--rate", type=float, default=2000.0, help="sends a second (2,000)")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of a round of sends alone (15)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each of sends alone and beside a reader (5)")
    parser.add_argument("--directory", type=Path, help="where the store is made: a disk, as a tmpfs keeps everything in memory")
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory(prefix="sprocketmq-cold-reads-", dir=options.directory) as directory:
        root = Path(directory) / "store"
        fill(root, int(options.gib * GIB), "old", queues=QUEUES)
        for number in range(options.rounds):
            done = one_round(root, options.rate, options.seconds)
            rounds.append(done)
            print(
                f"round {number + 1}: p99 {done['alone']['p99_ms']:.2f} ms alone, {done['beside']['p99_ms']:.2f} ms beside a reader"
                f" of {done['read']['mb_per_s']:.0f} MB/s: {done['p99_ratio']:.2f}x",
                flush=True,
            )
    ratio = spread((done["p99_ratio"] for done in rounds), 3)
    missed = ratio["median"] > GOAL
    setting = {"gib": options.gib, "rate": options.rate, "seconds": options.seconds, "queues": QUEUES}
    write_result("load-cold-reads", {**setting, "goal": GOAL, "p99_ratio": ratio, "missed": missed, "rounds": rounds})
    print(f"p99 beside a reader is {ratio['median']:.2f} times the p99 alone (goal at most {GOAL}){', MISSED' if missed else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
