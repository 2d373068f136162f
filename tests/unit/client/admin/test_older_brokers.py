"""Brokers of Apache's before 5.0, which refuse the question about one topic (351) and whose topics have no attributes."""

import pytest
from fake_cluster import answer

from sprocketmq import AdminClient
from sprocketmq.errors import ConfigError, TopicNotFound
from sprocketmq.protocol.bodies import BrokerData, ClusterInfo, TopicConfig, TopicConfigTable
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R


async def test_a_topic_is_found_among_all_of_the_broker(cluster):
    config = TopicConfig("t", read_queue_nums=3, write_queue_nums=3)
    table = TopicConfigTable({"t": config}).encode()
    cluster.broker.script(Q.GET_ALL_TOPIC_CONFIG, *[answer(R.SUCCESS, body=table), answer(R.SUCCESS, body=TopicConfigTable({}).encode())])
    async with AdminClient(namesrv=cluster.namesrv.address) as admin:
        assert await admin.topic_config("t") == {"broker-a": config}
        with pytest.raises(TopicNotFound, match="broker broker-a"):
            await admin.topic_config("t")


async def test_attributes_that_a_topic_cannot_have_are_refused(cluster):
    info = ClusterInfo({"broker-a": BrokerData("c", "broker-a", {0: cluster.broker.address})}, {"c": ["broker-a"]})
    cluster.namesrv.script(Q.GET_BROKER_CLUSTER_INFO, *[answer(R.SUCCESS, body=info.encode())] * 2)
    async with AdminClient(namesrv=cluster.namesrv.address) as admin:
        with pytest.raises(ConfigError, match="have no attributes: Apache's have them from"):
            await admin.create_topic("batches", attributes={"queue.type": "BatchCQ"})
    assert cluster.broker.count(Q.UPDATE_AND_CREATE_TOPIC) == 0
