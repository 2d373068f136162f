"""Conditions on properties are Apache's broker's to apply: what it lets through is read, what it does not take is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.apache import ApacheBroker, ApacheNamesrv

from sprocketmq import AdminClient, Message, Producer
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.source.access import ClusterAccess, FilterRefused
from sprocketmq.spark.source.planning import QueueRange
from sprocketmq.spark.source.reading import RangeReader

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC = "SqlFilter"
MESSAGES = 500


@pytest.fixture(scope="module")
def filtering(session_home: Path) -> Iterator[tuple[ApacheNamesrv, ApacheBroker]]:
    """A cluster of Apache's whose broker filters by properties."""
    namesrv = ApacheNamesrv(session_home / "sql-namesrv")
    try:
        broker = ApacheBroker(session_home / "sql-broker", namesrv.address, settings=apache.SMALL_STORE | {"enablePropertyFilter": "true"})
        try:
            yield namesrv, broker
        finally:
            broker.kill()
    finally:
        namesrv.kill()


async def fill(namesrv: str) -> list[MessageQueue]:
    """Send messages with a number each to two queues in turn."""
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(TOPIC, queues=2)
    async with Producer("sql", namesrv=namesrv) as producer:
        queues = await producer.queues(TOPIC)
        for i in range(MESSAGES):
            await producer.send(Message(TOPIC, b"%d" % i, properties={"price": str(i)}, queue=queues[i % 2]))
    return queues


def bodies(access: ClusterAccess, queues: list[MessageQueue], expression: str) -> list[int]:
    ends = access.latest(queues)
    reader = RangeReader(access.pull, ("body",), filter=("SQL92", expression))
    return sorted(int(body) for batch in reader.read([QueueRange(q, 0, ends[q]) for q in queues]) for body in batch["body"].to_pylist())


async def test_messages_that_meet_a_condition_are_read_and_no_others(filtering: tuple[ApacheNamesrv, ApacheBroker]) -> None:
    namesrv = filtering[0].address
    queues = await fill(namesrv)
    access = ClusterAccess(namesrv, "sql-reader")
    try:
        access.check_filter(queues, ("SQL92", "price > 300"))
        assert bodies(access, queues, "price > 300") == list(range(301, MESSAGES))
        assert bodies(access, queues, "price BETWEEN 7 AND 8 OR price = 499") == [7, 8, 499]
        assert bodies(access, queues, "price > 1000") == []
        with pytest.raises(FilterRefused, match=rf"does not take the SQL92 expression 'price >' for topic {TOPIC}"):
            access.check_filter(queues, ("SQL92", "price >"))
    finally:
        access.close()
