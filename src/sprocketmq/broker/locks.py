"""Queue locks for orderly consumers: one client of a group per queue, for 60 s after it last asked (codes 41 and 42)."""

from collections.abc import Callable

from sprocketmq.broker.topics import TopicTable
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import LockBatchRequest, LockBatchResponse, QueueRef
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command

LOCK_S = 60.0


class QueueLocks:
    """The locked queues of each group: the client that holds the lock, and when it expires (monotonic seconds)."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._groups: dict[str, dict[tuple[str, int], tuple[str, float]]] = {}

    def lock(self, group: str, client_id: str, queues: list[QueueRef]) -> list[QueueRef]:
        """Lock those of ``queues`` that are free, expired or held by the client already, and return them."""
        now = self._clock.monotonic()
        held = self._groups.setdefault(group, {})
        granted = []
        for queue in queues:
            key = (queue.topic, queue.queue_id)
            owner = held.get(key)
            if owner is None or owner[0] == client_id or owner[1] <= now:
                held[key] = (client_id, now + LOCK_S)
                granted.append(queue)
        if not held:
            del self._groups[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: list[QueueRef]) -> None:
        """Release those of ``queues`` that the client holds."""
        held = self._groups.get(group)
        if held is None:
            return
        for queue in queues:
            key = (queue.topic, queue.queue_id)
            if (owner := held.get(key)) is not None and owner[0] == client_id:
                del held[key]
        if not held:
            del self._groups[group]

    def expire(self) -> None:
        """Drop expired locks."""
        now = self._clock.monotonic()
        for group, held in list(self._groups.items()):
            for key in [key for key, (_, until) in held.items() if until <= now]:
                del held[key]
            if not held:
                del self._groups[group]


class LockHandlers:
    """Requests of orderly consumers."""

    def __init__(self, locks: QueueLocks, topics: TopicTable) -> None:
        self._locks = locks
        self._topics = topics

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def _request(self, command: Command) -> tuple[LockBatchRequest, list[QueueRef]]:
        if not command.body:
            raise RemoteProtocolError("a lock request without a body")
        request = LockBatchRequest.decode(command.body)
        # Only queues that exist, so that invented names cannot fill the table.
        known = [q for q in request.mq_set if (topic := self._topics.get(q.topic)) and 0 <= q.queue_id <= topic.max_queue_id]
        return request, known

    def lock(self, conn: ServerConnection, command: Command) -> None:
        request, queues = self._request(command)
        granted = self._locks.lock(request.consumer_group, request.client_id, queues)
        conn.respond(command, ResponseCode.SUCCESS, body=LockBatchResponse(granted).encode())

    def unlock(self, conn: ServerConnection, command: Command) -> None:
        request, queues = self._request(command)
        self._locks.unlock(request.consumer_group, request.client_id, queues)
        conn.respond(command, ResponseCode.SUCCESS)
