"""What tests see and do inside of clients, brokers and stores, where there is nothing to see from outside: one function for each, and nobody else reaches in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tests.ports import on_own_ports

from sprocketmq import sync
from sprocketmq.client.consume.process_queue import ProcessQueue
from sprocketmq.client.instance import Instance
from sprocketmq.client.send.faults import FaultTable
from sprocketmq.net import listening
from sprocketmq.net.client import ConnectionPool
from sprocketmq.net.link import Link
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.store import MessageStore


def listen_on_own_ports() -> None:
    """Have the servers of this process listen on ports of its own where any would do."""
    listening.listen = on_own_ports(listening.listen)
    listening._bind = on_own_ports(listening._bind)


def instance_of(client: Any) -> Instance:
    """Return what a client has its routes, connections and heartbeats from."""
    return client._instance


def run_due(client: Any) -> None:
    """Do what is due on a clock that was moved by hand: the loop's own timers go by the machine's."""
    instance_of(client).timers.run_due()


def id_of(client: Any) -> str:
    """Return the id brokers know a client by."""
    return instance_of(client).client_id


def broker_connections(client: Any) -> ConnectionPool:
    """Return the connections to brokers, to break them or to stand in for them."""
    return instance_of(client).brokers


def process_queues(consumer: Any) -> Mapping[MessageQueue, ProcessQueue]:
    """Return what a member of a group holds of each queue, pulled and not yet committed; takes the blocking face, too."""
    return getattr(consumer, "_client", consumer)._member.queues


def held_messages(consumer: Any, queue: MessageQueue) -> int:
    """Return how many messages of a queue a member holds; -1 before it is given the queue."""
    queues = process_queues(consumer)
    return queues[queue].held_messages if queue in queues else -1


def bytes_in_flight(producer: Any) -> int:
    """Return the bytes of bodies that take room in a producer, of either kind."""
    return producer._held.bytes if isinstance(producer, sync.Producer) else producer._room.bytes


def listeners(consumer: Any) -> set[asyncio.Task[None]]:
    """Return the tasks of ``listen`` that still run."""
    return consumer.handlers.tasks


def settling(consumer: Any) -> set[asyncio.Task[None]]:
    """Return the tasks that give messages back to the broker."""
    return consumer.outcomes.tasks


def faults(producer: Any) -> FaultTable | None:
    """Return what a producer has noted about the latency of brokers; None when it was not asked to."""
    return producer._publishers.faults


def log_of(store: MessageStore) -> CommitLog:
    """Return the commit log of a store, for what it keeps beside messages: its failure, segments that are still read."""
    return store._log


def queue_of(store: MessageStore, topic: str, queue_id: int) -> Any:
    """Return one queue of a store as the store keeps it, to look at its units or to change where it begins."""
    return store._table.queues[topic, queue_id]


def forget_mapped(store: MessageStore) -> None:
    """Have a store open the files of its queues anew, as it does with files it has not used for long."""
    store._table.pool.forget()


def unsent(link: Link) -> list[Any]:
    """Return the buffers that leave with the next write of a connection."""
    return link._out
