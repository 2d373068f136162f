"""The rates at which a group's topics grow and the group reads, from two samples of its offsets, which brokers of any version report."""

from collections import deque
from dataclasses import dataclass

from sprocketmq.web.api.reader import ClusterReader

# Samples are kept for a minute, at most one per LOOK_S; rates need two that are LOOK_S apart.
LOOK_S, KEPT_S = 4.0, 60.0


@dataclass(frozen=True)
class Rates:
    """Messages per second: ``stored`` into the group's queues, and ``consumed`` by it; both over the same time."""

    stored: float
    consumed: float


def rates_of(reader: ClusterReader, name: str, stored: int, committed: int) -> Rates | None:
    """Return the rates since the oldest sample of the last minute under ``name``; None when there was none, or offsets were reset since.

    ``stored`` and ``committed`` are the sums of the queues' end offsets and of the group's offsets, now.
    """
    now = reader.clock.monotonic()
    looks: deque[tuple[float, int, int]] | None = reader.sample(name)
    if looks is None:
        looks = deque()
    if looks and (stored < looks[-1][1] or committed < looks[-1][2]):
        looks.clear()  # a reset, or a recreated topic
    while looks and now - looks[0][0] > KEPT_S:
        looks.popleft()
    found = None
    if looks and now - looks[0][0] >= LOOK_S:
        since, before_stored, before_committed = looks[0]
        found = Rates((stored - before_stored) / (now - since), (committed - before_committed) / (now - since))
    if not looks or now - looks[-1][0] >= LOOK_S:
        looks.append((now, stored, committed))
    reader.keep_sample(name, looks)
    return found


def catch_up_s(lag: int, rates: Rates) -> float | None:
    """Return the seconds until the lag is 0 at these rates, None when the group does not catch up with its topics."""
    if lag == 0:
        return 0.0
    gain = rates.consumed - rates.stored
    return lag / gain if gain > 0 else None
