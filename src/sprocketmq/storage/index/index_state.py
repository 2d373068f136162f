"""The state of the index after a sync, which the store keeps in its snapshot for the next start."""

import struct
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from sprocketmq.protocol.layout import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES
from sprocketmq.storage.index.index_format import NAME_DIGITS, FileShape

_STATE = Struct(">4sqii")
_FILE_STATE = Struct(f">{NAME_DIGITS}s{INDEX_HEADER_BYTES}s{INDEX_ENTRY_BYTES}s")
_MAGIC = b"KIX1"


class FileState(NamedTuple):
    """One file after a sync: its name, its header and its last entry, the latter two as in the file."""

    name: str
    header: bytes
    last_entry: bytes


@dataclass(frozen=True)
class IndexState:
    """What is on disk after a sync: ``files`` have the entries of every record before log offset ``indexed_end``."""

    indexed_end: int
    hash_slots: int
    entries_per_file: int
    files: tuple[FileState, ...]

    @property
    def shape(self) -> FileShape:
        return FileShape(self.hash_slots, self.entries_per_file)

    def encode(self) -> bytes:
        """Return the state as bytes, for the store's snapshot."""
        head = _STATE.pack(_MAGIC, self.indexed_end, self.hash_slots, self.entries_per_file)
        return head + b"".join(_FILE_STATE.pack(name.encode(), header, last) for name, header, last in self.files)

    @classmethod
    def decode(cls, data: bytes) -> "IndexState | None":
        """Return the state in ``data``, None when ``data`` is not one."""
        try:
            magic, indexed_end, hash_slots, entries_per_file = _STATE.unpack_from(data)
            files = tuple(
                FileState(name.decode("ascii"), header, last) for name, header, last in _FILE_STATE.iter_unpack(data[_STATE.size :])
            )
        except (struct.error, UnicodeDecodeError):
            return None
        return (
            cls(indexed_end, hash_slots, entries_per_file, files)
            if magic == _MAGIC and FileShape(hash_slots, entries_per_file).possible
            else None
        )
