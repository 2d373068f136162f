"""The requests of the pages Messages, Dead letters and Traces, over HTTP."""

import pytest

from sprocketmq import AdminClient, Message, Producer
from sprocketmq.web.target import ClusterTarget


@pytest.fixture
async def sent(cluster, visitor):
    """Where a message of topic ``requests`` is."""
    async with AdminClient(namesrv=cluster.namesrv) as admin, Producer("requests", namesrv=cluster.namesrv) as producer:
        await admin.create_topic("requests", queues=2)
        return await producer.send(Message("requests", b"<b>here</b>", keys=["k"]))


def place(result):
    return {"topic": result.topic, "broker": result.broker_name, "queue": result.queue_id, "offset": result.queue_offset}


async def test_a_message_is_searched_shown_and_downloaded(visitor, sent):
    found = (await visitor.get("/api/messages", topic="requests", by="key", text="k", count="10", contains="")).json()
    assert "<b>here</b>" in [line["preview"] for line in found["messages"]]
    shown = await visitor.get("/api/message", **place(sent))
    assert (shown.status_code, shown.json()["msg_id"]) == (200, sent.msg_id)
    assert (await visitor.get("/api/message/body", **place(sent))).json() == {"body": "PGI+aGVyZTwvYj4="}
    assert "requests" in (await visitor.get("/api/messages/topics", part="REQ")).json()["topics"]
    assert len((await visitor.get("/api/messages/queues", topic="requests")).json()["queues"]) == 2


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 400),
        ({"topic": "nowhere-at-all"}, 404),
        ({"topic": "../etc"}, 400),
        ({"topic": "requests", "count": "a lot"}, 400),
        ({"topic": "requests", "by": "magic"}, 400),
        ({"topic": "requests", "begin_ms": "-1"}, 400),
    ],
    ids=repr,
)
async def test_a_search_that_cannot_be_is_one_sentence(visitor, sent, query, status):
    answer = await visitor.get("/api/messages", **query)
    assert answer.status_code == status
    assert answer.json()["error"]["text"]


async def test_a_test_message_is_sent_with_the_token_only(visitor, sent):
    made = await visitor.post("/api/message/produce", topic="requests", body="hello", tag="t", keys=["k2"], properties={"a": "b"})
    assert (made.status_code, made.json()["status"]) == (200, "SEND_OK")
    refused = await visitor.http.post("/api/message/produce", json={"topic": "requests", "body": "x"})
    assert refused.status_code == 403
    too_large = await visitor.post("/api/message/produce", topic="requests", body="x" * (4 << 20))
    assert too_large.status_code == 413
    wrong = await visitor.post("/api/message/produce", topic="requests", body="x", more="y")
    assert wrong.status_code == 400


async def test_a_read_only_dashboard_sends_nothing(cluster, visit, sent):
    visitor = await visit(ClusterTarget(cluster.namesrv), read_only=True)
    place_ = {name: value for name, value in place(sent).items() if name != "topic"}
    assert (await visitor.post("/api/message/produce", topic="requests", body="x")).status_code == 403
    assert (await visitor.post("/api/dead-letters/replay", group="g", places=[place_], receipt="r")).status_code == 403
    assert (await visitor.post("/api/dead-letters/plan", group="g", places=[place_], receipt="r")).status_code == 200


async def test_dead_letters_and_traces_of_nothing_are_empty(visitor):
    assert (await visitor.get("/api/dead-letters/groups")).json()["groups"] == []
    assert (await visitor.get("/api/dead-letters", group="nobody")).json()["messages"] == []
    assert (await visitor.get("/api/dead-letter", group="nobody", broker="b", queue=0, offset=0)).status_code == 404
    trace = (await visitor.get("/api/trace", id="7F00000100002A9F0000000000000001")).json()
    assert (trace["events"], trace["missing"]) == ([], "topic")
    assert (await visitor.get("/api/trace", id="two words")).status_code == 400


async def test_a_topic_is_followed_until_it_is_gone(cluster, visitor):
    async with AdminClient(namesrv=cluster.namesrv) as admin, Producer("requests", namesrv=cluster.namesrv) as producer:
        await admin.create_topic("followed", queues=1)
        async with visitor.events("/api/messages/follow", topic="followed") as events:
            name, first = await anext(events)
            assert (name, first["queues"]) == ("tick", 1)
            await producer.send(Message("followed", b"new"))
            previews = []
            async for _, tick in events:
                previews += [line["preview"] for line in tick.get("messages", [])]
                if previews:
                    break
            assert previews == ["new"]
            await admin.delete_topic("followed")
            async for _, tick in events:
                if tick.get("ended"):
                    break
            assert tick["ended"] == "gone"
