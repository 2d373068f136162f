"""What the page Dead letters asks for."""

import asyncio
import base64

import pytest

from sprocketmq import Message, Producer, PushConsumer
from sprocketmq.errors import ConfigError, MaybeStoredError
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.properties import RETRY_TOPIC
from sprocketmq.web.api.dead_letters import REPLAYED_FROM, Place, ReplayRequest, Replays, browse, compare, groups, make_copy

GROUP = "billing"


async def bury(mq, admin, *messages):
    """Have a group refuse messages that are sent now, and return when they are its dead letters."""
    await admin.create_group(GROUP)

    async def refuse(batch):
        for message in batch:
            batch.retry(message, delay_level=-1)

    async with (
        Producer("senders", namesrv=mq.namesrv) as producer,
        PushConsumer(GROUP, sorted({m.topic for m in messages}), namesrv=mq.namesrv, consume_from="first") as consumer,
    ):
        listening = consumer.listen(refuse)
        for message in messages:
            await producer.send(message)

        async def count():
            return sum(one["messages"] for one in (await groups(admin))["groups"])

        async with asyncio.timeout(60):
            while await count() < len(messages):
                await asyncio.sleep(0)
        await consumer.close()
        await listening


@pytest.fixture
async def replays():
    background = Background("replays")
    yield Replays(background)
    await background.close()


async def letters(admin, replays):
    found = (await browse(admin, GROUP, {}, replays))["messages"]
    return sorted(found, key=lambda line: line["preview"])


def places(lines):
    return tuple(Place(line["broker"], line["queue"], line["offset"]) for line in lines)


async def contents(admin, topic):
    return sorted(bytes(message.body) for message in (await admin.search(topic)).messages)


async def test_dead_letters_are_listed_by_group(mq, admin, replays):
    assert await groups(admin) == {"groups": [], "left_out": 0}
    assert (await browse(admin, "nobody", {}, replays))["messages"] == []
    await bury(mq, admin, Message("orders", b"one"), Message("orders", b"two"))
    (listed,) = (await groups(admin))["groups"]
    assert (listed["group"], listed["messages"], listed["problem"]) == (GROUP, 2, None)
    lines = await letters(admin, replays)
    assert [(line["preview"], line["replayed"]) for line in lines] == [("one", None), ("two", None)]
    with pytest.raises(ConfigError):
        await browse(admin, GROUP, {"by": "magic"}, replays)
    with pytest.raises(ConfigError):
        await browse(admin, "no group", {}, replays)


async def test_a_dead_letter_is_compared_with_its_original_while_that_is_there(mq, admin, replays):
    await bury(mq, admin, Message("orders", b"one", keys=["k"]))
    (place,) = places(await letters(admin, replays))
    compared = await compare(admin, GROUP, place)
    assert (compared["same_body"], compared["original"]["topic"], compared["original"]["msg_id"]) == (
        True,
        "orders",
        compared["letter"]["msg_id"],
    )
    assert base64.b64decode(compared["letter"]["body"]["part"]) == b"one"
    assert {change["name"] for change in compared["changed"]} >= {RETRY_TOPIC}
    await admin.delete_topic("orders")
    gone = await compare(admin, GROUP, place)
    assert (gone["original"], gone["same_body"]) == (None, None)
    assert "orders" in gone["why"]


async def test_chosen_letters_are_replayed_once_with_a_receipt(mq, admin, producer, replays):
    await bury(mq, admin, Message("orders", b"one", tag="t", keys=["k"], properties={"mine": "yes"}), Message("orders", b"two"))
    lines = await letters(admin, replays)
    chosen = places(lines[:1])
    planned = await replays.plan(admin, ReplayRequest(GROUP, chosen, "r0"))
    assert planned["counts"] == {"would_send": 1}
    assert (planned["entries"][0]["origin"], planned["entries"][0]["bytes"]) == ("orders", 3)
    assert await contents(admin, "orders") == [b"one", b"two"]
    # A double click: two requests at once, and one later, all with the same receipt.
    request = ReplayRequest(GROUP, chosen, "r1")
    first, second = await asyncio.gather(replays.replay(admin, producer, request), replays.replay(admin, producer, request))
    assert first == second == await replays.replay(admin, producer, request)
    assert first["counts"] == {"sent": 1}
    (entry,) = first["entries"]
    assert await contents(admin, "orders") == [b"one", b"one", b"two"]
    copy = (
        await admin.batch_at(next(q for q in await admin.queues("orders") if q.queue_id == entry["to"]["queue"]), entry["to"]["offset"])
    )[0]
    assert (copy.body, copy.tag, copy.keys, copy.properties["mine"]) == (b"one", "t", ["k"], "yes")
    assert copy.properties[REPLAYED_FROM].split() == [f"%DLQ%{GROUP}", chosen[0].broker, str(chosen[0].queue), str(chosen[0].offset)]
    assert RETRY_TOPIC not in copy.properties
    # It is still a dead letter, marked as replayed; another replay leaves it out unless it is asked for.
    line = (await letters(admin, replays))[0]
    assert line["replayed"]["to"] == entry["to"]
    both = await replays.replay(admin, producer, ReplayRequest(GROUP, places(lines), "r2"))
    assert both["counts"] == {"skipped": 1, "sent": 1}
    again = await replays.replay(admin, producer, ReplayRequest(GROUP, chosen, "r3", again=True))
    assert again["counts"] == {"sent": 1}
    assert await contents(admin, "orders") == [b"one", b"one", b"one", b"two", b"two"]


async def test_two_replays_of_one_letter_at_once_send_it_once(mq, admin, producer, replays):
    await bury(mq, admin, Message("orders", b"one"))
    chosen = places(await letters(admin, replays))
    both = await asyncio.gather(*(replays.replay(admin, producer, ReplayRequest(GROUP, chosen, name)) for name in "ab"))
    assert sorted(next(iter(one["counts"])) for one in both) == ["sent", "skipped"]
    assert await contents(admin, "orders") == [b"one", b"one"]


async def test_what_cannot_be_replayed_is_told_one_by_one(mq, admin, producer, replays):
    await admin.create_topic("gone", queues=1)
    await bury(mq, admin, Message("orders", b"one"), Message("gone", b"two"))
    lines = await letters(admin, replays)
    await admin.delete_topic("gone")
    request = ReplayRequest(GROUP, (*places(lines), Place("broker-a", 0, 99), Place("broker-z", 0, 0)), "r")
    receipt = await replays.replay(admin, producer, request)
    assert [entry["outcome"] for entry in receipt["entries"]] == ["sent", "failed", "failed", "failed"]
    assert "gone" in receipt["entries"][1]["reason"]
    assert "deleted" in receipt["entries"][2]["reason"]
    assert "gone" not in await admin.topics()


async def test_a_send_whose_outcome_is_unknown_is_not_repeated_unasked(mq, admin, producer, replays, monkeypatch):
    await bury(mq, admin, Message("orders", b"one"))
    chosen = places(await letters(admin, replays))

    async def send(message, **_):
        raise MaybeStoredError("the connection ended")

    monkeypatch.setattr(producer, "send", send)
    receipt = await replays.replay(admin, producer, ReplayRequest(GROUP, chosen, "r"))
    assert receipt["counts"] == {"unknown": 1}
    monkeypatch.undo()
    assert (await replays.replay(admin, producer, ReplayRequest(GROUP, chosen, "s")))["counts"] == {"skipped": 1}


@pytest.mark.parametrize(
    "request_",
    [
        ReplayRequest(GROUP, (), "r"),
        ReplayRequest(GROUP, (Place("broker-a", 0, 0),), ""),
        ReplayRequest(GROUP, (Place("broker-a", 0, 0),), "x" * 101),
        ReplayRequest("no group", (Place("broker-a", 0, 0),), "r"),
        ReplayRequest(GROUP, tuple(Place("broker-a", 0, n) for n in range(501)), "r"),
    ],
    ids=lambda request: repr(request)[:60],
)
async def test_a_request_that_cannot_be_is_refused(admin, producer, replays, request_):
    with pytest.raises(ConfigError):
        await replays.replay(admin, producer, request_)


class Forged:
    """A dead letter that anybody could have written."""

    broker_name, queue_id, queue_offset, flag, tag, keys, body = "broker-a", 0, 0, 0, None, (), b"forged"

    def __init__(self, properties):
        self.properties = properties


@pytest.mark.parametrize("origin", ["SCHEDULE_TOPIC_XXXX", "%RETRY%other", "%DLQ%other", "no topic", "TBW102", "rmq_sys_x", ""])
def test_a_letter_is_replayed_to_topics_of_producers_only(origin):
    with pytest.raises(ConfigError):
        make_copy(Forged({RETRY_TOPIC: origin}), f"%DLQ%{GROUP}")


def test_apaches_name_of_the_origin_is_understood():
    assert make_copy(Forged({"DLQ_ORIGIN_TOPIC": "orders", "mine": "x"}), f"%DLQ%{GROUP}").topic == "orders"
