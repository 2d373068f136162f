"""The broker: opens, runs and closes its components, and dispatches requests to their handlers."""

import asyncio
import logging
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.copies import remember
from sprocketmq.broker.flush_thread import FlushWorker
from sprocketmq.broker.metrics.latencies import Latencies
from sprocketmq.broker.metrics.loop_lag import LoopLag
from sprocketmq.broker.metrics.windows import SAMPLE_INTERVAL_S
from sprocketmq.broker.parts import BrokerParts
from sprocketmq.broker.recovery_log import RecoveryProgress, log_opened
from sprocketmq.broker.replication.refusals import slave_refusals
from sprocketmq.broker.request_table import RequestTable
from sprocketmq.broker.scraping.collector import Collector
from sprocketmq.broker.scraping.endpoint import MetricsEndpoint
from sprocketmq.broker.scraping.sources import Sources
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import BrokerNameTaken, ConfigError, PortInUse, SprocketError
from sprocketmq.net.address import is_loopback, is_wildcard, own_address
from sprocketmq.net.server import RemotingServer, ServerConnection
from sprocketmq.net.tasks import settled
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.credentials import ACCESS_KEY
from sprocketmq.protocol.records import pack_host
from sprocketmq.security.guard import SecurityGuard
from sprocketmq.security.requirements import PUB, topic_context
from sprocketmq.storage.fs import REAL_FS, FileSystem, mapped_file_bytes

log = logging.getLogger(__name__)

# How long a stop waits for pending answers.
ANSWERS_TIMEOUT_S = 1.0
# How many free ports are tried until the one for the fast port is free as well.
PORT_PAIR_TRIES = 16
# When more than this of the mapped files is resident, the log is unmapped except for its end: 15 us per MiB read by lagging consumers.
MAX_MAPPED_BYTES = 256 << 20
UNMAP_INTERVAL_S = 0.5


class Broker(BrokerParts):
    """One broker. ``await start()`` returns when it takes traffic and is registered; ``await stop()`` leaves nothing behind.

    When ``wait_failed`` returns, the process should end with an error: reads still work, but every send is refused.
    """

    def __init__(
        self, config: BrokerConfig, *, fs: FileSystem = REAL_FS, clock: Clock = SYSTEM_CLOCK, flush_worker: FlushWorker | None = None
    ) -> None:
        super().__init__(config, fs=fs, clock=clock, flush_worker=flush_worker)
        self.guard = self._make_guard()
        latencies = Latencies(clock.monotonic) if config.has_metrics else None
        listener = partial(
            RemotingServer, self, max_connections=config.max_connections, tls=config.tls, guard=self.guard, observer=latencies
        )
        self._server = listener(name="broker")
        # The port to which Apache's clients with the VIP channel, and its slaves, send some of their requests.
        self._fast_server = listener(name="broker's fast port")
        self._requests = RequestTable(self, server=self._server, guard=self.guard, take_settings=self._take_settings)
        self.metrics = self._make_metrics(latencies) if latencies is not None else None
        self.role_changed()

    def _make_guard(self) -> SecurityGuard | None:
        config = self.config
        if config.security is None or not config.security.authentication_enabled:
            return None
        name = f"broker {config.broker_name}"
        return SecurityGuard(config.security, name=name, cluster=config.cluster_name, changed=self._users_changed)

    def _make_metrics(self, latencies: Latencies) -> MetricsEndpoint:
        self._loop_lag = LoopLag(self.clock.monotonic)
        sources = Sources(self, latencies, self._loop_lag, (self._server, self._fast_server))
        return MetricsEndpoint(Collector(sources).pieces, name=f"broker {self.config.broker_name}")

    def role_changed(self) -> None:
        """Answer requests according to the role from now on."""
        self._handlers = {**self._requests.handlers, **slave_refusals(self.role)} if self.role.is_slave else self._requests.handlers
        if not self.running:
            return
        if self.role.is_slave:
            self.pops.discard()
            self.checks.stop()
        else:
            self.transactions.open()
            self.checks.start()

    @property
    def connection_count(self) -> int:
        return len(self._server.connections)

    @property
    def registered(self) -> tuple[str, ...]:
        """The nameservers that took the last registration."""
        return self.registrar.registered

    # --- life ---

    async def start(self) -> None:
        """Open the store, listen, register.

        Raises StoreLocked, StoreNotWritable or StoreDamaged for the store, PortInUse for the address, BrokerNameTaken when another live
        broker of its name is registered, ConfigError for a host that does not resolve or a file of users that cannot be used; nothing is
        left open then. An unreachable nameserver is no error: it is tried until it answers.
        """
        loop = asyncio.get_running_loop()
        try:
            ip = await self._resolve()
            if self.guard is not None:
                await loop.run_in_executor(self.threads, self.guard.open)
            await loop.run_in_executor(self.threads, self.replication.load_role)
            try:
                if await self.registrar.look(self.address):
                    await self.replication.join()
            except BrokerNameTaken:
                if not self.replication.has_given_id:
                    raise
                await self.replication.take_free_id()
            self.role_changed()
            broker_id = self.role.broker_id
            await self._opened_whatever_happens(loop.run_in_executor(self.threads, self._open))
            self.flusher.start()
            if self.port:
                self._listens_at(ip, self.port)
            await self._listen()
            self._listens_at(ip, self.port)
            if self.metrics is not None:
                await self.metrics.start(self.config.metrics_host, self.config.metrics_port)
                self.background.keep("probes of the loop", self._loop_lag.run)
            self.running = True
            leads = not self.role.is_slave
            if leads:
                await self.replication.start()  # before the registration, which includes the address for slaves
            if not self.role.is_slave:  # otherwise it was fenced since it began to listen
                self.delays.start()
                self.files.save_delays()
                self.checks.start()
            self._housekeeping()
            self.cleaning.start()
            await self.registrar.start(self.address, broker_id)
            if not leads:
                await self.replication.start()  # now that nameservers have reported the master's address
            self.replication.may_change.set()
        except BaseException:
            await self._shut()
            raise

    async def _opened_whatever_happens(self, opening: "asyncio.Future[None]") -> None:
        """Wait until the store is open, even when the start is cancelled: the thread continues, and what it opens has to be closed."""
        try:
            await settled(opening)
        except asyncio.CancelledError:
            await settled(opening)
            opening.exception()  # no other caller retrieves it
            raise
        opening.result()

    def _open(self) -> None:
        is_new = not self.fs.exists(f"{self.config.store.root}/commitlog")
        report = self.store.open(RecoveryProgress(str(self.config.store.root), self.clock.monotonic))
        self.opened = True
        log_opened(str(self.config.store.root), report, is_new=is_new)
        self.files.load(self._load_settings)
        self._match_queue_kinds()
        self.topics.adopt(self.store)
        if self.role.is_slave:
            self.pops.discard()
            return
        if self.replication.replicates:
            self.replication.begin_epoch(report)
        self.pops.open()
        self.transactions.open()
        remember(self.copies, self.store, self.topics, self.offsets, self.delays)

    def _match_queue_kinds(self) -> None:
        """Make the topic table agree with the store on which topics have batch queues: the store decides, as it has the messages."""
        for topic in self.topics:
            if topic.batch_queues:
                self.store.declare_batch_topic(topic.name)
            elif topic.name in self.store.batch_topics:
                log.warning("topic %s has batch queues, its entry gets the attribute that says so", topic.name)
                self.topics.mark_batch_queues(topic)

    async def _resolve(self) -> str:
        """Return the IP address that records carry as their store host."""
        loop = asyncio.get_running_loop()
        host = self.advertised_host
        if is_wildcard(host):
            host = self.advertised_host = await loop.run_in_executor(self.threads, own_address, host, self.config.namesrv)
            if is_loopback(host):
                log.warning("this machine has no address but %s: other machines cannot connect, unless one is given (advertise)", host)
        try:
            found = await loop.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)
        except OSError as e:
            raise ConfigError(f"host {host!r} does not resolve: {e.strerror or e}") from None
        return str(found[0][4][0])

    async def _listen(self) -> None:
        """Listen on the port and, with ``fast_port_enable``, on the port - 2; where any port will do, until both of a pair are free."""
        host, tries = self.config.host, 1 if self.config.port else PORT_PAIR_TRIES
        for left in reversed(range(tries)):
            self.port = await self._server.start(host, self.config.port)
            if not self.config.fast_port_enable:
                return
            try:
                await self._fast_server.start(host, self.port - 2)
            except PortInUse:
                if not left:
                    raise
                await self._server.stop()
            else:
                return

    def _listens_at(self, ip: str, port: int) -> None:
        host = pack_host(ip, port)
        self.store.store_host = host
        self.sends.listens_at(ip, host)

    async def stop(self) -> None:
        """Unregister, close all connections, save and flush everything, close the store; may be called twice.

        Raises StoreFailed when the last flush fails, unless ``failure`` already reported it.
        """
        await self._shut()

    async def _shut(self) -> None:
        self.running = False
        await self.registrar.stop()
        await self.cleaning.stop()
        await self.background.drain(ANSWERS_TIMEOUT_S)
        await self.files.drain()
        await self.background.close()
        self.delays.stop()
        self.checks.stop()
        self.staged.close()
        await self.flusher.drain()
        await self.replication.stop()
        if self.metrics is not None:
            await self.metrics.stop()
        await self._fast_server.stop()
        await self._server.stop()
        self.pulls.close()
        self.disk_reads.close()
        await self.flusher.stop()
        try:
            if self.opened:
                self.opened = False
                self.pops.close()
                await self.files.save_all()
                await asyncio.get_running_loop().run_in_executor(self.threads, self.store.close)
        except SprocketError as e:
            if self.failure is None:
                self._fail(e)
                raise
        finally:
            self.threads.shutdown(wait=True)

    async def abort(self) -> None:
        """Stop like a killed process: nothing is saved, flushed or unregistered. For tests of recovery."""
        self.running = self.opened = False
        await self.cleaning.stop()
        await self.background.close()
        self.delays.stop()
        self.checks.stop()
        await self.replication.stop()
        self.registrar.abort()
        if self.metrics is not None:
            await self.metrics.stop()
        for conn in [*self._server.connections, *self._fast_server.connections]:
            conn.abort("broker aborted")
        await self._fast_server.stop()
        await self._server.stop()
        self.pulls.close()
        self.disk_reads.close()
        self.pops.abandon()
        await self.flusher.stop()
        self.store.abandon()
        self.threads.shutdown(wait=True, cancel_futures=True)

    # --- periodic work ---

    def _housekeeping(self) -> None:
        self.background.every(self.config.save_offsets_interval_s, self._save_progress, "offset saves")
        self.background.every(SAMPLE_INTERVAL_S, self._sample, "rates")
        self.background.every(SAMPLE_INTERVAL_S, self.expire_clients, "silent clients")
        # Flushes the queues and advances the recovery point; recovery after a crash reads what was written since.
        self.background.every(SAMPLE_INTERVAL_S, self.flusher.settle, "settling")
        self.background.every(UNMAP_INTERVAL_S, self._unmap_log, "unmapping")
        self.background.every(SAMPLE_INTERVAL_S, self.store.give_back_blocks, "blocks of the log in memory")
        self.background.every(SAMPLE_INTERVAL_S, self.pops.keep_short, "the journal of pops")
        if self.guard is not None:
            self.guard.start(self.background)

    def _save_progress(self) -> None:
        if not self.role.is_slave:
            self.transactions.note_progress()
        self.files.save_offsets()

    async def _unmap_log(self) -> None:
        if mapped_file_bytes() > MAX_MAPPED_BYTES:
            for _ in self.store.unmap_in_steps():
                await asyncio.sleep(0)

    async def _sample(self) -> None:
        self.stats.sample()
        for _ in self.windows.steps():
            await asyncio.sleep(0)

    def expire_clients(self) -> None:
        """Close connections of clients that stopped sending heartbeats, and drop expired locks."""
        for conn in self.clients.expire():
            conn.close("no heartbeat")
        self.topics.event_log.sweep()
        self.groups.event_log.sweep()
        self.locks.expire()

    # --- called by the server ---

    def on_connect(self, conn: ServerConnection) -> None:  # noqa: ARG002 - the signature of every server
        self.counters.connections_opened += 1

    def on_request(self, conn: ServerConnection, command: Command) -> None:
        handler = self._handlers.get(command.code)
        if handler is None:
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            conn.respond(command, code, remark=f" request type {command.code} not supported")
        else:
            handler(conn, command)

    def on_batch_end(self, conn: ServerConnection) -> None:  # noqa: ARG002 - the signature of every server
        self.staged.finish()

    def on_disconnect(self, conn: ServerConnection) -> None:
        self.counters.connections_closed += 1
        self.pulls.disconnected(conn)
        self.pops.disconnected(conn)
        self._requests.clients.disconnected(conn)

    # --- called by the guard ---

    def may_send(self, conn: ServerConnection, topic: str) -> bool:
        """Return whether the user of a connection may send to a topic; everybody may without access control."""
        return self.guard is None or self.guard.allows_user(conn, topic_context(topic, PUB))

    def _users_changed(self, names: set[str]) -> None:
        """Refuse the waiting pulls of users who no longer have the right; removed users leave their groups."""
        guard = self.guard
        if guard is None or not self.running:
            return

        def refusal(conn: ServerConnection, command: Command) -> str:
            return guard.refusal_of(conn, command) if command.ext.get(ACCESS_KEY) in names else ""

        self.pulls.access_changed(refusal)
        self.pops.access_changed(refusal)
        gone = {name for name in names if (user := guard.user(name)) is None or not user.enabled}
        for conn in [*self._server.connections, *self._fast_server.connections]:
            if conn.user in gone:
                self._requests.clients.disconnected(conn)

    def _load_settings(self, tree: Mapping[Any, Any]) -> None:
        self.settings.load(tree)
        self._take_settings(self.settings.config)

    def _take_settings(self, config: BrokerConfig) -> None:
        self.pulls.take_settings(config)
        self.pops.take_settings(config)
        self.acks.max_sends = config.max_waiting_sends
        self._server.max_connections = self._fast_server.max_connections = config.max_connections
        self.groups.auto_create = config.auto_create_group
        self.topics.let_sends_create(config.auto_create_topic)
        if config.broker_permission != self.topics.permission:
            self.topics.permit(config.broker_permission)
