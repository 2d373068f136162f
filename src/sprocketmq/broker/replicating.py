"""The role of a broker: a master serves slaves, a slave follows its master; and the changes between the two roles.

::

    start     ---> lead(): epoch, listener for slaves        or follow(): replica, follower, metadata of the master
    promotion      the former master and other slaves are informed; follower and metadata stop, the log is cut to whole records, a new
                   epoch begins, delayed messages go on, registration
    fencing        at once nothing is acknowledged; then no slaves, no delayed messages; the broker's log becomes a replica; registration

Roles change on the event loop, one change at a time.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.copies import CopyTable, remember
from sprocketmq.broker.delay import DelayService
from sprocketmq.broker.flushing import Flusher
from sprocketmq.broker.following import Following
from sprocketmq.broker.groups import GroupTable
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.outgoing import Outgoing
from sprocketmq.broker.pull import PullHandlers
from sprocketmq.broker.registration import Registrar
from sprocketmq.broker.replication.follower import Follower, FollowerState
from sprocketmq.broker.replication.master import ReplicationMaster, SlaveState
from sprocketmq.broker.replication.metadata import MetadataSync
from sprocketmq.broker.replication.promotion import Promotion, RoleRefused, epochs_of, tell
from sprocketmq.broker.replication.role_file import RoleFile
from sprocketmq.broker.replication.roles import MASTER_ID, BrokerRole, Role
from sprocketmq.broker.request_modes import RequestModeTable
from sprocketmq.broker.staged_sends import StagedSends, Stored
from sprocketmq.broker.topics import TopicTable
from sprocketmq.clock import Clock
from sprocketmq.errors import NameserverUnavailable, SprocketError
from sprocketmq.events import event
from sprocketmq.net.address import format_address, parse_address
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.bodies import EpochCache
from sprocketmq.storage.store import MessageStore, RecoveryReport

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 1.0
SETTLE_POLL_S = 0.02
# How often nameservers are asked while they know no master.
SEARCH_INTERVAL_S = 5.0
# How long a promotion waits for the last bytes of the former master, and how long the former master waits for its successor's registration.
FREEZE_S, FREEZE_POLLS = 0.5, 50
FREEZE_TIMEOUT_S = 1.0
# How long a former master continues sending what its slaves lack; shorter than FREEZE_TIMEOUT_S, as it answers afterwards.
DRAIN_S = 0.5
SUCCESSOR_S, SUCCESSOR_POLLS = 5.0, 50
# How long an ASYNC_MASTER gathers commits before slaves get them: at full load some hundred KiB.
GATHER_S = 0.002
# How long clients wait for the answer to a send by default, ours and Apache's.
CLIENT_TIMEOUT_S = 3.0


class Replication:
    """The role of one broker, and the components that the role requires.

    ``changed`` is called when the role has changed, ``progress_taken`` when there is progress of delayed messages to be saved,
    ``failed`` when the disk failed.
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
        delays: DelayService,
        copies: CopyTable,
        outgoing: Outgoing,
        *,
        flusher: Flusher[Stored],
        sends: StagedSends,
        pulls: PullHandlers,
        registrar: Registrar,
        address: Callable[[], str],
        changed: Callable[[], None],
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
        self._delays = delays
        self._copies = copies
        self._outgoing = outgoing
        self._flusher = flusher
        self._sends = sends
        self._pulls = pulls
        self._registrar = registrar
        self._address = address
        self._changed = changed
        self._progress_taken = progress_taken
        self._threads = threads
        self._background = background
        self._clock = clock
        self._name = f"broker {config.broker_name}"
        self._changing = asyncio.Lock()
        # Set when the broker has started: a master that learns of its successor earlier acknowledges nothing more, and follows from then
        # on.
        self.may_change = asyncio.Event()
        self._stopped = False
        self.master: ReplicationMaster | None = None
        self.replicates = config.ha_port is not None or config.role is Role.SLAVE
        self.following = Following(
            config,
            role,
            role_file,
            store,
            topics,
            groups,
            modes,
            offsets,
            delays.progress,
            outgoing,
            flusher=flusher,
            pulls=pulls,
            registrar=registrar,
            progress_taken=progress_taken,
            failed=failed,
            threads=threads,
            background=background,
            clock=clock,
        )
        self.promotion = Promotion(
            role,
            self,
            outgoing,
            broker_name=config.broker_name,
            enabled=self.replicates,
            address=address,
            epoch=lambda: store.epochs.last.number,
            fenced=registrar.renew,  # it may have registered as master once more before it learned of the change
            background=background,
        )

    # --- state ---

    @property
    def ha_address(self) -> str:
        """The ``host:port`` on which this broker listens for slaves, "" when it does not listen."""
        if self.master is None:
            return ""
        return format_address(parse_address(self._address())[0], self.master.port)

    @property
    def follower(self) -> Follower | None:
        """The follower of the master; None when this broker is the master."""
        return self.following.follower

    @property
    def metadata(self) -> MetadataSync:
        """The copying of the master's tables."""
        return self.following.metadata

    @property
    def slaves(self) -> list[SlaveState]:
        """The slaves that follow this master."""
        return self.master.slaves if self.master is not None else []

    @property
    def queue_behind_bytes(self) -> int:
        """Bytes of a slave's log that are in no queue yet; 0 at a master."""
        return self.follower.undispatched_bytes if self.follower is not None else 0

    @property
    def dispatch_lag(self) -> tuple[int, int]:
        """Bytes of the log that are in no queue or not in the key index yet, and for how many milliseconds the oldest record has waited.

        On a master queues never lag: their units are made with the records.
        """
        return self._store.index_lag if self.follower is None else self.follower.dispatch_lag

    # --- start and stop ---

    def load_role(self) -> None:
        """Load the role that the broker had last, before its store is open. Blocks. Raises ConfigError."""
        if self.replicates:
            self._role_file.load(self._role)
            self._store.epochs.load(1 << 62)

    async def join(self) -> None:
        """Start as a slave: the nameservers know a live master with a higher epoch."""
        await self._start_as_slave("another broker is master with a higher epoch")

    @property
    def has_given_id(self) -> bool:
        """Whether this broker is a slave with an id that was assigned when it was fenced."""
        return self._role.is_slave and self._role.broker_id != self._config.broker_id

    async def take_free_id(self) -> None:
        """Start with another id: the assigned one was taken by another slave while this broker was down."""
        await self._start_as_slave(f"another broker has id {self._role.broker_id} now")

    async def give_up_id(self) -> bool:
        """Take another id while running, as another slave has this one now; False when the id is the configured one, which is kept."""
        if not self.has_given_id:
            return False
        role, before = self._role, self._role.broker_id
        role.broker_id = await self._registrar.free_id(self._config.broker_id)
        reason = f"another broker has id {before} now"
        event(log, logging.WARNING, "role_changed", server=self._name, role=Role.SLAVE, broker_id=role.broker_id, reason=reason)
        await self._save_role(Role.SLAVE, role.broker_id, role.epoch)
        return True

    async def _start_as_slave(self, reason: str) -> None:
        broker_id = await self._registrar.free_id(self._config.broker_id)
        event(log, logging.WARNING, "role_changed", server=self._name, role=Role.SLAVE, broker_id=broker_id, reason=reason)
        self._role.take(Role.SLAVE, broker_id)
        await self._save_role(Role.SLAVE, broker_id, self._role.epoch)

    def begin_epoch(self, report: RecoveryReport) -> None:
        """Begin an epoch when the store of a master has none, or was not closed. Blocks."""
        epochs = self._store.epochs
        if not epochs.entries:
            epochs.begin(1, self._store.commitlog_min_offset)
        elif not report.clean:
            # Where the crash damaged the log, a slave may hold other bytes.
            epochs.begin(max(epochs.following, self._role.epoch + 1), report.sound_end)

    async def start(self) -> None:
        """Start what the role requires; the store is open, and the broker listens. Raises PortInUse or ConfigError for the HA port."""
        role = self._role
        if role.is_slave:
            self.following.start()
        else:
            self._flusher.acks.agreed(self._store.commitlog_max_offset)
            self._wait_for_replicas()
            await self._listen()
            if role.role is Role.SYNC_MASTER and self._config.slave_timeout_s >= CLIENT_TIMEOUT_S:
                log.warning(
                    "%s: slave_timeout_s is %g: clients give up after %g s by default, before they are told that a slave is late",
                    self._name,
                    self._config.slave_timeout_s,
                    CLIENT_TIMEOUT_S,
                )
        role.epoch = max(role.epoch, self._store.epochs.last.number)
        if self.replicates:
            event(
                log,
                logging.INFO,
                "role_begun",
                server=self._name,
                role=role.role,
                broker_id=role.broker_id,
                epoch=self._store.epochs.last.number,
                log_end=self._store.commitlog_max_offset,
                ha=self.ha_address,
            )
            self._background.every(WATCH_INTERVAL_S, self.following.watch, "watch over replication")
            self._background.every(SEARCH_INTERVAL_S, self.following.search, "search for the master")

    async def settle(self, timeout_s: float) -> None:
        """Return when a slave follows its master, or after ``timeout_s``; at once on a master."""
        deadline = self._clock.monotonic() + timeout_s
        while (one := self.follower) is not None and one.state is not FollowerState.FOLLOWING and self._clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(SETTLE_POLL_S)

    async def stop(self) -> None:
        """Stop serving slaves, or following; may be called twice."""
        self._stopped = True
        await self.following.stop()
        if self.master is not None:
            await self.master.stop()
        self._flusher.replicas = self.master = None

    # --- master ---

    async def _listen(self) -> None:
        config = self._config
        port = config.ha_port
        if port is None:
            if config.role is not Role.SLAVE:
                return
            port = 0  # a promoted slave: the other slaves, and the former master, follow it
        master = ReplicationMaster(
            self._store,
            name=self._name,
            acked=self._flusher.answer_covered,
            gather_s=0.0 if self._flusher.acks.replicas else GATHER_S,
            after_flush=self._flusher.acks.sync,
            secret=config.replication_secret,
            tls=config.tls,
            batch_bytes=config.ha_batch_bytes,
            heartbeat_s=config.ha_heartbeat_s,
            housekeeping_s=config.ha_housekeeping_s,
            max_gap_bytes=config.ha_max_gap_not_in_sync,
            max_bytes_per_s=config.ha_max_bytes_per_s,
            clock=self._clock,
        )
        await master.start(config.host, port)
        self.master = self._flusher.replicas = master

    def _wait_for_replicas(self) -> None:
        """Make sends and readers wait for slaves where the role requires it."""
        is_sync = self._role.role is Role.SYNC_MASTER
        acks = self._flusher.acks
        acks.replicas = self._role.copies - 1 if is_sync else 0
        self._store.hold_back(acks.waits)
        self._sends.mode_changed()

    # --- changes ---

    async def promote(self, epoch: int) -> None:
        """Become the master from ``epoch`` on; registered when this returns. Raises SprocketError when the disk refuses."""
        async with self._changing:
            await self.may_change.wait()
            if self._stopped:
                raise RoleRefused(f"{self._name} is stopping")
            former = self._role.master_address
            if self._role.is_slave:
                await self._check_it_has_begun(former, frozen=False)
                await self._freeze(former, epoch)
                await self._check_it_has_begun(former, frozen=True)
                await self._lead(epoch)
            else:
                await self._raise_epoch(epoch)
            await self._registrar.register()
            if former and former != self._address():
                self.promotion.fence(former)

    async def _check_it_has_begun(self, former: str, *, frozen: bool) -> None:
        """Raise RoleRefused when nothing was copied here, unless the former master's log is empty as well.

        The former master could not follow: its log has no record in common with one that begins anew. While it is
        not ``frozen``, a former master that answers may still send what it has.
        """
        if self._store.commitlog_max_offset:
            return
        cache = await epochs_of(self._outgoing, former, self._config.broker_name) if former else None
        if cache is not None and (not cache.max_offset or not frozen):
            return
        end = "does not tell where its log ends" if cache is None else f"has a log of {cache.max_offset} bytes"
        raise RoleRefused(
            f"{self._address()} has copied nothing yet, and the master at {former or 'an unknown address'} {end}: promote that one or"
            " another slave; if all others are gone for good, start a broker with an empty store as master"
        )

    async def _freeze(self, former: str, epoch: int) -> None:
        """Stop acknowledging on behalf of the former master, and check that nothing acknowledged is missing here.

        A former master that answers stops first: what it has sent is still read. Then the other slaves are detached. Raises RoleRefused
        when one of them has more of the same log or follows a newer epoch, or when no nameserver lists the slaves: with their help the
        former master could continue.
        """
        follower = self.follower
        try:
            members = await self._registrar.members()
        except NameserverUnavailable as e:
            raise RoleRefused(f"which slaves broker {self._config.broker_name} has is not known: {e}") from None
        if former:
            looks = self.following.looks
            try:
                refusal = await tell(self._outgoing, former, self._address(), epoch, timeout_s=FREEZE_TIMEOUT_S)
            except SprocketError as e:
                log.warning("%s: the former master at %s cannot be told of epoch %d yet: %s", self._name, former, epoch, e)
            else:
                if refusal:
                    log.warning("%s: the former master at %s continues: %s", self._name, former, refusal)
                for _ in range(FREEZE_POLLS):
                    if follower is None or self.following.looks != looks or follower.state is not FollowerState.FOLLOWING:
                        break
                    await asyncio.sleep(FREEZE_S / FREEZE_POLLS)
        others = [address for address in members if address not in (self._address(), former)]
        for address, cache in zip(others, await asyncio.gather(*(self._leave(address, epoch) for address in others)), strict=True):
            if cache is not None:
                self._check_it_has_no_more(address, cache)

    def _check_it_has_no_more(self, address: str, cache: EpochCache) -> None:
        """Raise RoleRefused when the slave at ``address`` has bytes that this one lacks, and that may have been acknowledged."""
        theirs, ours, end = cache.epoch_list[-1], self._store.epochs.last, self._store.commitlog_max_offset
        if theirs.epoch > ours.number:
            raise RoleRefused(
                f"the slave at {address} follows epoch {theirs.epoch}, {self._address()} knows epoch {ours.number} only: promote that one"
            )
        if (theirs.epoch, theirs.start_offset) == (ours.number, ours.start) and cache.max_offset > end:
            raise RoleRefused(
                f"the slave at {address} has more of the log, up to {cache.max_offset}; {self._address()} has it up to {end}:"
                " promote that one"
            )

    async def _leave(self, address: str, epoch: int) -> EpochCache | None:
        """Detach another slave from the former master; return its epochs and the end of its log, or None when it does not answer."""
        try:
            refusal = await tell(self._outgoing, address, self._address(), epoch, timeout_s=FREEZE_TIMEOUT_S)
        except SprocketError as e:
            refusal = str(e)
        if refusal:
            log.warning("%s: the slave at %s is not told of epoch %d: %s", self._name, address, epoch, refusal)
        return await epochs_of(self._outgoing, address, self._config.broker_name)

    async def _lead(self, epoch: int) -> None:
        role, store = self._role, self._store
        behind = self.follower.behind_bytes if self.follower is not None else 0
        await self.following.stop()
        replica = store.follow()
        try:
            replica.settle()
            # With SYNC_FLUSH readers, and the delivery of delayed messages, begin with all that the former master may have acknowledged.
            if self._flusher.acks.sync:
                await self._in_thread(store.flush_log)
            await self._in_thread(store.epochs.begin, epoch, replica.end)
            await self._save_role(role.as_master, MASTER_ID, epoch)
            store.lead()
        except (SprocketError, OSError):
            self.following.start()
            raise
        self._offsets.lead(store.max_offset)
        for topic in self._topics:
            for queue_id in list(topic.held):
                self._pulls.held.ends_at(topic, queue_id, store.max_offset(topic.name, queue_id))
        self._flusher.flushed_end = store.commitlog_flushed_offset
        self._flusher.acks.agreed(store.commitlog_max_offset)
        self._flusher.show()
        role.take(role.as_master, MASTER_ID)
        role.epoch = epoch
        self._deliver_delayed()
        self._wait_for_replicas()
        try:
            await self._listen()
        except SprocketError as e:
            log.error("%s: is master, but does not listen for slaves: %s", self._name, e)  # noqa: TRY400
        self._topics.bump_version()
        self._changed()
        event(
            log,
            logging.WARNING,
            "promoted",
            server=self._name,
            role=role.role,
            epoch=epoch,
            log_end=store.commitlog_max_offset,
            behind_bytes=behind,
            ha=self.ha_address,
        )

    async def _raise_epoch(self, epoch: int) -> None:
        """Begin an epoch as master. Slaves connect again, as they ask for the epochs only then."""
        if self.master is not None:
            await self.master.stop()
        self._flusher.replicas = self.master = None
        self._store.epochs.begin(epoch, self._store.commitlog_max_offset)
        self._role.epoch = epoch
        await self._save_role(self._role.role, MASTER_ID, epoch)
        await self._listen()
        event(log, logging.WARNING, "epoch_begun", server=self._name, epoch=epoch, log_end=self._store.commitlog_max_offset)

    def _deliver_delayed(self) -> None:
        """Deliver the delayed messages that the former master has not, as far as its progress is known from its tables and this log."""
        progress = self._delays.progress
        self._delays.take_timers(progress.timers_snapshot())
        self._delays.open(progress.snapshot())
        remember(self._copies, self._store, self._topics, self._offsets, self._delays)
        self._delays.start()
        self._progress_taken()

    def step_down(self, master_address: str, epoch: int) -> None:
        """Stop acknowledging now, and follow the master of ``epoch`` soon; ``master_address`` is "" while it is unknown."""
        role = self._role
        was_master = not role.is_slave
        role.epoch = max(role.epoch, epoch)
        self.following.successor = master_address
        if was_master:
            role.take(Role.SLAVE, max(1, self._config.broker_id), has_id=False)
            self._changed()
            self._delays.stop()
            self._sends.give_up()
            self._flusher.give_up()
            self._store.follow()
            event(
                log,
                logging.WARNING,
                "fenced",
                server=self._name,
                epoch=epoch,
                was_epoch=self._store.epochs.last.number,
                log_end=self._store.commitlog_max_offset,
                master=master_address or None,
            )
        elif self.follower is not None and role.master_address != master_address:
            role.follow("", "")
            self.follower.reconnect(f"epoch {epoch} has begun")
        self._background.spawn(self._follow_successor(master_address, was_master=was_master), f"change to the master of epoch {epoch}")

    async def _follow_successor(self, master_address: str, *, was_master: bool) -> None:
        role = self._role
        async with self._changing:
            await self.may_change.wait()
            if was_master:
                if self.master is not None:
                    await self.master.drain(DRAIN_S)  # slaves of an ASYNC_MASTER may lack messages that it acknowledged
                    await self.master.stop()
                self._flusher.replicas = self.master = None
                self._wait_for_replicas()
                self._delays.progress.adopt({}, {})
                theirs = await self._id_of(master_address)
                for _ in range(SUCCESSOR_POLLS):  # its id as slave is free when it is registered as master
                    if not master_address or await self._registrar.master_address() == master_address:
                        break
                    await asyncio.sleep(SUCCESSOR_S / SUCCESSOR_POLLS)
                role.broker_id = await self._registrar.free_id(self._config.broker_id, theirs)
                role.has_id = True
            await self._save_role(role.role, role.broker_id, role.epoch)
            await self._registrar.register()  # the answers contain the address at which the master listens for slaves
            if was_master and not self._stopped and self.follower is None:
                self.following.start()

    async def _id_of(self, address: str) -> int:
        """Return the id of another broker of this name; 0 when it is the master, or not known."""
        try:
            return (await self._registrar.members()).get(address, MASTER_ID)
        except NameserverUnavailable:
            return MASTER_ID

    async def _save_role(self, role: Role, broker_id: int, epoch: int) -> None:
        await self._in_thread(self._role_file.save, role, broker_id, epoch, self._role.copies)

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
