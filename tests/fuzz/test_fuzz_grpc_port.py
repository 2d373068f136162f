"""Damaged HTTP/2 at the gRPC endpoint: a connection goes on, or ends with the code of a fault, and keeps little memory. Never anything else.

What a client sends in a few calls is damaged from a seed that is printed. ``SPROCKETMQ_FUZZ_SEED`` repeats a run, and
``SPROCKETMQ_FUZZ_FRAMES`` says of how many frames (``make fuzz``).
"""

import asyncio
import logging
import os
import random
import tracemalloc

import hpack
from tests.fuzz.mutations import mutate
from tests.unit.proxy import frames
from tests.unit.proxy.frames import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PADDED, PING, PRIORITY, RST_STREAM, frame, number

from sprocketmq.net.newcomers import NewcomerLimits
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.proxy.calls import CallServer, Form, Method, Peer
from sprocketmq.proxy.http2 import PREFACE
from sprocketmq.proxy.schema import MESSAGES

FRAMES = int(os.environ.get("SPROCKETMQ_FUZZ_FRAMES", "200000")) // 10
SEED = int(os.environ.get("SPROCKETMQ_FUZZ_SEED") or (random.SystemRandom().randrange(1 << 32) if FRAMES > 20_000 else 2013))
MEMORY_BYTES = 32 << 20

Text = MESSAGES["Resource"]
MESSAGE = b"\0\0\0\0\x07" + Text(name="hello").SerializeToString()


async def echo(request, _call):
    return request


async def repeat(requests, _call):
    async for request in requests:
        yield request


class Wire(asyncio.Transport):
    """A transport that counts what is written, and whether it was closed."""

    def __init__(self):
        super().__init__()
        self.written = 0
        self.closed = False

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data):
        self.written += len(data)

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close


def calls(chance):
    """Return the frames of a client."""
    encoder = hpack.Encoder()
    found = [PREFACE + frames.settings(initial_window_size=chance.choice([0, 10, 1 << 20])), frames.window(chance.randrange(1, 1 << 20))]
    for stream in range(1, 2 * chance.randrange(2, 8), 2):
        block = encoder.encode(
            frames.fields(chance.choice(["/test/echo", "/test/repeat", "/nosuch"]), x_mq_request_id=str(chance.random()))
        )
        match chance.randrange(4):
            case 0:
                found += [frame(HEADERS, 0, stream, block[:9]), frame(CONTINUATION, END_HEADERS, stream, block[9:])]
            case 1:
                found.append(frame(HEADERS, END_HEADERS | PADDED, stream, b"\x02" + block + b"\0\0"))
            case _:
                found.append(frame(HEADERS, END_HEADERS, stream, block))
        found.append(frame(DATA, chance.choice([0, END_STREAM]), stream, MESSAGE * chance.choice([0, 1, 1, 2])))
        found.append(
            chance.choice([frame(PING, 0, 0, bytes(8)), frame(PRIORITY, 0, stream, bytes(5)), frame(RST_STREAM, 0, stream, number(8)), b""])
        )
    return found


async def test_damaged_frames(caplog):
    caplog.set_level(logging.ERROR)
    print(f"SPROCKETMQ_FUZZ_SEED={SEED}")
    chance = random.Random(SEED)
    methods = {"/test/echo": Method(Text.FromString, echo), "/test/repeat": Method(Text.FromString, repeat, Form.MANY_TO_MANY)}
    log = PeerLog(logging.getLogger("fuzz"), lambda: 0.0)
    server = CallServer(methods, log, logins=True, limits=NewcomerLimits(connections=1_000_000, seconds=3600.0))
    sent = survived = 0
    tracemalloc.start()
    try:
        before = None
        while sent < FRAMES:
            wire, peer = Wire(), Peer(server)
            peer.connection_made(wire)
            stream_of_it = calls(chance)
            for one in stream_of_it:
                damaged = mutate(chance, one, stream_of_it) if chance.random() < 0.1 else one
                peer.data_received(damaged)
                sent += 1
                if wire.closed:
                    break
            survived += not wire.closed
            assert peer.retained_bytes < 200_000
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            peer.connection_lost(None)
            if before is None and sent > FRAMES // 4:
                before = tracemalloc.get_traced_memory()[0]
        await asyncio.sleep(0)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    await server.stop(60)
    assert survived, "some connections live on"
    assert after - before < MEMORY_BYTES
    assert not caplog.records, "a call failed from inside"
