"""Pulls of one queue for callers that pull thousands of times a second: the request is prepared once, the response is not awaited."""

from typing import TYPE_CHECKING

from sprocketmq.client.consume.pull_requests import PullResult, check_pull, pull_template, read_pull, subscription_of
from sprocketmq.client.consume.replica_choice import ReadFrom, ReplicaChoice
from sprocketmq.client.instance import Instance
from sprocketmq.net.client import Connection, Receiver
from sprocketmq.protocol.codes import PULL_SUBSCRIPTION, RequestCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue

if TYPE_CHECKING:
    from sprocketmq.client.routes import Route

# A plain integer: formatting an enum member takes many times as long.
_PULL_MESSAGE = int(RequestCode.PULL_MESSAGE)


class PreparedPulls:
    """Pulls one queue; each request is sent in the turn of the loop that asks for it. Made by ``PullConsumer.prepare_pulls``.

    It keeps what all pulls share, the header's text and the connection to the broker, while the topic's route stays the same and the
    connection is open.
    """

    def __init__(
        self,
        instance: Instance,
        replicas: ReplicaChoice,
        group: str,
        queue: MessageQueue,
        *,
        max_bytes: int,
        expression: str,
        expression_type: str,
        read_from: ReadFrom,
        timeout_s: float,
    ) -> None:
        subscription, self._tags = subscription_of(queue.topic, expression, expression_type)
        self._template = pull_template(group, queue, max_bytes=max_bytes, sys_flag=PULL_SUBSCRIPTION, subscription=subscription)
        self._brokers = instance.brokers
        self._routes = instance.routes
        self._replicas = replicas
        self._queue = queue
        self._topic = queue.topic
        self._read_from: ReadFrom = read_from
        self._timeout_s = timeout_s
        self._route: Route | None = None
        self._conn: Connection | None = None
        self._to_master = False

    def send(self, receiver: Receiver, offset: int, max_messages: int) -> str | None:
        """Request messages and return the broker's address, which ``read`` needs. ``receiver`` gets the response as soon as it arrives.

        Returns None and sends nothing while there is no open connection to the queue's broker: ``pull`` opens one. Raises ConfigError for
        invalid numbers.
        """
        if offset < 0 or max_messages < 1:
            check_pull(offset=offset, max_messages=max_messages)
        conn = self._conn
        # With "any", each response may suggest another broker.
        if conn is None or conn.closed or self._routes.get(self._topic) is not self._route or self._read_from == "any":
            conn = self._connect()
            if conn is None:
                return None
        conn.request_for(receiver, _PULL_MESSAGE, ext=self._template % (offset, max_messages, 0), timeout_s=self._timeout_s)
        return conn.address

    def read(self, response: Command, address: str, offset: int) -> PullResult:
        """Return the result in the response of the broker at ``address``.

        Raises SprocketError for any other response: ``pull`` finds the cause, and retries where that helps.
        """
        result = read_pull(response, address, self._queue, offset, self._tags)
        conn = self._conn
        if conn is not None and address == conn.address and self._routes.get(self._topic) is self._route:
            self._replicas.note(result, self._to_master)
        else:
            self._replicas.note(result, self._replicas.is_master(self._queue, address))
        return result

    def _connect(self) -> Connection | None:
        """Look up the route and the open connection to the broker that it leads to."""
        queue = self._queue
        route = self._route = self._routes.get(self._topic)
        broker_id = None if route is None else self._replicas.broker_id(queue, self._read_from, route)
        address = None if route is None or broker_id is None else route.address(queue.broker_name, broker_id)
        conn = self._conn = self._brokers.peek(address) if address is not None else None
        self._to_master = address is not None and self._replicas.is_master(queue, address)
        return conn
