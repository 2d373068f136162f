"""Requests about transactions: producers end them (code 37), operators have those checked again that were given up on (323)."""

import logging
from collections.abc import Callable

from sprocketmq.broker.cold_reads import ColdRecords
from sprocketmq.broker.send_rules import SendRefused
from sprocketmq.broker.staged_sends import StagedSends
from sprocketmq.broker.topics import TopicRefused
from sprocketmq.broker.transactions.halves import half_at, immunity_s
from sprocketmq.broker.transactions.service import TransactionService
from sprocketmq.clock import Clock
from sprocketmq.errors import FatalError, InvalidMessage, MessageTooLarge, ProtocolError, RetriableError
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import EndTransaction, ResumeCheck
from sprocketmq.protocol.ids import parse_offset_msg_id
from sprocketmq.protocol.message import TransactionOutcome
from sprocketmq.protocol.names import DISCARDED_HALVES_TOPIC
from sprocketmq.protocol.properties import PRODUCER_GROUP, REAL_TOPIC
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.security.requirements import PUB, UPDATE, Allows, topic_context

log = logging.getLogger(__name__)

NOT_FOUND = "Find prepared transaction message failed"
_OTHER_DECISION = "the transaction was ended before, and not in this way"


class TransactionHandlers:
    """Answers the requests of producers about ``service``'s transactions. With access control, ``allows`` says who may do so."""

    def __init__(self, service: TransactionService, staged: StagedSends, cold: ColdRecords, *, clock: Clock, allows: Allows | None) -> None:
        self._service = service
        self._staged = staged
        self._cold = cold
        self._clock = clock
        self._allows = allows
        self._peer_log = PeerLog(log, clock.monotonic)

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.END_TRANSACTION: self.end, RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume}

    def end(self, conn: ServerConnection, command: Command) -> None:
        """Commit a transaction or roll it back; answered when the outcome is as durable as a send."""
        header = command.header(EndTransaction)
        self._cold.when_in_memory(conn, command, header.commit_log_offset, lambda: self._answer_end(conn, command, header))

    def _answer_end(self, conn: ServerConnection, command: Command, header: EndTransaction) -> None:
        refusal = _refusal(lambda: self._end(conn, command, header))
        if refusal is not None:
            # Apache's clients send this one-way and never see a refusal.
            group, reason = header.producer_group, refusal[1]
            self._peer_log.event(group, "transaction_end_refused", group=group, peer=conn.peer, reason=reason)
            conn.respond(command, refusal[0], remark=reason)

    def resume(self, conn: ServerConnection, command: Command) -> None:
        """Check a transaction again that was given up on; answered when that is as durable as a send."""
        header = command.header(ResumeCheck)
        try:
            _, _, log_offset = parse_offset_msg_id(header.msg_id)
        except ProtocolError as e:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=str(e))
        else:
            self._cold.when_in_memory(conn, command, log_offset, lambda: self._answer_resume(conn, command, header, log_offset))

    def _answer_resume(self, conn: ServerConnection, command: Command, header: ResumeCheck, log_offset: int) -> None:
        refusal = _refusal(lambda: self._resume(conn, command, header, log_offset))
        if refusal is not None:
            conn.respond(command, refusal[0], remark=refusal[1])

    def _resume(self, conn: ServerConnection, command: Command, header: ResumeCheck, log_offset: int) -> None:
        waits = self._staged.check_takes() and not command.flag & FLAG_ONEWAY
        kept = half_at(self._service.store, log_offset, topic=DISCARDED_HALVES_TOPIC)
        if kept is None:
            raise SendRefused(ResponseCode.SYSTEM_ERROR, f"there is no message of {DISCARDED_HALVES_TOPIC} with the id {header.msg_id}")
        topic = kept.properties.get(REAL_TOPIC, "")
        if self._allows is not None and not self._allows(conn, command, topic_context(topic, UPDATE)):
            raise SendRefused(ResponseCode.NO_PERMISSION, "the half message there is for a topic that this user may not change")
        self._service.resume(conn, command, kept, waits=waits)

    def _end(self, conn: ServerConnection, command: Command, header: EndTransaction) -> None:
        try:
            outcome = TransactionOutcome(header.commit_or_rollback)
        except ValueError:
            remark = f"commitOrRollback is {header.commit_or_rollback}, it must be 8 (commit), 12 (roll back) or 0 (not known yet)"
            raise SendRefused(ResponseCode.SYSTEM_ERROR, remark) from None
        if outcome is TransactionOutcome.UNKNOWN:
            conn.respond(command, ResponseCode.SUCCESS)  # the producer is asked again
            return
        waits = self._staged.check_takes() and not command.flag & FLAG_ONEWAY
        half = self._half(conn, command, header)
        service = self._service
        if service.open_halves.get(half.queue_offset, half.commitlog_offset) is None:
            if service.open_halves.outcome(half.commitlog_offset) is not outcome:
                raise SendRefused(ResponseCode.SYSTEM_ERROR, _OTHER_DECISION)
            conn.respond(command, ResponseCode.SUCCESS)  # a repeated outcome
            return
        if outcome is TransactionOutcome.COMMIT:
            service.commit(conn, command, half, waits=waits)
        else:
            service.roll_back(conn, command, half, waits=waits)

    def _half(self, conn: ServerConnection, command: Command, header: EndTransaction) -> ReceivedMessage:
        """Return the half message that a request names. Raises SendRefused, with the reference's text where it has one."""
        half = half_at(self._service.store, header.commit_log_offset)
        if half is None:
            raise SendRefused(ResponseCode.SYSTEM_ERROR, NOT_FOUND)
        pairs = half.properties
        if self._allows is not None and not self._allows(conn, command, topic_context(pairs.get(REAL_TOPIC, ""), PUB)):
            raise SendRefused(ResponseCode.NO_PERMISSION, "the half message there is for a topic that this user may not send to")
        if pairs.get(PRODUCER_GROUP) != header.producer_group:
            raise SendRefused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.half_offset:
            raise SendRefused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if half.commitlog_offset != header.commit_log_offset:
            raise SendRefused(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        immunity = immunity_s(pairs)
        if immunity and not header.from_transaction_check:
            age_s = (self._clock.time_ms() - half.store_timestamp_ms) / 1000
            if age_s > max(immunity, self._service.timeout_s):
                remark = "the transaction has had no outcome for longer than CHECK_IMMUNITY_TIME_IN_SECONDS: the broker asks for it now"
                raise SendRefused(ResponseCode.ILLEGAL_OPERATION, remark)
        return half


def _refusal(answer: Callable[[], None]) -> tuple[int, str] | None:
    """Return code and remark of a refusal; None when ``answer`` has answered, or will."""
    try:
        answer()
    except (SendRefused, TopicRefused) as e:
        return e.code, e.remark
    except (MessageTooLarge, InvalidMessage, ProtocolError) as e:
        return ResponseCode.SYSTEM_ERROR, str(e)
    except (RetriableError, FatalError, OSError) as e:
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now. It may be caused by: {e}"
    return None
