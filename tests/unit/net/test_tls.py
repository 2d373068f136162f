"""Encrypted connections to real TLS servers: requests over them on both event loops, and every handshake that fails, by its reason."""

import asyncio
import gc
import ssl
import struct
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from sprocketmq.errors import ConfigError, ConnectFailed, ConnectionLost, TlsFailed
from sprocketmq.net.client import ConnectionPool
from sprocketmq.net.tls import TlsConfig, client_context
from sprocketmq.protocol.command import Command, decode_command, encode_command
from sprocketmq.protocol.credentials import Credentials

CERTIFICATES = Path(__file__).parents[2] / "fixtures" / "tls"
CA = CERTIFICATES / "ca.pem"
ECHO = 1
PASSWORD = "test-password"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request):
    """What runs a coroutine on a loop of its own."""
    return request.param


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request with its fields and its body."""
    try:
        while True:
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            command = decode_command(await reader.readexactly(length))
            writer.write(encode_command(Command(0, opaque=command.opaque, flag=1, ext=command.ext, body=command.body)))
    except (OSError, asyncio.IncompleteReadError):
        writer.close()


def server_context(name: str = "server", *, client_ca: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / f"{name}.pem", CERTIFICATES / f"{name}.key")
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def with_server(
    handler: Handler, context: ssl.SSLContext | None, work: Callable[[str], Awaitable[None]], *, host: str = "127.0.0.1"
) -> None:
    async with await asyncio.start_server(handler, "127.0.0.1", 0, ssl=context) as server:
        await work(f"{host}:{server.sockets[0].getsockname()[1]}")


async def ask(address: str, tls: bool | TlsConfig | None, *, timeout_s: float = 60, body: bytes = b"hello") -> Command:
    """Send one request over a connection of its own."""
    server_name = tls.server_name if isinstance(tls, TlsConfig) else None
    pool = ConnectionPool(expected="broker", tls=client_context(tls), server_name=server_name)
    try:
        conn = await pool.get(address, timeout_s=timeout_s)
        return await conn.request(ECHO, ext={"name": "wert ä"}, body=body, timeout_s=60)
    finally:
        await pool.close()


def asked(
    run: Callable[..., None], tls: bool | TlsConfig | None, context: ssl.SSLContext | None, handler: Handler = echo, **options: float
) -> Command:
    """Return the answer of a server with ``context`` to one request."""
    answers: list[Command] = []

    async def work(address: str) -> None:
        answers.append(await ask(address, tls, **options))

    run(with_server(handler, context, work))
    return answers[0]


# --- connections that work ----------------------------------------------------------------------------------------------


def test_requests_travel_encrypted(run):
    answer = asked(run, TlsConfig(CA), server_context())
    assert (answer.ext, answer.body) == ({"name": "wert ä"}, b"hello")


@pytest.mark.parametrize("size", [16_383, 16_384, 16_385, 3_000_001])
def test_bodies_of_many_tls_records_arrive_whole(run, size):
    body = bytes(range(256)) * (size // 256 + 1)
    assert asked(run, TlsConfig(CA), server_context(), body=body[:size]).body == body[:size]


def test_many_requests_at_once_are_answered_each(run):
    async def work(address: str) -> None:
        pool = ConnectionPool(expected="broker", tls=client_context(TlsConfig(CA)), credentials=Credentials("alice", "a secret"))
        conn = await pool.get(address)
        bodies = [bytes([number % 256]) * (number * 37 % 5000) for number in range(1000)]
        pieces = [conn.request(ECHO, body=[body[:100], memoryview(body)[100:]], timeout_s=60) for body in bodies]
        assert [(await piece).body for piece in pieces] == bodies
        assert [(await piece).ext["AccessKey"] for piece in pieces] == ["alice"] * 1000
        await pool.close()

    run(with_server(echo, server_context(), work))


def test_a_name_of_the_certificate_is_as_good_as_its_address(run):
    async def work(address: str) -> None:
        await ask(address, TlsConfig(CA))

    run(with_server(echo, server_context(), work, host="localhost"))


def test_another_name_may_be_expected(run):
    assert asked(run, TlsConfig(CA, server_name="broker.example"), server_context()).body == b"hello"


@pytest.mark.parametrize("name", ["expired", "other-host", "server"])
def test_without_verification_every_certificate_will_do_and_a_warning_says_so(run, name, caplog):
    assert asked(run, TlsConfig(verify=False), server_context(name)).body == b"hello"
    assert "not verified (verify=False)" in caplog.text


@pytest.mark.parametrize("key", ["client.key", "client-encrypted.key"])
def test_a_client_shows_its_certificate(run, key):
    tls = TlsConfig(CA, CERTIFICATES / "client.pem", CERTIFICATES / key, PASSWORD if "encrypted" in key else None)
    assert asked(run, tls, server_context(client_ca=CA)).body == b"hello"


def test_closing_a_pool_leaves_no_socket_behind(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asked(run, TlsConfig(CA), server_context())
        gc.collect()
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []


def test_a_server_that_does_not_say_goodbye_is_not_waited_for_long(run):
    release = []

    async def work(address: str) -> None:
        pool = ConnectionPool(expected="broker", tls=client_context(TlsConfig(CA)))
        await pool.get(address)
        async with asyncio.timeout(30):
            await pool.close()
        release[0].set()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        release.append(asyncio.Event())
        await release[0].wait()
        writer.transport.abort()

    run(with_server(deaf, server_context(), work))


# --- handshakes that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tls", "certificate", "problem", "text"),
    [
        (TlsConfig(CERTIFICATES / "other-ca.pem"), "server", "untrusted", "is not trusted.*set ca_file"),
        (True, "server", "untrusted", "is not trusted"),
        (TlsConfig(CA), "expired", "expired", "has expired.*must renew it"),
        (TlsConfig(CA), "future", "not yet valid", "is not valid yet"),
        (TlsConfig(CA), "other-host", "host name", "for another name.*127.0.0.1.*server_name"),
        (TlsConfig(CA, server_name="nowhere.example"), "server", "host name", "nowhere.example"),
    ],
)
def test_a_certificate_that_does_not_convince_ends_the_attempt(run, tls, certificate, problem, text):
    with pytest.raises(TlsFailed, match=text) as raised:
        asked(run, tls, server_context(certificate))
    assert raised.value.problem == problem
    assert raised.value.address in str(raised.value)
    assert "\n" not in str(raised.value)


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a TLS handshake in plain text."""
    await reader.read(5)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()
    await reader.read()
    writer.close()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(5)
    writer.transport.abort()


async def finish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(65_536)
    writer.close()


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("handler", "problem", "text"),
    [
        (talk, "plain text", "answers in plain text; leave tls out"),
        (hang_up, "closed", "closed the connection during the TLS handshake"),
        (finish, "closed", "closed the connection during the TLS handshake"),
        (echo, "closed", "closed the connection during the TLS handshake"),
    ],
)
def test_tls_to_a_server_without_it_says_so(run, handler, problem, text):
    async def refuse_long(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        assert length > 1 << 24
        writer.close()

    with pytest.raises(TlsFailed, match=text) as raised:
        asked(run, TlsConfig(CA), None, refuse_long if handler is echo else handler)
    assert raised.value.problem == problem


def test_a_handshake_that_hangs_ends_with_the_connect_timeout(run):
    with pytest.raises(ConnectFailed, match=r"no answer within 0\.2 s") as raised:
        asked(run, TlsConfig(CA), None, silence, timeout_s=0.2)
    assert not isinstance(raised.value, TlsFailed)


def test_a_client_without_a_certificate_is_told_that_one_is_wanted(run):
    """With TLS 1.3 the server refuses after the client's side of the handshake; a reset may overtake its alert."""
    with pytest.raises((TlsFailed, ConnectionLost)) as raised:
        asked(run, TlsConfig(CA), server_context(client_ca=CA))
    if isinstance(raised.value, TlsFailed):
        assert raised.value.problem in ("client certificate", "closed")


def test_a_client_with_a_strange_certificate_is_told_in_tls_1_2(run):
    context = server_context(client_ca=CERTIFICATES / "other-ca.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(TlsFailed) as raised:
        asked(run, TlsConfig(CA, CERTIFICATES / "client.pem", CERTIFICATES / "client.key"), context)
    assert raised.value.problem in ("client certificate", "closed")


def test_an_old_version_of_tls_is_refused(run):
    context = server_context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(TlsFailed, match=r"compare the TLS versions|during the TLS handshake"):
        asked(run, TlsConfig(CA), context)


def test_plain_text_to_a_server_that_encrypts_says_so(run):
    with pytest.raises((TlsFailed, ConnectionLost), match="pass tls=True"):
        asked(run, None, server_context())


# --- settings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ca_file": "nowhere.pem"}, "ca_file nowhere.pem cannot be read: No such file"),
        ({"ca_file": CERTIFICATES / "server.key"}, "server.key holds no certificate in PEM format"),
        ({"cert_file": "nowhere.pem"}, "cert_file nowhere.pem cannot be read"),
        ({"cert_file": CERTIFICATES / "client.pem", "key_file": "nowhere.key"}, "key_file nowhere.key cannot be read"),
        ({"cert_file": CERTIFICATES / "client.pem", "key_file": CERTIFICATES / "server.key"}, "is not that of the certificate"),
        ({"cert_file": CERTIFICATES / "client.pem"}, "cannot use the certificate in .*client.pem"),
        ({"cert_file": CERTIFICATES / "client.pem", "key_file": CERTIFICATES / "client-encrypted.key"}, "needs its key_password"),
        (
            {"cert_file": CERTIFICATES / "client.pem", "key_file": CERTIFICATES / "client-encrypted.key", "key_password": "wrong-one"},
            "needs its key_password",
        ),
        ({"key_file": "x.key"}, "key_file is set without cert_file"),
        ({"server_name": ""}, "server_name must not be empty"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(settings, text):
    with pytest.raises(ConfigError, match=text) as raised:
        client_context(TlsConfig(**settings))
    assert "wrong-one" not in str(raised.value)


def test_tls_is_off_or_on_by_a_boolean():
    assert client_context(None) is None
    assert client_context(False) is None
    context = client_context(True)
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_the_password_of_a_key_does_not_show():
    assert PASSWORD not in repr(TlsConfig(CA, "cert", "key", PASSWORD))
