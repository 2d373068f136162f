"""The index files of an audit: their number of entries, and the stretch of the log they cover."""

from typing import NamedTuple

from sprocketmq.protocol.layout import INDEX_ENTRY_BYTES, INDEX_ENTRY_LAYOUT, INDEX_HEADER, INDEX_HEADER_BYTES
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.index.slot_count import hash_slots_of

_LOG_OFFSET = INDEX_ENTRY_LAYOUT.part("log_offset")


class AuditedIndexFile(NamedTuple):
    """An index file: entries 1 to ``entries``, which point to log offsets from ``begin`` to ``end``."""

    path: str
    slots: int
    entries: int
    begin: int
    end: int
    begin_ms: int

    def entry_at(self, number: int) -> int:
        """Return the position of an entry in the file."""
        return INDEX_HEADER_BYTES + 4 * self.slots + INDEX_ENTRY_BYTES * number


def index_file(fs: FileSystem, path: str, slots: int | None) -> AuditedIndexFile | None:
    """Describe an index file; None when it has no entries or their number cannot be determined. Raises OSError.

    ``slots`` is its number of hash slots where known.
    """
    with FileView(fs, path) as view:
        raw = view.read(0, INDEX_HEADER_BYTES)
        slots = (slots or hash_slots_of(view)) if len(raw) == INDEX_HEADER_BYTES else None
        if not slots:
            return None
        begin_ms, _, _, _, _, count = INDEX_HEADER.unpack(raw)
        entries = min(count, (view.size - INDEX_HEADER_BYTES - 4 * slots) // INDEX_ENTRY_BYTES) - 1
        if entries <= 0:
            return None
        file = AuditedIndexFile(path, slots, entries, 0, 0, begin_ms)
        begin, end = (_LOG_OFFSET.unpack(view.read(file.entry_at(number), _LOG_OFFSET.size))[0] for number in (1, entries))
    return file._replace(begin=begin, end=end)
