"""A replica that gets the log of a store of Apache's broker makes that broker's queue files and index files, byte for byte."""

import random
from pathlib import Path

import pytest
from tests.recorded_stores import unpack

from sprocketmq.storage.config import ConfigFile
from sprocketmq.storage.store import MessageStore, StoreConfig

SIZES = {
    "commitlog_segment_bytes": 65536,
    "consumequeue_segment_bytes": 1000,
    "batchqueue_segment_bytes": 460,
    "max_hash_slots": 64,
    "max_index_entries": 256,
}


def queue_files(root: Path) -> dict[Path, bytes]:
    return {path.relative_to(root): path.read_bytes() for path in root.glob("*consumequeue/*/*/*") if path.is_file()}


def index_files(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


@pytest.mark.parametrize("piece_bytes", [777, 32768])
@pytest.mark.parametrize("name", ["plain", "propcrc", "compressed", "delay-retry", "batchcq"])
def test_queues_and_index_are_apaches(name: str, piece_bytes: int, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    queues, index = queue_files(root), index_files(root)
    master = MessageStore(StoreConfig(root, **SIZES))
    master.open()
    (tmp_path / "replica" / "config").mkdir(parents=True)
    topics = ConfigFile(root / "config/topics.json").load()
    assert topics is not None
    ConfigFile(tmp_path / "replica/config/topics.json").save(topics)
    store = MessageStore(StoreConfig(tmp_path / "replica", **SIZES))
    store.open()
    for topic in master.batch_topics:
        store.declare_batch_topic(topic)
    replica = store.follow()
    rng = random.Random(name)
    while data := master.raw(replica.end, piece_bytes):
        replica.append(replica.end, data)
        while rng.random() < 0.7 and replica.dispatch(1 << 20):
            pass
    store.close()
    assert queue_files(tmp_path / "replica") == queues
    assert index_files(tmp_path / "replica") == index
    end = master.commitlog_max_offset
    for start, size, path in master.segments():
        if start < end:
            held = min(size, end - start)
            assert (tmp_path / "replica" / "commitlog" / Path(path).name).read_bytes()[:held] == Path(path).read_bytes()[:held]
    master.close()
