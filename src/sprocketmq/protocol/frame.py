"""Cut a byte stream into commands, without I/O: the caller receives into ``get_buffer`` and reports ``received``."""

from struct import Struct

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.command import MAX_FRAME_LENGTH, Command, decode_parts

_LENGTH = Struct(">i")
_PREFIX = Struct(">iI")  # length, then serialise type and header length

DEFAULT_CAPACITY = 256 * 1024

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
        return "a TLS handshake"
    # An HTTP/2 server greets with a SETTINGS frame: 24-bit length, type 4, no flags, stream 0.
    if len(first) >= 9 and first[0] == 0 and first[3] == 4 and first[5:9] == b"\x00\x00\x00\x00":
        return "an HTTP/2 (gRPC) server"
    return ""


class FrameBuffer:
    """One connection's receive buffer; never shared, so no byte of another connection can appear in a frame.

    Memory follows what has arrived, not what a length field claims: the buffer at most doubles each time it is full, up to one
    frame (16 MiB). Empty, it returns to its default size: at once, or after ``patience`` turns that did not need more, for a
    connection that gets one large frame after the other.
    """

    __slots__ = ("_buffer", "_capacity", "_default", "_end", "_max_frame", "_patience", "_quiet_turns", "_start", "_view")

    def __init__(self, *, max_frame: int = MAX_FRAME_LENGTH, capacity: int = DEFAULT_CAPACITY, patience: int = 0) -> None:
        self._max_frame = max_frame
        self._default = self._capacity = capacity
        self._buffer = bytearray(capacity)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._patience = patience
        self._quiet_turns = 0

    @property
    def pending(self) -> int:
        """Bytes received that do not make a whole frame yet."""
        return self._end - self._start

    def get_buffer(self) -> memoryview:
        """Return writable space, at least one byte. Bodies of commands returned earlier become invalid."""
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = 0
            if self._capacity > self._default:
                self._quiet_turns = 0 if end > self._default else self._quiet_turns + 1
                if self._quiet_turns >= self._patience:
                    self._replace(self._default, b"")
            end = 0
        elif end == self._capacity or (start and end > self._capacity // 2):
            rest = bytes(self._view[start:end])
            if len(rest) > self._capacity // 2:
                self._replace(self._capacity * 2, rest)
            else:
                self._view[: len(rest)] = rest
            self._start, end = 0, len(rest)
            self._end = end
        return self._view[end:]

    def received(self, count: int) -> list[Command]:
        """Take note of ``count`` bytes written into the last ``get_buffer`` and return the commands they complete.

        Raises RemoteProtocolError for an impossible length or a header that does not parse; the connection is then beyond repair.
        Commands completed before the bad frame are attached to the error as ``commands``.
        """
        self._end += count
        commands: list[Command] = []
        start, end, view = self._start, self._end, self._view
        buffer, max_frame = self._buffer, self._max_frame
        prefix = _PREFIX.unpack_from
        while end - start >= 8:
            length, word = prefix(view, start)
            if not 4 <= length <= max_frame:
                raise self._bad(f"frame length {length} is outside 4..{max_frame}", start, commands)
            stop = start + 4 + length
            if stop > end:
                if end - start > 8 and not 0 < word & 0xFFFFFF <= length - 4:
                    # No frame begins like this: do not wait for the rest, which a foreign peer never sends.
                    raise self._bad(f"header length {word & 0xFFFFFF} is outside 1..{length - 4}", start, commands)
                break
            body_at = start + 8 + (word & 0xFFFFFF)
            if body_at > stop:
                raise self._bad(f"header length {word & 0xFFFFFF} is longer than its frame of {length} bytes", start, commands)
            try:
                commands.append(decode_parts(word >> 24, buffer[start + 8 : body_at], view[body_at:stop]))
            except RemoteProtocolError as e:
                raise self._bad(str(e), start, commands) from None
            start = stop
        else:
            if end - start >= 4:  # a foreign peer may wait for an answer to few bytes: refuse them now
                (length,) = _LENGTH.unpack_from(view, start)
                if not 4 <= length <= max_frame:
                    raise self._bad(f"frame length {length} is outside 4..{max_frame}", start, commands)
        self._start = start
        return commands

    def _bad(self, reason: str, start: int, commands: list[Command]) -> "FrameError":
        looks_like = describe_foreign(bytes(self._view[start : min(self._end, start + 9)]))
        return FrameError(f"{reason}; this looks like {looks_like}" if looks_like else reason, commands, looks_like)

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

    def _replace(self, capacity: int, rest: bytes) -> None:
        # A fresh buffer, as views of the old one may still be held and forbid resizing it.
        self._capacity = capacity
        self._buffer = bytearray(capacity)
        self._view = memoryview(self._buffer)
        self._view[: len(rest)] = rest


class FrameError(RemoteProtocolError):
    """The stream cannot be cut into frames any further.

    ``commands`` were complete before the bad frame; ``looks_like`` names the foreign protocol the bytes resemble, or is empty.
    """

    def __init__(self, message: str, commands: list[Command], looks_like: str = "") -> None:
        super().__init__(message)
        self.commands = commands
        self.looks_like = looks_like
