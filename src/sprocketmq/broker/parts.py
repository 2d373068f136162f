"""The parts of a broker, made and connected."""

import asyncio
import logging
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor

from sprocketmq.broker.acks import Acks
from sprocketmq.broker.arrivals import Arrivals
from sprocketmq.broker.attributes import BATCH_QUEUES, QUEUE_TYPE
from sprocketmq.broker.cleaning import Cleaning
from sprocketmq.broker.clients import ClientRegistry
from sprocketmq.broker.cold_reads import DiskReads
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.config_changes import ChangedSettings
from sprocketmq.broker.copies import CopyTable
from sprocketmq.broker.delay import Arrival, DelayService
from sprocketmq.broker.flush_thread import FlushWorker
from sprocketmq.broker.flushing import Flusher
from sprocketmq.broker.groups import GroupTable
from sprocketmq.broker.locks import QueueLocks
from sprocketmq.broker.metrics.counters import BrokerCounters
from sprocketmq.broker.metrics.windows import Windows
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.outgoing import Outgoing
from sprocketmq.broker.pop.handlers import PopHandlers
from sprocketmq.broker.pull import PullHandlers
from sprocketmq.broker.registration import Registrar
from sprocketmq.broker.replicating import Replication
from sprocketmq.broker.replication.role_file import RoleFile
from sprocketmq.broker.replication.roles import BrokerRole, Role
from sprocketmq.broker.request_modes import RequestModeTable
from sprocketmq.broker.retry import RetryRules
from sprocketmq.broker.saved_files import SavedFiles
from sprocketmq.broker.send import SendHandlers
from sprocketmq.broker.staged_sends import StagedSends, Stored
from sprocketmq.broker.stats import Stats
from sprocketmq.broker.topics import Topic, TopicTable
from sprocketmq.broker.transactions.checking import TransactionChecks
from sprocketmq.broker.transactions.service import TransactionService
from sprocketmq.clock import Clock
from sprocketmq.errors import SprocketError
from sprocketmq.events import event
from sprocketmq.net.address import format_address
from sprocketmq.net.server import ServerConnection
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.bodies import TopicConfig
from sprocketmq.storage.config import ConfigFile
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)


class BrokerParts(ABC):
    """The components of a broker; ``Broker`` opens, runs and closes them, and answers requests with them.

    ``role`` is what it is now: a promotion or a fencing changes it. ``port`` is the configured one before the start, then the one that it
    listens on. ``opened`` is true while the store is open, ``running`` while the broker takes traffic. ``failure`` is set, and
    ``wait_failed`` returns, when the store can no longer promise durability. ``slaves_must_know`` is true from a change of topics with
    batch queues until slaves know it.
    """

    def __init__(self, config: BrokerConfig, *, fs: FileSystem, clock: Clock, flush_worker: FlushWorker | None) -> None:
        self.config = config
        self.clock = clock
        self.fs = fs
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
            folds_case=lambda: self.store.folds_case,
        )
        self.groups = GroupTable(auto_create=config.auto_create_group, clock=clock, changed=self._groups_changed)
        # For small files and for slow work: flushing the queues, cleaning. The log has a thread of its own.
        self.threads = ThreadPoolExecutor(max_workers=3, thread_name_prefix="sprocketmq-disk")
        self.background = Background(f"broker {config.broker_name}")
        self.settings = ChangedSettings(config)
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
            give_up_id=self._give_up_id,
            learned=self._master_learned,
            background=self.background,
        )
        self.disk_reads = DiskReads()
        self.pulls = PullHandlers(
            config,
            self.store,
            self.topics,
            self.groups,
            self.clients,
            self.offsets,
            self.counters,
            self.role,
            disk=self.disk_reads,
            clock=clock,
        )
        self.acks: Acks[Stored] = Acks(
            sync=config.store.flush_disk_type == "SYNC_FLUSH",
            timeout_s=config.sync_flush_timeout_s,
            replica_timeout_s=config.slave_timeout_s,
            max_sends=config.max_waiting_sends,
            max_bytes=config.max_waiting_bytes,
        )
        self.cleaning = Cleaning(config, self.store, self.topics, self.threads, background=self.background, fs=fs, clock=clock)
        # Sends, flusher and delayed messages call one another: the latter two, which are made first, reach the sends through the broker.
        self.flusher = Flusher(
            self.store,
            self.acks,
            answer=self._answer_sends,
            published=self._published,
            interval_s=config.flush_interval_s,
            failed=self._fail,
            executor=self.threads,
            worker=flush_worker,
            clock=clock,
        )
        self.copies = CopyTable()
        self.delays = DelayService(
            self.store,
            self.topics,
            self.disk_reads,
            settle=self._settle_sends,
            committed=self._committed,
            retried=self.copies.delivered,
            writable=lambda: self.cleaning.writable and self.acks.admits(self.unflushed_bytes, waits=False),
            failed=self.flusher.fail,
            clock=clock,
        )
        self.modes = RequestModeTable(self._modes_changed)
        self.files = SavedFiles(
            config.store.root,
            fs,
            self.role,
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.settings,
            self.delays,
            self.modes,
            threads=self.threads,
            background=self.background,
        )
        self.retry_rules = RetryRules(self.topics, self.groups)
        self.pops = PopHandlers(
            config,
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.counters,
            disk=self.disk_reads,
            fs=fs,
            clock=clock,
            soon=lambda call: asyncio.get_running_loop().call_soon(call),
        )
        self.arrivals = Arrivals(self.store, self._arrived)
        self.staged = StagedSends(
            config,
            self.store,
            self.topics,
            self.counters,
            flusher=self.flusher,
            room=self.cleaning,
            arrivals=self.arrivals,
        )
        self.transactions = TransactionService(
            config, self.store, self.topics, self.offsets, self.delays, self.staged, self.counters, clock=clock
        )
        self.checks = TransactionChecks(
            config,
            self.transactions,
            self.clients,
            self.disk_reads,
            may_send=self.may_send,
            writable=lambda: self.cleaning.writable,
            clock=clock,
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
            transactions=self.transactions,
            dead_letter=self.retry_rules.dead_letter,
            saved=self.files.topics.saving,
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
            self.modes,
            self.offsets,
            self.delays,
            self.copies,
            outgoing,
            flusher=self.flusher,
            sends=self.staged,
            pulls=self.pulls,
            registrar=self.registrar,
            address=lambda: self.address,
            changed=self.role_changed,
            progress_taken=self.files.save_delays,
            failed=self._fail,
            threads=self.threads,
            background=self.background,
            clock=clock,
        )
        self.advertised_host = config.advertise or config.host
        self.port = config.port
        self.running = False
        self.opened = False
        self.slaves_must_know = False
        self._failed = asyncio.Event()

    @abstractmethod
    def role_changed(self) -> None:
        """Answer requests according to the role from now on."""

    @abstractmethod
    def may_send(self, conn: ServerConnection, topic: str) -> bool:
        """Return whether the user of a connection may send to a topic; everybody may without access control."""

    @property
    def address(self) -> str:
        """The ``host:port`` advertised to clients and nameservers."""
        return format_address(self.advertised_host, self.port)

    @property
    def unflushed_bytes(self) -> int:
        """Bytes of the log that are written but not known to be on the disk."""
        return self.flusher.unflushed if self.opened else 0

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

    def _arrived(self, topic: Topic, queue_id: int, tags_code: int | None) -> None:
        if queue_id in topic.held:
            self.pulls.arrived(topic, queue_id, tags_code)
        self.pops.arrived(topic)

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

    async def _give_up_id(self) -> bool:
        return await self.replication.give_up_id()

    def _master_learned(self) -> None:
        self.replication.following.master_learned()

    # --- topics and groups that changed ---

    def _topics_changed(self, topics: list[TopicConfig]) -> None:
        self.slaves_must_know |= any(topic.attributes.get(QUEUE_TYPE) == BATCH_QUEUES for topic in topics)
        if self.running:
            self.files.topics.touch()
            if topics:
                self.registrar.announce(topics)
        else:
            self.files.topics.note()

    def _modes_changed(self) -> None:
        if self.running:
            self.files.modes.touch()
        else:
            self.files.modes.note()

    def _groups_changed(self) -> None:
        if self.running:
            self.files.groups.touch()
        else:
            self.files.groups.note()
