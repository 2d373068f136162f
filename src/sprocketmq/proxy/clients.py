"""The clients of the endpoint: their settings and subscriptions, their streams of commands, and the answers to their settings."""

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sprocketmq.clock import Clock
from sprocketmq.events import event
from sprocketmq.protocol.bodies import ConsumerData, SubscriptionGroupConfig, build_subscription
from sprocketmq.protocol.bodies.groups import SubscriptionData
from sprocketmq.proxy.codes import FILTER_SQL, ClientType, Code, Refused
from sprocketmq.proxy.messages import MAX_BODY_BYTES, topic_of
from sprocketmq.proxy.schema import Proto, Settings, duration

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

MAX_CLIENTS = 10_000
# Topics that a producer publishes to, or a consumer subscribes to.
MAX_TOPICS = 1000
# Commands that a client has not read yet.
MAX_COMMANDS = 100
# Clients send heartbeats every 10 s; one without a stream that is silent for this long counts as gone.
GONE_AFTER_S = 60.0

RECEIVE_BATCH = 32
LONG_POLLING_S = 20.0
# The delays of the broker's levels at redelivery, in seconds.
BACKOFF_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
CONSUMERS = (ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER)


class Identity(NamedTuple):
    """The identity of a caller: its client id and its user (empty without access control)."""

    client_id: str
    user: str


class KnownClient:
    """One client whose settings are known."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.settings: Proto = None
        self.commands: asyncio.Queue[Proto | None] | None = None
        self.seen = 0.0

    @property
    def is_producer(self) -> bool:
        return self.settings is not None and self.settings.client_type == ClientType.PRODUCER

    @property
    def topics(self) -> list[str]:
        """The topics that a producer has announced."""
        return [topic.name for topic in self.settings.publishing.topics] if self.is_producer else []

    @property
    def group(self) -> str:
        """The group of a consumer."""
        return "" if self.settings is None or self.is_producer else str(self.settings.subscription.group.name)

    def subscriptions(self) -> Iterable[SubscriptionData]:
        for entry in self.settings.subscription.subscriptions:
            if entry.expression.type == FILTER_SQL:
                yield SubscriptionData(entry.topic.name, entry.expression.expression, expression_type="SQL92")
            else:
                yield build_subscription(entry.topic.name, entry.expression.expression, 0)

    def tell(self, command: Proto) -> bool:
        """Send a command to the client; return whether it can receive it."""
        if self.commands is None or self.commands.full():
            return False
        self.commands.put_nowait(command)
        return True


class Clients:
    """All clients, by user and id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: dict[Identity, KnownClient] = {}
        self._next_producer = 0

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, identity: Identity) -> KnownClient | None:
        return self._clients.get(identity)

    def of_user(self, user: str) -> list[KnownClient]:
        return [client for client in self._clients.values() if client.identity.user == user]

    def seen(self, identity: Identity) -> KnownClient | None:
        """Record a sign of life of a client, and return it; None when its settings are not known."""
        client = self._clients.get(identity)
        if client is not None:
            client.seen = self._clock.monotonic()
        return client

    def put(self, identity: Identity, settings: Proto) -> KnownClient:
        """Store the settings of a client. Raises Refused for invalid ones, or too many clients."""
        check_settings(settings)
        client = self._clients.get(identity)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                raise Refused(Code.TOO_MANY_REQUESTS, f"{MAX_CLIENTS} clients are connected, the limit")
            client = self._clients[identity] = KnownClient(identity)
            event(
                log, logging.INFO, "grpc_client_joined",
                client=identity.client_id, kind=ClientType(settings.client_type).name, user=identity.user or None,
            )  # fmt: skip
        client.settings = settings
        client.seen = self._clock.monotonic()
        return client

    def remove(self, client: KnownClient, reason: str) -> None:
        if self._clients.get(client.identity) is client:
            del self._clients[client.identity]
            if client.settings is not None:
                event(log, logging.INFO, "grpc_client_left", client=client.identity.client_id, reason=reason)
        if client.commands is not None and not client.commands.full():
            client.commands.put_nowait(None)

    def expire(self) -> list[KnownClient]:
        """Remove the clients that are gone, and return them."""
        limit = self._clock.monotonic() - GONE_AFTER_S
        gone = [client for client in self._clients.values() if client.commands is None and client.seen < limit]
        for client in gone:
            self.remove(client, "nothing came from it")
        return gone

    def producers(self, topic: str, user: str) -> list[KnownClient]:
        """Return the producers of a topic that read commands, a different one first each time."""
        found = [client for client in self.of_user(user) if topic in client.topics and client.commands is not None]
        self._next_producer += 1
        turn = self._next_producer % len(found) if found else 0
        return found[turn:] + found[:turn]

    def consumer_data(self, user: str) -> list[ConsumerData]:
        """Return the consumer groups of a user's clients, in the form of a heartbeat to brokers."""
        groups: dict[str, dict[str, SubscriptionData]] = {}
        for client in self.of_user(user):
            if client.group:
                groups.setdefault(client.group, {}).update({sub.topic: sub for sub in client.subscriptions()})
        return [ConsumerData(group, subscription_data_set=list(topics.values())) for group, topics in groups.items()]


def check_settings(settings: Proto) -> None:
    """Raise Refused for invalid settings."""
    kind = settings.client_type
    if kind not in list(ClientType):
        raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, f"clients of type {kind} are not known here: producers, push and simple consumers are")
    if kind == ClientType.PRODUCER:
        if settings.WhichOneof("pub_sub") != "publishing":
            raise Refused(Code.BAD_REQUEST, "the settings of a producer have publishing, not subscription")
        _check_topics(settings.publishing.topics)
        return
    if settings.WhichOneof("pub_sub") != "subscription":
        raise Refused(Code.BAD_REQUEST, "the settings of a consumer have a subscription")
    if not settings.subscription.group.name.strip():
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, "the subscription names no group")
    _check_topics([entry.topic for entry in settings.subscription.subscriptions])


def _check_topics(topics: Sequence[Proto]) -> None:
    if len(topics) > MAX_TOPICS:
        problem = f"the settings of the client have {len(topics)} topics, the limit is {MAX_TOPICS}: share them out among several clients"
        raise Refused(Code.TOO_MANY_REQUESTS, problem)
    for topic in topics:
        topic_of(topic)


def answered(settings: Proto, group: SubscriptionGroupConfig | None) -> Proto:
    """Return the settings that the client must use. ``group`` is the configuration of a consumer's group."""
    answer = Settings()
    answer.CopyFrom(settings)
    answer.metric.on = False
    policy = answer.backoff_policy
    if group is None:
        answer.publishing.max_body_size = MAX_BODY_BYTES
        answer.publishing.validate_message_type = True
        policy.max_attempts = 3
        backoff = policy.exponential_backoff
        backoff.initial.CopyFrom(duration(0.01))
        backoff.max.CopyFrom(duration(1))
        backoff.multiplier = 2
        return answer
    answer.subscription.fifo = group.consume_message_orderly
    answer.subscription.receive_batch_size = RECEIVE_BATCH
    answer.subscription.long_polling_timeout.CopyFrom(duration(LONG_POLLING_S))
    policy.max_attempts = max(group.retry_max_times, 0) + 1
    exponential = (group.group_retry_policy or {}).get("exponentialRetryPolicy")
    if isinstance(exponential, dict):
        policy.exponential_backoff.initial.CopyFrom(duration(float(exponential.get("initial", 5000)) / 1000))
        policy.exponential_backoff.max.CopyFrom(duration(float(exponential.get("max", 7_200_000)) / 1000))
        policy.exponential_backoff.multiplier = float(exponential.get("multiplier", 2))
    else:
        del policy.customized_backoff.next[:]
        policy.customized_backoff.next.extend(duration(seconds) for seconds in BACKOFF_S)
    return answer
