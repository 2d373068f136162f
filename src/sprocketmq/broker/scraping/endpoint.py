"""The address that Prometheus scrapes: ``GET /metrics`` over HTTP, and nothing else.

It runs on the broker's loop, beside sends and pulls, so everything a scraper may do is bounded: connections, the size and the time of a
request, and the time in which the page has to be read. There is no login, as Prometheus expects none by default; it listens on loopback
unless told otherwise (docs/internals/security.md).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import cast

from sprocketmq.broker.metrics.exposition import CONTENT_TYPE
from sprocketmq.net.address import format_address
from sprocketmq.net.listening import listen, stop_accepting
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.tasks import Background

log = logging.getLogger(__name__)

PATH = "/metrics"
MAX_CONNECTIONS = 16
MAX_REQUEST_BYTES = 8 << 10
# Timeouts: for the request, for progress in reading the page, and for reading all of it.
REQUEST_S = 5.0
STALL_S = 5.0
PAGE_S = 60.0
# Bytes that may wait in a connection for its scraper.
_WRITE_BUFFER_BYTES = 128 << 10

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Request Header Fields Too Large"}
_REASONS |= {500: "Internal Server Error", 503: "Service Unavailable"}


class MetricsEndpoint:
    """Answers scrapes with the pieces of ``page``. ``name`` appears in log lines and names its tasks."""

    def __init__(self, page: Callable[[], AsyncIterator[str]], *, name: str) -> None:
        self.page = page
        self.name = name
        self.connections: set[_Scrape] = set()
        self.refused = 0
        self.background = Background(f"{name}: metrics")
        self.peer_log = PeerLog(log, time.monotonic)
        self._server: asyncio.Server | None = None
        self._host = ""

    async def start(self, host: str, port: int) -> None:
        """Listen on ``host:port`` (port 0: any free one). Raises PortInUse, and ConfigError for a host that is not this machine's."""
        self._host = host
        self._server = await listen(lambda: _Scrape(self), host, port)

    @property
    def address(self) -> str:
        """The ``host:port`` it listens on, "" when it does not."""
        if self._server is None or not self._server.sockets:
            return ""
        return format_address(self._host, int(self._server.sockets[0].getsockname()[1]))

    async def stop(self) -> None:
        """Stop listening and drop what is being scraped; may be called twice."""
        server, self._server = self._server, None
        if server is not None:
            await stop_accepting(server)
        for scrape in list(self.connections):
            scrape.drop()
        await self.background.close()
        if server is not None:
            await asyncio.sleep(0)
            await server.wait_closed()


class _Scrape(asyncio.Protocol):
    """One connection: one request, one answer, then it is closed."""

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint = endpoint
        self._request = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()
        self._answering = False
        self._closed = False
        self._deadline: asyncio.TimerHandle | None = None

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername") or ("", 0)
        self._host, self._peer = str(name[0]), format_address(name[0], name[1])
        endpoint = self._endpoint
        if len(endpoint.connections) >= MAX_CONNECTIONS:
            endpoint.refused += 1
            self._refuse(503, f"{MAX_CONNECTIONS} scrapers are connected, the limit: let fewer of them scrape this broker")
            return
        endpoint.connections.add(self)
        self._transport.set_write_buffer_limits(_WRITE_BUFFER_BYTES)
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_S, self.drop)

    def data_received(self, data: bytes) -> None:
        if self._answering:
            return
        self._request += data
        if b"\r\n\r\n" in self._request or b"\n\n" in self._request:
            self._answer(bytes(self._request))
        elif len(self._request) > MAX_REQUEST_BYTES:
            self._refuse(431, f"the request has more than {MAX_REQUEST_BYTES} bytes: send only `GET {PATH}` and a few headers")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._closed = True
        self._writable.set()
        if self._deadline is not None:
            self._deadline.cancel()
        self._endpoint.connections.discard(self)

    # --- answering ---

    def drop(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def _answer(self, request: bytes) -> None:
        first = request.split(b"\n", 1)[0].decode("latin-1").split()
        if len(first) != 3 or not first[2].startswith("HTTP/1."):
            self._refuse(400, f"this is the metrics port, which answers `GET {PATH}` over HTTP/1.1: it is not a port for RocketMQ clients")
        elif first[1].partition("?")[0] != PATH:
            self._refuse(404, f"there is only {PATH} here")
        elif first[0] != "GET":
            self._refuse(405, f"only GET is answered here, not {first[0][:20]!a}")
        else:
            self._answering = True
            self._restart_deadline(PAGE_S)
            self._endpoint.background.spawn(self._write_page(chunked=first[2] != "HTTP/1.0"), "a scrape")

    def _refuse(self, code: int, sentence: str) -> None:
        self._answering = True
        body = f"{sentence}\n".encode()
        self._transport.write(_head(code, "text/plain; charset=utf-8", f"Content-Length: {len(body)}\r\n") + body)
        self._transport.close()
        self._restart_deadline(STALL_S)  # close() waits until the answer is read

    def _restart_deadline(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.drop)

    async def _write_page(self, *, chunked: bool) -> None:
        started = False
        try:
            async for piece in self._endpoint.page():
                if self._transport.is_closing():  # the scraper disconnected while the piece was made
                    return
                if not started:
                    started = True
                    self._transport.write(_head(200, CONTENT_TYPE, "Transfer-Encoding: chunked\r\n" if chunked else ""))
                data = piece.encode()
                self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
                if not await self._read():
                    return
            if chunked and not self._transport.is_closing():
                self._transport.write(b"0\r\n\r\n")
            self._transport.close()
        except Exception:  # noqa: BLE001 - logged, within limits, as anybody who scrapes can cause it
            self._endpoint.peer_log.event(self._host, "metrics_failed", trace=True, server=self._endpoint.name, peer=self._peer)
            if started:
                self.drop()  # it has received only a part of the page
            else:
                self._refuse(500, "the page of metrics cannot be made: the broker's log says why")

    async def _read(self) -> bool:
        """Wait until the scraper has read enough for more; False when it does not, and the connection has ended."""
        if not self._writable.is_set():
            try:
                await asyncio.wait_for(self._writable.wait(), STALL_S)
            except TimeoutError:
                self._endpoint.peer_log.event(self._host, "scrape_cut_off", server=self._endpoint.name, peer=self._peer, silent_s=STALL_S)
                self.drop()
                return False
        return not self._closed


def _head(code: int, content_type: str, more: str) -> bytes:
    return f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {content_type}\r\n{more}Connection: close\r\n\r\n".encode()
