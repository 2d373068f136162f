"""AdminClient.trace puts the records of a message together, whoever wrote them and whatever else is in the trace topic."""

from dataclasses import replace

import pytest

from sprocketmq import AdminClient, Message, Producer
from sprocketmq.client.admin.traces import TracedDelivery
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ConfigError, TopicNotFound
from sprocketmq.protocol.traces import (
    TRACE_TOPIC,
    ConsumeCode,
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
)

SENT = PubTrace(1000, "DefaultRegion", "pg", "orders", "M1", "a", "k1", "10.0.0.1:10911", 5, 12, 0, "O1", True)


@pytest.fixture
async def mq():
    async with LocalCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
async def admin(mq):
    async with AdminClient(namesrv=mq.namesrv) as client:
        yield client


@pytest.fixture
async def write(mq):
    """Write a trace message as a client does; returns after it is stored."""
    async with Producer("tracer", namesrv=mq.namesrv) as producer:

        async def send(*records: TraceRecord, keys: list[str], topic: str = TRACE_TOPIC, rubbish: bytes = b"") -> None:
            body = "".join(record.encode() for record in records).encode() + rubbish
            await producer.send(Message(topic, body, keys=keys))

        yield send


async def test_the_life_of_a_message_is_put_together_from_all_trace_messages(admin, write):
    other = PubTrace(1000, "DefaultRegion", "pg", "orders", "M2", "a", "k1", "10.0.0.1:10911", 5, 12, 0, "O1", True)
    await write(SubAfterTrace("R2", "M1", 4, True, "k1", ConsumeCode.SUCCESS, 3004, "cg"), keys=["M1"])
    await write(SENT, other, keys=["M1", "M2", "k1"])
    await write(
        SubBeforeTrace(2000, "DefaultRegion", "cg", "R1", "M1", 0, "k1"),
        SubAfterTrace("R1", "M1", 9, False, "k1", ConsumeCode.EXCEPTION, 2009, "cg"),
        SubBeforeTrace(3000, "DefaultRegion", "cg", "R2", "M1", 1, "k1"),
        keys=["M1", "k1"],
    )
    trace = await admin.trace("M1")
    assert trace.found
    assert (trace.msg_id, trace.trace_topic, trace.topic) == ("M1", TRACE_TOPIC, "orders")
    (send,) = trace.sends
    assert (send.time_ms, send.cost_ms, send.group, send.store_host, send.message_type) == (1000, 12, "pg", "10.0.0.1:10911", "NORMAL")
    assert send.client_host.startswith("127.0.0.1:")
    assert all(delivery.client_host.startswith("127.0.0.1:") for delivery in trace.deliveries), "a connection to each broker"
    assert [replace(delivery, client_host="") for delivery in trace.deliveries] == [
        TracedDelivery("cg", "R1", 2000, 2009, 0, "", 9, False, "EXCEPTION"),
        TracedDelivery("cg", "R2", 3000, 3004, 1, "", 4, True, "SUCCESS"),
    ]


async def test_half_of_a_delivery_is_shown_as_far_as_it_is_known(admin, write):
    await write(
        SubBeforeTrace(2000, "DefaultRegion", "cg", "R1", "M1", 0, ""),
        SubAfterTrace("R0", "M1", 9, False, "", 77, 1500, "others"),
        keys=["M1"],
    )
    lost_start, still_running = (await admin.trace("M1")).deliveries
    assert (lost_start.group, lost_start.time_ms, lost_start.end_ms, lost_start.outcome) == ("others", None, 1500, "77")
    assert (still_running.group, still_running.time_ms, still_running.end_ms, still_running.outcome) == ("cg", 2000, None, None)


async def test_transactions_and_recalls(admin, write):
    await write(
        EndTransactionTrace(5000, "r", "pg", "orders", "M1", "", "", "h", 2, "T1", "COMMIT_MESSAGE", True),
        RecallTrace(6000, "r", "pg", "orders", "M1", True),
        keys=["M1"],
    )
    trace = await admin.trace("M1")
    assert [(t.state, t.transaction_id, t.from_check) for t in trace.transactions] == [("COMMIT_MESSAGE", "T1", True)]
    assert [(r.time_ms, r.success) for r in trace.recalls] == [(6000, True)]
    assert trace.topic == "orders"


async def test_a_record_that_was_written_twice_counts_once(admin, write):
    await write(SENT, keys=["M1"])
    await write(SENT, keys=["M1"])
    assert len((await admin.trace("M1")).sends) == 1


async def test_rubbish_in_the_trace_topic_harms_nothing(admin, write):
    await write(keys=["M1"], rubbish=b"\xff\x01\x02Pub\x01M1\x02" * 10)
    await write(SENT, keys=["M1"], rubbish=b"SubAfter\x01M1\x01M1\x01x\x01true\x01k\x02")
    trace = await admin.trace("M1")
    assert (len(trace.sends), trace.deliveries) == (1, [])


async def test_a_message_without_a_trace(admin, write):
    await write(SENT, keys=["M1"])
    trace = await admin.trace("M9")
    assert not trace.found
    assert (trace.sends, trace.deliveries, trace.topic) == ([], [], "")


async def test_the_search_is_limited_in_time_and_to_a_topic(admin, write):
    await write(SENT, keys=["M1"])
    await write(SENT, keys=["M1"], topic="Traces")
    assert (await admin.trace("M1", end_ms=1)).sends == []
    assert (await admin.trace("M1", begin_ms=1)).sends
    assert (await admin.trace("M1", topic="Traces")).trace_topic == "Traces"


async def test_a_trace_topic_that_does_not_exist(admin):
    with pytest.raises(TopicNotFound, match=TRACE_TOPIC):
        await admin.trace("M1")


@pytest.mark.parametrize("msg_id", ["", "a b", "a\x01", "x" * 1001])
async def test_what_cannot_be_an_id_is_refused(admin, msg_id):
    with pytest.raises(ConfigError, match="is not a message id"):
        await admin.trace(msg_id)
