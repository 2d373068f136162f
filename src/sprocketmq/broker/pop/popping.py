"""Popping: messages that have become visible again, then new ones, from one queue or all queues."""

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from sprocketmq.broker.attributes import MESSAGE_TYPE, PRIORITY_FACTOR
from sprocketmq.broker.filters.reading import messages_at_once, passes
from sprocketmq.broker.offsets import OffsetTable, is_young
from sprocketmq.broker.pop.journal import Journal
from sprocketmq.broker.pop.records import Batches, delivered_again
from sprocketmq.broker.pop.state import PopQueue
from sprocketmq.broker.pop.waiting import PopWaiter
from sprocketmq.clock import Clock
from sprocketmq.errors import LocalProtocolError
from sprocketmq.storage.store import MessageStore, NotInMemory, ReadStatus

# A pop waits for the units of a queue, then for its messages; after that many waits in vain it reads them from wherever they are.
MAX_LOADS = 3
# Reads of one queue for one pop: each may find only messages with other tags, or a gap.
MAX_READS = 8
ORDERLY = 999
FROM_FIRST = 0
# The kinds of messages taken from a queue: new ones, and those that have become visible again.
_NEW, _AGAIN = 1, 2
_BOTH = _NEW | _AGAIN

_FOUND = ReadStatus.FOUND
_Key = tuple[str, str, int]


class Taken(NamedTuple):
    """The messages of a pop: records in order, and the texts that tell the client of their places. ``rest`` are about as many left.

    A buffer of ``records`` may hold several; ``messages`` and ``size`` count all of them and their bytes, ``queues`` the queues they are
    of, and ``again`` those that nobody had acknowledged in time.
    """

    records: list[memoryview | bytes]
    messages: int
    again: int
    queues: int
    size: int
    popped_ms: int
    starts: str
    offsets: str
    deliveries: str
    rest: int


class _Found:
    """What a pop finds in one queue: offsets in the order of their records, buffers that hold one record or more, and their length.

    The first ``again`` of them were given before. ``waits`` says that the pop waits for the disk rather than find nothing here.
    """

    __slots__ = ("again", "offsets", "records", "size", "waits")

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits
        self.again = 0
        self.offsets: list[int] = []
        self.records: list[memoryview | bytes] = []
        self.size = 0

    def add(self, offset: int, record: memoryview | bytes) -> None:
        self.offsets.append(offset)
        self.records.append(record)
        self.size += len(record)


class Popping:
    """The state of all groups, and pops that change it. ``broker_name`` is for receipt handles."""

    def __init__(
        self, broker_name: str, store: MessageStore, offsets: OffsetTable, journal: Journal, *, max_bytes: Callable[[], int], clock: Clock
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._offsets = offsets
        self._journal = journal
        journal.snapshot = self.snapshot
        self._max_bytes = max_bytes
        self._clock = clock
        self._batches = Batches()
        self._queues: dict[_Key, PopQueue] = {}
        self._by_topic: dict[str, set[_Key]] = {}

    # --- state ---

    def __iter__(self) -> Iterator[PopQueue]:
        return iter(list(self._queues.values()))

    def load(self) -> None:
        """Take the state from the journal. Raises OSError and SprocketError for a file that cannot be read."""
        clean = False
        for record in self._journal.load():
            clean = record[0] == "stopped"
            self._apply(record)
        for (group, topic, queue_id), queue in self._queues.items():
            queue.end_at(self._store.max_offset(topic, queue_id))
            queue.committed = queue.floor
            committed = self._offsets.get(group, topic, queue_id)
            # After a kill the table may be some seconds old; any other offset in it was set by a client or an administrator.
            if committed is None or (not clean and committed < queue.floor):
                self._offsets.commit(group, topic, queue_id, queue.floor)

    def _apply(self, record: list[Any]) -> None:
        match record:
            case ["queue", group, topic, queue_id, state]:
                self._put((group, topic, queue_id), PopQueue.restored(state))
            case ["given", group, topic, queue_id, following, popped_ms, visible_ms, offsets, attempt_id]:
                if (queue := self._queues.get((group, topic, queue_id))) is not None:
                    queue.give(offsets, popped_ms, visible_ms)
                    queue.next, queue.attempt_id = following, attempt_id
            case ["again", group, topic, queue_id, offset, popped_ms, visible_ms, times]:
                if (queue := self._queues.get((group, topic, queue_id))) is not None and offset in queue.flights:
                    flight = queue.give_again(offset, popped_ms, visible_ms)
                    flight.popped_ms, flight.times = popped_ms, times
            case ["done", group, topic, queue_id, offsets]:
                if (queue := self._queues.get((group, topic, queue_id))) is not None:
                    for offset in offsets:
                        queue.drop(offset)
            case ["done in order", group, topic, queue_id, offsets]:
                if (queue := self._queues.get((group, topic, queue_id))) is not None:
                    queue.note_done_in_order(offsets)
            case ["gone", group, topic, queue_id]:
                self._forget((group, topic, queue_id))

    def snapshot(self) -> Iterator[list[Any]]:
        """Yield the records from which ``load`` makes this state."""
        for key, queue in self._queues.items():
            yield ["queue", *key, queue.snapshot()]

    def clear(self) -> None:
        """Forget all state."""
        self._queues.clear()
        self._by_topic.clear()
        self._batches.clear()

    def stopped(self) -> None:
        """Record that the broker stops cleanly: committed offsets are saved."""
        if self._queues:
            self._journal.append(["stopped"])

    def keep_short(self) -> None:
        """Replace the journal when it has grown. Raises OSError and SprocketError."""
        if self._journal.wants_snapshot:
            self._journal.replace()

    def _put(self, key: _Key, queue: PopQueue) -> None:
        self._queues[key] = queue
        self._by_topic.setdefault(key[1], set()).add(key)

    def _forget(self, key: _Key) -> None:
        if self._queues.pop(key, None) is not None:
            self._by_topic[key[1]].discard(key)

    def find(self, group: str, topic: str, queue_id: int) -> PopQueue | None:
        """Return the state of a group at a queue; None when it has popped nothing of it."""
        return self._queues.get((group, topic, queue_id))

    def _state(self, group: str, topic: str, queue_id: int, init_mode: int) -> PopQueue:
        key = (group, topic, queue_id)
        queue = self._queues.get(key)
        committed = self._offsets.get(group, topic, queue_id)
        if queue is not None and committed == queue.committed and key not in self._offsets.resets:
            return queue
        # A new group; or an administrator has moved or deleted it, so that what it had received no longer counts.
        start = self._first_offset(topic, queue_id, init_mode) if committed is None else committed
        queue = PopQueue(start)
        self._put(key, queue)
        self._journal.append(["queue", *key, queue.snapshot()])
        self._offsets.resets.pop(key, None)
        self._offsets.commit(group, topic, queue_id, start)
        return queue

    def _first_offset(self, topic: str, queue_id: int, init_mode: int) -> int:
        low = max(self._store.min_offset(topic, queue_id), 0)
        if init_mode == FROM_FIRST or is_young(self._store, topic, queue_id):
            return low
        return max(self._store.max_offset(topic, queue_id) - 1, low)

    def _commit(self, group: str, topic: str, queue_id: int, queue: PopQueue) -> None:
        floor = queue.floor
        if floor != queue.committed or self._offsets.get(group, topic, queue_id) is None:
            queue.committed = floor
            self._offsets.commit(group, topic, queue_id, floor)

    def topic_deleted(self, topic: str) -> None:
        """Forget the state of a topic."""
        for key in self._by_topic.pop(topic, set()):
            self._queues.pop(key, None)
            self._journal.append(["gone", *key])

    def is_due(self, topic: str) -> bool:
        """Whether a message of the topic has become visible again."""
        now = self._clock.time_ms()
        return any((due := self._queues[key].next_due_ms) is not None and due <= now for key in self._by_topic.get(topic, ()))

    # --- popping ---

    def pop(self, waiter: PopWaiter) -> Taken | None:
        """Take messages for a pop; None when there are none now.

        It ends before messages that are not in memory. Raises NotInMemory when these are its first.
        """
        now = self._clock.time_ms()
        group, topic = waiter.group.group_name, waiter.topic
        records: list[memoryview | bytes] = []
        places: dict[int, list[int]] = {}
        deliveries = []
        count = again = size = rest = 0
        most = self._max_bytes()
        waiter.visits = waiter.visits or _visits(waiter)
        for queue_id, kinds in waiter.visits:
            wanted = waiter.max_count - count
            if wanted <= 0 or size >= most:
                break
            queue = self._state(group, topic.name, queue_id, waiter.init_mode)
            key = group, topic.name, queue_id
            found = _Found(waits=not count)
            if waiter.order:
                self._take_in_order(key, queue, waiter, wanted, most - size, now, found)
            else:
                if kinds & _AGAIN:
                    self._take_again(key, queue, waiter, wanted, most - size, now, found)
                if kinds & _NEW:
                    self._take_new(key, queue, waiter, wanted, most - size, now, found)
            self._commit(group, topic.name, queue_id, queue)
            if offsets := found.offsets:
                records += found.records
                count += len(offsets)
                again += found.again
                size += found.size
                places[queue_id] = places[queue_id] + offsets if queue_id in places else offsets
                if waiter.order:
                    before = [queue.flights[offset].times - 1 for offset in offsets]
                    deliveries += [f"0 qo{queue_id}%{offset} {times}" for offset, times in zip(offsets, before, strict=True) if times]
                    deliveries.append(f"0 {queue_id} {min(before)}")
                self._offsets.note_pulled(group, topic.name, queue_id, queue.next)
            if kinds & _NEW:
                rest += max(self._store.max_offset(topic.name, queue_id) - queue.next, 0)
        waiter.visits, waiter.loads = None, 0
        if not count:
            return None
        starts = ";".join([f"0 {queue_id} {min(offsets)}" for queue_id, offsets in places.items()])
        listed = ";".join([f"0 {queue_id} {','.join(map(str, offsets))}" for queue_id, offsets in places.items()])
        return Taken(records, count, again, len(places), size, now, starts, listed, ";".join(deliveries), rest)

    def _units_in_memory(self, key: _Key, waiter: PopWaiter, offset: int, units: int, max_count: int | None, found: _Found) -> int | None:
        """Return how many of the next ``units`` of a queue a read may examine without waiting for the disk; None when all of them.

        0 when it would have to wait and something was found. Raises NotInMemory when nothing was.
        """
        if waiter.loads >= MAX_LOADS:
            return None
        there = max(self._store.max_offset(key[1], key[2]) - offset, 1)
        cold = self._store.find_cold(key[1], key[2], offset, min(units, there), max_count if max_count is None else min(max_count, there))
        if cold is None:
            return None
        if not cold.waits:
            return cold.max_units
        if found.waits and not found.offsets:
            raise NotInMemory(cold)
        cold.release()
        return 0

    def _take_again(self, key: _Key, queue: PopQueue, waiter: PopWaiter, wanted: int, room: int, now: int, found: _Found) -> None:
        """Add messages that have become visible again to what was found, up to ``wanted`` of them and ``room`` bytes in all."""
        visible = now + waiter.invisible_ms
        while len(found.offsets) < wanted and found.size < room:
            offset = queue.take_due(now)
            if offset is None:
                break
            # Messages that were popped together become visible together.
            left = wanted - len(found.offsets)
            try:
                in_memory = self._units_in_memory(key, waiter, offset, left, left, found)
            except NotInMemory:
                queue.put_back(offset)
                raise
            if in_memory == 0:
                queue.put_back(offset)
                break
            record = self.message(key[1], key[2], offset)
            if record is None:  # it has expired
                queue.drop(offset)
                self._journal.append(["done", *key, [offset]])
                continue
            flight = queue.give_again(offset, now, visible)
            handle = f"{offset} {flight.popped_ms} {waiter.invisible_ms} 0 0 {self._broker_name} {key[2]} {offset}"
            try:
                again: memoryview | bytes = delivered_again(record, handle, flight.first_ms, flight.times)
            except LocalProtocolError:  # its properties have no room for more: the answer's own fields carry the rest
                flight.popped_ms, again = now, record
            self._journal.append(["again", *key, offset, flight.popped_ms, visible, flight.times])
            found.add(offset, again)
        found.again = len(found.offsets)

    def _take_new(self, key: _Key, queue: PopQueue, waiter: PopWaiter, wanted: int, room: int, now: int, found: _Found) -> None:
        """Add new messages to what was found, up to ``wanted`` of them and ``room`` bytes in all."""
        offsets = found.offsets
        known = len(offsets)
        condition, tag_codes = waiter.condition, waiter.tag_codes
        everything = condition is None and tag_codes is None and not waiter.topic.batch_queues
        for _ in range(MAX_READS):
            left = wanted - len(offsets)
            if left <= 0 or found.size >= room or queue.full:
                break
            start = queue.next
            count = left if condition is None else max(wanted, messages_at_once(condition) // MAX_READS)
            units = count if tag_codes is None else max(count, self._store.max_filter_units)
            max_units = self._units_in_memory(key, waiter, start, units, count if tag_codes is None else None, found)
            if max_units == 0:
                break
            max_bytes = max(room - found.size, 1)
            result = self._store.read(key[1], key[2], start, max_count=count, max_bytes=max_bytes, tag_codes=tag_codes, max_units=max_units)
            if result.status is not _FOUND:
                if result.next_offset == start:
                    break
                queue.next = result.next_offset  # only other tags, or expired messages
                waiter.loads = 0  # it got on
                continue
            queue.next = result.next_offset
            if everything and result.count == result.next_offset - start:
                offsets.extend(range(start, result.next_offset))
                found.records += result.buffers
                found.size += sum(map(len, result.buffers))
                continue
            messages = self._batches.messages_in(result.buffers, start, tag_codes)
            if condition is not None:
                messages = (message for message in messages if passes(condition, message[1]))
            for offset, record in islice(messages, left):
                found.add(offset, record)
            if (following := next(messages, None)) is not None:
                queue.next = following[0]  # in the middle of a batch
        new = offsets[known:]
        if new:
            visible = now + waiter.invisible_ms
            queue.give(new, now, visible)
            self._journal.append(["given", *key, queue.next, now, visible, new, queue.attempt_id])

    def _take_in_order(self, key: _Key, queue: PopQueue, waiter: PopWaiter, wanted: int, room: int, now: int, found: _Found) -> None:
        """Take the messages from the first that is not acknowledged on again, then new ones; none while one is invisible to others."""
        repeated = bool(waiter.attempt_id) and waiter.attempt_id == queue.attempt_id
        if not repeated and queue.blocks(now):
            return
        again = sorted(queue.flights)[:wanted]
        if again and self._units_in_memory(key, waiter, again[0], wanted, wanted, found) == 0:
            return
        queue.attempt_id = waiter.attempt_id
        visible = now + waiter.invisible_ms
        for offset in again:
            if found.offsets and (found.size >= room or self._units_in_memory(key, waiter, offset, 1, 1, found) == 0):
                break
            record = self.message(key[1], key[2], offset)
            if record is None:
                queue.drop(offset)
                self._journal.append(["done", *key, [offset]])
                continue
            flight = queue.give_again(offset, now, visible)
            flight.popped_ms = now  # one time for all messages of the answer
            flight.times -= repeated
            self._journal.append(["again", *key, offset, now, visible, flight.times])
            found.add(offset, record)
        found.again = 0 if repeated else len(found.offsets)
        if not found.offsets or (not repeated and len(found.offsets) == len(queue.flights)):
            self._take_new(key, queue, waiter, wanted, room, now, found)

    def message(self, topic: str, queue_id: int, offset: int) -> memoryview | bytes | None:
        """Return the record of the message at a queue offset; None when it is not there any more."""
        result = self._store.read(topic, queue_id, offset, max_count=1)
        if result.status is not _FOUND:
            return None
        at, record = next(self._batches.messages_in(result.buffers, offset, None), (-1, b""))
        return record if at == offset else None

    def has_messages(self, waiter: PopWaiter) -> bool:
        """Whether a pop would find a message, regardless of tags."""
        now = self._clock.time_ms()
        group, topic = waiter.group.group_name, waiter.topic.name
        for queue_id in range(waiter.topic.read_queues) if waiter.queue_id < 0 else (waiter.queue_id,):
            queue = self.find(group, topic, queue_id)
            committed = self._offsets.get(group, topic, queue_id)
            if queue is None or committed != queue.committed:
                # A peek does not start the group: its first pop decides where it starts.
                queue = PopQueue(self._first_offset(topic, queue_id, waiter.init_mode) if committed is None else committed)
            due = queue.next_due_ms
            if waiter.order and queue.blocks(now):
                continue
            if (due is not None and due <= now) or self._store.max_offset(topic, queue_id) > queue.next:
                return True
        return False

    # --- receipts ---

    def acknowledge(self, group: str, topic: str, queue_id: int, offsets: list[int], popped_ms: int, *, orderly: bool) -> int:
        """Record that messages of one pop are done; return how many receipts were valid."""
        queue = self.find(group, topic, queue_id)
        if queue is None:
            return 0
        done = queue.acknowledge_in_order(offsets, popped_ms) if orderly else queue.acknowledge(offsets, popped_ms)
        if done:
            self._journal.append(["done in order" if orderly else "done", group, topic, queue_id, done])
            self._commit(group, topic, queue_id, queue)
        return len(done)

    def change(
        self, group: str, topic: str, queue_id: int, offset: int, popped_ms: int, invisible_ms: int, *, orderly: bool, counts: bool
    ) -> int | None:
        """Make a message visible again after ``invisible_ms``; return the time of its new receipt, None for an outdated receipt.

        Without ``counts`` this delivery is not counted.
        """
        queue = self.find(group, topic, queue_id)
        now = self._clock.time_ms()
        flight = None if queue is None else queue.change(offset, popped_ms, now, now + invisible_ms, orderly=orderly)
        if flight is None:
            return None
        flight.times -= not counts
        self._journal.append(["again", group, topic, queue_id, offset, flight.popped_ms, flight.visible_ms, flight.times])
        return flight.popped_ms


def _visits(waiter: PopWaiter) -> list[tuple[int, int]]:
    """Return the queues in the order they are read, each with the kinds of messages that are taken from it.

    They are read from a random one on. Those of a topic of priorities are read from the highest down, as often as the group's
    ``priority.factor`` says, and what is given again comes after everything that is new.
    """
    if waiter.queue_id >= 0:
        return [(waiter.queue_id, _BOTH)]
    count = waiter.topic.read_queues
    if (
        waiter.topic.config.attributes.get(MESSAGE_TYPE) == "PRIORITY"
        and not waiter.order
        and random.randrange(100) < int(waiter.group.attributes.get(PRIORITY_FACTOR, 100))
    ):
        return [(queue_id, kind) for kind in (_NEW, _AGAIN) for queue_id in range(count - 1, -1, -1)]
    first = random.randrange(count) if count else 0
    return [(queue_id, _BOTH) for queue_id in (*range(first, count), *range(first))]
