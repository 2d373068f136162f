"""Which queue a row goes to: by sharding key, by broker and queue id, by priority, or any."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sprocketmq.protocol.hashing import hashed_queue
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.properties import PRIORITY, SHARDING_KEY, priority_of
from sprocketmq.spark.sink.row_fields import RowFields, RowRefused
from sprocketmq.spark.sink.row_properties import RowProperties

QueuesOf = Callable[[str], Sequence[MessageQueue]]


@dataclass(frozen=True, slots=True)
class _PriorityTarget:
    """The target of a row with a priority: the queue with that id, or the last one. ``broker`` is None for any broker."""

    broker: str | None
    priority: int


class Router:
    """Chooses the queue of each row. ``queues_of`` returns the writable queues of a topic, in order, at least one."""

    def __init__(self, queues_of: QueuesOf) -> None:
        self._queues_of = queues_of
        self._turn: dict[tuple[str, str], int] = {}

    def by_sharding_key(self, topic: str, key: str) -> MessageQueue:
        """Return the queue of a sharding key, as Java's SelectMessageQueueByHash chooses it."""
        queues = self._queues_of(topic)
        return queues[hashed_queue(key, len(queues))]

    def named(self, topic: str, broker: str | None, queue_id: int | None) -> MessageQueue:
        """Return a queue by broker and id; without an id, the broker's queues in turn. Raises ValueError when there is none."""
        queues = self._queues_of(topic)
        fitting = [q for q in queues if (broker is None or q.broker_name == broker) and (queue_id is None or q.queue_id == queue_id)]
        brokers = sorted({q.broker_name for q in queues})
        if not fitting:
            wanted = "queue" if queue_id is None else f"queue {queue_id}"
            at = "" if broker is None else f" on broker {broker!r}"
            there = ", ".join(f"{name} ({sum(q.broker_name == name for q in queues)} queues)" for name in brokers)
            raise ValueError(f"topic {topic!r} has no {wanted}{at} that takes messages; it is on {there}")
        if queue_id is not None:
            if len(fitting) > 1:
                raise ValueError(
                    f"topic {topic!r} has a queue {queue_id} on each of {', '.join(brokers)}: name one in a column 'brokerName'"
                )
            return fitting[0]
        turn = self._turn[topic, broker or ""] = self._turn.get((topic, broker or ""), -1) + 1
        return fitting[turn % len(fitting)]

    def by_priority(self, topic: str, broker: str | None, priority: int) -> MessageQueue:
        """Return the queue in which brokers store that priority. Raises ValueError when ``broker`` has no queue of the topic."""
        broker = self.named(topic, broker, None).broker_name
        last = max(queue.queue_id for queue in self._queues_of(topic) if queue.broker_name == broker)
        return self.named(topic, broker, min(priority, last))

    def targets(
        self, fields: RowFields, topic: str | None, topics: pa.DictionaryArray | None, priorities: Any
    ) -> tuple[list["QueueTarget"], Any] | None:
        """Return the distinct targets that rows ask for, and the index of each row's target; None when no row asks for one.

        ``topic`` is the topic of all rows, else ``topics`` are those of the rows; ``priorities`` as from ``row_priorities``.
        """
        found = [(name, fields.column(name)) for name in ("shardingKey", "brokerName", "queueId")]
        names = [name for name, column in found if column is not None]
        columns = [column if name == "queueId" else column.cast(pa.string()) for name, column in found if column is not None]
        if priorities is not None:
            names.append("priority")
            columns.append(pa.array(priorities))
        if not columns:
            return None
        codes = [column.dictionary_encode(null_encoding="encode") for column in columns]
        if topics is not None:
            codes.append(topics)
        combined: Any = np.zeros(len(fields.numbers), np.int64)
        for code in codes:
            combined = combined * len(code.dictionary) + code.indices.to_numpy().astype(np.int64)
        _, at, inverse = np.unique(combined, return_index=True, return_inverse=True)
        targets: list[QueueTarget] = []
        known: dict[QueueTarget, int] = {}
        chosen = []
        for row in at.tolist():
            values = {name: column[row].as_py() for name, column in zip(names, columns, strict=True)}
            name = topic if topics is None else topics[row].as_py()
            key, broker, queue_id = values.get("shardingKey"), values.get("brokerName"), values.get("queueId")
            target: QueueTarget = None
            if values.get("priority", -1) >= 0:
                target = _PriorityTarget(broker, values["priority"])
            elif broker is not None or queue_id is not None:
                target = (broker, queue_id)
            elif key is not None:
                target = self.by_sharding_key(name or "", key)
            chosen.append(known.setdefault(target, len(known)))
            if known[target] == len(targets):
                targets.append(target)
        return targets, np.array(chosen)[inverse]

    def resolve(self, target: "QueueTarget", topic: str, row: int) -> MessageQueue | None:
        """Return the queue of a target, None for any queue. Raises RowRefused with number ``row`` when the topic has no such queue."""
        if target is None or isinstance(target, MessageQueue):
            return target
        try:
            if isinstance(target, _PriorityTarget):
                return self.by_priority(topic, target.broker, target.priority)
            return self.named(topic, *target)
        except ValueError as e:
            raise RowRefused(row, str(e)) from None


QueueTarget = MessageQueue | tuple[str | None, int | None] | _PriorityTarget | None


def row_priorities(fields: RowFields, properties: RowProperties | None, delayed: Any) -> Any:
    """Return the priority of each row, -1 without one, or None when no row has one.

    As in brokers, a value that is not a number is ignored, and so is the priority of a delayed row or of one with a sharding key.
    """
    asked = None if properties is None else properties.values_of(PRIORITY)
    if properties is None or asked is None:
        return None
    encoded = asked.fill_null("").dictionary_encode()
    known = np.array([priority_of({PRIORITY: text}) for text in encoded.dictionary.to_pylist()], np.int64)
    sharding = fields.column("shardingKey") if fields.has("shardingKey") else properties.values_of(SHARDING_KEY)
    without = delayed
    if sharding is not None:
        without = without | pc.not_equal(sharding.cast(pa.string()), "").fill_null(False).to_numpy(zero_copy_only=False)
    return np.where(without, -1, np.maximum(known[encoded.indices.to_numpy()], -1))
