"""Log lines while a store is opened: progress every few seconds, then the findings."""

import logging
from collections.abc import Callable

from sprocketmq.events import event
from sprocketmq.storage.log.recovery import RecoveryReport

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 5.0
# Each damaged stretch is one line, up to this number.
MAX_DAMAGED_LINES = 10


class RecoveryProgress:
    """Receives the bytes of log that were read and their total, as ``MessageStore.open`` passes them."""

    def __init__(self, root: str, time: Callable[[], float]) -> None:
        self._root = root
        self._time = time
        self._began = self._told = time()

    def __call__(self, read: int, total: int) -> None:
        now = self._time()
        if now - self._told < PROGRESS_INTERVAL_S:
            return
        self._told = now
        took_s = round(now - self._began, 1)
        percent = 100 * read // max(1, total)
        event(log, logging.INFO, "store_recovering", path=self._root, read_bytes=read, total_bytes=total, percent=percent, took_s=took_s)


def log_opened(root: str, report: RecoveryReport, *, is_new: bool) -> None:
    """Log what recovery found. It is a warning when the log is damaged or its end was cut."""
    for damaged in report.damaged[:MAX_DAMAGED_LINES]:
        event(log, logging.WARNING, "log_damaged", path=damaged.path, log_offset=damaged.start, bytes=damaged.end - damaged.start)
    event(
        log,
        logging.WARNING if report.damaged else logging.INFO,
        "store_opened",
        path=root,
        after="nothing: it is new" if is_new else "a clean stop" if report.clean else "a crash",
        took_ms=round(report.elapsed_ms),
        records=report.records,
        scanned_from=report.scanned_from,
        log_end=report.log_end,
        cut_bytes=report.cut_bytes,
        damaged=len(report.damaged),
        reason=report.reason or None,
    )
