"""What slaves ask a master for besides the log: answers like the reference's, and tables that travel when they changed."""

import json
import zipfile
from pathlib import Path

import pytest
from asking import exchange

from sprocketmq.broker.pop.assignments import AssignmentHandlers
from sprocketmq.broker.replication import metadata
from sprocketmq.broker.replication.metadata_answers import version_text
from sprocketmq.protocol.bodies import DelayOffsets, SubscriptionGroupConfig
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.frame import FrameBuffer
from sprocketmq.testing import eventually

FRAMES = Path(__file__).parents[2] / "fixtures" / "frames" / "frames.zip"
with zipfile.ZipFile(FRAMES) as archive:
    RAW = {name: archive.read(name) for name in archive.namelist() if name.startswith(("sync-", "ha-status"))}
QUESTIONS = sorted(name.removesuffix(".request.bin") for name in RAW if name.endswith("request.bin"))


@pytest.mark.parametrize("name", QUESTIONS)
async def test_what_apaches_slave_asks_is_answered_in_apaches_shape(broker, name):
    (answer,) = await exchange(broker.address, RAW[f"{name}.request.bin"])
    (expected,) = FrameBuffer().feed(RAW[f"{name}.response.bin"])
    assert answer.code == expected.code == 0
    assert answer.ext.keys() == expected.ext.keys()
    if name.startswith("sync-timer-checkpoint"):
        assert len(answer.body) == len(expected.body)
    else:
        assert set(json.loads(expected.body)) <= set(json.loads(answer.body))


@pytest.mark.parametrize("code", [21, 43, 45, 201])
async def test_a_table_travels_only_when_it_changed(broker, ask, code):
    version = json.loads((await ask(code)).body)["dataVersion"]
    known = {"knownVersion": f"{version['stateVersion']}-{version['timestamp']}-{version['counter']}"}
    again = await ask(code, known)
    assert (again.code, again.ext["unchanged"], again.body) == (0, "true", b"")
    broker.topics.create_internal("another", 1)
    broker.groups.put(SubscriptionGroupConfig("another"))
    broker.offsets.commit("another", "orders", 0, 5)
    broker.delays.progress.finish()
    answer = await ask(code, known)
    assert "unchanged" not in answer.ext
    assert json.loads(answer.body)["dataVersion"] != version


async def test_a_slave_gets_the_progress_of_delayed_messages_with_the_log_it_refers_to(broker, ask, clock):
    await ask.send("orders", properties="DELAY\x011\x02")
    await ask.send("orders", properties=f"TIMER_DELIVER_MS\x01{clock.time_ms() + 500}\x02")
    clock.advance(2.0)
    broker.delays.fire()
    broker.delays.progress.finish()
    plain = DelayOffsets.decode((await ask(45)).body)
    assert (plain.offset_table, plain.log_offset, plain.timers) == ({1: 1}, broker.store.commitlog_max_offset, None)
    assert version_text(plain.data_version) == version_text(broker.delays.progress.saved_version)
    with_timers = DelayOffsets.decode((await ask(45, {"withTimers": "true"})).body)
    assert with_timers.timers == {"logOffset": plain.log_offset, "base": 0, "delivered": "AQ=="}


async def test_a_master_tells_its_address_to_who_asks_for_it(broker, ask):
    answer = await ask(906)
    assert answer.ext == {"masterAddress": broker.address, "masterHaAddress": "", "masterFlushOffset": "0"}


async def test_a_new_topic_is_copied_when_its_first_message_comes(pair, connect, monkeypatch):
    monkeypatch.setattr(metadata, "INTERVAL_S", 3600.0)
    master, slave = await pair()
    master.topics.create_internal("paid", 8, attributes={"message.type": "FIFO"})
    assert (await (await connect(master)).send("paid")).code == 0
    await eventually(lambda: "paid" in slave.topics)
    config = next(topic.config for topic in slave.topics if topic.name == "paid")
    assert (config.write_queue_nums, config.attributes["message.type"]) == (8, "FIFO")


async def test_a_master_without_request_modes_hands_on_everything_else(pair, monkeypatch):
    """Apache's brokers before 5.0 do not know request 402."""
    refused = []

    def refuse(_, conn, command):
        refused.append(command.code)
        conn.respond(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="request type 402 not supported")

    monkeypatch.setattr(AssignmentHandlers, "all_modes", refuse)
    monkeypatch.setattr(metadata, "INTERVAL_S", 0.01)
    master, slave = await pair()
    master.offsets.commit("readers", "orders", 0, 5)
    await eventually(lambda: slave.offsets.get("readers", "orders", 0) == 5)
    assert set(refused) == {402}
