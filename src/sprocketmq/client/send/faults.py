"""Latency fault tolerance: which brokers are slow or failing, and how long each is avoided (docs/internals/client.md#a-send)."""

from collections.abc import Callable

# ``(latency, isolation)`` in seconds, the reference's numbers: after an answer that took ``latency`` a broker is avoided for ``isolation``.
ISOLATION_S = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))
# The latency that a failed send counts as.
FAILED_S = 10.0
_FAST_S = ISOLATION_S[-1][0]


def isolation_s(latency_s: float) -> float:
    """Return for how many seconds a broker is avoided after an answer that took ``latency_s``; 0 below 0.55 s."""
    for bound, isolation in ISOLATION_S:
        if latency_s >= bound:
            return isolation
    return 0.0


class FaultTable:
    """The brokers to avoid for a while if there are others, by name.

    ``now`` returns monotonic seconds. An isolation is never shortened: fast answers to earlier requests do not end it.
    """

    __slots__ = ("_now", "_until")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: dict[str, float] = {}

    def __bool__(self) -> bool:
        """Return whether any broker may be isolated now; False means that all are available."""
        return bool(self._until)

    def answered(self, broker_name: str, latency_s: float) -> None:
        """Record an answer."""
        if latency_s >= _FAST_S:
            self._isolate(broker_name, isolation_s(latency_s))

    def failed(self, broker_name: str) -> None:
        """Record a send that the broker did not answer, or refused because of its own state."""
        self._isolate(broker_name, isolation_s(FAILED_S))

    def available(self, broker_name: str) -> bool:
        """Return whether messages may be sent to ``broker_name`` now."""
        until = self._until.get(broker_name)
        if until is None:
            return True
        if until > self._now():
            return False
        del self._until[broker_name]
        return True

    def _isolate(self, broker_name: str, seconds: float) -> None:
        self._until[broker_name] = max(self._until.get(broker_name, 0.0), self._now() + seconds)
