"""The final checks of the demo, based only on the files on disk and the broker's acknowledgements.

Spark and its counters are not involved: the flights table is read with pyarrow, and the statistics are computed again from the source
data.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sprocketmq.demo.flights import lateness
from sprocketmq.demo.pipeline import DAY_COLUMNS, DAY_KEYS, KEYS, STATISTICS
from sprocketmq.protocol.records import ReceivedMessage

_SHOWN = 5
# A flight more than an hour behind another counts as late.
_LATE_S = 3600


@dataclass(frozen=True, slots=True)
class Check:
    """One check and its result; ``detail`` says what is missing, surplus or different."""

    name: str
    passed: bool
    detail: str


class Acknowledged:
    """Acknowledged messages by sequence number, with queue and queue offset (-1: not acknowledged)."""

    def __init__(self, messages: int) -> None:
        self.queue: Any = np.full(messages, -1, np.int64)
        self.offset: Any = np.full(messages, -1, np.int64)
        self.repeated = 0

    def add(self, numbers: Sequence[int], queue_ids: Sequence[int], offsets: Sequence[int]) -> None:
        """Note the queue and offset of acknowledged messages."""
        at = np.asarray(numbers, np.int64)
        self.repeated += int((self.offset[at] >= 0).sum()) + len(at) - len(np.unique(at))
        self.queue[at] = queue_ids
        self.offset[at] = offsets

    @property
    def count(self) -> int:
        return int((self.offset >= 0).sum())


def verify(flights: pa.Table, weather: pa.Table, acknowledged: Acknowledged, rows: pa.Table, statistics: pa.Table) -> list[Check]:
    """Return all checks of a finished run.

    ``flights`` are the flights to be sent, in order; ``rows`` and ``statistics`` are the tables that Spark wrote.
    """
    if rows.num_rows == 0:
        return [
            _acknowledged_all(flights, acknowledged),
            Check("rows in the table == messages acknowledged", False, f"the table is empty, {acknowledged.count:,} messages are missing"),
        ]
    seq = rows["seq"].to_numpy()
    return [
        _acknowledged_all(flights, acknowledged),
        _rows_match(flights, acknowledged, rows, seq),
        _no_duplicate(rows, seq),
        _at_their_offsets(acknowledged, rows, seq),
        _order_kept(rows, seq),
        _content_same(flights, weather, rows, seq),
        _statistics_same(flights, weather, statistics),
    ]


def verify_days(flights: pa.Table, days: pa.Table, messages: Sequence[ReceivedMessage]) -> list[Check]:
    """Return the checks of the closed days: ``days`` as written by Spark, and the ``messages`` of the results topic."""
    want = expected_days(flights)
    name = "days closed by the watermark == those computed from the source data"
    late = lateness(flights)
    told = f"{want.num_rows:,} days; {int((late > _LATE_S).sum()):,} flights were late, by up to {late.max() / 86_400:.1f} days"
    if days.num_rows != want.num_rows:
        check = Check(name, False, f"{days.num_rows:,} days instead of {want.num_rows:,}")
    else:
        different = [column for column in want.column_names if not _equal(days[column].cast(want[column].type), want[column])]
        check = Check(name, not different, f"{told}; they differ in {', '.join(different)}" if different else told)
    return [check, _topic_same(days, messages)]


def _topic_same(days: pa.Table, messages: Sequence[ReceivedMessage]) -> Check:
    # Messages sent again by a repeated batch have the same ids.
    once = {message.msg_id: json.loads(message.body) for message in messages}
    found = sorted(((row["origin"], row["day"]), row) for row in once.values())
    rows = [
        {name: value.isoformat() if name == "day" else value for name, value in row.items() if value is not None}
        for row in (days.to_pylist() if days.num_rows else [])
    ]
    repeated = len(messages) - len(once)
    detail = f"{len(once):,} messages" + (f", and {repeated:,} sent again and known by their ids" if repeated else "")
    same = [row for _, row in found] == rows
    return Check("results topic == days in the table", same, detail if same else f"{detail}; {len(rows):,} days, and they differ")


def expected_days(flights: pa.Table) -> pa.Table:
    """Return the expected days, computed without broker and Spark, sorted by key."""
    delay = flights["dep_delay"]
    day = pc.strptime(pc.utf8_slice_codeunits(flights["scheduled"], 0, 10), "%Y-%m-%d", "s").cast(pa.date32())
    table = pa.table(
        {
            "origin": flights["origin"],
            "day": day,
            "flights": pa.array(np.ones(flights.num_rows, np.int64)),
            "departed": pc.cast(pc.is_valid(delay), pa.int64()),
            "dep_delay_sum": pc.fill_null(delay, 0),
            "dep_delay_max": delay,
            "late_15": pc.cast(pc.fill_null(pc.greater_equal(delay, 15), False), pa.int64()),
        }
    )
    return _combined(table, DAY_KEYS, DAY_COLUMNS[len(DAY_KEYS) :])


def _acknowledged_all(flights: pa.Table, acknowledged: Acknowledged) -> Check:
    missing = np.flatnonzero(acknowledged.offset < 0)
    detail = f"{acknowledged.count:,} of {flights.num_rows:,}"
    if len(missing):
        detail += f"; not acknowledged: {_examples(flights, missing)}"
    if acknowledged.repeated:
        detail += f"; {acknowledged.repeated:,} were acknowledged twice"
    return Check("messages acknowledged == flights", not len(missing) and not acknowledged.repeated, detail)


def _rows_match(flights: pa.Table, acknowledged: Acknowledged, rows: pa.Table, seq: Any) -> Check:
    stored = np.flatnonzero(acknowledged.offset >= 0)
    missing = np.setdiff1d(stored, seq)
    unknown = np.setdiff1d(seq, stored)
    detail = f"{rows.num_rows:,} rows, {len(stored):,} messages"
    if len(missing):
        detail += f"; {len(missing):,} missing: {_examples(flights, missing, acknowledged)}"
    if len(unknown):
        detail += f"; {len(unknown):,} that nobody acknowledged, such as number {int(unknown[0])}"
    return Check(
        "rows in the table == messages acknowledged", rows.num_rows == len(stored) and not len(missing) and not len(unknown), detail
    )


def _no_duplicate(rows: pa.Table, seq: Any) -> Check:
    numbers, counts = np.unique(seq, return_counts=True)
    places = np.unique(rows["queueId"].to_numpy().astype(np.int64) << 40 | rows["queueOffset"].to_numpy())
    twice = numbers[counts > 1]
    again = rows.num_rows - len(places)
    detail = (
        "none"
        if not len(twice) and not again
        else f"{rows.num_rows - len(numbers):,} rows too many ({again:,} of them the same message again)"
    )
    if len(twice):
        detail += f", such as number {', '.join(map(str, twice[:_SHOWN]))}"
    return Check("no duplicate", not len(twice) and not again, detail)


def _at_their_offsets(acknowledged: Acknowledged, rows: pa.Table, seq: Any) -> Check:
    known = (seq >= 0) & (seq < len(acknowledged.offset))
    place = seq[known]
    same = (acknowledged.queue[place] == rows["queueId"].to_numpy()[known]) & (
        acknowledged.offset[place] == rows["queueOffset"].to_numpy()[known]
    )
    wrong = len(seq) - int(same.sum())
    return Check(
        "every row has the queue and offset its message was acknowledged with", wrong == 0, f"{wrong:,} differ" if wrong else "all"
    )


def _order_kept(rows: pa.Table, seq: Any) -> Check:
    queue, offset, file = (rows[name].to_numpy() for name in ("queueId", "queueOffset", "file"))
    airline = rows["tags"].combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
    problems = []
    # Batches hold messages of one tag, so in each queue the flights of an airline are in time order ...
    by_queue = np.lexsort((offset, airline, queue))
    back = (np.diff(seq[by_queue]) <= 0) & (np.diff(queue[by_queue]) == 0) & (np.diff(airline[by_queue]) == 0)
    if back.any():
        at = by_queue[int(np.argmax(back)) + 1]
        problems.append(f"{int(back.sum()):,} out of time order, the first at queue {queue[at]} offset {offset[at]}")
    # ... and within each file Spark wrote the rows of a queue in offset order.
    by_file = np.lexsort((np.arange(len(seq)), queue, file))
    swapped = (np.diff(offset[by_file]) <= 0) & (np.diff(queue[by_file]) == 0) & (np.diff(file[by_file]) == 0)
    if swapped.any():
        problems.append(f"{int(swapped.sum()):,} rows written before a row of the same queue that is older")
    # All messages of a flight number are in one queue, so order within queues is order within flights.
    pairs = pa.table({"flight": rows["flight"], "queue": rows["queueId"]}).group_by(["flight", "queue"]).aggregate([]).num_rows
    numbers = pc.count_distinct(rows["flight"]).as_py()
    if pairs != numbers:
        problems.append(f"{pairs - numbers:,} flight numbers are spread over queues")
    return Check("per-queue order kept", not problems, "; ".join(problems) or f"{len(np.unique(queue))} queues, {numbers:,} flight numbers")


def _content_same(flights: pa.Table, weather: pa.Table, rows: pa.Table, seq: Any) -> Check:
    if (seq < 0).any() or (seq >= flights.num_rows).any():
        return Check("every row has its flight and weather", False, "there are rows of no flight")
    want = _with_weather(flights, weather).take(pa.array(seq))
    want = want.set_column(want.schema.get_field_index("day"), "day", want["day"].cast(pa.date32()))
    different = []
    for name in (
        "flight",
        "day",
        "time_hour",
        "carrier",
        "tailnum",
        "origin",
        "dest",
        "dep_delay",
        "arr_delay",
        "air_time",
        "distance",
        "temp",
        "wind_speed",
        "precip",
        "visib",
    ):
        found = rows[name]
        if not _equal(found, want[name].cast(found.type)):
            different.append(name)
    if not _equal(rows["tags"], want["carrier"]):
        different.append("tags")
    return Check(
        "every row has its flight and weather", not different, f"differs in {', '.join(different)}" if different else "all columns"
    )


def _equal(a: pa.ChunkedArray, b: pa.ChunkedArray) -> bool:
    return bool(a.combine_chunks().equals(b.combine_chunks()))


def _statistics_same(flights: pa.Table, weather: pa.Table, statistics: pa.Table) -> Check:
    name = "statistics == those computed from the source data"
    want = expected_statistics(flights, weather)
    if statistics.num_rows != want.num_rows:
        return Check(name, False, f"{statistics.num_rows:,} groups instead of {want.num_rows:,}")
    different = [column for column in want.column_names if not _equal(statistics[column].cast(want[column].type), want[column])]
    groups = f"{want.num_rows:,} groups of origin, carrier and day"
    return Check(name, not different, f"{groups} differ in {', '.join(different)}" if different else groups)


def expected_statistics(flights: pa.Table, weather: pa.Table) -> pa.Table:
    """Return the expected statistics of ``flights``, computed without broker and Spark, sorted by key."""
    table = _with_weather(flights, weather)
    delay = table["dep_delay"]
    wet = pc.and_(pc.fill_null(pc.greater(table["precip"], 0), False), pc.is_valid(delay))
    table = pa.table(
        {
            "origin": table["origin"],
            "carrier": table["carrier"],
            "day": table["day"].cast(pa.date32()),
            "flights": pc.cast(pc.is_valid(table["seq"]), pa.int64()),
            "departed": pc.cast(pc.is_valid(delay), pa.int64()),
            "dep_delay_sum": pc.fill_null(delay, 0),
            "dep_delay_max": delay,
            "late_15": pc.cast(pc.fill_null(pc.greater_equal(delay, 15), False), pa.int64()),
            "arrived": pc.cast(pc.is_valid(table["arr_delay"]), pa.int64()),
            "arr_delay_sum": pc.fill_null(table["arr_delay"], 0),
            "wet_departed": pc.cast(wet, pa.int64()),
            "wet_dep_delay_sum": pc.if_else(wet, delay, 0),
        }
    )
    return _combined(table, KEYS, STATISTICS)


def _combined(table: pa.Table, keys: Sequence[str], values: Sequence[str]) -> pa.Table:
    """Return the sums of ``values`` by ``keys`` (maxima for names that end in _max), sorted by key."""
    found = table.group_by(list(keys)).aggregate([(name, "max" if name.endswith("_max") else "sum") for name in values])
    found = found.rename_columns([*keys, *values]) if found.column_names[0] in keys else found.rename_columns([*values, *keys])
    return found.select([*keys, *values]).sort_by([(key, "ascending") for key in keys]).combine_chunks()


def _with_weather(flights: pa.Table, weather: pa.Table) -> pa.Table:
    return flights.join(weather, ["origin", "time_hour"], join_type="left outer").sort_by("seq").combine_chunks()


def _examples(flights: pa.Table, numbers: Any, acknowledged: Acknowledged | None = None) -> str:
    texts = []
    for number in numbers[:_SHOWN].tolist():
        text = f"{flights['flight'][number]} of {flights['day'][number]} (number {number}"
        if acknowledged is not None:
            text += f", queue {acknowledged.queue[number]} offset {acknowledged.offset[number]}"
        texts.append(text + ")")
    more = len(numbers) - len(texts)
    return ", ".join(texts) + (f" and {more:,} more" if more > 0 else "")
