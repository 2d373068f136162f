"""A TCP proxy that fails on request, to test clients against a network that is slow, silent or gone.

::

    async with FaultProxy("127.0.0.1:9876") as proxy:
        async with Producer("pg", namesrv=proxy.address) as producer:
            proxy.delay_s = 0.2                # every request and response takes longer
            proxy.partition()                  # nothing gets through, and connections stay open
            await proxy.heal()
            proxy.cut()                        # every connection is reset; new ones are accepted
            proxy.refuse()                     # connections are refused, until ``heal``

Clients get broker addresses from nameservers. To put a proxy before a broker, let the broker advertise the proxy's host, with one port for
both:
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

# Buffer of each direction of a connection, beside the kernel's: 64 pieces of up to 64 KiB.
MAX_PIECES = 64
PIECE_BYTES = 64 << 10
CONNECT_TIMEOUT_S = 5.0
BACKLOG = 100
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: closing sends RST


class FaultProxy:
    """Passes bytes between clients and the server at ``upstream`` (``HOST:PORT``), with the faults a test asks for.

    It listens on ``host`` and ``port`` (0: any free port, see ``address``) while ``async with`` lasts, and serves at most
    ``max_connections``; further ones are reset. As with TCP, bytes inside a connection are never dropped or changed: they are late, or the
    connection ends. ``delay_s`` delays each piece by that many seconds in both directions; order is kept. Call all methods on the event
    loop it runs in. Raises ConfigError for an invalid address, OSError when the port is taken.
    """

    def __init__(self, upstream: str, *, host: str = "127.0.0.1", port: int = 0, max_connections: int = 256) -> None:
        self._upstream = parse_address(upstream)
        if max_connections < 1:
            raise ConfigError(f"max_connections must be 1 or more, not {max_connections}")
        self._host = host
        self._port = port
        self._max_connections = max_connections
        self.delay_s: float = 0.0
        self._listener: socket.socket | None = None
        self._to_server = asyncio.Event()
        self._to_client = asyncio.Event()
        self._reachable = asyncio.Event()
        self._links: dict[asyncio.Task[None], _Link] = {}
        self._open_gates()

    @property
    def address(self) -> str:
        """The address for clients, as ``HOST:PORT``; a port of 0 is replaced at the start."""
        return format_address(self._host, self._port)

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._links)

    # --- faults ---

    def cut(self) -> int:
        """Reset every connection on both sides, losing data in transit; return how many there were. New ones are accepted."""
        for task, link in self._links.items():
            link.cut()
            task.cancel()
        return len(self._links)

    def stall(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Pass nothing on until ``heal``, in one direction or both; connections stay open and data waits."""
        if to_server:
            self._to_server.clear()
        if to_client:
            self._to_client.clear()

    def partition(self) -> None:
        """Partition the network as a dead switch does: connections stay open and silent, and new ones get no answer."""
        self.stall()
        self._reachable.clear()

    def refuse(self) -> None:
        """Stop listening and reset every connection: new connections are refused until ``heal``."""
        self._stop_listening()
        self.cut()

    async def heal(self) -> None:
        """End every fault. Data that a stalled connection has held back is passed on."""
        self.delay_s = 0.0
        self._open_gates()
        if self._listener is None:
            self._listen()

    def _open_gates(self) -> None:
        for gate in (self._to_server, self._to_client, self._reachable):
            gate.set()

    # --- life ---

    async def __aenter__(self) -> Self:
        self._listen()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop_listening()
        tasks = list(self._links)
        self.cut()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _listen(self) -> None:
        # Not asyncio.start_server: a server that is closed just after an accept leaves that connection open and unreferenced.
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._listener = listener = socket.create_server((self._host, self._port), family=family, backlog=BACKLOG)
        listener.setblocking(False)
        self._port = listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()

    # --- connections ---

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # it disconnected again
        client.setblocking(False)
        link = _Link(client)
        if len(self._links) >= self._max_connections:
            link.cut()
            return
        task = asyncio.get_running_loop().create_task(self._serve(link))
        self._links[task] = link
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task).cut()  # a task that is cancelled before its first step has closed nothing

    async def _serve(self, link: "_Link") -> None:
        try:
            reader, writer = await link.open()
            await self._reachable.wait()
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                upstream_reader, upstream = await asyncio.open_connection(*self._upstream, limit=PIECE_BYTES)
            link.add(upstream)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, upstream, self._to_server))
                both.create_task(self._pass(upstream_reader, writer, self._to_client))
            await link.close()
        except* (OSError, TimeoutError, asyncio.CancelledError):
            link.cut()  # one side, or the proxy, is gone: reset the other

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        """Pass one direction on until it ends, then end it on the other side."""
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

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._is_open = False
        self._writers: list[asyncio.StreamWriter] = []
        self._is_cut = False

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the client's side as streams."""
        self._is_open = True
        reader, writer = await asyncio.open_connection(sock=self._client, limit=PIECE_BYTES)
        self.add(writer)
        return reader, writer

    def add(self, writer: asyncio.StreamWriter) -> None:
        """Add a side; reset it at once if the link was cut while it was being opened."""
        self._writers.append(writer)
        if self._is_cut:
            self.cut()

    async def close(self) -> None:
        """Close both sides after sending what they were given."""
        for writer in self._writers:
            writer.close()
            await writer.wait_closed()

    def cut(self) -> None:
        """Reset both sides."""
        self._is_cut = True
        if not self._is_open:
            _reset_when_closed(self._client)
            self._client.close()
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            if sock is not None and not writer.is_closing():
                _reset_when_closed(sock)
            writer.transport.abort()


def _reset_when_closed(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
