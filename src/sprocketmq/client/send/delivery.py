"""Getting send requests stored: queues in turn, connections, and tries elsewhere within one time budget."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from sprocketmq.client.instance import Instance, response_error
from sprocketmq.client.routes import Route
from sprocketmq.client.send.encoding import PriorityQueue, header, header_prefix
from sprocketmq.client.send.faults import FaultTable
from sprocketmq.errors import (
    BrokerBusy,
    ConnectFailed,
    ConnectionLost,
    InvalidMessage,
    MaybeStoredError,
    NotRocketMQ,
    ProtocolError,
    RequestTimeout,
    SendTimeout,
    SprocketError,
    TopicNotFound,
)
from sprocketmq.net.client import Connection
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import SendResponse
from sprocketmq.protocol.message import MessageQueue, Receipt, SendResult, SendStatus
from sprocketmq.protocol.names import check_send_topic

RETRY_PAUSE_S = 0.1
RETRY_PAUSE_MAX_S = 0.5
CONNECT_PATIENCE_S = 1.0

# Answers after which another broker, or the same one a moment later, is asked (docs/internals/client.md#a-send).
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
# Those that tell about the topic, not about the broker.
_TOPIC_CODES = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION})
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
    """One topic's queues, in turn; those of brokers that ``faults`` isolates only when there are no others."""

    __slots__ = ("_faults", "_group", "_next", "_pinned", "provisional", "route", "targets", "topic")

    def __init__(self, group: str, route: Route, faults: FaultTable | None = None) -> None:
        self.topic = route.topic
        self._group = group
        self._faults = faults
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
        """Return the next queue, round robin, of an available broker if there is one."""
        if self._faults:
            target = self._scan("", self._faults)
            if target is not None:
                return target
        return self._step()

    def next_elsewhere(self, broker_name: str) -> Target:
        """Return the next queue of another broker than ``broker_name``, an available one if there is, or just the next without any."""
        return (self._scan(broker_name, self._faults) if self._faults else None) or self._scan(broker_name, None) or self._step()

    def has_other(self, broker_name: str) -> bool:
        """Tell whether another broker than ``broker_name`` has queues of the topic."""
        return any(target.broker_name != broker_name for target in self.targets)

    def _step(self) -> Target:
        targets = self.targets
        self._next = i = (self._next + 1) % len(targets)
        return targets[i]

    def _scan(self, avoided: str, faults: FaultTable | None) -> Target | None:
        for _ in self.targets:
            target = self._step()
            if target.broker_name != avoided and (faults is None or faults.available(target.broker_name)):
                return target
        return None

    def pinned(self, queue: MessageQueue) -> Target:
        """Return the very queue, or that of a priority. Raises InvalidMessage when it is another topic's, or on a broker that the route does
        not have.
        """
        if type(queue) is PriorityQueue:
            broker_name = queue.broker_name or self.next().broker_name
            last = max((one.queue_id for one in self.route.publish_queues if one.broker_name == broker_name), default=0)
            queue = MessageQueue(queue.topic, broker_name, min(queue.queue_id, last))
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
    body: bytes | memoryview
    properties: bytes
    sys_flag: int
    flag: int
    timeout_s: float
    deadline: float
    batch: bool = False
    born_timestamp_ms: int | None = None  # None: when it leaves
    tries: int = 0
    failed_connects: int = 0
    unsure: SprocketError | None = None
    # The latest answer that said stored, but not as safely as asked, and the queue it came from.
    stored: tuple[Command, Target] | None = None


def read_receipt(response: Command, msg_ids: Sequence[str], topic: str, target: Target) -> Receipt:
    """Return what the broker's answer says of the messages with these ids, which it has stored.

    Raises MaybeStoredError for an answer without the fields that say where.
    """
    try:
        stored = response.header(SendResponse)
    except ProtocolError as e:
        raise MaybeStoredError(
            f"broker {target.address} says that it has stored a send, but not where ({e}): look for it by its key",
            address=target.address,
            cause=e,
        ) from e
    code = response.code
    status = STATUSES[code] if code else _SEND_OK
    return Receipt(status, msg_ids, stored.msg_id, topic, target.broker_name, stored.queue_id, stored.queue_offset)


class Delivery:
    """One producer's way to the brokers: what it knows of each topic's queues, and how a send that failed is tried again.

    ``retries`` counts further tries after one that a broker refused for the moment or did not answer. ``faults`` is there with
    ``latency_fault_tolerance``: who sends a first try itself then tells it how long the answer took. A message that was stored, but not as
    safely as the broker was asked to, is sent once more to another broker with ``retry_another_broker_when_not_store_ok``.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        *,
        retries: int,
        latency_fault_tolerance: bool = False,
        retry_another_broker_when_not_store_ok: bool = False,
    ) -> None:
        self.publishers: dict[str, Publisher] = {}
        self.faults = FaultTable(instance.clock.monotonic) if latency_fault_tolerance else None
        self._instance = instance
        self._group = group
        self._retries = retries
        self._retry_not_ok = retry_another_broker_when_not_store_ok
        self._peek = instance.brokers.peek
        self._now_ms = instance.clock.time_ms

    def result(self, response: Command, publisher: Publisher, target: Target, uniq_key: str) -> SendResult:
        """Return the result of a message that ``response`` says is stored. Raises MaybeStoredError for an answer that does not say where."""
        receipt = read_receipt(response, (uniq_key,), publisher.topic, target)
        if publisher.provisional:
            self._instance.refresh_soon(publisher.topic)
        return SendResult(receipt, 0)

    async def open(self, topic: str, budget_s: float) -> Publisher:
        """Return the queues of ``topic``, asking for its route when needed. Raises InvalidName, TopicNotFound or NameserverUnavailable."""
        check_send_topic(topic)
        route = await self._instance.publish_route(topic, budget_s=budget_s)
        publisher = self.publishers.get(topic)  # another task may have been quicker
        if publisher is None:
            publisher = self.publishers[topic] = Publisher(self._group, route, self.faults)
        return publisher

    def on_route(self, route: Route) -> None:
        """Take over a route that is new or has changed; a topic without queues to write is forgotten."""
        publisher = self.publishers.get(route.topic)
        if publisher is None:
            return
        if route.publish_queues:
            publisher.use(route)
        else:
            del self.publishers[route.topic]

    async def connect(self, address: str, deadline: float) -> Connection:
        """Return the connection to ``address``, opening it when there is none. Raises what the pool raises.

        It takes a second, or a third of the time that is left until the loop's time is ``deadline`` if that is more: a broker that does
        not even refuse must leave time for another. The attempt itself goes on, and a later call may find it successful.
        """
        remaining = max(0.0, deadline - asyncio.get_running_loop().time())
        limit = min(remaining, max(CONNECT_PATIENCE_S, remaining / 3))
        try:
            async with asyncio.timeout(limit):
                return self._peek(address) or await self._instance.brokers.get(address)
        except TimeoutError:
            raise ConnectFailed(address, "broker", f"no answer within {limit:.2g} s") from None

    async def deliver(self, job: Job, outcome: SprocketError | Command | None) -> Command:
        """Try a send request until it is stored, and return the answer that says so, ``job.target`` being where.

        ``outcome`` is how the first try ended (an answer other than SUCCESS, or an error), or None when there was none yet.
        Raises MaybeStoredError when any try was not answered, else the error of the last one.
        """
        loop = asyncio.get_running_loop()
        while True:
            if outcome is not None:
                if isinstance(outcome, Command) and outcome.code in STATUSES and not self._wants_another(job, outcome):
                    return outcome
                try:
                    await self._next_try(job, outcome)
                except SprocketError:
                    if job.stored is None:
                        raise
                    response, job.target = job.stored
                    return response
            target = job.target
            try:
                conn = self._peek(target.address) or await self.connect(target.address, job.deadline)
                prefix = target.batch_prefix if job.batch else target.prefix
                born = self._now_ms() if job.born_timestamp_ms is None else job.born_timestamp_ms
                ext = header(prefix, job.sys_flag, born, job.flag, job.properties)
                started = loop.time()
                remaining = job.deadline - started
                if remaining <= 0:
                    raise SendTimeout(target.address, job.timeout_s)
                outcome = await conn.request(BATCH if job.batch else SINGLE, ext=ext, body=job.body, timeout_s=remaining)
            except SprocketError as e:
                outcome = e
            else:
                if self.faults is not None:
                    self.faults.answered(target.broker_name, loop.time() - started)

    def _wants_another(self, job: Job, response: Command) -> bool:
        """Tell whether a message that is stored with a status is sent once more, and remember the answer then."""
        if not (response.code and self._retry_not_ok and job.queue is None and job.publisher.has_other(job.target.broker_name)):
            return False
        job.stored = response, job.target
        return True

    async def _next_try(self, job: Job, failure: SprocketError | Command) -> None:
        """Choose the queue for the next try and wait before it where that helps. Raises when there is no next try."""
        publisher, target = job.publisher, job.target
        if isinstance(failure, Command):
            code = failure.code
            error = response_error(failure, target.address, publisher.topic)
            weakly_stored = code in STATUSES
            again = weakly_stored or code in RETRY_CODES
            if again and code not in _TOPIC_CODES:
                error = BrokerBusy(code, failure.remark, address=target.address)
            if code == ResponseCode.GO_AWAY:
                self._instance.brokers.drop(target.address)
            at_fault = again and not weakly_stored and code not in _TOPIC_CODES
        else:
            error = failure
            at_fault = again = isinstance(error, ConnectFailed | ConnectionLost | RequestTimeout | NotRocketMQ)
        if at_fault and self.faults is not None:
            self.faults.failed(target.broker_name)
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
