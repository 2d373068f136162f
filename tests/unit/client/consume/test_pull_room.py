"""How much may be on its way to a consumer at once."""

import asyncio

import pytest

from sprocketmq.client.consume import pull_room
from sprocketmq.client.consume.pull_room import PullRoom

SIZE = 100


@pytest.fixture(autouse=True)
def little(monkeypatch):
    monkeypatch.setattr(pull_room, "ON_THE_WAY_BYTES", 2 * SIZE)


def near(room: PullRoom, name: str):
    broker = room.joined(name)
    broker.quickest_s = 0.0
    return broker


async def takes(broker, count: int) -> list[asyncio.Task]:
    """Start ``count`` takes, and let each come as far as it may."""
    tasks = [asyncio.create_task(broker.take(SIZE)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def done(tasks) -> list[bool]:
    await asyncio.sleep(0)
    return [task.done() for task in tasks]


async def test_pulls_wait_while_the_share_is_on_its_way_and_go_on_in_their_order():
    broker = near(PullRoom(), "broker-a")
    tasks = await takes(broker, 4)
    assert await done(tasks) == [True, True, False, False]
    broker.give_back(SIZE)
    assert await done(tasks) == [True, True, True, False]
    late = await takes(broker, 1)
    broker.give_back(SIZE)
    assert await done(tasks + late) == [True, True, True, True, False]
    broker.give_back(SIZE)
    broker.give_back(SIZE)
    assert await done(late) == [True]
    broker.give_back(SIZE)
    assert broker.on_the_way == 0


async def test_an_answer_larger_than_the_share_finds_room_when_it_is_alone():
    broker = near(PullRoom(), "broker-a")
    await broker.take(50 * SIZE)
    waiting = asyncio.create_task(broker.take(50 * SIZE))
    assert await done([waiting]) == [False]
    broker.give_back(50 * SIZE)
    assert await done([waiting]) == [True]


@pytest.mark.parametrize("granted", [False, True])
async def test_a_queue_that_ends_while_it_waits_leaves_its_turn_to_the_next(granted):
    broker = near(PullRoom(), "broker-a")
    tasks = await takes(broker, 4)
    if granted:
        broker.give_back(SIZE)
        tasks[2].cancel()
    else:
        tasks[2].cancel()
        broker.give_back(SIZE)
    await asyncio.sleep(0)
    assert await done(tasks) == [True] * 4
    assert tasks[2].cancelled()
    assert broker.on_the_way == 2 * SIZE


async def test_brokers_have_equal_shares_and_one_that_hangs_takes_nothing_from_the_others():
    room = PullRoom()
    hangs, works = near(room, "broker-a"), near(room, "broker-b")
    assert near(room, "broker-b") is works
    assert await done(await takes(hangs, 2)) == [True, False]
    for _ in range(3):
        await works.take(SIZE)
        works.give_back(SIZE)
    room.left("broker-b")
    assert await done(await takes(works, 2)) == [True, False]
    works.give_back(SIZE)
    works.give_back(SIZE)
    room.left("broker-a")
    assert await done(await takes(works, 2)) == [True, True], "all is its own"


async def test_a_broker_that_is_far_away_may_have_more_on_its_way():
    broker = PullRoom().joined("broker-a")
    assert not broker.full, "nobody knows how far it is"
    broker.quickest_s = 10 * SIZE / pull_room.BYTES_PER_S
    assert (await done(await takes(broker, 12))).count(True) == 10


async def test_room_of_a_consumer_that_has_no_queue_left_is_given_back():
    room = PullRoom()
    broker = near(room, "broker-a")
    tasks = await takes(broker, 3)
    room.left("broker-a")
    tasks[2].cancel()
    broker.give_back(SIZE)
    broker.give_back(SIZE)
    await asyncio.sleep(0)
    assert broker.on_the_way == 0
