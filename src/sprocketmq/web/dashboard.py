"""The state that all requests of one dashboard share: its target, sessions, collector, and concurrency limits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import AuthenticationFailed, SprocketError
from sprocketmq.net.tasks import Background
from sprocketmq.web.collect import Collector
from sprocketmq.web.failures import Refused
from sprocketmq.web.sessions import Sessions
from sprocketmq.web.target import ClusterTarget

CALLS_AT_ONCE = 16
CALLS_WAITING = 200
STREAMS_AT_ONCE = 64


class Dashboard:
    """One dashboard for one cluster; started and closed by its application."""

    def __init__(self, target: ClusterTarget, *, read_only: bool = False, clock: Clock = SYSTEM_CLOCK) -> None:
        self.target = target
        self.read_only = read_only
        self.clock = clock
        self._arguments = target.resolved()
        self.sessions = Sessions(self._arguments, clock)
        self.collector = Collector(self.sessions.collecting_admin, clock)
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)
        self._waiting = 0
        self._streams = 0
        self.streams = Background("dashboard streams")

    @property
    def namesrv(self) -> str:
        """The addresses of the nameservers as text."""
        addresses = self._arguments["namesrv"]
        return addresses if isinstance(addresses, str) else ";".join(addresses or ())

    async def start(self) -> None:
        """Find out whether the cluster requires logins, and start sampling. An unreachable cluster is asked again later."""
        with contextlib.suppress(SprocketError, TimeoutError, OSError):
            await self.probe()
        self.collector.start()

    async def probe(self) -> bool:
        """Return whether viewers must log in, by a request without a signature when the dashboard has no credentials."""
        if not self.sessions.login_needed:
            try:
                await self.sessions.check_open()
            except AuthenticationFailed:
                self.sessions.need_login()
        return self.sessions.login_needed

    def end_streams(self) -> None:
        """End all streams, so that the server can stop."""
        self.streams.cancel()

    async def close(self) -> None:
        """Stop sampling, end all sessions and disconnect."""
        await self.streams.close()
        await self.collector.close()
        await self.sessions.close()

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for one of the calls that may run at a time. Raises Refused when too many wait."""
        if self._waiting >= CALLS_WAITING:
            raise Refused(503, "Busy", "the dashboard answers too many requests at the moment: try again")
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()

    def check_stream(self) -> None:
        """Raise Refused when there are too many open streams."""
        if self._streams >= STREAMS_AT_ONCE:
            raise Refused(503, "Busy", f"{STREAMS_AT_ONCE} pages are open already: close some")

    @contextlib.contextmanager
    def stream_slot(self) -> Iterator[None]:
        """Count one open stream."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1
