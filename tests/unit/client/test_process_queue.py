from types import SimpleNamespace

import pytest

from sprocketmq.client.process_queue import Limits, ProcessQueue, ReceivedBatch
from sprocketmq.protocol.message import MessageQueue

QUEUE = MessageQueue("t", "a", 0)


def messages(*offsets: int) -> list:
    return [SimpleNamespace(queue_offset=offset) for offset in offsets]


def offsets(batch: ReceivedBatch | None) -> list[int]:
    return [m.queue_offset for m in batch or ()]


@pytest.fixture
def pq() -> ProcessQueue:
    return ProcessQueue(QUEUE, 10, Limits(messages=5, size_bytes=1000, span=20), lambda batch: None)


def test_messages_come_out_in_order_across_pulls_up_to_the_count(pq):
    pq.put(messages(10, 11, 12), 30, 13)
    pq.put(messages(13, 14), 20, 15)
    assert offsets(pq.take(2)) == [10, 11]
    assert offsets(pq.take(10)) == [12, 13, 14]
    assert pq.take(1) is None


def test_the_commit_offset_is_the_oldest_message_not_acknowledged(pq):
    pq.put(messages(10, 11, 12, 13), 40, 14)
    first, second = pq.take(2), pq.take(1)
    assert pq.commit_offset == 10
    assert pq.ack(second)
    assert pq.commit_offset == 10
    assert pq.ack(first)
    assert pq.commit_offset == 13
    assert pq.ack(pq.take(5))
    assert pq.commit_offset == 14


def test_a_pull_that_matched_nothing_moves_the_commit_offset_when_nothing_waits(pq):
    pq.put([], 0, 25)
    assert pq.commit_offset == 25
    pq.put(messages(25), 10, 26)
    pq.put([], 0, 40)
    assert pq.commit_offset == 25


def test_a_batch_given_back_comes_again_first_and_holds_the_commit_offset(pq):
    pq.put(messages(10, 11, 12), 30, 13)
    first, second = pq.take(1), pq.take(1)
    assert pq.give_back(first)
    assert not pq.give_back(first)
    pq.ack(second)
    assert pq.commit_offset == 10
    assert pq.take(5) is first
    pq.ack(first)
    assert pq.commit_offset == 12


def test_an_acknowledgement_counts_once_and_strangers_do_not_count(pq):
    pq.put(messages(10), 10, 11)
    batch = pq.take(1)
    assert pq.ack(batch)
    assert not pq.ack(batch)
    assert not pq.give_back(batch)
    assert not pq.ack(ReceivedBatch(messages(10), QUEUE, 0, lambda b: None))


def test_held_messages_and_bytes_return_to_zero(pq):
    pq.put(messages(10, 11, 12), 100, 13)
    pq.put(messages(13, 14), 33, 15)
    assert (pq.held_messages, pq.held_bytes) == (5, 133)
    for count in (2, 2, 1):
        pq.ack(pq.take(count))
    assert (pq.held_messages, pq.held_bytes) == (0, 0)


def test_pulling_pauses_over_the_limit_of_messages_bytes_or_span(pq):
    pq.put(messages(10, 11, 12, 13, 14), 50, 15)
    assert pq.full == ""
    pq.put(messages(15), 10, 16)
    assert pq.full == "messages"
    batch = pq.take(2)
    assert pq.full == "messages"
    pq.ack(batch)
    assert pq.full == ""
    pq.put(messages(16), 2000, 17)
    assert pq.full == "bytes"


def test_a_batch_that_fails_stops_the_queue_when_the_span_is_reached(pq):
    pq.put(messages(10), 10, 11)
    stuck = pq.take(1)
    for i in range(11, 40):
        if pq.full:
            break
        pq.put(messages(i), 1, i + 1)
        pq.ack(pq.take(1))
    assert pq.full == "span"
    assert pq.next_offset == 31
    pq.ack(stuck)
    assert pq.full == ""
