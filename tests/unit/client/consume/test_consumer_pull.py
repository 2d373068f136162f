import msgspec
import pytest
from fake_cluster import FakeBroker, answer, hang_up, silence
from tests.inside import instance_of
from tests.records import stored

from sprocketmq.client import Producer, PullConsumer
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume.pull_requests import PullStatus, locate_messages, pull_header, pull_subscription
from sprocketmq.errors import (
    BrokerBusy,
    BrokerError,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    InvalidName,
    RequestTimeout,
    RetriableError,
    TopicNotFound,
)
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.bodies import CheckClientConfig
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.headers import PullRequest
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.testing import eventually

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)


@pytest.fixture
async def consumer(cluster):
    async with PullConsumer("cg", namesrv=cluster.namesrv.address) as c:
        yield c


@pytest.fixture
async def ten(cluster):
    """Ten messages in queue 0, tagged a and b in turn."""
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        for i in range(10):
            await producer.send(Message("t", b"%d" % i, tag="ab"[i % 2], queue=QUEUE))


async def test_queues_are_those_of_the_route(consumer):
    assert await consumer.queues("t") == [MessageQueue("t", "broker-a", i) for i in range(4)]


async def test_a_pull_brings_messages_from_the_offset_on_and_says_where_to_go_on(ten, consumer):
    result = await consumer.pull(QUEUE, 4, max_messages=3)
    assert result.status is PullStatus.FOUND
    assert [(m.queue_offset, m.body, m.broker_name) for m in result.messages] == [
        (4, b"4", "broker-a"),
        (5, b"5", "broker-a"),
        (6, b"6", "broker-a"),
    ]
    assert (result.next_offset, result.min_offset, result.max_offset) == (7, 0, 10)
    assert isinstance(result.body, bytes)
    assert result.messages is result.messages


async def test_at_the_end_of_a_queue_there_is_no_new_message(ten, consumer):
    result = await consumer.pull(QUEUE, 10)
    assert (result.status, result.next_offset, result.messages, result.body) == (PullStatus.NO_NEW_MESSAGE, 10, [], b"")


async def test_an_offset_out_of_range_is_a_status_not_an_error(ten, consumer):
    result = await consumer.pull(QUEUE, 99)
    assert (result.status, result.next_offset) == (PullStatus.OFFSET_MOVED, 10)


async def test_tags_are_checked_again_as_brokers_compare_hashes_only(ten, consumer, cluster):
    result = await consumer.pull(QUEUE, 0, expression="a || c")
    assert [m.body for m in result.messages] == [b"0", b"2", b"4", b"6", b"8"]
    header = next(c.header(PullRequest) for c in cluster.broker.seen if c.code == Q.PULL_MESSAGE)
    assert (header.subscription, header.expression_type, header.sys_flag) == ("a || c", "TAG", 4)
    assert result.next_offset == 10


async def test_a_pull_waits_at_the_broker_when_asked_to(consumer, cluster):
    import asyncio

    waiting = asyncio.ensure_future(consumer.pull(QUEUE, 0, wait_ms=5000, max_bytes=1000))
    await cluster.broker.until(lambda: cluster.broker.held)
    header = cluster.broker.held[0][1].header(PullRequest)
    assert (header.suspend_timeout_ms, header.sys_flag, header.max_msg_bytes) == (5000, 6, 1000)
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"x", queue=QUEUE))
    assert [m.body for m in (await waiting).messages] == [b"x"]


async def test_the_text_of_a_result_does_not_show_its_records(consumer, cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"x" * 1000, queue=QUEUE))
    result = await consumer.pull(QUEUE, 0)
    assert repr(result) == f"PullResult({QUEUE}, FOUND, offsets 0 to 1, {len(result.body)} bytes)"


@pytest.mark.parametrize("arguments", [{"offset": -1}, {"max_messages": 0}, {"max_bytes": 0}, {"wait_ms": -1}])
async def test_arguments_that_cannot_be_are_refused(consumer, arguments):
    with pytest.raises(ConfigError):
        await consumer.pull(QUEUE, **{"offset": 0, **arguments})


async def test_an_expression_without_a_tag_is_refused(consumer):
    with pytest.raises(InvalidName):
        await consumer.pull(QUEUE, 0, expression="||")


async def test_a_condition_goes_to_the_broker_as_it_is(ten, consumer, cluster):
    result = await consumer.pull(QUEUE, 0, expression="a > 3 AND b IS NOT NULL", expression_type="SQL92")
    header = next(c.header(PullRequest) for c in cluster.broker.seen if c.code == Q.PULL_MESSAGE)
    assert (header.subscription, header.expression_type) == ("a > 3 AND b IS NOT NULL", "SQL92")
    assert len(result.messages) == 10, "what such a condition means is the broker's alone to say"
    for expression, kind, says in (
        (" ", "SQL92", "must not be empty"),
        (5, "SQL92", "is a string such as"),
        ("a", "XPATH", "of type TAG or SQL92"),
    ):
        with pytest.raises(ConfigError, match=says):
            await consumer.pull(QUEUE, 0, expression=expression, expression_type=kind)


async def test_a_broker_says_what_it_has_against_a_condition(consumer, cluster):
    cluster.broker.script(Q.CHECK_CLIENT_CONFIG, answer(R.SUCCESS), answer(R.SUBSCRIPTION_PARSE_FAILED, "Encountered <EOF>"))
    await consumer.check_expression(QUEUE, "a > 3", "SQL92")
    with pytest.raises(BrokerError, match="Encountered <EOF>"):
        await consumer.check_expression(QUEUE, "a >", "SQL92")
    body = next(c.body for c in cluster.broker.seen if c.code == Q.CHECK_CLIENT_CONFIG)
    checked = CheckClientConfig.decode(body)
    assert (checked.group, checked.subscription_data.sub_string, checked.subscription_data.expression_type) == ("cg", "a > 3", "SQL92")
    with pytest.raises(RetriableError, match="nobody"):
        await consumer.check_expression(MessageQueue("t", "nobody", 0), "a > 3", "SQL92")


async def test_a_replica_is_asked_when_it_is_chosen(ten, consumer, cluster):
    replica = FakeBroker()
    await replica.start()
    try:
        cluster.namesrv.routes["t"].broker_datas[0].broker_addrs[1] = replica.address
        await consumer.queues("t")
        answered = {}
        for read_from in ("master", "slave", "any"):
            result = await consumer.pull(QUEUE, 0, read_from=read_from)
            answered[read_from] = (result.status, result.from_master)
    finally:
        await replica.close()
    there = (PullStatus.FOUND, True)
    assert answered == {"master": there, "slave": (PullStatus.NO_NEW_MESSAGE, False), "any": there}


class Waiting:
    """Gets the outcome of a request that ``PreparedPulls`` sent."""

    def __init__(self):
        self.outcomes = []

    def done(self):
        return False

    def set_result(self, response):
        self.outcomes.append(response)

    def set_exception(self, error):
        self.outcomes.append(error)


async def pulled_at_once(pulls, offset, max_messages=3):
    waiting = Waiting()
    address = pulls.send(waiting, offset, max_messages)
    await eventually(lambda: waiting.outcomes)
    return pulls.read(waiting.outcomes[0], address, offset)


async def test_prepared_pulls_need_a_connection_that_is_open(ten, consumer):
    pulls = consumer.prepare_pulls(QUEUE, max_bytes=1 << 20)
    assert pulls.send(Waiting(), 4, 3) is None
    await consumer.pull(QUEUE, 0)
    for offset in (4, 7):
        result = await pulled_at_once(pulls, offset)
        assert [m.body for m in result.messages] == [b"%d" % i for i in range(offset, offset + 3)]
        assert result.from_master


async def test_a_pull_at_once_that_brings_no_result_only_says_so(ten, consumer, cluster):
    await consumer.pull(QUEUE, 0)
    pulls = consumer.prepare_pulls(QUEUE, max_bytes=1 << 20)
    cluster.broker.script(Q.PULL_MESSAGE, answer(R.SYSTEM_BUSY), answer(R.TOPIC_NOT_EXIST), hang_up)
    for error in (BrokerBusy, TopicNotFound):
        with pytest.raises(error):
            await pulled_at_once(pulls, 0)
    waiting = Waiting()
    assert pulls.send(waiting, 0, 3) == cluster.broker.address
    await eventually(lambda: waiting.outcomes)
    assert isinstance(waiting.outcomes[0], ConnectionLost)
    assert pulls.send(waiting, 0, 3) is None
    await consumer.pull(QUEUE, 0)
    assert len((await pulled_at_once(pulls, 0)).messages) == 3, "over the new connection"


async def test_prepared_pulls_follow_the_route(ten, consumer, cluster):
    await consumer.pull(QUEUE, 0)
    pulls = consumer.prepare_pulls(QUEUE, max_bytes=1 << 20, read_from="slave")
    assert (await pulled_at_once(pulls, 0)).from_master
    waiting = Waiting()
    asked = pulls.send(waiting, 0, 3)
    replica = FakeBroker()
    await replica.start()
    try:
        addresses = cluster.namesrv.routes["t"].broker_datas[0].broker_addrs
        addresses[1] = replica.address
        await consumer.queues("t")
        await eventually(lambda: waiting.outcomes)
        assert pulls.read(waiting.outcomes[0], asked, 0).from_master
        assert pulls.send(Waiting(), 0, 3) is None, "there is no connection to the replica yet"
        await consumer.pull(QUEUE, 0, read_from="slave")
        result = await pulled_at_once(pulls, 0)
        assert (result.status, result.from_master) == (PullStatus.NO_NEW_MESSAGE, False)
        addresses[0], addresses[1] = replica.address, cluster.broker.address
        await consumer.queues("t")
        assert len((await pulled_at_once(pulls, 0)).messages) == 3
        assert not (await pulled_at_once(pulls, 0)).from_master, "the broker that was the master is the replica now"
    finally:
        await replica.close()


async def test_what_no_pull_can_ask_for_is_refused(consumer):
    with pytest.raises(ConfigError, match="max_bytes must be a whole number"):
        consumer.prepare_pulls(QUEUE, max_bytes=0)
    pulls = consumer.prepare_pulls(QUEUE, max_bytes=1)
    for offset, max_messages in ((-1, 1), (0, 0)):
        with pytest.raises(ConfigError, match=r"(offset|max_messages) must be a whole number"):
            pulls.send(Waiting(), offset, max_messages)


def test_percent_signs_in_names_are_written_as_they_are():
    queue = MessageQueue("%RETRY%cg", "100%d", 3)
    subscription = pull_subscription(queue.topic, "a%b", "SQL92")
    for offset in (7, 8):
        header = pull_header(
            "50%", queue, offset, max_messages=32, max_bytes=9, sys_flag=5, commit_offset=6, suspend_ms=4, subscription=subscription
        )
        assert msgspec.json.decode(header) == {
            "consumerGroup": "50%",
            "topic": "%RETRY%cg",
            "queueId": "3",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "5",
            "commitOffset": "6",
            "suspendTimeoutMillis": "4",
            "subscription": "a%b",
            "subVersion": "0",
            "expressionType": "SQL92",
            "maxMsgBytes": "9",
            "bname": "100%d",
        }


async def test_unknown_topics_and_brokers_are_told(consumer):
    with pytest.raises(TopicNotFound):
        await consumer.pull(MessageQueue("nope", "broker-a", 0), 0)
    with pytest.raises(RetriableError, match="nobody"):
        await consumer.pull(MessageQueue("t", "nobody", 0), 0)
    with pytest.raises(InvalidName):
        await consumer.queues("a b")


async def test_a_lost_connection_is_made_again_and_the_pull_repeated(ten, consumer, cluster):
    cluster.broker.script(Q.PULL_MESSAGE, hang_up, hang_up)
    assert len((await consumer.pull(QUEUE, 0)).messages) == 10
    cluster.broker.script(Q.PULL_MESSAGE, hang_up, hang_up, hang_up)
    with pytest.raises(ConnectionLost):
        await consumer.pull(QUEUE, 0)


async def test_a_broker_that_is_gone_is_named(consumer, cluster):
    await cluster.broker.stop()
    with pytest.raises(ConnectFailed, match=cluster.broker.address):
        await consumer.pull(QUEUE, 0)


async def test_a_busy_broker_is_asked_again(ten, consumer, cluster):
    cluster.broker.script(Q.PULL_MESSAGE, answer(R.SYSTEM_BUSY), answer(R.GO_AWAY))
    assert len((await consumer.pull(QUEUE, 0)).messages) == 10
    cluster.broker.script(Q.PULL_MESSAGE, *[answer(R.SYSTEM_BUSY, "flow control")] * 3)
    with pytest.raises(BrokerBusy, match="flow control"):
        await consumer.pull(QUEUE, 0)


async def test_a_refusal_and_a_missing_answer_are_typed(consumer, cluster):
    cluster.broker.script(Q.PULL_MESSAGE, answer(R.NO_PERMISSION, "not you"), silence)
    with pytest.raises(BrokerError, match="not you"):
        await consumer.pull(QUEUE, 0)
    with pytest.raises(RequestTimeout):
        await consumer.pull(QUEUE, 0, timeout_s=0.05)


async def test_offsets_can_be_asked_and_committed(ten, consumer, cluster):
    assert await consumer.min_offset(QUEUE) == 0
    assert await consumer.max_offset(QUEUE) == 10
    assert await consumer.offset_at(QUEUE, 5) == 1
    assert await consumer.committed(QUEUE) is None
    await consumer.commit(QUEUE, 7)
    assert await consumer.committed(QUEUE) == 7
    with pytest.raises(ConfigError):
        await consumer.commit(QUEUE, -1)
    cluster.broker.script(Q.UPDATE_CONSUMER_OFFSET, answer(26, "Group cg not exist!"))
    with pytest.raises(BrokerError, match="not exist"):
        await consumer.commit(QUEUE, 8)


async def test_a_batch_queue_that_apaches_broker_finds_empty_begins_at_zero(consumer, cluster):
    def below_zero(conn, command):
        conn.respond(command, R.SUCCESS, ext={"offset": "-1"})
        return True

    cluster.broker.script(Q.GET_MIN_OFFSET, below_zero)
    cluster.broker.script(Q.GET_MAX_OFFSET, below_zero)
    cluster.broker.script(Q.SEARCH_OFFSET_BY_TIMESTAMP, answer(R.SYSTEM_ERROR, "java.lang.NullPointerException"))
    assert await consumer.min_offset(QUEUE) == 0
    assert await consumer.offset_at(QUEUE, 5) == 0


async def test_it_registers_nothing_at_the_broker(ten, consumer, cluster):
    await consumer.pull(QUEUE, 0)
    await instance_of(consumer).heartbeat()
    assert not any(beat.consumer_data_set for beat in cluster.broker.beats)


def test_an_inner_batch_entered_in_the_middle_is_read_from_the_asked_offset_on():
    body = encode_batch([(0, b"%d" % i, encode_properties({"TAGS": "a" if i < 3 else "b"})) for i in range(4)])
    record = stored(body, queue_offset=100, sys_flag=192)
    assert [(m.queue_offset, m.body) for m in locate_messages(record, "a", 101, None)] == [(101, b"1"), (102, b"2"), (103, b"3")]
    assert [m.body for m in locate_messages(record, "a", 101, frozenset({b"a"}))] == [b"1", b"2"]
