"""Inspecting files: every kind of file, every field and its position, and the problem reported where content cannot be right."""

import json
import random
import re
import shutil
import struct

import pytest
from tests.recorded_stores import STORES, unpack

from sprocketmq.protocol.hashing import tags_code
from sprocketmq.storage.file_view import WINDOW_BYTES, FileView
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.index.slot_count import hash_slots_of
from sprocketmq.storage.inspect.findings import Findings
from sprocketmq.storage.inspect.index_file_check import IndexFileCheck
from sprocketmq.storage.inspect.index_items import index_chain
from sprocketmq.storage.inspect.items import NotAStoreFile
from sprocketmq.storage.inspect.overview import overview_of
from sprocketmq.storage.inspect.record_items import inner_messages, property_crc, sys_flag_names
from sprocketmq.storage.inspect.segment_items import next_record
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.inspect.store_file import identify, items_of

NAMES = ["plain", "propcrc", "crash", "crash-lag", "compressed", "delay-retry", "batchcq"]
NOISE = random.Random(1).randbytes(920)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return {name: unpack(name, tmp_path_factory.mktemp(name)) for name in NAMES}


@pytest.fixture
def plain(tmp_path):
    return unpack("plain", tmp_path)


def look(path, offset=None):
    with FileView(REAL_FS, str(path)) as view:
        return list(items_of(identify(str(path)), view, offset=offset))


@pytest.mark.parametrize("name", NAMES)
def test_every_file_of_apaches_stores_is_identified_and_read_to_its_end(stores, name):
    for path in stores[name].rglob("*"):
        if not path.is_file():
            continue
        items = look(path)
        if path.parent.name == "commitlog" or "queue" in str(path.relative_to(stores[name])).split("/")[0]:
            assert sum(i.length for i in items) == path.stat().st_size
        assert [i.problem for i in items if i.problem] == [] or name == "crash-lag"
        for item in items:
            assert all(f.pos >= 0 and f.pos + f.length <= max(item.length, f.length) for f in item.fields)


@pytest.mark.parametrize("name", NAMES)
def test_records_hold_what_apaches_own_tools_list(stores, name):
    listing = json.loads((STORES / f"{name}.expected.json").read_text(encoding="utf-8"))
    listed = {
        (message["commitLogOffset"], message["queueOffset"]): message
        for topic in listing["topics"].values()
        if topic["attributes"].get("queue.type") != "BatchCQ"
        for queue in topic["queues"].values()
        for message in queue["messages"]
    }
    records = [i for path in sorted((stores[name] / "commitlog").iterdir()) for i in look(path) if i.kind == "record"]
    met = 0
    for record in records:
        message = listed.get((record.number, record.get("queue_offset")))
        if message is None or message["topic"] != record.get("topic"):
            continue
        met += 1
        assert record.get("queue_id") == message["queueId"]
        assert record.get("size") == message["storeSize"]
        assert record.get("body_crc") == message["bodyCRC"]
        assert record.get("store_timestamp_ms") == message["storeTimestamp"]
        assert record.get("properties") == message["properties"]
        assert record.get("flag") == message["flag"]
    assert met == len(listed)


def test_the_fields_of_a_record_cover_all_of_its_bytes(stores):
    for record in look(stores["propcrc"] / "commitlog" / "00000000000000000000"):
        if record.kind == "record":
            ends = [0, *(f.pos + f.length for f in record.fields)]
            assert [f.pos for f in record.fields] == ends[:-1]
            assert ends[-1] == record.length


def test_messages_inside_batches_are_listed(stores):
    path = stores["batchcq"] / "commitlog" / "00000000000000000000"
    with FileView(REAL_FS, str(path)) as view:
        batches = [i for i in items_of(identify(str(path)), view) if "inner batch" in sys_flag_names(i.get("sys_flag") or 0)]
        first = inner_messages(view, batches[0])
        assert [m["queue_offset"] for m in first] == [0, 1]
        assert first[0]["text"] == "bcq-2-0"
        assert first[0]["properties"]["KEYS"] == "BK2_0"


def test_an_offset_starts_at_the_record_that_contains_it(stores):
    path = stores["plain"] / "commitlog" / "00000000000000065536"
    items = look(path)
    second = items[1]
    for offset in (second.number, second.number + 1, second.number + second.length - 1):
        assert look(path, offset)[0] == second
    assert look(path, second.number + second.length)[0] == items[2]
    with pytest.raises(NotAStoreFile, match="holds 65536 to 131071"):
        look(path, 65535)


def test_offsets_of_queues_batch_queues_and_indexes(stores):
    assert look(stores["plain"] / "consumequeue" / "PlainB" / "0" / "00000000000000001000", 55)[0].number == 55
    with pytest.raises(NotAStoreFile, match="holds 50 to 99"):
        look(stores["plain"] / "consumequeue" / "PlainB" / "0" / "00000000000000001000", 49)
    inside = look(stores["batchcq"] / "batchconsumequeue" / "Bcq1" / "0" / "00000000000000000000", 9)[0]
    assert (inside.number, inside.get("count")) == (8, 17)
    entries = look(stores["plain"] / "index" / "20261121025211689", 200)
    assert [i.kind for i in entries[:3]] == ["header", "slots", "entry"]
    assert entries[2].number == 200
    with pytest.raises(NotAStoreFile, match="means nothing"):
        look(stores["plain"] / "checkpoint", 3)


def test_parked_messages_have_a_delivery_time_instead_of_a_tag_code(stores):
    queue = next((stores["delay-retry"] / "consumequeue" / "SCHEDULE_TOPIC_XXXX").rglob("0000*"))
    unit = look(queue)[0]
    assert unit.get("tags_code") is None
    assert unit.get("deliver_at_ms") > 1_700_000_000_000
    assert look(stores["plain"] / "consumequeue" / "PlainA" / "0" / "00000000000000000000")[0].get("tags_code") == tags_code("TagA")


def test_files_outside_a_store_are_identified_by_content(stores, tmp_path, make_bench):
    bench = make_bench()
    for i in range(60):
        bench.send(b"x" * 2000, tag="t", queue=i % 2)
    bench.stop()
    for source, kind in [
        (stores["plain"] / "commitlog" / "00000000000000065536", "commitlog"),
        (stores["plain"] / "consumequeue" / "PlainA" / "0" / "00000000000000000000", "consumequeue"),
        (stores["batchcq"] / "batchconsumequeue" / "Bcq1" / "0" / "00000000000000000000", "batchconsumequeue"),
        (stores["plain"] / "index" / "20261121025211689", "index"),
        (stores["plain"] / "checkpoint", "checkpoint"),
        (stores["plain"] / "config" / "topics.json", "json"),
        (bench.root / "dispatched", "dispatched"),
    ]:
        copy = tmp_path / "copy"
        shutil.copy(source, copy)
        assert identify(str(copy)).kind == kind
    shutil.copy(stores["plain"] / "commitlog" / "00000000000000065536", copy)
    assert look(copy)[0].number == 65536


@pytest.mark.parametrize(
    "content",
    [b"", b"hello, world", bytes(1000), b"\xff" * 920, NOISE, b"{" + NOISE, b" [" + NOISE, b'{"a": "\0"}'],
    ids=["empty", "text", "zeros", "ones", "noise", "noise after a brace", "noise after a bracket", "a brace and a zero byte"],
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(NotAStoreFile, match="not a file of a store"):
        identify(str(path))


def test_a_table_outside_a_store_is_json_wherever_its_first_bytes_cut_a_character(tmp_path):
    path = tmp_path / "table"
    for shift in range(4):
        path.write_bytes(('{"' + "x" * shift + "话题" * 200 + '": 1}').encode())
        assert identify(str(path)).kind == "json"


def write_index(path, slots, entries, hashes, begin):
    """Write an index file with an entry for each hash, 100 bytes of log apart."""
    newest = [0] * slots
    rows = [bytes(20)]
    for number, key_hash in enumerate(hashes, 1):
        rows.append(struct.pack(">iqii", key_hash, begin + 100 * (number - 1), 0, newest[key_hash % slots]))
        newest[key_hash % slots] = number
    header = struct.pack(">qqqqii", 1, 2, begin, begin + 100 * (len(hashes) - 1), sum(map(bool, newest)), len(hashes) + 1)
    path.write_bytes(header + struct.pack(f">{slots}i", *newest) + b"".join(rows).ljust(20 * entries, b"\0"))


@pytest.mark.parametrize(("slots", "entries"), [(64, 256), (7, 50), (1000, 20), (1, 9)])
def test_the_number_of_hash_slots_is_found(tmp_path, slots, entries):
    """For any proportion of slots to entries, also when the first message is at log offset 0."""
    path = tmp_path / "index"
    for begin in (0, 1000):
        hashes = [(i * 7919) % 10007 for i in range(8)]
        write_index(path, slots, entries, hashes, begin)
        with FileView(REAL_FS, str(path)) as view:
            assert hash_slots_of(view) == slots
            for number, key_hash in enumerate(hashes, 1):
                assert number in index_chain(view, slots, key_hash)


@pytest.mark.parametrize("begin", [0, 1000])
def test_the_number_of_hash_slots_is_found_where_empty_slots_look_like_a_first_entry(tmp_path, begin):
    """The file has the size of one with 380 slots, whose first entry would lie in slots 385 to 389."""
    path = tmp_path / "index"
    empty = {386, 387, 389}
    write_index(path, 500, 1500, [i for i in range(1260) if i % 500 not in empty], begin)
    with FileView(REAL_FS, str(path)) as view:
        assert hash_slots_of(view) == 500


@pytest.mark.parametrize("damage", ["last entry", "header"])
def test_the_number_of_hash_slots_is_found_without_the_last_entry(tmp_path, damage):
    path = tmp_path / "index"
    write_index(path, 64, 256, range(100, 180), 1000)
    with path.open("r+b") as file:
        file.seek(40 + 4 * 64 + 20 * 80 if damage == "last entry" else 24)
        file.write(b"\xff" * 8)
    with FileView(REAL_FS, str(path)) as view:
        assert hash_slots_of(view) == 64


def test_chains_of_an_index_end_at_impossible_links(plain):
    path = plain / "index" / "20261121025211689"
    with FileView(REAL_FS, str(path)) as view:
        last = list(items_of(identify(str(path)), view))[-1]
        chain = index_chain(view, 64, last.get("key_hash"))
        assert chain[0] == last.number
        assert chain == sorted(chain, reverse=True)
    with path.open("r+b") as file:
        file.seek(last.file_pos + 16)
        file.write(struct.pack(">i", last.number))
    with FileView(REAL_FS, str(path)) as view:
        assert index_chain(view, 64, last.get("key_hash")) == [last.number]


def test_items_after_damage_are_shown(plain):
    path = plain / "commitlog" / "00000000000000000000"
    records = look(path)
    with path.open("r+b") as file:
        file.seek(records[2].file_pos + 90)
        file.write(b"?")
    items = look(path)
    assert items[:2] == records[:2]
    assert items[3:] == records[3:]
    assert (items[2].kind, items[2].file_pos, items[2].length) == ("damaged", records[2].file_pos, records[2].length)
    assert "CRC" in items[2].problem
    assert items[2].get("topic") == records[2].get("topic")


def test_a_record_across_a_window_border_is_found_after_damage(tmp_path, plain):
    record = (plain / "commitlog" / "00000000000000000000").read_bytes()[:283]
    for distance in range(-30, 300, 7):
        at = WINDOW_BYTES - distance
        moved = record[:28] + struct.pack(">q", at) + record[36:]
        path = tmp_path / "commitlog" / "00000000000000000000"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\1" * at + moved + bytes(500))
        with FileView(REAL_FS, str(path)) as view:
            assert next_record(view, 0, 0, view.size) == at


def test_remnants_of_a_longer_log_are_not_records(tmp_path, plain):
    data = (plain / "commitlog" / "00000000000000000000").read_bytes()
    with FileView(REAL_FS, str(plain / "commitlog" / "00000000000000000000")) as view:
        assert next_record(view, 1, 0, len(data)) == 283
        assert next_record(view, 1, 0, len(data), since_ms=1 << 50) == len(data)


def test_a_property_crc_is_read_lowest_digit_first():
    assert property_crc(b"a\x01b\x02__CRC32#\x010123456789\x02") == 9876543210
    for other in (b"", b"__CRC32#\x01012345678\x02", b"__CRC32#\x01012345678x\x02", b"x" * 20):
        assert property_crc(other) is None


def test_the_epochs_of_a_replicated_log_are_shown_as_their_text(tmp_path):
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(b"1\n0\n7-7000\n")
    assert look(path)[0].get("text") == "1\n0\n7-7000\n"


def test_small_files(stores, make_bench):
    checkpoint = look(stores["plain"] / "checkpoint")[0]
    assert checkpoint.get("queues_physical_offset") == 152139
    assert look(stores["crash"] / "abort")[0].get("text") == "8035"
    assert look(stores["plain"] / "lock")[0].get("text") == "lock"
    offsets = look(stores["plain"] / "config" / "consumerOffset.json")[0].get("value")
    assert offsets["offsetTable"]["PlainA@cg_plain"][0] == 15
    bench = make_bench()
    bench.send(b"x")
    bench.send(b"y", topic="gone")
    bench.store.delete_topic("gone")
    bench.stop()
    items = look(bench.root / "dispatched")
    assert [i.kind for i in items] == ["fields", "queue", "deletion"]
    assert (items[1].get("topic"), items[1].get("next"), items[2].get("topic")) == ("orders", 1, "gone")


def test_damaged_small_files_are_reported(tmp_path):
    for name, content, problem in [
        ("checkpoint", bytes(10), "10 bytes are too few"),
        ("checkpoint", struct.pack(">q", -1) + bytes(4088), "negative"),
        ("abort", b"not a number", "process id"),
        ("dispatched", b"SPMQ", "damaged"),
        ("dispatched", b"SPMQ" + struct.pack(">i", 1000) + bytes(100), "version 1000 is newer"),
        ("topics.json", b"{", "JSON ends too early"),
        ("topics.json", b"[" * 100_000, "nested deeper"),
    ]:
        (tmp_path / name).write_bytes(content)
        assert problem in look(tmp_path / name)[0].problem


@pytest.mark.parametrize("name", NAMES)
def test_the_overview_has_the_offsets_that_apaches_own_tools_list(stores, name):
    overview = overview_of(StoreDirectory(str(stores[name])))
    listing = json.loads((STORES / f"{name}.expected.json").read_text(encoding="utf-8"))
    queues = {(q.topic, q.queue_id): q for q in overview.queues}
    assert overview.log_end_known
    if name != "crash-lag":  # its queue files are behind the log, unlike the listing
        for topic, entry in listing["topics"].items():
            for queue_id, queue in entry["queues"].items():
                if queue["messages"]:
                    found = queues[topic, int(queue_id)]
                    assert (found.min_offset, found.max_offset) == (queue["minOffset"], queue["maxOffset"])
                    assert found.last_time_ms == queue["messages"][-1]["storeTimestamp"]
                    assert found.first_time_ms == queue["messages"][0]["storeTimestamp"]


def test_the_overview_of_a_store_whose_first_messages_expired(plain):
    (plain / "commitlog" / "00000000000000000000").unlink()
    overview = overview_of(StoreDirectory(str(plain)))
    assert (overview.log_start, overview.log_end) == (65536, 152401)
    queues = {(q.topic, q.queue_id): (q.min_offset, q.max_offset) for q in overview.queues}
    assert queues["PlainA", 0] == (15, 15)
    assert queues["PlainB", 0] == (23, 70)


def test_a_directory_inside_a_store_is_refused_with_a_hint(plain):
    with pytest.raises(NotAStoreFile, match=f"part of the store {re.escape(str(plain))}"):
        StoreDirectory(str(plain / "consumequeue" / "PlainA"))


@pytest.mark.parametrize("in_use", [False, True])
def test_slots_that_a_broker_writes_meanwhile_are_no_damage_of_a_store_in_use(tmp_path, in_use):
    path = tmp_path / "index"
    write_index(path, 64, 256, range(100, 180), 1000)
    findings = Findings()
    check = IndexFileCheck(REAL_FS, str(path), findings, "", in_use=in_use)
    write_index(path, 64, 256, range(100, 200), 1000)
    assert sum(len(entries) for _, entries in check.chunks()) == 80
    check.finish()
    assert bool(findings.found) is not in_use
