"""The master's side of the stream: listens for slaves, sends them the log as it grows, and takes their acknowledgements.

::

    commit -> wrote() -> a turn of the loop, or gather_s, later -> every slave gets what it lacks, as views of the mapped log
                                                         |
    acked() <- reports, checked against what was sent <--'

With SYNC_FLUSH (``after_flush``) slaves get only what this side's disk has. A slave shows readers what it has: after a power failure of the
master, other messages would have queue offsets that consumers have already passed.

What is unsent per slave is bounded by the transport's buffer, so a slave that does not read costs no memory; it gets what it lacks from the
log when it reads again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from sprocketmq.broker.replication.stream import Allowance, Marks, Rate, SlaveProgress
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import LogOffsetOutside, RemoteProtocolError
from sprocketmq.events import event
from sprocketmq.net.address import format_address
from sprocketmq.net.listening import Listener, listen_with_tls, stop_accepting
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server_tls import ServerTls
from sprocketmq.net.sockets import send_at_once
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.replication import SLAVE_PROOF_BYTES, MasterHandshake, ReportReader, encode_transfer_head

log = logging.getLogger(__name__)

MAX_SLAVES = 16
# A connection that has not reported (or not proven the secret) after this time is closed; at most MAX_SLAVES wait to do so.
FIRST_REPORT_S = 10.0
# With a secret this side speaks first: at a port that takes plain connections beside TLS, one that is silent for this time is plain.
SILENCE_S = 1.0
# How much may be unsent in a slave's transport before the log is read no further for it.
MAX_UNSENT_BYTES = 4 << 20
# Read-ahead for a slave that is behind: a page that is not in memory would block the loop.
READ_AHEAD_BYTES = 4 << 20
# Smaller pieces are joined with their head; larger ones are sent as views of the log.
_JOINED_BYTES = 16 << 10
_PAUSED_S = 1.0
DRAIN_POLL_S = 0.005


class Log(Protocol):
    """The master's log: the part of ``MessageStore`` that this module needs."""

    @property
    def commitlog_min_offset(self) -> int: ...

    @property
    def commitlog_max_offset(self) -> int: ...

    @property
    def commitlog_flushed_offset(self) -> int: ...

    def segments(self) -> list[tuple[int, int, str]]: ...

    def raw(self, log_offset: int, max_bytes: int) -> memoryview: ...

    def read_ahead(self, log_offset: int, count: int) -> None: ...


@dataclass(frozen=True)
class SlaveState:
    """One connected slave: the log offsets sent and acknowledged, its lag, and its recent transfer rate."""

    address: str
    sent: int
    acked: int
    behind_bytes: int
    behind_ms: int
    in_sync: bool
    connected_s: float
    bytes_per_s: int = 0


class ReplicationMaster:
    """Sends the log of ``store`` to slaves. ``name`` appears in log lines.

    ``acked`` is called when a slave has more than before. Commits are gathered for ``gather_s`` before they are sent, for a master whose
    sends wait for no slave: fewer transfers cost both sides less. With ``after_flush`` only what is on the disk is sent; ``wrote`` is then
    to be called after a flush as well. A slave is in sync while it is less than ``max_gap_bytes`` behind. With a ``secret`` only slaves
    that know it are served. ``tls`` says whether their connections may be, or must be, encrypted.
    """

    def __init__(
        self,
        store: Log,
        *,
        name: str = "master",
        acked: Callable[[], None] = lambda: None,
        gather_s: float = 0.0,
        after_flush: bool = False,
        secret: str | None = None,
        tls: ServerTls | None = None,
        batch_bytes: int = 1 << 20,
        heartbeat_s: float = 5.0,
        housekeeping_s: float = 20.0,
        max_gap_bytes: int = 256 << 20,
        max_bytes_per_s: int | None = None,
        max_slaves: int = MAX_SLAVES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.store = store
        self.name = name
        self.acked = acked
        self.gather_s = gather_s
        self.after_flush = after_flush
        self.secret = secret
        self._tls = tls
        self.batch_bytes = batch_bytes
        self.heartbeat_s = heartbeat_s
        self.housekeeping_s = housekeeping_s
        self.max_gap_bytes = max_gap_bytes
        self.max_bytes_per_s = max_bytes_per_s
        self.max_slaves = max_slaves
        self.clock = clock
        self.peer_log = PeerLog(log, clock.monotonic)
        self.port = 0
        # Slaves that follow, and connections that have not reported yet.
        self.links: list[SlaveLink] = []
        self.newcomers: list[SlaveLink] = []
        self._marks = Marks()
        self._listener: Listener | None = None
        self._background = Background(name)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self._swept = 0.0

    # --- life ---

    async def start(self, host: str, port: int) -> int:
        """Listen for slaves on ``host:port`` (port 0: any free one) and return the port. Raises PortInUse or ConfigError."""
        self._loop = asyncio.get_running_loop()
        self._background = Background(self.name)
        self._listener = await listen_with_tls(
            lambda: SlaveLink(self),
            host,
            port,
            self._tls,
            name=f"{self.name}, HA port",
            peer_log=self.peer_log,
            silence_s=SILENCE_S if self.secret is not None else None,
        )
        self.port = int(self._listener.sockets[0].getsockname()[1])
        self._swept = self.clock.monotonic()
        self._background.every(self._sweep_s, self._sweep, "heartbeats to slaves")
        return self.port

    async def drain(self, timeout_s: float) -> None:
        """Return when all slaves have acknowledged the whole log, or after ``timeout_s``; nothing is appended meanwhile."""
        deadline = self.clock.monotonic() + timeout_s
        end = self.store.commitlog_max_offset
        while any(link.progress.acked < end for link in self.links) and self.clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_S)

    async def stop(self) -> None:
        """Stop listening and close the connections of all slaves. May be called twice."""
        await self._background.close()
        listener, self._listener = self._listener, None
        if listener is not None:
            await stop_accepting(listener)
        for link in (*self.links, *self.newcomers):
            link.close("this broker stops")
        self._loop = None
        if listener is not None:
            await listener.wait_closed()

    # --- sending to slaves ---

    def wrote(self) -> None:
        """Record that the log may have grown; slaves are sent the rest once, however many commits there are until then."""
        if self.links and not self._scheduled and self._loop is not None:
            self._scheduled = True
            if self.gather_s:
                self._loop.call_later(self.gather_s, self._send)
            else:
                self._loop.call_soon(self._send)

    @property
    def sendable_end(self) -> int:
        """The log offset up to which slaves may have the log."""
        return self.store.commitlog_flushed_offset if self.after_flush else self.store.commitlog_max_offset

    def _send(self) -> None:
        self._scheduled = False
        self._marks.note(self.clock.monotonic(), self.store.commitlog_max_offset)
        for link in list(self.links):
            link.send()

    def _sweep(self) -> None:
        now = self.clock.monotonic()
        self.peer_log.sweep()
        # After a pause of this process, bytes of the slaves wait in the sockets: silence is measured again from now on.
        was_paused = now - self._swept > self._sweep_s + _PAUSED_S
        self._swept = now
        for link in (*self.links, *self.newcomers):
            link.sweep(now, was_paused=was_paused)

    @property
    def _sweep_s(self) -> float:
        return min(self.heartbeat_s, self.housekeeping_s, 4.0) / 4

    # --- acknowledgements ---

    def replicated(self, count: int) -> int:
        """Return the log offset up to which at least ``count`` slaves have acknowledged the log, 0 with fewer slaves."""
        if len(self.links) < count:
            return 0
        return sorted([link.progress.acked for link in self.links], reverse=True)[count - 1]

    def in_sync(self, count: int) -> bool:
        """Return whether at least ``count`` slaves are less than ``max_gap_bytes`` behind."""
        enough = self.store.commitlog_max_offset - self.max_gap_bytes
        return sum(link.progress.acked > enough for link in self.links) >= count

    @property
    def slaves(self) -> list[SlaveState]:
        """The slaves that follow now, in the order in which they connected."""
        now = self.clock.monotonic()
        return [self._state(link, now) for link in self.links]

    def _state(self, link: "SlaveLink", now: float) -> SlaveState:
        acked = link.progress.acked
        behind = max(0, self.store.commitlog_max_offset - acked)
        since = self._marks.since(acked) if behind else None
        return SlaveState(
            address=link.peer,
            sent=link.progress.sent,
            acked=acked,
            behind_bytes=behind,
            behind_ms=round((now - since) * 1000) if since is not None else 0,
            in_sync=behind < self.max_gap_bytes,
            connected_s=now - link.since,
            bytes_per_s=link.rate.per_second,
        )

    # --- called by the connections ---

    def opened(self, link: "SlaveLink") -> None:
        """Record a new connection. The oldest of too many is closed: silent strangers keep no slave out."""
        if len(self.newcomers) >= self.max_slaves:
            self.newcomers.pop(0).refuse(f"{self.max_slaves} newer connections have not reported either, the limit")
        self.newcomers.append(link)

    def follows(self, link: "SlaveLink") -> None:
        """Record that a connection has reported. Raises RemoteProtocolError when there are too many slaves."""
        if len(self.links) >= self.max_slaves:
            raise RemoteProtocolError(f"{self.max_slaves} slaves follow already, the limit")
        self.newcomers.remove(link)
        self.links.append(link)
        peer, begin, end = link.place
        event(log, logging.INFO, "slave_joined", server=self.name, peer=peer, log_offset=begin, log_end=end)
        self.acknowledged()

    def acknowledged(self) -> None:
        """Report that a slave has more than before."""
        self._marks.forget(min(link.progress.acked for link in self.links))
        self.acked()

    def left(self, link: "SlaveLink", reason: str) -> None:
        """Record that a connection has ended."""
        if link in self.links:
            self.links.remove(link)
            peer, acked, end = link.place
            event(log, logging.INFO, "slave_left", server=self.name, peer=peer, log_offset=acked, log_end=end, reason=reason)
        elif link in self.newcomers:
            self.newcomers.remove(link)


class SlaveLink(asyncio.Protocol):
    """One connection to the HA port."""

    def __init__(self, master: ReplicationMaster) -> None:
        self._master = master
        self._transport: asyncio.Transport | None = None
        self._reports = ReportReader()
        self._handshake = MasterHandshake(master.secret) if master.secret is not None else None
        self._proof = b""
        self._paused = self._following = self._eof = False
        self._reason = ""
        self._resume: asyncio.TimerHandle | None = None
        self.since = self._opened = self._received = self._written = master.clock.monotonic()
        per_second = master.max_bytes_per_s
        self._allowance = Allowance(per_second, self.since) if per_second is not None else None
        self.progress = SlaveProgress()
        self.rate = Rate()
        self.peer = ""

    @property
    def place(self) -> tuple[str, int, int]:
        """Address, acknowledged log offset and the end of the master's log, for log lines."""
        return self.peer, self.progress.acked, self._master.store.commitlog_max_offset

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        send_at_once(transport)
        name = transport.get_extra_info("peername")
        self.peer = format_address(name[0], name[1]) if name else "unknown"
        self._master.opened(self)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES, low=MAX_UNSENT_BYTES // 4)
        if self._handshake is not None:
            self._transport.write(self._handshake.challenge())

    def data_received(self, data: bytes) -> None:
        self._received = self._master.clock.monotonic()
        try:
            if self._handshake is not None:
                data = self._prove(data)
            for report in self._reports.received(data):
                self._take(report)
        except RemoteProtocolError as e:
            self.refuse(str(e))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.send()

    def eof_received(self) -> bool:
        # The transport is closing; with TLS it does so only when the slave has read what is encrypted already. Nothing can be written until
        # then.
        self._eof = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._resume is not None:
            self._resume.cancel()
        self._master.left(self, self._reason or (str(exc) if exc else "it closed the connection"))

    # --- reports ---

    def _prove(self, data: bytes) -> bytes:
        """Check the slave's proof, and return the bytes after it."""
        assert self._handshake is not None
        assert self._transport is not None
        self._proof += data
        if len(self._proof) < SLAVE_PROOF_BYTES:
            return b""
        data = self._proof[SLAVE_PROOF_BYTES:]
        self._transport.write(self._handshake.answer(self._proof[:SLAVE_PROOF_BYTES]))
        self._handshake = None
        self._proof = b""
        return data

    def _take(self, report: int) -> None:
        master = self._master
        if self._following:
            if self.progress.take(report):
                master.acknowledged()
            return
        store = master.store
        begin, end = store.commitlog_min_offset, store.commitlog_max_offset
        segments = store.segments()
        self.progress.begin(report, begin, end, segments[0][1] if segments else end + 1)
        master.follows(self)
        self._following = True
        self.send()

    # --- sending ---

    def send(self) -> None:
        """Send what the slave lacks, within the limits of its transport and its allowance."""
        transport = self._transport
        if self._paused or self._eof or transport is None or transport.is_closing():
            return
        master, progress = self._master, self.progress
        store = master.store
        end = master.sendable_end
        limit = master.batch_bytes
        while progress.sent < end and not self._paused:
            if self._allowance is not None and (limit := self._allowed()) <= 0:
                return
            try:
                data = store.raw(progress.sent, min(limit, end - progress.sent))
            except LogOffsetOutside as e:
                self.refuse(f"the slave needs log that was deleted: {e}")
                return
            count = len(data)
            head = encode_transfer_head(progress.sent, count)
            progress.sent += count
            if count <= _JOINED_BYTES:
                transport.write(head + data)
            else:
                transport.write(head)
                transport.write(data)
                store.read_ahead(progress.sent + READ_AHEAD_BYTES, count)
            self._written = master.clock.monotonic()
            if self._allowance is not None:
                self._allowance.take(count)

    def _allowed(self) -> int:
        """Return how much may be sent now; at 0, sending continues a little later."""
        assert self._allowance is not None
        master = self._master
        allowed = min(master.batch_bytes, self._allowance.step, self._allowance.available(master.clock.monotonic()))
        if allowed <= 0 and self._resume is None:
            self._resume = asyncio.get_running_loop().call_later(0.02, self._go_on)
        return allowed

    def _go_on(self) -> None:
        self._resume = None
        self.send()

    def sweep(self, now: float, *, was_paused: bool) -> None:
        """Send a heartbeat when it is due, and close a connection that was silent for too long."""
        master = self._master
        self.rate.note(now, self.progress.sent)
        if was_paused:
            self._received = self._opened = now
        if not self._following:
            if now - self._opened > FIRST_REPORT_S:
                self.refuse(f"it has not reported within {FIRST_REPORT_S:g} s")
        elif now - self._received > master.housekeeping_s:
            self.close(f"silent for {master.housekeeping_s:g} s")
        elif (
            now - self._written >= master.heartbeat_s
            and self._transport is not None
            and not self._eof
            and self.progress.sent >= master.store.commitlog_max_offset  # a heartbeat reports the end of the log
        ):
            self._written = now
            self._transport.write(encode_transfer_head(self.progress.sent, 0))

    # --- ending ---

    def refuse(self, reason: str) -> None:
        """Close the connection, with a warning that says why."""
        if self._transport is not None and not self._transport.is_closing():
            master = self._master
            master.peer_log.event(self.peer.rpartition(":")[0], "slave_refused", server=master.name, peer=self.peer, reason=reason)
            self.close(reason)

    def close(self, reason: str) -> None:
        """Close the connection at once."""
        self._reason = self._reason or reason
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._transport.abort()
