"""How much a consumer has on its way at once from queues that are behind.

Answers wait in buffers of sockets until they are read. When they are more than a few MiB, no cache of the processor has them any more
when it is their turn (docs/internals/performance.md#consumers-of-many-queues).
"""

import asyncio
from collections import deque
from math import inf

# The bytes of answers on their way to one consumer; each broker with queues of it may use an equal share.
ON_THE_WAY_BYTES = 4 << 20
# A broker that is far away may have more on its way: what comes at this rate in the time that its quickest answer took.
BYTES_PER_S = 128 << 20


class BrokerRoom:
    """The answers of one broker that it can send at once, as their queues are behind; the first always finds room."""

    __slots__ = ("_shares", "_waiting", "on_the_way", "queues", "quickest_s")

    def __init__(self, shares: dict[str, "BrokerRoom"]) -> None:
        self._shares = shares
        self.queues = 0
        # Bytes that pulls in flight are expected to bring.
        self.on_the_way = 0
        # The shortest time from a pull to its answer.
        self.quickest_s = inf
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def full(self) -> bool:
        """Whether a pull has to wait."""
        return self.on_the_way >= max(ON_THE_WAY_BYTES / max(1, len(self._shares)), self.quickest_s * BYTES_PER_S)

    async def take(self, size_bytes: int) -> None:
        """Wait until there is room, first come first served, and take it for an answer of this size."""
        if self._waiting or self.full:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((size_bytes, turn))
            try:
                await turn  # the room is taken by then
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give_back(size_bytes)
                raise
        else:
            self.on_the_way += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Give back room that was taken, once the answer is here or will not come."""
        self.on_the_way -= size_bytes
        while self._waiting and not self.full:
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self.on_the_way += wanted
                turn.set_result(None)


class PullRoom:
    """The room of one consumer, shared equally by the brokers that have queues of it.

    A broker that answers no pulls keeps others from none of their share.
    """

    def __init__(self) -> None:
        self._brokers: dict[str, BrokerRoom] = {}

    def joined(self, broker_name: str) -> BrokerRoom:
        """Return the room of a broker with one more queue."""
        room = self._brokers.get(broker_name)
        if room is None:
            room = self._brokers[broker_name] = BrokerRoom(self._brokers)
        room.queues += 1
        return room

    def left(self, broker_name: str) -> None:
        """Count a queue of a broker less; its share goes to the others with the last one."""
        room = self._brokers[broker_name]
        room.queues -= 1
        if not room.queues:
            del self._brokers[broker_name]
