"""Queries a whole cluster for the pages: few requests at a time, a timeout for each, and a reason for each broker that does not answer.

A broker that cannot be reached fails at once for the next AWAY_S seconds, so that a list of 1,000 groups does not wait 1,000 times for it.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from sprocketmq.client import AdminClient
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConnectFailed, RequestTimeout, RetriableError, SprocketError
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.bodies import ClusterInfo, TopicConfig
from sprocketmq.web.calls import Call

Json = dict[str, Any]

REQUESTS_AT_ONCE = 16
REQUEST_TIMEOUT_S = 4.0
AWAY_S = 5.0
# How old the list of brokers, and the settings of all topics, may be.
CLUSTER_AGE_S, TOPICS_AGE_S = 3.0, 10.0
MAX_SAMPLES = 4096
READER_AGE_S = 3600.0

_T = TypeVar("_T")


class BrokerAway(RetriableError):
    """A broker that just failed to answer is not asked again yet; the text is that of its failure."""


class ClusterReader:
    """Asks the brokers of one AdminClient. Lists are cached for some seconds, and shared by concurrent callers."""

    def __init__(self, admin: AdminClient, *, timeout_s: float = REQUEST_TIMEOUT_S, clock: Clock = SYSTEM_CLOCK) -> None:
        self.admin = admin
        self.clock = clock
        self._samples: OrderedDict[str, Any] = OrderedDict()
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._away: dict[str, tuple[float, str]] = {}
        self._kept: dict[str, tuple[float, Any]] = {}
        self._loading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    # --- brokers ---

    async def cluster(self) -> ClusterInfo:
        """Return the registered brokers."""
        return await self.kept("cluster", CLUSTER_AGE_S, lambda: self._limited(self.admin.cluster()))

    async def brokers(self) -> dict[str, str]:
        """Return the address to read from by broker name: the master's, or that of the slave with the lowest id."""
        table = (await self.cluster()).broker_addr_table
        return {name: data.broker_addrs[min(data.broker_addrs)] for name, data in sorted(table.items()) if data.broker_addrs}

    async def ask(self, address: str, request: Callable[[str], Awaitable[_T]]) -> _T:
        """Return the answer of the broker at ``address``. Raises SprocketError, within the time limit of one request."""
        self._check_away(address)
        async with self._slots:
            self._check_away(address)
            try:
                return await self._limited(request(address))
            except (ConnectFailed, RequestTimeout, TimeoutError) as e:
                reason = str(e) or f"the broker at {address} did not answer within {self._timeout_s:g} s"
                self._away[address] = self.clock.monotonic() + AWAY_S, reason
                raise BrokerAway(reason) from e

    async def ask_member(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Return the answer of a client, which its broker requests. A client that hangs does not count against its broker."""
        async with self._slots:
            try:
                return await self._limited(request())
            except TimeoutError:
                raise RetriableError(f"no answer within {self._timeout_s:g} s") from None

    async def ask_all(
        self, request: Callable[[str], Awaitable[_T]], names: Iterable[str] | None = None
    ) -> tuple[dict[str, _T], dict[str, str]]:
        """Ask every broker, or those with ``names``; return answers and the reasons of missing answers, both by broker name.

        When all are asked and none is registered, the reason of that has the name "".
        """
        brokers = await self.brokers()
        wanted = list(brokers) if names is None else list(names)
        answers: dict[str, _T] = {}
        missing = {name: "the broker is not registered at the nameserver" for name in wanted if name not in brokers}
        if names is None and not brokers:
            missing[""] = "no broker is registered at the nameserver"

        async def one(name: str) -> None:
            try:
                answers[name] = await self.ask(brokers[name], request)
            except SprocketError as e:
                missing[name] = str(e)

        await all_of(one(name) for name in wanted if name in brokers)
        return answers, missing

    def _check_away(self, address: str) -> None:
        until, reason = self._away.get(address, (0.0, ""))
        if until > self.clock.monotonic():
            raise BrokerAway(reason)

    async def _limited(self, request: Awaitable[_T]) -> _T:
        async with asyncio.timeout(self._timeout_s):
            return await request

    # --- cached lists ---

    async def topic_table(self, topic: str = "") -> tuple[dict[str, dict[str, TopicConfig]], dict[str, str]]:
        """Return the settings of all topics, by topic and broker name, and the reasons of brokers whose topics are missing.

        A table without ``topic`` is read again, as it may be new.
        """
        found = await self.kept("topics", TOPICS_AGE_S, self._topic_table)
        return found if not topic or topic in found[0] else await self.kept("topics", 0.0, self._topic_table)

    async def _topic_table(self) -> tuple[dict[str, dict[str, TopicConfig]], dict[str, str]]:
        tables, missing = await self.ask_all(self.admin.topic_configs_on)
        found: dict[str, dict[str, TopicConfig]] = {}
        for name, table in sorted(tables.items()):
            for topic, config in table.items():
                found.setdefault(topic, {})[name] = config
        return found, missing

    async def kept(self, name: str, max_age_s: float, load: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of a ``load`` that began at most ``max_age_s`` before this call. Callers share one; failures are not cached."""
        oldest = self.clock.monotonic() - max_age_s
        async with self._loading[name]:
            entry = self._kept.get(name)
            if entry is None or entry[0] < oldest:
                entry = self._kept[name] = self.clock.monotonic(), await load()
            found: _T = entry[1]
            return found

    def forget(self) -> None:
        """Drop the cached lists, after a change."""
        self._kept.clear()

    def sample(self, name: str) -> Any:
        """Return what ``keep_sample`` kept under ``name``, or None."""
        return self._samples.get(name)

    def keep_sample(self, name: str, value: object) -> None:
        """Keep ``value``; of more than MAX_SAMPLES names the oldest is dropped."""
        self._samples[name] = value
        self._samples.move_to_end(name)
        if len(self._samples) > MAX_SAMPLES:
            self._samples.popitem(last=False)


async def reader_of(call: Call) -> ClusterReader:
    """Return the reader of the viewer of a call."""
    return await call.cached("cluster reader", READER_AGE_S, lambda: _make(call))


async def _make(call: Call) -> ClusterReader:
    return ClusterReader(await call.admin())
