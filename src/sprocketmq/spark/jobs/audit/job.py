"""Compare the queues and the key index of a store with its commit log, with Spark tasks on many machines. Nothing is changed.

::

    commit log    |   split 0   |   split 1   |   split 2   |  ...      1. tasks parse splits and compare the result with the files,
                         |             |             |                     in arrays, and return ranges and differences
    driver         in order: valid chains, damage, gaps, duplicates
                         |             |             |
    files         queues 0..n    queues n..m   index file 0, 1, ...     2. tasks check units and entries without a record

"""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sprocketmq.errors import ConfigError
from sprocketmq.spark.jobs.audit.report import AuditSummary, QueueAudit
from sprocketmq.spark.jobs.progress import JobProgress, Report
from sprocketmq.spark.jobs.tasks import UNSEEN, TaskFailure, failure_of, results_or_raise, run_tasks, tasks_at_a_time
from sprocketmq.storage.bulk.rebuild import open_log
from sprocketmq.storage.bulk.splits import Split, cut_splits, parts, split_bytes_for
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.inspect.findings import ERROR, NOTE, WARNING
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.snapshot import Snapshot
from sprocketmq.storage.store import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sprocketmq.spark.jobs.audit.compare import AuditTarget
    from sprocketmq.spark.jobs.audit.facts import Chain
    from sprocketmq.spark.jobs.audit.merge import AuditFinding, AuditFindings, Log, Merge, QueueView
    from sprocketmq.storage.bulk.stitching import Answer, LogOrder
    from sprocketmq.storage.log.commit_log import CommitLog, Segment

_HEAD_BYTES = 64
# Groups of index files for each concurrent task.
_GROUPS_A_TASK = 2

T = TypeVar("T")


def audit(
    spark: "SparkSession",
    store: str | os.PathLike[str],
    *,
    index: bool = True,
    split_bytes: int = 0,
    config: StoreConfig | None = None,
    progress: Report | None = None,
) -> AuditSummary:
    """Compare queues and key index of a store with its commit log by Spark tasks and return the findings; nothing is changed.

    A broker may run on the store, or it may be a copy: then differences that a start repairs are notes. The store must be on a file system
    that driver and workers see at the same path. Without ``index`` the key index is not checked. ``split_bytes`` is how much of the log a
    task reads (0: chosen by log size and session).

    Raises NotAStoreFile when there is no store, StoreDamaged when it has no commit log or a file in its middle is missing, StoreNotShared
    when a worker does not see the store, StoreUnreadable when it cannot read it, OSError when the driver cannot.
    """
    found = check_request(store, split_bytes=split_bytes)
    return _Audit(spark, found, config or StoreConfig(Path(found.root)), progress, index=index).run(split_bytes)


def check_request(store: str | os.PathLike[str], *, split_bytes: int = 0) -> StoreDirectory:
    """Check the arguments before Spark starts and return the store's directory. Raises as ``audit``."""
    root = os.path.abspath(os.fspath(store))  # noqa: PTH100
    if split_bytes < 0:
        raise ConfigError(f"split_bytes must be positive, or 0 for a length that fits, not {split_bytes}")
    found = StoreDirectory(root)
    open_log(found.fs, root).close()
    return found


class _FileGroup(NamedTuple):
    """The files of one task in the second round: some queues, or some index files."""

    queues: "list[QueueView]"
    index_files: list[str]


class _FileResult(NamedTuple):
    """The result of one task: units and orphans of each queue, and findings."""

    counts: list[tuple[int, int]]
    findings: "list[AuditFinding]"


class _Audit:
    """One audit."""

    def __init__(self, spark: "SparkSession", store: StoreDirectory, config: StoreConfig, progress: Report | None, *, index: bool) -> None:
        self._spark = spark
        self._store = store
        self._config = config
        self._progress = progress
        self._with_index = index
        self._in_use = "abort" in store.entries

    def run(self, split_bytes: int) -> AuditSummary:
        from sprocketmq.spark.jobs.audit.compare import AuditTarget
        from sprocketmq.spark.jobs.audit.index_files import index_file
        from sprocketmq.spark.jobs.audit.merge import AuditFindings, Log
        from sprocketmq.storage.index.index_state import IndexState
        from sprocketmq.storage.queues.queue_table import QueueTable

        began = monotonic()
        at_a_time = tasks_at_a_time(self._spark)
        store, root = self._store, self._store.root
        findings = AuditFindings()
        snapshot = Snapshot.load(store.fs, root)
        paths = [f"{root}/index/{entry.name}" for entry in store.index_files()] if self._with_index else []
        log = open_log(store.fs, root)
        try:
            table = QueueTable(store.fs, log, self._config)
            table.load(clean=not self._in_use)
            state = IndexState.decode(snapshot.index) if snapshot is not None else None
            slots = state.hash_slots if state is not None else None
            files = tuple(file for path in paths if (file := index_file(store.fs, path, slots)) is not None)
            deleted = dict(snapshot.deleted) if snapshot is not None else {}
            target = AuditTarget(root, table.batch_topics, deleted, files)
            total = sum(entry.size for _, entry in store.segments)
            splits = cut_splits(log, split_bytes or split_bytes_for(total, at_a_time))
            order, merge = self._read_log(log, splits, target, total)
            read = Log(root, log.min_offset, order.end, log.segment_bytes, tuple((d.path, d.start, d.end) for d in order.damaged))
            self._report_damage(log, read, findings)
        finally:
            log.close()
        queues = self._look_at_files(merge, read, target, paths, slots, at_a_time, findings)
        if files:
            findings.add(*merge.key_findings(read, in_use=self._in_use))
        elif self._with_index:
            self._report_no_index(findings, merge, read)
        return AuditSummary(
            store=root,
            in_use=self._in_use,
            log_begin=read.begin,
            log_end=read.end,
            records=merge.records,
            queues=queues,
            index_files=len(paths),
            index_entries=sum(file.entries for file in files),
            keys_met=merge.keys_met,
            damaged=read.damaged,
            findings=findings.sorted(),
            errors=findings.total(ERROR),
            warnings=findings.total(WARNING),
            notes=findings.total(NOTE),
            splits=len(splits),
            tasks_at_a_time=at_a_time,
            elapsed_s=monotonic() - began,
        )

    # --- the log ---

    def _read_log(self, log: "CommitLog", splits: list[Split], target: "AuditTarget", total: int) -> "tuple[LogOrder[Chain], Merge]":
        from sprocketmq.spark.jobs.audit.compare import chains
        from sprocketmq.spark.jobs.audit.merge import Merge
        from sprocketmq.storage.bulk.pipeline import TASK_BYTES
        from sprocketmq.storage.bulk.stitching import Answer, LogOrder

        batch_topics = frozenset(topic.encode() for topic in target.batch_topics)
        items = []
        for split in splits:
            segment = log.find(split.base)
            assert segment is not None
            items.append((split, bytes(segment.view[:_HEAD_BYTES])))
        compare = partial(_compare_split, target=target, batch_topics=batch_topics)
        on_progress = (
            None if self._progress is None else lambda done: self._report_progress(min(done, total), total, "bytes", "comparing the log")
        )
        found = results_or_raise(
            run_tasks(self._spark, "compare the commit log", compare, items, on_progress=on_progress), target.root, writing=False
        )
        waiting = iter([answer for some in found for answer in some])
        order: LogOrder[Chain] = LogOrder(log, log.min_offset, resync=True)
        merge = Merge(target.batch_topics)

        def take() -> "Answer[Chain] | None":
            answer = next(waiting, None)
            return None if answer is None else Answer(*answer)

        def read(segment: "Segment", begin: int, limit: int) -> "Chain":
            # The driver reads stretches that no task could judge, such as damage, a part at a time.
            from sprocketmq.spark.jobs.audit.compare import Comparison
            from sprocketmq.storage.bulk.parsing import parse_chunk

            limit = min(limit, begin + TASK_BYTES)
            split = Split(segment.file.path, segment.start, segment.size, segment.start + begin, segment.start + limit)
            comparison = Comparison(self._store.fs, target, split, keys=bool(target.index_files))
            try:
                chunk = parse_chunk(segment.view, segment.start, begin, limit, batch_topics=batch_topics, keys=bool(target.index_files))
                answer = Answer(split.begin, split.limit, chunk if chunk.records else None)
                chain = next(chains([answer], comparison)).stretch
                return chain if chain is not None else comparison.nothing(chunk.start)
            finally:
                comparison.close()

        for chain in order.stretches(take, read):
            merge.take(chain)
        return order, merge

    def _report_progress(self, done: int, total: int, unit: str, detail: str) -> None:
        if self._progress is not None:
            self._progress(JobProgress(done, total, unit, detail))

    def _report_damage(self, log: "CommitLog", read: "Log", findings: "AuditFindings") -> None:
        from sprocketmq.spark.jobs.audit.merge import AuditFinding
        from sprocketmq.storage.file_view import FileView
        from sprocketmq.storage.inspect.record_items import dissect

        for path, begin, end in read.damaged:
            segment = log.find(begin)
            reason = ""
            if segment is not None:
                with FileView(self._store.fs, path) as view:
                    found = dissect(view, begin - segment.start, segment.start, segment.size - (begin - segment.start))
                reason = found.problem or "no valid record begins there"
            what = f"{end - begin:,} bytes of the log hold no valid record: {reason}"
            step = f"{read.inspect(begin)} --hex shows them; put a copy of the segment back (a slave has one), else their messages are lost"
            place = (path, begin - segment.start if segment is not None else None)
            findings.add(AuditFinding(ERROR, "damaged log", None, None, None, end - begin, *place, what, step))

    # --- the files ---

    def _look_at_files(
        self,
        merge: "Merge",
        read: "Log",
        target: "AuditTarget",
        paths: list[str],
        slots: int | None,
        at_a_time: int,
        findings: "AuditFindings",
    ) -> tuple[QueueAudit, ...]:
        from sprocketmq.spark.jobs.audit.merge import QueueView

        views = merge.queues(read)
        on_disk = set()
        for kind in ("consumequeue", "batchconsumequeue"):
            for topic, queue_id, directory in self._store.queues(kind):
                batch = kind == "batchconsumequeue"
                if batch != (topic in target.batch_topics):
                    self._report_kind(directory, topic, queue_id, findings)
                    continue
                on_disk.add((topic, queue_id))
                if (topic, queue_id) not in views:
                    views[topic, queue_id] = QueueView(topic, queue_id, batch)
        without = self._without_topic(views, on_disk, findings)
        looked = [view for key, view in sorted(views.items()) if key not in without]
        units = [_FileGroup([], some) for some in _dealt(paths, _GROUPS_A_TASK * at_a_time)] + [
            _FileGroup(some, []) for some in _dealt(looked, at_a_time)
        ]
        look = partial(_look, log=read, covered=merge.covered, slots=slots, in_use=self._in_use)
        on_progress = (
            None
            if self._progress is None
            else lambda done: self._report_progress(min(done, len(units)), len(units), "parts", "looking at files")
        )
        found = run_tasks(self._spark, "look at queues and index", look, units, on_progress=on_progress)
        for unit, one in zip(units, results_or_raise(found, target.root, writing=False), strict=True):
            findings.add(*one.findings)
            for view, (count, orphans) in zip(unit.queues, one.counts, strict=True):
                view.units, view.orphans = count, orphans
        for view in looked:
            findings.add(*view.findings)
        return tuple(
            QueueAudit(
                *(view.topic, view.queue_id, "BatchCQ" if view.batch else "SimpleCQ", view.first, view.next, view.messages),
                *(view.records, view.units, view.missing, view.wrong, view.orphans, view.gaps, view.duplicates),
            )
            for view in looked
        )

    def _without_topic(
        self, views: "dict[tuple[str, int], QueueView]", on_disk: set[tuple[str, int]], findings: "AuditFindings"
    ) -> set[tuple[str, int]]:
        """Report topics with messages in the log but without configuration and files, and return their queues."""
        from sprocketmq.spark.jobs.audit.merge import AuditFinding, number

        table = self._store.config("topics.json").get("topicConfigTable")
        if not isinstance(table, dict):
            return set()
        without = {key for key in views if key not in on_disk and key[0] not in table}
        for topic in sorted({topic for topic, _ in without}):
            count = sum(view.messages for key, view in views.items() if key in without and key[0] == topic)
            are = number(count, f"message of topic {topic!r} is", f"messages of topic {topic!r} are")
            what = f"{are} in the log, but there is no such topic (deleted, most likely)"
            step = "nothing, when the topic was deleted; else create it again and rebuild its queues"
            findings.add(AuditFinding(NOTE, "no topic", topic, None, None, count, f"{self._store.root}/commitlog", None, what, step))
        return without

    @staticmethod
    def _report_kind(directory: str, topic: str, queue_id: int, findings: "AuditFindings") -> None:
        from sprocketmq.spark.jobs.audit.merge import AuditFinding

        what = "these files are of the kind that topics.json does not name for the topic; Apache's broker refuses to start so"
        findings.add(AuditFinding(ERROR, "queue kind", topic, queue_id, None, 1, directory, None, what, f"remove {directory}"))

    def _report_no_index(self, findings: "AuditFindings", merge: "Merge", read: "Log") -> None:
        from sprocketmq.spark.jobs.audit.merge import AuditFinding

        if merge.records:
            path = f"{self._store.root}/index"
            what = "there is no key index: messages are not found by key"
            step = f"{read.rebuild('index')}, unless the broker runs without an index"
            findings.add(AuditFinding(NOTE, "no index", None, None, None, 1, path, None, what, step))


def _dealt(items: list[T], most: int) -> list[list[T]]:
    """Deal items into at most ``most`` groups of about equal size."""
    return [items[i::most] for i in range(min(most, len(items)))]


# --- in the workers ---


def _compare_split(
    item: tuple[Split, bytes], note: Callable[[int], None], *, target: "AuditTarget", batch_topics: frozenset[bytes]
) -> "list[tuple[int, int, Chain | None]] | TaskFailure":
    from sprocketmq.spark.jobs.audit.compare import Comparison, chains

    split, head = item
    keys = bool(target.index_files)
    try:
        file = REAL_FS.open(split.path, read_only=True)
        try:
            if file.pread(len(head), 0) != head:
                return failure_of(OSError("another file is there"), UNSEEN, split.path)
        finally:
            file.close()
        comparison = Comparison(REAL_FS, target, split, keys=keys)
        try:
            found = parts(REAL_FS, split, batch_topics=batch_topics, keys=keys)
            answers = [(begin, limit, chain) for begin, limit, chain in chains(found, comparison)]
        finally:
            comparison.close()
    except FileNotFoundError as e:
        return failure_of(e, UNSEEN, split.path)
    except OSError as e:
        return failure_of(e, path=split.path)
    note(split.limit - split.begin)
    return answers


def _look(
    unit: _FileGroup, note: Callable[[int], None], *, log: "Log", covered: Iterable[tuple[int, int]], slots: int | None, in_use: bool
) -> "_FileResult | TaskFailure":
    from sprocketmq.spark.jobs.audit.files import check_index_file, check_queue_files

    try:
        if unit.index_files:
            findings = [check_index_file(REAL_FS, path, log, covered, slots=slots, in_use=in_use) for path in unit.index_files]
            looked = _FileResult([], [finding for some in findings for finding in some])
        else:
            found = [check_queue_files(REAL_FS, view, log, in_use=in_use) for view in unit.queues]
            looked = _FileResult([(one.units, one.orphans) for one in found], [finding for one in found for finding in one.findings])
    except OSError as e:
        return failure_of(e, path=log.root)
    note(1)
    return looked
