"""The dashboard as an HTTP server on a socket of its own, in the loop of its caller."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import uvicorn

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError, FatalError, PortInUse
from sprocketmq.net.address import format_address
from sprocketmq.net.tasks import Background
from sprocketmq.web.app import create_app
from sprocketmq.web.dashboard import Dashboard
from sprocketmq.web.target import ClusterTarget

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
BACKLOG = 128
# How long requests that run may go on when it stops.
GRACE_S = 2


class _Uvicorn(uvicorn.Server):
    """A server whose process handles its signals itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def login_needed(target: ClusterTarget) -> bool:
    """Return whether viewers of a dashboard over ``target`` would have to log in. Raises the error of a cluster that does not answer."""
    dashboard = Dashboard(target)
    try:
        return await dashboard.probe()
    finally:
        await dashboard.close()


class DashboardServer:
    """A dashboard that listens on ``host`` and ``port`` (0: any free one), with HTTPS when it has a certificate.

    ``start`` raises PortInUse and ConfigError; ``stop`` ends open pages' streams, and may be called twice. When it ends although nobody
    stopped it, ``failure`` says why, and ``failed`` is called.
    """

    def __init__(
        self,
        target: ClusterTarget,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        read_only: bool = False,
        allowed_hosts: Collection[str] = (),
        certificate: Path | None = None,
        key: Path | None = None,
        failed: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.failure: FatalError | None = None
        self._failed = failed
        self._host, self._port = host, port
        self._certificate, self._key = certificate, key
        app = create_app(target, read_only=read_only, allowed_hosts=allowed_hosts, clock=clock)
        self.dashboard: Dashboard = app.state.dashboard
        self._app = app
        self._background = Background("dashboard")
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None
        self._listening: socket.socket | None = None
        self._address = ("", 0)

    @property
    def url(self) -> str:
        """The address for a browser."""
        return f"{'https' if self._certificate is not None else 'http'}://{format_address(*self._address)}"

    async def start(self) -> None:
        """Listen. Returns when requests are answered."""
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=GRACE_S,
            ssl_certfile=self._certificate,
            ssl_keyfile=self._key,
            # A Host header behind a proxy is checked as it comes.
            proxy_headers=False,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as e:
            raise ConfigError(f"HTTPS with {self._certificate}: {e}") from None
        self._listening = listening = self._listen()
        self._address = listening.getsockname()[:2]
        self._server = _Uvicorn(config)
        self._serving = self._background.spawn(self._server.serve(sockets=[listening]), "requests", awaited=True)
        while not self._server.started:
            if self._serving.done():
                listening.close()
                self._serving.result()
                raise ConfigError("the dashboard did not start; its log says why")
            await asyncio.sleep(0.01)
        self._serving.add_done_callback(self._ended)

    def _ended(self, serving: "asyncio.Task[None]") -> None:
        assert self._server is not None
        if self._server.should_exit:
            return
        error = None if serving.cancelled() else serving.exception()
        why = "cancelled by code that does not own it" if serving.cancelled() else repr(error)
        self.failure = FatalError(f"the dashboard at {self.url} answers no requests any more: {why}")
        log.error("%s", self.failure, exc_info=error)
        self._failed()

    async def stop(self) -> None:
        """Answer what has been requested, within GRACE_S seconds, and stop."""
        if self._server is None or self._serving is None:
            return
        self.dashboard.end_streams()
        self._server.should_exit = True
        await asyncio.wait([self._serving])
        if self.failure is not None and self._listening is not None:  # uvicorn may end before it closes them
            listening, self._listening = self._listening, None
            await self._server.shutdown(sockets=[listening])
        await self._background.close()

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self._host, self._port))
            listening.listen(BACKLOG)
            listening.setblocking(False)
        except OSError as e:
            listening.close()
            raise PortInUse(self._host, self._port, e.strerror or str(e)) from None
        return listening
