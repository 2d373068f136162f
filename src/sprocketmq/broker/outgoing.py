"""The connections that a broker opens itself, to nameservers and other brokers: signed by its inner credentials, and encrypted."""

from sprocketmq.net.client import ConnectionPool
from sprocketmq.net.tls import TlsConfig, client_context
from sprocketmq.security.config import SecurityConfig


class Outgoing:
    """Makes pools of connections that the broker's settings ask for.

    ``tls`` is the context of encrypted connections, None for plain ones, and ``server_name`` the name in the certificates of all servers,
    None for the host of each address. Raises ConfigError when a file that ``tls_client`` names cannot be used.
    """

    def __init__(self, security: SecurityConfig | None, tls_client: TlsConfig | bool | None) -> None:
        self._credentials = security.inner_credentials if security is not None else None
        self.tls = client_context(tls_client)
        self.server_name = tls_client.server_name if isinstance(tls_client, TlsConfig) else None

    def pool(self, expected: str) -> ConnectionPool:
        """Return a new pool; ``expected`` is what should listen at its addresses (broker, nameserver)."""
        return ConnectionPool(expected=expected, credentials=self._credentials, tls=self.tls, server_name=self.server_name)
