"""The page Topics: what it lists and shows of a cluster, and what it says where brokers do not tell."""

import pytest
from tests.unit.web.reading import HANGS, by_broker, no_topic, reader_over

from sprocketmq import Message, Producer
from sprocketmq.errors import BrokerError, ConfigError, ConnectFailed
from sprocketmq.protocol.bodies import BrokerStats, StatsWindow, TopicConfig, TopicOffset, TopicStats
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.web.api import topics

BATCH = {"queue.type": "BatchCQ"}


def stats(topic, broker, *ends):
    return TopicStats({MessageQueue(topic, broker, n): TopicOffset(0, end, 1000 + n) for n, end in enumerate(ends)})


def counter(count, requests=None, *, hour=0, day=0):
    def window(number):
        return StatsWindow(number, number / 60, number / (requests or number)) if number else StatsWindow()

    return BrokerStats(window(count), window(hour), window(day))


# --- a real cluster ---


async def test_topics_are_created_shown_changed_and_deleted(cluster, visitor):
    made = await visitor.post("/api/topic/create", topic="bulk", queues=2, batch=True)
    assert made.status_code == 200, made.text
    async with Producer("pg", namesrv=cluster.namesrv) as producer:
        await producer.send_batch([Message("bulk", b"%d" % n, tag="odd" if n % 2 else "even") for n in range(20)])
    row = next(row for row in (await visitor.get("/api/topics")).json()["topics"] if row["name"] == "bulk")
    assert row == {"name": "bulk", "kind": "normal", "type": "batch", "queues": 2, "perm": 6, "brokers": ["broker-a"]}
    figures = (await visitor.post("/api/topics/figures", names=["bulk"])).json()["topics"]["bulk"]
    assert figures["messages"] == 20
    assert figures["newest_ms"] > 0
    assert figures["unknown"] == {}
    detail = (await visitor.get("/api/topic", topic="bulk")).json()
    assert sum(queue["end"] - queue["begin"] for queue in detail["queue_rows"]) == 20
    assert detail["settings"][0]["attributes"] == BATCH
    tags = (await visitor.get("/api/topic/tags", topic="bulk")).json()
    assert {one["tag"]: one["count"] for one in tags["tags"]} == {"odd": 10, "even": 10}
    changed = await visitor.post("/api/topic/alter", topic="bulk", queues=3, perm=4)
    assert changed.json() == {"topic": "bulk", "brokers": ["broker-a"]}
    assert (await visitor.get("/api/topic", topic="bulk")).json()["perm"] == 4
    assert (await visitor.post("/api/topic/delete", topic="bulk", confirm="bulk")).status_code == 200
    assert (await visitor.get("/api/topic", topic="bulk")).status_code == 404


async def test_a_topic_that_exists_is_not_created_again(visitor):
    await visitor.post("/api/topic/create", topic="orders", queues=1)
    again = await visitor.post("/api/topic/create", topic="orders", queues=4)
    assert again.status_code == 400
    assert "exists already" in again.json()["error"]["text"]
    await visitor.post("/api/topic/delete", topic="orders", confirm="orders")


async def test_deleting_needs_the_name_typed(visitor):
    await visitor.post("/api/topic/create", topic="orders", queues=1)
    assert (await visitor.post("/api/topic/delete", topic="orders", confirm="order")).status_code == 409
    assert (await visitor.get("/api/topic", topic="orders")).status_code == 200
    await visitor.post("/api/topic/delete", topic="orders", confirm="orders")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/topic/create", {"topic": "a b"}),
        ("/api/topic/create", {"topic": "x", "queues": 0}),
        ("/api/topic/create", {"topic": "x", "perm": 8}),
        ("/api/topic/create", {"topic": "x", "message_type": "SOME"}),
        ("/api/topic/create", {"topic": "x", "broker": "nosuch"}),
        ("/api/topic/create", {"topic": ["x"]}),
        ("/api/topic/alter", {"topic": "x"}),
        ("/api/topic/delete", {"topic": "TBW102", "confirm": "TBW102"}),
        ("/api/topics/figures", {"names": ["x"] * 101}),
        ("/api/topics/figures", {"names": "x"}),
    ],
)
async def test_impossible_changes_are_one_sentence(visitor, path, body):
    answer = await visitor.post(path, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["text"]


async def test_a_topic_that_was_made_elsewhere_is_shown_at_once():
    reader, admin, clock = reader_over("a", timeout_s=30, topic_configs_on={"old": TopicConfig("old")}, groups_of_topic_on=[])
    await topics.list_topics(reader)
    admin.answers["topic_configs_on"] = {"old": TopicConfig("old"), "new": TopicConfig("new")}
    clock.advance(2)
    assert (await topics.topic_detail(reader, "new"))["name"] == "new"


async def test_changing_or_showing_an_unknown_topic_is_not_found(visitor):
    assert (await visitor.post("/api/topic/alter", topic="nosuch", queues=1, perm=6)).status_code == 404
    assert (await visitor.get("/api/topic", topic="nosuch")).status_code == 404
    assert (await visitor.get("/api/topic/tags", topic="nosuch")).status_code == 404
    figures = (await visitor.post("/api/topics/figures", names=["nosuch"])).json()["topics"]["nosuch"]
    assert "deleted" in figures["unknown"][""]


# --- other clusters ---


async def test_a_topic_is_listed_with_what_the_brokers_that_answer_say():
    reader, _, _ = reader_over(
        "a",
        "b",
        timeout_s=30,
        topics=["only-in-namesrv", "orders", "%DLQ%billing", "%RETRY%billing", "a", "TBW102"],
        topic_configs_on=by_broker(
            a={"orders": TopicConfig("orders", read_queue_nums=4, attributes=BATCH)}, b=ConnectFailed("b:10911", "broker", "refused")
        ),
    )
    found = await topics.list_topics(reader)
    rows = {row["name"]: row for row in found["topics"]}
    assert rows["orders"]["type"] == "batch"
    assert rows["orders"]["queues"] == 4
    assert rows["only-in-namesrv"]["queues"] is None
    assert rows["only-in-namesrv"]["type"] is None
    assert {name: row["kind"] for name, row in rows.items()} == {
        "only-in-namesrv": "normal",
        "orders": "normal",
        "%DLQ%billing": "dlq",
        "%RETRY%billing": "retry",
        "a": "system",
        "TBW102": "system",
    }
    assert "refused" in found["missing"]["b"]


async def test_a_nameserver_that_does_not_list_topics_is_said():
    reader, _, _ = reader_over("a", timeout_s=30, topics=BrokerError(1, "disable"), topic_configs_on={"orders": TopicConfig("orders")})
    found = await topics.list_topics(reader)
    assert [row["name"] for row in found["topics"]] == ["orders"]
    assert "disable" in found["problem"]


async def test_brokers_that_differ_make_a_mixed_topic():
    assert topics.type_of({"a": TopicConfig("t"), "b": TopicConfig("t", attributes=BATCH)}) == "mixed"


async def test_figures_add_up_over_brokers():
    reader, _, _ = reader_over(
        "a",
        "b",
        timeout_s=30,
        topic_configs_on={"t": TopicConfig("t")},
        topic_stats_on=by_broker(a=stats("t", "a", 100), b=stats("t", "b", 50, 50)),
        counter_on=lambda address, name, topic: counter(180, 9, day=1800) if name == "TOPIC_PUT_NUMS" else counter(18000, day=180_000),
    )
    figures = (await topics.topic_figures(reader, ["t"]))["topics"]["t"]
    assert figures["messages"] == 200
    assert figures["rate"] == 6.0
    assert figures["bytes"] == 20_000
    assert figures["unknown"] == {}


async def test_an_empty_topic_has_no_bytes():
    reader, _, _ = reader_over("a", timeout_s=30, topic_configs_on={"t": TopicConfig("t")}, topic_stats_on=stats("t", "a", 0))
    assert (await topics.topic_figures(reader, ["t"]))["topics"]["t"]["bytes"] == 0


async def test_an_unknown_figure_is_none_and_has_a_reason():
    reader, _, _ = reader_over("a", timeout_s=30, topic_configs_on={"t": TopicConfig("t")}, topic_stats_on=stats("t", "a", 10))
    figures = (await topics.topic_figures(reader, ["t"]))["topics"]["t"]
    assert figures["messages"] == 10
    assert figures["rate"] is None
    assert figures["bytes"] is None
    assert "not supported" in figures["unknown"]["a"]


async def test_a_broker_without_a_counter_yet_has_a_rate_of_zero():
    reader, admin, _ = reader_over("a", timeout_s=30, topic_configs_on={"t": TopicConfig("t")}, topic_stats_on=stats("t", "a", 10))
    admin.answers["counter_on"] = lambda *_: None
    figures = (await topics.topic_figures(reader, ["t"]))["topics"]["t"]
    assert figures["rate"] == 0
    assert figures["batch"] is None


async def test_a_hundred_topics_of_a_broker_that_hangs_wait_once():
    reader, admin, _ = reader_over("a", topic_configs_on={f"t{n}": TopicConfig(f"t{n}") for n in range(100)}, topic_stats_on=HANGS)
    found = await topics.topic_figures(reader, [f"t{n}" for n in range(100)])
    assert all("did not answer within" in one["unknown"]["a"] for one in found["topics"].values())
    assert len([call for call in admin.asked if call[0] == "topic_stats_on"]) <= 32


async def test_a_topic_deleted_meanwhile_says_so():
    reader, _, _ = reader_over("a", timeout_s=30, topic_configs_on={"t": TopicConfig("t")}, topic_stats_on=no_topic)
    figures = (await topics.topic_figures(reader, ["t"]))["topics"]["t"]
    assert figures["messages"] is None
    assert "'t'" in figures["unknown"]["a"]


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ({"a": counter(180, 9)}, 20.0),
        ({"a": counter(100, 100), "b": counter(300, 100)}, 2.0),
        ({"a": None}, None),
        ({"a": BrokerStats()}, None),
        ({"a": BrokerStats(StatsWindow(5, 1.0, 0.0))}, None),
    ],
)
def test_messages_per_send_request(counters, expected):
    assert topics.batch_size(counters) == expected


async def test_changing_a_topic_waits_for_all_brokers():
    reader, _, _ = reader_over(
        "a", "b", timeout_s=30, topic_configs_on=by_broker(a={"t": TopicConfig("t")}, b=ConnectFailed("b:1", "broker", "refused"))
    )
    with pytest.raises(ConfigError, match="not all brokers tell their topics"):
        await topics.alter_topic(reader, "t", queues=1, perm=6, message_type="", broker="")
