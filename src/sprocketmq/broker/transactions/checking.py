"""Asks producers about transactions without an outcome, and gives up on those that remain unanswered."""

import asyncio
import logging
from collections.abc import Callable

from sprocketmq.broker.clients import ClientRegistry
from sprocketmq.broker.cold_reads import MAX_RECORD_LOADS, DiskReads
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.transactions.halves import check_body, half_at
from sprocketmq.broker.transactions.open import OpenHalf
from sprocketmq.broker.transactions.service import TransactionService
from sprocketmq.clock import Clock
from sprocketmq.errors import FatalError, ProtocolError, RetriableError, SprocketError
from sprocketmq.events import event
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import CheckTransaction
from sprocketmq.protocol.names import HALF_TOPIC
from sprocketmq.protocol.properties import PRODUCER_GROUP, REAL_TOPIC, UNIQ_KEY
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.storage.store import ColdRead

log = logging.getLogger(__name__)

# Checks sent in one turn of the loop: a few milliseconds of work.
MAX_AT_ONCE = 64
# Pause when a half message is not on the disk yet, or the disk refuses.
AGAIN_S = 0.5
# A producer with this many unread bytes is sent no more checks.
MAX_BACKLOG_BYTES = 1 << 20


class TransactionChecks:
    """Asks on the running loop, between ``start`` and ``stop``.

    With access control, ``may_send`` tells whether the user of a connection may send to a topic: others must not see its half messages.
    """

    def __init__(
        self,
        config: BrokerConfig,
        service: TransactionService,
        clients: ClientRegistry,
        disk: DiskReads,
        *,
        may_send: Callable[[ServerConnection, str], bool],
        writable: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._broker_name = config.broker_name
        self._interval_s = config.transaction_check_interval_s
        self._max_checks = config.transaction_check_max
        self._reserved_ms = config.store.file_reserved_hours * 3_600_000
        self._service = service
        self._clients = clients
        self._disk = disk
        self._may_send = may_send
        self._writable = writable
        self._clock = clock
        self._peer_log = PeerLog(log, clock.monotonic, level=logging.INFO)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self._turn = 0
        # Whether half messages are being read from the disk, and how often since the last turn that asked.
        self._loading = False
        self._loads = 0
        self.asked = self.discarded = 0
        service.opened = self._opened

    def start(self) -> None:
        """Start asking."""
        self._loop = asyncio.get_running_loop()
        self._arm()

    def stop(self) -> None:
        """Stop asking; may be called twice."""
        self._loop = None
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _opened(self) -> None:
        next_at = self._service.open_halves.next_at
        if next_at is not None and (self._timer is None or next_at < self._armed_for):
            self._arm()

    def _arm(self) -> None:
        self._disarm()
        if self._loading:
            return
        next_at = self._service.open_halves.next_at
        if next_at is not None and self._loop is not None:
            self._armed_for = next_at
            self._timer = self._loop.call_later(max(0.0, next_at - self._clock.monotonic()), self.fire)

    def fire(self) -> None:
        """Ask about the transactions that are due, up to the limit of one turn. Failures are logged and retried soon."""
        self._peer_log.sweep()
        now = self._clock.monotonic()
        halves = self._service.open_halves
        due = halves.take_due(now, MAX_AT_ONCE)
        if self._loads < MAX_RECORD_LOADS and (cold := self._find_cold(due)):
            for offset, half in due:
                halves.defer(offset, half, half.ask_at)
            self._loads += 1
            self._loading = True
            self._disk.load_all(cold, self._loaded)
            return
        self._loads = 0
        for offset, half in due:
            try:
                self._look(offset, half, now)
            except (RetriableError, FatalError, OSError) as e:
                log.warning("the transaction of the half message at %d of the log has to wait: %s", half.log_offset, e)
                halves.defer(offset, half, now + AGAIN_S)
            except Exception:
                log.exception("the transaction of the half message at %d of the log has to wait", half.log_offset)
                halves.defer(offset, half, now + self._interval_s)
        self._arm()

    def _find_cold(self, due: list[tuple[int, OpenHalf]]) -> list[ColdRead]:
        """Return what has to be read from the disk for these half messages."""
        try:
            found = [self._service.store.find_cold_record(half.log_offset) for _, half in due]
        except (SprocketError, OSError):
            return []  # reading the records tells what is the matter
        return [read for read in found if read is not None]

    def _loaded(self) -> None:
        self._loading = False
        if self._loop is not None:
            self.fire()

    def _look(self, offset: int, half: OpenHalf, now: float) -> None:
        service = self._service
        if half.log_offset >= service.store.commitlog_visible_offset:
            service.open_halves.defer(offset, half, now + AGAIN_S)  # not on the disk yet
            return
        try:
            message = half_at(service.store, half.log_offset, offset)
        except ProtocolError as e:
            message = None
            event(log, logging.ERROR, "half_message_damaged", offset=offset, log_offset=half.log_offset, reason=e)
        if message is None:
            service.open_halves.drop(offset)  # its send failed, or it has left the log
        elif half.checks >= self._max_checks or self._clock.time_ms() - message.store_timestamp_ms > self._reserved_ms:
            if not self._writable():
                service.open_halves.defer(offset, half, now + AGAIN_S)
                return
            service.discard(message)
            self.discarded += 1
            group = message.properties.get(PRODUCER_GROUP, "")
            event(log, logging.WARNING, "transaction_discarded", topic=half.topic, group=group, msg_id=message.msg_id, checks=half.checks)
        else:
            half.checks += 1
            service.open_halves.defer(offset, half, now + self._interval_s)
            self._ask(message, half.checks)

    def _ask(self, half: ReceivedMessage, times: int) -> None:
        pairs = half.properties
        group, topic = pairs.get(PRODUCER_GROUP, ""), pairs.get(REAL_TOPIC, "")
        producer = self._producer(group, topic)
        if producer is None:
            self._peer_log.event(group, "transaction_unasked", group=group, topic=topic, checks=times, reason="no producer is connected")
            return
        uniq = pairs.get(UNIQ_KEY)
        header = CheckTransaction(
            half_offset=half.queue_offset,
            commit_log_offset=half.commitlog_offset,
            topic=HALF_TOPIC,
            msg_id=uniq,
            transaction_id=uniq,
            offset_msg_id=half.offset_msg_id,
            broker_name=self._broker_name,
        )
        producer.oneway(RequestCode.CHECK_TRANSACTION_STATE, ext=to_ext(header), body=check_body(half, times))
        self.asked += 1

    def _producer(self, group: str, topic: str) -> ServerConnection | None:
        """Return the next connection of a producer group that may be asked about ``topic``."""
        members = [
            conn
            for conn in self._clients.producers.get(group, {})
            if not conn.closed and conn.write_backlog <= MAX_BACKLOG_BYTES and self._may_send(conn, topic)
        ]
        self._turn += 1
        return members[self._turn % len(members)] if members else None
