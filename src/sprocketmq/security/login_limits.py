"""Limits on the failed logins of a peer: first its answers are delayed, then its connections are closed.

Correctly signed requests pass, however often others at the same address failed. The limits save work and log lines; secrets are
protected by their length.
"""

from collections.abc import Callable
from enum import Enum
from ipaddress import ip_address

WINDOW_S = 60.0
# Failures of one address in a window that are answered at once, and that are answered at all, the later ones after DELAY_S.
PROMPT = 10
ANSWERED = 50
DELAY_S = 1.0
# Delayed answers that may wait at a time; beyond that, connections are closed instead.
MAX_DELAYED = 1000
MAX_ADDRESSES = 4096


class Penalty(Enum):
    """The consequence of a failed login."""

    NONE = "answer now"
    DELAY = "answer later"
    CLOSE = "close the connection"


class LoginLimits:
    """Counts the failures of each address, and the answers that wait.

    Beyond MAX_ADDRESSES, the address whose window began first is forgotten.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._failures: dict[str, tuple[float, int]] = {}
        self._delayed = 0

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, host: str) -> Penalty:
        """Count a failure of a peer at ``host`` and return what follows; after DELAY, call ``answered`` when the answer no longer waits."""
        network, now = _network(host), self._time()
        ends, count = self._failures.get(network, (0.0, 0))
        if now >= ends:
            self._failures.pop(network, None)  # so that its new window goes to the end of the table
            if len(self._failures) >= MAX_ADDRESSES:
                del self._failures[next(iter(self._failures))]
            ends, count = now + WINDOW_S, 0
        self._failures[network] = (ends, count + 1)
        if count < PROMPT:
            return Penalty.NONE
        if count >= ANSWERED or self._delayed >= MAX_DELAYED:
            return Penalty.CLOSE
        self._delayed += 1
        return Penalty.DELAY

    def answered(self) -> None:
        """Count a delayed answer as given."""
        self._delayed -= 1


def _network(host: str) -> str:
    """Return what counts as one address: for IPv6 the /64 network, as one machine can use all of it."""
    if ":" not in host:
        return host
    try:
        return str(int(ip_address(host.partition("%")[0])) >> 64)
    except ValueError:
        return host
