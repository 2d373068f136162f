"""The figures of ``sprocketmq top``, from counters at two moments: pure functions, and the window that keeps the samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sprocketmq.client.admin import BrokerState, GroupProgress, QueueProgress


@dataclass(frozen=True)
class BrokerRow:
    """One broker. Rates are messages a second since the sample before; None is unknown."""

    name: str
    broker_id: int
    role: str
    in_per_s: float | None
    out_per_s: float | None
    disk_ratio: float | None
    unflushed: str
    held_pulls: str
    problem: str


@dataclass(frozen=True)
class TopicRow:
    """One topic: messages a second sent to it, messages in each send request of the last minute, and messages stored."""

    topic: str
    in_per_s: float | None
    messages_per_send: float | None
    stored: int


@dataclass(frozen=True)
class GroupRow:
    """One consumer group: messages a second it consumed, its lag, and in how many seconds it has caught up at this rate."""

    group: str
    out_per_s: float | None
    lag: int
    caught_up_s: float | None


@dataclass(frozen=True)
class QueueRow:
    """One queue of a group that lags behind."""

    group: str
    queue: str
    lag: int
    out_per_s: float | None


@dataclass
class Seen:
    """Values of one subject at its newest two samples, with the time of each (monotonic seconds)."""

    then: tuple[float, Mapping[str, int]] | None = None
    now: tuple[float, Mapping[str, int]] | None = None

    def add(self, at: float, values: Mapping[str, int]) -> None:
        self.then, self.now = self.now, (at, values)

    def rate(self, name: str) -> float | None:
        """Return how much a value grew a second; None before the second sample, or when it fell, as after a restart."""
        if self.then is None or self.now is None or name not in self.then[1] or name not in self.now[1]:
            return None
        elapsed, grown = self.now[0] - self.then[0], self.now[1][name] - self.then[1][name]
        return grown / elapsed if elapsed > 0 and grown >= 0 else None


@dataclass
class Rates:
    """The samples of all brokers, topics and groups, of which those that are gone are forgotten."""

    brokers: dict[tuple[str, int], Seen] = field(default_factory=dict)
    topics: dict[str, Seen] = field(default_factory=dict)
    groups: dict[str, Seen] = field(default_factory=dict)

    def broker(self, at: float, state: BrokerState, runtime: Mapping[str, str]) -> BrokerRow:
        """Take a sample of a broker, and return its row."""
        seen = self.brokers.setdefault((state.broker_name, state.broker_id), Seen())
        counters = {name: whole(runtime.get(key)) for name, key in (("in", "msgPutTotalTodayNow"), ("out", "msgGetTotalTodayNow"))}
        seen.add(at, {name: value for name, value in counters.items() if value is not None})
        ratio = runtime.get("commitLogDiskRatio", "")
        return BrokerRow(
            state.broker_name,
            state.broker_id,
            state.role,
            seen.rate("in"),
            seen.rate("out"),
            float(ratio) if ratio.replace(".", "", 1).isdigit() else None,
            runtime.get("remainHowManyDataToFlush", "-"),
            runtime.get("heldPulls", "-"),
            state.problem,
        )

    def topic(self, at: float, topic: str, ends: int, stored: int, messages_per_send: float | None) -> TopicRow:
        """Take a sample of a topic, of which ``ends`` is the sum of its queues' ends, and return its row."""
        seen = self.topics.setdefault(topic, Seen())
        seen.add(at, {"ends": ends})
        return TopicRow(topic, seen.rate("ends"), messages_per_send, stored)

    def group(self, at: float, progress: GroupProgress) -> tuple[GroupRow, list[QueueRow]]:
        """Take a sample of a group, and return its row and those of its queues that lag."""
        seen = self.groups.setdefault(progress.group, Seen())
        committed = {_key(each): each.committed_offset for each in progress.queues}
        seen.add(at, committed | {"": sum(committed.values()), "end": sum(each.end_offset for each in progress.queues)})
        rate, arriving = seen.rate(""), seen.rate("end")
        nearing = None if rate is None or arriving is None else rate - arriving
        caught_up = progress.lag / nearing if nearing is not None and nearing > 0 else 0.0 if not progress.lag else None
        queues = [QueueRow(progress.group, _key(each), each.lag, seen.rate(_key(each))) for each in progress.queues if each.lag]
        return GroupRow(progress.group, rate, progress.lag, caught_up), queues

    def forget(self, topics: set[str], groups: set[str]) -> None:
        """Drop the samples of topics and groups that are not among these."""
        for seen, present in ((self.topics, topics), (self.groups, groups)):
            for name in [name for name in seen if name not in present]:
                del seen[name]


def _key(progress: QueueProgress) -> str:
    queue = progress.queue
    return f"{queue.topic} {queue.broker_name} {queue.queue_id}"


def whole(text: str | None) -> int | None:
    """Return the whole number that a broker wrote, None for anything else."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
