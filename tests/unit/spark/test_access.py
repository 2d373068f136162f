"""What a process asks of a cluster for Spark: topics, offsets of groups, pulls; and how it gets over restarts."""

import asyncio
import os
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from itertools import count

import pytest

from sprocketmq import AdminClient, Message, Producer
from sprocketmq.client.consume.pull_requests import PullStatus
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import BrokerError, ConfigError, InvalidName, NameserverUnavailable, RetriableError, TopicNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.source import access as access_module
from sprocketmq.spark.source.access import (
    ClusterAccess,
    FilterRefused,
    PullAnswer,
    TopicGone,
    check_filter,
    client_settings,
    close_access,
    cluster_access,
)
from sprocketmq.spark.source.planning import QueueRange
from sprocketmq.spark.source.reading import RangeReader
from sprocketmq.testing import wait_until

names = (f"Access{number}" for number in count())


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster() as running:
        yield running


@pytest.fixture(scope="module")
def access(cluster):
    made = ClusterAccess(cluster.namesrv, "access-tests")
    yield made
    made.close()


@pytest.fixture
def topic(cluster):
    return create(cluster, next(names))


def administer(cluster, work):
    async def run():
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            return await work(admin)

    return asyncio.run(run())


def create(cluster, name, queues=2):
    cluster.create_topic(name, queues=queues)
    return name


def send(cluster, topic, messages, tag=None, queue_id=0):
    async def run():
        async with Producer("access-tests", namesrv=cluster.namesrv) as producer:
            queue = MessageQueue(topic, "broker-a", queue_id)
            for i in range(messages):
                await producer.send(Message(topic, b"%d" % i, tag, queue=queue))

    asyncio.run(run())


def queues_of(topic, number=2):
    return [MessageQueue(topic, "broker-a", i) for i in range(number)]


def test_topics_are_those_people_send_to(cluster, access, topic):
    administer(cluster, lambda admin: admin.create_topic("%RETRY%somebody", queues=1))
    found = access.topics()
    assert topic in found
    assert not [name for name in found if name.startswith(("%", "rmq_sys", "TBW", "RMQ_SYS", "SCHEDULE"))]


def test_a_topic_exists_until_it_is_deleted(cluster, access, topic):
    assert access.topic_exists(topic)
    assert not access.topic_exists("NoSuchTopic")
    assert access.queues([topic]) == queues_of(topic)
    administer(cluster, lambda admin: admin.delete_topic(topic))
    assert not access.topic_exists(topic)


def test_offsets_of_a_group_are_those_it_committed(access, topic):
    first, second = queues_of(topic)
    assert access.group_offsets("access-tests", [first, second]) == {}
    access.commit_offsets("access-tests", {first: 5})
    assert access.group_offsets("access-tests", [first, second]) == {first: 5}
    access.commit_offsets("access-tests", {first: 7, second: 1})
    assert access.group_offsets("access-tests", [second, first]) == {first: 7, second: 1}
    assert access.group_offsets("another-group", [first]) == {}


def test_a_group_that_never_read_is_known_to_no_broker(access, topic):
    with pytest.raises(BrokerError, match="Group another-group not exist"):
        access.commit_offsets("another-group", {queues_of(topic)[0]: 1})


def test_a_group_that_cannot_be_is_refused(access, topic):
    with pytest.raises(InvalidName):
        access.group_offsets("no group", queues_of(topic))
    with pytest.raises(InvalidName):
        access.commit_offsets("", {})


def test_messages_of_other_tags_stay_at_the_broker_and_offsets_advance(cluster, access, topic):
    queue = queues_of(topic)[0]
    send(cluster, topic, 3, tag="a")
    send(cluster, topic, 2, tag="b")
    found = access.pull(queue, 0, 32, 1 << 20, 0, filter=("TAG", "b")).result()
    assert [m.body for m in found.messages] == [b"0", b"1"]
    assert found.next_offset == 5
    assert found.from_master
    none = access.pull(queue, 0, 32, 1 << 20, 0, filter=("TAG", "c")).result()
    assert (none.status, none.next_offset) == (PullStatus.NO_MATCH, 5)


def test_a_read_from_replicas_goes_to_the_master_where_there_is_none(cluster, access, topic):
    send(cluster, topic, 2)
    for where in ("slave", "any"):
        found = access.pull(queues_of(topic)[0], 0, 32, 1 << 20, 0, read_from=where).result()
        assert len(found.messages) == 2
        assert found.from_master


def test_a_condition_that_a_broker_does_not_take_is_refused(access, topic):
    with pytest.raises(FilterRefused, match=r"broker broker-a does not take the SQL92 expression 'a >' .* at character 4"):
        access.check_filter(queues_of(topic), ("SQL92", "a >"))
    access.check_filter(queues_of(topic), ("SQL92", "a > 3"))
    access.check_filter(queues_of(topic), ("TAG", "a || b"))
    access.check_filter(queues_of(topic), None)


@pytest.mark.parametrize(("kind", "expression"), [("TAG", "||"), ("SQL92", "  "), ("XPATH", "a")])
def test_what_is_no_filter_is_refused_without_a_broker(kind, expression):
    with pytest.raises(FilterRefused):
        check_filter((kind, expression))


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "1e9", "nan"])
def test_a_time_limit_that_cannot_be_is_refused(text):
    with pytest.raises(ConfigError, match=r"timeout_s: .* is not a number of seconds"):
        client_settings([("timeout_s", text)])


def test_settings_the_client_does_not_have_are_refused():
    with pytest.raises(ConfigError, match="no setting 'tls'; it has timeout_s"):
        client_settings([("tls", "true")])
    assert client_settings([("timeout_s", "2.5")]) == {"timeout_s": 2.5}


def test_pulling_a_topic_that_was_deleted_says_so(cluster, access, topic):
    queue = queues_of(topic)[0]
    send(cluster, topic, 2)
    assert len(access.pull(queue, 0, 32, 1 << 20, 0).result().messages) == 2
    administer(cluster, lambda admin: admin.delete_topic(topic))
    with pytest.raises(TopicGone):
        access.pull(queue, 0, 32, 1 << 20, 0).result()


def test_a_topic_of_a_broker_that_is_away_is_only_not_found(access):
    with pytest.raises(TopicNotFound) as caught:
        access.pull(MessageQueue("NoSuchTopic", "broker-z", 0), 0, 32, 1 << 20, 0).result()
    assert not isinstance(caught.value, TopicGone)


def in_the_loop(access, *asked):
    """Pull as a callback of an answer does, and return the answer and a future that has it once it is done."""
    done = Future()

    async def begin():
        answer = access.pull(*asked)
        answer.add_done_callback(done.set_result)
        return answer

    return access.thread.run(begin), done


def test_a_pull_that_the_thread_of_answers_begins_ends_as_any_other(cluster, access, topic):
    queue = queues_of(topic)[0]
    send(cluster, topic, 2)
    for _ in range(2):  # without a connection that is known to be there, and with one
        answer, done = in_the_loop(access, queue, 0, 32, 1 << 20, 0)
        assert done.result() is answer
        assert isinstance(answer, PullAnswer)
        assert [m.body for m in answer.result().messages] == [b"0", b"1"]
    held, _ = in_the_loop(access, queue, 2, 32, 1 << 20, 1000)
    assert not held.done()
    with pytest.raises(InvalidStateError):
        held.result()
    absent, done = in_the_loop(access, MessageQueue("NoSuchTopic", "broker-z", 0), 0, 32, 1 << 20, 0)
    done.result()
    with pytest.raises(TopicNotFound):
        absent.result()
    wrong, done = in_the_loop(access, queue, -1, 32, 1 << 20, 0)
    assert done.result() is wrong
    with pytest.raises(ConfigError, match="offset must be a whole number"):
        wrong.result()


def test_every_queue_is_asked_before_an_error_is_raised(access, topic):
    first = queues_of(topic)[0]
    absent = MessageQueue("NoSuchTopic", "broker-a", 0)
    with pytest.raises(TopicNotFound):
        access.commit_offsets("access-tests", {absent: 1, first: 3})
    assert access.group_offsets("access-tests", [first]) == {first: 3}


def test_one_access_outlives_the_restart_of_its_broker(tmp_path):
    with LocalCluster(store=tmp_path) as cluster:
        made = ClusterAccess(cluster.namesrv, "access-tests")
        try:
            topic = create(cluster, next(names), queues=1)
            (queue,) = queues_of(topic, 1)
            send(cluster, topic, 2)
            assert len(made.pull(queue, 0, 32, 1 << 20, 0).result().messages) == 2
            cluster.stop_broker()
            with pytest.raises((RetriableError, TopicNotFound)):
                made.pull(queue, 0, 32, 1 << 20, 0).result()
            cluster.start_broker()
            assert wait_until(lambda: messages_now(made, queue)) == 2
        finally:
            made.close()


def messages_now(access, queue):
    try:
        return len(access.pull(queue, 0, 32, 1 << 20, 0).result().messages)
    except (RetriableError, TopicNotFound):
        return 0


def test_a_read_goes_on_over_a_restart_of_its_broker(tmp_path):
    with LocalCluster(store=tmp_path) as cluster:
        made = ClusterAccess(cluster.namesrv, "access-tests")
        try:
            topic = create(cluster, next(names), queues=1)
            (queue,) = queues_of(topic, 1)
            send(cluster, topic, 60)
            reader = RangeReader(made.pull, ("queueOffset",), batch_rows=10, prefetch=1)
            batches = reader.read([QueueRange(queue, 0, 60)])
            got = next(batches)["queueOffset"].to_pylist()
            cluster.stop_broker()
            cluster.start_broker()
            for batch in batches:
                got += batch["queueOffset"].to_pylist()
            assert got == [*range(60)]
        finally:
            made.close()


def test_pulls_go_on_while_the_nameserver_is_away(tmp_path):
    with LocalCluster(store=tmp_path) as cluster:
        made = ClusterAccess(cluster.namesrv, "access-tests")
        try:
            topic = create(cluster, next(names), queues=1)
            (queue,) = queues_of(topic, 1)
            send(cluster, topic, 2)
            assert messages_now(made, queue) == 2
            cluster.stop_namesrv()
            assert messages_now(made, queue) == 2
            cluster.start_namesrv()
            assert wait_until(lambda: made.topic_exists(topic))
        finally:
            made.close()


def test_a_process_keeps_one_access_for_each_cluster_group_and_setting(cluster):
    close_access()
    try:
        one = cluster_access(cluster.namesrv, "a")
        assert cluster_access(cluster.namesrv, "a") is one
        assert cluster_access(cluster.namesrv, "b") is not one
        assert cluster_access(cluster.namesrv, "a", (("timeout_s", "5"),)) is not one
    finally:
        close_access()
    assert not [key for key in access_module._open if key[0] == os.getpid()]


def test_an_access_that_could_not_be_made_is_tried_anew(cluster):
    with pytest.raises(NameserverUnavailable):
        cluster_access("127.0.0.1:1", "a")
    with pytest.raises(InvalidName):
        cluster_access(cluster.namesrv, "no group")
    assert not [key for key in access_module._open if key[1] == "127.0.0.1:1" or key[2] == "no group"]


def test_a_nameserver_that_is_away_for_a_moment_is_waited_for(tmp_path):
    with LocalCluster(store=tmp_path) as cluster:
        cluster.stop_namesrv()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(cluster_access, cluster.namesrv, "patient", patience_s=20)
            cluster.start_namesrv()
            assert waiting.result().topics() is not None
        close_access()


def test_closing_twice_is_harmless(cluster):
    made = ClusterAccess(cluster.namesrv, "a")
    made.close()
    made.close()
