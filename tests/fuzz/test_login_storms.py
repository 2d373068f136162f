"""Many at once: failing logins, silent connections, policies. Those who may are served all the while."""

import asyncio
import json
import resource
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fuzz.secured import ADMIN, exchange, grant, request_frame, secured_broker, write_users

from sprocketmq.broker import Broker
from sprocketmq.net.address import parse_address
from sprocketmq.net.newcomers import NewcomerLimits
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.security.login_limits import ANSWERED
from sprocketmq.testing import eventually

STORM = 1_000
SILENT = 1_300
MANY = 10_000
# What a broker may take for silent connections: 32 KiB each for as many as may be open, and what arrived at once.
MOST_BYTES = 64 << 20
POLICIES = 10_000
SENDER = Credentials("sender", "the-secret-of-somebody-who-sends")
RULED = Credentials("ruled", "the-secret-of-who-has-many-rules")
SEND = {
    "a": "g",
    "b": "orders",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "0",
    "h": "0",
    "i": "",
    "j": "0",
    "k": "false",
    "m": "false",
}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with a user who may send, and one with 10,000 policies."""
    allowed = [{"resource": f"Topic:t{i}", "actions": ["Pub", "Get"], "source_ips": [], "decision": "Allow"} for i in range(POLICIES)]
    many = {"subject": "User:ruled", "type": "Custom", "entries": allowed}
    users = write_users(tmp_path / "users.json", [SENDER, RULED], [grant(SENDER, "Topic:orders", "Pub"), many])
    running = secured_broker(tmp_path / "store", users)
    await running.start()
    yield running
    await running.stop()


async def may_send(broker: Broker, who: Credentials, topic: str = "orders") -> bool:
    """Send a message over a connection of its own, and return whether it was stored."""
    frame = request_frame(RequestCode.SEND_MESSAGE_V2, who.sign(SEND | {"b": topic}, b"x"), b"x")
    (answer,) = await exchange(broker.address, [frame], least=1, who=who)
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION)
    return answer.code == ResponseCode.SUCCESS


async def test_a_thousand_unknown_users_of_one_address_are_cut_off_and_others_served(broker: Broker) -> None:
    sent = answered = 0
    while sent < STORM:
        unknown = [Credentials(f"unknown-{sent + i}", "a-secret-of-nobody-at-all") for i in range(100)]
        answers = await exchange(broker.address, [request_frame(30, who.sign({"topic": "orders", "queueId": "0"})) for who in unknown])
        assert {(answer.code, answer.remark) for answer in answers} <= {(ResponseCode.NO_PERMISSION, "check signature failed.")}
        answered += len(answers)
        sent += len(unknown)
        assert await may_send(broker, SENDER), "of the same address"
    assert answered <= ANSWERED + sent // 100, "when there were too many, each connection was closed with its first"
    await eventually(lambda: not broker.connection_count, what="the end of all connections")


@pytest.mark.parametrize("count", [SILENT, pytest.param(MANY, marks=pytest.mark.long)])
async def test_silent_connections_are_bounded_and_keep_nobody_out(broker: Broker, count: int) -> None:
    limit = NewcomerLimits().connections
    before = resident_bytes()
    command = [sys.executable, "-m", "tests.fuzz.silent", *map(str, parse_address(broker.address)), str(count)]
    silent = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=Path(__file__).parents[2])
    assert silent.stdin is not None
    assert silent.stdout is not None
    opened = asyncio.ensure_future(silent.stdout.readline())
    outcomes: Counter[str] = Counter()
    while not opened.done():
        outcomes[await outcome(broker)] += 1
    assert opened.result() == b"open\n"
    await eventually(lambda: broker.connection_count <= limit, what="the end of those that are too many")
    assert await may_send(broker, SENDER)
    grown = resident_bytes() - before
    silent.stdin.close()
    closed = int(await silent.stdout.readline())
    assert count - limit <= closed <= count
    print(f"{count} opened, {closed} of them closed, {grown / 2**20:.1f} MiB more; senders meanwhile: {dict(outcomes)}")
    assert outcomes["sent"], "those who come while the others arrive have to try again at most"
    assert grown < MOST_BYTES
    assert await silent.wait() == 0
    await eventually(lambda: not broker.connection_count, what="the end of all connections")


async def outcome(broker: Broker) -> str:
    """Send a message; a connection may be the oldest of too many before its request is read."""
    frame = request_frame(RequestCode.SEND_MESSAGE_V2, SENDER.sign(SEND, b"x"), b"x")
    try:
        answers = await exchange(broker.address, [frame], least=1, who=SENDER)
    except ConnectionError:
        answers = []
    assert {answer.code for answer in answers} <= {ResponseCode.SUCCESS}
    return "sent" if answers else "closed"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_ten_thousand_policies_of_one_user_are_looked_up_and_changed(broker: Broker) -> None:
    assert await may_send(broker, RULED, f"t{POLICIES - 1}")
    assert not await may_send(broker, RULED, f"t{POLICIES}")
    entry = {"resource": "Topic:t*", "actions": ["Pub"], "decision": "Allow"}
    body = json.dumps({"subject": "User:ruled", "policies": [{"policyType": "Custom", "entries": [entry]}]}).encode()
    change = request_frame(RequestCode.UPDATE_ACL, ADMIN.sign({"subject": "User:ruled"}, body), body)
    (answer,) = await exchange(broker.address, [change], least=1)
    assert answer.code == ResponseCode.SUCCESS
    assert await may_send(broker, RULED, f"t{POLICIES}")
    (answer,) = await exchange(broker.address, [request_frame(RequestCode.LIST_ACLS, ADMIN.sign({}))], least=1)
    assert answer.code == ResponseCode.SUCCESS
    (listed,) = [user for user in json.loads(answer.body) if user["subject"] == "User:ruled"]
    assert len(listed["policies"][0]["entries"]) == POLICIES + 1


async def test_a_policy_that_names_nothing_is_refused(broker: Broker) -> None:
    for name in ("", "Topic:", "Topic", ":x", "Thing:x", "Topic:a\nb"):
        entry = {"resource": name, "actions": ["Pub"], "decision": "Allow"}
        body = json.dumps({"subject": "User:sender", "policies": [{"policyType": "Custom", "entries": [entry]}]}).encode()
        change = request_frame(RequestCode.CREATE_ACL, ADMIN.sign({"subject": "User:sender"}, body), body)
        (answer,) = await exchange(broker.address, [change], least=1)
        assert answer.code == ResponseCode.NO_PERMISSION, name
        assert answer.remark, "the reason"
