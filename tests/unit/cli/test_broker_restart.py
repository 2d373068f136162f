"""``sprocketmq consume`` while its broker is stopped and started again."""

import re

import pytest

from sprocketmq.embedded import LocalCluster


@pytest.fixture
def cluster():
    with LocalCluster() as mq:
        yield mq


@pytest.mark.parametrize("member", [(), ("--group", "g")], ids=["without a group", "in a group"])
def test_consume_goes_on_when_its_broker_comes_back_and_says_both_once(cluster, spawn, member):
    cluster.create_topic("orders", queues=4)
    reader = spawn(cluster, "consume", "orders", "--from", "first", *member)
    send(cluster, spawn, b"1\n2\n")
    assert lines(reader, 2) == {b"1", b"2"}
    cluster.stop_broker()
    lost = reader.stderr.readline().decode()
    cluster.start_broker()
    again = reader.stderr.readline().decode()
    send(cluster, spawn, b"3\n4\n5\n")
    assert lines(reader, 3) == {b"3", b"4", b"5"}
    reader.terminate()
    assert reader.communicate(timeout=120) == (b"", b"")
    assert reader.returncode == 0
    who = "consumer group g" if member else "consume orders"
    assert re.match(rf"sprocketmq: \d\d:\d\d:\d\d {who}: cannot pull from broker broker-a, trying again until it answers: ", lost)
    assert re.match(rf"sprocketmq: \d\d:\d\d:\d\d {who}: connected again to broker broker-a after \d+\.\d s$", again)


def send(cluster, spawn, text):
    writer = spawn(cluster, "produce", "orders")
    writer.communicate(text, timeout=120)
    assert writer.returncode == 0


def lines(reader, count):
    return {reader.stdout.readline().strip() for _ in range(count)}
