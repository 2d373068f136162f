"""The connections that a broker opens itself, to nameservers and other brokers: signed by its inner credentials."""

from sprocketmq.net.client import ConnectionPool
from sprocketmq.security.config import SecurityConfig


class Outgoing:
    """Makes pools of connections that the broker's settings ask for."""

    def __init__(self, security: SecurityConfig | None) -> None:
        self._credentials = security.inner_credentials if security is not None else None

    def pool(self, expected: str) -> ConnectionPool:
        """Return a new pool; ``expected`` is what should listen at its addresses (broker, nameserver)."""
        return ConnectionPool(expected=expected, credentials=self._credentials)
