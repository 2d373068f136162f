"""Delayed messages against a model: whatever happens to broker and clock, each comes once, and not before its time."""

import random

import pytest
from test_delay import fire

from sprocketmq.testing.rig.simulated_disk import POWER_LOSS_MODES, SimFileSystem

SEEDS = range(6)
STEPS = 50
LEVELS_S = (1, 5, 10, 30, 60)


class Model:
    """A broker that is stopped, killed and saved at any moment, and what it was sent: body and the time from which it may come."""

    def __init__(self, start_broker, connect, clock, rng):
        self.start_broker, self.connect, self.clock, self.rng = start_broker, connect, clock, rng
        self.due = {}
        self.sync = rng.random() < 0.3

    async def start(self):
        flush = "SYNC_FLUSH" if self.sync else "ASYNC_FLUSH"
        self.broker = await self.start_broker(store={"flush_disk_type": flush})
        self.broker.topics.create_internal("orders", 1)
        self.ask = await self.connect(self.broker)

    async def send(self):
        body = b"%d" % len(self.due)
        if self.rng.random() < 0.6:
            level = self.rng.randint(1, 5)
            asked, wait_ms = f"DELAY\x01{level}\x02", LEVELS_S[level - 1] * 1000
        else:
            wait_ms = self.rng.randint(1, 90_000)
            asked = f"TIMER_DELAY_MS\x01{wait_ms}\x02"
        assert (await self.ask.send("orders", body, properties=asked)).code == 0
        self.due[body] = self.clock.time_ms() + wait_ms

    async def advance(self):
        self.clock.advance(self.rng.choice((0.05, 0.7, 3, 20)))
        fire(self.broker)
        await self.check()

    async def stop(self):
        await self.broker.stop()
        self.clock.advance(self.rng.choice((0, 0, 15)))
        await self.start()

    async def kill(self):
        await self.broker.abort()
        self.clock.advance(self.rng.choice((0, 0, 15)))
        await self.start()

    async def save(self):
        self.broker.delays.progress.note()
        if self.rng.random() < 0.7:
            self.broker.store.publish(self.broker.store.flush_log())
        if self.broker.delays.progress.note():
            self.broker.files.save_delays()
            await self.broker.files.delays.saved()
            await self.broker.files.timers.saved()

    async def check(self):
        self.broker.store.publish(self.broker.store.flush_log())
        fire(self.broker)
        self.broker.store.publish(self.broker.store.flush_log())
        came = await self.ask.bodies("orders", count=1000)
        assert len(came) == len(set(came))
        now = self.clock.time_ms()
        assert all(self.due[body] <= now for body in came)
        late = [body for body, due in self.due.items() if due + 1000 <= now and body not in came]
        assert not late


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_message_comes_once_and_in_time(start_broker, connect, clock, seed):
    rng = random.Random(seed)
    model = Model(start_broker, connect, clock, rng)
    await model.start()
    for _ in range(STEPS):
        step = rng.choices((model.send, model.advance, model.save, model.stop, model.kill), (8, 5, 2, 1, 2))[0]
        await step()
    clock.advance(200)
    await model.check()
    assert len(await model.ask.bodies("orders", count=1000)) == len(model.due)


@pytest.mark.parametrize("mode", POWER_LOSS_MODES)
@pytest.mark.parametrize("seed", range(3))
async def test_lost_power_loses_and_repeats_nothing_of_a_broker_that_syncs(start_broker, connect, clock, tmp_path, seed, mode):
    rng = random.Random(f"{seed} {mode}")
    disk = SimFileSystem(clock=clock)
    disk.make_dirs(str(tmp_path))
    disk.sync_all()
    sent = []
    for _ in range(4):
        broker = await start_broker(
            disk=disk, store={"flush_disk_type": "SYNC_FLUSH", "commitlog_segment_bytes": 1 << 20}, register_interval_s=60.0
        )
        broker.topics.create_internal("orders", 1)
        await broker.files.topics.saved()
        ask = await connect(broker)
        for _ in range(25):
            if rng.random() < 0.6:
                asked = rng.choice(("DELAY\x011\x02", "DELAY\x012\x02", f"TIMER_DELAY_MS\x01{rng.randint(1, 9000)}\x02"))
                sent.append(b"%d" % len(sent))
                assert (await ask.send("orders", sent[-1], properties=asked)).code == 0
            else:
                clock.advance(rng.choice((0.3, 2)))
                fire(broker)
            if rng.random() < 0.2:
                broker.files.save_offsets()
                await broker.files.delays.saved()
                await broker.files.timers.saved()
        disk = disk.crash(rng, mode)
        await broker.abort()
    broker = await start_broker(disk=disk, store={"flush_disk_type": "SYNC_FLUSH", "commitlog_segment_bytes": 1 << 20})
    clock.advance(60)
    fire(broker)
    broker.store.publish(broker.store.flush_log())
    ask = await connect(broker)
    came = await ask.bodies("orders", count=1000)
    assert sorted(came) == sorted(sent)
