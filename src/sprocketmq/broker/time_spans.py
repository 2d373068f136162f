"""Request 303: the store times of a topic's messages, and how far a group has read, as times instead of offsets."""

import time
from collections.abc import Callable, Iterator
from itertools import chain

from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.store_times import Place, StoreTimes
from sprocketmq.broker.topics import TopicTable, topic_not_exist
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import ConsumeTimeSpan, ConsumeTimeSpans, QueueRef
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import GroupTopicRequest
from sprocketmq.storage.store import MessageStore


class TimeSpanHandlers:
    """Answers request 303, queue by queue."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        topics: TopicTable,
        offsets: OffsetTable,
        times: StoreTimes,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._times = times
        self._clock = clock

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_spans}

    def time_spans(self, conn: ServerConnection, command: Command) -> None:
        """Answer with each writable queue's span of store times, and how long the group's next message has waited."""
        request = command.header(GroupTopicRequest)
        topic = self._topics.get(request.topic)
        if topic is None:
            refused = topic_not_exist(request.topic)
            conn.respond(command, refused.code, remark=refused.remark)
            return
        name, group, queues = request.topic, request.group, range(topic.write_queues)

        def answer() -> None:
            spans = [self._span(name, queue_id, group) for queue_id in queues]
            conn.respond(command, ResponseCode.SUCCESS, body=ConsumeTimeSpans(spans).encode())

        def places() -> Iterator[Place]:
            return chain.from_iterable(self._places(name, queue_id, group) for queue_id in queues)

        self._times.when_in_memory(conn, command, places, answer)

    def _places(self, topic: str, queue_id: int, group: str) -> Iterator[Place]:
        """Yield the messages of a queue whose times ``_span`` tells."""
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        committed = self._offsets.get(group, topic, queue_id) or 0
        yield from ((topic, queue_id, offset) for offset in {low, high - 1, committed - 1, max(low, committed)})

    def _span(self, topic: str, queue_id: int, group: str) -> ConsumeTimeSpan:
        store = self._store
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        oldest = store.earliest_store_time(topic, queue_id)
        newest = store.store_time(topic, queue_id, high - 1) if high > low else -1
        committed = self._offsets.get(group, topic, queue_id)
        consumed = store.store_time(topic, queue_id, committed - 1) if committed else oldest
        # The group's next message: the oldest one where nothing was committed, or where what was committed has expired.
        waiting = max(low, committed or 0)
        waits_since = store.store_time(topic, queue_id, waiting) if waiting < high else -1
        delay = max(0, self._clock.time_ms() - waits_since) if waits_since >= 0 else 0
        queue = QueueRef(topic, self._broker_name, queue_id)
        return ConsumeTimeSpan(queue, oldest, _local(oldest), newest, _local(newest), consumed, _local(consumed), delay)


def _local(time_ms: int) -> str:
    """Return a time as the reference prints it, in the broker's time zone; "" for none."""
    if time_ms < 0:
        return ""
    return time.strftime("%Y-%m-%d#%H:%M:%S", time.localtime(time_ms / 1000)) + f":{time_ms % 1000:03}"
