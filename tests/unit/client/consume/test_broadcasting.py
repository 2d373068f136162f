import logging
from pathlib import Path

import pytest
from consuming import take
from fake_cluster import FakeCluster
from tests.inside import run_due

from sprocketmq.client import Producer, PushConsumer
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume import group_member as member_module
from sprocketmq.client.consume import offset_files
from sprocketmq.clock import ManualClock
from sprocketmq.errors import ConfigError, OffsetsLocked, OffsetsNotSaved
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.headers import PullRequest
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.testing import eventually

PLACE = Path("127.0.0.1@DEFAULT") / "cg" / "offsets.json"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)
    monkeypatch.setattr(member_module, "REBALANCE_RETRY_S", 0.001)


def push(cluster: FakeCluster, directory: Path, **options) -> PushConsumer:
    options = {"consume_from": "first", "mode": "broadcasting", "offsets_dir": directory} | options
    return PushConsumer("cg", "t", namesrv=cluster.namesrv.address, **options)


async def fill(cluster: FakeCluster, amount: int) -> None:
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        for i in range(amount):
            await producer.send(Message("t", b"%d" % i, queue=MessageQueue("t", "broker-a", i % 4)))


async def test_every_member_consumes_every_message_and_no_broker_hears_of_offsets(cluster, tmp_path):
    await fill(cluster, 8)
    everything = [b"%d" % i for i in range(8)]
    async with push(cluster, tmp_path / "one") as one, push(cluster, tmp_path / "two") as two:
        assert sorted(await take(one, 8)) == everything
        assert sorted(await take(two, 8)) == everything
        assert len(one.assignment) == len(two.assignment) == 4
        await one.commit()
    assert cluster.broker.offsets == {}
    assert cluster.broker.count(Q.UPDATE_CONSUMER_OFFSET) == cluster.broker.count(Q.QUERY_CONSUMER_OFFSET) == 0
    assert cluster.broker.count(Q.GET_CONSUMER_LIST_BY_GROUP) == 0
    assert not any(c.header(PullRequest).sys_flag & 1 for c in cluster.broker.seen if c.code == Q.PULL_MESSAGE)


async def test_the_heartbeat_says_that_the_group_broadcasts_and_asks_for_no_retries(cluster, tmp_path):
    async with push(cluster, tmp_path):
        pass
    (data,) = cluster.broker.beats[0].consumer_data_set
    assert data.message_model == "BROADCASTING"
    assert [subscription.topic for subscription in data.subscription_data_set] == ["t"]


async def test_a_restart_goes_on_where_the_file_says(cluster, tmp_path):
    await fill(cluster, 8)
    async with push(cluster, tmp_path) as first:
        await take(first, 8)
    assert (tmp_path / PLACE).exists()
    await fill(cluster, 4)
    async with push(cluster, tmp_path) as second:
        assert sorted(await take(second, 4)) == [b"0", b"1", b"2", b"3"]


async def test_offsets_are_written_every_five_seconds(cluster, tmp_path):
    clock = ManualClock()
    await fill(cluster, 4)
    async with push(cluster, tmp_path, clock=clock) as consumer:
        await take(consumer, 4)
        assert not (tmp_path / PLACE).exists()
        clock.advance(5)
        run_due(consumer)
        await eventually((tmp_path / PLACE).exists)


async def test_a_new_member_that_starts_last_gets_what_comes_after_it(cluster, tmp_path):
    await fill(cluster, 8)
    async with push(cluster, tmp_path, consume_from="last") as consumer:
        await eventually(lambda: len(consumer.assignment) >= 4)
        await fill(cluster, 4)
        assert sorted(await take(consumer, 4)) == [b"0", b"1", b"2", b"3"]


async def test_a_damaged_file_is_moved_aside_with_a_warning_and_the_start_rule_holds(cluster, tmp_path, caplog):
    await fill(cluster, 4)
    path = tmp_path / PLACE
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{not json")
    with caplog.at_level(logging.WARNING):
        async with push(cluster, tmp_path) as consumer:
            assert sorted(await take(consumer, 4)) == [b"0", b"1", b"2", b"3"]
    assert "are damaged" in caplog.text
    assert path.with_name("offsets.json.damaged").read_bytes() == b"{not json"


async def test_two_members_with_one_file_are_refused_and_the_first_goes_on(cluster, tmp_path):
    async with push(cluster, tmp_path) as first:
        with pytest.raises(OffsetsLocked):
            await push(cluster, tmp_path).start()
        await fill(cluster, 4)
        assert len(await take(first, 4)) == 4


async def test_offsets_that_cannot_be_written_are_an_error_of_commit_and_kept_for_later(cluster, tmp_path, monkeypatch):
    await fill(cluster, 4)

    def full(*args):
        raise OSError(28, "No space left on device")

    async with push(cluster, tmp_path) as consumer:
        await take(consumer, 4)
        with monkeypatch.context() as patched:
            patched.setattr(offset_files.os, "fsync", full)
            with pytest.raises(OffsetsNotSaved, match="No space left"):
                await consumer.commit()
        await consumer.commit()
    assert b'"queueId":3' in (tmp_path / PLACE).read_bytes()


async def test_a_failing_handler_drops_its_messages_and_the_offsets_go_on(cluster, tmp_path, caplog):
    await fill(cluster, 4)
    calls = 0

    async def handler(batch):
        nonlocal calls
        calls += 1
        raise ValueError("no")

    async with push(cluster, tmp_path) as consumer:
        consumer.listen(handler)
        await eventually(lambda: calls >= 4)
    assert "are dropped, as the group broadcasts" in caplog.text
    assert cluster.broker.count(Q.CONSUMER_SEND_MSG_BACK) == 0
    async with push(cluster, tmp_path) as consumer:
        await fill(cluster, 4)
        assert len(await take(consumer, 4)) == 4


async def test_an_offsets_directory_makes_no_sense_for_a_group_that_shares(cluster, tmp_path):
    with pytest.raises(ConfigError, match="broadcasting"):
        push(cluster, tmp_path, mode="clustering")
