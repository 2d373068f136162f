"""Landing without Spark: the engine, the files and the table on disk, killed wherever it can be."""

import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from sprocketmq.arrow.schema import arrow_schema
from sprocketmq.errors import ConfigError
from sprocketmq.spark.jobs.land import FormatMissing, landed, landed_files, plan_landing, read_table, table, write
from sprocketmq.spark.jobs.land.by_spark import check_target, require_format
from sprocketmq.spark.jobs.land.compaction import compact_table, plan_groups, plan_merges
from sprocketmq.spark.jobs.land.direct import land_direct
from sprocketmq.spark.jobs.land.plan import Wanted
from sprocketmq.spark.jobs.land.table import DataFile, LandedBatch
from sprocketmq.spark.jobs.land.table_errors import NotALandingTable, TableBusy, TableDamaged, TableMismatch, TableNotWritable
from sprocketmq.spark.jobs.land.table_writer import TableWriter, no_step
from sprocketmq.spark.jobs.land.write import FileWriter, StagingNotShared, WorkerCannotWrite, WriteSettings, partitions_of, write_batches
from sprocketmq.spark.option_values import OptionError

HOUR_US = 3_600_000_000
BEGAN_US = 1_767_225_600_000_000 - 6 * HOUR_US  # 18:00 on the last day of 2025, UTC


class Killed(BaseException):
    """Stands for kill -9: nothing catches it, nothing is cleaned up."""


class FakeTopics:
    """Queues that grow: message ``n`` of a queue was stored ``n`` hours after the first."""

    def __init__(self, *topics, queues=2):
        self.ends = {(topic, queue): 0 for topic in topics for queue in range(queues)}

    def add(self, count):
        for queue in self.ends:
            self.ends[queue] += count

    def all(self):
        return sorted((topic, queue, offset) for (topic, queue), end in self.ends.items() for offset in range(end))

    def make_reader(self, options):
        return FakeReader(self, options)


class FakeReader:
    """The source's stream reader, as far as landing uses it."""

    def __init__(self, topics, options):
        self.topics = topics
        self.columns = options["columns"].split(",")
        self.limit = int(options["maxOffsetsPerTrigger"])
        self.target = None
        self.tags = options.get("filterExpression")

    def offsets(self, ends):
        value = {}
        for (topic, queue), end in ends.items():
            value.setdefault(topic, {}).setdefault("broker-a", {})[str(queue)] = end
        return {"v": 1, "topics": value}

    def places(self, offsets):
        return {(topic, int(queue)): end for topic, by_broker in offsets["topics"].items() for queue, end in by_broker["broker-a"].items()}

    def initialOffset(self):
        return self.offsets(dict.fromkeys(self.topics.ends, 0))

    def end_here(self):
        self.target = dict(self.topics.ends)

    def seen_offset(self):
        return self.offsets(self.target)

    def next_offset(self, start):
        places = self.places(start)
        each = self.limit // len(places)
        return self.offsets({queue: min(self.target[queue], place + each) for queue, place in places.items()})

    def partitions(self, start, end):
        begun, ends = self.places(start), self.places(end)
        return [(queue, begun[queue], ends[queue]) for queue in ends if begun[queue] < ends[queue]]

    def read(self, partition):
        (topic, queue), start, end = partition
        for first in range(start, end, 3):
            offsets = list(range(first, min(end, first + 3)))
            if self.tags is None:
                yield rows(topic, queue, offsets).select(self.columns)


def rows(topic, queue, offsets):
    """Return a batch as the source makes it."""
    schema = arrow_schema(("topic", "brokerName", "queueId", "queueOffset", "body", "tags", "keys", "properties", "storeTimestamp"))
    stored = [BEGAN_US + offset * HOUR_US for offset in offsets]
    columns = {
        "topic": [topic] * len(offsets),
        "brokerName": ["broker-a"] * len(offsets),
        "queueId": [queue] * len(offsets),
        "queueOffset": offsets,
        "body": [f"{topic}-{queue}-{offset}".encode() for offset in offsets],
        "tags": ["t"] * len(offsets),
        "keys": [None] * len(offsets),
        "properties": [[("TAGS", "t")]] * len(offsets),
        "storeTimestamp": stored,
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


COLUMNS = ("topic", "queueId", "queueOffset", "body")
DEFAULTS = WriteSettings()


def here(tasks, on_progress):
    """Run tasks in this process."""
    written = [file for task in tasks for file in task()]
    on_progress(sum(file.rows for file in written))
    return written


def wanted(to, *, topics=("orders",), columns=COLUMNS, partition_by=None, batch=8, **options):
    return Wanted(topics, os.fspath(to), "127.0.0.1:1", "parquet", columns, partition_by, batch, options)


def run(to, queues, /, *, run=here, settings=DEFAULTS, **more):
    names = ("topics", "columns", "partition_by", "batch", "filterExpression")
    asked = {name: more.pop(name) for name in names if name in more}
    return land_direct(wanted(to, **asked), run, settings, make_reader=queues.make_reader, **more)


def places(files):
    """Return the sorted (topic, queue, offset) of every row in some files: a repeated row shows."""
    found = []
    for file in files:
        table = pq.ParquetFile(file).read()
        assert table["body"].to_pylist() == [
            f"{topic}-{queue}-{offset}".encode()
            for topic, queue, offset in zip(*(table[name].to_pylist() for name in COLUMNS[:3]), strict=True)
        ]
        found += zip(*(table[name].to_pylist() for name in COLUMNS[:3]), strict=True)
    return sorted(found)


def plain_places(path):
    """Return the same as any reader of plain Parquet sees it."""
    if not any(Path(path).glob("batch=*/**/*.parquet")):
        return []
    table = pq.read_table(path)
    return sorted(zip(*(table[name].to_pylist() for name in COLUMNS[:3]), strict=True))


@pytest.fixture
def topics():
    topics = FakeTopics("orders")
    topics.add(10)
    return topics


# --- landing ------------------------------------------------------------------------------------------------------------


def test_every_message_lands_once_and_the_next_run_goes_on(tmp_path, topics):
    done = run(tmp_path / "t", topics)
    assert (done.messages, done.batches, done.files, done.messages_in_table) == (20, 3, 6, 20)
    assert places(landed_files(tmp_path / "t")) == plain_places(tmp_path / "t") == topics.all()
    assert run(tmp_path / "t", topics).messages == 0
    topics.add(3)
    done = run(tmp_path / "t", topics)
    assert (done.messages, done.batches, done.messages_in_table) == (6, 1, 26)
    assert places(landed_files(tmp_path / "t")) == plain_places(tmp_path / "t") == topics.all()
    state = read_table(tmp_path / "t")
    assert [batch.number for batch in state.batches] == [1, 2, 3, 4]
    assert all(before.end == after.start for before, after in zip(state.batches, state.batches[1:], strict=False))


def test_an_empty_topic_makes_an_empty_table_that_remembers_where_it_began(tmp_path):
    topics = FakeTopics("orders")
    assert run(tmp_path / "t", topics).messages == 0
    assert landed_files(tmp_path / "t") == []
    assert read_table(tmp_path / "t").end == {"v": 1, "topics": {"orders": {"broker-a": {"0": 0, "1": 0}}}}
    topics.add(2)
    assert run(tmp_path / "t", topics).messages == 4


def test_a_table_with_a_file_missing_is_not_read_as_if_it_were_whole(tmp_path, topics, monkeypatch):
    monkeypatch.setattr(table, "_ATTEMPT_PAUSE_S", 0)
    run(tmp_path / "t", topics)
    gone = landed_files(tmp_path / "t")[0]
    Path(gone).rename(f"{gone}.copy")
    with pytest.raises(TableDamaged, match=f"{re.escape(gone)}: the file is missing; restore it"):
        landed_files(tmp_path / "t")
    with pytest.raises(TableDamaged, match="the file is missing"):
        landed(None, tmp_path / "t")  # before Spark is asked for anything


def test_batches_a_filter_empties_still_move_the_table_on(tmp_path, topics):
    done = run(tmp_path / "t", topics, filterExpression="none")
    assert (done.messages, done.batches, done.files) == (0, 3, 0)
    assert read_table(tmp_path / "t").end["topics"]["orders"]["broker-a"] == {"0": 10, "1": 10}


def test_landing_goes_on_until_it_is_stopped(tmp_path, topics):
    stop = threading.Event()
    seen = []

    def report(progress):
        seen.append((progress.done, progress.total))
        if seen == [(0, 20)]:
            topics.add(5)
        if progress.total == progress.done == 10:
            stop.set()

    done = run(tmp_path / "t", topics, every_s=0.001, stop=stop, report=report)
    assert done.messages == 30
    assert plain_places(tmp_path / "t") == topics.all()
    assert seen[-1] == (10, 10)


def test_a_stop_ends_it_between_two_batches(tmp_path, topics):
    stop = threading.Event()
    stop.set()
    assert run(tmp_path / "t", topics, stop=stop).messages == 0
    assert run(tmp_path / "t", topics).messages == 20


def test_topics_and_days_are_partitions_and_no_columns_of_the_files(tmp_path):
    topics = FakeTopics("%DLQ%orders", "2025", queues=1)
    topics.add(40)
    done = run(
        tmp_path / "t",
        topics,
        topics=("%DLQ%orders", "2025"),
        columns=("topic", "queueId", "queueOffset", "body"),
        partition_by=("topic", "date"),
    )
    files = [Path(file).relative_to(tmp_path / "t").parts for file in landed_files(tmp_path / "t")]
    assert {parts[1] for parts in files} == {"topic=%25DLQ%25orders", "topic=2025"}
    assert {parts[2] for parts in files} == {"date=2025-12-31", "date=2026-01-01", "date=2026-01-02"}
    assert done.messages == 80
    assert pq.ParquetFile(landed_files(tmp_path / "t")[0]).schema_arrow.names == ["queueId", "queueOffset", "body"]
    text = pa.string()
    table = pq.read_table(
        tmp_path / "t",
        partitioning=ds.partitioning(pa.schema([("batch", pa.int32()), ("topic", text), ("date", text)]), flavor="hive"),
    )
    got = sorted(zip(table["topic"].to_pylist(), table["queueOffset"].to_pylist(), table["date"].to_pylist(), strict=True))
    day = [str(np.datetime64(BEGAN_US + offset * HOUR_US, "us").astype("datetime64[D]")) for offset in range(40)]
    assert got == sorted((topic, offset, day[offset]) for topic in ("%DLQ%orders", "2025") for offset in range(40))


@pytest.mark.parametrize("partition_by", [None, ("date",)])
def test_polars_reads_a_table_as_the_guide_says(tmp_path, topics, monkeypatch, partition_by):
    run(tmp_path / "tables/orders", topics, partition_by=partition_by)
    guide = (Path(__file__).parents[3] / "docs/guide/pipeline-land.md").read_text(encoding="utf-8")
    (pattern, options) = re.search(r'polars\.read_parquet\("(.+)", (hive_partitioning=True)\)', guide).groups()
    monkeypatch.chdir(tmp_path)
    frame = pl.read_parquet(pattern, **{name: value == "True" for name, value in [options.split("=")]})
    assert sorted(frame.select(COLUMNS[:3]).iter_rows()) == topics.all()
    assert frame["batch"].unique().sort().to_list() == [1, 2, 3]
    assert ("date" in frame.columns) == (partition_by is not None)
    with pytest.raises(pl.exceptions.PolarsError):
        pl.read_parquet("tables/orders")  # what the pattern is for


def test_what_failed_and_doubled_attempts_wrote_is_not_in_the_table(tmp_path, topics):
    def twice(tasks, on_progress):
        for task in tasks[::-1]:
            task()
        return here(tasks, on_progress)

    run(tmp_path / "t", topics, run=twice)
    assert plain_places(tmp_path / "t") == topics.all()
    assert not list((tmp_path / "t/_sprocketmq/staging").iterdir())


def test_a_task_that_fails_leaves_the_table_with_the_batches_before(tmp_path, topics):
    jobs = []

    def second_fails(tasks, on_progress):
        jobs.append(1)
        written = here(tasks, on_progress)
        if len(jobs) == 2:
            raise OSError(28, "No space left on device")
        return written

    with pytest.raises(OSError, match="No space left"):
        run(tmp_path / "t", topics, run=second_fails)
    assert len(plain_places(tmp_path / "t")) == 8
    assert not (tmp_path / "t/_sprocketmq/staging").exists(), "what the failed batch wrote is gone at once"
    run(tmp_path / "t", topics)
    assert plain_places(tmp_path / "t") == topics.all()


def test_a_worker_with_a_disk_of_its_own_is_told_apart(tmp_path, topics):
    def elsewhere(tasks, on_progress):
        written = here(tasks, on_progress)
        for task in tasks:
            for file in task.directory.iterdir():
                file.unlink()
        return written

    with pytest.raises(
        TableDamaged, match="this process finds nothing: the table must lie on a file system that the driver and all workers share"
    ):
        run(tmp_path / "t", topics, run=elsewhere)
    assert plain_places(tmp_path / "t") == []
    with pytest.raises(StagingNotShared, match=r"the worker on .* does not see .*nowhere"):
        write_batches([], tmp_path / "nowhere", WriteSettings())


# --- killed -------------------------------------------------------------------------------------------------------------


class KillAt:
    """Counts steps and kills at one of them."""

    def __init__(self, number=None):
        self.number = number
        self.names = []

    def __call__(self, name):
        self.names.append(name)
        if len(self.names) - 1 == self.number:
            raise Killed(name)


def life(path, topics, step, *, task_dies=None):
    """Land, add, land and compact: all there is to a table's life. Not by ``with``: what is killed cleans nothing up."""

    def run_tasks(tasks, on_progress):
        if task_dies is not None:
            task_dies(tasks)
        return here(tasks, on_progress)

    run(path, topics, step=step, run=run_tasks, batch=12)
    writer = TableWriter(path, step=step)
    try:
        state = writer.open()
        compact_table(writer, state, run_tasks, WriteSettings(file_bytes=1 << 20))
    finally:
        writer.close()


def count_steps(path, topics):
    step = KillAt()
    life(path, topics, step)
    return step.names


def test_killed_at_any_step_nothing_is_lost_or_doubled_and_readers_see_whole_batches(tmp_path, topics):
    names = count_steps(tmp_path / "counted", topics)
    assert {"describe table", "place file", "write manifest", "commit batch", "note swap", "move replaced batch", "forget swap"} <= set(
        names
    )
    for number, name in enumerate(names):
        table = tmp_path / f"killed-{number}"
        with pytest.raises(Killed):
            life(table, topics, KillAt(number))
        if (table / "_sprocketmq/table.json").exists():
            seen = places(landed_files(table))
            assert len(seen) == len(set(seen)), name
            assert len(seen) in (0, 12, 20), name
            if "swap" not in name and "replaced" not in name and "compacted" not in name:
                assert plain_places(table) == seen, name
        life(table, topics, no_step)
        assert places(landed_files(table)) == plain_places(table) == topics.all(), name
        assert not list((table / "_sprocketmq").glob("staging/*")), name
        assert not (table / "_sprocketmq/swap.json").exists(), name


def test_killed_again_while_it_mends_nothing_is_lost_or_doubled(tmp_path, topics):
    names = count_steps(tmp_path / "counted", topics)
    swapping = [number for number, name in enumerate(names) if "swap" in name or "replaced" in name or "compacted" in name]
    for number in swapping:
        for again in range(3):
            table = tmp_path / f"killed-{number}-{again}"
            with pytest.raises(Killed):
                life(table, topics, KillAt(number))
            try:
                life(table, topics, KillAt(again))
            except Killed:
                seen = places(landed_files(table))
                assert seen == topics.all()
            life(table, topics, no_step)
            assert places(landed_files(table)) == plain_places(table) == topics.all()


def test_killed_inside_a_task_half_a_file_is_never_seen(tmp_path, topics):
    def dies(tasks):
        (tasks[0].directory / "half.parquet").write_bytes(b"PAR1 and then nothing")
        tasks[0]()
        raise Killed

    with pytest.raises(Killed):
        life(tmp_path / "t", topics, no_step, task_dies=dies)
    assert plain_places(tmp_path / "t") == []
    life(tmp_path / "t", topics, no_step)
    assert places(landed_files(tmp_path / "t")) == plain_places(tmp_path / "t") == topics.all()


def test_kill_minus_nine_of_a_real_process(tmp_path):
    """The same at every third step with a process that is really gone, its lock with it."""
    program = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[1])
        import test_land as t
        topics = t.FakeTopics("orders")
        topics.add(10)
        root = Path(sys.argv[2])
        names = t.count_steps(root / "counted", topics)
        class Die(t.KillAt):
            def __call__(self, name):
                self.names.append(name)
                if len(self.names) - 1 == self.number:
                    os.kill(os.getpid(), signal.SIGKILL)
        for number in range(0, len(names), 3):
            child = os.fork()
            if not child:
                t.life(root / str(number), topics, Die(number))
                os._exit(3)
            status = os.waitpid(child, 0)[1]
            assert os.WIFSIGNALED(status), (number, status)
            t.life(root / str(number), topics, t.no_step)
            assert t.plain_places(root / str(number)) == topics.all(), names[number]
        print(len(names))
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(Path(__file__).parent), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


# --- compaction ---------------------------------------------------------------------------------------------------------


def test_compaction_merges_files_and_readers_see_each_row_once_all_the_while(tmp_path, topics):
    run(tmp_path / "t", topics)
    looks = []

    def look(name):
        looks.append(name)
        assert places(landed_files(tmp_path / "t")) == topics.all(), name

    with TableWriter(tmp_path / "t", step=look) as writer:
        before = writer.open()
        after = compact_table(writer, before, here, WriteSettings(file_bytes=1 << 20))
    assert "move replaced batch" in looks
    assert (len(before.batches), len(after.batches), after.rows) == (3, 1, 20)
    assert after == read_table(tmp_path / "t")
    assert (after.batches[0].first, after.batches[0].number, after.end) == (1, 3, before.end)
    assert [len(batch.files) for batch in after.batches] == [1]
    topics.add(4)
    run(tmp_path / "t", topics)
    assert plain_places(tmp_path / "t") == topics.all()
    assert [batch.number for batch in read_table(tmp_path / "t").batches] == [3, 4]


def test_landing_compacts_by_itself_when_told_to(tmp_path, topics):
    done = run(tmp_path / "t", topics, batch=2, compact_after=4, settings=WriteSettings(file_bytes=1 << 20))
    assert done.batches == 10
    assert len(read_table(tmp_path / "t").batches) < 5
    assert plain_places(tmp_path / "t") == topics.all()


def test_partitions_are_merged_each_by_itself(tmp_path, topics):
    run(tmp_path / "t", topics, partition_by=("date",))
    with TableWriter(tmp_path / "t") as writer:
        state = compact_table(writer, writer.open(), here, WriteSettings(file_bytes=1 << 20))
    assert [file.path.rpartition("/")[0] for file in state.batches[0].files] == ["date=2025-12-31", "date=2026-01-01"]
    assert plain_places(tmp_path / "t") == topics.all()


def batch(number, *sizes, partition=""):
    files = tuple(DataFile(f"{partition}part-{i}", 1, size) for i, size in enumerate(sizes))
    return LandedBatch(number, number, {}, {}, files, Path(f"/t/batch={number}"))


def test_only_neighbours_with_small_files_are_merged():
    def groups(*batches):
        return [[one.number for one in group] for group in plan_groups(batches, 100)]

    assert groups() == []
    assert groups(batch(1, 10)) == []
    assert groups(batch(1, 10, 10)) == [[1]]
    assert groups(batch(1, 10), batch(2, 10)) == [[1, 2]]
    assert groups(batch(1, 10), batch(2, 90), batch(3, 10), batch(4)) == [[3, 4]]
    assert groups(*(batch(i, 45) for i in range(20))) == [list(range(8)), list(range(8, 16)), list(range(16, 20))]


def test_a_merge_takes_about_a_file_s_worth_of_one_partition():
    group = [batch(1, 40, 40, partition="a/"), batch(2, 40, partition="b/"), batch(3, 40, partition="a/")]
    assert plan_merges(group, 100) == [
        ("a", ("/t/batch=1/a/part-0", "/t/batch=1/a/part-1")),
        ("a", ("/t/batch=3/a/part-0",)),
        ("b", ("/t/batch=2/b/part-0",)),
    ]


def test_a_compaction_that_lost_rows_is_refused(tmp_path, topics):
    run(tmp_path / "t", topics)

    def forgets(tasks, on_progress):
        return here(tasks[:-1], on_progress)

    with pytest.raises(TableDamaged, match="compaction made 0 rows of 20"), TableWriter(tmp_path / "t") as writer:
        compact_table(writer, writer.open(), forgets, WriteSettings(file_bytes=1 << 20))
    assert plain_places(tmp_path / "t") == topics.all()


# --- files --------------------------------------------------------------------------------------------------------------


def test_row_groups_and_files_end_at_their_sizes(tmp_path):
    settings = WriteSettings(row_group_bytes=10_000, file_bytes=15_000, compression="none")
    batches = [rows("orders", 0, list(range(first, first + 100))) for first in range(0, 1000, 100)]
    written = write_batches(batches, tmp_path, settings)
    assert sum(file.rows for file in written) == 1000
    assert len(written) > 2
    for file in written:
        metadata = pq.read_metadata(tmp_path / file.name)
        assert metadata.num_rows == file.rows
        assert (tmp_path / file.name).stat().st_size == file.bytes
    assert pq.read_metadata(tmp_path / written[0].name).num_row_groups > 1


def test_bodies_have_no_dictionary_and_no_statistics(tmp_path):
    [file] = write_batches([rows("orders", 0, list(range(100)))], tmp_path, WriteSettings())
    group = pq.read_metadata(tmp_path / file.name).row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert "RLE_DICTIONARY" not in columns["body"].encodings
    assert not columns["body"].is_stats_set
    assert "RLE_DICTIONARY" in columns["topic"].encodings
    assert columns["queueOffset"].statistics.max == 99
    table = pq.read_table(tmp_path / file.name)
    assert table.equals(pa.Table.from_batches([rows("orders", 0, list(range(100)))]))


def test_few_files_are_open_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "_MAX_OPEN", 3)
    writer = FileWriter(tmp_path, WriteSettings(partition_by=("date",)))
    for day in range(10):
        writer.write(rows("orders", 0, list(range(day * 24, day * 24 + 24))))
        assert len(writer._open) <= 4
    written = writer.close()
    assert sum(file.rows for file in written) == 240
    assert len({file.partition for file in written}) == 11


def test_a_batch_is_cut_by_topic_and_day():
    [both] = pa.Table.from_batches([rows("b", 0, [5, 6]), rows("a", 0, [6, 7])]).combine_chunks().to_batches()
    cut = [(at, part["queueOffset"].to_pylist()) for at, part in partitions_of(both, ("topic", "date"))]
    assert cut == [
        ("topic=b/date=2025-12-31", [5]),
        ("topic=b/date=2026-01-01", [6]),
        ("topic=a/date=2026-01-01", [6, 7]),
    ]
    assert [at for at, _ in partitions_of(both, ())] == [""]


# --- refused ------------------------------------------------------------------------------------------------------------


def test_a_target_that_is_no_table_is_left_alone(tmp_path, topics):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotALandingTable, match="it is a file"):
        run(tmp_path / "file", topics)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/report.csv").write_text("mine")
    with pytest.raises(NotALandingTable, match=r"it holds other things \(report.csv\)"):
        run(tmp_path / "full", topics)
    assert [entry.name for entry in (tmp_path / "full").iterdir()] == ["report.csv"]
    for reader in (landed_files, read_table):
        with pytest.raises(NotALandingTable, match=r"it has no _sprocketmq/table.json"):
            reader(tmp_path / "full")
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty", topics).messages == 20


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"topics": ("bills",)}, "was made with the topics orders, not bills"),
        ({"topics": ("orders", "bills")}, "was made with the topics orders, not orders, bills"),
        ({"columns": ("body",)}, "was made with the columns topic, queueId, queueOffset, body, not body"),
        ({"partition_by": ("date",)}, "was made with the partitions none, not date"),
    ],
)
def test_a_table_of_something_else_is_refused(tmp_path, topics, other, says):
    run(tmp_path / "t", topics)
    with pytest.raises(TableMismatch, match=says):
        run(tmp_path / "t", topics, **other)
    assert plain_places(tmp_path / "t") == topics.all()


def test_what_is_not_said_is_as_the_table_has_it(tmp_path, topics):
    run(tmp_path / "t", topics, partition_by=("date",))
    topics.add(2)
    assert run(tmp_path / "t", topics, columns=None).messages == 4
    assert read_table(tmp_path / "t").spec.columns == COLUMNS


def test_a_table_has_one_writer(tmp_path, topics):
    run(tmp_path / "t", topics)
    with TableWriter(tmp_path / "t") as writer:
        writer.open()
        with pytest.raises(TableBusy, match="is being written by another process"):
            run(tmp_path / "t", topics)
    assert run(tmp_path / "t", topics).messages == 0


def test_a_batch_that_appeared_from_elsewhere_is_not_overwritten(tmp_path, topics):
    run(tmp_path / "t", topics)
    topics.add(1)

    def meanwhile(tasks, on_progress):
        (tmp_path / "t/batch=00000004").mkdir()
        (tmp_path / "t/batch=00000004/_manifest.json").write_text("{}")
        return here(tasks, on_progress)

    with pytest.raises(TableBusy, match="batch=00000004 appeared meanwhile"):
        run(tmp_path / "t", topics, run=meanwhile)


def test_a_directory_that_cannot_be_written_is_said(tmp_path, topics, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(TableNotWritable, match=r"cannot write to .*/t: Permission denied; make room there or change its permissions"):
            run(tmp_path / "t", topics)
    (tmp_path / "file").write_text("")
    with pytest.raises(TableNotWritable, match="Not a directory"):
        run(tmp_path / "file/t", topics)


def test_a_full_disk_is_said_with_its_place(tmp_path, topics, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    for owner, name, says in (
        (pq.ParquetWriter, "write_table", r"the worker on .* cannot write to .*staging.*: No space left on device; make room"),
        (TableWriter, "_write_json", r"cannot write to .*/t: No space left on device"),
        (Path, "rename", r"cannot write to .*/t: No space left on device"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, refuse)
            with pytest.raises((WorkerCannotWrite, TableNotWritable), match=says):
                run(tmp_path / "t", topics)
        assert plain_places(tmp_path / "t") == []
    run(tmp_path / "t", topics)
    assert plain_places(tmp_path / "t") == topics.all()


def test_a_table_may_be_moved(tmp_path, topics):
    run(tmp_path / "t", topics)
    (tmp_path / "t").rename(tmp_path / "elsewhere")
    topics.add(5)
    assert run(tmp_path / "elsewhere", topics).messages == 10
    assert places(landed_files(tmp_path / "elsewhere")) == topics.all()


def test_damaged_notes_are_told_apart(tmp_path, topics):
    run(tmp_path / "t", topics)
    manifest = tmp_path / "t/batch=00000002/_manifest.json"
    kept = manifest.read_text()
    for text in ("{", "{}", '{"files": [{"name": "x"}]}'):
        manifest.write_text(text)
        with pytest.raises(TableDamaged, match=r"_manifest.json: it is not a manifest"):
            landed_files(tmp_path / "t")
    manifest.write_text(kept)
    table = tmp_path / "t/_sprocketmq/table.json"
    table.write_text("{")
    with pytest.raises(TableDamaged, match="it does not describe a table"):
        run(tmp_path / "t", topics)
    table.write_text(json.dumps({"v": 9}))
    with pytest.raises(NotALandingTable, match="it is of version 9, this SprocketMQ reads version 1"):
        run(tmp_path / "t", topics)


def test_a_batch_without_a_manifest_is_damage_not_a_shorter_table(tmp_path, topics, monkeypatch):
    monkeypatch.setattr("sprocketmq.spark.jobs.land.table._ATTEMPT_PAUSE_S", 0)
    run(tmp_path / "t", topics)
    (tmp_path / "t/batch=00000002/_manifest.json").unlink()
    with pytest.raises(TableDamaged, match="the batch has no manifest"):
        landed_files(tmp_path / "t")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"topics": ()}, "name at least one"),
        ({"topics": "a b"}, "a b"),
        ({"partition_by": "hour"}, "partition_by is 'hour', and must be one of topic, date"),
        ({"partition_by": ("date", "date")}, "names a partition twice"),
        ({"columns": "body,bdy"}, "there is no column 'bdy'"),
        ({"columns": "topic", "partition_by": "topic"}, "nothing is left for the files"),
        ({"batch_messages": 0}, "batch_messages is 0, and must be at least 1"),
        ({"every_s": 0}, "every_s is 0"),
        ({"compact_after": 1}, "compact_after is 1, and must be at least 2"),
        ({"file_bytes": 5}, "file_bytes is 5"),
        ({"compression": "brotli"}, "compression is 'brotli', and must be one of snappy"),
        ({"format": "orc"}, "format is 'orc', and must be one of parquet, delta, iceberg"),
        ({"writer": "spork"}, "writer is 'spork'"),
        ({"nameserver": "nowhere"}, "nameserver"),
        ({"checkpoint": "/c"}, "checkpoint is for writer=spark"),
        ({"writer": "spark", "sync": True}, "sync is for writer=direct"),
        ({"format": "iceberg", "to": "lake.orders"}, "lake.orders is a table's name: say with checkpoint"),
        ({"options": {"subscribe": "x"}}, "option 'subscribe' has an argument of its own: topics"),
        ({"options": {"maxOffsetsPerTrigger": "5"}}, "option 'maxOffsetsPerTrigger' has an argument of its own: batch_messages"),
        ({"options": {"startingOffset": "latest"}}, "did you mean 'startingOffsets'"),
    ],
)
def test_arguments_that_cannot_be_are_refused_before_there_is_a_session(tmp_path, change, says):
    arguments = {"topics": "orders", "to": tmp_path / "t", "nameserver": "127.0.0.1:1", **change}
    with pytest.raises(ConfigError, match=says):
        plan_landing(**arguments)
    assert not (tmp_path / "t").exists()


def test_so_is_a_target_that_does_not_fit(tmp_path, topics):
    run(tmp_path / "t", topics)
    assert plan_landing("orders", tmp_path / "t", nameserver="127.0.0.1:1").writer == "direct"
    with pytest.raises(TableMismatch, match="with the topics orders, not bills"):
        plan_landing("bills", tmp_path / "t", nameserver="127.0.0.1:1")
    (tmp_path / "file").write_text("")
    for writer in ("direct", "spark"):
        with pytest.raises(NotALandingTable, match="it is a file"):
            plan_landing("orders", tmp_path / "file", nameserver="127.0.0.1:1", writer=writer)


def test_files_need_a_column(tmp_path, topics):
    with pytest.raises(OptionError, match="nothing is left for the files"):
        run(tmp_path / "t", topics, columns=("topic",), partition_by=("topic",))


def test_who_writes_follows_from_where_to_and_what():
    def writer(to, kind="parquet", asked=None):
        return Wanted(("T",), to, "h:1", kind, None, None, 1, {}).writer(asked)

    assert writer("/t") == "direct"
    assert writer("s3://bucket/t") == writer("/t", "delta") == writer("/t", asked="spark") == "spark"
    with pytest.raises(ConfigError, match="writer=direct cannot do format delta: use writer=spark"):
        writer("/t", "delta", "direct")
    with pytest.raises(ConfigError, match="cannot do s3://b/t, which is not a directory of a file system"):
        writer("s3://b/t", asked="direct")


def test_spark_s_writer_does_not_mix_into_other_things(tmp_path, topics):
    run(tmp_path / "direct", topics)
    with pytest.raises(NotALandingTable, match="it was landed to with writer=direct"):
        check_target(wanted(tmp_path / "direct"), str(tmp_path / "direct/_checkpoint"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/a").write_text("")
    with pytest.raises(NotALandingTable, match="there is no checkpoint"):
        check_target(wanted(tmp_path / "full"), str(tmp_path / "full/_checkpoint"))
    (tmp_path / "full/_checkpoint").mkdir()
    check_target(wanted(tmp_path / "full"), str(tmp_path / "full/_checkpoint"))
    with pytest.raises(NotALandingTable, match="it holds other things"):
        run(tmp_path / "full", topics)


def test_a_missing_table_format_names_its_package():
    class Session:
        def __init__(self, error):
            self.error = error
            self.read = self

        def format(self, name):
            return self

        def load(self, path):
            raise self.error

    with pytest.raises(FormatMissing, match=r"no format 'delta'.*spark.jars.packages=io.delta:delta-spark_2.13:VERSION"):
        require_format(Session(Exception("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta")), "delta")
    require_format(Session(Exception("[PATH_NOT_FOUND]")), "iceberg")
    require_format(Session(AssertionError()), "parquet")
