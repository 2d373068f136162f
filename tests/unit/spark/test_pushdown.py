"""A condition is claimed only when ranges of offsets tell exactly what it means: Spark does not look again."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.pushdown import Pushed

QUEUES = [MessageQueue(topic, broker, number) for topic in ("Orders", "Returns") for broker in ("broker-a", "b") for number in (0, 1, 2)]


def kept(*filters):
    """Return the queues that are left, having checked that all filters were claimed."""
    pushed = Pushed()
    assert pushed.take(filters) == []
    return [queue for queue in QUEUES if pushed.keeps(queue)]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (EqualTo(("topic",), "Orders"), lambda q: q.topic == "Orders"),
        (Not(EqualTo(("topic",), "Orders")), lambda q: q.topic != "Orders"),
        (In(("queueId",), (0, 2)), lambda q: q.queue_id in (0, 2)),
        (Not(In(("queueId",), (0, 2))), lambda q: q.queue_id == 1),
        (EqualNullSafe(("brokerName",), "b"), lambda q: q.broker_name == "b"),
        (GreaterThan(("queueId",), 1), lambda q: q.queue_id > 1),
        (LessThanOrEqual(("queueId",), 1), lambda q: q.queue_id <= 1),
        (StringStartsWith(("topic",), "Ret"), lambda q: q.topic == "Returns"),
        (StringEndsWith(("brokerName",), "-a"), lambda q: q.broker_name == "broker-a"),
        (StringContains(("topic",), "der"), lambda q: q.topic == "Orders"),
        (IsNotNull(("topic",)), lambda _: True),
    ],
)
def test_conditions_on_topic_broker_and_queue_choose_queues(condition, holds):
    assert kept(condition) == list(filter(holds, QUEUES))


def test_all_conditions_hold_together():
    assert kept(EqualTo(("topic",), "Orders"), GreaterThanOrEqual(("queueId",), 2), EqualTo(("brokerName",), "b")) == [
        MessageQueue("Orders", "b", 2)
    ]


def test_bounds_of_the_queue_offset_are_claimed():
    pushed = Pushed()
    offset = ("queueOffset",)
    assert pushed.take([IsNotNull(offset), GreaterThan(offset, 9), LessThan(offset, 20)]) == []
    assert (pushed.low, pushed.high) == (10, 20)
    assert pushed.take([GreaterThanOrEqual(offset, 5), LessThanOrEqual(offset, 18)]) == []
    assert (pushed.low, pushed.high) == (10, 19)
    assert pushed.take([EqualTo(offset, 12)]) == []
    assert (pushed.low, pushed.high) == (12, 13)


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("tags",), "a"),
        EqualTo(("topic",), None),
        In(("queueId",), (0, None)),
        Not(In(("queueId",), (0, None))),
        IsNull(("topic",)),
        EqualTo(("queueOffset",), None),
        In(("queueOffset",), (1, 2)),
        Not(EqualTo(("queueOffset",), 1)),
        EqualTo(("properties", "topic"), "x"),
        GreaterThan(("bornTimestamp",), datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_what_ranges_cannot_tell_stays_with_spark_and_cuts_nothing(condition):
    pushed = Pushed()
    assert pushed.take([condition]) == [condition]
    assert all(map(pushed.keeps, QUEUES))
    assert (pushed.low, pushed.high, pushed.since_ms, pushed.until_ms) == (0, 2**63 - 1, None, None)


def test_store_times_cut_ranges_and_stay_with_spark():
    pushed = Pushed()
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    ms = int(noon.timestamp() * 1000)
    conditions = [GreaterThanOrEqual(("storeTimestamp",), noon), LessThan(("storeTimestamp",), noon + timedelta(hours=1))]
    assert pushed.take(conditions) == conditions
    assert ms - 2 < pushed.since_ms <= ms
    assert ms + 3_600_000 <= pushed.until_ms <= ms + 3_600_002
