"""The sizes, names and header of key index files. ``protocol/layout.py`` draws header, slots and entries.

A file is a hash table: entries are in log order, and those of one slot form a chain from the newest to the oldest. Nothing in a file states
the numbers of slots and entries. Its name is the local time of its creation, 17 digits; names only ever grow.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from sprocketmq.protocol.layout import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES

NAME_DIGITS = 17
MAX_COUNT = 100_000_000  # slots, and entries, of a file
MAX_SECONDS = 0x7FFFFFFF
# The slots of a file that takes entries are kept in memory; those that changed are written in pages of this many (4 KiB).
PAGE_SLOTS = 1024


class IndexHeader(NamedTuple):
    """The header of a file."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_log_offset: int = 0
    end_log_offset: int = 0
    used_slots: int = 0
    next_entry: int = 1

    def successor(self) -> "IndexHeader":
        """Return the header of the new file that follows a full one: the reference fills in the end of the full file."""
        return IndexHeader(self.end_ms, self.end_ms, self.end_log_offset, self.end_log_offset)

    def first_seconds(self, time_ms: int) -> int:
        """Return the seconds of an entry that is the first of those added now: in a new file they count from the times filled in."""
        return elapsed_seconds(time_ms - self.begin_ms) if self.begin_ms > 0 else 0


class FileShape(NamedTuple):
    """The numbers of slots and of entries of a file, entry 0 included. All files of an index have the same shape."""

    hash_slots: int
    entries: int

    @property
    def entries_pos(self) -> int:
        """The file position of entry 0."""
        return INDEX_HEADER_BYTES + 4 * self.hash_slots

    @property
    def file_bytes(self) -> int:
        return self.entries_pos + INDEX_ENTRY_BYTES * self.entries

    @property
    def page_count(self) -> int:
        return -(-self.hash_slots // PAGE_SLOTS)

    @property
    def possible(self) -> bool:
        """Whether both numbers are in the range of what a file can have."""
        return 0 < self.hash_slots <= MAX_COUNT and 1 < self.entries <= MAX_COUNT

    def entry_pos(self, number: int) -> int:
        """Return the file position of an entry."""
        return INDEX_HEADER_BYTES + 4 * self.hash_slots + INDEX_ENTRY_BYTES * number


def elapsed_seconds(elapsed_ms: int) -> int:
    """Return a time difference as entries store it."""
    return min(max(elapsed_ms, 0) // 1000, MAX_SECONDS)


def is_file_name(name: str) -> bool:
    """Return whether an index file can have this name."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def next_name(last: str, now_ms: int) -> str:
    """Return the local time as 17 digits, later than the name ``last`` even when the clock went back."""
    local = datetime.fromtimestamp(now_ms // 1000) + timedelta(milliseconds=now_ms % 1000)  # noqa: DTZ006
    name = _name_of(local)
    if name > last:
        return name
    try:
        after = datetime.strptime(last[:14], "%Y%m%d%H%M%S") + timedelta(milliseconds=int(last[14:]) + 1)  # noqa: DTZ007
    except (ValueError, OverflowError):
        return f"{int(last) + 1:017d}"  # a name from another program that is not a time
    return _name_of(after)


def _name_of(time: datetime) -> str:
    return f"{time:%Y%m%d%H%M%S}{time.microsecond // 1000:03d}"
