"""Our slave: what Apache's admin tool shows of it and of its master, and a Java consumer that reads on from it when the master is killed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.ours import OurProcess
from tests.interop.replicating import CLUSTER, Broker, OurBroker, assert_same_logs, assert_same_queues, messages, numbers_by_queue, runtime

from sprocketmq import Message, sync

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

QUEUES = 4
COUNT = 2000
BEFORE = 200


def read_on(java: apache.JavaClient, namesrv: str, topic: str, master: Broker, slave: Broker) -> None:
    """Send, consume a part, kill the master with SIGKILL, and consume the rest: everything in the order of each queue."""
    with sync.Producer("taken_over", namesrv=namesrv) as producer:
        for start in range(0, COUNT, 100):
            producer.send_batch([Message(topic, b"%d" % number) for number in range(start, start + 100)])
    assert_same_logs(slave, master)
    assert_same_queues(slave, master, {topic: QUEUES})
    options: apache.ConsumerOptions = {"one_thread": True, "max_cached": 20, "poll_routes_ms": 1000, "pause_ms": 1}
    with java.push_consumer(namesrv, f"reads_on_{topic}", topic, **options) as consumer:
        received = consumer.take(BEFORE)
        master.kill()
        # The Java client asks for routes every second here, and waits 3 s after a failed pull.
        received += consumer.take(COUNT - len(received), 120)
    found = numbers_by_queue(received + consumer.rest)
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(COUNT))
    assert all(numbers == sorted(numbers) for numbers in found.values())


@pytest.mark.parametrize("nameserver", ["ours", "apaches"])
def test_a_java_consumer_reads_on_from_our_slave_of_our_master(
    home: Path, java: apache.JavaClient, nameserver: str, request: pytest.FixtureRequest
) -> None:
    """Before that, Apache's admin tool shows both."""
    topic, name, root = f"TakenOver-{nameserver}", f"broker-{nameserver}", home / f"takeover-{nameserver}"
    if nameserver == "ours":
        process = OurProcess(root / "namesrv", "namesrv", "--port", "0")
        request.addfinalizer(process.stop)
        namesrv = process.namesrv
    else:
        namesrv = request.getfixturevalue("own_namesrv").address
    master = OurBroker(root / "master", namesrv, name, role="SYNC_MASTER")
    request.addfinalizer(master.stop)
    slave = OurBroker(root / "slave", namesrv, name, slave=True)
    request.addfinalizer(slave.stop)
    shown = f"Shown-{nameserver}"
    with sync.AdminClient(namesrv=namesrv) as admin:
        admin.create_topic(shown, queues=2, cluster=CLUSTER)
        admin.create_topic(topic, queues=QUEUES, cluster=CLUSTER)
    assert [result["status"] for result in java.send(namesrv, messages(shown, range(4)))] == ["SEND_OK"] * 4
    assert_shown(java, namesrv, name, master, slave)
    read_on(java, namesrv, topic, master, slave)


def assert_shown(java: apache.JavaClient, namesrv: str, name: str, master: OurBroker, slave: OurBroker) -> None:
    """Assert that Apache's admin tool prints what is true of a master and its slave."""
    end = assert_same_logs(slave, master)

    def run(command: str, *where: str) -> list[list[str]]:
        return [line.split() for line in java.mqadmin(command, "-n", namesrv, *where).splitlines() if line.strip()]

    brokers = [row for row in run("clusterList") if row[1] == name]
    assert [[*row[:5], row[-1]] for row in brokers] == [
        [CLUSTER, name, "0", master.address, "V5_5_0", "true"],
        [CLUSTER, name, "1", slave.address, "V5_5_0", "true"],
    ]
    of_master = run("haStatus", "-b", master.address)
    assert of_master[:4] == [
        ["#MasterAddr", master.address],
        ["#MasterCommitLogMaxOffset", str(end)],
        ["#SlaveNum", "1"],
        ["#InSyncSlaveNum", "1"],
    ]
    ((_, acked, behind, _, state, sent),) = of_master[5:]
    assert (acked, behind, state, sent) == (str(end), "0", "OK", str(end))
    of_slave = {row[0]: row[1:] for row in run("haStatus", "-b", slave.address)}
    assert of_slave["#MasterAddr"] == [runtime(master)["haAddress"]]
    assert of_slave["#CommitLogMaxOffset"] == [str(end)]
    today = time.strftime("%Y")  # of the tool's time zone, which is not ours
    assert of_slave["#LastReadTime"][0].startswith(today)
    assert of_slave["#LastWriteTime"][0].startswith(today)
    for broker, broker_id, role in ((master, "0", "SYNC_MASTER"), (slave, "1", "SLAVE")):
        told = {row[0]: row[-1] for row in run("brokerStatus", "-b", broker.address)}
        assert (told["brokerId"], told["brokerRole"], told["commitLogMaxOffset"]) == (broker_id, role, str(end))
    epoch = ["#Epoch:", "EpochEntry{epoch=1,", "startOffset=0,", f"endOffset={end}}}"]
    found = run("getBrokerEpoch", "-b", name)
    assert sorted(row[1] for row in found if row[0] == "#brokerId") == ["0", "1"]
    assert [row for row in found if row[0] == "#Epoch:"] == [epoch, epoch]
