"""Unreachable brokers: reading from their slaves meanwhile, and returning to them (docs/internals/requests.md#reading-from-slaves)."""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from sprocketmq.client.routes import MASTER_ID, Route
from sprocketmq.errors import SprocketError
from sprocketmq.net.tasks import all_of

log = logging.getLogger(__name__)

# Interval at which a broker that was away is looked for, at its address and in the nameservers' routes.
LOOK_S = 1.0


class AwayBrokers:
    """The addresses that do not accept connections although another broker of the same name is in the route.

    A route names those of its addresses in ``Route.away``, so that the next request goes to another broker of the name. Each is tried
    again every second. Topics that are read while a route has no master at all are looked up as often, and so is one topic of each broker
    whose master is away or unknown: a new master should know this client soon, as it may check transactions.
    """

    def __init__(
        self,
        kind: str,
        routes: dict[str, Route],
        *,
        connect: Callable[[str], Awaitable[object]],
        look_up: Callable[[str], Awaitable[object]],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._kind = kind
        self._routes = routes
        self._connect = connect
        self._look_up = look_up
        self._spawn = spawn
        self._sleep = sleep
        self._addresses: set[str] = set()
        # Topics that were read while one of their brokers had no master.
        self._read: set[str] = set()
        # Names of brokers whose slaves are read because the master is away.
        self._without_master: set[str] = set()
        self._looking = False

    def failed(self, address: str, error: SprocketError) -> None:
        """Record that ``address`` accepts no connection. Nothing changes when no other broker can answer instead."""
        if address in self._addresses or not self._has_others(address):
            return
        self._addresses.add(address)
        self._review(f"{address} does not answer: {error}")
        self._look()

    def read_without_master(self, topic: str) -> None:
        """Record that ``topic`` is read from a slave, as its route has no master."""
        if topic not in self._read:
            self._read.add(topic)
            self._review("no nameserver knows it")
            self._look()

    def look_for_masters(self, route: Route) -> None:
        """Look up a new route that lacks masters at intervals until it has them."""
        if route.masterless:
            self._look()

    def marked(self, route: Route) -> Route:
        """Return ``route`` with ``away`` set to the addresses that do not accept connections."""
        away = self._addresses.intersection(address for brokers in route.addresses.values() for address in brokers.values())
        return route if away == route.away else replace(route, away=frozenset(away))

    def _has_others(self, address: str) -> bool:
        known = (brokers.values() for route in self._routes.values() for brokers in route.addresses.values())
        return any(address in addresses and len(addresses) > 1 for addresses in known)

    def _review(self, why: str) -> None:
        """Mark the routes, and log masters that went away or returned."""
        here: set[str] = set()
        gone: set[str] = set()
        for topic, route in list(self._routes.items()):
            marked = self._routes[topic] = self.marked(route)
            for name, brokers in route.addresses.items():
                master = brokers.get(MASTER_ID)
                if master is not None and master not in marked.away:
                    here.add(name)
                elif master is not None or topic in self._read:
                    gone.add(name)
        for name in sorted(gone - here - self._without_master):
            log.warning("%s: the master of broker %s is away, its slaves are read until it returns: %s", self._kind, name, why)
        for name in sorted(here & self._without_master):
            log.warning("%s: the master of broker %s is back", self._kind, name)
        self._without_master = (self._without_master | gone) - here

    def _look(self) -> None:
        if not self._looking:
            self._looking = True
            self._spawn(self._look_on(), "look for brokers that are away")

    async def _look_on(self) -> None:
        try:
            while self._addresses or self._looked_up():
                await self._sleep(LOOK_S)
                await all_of([*map(self._try, sorted(self._addresses)), *map(self._refresh, sorted(self._looked_up()))])
                self._review("")
        finally:
            self._looking = False

    def _looked_up(self) -> set[str]:
        """Return the topics to look up: those that are read without a master, and one of each broker whose master is away or unknown."""
        found: dict[str, str] = {}
        for topic, route in self._routes.items():
            missing = [name for name, address in route.masters.items() if address in route.away] if route.away else []
            for name in (*missing, *route.masterless):
                found.setdefault(name, topic)
        return self._read.union(found.values())

    async def _try(self, address: str) -> None:
        if self._has_others(address):
            try:
                await self._connect(address)
            except SprocketError:
                return
        self._addresses.discard(address)

    async def _refresh(self, topic: str) -> None:
        try:
            await self._look_up(topic)
        except SprocketError:
            return
        route = self._routes.get(topic)
        if route is None or all(MASTER_ID in brokers for brokers in route.addresses.values()):
            self._read.discard(topic)
