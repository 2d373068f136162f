"""Requests that brokers send to a group member: rebalance, reset offsets, report its state.

See docs/internals/consumers.md#requests-of-brokers.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

from sprocketmq._version import __version__
from sprocketmq.client.consume.group_member import GroupMember
from sprocketmq.client.consume.orderly import MemberLocks
from sprocketmq.client.consume.process_queue import ProcessQueue
from sprocketmq.client.instance import Instance
from sprocketmq.errors import RemoteProtocolError, SprocketError
from sprocketmq.net.client import Connection
from sprocketmq.protocol.bodies import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    ConsumeStatus,
    ProcessQueueInfo,
    ResetOffsets,
)
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import ConsumeDirectly, ConsumerGroupRequest, ConsumerStatusRequest, ResetOffset, RunningInfoRequest
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import ReceivedMessage, decode_records

log = logging.getLogger(__name__)

Consume = Callable[[ReceivedMessage], Awaitable[ConsumeDirectlyResult]]


class BrokerRequests:
    """Answers brokers for one member.

    ``settings`` are part of its reported state; ``seek`` moves an assigned queue; ``consume`` has one message handled outside the
    normal flow.
    """

    def __init__(
        self,
        instance: Instance,
        member: GroupMember,
        locks: MemberLocks | None,
        *,
        settings: Mapping[str, str],
        seek: Callable[[MessageQueue, int], None],
        consume: Consume,
    ) -> None:
        self._instance = instance
        self._member = member
        self._locks = locks
        self._settings = settings
        self._seek = seek
        self._consume = consume
        self._started_ms = instance.clock.time_ms()
        self._handlers: dict[int, Callable[[Connection, Command], None]] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def handle(self, conn: Connection, command: Command) -> None:
        """Handle a request of a broker. One that is unknown or for another group is refused with the reason."""
        handler = self._handlers.get(command.code)
        if handler is None:
            conn.respond(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported")
            return
        try:
            handler(conn, command)
        except SprocketError as e:
            log.warning("consumer group %s: a request of broker %s is refused: %s", self._member.group, conn.address, e)
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=str(e))

    def _members_changed(self, conn: Connection, command: Command) -> None:  # noqa: ARG002 - the signature of every handler
        if command.header(ConsumerGroupRequest).consumer_group == self._member.group:
            self._member.rebalance_soon()

    def _reset(self, conn: Connection, command: Command) -> None:  # noqa: ARG002 - the signature of every handler
        """Move to the offsets an operator chose (220), and commit them at once."""
        header = command.header(ResetOffset)
        self._check(header.group)
        moved = False
        for queue, offset in ResetOffsets.decode(command.body).offset_table.items():
            pq = self._member.queues.get(queue)
            if pq is None or queue.topic != header.topic:
                continue
            if not header.is_force and offset > pq.commit_offset:
                continue  # without force, offsets only move back
            log.info("consumer group %s: %s was reset from offset %d to %d", self._member.group, queue, pq.commit_offset, offset)
            self._seek(queue, offset)
            moved = True
        if moved:
            self._instance.spawn(self._commit(), "commit of offsets that were reset")

    async def _commit(self) -> None:
        try:
            await self._member.commit_all()
        except SprocketError as e:
            log.warning("consumer group %s: offsets that were reset are not committed yet: %s", self._member.group, e)

    def _status(self, conn: Connection, command: Command) -> None:
        """Report the commit offsets of a topic (221)."""
        header = command.header(ConsumerStatusRequest)
        self._check(header.group)
        offsets = {queue: pq.commit_offset for queue, pq in self._member.queues.items() if queue.topic == header.topic}
        conn.respond(command, ResponseCode.SUCCESS, body=ConsumerStatus(offsets).encode())

    def _running_info(self, conn: Connection, command: Command) -> None:
        """Report the state of this member (307)."""
        self._check(command.header(RunningInfoRequest).consumer_group)
        properties = {
            **self._settings,
            "PROP_NAMESERVER_ADDR": ";".join(self._instance.namesrv.addresses),
            "PROP_CONSUME_TYPE": self._member.consume_type,
            "PROP_CLIENT_VERSION": f"sprocketmq {__version__}",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "messageModel": "BROADCASTING" if self._member.broadcasting else "CLUSTERING",
            "consumeFromWhere": self._member.from_where,
            "consumerGroup": self._member.group,
            "language": "PYTHON",
        }
        info = ConsumerRunningInfo(
            properties,
            list(self._member.subscriptions.values()),
            {queue: self._queue_info(pq) for queue, pq in self._member.queues.items()},
            status_table={topic: ConsumeStatus() for topic in self._member.subscriptions},
        )
        conn.respond(command, ResponseCode.SUCCESS, body=info.encode())

    def _queue_info(self, pq: ProcessQueue) -> ProcessQueueInfo:
        commit = pq.commit_offset
        return ProcessQueueInfo(
            commit_offset=commit,
            cached_msg_min_offset=commit if pq.held_messages else 0,
            cached_msg_max_offset=pq.next_offset - 1 if pq.held_messages else 0,
            cached_msg_count=pq.held_messages,
            cached_msg_size_in_mib=pq.held_bytes >> 20,
            locked=self._locks is not None and self._locks.leases.holds(pq.queue),
            droped=pq.dropped,
            last_pull_timestamp=self._wall_ms(pq.pulled_at),
            last_consume_timestamp=self._wall_ms(pq.taken_at),
        )

    def _wall_ms(self, monotonic_s: float) -> int:
        # "Never" is reported as now, because tools take an old time for a member that hangs.
        clock = self._instance.clock
        age_s = clock.monotonic() - monotonic_s if monotonic_s else 0.0
        return clock.time_ms() - round(age_s * 1000)

    def _consume_directly(self, conn: Connection, command: Command) -> None:
        """Call the handler with the one message that the broker sends along (309), and report the outcome."""
        header = command.header(ConsumeDirectly)
        self._check(header.consumer_group)
        messages = decode_records(command.body, broker_name=header.broker_name or "")
        if len(messages) > 1:  # a whole inner batch: the broker sends the record
            messages = [message for message in messages if message.msg_id == header.msg_id]
        if len(messages) != 1:
            raise RemoteProtocolError(f"the request has {len(messages)} messages to consume, not one")
        self._instance.spawn(self._answer(conn, command, messages[0]), "message consumed directly")

    async def _answer(self, conn: Connection, command: Command, message: ReceivedMessage) -> None:
        result = await self._consume(message)
        conn.respond(command, ResponseCode.SUCCESS, body=result.encode())

    def _check(self, group: str) -> None:
        if group != self._member.group:
            raise RemoteProtocolError(f"The Consumer Group <{group}> not exist in this consumer")
