"""What a guard of a server admits, and the limits of connections that it has admitted nothing of yet."""

import asyncio
import struct
from typing import Self

import pytest
from tests.unit.net.echoing import ECHO, EchoHandler, raw, read_command

from sprocketmq.errors import ConnectionLost
from sprocketmq.net.client import ConnectionPool
from sprocketmq.net.newcomers import NewcomerLimits
from sprocketmq.net.server import RemotingServer, ServerConnection
from sprocketmq.protocol.command import Command, encode_command
from sprocketmq.testing import eventually

REFUSED = 16


class NameGuard:
    """Admits requests with a name; closes the connection of "eve"."""

    def __init__(self) -> None:
        self.here: list[ServerConnection] = []
        self.broken = False

    def connected(self, conn: ServerConnection) -> None:
        self.here.append(conn)

    def disconnected(self, conn: ServerConnection) -> None:
        self.here.remove(conn)

    def admits(self, conn: ServerConnection, command: Command) -> bool:
        if self.broken:
            raise ValueError("the guard broke")
        name = command.ext.get("name")
        if name is None:
            conn.respond(command, REFUSED, remark="no name")
            return False
        if name == "eve":
            conn.close("eve again")
            return False
        conn.user = name
        return True


class Guarded:
    """A server with a guard, which closes with its context."""

    def __init__(self, **limits: float) -> None:
        self.handler, self.guard = EchoHandler(), NameGuard()
        limits = {"seconds": 600.0, **limits}
        self.server = RemotingServer(self.handler, name="broker", guard=self.guard, newcomer_limits=NewcomerLimits(**limits))
        self.pools: list[ConnectionPool] = []
        self.address = ""

    async def __aenter__(self) -> Self:
        self.address = f"127.0.0.1:{await self.server.start('127.0.0.1', 0)}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for pool in self.pools:
            await pool.close()
        await self.server.stop()

    async def connect(self):
        self.pools.append(ConnectionPool(expected="broker"))
        return await self.pools[-1].get(self.address)

    async def answered(self, ext: dict[str, str], code: int):
        """Return a connection whose request was answered with ``code``; a busy machine may need several for that."""
        while True:
            conn = await self.connect()
            try:
                assert (await conn.request(ECHO, ext=ext, timeout_s=60)).code == code
            except ConnectionLost:
                continue
            return conn


async def test_only_what_the_guard_admits_is_handled():
    async with Guarded() as guarded:
        conn = await guarded.connect()
        answer = await conn.request(ECHO, timeout_s=60)
        assert (answer.code, answer.remark, guarded.handler.requests) == (REFUSED, "no name", 0)
        assert (await conn.request(ECHO, ext={"name": "ann"}, body=b"x", timeout_s=60)).body == b"x"
        (served,) = guarded.server.connections
        assert served.user == "ann"
        assert guarded.guard.here == [served]
        await guarded.pools[0].close()
        await eventually(lambda: not guarded.guard.here)
        assert not guarded.server.connections


async def test_nothing_is_handled_after_the_guard_closed_the_connection():
    async with Guarded() as guarded:
        reader, writer = await raw(guarded.address)
        names = ["ann", "eve", "ann", "ann"]
        writer.write(b"".join(encode_command(Command(ECHO, opaque=n, ext={"name": name})) for n, name in enumerate(names)))
        assert (await read_command(reader)).opaque == 0
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert guarded.handler.requests == 1
        writer.close()


async def test_a_guard_that_fails_admits_nothing():
    async with Guarded() as guarded:
        guarded.guard.broken = True
        conn = await guarded.connect()
        answer = await conn.request(ECHO, ext={"name": "ann"}, timeout_s=60)
        assert (answer.code, guarded.handler.requests) == (1, 0)
        assert len(guarded.server.newcomers) == 1


async def test_answers_of_the_peer_are_not_asked_about():
    async with Guarded() as guarded:
        reader, writer = await raw(guarded.address)
        await eventually(lambda: guarded.server.connections)
        (conn,) = guarded.server.connections
        asked = asyncio.ensure_future(conn.request(40, timeout_s=60))
        command = await read_command(reader)
        writer.write(encode_command(Command(0, opaque=command.opaque, flag=1)))
        assert (await asked).code == 0
        writer.close()


async def test_who_does_not_log_in_in_time_is_closed_and_who_did_stays(caplog):
    async with Guarded(seconds=0.3) as guarded:
        admitted = await guarded.answered({"name": "ann"}, 0)
        silent = [await raw(guarded.address) for _ in range(5)]
        refused = await guarded.answered({}, REFUSED)
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        await eventually(lambda: refused.closed)
        assert (await admitted.request(ECHO, ext={"name": "ann"}, timeout_s=60)).code == 0
        assert len(guarded.server.newcomers) == 0
        assert guarded.server.refused_connections >= 6
        assert next(m for m in caplog.messages if m.startswith("newcomer_refused")).endswith('no login within 0.3 s"')


async def test_too_many_without_a_login_push_out_the_oldest_and_keep_no_client_out():
    async with Guarded(connections=50) as guarded:
        admitted = await guarded.connect()
        await admitted.request(ECHO, ext={"name": "ann"}, timeout_s=60)
        silent = [await raw(guarded.address) for _ in range(300)]
        late = await guarded.connect()
        assert (await late.request(ECHO, ext={"name": "bob"}, timeout_s=60)).code == 0
        await eventually(lambda: len(guarded.server.connections) <= 52)
        assert len(guarded.server.newcomers) <= 50
        assert guarded.server.refused_connections >= 250
        assert (await admitted.request(ECHO, ext={"name": "ann"}, timeout_s=60)).code == 0
        for _, writer in silent:
            writer.close()
        await eventually(lambda: len(guarded.server.newcomers) == 0)


async def test_the_bytes_of_those_without_a_login_are_bounded_together():
    async with Guarded(retained_bytes=1 << 20) as guarded:
        large = struct.pack(">i", 4 << 20) + struct.pack(">i", 2) + b"{}"
        held = []
        for _ in range(2):
            held.append(await raw(guarded.address))
            held[-1][1].write(large + bytes(100_000))
        await eventually(lambda: sum(conn.received_bytes for conn in guarded.server.connections) == 2 * (len(large) + 100_000))
        before = guarded.server.newcomers.retained_bytes
        assert before == sum(conn.retained_bytes for conn in guarded.server.connections)
        reader, writer = await raw(guarded.address)
        writer.write(large + bytes(3 << 20))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 60)
        await eventually(lambda: len(guarded.server.connections) == 2)
        assert guarded.server.newcomers.retained_bytes == before
        writer.close()
        for _, other in held:
            other.close()
        await eventually(lambda: not guarded.server.connections)
        assert guarded.server.newcomers.retained_bytes == 0


async def test_who_reads_no_refusals_is_closed():
    async with Guarded() as guarded:
        _, writer = await raw(guarded.address)
        writer.transport.pause_reading()
        await eventually(lambda: guarded.server.connections)
        (conn,) = guarded.server.connections
        frames = b"".join(encode_command(Command(ECHO, opaque=n)) for n in range(1000))
        while not conn.closed:
            writer.write(frames)
            await asyncio.sleep(0)
        assert conn.close_reason == "the peer does not read its refusals"
        writer.transport.abort()


async def test_a_login_may_come_with_a_large_frame_and_frees_what_it_took():
    async with Guarded(retained_bytes=8 << 20) as guarded:
        conn = await guarded.connect()
        answer = await conn.request(ECHO, ext={"name": "ann"}, body=bytes(4 << 20), timeout_s=60)
        assert len(answer.body) == 4 << 20
        assert guarded.server.newcomers.retained_bytes == 0
        assert len(guarded.server.newcomers) == 0


async def test_a_server_that_stops_forgets_its_newcomers():
    guarded = Guarded()
    async with guarded:
        _, writer = await raw(guarded.address)
        await eventually(lambda: len(guarded.server.newcomers) == 1)
    assert len(guarded.server.newcomers) == 0
    writer.close()
