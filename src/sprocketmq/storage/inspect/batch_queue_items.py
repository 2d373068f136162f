"""Inspecting a file of a batch consume queue: 46-byte units."""

from collections.abc import Iterator

from sprocketmq.protocol.layout import BATCH_UNIT
from sprocketmq.storage.file_view import ZEROS, FileView
from sprocketmq.storage.inspect.consume_queue_items import odd_rest
from sprocketmq.storage.inspect.items import Field, Item


def batch_queue_items(view: FileView, *, start: int = 0) -> Iterator[Item]:
    """Yield the units of a file from file position ``start`` on."""
    file_pos = start - start % BATCH_UNIT.size
    while file_pos + BATCH_UNIT.size <= view.size:
        data = view.read(file_pos, BATCH_UNIT.size)
        if data == ZEROS[: BATCH_UNIT.size] and (end := view.data_from(file_pos)) > file_pos:
            end -= end % BATCH_UNIT.size
            yield Item("unwritten", file_pos // BATCH_UNIT.size, file_pos, end - file_pos)
            file_pos = end
            continue
        log_offset, size, code, time_ms, base, count, compacted, reserved = BATCH_UNIT.unpack(data)
        found = (
            Field("physical_offset", 0, 8, log_offset),
            Field("size", 8, 4, size),
            Field("tags_code", 12, 8, code),
            Field("store_timestamp_ms", 20, 8, time_ms),
            Field("base_offset", 28, 8, base),
            Field("count", 36, 2, count),
            Field("compacted_offset", 38, 4, compacted),
            Field("reserved", 42, 4, reserved),
        )
        if log_offset < 0 or size <= 0 or base < 0 or count <= 0:
            problem = f"log offset {log_offset}, size {size}, base {base} or count {count} is impossible"
            yield Item("damaged", file_pos // BATCH_UNIT.size, file_pos, BATCH_UNIT.size, found, problem)
        else:
            yield Item("unit", base, file_pos, BATCH_UNIT.size, found)
        file_pos += BATCH_UNIT.size
    if file_pos < view.size:
        yield odd_rest(view, file_pos // BATCH_UNIT.size, file_pos)


def batch_queue_items_from(view: FileView, queue_offset: int | None) -> Iterator[Item]:
    """Yield the units of a file from the one that covers a queue offset on."""
    items = batch_queue_items(view)
    if queue_offset is None:
        return items
    return (item for item in items if item.kind != "unit" or item.number + item.get("count") > queue_offset)
