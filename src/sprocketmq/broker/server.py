"""The broker: puts together store, listener, tables and request handlers, and runs the periodic work."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from sprocketmq.broker.acks import Acks
from sprocketmq.broker.admin import AdminHandlers
from sprocketmq.broker.arrivals import Arrivals
from sprocketmq.broker.attributes import BATCH_QUEUES, QUEUE_TYPE
from sprocketmq.broker.cleaning import Cleaning
from sprocketmq.broker.clients import ClientHandlers, ClientRegistry
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.config_changes import ChangedSettings
from sprocketmq.broker.config_requests import ConfigHandlers
from sprocketmq.broker.copies import CopyTable, remember
from sprocketmq.broker.delay import Arrival, DelayService
from sprocketmq.broker.flush_thread import FlushWorker
from sprocketmq.broker.flushing import Flusher
from sprocketmq.broker.groups import ForbiddingHandlers, GroupTable
from sprocketmq.broker.locks import LockHandlers, QueueLocks
from sprocketmq.broker.members import MemberHandlers
from sprocketmq.broker.metrics.counters import BrokerCounters, TopicCounters
from sprocketmq.broker.metrics.latencies import Latencies
from sprocketmq.broker.metrics.loop_lag import LoopLag
from sprocketmq.broker.metrics.view_stats import ViewStatsHandlers
from sprocketmq.broker.metrics.windows import SAMPLE_INTERVAL_S, Windows
from sprocketmq.broker.offsets import OffsetHandlers, OffsetTable
from sprocketmq.broker.outgoing import Outgoing
from sprocketmq.broker.pull import PullHandlers
from sprocketmq.broker.query import QueryHandlers
from sprocketmq.broker.queue_offsets import QueueOffsetHandlers
from sprocketmq.broker.recovery_log import RecoveryProgress, log_opened
from sprocketmq.broker.registration import Registrar
from sprocketmq.broker.replicating import Replication
from sprocketmq.broker.replication.metadata_answers import MetadataAnswers
from sprocketmq.broker.replication.refusals import slave_refusals
from sprocketmq.broker.replication.role_file import RoleFile
from sprocketmq.broker.replication.roles import BrokerRole, Role
from sprocketmq.broker.replication.status import StatusHandlers
from sprocketmq.broker.retry import RetryHandlers, RetryRules
from sprocketmq.broker.runtime import RuntimeHandlers
from sprocketmq.broker.saving import SavedFile
from sprocketmq.broker.scraping.collector import Collector
from sprocketmq.broker.scraping.endpoint import MetricsEndpoint
from sprocketmq.broker.scraping.sources import Sources
from sprocketmq.broker.send import SendHandlers
from sprocketmq.broker.staged_sends import StagedSends, Stored
from sprocketmq.broker.stats import Stats
from sprocketmq.broker.time_spans import TimeSpanHandlers
from sprocketmq.broker.topics import TopicTable
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError, RemoteProtocolError, SprocketError
from sprocketmq.events import event
from sprocketmq.net.address import format_address, is_loopback, is_wildcard, own_address
from sprocketmq.net.server import RemotingServer, ServerConnection
from sprocketmq.net.tasks import Background, all_of, settled
from sprocketmq.protocol.bodies import TopicConfig
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.credentials import ACCESS_KEY
from sprocketmq.protocol.records import pack_host
from sprocketmq.security.guard import SecurityGuard
from sprocketmq.security.requests import SecurityRequests, handlers_without_users
from sprocketmq.storage.config import ConfigFile
from sprocketmq.storage.fs import REAL_FS, FileSystem
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)

ANNOUNCE_TIMEOUT_S = 5.0
# How long a stop waits for answers that are under way.
ANSWERS_TIMEOUT_S = 1.0


class Broker:
    """One broker. ``await start()`` returns when it takes traffic and is registered; ``await stop()`` leaves nothing behind.

    ``role`` is what it is now: a promotion or a fencing changes it.

    ``failure`` is set, and ``wait_failed`` returns, when the store can no longer promise durability: the process should then end with
    an error, as reads still work but every send is refused.
    """

    def __init__(
        self, config: BrokerConfig, *, fs: FileSystem = REAL_FS, clock: Clock = SYSTEM_CLOCK, flush_worker: FlushWorker | None = None
    ) -> None:
        self.config = config
        self.clock = clock
        self._fs = fs
        self.failure: SprocketError | None = None
        self.role = BrokerRole(config.role, config.broker_id, config.copies_to_wait_for)
        self.counters = BrokerCounters(clock)
        self.stats = Stats(self.counters, clock)
        self.windows = Windows(self.counters, clock)
        self.store = MessageStore(config.store, fs=fs, clock=clock)
        self.clients = ClientRegistry(clock)
        self.offsets = OffsetTable(clock)
        self.locks = QueueLocks(clock)
        self.topics = TopicTable(
            cluster_name=config.cluster_name,
            broker_name=config.broker_name,
            auto_create=config.auto_create_topic,
            default_queues=config.default_topic_queues,
            trace_topic=config.trace_topic if config.trace_topic_enable else None,
            permission=config.broker_permission,
            clock=clock,
            changed=self._topics_changed,
            declare=self.store.declare_batch_topic,
        )
        self.groups = GroupTable(auto_create=config.auto_create_group, clock=clock, changed=self._groups_changed)
        # For small files and for slow work: flushing the queues, cleaning. The log has a thread of its own.
        self._threads = ThreadPoolExecutor(max_workers=3, thread_name_prefix="sprocketmq-disk")
        self._background = Background(f"broker {config.broker_name}")
        self.topics_file = self._saved_file("topics", self.topics.snapshot)
        self.groups_file = self._saved_file("subscriptionGroup", self.groups.snapshot)
        self.settings = ChangedSettings(config)
        self.settings_file = self._saved_file("changedSettings", self.settings.snapshot)
        self.offsets_file = self._saved_file("consumerOffset", self.offsets.snapshot)
        outgoing = Outgoing(config.security, config.tls_client)
        self.registrar = Registrar(
            config.namesrv,
            outgoing,
            cluster_name=config.cluster_name,
            broker_name=config.broker_name,
            role=self.role,
            interval_s=config.register_interval_s,
            take_over=config.take_over,
            table=self.topics.registration,
            missed=self.topics.bump_version,
            ha_address=lambda: self.replication.ha_address,
            outranks=self._outranks,
            outranked=self._outranked,
            learned=self._master_learned,
            background=self._background,
        )
        self.pulls = PullHandlers(
            config, self.store, self.topics, self.groups, self.clients, self.offsets, self.counters, self.role, clock=clock
        )
        self.acks: Acks[Stored] = Acks(
            sync=config.store.flush_disk_type == "SYNC_FLUSH",
            timeout_s=config.sync_flush_timeout_s,
            replica_timeout_s=config.slave_timeout_s,
            max_sends=config.max_waiting_sends,
            max_bytes=config.max_waiting_bytes,
        )
        self.cleaning = Cleaning(config, self.store, self.topics, self._threads, background=self._background, fs=fs, clock=clock)
        # Sends, flusher and delayed messages call one another: the latter two, which are made first, reach the sends through the broker.
        self.flusher = Flusher(
            self.store,
            self.acks,
            answer=self._answer_sends,
            published=self._published,
            interval_s=config.flush_interval_s,
            failed=self._fail,
            executor=self._threads,
            worker=flush_worker,
            clock=clock,
        )
        self.copies = CopyTable()
        self.delays = DelayService(
            self.store,
            self.topics,
            settle=self._settle_sends,
            committed=self._committed,
            retried=self.copies.delivered,
            writable=lambda: self.cleaning.writable and self.acks.admits(self.unflushed_bytes, waits=False),
            failed=self.flusher.fail,
            clock=clock,
        )
        self.delays_file = self._saved_file("delayOffset", self.delays.progress.snapshot)
        self.timers_file = self._saved_file("timers", self.delays.progress.timers_snapshot)
        self._files = (self.topics_file, self.groups_file, self.offsets_file, self.timers_file, self.delays_file, self.settings_file)
        rules = RetryRules(self.topics, self.groups)
        self.arrivals = Arrivals(self.store, self.pulls.arrived)
        self.staged = StagedSends(
            config,
            self.store,
            self.topics,
            self.counters,
            flusher=self.flusher,
            room=self.cleaning,
            arrivals=self.arrivals,
        )
        self.sends = SendHandlers(
            config,
            self.store,
            self.topics,
            self.groups,
            self.counters,
            self.staged,
            flusher=self.flusher,
            room=self.cleaning,
            delays=self.delays,
            dead_letter=rules.dead_letter,
            saved=self.topics_file.saving,
        )
        self.replication = Replication(
            config,
            self.role,
            RoleFile(
                ConfigFile(f"{config.store.root}/config/replicationRole.json", fs),
                broker_name=config.broker_name,
                copies=config.in_sync_replicas if config.role is Role.SLAVE else config.copies_to_wait_for,
            ),
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.delays,
            self.copies,
            outgoing,
            flusher=self.flusher,
            sends=self.staged,
            pulls=self.pulls,
            registrar=self.registrar,
            address=lambda: self.address,
            changed=self._role_changed,
            progress_taken=self.save_delays,
            failed=self._fail,
            threads=self._threads,
            background=self._background,
            clock=clock,
        )
        status = StatusHandlers(
            self.store,
            self.role,
            self.replication,
            cluster_name=config.cluster_name,
            broker_name=config.broker_name,
            address=lambda: self.address,
        )
        self._client_handlers = ClientHandlers(self.clients, self.groups, self.topics)
        self.guard = self._make_guard()
        allows = self.guard.allows if self.guard is not None else None
        latencies = Latencies(clock.monotonic) if config.has_metrics else None
        listener = partial(
            RemotingServer, self, max_connections=config.max_connections, tls=config.tls, guard=self.guard, observer=latencies
        )
        self._server = listener(name="broker")
        # Where clients of Apache's with the VIP channel, and its slaves, send some of their requests.
        self._fast_server = listener(name="broker's fast port")
        admin = AdminHandlers(
            config.broker_name,
            self.store,
            self.topics,
            self.groups,
            self.clients,
            self.offsets,
            self.windows,
            address=lambda: self.address,
            sends=self.staged,
            pulls=self.pulls,
            topics_settled=self._topic_changes_settled,
            background=self._background,
            clock=clock,
        )
        runtime = RuntimeHandlers(
            config,
            self.store,
            self.stats,
            server=self._server,
            sends=self.staged,
            pulls=self.pulls,
            acks=self.acks,
            flusher=self.flusher,
            delays=self.delays,
            cleaning=self.cleaning,
            replication=status.table,
            fs=fs,
            clock=clock,
        )
        settings = ConfigHandlers(
            self.settings,
            self.settings_file,
            self.topics,
            self.role,
            address=lambda: self.address,
            apply=self._take_settings,
            register=self._register_again,
            background=self._background,
        )
        queries = QueryHandlers(self.store, self.topics, self.clients, background=self._background, allows=allows, clock=clock)
        offset_handlers = OffsetHandlers(self.offsets, self.topics, self.groups, self.clients, self.store)
        self._to_slaves = MetadataAnswers(
            self.delays,
            {
                RequestCode.GET_ALL_TOPIC_CONFIG: (lambda: self.topics.data_version, admin.all_topics),
                RequestCode.GET_ALL_CONSUMER_OFFSET: (self.offsets.advance_version, offset_handlers.all),
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (lambda: self.groups.data_version, admin.all_groups),
            },
        )
        self._all_handlers: Mapping[int, Callable[[ServerConnection, Command], None]] = {
            **self.sends.handlers(),
            **self.pulls.handlers(),
            **self._client_handlers.handlers(),
            **offset_handlers.handlers(),
            **LockHandlers(self.locks, self.topics).handlers(),
            **admin.handlers(),
            **QueueOffsetHandlers(self.store, self.topics).handlers(),
            **TimeSpanHandlers(config.broker_name, self.store, self.topics, self.offsets, clock=clock).handlers(),
            **MemberHandlers(self.clients, queries, self._background).handlers(),
            **runtime.handlers(),
            **ViewStatsHandlers(config.cluster_name, self.counters, self.windows, self._counters_of).handlers(),
            **settings.handlers(),
            **ForbiddingHandlers(self.groups, told=self.pulls.reading_forbidden).handlers(),
            **queries.handlers(),
            **self.cleaning.handlers(),
            **RetryHandlers(
                self.store, self.topics, rules, self.staged, self.delays, self.offsets, self.copies, self.counters, allows=allows
            ).handlers(),
            **self._to_slaves.handlers(),
            **status.handlers(),
            **self.replication.promotion.handlers(),
            **(SecurityRequests(self.guard, self._background).handlers() if self.guard is not None else handlers_without_users()),
        }
        self.metrics = self._make_metrics(latencies) if latencies is not None else None
        self._role_changed()
        self._port = config.port
        self._advertised = config.advertise or config.host
        self._running = False
        self._opened = False
        self._slaves_must_know = False
        self._failed = asyncio.Event()

    def _make_guard(self) -> SecurityGuard | None:
        config = self.config
        if config.security is None or not config.security.authentication_enabled:
            return None
        name = f"broker {config.broker_name}"
        return SecurityGuard(config.security, name=name, cluster=config.cluster_name, changed=self._users_changed)

    def _make_metrics(self, latencies: Latencies) -> MetricsEndpoint:
        self._loop_lag = LoopLag(self.clock.monotonic)
        sources = Sources(
            config=self.config,
            counters=self.counters,
            latencies=latencies,
            loop_lag=self._loop_lag,
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            clients=self.clients,
            offsets=self.offsets,
            role=self.role,
            servers=(self._server, self._fast_server),
            address=lambda: self.address,
            new_topics=self.sends.new_topics,
            pulls=self.pulls,
            acks=self.acks,
            flusher=self.flusher,
            delays=self.delays,
            replication=self.replication,
            fs=self._fs,
            threads=self._threads,
            clock=self.clock,
        )
        return MetricsEndpoint(Collector(sources).pieces, name=f"broker {self.config.broker_name}")

    def _role_changed(self) -> None:
        self._handlers = {**self._all_handlers, **slave_refusals(self.role)} if self.role.is_slave else self._all_handlers

    def _saved_file(self, name: str, snapshot: Callable[[], dict[Any, Any]]) -> SavedFile:
        file = ConfigFile(f"{self.config.store.root}/config/{name}.json", self._fs)
        return SavedFile(file, snapshot, threads=self._threads, background=self._background)

    @property
    def address(self) -> str:
        """The ``host:port`` advertised to clients and nameservers."""
        return format_address(self._advertised, self._port)

    @property
    def port(self) -> int:
        """The port it listens on; the configured one before ``start``."""
        return self._port

    @property
    def unflushed_bytes(self) -> int:
        """Bytes of the log that are written but not known to be on the disk."""
        return self.flusher.unflushed if self._opened else 0

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
                await loop.run_in_executor(self._threads, self.guard.open)
            await loop.run_in_executor(self._threads, self.replication.load_role)
            if await self.registrar.look(self.address):
                await self.replication.join()
            self._role_changed()
            await self._opened_whatever_happens(loop.run_in_executor(self._threads, self._open))
            self.flusher.start()
            if self._port:
                self._listens_at(ip, self._port)
            self._port = await self._server.start(self.config.host, self.config.port)
            self._listens_at(ip, self._port)
            if self.metrics is not None:
                await self.metrics.start(self.config.metrics_host, self.config.metrics_port)
                self._background.keep("probes of the loop", self._loop_lag.run)
            if self.config.fast_port_enable:
                await self._fast_server.start(self.config.host, self._port - 2)
            self._running = True
            if not self.role.is_slave:
                await self.replication.start()  # before the registration, which tells where it listens for slaves
                self.delays.start()
                self.save_delays()
            self._housekeeping()
            self.cleaning.start()
            await self.registrar.start(self.address)
            if self.role.is_slave:
                await self.replication.start()  # now that nameservers have told where the master is
        except BaseException:
            await self._shut()
            raise

    async def _opened_whatever_happens(self, opening: "asyncio.Future[None]") -> None:
        """Wait until the store is open, even when the start is cancelled: the thread goes on, and what it opens has to be closed again."""
        try:
            await settled(opening)
        except asyncio.CancelledError:
            await settled(opening)
            opening.exception()  # nobody else asks for it
            raise
        opening.result()

    def _open(self) -> None:
        is_new = not self._fs.exists(f"{self.config.store.root}/commitlog")
        report = self.store.open(RecoveryProgress(str(self.config.store.root), self.clock.monotonic))
        self._opened = True
        log_opened(str(self.config.store.root), report, is_new=is_new)
        trees: list[dict[Any, Any]] = []  # of timed and delayed messages, which a slave only keeps
        for file, take in (
            (self.topics_file, self.topics.load),
            (self.groups_file, self.groups.load),
            (self.settings_file, self._load_settings),
            (self.offsets_file, self.offsets.load),
            (self.timers_file, self.delays.take_timers),
            (self.delays_file, self.delays.open),
        ):
            try:
                tree = file.load()
            except OSError as e:
                raise ConfigError(f"{file.path} cannot be read: {e.strerror or e}") from None
            if self.role.is_slave and file in (self.timers_file, self.delays_file):
                trees.append(tree or {})
            elif tree is not None or file in (self.timers_file, self.delays_file):
                try:
                    take(tree or {})
                except RemoteProtocolError as e:
                    raise ConfigError(
                        f"{file.path} is no such file as brokers write: {e};"
                        f" `sprocketmq inspect {file.path}` shows it, mend it or remove it"
                    ) from None
        self._match_queue_kinds()
        self.topics.adopt(self.store)
        if trees:
            timers, offsets = trees
            self.delays.progress.adopt(offsets, timers)
            return
        if self.replication.replicates:
            self.replication.begin_epoch(report)
        remember(self.copies, self.store, self.topics, self.offsets, self.delays)

    def _match_queue_kinds(self) -> None:
        """Make the topic table agree with the store on which topics have batch queues: the store is right, as it has the messages."""
        for topic in self.topics:
            if topic.batch_queues:
                self.store.declare_batch_topic(topic.name)
            elif topic.name in self.store.batch_topics:
                log.warning("topic %s has batch queues, its entry gets the attribute that says so", topic.name)
                self.topics.mark_batch_queues(topic)

    async def _resolve(self) -> str:
        """Return the IP address that records carry as their store host."""
        loop = asyncio.get_running_loop()
        host = self._advertised
        if is_wildcard(host):
            host = self._advertised = await loop.run_in_executor(self._threads, own_address, host, self.config.namesrv)
            if is_loopback(host):
                log.warning("this machine has no address but %s: other machines cannot connect, unless one is given (advertise)", host)
        try:
            found = await loop.getaddrinfo(host, self._port, type=socket.SOCK_STREAM)
        except OSError as e:
            raise ConfigError(f"host {host!r} does not resolve: {e.strerror or e}") from None
        return str(found[0][4][0])

    def _listens_at(self, ip: str, port: int) -> None:
        host = pack_host(ip, port)
        self.store.store_host = host
        self.sends.listens_at(ip, host)

    async def stop(self) -> None:
        """Unregister, close all connections, save and flush everything, close the store; may be called twice.

        Raises StoreFailed when the last flush fails, unless ``failure`` told of it already.
        """
        await self._shut()

    async def _shut(self) -> None:
        self._running = False
        await self.registrar.stop()
        await self.cleaning.stop()
        await self._background.drain(ANSWERS_TIMEOUT_S)
        while saves := [save for file in self._files if (save := file.save_under_way) is not None]:
            await asyncio.wait(saves)
        await self._background.close()
        self.delays.stop()
        self.staged.close()
        await self.flusher.drain()
        await self.replication.stop()
        if self.metrics is not None:
            await self.metrics.stop()
        await self._fast_server.stop()
        await self._server.stop()
        self.pulls.close()
        await self.flusher.stop()
        try:
            if self._opened:
                self._opened = False
                await all_of(self._save(file) for file in self._files)
                await asyncio.get_running_loop().run_in_executor(self._threads, self.store.close)
        except SprocketError as e:
            if self.failure is None:
                self._fail(e)
                raise
        finally:
            self._threads.shutdown(wait=True)

    async def _save(self, file: SavedFile) -> None:
        if file is self.offsets_file and self.offsets.dirty:
            self.offsets.dirty = False
            file.note()
        is_progress = file is self.delays_file or (file is self.timers_file and self.delays.timers.used)
        if is_progress and not self.role.is_slave:
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, self.store.flush_log)
            except (SprocketError, OSError):
                return  # closing the store will say so; progress is read from the log again
            self.delays.progress.finish()
            file.note()
        with contextlib.suppress(OSError):  # logged where it happened; the store still has to be closed
            await file.saved()

    async def abort(self) -> None:
        """Stop as a killed process does: nothing is saved, flushed or unregistered. For tests of recovery."""
        self._running = self._opened = False
        await self.cleaning.stop()
        await self._background.close()
        self.delays.stop()
        await self.replication.stop()
        self.registrar.abort()
        if self.metrics is not None:
            await self.metrics.stop()
        for conn in [*self._server.connections, *self._fast_server.connections]:
            conn.abort("broker aborted")
        await self._fast_server.stop()
        await self._server.stop()
        self.pulls.close()
        await self.flusher.stop()
        self.store.abandon()
        self._threads.shutdown(wait=True, cancel_futures=True)

    # --- periodic work ---

    def _housekeeping(self) -> None:
        self._background.every(self.config.save_offsets_interval_s, self.save_offsets, "offset saves")
        self._background.every(SAMPLE_INTERVAL_S, self._sample, "rates")
        self._background.every(SAMPLE_INTERVAL_S, self.expire_clients, "silent clients")
        # Flushes the queues and advances the recovery point; recovery after a crash reads what was written since.
        self._background.every(SAMPLE_INTERVAL_S, self.flusher.settle, "settling")
        if self.guard is not None:
            self.guard.start(self._background)

    def save_offsets(self) -> None:
        """Save the consumer offsets, and the progress of delayed messages, where they changed."""
        if self.offsets.dirty:
            self.offsets.dirty = False
            self.offsets_file.touch()
        if not self.role.is_slave and self.delays.progress.note():
            self.save_delays()

    def save_delays(self) -> None:
        """Save how far delayed messages are delivered, and which timed messages wait."""
        self.delays_file.touch()
        if self.delays.timers.used:
            self.timers_file.touch()

    async def _sample(self) -> None:
        self.stats.sample()
        for _ in self.windows.steps():
            await asyncio.sleep(0)

    def _counters_of(self, name: str) -> TopicCounters | None:
        topic = self.topics.get(name)
        return topic.counters if topic is not None else None

    def expire_clients(self) -> None:
        """Close connections of clients that stopped sending heartbeats, and drop locks that ran out."""
        for conn in self.clients.expire():
            conn.close("no heartbeat")
        self.topics.event_log.sweep()
        self.groups.event_log.sweep()
        self.locks.expire()

    async def wait_failed(self) -> SprocketError:
        """Wait for the failure that ends durability, and return it."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure

    def _fail(self, error: SprocketError) -> None:
        if self.failure is None:
            event(log, logging.CRITICAL, "store_failed", reason=error)
            self.failure = error
            self._failed.set()

    # --- the server's calls ---

    def on_connect(self, conn: ServerConnection) -> None:
        conn.attachment = set()
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
        self._client_handlers.disconnected(conn)

    # --- from the guard ---

    def _users_changed(self, names: set[str]) -> None:
        """Refuse the waiting pulls of users who may no longer make them; those who are no users any more leave their groups."""
        guard = self.guard
        if guard is None or not self._running:
            return

        def refusal(conn: ServerConnection, command: Command) -> str:
            return guard.refusal_of(conn, command) if command.ext.get(ACCESS_KEY) in names else ""

        self.pulls.access_changed(refusal)
        gone = {name for name in names if (user := guard.user(name)) is None or not user.enabled}
        for conn in [*self._server.connections, *self._fast_server.connections]:
            if conn.user in gone:
                self._client_handlers.disconnected(conn)

    # --- from flusher and delayed messages to the sends ---

    def _answer_sends(self, sends: list[Stored], code: int) -> None:
        self.staged.answer(sends, code)

    def _published(self, end: int) -> None:
        self.arrivals.published(end)
        if self.role.is_slave:
            self.replication.following.wake_pulls()

    def _settle_sends(self) -> None:
        self.staged.finish()

    def _committed(self, arrivals: list[Arrival], size: int, timed: int) -> None:
        self.staged.committed(arrivals, size, timed)

    # --- from the registration to replication, which is made later ---

    async def _outranks(self, rival: str) -> bool | None:
        return await self.replication.promotion.outranks(rival)

    def _outranked(self, rival: str) -> None:
        self.replication.promotion.outranked(rival)

    def _master_learned(self) -> None:
        self.replication.following.master_learned()

    # --- topics and groups that changed ---

    def _topics_changed(self, topics: list[TopicConfig]) -> None:
        self._slaves_must_know |= any(topic.attributes.get(QUEUE_TYPE) == BATCH_QUEUES for topic in topics)
        if self._running:
            self.topics_file.touch()
            if topics:
                self.registrar.announce(topics)
        else:
            self.topics_file.note()

    def _groups_changed(self) -> None:
        if self._running:
            self.groups_file.touch()
        else:
            self.groups_file.note()

    def _load_settings(self, tree: Mapping[Any, Any]) -> None:
        self.settings.load(tree)
        self._take_settings(self.settings.config)

    def _take_settings(self, config: BrokerConfig) -> None:
        self.pulls.take_settings(config)
        self.acks.max_sends = config.max_waiting_sends
        self._server.max_connections = self._fast_server.max_connections = config.max_connections
        self.groups.auto_create = config.auto_create_group
        self.topics.let_sends_create(config.auto_create_topic)
        if config.broker_permission != self.topics.permission:
            self.topics.permit(config.broker_permission)

    def _register_again(self) -> asyncio.Task[None]:
        return self._background.spawn(self.registrar.register(), "registration of changed permissions")

    async def _topic_changes_settled(self) -> None:
        """Wait until changed topics are saved and the nameservers that answer know them. Raises OSError when they cannot be saved.

        Slaves have to know topics with batch queues, as their records do not say to which kind of queue they belong.
        """
        await self.topics_file.saved()
        if self._slaves_must_know:
            await self._to_slaves.topics_told(ANNOUNCE_TIMEOUT_S)
            self._slaves_must_know = False
        announcing = self.registrar.announce([])
        if announcing is not None:
            await asyncio.wait([announcing], timeout=ANNOUNCE_TIMEOUT_S)
