"""Brokers ask how transactions have ended that had no outcome for a while (39): calls the program's check, and tells them."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from sprocketmq.client.instance import REQUEST_TIMEOUT_S, Instance, response_error
from sprocketmq.clock import Clock
from sprocketmq.errors import ProtocolError, SprocketError
from sprocketmq.net.client import Connection
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import CheckTransaction, EndTransaction
from sprocketmq.protocol.message import TransactionOutcome
from sprocketmq.protocol.properties import PRODUCER_GROUP, UNIQ_KEY
from sprocketmq.protocol.records import ReceivedMessage, decode_records

log = logging.getLogger(__name__)

# Calls of the check at a time, and questions that wait for one. Of others the broker asks again.
CHECKS_AT_ONCE = 16
MAX_WAITING = 2_000

Check = Callable[[ReceivedMessage], TransactionOutcome | Awaitable[TransactionOutcome]]
OnRequest = Callable[[Connection, Command], None]


class TransactionChecks:
    """Answers questions to the producers of ``group``; other requests of brokers go to ``otherwise``.

    A ``check`` that raises, takes longer than ``timeout_s`` or returns anything but a TransactionOutcome counts as UNKNOWN.
    """

    def __init__(self, check: Check, group: str, *, timeout_s: float, otherwise: OnRequest, clock: Clock) -> None:
        self._check = check
        self._group = group
        self._timeout_s = timeout_s
        self._otherwise = otherwise
        self._peer_log = PeerLog(log, clock.monotonic)
        self._instance: Instance | None = None
        self._waiting: deque[tuple[str, CheckTransaction, ReceivedMessage]] = deque()
        # Those that wait or are looked into, by broker and place: a broker may ask again before it is told.
        self._asked: set[tuple[str, int]] = set()
        self._running = 0

    def start(self, instance: Instance) -> None:
        """Begin to answer, with the connections of ``instance``."""
        self._instance = instance

    def handle(self, conn: Connection, command: Command) -> None:
        """Take a request of a broker; nothing is answered to a question but the outcome, by a request of its own."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            self._otherwise(conn, command)
            return
        try:
            header = command.header(CheckTransaction)
            message = decode_records(bytes(command.body))[0]
            group = message.properties.get(PRODUCER_GROUP)
        except (ProtocolError, IndexError) as e:
            self._dropped(conn.address, f"the question cannot be read: {e}")
            return
        if group != self._group:
            self._dropped(conn.address, f"it is of producer group {group}")
        elif (conn.address, header.commit_log_offset) in self._asked:
            return
        elif self._instance is None or len(self._waiting) >= MAX_WAITING:
            self._dropped(conn.address, f"{len(self._waiting)} questions wait for the check")
        else:
            self._asked.add((conn.address, header.commit_log_offset))
            self._waiting.append((conn.address, header, message))
            if self._running < CHECKS_AT_ONCE:
                self._running += 1
                self._instance.spawn(self._work(self._instance), "checks of transactions")

    def _dropped(self, address: str, reason: str) -> None:
        self._peer_log.event(address, "transaction_check_dropped", group=self._group, broker=address, reason=reason)

    async def _work(self, instance: Instance) -> None:
        try:
            while self._waiting:
                address, header, message = self._waiting.popleft()
                try:
                    outcome = await self._outcome(message)
                    if outcome is not TransactionOutcome.UNKNOWN:  # brokers take UNKNOWN for no answer
                        await self._tell(instance, address, header, message, outcome)
                finally:
                    self._asked.discard((address, header.commit_log_offset))
        finally:
            self._running -= 1

    async def _outcome(self, message: ReceivedMessage) -> TransactionOutcome:
        try:
            async with asyncio.timeout(self._timeout_s):
                outcome = self._check(message)
                if hasattr(outcome, "__await__"):
                    outcome = await outcome
        except TimeoutError:
            self._failed(message, f"the check has not returned within {self._timeout_s:g} s")
        except Exception as e:
            log.warning("producer group %s: the check of transaction %s has failed", self._group, message.msg_id, exc_info=e)
        else:
            if isinstance(outcome, TransactionOutcome):
                return outcome
            self._failed(message, f"the check must return a TransactionOutcome, not {outcome!r}")
        return TransactionOutcome.UNKNOWN

    def _failed(self, message: ReceivedMessage, reason: str) -> None:
        log.warning("producer group %s: transaction %s stays open, the broker asks again: %s", self._group, message.msg_id, reason)

    async def _tell(
        self, instance: Instance, address: str, asked: CheckTransaction, message: ReceivedMessage, outcome: TransactionOutcome
    ) -> None:
        uniq_key = message.properties.get(UNIQ_KEY, message.msg_id)
        header = EndTransaction(
            producer_group=self._group,
            half_offset=asked.half_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=int(outcome),
            msg_id=uniq_key,
            topic=message.topic,
            from_transaction_check=True,
            transaction_id=asked.transaction_id or uniq_key,
            broker_name=asked.broker_name,
        )
        try:
            answer = await instance.ask(address, RequestCode.END_TRANSACTION, ext=to_ext(header), timeout_s=REQUEST_TIMEOUT_S)
            if answer.code == ResponseCode.SUCCESS:
                return
            error: SprocketError = response_error(answer, address, message.topic)
        except SprocketError as e:
            error = e
        log.warning("producer group %s: broker %s does not take %s of %s: %s", self._group, address, outcome.name, message.msg_id, error)
