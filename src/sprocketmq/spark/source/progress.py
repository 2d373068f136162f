"""Reports the progress of a streaming query to a topic (options ``progressTopic``, ``progressName``), without slowing it.

The query leaves its newest offsets with the reporter. A daemon thread sends them, at most one report a second while batches run and one
every ten seconds otherwise. Reports that cannot be sent are dropped with one log line; the query does not notice.
"""

import logging
import secrets
import socket
import threading
import time
from typing import Any

from sprocketmq import sync
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import SprocketError
from sprocketmq.protocol.message import Message
from sprocketmq.protocol.progress_reports import MAX_NAME, MAX_SLOWEST, MAX_TOPICS, ProgressReport, QueuePlace, TopicProgress
from sprocketmq.spark.security import SecurityOptions
from sprocketmq.spark.source.offsets import Offsets

log = logging.getLogger(__name__)

BUSY_PERIOD_S, IDLE_PERIOD_S = 1.0, 10.0
# After a failure; also bounds how often an unreachable cluster is asked.
FAILURE_PAUSE_S = 10.0
SEND_TIMEOUT_S = 3.0
# How long the end of a query waits for its last report.
CLOSE_TIMEOUT_S = 1.0
_GROUP = "sprocketmq-spark-progress"


class ProgressReporter:
    """Reports one query. ``note`` and ``close`` never raise and do not wait for brokers (``close`` for CLOSE_TIMEOUT_S at most).

    A pickled reporter, which tasks get with their reader, has noted nothing and has no thread.
    """

    def __init__(self, nameserver: str, topic: str, query: str, security: SecurityOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        self._arguments = nameserver, topic, query, security
        self._clock = clock
        self._run = secrets.token_hex(8)
        self._started_ms = clock.time_ms()
        self._newest: tuple[Offsets, Offsets] | None = None
        self._before: Offsets | None = None
        self._batches = 0
        self._read = 0
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._problem = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return ProgressReporter, self._arguments

    def note(self, begun: Offsets, latest: Offsets) -> None:
        """Record that everything before ``begun`` is in the sink, and that the queues end at ``latest``."""
        before = self._before
        if before is not None and begun != before:
            self._batches += 1
            self._read += sum(max(0, offset - before[queue]) for queue, offset in begun.items() if queue in before)
        self._before = begun
        self._newest = begun, latest
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_reports, name="sprocketmq-progress", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Send a last report that the query has stopped."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def report(self, state: str = "running") -> ProgressReport | None:
        """Return the report of what was noted, None when nothing was."""
        noted = self._newest
        if noted is None:
            return None
        begun, latest = noted
        topics: dict[str, list[int]] = {}
        behind = []
        for queue, position in begun.items():
            end = max(position, latest.get(queue, position))
            sums = topics.setdefault(queue.topic, [0, 0, 0])
            sums[0] += 1
            sums[1] += position
            sums[2] += end
            behind.append((position - end, queue, position, end))
        behind.sort()
        return ProgressReport(
            query=self._arguments[2][:MAX_NAME],
            run=self._run,
            host=socket.gethostname()[:MAX_NAME],
            started_ms=self._started_ms,
            at_ms=self._clock.time_ms(),
            batches=self._batches,
            read=self._read,
            lag=-sum(one[0] for one in behind),
            queues=len(begun),
            topics=[TopicProgress(name, *sums) for name, sums in sorted(topics.items())[:MAX_TOPICS]],
            slowest=[
                QueuePlace(queue.topic, queue.broker_name, queue.queue_id, position, end)
                for minus_lag, queue, position, end in behind[:MAX_SLOWEST]
                if minus_lag < 0
            ],
            state="stopped" if state == "stopped" else "running",
        )

    # --- the thread ---

    def _send_reports(self) -> None:
        nameserver, topic, query, security = self._arguments
        producer: sync.Producer | None = None
        sent: tuple[Offsets, Offsets] | None = None
        sent_at = -IDLE_PERIOD_S
        ended = False
        while not ended:
            newest = self._newest
            # A report before the thread waits: short queries end within a second.
            due = newest != sent or time.monotonic() - sent_at >= IDLE_PERIOD_S
            ended = self._ending.is_set()
            pause_s = BUSY_PERIOD_S
            if due or ended:
                try:
                    if producer is None:
                        login = security.resolve()
                        producer = sync.Producer(
                            _GROUP,
                            namesrv=nameserver,
                            timeout_s=SEND_TIMEOUT_S,
                            retries=0,
                            credentials=login.credentials,
                            tls=login.tls or False,
                        )
                        producer.start()
                    made = self.report("stopped" if ended else "running")
                    if made is not None:
                        producer.send(Message(topic, made.encode(), keys=[_key(query)]))
                    sent, sent_at, self._problem = newest, time.monotonic(), ""
                except Exception as e:  # noqa: BLE001 - a report is never worth a query
                    self._note_problem(e)
                    pause_s = FAILURE_PAUSE_S
                    if producer is not None:
                        _close(producer)
                        producer = None
            if not ended:
                self._ending.wait(pause_s)
        if producer is not None:
            _close(producer)

    def _note_problem(self, error: Exception) -> None:
        """Log a failure; the same one in a row only once."""
        text = f"{type(error).__name__}: {error}"
        if text != self._problem:
            self._problem = text
            log.warning("no progress reports to topic %s: %s (the query goes on)", self._arguments[1], text)


def _key(query: str) -> str:
    """Return the key by which the reports of a query are found: keys have no blanks."""
    return "_".join(query.split())[:MAX_NAME] or "query"


def _close(producer: sync.Producer) -> None:
    try:
        producer.close()
    except SprocketError as e:
        log.debug("closing the producer of progress reports: %s", e)
