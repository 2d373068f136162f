"""The state of a client, and the event loop that it belongs to from its start on."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from threading import get_ident

from sprocketmq.errors import ClientClosed, ForkedClient, WrongEventLoop

NEW, OPEN, CLOSING, CLOSED, FORKED = range(5)


def _never() -> bool:
    return False


class LoopBound:
    """An object that is started on an event loop, used on that loop only, and closed. ``kind`` names it in errors."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        # The thread and event loop of an open client. ``home`` is that thread's id while the client is open and its loop has not ended, and
        # otherwise 0, which no thread has, so one comparison checks both.
        self.home: int = 0
        self.running: Callable[[], bool] = _never
        self._loop: asyncio.AbstractEventLoop | None = None
        self._witness: AsyncGenerator[None, None] | None = None
        self._thread = 0
        self._state = NEW

    @property
    def state_name(self) -> str:
        """The state in a word."""
        return ("not started", "open", "closing", "closed", "of the process before the fork")[self._state]

    @property
    def state(self) -> int:
        """NEW, OPEN, CLOSING, CLOSED or FORKED. A client that becomes OPEN belongs to the running event loop."""
        return self._state

    @state.setter
    def state(self, state: int) -> None:
        self._state = state
        if state == OPEN:
            self._loop = asyncio.get_running_loop()
            self._thread = get_ident()
            self.running = self._loop.is_running
        self.home = self._thread if state == OPEN else 0

    def check_asyncio(self) -> None:
        """Raise WrongEventLoop where no event loop of asyncio runs, as under trio."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise WrongEventLoop(self.kind, missing=True) from None

    def refuse(self) -> None:
        """Raise the reason why the client cannot be used: ForkedClient, ClientClosed or WrongEventLoop."""
        if self.state == FORKED:
            raise ForkedClient(self.kind)
        if self.state == NEW:
            raise ClientClosed(f"this {self.kind} is not started: use 'async with', or await start() first")
        if self.state == OPEN:
            raise WrongEventLoop(self.kind, ended=self._loop is None or self._loop.is_closed())
        raise ClientClosed(f"this {self.kind} is closed: make a new one")

    def check(self) -> None:
        """Raise when the client is not open, or used outside the event loop that it was started on.

        Getting the running loop costs a system call on Python 3.11. On the loop's own thread, no other loop can run while it does.
        """
        if get_ident() != self.home or not self.running():
            self.refuse()

    @property
    def here(self) -> bool:
        """Whether the caller is on the client's event loop; true for a client that was never open."""
        return self._loop is None or (get_ident() == self._thread and self._loop.is_running())

    def check_loop(self) -> None:
        """Raise WrongEventLoop when a client that has not ended is used outside the event loop that it was started on."""
        if self.state in (OPEN, CLOSING) and not self.here:
            raise WrongEventLoop(self.kind, ended=self._loop is None or self._loop.is_closed())

    def soon(self, action: Callable[..., object], *arguments: object) -> None:
        """Call ``action`` on the client's loop in its next turn, from any thread; not if the loop has ended."""
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(action, *arguments)
            except RuntimeError:
                return  # closed

    async def watch_loop(self) -> None:
        """Detect the end of the running loop: ``asyncio.run`` closes open generators, including the one started here."""
        self._witness = self._until_closed()
        await anext(self._witness)

    async def _until_closed(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.home = 0

    async def end_watch(self) -> None:
        """Stop watching the loop; harmless when it is not watched."""
        if self._witness is not None:
            await self._witness.aclose()
