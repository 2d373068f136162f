"""The gRPC endpoint with Apache's client for Rust, in front of our broker and of Apache's."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from tests.interop import proxies
from tests.interop.endpoints import endpoint_of, group_at_start, topic_of
from tests.interop.sides import Side

from sprocketmq import AdminClient
from sprocketmq.proxy.users import Users

pytestmark = [pytest.mark.interop, pytest.mark.long]


async def test_apaches_client_for_rust(transacting_side: Side) -> None:
    side = transacting_side
    program = await asyncio.to_thread(proxies.rust_program)
    topics = [await topic_of(side, kind) for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")]
    groups = [await group_at_start(side, topic) for topic in topics]
    async with AdminClient(namesrv=side.namesrv) as admin:
        await admin.create_group(groups[1], orderly=True)
    async with endpoint_of(side, Users({})) as endpoint:
        pairs = [name for pair in zip(topics, groups, strict=True) for name in pair]
        done = await asyncio.to_thread(
            subprocess.run, [str(program), endpoint, *pairs], capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = [line.split() for line in done.stdout.splitlines()]

    def received(topic: str) -> list[list[str]]:
        return [words[2:] for words in lines if words[:2] == ["received", topic]]

    normal, fifo, delay, transaction = topics
    assert len({words[1] for words in lines if words[0] == "sent"}) == 8
    assert sorted(received(normal)) == [[f"m{n}", "t", f"k{n}", str(n), "-", "1"] for n in range(8)]
    for group in "xy":
        assert [words[0] for words in received(fifo) if words[4] == group] == [f"{group}{n}" for n in range(5)]
    assert [words[0] for words in received(delay)] == ["later"]
    assert ["early", "false"] in lines
    assert [words[1] for words in lines if words[0] == "asked"] == ["asked"]
    assert sorted(words[0] for words in received(transaction)) == ["asked", "kept"]
