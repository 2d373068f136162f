"""The page Groups: how far groups have read, who has which queue, and resets; an unknown number is never shown as 0."""

import pytest
from tests.unit.web.reading import HANGS, by_broker, reader_over

from sprocketmq import AdminClient, Message, Producer, PullConsumer, PushConsumer
from sprocketmq.errors import BrokerError, ConnectFailed
from sprocketmq.protocol.bodies import (
    Connection,
    ConsumeOffset,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ProcessQueueInfo,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicOffset,
    TopicStats,
)
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.testing import eventually
from sprocketmq.web.api import groups
from sprocketmq.web.api.rates import Rates, catch_up_s


def consume_stats(*rows, tps=0.0):
    """Rows are topic, committed, end, and the store time (ms) of the last consumed message."""
    table = {
        MessageQueue(topic, "a", n): ConsumeOffset(end, committed, committed, last_ms)
        for n, (topic, committed, end, last_ms) in enumerate(rows)
    }
    return ConsumeStats(table, tps)


def reader_of_group(**answers):
    return reader_over("a", timeout_s=30, **{"topic_configs_on": {}, "members_on": lambda *_: None, **answers})


async def figures_of(reader, group="billing"):
    return (await groups.group_figures(reader, [group]))["groups"][group]


# --- a real cluster ---


@pytest.fixture
async def orders(cluster):
    """Topic orders with two queues of five messages, and group billing."""
    async with AdminClient(namesrv=cluster.namesrv) as admin, Producer("pg", namesrv=cluster.namesrv) as producer:
        await admin.create_topic("orders", queues=2)
        await admin.create_group("billing")
        for n in range(10):
            await producer.send(Message("orders", b"%d" % n, queue=MessageQueue("orders", "broker-a", n % 2)))
        yield admin
        await admin.delete_group("billing", dead_letters=True)
        await admin.delete_topic("orders")


async def test_a_group_that_is_offline_is_shown_with_its_lag(cluster, orders, visitor):
    async with PullConsumer("billing", namesrv=cluster.namesrv) as consumer:
        await consumer.commit(MessageQueue("orders", "broker-a", 0), 2)
    rows = (await visitor.get("/api/groups")).json()["groups"]
    assert {"name": "billing", "kind": "normal", "enabled": True, "orderly": False, "max_retries": 16, "brokers": ["broker-a"]} in rows
    figures = (await visitor.post("/api/groups/figures", names=["billing"])).json()["groups"]["billing"]
    assert figures["lag"] >= 3
    assert figures["members"] == 0
    assert figures["dead_letters"] == 0
    assert figures["unknown"] == {}
    detail = (await visitor.get("/api/group", group="billing")).json()
    queue = next(row for row in detail["queue_rows"] if row["queue"] == 0)
    assert queue["lag"] == 3
    assert queue["behind_s"] is not None
    assert queue["owner"] is None
    assert detail["behind_s"] >= queue["behind_s"]


async def test_members_are_shown_with_their_queues(cluster, orders, visitor):
    async with PushConsumer("billing", {"orders": "*"}, namesrv=cluster.namesrv):

        async def owned():
            detail = (await visitor.get("/api/group", group="billing")).json()
            rows = [row for row in detail["queue_rows"] if row["topic"] == "orders"]
            return detail if len(rows) == 2 and all(row["owner"] for row in rows) else None

        detail = await eventually(owned, timeout_s=60)
        assert detail["members"] == 1
        member = detail["member_rows"][0]
        assert member["problem"] == ""
        assert member["queues"] >= 2
        assert {"topic": "orders", "expression": "*"} in detail["subscriptions"]


async def test_a_reset_is_shown_and_then_done(orders, visitor):
    shown = (await visitor.get("/api/group/preview", group="billing", topic="orders", to="last")).json()
    assert shown["never_committed"] == 2
    offsets = [{"broker": row["broker"], "queue": row["queue"], "offset": row["offset"]} for row in shown["queues"]]
    refused = await visitor.post("/api/group/reset", group="billing", topic="orders", offsets=offsets, confirm="no")
    assert refused.status_code == 409
    done = await visitor.post("/api/group/reset", group="billing", topic="orders", offsets=offsets, confirm="billing")
    assert done.json() == {"group": "billing", "topic": "orders", "queues": 2}
    assert set((await orders.committed("billing", "orders")).values()) == {5}
    back = (await visitor.get("/api/group/preview", group="billing", topic="orders", to="time", time_ms=0)).json()
    assert (back["again"], back["skipped"], back["online"]) == (10, 0, False)
    assert set((await orders.committed("billing", "orders")).values()) == {5}


@pytest.mark.parametrize("offsets", [None, [], [{"broker": "broker-a"}], [{"broker": "broker-a", "queue": "0", "offset": 1}], "x"])
async def test_a_reset_without_offsets_is_one_sentence(orders, visitor, offsets):
    answer = await visitor.post("/api/group/reset", group="billing", topic="orders", offsets=offsets, confirm="billing")
    assert answer.status_code == 400
    assert "offsets" in answer.json()["error"]["text"] or "preview" in answer.json()["error"]["text"]


async def test_unknown_groups_and_topics_are_not_found(visitor):
    assert (await visitor.get("/api/group", group="nosuch")).status_code == 404
    assert (await visitor.get("/api/group/preview", group="billing", topic="nosuch", to="first")).status_code == 404
    assert (await visitor.get("/api/group/preview", group="billing", topic="orders", to="sometime")).status_code == 400


# --- other clusters ---


async def test_a_failed_query_is_an_unknown_lag():
    for failure in (BrokerError(1, "no"), ConnectFailed("a:10911", "broker", "refused")):
        reader, _, _ = reader_of_group(consume_stats_on=failure)
        figures = await figures_of(reader)
        assert figures["lag"] is None
        assert figures["retry_lag"] is None
        assert figures["behind_s_most"] is None
        assert figures["catch_up_s"] is None
        assert figures["unknown"]["a"]


async def test_without_brokers_nothing_is_known():
    reader, _, _ = reader_over(timeout_s=30)
    figures = await figures_of(reader)
    assert (figures["lag"], figures["members"], figures["dead_letters"]) == (None, None, None)
    assert "no broker is registered" in figures["unknown"][""]


async def test_a_lag_of_some_brokers_is_marked():
    reader, _, _ = reader_over(
        "a",
        "b",
        timeout_s=30,
        topic_configs_on={},
        members_on=lambda *_: None,
        consume_stats_on=by_broker(a=consume_stats(("t", 2, 10, 1)), b=BrokerError(1, "no")),
    )
    figures = await figures_of(reader)
    assert (figures["lag"], figures["partial"]) == (8, True)
    assert list(figures["unknown"]) == ["b"]


async def test_retries_count_apart_and_times_come_from_the_last_consumed_message():
    reader, _, clock = reader_of_group()
    now = clock.time_ms()
    reader.admin.answers["consume_stats_on"] = consume_stats(
        ("t", 2, 10, now - 7000), ("t", 5, 5, now - 90_000), ("%RETRY%billing", 0, 3, now)
    )
    figures = await figures_of(reader)
    assert (figures["lag"], figures["retry_lag"], figures["behind_s_most"], figures["topics"]) == (8, 3, 7.0, ["t"])


async def test_the_time_of_a_group_that_never_consumed_is_unknown():
    reader, _, _ = reader_of_group(consume_stats_on=consume_stats(("t", 0, 10, 0)))
    assert (await figures_of(reader))["behind_s_most"] is None


async def test_rates_come_from_two_looks():
    reader, admin, clock = reader_of_group(consume_stats_on=consume_stats(("t", 100, 1000, 1)))
    assert (await figures_of(reader))["catch_up_s"] is None
    clock.advance(10)
    admin.answers["consume_stats_on"] = consume_stats(("t", 400, 1100, 1))
    figures = await figures_of(reader)
    assert (figures["stored_per_s"], figures["consumed_per_s"], figures["catch_up_s"]) == (10.0, 30.0, 35.0)
    admin.answers["consume_stats_on"] = consume_stats(("t", 0, 1100, 1))  # reset
    clock.advance(10)
    assert (await figures_of(reader))["stored_per_s"] is None


def test_a_group_that_does_not_gain_never_catches_up():
    assert catch_up_s(100, Rates(10, 10)) is None
    assert catch_up_s(100, Rates(10, 5)) is None
    assert catch_up_s(0, Rates(10, 5)) == 0.0
    assert catch_up_s(100, Rates(0, 50)) == 2.0


async def test_dead_letters_are_counted_where_the_topic_is():
    reader, admin, _ = reader_of_group(
        consume_stats_on=consume_stats(),
        topic_configs_on={"%DLQ%billing": TopicConfig("%DLQ%billing")},
        topic_stats_on=TopicStats({MessageQueue("%DLQ%billing", "a", 0): TopicOffset(3, 10, 0)}),
    )
    assert (await figures_of(reader))["dead_letters"] == 7
    admin.answers["topic_stats_on"] = BrokerError(1, "no")
    assert (await figures_of(reader))["dead_letters"] is None


async def test_a_member_that_hangs_is_listed_with_a_reason_and_its_broker_stays_in_use():
    reader, _, _ = reader_over(
        "a",
        groups_on={"billing": SubscriptionGroupConfig("billing")},
        topic_configs_on={},
        topic_stats_on=TopicStats({MessageQueue("t", "a", 0): TopicOffset(6, 10, 0)}),
        consume_stats_on=consume_stats(("t", 2, 10, 1)),
        members_on=ConsumerConnection([Connection("c1", "1.2.3.4:5", "GO", 400), Connection("c2", "1.2.3.4:6", "JAVA", 493)]),
        running_info_on=lambda address, group, client_id: (
            HANGS if client_id == "c1" else ConsumerRunningInfo(mq_table={MessageQueue("t", "a", 0): ProcessQueueInfo(cached_msg_count=4)})
        ),
    )
    detail = await groups.group_detail(reader, "billing")
    members = {member["client_id"]: member for member in detail["member_rows"]}
    assert members["c1"]["queues"] is None
    assert "no answer within" in members["c1"]["problem"]
    assert (members["c2"]["queues"], members["c2"]["waiting"]) == (1, 4)
    (queue,) = detail["queue_rows"]
    assert queue["owner"] == "c2"
    assert queue["expired_unread"] == 4
    assert queue["behind_s"] is None
    assert detail["behind_s"] is None
    assert detail["unknown"] == {}


async def test_a_thousand_groups_of_a_broker_that_hangs_wait_once():
    reader, admin, _ = reader_over("a", topic_configs_on={}, consume_stats_on=HANGS, members_on=HANGS)
    for first in range(0, 1000, 100):
        found = await groups.group_figures(reader, [f"g{n}" for n in range(first, first + 100)])
        assert all(one["lag"] is None and one["members"] is None for one in found["groups"].values())
    assert len(admin.asked) <= 40
