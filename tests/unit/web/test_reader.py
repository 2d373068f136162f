"""A whole cluster is read with few requests at once, and a broker that does not answer costs its own figures and little time."""

import asyncio

import pytest
from tests.unit.web.reading import HANGS, by_broker, reader_over

from sprocketmq.errors import BrokerError, ConnectFailed, RequestTimeout
from sprocketmq.protocol.bodies import TopicConfig
from sprocketmq.web.api.reader import MAX_SAMPLES, REQUESTS_AT_ONCE, BrokerAway


async def test_every_broker_has_an_answer_or_a_reason():
    refused = BrokerError(1, "no luck", address="b:10911")
    reader, admin, _ = reader_over("a", "b", "c", timeout_s=30, broker_runtime=by_broker(a={"x": "1"}, b=refused, c={"x": "3"}))
    answers, missing = await reader.ask_all(admin.broker_runtime)
    assert answers == {"a": {"x": "1"}, "c": {"x": "3"}}
    assert missing == {"b": str(refused)}


async def test_a_name_that_is_not_registered_has_a_reason():
    reader, admin, _ = reader_over("a", timeout_s=30, broker_runtime={})
    assert await reader.ask_all(admin.broker_runtime, ["gone"]) == ({}, {"gone": "the broker is not registered at the nameserver"})


async def test_a_broker_that_hangs_is_asked_again_only_after_a_while():
    reader, admin, clock = reader_over("a", broker_runtime=HANGS)
    with pytest.raises(BrokerAway, match="a:10911 did not answer within"):
        await reader.ask("a:10911", admin.broker_runtime)
    for _ in range(1000):
        with pytest.raises(BrokerAway):
            await reader.ask("a:10911", admin.broker_runtime)
    assert len(admin.asked) == 1
    clock.advance(6)
    admin.answers["broker_runtime"] = {"up": "1"}
    assert await reader.ask("a:10911", admin.broker_runtime) == {"up": "1"}


@pytest.mark.parametrize("error", [ConnectFailed("a:10911", "broker", "refused"), RequestTimeout("a:10911", 28, 5000)])
async def test_a_broker_that_cannot_be_reached_is_away(error):
    reader, admin, _ = reader_over("a", timeout_s=30, broker_runtime=error)
    for _ in range(3):
        with pytest.raises(BrokerAway, match=r"a:10911"):
            await reader.ask("a:10911", admin.broker_runtime)
    assert len(admin.asked) == 1


async def test_a_refusal_does_not_make_a_broker_away():
    reader, admin, _ = reader_over("a", timeout_s=30)
    for _ in range(2):
        with pytest.raises(BrokerError):
            await reader.ask("a:10911", admin.broker_runtime)
    assert len(admin.asked) == 2


async def test_few_requests_are_in_flight():
    reader, _, _ = reader_over("a", timeout_s=30)
    running, most = 0, 0

    async def request(address):
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1

    await asyncio.gather(*(reader.ask("a:10911", request) for _ in range(200)))
    assert most == REQUESTS_AT_ONCE


async def test_lists_are_shared_for_some_seconds_and_read_again_after_a_change():
    reader, admin, clock = reader_over("a", timeout_s=30, topic_configs_on={"t": TopicConfig("t")})
    tables = await asyncio.gather(*(reader.topic_table() for _ in range(20)))
    assert all(table[0]["t"]["a"].topic_name == "t" for table in tables)

    def times():
        return [name for name, *_ in admin.asked].count("topic_configs_on")

    assert times() == 1
    clock.advance(11)
    await reader.topic_table()
    assert times() == 2
    reader.forget()
    await reader.topic_table()
    assert times() == 3


async def test_a_topic_made_since_the_list_was_read_is_found():
    reader, admin, clock = reader_over("a", timeout_s=30, topic_configs_on={"t": TopicConfig("t")})
    await reader.topic_table()
    admin.answers["topic_configs_on"] = {"t": TopicConfig("t"), "new": TopicConfig("new")}
    clock.advance(0.001)
    tables = await asyncio.gather(*(reader.topic_table("new") for _ in range(20)))
    assert all("new" in table[0] for table in tables)
    assert [name for name, *_ in admin.asked].count("topic_configs_on") == 2


async def test_samples_are_bounded():
    reader, _, _ = reader_over("a")
    for n in range(MAX_SAMPLES + 10):
        reader.keep_sample(str(n), n)
    assert reader.sample("0") is None
    assert reader.sample(str(MAX_SAMPLES)) == MAX_SAMPLES
