import asyncio
import logging

import pytest

from sprocketmq.client.timers import Timers
from sprocketmq.clock import ManualClock


@pytest.fixture
async def clock():
    return ManualClock()


@pytest.fixture
async def timers(clock):
    timers = Timers(clock)
    yield timers
    timers.close()


async def test_actions_run_in_the_order_of_their_times_and_only_when_due(clock, timers):
    ran = []
    timers.call_later(2, lambda: ran.append("two"))
    timers.call_later(1, lambda: ran.append("one"))
    timers.call_later(1, lambda: ran.append("one again"))
    assert timers.run_due() == 0
    clock.advance(1)
    assert timers.run_due() == 2
    assert ran == ["one", "one again"]
    clock.advance(1)
    timers.run_due()
    assert ran[-1] == "two"


async def test_a_cancelled_action_never_runs(clock, timers):
    timer = timers.call_later(1, lambda: pytest.fail("ran"))
    timer.cancel()
    clock.advance(2)
    assert timers.run_due() == 0


async def test_an_action_that_raises_harms_no_other(clock, timers, caplog):
    ran = []
    timers.call_later(1, lambda: 1 / 0)
    timers.call_later(1, lambda: ran.append(1))
    clock.advance(1)
    with caplog.at_level(logging.ERROR):
        timers.run_due()
    assert ran == [1]
    assert "timed action failed" in caplog.text


async def test_sleep_ends_when_its_time_has_come(clock, timers):
    sleeper = asyncio.ensure_future(timers.sleep(30))
    await asyncio.sleep(0)
    clock.advance(29)
    timers.run_due()
    await asyncio.sleep(0)
    assert not sleeper.done()
    clock.advance(1)
    timers.run_due()
    await sleeper


async def test_after_close_nothing_runs_and_every_sleep_ends(clock, timers):
    timers.call_later(1, lambda: pytest.fail("ran"))
    sleeper = asyncio.ensure_future(timers.sleep(1))
    await asyncio.sleep(0)
    timers.close()
    await sleeper
    timers.call_later(1, lambda: pytest.fail("ran"))
    clock.advance(2)
    assert timers.run_due() == 0
    await timers.sleep(100)


async def test_with_the_real_clock_the_loop_runs_due_actions_itself():
    timers = Timers()
    done = asyncio.Event()
    timers.call_later(60, lambda: pytest.fail("far too early"))
    timers.call_later(0.001, done.set)
    async with asyncio.timeout(60):
        await done.wait()
    timers.close()
