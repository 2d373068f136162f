"""The results of an audit's tasks: what chains of records tell about queues and key index. Small enough to send to the driver.

A *chain* is a sequence of parsed chunks, each beginning where the one before ended: when its first record is valid, all of them are.
"""

from typing import NamedTuple

# Differences of each kind that a chain reports in full, for each queue and index file; more are only counted.
MAX_EXAMPLES = 20


class Range(NamedTuple):
    """Consecutive records of a queue: queue offsets ``[first, next)``, compared with units ``[unit, unit_end)`` of the files.

    ``log_offset`` is that of the first record, ``last_log_offset`` that of the last record compared by itself. There may be fewer
    ``records`` than queue offsets, as one record may cover several.
    """

    first: int
    next: int
    unit: int
    unit_end: int
    log_offset: int
    last_log_offset: int
    records: int


class Difference(NamedTuple):
    """A unit that differs from its record, or that is missing (``actual`` is empty)."""

    offset: int
    next_offset: int
    unit: int
    log_offset: int
    actual: str
    expected: str


class QueueFacts(NamedTuple):
    """What a chain tells about one queue, in log order. ``missing`` and ``wrong`` count all differences, ``differences`` has some."""

    ranges: list[Range]
    differences: list[Difference]
    missing: int
    wrong: int


class KeyDifference(NamedTuple):
    """An index entry without a key (``path`` is its file), or a key without an entry (``path`` is empty)."""

    log_offset: int
    hash: int
    path: str
    at: int


class KeyFacts(NamedTuple):
    """What a chain tells about the key index. ``places`` are the first and last log offset of missing keys, without tags."""

    matched: int
    missing: int
    places: tuple[int, int]
    missing_tags: int
    before: int
    behind: int
    orphans: int
    wrong_times: int
    examples: list[KeyDifference]


class Chain(NamedTuple):
    """The results for the log from ``start`` to ``end``. Other fields are those of ``ParsedChunk``."""

    start: int
    end: int
    records: int
    last_log_offset: int
    last_time_ms: int
    queues: dict[tuple[str, int], QueueFacts]
    keys: KeyFacts | None
