"""``LocalCluster``, the cluster object of tests and notebooks."""

import asyncio
import atexit
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from sprocketmq.broker.replication.roles import Role
from sprocketmq.client.arguments import check_bools, check_number
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.embedded.children import NAMESRV, ChildServers
from sprocketmq.embedded.plan import TRANSACTION_TIMEOUT_S, ClusterPlan
from sprocketmq.embedded.threads import ThreadServers
from sprocketmq.embedded.users import add_user
from sprocketmq.errors import ClientClosed, ConfigError, ForkedClient
from sprocketmq.net.address import parse_address
from sprocketmq.net.listening import KeptPorts
from sprocketmq.net.tasks import share
from sprocketmq.processes.members import check_arrangement, members_of
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.security.directory import SecureDirectory
from sprocketmq.storage.config import DELAY_LEVELS

START_TIMEOUT_S = 30.0


class Servers(Protocol):
    """The operations of a cluster on its servers, wherever they run."""

    namesrv: str
    brokers: dict[str, str]

    @property
    def pids(self) -> list[int]: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def stop_broker(self, name: str) -> None: ...

    def kill_broker(self, name: str) -> None: ...

    def start_broker(self, name: str) -> None: ...

    def stop_namesrv(self) -> None: ...

    def start_namesrv(self) -> None: ...


class LocalCluster:
    """A nameserver and ``brokers`` brokers, started by ``start`` (or ``with``, or ``async with``) and gone after ``stop``.

    ``store`` is the directory for what the brokers keep: one broker uses it as it is, several use ``store/broker-a``, ``store/broker-b``
    and so on. Without it everything goes to a temporary directory that ``stop`` removes. With ``in_process`` (the default) the servers run
    in a background thread with an event loop of its own; else in child processes, with a core for each broker. Either way only these
    arguments set them up, and no variable ``SPROCKETMQ_SET_...`` of the environment.
    ``namesrv_port`` and ``port`` (of the first broker; one broker only) are 0 for any free one. With ``flush_disk_type="SYNC_FLUSH"`` a
    send is answered when it is on the disk. ``message_delay_level`` has the delays of levels 1, 2, ... as text, ``"1s 5s 10s"``: with short
    ones tests of retries end soon. A producer is asked about a transaction that has no outcome for ``transaction_timeout_s``, and again
    after five times as long. Each broker has ``replicas`` slaves that follow it, ``broker-a-1`` and so on; with
    ``role="SYNC_MASTER"`` a send is answered when ``in_sync_replicas`` copies have it (2 unless given, the master's included).

    With ``secure`` it makes certificates, users and policies as ``sprocketmq secure init`` does: connections need TLS, and requests a
    user. ``secure`` is then the directory for clients, of the Super user admin.

    ``namesrv`` is the address to give to clients. Raises ConfigError for invalid arguments; ``start`` raises PortInUse,
    StoreLocked, StoreNotWritable, StoreDamaged, or ClusterFailed when a child does not come up. A process forked while a cluster runs must
    make its own; in the child ``stop`` does nothing. A cluster still running when the main thread ends is stopped then.

    Example::

        from sprocketmq import Message, sync
        from sprocketmq.embedded import LocalCluster

        with LocalCluster() as mq, sync.Producer("shop", namesrv=mq.namesrv) as producer:
            mq.create_topic("orders", queues=4)
            producer.send(Message("orders", b"3 apples"))
            print([message.body for message in mq.messages("orders", count=1)])
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        brokers: int = 1,
        replicas: int = 0,
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
        transaction_timeout_s: float = TRANSACTION_TIMEOUT_S,
        role: str = Role.ASYNC_MASTER,
        in_sync_replicas: int | None = None,
        secure: bool = False,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        members = members_of(brokers, replicas)
        check_bools(in_process=in_process, auto_create_topic=auto_create_topic, secure=secure)
        if not in_process and getattr(sys, "frozen", False):
            raise ConfigError("in_process must be True in a frozen program: as a child process it would start itself again")
        if role not in (Role.ASYNC_MASTER, Role.SYNC_MASTER):
            raise ConfigError(f"role must be ASYNC_MASTER or SYNC_MASTER, the role of the masters, not {role!r}")
        if role == Role.SYNC_MASTER and not replicas:
            raise ConfigError("a SYNC_MASTER waits for slaves: say how many it has (replicas)")
        if len(members) > 1 and port:
            raise ConfigError("several brokers cannot share one port: leave port at 0")
        for name, value in (("namesrv_port", namesrv_port), ("port", port)):
            if type(value) is not int or not 0 <= value <= 65535:
                raise ConfigError(f"{name} must be a whole number from 0 to 65535, not {value!r}")
        check_number("default_topic_queues", default_topic_queues, whole=True)
        check_number("max_message_bytes", max_message_bytes, whole=True)
        check_number("transaction_timeout_s", transaction_timeout_s)
        check_number("start_timeout_s", start_timeout_s, over=0)
        if store is not None and not os.fspath(store):
            raise ConfigError("store is '': name a directory, '.' for the current one, or leave it out for a temporary one")
        self._wanted_store = None if store is None else Path(store).absolute()
        self._in_process = in_process
        self._is_secure = secure
        self._plan = ClusterPlan(
            members=members,
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
            transaction_timeout_s=transaction_timeout_s,
            role=Role(role),
            in_sync_replicas=2 if role == Role.SYNC_MASTER and in_sync_replicas is None else in_sync_replicas,
        )
        self._plan.broker_config("", members[0])  # bad values fail here, not in another thread
        self._store: Path | None = None
        self._secure: SecureDirectory | None = None
        self._temporary: list[Path] = []
        self._servers: Servers | None = None
        self._pid = 0
        self._lock = threading.Lock()
        self._kept_ports = KeptPorts()

    # --- life ---

    def start(self) -> Self:
        """Start everything and return when it takes traffic; harmless when it runs already."""
        with self._lock:
            if self._servers is not None:
                return self
            self._pid = os.getpid()
            servers: Servers | None = None
            try:
                self._store = self._wanted_store or self._temporary_directory("sprocketmq-")
                check_arrangement(self._store, self._plan.members)
                self._secure = self._make_secure() if self._is_secure else None
                plan = replace(self._plan, root=self._store, secure=self._secure)
                servers = ThreadServers(plan) if self._in_process else ChildServers(plan)
                servers.start()
            except BaseException:
                if servers is not None:
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

    def _end(self, how: Callable[[Servers], None]) -> None:
        with self._lock:
            servers, self._servers = self._servers, None
            if servers is None or self._pid != os.getpid():
                return
            _running.discard(self)
            try:
                how(servers)
            finally:
                self._kept_ports.close()
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

    def _temporary_directory(self, prefix: str) -> Path:
        self._temporary.append(Path(tempfile.mkdtemp(prefix=prefix)))
        return self._temporary[-1]

    def _make_secure(self) -> SecureDirectory:
        from sprocketmq.security import directory

        root = self._temporary_directory("sprocketmq-secure-")
        directory.create(root)
        return SecureDirectory(root)

    def _remove_temporary(self) -> None:
        while self._temporary:
            shutil.rmtree(self._temporary.pop(), ignore_errors=True)

    def __repr__(self) -> str:
        state = f"namesrv={self.namesrv!r}" if self._servers is not None else "not running"
        return f"<LocalCluster {state}>"

    # --- addresses and directories ---

    def _running(self) -> Servers:
        if self._servers is None:
            raise ClientClosed("this LocalCluster is not running: use it inside `with`, or call start() first")
        return self._servers

    @property
    def namesrv(self) -> str:
        """The nameserver's ``host:port``: the argument ``namesrv`` of clients. Raises ClientClosed when the cluster does not run."""
        return self._running().namesrv

    @property
    def secure(self) -> Path | None:
        """The directory for clients, their argument ``secure``; None when the cluster is not secure. Raises ClientClosed without one."""
        self._running()
        return self._secure.client if self._secure is not None else None

    @property
    def brokers(self) -> list[str]:
        """The brokers' ``host:port``, in the order of their names, without the replicas'."""
        return [self.address(member.name) for member in self._plan.masters]

    @property
    def broker_names(self) -> list[str]:
        """``broker-a`` and so on: the brokers that started as masters."""
        return [member.name for member in self._plan.masters]

    @property
    def replica_names(self) -> list[str]:
        """``broker-a-1`` and so on: the brokers that started as slaves."""
        return [member.name for member in self._plan.slaves]

    def address(self, broker_name: str) -> str:
        """Return the ``host:port`` of a broker or replica. Raises ConfigError for a name that none has, ClientClosed when none runs."""
        return self._running().brokers[self._plan.member(broker_name).name]

    @property
    def store(self) -> Path:
        """The directory of the brokers' stores. Raises ClientClosed when there is none yet."""
        if self._store is None:
            raise ClientClosed("this LocalCluster was not started yet")
        return self._store

    def store_of(self, broker_name: str) -> Path:
        """Return one broker's store directory. Raises ConfigError for a name that no broker has."""
        member = self._plan.member(broker_name)
        return replace(self._plan, root=self.store).store_of(member)

    @property
    def pids(self) -> list[int]:
        """The ids of the brokers' processes: this one's own with ``in_process``. Raises ClientClosed when they do not run."""
        return self._running().pids

    # --- for tests ---

    def create_topic(self, topic: str, *, queues: int = 8, attributes: Mapping[str, str] | None = None) -> None:
        """Create ``topic`` with ``queues`` queues on every broker. Arguments and errors are those of ``AdminClient.create_topic``."""
        from sprocketmq import sync

        with sync.AdminClient(namesrv=self.namesrv, secure=self.secure) as admin:
            admin.create_topic(topic, queues=queues, attributes=attributes)

    def create_user(self, name: str, rights: Mapping[str, str] | None = None) -> Path:
        """Create a user of a secure cluster and return the directory for its clients, their argument ``secure``.

        ``rights`` has the actions that it may do with resources: ``{"Topic:orders*": "Pub", "Group:billing": "Sub,Get"}``. Raises
        ConfigError for a cluster that is not secure, a user that exists, and invalid rights.
        """
        servers = self._running()
        if self._secure is None:
            raise ConfigError("this LocalCluster is not secure, so that everybody may do everything: make it with secure=True")
        return add_user(self._secure, self.namesrv, (*servers.brokers.values(), servers.namesrv), name, rights or {})

    def messages(self, topic: str, *, count: int | None = None, timeout_s: float = 30.0) -> list[ReceivedMessage]:
        """Return the messages of ``topic``, by queue and offset; no group's position is changed.

        With ``count``, wait until there are so many, for at most ``timeout_s``, and raise TimeoutError saying how many there were; without,
        return what is there now. A topic that does not exist is empty.
        """
        from sprocketmq import sync
        from sprocketmq.errors import NoBroker, TopicNotFound

        deadline = SYSTEM_CLOCK.monotonic() + timeout_s
        found: dict[Any, list[ReceivedMessage]] = {}
        position: dict[Any, int] = {}
        with sync.PullConsumer("sprocketmq-messages", namesrv=self.namesrv, secure=self.secure) as consumer:
            while True:
                try:
                    queues = consumer.queues(topic)
                except (TopicNotFound, NoBroker):  # a nameserver that was started again knows no brokers yet
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
        """Stop one broker or replica cleanly and leave the rest running."""
        self._leave_port(broker_name, self._own().stop_broker)

    def kill_broker(self, broker_name: str = "broker-a") -> None:
        """End one broker or replica as ``kill -9`` does and leave the rest running."""
        self._leave_port(broker_name, self._own().kill_broker)

    def start_broker(self, broker_name: str = "broker-a") -> None:
        """Start a stopped or killed broker or replica again, on its old port and store."""
        self._own().start_broker(broker_name)
        self._kept_ports.give_up(broker_name)

    def stop_namesrv(self) -> None:
        """Stop the nameserver and leave the brokers running."""
        servers = self._own()
        servers.stop_namesrv()
        self._keep_port(NAMESRV, servers.namesrv)

    def start_namesrv(self) -> None:
        """Start the stopped nameserver again on its old port; brokers register again on their own."""
        self._own().start_namesrv()
        self._kept_ports.give_up(NAMESRV)

    def _leave_port(self, broker_name: str, end: Callable[[str], None]) -> None:
        address = self.address(broker_name)
        end(broker_name)
        self._keep_port(broker_name, address)

    def _keep_port(self, name: str, address: str) -> None:
        """Reserve the port of a stopped server, so that it can be restarted there."""
        self._kept_ports.keep(name, *parse_address(address))

    def _own(self) -> Servers:
        servers = self._running()
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
