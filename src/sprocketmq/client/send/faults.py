"""Which brokers are slow or failing, and how long each is left alone: latency fault tolerance (docs/internals/client.md#a-send)."""

from collections.abc import Callable

# ``(latency, isolation)`` in seconds, the reference's numbers: from this latency on, a broker is left alone for so long.
ISOLATION_S = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))
# A send that failed counts as one that took so long.
FAILED_S = 10.0
_FAST_S = ISOLATION_S[-1][0]


def isolation_s(latency_s: float) -> float:
    """Return for how many seconds a broker that took ``latency_s`` for an answer is left alone; 0 below 0.55 s."""
    for bound, isolation in ISOLATION_S:
        if latency_s >= bound:
            return isolation
    return 0.0


class FaultTable:
    """Brokers by name that no message should be sent to for a while, if there are others.

    ``now`` returns monotonic seconds. An isolation only ever gets longer: answers that were on their way meanwhile do not end it early.
    """

    __slots__ = ("_now", "_until")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: dict[str, float] = {}

    def __bool__(self) -> bool:
        """Tell whether any broker may be isolated now; False means that all are available."""
        return bool(self._until)

    def answered(self, broker_name: str, latency_s: float) -> None:
        """Take note of an answer."""
        if latency_s >= _FAST_S:
            self._isolate(broker_name, isolation_s(latency_s))

    def failed(self, broker_name: str) -> None:
        """Take note of a send that the broker did not answer, or refused because of its own state."""
        self._isolate(broker_name, isolation_s(FAILED_S))

    def available(self, broker_name: str) -> bool:
        """Tell whether messages may be sent to ``broker_name`` now."""
        until = self._until.get(broker_name)
        if until is None:
            return True
        if until > self._now():
            return False
        del self._until[broker_name]
        return True

    def _isolate(self, broker_name: str, seconds: float) -> None:
        self._until[broker_name] = max(self._until.get(broker_name, 0.0), self._now() + seconds)
