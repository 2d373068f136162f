"""The slave side of a broker: it finds its master, follows its log, copies its tables, and makes received records visible to readers."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.delay_progress import DelayProgress
from sprocketmq.broker.flushing import Flusher
from sprocketmq.broker.groups import GroupTable
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.outgoing import Outgoing
from sprocketmq.broker.pull import PullHandlers
from sprocketmq.broker.registration import Registrar
from sprocketmq.broker.replication.follower import Follower, FollowerState, Master
from sprocketmq.broker.replication.master_log import ask_master
from sprocketmq.broker.replication.metadata import MetadataSync
from sprocketmq.broker.replication.promotion import RoleRefused, epoch_of, tell
from sprocketmq.broker.replication.role_file import RoleFile
from sprocketmq.broker.replication.roles import BrokerRole, Role
from sprocketmq.broker.replication.stream import MasterLog
from sprocketmq.broker.request_modes import RequestModeTable
from sprocketmq.broker.staged_sends import Stored
from sprocketmq.broker.topics import Topic, TopicTable
from sprocketmq.clock import Clock
from sprocketmq.errors import ConnectFailed, SprocketError, StoreWriteFailed
from sprocketmq.net.tasks import Background
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)


class Following:
    """One broker as slave; idle while it is master.

    ``looks`` counts how often the follower has looked for its master: it does so when a connection has ended. ``successor`` is the address
    of the master that took this broker's place, as it was told. ``progress_taken`` and ``failed`` as for ``Replication``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        role: BrokerRole,
        role_file: RoleFile,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        modes: RequestModeTable,
        offsets: OffsetTable,
        progress: DelayProgress,
        outgoing: Outgoing,
        *,
        flusher: Flusher[Stored],
        pulls: PullHandlers,
        registrar: Registrar,
        progress_taken: Callable[[], None],
        failed: Callable[[SprocketError], None],
        threads: Executor,
        background: Background,
        clock: Clock,
    ) -> None:
        self._config = config
        self._role = role
        self._role_file = role_file
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._outgoing = outgoing
        self._flusher = flusher
        self._pulls = pulls
        self._registrar = registrar
        self._failed = failed
        self._threads = threads
        self._clock = clock
        self._name = f"broker {config.broker_name}"
        # The end of each queue at which its held pulls were woken last.
        self._woken: dict[tuple[str, int], int] = {}
        # How many queues there were when it was looked whether their topics are known.
        self._queues = 0
        self.looks = 0
        self.successor = ""
        self.follower: Follower | None = None
        self.metadata = MetadataSync(
            role,
            topics,
            groups,
            modes,
            offsets,
            progress,
            outgoing,
            broker_name=config.broker_name,
            reached=self._reached,
            master_end=lambda: self.follower.master_end if self.follower is not None else 0,
            topic_gone=self._topic_gone,
            progress_taken=progress_taken,
            background=background,
        )

    def start(self) -> None:
        """Follow the master as soon as a nameserver reports its address."""
        config = self._config
        self._offsets.follow()
        self._woken.clear()
        self.looks = 0
        self.follower = Follower(
            self._store,
            self._store.follow(),
            find=self._find,
            ask=self._ask,
            name=self._name,
            secret=config.replication_secret,
            tls=self._outgoing.tls,
            server_name=self._outgoing.server_name,
            heartbeat_s=config.ha_heartbeat_s,
            housekeeping_s=config.ha_housekeeping_s,
            appended=self._appended,
            dispatched=self._dispatched,
            failed=self._failed,
            clock=self._clock,
        )
        self.metadata.start()
        self.follower.start()

    async def stop(self) -> None:
        """Stop following; may be called twice."""
        if self.follower is not None:
            await self.follower.stop()
            self.follower = None
        await self.metadata.stop()

    async def _find(self) -> Master | None:
        """Return the master's address. Raises SprocketError when it must not, or cannot, be followed."""
        role = self._role
        if self.looks:
            self._registrar.renew()  # the connection was lost: the nameserver may know another one
            self._topics.adopt(self._store)
        self.looks += 1
        if self._config.ha_master_address is not None:
            return Master(self._config.ha_master_address, role.master_address)
        if not role.master_address:
            return None
        if not role.master_ha_address:
            raise ConnectFailed(role.master_address, "master", "it does not listen for slaves: give it ha_port")
        epoch = await epoch_of(self._outgoing, role.master_address, self._config.broker_name) if role.epoch else None
        if epoch is not None and epoch < role.epoch:
            await self._refuse_older(role.master_address, epoch)
        await self.metadata.copy_topics(role.master_address)
        return Master(role.master_ha_address, role.master_address)

    async def _ask(self, address: str) -> MasterLog:
        """Ask the master about its log, and remember how many copies it waits for: promoted, this broker waits for as many.

        Raises RoleRefused when it has been replaced: it may not have answered when it was looked for.
        """
        master = await ask_master(self._outgoing, address)
        if master.epochs and master.epochs[-1].number < self._role.epoch:
            await self._refuse_older(address, master.epochs[-1].number)
        copies, config = master.copies, self._config
        if config.role is Role.SLAVE and config.in_sync_replicas is None and copies is not None and copies != self._role.copies:
            self._role.copies = copies
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._role_file.save_copies, copies)
            except OSError as e:
                raise StoreWriteFailed(str(self._store.config.root), e.strerror or str(e)) from None
        return master

    async def _refuse_older(self, former: str, epoch: int) -> None:
        """Inform a master of an older epoch that it was replaced, and raise RoleRefused."""
        current = self._role.epoch
        try:
            await tell(self._outgoing, former, self.successor, current)
        except SprocketError as e:
            log.warning("%s: the former master at %s is not told of epoch %d: %s", self._name, former, current, e)
        raise RoleRefused(f"the broker at {former} is master of epoch {epoch}, and epoch {current} has begun")

    def master_learned(self) -> None:
        """Record that a nameserver reported another master, or none."""
        if self.follower is not None:
            if self._role.master_ha_address:
                self.follower.reconnect(f"its master is at {self._role.master_address} now")
            self.metadata.soon()

    def _appended(self) -> None:
        flusher = self._flusher
        if flusher.flushed_end > self._store.commitlog_max_offset:  # the log was cut
            flusher.flushed_end = self._store.commitlog_flushed_offset
        if flusher.acks.withheld is not None:
            flusher.acks.agreed(self._store.commitlog_max_offset)
        flusher.wrote()

    def _dispatched(self) -> None:
        """Make records visible that were flushed before they were dispatched, wake their held pulls, and queue their keys for the index.

        The settings of a topic that is new in the log are asked for at once: the master may be lost any moment.
        """
        self._flusher.show()
        self._flusher.offered()
        queues = self._store.queue_count
        if queues != self._queues:
            self._queues = queues
            if any(name not in self._topics for name in self._store.topics_on_disk()):
                self.metadata.soon()

    def wake_pulls(self) -> None:
        """Wake the held pulls whose queues have more that is visible."""
        if self._pulls.held_count:
            for topic in self._topics:
                for queue_id in list(topic.held):
                    end = self._store.max_offset(topic.name, queue_id)
                    if self._woken.get((topic.name, queue_id)) != end:
                        self._woken[topic.name, queue_id] = end
                        self._pulls.arrived(topic, queue_id, None)
        self.metadata.take_progress()

    def _reached(self, log_offset: int) -> bool:
        return self._store.commitlog_max_offset >= log_offset and self.follower is not None

    def _topic_gone(self, topic: Topic) -> None:
        self._store.delete_topic(topic.name)
        self._pulls.topic_deleted(topic)

    def watch(self) -> None:
        """Take over the epoch of the log, and show readers what a master that sends nothing new has acknowledged."""
        if self.follower is not None and self.follower.state is FollowerState.FOLLOWING:
            self._role.epoch = max(self._role.epoch, self._store.epochs.last.number)
            if self._flusher.acks.withheld is not None:  # the master has all of it, and sends nothing new
                self._flusher.acks.agreed(self._store.commitlog_max_offset)
                self._flusher.show()

    def search(self) -> None:
        """Ask the nameservers again while none has told of a master."""
        if self._role.is_slave and not self._role.master_address:
            self._registrar.renew()  # a restarted nameserver may know the master by now
