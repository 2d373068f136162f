r"""The key index: which records of the log have a key, in files of Apache RocketMQ's format.

A file is a hash table: a header, S slots, and room for N entries, which stand in the order of the log and are chained by slot from the
newest back::

    0          8          16         24         32         36         40                40 + 4 S                 40 + 4 S + 20 N
    +----------+----------+----------+----------+----------+----------+-----------------+--------------------------+
    | store    | store    | place in | place in | number of| number of| slots: number   | entries; the one with    |
    | time of  | time of  | the log  | the log  | slots in | the next | of the newest   | number 0 is never used,  |
    | the first| the last | of the   | of the   | use      | entry,   | entry, 0: none  | so a file holds N - 1    |
    | entry, ms| entry, ms| first    | last     |          | from 1 on|                 |                          |
    | i64      | i64      | i64      | i64      | i32      | i32      | i32 each        | 20 bytes each            |
    +----------+----------+----------+----------+----------+----------+-----------------+--------------------------+

    0          4                     12         16         20
    +----------+---------------------+----------+----------+
    | key hash | place of the record | seconds  | entry    |    slot = key hash modulo S; seconds since the header's first time,
    | i32      | i64                 | i32      | before   |    at least 0; entry before: the next older one of its slot, 0: none
    +----------+---------------------+----------+----------+

A record's keys are ``TOPIC#UNIQ_KEY``, ``TOPIC#word`` for each word of its KEYS, and ``TOPIC#T#TAG``, in this order. Their hash is
Java's, without its sign. A file's name is the local time of its making, 17 digits; names only ever grow.

What was just stored waits in memory and is indexed some thousand messages at a time. Entries are then written at once; the slots of
the newest file are kept in memory and go out, as far as they changed, when the index is synced. What a sync returned is what a restart
builds on: it forgets everything behind that and indexes the log from there again.
"""

import contextlib
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, pairwise
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple

from sprocketmq.clock import Clock
from sprocketmq.protocol.codes import SYSFLAG_TRANSACTION_MASK
from sprocketmq.protocol.hashing import java_hash
from sprocketmq.protocol.properties import decode_properties
from sprocketmq.storage.fs import File, FileSystem
from sprocketmq.storage.log.recovery import Scanned

if TYPE_CHECKING:
    from sprocketmq.storage.chunks import KeyEntries

HEADER = Struct(">qqqqii")
HEADER_BYTES = HEADER.size
ENTRY = Struct(">iqii")
ENTRY_BYTES = ENTRY.size
NAME_DIGITS = 17
MAX_COUNT = 100_000_000  # slots and entries of a file

# What was stored and is not indexed yet: past this much of the log, or this many sends, each commit indexes some thousand messages of it.
# Arrays of that length cost least per message, and keep the messages behind them waiting for about 2 ms.
MAX_PENDING_BYTES = 16 << 20
MAX_PENDING_SENDS = 4096
_INLINE_MESSAGES = 4096
# Fewer messages than this are indexed without numpy as long as nothing else has loaded it: that takes 0.1 s. While it is being loaded more
# may wait.
PLAIN_MESSAGES = 256
MAX_PENDING_BYTES_WHILE_LOADING = 32 << 20
# Property strings hashed in one go: hostile ones have a key in every second byte, and a key takes some 100 bytes of arrays.
_SLICE_BYTES = 1 << 19
# A chain is followed so far from entry to entry. A key whose slot is also that of a tag half the messages have is then looked for among
# all entries, a block at a time; so is any key whose chain is damaged.
MAX_CHAIN_STEPS = 2048
_BLOCK_ENTRIES = 1 << 16
_PAGE_SLOTS = 1024  # slots go out in pages of 4 KiB, and runs of pages in pieces of at most 1 MiB
_RUN = re.compile(rb"\x01{1,256}")
_SLOT_PIECE_BYTES = 1 << 16
_SAMPLES = 16
# Entries hold whole seconds, so their time may be this much too early.
_RESOLUTION_MS = 1000
_LATEST_SECONDS = 0x7FFFFFFF

# Records of this kind of transaction have no key_hashing.
ROLLED_BACK = SYSFLAG_TRANSACTION_MASK

_INT = Struct(">i")
_STATE = Struct(">4sqii")
_FILE_STATE = Struct(f">{NAME_DIGITS}s{HEADER_BYTES}s{ENTRY_BYTES}s")
_MAGIC = b"KIX1"


def key_hash(key: str) -> int:
    """Return the hash of a key string as the index stores it, from 0 to 2^31 - 1."""
    magnitude = abs(java_hash(key))
    return 0 if magnitude >> 31 else magnitude


def key_string(topic: str, key: str, *, tag: bool = False) -> str:
    """Return the string that stands for a key, a unique key or, with ``tag``, a tag of a topic."""
    return f"{topic}#T#{key}" if tag else f"{topic}#{key}"


def keys_in(properties: bytes) -> tuple[str | None, list[str], str | None]:
    """Return unique key, words of KEYS and tag of a record; property bytes that are no UTF-8 count as U+FFFD."""
    pairs = decode_properties(properties.decode("utf-8", "replace").encode())
    words = pairs.get("KEYS")
    return pairs.get("UNIQ_KEY"), [word for word in words.split(" ") if word] if words else [], pairs.get("TAGS")


def record_keys(topic: str, properties: bytes) -> list[str]:
    """Return the key strings of a record, in the order of its entries."""
    unique, words, tag = keys_in(properties)
    keys = [key_string(topic, key) for key in ([unique, *words] if unique else words)]
    if tag:
        keys.append(key_string(topic, tag, tag=True))
    return keys


# Reads the log for the index: the hashes of the keys of the record at a place, and where the next one begins; None without a record there.
KeysAt = Callable[[int], tuple[Sequence[int], int] | None]

# What one send stored: topic, property string, place of the record, store time in ms; for a batch on a plain queue the property strings
# and places of all its records.
Staged = tuple[str, bytes | list[bytes], int | list[int], int]


class FileState(NamedTuple):
    """One file as of a sync: its name, its header and its last entry."""

    name: str
    header: bytes
    last: bytes


@dataclass(frozen=True)
class IndexState:
    """What a sync brought to the disk: the entries of every record before ``position`` are in ``files``."""

    position: int
    hash_slots: int
    entries_per_file: int
    files: tuple[FileState, ...]

    def encode(self) -> bytes:
        """Return the state as bytes, for the store's snapshot."""
        head = _STATE.pack(_MAGIC, self.position, self.hash_slots, self.entries_per_file)
        return head + b"".join(_FILE_STATE.pack(name.encode(), header, last) for name, header, last in self.files)

    @classmethod
    def decode(cls, data: bytes) -> "IndexState | None":
        """Return the state in ``data``, or None when there is none."""
        try:
            magic, position, hash_slots, entries_per_file = _STATE.unpack_from(data)
            files = tuple(
                FileState(name.decode("ascii"), header, last) for name, header, last in _FILE_STATE.iter_unpack(data[_STATE.size :])
            )
        except (StructError, UnicodeDecodeError):
            return None
        sane = magic == _MAGIC and 0 < hash_slots <= MAX_COUNT and 1 < entries_per_file <= MAX_COUNT
        return cls(position, hash_slots, entries_per_file, files) if sane else None


class Header(NamedTuple):
    """A file's header; ``next`` is the number of its next entry."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_physical: int = 0
    end_physical: int = 0
    used_slots: int = 0
    next: int = 1


class _IndexFile:
    """One file. While entries are added ``file`` is open and ``slots`` has them as they should be on disk; ``pages`` marks what differs.

    ``last`` is its last entry. ``doubtful`` slots on disk may be ahead of the header. ``unsynced`` is what the disk may not have.
    """

    __slots__ = ("doubtful", "file", "header", "last", "name", "pages", "slots", "unsynced")

    def __init__(self, name: str, header: Header) -> None:
        self.name = name
        self.header = header
        self.last = b""
        self.file: File | None = None
        self.slots = bytearray()
        self.pages = bytearray()
        self.doubtful = False
        self.unsynced = False


class KeyIndex:
    """The index of one store. The thread that appends offers and queries; ``process`` and ``sync`` may run in another meanwhile.

    ``position`` is the place in the log before which every record is indexed. When the disk refuses, ``failure`` tells why and the index
    falls ``behind``: what is stored is only counted then, until somebody reads it from the log to ``add_records`` and has ``caught_up``.
    """

    def __init__(self, fs: FileSystem, directory: str, *, hash_slots: int, entries_per_file: int, clock: Clock) -> None:
        self._fs = fs
        self._directory = directory
        self._shape(hash_slots, entries_per_file)
        self._clock = clock
        self._files: list[_IndexFile] = []
        self._lock = threading.Lock()  # the files, and who takes from ``_pending``
        self._sync_lock = threading.Lock()
        self._pending: deque[Staged] = deque()
        self._offered_end = 0
        self._names_changed = False
        self._loader: threading.Thread | None = None
        self._synced = IndexState(0, hash_slots, entries_per_file, ())
        # The newest indexed record and how many entries it has: when it comes again it gets only those that are missing.
        self._newest = (-1, 0)
        self.position = 0
        self.failure: str | None = None
        self.behind = False

    def _shape(self, hash_slots: int, entries_per_file: int) -> None:
        self._slot_count = hash_slots
        self._file_entries = entries_per_file
        self._entries_at = HEADER_BYTES + 4 * hash_slots
        self._file_bytes = self._entries_at + ENTRY_BYTES * entries_per_file

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
        """Take the files that can be trusted, remove the others, and return the log position from which records must be indexed.

        With a ``state`` those are the files it has, as they were then; ``clean`` says that nothing was indexed after it. Without one they
        are taken as they are when everything in them fits together and the log, when ``keys_at`` reads it, confirms their beginnings and
        some of their entries. Places that are not in ``[log_min, log_end]`` fit neither. Files of other sizes than configured keep theirs,
        and so do all that follow. Raises OSError.
        """
        self._fs.make_dirs(self._directory)
        found = {
            entry.name: entry.size
            for entry in self._fs.list(self._directory)
            if not entry.is_dir and len(entry.name) == NAME_DIGITS and entry.name.isascii() and entry.name.isdigit()
        }
        kept = self._restore(state, found, log_min, clean=clean) if state is not None else self._adopt(found, log_min, log_end, keys_at)
        names = {file.name for file in self._files}
        for name in found:
            if name not in names:
                self._fs.unlink(self._path(name))
                self._names_changed = True
        self._newest = self._find_newest()
        if state is not None and kept:
            self.position = state.position
            self._synced = state
        else:
            self.position = self._files[-1].header.end_physical if self._files else log_min
        self._offered_end = self.position
        if self.position > log_end:
            self.cut(log_end)
        self.expire(log_min)
        self.position = self._offered_end = max(self.position, log_min)
        return self.position

    def _restore(self, state: IndexState, found: dict[str, int], log_min: int, *, clean: bool) -> bool:
        """Take the files of ``state`` that are there as it has them, up to the first that is not; tell whether there is none such."""
        self._shape(state.hash_slots, state.entries_per_file)
        for name, raw, last in state.files:
            file = _IndexFile(name, Header(*HEADER.unpack(raw)))
            if name not in found and not self._files and file.header.end_physical < log_min:
                continue  # expired since
            if found.get(name) != self._file_bytes or not 1 < file.header.next <= self._file_entries:
                return False
            file.last = self._read(file, self._entry_at(file.header.next - 1), ENTRY_BYTES)
            if file.last != last:
                return False
            as_noted = self._read(file, 0, HEADER_BYTES) == raw
            if file.header.next == self._file_entries and not as_noted:
                return False
            if file.header.next < self._file_entries and not (clean and as_noted):
                # More was indexed, of which any part may be on the disk. That is forgotten, and the slots may be ahead as well.
                file.doubtful = file.unsynced = True
                self._erase_behind(file)
            self._files.append(file)
        return True

    def _adopt(self, found: dict[str, int], log_min: int, log_end: int, keys_at: KeysAt | None) -> bool:
        """Take files nobody vouches for, up to the first that does not hold together or does not fit the log; tell whether all do."""
        if found and self._file_bytes not in found.values():
            self._shape_like(max(found))
        for name in sorted(found):
            if found[name] != self._file_bytes:
                return False
            file = _IndexFile(name, Header())
            file.header = header = Header(*HEADER.unpack(self._read(file, 0, HEADER_BYTES)))
            before = self._files[-1].header if self._files else None
            if (
                not 1 < header.next <= self._file_entries
                or not 0 <= header.begin_physical <= header.end_physical < log_end
                or not 0 <= header.begin_ms <= header.end_ms
                or (before is not None and (header.begin_physical < before.end_physical or before.next != self._file_entries))
                or not self._sound(file)
                or (keys_at is not None and not self._confirmed(file, before, log_min, keys_at))
            ):
                return False
            file.last = self._read(file, self._entry_at(header.next - 1), ENTRY_BYTES)
            self._files.append(file)
        return True

    def _shape_like(self, name: str) -> None:
        """Go on with the numbers of slots and entries a file was made with, if its content tells them."""
        from sprocketmq.storage.inspect.inspection import FileView, hash_slots_of

        with FileView(self._fs, self._path(name)) as view:
            slots = hash_slots_of(view)
            entries = (view.size - HEADER_BYTES - 4 * slots) // ENTRY_BYTES if slots else 0
            torn = any(view.read(max(view.size - ENTRY_BYTES, 0), ENTRY_BYTES))  # it ends where the writes did, not where it should
        if not torn and slots and slots <= MAX_COUNT and 1 < entries <= MAX_COUNT:
            self._shape(slots, entries)

    def _sound(self, file: _IndexFile) -> bool:
        """Tell whether slots and chains are what indexing makes of the file's entries, and these stand in the order of the log."""
        from sprocketmq.storage.index import index_arrays

        header = file.header
        slots = bytearray(4 * self._slot_count)
        used = 0
        place = header.begin_physical
        for first, block in self._blocks(file):
            places = index_arrays.relink(slots, block, first)
            if places is None or places[0] < place:
                return False
            place = places[1]
            used += places[2]
        return used == header.used_slots and place == header.end_physical and slots == self._read_slots(file)

    def _confirmed(self, file: _IndexFile, before: Header | None, log_min: int, keys_at: KeysAt) -> bool:
        """Tell whether the log has the keys of some entries of the file, the last one among them, and none between it and the one before."""
        count = file.header.next
        for number in {max(1, count - 1 - i * count // _SAMPLES) for i in range(_SAMPLES)}:
            hash_, physical, _, _ = self._entry(file, number)
            if physical >= log_min:
                record = keys_at(physical)
                if record is None or hash_ not in record[0]:
                    return False
        place = log_min
        if before is not None and before.end_physical >= log_min:
            if before.end_physical == file.header.begin_physical:
                return True
            record = keys_at(before.end_physical)
            if record is None:
                return False
            place = record[1]
        while place < file.header.begin_physical:
            record = keys_at(place)
            if record is None or record[0]:
                return False
            place = record[1]
        return True

    def _find_newest(self) -> tuple[int, int]:
        """Return the place of the newest indexed record and how many entries it has."""
        place, entries = -1, 0
        for file in reversed(self._files):
            for number in range(file.header.next - 1, 0, -1):
                physical = self._entry(file, number)[1]
                if entries and physical != place:
                    return place, entries
                place = physical
                entries += 1
        return place, entries

    def cut(self, log_end: int) -> None:
        """Drop the entries of records at or behind ``log_end``: the log turned out to end there. Raises OSError."""
        with self._lock:
            while self._files and self._files[-1].header.end_physical >= log_end:
                file = self._files[-1]
                count = self._first_at(file, log_end)
                if count == 1:
                    self._remove(self._files.pop())
                    continue
                file.last = self._read(file, self._entry_at(count - 1), ENTRY_BYTES)
                _, physical, seconds, _ = ENTRY.unpack(file.last)
                end_ms = min(file.header.end_ms, file.header.begin_ms + seconds * 1000)
                file.header = file.header._replace(end_ms=end_ms, end_physical=physical, next=count)
                file.slots = bytearray()
                file.doubtful = file.unsynced = True
                self._erase_behind(file)
            self._newest = self._find_newest()
            self.position = self._offered_end = min(self.position, log_end)

    def _first_at(self, file: _IndexFile, place: int) -> int:
        """Return the number of the first entry at or behind a place in the log."""
        low, high = 1, file.header.next
        while low < high:
            middle = (low + high) // 2
            if self._entry(file, middle)[1] < place:
                low = middle + 1
            else:
                high = middle
        return low

    # --- what was stored ---

    def offer(self, staged: Iterable[Staged], end: int) -> None:
        """Take what a commit stored; the log now ends at ``end``. Mostly this only keeps it, past a limit it is indexed at once.

        Records of rolled back transactions are not offered. Never raises; a disk that refuses shows in ``failure``.
        """
        if self.behind:
            with self._lock:
                if self.behind:
                    self._offered_end = end
                    return
        self._pending.extend(staged)
        self._offered_end = end
        waiting = end - self.position
        if (waiting >= MAX_PENDING_BYTES or len(self._pending) >= MAX_PENDING_SENDS) and self._has_arrays(waiting):
            self.process(_INLINE_MESSAGES)

    def _has_arrays(self, waiting: int) -> bool:
        """Have numpy loaded in a thread, and tell whether it is, or too much waits to go on waiting for it."""
        if self._loader is None:
            if "sprocketmq.storage.index.index_arrays" in sys.modules:
                return True
            self._loader = threading.Thread(target=_load_arrays, name="sprocketmq-numpy", daemon=True)
            self._loader.start()
        if self._loader.is_alive() and waiting < MAX_PENDING_BYTES_WHILE_LOADING:
            return False
        self._loader.join()
        self._loader = None
        return True

    def process(self, most: int = sys.maxsize) -> None:
        """Index what was offered before the call, or about ``most`` messages of it.

        Never raises; a disk that refuses shows in ``failure``.
        """
        with self._lock:
            if self.behind:
                return
            end = self._offered_end
            staged: list[Staged] = []
            while self._pending and most > 0:  # the appending thread may add more meanwhile, whose end then is later than ``end``
                staged.append(self._pending.popleft())
                most -= _message_count(staged[-1])
            if self._pending:
                following = self._pending[0][2]
                end = min(end, following if isinstance(following, int) else following[0])
            self._do(lambda: self._index(staged), end)

    def drain(self) -> None:
        """Index everything that was offered, for a thread of its own: queries and inline indexing have their turn between pieces.

        Never raises; a disk that refuses shows in ``failure``.
        """
        if sum(map(_message_count, self._pending.copy())) >= PLAIN_MESSAGES:
            _load_arrays()  # takes long the first time, and nobody is to wait for it
        while self._pending and not self.behind:
            self.process(_INLINE_MESSAGES)

    def _do(self, work: Callable[[], None], end: int) -> None:
        """Index what lies before ``end`` of the log, or fall behind."""
        try:
            work()
        except OSError as e:
            self._fall_behind(e)
        else:
            self.position = max(self.position, end)
            self._offered_end = max(self._offered_end, end)

    def _fall_behind(self, error: OSError) -> None:
        self.failure = error.strerror or str(error)
        self.behind = True
        self._pending.clear()

    def add_records(self, records: Iterable[Scanned], end: int) -> None:
        """Index records read from the log, in its order, up to ``end``; those that are indexed already are skipped.

        Never raises; a disk that refuses shows in ``failure``, and nothing is added any more.
        """
        staged = [
            (topic.decode("utf-8", "replace"), properties, physical, time_ms)
            for topic, _, _, physical, _, _, sys_flag, time_ms, _, properties in records
            if sys_flag & SYSFLAG_TRANSACTION_MASK != ROLLED_BACK
        ]
        with self._lock:
            if self.failure is None:
                self._do(lambda: self._index(staged), end)

    def add_entries(self, entries: "KeyEntries", end: int) -> None:
        """Index entries of the records of the log up to ``end``. Otherwise as ``add_records``."""
        with self._lock:
            if self.failure is None:
                self._do(lambda: self._add(entries), end)

    def resume(self) -> int:
        """Forget the failure and return the log position from which ``add_records`` has to go on. May raise OSError."""
        with self._lock:
            for file in self._files[-1:]:
                file.slots = bytearray()  # these name entries that were never written
                file.doubtful = True
            self._newest = self._find_newest()
            self.failure = None
            return self.position

    def caught_up(self) -> bool:
        """Go on indexing what is offered if ``add_records`` has got to the end of it; tell whether that is so."""
        with self._lock:
            if self.failure is None and self.position >= self._offered_end:
                self._pending.clear()
                self.behind = False
            return not self.behind

    def _index(self, staged: Sequence[Staged]) -> None:
        if "sprocketmq.storage.index.index_arrays" not in sys.modules and sum(map(_message_count, staged)) < PLAIN_MESSAGES:
            self._add_plainly(staged)
            return
        if not staged:
            return
        import numpy as np

        from sprocketmq.storage.index.key_hashing import entries_of_topics

        topics, strings, places, times = zip(*staged, strict=True)
        properties: Sequence[bytes] = strings
        numbers = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
        names = [topic.encode() for topic in numbers]
        owners = np.fromiter(map(numbers.__getitem__, topics), np.int64, len(staged))
        times_ms = np.array(times, np.int64)
        if list in set(map(type, strings)):
            several = [[one] if isinstance(one, bytes) else one for one in strings]
            counts = np.fromiter(map(len, several), np.int64, len(several))
            owners, times_ms = np.repeat(owners, counts), np.repeat(times_ms, counts)
            properties = list(chain.from_iterable(several))
            places = tuple(chain.from_iterable([one] if isinstance(one, int) else one for one in places))
        physicals = np.fromiter(places, np.int64, len(properties))
        lengths = np.fromiter(map(len, properties), np.int64, len(properties))
        ends = np.cumsum(lengths)
        borders = np.searchsorted(ends, np.arange(_SLICE_BYTES, ends[-1], _SLICE_BYTES), "right")
        for begin, end in pairwise([0, *np.unique(borders).tolist(), len(properties)]):
            some = slice(begin, end)
            self._add(entries_of_topics(names, owners[some], properties[some], physicals[some], times_ms[some], lengths[some]))

    def _add(self, entries: "KeyEntries") -> None:
        from sprocketmq.storage.index import index_arrays

        hashes, physicals, times_ms = entries
        done, self._newest = index_arrays.known(physicals, self._newest)
        while done < len(physicals):
            file = self._writable(len(physicals) - done)
            header = file.header
            stop = min(len(physicals), done + self._file_entries - header.next)
            seconds = _first_seconds(header, int(times_ms[done]))
            data, used = index_arrays.link(
                file.slots, file.pages, header, seconds, hashes[done:stop], physicals[done:stop], times_ms[done:stop]
            )
            self._write(file, data, used, int(times_ms[done]), int(times_ms[stop - 1]))
            done = stop

    def _add_plainly(self, staged: Sequence[Staged]) -> None:
        """Index a few records without numpy."""
        place, known = self._newest
        entries = []
        seen = 0
        for topic, strings, places, time_ms in staged:
            several = [strings] if isinstance(strings, bytes) else strings
            for physical, properties in zip([places] if isinstance(places, int) else places, several, strict=True):
                if physical > place:
                    place, known = physical, 0
                    seen = 0
                for key in record_keys(topic, properties) if physical == place else ():
                    seen += 1
                    if seen > known:
                        known = seen
                        entries.append((key_hash(key), physical, time_ms))
        done = 0
        while done < len(entries):
            file = self._writable(len(entries) - done)
            header = file.header
            part = entries[done : done + self._file_entries - header.next]
            begin_ms = header.begin_ms if header.next > 1 else part[0][2]
            first_seconds = _first_seconds(header, part[0][2])
            data = []
            used = 0
            for number, (hash_, physical, time_ms) in enumerate(part, header.next):
                at = 4 * (hash_ % self._slot_count)
                before = _INT.unpack_from(file.slots, at)[0]
                used += not before
                _INT.pack_into(file.slots, at, number)
                file.pages[at // (4 * _PAGE_SLOTS)] = 1
                seconds = first_seconds if number == header.next else _seconds(time_ms - begin_ms)
                data.append(ENTRY.pack(hash_, physical, seconds, before))
            self._write(file, b"".join(data), used, part[0][2], part[-1][2])
            done += len(part)
        self._newest = (place, known)

    def _write(self, file: _IndexFile, data: bytes, used: int, begin_ms: int, end_ms: int) -> None:
        """Write new entries whose slots are set already."""
        header = file.header
        assert file.file is not None
        file.unsynced = True
        file.file.pwrite(data, self._entry_at(header.next))
        first, last = ENTRY.unpack_from(data), ENTRY.unpack(data[-ENTRY_BYTES:])
        file.last = data[-ENTRY_BYTES:]
        fresh = header.next == 1
        file.header = Header(
            begin_ms if fresh else header.begin_ms,
            end_ms,
            first[1] if fresh else header.begin_physical,
            last[1],
            header.used_slots + used,
            header.next + len(data) // ENTRY_BYTES,
        )

    def _writable(self, entries: int) -> _IndexFile:
        """Return the newest file, or a new one when it is full, ready to take some entries."""
        if not self._files or self._files[-1].header.next >= self._file_entries:
            self._start_file()
        file = self._files[-1]
        if file.file is None:
            file.file = self._fs.open(self._path(file.name))
        if not file.slots:
            self._load_slots(file)
        return file

    def begin(self, name: str, before: Header | None) -> None:
        """Make the first file of an index that has none under a given ``name``: one that follows a full file with the header ``before``.

        So several indexes can make the files of one row side by side. Raises OSError.
        """
        with self._lock:
            assert not self._files
            self._make_file(name, before)

    def _start_file(self) -> None:
        before = None
        if self._files:
            full = self._files[-1]
            self._write_out(full)
            self._shut(full)
            before = full.header
        self._make_file(next_name(self._files[-1].name if self._files else "", self._clock.time_ms()), before)

    def _make_file(self, name: str, before: Header | None) -> None:
        # The reference fills in what the new file will at least have; times count from there.
        header = Header() if before is None else Header(before.end_ms, before.end_ms, before.end_physical, before.end_physical)
        self._fs.make_dirs(self._directory)
        opened = self._fs.open(self._path(name), create=True)
        file = _IndexFile(name, header)
        file.file = opened
        self._names_changed = True
        try:
            opened.truncate(self._file_bytes)
        except OSError:
            self._remove(file)
            raise
        file.slots = bytearray(4 * self._slot_count)  # the system gives the memory page by page as slots are used
        file.pages = bytearray(self._page_count)
        self._files.append(file)

    def _load_slots(self, file: _IndexFile) -> None:
        """Have the slots of a file in memory."""
        slots = self._read_slots(file)
        file.pages = bytearray(self._page_count)
        if file.doubtful or "sprocketmq.storage.index.index_arrays" in sys.modules:
            from sprocketmq.storage.index import index_arrays

            if index_arrays.used_slots(slots, file.header.next) != file.header.used_slots:
                slots = bytearray(4 * self._slot_count)
                for first, block in self._blocks(file):
                    index_arrays.place(slots, block, first)
                file.header = file.header._replace(used_slots=index_arrays.used_slots(slots, file.header.next))
                file.pages = bytearray(b"\x01") * self._page_count
                file.unsynced = True
            file.doubtful = False
        file.slots = slots

    def _read_slots(self, file: _IndexFile) -> bytearray:
        """Return the slots as they are in the file; of a file with few entries most of them are a hole, which is not read."""
        slots = bytearray(4 * self._slot_count)
        opened = file.file or self._fs.open(self._path(file.name), read_only=True)
        try:
            at = opened.data_after(HEADER_BYTES)
            while at is not None and at < self._entries_at:
                data = opened.pread(min(_SLOT_PIECE_BYTES, self._entries_at - at), at)
                slots[at - HEADER_BYTES : at - HEADER_BYTES + len(data)] = data
                at = opened.data_after(at + len(data)) if data else None
        finally:
            if opened is not file.file:
                opened.close()
        return slots

    def lag(self) -> tuple[int, int]:
        """Return how many bytes of the log are not indexed yet, and for how many milliseconds the oldest message has been waiting."""
        try:
            since = self._pending[0][3]
        except IndexError:
            since = self._clock.time_ms()
        return max(0, self._offered_end - self.position), max(0, self._clock.time_ms() - since)

    # --- queries ---

    def candidates(self, key: str, *, begin_ms: int = 0, end_ms: int = 1 << 62) -> Iterator[int]:
        """Yield the places of records whose key string hashes as ``key`` does, the newest first, stored in ``[begin_ms, end_ms]``.

        A second of the bounds is inexact, and another key may have the same hash: compare with the record. A record can come twice. May
        raise OSError.
        """
        self.process()
        hash_ = key_hash(key)
        with self._lock:
            newest = self._files[-1] if self._files else None
            if newest is not None and newest.doubtful:
                self._load_slots(newest)
            files = [(file, file.header) for file in self._files]
            at = 4 * (hash_ % self._slot_count)
            head = _INT.unpack_from(newest.slots, at)[0] if newest is not None and newest.slots else -1
        for file, header in reversed(files):
            if header.next > 1 and header.begin_ms <= end_ms and header.end_ms + _RESOLUTION_MS > begin_ms:
                opened = self._fs.open(self._path(file.name), read_only=True)
                try:
                    number = head if head >= 0 and file is newest else _INT.unpack(opened.pread(4, HEADER_BYTES + at))[0]
                    for physical, time_ms in self._chain(opened, header, number, hash_):
                        if time_ms + _RESOLUTION_MS <= begin_ms:
                            break
                        if time_ms <= end_ms:
                            yield physical
                finally:
                    opened.close()

    def _chain(self, opened: File, header: Header, number: int, hash_: int) -> Iterator[tuple[int, int]]:
        """Yield place and time of the entries with this hash in the chain from entry ``number`` back."""
        below = header.next  # entries from here on have been seen
        slot = hash_ % self._slot_count
        for _ in range(MAX_CHAIN_STEPS):
            if number == 0:
                return
            if not 0 < number < below:
                break
            found, physical, seconds, before = ENTRY.unpack(opened.pread(ENTRY_BYTES, self._entry_at(number)))
            if found == hash_:
                yield physical, header.begin_ms + (seconds * 1000 if number > 1 else 0)
            elif found % self._slot_count != slot:
                break  # not of this chain, so the link to it is damaged
            below, number = number, before
        from sprocketmq.storage.index import index_arrays

        for stop in range(below, 1, -_BLOCK_ENTRIES):
            start = max(1, stop - _BLOCK_ENTRIES)
            block = opened.pread((stop - start) * ENTRY_BYTES, self._entry_at(start))
            for index, physical, seconds in index_arrays.with_hash(block, hash_):
                yield physical, header.begin_ms + (seconds * 1000 if start + index > 1 else 0)

    # --- upkeep ---

    def sync(self) -> IndexState:
        """Index what was offered, bring all of it to the disk and return what is there then. Raises OSError when the disk fails.

        A disk that is merely full leaves the state of the last sync, and shows in ``failure``.
        """
        with self._sync_lock:
            self.process()
            with self._lock:
                if self.behind:
                    return self._synced
                changed = [file for file in self._files if file.unsynced]
                try:
                    for file in changed:
                        self._write_out(file)
                except OSError as e:
                    self._fall_behind(e)
                    return self._synced
                for file in changed:
                    file.unsynced = False
                states = tuple(FileState(file.name, HEADER.pack(*file.header), file.last) for file in self._files if file.header.next > 1)
                state = IndexState(self.position, self._slot_count, self._file_entries, states)
            for file in changed:
                opened = self._fs.open(self._path(file.name))
                try:
                    opened.fdatasync()
                finally:
                    opened.close()
            if self._names_changed:
                self._names_changed = False
                self._fs.fsync_dir(self._directory)
            self._synced = state
            return state

    @property
    def newest(self) -> tuple[int, int]:
        """Store time (ms) and place of the newest indexed record, zeros when there is none."""
        return (self._files[-1].header.end_ms, self._files[-1].header.end_physical) if self._files else (0, 0)

    @property
    def full_until_ms(self) -> int:
        """The store time (ms) of the last entry of the newest file that is full, 0 without one: up to then no entry will change."""
        return next((file.header.end_ms for file in reversed(self._files) if file.header.next >= self._file_entries), 0)

    def expire(self, log_min: int) -> list[str]:
        """Remove the files whose records have all left the log, never the newest; return their paths. Raises OSError."""
        removed = []
        with self._sync_lock, self._lock:
            while len(self._files) > 1 and self._files[0].header.end_physical < log_min:
                file = self._files.pop(0)
                self._remove(file)
                removed.append(self._path(file.name))
        return removed

    def close(self) -> None:
        """Let go of the files without writing anything; twice is fine."""
        with self._sync_lock, self._lock:
            for file in self._files:
                self._shut(file)
            self._files = []
            self._pending.clear()
        if self._loader is not None:
            self._loader.join()
            self._loader = None

    # --- files ---

    @property
    def _page_count(self) -> int:
        return -(-self._slot_count // _PAGE_SLOTS)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _entry_at(self, number: int) -> int:
        return self._entries_at + ENTRY_BYTES * number

    def _read(self, file: _IndexFile, at: int, length: int) -> bytes:
        """Return bytes of a file, zeros where it is shorter."""
        opened = file.file or self._fs.open(self._path(file.name), read_only=True)
        try:
            return opened.pread(length, at).ljust(length, b"\0")
        finally:
            if opened is not file.file:
                opened.close()

    def _entry(self, file: _IndexFile, number: int) -> tuple[int, int, int, int]:
        return ENTRY.unpack(self._read(file, self._entry_at(number), ENTRY_BYTES))

    def _blocks(self, file: _IndexFile) -> Iterator[tuple[int, bytes]]:
        """Yield the entries of a file in blocks, with the number of each block's first."""
        for first in range(1, file.header.next, _BLOCK_ENTRIES):
            stop = min(first + _BLOCK_ENTRIES, file.header.next)
            yield first, self._read(file, self._entry_at(first), (stop - first) * ENTRY_BYTES)

    def _write_out(self, file: _IndexFile) -> None:
        """Write the header and the slots that changed."""
        if file.doubtful:
            self._load_slots(file)
        opened = file.file or self._fs.open(self._path(file.name))
        try:
            for run in _RUN.finditer(bytes(file.pages)):
                begin, end = (at * 4 * _PAGE_SLOTS for at in run.span())
                opened.pwrite(file.slots[begin:end], HEADER_BYTES + begin)
            opened.pwrite(HEADER.pack(*file.header), 0)
        finally:
            if opened is not file.file:
                opened.close()
        file.pages = bytearray(len(file.pages))

    def _erase_behind(self, file: _IndexFile) -> None:
        """Make the room behind the last entry zeros again."""
        opened = file.file or self._fs.open(self._path(file.name))
        try:
            opened.truncate(self._entry_at(file.header.next))
            opened.truncate(self._file_bytes)
        finally:
            if opened is not file.file:
                opened.close()

    def _shut(self, file: _IndexFile) -> None:
        file.slots = bytearray()
        if file.file is not None:
            file.file.close()
            file.file = None

    def _remove(self, file: _IndexFile) -> None:
        self._shut(file)
        self._names_changed = True
        with contextlib.suppress(FileNotFoundError):
            self._fs.unlink(self._path(file.name))


def _message_count(send: Staged) -> int:
    return 1 if isinstance(send[1], bytes) else len(send[1])


def _seconds(elapsed_ms: int) -> int:
    return min(max(elapsed_ms, 0) // 1000, _LATEST_SECONDS)


def _first_seconds(header: Header, time_ms: int) -> int:
    """Return the seconds of the entry that comes next: in a fresh file they count from what the header was filled with."""
    return _seconds(time_ms - header.begin_ms) if header.begin_ms > 0 else 0


def _load_arrays() -> None:
    from sprocketmq.storage.index import index_arrays, key_hashing  # noqa: F401


def next_name(last: str, now_ms: int) -> str:
    """Return the local time as 17 digits, later than the name ``last`` even when the clock went back."""
    local = datetime.fromtimestamp(now_ms // 1000) + timedelta(milliseconds=now_ms % 1000)  # noqa: DTZ006
    name = _digits(local)
    if name > last:
        return name
    try:
        after = datetime.strptime(last[:14], "%Y%m%d%H%M%S") + timedelta(milliseconds=int(last[14:]) + 1)  # noqa: DTZ007
    except (ValueError, OverflowError):
        return f"{int(last) + 1:017d}"  # another program's name, no time
    return _digits(after)


def _digits(time: datetime) -> str:
    return f"{time:%Y%m%d%H%M%S}{time.microsecond // 1000:03d}"
