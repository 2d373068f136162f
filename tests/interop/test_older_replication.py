"""Masters and slaves of ours and of older releases of Apache's: equal logs, queues and tables, and a reader when the master is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.interop import apache, replicating
from tests.interop.ours import OurProcess
from tests.interop.replicating import (
    CLUSTER,
    COPIED_S,
    OLDER_FIELDS,
    Broker,
    OurBroker,
    apache_broker,
    assert_same_logs,
    assert_same_queues,
    messages,
    runtime,
)
from tests.interop.test_older_versions import RELEASES
from tests.interop.test_replication_takeover import QUEUES, read_on

from sprocketmq import sync
from sprocketmq.testing import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600), pytest.mark.long]

TOPIC, GROUP, READ_ON = "OlderCopied", "older_copied", "OlderReadOn"
COUNT = 300


def fill(java: apache.JavaClient, namesrv: str) -> None:
    """Create topics, send single, batched and delayed messages, and consume them as a group."""
    with sync.AdminClient(namesrv=namesrv) as admin:
        admin.create_topic(TOPIC, queues=3, cluster=CLUSTER)
        admin.create_topic(READ_ON, queues=QUEUES, cluster=CLUSTER)
    results = java.send(namesrv, messages(TOPIC, range(200), 4000))
    results += [java.send_batch(namesrv, messages(TOPIC, range(at, at + 20), 3000)) for at in range(200, 300, 20)]
    results += java.send(namesrv, [one | {"delay_level": 1} for one in messages(TOPIC, range(5))])
    assert {result["status"] for result in results} == {"SEND_OK"}
    assert len(java.consume(namesrv, GROUP, TOPIC, COUNT + 5)) == COUNT + 5


def tables(broker: Broker) -> dict[str, Any]:
    """Return what a broker has saved of the topic and its group."""
    return replicating.tables(broker, [TOPIC], GROUP, TOPIC, OLDER_FIELDS)


@pytest.mark.parametrize("version", [*RELEASES])
def test_our_slave_of_an_older_master(tmp_path: Path, java: apache.JavaClient, version: str, request: pytest.FixtureRequest) -> None:
    namesrv = apache.ApacheNamesrv(tmp_path / "namesrv", version=version)
    request.addfinalizer(namesrv.kill)
    master = apache_broker(tmp_path / "master", namesrv.address, "broker-older", version=version)
    request.addfinalizer(master.kill)
    fill(java, namesrv.address)
    slave = OurBroker(tmp_path / "slave", namesrv.address, "broker-older", slave=True)
    request.addfinalizer(slave.stop)
    assert_same_logs(slave, master)
    assert_same_queues(slave, master, {TOPIC: 3, "SCHEDULE_TOPIC_XXXX": 1})
    wait_until(lambda: sum(tables(master)["offsets"].values()) == COUNT + 5, timeout_s=30)
    wait_until(lambda: tables(slave) == tables(master), timeout_s=30)
    read_on(java, namesrv.address, READ_ON, master, slave)


@pytest.mark.parametrize("version", [*RELEASES])
def test_an_older_slave_of_our_master(tmp_path: Path, java: apache.JavaClient, version: str, request: pytest.FixtureRequest) -> None:
    namesrv = OurProcess(tmp_path / "namesrv", "namesrv", "--port", "0")
    request.addfinalizer(namesrv.stop)
    master = OurBroker(tmp_path / "master", namesrv.namesrv, "broker-newer", role="SYNC_MASTER", slave_timeout_s=1)
    request.addfinalizer(master.stop)
    with sync.AdminClient(namesrv=namesrv.namesrv) as admin:
        admin.create_topic(TOPIC, queues=3, cluster=CLUSTER)
    slave = apache_broker(tmp_path / "slave", namesrv.namesrv, "broker-newer", version=version, brokerId="1")
    request.addfinalizer(slave.kill)
    wait_until(lambda: runtime(master)["slaveCount"] == "1", timeout_s=COPIED_S)
    fill(java, namesrv.namesrv)
    assert_same_logs(slave, master)
    assert_same_queues(slave, master, {TOPIC: 3, "SCHEDULE_TOPIC_XXXX": 1})
    wait_until(lambda: sum(tables(master)["offsets"].values()) == COUNT + 5, timeout_s=30)
    wait_until(lambda: tables(slave) == tables(master), timeout_s=COPIED_S)
    read_on(java, namesrv.namesrv, READ_ON, master, slave)
