"""SQL92 conditions come out the same at both brokers, for Java's clients and ours."""

from __future__ import annotations

import pytest
from tests.interop.apache import ApacheFailed, JavaClient
from tests.interop.sides import Side

from sprocketmq import Message, Producer, PullConsumer, PushConsumer, Sql
from sprocketmq.broker.filters.sql92 import compile_sql
from sprocketmq.client.consume.pull_requests import PullStatus
from sprocketmq.errors import BrokerError
from sprocketmq.protocol.message import MessageQueue

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

PROPERTIES: list[dict[str, str]] = [
    {},
    {"a": "1"},
    {"a": "2", "b": "text"},
    {"a": "1.5", "b": "Text"},
    {"a": "-7", "b": "a text", "c": "true"},
    {"a": "x", "c": "TRUE"},
    {"a": "3000000000", "c": "false"},
    {"a": "9223372036854775808", "b": "5"},
    {"a": " 1", "b": "1"},
    {"a": "+1", "b": "1.0"},
    {"a": "1e3", "c": "yes"},
    {"a": "1d", "b": "1f"},
    {"a": "NaN", "b": "Infinity"},
    {"a": "0x10", "b": "it's"},
    {"a": "10", "b": "9"},
]
CONDITIONS = [
    *("a = 1", "a <> 1", "a > 1", "a >= 1", "a < 1", "a <= 1", "1 = a", "1 < a", "a = '1'", "a <> '1'", "a = -7", "a = +1", "a > -10"),
    *("a > 0.5", "a = 1.5", "a < 1e3", "a >= 1.5e0", "a <> 1.5", "a > 2147483648", "a = 3000000000", "a = 10L", "a > 5000000000L"),
    *(
        "a BETWEEN 1 AND 10",
        "a NOT BETWEEN 1 AND 10",
        "a BETWEEN 0.5 AND 1.6",
        "b BETWEEN 1 AND 9",
        "a BETWEEN b AND 100",
        "1 BETWEEN a AND b",
    ),
    *("b IN ('text', 'Text')", "b NOT IN ('text')", "a IN ('1', '2')", "b IN ('it''s')", "b = 'it''s'"),
    *(
        "b CONTAINS 'ext'",
        "b NOT CONTAINS 'ext'",
        "b STARTSWITH 'a'",
        "b ENDSWITH 't'",
        "b NOT STARTSWITH 'T'",
        "b CONTAINS ''",
        "b NOT CONTAINS ''",
    ),
    *("a IS NULL", "a IS NOT NULL", "c IS NULL AND b IS NOT NULL", "nothing IS NULL", "nothing = 1", "nothing <> 1", "nothing IN ('x')"),
    *("c = TRUE", "c = FALSE", "c <> TRUE", "TRUE = c", "c", "NOT c", "TRUE", "FALSE", "NOT FALSE", "c OR a = 1", "a = 1 OR c"),
    *(
        "a = 1 AND b = '1'",
        "a = 1 OR b = 'text'",
        "NOT (a = 1)",
        "NOT (b = 'text')",
        "NOT a = 1",
        "NOT (a = 1 AND b = 'x')",
        "NOT (a = 1 OR b = 'x')",
    ),
    *(
        "a = b",
        "a <> b",
        "a < b",
        "a > b",
        "b = a OR a = 2",
        "a = 1 AND nothing = 1",
        "NOT (a = 1 AND nothing = 1)",
        "NOT (nothing = 1 OR a = 2)",
    ),
    *(
        "a = 1 OR a > 1 AND b = 'text'",
        "(a = 1 OR a > 1) AND b = 'text'",
        "a > 1 -- comment",
        "a /* c */ > 1",
        "a = 1 = TRUE",
        "(a = 1) IS NULL",
    ),
    *(
        "-a = 7",
        "-a IS NULL",
        "TAGS = 't'",
        "KEYS CONTAINS 'k'",
        "UNIQ_KEY IS NOT NULL",
        "1 = 1",
        "1 > 2",
        "'1' = 1",
        "'x' = 'x'",
        "1.5 > 1",
    ),
    *("a > 1 or b = 'text' and not c is null", "A = 1", "a>1AND b='text'", "nothing = nothing2", "b = nothing", "nothing = b", "a = 0"),
]
WRONG = [
    *(
        "a >",
        "a = NULL",
        "1",
        "'x'",
        "a AND 1",
        "a > 'x'",
        "a < TRUE",
        "a BETWEEN 5 AND 1",
        "a BETWEEN NULL AND 1",
        "1 IN ('x')",
        "a IN ()",
    ),
    *("a IN (1)", "a != 1", "a = 0.0", "(a = 1", "a = 'x", "a IS 1", "a CONTAINS 1", "NOT 1", "TRUE = 1"),
]
# Apache's broker takes the beginning for the whole condition.
TRAILING = ["a LIKE 'x'", "a + 1 = 2"]


async def fill(side: Side, topic: str) -> MessageQueue:
    await side.create_topic(topic, queues=1)
    queue = MessageQueue(topic, side.broker, 0)
    async with Producer("filling", namesrv=side.namesrv) as producer:
        for number, properties in enumerate(PROPERTIES):
            await producer.send(Message(topic, b"%d" % number, tag="t", keys=["k"], properties=properties))
    return queue


async def pulled(consumer: PullConsumer, queue: MessageQueue, condition: str) -> list[int]:
    found: list[int] = []
    offset = 0
    while True:
        result = await consumer.pull(queue, offset, expression=Sql(condition))
        if result.status is PullStatus.FOUND:
            found += [int(message.body) for message in result.messages]
        elif result.next_offset <= offset or result.status is not PullStatus.NO_MATCH:
            return found
        offset = result.next_offset


async def test_conditions_come_out_as_ours_says_at_both_brokers(side: Side) -> None:
    queue = await fill(side, "Conditions")
    wrong: dict[str, object] = {}
    async with PullConsumer("conditions", namesrv=side.namesrv) as consumer:
        stored = [message.properties for message in (await consumer.pull(queue, 0)).messages]
        assert len(stored) == len(PROPERTIES)
        for condition in CONDITIONS:
            compiled = compile_sql(condition)
            expected = [number for number, properties in enumerate(stored) if compiled.matches(properties)]
            found = await pulled(consumer, queue, condition)
            if found != expected:
                wrong[condition] = [(number, PROPERTIES[number]) for number in {*found} ^ {*expected}]
    assert wrong == {}


async def test_what_is_no_condition_is_refused_at_both_brokers(side: Side) -> None:
    queue = await fill(side, "NoConditions")
    answers: dict[str, int] = {}
    async with PullConsumer("no_conditions", namesrv=side.namesrv) as consumer:
        for condition in [*WRONG, *TRAILING]:
            answers[condition] = 0
            try:
                await consumer.check_expression(queue, Sql(condition))
            except BrokerError as e:
                answers[condition] = e.code
    assert answers == dict.fromkeys(WRONG, 23) | dict.fromkeys(TRAILING, 23 if side.make == "ours" else 0)


async def test_javas_push_consumer_filters_at_both_brokers(java: JavaClient, side: Side) -> None:
    queue = await fill(side, "ConditionsOfJava")
    with java.push_consumer(side.namesrv, "java_conditions", queue.topic, "a BETWEEN 1 AND 10 AND b IS NOT NULL", sql=True) as consumer:
        assert sorted(int(message["body"]) for message in consumer.take(3)) == [2, 9, 14]
    with (
        pytest.raises(ApacheFailed, match=r"expected|parse|CODE: 23"),
        java.push_consumer(side.namesrv, "java_wrong", queue.topic, "a >", sql=True),
    ):
        pass


async def test_our_push_consumer_filters_at_both_brokers(side: Side) -> None:
    queue = await fill(side, "ConditionsOfOurs")
    subscription = {queue.topic: Sql("b IN ('text', 'Text') OR a = 10")}
    found: set[int] = set()
    async with PushConsumer("our_conditions", subscription, namesrv=side.namesrv, consume_from="first") as consumer:
        async for batch in consumer.batches():
            found |= {int(message.body) for message in batch}
            if len(found) == 3:
                break
    assert found == {2, 3, 14}
    with pytest.raises(BrokerError):
        async with PushConsumer("our_wrong", {queue.topic: Sql("a >")}, namesrv=side.namesrv):
            pass
