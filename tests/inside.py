"""What tests see and do inside of clients, where there is nothing to see from outside: one function for each, and nobody else reaches in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sprocketmq import sync
from sprocketmq.client.process_queue import ProcessQueue
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.message import MessageQueue


def run_due(client: Any) -> None:
    """Do what is due on a clock that was moved by hand: the loop's own timers go by the machine's."""
    client._instance.timers.run_due()


def id_of(client: Any) -> str:
    """Return the id brokers know a client by."""
    return client._instance.client_id


def broker_connections(client: Any) -> ConnectionPool:
    """Return the connections to brokers, to break them or to stand in for them."""
    return client._instance.brokers


def process_queues(consumer: Any) -> Mapping[MessageQueue, ProcessQueue]:
    """Return what a member of a group holds of each queue, pulled and not yet committed; takes the blocking face, too."""
    return getattr(consumer, "_client", consumer)._member.queues


def held_messages(consumer: Any, queue: MessageQueue) -> int:
    """Return how many messages of a queue a member holds; -1 before it is given the queue."""
    queues = process_queues(consumer)
    return queues[queue].held_messages if queue in queues else -1


def bytes_in_flight(producer: Any) -> int:
    """Return the bytes of bodies that take room in a producer, of either kind."""
    return producer._held.bytes if isinstance(producer, sync.Producer) else producer._in_flight_bytes
