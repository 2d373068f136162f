"""Conversion of stored sends to index entries, with numpy for many messages and without it for few."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING

from sprocketmq.storage.index.record_keys import ROLLED_BACK, key_hash, record_keys
from sprocketmq.storage.log.exploding import Strings
from sprocketmq.storage.log.recovery import Scanned

if TYPE_CHECKING:
    from sprocketmq.storage.chunks import KeyEntries

# What one send stored: topic, property string, log offset of the record, store time in ms; for a batch on a plain queue the property
# strings and log offsets of all its records.
StagedSend = tuple[str, bytes | Strings, int | Sequence[int], int]

# Property strings hashed at once: hostile ones have a key in every second byte, and a key takes about 100 bytes of arrays.
_SLICE_BYTES = 1 << 19


def message_count(send: StagedSend) -> int:
    """Return how many messages a send stored."""
    return 1 if isinstance(send[2], int) else len(send[2])


def first_log_offset(send: StagedSend) -> int:
    """Return the log offset of the first record of a send."""
    return send[2] if isinstance(send[2], int) else send[2][0]


def staged_records(records: Iterable[Scanned]) -> list[StagedSend]:
    """Return records read from the log as if each had just been sent, without those that have no keys."""
    return [
        (record.topic.decode("utf-8", "replace"), record.properties, record.log_offset, record.store_time_ms)
        for record in records
        if record.sys_flag & ROLLED_BACK != ROLLED_BACK
    ]


def key_entries(staged: Sequence[StagedSend]) -> "Iterator[KeyEntries]":
    """Yield the entries of some sends (at least one) in log order, several thousand at a time."""
    import numpy as np

    from sprocketmq.storage.index.key_hashing import entries_of_text

    topics, strings, offsets, times = zip(*staged, strict=True)
    numbers = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
    names = [topic.encode() for topic in numbers]
    owners = np.fromiter(map(numbers.__getitem__, topics), np.int64, len(staged))
    times_ms = np.array(times, np.int64)
    kinds = set(map(type, offsets))
    if kinds == {int}:
        lengths = np.fromiter(map(len, strings), np.int64, len(staged))
        log_offsets = np.array(offsets, np.int64)
        text = b"".join(strings)
    else:
        counts = np.fromiter(map(message_count, staged), np.int64, len(staged))
        owners, times_ms = np.repeat(owners, counts), np.repeat(times_ms, counts)
        total = int(counts.sum())
        if kinds == {range}:  # batches whose messages have the same lengths
            starts, steps, each = np.array([(o.start, o.step, s.lengths) for o, s in zip(offsets, strings, strict=True)], np.int64).T
            lengths = np.repeat(each, counts)
            number_in_batch = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
            log_offsets = np.repeat(starts, counts) + np.repeat(steps, counts) * number_in_batch
        else:
            lengths = np.fromiter(chain.from_iterable(map(_lengths, staged)), np.int64, total)
            log_offsets = np.fromiter(chain.from_iterable([o] if isinstance(o, int) else o for o in offsets), np.int64, total)
        text = b"".join([s if isinstance(s, bytes) else s.text for s in strings])
    ends = np.cumsum(lengths)
    borders = np.searchsorted(ends, np.arange(_SLICE_BYTES, ends[-1], _SLICE_BYTES), "right")
    for begin, end in pairwise([0, *np.unique(borders).tolist(), len(lengths)]):
        part = slice(begin, end)
        piece = text[ends[begin] - lengths[begin] : ends[end - 1]]
        yield entries_of_text(names, owners[part], piece, lengths[part], log_offsets[part], times_ms[part])


def _lengths(send: StagedSend) -> list[int]:
    """Return the lengths of the property strings of a send."""
    strings = send[1]
    if isinstance(strings, bytes):
        return [len(strings)]
    return [strings.lengths] * message_count(send) if isinstance(strings.lengths, int) else strings.lengths


def _strings(send: StagedSend) -> list[bytes]:
    """Return the property strings of a send."""
    strings = send[1]
    if isinstance(strings, bytes):
        return [strings]
    return [strings.text[start:stop] for start, stop in pairwise(accumulate(_lengths(send), initial=0))]


def plain_entries(staged: Sequence[StagedSend], newest_record: tuple[int, int]) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
    """Return the entries of some sends as key hash, log offset and store time, without numpy, and the newest record with them.

    ``newest_record`` is the newest that is indexed and how many entries it has. Older records and entries that it has are left out.
    """
    newest, known = newest_record
    entries = []
    seen = 0
    for send in staged:
        topic, _, offsets, time_ms = send
        for log_offset, properties in zip([offsets] if isinstance(offsets, int) else offsets, _strings(send), strict=True):
            if log_offset > newest:
                newest, known = log_offset, 0
                seen = 0
            for key in record_keys(topic, properties) if log_offset == newest else ():
                seen += 1
                if seen > known:
                    known = seen
                    entries.append((key_hash(key), log_offset, time_ms))
    return entries, (newest, known)
