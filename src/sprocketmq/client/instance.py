"""The core of every client object: routes, broker connections, heartbeats, requests.

Each client object owns its own instance, so closing one does not affect another.
"""

import asyncio
import itertools
import logging
import os
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from sprocketmq.client.away import AwayBrokers
from sprocketmq.client.credentials import NO_SECURITY, ClientSecurity, access_error
from sprocketmq.client.fork_guard import guard
from sprocketmq.client.loop_bound import CLOSED, CLOSING, FORKED, NEW, OPEN, LoopBound
from sprocketmq.client.nameservers import NAMESRV_BUDGET_S, Nameservers, namesrv_addresses
from sprocketmq.client.outages import Outages
from sprocketmq.client.routes import MASTER_ID, Route, read_route
from sprocketmq.client.timers import Timers
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import (
    AccessRefused,
    BrokerBusy,
    BrokerError,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    NameserverUnavailable,
    NoBroker,
    RequestTimeout,
    RetriableError,
    SprocketError,
    TopicNotFound,
)
from sprocketmq.net.client import Connection, ConnectionPool
from sprocketmq.net.memory import keep_freed_memory
from sprocketmq.net.tasks import Background, Kept, all_of, settled, share
from sprocketmq.net.tls import client_context
from sprocketmq.protocol.bodies import ClusterInfo, ConsumerData, HeartbeatData, ProducerData, TopicRoute
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import RouteRequest, UnregisterClient
from sprocketmq.protocol.names import DEFAULT_TOPIC

log = logging.getLogger(__name__)

ROUTE_REFRESH_S = 30.0
HEARTBEAT_S = 30.0
REQUEST_TIMEOUT_S = 3.0
UNREGISTER_TIMEOUT_S = 1.0
ASK_TRIES = 3
ASK_PAUSE_S = 0.2
# Minimum interval between route refreshes of a topic that failed sends, or its creation, request.
REFRESH_SOON_S = 1.0

# Refusals that may be temporary.
_PASSING_CODES = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY})
_AWAY_CODES = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY})

# Counts the instances of this process.
INSTANCES = itertools.count()


def response_error(response: Command, address: str, topic: str = "") -> SprocketError:
    """Return the typed error of a response with an error code, from the broker at ``address``."""
    code = response.code
    if code == ResponseCode.TOPIC_NOT_EXIST and topic:
        return TopicNotFound(topic, broker=address)
    if code == ResponseCode.NO_PERMISSION:
        return access_error(response.remark, address)
    kind = BrokerBusy if code in _PASSING_CODES else BrokerError
    return kind(code, response.remark, address=address)


def _unique_number() -> int:
    """Return a number of this moment. The clock of Windows stands still for 16 ms, so the last three digits are counted."""
    return time.monotonic_ns() // 1000 * 1000 + next(INSTANCES) % 1000


class Instance(LoopBound):
    """The connections and routes of one client object.

    ``kind`` names the client in errors. ``security`` signs requests and encrypts connections, to nameservers and brokers alike.
    ``on_request`` gets requests that brokers send (code 40). ``on_route`` is called when a route is new or has changed. Timers and stored
    times use ``clock``; request timeouts use the event loop's.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None,
        *,
        kind: str,
        security: ClientSecurity = NO_SECURITY,
        clock: Clock = SYSTEM_CLOCK,
        on_request: Callable[[Connection, Command], None] | None = None,
        on_route: Callable[[Route], None] | None = None,
    ) -> None:
        super().__init__(kind)
        self.clock = clock
        self.timers: Timers = Timers(clock)
        self.outages: Outages = Outages(clock)
        server_name = None if security.tls is None else security.tls.server_name
        pool = partial(ConnectionPool, tls=client_context(security.tls), server_name=server_name, credentials=security.login(clock))
        self.namesrv: Nameservers = Nameservers(namesrv_addresses(namesrv), self.timers, pool(expected="nameserver"))
        self.brokers: ConnectionPool = pool(expected="broker", on_request=on_request)
        self.routes: dict[str, Route] = {}
        self.producer_groups: list[str] = []
        self.consumers: Callable[[], list[ConsumerData]] = list
        self.client_id: str = ""
        # Held while the client starts or closes: a second call waits for the first.
        self.changing: asyncio.Lock = asyncio.Lock()
        self.on_route = on_route
        self._lookups: dict[str, asyncio.Task[Route | None]] = {}
        self._background = Background(kind)
        self._away = AwayBrokers(
            kind, self.routes, connect=self.brokers.get, look_up=self.fetch_route, spawn=self.spawn, sleep=self.timers.sleep
        )
        self._refreshed_at: dict[str, float] = {}
        self._refreshing: set[str] = set()
        # Topics sent to over the template's route: the first message creates them, and they soon have their own route.
        self._awaited: set[str] = set()
        # The refusal in the last round of heartbeats.
        self.refusal: AccessRefused | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        # Connections on which the last heartbeat was not answered, and how many bytes they had received by then.
        self._silent: dict[str, tuple[Connection, int]] = {}
        self._beat_again = False
        guard(self)

    # --- life ---

    def forked(self) -> None:
        """Mark this as the copy in a forked child (``fork_guard``)."""
        self.state = FORKED
        self.changing = asyncio.Lock()  # its holder exists only in the parent

    async def start(self) -> None:
        """Find a nameserver that answers, then refresh routes and send heartbeats.

        Raises what ``Nameservers.request`` raises, AuthenticationFailed or AuthorizationFailed when it refuses this client, and
        WrongEventLoop outside asyncio. It may be called again after it has raised.
        """
        self.check_asyncio()
        if self.state == OPEN:
            self.check()
            return
        if self.state != NEW:
            self.refuse()
        try:
            await self._try_nameserver()
        except BaseException:
            await self.namesrv.pool.disconnect()
            raise
        self.client_id = f"{self.namesrv.local_ip}@{os.getpid()}#{_unique_number()}"
        self.state = OPEN
        await self.watch_loop()
        keep_freed_memory()
        self.every(ROUTE_REFRESH_S, self.refresh_routes, "route refresh")
        self.every(HEARTBEAT_S, self.heartbeat, "heartbeats")

    async def _try_nameserver(self) -> None:
        """Ask for the template topic's route, which unknown topics need; any answer except a refusal proves that a nameserver answers."""
        response = await self.namesrv.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=to_ext(RouteRequest(DEFAULT_TOPIC)))
        if response.code == ResponseCode.NO_PERMISSION:
            raise response_error(response, ";".join(self.namesrv.addresses))

    async def close(self) -> None:
        """Unregister the groups, end background work, close connections. Harmless when closed already, or in a forked child.

        Everything is closed even if the caller is cancelled meanwhile.
        """
        if self.state == FORKED:
            return
        try:
            if self.state in (OPEN, CLOSING):
                self.state = CLOSED
                self._background.retire()
                self.timers.close()
                await self.unregister()
        finally:
            self.state = CLOSED
            await self._shut()

    async def _shut(self) -> None:
        self._background.retire()
        self.timers.close()
        await self._background.close()
        await self.brokers.close()
        await self.namesrv.pool.close()
        await self.end_watch()

    def dropped(self, client: object, description: str, warn: Callable[..., None] = warnings.warn) -> None:
        """Warn about a client that was dropped while open, and have its loop free its resources."""
        self.state = CLOSED
        self.soon(self._abandon)
        warn(f"unclosed {description}: use 'async with', or await close()", ResourceWarning, source=client, stacklevel=3)

    def _abandon(self) -> None:
        self.timers.close()
        self._background.cancel()
        for pool in (self.brokers, self.namesrv.pool):
            pool.abandon()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str, *, awaited: bool = False) -> "asyncio.Task[Any]":
        """Run ``work`` in the background until it ends or the client closes; a failure is logged, unless ``awaited`` by others."""
        return self._background.spawn(work, name, awaited=awaited)

    def keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Kept:
        """Run ``work()`` until it returns, is stopped, or the client closes; if it ends otherwise, that is logged and it is restarted."""
        return self._background.keep(name, work)

    def every(self, period_s: float, job: Callable[[], Awaitable[Any]], name: str) -> None:
        """Run ``job`` each ``period_s`` seconds while the client is open; errors are logged, and the next run follows."""

        async def when_open() -> None:
            if self.state == OPEN:
                try:
                    await job()
                except SprocketError as e:
                    log.log(self.level_of(e), "%s: %s: %s", self.kind, name, e)

        self._background.every(period_s, when_open, name, self.timers.sleep)

    # --- routes ---

    async def route(self, topic: str, *, budget_s: float = NAMESRV_BUDGET_S) -> Route:
        """Return the route of ``topic``, from the cache if it is there.

        Raises TopicNotFound when no nameserver knows it, NoBroker when that is because no broker is registered, NameserverUnavailable when
        none answers.
        """
        return self.routes.get(topic) or await self.fresh_route(topic, budget_s=budget_s)

    async def fresh_route(self, topic: str, *, budget_s: float = NAMESRV_BUDGET_S) -> Route:
        """Return the route of ``topic`` as a nameserver has it now. Raises as ``route`` does."""
        look = partial(self.fetch_route, topic, budget_s=budget_s)
        return await look() or await self.look_again(topic, look, budget_s=budget_s)

    async def look_again(self, topic: str, look: Callable[[], Awaitable[Route | None]], *, budget_s: float = NAMESRV_BUDGET_S) -> Route:
        """Return the route of a topic that ``look`` has not found, where a broker has registered it since.

        Raises NoBroker when no broker is registered, otherwise TopicNotFound.
        """
        await self.check_brokers(topic, budget_s)
        route = await look()
        if route is None:
            raise TopicNotFound(topic, ";".join(self.namesrv.addresses))
        return route

    async def publish_route(self, topic: str, *, budget_s: float = NAMESRV_BUDGET_S) -> Route:
        """Return the route to send to: the topic's own, otherwise one made from the template topic (the broker then creates the topic).

        Raises TopicNotFound when there is neither, NoBroker when that is because no broker is registered, NoMaster when none of its brokers
        has a master now, TopicReadOnly when none allows writing.
        """
        look = partial(self._own_or_template_route, topic, budget_s)
        route = await look()
        try:
            if route is None:
                route = await self.look_again(topic, look, budget_s=budget_s)
            route.check_writable()
        except SprocketError:
            self._awaited.discard(topic)
            raise
        return route

    async def _own_or_template_route(self, topic: str, budget_s: float) -> Route | None:
        route = await self.fetch_route(topic, budget_s=budget_s)
        if route is not None:
            return route
        data = await self._fetch(DEFAULT_TOPIC, budget_s)
        self._awaited.add(topic)
        return None if data is None else read_route(topic, data, template=True)

    async def fetch_route(self, topic: str, *, budget_s: float = NAMESRV_BUDGET_S) -> Route | None:
        """Fetch the route of ``topic`` from a nameserver and cache it; None when the topic is unknown.

        Concurrent calls share one request. A cached route stays when the nameserver does not know the topic: one that has just started
        knows no topics yet.
        """
        if not self.here:
            self.refuse()
        task = self._lookups.get(topic)
        if task is None:
            task = self._lookups[topic] = self._background.spawn(self._lookup(topic, budget_s), f"route of {topic}", awaited=True)
            task.add_done_callback(lambda _: self._lookups.pop(topic, None))
        return await share(task, lambda: self._lookup_ended(topic))

    def _lookup_ended(self, topic: str) -> SprocketError:
        if self.state != OPEN:
            return ClientClosed(f"this {self.kind} was closed while it looked for the route of {topic}")
        return RetriableError(f"the look-up of the route of {topic} was cancelled")

    async def _lookup(self, topic: str, budget_s: float) -> Route | None:
        data = await self._fetch(topic, budget_s)
        self.outages.allowed(";".join(self.namesrv.addresses), self.kind)
        self._refreshed_at[topic] = self.clock.monotonic()
        if data is None:
            return None
        route = self._away.marked(read_route(topic, data))
        self._awaited.discard(topic)
        before = self.routes.get(topic)
        if route != before:
            self.routes[topic] = route
            if self.on_route is not None:
                self.on_route(route)
            self._greet(before, route)
            self._away.look_for_masters(route)
        return route

    async def _fetch(self, topic: str, budget_s: float) -> TopicRoute | None:
        ext = to_ext(RouteRequest(topic, accept_standard_json_only=True))
        response = await self.namesrv.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=ext, budget_s=budget_s)
        if response.code == ResponseCode.SUCCESS:
            return TopicRoute.decode(response.body)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        raise response_error(response, ";".join(self.namesrv.addresses), topic)

    async def check_brokers(self, topic: str, budget_s: float = NAMESRV_BUDGET_S) -> None:
        """Raise NoBroker when no broker is registered: a nameserver that has just started knows none. It may refuse to say."""
        response = await self.namesrv.request(RequestCode.GET_BROKER_CLUSTER_INFO, budget_s=budget_s)
        if response.code == ResponseCode.SUCCESS and not ClusterInfo.decode(response.body).broker_addr_table:
            raise NoBroker(topic, ";".join(self.namesrv.addresses))

    def _greet(self, before: Route | None, route: Route) -> None:
        """Send heartbeats at once when a route has new brokers; slaves get them from consumers only."""
        if self.state != OPEN:
            return
        consumes = bool(self.consumers())
        if (consumes or self.producer_groups) and _greeted(route, consumes) - (_greeted(before, consumes) if before else set()):
            self.heartbeat_soon()

    async def refresh_routes(self) -> None:
        """Fetch the route of every topic in use. A route that cannot be fetched stays; the last error is raised after all were tried."""
        error: SprocketError | None = None
        for topic in {*self.routes, *self._awaited}:
            try:
                await self.fetch_route(topic)
            except NameserverUnavailable:
                raise  # the others would fail as well
            except SprocketError as e:
                error = e
        if error is not None:
            raise error

    def refresh_soon(self, topic: str) -> None:
        """Fetch the route of ``topic`` in the background: now, or a second after the last refresh."""
        if self.state != OPEN or topic in self._lookups or topic in self._refreshing:
            return
        last = self._refreshed_at.get(topic)
        wait = 0.0 if last is None else last + REFRESH_SOON_S - self.clock.monotonic()
        self._refreshing.add(topic)
        if wait > 0:
            self.timers.call_later(wait, lambda: self._refresh(topic))
        else:
            self._refresh(topic)

    def _refresh(self, topic: str) -> None:
        refreshing = self.spawn(self._try_refresh(topic), f"fresh route of {topic}")
        refreshing.add_done_callback(lambda _: self._refreshing.discard(topic))

    async def _try_refresh(self, topic: str) -> None:
        try:
            await self.fetch_route(topic)
        except ClientClosed:
            pass  # the route is no longer needed
        except SprocketError as e:
            # The request that needed the route fails as well, and logs more.
            level = logging.DEBUG if isinstance(e, RetriableError) else self.level_of(e)
            log.log(level, "%s: route of %s not refreshed: %s", self.kind, topic, e)

    # --- heartbeats ---

    def broker_addresses(self) -> set[str]:
        """Return the addresses to send heartbeats to: masters, and slaves too for consumers."""
        everyone = bool(self.consumers())
        found: set[str] = set()
        for route in self.routes.values():
            found |= _greeted(route, everyone)
        return found

    async def heartbeat(self) -> None:
        """Send the groups of this client to every broker in use. One that does not answer or refuses is logged; see ``refusal`` too."""
        consumers = self.consumers()
        if not consumers and not self.producer_groups:
            return
        beat = HeartbeatData(self.client_id, [ProducerData(name) for name in self.producer_groups], consumers)
        body = beat.encode()
        refusals: list[AccessRefused] = []
        await all_of(self._heartbeat_one(address, body, refusals) for address in sorted(self.broker_addresses()))
        self.refusal = refusals[0] if refusals else None

    def heartbeat_soon(self) -> None:
        """Send heartbeats now, in the background; a call during a round adds another round."""
        self._beat()

    async def heartbeat_now(self) -> None:
        """Do as ``heartbeat_soon`` and wait for the answers; failures are logged. Any number of tasks may wait."""
        await settled(self._beat())

    def _beat(self) -> "asyncio.Task[None]":
        self._beat_again = True
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = self.spawn(self._beat_round(), "a heartbeat")
        return self._heartbeat

    async def _beat_round(self) -> None:
        while self._beat_again:  # a broker may have appeared meanwhile
            self._beat_again = False
            await self.heartbeat()

    async def _heartbeat_one(self, address: str, body: bytes, refusals: list[AccessRefused]) -> None:
        silent = self._silent.pop(address, None)
        try:
            conn = await self.brokers.get(address)
            try:
                response = await conn.ask(RequestCode.HEART_BEAT, ext={}, body=body, timeout_s=REQUEST_TIMEOUT_S)
            except RequestTimeout:
                # A network that drops packets closes nothing; a pull that the broker holds would wait for minutes.
                if silent == (conn, conn.received_bytes):
                    conn.abort("two heartbeats were not answered, and nothing came between them")
                else:
                    self._silent[address] = conn, conn.received_bytes
                raise
        except SprocketError as e:
            log.log(self.level_of(e), "%s: no heartbeat to broker %s: %s", self.kind, address, e)
            return
        if response.code == ResponseCode.SUCCESS:
            self.outages.allowed(address, self.kind)
            return
        error = response_error(response, address)
        log.log(self.level_of(error), "%s: broker %s refused a heartbeat: %s", self.kind, address, error)
        if isinstance(error, AccessRefused):
            refusals.append(error)

    def level_of(self, error: SprocketError) -> int:
        """Return the level at which to log a failure of background work: pulls log outages, and each refusal is logged once."""
        if isinstance(error, AccessRefused):
            return self.outages.refused(error)
        if not isinstance(error, RetriableError):
            return logging.WARNING
        address = getattr(error, "address", None)
        known = (name for route in self.routes.values() for name, brokers in route.addresses.items() if address in brokers.values())
        name = next(known, None)
        return self.outages.level_of(None if name is None else f"broker {name}")

    async def unregister(self) -> None:
        """Unregister the groups of this client at the connected brokers. Failures have no effect: brokers expire clients."""
        headers = [UnregisterClient(self.client_id, producer_group=group) for group in self.producer_groups]
        headers += [UnregisterClient(self.client_id, consumer_group=consumer.group_name) for consumer in self.consumers()]
        await self._unregister(headers)

    async def withdraw(self, group: str) -> None:
        """Unregister a consumer group whose heartbeat may be under way, unless this client has joined it again meanwhile."""
        await self.heartbeat_now()
        if not self.consumers():
            await self._unregister([UnregisterClient(self.client_id, consumer_group=group)])

    async def _unregister(self, headers: list[UnregisterClient]) -> None:
        if headers:
            conns = self.brokers.open_connections()
            calls = [
                conn.request(RequestCode.UNREGISTER_CLIENT, ext=to_ext(header), timeout_s=UNREGISTER_TIMEOUT_S)
                for conn in conns
                for header in headers
            ]
            await asyncio.gather(*calls, return_exceptions=True)

    # --- requests ---

    async def ask(
        self,
        address: str,
        code: int,
        *,
        ext: Mapping[str, str] | bytes | None = None,
        body: bytes = b"",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Command:
        """Send one request to the broker at ``address`` and return its response, whatever the code.

        Raises ConnectFailed, ConnectionLost, RequestTimeout or NotRocketMQ; ClientClosed when the client is closed.
        """
        if self.state not in (OPEN, CLOSING) or not self.here:
            self.refuse()
        conn = self.brokers.peek(address)
        if conn is None:
            try:
                conn = await self.brokers.get(address, timeout_s=min(timeout_s, REQUEST_TIMEOUT_S))
            except ConnectFailed as e:
                self._away.failed(address, e)
                raise
        return await conn.ask(code, ext=ext, body=body, timeout_s=timeout_s)

    async def ask_broker(
        self,
        topic: str,
        broker_name: str,
        code: int,
        *,
        ext: Mapping[str, str] | bytes,
        broker_id: int = MASTER_ID,
        reads: bool = True,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> tuple[Command, str]:
        """Send a repeatable request to a broker of ``topic``; return its response and the broker's address.

        Retried, with pauses and a fresh route, while the broker cannot be reached or refuses for now. A request that ``reads``, and a
        commit, goes to a slave at once while the master cannot be reached. Raises TopicNotFound for an unknown topic, RetriableError when
        the route has no such broker, NoMaster, and the error of the last try.
        """
        for attempt in range(ASK_TRIES):
            route = await self.route(topic)
            address = route.address(broker_name, broker_id) if reads else route.masters.get(broker_name)
            if address is None:
                route = await self.fetch_route(topic) or route
                address = route.address(broker_name, broker_id) if reads else route.masters.get(broker_name)
                if address is None:
                    raise route.no_address(broker_name)
            if MASTER_ID not in route.addresses[broker_name]:
                self._away.read_without_master(topic)
            last = attempt == ASK_TRIES - 1
            try:
                response = await self.ask(address, code, ext=ext, timeout_s=timeout_s)
            except (ConnectFailed, ConnectionLost):
                if last:
                    raise
                self.refresh_soon(topic)
                if reads and len(route.addresses[broker_name]) > 1:
                    continue  # a lost connection is reopened first; a broker that accepts none counts as away from now on
            else:
                if last or response.code not in _AWAY_CODES:
                    return response, address
                if response.code == ResponseCode.GO_AWAY:
                    self.brokers.drop(address)
            await self.timers.sleep(ASK_PAUSE_S * 2**attempt)
        raise AssertionError("the last try returns or raises")


def _greeted(route: Route, consumes: bool) -> set[str]:
    """Return the addresses of a route that get heartbeats: those of masters, and of slaves too when the client ``consumes``."""
    return {address for brokers in route.addresses.values() for broker_id, address in brokers.items() if consumes or broker_id == MASTER_ID}
