"""The broker's group commit without sockets: what the flushing alone reaches."""

import asyncio
from typing import Any

from sprocketmq.broker.acks import DISK_LATE, STORED, Acks
from sprocketmq.broker.flushing import Flusher
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import BrokerBusy, FatalError, RetriableError, SprocketError, StoreFailed
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.storage.store import MessageStore


class GroupCommit:
    """Durable appends for the tasks of one event loop, without sockets or a broker.

    What tasks append in one turn of the loop is committed with one write, and each task goes on when the disk has its message; it is the
    same rule, thread and group commit as a broker's SYNC_FLUSH. ``store`` is open, with ``flush_disk_type="SYNC_FLUSH"``, and nobody
    else appends to it. ``start`` first, ``stop`` last.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        timeout_s: float = 5.0,
        max_sends: int = 10_000,
        max_bytes: int = 64 << 20,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self.acks: Acks[asyncio.Future[None]] = Acks(sync=True, timeout_s=timeout_s, max_sends=max_sends, max_bytes=max_bytes)
        self.flusher = Flusher(store, self.acks, answer=self._answer, failed=self._note_failure, clock=clock)
        self._staged: list[asyncio.Future[None]] = []
        self._failure: SprocketError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self.flusher.start()

    async def stop(self) -> None:
        """Return when everything appended is settled; the store stays open."""
        self._commit()
        await self.flusher.drain()
        await self.flusher.stop()

    @property
    def flushes(self) -> int:
        """How many flushes there were."""
        return self.flusher.count

    async def append(self, topic: str, queue_id: int, body: bytes, properties: bytes = b"", **fields: Any) -> tuple[int, int]:
        """Append one message and return its queue offset and log offset when the disk has it; ``fields`` as ``stage_message`` takes.

        Raises BrokerBusy when too much waits already, StoreWriteFailed, StoreFailed, TimeoutError when the disk takes too long: the
        message is stored then, and may or may not reach the disk.
        """
        acks = self.acks
        if not acks.admits(self.flusher.unflushed, waits=True):
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, "too many appends wait for the disk")
        loop = self._loop
        assert loop is not None
        placed = self._store.stage_message(topic, queue_id, body, properties, **fields)
        staged = self._staged
        if not staged:
            loop.call_soon(self._commit)
        future: asyncio.Future[None] = loop.create_future()
        staged.append(future)
        acks.hold()
        await future
        return placed

    def _commit(self) -> None:
        staged = self._staged
        if not staged:
            return
        self._staged = []
        try:
            self._store.commit()
        except (RetriableError, FatalError, OSError) as e:
            self.acks.release(len(staged))
            for future in staged:
                if not future.done():
                    future.set_exception(e)
            return
        self.flusher.wait(staged)
        self.flusher.wrote()

    def _note_failure(self, error: SprocketError) -> None:
        self._failure = error

    def _answer(self, sends: list[asyncio.Future[None]], code: int) -> None:
        for future in sends:
            if future.done():  # its task was cancelled
                continue
            if code == STORED:
                future.set_result(None)
            elif code == DISK_LATE:
                future.set_exception(TimeoutError("the disk did not confirm the message in time"))
            else:
                future.set_exception(self._failure or StoreFailed(str(self._store.config.root), "a flush failed"))
