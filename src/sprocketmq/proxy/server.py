"""The endpoint as a server: gRPC behind a port that takes plain and encrypted connections."""

import logging
import tempfile
from pathlib import Path

import grpc

from sprocketmq.client.credentials import ClientSecurity
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.net.address import format_address
from sprocketmq.net.newcomers import NewcomerLimits
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server_tls import ServerTls, TlsMode
from sprocketmq.proxy.front import Front
from sprocketmq.proxy.service import MessagingService
from sprocketmq.proxy.users import Users
from sprocketmq.security.certificates import issue, make_authority
from sprocketmq.security.directory import write_new

log = logging.getLogger(__name__)

ALPN = ("h2",)
# The longest message of the API: one with the largest body, its properties, and what encloses them; sends may gather a few.
MAX_CALL_BYTES = 32 << 20
MAX_CALLS = 10_000
STOP_S = 2.0

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_CALL_BYTES),
    ("grpc.max_send_message_length", MAX_CALL_BYTES),
    ("grpc.max_connection_idle_ms", 120_000),
    # Clients probe the connection while no call is under way.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]
# A certificate that is made at the start serves until the endpoint stops; no process runs for so long.
_OWN_CERTIFICATE_DAYS = 365


class EndpointServer:
    """The gRPC endpoint of the cluster at ``namesrv``, on ``host:port`` (port 0: any free one).

    Without ``tls`` both kinds of connection are taken, with a certificate that is made at the start and that no client can verify. With
    ``users``, ``newcomer_limits`` hold for connections without a login. The other arguments are those of ``MessagingService``.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        host: str,
        port: int,
        security: ClientSecurity,
        users: Users,
        tls: ServerTls | None = None,
        advertised: str | None = None,
        newcomer_limits: NewcomerLimits = NewcomerLimits(),  # noqa: B008 - frozen
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._front = Front(PeerLog(log, clock.monotonic), logins=bool(users), limits=newcomer_limits)
        self.service = MessagingService(namesrv, security, users, self._front, advertised=advertised, clock=clock)
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return format_address(self._host, self._port)

    async def start(self) -> None:
        """Connect to the cluster and listen. Raises NameserverUnavailable, PortInUse and ConfigError."""
        self._directory = tempfile.TemporaryDirectory(prefix="sprocketmq-grpc-")
        try:
            await self.service.start()
            directory = Path(self._directory.name)
            path = directory / "grpc"
            self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
            self._server.add_generic_rpc_handlers((self.service.handler(),))
            self._server.add_insecure_port(f"unix:{path}")
            await self._server.start()
            tls = self._tls or _own_certificate(directory)
            self._port = await self._front.start(path, self._host, self._port, tls)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Finish pending calls within a few seconds, and disconnect. May be called twice."""
        if self._server is not None:
            await self.service.close()
            await self._server.stop(STOP_S)
            self._server = None
        await self._front.stop()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None


def _own_certificate(directory: Path) -> ServerTls:
    """Make a certificate for this run, for clients that encrypt without verifying."""
    pair = issue(make_authority(_OWN_CERTIFICATE_DAYS), ["localhost", "127.0.0.1"], _OWN_CERTIFICATE_DAYS)
    cert_file, key_file = directory / "server.pem", directory / "server.key"
    write_new(cert_file, pair.certificate, 0o600)
    write_new(key_file, pair.key, 0o600)
    return ServerTls(mode=TlsMode.PERMISSIVE, cert_file=cert_file, key_file=key_file, alpn=ALPN)
