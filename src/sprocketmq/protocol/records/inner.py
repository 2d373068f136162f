"""The entries of an inner batch inside a record: where each body begins and ends."""

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.batch import MAX_BATCH_COUNT
from sprocketmq.protocol.layout import BATCH_ENTRY_HEAD_BYTES, BATCH_ENTRY_LAYOUT, BATCH_ENTRY_OVERHEAD, INT16

_ENTRY = BATCH_ENTRY_LAYOUT.part("size", "body_length")


def inner_bodies(data: bytes | memoryview, start: int, stop: int) -> tuple[list[int], list[int]]:
    """Return where the bodies of the entries between ``start`` and ``stop`` begin and where they end, checked as ``split_batch`` does.

    The first list has one more: where the body of an entry at ``stop`` would begin. So entry i ends a head before ``begins[i + 1]``.
    Raises RemoteProtocolError.
    """
    begins: list[int] = []
    ends: list[int] = []
    begin, end = begins.append, ends.append
    unpack_head, unpack_short, head = _ENTRY.unpack_from, INT16.unpack_from, BATCH_ENTRY_HEAD_BYTES
    at = start
    last = stop - BATCH_ENTRY_OVERHEAD
    while at <= last:
        size, length = unpack_head(data, at)
        body_at = at + head
        body_end = body_at + length
        at += size
        properties = at - body_end - 2
        if length < 0 or properties < 0 or at > stop:
            raise RemoteProtocolError(f"batch entry {len(ends)} has an impossible size {size} or body length {length}")
        if unpack_short(data, body_end)[0] != properties:
            raise RemoteProtocolError(f"batch entry {len(ends)} has an impossible property length {unpack_short(data, body_end)[0]}")
        begin(body_at)
        end(body_end)
    if at != stop:
        raise RemoteProtocolError(
            f"batch entry {len(ends)} is cut short: {stop - at} bytes are left, an entry has at least {BATCH_ENTRY_OVERHEAD}"
        )
    if len(ends) > MAX_BATCH_COUNT:
        raise RemoteProtocolError(f"a batch has {len(ends)} messages, the limit is {MAX_BATCH_COUNT}")
    begin(stop + head)
    return begins, ends
