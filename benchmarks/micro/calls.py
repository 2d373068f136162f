"""What a call takes at the gRPC endpoint without sockets and without work: us of header fields, of HTTP/2, and of all with its task.

``python -m benchmarks.micro.calls``. The call is a send of 1 KiB as Apache's Java client makes it, whose request id and timeout change from call
to call. Beside the header fields the same by ``hpack``.
"""

import asyncio
import logging
import random
import sys
import time
from typing import Any, cast

import hpack

from benchmarks.report import processor_us, spread, write_result
from sprocketmq.net.newcomers import NewcomerLimits
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.proxy.calls import Call, CallServer, Method, Peer
from sprocketmq.proxy.header_fields import FieldDecoder
from sprocketmq.proxy.http2 import PREFACE
from sprocketmq.proxy.schema import MESSAGES, Proto

CALLS = 10_000
ROUNDS = 7
IN_FLIGHT = 64
PATH = "/apache.rocketmq.v2.MessagingService/SendMessage"
FIELDS = {
    ":method": "POST",
    ":scheme": "http",
    ":path": PATH,
    ":authority": "127.0.0.1:8081",
    "te": "trailers",
    "content-type": "application/grpc",
    "user-agent": "grpc-java-netty/1.53.0",
    "x-mq-language": "JAVA",
    "x-mq-protocol": "v2",
    "x-mq-client-id": "host@4711@1@a7f3c9",
    "x-mq-client-version": "5.0.7",
    "x-mq-date-time": "20261128T212645Z",
    "grpc-accept-encoding": "gzip",
}


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def blocks() -> list[bytes]:
    """Return the header blocks of one connection."""
    encoder, chance = hpack.Encoder(), random.Random(2013)
    changing = ((f"{chance.getrandbits(128):032x}", f"{chance.randrange(2_900_000, 3_000_000)}u") for _ in range(CALLS))
    return [
        encoder.encode([*FIELDS.items(), ("x-mq-request-id", request_id), ("grpc-timeout", timeout)]) for request_id, timeout in changing
    ]


def decode(decoder: Any, encoded: list[bytes]) -> None:
    for block in encoded:
        decoder.decode(block)


class _Wire(asyncio.Transport):
    """Takes everything that is written."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass


async def serve(requests: list[bytes]) -> None:
    """Serve the calls of one connection, IN_FLIGHT of which come together."""

    async def echo(request: Proto, _call: Call) -> Proto:
        return request

    methods = {PATH: Method(cast("Any", MESSAGES["Message"].FromString), echo)}
    server = CallServer(methods, PeerLog(logging.getLogger("bench"), time.monotonic), logins=False, limits=NewcomerLimits())
    peer = Peer(server)
    peer.connection_made(_Wire())
    settings = frame(4, 0, 0, b"\0\4\x7f\xff\xff\xff")
    peer.data_received(PREFACE + settings + frame(8, 0, 0, (1 << 30).to_bytes(4, "big")))
    for at in range(0, len(requests), IN_FLIGHT):
        peer.data_received(b"".join(requests[at : at + IN_FLIGHT]))
        while peer.session.streams:
            await asyncio.sleep(0)


def main() -> int:
    """Measure, print and write the figures."""
    encoded = blocks()
    message = MESSAGES["Message"](body=bytes(1024)).SerializeToString()
    data = bytes(1) + len(message).to_bytes(4, "big") + message
    requests = [frame(1, 4, 2 * i + 1, block) + frame(0, 1, 2 * i + 1, data) for i, block in enumerate(encoded)]
    figures = {
        "us a call, header fields": processor_us(lambda: decode(FieldDecoder(1 << 15), encoded), CALLS, ROUNDS),
        "us a call, header fields by hpack": processor_us(lambda: decode(hpack.Decoder(1 << 15), encoded), CALLS, ROUNDS),
        "us a call, all with its task": processor_us(lambda: asyncio.run(serve(requests)), CALLS, ROUNDS),
    }
    result = {name: spread(found) for name, found in figures.items()}
    for name, one in result.items():
        print(f"{name:36} {one['median']:7.1f}")
    write_result("micro-calls", {"calls": CALLS, "in_flight": IN_FLIGHT, **result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
