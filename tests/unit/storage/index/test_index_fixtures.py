"""Index files of Apache's broker: made again from its logs they are identical, and they are kept as they are."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any

import pytest
from tests.recorded_stores import STORES, unpack

from sprocketmq.clock import ManualClock
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.index.key_index import KeyIndex
from sprocketmq.storage.index.record_keys import key_hash, record_keys
from sprocketmq.storage.index.search import Kind, find_records
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.log.recovery import LogScan, Scanned

NAMES = ["plain", "propcrc", "crash", "crash-lag", "compressed", "delay-retry", "batchcq"]
SLOTS, ENTRIES = 64, 256


class Fixture:
    """One of Apache's stores, its records, and an index in a given directory."""

    def __init__(self, name: str, to: Path) -> None:
        self.root = unpack(name, to)
        self.listing = json.loads((STORES / f"{name}.expected.json").read_text(encoding="utf-8"))
        self.log = CommitLog(REAL_FS, str(self.root / "commitlog"), 65536, preallocate=False)
        self.log.load()
        scan = LogScan(self.log, 0, check_crc=True, resync=False)
        self.records: list[Scanned] = [record for batch in scan.batches() for record in batch]
        self.end = scan.end
        self.index = self.new_index(self.root / "index")

    def new_index(self, directory: Path) -> KeyIndex:
        return KeyIndex(REAL_FS, str(directory), hash_slots=SLOTS, entries_per_file=ENTRIES, clock=ManualClock())

    def index_files(self) -> list[bytes]:
        return read_all(self.root / "index")

    def record_at(self, physical: int) -> memoryview | None:
        segment = self.log.find(physical)
        assert segment is not None
        at = physical - segment.start
        return segment.view[at : at + unpack_from(">i", segment.view, at)[0]]

    def keys_at(self, physical: int) -> tuple[list[int], int] | None:
        for record, following in zip(self.records, [*(r.log_offset for r in self.records[1:]), self.end], strict=True):
            if record.log_offset == physical:
                return [key_hash(key) for key in record_keys(record.topic.decode(), record.properties)], following
        return None

    def messages(self, topic: str) -> list[dict[str, Any]]:
        return [message for queue in self.listing["topics"][topic]["queues"].values() for message in queue["messages"]]

    def close(self) -> None:
        self.index.close()
        self.log.close()


def is_batch(topic: dict[str, Any]) -> bool:
    return topic["attributes"].get("queue.type") == "BatchCQ"


def read_all(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.iterdir())]


@pytest.fixture
def open_fixture(tmp_path: Path) -> Iterator[Callable[[str], Fixture]]:
    opened: list[Fixture] = []

    def open_one(name: str) -> Fixture:
        opened.append(Fixture(name, tmp_path))
        return opened[-1]

    yield open_one
    for fixture in opened:
        fixture.close()


@pytest.mark.parametrize("portion", [1, 7, 1000])
@pytest.mark.parametrize("name", NAMES)
def test_an_index_made_from_the_log_is_identical(open_fixture: Callable[[str], Fixture], tmp_path: Path, name: str, portion: int) -> None:
    fixture = open_fixture(name)
    theirs = fixture.index_files()
    (end,) = unpack_from(">q", theirs[-1], 24)
    ours = fixture.new_index(tmp_path / "ours")
    ours.load(log_min=0, log_end=fixture.end, state=None)
    records = [record for record in fixture.records if record.log_offset <= end]
    for at in range(0, len(records), portion):
        ours.add_records(records[at : at + portion], fixture.end)
    ours.sync()
    ours.close()
    assert read_all(tmp_path / "ours") == theirs


@pytest.mark.parametrize("name", NAMES)
def test_apaches_files_are_kept_and_continued(open_fixture: Callable[[str], Fixture], tmp_path: Path, name: str) -> None:
    fixture = open_fixture(name)
    theirs = fixture.index_files()
    start = fixture.index.load(log_min=0, log_end=fixture.end, state=None, keys_at=fixture.keys_at)
    assert start == unpack_from(">q", theirs[-1], 24)[0]
    assert fixture.index_files() == theirs
    fixture.index.add_records([record for record in fixture.records if record.log_offset >= start], fixture.end)
    fixture.index.sync()
    again = fixture.new_index(tmp_path / "again")
    again.load(log_min=0, log_end=fixture.end, state=None)
    again.add_records(fixture.records, fixture.end)
    again.sync()
    again.close()
    assert fixture.index_files() == read_all(tmp_path / "again")


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_found_where_apaches_tools_find_them(open_fixture: Callable[[str], Fixture], name: str) -> None:
    fixture = open_fixture(name)
    start = fixture.index.load(log_min=0, log_end=fixture.end, state=None)
    fixture.index.add_records([record for record in fixture.records if record.log_offset >= start], fixture.end)
    queries = fixture.listing["keyQueries"]
    assert queries
    for query in queries:
        found = find_records(
            fixture.index, fixture.record_at, query["topic"], query["key"], max_count=64, begin_ms=0, end_ms=1 << 62, kind=Kind.KEY
        )
        wanted = query.get("commitLogOffsets", [])
        if not wanted and not is_batch(fixture.listing["topics"][query["topic"]]):
            # Apache's recovery dropped an index file and did not index all of its records again; ours does.
            assert name.startswith("crash")
            wanted = [message["commitLogOffset"] for message in fixture.messages(query["topic"]) if query["key"] in message["keys"].split()]
        assert [unpack_from(">q", record, 28)[0] for record in found] == wanted, query


@pytest.mark.parametrize("name", ["plain", "batchcq"])
def test_tags_and_unique_keys_are_found(open_fixture: Callable[[str], Fixture], name: str) -> None:
    fixture = open_fixture(name)
    fixture.index.load(log_min=0, log_end=fixture.end, state=None)

    def find(topic: str, key: str, kind: Kind) -> list[int]:
        found = find_records(fixture.index, fixture.record_at, topic, key, max_count=1000, begin_ms=0, end_ms=1 << 62, kind=kind)
        return [unpack_from(">q", record, 28)[0] for record in found]

    for topic, entry in fixture.listing["topics"].items():
        if is_batch(entry):
            continue  # the messages in the listing are inside batches
        messages = fixture.messages(topic)
        for message in messages:
            assert message["commitLogOffset"] in find(topic, message["msgId"], Kind.KEY)
        for tag in {message["tags"] for message in messages if message["tags"]}:
            assert find(topic, tag, Kind.TAG) == sorted(m["commitLogOffset"] for m in messages if m["tags"] == tag)


def test_a_copy_beside_another_log_is_rejected(open_fixture: Callable[[str], Fixture], tmp_path: Path) -> None:
    fixture = open_fixture("plain")
    shutil.rmtree(fixture.root / "index")
    shutil.copytree(unpack("delay-retry", tmp_path / "other") / "index", fixture.root / "index")
    assert fixture.index.load(log_min=0, log_end=fixture.end, state=None, keys_at=fixture.keys_at) == 0
    assert fixture.index_files() == []
