"""Which index files a start can trust: those of the last sync's state or, without a state, those whose content passes a check."""

from collections.abc import Callable, Sequence

from sprocketmq.protocol.layout import INDEX_ENTRY_BYTES, INDEX_HEADER, INDEX_HEADER_BYTES
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.index.index_file import IndexFile
from sprocketmq.storage.index.index_format import FileShape, IndexHeader
from sprocketmq.storage.index.index_state import IndexState
from sprocketmq.storage.index.slot_count import shape_of

# Reads the log for the index: the key hashes of the record at a log offset and where the next record begins; None without a record there.
KeysAt = Callable[[int], tuple[Sequence[int], int] | None]

# Entries of a file without a state that are compared with the log.
_SAMPLES = 16


def restore(
    fs: FileSystem, directory: str, state: IndexState, sizes: dict[str, int], log_min: int, *, clean: bool
) -> tuple[list[IndexFile], bool]:
    """Return the files that are as ``state`` has them, up to the first that is not, and whether there is no such file.

    ``sizes`` are those of the files in the directory. Files whose records have all left the log (before ``log_min``) may be missing.
    ``clean``: nothing was indexed after the state was taken. Raises OSError.
    """
    shape = state.shape
    files: list[IndexFile] = []
    for name, raw_header, last_entry in state.files:
        file = IndexFile(fs, directory, name, shape, IndexHeader(*INDEX_HEADER.unpack(raw_header)))
        if name not in sizes and not files and file.header.end_log_offset < log_min:
            continue  # expired meanwhile
        if sizes.get(name) != shape.file_bytes or not 1 < file.header.next_entry <= shape.entries:
            return files, False
        file.last_entry = file.read_last_entry()
        if file.last_entry != last_entry:
            return files, False
        same_header = file.read(0, INDEX_HEADER_BYTES) == raw_header
        if file.full and not same_header:
            return files, False
        if not file.full and not (clean and same_header):
            # More was indexed, and any part of that may be on disk. It is dropped; slots on disk may name dropped entries.
            file.doubtful = file.unsynced = True
            file.clear_rest()
        files.append(file)
    return files, True


def adopt(
    fs: FileSystem, directory: str, shape: FileShape, sizes: dict[str, int], log_min: int, log_end: int, keys_at: KeysAt | None
) -> tuple[list[IndexFile], FileShape]:
    """Return the files that are consistent in themselves, up to the first that is not, and their shape; for an index without a state.

    With ``keys_at`` the log must confirm some entries of each file as well. Log offsets must be in ``[log_min, log_end]``. When no file has
    the size that ``shape`` gives, the shape is taken from the content of the newest file. Raises OSError.
    """
    if sizes and shape.file_bytes not in sizes.values():
        shape = _shape_of_file(fs, f"{directory}/{max(sizes)}") or shape
    files: list[IndexFile] = []
    for name in sorted(sizes):
        if sizes[name] != shape.file_bytes:
            break
        file = IndexFile(fs, directory, name, shape, IndexHeader())
        header = file.header = file.read_header()
        before = files[-1] if files else None
        if (
            not 1 < header.next_entry <= shape.entries
            or not 0 <= header.begin_log_offset <= header.end_log_offset < log_end
            or not 0 <= header.begin_ms <= header.end_ms
            or (before is not None and (header.begin_log_offset < before.header.end_log_offset or not before.full))
            or not _is_consistent(file)
            or (keys_at is not None and not _is_confirmed(file, before, log_min, keys_at))
        ):
            break
        file.last_entry = file.read_last_entry()
        files.append(file)
    return files, shape


def _shape_of_file(fs: FileSystem, path: str) -> FileShape | None:
    with FileView(fs, path) as view:
        if any(view.read(max(view.size - INDEX_ENTRY_BYTES, 0), INDEX_ENTRY_BYTES)):
            return None  # truncated: the file ends in the middle of its entries, so its size is no evidence
        return shape_of(view)


def _is_consistent(file: IndexFile) -> bool:
    """Return whether the slots and chains are those that indexing the entries would make, and the entries are in log order."""
    from sprocketmq.storage.index import index_arrays

    header = file.header
    slots = bytearray(4 * file.shape.hash_slots)
    used = 0
    log_offset = header.begin_log_offset
    for first, block in file.blocks():
        linked = index_arrays.relink(slots, block, first)
        if linked is None or linked.first_log_offset < log_offset:
            return False
        log_offset = linked.last_log_offset
        used += linked.used_slots
    return used == header.used_slots and log_offset == header.end_log_offset and slots == file.read_slots()


def _is_confirmed(file: IndexFile, before: IndexFile | None, log_min: int, keys_at: KeysAt) -> bool:
    """Return whether the log has the keys of some entries, the last among them, and has none between this file and the one before."""
    count = file.header.next_entry
    for number in {max(1, count - 1 - i * count // _SAMPLES) for i in range(_SAMPLES)}:
        hash_, log_offset, _, _ = file.entry(number)
        if log_offset >= log_min:
            record = keys_at(log_offset)
            if record is None or hash_ not in record[0]:
                return False
    log_offset = log_min
    if before is not None and before.header.end_log_offset >= log_min:
        if before.header.end_log_offset == file.header.begin_log_offset:
            return True
        record = keys_at(before.header.end_log_offset)
        if record is None:
            return False
        log_offset = record[1]
    while log_offset < file.header.begin_log_offset:
        record = keys_at(log_offset)
        if record is None or record[0]:
            return False
        log_offset = record[1]
    return True
