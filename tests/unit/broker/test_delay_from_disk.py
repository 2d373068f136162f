"""Delayed messages that are due and not in memory: their delivery waits for the disk, and nothing else does."""

import pytest
from test_delay import delayed
from test_timer import timed

from sprocketmq.broker.delay import MAX_LOADS
from sprocketmq.testing import eventually


async def park(ask, kind, count):
    for n in range(count):
        if kind == "delayed":
            await delayed(ask, 1, b"m%d" % n)
        else:
            await timed(ask, b"m%d" % n, after_ms=1000)


@pytest.mark.parametrize("kind", ["delayed", "timed"])
async def test_a_delivery_waits_for_the_disk_and_no_request_does(broker, clock, ask, cold_disk, kind):
    await park(ask, kind, 5)
    clock.advance(1)
    broker.delays.fire()
    await eventually(lambda: cold_disk.began)
    assert (await ask.send("others")).code == 0
    await delayed(ask, 2, b"later")
    broker.delays.fire()
    assert (broker.delays.delivered, broker.delays.armed) == (0, False)
    cold_disk.go.set()
    await eventually(lambda: broker.delays.delivered == 5)
    assert await ask.bodies("orders") == [b"m%d" % n for n in range(5)]
    assert broker.delays.armed
    clock.advance(5)
    broker.delays.fire()
    await eventually(lambda: broker.delays.delivered == 6)


@pytest.mark.parametrize("kind", ["delayed", "timed"])
async def test_what_a_stop_interrupts_is_delivered_once_by_the_next_start(start_broker, connect, clock, cold_disk, kind):
    broker = await start_broker()
    await park(await connect(broker), kind, 3)
    clock.advance(1)
    broker.delays.fire()
    await eventually(lambda: cold_disk.began)
    cold_disk.go.set()
    await broker.stop()
    assert broker.delays.delivered in (0, 3)
    again = await start_broker()
    again.delays.fire()
    await eventually(lambda: again.delays.delivered + broker.delays.delivered == 3)
    assert await (await connect(again)).bodies("orders") == [b"m0", b"m1", b"m2"]


async def test_a_disk_that_loses_everything_again_delays_a_delivery_only_so_often(broker, clock, ask, cold_disk, monkeypatch):
    monkeypatch.setattr(cold_disk, "cached", ())
    monkeypatch.setattr("sprocketmq.storage.queues.cold_reads.read_through", lambda *_: setattr(cold_disk, "began", cold_disk.began + 1))
    await park(ask, "delayed", 3)
    clock.advance(1)
    broker.delays.fire()
    await eventually(lambda: broker.delays.delivered == 3)
    assert cold_disk.began == MAX_LOADS
