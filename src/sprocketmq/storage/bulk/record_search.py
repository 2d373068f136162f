"""Finding the first record of a part of the log that is entered in the middle."""

from sprocketmq.storage.log.recovery import magics_in, parse_record

_SEARCH_BYTES = 1 << 16
_GUESS_BUDGET_BYTES = 256 << 20


def find_record(view: memoryview, base: int, begin: int, limit: int) -> int:
    """Return the position of the first valid record in ``[begin, limit)`` of ``view``, or -1; ``view`` begins at log offset ``base``.

    A body can contain the bytes of a valid record, so this is a guess until the records before it end there. The result is also -1 when
    there are so many forged records that comparing their checksums would take too long.
    """
    budget = _GUESS_BUDGET_BYTES
    file_pos = begin
    while file_pos < limit:
        window = bytes(view[file_pos + 4 : min(file_pos + _SEARCH_BYTES, limit) + 7])
        for i in magics_in(window):
            if file_pos + i < limit and (record := parse_record(view, base, file_pos + i, check_crc=False)) is not None:
                if parse_record(view, base, file_pos + i, check_crc=True) is not None:
                    return file_pos + i
                budget -= record.size
                if budget < 0:
                    return -1
        file_pos += _SEARCH_BYTES
    return -1
