"""The queues of a store: which there are, which records of the log belong to them, and how they get to the disk.

Plain queues (``consumequeue/``) have one unit a message, batch queues (``batchconsumequeue/``) one a record. All of it follows from the
commit log; what is on the disk only saves reading that again.
"""

from bisect import bisect_left
from struct import Struct

from sprocketmq.errors import FatalError, InvalidMessage
from sprocketmq.protocol.codes import SYSFLAG_INNER_BATCH, SYSFLAG_TRANSACTION_MASK
from sprocketmq.protocol.names import MAX_INTERNAL_TOPIC_LENGTH, name_problem
from sprocketmq.storage.commitlog import CommitLog
from sprocketmq.storage.config import ConfigFile
from sprocketmq.storage.consumequeue import TAIL_LIMIT_BYTES, UNIT, ConsumeQueue
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.recovery import Scanned
from sprocketmq.storage.runs import QueueRun
from sprocketmq.storage.segments import FilePool, segment_entries, segment_size_of
from sprocketmq.storage.snapshot import QueueState

# Prepared and rolled back halves of transactions and inner batches have no unit in a plain queue.
_NO_UNIT = SYSFLAG_INNER_BATCH | SYSFLAG_TRANSACTION_MASK
_COMMITTED = 8
# A record that claims a later queue offset than this beyond the known end is not believed.
_MAX_QUEUE_GAP = 1 << 20
_MAX_QUEUE_OFFSET = 1 << 56
# With more changed queues than this, syncing the whole system once is faster than each file: thousands would take most of a minute.
MAX_SYNCS = 256

_LONG = Struct(">q")


class QueueTable:
    """All queues of one store, by topic and queue id.

    ``deleted`` says for deleted topics from which log position on their records have queues again. ``batch_topics`` are the topics whose
    queues are batch queues. One thread changes the table; ``sync`` may run in one other thread at the same time.
    """

    def __init__(self, fs: FileSystem, root: str, log: CommitLog, file_bytes: int) -> None:
        self._fs = fs
        self._root = root
        self._queue_root = f"{root}/consumequeue"
        self._log = log
        self._file_bytes = file_bytes
        self.pool = FilePool(fs)
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.deleted: dict[str, int] = {}
        self.batch_topics: frozenset[str] = frozenset()
        self._on_disk: dict[tuple[str, int], str] = {}

    # --- what is there ---

    def create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Make the queue for the first message of its kind; its files come with the first units.

        Raises InvalidMessage for a topic or queue id that cannot be a directory name.
        """
        if problem := name_problem(topic, MAX_INTERNAL_TOPIC_LENGTH):
            raise InvalidMessage(f"topic {topic!r} is not valid: {problem}")
        if not 0 <= queue_id <= 0x7FFFFFFF:
            raise InvalidMessage(f"queue id {queue_id} is not between 0 and 2^31 - 1")
        if topic in self.batch_topics:
            raise FatalError(f"topic {topic} keeps its messages in batch queues, which this store can only leave as they are")
        queue = self._new(topic, queue_id)
        self.queues[topic, queue_id] = queue
        return queue

    def _new(self, topic: str, queue_id: int) -> ConsumeQueue:
        return ConsumeQueue(self._fs, self.pool, f"{self._queue_root}/{topic}/{queue_id}", topic, queue_id, self._file_bytes)

    def declare_batch_topic(self, topic: str) -> None:
        """Let the queues of ``topic`` be batch queues from now on. Raises FatalError when it has plain queues already."""
        if topic in self.batch_topics:
            return
        if any(name == topic for name, _ in self.queues):
            raise FatalError(f"topic {topic} has messages in plain queues; delete the topic before making it one with batch queues")
        self.batch_topics |= {topic}

    def remove(self, topic: str) -> None:
        """Forget the queues of a deleted topic and remove their files. Raises OSError; leftovers do no harm then."""
        for key in [key for key in self.queues if key[0] == topic]:
            del self.queues[key]
        directory = f"{self._queue_root}/{topic}"
        self.pool.forget(directory + "/")
        self._fs.remove_tree(directory)

    # --- opening ---

    def load(self) -> bool:
        """Look what is on the disk, without reading any of it, and tell whether there are queues."""
        self.batch_topics = self._find_batch_topics()
        self._on_disk = self._directories()
        self._adopt_file_size()
        return bool(self._on_disk)

    def restore(self, states: tuple[QueueState, ...], deleted: dict[str, int]) -> str:
        """Take the queues as a snapshot has them; return why that is not possible, or an empty text."""
        self.deleted = dict(deleted)
        for state in states:
            queue = self._new(state.topic, state.queue_id)
            queue.start_at(state.next, min_offset=state.min_offset)
            queue.state = state
            if name_problem(state.topic, MAX_INTERNAL_TOPIC_LENGTH) or not queue.intact(state.last):
                return f"the queue files of {state.topic}/{state.queue_id} are missing or damaged"
            self.queues[state.topic, state.queue_id] = queue
        return ""

    def take_records(self, records: list[Scanned]) -> None:
        """Give records from the log, in its order, their queue units."""
        queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        pack = UNIT.pack
        for topic, queue_id, offset, physical, size, code, sys_flag, _, _, _ in records:
            if sys_flag & _NO_UNIT and (sys_flag & SYSFLAG_INNER_BATCH or sys_flag & SYSFLAG_TRANSACTION_MASK != _COMMITTED):
                continue
            queue = queues.get((topic, queue_id))
            if queue is None or offset != queue.next:
                queue = self._queue_for(topic, queue_id, offset, physical)
                if queue is None:
                    continue
                queues[topic, queue_id] = queue
            tail = queue.tail[1]
            tail += pack(physical, size, code)
            queue.next = offset + 1
        for queue in queues.values():
            self._made_visible(queue)

    def take_run(self, run: QueueRun) -> None:
        """Give consecutive records of one queue their units, which the run brings; the outcome is that of ``take_records``.

        The run may begin before a deletion of its topic, or at offsets the queue has given out before.
        """
        units = memoryview(run.units)
        offset = run.first_offset
        count = run.next_offset - offset
        deleted = self.deleted.get(run.topic.decode("utf-8", "replace"), 0)
        skipped = 0
        if run.first_physical < deleted:
            skipped = bisect_left(range(count), deleted, key=lambda i: _LONG.unpack_from(units, i * UNIT.size)[0])
        stop = min(count, _MAX_QUEUE_OFFSET + 1 - offset)
        if skipped >= stop:
            return
        offset += skipped
        queue = self._queue_for(run.topic, run.queue_id, offset, max(run.first_physical, deleted))
        if queue is None:
            return
        tail = queue.tail[1]
        tail += units[skipped * UNIT.size : stop * UNIT.size]
        queue.next = run.first_offset + stop
        self._made_visible(queue)

    @staticmethod
    def _made_visible(queue: ConsumeQueue) -> None:
        queue.committed = queue.next
        if len(queue.tail[1]) >= TAIL_LIMIT_BYTES:
            queue.write_out()

    def _queue_for(self, name: bytes, queue_id: int, offset: int, physical: int) -> ConsumeQueue | None:
        """Return the queue a record from the log belongs to, ready to take the unit of ``offset``; None for a record without a queue."""
        topic = name.decode("utf-8", "replace")
        queue = self.queues.get((topic, queue_id))
        if physical < self.deleted.get(topic, 0) or offset > _MAX_QUEUE_OFFSET:
            return None
        if queue is None:
            if topic in self.batch_topics or name_problem(topic, MAX_INTERNAL_TOPIC_LENGTH):
                return None
            queue = self.create(topic, queue_id)
            queue.begin_at(offset)
        elif offset < queue.next:
            # Offsets given out twice: the topic was deleted in between, or a flush took units along that the snapshot does not cover.
            queue.go_back(offset)
        elif offset - queue.next > _MAX_QUEUE_GAP:
            return None
        else:
            queue.skip_to(offset)
        return queue

    def settle(self) -> None:
        """Write out what the log gave, and drop everything else from the queue files. Raises OSError."""
        for (topic, queue_id), directory in self._on_disk.items():
            if (topic, queue_id) in self.queues or topic in self.batch_topics:
                continue
            queue = self._new(topic, queue_id)
            end = queue.end_of_expired(self._log.min_offset)
            if end:
                # All its messages have left the log, but their offsets must not be given out again.
                queue.start_at(end)
                self.queues[topic, queue_id] = queue
            else:
                self.pool.forget(directory + "/")
                self._fs.remove_tree(directory)
        for queue in self.queues.values():
            queue.write_out()
            queue.cut()

    def correct_min_offsets(self) -> None:
        """Move the min offsets past units whose record has left the log."""
        for queue in self.queues.values():
            self._correct_min_offset(queue, self._log.min_offset)

    @staticmethod
    def _correct_min_offset(queue: ConsumeQueue, log_min: int) -> None:
        low, high = queue.min_offset, queue.committed
        if low < high and log_min and queue.unit(low)[0] < log_min:
            queue.min_offset = low + bisect_left(range(low, high), log_min, key=lambda q: queue.unit(q)[0])

    def _directories(self) -> dict[tuple[str, int], str]:
        """Return the directories under ``consumequeue`` that look like queues."""
        found = {}
        for topic in self._fs.list(self._queue_root):
            if topic.is_dir:
                for queue in self._fs.list(f"{self._queue_root}/{topic.name}"):
                    if queue.is_dir and queue.name.isascii() and queue.name.isdigit() and len(queue.name) < 10:
                        found[topic.name, int(queue.name)] = f"{self._queue_root}/{topic.name}/{queue.name}"
        return found

    def _adopt_file_size(self) -> None:
        """Go on with the file size most queues on disk have: Apache's broker opens no store with mixed sizes."""
        votes: dict[int, int] = {}
        for directory in list(self._on_disk.values())[:64]:
            size = segment_size_of(segment_entries(self._fs.list(directory)))
            if size and size % UNIT.size == 0:
                votes[size] = votes.get(size, 0) + 1
        if votes:
            self._file_bytes = max(votes, key=lambda size: (votes[size], size))

    def _find_batch_topics(self) -> frozenset[str]:
        """Return the topics whose queues are batch queues."""
        topics = {entry.name for entry in self._fs.list(f"{self._root}/batchconsumequeue") if entry.is_dir}
        config = ConfigFile(f"{self._root}/config/topics.json", self._fs).load() or {}
        table = config.get("topicConfigTable")
        if isinstance(table, dict):
            for name, topic in table.items():
                attributes = topic.get("attributes") if isinstance(topic, dict) else None
                if isinstance(attributes, dict) and attributes.get("queue.type") == "BatchCQ":
                    topics.add(name)
        return frozenset(topics)

    # --- the flushing thread ---

    def sync(self) -> tuple[QueueState, ...]:
        """Bring all queues to the disk and return where they are. Raises OSError."""
        queues = list(self.queues.values())
        wait = sum(queue.dirty for queue in queues) <= MAX_SYNCS
        states = tuple(queue.sync(wait=wait) for queue in queues)
        if not wait:
            # An error goes unnoticed here; queues are derived, and a unit the disk lost is found out when it is read.
            self._fs.sync_all()
        return states
