"""kill -9 of a streaming query while producers run, again and again: the driver with its JVM, Python workers alone, the broker it reads.

Every acknowledged message is in the Parquet table, once, with its body; and every attempt of a task, before a restart and after it, read the
same ranges and handed Spark the same rows in the same order. From topic to topic every message arrives, and what arrives again has its id again.

``SPROCKETMQ_SPARK_FAULTS`` sets how many kills there are (10 by default), ``SPROCKETMQ_SPARK_FAULT_SEED`` repeats a run as far as a run with
processes can be repeated: the choices, not the moments.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.processes import descendants, jvms, kill, task_workers
from tests.spark_faults import progress

from sprocketmq import AdminClient, Message, Producer, PullConsumer
from sprocketmq.errors import SprocketError
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.protocol.message import MessageQueue, SendStatus
from sprocketmq.testing import eventually
from sprocketmq.testing.ledger import Ledger
from sprocketmq.testing.serving import BrokerProcess

KILLS = int(os.environ.get("SPROCKETMQ_SPARK_FAULTS", "10"))
SEED = os.environ.get("SPROCKETMQ_SPARK_FAULT_SEED") or str(random.randrange(1 << 32))
# Three kinds of kills; a new JVM takes longest, and finds most.
WORKER_KILLS = BROKER_KILLS = KILLS * 3 // 10
DRIVER_KILLS = KILLS - WORKER_KILLS - BROKER_KILLS
# And so many more, of any kind, of a query that writes to a topic.
COPYING_KILLS = KILLS // 5

ROOT = Path(__file__).parents[2]
BROKER = "broker-a"
TOPICS = {"plain": {}, "lists": {"queue.type": "BatchCQ"}}
COPIES = "copies"
QUEUES = 2
SETTINGS = {"commitlog_segment_bytes": 16 << 20, "preallocate": False}
# On a busy machine everything takes its time; these bound what would otherwise hang.
START_S = 300.0
BATCH_S = 120.0

pytestmark = [pytest.mark.spark, pytest.mark.timeout(0 if KILLS > 10 else 900)]


class Driver:
    """The process of a query, and those below it."""

    def __init__(self, home: Path, namesrv: str, copies: str | None) -> None:
        self.home = home
        self.checkpoint = home / "checkpoint"
        self.table = home / "table"
        self.attempts = home / "attempts"
        self.attempts.mkdir(parents=True)
        self._plan = {"nameserver": namesrv, "topics": list(TOPICS), "home": str(home), "seed": SEED, "copies": copies, "fail_one_in": 5}
        self._process: subprocess.Popen[str] | None = None
        self._said = (home / "driver.log").open("w+")

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.spark_faults.query", json.dumps(self._plan)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True, bufsize=1
        )

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "start it first"
        return self._process

    def look(self) -> None:
        """Raise when the process has ended by itself."""
        if self.process.poll() is not None:
            raise QueryEnded(f"the query ended with {self.process.returncode} (seed {SEED}):\n{self.said()}")

    def said(self) -> str:
        log = self.home / "spark.log"
        jvm = log.read_text(errors="replace") if log.exists() else ""
        return (self.home / "driver.log").read_text(errors="replace")[-4000:] + jvm[-4000:]

    def kill(self) -> None:
        """Kill the driver and its JVM; workers that have nobody left to work for must end by themselves."""
        below = descendants(self.process.pid)
        kill(jvms(self.process.pid))
        self.process.kill()
        self._gone()
        _, left = psutil.wait_procs(below, timeout=30)
        kill(left)
        assert not left, f"these outlived their driver: {left} (seed {SEED})"

    def stop(self) -> str:
        """Stop the query in order and return what it says at its end."""
        self.look()
        said, _ = self.process.communicate("stop\n", timeout=START_S)
        if self.process.returncode:
            raise QueryEnded(f"the query did not stop in order (seed {SEED}):\n{self.said()}")
        return said

    def close(self) -> None:
        """Kill all that is left of it."""
        if self._process is not None:
            kill(descendants(self._process.pid))
            self._process.kill()
            self._gone()
        self._said.close()

    def _gone(self) -> None:
        self.process.wait(120)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    async def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        def looked() -> bool:
            self.look()
            return condition()

        await eventually(looked, timeout_s=timeout_s, what=f"{what} (seed {SEED})")

    async def batches(self, more: int) -> None:
        """Wait until so many more micro-batches are done."""
        aim = progress.committed(self.checkpoint) + more
        await self.until(lambda: progress.committed(self.checkpoint) >= aim, START_S + BATCH_S * more, f"micro-batch {aim}")

    async def under_way(self) -> None:
        """Wait until a micro-batch is planned and not done."""
        await self.until(
            lambda: progress.planned(self.checkpoint) > progress.committed(self.checkpoint), BATCH_S, "a micro-batch under way"
        )

    async def suspend_while_reading(self) -> None:
        """Suspend the driver in a micro-batch of which a task has begun to read: when it is killed now, that partition is read again."""
        processes = [psutil.Process(self.process.pid), *jvms(self.process.pid)]

        def suspended() -> bool:
            if not self._is_reading():
                return False
            for process in processes:
                process.suspend()
            if self._is_reading():  # still, and it stays so
                return True
            for process in processes:
                process.resume()
            return False

        await self.until(suspended, BATCH_S, "a task that reads")

    def _is_reading(self) -> bool:
        number = progress.planned(self.checkpoint)
        # A micro-batch whose files are in the table's log is not run again, committed or not.
        if number <= max(progress.committed(self.checkpoint), progress.last_number(self.table / "_spark_metadata")):
            return False
        planned_ns = (self.checkpoint / "offsets" / str(number)).stat().st_mtime_ns
        return any(path.stat().st_mtime_ns > planned_ns and "\n" in path.read_text() for path in self.attempts.iterdir())


class QueryEnded(Exception):
    """The process of the query ended when it should not have; the text has the end of its logs."""


class Producing:
    """Sends to every queue, all the time, each way waiting for its answers; a message is sent once, whatever comes of it.

    With ``places`` the ledger is told where messages are, and that the order of those counts that were not submitted: what is submitted while
    the broker is away is tried again message by message.
    """

    def __init__(self, ledger: Ledger, namesrv: str, *, places: bool) -> None:
        self._ledger = ledger
        self._namesrv = namesrv
        self._places = places
        self._over = asyncio.Event()

    async def run(self) -> None:
        async with Producer("faults", namesrv=self._namesrv, retries=0, timeout_s=3) as producer:
            ways = [(self._single, "plain", 0), (self._submitted, "plain", 1), (self._batch, "lists", 0), (self._single, "lists", 1)]
            await asyncio.gather(*(self._until_over(way, producer, MessageQueue(topic, BROKER, queue)) for way, topic, queue in ways))

    def end(self) -> None:
        self._over.set()

    async def _until_over(self, way: Callable[..., Any], producer: Producer, queue: MessageQueue) -> None:
        rng = random.Random(f"{SEED} {queue}")
        number = 0
        while not self._over.is_set():
            # Refused, or nobody knows: the ledger takes either.
            with contextlib.suppress(SprocketError):
                number += await way(producer, queue, number, rng)
            number += 1000
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), rng.uniform(0.1, 0.5))

    def _note(self, queue: MessageQueue, number: int, rng: random.Random, *, in_order: bool = True) -> tuple[str, Message]:
        identity = f"{queue.topic}/{queue.queue_id}/{number}"
        body = identity.encode() + b" " + rng.randbytes(rng.choice((0, 10, 300, 2000)))
        self._ledger.sent(identity, body, lane=queue if self._places and in_order else None)
        return identity, Message(queue.topic, body, keys=[identity], queue=queue)

    def _answered(self, identity: str, result: Any) -> None:
        if result.status is SendStatus.SEND_OK:
            place = f"{result.topic}/{result.queue_id}" if self._places else None
            self._ledger.acknowledged(identity, queue=place, offset=result.queue_offset)

    async def _single(self, producer: Producer, queue: MessageQueue, number: int, rng: random.Random) -> int:
        identity, message = self._note(queue, number, rng)
        self._answered(identity, await producer.send(message))
        return 1

    async def _submitted(self, producer: Producer, queue: MessageQueue, number: int, rng: random.Random) -> int:
        noted = [self._note(queue, number + i, rng, in_order=False) for i in range(20)]
        futures = [producer.submit(message) for _, message in noted]
        for (identity, _), result in zip(noted, await asyncio.gather(*futures, return_exceptions=True), strict=True):
            if not isinstance(result, BaseException):
                self._answered(identity, result)
        return len(noted)

    async def _batch(self, producer: Producer, queue: MessageQueue, number: int, rng: random.Random) -> int:
        noted = [self._note(queue, number + i, rng) for i in range(rng.choice((1, 2, 10, 60)))]
        results = await producer.send_batch([message for _, message in noted])
        for (identity, _), result in zip(noted, results, strict=True):
            self._answered(identity, result)
        return len(noted)


class Scene:
    """A broker with producers, and a query that reads what they send."""

    def __init__(self, driver: Driver, broker: BrokerProcess, namesrv: str, copies: str | None) -> None:
        self.driver = driver
        self.broker = broker
        self.namesrv = namesrv
        self.copies = copies
        self.ledger = Ledger(seed=SEED)
        self.producing = Producing(self.ledger, namesrv, places=copies is None)
        self.found: Counter[str] = Counter()
        self._sending = asyncio.create_task(self.producing.run())

    async def moment(self, rng: random.Random) -> None:
        """Wait for a random moment: often one within a micro-batch, sometimes any, at times while the query starts."""
        driver = self.driver
        if rng.random() < 0.1:
            await asyncio.sleep(rng.uniform(0, 8))
            driver.look()
            return
        await driver.batches(rng.choice((1, 1, 2, 3)))
        if rng.random() < 0.7:
            await driver.under_way()
            await asyncio.sleep(rng.uniform(0, 0.3))
        else:
            await asyncio.sleep(rng.uniform(0, 1))

    async def kill_driver(self) -> None:
        await asyncio.to_thread(self.driver.kill)
        checkpoint = self.driver.checkpoint
        done = progress.committed(checkpoint)
        if progress.planned(checkpoint) == done:
            self.found["between micro-batches"] += 1
        elif self.copies is not None:
            self.found["in a micro-batch"] += 1
        elif progress.last_number(self.driver.table / "_spark_metadata") == done:
            self.found["in a micro-batch, before its files counted"] += 1
        else:
            self.found["in a micro-batch, after its files counted"] += 1

    async def kill_workers(self, rng: random.Random) -> None:
        # The idle ones too: Spark learns of their end when it gives them something to do.
        workers = await asyncio.to_thread(task_workers, self.driver.process.pid)
        self.found["workers"] += kill(rng.sample(workers, rng.randint(1, len(workers)) if workers else 0))

    async def kill_broker(self, rng: random.Random) -> None:
        await asyncio.to_thread(self.broker.kill)
        await asyncio.sleep(rng.uniform(0, 1.5))
        await asyncio.to_thread(self.broker.start)
        self.found["broker"] += 1

    async def finish(self) -> None:
        """End the producers, let the query read all there is, stop it, and balance the books."""
        self.producing.end()
        await self._sending
        driver = self.driver
        async with PullConsumer("checker", namesrv=self.namesrv) as consumer:
            queues = [MessageQueue(topic, BROKER, i) for topic in TOPICS for i in range(QUEUES)]
            ends = {queue: await consumer.max_offset(queue) for queue in queues}
        await driver.until(lambda: progress.committed_offsets(driver.checkpoint) == ends, START_S + BATCH_S, "the end of every queue")
        said = await asyncio.to_thread(driver.stop)
        if self.copies is None:
            self._check_table(ends, int(said.partition("rows=")[2]))
        else:
            await self._check_copies(self.copies)
        self._check_attempts()

    async def _check_copies(self, copies: str) -> None:
        """Every row was written; one that was written again has its id again, so that whoever knows ids takes each once."""
        ids: dict[str, set[str]] = defaultdict(set)
        async with PullConsumer("checker", namesrv=self.namesrv) as consumer:
            for queue in await consumer.queues(copies):
                offset, end = 0, await consumer.max_offset(queue)
                while offset < end:
                    result = await consumer.pull(queue, offset, max_messages=1024, max_bytes=4 << 20)
                    for message in result.messages:
                        identity = message.body.partition(b" ")[0].decode()
                        self.ledger.received(identity, message.body, queue=str(queue), offset=message.queue_offset)
                        ids[identity].add(message.msg_id)
                    offset = result.next_offset
        report = self.ledger.check()
        report.raise_if_bad(duplicates_allowed=True)
        changed = [identity for identity, known in ids.items() if len(known) > 1]
        assert not changed, f"written again with other ids: {changed[:5]} (seed {SEED})"
        assert len({one for known in ids.values() for one in known}) == len(ids), f"an id has two messages (seed {SEED})"
        print(f"{report}; {len(report.duplicates)} written again, with the same ids")

    def _check_table(self, ends: dict[MessageQueue, int], rows: int) -> None:
        offsets: dict[MessageQueue, list[int]] = defaultdict(list)
        for queue, offset, body in progress.committed_rows(self.driver.table):
            identity = body.partition(b" ")[0].decode()
            self.ledger.received(identity, body, queue=f"{queue.topic}/{queue.queue_id}", offset=offset)
            offsets[queue].append(offset)
        report = self.ledger.check()
        report.raise_if_bad()
        for queue, end in ends.items():
            assert sorted(offsets[queue]) == list(range(end)), f"{queue} has other rows than 0 to {end - 1} (seed {SEED})"
        assert rows == report.received, f"Spark finds {rows} rows in its table, there are {report.received} (seed {SEED})"
        print(f"{report}; {progress.committed(self.driver.checkpoint) + 1} micro-batches")

    def _check_attempts(self) -> None:
        """Every attempt of a partition was given the same ranges and read their rows in order, as far as it came; one came to the end."""
        attempts: dict[str, list[tuple[Rows, Rows]]] = defaultdict(list)
        for path in self.driver.attempts.iterdir():
            # What a killed process was about to write ends without a line's end.
            ranges, *batches = path.read_text().split("\n")[:-1] or [""]
            if ranges:
                attempts[path.name.rpartition("-")[0]].append((joined(json.loads(ranges)), joined(map(json.loads, batches))))
        for place, made in attempts.items():
            planned = made[0][0]
            for ranges, rows in made:
                assert ranges == planned, f"partition {place} was planned as {ranges} and as {planned} (seed {SEED})"
                assert is_beginning(rows, planned), f"partition {place} of {planned} read {rows} (seed {SEED})"
            assert planned in [rows for _, rows in made], f"partition {place} was never read to its end (seed {SEED})"
        repeated = [len(made) for made in attempts.values() if len(made) > 1]
        assert repeated, f"no task was ever repeated (seed {SEED})"
        print(f"{len(attempts)} partitions, {len(repeated)} of them read again, by up to {max(repeated)} attempts: all alike")
        print(f"kills: {dict(self.found)}")


# Queue, first offset and end of rows that follow each other.
Rows = list[tuple[tuple[str, str, int], int, int]]


def joined(ranges: Iterable[Sequence[Any]]) -> Rows:
    """Return ranges of rows (topic, broker, queue, first, end) with those made one that go on where the one before ends."""
    rows: Rows = []
    for topic, broker, queue_id, first, end in ranges:
        queue = (topic, broker, queue_id)
        goes_on = rows and rows[-1][0] == queue and rows[-1][2] == first
        rows.append((queue, rows.pop()[1] if goes_on else first, end))
    return rows


def is_beginning(rows: Rows, planned: Rows) -> bool:
    """Return whether ``rows`` are the first ones of ``planned``."""
    if not rows or len(rows) > len(planned):
        return not rows
    queue, first, end = planned[len(rows) - 1]
    return rows[:-1] == planned[: len(rows) - 1] and rows[-1][:2] == (queue, first) and rows[-1][2] <= end


@contextlib.asynccontextmanager
async def running_scene(home: Path, copies: str | None = None) -> AsyncIterator[Scene]:
    """A nameserver here, a broker and a query in processes of their own, the query not started."""
    print(f"SPROCKETMQ_SPARK_FAULT_SEED={SEED}")
    server = NameServer(NameServerConfig(port=0))
    await server.start()
    try:
        with BrokerProcess(home / "store", namesrv=server.address, name=BROKER, **SETTINGS) as broker:
            await asyncio.to_thread(broker.start)
            async with AdminClient(namesrv=server.address) as admin:
                for topic, attributes in {**TOPICS, COPIES: {}}.items():
                    await admin.create_topic(topic, queues=QUEUES, attributes=attributes)
            driver = Driver(home / "query", server.address, copies)
            scene = Scene(driver, broker, server.address, copies)
            try:
                yield scene
            finally:
                scene.producing.end()
                await asyncio.to_thread(driver.close)
                await asyncio.gather(scene._sending, return_exceptions=True)
    finally:
        await server.stop()


@pytest.mark.oldest
async def test_one_kill_of_each_kind_loses_and_repeats_no_row(tmp_path: Path) -> None:
    """The short one of ``make test``; ``make test-long`` has more of them, at more moments."""
    rng = random.Random(f"{SEED} one of each")
    async with running_scene(tmp_path) as scene:
        scene.driver.start()
        await scene.driver.batches(1)
        await scene.kill_workers(rng)
        await scene.driver.batches(1)
        await scene.kill_broker(rng)
        await scene.driver.batches(1)
        await scene.driver.suspend_while_reading()
        await scene.kill_driver()
        scene.driver.start()
        await scene.finish()


@pytest.mark.long
async def test_a_killed_driver_goes_on_without_loss_or_repetition(tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} driver")
    began = time.monotonic()
    async with running_scene(tmp_path) as scene:
        for _ in range(DRIVER_KILLS):
            scene.driver.start()
            await scene.moment(rng)
            await scene.kill_driver()
        scene.driver.start()
        await scene.finish()
    print(f"{DRIVER_KILLS} kills of the driver in {time.monotonic() - began:.0f} s")


@pytest.mark.long
async def test_killed_workers_and_brokers_cost_a_retry_and_nothing_else(tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} workers and brokers")
    began = time.monotonic()
    kinds = ["workers"] * WORKER_KILLS + ["broker"] * BROKER_KILLS
    rng.shuffle(kinds)
    async with running_scene(tmp_path) as scene:
        scene.driver.start()
        await scene.driver.batches(1)
        for kind in kinds:
            await scene.moment(rng)
            await (scene.kill_workers(rng) if kind == "workers" else scene.kill_broker(rng))
        await scene.driver.batches(2)
        await scene.finish()  # the process that was started at first: nothing ended the query
    print(f"{len(kinds)} kills of workers and brokers in {time.monotonic() - began:.0f} s")


@pytest.mark.long
async def test_a_killed_copy_from_topic_to_topic_repeats_ids_and_loses_nothing(tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} copies")
    async with running_scene(tmp_path, COPIES) as scene:
        scene.driver.start()
        for number in range(COPYING_KILLS):
            await scene.moment(rng)
            if number % 2:
                await scene.kill_workers(rng) if number % 4 == 1 else await scene.kill_broker(rng)
            else:
                await scene.kill_driver()
                scene.driver.start()
        await scene.driver.batches(2)
        await scene.finish()
