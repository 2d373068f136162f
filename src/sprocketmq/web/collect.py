"""Samples of all brokers over the last hour: one collector for a dashboard, however many pages are open.

Every SAMPLE_S the nameserver is asked for the brokers (106) and each broker for its statistics (28). When no page has been open for
IDLE_AFTER_S, samples are taken every IDLE_SAMPLE_S. A broker that does not answer, or answers something else, has a ``problem`` instead of
values; a value that a broker does not report is None.
"""

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

import msgspec

from sprocketmq.client.admin import AdminClient
from sprocketmq.clock import Clock
from sprocketmq.errors import SprocketError
from sprocketmq.net.tasks import Background
from sprocketmq.web.alarms import alarms_of
from sprocketmq.web.failures import failure_of
from sprocketmq.web.samples import Alarm, BrokerView, ClusterView, History, Point

SAMPLE_S = 5.0
IDLE_SAMPLE_S = 60.0
IDLE_AFTER_S = 60.0
HISTORY_MS = 3_600_000
POINTS = int(HISTORY_MS / 1000 / SAMPLE_S)
ASKED_AT_ONCE = 8
ANSWER_TIMEOUT_S = 4.0
MAX_BROKERS = 256
# Settings change rarely.
ROLE_MAX_AGE_S = 60.0

_SPACE = re.compile(r"Total : ([\d.]+) ([KMGTPE]?i?B), Free : ([\d.]+) ([KMGTPE]?i?B)")
_UNITS = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4, "PiB": 5, "EiB": 6}


class Collector:
    """The newest view of the cluster and the history behind it.

    ``admin`` returns the client for requests, None while no viewer has the right to ask.
    """

    def __init__(self, admin: Callable[[], Awaitable[AdminClient | None]], clock: Clock) -> None:
        self._admin = admin
        self._clock = clock
        self._background = Background("dashboard")
        self._slots = asyncio.Semaphore(ASKED_AT_ONCE)
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._viewers = 0
        self._left = clock.monotonic()
        self._sampled = -SAMPLE_S
        self._view = ClusterView()
        self._points: dict[str, deque[Point]] = {}
        self._before: dict[str, tuple[float, BrokerView]] = {}
        self._roles: dict[str, tuple[float, str]] = {}
        self._closed = False

    def start(self) -> None:
        """Begin to sample."""
        self._background.keep("samples", self._sample_forever)

    async def close(self) -> None:
        """Stop, and end all iterations of ``updates``."""
        self._closed = True
        await self._background.close()
        async with self._changed:
            self._changed.notify_all()

    @property
    def view(self) -> ClusterView:
        """The newest sample."""
        return self._view

    @property
    def history(self) -> dict[str, History]:
        """The rates of the last hour by the address of the broker."""
        return {address: History.of(points) for address, points in self._points.items()}

    async def updates(self) -> AsyncIterator[ClusterView]:
        """Yield the newest sample and each that follows. While anybody iterates, samples are taken at the short interval."""
        with self._looking():
            last = None
            while not self._closed:
                if self._view is last or not self._view.time_ms:
                    async with self._changed:
                        await self._changed.wait()
                    continue
                last = self._view
                yield last

    async def fresh(self) -> ClusterView:
        """Return a sample that is not older than the short interval, also when the collector is idle or waits for its first one."""
        with self._looking():
            while not self._closed and self._clock.monotonic() - self._sampled > 2 * SAMPLE_S:
                async with self._changed:
                    await self._changed.wait()
        return self._view

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        self._viewers += 1
        if self._clock.monotonic() - self._sampled > SAMPLE_S:
            self._wake.set()
        try:
            yield
        finally:
            self._viewers -= 1
            self._left = self._clock.monotonic()

    def wake(self) -> None:
        """Sample now, such as after the first login."""
        self._wake.set()

    # --- sampling ---

    async def _sample_forever(self) -> None:
        while True:
            self._wake.clear()
            view = await self._sample()
            async with self._changed:
                self._view, self._sampled = view, self._clock.monotonic()
                self._changed.notify_all()
            watched = self._viewers or self._clock.monotonic() - self._left < IDLE_AFTER_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), SAMPLE_S if watched else IDLE_SAMPLE_S)

    async def _sample(self) -> ClusterView:
        now_ms = self._clock.time_ms()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                admin = await self._admin()
                if admin is None:
                    return ClusterView(time_ms=now_ms, problem="nobody is logged in who may see the cluster")
                info = await admin.cluster()
        except (SprocketError, TimeoutError, OSError) as e:
            # The last known brokers stay visible, marked as away.
            return ClusterView(
                time_ms=now_ms, problem=failure_of(e)[1].text, brokers=self._view.brokers, alarms=[Alarm("nameserver", "bad")]
            )
        clusters = {name: cluster for cluster, names in info.cluster_addr_table.items() for name in names}
        registered = [
            BrokerView(name=name, id=broker_id, address=address, cluster=clusters.get(name, data.cluster))
            for name, data in sorted(info.broker_addr_table.items())
            for broker_id, address in sorted(data.broker_addrs.items())
        ]
        left_out = max(0, len(registered) - MAX_BROKERS)
        brokers = list(await asyncio.gather(*(self._ask(admin, broker) for broker in registered[:MAX_BROKERS])))
        known = {broker.address for broker in brokers}
        for table in (self._points, self._before, self._roles):
            for address in set(table) - known:
                if table is not self._points or not self._is_recent(address, now_ms):
                    del table[address]
        # A broker that died leaves the nameserver's list after a while: it stays here as away for as long as its history.
        gone = [
            msgspec.structs.replace(broker, problem=broker.problem or "it is not registered at the nameserver any more", gone=True)
            for broker in self._view.brokers
            if broker.address not in known and broker.address in self._points
        ]
        for broker in brokers:
            self._record(broker, now_ms)
        brokers = sorted([*brokers, *gone][:MAX_BROKERS], key=lambda broker: (broker.name, broker.id, broker.address))
        return ClusterView(time_ms=now_ms, brokers=brokers, left_out=left_out, alarms=alarms_of(brokers))

    def _is_recent(self, address: str, now_ms: int) -> bool:
        points = self._points[address]
        return bool(points) and now_ms - points[-1].time_ms < HISTORY_MS

    async def _ask(self, admin: AdminClient, broker: BrokerView) -> BrokerView:
        async with self._slots:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    table = await admin.broker_runtime(broker.address)
                    role = table.get("brokerRole") or await self._role(admin, broker.address)
            except (SprocketError, TimeoutError, OSError, ValueError) as e:
                self._before.pop(broker.address, None)
                return msgspec.structs.replace(broker, problem=failure_of(e)[1].text)
        return self._with_rates(view_of(broker, table, role), self._clock.monotonic())

    async def _role(self, admin: AdminClient, address: str) -> str:
        """Return the role from the settings, where brokers of Apache have it; "" for one that does not report it."""
        now = self._clock.monotonic()
        asked, role = self._roles.get(address, (-ROLE_MAX_AGE_S, ""))
        if now - asked >= ROLE_MAX_AGE_S:
            with contextlib.suppress(SprocketError):
                role = (await admin.broker_config(address)).get("brokerRole", "")
            self._roles[address] = now, role
        return role

    def _with_rates(self, broker: BrokerView, now: float) -> BrokerView:
        """Replace the broker's own rates, which are those of 10 seconds, by the growth of its counters since the last sample."""
        then, before = self._before.get(broker.address, (now, broker))
        self._before[broker.address] = now, broker
        if now - then < 1 or before.booted_ms != broker.booted_ms:
            return broker
        rates = {}
        for rate, counter in (("in_rate", "in_total"), ("out_rate", "out_total")):
            grown = getattr(broker, counter), getattr(before, counter)
            if None not in grown and grown[0] >= grown[1]:
                rates[rate] = (grown[0] - grown[1]) / (now - then)
        return msgspec.structs.replace(broker, **rates)

    def _record(self, broker: BrokerView, now_ms: int) -> None:
        points = self._points.setdefault(broker.address, deque(maxlen=POINTS))
        if broker.problem:
            if points:
                points.append(Point(now_ms, None, None, None))
        else:
            points.append(Point(now_ms, broker.in_rate, broker.out_rate, broker.disk_used))
        while points and now_ms - points[0].time_ms > HISTORY_MS:
            points.popleft()


def view_of(broker: BrokerView, table: Mapping[str, str], role: str) -> BrokerView:
    """Return ``broker`` with the values of its runtime statistics."""
    total, free = _space(table.get("commitLogDirCapacity", ""))
    used = number(table.get("commitLogDiskRatio"))
    return msgspec.structs.replace(
        broker,
        role=role,
        version=table.get("brokerVersionDesc", ""),
        in_rate=_first(table.get("putTps")),
        out_rate=_first(table.get("getTransferredTps")),
        in_total=whole(table.get("msgPutTotalTodayNow")),
        out_total=whole(table.get("msgGetTotalTodayNow")),
        in_today=_since(table, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        out_today=_since(table, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        message_bytes=number(table.get("putMessageAverageSize")),
        disk_used=used if used is not None and used >= 0 else None,
        disk_total=total,
        disk_free=free,
        booted_ms=whole(table.get("bootTimestamp")),
        oldest_ms=whole(table.get("earliestMessageTimeStamp")),
        log_start=whole(table.get("commitLogMinOffset")),
        log_end=whole(table.get("commitLogMaxOffset")),
        dispatch_behind=whole(table.get("dispatchBehindBytes")),
        sends_waiting=whole(table.get("sendThreadPoolQueueSize")),
        held_pulls=whole(table.get("heldPulls")),
        writable=None if "diskWritable" not in table else table["diskWritable"] == "true",
        following=table.get("replicationState", ""),
        behind_bytes=whole(table.get("replicationBehindBytes")),
    )


def number(text: str | None) -> float | None:
    """Return the number in a text, None for anything else, infinity included."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if -1e300 < value < 1e300 else None


def whole(text: str | None) -> int | None:
    """Return the whole number in a text, None for anything else."""
    text = text or ""
    return int(text) if len(text) <= 19 and text.isascii() and text.removeprefix("-").isdigit() else None


def _first(rates: str | None) -> float | None:
    """Return the rate of the shortest window. Brokers omit windows that they have not filled."""
    return number((rates or "").partition(" ")[0])


def _since(table: Mapping[str, str], name: str, start: str) -> int | None:
    now, before = whole(table.get(name)), whole(table.get(start))
    return None if now is None or before is None else max(0, now - before)


def _space(text: str) -> tuple[float | None, float | None]:
    found = _SPACE.search(text)
    if found is None:
        return None, None
    total, total_unit, free, free_unit = found.groups()
    if total_unit not in _UNITS or free_unit not in _UNITS:
        return None, None
    sizes = number(total), number(free)
    if None in sizes:
        return None, None
    return float(total) * 1024 ** _UNITS[total_unit], float(free) * 1024 ** _UNITS[free_unit]
