"""Both ends of a connection in memory, as asyncio transports.

::

    writer --> [ write buffer | socket buffers | under way ] --> reader
                                                   ^ delivered in pieces, each after a random latency, in order

A piece is what one read takes. Of a connection that is reset, what was not delivered is lost. Pieces of other connections are independent
of these, and so requests on several connections overtake each other.
"""

import asyncio
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from functools import partial
from typing import Any, Protocol, cast
from zlib import crc32

from sprocketmq.testing.rig.trace import Trace
from sprocketmq.testing.rig.virtual_loop import VirtualLoop

Address = tuple[str, int]

# What socket buffers on both sides take: only what is beyond them waits in the transport's write buffer.
SOCKET_BUFFERS_BYTES = 64 << 10
LARGEST_PIECE_BYTES = 64 << 10


class Medium(Protocol):
    """What connects the machines: ``network.Network``."""

    loop: VirtualLoop
    trace: Trace

    def is_blocked(self, source: str, target: str) -> bool: ...

    def when_healed(self, action: Callable[[], None]) -> None: ...

    def latency_s(self, source: str, target: str, rng: random.Random) -> float: ...


class Pipe:
    """One direction of a connection: bytes on their way, then perhaps the end of the stream."""

    def __init__(self, network: Medium, name: str, source: "SimTransport", target: "SimTransport", rng: random.Random) -> None:
        self.network = network
        self.name = name
        self.source = source
        self.target = target
        self.rng = rng
        self.bytes = 0
        self.ending = False  # the writer has closed its side
        self.cut = False
        self._pieces: deque[bytes] = deque()
        self._scheduled = False

    def push(self, data: bytes) -> None:
        if self.cut:  # the other side no longer knows this connection, and says so
            self.source.reset_soon()
            return
        self._pieces.append(data)
        self.bytes += len(data)
        self.proceed()

    def end(self) -> None:
        """Let the reader see the end of the stream after all bytes."""
        self.ending = True
        self.proceed()

    def break_off(self) -> None:
        """Deliver nothing more."""
        self.cut = True
        self._pieces.clear()
        self.bytes = 0

    def lose_unsent(self) -> None:
        """Lose what socket buffers do not hold: it was in the writer's memory."""
        if self.bytes > SOCKET_BUFFERS_BYTES:
            self._pieces = deque([self._take(SOCKET_BUFFERS_BYTES)])
            self.bytes = SOCKET_BUFFERS_BYTES

    def proceed(self) -> None:
        """Deliver what is there after a while, unless the network is cut or the reader takes nothing."""
        if self._scheduled or self.cut or not (self.bytes or self.ending):
            return
        target = self.target
        if target.reading_paused:
            return  # ``resume_reading`` calls again
        self._scheduled = True
        if self.network.is_blocked(self.source.host, target.host):
            self.network.when_healed(self._try_again)
            return
        delay_s = self.network.latency_s(self.source.host, target.host, self.rng)
        self.network.loop.call_later(delay_s, self._deliver, context=target.context)

    def _try_again(self) -> None:
        self._scheduled = False
        self.proceed()

    def _deliver(self) -> None:
        self._scheduled = False
        target = self.target
        if self.cut:
            return
        if target.reading_paused or self.network.is_blocked(self.source.host, target.host):
            self.proceed()
        elif self.bytes and target.closing:  # nobody reads this any more, and the system there says so
            self.break_off()
            self.source.reset_soon()
        elif self.bytes:
            data = self._take(self._piece_length())
            self.network.trace.note(f"{self.name} {len(data)} {crc32(data):08x}")
            target.receive(data)
            self.source.drained()
            self.proceed()
        elif self.ending:
            self.cut = True
            target.receive_end()

    def _piece_length(self) -> int:
        kind = self.rng.random()
        if kind < 0.9:
            return LARGEST_PIECE_BYTES
        return self.rng.randrange(1, 8) if kind < 0.93 else self.rng.randrange(1, 4096)

    def _take(self, length: int) -> bytes:
        pieces = self._pieces
        taken: list[bytes] = []
        while pieces and length:
            piece = pieces.popleft()
            if len(piece) > length:
                pieces.appendleft(piece[length:])
                piece = piece[:length]
            length -= len(piece)
            self.bytes -= len(piece)
            taken.append(piece)
        return taken[0] if len(taken) == 1 else b"".join(taken)


class SimTransport(asyncio.Transport):
    """One end. ``context`` is that of the process it belongs to: its protocol is called in it.

    ``on_closed`` is called when the connection is over for this side.
    """

    def __init__(self, network: Medium, local: Address, remote: Address, context: Context) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.network = network
        self.host = local[0]
        self.context = context
        self.closing = False
        self.dead = False  # with its process: nothing it does reaches anybody
        self.reading_paused = False
        self.peer: SimTransport
        self.out: Pipe
        self.on_closed: Callable[[SimTransport], None] = lambda _: None
        self._protocol: asyncio.BaseProtocol
        self._writing_paused = False
        self._ended = False
        self._resetting = False
        self._high, self._low = 64 << 10, 16 << 10

    def connect(self, peer: "SimTransport", protocol: asyncio.BaseProtocol, name: str, rng: random.Random) -> None:
        """Join this end to the other one."""
        self.peer = peer
        self._protocol = protocol
        self.out = Pipe(self.network, name, self, peer, rng)

    # --- reading ---

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        if self.reading_paused and not self.closing:
            self.reading_paused = False
            self.peer.out.proceed()

    def is_reading(self) -> bool:
        return not (self.reading_paused or self.closing)

    def receive(self, data: bytes) -> None:
        """Hand the protocol what arrived."""
        protocol = self._protocol
        try:
            if isinstance(protocol, asyncio.BufferedProtocol):
                at = 0
                while at < len(data) and not self.closing:
                    buffer = cast("memoryview", protocol.get_buffer(-1))
                    part = data[at : at + len(buffer)]
                    buffer[: len(part)] = part
                    protocol.buffer_updated(len(part))
                    at += len(part)
            else:
                cast("asyncio.Protocol", protocol).data_received(data)
        except Exception as e:  # noqa: BLE001 - a transport ends the connection and reports the error, as asyncio's does
            self.network.loop.call_exception_handler({"message": "a protocol failed", "exception": e, "protocol": protocol})
            self.abort()

    def receive_end(self) -> None:
        if not self.closing and not cast("asyncio.Protocol", self._protocol).eof_received():
            self.close()

    # --- writing ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not (self.closing or self.dead or self.out.ending):
            self.out.push(bytes(data))
            if not self._writing_paused and self.get_write_buffer_size() > self._high:
                self._writing_paused = True
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def drained(self) -> None:
        """Record that the reader took something."""
        if self._writing_paused and not self._ended and self.get_write_buffer_size() <= self._low:
            self._writing_paused = False
            self.network.loop.call_soon(self._protocol.resume_writing, context=self.context)
        if self.closing and not self._ended and not self.get_write_buffer_size():
            self._finish(None)

    def get_write_buffer_size(self) -> int:
        return max(0, self.out.bytes - SOCKET_BUFFERS_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = (64 << 10 if low is None else 4 * low) if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.out.end()

    # --- the end ---

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        """Close after what was written; the other side reads the end of the stream after it."""
        if not self.closing:
            self.closing = True
            if self.dead:
                self._finish(None)
            else:
                self.out.end()
                self.drained()

    def abort(self) -> None:
        """Close at once: what was not delivered is lost, and the other side's connection is reset."""
        if not self._ended:
            self.closing = True
            self._finish(None)
            if not self.dead:
                self.out.break_off()
                self.peer.reset_soon()

    def reset_soon(self) -> None:
        """Lose the connection, as by a packet that says so: now, or when the network lets it through."""
        peer = self.peer.host
        if self._ended or self._resetting or self.dead:
            return
        if self.network.is_blocked(peer, self.host):
            self._resetting = False
            self.network.when_healed(self.reset_soon)
        else:
            self._resetting = True
            self.network.loop.call_later(self.network.latency_s(peer, self.host, self.out.rng), self._reset, context=self.context)

    def _reset(self) -> None:
        self.peer.out.break_off()
        self.out.break_off()
        if not self._ended:
            self.closing = True
            self._finish(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def _finish(self, error: Exception | None) -> None:
        self._ended = True
        self.on_closed(self)
        self.network.loop.call_soon(partial(self._protocol.connection_lost, error), context=self.context)

    # --- asyncio's ---

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol
