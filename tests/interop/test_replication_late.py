"""Slaves that come when the log has several files already, and does not begin at 0 any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.ours import OurProcess
from tests.interop.replicating import (
    CLUSTER,
    COPIED_S,
    SEGMENT_BYTES,
    Broker,
    OurBroker,
    apache_broker,
    assert_same_queues,
    caught_up,
    log_bytes,
    messages,
    queue_offsets,
    runtime,
)

from sprocketmq import sync
from sprocketmq.testing import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def fill(java: apache.JavaClient, namesrv: str, topic: str, start: int = 0) -> None:
    """Send 700 messages, two and a half files of the log."""
    java.send(namesrv, messages(topic, range(start, start + 100), 4000))
    for at in range(start + 100, start + 700, 20):
        java.send_batch(namesrv, messages(topic, range(at, at + 20), 4000))


def ends(broker: Broker, topic: str) -> list[int]:
    return [end for _, end in queue_offsets(broker, {topic: 2}).values()]


@pytest.mark.long
def test_apaches_late_slave_of_our_master(home: Path, java: apache.JavaClient, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """It asks for the last file only, as of a master of its own kind."""
    root, name = home / "late-apaches", "broker-late-theirs"
    process = OurProcess(tmp_path, "namesrv", "--port", "0")
    request.addfinalizer(process.stop)
    namesrv = process.namesrv
    master = OurBroker(root / "master", namesrv, name, port=apache.broker_port())
    request.addfinalizer(master.stop)
    with sync.AdminClient(namesrv=namesrv) as admin:
        admin.create_topic("Late", queues=2, cluster=CLUSTER)
    fill(java, namesrv, "Late")
    slave = apache_broker(root / "slave", namesrv, name, brokerId="1")
    request.addfinalizer(slave.kill)
    wait_until(lambda: runtime(master)["slaveCount"] == "1", timeout_s=COPIED_S)
    fill(java, namesrv, "Late", 1000)
    end = caught_up(slave, master)
    begin = int(runtime(slave)["commitLogMinOffset"])
    assert begin == 2 * SEGMENT_BYTES
    assert log_bytes(slave, end - begin) == log_bytes(master, end)[begin:]
    wait_until(lambda: ends(slave, "Late") == ends(master, "Late"), timeout_s=30)
    assert all(low > 0 for low, _ in queue_offsets(slave, {"Late": 2}).values())
    slave.kill()


@pytest.mark.long
def test_our_slave_of_apaches_trimmed_master(
    home: Path, java: apache.JavaClient, own_namesrv: apache.ApacheNamesrv, request: pytest.FixtureRequest
) -> None:
    root, namesrv, name = home / "late-ours", own_namesrv.address, "broker-late-ours"
    port = apache.broker_port()
    master = apache_broker(root / "master", namesrv, name, port=port)
    request.addfinalizer(master.kill)
    with sync.AdminClient(namesrv=namesrv) as admin:
        admin.create_topic("LateOurs", queues=2, cluster=CLUSTER)
    fill(java, namesrv, "LateOurs")
    master.kill()
    (master.store / "commitlog" / f"{0:020d}").unlink()
    master = apache_broker(root / "master", namesrv, name, port=port)
    request.addfinalizer(master.kill)
    for start in (1000, 2000):
        slave = OurBroker(root / "slave", namesrv, name, slave=True)
        request.addfinalizer(slave.stop)
        end = caught_up(slave, master)
        assert log_bytes(slave, end - SEGMENT_BYTES) == log_bytes(master, end - SEGMENT_BYTES)
        fill(java, namesrv, "LateOurs", start)
        end = caught_up(slave, master)
        assert runtime(slave)["commitLogMinOffset"] == runtime(master)["commitLogMinOffset"] == str(SEGMENT_BYTES)
        assert log_bytes(slave, end - SEGMENT_BYTES) == log_bytes(master, end - SEGMENT_BYTES)
        found = assert_same_queues(slave, master, {"LateOurs": 2})
        assert all(low > 0 for low, _ in found.values())
        slave.kill()
