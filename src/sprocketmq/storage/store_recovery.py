"""Recovering a store when it is opened: deciding which derived files are valid, and completing them from the commit log.

The snapshot records up to which log offset queue files and index were complete on disk. The log is read from there on; without a
matching snapshot, all of it.
"""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from sprocketmq.errors import StoreDamaged
from sprocketmq.protocol.hashing import crc32
from sprocketmq.storage.checkpoint import Checkpoint
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.fs import FileSystem, RealFileSystem
from sprocketmq.storage.index.index_follower import StoreIndex
from sprocketmq.storage.log import recovery
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.log.recovery import LogScan, RecoveryReport, data_end, parse_record
from sprocketmq.storage.queues.queue_table import QueueTable
from sprocketmq.storage.snapshot import Snapshot


class RecoveredState(NamedTuple):
    """The result: the report, the snapshot and checkpoint to continue from, and log offset and store time of the last record."""

    report: RecoveryReport
    snapshot: Snapshot
    checkpoint: Checkpoint
    last_log_offset: int
    last_ms: int


class StoreRecovery:
    """One recovery. It fills in the log, the table of queues and the index it is given."""

    def __init__(self, fs: FileSystem, config: StoreConfig, log: CommitLog, table: QueueTable, index: StoreIndex | None) -> None:
        self._fs = fs
        self._root = str(config.root)
        self._config = config
        self._log = log
        self._table = table
        self._index = index
        self._last_log_offset = 0
        self._last_ms = 0

    def run(self, progress: Callable[[int, int], None] | None) -> RecoveredState:
        """Recover the store and return the end of the log. ``progress`` gets the bytes of log read and their total.

        Raises StoreDamaged when the commit log is beyond recovery, or OSError.
        """
        report = RecoveryReport(clean=not self._fs.exists(f"{self._root}/abort"))
        log = self._log
        log.load()
        checkpoint = Checkpoint.load(self._fs, f"{self._root}/checkpoint")
        table = self._table
        on_disk = table.load(clean=report.clean)
        snapshot = Snapshot.load(self._fs, self._root)
        report.reason = self._restore(snapshot)
        if report.reason or snapshot is None:
            report.rebuilt = bool(log.segments) or on_disk
            table.queues.clear()
            base = Snapshot(deleted=table.deleted)
            queued = log.min_offset
            last_time = 0
        else:
            base = snapshot
            queued = log.flushed_end = snapshot.log_offset
            last_time = self._last_ms
        indexed = self._load_index(base.index, clean=report.clean)
        report.scanned_from = min(queued, indexed)
        end = self._read_log(queued, last_time, report, progress)
        if self._index is not None:
            self._index.end_at(end)
        if end == log.min_offset and report.clean and log.has_data():
            raise StoreDamaged(log.segments[0].file.path, 0, "there is data but not one valid record; is this a RocketMQ commit log?")
        if not (report.clean and snapshot is base and log.ends_in_last_segment(end) and not report.records):
            report.cut_bytes = log.end_at(end, cut=not report.clean, quarantine=f"{self._root}/damaged")
        else:
            log.start_at(end)  # the last stop was clean, so nothing follows its end
        if report.rebuilt or not report.clean:
            table.settle()
            table.forget_leftovers()
        table.take_held()
        table.correct_min_offsets()
        checkpoint.confirm_offset = self._last_log_offset
        return RecoveredState(report, base, checkpoint, self._last_log_offset, self._last_ms)

    def _load_index(self, state: bytes, *, clean: bool) -> int:
        """Load the key index and return the log offset up to which it is complete; without an index that is the end of the last segment."""
        if self._index is None:
            return self._log.min_offset + len(self._log.segments) * self._log.segment_bytes
        return self._index.load(state, clean=clean)

    def _read_log(self, queued: int, last_time: int, report: RecoveryReport, progress: Callable[[int, int], None] | None) -> int:
        """Pass records to the queues and the index that lack them, and return the end of the log.

        The queues have everything before log offset ``queued``. Several processes read a long stretch.
        """
        log, table, index, config = self._log, self._table, self._index, self._config
        start = report.scanned_from
        # Records read only for the index were read before: damage among them is not the end of the log.
        resync = not report.clean or report.rebuilt or start < queued
        if start < queued:
            last_time = 0
        total = max(data_end(log) - start, 1)
        if config.enable_build_consume_queue_concurrently and total >= recovery.CONCURRENT_BYTES and isinstance(self._fs, RealFileSystem):
            from sprocketmq.storage.bulk import pipeline

            report.workers = pipeline.workers_for(config.pipeline_workers)
            concurrent = pipeline.LogPipeline(
                log,
                start,
                workers=report.workers,
                resync=resync,
                last_time=last_time,
                batch_topics=table.batch_topics,
                keys=index is not None,
                progress=progress,
            )
            with contextlib.closing(concurrent.chunks()) as chunks:
                for chunk in chunks:
                    report.records += chunk.records
                    for queue_chunk in chunk.queue_chunks:
                        table.take_chunk(queue_chunk, queued)
                    if index is not None and chunk.keys is not None:
                        index.take_entries(chunk.keys, chunk.end)
                    self._last_log_offset = chunk.last_log_offset
                    self._last_ms = max(self._last_ms, chunk.last_time_ms)
            report.lost_workers = concurrent.lost_workers
            report.damaged = concurrent.damaged
            report.log_end = concurrent.end
            return report.log_end
        scan = LogScan(log, start, check_crc=True, resync=resync, last_time=last_time)
        for records in scan.batches():
            report.records += len(records)
            table.take_records(
                records if records[0].log_offset >= queued else [record for record in records if record.log_offset >= queued]
            )
            if index is not None:
                index.take_records(records, scan.end)
            self._last_log_offset = records[-1].log_offset
            self._last_ms = max(self._last_ms, records[-1].store_time_ms)
            if progress is not None:
                progress(scan.end - start, total)
        report.damaged = scan.damaged
        report.log_end = scan.end
        return report.log_end

    def _restore(self, snapshot: Snapshot | None) -> str:
        """Restore the queues from the snapshot; return why that is not possible, or an empty string."""
        log = self._log
        if snapshot is None:
            return "there is no queue snapshot" if log.segments else ""
        if snapshot.log_offset < log.min_offset:
            self._table.take_deletions(snapshot)  # no other file records the topics deleted since
            return "the queue snapshot is older than this commit log"
        log_offset, size, crc = snapshot.last_record
        if size:
            segment = log.find(log_offset)
            record = parse_record(segment.view, segment.start, log_offset - segment.start, check_crc=False) if segment else None
            if segment is None or record is None or record.size != size or log_offset + size > snapshot.log_offset:
                return "the queue snapshot does not belong to this commit log"
            file_pos = log_offset - segment.start
            if crc32(segment.view[file_pos : file_pos + size]) != crc:
                return "the queue snapshot does not belong to this commit log"
            self._last_log_offset = log_offset
            self._last_ms = record.store_time_ms
        if snapshot.log_offset > log.min_offset + len(log.segments) * log.segment_bytes:
            return "the queue snapshot does not belong to this commit log"
        return self._table.restore(snapshot)
