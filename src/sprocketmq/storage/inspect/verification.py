"""Verifying a store: checking every invariant across all of its files, without changing one.

The log is read once, front to back, and each window of its records is compared with the queues and the key index. What these contain
besides, the small files and leftovers are checked once the end of the log is known. Memory is bounded: windows of the log, a number of
ranges for each queue, one number for each hash slot.

A broker may be running, or the files may be a copy taken while one was. Then the file ``abort`` exists, and a torn end of the log, queues
that are behind, and small files that are ahead are notes, not problems.
"""

import time
from dataclasses import dataclass, field

from sprocketmq.errors import StoreDamaged, StoreNotSupported
from sprocketmq.storage.directory_checks import check_directory
from sprocketmq.storage.fs import REAL_FS, FileSystem
from sprocketmq.storage.inspect.findings import ERROR, NOTE, WARNING, Finding, Findings
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.inspect.verify_log import LogCheck, Progress
from sprocketmq.storage.inspect.verify_small_files import SmallFileChecks
from sprocketmq.storage.snapshot import FILE_NAME as DISPATCHED


@dataclass
class VerifyReport:
    """The findings, the worst first, and figures. ``ok``: there are only notes."""

    root: str
    findings: list[Finding] = field(default_factory=list)
    errors: int = 0
    warnings: int = 0
    notes: int = 0
    log_start: int = 0
    log_end: int = 0
    records: int = 0
    queues: int = 0
    index_entries: int = 0
    log_bytes: int = 0
    elapsed_s: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.errors and not self.warnings


def verify(root: str, *, fs: FileSystem = REAL_FS, progress: Progress | None = None, index: bool = True) -> VerifyReport:
    """Check a whole store and return the findings; ``progress`` gets bytes of the log done and in all.

    Without ``index`` the key index is left out. Raises NotAStoreFile when there is no store, OSError when something cannot be read.
    """
    # Late: they load numpy, which takes 0.1 s.
    from sprocketmq.storage.inspect.verify_index import IndexChecks
    from sprocketmq.storage.inspect.verify_queues import QueueChecks

    began = time.monotonic()
    store = StoreDirectory(root, fs)
    findings = Findings()
    # Apache's broker leaves an empty abort.bak behind; only abort itself says that a broker runs, or was killed.
    in_use = "abort" in store.entries
    refused = _refused_path(store, findings)
    small = SmallFileChecks(store, findings, in_use=in_use)
    small.load_snapshot(refused=refused == f"{store.root}/{DISPATCHED}")
    snapshot = small.snapshot
    log = LogCheck(store, findings, in_use=in_use, noted_end=snapshot.log_offset if snapshot is not None else 0)
    segments = log.check_names()
    log_min = segments[0][0] if segments else 0
    deleted = snapshot.deleted if snapshot is not None else {}
    report = VerifyReport(store.root)
    queues = QueueChecks(store, findings, batch_topics=small.batch_topics(), deleted=deleted, in_use=in_use)
    checks = IndexChecks(store, findings, in_use=in_use) if index else None
    try:
        log.read(segments, queues, checks, progress)
        if not refused.startswith(f"{store.root}/consumequeue"):  # otherwise the queues are in a database
            queues.finish(log_min, log.log_end, frozenset(small.configured) if small.configured is not None else None)
        if checks is not None:
            checks.finish(log.log_end)
            report.index_entries = checks.entries
        small.check(log, queues)
        report.queues = sum(1 for queue in queues if queue.units.files)
    finally:
        queues.close()
        if checks is not None:
            checks.close()
    report.findings = findings.sorted()
    report.errors, report.warnings, report.notes = (findings.total(s) for s in (ERROR, WARNING, NOTE))
    report.log_start = log_min
    report.log_end = log.log_end
    report.records = log.records
    report.log_bytes = max(log.log_end - log_min, 0)
    report.elapsed_s = time.monotonic() - began
    return report


def _refused_path(store: StoreDirectory, findings: Findings) -> str:
    """Report why a broker does not support the store, and return the path that is at fault, empty when it does."""
    try:
        check_directory(store.fs, store.root)
    except StoreNotSupported as e:
        findings.add(ERROR, "not supported", e.path, None, e.reason, e.next_step)
        return e.path
    except (StoreDamaged, OSError):
        pass  # a missing log is reported below, in more detail
    return ""
