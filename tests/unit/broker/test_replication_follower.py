"""A slave follows its master: first copy, disconnects, restarts, comparing before following, divergence, disks that refuse."""

import pytest
from replicating import Pair, fill, put

from sprocketmq.broker.replication.follower import FollowerState


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
