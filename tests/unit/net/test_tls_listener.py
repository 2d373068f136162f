"""Encrypted and plain connections at one port: what the first byte decides, and peers that break the rules. On asyncio's loop and on uvloop."""

import asyncio
import contextlib
import errno
import inspect
import socket
import ssl
import threading
from pathlib import Path
from typing import Self

import pytest
import uvloop
from tests.certificates import DAY, Authority, Pair
from tests.unit.net.echoing import ECHO, SILENT, EchoHandler, raw, read_command

from sprocketmq.errors import CertificateRefused, ConnectFailed, ConnectionLost, PortInUse, SprocketError, TlsFailed
from sprocketmq.net.client import ConnectionPool
from sprocketmq.net.newcomers import NewcomerLimits
from sprocketmq.net.server import RemotingServer, ServerConnection
from sprocketmq.net.server_tls import ServerTls
from sprocketmq.net.tls import TlsConfig, client_context
from sprocketmq.protocol.command import Command, encode_command
from sprocketmq.testing import eventually


def on_both_loops(test):
    """Run a test with ``peers`` on asyncio's loop and on uvloop, which encrypt by code of their own."""

    def run(new_loop, **arguments):
        async def whole() -> None:
            async with arguments["peers"]:
                await test(**arguments)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(whole())

    signature = inspect.signature(test)
    loop = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), loop])
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])(run)


class Peers:
    """Servers and clients of one test, which close with it."""

    def __init__(self, authority: Authority, pair: Pair) -> None:
        self.authority = authority
        self.pair = pair
        self.handler = EchoHandler()
        self.server = RemotingServer(self.handler, name="broker")
        self.address = ""
        self._closing = contextlib.AsyncExitStack()
        self._writers: list[asyncio.StreamWriter] = []  # one that is collected before its connection is closed warns

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception) -> None:
        await self._closing.__aexit__(*exception)

    async def serve(self, mode: str, *, pair: Pair | None = None, client_auth: str = "none", handler=None, **settings) -> str:
        pair = pair or self.pair
        tls = ServerTls(mode, pair.cert_file, pair.key_file, ca_file=self.authority.ca_file, client_auth=client_auth)
        self.server = RemotingServer(handler or self.handler, name="broker", tls=tls, **settings)
        self.address = f"127.0.0.1:{await self.server.start('127.0.0.1', 0)}"
        self._closing.push_async_callback(self.server.stop)
        return self.address

    async def connect(self, tls: TlsConfig | None = None, *, plain: bool = False):
        context = None if plain else client_context(tls or TlsConfig(ca_file=self.authority.ca_file))
        pool = ConnectionPool(expected="broker", tls=context)
        self._closing.push_async_callback(pool.close)
        return await pool.get(self.address)

    async def raw(self, *, encrypted: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not encrypted:
            reader, writer = await raw(self.address)
        else:
            host, _, port = self.address.rpartition(":")
            context = client_context(TlsConfig(ca_file=self.authority.ca_file))
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=host)
        self._writers.append(writer)
        self._closing.callback(writer.transport.abort)
        return reader, writer


@pytest.fixture
def peers(authority, server_certificate):
    return Peers(authority, server_certificate)


async def echoed(conn, body: bytes = b"hello") -> None:
    assert (await conn.request(ECHO, body=body, timeout_s=60)).body == body


async def closed(reader: asyncio.StreamReader) -> bytes:
    """Return what a peer still gets before its connection ends."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), 60)
    return b""


# --- both kinds ---


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
@on_both_loops
async def test_encrypted_requests_are_answered(peers, mode):
    await peers.serve(mode)
    conn = await peers.connect()
    await echoed(conn)
    assert conn.extra_info("ssl_object").version() == "TLSv1.3"
    (served,) = peers.server.connections
    assert served.extra_info("sslcontext") is not None
    assert served.peer_host


@on_both_loops
async def test_plain_and_encrypted_connections_share_a_permissive_port(peers):
    await peers.serve("permissive")
    for plain in (True, False, True):
        conn = await peers.connect(plain=plain)
        await echoed(conn)
    assert [conn.extra_info("sslcontext") is None for conn in peers.server.connections].count(True) == 2


@on_both_loops
async def test_a_disabled_port_is_plain(peers):
    await peers.serve("disabled")
    await echoed(await peers.connect(plain=True))


@pytest.mark.parametrize("plain", [False, True])
@on_both_loops
async def test_large_and_many_frames_arrive_whole(peers, plain):
    await peers.serve("permissive")
    conn = await peers.connect(plain=plain)
    sizes = [0, 1, 100, 16_383, 16_384, 16_385, 70_000, 262_144, 1 << 20, 8 << 20]
    bodies = [bytes([n]) * size for n, size in enumerate(sizes)] * 3 + [b"small %d" % n for n in range(500)]
    answers = await asyncio.gather(*(conn.request(ECHO, body=body, timeout_s=60) for body in bodies))
    assert [answer.body for answer in answers] == bodies


@on_both_loops
async def test_frames_cut_into_single_bytes_and_records_arrive_whole(peers):
    await peers.serve("enforcing")
    reader, writer = await peers.raw(encrypted=True)
    frames = b"".join(encode_command(Command(ECHO, opaque=n, body=b"abc" * n)) for n in range(20))
    for at in range(0, len(frames), 7):
        writer.write(frames[at : at + 7])
    answers = [await read_command(reader) for _ in range(20)]
    assert [(answer.opaque, answer.body) for answer in answers] == [(n, b"abc" * n) for n in range(20)]


@on_both_loops
async def test_a_request_that_comes_before_the_port_looks_is_not_lost(peers):
    """The first bytes stay in the socket while they are looked at."""
    await peers.serve("permissive")
    for _ in range(20):
        reader, writer = await peers.raw()
        writer.write(encode_command(Command(ECHO, opaque=7, body=b"early")))
        assert (await read_command(reader)).body == b"early"


@on_both_loops
async def test_a_first_byte_that_comes_late_is_waited_for(peers):
    await peers.serve("permissive")
    reader, writer = await peers.raw()
    await eventually(lambda: peers.server.arriving == 1)
    assert not peers.server.connections
    writer.write(encode_command(Command(ECHO, opaque=7)))
    assert (await read_command(reader)).opaque == 7
    assert peers.server.arriving == 0


# --- clear text to TLS and back ---


@on_both_loops
async def test_plain_text_at_an_enforcing_port_is_closed_with_one_line_that_says_what_to_do(peers, caplog):
    await peers.serve("enforcing")
    for _ in range(5):
        reader, writer = await peers.raw()
        writer.write(encode_command(Command(ECHO, opaque=1)))
        assert await closed(reader) == b""
    with pytest.raises(ConnectionLost):
        await (await peers.connect(plain=True)).request(ECHO, timeout_s=60)
    assert peers.handler.requests == 0
    assert peers.server.counters()["failedHandshakes"] == "6"
    (message,) = caplog.messages
    assert "it does not speak TLS, which this port requires (tls_mode=enforcing)" in message
    assert "tls_mode=permissive" in message
    await echoed(await peers.connect())


@on_both_loops
async def test_tls_at_a_disabled_port_is_closed_with_one_line_that_says_what_to_do(peers, caplog):
    await peers.serve("disabled")
    for _ in range(5):
        with pytest.raises(TlsFailed):
            await peers.connect()
    (message,) = caplog.messages
    assert "a TLS handshake; this port does not encrypt (tls_mode=disabled)" in message
    assert "set tls_mode, tls_cert_file and tls_key_file" in message
    await echoed(await peers.connect(plain=True))


@on_both_loops
async def test_a_client_for_tls_1_1_is_refused(peers, caplog):
    await peers.serve("permissive")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    host, _, port = peers.address.rpartition(":")
    with pytest.raises(OSError):
        await asyncio.open_connection(host, int(port), ssl=context)
    await eventually(lambda: caplog.messages)
    assert "does not speak TLS 1.2 or later" in caplog.messages[0]


@on_both_loops
async def test_tls_1_2_is_enough(peers):
    await peers.serve("enforcing")
    context = client_context(TlsConfig(ca_file=peers.authority.ca_file))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    host, _, port = peers.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=host)
    writer.write(encode_command(Command(ECHO, opaque=1, body=b"x" * 100_000)))
    assert len((await read_command(reader)).body) == 100_000
    writer.transport.abort()


# --- certificates ---


@on_both_loops
async def test_a_required_client_certificate_that_is_missing_ends_the_handshake(peers, caplog):
    await peers.serve("enforcing", client_auth="required")
    with pytest.raises(SprocketError):
        await (await peers.connect()).request(ECHO, timeout_s=60)
    assert peers.handler.requests == 0
    await eventually(lambda: caplog.messages)
    assert "no client certificate, which tls_client_auth requires" in caplog.messages[0]
    mine = peers.authority.issue("client")
    await echoed(await peers.connect(TlsConfig(ca_file=peers.authority.ca_file, cert_file=mine.cert_file, key_file=mine.key_file)))


@on_both_loops
async def test_an_optional_client_certificate_may_be_missing_and_must_be_good(peers, tmp_path, caplog):
    await peers.serve("enforcing", client_auth="optional")
    await echoed(await peers.connect())
    foreign = Authority(tmp_path, "foreign").issue("client")
    expired = peers.authority.issue("expired-client", begins=-2 * DAY, ends=-DAY)
    for pair in (foreign, expired):
        with pytest.raises(SprocketError):
            conn = await peers.connect(TlsConfig(ca_file=peers.authority.ca_file, cert_file=pair.cert_file, key_file=pair.key_file))
            await conn.request(ECHO, timeout_s=60)
    assert peers.handler.requests == 1
    await eventually(lambda: peers.server.counters()["failedHandshakes"] == "2")
    assert "its client certificate is refused: " in caplog.messages[0]


def refuse_certificate(address: str, ca_file: str) -> None:
    """Say in the handshake that the certificate is not trusted; asyncio's client would close without a word."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as sock, pytest.raises(ssl.SSLCertVerificationError):
        client_context(TlsConfig(ca_file=ca_file)).wrap_socket(sock, server_hostname=host)


@on_both_loops
async def test_a_client_that_does_not_trust_the_certificate_is_told_of(peers, tmp_path, caplog):
    await peers.serve("enforcing")
    foreign = Authority(tmp_path, "foreign").ca_file
    await asyncio.to_thread(refuse_certificate, peers.address, foreign)
    await eventually(lambda: caplog.messages)
    assert "it does not trust this server's certificate: give it the certificate of the authority" in caplog.messages[0]
    with pytest.raises(TlsFailed):
        await peers.connect(TlsConfig(ca_file=foreign))


@on_both_loops
async def test_a_port_without_a_usable_certificate_is_not_opened(peers, tmp_path):
    with pytest.raises(CertificateRefused):
        await peers.serve("enforcing", pair=Pair(peers.pair.cert_file, str(tmp_path / "none.key")))


@on_both_loops
async def test_a_port_that_is_taken_is_named(peers):
    address = await peers.serve("enforcing")
    other = RemotingServer(EchoHandler(), name="broker", tls=ServerTls("enforcing", peers.pair.cert_file, peers.pair.key_file))
    with pytest.raises(PortInUse):
        await other.start("127.0.0.1", int(address.rpartition(":")[2]))


@on_both_loops
async def test_new_connections_get_a_changed_certificate_and_old_ones_go_on(peers, authority, tmp_path, monkeypatch):
    monkeypatch.setattr("sprocketmq.net.tls_listener.RELOAD_INTERVAL_S", 0.02)
    now, following = authority.issue("now"), authority.issue("following")
    await peers.serve("enforcing", pair=now)
    before = await peers.connect()
    await echoed(before)
    for source, target in ((following.cert_file, now.cert_file), (following.key_file, now.key_file)):
        with open(source, "rb") as new, open(target, "r+b") as old:
            old.write(new.read())
            old.truncate()
    wanted = ssl.PEM_cert_to_DER_cert(Path(following.cert_file).read_text())

    async def is_new() -> bool:
        conn = await peers.connect()
        return conn.extra_info("ssl_object").getpeercert(binary_form=True) == wanted

    async with asyncio.timeout(60):
        while not await is_new():
            await asyncio.sleep(0)
    await echoed(before)


# --- bad peers ---


@on_both_loops
async def test_half_handshakes_and_silent_connections_end_in_time_and_harm_nobody(peers, monkeypatch, caplog):
    monkeypatch.setattr("sprocketmq.net.tls_listener.ARRIVAL_TIMEOUT_S", 0.5)
    await peers.serve("permissive")
    silent = [await peers.raw() for _ in range(20)]
    half = [await peers.raw() for _ in range(20)]
    for _, writer in half:
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    for reader, _ in silent + half:
        await closed(reader)
    await eventually(lambda: peers.server.counters()["failedHandshakes"] == "40")
    assert peers.server.arriving == 0
    assert not peers.server.connections
    assert caplog.messages[0].endswith('within 0.5 s"')
    monkeypatch.undo()
    await echoed(await peers.connect())


@on_both_loops
async def test_too_many_half_handshakes_push_out_the_oldest_and_keep_no_client_out(peers, monkeypatch):
    monkeypatch.setattr("sprocketmq.net.tls_listener.MAX_ARRIVALS", 30)
    monkeypatch.setattr("sprocketmq.net.tls_listener.ARRIVAL_TIMEOUT_S", 600.0)
    await peers.serve("enforcing")
    for n in range(100):
        _, writer = await peers.raw()
        writer.write(b"\x16\x03\x01" if n % 2 else b"")
    await eventually(lambda: int(peers.server.counters()["failedHandshakes"]) >= 70)
    assert peers.server.arriving <= 30
    await echoed(await peers.connect())


@on_both_loops
async def test_sockets_on_their_way_count_as_connections(peers, monkeypatch, said):
    monkeypatch.setattr("sprocketmq.net.tls_listener.ARRIVAL_TIMEOUT_S", 600.0)
    await peers.serve("permissive", max_connections=10)
    held = [await peers.raw() for _ in range(10)]
    await eventually(lambda: peers.server.arriving == 10)
    reader, _ = await peers.raw()
    assert await closed(reader) == b""
    assert peers.server.refused_connections == 1
    (line,) = said("connection_refused")
    assert "10 connections are open, the limit (max_connections)" in line
    held[0][1].transport.abort()
    await eventually(lambda: peers.server.arriving == 9)
    await echoed(await peers.connect())


@on_both_loops
async def test_descriptors_for_files_are_left_at_a_port_with_tls(peers, caplog):
    await peers.serve("enforcing")
    peers.server._descriptors = 20
    with pytest.raises((TlsFailed, ConnectFailed)):
        await peers.connect()
    assert peers.server.refused_connections == 1
    assert "nearly all of the 20 file descriptors" in caplog.messages[0]


@on_both_loops
async def test_a_system_without_descriptors_is_said_once_and_connections_wait(peers, monkeypatch, said):
    await peers.serve("enforcing")
    accept, refused = socket.socket.accept, []

    def exhausted_once(listening):
        if not refused:
            refused.append(listening)
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", exhausted_once)
    await echoed(await peers.connect())
    assert refused
    assert said("accept_failed") == ['accept_failed server=broker reason="Too many open files"']


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16",
        b"\x16\x00\x00\x00" + bytes(200),
        b"\x16\x03\x01\x00\x05hello",
        b"\x16\x03\x03\xff\xff" + bytes(70_000),
        b"\x16" * 5000,
        b"\x16GET / HTTP/1.1\r\n\r\n",
    ],
)
@on_both_loops
async def test_garbage_after_the_first_byte_of_a_handshake_ends_that_connection_only(peers, garbage):
    await peers.serve("permissive")
    reader, writer = await peers.raw()
    writer.write(garbage)
    writer.write_eof()
    await closed(reader)
    await eventually(lambda: peers.server.counters()["failedHandshakes"] == "1")
    assert peers.server.arriving == 0
    await echoed(await peers.connect())


def encrypted_bytes(peers: Peers, plain: bytes) -> tuple[socket.socket, bytes]:
    """Shake hands over a socket of its own, and return it with the record that ``plain`` makes; it is not sent."""
    host, _, port = peers.address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context(TlsConfig(ca_file=peers.authority.ca_file)).wrap_bio(incoming, outgoing, server_hostname=host)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(65536))
    sock.sendall(outgoing.read())
    tls.write(plain)
    return sock, outgoing.read()


@pytest.mark.parametrize("damage", ["cut", "flipped"])
@on_both_loops
async def test_a_connection_that_ends_in_a_record_or_has_a_wrong_one_handles_none_of_it(peers, damage):
    await peers.serve("enforcing")
    frame = encode_command(Command(ECHO, opaque=1, body=bytes(1000)))
    sock, record = await asyncio.to_thread(encrypted_bytes, peers, frame)
    await eventually(lambda: len(peers.server.connections) == 1)
    if damage == "cut":
        sock.sendall(record[:-10])
        sock.close()
    else:
        sock.sendall(record[:-10] + bytes([record[-10] ^ 1]) + record[-9:])
    await eventually(lambda: not peers.server.connections)
    sock.close()
    assert peers.handler.requests == 0
    await echoed(await peers.connect())


class Generous(EchoHandler):
    """Answers each request with 2 MiB."""

    def on_request(self, conn, command: Command) -> None:
        self.requests += 1
        conn.respond(command, 0, body=bytes(2 << 20))
        self.most = max(getattr(self, "most", 0), conn.retained_bytes)


@on_both_loops
async def test_a_peer_that_reads_no_answers_over_tls_is_cut_off(peers, monkeypatch):
    monkeypatch.setattr("sprocketmq.net.server.MAX_WRITE_BACKLOG", 16 << 20)
    handler = Generous()
    await peers.serve("enforcing", handler=handler)
    _, writer = await peers.raw(encrypted=True)
    writer.transport.pause_reading()
    writer.write(b"".join(encode_command(Command(ECHO, opaque=n)) for n in range(200)))
    await asyncio.wait_for(handler.disconnected.wait(), 60)
    assert handler.gone == ["the peer does not read its responses"]
    assert 8 << 20 < handler.most < 24 << 20
    assert handler.requests <= 32


@on_both_loops
async def test_a_peer_that_reads_late_gets_everything_also_when_the_connection_was_closed_meanwhile(peers):
    class Last(EchoHandler):
        def on_request(self, conn, command: Command) -> None:
            conn.respond(command, 0, body=bytes(15 << 20))
            self.held = conn.retained_bytes
            if command.opaque == 2:
                conn.close("the last answer")

    handler = Last()
    await peers.serve("enforcing", handler=handler)
    reader, writer = await peers.raw(encrypted=True)
    for opaque in (1, 2):
        writer.write(encode_command(Command(ECHO, opaque=opaque)))
        answer = await read_command(reader)
        assert (answer.opaque, len(answer.body)) == (opaque, 15 << 20)
        assert handler.held > 1 << 20
    assert await closed(reader) == b""


@on_both_loops
async def test_requests_that_come_after_a_connection_was_closed_are_not_handled(peers):
    """TLS hands over what it has decrypted while it closes, in the middle of a handler's call."""

    class Closing(EchoHandler):
        def on_request(self, conn, command: Command) -> None:
            body = bytes(command.body)
            if not conn.closed:
                conn.respond(command, 0)
                conn.close("enough")
            assert bytes(command.body) == body
            super().on_request(conn, command)

    handler = Closing()
    await peers.serve("enforcing", handler=handler)
    sock, _ = await asyncio.to_thread(encrypted_bytes, peers, b"")
    sock.close()
    reader, writer = await peers.raw(encrypted=True)
    writer.write(b"".join(encode_command(Command(ECHO, opaque=n, body=bytes([n]) * 9000)) for n in range(200)))
    await read_command(reader)
    await asyncio.wait_for(handler.disconnected.wait(), 60)
    assert handler.requests <= 32


@on_both_loops
async def test_limits_of_those_without_a_login_hold_with_tls(peers):
    class Nobody:
        def admits(self, conn, command) -> bool:
            conn.respond(command, 16)
            return False

        def connected(self, conn) -> None: ...

        def disconnected(self, conn) -> None: ...

    await peers.serve("enforcing", guard=Nobody(), newcomer_limits=NewcomerLimits(connections=5, seconds=0.5))
    conns = [await peers.connect() for _ in range(10)]
    await eventually(lambda: all(conn.closed for conn in conns))
    assert len(peers.server.newcomers) == 0
    assert peers.server.refused_connections == 10


@on_both_loops
async def test_a_server_stops_with_connections_in_every_state(peers):
    await peers.serve("permissive")
    conn = await peers.connect()
    await echoed(conn)
    plain = await peers.connect(plain=True)
    await echoed(plain)
    silent, (half, writer) = (await peers.raw())[0], await peers.raw()
    writer.write(b"\x16\x03\x01")
    await eventually(lambda: peers.server.arriving == 2)
    await peers.server.stop()
    assert await closed(silent) == await closed(half) == b""
    await eventually(lambda: conn.closed and plain.closed)
    assert peers.server.arriving == 0


@on_both_loops
async def test_nothing_is_written_to_a_peer_that_closed_while_answers_wait_for_it(peers, caplog):
    host, _, port = (await peers.serve("enforcing")).rpartition(":")
    context = client_context(TlsConfig(ca_file=peers.authority.ca_file))
    sock = await asyncio.to_thread(
        lambda: context.wrap_socket(socket.create_connection((host, int(port)), timeout=60), server_hostname=host)
    )
    try:
        await eventually(lambda: peers.server.connections)
        (conn,) = peers.server.connections
        while conn.write_backlog < 100_000:  # the socket takes no more
            conn.oneway(5, body=bytes(50_000))
            conn.flush()
        sock.setblocking(False)
        with pytest.raises(ssl.SSLError):
            sock.unwrap()  # says goodbye, and does not read
        await eventually(lambda: conn.closed)
        for _ in range(10):
            conn.oneway(5, body=b"too late")
            conn.flush()
        assert "SSL connection is closed" not in caplog.text
    finally:
        sock.close()


class TurnCounter(EchoHandler):
    """Counts the bytes of bodies that arrive in each turn of the loop, until ``wanted`` are there."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.turns = [0]
        self.wanted = wanted
        self.complete = asyncio.Event()

    def on_request(self, conn: ServerConnection, command: Command) -> None:
        self.turns[-1] += len(command.body)
        self.wanted -= len(command.body)
        if self.wanted <= 0:
            self.complete.set()

    def tick(self) -> None:
        self.turns.append(0)
        if self.wanted > 0:
            asyncio.get_running_loop().call_soon(self.tick)


@pytest.mark.parametrize("encrypted", [False, True])
@on_both_loops
async def test_a_peer_with_much_to_read_leaves_a_part_of_each_turn_to_the_others(peers, encrypted):
    body = bytes(64 << 10)
    amount = 32 << 20
    counter = TurnCounter(amount)
    await peers.serve("permissive", handler=counter)
    context = client_context(TlsConfig(ca_file=peers.authority.ca_file))
    host, _, port = peers.address.rpartition(":")

    def send() -> None:
        frame = encode_command(Command(SILENT, opaque=1, body=body))
        with socket.create_connection((host, int(port))) as plain:
            sock = context.wrap_socket(plain, server_hostname=host) if encrypted else plain
            for _ in range(amount // len(body)):
                sock.sendall(frame)
            counted.wait(60)
            sock.close()

    counted = threading.Event()
    sending = asyncio.get_running_loop().run_in_executor(None, send)
    counter.tick()
    await asyncio.wait_for(counter.complete.wait(), 60)
    counted.set()
    await sending
    assert sum(counter.turns) == amount
    assert max(counter.turns) <= 2 << 20
