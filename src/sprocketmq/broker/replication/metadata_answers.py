"""Answers to slaves: offsets of delayed messages, and tables that are always empty here (45, 60, 61).

Topics (21), consumer offsets (43) and groups (201) are asked for by tools as well, and answered with the other requests about them.
A slave of this project adds ``knownVersion`` to 21, 43, 45 and 201, the data version that it has. When the table has not changed since,
the answer has the field ``unchanged`` and no body.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import msgspec

from sprocketmq.broker.delay import DelayService
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import DataVersion, DelayOffsets, TimerMetrics
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.layout import TIMER_CHECKPOINT_LAYOUT

KNOWN_VERSION, UNCHANGED, WITH_TIMERS = "knownVersion", "unchanged", "withTimers"
_NO_CHECKPOINT = bytes(TIMER_CHECKPOINT_LAYOUT.size)

Answer = Callable[[ServerConnection, Command], None]


def version_text(version: DataVersion) -> str:
    """Return a data version in the form of the field ``knownVersion``."""
    return f"{version.state_version}-{version.timestamp}-{version.counter}"


def unless_known(version: Callable[[], DataVersion], answer: Answer) -> Answer:
    """Wrap ``answer`` for requests that may name the version they know."""

    def conditional(conn: ServerConnection, command: Command) -> None:
        known = command.ext.get(KNOWN_VERSION)
        if known is not None and known == version_text(version()):
            conn.respond(command, ResponseCode.SUCCESS, ext={UNCHANGED: "true"})
        else:
            answer(conn, command)

    return conditional


class MetadataAnswers:
    """Answers slaves. ``tables`` has, by request code, the data version and the full answer of tables owned by other parts."""

    def __init__(self, delays: DelayService, tables: Mapping[int, tuple[Callable[[], DataVersion], Answer]]) -> None:
        self._delays = delays
        self._version_of_topics = tables[RequestCode.GET_ALL_TOPIC_CONFIG][0]
        self._tables = {code: unless_known(version, answer) for code, (version, answer) in tables.items()}
        # The version of the topics that each connected slave has.
        self._told: dict[ServerConnection, str] = {}
        self._telling: asyncio.Event | None = None

    def handlers(self) -> dict[int, Answer]:
        return {
            **self._tables,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.topics,
            RequestCode.GET_ALL_DELAY_OFFSET: unless_known(lambda: self._delays.progress.saved_version, self.delay_offsets),
            RequestCode.GET_TIMER_CHECK_POINT: self.timer_checkpoint,
            RequestCode.GET_TIMER_METRICS: self.timer_metrics,
        }

    def topics(self, conn: ServerConnection, command: Command) -> None:
        """Answer 21, and remember what slaves have."""
        self._tables[RequestCode.GET_ALL_TOPIC_CONFIG](conn, command)
        if KNOWN_VERSION in command.ext:
            self._told[conn] = version_text(self._version_of_topics())
            if self._telling is not None:
                self._telling.set()

    async def topics_told(self, timeout_s: float) -> None:
        """Return when every connected slave has the topics as they are now, at the latest after ``timeout_s``.

        The records of a new topic with batch queues must not reach a slave before it knows what queues they belong to.
        """
        version = version_text(self._version_of_topics())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._lacking(version):
                    self._telling = self._telling or asyncio.Event()
                    self._telling.clear()
                    await self._telling.wait()

    def _lacking(self, version: str) -> bool:
        self._told = {conn: known for conn, known in self._told.items() if not conn.closed}
        current = version_text(self._version_of_topics())
        return any(known not in (version, current) for known in self._told.values())

    def delay_offsets(self, conn: ServerConnection, command: Command) -> None:
        """Answer 45: the content of delayOffset.json, and that of timers.json if requested."""
        progress = self._delays.progress
        body = msgspec.convert(progress.snapshot(), DelayOffsets)
        if WITH_TIMERS in command.ext and self._delays.timers.used:
            body.timers = progress.timers_snapshot()
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())

    def timer_checkpoint(self, conn: ServerConnection, command: Command) -> None:
        """Answer 60: there is no timer wheel. A slave of Apache's with one asks every few seconds, and logs an error for a refusal."""
        conn.respond(command, ResponseCode.SUCCESS, body=_NO_CHECKPOINT)

    def timer_metrics(self, conn: ServerConnection, command: Command) -> None:
        """Answer 61: nothing waits in a timer wheel."""
        conn.respond(command, ResponseCode.SUCCESS, body=TimerMetrics().encode())
