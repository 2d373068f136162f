"""One TCP connection that carries frames: the part that client and server share.

Bytes are received into a buffer that all connections of a loop share. The commands of one read are handled together, and the frames
written meanwhile leave in one call.
"""

import asyncio
from collections import deque
from typing import Any, cast

from sprocketmq.net.address import format_address
from sprocketmq.net.sockets import send_at_once
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.frame import FrameBuffer, FrameError, ReceiveBuffer

# A turn of the loop that has queued this much writes it at once, so that the peer can work on it meanwhile: less than a batch of AutoBatch.
EARLY_WRITE_BYTES = 16 << 10
# The same while requests are handled: few answers are this large, and they need not wait for the others.
EARLY_ANSWER_BYTES = 1 << 20

# After this much a connection reads on in the next turn of the loop. libuv reads up to 32 times what there is room for before it turns to
# other connections: 30 ms of a broker with a busy producer, during which consumers wait.
TURN_READ_BYTES = 1 << 20

# The amount that is encrypted at a time.
ENCRYPTED_PIECE = 256 << 10

# A buffer for bytes that are discarded.
_UNREAD = memoryview(bytearray(64 << 10))

Buffers = bytes | memoryview | list[bytes | memoryview]


def buffers_length(body: Buffers) -> int:
    """Return the length of a body, which is one buffer or a list of them."""
    return sum(map(len, body)) if type(body) is list else len(body)


class Link(asyncio.BufferedProtocol):
    """A frame connection. Subclasses implement ``_handle`` (commands) and ``_ended`` (the connection is gone)."""

    # A server has one for each client that is idle: without slots it would take 1.3 KiB more.
    __slots__ = (
        "__weakref__",
        "_encrypted",
        "_flush_scheduled",
        "_frames",
        "_in_batch",
        "_joins_writes",
        "_loop",
        "_out",
        "_out_bytes",
        "_transport",
        "_turn_bytes",
        "_unencrypted",
        "_unencrypted_bytes",
        "_write_at_once",
        "_writing_paused",
        "close_reason",
        "closed",
        "last_active",
        "peer",
        "received_bytes",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: ReceiveBuffer) -> None:
        self._loop = loop
        self._frames = FrameBuffer(receive)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._flush_scheduled = False
        self._in_batch = False
        # Set by subclasses: the next frame does not wait for the end of the turn, which would cost another turn of the loop.
        self._write_at_once = False
        self._joins_writes = False
        # With TLS: what was written while the socket accepts no more; made by the first write.
        self._encrypted = False
        self._unencrypted: deque[memoryview] | None = None
        self._unencrypted_bytes = 0
        self._writing_paused = False
        # Read since it last gave way to other connections.
        self._turn_bytes = 0
        self.closed: bool = False
        self.close_reason: str = ""
        self.peer: str = ""
        self.received_bytes: int = 0
        self.last_active: float = loop.time()

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._encrypted = transport.get_extra_info("sslcontext") is not None
        # With ``writelines`` of asyncio's own transports, Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 never pause the writer
        # (CVE-2024-12254), and later releases leave a closed socket with the selector when the peer has just gone (gh-136234).
        # Python 3.11 joins there itself.
        self._joins_writes = isinstance(transport, asyncio.Transport)
        send_at_once(transport)
        name = transport.get_extra_info("peername")
        if name:
            self.peer = format_address(name[0], name[1])

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        # TLS delivers what it has decrypted while it is closed, in the middle of a handler call: not into the buffer of that call's bodies.
        return _UNREAD if self.closed else self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        self.last_active = self._loop.time()
        self.received_bytes += nbytes
        self._turn_bytes += nbytes
        if self._turn_bytes >= TURN_READ_BYTES:
            self._give_way()
        try:
            commands = self._frames.received(nbytes)
        except FrameError as e:
            if e.commands:
                self._run(e.commands)
            self._broken(e)
            return
        if commands:
            self._run(commands)

    def _give_way(self) -> None:
        """Read on in the next turn of the loop, after everybody else."""
        self._turn_bytes = 0
        self._stop_reading()
        self._loop.call_soon(self._read_on)

    def _stop_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if self._transport is not None and not self.closed and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        # The transport closes, with TLS only when the peer has taken what is encrypted already: nothing more can be written until then.
        self.close_reason = self.close_reason or "closed by the peer"
        self.closed = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.close_reason:
            self.close_reason = (exc.strerror or str(exc)) if isinstance(exc, OSError) else str(exc or "closed by the peer")
        self.closed = True
        self._out.clear()
        self._unencrypted = None
        self._ended()

    # --- for subclasses ---

    def _handle(self, commands: list[Command]) -> None:
        raise NotImplementedError("a subclass handles commands")

    def _ended(self) -> None:
        """Handle the end of the connection; called once."""

    def _broken(self, error: FrameError) -> None:
        """Handle bytes that are not frames; the connection cannot continue."""
        self.abort(str(error))

    # --- writing ---

    def _run(self, commands: list[Command]) -> None:
        self._in_batch = True
        try:
            self._handle(commands)
        finally:
            self._in_batch = False
            if self._out:
                self.flush()

    def write(self, head: bytes, body: Buffers = b"") -> None:
        """Queue one frame; dropped when the connection is closed.

        It is written at the end of this turn of the loop, or earlier when ``_write_at_once`` is set or more than EARLY_WRITE_BYTES are
        queued (EARLY_ANSWER_BYTES while requests are handled).
        """
        if self.closed:
            return
        out = self._out
        out.append(head)
        if type(body) is list:
            out += body
        elif body:
            out.append(cast("bytes | memoryview", body))
            self._out_bytes += len(body)
        if self._in_batch:
            if self._out_bytes > EARLY_ANSWER_BYTES:
                self.flush()
            return
        if self._write_at_once or self._out_bytes > EARLY_WRITE_BYTES:
            self._write_at_once = False
            self.flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what is queued now, without waiting for the end of the turn."""
        self._flush_scheduled = False
        if self._out and self._transport is not None and not self.closed:
            out, self._out = self._out, []
            self._out_bytes = 0
            self.last_active = self._loop.time()
            if self._encrypted:
                self._encrypt(out)
            elif self._joins_writes:
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)

    def _encrypt(self, out: list[bytes | memoryview]) -> None:
        """Write with TLS. Each buffer would become records of its own, which takes up to eight times as long for small ones: join them."""
        data = memoryview(out[0] if len(out) == 1 else b"".join(out))
        if self._unencrypted is None:
            self._unencrypted = deque()
        self._unencrypted.extend(data[at : at + ENCRYPTED_PIECE] for at in range(0, len(data), ENCRYPTED_PIECE))
        self._unencrypted_bytes += len(data)
        self._encrypt_more()

    def _encrypt_more(self) -> None:
        """Encrypt what the socket accepts; the rest waits, as the transport would keep a buffer of its length until it is closed."""
        transport, pieces = self._transport, self._unencrypted
        while pieces and not self._writing_paused and not self.closed and transport is not None:
            piece = pieces.popleft()
            self._unencrypted_bytes -= len(piece)
            transport.write(piece)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._unencrypted:
            self._encrypt_more()

    @property
    def retained_bytes(self) -> int:
        """Bytes this connection holds between two reads: an incomplete frame, and output that the peer has not taken yet."""
        return self._frames.retained_bytes + buffers_length(self._out) + self.write_backlog

    @property
    def write_backlog(self) -> int:
        """Bytes that were written and that the socket has not taken."""
        if self._transport is None or self.closed:
            return 0
        return self._transport.get_write_buffer_size() + self._unencrypted_bytes

    def close(self, reason: str = "closed here") -> None:
        """Write what is queued, then close."""
        if self.closed:
            return
        self.flush()
        self.close_reason = self.close_reason or reason
        self.closed = True
        if self._transport is not None:
            while self._unencrypted:
                self._transport.write(self._unencrypted.popleft())
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once and drop what is queued."""
        if self._transport is not None and not self._transport.is_closing():
            self.close_reason = self.close_reason or reason
            self.closed = True
            self._transport.abort()

    def drop(self) -> None:
        """End a connection that ``close`` left with unwritten bytes."""
        if self._transport is not None:
            self._transport.abort()

    def extra_info(self, name: str) -> Any:
        """Return asyncio's extra information about the transport (``sockname``, ``socket`` ...)."""
        return self._transport.get_extra_info(name) if self._transport is not None else None
