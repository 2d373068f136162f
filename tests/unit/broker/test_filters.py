"""Consumers that filter by SQL92: pulls, held pulls, pops and batches give the messages that meet the condition, and no others."""

import random

import pytest

from sprocketmq.broker.filters.reading import messages_at_once
from sprocketmq.broker.filters.sql92 import compile_sql
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.bodies import CheckClientConfig, ConsumerData, HeartbeatData, SubscriptionData
from sprocketmq.protocol.records import decode_records

OUTER = "UNIQ_KEY\x017F000001516DE40737036832F5A00002\x02"
TURNED_OFF = "The broker does not support consumer to filter message by SQL92"


def price(number):
    return f"price\x01{number}\x02"


async def send(ask, *prices, topic="orders"):
    for number in prices:
        assert (await ask.send(topic, b"%d" % number, properties=price(number))).code == 0


async def send_batch(ask, topic, prices):
    body = encode_batch([(0, b"%d" % number, price(number).encode()) for number in prices])
    assert (await ask(320, ask.send_ext(topic, properties=OUTER, batch=True), body)).code == 0


def sql(ask, expression, offset=0, topic="orders", **options):
    return ask.pull(topic, offset, expression=expression, expressionType="SQL92", **options)


async def subscribe(ask, expression, *, group="cg", topic="orders", version=1):
    data = SubscriptionData(topic, expression, expression_type="SQL92", sub_version=version)
    return await ask(34, {}, HeartbeatData("c1", [], [ConsumerData(group, subscription_data_set=[data])]).encode())


def bodies(answer):
    return [bytes(message.body) for message in decode_records(answer.body)]


async def everything(ask, expression, topic="orders", **options):
    """Pull from the beginning to the end as clients do."""
    found, offset = [], 0
    for _ in range(1_000):
        answer = await sql(ask, expression, offset, topic, **options)
        if answer.code == 0:
            found += [message for message in decode_records(answer.body) if message.queue_offset >= offset]
        elif answer.code != 20:
            assert answer.code == 19, answer.remark
            return found
        assert int(answer.ext["nextBeginOffset"]) > offset
        offset = int(answer.ext["nextBeginOffset"])
    raise AssertionError("no end")


@pytest.fixture
async def batches(broker):
    broker.topics.create_internal("batches", 1, attributes={"queue.type": "BatchCQ"})
    return "batches"


# --- pulls ---


async def test_a_pull_gets_what_meets_its_condition(ask):
    await send(ask, *range(10))
    answer = await sql(ask, "price BETWEEN 3 AND 4 OR price = 8")
    assert (answer.code, answer.ext["nextBeginOffset"], answer.ext["maxOffset"]) == (0, "10", "10")
    assert bodies(answer) == [b"3", b"4", b"8"]


async def test_a_pull_is_limited_in_messages_and_bytes_and_goes_on_behind_what_it_gave(ask):
    await send(ask, *range(100))
    answer = await sql(ask, "price >= 50", count=3)
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"50", b"51", b"52"], "53")
    answer = await sql(ask, "price >= 50", 53, maxMsgBytes="1")
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"53"], "54")


async def test_a_pull_that_meets_nothing_goes_on_behind_what_it_looked_at(ask):
    await send(ask, *range(600))
    answer = await sql(ask, "price = 599")
    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
    assert int(answer.ext["nextBeginOffset"]) == messages_at_once(compile_sql("price = 599"))
    assert [bytes(message.body) for message in await everything(ask, "price = 599")] == [b"599"]


async def test_records_that_lie_apart_are_given_in_order(ask):
    await send(ask, *range(200))
    found = await everything(ask, "price > 0 AND (price < 50 OR price > 60)", count=200)
    assert [message.queue_offset for message in found] == [n for n in range(1, 200) if n < 50 or n > 60]


async def test_all_stored_properties_can_be_asked_for(ask):
    await ask.send("orders", b"x", properties="TAGS\x01red\x02KEYS\x01k1 k2\x02colour\x01dark red\x02")
    for expression in ("TAGS = 'red'", "KEYS CONTAINS 'k2'", "colour ENDSWITH 'red'", "CLUSTER = 'DefaultCluster'", "size IS NULL"):
        assert bodies(await sql(ask, expression)) == [b"x"], expression


@pytest.mark.parametrize(
    ("expression", "kind", "words"),
    [
        ("price >", "SQL92", "a value is expected, not the end, at character 8"),
        ("", "SQL92", "a value is expected"),
        ("price LIKE 'a'", "SQL92", "not 'LIKE'"),
        ("a" * 65_536, "SQL92", "the expression has 65536 characters, at most 4096 are allowed"),
        ("price > 'a'", "SQL92", "only numbers and properties are less or greater than others"),
        ("price > 1", "XPATH", "there are expressions of type TAG and SQL92, not 'XPATH'"),
    ],
)
async def test_what_is_no_condition_is_refused_everywhere(ask, expression, kind, words):
    data = SubscriptionData("orders", expression, expression_type=kind)
    checked = await ask(46, {}, CheckClientConfig("c1", "cg", data).encode())
    pulled = await ask.pull("orders", 0, expression=expression, expressionType=kind)
    for answer in (checked, pulled):
        assert answer.code == 23
        assert answer.remark.startswith("parse the consumer's subscription failed: ")
        assert words in answer.remark


async def test_a_condition_can_be_checked(ask):
    data = SubscriptionData("orders", "price > 3", expression_type="SQL92")
    assert (await ask(46, {}, CheckClientConfig("c1", "cg", data).encode())).code == 0


# --- subscriptions of heartbeats ---


async def test_the_condition_of_the_last_heartbeat_counts(ask):
    await send(ask, *range(10))
    await subscribe(ask, "price > 7")
    assert bodies(await ask.pull("orders", 0, sysFlag="0", expressionType="SQL92")) == [b"8", b"9"]
    await subscribe(ask, "price < 2", version=2)
    assert bodies(await ask.pull("orders", 0, sysFlag="0", expressionType="SQL92")) == [b"0", b"1"]
    newer = await ask.pull("orders", 0, sysFlag="0", expressionType="SQL92", subVersion="3")
    assert newer.code == 25


async def test_a_subscription_with_a_wrong_condition_gets_nothing_and_is_told(ask, caplog):
    await send(ask, 1)
    assert (await subscribe(ask, "price >")).code == 0
    answer = await ask.pull("orders", 0, sysFlag="0", expressionType="SQL92")
    assert (answer.code, answer.remark) == (27, "The broker's consumer filter data is not exist!Your expression may be wrong!")
    assert "filter_refused" in caplog.text


async def test_the_retry_topic_is_not_filtered_again(ask, broker):
    broker.groups.find("cg")
    broker.topics.create_internal("%RETRY%cg", 1)
    broker.store.stage_message("%RETRY%cg", 0, b"again", b"", tags_code=0, born_timestamp_ms=0, born_host=bytes(8))
    broker.store.commit()
    assert bodies(await sql(ask, "price > 3", topic="%RETRY%cg")) == [b"again"]


async def test_the_setting_turns_conditions_off(start_broker, connect):
    broker = await start_broker(enable_property_filter=False)
    broker.topics.create_internal("orders", 1)
    ask = await connect(broker)
    await send(ask, 1)
    assert ((answer := await sql(ask, "price > 0")).code, answer.remark) == (1, TURNED_OFF)
    await subscribe(ask, "price > 0")
    assert ((answer := await ask.pull("orders", 0, sysFlag="0")).code, answer.remark) == (1, TURNED_OFF)
    data = SubscriptionData("orders", "price > 3", expression_type="SQL92")
    assert ((answer := await ask(46, {}, CheckClientConfig("c1", "cg", data).encode())).code, answer.remark) == (1, TURNED_OFF)


# --- held pulls ---


async def test_a_held_pull_waits_for_a_message_that_meets_its_condition(ask, broker, connect):
    await send(ask, *range(20))
    reader = await connect(broker)
    pull = sql(reader, "price = 77", 20, wait_ms=60_000)
    await reader.heartbeat()
    await send(ask, 1, 2, 77)
    answer = await pull
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"77"], "23")


async def test_a_held_pull_looks_at_a_long_stretch_in_pieces(ask, broker, connect):
    reader = await connect(broker)
    await send(ask, 0)
    pull = sql(reader, "price = 7", 1, wait_ms=60_000)
    await reader.heartbeat()
    for _ in range(3):
        await send_batch_plain(ask, [1] * 700)
    await send(ask, 7)
    answer = await pull
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"7"], "2102")


async def send_batch_plain(ask, prices):
    body = encode_batch([(0, b"%d" % number, price(number).encode()) for number in prices])
    assert (await ask(320, ask.send_ext("orders", batch=True), body)).code == 0


# --- batches ---


async def test_messages_of_a_batch_pass_one_by_one(ask, batches):
    await send_batch(ask, batches, range(10))
    await send_batch(ask, batches, [20, 21])
    await send_batch(ask, batches, [3, 4])
    answer = await sql(ask, "price < 3 OR price >= 20", topic=batches)
    found = decode_records(answer.body)
    assert [(message.queue_offset, bytes(message.body)) for message in found] == [
        *((0, b"0"), (1, b"1"), (2, b"2")),
        *((10, b"20"), (11, b"21")),
    ]
    assert answer.ext["nextBeginOffset"] == "14"


async def test_a_pull_from_inside_a_batch_gets_the_rest_of_it(ask, batches):
    await send_batch(ask, batches, range(10))
    answer = await sql(ask, "price > 0", 6, topic=batches)
    assert [message.queue_offset for message in decode_records(answer.body)] == [6, 7, 8, 9]


@pytest.mark.parametrize("seed", range(10))
async def test_random_queues_give_what_a_plain_filter_gives(ask, broker, batches, seed):
    rng = random.Random(seed)
    prices = []
    topic = rng.choice(["orders", batches])
    for _ in range(rng.randrange(1, 12)):
        some = [rng.randrange(10) for _ in range(rng.randrange(1, 60))]
        if rng.random() < 0.5:
            await (send_batch(ask, topic, some) if topic == batches else send_batch_plain(ask, some))
        else:
            await send(ask, *some[:5], topic=topic)
            some = some[:5]
        prices += some
    low = rng.randrange(10)
    found = await everything(ask, f"price >= {low}", topic, count=rng.choice([1, 7, 32]))
    assert [message.queue_offset for message in found] == [n for n, number in enumerate(prices) if number >= low]
    assert [int(message.body) for message in found] == [number for number in prices if number >= low]


# --- pops ---


async def test_a_pop_gets_what_meets_its_condition(ask, broker, batches):
    await send(ask, *range(50))
    await send_batch(ask, batches, range(50))
    for topic in ("orders", batches):
        ext = {
            "consumerGroup": "g", "topic": topic, "queueId": "0", "maxMsgNums": "5", "invisibleTime": "30000", "pollTime": "0",
            "bornTime": str(broker.clock.time_ms()), "initMode": "0", "expType": "SQL92", "exp": "price > 40", "order": "false",
        }  # fmt: skip
        found = []
        while (answer := await ask(200050, ext)).code == 0:
            found += [int(message.body) for message in decode_records(answer.body)]
        assert found == list(range(41, 50))
