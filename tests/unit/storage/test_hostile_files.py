"""Files made to do harm: every length at its extremes, gigabytes of holes, forgeries, and directories that are not stores.

Nothing hangs or takes much memory, damage is reported or refused with an error that says what is wrong, and inspecting changes nothing.
"""

import contextlib
import errno
import hashlib
import os
import random
import shlex
import shutil
import struct
import subprocess
import sys
import tracemalloc

import pytest
from tests.recorded_stores import unpack
from tests.records import stored

from sprocketmq.errors import SprocketError, StoreDamaged, StoreLocked, StoreNotSupported, StoreNotWritable
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.records import encode_record, pack_host
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.directory_checks import check_directory
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.index.slot_count import hash_slots_of
from sprocketmq.storage.inspect import segment_items
from sprocketmq.storage.inspect.items import NotAStoreFile
from sprocketmq.storage.inspect.overview import overview_of
from sprocketmq.storage.inspect.record_items import inner_messages
from sprocketmq.storage.inspect.segment_items import next_record
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.inspect.store_file import identify, items_of
from sprocketmq.storage.inspect.verification import verify
from sprocketmq.storage.log import recovery
from sprocketmq.storage.snapshot import Snapshot
from sprocketmq.storage.store import MessageStore

SEGMENT = "commitlog/00000000000000000000"
EXTREMES = {
    2: [0, -1, 1, 0x7FFF, -0x8000],
    4: [0, -1, 1, 0x7FFFFFFF, -0x80000000, 0x10000],
    8: [0, -1, 1, (1 << 63) - 1, -(1 << 63), 1 << 40],
}
HOST = pack_host("192.0.2.7", 40001)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    found = {name: unpack(name, tmp_path_factory.mktemp(name)) for name in ("plain", "batchcq", "propcrc")}
    return found | {"ours": our_store(tmp_path_factory.mktemp("ours") / "store")}


def our_store(root):
    """A small store of SprocketMQ with everything in it: plain and batch queues, an index, a deleted topic."""
    sizes = {"commitlog_segment_bytes": 16_384, "consumequeue_segment_bytes": 1000, "batchqueue_segment_bytes": 460}
    store = MessageStore(StoreConfig(root, max_hash_slots=64, max_index_entries=256, **sizes))
    store.open()
    store.declare_batch_topic("Bcq1")
    born = {"born_timestamp_ms": 1, "born_host": HOST}
    body = encode_batch([(0, b"inner", b"TAGS\x01t\x02")] * 3)
    for i in range(120):
        properties = b"TAGS\x01t\x02KEYS\x01k%d\x02" % i
        store.stage_message("PlainA" if i % 5 else "gone", i % 2, b"x" * 200, properties, tags_code=116, **born)
        store.stage_inner_batch("Bcq1", 0, body, b"UNIQ_KEY\x01u%d\x02" % i, count=3, tags_code=0, **born)
        store.commit()
    store.delete_topic("gone")
    store.close()
    return root


def tree(root):
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and status.st_size < 1 << 24 else ""
        found[str(path.relative_to(root))] = (status.st_mtime_ns, status.st_size, status.st_mode, content)
    return found


def look_at(path):
    """Read a file to its end in every way there is."""
    with FileView(REAL_FS, str(path)) as view:
        file = identify(str(path))
        for item in items_of(file, view):
            if item.kind == "record":
                with contextlib.suppress(SprocketError):
                    inner_messages(view, item)
        for offset in (0, 1, file.start, (1 << 63) - 1):
            with contextlib.suppress(NotAStoreFile):
                next(iter(items_of(file, view, offset=offset)), None)


def look_at_store(root):
    """Inspect every file and verify the whole; nothing may change."""
    before = tree(root)
    for path in root.rglob("*"):
        if path.is_file():
            with contextlib.suppress(NotAStoreFile, OSError):
                look_at(path)
    overview_of(StoreDirectory(str(root)))
    report = verify(str(root))
    assert tree(root) == before
    return report


def open_store(root):
    """Open a store and read it, as a broker would; it may only raise errors that say what is wrong."""
    store = MessageStore(StoreConfig(root, commitlog_segment_bytes=65536, consumequeue_segment_bytes=1000))
    try:
        store.open()
        for topic in ("PlainA", "PlainB", "Bcq1", "BcqAuto"):
            for queue in range(2):
                store.read(topic, queue, store.min_offset(topic, queue))
    except SprocketError:
        pass
    finally:
        store.abandon()


def forged(tmp_path, data, name=SEGMENT):
    path = tmp_path / "store" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return tmp_path / "store"


# --- lengths at their extremes ------------------------------------------------------------------------------------------


def try_extremes(original, root, path, places):
    """Put every extreme value at every given position of one file; inspect it and verify the store; open some of the stores."""
    shutil.copytree(original, root)
    good = (root / path).read_bytes()
    for at, width in places:
        for i, value in enumerate(EXTREMES[width]):
            damaged = good[:at] + value.to_bytes(width, "big", signed=True) + good[at + width :]
            (root / path).write_bytes(damaged)
            before = tree(root)
            with contextlib.suppress(NotAStoreFile):
                look_at(root / path)
            assert verify(str(root)).records >= 100
            assert tree(root) == before
            if i == at % len(EXTREMES[width]):
                shutil.copytree(root, root.parent / "opened")
                open_store(root.parent / "opened")
                shutil.rmtree(root.parent / "opened")


def test_every_number_of_a_record_at_its_extremes(originals, tmp_path):
    places = [(0, 4), (4, 4), (12, 4), (20, 8), (28, 8), (36, 4), (56, 8), (84, 4), (96, 2), (103, 2)]
    try_extremes(originals["plain"], tmp_path / "store", SEGMENT, places)


def test_every_number_of_a_unit_at_its_extremes(originals, tmp_path):
    path = "consumequeue/PlainA/0/00000000000000000000"
    try_extremes(originals["plain"], tmp_path / "store", path, [(0, 8), (8, 4), (12, 8)])


def test_every_number_of_a_batch_unit_at_its_extremes(originals, tmp_path):
    path = "batchconsumequeue/Bcq1/0/00000000000000000000"
    try_extremes(originals["batchcq"], tmp_path / "store", path, [(0, 8), (8, 4), (20, 8), (28, 8), (36, 2)])


def test_every_number_of_an_index_at_its_extremes(originals, tmp_path):
    header, slot, entry = [(0, 8), (16, 8), (24, 8), (32, 4), (36, 4)], [(40, 4)], [(316, 4), (320, 8), (328, 4), (332, 4)]
    try_extremes(originals["plain"], tmp_path / "store", "index/20261121025211689", header + slot + entry)


def test_our_own_store_is_in_order(originals):
    report = look_at_store(originals["ours"])
    assert (report.findings, report.records, report.queues) == ([], 240, 3)


@pytest.mark.parametrize("name", ["plain", "batchcq", "propcrc", "ours"])
def test_damage_anywhere_is_reported_or_harmless(originals, tmp_path, name):
    seed = 20_261_121
    rng = random.Random(seed)
    files = sorted(p.relative_to(originals[name]) for p in originals[name].rglob("*") if p.is_file() and p.stat().st_size)
    for round_ in range(8):
        root = tmp_path / str(round_)
        shutil.copytree(originals[name], root)
        for path in rng.sample(files, 5):
            data = bytearray((root / path).read_bytes())
            for _ in range(rng.choice([1, 10])):
                at = rng.randrange(len(data))
                data[at : at + rng.choice([1, 8, 100])] = rng.choice([b"\0", b"\xff", rng.randbytes(1)]) * rng.choice([1, 8])
            (root / path).write_bytes(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])])
        try:
            look_at_store(root)
            open_store(root)
        except Exception as e:
            raise AssertionError(f"seed {seed}, round {round_}") from e
        shutil.rmtree(root)


@pytest.mark.parametrize("inner", [0, -1, 21, 22, 1 << 30, -(1 << 31)])
def test_inner_sizes_at_their_extremes(tmp_path, inner):
    body = struct.pack(">iiiii", inner, 0, 0, 0, 4) + b"body" + struct.pack(">h", 0)
    record = stored(body * 3, b"INNER_NUM\x013\x02INNER_BASE\x010\x02", topic=b"Bcq1", sys_flag=0xC0)
    root = forged(tmp_path, record.ljust(65536, b"\0"))
    (root / "batchconsumequeue" / "Bcq1").mkdir(parents=True)
    report = look_at_store(root)
    assert report.records == 1
    with FileView(REAL_FS, str(root / SEGMENT)) as view:
        item = next(items_of(identify(str(root / SEGMENT)), view))
        with pytest.raises(SprocketError, match="batch entry"):
            inner_messages(view, item)
    open_store(root)


# --- size ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "head"),
    [
        (SEGMENT, b""),
        (SEGMENT, struct.pack(">iI", 0x7FFFFFFF, 0xDAA320A7)),
        (SEGMENT, struct.pack(">iI", -1, 0xCBD43194)),
        ("consumequeue/t/0/00000000000000000000", b""),
        ("consumequeue/t/0/00000000000000000000", struct.pack(">qiq", 5, 7, 0)),
        ("batchconsumequeue/t/0/00000000000000000000", struct.pack(">qi", 5, 7)),
        ("index/20261121025211689", struct.pack(">qqqqii", 1, 1, 0, 0, 0x7FFFFFFF, 0x7FFFFFFF)),
        ("index/20261121025211689", struct.pack(">qqqqii", 1, 1, 8, 9, 1, 100)),
        ("config/topics.json", b"{"),
        ("checkpoint", b""),
        ("dispatched", b"SPMQ"),
        ("abort", b"1"),
    ],
)
def test_terabytes_of_holes_cost_nothing(tmp_path, name, head):
    root = forged(tmp_path, head, name)
    (root / "commitlog").mkdir(exist_ok=True)
    os.truncate(root / name, 1 << 40)
    tracemalloc.start()
    try:
        look_at_store(root)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(OSError, match="too large"):
        REAL_FS.read(str(root / name))


def test_names_at_their_extremes(originals, tmp_path):
    for name in (
        "commitlog/99999999999999999999",
        "commitlog/18446744073709551616",
        "commitlog/09223372036854710272",
        "consumequeue/PlainA/0/99999999999999999980",
        "batchconsumequeue/PlainA/0/99999999999999999960",
        "consumequeue/PlainA/999999999/00000000000000000000",
        "consumequeue/" + "x" * 255 + "/0/00000000000000000000",
        "index/99999999999999999",
    ):
        root = tmp_path / "store"
        shutil.copytree(originals["plain"], root)
        forged(tmp_path, b"\1" * 1000, name)
        look_at_store(root)
        open_store(root)
        shutil.rmtree(root)


def test_pipes_and_links_are_not_waited_for(originals, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(originals["plain"], root)
    os.mkfifo(root / "dispatched")
    os.mkfifo(root / "config" / "other.json")
    (root / "consumequeue" / "loop").symlink_to(root / "consumequeue")
    (root / "config" / "delayOffset.json").unlink()
    (root / "config" / "delayOffset.json").symlink_to("/dev/zero")
    assert verify(str(root)).records == 147
    overview_of(StoreDirectory(str(root)))
    assert [i.kind for i in look(root / "dispatched")] == ["damaged"]
    open_store(root)


def look(path):
    with FileView(REAL_FS, str(path)) as view:
        yield from items_of(identify(str(path)), view)


def nested_forgeries(count, tail):
    """Records inside one body, each as long as the rest, with the right log offset and lengths but a wrong checksum."""
    pieces = []
    total = 200 * count + tail
    for i in range(count):
        at = 100 + 200 * i
        size = total - 200 * i
        head = struct.pack(">iIiiiqqiq8sq8siqi", size, 0xDAA320A7, 1, 0, 0, 0, at, 0, 1, HOST, 1 << 40, HOST, 0, 0, size - 88 - 4)
        pieces.append(head.ljust(200, b"."))
    return b"\1" * 100 + b"".join(pieces) + b"." * (tail - 4) + b"\1t\0\0"


def test_nested_forgeries_do_not_stop_the_search(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_items, "SEARCH_BUDGET_BYTES", 1 << 22)
    monkeypatch.setattr(recovery, "SEARCH_BUDGET_BYTES", 1 << 22)
    data = nested_forgeries(500, 200_000)
    at = len(data)
    record = encode_record(
        topic=b"t",
        body=b"true",
        properties=b"",
        queue_id=0,
        queue_offset=0,
        physical_offset=at,
        born_timestamp_ms=1,
        born_host=HOST,
        store_timestamp_ms=1 << 41,
        store_host=HOST,
    )
    root = forged(tmp_path, (data + record).ljust(1 << 20, b"\0"))
    with FileView(REAL_FS, str(root / SEGMENT)) as view:
        assert next_record(view, 0, 0, 1 << 20) == at
    assert verify(str(root)).records == 1
    (root / "abort").write_bytes(b"1")
    store = MessageStore(StoreConfig(root))
    try:
        report = store.open()
        assert [(d.start, d.end) for d in report.damaged] == [(0, at)]
        assert store.max_offset("t", 0) == 1
    finally:
        store.abandon()


def test_the_search_for_the_slots_of_an_index_is_bounded(tmp_path):
    root = forged(tmp_path, struct.pack(">qqqqii", 1, 1, 0x11111111_11111111, 5, 1, 100) + b"\x11" * 200_000, "index/20261121025211689")
    with FileView(REAL_FS, str(root / "index" / "20261121025211689")) as view:
        assert hash_slots_of(view) is None


# --- directories that are not stores --------------------------------------------------------------------------------


def refused(root, error=StoreNotSupported):
    before = tree(root)
    with pytest.raises(error) as caught:
        MessageStore(StoreConfig(root)).open()
    assert tree(root) == before
    return str(caught.value)


def test_a_directory_of_other_files_is_not_a_store(tmp_path):
    for name in ("photo.jpg", "letter.txt", "music.ogg", "video.mp4"):
        (tmp_path / name).write_bytes(b"x")
    message = refused(tmp_path)
    assert "holds files (letter.txt, music.ogg, photo.jpg, ...), but no store" in message
    assert "choose an empty directory" in message


@pytest.mark.parametrize("names", [[], ["lost+found"], [".hidden"]])
def test_an_empty_directory_becomes_a_store(tmp_path, names):
    for name in names:
        (tmp_path / name).mkdir()
    store = MessageStore(StoreConfig(tmp_path, preallocate=False))
    store.open()
    store.close()


def test_a_file_is_not_a_store(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StoreNotWritable, match="file"):
        MessageStore(StoreConfig(tmp_path / "file")).open()


@pytest.mark.parametrize("name", ["consumequeue", "consumequeue_rocksdb", "consumequeue_r"])
def test_queues_in_rocksdb_are_refused_with_a_next_step(originals, tmp_path, name):
    root = tmp_path / "store"
    shutil.copytree(originals["plain"], root)
    shutil.rmtree(root / "consumequeue")
    (root / name).mkdir()
    (root / name / "CURRENT").write_bytes(b"MANIFEST-000001\n")
    message = refused(root)
    assert str(root / name) in message
    assert f"sprocketmq rebuild {shlex.quote(str(root))}" in message


def test_a_broker_that_wrote_both_kinds_of_queues_leaves_ours(originals, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(originals["plain"], root)
    (root / "consumequeue_rocksdb").mkdir()
    (root / "consumequeue_rocksdb" / "CURRENT").write_bytes(b"x")
    (root / "rocksdbstore").mkdir()
    (root / "rocksdbstore" / "CURRENT").write_bytes(b"x")
    check_directory(REAL_FS, str(root))


@pytest.mark.parametrize("name", ["topics", "subscriptionGroups", "consumerOffsets", "metadata", "rdb"])
def test_settings_in_rocksdb_are_refused_with_a_next_step(originals, tmp_path, name):
    root = tmp_path / "store"
    shutil.copytree(originals["plain"], root)
    (root / "config" / name).mkdir()
    (root / "config" / name / "CURRENT").write_bytes(b"x")
    check_directory(REAL_FS, str(root))
    (root / "config" / "topics.json").unlink()
    assert "rocksDBConfigToJson" in refused(root)


def test_tiered_storage_is_refused_with_a_next_step(originals, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(originals["plain"], root)
    metadata = root / "config" / "tieredStoreMetadata.json"
    metadata.write_text('{"commitLogFileSegmentTable":{},"topicMetadataTable":{"a":{}}}')
    check_directory(REAL_FS, str(root))
    metadata.write_text('{"commitLogFileSegmentTable":{"a":{"0":{}}}}')
    assert f"{metadata}: older messages of this store are in tiered storage" in refused(root)
    metadata.write_text("{" * 100_000)
    assert "move this file away" in refused(root)


def test_compacted_topics_are_refused_with_a_next_step(originals, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(originals["plain"], root)
    (root / "compaction" / "compactionLog").mkdir(parents=True)
    check_directory(REAL_FS, str(root))
    (root / "compaction" / "compactionLog" / "prices" / "0").mkdir(parents=True)
    (root / "compaction" / "compactionLog" / "prices" / "0" / "00000000000000000000").write_bytes(b"x")
    assert "this topic is compacted" in refused(root)


def test_a_newer_format_is_refused_and_a_damaged_version_is_not(make_bench):
    bench = make_bench()
    bench.send(b"body")
    bench.stop()
    path = bench.root / "dispatched"
    data = path.read_bytes()[:-4]
    newer = data[:4] + struct.pack(">i", 99) + data[8:]
    path.write_bytes(newer + struct.pack(">i", crc32(newer)))
    message = refused(bench.root)
    assert f"{path}: this store was last written by a newer SprocketMQ (format 99 at byte 4" in message
    path.write_bytes(newer + bytes(4))
    bench.reopen()
    assert bench.bodies() == [b"body"]


def test_a_missing_log_is_not_replaced_by_an_empty_one(originals, make_bench, tmp_path):
    bench = make_bench()
    bench.send(b"body")
    bench.stop()
    (bench.root / "checkpoint").unlink()
    shutil.rmtree(bench.root / "commitlog")
    assert "dispatched knows of messages" in refused(bench.root, StoreDamaged)
    root = tmp_path / "apache"
    shutil.copytree(originals["plain"], root)
    shutil.rmtree(root / "commitlog")
    message = refused(root, StoreDamaged)
    assert "checkpoint knows of messages" in message
    assert "storePathCommitLog" in message
    assert f"`sprocketmq verify {shlex.quote(str(root))}` shows more" in message


def test_a_segment_missing_in_the_middle_is_named(originals, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(originals["plain"], root)
    (root / "commitlog" / "00000000000000065536").unlink()
    with pytest.raises(StoreDamaged) as caught:
        MessageStore(StoreConfig(root)).open()
    assert caught.value.path == str(root / "commitlog" / "00000000000000065536")
    assert "the segment is missing, the next one there is 00000000000000131072" in str(caught.value)
    assert f"`sprocketmq verify {shlex.quote(str(root))}` shows more" in str(caught.value)


def test_a_segment_that_is_too_long_is_named(originals, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(originals["plain"], root)
    os.truncate(root / SEGMENT, 70_000)
    with pytest.raises(StoreDamaged, match="70000 bytes where segments have 65536"):
        MessageStore(StoreConfig(root)).open()


def test_a_store_in_use_can_be_inspected_but_not_opened(make_bench):
    bench = make_bench()
    bench.send(b"body")
    check = (
        "import sys; from pathlib import Path; from sprocketmq.storage.store import *; MessageStore(StoreConfig(Path(sys.argv[1]))).open()"
    )
    done = subprocess.run([sys.executable, "-c", check, str(bench.root)], check=False, capture_output=True, text=True, timeout=120)
    assert "StoreLocked" in done.stderr
    assert str(os.getpid()) in done.stderr
    with pytest.raises(StoreLocked):
        MessageStore(StoreConfig(bench.root)).open()
    assert look_at_store(bench.root).ok


def test_stores_on_read_only_media_are_refused_but_can_be_inspected(make_bench):
    bench = make_bench()
    bench.send(b"body")
    bench.stop()
    bench.fs.fail("open", errno.EROFS, path="lock")
    with pytest.raises(StoreNotWritable, match="Read-only file system"):
        MessageStore(StoreConfig(bench.root), fs=bench.fs).open()
    assert look_at_store(bench.root).ok


def test_snapshots_with_any_numbers_in_them_are_read_or_refused(tmp_path):
    good = Snapshot(log_offset=10, deleted={"t": 5}).encode()[:-4]
    rng = random.Random(7)
    for at in range(8, len(good)):
        for value in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", rng.randbytes(4)):
            data = good[:at] + value + good[at + 4 :]
            Snapshot.decode(data + struct.pack(">i", crc32(data)))


# When the timer log of the stores below was last read.
DELIVERED_MS = 1_800_000_000_000


def with_timers(originals, root, *, due_ms=(), queue_offset=0, queued=0):
    """Make a store of Apache's broker with a timer log of messages due at some times, and a queue with ``queued`` timed messages."""
    shutil.copytree(originals["plain"], root)
    units = b"".join(struct.pack(">iqiqiqiiq", 52, -1, 1, due - 5000, 5000, 0, 100, 1, 0) for due in due_ms)
    (root / "timerwheel").write_bytes(bytes(32))
    (root / "timerlog").mkdir()
    (root / "timerlog" / ("0" * 20)).write_bytes(units.ljust(1 << 20, b"\0"))
    (root / "config" / "timercheck").write_bytes(
        struct.pack(">7q", DELIVERED_MS, len(units), queue_offset, queue_offset, 0, 0, 0).ljust(4096, b"\0")
    )
    if queued:
        store = MessageStore(StoreConfig(root, preallocate=False))
        wheel = (root / "timerwheel").rename(root / "wheel")
        store.open()
        for _ in range(queued):
            store.stage_message("rmq_sys_wheel_timer", 0, b"timed", b"", tags_code=0, born_timestamp_ms=1, born_host=HOST)
        store.commit()
        store.close()
        wheel.rename(root / "timerwheel")
    return root


@pytest.mark.parametrize("due_ms", [[DELIVERED_MS], [DELIVERED_MS + 60_000, DELIVERED_MS - 1000]])
def test_timed_messages_that_wait_for_apaches_broker_are_refused_with_a_next_step(originals, tmp_path, due_ms):
    root = with_timers(originals, tmp_path / "store", due_ms=due_ms, queue_offset=len(due_ms), queued=len(due_ms))
    message = refused(root)
    assert f"{root}/timerwheel: timed messages of this store wait" in message
    assert "run Apache's broker until they are delivered" in message
    assert any("a broker does not open it" in note and "timer wheel" in note for note in overview_of(StoreDirectory(str(root))).notes)
    (root / "timerwheel").rename(tmp_path / "elsewhere")
    opens(root)


def test_timed_messages_that_are_not_in_the_timer_log_yet_are_refused(originals, tmp_path):
    root = with_timers(originals, tmp_path / "store", due_ms=[DELIVERED_MS - 1000], queue_offset=1, queued=2)
    with pytest.raises(StoreNotSupported, match="timed messages of this store wait"):
        opens(root)


def test_timed_messages_are_refused_without_a_checkpoint_of_them(originals, tmp_path):
    root = with_timers(originals, tmp_path / "store", due_ms=[DELIVERED_MS - 1000], queue_offset=1, queued=1)
    (root / "config" / "timercheck").write_bytes(b"short")
    assert "timed messages of this store wait" in refused(root)


@pytest.mark.parametrize("due_ms", [[], [DELIVERED_MS - 1000] * 20_000])
def test_a_timer_wheel_of_which_all_is_delivered_is_fine(originals, tmp_path, due_ms):
    opens(with_timers(originals, tmp_path / "store", due_ms=due_ms, queue_offset=min(len(due_ms), 7), queued=min(len(due_ms), 7)))


def opens(root):
    store = MessageStore(StoreConfig(root, preallocate=False))
    store.open()
    store.close()
