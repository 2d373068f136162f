"""Brokers that do not answer: one log line when an outage begins and one when it is over, however many queues and requests meet it."""

import logging
import math
from collections import Counter

from sprocketmq.clock import Clock
from sprocketmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)


def broker_label(queue: MessageQueue) -> str:
    """Return what outages of a queue's broker are filed under, and called in the log."""
    return f"broker {queue.broker_name}"


class Outages:
    """The outages that one client knows of, each by what does not answer ("broker broker-a"). ``clock`` is the client's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pulls: Counter[str] = Counter()
        self._began: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def level_of(self, what: str | None) -> int:
        """Return how to log that something else than a pull got no answer from ``what`` (None: nobody knows of whom): as news, unless pulls
        meet the same outage, or have met any.
        """
        return logging.DEBUG if self._began or (what is not None and self._pulls[what]) else logging.WARNING

    def pulled(self, what: str, change: int) -> None:
        """Note that so many more pull from ``what``, or fewer."""
        self._pulls[what] += change

    def failed(self, what: str, asked_at: float, who: str, error: Exception) -> None:
        """Note that a pull that ``who`` sent at ``asked_at`` (monotonic) failed, and will be tried again."""
        if what in self._began or asked_at < self._ended.get(what, -math.inf):
            # Known, or a late failure of an outage that others have seen the end of.
            log.debug("%s: %s", who, error)
            return
        self._began[what] = self._clock.monotonic()
        log.warning("%s: cannot pull from %s, trying again until it answers: %s", who, what, error)

    def answered(self, what: str, who: str) -> None:
        """Note that a pull of ``who`` was answered by ``what``, which ends its outage."""
        began = self._began.pop(what, None)
        if began is not None:
            now = self._ended[what] = self._clock.monotonic()
            log.warning("%s: connected again to %s after %.1f s", who, what, now - began)

    def forget(self, what: str) -> None:
        """Note that who met the outage asks no more: nobody may be left to see its end."""
        self._began.pop(what, None)
