"""Outages of brokers, and refusals of this client: one log line at the begin and one at the end, for any number of requests."""

import logging
import math
from collections import Counter

from sprocketmq.clock import Clock
from sprocketmq.errors import AccessRefused
from sprocketmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)


def broker_label(queue: MessageQueue) -> str:
    """Return the key for outages of a queue's broker, which is also its name in the log."""
    return f"broker {queue.broker_name}"


class Outages:
    """The outages known to one client, by label ("broker broker-a"), and refusals by address and remark. ``clock`` is the client's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pulls: Counter[str] = Counter()
        self._began: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._refusals: dict[tuple[str, str], float] = {}

    def level_of(self, what: str | None) -> int:
        """Return the level at which to log that a request other than a pull got no answer from ``what`` (None: unknown).

        A warning, unless pulls log the same outage, or have logged any.
        """
        return logging.DEBUG if self._began or (what is not None and self._pulls[what]) else logging.WARNING

    def pulled(self, what: str, change: int) -> None:
        """Change the number of queues pulled from ``what``."""
        self._pulls[what] += change

    def failed(self, what: str, asked_at: float, who: str, error: Exception) -> None:
        """Record that a pull of ``who``, sent at ``asked_at`` (monotonic s), failed and will be retried."""
        if what in self._began or asked_at < self._ended.get(what, -math.inf):
            # A known outage, or a late failure of one that has ended.
            log.debug("%s: %s", who, error)
            return
        self._began[what] = self._clock.monotonic()
        log.warning("%s: cannot pull from %s, trying again until it answers: %s", who, what, error)

    def answered(self, what: str, who: str) -> None:
        """Record that a pull of ``who`` was answered by ``what``, which ends its outage."""
        began = self._began.pop(what, None)
        if began is not None:
            now = self._ended[what] = self._clock.monotonic()
            log.warning("%s: connected again to %s after %.1f s", who, what, now - began)

    def refused(self, error: AccessRefused) -> int:
        """Record that a server refused a request, and return the level at which to log it: an error the first time."""
        key = error.address, error.remark
        if key in self._refusals:
            return logging.DEBUG
        self._refusals[key] = self._clock.monotonic()
        return logging.ERROR

    def allowed(self, address: str, who: str) -> None:
        """Record that the server at ``address`` accepted a request of the kind that it had refused."""
        ended = [key for key in self._refusals if key[0] == address]
        if ended:
            began = min(self._refusals.pop(key) for key in ended)
            log.warning("%s: %s gives access again after %.1f s", who, address, self._clock.monotonic() - began)

    def forget(self, what: str) -> None:
        """Drop the outage of ``what`` when a queue is no longer pulled: its end may go unnoticed."""
        self._began.pop(what, None)
