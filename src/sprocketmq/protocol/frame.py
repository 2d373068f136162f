"""Cut a byte stream into commands, without I/O: the caller receives into ``get_buffer`` and reports ``received``."""

from typing import cast

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.command import MAX_FRAME_LENGTH, Command, decode_parts
from sprocketmq.protocol.layout import FRAME_HEAD, INT32

DEFAULT_CAPACITY = 256 * 1024
# The start of a frame up to this size is copied in front of the next read; a longer one gets a buffer of its own.
SMALL_REST_BYTES = 32 << 10
# The buffer of one long frame has at most this many times the bytes that arrived: few copies, and no memory for a mere length field.
GROWTH = 4
_unpack_int32 = INT32.unpack_from

TLS_HANDSHAKE = "a TLS handshake"

_FOREIGN = {
    b"GET ": "an HTTP request",
    b"POST": "an HTTP request",
    b"PUT ": "an HTTP request",
    b"HEAD": "an HTTP request",
    b"OPTI": "an HTTP request",
    b"HTTP": "an HTTP response",
    b"PRI ": "an HTTP/2 (gRPC) request",
    b"SSH-": "an SSH banner",
}


def describe_foreign(first: bytes) -> str:
    """Name the protocol that bytes at the start of a frame look like, or return "" when they could be anything."""
    if name := _FOREIGN.get(first[:4]):
        return name
    if first[:1] == b"\x16":
        return TLS_HANDSHAKE
    if first[:2] == b"\x15\x03":
        return "a TLS alert"
    # An HTTP/2 server greets with a SETTINGS frame: 24-bit length, type 4, no flags, stream 0.
    if len(first) >= 9 and first[0] == 0 and first[3] == 4 and first[5:9] == b"\x00\x00\x00\x00":
        return "an HTTP/2 (gRPC) server"
    return ""


class ReceiveBuffer:
    """The memory that the connections of one event loop receive into: one read at a time, handled before the next read.

    A buffer that a long frame needed is kept for the next one until ``patience`` reads did without it; with 0 none is kept.
    """

    __slots__ = ("_capacity", "_patience", "_quiet_reads", "_spare", "small_rest", "view")

    def __init__(self, capacity: int = DEFAULT_CAPACITY, *, patience: int = 0) -> None:
        self._capacity = capacity
        self._patience = patience
        self._spare = memoryview(b"")
        self._quiet_reads = 0
        self.small_rest: int = min(SMALL_REST_BYTES, capacity // 2)
        self.view: memoryview[int] = memoryview(b"")

    @property
    def spare_bytes(self) -> int:
        """The size of the buffer kept for the next long frame."""
        return len(self._spare)

    def ready(self) -> memoryview:
        """Return the memory for one read."""
        if not self.view:
            self.view = memoryview(bytearray(self._capacity))
        if self._spare:
            self._quiet_reads += 1
            if self._quiet_reads > self._patience:
                self._spare = memoryview(b"")
        return self.view

    def take(self, size: int) -> memoryview:
        """Return a buffer for one long frame, of at least ``size`` bytes."""
        self._quiet_reads = 0
        if len(self._spare) >= size:
            spare, self._spare = self._spare, memoryview(b"")
            return spare
        return memoryview(bytearray(size))

    def give(self, buffer: memoryview) -> None:
        """Take back what ``take`` returned; its bytes stay as they are until the next read."""
        if self._patience and len(buffer) > len(self._spare):
            self._spare = buffer


class FrameBuffer:
    """The frames of one connection, cut from what it receives into a ``ReceiveBuffer``.

    Between two reads a connection keeps the bytes of its incomplete frame and nothing else: few of them are put in front of the next
    read, many move to a buffer for this frame alone. Memory follows what has arrived, not what a length field claims.
    """

    __slots__ = ("_long", "_long_end", "_long_length", "_max_frame", "_receive", "_rest")

    def __init__(self, receive: ReceiveBuffer | None = None, *, max_frame: int = MAX_FRAME_LENGTH) -> None:
        self._receive = receive or ReceiveBuffer()
        self._max_frame = max_frame
        self._rest = b""
        # A long frame: its buffer, which never has a byte of the following frame, the bytes so far, and its whole length.
        self._long: memoryview | None = None
        self._long_end = 0
        self._long_length = 0

    @property
    def pending(self) -> int:
        """Bytes received that do not make a whole frame yet."""
        return self._long_end if self._long is not None else len(self._rest)

    @property
    def retained_bytes(self) -> int:
        """Memory this connection keeps for itself between two reads."""
        return len(self._long) if self._long is not None else len(self._rest)

    def get_buffer(self) -> memoryview:
        """Return writable space, at least one byte. It may be the memory of bodies returned earlier, to any connection of the loop."""
        if self._long is not None:
            if self._long_end == len(self._long):
                self._grow(self._long[: self._long_end])
            return self._long[self._long_end : self._long_length]
        space = self._receive.ready()
        if not (rest := self._rest):
            return space
        space[: len(rest)] = rest
        return space[len(rest) :]

    def _grow(self, begun: memoryview) -> None:
        """Move the start of a long frame to a buffer with room for more of it."""
        before, self._long = self._long, self._receive.take(min(self._long_length, len(begun) * GROWTH))
        self._long[: len(begun)] = begun
        self._long_end = len(begun)
        if before is not None:
            self._receive.give(before)

    def received(self, count: int) -> list[Command]:
        """Record ``count`` bytes written into the last ``get_buffer`` and return the commands they complete.

        Raises RemoteProtocolError for an impossible length or a header that does not parse; the connection is then beyond repair.
        Commands completed before the bad frame are attached to the error as ``commands``.
        """
        commands: list[Command] = []
        start, max_frame = 0, self._max_frame
        if self._long is not None:
            view = self._long
            end = self._long_end = self._long_end + count
            if end < self._long_length:
                return commands
        else:
            view = self._receive.view
            end = len(self._rest) + count
        buffer = cast("bytearray", view.obj)
        prefix = FRAME_HEAD.unpack_from
        while end - start >= 8:
            length, word = prefix(view, start)
            if not 4 <= length <= max_frame:
                raise _bad(f"frame length {length} is outside 4..{max_frame}", view[start:end], commands)
            stop = start + 4 + length
            if stop > end:
                if end - start > 8 and not 0 < word & 0xFFFFFF <= length - 4:
                    # No frame begins like this: do not wait for the rest, which a peer of another protocol never sends.
                    raise _bad(f"header length {word & 0xFFFFFF} is outside 1..{length - 4}", view[start:end], commands)
                break
            body_at = start + 8 + (word & 0xFFFFFF)
            if body_at > stop:
                raise _bad(f"header length {word & 0xFFFFFF} is longer than its frame of {length} bytes", view[start:end], commands)
            try:
                # Most answers have no body, and a view costs more than anything done with it.
                body = view[body_at:stop] if body_at != stop else b""
                commands.append(decode_parts(word >> 24, buffer[start + 8 : body_at], body))
            except RemoteProtocolError as e:
                raise _bad(str(e), view[start:end], commands) from None
            start = stop
        else:
            if end - start >= 4:  # a peer of another protocol may wait for an answer to a few bytes: refuse them now
                (length,) = _unpack_int32(view, start)
                if not 4 <= length <= max_frame:
                    raise _bad(f"frame length {length} is outside 4..{max_frame}", view[start:end], commands)
        if self._long is not None:
            self._receive.give(self._long)
            self._long = None
        elif end - start > self._receive.small_rest:
            self._rest = b""
            self._long_length = 4 + _unpack_int32(view, start)[0]
            self._grow(view[start:end])
        elif start != end or self._rest:
            self._rest = bytes(view[start:end])
        return commands

    def feed(self, data: bytes | memoryview) -> list[Command]:
        """Take bytes received elsewhere and return the commands they complete, with bodies of their own."""
        view = memoryview(data)
        commands: list[Command] = []
        while view:
            space = self.get_buffer()
            count = min(len(space), len(view))
            space[:count] = view[:count]
            try:
                completed = self.received(count)
            except FrameError as e:
                for command in e.commands:
                    command.body = bytes(command.body)
                e.commands[:0] = commands
                raise
            for command in completed:
                command.body = bytes(command.body)
            commands += completed
            view = view[count:]
        return commands


class FrameError(RemoteProtocolError):
    """The stream cannot be cut into frames any further.

    ``commands`` were complete before the bad frame; ``looks_like`` names the foreign protocol the bytes resemble, or is empty.
    """

    def __init__(self, message: str, commands: list[Command], looks_like: str = "") -> None:
        super().__init__(message)
        self.commands = commands
        self.looks_like = looks_like


def _bad(reason: str, rest: memoryview, commands: list[Command]) -> FrameError:
    looks_like = describe_foreign(bytes(rest[:9]))
    return FrameError(f"{reason}; this looks like {looks_like}" if looks_like else reason, commands, looks_like)
