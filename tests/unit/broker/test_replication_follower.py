"""A slave follows its master: first copy, disconnects, restarts, comparing before following, divergence, disks that refuse."""

import asyncio
import logging
import struct

import pytest
from replicating import SEGMENT_BYTES, Pair, fill, log_bytes, opened, put
from tests.waiting import stays

from sprocketmq.broker.replication import dispatching as dispatching_module
from sprocketmq.broker.replication import follower as follower_module
from sprocketmq.broker.replication.follower import FollowerState, Master
from sprocketmq.clock import ManualClock
from sprocketmq.errors import StoreFailed, StoreWriteFailed
from sprocketmq.testing import eventually


@pytest.fixture
async def pair(tmp_path):
    made = []

    def make(**settings):
        made.append(Pair(tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        await one.stop()


async def test_a_slave_copies_the_whole_log_and_follows_it(pair):
    both = pair()
    fill(both.store, 300)
    assert len(both.store.segments()) > 3
    await both.start()
    await both.equal()
    assert both.follower.state is FollowerState.FOLLOWING
    put(both.store, b"one more")
    await both.equal()
    assert both.copy.max_offset("orders", 0) == both.store.max_offset("orders", 0)
    assert [bytes(m) for m in both.copy.query("orders", "one more")] == [bytes(m) for m in both.store.query("orders", "one more")]
    assert both.copy.epochs.entries == both.store.epochs.entries
    assert both.appended
    assert both.acked


async def test_a_slave_of_an_empty_master_waits_for_its_first_message(pair):
    both = pair()
    await both.start()
    await both.state(FollowerState.FOLLOWING)
    put(both.store, b"first")
    await both.equal()


async def test_a_slave_takes_up_a_log_that_begins_later(pair):
    both = pair()
    fill(both.store, 300)
    both.store.flush()
    both.store.delete_before(2 * SEGMENT_BYTES)
    await both.start()
    await both.equal()
    assert both.copy.commitlog_min_offset == 2 * SEGMENT_BYTES


async def test_several_slaves_follow_one_master(pair, tmp_path):
    both = pair()
    other = Pair(tmp_path / "other", find=both.find, ask=both.ask)
    try:
        fill(both.store, 100)
        await both.start()
        await other.follow()
        fill(both.store, 50, start=100)
        await both.equal()
        end = both.store.commitlog_max_offset
        await eventually(lambda: both.master.replicated(2) == end)
        assert log_bytes(other.copy) == log_bytes(both.store)
    finally:
        await other.stop()


# --- disconnects and restarts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unclean", [False, True])
async def test_a_slave_goes_on_where_it_ended_after_a_restart(pair, tmp_path, unclean):
    both = pair()
    fill(both.store, 100)
    await both.start()
    await both.equal()
    await both.follower.stop()
    both.copy.abandon() if unclean else both.copy.close()
    fill(both.store, 100, start=100)
    both.copy = opened(tmp_path / "slave")
    await both.follow()
    await both.equal()


async def test_a_slave_follows_its_master_through_a_restart(pair, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    both = pair()
    fill(both.store, 100)
    await both.start()
    await both.equal()
    await both.stop_master()
    await both.state(FollowerState.CONNECTING)
    both.store = opened(tmp_path / "master")
    fill(both.store, 100, start=100)
    await both.lead()
    both.follower.reconnect("the master is back")
    await both.equal()
    assert caplog.text.count("master_followed") == 2


async def test_a_record_that_came_in_part_is_completed_by_the_next_connection(pair):
    both = pair()
    fill(both.store, 100)
    replica = both.copy.follow()
    replica.append(0, bytes(both.store.raw(0, 50_123)))
    assert replica.record_boundary(50_123) < 50_123
    await both.start()
    await both.equal()


async def test_an_unknown_master_is_looked_for_until_it_is_known(pair, caplog):
    known = []

    async def find():
        master = await both.find()
        return master if known else None

    both = pair(find=find)
    put(both.store, b"one")
    await both.start()
    await eventually(lambda: both.follower.reason == "no nameserver knows it")
    await both.tries(2)
    assert caplog.text.count("no nameserver knows it") == 1
    assert caplog.text.count("master_not_followed") == 1
    known.append(True)
    await both.equal()
    assert both.follower.reason == ""


async def test_a_master_that_falls_silent_is_left_and_connected_again(pair):
    both = pair(heartbeat_s=0.05, housekeeping_s=0.2, master={"heartbeat_s": 60.0})
    put(both.store, b"one")
    await both.start()
    await both.equal()
    first = both.master.slaves[0].address
    await eventually(lambda: both.master.slaves and both.master.slaves[0].address != first)
    await both.equal()


async def test_a_pause_of_the_slave_itself_costs_no_connection(pair):
    clock = ManualClock()
    both = pair(clock=clock)
    put(both.store, b"one")
    await both.start()
    await both.equal()
    address = both.master.slaves[0].address
    clock.advance(30.0)
    await stays(lambda: both.follower.state is FollowerState.FOLLOWING, 0.2)
    put(both.store, b"two")
    await both.equal()
    assert both.master.slaves[0].address == address


async def test_how_far_a_slave_is_behind(pair):
    clock = ManualClock()
    both = pair(clock=clock)
    put(both.store, b"one")
    await both.start()
    await both.equal()
    end = both.copy.commitlog_max_offset
    assert (both.follower.behind_bytes, both.follower.behind_ms, both.follower.master_end) == (0, 0, end)
    both.follower.master_end = end + 700  # told by somebody else who asked the master
    clock.advance(0.5)
    assert (both.follower.behind_bytes, both.follower.behind_ms) == (700, 500)


# --- comparing before following -----------------------------------------------------------------------------------------


def promoted(store, epoch=2):
    """Begin a new epoch, as a master does after an unclean stop or a promotion."""
    store.epochs.begin(epoch, store.commitlog_max_offset)


async def parted(both, common=100, ours=40, theirs=60, size=1000):
    """Give both logs ``common`` equal messages, then each its own; the master's in an epoch of their own."""
    fill(both.store, common, size)
    await both.start()
    await both.equal()
    await both.follower.stop()
    await both.master.stop()
    end = both.store.commitlog_max_offset
    both.copy.lead()
    fill(both.copy, ours, size, start=5000)
    if both.epochs:
        promoted(both.store)
    fill(both.store, theirs, size, start=9000)
    return end


@pytest.mark.parametrize(("ours", "theirs"), [(40, 60), (1, 200), (200, 1), (3, 0), (150, 150)])
async def test_what_the_master_does_not_have_is_cut_off_where_the_epochs_part(pair, caplog, ours, theirs):
    both = pair()
    end = await parted(both, ours=ours, theirs=theirs)
    dropped = both.copy.commitlog_max_offset - end
    await both.start()
    await both.equal()
    await both.state(FollowerState.FOLLOWING)
    assert f"log_cut server=slave bytes={dropped} log_offset={end} " in caplog.text
    assert both.copy.epochs.entries == both.store.epochs.entries
    for queue in range(4):
        assert both.copy.max_offset("orders", queue) == both.store.max_offset("orders", queue)


async def test_bytes_of_an_epoch_that_the_slave_does_not_know_are_kept(pair, caplog):
    """A slave that could not ask its master followed it without taking over the master's new epoch."""
    both = pair()
    fill(both.store, 100)
    await both.start()
    await both.equal()
    known = both.copy.epochs.entries
    promoted(both.store)
    fill(both.store, 100, start=100)
    await both.equal()
    await both.follower.stop()
    both.copy.epochs.adopt(known)
    assert both.store.epochs.entries[-1].start < both.copy.commitlog_max_offset
    end = both.copy.commitlog_max_offset
    await both.follow()
    await both.state(FollowerState.FOLLOWING)
    assert both.copy.commitlog_max_offset == end
    assert "log_cut" not in caplog.text
    assert both.copy.epochs.entries == both.store.epochs.entries


async def test_epochs_that_say_too_little_are_made_up_for_by_comparing_further_back(pair, caplog):
    """As after a store was copied by hand: both have one epoch, and the logs part far before their ends."""
    both = pair()
    end = await parted(both, common=100, ours=400, theirs=400)
    both.copy.epochs.adopt(both.store.epochs.entries)  # says that all of it is the master's
    await both.start()
    await both.equal()
    assert f"log_offset={end} " in caplog.text


async def test_without_epochs_a_log_that_parts_is_left_alone(pair, caplog):
    both = pair(epochs=False)
    end = await parted(both)
    kept = log_bytes(both.copy)
    await both.start()
    await both.state(FollowerState.DIVERGED)
    assert log_bytes(both.copy) == kept
    both.follower.reconnect("again")
    await both.tries(1)
    await both.state(FollowerState.DIVERGED)
    lines = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(lines) == 1
    text = lines[0].getMessage()
    assert f"up to {len(kept)}" in text or f"this one to {len(kept)}" in text
    assert str(both.store.commitlog_max_offset) in text
    assert both.follower.state is FollowerState.DIVERGED
    assert both.master.replicated(1) <= end
    assert both.copy.max_offset("orders", 0) > 0


async def test_a_master_whose_log_ends_earlier_is_noticed_by_its_heartbeats(pair, tmp_path):
    both = pair(epochs=False, master={"heartbeat_s": 0.1})
    fill(both.store, 100)
    await both.start()
    await both.equal()
    await both.follower.stop()
    await both.master.stop()
    both.copy.lead()
    fill(both.copy, 30, start=5000)
    await both.start()
    await both.state(FollowerState.DIVERGED)
    assert both.copy.commitlog_max_offset > both.store.commitlog_max_offset


async def test_an_older_master_is_not_followed_and_nothing_is_cut(pair):
    both = pair()
    fill(both.store, 100)
    await both.start()
    await both.equal()
    await both.follower.stop()
    both.copy.lead()
    promoted(both.copy, 1000)
    fill(both.copy, 30, start=5000)
    kept = log_bytes(both.copy)
    await both.follow()
    await both.state(FollowerState.REFUSED)
    assert "older master" in both.follower.reason
    assert log_bytes(both.copy) == kept


@pytest.mark.parametrize("epochs", [True, False])
async def test_another_stores_log_is_never_followed(pair, epochs):
    both = pair(epochs=epochs)
    fill(both.store, 200)
    if epochs:
        both.copy.epochs.begin(1, 0)
    fill(both.copy, 150, start=7000)
    kept = log_bytes(both.copy)
    await both.start()
    await eventually(lambda: both.follower.state in (FollowerState.REFUSED, FollowerState.DIVERGED))
    if epochs:
        await both.state(FollowerState.REFUSED)
        assert "another store's log" in both.follower.reason
    assert log_bytes(both.copy) == kept


async def test_a_slave_too_far_behind_is_told_what_to_do(pair):
    both = pair()
    fill(both.store, 20)
    await both.start()
    await both.equal()
    await both.follower.stop()
    fill(both.store, 400, start=20)
    both.store.flush()
    both.store.delete_before(4 * SEGMENT_BYTES)
    await both.follow()
    await both.state(FollowerState.REFUSED)
    assert "start with an empty one" in both.follower.reason


async def test_files_of_another_size_are_refused(pair, tmp_path):
    both = pair()
    fill(both.store, 20)
    both.copy.close()
    both.copy = opened(tmp_path / "other", segment_bytes=2 * SEGMENT_BYTES)
    fill(both.copy, 20)
    await both.start()
    await both.state(FollowerState.REFUSED)
    assert "give both the same size" in both.follower.reason


# --- masters that are none ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 100, FollowerState.CONNECTING),
        (struct.pack(">qi", 1, -5), FollowerState.CONNECTING),
        (struct.pack(">qi", 77, 10) + b"x" * 10, FollowerState.CONNECTING),
        (struct.pack(">qi", -9, 0), FollowerState.CONNECTING),
        (struct.pack(">qi", 1, 1 << 30)[:11], FollowerState.CONNECTING),
        (struct.pack(">qi", -1, 32) + bytes(32), FollowerState.REFUSED),
    ],
    ids=["http", "negative length", "wrong offset", "negative offset", "cut off", "asks for a secret"],
)
async def test_garbage_from_the_master_writes_nothing(pair, data, state, request):
    open_transports = set()

    class Garbage(asyncio.Protocol):
        def connection_lost(self, error):
            open_transports.discard(self.transport)

        def connection_made(self, transport):
            self.transport = transport
            open_transports.add(transport)

        def data_received(self, report):
            self.transport.write(data)
            asyncio.get_running_loop().call_later(0.05, self.transport.close)

    server = await asyncio.get_running_loop().create_server(Garbage, "127.0.0.1", 0)
    request.addfinalizer(server.close)
    port = server.sockets[0].getsockname()[1]

    async def find():
        return Master(f"127.0.0.1:{port}", "")

    both = pair(find=find)
    await both.follow()
    await eventually(lambda: both.follower.reason)
    assert both.copy.commitlog_max_offset == 0
    assert both.follower.state is state
    await both.follower.stop()
    server.close()
    await eventually(lambda: not open_transports)


# --- the secret ---------------------------------------------------------------------------------------------------------


async def test_master_and_slave_with_the_same_secret(pair):
    both = pair(secret="the shared secret", master={"secret": "the shared secret"})
    fill(both.store, 100)
    await both.start()
    await both.equal()


@pytest.mark.parametrize(
    ("mine", "masters", "says"),
    [
        ("the shared secret", "another secret...", "refuses the shared secret"),
        (None, "the shared secret", "this slave has none"),
        ("the shared secret", None, "does not ask for the shared secret"),
    ],
)
async def test_without_the_same_secret_nothing_is_copied(pair, monkeypatch, mine, masters, says, caplog):
    monkeypatch.setattr(follower_module, "HANDSHAKE_TIMEOUT_S", 0.2)
    both = pair(secret=mine, master={"secret": masters})
    put(both.store, b"one")
    await both.start()
    await eventually(lambda: says in both.follower.reason)
    assert both.follower.state is FollowerState.REFUSED
    assert both.copy.commitlog_max_offset == 0
    assert both.master.replicated(1) == 0
    assert "give it the same ha_secret" in caplog.text


# --- disks --------------------------------------------------------------------------------------------------------------


async def test_a_full_disk_stops_the_copy_until_there_is_room_and_nothing_false_is_acknowledged(pair, monkeypatch, caplog):
    monkeypatch.setattr(follower_module, "DISK_PAUSES_S", (0.05, 0.1))
    both = pair()
    fill(both.store, 50)
    await both.start()
    await both.equal()
    held = both.copy.commitlog_max_offset
    replica = both.copy.follow()
    full = StoreWriteFailed("/store", "No space left on device")
    monkeypatch.setattr(type(replica), "append", lambda *_: (_ for _ in ()).throw(full))
    fill(both.store, 50, start=50)
    both.wrote()
    await eventually(lambda: "until it has room" in both.follower.reason)
    await both.tries(3)
    assert both.master.replicated(1) <= held
    assert caplog.text.count("No space left on device") == 1
    monkeypatch.undo()
    await both.equal()


async def test_a_disk_that_fails_ends_the_copy(pair, monkeypatch):
    failures = []
    both = pair(failed=failures.append)
    put(both.store, b"one")
    broken = StoreFailed("/store", "Input/output error")
    monkeypatch.setattr(type(both.copy.follow()), "append", lambda *_: (_ for _ in ()).throw(broken))
    await both.start()
    await eventually(lambda: failures)
    assert failures == [broken]
    assert both.follower.state is FollowerState.REFUSED
    assert both.master.replicated(1) <= 1


async def test_queues_that_cannot_be_written_are_tried_again_and_the_log_goes_on(pair, monkeypatch, caplog):
    monkeypatch.setattr(dispatching_module, "RETRY_S", 0.05)
    both = pair()
    replica = both.copy.follow()
    full = StoreWriteFailed("/store", "No space left on device")
    tries = []

    def refuse(*_):
        tries.append(1)
        raise full

    monkeypatch.setattr(type(replica), "dispatch", refuse)
    fill(both.store, 50)
    await both.start()
    end = both.store.commitlog_max_offset
    await eventually(lambda: both.master.replicated(1) == end)
    await eventually(lambda: len(tries) > 3)
    assert caplog.text.count("stay behind the log") == 1
    monkeypatch.undo()
    await both.equal()


async def test_a_slave_whose_queues_fall_behind_lets_its_master_wait(pair, monkeypatch):
    monkeypatch.setattr(follower_module, "MAX_BACKLOG_BYTES", 100_000)
    monkeypatch.setattr(dispatching_module, "STEP_BYTES", 1 << 30)  # the steps wait for their timer
    monkeypatch.setattr(dispatching_module, "GATHER_S", 0.3)
    both = pair(master={"batch_bytes": 4096, "max_bytes_per_s": 3_000_000})
    fill(both.store, 1000)
    await both.start()
    await eventually(lambda: both.follower._link is not None and both.follower._link.paused)
    replica = both.copy.follow()
    held = replica.end
    assert 100_000 < held - replica.dispatched_end < 1_000_000
    assert not both.follower._link.closed
    await both.equal()
    assert not both.follower._link.paused


async def test_a_slave_reads_on_while_its_queues_cannot_be_written(pair, monkeypatch):
    monkeypatch.setattr(follower_module, "MAX_BACKLOG_BYTES", 100_000)
    monkeypatch.setattr(dispatching_module, "RETRY_S", 0.05)
    both = pair(master={"batch_bytes": 4096, "max_bytes_per_s": 3_000_000})
    full = StoreWriteFailed("/store", "No space left on device")
    monkeypatch.setattr(type(both.copy.follow()), "dispatch", lambda *_: (_ for _ in ()).throw(full))
    fill(both.store, 600)
    await both.start()
    end = both.store.commitlog_max_offset
    await eventually(lambda: both.master.replicated(1) == end)
