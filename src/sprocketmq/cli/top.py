"""``sprocketmq top``: live rates of brokers, topics and groups, and the queues that lag most."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, TypeVar

from sprocketmq.cli.live_rates import BrokerRow, GroupRow, QueueRow, Rates, TopicRow
from sprocketmq.cli.output import clean, live_display, print_json, print_table
from sprocketmq.cli.target import Target
from sprocketmq.cli.topic import users_topics
from sprocketmq.client.admin import AdminClient, BrokerState
from sprocketmq.errors import FatalError, RetriableError
from sprocketmq.protocol.names import SYSTEM_GROUPS

if TYPE_CHECKING:
    from rich.console import Group as RenderGroup

# A sample covers this many topics and groups, in turn, so that a large cluster's brokers have little work.
PER_SAMPLE = 64
AT_A_TIME = 16
# Names of topics and groups are refreshed after this many samples.
NAMES_EVERY = 10

_T = TypeVar("_T")


@dataclass
class Picture:
    """The current state, by name."""

    brokers: list[BrokerRow] = field(default_factory=list)
    topics: dict[str, TopicRow] = field(default_factory=dict)
    groups: dict[str, GroupRow] = field(default_factory=dict)
    queues: dict[str, list[QueueRow]] = field(default_factory=dict)
    problem: str = ""

    def busiest_topics(self, count: int) -> list[TopicRow]:
        return sorted(self.topics.values(), key=lambda row: (-(row.in_per_s or 0), row.topic))[:count]

    def furthest_groups(self, count: int) -> list[GroupRow]:
        return sorted(self.groups.values(), key=lambda row: (-row.lag, -(row.out_per_s or 0), row.group))[:count]

    def furthest_queues(self, count: int) -> list[QueueRow]:
        every = (row for rows in self.queues.values() for row in rows)
        return sorted(every, key=lambda row: (-row.lag, row.group, row.queue))[:count]


class Sampler:
    """Takes samples of a cluster into a Picture."""

    def __init__(self, admin: AdminClient, now: Callable[[], float] = time.monotonic) -> None:
        self.picture = Picture()
        self._admin = admin
        self._now = now
        self._rates = Rates()
        self._samples = 0
        self._topics: list[str] = []
        self._groups: list[str] = []

    async def sample(self) -> None:
        """Ask all brokers, and the next topics and groups in turn. A cluster that does not answer becomes the picture's ``problem``."""
        try:
            states = await self._admin.brokers()
            if self._samples % NAMES_EVERY == 0:
                await self._ask_names()
            self.picture.brokers = await _each(self._broker(state) for state in states)
            masters = [state.address for state in states if state.is_master and not state.problem]
            await _each(self._topic(topic, masters) for topic in turn(self._topics, self._samples))
            await _each(self._group(group) for group in turn(self._groups, self._samples))
            self.picture.problem = ""
        except (FatalError, RetriableError) as e:
            self.picture.problem = str(e)
        self._samples += 1

    async def _ask_names(self) -> None:
        admin, picture = self._admin, self.picture
        self._topics = users_topics(await admin.topics(), await admin.cluster())
        self._groups = [group for group in await admin.groups() if group not in SYSTEM_GROUPS]
        self._rates.forget(set(self._topics), set(self._groups))
        picture.topics = {name: row for name, row in picture.topics.items() if name in self._rates.topics}
        picture.groups = {name: row for name, row in picture.groups.items() if name in self._rates.groups}
        picture.queues = {name: rows for name, rows in picture.queues.items() if name in self._rates.groups}

    async def _broker(self, state: BrokerState) -> BrokerRow:
        runtime: dict[str, str] = {}
        if not state.problem:
            try:
                runtime = await self._admin.broker_runtime(state.address)
            except (FatalError, RetriableError):  # it disappeared after reporting its state; the next sample shows that
                runtime = {}
        return self._rates.broker(self._now(), state, runtime)

    async def _topic(self, topic: str, masters: Sequence[str]) -> None:
        try:
            queues = (await self._admin.topic_stats(topic)).offset_table.values()
            at = self._now()
            counters = [counter for address in masters if (counter := await self._admin.counter_on(address, "TOPIC_PUT_NUMS", topic))]
        except (FatalError, RetriableError):
            self.picture.topics.pop(topic, None)
            return
        ends, stored = sum(queue.max_offset for queue in queues), sum(queue.max_offset - queue.min_offset for queue in queues)
        sent = [counter.stats_minute for counter in counters if counter.stats_minute.avgpt > 0]
        requests = sum(window.sum / window.avgpt for window in sent)
        per_send = sum(window.sum for window in sent) / requests if requests else None
        self.picture.topics[topic] = self._rates.topic(at, topic, ends, stored, per_send)

    async def _group(self, group: str) -> None:
        try:
            progress = await self._admin.progress(group)
        except (FatalError, RetriableError):
            self.picture.groups.pop(group, None)
            self.picture.queues.pop(group, None)
            return
        self.picture.groups[group], self.picture.queues[group] = self._rates.group(self._now(), progress)


def turn(names: Sequence[str], number: int) -> Sequence[str]:
    """Return the ``PER_SAMPLE`` names whose turn it is."""
    if len(names) <= PER_SAMPLE:
        return names
    begin = number * PER_SAMPLE % len(names)
    return [*names[begin : begin + PER_SAMPLE], *names[: max(0, begin + PER_SAMPLE - len(names))]]


async def _each(asked: Iterable[Awaitable[_T]]) -> list[_T]:
    """Await all, ``AT_A_TIME`` at a time, and return their results in order."""
    limit = asyncio.Semaphore(AT_A_TIME)

    async def one(awaited: Awaitable[_T]) -> _T:
        async with limit:
            return await awaited

    return await asyncio.gather(*(one(each) for each in asked))


BROKERS = ("broker", "id", "role", "in/s", "out/s", "disk", "unflushed", "held pulls")
TOPICS = ("topic", "in/s", "messages/send", "stored")
GROUPS = ("group", "out/s", "lag", "caught up in")
QUEUES = ("slow queue of group", "topic, broker, queue", "lag", "out/s")


def tables(picture: Picture, rows: int) -> list[tuple[Sequence[str], list[tuple[str, ...]]]]:
    """Return headings and rows of the four tables."""
    return [
        (
            BROKERS,
            [
                (
                    clean(row.name),
                    str(row.broker_id),
                    row.role.lower() or "away",
                    _rate(row.in_per_s),
                    _rate(row.out_per_s),
                    "-" if row.disk_ratio is None else f"{row.disk_ratio:.0%}",
                    clean(row.unflushed),
                    clean(row.held_pulls),
                )
                for row in picture.brokers
            ],
        ),
        (
            TOPICS,
            [
                (
                    clean(row.topic),
                    _rate(row.in_per_s),
                    "-" if row.messages_per_send is None else f"{row.messages_per_send:,.1f}",
                    f"{row.stored:,}",
                )
                for row in picture.busiest_topics(rows)
            ],
        ),
        (
            GROUPS,
            [(clean(row.group), _rate(row.out_per_s), f"{row.lag:,}", _duration(row.caught_up_s)) for row in picture.furthest_groups(rows)],
        ),
        (QUEUES, [(clean(row.group), clean(row.queue), f"{row.lag:,}", _rate(row.out_per_s)) for row in picture.furthest_queues(rows)]),
    ]


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"


async def _run(target: Target, interval_s: float, rows: int, *, once: bool, as_json: bool) -> int:
    async with AdminClient(**target.options) as admin:
        sampler = Sampler(admin)
        await sampler.sample()
        if not once:
            await _follow(sampler, interval_s, rows)
        await asyncio.sleep(interval_s)
        await sampler.sample()
    picture = sampler.picture
    if as_json:
        print_json(
            {
                "brokers": [asdict(row) for row in picture.brokers],
                "topics": [asdict(row) for row in picture.busiest_topics(len(picture.topics))],
                "groups": [asdict(row) for row in picture.furthest_groups(len(picture.groups))],
                "queues": [asdict(row) for row in picture.furthest_queues(rows)],
                "problem": picture.problem or None,
            }
        )
    else:
        for columns, lines in tables(picture, rows):
            print_table(columns, lines)
            print()
    if picture.problem:
        print(clean(picture.problem), file=sys.stderr)
    return 1 if picture.problem else 0


async def _follow(sampler: Sampler, interval_s: float, rows: int) -> None:
    """Redraw after each sample, until interrupted."""
    with live_display(_drawn(sampler.picture, rows), screen=True) as live:
        while True:
            await asyncio.sleep(interval_s)
            await sampler.sample()
            live.update(_drawn(sampler.picture, rows), refresh=True)


def _drawn(picture: Picture, rows: int) -> "RenderGroup":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[Table | Text] = [Text(time.strftime("sprocketmq top  %H:%M:%S   Ctrl-C ends it"), style="bold")]
    if picture.problem:
        parts.append(Text(clean(picture.problem), style="bold red"))
    for columns, lines in tables(picture, rows):
        table = Table(box=None, header_style="bold cyan", pad_edge=False)
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        for line in lines:
            table.add_row(*(Text(cell) for cell in line))
        parts += [Text(""), table]
    parts += [Text(f"{row.name} {row.broker_id}: {clean(row.problem)}", style="red") for row in picture.brokers if row.problem]
    return Group(*parts)


def top(target: Target, *, interval_s: float, rows: int, once: bool, as_json: bool) -> int:
    """Show the rates until interrupted, or once: always when standard output is not a terminal. Returns the exit code."""
    once = once or as_json or not sys.stdout.isatty()
    return asyncio.run(_run(target, interval_s, rows, once=once, as_json=as_json))
