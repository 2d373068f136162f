"""The disk fills up and gets room again, over and over: sends are refused with a reason and taken again without a restart, reads go on,
and nothing acknowledged is lost.

Two ways to run out of room for a real ``sprocketmq broker`` process: a small tmpfs filled with ballast (where the user may mount one),
and a limit on the size of its files that is lowered and raised again (anywhere on Linux). A third broker runs in this process on a
simulated disk. ``SPROCKETMQ_DISK_FULL_CYCLES`` sets how often (3 by default), ``SPROCKETMQ_CRASH_SEED`` repeats a run.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.clock import SYSTEM_CLOCK, ManualClock
from sprocketmq.events import fields_of
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.config import StoreConfig
from sprocketmq.testing import eventually
from sprocketmq.testing.ledger import Ledger
from sprocketmq.testing.rig.simulated_disk import SimFileSystem

LONG = "SPROCKETMQ_CRASH_CYCLES" in os.environ
CYCLES = int(os.environ.get("SPROCKETMQ_DISK_FULL_CYCLES", "50" if LONG else "3"))
SEED = os.environ.get("SPROCKETMQ_CRASH_SEED") or str(random.randrange(1 << 32))
TOPIC = "ledger"
LANES = 4
SEGMENT_BYTES = 1 << 20
QUEUE_SEGMENT_BYTES = 20 * 1000
# What a cycle may store; the disk has room for all cycles, ballast takes the rest.
CYCLE_BYTES = 3 << 20
# How much is left on a full disk, cycle by cycle: a little, so that a write fails in its middle, or nothing at all.
ROOM_LEFT = (100_000, 0, 5000)
REFUSED = 14
WAIT_S = 60

pytestmark = pytest.mark.timeout(0 if CYCLES > 3 else 600)


def may_mount(folder: Path) -> bool:
    """Return whether this user may mount a file system."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return False
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, check=False).returncode:
        return False
    subprocess.run(["umount", folder], check=True)
    return True


class BrokerProcess:
    """A broker in a process of its own, under a store directory."""

    def __init__(self, store: Path, **settings: object) -> None:
        self.store = store
        self.settings = {
            "commitlog_segment_bytes": SEGMENT_BYTES,
            "consumequeue_segment_bytes": QUEUE_SEGMENT_BYTES,
            "clean_interval_s": 0.2,
            "flush_interval_s": 0.05,
            "default_topic_queues": LANES,
            # Each key of a big index file would take a page of the small disk.
            "max_hash_slots": 1000,
            "max_index_entries": 20_000,
            # Segments that go to make room would take acknowledged messages along, as they should.
            "clean_file_forcibly": False,
            **settings,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ""

    async def start(self) -> None:
        sets = [f"--set={key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in self.settings.items()]
        command = [sys.executable, "-m", "sprocketmq", "serve", "--port=0", "--namesrv-port=0", f"--store={self.store}", *sets]
        self.process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        line = (await asyncio.to_thread(self.process.stdout.readline)).decode()
        assert line.startswith("ready"), (line, self.process.stderr.read().decode() if self.process.stderr else "")
        self.address = fields_of(line)["broker"]

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def end(self, how: int) -> tuple[int, str]:
        """Send a signal, and return the exit code and what the broker said on standard error."""
        assert self.process is not None
        self.process.send_signal(how)
        _, said = await asyncio.to_thread(self.process.communicate, timeout=WAIT_S)
        return self.process.returncode, said.decode()

    async def settle(self) -> None:
        """A process flushes its queues when it wants to."""

    async def stop(self) -> None:
        code, said = await self.end(signal.SIGTERM)
        assert code == 0, said

    async def kill(self) -> None:
        code, said = await self.end(signal.SIGKILL)
        assert code == -signal.SIGKILL, said  # anything else (SIGBUS) came before


class BrokerHere:
    """A broker in this process on a simulated disk."""

    def __init__(self, fs: SimFileSystem, **settings: object) -> None:
        self.fs = fs
        self.settings = settings
        self.broker: Broker | None = None

    async def start(self) -> None:
        store = StoreConfig(
            Path("/store"),
            commitlog_segment_bytes=SEGMENT_BYTES,
            consumequeue_segment_bytes=QUEUE_SEGMENT_BYTES,
            **{"clean_file_forcibly": False, **self.settings},
        )
        config = BrokerConfig(store=store, port=0, clean_interval_s=0.1, flush_interval_s=0.05, default_topic_queues=LANES)
        self.broker = Broker(config, fs=self.fs)
        await self.broker.start()

    @property
    def address(self) -> str:
        assert self.broker is not None
        return self.broker.address

    @property
    def alive(self) -> bool:
        return self.broker is not None and self.broker.failure is None

    async def settle(self) -> None:
        """Let it flush its queues now."""
        assert self.broker is not None
        flusher = self.broker.flusher
        flusher.settled_end = -1
        flusher.settle()
        await eventually(lambda: not flusher.settling)

    async def stop(self) -> None:
        assert self.broker is not None
        await self.broker.stop()

    async def kill(self) -> None:
        assert self.broker is not None
        await self.broker.abort()


class Ballast:
    """A small disk, filled with a file that is not the broker's."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ballast"

    def fill(self, leave: int) -> None:
        size = 0
        with self.file.open("wb") as file:
            for _ in range(1000):  # the broker takes and gives back some of it meanwhile
                disk = os.statvfs(self.file.parent)
                room = disk.f_bavail * disk.f_frsize - leave
                if room <= 0:
                    return
                with contextlib.suppress(OSError):
                    os.posix_fallocate(file.fileno(), size, room)
                    size += room
        raise AssertionError(f"the disk does not get full: {room} bytes are left")

    def restarted(self) -> None:
        """The disk is as full as before."""

    def free(self) -> None:
        self.file.unlink()


class SizeLimit:
    """A limit on the size of the broker's files: with less than a segment, nothing new can be written."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker

    def _limit(self, size: int) -> None:
        import resource

        assert self.broker.process is not None
        resource.prlimit(self.broker.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def fill(self, leave: int) -> None:
        self._limit(SEGMENT_BYTES // 2)

    def restarted(self) -> None:
        self.fill(0)  # the limit went with the process

    def free(self) -> None:
        import resource

        self._limit(resource.RLIM_INFINITY)


class SimulatedDisk:
    """A disk in memory whose size changes."""

    def __init__(self, fs: SimFileSystem) -> None:
        self.fs = fs
        self.free()

    def fill(self, leave: int) -> None:
        total, free = self.fs.usage("/")
        self.fs.capacity = total - free + leave

    def restarted(self) -> None:
        """The disk is as full as before."""

    def free(self) -> None:
        self.fs.capacity = 4 * CYCLE_BYTES * CYCLES


class Traffic:
    """Senders, one per queue, and a reader; the ledger knows what they did."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.ledger = Ledger(seed=seed)
        self.refused: set[str] = set()
        self.remarks: list[str] = []
        self.count = 0
        self.ends = [0] * LANES
        self.seen: dict[tuple[int, int], int] = {}
        self.pool = ConnectionPool(expected="broker")

    async def connect(self, address: str) -> None:
        self.pool = ConnectionPool(expected="broker")
        self.conn = await self.pool.get(address)

    async def close(self) -> None:
        await self.pool.close()

    async def send(self, lane: int) -> bool:
        """Send a message or a batch and tell whether it was acknowledged; anything but yes and 14 is an error."""
        count = self.rng.choice((1, 1, 5))
        ids = [f"{lane}-{self.count + i}" for i in range(count)]
        self.count += count
        bodies = [identity.encode() + b" " + self.rng.randbytes(self.rng.choice((10, 1000, 8000))) for identity in ids]
        for identity, body in zip(ids, bodies, strict=True):
            self.ledger.sent(identity, body, lane=lane)
        ext = {"a": "pg", "b": TOPIC, "c": "TBW102", "d": str(LANES), "e": str(lane), "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
        ext |= {"k": "false", "m": "false" if count == 1 else "true"}
        body = bodies[0] if count == 1 else encode_batch([(0, each, b"") for each in bodies])
        answer = await self.conn.request(310 if count == 1 else 320, ext=ext, body=body, timeout_s=WAIT_S)
        if answer.code == 0:
            first = int(answer.ext["queueOffset"])
            for i, identity in enumerate(ids):
                self.ledger.acknowledged(identity, queue=f"{TOPIC}/{lane}", offset=first + i)
            return True
        assert answer.code == REFUSED, (answer.code, answer.remark)
        self.refused.update(ids)
        self.remarks.append(answer.remark or "")
        return False

    async def some(self, count: int) -> None:
        """Send on all lanes until so many were taken; a look at the disk from before there was room may refuse a few."""

        async def one(lane: int) -> None:
            for _ in range(count):
                before = len(self.remarks)
                try:
                    await eventually(lambda: self.send(lane), timeout_s=WAIT_S, what="a send once there was room")
                except TimeoutError as e:
                    raise AssertionError(f"{e}: {self.remarks[before : before + 2]} ... {self.remarks[-2:]}") from None

        await asyncio.gather(*(one(lane) for lane in range(LANES)))

    async def until_refused(self) -> None:
        """Send on all lanes until each was refused, and a few times more."""

        async def one(lane: int) -> None:
            sent = 0
            while await self.send(lane):
                sent += 1
                assert sent < 2 * CYCLE_BYTES // 1000, "the disk never got full"
            for _ in range(3):
                await self.send(lane)

        await asyncio.gather(*(one(lane) for lane in range(LANES)))

    async def pull(self, lane: int, offset: int) -> Command:
        ext = {"consumerGroup": "cg", "topic": TOPIC, "queueId": str(lane), "queueOffset": str(offset), "maxMsgNums": "500"}
        ext |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
        return await self.conn.request(11, ext=ext, timeout_s=WAIT_S)

    async def check(self, *, again: bool = False) -> None:
        """Read on where the last check ended, with ``again`` from the beginning, and balance the books."""
        for lane in range(LANES):
            offset = 0 if again else self.ends[lane]
            while True:
                answer = await self.pull(lane, offset)
                if answer.code != 0:
                    assert answer.code == 19, (answer.code, answer.remark)  # the end
                    break
                for message in decode_records(answer.body, verify_crc=True):
                    assert message.queue_offset == offset, f"queue {lane} has a gap at {offset}"
                    self.note(lane, offset, message.body)
                    offset += 1
            assert offset == self.ends[lane], f"queue {lane} ended at {self.ends[lane]} before and at {offset} now"
        self.ledger.check().raise_if_bad()

    def note(self, lane: int, offset: int, body: bytes) -> None:
        if offset < self.ends[lane]:
            assert self.seen[lane, offset] == crc32(body), f"offset {offset} of queue {lane} was another message before"
            return
        identity = body.split(b" ", 1)[0].decode()
        assert identity not in self.refused, f"message {identity} was refused and is stored"
        self.ledger.received(identity, body, queue=f"{TOPIC}/{lane}", offset=offset)
        self.seen[lane, offset] = crc32(body)
        self.ends[lane] = offset + 1


async def fill_and_free(broker: BrokerProcess | BrokerHere, disk: Ballast | SizeLimit | SimulatedDisk) -> None:
    """Run the cycles, stop, start once more and look at everything again."""
    print(f"SPROCKETMQ_CRASH_SEED={SEED}")
    traffic = Traffic(SEED)
    await broker.start()
    try:
        await traffic.connect(broker.address)
        for cycle in range(CYCLES):
            await traffic.some(5)
            disk.fill(ROOM_LEFT[cycle % len(ROOM_LEFT)])
            await traffic.until_refused()
            await broker.settle()
            await traffic.check()
            assert broker.alive
            if cycle % 3 == 1:  # a full disk keeps no broker from starting, and no message from being read
                await traffic.close()
                await (broker.stop() if cycle % 2 else broker.kill())
                await broker.start()
                disk.restarted()
                await traffic.connect(broker.address)
                await traffic.check(again=True)
                await traffic.until_refused()
            disk.free()
            await traffic.some(5)
            await traffic.check()
            assert broker.alive
        await traffic.close()
        await broker.stop()
        await broker.start()
        await traffic.connect(broker.address)
        await traffic.check(again=True)
        assert any("disk" in remark or "space" in remark or "large" in remark for remark in traffic.remarks), traffic.remarks[:3]
    finally:
        await traffic.close()
        if broker.alive:
            await broker.stop()
    print(f"{CYCLES} cycles: {traffic.ledger.check()}, {len(traffic.refused)} refused")


@pytest.mark.parametrize(("mode", "warning_ratio"), [("ASYNC_FLUSH", 0.9), ("ASYNC_FLUSH", 1.0), ("SYNC_FLUSH", 1.0)])
async def test_a_disk_that_fills_up_is_refused_and_used_again(tmp_path: Path, mode: str, warning_ratio: float) -> None:
    settings = {"flush_disk_type": mode, "disk_warning_ratio": warning_ratio}
    folder = tmp_path / "disk"
    if may_mount(folder):
        size = (CYCLE_BYTES * CYCLES + (16 << 20)) >> 10
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", folder], check=True)
        try:
            broker = BrokerProcess(folder / "store", **settings)
            await fill_and_free(broker, Ballast(folder))
        finally:
            subprocess.run(["umount", folder], check=True)
    elif sys.platform.startswith("linux"):
        broker = BrokerProcess(tmp_path / "store", **settings)
        await fill_and_free(broker, SizeLimit(broker))
    else:
        fs = SimFileSystem(clock=ManualClock(SYSTEM_CLOCK.time_ms()))
        await fill_and_free(BrokerHere(fs, **settings), SimulatedDisk(fs))


async def test_a_disk_that_refuses_writes_without_being_full_is_tried_until_it_takes_them(tmp_path: Path) -> None:
    # The rules about full disks are off: each send finds out for itself.
    if sys.platform.startswith("linux"):
        broker = BrokerProcess(tmp_path / "store", disk_warning_ratio=1.0, disk_clean_forcibly_ratio=1.0, disk_max_used_ratio=1.0)
        await fill_and_free(broker, SizeLimit(broker))
    else:
        fs = SimFileSystem(clock=ManualClock(SYSTEM_CLOCK.time_ms()))
        await fill_and_free(BrokerHere(fs, disk_warning_ratio=1.0), SimulatedDisk(fs))


@pytest.mark.parametrize("warning_ratio", [0.9, 1.0])
async def test_a_simulated_disk_fills_up_in_the_same_way(warning_ratio: float) -> None:
    fs = SimFileSystem(clock=ManualClock(SYSTEM_CLOCK.time_ms()))
    await fill_and_free(BrokerHere(fs, disk_warning_ratio=warning_ratio), SimulatedDisk(fs))


class Newest:
    """Senders of a broker that must give up old messages to take new ones, and what they were told is stored where."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.stored: list[dict[int, int]] = [{} for _ in range(LANES)]
        self.lowest = [0] * LANES
        self.refused = 0

    async def send(self, lane: int) -> bool:
        body = self.traffic.rng.randbytes(8000)
        ext = {"a": "pg", "b": TOPIC, "c": "TBW102", "d": str(LANES), "e": str(lane), "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
        answer = await self.traffic.conn.request(310, ext={**ext, "k": "false", "m": "false"}, body=body, timeout_s=WAIT_S)
        if answer.code == REFUSED:
            self.refused += 1
            return False
        assert answer.code == 0, (answer.code, answer.remark)
        self.stored[lane][int(answer.ext["queueOffset"])] = crc32(body)
        return True

    async def some(self, count: int) -> None:
        async def one(lane: int) -> None:
            for _ in range(count):
                await eventually(lambda: self.send(lane), timeout_s=WAIT_S, what="a send")

        await asyncio.gather(*(one(lane) for lane in range(LANES)))

    async def check(self) -> None:
        """Read each queue from the beginning it has now: everything stored from there on must be there."""
        for lane, stored in enumerate(self.stored):
            offset: int | None = None
            answer = await self.traffic.pull(lane, 0)
            if answer.code == 21:
                offset = int(answer.ext["nextBeginOffset"])
                assert offset == int(answer.ext["minOffset"])
            low = offset = offset or 0
            assert low >= self.lowest[lane], "the beginning of a queue went back"
            self.lowest[lane] = low
            while True:
                answer = await self.traffic.pull(lane, offset)
                if answer.code == 21 and int(answer.ext["nextBeginOffset"]) > offset:
                    low = offset = int(answer.ext["nextBeginOffset"])  # more was deleted meanwhile
                    continue
                if answer.code != 0:
                    assert answer.code == 19, (answer.code, answer.remark)
                    break
                for message in decode_records(answer.body, verify_crc=True):
                    assert message.queue_offset == offset, f"queue {lane} has a gap at {offset}"
                    assert stored.get(offset, crc32(message.body)) == crc32(message.body), f"offset {offset} is another message"
                    offset += 1
            lost = [known for known in stored if known >= offset]
            assert not lost, f"queue {lane} ends at {offset}, acknowledged up to {max(lost)}"


async def test_a_disk_too_small_for_everything_keeps_the_newest_through_kills(tmp_path: Path) -> None:
    print(f"SPROCKETMQ_CRASH_SEED={SEED}")
    folder = tmp_path / "disk"
    mounted = may_mount(folder)
    broker: BrokerProcess | BrokerHere
    if mounted:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={16 << 10}k", "tmpfs", folder], check=True)
        broker = BrokerProcess(folder / "store", clean_file_forcibly=True, clean_interval_s=0.1)
    else:
        fs = SimFileSystem(capacity=16 << 20, clock=ManualClock(SYSTEM_CLOCK.time_ms()))
        broker = BrokerHere(fs, clean_file_forcibly=True)
    newest = Newest(Traffic(SEED))
    try:
        for _ in range(CYCLES):
            await broker.start()
            await newest.traffic.connect(broker.address)
            await newest.some(200)  # 6.4 MB each time
            await newest.check()
            await newest.traffic.close()
            await broker.kill()
        await broker.start()
        await newest.traffic.connect(broker.address)
        await newest.check()
        assert min(newest.lowest) > 0, "nothing was deleted"
        await newest.traffic.close()
        await broker.stop()
    finally:
        await newest.traffic.close()
        if mounted:
            if broker.alive:
                await broker.kill()
            subprocess.run(["umount", folder], check=True)
    print(f"{CYCLES} kills: {sum(map(len, newest.stored))} stored, {sum(newest.lowest)} deleted, {newest.refused} refused")
