"""The endpoint as a server: gRPC behind a port that takes plain and encrypted connections."""

import logging
import tempfile
from pathlib import Path

from sprocketmq.client.credentials import ClientSecurity
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.net.address import format_address
from sprocketmq.net.newcomers import NewcomerLimits
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server_tls import ServerTls, TlsMode
from sprocketmq.proxy.calls import CallServer
from sprocketmq.proxy.service import MessagingService
from sprocketmq.proxy.users import Users
from sprocketmq.security.certificates import issue, make_authority
from sprocketmq.security.directory import write_new

log = logging.getLogger(__name__)

ALPN = ("h2",)
STOP_S = 2.0

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
        self.service = MessagingService(namesrv, security, users, advertised=advertised, clock=clock)
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        peer_log = PeerLog(log, clock.monotonic)
        self._calls = CallServer(self.service.methods(), peer_log, logins=bool(users), limits=newcomer_limits, clock=clock)

    @property
    def address(self) -> str:
        """Where it listens."""
        return format_address(self._host, self._port)

    async def start(self) -> None:
        """Connect to the cluster and listen. Raises NameserverUnavailable, PortInUse and ConfigError."""
        self._directory = tempfile.TemporaryDirectory(prefix="sprocketmq-grpc-")
        try:
            await self.service.start()
            tls = self._tls or _own_certificate(Path(self._directory.name))
            self._port = await self._calls.start(self._host, self._port, tls)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Finish pending calls within a few seconds, and disconnect. May be called twice."""
        await self.service.close()
        await self._calls.stop(STOP_S)
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
