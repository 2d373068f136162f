"""All commands of Apache's admin tool, run against ours: docs/guide/mqadmin.md says which work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.interop.apache import JavaClient
from tests.interop.mqadmin_commands import CASES, ENDLESS, Case
from tests.interop.secured import ADMIN, Secured, our_secured_servers

from sprocketmq.net.server_tls import TlsMode
from sprocketmq.testing import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "mqadmin.md"
TOPIC = "Read"


@pytest.fixture
def servers(tmp_path: Path, authority: Authority) -> Iterator[Secured]:
    """Our servers with access control, so that commands about users work, and with plain connections, for the client that all tests share."""
    with our_secured_servers(tmp_path / "commands", authority, mode=TlsMode.PERMISSIVE, ha_port=0, trace_topic_enable=True) as running:
        yield running


def test_the_guide_says_which_commands_work(java: JavaClient, servers: Secured, tmp_path: Path) -> None:
    admin = java.signed_by(ADMIN)
    listed = [line.split()[0] for line in admin.mqadmin().splitlines() if line.startswith("   ")]
    assert sorted(listed) == sorted([*(case.command for case in CASES), *ENDLESS])
    topics, groups = tmp_path / "topics.json", tmp_path / "groups.json"
    topics.write_text(json.dumps([{"topicName": "Listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]))
    groups.write_text(json.dumps([{"groupName": "listed_group"}]))
    facts = {
        "cluster": servers.cluster,
        "broker": servers.address,
        "broker_name": servers.broker,
        "namesrv": servers.namesrv,
        "topics": str(topics),
        "groups": str(groups),
        "home": str(tmp_path),
    }
    admin.mqadmin("updateTopic", "-n", servers.namesrv, "-c", servers.cluster, "-t", TOPIC, "-r", "1", "-w", "1")
    admin.send(servers.namesrv, [{"topic": TOPIC, "body": b"body"}] * 3)
    found: dict[str, str] = {}
    wrong: dict[str, str] = {}
    with admin.push_consumer(servers.namesrv, "reading", TOPIC) as consumer:
        assert len(consumer.take(3)) == 3
        for case in CASES:

            def as_expected(case: Case = case) -> bool:
                done, wrong[case.command] = case.run(admin.mqadmin, facts)
                return done

            if case.command == "queryMsgTraceById":
                wait_until(as_expected, what="the trace of a message")  # it is sent a little later than the message
            elif not as_expected():
                continue
            found[case.command] = f"refused: needs {case.lacks}" if case.lacks else "works"
            del wrong[case.command]
    assert not wrong, "\n\n".join(f"{command}:\n{printed[:1000]}" for command, printed in wrong.items())
    found |= dict.fromkeys(ENDLESS, "not run: it runs until it is stopped")
    table = "".join(f"| `{command}` | {found[command]} |\n" for command in listed)
    told = PAGE.read_text(encoding="utf-8")
    assert table in told, f"the table of {PAGE} must be\n{table}"
