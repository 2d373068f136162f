"""Where a group's committed offsets are kept, and the offset at which a queue is started."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Protocol

from sprocketmq.client.consume.offsets import OffsetRequests, queue_header
from sprocketmq.client.consume.process_queue import ProcessQueue
from sprocketmq.client.instance import Instance
from sprocketmq.errors import ConfigError
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from sprocketmq.net.client import Connection

_UPDATE_CONSUMER_OFFSET = int(RequestCode.UPDATE_CONSUMER_OFFSET)
# How often a commit is repeated that an older one has overwritten.
SETTLE_TRIES = 3

ConsumeFrom = Literal["last", "first"] | float


class OffsetStore(Protocol):
    """Keeps the committed offsets of one group: at its brokers, or in a file of this machine."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def committed(self, queue: MessageQueue, *, zero_if_young: bool) -> int | None: ...

    async def committed_of(self, queues: Iterable[MessageQueue], *, zero_if_young: bool) -> dict[MessageQueue, int | None]: ...

    async def commit(self, pqs: Iterable[ProcessQueue]) -> None: ...

    async def settle(self, pqs: Iterable[ProcessQueue]) -> None: ...

    async def commit_behind(self, pqs: Iterable[ProcessQueue]) -> None: ...

    def settled(self, pq: ProcessQueue) -> bool: ...


class GroupOffsets:
    """Offsets of a group that shares its queues, kept by the brokers for whichever member gets a queue next."""

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._requests = OffsetRequests(instance)
        self._group = group

    async def open(self) -> None:
        """Do nothing: the brokers keep the offsets."""

    async def close(self) -> None:
        """Do nothing: the brokers keep the offsets."""

    async def committed(self, queue: MessageQueue, *, zero_if_young: bool) -> int | None:
        """Return the committed offset of ``queue``, None when there is none; see ``OffsetRequests.committed``."""
        return await self._requests.committed(self._group, queue, zero_if_young=zero_if_young)

    async def committed_of(self, queues: Iterable[MessageQueue], *, zero_if_young: bool) -> dict[MessageQueue, int | None]:
        """Return the committed offsets of those of ``queues`` that can be asked at once; see ``OffsetRequests.committed_of``."""
        return await self._requests.committed_of(self._group, queues, zero_if_young=zero_if_young)

    async def commit(self, pqs: Iterable[ProcessQueue]) -> None:
        """Commit what was consumed and return when the brokers have it. Raises the first error; the other queues are committed."""
        await all_of(self._commit(pq) for pq in pqs)

    def settled(self, pq: ProcessQueue) -> bool:
        """Return whether ``settle`` has nothing to do: pulls can have committed nothing for ``pq`` but its start offset."""
        return pq.commit_offset == pq.began_at and not self._is_behind(pq)

    async def settle(self, pqs: Iterable[ProcessQueue]) -> None:
        """Commit queues that are no longer pulled, and check that no older commit arrives later. Raises as ``commit`` does."""
        await all_of(self._settle(pq) for pq in pqs if not self.settled(pq))

    async def commit_behind(self, pqs: Iterable[ProcessQueue]) -> None:
        """Commit without waiting for answers; the next commit replaces one that is lost."""
        topic = broker_name = ""
        header = b""
        conn: Connection | None = None
        for pq in pqs:
            queue = pq.queue
            if queue.topic != topic or queue.broker_name != broker_name:  # a member has its queues topic by topic
                topic, broker_name = queue.topic, queue.broker_name
                route = self._instance.routes.get(topic)
                address = route.address(broker_name) if route else None
                conn = self._instance.brokers.peek(address) if address else None
                header = queue_header(self._group, topic)
            offset = pq.commit_offset
            if conn is not None and (offset != pq.persisted or pq.persisted_at not in (None, conn.address)):
                ext = b'%b%d","commitOffset":"%d"}' % (header, queue.queue_id, offset)
                conn.oneway(_UPDATE_CONSUMER_OFFSET, ext=ext)
                pq.persisted_at = conn.address

    def _is_behind(self, pq: ProcessQueue) -> bool:
        """Return whether the broker to commit to may lack the commit offset of ``pq``."""
        if pq.commit_offset != pq.persisted:
            return True
        if pq.persisted_at is None:
            return False
        route = self._instance.routes.get(pq.queue.topic)
        return pq.persisted_at != (route.address(pq.queue.broker_name) if route else None)

    async def _commit(self, pq: ProcessQueue) -> None:
        if self._is_behind(pq):
            offset = pq.commit_offset
            pq.persisted_at = await self._requests.commit(self._group, pq.queue, offset)
            pq.persisted = offset

    async def _settle(self, pq: ProcessQueue) -> None:
        # A pull that was in flight carries an older offset, which a broker with several threads may store after ours.
        await self._commit(pq)
        for _ in range(SETTLE_TRIES):
            committed = await self._requests.committed(self._group, pq.queue)
            if committed is None or committed >= pq.commit_offset:
                return
            await self._requests.commit(self._group, pq.queue, pq.commit_offset)


class ManualOffsets(GroupOffsets):
    """Offsets of a group that are committed only when the caller asks for it."""

    async def settle(self, pqs: Iterable[ProcessQueue]) -> None:
        """Do nothing: a queue keeps the offset that the caller committed last."""

    def settled(self, pq: ProcessQueue) -> bool:  # noqa: ARG002 - the signature of all offset stores
        """Return True."""
        return True

    async def commit_behind(self, pqs: Iterable[ProcessQueue]) -> None:
        """Do nothing: the caller commits."""


async def start_offset(store: OffsetStore, requests: OffsetRequests, queue: MessageQueue, consume_from: ConsumeFrom) -> int:
    """Return where to start in ``queue``: the committed offset, otherwise by ``consume_from``. Raises what asking the brokers raises."""
    offset = _start(queue, await store.committed(queue, zero_if_young=_counts_young(consume_from)), consume_from)
    if offset is not None:
        return offset
    if isinstance(consume_from, str):
        return await requests.max_offset(queue)
    return await requests.offset_at(queue, round(consume_from * 1000))


async def quick_starts(
    store: OffsetStore, requests: OffsetRequests, queues: Iterable[MessageQueue], consume_from: ConsumeFrom
) -> dict[MessageQueue, int]:
    """Return what ``start_offset`` returns, for those of ``queues`` whose start is known from the answers of connected masters."""
    found = await store.committed_of(queues, zero_if_young=_counts_young(consume_from))
    starts = {queue: _start(queue, offset, consume_from) for queue, offset in found.items()}
    known = {queue: offset for queue, offset in starts.items() if offset is not None}
    if consume_from == "last":
        known |= await requests.max_offsets(queue for queue, offset in starts.items() if offset is None)
    return known


def _counts_young(consume_from: ConsumeFrom) -> bool:
    """Return whether the 0 that a broker answers for a young queue may stand for a committed offset.

    Not with a start time. A group that reads from the first message anyway does not need the broker to check that it still exists.
    """
    return consume_from == "last"


def _start(queue: MessageQueue, committed: int | None, consume_from: ConsumeFrom) -> int | None:
    """Return where to start in ``queue``; None when that depends on where its messages are."""
    if committed is None and (consume_from == "first" or queue.topic.startswith(RETRY_PREFIX)):
        return 0  # messages to be retried were consumed before: no start rule may skip them
    return committed


def from_where(consume_from: ConsumeFrom) -> str:
    """Return the wire name of a start rule. Raises ConfigError for an argument that is not a start rule."""
    if consume_from == "last":
        return "CONSUME_FROM_LAST_OFFSET"
    if consume_from == "first":
        return "CONSUME_FROM_FIRST_OFFSET"
    if type(consume_from) in (int, float) and float(consume_from) >= 0:
        return "CONSUME_FROM_TIMESTAMP"
    raise ConfigError(f"consume_from must be 'last', 'first' or epoch seconds, not {consume_from!r}")
