"""Damaged and forged requests at a broker and a nameserver that want a login: refusals, and nothing stored, changed or kept.

Recorded requests are changed field by field and byte by byte, from a seed that is printed, and signed wrongly, by users who do not exist, or
rightly by a user who may do nothing. ``SPROCKETMQ_FUZZ_SEED`` repeats a run, ``SPROCKETMQ_FUZZ_FRAMES`` says how many frames
(``make fuzz``: 20,000,000).
"""

import contextlib
import gc
import hashlib
import os
import random
import sys
import time
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.mutations import mutate
from tests.fuzz.secured import ADMIN, POWERLESS, exchange, secured_broker, write_users

from sprocketmq.broker import Broker
from sprocketmq.errors import ProtocolError
from sprocketmq.namesrv import NameServer, NameServerConfig
from sprocketmq.protocol.bodies import QueueData
from sprocketmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, decode_command, encode_command
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.protocol.frame import FrameBuffer
from sprocketmq.protocol.names import DEFAULT_TOPIC, REPLY_TOPIC_SUFFIX
from sprocketmq.security import login_limits
from sprocketmq.security.config import SecurityConfig

FRAMES = int(os.environ.get("SPROCKETMQ_FUZZ_FRAMES", "200000"))
SEED = int(os.environ.get("SPROCKETMQ_FUZZ_SEED") or (random.SystemRandom().randrange(1 << 32) if FRAMES > 200_000 else 2013))
FRAMES_PER_CONNECTION = 200
# The guard keeps up to 20,000 decisions about users, which a long run fills and empties.
MAX_GROWN_BLOCKS = 20_000 if FRAMES <= 200_000 else 250_000
# Producers' heartbeats, leaving a producer group, and replies (which no server of ours takes) need a known user only.
OPEN_TO_USERS = {34, 35, 324, 325}

HOUSEKEEPING = {"checkpoint", "dispatched", "delayOffset"}
FORGERS = [Credentials("admin", "not-the-secret-of-the-administrator"), Credentials("nobody", "a-secret-of-a-user-who-is-not")]

RECORDED = Path(__file__).parents[1] / "fixtures" / "frames" / "frames.zip"
with zipfile.ZipFile(RECORDED) as archive:
    FRAMES_RECORDED = [archive.read(name) for name in archive.namelist()]
REQUESTS = [command for frame in FRAMES_RECORDED if not (command := FrameBuffer().feed(frame)[0]).flag & FLAG_RESPONSE]
CORPUS = [encode_command(command)[4:] for command in REQUESTS]
CODES = sorted({*range(60), *range(100, 107), *range(200, 230), *range(300, 404), *range(900, 910), 1001, 2001, *range(3000, 3012)})
STRINGS = ["", "*", "0", "-1", "9" * 30, "TopicA", "powerless", "admin", "%RETRY%g", "é", "\U0001f680", "\0", "a" * 5000, "../../x", "null"]


# --- frames ---


class Forger:
    """Makes frames from recorded requests."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)

    def stream(self, most: int) -> list[bytes]:
        """Return the frames of one connection, without their lengths: those that can be decoded, and perhaps one that cannot, last."""
        frames: list[bytes] = []
        while len(frames) < most:
            if self.rng.random() >= 0.05:
                frames.append(self._forged())
                continue
            frame = mutate(self.rng, self.rng.choice(CORPUS), CORPUS)
            frames.append(frame)
            try:
                if decode_command(frame).flag & FLAG_RESPONSE:
                    frames.pop()  # is not answered
            except ProtocolError:
                break
        return frames

    def _forged(self) -> bytes:
        rng = self.rng
        base = rng.choice(REQUESTS)
        body = bytes(base.body)
        if rng.random() < 0.2:
            body = mutate(rng, body, CORPUS)
        code = rng.choice(CODES) if rng.random() < 0.4 else base.code
        command = Command(
            code,
            opaque=rng.randrange(1 << 30),
            flag=FLAG_ONEWAY if rng.random() < 0.1 else base.flag,
            version=rng.choice((0, 399, 400, 513, -1)) if rng.random() < 0.1 else base.version,
            language=base.language,
            ext=self._signed(self._changed(dict(base.ext)), body),
            body=body,
            serialize=0 if code > 0x7FFF else rng.randrange(2),
        )
        return encode_command(command)[4:]

    def _changed(self, fields: dict[str, str]) -> dict[str, str]:
        rng = self.rng
        for _ in range(rng.choice((0, 0, 1, 2))):
            names = [*fields]
            kind = rng.randrange(4)
            if kind == 0:
                fields[rng.choice(STRINGS)] = rng.choice(STRINGS)
            elif not names:
                continue
            elif kind == 1:
                del fields[rng.choice(names)]
            elif kind == 2:
                fields[rng.choice(names)] = rng.choice(STRINGS)
            else:
                fields[rng.choice(names)] = fields[rng.choice(names)]
        return fields

    def _signed(self, fields: dict[str, str], body: bytes) -> dict[str, str]:
        rng = self.rng
        how = rng.randrange(8)
        if how == 0:
            return fields
        if how == 1:
            return fields | {"AccessKey": rng.choice((ADMIN.access_key, *STRINGS))}
        if how == 2:
            return fields | {"AccessKey": ADMIN.access_key, "Signature": rng.choice((*STRINGS, "é" * 28, "=" * 28, "A" * 27 + "="))}
        if how == 3:
            return FORGERS[0].sign(fields, body) | {"AccessKey": POWERLESS.access_key}
        return (FORGERS[how % 2] if how < 6 else POWERLESS).sign(fields, body)


def is_open(request: Command) -> bool:
    """Return whether every user may send it: also for routes of the topic that clients ask for first, and of those that take replies."""
    topic = request.ext.get("topic", "")
    is_open_route = topic == DEFAULT_TOPIC or topic.endswith(REPLY_TOPIC_SUFFIX)
    return request.code in OPEN_TO_USERS or (request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and is_open_route)


def assert_refused(frames: list[bytes], answers: list[Command]) -> None:
    """Assert that every answer is a refusal, but for what every user may do; a reply is handed on as a request of the broker's."""
    refused = (ResponseCode.NO_PERMISSION, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    unexpected = [answer for answer in answers if answer.code not in refused]
    if not unexpected:
        return
    sent: dict[int, list[Command]] = {}
    for frame in frames:
        with contextlib.suppress(ProtocolError):
            request = decode_command(frame)
            sent.setdefault(request.opaque, []).append(request)
    for answer in unexpected:
        requests = sent[answer.opaque]
        if not any(map(is_open, requests)):
            raise AssertionError(f"seed {SEED}: {requests!r} got {answer!r}; fields {[request.ext for request in requests]}")


# --- servers ---


@pytest.fixture(params=["broker", "nameserver"])
async def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker | NameServer]:
    """A server that authenticates and authorizes. Failed logins are answered at once: they have tests of their own."""
    monkeypatch.setattr(login_limits, "PROMPT", 1 << 60)
    users = write_users(tmp_path / "users.json")
    running: Broker | NameServer
    if request.param == "broker":
        running = secured_broker(tmp_path / "store", users)
    else:
        running = NameServer(NameServerConfig(port=0, security=SecurityConfig(users_file=users)))
        running.routes.register_topic("TopicA", [QueueData("broker-a", 4, 4, 6)])
    await running.start()
    yield running
    await running.stop()


def state(server: Broker | NameServer, directory: Path) -> dict[str, Any]:
    """Return what a server knows, and the files it has, but for those that a broker writes from time to time anyway."""
    found: dict[str, Any] = {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and path.name.split(".")[0] not in HOUSEKEEPING
    }
    if isinstance(server, Broker):
        found["log"] = server.store.commitlog_max_offset
        found |= {"topics": server.topics.snapshot(), "groups": server.groups.snapshot(), "offsets": server.offsets.snapshot()}
    else:
        found["routes"] = [(topic, server.routes.route(topic)) for topic in server.routes.topics()], server.routes.clusters()
    return found


def blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.timeout(0 if FRAMES > 200_000 else 300)
async def test_forged_frames_are_refused_and_leave_nothing(server: Broker | NameServer, tmp_path: Path) -> None:
    print(f"SPROCKETMQ_FUZZ_SEED={SEED}")
    forger = Forger(f"{SEED} {type(server).__name__}")
    before = state(server, tmp_path)
    started = time.monotonic()
    sent = answered = 0
    warm = 0
    while sent < FRAMES // 2:
        frames = forger.stream(FRAMES_PER_CONNECTION)
        answers = await exchange(server.address, frames)
        assert_refused(frames, answers)
        sent += len(frames)
        answered += len(answers)
        if not warm and sent >= FRAMES // 10:
            warm = blocks()
    grown = blocks() - warm
    print(f"{sent} frames, {answered} answers, {time.monotonic() - started:.1f} s, {grown} blocks more")
    assert answered > sent * 0.7, "nearly all of them were read and answered, but for one-way requests"
    assert grown < MAX_GROWN_BLOCKS
    after = state(server, tmp_path)
    assert {name: after.get(name) for name in after | before if after.get(name) != before.get(name)} == {}
