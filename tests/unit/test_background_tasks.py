"""Every task that lives as long as a client, broker or nameserver: it fails, or is cancelled by a stranger, and goes on.

The tasks are found by looking, so that a new one is tested too; and ``test_tasks_are_made_in_one_place`` keeps it from being made elsewhere.
"""

import ast
import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from weakref import WeakSet

import pytest

import sprocketmq
from sprocketmq import Message, Producer, PullConsumer, PushConsumer
from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.net.tasks import Background, Kept
from sprocketmq.storage.config import StoreConfig
from sprocketmq.testing import eventually as eventually_soon

# A machine may be busy with much else: nothing here measures how fast it is.
PATIENCE_S = 30.0
eventually = partial(eventually_soon, timeout_s=PATIENCE_S)

pytestmark = pytest.mark.timeout(180)

SOURCE = Path(sprocketmq.__file__).parent

# Where tasks and threads' work may be made otherwise than by a Background, and why.
BARE = {
    "net/tasks.py": "the supervisor itself",
    "client/consume/handlers.py": "the task of listen() is its caller's, who cancels and awaits it; it looks after its workers itself",
    "cli/bench.py": "a command, which awaits its tasks and ends with them",
    "cli/consume.py": "a command, which awaits its tasks and ends with them",
    "cli/produce.py": "a command, which awaits its tasks and ends with them",
    "cli/serving.py": "a command, which awaits its tasks and ends with them",
    "cli/serving_many.py": "a command, which awaits its tasks and ends with them",
    "omb/processes.py": "what follows a process ends with it, and is awaited when it is stopped",
    "omb/worker.py": "a process of its own, which awaits its tasks and ends with them",
    "testing/proxy.py": "task groups, which end together",
    "testing/rig/network.py": "processes of a simulation, whose scenario awaits their tasks",
}


def bare_tasks(file: Path) -> list[str]:
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    return [f"{file}:{call.lineno}" for call in calls if getattr(call.func, "attr", "") in ("create_task", "ensure_future")]


def test_tasks_are_made_in_one_place():
    made = {str(file.relative_to(SOURCE)): found for file in SOURCE.rglob("*.py") if (found := bare_tasks(file))}
    strangers = [place for file, found in made.items() if file not in BARE for place in found]
    assert strangers == [], "use net.tasks.Background: a bare task that fails or is cancelled ends without a word"
    assert set(made) == set(BARE), "these make no tasks any more"


def test_who_waits_for_a_shared_task_uses_share():
    shields = [str(file) for file in SOURCE.rglob("*.py") if "asyncio.shield" in file.read_text()]
    assert shields == [], "use net.tasks.share: a shield passes on the cancellation of what it shields"


# --- the tasks themselves ---


@asynccontextmanager
async def servers(root: Path) -> AsyncIterator[tuple[NameServer, Broker]]:
    namesrv = NameServer(NameServerConfig(port=0))
    await namesrv.start()
    store = StoreConfig(root=root, commitlog_segment_bytes=1 << 20, preallocate=False)
    broker = Broker(BrokerConfig(store=store, port=0, namesrv=(namesrv.address,), default_topic_queues=2))
    await broker.start()
    try:
        yield namesrv, broker
    finally:
        await broker.stop()
        await namesrv.stop()


async def polled(namesrv: str, stack: AsyncExitStack) -> None:
    consumer = await stack.enter_async_context(PullConsumer("poll", namesrv=namesrv, consume_from="first"))
    await consumer.subscribe("t")
    await eventually(lambda: len(consumer.assignment) == 2)


async def pushed(namesrv: str, stack: AsyncExitStack, group: str, **options) -> None:
    consumer = await stack.enter_async_context(PushConsumer(group, "t", namesrv=namesrv, consume_from="first", **options))
    handled: set[bytes] = set()
    consumer.listen(lambda batch: handled.update(message.body for message in batch))
    await eventually(lambda: len(consumer.assignment) == 2 and handled)


CLIENTS = {
    "producer": lambda namesrv, stack, _: stack.enter_async_context(Producer("pg", namesrv=namesrv, timeout_s=PATIENCE_S)),
    "pull consumer": lambda namesrv, stack, _: polled(namesrv, stack),
    "push consumer": lambda namesrv, stack, _: pushed(namesrv, stack, "plain"),
    "orderly": lambda namesrv, stack, _: pushed(namesrv, stack, "orderly", orderly=True),
    "broadcasting": lambda namesrv, stack, root: pushed(namesrv, stack, "all", mode="broadcasting", offsets_dir=root / "offsets"),
}
EXPECTED = {
    "servers": {
        "registration",
        "offset saves",
        "rates",
        "silent clients",
        "settling",
        "unmapping",
        "the journal of pops",
        "scan for silent brokers",
        "sweep of idle connections",
    },
    "producer": {"route refresh", "heartbeats"},
    "pull consumer": {"route refresh", "heartbeats", "commits", "balance", "watch over pull loops", "pull loop"},
    "push consumer": {
        "route refresh",
        "heartbeats",
        "commits",
        "balance",
        "watch over pull loops",
        "pull loop",
        "watch over slow handlers",
    },
    "orderly": {"route refresh", "heartbeats", "commits", "balance", "watch over pull loops", "pull loop", "queue locks"},
    "broadcasting": {"route refresh", "heartbeats", "commits", "balance", "watch over pull loops", "pull loop", "watch over slow handlers"},
}


MADE: WeakSet[Background] = WeakSet()


@pytest.fixture(autouse=True)
def _note_what_is_made(monkeypatch):
    make = Background.__init__

    def noted(self, owner):
        make(self, owner)
        MADE.add(self)

    monkeypatch.setattr(Background, "__init__", noted)


def kept_tasks() -> set[Kept]:
    return {kept for made in MADE if not made.closed for kept in made.kept}


async def until_it_waits(kept: Kept) -> asyncio.Future:
    def waits() -> bool:
        if not kept.alive or kept.task.done():
            return False
        waits_for = getattr(kept.task, "_fut_waiter", None)
        return waits_for is not None and not waits_for.done()  # done: the task is about to run

    await eventually(waits)
    return kept.task._fut_waiter


FAULT = "a fault in the program"


async def assert_it_goes_on(kept: Kept, hit: asyncio.Task, caplog, *, may_handle: bool = False) -> None:
    """Wait until another task has replaced ``hit``. With ``may_handle`` it may also have reported the fault as an error and live on."""

    def goes_on() -> bool:
        if kept.task.done():
            return False
        return kept.task is not hit or (may_handle and any(FAULT in line for line in errors(caplog)))

    await eventually(goes_on, what=f"{kept.name} running again")
    said = errors(caplog)
    assert kept.task is hit or [line for line in said if kept.name in line and "runs again" in line], said
    caplog.clear()


def errors(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


async def hit_everything(kept_before: set[Kept], caplog) -> set[str]:
    """Fail and cancel every task that was begun since, and return their names."""
    found = {kept for kept in kept_tasks() - kept_before if kept.alive}
    for kept in found:
        waits_for = await until_it_waits(kept)
        hit = kept.task
        waits_for.set_exception(ValueError(FAULT))
        await assert_it_goes_on(kept, hit, caplog, may_handle=True)  # balancing reports what is wrong with one topic and goes on
        await until_it_waits(kept)
        hit = kept.task
        hit.cancel()
        await assert_it_goes_on(kept, hit, caplog)
    return {kept.name.partition(" of T")[0].partition(" of t")[0].partition(" of MessageQueue")[0].partition(" of %")[0] for kept in found}


async def test_the_tasks_of_a_broker_and_a_nameserver_go_on(tmp_path, caplog):
    async with servers(tmp_path) as (namesrv, broker):
        assert await hit_everything(set(), caplog) == EXPECTED["servers"]
        async with Producer("pg", namesrv=namesrv.address, timeout_s=PATIENCE_S) as producer:
            await producer.send(Message("t", b"x"))
        assert broker.failure is None


@pytest.mark.parametrize("client", CLIENTS)
async def test_the_tasks_of_a_client_go_on(client, tmp_path, caplog):
    async with (
        servers(tmp_path / "store") as (namesrv, _),
        Producer("pg", namesrv=namesrv.address, timeout_s=PATIENCE_S) as producer,
        AsyncExitStack() as stack,
    ):
        for i in range(4):
            await producer.send(Message("t", b"%d" % i))
        before = kept_tasks()
        await CLIENTS[client](namesrv.address, stack, tmp_path)
        assert await hit_everything(before, caplog) == EXPECTED[client]


async def test_no_task_runs_that_nobody_looks_after(tmp_path):
    async with servers(tmp_path / "store") as (namesrv, _), AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer("pg", namesrv=namesrv.address, timeout_s=PATIENCE_S))
        await producer.send(Message("t", b"x"))
        await polled(namesrv.address, stack)

        async def all_are_kept() -> bool:
            tasks = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
            return tasks == {kept.task for kept in kept_tasks()}

        await eventually(all_are_kept)


async def test_a_message_is_handled_after_everything_of_its_consumer_has_failed(tmp_path, caplog):
    async with servers(tmp_path / "store") as (namesrv, _), Producer("pg", namesrv=namesrv.address, timeout_s=PATIENCE_S) as producer:
        await producer.send(Message("t", b"first"))
        before = kept_tasks()
        async with PushConsumer("cg", "t", namesrv=namesrv.address, consume_from="first") as consumer:
            handled: list[bytes] = []
            consumer.listen(lambda batch: handled.extend(message.body for message in batch))
            await eventually(lambda: handled == [b"first"])
            await hit_everything(before, caplog)
            await producer.send(Message("t", b"second"))
            await eventually(lambda: b"second" in handled)
