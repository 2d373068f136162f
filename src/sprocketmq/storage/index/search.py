"""Exact matches: the records that have a key, by comparing the candidates of the key index with the records themselves."""

from collections.abc import Callable
from enum import Enum

from sprocketmq.storage.index.key_index import KeyIndex
from sprocketmq.storage.index.record_keys import key_string, keys_in
from sprocketmq.storage.log.recovery import parse_record

# Records read for one answer. Hash collisions are rare, so more non-matching candidates than this were made on purpose.
MAX_EXAMINED = 10_000


class Kind(Enum):
    """The kinds of keys that records are searched by."""

    KEY = "a word of its KEYS, or its UNIQ_KEY"
    TAG = "its tag"


def find_records(
    index: KeyIndex,
    record_at: Callable[[int], memoryview | None],
    topic: str,
    key: str,
    *,
    max_count: int,
    begin_ms: int,
    end_ms: int,
    kind: Kind,
) -> list[memoryview]:
    """Return the records of a topic that have this key, stored in ``[begin_ms, end_ms]``.

    The newest ``max_count`` of them, in log order. ``record_at`` returns the record at a log offset. May raise OSError.
    """
    found: dict[int, memoryview] = {}
    examined = 0
    for log_offset in index.candidates(key_string(topic, key, tag=kind is Kind.TAG), begin_ms=begin_ms, end_ms=end_ms):
        if len(found) >= max_count or examined >= MAX_EXAMINED:
            break
        if log_offset in found:
            continue
        examined += 1
        record = record_at(log_offset)
        parsed = None if record is None else parse_record(record, log_offset, 0, check_crc=False)
        if record is None or parsed is None:
            continue
        in_time = begin_ms <= parsed.store_time_ms <= end_ms
        if in_time and parsed.topic.decode("utf-8", "replace") == topic and _matches(parsed.properties, key, kind):
            found[log_offset] = record
    return [found[log_offset] for log_offset in sorted(found)]


def _matches(properties: bytes, key: str, kind: Kind) -> bool:
    unique, words, tag = keys_in(properties)
    return key == tag if kind is Kind.TAG else key == unique or key in words
