"""Request 222: groups are moved to a time, to the end, or one of their queues to an offset."""

import logging
from collections.abc import Callable, Sequence

from sprocketmq.broker.cold_reads import ColdReads, DiskReads
from sprocketmq.broker.groups import GroupTable
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.pull import PullHandlers
from sprocketmq.broker.queue_offsets import MAX_LOADS, first_since
from sprocketmq.broker.topics import Topic, TopicTable
from sprocketmq.broker.waiting_request import WaitingRequest
from sprocketmq.events import event
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import ResetOffsets
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import ResetOffset
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.storage.store import MessageStore, NotInMemory

log = logging.getLogger(__name__)


class _Reset(WaitingRequest):
    """One checked reset: its queues, and the offsets found so far."""

    __slots__ = ("found", "queues", "request", "topic")

    def __init__(self, conn: ServerConnection, command: Command, request: ResetOffset, topic: Topic, queues: Sequence[int]) -> None:
        super().__init__(conn, command)
        self.request = request
        self.topic = topic
        self.queues = queues
        self.found: dict[int, int] = {}


class ResetHandlers:
    """Moves groups; their members learn of it at their next pull. A search by time waits for the disk where no other request does."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        pulls: PullHandlers,
        disk: DiskReads,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._pulls = pulls
        self._cold: ColdReads[_Reset] = ColdReads(disk, self._loaded)

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offsets}

    def reset_offsets(self, conn: ServerConnection, command: Command) -> None:
        """Answer 222: move a group to a time (-1: the end), or one queue of it to an offset."""
        request = command.header(ResetOffset)
        topic = self._topics.get(request.topic)
        if topic is None:
            conn.respond(command, ResponseCode.TOPIC_NOT_EXIST, remark=f"Topic {request.topic} does not exist")
            return
        if request.group not in self._groups:
            conn.respond(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=f"Group {request.group} does not exist")
            return
        one = request.queue_id if request.queue_id is not None and request.queue_id >= 0 else None
        if one is not None and one >= topic.read_queues:
            remark = f"queueId[{one}] is illegal, topic:[{topic.name}] topicConfig.readQueueNums:[{topic.read_queues}]"
            conn.respond(command, ResponseCode.INVALID_PARAMETER, remark=remark)
            return
        reset = _Reset(conn, command, request, topic, range(topic.read_queues) if one is None else (one,))
        if one is not None and request.offset is not None and request.offset >= 0:
            low, high = self._store.min_offset(topic.name, one), self._store.max_offset(topic.name, one)
            if not low <= request.offset <= high:
                remark = f"Target offset {request.offset} not in consume queue range [{low}-{high}]"
                conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=remark)
                return
            reset.found[one] = request.offset
        self._reset(reset)

    def _reset(self, reset: _Reset) -> None:
        try:
            for queue_id in reset.queues[len(reset.found) :]:
                reset.found[queue_id] = self._offset_at(reset, queue_id)
                reset.loads = 0
        except NotInMemory as e:
            if not self._cold.begin(reset, e.cold):
                reset.answer_busy()
            return
        self._move(reset)

    def _offset_at(self, reset: _Reset, queue_id: int) -> int:
        """Return the offset of a queue at the time of the request. Raises NotInMemory."""
        topic, time_ms = reset.topic.name, reset.request.timestamp_ms
        if time_ms < 0:
            return self._store.max_offset(topic, queue_id)
        return first_since(self._store, topic, queue_id, time_ms, waits=reset.loads >= MAX_LOADS)

    def _move(self, reset: _Reset) -> None:
        request, topic, conn = reset.request, reset.topic, reset.conn
        for queue_id, offset in reset.found.items():
            self._offsets.reset(request.group, topic.name, queue_id, offset)
            self._pulls.held.offset_reset(request.group, topic, queue_id, offset)
        event(
            log,
            logging.INFO,
            "offsets_reset",
            group=request.group,
            topic=topic.name,
            offsets=[f"{queue_id}:{offset}" for queue_id, offset in reset.found.items()],
            timestamp_ms=request.timestamp_ms if request.timestamp_ms >= 0 else None,
            by=conn.user,
            peer=conn.peer,
        )
        table = {MessageQueue(topic.name, self._broker_name, queue_id): offset for queue_id, offset in reset.found.items()}
        conn.respond(reset.command, ResponseCode.SUCCESS, body=ResetOffsets(table).encode(), since=reset.since)

    def _loaded(self, reset: _Reset) -> None:
        conn, command, topic = reset.conn, reset.command, reset.topic
        if self._topics.get(topic.name) is not topic:
            remark = f"Topic {topic.name} does not exist"
            conn.respond(command, ResponseCode.TOPIC_NOT_EXIST, remark=remark, since=reset.since)
            return
        try:
            self._reset(reset)
        except Exception as e:
            log.exception("the reset of group %s on topic %s failed", reset.request.group, topic.name)
            reset.answer_error(e)
