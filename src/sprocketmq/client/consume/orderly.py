"""Queue locks of a member that consumes in order: held at the brokers, and believed here for a shorter time (client-behaviour, 9.9)."""

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
# After a renewal that some broker did not answer.
RENEW_SOON_S = 1.0
# How long a granted lock is believed here, and how long the broker keeps it. Both count from before the request was sent, which is
# earlier than the broker's own count: what is believed here still holds there.
VALID_S = 30.0
BROKER_S = 60.0
UNLOCK_TIMEOUT_S = 1.0


class Leases:
    """Which queues this member has locked, judged by its own clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._granted_at: dict[MessageQueue, float] = {}

    def grant(self, queue: MessageQueue, asked_at: float) -> bool:
        """Note a lock that was asked for at ``asked_at`` (monotonic s). Tells whether it was ours all the time since the last grant."""
        before = self._granted_at.get(queue)
        self._granted_at[queue] = asked_at
        return before is not None and asked_at < before + BROKER_S

    def drop(self, queue: MessageQueue) -> None:
        """Forget a lock: given up, or somebody else's now."""
        self._granted_at.pop(queue, None)

    def holds(self, queue: MessageQueue) -> bool:
        """Whether messages of ``queue`` may be handed out now."""
        granted_at = self._granted_at.get(queue)
        return granted_at is not None and self._clock.monotonic() < granted_at + VALID_S


@dataclass(slots=True)
class Locked:
    """How a lock request ended, queue by queue.

    ``kept`` were ours without a break, ``taken`` are ours (again) now, ``refused`` are somebody else's, ``unknown`` got no answer.
    """

    kept: set[MessageQueue] = field(default_factory=set)
    taken: set[MessageQueue] = field(default_factory=set)
    refused: set[MessageQueue] = field(default_factory=set)
    unknown: dict[MessageQueue, SprocketError | None] = field(default_factory=dict)


class MemberLocks:
    """The locks of one member of ``group``. Nothing here raises for a broker that does not answer: its locks run out."""

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._group = group
        self.leases = Leases(instance.clock)
        # A renewal that a broker took after the lock was given up would keep the next member waiting.
        self._asking = asyncio.Lock()

    async def lock(self, queues: Collection[MessageQueue]) -> Locked:
        """Ask each queue's broker (41) for its lock, or to have it longer."""
        result = Locked()
        async with self._asking:
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

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Give locks back (42), so that the next member need not wait until they run out. Best effort."""
        async with self._asking:
            for queue in queues:
                self.leases.drop(queue)
            await all_of(self._unlock(address, part) for address, part in self._by_broker(queues, Locked()).items())

    async def _unlock(self, address: str, queues: list[MessageQueue]) -> None:
        with suppress(SprocketError):  # the lock runs out then
            await self._instance.ask(address, RequestCode.UNLOCK_BATCH_MQ, ext={}, body=self._body(queues), timeout_s=UNLOCK_TIMEOUT_S)

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return LockBatchRequest(self._group, self._instance.client_id, [QueueRef.of(queue) for queue in queues]).encode()

    def _by_broker(self, queues: Collection[MessageQueue], result: Locked) -> dict[str, list[MessageQueue]]:
        # Only masters keep locks.
        found: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            route = self._instance.routes.get(queue.topic)
            address = None if route is None else route.masters.get(queue.broker_name)
            if address is None:
                result.unknown[queue] = None
            else:
                found[address].append(queue)
        return found
