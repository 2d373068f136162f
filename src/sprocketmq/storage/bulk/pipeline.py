"""Reading a long range of the commit log with several processes, in order.

::

      the log      |  task 0  |  task 1  |  task 2  |  task 3  | ...    cut every 4 MiB, even inside a record
                        |          |          |          |
      workers        parse      parse      parse      parse             this process and others; where a task's first record begins
                        |          |          |          |              is a guess, as a cut can fall into a body
      ring         [ chunk 0 ][        ][ chunk 2 ][        ] ...       in as they come, out by number
                        |
      this process  does it begin where the one before ended?  ->  queues, key index
                    no: read again from the right offset

A chunk counts only when it begins exactly where the records before it end; ``stitching.py`` has the rules.
"""

import contextlib
import os
import select
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

import msgspec

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.storage.bulk.stitching import Answer, LogOrder
from sprocketmq.storage.bulk.worker import FRAME, Setup, Task, decode_chunk, encode_frame, read_task
from sprocketmq.storage.chunks import ParsedChunk
from sprocketmq.storage.fs import will_need
from sprocketmq.storage.log.commit_log import CommitLog, Segment
from sprocketmq.storage.log.recovery import DamagedRange, data_end

# Both as in the reference.
TASK_BYTES = 4 << 20
RING_SLOTS = 16
MAX_DEFAULT_WORKERS = 4
# Tasks a worker has at a time, so that it is not idle while this process is busy for some milliseconds.
_TASKS_AHEAD = 4
# Answers are kept in memory up to this much; beyond it, only the next one in order is read.
_MAX_WAITING_BYTES = 48 << 20
_READ_BYTES = 1 << 20
# Read-ahead of the log, relative to the task being cut.
_AHEAD_BYTES = 32 << 20
# 4 MiB of the smallest records, or of properties that are nothing but keys, give some 60 MiB.
_MAX_ANSWER_BYTES = 256 << 20
_STALL_S = 60.0

T = TypeVar("T")
Progress = Callable[[int, int], None]


class Ring(Generic[T]):
    """A reorder buffer: numbered items are put in any order within a bounded window and taken in ascending order."""

    __slots__ = ("_slots", "next")

    def __init__(self, slots: int) -> None:
        self._slots: list[T | None] = [None] * slots
        self.next = 0

    def has_room(self, number: int) -> bool:
        """Return whether an item with this number may be put now."""
        return number < self.next + len(self._slots)

    def put(self, number: int, item: T) -> None:
        """Put an item for which there is room."""
        assert self.next <= number < self.next + len(self._slots)
        self._slots[number % len(self._slots)] = item

    def take(self) -> T | None:
        """Return the next item and advance, or None when it is not there yet."""
        slot = self.next % len(self._slots)
        item = self._slots[slot]
        if item is not None:
            self._slots[slot] = None
            self.next += 1
        return item


def workers_for(wanted: int) -> int:
    """Return how many processes read, this one included: ``wanted``, or for 0 one per core and at most 4."""
    if wanted:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_DEFAULT_WORKERS)


class _Answer(msgspec.Struct):
    """The result of a task: its chunk, or None when this process has to read it."""

    task: Task
    chunk: ParsedChunk | None
    size: int = 0


class _Worker:
    """One process and the numbers of the tasks it has, in order."""

    def __init__(self, setup: Setup) -> None:
        # The child imports this package from the same path; -P keeps the current directory off it. It needs one thread: idle threads of
        # numpy's BLAS library cost memory and start-up time.
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sprocketmq.storage.bulk.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input = self.process.stdin.fileno()
        self.output = self.process.stdout.fileno()
        os.set_blocking(self.output, False)
        _enlarge_pipe(self.output)
        self.tasks: deque[tuple[int, Task]] = deque()
        self._received = bytearray(_READ_BYTES)
        self._filled = 0
        self._send(encode_frame(setup))

    def give(self, number: int, task: Task) -> None:
        """Hand over a task. Raises OSError when the process is gone."""
        self._send(encode_frame(task))
        self.tasks.append((number, task))

    def _send(self, data: bytes) -> None:
        # Frames are far shorter than the pipe's capacity and few are in flight, so this never blocks.
        os.write(self.input, data)

    def receive(self) -> tuple[list[ParsedChunk], bool]:
        """Return the chunks received so far, and whether the process is alive. Raises MsgspecError for malformed data."""
        buffer = self._received
        with memoryview(buffer) as view:
            try:
                count = os.readv(self.output, [view[self._filled :]])
            except BlockingIOError:
                return [], True
        self._filled += count
        frames = []
        pos = 0
        while self._filled - pos >= FRAME.size:
            end = pos + FRAME.size + FRAME.unpack_from(buffer, pos)[0]
            if end > self._filled:
                if end - pos > _MAX_ANSWER_BYTES:
                    raise msgspec.DecodeError(f"an answer of {end - pos} bytes is over the limit of {_MAX_ANSWER_BYTES}")
                if end - pos > len(buffer):
                    buffer += bytes(end - pos - len(buffer))
                break
            frames.append(decode_chunk(memoryview(buffer)[pos + FRAME.size : end]))
            pos = end
        if pos:
            buffer[: self._filled - pos] = buffer[pos : self._filled]
            self._filled -= pos
        return frames, count > 0

    def close(self) -> None:
        """Kill the process, which only reads, and wait for its end."""
        process = self.process
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        process.kill()
        process.wait()


def _enlarge_pipe(descriptor: int) -> None:
    """Give a pipe room for an answer or two, where the system has that: otherwise the worker waits for this process."""
    import fcntl

    command = getattr(fcntl, "F_SETPIPE_SZ", None)
    if command is not None:
        with contextlib.suppress(OSError):  # over the user's pipe limit
            fcntl.fcntl(descriptor, command, _READ_BYTES)


def cut_tasks(log: CommitLog, start: int, task_bytes: int) -> Iterator[Task]:
    """Cut the log from ``start`` on into tasks, leaving out holes."""
    for segment in log.segments:
        end = segment.start + segment.size
        log_offset = max(start, segment.start)
        while log_offset < end:
            data = segment.file.data_after(log_offset - segment.start)
            if data is None or segment.start + data >= end:
                break
            log_offset = max(log_offset, segment.start + data - (segment.start + data) % task_bytes)
            limit = min(log_offset - log_offset % task_bytes + task_bytes, end)
            yield Task(segment.file.path, segment.start, segment.size, log_offset, limit)
            log_offset = limit


class LogPipeline:
    """Read the records of a log from ``start`` to its end as chunks, in log order.

    ``end``, ``damaged`` and ``resync`` are those of ``LogScan``. ``workers`` processes read: this one, when it has nothing else to do, and
    others started for it. One that dies or does not answer for ``stall_s`` is dropped; ``lost_workers`` counts them.
    """

    def __init__(
        self,
        log: CommitLog,
        start: int,
        *,
        workers: int,
        resync: bool,
        last_time: int = 0,
        batch_topics: frozenset[str] = frozenset(),
        keys: bool = True,
        progress: Progress | None = None,
        clock: Clock = SYSTEM_CLOCK,
        task_bytes: int = TASK_BYTES,
        stall_s: float = _STALL_S,
    ) -> None:
        self._log = log
        self._start = start
        self._wanted = workers
        self._order: LogOrder[ParsedChunk] = LogOrder(log, start, resync=resync, last_time=last_time)
        self._batch_topics = frozenset(topic.encode() for topic in batch_topics)
        self._keys = keys
        self._setup = Setup(sorted(self._batch_topics), keys)
        self._progress = progress
        self._clock = clock
        self._stall_s = stall_s
        self._ring: Ring[_Answer] = Ring(RING_SLOTS)
        self._tasks = enumerate(self._cut(task_bytes))
        self._upcoming: tuple[int, Task] | None = next(self._tasks, None)
        self.workers: list[_Worker] = []
        self._waiting_bytes = self._in_hand = 0
        self._newest_ms = 0
        self._total_end = data_end(log)
        self.lost_workers = 0

    @property
    def end(self) -> int:
        return self._order.end

    @property
    def damaged(self) -> list[DamagedRange]:
        return self._order.damaged

    def lag(self) -> tuple[int, int]:
        """Return the lag of the records yielded so far: bytes to the log's end, ms of store time to the newest record read."""
        return max(self._total_end - self.end, 0), max(self._newest_ms - self._order.last_time, 0)

    def chunks(self) -> Generator[ParsedChunk, None, None]:
        """Yield the log in order. The processes end when the iteration ends or is closed. Use it only once."""
        try:
            self._start_workers()
            for chunk in self._order.stretches(self._next_answer, self._read_again):
                yield chunk
                self._tell_progress()
            if self._progress is not None:
                self._progress(self.end - self._start, max(self.end - self._start, 1))
        finally:
            for worker in self.workers:
                worker.close()
            self.workers.clear()

    # --- putting answers in order ---

    def _next_answer(self) -> Answer[ParsedChunk] | None:
        self._waiting_bytes -= self._in_hand
        answer = self._take()
        self._in_hand = answer.size if answer is not None else 0
        return None if answer is None else Answer(answer.task.begin, answer.task.limit, answer.chunk)

    def _read_again(self, segment: Segment, begin: int, limit: int) -> ParsedChunk:
        from sprocketmq.storage.bulk.parsing import parse_chunk

        return parse_chunk(segment.view, segment.start, begin, limit, batch_topics=self._batch_topics, keys=self._keys)

    def _tell_progress(self) -> None:
        if self._progress is not None:
            self._progress(self.end - self._start, max(self._total_end - self._start, 1))

    # --- tasks ---

    def _cut(self, task_bytes: int) -> Iterator[Task]:
        for task in cut_tasks(self._log, self._start, task_bytes):
            segment = self._log.find(task.begin)
            ahead = task.begin - task.base + _AHEAD_BYTES
            if segment is not None and ahead < segment.size:
                will_need(segment.view, ahead, ahead + task_bytes)
            yield task

    def _start_workers(self) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            return  # a frozen program would start itself again
        for _ in range(self._wanted - 1):
            try:
                self.workers.append(_Worker(self._setup))
            except OSError:  # process limit reached: continue with those started
                self.lost_workers += 1

    def _hand_out(self) -> None:
        """Give every worker up to _TASKS_AHEAD tasks, as far as the ring has room."""
        while self.workers and self._upcoming is not None and self._ring.has_room(self._upcoming[0]):
            worker = min(self.workers, key=lambda w: len(w.tasks))
            if len(worker.tasks) >= _TASKS_AHEAD:
                return
            try:
                worker.give(*self._upcoming)
            except OSError:
                self._lose(worker)
                continue
            self._upcoming = next(self._tasks, None)

    def _take(self) -> _Answer | None:
        """Return the next task in order with its answer, or None when there are no more."""
        while True:
            self._hand_out()
            answer = self._ring.take()
            if answer is not None:
                return answer
            if self.workers and self._receive(0):
                continue
            if self._upcoming is not None and self._may_read(self._upcoming[0]):
                number, task = self._upcoming
                self._upcoming = next(self._tasks, None)
                # Without workers, this process knows where the task's first record begins when the task is next in order.
                self._put(number, task, self._read_here(task) if self.workers else None)
            elif any(worker.tasks for worker in self.workers):
                if not self._receive(self._stall_s):
                    for worker in [worker for worker in self.workers if worker.tasks]:
                        self._lose(worker)
            else:
                return None

    def _may_read(self, number: int) -> bool:
        return number == self._ring.next or (self._ring.has_room(number) and self._waiting_bytes <= _MAX_WAITING_BYTES)

    def _put(self, number: int, task: Task, chunk: ParsedChunk | None) -> None:
        size = _size(chunk) if chunk is not None else 0
        self._waiting_bytes += size
        self._ring.put(number, _Answer(task, chunk, size))

    def _read_here(self, task: Task) -> ParsedChunk | None:
        segment = self._log.find(task.begin)
        return read_task(segment.view, task, self._setup) if segment is not None else None

    def _receive(self, timeout_s: float) -> bool:
        """Put answers that arrive in time into the ring; return whether there were any. Tasks of a dead worker are read here."""
        busy = [worker for worker in self.workers if worker.tasks]
        if self._waiting_bytes > _MAX_WAITING_BYTES:
            busy = [worker for worker in busy if worker.tasks[0][0] == self._ring.next]
        if not busy:
            return False
        poll = select.poll()
        for worker in busy:
            poll.register(worker.output, select.POLLIN)
        outputs = {output for output, _ in poll.poll(timeout_s * 1000)}
        ready = [worker for worker in busy if worker.output in outputs]
        for worker in ready:
            alive = False
            try:
                chunks, alive = worker.receive()
                for chunk in chunks:
                    number, task = worker.tasks.popleft()
                    self._newest_ms = max(self._newest_ms, chunk.last_time_ms)
                    self._put(number, task, chunk)
            except (msgspec.MsgspecError, IndexError):  # malformed answer
                alive = False
            if not alive:
                self._lose(worker)
        return bool(ready)

    def _lose(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        self.lost_workers += 1
        worker.close()
        for number, task in worker.tasks:
            self._put(number, task, None)


def _size(chunk: ParsedChunk) -> int:
    """Return the approximate memory size of a chunk."""
    entries = len(chunk.keys.hashes) if chunk.keys is not None else 0
    return entries * 20 + sum(len(queue_chunk.units) + 200 for queue_chunk in chunk.queue_chunks)
