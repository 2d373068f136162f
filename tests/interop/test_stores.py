"""A store moves between the two brokers: what one wrote and closed, the other opens, reads and goes on writing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.compare import variety
from tests.interop.ours import OurProcess
from tests.interop.reading import java_pull_all

from sprocketmq import AdminClient, Message, Producer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

CLUSTER = "MovingCluster"


@dataclass(frozen=True)
class Moving:
    """A broker that changes its make and keeps its name, port and store: clients go on with the address they know."""

    home: Path
    namesrv: str
    name: str
    port: int

    @property
    def store(self) -> Path:
        return self.home / self.name / "store"

    def ours(self, run: str) -> OurProcess:
        """Run it as our broker."""
        options = ("--namesrv", self.namesrv, "--port", str(self.port), "--store", str(self.store))
        return OurProcess(self.home / self.name / run, "broker", *options, "--name", self.name, "--cluster", CLUSTER)

    def apaches(self, run: str) -> apache.ApacheBroker:
        """Run it as Apache's broker. Its file sizes are the defaults, as are ours: a store opens only with those it was written with."""
        directory = self.home / self.name / run
        return apache.ApacheBroker(directory, self.namesrv, name=self.name, cluster=CLUSTER, store=self.store, port=self.port, settings={})


@pytest.fixture
def moving(home: Path, apache_namesrv: apache.ApacheNamesrv) -> Moving:
    port = apache.broker_port()
    return Moving(home, apache_namesrv.address, f"moving-{port}", port)


async def write(java: apache.JavaClient, namesrv: str, topic: str, count: int) -> None:
    """Send messages of all kinds, by both clients."""
    async with Producer("moving_producer", namesrv=namesrv) as producer:
        for described in variety(topic):
            await producer.send(Message(**described))
        await producer.send_batch([Message(topic, b"%d" % i, tag="T") for i in range(count)])
    java.send(namesrv, variety(topic))


async def test_apaches_broker_goes_on_with_our_store(java: apache.JavaClient, moving: Moving) -> None:
    namesrv, topic = moving.namesrv, "MovingToApache"
    with moving.ours("before"):
        async with AdminClient(namesrv=namesrv) as admin:
            await admin.create_topic(topic, queues=3, cluster=CLUSTER)
        await write(java, namesrv, topic, 500)
        before = java_pull_all(java, namesrv, topic)
        assert len(java.consume(namesrv, "moving_group", topic, len(before))) == len(before)
    with moving.apaches("between"):
        assert java_pull_all(java, namesrv, topic) == before
        # Its consumer groups came along: nothing is consumed twice, and what is new is.
        with java.push_consumer(namesrv, "moving_group", topic) as consumer:
            (result,) = java.send(namesrv, [{"topic": topic, "body": b"new"}])
            assert [message["msg_id"] for message in consumer.take(1)] == [result["msg_id"]]
    with moving.ours("after"):
        after = java_pull_all(java, namesrv, topic)
    assert [view for view in after if view["body"] != b"new"] == before
    assert [view["msg_id"] for view in after if view["body"] == b"new"] == [result["msg_id"]]


async def test_our_broker_goes_on_with_a_store_of_apaches_that_was_killed(java: apache.JavaClient, moving: Moving) -> None:
    namesrv, topic = moving.namesrv, "MovingFromApache"
    broker = moving.apaches("before")
    try:
        java.mqadmin("updateTopic", "-n", namesrv, "-c", CLUSTER, "-t", topic, "-r", "3", "-w", "3")
        await write(java, namesrv, topic, 500)
        before = java_pull_all(java, namesrv, topic)
    finally:
        broker.kill()
    with moving.ours("after"):
        assert java_pull_all(java, namesrv, topic) == before
        await write(java, namesrv, topic, 10)
        after = java_pull_all(java, namesrv, topic)
    known = {view["msg_id"] for view in before}
    assert [view for view in after if view["msg_id"] in known] == before
    assert len(after) == len(before) + 10 + 2 * len(variety(topic))
