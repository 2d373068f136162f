"""The key index of one store: which records of the log have a key, in files of Apache RocketMQ's format (``index_format``).

Stored messages wait in memory and are indexed several thousand at a time. Entries are then written at once; the slots of the
newest file stay in memory; those that changed are written when the index is synced. A restart begins with the state that the last
sync returned: it drops everything later and indexes the log from there again.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sprocketmq.clock import Clock
from sprocketmq.protocol.layout import INDEX_HEADER_BYTES, INDEX_SLOT
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.index.index_file import TimeAt
from sprocketmq.storage.index.index_files import IndexFiles
from sprocketmq.storage.index.index_format import FileShape, IndexHeader, is_file_name
from sprocketmq.storage.index.index_restore import KeysAt, adopt, restore
from sprocketmq.storage.index.index_state import IndexState
from sprocketmq.storage.index.lookup import entries_with_hash
from sprocketmq.storage.index.numpy_loading import ArraysLoader, arrays_loaded, load_arrays
from sprocketmq.storage.index.record_keys import key_hash
from sprocketmq.storage.index.staging import StagedSend, first_log_offset, key_entries, message_count, plain_entries, staged_records
from sprocketmq.storage.log.recovery import Scanned

if TYPE_CHECKING:
    from sprocketmq.storage.chunks import KeyEntries

# Once this much of the log, or this many sends, wait to be indexed, each commit indexes INLINE_FACTOR times as many messages as it stored,
# within these limits. Long arrays cost least per message, but delay the following sends by 2 to 6 ms: a broker with large commits needs
# them. One with small commits has the time for short ones, which take 1 ms; more single sends than this would have left the processor's
# caches when their turn comes.
MAX_PENDING_BYTES = 16 << 20
MAX_PENDING_SENDS = 1024
INLINE_FACTOR = 64
LEAST_INLINE_MESSAGES = 512
INLINE_MESSAGES = 4096
# A commit waits for numpy to be loaded (0.1 s), or for another thread that writes the index (20 MB of slots take 5 to 30 ms, 120 on a busy
# machine), only above these. If the disk is slow, it does not wait longer: the index falls behind, and catching up costs more.
MAX_PENDING_BYTES_WHILE_BUSY = 32 << 20
MAX_PENDING_SENDS_WHILE_BUSY = 32768
MAX_WAIT_S = 0.5
# While numpy is not loaded, fewer messages than this are indexed without it.
PLAIN_MESSAGES = 256
# Entries store whole seconds, so their time may be this much too early.
_RESOLUTION_MS = 1000
_unpack_slot = INDEX_SLOT.unpack_from


class KeyIndex:
    """The index of one store. The appending thread offers and queries; ``process``, ``drain`` and ``sync`` may run in another meanwhile.

    Every record before log offset ``indexed_end`` is indexed. When the disk refuses a write, ``failure`` says why and the index falls
    ``behind``: what is stored from then on is only counted, until a caller reads it from the log into ``add_records`` and ``caught_up``.
    It falls behind without a failure when another thread waits for the disk while much is stored.
    """

    def __init__(self, fs: FileSystem, directory: str, *, hash_slots: int, entries_per_file: int, clock: Clock) -> None:
        self._fs = fs
        self._clock = clock
        self._files = IndexFiles(fs, directory, FileShape(hash_slots, entries_per_file), clock)
        self._lock = threading.Lock()  # guards ``_files``; only its holder takes from ``_pending``
        self._sync_lock = threading.Lock()
        self._end_lock = threading.Lock()  # guards ``_offered_end`` while ``behind``; held for moments
        self._pending: deque[StagedSend] = deque()
        self._offered_end = 0
        self._loader = ArraysLoader()
        self._synced = self._files.state(0)
        self.indexed_end = 0
        self.failure: str | None = None
        self.behind = False

    # --- opening ---

    def load(
        self,
        *,
        log_min: int,
        log_end: int,
        state: IndexState | None,
        clean: bool = False,
        keys_at: KeysAt | None = None,
    ) -> int:
        """Adopt the files that can be trusted, remove the others, and return the log offset from which records must be indexed.

        With a ``state`` those are the files it lists, as they were then; ``clean``: nothing was indexed after it. Without one, the files
        are adopted when they are consistent in themselves and the log, if ``keys_at`` reads it, confirms their beginnings and
        some of their entries. Log offsets that are not in ``[log_min, log_end]`` are consistent with neither. Files of other sizes than
        configured keep theirs, and so do all that follow. Raises OSError.
        """
        directory = self._files.directory
        self._fs.make_dirs(directory)
        sizes = {entry.name: entry.size for entry in self._fs.list(directory) if not entry.is_dir and is_file_name(entry.name)}
        if state is not None:
            shape = state.shape
            files, complete = restore(self._fs, directory, state, sizes, log_min, clean=clean)
        else:
            files, shape = adopt(self._fs, directory, self._files.shape, sizes, log_min, log_end, keys_at)
            complete = False
        self._files.open(files, shape, sizes)
        if state is not None and complete:
            self.indexed_end = state.indexed_end
            self._synced = state
        else:
            self.indexed_end = files[-1].header.end_log_offset if files else log_min
        self._offered_end = self.indexed_end
        if self.indexed_end > log_end:
            self.cut(log_end)
        self.expire(log_min)
        self.indexed_end = self._offered_end = max(self.indexed_end, log_min)
        return self.indexed_end

    def begin(self, name: str, before: IndexHeader | None) -> None:
        """Make the first file of an index that has none, with this name; ``before`` is the header of the full file it follows.

        So several indexes can make the files of one sequence side by side. Raises OSError.
        """
        with self._lock:
            self._files.begin(name, before)

    def cut(self, log_end: int, time_at: TimeAt = lambda _: None) -> None:
        """Drop the entries of records at or after ``log_end``: the log turned out to end there. Raises OSError.

        ``time_at`` gives the store times of records before it, if they are known.
        """
        with self._lock:
            self._files.cut(log_end, time_at)
            self.indexed_end = self._offered_end = min(self.indexed_end, log_end)

    # --- indexing what is stored ---

    def offer(self, staged: Sequence[StagedSend], end: int) -> None:
        """Take what a commit stored; the log now ends at ``end``. Usually this only queues it; above a limit some is indexed at once.

        Records of rolled back transactions are not offered. Never raises; a disk that refuses a write shows in ``failure``.
        """
        if self.behind:
            with self._end_lock:
                if self.behind:
                    self._offered_end = end
                    return
        self._pending.extend(staged)
        self._offered_end = end
        waiting = end - self.indexed_end
        sends = len(self._pending)
        if waiting >= MAX_PENDING_BYTES or sends >= MAX_PENDING_SENDS:
            too_much = waiting >= MAX_PENDING_BYTES_WHILE_BUSY or sends >= MAX_PENDING_SENDS_WHILE_BUSY
            wait_s = MAX_WAIT_S if too_much else 0.0
            if self._loader.loaded(wait_s) and self._lock.acquire(timeout=wait_s):
                try:
                    self._process(max(LEAST_INLINE_MESSAGES, min(INLINE_FACTOR * sum(map(message_count, staged)), INLINE_MESSAGES)))
                finally:
                    self._lock.release()
            elif too_much:
                self.behind = True  # the other thread may be taking from ``_pending``, which ``caught_up`` empties

    def offer_entries(self, entries: "KeyEntries", end: int) -> None:
        """Take the entries of the records that a replica received, up to ``end``, and index them at once. Otherwise as ``offer``."""
        self.process()
        with self._lock:
            self._offered_end = end
            if not self.behind:
                self._attempt(lambda: self._files.add(entries), end)

    def process(self, limit: int = sys.maxsize) -> None:
        """Index what was offered before the call, or about ``limit`` messages of it.

        Never raises; a disk that refuses a write shows in ``failure``.
        """
        with self._lock:
            self._process(limit)

    def _process(self, limit: int) -> None:
        if self.behind:
            return
        end = self._offered_end
        staged: list[StagedSend] = []
        while self._pending and limit > 0:  # the appending thread may add more meanwhile, whose end then is later than ``end``
            staged.append(self._pending.popleft())
            limit -= message_count(staged[-1])
        if self._pending:
            end = min(end, first_log_offset(self._pending[0]))
        self._attempt(lambda: self._index(staged), end)

    def drain(self) -> None:
        """Index everything that was offered, from a background thread: queries and inline indexing get their turn between portions.

        Never raises; a disk that refuses a write shows in ``failure``.
        """
        if sum(map(message_count, self._pending.copy())) >= PLAIN_MESSAGES:
            load_arrays()  # before the lock is taken, so that no other thread waits for it
        while self._pending and not self.behind:
            self.process(INLINE_MESSAGES)

    def _index(self, staged: Sequence[StagedSend]) -> None:
        if not arrays_loaded() and sum(map(message_count, staged)) < PLAIN_MESSAGES:
            self._files.add_plainly(*plain_entries(staged, self._files.newest_record))
        elif staged:
            for entries in key_entries(staged):
                self._files.add(entries)

    def _attempt(self, work: Callable[[], None], end: int) -> None:
        """Index everything before log offset ``end`` with ``work``, or fall behind."""
        try:
            work()
        except OSError as e:
            self._fall_behind(e)
        else:
            self.indexed_end = max(self.indexed_end, end)
            self._offered_end = max(self._offered_end, end)

    def _fall_behind(self, error: OSError) -> None:
        self.failure = error.strerror or str(error)
        self.behind = True
        self._pending.clear()

    def lag(self) -> tuple[int, int]:
        """Return how many bytes of the log are not indexed yet, and for how many milliseconds the oldest message has been waiting."""
        try:
            since = self._pending[0][3]
        except IndexError:
            since = self._clock.time_ms()
        return max(0, self._offered_end - self.indexed_end), max(0, self._clock.time_ms() - since)

    # --- indexing what is read from the log ---

    def add_records(self, records: Iterable[Scanned], end: int) -> None:
        """Index records read from the log, in its order, up to ``end``; records that are indexed already are skipped.

        Never raises; a disk that refuses a write shows in ``failure``, after which nothing is added.
        """
        staged = staged_records(records)
        with self._lock:
            if self.failure is None:
                self._attempt(lambda: self._index(staged), end)

    def add_entries(self, entries: "KeyEntries", end: int) -> None:
        """Index entries of the records of the log up to ``end``. Otherwise as ``add_records``."""
        with self._lock:
            if self.failure is None:
                self._attempt(lambda: self._files.add(entries), end)

    def resume(self) -> int:
        """Clear the failure and return the log offset from which ``add_records`` has to continue. May raise OSError."""
        with self._lock:
            if self.failure is not None:
                self._files.forget_failed_writes()
                self.failure = None
            return self.indexed_end

    def caught_up(self) -> bool:
        """Resume indexing what is offered if ``add_records`` has reached the end of it; return whether it has."""
        with self._lock, self._end_lock:
            if self.failure is None and self.indexed_end >= self._offered_end:
                self._pending.clear()
                self.behind = False
            return not self.behind

    # --- queries ---

    def candidates(self, key: str, *, begin_ms: int = 0, end_ms: int = 1 << 62) -> Iterator[int]:
        """Yield the log offsets of records whose key has the hash of the key string ``key``, the newest first, of this time range.

        Both bounds are inexact by a second, and another key may have the same hash: compare with the record. A record can come twice. May
        raise OSError.
        """
        self.process()
        hash_ = key_hash(key)
        with self._lock:
            shape, files = self._files.shape, self._files.files
            newest = files[-1] if files else None
            if newest is not None and newest.doubtful:
                newest.load_slots()
            headers = [(file, file.header) for file in files]
            slot_pos = 4 * (hash_ % shape.hash_slots)
            newest_entry = _unpack_slot(newest.slots, slot_pos)[0] if newest is not None and newest.slots else -1
        for file, header in reversed(headers):
            if header.next_entry > 1 and header.begin_ms <= end_ms and header.end_ms + _RESOLUTION_MS > begin_ms:
                opened = self._fs.open(file.path, read_only=True)
                try:
                    in_memory = newest_entry >= 0 and file is newest
                    number = newest_entry if in_memory else _unpack_slot(opened.pread(4, INDEX_HEADER_BYTES + slot_pos))[0]
                    for log_offset, time_ms in entries_with_hash(opened, shape, header, number, hash_) if number else ():
                        if time_ms + _RESOLUTION_MS <= begin_ms:
                            break
                        if time_ms <= end_ms:
                            yield log_offset
                finally:
                    opened.close()

    @property
    def newest(self) -> tuple[int, int]:
        """Store time (ms) and log offset of the newest indexed record, zeros when there is none."""
        return self._files.newest

    @property
    def fill(self) -> tuple[int, int]:
        """The entries of all files, and how many these have room for."""
        return self._files.fill

    @property
    def full_until_ms(self) -> int:
        """The store time (ms) of the last entry of the newest full file, 0 without one: entries up to then no longer change."""
        return self._files.full_until_ms

    # --- upkeep ---

    def sync(self) -> IndexState:
        """Bring what is indexed to disk and return what is there then. Raises OSError when the disk fails.

        A few messages that wait are indexed first; many would slow down the appending thread, so that ``drain`` must do it before a sync
        that is to have everything. When the disk is merely full, the state of the last sync is returned and ``failure`` is set.
        """
        with self._sync_lock:
            self.process(INLINE_MESSAGES)
            with self._lock:
                if self.behind:
                    return self._synced
                changed = [file for file in self._files.files if file.unsynced]
                try:
                    for file in changed:
                        file.write_out()
                except OSError as e:
                    self._fall_behind(e)
                    return self._synced
                for file in changed:
                    file.unsynced = False
                state = self._files.state(self.indexed_end)
            for file in changed:
                file.sync()
            if self._files.names_changed:
                self._files.names_changed = False
                self._fs.fsync_dir(self._files.directory)
            self._synced = state
            return state

    def expire(self, log_min: int) -> list[str]:
        """Remove the files whose records have all left the log, never the newest; return their paths. Raises OSError."""
        with self._sync_lock, self._lock:
            return self._files.expire(log_min)

    def close(self) -> None:
        """Close the files without writing anything; may be called twice."""
        with self._sync_lock, self._lock:
            self._files.close()
            self._pending.clear()
        self._loader.join()
