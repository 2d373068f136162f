"""Index files have the same content whichever way keys are added as when they are added one by one; lookups by key."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from struct import pack, pack_into, unpack_from
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprocketmq.clock import ManualClock
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.storage.chunks import KeyEntries
from sprocketmq.storage.fs import RealFileSystem
from sprocketmq.storage.index import index_file, lookup, numpy_loading
from sprocketmq.storage.index import key_index as index_module
from sprocketmq.storage.index.index_format import next_name
from sprocketmq.storage.index.index_restore import KeysAt
from sprocketmq.storage.index.index_state import IndexState
from sprocketmq.storage.index.key_hashing import entries_of_topics
from sprocketmq.storage.index.key_index import KeyIndex
from sprocketmq.storage.index.record_keys import key_hash, key_string, record_keys
from sprocketmq.storage.index.staging import StagedSend
from sprocketmq.storage.log.exploding import Strings
from sprocketmq.storage.log.recovery import Scanned

SLOTS, ENTRIES = 7, 12
Record = tuple[str, bytes, int, int]


class Reference:
    """Index files filled one key at a time, straight from the rules of the format."""

    def __init__(self, slots: int = SLOTS, entries: int = ENTRIES) -> None:
        self.slots, self.entries = slots, entries
        self.files: list[bytearray] = []

    def put(self, key: str, physical: int, time_ms: int) -> None:
        if not self.files or unpack_from(">i", self.files[-1], 36)[0] >= self.entries:
            data = bytearray(40 + 4 * self.slots + 20 * self.entries)
            end_ms, end_physical = (
                (unpack_from(">q", self.files[-1], 8)[0], unpack_from(">q", self.files[-1], 24)[0]) if self.files else (0, 0)
            )
            pack_into(">qqqqii", data, 0, end_ms, end_ms, end_physical, end_physical, 0, 1)
            self.files.append(data)
        data = self.files[-1]
        begin_ms, _, begin_physical, _, used, number = unpack_from(">qqqqii", data)
        slot = 40 + 4 * (key_hash(key) % self.slots)
        before = unpack_from(">i", data, slot)[0]
        seconds = max(0, (time_ms - begin_ms) // 1000) if begin_ms > 0 else 0
        pack_into(">iqii", data, 40 + 4 * self.slots + 20 * number, key_hash(key), physical, seconds, before)
        pack_into(">i", data, slot, number)
        if number == 1:
            begin_ms, begin_physical = time_ms, physical
        pack_into(">qqqqii", data, 0, begin_ms, time_ms, begin_physical, physical, used + (before == 0), number + 1)

    def put_all(self, records: list[Record]) -> "Reference":
        for topic, properties, physical, time_ms in records:
            for key in record_keys(topic, properties):
                self.put(key, physical, time_ms)
        return self


def make_records(count: int, *, start: int = 0) -> list[Record]:
    """Records of three topics with one to four keys, two a second; every seventh has none."""
    records = []
    for i in range(start, start + count):
        pairs = {"UNIQ_KEY": f"U{i:04X}", "KEYS": f"k{i} shared" if i % 3 else f"k{i}", "TAGS": "TagA" if i % 2 else ""}
        records.append(
            (f"topic{i % 3}", encode_properties(pairs if i % 7 != 3 else {"WAIT": "true"}), 100 * i, 1_700_000_000_000 + 500 * i)
        )
    return records


def as_scanned(records: list[Record]) -> list[Scanned]:
    return [Scanned(topic.encode(), 0, 0, physical, 100, 0, 0, time_ms, 1, properties) for topic, properties, physical, time_ms in records]


def reading(records: list[Record]) -> KeysAt:
    """The ``keys_at`` of a log with these records."""

    def keys_at(physical: int) -> tuple[list[int], int] | None:
        for topic, properties, place, _ in records:
            if place == physical:
                return [key_hash(key) for key in record_keys(topic, properties)], place + 100
        return None

    return keys_at


class Box:
    """An index in its own directory."""

    def __init__(self, root: Path, slots: int = SLOTS, entries: int = ENTRIES) -> None:
        self.root = root
        self.clock = ManualClock()
        self.geometry: dict[str, Any] = {"hash_slots": slots, "entries_per_file": entries}
        self.fs = RealFileSystem()
        self.index = self.new()

    def new(self) -> KeyIndex:
        return KeyIndex(self.fs, str(self.root), clock=self.clock, **self.geometry)

    def load(self, state: IndexState | None = None, *, log_min: int = 0, log_end: int = 1 << 40, **more: Any) -> int:
        self.index.close()
        self.index = self.new()
        return self.index.load(log_min=log_min, log_end=log_end, state=state, **more)

    def add(self, records: list[Record]) -> None:
        self.index.add_records(as_scanned(records), records[-1][2] + 100 if records else 0)

    def files(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.root.iterdir())]

    def find(self, topic: str, key: str, **more: Any) -> list[int]:
        return list(self.index.candidates(key_string(topic, key), **more))


@pytest.fixture
def make_box(tmp_path: Path) -> Iterator[Callable[..., Box]]:
    made: list[Box] = []

    def make(name: str = "index", **geometry: int) -> Box:
        made.append(Box(tmp_path / name, **geometry))
        made[-1].load()
        return made[-1]

    yield make
    for box in made:
        box.index.close()


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    return make_box()


@pytest.fixture
def without_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not loaded numpy yet."""
    for name in ("sprocketmq.storage.index.index_arrays", "sprocketmq.storage.index.key_hashing"):
        monkeypatch.delitem(sys.modules, name, raising=False)


# --- what is in the files ---


def test_entries_added_together_equal_entries_added_one_by_one(box: Box) -> None:
    records = make_records(60)
    box.add(records)
    box.index.sync()
    assert box.files() == Reference().put_all(records).files


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=4), st.integers(0, 5000)), max_size=40),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(1, 9),
    st.integers(2, 15),
)
def test_any_keys_in_any_portions_give_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[list[int], int]], portions: list[int], slots: int, entries: int
) -> None:
    records, time_ms = [], 1000
    for i, (keys, step) in enumerate(rows):
        time_ms += step
        records.append(("t", encode_properties({"KEYS": " ".join(map(str, keys))}), 50 * i, time_ms))
    box = Box(tmp_path_factory.mktemp("index"), slots, entries)
    box.load()
    at = turn = 0
    while at < len(records):
        part = records[at : at + portions[turn % len(portions)]]
        box.add(part)
        if turn % 2:
            box.index.sync()
        at += len(part)
        turn += 1
    box.index.sync()
    box.index.close()
    assert box.files() == Reference(slots, entries).put_all(records).files


def test_a_process_without_numpy_writes_the_same(box: Box, without_arrays: None) -> None:
    records = make_records(60)
    for at in range(0, 60, 7):
        box.add(records[at : at + 7])
        box.add(records[at : at + 5])  # added again
    box.index.sync()
    assert "sprocketmq.storage.index.index_arrays" not in sys.modules
    assert box.files() == Reference().put_all(records).files


def strings_of(several: list[bytes]) -> Strings:
    return Strings(b"".join(several), list(map(len, several)))


def test_offered_sends_are_indexed_in_order(box: Box) -> None:
    records = make_records(40)
    single = [(t, p, at, time) for t, p, at, time in records[:10]]
    expected = [*single, *(("topic", p, at, records[10 + i // 10 * 10][3]) for i, (_, p, at, _) in enumerate(records[10:]))]
    batches: list[StagedSend] = [
        ("topic", strings_of([p for _, p, _, _ in records[at : at + 10]]), [r[2] for r in records[at : at + 10]], records[at][3])
        for at in (10, 20, 30)
    ]
    box.index.offer(single, 1000)
    box.index.offer(batches, 4000)
    box.clock.jump_wall((records[0][3] + 250 - box.clock.time_ms()) / 1000)
    assert box.index.lag() == (4000, 250)
    state = box.index.sync()
    assert (state.indexed_end, box.index.lag()) == (4000, (0, 0))
    assert box.files() == Reference().put_all(expected).files


@pytest.mark.parametrize("arrays", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_batches_of_messages_with_the_same_lengths_are_indexed_in_order(
    box: Box, arrays: bool, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "arrays_loaded", lambda: arrays)
    batches: list[StagedSend] = []
    expected = []
    for topic, first, count, step in (("a", 0, 5, 100), ("b", 500, 70, 130), ("a", 9600, 1, 90)):
        strings = [b"UNIQ_KEY\x01%s%04d\x02KEYS\x01k%04d\x02" % (topic.encode(), i, i) for i in range(count)]
        log_offsets = range(first, first + count * step, step)
        batches.append((topic, Strings(b"".join(strings), len(strings[0])), log_offsets, 5_000 + first))
        expected += [(topic, text, at, 5_000 + first) for text, at in zip(strings, log_offsets, strict=True)]
    if not alone:
        batches.append(("a", b"KEYS\x01last\x02", 9700, 15_000))
        expected.append(("a", b"KEYS\x01last\x02", 9700, 15_000))
    box.index.offer(batches, 9800)
    box.index.sync()
    assert box.files() == Reference().put_all(expected).files


def test_entries_made_by_workers_are_added(box: Box) -> None:
    records = [("t", properties, physical, time_ms) for _, properties, physical, time_ms in make_records(50)]
    for at in (0, 20, 10, 30):  # the third part is added again
        part = records[at : at + 20]
        entries = entries_of_topics(
            [b"t"], np.zeros(len(part), np.int64), [r[1] for r in part], np.array([r[2] for r in part]), np.array([r[3] for r in part])
        )
        box.index.add_entries(entries, part[-1][2] + 100)
    box.index.sync()
    assert box.files() == Reference().put_all(records).files


def test_times_that_go_back_and_times_far_ahead_stay_within_bounds(box: Box) -> None:
    times = [5_000, 1_000, 9_999, 1 << 60]
    records = [("t", encode_properties({"KEYS": "k"}), 10 * i, time) for i, time in enumerate(times)]
    box.add(records)
    box.index.sync()
    seconds = [unpack_from(">i", box.files()[0], 40 + 4 * SLOTS + 20 * n + 12)[0] for n in range(1, 5)]
    assert seconds == [0, 0, 4, 0x7FFFFFFF]


def test_file_names_are_local_times_that_only_grow(box: Box) -> None:
    records = make_records(60)
    box.add(records[:20])
    box.clock.jump_wall(-3600)
    box.add(records[20:])
    names = sorted(path.name for path in box.root.iterdir())
    local = datetime.fromtimestamp(1_700_000_000).strftime("%Y%m%d%H%M%S")
    assert len(names) > 5
    assert names[:3] == [f"{local}000", f"{local}001", f"{local}002"]


def test_the_name_after_the_last_millisecond_of_a_year_and_after_a_name_that_is_not_a_time() -> None:
    assert next_name("20261231235959999", 0) == "20270101000000000"
    assert next_name("20269999999999999", 0) == "20270000000000000"


def test_records_of_rolled_back_transactions_have_no_keys(box: Box) -> None:
    properties = encode_properties({"KEYS": "k"})
    kinds = [Scanned(b"t", 0, 0, 100 * i, 100, 0, sys_flag, 1000, 1, properties) for i, sys_flag in enumerate((0, 0x4, 0x8, 0xC, 0xCF))]
    box.index.add_records(kinds, 500)
    assert box.find("t", "k") == [200, 100, 0]


# --- queries ---


def test_records_are_found_by_their_keys_and_tags(box: Box) -> None:
    records = make_records(60)
    box.add(records)
    for i, (topic, properties, physical, _) in enumerate(records):
        for name, key in (("unique", f"U{i:04X}"), ("key", f"k{i}")):
            assert (physical in box.find(topic, key)) == (b"KEYS" in properties), name
    shared = {r[2] for r in records if r[0] == "topic1" and b" shared" in r[1]}
    assert shared <= set(box.find("topic1", "shared"))
    tagged = {r[2] for r in records if r[0] == "topic1" and b"TagA" in r[1]}
    found = list(box.index.candidates(key_string("topic1", "TagA", tag=True)))
    assert tagged <= set(found)
    assert found == sorted(found, reverse=True)


def test_messages_just_offered_are_found(box: Box) -> None:
    box.index.offer([("t", encode_properties({"KEYS": "fresh"}), 7, 1000)], 107)
    assert box.find("t", "fresh") == [7]


def test_a_time_range_excludes_entries_a_second_outside(box: Box) -> None:
    records = [("t", encode_properties({"KEYS": "k"}), 10 * i, 10_000 + 1000 * i) for i in range(40)]
    box.add(records)
    assert box.find("t", "k", begin_ms=20_000, end_ms=30_000) == [*range(200, 90, -10)]
    assert box.find("t", "k", begin_ms=60_000) == []
    assert box.find("t", "k", end_ms=9_999) == []


def test_a_first_entry_long_after_the_last_file_has_its_own_time(make_box: Callable[..., Box]) -> None:
    box = make_box(entries=3)
    records = [("t", encode_properties({"KEYS": "k"}), 10 * i, 1000 + 100_000 * i) for i in range(6)]
    box.add(records)
    for i in range(6):
        time = 1000 + 100_000 * i
        assert box.find("t", "k", begin_ms=time, end_ms=time) == [10 * i]


@pytest.mark.parametrize("link", [-1, 1, 2, 3, 4, 20, 21, 22, 23, 26, 27, 0x7FFFFFFF])
@pytest.mark.parametrize("damaged", ["slot", "entry"])
def test_a_damaged_chain_ends_and_hides_nothing_unless_it_stays_in_its_slot(make_box: Callable[..., Box], damaged: str, link: int) -> None:
    box = make_box(slots=2, entries=64)
    box.add([("t", encode_properties({"KEYS": f"k{i % 4}"}), 10 * i, 1000) for i in range(26)])
    state = box.index.sync()
    box.index.close()
    path = next(box.root.iterdir())
    data = bytearray(path.read_bytes())
    slot = key_hash("t#k1") % 2
    head = unpack_from(">i", data, 40 + 4 * slot)[0]
    second = unpack_from(">i", data, 48 + 20 * head + 16)[0]
    pack_into(">i", data, 40 + 4 * slot if damaged == "slot" else 48 + 20 * second + 16, link)
    path.write_bytes(data)
    box.load(state)
    found = box.find("t", "k1")
    places = [10 * i for i in range(25, -1, -1) if i % 4 == 1]
    seen_before = head + 1 if damaged == "slot" else second
    if 0 < link < seen_before and unpack_from(">i", data, 48 + 20 * link)[0] % 2 == slot:
        assert set(found) <= set(places)
    else:
        assert found == places


def test_a_key_whose_slot_many_others_share_is_still_found(make_box: Callable[..., Box]) -> None:
    box = make_box(slots=1, entries=200_000)
    count = lookup.MAX_CHAIN_STEPS + index_file.BLOCK_ENTRIES + 100
    hashes = np.full(count, key_hash("t#T#hot"), np.int32)
    hashes[[5, 50, count - 1]] = key_hash("t#rare")
    places = np.arange(count) * 10
    entries = KeyEntries(hashes, places, np.full(count, 1000))
    box.index.add_entries(entries, count * 10)
    assert box.find("t", "rare") == [(count - 1) * 10, 500, 50]


# --- restarts ---


def test_a_synced_state_survives_a_restart(box: Box) -> None:
    records = make_records(60)
    box.add(records[:33])
    state = IndexState.decode(box.index.sync().encode())
    assert box.load(state) == 3300
    assert box.find("topic1", "k1") == [100]
    box.add(records[33:])
    box.index.sync()
    assert box.files() == Reference().put_all(records).files


@pytest.mark.parametrize("synced", [1, 8, 20, 33])
@pytest.mark.parametrize("wrote_slots", [False, True])
def test_entries_after_the_state_are_dropped_and_indexed_again(box: Box, synced: int, wrote_slots: bool) -> None:
    records = make_records(60)
    box.add(records[:synced])
    state = box.index.sync()
    for at in range(synced, 50, 3):
        box.add(records[at : at + 3])
    if wrote_slots:
        box.index.sync()
    position = box.load(state)
    assert position == synced * 100
    assert box.find("topic1", "k49") == []
    box.add(records[synced:])
    box.index.sync()
    assert box.files() == Reference().put_all(records).files


def test_files_of_a_cleanly_stopped_broker_are_kept(box: Box) -> None:
    records = make_records(60)
    box.add(records[:50])
    box.index.sync()
    modified = {path.name: path.stat().st_mtime_ns for path in box.root.iterdir()}
    assert box.load(None, log_end=6000, keys_at=reading(records)) == 4900
    assert {path.name: path.stat().st_mtime_ns for path in box.root.iterdir()} == modified
    box.add(records[40:])
    box.index.sync()
    assert box.files() == Reference().put_all(records).files


def test_a_file_cut_within_the_keys_of_a_record_gets_the_missing_ones(make_box: Callable[..., Box]) -> None:
    records = make_records(5)
    box = make_box(entries=64)
    reference = Reference(entries=64)
    for key in record_keys(*records[1][:2])[:2]:
        reference.put(key, *records[1][2:])
    (box.root / "20260101000000000").write_bytes(reference.files[0])
    assert box.load(log_min=100) == 100
    box.add(records[1:])
    box.index.sync()
    assert box.files() == Reference(entries=64).put_all(records[1:]).files


DAMAGE: dict[str, Callable[[bytearray], bytes]] = {
    "empty": lambda data: b"",
    "short": lambda data: bytes(data[:-1]),
    "long": lambda data: bytes(data) + b"\0",
    "zeros": lambda data: bytes(len(data)),
    "no entries": lambda data: bytes(data[:36]) + pack(">i", 1) + bytes(data[40:]),
    "more entries than fit": lambda data: bytes(data[:36]) + pack(">i", 13) + bytes(data[40:]),
    "negative count": lambda data: bytes(data[:36]) + pack(">i", -5) + bytes(data[40:]),
    "times turned round": lambda data: pack(">qq", 2, 1) + bytes(data[16:]),
    "places behind the log": lambda data: bytes(data[:24]) + pack(">q", 1 << 50) + bytes(data[32:]),
    "a slot": lambda data: bytes(data[:40]) + pack(">i", 11) + bytes(data[44:]),
    "a hash": lambda data: bytes(data[:88]) + pack(">i", -1) + bytes(data[92:]),
    "a place": lambda data: bytes(data[:112]) + pack(">q", 1 << 40) + bytes(data[120:]),
    "a chain": lambda data: bytes(data[:104]) + pack(">i", 9) + bytes(data[108:]),
    "a time": lambda data: bytes(data[:100]) + pack(">i", -9) + bytes(data[104:]),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("which", [0, 1])
def test_damaged_files_and_all_later_ones_are_made_again(box: Box, kind: str, which: int) -> None:
    records = make_records(30)
    box.add(records)
    state = box.index.sync()
    files = box.files()
    paths = sorted(box.root.iterdir())
    (box.root / "notes.txt").write_text("not ours")
    paths[which].write_bytes(DAMAGE[kind](bytearray(files[which])))
    start = box.load(None, log_end=3000)
    assert start == (0 if which == 0 else unpack_from(">q", files[0], 24)[0])
    assert sorted(path.name for path in box.root.iterdir()) == [*[path.name for path in paths[:which]], "notes.txt"]
    (box.root / "notes.txt").unlink()
    box.add(records[start // 100 :])
    assert len(state.files) == len(files)
    box.index.sync()
    assert box.files() == files


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_missing_files_are_made_again(box: Box, gone: int, noted: bool) -> None:
    records = make_records(30)
    box.add(records)
    state = box.index.sync()
    files = box.files()
    sorted(box.root.iterdir())[gone].unlink()
    start = box.load(state if noted else None, keys_at=reading(records))
    assert len(box.files()) == gone
    box.add(records[start // 100 :])
    box.index.sync()
    assert box.files() == files


def test_files_of_another_log_are_rejected(box: Box) -> None:
    box.add(make_records(30))
    box.index.sync()
    other = make_records(30, start=1000)
    assert box.load(None, log_end=3000, keys_at=reading(other)) == 0
    assert box.files() == []


@pytest.mark.parametrize("known", [True, False])
def test_files_keep_the_size_they_were_made_with(make_box: Callable[..., Box], known: bool) -> None:
    records = make_records(40)
    box = make_box()
    box.add(records[:30])
    state = box.index.sync()
    box.geometry = {"hash_slots": 5_000_000, "entries_per_file": 20_000_000}
    assert box.load(state if known else None) == (3000 if known else 2900)
    box.add(records[30:])
    box.index.sync()
    assert box.files() == Reference().put_all(records).files


def test_files_of_an_impossible_size_are_made_again(make_box: Callable[..., Box]) -> None:
    box = make_box()
    (box.root / "20260101000000000").write_bytes(b"\x07" * 1001)
    assert box.load() == 0
    assert box.files() == []


def test_expired_files_are_not_missed(box: Box) -> None:
    records = make_records(60)
    box.add(records)
    state = box.index.sync()
    removed = len(box.index.expire(3000))
    assert box.load(state, log_min=3000, log_end=6000) == 6000
    assert len(box.files()) == len(state.files) - removed


def test_entries_after_an_earlier_log_end_are_dropped(box: Box) -> None:
    records = make_records(60)
    box.add(records)
    state = box.index.sync()
    assert box.load(state, log_end=2150) == 2150
    assert box.find("topic1", "k22") == []
    box.add(records[22:])
    box.index.sync()
    assert box.files() == Reference().put_all(records).files
    box.index.cut(0)
    assert box.files() == []
    assert box.find("topic1", "k1") == []


def test_files_are_removed_when_all_their_records_have_left_the_log(box: Box) -> None:
    records = make_records(60)
    box.add(records)
    state = box.index.sync()
    removed = box.index.expire(3000)
    assert [path.rpartition("/")[2] for path in removed] == [file.name for file in state.files[: len(removed)]]
    assert 0 < len(removed) < len(state.files)
    assert box.find("topic2", "k32") == [3200]
    assert len(box.index.expire(1 << 40)) == len(state.files) - 1 - len(removed)
    assert box.load(box.index.sync(), log_min=5900, log_end=6000) == 6000


def test_entries_up_to_the_end_of_the_newest_full_file_no_longer_change(box: Box) -> None:
    assert box.index.full_until_ms == 0
    records = make_records(60)
    box.add(records)
    assert box.index.full_until_ms == unpack_from(">q", Reference().put_all(records).files[-2], 8)[0]


def test_bytes_that_are_not_a_state_are_rejected() -> None:
    state = IndexState(5, 7, 12, ())
    assert IndexState.decode(state.encode()) == state
    for data in (b"", b"KIX1", b"XXXX" + state.encode()[4:], state.encode() + b"x"):
        assert IndexState.decode(data) is None


def test_a_small_index_takes_little_disk_and_no_time(make_box: Callable[..., Box], without_arrays: None) -> None:
    box = make_box(slots=5_000_000, entries=20_000_000)
    box.add(make_records(3))
    box.index.sync()
    path = next(box.root.iterdir())
    assert path.stat().st_size == 40 + 4 * 5_000_000 + 20 * 20_000_000
    assert path.stat().st_blocks * 512 < 200_000
    assert "sprocketmq.storage.index.index_arrays" not in sys.modules


# --- disk errors ---


class RefusingFile:
    def __init__(self, file: Any, fs: "RefusingFileSystem") -> None:
        self.file = file
        self.fs = fs

    def __getattr__(self, name: str) -> Any:
        if name in self.fs.refuse:
            raise OSError(28, "No space left on device")
        if name in self.fs.holds:
            self.fs.holds[name].wait()
        return getattr(self.file, name)


class Hold:
    """A place where a thread stops until it may go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        self.go_on.wait()


class RefusingFileSystem(RealFileSystem):
    """Its files refuse the calls in ``refuse``, as a full disk does, and wait in those of ``held``, as a slow one does."""

    def __init__(self) -> None:
        self.refuse: set[str] = set()
        self.holds: dict[str, Hold] = {}

    @contextmanager
    def held(self, call: str) -> Iterator[Hold]:
        """Within, ``call`` waits; at the end it goes on."""
        hold = self.holds[call] = Hold()
        try:
            yield hold
        finally:
            del self.holds[call]
            hold.go_on.set()

    def open(self, path: str, **how: Any) -> Any:
        return RefusingFile(super().open(path, **how), self)


@pytest.mark.parametrize("call", ["pwrite", "truncate"])
def test_a_full_disk_stops_indexing_until_there_is_room(box: Box, call: str) -> None:
    fs = RefusingFileSystem()
    box.fs = fs
    box.load()
    records = make_records(60)
    box.index.offer(records[:20], 2000)
    state = box.index.sync()
    fs.refuse = {call}
    box.index.offer(records[20:40], 4000)
    assert box.index.sync() == state
    assert box.index.failure == "No space left on device"
    box.index.offer(records[40:50], 5000)
    assert box.index.lag() == (3000, 0)
    assert 100 in box.find("topic1", "k1")
    fs.refuse = set()
    assert box.index.resume() == 2000
    box.index.add_records(as_scanned(records[20:40]), 4000)
    assert not box.index.caught_up()
    box.index.add_records(as_scanned(records[40:50]), 5000)
    assert box.index.caught_up()
    box.index.offer(records[50:], 6000)
    box.index.sync()
    assert box.index.lag() == (0, 0)
    assert box.files() == Reference().put_all(records).files


def test_a_failing_sync_raises(box: Box) -> None:
    fs = RefusingFileSystem()
    box.fs = fs
    box.load()
    box.add(make_records(3))
    fs.refuse = {"fdatasync"}
    with pytest.raises(OSError, match="No space"):
        box.index.sync()


# --- keeping up ---


def test_a_large_backlog_is_indexed_at_once(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    import sprocketmq.storage.index.index_arrays  # noqa: F401

    records = make_records(20)
    box.index.offer(records[:10], 1000)
    assert box.index.lag()[0] == 1000
    monkeypatch.setattr(index_module, "MAX_PENDING_BYTES", 2000)
    box.index.offer(records[10:], 2000)
    assert box.index.lag()[0] == 0


def test_a_commit_indexes_only_several_thousand_messages_at_a_time(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    import sprocketmq.storage.index.index_arrays  # noqa: F401

    monkeypatch.setattr(index_module, "MAX_PENDING_BYTES", 1000)
    monkeypatch.setattr(index_module, "LEAST_INLINE_MESSAGES", 8)
    monkeypatch.setattr(index_module, "INLINE_MESSAGES", 8)
    records = make_records(40)
    box.index.offer([("t", strings_of([r[1] for r in records[:5]]), [r[2] for r in records[:5]], 1000), *records[5:30]], 3000)
    assert box.index.indexed_end == 800
    box.index.offer(records[30:], 4000)
    assert box.index.indexed_end == 1600
    box.index.drain()
    box.index.sync()
    assert box.index.indexed_end == 4000
    expected = [("t", properties, physical, 1000) for _, properties, physical, _ in records[:5]]
    assert box.files() == Reference().put_all(expected + records[5:]).files


def test_a_small_commit_indexes_less_than_a_large_one(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    import sprocketmq.storage.index.index_arrays  # noqa: F401

    limits = {"MAX_PENDING_SENDS": 32, "INLINE_FACTOR": 2, "LEAST_INLINE_MESSAGES": 4, "INLINE_MESSAGES": 16}
    for name, value in limits.items():
        monkeypatch.setattr(index_module, name, value)
    records = make_records(60)
    box.index.offer(records[:31], 3100)
    assert box.index.indexed_end == 0
    box.index.offer(records[31:32], 3200)
    assert box.index.indexed_end == 400
    box.index.offer(records[32:39], 3900)
    assert box.index.indexed_end == 1800
    box.index.offer(records[39:], 6000)
    assert box.index.indexed_end == 3400
    box.index.drain()
    box.index.sync()
    assert box.files() == Reference().put_all(records).files


def test_a_sync_leaves_a_long_backlog_and_a_restart_begins_with_it(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "INLINE_MESSAGES", 8)
    records = make_records(30)
    box.index.offer(records, 3000)
    state = box.index.sync()
    assert state.indexed_end == 800
    assert box.index.lag()[0] == 2200
    assert box.load(state, log_end=3000) == 800
    box.add(records[8:])
    box.index.sync()
    assert box.files() == Reference().put_all(records).files


def test_a_commit_does_not_wait_while_another_thread_writes_the_index(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    import sprocketmq.storage.index.index_arrays  # noqa: F401

    fs = RefusingFileSystem()
    box.fs = fs
    box.load()
    records = make_records(60)
    box.index.offer(records[:20], 2000)
    monkeypatch.setattr(index_module, "MAX_PENDING_BYTES", 1000)
    monkeypatch.setattr(index_module, "MAX_PENDING_BYTES_WHILE_BUSY", 4500)
    monkeypatch.setattr(index_module, "MAX_WAIT_S", 60)
    with fs.held("pwrite") as write:
        syncing = threading.Thread(target=box.index.sync)
        syncing.start()
        write.reached.wait()
        box.index.offer(records[20:40], 4000)
        assert box.index.lag()[0] == 4000
        too_many = threading.Thread(target=box.index.offer, args=(records[40:50], 5000))
        too_many.start()
        too_many.join(0.05)
        assert too_many.is_alive()
    syncing.join()
    too_many.join()
    assert box.index.lag()[0] == 0
    box.index.offer(records[50:], 6000)
    assert box.index.lag()[0] == 0
    box.index.sync()
    assert box.files() == Reference().put_all(records).files


def test_a_commit_waits_only_so_long_for_another_thread_that_writes_the_index(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    import sprocketmq.storage.index.index_arrays  # noqa: F401

    fs = RefusingFileSystem()
    box.fs = fs
    box.load()
    records = make_records(60)
    box.index.offer(records[:20], 2000)
    monkeypatch.setattr(index_module, "MAX_PENDING_BYTES_WHILE_BUSY", 3000)
    monkeypatch.setattr(index_module, "MAX_PENDING_BYTES", 3000)
    monkeypatch.setattr(index_module, "MAX_WAIT_S", 0)
    with fs.held("pwrite") as write:
        syncing = threading.Thread(target=box.index.sync)
        syncing.start()
        write.reached.wait()
        box.index.offer(records[20:40], 4000)
        assert box.index.behind
        box.index.offer(records[40:50], 5000)
        assert box.index.lag()[0] == 5000
    syncing.join()
    assert box.index.failure is None
    assert box.index.lag()[0] == 3000
    assert box.index.resume() == 2000
    box.index.add_records(as_scanned(records[20:50]), 5000)
    assert box.index.caught_up()
    box.index.offer(records[50:], 6000)
    box.index.sync()
    assert box.index.lag() == (0, 0)
    assert box.files() == Reference().put_all(records).files


def test_arrays_are_loaded_in_a_thread_while_messages_wait(box: Box, without_arrays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(numpy_loading, "load_arrays", go_on.wait)
    records = make_records(30)
    much = index_module.MAX_PENDING_BYTES
    box.index.offer(records[:10], much)
    box.index.offer(records[10:20], much + 1000)
    assert box.index.lag()[0] == much + 1000
    go_on.set()
    loader = box.index._loader.thread
    assert loader is not None
    loader.join()
    box.index.offer(records[20:], much + 2000)
    assert box.index.lag()[0] == 0
    box.index.sync()
    assert box.files() == Reference().put_all(records).files


def test_hostile_property_strings_are_indexed_in_slices(make_box: Callable[..., Box]) -> None:
    import sprocketmq.storage.index.index_arrays  # noqa: F401

    box = make_box(slots=64, entries=700_000)
    properties = b"KEYS\x01" + b"a " * 16_000 + b"\x02"
    box.add([("t", properties, 10 * i, 1000) for i in range(40)])
    assert box.index._files.files[-1].header.next_entry == 1 + 40 * 16_000
    assert next(iter(box.index.candidates("t#a"))) == 390
