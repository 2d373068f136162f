"""The bounds of what a producer has accepted and not answered yet."""

import asyncio
from collections.abc import Callable

from sprocketmq.errors import SendQueueFull


class Room:
    """How many messages, and bytes of bodies, a producer has accepted and not answered yet; bounded by count and by bytes.

    Hot paths take room by adding to ``messages`` and ``bytes``.
    """

    __slots__ = ("bytes", "holder", "max_bytes", "max_messages", "messages", "on_freed", "refused", "told", "waiting")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages: int = max_messages
        self.max_bytes: int = max_bytes
        self.messages: int = 0
        self.bytes: int = 0
        # The bytes of the body that found no room most recently, 0 when somebody waits for them already.
        self.refused: int = 0
        # Called with the count and the bytes of messages whose request has ended, before their waiters get the outcome.
        self.on_freed: Callable[[int, int], None] | None = None
        # Kept alive until the last message is answered: a producer that is dropped earlier still sends what it has accepted.
        self.holder: object = None
        # Who waits until fewer messages than an amount are in it; and those for whom that has come true, told by ``wake``.
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.told: list[asyncio.Future[None]] = []

    @property
    def full(self) -> bool:
        """Whether no message is accepted now."""
        return self.messages >= self.max_messages or self.bytes >= self.max_bytes

    def lacks(self, size: int) -> bool:
        """Whether a body of ``size`` bytes is too large to be accepted now. While there is no other, any is accepted."""
        return self.messages > 0 and self.bytes + size > self.max_bytes

    def refusal(self, size: int = 0) -> SendQueueFull:
        """Return the error of a message for which there is no room, whose body has ``size`` bytes."""
        if self.messages >= self.max_messages:
            return SendQueueFull("messages", self.max_messages)
        self.refused = size
        return SendQueueFull("bytes", self.max_bytes)

    def give_back(self, count: int, size: int) -> None:
        """Free the room of ``count`` messages with ``size`` bytes of bodies. ``wake`` must follow, after their waiters got the outcome."""
        self.messages = left = self.messages - count
        self.bytes -= size
        if self.waiting:
            self.told += [waiter for amount, waiter in self.waiting if left < amount]
            self.waiting = [(amount, waiter) for amount, waiter in self.waiting if left >= amount]

    def wake(self) -> None:
        """Let those go on who waited for room that is free now."""
        if not self.messages:
            self.holder = None
        if self.told:
            told, self.told = self.told, []
            for waiter in told:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self, flush: Callable[[], None]) -> None:
        """Wait until messages are accepted again; after a body that was refused for its size, until it fits.

        ``flush`` sends what is gathered: it is called before waiting, as nothing can join it meanwhile.
        """
        size, self.refused = self.refused, 0
        if self.full:
            await self.wait_for_half(flush)
        while self.lacks(size):
            await self.wait_for_half(flush)

    async def wait_for_half(self, flush: Callable[[], None]) -> None:
        """Wait until half of the messages, which ``flush`` sends, are answered."""
        flush()
        await self.wait_below(max(1, self.messages // 2))

    async def wait_below(self, amount: int) -> None:
        """Wait until fewer than ``amount`` messages have been in it at one moment; callbacks may have added more since."""
        if self.messages >= amount:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append((amount, waiter))
            await waiter
