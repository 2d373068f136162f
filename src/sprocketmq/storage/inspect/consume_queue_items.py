"""Inspecting a file of a consume queue: 20-byte units."""

from collections.abc import Iterator

from sprocketmq.protocol.layout import FILLER_SIZE, QUEUE_UNIT
from sprocketmq.protocol.names import SCHEDULE_TOPIC
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.inspect.items import Field, Item, NotAStoreFile


def queue_items(view: FileView, first_offset: int, *, start: int = 0, topic: str = "") -> Iterator[Item]:
    """Yield the units of a file from file position ``start`` on; ``first_offset`` is the queue offset of its first unit."""
    code_name = "deliver_at_ms" if topic == SCHEDULE_TOPIC else "tags_code"
    file_pos = start - start % QUEUE_UNIT.size
    while file_pos + QUEUE_UNIT.size <= view.size:
        log_offset, size, code = QUEUE_UNIT.unpack(view.read(file_pos, QUEUE_UNIT.size))
        number = first_offset + file_pos // QUEUE_UNIT.size
        if not (log_offset or size or code) and (end := view.data_from(file_pos)) > file_pos:
            end -= end % QUEUE_UNIT.size
            yield Item("unwritten", number, file_pos, end - file_pos)
            file_pos = end
            continue
        found = (Field("physical_offset", 0, 8, log_offset), Field("size", 8, 4, size), Field(code_name, 12, 8, code))
        if log_offset == 0 and size == FILLER_SIZE:
            yield Item("filler", number, file_pos, QUEUE_UNIT.size, found)
        elif log_offset < 0 or size <= 0:
            yield Item("damaged", number, file_pos, QUEUE_UNIT.size, found, f"log offset {log_offset} or size {size} is impossible")
        else:
            yield Item("unit", number, file_pos, QUEUE_UNIT.size, found)
        file_pos += QUEUE_UNIT.size
    if file_pos < view.size:
        yield odd_rest(view, first_offset + file_pos // QUEUE_UNIT.size, file_pos)


def odd_rest(view: FileView, number: int, file_pos: int) -> Item:
    """Return the item for the bytes at the end of a file that are not a whole unit."""
    return Item("damaged", number, file_pos, view.size - file_pos, (), f"{view.size - file_pos} bytes at the end are not a whole unit")


def queue_items_from(view: FileView, first_offset: int, queue_offset: int | None, topic: str) -> Iterator[Item]:
    """Yield the units of a file from a queue offset on. Raises NotAStoreFile when the file does not have it."""
    if queue_offset is None:
        return queue_items(view, first_offset, topic=topic)
    file_pos = (queue_offset - first_offset) * QUEUE_UNIT.size
    if not 0 <= file_pos < view.size:
        last = first_offset + view.size // QUEUE_UNIT.size - 1
        raise NotAStoreFile(view.path, f"queue offset {queue_offset} is not in this file, which holds {first_offset} to {last}")
    return queue_items(view, first_offset, start=file_pos, topic=topic)
