"""Messages are chosen by their ids: alike by whoever looks at them, one by one or as a batch, and as many as asked for."""

import math

import pytest

from sprocketmq.client.traces.sampling import Sampler
from sprocketmq.clock import ManualClock
from sprocketmq.protocol.ids import MessageIdFactory


@pytest.mark.parametrize("share", [0.002, 0.01, 0.1, 0.5, 0.999])
def test_a_batch_is_chosen_from_as_its_messages_are_one_by_one(share):
    clock = ManualClock()
    factory = MessageIdFactory("10.0.0.1", 77, clock)
    sampler = Sampler(share)
    for size in (1, 3, 255, 256, 700):
        ids = factory.take(size)
        assert sampler.choose(ids) == [(index, msg_id) for index, msg_id in enumerate(ids) if sampler.chooses(msg_id)]
        assert sampler.choose(list(ids)) == sampler.choose(ids)
        clock.advance(0.001)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.25, 0.9])
@pytest.mark.parametrize(("size", "advance_s"), [(1, 0.001), (3, 0.001), (300, 0.001), (1, 0.7)])
def test_the_share_is_kept(share, size, advance_s):
    clock = ManualClock()
    factory = MessageIdFactory("10.0.0.1", 77, clock)
    sampler = Sampler(share)
    blocks = 40_000
    chosen = 0
    for _ in range(blocks):
        chosen += len(sampler.choose(factory.take(size)))
        clock.advance(advance_s)
    # Ids begin with random bytes: six standard deviations.
    assert chosen == pytest.approx(share * blocks * size, abs=6 * size * math.sqrt(share * blocks))


def test_messages_of_one_moment_are_chosen_together():
    factory = MessageIdFactory("10.0.0.1", 77, ManualClock())
    sampler = Sampler(0.5)
    blocks: dict[str, set[bool]] = {}
    for _ in range(5_000):
        msg_id = factory.next()
        blocks.setdefault(msg_id[:-2], set()).add(sampler.chooses(msg_id))
    assert all(len(decisions) == 1 for decisions in blocks.values())
    assert set().union(*blocks.values()) == {True, False}


def test_every_id_is_chosen_by_a_share_of_one_and_none_by_one_of_nothing():
    ids = MessageIdFactory("10.0.0.1", 77).take(600)
    assert Sampler(1.0).choose(ids) == list(enumerate(ids))
    assert Sampler(0.0).choose(ids) == []
    assert not Sampler(0.0).chooses(ids[5])


@pytest.mark.parametrize("msg_id", ["", "x", "no hex", "é" * 32, "\ud800" * 8, "ac1e" * 7 + "ffff", "7F00000100002A9F0000000000000xyz"])
def test_ids_of_other_kinds_are_chosen_in_the_same_way(msg_id):
    assert Sampler(1.0).chooses(msg_id)
    assert Sampler(1.0).choose([msg_id]) == [(0, msg_id)]
    assert not Sampler(0.0).chooses(msg_id)
    chosen = Sampler(0.5).chooses(msg_id)
    assert Sampler(0.5).choose([msg_id, msg_id]) == ([(0, msg_id), (1, msg_id)] if chosen else [])
