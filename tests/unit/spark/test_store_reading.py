"""Stores read without a broker and without Spark: plan what there is, read it in pieces, and say what is damaged."""

import errno
import hashlib
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from struct import pack_into, unpack_from

import pyarrow as pa
import pytest
from tests.recorded_stores import STORES, unpack

from sprocketmq.arrow.schema import COLUMNS
from sprocketmq.arrow.store.pieces import DamagePiece, IndexPiece, LogPiece, UnitPiece, pack
from sprocketmq.arrow.store.reading import StoreReader
from sprocketmq.arrow.store.tables import store_arrow_schema
from sprocketmq.errors import StoreDamaged
from sprocketmq.protocol.batch import encode_batch, split_batch
from sprocketmq.protocol.compression import CompressionType, compress, compression_flag
from sprocketmq.protocol.hashing import crc32, tags_code
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import pack_host
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.store.options import parse_store_options
from sprocketmq.spark.store.starting import check_paths, plan_store
from sprocketmq.storage.fs import RealFileSystem
from sprocketmq.storage.index.record_keys import key_hash
from sprocketmq.storage.store import MessageStore, StoreConfig

NAMES = ["plain", "batchcq", "compressed", "delay-retry", "crash", "crash-lag", "propcrc"]
HOST = pack_host("127.0.0.1", 10911)
SEGMENT = 64 << 10


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the directory of each store that Apache's broker wrote."""
    found = {}
    for name in NAMES:
        found[name] = unpack(name, tmp_path_factory.mktemp(name))
    return found


class Writer:
    """A store of ours with small files: some topics, some lengths, segments of 64 KiB."""

    def __init__(self, root, **config):
        self.root = root
        sizes = {"commitlog_segment_bytes": SEGMENT, "consumequeue_segment_bytes": 1000, "batchqueue_segment_bytes": 460}
        self.store = MessageStore(StoreConfig(root, max_hash_slots=64, max_index_entries=256, **sizes, **config))
        self.store.store_host = HOST
        self.store.open()
        self.random = random.Random(7)

    def send(self, count, *, topic="orders", size=400):
        for number in range(count):
            properties = encode_properties({"TAGS": f"t{number % 3}", "KEYS": f"k{number}", "UNIQ_KEY": f"U{number:06}"})
            body = self.random.randbytes(self.random.randrange(1, size))
            self.store.stage_message(
                topic, number % 4, body, properties, tags_code=tags_code(f"t{number % 3}"), born_timestamp_ms=5, born_host=HOST
            )
            self.store.commit()
        return self

    def send_inner(self, bodies, *, topic="batches"):
        self.store.declare_batch_topic(topic)
        inner = encode_batch([(0, body, encode_properties({"TAGS": "i"})) for body in bodies])
        outer = encode_properties({"UNIQ_KEY": "U"})
        self.store.stage_inner_batch(topic, 0, inner, outer, count=len(bodies), tags_code=0, born_timestamp_ms=5, born_host=HOST)
        self.store.commit()
        return self

    def close(self):
        self.store.close()
        return self.root


@pytest.fixture
def writer(tmp_path):
    made = Writer(tmp_path / "store")
    yield made
    made.store.abandon()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a closed store of several segments and the places of its records; tests that damage it copy it first."""
    made = Writer(tmp_path_factory.mktemp("written") / "store").send(400)
    return made.close()


@pytest.fixture
def store(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "copy"))


def options_of(path, **options):
    return parse_store_options({"path": str(path), **{name: str(value) for name, value in options.items()}})


def read(path, fs=None, **options):
    """Return all rows, each task in a reader of its own, as Spark does it; every batch must have the schema Spark asks for."""
    parsed = options_of(path, **options)
    schema = store_arrow_schema(parsed)
    fs = fs or RealFileSystem()
    batches = []
    for pieces in plan_store(parsed, fs):
        for batch in StoreReader(pickle.loads(pickle.dumps(parsed)), fs).read(pickle.loads(pickle.dumps(pieces))):
            assert batch.schema.equals(schema)
            batch.validate(full=True)
            assert batch.num_rows
            batches.append(batch)
    return pa.Table.from_batches(batches, schema).to_pylist()


def places(root):
    """Return (path, place in the file, size, log offset) of every record, by following sizes alone."""
    found = []
    for path in sorted((root / "commitlog").iterdir()):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = unpack_from(">iI", data, at)
            if magic not in (0xDAA320A7, 0xDAA320AB):
                break
            found.append((path, at, size, int(path.name) + at))
            at += size
    return found


def change(path, at, data):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def offsets(rows):
    return [row["commitLogOffset"] for row in rows]


def positions_in(path, **options):
    """Return the log offset of every row."""
    return offsets(read(path, columns="commitLogOffset", **options))


# --- what Apache's broker wrote -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_message_of_a_recorded_store_is_read_as_the_java_client_listed_it(recorded, name):
    listing = json.loads((STORES / f"{name}.expected.json").read_text())
    rows = read(recorded[name], columns=",".join(COLUMNS), verifyCrc=True, brokerName="broker-fx")
    by_place = {}
    for row in rows:
        assert row["brokerName"] == "broker-fx"
        assert by_place.setdefault((row["topic"], row["queueId"], row["queueOffset"], row["commitLogOffset"]), row) is row
    seen = 0
    for topic, described in listing["topics"].items():
        for queue_id, queue in described["queues"].items():
            for message in queue["messages"]:
                row = by_place[topic, int(queue_id), message["queueOffset"], message["commitLogOffset"]]
                assert hashlib.sha256(row["body"]).hexdigest() == message["bodySha256"]
                assert (row["msgId"], row["offsetMsgId"], row["tags"], row["keys"]) == tuple(
                    message[field] or None for field in ("msgId", "offsetMsgId", "tags", "keys")
                )
                properties = dict(row["properties"])
                properties.pop("__CRC32#", None)
                assert properties == {key: value for key, value in message["properties"].items() if key != "__CRC32#"}
                assert round(row["storeTimestamp"].timestamp() * 1000) == message["storeTimestamp"]
                seen += 1
    assert seen > 20
    # What is in no queue are the halves of transactions.
    assert len(rows) - seen <= 8


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("align", ["index", "walk", "resync"])
def test_wherever_the_log_is_split_the_rows_are_the_same_in_the_same_order(recorded, name, align):
    whole = read(recorded[name], columns="commitLogOffset,queueOffset,body,file")
    for split in (2000, 30_000):
        assert read(recorded[name], columns="commitLogOffset,queueOffset,body,file", splitBytes=split, align=align) == whole
    assert read(recorded[name], columns="commitLogOffset,queueOffset,body,file", batchBytes=1024, batchRows=3) == whole


@pytest.mark.parametrize("name", ["plain", "delay-retry", "propcrc", "crash"])
def test_units_of_recorded_queues_are_where_the_messages_are(recorded, name):
    listing = json.loads((STORES / f"{name}.expected.json").read_text())
    rows = read(
        recorded[name], table="consumequeue", columns="topic,queueId,queueOffset,commitLogOffset,size,tagsCode,file", splitBytes=1024
    )
    units = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in rows}
    assert len(units) == len(rows)
    expected = {
        (topic, int(queue_id), message["queueOffset"]): message
        for topic, described in listing["topics"].items()
        for queue_id, queue in described["queues"].items()
        for message in queue["messages"]
        if described["attributes"].get("queue.type") != "BatchCQ"
    }
    # The queues of the killed broker may be behind its log.
    assert set(units) == set(expected) or name == "crash"
    for key, row in units.items():
        message = expected[key]
        assert (row["commitLogOffset"], row["size"]) == (message["commitLogOffset"], message["storeSize"])
        if row["topic"] != "SCHEDULE_TOPIC_XXXX":
            assert row["tagsCode"] == tags_code(message["tags"])
        assert row["file"].startswith(str(recorded[name] / "consumequeue" / row["topic"] / str(row["queueId"])))


def test_units_of_batch_queues_cover_the_messages(recorded):
    listing = json.loads((STORES / "batchcq.expected.json").read_text())
    rows = read(recorded["batchcq"], table="batchcq", topic="Bcq1")
    assert [(row["batchBaseOffset"], row["batchNum"]) for row in rows if row["queueId"] == 0] == [
        *((0, 2), (2, 5), (7, 1), (8, 17), (25, 3), (28, 40)),
    ]
    messages = {m["queueOffset"]: m for m in listing["topics"]["Bcq1"]["queues"]["0"]["messages"]}
    for row in rows:
        if row["queueId"] == 0:
            message = messages[row["batchBaseOffset"]]
            assert row["queueOffset"] == row["batchBaseOffset"]
            assert row["commitLogOffset"] == message["commitLogOffset"]
            assert round(row["storeTimestamp"].timestamp() * 1000) == message["storeTimestamp"]
    everything = read(recorded["batchcq"], table="batchcq", splitBytes=1024)
    assert {row["topic"] for row in everything} == {"Bcq1", "BcqAuto", "BcqSingle"}
    assert [row for row in everything if row["topic"] == "Bcq1"] == rows


def test_index_entries_lead_from_keys_to_messages(recorded):
    listing = json.loads((STORES / "plain.expected.json").read_text())
    rows = read(recorded["plain"], table="index", splitBytes=1024)
    assert len({row["file"] for row in rows}) == 2
    by_hash = {}
    for row in rows:
        assert row["slot"] == row["keyHash"] % 64
        assert row["timeDiff"] >= 0
        by_hash.setdefault(row["keyHash"], set()).add(row["commitLogOffset"])
    times = {row["commitLogOffset"]: row["storeTimestamp"] for row in read(recorded["plain"], columns="commitLogOffset,storeTimestamp")}
    for row in rows:
        assert abs((row["storeTimestamp"] - times[row["commitLogOffset"]]).total_seconds()) <= 1
    found = 0
    for query in listing["keyQueries"]:
        if "commitLogOffsets" in query:
            assert set(query["commitLogOffsets"]) <= by_hash[key_hash(f"{query['topic']}#{query['key']}")]
            found += 1
    assert found


def test_inner_batches_can_be_left_packed(recorded):
    unwrapped = read(recorded["batchcq"], topic="Bcq1", columns="body,batchBaseOffset,batchNum,queueId")
    packed = read(recorded["batchcq"], topic="Bcq1", columns="body,batchBaseOffset,batchNum,queueId", innerBatch="raw")
    assert [row["batchNum"] for row in packed if row["queueId"] == 0] == [2, 5, 1, 17, 3, 40]
    assert [bytes(entry.body) for row in packed for entry in split_batch(row["body"])] == [row["body"] for row in unwrapped]


# --- what our broker writes, and what a read covers ----------------------------------------------------------------------


def test_a_topic_is_read_alone_and_a_broker_is_named_only_by_the_user(writer):
    root = writer.send(30).send(20, topic="bills").send_inner([b"a", b"b", b"c"], topic="orders2").close()
    assert len(read(root)) == 53
    assert {row["topic"] for row in read(root, topic="bills, orders2")} == {"bills", "orders2"}
    assert len(read(root, topic="bills, orders2")) == 23
    assert read(root, topic="order") == []
    assert {row["brokerName"] for row in read(root)} == {None}


def test_records_that_begin_in_a_range_of_the_log_are_read(written):
    found = [position for *_, position in places(written)]
    for align in ("index", "walk", "resync"):
        for start, stop in (
            (0, found[1]),
            (found[3] + 1, found[90]),
            (found[100], found[100]),
            (SEGMENT, 2 * SEGMENT + 5),
            (found[-1], 10**9),
        ):
            rows = read(written, columns="commitLogOffset", fromPhysicalOffset=start, toPhysicalOffset=stop, splitBytes=4096, align=align)
            assert offsets(rows) == [position for position in found if start <= position < stop]
    assert read(written, fromPhysicalOffset=10**9) == []


def test_only_what_was_there_when_the_read_was_planned_is_read(writer):
    writer.send(100)
    options = options_of(writer.root, columns="commitLogOffset")
    plan = plan_store(options)
    there = [position for *_, position in places(writer.root)]
    writer.send(300)
    rows = [row for pieces in plan for batch in StoreReader(options).read(pieces) for row in batch.to_pylist()]
    assert offsets(rows) == there
    assert len(read(writer.root)) == 400, "a store in use is read up to its end"


def test_queues_and_index_of_a_store_in_use_are_read_as_far_as_they_are_written(writer):
    writer.send(200)
    writer.store.flush(thorough=True)
    for table, count in (("consumequeue", 200), ("index", 600)):
        options = options_of(writer.root, table=table)
        plan = plan_store(options)
        assert sum(batch.num_rows for pieces in plan for batch in StoreReader(options).read(pieces)) == count
    writer.send(100)
    assert sum(batch.num_rows for pieces in plan for batch in StoreReader(options).read(pieces)) == 600


def test_room_reserved_ahead_and_a_new_store_hold_nothing(writer):
    for table in ("commitlog", "consumequeue", "batchcq", "index"):
        assert read(writer.root, table=table) == []
    assert plan_store(options_of(writer.root)) == []


def test_a_log_whose_oldest_segments_expired_is_read_from_what_is_left(store):
    first, *_ = sorted((store / "commitlog").iterdir())
    first.unlink()
    assert positions_in(store) == [position for *_, position in places(store)]
    assert positions_in(store)[0] == SEGMENT


def test_stores_can_be_named_by_patterns_lists_and_parts(store, written, tmp_path):
    whole = read(written, columns="commitLogOffset")
    assert read(f"{tmp_path}/co*", columns="commitLogOffset") == whole
    both = parse_store_options({"paths": json.dumps([str(store), str(written), f"{store}/commitlog"]), "columns": "commitLogOffset"})
    rows = [row for pieces in plan_store(both) for batch in StoreReader(both).read(pieces) for row in batch.to_pylist()]
    assert rows == whole + whole, "a file that is named twice is read once"
    assert read(store / "commitlog", columns="commitLogOffset") == whole
    segments = sorted((store / "commitlog").iterdir())
    assert positions_in(segments[1]) == [position for path, *_, position in places(store) if path == segments[1]]
    segments[1].unlink()
    assert positions_in(store / "commitlog") == [position for *_, position in places(store)], "copies of some segments need no neighbours"


def test_small_pieces_share_a_task_and_large_ones_are_split(written):
    plan = plan_store(options_of(written, splitBytes="1m"))
    assert len(plan) == 1
    assert [piece.base for piece in plan[0]] == [0, SEGMENT, 2 * SEGMENT][: len(plan[0])]
    plan = plan_store(options_of(written, splitBytes=16 << 10))
    assert all(piece.weight < 25 << 10 for pieces in plan for piece in pieces)
    assert plan == plan_store(options_of(written, splitBytes=16 << 10)), "planning anew plans the same"
    edges = [(piece.base + piece.start, piece.base + piece.end) for pieces in plan for piece in pieces]
    assert all(end == start for (_, end), (start, _) in pairwise(edges))
    starts = {position for *_, position in places(written)}
    assert all(start in starts for start, _ in edges)
    assert pack([], 10) == []
    tiny = [UnitPiece("p", "t", 0, 0, 0, 4)] * 5
    assert [len(task) for task in pack(tiny, 10)] == [2, 2, 1]


def test_columns_without_bodies_never_touch_a_body(tmp_path):
    """Bodies lie on pages that nobody may read: touching one would end the process."""
    writer = Writer(tmp_path / "store")
    writer.store.close()
    shutil.rmtree(tmp_path / "store")
    script = f"""
import ctypes, mmap, sys
from struct import unpack_from
from pathlib import Path
sys.path[:0] = {sys.path!r}
from sprocketmq.storage.fs import RealFileSystem
from sprocketmq.storage.store import MessageStore, StoreConfig
from sprocketmq.spark.store.options import parse_store_options
from sprocketmq.spark.store.starting import plan_store
from sprocketmq.arrow.store.reading import StoreReader
root = {str(tmp_path / "store")!r}
store = MessageStore(StoreConfig(Path(root), commitlog_segment_bytes=4 << 20))
store.open()
for n in range(20):
    store.stage_message("big", 0, b"x" * 50_000, b"TAGS\\x01t\\x02", tags_code=0, born_timestamp_ms=5, born_host=store.store_host)
store.commit(); store.close()
options = parse_store_options(dict(path=root, columns="topic,queueOffset,tags,properties,storeTimestamp,commitLogOffset,msgId", splitBytes="200k"))
plan = plan_store(options)
assert len(plan) == 5
protect = ctypes.CDLL(None, use_errno=True).mprotect
protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
maps = []
class File:
    def __init__(self, file): self.file = file
    def __getattr__(self, name): return getattr(self.file, name)
    def map(self, length):
        mapped = mmap.mmap(self.file._fd, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        at = 0
        while at + 8 <= length and unpack_from(">i", mapped, at)[0] > 50_000:
            low = -(-(at + 88) // 4096) * 4096
            high = (at + 88 + 50_000) // 4096 * 4096
            assert protect(start + low, min(high, length // 4096 * 4096) - low, 0) == 0
            at += unpack_from(">i", mapped, at)[0]
        maps.append(mapped)
        return memoryview(mapped)
class Files(RealFileSystem):
    def open(self, path, **how): return File(super().open(path, **how))
rows = [r for pieces in plan for b in StoreReader(options, Files()).read(pieces) for r in b.to_pylist()]
assert [r["queueOffset"] for r in rows] == list(range(20)), rows
print("read", len(rows), flush=True)
import os; os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "read 20\n"), done.stderr[-2000:]


# --- damage -------------------------------------------------------------------------------------------------------------


DAMAGE = {
    "a size that is too small": lambda path, at, size: change(path, at, (size - 9).to_bytes(4, "big")),
    "a size that is too large": lambda path, at, size: change(path, at, (size + 1).to_bytes(4, "big")),
    "a size that leads far away": lambda path, at, size: change(path, at, (30_000).to_bytes(4, "big")),
    "a size past the segment": lambda path, at, size: change(path, at, (1 << 30).to_bytes(4, "big")),
    "a negative size": lambda path, at, size: change(path, at, b"\xff\xff\xff\xff"),
    "a size of zero": lambda path, at, size: change(path, at, bytes(4)),
    "another magic": lambda path, at, size: change(path, at + 4, b"\xda\xa3\x20\xad"),
    "another place": lambda path, at, size: change(path, at + 28, b"\0\0\0\0\0\0\0\7"),
    "a body length that is too large": lambda path, at, size: change(path, at + 84, (size * 2).to_bytes(4, "big")),
    "a negative body length": lambda path, at, size: change(path, at + 84, b"\x80\0\0\0"),
    "a body length that is off by one": lambda path, at, size: change(path, at + 87, bytes([_byte(path, at + 87) ^ 1])),
    "zeros": lambda path, at, size: change(path, at, bytes(size)),
    "noise": lambda path, at, size: change(path, at, random.Random(3).randbytes(size)),
    "a negative queue id": lambda path, at, size: change(path, at + 12, b"\xff\xff\xff\xff"),
}


def _byte(path, at):
    with path.open("rb") as file:
        file.seek(at)
        return file.read(1)[0]


@pytest.mark.parametrize("number", [0, 250, 398], ids=["the first", "one of many", "the last but one"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_record_costs_itself_alone(store, kind, number):
    records = places(store)
    path, at, size, position = records[number]
    DAMAGE[kind](path, at, size)
    others = [other for *_, other in records if other != position]
    with pytest.raises(StoreDamaged) as failed:
        read(store)
    assert failed.value.path == str(path)
    assert failed.value.offset == at
    assert "onCorrupt=skip" in str(failed.value)
    for align in ("index", "resync"):
        assert positions_in(store, onCorrupt="skip", splitBytes=20_000, align=align) == others
    rows = read(store, onCorrupt="report", columns="commitLogOffset,file", splitBytes=20_000)
    assert [row["commitLogOffset"] for row in rows if row["corrupt"] is None] == others
    [found] = [row for row in rows if row["corrupt"] is not None]
    assert (found["commitLogOffset"], found["file"]) == (None, str(path))
    assert (found["corrupt"]["file"], found["corrupt"]["offset"], found["corrupt"]["length"]) == (str(path), at, size)
    assert found["corrupt"]["problem"]


def test_a_changed_body_shows_only_when_checksums_are_compared(store):
    path, at, size, position = places(store)[41]
    change(path, at + 88, bytes([_byte(path, at + 88) ^ 255]))
    assert len(read(store)) == 400
    with pytest.raises(StoreDamaged, match="CRC"):
        read(store, verifyCrc=True)
    rows = read(store, verifyCrc=True, onCorrupt="report", columns="commitLogOffset")
    assert len(rows) == 400
    [found] = [row["corrupt"] for row in rows if row["corrupt"]]
    assert (found["offset"], found["length"]) == (at, size)
    assert "the body's CRC" in found["problem"]
    assert positions_in(store, verifyCrc=True, onCorrupt="skip") == [other for *_, other in places(store) if other != position]


def test_the_checksum_of_a_whole_record_is_compared_when_it_has_one(recorded, tmp_path):
    root = Path(shutil.copytree(recorded["propcrc"], tmp_path / "copy"))
    path, at, _, position = places(root)[3]
    change(path, at + 47, bytes([_byte(path, at + 47) ^ 1]))  # the born time, which the body's CRC does not cover
    assert len(read(root)) == len(places(root))
    rows = read(root, verifyCrc=True, onCorrupt="report", columns="commitLogOffset")
    assert position not in offsets(rows)
    [found] = [row["corrupt"] for row in rows if row["corrupt"]]
    assert "__CRC32#" in found["problem"]


def test_bodies_and_batches_that_do_not_unpack_are_damage(writer):
    packed = bytearray(compress(b"z" * 3000, CompressionType.ZLIB))
    for number in range(60):
        body = bytes(packed if number != 33 else packed[:-7] + b"damaged")
        flag = compression_flag(CompressionType.ZLIB)
        writer.store.stage_message("packed", 0, body, b"", tags_code=0, sys_flag=flag, born_timestamp_ms=5, born_host=HOST)
    writer.store.commit()
    writer.send_inner([b"one", b"two"]).send_inner([b"three"]).send_inner([b"four", b"five"])
    root = writer.close()
    path, at, _, _position = places(root)[61]
    data = path.read_bytes()
    (length,) = unpack_from(">i", data, at + 84)
    body = bytearray(data[at + 88 : at + 88 + length])
    pack_into(">i", body, 0, 1 << 20)  # its first message says it is a megabyte
    change(path, at + 88, bytes(body))
    change(path, at + 8, crc32(bytes(body)).to_bytes(4, "big"))
    with pytest.raises(StoreDamaged, match=r"byte [0-9]+"):
        read(root)
    rows = read(root, onCorrupt="report", columns="commitLogOffset,body", batchRows=7)
    assert [row["body"] for row in rows if row["corrupt"] is None] == [b"z" * 3000] * 59 + [b"one", b"two", b"four", b"five"]
    damaged = [row["corrupt"] for row in rows if row["corrupt"]]
    assert [found["offset"] for found in damaged] == [places(root)[33][1], at]
    assert "compress" in damaged[0]["problem"]
    assert len(read(root, columns="commitLogOffset", topic="packed", onCorrupt="skip")) == 60, "bodies that are not read need not unpack"


def test_any_noise_costs_only_the_records_it_hits(written, tmp_path):
    records = places(written)
    for seed in range(8):
        chance = random.Random(seed)
        root = Path(shutil.copytree(written, tmp_path / f"copy{seed}"))
        hit = set()
        for _ in range(chance.randrange(1, 5)):
            path, _, _, _ = chance.choice(records)
            length = chance.choice([1, 4, 60, 3000])
            start = chance.randrange(SEGMENT - length)
            change(root / "commitlog" / path.name, start, chance.choice([bytes(length), chance.randbytes(length)]))
            hit |= {p for q, at, size, p in records if q == path and at < start + length and start < at + size}
        for align in ("index", "walk", "resync"):
            rows = read(
                root,
                verifyCrc=True,
                onCorrupt="report",
                columns="commitLogOffset",
                splitBytes=chance.choice([3000, 17_000, 1 << 20]),
                align=align,
            )
            found = [row["commitLogOffset"] for row in rows if row["corrupt"] is None]
            assert found == sorted(set(found))
            untouched = {position for *_, position in records} - hit
            assert untouched <= set(found) <= untouched | hit, f"seed {seed}, align {align}"
            lost = {position for *_, position in records} - set(found)
            reported = [(row["corrupt"]["file"], row["corrupt"]["offset"], row["corrupt"]["length"]) for row in rows if row["corrupt"]]
            for path, at, _, position in records:
                if position in lost:
                    assert any(Path(f).name == path.name and start <= at < start + n for f, start, n in reported), (
                        f"seed {seed}: {at} of {path.name}"
                    )
        shutil.rmtree(root)


def test_files_that_are_missing_short_or_empty_are_damage(store):
    records = places(store)
    first, second, *_ = sorted((store / "commitlog").iterdir())
    os.truncate(second, 10_000)
    with pytest.raises(StoreDamaged, match="10000 bytes where segments have 65536"):
        read(store)
    rows = read(store, onCorrupt="report", columns="commitLogOffset")
    left = [p for path, at, size, p in records if path != second or at + size <= 10_000]
    assert [row["commitLogOffset"] for row in rows if row["corrupt"] is None] == left
    assert {(row["corrupt"]["file"]) for row in rows if row["corrupt"]} == {str(second)}
    assert sum(row["corrupt"]["length"] for row in rows if row["corrupt"]) >= SEGMENT - 10_000
    os.truncate(second, 0)
    assert positions_in(store, onCorrupt="skip") == [p for path, *_, p in records if path != second]
    second.unlink()
    with pytest.raises(StoreDamaged, match="the segment is missing"):
        read(store)
    rows = read(store, onCorrupt="report", columns="commitLogOffset")
    assert next(row["corrupt"] for row in rows if row["corrupt"])["file"] == str(second)
    assert offsets(row for row in rows if row["corrupt"] is None) == [p for path, *_, p in records if path != second]
    assert positions_in(store, toPhysicalOffset=SEGMENT) == [p for path, *_, p in records if path == first], (
        "what is not read may be missing"
    )


def test_a_log_of_zeros_between_records_is_damage_and_one_at_its_end_is_not(store):
    records = places(store)
    path, at, size, _position = records[-3]
    change(path, at, bytes(size))
    with pytest.raises(StoreDamaged, match="there are zeros"):
        read(store)
    change(path, at, bytes(SEGMENT - at))
    assert positions_in(store) == [p for *_, p in records[:-3]]


def test_a_torn_record_ends_the_log_and_is_reported(store):
    records = places(store)
    path, at, size, _position = records[-1]
    for cut in (50, size // 2, size - 3):
        change(path, at + cut, bytes(size - cut))
        assert positions_in(store) == [p for *_, p in records[:-1]], "as for a broker that starts on it"
        rows = read(store, onCorrupt="report", columns="commitLogOffset")
        [found] = [row["corrupt"] for row in rows if row["corrupt"]]
        assert (found["file"], found["offset"]) == (str(path), at)
        assert "the log ends here" in found["problem"]


def test_a_segment_without_its_blank_is_damage(store):
    records = places(store)
    first = records[0][0]
    end = max(at + size for path, at, size, _ in records if path == first)
    change(first, end + 4, b"\0\0\0\0")
    with pytest.raises(StoreDamaged) as failed:
        read(store)
    assert (failed.value.path, failed.value.offset) == (str(first), end)
    assert positions_in(store, onCorrupt="skip") == [p for *_, p in records]


def test_damaged_units_and_entries_are_left_out_or_reported(writer):
    root = writer.send(200).close()
    unit = root / "consumequeue" / "orders" / "1" / f"{0:020}"
    change(unit, 20 * 7, b"\xff" * 20)
    change(unit, 20 * 12, bytes(40))
    with pytest.raises(StoreDamaged) as failed:
        read(root, table="consumequeue")
    assert (failed.value.path, failed.value.offset) == (str(unit), 140)
    assert len(read(root, table="consumequeue", onCorrupt="skip")) == 197
    rows = read(root, table="consumequeue", onCorrupt="report", columns="queueOffset,file")
    assert [(row["corrupt"]["offset"], row["corrupt"]["length"]) for row in rows if row["corrupt"]] == [(140, 20), (240, 40)]
    index = min((root / "index").iterdir())
    change(index, 40 + 4 * 64 + 20 * 5 + 4, b"\xff" * 8)
    with pytest.raises(StoreDamaged, match="1 entries from number 5"):
        read(root, table="index")
    assert len(read(root, table="index", onCorrupt="skip")) == 599
    change(index, 36, b"\x7f\xff\xff\xff")
    with pytest.raises(StoreDamaged, match="next entry is 2147483647"):
        read(root, table="index")
    rows = read(root, table="index", onCorrupt="report")
    assert [row["corrupt"]["file"] for row in rows if row["corrupt"]] == [str(index)]
    assert rows[-1]["keyHash"] is not None


def test_files_that_go_or_shrink_under_a_read_are_damage_not_a_crash(store):
    records = places(store)
    first, second, *_ = sorted((store / "commitlog").iterdir())
    for on_corrupt in ("fail", "skip", "report"):
        options = options_of(store, onCorrupt=on_corrupt, columns="commitLogOffset")
        plan = plan_store(options)
        os.rename(first, store / "away")
        shutil.copy(second, store / "whole")
        os.truncate(second, 20_000)
        rows = []
        try:
            if on_corrupt == "fail":
                with pytest.raises(StoreDamaged, match="removed after the read was planned"):
                    list(StoreReader(options).read(plan[0]))
                with pytest.raises(StoreDamaged, match="it has become shorter"):
                    list(StoreReader(options).read(plan[0][1:]))
                continue
            rows = [row for batch in StoreReader(options).read(plan[0]) for row in batch.to_pylist()]
        finally:
            os.rename(store / "away", first)
            os.rename(store / "whole", second)
        left = [p for path, at, size, p in records if path != first and (path != second or at + size <= 20_000)]
        assert [row["commitLogOffset"] for row in rows if row["commitLogOffset"] is not None] == left
        if on_corrupt == "report":
            problems = [row["corrupt"]["problem"] for row in rows if row["corrupt"]]
            assert "removed" in problems[0]
            assert "shorter" in problems[1]


# --- paths that lead to nothing -------------------------------------------------------------------------------------------


class Unreadable(RealFileSystem):
    """A file system that refuses to open paths with ``part`` in them."""

    def __init__(self, part):
        self.part = part

    def open(self, path, **how):
        if self.part in path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().open(path, **how)


def refusal(path, **options):
    fs = options.pop("fs", RealFileSystem())
    with pytest.raises(OptionError) as refused:
        plan_store(options_of(path, **options), fs)
    assert refused.value.format == "rocketmq-store"
    return str(refused.value)


def test_what_is_no_store_is_refused_with_a_hint(store, tmp_path):
    assert "does not exist" in refusal(tmp_path / "nowhere")
    assert "nothing matches the pattern" in refusal(tmp_path / "no*where")
    with pytest.raises(OptionError, match="does not exist"):
        check_paths(options_of(tmp_path / "nowhere"))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "there is no store in this directory" in refusal(empty)
    (empty / "letters.txt").write_text("dear")
    assert "there is no store in this directory" in refusal(empty)
    assert "not part of a commit log" in refusal(empty / "letters.txt")
    assert f"part of the store {store}" in refusal(store / "consumequeue")
    assert "not part of a commit log" in refusal(store / "consumequeue" / "orders" / "0")
    assert "needs the directory of the whole store" in refusal(store / "commitlog", table="index")


def test_stores_of_other_kinds_and_times_are_refused(store):
    assert "did you mean 'orders'" in refusal(store, table="consumequeue", topic="order")
    shutil.rmtree(store / "consumequeue")
    (store / "consumequeue").mkdir()
    (store / "consumequeue" / "CURRENT").write_text("MANIFEST-1")
    assert "RocksDB" in refusal(store, table="consumequeue")
    (store / "consumequeue" / "CURRENT").unlink()
    shutil.rmtree(store / "commitlog")
    with pytest.raises(StoreDamaged, match="there is no commit log"):
        plan_store(options_of(store))
    data = bytearray((store / "dispatched").read_bytes())
    data[4:8] = (99).to_bytes(4, "big")
    data[-4:] = crc32(bytes(data[:-4])).to_bytes(4, "big")
    (store / "dispatched").write_bytes(data)
    for table in ("commitlog", "consumequeue", "index"):
        assert "written by a newer SprocketMQ (format 99" in refusal(store, table=table)


def test_what_cannot_be_read_is_refused_in_the_driver_or_damage_in_a_worker(store):
    last = max((store / "commitlog").iterdir())
    text = refusal(store, fs=Unreadable(str(last)))
    assert str(last) in text
    assert "Permission denied" in text
    assert "Permission denied" in refusal(store, fs=Unreadable("/index/"), table="index")
    assert "Permission denied" in refusal(store, fs=Unreadable("/consumequeue/"), table="consumequeue")
    options = options_of(store)
    with pytest.raises(StoreDamaged, match="cannot be read: Permission denied"):
        list(StoreReader(options, Unreadable(f"{0:020}")).read(plan_store(options)[0]))


def test_pieces_say_what_they_weigh():
    assert LogPiece("p", 0, 5, 25, 100).weight == 20
    assert IndexPiece("p", 64, 0, 316, 376).weight == 60
    assert DamagePiece("p", 0, 100, "gone").weight == 0


def test_long_runs_of_records_of_one_length_are_followed_exactly(writer):
    for count, size in ((40, 90), (3, 91), (17, 300), (1, 5), (200, 64), (16, 70), (300, 0)):
        for _ in range(count):
            writer.store.stage_message("orders", 0, bytes(size), b"", tags_code=0, born_timestamp_ms=5, born_host=HOST)
            writer.store.commit()
    root = writer.close()
    there = [position for *_, position in places(root)]
    assert len(there) == 577
    for batch_bytes in (1024, 5000, 1 << 20):
        assert positions_in(root, batchBytes=batch_bytes) == there
    path, at, size, position = places(root)[30]
    change(path, at, (size + 200).to_bytes(4, "big"))
    assert positions_in(root, onCorrupt="skip") == [other for other in there if other != position]


def test_a_batch_that_holds_another_number_of_messages_than_it_says_fails_verification(writer):
    root = writer.send_inner([b"one", b"two"]).send_inner([b"three"]).close()
    path, at, size, _ = places(root)[0]
    record = path.read_bytes()[at : at + size]
    change(path, at + record.index(b"INNER_NUM\x012") + 10, b"3")
    assert [row["body"] for row in read(root)] == [b"one", b"two", b"three"]
    with pytest.raises(StoreDamaged, match="not as many messages as its properties say"):
        read(root, verifyCrc=True)
    assert [row["body"] for row in read(root, verifyCrc=True, onCorrupt="skip")] == [b"three"]
