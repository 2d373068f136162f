"""Store files read as Arrow batches without Spark and without a broker."""

import pyarrow as pa
import pytest
from tests.recorded_stores import unpack

from sprocketmq import Message, arrow, sync
from sprocketmq.arrow.schema import arrow_schema
from sprocketmq.arrow.store.tables import TABLES
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ConfigError, StoreDamaged


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("ours")
    with LocalCluster(store=root) as cluster, sync.Producer("pg", namesrv=cluster.namesrv) as producer:
        for topic in ("orders", "payments"):
            producer.send_batch([Message(topic, b"%s %d" % (topic.encode(), n), f"t{n % 2}") for n in range(100)])
    return next(path.parent for path in root.rglob("commitlog"))


def test_a_store_is_read_in_the_order_of_its_log(store):
    table = arrow.read_store(store).to_table()
    assert table.schema == arrow_schema()
    assert [row["body"] for row in table.to_pylist()] == [b"%s %d" % (topic, n) for topic in (b"orders", b"payments") for n in range(100)]


def test_a_store_of_apaches_broker_is_read(tmp_path):
    table = arrow.read_store(unpack("batchcq", tmp_path), columns=["topic", "body", "batchNum"]).to_table()
    assert table.num_rows > 0
    assert max(number or 0 for number in table["batchNum"].to_pylist()) > 1


def test_topics_and_columns_and_offsets_limit_a_read(store):
    table = arrow.read_store(str(store), topics=["payments"], columns=["body", "commitLogOffset"]).to_table()
    assert table.num_rows == 100
    middle = table["commitLogOffset"][50].as_py()
    later = arrow.read_store(store, topics="payments", columns=["body"], from_log_offset=middle).to_table()
    assert later["body"][0].as_py() == b"payments 50"
    assert arrow.read_store(store, topics="payments", to_log_offset=middle).to_table().num_rows == 50


@pytest.mark.parametrize("name", ["consumequeue", "index"])
def test_other_tables_are_read(store, name):
    table = arrow.read_store(store, table=name).to_table()
    assert table.column_names == list(TABLES[name].default)
    assert name == "index" or table.num_rows == 200


def test_a_read_that_stops_in_the_middle_ends(store):
    with arrow.read_store(store, batch_rows=10) as batches:
        assert next(batches).num_rows == 10
    assert list(batches) == []


def test_it_is_an_arrow_stream(store):
    assert pa.table(arrow.read_store(store)).num_rows == 200


def test_damage_is_an_error_or_a_row(store, tmp_path):
    [segment] = (path for path in (store / "commitlog").iterdir() if path.stat().st_size)
    offsets = arrow.read_store(store, columns=["commitLogOffset"]).to_table()["commitLogOffset"].to_pylist()
    with segment.open("rb") as file:
        data = bytearray(file.read(offsets[-1] + 4096))
    data[offsets[50] + 4] ^= 0xFF  # its magic
    copy = tmp_path / segment.name
    copy.write_bytes(data)
    with pytest.raises(StoreDamaged) as damaged:
        arrow.read_store(copy).to_table()
    assert damaged.value.offset == offsets[50]
    assert arrow.read_store(copy, on_corrupt="skip").to_table().num_rows == 199
    rows = arrow.read_store(copy, on_corrupt="report", columns=["commitLogOffset"]).to_table().to_pylist()
    assert [row["corrupt"]["offset"] for row in rows if row["corrupt"]] == [offsets[50]]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"table": "queues"}, "no table 'queues'"),
        ({"on_corrupt": "ignore"}, "on_corrupt must be"),
        ({"columns": ["nope"]}, "no column 'nope'"),
        ({"path": []}, "at least one store"),
        ({"path": "/nowhere/at/all"}, "does not exist$"),
        ({"batch_rows": 0}, "batch_rows must be a whole number, 1 or more"),
        ({"from_log_offset": -1}, "from_log_offset must be a whole number, 0 or more"),
        ({"from_log_offset": 100, "to_log_offset": 50}, "nothing lies between them"),
    ],
)
def test_wrong_arguments_are_refused_at_once(store, arguments, reason):
    with pytest.raises(ConfigError, match=reason):
        arrow.read_store(**{"path": store, **arguments})


def test_a_directory_without_a_store_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no store"):
        arrow.read_store(tmp_path).to_table()
