"""The pull consumer: reads any queue at any offset, or polls queues that it was given (client-behaviour, section 11)."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Integral
from typing import Literal

from sprocketmq.client.arguments import LARGEST_OFFSET, check_number, check_queue
from sprocketmq.client.consume.broker_requests import BrokerRequests
from sprocketmq.client.consume.consumer_stats import ConsumerStats
from sprocketmq.client.consume.offset_store import ConsumeFrom, from_where
from sprocketmq.client.consume.offsets import OffsetRequests
from sprocketmq.client.consume.poll import Polling
from sprocketmq.client.consume.pull_requests import (
    DEFAULT_MAX_BYTES,
    PullResult,
    pull_header,
    pull_subscription,
    pull_template,
    read_pull,
    read_subscriptions,
    subscription_tags,
    tag_subscription,
)
from sprocketmq.client.consume.rebalance import Rebalance, read_strategy
from sprocketmq.client.instance import Instance, response_error
from sprocketmq.client.lifecycle import Client
from sprocketmq.client.outages import Outages
from sprocketmq.client.routes import MASTER_ID, Route
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError, RetriableError
from sprocketmq.net.client import Connection, Receiver
from sprocketmq.protocol.bodies import CheckClientConfig, ConsumeDirectlyResult, SubscriptionData
from sprocketmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import check_group, check_topic
from sprocketmq.protocol.records import ReceivedMessage

# Over what a pull may wait at the broker: brokers look at waiting pulls every 5 s only.
PULL_TIMEOUT_S = 10.0

ExpressionType = Literal["TAG", "SQL92"]
# Which of the brokers of one name answers: the master; a replica where there is one; or the one that the last answer suggested.
ReadFrom = Literal["master", "slave", "any"]


# A plain integer: an enum's member takes many times as long to format.
_PULL_MESSAGE = int(RequestCode.PULL_MESSAGE)


def _whole(value: object, least: int, most: int | None = None) -> bool:
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
        return False
    return int(value) >= least and (most is None or int(value) <= most)


def check_pull(*, offset: int = 0, max_messages: int = 1, max_bytes: int | None = None, wait_ms: int = 0) -> None:
    """Raise ConfigError for what no pull can ask for."""
    if (
        _whole(offset, 0, LARGEST_OFFSET)
        and _whole(max_messages, 1)
        and (max_bytes is None or _whole(max_bytes, 1))
        and _whole(wait_ms, 0, LARGEST_OFFSET)
    ):
        return
    raise ConfigError(f"cannot pull {max_messages!r} messages, {max_bytes!r} bytes at offset {offset!r} waiting {wait_ms!r} ms")


class PullConsumer(Client):
    """Read messages at one's own pace, in one of two ways.

    ``pull`` reads a queue at an offset and keeps no state: ``group`` only names the offsets of ``committed`` and ``commit``, and nothing is
    registered at a broker. Any number of tasks of one event loop may pull.

    ``poll`` reads the queues that ``assign`` gave, or those that the group's balance gives after ``subscribe``: in each queue from where the
    group committed, and where it never did, by ``consume_from`` (``"last"``, ``"first"`` or epoch seconds, as for PushConsumer). What a poll
    returned counts as consumed at the next one; with ``auto_commit`` that is committed every 5 seconds, when a queue goes to another member,
    and at close, else only by ``commit()``. One task polls at a time.

    ``rebalance`` says how members of the group share queues, as for PushConsumer. ``namesrv`` as for Producer. Use ``async with``.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        consume_from: ConsumeFrom = "last",
        auto_commit: bool = True,
        rebalance: Rebalance = "average",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.group = check_group(group)
        from_where(consume_from)
        self._consume_from = consume_from
        self._auto_commit = auto_commit
        self._rebalance = rebalance
        self._clock = clock
        self._instance = Instance(namesrv, kind="PullConsumer", clock=clock, on_request=self._on_request, on_route=self._on_route)
        self._offsets = OffsetRequests(self._instance)
        self._suggested: dict[MessageQueue, int] = {}
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._polling: Polling | None = None
        self._broker_requests: BrokerRequests | None = None

    async def start(self) -> None:
        """Find a nameserver. Raises NameserverUnavailable or NotRocketMQ, naming the address, when there is none."""
        self._instance.check_loop()
        async with self._instance.changing:
            await self._instance.start()

    async def close(self) -> None:
        """Commit what was consumed of polled queues (with ``auto_commit``), leave the group, disconnect; what is under way fails.

        The messages of the last poll are not consumed: ``poll`` or ``commit`` once more for that. Harmless when closed already.
        """
        self._instance.check_loop()
        async with self._instance.changing:
            try:
                if self._polling is not None:
                    await self._polling.end()
            finally:
                await self._instance.close()

    # --- reading by queue and offset ---

    @property
    def outages(self) -> Outages:
        """What this consumer knows of brokers that do not answer; a caller who repeats a failed ``pull`` has it logged once here."""
        return self._instance.outages

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of ``topic``, sorted, as the nameserver has them now. Raises TopicNotFound when it is unknown."""
        self._instance.check()
        check_topic(topic)
        route = await self._instance.fetch_route(topic) or await self._instance.route(topic)
        return sorted(route.subscribe_queues)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int | None = None,
        expression: str = "*",
        expression_type: ExpressionType = "TAG",
        read_from: ReadFrom = "any",
        wait_ms: int = 0,
        timeout_s: float = PULL_TIMEOUT_S,
    ) -> PullResult:
        """Return up to ``max_messages`` messages of about ``max_bytes`` (default 256 KiB) from ``offset`` on.

        The broker's own limits may be lower; a batch that is stored as one record comes whole, so there may be more. ``expression`` is
        ``"*"`` or ``"tag || tag"``, or of type ``"SQL92"`` a condition on properties, which only brokers that are set up for it take.
        ``read_from`` chooses between a master and its replicas; who answers when the chosen one is gone is in the result. When there is
        nothing yet, the broker waits up to ``wait_ms`` for a message (a stock one rounds short waits up to 5 s); ``timeout_s`` is what the
        answer may take beyond that. An offset out of range is no error: see PullStatus. Raises TopicNotFound, BrokerError, BrokerBusy,
        ConnectFailed, ConnectionLost, RequestTimeout; ConfigError for arguments that cannot be.
        """
        self._instance.check()
        header, tags = self._pull_header(queue, offset, max_messages, max_bytes, expression, expression_type, wait_ms)
        response, address = await self._instance.ask_broker(
            queue.topic,
            queue.broker_name,
            RequestCode.PULL_MESSAGE,
            ext=header,
            broker_id=await self._broker_id(queue, read_from),
            timeout_s=wait_ms / 1000 + timeout_s,
        )
        return self._pulled(response, address, queue, offset, tags)

    def pulls_at_once(
        self,
        queue: MessageQueue,
        *,
        max_bytes: int,
        expression: str = "*",
        expression_type: ExpressionType = "TAG",
        read_from: ReadFrom = "any",
        timeout_s: float = PULL_TIMEOUT_S,
    ) -> "PullsAtOnce":
        """Return what pulls ``queue`` at a fraction of the cost of ``pull``, for who pulls thousands of times a second. Arguments as there."""
        check_queue(queue)
        check_pull(max_bytes=max_bytes)
        subscription, tags = _subscription(queue.topic, expression, expression_type)
        template = pull_template(self.group, queue, max_bytes=max_bytes, sys_flag=PULL_SUBSCRIPTION, subscription=subscription)
        return PullsAtOnce(self, queue, template, tags, read_from, timeout_s)

    async def check_expression(self, queue: MessageQueue, expression: str, expression_type: ExpressionType = "TAG") -> None:
        """Have the queue's broker look at an expression: pulls with a condition that does not parse bring everything from Apache's broker.

        Raises BrokerError with what the broker has against it, and what asking a broker raises.
        """
        subscription, _ = _subscription(queue.topic, expression, expression_type)
        route = await self._instance.route(queue.topic)
        address = route.address(queue.broker_name)
        if address is None:
            raise RetriableError(f"topic {queue.topic!r} has no broker {queue.broker_name!r} now")
        body = CheckClientConfig(self._instance.client_id, self.group, subscription).encode()
        response = await self._instance.ask(address, RequestCode.CHECK_CLIENT_CONFIG, ext={}, body=body)
        if response.code != ResponseCode.SUCCESS:
            raise response_error(response, address, queue.topic)

    def _pull_header(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int,
        max_bytes: int | None,
        expression: str,
        expression_type: ExpressionType,
        wait_ms: int,
    ) -> tuple[bytes, frozenset[bytes] | None]:
        check_queue(queue)
        check_pull(offset=offset, max_messages=max_messages, max_bytes=max_bytes, wait_ms=wait_ms)
        subscription, tags = _subscription(queue.topic, expression, expression_type)
        header = pull_header(
            self.group,
            queue,
            offset,
            max_messages=max_messages,
            max_bytes=max_bytes or DEFAULT_MAX_BYTES,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0),
            suspend_ms=wait_ms,
            subscription=subscription,
        )
        return header, tags

    def _pulled(self, response: Command, address: str, queue: MessageQueue, offset: int, tags: frozenset[bytes] | None) -> PullResult:
        result = read_pull(response, address, queue, offset, tags)
        self._note(result, self._is_master(queue, address))
        return result

    def _is_master(self, queue: MessageQueue, address: str) -> bool:
        route = self._instance.routes.get(queue.topic)
        return route is None or route.addresses.get(queue.broker_name, {}).get(MASTER_ID) == address

    def _note(self, result: PullResult, from_master: bool) -> None:
        """Take note of who answered, and of whom the broker suggests to ask next."""
        result.from_master = from_master
        if result.suggested_broker_id != self._suggested.get(result.queue, MASTER_ID):
            self._suggested[result.queue] = result.suggested_broker_id

    async def _broker_id(self, queue: MessageQueue, read_from: ReadFrom) -> int:
        return self._known_broker_id(queue, read_from, await self._instance.route(queue.topic))

    def _known_broker_id(self, queue: MessageQueue, read_from: ReadFrom, route: Route) -> int:
        if read_from == "any":
            return self._suggested.get(queue, MASTER_ID)
        if read_from == "master":
            return MASTER_ID
        return min((broker_id for broker_id in route.addresses.get(queue.broker_name, ()) if broker_id != MASTER_ID), default=MASTER_ID)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message kept; 0 for an empty or unknown queue."""
        return await self._offsets.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset the next message will get."""
        return await self._offsets.max_offset(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at ``timestamp_ms`` or later; the end of the queue when there is none."""
        return await self._offsets.offset_at(queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset committed for this group, None when there is none."""
        return await self._offsets.committed(self.group, queue)

    async def commit(self, queue: MessageQueue | None = None, offset: int | None = None) -> None:
        """Commit ``offset`` (the next to read) of ``queue`` for this group, or everything that was polled; returns when the brokers have it.

        Raises what asking the broker raises; ConfigError for one argument without the other.
        """
        if queue is not None and offset is not None:
            await self._offsets.commit(self.group, queue, offset)
        elif queue is None and offset is None:
            await self._assigned().commit()
        else:
            raise ConfigError("commit takes a queue and its offset, or nothing: everything that was polled")

    # --- polling ---

    def stats(self) -> ConsumerStats:
        """Return how the queues that are polled are doing, and for how long and why one of them is not pulled."""
        return ConsumerStats(self.group, ()) if self._polling is None else self._polling.stats()

    async def subscribe(self, subscriptions: Mapping[str, str] | Iterable[str] | str) -> None:
        """Join the group and poll the queues that it gives: topics with ``"*"`` or ``"tag || tag"``, or topic names for everything of them.

        Raises ConfigError when queues were given by ``assign`` or ``subscribe`` before, InvalidName for what is no topic or expression.
        """
        self._instance.check()
        if self._polling is not None:
            raise ConfigError("this PullConsumer has its queues already: subscribe once, or assign; make another consumer for more")
        described = read_subscriptions(subscriptions, self._clock.time_ms())
        share = read_strategy(self._rebalance, list(described))
        self._subscriptions.update(described)
        polling = self._polling = Polling(
            self._instance,
            self.group,
            self._subscriptions,
            consume_from=self._consume_from,
            auto_commit=self._auto_commit,
            share=share,
        )
        if polling.member is not None:
            self._broker_requests = BrokerRequests(
                self._instance, polling.member, None, settings={"PROP_CONSUMEORDERLY": "false"}, seek=self.seek, consume=_no_handler
            )
        await polling.begin()

    async def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Poll exactly ``queues``, whatever other members of the group do; those that were assigned before go on where they are.

        ``expression`` is for topics that are new here. Raises ConfigError after ``subscribe``, and what asking for the start offsets raises.
        """
        self._instance.check()
        if self._broker_requests is not None:
            raise ConfigError("this PullConsumer has subscribed: its group gives it queues; make another consumer to assign them by hand")
        chosen = list(queues)
        for queue in chosen:
            check_queue(queue)
            if queue.topic not in self._subscriptions:
                self._subscriptions[check_topic(queue.topic)] = tag_subscription(queue.topic, expression, 0)
        if self._polling is None:
            self._polling = Polling(
                self._instance, self.group, self._subscriptions, consume_from=self._consume_from, auto_commit=self._auto_commit
            )
            await self._polling.begin()
        await self._polling.assign(chosen)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are polled now, sorted."""
        return [] if self._polling is None else self._polling.assignment

    async def poll(self, max_messages: int = 32, *, timeout_s: float = 5.0) -> list[ReceivedMessage]:
        """Return up to ``max_messages`` messages, in the order of their queue, all of one queue; an empty list after ``timeout_s`` seconds.

        Queues are served in turn. What earlier polls returned counts as consumed. Raises ConfigError before ``assign`` or ``subscribe``, or
        while another task polls; a broker's lasting refusal as BrokerError.
        """
        check_number("max_messages", max_messages, least=1, whole=True)
        check_number("timeout_s", timeout_s, least=0)
        return await self._assigned().poll(max_messages, timeout_s)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that ``poll`` returns of ``queue``. Raises ConfigError when it is not assigned."""
        (pq,) = self._assigned().assigned([queue])
        return pq.position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at ``offset``. One out of range is moved to where the broker has messages. Raises ConfigError when ``queue`` is not assigned."""
        check_number("offset", offset, least=0, whole=True)
        self._assigned().seek(queue, offset)

    async def seek_to_time(self, where: MessageQueue | str, timestamp_ms: int) -> None:
        """Go on at the first message stored at ``timestamp_ms`` (epoch) or later, in one queue or all assigned ones of a topic; at the end
        where there is none. Raises what asking the broker raises, and what ``seek`` raises.
        """
        polling = self._assigned()
        for queue in [queue for queue in self.assignment if queue.topic == where] if isinstance(where, str) else [where]:
            polling.assigned([queue])
            self.seek(queue, await self._offsets.offset_at(queue, timestamp_ms))

    def pause(self, *queues: MessageQueue) -> None:
        """Neither pull nor return messages of ``queues``; without arguments of all. Raises ConfigError for one that is not assigned."""
        self._assigned().pause(queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with paused queues; without arguments with all."""
        self._assigned().resume(queues)

    def _assigned(self) -> Polling:
        self._instance.check()
        if self._polling is None:
            raise ConfigError("no queues to poll: call subscribe() to share them with the group, or assign() to choose them")
        return self._polling

    # --- what the parts call ---

    def _on_request(self, conn: Connection, command: Command) -> None:
        if self._broker_requests is not None:
            self._broker_requests.handle(conn, command)
        else:
            conn.respond(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported")

    def _on_route(self, route: Route) -> None:
        if self._polling is not None and self._polling.member is not None:
            self._polling.member.rebalance_soon()


class PullsAtOnce:
    """Pulls one queue; each request is sent in the turn of the loop that asks for it. Made by ``PullConsumer.pulls_at_once``.

    It keeps what is the same from pull to pull, the header's text and the connection to the broker, for as long as the topic's route stays
    and the connection is open.
    """

    def __init__(
        self,
        consumer: PullConsumer,
        queue: MessageQueue,
        template: bytes,
        tags: frozenset[bytes] | None,
        read_from: ReadFrom,
        timeout_s: float,
    ) -> None:
        self._consumer = consumer
        self._queue = queue
        self._topic = queue.topic
        self._template = template
        self._tags = tags
        self._read_from: ReadFrom = read_from
        self._timeout_s = timeout_s
        self._routes = consumer._instance.routes
        self._route: Route | None = None
        self._conn: Connection | None = None
        self._to_master = False

    def send(self, receiver: Receiver, offset: int, max_messages: int) -> str | None:
        """Ask for messages and return the broker's address, which ``read`` needs. ``receiver`` gets the response in the turn that brings it.

        Returns None, and nothing happens, while there is no open connection to the queue's broker: ``pull`` makes one. Raises ConfigError for
        numbers that cannot be.
        """
        if offset < 0 or max_messages < 1:
            check_pull(offset=offset, max_messages=max_messages)
        conn = self._conn
        # Who follows the brokers' suggestions may be sent elsewhere by any answer.
        if conn is None or conn.closed or self._routes.get(self._topic) is not self._route or self._read_from == "any":
            conn = self._connect()
            if conn is None:
                return None
        conn.request_for(receiver, _PULL_MESSAGE, ext=self._template % (offset, max_messages, 0), timeout_s=self._timeout_s)
        return conn.address

    def read(self, response: Command, address: str, offset: int) -> PullResult:
        """Return the result in the response of the broker at ``address``. Raises SprocketError for anything else: ``pull`` finds out what it
        is, and tries again where that helps.
        """
        result = read_pull(response, address, self._queue, offset, self._tags)
        conn = self._conn
        if conn is not None and address == conn.address and self._routes.get(self._topic) is self._route:
            self._consumer._note(result, self._to_master)
        else:
            self._consumer._note(result, self._consumer._is_master(self._queue, address))
        return result

    def _connect(self) -> Connection | None:
        """Look up the route and the open connection it leads to."""
        consumer, queue = self._consumer, self._queue
        route = self._route = self._routes.get(self._topic)
        address = route.address(queue.broker_name, consumer._known_broker_id(queue, self._read_from, route)) if route is not None else None
        conn = self._conn = consumer._instance.brokers.peek(address) if address is not None else None
        self._to_master = address is not None and consumer._is_master(queue, address)
        return conn


async def _no_handler(_: ReceivedMessage) -> ConsumeDirectlyResult:
    return ConsumeDirectlyResult("CR_RETURN_NULL", remark="this consumer polls and has no handler to call")


@lru_cache(maxsize=256)
def _subscription(topic: str, expression: str, expression_type: str) -> tuple[SubscriptionData, frozenset[bytes] | None]:
    subscription = pull_subscription(topic, expression, expression_type)
    return subscription, subscription_tags(subscription)
