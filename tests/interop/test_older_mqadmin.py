"""The admin tool of older releases at our servers: whoever runs a cluster has a tool of its age."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.mqadmin_commands import CASES
from tests.interop.ours import OurProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900), pytest.mark.long]

CLUSTER, BROKER, TOPIC, GROUP = "DefaultCluster", "broker-a", "Read", "reading"
# Users and policies, which our servers have with access control only.
SECURED = re.compile("(create|update|get|list|copy|delete)(User|Acl)$")
# These releases take the id that has the address in it.
BY_OFFSET_ID = "queryMsgById"
# The file of users that came before ACL 2.0, which the tool changes through the broker.
OLD_ACCESS_CONTROL = {"clusterAclConfigVersion", "deleteAclConfig", "getAclConfig", "updateAclConfig", "updateGlobalWhiteAddr"}


@pytest.mark.parametrize("version", ["4.9.7", "5.1.4", "5.3.3"])
def test_the_commands_of_an_older_tool_work(tmp_path: Path, java: apache.JavaClient, version: str, request: pytest.FixtureRequest) -> None:
    tool = apache.AdminTool(tmp_path / "tool", version)
    listed = {line.split()[0] for line in tool.run().splitlines() if line.startswith("   ")}
    assert listed >= {"updateTopic", "clusterList", "consumerProgress", "resetOffsetByTime"}
    serve = ("serve", "--namesrv-port", "0", "--port", "0", "--store", str(tmp_path / "store"))
    ours = OurProcess(tmp_path / "servers", *serve, "--set=ha_port=0", "--set=trace_topic_enable=true")
    request.addfinalizer(ours.stop)
    facts = {"cluster": CLUSTER, "broker": ours.broker, "broker_name": BROKER, "namesrv": ours.namesrv, "home": str(tmp_path)}
    facts |= {name: str(tmp_path / name) for name in ("topics", "groups")}
    (tmp_path / "topics").write_text('[{"topicName": "Listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]')
    (tmp_path / "groups").write_text('[{"groupName": "listed_group"}]')
    tool.run("updateTopic", "-n", ours.namesrv, "-c", CLUSTER, "-t", TOPIC, "-r", "1", "-w", "1")
    (sent, *_) = java.send(ours.namesrv, [{"topic": TOPIC, "body": b"body", "keys": "key1"}] * 3)
    wrong: dict[str, str] = {}
    done = 0
    with java.push_consumer(ours.namesrv, GROUP, TOPIC) as consumer:
        assert len(consumer.take(3)) == 3
        for case in CASES:
            if case.command not in listed or SECURED.search(case.command):
                continue
            by_offset_id = case.command == BY_OFFSET_ID and version < "5.3"
            as_expected, printed = case.run(tool.run, facts, f"-i {sent['offset_msg_id']}" if by_offset_id else "")
            done += 1
            if not as_expected:
                wrong[case.command] = printed[:1000]
    assert not wrong, "\n\n".join(f"{command}:\n{printed}" for command, printed in wrong.items())
    assert done >= 45
    unknown = listed - {case.command for case in CASES} - OLD_ACCESS_CONTROL
    assert unknown <= {"startMonitoring", "clusterRT"}
