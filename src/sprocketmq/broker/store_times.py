"""Requests that tell when messages were stored, mostly one of each queue: what is not in memory is read by other threads first.

A group far behind has its next message on the disk, and so has a queue that nobody has used for long its last one.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial

from sprocketmq.broker.cold_reads import MAX_RECORD_LOADS, MAX_WAITING, DiskReads
from sprocketmq.broker.waiting_request import WaitingRequest
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.command import Command
from sprocketmq.storage.store import ColdRead, MessageStore

log = logging.getLogger(__name__)

# Messages that are looked at in one step, and read together.
AT_ONCE = 64

# A topic, the number of a queue, and a queue offset.
Place = tuple[str, int, int]


class _Request(WaitingRequest):
    """A request about the messages at ``places``, of which those before the index ``at`` are in memory; ``answer`` answers it."""

    __slots__ = ("answer", "at", "places")

    def __init__(self, conn: ServerConnection, command: Command, places: list[Place], answer: Callable[[], None]) -> None:
        super().__init__(conn, command)
        self.places = places
        self.answer = answer
        self.at = 0


class StoreTimes:
    """The requests that wait. At most ``MAX_WAITING`` do; further ones are answered with SYSTEM_BUSY."""

    def __init__(self, store: MessageStore, disk: DiskReads) -> None:
        self._store = store
        self._disk = disk
        self._waiting = 0

    def when_in_memory(
        self, conn: ServerConnection, command: Command, places: Callable[[], Iterable[Place]], answer: Callable[[], None]
    ) -> None:
        """Call ``answer``, which answers ``command``: at once, or when the messages at ``places`` have been read.

        Places without a message do not count. After some waits for a message it is read from wherever it is.
        """
        self._look(_Request(conn, command, list(places()) if self._store.has_old_messages else [], answer))

    def _look(self, request: _Request) -> None:
        while request.at < len(request.places):
            if request.loads < MAX_RECORD_LOADS and (reads := self._missing(request.places[request.at : request.at + AT_ONCE])):
                self._wait(request, reads)
                return
            request.at += AT_ONCE
            request.loads = 0
        request.answer()

    def _missing(self, places: list[Place]) -> list[ColdRead]:
        found = [self._store.find_cold(topic, queue_id, offset, 1, 1) for topic, queue_id, offset in places]
        return [read for read in found if read is not None and read.waits]

    def _wait(self, request: _Request, reads: list[ColdRead]) -> None:
        if self._waiting >= MAX_WAITING:
            for read in reads:
                read.release()
            request.answer_busy()
            return
        request.keep()
        request.loads += 1
        self._waiting += 1
        self._disk.load_all(reads, partial(self._loaded, request, reads))

    def _loaded(self, request: _Request, reads: list[ColdRead]) -> None:
        self._waiting -= 1
        try:
            if not request.conn.closed:
                self._look(request)
        except Exception as e:
            log.exception("request %d for times of messages cannot be answered", request.command.code)
            request.answer_error(e)
        finally:
            for read in reads:
                read.release()
