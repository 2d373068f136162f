"""The gRPC endpoint with Apache's own client for Python, in front of our broker and of Apache's."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.endpoints import endpoint_of, group_at_start, topic_of
from tests.interop.reading import dead_letters, pull_all, until_readable
from tests.interop.sides import Side

from sprocketmq import AdminClient
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.proxy.users import Users

pytestmark = [pytest.mark.interop]

PROGRAM = Path(__file__).with_name("official_python.py")


@pytest.fixture
async def endpoint(side: Side) -> AsyncIterator[str]:
    """Our endpoint, open to everybody."""
    async with endpoint_of(side, Users({})) as address:
        yield address


async def official(endpoint: str, scenario: str, home: Path, **arguments: Any) -> dict[str, Any]:
    """Run a scenario of Apache's Python client and return what came of it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), endpoint, scenario, json.dumps(arguments),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 180)
    assert process.returncode == 0, f"{out.decode()}\n{err.decode()}"
    found: dict[str, Any] = json.loads(out.decode().splitlines()[-1])
    return found


async def test_our_client_reads_what_a_grpc_client_sends(side: Side, endpoint: str, home: Path) -> None:
    topic = await topic_of(side)
    sent = await official(
        endpoint,
        "send",
        home,
        topic=topic,
        messages=[{"body": f"m{n}", "tag": "a", "key": f"k{n}", "properties": {"n": str(n)}} for n in range(10)],
    )
    await until_readable(side.namesrv, topic, 10)
    found = {view["msg_id"]: view for view in await pull_all(side.namesrv, topic)}
    for n, msg_id in enumerate(sent["ids"]):
        view = found[msg_id]
        assert (view["body"], view["tag"], view["keys"], view["properties"]["n"]) == (b"m%d" % n, "a", [f"k{n}"], str(n))


async def test_what_is_sent_is_received(side: Side, endpoint: str, home: Path) -> None:
    topic = await topic_of(side)
    group = await group_at_start(side, topic)
    sent = await official(
        endpoint, "send", home, topic=topic,
        messages=[{"body": f"m{n}", "tag": "a" if n % 2 else "b", "key": f"k{n}", "properties": {"n": str(n)}} for n in range(10)],
    )  # fmt: skip
    assert len(set(sent["ids"])) == 10
    found = (await official(endpoint, "receive", home, topic=topic, group=group, count=10))["messages"]
    assert sorted(message["body"] for message in found) == sorted(f"m{n}" for n in range(10))
    for message in found:
        n = int(message["body"][1:])
        assert (message["tag"], message["keys"], message["properties"]) == ("a" if n % 2 else "b", [f"k{n}"], {"n": str(n)})
        assert (message["id"], message["attempt"], message["corrupted"]) == (sent["ids"][n], 1, False)


async def test_a_filter_of_tags(side: Side, endpoint: str, home: Path) -> None:
    topic = await topic_of(side)
    group = await group_at_start(side, topic)
    await official(endpoint, "send", home, topic=topic, messages=[{"body": f"{tag}{n}", "tag": tag} for n in range(3) for tag in "abc"])
    found = await official(endpoint, "receive", home, topic=topic, group=group, count=6, expression="a || c")
    assert sorted(message["body"] for message in found["messages"]) == ["a0", "a1", "a2", "c0", "c1", "c2"]


async def test_a_message_that_is_not_acknowledged_comes_again(side: Side, endpoint: str, home: Path) -> None:
    topic = await topic_of(side)
    group = await group_at_start(side, topic)
    await official(endpoint, "send", home, topic=topic, messages=[{"body": "good"}, {"body": "late"}])
    found = await official(endpoint, "receive", home, topic=topic, group=group, count=3, skip_acks=["late"])
    attempts = sorted((message["body"], message["attempt"]) for message in found["messages"])
    assert attempts == [("good", 1), ("late", 1), ("late", 2)]


async def test_a_push_consumer_retries_what_failed(side: Side, endpoint: str, home: Path) -> None:
    topic = await topic_of(side)
    group = await group_at_start(side, topic)
    await official(endpoint, "send", home, topic=topic, messages=[{"body": f"m{n}"} for n in range(8)])
    found = await official(endpoint, "listen", home, topic=topic, group=group, count=9, fail=["m3"])
    attempts = sorted((message["body"], message["attempt"]) for message in found["messages"])
    assert attempts == sorted([*((f"m{n}", 1) for n in range(8)), ("m3", 2)])


async def test_a_message_group_keeps_its_order(side: Side, endpoint: str, home: Path) -> None:
    topic = await topic_of(side, "FIFO")
    group = await group_at_start(side, topic)
    async with AdminClient(namesrv=side.namesrv) as admin:
        await admin.create_group(group, orderly=True)
    messages = [{"body": f"{name}{n}", "group": name} for n in range(5) for name in "xyz"]
    await official(endpoint, "send", home, topic=topic, messages=messages)
    found = (await official(endpoint, "receive", home, topic=topic, group=group, count=15))["messages"]
    for name in "xyz":
        assert [message["body"] for message in found if message["group"] == name] == [f"{name}{n}" for n in range(5)]


async def test_a_delivery_time(side: Side, endpoint: str, home: Path) -> None:
    topic = await topic_of(side, "DELAY")
    group = await group_at_start(side, topic)
    started = asyncio.get_running_loop().time()
    await official(endpoint, "send", home, topic=topic, messages=[{"body": "later", "delay_s": 5}])
    found = await official(endpoint, "receive", home, topic=topic, group=group, count=1)
    assert [message["body"] for message in found["messages"]] == ["later"]
    assert asyncio.get_running_loop().time() - started >= 4


async def test_recalled_messages_do_not_come(side: Side, endpoint: str, home: Path) -> None:
    topic = await topic_of(side, "DELAY")
    group = await group_at_start(side, topic)
    recalled = await official(endpoint, "send", home, topic=topic, messages=[{"body": "recalled", "delay_s": 6}], recall=True)
    assert recalled["recalled"] == [True]
    await official(endpoint, "send", home, topic=topic, messages=[{"body": "kept", "delay_s": 8}])
    found = await official(endpoint, "receive", home, topic=topic, group=group, count=1)
    assert [message["body"] for message in found["messages"]] == ["kept"]


async def test_transactions(transacting_side: Side, home: Path) -> None:
    topic = await topic_of(transacting_side, "TRANSACTION")
    group = await group_at_start(transacting_side, topic)
    messages = [
        {"body": "kept", "end": "commit"},
        {"body": "dropped", "end": "rollback"},
        {"body": "asked and kept", "end": "check commit"},
        {"body": "asked and dropped", "end": "check rollback"},
    ]
    async with endpoint_of(transacting_side, Users({})) as endpoint:
        ended = await official(endpoint, "transactions", home, topic=topic, messages=messages)
        assert set(ended["asked"]) == {"asked and kept", "asked and dropped"}
        found = await official(endpoint, "receive", home, topic=topic, group=group, count=2)
    assert sorted(message["body"] for message in found["messages"]) == ["asked and kept", "kept"]


async def test_what_fails_too_often_becomes_a_dead_letter(side: Side, endpoint: str, home: Path) -> None:
    topic = await topic_of(side)
    group = await group_at_start(side, topic)
    async with AdminClient(namesrv=side.namesrv) as admin:
        await admin.create_group(group, max_reconsume_times=0)
    await official(endpoint, "send", home, topic=topic, messages=[{"body": "good"}, {"body": "bad"}])
    found = await official(endpoint, "receive", home, topic=topic, group=group, count=3, skip_acks=["bad"], deadline_s=20)
    assert sorted(message["body"] for message in found["messages"]) == ["bad", "good"]
    (letter,) = await dead_letters(side.namesrv, group, 1)
    assert letter["body"] == b"bad"


async def test_the_official_client_signs_in(side: Side, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    users = Users({"alice": Credentials("alice", "secret-of-alice")})
    topic = await topic_of(side)
    keys = {"access_key": "alice", "secret_key": "secret-of-alice"}
    async with endpoint_of(side, users) as address:
        assert (await official(address, "send", home, topic=topic, messages=[{"body": "hello"}], **keys))["ids"]
        assert "grpc_login_refused" not in caplog.text
        with pytest.raises(AssertionError, match="Exception"):
            await official(address, "send", home, topic=topic, messages=[{"body": "hello"}], **{**keys, "secret_key": "wrong"})
        assert "grpc_login_refused" in caplog.text
