import asyncio
import gc
import socket
import sys

import pytest

from sprocketmq.errors import ConfigError
from sprocketmq.net.address import parse_address
from sprocketmq.testing import eventually
from sprocketmq.testing.proxy import FaultProxy


class Echo:
    """A server that sends back what it gets, and knows how its connections ended."""

    def __init__(self) -> None:
        self.resets = 0
        self.ended = 0
        self.tasks: set[asyncio.Task] = set()

    async def serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            self.resets += 1
        finally:
            self.ended += 1
            writer.close()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error):
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class Client:
    def __init__(self, proxy: FaultProxy) -> None:
        self.host, port = proxy.address.split(":")
        self.port = int(port)

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        return self

    async def __aexit__(self, *error):
        self.writer.transport.abort()
        await asyncio.sleep(0)

    async def ask(self, data: bytes) -> bytes:
        self.writer.write(data)
        return await self.reader.readexactly(len(data))


@pytest.mark.parametrize("turns_before", range(6))
@pytest.mark.filterwarnings("error")
def test_a_connection_accepted_while_the_proxy_ends_is_closed(turns_before):
    async def accept_and_end() -> socket.socket:
        async with FaultProxy("127.0.0.1:1") as proxy:
            client = socket.create_connection(parse_address(proxy.address))
            for _ in range(turns_before):
                await asyncio.sleep(0)
        return client

    unclosed = []
    with pytest.MonkeyPatch.context() as patch, asyncio.run(accept_and_end()):
        patch.setattr(sys, "unraisablehook", unclosed.append)
        gc.collect()
    assert not unclosed


async def turns() -> None:
    """Let everything happen that would happen by itself."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
async def echo():
    async with Echo() as server:
        yield server


@pytest.fixture
async def proxy(echo):
    async with FaultProxy(echo.address) as running:
        yield running


async def test_what_is_sent_arrives_and_what_is_answered_too(proxy):
    async with Client(proxy) as client:
        assert await client.ask(b"hello") == b"hello"
        large = bytes(range(256)) * 40_000
        sending = asyncio.ensure_future(client.writer.drain())
        assert await client.ask(large) == large
        await sending
        assert proxy.connections == 1
    await eventually(lambda: proxy.connections == 0)


async def test_the_end_of_a_connection_is_passed_on_behind_its_bytes(proxy, echo):
    async with Client(proxy) as client:
        client.writer.write(b"last words")
        client.writer.write_eof()
        assert await client.reader.read() == b"last words"
    await eventually(lambda: echo.ended == 1 and proxy.connections == 0)
    assert echo.resets == 0


async def test_a_cut_resets_both_sides_and_new_connections_work(proxy, echo):
    async with Client(proxy) as client:
        await client.ask(b"x")
        assert proxy.cut() == 1
        with pytest.raises(ConnectionError):
            await client.ask(b"y")
        await eventually(lambda: echo.resets == 1)
    async with Client(proxy) as again:
        assert await again.ask(b"z") == b"z"


async def test_a_stalled_connection_stays_open_and_loses_nothing(proxy):
    async with Client(proxy) as client:
        await client.ask(b"x")
        proxy.stall()
        waiting = asyncio.ensure_future(client.ask(b"later"))
        await turns()
        assert not waiting.done()
        await proxy.heal()
        assert await waiting == b"later"


async def test_one_direction_can_stall_alone(proxy, echo):
    async with Client(proxy) as client:
        proxy.stall(to_server=False)
        client.writer.write(b"x")
        client.writer.write_eof()
        await eventually(lambda: echo.ended == 1)  # the question got through
        assert not client.reader._buffer
        await proxy.heal()
        assert await client.reader.read() == b"x"


async def test_a_cut_ends_a_stalled_connection(proxy):
    async with Client(proxy) as client:
        await client.ask(b"x")
        proxy.stall()
        client.writer.write(b"lost")
        proxy.cut()
        with pytest.raises(ConnectionError):
            await client.reader.readexactly(1)
    await eventually(lambda: proxy.connections == 0)
    await proxy.heal()


async def test_a_partition_leaves_new_connections_without_an_answer(proxy, echo):
    proxy.partition()
    async with Client(proxy) as client:
        waiting = asyncio.ensure_future(client.ask(b"x"))
        await turns()
        assert not waiting.done()
        assert not echo.tasks
        await proxy.heal()
        assert await waiting == b"x"


async def test_a_refusing_proxy_listens_on_the_same_port_again_when_healed(proxy):
    before = proxy.address
    async with Client(proxy) as client:
        await client.ask(b"x")
        proxy.refuse()
        with pytest.raises(ConnectionError):
            await client.ask(b"y")
    with pytest.raises(ConnectionRefusedError):
        await Client(proxy).__aenter__()
    await proxy.heal()
    assert proxy.address == before
    async with Client(proxy) as client:
        assert await client.ask(b"z") == b"z"


async def test_a_delay_holds_each_piece_and_keeps_the_order(proxy):
    proxy.delay_s = 0.02
    loop = asyncio.get_running_loop()
    async with Client(proxy) as client:
        before = loop.time()
        assert await client.ask(b"abc") == b"abc"
        assert loop.time() - before >= 0.04
        for piece in (b"1", b"2", b"3"):
            client.writer.write(piece)
            await client.writer.drain()
        assert await client.reader.readexactly(3) == b"123"


async def test_connections_over_the_limit_are_reset(echo):
    async with FaultProxy(echo.address, max_connections=1) as proxy, Client(proxy) as first:
        await first.ask(b"x")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            async with Client(proxy) as second:
                await second.ask(b"y")
        assert await first.ask(b"z") == b"z"


async def test_a_client_of_a_server_that_is_gone_is_reset(echo):
    async with FaultProxy(echo.address) as proxy:
        await echo.__aexit__()
        async with Client(proxy) as client:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.ask(b"x")
        await eventually(lambda: proxy.connections == 0)


async def test_leaving_ends_every_connection_also_a_stalled_one(echo):
    async with FaultProxy(echo.address) as proxy, Client(proxy) as client:
        await client.ask(b"x")
        proxy.partition()
        client.writer.write(b"y")
        await proxy.__aexit__(None, None, None)
        with pytest.raises(ConnectionError):
            await client.reader.readexactly(1)
        assert proxy.connections == 0
        await proxy.__aenter__()


@pytest.mark.parametrize(("upstream", "limit"), [("nowhere", 1), ("127.0.0.1:0", 1), ("127.0.0.1:1", 0)])
def test_what_cannot_be_is_refused(upstream, limit):
    with pytest.raises(ConfigError):
        FaultProxy(upstream, max_connections=limit)
