"""Conditions of a query that say which ranges of which queues it needs: pure functions, so that claims can be tested.

Spark believes a reader that claims a condition and does not look again. Claimed is therefore only what a range of offsets tells exactly:
topic, broker, queue, and bounds of the queue offset. A store time cuts ranges, too, but stays with Spark: brokers look up times to the
millisecond, and a clock that was set back stores messages out of their order.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from sprocketmq.protocol.message import MessageQueue

_QUEUE_COLUMNS: dict[str, Callable[[MessageQueue], Any]] = {
    "topic": lambda queue: queue.topic,
    "brokerName": lambda queue: queue.broker_name,
    "queueId": lambda queue: queue.queue_id,
}
# What a comparison of a column that is never null with a value that is not null comes to.
_COMPARE: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda mine, value: mine == value,
    EqualNullSafe: lambda mine, value: mine == value,
    GreaterThan: lambda mine, value: mine > value,
    GreaterThanOrEqual: lambda mine, value: mine >= value,
    LessThan: lambda mine, value: mine < value,
    LessThanOrEqual: lambda mine, value: mine <= value,
    StringStartsWith: lambda mine, value: mine.startswith(value),
    StringEndsWith: lambda mine, value: mine.endswith(value),
    StringContains: lambda mine, value: value in mine,
}
_LAST = 2**63 - 1


class Pushed:
    """What the conditions that were taken in leave to be read.

    ``low`` <= queue offset < ``high``; store time from ``since_ms`` on and before ``until_ms``, None where that is open; queues by ``keeps``.
    """

    def __init__(self) -> None:
        self.low = 0
        self.high = _LAST
        self.since_ms: int | None = None
        self.until_ms: int | None = None
        self._tests: list[Callable[[MessageQueue], bool]] = []

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take in conditions that all hold for wanted rows; return those Spark must still look at."""
        return [each for each in filters if not self._claim(each)]

    def keeps(self, queue: MessageQueue) -> bool:
        """Tell whether rows of ``queue`` may be wanted."""
        return all(test(queue) for test in self._tests)

    def _claim(self, condition: Filter) -> bool:
        if isinstance(condition, Not):
            test = _queue_test(condition.child)
            if test is not None:
                self._tests.append(_negation(test))
            return test is not None
        test = _queue_test(condition)
        if test is not None:
            self._tests.append(test)
            return True
        column = _column(condition)
        value = getattr(condition, "value", None)
        if column == "queueOffset" and isinstance(condition, IsNotNull):
            return True
        if column == "queueOffset" and isinstance(value, int) and not isinstance(value, bool):
            return self._claim_offset(condition, value)
        if column == "storeTimestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            self._cut_time(condition, value)
        return False

    def _claim_offset(self, condition: Filter, value: int) -> bool:
        if isinstance(condition, EqualTo | EqualNullSafe):
            self.low, self.high = max(self.low, value), min(self.high, value + 1)
        elif isinstance(condition, GreaterThan | GreaterThanOrEqual):
            self.low = max(self.low, value + isinstance(condition, GreaterThan))
        elif isinstance(condition, LessThan | LessThanOrEqual):
            self.high = min(self.high, value + isinstance(condition, LessThanOrEqual))
        else:
            return False
        return True

    def _cut_time(self, condition: Filter, value: datetime) -> None:
        # A millisecond more than is wanted on either side: the rows are looked at again.
        ms = int(value.timestamp() * 1000)
        if isinstance(condition, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
            self.since_ms = max(self.since_ms or 0, ms - 1)
        if isinstance(condition, EqualTo | EqualNullSafe | LessThan | LessThanOrEqual):
            self.until_ms = ms + 2 if self.until_ms is None else min(self.until_ms, ms + 2)


def _column(condition: Filter) -> str | None:
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    return path[0] if len(path) == 1 else None


def _negation(test: Callable[[MessageQueue], bool]) -> Callable[[MessageQueue], bool]:
    return lambda queue: not test(queue)


def _queue_test(condition: Filter) -> Callable[[MessageQueue], bool] | None:
    """Return what a condition on topic, broker or queue comes to, None for any other and for comparisons with null."""
    column = _QUEUE_COLUMNS.get(_column(condition) or "")
    if column is None:
        return None
    if isinstance(condition, IsNotNull):
        return lambda _: True
    value = getattr(condition, "value", None)
    if isinstance(condition, In):
        values = tuple(value or ())
        return None if None in values else lambda queue: column(queue) in values
    compare = _COMPARE.get(type(condition))
    if compare is None or value is None:
        return None
    return lambda queue: compare(column(queue), value)
