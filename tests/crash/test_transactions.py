"""kill -9 of the real broker at every step of transactions: committed ones are delivered once, rolled-back ones never, others are asked about.

``SPROCKETMQ_CRASH_TRANSACTIONS`` sets how many there are (200 by default), ``SPROCKETMQ_CRASH_SEED`` repeats the choices of a run.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sprocketmq import AdminClient, Message, PullConsumer, Transaction, TransactionOutcome, TransactionProducer
from sprocketmq.errors import SprocketError
from sprocketmq.protocol.names import HALF_TOPIC, TRANSACTION_GROUP
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.testing.serving import ServeProcess

COUNT = int(os.environ.get("SPROCKETMQ_CRASH_TRANSACTIONS", "200"))
SEED = os.environ.get("SPROCKETMQ_CRASH_SEED") or str(random.randrange(1 << 32))
# Of one life of the broker; one of them kills it.
AT_ONCE = 20
PATIENCE_S = 240.0
STEPS = (
    "while the half message is sent",
    "before the outcome is told",
    "while the outcome is told",
    "after the answer",
    "while it is asked",
)
SETTINGS = {
    "commitlog_segment_bytes": 1 << 20,
    "flush_interval_s": 0.02,
    "save_offsets_interval_s": 0.1,
    "transaction_timeout_s": 0.3,
    "transaction_check_interval_s": 0.3,
    "transaction_check_max": 10_000,
}


class Program:
    """A program whose database says how each of its transactions ends, whatever becomes of the broker."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.database: dict[bytes, TransactionOutcome] = {}
        self.begun = 0
        self.asked = 0
        self.kill: Callable[[], None] = lambda: None
        self.dies_at = ""

    def reached(self, step: str) -> None:
        if step == self.dies_at:
            self.dies_at = ""
            self.kill()

    async def check(self, message: ReceivedMessage) -> TransactionOutcome:
        self.asked += 1
        self.reached("while it is asked")
        return self.database.get(message.body, TransactionOutcome.UNKNOWN)

    async def transaction(self, producer: TransactionProducer) -> None:
        self.begun += 1
        body = b"transaction %d" % self.begun
        outcome = self.rng.choice((TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK))
        defers = self.rng.random() < 0.2
        half = asyncio.create_task(producer.begin(Message("orders", body)))
        await asyncio.sleep(0)
        self.reached("while the half message is sent")
        try:
            transaction = await half
        except SprocketError:
            self.database[body] = TransactionOutcome.ROLLBACK  # the program's own work was not done
            return
        self.reached("before the outcome is told")
        self.database[body] = outcome
        if not defers:
            await self.tell(transaction, outcome)
            self.reached("after the answer")

    async def tell(self, transaction: Transaction, outcome: TransactionOutcome) -> None:
        telling = asyncio.create_task(transaction.commit() if outcome is TransactionOutcome.COMMIT else transaction.rollback())
        telling.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.sleep(0)
        self.reached("while the outcome is told")
        with contextlib.suppress(SprocketError):  # a broker that has not heard of it asks
            await telling

    async def life(self, namesrv: str, kill: Callable[[], None], step: str) -> None:
        """Begin transactions until the broker is killed at a step of one of them."""
        dead = asyncio.Event()

        def die() -> None:
            kill()
            dead.set()

        self.kill = die
        async with TransactionProducer("program", self.check, namesrv=namesrv, retries=0, timeout_s=5) as producer:
            first = self.rng.randrange(AT_ONCE)
            work = []
            for number in range(AT_ONCE):
                if number == first:
                    self.dies_at = step
                work.append(asyncio.create_task(self.transaction(producer)))
            if step == "while it is asked":
                with contextlib.suppress(SprocketError):  # another one is asked about meanwhile
                    await producer.begin(Message("orders", b"asked about"))
            async with asyncio.timeout(PATIENCE_S):
                await dead.wait()
            for task in work:
                task.cancel()
            for outcome in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome


async def prepare(namesrv: str) -> None:
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic("orders", queues=2)


async def settle(namesrv: str, program: Program) -> list[bytes]:
    """Have the broker ask about everything that is open, and return what consumers can read."""
    program.dies_at = ""
    # What was cancelled between two steps has no entry: its work was not done.
    for number in range(1, program.begun + 1):
        program.database.setdefault(b"transaction %d" % number, TransactionOutcome.ROLLBACK)
    program.database[b"asked about"] = TransactionOutcome.ROLLBACK
    async with (
        TransactionProducer("program", program.check, namesrv=namesrv, timeout_s=60) as producer,
        AdminClient(namesrv=namesrv) as admin,
        PullConsumer("reader", namesrv=namesrv) as reader,
    ):
        async with producer.transaction(Message("orders", b"the last one")):
            pass
        async with asyncio.timeout(PATIENCE_S):
            while True:
                progress = await admin.progress(TRANSACTION_GROUP, HALF_TOPIC)
                if progress.queues and not sum(queue.lag for queue in progress.queues):
                    break
        found = []
        for queue in await reader.queues("orders"):
            offset, end = 0, await reader.max_offset(queue)
            while offset < end:
                result = await reader.pull(queue, offset)
                found += [message.body for message in result.messages]
                offset = result.next_offset
        return found


@pytest.mark.timeout(0 if COUNT > 1000 else 900)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_transactions_survive_kill_9_at_every_step(tmp_path: Path, flush: str) -> None:
    print(f"SPROCKETMQ_CRASH_SEED={SEED}")
    program = Program(f"{SEED} {flush}")
    lives = 0
    with ServeProcess(tmp_path / "store", flush_disk_type=flush, **SETTINGS) as server:
        asyncio.run(prepare(server.start()))
        while program.begun < COUNT / 2:
            asyncio.run(program.life(server.start(), server.kill, STEPS[lives % len(STEPS)]))
            lives += 1
        found = asyncio.run(settle(server.start(), program))
        server.stop()
    expected = [body for body, outcome in program.database.items() if outcome is TransactionOutcome.COMMIT]
    wrong = {body: times for body, times in Counter(found).items() if times > 1}
    assert not wrong, f"delivered more than once (seed {SEED})"
    assert sorted(found) == sorted([*expected, b"the last one"]), f"seed {SEED}"
    assert program.asked
    print(f"{program.begun} transactions, {lives} kills with {flush}: {len(expected)} committed, asked {program.asked} times")
