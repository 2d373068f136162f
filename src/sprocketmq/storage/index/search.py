"""Finding records by key: what the key index proposes, compared with the records themselves."""

from collections.abc import Callable
from enum import Enum

from sprocketmq.storage.index.key_index import KeyIndex, key_string, keys_in
from sprocketmq.storage.log.recovery import parse_record

# Records read for one answer. Other keys of the same hash are rare, so this many candidates that do not match are somebody's intent.
MAX_EXAMINED = 10_000


class Kind(Enum):
    """What a record is looked for by."""

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

    The newest ``max_count`` of them, in the order of the log. ``record_at`` gives the record at a place. May raise OSError.
    """
    found: dict[int, memoryview] = {}
    examined = 0
    for physical in index.candidates(key_string(topic, key, tag=kind is Kind.TAG), begin_ms=begin_ms, end_ms=end_ms):
        if len(found) >= max_count or examined >= MAX_EXAMINED:
            break
        if physical in found:
            continue
        examined += 1
        record = record_at(physical)
        parsed = None if record is None else parse_record(record, physical, 0, check_crc=False)
        if record is None or parsed is None:
            continue
        name, _, _, _, _, _, _, time_ms, _, properties = parsed
        if begin_ms <= time_ms <= end_ms and name.decode("utf-8", "replace") == topic and _has(properties, key, kind):
            found[physical] = record
    return [found[physical] for physical in sorted(found)]


def _has(properties: bytes, key: str, kind: Kind) -> bool:
    unique, words, tag = keys_in(properties)
    return key == tag if kind is Kind.TAG else key == unique or key in words
