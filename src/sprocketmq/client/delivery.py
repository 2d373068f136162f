"""Getting send requests stored: queues in turn, connections, and tries elsewhere within one time budget."""

import asyncio
import random
from dataclasses import dataclass
from typing import NoReturn

from sprocketmq.client.encoding import header, header_prefix
from sprocketmq.client.instance import Instance, response_error
from sprocketmq.client.routes import Route
from sprocketmq.errors import (
    BrokerBusy,
    ConnectFailed,
    ConnectionLost,
    InvalidMessage,
    MaybeStoredError,
    NotRocketMQ,
    RequestTimeout,
    SprocketError,
    TopicNotFound,
)
from sprocketmq.net.client import Connection
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import SendResponse
from sprocketmq.protocol.message import MessageQueue, SendResult, SendStatus
from sprocketmq.protocol.names import check_send_topic

RETRY_PAUSE_S = 0.1
RETRY_PAUSE_MAX_S = 0.5

# Answers after which another broker, or the same one a moment later, is asked (client-behaviour, section 3.1).
RETRY_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
STATUSES = {status.value: status for status in SendStatus}
_SEND_OK = SendStatus.SEND_OK

SINGLE, BATCH = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)


class Target:
    """One queue to send to, with the ready front parts of its request headers."""

    __slots__ = ("address", "batch_prefix", "broker_name", "prefix", "queue_id")

    def __init__(self, group: str, queue: MessageQueue, address: str) -> None:
        self.address = address
        self.broker_name = queue.broker_name
        self.queue_id = queue.queue_id
        self.prefix = header_prefix(group, queue, batch=False)
        self.batch_prefix = header_prefix(group, queue, batch=True)


class Publisher:
    """One topic's queues, in turn."""

    __slots__ = ("_group", "_next", "_pinned", "provisional", "route", "targets", "topic")

    def __init__(self, group: str, route: Route) -> None:
        self.topic = route.topic
        self._group = group
        self.use(route)
        # A random first queue spreads the first messages of many producers.
        self._next = random.randrange(len(self.targets))

    def use(self, route: Route) -> None:
        """Take over a new route with at least one queue to write."""
        self.route = route
        self.provisional = route.provisional
        masters = route.masters
        self.targets = [Target(self._group, queue, masters[queue.broker_name]) for queue in route.publish_queues]
        self._pinned: dict[MessageQueue, Target] = {}

    def next(self) -> Target:
        """Return the next queue, round robin."""
        targets = self.targets
        self._next = i = (self._next + 1) % len(targets)
        return targets[i]

    def next_elsewhere(self, broker_name: str) -> Target:
        """Return the next queue of another broker than ``broker_name``, or just the next when there is no other."""
        for _ in self.targets:
            target = self.next()
            if target.broker_name != broker_name:
                return target
        return self.next()

    def pinned(self, queue: MessageQueue) -> Target:
        """Return the very queue. Raises InvalidMessage when it is another topic's, or on a broker that the route does not have."""
        target = self._pinned.get(queue)
        if target is None:
            if queue.topic != self.topic:
                raise InvalidMessage(f"the queue belongs to topic {queue.topic!r}, the message to {self.topic!r}")
            address = self.route.masters.get(queue.broker_name)
            if address is None:
                known = ", ".join(self.route.masters) or "none"
                raise InvalidMessage(f"topic {self.topic!r} has no broker {queue.broker_name!r} that takes messages (it has: {known})")
            if queue.queue_id < 0:
                raise InvalidMessage(f"queue {queue.queue_id} does not exist: queues count from 0")
            target = self._pinned[queue] = Target(self._group, queue, address)
        return target


@dataclass(slots=True)
class Job:
    """One send request on its way, with what is needed to try it again."""

    publisher: Publisher
    queue: MessageQueue | None
    target: Target
    body: bytes
    properties: bytes
    sys_flag: int
    flag: int
    timeout_s: float
    deadline: float
    batch: bool = False
    tries: int = 0
    failed_connects: int = 0
    unsure: SprocketError | None = None


class Delivery:
    """One producer's way to the brokers: what it knows of each topic's queues, and how a send that failed is tried again.

    ``retries`` counts further tries after one that a broker refused for the moment or did not answer.
    """

    def __init__(self, instance: Instance, group: str, *, retries: int) -> None:
        self.publishers: dict[str, Publisher] = {}
        self._instance = instance
        self._group = group
        self._retries = retries
        self._peek = instance.brokers.peek
        self._now_ms = instance.clock.time_ms

    def result(self, response: Command, publisher: Publisher, target: Target, uniq_key: str) -> SendResult:
        stored = response.header(SendResponse)
        if publisher.provisional:
            self._instance.refresh_soon(publisher.topic)
        code = response.code
        status = STATUSES[code] if code else _SEND_OK
        return SendResult(status, uniq_key, stored.msg_id, publisher.topic, target.broker_name, stored.queue_id, stored.queue_offset)

    async def open(self, topic: str, budget_s: float) -> Publisher:
        check_send_topic(topic)
        route = await self._instance.publish_route(topic, budget_s=budget_s)
        publisher = self.publishers.get(topic)  # another task may have been quicker
        if publisher is None:
            publisher = self.publishers[topic] = Publisher(self._group, route)
        return publisher

    def on_route(self, route: Route) -> None:
        publisher = self.publishers.get(route.topic)
        if publisher is None:
            return
        if route.publish_queues:
            publisher.use(route)
        else:
            del self.publishers[route.topic]

    async def connect(self, address: str, deadline: float) -> Connection:
        remaining = deadline - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, remaining)):
                return self._peek(address) or await self._instance.brokers.get(address)
        except TimeoutError:
            raise ConnectFailed(address, "broker", "the send's time was over") from None

    async def deliver(self, job: Job, failure: SprocketError | Command | None) -> Command:
        """Try a send request until it is stored. ``failure`` is how the first try ended, or None when there was none yet."""
        while True:
            if failure is not None:
                await self._next_try(job, failure)
            target = job.target
            try:
                conn = self._peek(target.address) or await self.connect(target.address, job.deadline)
                prefix = target.batch_prefix if job.batch else target.prefix
                ext = header(prefix, job.sys_flag, self._now_ms(), job.flag, job.properties)
                remaining = max(0.0, job.deadline - asyncio.get_running_loop().time())
                response = await conn.request(BATCH if job.batch else SINGLE, ext=ext, body=job.body, timeout_s=remaining)
            except SprocketError as e:
                failure = e
                continue
            if response.code in STATUSES:
                return response
            failure = response

    async def _next_try(self, job: Job, failure: SprocketError | Command) -> None:
        """Choose the queue for the next try and wait before it where that helps. Raises when there is no next try."""
        publisher, target = job.publisher, job.target
        if isinstance(failure, Command):
            error: SprocketError = response_error(failure, target.address, publisher.topic)
            again = failure.code in RETRY_CODES
            if again and failure.code not in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION):
                error = BrokerBusy(failure.code, failure.remark, address=target.address)
            if failure.code == ResponseCode.GO_AWAY:
                self._instance.brokers.drop(target.address)
        else:
            error = failure
            again = isinstance(error, ConnectFailed | ConnectionLost | RequestTimeout | NotRocketMQ)
        if isinstance(error, ConnectFailed):
            job.failed_connects += 1
        else:
            job.tries += 1
        if isinstance(error, ConnectionLost | RequestTimeout):
            job.unsure = error
        remaining = job.deadline - asyncio.get_running_loop().time()
        if not again or job.tries > self._retries or remaining <= 0:
            self._give_up(job, error)
        self._instance.refresh_soon(publisher.topic)
        try:
            job.target = publisher.next_elsewhere(target.broker_name) if job.queue is None else publisher.pinned(job.queue)
        except InvalidMessage:
            self._give_up(job, error)
        everywhere = job.failed_connects and job.failed_connects % max(1, len(publisher.route.masters)) == 0
        if job.target.broker_name == target.broker_name or everywhere:
            pause = min(RETRY_PAUSE_MAX_S, RETRY_PAUSE_S * 2 ** (job.tries + job.failed_connects - 1))
            if pause >= remaining:
                self._give_up(job, error)
            await self._instance.timers.sleep(pause)

    def _give_up(self, job: Job, error: SprocketError) -> NoReturn:
        topic = job.publisher.topic
        if isinstance(error, TopicNotFound):  # forget what was known, the next send asks again
            self.publishers.pop(topic, None)
            self._instance.routes.pop(topic, None)
        if job.unsure is not None:
            address = getattr(job.unsure, "address", job.target.address)
            raise MaybeStoredError(
                f"no answer from broker {address} for a send to {topic!r} within {job.timeout_s:g} s ({job.unsure}): it may be stored or not",
                address=address,
                cause=job.unsure,
            ) from error
        raise error
