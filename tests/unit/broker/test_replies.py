"""Replies to requests (324, 325): pushed to the producer that waits for them (326), refused by name when nobody does."""

import asyncio

import pytest
from asking import exchange
from test_recorded import RAW, recorded

from sprocketmq.broker.replies import handlers
from sprocketmq.protocol.bodies import HeartbeatData, ProducerData
from sprocketmq.protocol.headers import PushReply
from sprocketmq.protocol.properties import decode_properties
from sprocketmq.testing import eventually

TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKED = "CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01requester\x02TTL\x013000\x02MSG_TYPE\x01reply\x02"


async def join(client, client_id="requester"):
    """Make a connection that of a producer."""
    answer = await client(34, {}, HeartbeatData(client_id, [ProducerData("pg")], []).encode())
    assert answer.code == 0


def reply(client, *, properties=ASKED, topic=TOPIC, body=b"the reply", **fields):
    return client.request(325, client.send_ext(topic, properties=properties, **fields), body)


async def pushed_to(client):
    command = await client.next_push()
    assert command.code == 326
    return command


async def test_a_reply_reaches_the_requester_and_then_is_answered(broker, connect, ask):
    requester = await connect(broker)
    await join(requester)
    replying = asyncio.ensure_future(reply(ask))
    command = await pushed_to(requester)
    assert not replying.done()
    requester.conn.respond(command, 0)
    answer = await replying
    assert (answer.code, answer.remark) == (0, None)
    assert answer.ext == {"queueId": "0", "msgId": "0", "queueOffset": "0", "TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}
    header = command.header(PushReply)
    assert (header.topic, header.store_host, command.body) == (TOPIC, broker.address, b"the reply")
    pairs = decode_properties(header.properties.encode())
    assert pairs.pop("PUSH_REPLY_TIME") == str(header.store_timestamp_ms)
    assert pairs == {**decode_properties(ASKED.encode()), "TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}
    assert broker.store.commitlog_staged_offset == 0
    assert dict(broker.counters.replies) == {handlers.DELIVERED: 1}


@pytest.mark.parametrize("name", ["send-reply-v2.json", "send-reply-v2.bin"])
async def test_a_recorded_reply_is_pushed_with_the_recorded_fields(broker, connect, name):
    requester = await connect(broker)
    await join(requester, "192.0.2.2@fx-p")
    replying = asyncio.ensure_future(exchange(broker.address, RAW[f"{name}.request.bin"]))
    command = await pushed_to(requester)
    expected = recorded("push-reply.json", "request")
    requester.conn.respond(command, 0)
    (answer,) = await replying
    assert answer.ext.keys() == recorded(name).ext.keys()
    assert command.ext.keys() == expected.ext.keys()
    own = {"bornHost", "storeHost", "storeTimestamp", "properties", "bornTimestamp"}
    assert {k: v for k, v in command.ext.items() if k not in own} == {k: v for k, v in expected.ext.items() if k not in own}
    pairs, recorded_pairs = (decode_properties(one.ext["properties"].encode()) for one in (command, expected))
    assert pairs.keys() == recorded_pairs.keys()


@pytest.mark.parametrize("name", ["send-reply-v1.json", "send-reply-v1.bin"])
async def test_a_reply_for_nobody_is_refused_in_the_recorded_words(broker, name, caplog):
    (answer,) = await exchange(broker.address, RAW[f"{name}.request.bin"])
    expected = recorded(name)
    assert (answer.code, answer.remark, answer.ext.keys()) == (expected.code, expected.remark, expected.ext.keys())
    assert dict(broker.counters.replies) == {handlers.REQUESTER_GONE: 1}
    assert "reply_undelivered requester=192.0.2.9@fx-gone" in caplog.text


async def test_lines_about_replies_for_nobody_are_limited(broker, ask, caplog):
    for _ in range(50):
        assert (await reply(ask)).code == 1
    assert caplog.text.count("reply_undelivered") == 1
    assert broker.counters.replies[handlers.REQUESTER_GONE] == 50


async def test_a_requester_that_left_is_found_no_more(broker, connect, ask):
    first, second = await connect(broker), await connect(broker)
    await join(first)
    await join(second)
    replying = asyncio.ensure_future(reply(ask))
    second.conn.respond(await pushed_to(second), 0)  # the newest connection
    assert (await replying).code == 0
    await second.close()
    await eventually(lambda: len(broker.clients.producers["pg"]) == 1)
    replying = asyncio.ensure_future(reply(ask))
    first.conn.respond(await pushed_to(first), 0)
    assert (await replying).code == 0
    await first(35, {"clientID": "requester", "producerGroup": "pg"})
    assert (await reply(ask)).remark == "push reply message fail, channel of <requester> not found."


async def test_a_client_id_that_changes_leaves_nothing_behind(broker, connect, ask):
    requester = await connect(broker)
    for number in range(3):
        await join(requester, f"requester-{number}")
    assert broker.clients.requesters.find("requester-0") is None
    assert broker.clients.requesters.find("requester-2") is not None


async def test_a_requester_that_ends_or_refuses_is_told_to_the_one_who_replied(broker, connect, ask):
    requester = await connect(broker)
    await join(requester)
    replying = asyncio.ensure_future(reply(ask))
    requester.conn.respond(await pushed_to(requester), 1, remark="too late")
    answer = await replying
    assert (answer.code, answer.remark) == (1, "push reply message to <requester>fail.")
    replying = asyncio.ensure_future(reply(ask))
    await pushed_to(requester)
    await requester.close()
    assert (await replying).remark == "push reply message to <requester>fail."
    assert dict(broker.counters.replies) == {handlers.NOT_TAKEN: 2}


async def test_a_requester_that_never_answers_is_given_up(broker, connect, ask, monkeypatch):
    monkeypatch.setattr(handlers, "PUSH_TIMEOUT_S", 0.05)
    requester = await connect(broker)
    await join(requester)
    assert (await reply(ask)).remark == "push reply message to <requester>fail."


async def test_replies_that_wait_are_bounded(broker, connect, ask, monkeypatch):
    requester = await connect(broker)
    await join(requester)
    monkeypatch.setattr(handlers, "MAX_PUSHES_OF_ONE", 1)
    replying = asyncio.ensure_future(reply(ask))
    command = await pushed_to(requester)
    busy = await reply(ask)
    assert (busy.code, busy.remark) == (2, "[OVERLOAD]system busy, start flow control for a while")
    monkeypatch.setattr(handlers, "MAX_PUSHES", 1)
    monkeypatch.setattr(handlers, "MAX_PUSHES_OF_ONE", 2)
    assert (await reply(ask)).code == 2
    monkeypatch.setattr(handlers, "MAX_PUSHES", 2)
    monkeypatch.setattr(handlers, "MAX_PUSHED_BYTES", 10)
    assert (await reply(ask)).code == 2
    requester.conn.respond(command, 0)
    assert (await replying).code == 0
    replying = asyncio.ensure_future(reply(ask))  # there is room again
    requester.conn.respond(await pushed_to(requester), 0)
    assert (await replying).code == 0
    assert broker.counters.replies[handlers.OVERLOADED] == 3


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"properties": "CORRELATION_ID\x01c1\x02"}, 1, "reply message properties[REPLY_TO_CLIENT] is null"),
        ({"topic": "Other_REPLY_TOPIC"}, 17, "topic[Other_REPLY_TOPIC] of the reply not exist on this broker"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."),
        ({"body": b""}, 13, "a reply is one message"),
        ({"body": bytes((4 << 20) + 1)}, 13, "a reply is one message"),
        ({"batch": True}, 13, "a reply is one message"),
        ({"properties": f"{ASKED}more\x01{'x' * 32767}\x02"}, 13, "a reply is one message"),
    ],
)
async def test_what_is_no_reply_is_refused(broker, connect, ask, fields, code, remark):
    requester = await connect(broker)
    await join(requester)
    answer = await reply(ask, **fields)
    assert (answer.code, answer.remark[: len(remark)]) == (code, remark)
    assert dict(broker.counters.replies) == {handlers.ILLEGAL: 1}
