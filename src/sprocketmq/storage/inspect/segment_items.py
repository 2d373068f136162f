"""Inspecting a segment of the commit log: its records, what is damaged between them, its end."""

from collections.abc import Iterator

from sprocketmq.protocol.layout import FIXED_OVERHEAD, INT32, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_LAYOUT
from sprocketmq.storage.file_view import WINDOW_BYTES, ZEROS, FileView, occurrences
from sprocketmq.storage.inspect.items import Field, Item, NotAStoreFile
from sprocketmq.storage.inspect.record_items import dissect

# Nested forgeries could make the search for the next record compute checksums for hours; after this many bytes only short records count.
SEARCH_BUDGET_BYTES = 4 << 30
_ALWAYS_SEARCHED_BYTES = 64 << 10

_IDENTITY = RECORD_LAYOUT.part("size", "magic", "log_offset")
MAGICS = (INT32.pack(MAGIC_V1), INT32.pack(MAGIC_V2))


def log_items(view: FileView, segment_start: int, *, segment_bytes: int = 0, start: int = 0) -> Iterator[Item]:
    """Yield the records of a segment from file position ``start`` on, what is damaged between them, its BLANK or its unwritten rest.

    ``segment_start`` is the segment's log offset, ``segment_bytes`` the length of the log's segments (default: of this file). An item
    should begin at ``start``.
    """
    segment_bytes = max(segment_bytes, view.size)
    file_pos = start
    while file_pos < view.size:
        room = segment_bytes - file_pos
        head = view.read(file_pos, 8)
        if head == ZEROS[: len(head)] and view.data_from(file_pos) >= view.size:
            yield Item("unwritten", segment_start + file_pos, file_pos, view.size - file_pos)
            return
        if len(head) == 8 and INT32.unpack_from(head, 4)[0] == MAGIC_BLANK:
            left = INT32.unpack(head[:4])[0]
            marks = (Field("size", 0, 4, left), Field("magic", 4, 4, "blank"))
            if left == room:
                yield Item("blank", segment_start + file_pos, file_pos, view.size - file_pos, marks)
                return
            problem = f"a BLANK of {left} bytes where {room} are left in the segment"
            found = Item("damaged", segment_start + file_pos, file_pos, 8, marks, problem)
        else:
            found = dissect(view, file_pos, segment_start, room)
        if found.problem:
            end = next_record(view, file_pos, segment_start, segment_bytes)
            yield found._replace(length=end - file_pos)
            file_pos = end
        else:
            yield found
            file_pos += found.length


def topic_items(view: FileView, segment_start: int, topic: str, *, segment_bytes: int = 0, start: int = 0) -> Iterator[Item]:
    """Yield the records of one topic in a segment from file position ``start`` on, and what is damaged."""
    # Late: it loads numpy, which takes 0.1 s.
    from sprocketmq.storage.inspect.log_windows import parse_window

    name = topic.encode()
    segment_bytes = max(segment_bytes, view.size)
    file_pos = start
    while file_pos < view.size:
        window, used = parse_window(view.read(file_pos, WINDOW_BYTES), segment_start + file_pos)
        for log_offset, found in zip(window.log_offsets.tolist(), window.topics, strict=True):
            if found == name:
                yield dissect(view, log_offset - segment_start, segment_start, segment_bytes - (log_offset - segment_start))
        file_pos += used
        if not used:
            item = next(log_items(view, segment_start, segment_bytes=segment_bytes, start=file_pos))
            if item.problem or item.get("topic") == topic:
                yield item
            file_pos += item.length


def next_record(view: FileView, file_pos: int, segment_start: int, segment_bytes: int, *, since_ms: int = 0) -> int:
    """Return the file position of the next whole, valid record after ``file_pos``, the file's size when there is none.

    A record with a store time before ``since_ms`` is a remnant of a log that once was longer, and does not count.
    """
    budget = SEARCH_BUDGET_BYTES
    begin = file_pos + 1
    while begin < view.size:
        begin = max(begin, view.data_from(begin) - 7)
        window = view.read(begin, WINDOW_BYTES)
        if len(window) < FIXED_OVERHEAD:
            break
        for candidate in sorted(begin + i - 4 for magic in MAGICS for i in occurrences(window, magic)):
            if candidate <= file_pos:
                continue
            # Everything but the checksum first: bytes that look like a magic number by chance fail before it.
            found = dissect(view, candidate, segment_start, segment_bytes - candidate, check_crc=False)
            if not found.problem and found.get("store_timestamp_ms") >= since_ms:
                budget -= found.length
                if budget < 0 and found.length > _ALWAYS_SEARCHED_BYTES:
                    continue
                if not dissect(view, candidate, segment_start, segment_bytes - candidate).problem:
                    return candidate
        if len(window) < WINDOW_BYTES:
            break
        begin += len(window) - 7  # so that a head across the border is found
    return view.size


def item_start(view: FileView, segment_start: int, segment_bytes: int, log_offset: int) -> int:
    """Return the file position of the record, or other item, that contains ``log_offset``. Raises NotAStoreFile when none does."""
    wanted = log_offset - segment_start
    if not 0 <= wanted < max(view.size, 1):
        raise NotAStoreFile(
            view.path, f"log offset {log_offset} is not in this file, which holds {segment_start} to {segment_start + view.size - 1}"
        )
    if not dissect(view, wanted, segment_start, segment_bytes - wanted, check_crc=False).problem:
        return wanted
    unpack = _IDENTITY.unpack_from
    file_pos = 0
    while True:  # from head to head, as long as each has its own log offset
        window = view.read(file_pos, WINDOW_BYTES)
        pos, begin = 0, file_pos
        while len(window) - pos >= _IDENTITY.size:
            size, magic, found = unpack(window, pos)
            if magic not in (MAGIC_V1, MAGIC_V2) or found != segment_start + file_pos or size < FIXED_OVERHEAD:
                break
            if file_pos + size > wanted:
                return file_pos
            file_pos += size
            pos += size
        if file_pos == begin:
            break
    for item in log_items(view, segment_start, segment_bytes=segment_bytes, start=file_pos):
        if item.file_pos + item.length > wanted:
            return item.file_pos
    return file_pos
