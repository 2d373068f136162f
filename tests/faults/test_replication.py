"""A SYNC_MASTER and its slave while either is killed or paused and the network between them is cut or silent.

What was acknowledged with SEND_OK is in the slave's log at that moment, byte for byte as in the master's; in the end both logs are equal.

``SPROCKETMQ_FAULT_KILLS`` and ``SPROCKETMQ_FAULT_PARTITIONS`` set how many kills and other faults there are (30 and 5), ``SPROCKETMQ_FAULT_SEED`` repeats
the choices of a run, not its moments.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sprocketmq import AdminClient, Batching, Message, Producer
from sprocketmq.errors import SprocketError
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.net.listening import listen
from sprocketmq.protocol.layout import INT32
from sprocketmq.protocol.message import SendResult, SendStatus
from sprocketmq.testing import eventually
from sprocketmq.testing.proxy import FaultProxy
from sprocketmq.testing.serving import BrokerProcess

KILLS = int(os.environ.get("SPROCKETMQ_FAULT_KILLS", "30"))
PARTITIONS = int(os.environ.get("SPROCKETMQ_FAULT_PARTITIONS", "5"))
SEED = os.environ.get("SPROCKETMQ_FAULT_SEED") or str(random.randrange(1 << 32))
SEGMENT_BYTES = 1 << 20
TOPICS = {"plain": {}, "lists": {"queue.type": "BatchCQ"}}
# Short, so that a round with a dead slave takes less than a second.
SETTINGS = {
    "commitlog_segment_bytes": SEGMENT_BYTES,
    "preallocate": False,
    "slave_timeout_s": 0.5,
    "ha_heartbeat_s": 0.2,
    "ha_housekeeping_s": 1.0,
    "register_interval_s": 1.0,
}


def log_bytes(store: Path, begin: int, end: int) -> bytes:
    """Return the bytes [begin, end) of a commit log; shorter when there are fewer files."""
    found = []
    for start in range(begin - begin % SEGMENT_BYTES, end, SEGMENT_BYTES):
        with contextlib.suppress(FileNotFoundError), (store / "commitlog" / f"{start:020d}").open("rb") as file:
            file.seek(max(0, begin - start))
            found.append(file.read(end - max(begin, start)))
    return b"".join(found)


class Pair:
    """Master and slave in processes of their own, and the network between their HA ports."""

    def __init__(self, tmp_path: Path, namesrv: str, ha_port: int, proxy: FaultProxy) -> None:
        self.proxy = proxy
        common = {"namesrv": namesrv, "name": "broker-a", **SETTINGS}
        self.master = BrokerProcess(tmp_path / "master", role="SYNC_MASTER", ha_port=ha_port, **common)
        self.slave = BrokerProcess(tmp_path / "slave", role="SLAVE", broker_id=1, ha_port=0, ha_master_address=proxy.address, **common)
        self.acknowledged: dict[int, bytes] = {}
        self.newest: deque[tuple[int, bytes]] = deque(maxlen=50)
        self.outcomes: Counter[str] = Counter()

    def check(self, body: bytes, result: SendResult) -> None:
        """Look for a message that was just acknowledged in the slave's log."""
        self.outcomes[result.status.name] += 1
        if result.status is not SendStatus.SEND_OK:
            return
        log_offset = int(result.offset_msg_id[-16:], 16)
        (size,) = INT32.unpack(log_bytes(self.master.store, log_offset, log_offset + 4))
        ours = log_bytes(self.master.store, log_offset, log_offset + size)
        copy = log_bytes(self.slave.store, log_offset, log_offset + size)
        assert body in ours, f"the acknowledged message {body[:30]!r} is not in the master's log at {log_offset} (seed {SEED})"
        assert copy == ours, f"the acknowledged message {body[:30]!r} is not in the slave's log at {log_offset} (seed {SEED})"
        self.acknowledged[log_offset] = body
        self.newest.append((log_offset, ours))

    async def audit(self) -> None:
        """Look again and again whether the slave still has what was acknowledged last; called off in the end."""
        while True:
            for log_offset, ours in list(self.newest):
                copy = log_bytes(self.slave.store, log_offset, log_offset + len(ours))
                assert copy == ours, f"the slave has lost an acknowledged message at {log_offset} (seed {SEED})"
            await asyncio.sleep(0.02)

    # --- faults ---

    async def kill_master(self, lasting_s: float) -> None:
        await asyncio.to_thread(self.master.kill)
        await asyncio.sleep(lasting_s)
        await asyncio.to_thread(self.master.start)

    async def kill_slave(self, lasting_s: float) -> None:
        await asyncio.to_thread(self.slave.kill)
        await asyncio.sleep(lasting_s)
        await asyncio.to_thread(self.slave.start)

    async def kill_both(self, lasting_s: float) -> None:
        await asyncio.gather(self.kill_master(lasting_s), self.kill_slave(lasting_s / 2))

    async def pause_master(self, lasting_s: float) -> None:
        await self._pause(self.master, lasting_s)

    async def pause_slave(self, lasting_s: float) -> None:
        await self._pause(self.slave, lasting_s * 3)

    async def _pause(self, broker: BrokerProcess, lasting_s: float) -> None:
        assert broker._child is not None
        broker._child.send_signal(signal.SIGSTOP)
        await asyncio.sleep(lasting_s)
        broker._child.send_signal(signal.SIGCONT)

    async def partition(self, lasting_s: float) -> None:
        self.proxy.partition()
        await asyncio.sleep(lasting_s * 3)
        await self.proxy.heal()

    async def cut(self, lasting_s: float) -> None:
        self.proxy.cut()
        await asyncio.sleep(lasting_s)


Fault = Callable[[float], Awaitable[None]]


class Senders:
    """Sends of every kind, until they are stopped."""

    def __init__(self, pair: Pair, rng: random.Random) -> None:
        self.pair = pair
        self.rng = rng
        self.numbers = 0
        self.stopped = False

    def message(self, **fields: object) -> Message:
        self.numbers += 1
        body = b"%b %d " % (SEED.encode(), self.numbers) + bytes(self.rng.choice((10, 300, 3000)))
        return Message(self.rng.choice(list(TOPICS)), body, **fields)  # type: ignore[arg-type]

    async def awaited(self, send: Callable[[Message], Awaitable[SendResult]], **fields: object) -> None:
        while not self.stopped:
            message = self.message(**fields)
            try:
                result = await send(message)
            except SprocketError as e:
                await self.failed(e)
            else:
                self.pair.check(bytes(message.body), result)
                if result.status is not SendStatus.SEND_OK:
                    await asyncio.sleep(0.02)

    async def batches(self, producer: Producer) -> None:
        while not self.stopped:
            first = self.message()
            messages = [first, *(Message(first.topic, b"%b+%d" % (first.body[:30], n)) for n in range(4))]
            try:
                results: Sequence[SendResult] = await producer.send_batch(messages)
            except SprocketError as e:
                await self.failed(e)
            else:
                for message, result in zip(messages, results, strict=True):
                    self.pair.check(bytes(message.body), result)
                await asyncio.sleep(0.02)

    async def failed(self, error: SprocketError) -> None:
        self.pair.outcomes[type(error).__name__] += 1
        await asyncio.sleep(0.02)

    def ways(self, plain: Producer, gathering: Producer) -> list[Awaitable[None]]:
        waiting = [self.awaited(plain.send) for _ in range(3)] + [self.awaited(gathering.send) for _ in range(12)]
        return [*waiting, self.batches(plain), self.awaited(plain.send, delay_level=1)]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    names = NameServer(NameServerConfig(port=0))
    await names.start()
    reserved = await listen(asyncio.Protocol, "127.0.0.1", 0)
    ha_port = int(reserved.sockets[0].getsockname()[1])
    reserved.close()
    await reserved.wait_closed()
    async with FaultProxy(f"127.0.0.1:{ha_port}") as proxy:
        pair = Pair(tmp_path, names.address, ha_port, proxy)
        with pair.master, pair.slave:
            try:
                await asyncio.to_thread(pair.master.start)
                await asyncio.to_thread(pair.slave.start)
                yield pair
            finally:
                await names.stop()


@pytest.mark.timeout(1200 if KILLS + PARTITIONS < 100 else 0)
async def test_whatever_dies_each_acknowledged_message_is_on_the_slave(pair: Pair) -> None:
    rng = random.Random(SEED)
    namesrv = pair.master.namesrv
    async with AdminClient(namesrv=namesrv) as admin:
        for topic, attributes in TOPICS.items():
            await admin.create_topic(topic, queues=2, attributes=attributes)
    kills: list[Fault] = [rng.choice((pair.kill_master, pair.kill_slave, pair.kill_both)) for _ in range(KILLS)]
    partitions: list[Fault] = [rng.choice((pair.partition, pair.cut, pair.pause_master, pair.pause_slave)) for _ in range(PARTITIONS)]
    faults = kills + partitions
    rng.shuffle(faults)
    settings = {"namesrv": namesrv, "timeout_s": 2.0, "retries": 0}
    async with (
        Producer("plain", **settings) as plain,
        Producer("gathering", batching=Batching(max_delay_ms=5), auto_batch=True, **settings) as gathering,
    ):
        senders = Senders(pair, rng)
        sending = asyncio.gather(*senders.ways(plain, gathering))
        auditing = asyncio.ensure_future(pair.audit())
        try:
            for fault in faults:
                before = pair.outcomes["SEND_OK"]
                await _until(lambda before=before: pair.outcomes["SEND_OK"] > before + 20, sending, auditing)
                await fault(rng.uniform(0.02, 0.4))
            before = pair.outcomes["SEND_OK"]
            await _until(lambda: pair.outcomes["SEND_OK"] > before + 20, sending, auditing)
        finally:
            senders.stopped = True
            await sending
            auditing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await auditing
    assert pair.outcomes["SEND_OK"] > 20 * len(faults)
    await eventually(lambda: _end(pair.master.store) == _end(pair.slave.store), timeout_s=30)
    await asyncio.to_thread(pair.master.stop)
    await eventually(lambda: _end(pair.master.store) == _end(pair.slave.store), timeout_s=30)
    await asyncio.to_thread(pair.slave.stop)
    end = _end(pair.master.store)
    ours, copy = (log_bytes(store, 0, end) for store in (pair.master.store, pair.slave.store))
    assert copy == ours
    for log_offset, body in pair.acknowledged.items():
        (size,) = INT32.unpack_from(copy, log_offset)
        assert body in copy[log_offset : log_offset + size]
    print(f"seed {SEED}: {len(faults)} faults, {dict(pair.outcomes)}, {end:,} bytes of log")


async def _until(condition: Callable[[], bool], *working: "asyncio.Future[Any]") -> None:
    """Wait for a condition, or raise what those who work meanwhile failed with."""
    await eventually(lambda: condition() or any(task.done() for task in working), timeout_s=60)
    for task in working:
        if task.done():
            task.result()


def _end(store: Path) -> int:
    """Return where the last non-zero byte of a commit log ends."""
    files = sorted((store / "commitlog").iterdir())
    for path in reversed(files):
        if data := path.read_bytes().rstrip(b"\0"):
            return int(path.name) + len(data)
    return 0
