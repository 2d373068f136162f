"""gRPC calls at a server of their own: by gRPC's own client, and by frames that it would not send."""

import asyncio
import contextlib
import gzip
import logging
import struct
import zlib

import grpc
import hpack
import pytest
from tests.unit.proxy import frames
from tests.unit.proxy.frames import DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, frame

from sprocketmq.clock import ManualClock
from sprocketmq.net.newcomers import NewcomerLimits
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.proxy import calls
from sprocketmq.proxy.calls import CallFailed, CallServer, Form, Method, Status
from sprocketmq.proxy.http2 import PREFACE, ErrorCode
from sprocketmq.proxy.schema import MESSAGES
from sprocketmq.testing import eventually

Text = MESSAGES["Resource"]
MIB = 1 << 20


class Service:
    """Methods whose work a test can watch."""

    def __init__(self):
        self.cancelled = 0
        self.answered = 0
        self.remaining = None
        self.going = asyncio.Event()

    async def echo(self, request, call):
        self.remaining = call.time_remaining()
        if request.name == "fail":
            raise RuntimeError("the test wants it")
        if request.name == "refuse":
            raise CallFailed(Status.UNAVAILABLE, "50 % überlastet")
        if request.name == "last":
            call.ends_connection = True
        return request

    async def wait(self, _request, _call):
        try:
            await self.going.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Text(name="waited")

    async def count(self, request, _call):
        try:
            for n in range(int(request.name)):
                yield Text(name=str(n), resource_namespace="x" * int(request.resource_namespace or 0))
                self.answered += 1
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    async def chat(self, requests, _call):
        async for request in requests:
            if request.name == "wait":
                await self.going.wait()
            yield request
        yield Text(name="bye")

    def methods(self):
        parse = Text.FromString
        return {
            "/test/echo": Method(parse, self.echo),
            "/test/wait": Method(parse, self.wait),
            "/test/count": Method(parse, self.count, Form.ONE_TO_MANY),
            "/test/chat": Method(parse, self.chat, Form.MANY_TO_MANY),
        }


class Client:
    """gRPC's own client of the methods."""

    def __init__(self, address, **options):
        # A connection of its own: gRPC shares them between channels of one process.
        self.channel = grpc.aio.insecure_channel(
            address, [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)], **options
        )
        self.coding = {"request_serializer": lambda message: message.SerializeToString(), "response_deserializer": Text.FromString}

    async def ask(self, method, name="", **options):
        call = self.channel.unary_unary(f"/test/{method}", **self.coding)
        return (await call(Text(name=name), **{"timeout": 60, **options})).name

    def count(self, n, size=0):
        return self.channel.unary_stream("/test/count", **self.coding)(Text(name=str(n), resource_namespace=str(size)))

    def chat(self):
        return self.channel.stream_stream("/test/chat", **self.coding)()


class Raw:
    """A connection that sends what a test wants, and reads frames."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.encoder = hpack.Encoder()
        self.writer.write(PREFACE + frames.settings(initial_window_size=16 * MIB) + frames.window(64 * MIB))

    def begin(self, stream, path, *, end=False, **fields):
        block = self.encoder.encode(frames.fields(path, **fields))
        self.send(frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block))

    def send(self, *sent):
        self.writer.write(b"".join(sent))

    def message(self, stream, *messages, end=True):
        self.send(frame(DATA, END_STREAM if end else 0, stream, b"".join(messages)))

    async def read(self):
        """Return the next frame that is about a stream or the end."""
        while True:
            head = await asyncio.wait_for(self.reader.readexactly(9), 60)
            high, low, kind, flags, stream = struct.unpack(">HBBBI", head)
            payload = await asyncio.wait_for(self.reader.readexactly(high << 8 | low), 60)
            if kind in (DATA, HEADERS, RST_STREAM, GOAWAY, PING):
                return frames.Frame(kind, flags, stream, payload)

    async def status(self):
        """Return the status that ends the next call."""
        while True:
            found = await self.read()
            if found.kind == HEADERS and found.flags & END_STREAM:
                return int(frames.decoded(found.payload)["grpc-status"])

    async def closed(self):
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(self.reader.read(), 60)


def framed(data, *, compressed=False):
    return struct.pack(">BI", compressed, len(data)) + data


def encoded(name):
    return Text(name=name).SerializeToString()


@pytest.fixture
def service():
    return Service()


@contextlib.asynccontextmanager
async def serving(service, *, logins=False, limits=None, clock=None):
    """Serve, and yield the address and a function that opens raw connections."""
    options = {} if clock is None else {"clock": clock}
    log = PeerLog(logging.getLogger("test"), ManualClock().monotonic)
    server = CallServer(service.methods(), log, logins=logins, limits=limits or NewcomerLimits(), **options)
    port = await server.start("127.0.0.1", 0, None)
    async with contextlib.AsyncExitStack() as opened:

        async def raw():
            one = Raw(*await asyncio.open_connection("127.0.0.1", port))
            opened.callback(one.writer.close)
            return one

        async def client(**options):
            one = Client(f"127.0.0.1:{port}", **options)
            await opened.enter_async_context(one.channel)
            return one

        yield server, raw, client
    service.going.set()
    async with asyncio.timeout(60):
        await server.stop(120)


@pytest.fixture
async def server(service):
    async with serving(service) as running:
        yield running


# --- by gRPC's own client ---


async def test_calls_of_each_form(server, service):
    client = await server[2]()
    assert await client.ask("echo", "hello", timeout=3590) == "hello"  # grpcio rounds up, to three digits
    assert 3500 < service.remaining <= 3600
    assert [answer.name async for answer in client.count(3)] == ["0", "1", "2"]
    chat = client.chat()
    for name in ("a", "b"):
        await chat.write(Text(name=name))
        assert (await chat.read()).name == name
    await chat.done_writing()
    assert (await chat.read()).name == "bye"
    assert await chat.code() is grpc.StatusCode.OK


async def test_many_calls_of_one_connection_at_a_time(server, service):
    client = await server[2]()
    waiting = [asyncio.ensure_future(client.ask("wait")) for _ in range(100)]
    assert await client.ask("echo", "meanwhile") == "meanwhile"
    service.going.set()
    assert await asyncio.gather(*waiting) == ["waited"] * 100


@pytest.mark.parametrize(
    ("name", "code", "details"),
    [
        ("fail", grpc.StatusCode.INTERNAL, "the call failed at the endpoint"),
        ("refuse", grpc.StatusCode.UNAVAILABLE, "50 % überlastet"),
    ],
)
async def test_calls_that_fail(server, caplog, name, code, details):
    client = await server[2]()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await client.ask("echo", name)
    assert (failed.value.code(), failed.value.details()) == (code, details)
    assert ("the test wants it" in caplog.text) is (name == "fail")
    assert await client.ask("echo", "next") == "next"


async def test_messages_of_many_megabytes_in_both_directions(server):
    client = await server[2]()
    large = "x" * (20 * MIB)
    assert await client.ask("echo", large) == large


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_requests(server, compression):
    client = await server[2](compression=compression)
    assert await client.ask("echo", "abc" * 1000) == "abc" * 1000


async def test_a_client_that_does_not_read_holds_its_answers_back(server, service):
    client = await server[2]()
    answers = client.count(100, MIB)
    async for _ in answers:
        break
    await eventually(lambda: service.answered >= 1)
    answered = service.answered
    assert answered < 50
    answers.cancel()
    await eventually(lambda: service.cancelled == 1)


async def test_a_call_that_is_cancelled_or_whose_client_is_gone(server, service):
    for number_of_it in range(2):
        client = await server[2]()
        waiting = asyncio.ensure_future(client.ask("wait"))
        assert await client.ask("echo", "there") == "there"
        if number_of_it:
            await client.channel.close()
        else:
            waiting.cancel()
        await eventually(lambda gone=number_of_it + 1: service.cancelled == gone)
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_call_can_be_the_last_of_its_connection(server):
    client = await server[2]()
    assert await client.ask("echo", "last") == "last"
    await eventually(lambda: client.channel.get_state() is not grpc.ChannelConnectivity.READY)


# --- by frames ---


@pytest.mark.parametrize(
    ("path", "fields", "messages", "status"),
    [
        ("/test/nosuch", {}, [framed(encoded("a"))], Status.UNIMPLEMENTED),
        ("/test/echo", {"grpc_encoding": "snappy"}, [framed(encoded("a"))], Status.UNIMPLEMENTED),
        ("/test/echo", {"grpc_timeout": "soon"}, [framed(encoded("a"))], Status.INTERNAL),
        ("/test/echo", {}, [], Status.INTERNAL),
        ("/test/echo", {}, [framed(encoded("a"))] * 2, Status.INTERNAL),
        ("/test/echo", {}, [framed(encoded("a"))[:-1]], Status.INTERNAL),
        ("/test/echo", {}, [framed(b"\xff\xff\xff")], Status.INTERNAL),
        ("/test/echo", {}, [framed(gzip.compress(encoded("a")), compressed=True)], Status.INTERNAL),
        ("/test/echo", {"grpc_encoding": "gzip"}, [framed(b"not gzip", compressed=True)], Status.INTERNAL),
        ("/test/echo", {"grpc_encoding": "gzip"}, [framed(gzip.compress(bytes(33 * MIB)), compressed=True)], Status.RESOURCE_EXHAUSTED),
        ("/test/echo", {}, [struct.pack(">BI", 0, 33 * MIB)], Status.RESOURCE_EXHAUSTED),
        ("/test/echo", {"grpc_encoding": "deflate"}, [framed(zlib.compress(encoded("a")), compressed=True)], Status.OK),
    ],
)
async def test_requests_that_are_none(server, path, fields, messages, status):
    raw = await server[1]()
    raw.begin(1, path, **fields)
    raw.message(1, *messages)
    assert await raw.status() == status
    raw.begin(3, "/test/echo")
    raw.message(3, framed(encoded("next")))
    assert await raw.status() == Status.OK


async def test_a_call_without_any_request(server):
    raw = await server[1]()
    raw.begin(1, "/test/echo", end=True)
    assert await raw.status() == Status.INTERNAL
    raw.begin(3, "/test/chat", end=True)
    assert await raw.status() == Status.OK


@pytest.mark.parametrize("fields", [{"content_type": "text/html"}, {"content_type": "application/grpc-web"}, {":method": "GET"}])
async def test_what_is_no_call(server, fields):
    raw = await server[1]()
    named = dict(frames.fields("/test/echo")) | {name.replace("_", "-"): value for name, value in fields.items()}
    raw.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, raw.encoder.encode(list(named.items()))))
    answer = await raw.read()
    assert frames.decoded(answer.payload) == {":status": "415"}


async def test_what_waits_of_one_connection_is_bounded(server, monkeypatch):
    monkeypatch.setattr(calls, "MAX_BUFFERED_BYTES", 100_000)
    raw = await server[1]()
    for stream in (1, 3):
        raw.begin(stream, "/test/echo")
        raw.message(stream, struct.pack(">BI", 0, MIB) + bytes(60_000), end=False)
    assert await raw.status() == Status.RESOURCE_EXHAUSTED
    raw.begin(5, "/test/echo")
    raw.message(5, framed(encoded("small")))
    assert await raw.status() == Status.OK


async def test_requests_that_nobody_reads_stop_their_stream(server, service, monkeypatch):
    """The window is not opened again while too many requests wait, and it is when they are read."""
    monkeypatch.setattr(calls, "MAX_WAITING_REQUESTS", 2)
    raw = await server[1]()
    raw.begin(1, "/test/chat")
    large = framed(Text(name="x", resource_namespace="x" * 60_000).SerializeToString())
    raw.message(1, framed(encoded("wait")), end=False)
    for _ in range(16):
        raw.message(1, large, end=False)
    raw.send(frame(PING, 0, 0, b"all read"))
    while (await raw.read()).kind != PING:
        pass
    service.going.set()
    answered = 0
    while answered < 16 * 60_000:
        found = await raw.read()
        assert found.kind in (DATA, HEADERS)
        answered += len(found.payload)
    for _ in range(16):
        raw.message(1, large, end=False)
    raw.send(frame(DATA, END_STREAM, 1))
    assert await raw.status() == Status.OK


async def test_too_many_calls(server, service, monkeypatch):
    monkeypatch.setattr(calls, "MAX_CALLS", 1)
    raw = await server[1]()
    raw.begin(1, "/test/wait")
    raw.message(1, framed(b""))
    for stream, path in ((3, "/test/echo"), (5, "/test/chat")):
        raw.begin(stream, path)
        raw.message(stream, framed(encoded("a")))
        assert await raw.status() == Status.RESOURCE_EXHAUSTED
    service.going.set()
    assert await raw.status() == Status.OK
    raw.begin(7, "/test/echo")
    raw.message(7, framed(encoded("a")))
    assert await raw.status() == Status.OK


async def test_a_broken_connection_is_told_why(server, caplog):
    raw = await server[1]()
    raw.send(frame(PING, 0, 0, b"short"))
    farewell = await raw.read()
    assert (farewell.kind, farewell.number(4)) == (GOAWAY, ErrorCode.FRAME_SIZE_ERROR)
    assert b"8 bytes" in farewell.payload
    await raw.closed()
    assert "frame_refused" in caplog.text


async def test_a_client_that_leaves_has_its_answers_first(server, service):
    raw = await server[1]()
    raw.begin(1, "/test/wait")
    raw.message(1, framed(b""))
    raw.send(frame(GOAWAY, 0, 0, bytes(8)), frame(PING, 0, 0, bytes(8)))
    assert (await raw.read()).kind == PING
    service.going.set()
    assert await raw.status() == Status.OK
    raw.send(frame(PING, 0, 0, bytes(8)))
    await raw.closed()


# --- time ---


@pytest.fixture
async def timed(service, monkeypatch):
    """A server that looks after its connections all the time, and the clock it goes by."""
    monkeypatch.setattr(calls, "CHECK_S", 0.005)
    clock = ManualClock()
    async with serving(service, clock=clock) as (_, raw, _client):
        yield clock, raw


async def test_a_call_ends_with_its_timeout(timed, service):
    clock, connect = timed
    raw = await connect()
    raw.begin(1, "/test/wait", grpc_timeout="30S")
    raw.message(1, framed(b""))
    raw.begin(3, "/test/echo", grpc_timeout="1H")
    raw.message(3, framed(encoded("a")))
    assert await raw.status() == Status.OK
    clock.advance(31)
    assert await raw.status() == Status.DEADLINE_EXCEEDED
    await eventually(lambda: service.cancelled == 1)


async def test_connections_that_are_not_used_end(timed):
    clock, connect = timed
    used, silent = await connect(), await asyncio.open_connection(*(await connect()).writer.get_extra_info("peername"))
    used.begin(1, "/test/echo")
    used.message(1, framed(encoded("a")))
    assert await used.status() == Status.OK
    clock.advance(calls.GREETING_S + 1)
    await asyncio.wait_for(silent[0].read(), 60)
    silent[1].close()
    used.begin(3, "/test/echo")
    used.message(3, framed(encoded("a")))
    assert await used.status() == Status.OK
    clock.advance(calls.IDLE_S + 1)
    assert (await used.read()).kind == GOAWAY
    await used.closed()


async def test_a_silent_client_with_a_call_is_asked_for_a_sign_of_life(timed):
    clock, connect = timed
    raw = await connect()
    raw.begin(1, "/test/wait")
    raw.message(1, framed(b""))
    for _ in range(2):
        raw.send(frame(PING, 0, 0, bytes(8)))
        assert (await raw.read()).kind == PING
        clock.advance(calls.SILENCE_S + 1)
        question = await raw.read()
        assert (question.kind, question.flags) == (PING, 0)
        raw.send(frame(PING, 1, 0, question.payload))
    raw.send(frame(PING, 0, 0, bytes(8)))
    assert (await raw.read()).kind == PING
    clock.advance(2 * calls.SILENCE_S + 1)
    await raw.closed()


async def test_an_answer_that_its_client_has_no_room_for_ends_with_the_timeout(timed):
    clock, connect = timed
    raw = await connect()
    raw.send(frames.settings(initial_window_size=0))
    raw.begin(1, "/test/echo", grpc_timeout="30S")
    raw.message(1, framed(encoded("a")))
    assert (await raw.read()).kind == HEADERS
    clock.advance(31)
    ended = await raw.read()
    assert (ended.kind, ended.stream, ended.number()) == (RST_STREAM, 1, ErrorCode.CANCEL)


async def test_a_connection_that_ends_waits_a_little_for_its_client(service, monkeypatch):
    monkeypatch.setattr(calls, "CHECK_S", 0.005)
    clock = ManualClock()
    async with serving(service, clock=clock) as (server, connect, _client):
        raw = await connect()
        raw.send(frames.window(1 << 30))
        raw.begin(1, "/test/echo")
        request = framed(Text(name="last", resource_namespace="x" * (20 * MIB)).SerializeToString())
        for at in range(0, len(request), 60_000):
            raw.message(1, request[at : at + 60_000], end=at + 60_000 >= len(request))
        # The answer is more than sockets hold, and nobody reads it.
        await eventually(lambda: server.closing_connections == 1)
        assert server.connections == 1
        clock.advance(calls.CLOSING_S + 1)
        await eventually(lambda: server.connections == 0)


async def test_answers_that_wait_are_bounded(service, monkeypatch):
    monkeypatch.setattr(calls, "MAX_WAITING_BYTES", 3 * MIB)
    async with serving(service) as (_, connect, _client):
        raw = await connect()
        raw.send(frames.settings(initial_window_size=0))
        for stream in range(1, 11, 2):
            raw.begin(stream, "/test/count")
            raw.message(stream, framed(Text(name="9", resource_namespace=str(MIB)).SerializeToString()))
        await raw.closed()
    assert service.cancelled == 5


async def test_what_strangers_send_is_bounded(service):
    """With logins, connections that have none hold a bounded number of bytes together."""
    async with serving(service, logins=True, limits=NewcomerLimits(retained_bytes=100_000)) as (_, connect, _client):
        raw = await connect()
        raw.begin(1, "/test/echo")
        raw.message(1, struct.pack(">BI", 0, MIB) + bytes(60_000), end=False)
        raw.begin(3, "/test/echo")
        raw.message(3, struct.pack(">BI", 0, MIB) + bytes(60_000), end=False)
        await raw.closed()
        raw = await connect()
        for stream in range(1, 41, 2):
            raw.begin(stream, "/test/echo", large="x" * 6_000)
        await raw.closed()


async def test_the_server_ends_with_what_it_has_begun(service):
    async with serving(service) as (server, connect, _client):
        raw = await connect()
        raw.begin(1, "/test/wait")
        raw.message(1, framed(b""))
        raw.send(frame(PING, 0, 0, bytes(8)))
        assert (await raw.read()).kind == PING
        stopping = asyncio.ensure_future(server.stop(60))
        assert (await raw.read()).kind == GOAWAY
        raw.begin(3, "/test/echo")
        refused = await raw.read()
        assert (refused.kind, refused.stream, refused.number()) == (RST_STREAM, 3, ErrorCode.REFUSED_STREAM)
        service.going.set()
        assert await raw.status() == Status.OK
        await stopping
        await raw.closed()
