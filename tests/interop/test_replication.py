"""Masters and slaves of different makes: equal logs, queues and tables, what SYNC_MASTER answers, and readers when a master is killed."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop import apache, replicating
from tests.interop.ours import OurProcess
from tests.interop.replicating import (
    CLUSTER,
    COPIED_S,
    SEGMENT_BYTES,
    Broker,
    OurBroker,
    apache_broker,
    assert_same_logs,
    assert_same_queues,
    caught_up,
    complaints,
    log_end,
    messages,
    runtime,
)
from tests.interop.test_replication_takeover import QUEUES, read_on
from tests.waiting import freeze

from sprocketmq import sync
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage.store import MessageStore, StoreConfig
from sprocketmq.testing import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

# What Apache's slave warns of at each start: no master before its first registration, and a topic of its own that it removes twice.
EXPECTED_WARNINGS = re.compile(r" HAClient connect to master null failed$|delete topic config failed, topic: rmq_sys_wheel_timer ")


class Topics:
    """The topics of one test, and how many queues each has."""

    def __init__(self, word: str) -> None:
        self.plain, self.batch, self.read_on, self.group = f"Plain{word}", f"Batch{word}", f"ReadOn{word}", f"group_{word}"
        self.queues = {self.plain: 3, self.batch: 2}
        self.all_queues = self.queues | {"SCHEDULE_TOPIC_XXXX": 2}

    def create(self, namesrv: str) -> None:
        with sync.AdminClient(namesrv=namesrv) as admin:
            admin.create_topic(self.plain, queues=3, cluster=CLUSTER)
            admin.create_topic(self.read_on, queues=QUEUES, cluster=CLUSTER)
            admin.create_topic(self.batch, queues=2, cluster=CLUSTER, attributes={"queue.type": "BatchCQ"})

    def fill(self, java: apache.JavaClient, namesrv: str, start: int = 0) -> set[str]:
        """Send single, explicitly batched and delayed messages, two files of the log, and return the statuses of all sends."""
        results = java.send(namesrv, messages(self.plain, range(start, start + 400), 4000))
        results += [java.send_batch(namesrv, messages(self.plain, range(at, at + 20), 3000)) for at in range(start, start + 200, 20)]
        results += java.send(namesrv, [one | {"delay_level": 1} for one in messages(self.plain, range(start, start + 5))])
        return {result["status"] for result in results}

    def fill_batch_queues(self, java: apache.JavaClient, namesrv: str, start: int = 0) -> set[str]:
        """Send batches that are kept whole, and return the statuses of all sends."""
        results = java.send_auto_batch(namesrv, messages(self.batch, range(start, start + 200), 300))
        results += [java.send_batch(namesrv, messages(self.batch, range(at, at + 10), 300)) for at in range(start, start + 50, 10)]
        return {result["status"] for result in results}


@pytest.fixture
def our_namesrv(tmp_path: Path) -> Iterator[str]:
    with OurProcess(tmp_path, "namesrv", "--port", "0") as process:
        yield process.namesrv


def test_apaches_slave_of_our_sync_master(home: Path, java: apache.JavaClient, our_namesrv: str, request: pytest.FixtureRequest) -> None:
    root, namesrv, topics, name = home / "apaches-slave", our_namesrv, Topics("Theirs"), "broker-theirs"
    port = apache.broker_port()

    def start_master() -> OurBroker:
        started = OurBroker(root / "master", namesrv, name, port=port, role="SYNC_MASTER", slave_timeout_s=1)
        request.addfinalizer(started.stop)
        return started

    def status() -> str:
        (result,) = java.send(namesrv, messages(topics.plain, range(1)))
        answered: str = result["status"]
        return answered

    master = start_master()
    topics.create(namesrv)
    slave = apache_broker(root / "slave", namesrv, name, brokerId="1")
    request.addfinalizer(slave.kill)
    wait_until(lambda: runtime(master)["slaveCount"] == "1", timeout_s=COPIED_S)
    assert topics.fill(java, namesrv) == {"SEND_OK"}
    assert len(java.consume(namesrv, topics.group, topics.plain, 605)) == 605
    # Apache's slave copies the tables a minute after its start and then every minute.
    wait_until(lambda: sum(tables(master, topics)["offsets"].values()) == 605, timeout_s=30)
    wait_until(lambda: tables(slave, topics) == tables(master, topics), timeout_s=COPIED_S)
    # A record does not tell which kind of queue it belongs to, so a slave of Apache's has to know the topic before.
    assert topics.fill_batch_queues(java, namesrv) == {"SEND_OK"}
    assert assert_same_logs(slave, master) > 2 * SEGMENT_BYTES
    queues = assert_same_queues(slave, master, topics.all_queues)
    assert sum(end for queue, (_, end) in queues.items() if queue.startswith(topics.batch)) == 250
    assert [line for line in complaints(slave) if not EXPECTED_WARNINGS.search(line)] == []

    freeze(slave.process.pid)
    assert status() == "FLUSH_SLAVE_TIMEOUT"
    slave.process.send_signal(signal.SIGCONT)
    caught_up(slave, master)
    assert status() == "SEND_OK"

    read_on(java, namesrv, topics.read_on, master, slave)
    master = start_master()
    wait_until(lambda: runtime(master)["slavesInSync"] == "1", timeout_s=COPIED_S)
    assert status() == "SEND_OK"
    assert_same_logs(slave, master)
    slave.kill()
    assert status() == "SLAVE_NOT_AVAILABLE"


def tables(broker: Broker, topics: Topics) -> dict[str, Any]:
    """Return what a broker has saved of these topics and their group."""
    return replicating.tables(broker, topics.queues, topics.group, topics.plain)


def test_our_slave_of_apaches_master(
    home: Path, java: apache.JavaClient, own_namesrv: apache.ApacheNamesrv, request: pytest.FixtureRequest
) -> None:
    root, namesrv, topics, name = home / "our-slave", own_namesrv.address, Topics("Ours"), "broker-ours-follows"
    port = apache.broker_port()

    def start_master() -> apache.ApacheBroker:
        started = apache_broker(root / "master", namesrv, name, port=port)
        request.addfinalizer(started.kill)
        return started

    def start_slave(directory: str = "slave", broker_id: int = 1) -> OurBroker:
        started = OurBroker(root / directory, namesrv, name, slave=True, broker_id=broker_id)
        request.addfinalizer(started.stop)
        return started

    master = start_master()
    topics.create(namesrv)
    topics.fill(java, namesrv)
    topics.fill_batch_queues(java, namesrv)
    assert len(java.consume(namesrv, topics.group, topics.plain, 605)) == 605
    slave = start_slave()
    assert assert_same_logs(slave, master) > 2 * SEGMENT_BYTES
    assert_same_queues(slave, master, topics.all_queues)
    wait_until(lambda: sum(tables(master, topics)["offsets"].values()) == 605, timeout_s=30)
    wait_until(lambda: tables(slave, topics) == tables(master, topics), timeout_s=30)

    slave.kill()
    shutil.copytree(root / "slave", root / "parted")
    topics.fill(java, namesrv, 1000)
    slave = start_slave()
    caught_up(slave, master)
    master.kill()
    master = start_master()
    topics.fill(java, namesrv, 2000)
    topics.fill_batch_queues(java, namesrv, 2000)
    assert_same_logs(slave, master)
    assert_same_queues(slave, master, topics.all_queues)

    write(root / "parted" / "store", topics.plain)
    write(root / "stranger" / "store", "Elsewhere")
    assert_refused(start_slave("parted", 2), "diverged", master)
    assert_refused(start_slave("stranger", 3), "refused", master)

    read_on(java, namesrv, topics.read_on, master, slave)


def test_our_slave_acknowledges_to_apaches_sync_master(
    home: Path, java: apache.JavaClient, own_namesrv: apache.ApacheNamesrv, request: pytest.FixtureRequest
) -> None:
    root, namesrv, name, topic = home / "acknowledging", own_namesrv.address, "broker-acknowledged", "Acknowledged"
    waiting = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "1000"}  # with 1, the default, it waits for none
    master = apache_broker(root / "master", namesrv, name, **waiting)
    request.addfinalizer(master.kill)
    with sync.AdminClient(namesrv=namesrv) as admin:
        admin.create_topic(topic, queues=1, cluster=CLUSTER)
    slave = OurBroker(root / "slave", namesrv, name, slave=True)
    request.addfinalizer(slave.stop)
    wait_until(lambda: runtime(slave)["replicationState"] == "following", timeout_s=30)

    def statuses(numbers: range) -> list[str]:
        return [result["status"] for result in java.send(namesrv, messages(topic, numbers))]

    assert statuses(range(20)) == ["SEND_OK"] * 20
    freeze(slave.process.pid)
    assert statuses(range(20, 21)) == ["FLUSH_SLAVE_TIMEOUT"]
    slave.process.send_signal(signal.SIGCONT)
    assert_same_logs(slave, master)
    assert statuses(range(21, 22)) == ["SEND_OK"]
    assert assert_same_queues(slave, master, {topic: 1}) == {f"{topic} 0": (0, 22)}


def write(store: Path, topic: str) -> None:
    """Write messages into a store that is closed, as another broker."""
    opened = MessageStore(StoreConfig(store, commitlog_segment_bytes=SEGMENT_BYTES, preallocate=False))
    opened.open()
    for number in range(300):
        facts = {"tags_code": 0, "born_timestamp_ms": 1_700_000_000_000, "born_host": pack_host("127.0.0.1", 40001)}
        opened.stage_message(topic, 0, b"elsewhere %d" % number, b"", **facts)
    opened.commit()
    opened.close()


def assert_refused(slave: OurBroker, state: str, master: Broker) -> None:
    """Assert that a slave does not follow, says so in one line with the ends of both logs, and leaves its own as it is."""
    end = log_end(slave)
    wait_until(lambda: runtime(slave)["replicationState"] == state, timeout_s=30)
    (line,) = (line for line in slave.log.read_text().splitlines() if " ERROR " in line)
    told = [int(number) for number in re.findall(r" to (\d+)", line)]
    assert end in told
    assert any(end < number <= log_end(master) for number in told)  # the master's log may have grown since
    assert log_end(slave) == end
    slave.stop()
