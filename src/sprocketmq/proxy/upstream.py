"""The cluster behind the endpoint: routes, settings of topics and groups, and requests to brokers, by the remoting protocol."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Self, TypeVar

from sprocketmq.client.credentials import ClientSecurity
from sprocketmq.client.instance import Instance, response_error
from sprocketmq.client.routes import Route
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import RetriableError, TopicNotFound
from sprocketmq.net.client import Connection
from sprocketmq.protocol.bodies import ConsumerData, SubscriptionGroupConfig, TopicConfig
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import GroupRequest, TopicRequest

# How long the settings of a topic or group are cached.
SETTINGS_FOR_S = 5.0
MAX_SETTINGS = 10_000
REQUEST_TIMEOUT_S = 3.0

_T = TypeVar("_T")


class Upstream:
    """One user's connections to the cluster. ``on_request`` receives the requests of brokers to producers."""

    def __init__(
        self,
        namesrv: str,
        security: ClientSecurity,
        *,
        on_request: Callable[[Connection, Command], None],
        consumers: Callable[[], list[ConsumerData]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.clock = clock
        self._instance = Instance(namesrv, kind="gRPC endpoint", security=security, clock=clock, on_request=on_request)
        self._instance.consumers = consumers
        self._known: dict[tuple[str, str], tuple[float, object]] = {}

    async def __aenter__(self) -> Self:
        await self._instance.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._instance.close()

    @property
    def client_id(self) -> str:
        """The client id of this endpoint at brokers."""
        return self._instance.client_id

    # --- the endpoint's clients at brokers ---

    def produces(self, topic: str) -> None:
        """Register a producer whose group is named like its topic: brokers ask it about unfinished transactions."""
        groups = self._instance.producer_groups
        if topic not in groups:
            groups.append(topic)
            self._instance.heartbeat_soon()

    def produces_no_more(self, topic: str) -> None:
        if topic in self._instance.producer_groups:
            self._instance.producer_groups.remove(topic)

    def consumers_changed(self) -> None:
        """Send brokers the groups that ``consumers`` returns now."""
        self._instance.heartbeat_soon()

    # --- topics and groups ---

    async def route(self, topic: str) -> Route:
        """Return a topic's route. Raises TopicNotFound."""
        return await self._instance.route(topic)

    async def fresh_route(self, topic: str) -> Route:
        """Return a topic's route as the nameservers have it now. Raises TopicNotFound."""
        route = await self._instance.fetch_route(topic)
        if route is None:
            raise TopicNotFound(topic)
        return route

    async def master(self, topic: str, broker_name: str) -> str:
        """Return the address of a broker's master. Raises NoMaster, or RetriableError when the topic has no such broker."""
        route = await self.route(topic)
        if broker_name not in route.masters:
            route = await self.fresh_route(topic)
        address = route.masters.get(broker_name)
        if address is None:
            raise route.no_address(broker_name)
        return address

    async def topic_config(self, topic: str) -> TopicConfig:
        """Return the settings of a topic on one of its brokers, not older than some seconds."""

        async def ask() -> TopicConfig:
            address = next(iter((await self.route(topic)).readers.values()), None)
            if address is None:
                raise RetriableError(f"topic {topic!r} has no broker now")
            ext = to_ext(TopicRequest(topic))
            return TopicConfig.decode((await self.ask(address, RequestCode.GET_TOPIC_CONFIG, ext=ext, topic=topic)).body)

        return await self._settings("topic", topic, ask)

    async def group_config(self, group: str, topic: str) -> SubscriptionGroupConfig:
        """Return the settings of a group on one of the topic's brokers; the defaults when the broker has none."""

        async def ask() -> SubscriptionGroupConfig:
            for address in (await self.route(topic)).readers.values():
                response = await self._instance.ask(
                    address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext=to_ext(GroupRequest(group)), timeout_s=REQUEST_TIMEOUT_S
                )
                if response.code == ResponseCode.SUCCESS:
                    return SubscriptionGroupConfig.decode(response.body)
                if response.code == ResponseCode.NO_PERMISSION:
                    raise response_error(response, address, topic)
            return SubscriptionGroupConfig(group)

        return await self._settings("group", group, ask)

    async def _settings(self, kind: str, name: str, ask: Callable[[], Awaitable[_T]]) -> _T:
        now = self.clock.monotonic()
        known = self._known.get((kind, name))
        if known is None or known[0] <= now:
            if len(self._known) >= MAX_SETTINGS:
                self._known.clear()
            known = self._known[kind, name] = now + SETTINGS_FOR_S, await ask()
        return known[1]  # type: ignore[return-value]

    # --- requests ---

    async def ask(
        self,
        address: str,
        code: int,
        *,
        ext: Mapping[str, str] | bytes,
        body: bytes = b"",
        topic: str = "",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Command:
        """Send a request and return its answer. Raises the error of an answer with another code than SUCCESS."""
        response = await self.answer(address, code, ext=ext, body=body, topic=topic, timeout_s=timeout_s)
        if response.code != ResponseCode.SUCCESS:
            raise response_error(response, address, topic)
        return response

    async def answer(
        self,
        address: str,
        code: int,
        *,
        ext: Mapping[str, str] | bytes,
        body: bytes = b"",
        topic: str = "",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Command:
        """Send a request and return its answer, whatever its code."""
        try:
            return await self._instance.ask(address, code, ext=ext, body=body, timeout_s=timeout_s)
        except RetriableError:
            if topic:
                self._instance.refresh_soon(topic)
            raise

    async def oneway(self, address: str, code: int, *, ext: Mapping[str, str]) -> None:
        """Send a request that has no answer."""
        conn = self._instance.brokers.peek(address) or await self._instance.brokers.get(address, timeout_s=REQUEST_TIMEOUT_S)
        conn.oneway(code, ext=ext)
