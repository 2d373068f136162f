"""Queue locks of a member that consumes in order: kept by the brokers, relied on here for a shorter time (docs/internals/consumers.md)."""

import asyncio
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

from sprocketmq.client.instance import Instance
from sprocketmq.clock import Clock
from sprocketmq.errors import RemoteProtocolError, SprocketError
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.bodies import LockBatchRequest, LockBatchResponse, QueueRef
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.message import MessageQueue

RENEW_S = 20.0
# The pause after a renewal that some broker did not answer.
RENEW_SOON_S = 1.0
# How long a member relies on a granted lock, and how long the broker keeps it. Both count from before the request was sent, earlier than
# the broker's own count, so a lock relied on here is still held there.
VALID_S = 30.0
BROKER_S = 60.0
UNLOCK_TIMEOUT_S = 1.0


class Leases:
    """The queues that this member has locked, by its own clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._granted_at: dict[MessageQueue, float] = {}

    def grant(self, queue: MessageQueue, asked_at: float) -> bool:
        """Add a lock that was requested at ``asked_at`` (monotonic s). Returns whether it was held without a gap since the last grant."""
        before = self._granted_at.get(queue)
        self._granted_at[queue] = asked_at
        return before is not None and asked_at < before + BROKER_S

    def drop(self, queue: MessageQueue) -> None:
        """Remove a lock that was released, or is another member's now."""
        self._granted_at.pop(queue, None)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that were locked and not released since, also those whose lock may have expired."""
        return list(self._granted_at)

    def holds(self, queue: MessageQueue) -> bool:
        """Whether messages of ``queue`` may be handed out now."""
        granted_at = self._granted_at.get(queue)
        return granted_at is not None and self._clock.monotonic() < granted_at + VALID_S


@dataclass(slots=True)
class Locked:
    """The result of a lock request by queue.

    ``kept`` were held without a gap, ``taken`` are held (again) now, ``refused`` are another member's, ``unknown`` got no answer.
    """

    kept: set[MessageQueue] = field(default_factory=set)
    taken: set[MessageQueue] = field(default_factory=set)
    refused: set[MessageQueue] = field(default_factory=set)
    unknown: dict[MessageQueue, SprocketError | None] = field(default_factory=dict)


class MemberLocks:
    """The queue locks of one member of ``group``. A broker that does not answer raises nothing: its locks expire."""

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._group = group
        self.leases: Leases = Leases(instance.clock)
        # One request at a time: a renewal that arrives after the unlock would make the next member wait.
        self._asking = asyncio.Lock()
        self._closed = False

    async def lock(self, queues: Collection[MessageQueue]) -> Locked:
        """Request the locks of ``queues`` from their brokers (41), or renew them; after ``close`` all are refused."""
        result = Locked()
        async with self._asking:
            if self._closed:
                result.refused.update(queues)
                return result
            await all_of(self._lock(address, part, result) for address, part in self._by_broker(queues, result).items())
        return result

    async def _lock(self, address: str, queues: list[MessageQueue], result: Locked) -> None:
        asked_at = self._instance.clock.monotonic()
        try:
            response = await self._instance.ask(address, RequestCode.LOCK_BATCH_MQ, ext={}, body=self._body(queues))
            if response.code != ResponseCode.SUCCESS:
                raise RemoteProtocolError(f"broker {address} refused to lock, code {response.code}: {response.remark}")
            granted = {ref.queue for ref in LockBatchResponse.decode(response.body).lock_ok_mq_set}
        except SprocketError as e:
            result.unknown.update(dict.fromkeys(queues, e))
            return
        for queue in queues:
            if queue not in granted:
                self.leases.drop(queue)
                result.refused.add(queue)
            elif self.leases.grant(queue, asked_at):
                result.kept.add(queue)
            else:
                result.taken.add(queue)

    async def close(self) -> None:
        """Request no more locks; returns when the brokers have answered the last request, so that ``leases`` has every lock."""
        async with self._asking:
            self._closed = True

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Release locks (42), so that the next member need not wait until they expire. Best effort."""
        async with self._asking:
            for queue in queues:
                self.leases.drop(queue)
            await all_of(self._unlock(address, part) for address, part in self._by_broker(queues, Locked()).items())

    async def _unlock(self, address: str, queues: list[MessageQueue]) -> None:
        with suppress(SprocketError):  # the lock expires then
            await self._instance.ask(address, RequestCode.UNLOCK_BATCH_MQ, ext={}, body=self._body(queues), timeout_s=UNLOCK_TIMEOUT_S)

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return LockBatchRequest(self._group, self._instance.client_id, [QueueRef.of(queue) for queue in queues]).encode()

    def _by_broker(self, queues: Collection[MessageQueue], result: Locked) -> dict[str, list[MessageQueue]]:
        # Masters keep the locks; a slave does so while nameservers know no master. One that only this client cannot reach is not replaced:
        # other members may hold locks there.
        found: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            route = self._instance.routes.get(queue.topic)
            address = None if route is None else route.lock_keepers.get(queue.broker_name)
            if address is None:
                result.unknown[queue] = None
            else:
                found[address].append(queue)
        return found
