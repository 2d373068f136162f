"""Committed offsets, and the offsets of queues."""

import asyncio
import json

import pytest

from sprocketmq.broker import cold_reads, offsets
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.clock import ManualClock
from sprocketmq.protocol.bodies import ConsumerOffsets
from sprocketmq.storage.queues import cold_reads as storage_reads
from sprocketmq.storage.store import MessageStore
from sprocketmq.testing import eventually


def commit_ext(offset, *, group="cg", topic="orders", queue=0):
    return {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}


def query_ext(*, group="cg", topic="orders", queue=0, **more):
    return {"consumerGroup": group, "topic": topic, "queueId": str(queue), **more}


async def test_a_committed_offset_is_found_again(ask, broker):
    broker.groups.find("cg")
    assert (await ask(15, commit_ext(7))).code == 0
    assert (await ask(14, query_ext())).ext == {"offset": "7"}
    assert (await ask(15, commit_ext(3))).code == 0
    assert (await ask(14, query_ext())).ext == {"offset": "3"}


async def test_an_offset_that_a_slave_hands_over_counts_when_it_is_higher(ask, broker):
    broker.groups.find("cg")
    for offset, known in ((7, "7"), (6, "7"), (8, "8")):
        assert (await ask(15, {**commit_ext(offset), "handedOver": "true"})).code == 0
        assert (await ask(14, query_ext())).ext == {"offset": known}


async def test_an_unknown_offset_is_zero_on_a_young_queue_and_else_not_found(ask):
    answer = await ask(14, query_ext())
    assert (answer.code, answer.remark) == (22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
    await ask.send("orders")
    assert (await ask(14, query_ext())).ext == {"offset": "0"}
    answer = await ask(14, query_ext(setZeroIfNotFound="false"))
    assert (answer.code, answer.remark) == (22, "Not found, do not set to zero, maybe this group boot first")
    assert (await ask(14, query_ext(queue=1))).code == 22
    assert (await ask(14, query_ext(topic="unknown"))).code == 22
    assert (await ask(14, query_ext(queue=-1))).code == 22


async def test_a_queue_whose_first_message_is_far_back_is_not_young(ask, broker, monkeypatch):
    await ask.send("orders", bytes(1000))
    monkeypatch.setattr(offsets, "YOUNG_BYTES", 500)
    assert (await ask(14, query_ext())).code == 22


@pytest.fixture
async def restarted(broker, ask, start_broker, connect):
    """Store a message in the first queue of ``orders`` and one of ``lists`` before and others after them, and start the broker anew: with
    it, units are in files only."""

    async def restart():
        broker.topics.create_internal("lists", 1, attributes={"queue.type": "BatchCQ"})
        for topic in ("others", "orders", "lists", "others"):
            await ask.send(topic, bytes(1000))
        await broker.stop()
        return await connect(await start_broker(like=broker))

    return restart


@pytest.mark.parametrize("topic", ["orders", "lists"])
@pytest.mark.parametrize("young", [True, False])
async def test_whether_a_queue_is_young_waits_for_the_disk_and_no_other_request_does(restarted, cold_disk, monkeypatch, topic, young):
    ask = await restarted()
    monkeypatch.setattr(offsets, "YOUNG_BYTES", 4000 if young else 500)
    looks = []
    monkeypatch.setattr(storage_reads, "cached_part", lambda *_: bool(looks) or looks.append(1))
    waiting = asyncio.ensure_future(ask(14, query_ext(topic=topic)))
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("others")).code == 0
    assert not waiting.done()
    cold_disk.go.set()
    answer = await waiting
    assert (answer.code, answer.ext.get("offset")) == ((0, "0") if young else (22, None))


async def test_a_short_log_is_young_without_a_look(ask, broker, cold_disk):
    await ask.send("orders", bytes(1000))
    assert (await ask(14, query_ext())).ext == {"offset": "0"}
    assert not cold_disk.began


async def test_questions_about_young_queues_that_wait_for_the_disk_are_limited(restarted, cold_disk, monkeypatch, caplog):
    ask = await restarted()
    monkeypatch.setattr(offsets, "YOUNG_BYTES", 500)
    monkeypatch.setattr(cold_reads, "MAX_WAITING", 1)
    monkeypatch.setattr(storage_reads, "cached_part", lambda *_: False)
    waiting = asyncio.ensure_future(ask(14, query_ext()))
    await eventually(lambda: cold_disk.began)
    assert (await ask(14, query_ext())).code == 2

    def fails(*_):
        raise OSError("no disk")

    monkeypatch.setattr(MessageStore, "units", fails)
    cold_disk.go.set()
    answer = await waiting
    assert (answer.code, answer.remark) == (1, "internal error: OSError: no disk")
    assert "queue 0 of topic orders" in caplog.text


@pytest.mark.parametrize(
    ("ext", "code", "remark"),
    [
        (commit_ext(1, group="nosuch"), 26, "Group nosuch not exist!"),
        (commit_ext(1, topic="nosuch"), 17, "Topic nosuch not exist!"),
        (commit_ext(1, queue=4), 29, "queueId[4] is illegal, topic:[orders]"),
        (commit_ext(1, queue=-1), 29, "queueId[-1] is illegal, topic:[orders]"),
        (commit_ext(-1), 29, "commitOffset[-1] is illegal"),
    ],
)
async def test_refused_commits(ask, broker, ext, code, remark):
    broker.groups.find("cg")
    answer = await ask(15, ext)
    assert (answer.code, answer.remark) == (code, remark)


async def test_offsets_are_saved_in_the_references_layout(ask, broker, start_broker, connect, tmp_path):
    broker.groups.find("cg")
    await ask(15, commit_ext(7))
    await ask(15, commit_ext(9, queue=3))
    await ask.close()
    await broker.stop()
    text = (tmp_path / "store/config/consumerOffset.json").read_text()
    assert '"orders@cg":{\n\t\t\t0:7,\n\t\t\t3:9\n\t\t}' in text
    again = await start_broker()
    other = await connect(again)
    assert (await other(14, query_ext(queue=3))).ext == {"offset": "9"}


async def test_offsets_are_saved_while_the_broker_runs(ask, broker, tmp_path):
    broker.groups.find("cg")
    await ask(15, commit_ext(7))
    broker.files.save_offsets()
    await broker.files.offsets.saved()
    assert "0:7" in (tmp_path / "store/config/consumerOffset.json").read_text()
    assert not broker.offsets.dirty


async def test_the_whole_table_can_be_asked_for(ask, broker):
    broker.groups.find("cg")
    await ask(15, commit_ext(7))
    table = ConsumerOffsets.decode((await ask(43)).body)
    assert table.offset_table == {"orders@cg": {0: 7}}
    assert table.group_topic_map == {"cg": ["orders"]}


def test_older_files_have_only_offsets():
    table = OffsetTable(ManualClock())
    table.load(json.loads('{"offsetTable":{"orders@cg":{"0":5}}}'))
    assert table.get("cg", "orders", 0) == 5
    assert table.topics_of("cg") == ["orders"]


def test_deleted_topics_and_groups_leave_nothing():
    table = OffsetTable(ManualClock())
    for topic in ("a", "b"):
        for group in ("x", "y"):
            table.commit(group, topic, 0, 1)
            table.note_pulled(group, topic, 0, 1)
    table.drop_topic("a")
    table.drop_group("y")
    assert [(topic, group) for topic, group, _ in table] == [("b", "x")]
    assert table.pulled("y", "b", 0) is None


def test_the_version_moves_every_500_commits():
    table = OffsetTable(ManualClock())
    for offset in range(1, 1001):
        table.commit("g", "t", 0, offset)
    assert table.data_version.counter == 2
    table.dirty = False
    table.commit("g", "t", 0, 1000)
    assert not table.dirty


# --- offsets of queues --------------------------------------------------------------------------------------------------


async def test_the_ends_of_a_queue(ask):
    for _ in range(3):
        await ask.send("orders", queue=1)
    assert (await ask(30, {"topic": "orders", "queueId": "1", "committed": "true"})).ext == {"offset": "3"}
    assert (await ask(31, {"topic": "orders", "queueId": "1"})).ext == {"offset": "0"}


@pytest.mark.parametrize(
    "ext", [{"topic": "unknown", "queueId": "0"}, {"topic": "orders", "queueId": "99"}, {"topic": "orders", "queueId": "-1"}]
)
async def test_unknown_queues_have_offset_zero(ask, ext):
    assert (await ask(30, ext)).ext == {"offset": "0"}
    assert (await ask(31, ext)).ext == {"offset": "0"}
    assert (await ask(29, {**ext, "timestamp": "1"})).ext == {"offset": "0"}
    assert (await ask(32, ext)).ext == {"timestamp": "-1"}


async def test_offsets_by_time(ask, clock):
    times = []
    for _ in range(3):
        clock.advance(10)
        times.append(clock.time_ms())
        await ask.send("orders")

    async def search(time_ms, boundary=None):
        ext = {"topic": "orders", "queueId": "0", "timestamp": str(time_ms)}
        answer = await ask(29, {**ext, "boundaryType": boundary} if boundary else ext)
        return int(answer.ext["offset"])

    assert [await search(t) for t in (0, times[0], times[0] + 1, times[2], times[2] + 1)] == [0, 0, 1, 2, 3]
    assert [await search(t, "upper") for t in (0, times[0], times[1] - 1, times[1], times[2] + 5)] == [0, 0, 0, 1, 2]
    assert await search(times[1], "LOWER") == 1
    assert await search(-1) == 0
    assert await search(2**63 - 1) == 3
    earliest = await ask(32, {"topic": "orders", "queueId": "0"})
    assert earliest.ext == {"timestamp": str(times[0])}
