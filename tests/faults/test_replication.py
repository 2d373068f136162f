"""A master and its slave while either is killed or paused and the network between them is partitioned or cut.

What a SYNC_MASTER acknowledged with SEND_OK is in the slave's log at that moment, byte for byte as in the master's; in the end both logs are equal.
What an ASYNC_MASTER takes with it when it is lost for ever is at most the lag that it reported.

``SPROCKETMQ_FAULT_KILLS`` and ``SPROCKETMQ_FAULT_PARTITIONS`` set how many kills (30) and partitions (5) there are, and as many cuts and pauses as
partitions. ``SPROCKETMQ_FAULT_SEED`` repeats the choices of a run, not its moments.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sprocketmq import AdminClient, Batching, Message, Producer, PullConsumer
from sprocketmq.broker.replication.roles import promotion_epoch
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

    def __init__(self, tmp_path: Path, namesrv: str, ha_port: int, proxy: FaultProxy, *, role: str, **settings: Any) -> None:
        self.proxy = proxy
        common = {"namesrv": namesrv, "name": "broker-a", **SETTINGS, **settings}
        self.master = BrokerProcess(tmp_path / "master", role=role, ha_port=ha_port, **common)
        self.slave = BrokerProcess(tmp_path / "slave", role="SLAVE", broker_id=1, ha_port=0, ha_master_address=proxy.address, **common)
        self.waits_for_slave = role == "SYNC_MASTER"
        self.acknowledged: list[tuple[int, bytes]] = []
        self.newest: deque[tuple[int, bytes]] = deque(maxlen=50)
        self.outcomes: Counter[str] = Counter()

    def record(self, log_offset: int) -> bytes:
        """Return a record of the master's log."""
        (size,) = INT32.unpack(log_bytes(self.master.store, log_offset, log_offset + 4))
        return log_bytes(self.master.store, log_offset, log_offset + size)

    def check(self, body: bytes, result: SendResult) -> None:
        """Record a message that was just acknowledged; with a SYNC_MASTER, look for it in the slave's log."""
        self.outcomes[result.status.name] += 1
        if result.status is not SendStatus.SEND_OK:
            return
        log_offset = int(result.offset_msg_id[-16:], 16)
        self.acknowledged.append((log_offset, body))
        if self.waits_for_slave:
            self._check_copy(log_offset, body)

    def _check_copy(self, log_offset: int, body: bytes) -> None:
        ours = self.record(log_offset)
        size = len(ours)
        copy = log_bytes(self.slave.store, log_offset, log_offset + size)
        assert body in ours, f"the acknowledged message {body[:30]!r} is not in the master's log at {log_offset} (seed {SEED})"
        assert copy == ours, f"the acknowledged message {body[:30]!r} is not in the slave's log at {log_offset} (seed {SEED})"
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
        await self.pause(self.master, lasting_s)

    async def pause_slave(self, lasting_s: float) -> None:
        await self.pause(self.slave, lasting_s * 3)

    async def pause(self, broker: BrokerProcess, lasting_s: float) -> None:
        os.kill(broker.pid, signal.SIGSTOP)
        await asyncio.sleep(lasting_s)
        os.kill(broker.pid, signal.SIGCONT)

    async def partition(self, lasting_s: float) -> None:
        self.proxy.partition()
        await asyncio.sleep(lasting_s * 3)
        await self.proxy.heal()

    async def silence_master(self, lasting_s: float) -> None:
        """Partition the network in one direction: the slave's reports arrive, and nothing comes back."""
        self.proxy.stall(to_server=False)
        await asyncio.sleep(lasting_s * 3)
        await self.proxy.heal()

    async def silence_slave(self, lasting_s: float) -> None:
        """Partition the network in the other direction: the slave has everything, and its reports do not arrive."""
        self.proxy.stall(to_client=False)
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


@contextlib.asynccontextmanager
async def running(tmp_path: Path, role: str, **settings: Any) -> AsyncIterator[Pair]:
    """A nameserver here, master and slave in their processes, and the topics."""
    names = NameServer(NameServerConfig(port=0))
    await names.start()
    reserved = await listen(asyncio.Protocol, "127.0.0.1", 0)
    ha_port = int(reserved.sockets[0].getsockname()[1])
    reserved.close()
    await reserved.wait_closed()
    async with FaultProxy(f"127.0.0.1:{ha_port}") as proxy:
        pair = Pair(tmp_path, names.address, ha_port, proxy, role=role, **settings)
        with pair.master, pair.slave:
            try:
                await asyncio.to_thread(pair.master.start)
                await asyncio.to_thread(pair.slave.start)
                async with AdminClient(namesrv=names.address) as admin:
                    for topic, attributes in TOPICS.items():
                        await admin.create_topic(topic, queues=2, attributes=attributes)
                yield pair
            finally:
                await names.stop()


class Load:
    """Sends of all kinds to a pair; what a SYNC_MASTER acknowledged is looked for again and again."""

    def __init__(self, pair: Pair, working: "Sequence[asyncio.Future[Any]]") -> None:
        self._pair = pair
        self._working = working

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, or raise what those who work meanwhile failed with."""
        await eventually(lambda: condition() or any(task.done() for task in self._working), timeout_s=60)
        for task in self._working:
            if task.done():
                task.result()

    async def acknowledged(self, more: int = 20) -> None:
        """Wait until more messages than these are acknowledged from now on."""
        before = self._pair.outcomes["SEND_OK"]
        await self.until(lambda: self._pair.outcomes["SEND_OK"] > before + more)


@contextlib.asynccontextmanager
async def sending(pair: Pair, rng: random.Random) -> AsyncIterator[Load]:
    settings: dict[str, Any] = {"namesrv": pair.master.namesrv, "timeout_s": 2.0, "retries": 0}
    async with (
        Producer("plain", **settings) as plain,
        Producer("gathering", batching=Batching(max_delay_ms=5), auto_batch=True, **settings) as gathering,
    ):
        senders = Senders(pair, rng)
        sends = asyncio.gather(*senders.ways(plain, gathering))
        auditing = asyncio.ensure_future(pair.audit())
        try:
            yield Load(pair, [sends, auditing])
        finally:
            senders.stopped = True
            await sends
            auditing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await auditing


async def stop_and_compare(pair: Pair) -> int:
    """Wait until both logs are equal, stop both, look for everything that was acknowledged, and return where the logs end."""
    await eventually(lambda: _end(pair.master.store) == _end(pair.slave.store), timeout_s=60)
    await asyncio.to_thread(pair.master.stop)
    await eventually(lambda: _end(pair.master.store) == _end(pair.slave.store), timeout_s=30)
    await asyncio.to_thread(pair.slave.stop)
    end = _end(pair.master.store)
    ours, copy = (log_bytes(store, 0, end) for store in (pair.master.store, pair.slave.store))
    assert copy == ours
    for log_offset, body in pair.acknowledged:
        (size,) = INT32.unpack_from(copy, log_offset)
        assert body in copy[log_offset : log_offset + size]
    return end


@pytest.mark.timeout(1200 if KILLS + PARTITIONS < 100 else 0)
async def test_whatever_dies_each_acknowledged_message_is_on_the_slave(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    async with running(tmp_path, "SYNC_MASTER") as pair:
        kills: list[Fault] = [rng.choice((pair.kill_master, pair.kill_slave, pair.kill_both)) for _ in range(KILLS)]
        partitions: list[Fault] = [rng.choice((pair.partition, pair.silence_master, pair.silence_slave)) for _ in range(PARTITIONS)]
        others: list[Fault] = [rng.choice((pair.cut, pair.pause_master, pair.pause_slave)) for _ in range(PARTITIONS)]
        faults = kills + partitions + others
        rng.shuffle(faults)
        async with sending(pair, rng) as load:
            for fault in faults:
                await load.acknowledged()
                await fault(rng.uniform(0.02, 0.4))
            await load.acknowledged()
        assert pair.outcomes["SEND_OK"] > 20 * len(faults)
        end = await stop_and_compare(pair)
    counts = f"{len(kills)} kills, {len(partitions)} partitions, {len(others)} cuts and pauses"
    print(f"seed {SEED}: {counts}, {dict(pair.outcomes)}, {end:,} bytes of log")


# Longer than `ha_housekeeping_s`, after which a master lets a silent slave go, and a slave its master.
STOPPED_S = 30.0


@pytest.mark.long
@pytest.mark.parametrize("side", ["master", "slave"])
async def test_either_side_may_be_stopped_for_longer_than_the_other_waits(tmp_path: Path, side: str) -> None:
    rng = random.Random(SEED)
    async with running(tmp_path, "SYNC_MASTER", slave_timeout_s=2.5, ha_heartbeat_s=5.0, ha_housekeeping_s=20.0) as pair:
        stopped: BrokerProcess = getattr(pair, side)
        async with sending(pair, rng) as load:
            await load.acknowledged()
            pausing = asyncio.ensure_future(pair.pause(stopped, STOPPED_S))
            await load.until(pausing.done)
            await load.acknowledged()
        end = await stop_and_compare(pair)
    print(f"{side} stopped for {STOPPED_S:g} s: {dict(pair.outcomes)}, {end:,} bytes of log")


# --- an ASYNC_MASTER that is lost for ever ---


@dataclass(frozen=True)
class Report:
    """What the master said of its lag, and how many messages were acknowledged before it was asked."""

    acknowledged: int
    log_end: int
    behind_bytes: int


async def lag_of(pair: Pair, admin: AdminClient) -> Report | None:
    """Ask the master for its lag; None while no slave follows."""
    acknowledged = len(pair.acknowledged)
    status = await admin.ha_status(f"127.0.0.1:{pair.master.port}")
    links = status.ha_connection_info
    return Report(acknowledged, status.master_commit_log_max_offset, links[0].diff) if links else None


async def everything(pair: Pair, expected: set[bytes]) -> set[bytes]:
    """Return the bodies that a consumer finds, once all that are expected are there: delayed ones take a second."""
    found: set[bytes] = set()
    async with PullConsumer("after", namesrv=pair.master.namesrv) as consumer:
        await consumer.assign([queue for topic in TOPICS for queue in await consumer.queues(topic)])

        async def all_found() -> bool:
            found.update(message.body for message in await consumer.poll(1000, timeout_s=0.5))
            return expected <= found

        await eventually(all_found, timeout_s=60)
    return found


@pytest.mark.parametrize("network", ["quick", "slow", "silent"])
async def test_an_async_master_that_is_lost_takes_no_more_with_it_than_the_lag_it_reported(tmp_path: Path, network: str) -> None:
    rng = random.Random(SEED)
    async with (
        running(tmp_path, "ASYNC_MASTER", ha_housekeeping_s=60.0) as pair,
        AdminClient(namesrv=pair.master.namesrv, timeout_s=2.0) as admin,
    ):
        reports: list[Report] = []

        async def watch() -> None:
            while True:
                with contextlib.suppress(SprocketError):
                    if (report := await lag_of(pair, admin)) is not None:
                        reports.append(report)
                await asyncio.sleep(0.005)

        async with sending(pair, rng) as load:
            await load.acknowledged()
            watching = asyncio.ensure_future(watch())
            # A slave that has copied nothing could not be promoted; one of an empty log reports one byte.
            await load.until(lambda: bool(reports) and reports[-1].log_end - reports[-1].behind_bytes > 1)
            if network == "slow":
                pair.proxy.delay_s = 0.2
            elif network == "silent":
                pair.proxy.stall(to_server=False)
            await load.acknowledged(100)
            if network != "quick":
                await load.until(lambda: reports[-1].behind_bytes > 0)
            await asyncio.to_thread(pair.master.kill)
            pair.proxy.refuse()  # what was under way is lost with the master
            watching.cancel()
        slave = f"127.0.0.1:{pair.slave.port}"
        await admin.change_master(slave, slave, promotion_epoch(1))
        left = (await admin.broker_epochs(slave)).epoch_list[-1].start_offset
        assert log_bytes(pair.slave.store, 0, left) == log_bytes(pair.master.store, 0, left)
        last = reports[-1]
        assert left >= last.log_end - last.behind_bytes
        lost = [(log_offset, body) for log_offset, body in pair.acknowledged if log_offset >= left]
        reported = {log_offset for log_offset, _ in pair.acknowledged[: last.acknowledged] if log_offset >= left}
        lost_bytes = sum(len(pair.record(log_offset)) for log_offset in reported)
        assert lost_bytes <= last.behind_bytes
        found = await everything(pair, {body for log_offset, body in pair.acknowledged if log_offset < left})
        assert found.isdisjoint(body for _, body in lost)
        assert lost or network != "silent"
    print(
        f"{network} network, seed {SEED}: {last.behind_bytes} bytes behind in the last report, of what was acknowledged until then {lost_bytes} bytes"
        f" are lost; in all {len(lost)} of {len(pair.acknowledged)} acknowledged messages"
    )


def _end(store: Path) -> int:
    """Return where the last non-zero byte of a commit log ends."""
    files = sorted((store / "commitlog").iterdir())
    for path in reversed(files):
        if data := path.read_bytes().rstrip(b"\0"):
            return int(path.name) + len(data)
    return 0
