"""The demo's checks find every kind of fault, and say which flight it is; a table without fault passes. No Spark, no broker."""

import io
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from rich.console import Console

from sprocketmq.demo import flights as data
from sprocketmq.demo import pipeline, report, run
from sprocketmq.demo.outcome import Course
from sprocketmq.demo.verify import Acknowledged, expected_days, expected_statistics, verify, verify_days
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.message import MessageQueue

COUNT = 3000
QUEUES = [MessageQueue("flights", "broker-a", i) for i in range(8)]
WEATHER = ("temp", "wind_speed", "precip", "visib")


@pytest.fixture(scope="module")
def weather():
    return data.load_weather()


@pytest.fixture(scope="module")
def flights():
    return data.load_flights(COUNT)


@pytest.fixture
def acknowledged(flights):
    """What a broker would have answered: every message after the one before it in its queue."""
    acks, ends = Acknowledged(COUNT), [0] * len(QUEUES)
    for messages in data.messages_by_window(flights, QUEUES, 500):
        for number, message in messages:
            acks.add([number], [message.queue.queue_id], [ends[message.queue.queue_id]])
            ends[message.queue.queue_id] += 1
    return acks


@pytest.fixture
def rows(flights, weather, acknowledged):
    """The table Spark should have written: two files, queues mixed, each queue in order."""
    joined = flights.join(weather, ["origin", "time_hour"], join_type="left outer").sort_by("seq")
    table = joined.set_column(joined.schema.get_field_index("day"), "day", joined["day"].cast(pa.date32()))
    return (
        table.append_column("tags", table["carrier"])
        .append_column("queueId", pa.array(acknowledged.queue, pa.int32()))
        .append_column("queueOffset", pa.array(acknowledged.offset))
        .append_column("file", pa.array((np.arange(COUNT) > 1700).astype(np.int64)))
        .combine_chunks()
    )


@pytest.fixture
def failures(flights, weather, acknowledged):
    def check(rows, statistics=None):
        if statistics is None:
            statistics = expected_statistics(flights, weather)
        return {check.name: check.detail for check in verify(flights, weather, acknowledged, rows, statistics) if not check.passed}

    return check


def test_a_table_without_fault_passes(rows, failures):
    assert failures(rows) == {}
    assert failures(rows.take(np.argsort(rows["file"].to_numpy(), kind="stable"))) == {}


def test_a_lost_row_is_named_with_its_place(rows, failures, acknowledged):
    found = failures(rows.filter(pa.array(np.arange(COUNT) != 777)))
    assert set(found) == {"rows in the table == messages acknowledged"}
    detail = found["rows in the table == messages acknowledged"]
    assert detail.startswith("2,999 rows, 3,000 messages; 1 missing: ")
    assert f"(number 777, queue {acknowledged.queue[777]} offset {acknowledged.offset[777]})" in detail


def test_many_lost_rows_are_counted_and_some_named(rows, failures):
    detail = failures(rows.slice(0, 1000))["rows in the table == messages acknowledged"]
    assert "2,000 missing" in detail
    assert detail.endswith("and 1,995 more")


def test_a_repeated_row_is_found(rows, failures):
    found = failures(pa.concat_tables([rows, rows.slice(5, 1)]))
    assert "1 rows too many (1 of them the same message again), such as number 5" in found["no duplicate"]
    assert "3,001 rows" in found["rows in the table == messages acknowledged"]


def test_the_same_flight_sent_twice_is_found(rows, failures):
    again = rows.slice(5, 1).set_column(rows.schema.get_field_index("queueOffset"), "queueOffset", pa.array([99_999]))
    found = failures(pa.concat_tables([rows, again]))
    assert "1 rows too many (0 of them" in found["no duplicate"]
    assert found["every row has the queue and offset its message was acknowledged with"] == "1 differ"


def test_an_empty_table_is_all_missing(failures):
    assert "3,000 messages are missing" in failures(pa.table({}))["rows in the table == messages acknowledged"]


def test_rows_written_out_of_order_are_found(rows, failures):
    found = failures(rows.take(np.arange(COUNT)[::-1]))
    assert set(found) == {"per-queue order kept"}
    assert "older" in found["per-queue order kept"]


def test_messages_stored_out_of_order_are_found(rows, failures):
    offsets = rows["queueOffset"].to_numpy().copy()
    airline = np.array(rows["tags"].to_pylist()) == "UA"
    places = np.flatnonzero((rows["queueId"].to_numpy() == 3) & airline)[:2]
    offsets[places] = offsets[places[::-1]]
    found = failures(rows.set_column(rows.schema.get_field_index("queueOffset"), "queueOffset", pa.array(offsets)))
    assert f"1 out of time order, the first at queue 3 offset {offsets[places[0]]}" in found["per-queue order kept"]
    assert found["every row has the queue and offset its message was acknowledged with"] == "2 differ"


def test_a_flight_number_spread_over_queues_is_found(rows, failures):
    queues = rows["queueId"].to_numpy().copy()
    queues[-1] = (queues[-1] + 1) % 8
    assert (
        "1 flight numbers are spread"
        in failures(rows.set_column(rows.schema.get_field_index("queueId"), "queueId", pa.array(queues)))["per-queue order kept"]
    )


@pytest.mark.parametrize("column", ["dep_delay", "tailnum", "precip", "day", "tags"])
def test_a_changed_value_is_found_by_column(rows, failures, column):
    values = rows[column].to_pylist()
    values[10] = values[11] if values[10] != values[11] else values[-1] if values[-1] != values[10] else None
    at = rows.schema.get_field_index(column)
    found = failures(rows.set_column(at, column, pa.array(values, rows.schema.field(at).type)))
    assert found == {"every row has its flight and weather": f"differs in {column}"}


def test_a_row_of_no_flight_is_found(rows, failures):
    seq = rows["seq"].to_numpy().copy()
    seq[0] = 5_000_000
    found = failures(rows.set_column(rows.schema.get_field_index("seq"), "seq", pa.array(seq)))
    assert "1 that nobody acknowledged, such as number 5000000" in found["rows in the table == messages acknowledged"]
    assert "rows of no flight" in found["every row has its flight and weather"]


def test_messages_that_were_not_acknowledged_are_named(rows, flights, weather, acknowledged):
    acknowledged.offset[42] = -1
    checks = verify(flights, weather, acknowledged, rows, expected_statistics(flights, weather))
    assert not checks[0].passed
    assert checks[0].detail.startswith("2,999 of 3,000; not acknowledged: ")
    assert "number 42" in checks[0].detail


def test_wrong_statistics_are_found(rows, failures, flights, weather):
    right = expected_statistics(flights, weather)
    name = "statistics == those computed from the source data"
    assert failures(rows, right.slice(1)) == {name: f"{right.num_rows - 1:,} groups instead of {right.num_rows:,}"}
    wrong = right.set_column(right.schema.get_field_index("late_15"), "late_15", pa.array([99] * right.num_rows, pa.int64()))
    assert failures(rows, wrong)[name].endswith("differ in late_15")


class Told:
    """A message of the results topic."""

    def __init__(self, row, msg_id=None):
        self.msg_id = msg_id or f"{row['origin']}-{row['day']}"
        self.body = json.dumps({**{k: v for k, v in row.items() if v is not None}, "day": row["day"].isoformat()}).encode()


def day_failures(flights, days, messages):
    return {check.name: check.detail for check in verify_days(flights, days, messages) if not check.passed}


def test_days_without_fault_pass_in_any_order_and_sent_again(flights):
    days = expected_days(flights)
    told = [Told(row) for row in days.to_pylist()]
    checks = verify_days(flights, days, [*reversed(told), told[0]])
    assert all(check.passed for check in checks)
    assert checks[1].detail == f"{days.num_rows} messages, and 1 sent again and known by their ids"


def test_a_day_that_is_missing_or_wrong_is_found(flights):
    days = expected_days(flights)
    told = [Told(row) for row in days.to_pylist()]
    closed, topic = "days closed by the watermark == those computed from the source data", "results topic == days in the table"
    assert day_failures(flights, days.slice(1), told[1:]) == {closed: f"{days.num_rows - 1} days instead of {days.num_rows}"}
    assert set(day_failures(flights, days, told[1:])) == {topic}
    assert set(day_failures(flights, days, [*told, Told(days.to_pylist()[0], "another id")])) == {topic}
    wrong = days.set_column(2, "flights", pa.array([1] * days.num_rows, pa.int64()))
    assert day_failures(flights, wrong, [Told(row) for row in wrong.to_pylist()])[closed].endswith("they differ in flights")
    assert set(day_failures(flights, pa.table({}), [])) == {closed}


def test_the_clock_message_closes_every_day(flights):
    told = json.loads(pipeline.clock_message("clock", flights).body)["scheduled"]
    assert told > f"{max(flights['scheduled'].to_pylist())[:4]}-02-05"


# --- the data -----------------------------------------------------------------------------------------------------------


def test_all_flights_are_loaded_some_late_by_days_and_equal_the_package_s_own_table():
    table = data.load_flights()
    assert table.num_rows == data.FLIGHTS
    assert table["seq"].to_pylist() == list(range(data.FLIGHTS))
    late = data.lateness(table)
    assert late.min() == 0
    assert data.MOST_LATE_S * 0.9 < late.max() < data.MOST_LATE_S + 3600
    assert 0.9 < (late > 3600).sum() * data.LATE_ONE_IN / data.FLIGHTS < 1.1
    on_time = table["scheduled"].to_numpy()[late == 0]
    assert (on_time[1:] >= on_time[:-1]).all()
    raw = pd.read_csv(data._data_directory() / "flights.csv.zip")
    mine = table.to_pandas()
    for name in ("dep_delay", "arr_delay", "air_time", "distance"):
        assert mine[name].sum() == raw[name].sum()
        assert mine[name].notna().sum() == raw[name].notna().sum()
    raw["flight"] = raw["carrier"] + raw["flight"].astype(str)
    raw["day"] = raw.year.astype(str) + "-" + raw.month.map("{:02d}".format) + "-" + raw.day.map("{:02d}".format)
    keys = ["time_hour", "flight", "origin", "dest", "day", "tailnum"]
    assert sorted(raw[keys].fillna("").itertuples(index=False, name=None)) == sorted(
        mine[keys].fillna("").itertuples(index=False, name=None)
    )


def test_days_equal_those_pandas_finds(flights):
    groups = flights.to_pandas().assign(day=flights["scheduled"].to_pandas().str[:10]).groupby(["origin", "day"])
    found = expected_days(flights).to_pandas()
    assert [(row.origin, str(row.day)) for row in found.itertuples()] == list(groups.groups)
    assert found["flights"].tolist() == groups.size().tolist()
    assert found["departed"].tolist() == groups["dep_delay"].count().tolist()
    assert found["dep_delay_sum"].tolist() == groups["dep_delay"].sum().tolist()
    assert found["late_15"].tolist() == groups["dep_delay"].agg(lambda delays: int((delays >= 15).sum())).tolist()


def test_statistics_equal_those_pandas_finds(flights, weather):
    joined = flights.to_pandas().merge(weather.to_pandas(), on=["origin", "time_hour"], how="left")
    found = expected_statistics(flights, weather).to_pandas()
    groups = joined.groupby(["origin", "carrier", "day"])
    assert found["flights"].tolist() == groups.size().tolist()
    assert found["departed"].tolist() == groups["dep_delay"].count().tolist()
    assert found["dep_delay_sum"].tolist() == groups["dep_delay"].sum().tolist()
    assert found["late_15"].tolist() == groups["dep_delay"].agg(lambda delays: int((delays >= 15).sum())).tolist()
    wet = joined[joined.precip > 0]
    assert found["wet_dep_delay_sum"].sum() == wet["dep_delay"].sum()
    assert found["wet_departed"].sum() == wet["dep_delay"].count()


def test_every_flight_becomes_one_message_of_its_own_queue(flights):
    seen = []
    home = {}
    for messages in data.messages_by_window(flights, QUEUES, 700):
        for number, message in messages:
            event = json.loads(message.body)
            assert event["seq"] == number
            assert message.keys == (event["flight"],)
            assert message.tag == event["carrier"]
            assert home.setdefault(event["flight"], message.queue) == message.queue
            seen.append(number)
    assert seen == list(range(COUNT))
    assert set(home.values()) == set(QUEUES)


def test_a_message_acknowledged_twice_is_counted():
    acks = Acknowledged(5)
    acks.add([0, 1, 1], [0, 0, 0], [0, 1, 2])
    acks.add([1, 4], [0, 0], [3, 4])
    assert (acks.count, acks.repeated) == (3, 2)


# --- the report ---------------------------------------------------------------------------------------------------------


def test_the_plots_and_tables_are_drawn(flights, weather, tmp_path):
    statistics = expected_statistics(flights, weather)
    course = Course([0.0, 1.0, 2.0], [0, 2000, 3000], [0, 1000, 3000], [1.5])
    report.draw_png(statistics, course, tmp_path / "delays.png")
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(report.results_table(statistics))
    console.print(report.terminal_plot(statistics, 80))
    text = console.export_text()
    assert "EWR Newark" in text
    assert "Mean departure delay" in text
    origins = {row["origin"]: row for row in report.summary_by(statistics, "origin")}
    assert sum(row["flights"] for row in origins.values()) == COUNT
    means = report.with_means(statistics)
    assert means["dep_delay_mean"].null_count == sum(1 for n in statistics["departed"].to_pylist() if n == 0)


# --- the output directory -----------------------------------------------------------------------------------------------


def test_an_earlier_run_is_cleared_away_but_nothing_else(tmp_path):
    output = tmp_path / "out"
    run.prepare_output(output)
    (output / "flights" / "batch=00000").mkdir(parents=True)
    (output / "report.json").write_text("{}")
    (output / "notes.txt").write_text("mine")
    run.prepare_output(output)
    assert sorted(path.name for path in output.iterdir()) == [".sprocketmq-demo", "notes.txt"]


def test_a_directory_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "flights").mkdir()
    with pytest.raises(ConfigError, match="is not empty and was not written by this demo"):
        run.prepare_output(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not a directory"):
        run.prepare_output(tmp_path / "file")


def test_missing_data_says_what_to_install(monkeypatch):
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install 'sprocketmq\\[demo\\]'"):
        data.load_weather()
