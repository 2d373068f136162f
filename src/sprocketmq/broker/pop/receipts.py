"""Receipts of pops: single and batch acknowledgements, and changes of the invisible time (codes 200051, 200053 and 200151)."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sprocketmq.broker.metrics.counters import BrokerCounters, GroupCounters
from sprocketmq.broker.pop.journal import Journal
from sprocketmq.broker.pop.popping import ORDERLY, Popping
from sprocketmq.broker.topics import FAQ, Topic, TopicTable
from sprocketmq.clock import Clock
from sprocketmq.errors import FatalError, RemoteProtocolError
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies.pops import decode_acks
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import PopAck, PopChange
from sprocketmq.storage.store import MessageStore

MAX_INVISIBLE_MS = 7 * 24 * 3600 * 1000

# startOffset popTime invisibleTime reviveQueue kind broker queueId queueOffset, and an endpoint's own log offset
_HANDLE = re.compile(r"-?\d{1,19} (\d{1,19}) \d{1,19} (\d{1,9}) \d \S+ (\d{1,9}) \d{1,19}(?: \d{1,19})? ?", re.ASCII)


# The number of acknowledged messages by group.
_Done = Sequence[tuple[GroupCounters, int]]


class PopRefused(FatalError):
    """A request that is answered with an error code."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class Receipt(NamedTuple):
    """The part of a receipt handle that the broker reads."""

    popped_ms: int
    orderly: bool


class ReceiptHandlers:
    """Answers the requests; ``wake(topic)`` serves the pops that wait for a topic."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        popping: Popping,
        journal: Journal,
        counters: BrokerCounters,
        *,
        wake: Callable[[Topic], None],
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._popping = popping
        self._journal = journal
        self._counters = counters
        self._wake = wake
        self._clock = clock

    def calls(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        """Return the handlers by code; they raise PopRefused."""
        return {
            RequestCode.ACK_MESSAGE: self._ack,
            RequestCode.BATCH_ACK_MESSAGE: self._batch_ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._change,
        }

    def _queue(self, name: str, queue_id: int) -> Topic:
        """Return the topic of a queue. Raises PopRefused for an unknown one."""
        topic = self._topics.get(name)
        if topic is None:
            raise PopRefused(ResponseCode.TOPIC_NOT_EXIST, no_topic(name))
        if not 0 <= queue_id < topic.read_queues:
            remark = f"queueId[{queue_id}] is illegal, topic:[{name}] has {topic.read_queues} queues to read"
            raise PopRefused(ResponseCode.MESSAGE_ILLEGAL, remark)
        return topic

    def _place(self, name: str, queue_id: int, offset: int, *, end: int) -> Topic:
        """Return the topic of a receipt. Raises PopRefused for an unknown place; ``end`` is how far past the last offset a place may be."""
        topic = self._queue(name, queue_id)
        low, high = self._store.min_offset(name, queue_id), self._store.max_offset(name, queue_id)
        if not low <= offset < high + end:
            raise PopRefused(ResponseCode.NO_MESSAGE, f"offset is illegal, key:{name}@{queue_id}, commit:{offset}, store:{low}~{high}")
        return topic

    def _ack(self, conn: ServerConnection, command: Command) -> None:
        """Answer 200051. A late or repeated acknowledgement is no error, and has no effect."""
        header = command.header(PopAck)
        receipt = _receipt(header.extra_info, header.queue_id)
        topic = self._place(header.topic, header.queue_id, header.offset, end=1)
        done = self._acknowledge(header.consumer_group, topic, header.queue_id, [header.offset], receipt.popped_ms, orderly=receipt.orderly)
        self._answer_written(conn, command, acknowledged=done)

    def _acknowledge(self, group: str, topic: Topic, queue_id: int, offsets: list[int], popped_ms: int, *, orderly: bool) -> _Done:
        done = self._popping.acknowledge(group, topic.name, queue_id, offsets, popped_ms, orderly=orderly)
        if done and orderly:
            self._wake(topic)
        return [(self._counters.of_group(topic, group), done)] if done else []

    def _answer_written(
        self,
        conn: ServerConnection,
        command: Command,
        ext: dict[str, str] | None = None,
        *,
        acknowledged: _Done = (),
        changed: GroupCounters | None = None,
    ) -> None:
        def answer(failure: object) -> None:
            if failure is None:
                for group, count in acknowledged:
                    group.pop_acks += count
                if changed is not None:
                    changed.pop_checkpoints += 1
                conn.respond(command, ResponseCode.SUCCESS, ext=ext or {})
            else:
                conn.respond(command, ResponseCode.SYSTEM_ERROR, ext={}, remark=f"it cannot be kept: {failure}")

        command.body = b""
        self._journal.when_written(answer)

    def _batch_ack(self, conn: ServerConnection, command: Command) -> None:
        """Answer 200151: acknowledgements of several pops."""
        try:
            checked = [(entry, self._queue(entry.topic, entry.queue_id), entry.offsets()) for entry in decode_acks(command.body)]
        except RemoteProtocolError as e:
            raise PopRefused(ResponseCode.MESSAGE_ILLEGAL, str(e)) from None
        if not checked:
            raise PopRefused(ResponseCode.NO_MESSAGE, "the list of acknowledgements is empty")
        done = [
            counted
            for entry, topic, offsets in checked
            for counted in self._acknowledge(
                entry.group, topic, entry.queue_id, offsets, entry.popped_ms, orderly=entry.revive_queue_id == ORDERLY
            )
        ]
        self._answer_written(conn, command, acknowledged=done)

    def _change(self, conn: ServerConnection, command: Command) -> None:
        """Answer 200053 with a new receipt; the old one is void."""
        header = command.header(PopChange)
        receipt = _receipt(header.extra_info, header.queue_id)
        invisible_ms = checked_invisible(header.invisible_time_ms)
        topic = self._place(header.topic, header.queue_id, header.offset, end=0)
        popped_ms = self._popping.change(
            header.consumer_group,
            topic.name,
            header.queue_id,
            header.offset,
            receipt.popped_ms,
            invisible_ms,
            orderly=receipt.orderly,
            counts=not header.suspend,
        )
        if popped_ms is None:
            raise PopRefused(
                ResponseCode.NO_MESSAGE, f"the receipt of offset {header.offset} does not hold any more: use that of its last delivery"
            )
        if receipt.orderly:
            invisible_ms += self._clock.time_ms() - popped_ms
        ext = {"popTime": str(popped_ms), "invisibleTime": str(invisible_ms), "reviveQid": str(ORDERLY if receipt.orderly else 0)}
        self._answer_written(conn, command, ext, changed=self._counters.of_group(topic, header.consumer_group))


def no_topic(name: str) -> str:
    """Return the remark for a topic that does not exist."""
    return f"topic[{name}] not exist, apply first please! {FAQ}"


def checked_invisible(milliseconds: int) -> int:
    """Return the time for which messages are to be invisible. Raises PopRefused."""
    if not 0 < milliseconds <= MAX_INVISIBLE_MS:
        raise PopRefused(
            ResponseCode.INVALID_PARAMETER,
            f"messages are invisible for 1 ms to {MAX_INVISIBLE_MS // 86_400_000} days, not {milliseconds} ms",
        )
    return milliseconds


def _receipt(text: str, queue_id: int) -> Receipt:
    """Read a receipt handle. Raises PopRefused."""
    match = _HANDLE.fullmatch(text)
    if match is None or int(match[3]) != queue_id:
        raise PopRefused(ResponseCode.MESSAGE_ILLEGAL, "extraInfo is not a receipt handle of this queue: return it as the pop gave it")
    return Receipt(int(match[1]), int(match[2]) == ORDERLY)
