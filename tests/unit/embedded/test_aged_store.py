"""A store after years of traffic: offsets beyond 32 and 40 bits in the broker, its slave, the clients and the Arrow readers."""

import pyarrow as pa
import pytest
from tests.aged_stores import IN_BATCH, LOG_BEGINS, QUEUE_BEGINS, make_aged_store

from sprocketmq import Message, PushConsumer, sync
from sprocketmq.arrow import read_store, read_topic
from sprocketmq.embedded import LocalCluster
from sprocketmq.testing import eventually

TOPICS = {"plain": 1, "batches": IN_BATCH}  # with the number of messages in each queue


@pytest.fixture
def store(tmp_path):
    make_aged_store(tmp_path / "cluster" / "broker-a", *TOPICS, queues=2)
    return tmp_path / "cluster"


def offsets_of(batches):
    return sorted(pa.chunked_array([batch.column("queueOffset") for batch in batches]).to_pylist())


async def test_messages_are_sent_behind_the_old_ones_read_found_and_copied_to_a_slave(store):
    with LocalCluster(store=store, replicas=1) as mq:
        with sync.Producer("pg", namesrv=mq.namesrv) as producer:
            for topic, old in TOPICS.items():
                queue = producer.queues(topic)[0]
                sent = producer.send_batch([Message(topic, b"new", keys=["new"], queue=queue) for _ in range(5)])
                assert [result.queue_offset for result in sent] == [QUEUE_BEGINS + old + i for i in range(5)]
        expected = {
            topic: sorted([*range(QUEUE_BEGINS, QUEUE_BEGINS + old + 5), *range(QUEUE_BEGINS, QUEUE_BEGINS + old)])
            for topic, old in TOPICS.items()
        }
        for topic in TOPICS:
            assert offsets_of(read_topic(topic, namesrv=mq.namesrv)) == expected[topic]
        seen = {topic: [] for topic in TOPICS}
        async with PushConsumer("cg", list(TOPICS), namesrv=mq.namesrv, consume_from="first") as consumer:
            async for batch in consumer.batches():
                for message in batch:
                    seen[message.topic].append(message.queue_offset)
                batch.ack()
                if sum(map(len, seen.values())) == sum(map(len, expected.values())):
                    break
        assert {topic: sorted(found) for topic, found in seen.items()} == expected
        with sync.AdminClient(namesrv=mq.namesrv) as admin:
            for topic in TOPICS:
                assert [message.body for message in admin.query_by_key(topic, "1.0")] == [b"1.0"]
                assert len(admin.query_by_key(topic, "new")) == 5
        slave = store / "broker-a-1"
        await eventually(lambda: sum(batch.num_rows for batch in read_store(slave)) == sum(map(len, expected.values())))
    assert [path.name for path in (slave / "commitlog").iterdir()] == [f"{LOG_BEGINS:020d}"]
