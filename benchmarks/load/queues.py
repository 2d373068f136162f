"""What 10,000 queues over the wire cost beside 16: ``python -m benchmarks.load.queues``.

Two brokers with a client process each, one with a topic of 16 queues and one with 100 topics of 100, take turns. A round of producing sends
messages by AutoBatch to all topics in turn; a round of draining is a new group that reads everything from the first offset (60 messages a
queue, later 300); a round of both produces while a group consumes. CPU is that of the client process and of the broker, user and kernel, per
message; it is what the ratios of a busy machine should be judged by. Each form runs with new brokers: plain topics and topics of batch
queues, with bodies of 1 KiB, and with bodies of 512 to 1,536 bytes, four tags and a key a message. Exits 1 when a figure misses its goal.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.load.client import quantile
from benchmarks.load.scale import process_facts
from benchmarks.load.sides import serve
from benchmarks.load.stores import give_back
from benchmarks.processor import cpu_s
from benchmarks.report import spread, write_result
from sprocketmq import AdminClient, Batching, Message, Producer, PushConsumer, SendResult
from sprocketmq.protocol.message import MessageQueue

FEW = (1, 16)
MANY = (100, 100)
BODY_BYTES = 1024
IN_FLIGHT = 10_000
SAMPLE_EVERY = 64
EACH = 60
LONG_EACH = 300
LONG_BODY_BYTES = 100
BATCH_MAX = 256
PRODUCING_ROUNDS = 5
STALLED_S = 120.0

# Of the form and the figure: at least, or at most.
GOALS = {
    "produce_rate_ratio": (">=", 0.95),
    "produce_p99_ratio": ("<=", 3.0),
    "drain_rate_ratio": (">=", 0.95),
    "long_drain_rate_ratio": (">=", 0.95),
    "broker_rss_mb": ("<", 600.0),  # with the pages of mapped files, which the broker limits to 256 MiB
    "restart_s": ("<", 5.0),
}


def topic_names(count: int) -> list[str]:
    return [f"queues-{number:03d}" for number in range(count)]


def messages(topics: list[str], body_bytes: int, *, mixed: bool) -> Iterator[Message]:
    """Return messages without end, for each topic in turn."""
    turn = itertools.cycle(topics)
    if not mixed:
        body = b"x" * body_bytes
        return (Message(topic, body) for topic in turn)
    chooser = random.Random(7)
    bodies = [os.urandom(chooser.randrange(body_bytes // 2, body_bytes * 3 // 2)) for _ in range(1009)]
    forms = zip(turn, itertools.cycle(bodies), itertools.cycle(("paid", "sent", "open", "void", "paid")), itertools.count(), strict=False)
    return (Message(topic, body, tag=tag, keys=f"order-{number}") for topic, body, tag, number in forms)


async def create(namesrv: str, shape: tuple[int, int], attributes: dict[str, str]) -> None:
    """Create the topics and send a message to every queue, as large as those that follow: pulls of equal messages cost less."""
    async with AdminClient(namesrv=namesrv) as admin, Producer("queues", namesrv=namesrv) as producer:
        ((_, (broker,)),) = (await admin.cluster()).cluster_addr_table.items()
        for topic in topic_names(shape[0]):
            await admin.create_topic(topic, queues=shape[1], attributes=attributes)
            places = [MessageQueue(topic, broker, number) for number in range(shape[1])]
            await asyncio.gather(*(producer.send(Message(topic, b"x" * BODY_BYTES, queue=place)) for place in places))


class Worker:
    """The client process of one side, told what to do line by line."""

    def __init__(self, namesrv: str, topics: int) -> None:
        self.namesrv = namesrv
        self.topics = topic_names(topics)
        self.groups = itertools.count()
        self.received = 0
        self.wanted = 0
        self.first = 0.0
        self.complete = asyncio.Event()
        self.staying: list[PushConsumer] = []
        self.iterating: list[asyncio.Task[None]] = []

    async def produce(self, producer: Producer, count: int, body_bytes: int, *, mixed: bool) -> dict[str, float]:
        """Send that many messages, each in the batch of its topic and tag; latencies are of every 64th."""
        clock = time.perf_counter
        source = messages(self.topics, body_bytes, mixed=mixed)
        latencies = array("d")
        failures: list[BaseException] = []

        def answered(_: SendResult | None, error: BaseException | None) -> None:
            if error is not None:
                failures.append(error)

        def sampled(before: float) -> Callable[[SendResult | None, BaseException | None], None]:
            def done(_: SendResult | None, error: BaseException | None) -> None:
                latencies.append(clock() - before)
                answered(None, error)

            return done

        began, cpu_before = clock(), time.process_time()
        left = count
        while left:
            room = min(left, IN_FLIGHT - producer.in_flight)
            if room <= 0:
                await producer.room()
                continue
            burst = min(room, SAMPLE_EVERY)
            producer.submit(next(source), sampled(clock()))
            for message in itertools.islice(source, burst - 1):
                producer.submit(message, answered)
            left -= burst
            await asyncio.sleep(0)
        await producer.flush()
        if failures:
            raise failures[0]
        ordered = sorted(latencies)
        return {
            "elapsed_s": clock() - began,
            "client_us": (time.process_time() - cpu_before) / count * 1e6,
            "p50_ms": quantile(ordered, 0.5) * 1000,
            "p99_ms": quantile(ordered, 0.99) * 1000,
        }

    async def _iterate(self, consumer: PushConsumer) -> None:
        size = 0
        async for batch in consumer.batches():
            self.first = self.first or time.perf_counter()
            for message in batch:
                size += len(message.body)
            self.received += len(batch)
            if self.received >= self.wanted:
                self.complete.set()

    def _want(self, count: int) -> None:
        self.received, self.wanted, self.first = 0, count, 0.0
        self.complete.clear()

    async def _joined(self, members: int, consume_from: str, queues: int) -> None:
        group = f"queues-{next(self.groups)}"
        for _ in range(members):
            start: Any = consume_from
            consumer = PushConsumer(group, self.topics, namesrv=self.namesrv, consume_from=start, batch_max=BATCH_MAX)
            await consumer.start()
            self.staying.append(consumer)
            self.iterating.append(asyncio.create_task(self._iterate(consumer)))
        if consume_from != "first":
            async with asyncio.timeout(STALLED_S):
                while sum(len(consumer.assignment) for consumer in self.staying) < queues:
                    await asyncio.sleep(0.1)

    async def leave(self) -> None:
        """Close the consumers."""
        await asyncio.gather(*(consumer.close() for consumer in self.staying))
        await asyncio.gather(*self.iterating)
        self.staying, self.iterating = [], []

    async def drain(self, count: int, members: int) -> dict[str, float]:
        """Read that many messages from the first offset by a new group; the time counts from its start."""
        self._want(count)
        began, cpu_before = time.perf_counter(), time.process_time()
        await self._joined(members, "first", 0)
        async with asyncio.timeout(STALLED_S):
            await self.complete.wait()
        elapsed, used = time.perf_counter() - began, time.process_time() - cpu_before
        return {"elapsed_s": elapsed, "first_s": self.first - began, "client_us": used / count * 1e6}

    async def both(self, producer: Producer, count: int, *, mixed: bool) -> dict[str, float]:
        """Produce while the consumers that have joined consume the same messages."""
        self._want(count)
        began, cpu_before = time.perf_counter(), time.process_time()
        sent = await self.produce(producer, count, BODY_BYTES, mixed=mixed)
        async with asyncio.timeout(STALLED_S):
            await self.complete.wait()
        used = time.process_time() - cpu_before
        return {**sent, "elapsed_s": time.perf_counter() - began, "client_us": used / count * 1e6}

    async def idle(self, seconds: float) -> dict[str, float]:
        """Do nothing, with the consumers that have joined, and return what that costs."""
        before = time.process_time()
        await asyncio.sleep(seconds)
        return {"elapsed_s": seconds, "client_cpu": (time.process_time() - before) / seconds}

    async def run(self) -> None:
        """Carry out commands until standard input ends."""
        loop = asyncio.get_running_loop()
        async with Producer("queues", namesrv=self.namesrv, batching=Batching(), max_in_flight=IN_FLIGHT) as producer:
            actions: dict[str, Callable[..., Any]] = {
                "produce": lambda **arguments: self.produce(producer, **arguments),
                "drain": self.drain,
                "join": lambda members, queues: self._joined(members, "last", queues),
                "both": lambda **arguments: self.both(producer, **arguments),
                "leave": self.leave,
                "idle": self.idle,
            }
            try:
                while line := await loop.run_in_executor(None, sys.stdin.readline):
                    command = json.loads(line)
                    print(json.dumps(await actions[command.pop("op")](**command)), flush=True)
            finally:
                await self.leave()


class Side:
    """A broker with its client process. Calls return the worker's answer and the CPU of the broker, per message or per second."""

    def __init__(self, shape: tuple[int, int], directory: Path, attributes: dict[str, str], running: contextlib.ExitStack) -> None:
        self.topics, self.queues_each = shape
        self.queues = self.topics * self.queues_each
        self.directory = directory
        # Creating the files of a queue takes the kernel 0.1 to 0.3 ms, once: a broker that stops has created them all.
        with serve(directory) as (namesrv, _):
            asyncio.run(create(namesrv, shape, attributes))
        self.namesrv, self.pid = running.enter_context(serve(directory))
        command = [sys.executable, "-m", "benchmarks.load.queues", "--worker", self.namesrv, str(self.topics)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.callback(self.end)

    def call(self, op: str, **arguments: Any) -> dict[str, float]:
        """Run one command in the worker."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        before = cpu_s(self.pid)
        self.process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client process ended with {self.process.wait(10)}")
        value = json.loads(line) or {}
        used = cpu_s(self.pid) - before
        if "count" in arguments:
            count = arguments["count"]
            value |= {"broker_us": used / count * 1e6, "rate": count / value["elapsed_s"]}
            value["cpu_us"] = value["client_us"] + value["broker_us"]
        elif op == "idle":
            value["broker_cpu"] = used / value["elapsed_s"]
        return value

    def settle(self) -> None:
        """Give the page cache of the log back, so that the next round's memory was in use before."""
        give_back((self.directory / "store" / "commitlog").iterdir())

    def warm(self) -> None:
        """Read the log, so that a drain measures queues and not the disk."""
        for path in (self.directory / "store" / "commitlog").iterdir():
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass

    def end(self) -> None:
        """End the worker."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process.stdout.close()


def in_turns(sides: tuple[Side, Side], rounds: int, action: Callable[[Side], dict[str, float]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run rounds of both sides, which of them first in turns; return the spread of every figure of each."""
    taken: dict[Side, list[dict[str, float]]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 else sides[::-1]:
            taken[side].append(action(side))
    few, many = ({name: spread([one[name] for one in taken[side]]) for name in taken[side][0]} for side in sides)
    return few, many


def compared(name: str, few: dict[str, Any], many: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of both sides with the ratios of the medians."""
    ratios = {f"{name}_{what}_ratio": round(many[what]["median"] / few[what]["median"], 3) for what in ("rate", "cpu_us")}
    if "p99_ms" in few:
        ratios |= {f"{name}_{what}_ratio": round(many[f"{what}_ms"]["median"] / few[f"{what}_ms"]["median"], 3) for what in ("p50", "p99")}
    return {f"{name}_16": few, f"{name}_10000": many, **ratios}


def measure(directory: Path, *, batch_queues: bool, mixed: bool, members: int, rounds: int) -> dict[str, Any]:
    """Run one form with two new brokers and return its figures."""
    attributes = {"queue.type": "BatchCQ"} if batch_queues else {}
    total = MANY[0] * MANY[1] * EACH
    figures: dict[str, Any] = {}
    with contextlib.ExitStack() as running:
        few = Side(FEW, directory / "few", attributes, running)
        many = Side(MANY, directory / "many", attributes, running)
        sides = (few, many)

        def produce(side: Side) -> dict[str, float]:
            made = side.call("produce", count=total // PRODUCING_ROUNDS, body_bytes=BODY_BYTES, mixed=mixed)
            side.settle()
            return made

        def drain(side: Side, count: int) -> dict[str, float]:
            side.warm()
            drained = side.call("drain", count=count, members=members)
            side.call("leave")
            return drained

        figures |= compared("produce", *in_turns(sides, PRODUCING_ROUNDS, produce))
        figures |= compared("drain", *in_turns(sides, rounds, lambda side: drain(side, total)))
        if not mixed:
            more = MANY[0] * MANY[1] * (LONG_EACH - EACH)
            for side in sides:
                side.call("produce", count=more, body_bytes=LONG_BODY_BYTES, mixed=False)
            figures |= compared("long_drain", *in_turns(sides, rounds, lambda side: drain(side, total + more)))
        for side in sides:
            side.call("join", members=members, queues=side.queues)
        figures |= compared("both", *in_turns(sides, rounds, lambda side: side.call("both", count=total // PRODUCING_ROUNDS, mixed=mixed)))
        figures["idle_10000"] = many.call("idle", seconds=5.0)
        figures |= {f"broker_{name}": round(value, 1) for name, value in process_facts(many.pid).items()}
    began = time.perf_counter()
    with serve(directory / "many"):
        figures["restart_s"] = round(time.perf_counter() - began, 3)
    return figures


def missed_goals(figures: dict[str, Any]) -> list[str]:
    """Return the names of the figures that miss their goals."""
    tests = {">=": float.__ge__, "<=": float.__le__, "<": float.__lt__}
    return [name for name, (sign, goal) in GOALS.items() if name in figures and not tests[sign](float(figures[name]), goal)]


def show(form: str, figures: dict[str, Any], missed: list[str]) -> None:
    """Print the figures of a form, a line each."""
    print(form)
    for name, value in figures.items():
        if isinstance(value, dict) and isinstance(next(iter(value.values())), dict):
            shown = ", ".join(f"{what} {one['median']:,.4g}" for what, one in value.items())
        else:
            shown = str(value)
        goal = f"   (goal {GOALS[name][0]} {GOALS[name][1]}{', MISSED' if name in missed else ''})" if name in GOALS else ""
        print(f"  {name:26s} {shown}{goal}", flush=True)


def main() -> int:
    """Measure, write the result file, print, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load.queues", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    forms = ("plain", "batchcq", "plain-mixed", "batchcq-mixed")
    parser.add_argument("--form", choices=forms, action="append", help="only this form, may be repeated (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds a side of draining, and of both (default 3)")
    parser.add_argument("--members", type=int, default=1, help="members of the consuming group (default 1)")
    parser.add_argument("--directory", type=Path, default=None, help="where the stores go (default: the system's temporary directory)")
    parser.add_argument("--worker", nargs=2, metavar=("NAMESRV", "TOPICS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        namesrv, topics = options.worker

        async def work() -> None:
            await Worker(namesrv, int(topics)).run()

        uvloop.run(work())
        return 0
    results: dict[str, Any] = {}
    missed: list[str] = []
    for form in options.form or forms:
        directory = Path(tempfile.mkdtemp(prefix="sprocketmq-queues-", dir=options.directory))
        try:
            results[form] = measure(
                directory,
                batch_queues=form.startswith("batchcq"),
                mixed=form.endswith("mixed"),
                members=options.members,
                rounds=options.rounds,
            )
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        late = missed_goals(results[form])
        missed += [f"{form} {name}" for name in late]
        show(form, results[form], late)
    name = "load-queues" if options.members == 1 else f"load-queues-{options.members}-members"
    goals = {name: f"{sign} {goal}" for name, (sign, goal) in GOALS.items()}
    path = write_result(name, {"members": options.members, "goals": goals, "missed": missed, "forms": results})
    print(f"written to {path}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
