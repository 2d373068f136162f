"""A TCP proxy that misbehaves on request: what a client does when the network is slow, silent or gone.

::

    async with FaultProxy("127.0.0.1:9876") as proxy:
        async with Producer("pg", namesrv=proxy.address) as producer:
            proxy.delay_s = 0.2                # every answer (and question) takes longer
            proxy.partition()                  # nothing gets through, and nobody is told
            await proxy.heal()
            proxy.cut()                        # every connection is reset; new ones are welcome
            proxy.refuse()                     # nothing listens here any more, until ``heal``

Clients are led to brokers by nameservers. A broker is reached through a proxy when it advertises the proxy's host and both use one port:
``sprocketmq broker --port P --advertise 127.0.0.2`` and ``FaultProxy("127.0.0.1:P", host="127.0.0.2", port=P)``.
"""

import asyncio
import contextlib
import socket
import struct
from types import TracebackType
from typing import Self

from sprocketmq.errors import ConfigError
from sprocketmq.net.address import format_address, parse_address

# What each direction of a connection holds back at most, besides what the kernel does: 64 pieces of up to 64 KiB.
MAX_PIECES = 64
PIECE_BYTES = 64 << 10
CONNECT_TIMEOUT_S = 5.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: closing sends RST


class FaultProxy:
    """Pass bytes between clients and the server at ``upstream`` (``HOST:PORT``), as badly as asked.

    It listens on ``host`` and ``port`` (0: any free one; ``address`` says which) while ``async with`` lasts. At most ``max_connections``
    are served at a time; more are reset. Nothing is dropped or changed inside a connection, as TCP allows neither: bytes are late, or the
    connection ends. ``delay_s`` holds each piece for so many seconds, in both directions, from its arrival on; order is kept. All methods
    belong to the event loop it runs in. Raises ConfigError for an address that cannot be, OSError when the port is taken.
    """

    def __init__(self, upstream: str, *, host: str = "127.0.0.1", port: int = 0, max_connections: int = 256) -> None:
        self._upstream = parse_address(upstream)
        if max_connections < 1:
            raise ConfigError(f"max_connections must be 1 or more, not {max_connections}")
        self._host = host
        self._port = port
        self._max_connections = max_connections
        self.delay_s = 0.0
        self._server: asyncio.Server | None = None
        self._to_server = asyncio.Event()
        self._to_client = asyncio.Event()
        self._reachable = asyncio.Event()
        self._links: dict[asyncio.Task[None], _Link] = {}
        self._open_gates()

    @property
    def address(self) -> str:
        """Where clients should connect to, as ``HOST:PORT``; known from the start on."""
        return format_address(self._host, self._port)

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._links)

    # --- faults ---

    def cut(self) -> int:
        """Reset every connection, to both sides, with what is under way; return how many there were. New ones are accepted."""
        for task, link in self._links.items():
            link.cut()
            task.cancel()
        return len(self._links)

    def stall(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Pass nothing on until ``heal``, in one direction or both; connections stay open, and what comes meanwhile waits."""
        if to_server:
            self._to_server.clear()
        if to_client:
            self._to_client.clear()

    def partition(self) -> None:
        """Cut the network between clients and server as a dead switch does: connections stay open, new ones get no answer either."""
        self.stall()
        self._reachable.clear()

    def refuse(self) -> None:
        """Stop listening and reset every connection: clients that connect are refused until ``heal``."""
        self._close_server()
        self.cut()

    async def heal(self) -> None:
        """End every fault. What a stalled connection has held back is passed on."""
        self.delay_s = 0.0
        self._open_gates()
        if self._server is None:
            await self._listen()

    def _open_gates(self) -> None:
        for gate in (self._to_server, self._to_client, self._reachable):
            gate.set()

    # --- life ---

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close_server()
        tasks = list(self._links)
        self.cut()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=PIECE_BYTES)
        self._port = self._server.sockets[0].getsockname()[1]

    def _close_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    # --- connections ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        if len(self._links) >= self._max_connections or self._server is None:
            link.cut()
            return
        task = asyncio.current_task()
        assert task is not None, "the server runs this as a task"
        self._links[task] = link
        try:
            await self._reachable.wait()
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                upstream_reader, upstream = await asyncio.open_connection(*self._upstream, limit=PIECE_BYTES)
            link.add(upstream)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, upstream, self._to_server))
                both.create_task(self._pass(upstream_reader, writer, self._to_client))
            await link.close()
        except* (OSError, TimeoutError, asyncio.CancelledError):
            link.cut()  # one side is gone, or the proxy: the other one sees it now
        finally:
            del self._links[task]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        """Pass one direction on until it ends, then say so to the other side."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_PIECES)
        loop = asyncio.get_running_loop()

        async def fill() -> None:
            data = b"start"
            while data:
                data = await reader.read(PIECE_BYTES)
                await pieces.put((loop.time() + self.delay_s, data))

        async with asyncio.TaskGroup() as group:
            group.create_task(fill())
            while True:
                due, data = await pieces.get()
                wait = due - loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                await gate.wait()
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()


class _Link:
    """The two sockets of one proxied connection."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self._writers = [client]
        self._is_cut = False

    def add(self, upstream: asyncio.StreamWriter) -> None:
        """Take the server's side; cut it at once when the link was cut while it was being opened."""
        self._writers.append(upstream)
        if self._is_cut:
            self.cut()

    async def close(self) -> None:
        """Close both sides in order, with what they were given."""
        for writer in self._writers:
            writer.close()
            await writer.wait_closed()

    def cut(self) -> None:
        """Reset both sides."""
        self._is_cut = True
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            if sock is not None and not writer.is_closing():
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
