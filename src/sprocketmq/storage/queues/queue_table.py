"""All queues of a store: creating and removing them, deriving their units from the log, and syncing them to disk.

Plain queues (``consumequeue/``) have one unit per message, batch queues (``batchconsumequeue/``) one per record. All of it is derived from
the commit log; the files only save reading the log again.
"""

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from msgspec.structs import replace as replace_fields

from sprocketmq.errors import FatalError, InvalidMessage
from sprocketmq.protocol.codes import SYSFLAG_INNER_BATCH, SYSFLAG_TRANSACTION_COMMITTED, SYSFLAG_TRANSACTION_MASK
from sprocketmq.protocol.layout import BATCH_UNIT, BATCH_UNIT_BYTES, FILLER_SIZE, INT64, QUEUE_UNIT, QUEUE_UNIT_BYTES
from sprocketmq.protocol.names import MAX_INTERNAL_TOPIC_LENGTH, SCHEDULE_TOPIC, name_problem
from sprocketmq.storage.chunks import QueueChunk
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.fs import NO_ROOM, FileSystem
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.log.recovery import DELAY_LEVELS_MS, Scanned
from sprocketmq.storage.log.segments import FilePool
from sprocketmq.storage.queues.batch_queue import COMPACTED, BatchConsumeQueue
from sprocketmq.storage.queues.consume_queue import ConsumeQueue
from sprocketmq.storage.queues.expired_units import first_kept
from sprocketmq.storage.queues.queue_directories import BATCH_ROOT, PLAIN_ROOT, QueueOnDisk, file_sizes, find_batch_topics, list_queues
from sprocketmq.storage.snapshot import QueueState, Snapshot

# Prepared and rolled back halves of transactions and inner batches have no unit in a plain queue.
_NO_UNIT = SYSFLAG_INNER_BATCH | SYSFLAG_TRANSACTION_MASK
_SCHEDULE = SCHEDULE_TOPIC.encode()
# A record whose queue offset is further than this beyond the known end is taken for damaged.
_MAX_QUEUE_GAP = 1 << 20
_MAX_QUEUE_OFFSET = 1 << 56
# With more changed queues than this, syncing the whole system once is faster than each file: thousands would take most of a minute.
MAX_SYNCS = 256

Queue = ConsumeQueue | BatchConsumeQueue


def first_unit(queue: Queue) -> int:
    """Return the number of the first unit that can be read."""
    return queue.min_unit if isinstance(queue, BatchConsumeQueue) else queue.min_offset


class _Held(NamedTuple):
    """A record with an unexpected queue offset; the next record of the queue decides which of the two is right."""

    expected: int
    offset: int
    next_offset: int
    unit: bytes


class QueueTable:
    """All queues of one store, by topic and queue id.

    ``deleted`` maps deleted topics to the log offset from which on their records belong to queues again. ``batch_topics`` are the topics
    whose queues are batch queues. One thread changes the table; ``sync`` may run in one other thread at the same time.
    """

    def __init__(self, fs: FileSystem, log: CommitLog, config: StoreConfig) -> None:
        self._fs = fs
        self._root = str(config.root)
        self._log = log
        self.file_bytes = {PLAIN_ROOT: config.consumequeue_segment_bytes, BATCH_ROOT: config.batchqueue_segment_bytes}
        self.pool = FilePool(fs)
        self.queues: dict[tuple[str, int], Queue] = {}
        self.deleted: dict[str, int] = {}
        self.batch_topics: frozenset[str] = frozenset()
        self.on_disk: list[QueueOnDisk] = []
        self._held: dict[tuple[str, int], _Held] = {}
        self._deletions_noted = False
        self.corrected_to = 0  # where the log began when all min offsets were last corrected
        self._levels_ms = config.delay_levels_ms

    # --- creating and removing ---

    def create(self, topic: str, queue_id: int) -> Queue:
        """Create a queue for its first message; its files are created with the first units.

        Raises InvalidMessage for a topic or queue id that cannot be a directory name.
        """
        if problem := name_problem(topic, MAX_INTERNAL_TOPIC_LENGTH):
            raise InvalidMessage(f"topic {topic!r} is not valid: {problem}")
        if not 0 <= queue_id <= 0x7FFFFFFF:
            raise InvalidMessage(f"queue id {queue_id} is not between 0 and 2^31 - 1")
        queue = self._new(topic, queue_id)
        self.queues[topic, queue_id] = queue
        return queue

    def _new(self, topic: str, queue_id: int) -> Queue:
        if topic in self.batch_topics:
            return self._new_batch(topic, queue_id)
        return ConsumeQueue(self._fs, self.pool, self._directory(PLAIN_ROOT, topic, queue_id), topic, queue_id, self.file_bytes[PLAIN_ROOT])

    def _new_batch(self, topic: str, queue_id: int) -> BatchConsumeQueue:
        directory = self._directory(BATCH_ROOT, topic, queue_id)
        return BatchConsumeQueue(self._fs, self.pool, directory, topic, queue_id, self.file_bytes[BATCH_ROOT])

    def _directory(self, kind: str, topic: str, queue_id: int) -> str:
        return f"{self._root}/{kind}/{topic}/{queue_id}"

    def declare_batch_topic(self, topic: str) -> None:
        """Make the queues of ``topic`` batch queues from now on; its directory records that for a later start.

        Raises FatalError when it has plain queues already, InvalidMessage for a name that cannot be a directory's.
        """
        if topic in self.batch_topics:
            return
        if problem := name_problem(topic, MAX_INTERNAL_TOPIC_LENGTH):
            raise InvalidMessage(f"topic {topic!r} is not valid: {problem}")
        if any(name == topic for name, _ in self.queues):
            raise FatalError(f"topic {topic} has messages in plain queues; delete the topic before making it one with batch queues")
        self.batch_topics |= {topic}
        with contextlib.suppress(OSError):  # the topic's configuration says the same
            self._fs.make_dirs(f"{self._root}/{BATCH_ROOT}/{topic}")
            self._fs.fsync_dir(f"{self._root}/{BATCH_ROOT}")

    def remove(self, topic: str) -> None:
        """Drop the queues of a deleted topic and remove their files. Raises OSError; files left behind then do no harm."""
        for key in [key for key in self.queues if key[0] == topic]:
            del self.queues[key]
        self.batch_topics -= {topic}
        for kind in (PLAIN_ROOT, BATCH_ROOT):
            directory = f"{self._root}/{kind}/{topic}"
            self.pool.forget(directory + "/")
            if self._fs.exists(directory):
                self._fs.remove_tree(directory)
                self._fs.fsync_dir(f"{self._root}/{kind}")  # the deletion is recorded until its records have left the log

    # --- opening ---

    def load(self, *, clean: bool) -> bool:
        """List the queues on disk without reading much of them, and return whether there are any.

        After a stop that was not ``clean``, the only file of a queue may be shorter than its full length.
        """
        self.on_disk = list_queues(self._fs, self._root)
        self.batch_topics = find_batch_topics(self._fs, self._root, self.on_disk)
        self.file_bytes = file_sizes(self._fs, self._root, self.on_disk, self.file_bytes, trusted=clean)
        return bool(self.on_disk)

    def restore(self, snapshot: Snapshot) -> str:
        """Restore the queues from a snapshot; return why that is not possible, or an empty string."""
        if snapshot.version == 1 and self.batch_topics:
            return "the queue snapshot does not know batch queues"
        self.take_deletions(snapshot)
        for state in snapshot.queues:
            name = f"{state.topic}/{state.queue_id}"
            if (state.units is not None) != (state.topic in self.batch_topics):
                return f"the queues of {name} are of the other kind"
            queue = self._new(state.topic, state.queue_id)
            if isinstance(queue, BatchConsumeQueue):
                queue.start_at(state.next, state.units or (0, 0), min_offset=state.min_offset)
            else:
                queue.start_at(state.next, min_offset=state.min_offset)
            queue.state = state
            if name_problem(state.topic, MAX_INTERNAL_TOPIC_LENGTH) or not queue.intact(state.last):
                return f"the queue files of {name} are missing or damaged"
            if state.last[1] and state.last[0] >= snapshot.log_offset:
                # The flush included units of records committed meanwhile; the log shows whether those records reached the disk.
                queue.go_back(self._first_offset_behind(queue, snapshot.log_offset))
            self.queues[state.topic, state.queue_id] = queue
        return ""

    def take_deletions(self, snapshot: Snapshot) -> None:
        """Restore the deleted topics and the log offsets of their deletion from a snapshot."""
        self.deleted = dict(snapshot.deleted)
        self._deletions_noted = True

    @staticmethod
    def _first_offset_behind(queue: Queue, log_offset: int) -> int:
        """Return the queue offset after the last unit whose record begins before ``log_offset``; there must be a later unit."""
        if isinstance(queue, BatchConsumeQueue):
            number = queue.first_in_log(log_offset)
            if number == queue.min_unit:
                return queue.unit(number)[4]
            base, count = queue.unit(number - 1)[4:6]  # offsets after it may have been skipped
            return base + count
        low, stop = queue.min_offset, queue.next
        while True:
            stop = low + bisect_left(range(low, stop), log_offset, key=lambda q: queue.unit(q)[0])
            # Filler units, which have the log offset 0, may have misled the search.
            while stop > low and queue.unit(stop - 1)[1] == FILLER_SIZE:
                stop -= 1
            if stop == low or queue.unit(stop - 1)[0] < log_offset:
                return stop

    def take_records(self, records: list[Scanned]) -> None:
        """Add the queue units of records, which come in log order."""
        queues: dict[tuple[bytes, int], Queue] = {}
        pack, pack_batch = QUEUE_UNIT.pack, BATCH_UNIT.pack
        if self._levels_ms != DELAY_LEVELS_MS:
            records = [self._with_unit_code(record) if record.topic == _SCHEDULE else record for record in records]
        for record in records:
            topic, queue_id, offset = record.topic, record.queue_id, record.queue_offset
            log_offset, size, code = record.log_offset, record.size, record.tags_code
            sys_flag = record.sys_flag
            if sys_flag & _NO_UNIT and not self._has_unit(topic, sys_flag):
                continue
            queue = queues.get((topic, queue_id))
            if queue is not None and offset == queue.next:
                tail = queue.tail[1]
                if queue.unit_bytes == QUEUE_UNIT_BYTES:
                    tail += pack(log_offset, size, code)
                    queue.next = offset + 1
                else:
                    count = record.count
                    tail += pack_batch(log_offset, size, code, record.store_time_ms, offset, count, COMPACTED, 0)
                    queue.next = offset + count
                continue
            name = topic.decode("utf-8", "replace")
            if name in self.batch_topics:
                unit = pack_batch(log_offset, size, code, record.store_time_ms, offset, record.count, COMPACTED, 0)
                end = offset + record.count
            else:
                unit, end = pack(log_offset, size, code), offset + 1
            queue = self._queue_for(name, queue_id, log_offset, offset, end, unit)
            if queue is not None:
                queues[topic, queue_id] = queue
            elif (topic, queue_id) in queues:  # the next record decides about this one, even if it has the expected offset
                self._made_visible(queues.pop((topic, queue_id)))
        for queue in queues.values():
            self._made_visible(queue)

    def _has_unit(self, topic: bytes, sys_flag: int) -> bool:
        """Return whether a special record has a queue unit: inner batches have one in batch queues, committed transactions always."""
        if sys_flag & SYSFLAG_INNER_BATCH and topic.decode("utf-8", "replace") not in self.batch_topics:
            return False
        return sys_flag & SYSFLAG_TRANSACTION_MASK in (0, SYSFLAG_TRANSACTION_COMMITTED)

    def _with_unit_code(self, record: Scanned) -> Scanned:
        return replace_fields(record, tags_code=self.unit_code(record.topic, record.queue_id, record.tags_code))

    def unit_code(self, topic: bytes, queue_id: int, code: int) -> int:
        """Return the tag code for a record's unit, which differs from the log's ``code`` only with non-default delay levels."""
        ours, usual = self._levels_ms, DELAY_LEVELS_MS
        if ours == usual or topic != _SCHEDULE or code <= 0x7FFFFFFF:
            return code
        return code + ours[min(queue_id, len(ours) - 1)] - usual[min(queue_id, len(usual) - 1)]

    def has_unit(self, record: Scanned) -> bool:
        """Return whether a record from the log has a unit in a queue of its topic."""
        return not record.sys_flag & _NO_UNIT or self._has_unit(record.topic, record.sys_flag)

    def take_chunk(self, chunk: QueueChunk, since: int = 0, *, live: bool = False) -> Queue | None:
        """Add the units of consecutive records of one queue and return it, or None when none were added.

        The result is the same as that of ``take_records``. The chunk may begin before a deletion of its topic, or at offsets that the
        queue has already assigned. Records before log offset ``since`` are left out. ``live``: a master has just written the records, so
        one at offset 0 or after a gap needs no other to confirm it.
        """
        topic = chunk.topic.decode("utf-8", "replace")
        unit_bytes = BATCH_UNIT_BYTES if topic in self.batch_topics else QUEUE_UNIT_BYTES
        units = memoryview(chunk.units)
        count = len(units) // unit_bytes
        since = max(since, self.deleted.get(topic, 0))
        first, offset = 0, chunk.first_offset
        if chunk.first_log_offset < since:
            first = bisect_left(range(count), since, key=lambda i: INT64.unpack_from(units, i * unit_bytes)[0])
            if first == count:
                return None
            offset = offset + first if unit_bytes == QUEUE_UNIT_BYTES else INT64.unpack_from(units, first * unit_bytes + 28)[0]
        if chunk.next_offset > _MAX_QUEUE_OFFSET:
            return None
        rest = bytes(units[first * unit_bytes :])
        if chunk.topic == _SCHEDULE and self._levels_ms != DELAY_LEVELS_MS:
            rest = b"".join(
                QUEUE_UNIT.pack(log_offset, size, self.unit_code(_SCHEDULE, chunk.queue_id, code))
                for log_offset, size, code in QUEUE_UNIT.iter_unpack(rest)
            )
        known = self.queues.get((topic, chunk.queue_id))
        sure = count - first > 1 or (live and known is not None and (offset == 0 or offset >= known.next))
        queue = self._queue_for(topic, chunk.queue_id, max(chunk.first_log_offset, since), offset, chunk.next_offset, rest, sure=sure)
        if queue is not None:
            self._made_visible(queue)
        return queue

    @staticmethod
    def _made_visible(queue: Queue) -> None:
        queue.commit()
        queue.visible = queue.committed

    def _queue_for(
        self, topic: str, queue_id: int, log_offset: int, offset: int, next_offset: int, units: bytes, *, sure: bool = False
    ) -> Queue | None:
        """Add the units of ``[offset, next_offset)`` to their queue and return it, or None when they were not added.

        A record whose offset is not the next one is either damaged (no CRC covers the offset), or the first one after damage, or of a
        topic that was deleted and created again. It is held until the next record of the queue confirms it or not. ``sure``: confirmed.
        """
        if log_offset < self.deleted.get(topic, 0) or next_offset > _MAX_QUEUE_OFFSET:
            return None
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            if name_problem(topic, MAX_INTERNAL_TOPIC_LENGTH):
                return None
            queue = self.create(topic, queue_id)
            queue.begin_at(offset)
        elif offset != queue.next or (topic, queue_id) in self._held:
            held = self._held.pop((topic, queue_id), None)
            if held is not None and held.expected == queue.next and self._follows(held, offset):
                self._move(queue, held.offset)
                self._append(queue, held.unit, held.next_offset)
                self._made_visible(queue)
            if offset - queue.next > _MAX_QUEUE_GAP:
                return None
            if offset != queue.next and not sure:
                self._held[topic, queue_id] = _Held(queue.next, offset, next_offset, units)
                return None
            self._move(queue, offset)
        self._append(queue, units, next_offset)
        return queue

    @staticmethod
    def _follows(held: _Held, offset: int) -> bool:
        """Return whether a record with ``offset`` confirms the held one before it: it is the next one, or both lie after gaps."""
        if held.offset - held.expected > _MAX_QUEUE_GAP:
            return False
        return held.next_offset == offset or held.expected < held.offset < held.next_offset < offset

    @staticmethod
    def _append(queue: Queue, units: bytes, next_offset: int) -> None:
        tail = queue.tail[1]
        tail += units
        queue.next = next_offset

    @staticmethod
    def _move(queue: Queue, offset: int) -> None:
        queue.commit()
        if offset < queue.next:
            queue.go_back(offset)
        elif offset > queue.next:
            queue.skip_to(offset)

    def take_held(self) -> None:
        """Decide about held records at the end of the log, where no record follows: those after a gap are accepted.

        So is one with queue offset 0, as its topic may have been deleted and created again, unless the snapshot lists deletions.
        """
        for key, held in self._held.items():
            queue = self.queues.get(key)
            begins = held.offset == 0 and not self._deletions_noted
            if queue is not None and queue.next == held.expected and (begins or 0 < held.offset - queue.next <= _MAX_QUEUE_GAP):
                self._move(queue, held.offset)
                self._append(queue, held.unit, held.next_offset)
                self._made_visible(queue)
        self._held.clear()

    def cut_back(self, log_offset: int) -> list[Queue]:
        """Drop the units of records at ``log_offset`` and after it; return the queues that had some. Their files are not changed yet.

        A queue that has no unit left and begins at queue offset 0 is no longer in the table.
        """
        self._held.clear()
        changed = []
        for key, queue in list(self.queues.items()):
            end = queue.end_unit
            if first_unit(queue) == end or queue.unit(end - 1)[0] < log_offset:
                continue
            visible = queue.visible
            queue.go_back(self._first_offset_behind(queue, log_offset))
            queue.visible = min(visible, queue.committed)
            if not queue.next:
                del self.queues[key]
            changed.append(queue)
        return changed

    def settle_cut(self, changed: list[Queue]) -> None:
        """Bring the files of queues that ``cut_back`` changed to the disk: nothing follows their last unit. Raises OSError."""
        for queue in changed:
            if self.queues.get((queue.topic, queue.queue_id)) is queue:
                queue.write_out()
                queue.cut()
                continue
            directory = self._directory(self._kind(queue), queue.topic, queue.queue_id)
            self.pool.forget(directory + "/")
            self._fs.remove_tree(directory)

    def last_record_before(self, log_offset: int) -> int:
        """Return the log offset of the last record with a unit that begins at or before ``log_offset``, -1 when there is none."""
        best = -1
        for queue in self.queues.values():
            low, end = first_unit(queue), queue.end_unit
            if low < end and (found := queue.unit(end - 1)[0]) > log_offset:
                number = low + bisect_right(range(low, end), log_offset, key=lambda n, q=queue: q.unit(n)[0])  # type: ignore[misc]
                found = queue.unit(number - 1)[0] if number > low else -1
            elif low == end:
                continue
            best = max(best, found)
        return best

    def forget_leftovers(self) -> None:
        """Remove what an interrupted deletion left of topics without messages since. Raises OSError."""
        used = {topic for topic, _ in self.queues}
        for topic in [topic for topic in self.deleted if topic in self.batch_topics and topic not in used]:
            self.remove(topic)

    def settle(self) -> None:
        """Write out the units derived from the log and remove everything else from the queue files. Raises OSError."""
        self.take_held()
        for kind, topic, queue_id in self.on_disk:
            queue = self.queues.get((topic, queue_id))
            if queue is not None and kind == self._kind(queue):
                continue
            directory = self._directory(kind, topic, queue_id)
            # If a topic was deleted after the log's beginning, the log has all its later records, and they created no such queue.
            deleted = self.deleted.get(topic, 0) > self._log.min_offset
            if deleted or (kind == BATCH_ROOT) != (topic in self.batch_topics) or not self.keep_expired(topic, queue_id):
                self.pool.forget(directory + "/")
                self._fs.remove_tree(directory)
        for queue in self.queues.values():
            try:
                queue.write_out()
            except OSError as e:
                if e.errno not in NO_ROOM:
                    raise  # otherwise the units stay in memory: a store opens on a full disk
            queue.cut()

    @staticmethod
    def _kind(queue: Queue) -> str:
        return BATCH_ROOT if isinstance(queue, BatchConsumeQueue) else PLAIN_ROOT

    def keep_expired(self, topic: str, queue_id: int) -> bool:
        """Add a queue whose messages have all left the log, so that their offsets are not assigned again. False when it has none."""
        queue = self._new(topic, queue_id)
        if isinstance(queue, BatchConsumeQueue):
            end, number = queue.end_of_expired(self._log.min_offset)
            queue.start_at(end, (number, number))
        else:
            end = queue.end_of_expired(self._log.min_offset)
            queue.start_at(end)
        if end:
            self.queues[topic, queue_id] = queue
        return end > 0

    def correct_min_offsets(self) -> None:
        """Move the min offsets past units whose record has left the log."""
        for _ in self.correct_in_steps(len(self.queues) + 1):
            pass

    def correct_in_steps(self, count: int) -> Iterator[list[Queue]]:
        """Correct the min offsets of ``count`` queues at a time and yield these queues.

        Between the steps call ``correct`` for any other queue before its units are read.
        """
        log_min = self._log.min_offset
        queues = list(self.queues.values())
        for first in range(0, len(queues), count):
            group = queues[first : first + count]
            for queue in group:
                self._correct_min_offset(queue, log_min)
            yield group
        self.corrected_to = log_min

    def correct(self, queue: Queue) -> None:
        """Move the min offset of one queue past units whose record has left the log."""
        self._correct_min_offset(queue, self._log.min_offset)

    def past_expired(self, state: QueueState) -> QueueState:
        """Return a snapshot's state of a queue without the units of records that have left the log since."""
        queue = self.queues.get((state.topic, state.queue_id))
        if queue is None or queue.min_offset <= state.min_offset:
            return state
        units = state.units
        if units is not None and isinstance(queue, BatchConsumeQueue):
            units = (min(queue.min_unit, units[1]), units[1])
        return replace(state, min_offset=min(queue.min_offset, state.next), units=units)

    def drop_expired(self) -> list[str]:
        """Remove the queue files that hold only units of records that have left the log, and return their paths. Raises OSError."""
        paths = []
        for queue in self.queues.values():
            paths += queue.drop_files(first_unit(queue))
        return paths

    def _correct_min_offset(self, queue: Queue, log_min: int) -> None:
        low, high = queue.min_offset, queue.committed
        if low == high or not log_min:
            return
        first, end = first_unit(queue), queue.end_unit
        kept = first_kept(first, end, lambda number: queue.unit(number)[:2], log_min, self._log.committed_end)
        if not isinstance(queue, BatchConsumeQueue):
            queue.min_offset = kept
        elif kept == end:
            queue.min_unit, queue.min_offset = end, high
        elif kept > first:
            base, count = queue.unit(kept - 1)[4:6]
            log_offset, _, _, _, next_base, *_ = queue.unit(kept)
            sound = log_min <= log_offset < self._log.committed_end and next_base > base
            queue.min_unit, queue.min_offset = kept, next_base if sound else base + count

    # --- the flushing thread ---

    def sync(self) -> tuple[QueueState, ...]:
        """Sync all queues to disk and return their states. Raises OSError."""
        queues = list(self.queues.values())
        wait = sum(queue.dirty for queue in queues) <= MAX_SYNCS
        states = tuple(queue.sync(wait=wait) for queue in queues)
        if not wait:
            # This reports no errors. Queues are derived files, and a lost unit is detected when it is read.
            self._fs.sync_all()
        return states
