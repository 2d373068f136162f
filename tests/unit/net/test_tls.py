"""Encrypted connections to real TLS servers: requests over them on both event loops, and every handshake that fails, by its reason."""

import asyncio
import gc
import ssl
import struct
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop
from tests.certificates import DAY, Authority, Pair

from sprocketmq.errors import ConfigError, ConnectFailed, ConnectionLost, TlsFailed
from sprocketmq.net.client import ConnectionPool
from sprocketmq.net.tls import TlsConfig, client_context
from sprocketmq.protocol.command import Command, decode_command, encode_command
from sprocketmq.protocol.credentials import Credentials

ECHO = 1
PASSWORD = "test-password"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Certificates:
    """An authority, another one, and certificates of servers and clients by name."""

    ca: str
    other_ca: str
    pairs: dict[str, Pair]

    def server(self, name: str = "server", *, client_ca: str | None = None) -> ssl.SSLContext:
        """Return the context of a server with a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pairs[name].cert_file, self.pairs[name].key_file)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client(self, name: str | None = None, **settings: object) -> TlsConfig:
        """Return the settings of a client that trusts the authority, and shows a certificate."""
        pair = Pair("", "") if name is None else self.pairs[name]
        return TlsConfig(**{"ca_file": self.ca, "cert_file": pair.cert_file or None, "key_file": pair.key_file or None, **settings})


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> Certificates:
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority(directory)
    pairs = {
        "server": authority.issue("server", hosts=("localhost", "broker.example", "127.0.0.1")),
        "expired": authority.issue("expired", begins=-9 * DAY, ends=-7 * DAY),
        "future": authority.issue("future", begins=300 * DAY),
        "other-host": authority.issue("other-host", hosts=("elsewhere.example",)),
        "client": authority.issue("client", hosts=("client",)),
        "encrypted": authority.issue("encrypted", hosts=("client",), password=PASSWORD),
    }
    return Certificates(authority.ca_file, Authority(directory, "others").ca_file, pairs)


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


def test_requests_travel_encrypted(run, certificates):
    answer = asked(run, certificates.client(), certificates.server())
    assert (answer.ext, answer.body) == ({"name": "wert ä"}, b"hello")


@pytest.mark.parametrize("size", [16_383, 16_384, 16_385, 3_000_001])
def test_bodies_of_many_tls_records_arrive_whole(run, size, certificates):
    body = bytes(range(256)) * (size // 256 + 1)
    assert asked(run, certificates.client(), certificates.server(), body=body[:size]).body == body[:size]


def test_many_requests_at_once_are_answered_each(run, certificates):
    async def work(address: str) -> None:
        pool = ConnectionPool(expected="broker", tls=client_context(certificates.client()), credentials=Credentials("alice", "a secret"))
        conn = await pool.get(address)
        bodies = [bytes([number % 256]) * (number * 37 % 5000) for number in range(1000)]
        pieces = [conn.request(ECHO, body=[body[:100], memoryview(body)[100:]], timeout_s=60) for body in bodies]
        assert [(await piece).body for piece in pieces] == bodies
        assert [(await piece).ext["AccessKey"] for piece in pieces] == ["alice"] * 1000
        await pool.close()

    run(with_server(echo, certificates.server(), work))


def test_a_name_of_the_certificate_is_as_good_as_its_address(run, certificates):
    async def work(address: str) -> None:
        await ask(address, certificates.client())

    run(with_server(echo, certificates.server(), work, host="localhost"))


def test_another_name_may_be_expected(run, certificates):
    assert asked(run, certificates.client(server_name="broker.example"), certificates.server()).body == b"hello"


@pytest.mark.parametrize("name", ["expired", "other-host", "server"])
def test_without_verification_every_certificate_will_do_and_a_warning_says_so(run, name, caplog, certificates):
    assert asked(run, TlsConfig(verify=False), certificates.server(name)).body == b"hello"
    assert "not verified (verify=False)" in caplog.text


@pytest.mark.parametrize("name", ["client", "encrypted"])
def test_a_client_shows_its_certificate(run, name, certificates):
    tls = certificates.client(name, key_password=PASSWORD if name == "encrypted" else None)
    assert asked(run, tls, certificates.server(client_ca=certificates.ca)).body == b"hello"


def test_closing_a_pool_leaves_no_socket_behind(run, certificates):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asked(run, certificates.client(), certificates.server())
        gc.collect()
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []


def test_a_server_that_does_not_say_goodbye_is_not_waited_for_long(run, certificates):
    release = []

    async def work(address: str) -> None:
        pool = ConnectionPool(expected="broker", tls=client_context(certificates.client()))
        await pool.get(address)
        async with asyncio.timeout(30):
            await pool.close()
        release[0].set()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        release.append(asyncio.Event())
        await release[0].wait()
        writer.transport.abort()

    run(with_server(deaf, certificates.server(), work))


# --- handshakes that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "certificate", "problem", "text"),
    [
        ({"ca_file": "other"}, "server", "untrusted", "is not trusted.*set ca_file"),
        ({"ca_file": None}, "server", "untrusted", "is not trusted"),
        ({}, "expired", "expired", "has expired.*must renew it"),
        ({}, "future", "not yet valid", "is not valid yet"),
        ({}, "other-host", "host name", "for another name.*127.0.0.1.*server_name"),
        ({"server_name": "nowhere.example"}, "server", "host name", "nowhere.example"),
    ],
)
def test_a_certificate_that_does_not_convince_ends_the_attempt(run, settings, certificate, problem, text, certificates):
    if settings.get("ca_file"):
        settings = {"ca_file": certificates.other_ca}
    tls = certificates.client(**settings)
    with pytest.raises(TlsFailed, match=text) as raised:
        asked(run, tls, certificates.server(certificate))
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
def test_tls_to_a_server_without_it_says_so(run, handler, problem, text, certificates):
    async def refuse_long(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        assert length > 1 << 24
        writer.close()

    with pytest.raises(TlsFailed, match=text) as raised:
        asked(run, certificates.client(), None, refuse_long if handler is echo else handler)
    assert raised.value.problem == problem


def test_a_handshake_that_hangs_ends_with_the_connect_timeout(run, certificates):
    with pytest.raises(ConnectFailed, match=r"no answer within 0\.2 s") as raised:
        asked(run, certificates.client(), None, silence, timeout_s=0.2)
    assert not isinstance(raised.value, TlsFailed)


def test_a_client_without_a_certificate_is_told_that_one_is_wanted(run, certificates):
    """With TLS 1.3 the server refuses after the client's side of the handshake; a reset may overtake its alert."""
    with pytest.raises((TlsFailed, ConnectionLost)) as raised:
        asked(run, certificates.client(), certificates.server(client_ca=certificates.ca))
    if isinstance(raised.value, TlsFailed):
        assert raised.value.problem in ("client certificate", "closed")


def test_a_client_with_a_strange_certificate_is_told_in_tls_1_2(run, certificates):
    context = certificates.server(client_ca=certificates.other_ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(TlsFailed) as raised:
        asked(run, certificates.client("client"), context)
    assert raised.value.problem in ("client certificate", "closed")


def test_an_old_version_of_tls_is_refused(run, certificates):
    context = certificates.server()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(TlsFailed, match=r"compare the TLS versions|during the TLS handshake"):
        asked(run, certificates.client(), context)


def test_plain_text_to_a_server_that_encrypts_says_so(run, certificates):
    with pytest.raises((TlsFailed, ConnectionLost), match="pass tls=True"):
        asked(run, None, certificates.server())


# --- settings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ca_file": "nowhere.pem"}, "ca_file nowhere.pem cannot be read: No such file"),
        ({"ca_file": "server.key"}, "server.key holds no certificate in PEM format"),
        ({"cert_file": "nowhere.pem"}, "cert_file nowhere.pem cannot be read"),
        ({"cert_file": "client.pem", "key_file": "nowhere.key"}, "key_file nowhere.key cannot be read"),
        ({"cert_file": "client.pem", "key_file": "server.key"}, "is not that of the certificate"),
        ({"cert_file": "client.pem"}, "cannot use the certificate in .*client.pem"),
        ({"cert_file": "encrypted.pem", "key_file": "encrypted.key"}, "needs its key_password"),
        (
            {"cert_file": "encrypted.pem", "key_file": "encrypted.key", "key_password": "wrong-one"},
            "needs its key_password",
        ),
        ({"key_file": "x.key"}, "key_file is set without cert_file"),
        ({"server_name": ""}, "server_name must not be empty"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(settings, text, certificates):
    directory = Path(certificates.ca).parent
    for name, value in settings.items():
        if name.endswith("_file") and (directory / value).exists():
            settings = settings | {name: directory / value}
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
    assert PASSWORD not in repr(TlsConfig("ca", "cert", "key", PASSWORD))
