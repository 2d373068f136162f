"""What the page Traces asks for: records of all kinds as a time line."""

import pytest

from sprocketmq import Message
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.traces import TRACE_TOPIC, EndTransactionTrace, PubTrace, RecallTrace, SubAfterTrace, SubBeforeTrace
from sprocketmq.web.api.traces import life

ID = "7F00000100002A9F0000000000000001"


async def test_a_life_is_in_the_order_of_time(admin, producer):
    await admin.create_topic("traces", queues=1)
    records = [
        SubAfterTrace("r1", ID, 40, False, "k", 2, 1300, "billing"),
        SubBeforeTrace(1260, "", "billing", "r1", ID, 0, "k"),
        PubTrace(1000, "", "shop", "orders", ID, "<b>", "k", "127.0.0.1:10911", 12, 7, 0, "id", True),
        EndTransactionTrace(1100, "", "shop", "orders", ID, "", "", "", 2, "tx", "COMMIT_MESSAGE", False),
        RecallTrace(1400, "", "shop", "orders", ID, True),
        SubBeforeTrace(1500, "", "billing", "r2", ID, 1, "k"),
    ]
    await producer.send(Message("traces", "".join(record.encode() for record in records).encode(), keys=[ID]))
    shown = await life(admin, f" {ID} ", "traces")
    assert [event["kind"] for event in shown["events"]] == ["send", "transaction", "delivery", "recall", "delivery"]
    send, _, first, _, second = shown["events"]
    assert (send["begin_ms"], send["end_ms"], send["facts"]["tag"], send["success"]) == (1000, 1007, "<b>", True)
    assert (first["begin_ms"], first["end_ms"], first["outcome"], first["success"]) == (1260, 1300, "EXCEPTION", False)
    assert (second["end_ms"], second["success"], second["facts"]["retry_times"]) == (None, None, 1)
    assert (shown["topic"], shown["begin_ms"], shown["end_ms"], shown["missing"]) == ("orders", 1000, 1500, None)


async def test_what_is_missing_is_told(admin):
    assert (await life(admin, ID))["missing"] == "topic"
    assert (await life(admin, ID))["trace_topic"] == TRACE_TOPIC
    await admin.create_topic("traces", queues=1)
    assert (await life(admin, ID, "traces"))["missing"] == "records"
    with pytest.raises(ConfigError):
        await life(admin, "no id at all")
