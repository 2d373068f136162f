"""Stores that Apache's broker is writing, was killed over, has closed: they verify as what they are, and so does what we make of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.compare import variety
from tests.interop.reading import java_pull_all

from sprocketmq import Message, Producer
from sprocketmq.storage.inspect.findings import NOTE
from sprocketmq.storage.inspect.overview import overview_of
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.inspect.verification import verify

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

CLUSTER = "VerifiedCluster"


async def write(java: apache.JavaClient, namesrv: str, topic: str, count: int) -> None:
    async with Producer("verified_producer", namesrv=namesrv) as producer:
        for i in range(0, count, 100):
            await producer.send_batch([Message(topic, b"%d" % (i + k), tag=f"T{k % 3}", keys=[f"k{i + k}"]) for k in range(100)])
    java.send(namesrv, variety(topic))


def findings(store: Path) -> list[tuple[str, str]]:
    return [(found.severity, found.kind) for found in verify(str(store)).findings]


@pytest.mark.long
async def test_a_store_of_apaches_broker_in_use_killed_and_closed(
    java: apache.JavaClient, home: Path, apache_namesrv: apache.ApacheNamesrv
) -> None:
    namesrv, store, port = apache_namesrv.address, home / "verified" / "store", apache.broker_port()

    def start(run: str) -> apache.ApacheBroker:
        """With its default file sizes and services: timer wheel, compaction, a RocksDB database for transactions."""
        return apache.ApacheBroker(home / "verified" / run, namesrv, name="verified", cluster=CLUSTER, store=store, port=port, settings={})

    broker = start("first")
    try:
        java.mqadmin("updateTopic", "-n", namesrv, "-c", CLUSTER, "-t", "Verified", "-r", "3", "-w", "3")
        java.mqadmin("updateTopic", "-n", namesrv, "-c", CLUSTER, "-t", "VerifiedBatch", "-r", "1", "-w", "1", "-a", "+queue.type=BatchCQ")
        await write(java, namesrv, "Verified", 2000)
        await write(java, namesrv, "VerifiedBatch", 500)
        in_use = findings(store)
        assert {severity for severity, _ in in_use} == {NOTE}
        assert len(java_pull_all(java, namesrv, "Verified")) == 2000 + len(variety("Verified"))
    finally:
        broker.kill()
    killed = findings(store)
    assert (NOTE, "in use") in killed
    assert {severity for severity, _ in killed} == {NOTE}
    with start("second"):
        await write(java, namesrv, "Verified", 100)
    assert [found for found in findings(store) if found[0] != NOTE] == []
    overview = overview_of(StoreDirectory(str(store)))
    assert overview.state == "stopped in order"
    assert sum(q.max_offset for q in overview.queues if q.topic == "Verified") == 2100 + 2 * len(variety("Verified"))
