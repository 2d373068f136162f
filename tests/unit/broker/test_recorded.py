"""Requests recorded from the Java client and tools, sent to our broker as they are; answers compared with the recorded ones."""

import json
import zipfile
from pathlib import Path

import pytest
from asking import exchange

from sprocketmq.clock import ManualClock
from sprocketmq.protocol.frame import FrameBuffer
from sprocketmq.protocol.headers import CreateTopic
from sprocketmq.protocol.jsondialect import loads
from sprocketmq.protocol.recall import RecallHandle
from sprocketmq.protocol.records import Record, decode_records, walk_records
from sprocketmq.testing import eventually

FIXTURES = Path(__file__).parents[2] / "fixtures" / "frames"
with zipfile.ZipFile(FIXTURES / "frames.zip") as archive:
    RAW = {name: archive.read(name) for name in archive.namelist()}
KINDS = ("json", "bin")


def recorded(name, side="response"):
    (command,) = FrameBuffer().feed(RAW[f"{name}.{side}.bin"])
    return command


async def replay(broker, name):
    (answer,) = await exchange(broker.address, RAW[f"{name}.request.bin"])
    return answer


def both(*names):
    return pytest.mark.parametrize("name", [f"{name}.{kind}" for name in names for kind in KINDS if f"{name}.{kind}.request.bin" in RAW])


@pytest.fixture
async def reference(start_broker):
    """A broker with the topics of the recording."""
    broker = await start_broker()
    await replay(broker, "create-topic.json")
    broker.topics.create_internal("FxOrder", 4)
    broker.topics.create_internal("BhPlain", 1)
    broker.groups.find("fx_group")
    return broker


@both(
    *("send-v2", "send-v2-zlib", "send-v2-lz4", "send-v2-zstd", "send-v2-acl", "send-v2-traced", "send-v2-no-uniqkey", "send-v1"),
    *("send-v2-negative-queue", "send-v2-trace-data", "send-v2-long-topic", "send-batch-plain", "send-autobatch-plain"),
    *("send-autobatch-single-plain", "send-batch-flag-false", "tx-half"),
)
async def test_sends_are_stored_and_answered_with_the_same_fields(reference, name):
    answer, expected = await replay(reference, name), recorded(name)
    assert (answer.code, answer.opaque, answer.remark) == (0, expected.opaque, None)
    assert answer.ext.keys() == expected.ext.keys()
    own = {"msgId", "queueOffset"} | ({"transactionId"} if "no-uniq" in name or "negative" in name or "false" in name else set())
    own |= {"queueId"} if "negative" in name else set()
    assert {k: v for k, v in answer.ext.items() if k not in own} == {k: v for k, v in expected.ext.items() if k not in own}
    assert answer.ext["msgId"].count(",") == expected.ext["msgId"].count(",")
    assert [len(i) for i in answer.ext["msgId"].split(",")] == [32] * (answer.ext["msgId"].count(",") + 1)


@both("send-v2-bad-topic", "send-v2-forbidden-topic", "send-v2-no-topic", "send-batch-delay", "send-batch-retry-topic")
async def test_refused_sends_are_refused_in_the_same_words(reference, name):
    reference.topics.create_internal("%RETRY%fx_group", 1)
    answer, expected = await replay(reference, name), recorded(name)
    assert (answer.code, answer.ext, answer.remark) == (expected.code, expected.ext, expected.remark)


@both("send-v2-bad-queue", "send-autobatch-bad-queue", "pull-bad-queue")
async def test_bad_queues_are_refused_in_the_same_words_up_to_the_peer(reference, name):
    answer, expected = await replay(reference, name), recorded(name)
    assert (answer.code, answer.ext) == (expected.code, expected.ext)
    assert answer.remark.rpartition(":")[0].replace("/", "") == expected.remark.rpartition(":")[0].replace("/", "")


@both("send-batch-empty", "send-batch-truncated", "missing-required-field")
async def test_broken_requests_get_the_same_code_and_readable_words(reference, name):
    answer, expected = await replay(reference, name), recorded(name)
    assert answer.code == expected.code == 1
    assert "java" not in answer.remark


@both("unknown-code")
async def test_what_this_broker_does_not_do_is_said(reference, name):
    request = recorded(name, "request")
    if request.is_oneway:
        (answer,) = await exchange(reference.address, RAW[f"{name}.request.bin"] + RAW["unknown-code.json.request.bin"])
        assert answer.remark == " request type 9999 not supported"
        return
    answer = await replay(reference, name)
    assert (answer.code, answer.remark) == (3, f" request type {request.code} not supported")


@both("recall")
async def test_a_recall_is_answered_as_recorded(start_broker, name):
    timed, expected = recorded(name.replace("recall", "send-v2-timer")), recorded(name)
    handle = RecallHandle.parse(timed.ext["recallHandle"])
    broker = await start_broker(clock=ManualClock(wall_ms=handle.time_ms - 20_001))
    broker.topics.create_internal("FxDelay", 1)
    sent = await replay(broker, name.replace("recall", "send-v2-timer"))
    assert (sent.code, sent.ext.keys(), sent.ext["recallHandle"]) == (0, timed.ext.keys(), timed.ext["recallHandle"])
    answer = await replay(broker, name)
    assert (answer.code, answer.ext) == (0, expected.ext)


async def test_a_producer_is_asked_about_a_transaction_as_recorded(start_broker, clock, connect):
    expected = recorded("check-transaction.json", "request")
    (theirs,) = decode_records(expected.body)
    broker = await start_broker()
    broker.topics.create_internal("FxPlain", 4)
    ask = await connect(broker)
    await ask.heartbeat(producers=["fx_tx_producer"])
    text = "".join(f"{name}\x01{value}\x02" for name, value in theirs.properties.items() if name not in ("REAL_TOPIC", "REAL_QID"))
    answer = await ask.send("FxPlain", theirs.body, queue=theirs.queue_id, properties=text, f="4")
    assert answer.code == 0
    clock.advance(broker.config.transaction_timeout_s + 1)
    broker.checks.fire()
    push = await ask.next_push()
    (ours,) = decode_records(push.body)
    assert (push.code, push.ext.keys()) == (expected.code, expected.ext.keys())
    own = {"offsetMsgId", "commitLogOffset", "tranStateTableOffset"}
    assert {name: push.ext[name] for name in push.ext if name not in own} == {
        name: expected.ext[name] for name in push.ext if name not in own
    }
    assert ours.properties == theirs.properties
    assert (ours.topic, ours.queue_id, ours.body, ours.sys_flag) == (theirs.topic, theirs.queue_id, theirs.body, theirs.sys_flag)


async def test_a_pop_is_answered_as_recorded(start_broker, connect):
    expected = recorded("pop.json")
    broker = await start_broker(clock=ManualClock(wall_ms=int(expected.ext["popTime"])))
    broker.topics.create_internal("FxPop", 1)
    ask = await connect(broker)
    messages = decode_records(expected.body)
    for message in messages:
        await ask.send("FxPop", bytes(message.body), properties=message.raw_properties.decode())
    answer = await replay(broker, "pop.json")
    assert (answer.code, answer.remark, answer.ext) == (expected.code, expected.remark, expected.ext)
    assert [(m.body, m.queue_offset, m.reconsume_times) for m in decode_records(answer.body)] == [
        (m.body, m.queue_offset, m.reconsume_times) for m in messages
    ]


async def test_pulls_answer_with_the_recorded_codes_offsets_and_bodies(reference):
    for kind in KINDS:
        await replay(reference, f"send-v2.{kind}")
    for name in ("pull-plain", "pull-tag", "pull-no-match", "pull-not-found", "pull-offset-moved"):
        for kind in KINDS:
            answer, expected = await replay(reference, f"{name}.{kind}"), recorded(f"{name}.{kind}")
            assert answer.ext.keys() == expected.ext.keys()
            if name == "pull-tag":  # the recording had a second message, with TagB
                assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "2")
                continue
            assert (answer.code, answer.remark, answer.ext) == (expected.code, expected.remark, expected.ext)
    answer, expected = await replay(reference, "pull-plain.json"), recorded("pull-plain.json")
    ours, theirs = decode_records(answer.body)[0], decode_records(expected.body)[0]
    assert ours.store_size == theirs.store_size
    for field in (
        "body",
        "queue_id",
        "flag",
        "queue_offset",
        "commitlog_offset",
        "sys_flag",
        "born_timestamp_ms",
        "body_crc",
        "topic",
        "properties",
    ):
        assert getattr(ours, field) == getattr(theirs, field), field


@both("pull-topic-missing", "pull-no-group")
async def test_refused_pulls_are_refused_in_the_same_words(reference, name):
    answer, expected = await replay(reference, name), recorded(name)
    assert (answer.code, answer.ext, answer.remark) == (expected.code, expected.ext, expected.remark)


async def test_a_long_poll_ends_like_the_recorded_one(reference, clock):
    import asyncio

    for kind in KINDS:
        waiting = asyncio.ensure_future(replay(reference, f"pull-long-poll-timeout.{kind}"))
        await eventually(lambda: reference.pulls.held_count)
        clock.advance(1.2)
        reference.pulls.held.expire()
        answer, expected = await waiting, recorded(f"pull-long-poll-timeout.{kind}")
        assert (answer.code, answer.remark, answer.ext) == (expected.code, expected.remark, expected.ext)


@both("heartbeat-producer", "heartbeat-consumer", "unregister-producer", "unregister-consumer")
async def test_clients_come_and_go(reference, name):
    # A new member is told of the change, too.
    answers = await exchange(reference.address, RAW[f"{name}.request.bin"], answers=2 if "heartbeat-consumer" in name else 1)
    (answer,) = [answer for answer in answers if answer.is_response]
    expected = recorded(name)
    assert (answer.code, answer.ext.keys(), answer.remark) == (expected.code, expected.ext.keys(), expected.remark)


async def test_a_recorded_consumer_is_seen_like_the_recorded_one(reference):
    from sprocketmq.net.address import parse_address

    for kind in KINDS:
        # Members live as long as their connection: everything goes over one.
        names = ["consumer-list", "consumer-connection", "query-subscription"]
        frames = b"".join(RAW[f"{name}.{kind}.request.bin"] for name in ("heartbeat-consumer", *names))
        found = await exchange(reference.address, frames, answers=5)  # one of them the notification of the change
        answers = {answer.opaque: answer for answer in found if answer.is_response}
        for name in names:
            expected = recorded(f"{name}.{kind}")
            ours, theirs = loads(bytes(answers[expected.opaque].body)), loads(bytes(expected.body))
            assert ours.keys() == theirs.keys()
            for volatile in ("connectionSet",):
                ours.pop(volatile, None), theirs.pop(volatile, None)
            if name in ("consumer-list", "query-subscription"):
                assert ours == theirs
            else:
                assert ours["subscriptionTable"].keys() == theirs["subscriptionTable"].keys()
    assert parse_address(reference.address)


@both(
    *("consumer-list-missing", "query-offset-missing", "view-message-missing", "create-topic", "create-topic-bad-attribute"),
    *("create-subscription-group", "delete-subscription-group", "lock-batch-mq", "unlock-batch-mq", "query-offset", "min-offset"),
    *("max-offset", "earliest-storetime", "search-offset", "sync-consumer-offset", "system-topics-broker", "all-topic-config"),
    *("all-subscription-groups", "topic-consume-by-who", "topics-by-consumer", "topic-stats", "consume-stats", "all-producer-info"),
    *("broker-stats", "clone-offset", "reset-offset", "query-message-missing"),
)
async def test_administration_is_answered_in_the_same_shape(reference, name):
    reference.groups.find("fx_group_push")
    if name.startswith("broker-stats."):
        await replay(reference, "send-v2.json")  # a statistic is there once something was counted
    answer, expected = await replay(reference, name), recorded(name)
    if name.startswith("query-offset."):
        assert (answer.code, expected.code) == (22, 0)  # nobody has committed here
        return
    assert (answer.code, answer.ext.keys()) == (expected.code, expected.ext.keys())
    if answer.code:
        assert answer.remark == expected.remark
    assert bool(answer.body) == bool(expected.body)
    if expected.body:
        ours, theirs = loads(bytes(answer.body)), loads(bytes(expected.body))
        assert ours.keys() == theirs.keys()


@both("get-topic-config")
async def test_a_topic_reads_like_the_recorded_one(reference, name):
    from sprocketmq.protocol.bodies import TopicConfig

    reference.topics._put(TopicConfig("FxBatchCQ", 1, 1, attributes={"queue.type": "BatchCQ"}))
    answer, expected = await replay(reference, name), recorded(name)
    assert json.loads(bytes(answer.body)) == json.loads(bytes(expected.body))


BATCH_FIELDS = {"queueOffset", "batchUniqId", "transactionId", "queueId", "TRACE_ON", "MSG_REGION"}


async def test_sends_to_batch_queues_and_pulls_from_them_are_answered_like_the_recorded_ones(start_broker):
    """The recording's own order: each send gets the recorded offset, and pulls give the same records but for times and places."""
    for kind in KINDS:
        broker = await start_broker(f"store-{kind}")
        broker.groups.find("fx_group")
        assert (await replay(broker, f"create-topic-batchcq.{kind}")).code == 0
        names = ("send-batch", "send-single", "send-autobatch", "send-autobatch-async", "send-batch-no-uniqkey")
        for name in (f"{name}-batchcq.{kind}" for name in names):
            answer, expected = await replay(broker, name), recorded(name)
            assert (answer.code, answer.remark) == (0, None), name
            assert answer.ext.keys() == expected.ext.keys(), name
            assert {k: v for k, v in answer.ext.items() if k in BATCH_FIELDS} == {
                k: v for k, v in expected.ext.items() if k in BATCH_FIELDS
            }
            assert answer.ext["msgId"].count(",") == expected.ext["msgId"].count(",")
        for name in (f"{name}.{kind}" for name in ("pull-batchcq", "pull-batchcq-middle", "pull-batchcq-overflow")):
            answer, expected = await replay(broker, name), recorded(name)
            assert (answer.code, answer.remark, answer.ext) == (expected.code, expected.remark, expected.ext), name
            ours, theirs = list(walk_records(answer.body)), list(walk_records(expected.body))
            assert [size for _, size in ours] == [size for _, size in theirs]
            for (at, size), (there, _) in zip(ours, theirs, strict=True):
                mine, other = Record(answer.body, at, size), Record(expected.body, there, size)
                for field in ("stored_body", "body_crc", "queue_offset", "sys_flag", "flag", "born_timestamp_ms", "topic", "properties"):
                    assert getattr(mine, field) == getattr(other, field), field
        answer, expected = await replay(broker, f"max-offset-batchcq.{kind}"), recorded(f"max-offset-batchcq.{kind}")
        assert answer.ext == expected.ext


async def test_a_tag_finds_inner_batches_by_their_outer_tag_only(broker, ask):
    broker.groups.find("bh_pull")
    broker.topics.create_or_update(CreateTopic("BhBatch", 1, 1, 6, attributes="+queue.type=BatchCQ"))
    await ask.send_batch("BhBatch", [b"a", b"b", b"c"], properties="UNIQ_KEY\x01id1\x02", each=b"TAGS\x01TagA\x02")
    await ask.send_batch("BhBatch", [b"d", b"e", b"f"], properties="UNIQ_KEY\x01id2\x02TAGS\x01TagA\x02", each=b"TAGS\x01TagA\x02")
    for name in ("pull-batchcq-tag.json", "pull-batchcq-tag-none.json"):
        answer, expected = await replay(broker, name), recorded(name)
        assert (answer.code, answer.remark, answer.ext) == (expected.code, expected.remark, expected.ext), name
        ours, theirs = decode_records(answer.body), decode_records(expected.body)
        assert [message.queue_offset for message in ours] == [message.queue_offset for message in theirs]
