"""Pull requests and their responses, shared by both consumers (docs/internals/requests.md#pull)."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from numbers import Integral
from typing import Final, Literal, Self

import msgspec

from sprocketmq.client.arguments import LARGEST_OFFSET, check_number
from sprocketmq.client.instance import response_error
from sprocketmq.errors import ConfigError, InvalidName
from sprocketmq.protocol.bodies import SubscriptionData, build_subscription
from sprocketmq.protocol.codes import PULL_SUBSCRIPTION, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import PullResponse
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import check_topic
from sprocketmq.protocol.records import ReceivedMessage, locate_records

log = logging.getLogger(__name__)

_json = msgspec.json.encode

DEFAULT_MAX_BYTES = 262_144

ExpressionType = Literal["TAG", "SQL92"]
TAG: Final = "TAG"
SQL92: Final = "SQL92"


class Sql(str):
    """A condition on the properties of messages, for the broker to filter by: ``Sql("price > 100 AND region IN ('eu', 'us')")``.

    The broker checks it (docs/guide/filtering.md). Raises ConfigError for anything but a string.
    """

    __slots__ = ()

    def __new__(cls, expression: str) -> Self:
        if not isinstance(expression, str):
            raise ConfigError(f'an SQL92 expression is a string such as "price > 100", not {expression!r}')
        return super().__new__(cls, expression)

    def __repr__(self) -> str:
        return f"Sql({super().__repr__()})"


def type_of(expression: str, expression_type: ExpressionType = TAG) -> ExpressionType:
    """Return the type of an expression: that of an ``Sql``, or TAG."""
    return SQL92 if isinstance(expression, Sql) else expression_type


class PullStatus(Enum):
    """How a pull ended. ``next_offset`` is where to continue in every case."""

    FOUND = "found"
    NO_NEW_MESSAGE = "no new message"
    NO_MATCH = "no message matched"
    OFFSET_MOVED = "offset out of range"


_STATUSES = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}


@dataclass(slots=True, repr=False)
class PullResult:
    """The result of one pull.

    ``body`` holds the records as stored, back to back and not filtered any further; empty unless the status is FOUND. ``messages`` decodes
    it on first use: inner batches unwrapped, from the requested offset on, and only messages with a requested tag. ``from_master`` tells
    whether the master answered: a slave may lag behind, and what it does not have yet is NO_NEW_MESSAGE at the requested offset.
    """

    queue: MessageQueue
    offset: int
    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes
    suggested_broker_id: int
    tags: frozenset[bytes] | None = None
    from_master: bool = True
    _messages: list[ReceivedMessage] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"PullResult({self.queue}, {self.status.name}, offsets {self.offset} to {self.next_offset}, {len(self.body)} bytes)"

    def came_from_slave(self) -> None:
        """Record that a slave answered. It cannot know that the requested offset is out of range when its own queue ends before that."""
        self.from_master = False
        if self.status is not PullStatus.FOUND and self.offset >= self.max_offset:
            self.status = PullStatus.NO_NEW_MESSAGE
            self.next_offset = self.offset

    @property
    def messages(self) -> list[ReceivedMessage]:
        """The messages; each decodes its fields when they are used. Raises RemoteProtocolError when the body is damaged."""
        if self._messages is None:
            self._messages = list(self.located)
        return self._messages

    @property
    def located(self) -> Sequence[ReceivedMessage]:
        """The messages, located and checked; objects are made when they are taken, where that saves work. Raises as ``messages``."""
        return locate_messages(self.body, self.queue.broker_name, self.offset, self.tags) if self.body else []


def locate_messages(body: bytes, broker_name: str, offset: int, tags: frozenset[bytes] | None) -> Sequence[ReceivedMessage]:
    """Return the messages of a pulled body from ``offset`` on that have one of ``tags`` (None: all).

    A broker filters by the hash of a tag only, and returns a complete inner batch when a pull starts inside it. An inner batch with invalid
    entries is returned as one message. Raises RemoteProtocolError for invalid records.
    """
    whole: list[ReceivedMessage] = []
    located = locate_records(body, broker_name=broker_name, whole=whole)
    for message in whole:
        # Raising would stop the queue for good: the next pull returns the same batch.
        log.error(
            "the inner batch at offset %d of queue %d on broker %s, %s, cannot be unwrapped: it is delivered as one message",
            message.queue_offset,
            message.queue_id,
            broker_name,
            message.offset_msg_id,
        )
    messages = located if tags is None else located.with_tags(tags)
    if messages and messages[0].queue_offset < offset:
        return [m for m in messages if m.queue_offset >= offset]
    return messages


def read_subscriptions(subscriptions: Mapping[str, str] | Iterable[str] | str, version: int) -> dict[str, SubscriptionData]:
    """Return the subscription of each topic, from a mapping of topics to expressions, or from topic names (for all their messages).

    Raises ConfigError when there is none, InvalidName for an invalid topic or expression.
    """
    if isinstance(subscriptions, str):
        subscriptions = (subscriptions,)
    if not isinstance(subscriptions, Mapping):
        try:
            subscriptions = {check_topic(topic): "*" for topic in subscriptions}
        except TypeError:
            raise ConfigError(f"subscribe to a topic, a list of topics or a mapping of topics to tags, not {subscriptions!r}") from None
    if not subscriptions:
        raise ConfigError("subscribe to at least one topic")
    return {check_topic(topic): subscription_to(topic, text, version) for topic, text in subscriptions.items()}


def subscription_to(topic: str, expression: str, version: int) -> SubscriptionData:
    """Return the subscription for tags or an ``Sql``, as of ``version``. Raises InvalidName or ConfigError for another expression."""
    if isinstance(expression, Sql):
        return msgspec.structs.replace(pull_subscription(topic, expression, SQL92), sub_version=version)
    return tag_subscription(topic, expression, version)


def tag_subscription(topic: str, expression: str, version: int) -> SubscriptionData:
    """Return the subscription for a user's expression, ``"*"`` or ``"tag || tag"``.

    Raises InvalidName for an invalid expression, including ``&&``, which brokers would take for part of a tag. A tag may contain blanks
    or ``|``, as Apache's clients send such tags; as it is more often meant as ``||``, it is logged.
    """
    subscription = build_subscription(topic, expression, version)
    for tag in subscription.tags_set:
        if tag == "*" or "&&" in tag:
            raise InvalidName(
                "subscription",
                expression,
                "join tags by '||' only, as in 'a || b', as a message has one tag; or write '*' alone for all messages",
            )
        if len(tag.split()) > 1 or "|" in tag:
            inside = "'|'" if "|" in tag else "blanks"
            log.warning(
                "the subscription to %s has a tag with %s in it, %r: to subscribe to several tags, write 'a || b'", topic, inside, tag
            )
    return subscription


def pull_subscription(topic: str, expression: str, expression_type: str) -> SubscriptionData:
    """Return the subscription that a pull sends along: tags (type ``"TAG"``) or a condition on properties (``"SQL92"``).

    Raises InvalidName for an invalid tag expression, ConfigError for an empty condition or another type.
    """
    if expression_type == TAG:
        return tag_subscription(topic, expression, 0)
    if expression_type != SQL92:
        raise ConfigError(f"expressions are of type TAG or SQL92, not {expression_type!r}")
    condition = str(Sql(expression))
    if not condition.strip():
        raise ConfigError("an SQL92 expression must not be empty; to read everything use type TAG and '*'")
    return SubscriptionData(topic, condition, expression_type=expression_type)


def subscription_tags(subscription: SubscriptionData) -> frozenset[bytes] | None:
    """Return the tags to check messages for, as stored; None when all messages are subscribed to."""
    return frozenset(tag.encode() for tag in subscription.tags_set) or None


@lru_cache(maxsize=256)
def subscription_of(topic: str, expression: str, expression_type: str) -> tuple[SubscriptionData, frozenset[bytes] | None]:
    """Return what ``pull_subscription`` returns, and the tags to check messages for. Raises as it does."""
    subscription = pull_subscription(topic, expression, expression_type)
    return subscription, subscription_tags(subscription)


def _whole(value: object, least: int, most: int | None = None) -> bool:
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
        return False
    return int(value) >= least and (most is None or int(value) <= most)


def check_pull(*, offset: int = 0, max_messages: int = 1, max_bytes: int | None = None, wait_ms: int = 0) -> None:
    """Raise ConfigError for arguments that no pull can have."""
    if (
        _whole(offset, 0, LARGEST_OFFSET)
        and _whole(max_messages, 1)
        and (max_bytes is None or _whole(max_bytes, 1))
        and _whole(wait_ms, 0, LARGEST_OFFSET)
    ):
        return
    check_number("offset", offset, least=0, most=LARGEST_OFFSET, whole=True)
    check_number("max_messages", max_messages, least=1, whole=True)
    check_number("wait_ms", wait_ms, least=0, most=LARGEST_OFFSET, whole=True)
    check_number("max_bytes", max_bytes, least=1, whole=True)


def pull_header(
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    max_messages: int,
    max_bytes: int,
    sys_flag: int,
    commit_offset: int = 0,
    suspend_ms: int = 0,
    subscription: SubscriptionData,
) -> bytes:
    """Return the header of a pull as JSON text, with the subscription's expression if ``sys_flag`` has PULL_SUBSCRIPTION."""
    template = pull_template(group, queue, max_bytes=max_bytes, sys_flag=sys_flag, suspend_ms=suspend_ms, subscription=subscription)
    return template % (offset, max_messages, commit_offset)


def pull_template(
    group: str, queue: MessageQueue, *, max_bytes: int, sys_flag: int, suspend_ms: int = 0, subscription: SubscriptionData
) -> bytes:
    """Return a template for the headers of successive pulls; ``%`` fills in offset, number of messages and commit offset."""
    before, behind = _template(
        group,
        queue.topic,
        queue.broker_name,
        max_bytes,
        sys_flag,
        suspend_ms,
        subscription.sub_string if sys_flag & PULL_SUBSCRIPTION else None,
        subscription.sub_version,
        subscription.expression_type,
    )
    return b"%b%d%b" % (before, queue.queue_id, behind)


@lru_cache(maxsize=1024)
def _template(
    group: str,
    topic: str,
    broker_name: str,
    max_bytes: int,
    sys_flag: int,
    suspend_ms: int,
    expression: str | None,
    version: int,
    expression_type: str,
) -> tuple[bytes, bytes]:
    """Return the template's text before and after the queue id."""
    before = b'{"consumerGroup":%b,"topic":%b,"queueId":"' % (_quote(group), _quote(topic))
    behind = (
        b'","queueOffset":"%%d","maxMsgNums":"%%d","sysFlag":"%d","commitOffset":"%%d",'
        b'"suspendTimeoutMillis":"%d",%b"subVersion":"%d","expressionType":%b,"maxMsgBytes":"%d","bname":%b}'
    ) % (
        sys_flag,
        suspend_ms,
        b"" if expression is None else b'"subscription":%b,' % _quote(expression),
        version,
        _quote(expression_type),
        max_bytes,
        _quote(broker_name),
    )
    return before, behind


def _quote(text: str) -> bytes:
    """Return ``text`` as JSON for a template, with percent signs doubled (``%RETRY%group``)."""
    return _json(text).replace(b"%", b"%%")


def read_pull(response: Command, address: str, queue: MessageQueue, offset: int, tags: frozenset[bytes] | None) -> PullResult:
    """Return the result in ``response``. Raises the typed error of a refusal, RemoteProtocolError when its header is invalid."""
    status = _STATUSES.get(response.code)
    if status is None:
        raise response_error(response, address, queue.topic)
    head = response.header(PullResponse)
    body = bytes(response.body) if status is PullStatus.FOUND else b""
    return PullResult(
        queue, offset, status, head.next_begin_offset, head.min_offset, head.max_offset, body, head.suggest_which_broker_id, tags
    )
