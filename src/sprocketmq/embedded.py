"""A whole cluster for a test, a notebook or a small service: nameserver and brokers in a thread of this process, or in child processes.

::

    with LocalCluster() as mq:
        with sync.Producer("pg", namesrv=mq.namesrv) as producer:
            producer.send(Message("orders", b"..."))
"""

import asyncio
import atexit
import contextlib
import logging
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.server import Broker
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import ClientClosed, ConfigError, FatalError, ForkedClient
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.net.loops import LoopThread
from sprocketmq.net.tasks import share
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.storage.config import DELAY_LEVELS, KV_CONFIG_FILE, ConfigFile, StoreConfig

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
MAX_BROKERS = 26

# Temporary stores do not need the reference's sizes: log segments of 1 GiB, queue files of 6 MB, index files for twenty million keys.
TEMPORARY_COMMITLOG_SEGMENT_BYTES = 64 << 20
TEMPORARY_CONSUMEQUEUE_SEGMENT_BYTES = 20 * 10_000
TEMPORARY_BATCHQUEUE_SEGMENT_BYTES = 46 * 10_000
TEMPORARY_HASH_SLOTS = 100_000
TEMPORARY_INDEX_ENTRIES = 400_000


class ClusterFailed(FatalError):
    """A nameserver or broker of a LocalCluster did not start, or ended on its own."""


class LocalCluster:
    """A nameserver and ``brokers`` brokers, started by ``start`` (or ``with``, or ``async with``) and gone after ``stop``.

    ``store`` is the directory for what the brokers keep: one broker uses it as it is, several use ``store/broker-a``, ``store/broker-b``
    and so on. Without it everything goes to a temporary directory that ``stop`` removes. With ``in_process`` (the default) the servers run
    in a background thread with an event loop of its own; else in child processes (``sprocketmq serve``), with a core for each broker.
    ``namesrv_port`` and ``port`` (of the first broker; one broker only) are 0 for any free one. With ``flush_disk_type="SYNC_FLUSH"`` a
    send is answered when it is on the disk. ``message_delay_level`` has the delays of levels 1, 2, ... as text, ``"1s 5s 10s"``: with short
    ones tests of retries end soon.

    ``namesrv`` is the address to give to clients. Raises ConfigError for arguments that cannot be; ``start`` raises PortInUse,
    StoreLocked, StoreNotWritable, StoreDamaged, or ClusterFailed when a child does not come up. A process forked while a cluster runs must
    make its own; in the child ``stop`` does nothing. A cluster still running when the main thread ends is stopped then.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        brokers: int = 1,
        *,
        in_process: bool = True,
        namesrv_port: int = 0,
        port: int = 0,
        auto_create_topic: bool = True,
        cluster_name: str = "DefaultCluster",
        default_topic_queues: int = 8,
        max_message_bytes: int = 4 << 20,
        flush_disk_type: str = "ASYNC_FLUSH",
        message_delay_level: str = DELAY_LEVELS,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        if type(brokers) is not int or not 1 <= brokers <= MAX_BROKERS:
            raise ConfigError(f"brokers must be a whole number from 1 to {MAX_BROKERS}, not {brokers!r}")
        if brokers > 1 and port:
            raise ConfigError("several brokers cannot share one port: leave port at 0")
        for name, value in (("namesrv_port", namesrv_port), ("port", port)):
            if type(value) is not int or not 0 <= value <= 65535:
                raise ConfigError(f"{name} must be a whole number from 0 to 65535, not {value!r}")
        if not start_timeout_s > 0:
            raise ConfigError(f"start_timeout_s must be more than 0 seconds, not {start_timeout_s:g}")
        if store is not None and not os.fspath(store):
            raise ConfigError("store is '': name a directory, '.' for the current one, or leave it out for a temporary one")
        self._wanted_store = None if store is None else Path(store).absolute()
        self._in_process = in_process
        self._plan = _Plan(
            names=tuple(f"broker-{chr(ord('a') + i)}" for i in range(brokers)),
            temporary=store is None,
            namesrv_port=namesrv_port,
            port=port,
            start_timeout_s=start_timeout_s,
            auto_create_topic=auto_create_topic,
            cluster_name=cluster_name,
            default_topic_queues=default_topic_queues,
            max_message_bytes=max_message_bytes,
            flush_disk_type=flush_disk_type,
            message_delay_level=message_delay_level,
        )
        self._plan.broker_config("", self._plan.names[0])  # bad values fail here, not in another thread
        self._store: Path | None = None
        self._temporary: Path | None = None
        self._servers: _Servers | None = None
        self._pid = 0
        self._lock = threading.Lock()

    # --- life ---

    def start(self) -> Self:
        """Start everything and return when it takes traffic; harmless when it runs already."""
        with self._lock:
            if self._servers is not None:
                return self
            self._pid = os.getpid()
            if self._wanted_store is None:
                self._store = self._temporary = Path(tempfile.mkdtemp(prefix="sprocketmq-"))
            else:
                self._store = self._wanted_store
            plan = replace(self._plan, root=self._store)
            servers = _ThreadServers(plan) if self._in_process else _ChildServers(plan)
            try:
                servers.start()
            except BaseException:
                servers.stop()
                self._remove_temporary()
                raise
            self._servers = servers
            _running.add(self)
            return self

    def stop(self) -> None:
        """Stop everything cleanly and remove a temporary store; harmless when it is stopped already, and in a forked child."""
        self._end(lambda servers: servers.stop())

    def kill(self) -> None:
        """End the servers as ``kill -9`` does, and keep a given store as it is then; a temporary one is removed. For tests of recovery."""
        self._end(lambda servers: servers.kill())

    def _end(self, how: Callable[["_Servers"], None]) -> None:
        with self._lock:
            servers, self._servers = self._servers, None
            if servers is None or self._pid != os.getpid():
                return
            _running.discard(self)
            try:
                how(servers)
            finally:
                self._remove_temporary()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.get_running_loop().run_in_executor(None, self.start)
        try:
            return await share(starting, lambda: RuntimeError("the start was cancelled"))
        except asyncio.CancelledError:
            # The thread goes on: without this, the servers that it starts would run until the program ends.
            await asyncio.wait([starting])
            await asyncio.to_thread(self.stop)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(self.stop)

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def __repr__(self) -> str:
        state = f"namesrv={self.namesrv!r}" if self._servers is not None else "not running"
        return f"<LocalCluster {state}>"

    # --- where it is ---

    def _running(self) -> "_Servers":
        if self._servers is None:
            raise ClientClosed("this LocalCluster is not running: use it inside `with`, or call start() first")
        return self._servers

    @property
    def namesrv(self) -> str:
        """The nameserver's ``host:port``: what clients want as ``namesrv``. Raises ClientClosed when the cluster does not run."""
        return self._running().namesrv

    @property
    def brokers(self) -> list[str]:
        """The brokers' ``host:port``, in the order of their names."""
        return list(self._running().brokers.values())

    @property
    def broker_names(self) -> list[str]:
        """``broker-a`` and so on."""
        return list(self._plan.names)

    @property
    def store(self) -> Path:
        """The directory of the brokers' stores. Raises ClientClosed when there is none yet."""
        if self._store is None:
            raise ClientClosed("this LocalCluster was not started yet")
        return self._store

    def store_of(self, broker_name: str) -> Path:
        """Return one broker's store directory. Raises ConfigError for a name that no broker has."""
        self._plan.check_name(broker_name)
        return replace(self._plan, root=self.store).store_of(broker_name)

    @property
    def pids(self) -> list[int]:
        """The ids of the servers' processes: this one's own with ``in_process``. Raises ClientClosed when they do not run."""
        servers = self._running()
        return servers.pids if isinstance(servers, _ChildServers) else [os.getpid()]

    # --- for tests ---

    def create_topic(self, topic: str, *, queues: int = 8, attributes: Mapping[str, str] | None = None) -> None:
        """Create ``topic`` with ``queues`` queues on every broker. Arguments and errors are those of ``AdminClient.create_topic``."""
        from sprocketmq import sync

        with sync.AdminClient(namesrv=self.namesrv) as admin:
            admin.create_topic(topic, queues=queues, attributes=attributes)

    def messages(self, topic: str, *, count: int | None = None, timeout_s: float = 30.0) -> list[ReceivedMessage]:
        """Return what ``topic`` holds, by queue and offset; nobody's position is changed.

        With ``count``, wait until there are so many, for at most ``timeout_s``, and raise TimeoutError saying how many there were; without,
        return what is there now. A topic that does not exist is empty.
        """
        from sprocketmq import sync
        from sprocketmq.errors import TopicNotFound

        deadline = SYSTEM_CLOCK.monotonic() + timeout_s
        found: dict[Any, list[ReceivedMessage]] = {}
        position: dict[Any, int] = {}
        with sync.PullConsumer("sprocketmq-messages", namesrv=self.namesrv) as consumer:
            while True:
                try:
                    queues = consumer.queues(topic)
                except TopicNotFound:
                    queues = []
                for queue in queues:
                    if queue not in position:
                        position[queue] = consumer.min_offset(queue)
                        found[queue] = []
                    while position[queue] < consumer.max_offset(queue):
                        result = consumer.pull(queue, position[queue], max_messages=1024, max_bytes=4 << 20)
                        found[queue] += result.messages
                        position[queue] = result.next_offset
                total = sum(map(len, found.values()))
                if count is None or total >= count:
                    return [message for queue in sorted(found) for message in found[queue]]
                if SYSTEM_CLOCK.monotonic() >= deadline:
                    raise TimeoutError(f"topic {topic} holds {total} messages, not {count}, after {timeout_s:g} s")
                time.sleep(0.005)

    def stop_broker(self, broker_name: str = "broker-a") -> None:
        """Stop one broker cleanly and leave the rest running. Only for clusters in this process."""
        self._in_thread().stop_broker(broker_name)

    def start_broker(self, broker_name: str = "broker-a") -> None:
        """Start a stopped broker again, on its old port and store. Only for clusters in this process."""
        self._in_thread().start_broker(broker_name)

    def stop_namesrv(self) -> None:
        """Stop the nameserver and leave the brokers running. Only for clusters in this process."""
        self._in_thread().stop_namesrv()

    def start_namesrv(self) -> None:
        """Start the stopped nameserver again on its old port; brokers register again on their own. Only for clusters in this process."""
        self._in_thread().start_namesrv()

    def _in_thread(self) -> "_ThreadServers":
        servers = self._running()
        if not isinstance(servers, _ThreadServers):
            raise ConfigError("single servers can be stopped and started in LocalCluster(in_process=True) only")
        if self._pid != os.getpid():
            raise ForkedClient("LocalCluster")
        return servers


_running: set[LocalCluster] = set()


def _stop_all() -> None:
    forgotten = list(_running)
    for cluster in forgotten:
        cluster.stop()
    for cluster in forgotten:
        text = f"LocalCluster in {cluster.store} was still running when the program ended: use 'with', or stop()"
        warnings.warn(text, ResourceWarning, source=cluster, stacklevel=1)


# Brokers stop with the help of thread pools, and those take no more work once the main thread has ended: `atexit` would be too late.
# The hook is the one the pools themselves use; it runs in reverse order of registration, and they are imported above.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)


@dataclass(frozen=True)
class _Plan:
    """What the servers of a cluster are started with. ``root`` is where their stores are."""

    names: tuple[str, ...]
    temporary: bool
    namesrv_port: int
    port: int
    start_timeout_s: float
    auto_create_topic: bool
    cluster_name: str
    default_topic_queues: int
    max_message_bytes: int
    flush_disk_type: str
    message_delay_level: str
    root: Path = Path()

    def check_name(self, broker_name: str) -> str:
        if broker_name not in self.names:
            raise ConfigError(f"no broker {broker_name!r} in this cluster: it has {', '.join(self.names)}")
        return broker_name

    def store_of(self, broker_name: str) -> Path:
        return self.root if len(self.names) == 1 else self.root / broker_name

    def broker_config(self, namesrv: str, name: str) -> BrokerConfig:
        store = StoreConfig(
            root=self.store_of(name),
            max_message_bytes=self.max_message_bytes,
            flush_disk_type=self.flush_disk_type,
            message_delay_level=self.message_delay_level,
            # Tests and notebooks work on a disk that other programs have filled, too.
            disk_max_used_ratio=1.0,
            disk_clean_forcibly_ratio=1.0,
            disk_warning_ratio=1.0,
        )
        if self.temporary:
            store = replace(
                store,
                commitlog_segment_bytes=max(TEMPORARY_COMMITLOG_SEGMENT_BYTES, 4 * self.max_message_bytes),
                consumequeue_segment_bytes=TEMPORARY_CONSUMEQUEUE_SEGMENT_BYTES,
                batchqueue_segment_bytes=TEMPORARY_BATCHQUEUE_SEGMENT_BYTES,
                max_hash_slots=TEMPORARY_HASH_SLOTS,
                max_index_entries=TEMPORARY_INDEX_ENTRIES,
                preallocate=False,
            )
        return BrokerConfig(
            store=store,
            cluster_name=self.cluster_name,
            broker_name=name,
            port=self.port,
            namesrv=(namesrv,) if namesrv else (),
            auto_create_topic=self.auto_create_topic,
            default_topic_queues=self.default_topic_queues,
            max_message_bytes=self.max_message_bytes,
        )


class _Servers(Protocol):
    namesrv: str
    brokers: dict[str, str]

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


# --- in a thread of this process ----------------------------------------------------------------------------------------


class _ThreadServers:
    """Nameserver and brokers on one event loop in a daemon thread."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self.namesrv = ""
        self.brokers: dict[str, str] = {}
        self._namesrv: NameServer | None = None
        self._brokers: dict[str, Broker] = {}
        self._starting: set[asyncio.Task[Any]] = set()
        self._thread = LoopThread("sprocketmq-cluster")

    def start(self) -> None:
        self._thread.start()
        self._do(self._start(), self._plan.start_timeout_s)

    def stop(self) -> None:
        self._end(self._stop)

    def kill(self) -> None:
        self._end(self._abort)

    def stop_broker(self, name: str) -> None:
        broker = self._brokers.pop(self._plan.check_name(name), None)
        if broker is not None:
            self._do(broker.stop())

    def start_broker(self, name: str) -> None:
        if self._plan.check_name(name) not in self._brokers:
            self._do(self._start_broker(name))

    def stop_namesrv(self) -> None:
        namesrv, self._namesrv = self._namesrv, None
        if namesrv is not None:
            self._do(namesrv.stop())

    def start_namesrv(self) -> None:
        if self._namesrv is None:
            self._do(self._start_namesrv())

    def _do(self, work: Coroutine[Any, Any, None], timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Run ``work`` on the cluster's loop. Raises ClusterFailed when it takes longer than ``timeout_s``."""
        self._wait(self._thread.submit(work), timeout_s)

    def _wait(self, future: Future[None], timeout_s: float) -> None:
        try:
            future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise ClusterFailed(
                f"the embedded cluster did not answer within {timeout_s:g} s: is another process using up the machine?"
            ) from None

    def _end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._thread.alive:
            return

        async def end() -> None:
            await self._give_up_starts()
            await work()

        future = self._thread.submit(end())
        try:
            self._wait(future, STOP_TIMEOUT_S)
        except KeyboardInterrupt:
            # Stores are closed all the same; a second interrupt ends this wait as well.
            with contextlib.suppress(Exception):
                self._wait(future, STOP_TIMEOUT_S)
            raise
        finally:
            self._thread.stop(STOP_TIMEOUT_S)

    async def _give_up_starts(self) -> None:
        """Cancel the starts that are under way, those whose caller was interrupted, and wait until they have cleaned up."""
        starting = [task for task in self._starting if not task.done()]
        for task in starting:
            if not task.cancelling():  # a second time would cut short its cleaning up
                task.cancel()
        if starting:
            await asyncio.wait(starting)

    async def _start(self) -> None:
        await self._start_namesrv()
        for name in self._plan.names:
            await self._start_broker(name)

    async def _start_namesrv(self) -> None:
        port = int(self.namesrv.rpartition(":")[2]) if self.namesrv else self._plan.namesrv_port
        first = self._plan.store_of(self._plan.names[0])
        namesrv = NameServer(NameServerConfig(port=port), kv_file=ConfigFile(first / KV_CONFIG_FILE))
        await namesrv.start()
        self._namesrv = namesrv
        self.namesrv = namesrv.address

    async def _start_broker(self, name: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        config = self._plan.broker_config(self.namesrv, name)
        if name in self.brokers:
            config = replace(config, port=int(self.brokers[name].rpartition(":")[2]))
        broker = Broker(config)
        await broker.start()
        self._brokers[name] = broker
        self.brokers[name] = broker.address

    async def _stop(self) -> None:
        brokers, self._brokers = self._brokers, {}
        try:
            for broker in brokers.values():
                await broker.stop()
        finally:
            if self._namesrv is not None:
                await self._namesrv.stop()

    async def _abort(self) -> None:
        for broker in self._brokers.values():
            await broker.abort()
        if self._namesrv is not None:
            await self._namesrv.stop()


# --- in child processes -------------------------------------------------------------------------------------------------


class _ChildServers:
    """``sprocketmq serve`` for the nameserver and the first broker, ``sprocketmq broker`` for each further one.

    A child's standard input is a pipe from this process: when this process ends, even by a kill, the children stop.
    """

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self.namesrv = ""
        self.brokers: dict[str, str] = {}
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        plan = self._plan
        deadline = SYSTEM_CLOCK.monotonic() + plan.start_timeout_s
        for name in plan.names:
            if not self.namesrv:
                verb = ["serve", "--namesrv-port", str(plan.namesrv_port), "--port", str(plan.port)]
            else:
                verb = ["broker", "--namesrv", self.namesrv, "--port", "0"]
            ready = self._spawn([*verb, *self._options(name)], deadline)
            self.namesrv = ready.get("namesrv", self.namesrv)
            self.brokers[name] = ready["broker"]

    def stop(self) -> None:
        for child in reversed(self._children):
            child.terminate()
        deadline = SYSTEM_CLOCK.monotonic() + STOP_TIMEOUT_S
        try:
            for child in self._children:
                try:
                    child.wait(max(0.0, deadline - SYSTEM_CLOCK.monotonic()))
                except subprocess.TimeoutExpired:
                    log.warning("child %d did not stop within %g s and is killed", child.pid, STOP_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()
                child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
        self._children.clear()

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def _options(self, name: str) -> list[str]:
        """Return the command-line options for what the plan's ``broker_config`` returns."""
        config = self._plan.broker_config("", name)
        options = ["--store", str(config.store.root), "--name", name, "--cluster", config.cluster_name, "--stop-with-stdin"]
        said = {"root", "store", "broker_name", "cluster_name", "port", "namesrv"}
        for part in (config, config.store):
            for one in fields(part):
                value = getattr(part, one.name)
                if one.name not in said and value != one.default:
                    options += ["--set", f"{one.name}={str(value).lower() if isinstance(value, bool) else value}"]
        return options

    def _spawn(self, arguments: Sequence[str], deadline: float) -> dict[str, str]:
        """Start one child and return the fields of its ready line. Raises ClusterFailed with the child's output when there is none."""
        # Standard error goes to a file: nobody would empty a pipe once the child runs.
        with tempfile.TemporaryFile() as complaints:
            child = subprocess.Popen(
                [sys.executable, "-m", "sprocketmq", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
            )
            self._children.append(child)
            line = _first_line(child, deadline)
            if line.startswith("ready "):
                return dict(part.split("=", 1) for part in line.split()[1:] if "=" in part)
            if child.poll() is None and SYSTEM_CLOCK.monotonic() >= deadline:
                raise ClusterFailed(f"`sprocketmq {arguments[0]}` was not ready within {self._plan.start_timeout_s:g} s")
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)
            complaints.seek(0)
            said = complaints.read().decode(errors="replace").strip().removeprefix("sprocketmq: ") or line or "it said nothing"
            raise ClusterFailed(f"`sprocketmq {arguments[0]}` ended with exit code {child.returncode}: {said}")


def _first_line(child: "subprocess.Popen[bytes]", deadline: float) -> str:
    """Return the first line of a child's output, or its beginning when the child ended or the deadline passed."""
    assert child.stdout is not None
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while b"\n" not in data:
            left = deadline - SYSTEM_CLOCK.monotonic()
            if left <= 0 or not selector.select(left):
                break
            chunk = os.read(child.stdout.fileno(), 4096)
            if not chunk:
                break
            data += chunk
    return data.partition(b"\n")[0].decode(errors="replace")
