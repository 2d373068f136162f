"""A verification finds every kind of damage, names the position and the repair, and finds nothing in sound stores."""

import hashlib
import json
import os
import shlex
import shutil
import struct
from collections import Counter

import pytest
from tests.recorded_stores import STORES, unpack

from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.layout import BATCH_UNIT
from sprocketmq.protocol.records import encode_record, pack_host
from sprocketmq.storage.inspect import queue_units
from sprocketmq.storage.inspect.findings import MAX_OF_A_KIND
from sprocketmq.storage.inspect.items import NotAStoreFile
from sprocketmq.storage.inspect.log_windows import parse_window
from sprocketmq.storage.inspect.verification import verify
from sprocketmq.storage.snapshot import Snapshot

SEGMENT = "commitlog/00000000000000000000"
QUEUE = "consumequeue/PlainA/0/00000000000000000000"
BATCH_QUEUE = "batchconsumequeue/BcqAuto/0/00000000000000000000"
INDEX = "index/20261121025211689"
SLOTS_AT = 40
ENTRIES_AT = 40 + 4 * 64


@pytest.fixture
def plain(tmp_path):
    return unpack("plain", tmp_path)


@pytest.fixture
def batchcq(tmp_path):
    return unpack("batchcq", tmp_path)


def patch(path, at, data):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path, at):
    data = path.read_bytes()
    patch(path, at, bytes([data[at] ^ 0x10]))


def kinds(report, *severities):
    return Counter(f.kind for f in report.findings if not severities or f.severity in severities)


def found(report, kind):
    return next(f for f in report.findings if f.kind == kind)


def tree(root):
    return {
        str(p.relative_to(root)): (p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p in root.rglob("*") if p.is_file()
    }


# --- sound stores ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "propcrc", "batchcq", "compressed", "delay-retry"])
def test_clean_stores_of_apaches_broker_are_in_order(name, tmp_path):
    store = unpack(name, tmp_path)
    before = tree(store)
    report = verify(str(store))
    assert (report.ok, report.findings) == (True, [])
    listing = json.loads((STORES / f"{name}.expected.json").read_text(encoding="utf-8"))
    assert report.records > 0
    assert report.queues == sum(len([q for q in topic["queues"].values() if q["messages"]]) for topic in listing["topics"].values())
    assert tree(store) == before


def test_a_killed_store_has_only_a_note_about_that(tmp_path):
    report = verify(str(unpack("crash", tmp_path)))
    assert report.ok
    assert [(f.severity, f.kind) for f in report.findings] == [("note", "in use")]
    assert "process 8035" in report.findings[0].what


def test_a_store_after_a_power_loss_has_a_torn_end_and_files_that_are_behind(tmp_path):
    report = verify(str(unpack("crash-lag", tmp_path)))
    assert report.ok
    assert kinds(report) == {"torn end": 1, "queues behind": 2, "index behind": 1, "in use": 1}
    plain_queues, batch_queues = (f.what for f in report.findings if f.kind == "queues behind")
    assert plain_queues.startswith("the files of 3 queues are 30 messages behind the log")
    assert batch_queues.startswith("the files of 1 queues are 25 messages behind the log")
    torn = found(report, "torn end")
    assert torn.path.endswith("00000000000000131072")
    assert torn.offset == 153488 - 131072
    assert report.log_end == 153488


def test_our_own_store_is_in_order_stopped_killed_and_in_use(make_bench):
    bench = make_bench()
    for i in range(300):
        bench.send(b"x" * 400, queue=i % 3, tag="a")
    bench.send_batch([b"one", b"two"], topic="others")
    in_use = verify(str(bench.root))
    assert in_use.ok
    assert kinds(in_use)["in use"] == 1
    bench.kill()
    assert verify(str(bench.root)).ok
    bench.reopen()
    bench.stop()
    report = verify(str(bench.root))
    assert (report.ok, report.findings) == (True, [])
    assert report.records == 302


def test_a_store_whose_topic_was_deleted_and_made_again_is_in_order(make_bench):
    bench = make_bench()
    for _ in range(50):
        bench.send(b"old")
    bench.store.delete_topic("orders")
    bench.store.flush(thorough=True)
    deleted = verify(str(bench.root))
    assert deleted.ok, deleted.findings
    for _ in range(5):
        bench.send(b"new")
    bench.stop()
    assert verify(str(bench.root)).findings == []


@pytest.mark.parametrize("first", ["commitlog", "consumequeue"])
def test_a_copy_taken_piece_by_piece_while_a_broker_writes_has_only_notes(make_bench, tmp_path, first):
    """The part copied first is behind the rest."""
    bench = make_bench()
    copy = tmp_path / "copy"

    def grow():
        for i in range(100):
            bench.send(b"x" * 300, queue=i % 2, tag="t")
        bench.store.flush(thorough=True)

    grow()
    shutil.copytree(bench.root / first, copy / first)
    grow()
    bench.send(b"last")
    for path in bench.root.iterdir():
        if path.is_dir() and path.name != first:
            shutil.copytree(path, copy / path.name)
        elif not path.is_dir():
            shutil.copy(path, copy)
    report = verify(str(copy))
    assert report.ok, report.findings
    if first == "commitlog":
        assert {"unit ahead", "snapshot ahead", "checkpoint ahead"} <= set(kinds(report, "note"))
    else:
        assert kinds(report, "note")["queues behind"] == 1


def test_an_empty_store_is_in_order(make_bench):
    bench = make_bench()
    bench.stop()
    assert verify(str(bench.root)).findings == []


def test_progress_is_reported_in_bytes_of_the_log(plain):
    told = []
    verify(str(plain), progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[0][1] == 3 * 65536, "the length of the files, before anything is known of them"
    assert all(done <= total for done, total in told)
    done, total = told[-1]
    assert done == total


def test_reserved_zeros_do_not_count_as_progress(make_bench):
    bench = make_bench()
    for _ in range(3):
        bench.send(b"x" * 100)
    bench.stop()
    told = []
    report = verify(str(bench.root), progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (report.log_bytes, report.log_bytes)
    assert report.log_bytes < 2000


def test_a_directory_without_a_store_is_refused(tmp_path):
    with pytest.raises(NotAStoreFile, match="no store in this directory"):
        verify(str(tmp_path))


def test_a_part_of_a_store_is_refused_with_a_hint(plain):
    with pytest.raises(NotAStoreFile, match="part of the store"):
        verify(str(plain / "consumequeue" / "PlainA"))


# --- the log ------------------------------------------------------------------------------------------------------------


def second_record(store):
    return struct.unpack(">i", (store / SEGMENT).read_bytes()[:4])[0]


@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [
        (0, b"\0\0\0\0", "size 0 is impossible"),
        (0, b"\xff\xff\xff\xff", "size -1 is impossible"),
        (0, b"\x80\0\0\0", "size -2147483648 is impossible"),
        (0, b"\x7f\xff\xff\xff", "runs past the segment's end"),
        (4, b"\xda\xa3\x20\x11", "magic 0xdaa32011 is not a record's"),
        (8, b"\0\0\0\1", "the body's CRC is"),
        (12, b"\xff\xff\xff\xff", "queue id -1"),
        (20, b"\xff" * 8, "queue offset -1"),
        (28, b"\0\0\0\0\0\0\0\7", "it says it lies at 7"),
        (36, b"\0\0\0\x30", "does not"),
        (84, b"\xff\xff\xff\xff", "body length -1"),
        (84, b"\x7f\xff\xff\xff", "body length 2147483647"),
        (88, b"?", "the body's CRC is"),
    ],
)
def test_a_damaged_record_is_named_and_its_message_counted_as_lost(plain, at, data, reason):
    begin = second_record(plain)
    size = struct.unpack_from(">i", (plain / SEGMENT).read_bytes(), begin)[0]
    patch(plain / SEGMENT, begin + at, data)
    report = verify(str(plain))
    assert not report.ok
    damage = found(report, "log damaged")
    assert (damage.severity, damage.path, damage.offset) == ("error", str(plain / SEGMENT), begin)
    assert reason in damage.what
    assert f"from {begin} to {begin + size}," in damage.what
    assert "sprocketmq inspect" in damage.repair
    assert kinds(report, "error")["lost messages"] == 1
    assert "offset gap" not in kinds(report)


def test_a_property_crc_that_does_not_fit_is_found_where_the_body_is_right(tmp_path):
    store = unpack("propcrc", tmp_path)
    data = (store / SEGMENT).read_bytes()
    at = data.index(b"DefaultRegion")
    patch(store / SEGMENT, at, b"d")
    report = verify(str(store))
    assert "__CRC32#" in found(report, "log damaged").what


def test_a_segment_that_does_not_end_in_a_blank_is_found(plain):
    patch(plain / SEGMENT, 64674, b"\0" * 8)
    assert "zeros" in found(verify(str(plain)), "log damaged").what
    patch(plain / SEGMENT, 64674, struct.pack(">iI", 800, 0xCBD43194))
    assert "a BLANK says 800 bytes are left, there are 862" in found(verify(str(plain)), "log damaged").what


def test_a_missing_segment_is_found(plain):
    (plain / "commitlog" / "00000000000000065536").unlink()
    missing = found(verify(str(plain)), "log missing")
    assert missing.path.endswith("00000000000000065536")
    assert "the next one there is 00000000000000131072" in missing.what


def test_a_missing_log_is_found(plain):
    for path in (plain / "commitlog").iterdir():
        path.unlink()
    report = verify(str(plain))
    assert "other files know of messages" in found(report, "log missing").what
    assert kinds(report)["unit ahead"] == 7


@pytest.mark.parametrize("size", [0, 100, 65535, 65537, 200_000])
def test_segments_of_another_length_are_found(plain, size):
    os.truncate(plain / SEGMENT, size)
    length = found(verify(str(plain)), "log length")
    assert length.severity == "error"
    assert f"{size:,} bytes where segments have 65,536" in length.what


def test_a_short_last_segment_loses_nothing(plain):
    os.truncate(plain / "commitlog" / "00000000000000131072", 152401 - 131072)
    report = verify(str(plain))
    assert [(f.severity, f.kind) for f in report.findings] == [("warning", "log length")]


def test_bytes_after_the_end_are_found(plain):
    patch(plain / "commitlog" / "00000000000000131072", 152401 - 131072 + 500, b"remnant")
    behind = found(verify(str(plain)), "behind the end")
    assert behind.severity == "warning"
    assert "from 152901 on" in behind.what


def test_store_times_that_go_back_are_found(make_bench):
    bench = make_bench()
    for i in range(3):
        bench.send(b"body %d" % i)
    bench.stop()
    at = bench.segment().read_bytes().index(b"body 1") - 88
    patch(bench.segment(), at + 56, struct.pack(">q", 1))
    assert found(verify(str(bench.root)), "store time").offset == at


def test_a_message_missing_between_two_others_is_found(make_bench):
    bench = make_bench()
    for i in range(3):
        bench.send(b"body %d" % i)
    bench.stop()
    at = bench.segment().read_bytes().index(b"body 1") - 88
    patch(bench.segment(), at + 20, struct.pack(">q", 7))
    report = verify(str(bench.root))
    assert "continues at offset 7, but 1 is due" in found(report, "offset gap").what


def test_records_of_every_shape_are_read():
    hosts = [pack_host("192.0.2.1", 1), pack_host("2001:db8::1", 2)]
    records = b""
    for born in hosts:
        for store in hosts:
            for topic in (b"short", b"t" * 200):
                records += encode_record(
                    topic=topic,
                    body=b"body",
                    properties=b"TAGS\x01a\x02",
                    queue_id=3,
                    queue_offset=len(records),
                    physical_offset=5000 + len(records),
                    born_timestamp_ms=1,
                    born_host=born,
                    store_timestamp_ms=77,
                    store_host=store,
                )
    window, used = parse_window(records, 5000)
    assert (len(window), used) == (8, len(records))
    assert set(window.times_ms.tolist()) == {77}
    assert window.topics == [b"short", b"t" * 200] * 4
    assert set(window.properties) == {b"TAGS\x01a\x02"}
    for cut in range(len(records)):
        partial, used = parse_window(records[:cut], 5000)
        assert used <= cut
        assert partial.end == 5000 + used


# --- queues -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "data"), [(0, struct.pack(">q", 1)), (8, struct.pack(">i", 99)), (12, struct.pack(">q", 5))])
def test_a_unit_that_differs_from_its_record_is_found(plain, at, data):
    patch(plain / QUEUE, 60 + at, data)
    report = verify(str(plain))
    wrong = found(report, "wrong unit")
    assert kinds(report) == {"wrong unit": 1}
    assert (wrong.severity, wrong.path, wrong.offset) == ("error", str(plain / QUEUE), 60)
    assert wrong.repair == f"sprocketmq rebuild {shlex.quote(str(plain))} --only consumequeue"


def test_a_unit_that_is_missing_is_found(plain):
    patch(plain / QUEUE, 60, b"\0" * 20)
    missing = found(verify(str(plain)), "missing unit")
    assert (missing.offset, missing.what) == (60, "messages 3 to 3 of queue PlainA/0 have no unit")


def test_a_queue_that_ends_too_early_is_found_unless_a_broker_uses_it(plain):
    patch(plain / QUEUE, 200, b"\0" * 800)
    assert "messages 10 to 14 of queue PlainA/0 have no unit" in found(verify(str(plain)), "missing unit").what
    (plain / "abort").write_text("1")
    report = verify(str(plain))
    assert report.ok
    assert kinds(report) == {"queues behind": 1, "in use": 1}


@pytest.mark.parametrize(("place", "kind"), [(283, "orphan unit"), (10**9, "unit ahead"), (-5, "orphan unit")])
def test_a_unit_without_a_record_is_found(plain, place, kind):
    patch(plain / QUEUE, 400, struct.pack(">qiq", place, 290, 0))
    report = verify(str(plain))
    assert kinds(report) == {kind: 1}
    assert found(report, kind).offset == 400


def test_a_missing_queue_file_is_found(plain):
    (plain / "consumequeue" / "PlainB" / "0" / "00000000000000000000").unlink()
    report = verify(str(plain))
    assert "messages 0 to 49 of queue PlainB/0 have no unit" in found(report, "missing unit").what


def test_a_missing_queue_is_found(plain):
    (plain / QUEUE).unlink()
    (plain / QUEUE).parent.rmdir()
    assert "messages 0 to 14 of queue PlainA/0" in found(verify(str(plain)), "missing unit").what


@pytest.mark.parametrize("size", [0, 999, 1001, 2000])
def test_a_queue_file_of_another_length_is_found(plain, size):
    os.truncate(plain / "consumequeue" / "PlainB" / "0" / "00000000000000001000", size)
    report = verify(str(plain))
    assert f"{size:,} bytes where this queue's files have 1,000" in found(report, "queue files").what


def test_messages_of_a_deleted_topic_are_a_note(plain):
    topics = json.loads((plain / "config" / "topics.json").read_text())
    del topics["topicConfigTable"]["PlainB"]
    (plain / "config" / "topics.json").write_text(json.dumps(topics))
    for path in (plain / "consumequeue" / "PlainB" / "0").iterdir():
        path.unlink()
    (plain / "consumequeue" / "PlainB" / "0").rmdir()
    (plain / "consumequeue" / "PlainB").rmdir()
    report = verify(str(plain))
    assert report.ok
    assert "'PlainB'" in found(report, "no topic").what


def test_expired_units_and_fillers_are_in_order(plain):
    """As after retention removed the first segment: units before the log's beginning stay."""
    (plain / SEGMENT).unlink()
    report = verify(str(plain))
    assert kinds(report, "error", "warning") == {}


@pytest.mark.parametrize(
    ("at", "data", "said"),
    [
        (8, struct.pack(">i", 7), "size 7"),
        (12, struct.pack(">q", 1), "tag code 1"),
        (20, struct.pack(">q", 2), "store time 2"),
        (28, struct.pack(">q", 3), "base 3"),
        (36, struct.pack(">h", 9999), "count 9999"),
    ],
)
def test_a_batch_unit_that_differs_from_its_record_is_found(batchcq, at, data, said):
    patch(batchcq / BATCH_QUEUE, 46 * 3 + at, data)
    report = verify(str(batchcq))
    wrong = found(report, "wrong unit")
    assert kinds(report) == {"wrong unit": 1}
    assert (wrong.path, wrong.offset) == (str(batchcq / BATCH_QUEUE), 46 * 3)
    assert said in wrong.what
    assert wrong.repair.endswith("--only batchconsumequeue")


def test_a_batch_unit_that_is_missing_or_points_elsewhere_is_found(batchcq):
    patch(batchcq / BATCH_QUEUE, 46 * 3, BATCH_UNIT.pack(3, 100, 0, 1, 0, 1, -1, 0))
    report = verify(str(batchcq))
    assert kinds(report, "error") == {"missing unit": 1, "orphan unit": 1}


def test_a_topic_with_queues_of_both_kinds_is_found(batchcq):
    topics = json.loads((batchcq / "config" / "topics.json").read_text())
    topics["topicConfigTable"]["Bcq1"]["attributes"] = {}
    (batchcq / "config" / "topics.json").write_text(json.dumps(topics))
    assert "topics.json says SimpleCQ for topic 'Bcq1'" in found(verify(str(batchcq)), "queue kind").what


def test_a_topic_that_is_in_no_configuration_is_found(plain):
    topics = json.loads((plain / "config" / "topics.json").read_text())
    del topics["topicConfigTable"]["PlainB"]
    (plain / "config" / "topics.json").write_text(json.dumps(topics))
    report = verify(str(plain))
    assert kinds(report) == {"unknown topic": 1}


# --- the key index ------------------------------------------------------------------------------------------------------


def entry(number):
    return ENTRIES_AT + 20 * number


@pytest.mark.parametrize(
    ("at", "data", "kind"),
    [
        (36, struct.pack(">i", 0x7FFFFFFF), "index header"),
        (36, struct.pack(">i", -1), "index header"),
        (24, struct.pack(">q", 5), "index header"),
        (32, struct.pack(">i", 7), "index header"),
        (entry(9), struct.pack(">i", 12345), "index entry"),
        (entry(9), struct.pack(">i", -12345), "index entry"),
        (entry(9) + 4, struct.pack(">q", 1), "index order"),
        (entry(9) + 12, struct.pack(">i", 500), "index time"),
        (entry(9) + 16, struct.pack(">i", 200), "index chain"),
        (entry(9) + 16, struct.pack(">i", -2), "index chain"),
    ],
)
def test_a_damaged_index_is_found(plain, at, data, kind):
    patch(plain / INDEX, at, data)
    report = verify(str(plain))
    assert kind in kinds(report)
    finding = found(report, kind)
    assert finding.path == str(plain / INDEX)
    assert finding.repair == f"sprocketmq rebuild {shlex.quote(str(plain))} --only index"
    assert verify(str(plain), index=False).ok


def test_a_slot_that_points_nowhere_is_found(plain):
    slots = struct.unpack(">64i", (plain / INDEX).read_bytes()[SLOTS_AT:ENTRIES_AT])
    empty = slots.index(0)
    patch(plain / INDEX, SLOTS_AT + 4 * empty, struct.pack(">i", 3))
    report = verify(str(plain))
    assert found(report, "orphan slot").offset == SLOTS_AT + 4 * empty
    used = next(i for i, s in enumerate(slots) if s)
    patch(plain / INDEX, SLOTS_AT + 4 * used, b"\0\0\0\0")
    assert f"slot {used} points to entry 0" in found(verify(str(plain)), "index slot").what


@pytest.mark.parametrize("count", [0, 1])
def test_a_new_index_file_of_any_size_is_in_order(plain, count):
    header = struct.pack(">qqqqii", 1795229533086, 1795229533086, 152139, 152139, 0, count)
    (plain / "index" / "20261121025213412").write_bytes(header + bytes(4 * 10 + 20 * 7))
    assert verify(str(plain)).findings == []


def test_a_missing_index_file_is_found(tmp_path):
    store = unpack("batchcq", tmp_path)
    (store / "index" / "20261121025446677").unlink()
    gap = found(verify(str(store)), "index gap")
    assert gap.severity == "warning"
    (store / "index" / "20261121025446089").unlink()
    assert found(verify(str(store)), "index begins later").severity == "note"


def test_an_index_of_an_older_broker_has_no_tags(make_bench):
    bench = make_bench()
    for i in range(20):
        properties = b"XAGS\x01t\x02KEYS\x01k%d\x02" % i
        bench.store.stage_message("orders", 0, b"b", properties, tags_code=116, born_timestamp_ms=1, born_host=pack_host("192.0.2.1", 1))
    bench.store.commit()
    bench.stop()
    data = bench.segment().read_bytes()
    bench.segment().write_bytes(data.replace(b"XAGS", b"TAGS"))
    report = verify(str(bench.root))
    without = found(report, "index without tags")
    assert (report.ok, without.severity) == (True, "note")
    assert without.what.startswith("20 tags of messages are not in the index")


# --- small files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 8, 16, 32, 40])
def test_a_checkpoint_that_is_ahead_is_found(plain, at):
    patch(plain / "checkpoint", at, struct.pack(">q", 1 << 50))
    ahead = found(verify(str(plain)), "checkpoint ahead")
    assert (ahead.offset, ahead.severity) == (at, "warning")
    assert ahead.repair.endswith("--only checkpoint")


def test_a_checkpoint_that_is_short_or_negative_is_found(plain):
    patch(plain / "checkpoint", 8, struct.pack(">q", -1))
    assert "negative" in found(verify(str(plain)), "checkpoint").what
    os.truncate(plain / "checkpoint", 20)
    assert "20 bytes" in found(verify(str(plain)), "checkpoint").what


def test_consumers_ahead_of_their_queue_are_found(plain):
    path = plain / "config" / "consumerOffset.json"
    path.write_text(path.read_text().replace("0:15,", "0:16,", 1))
    ahead = found(verify(str(plain)), "offset ahead")
    assert "group 'cg_plain' is at offset 16 of queue PlainA/0, which ends at 15" in ahead.what


def test_delayed_delivery_ahead_of_its_queue_is_found(tmp_path):
    store = unpack("delay-retry", tmp_path)
    (store / "config" / "delayOffset.json").write_text('{"offsetTable":{1:99,"2":1}}')
    assert "delayed delivery is at offset 99 of queue SCHEDULE_TOPIC_XXXX/0" in found(verify(str(store)), "offset ahead").what


def test_a_snapshot_that_is_damaged_newer_or_ahead_is_found(make_bench):
    bench = make_bench()
    for _ in range(20):
        bench.send(b"body")
    bench.stop()
    path = bench.root / "dispatched"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert "the file is damaged" in found(verify(str(bench.root)), "snapshot").what
    newer = data[:4] + struct.pack(">i", 1000) + data[8:-4]
    path.write_bytes(newer + struct.pack(">i", crc32(newer)))
    report = verify(str(bench.root))
    assert kinds(report) == {"not supported": 1}
    assert "written by a newer SprocketMQ (format 1000 at byte 4" in report.findings[0].what
    snapshot = Snapshot.decode(data)
    path.write_bytes(Snapshot(10**6, snapshot.last_record, snapshot.queues).encode())
    assert "knows the log up to 1000000" in found(verify(str(bench.root)), "snapshot ahead").what
    path.write_bytes(Snapshot(snapshot.log_offset - 1, snapshot.last_record, snapshot.queues).encode())
    assert "not where a record begins" in found(verify(str(bench.root)), "snapshot").what


def test_a_store_that_only_apaches_broker_reads_is_reported(plain):
    shutil.rmtree(plain / "consumequeue")
    (plain / "consumequeue").mkdir()
    (plain / "consumequeue" / "CURRENT").write_bytes(b"MANIFEST-000001\n")
    report = verify(str(plain))
    assert kinds(report) == {"not supported": 1}
    assert "RocksDB" in report.findings[0].what
    assert f"sprocketmq rebuild {shlex.quote(str(plain))}" in report.findings[0].repair


def test_leftovers_are_notes(plain):
    (plain / "dispatched.tmp").write_bytes(b"x")
    (plain / "config" / "topics.json.tmp").write_bytes(b"x")
    (plain / "commitlog" / "notes.txt").write_bytes(b"x")
    (plain / "damaged").mkdir()
    (plain / "damaged" / "00000000000000000000").write_bytes(b"x")
    report = verify(str(plain))
    assert report.ok
    assert kinds(report) == {"leftover": 3, "put aside": 1}


def test_configuration_that_cannot_be_read_is_found(plain):
    for name in ("topics.json", "topics.json.bak"):
        (plain / "config" / name).write_text("{" * 100_000)
    assert found(verify(str(plain)), "topics").path.endswith("topics.json")


def test_findings_of_one_kind_are_bounded(plain):
    for at in range(0, 1000, 20):
        patch(plain / "consumequeue" / "PlainB" / "0" / "00000000000000000000", at, struct.pack(">qi", 5, 5))
    report = verify(str(plain))
    assert report.errors == 50
    assert len(report.findings) == MAX_OF_A_KIND + 1
    assert report.findings[-1].what == f"{50 - MAX_OF_A_KIND} more of the kind 'wrong unit'"


def test_queues_are_read_with_few_open_files(make_bench, monkeypatch):
    monkeypatch.setattr(queue_units, "MAX_OPEN_FILES", 2)
    bench = make_bench()
    for i in range(100):
        bench.send(b"body", queue=i % 10)
    bench.stop()
    assert verify(str(bench.root)).findings == []
