"""Every task that lives as long as a client, broker, nameserver, dashboard, endpoint or follower: it fails, or is cancelled by a stranger, and goes on.

The tasks are found by looking, so that a new one is tested too; and ``test_tasks_are_made_in_one_place`` keeps it from being made elsewhere.
"""

import ast
import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from weakref import WeakSet

import pytest
from tests.certificates import Pair

import sprocketmq
from sprocketmq import Message, Producer, PullConsumer, PushConsumer, arrow
from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.broker.replication.follower import FollowerState
from sprocketmq.broker.replication.roles import Role
from sprocketmq.client.credentials import NO_SECURITY
from sprocketmq.errors import ClientClosed
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.net.server_tls import ServerTls
from sprocketmq.net.tasks import Background, Kept
from sprocketmq.net.tls import TlsConfig
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.proxy.server import EndpointServer
from sprocketmq.proxy.users import Users
from sprocketmq.security.config import SecurityConfig
from sprocketmq.security.tables import AccessTables
from sprocketmq.security.user_file import create_users_file
from sprocketmq.security.users import User, UserType
from sprocketmq.storage.config import StoreConfig
from sprocketmq.testing import eventually as eventually_soon
from sprocketmq.web.server import DashboardServer
from sprocketmq.web.target import ClusterTarget

# A machine may be busy with much else: nothing here measures how fast it is.
PATIENCE_S = 30.0
eventually = partial(eventually_soon, timeout_s=PATIENCE_S)

pytestmark = pytest.mark.timeout(180)

INNER = Credentials("inner", "the secret that brokers share")
ADMIN = Credentials("admin", "the secret of the admin here")

SOURCE = Path(sprocketmq.__file__).parent

# Where tasks and threads' work may be made otherwise than by a Background, and why.
BARE = {
    "net/tasks.py": "the supervisor itself",
    "net/loops.py": "the task of a future, which the thread that asked for it awaits or cancels",
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
    names = {call: getattr(call.func, "attr", "") or getattr(call.func, "id", "") for call in calls}
    return [f"{file}:{call.lineno}" for call, name in names.items() if name in ("create_task", "ensure_future", "begin_soon")]


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
async def nameserver(**settings) -> AsyncIterator[NameServer]:
    namesrv = NameServer(NameServerConfig(port=0, **settings))
    await namesrv.start()
    try:
        yield namesrv
    finally:
        await namesrv.stop()


@asynccontextmanager
async def a_broker(root: Path, namesrv: NameServer, **settings) -> AsyncIterator[Broker]:
    store = StoreConfig(root=root, commitlog_segment_bytes=1 << 20, preallocate=False)
    broker = Broker(BrokerConfig(store=store, port=0, namesrv=(namesrv.address,), default_topic_queues=2, **settings))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def servers(root: Path) -> AsyncIterator[tuple[NameServer, Broker]]:
    async with nameserver() as namesrv, a_broker(root, namesrv) as broker:
        yield namesrv, broker


@asynccontextmanager
async def pair(root: Path, tls_client: TlsConfig | None = None, **settings) -> AsyncIterator[tuple[NameServer, Broker, Broker]]:
    """Run a nameserver, a master and a slave with metrics; ``settings`` are those of all three."""
    async with AsyncExitStack() as stack:
        namesrv = await stack.enter_async_context(nameserver(**settings))
        mine = {"metrics_exporter": "prom", "metrics_port": 0, "tls_client": tls_client, **settings}
        master = await stack.enter_async_context(a_broker(root / "master", namesrv, ha_port=0, **mine))
        slave = await stack.enter_async_context(a_broker(root / "slave", namesrv, role=Role.SLAVE, broker_id=1, **mine))
        await eventually(lambda: follows(slave))
        yield namesrv, master, slave


def follows(slave: Broker) -> bool:
    follower = slave.replication.follower
    return follower is not None and follower.state is FollowerState.FOLLOWING and slave.replication.metadata.synced > 0


def secured(root: Path, certificate: Pair) -> dict[str, object]:
    """Return settings of servers that have users and talk over TLS only."""
    root.mkdir(exist_ok=True)
    create_users_file(root / "users.json", AccessTables().create_user(User("admin", (ADMIN.secret_key,), UserType.SUPER)))
    return {
        "security": SecurityConfig(users_file=root / "users.json", inner_credentials=INNER),
        "tls": ServerTls("enforcing", certificate.cert_file, certificate.key_file),
    }


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
        "blocks of the log in memory",
        "the journal of pops",
        "scan for silent brokers",
        "sweep of idle connections",
    },
    "pair": {
        "heartbeats to slaves",
        "following the master",
        "reports to the master",
        "metadata of the master",
        "watch over replication",
        "search for the master",
        "probes of the loop",
    },
    "secured": {"reload of users", "check of the TLS files"},
    "dashboard": {"samples", "route refresh", "heartbeats"},
    "endpoint": {
        "renewal of invisible times",
        "a look after the connections",
        "clients that are gone",
        "check of the TLS files",
        "heartbeats",
        "route refresh",
    },
    "follower": {"new queues", "route refresh", "heartbeats"},
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


FAULT = "a fault in the program"


async def fail(kept: Kept) -> asyncio.Task:
    """Let what a task waits for fail, once it waits."""
    waits_for = await until_it_waits(kept)
    waits_for.set_exception(ValueError(FAULT))
    return kept.task


async def cancel(kept: Kept) -> asyncio.Task:
    """Cancel a task, once it waits."""
    await until_it_waits(kept)
    kept.task.cancel()
    return kept.task


async def until_it_waits(kept: Kept) -> asyncio.Future:
    def waits() -> bool:
        if not kept.alive or kept.task.done():
            return False
        waits_for = getattr(kept.task, "_fut_waiter", None)
        return waits_for is not None and not waits_for.done()  # done: the task is about to run

    await eventually(waits)
    return kept.task._fut_waiter


async def in_its_loop(kept: Kept, work: Callable[[Kept], Coroutine[None, None, asyncio.Task]]) -> asyncio.Task:
    """Do something to a task on its own loop, which may run in another thread; return the task."""
    loop = kept.task.get_loop()
    if loop is asyncio.get_running_loop():
        return await work(kept)
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(kept), loop))


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
        hit = await in_its_loop(kept, fail)
        await assert_it_goes_on(kept, hit, caplog, may_handle=True)  # balancing reports what is wrong with one topic and goes on
        hit = await in_its_loop(kept, cancel)
        await assert_it_goes_on(kept, hit, caplog)
    return {kept.name.partition(" of MessageQueue")[0] for kept in found}


async def test_the_tasks_of_a_broker_and_a_nameserver_go_on(tmp_path, caplog):
    async with servers(tmp_path) as (namesrv, broker):
        assert await hit_everything(set(), caplog) == EXPECTED["servers"]
        async with Producer("pg", namesrv=namesrv.address, timeout_s=PATIENCE_S) as producer:
            await producer.send(Message("t", b"x"))
        assert broker.failure is None


@pytest.mark.parametrize("encrypted", [False, True])
async def test_the_tasks_of_a_master_and_its_slave_go_on(encrypted, tmp_path, authority, server_certificate, caplog):
    tls = TlsConfig(authority.ca_file) if encrypted else None
    settings = secured(tmp_path, server_certificate) if encrypted else {}
    async with pair(tmp_path, tls, **settings) as (namesrv, master, slave):
        expected = EXPECTED["servers"] | EXPECTED["pair"] | (EXPECTED["secured"] if encrypted else set())
        assert await hit_everything(set(), caplog) == expected
        copied = slave.replication.metadata.synced
        async with Producer("pg", namesrv=namesrv.address, timeout_s=PATIENCE_S, credentials=ADMIN, tls=tls) as producer:
            sent = await producer.send(Message("t", b"x"))
        await eventually(lambda: slave.store.max_offset("t", sent.queue_id) == 1 and slave.replication.metadata.synced > copied)
        assert follows(slave)
        assert (master.failure, slave.failure) == (None, None)


async def test_the_tasks_of_a_dashboard_go_on(tmp_path, caplog):
    async with servers(tmp_path) as (namesrv, _):
        before = kept_tasks()
        server = DashboardServer(ClusterTarget(namesrv.address))
        await server.start()
        try:
            collector = server.dashboard.collector
            first = await collector.fresh()
            assert await hit_everything(before, caplog) == EXPECTED["dashboard"]
            collector.wake()
            await eventually(lambda: collector.view.time_ms > first.time_ms)
        finally:
            await server.stop()


async def test_the_tasks_of_a_grpc_endpoint_go_on(tmp_path, caplog):
    async with servers(tmp_path) as (namesrv, _):
        before = kept_tasks()
        server = EndpointServer(namesrv.address, host="127.0.0.1", port=0, security=NO_SECURITY, users=Users({}))
        await server.start()
        try:
            assert await hit_everything(before, caplog) == EXPECTED["endpoint"]
        finally:
            await server.stop()


async def test_the_tasks_of_a_follower_in_a_thread_of_its_own_go_on(tmp_path, caplog):
    async with servers(tmp_path) as (namesrv, _), Producer("pg", namesrv=namesrv.address, timeout_s=PATIENCE_S) as producer:
        await producer.send(Message("t", b"first"))
        before = kept_tasks()
        following = arrow.follow("t", namesrv=namesrv.address, start="first")
        try:
            rows = await asyncio.to_thread(next, following)
            assert rows.column("body").to_pylist() == [b"first"]
            assert await hit_everything(before, caplog) == EXPECTED["follower"]
            await producer.send(Message("t", b"second"))
            assert (await asyncio.to_thread(next, following)).column("body").to_pylist() == [b"second"]
        finally:
            await asyncio.to_thread(following.close)


async def cancel_tasks(name: str) -> None:
    """Cancel the tasks of the running loop that have this in their names."""
    found = [task for task in asyncio.all_tasks() if name in task.get_name()]
    assert found
    for task in found:
        task.cancel()


async def test_a_follower_whose_pulls_are_cancelled_by_a_stranger_says_so(tmp_path):
    async with servers(tmp_path) as (namesrv, _), Producer("pg", namesrv=namesrv.address, timeout_s=PATIENCE_S) as producer:
        await producer.send(Message("t", b"first"))
        before = kept_tasks()
        following = arrow.follow("t", namesrv=namesrv.address, start="first")
        try:
            await asyncio.to_thread(next, following)
            (loop,) = {kept.task.get_loop() for kept in kept_tasks() - before}
            waiting = asyncio.ensure_future(asyncio.to_thread(next, following))
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(cancel_tasks("Arrow reader: pull of"), loop))
            with pytest.raises(ClientClosed, match="cancelled by code that does not own it"):
                await asyncio.wait_for(waiting, 60)
        finally:
            await asyncio.to_thread(following.close)


async def test_a_dashboard_whose_requests_are_cancelled_by_a_stranger_says_so(tmp_path, caplog):
    async with servers(tmp_path) as (namesrv, _):
        ended = asyncio.Event()
        server = DashboardServer(ClusterTarget(namesrv.address), failed=ended.set)
        await server.start()
        try:
            await cancel_tasks("dashboard: requests")
            await asyncio.wait_for(ended.wait(), 60)
            assert "answers no requests any more: cancelled by code that does not own it" in str(server.failure)
            assert str(server.failure) in errors(caplog)
        finally:
            await server.stop()


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
