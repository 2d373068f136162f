"""Sends whose properties ask for more than being stored: halves of transactions, priorities, delays in batches, what is not done."""

import pytest

from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.names import HALF_TOPIC
from sprocketmq.protocol.properties import TRAN_MSG
from sprocketmq.protocol.records import decode_records

HALF_BATCH = "a batch, or a message of one, cannot be half of a transaction: send the message by itself"
OUTER = "UNIQ_KEY\x017F000001516DE40737036832F5A00002\x02"
HALF = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02"
PRIORITY = "_SYS_MSG_PRIORITY_"


@pytest.fixture
async def topics(broker):
    """Topics of four queues: ``orders`` of plain ones, ``batches`` of batch queues."""
    broker.topics.create_internal("batches", 4, attributes={"queue.type": "BatchCQ"})
    return broker.topics


def v1_ext(topic, properties, **fields):
    ext = {"producerGroup": "pg", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0"}
    return {**ext, "bornTimestamp": "1700000000000", "flag": "0", "properties": properties, **fields}


def batch_of(*properties):
    return encode_batch([(0, b"body %d" % n, text.encode()) for n, text in enumerate(properties)])


async def everything(ask, topic):
    found = []
    for queue in range(4):
        answer = await ask.pull(topic, 0, queue=queue)
        found += [(message.queue_id, bytes(message.body)) for message in decode_records(answer.body)]
    return found


# --- halves of transactions ---


@pytest.mark.parametrize("topic", ["orders", "batches"])
@pytest.mark.parametrize(
    "properties",
    [HALF, f"KEYS\x01k\x02{HALF}", "TRAN_MSG\x01TRUE\x02", "TRAN_MSG\x01true", f"{HALF}DELAY\x011\x02", f"{HALF}TIMER_DELAY_SEC\x0160\x02"],
)
async def test_half_of_a_transaction_is_known_by_its_property_on_every_way_in(ask, topics, topic, properties):
    alone = [
        (10, v1_ext(topic, properties), b"body"),
        (310, ask.send_ext(topic, properties=properties), b"body"),
    ]
    batches = [
        (320, ask.send_ext(topic, properties=properties, batch=True), batch_of("", "")),
        (320, ask.send_ext(topic, properties=OUTER + properties, batch=True), batch_of("", "")),
        (320, ask.send_ext(topic, batch=True), batch_of("KEYS\x01k\x02", properties)),
        (320, ask.send_ext(topic, properties=OUTER, batch=True), batch_of("KEYS\x01k\x02", properties)),
        (320, ask.send_ext(topic, properties=OUTER, batch=True), batch_of(properties, properties)),
    ]
    for code, ext, body in alone:
        assert (await ask(code, ext, body)).code == 0
    assert len(await everything(ask, HALF_TOPIC)) == len(alone)
    for code, ext, body in batches:
        answer = await ask(code, ext, body)
        assert (answer.code, answer.remark) == (13, HALF_BATCH), (code, ext)
    assert not await everything(ask, topic)


async def test_half_of_a_transaction_to_a_retry_topic_is_one_unless_it_is_tried_again(ask, broker):
    broker.groups.find("cg")
    first = await ask.send("%RETRY%cg", properties=f"{HALF}DELAY\x013\x02", j="0")
    assert first.code == 0
    assert len(broker.transactions.open_halves) == 1
    again = await ask.send("%RETRY%cg", properties=f"{HALF}DELAY\x013\x02", j="1", l="16")
    assert again.code == 0
    assert len(broker.transactions.open_halves) == 1, "its transaction was committed, or no consumer had given it back"


@pytest.mark.parametrize(
    "properties", ["TRAN_MSG\x01false\x02", "MY_TRAN_MSG\x01true\x02", "TRAN_MSG_ID\x01true\x02", "KEYS\x01TRAN_MSG\x02"]
)
async def test_what_only_looks_like_half_of_a_transaction_is_stored(ask, topics, properties):
    assert (await ask.send("orders", properties=properties)).code == 0
    assert (await ask(320, ask.send_ext("batches", properties=OUTER, batch=True), batch_of(properties))).code == 0


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"])
async def test_what_no_consumer_has_got_cannot_be_given_back(ask, broker, topic):
    text = HALF.encode()
    _, place = broker.store.stage_message(topic, 0, b"half", text, tags_code=0, born_timestamp_ms=0, born_host=bytes(8))
    broker.store.commit()
    fields = {"offset": str(place), "group": "cg", "delayLevel": "0", "originMsgId": "", "originTopic": "orders"}
    answer = await ask(36, fields)
    remark = f"the message at {place} waits in {topic}, no consumer has got it: it cannot be given back"
    assert (answer.code, answer.remark) == (16, remark)


async def test_a_committed_message_that_is_given_back_is_no_half_afterwards(ask, broker):
    broker.topics.create_internal("paid", 1)
    text = f"{OUTER}{HALF}".encode()
    _, place = broker.store.stage_message("paid", 0, b"x", text, sys_flag=8, tags_code=0, born_timestamp_ms=0, born_host=bytes(8))
    broker.store.commit()
    fields = {"offset": str(place), "group": "cg", "delayLevel": "-1", "originMsgId": "", "originTopic": "paid"}
    assert (await ask(36, fields)).code == 0
    (copy,) = decode_records((await ask.pull("%DLQ%cg", 0)).body)
    assert bytes(copy.body) == b"x"
    assert TRAN_MSG not in copy.properties


# --- priorities ---


@pytest.mark.parametrize("topic", ["orders", "batches"])
@pytest.mark.parametrize("asked", [2, -1])
@pytest.mark.parametrize(
    ("priority", "queue"), [("0", 0), ("1", 1), ("3", 3), ("9", 3), ("+1", 1), ("007", 3), ("\u0663", 3), (str(2**31 - 1), 3)]
)
async def test_a_priority_is_the_queue_up_to_the_last_whatever_queue_was_asked_for(ask, topics, topic, asked, priority, queue):
    answer = await ask.send(topic, queue=asked, properties=f"{PRIORITY}\x01{priority}\x02KEYS\x01k\x02")
    assert answer.ext["queueId"] == str(queue)
    (message,) = decode_records((await ask.pull(topic, 0, queue=queue)).body)
    assert (message.queue_id, message.properties[PRIORITY]) == (queue, priority)


@pytest.mark.parametrize("priority", ["-1", "abc", " 1", "1_0", "1.0", str(2**31), "9" * 200, ""])
async def test_what_is_no_priority_leaves_a_message_in_its_queue(ask, topics, priority):
    answer = await ask.send("orders", queue=2, properties=f"{PRIORITY}\x01{priority}\x02")
    assert answer.ext["queueId"] == "2"


async def test_a_priority_counts_queues_that_take_messages_only(ask, broker):
    topic = broker.topics.create_internal("shrunk", 4)
    topic.take(type(topic.config)(topic_name="shrunk", read_queue_nums=6, write_queue_nums=2), 6)
    assert (await ask.send("shrunk", queue=4, properties=f"{PRIORITY}\x019\x02")).ext["queueId"] == "1"


@pytest.mark.parametrize("other", ["__SHARDINGKEY\x01s\x02", "DELAY\x010\x02", "TIMER_DELIVER_MS\x011\x02"])
async def test_delayed_and_ordered_messages_have_no_priority(ask, topics, other):
    answer = await ask.send("orders", queue=2, properties=f"{other}{PRIORITY}\x011\x02")
    assert answer.ext["queueId"] == "2"
    (message,) = decode_records((await ask.pull("orders", 0, queue=2)).body)
    assert PRIORITY not in message.properties


@pytest.mark.parametrize("topic", ["orders", "batches"])
@pytest.mark.parametrize("outer", ["", OUTER, f"{OUTER}{PRIORITY}\x011\x02"])
async def test_a_batch_stays_in_its_queue(ask, topics, topic, outer):
    body = batch_of(f"{PRIORITY}\x010\x02", f"{PRIORITY}\x013\x02")
    answer = await ask(320, ask.send_ext(topic, queue=2, properties=outer, batch=True), body)
    assert answer.ext["queueId"] == "2"
    assert await everything(ask, topic) == [(2, b"body 0"), (2, b"body 1")]


# --- what a batch cannot do, and what is not done at all ---


@pytest.mark.parametrize("topic", ["orders", "batches"])
@pytest.mark.parametrize("delay", ["DELAY\x011\x02", "TIMER_DELAY_SEC\x0160\x02", "TIMER_DELAY_MS\x0160000\x02"])
async def test_a_delayed_message_in_a_batch_is_named(ask, topics, topic, delay):
    for members in (("", delay), ("DELAY\x010\x02", delay), ("KEYS\x01k\x02", f"KEYS\x01k\x02{delay}")):
        answer = await ask(320, ask.send_ext(topic, properties=OUTER, batch=True), batch_of(*members))
        assert answer.code == 13
        assert answer.remark == "message 1 of the batch asks to be delivered later, which a batch cannot do: send it by itself"
    assert not await everything(ask, topic)


@pytest.mark.parametrize("topic", ["orders", "batches"])
async def test_a_time_that_has_passed_is_no_delay_in_a_batch_either(ask, topics, topic):
    body = batch_of("TIMER_DELIVER_MS\x011\x02DELAY\x010\x02", "")
    assert (await ask(320, ask.send_ext(topic, properties=OUTER, batch=True), body)).code == 0
    assert len(await everything(ask, topic)) == 2


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ("__LITE_TOPIC\x01a\x02", "no lite topics"),
        ("INNER_MULTI_DISPATCH\x01%LMQ%a\x02", "into one queue"),
        ("TIMER_DEL_UNIQKEY\x01a\x02TIMER_DELAY_SEC\x0160\x02", "request 370"),
    ],
)
async def test_what_this_broker_does_not_do_with_a_message_is_said(ask, topics, properties, says):
    for code, ext, body in (
        (310, ask.send_ext("orders", properties=properties), b"body"),
        (10, v1_ext("orders", properties), b"body"),
        (320, ask.send_ext("batches", properties=OUTER + properties, batch=True), batch_of("", "")),
        (320, ask.send_ext("orders", batch=True), batch_of("", properties)),
    ):
        answer = await ask(code, ext, body)
        assert answer.code == 13
        assert says in answer.remark
    assert not await everything(ask, "orders")
