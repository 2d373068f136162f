"""The slave's side of the stream: finds its master, compares, then appends the master's log and derives queues and index from it.

::

    CONNECTING --> COMPARING --> FOLLOWING        appended bytes are reported after each read of the socket,
        ^   |          |            |             and dispatched in small steps between the reads
        |   v          v            v
        |  REFUSED  DIVERGED    connection lost
        '---+----------+------------'             again after a growing pause

``stream.py`` decides what happens on a connection. A slave never appends before it has compared what it holds with what the master
sends, and cuts its own log only where both have epochs and an equal beginning.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, NamedTuple

from sprocketmq.broker.replication.dispatching import Dispatching
from sprocketmq.broker.replication.master_link import MasterLink
from sprocketmq.broker.replication.stream import (
    COMPARE_BYTES,
    WHOLE_LOG,
    Cut,
    FurtherBack,
    MasterLog,
    Pauses,
    Rate,
    Refusal,
    Start,
    part,
    plan,
)
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import (
    ConnectFailed,
    ConnectionLost,
    RemoteProtocolError,
    SecretMismatch,
    SprocketError,
    StoreFailed,
    StoreWriteFailed,
)
from sprocketmq.events import event
from sprocketmq.net.address import parse_address
from sprocketmq.net.tasks import Background
from sprocketmq.net.tls import handshake_failure
from sprocketmq.protocol.replication import RECEIVE_BYTES, TransferReader
from sprocketmq.storage.replica.replica import Replica
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
HANDSHAKE_TIMEOUT_S = 10.0
# First and longest pause between attempts; while the master is refused, which only people can change; while the disk has no room.
PAUSES_S = (0.2, 5.0)
REFUSED_PAUSES_S = (5.0, 60.0)
DISK_PAUSES_S = (1.0, 10.0)
# A connection that lasted this long resets the pause to the first one.
SOUND_S = 5.0
# With more log than this to dispatch, half a second's worth, nothing is read until half of it is: queues stay near the log.
MAX_BACKLOG_BYTES = 128 << 20
_HA_PORT = "master's HA port"
# A sweep that runs later than this was blocked: bytes of the master may wait in the socket.
_LATE_S = 1.0


class FollowerState(Enum):
    """The states of a follower."""

    CONNECTING = "connecting"
    COMPARING = "comparing"
    FOLLOWING = "following"
    DIVERGED = "diverged"
    REFUSED = "refused"


class Master(NamedTuple):
    """The addresses of a master: ``ha_address`` of its HA port, ``address`` for clients, "" when unknown."""

    ha_address: str
    address: str = ""


class _Parted(SprocketError):
    """The master's log and this one are equal up to ``log_offset`` only."""

    def __init__(self, log_offset: int) -> None:
        super().__init__(f"the logs diverge at {log_offset}")
        self.log_offset = log_offset


class Follower:
    """Follows the master that ``find`` returns (None: none is known at the moment), until it is stopped.

    ``ask`` asks a master about its log. ``appended`` is called when bytes were appended, ``dispatched`` when records became visible, and
    ``failed`` once when the disk failed: the follower ends then. With ``tls`` the connection is encrypted, and the master's certificate
    must name ``server_name`` or the host of its address. ``name`` appears in log lines. ``state`` is what it does, ``reason``
    why the master is not followed, ``master_address`` the HA port it is connected to.
    """

    def __init__(
        self,
        store: MessageStore,
        replica: Replica,
        *,
        find: Callable[[], Awaitable[Master | None]],
        ask: Callable[[str], Awaitable[MasterLog]],
        name: str = "slave",
        secret: str | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        heartbeat_s: float = 5.0,
        housekeeping_s: float = 20.0,
        appended: Callable[[], None] = lambda: None,
        dispatched: Callable[[], None] = lambda: None,
        failed: Callable[[SprocketError], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._replica = replica
        self._find = find
        self._ask = ask
        self._name = name
        self._secret = secret
        self._tls = tls
        self._server_name = server_name
        self._heartbeat_s = heartbeat_s
        self._housekeeping_s = housekeeping_s
        self._appended = appended
        self._failed = failed
        self._clock = clock
        self._dispatching = Dispatching(replica, name=name, dispatched=dispatched, stepped=self._stepped, clock=clock)
        self._background = Background(name)
        self.state = FollowerState.CONNECTING
        self.rate = Rate()
        self.reason = ""
        self.master_address = ""
        self._master_end = 0
        self._behind_since: float | None = None
        self._followed_since: float | None = None
        self._buffer = bytearray(RECEIVE_BYTES)
        self._link: MasterLink | None = None
        # The first report of the connection, None before it; and the log offset of the master's next byte.
        self._begun: Start | None = None
        self._position = 0
        self._master: MasterLog | None = None
        self._compare_bytes = COMPARE_BYTES
        self._pauses = Pauses()
        self._hurry = asyncio.Event()
        self._noted = ""
        self._swept = 0.0

    @property
    def undispatched_bytes(self) -> int:
        """Bytes of the log that are in no queue yet."""
        return self._replica.end - self._replica.dispatched_end

    @property
    def dispatch_lag(self) -> tuple[int, int]:
        """Bytes of the log that queues or key index lack, and for how many milliseconds the oldest of them has been in the log."""
        return self._replica.end - self._replica.derived_end, self._dispatching.waiting_ms

    # --- life ---

    def start(self) -> None:
        """Start following; records that wait to be dispatched are dispatched."""
        self._swept = self._clock.monotonic()
        self._background.keep("following the master", self._follow)
        self._background.every(self._sweep_s, self._sweep, "reports to the master")
        self._dispatching.soon()

    async def stop(self) -> None:
        """Close the connection and stop for good. Undispatched records stay undispatched. May be called twice."""
        await self._background.close()
        self._dispatching.stop()

    def reconnect(self, reason: str) -> None:
        """Disconnect from the current master and look for the master again at once: it has moved, or was replaced."""
        self._pauses.reset()
        self._hurry.set()
        if self._link is not None:
            self._link.fail(ConnectionLost(self.master_address, reason))

    # --- state ---

    @property
    def master_end(self) -> int:
        """The end of the master's log as last reported; set by every source of that information."""
        return self._master_end

    @master_end.setter
    def master_end(self, log_offset: int) -> None:
        self._master_end = max(self._master_end, log_offset)
        self._note_lag()

    @property
    def behind_bytes(self) -> int:
        """Bytes of the master's log that are missing here, as last reported."""
        return max(0, self._master_end - self._replica.end)

    @property
    def behind_ms(self) -> int:
        """For how many milliseconds bytes have been missing without a break."""
        since = self._behind_since
        return 0 if since is None else round((self._clock.monotonic() - since) * 1000)

    def exchanged_ms(self) -> tuple[int, int]:
        """Return the times of the master's last sign of life and of the last report to it (wall-clock ms); zeros without a connection."""
        link, clock = self._link, self._clock
        if link is None:
            return 0, 0
        now, now_ms = clock.monotonic(), clock.time_ms()
        return now_ms - round((now - link.received_at) * 1000), now_ms - round((now - link.reported_at) * 1000)

    def _note_lag(self) -> None:
        if self._master_end <= self._replica.end:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = self._clock.monotonic()

    def _note(self, state: FollowerState, reason: str, level: int, *, once: str = "") -> None:
        """Record why the master is not followed, and log each text (or each ``once``) only once."""
        if self._followed_since is not None and self._clock.monotonic() - self._followed_since >= SOUND_S:
            self._pauses.reset()
            self._noted = ""
        self._followed_since = None
        self.state = state
        self.reason = reason
        if self._noted != (once or reason):
            self._noted = once or reason
            event(log, level, "master_not_followed", server=self._name, master=self.master_address or None, reason=reason)

    # --- connections ---

    async def _follow(self) -> None:
        while True:
            self._hurry.clear()
            limits = await self._attempt()
            if limits is None:
                await asyncio.sleep(0)
                continue
            try:
                await asyncio.wait_for(self._hurry.wait(), self._pauses.following(limits))
            except TimeoutError:
                continue

    async def _attempt(self) -> tuple[float, float] | None:
        """Follow the master until that ends; return the limits of the pause before the next attempt, None for no pause."""
        try:
            master = await self._find()
            if master is None:
                self._note(FollowerState.CONNECTING, "no nameserver knows it", logging.WARNING)
                return PAUSES_S
            self.master_address = master.ha_address
            return await self._at(master)
        except StoreFailed as e:
            self._note(FollowerState.REFUSED, f"the disk failed: {e}", logging.ERROR)
            self._failed(e)
            return REFUSED_PAUSES_S
        except StoreWriteFailed as e:
            self._note(FollowerState.CONNECTING, f"the disk refuses what it sends, until it has room nothing is copied: {e}", logging.ERROR)
            return DISK_PAUSES_S
        except SprocketError as e:
            state = FollowerState.REFUSED if isinstance(e, SecretMismatch) else FollowerState.CONNECTING
            # A master that was followed may just have been stopped, and this broker may be next. If not, reconnecting fails soon.
            followed = isinstance(e, ConnectionLost) and self._followed_since is not None
            self._note(state, str(e), logging.INFO if followed else logging.WARNING)
            return PAUSES_S

    async def _at(self, master: Master) -> tuple[float, float] | None:
        link = await self._connect(master.ha_address)
        self._begun = None
        self._link = link
        try:
            await asyncio.wait((link.ready,), timeout=HANDSHAKE_TIMEOUT_S)
            if not link.ready.done():
                raise SecretMismatch("the master does not ask for the shared secret: give it the same ha_secret or inner_credentials")
            # Asked only now: what follows on this connection has no later epoch, as a master begins one only while it has no slaves.
            self._master = await self._ask(master.address) if master.address else None
            if link.closed:
                raise self._lost(link)
            if self._hurry.is_set():
                return None  # asked to reconnect meanwhile: this may be the former master
            refusal = self._begin(link)
            if refusal is None:
                await asyncio.wait((link.ended,))
                if not isinstance(link.error, _Parted):
                    raise self._lost(link)
                refusal = self._parted(link.error.log_offset)
            if refusal is None:
                return None
        finally:
            self._link = None
            link.fail(ConnectionLost(master.ha_address, "left"))
        state = FollowerState.DIVERGED if refusal.diverged else FollowerState.REFUSED
        self._note(state, refusal.reason, logging.ERROR, once=state.value)
        return REFUSED_PAUSES_S

    async def _connect(self, address: str) -> MasterLink:
        host, port = parse_address(address)
        reader = TransferReader(self._buffer)
        encrypted: dict[str, Any] = {}
        if self._tls is not None:
            encrypted = {"ssl": self._tls, "server_hostname": self._server_name or host}
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, link = await asyncio.get_running_loop().create_connection(
                    lambda: MasterLink(reader, secret=self._secret, took=self._took, read=self._read, clock=self._clock),
                    host,
                    port,
                    **encrypted,
                )
        except TimeoutError:
            raise ConnectFailed(address, _HA_PORT, f"no answer within {CONNECT_TIMEOUT_S:g} s") from None
        except ConnectionRefusedError:
            raise ConnectFailed(address, _HA_PORT, "connection refused, nothing listens there") from None
        except OSError as e:
            if isinstance(e, ssl.SSLError | ConnectionError) and self._tls is not None:
                raise handshake_failure(address, _HA_PORT, e) from None
            raise ConnectFailed(address, _HA_PORT, e.strerror or str(e)) from None
        return link

    def _lost(self, link: MasterLink) -> BaseException:
        """Return the error that ended a connection; a network error as one of this package."""
        error = link.error
        if error is None or (isinstance(error, OSError) and not isinstance(error, SprocketError)):
            return ConnectionLost(self.master_address, (error.strerror or str(error)) if error is not None else "closed by the master")
        return error

    def _begin(self, link: MasterLink) -> Refusal | None:
        """Send the first report, unless this master must not be followed."""
        store, replica, master = self._store, self._replica, self._master
        segments = store.segments()
        begin = segments[0][0] if segments else replica.end
        segment_bytes = segments[0][1] if segments else store.config.commitlog_segment_bytes
        begun = plan(replica, begin, segment_bytes, store.epochs.entries, master, self._compare_bytes)
        if isinstance(begun, Refusal):
            return begun
        self.state = FollowerState.COMPARING
        self._master_end = master.end if master is not None else 0
        self._note_lag()
        if replica.end == begin != begun.start:
            replica.start_at(begun.start)
        self._begun = begun
        self._position = begun.report
        link.report(begun.report)
        if begun.start == begun.stop:
            self._compared()
        return None

    def _parted(self, log_offset: int) -> Refusal | None:
        """Cut this log where it diverges from the master's, or compare more on the next connection, or return why neither is allowed."""
        assert self._begun is not None
        replica = self._replica
        epochs = self._master.epochs if self._master is not None else None
        decision = part(replica, self._begun, log_offset, self._master_end, may_cut=bool(epochs and self._store.epochs.entries))
        if isinstance(decision, Refusal):
            return decision
        if isinstance(decision, FurtherBack):
            self._compare_bytes *= 2
            return None
        assert isinstance(decision, Cut)
        end = replica.end
        replica.truncate(decision.log_offset)
        event(
            log,
            logging.WARNING,
            "log_cut",
            server=self._name,
            bytes=end - replica.end,
            log_offset=replica.end,
            master=self.master_address,
            reason="the master does not have it: it wrote its own after a failure",
        )
        self._compare_bytes = COMPARE_BYTES
        return None

    # --- called by the connection ---

    def _took(self, log_offset: int, data: memoryview) -> None:
        begun = self._begun
        if begun is None or log_offset != self._position:
            where = "before the first report" if begun is None else f"where {self._position} comes next"
            raise RemoteProtocolError(f"the master sends its log from {log_offset} {where}")
        if not data:
            self._heartbeat(begun)
            return
        if self.state is FollowerState.COMPARING:
            known = data[: begun.stop - log_offset]
            differs_at = self._replica.differs(log_offset, known)
            if differs_at is not None:
                raise _Parted(differs_at)
            self._position += len(known)
            if self._position < begun.stop:
                return
            self._compared()
            data = data[len(known) :]
            if not data:
                return
        if not self._replica.end:
            self._replica.append(0, b"\0")  # see WHOLE_LOG
        self._replica.append(self._position, data)
        self._position += len(data)

    def _heartbeat(self, begun: Start) -> None:
        """Record that the master's log ends at the current position."""
        position = self._position
        if self.state is FollowerState.COMPARING and position < begun.stop:
            if self._master is not None and position < self._master.end:
                raise RemoteProtocolError(f"the master's log ended at {self._master.end} a moment ago, and ends at {position} now")
            self._master_end = position
            raise _Parted(position)
        if position > WHOLE_LOG:
            self.master_end = position

    def _compared(self) -> None:
        """Follow from now on: everything in this log is in the master's."""
        if self._master is not None and self._master.epochs is not None:
            self._store.epochs.adopt(self._master.epochs)
        self.state = FollowerState.FOLLOWING
        self.reason = ""
        self._compare_bytes = COMPARE_BYTES
        self._followed_since = self._clock.monotonic()
        event(log, logging.INFO, "master_followed", server=self._name, master=self.master_address, log_offset=self._replica.end)

    def _read(self) -> None:
        """Acknowledge the bytes of this read of the socket that are written, and schedule their dispatch."""
        link = self._link
        if link is None:
            return
        written = min(self._position, self._store.commitlog_max_offset)  # an incomplete record waits in memory
        if written <= link.reported:
            return
        link.report(written)
        if self.state is FollowerState.FOLLOWING:
            self._noted = ""
            self.master_end = written
            self._appended()
            self._dispatching.soon()
            if self._dispatching.backlog > MAX_BACKLOG_BYTES:
                link.pause()

    def _stepped(self) -> None:
        if self._link is not None and self._link.paused and self._dispatching.backlog < MAX_BACKLOG_BYTES // 2:
            self._link.resume()

    # --- time ---

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        self.rate.note(now, self._replica.end)
        late = now - self._swept > self._sweep_s + _LATE_S
        self._swept = now
        link = self._link
        if link is None or self._begun is None:
            return
        if late or link.paused:
            link.received_at = now
        if now - link.received_at > self._housekeeping_s:
            link.fail(ConnectionLost(self.master_address, f"silent for {self._housekeeping_s:g} s"))
        elif now - link.reported_at >= self._heartbeat_s:
            link.report(link.reported)

    @property
    def _sweep_s(self) -> float:
        return min(self._heartbeat_s, self._housekeeping_s, 4.0) / 4
