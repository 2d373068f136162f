"""The page Store: what brokers tell of their logs, and which texts of other versions stay unknown."""

import pytest
from tests.unit.web.reading import by_broker, reader_over

from sprocketmq import Message, Producer
from sprocketmq.errors import BrokerError, ConnectFailed
from sprocketmq.web.api import store

# What an Apache 5.5.0 broker answers to 28 and 26, as far as the page reads it.
APACHE_RUNTIME = {
    "brokerVersionDesc": "V5_5_0",
    "commitLogMinOffset": "1073741824",
    "commitLogMaxOffset": "3221225600",
    "commitLogDirCapacity": "Total : 252.0 GiB, Free : 231.0 GiB.",
    "commitLogDiskRatio": "0.08",
    "earliestMessageTimeStamp": "1700000000000",
    "dispatchBehindBytes": "0",
    "remainHowManyDataToFlush": "606 B",
}
APACHE_CONFIG = {"mappedFileSizeCommitLog": "1073741824", "fileReservedTime": "72", "deleteWhen": "04", "diskMaxUsedSpaceRatio": "75"}


async def test_our_broker_tells_its_segments_queues_and_index(cluster, visitor):
    async with Producer("pg", namesrv=cluster.namesrv) as producer:
        await producer.send(Message("kept", b"x" * 100, keys=["k"]))
    (found,) = (await visitor.get("/api/stores")).json()["stores"]
    assert found["own"]
    assert found["problem"] == ""
    assert found["segment_count"] == 1
    (segment,) = found["segments"]
    assert segment["bytes"] == found["log_bytes"] > 100
    assert segment["expires_ms"] == segment["written_ms"] + found["keep_ms"]
    assert found["queue_count"] >= 1
    assert found["index_room"] is None or found["index_room"] >= found["index_entries"]
    assert found["disk_total"] > found["disk_free"] > 0
    assert found["earliest_ms"] > 0


def test_an_apache_broker_has_what_it_tells_and_the_rest_is_unknown():
    found = store.store_of(APACHE_RUNTIME, APACHE_CONFIG)
    assert found["own"] is False
    assert found["segments"] is None
    assert found["index_entries"] is None
    assert found["queue_count"] is None
    assert found["segment_count"] == 3
    assert found["keep_ms"] == 72 * 3_600_000
    assert (found["disk_total"], found["disk_free"]) == (252 << 30, 231 << 30)
    assert found["log_bytes"] == 3221225600 - 1073741824


def test_without_anything_all_is_unknown():
    found = store.store_of({}, {})
    told = {name: value for name, value in found.items() if value not in (None, "", False)}
    assert told == {}


@pytest.mark.parametrize(
    "text",
    ["", "Total : NaN GiB, Free : 1 GiB.", "Total : 1.2.3 GiB, Free : 1 GiB.", "Total : 1 XiB, Free : 1 GiB.", "1" * 10_000],
)
def test_other_texts_of_a_capacity_are_unknown(text):
    assert store.capacity_of(text) == (None, None)


@pytest.mark.parametrize("text", ["", "1", "1,2", "1,2,x", "1,2,3,4", "a,b,c;1,2,3"])
def test_other_texts_of_segments_are_unknown(text):
    assert store.segments_of(text, 1000) is None


def test_a_segment_expires_when_it_was_last_written_long_enough_ago():
    assert store.segments_of("0,100,5000;100,20,9000", 1000) == [
        {"start": 0, "bytes": 100, "written_ms": 5000, "expires_ms": 6000},
        {"start": 100, "bytes": 20, "written_ms": 9000, "expires_ms": 10000},
    ]
    assert store.segments_of("0,1,5", None) == [{"start": 0, "bytes": 1, "written_ms": 5, "expires_ms": None}]


async def test_brokers_that_do_not_answer_have_their_problem_and_the_others_their_figures():
    reader, _, _ = reader_over(
        "a",
        "b",
        timeout_s=30,
        broker_runtime=by_broker(a=APACHE_RUNTIME, b=ConnectFailed("b:10911", "broker", "refused")),
        broker_config=BrokerError(16, "no right"),
    )
    first, second = (await store.list_stores(reader))["stores"]
    assert first["log_end"] == 3221225600
    assert first["keep_ms"] is None
    assert "refused" in second["problem"]
