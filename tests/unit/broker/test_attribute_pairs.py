"""message.type and queue.type together, as ``updateTopic -a`` gives them, through every way a message comes in."""

import pytest

from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.records import decode_records

TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "PRIORITY")
QUEUES = ("SimpleCQ", "BatchCQ")
OUTER = "UNIQ_KEY\x017F000001516DE40737036832F5A00002\x02"
FUTURE = {
    "level": "DELAY\x011\x02",
    "seconds": "TIMER_DELAY_SEC\x011\x02",
    "ms": "TIMER_DELAY_MS\x011000\x02",
    "time": "TIMER_DELIVER_MS\x01{due}\x02",
}


@pytest.fixture(params=[(kind, queue) for kind in TYPES for queue in QUEUES], ids="-".join)
async def topic(request, ask):
    kind, queue = request.param
    ext = {"topic": "pair", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    attributes = f"+message.type={kind},+queue.type={queue}"
    answer = await ask(17, {**ext, "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": attributes})
    assert answer.code == 0, answer.remark
    return "pair"


def single_v1(ask, topic, properties):
    ext = {"producerGroup": "pg", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0"}
    return ask(10, {**ext, "bornTimestamp": "1700000000000", "flag": "0", "properties": properties}, b"one")


def single_v2(ask, topic, properties):
    return ask.send(topic, b"one", properties=properties)


def batch(ask, topic, properties):
    return ask(320, ask.send_ext(topic, properties=properties, batch=True), encode_batch([(0, b"one", b""), (0, b"two", b"")]))


def auto_batch(ask, topic, properties):
    return batch(ask, topic, OUTER + properties)


async def bodies(ask, topic):
    return [bytes(message.body) for message in decode_records((await ask.pull(topic, 0)).body)]


@pytest.mark.parametrize("way", [single_v1, single_v2, batch, auto_batch])
async def test_what_is_not_delayed_is_there_at_once(ask, topic, way):
    for properties in ("", "TIMER_DELIVER_MS\x011\x02DELAY\x010\x02"):
        assert (await way(ask, topic, properties)).code == 0
    assert await bodies(ask, topic) == ([b"one", b"two"] if way in (batch, auto_batch) else [b"one"]) * 2


@pytest.mark.parametrize("way", [single_v1, single_v2])
@pytest.mark.parametrize("delay", FUTURE)
async def test_a_delayed_message_is_there_when_it_is_due(ask, broker, clock, topic, way, delay):
    due = broker.delays.time.now_ms() + 1000
    assert (await way(ask, topic, FUTURE[delay].format(due=due))).code == 0
    assert await bodies(ask, topic) == []
    clock.advance(1.5)
    broker.delays.fire()
    assert await bodies(ask, topic) == [b"one"]


@pytest.mark.parametrize("way", [batch, auto_batch])
@pytest.mark.parametrize("delay", FUTURE)
async def test_a_batch_is_never_delayed(ask, broker, topic, way, delay):
    due = broker.delays.time.now_ms() + 1000
    assert (await way(ask, topic, FUTURE[delay].format(due=due))).code == 13
    assert await bodies(ask, topic) == []
