"""A mixed load on one cluster, for as long as it is told: everything that clients do, at a moderate rate, in a process of its own.

``python -m tests.soak.load NAMESRV METRICS_PORT SECONDS PERIOD_S SEED``. Steady senders and members of groups go on all the time. Every
PERIOD_S one of the ``CHORES`` comes: members are replaced, topics and groups made and deleted, messages looked up, strangers connect.
At the end every message must have been handled by every group that reads it; a line of JSON says what there was.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack

from benchmarks.load.popping import BATCH_ACK, acknowledged, pop

from sprocketmq import (
    AdminClient,
    Message,
    Producer,
    PushConsumer,
    ReceivedBatch,
    ReceivedMessage,
    TransactionOutcome,
    TransactionProducer,
    sync,
)
from sprocketmq.errors import (
    NameserverUnavailable,
    NoBroker,
    NoMaster,
    NotARequest,
    SprocketError,
    TopicNotFound,
    TransactionNotBegun,
)
from sprocketmq.net.address import parse_address
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.records import decode_records
from sprocketmq.testing import eventually

PLAIN, LISTS, LATE, QUESTIONS, POPPED = "plain", "lists", "late", "questions", "popped"
TOPICS: dict[str, dict[str, str]] = {PLAIN: {}, LISTS: {"queue.type": "BatchCQ"}, LATE: {}, QUESTIONS: {}, POPPED: {}}
QUEUES = 4
# Which groups have to handle every message of a topic.
READERS = {PLAIN: ("readers", "ordered"), LISTS: ("readers",), LATE: ("readers",), POPPED: ("poppers",)}
BROKER = "broker-a"
# Messages that are recalled or rolled back, and those that were sent without an answer.
UNCOUNTED = (b"taken_back-", b"told-")
# What a new client meets while the nameserver is restarted, or has not heard of the broker again.
AWAY = (NameserverUnavailable, NoBroker, NoMaster, TopicNotFound)
TIMEOUT_S = 30.0
DRAIN_S = 180.0
SCRAPE_S = 5.0


class Account:
    """What was stored, and which group still has to handle it: memory for what is under way, however long the load goes on."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        groups = {group for readers in READERS.values() for group in readers}
        self._missing: dict[str, set[bytes]] = {group: set() for group in groups}
        # Handled before the answer to their send came, or handled again: which of both shows after a while. With the time.
        self._early: dict[str, dict[bytes, float]] = {group: {} for group in groups}
        self._numbers: Counter[str] = Counter()

    def body(self, sender: str) -> bytes:
        """Return the body of a sender's next message: its name, its number, and some more."""
        self._numbers[sender] += 1
        return b"%s-%d %s" % (sender.encode(), self._numbers[sender], bytes(random.randrange(2048)))

    def stored(self, topic: str, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            self.counts["stored"] += 1
            identity = body.split(b" ", 1)[0]
            for group in READERS[topic]:
                if self._early[group].pop(identity, None) is None:
                    self._missing[group].add(identity)

    def handled(self, group: str, messages: Iterable[ReceivedMessage]) -> None:
        missing = self._missing[group]
        for message in messages:
            self.counts[f"handled by {group}"] += 1
            identity = bytes(message.body).split(b" ", 1)[0]
            if identity in missing:
                missing.remove(identity)
            elif not identity.startswith(UNCOUNTED):
                self._early[group][identity] = time.monotonic()

    def forget_repeated(self) -> None:
        """Forget what was handled so long ago that the answer to its send must have come: it was handled twice."""
        before = time.monotonic() - 2 * TIMEOUT_S
        for early in self._early.values():
            for identity in [identity for identity, at in early.items() if at < before]:
                del early[identity]
                self.counts["repeated"] += 1

    @property
    def left(self) -> list[str]:
        """What groups have not handled yet."""
        return [f"{group}: {identity.decode()}" for group, missing in self._missing.items() for identity in missing]


class Soak:
    """The clients of one load."""

    def __init__(self, namesrv: str, metrics_port: int, seed: int) -> None:
        self.namesrv = namesrv
        self.metrics_port = metrics_port
        self.choose = random.Random(seed)
        self.account = Account()
        self.stopping = asyncio.Event()
        self.passing = 0
        self.open = AsyncExitStack()
        self.readers: list[PushConsumer] = []
        self.ordered: list[PushConsumer] = []
        self.last_id = ""

    # --- life ---

    async def run(self, seconds: float, period_s: float) -> dict[str, object]:
        async with self.open:
            self.admin = await self.open.enter_async_context(AdminClient(namesrv=self.namesrv, timeout_s=TIMEOUT_S))
            self.master = (await self.admin.cluster()).broker_addr_table[BROKER].broker_addrs[0]
            for topic, attributes in TOPICS.items():
                await self.admin.create_topic(topic, queues=QUEUES, attributes=attributes)
            self.gathering = await self.open.enter_async_context(
                Producer("soak-auto", namesrv=self.namesrv, timeout_s=TIMEOUT_S, auto_batch=True)
            )
            self.single = await self.open.enter_async_context(Producer("soak-single", namesrv=self.namesrv, timeout_s=TIMEOUT_S))
            self.paying = await self.open.enter_async_context(
                TransactionProducer("soak-payments", self.check, namesrv=self.namesrv, timeout_s=TIMEOUT_S)
            )
            self.open.push_async_callback(self.close_members)
            for _ in range(2):
                await self.join_readers()
            await self.join_ordered()
            answering = PushConsumer("answering", QUESTIONS, namesrv=self.namesrv, consume_from="first")
            await self.open.enter_async_context(answering)
            answering.listen(self.answer)
            await self.work(seconds, period_s)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        return {"counts": self.account.counts, "failures": self.account.failures, "tasks": [repr(task) for task in tasks]}

    async def close_members(self) -> None:
        for member in (*self.readers, *self.ordered):
            await member.close()

    async def work(self, seconds: float, period_s: float) -> None:
        """Send, pop and do chores until the time is up, then wait until every group has handled everything. Raises what any of them does."""
        paces = (
            (0.1, self.send_gathered),
            (0.05, self.send_single),
            (0.5, self.send_batch),
            (0.5, self.send_oneway),
            (0.2, self.send_delayed),
            (0.5, self.send_timed),
            (0.5, self.send_transaction),
            (0.2, self.send_popped),
            (1.0, self.ask),
            (SCRAPE_S, self.scrape),
            (period_s, self.chore),
        )
        async with asyncio.TaskGroup() as tasks:
            popping = tasks.create_task(self.pop_until_cancelled())
            steady = [tasks.create_task(self.until_stopped(pause_s, work)) for pause_s, work in paces]
            await asyncio.sleep(seconds)
            self.stopping.set()
            await asyncio.wait(steady)
            await eventually(lambda: not self.account.left, timeout_s=DRAIN_S)
            popping.cancel()

    async def until_stopped(self, pause_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while not self.stopping.is_set():
            try:
                await work()
            except SprocketError as e:
                self.account.failures.append(f"{work.__name__}: {e!r}")
            await asyncio.sleep(pause_s)

    # --- senders ---

    async def send_gathered(self) -> None:
        messages = [Message(topic, self.account.body("gathered"), tag="auto") for topic in (LISTS, PLAIN) for _ in range(30)]
        results = await asyncio.gather(*map(self.gathering.send, messages), return_exceptions=True)
        for message, result in zip(messages, results, strict=True):
            if isinstance(result, BaseException):
                self.account.failures.append(f"send_gathered: {result!r}")
            else:
                self.account.stored(message.topic, [message.body])

    async def send_single(self) -> None:
        key = f"key-{self.choose.randrange(1000)}"
        message = Message(PLAIN, self.account.body("single"), tag="one", keys=[key], properties={"colour": "red"}, ordering_key=key)
        self.last_id = (await self.single.send(message)).msg_id
        self.account.stored(PLAIN, [message.body])

    async def send_batch(self) -> None:
        for topic in (PLAIN, LISTS):
            messages = [Message(topic, self.account.body("batch")) for _ in range(20)]
            await self.single.send_batch(messages)
            self.account.stored(topic, [message.body for message in messages])

    async def send_oneway(self) -> None:
        await self.single.send_oneway(Message(PLAIN, self.account.body("told")))

    async def send_delayed(self) -> None:
        message = Message(LATE, self.account.body("delayed"), delay_level=self.choose.randint(1, 3))
        await self.single.send(message)
        self.account.stored(LATE, [message.body])

    async def send_timed(self) -> None:
        def later(sender: str, after_s: int) -> Message:
            return Message(LATE, self.account.body(sender), deliver_at_ms=int((time.time() + after_s) * 1000))

        # A recall must come in time, however long a send takes while the slave is away.
        kept, recalled = later("timed", self.choose.randint(2, 5)), later("taken_back", int(2 * TIMEOUT_S))
        await self.single.send(kept)
        self.account.stored(LATE, [kept.body])
        await self.single.recall((await self.single.send(recalled)).recall_handle)

    async def send_popped(self) -> None:
        message = Message(POPPED, self.account.body("popped"))
        await self.single.send(message)
        self.account.stored(POPPED, [message.body])

    async def send_transaction(self) -> None:
        outcome = self.choose.choice(("commit", "roll back", "ask"))
        message = Message(PLAIN, self.account.body("paid" if outcome != "roll back" else "taken_back"), properties={"outcome": outcome})
        try:
            transaction = await self.paying.begin(message)
        except TransactionNotBegun:  # the slave is away: it is rolled back
            self.account.counts["not begun"] += 1
            return
        if outcome == "commit":
            await transaction.commit(timeout_s=TIMEOUT_S)
        elif outcome == "roll back":
            await transaction.rollback(timeout_s=TIMEOUT_S)
        else:
            transaction.defer()
        if outcome != "roll back":
            self.account.stored(PLAIN, [message.body])

    def check(self, message: ReceivedMessage) -> TransactionOutcome:
        self.account.counts["checked"] += 1
        return TransactionOutcome.COMMIT if message.properties["outcome"] != "roll back" else TransactionOutcome.ROLLBACK

    async def ask(self) -> None:
        reply = await self.single.request(Message(QUESTIONS, b"how many?"), timeout_s=TIMEOUT_S)
        assert reply.body == b"17"
        self.account.counts["replies"] += 1

    async def answer(self, batch: ReceivedBatch) -> None:
        for request in batch:
            try:
                await self.single.reply(request, b"17")
            except NotARequest:
                continue

    # --- groups ---

    async def join_readers(self) -> None:
        def handle(batch: ReceivedBatch) -> None:
            good = []
            for message in batch:
                if self.choose.random() < 0.0005 and not message.reconsume_times:
                    batch.retry(message)
                    self.account.counts["refused"] += 1
                else:
                    good.append(message)
            self.account.handled("readers", good)

        member = PushConsumer("readers", [PLAIN, LISTS, LATE], namesrv=self.namesrv, consume_from="first")
        await member.start()
        member.listen(handle)
        self.readers.append(member)

    async def join_ordered(self) -> None:
        member = PushConsumer("ordered", PLAIN, namesrv=self.namesrv, consume_from="first", orderly=True)
        await member.start()
        member.listen(lambda batch: self.account.handled("ordered", batch))
        self.ordered.append(member)

    async def pop_until_cancelled(self) -> None:
        """Pop and acknowledge; what is not acknowledged comes again."""
        pool = ConnectionPool(expected="broker")
        try:
            while True:
                conn = await pool.get(self.master)
                answer = await pop(conn, "poppers", POPPED, invisible_ms=5000)
                if answer is None or self.choose.random() < 0.02:
                    continue
                messages = decode_records(answer.body)
                body = acknowledged("poppers", POPPED, BROKER, answer.ext)
                assert (await conn.ask(BATCH_ACK, ext={}, body=body, timeout_s=TIMEOUT_S)).code == ResponseCode.SUCCESS
                self.account.handled("poppers", messages)
        finally:
            await pool.close()

    # --- chores ---

    async def scrape(self) -> None:
        def page() -> bytes:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60) as answer:
                return answer.read()

        assert b"rocketmq_" in await asyncio.to_thread(page)

    async def chore(self) -> None:
        self.account.forget_repeated()
        gc.collect()  # closed clients are cycles of few objects, and Python collects rarely where little else is made
        work = CHORES[self.account.counts["chores"] % len(CHORES)]
        self.account.counts["chores"] += 1
        try:
            await work(self)
        except AWAY:  # new clients have no routes yet; those of the senders and members stay
            self.account.counts["put off"] += 1

    async def replace_reader(self) -> None:
        await self.join_readers()
        await self.readers.pop(0).close()

    async def replace_ordered(self) -> None:
        await self.join_ordered()
        await self.ordered.pop(0).close()

    async def use_a_topic_once(self) -> None:
        """Create a topic and a group, send, read, and delete both."""
        self.passing += 1
        topic, group = f"passing-{self.passing}", f"passing-group-{self.passing}"
        await self.admin.create_topic(topic, queues=8, attributes=self.choose.choice(list(TOPICS.values())))
        async with Producer("soak-passing", namesrv=self.namesrv, timeout_s=TIMEOUT_S, auto_batch=True, trace=True) as producer:
            await asyncio.gather(*(producer.send(Message(topic, b"%d" % number, keys=["passing"])) for number in range(200)))
        seen: set[bytes] = set()
        async with PushConsumer(group, topic, namesrv=self.namesrv, consume_from="first", trace=True) as consumer:
            consumer.listen(lambda batch: seen.update(bytes(message.body) for message in batch))
            await eventually(lambda: len(seen) == 200, timeout_s=DRAIN_S)
        await self.admin.reset_offsets(group, topic, "first")
        await self.admin.delete_topic(topic)
        await self.admin.delete_group(group)

    async def use_threads(self) -> None:
        """Send and read from another thread."""

        def work() -> None:
            with sync.Producer("soak-sync", namesrv=self.namesrv, timeout_s=TIMEOUT_S) as producer:
                messages = [Message(LISTS, self.account.body("sync")) for _ in range(50)]
                producer.send_batch(messages)
            loop.call_soon_threadsafe(self.account.stored, LISTS, [message.body for message in messages])
            with sync.PullConsumer("soak-pull", namesrv=self.namesrv, consume_from="first") as consumer:
                consumer.subscribe(LATE)
                consumer.poll(timeout_s=5)

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(work)

    async def listen_to_all(self) -> None:
        """Have a member that consumes every message come and go."""
        with tempfile.TemporaryDirectory() as directory:
            seen = asyncio.Event()
            everything = PushConsumer("soak-all", PLAIN, namesrv=self.namesrv, mode="broadcasting", offsets_dir=directory)
            async with everything:
                everything.listen(lambda _: seen.set())
                await asyncio.wait_for(seen.wait(), DRAIN_S)

    async def look_around(self) -> None:
        """Ask what administrators ask."""
        found = await self.admin.query_by_key(PLAIN, f"key-{self.choose.randrange(1000)}")
        assert all(message.topic == PLAIN for message in found)
        assert await self.admin.view_message(PLAIN, self.last_id) is not None
        await self.admin.progress("readers")
        await self.admin.topic_stats(LISTS)
        for member in (await self.admin.consumers("readers")).connection_set:
            await self.admin.running_info("readers", member.client_id)
        await self.admin.reset_targets(PLAIN, time.time() - 30)
        await self.admin.brokers()

    async def be_strangers(self) -> None:
        """Connect without saying anything, in half, and nonsense."""
        for address in (self.master, self.namesrv):
            writers = [(await asyncio.open_connection(*parse_address(address)))[1] for _ in range(30)]
            for number, writer in enumerate(writers):
                if number % 3:
                    writer.write(b"\0\0\0\x40\0\0\0\x20{" if number % 3 == 1 else random.randbytes(200))
            for writer in writers:
                writer.close()


CHORES = (
    Soak.replace_reader,
    Soak.use_a_topic_once,
    Soak.replace_ordered,
    Soak.look_around,
    Soak.use_threads,
    Soak.be_strangers,
    Soak.replace_reader,
    Soak.listen_to_all,
)


def main() -> None:
    namesrv, metrics_port, seconds, period_s, seed = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING)
    soak = Soak(namesrv, int(metrics_port), int(seed))
    print(json.dumps(asyncio.run(soak.run(float(seconds), float(period_s)))), flush=True)


if __name__ == "__main__":
    main()
