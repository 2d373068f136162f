"""The growth of counters over the last minute, hour and day, sampled as the reference does.

Samples are columns. All counted objects share their times, so that an object costs one array, 1 to 1.5 KiB::

    minute: 7 columns, one every 10 s      hour: 7, one every 10 min      day: 25, one every hour

An object that is made between two samples has zeros in the older columns, which is what it had counted then.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from sprocketmq.broker.metrics.counters import BrokerCounters, GroupCounters, TopicCounters
from sprocketmq.clock import SYSTEM_CLOCK, Clock

SAMPLE_INTERVAL_S = 10.0
# Objects that are sampled before other work gets its turn: half a millisecond.
STEP_OBJECTS = 256

_Counted = TypeVar("_Counted", TopicCounters, GroupCounters)


class _Window(NamedTuple):
    """The samples of one window: ``columns`` of them from ``first`` on, one every ``samples`` times 10 s."""

    length_s: float
    samples: int
    columns: int
    first: int


WINDOWS = (_Window(60.0, 1, 7, 0), _Window(3600.0, 60, 7, 7), _Window(86_400.0, 360, 25, 14))
_COLUMNS = 39


class Grown(NamedTuple):
    """The growth of each counter of an object in a window, and the length of the window."""

    amounts: tuple[int, ...]
    seconds: float

    def rate(self, counter: int) -> float:
        """Return the growth of one of the counters per second."""
        return self.amounts[counter] / self.seconds


class Windows:
    """Samples of the counters of a broker, its topics and its groups: ``sample`` in one go, ``steps`` with pauses."""

    def __init__(self, counters: BrokerCounters, clock: Clock = SYSTEM_CLOCK) -> None:
        self._counters = counters
        self._clock = clock
        self._ticks = 0
        self._times: list[float | None] = [None] * _COLUMNS
        self._broker = array("q", bytes(8 * _COLUMNS * len(_broker_values(counters, 0, 0))))
        self._topics: WeakKeyDictionary[TopicCounters, array[int]] = WeakKeyDictionary()
        self._groups: WeakKeyDictionary[GroupCounters, array[int]] = WeakKeyDictionary()
        # What topics of users stored and gave, as of the last sample. They only grow, also when a topic is deleted.
        self._user_put = self._user_got = 0
        self.sample()

    # --- sampling ---

    def sample(self) -> None:
        """Take one sample now."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Take one sample, and yield where other work may come between. The sample counts when the last step is done."""
        latest = self._latest()
        due = [window.first + self._ticks // window.samples % window.columns for window in WINDOWS if not self._ticks % window.samples]
        for column in due:
            self._times[column] = None
        now = self._clock.monotonic()
        for number, topic in enumerate(list(self._counters.topics)):
            values = _topic_values(topic)
            grown = values[0] - self._record(self._topics, topic, values, due, latest)
            if not topic.is_system:
                self._user_put += grown
            if number % STEP_OBJECTS == STEP_OBJECTS - 1:
                yield
        system = {topic.name for topic in self._counters.topics if topic.is_system}
        for number, group in enumerate(list(self._counters.groups)):
            values = _group_values(group)
            grown = values[0] - self._record(self._groups, group, values, due, latest)
            if group.topic not in system:
                self._user_got += grown
            if number % STEP_OBJECTS == STEP_OBJECTS - 1:
                yield
        _write(self._broker, _broker_values(self._counters, self._user_put, self._user_got), due)
        for column in due:
            self._times[column] = now
        self._ticks += 1

    @staticmethod
    def _record(
        table: "WeakKeyDictionary[_Counted, array[int]]", counted: _Counted, values: tuple[int, ...], due: list[int], latest: int | None
    ) -> int:
        """Write the values of an object, and return the first one of its last sample; 0 when this is the first sample."""
        ring = table.get(counted)
        if ring is None:
            ring = table[counted] = array("q", bytes(8 * _COLUMNS * len(values)))
        before = ring[latest * len(values)] if latest is not None else 0
        _write(ring, values, due)
        return before

    def _latest(self) -> int | None:
        """Return the column of the last sample, None before the first."""
        return (self._ticks - 1) % WINDOWS[0].columns if self._ticks else None

    # --- asking ---

    def of_broker(self) -> list[Grown]:
        """Return what the broker's counters grew by in minute, hour and day.

        In order: messages stored, messages given, both without those of system topics, connections opened, connections closed.
        """
        return self._grown(self._broker, _broker_values(self._counters, self._user_put, self._user_got))

    def of_topic(self, topic: TopicCounters) -> list[Grown]:
        """Return what a topic's counters grew by: messages stored, their bytes, and requests that stored them."""
        return self._grown(self._topics.get(topic), _topic_values(topic))

    def of_group(self, group: GroupCounters) -> list[Grown]:
        """Return what the counters of a group on a topic grew by: messages given, their bytes, pulls with messages, messages given back."""
        return self._grown(self._groups.get(group), _group_values(group))

    def _grown(self, ring: "array[int] | None", values: tuple[int, ...]) -> list[Grown]:
        now = self._clock.monotonic()
        found = []
        for window in WINDOWS:
            column, began = self._begin(window, now)
            base: Sequence[int] = (0,) * len(values)
            if ring is not None and column is not None:
                base = ring[column * len(values) : (column + 1) * len(values)]
            found.append(Grown(tuple(value - old for value, old in zip(values, base, strict=True)), max(now - began, SAMPLE_INTERVAL_S)))
        return found

    def _begin(self, window: _Window, now: float) -> tuple[int | None, float]:
        """Return the oldest sample within a window and its time; the newest one there is when all are older."""
        times = [
            (time, column) for column in range(window.first, window.first + window.columns) if (time := self._times[column]) is not None
        ]
        if not times:
            return None, now
        time, column = min((each for each in times if now - each[0] <= window.length_s), default=max(times))
        return column, time


def _write(ring: "array[int]", values: tuple[int, ...], columns: list[int]) -> None:
    width = len(values)
    for column in columns:
        ring[column * width : (column + 1) * width] = array("q", values)


def _topic_values(topic: TopicCounters) -> tuple[int, ...]:
    return topic.put_messages, topic.put_bytes, topic.put_requests


def _group_values(group: GroupCounters) -> tuple[int, ...]:
    return group.get_messages, group.get_bytes, group.get_requests, group.sent_back


def _broker_values(counters: BrokerCounters, user_put: int, user_got: int) -> tuple[int, ...]:
    opened, closed = counters.connections_opened, counters.connections_closed
    return counters.put_messages, counters.get_messages, user_put, user_got, opened, closed
