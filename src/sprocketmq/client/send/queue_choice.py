"""The choice of a message's queue: the next of its topic, the one it names, or that of its ordering key or priority."""

import contextlib
import random
from collections.abc import Callable, Mapping
from itertools import cycle

from sprocketmq.client.routes import Route
from sprocketmq.client.send.faults import FaultTable
from sprocketmq.client.send.send_header import header_prefix
from sprocketmq.errors import InvalidMessage, NoMaster
from sprocketmq.protocol.hashing import hashed_queue
from sprocketmq.protocol.message import NO_PROPERTIES, Message, MessageQueue
from sprocketmq.protocol.names import check_send_topic
from sprocketmq.protocol.properties import PRIORITY, SHARDING_KEY, priority_of


class PriorityQueue(MessageQueue, frozen=True, order=True, gc=False):
    """The queue of a priority: the queue with that number, or the last; of any broker when ``broker_name`` is empty."""


class KeyedQueue(MessageQueue, frozen=True, order=True, gc=False):
    """The queue of an ordering key, chosen when the route is known; ``broker_name`` and ``queue_id`` are unused."""

    key: str = ""


def queue_of(message: Message) -> MessageQueue | None:
    """Return the queue whose batches a message may join: that of its ordering key or priority, its own, or None for any."""
    if message.ordering_key is not None:
        return KeyedQueue(message.topic, "", 0, message.ordering_key)
    if message.properties is NO_PROPERTIES or not isinstance(message.properties, Mapping):
        return message.queue
    asked = message.properties.get(PRIORITY)
    if type(asked) is not str or SHARDING_KEY in message.properties or (priority := priority_of({PRIORITY: asked})) < 0:
        return message.queue
    return PriorityQueue(message.topic, message.queue.broker_name if message.queue is not None else "", priority)


def lone_queue_of(message: Message) -> MessageQueue | None:
    """Return the queue of a message that is sent by itself: that of its ordering key, its own, or None for any."""
    return message.queue if message.ordering_key is None else KeyedQueue(message.topic, "", 0, message.ordering_key)


class Target:
    """One queue to send to: its broker's address, the header prefixes of its requests, and the publisher it belongs to."""

    __slots__ = ("address", "batch_prefix", "broker_name", "prefix", "publisher", "queue_id")

    def __init__(self, publisher: "Publisher", group: str, queue: MessageQueue, address: str) -> None:
        self.publisher: Publisher = publisher
        self.address: str = address
        self.broker_name: str = queue.broker_name
        self.queue_id: int = queue.queue_id
        self.prefix: bytes = header_prefix(group, queue, batch=False)
        self.batch_prefix: bytes = header_prefix(group, queue, batch=True)


class Publisher:
    """The queues of one topic, round robin. Queues of brokers that ``faults`` isolates are used only when there are no others."""

    __slots__ = ("_faults", "_group", "_pinned", "_step", "next", "provisional", "route", "targets", "topic")

    def __init__(self, group: str, route: Route, faults: FaultTable | None = None) -> None:
        self.topic: str = route.topic
        self._group = group
        self._faults = faults
        self.use(route)

    def use(self, route: Route) -> None:
        """Take over a new route, which has at least one queue to write."""
        self.route: Route = route
        self.provisional: bool = route.provisional
        masters = route.masters
        self.targets: list[Target] = [Target(self, self._group, queue, masters[queue.broker_name]) for queue in route.publish_queues]
        self._pinned: dict[MessageQueue, Target] = {}
        # A random first queue spreads the first messages of many producers.
        first = random.randrange(len(self.targets))
        self._step = cycle(self.targets[first:] + self.targets[:first]).__next__
        # Returns the next queue, round robin, of an available broker if there is one.
        self.next: Callable[[], Target] = self._step if self._faults is None else self._next_available

    def _next_available(self) -> Target:
        return (self._scan("", self._faults) if self._faults else None) or self._step()

    def next_elsewhere(self, broker_name: str) -> Target:
        """Return the next queue of another broker than ``broker_name``, of an available one if possible; of the same when it is alone."""
        return (self._scan(broker_name, self._faults) if self._faults else None) or self._scan(broker_name, None) or self._step()

    def has_other(self, broker_name: str) -> bool:
        """Return whether another broker than ``broker_name`` has queues of the topic."""
        return any(target.broker_name != broker_name for target in self.targets)

    def _scan(self, avoided: str, faults: FaultTable | None) -> Target | None:
        for _ in self.targets:
            target = self._step()
            if target.broker_name != avoided and (faults is None or faults.available(target.broker_name)):
                return target
        return None

    def pinned(self, queue: MessageQueue) -> Target:
        """Return the target of a chosen queue, or of the queue of a priority or an ordering key.

        Raises InvalidMessage for a queue of another topic, a negative number, or a broker that is not in the route; NoMaster for one that
        has no master now.
        """
        if type(queue) is KeyedQueue:
            return self.targets[hashed_queue(queue.key, len(self.targets))]
        if type(queue) is PriorityQueue:
            broker_name = queue.broker_name or self.next().broker_name
            last = max((one.queue_id for one in self.route.publish_queues if one.broker_name == broker_name), default=0)
            queue = MessageQueue(queue.topic, broker_name, min(queue.queue_id, last))
        target = self._pinned.get(queue)
        if target is None:
            if queue.topic != self.topic:
                raise InvalidMessage(f"the queue belongs to topic {queue.topic!r}, the message to {self.topic!r}")
            address = self.route.masters.get(queue.broker_name)
            if address is None and queue.broker_name in self.route.masterless:
                raise NoMaster([queue.broker_name], self.topic)
            if address is None:
                known = ", ".join(self.route.masters) or "none"
                raise InvalidMessage(f"topic {self.topic!r} has no broker {queue.broker_name!r} that takes messages (it has: {known})")
            if queue.queue_id < 0:
                raise InvalidMessage(f"queue {queue.queue_id} does not exist: queues count from 0")
            target = self._pinned[queue] = Target(self, self._group, queue, address)
        return target


class Publishers:
    """The topics one producer has sent to, each with its queues. ``faults`` is None without latency fault tolerance."""

    def __init__(self, group: str, faults: FaultTable | None) -> None:
        self.by_topic: dict[str, Publisher] = {}
        self.faults = faults
        self._group = group

    def add(self, route: Route) -> Publisher:
        """Return the publisher of a route's topic, made from ``route`` when there is none yet."""
        publisher = self.by_topic.get(route.topic)
        if publisher is None:
            publisher = self.by_topic[route.topic] = Publisher(self._group, route, self.faults)
        return publisher

    def on_route(self, route: Route) -> None:
        """Take over a route that is new or has changed; a topic without queues to write is forgotten.

        One whose brokers have no master keeps the queues that it had: sends are retried until one is back, or their timeout passes.
        """
        publisher = self.by_topic.get(route.topic)
        if publisher is None:
            return
        if route.publish_queues:
            publisher.use(route)
        elif not route.masterless:
            del self.by_topic[route.topic]

    def queue_of_key(self, topic: str, key: str) -> MessageQueue | None:
        """Return the queue of an ordering key; None while the topic's route is not known."""
        publisher = self.by_topic.get(topic) if type(topic) is str else None
        if publisher is None or type(key) is not str:
            return None
        queues = publisher.route.publish_queues
        return queues[hashed_queue(key, len(queues))]

    def check(self, topic: str, queue: MessageQueue | None) -> None:
        """Raise InvalidName or InvalidMessage when a message to ``topic``, or to this queue of it, certainly cannot be sent."""
        publisher = self.by_topic.get(topic) if type(topic) is str else None
        if publisher is None:
            check_send_topic(topic)
        if queue is not None:
            if not isinstance(queue, MessageQueue):
                raise InvalidMessage(f"the queue must be a MessageQueue, not {queue!r}")
            if publisher is not None:
                with contextlib.suppress(NoMaster):  # the route may have one when the message is sent
                    publisher.pinned(queue)
