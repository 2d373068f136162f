"""Frames over real loopback sockets: limits, foreign protocols, broken peers; nobody else is harmed by them."""

import asyncio
import contextlib
import logging
import socket
import struct
import threading
from concurrent.futures import Future

import pytest
import uvloop
from tests.inside import unsent
from tests.unit.net.echoing import ECHO, FAIL, LATER, SILENT, EchoHandler, raw, read_command

from sprocketmq.errors import (
    ClientClosed,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    LocalProtocolError,
    NotRocketMQ,
    PortInUse,
    RequestTimeout,
)
from sprocketmq.net import client as client_module
from sprocketmq.net.address import format_address, parse_address, parse_addresses
from sprocketmq.net.client import ConnectionPool
from sprocketmq.net.link import EARLY_WRITE_BYTES, Link
from sprocketmq.net.server import RemotingServer, ServerConnection
from sprocketmq.protocol.command import MAX_FRAME_LENGTH, Command, encode_command
from sprocketmq.testing import eventually


@pytest.fixture
async def served():
    handler = EchoHandler()
    server = RemotingServer(handler, name="broker", max_connections=20)
    port = await server.start("127.0.0.1", 0)
    yield handler, server, f"127.0.0.1:{port}"
    await server.stop()


@pytest.fixture
async def pool():
    pool = ConnectionPool(expected="broker")
    yield pool
    await pool.close()


async def test_a_request_is_answered(served, pool):
    _, _, address = served
    conn = await pool.get(address)
    answer = await conn.request(ECHO, ext={"name": "wert ä"}, body=b"hello", timeout_s=60)
    assert (answer.code, answer.ext, answer.body) == (0, {"name": "wert ä"}, b"hello")


class Succeeding(EchoHandler):
    """Answers in the short way: at once, or in the next turn of the loop."""

    def on_request(self, conn, command):
        if command.code == LATER:
            asyncio.get_running_loop().call_soon(conn.succeed, command, b'{"how":"later"}')
        else:
            conn.succeed(command, b'{"how":"%b"}' % (b"x" * len(command.body)))


class Observer:
    """Counts answers as the broker's metrics do."""

    def __init__(self):
        self.at_once, self.late = [], []

    def now(self):
        return 0.0

    def answered(self, answers, since):
        self.at_once += answers

    def answered_late(self, request, code, since, *, long_polling):
        self.late.append((request.code, code))


async def test_a_successful_answer_in_short_arrives_like_others(pool):
    observer = Observer()
    server = RemotingServer(Succeeding(), name="broker", observer=observer)
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    conn = await pool.get(address)
    asked = [(ECHO, b""), (ECHO, b"12"), (LATER, b""), (ECHO, bytes(100_000))]  # the last is too long for the short way
    answers = await asyncio.gather(*(conn.request(code, body=body, timeout_s=60) for code, body in asked))
    conn.oneway(ECHO)
    await conn.request(LATER, timeout_s=60)
    assert [(answer.code, answer.ext, answer.flag, bytes(answer.body)) for answer in answers] == [
        (0, {"how": how}, 1, b"") for how in ("", "xx", "later", "x" * 100_000)
    ]
    assert [code >> 17 for code in observer.at_once] == [ECHO] * 4
    assert observer.late == [(LATER, 0)] * 2
    await server.stop()


async def test_many_requests_in_flight_are_paired_with_their_answers(served, pool):
    _, _, address = served
    conn = await pool.get(address)
    futures = [conn.request(LATER if n % 3 else ECHO, body=b"%d" % n, timeout_s=60) for n in range(1000)]
    answers = await asyncio.gather(*futures)
    assert [answer.body for answer in answers] == [b"%d" % n for n in range(1000)]
    assert conn.in_flight == 0


async def test_all_frames_of_one_readiness_are_one_batch(served):
    handler, _, address = served
    reader, writer = await raw(address)
    writer.write(b"".join(encode_command(Command(ECHO, opaque=n)) for n in range(10)))
    for _ in range(10):
        await read_command(reader)
    assert handler.batches == [10]
    writer.close()


async def test_more_frames_than_that_are_finished_in_parts_so_that_the_peer_can_go_on(served):
    handler, _, address = served
    reader, writer = await raw(address)
    writer.write(b"".join(encode_command(Command(ECHO, opaque=n)) for n in range(70)))
    answers = [await read_command(reader) for _ in range(70)]
    assert [answer.opaque for answer in answers] == list(range(70))
    assert handler.batches == [32, 64, 70]
    writer.close()


async def test_a_one_way_request_is_not_answered(served):
    handler, _, address = served
    reader, writer = await raw(address)
    writer.write(encode_command(Command(ECHO, opaque=1, flag=2)) + encode_command(Command(ECHO, opaque=2)))
    assert (await read_command(reader)).opaque == 2
    assert handler.requests == 2
    writer.close()


async def test_a_response_nobody_waits_for_is_ignored_by_the_server(served):
    handler, _, address = served
    reader, writer = await raw(address)
    writer.write(encode_command(Command(0, opaque=1, flag=1)) + encode_command(Command(ECHO, opaque=2)))
    assert (await read_command(reader)).opaque == 2
    assert handler.requests == 1
    writer.close()


async def test_a_failing_handler_is_an_error_answer_and_the_connection_stays(served, pool):
    _, _, address = served
    conn = await pool.get(address)
    answer = await conn.request(FAIL, timeout_s=60)
    assert answer.code == 1
    assert answer.remark == "internal error: ValueError: the handler broke"
    assert (await conn.request(ECHO, timeout_s=60)).code == 0


async def test_a_request_without_answer_times_out_and_its_late_answer_is_dropped(served, pool):
    _, _, address = served
    conn = await pool.get(address)
    with pytest.raises(RequestTimeout) as caught:
        await conn.request(SILENT, timeout_s=0.05)
    assert (caught.value.address, caught.value.code, caught.value.timeout_ms) == (address, SILENT, 50)
    assert conn.in_flight == 0
    assert (await conn.request(ECHO, timeout_s=60)).code == 0


class Told:
    """A receiver that notes what it is told."""

    def __init__(self) -> None:
        self.outcomes: list[object] = []
        self.told = asyncio.Event()

    def done(self) -> bool:
        return False

    def set_result(self, response: Command) -> None:
        self.outcomes.append(response.code)
        self.told.set()

    def set_exception(self, error: Exception) -> None:
        self.outcomes.append(type(error))
        self.told.set()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_an_answer_that_came_while_the_loop_stood_still_counts(run):
    async def work(address, answered):
        loop = asyncio.get_running_loop()
        pool = ConnectionPool(expected="broker")
        conn = await pool.get(address)
        expired, answer = conn.request(SILENT, timeout_s=0.05), conn.request(ECHO, body=b"hello", timeout_s=0.05)
        conn.flush()
        await asyncio.sleep(0)  # uvloop before 0.22 writes at the end of the turn
        deadline = loop.time() + 0.06
        assert answered.wait(60)
        while loop.time() < deadline:
            pass
        assert (await answer).body == b"hello"
        with pytest.raises(RequestTimeout):
            await expired
        await pool.close()

    with served_by_a_thread() as (address, answered):
        run(work(address, answered))


@contextlib.contextmanager
def served_by_a_thread():
    """The address of a server with a loop of its own, and an event that is set after each batch of answers is written."""
    answered = threading.Event()

    class Handler(EchoHandler):
        def on_batch_end(self, conn: ServerConnection) -> None:
            conn.flush()
            answered.set()

    async def serve():
        server = RemotingServer(Handler(), name="broker", max_connections=20)
        started.set_result((asyncio.get_running_loop(), await server.start("127.0.0.1", 0)))
        await ending.wait()
        await server.stop()

    started: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
    ending = asyncio.Event()
    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    loop, port = started.result(60)
    try:
        yield f"127.0.0.1:{port}", answered
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()


async def test_a_receiver_is_told_its_outcome_once_without_a_future(served, pool):
    _, server, address = served
    conn = await pool.get(address)
    answered, late, lost, refused = Told(), Told(), Told(), Told()
    conn.request_for(answered, ECHO, timeout_s=60)
    conn.request_for(late, SILENT, timeout_s=0.05)
    conn.request_for(lost, SILENT, timeout_s=30)
    await asyncio.wait_for(asyncio.gather(answered.told.wait(), late.told.wait()), 60)
    await server.stop()
    await asyncio.wait_for(lost.told.wait(), 60)
    conn.request_for(refused, ECHO, timeout_s=60)
    assert [one.outcomes for one in (answered, late, lost, refused)] == [[0], [RequestTimeout], [ConnectionLost], [ConnectionLost]]


async def test_a_long_turn_of_the_loop_writes_before_it_ends(served, pool, monkeypatch):
    _, _, address = served
    conn = await pool.get(address)
    writes = []
    flush = Link.flush

    def counted(link):
        if link is conn and unsent(link):
            writes.append(sum(map(len, unsent(link))))
        flush(link)

    monkeypatch.setattr(Link, "flush", counted)
    small = [conn.request(ECHO, body=b"x", timeout_s=60) for _ in range(10)]
    assert writes == []
    large = [conn.request(ECHO, body=bytes(EARLY_WRITE_BYTES // 2), timeout_s=60) for _ in range(4)]
    assert len(writes) == 1
    assert writes[0] > EARLY_WRITE_BYTES
    answers = await asyncio.gather(*small, *large)
    assert {answer.code for answer in answers} == {0}


async def test_a_request_that_follows_a_lone_answer_is_written_at_once(served, pool):
    _, _, address = served
    conn = await pool.get(address)
    await conn.request(ECHO, timeout_s=60)
    alone = conn.request(ECHO, timeout_s=60)
    assert not unsent(conn)
    await alone
    first, second = conn.request(ECHO, timeout_s=60), conn.request(ECHO, timeout_s=60)
    assert unsent(conn)  # the second is not alone
    await first
    await second


async def test_requests_that_follow_answers_of_one_read_leave_together(served, pool):
    _, _, address = served
    conn = await pool.get(address)
    await asyncio.gather(*(conn.request(ECHO, timeout_s=60) for _ in range(3)))
    together = [conn.request(ECHO, timeout_s=60) for _ in range(3)]
    assert len(unsent(conn)) == 3
    await asyncio.gather(*together)


async def test_a_short_timeout_is_kept_behind_a_long_one(served, pool):
    _, _, address = served
    conn = await pool.get(address)
    slow = conn.request(SILENT, timeout_s=30)
    with pytest.raises(RequestTimeout):
        await asyncio.wait_for(conn.request(SILENT, timeout_s=0.05), 60)
    slow.cancel()


@pytest.mark.parametrize("length", [0, 1, 3, -1, MAX_FRAME_LENGTH + 1, 2**31 - 1, -(2**31)])
async def test_an_impossible_frame_length_closes_only_its_connection(served, pool, length):
    handler, _, address = served
    good = await pool.get(address)
    await good.request(ECHO, timeout_s=60)
    reader, writer = await raw(address)
    writer.write(struct.pack(">i", length) + b"\0" * 32)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    assert (await good.request(ECHO, body=b"still here", timeout_s=60)).body == b"still here"
    await asyncio.wait_for(handler.disconnected.wait(), 60)
    assert f"frame length {length}" in handler.gone[0]


async def test_the_largest_frame_is_taken_and_answered(served, pool):
    _, _, address = served
    conn = await pool.get(address)
    body = bytes(MAX_FRAME_LENGTH - 1000)
    answer = await conn.request(ECHO, body=body, timeout_s=60)
    assert len(answer.body) == len(body)
    with pytest.raises(LocalProtocolError, match="over the protocol's limit"):
        conn.request(ECHO, body=bytes(MAX_FRAME_LENGTH), timeout_s=60)
    assert conn.in_flight == 0


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(struct.pack(">iI", 8, 5) + b"\0\0\0\0", id="header longer than its frame"),
        pytest.param(struct.pack(">iI", 6, 2) + b"[]", id="JSON that is not an object"),
        pytest.param(struct.pack(">iI", 8, 4) + b"null", id="JSON null"),
        pytest.param(struct.pack(">iI", 8, 4) + b"{a:}", id="no JSON"),
        pytest.param(struct.pack(">iI", 8, 0x07000004) + b"\0\0\0\0", id="unknown serialisation"),
        pytest.param(struct.pack(">iI", 14, 0x0100000A) + bytes(10), id="short binary header"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="a web browser"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="a gRPC client"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
    ],
)
async def test_bytes_that_are_no_frame_close_only_their_connection(served, pool, frame):
    _, _, address = served
    good = await pool.get(address)
    await good.request(ECHO, timeout_s=60)
    reader, writer = await raw(address)
    writer.write(frame)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    assert (await good.request(ECHO, timeout_s=60)).code == 0


async def test_frames_before_a_bad_one_are_still_handled(served):
    handler, _, address = served
    reader, writer = await raw(address)
    writer.write(encode_command(Command(ECHO, opaque=1, flag=2)) + b"GET / HTTP/1.1\r\n\r\n")
    assert await asyncio.wait_for(reader.read(), 60) == b""
    assert handler.requests == 1
    writer.close()


async def test_a_connection_dropped_in_mid_frame_leaves_the_others_alone(served, pool):
    handler, server, address = served
    good = await pool.get(address)
    await good.request(ECHO, timeout_s=60)
    _, writer = await raw(address)
    writer.write(encode_command(Command(ECHO, body=bytes(1000)))[:500])
    await writer.drain()
    writer.transport.abort()
    await asyncio.wait_for(handler.disconnected.wait(), 60)
    assert handler.requests == 1
    assert len(server.connections) == 1
    assert (await good.request(ECHO, timeout_s=60)).code == 0


async def test_a_frame_that_comes_byte_by_byte_is_put_together(served):
    _, _, address = served
    reader, writer = await raw(address)
    for byte in encode_command(Command(ECHO, opaque=7, body=b"slow")):
        writer.write(bytes((byte,)))
        await asyncio.sleep(0)
    answer = await asyncio.wait_for(read_command(reader), 60)
    assert (answer.opaque, bytes(answer.body)) == (7, b"slow")
    writer.close()


async def test_extension_fields_that_are_no_map_are_an_error_answer(served):
    _, _, address = served
    reader, writer = await raw(address)
    header = b'{"code":1,"opaque":9,"extFields":[1]}'
    writer.write(struct.pack(">iI", 4 + len(header), len(header)) + header)
    answer = await asyncio.wait_for(read_command(reader), 60)
    assert (answer.opaque, answer.code) == (9, 1)
    assert "extension fields" in answer.remark
    writer.close()


async def test_requests_fail_when_the_server_goes(served, pool):
    _, server, address = served
    conn = await pool.get(address)
    waiting = conn.request(SILENT, timeout_s=30)
    await conn.request(ECHO, timeout_s=60)
    await server.stop()
    with pytest.raises(ConnectionLost) as caught:
        await waiting
    assert caught.value.address == address
    assert conn.closed
    assert pool.peek(address) is None


async def test_a_request_on_a_closed_connection_fails_at_once(served, pool):
    _, _, address = served
    conn = await pool.get(address)
    await conn.request(ECHO, timeout_s=60)
    pool.drop(address)
    with pytest.raises(ConnectionLost):
        await conn.request(ECHO, timeout_s=60)
    conn.oneway(ECHO)  # dropped without a word
    again = await pool.get(address)
    assert again is not conn
    assert (await again.request(ECHO, timeout_s=60)).code == 0


async def test_callers_that_connect_together_share_one_connection(served, pool):
    _, server, address = served
    conns = await asyncio.gather(*(pool.get(address) for _ in range(5)))
    assert len(set(conns)) == 1
    await conns[0].request(ECHO, timeout_s=60)
    assert len(server.connections) == 1


async def test_all_clients_of_a_loop_receive_into_one_buffer(served, monkeypatch):
    _, _, address = served
    made = []

    class Counted(client_module.ReceiveBuffer):
        def __init__(self, **options):
            super().__init__(**options)
            made.append(self)

    monkeypatch.setattr(client_module, "ReceiveBuffer", Counted)
    pools = [ConnectionPool(expected="broker") for _ in range(3)]
    try:
        connections = [await pool.get(address) for pool in pools]
        answers = await asyncio.gather(*(conn.request(ECHO, body=b"%d" % n, timeout_s=60) for n, conn in enumerate(connections)))
        assert [answer.body for answer in answers] == [b"0", b"1", b"2"]
    finally:
        for pool in pools:
            await pool.close()
    assert len(made) <= 1


async def test_connections_over_the_limit_are_refused(served, said):
    _, server, address = served
    server.max_connections = 2
    first, second = ConnectionPool(expected="broker"), ConnectionPool(expected="broker")
    third = ConnectionPool(expected="broker")
    try:
        for allowed in (first, second):
            assert (await (await allowed.get(address)).request(ECHO, timeout_s=60)).code == 0
        refused = await third.get(address)
        with pytest.raises(ConnectionLost):
            await refused.request(ECHO, timeout_s=60)
        assert (await (await first.get(address)).request(ECHO, timeout_s=60)).code == 0
        assert len(server.connections) == 2
        assert "2 connections are open, the limit (max_connections)" in said("connection_refused")[0]
    finally:
        for each in (first, second, third):
            await each.close()


async def test_nothing_listening_is_named(pool):
    server = RemotingServer(EchoHandler(), name="broker")
    port = await server.start("127.0.0.1", 0)
    await server.stop()
    with pytest.raises(ConnectFailed) as caught:
        await pool.get(f"127.0.0.1:{port}")
    assert caught.value.address == f"127.0.0.1:{port}"
    assert "expected a RocketMQ broker" in str(caught.value)


@pytest.mark.parametrize(
    ("banner", "found"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP response"),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + bytes(18), "gRPC"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "an SSH banner"),
        (b"\xff\xff\xff\xff", "frame length -1"),
    ],
)
async def test_a_server_of_another_kind_is_named(pool, banner, found):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(banner)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        conn = await pool.get(address)
        with pytest.raises(NotRocketMQ) as caught:
            await conn.request(ECHO, timeout_s=60)
    assert caught.value.address == address
    assert found in str(caught.value)
    assert "expected a broker" in str(caught.value)


async def test_a_server_that_closes_without_a_word_is_a_lost_connection(pool):
    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    async with await asyncio.start_server(slam, "127.0.0.1", 0) as server:
        conn = await pool.get(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(ConnectionLost, match="before it ever answered; expected a RocketMQ broker"):
            await conn.request(ECHO, timeout_s=60)


async def test_a_closed_pool_opens_nothing():
    pool = ConnectionPool(expected="broker")
    await pool.close()
    with pytest.raises(ClientClosed):
        await pool.get("127.0.0.1:1")


async def test_a_taken_port_is_named(served):
    _, _, address = served
    host, port = parse_address(address)
    with pytest.raises(PortInUse) as caught:
        await RemotingServer(EchoHandler(), name="broker").start(host, port)
    assert (caught.value.host, caught.value.port) == (host, port)
    assert "choose another port" in str(caught.value)


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_arrives_while_the_server_stops_is_closed(turns):
    server = RemotingServer(EchoHandler(), name="broker")
    address = "127.0.0.1", await server.start("127.0.0.1", 0)
    stopping = asyncio.ensure_future(server.stop())
    for _ in range(turns):
        await asyncio.sleep(0)
    with contextlib.suppress(ConnectionError), socket.create_connection(address, timeout=30) as arriving:
        await stopping
        assert arriving.recv(1) == b""
    await stopping


@pytest.mark.parametrize("port", [-1, 65536])
async def test_a_port_that_is_none_is_named(port):
    with pytest.raises(PortInUse):
        await RemotingServer(EchoHandler(), name="broker").start("127.0.0.1", port)


async def test_idle_connections_are_closed(served, pool):
    handler, server, address = served
    conn = await pool.get(address)
    await conn.request(ECHO, timeout_s=60)
    server.idle_timeout_s = -1.0
    server._close_idle(asyncio.get_running_loop())
    await asyncio.wait_for(handler.disconnected.wait(), 60)
    assert handler.gone == ["idle"]


async def test_the_server_can_ask_its_client(pool):
    asked: list[Command] = []
    arrived = asyncio.Event()

    class Pushing(EchoHandler):
        def on_connect(self, conn: ServerConnection) -> None:
            conn.oneway(40, ext={"consumerGroup": "g"})

    def on_request(conn, command):
        asked.append(command)
        arrived.set()

    listening = ConnectionPool(expected="broker", on_request=on_request)
    server = RemotingServer(Pushing(), name="broker")
    port = await server.start("127.0.0.1", 0)
    await listening.get(f"127.0.0.1:{port}")
    await asyncio.wait_for(arrived.wait(), 60)
    assert (asked[0].code, asked[0].ext, asked[0].is_oneway) == (40, {"consumerGroup": "g"}, True)
    await listening.close()
    await server.stop()


async def test_a_client_that_does_not_read_is_not_read_either(served):
    """Its requests wait in the kernel; the server's memory for it stays near the transport's limit."""
    handler, server, address = served
    reader, writer = await raw(address)
    frame = encode_command(Command(ECHO, opaque=1, body=bytes(1 << 20)))
    writer.transport.pause_reading()
    reader._limit = 1  # nothing is taken from the socket
    for _ in range(200):
        writer.write(frame)
    await asyncio.sleep(0)
    await eventually(lambda: server.connections and next(iter(server.connections)).write_backlog)
    (conn,) = server.connections
    assert 0 < conn.write_backlog < 32 << 20
    assert handler.requests < 100
    writer.transport.abort()


class Generous:
    """Answers each request with ``size`` bytes; with ``later`` also in each turn of the loop after it."""

    def __init__(self, *, size: int, later: bool) -> None:
        self.size = size
        self.later = later
        self.requests = 0
        self.backlogs: list[int] = []
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_connect(self, conn: ServerConnection) -> None:
        """It speaks when it is asked."""

    def on_request(self, conn: ServerConnection, command: Command) -> None:
        self.requests += 1
        self._answer(conn, command)

    def _answer(self, conn: ServerConnection, command: Command) -> None:
        conn.respond(command, 0, body=bytes(self.size))
        self.backlogs.append(conn.retained_bytes)
        if self.later and not conn.closed:
            asyncio.get_running_loop().call_soon(self._answer, conn, command)

    def on_batch_end(self, conn: ServerConnection) -> None:
        """Its answers are with the connection."""

    def on_disconnect(self, conn: ServerConnection) -> None:
        self.gone.set_result(conn.close_reason)


@pytest.mark.parametrize("later", [False, True])
async def test_a_client_that_reads_no_answers_is_cut_off_before_they_take_much_memory(later, monkeypatch):
    """Also when answers come later than the requests, and when all of them come in one readiness."""
    monkeypatch.setattr("sprocketmq.net.server.MAX_WRITE_BACKLOG", 16 << 20)
    handler = Generous(size=2 << 20, later=later)
    server = RemotingServer(handler, name="broker")
    port = await server.start("127.0.0.1", 0)
    _reader, writer = await raw(f"127.0.0.1:{port}")
    writer.transport.pause_reading()
    writer.write(b"".join(encode_command(Command(ECHO, opaque=n)) for n in range(1 if later else 200)))
    assert await asyncio.wait_for(handler.gone, 60) == "the peer does not read its responses"
    assert 8 << 20 < max(handler.backlogs) < 24 << 20
    assert handler.requests <= 32
    writer.transport.abort()
    await server.stop()


async def test_writelines_of_asyncios_own_transports_is_not_used(served, pool, monkeypatch):
    """It never pauses the writer in some releases of Python."""

    def writelines(self, buffers):
        raise AssertionError(f"writelines of {len(buffers)} buffers")

    monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "writelines", writelines)
    conn = await pool.get(served[2])
    answers = await asyncio.gather(*(conn.request(ECHO, body=b"x" * size, timeout_s=60) for size in (1, 100_000, 1)))
    assert [len(answer.body) for answer in answers] == [1, 100_000, 1]


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:-1", "1.2.3.4:１２"])
def test_what_is_no_address_is_named(text):
    with pytest.raises(ConfigError, match="is not an address"):
        parse_address(text)


def test_addresses_are_read_and_written():
    assert parse_address(" 127.0.0.1:9876 ") == ("127.0.0.1", 9876)
    assert parse_address("[::1]:10911") == ("::1", 10911)
    assert format_address("::1", 10911) == "[::1]:10911"
    assert parse_addresses("a:1; b:2,a:1;") == ("a:1", "b:2")
    with pytest.raises(ConfigError, match="no nameserver address"):
        parse_addresses(" ; ")


async def test_a_connection_that_fell_idle_keeps_no_buffer_whatever_it_sent_before(served, pool):
    _, server, address = served
    peers = [ConnectionPool(expected="broker") for _ in range(10)]
    try:
        for number, peer in enumerate(peers):
            conn = await peer.get(address)
            body = bytes((4 << 20) if number % 2 else 100_000)
            answers = await asyncio.gather(*(conn.request(ECHO, body=body, timeout_s=60) for _ in range(3)))
            assert {len(answer.body) for answer in answers} == {len(body)}
            assert conn.retained_bytes == 0
        assert [conn.retained_bytes for conn in server.connections] == [0] * len(peers)
    finally:
        for peer in peers:
            await peer.close()


async def test_strangers_that_send_bad_frames_are_counted_but_logged_once(served, caplog):
    _handler, server, address = served
    for _ in range(20):
        reader, writer = await raw(address)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
    assert server.broken_connections == 20
    (message,) = [record.getMessage() for record in caplog.records if record.event == "frame_refused"]
    assert "this looks like an HTTP request" in message
    assert server.counters()["brokenConnections"] == "20"


async def test_a_request_that_fails_again_and_again_is_logged_once(served, pool, caplog):
    _, server, address = served
    conn = await pool.get(address)
    for _ in range(5):
        assert (await conn.request(FAIL, timeout_s=60)).code == 1
    assert server.failed_requests == 5
    (record,) = [record for record in caplog.records if record.event == "request_failed"]
    assert record.exc_info


async def test_connections_leave_some_file_descriptors_for_files(served, caplog):
    _, server, address = served
    server._descriptors = 20  # fewer than this process has open
    peers = [ConnectionPool(expected="broker") for _ in range(3)]
    try:
        for peer in peers:
            with pytest.raises(ConnectionLost):
                await (await peer.get(address)).request(ECHO, timeout_s=60)
        assert server.refused_connections == 3
        (message,) = caplog.messages
        assert "nearly all of the 20 file descriptors" in message
        assert "ulimit -n" in message
    finally:
        for peer in peers:
            await peer.close()


async def test_requests_that_are_rejected_are_logged_once_for_each_reason(served, pool, caplog):
    caplog.set_level(logging.INFO)
    conn = await pool.get(served[2])
    for _ in range(50):
        assert (await conn.request(FAIL, timeout_s=60)).code == 1
    rejected = [record for record in caplog.records if record.event == "request_rejected"]
    assert [(record.fields["code"], record.fields["answer"]) for record in rejected] == [(FAIL, 1)]
