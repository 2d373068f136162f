"""The gRPC endpoint with Apache's clients for Java 5 and Node, in front of our broker and of Apache's."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop import apache, proxies
from tests.interop.endpoints import endpoint_of, group_at_start, topic_of
from tests.interop.reading import dead_letters
from tests.interop.sides import APACHES_IN_LONG, Side

from sprocketmq import AdminClient
from sprocketmq.proxy.users import Users

pytestmark = [pytest.mark.interop]


@contextlib.asynccontextmanager
async def java5(program: str, *arguments: str, home: Path) -> AsyncIterator[apache.JavaProcess]:
    """Run a program of Apache's Java client of version 5."""
    library = await asyncio.to_thread(proxies.java5_jars)
    # A source file instead of a class: the launcher compiles it.
    client = apache.JavaProcess(str(proxies.JAVA5 / program), *arguments, home=home / "java5", flags=apache.SMALL, library=library)
    try:
        yield client
    finally:
        client.kill()


def printed(client: apache.JavaProcess) -> list[list[str]]:
    """Return the words of the lines that a program has printed, among which the client may have complained about its own end."""
    return [words for line in client.log.read_text().splitlines() if (words := line.split())]


@pytest.mark.parametrize("plain", [False, True], ids=["encrypted", "plain"])
@pytest.mark.parametrize("side", APACHES_IN_LONG, indirect=True)
async def test_apaches_java_client_of_version_5(side: Side, home: Path, plain: bool) -> None:
    topic = await topic_of(side)
    groups = [await group_at_start(side, topic) for _ in range(2)]
    mode = ["plain"] if plain else []
    async with endpoint_of(side, Users({})) as endpoint, java5("Modern.java", endpoint, topic, *groups, *mode, home=home) as client:
        assert await asyncio.to_thread(client.process.wait, 240) == 0, client.tail()
    lines = printed(client)
    assert len({words[1] for words in lines if words[0] == "sent"}) == 4
    assert sorted(words[1:] for words in lines if words[0] == "received") == [[f"m{n}", "t", f"k{n}", "1"] for n in range(4)]
    handled = sorted(words[1:] for words in lines if words[0] == "handled")
    assert handled == [["m0", "1"], ["m1", "1"], ["m2", "1"], ["m2", "2"], ["m3", "1"]]


@pytest.mark.parametrize("transacting_side", APACHES_IN_LONG, indirect=True)
async def test_apaches_java_client_of_version_5_with_every_type_of_message(transacting_side: Side, home: Path) -> None:
    side = transacting_side
    topics = [await topic_of(side, kind) for kind in ("FIFO", "DELAY", "TRANSACTION", "NORMAL")]
    fifo, *_, dead = groups = [await group_at_start(side, topic) for topic in topics]
    async with AdminClient(namesrv=side.namesrv) as admin:
        await admin.create_group(fifo, orderly=True)
        await admin.create_group(dead, max_reconsume_times=1)
    async with endpoint_of(side, Users({})) as endpoint:
        pairs = [name for pair in zip(topics, groups, strict=True) for name in pair]
        async with java5("Kinds.java", endpoint, *pairs, home=home) as client:
            await asyncio.to_thread(client.wait_for, "failed bad 2", 240)
            (letter,) = await dead_letters(side.namesrv, dead, 1)
    assert letter["body"] == b"bad"
    lines = printed(client)

    def said(word: str) -> list[list[str]]:
        return [words[1:] for words in lines if words[0] == word]

    assert [words[1:] for words in said("fifo") if words[0] == "x"] == [
        [f"x{n}", attempt] for n, attempt in [(0, "1"), (1, "1"), (2, "1"), (2, "2"), (3, "1"), (4, "1")]
    ]
    assert [words[1:] for words in said("fifo") if words[0] == "y"] == [[f"y{n}", "1"] for n in range(5)]
    ((body, waited_ms),) = said("delayed")
    assert body == "later"
    assert int(waited_ms) >= 4_000
    assert said("asked") == [["unknown"]]
    assert sorted(said("ended")) == [["kept"], ["unknown"]]
    assert said("failed") == [["bad", "1"], ["bad", "2"]]


@pytest.mark.parametrize("transacting_side", APACHES_IN_LONG, indirect=True)
async def test_apaches_client_for_node(transacting_side: Side, home: Path) -> None:
    side = transacting_side
    modules = await asyncio.to_thread(proxies.node_modules)
    kinds = {"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "transaction": "TRANSACTION"}
    topics = {name: await topic_of(side, kind) for name, kind in kinds.items()}
    read = {**topics, "push": topics["normal"], "again": topics["normal"], "dead": topics["normal"]}
    groups = {name: await group_at_start(side, topic) for name, topic in read.items()}
    async with AdminClient(namesrv=side.namesrv) as admin:
        await admin.create_group(groups["fifo"], orderly=True)
        await admin.create_group(groups["dead"], max_reconsume_times=1)
    async with endpoint_of(side, Users({})) as endpoint:
        process = await asyncio.create_subprocess_exec(
            apache.tool("node"), str(proxies.NODE / "official.js"), json.dumps({"endpoint": endpoint, "topics": topics, "groups": groups}),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "NODE_PATH": str(modules)},
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), 240)
        assert process.returncode == 0, f"{out.decode()}\n{err.decode()}"
        (letter,) = await dead_letters(side.namesrv, groups["dead"], 1)
    assert letter["body"] == b"m1"
    found: dict[str, Any] = json.loads(out.decode().splitlines()[-1])

    received = sorted(found["normal"], key=lambda message: message["body"])
    assert [message["id"] for message in received] == found["sent"]
    for n, message in enumerate(received):
        assert (message["body"], message["tag"], message["keys"], message["attempt"]) == (f"m{n}", "t", [f"k{n}"], 1)
        assert message["properties"] == {"n": str(n)}
    attempts = {name: sorted((message["body"], message["attempt"]) for message in found[name]) for name in ("pushed", "again", "dead")}
    assert attempts["pushed"] == [("m0", 1), ("m1", 1), ("m2", 1), ("m2", 2), ("m3", 1)]
    assert attempts["again"] == [("m0", 1), ("m1", 1), ("m2", 1), ("m3", 1), ("m3", 2)]
    assert attempts["dead"] == [("m0", 1), ("m1", 1), ("m1", 2), ("m2", 1), ("m3", 1)]
    for name in "xy":
        assert [message["body"] for message in found["fifo"] if message["group"] == name] == [f"{name}{n}" for n in range(5)]
    assert [message["body"] for message in found["delayed"]] == ["later"]
    assert found["waited"] >= 4_000
    assert found["asked"] == ["asked"]
    assert sorted(message["body"] for message in found["ended"]) == ["asked", "kept"]
