"""A handler that answers in every way a handler can, and a peer that is no client of ours."""

import asyncio
import struct

from sprocketmq.net.address import parse_address
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.command import Command, decode_command

ECHO, FAIL, SILENT, LATER, BROKEN_HEADER = 1, 2, 3, 4, 5


class EchoHandler:
    """Answers in every way a handler can."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.seen: list[Command] = []
        self.gone: list[str] = []
        self.requests = 0
        self.disconnected = asyncio.Event()

    def on_connect(self, conn: ServerConnection) -> None:
        conn.attachment = "attached"

    def on_request(self, conn: ServerConnection, command: Command) -> None:
        self.requests += 1
        if command.code == FAIL:
            raise ValueError("the handler broke")
        if command.code == SILENT:
            return
        if command.code == LATER:
            command.body = bytes(command.body)
            asyncio.get_running_loop().call_soon(lambda: conn.respond(command, 0, body=command.body))
            return
        conn.respond(command, 0, ext=command.ext, body=bytes(command.body))

    def on_batch_end(self, conn: ServerConnection) -> None:
        self.batches.append(self.requests)

    def on_disconnect(self, conn: ServerConnection) -> None:
        self.gone.append(conn.close_reason)
        self.disconnected.set()


async def read_command(reader: asyncio.StreamReader) -> Command:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return decode_command(await reader.readexactly(length))


async def raw(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*parse_address(address))
