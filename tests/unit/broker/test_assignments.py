"""Queues divided by the broker (400), and groups that pull or pop by an administrator's word (401, 402)."""

import json

import pytest
from asking import exchange
from hypothesis import given
from hypothesis import strategies as st
from pairs import caught_up
from test_recorded import RAW, recorded

from sprocketmq.broker.pop import assignments
from sprocketmq.broker.pop.assignments import shared
from sprocketmq.protocol.bodies import RequestMode
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.testing import eventually

QUEUES = [MessageQueue("orders", "broker-a", queue_id) for queue_id in range(4)]


def mode(kind="PULL", others=-1):
    return RequestMode("orders", "cg", kind, others)


async def assigned(client, *, topic="orders", me="c1", **fields):
    """Return [(broker name, queue id, mode), ...] that 400 assigns, None when the member keeps what it has."""
    body = {"topic": topic, "consumerGroup": "cg", "clientId": me, "strategyName": "AVG", "messageModel": "CLUSTERING", **fields}
    answer = await client(400, {}, json.dumps(body).encode())
    assert answer.code == 0, answer.remark
    found = json.loads(answer.body).get("messageQueueAssignments")
    return found and [(one["messageQueue"]["brokerName"], one["messageQueue"]["queueId"], one["mode"]) for one in found]


async def set_mode(client, kind="POP", *, topic="orders", group="cg", others=0):
    body = {"topic": topic, "consumerGroup": group, "mode": kind, "popShareQueueNum": others}
    return await client(401, {}, json.dumps(body).encode())


async def modes(client):
    answer = await client(402)
    assert answer.code == 0
    return json.loads(answer.body)["messageRequestModeMap"]


# --- the rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("AVG", {"a": [0, 1], "b": [2], "c": [3]}), ("AVG_BY_CIRCLE", {"a": [0, 3], "b": [1], "c": [2]})],
)
def test_members_that_pull_divide_the_queues(strategy, expected):
    found = {me: [queue.queue_id for queue in shared(QUEUES, ["a", "b", "c"], me, strategy, mode())] for me in "abc"}
    assert found == expected


@pytest.mark.parametrize("others", [-1, 0, 2, 9])
def test_members_that_pop_read_whole_brokers(others):
    two = [*QUEUES, MessageQueue("orders", "broker-b", 0)]
    found = shared(two, ["a", "b", "c"], "c", "AVG", mode("POP", others))
    assert found == [MessageQueue("orders", "broker-a", -1), MessageQueue("orders", "broker-b", -1)]


def test_members_that_pop_share_their_queues_with_those_that_follow():
    found = [[queue.queue_id for queue in shared(QUEUES, list("abcd"), me, "AVG", mode("POP", 1))] for me in "abcd"]
    assert found == [[0, 1], [1, 2], [2, 3], [3, 0]]


def test_more_members_than_queues_take_the_queues_in_turn():
    members = list("abcdef")
    found = [[queue.queue_id for queue in shared(QUEUES, members, me, "AVG", mode("POP", 1))] for me in members]
    assert found == [[0], [1], [2], [3], [0], [1]]


def test_a_client_that_is_no_member_has_no_queues_and_a_group_without_members_keeps_its_own():
    assert shared(QUEUES, ["a"], "b", "AVG", mode()) == []
    assert shared(QUEUES, ["a", "c", "d"], "b", "AVG", mode("POP", 1)) == []
    assert shared(QUEUES, [], "b", "AVG", mode()) is None
    assert shared(QUEUES, ["b"], "b", "NEAREST", mode()) is None
    assert shared([], ["b", "c", "d"], "b", "AVG", mode("POP", 1)) == []


@given(queues=st.integers(1, 12), members=st.integers(1, 9), others=st.integers(-1, 9), kind=st.sampled_from(["PULL", "POP"]))
def test_every_queue_is_read(queues, members, others, kind):
    all_queues = [MessageQueue("orders", "broker-a", queue_id) for queue_id in range(queues)]
    names = [f"m{n}" for n in range(members)]
    found = [shared(all_queues, names, me, "AVG", mode(kind, others)) for me in names]
    read = {queue.queue_id for part in found for queue in part}
    assert read in ({-1}, set(range(queues)))
    if kind == "PULL":
        assert sum(map(len, found)) == queues


# --- requests -------------------------------------------------------------------------------------------------------------


async def test_the_queues_are_divided_among_the_members_of_the_group(broker, connect):
    first, second = await connect(broker), await connect(broker)
    await first.heartbeat("c1", consumers=["cg"])
    await second.heartbeat("c2", consumers=["cg"])
    assert await assigned(first) == [("broker-a", 0, "PULL"), ("broker-a", 1, "PULL")]
    assert await assigned(second, me="c2") == [("broker-a", 2, "PULL"), ("broker-a", 3, "PULL")]
    assert await assigned(second, me="c2", messageModel="BROADCASTING") == [("broker-a", n, "PULL") for n in range(4)]
    await first.close()
    await eventually(lambda: len(broker.clients.consumers.get("cg").members) == 1)
    assert await assigned(second, me="c2") == [("broker-a", n, "PULL") for n in range(4)]


async def test_unknown_topics_groups_and_strategies_leave_members_what_they_have(broker, ask):
    assert await assigned(ask) is None
    await ask.heartbeat("c1", consumers=["cg"])
    assert await assigned(ask, topic="nothing") is None
    assert await assigned(ask, strategyName="NEAREST") is None
    assert await assigned(ask, me="c9") == []


async def test_the_queues_of_all_brokers_of_a_topic_are_divided(start_broker, namesrv, connect):
    one = await start_broker("one", namesrv=(namesrv.address,), broker_name="one")
    two = await start_broker("two", namesrv=(namesrv.address,), broker_name="two")
    for broker in (one, two):
        broker.topics.create_internal("orders", 2)
        await broker.registrar.register()
    asking = await connect(one)
    await asking.heartbeat("c1", consumers=["cg"])
    assert await assigned(asking) == [("one", 0, "PULL"), ("one", 1, "PULL"), ("two", 0, "PULL"), ("two", 1, "PULL")]
    assert (await set_mode(asking)).code == 0
    assert await assigned(asking) == [("one", -1, "POP"), ("two", -1, "POP")]


@pytest.mark.parametrize("kind", ["json", "bin"])
async def test_a_recorded_question_gets_the_recorded_answer(broker, ask, kind):
    broker.topics.create_internal("FxPlain", 4)
    await ask.heartbeat("another", consumers=["fx_group_push"], topics=["FxPlain"])
    name = f"query-assignment.{kind}"
    (answer,) = await exchange(broker.address, RAW[f"{name}.request.bin"])
    expected = recorded(name)
    assert (answer.code, answer.ext, answer.remark, answer.body) == (expected.code, expected.ext, expected.remark, expected.body)


async def test_more_questions_than_the_bound_are_put_off(broker, ask, monkeypatch):
    monkeypatch.setattr(assignments, "MAX_ASKING", 0)
    body = json.dumps({"topic": "orders", "consumerGroup": "cg", "clientId": "c1"}).encode()
    answer = await ask(400, {}, body)
    assert (answer.code, answer.remark) == (2, "[OVERLOAD]system busy, start flow control for a while")


async def test_a_mode_is_set_saved_and_there_after_a_restart(broker, ask, connect, start_broker):
    await ask.heartbeat("c1", consumers=["cg"])
    assert await modes(ask) == {}
    assert (await set_mode(ask, others=3)).code == 0
    expected = {"orders": {"cg": {"topic": "orders", "consumerGroup": "cg", "mode": "POP", "popShareQueueNum": 3}}}
    assert await modes(ask) == expected
    saved = broker.config.store.root / "config" / "messageRequestMode.json"
    assert json.loads(saved.read_text()) == {"messageRequestModeMap": expected}
    assert await assigned(ask) == [("broker-a", -1, "POP")]
    await broker.stop()
    again = await start_broker(like=broker)
    client = await connect(again)
    assert await modes(client) == expected
    assert (await set_mode(client, "PULL")).code == 0
    await client.heartbeat("c1", consumers=["cg"])
    assert await assigned(client) == [("broker-a", n, "PULL") for n in range(4)]


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"kind": "POLL"}, 29, "the mode 'POLL' is neither PULL nor POP"),
        ({"topic": "%RETRY%cg"}, 16, "retry topic is not allowed to set mode"),
        ({"topic": "nothing"}, 17, "topic[nothing] not exist"),
        ({"group": "nobody"}, 26, "subscription group [nobody] does not exist"),
    ],
)
async def test_modes_that_cannot_be_are_refused(start_broker, connect, fields, code, remark):
    broker = await start_broker(auto_create_group=False)
    broker.topics.create_internal("orders", 4)
    ask = await connect(broker)
    answer = await set_mode(ask, **fields)
    assert (answer.code, answer.remark.startswith(remark)) == (code, True), answer.remark
    assert await modes(ask) == {}


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"topic": "orders"}', b'{"topic": "orders", "consumerGroup": 3}', b"\xff"])
@pytest.mark.parametrize("code", [400, 401])
async def test_bodies_that_are_none_are_refused(broker, ask, body, code):
    answer = await ask(code, {}, body)
    assert answer.code != 0
    assert answer.remark
    assert (await ask(402)).code == 0


async def test_a_slave_takes_its_masters_modes_and_refuses_changes(pair, connect):
    master, slave = await pair()
    asking, at_slave = await connect(master), await connect(slave)
    assert (await set_mode(asking)).code == 0
    await eventually(lambda: caught_up(master, slave) and slave.modes.get("orders", "cg").mode == "POP")
    assert await modes(at_slave) == await modes(asking)
    assert (await set_mode(at_slave)).code == 16
