"""Rounds of the cleaner: what it asks of the store, and how messages are refused and taken again."""

import asyncio
import errno
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from asking import Asking

from sprocketmq import PushConsumer
from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.broker.cleaning import Cleaning
from sprocketmq.errors import StoreDamaged, StoreWriteFailed
from sprocketmq.events import quoted
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.fs import Entry, RealFileSystem

HOUR_S = 3600
SEGMENT = 64 << 10
NIGHT = "00;01;02;03;04;05;06;07;08;09;10;11;12;13;14;15;16;17;18;19;20;21;22;23"


class Disk(RealFileSystem):
    """The machine's disk, as full as a test says; ``sizes`` says how full the queues' is when that is another."""

    def __init__(self, clock):
        self.clock = clock
        self.used = 0.1
        self.queues_used = None
        self.age_h = 0.0
        self.error = None
        self.writes_fail = None

    def usage(self, path):
        if self.error:
            raise OSError(self.error, "no disk")
        used = self.queues_used if path.endswith("consumequeue") and self.queues_used is not None else self.used
        return 1_000_000, round(1_000_000 * (1 - used))

    def modified_ms(self, path):
        return self.clock.time_ms() - round(self.age_h * HOUR_S * 1000)

    def open(self, path, **options):
        file = super().open(path, **options)
        return FullFile(self, file) if "/commitlog/" in path else file


class FullFile:
    def __init__(self, disk, file):
        self._disk = disk
        self._file = file
        self.path = file.path

    def __getattr__(self, name):
        if self._disk.writes_fail and name in {"pwrite", "pwritev"}:
            raise OSError(self._disk.writes_fail, "No space left on device", self.path)
        return getattr(self._file, name)


class FakeStore:
    """Segments and what was deleted of them."""

    def __init__(self, count=5):
        self.starts = [i * 1000 for i in range(count)]
        self.commitlog_flushed_offset = count * 1000
        self.error = None
        self.released = 0
        self.asked = []

    def segments(self):
        return [(start, 1000, f"/store/commitlog/{start:020d}") for start in self.starts]

    def delete_steps(self, position, paths):
        self.asked.append(position)
        if self.error:
            raise self.error
        gone = [start for start in self.starts if start + 1000 <= position]
        self.starts = self.starts[len(gone) :]
        paths += [f"/store/commitlog/{start:020d}" for start in gone]
        yield None
        yield self.release_deleted

    def release_deleted(self):
        self.released += 1


class FakeDisk(Disk):
    """A disk of segments of 1,000 bytes; giving one up makes ``gain`` of room."""

    def __init__(self, clock, store, gain=0.0):
        super().__init__(clock)
        self.store = store
        self.count = len(store.starts)
        self.gain = gain
        self.damaged = {}

    def usage(self, path):
        total, free = super().usage(path)
        return total, round(free + total * self.gain * (self.count - len(self.store.starts)))

    def modified_ms(self, path):
        return self.clock.time_ms() - round(self.damaged.get(path, self.age_h) * HOUR_S * 1000)

    def list(self, path):
        return [Entry(name.rpartition("/")[2], False, 1) for name in self.damaged]

    def unlink(self, path):
        del self.damaged[path]


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def disk(clock, store):
    return FakeDisk(clock, store)


@pytest.fixture
async def cleaning(store, disk, clock, tmp_path):
    config = BrokerConfig(store=StoreConfig(root=tmp_path, delete_when=NIGHT))
    with ThreadPoolExecutor(1) as executor:
        made = Cleaning(config, store, set(), executor, background=Background("broker"), fs=disk, clock=clock, pause_s=0)
        yield made
        await made.stop()


async def test_a_round_deletes_what_expired_one_segment_at_a_time(cleaning, store, disk):
    disk.age_h = 73
    assert await cleaning.clean() == [f"/store/commitlog/{start:020d}" for start in (0, 1000, 2000, 3000)]
    assert store.asked == [1000, 2000, 3000, 4000]
    assert store.starts == [4000]
    assert cleaning.deleted_segments == 4
    assert await cleaning.clean() == []


async def test_a_round_deletes_nothing_that_has_not_expired(cleaning, store, disk):
    disk.age_h = 71
    assert await cleaning.clean() == []
    assert store.asked == []


async def test_a_nearly_full_disk_costs_no_more_segments_than_it_takes(cleaning, store, disk, caplog):
    disk.used = 0.88
    disk.gain = 0.02
    with caplog.at_level(logging.INFO):
        assert len(await cleaning.clean()) == 2
    assert store.starts == [2000, 3000, 4000]
    assert 'age_h=0 cause="the disk is nearly full" used_percent=88' in caplog.text


async def test_no_round_takes_more_than_ten(clock, tmp_path):
    store = FakeStore(30)
    config = BrokerConfig(store=StoreConfig(root=tmp_path))
    with ThreadPoolExecutor(1) as executor:
        disk = FakeDisk(clock, store)
        disk.used = 0.99
        made = Cleaning(config, store, set(), executor, background=Background("broker"), fs=disk, clock=clock, pause_s=0)
        assert [len(await made.clean()) for _ in range(4)] == [10, 10, 9, 0]


async def test_what_is_not_on_the_disk_yet_stays(cleaning, store, disk):
    disk.used = 0.99
    store.commitlog_flushed_offset = 2000
    await cleaning.clean()
    assert store.starts == [1000, 2000, 3000, 4000]


async def test_messages_are_refused_while_either_disk_is_full(cleaning, disk, caplog):
    disk.queues_used = 0.95
    await cleaning.clean()
    assert not cleaning.writable
    assert "95% of the disk of" in cleaning.refusal
    assert "messages are refused above 90%" in cleaning.refusal
    assert "file_reserved_hours" in cleaning.refusal
    disk.queues_used = 0.5
    await cleaning.clean()
    assert cleaning.writable
    assert [record.event for record in caplog.records] == ["disk_full", "nothing_to_delete", "disk_free_again"]


async def test_a_full_disk_without_anything_to_delete_is_said_once(clock, tmp_path, caplog):
    store = FakeStore(1)
    config = BrokerConfig(store=StoreConfig(root=tmp_path))
    with ThreadPoolExecutor(1) as executor:
        disk = FakeDisk(clock, store)
        disk.used = 0.99
        made = Cleaning(config, store, set(), executor, background=Background("broker"), fs=disk, clock=clock, pause_s=0)
        for _ in range(3):
            assert await made.clean() == []
    assert caplog.text.count("no segment of the log may go") == 1


async def test_damaged_files_go_before_messages_do(cleaning, store, disk, tmp_path, said):
    disk.used = 0.88
    disk.damaged = {f"{tmp_path}/damaged/{i}": 1 for i in range(2)}
    paths = await cleaning.clean()
    assert paths[:2] == [f"{tmp_path}/damaged/{i}" for i in range(2)]
    assert disk.damaged == {}
    (line,) = said("damaged_files_deleted")
    assert line.startswith(f"damaged_files_deleted path={quoted(tmp_path / 'damaged')} files=2 cause=")


async def test_damaged_files_expire_as_segments_do(cleaning, disk, tmp_path):
    old, new = f"{tmp_path}/damaged/1", f"{tmp_path}/damaged/2"
    disk.damaged = {old: 73, new: 71}
    assert await cleaning.clean() == [old]


async def test_a_disk_that_cannot_be_looked_at_changes_nothing_and_is_said_once(cleaning, store, disk, caplog):
    disk.error = errno.EIO
    for _ in range(3):
        assert await cleaning.clean() == []
    assert cleaning.writable
    assert caplog.text.count("disk_unreadable") == 1
    disk.error = None
    disk.age_h = 100
    assert await cleaning.clean()


async def test_a_deletion_that_fails_ends_the_round(cleaning, store, disk, caplog):
    disk.age_h = 100
    store.error = StoreDamaged("/store/commitlog", 0, "read-only file system")
    assert await cleaning.clean() == []
    assert store.asked == [1000]
    assert "segment_delete_failed" in caplog.text


async def test_started_it_looks_at_once_and_again_when_the_disk_refused_a_write(cleaning, disk):
    disk.used = 0.5
    cleaning.start()
    await cleaning.round
    assert cleaning.writable
    disk.used = 0.97
    full = StoreWriteFailed("/store", "No space left on device")
    full.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    cleaning.disk_refused(full)
    await cleaning.round
    assert not cleaning.writable
    # While messages are refused the next look is near, whatever the interval.
    assert cleaning.due - asyncio.get_running_loop().time() <= 1.0
    await cleaning.stop()
    assert cleaning.due is None


async def test_other_failures_of_writes_are_not_its_business(cleaning):
    cleaning.start()
    await cleaning.round
    broken = StoreWriteFailed("/store", "Input/output error")
    broken.__cause__ = OSError(errno.EIO, "Input/output error")
    cleaning.disk_refused(broken)
    assert cleaning.round is None


# --- a broker with a real store ---


@pytest.fixture
async def served(tmp_path, clock):
    """A broker on a disk that says how full it is, with segments of 64 KiB, and one connection to it."""
    disk = Disk(clock)
    store = StoreConfig(
        root=tmp_path / "store", commitlog_segment_bytes=SEGMENT, consumequeue_segment_bytes=20 * 50, max_message_bytes=32 << 10
    )
    broker = Broker(BrokerConfig(store=store, port=0, clean_interval_s=3600, flush_interval_s=0.01), fs=disk, clock=clock)
    await broker.start()
    broker.topics.create_internal("orders", 2)
    ask = Asking(broker)
    await ask.open()
    yield broker, ask, disk
    await ask.close()
    await broker.stop()


async def fill(ask, segments=4, topic="orders"):
    """Send until the log has so many segments; return what was sent."""
    sent = []
    while len(ask.broker.store.segments()) < segments:
        sent.append(b"%06d" % len(sent) + b"x" * 1000)
        answer = await ask.send(topic, sent[-1])
        assert answer.code == 0, answer.remark
    ask.broker.store.flush()
    return sent


async def test_sends_are_refused_on_a_full_disk_and_taken_again_without_a_restart(served):
    broker, ask, disk = served
    await ask.send("orders", b"before")
    disk.used = 0.93
    await broker.cleaning.clean()
    for answer in (
        await ask.send("orders", b"refused"),
        await ask.send_batch("orders", [b"refused", b"refused"]),
        await ask.send("never_seen", b"refused"),
    ):
        assert answer.code == 14
        assert answer.remark.startswith("service not available now. It may be caused by: the broker's disk is full: 93%")
    assert "never_seen" not in broker.topics
    assert await ask.bodies("orders") == [b"before"]
    assert (await ask(351, {"topic": "orders"})).code == 0
    disk.used = 0.5
    await broker.cleaning.clean()
    assert (await ask.send("orders", b"after")).code == 0
    assert await ask.bodies("orders") == [b"before", b"after"]


async def test_a_disk_that_refuses_a_write_costs_that_send_only(served):
    _, ask, disk = served
    disk.writes_fail = errno.ENOSPC
    answer = await ask.send("orders", b"refused")
    assert (answer.code, "No space left" in answer.remark) == (14, True)
    disk.writes_fail = None
    assert (await ask.send("orders", b"taken")).code == 0
    assert await ask.bodies("orders") == [b"taken"]


async def test_consumers_of_deleted_messages_go_on_at_the_first_that_is_left(served, said):
    broker, ask, disk = served
    sent = await fill(ask)
    disk.age_h = 73
    await ask(329)
    await broker.cleaning.round
    store = broker.store
    low = store.min_offset("orders", 0)
    assert low > 0
    assert len(store.segments()) == 1
    lines = said("segment_deleted")
    assert len(lines) == 3
    assert lines[0].startswith(f"segment_deleted path={quoted(broker.config.store.root / 'commitlog' / f'{0:020d}')} other_files=")
    assert all(" age_h=73 cause=" in line and line.endswith(" used_percent=10") for line in lines)
    answer = await ask.pull("orders", 0)
    assert (answer.code, answer.ext["nextBeginOffset"], answer.ext["minOffset"]) == (21, str(low), str(low))
    found, offset = [], low
    while batch := await ask.bodies("orders", offset):
        found += batch
        offset += len(batch)
    assert found == sent[low:]
    assert (await ask(31, {"topic": "orders", "queueId": "0"})).ext["offset"] == str(low)
    assert not (broker.config.store.root / "consumequeue/orders/0" / f"{0:020d}").exists()


async def test_buffers_being_sent_outlive_their_segment(served):
    broker, ask, disk = served
    sent = await fill(ask)
    held = broker.store.read("orders", 0, 0, max_count=10).buffers
    disk.used = 0.99
    await broker.cleaning.clean()
    assert broker.store.min_offset("orders", 0) > 10
    assert all(body in b"".join(held) for body in sent[:10])
    broker.store.release_deleted()
    del held
    broker.store.release_deleted()


async def test_deletions_survive_a_restart_and_a_crash(served, clock):
    broker, ask, disk = served
    sent = await fill(ask)
    disk.age_h = 100
    disk.used = 0.8
    await broker.cleaning.clean()
    low = broker.store.min_offset("orders", 0)
    await ask.close()
    await broker.abort()
    for ending in ("crash", "stop"):
        again = Broker(broker.config, fs=disk, clock=clock)
        await again.start()
        await ask_and_close(again, low, sent)
        await (again.abort() if ending == "crash" else again.stop())


async def ask_and_close(broker, low, sent):
    assert broker.store.min_offset("orders", 0) == low
    ask = Asking(broker)
    await ask.open()
    assert (await ask.pull("orders", low - 1)).ext["nextBeginOffset"] == str(low)
    assert await ask.bodies("orders", low, count=1) == [sent[low]]
    assert broker.store.max_offset("orders", 0) == len(sent)
    await ask.close()


async def test_cleaning_queues_and_unused_topics_answers_as_apache_does(served):
    broker, ask, _ = served
    await ask.send("orders", b"kept", properties=encode_properties({"KEYS": "k"}).decode())
    assert (await ask(306)).code == 0
    assert (await ask(316)).code == 0
    assert await ask.bodies("orders") == [b"kept"]
    broker.topics.delete("orders")
    assert (await ask(316)).code == 0
    assert broker.store.topics_on_disk() == []


async def test_a_consumer_group_behind_the_beginning_goes_on_there(tmp_path, clock, namesrv):
    disk = Disk(clock)
    store = StoreConfig(root=tmp_path / "store", commitlog_segment_bytes=SEGMENT, max_message_bytes=32 << 10)
    broker = Broker(BrokerConfig(store=store, port=0, clean_interval_s=3600, namesrv=(namesrv.address,)), fs=disk, clock=clock)
    await broker.start()
    broker.topics.create_internal("orders", 1)
    ask = Asking(broker)
    await ask.open()
    sent = await fill(ask)
    broker.offsets.commit("late", "orders", 0, 1)
    disk.age_h = 100
    disk.used = 0.8
    await broker.cleaning.clean()
    low = broker.store.min_offset("orders", 0)
    assert low > 1
    found = []
    async with PushConsumer("late", {"orders": "*"}, namesrv=namesrv.address) as consumer:
        async with asyncio.timeout(60):
            async for batch in consumer.batches():
                found += [message.body for message in batch]
                if len(found) >= len(sent) - low:
                    break
    assert found == sent[low:]
    await ask.close()
    await broker.stop()
