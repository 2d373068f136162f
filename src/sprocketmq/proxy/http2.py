"""HTTP/2 as a gRPC server speaks it (RFC 9113): bytes go in, streams and bytes come out. Nothing here does input or output.

What gRPC has no use for is left out: pushes, priorities, and a table for the header fields of answers, which are constants. What the
other side can make grow is bounded: header blocks, frames, streams, resets, and what waits to be sent.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol

import hpack

from sprocketmq.proxy.header_fields import Field, FieldDecoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# What this side announces.
MAX_STREAMS = 1_000
MAX_FRAME_BYTES = 64 << 10
MAX_HEADER_BYTES = 32 << 10
STREAM_WINDOW = 1 << 20
CONNECTION_WINDOW = 16 << 20

# Streams that the other side ended early, between two calls of ``calm``.
MAX_RESETS = 2_000
# Streams that this side ended early, whose remaining frames are ignored.
MAX_ABANDONED = 1_000

_DEFAULT_WINDOW = 65_535
_LARGEST_WINDOW = (1 << 31) - 1
_LARGEST_FRAME = (1 << 24) - 1

_HEAD = struct.Struct(">HBBBI")
_HEAD_BYTES = 9
_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")

_END_STREAM = _ACK = 0x1
_END_HEADERS = 0x4
_PADDED = 0x8
_WITH_PRIORITY = 0x20


class _Kind(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


# Plain numbers: a comparison with a member of an enum takes longer.
_DATA, _HEADERS, _CONTINUATION = 0, 1, 9


class _Setting(IntEnum):
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (RFC 9113, section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """The other side broke the protocol: the connection ends with ``code``."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Stream:
    """A request and its answer. ``call`` is for the owner's use."""

    __slots__ = ("call", "ended", "id", "pending", "receive_window", "trailers", "uncredited", "window")

    def __init__(self, number: int, window: int) -> None:
        self.id = number
        self.call: object = None
        # Whether the other side has ended its half.
        self.ended = False
        # How much more this side may send, and what waits for that.
        self.window = window
        self.pending = bytearray()
        self.trailers: bytes | None = None
        self.receive_window = STREAM_WINDOW
        self.uncredited = 0


class Events(Protocol):
    """What a session reports."""

    def opened(self, stream: Stream, fields: dict[str, str]) -> None:
        """Take a request, which has begun."""
        ...

    def received(self, stream: Stream, data: bytes) -> None:
        """Take data, the last when ``stream.ended``. The owner calls ``credit`` for it, now or later."""
        ...

    def reset(self, stream: Stream) -> None:
        """Forget a stream that was ended early, by the other side or for a fault of it."""
        ...

    def drained(self, stream: Stream) -> None:
        """Go on: all that waited to be sent on the stream has been given out."""
        ...


class Session:
    """The server's side of one connection.

    ``receive`` takes what has arrived, and ``take`` returns what has to be written. While ``paused`` is set, no data is given out.
    """

    def __init__(self, events: Events) -> None:
        self.streams: dict[int, Stream] = {}
        self.paused = False
        # Whether the other side, or this one, wants no more streams.
        self.leaving = False
        self._events = events
        self._decoder = FieldDecoder(MAX_HEADER_BYTES)
        self._rest = b""
        self._greeted = False
        self._settled = False
        self._out: list[bytes] = []
        self._last = 0
        self._abandoned: dict[int, None] = {}
        self._resets = 0
        # A header block whose end has not come: its stream, its flags, and what has come.
        self._block: tuple[int, int, bytearray] | None = None
        self._window = _DEFAULT_WINDOW
        self._initial_window = _DEFAULT_WINDOW
        self._max_frame = 16_384
        self._receive_window = CONNECTION_WINDOW
        self._uncredited = 0
        # What waits to be sent, and the streams where it does, in the order of their turns.
        self.waiting_bytes = 0
        self._waiting: dict[int, Stream] = {}
        settings = (
            (_Setting.MAX_CONCURRENT_STREAMS, MAX_STREAMS),
            (_Setting.INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (_Setting.MAX_FRAME_SIZE, MAX_FRAME_BYTES),
            (_Setting.MAX_HEADER_LIST_SIZE, MAX_HEADER_BYTES),
        )
        self._frame(_Kind.SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in settings))
        self._frame(_Kind.WINDOW_UPDATE, 0, 0, _NUMBER.pack(CONNECTION_WINDOW - _DEFAULT_WINDOW))

    # --- receiving ---

    @property
    def retained_bytes(self) -> int:
        """What it holds of frames that have not come whole."""
        return len(self._rest) + (0 if self._block is None else len(self._block[2]))

    def receive(self, data: bytes) -> None:
        """Take what has arrived. Raises ConnectionFault."""
        if self._rest:
            data = self._rest + data
        at = 0
        if not self._greeted:
            if data[: len(PREFACE)] != PREFACE[: len(data)]:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
            if len(data) < len(PREFACE):
                self._rest = data
                return
            self._greeted = True
            at = len(PREFACE)
        end = len(data)
        while end - at >= _HEAD_BYTES:
            high, low, kind, flags, number = _HEAD.unpack_from(data, at)
            size = high << 8 | low
            if size > MAX_FRAME_BYTES:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes, more than {MAX_FRAME_BYTES}, the limit")
            after = at + _HEAD_BYTES + size
            if after > end:
                break
            self._received(kind, flags, number & 0x7FFFFFFF, data[at + _HEAD_BYTES : after])
            at = after
        self._rest = data[at:]

    def _received(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self._settled:
            if kind != _Kind.SETTINGS or flags & _ACK:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not one of settings")
            self._settled = True
        if self._block is not None and (kind != _CONTINUATION or number != self._block[0]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        if kind == _DATA:
            self._data(flags, number, payload)
        elif kind == _HEADERS:
            self._headers(flags, number, payload)
        elif kind < len(self._others):
            self._others[kind](self, flags, number, payload)

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if not number & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a client cannot open stream {number}")
        if flags & _PADDED:
            payload = _unpadded(payload)
        if flags & _WITH_PRIORITY:
            if len(payload) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a priority that is cut short")
            payload = payload[5:]
        if flags & _END_HEADERS:
            self._whole_headers(flags, number, payload)
        else:
            self._block = number, flags, bytearray(payload)

    def _continuation(self, flags: int, _number: int, payload: bytes) -> None:
        if self._block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the continuation of no header block")
        number, first_flags, block = self._block
        block += payload
        if len(block) > MAX_HEADER_BYTES or not payload:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"a header block of more than {MAX_HEADER_BYTES} bytes, or of empty parts")
        if flags & _END_HEADERS:
            self._block = None
            self._whole_headers(first_flags, number, bytes(block))

    def _whole_headers(self, flags: int, number: int, block: bytes) -> None:
        try:
            fields = self._decoder.decode(block)
        except hpack.OversizedHeaderListError:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"header fields of more than {MAX_HEADER_BYTES} bytes") from None
        except hpack.HPACKError as e:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"header fields that cannot be decoded: {e}") from None
        stream = self.streams.get(number)
        if stream is not None:
            if stream.ended:
                self.reset(stream, ErrorCode.STREAM_CLOSED)
            elif not flags & _END_STREAM or any(name[:1] == ":" for name, _ in fields):
                self.reset(stream, ErrorCode.PROTOCOL_ERROR)
            else:
                stream.ended = True
                self._events.received(stream, b"")
            return
        if number <= self._last:
            if number not in self._abandoned:
                raise ConnectionFault(ErrorCode.STREAM_CLOSED, f"header fields on stream {number}, which has ended")
            return
        self._last = number
        if self.leaving or len(self.streams) >= MAX_STREAMS:
            self._abandon(number, ErrorCode.REFUSED_STREAM)
            return
        request = _request(fields)
        if request is None:
            self._abandon(number, ErrorCode.PROTOCOL_ERROR)
            return
        stream = self.streams[number] = Stream(number, self._initial_window)
        stream.ended = bool(flags & _END_STREAM)
        self._events.opened(stream, request)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        self._uncredited += size
        if self._uncredited >= CONNECTION_WINDOW // 2:
            self._frame(_Kind.WINDOW_UPDATE, 0, 0, _NUMBER.pack(self._uncredited))
            self._receive_window += self._uncredited
            self._uncredited = 0
        if flags & _PADDED:
            payload = _unpadded(payload)
        stream = self.streams.get(number)
        if stream is None:
            if number not in self._abandoned:
                closed = number & 1 and number <= self._last
                code = ErrorCode.STREAM_CLOSED if closed else ErrorCode.PROTOCOL_ERROR
                raise ConnectionFault(code, f"data on stream {number}, which is not open")
            return
        if stream.ended:
            self.reset(stream, ErrorCode.STREAM_CLOSED)
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            self.reset(stream, ErrorCode.FLOW_CONTROL_ERROR)
            return
        stream.ended = bool(flags & _END_STREAM)
        if size > len(payload):
            self.credit(stream, size - len(payload))
        self._events.received(stream, payload)

    def _priority(self, _flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a priority of stream 0")
        if len(payload) != 5:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a priority that is not 5 bytes")

    def _rst_stream(self, _flags: int, number: int, payload: bytes) -> None:
        if len(payload) != _NUMBER.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a reset that is not 4 bytes")
        self._check_opened(number)
        stream = self.streams.get(number)
        if stream is not None:
            self._forget(stream)
            self._events.reset(stream)
            self._resets += 1
            if self._resets > MAX_RESETS:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"more than {MAX_RESETS} streams were ended early in a short time")

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"settings on stream {number}")
        if flags & _ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of settings with content")
            return
        if len(payload) % _SETTING.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "settings that are cut short")
        for name, value in _SETTING.iter_unpack(payload):
            if name == _Setting.INITIAL_WINDOW_SIZE:
                if value > _LARGEST_WINDOW:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
                more = value - self._initial_window
                self._initial_window = value
                for stream in self.streams.values():
                    stream.window += more
                    if stream.window > _LARGEST_WINDOW:
                        raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"the window of stream {stream.id} is too large")
            elif name == _Setting.MAX_FRAME_SIZE:
                if not 16_384 <= value <= _LARGEST_FRAME:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"frames of at most {value} bytes")
                self._max_frame = min(value, MAX_FRAME_BYTES)
            elif name == _Setting.ENABLE_PUSH and value > 1:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{value} is no setting of pushes")
        self._frame(_Kind.SETTINGS, _ACK, 0, b"")
        self._send_waiting()

    def _push_promise(self, _flags: int, _number: int, _payload: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client cannot push")

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a ping on stream {number}")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a ping that is not 8 bytes")
        if not flags & _ACK:
            self._frame(_Kind.PING, _ACK, 0, payload)

    def _goaway(self, _flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a farewell on stream {number}")
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a farewell that is cut short")
        self.leaving = True

    def _window_update(self, _flags: int, number: int, payload: bytes) -> None:
        if len(payload) != _NUMBER.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an update of a window that is not 4 bytes")
        more = _NUMBER.unpack(payload)[0] & 0x7FFFFFFF
        if number == 0:
            if more == 0:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "an update of the connection's window by 0")
            self._window += more
            if self._window > _LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large")
        else:
            self._check_opened(number)
            stream = self.streams.get(number)
            if stream is None:
                return
            stream.window += more
            if more == 0 or stream.window > _LARGEST_WINDOW:
                self.reset(stream, ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR)
                return
        self._send_waiting()

    def _check_opened(self, number: int) -> None:
        if not number & 1 or number > self._last:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {number} was never opened")

    def credit(self, stream: Stream, size: int) -> None:
        """Let the other side send ``size`` bytes more on a stream."""
        stream.uncredited += size
        if stream.uncredited >= STREAM_WINDOW // 2 and not stream.ended:
            self._frame(_Kind.WINDOW_UPDATE, 0, stream.id, _NUMBER.pack(stream.uncredited))
            stream.receive_window += stream.uncredited
            stream.uncredited = 0

    # --- sending ---

    def take(self) -> bytes:
        """Return what has to be written now."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def answer(self, stream: Stream, fields: bytes, *, last: bool = False) -> None:
        """Send encoded header fields; with ``last`` they end the stream."""
        self._frame(_Kind.HEADERS, _END_HEADERS | (_END_STREAM if last else 0), stream.id, fields)
        if last:
            self._end(stream)

    def send(self, stream: Stream, data: bytes, trailers: bytes | None = None) -> None:
        """Send data, after what waits, and then encoded ``trailers``, which end the stream. ``drained`` reports when none of it waits."""
        size = len(data)
        if stream.pending or self.paused or size > self._max_frame or size > self._window or size > stream.window:
            stream.pending += data
            self.waiting_bytes += size
            stream.trailers = trailers
            self._waiting.setdefault(stream.id, stream)
            self._send_waiting()
            return
        self._window -= size
        stream.window -= size
        self._frame(_DATA, 0, stream.id, data)
        if trailers is not None:
            self.answer(stream, trailers, last=True)

    def resume(self) -> None:
        """Go on sending data after a pause."""
        self.paused = False
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send a frame for each stream in turn, as long as the windows allow it."""
        while self._waiting and self._window > 0 and not self.paused:
            ready = [stream for stream in self._waiting.values() if stream.window > 0]
            if not ready:
                return
            for stream in ready:
                if stream.id not in self._waiting:
                    continue
                size = min(len(stream.pending), stream.window, self._window, self._max_frame)
                if size <= 0:
                    return
                self._frame(_DATA, 0, stream.id, bytes(stream.pending[:size]))
                del stream.pending[:size]
                self.waiting_bytes -= size
                stream.window -= size
                self._window -= size
                if not stream.pending:
                    del self._waiting[stream.id]
                    if stream.trailers is not None:
                        self.answer(stream, stream.trailers, last=True)
                    self._events.drained(stream)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream early, and report it."""
        self._forget(stream)
        self._abandon(stream.id, code)
        self._events.reset(stream)

    def ping(self) -> None:
        """Ask the other side for a sign of life."""
        self._frame(_Kind.PING, 0, 0, b"sprocket")

    def leave(self, code: ErrorCode = ErrorCode.NO_ERROR, reason: str = "") -> None:
        """Tell the other side that no stream after the newest is served."""
        self.leaving = True
        self._frame(_Kind.GOAWAY, 0, 0, _NUMBER.pack(self._last) + _NUMBER.pack(code) + reason.encode())

    def calm(self) -> None:
        """Forgive the resets so far; called once in a while."""
        self._resets = 0

    def _end(self, stream: Stream) -> None:
        """Forget a stream that this side has ended; when the other side has not, it is told that nobody listens."""
        self._forget(stream)
        if not stream.ended:
            self._abandon(stream.id, ErrorCode.NO_ERROR)

    def _forget(self, stream: Stream) -> None:
        self.streams.pop(stream.id, None)
        if self._waiting.pop(stream.id, None) is not None:
            self.waiting_bytes -= len(stream.pending)

    def _abandon(self, number: int, code: ErrorCode) -> None:
        self._frame(_Kind.RST_STREAM, 0, number, _NUMBER.pack(code))
        self._abandoned[number] = None
        if len(self._abandoned) > MAX_ABANDONED:
            del self._abandoned[next(iter(self._abandoned))]

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._out.append(_HEAD.pack(size >> 8, size & 0xFF, kind, flags, number) + payload)

    # By the numbers of their kinds.
    _others = (
        _data,
        _headers,
        _priority,
        _rst_stream,
        _settings,
        _push_promise,
        _ping,
        _goaway,
        _window_update,
        _continuation,
    )


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame with more padding than content")
    return payload[1 : len(payload) - payload[0]]


def _request(fields: Iterable[Field]) -> dict[str, str] | None:
    """Return the header fields of a request, or None when they are not those of one (RFC 9113, section 8.3)."""
    request: dict[str, str] = {}
    pseudo = True
    for name, value in fields:
        if name[:1] == ":":
            if not pseudo or name in request or name not in _PSEUDO:
                return None
        else:
            pseudo = False
            if name != name.lower() or name in _OF_CONNECTIONS or (name == "te" and value != "trailers"):
                return None
        request[name] = value
    return request if ":method" in request and request.get(":path") and ":scheme" in request else None


_PSEUDO = frozenset({":method", ":path", ":scheme", ":authority"})
_OF_CONNECTIONS = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
