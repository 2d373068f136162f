"""The tasks of ``rebuild_index``: parse a split of the log into a spool, and build and check files from the spool."""

import secrets
from collections.abc import Callable
from dataclasses import replace
from errno import EIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.spark.jobs.tasks import UNSEEN, TaskFailure, failure_of
from sprocketmq.storage.bulk.rebuild import BATCH_QUEUES, INDEX, QUEUES, Plan
from sprocketmq.storage.bulk.splits import Split, parts
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.log.commit_log import CommitLog

if TYPE_CHECKING:
    from sprocketmq.storage.bulk.spool import Piece, SpooledChunk
    from sprocketmq.storage.index.index_state import FileState
    from sprocketmq.storage.snapshot import QueueState

SPOOL = "spool"
MARK = "mark"


class WorkDirectory(NamedTuple):
    """The working directory of tasks, with a mark by which they verify that they see the driver's files."""

    work: str
    mark: str
    groups: int

    def failure(self) -> TaskFailure | None:
        """Return why this process cannot use the directory, None when it can."""
        path = f"{self.work}/{MARK}"
        try:
            found = REAL_FS.read(path)
        except OSError as e:
            return failure_of(e, UNSEEN, path)
        if found.decode("ascii", "replace") != self.mark:
            return failure_of(OSError(f"{path} is another directory's"), UNSEEN, path)
        return None


class SpooledAnswer(NamedTuple):
    """The answer of a task about a stretch of the log, sent to the driver."""

    begin: int
    limit: int
    chunk: "SpooledChunk | None"


class BuildTask(NamedTuple):
    """The files of one task: an index file of some entries, or the queues of a group."""

    name: str
    before: tuple[int, int] | None
    pieces: "list[Piece]"


class BuiltFiles(NamedTuple):
    """Files written under ``directory``: states of queues with the numbers of units written and left out, or the state of an index file."""

    directory: str
    states: "tuple[QueueState, ...]"
    units: int
    left_out: int
    file: "FileState | None"
    problem: str


def piece_bytes(piece: "Piece") -> int:
    """Return the number of bytes of a piece in the spool."""
    from sprocketmq.storage.bulk.spool import ENTRY_BYTES

    return piece.length * (ENTRY_BYTES if piece.of else 1)


def spool_split(
    split: Split, note: Callable[[int], None], *, place: WorkDirectory, batch_topics: frozenset[bytes], keys: bool
) -> list[SpooledAnswer] | TaskFailure:
    """Parse a split into the spool and return its chunks. ``note`` is called with the bytes of the split."""
    from pyspark import TaskContext

    from sprocketmq.storage.bulk.spool import Spool

    failure = place.failure()
    if failure is not None:
        return failure
    context = TaskContext.get()
    # Two attempts at one task may run at once: each writes its own file, and the driver uses that of the successful one.
    attempt = context.taskAttemptId() if context is not None else 0
    try:
        spool = Spool(REAL_FS, f"{place.work}/{SPOOL}/{split.begin:020d}-{attempt}", place.groups)
        try:
            answers = [
                SpooledAnswer(begin, limit, None if chunk is None else spool.add(chunk))
                for begin, limit, chunk in parts(REAL_FS, split, batch_topics=batch_topics, keys=keys)
            ]
        finally:
            spool.close()
    except FileNotFoundError as e:
        return failure_of(e, UNSEEN, split.path)
    except OSError as e:
        return failure_of(e, path=split.path)
    note(split.limit - split.begin)
    return answers


def build_files(
    job: BuildTask, note: Callable[[int], None], *, place: WorkDirectory, plan: Plan, log_begin: int, segment_bytes: int
) -> "BuiltFiles | TaskFailure":
    """Build and check the files of one task in a directory of their own. ``note`` is called with the bytes of its pieces."""
    failure = place.failure()
    if failure is not None:
        return failure
    # Each attempt has its own directory: an abandoned one may still write when the files of another are already moved.
    directory = f"{place.work}/{SPOOL}/made-{secrets.token_hex(8)}"
    apart = replace(plan, config=replace(plan.config, root=Path(directory)))
    try:
        built = _build_index_file(job, apart, log_begin) if job.name else _build_queues(job, apart, segment_bytes)
    except OSError as e:
        return failure_of(e, path=directory)
    note(sum(piece_bytes(piece) for piece in job.pieces))
    return built


def _build_queues(job: BuildTask, plan: Plan, segment_bytes: int) -> BuiltFiles:
    from sprocketmq.protocol.layout import BATCH_UNIT_BYTES, QUEUE_UNIT_BYTES
    from sprocketmq.storage.bulk.spool import read_chunks
    from sprocketmq.storage.inspect.unit_check import Segments, check_queue
    from sprocketmq.storage.queues.batch_queue import BatchConsumeQueue

    root = str(plan.config.root)
    log = f"{plan.source}/commitlog"
    table = plan.new_table(CommitLog(REAL_FS, log, segment_bytes, preallocate=False), REAL_FS)
    given = 0
    try:
        for chunks in read_chunks(REAL_FS, job.pieces):
            for chunk in chunks:
                given += len(chunk.units) // (
                    BATCH_UNIT_BYTES if chunk.topic.decode("utf-8", "replace") in plan.batch_topics else QUEUE_UNIT_BYTES
                )
                table.take_chunk(chunk)
        table.settle()
        states = table.sync()
    finally:
        table.pool.forget()
    segments = Segments(REAL_FS, log, segment_bytes)
    units = 0
    for (topic, queue_id), queue in table.queues.items():
        batch = isinstance(queue, BatchConsumeQueue)
        files = f"{root}/{BATCH_QUEUES if batch else QUEUES}/{topic}/{queue_id}"
        count, problem = check_queue(REAL_FS, files, topic, queue_id, segments, batch=batch)
        if problem:
            return BuiltFiles(root, (), 0, 0, None, problem)
        units += count
    return BuiltFiles(root, states, units, given - units, None, "")


def _build_index_file(job: BuildTask, plan: Plan, log_begin: int) -> BuiltFiles:
    from sprocketmq.storage.bulk.spool import read_entries
    from sprocketmq.storage.index.index_format import IndexHeader
    from sprocketmq.storage.inspect.findings import Findings
    from sprocketmq.storage.inspect.index_file_check import IndexFileCheck

    root = str(plan.config.root)
    path = f"{root}/{INDEX}/{job.name}"
    index = plan.new_index(log_begin, REAL_FS, SYSTEM_CLOCK)
    try:
        before = None
        if job.before is not None:
            time_ms, physical = job.before
            before = IndexHeader(end_ms=time_ms, end_log_offset=physical)
        index.begin(job.name, before)
        for entries in read_entries(REAL_FS, job.pieces):
            index.add_entries(entries, int(entries.log_offsets[-1]))
        state = index.sync()
        if index.failure is not None:
            raise OSError(EIO, index.failure, path)
    finally:
        index.close()
    findings = Findings()
    check = IndexFileCheck(REAL_FS, path, findings, "", slots=plan.config.max_hash_slots)
    for _ in check.chunks():
        pass
    check.finish()
    problem = f"{path}: {findings.sorted()[0].what}" if findings.found else ""
    wanted = sum(piece.length for piece in job.pieces)
    if check.entries != wanted:
        problem = f"{path} has {check.entries} entries instead of {wanted}"
    return BuiltFiles(root, (), 0, 0, state.files[0], problem)
