"""Servers that authenticate, users, and raw connections to send them what no client would."""

import asyncio
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.net.address import parse_address
from sprocketmq.protocol.command import Command, encode_command
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.protocol.frame import FrameBuffer
from sprocketmq.security.config import SecurityConfig
from sprocketmq.storage.store import StoreConfig

# What a stream of frames ends with: its answer says that all before it were read.
END_OPAQUE = 0x7FFF_FFF1

ADMIN = Credentials("admin", "the-secret-of-the-administrator")
POWERLESS = Credentials("powerless", "a-user-without-any-permission")


def grant(who: Credentials, resource: str, *actions: str, decision: str = "Allow") -> dict[str, Any]:
    """Return a policy of the file of users."""
    entry = {"resource": resource, "actions": [*actions], "source_ips": [], "decision": decision}
    return {"subject": f"User:{who.access_key}", "type": "Custom", "entries": [entry]}


def write_users(path: Path, users: Iterable[Credentials] = (), policies: Iterable[dict[str, Any]] = ()) -> Path:
    """Write a file of the administrator, a user without policies, and others."""
    listed = [
        {
            "username": who.access_key,
            "secrets": [who.secret_key.reveal()],
            "type": "Super" if who is ADMIN else "Normal",
            "status": "enable",
        }
        for who in (ADMIN, POWERLESS, *users)
    ]
    path.touch(0o600)
    path.write_text(json.dumps({"users": listed, "policies": [*policies]}))
    return path


def secured_broker(directory: Path, users_file: Path, **settings: Any) -> Broker:
    """Return a broker that authenticates and authorizes, with small files; it is not started."""
    store = StoreConfig(directory, commitlog_segment_bytes=1 << 20, preallocate=False)
    return Broker(BrokerConfig(store=store, port=0, security=SecurityConfig(users_file=users_file), **settings))


class Peer(asyncio.Protocol):
    """A connection that waits for the answer to its last frame and at least ``least`` others, or for its end."""

    def __init__(self, least: int) -> None:
        self._frames = FrameBuffer()
        self._missing = least + 1
        self._ended = False
        self._commands: list[Command] = []
        self.answers: asyncio.Future[list[Command]] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        for command in self._frames.feed(data):
            self._missing -= 1
            if command.opaque == END_OPAQUE:
                self._ended = True
            else:
                command.body = bytes(command.body)
                self._commands.append(command)
        if self._ended and self._missing <= 0 and not self.answers.done():
            self.answers.set_result(self._commands)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answers.done():
            self.answers.set_result(self._commands)


def whole(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


async def exchange(address: str, frames: list[bytes], *, least: int = 0, who: Credentials | None = None) -> list[Command]:
    """Send frames over one connection and return the answers: at least so many, unless the connection ends.

    The last frame, whose answer is left out, is signed by ``who``. Its answer comes before those to sends in front of it.
    """
    fields = {"topic": "NoSuchTopic"}
    end = encode_command(Command(105, opaque=END_OPAQUE, ext=fields if who is None else who.sign(fields)))
    transport, peer = await asyncio.get_running_loop().create_connection(lambda: Peer(least), *parse_address(address))
    try:
        transport.write(b"".join(map(whole, frames)) + end)
        return await peer.answers
    finally:
        transport.abort()


def request_frame(code: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    """Return a frame, without its length, with fields that are signed already."""
    return encode_command(Command(code, opaque=1, ext=ext, body=body))[4:]
