"""A disk that breaks at the k-th sync, or is slow: nothing is acknowledged after the failure, and what was acknowledged before survives.

After a failed sync the system calls the pages clean, so a second try would "succeed" without them; it must not be made.
"""

import random
from typing import Any

import pytest

from sprocketmq import Message, Producer
from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.clock import ManualClock
from sprocketmq.errors import SprocketError, StoreFailed, StoreWriteFailed
from sprocketmq.namesrv import NameServer, NameServerConfig
from sprocketmq.protocol.message import MessageQueue, SendStatus
from sprocketmq.storage.config import StoreConfig
from sprocketmq.testing import eventually
from sprocketmq.testing.ledger import Ledger
from sprocketmq.testing.rig.crash_explorer import check_crash
from sprocketmq.testing.rig.simulated_disk import POWER_LOSS_MODES, SimFileSystem
from sprocketmq.testing.rig.small_store import ROOT, SMALL_FILES, open_store, read_queue
from sprocketmq.testing.rig.workload import Workload

FAILURES = range(1, 21)


@pytest.mark.parametrize("k", FAILURES)
def test_a_store_takes_nothing_after_the_kth_sync_failed(k: int) -> None:
    workload = Workload(f"failing {k}", flush="SYNC_FLUSH", deletes=False)
    workload.start()
    workload.fs.fail("fdatasync", skip=k - 1, times=1)
    with pytest.raises((StoreFailed, StoreWriteFailed)):
        for _ in range(1000):
            workload.send()
            workload.flush(thorough=workload.rng.random() < 0.4)
    refused_from = workload.store.commitlog_max_offset
    for _ in range(3):
        with pytest.raises(StoreFailed, match="until the broker is restarted"):
            workload.send()
        with pytest.raises(StoreFailed):
            workload.store.flush()
    assert workload.store.commitlog_max_offset == refused_from
    workload.store.abandon()
    for mode in POWER_LOSS_MODES:
        rng = random.Random(f"{k} {mode}")
        check_crash(workload.fs.crash(rng, mode), workload.book, rng, killed=False, flush="SYNC_FLUSH")


async def a_cluster(fs: SimFileSystem, **settings: Any) -> tuple[NameServer, Broker]:
    namesrv = NameServer(NameServerConfig(port=0))
    await namesrv.start()
    store = StoreConfig(ROOT, flush_disk_type="SYNC_FLUSH", **{**SMALL_FILES, "commitlog_segment_bytes": 64 << 10})
    broker = Broker(BrokerConfig(store=store, port=0, namesrv=(namesrv.address,), **settings), fs=fs)
    await broker.start()
    return namesrv, broker


def received(disk: SimFileSystem, ledger: Ledger, topic: str) -> None:
    store = open_store(disk, "SYNC_FLUSH")
    for queue_id in range(8):
        for offset, body in read_queue(store, (topic, queue_id))[2].items():
            ledger.received(body.decode(), body, queue=f"{topic}/{queue_id}", offset=offset)
    store.abandon()


@pytest.mark.parametrize("k", FAILURES)
async def test_a_broker_acknowledges_nothing_after_the_kth_sync_of_its_log_failed(k: int) -> None:
    fs = SimFileSystem(clock=ManualClock())
    ledger = Ledger(seed=k)
    namesrv, broker = await a_cluster(fs)
    answers: list[bool] = []
    async with Producer("failing", namesrv=namesrv.address, retries=0) as producer:
        queues = await producer.queues("orders")
        fs.fail("fdatasync", path="/commitlog/", skip=k - 1, times=1)
        for i in range(k + 5):
            queue = MessageQueue("orders", queues[0].broker_name, i % 4)
            ledger.sent(str(i), str(i).encode(), lane=i % 4)
            try:
                result = await producer.send(Message("orders", str(i).encode(), queue=queue))
            except SprocketError:
                answers.append(False)
            else:
                assert result.status is SendStatus.SEND_OK
                ledger.acknowledged(str(i), queue=f"orders/{queue.queue_id}", offset=result.queue_offset)
                answers.append(True)
    assert answers == [True] * (k - 1) + [False] * 6
    assert isinstance(await broker.wait_failed(), StoreFailed)
    await broker.abort()
    await namesrv.stop()
    for mode in POWER_LOSS_MODES:
        ledger.read_again()
        received(fs.crash(random.Random(k), mode), ledger, "orders")
        ledger.check().raise_if_bad()


async def test_a_slow_disk_delays_answers_and_loses_none() -> None:
    """Each sync takes a fifth of a second of the disk's clock; sends share them, and all are answered."""
    clock = ManualClock()
    fs = SimFileSystem(clock=clock)
    fs.slow("fdatasync", 0.2)
    ledger = Ledger()
    namesrv, broker = await a_cluster(fs)
    before = clock.monotonic()
    async with Producer("slow", namesrv=namesrv.address, retries=0) as producer:
        futures = {}
        for i in range(500):
            ledger.sent(str(i), str(i).encode())
            futures[str(i)] = producer.submit(Message("orders", str(i).encode()))
        for identity, future in futures.items():
            assert (await future).status is SendStatus.SEND_OK
            ledger.acknowledged(identity)
    assert 0.2 <= clock.monotonic() - before < 100, "five hundred sends are not five hundred syncs"
    await eventually(lambda: not broker.flusher.acks.waiting)
    disk = fs.crash(random.Random(1), "drop")
    await broker.abort()
    await namesrv.stop()
    received(disk, ledger, "orders")
    ledger.check().raise_if_bad()


def test_a_disk_that_fills_up_in_simulation_refuses_and_takes_again() -> None:
    fs = SimFileSystem(capacity=200 << 10, clock=ManualClock())
    store = open_store(fs, "ASYNC_FLUSH")
    stored: list[bytes] = []
    refused = 0
    for i in range(400):
        body = b"%d " % i + bytes(1000)
        store.stage_message("orders", 0, body, b"", tags_code=0, born_timestamp_ms=1, born_host=store.store_host)
        try:
            store.commit()
        except StoreWriteFailed:
            refused += 1
            if refused == 5:
                fs.capacity = 1 << 20
        else:
            stored.append(body)
    assert 5 <= refused < 50
    assert list(read_queue(store, ("orders", 0))[2].values()) == stored
    store.abandon()
    again = open_store(fs.crash(random.Random(1), "keep"), "ASYNC_FLUSH")
    assert list(read_queue(again, ("orders", 0))[2].values()) == stored
    again.abandon()
