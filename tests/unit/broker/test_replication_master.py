"""The HA port of a master as bytes on a socket: what slaves get, and what becomes of connections that are none."""

import asyncio
import contextlib
import logging
import random
import socket
import struct

import pytest
from replicating import SEGMENT_BYTES, fill, log_bytes, opened, put
from tests.waiting import stays

from sprocketmq.broker.replication import master as master_module
from sprocketmq.broker.replication.master import MAX_UNSENT_BYTES, ReplicationMaster, SlaveLink
from sprocketmq.clock import ManualClock
from sprocketmq.errors import PortInUse
from sprocketmq.protocol.replication import CHALLENGE_BYTES, MASTER_PROOF_BYTES, SlaveHandshake
from sprocketmq.testing import eventually


class Slave:
    """A connection that speaks single reports and reads single transfers."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    def report(self, *log_offsets):
        self.writer.write(struct.pack(f">{len(log_offsets)}q", *log_offsets))

    async def transfer(self):
        log_offset, size = struct.unpack(">qi", await asyncio.wait_for(self.reader.readexactly(12), 30))
        return log_offset, await asyncio.wait_for(self.reader.readexactly(size), 30)

    async def log(self, count):
        """Return the log offset of the first byte, and the next ``count`` bytes; heartbeats are left out."""
        first, data = await self.transfer()
        while len(data) < count:
            log_offset, more = await self.transfer()
            assert log_offset == first + len(data)
            data += more
        return first, data

    async def closed(self):
        """Wait until the master has closed the connection, and return what it sent before."""
        with contextlib.suppress(ConnectionResetError):
            return await asyncio.wait_for(self.reader.read(), 30)
        return b""

    def close(self):
        self.writer.transport.abort()


@pytest.fixture
def store(tmp_path):
    store = opened(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
async def lead(store):
    made = []

    async def lead(**settings):
        master = ReplicationMaster(store, **settings)
        made.append(master)
        await master.start("127.0.0.1", 0)
        return master

    yield lead
    for master in made:
        await master.stop()
    await asyncio.sleep(0)


@pytest.fixture
async def connect():
    made = []

    async def connect(master):
        slave = Slave(*await asyncio.open_connection("127.0.0.1", master.port, limit=1 << 26))
        made.append(slave)
        return slave

    yield connect
    for slave in made:
        slave.close()
    await asyncio.sleep(0)


# --- what slaves get ----------------------------------------------------------------------------------------------------


async def test_a_slave_gets_the_log_from_where_it_reports(store, lead, connect):
    fill(store, 300)
    master = await lead()
    slave = await connect(master)
    slave.report(100_000)
    whole = log_bytes(store)
    assert await slave.log(len(whole) - 100_000) == (100_000, whole[100_000:])
    put(store, b"more")
    master.wrote()
    log_offset, data = await slave.transfer()
    assert (log_offset, data) == (len(whole), log_bytes(store)[len(whole) :])


async def test_with_sync_flush_a_slave_gets_only_what_is_on_the_disk(store, lead, connect):
    fill(store, 30)
    store.flush_log()
    flushed = log_bytes(store)
    fill(store, 30, start=30)
    master = await lead(after_flush=True, heartbeat_s=0.1)
    slave = await connect(master)
    slave.report(1)
    assert await slave.log(len(flushed) - 1) == (1, flushed[1:])
    master.wrote()
    await stays(lambda: master.links[0].progress.sent == len(flushed))
    store.flush_log()
    master.wrote()
    whole = log_bytes(store)
    assert await slave.log(len(whole) - len(flushed)) == (len(flushed), whole[len(flushed) :])


async def test_commits_are_gathered_before_they_are_sent(store, lead, connect):
    put(store, b"one")
    master = await lead(gather_s=0.5)
    slave = await connect(master)
    slave.report(1)
    whole = len(log_bytes(store))
    await slave.log(whole - 1)
    for body in (b"two", b"three"):
        put(store, body)
        master.wrote()
        await asyncio.sleep(0)  # a turn of the loop between them
    log_offset, data = await slave.transfer()
    assert (log_offset, data) == (whole, log_bytes(store)[whole:])


async def test_0_asks_for_the_last_file_and_1_for_the_whole_log(store, lead, connect):
    fill(store, 300)
    master = await lead()
    last, all_of_it = await connect(master), await connect(master)
    last.report(0)
    all_of_it.report(1)
    whole = log_bytes(store)
    begin = len(whole) - len(whole) % SEGMENT_BYTES
    assert await last.log(len(whole) - begin) == (begin, whole[begin:])
    assert await all_of_it.log(len(whole) - 1) == (1, whole[1:])


async def test_a_transfer_ends_with_its_file_and_has_at_most_the_batch_size(store, lead, connect):
    fill(store, 200)
    slave = await connect(await lead(batch_bytes=32768))
    slave.report(1)
    end = store.commitlog_max_offset
    sizes, at = [], 1
    while at < end:
        log_offset, data = await slave.transfer()
        assert log_offset == at
        at += len(data)
        sizes.append(len(data))
        assert (at - 1) // SEGMENT_BYTES == log_offset // SEGMENT_BYTES
    assert sizes[:3] == [32768, 32767, 32768]


async def test_commits_of_one_turn_share_a_transfer(store, lead, connect):
    put(store, b"first")
    master = await lead()
    slave = await connect(master)
    slave.report(1)
    await slave.transfer()
    begin = store.commitlog_max_offset
    for n in range(10):
        put(store, b"%d" % n)
        master.wrote()
    assert await slave.transfer() == (begin, log_bytes(store)[begin:])


async def test_an_idle_master_tells_that_it_lives_and_where_its_log_ends(store, lead, connect):
    put(store, b"one")
    end = store.commitlog_max_offset
    slave = await connect(await lead(heartbeat_s=0.05))
    slave.report(end)
    assert await slave.transfer() == (end, b"")
    assert await slave.transfer() == (end, b"")


async def test_several_slaves_follow_and_the_least_of_the_most_advanced_counts(store, lead, connect):
    acked = []
    fill(store, 50)
    end = store.commitlog_max_offset
    master = await lead(acked=lambda: acked.append(master.replicated(1)), max_gap_bytes=20_000)
    slaves = [await connect(master) for _ in range(3)]
    assert (master.replicated(1), master.in_sync(1)) == (0, False)
    for slave, have in zip(slaves, (end - 30_000, end - 10_000, end), strict=True):
        slave.report(have)
        await eventually(lambda have=have: any(one.acked == have for one in master.slaves))
    assert [master.replicated(n) for n in (1, 2, 3, 4)] == [end, end - 10_000, end - 30_000, 0]
    assert [master.in_sync(n) for n in (1, 2, 3)] == [True, True, False]
    assert [(one.behind_bytes, one.in_sync) for one in master.slaves] == [(30_000, False), (10_000, True), (0, True)]
    await slaves[0].log(30_000)
    slaves[0].report(end - 5000, end)
    await eventually(lambda: master.replicated(3) == end - 10_000)
    assert acked[-1] == end
    slaves[2].close()
    await eventually(lambda: len(master.slaves) == 2)


async def test_how_long_a_slave_has_been_behind(store, lead, connect):
    clock = ManualClock()
    master = await lead(clock=clock)
    slave = await connect(master)
    slave.report(1)
    await eventually(lambda: master.slaves)
    put(store, b"one")
    master.wrote()
    _, data = await slave.transfer()
    clock.advance(1.5)
    assert master.slaves[0].behind_ms == 1500
    slave.report(1 + len(data))
    await eventually(lambda: master.slaves[0].behind_bytes == 0)
    assert (master.slaves[0].behind_ms, master.slaves[0].connected_s) == (0, 1.5)


class EncryptedTransport(asyncio.Transport):
    """A TLS transport whose peer reads nothing: it takes no more after the peer's end, though it is not closing yet."""

    def __init__(self):
        super().__init__()
        self.written = []

    def set_write_buffer_limits(self, high=None, low=None):
        """Take any."""

    def write(self, data):
        self.written.append(bytes(data))

    def is_closing(self):
        return False


async def test_nothing_is_sent_to_a_slave_that_has_ended_its_side(store, lead):
    put(store, b"one")
    clock = ManualClock()
    master = await lead(clock=clock, heartbeat_s=1)
    transport, link = EncryptedTransport(), SlaveLink(master)
    link.connection_made(transport)
    link.data_received(struct.pack(">q", 1))
    before, sent = len(transport.written), master.slaves[0].sent
    assert before
    assert not link.eof_received()
    put(store, b"two")
    link.send()
    link.sweep(clock.monotonic() + 2, was_paused=False)
    assert (len(transport.written), master.slaves[0].sent) == (before, sent)
    link.connection_lost(None)
    assert not master.slaves


# --- what is no slave ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [-1, -(1 << 63), 10**9, (1 << 63) - 1, int.from_bytes(b"GET / HT", "big")])
async def test_a_first_report_that_cannot_be_ends_the_connection(store, lead, connect, first, caplog):
    put(store, b"one")
    master = await lead()
    slave = await connect(master)
    slave.report(first)
    assert await slave.closed() == b""
    assert (master.slaves, master.replicated(1)) == ([], 0)
    assert "may be another store's log" in caplog.text


async def test_a_slave_whose_place_was_deleted_is_told_so_in_the_log(store, lead, connect, caplog):
    fill(store, 300)
    store.flush()
    store.delete_before(2 * SEGMENT_BYTES)
    slave = await connect(await lead())
    slave.report(1)
    await slave.closed()
    assert f"this log begins at {2 * SEGMENT_BYTES}" in caplog.text


@pytest.mark.parametrize("lie", [1, 1 << 40, -(10**6), -(1 << 40)])
async def test_an_acknowledgement_that_cannot_be_true_ends_the_connection_and_counts_for_nothing(store, lead, connect, lie, caplog):
    fill(store, 10)
    acked = []
    master = await lead(acked=lambda: acked.append(1))
    slave = await connect(master)
    end = store.commitlog_max_offset
    slave.report(1)
    await slave.log(end - 1)
    slave.report(5000)
    await eventually(lambda: master.replicated(1) == 5000)
    count = len(acked)
    slave.report((end if lie > 0 else 5000) + lie)
    await slave.closed()
    await eventually(lambda: not master.slaves)
    assert master.replicated(1) == 0
    assert len(acked) == count
    assert "acknowledges log offset" in caplog.text


async def test_random_bytes_end_their_own_connection_only(store, lead, connect, caplog):
    fill(store, 20)
    end = store.commitlog_max_offset
    master = await lead()
    healthy = await connect(master)
    healthy.report(1)
    await healthy.log(end - 1)
    healthy.report(end)
    await eventually(lambda: master.replicated(1) == end)
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    for _ in range(100):
        stranger = await connect(master)
        for _ in range(rng.randrange(4)):
            stranger.writer.write(rng.randbytes(rng.choice((1, 7, 8, 9, 64, 500))))
            await asyncio.sleep(0)
        stranger.close()
    await eventually(lambda: len(master.links) == 1 and not master.newcomers)
    put(store, b"more")
    master.wrote()
    assert (await healthy.transfer())[0] == end
    assert master.replicated(1) == end, f"seed {seed}"
    assert all(record.levelno <= logging.WARNING for record in caplog.records), f"seed {seed}"


async def test_half_a_report_is_none(store, lead, connect):
    fill(store, 10)
    master = await lead()
    slave = await connect(master)
    slave.writer.write(bytes(7))
    await stays(lambda: not master.slaves)
    slave.writer.write(b"\x01")
    await slave.transfer()
    assert master.slaves[0].acked == 1


async def test_warnings_about_strangers_are_few(store, lead, connect, caplog):
    put(store, b"one")
    master = await lead()
    for _ in range(20):
        slave = await connect(master)
        slave.report(-7)
        await slave.closed()
    assert caplog.text.count("slave_refused") == 1


async def test_a_connection_that_never_reports_is_closed(store, lead, connect, monkeypatch):
    monkeypatch.setattr(master_module, "FIRST_REPORT_S", 0.1)
    master = await lead(max_slaves=3, heartbeat_s=0.1)
    silent = [await connect(master) for _ in range(3)]
    await eventually(lambda: len(master.newcomers) == 3)
    for slave in silent:
        await slave.closed()
    assert not master.newcomers


async def test_silent_strangers_are_few_and_keep_no_slave_out(store, lead, connect, caplog):
    put(store, b"one")
    master = await lead(max_slaves=3)
    silent = [await connect(master) for _ in range(3)]
    await eventually(lambda: len(master.newcomers) == 3)
    slave = await connect(master)
    await silent[0].closed()
    assert len(master.newcomers) == 3
    slave.report(1)
    await slave.transfer()
    assert len(master.slaves) == 1
    assert "3 newer connections have not reported either, the limit" in caplog.text


async def test_only_so_many_slaves_follow(store, lead, connect, caplog):
    put(store, b"one")
    master = await lead(max_slaves=2)
    for _ in range(2):
        slave = await connect(master)
        slave.report(1)
        await slave.transfer()
    third = await connect(master)
    third.report(1)
    await third.closed()
    assert len(master.slaves) == 2
    assert "2 slaves follow already" in caplog.text


async def test_a_slave_that_falls_silent_is_let_go(store, lead, connect):
    clock = ManualClock()
    put(store, b"one")
    master = await lead(heartbeat_s=0.1, housekeeping_s=5.0, clock=clock)
    silent, lively = await connect(master), await connect(master)
    for slave in (silent, lively):
        slave.report(1)
        await slave.transfer()
    closed = asyncio.ensure_future(silent.closed())
    while not closed.done():
        clock.advance(0.5)
        await lively.transfer()  # a heartbeat
        lively.report(1)
    assert len(master.slaves) == 1


async def test_a_pause_of_the_master_itself_costs_no_slave_its_connection(store, lead, connect):
    clock = ManualClock()
    put(store, b"one")
    master = await lead(heartbeat_s=0.1, clock=clock)
    slave = await connect(master)
    slave.report(1)
    await slave.transfer()
    clock.advance(30.0)  # as SIGSTOP does: no timer ran meanwhile
    await slave.transfer()
    assert len(master.slaves) == 1


async def test_what_is_unsent_to_a_slave_that_does_not_read_is_bounded(tmp_path, connect):
    store = opened(tmp_path / "large", segment_bytes=64 << 20)
    master = ReplicationMaster(store)
    await master.start("127.0.0.1", 0)
    try:
        for n in range(64):
            put(store, b"%08d" % n * (1 << 17))  # 1 MiB each
        slave = await connect(master)
        slave.writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        slave.writer.transport.pause_reading()
        slave.report(1)
        await eventually(lambda: master.slaves and master.slaves[0].sent > 1)
        link = master.links[0]
        await stays(lambda: link._transport.get_write_buffer_size() <= MAX_UNSENT_BYTES + (1 << 20), 0.2)
        assert master.slaves[0].sent < store.commitlog_max_offset
        slave.writer.transport.resume_reading()
        assert (await slave.log(store.commitlog_max_offset - 1))[1] == bytes(store.raw(1, 64 << 20)) + bytes(store.raw(64 << 20, 64 << 20))
    finally:
        await master.stop()
        store.close()


async def test_how_much_a_second_takes_is_limited(store, lead, connect):
    fill(store, 300)
    clock = ManualClock()
    master = await lead(max_bytes_per_s=100_000, clock=clock)
    slave = await connect(master)
    slave.report(1)
    await eventually(lambda: master.slaves and master.slaves[0].sent >= 100_000)
    await stays(lambda: master.slaves[0].sent < 115_000, 0.1)
    clock.advance(1.0)
    await eventually(lambda: master.slaves[0].sent >= 200_000)
    assert master.slaves[0].sent < 215_000


async def test_a_port_that_is_taken_is_said(store, lead):
    master = await lead()
    other = ReplicationMaster(store)
    with pytest.raises(PortInUse):
        await other.start("127.0.0.1", master.port)
    await other.stop()


# --- the secret ---------------------------------------------------------------------------------------------------------


async def test_a_slave_that_proves_the_secret_gets_the_log(store, lead, connect, caplog):
    caplog.set_level(logging.DEBUG)
    put(store, b"one")
    slave = await connect(await lead(secret="the shared secret"))
    handshake = SlaveHandshake("the shared secret")
    slave.writer.write(handshake.prove(await slave.reader.readexactly(CHALLENGE_BYTES)))
    handshake.check(await slave.reader.readexactly(MASTER_PROOF_BYTES))
    slave.report(1)
    assert (await slave.transfer())[0] == 1
    assert "the shared secret" not in caplog.text


async def test_a_report_may_come_with_the_proof(store, lead, connect):
    put(store, b"one")
    slave = await connect(await lead(secret="the shared secret"))
    handshake = SlaveHandshake("the shared secret")
    slave.writer.write(handshake.prove(await slave.reader.readexactly(CHALLENGE_BYTES)) + struct.pack(">q", 1))
    handshake.check(await slave.reader.readexactly(MASTER_PROOF_BYTES))
    assert (await slave.transfer())[0] == 1


@pytest.mark.parametrize("proof", ["another secret", "none", "garbage"])
async def test_a_stranger_gets_nothing_of_the_log_and_acknowledges_nothing(store, lead, connect, proof, caplog):
    put(store, b"one")
    master = await lead(secret="the shared secret")
    slave = await connect(master)
    challenge = await slave.reader.readexactly(CHALLENGE_BYTES)
    if proof == "another secret":
        slave.writer.write(SlaveHandshake("another secret....").prove(challenge))
    elif proof == "none":
        slave.report(*[store.commitlog_max_offset] * 9)
    else:
        slave.writer.write(b"\xff" * 72)
    assert await slave.closed() == b""
    assert (master.slaves, master.replicated(1)) == ([], 0)
    assert "give it the same ha_secret" in caplog.text
    assert "the shared secret" not in caplog.text.replace("the shared secret:", "")


async def test_without_a_secret_the_master_speaks_no_byte_first(store, lead, connect):
    put(store, b"one")
    slave = await connect(await lead())
    await stays(lambda: not slave.reader.at_eof())
    slave.report(1)
    assert (await slave.transfer())[0] == 1
