"""A store moves between the two brokers: what one wrote and closed, the other opens, reads and goes on writing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.aged_stores import LOG_BEGINS, QUEUE_BEGINS, make_aged_store
from tests.interop import apache, stores
from tests.interop.compare import assert_same_views, variety
from tests.interop.ours import OurProcess
from tests.interop.reading import java_pull_all, pull_all

from sprocketmq import AdminClient, Message, Producer
from sprocketmq.storage.bulk.rebuild import rebuild
from sprocketmq.storage.store import MessageStore

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

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

    def ours(self, run: str, settings: Mapping[str, object] | None = None) -> OurProcess:
        """Run it as our broker; with default file sizes unless told otherwise."""
        options = ["--namesrv", self.namesrv, "--port", str(self.port), "--store", str(self.store)]
        options += [f"--set={key}={value}" for key, value in (settings or {}).items()]
        return OurProcess(self.home / self.name / run, "broker", *options, "--name", self.name, "--cluster", CLUSTER)

    def apaches(self, run: str, settings: Mapping[str, str] | None = None) -> apache.ApacheBroker:
        """Run it as Apache's broker; with default file sizes unless told otherwise: it opens a store only with those it was written with."""
        directory = self.home / self.name / run
        where = {"name": self.name, "cluster": CLUSTER, "store": self.store, "port": self.port}
        return apache.ApacheBroker(directory, self.namesrv, settings=settings or {}, **where)  # type: ignore[arg-type]


@pytest.fixture
def moving(home: Path, own_namesrv: apache.ApacheNamesrv) -> Moving:
    port = apache.broker_port()
    return Moving(home, own_namesrv.address, f"moving-{port}", port)


async def write(java: apache.JavaClient, namesrv: str, topic: str, count: int) -> None:
    """Send messages of all kinds, by both clients."""
    async with Producer("moving_producer", namesrv=namesrv) as producer:
        for described in variety(topic):
            await producer.send(Message(**described))
        await producer.send_batch([Message(topic, b"%d" % i, tag="T") for i in range(count)])
    java.send(namesrv, variety(topic))


@pytest.mark.long
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


async def test_a_store_after_years_of_traffic_moves(java: apache.JavaClient, moving: Moving) -> None:
    """Log offsets of 32 TiB and queue offsets beyond 2^33 mean the same to both brokers and both clients."""
    namesrv, plain, batches, queues = moving.namesrv, "AgedPlain", "AgedBatches", 2
    make_aged_store(moving.store, plain, batches, queues)
    with moving.ours("before"):
        async with Producer("moving_producer", namesrv=namesrv) as producer:
            for topic in (plain, batches):
                for at in range(queues):
                    (queue,) = [queue for queue in await producer.queues(topic) if queue.queue_id == at]
                    await producer.send_batch([Message(topic, b"%d" % i, keys=[f"new.{i}"], queue=queue) for i in range(100)])
        java.send_batch(namesrv, [{"topic": plain, "body": b"java", "keys": ["java"]}])
        said = {topic: await pull_all(namesrv, topic) for topic in (plain, batches)}
        assert_java_reads(java, namesrv, said)
    for topic, first in ((plain, 1), (batches, 3)):
        offsets = [view["queue_offset"] for view in said[topic] if view["queue_id"] == 0]
        assert offsets[: first + 100] == [QUEUE_BEGINS + i for i in range(first + 100)]
    with moving.apaches("between"):
        assert_java_reads(java, namesrv, said)
        assert_same_views([java.view(namesrv, plain, said[plain][-1]["offset_msg_id"])], said[plain][-1:])
        assert [view["body"] for view in java.query(namesrv, plain, "1.0")] == [b"1.0"]
        result = java.send(namesrv, [{"topic": plain, "body": b"apache", "keys": ["apache"]}])[0]
        assert result["queue_offset"] > QUEUE_BEGINS + 100
    with moving.ours("after"):
        after = {topic: await pull_all(namesrv, topic) for topic in (plain, batches)}
        assert_java_reads(java, namesrv, after)
        async with AdminClient(namesrv=namesrv) as admin:
            assert [message.body for message in await admin.query_by_key(plain, "apache")] == [b"apache"]
            assert [message.queue_offset for message in await admin.query_by_key(batches, "0.2")] == [QUEUE_BEGINS + 2]
    assert [view for view in after[plain] if view["body"] != b"apache"] == said[plain]
    assert after[batches] == said[batches]
    assert min((moving.store / "commitlog").iterdir()).name == f"{LOG_BEGINS:020d}"


# --- stores with everything in them, in many small files ---


def assert_java_reads(java: apache.JavaClient, namesrv: str, said: stores.Listing) -> None:
    """Assert that Apache's pull consumer reads from the running broker what the store's writer said is in it, field by field."""
    for topic, views in said.items():
        assert_same_views(java_pull_all(java, namesrv, topic), views)


def keyed(views: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages from the begin, the middle and the end of a listing."""
    return [views[at] for at in (0, len(views) // 2, -1)]


def assert_queries_find(java: apache.JavaClient, namesrv: str, names: stores.Names, said: stores.Listing) -> None:
    """Assert that messages are found by key, unique key and offset id, by Apache's client and by its admin tool."""
    for topic in (names.plain, names.retry):
        for view in keyed(said[topic]):
            key = view["keys"][0]
            expected = [other["msg_id"] for other in said[topic] if key in other["keys"]]
            assert [found["msg_id"] for found in java.query(namesrv, topic, key)] == expected
            assert_same_views([java.view(namesrv, topic, view["msg_id"])], [view])
            assert_same_views([java.view(namesrv, topic, view["offset_msg_id"])], [view])
            lines = java.mqadmin("queryMsgByKey", "-n", namesrv, "-t", topic, "-k", key).splitlines()
            rows = [line.split()[:3] for line in lines if line.strip() and not line.startswith("#")]
            assert [view["msg_id"], str(view["queue_id"]), str(view["queue_offset"])] in rows


def assert_admin_tool_tells(
    java: apache.JavaClient, namesrv: str, names: stores.Names, said: stores.Listing, low: Mapping[str, list[int]] | None = None
) -> None:
    """Assert that topicStatus has each queue's min and max offset, and consumerProgress the offsets that came with the store."""
    for topic in (names.plain, names.batch):
        printed = java.mqadmin("topicStatus", "-n", namesrv, "-t", topic)
        found = [line.split()[1:4] for line in printed.splitlines() if line.startswith("moving-")]
        ends = [[view["queue_offset"] + 1 for view in said[topic] if view["queue_id"] == queue][-1] for queue in range(names.queues[topic])]
        begins = low[topic] if low else [0] * len(ends)
        assert found == [[str(queue), str(begins[queue]), str(end)] for queue, end in enumerate(ends)], printed
    printed = java.mqadmin("consumerProgress", "-n", namesrv, "-g", names.group)
    consumed = [line.split()[2:5:2] for line in printed.splitlines() if line.startswith(names.plain)]
    assert consumed == [["0", "10"], ["1", "20"], ["2", "30"]], printed


def append_by_apaches_client(
    java: apache.JavaClient, namesrv: str, names: stores.Names, said: stores.Listing, word: bytes
) -> list[dict[str, Any]]:
    """Send to the plain and the batch topic, and assert that every message got the offset behind its queue's last one."""
    ends: dict[tuple[str, int], int] = {}
    for topic, views in said.items():
        for view in views:
            ends[topic, view["queue_id"]] = view["queue_offset"] + 1
    results = []
    for number in range(6):
        for topic in (names.plain, names.batch):
            messages = [
                {"topic": topic, "body": b"%b %d %d" % (word, number, i), "keys": [f"{word.decode()}-{number}"]} for i in range(1 + number)
            ]
            result = java.send_batch(namesrv, messages) if number else java.send(namesrv, messages)[0]
            assert result["queue_offset"] == ends[topic, result["queue_id"]]
            ends[topic, result["queue_id"]] += len(messages)
            results.append(result)
    return results


def assert_grown(names: stores.Names, after: stores.Listing, before: stores.Listing, word: bytes) -> None:
    """Assert that a listing has everything an earlier one had, and behind it what `append_by_apaches_client` sent."""
    for topic, views in before.items():
        new = [view for view in after[topic] if view["body"].startswith(word + b" ")]
        assert_same_views([view for view in after[topic] if not view["body"].startswith(word + b" ")], views)
        assert len(new) == (sum(range(1, 7)) if topic in (names.plain, names.batch) else 0)


@pytest.mark.parametrize("how", ["clean", pytest.param("killed", marks=pytest.mark.long)])
async def test_a_store_of_ours_with_everything_in_it_moves_there_and_back(java: apache.JavaClient, moving: Moving, how: str) -> None:
    """Written by our engine (closed, or killed by SIGKILL), gone on with by Apache's broker (killed, or stopped), then by ours (stopped, or killed)."""
    namesrv = moving.namesrv
    names = stores.Names(how)
    said = stores.write_in_a_process(moving.store, moving.port, names, how)
    broker = moving.apaches("between", stores.APACHE_SETTINGS)
    try:
        assert_java_reads(java, namesrv, said)
        assert_queries_find(java, namesrv, names, said)
        assert_admin_tool_tells(java, namesrv, names, said)
        append_by_apaches_client(java, namesrv, names, said, b"apache")
    finally:
        if how == "clean":
            broker.kill()
        else:
            broker.stop()
    with moving.ours("after", stores.OUR_SETTINGS) as ours:
        listed = {topic: await pull_all(namesrv, topic) for topic in names.queues}
        assert_grown(names, listed, said, b"apache")
        assert_java_reads(java, namesrv, listed)
        assert_queries_find(java, namesrv, names, listed)
        append_by_apaches_client(java, namesrv, names, listed, b"ours")
        if how == "killed":
            ours.kill()
    assert_grown(names, stores.read_closed(moving.store, names), listed, b"ours")


@pytest.mark.long
async def test_apaches_broker_takes_a_store_whose_old_segments_we_deleted_and_whose_files_we_rebuilt(
    java: apache.JavaClient, moving: Moving
) -> None:
    namesrv = moving.namesrv
    names = stores.Names("deleted")
    said = stores.write_in_a_process(moving.store, moving.port, names, "clean")
    store = MessageStore(stores.store_config(moving.store))
    store.open()
    third = store.segments()[2][0]
    assert len(store.delete_before(third)) >= 2
    left = stores.listing(store, names)
    begins = {topic: [store.min_offset(topic, queue) for queue in range(names.queues[topic])] for topic in names.queues}
    store.close()
    for topic, views in said.items():
        assert_same_views(left[topic], [view for view in views if view["commitlog_offset"] >= third])
    rebuild(moving.store, None)
    broker = moving.apaches("between", stores.APACHE_SETTINGS)
    try:
        assert_java_reads(java, namesrv, left)
        assert_admin_tool_tells(java, namesrv, names, left, begins)
        for view in keyed(left[names.plain]):
            assert_same_views([java.view(namesrv, names.plain, view["msg_id"])], [view])
        append_by_apaches_client(java, namesrv, names, left, b"apache")
    finally:
        broker.kill()
    with moving.ours("after", stores.OUR_SETTINGS):
        listed = {topic: await pull_all(namesrv, topic) for topic in names.queues}
        assert_grown(names, listed, left, b"apache")
        assert_java_reads(java, namesrv, listed)
    assert_same_views(stores.read_closed(moving.store, names)[names.plain], listed[names.plain])
