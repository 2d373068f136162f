"""Queue locks of orderly consumers."""

from sprocketmq.broker.locks import QueueLocks
from sprocketmq.clock import ManualClock
from sprocketmq.protocol.bodies import LockBatchRequest, LockBatchResponse, QueueRef


def queues(*numbers, topic="orders"):
    return [QueueRef(topic, "broker-a", number) for number in numbers]


def test_a_queue_has_one_owner_per_group():
    locks = QueueLocks(ManualClock())
    assert locks.lock("g", "c1", queues(0, 1)) == queues(0, 1)
    assert locks.lock("g", "c2", queues(0, 1, 2)) == queues(2)
    assert locks.lock("g", "c1", queues(0)) == queues(0)
    assert locks.lock("other", "c2", queues(0)) == queues(0)


def test_only_the_owner_unlocks():
    locks = QueueLocks(ManualClock())
    locks.lock("g", "c1", queues(0))
    locks.unlock("g", "c2", queues(0))
    assert locks.lock("g", "c2", queues(0)) == []
    locks.unlock("g", "c1", queues(0))
    assert locks.lock("g", "c2", queues(0)) == queues(0)
    locks.unlock("nobody", "c1", queues(0))


def test_a_lock_runs_out_a_minute_after_the_last_call():
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", "c1", queues(0, 1))
    clock.advance(59)
    locks.lock("g", "c1", queues(0))
    clock.advance(2)
    assert locks.lock("g", "c2", queues(0, 1)) == queues(1)
    clock.advance(61)
    locks.expire()
    assert locks._groups == {}


async def test_locks_over_the_wire(ask):
    def call(code, client, wanted):
        return ask(code, {}, LockBatchRequest("g", client, wanted).encode())

    granted = LockBatchResponse.decode((await call(41, "c1", queues(0, 1))).body)
    assert granted.lock_ok_mq_set == queues(0, 1)
    assert LockBatchResponse.decode((await call(41, "c2", queues(1))).body).lock_ok_mq_set == []
    assert (await call(42, "c1", queues(0, 1))).code == 0
    assert LockBatchResponse.decode((await call(41, "c2", queues(1))).body).lock_ok_mq_set == queues(1)
    invented = await call(41, "c1", queues(0, topic="nosuch") + queues(4, -1))
    assert LockBatchResponse.decode(invented.body).lock_ok_mq_set == []
    assert (await ask(41)).code == 1
