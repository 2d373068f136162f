"""HTTP/2 frames of a client, as bytes that a test can also make wrong."""

import struct
from typing import NamedTuple

import hpack

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 1
END_HEADERS, PADDED, WITH_PRIORITY = 4, 8, 0x20


class Frame(NamedTuple):
    """A frame of the server."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    def number(self, at=0):
        return struct.unpack_from(">I", self.payload, at)[0]


def frame(kind, flags=0, stream=0, payload=b""):
    size = len(payload)
    return struct.pack(">HBBBI", size >> 8, size & 0xFF, kind, flags, stream) + payload


def number(value):
    return struct.pack(">I", value)


def settings(**values):
    names = {"header_table_size": 1, "enable_push": 2, "initial_window_size": 4, "max_frame_size": 5}
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", names[name], value) for name, value in values.items()))


def window(more, stream=0):
    return frame(WINDOW_UPDATE, stream=stream, payload=number(more))


def fields(path="/service/method", **others):
    named = {name.replace("_", "-"): value for name, value in others.items()}
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *named.items(),
    ]


def parted(data):
    """Return the whole frames in ``data``."""
    found, at = [], 0
    while len(data) - at >= 9:
        high, low, kind, flags, stream = struct.unpack_from(">HBBBI", data, at)
        size = high << 8 | low
        found.append(Frame(kind, flags, stream, data[at + 9 : at + 9 + size]))
        at += 9 + size
    assert at == len(data)
    return found


def decoded(block):
    return dict(hpack.Decoder().decode(block))
