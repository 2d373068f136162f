"""The key index of a store and the log it follows: loading the index, feeding it, catching up when it fell behind, answering queries.

The index is derived data, so nothing that happens to it stops the store: a disk that refuses a write sets ``failure``, and the next
thorough flush tries to catch up from the log.
"""

import threading
from itertools import islice
from typing import TYPE_CHECKING

from sprocketmq.clock import Clock
from sprocketmq.protocol.layout import INT32
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.index.index_state import IndexState
from sprocketmq.storage.index.key_index import KeyIndex
from sprocketmq.storage.index.record_keys import ROLLED_BACK, key_hash, key_string, record_keys
from sprocketmq.storage.index.search import Kind, find_records
from sprocketmq.storage.index.staging import staged_records
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.log.recovery import LogScan, Scanned, data_end, is_blank, parse_record, record_view

if TYPE_CHECKING:
    from sprocketmq.storage.chunks import KeyEntries

# The most that is read for a query before it: its answer has 15 MiB at most.
MAX_LOADED_BYTES = 16 << 20
# Rounds of catching up with a log that keeps growing; what is missing after these is left to the next flush.
_CATCH_UP_ROUNDS = 4


class StoreIndex:
    """The index in the directory ``index`` of a store. One thread feeds and queries; ``sync`` may run in another."""

    def __init__(self, fs: FileSystem, log: CommitLog, config: StoreConfig, clock: Clock) -> None:
        self._fs = fs
        self._log = log
        self._keys = KeyIndex(
            fs, f"{config.root}/index", hash_slots=config.max_hash_slots, entries_per_file=config.max_index_entries, clock=clock
        )
        self._catching_up = threading.Lock()
        self.offer = self._keys.offer  # called for every commit, so without a call in between
        self.offer_entries = self._keys.offer_entries

    # --- recovery ---

    def load(self, state: bytes, *, clean: bool) -> int:
        """Adopt the files that can be trusted, and return the log offset from which records must be passed to ``take_records``.

        ``state`` is what ``sync`` returned before the last snapshot, or empty; ``clean``: nothing was indexed after it.
        """
        log = self._log
        known = IndexState.decode(state) if state else None
        try:
            return self._keys.load(log_min=log.min_offset, log_end=data_end(log), state=known, clean=clean, keys_at=self._keys_at)
        except OSError as e:
            self._stop(e)
            return data_end(log)

    def _stop(self, error: OSError) -> None:
        self._keys.failure = error.strerror or str(error)
        self._keys.behind = True

    def _keys_at(self, log_offset: int) -> tuple[list[int], int] | None:
        """Return the key hashes of the record at a log offset, and where the next record begins; None without a record there."""
        segment = self._log.find(log_offset)
        if segment is None:
            return None
        file_pos = log_offset - segment.start
        record = parse_record(segment.view, segment.start, file_pos, check_crc=False)
        if record is None:
            return ([], segment.start + segment.size) if is_blank(segment.view, file_pos) else None
        keys = (
            record_keys(record.topic.decode("utf-8", "replace"), record.properties) if record.sys_flag & ROLLED_BACK != ROLLED_BACK else []
        )
        return [key_hash(key) for key in keys], log_offset + record.size

    def take_records(self, records: list[Scanned], end: int) -> None:
        """Index records of the log up to ``end``; those that are indexed already are skipped."""
        self._keys.add_records(records, end)

    def take_entries(self, entries: "KeyEntries", end: int) -> None:
        """Index entries of the records up to ``end``, which a worker of the bulk pipeline made."""
        self._keys.add_entries(entries, end)

    def offer_records(self, records: list[Scanned], end: int) -> None:
        """Take records that a replica received as if they had just been stored; the log now ends at ``end``."""
        self._keys.offer(staged_records(records), end)

    def end_at(self, end: int) -> None:
        """Drop the records at and after ``end``: the log turned out to end there."""
        try:
            self._keys.cut(end, self._time_at)
        except OSError as e:
            self._stop(e)

    def _time_at(self, log_offset: int) -> int | None:
        segment = self._log.find(log_offset)
        record = parse_record(segment.view, segment.start, log_offset - segment.start, check_crc=False) if segment is not None else None
        return None if record is None else record.store_time_ms

    # --- in operation ---

    def sync(self) -> bytes:
        """Bring the index to disk, after catching up if it fell behind; return the state for the snapshot.

        Many messages that wait are left out, and a restart indexes them from the log: ``drain`` first to include all. Raises OSError when
        the disk fails.
        """
        if self._keys.behind:
            self._catch_up()
        return self._keys.sync().encode()

    def drain(self) -> None:
        """Index what commits deferred; may run in another thread. Like ``offer`` it never raises.

        A disk that refused a write is not tried again here.
        """
        if self._keys.behind and self._keys.failure is None:
            self._catch_up()
        self._keys.drain()

    def _catch_up(self) -> None:
        with self._catching_up:
            if self._keys.behind:
                self._read_from_log()

    def _read_from_log(self) -> None:
        for _ in range(_CATCH_UP_ROUNDS):
            try:
                begin = max(self._keys.resume(), self._log.min_offset)
            except OSError as e:
                self._stop(e)
                return
            scan = LogScan(self._log, begin, check_crc=False, resync=True, stop=self._log.committed_end)
            for records in scan.batches():
                self._keys.add_records(records, scan.end)
            if self._keys.failure is not None or self._keys.caught_up():
                return

    def expire(self, log_min: int) -> list[str]:
        """Remove the files whose records have all left the log, and return their paths. Raises OSError."""
        return self._keys.expire(log_min)

    def close(self) -> None:
        """Close the files without writing anything."""
        self._keys.close()

    # --- queries ---

    def query(
        self, topic: str, key: str, *, max_count: int, begin_ms: int, end_ms: int, by_tag: bool, visible_end: int
    ) -> list[memoryview]:
        """Return records as ``MessageStore.query`` says, of those before log offset ``visible_end``. May raise OSError."""

        def record_at(log_offset: int) -> memoryview | None:
            return record_view(self._log, log_offset, visible_end)

        kind = Kind.TAG if by_tag else Kind.KEY
        return find_records(self._keys, record_at, topic, key, max_count=max_count, begin_ms=begin_ms, end_ms=end_ms, kind=kind)

    def load_for_query(self, topic: str, key: str, *, max_count: int, begin_ms: int, end_ms: int, by_tag: bool) -> None:
        """Read into the page cache what ``query`` would read from the disk; runs in another thread. May raise OSError."""
        room = MAX_LOADED_BYTES
        candidates = self._keys.candidates(key_string(topic, key, tag=by_tag), begin_ms=begin_ms, end_ms=end_ms)
        for log_offset in islice(candidates, max_count):
            segment = self._log.locate(log_offset)
            if segment is None or room <= 0:
                return
            file_pos = log_offset - segment.start
            file = self._fs.open(segment.file.path, read_only=True)
            try:
                (size,) = INT32.unpack(file.pread(INT32.size, file_pos))
                room -= len(file.pread(max(0, min(size, room)), file_pos))
            finally:
                file.close()

    @property
    def failure(self) -> str | None:
        """The reason why indexing has stopped until the next thorough flush; None while it works."""
        return self._keys.failure

    @property
    def newest(self) -> tuple[int, int]:
        """Store time (ms) and log offset of the newest indexed record."""
        return self._keys.newest

    @property
    def fill(self) -> tuple[int, int]:
        """The entries of all index files, and how many these have room for."""
        return self._keys.fill

    @property
    def full_until_ms(self) -> int:
        """The store time (ms) of the last entry of the newest full file, 0 without one: entries up to then no longer change."""
        return self._keys.full_until_ms

    def lag(self) -> tuple[int, int]:
        """Return how many bytes of the log are not indexed yet, and for how many milliseconds the oldest message has been waiting."""
        return self._keys.lag()
