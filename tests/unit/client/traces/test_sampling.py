"""Messages are chosen by their ids: alike by whoever looks at them, one by one or as a batch, and as many as asked for."""

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
def test_the_share_is_kept(share):
    clock = ManualClock()
    factory = MessageIdFactory("10.0.0.1", 77, clock)
    sampler = Sampler(share)
    amount = chosen = 0
    for _ in range(400):
        chosen += len(sampler.choose(factory.take(500)))
        amount += 500
        clock.advance(0.003)
    assert chosen == pytest.approx(share * amount, rel=0.4)


def test_single_messages_with_a_time_of_their_own_are_chosen_as_often():
    clock = ManualClock()
    factory = MessageIdFactory("10.0.0.1", 77, clock)
    sampler = Sampler(0.1)
    chosen = 0
    for _ in range(20_000):
        chosen += sampler.chooses(factory.next())
        clock.advance(0.001)
    assert chosen == pytest.approx(2000, rel=0.2)


def test_every_id_is_chosen_by_a_share_of_one_and_none_by_one_of_nothing():
    ids = MessageIdFactory("10.0.0.1", 77).take(600)
    assert Sampler(1.0).choose(ids) == list(enumerate(ids))
    assert Sampler(0.0).choose(ids) == []
    assert not Sampler(0.0).chooses(ids[5])


@pytest.mark.parametrize("msg_id", ["", "x", "no hex", "é" * 32, "ac1e" * 7 + "ffff", "7F00000100002A9F0000000000000xyz"])
def test_ids_of_other_kinds_are_chosen_only_when_all_are(msg_id):
    assert Sampler(1.0).chooses(msg_id)
    assert Sampler(1.0).choose([msg_id]) == [(0, msg_id)]
    assert not Sampler(0.999).chooses(msg_id)
