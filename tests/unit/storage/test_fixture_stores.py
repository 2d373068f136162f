"""Stores written by Apache's broker open and read equal to what Apache's own tools list from them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.recorded_stores import STORES, unpack

from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.records import ReceivedMessage, decode_records
from sprocketmq.storage.config import ConfigFile, dump_pretty
from sprocketmq.storage.store import MessageStore, StoreConfig

NAMES = ["plain", "propcrc", "crash", "crash-lag", "compressed", "delay-retry", "batchcq"]
CLEAN = {"plain", "propcrc", "compressed", "delay-retry", "batchcq"}


def expected(name: str) -> dict[str, Any]:
    return json.loads((STORES / f"{name}.expected.json").read_text(encoding="utf-8"))


def is_batch(topic: dict[str, Any]) -> bool:
    return topic["attributes"].get("queue.type") == "BatchCQ"


def read_all(store: MessageStore, topic: str, queue: int, count: int) -> list[ReceivedMessage]:
    offset = store.min_offset(topic, queue)
    found: list[ReceivedMessage] = []
    while offset < store.max_offset(topic, queue):
        result = store.read(topic, queue, offset, max_count=count)
        offset = result.next_offset
        for buffer in result.buffers:
            found += decode_records(buffer, verify_crc=True)
    return found


def as_listed(m: ReceivedMessage) -> dict[str, Any]:
    """The message in the words of the listing, which is what a Java client shows; one of an inner batch has no size, CRC and place there."""
    inner = m.sys_flag & 0xC0 == 0xC0
    return {
        "queueOffset": m.queue_offset,
        "msgId": m.msg_id,
        "offsetMsgId": None if inner else m.offset_msg_id,
        "commitLogOffset": m.commitlog_offset,
        "storeSize": 0 if inner else m.store_size,
        "topic": m.topic,
        "queueId": m.queue_id,
        "flag": m.flag,
        "sysFlag": m.sys_flag & ~1,
        "bornTimestamp": m.born_timestamp_ms,
        "storeTimestamp": m.store_timestamp_ms,
        "bornHost": m.born_host,
        "storeHost": m.store_host,
        "bodyCRC": 0 if inner else m.body_crc,
        "reconsumeTimes": m.reconsume_times,
        "preparedTransactionOffset": m.prepared_offset,
        "tags": m.tag,
        "keys": m.properties.get("KEYS"),
        "bodyLength": len(m.body),
        "bodySha256": hashlib.sha256(m.body).hexdigest(),
        "properties": m.properties,
    }


def check_equal_to_listing(store: MessageStore, listing: dict[str, Any]) -> None:
    for topic, entry in listing["topics"].items():
        for queue_id, queue in entry["queues"].items():
            at = (topic, int(queue_id))
            assert (store.min_offset(*at), store.max_offset(*at)) == (queue["minOffset"], queue["maxOffset"])
            for count in (1, 32):
                messages = read_all(store, *at, count)
                assert len(messages) == len(queue["messages"])
                for message, wanted in zip(messages, queue["messages"], strict=True):
                    listed = {key: value for key, value in wanted.items() if key != "body"}
                    listed |= {key: listed[key].removeprefix("/") for key in ("bornHost", "storeHost")}  # Java's way to print an address
                    ours = {key: value for key, value in as_listed(message).items() if key in listed}
                    assert ours == listed
            if queue["messages"]:
                last = queue["messages"][-1]
                assert store.store_time(*at, last["queueOffset"]) == last["storeTimestamp"] == queue["lastUpdateTimestamp"]


@pytest.mark.parametrize("name", NAMES)
def test_every_message_offset_id_and_property_equals_the_listing(name: str, tmp_path: Path) -> None:
    listing = expected(name)
    root = unpack(name, tmp_path)
    store = MessageStore(StoreConfig(root))
    report = store.open()
    assert report.clean == (name in CLEAN)
    assert report.damaged == []
    check_equal_to_listing(store, listing)
    assert {t for t in store.topics_on_disk() if t in listing["topics"]} == {
        t for t, entry in listing["topics"].items() if any(q["messages"] for q in entry["queues"].values())
    }
    assert {t for t in store.topics_on_disk() if t in store.batch_topics} == {
        t for t, entry in listing["topics"].items() if is_batch(entry)
    }
    store.close()
    again = MessageStore(StoreConfig(root))
    report = again.open()
    assert (report.clean, report.rebuilt, report.records) == (True, False, 0)
    check_equal_to_listing(again, listing)
    again.close()


@pytest.mark.parametrize("name", ["plain", "propcrc", "compressed", "delay-retry", "batchcq"])
def test_our_queue_files_are_apaches_byte_for_byte(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)

    def queue_files() -> dict[Path, bytes]:
        return {path.relative_to(root): path.read_bytes() for path in root.glob("*consumequeue/*/*/*") if path.is_file()}

    before = queue_files()
    log = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    for path in before:
        (root / path).unlink()
    sizes = {"commitlog_segment_bytes": 65536, "consumequeue_segment_bytes": 1000, "batchqueue_segment_bytes": 460}
    store = MessageStore(StoreConfig(root, **sizes))
    assert store.open().rebuilt
    store.close()
    assert queue_files() == before
    assert {path.name for path in (root / "commitlog").iterdir()} == set(log)
    assert all((root / "commitlog" / path).read_bytes() == data for path, data in log.items())


@pytest.mark.parametrize("name", ["crash", "crash-lag"])
def test_recovered_queue_files_hold_no_leftovers(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    store = MessageStore(StoreConfig(root))
    store.open()
    store.close()
    for topic, entry in expected(name)["topics"].items():
        for queue_id, queue in entry["queues"].items():
            kind, unit = ("batchconsumequeue", 46) if is_batch(entry) else ("consumequeue", 20)
            files = sorted((root / kind / topic / queue_id).glob("*"))
            data = b"".join(path.read_bytes() for path in files)
            records = {message["commitLogOffset"] for message in queue["messages"]}
            end = len(records) * unit
            assert not data[end:].strip(b"\0")
            assert [int.from_bytes(data[at : at + 8], "big") for at in range(0, end, unit)] == sorted(records)


def test_batch_and_plain_queues_of_a_store_keep_apart(tmp_path: Path) -> None:
    root = unpack("batchcq", tmp_path)
    store = MessageStore(StoreConfig(root))
    store.open()
    store.close()
    batch_topics = {path.name for path in (root / "batchconsumequeue").iterdir()}
    assert batch_topics == {"Bcq1", "BcqAuto", "BcqSingle"}
    assert batch_topics.isdisjoint(path.name for path in (root / "consumequeue").iterdir())


def test_an_apache_batch_topic_goes_on_with_its_own_file_sizes(tmp_path: Path) -> None:
    root = unpack("batchcq", tmp_path)
    store = MessageStore(StoreConfig(root))
    store.open()
    host = b"\x7f\0\0\1\0\0\0\1"
    for i in range(30):
        body = encode_batch([(0, b"new", b"")] * 3)
        placed = store.stage_inner_batch("BcqAuto", 0, body, b"UNIQ_KEY\x01u", count=3, tags_code=0, born_timestamp_ms=1, born_host=host)
        assert placed[0] == 450 + 3 * i
        store.commit()
    store.close()
    assert {path.stat().st_size for path in root.glob("batchconsumequeue/*/*/*")} == {460}
    again = MessageStore(StoreConfig(root))
    assert again.open().records == 0
    messages = read_all(again, "BcqAuto", 0, 32)
    assert [m.queue_offset for m in messages] == list(range(540))
    again.close()


def test_an_apache_store_goes_on_with_its_own_file_sizes(tmp_path: Path) -> None:
    root = unpack("plain", tmp_path)
    store = MessageStore(StoreConfig(root))
    store.open()
    listing = expected("plain")
    end = listing["topics"]["PlainA"]["queues"]["0"]["maxOffset"]
    host = b"\x7f\0\0\1\0\0\0\1"
    for i in range(200):
        placed = store.stage_message(
            "PlainA", 0, b"x" * 2000, b"TAGS\x01new\x02", tags_code=tags_code("new"), born_timestamp_ms=1, born_host=host
        )
        assert placed[0] == end + i
        store.commit()
    store.close()
    assert {path.stat().st_size for path in (root / "commitlog").iterdir()} == {65536}
    assert {path.stat().st_size for path in (root / "consumequeue").rglob("*") if path.is_file()} == {1000}
    again = MessageStore(StoreConfig(root))
    again.open()
    messages = read_all(again, "PlainA", 0, 32)
    assert [m.queue_offset for m in messages] == list(range(end + 200))
    again.close()


@pytest.mark.parametrize("name", NAMES)
def test_consumer_offsets_and_topics_are_read_from_apaches_files(name: str, tmp_path: Path) -> None:
    listing = expected(name)
    root = unpack(name, tmp_path)
    offsets = ConfigFile(root / "config" / "consumerOffset.json").load()
    assert offsets is not None
    table = {
        group: {
            f"{key.partition('@')[0]}@{queue}": at
            for key, queues in offsets["offsetTable"].items()
            if key.endswith("@" + group)
            for queue, at in queues.items()
        }
        for group in {key.partition("@")[2] for key in offsets["offsetTable"]}
    }
    assert {group: at for group, at in table.items() if group != "CID_RMQ_SYS_TRANS"} == listing["consumerOffsets"]
    topics = ConfigFile(root / "config" / "topics.json").load()
    assert topics is not None
    for name, topic in listing["topics"].items():
        ours = topics["topicConfigTable"][name]
        assert (ours["readQueueNums"], ours["writeQueueNums"], ours["perm"]) == (
            topic["readQueueNums"],
            topic["writeQueueNums"],
            topic["perm"],
        )


def test_delay_offsets_are_read_from_apaches_file(tmp_path: Path) -> None:
    root = unpack("delay-retry", tmp_path)
    offsets = ConfigFile(root / "config" / "delayOffset.json").load()
    assert offsets is not None
    store = MessageStore(StoreConfig(root))
    store.open()
    for level, offset in offsets["offsetTable"].items():
        assert 0 <= offset <= store.max_offset("SCHEDULE_TOPIC_XXXX", level - 1)
    # The two messages of level 18 wait, all others were delivered.
    undelivered = {level: store.max_offset("SCHEDULE_TOPIC_XXXX", level - 1) - offset for level, offset in offsets["offsetTable"].items()}
    assert undelivered == {level: 2 if level == 18 else 0 for level in undelivered}
    store.close()


@pytest.mark.parametrize("name", NAMES)
def test_configuration_files_are_written_as_apache_writes_them(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    files = sorted((root / "config").glob("*.json"))
    assert len(files) >= 5
    for path in files:
        value = ConfigFile(path).load()
        assert value is not None
        assert dump_pretty(value) == path.read_bytes()
