from types import SimpleNamespace

import pytest

from sprocketmq.client.consume.process_queue import CacheLimits, ProcessQueue
from sprocketmq.client.consume.received_batch import BEHIND, DEAD_LETTER, ReceivedBatch
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.message import MessageQueue

QUEUE = MessageQueue("t", "a", 0)
LIMITS = CacheLimits(messages=5, size_bytes=1000, span=20)


def messages(*offsets: int) -> list:
    return [SimpleNamespace(queue_offset=offset) for offset in offsets]


def offsets(batch: ReceivedBatch | None) -> list[int]:
    return [m.queue_offset for m in batch or ()]


def marks(batch: ReceivedBatch, **how: bool) -> list[tuple[int, int]]:
    return [(m.queue_offset, level) for m, level in batch.to_retry(**how)]


@pytest.fixture
def pq() -> ProcessQueue:
    return ProcessQueue(QUEUE, 10, LIMITS, lambda batch: None)


@pytest.fixture
def ordered() -> ProcessQueue:
    return ProcessQueue(QUEUE, 10, LIMITS, lambda batch: None, serial=True)


# --- handing out --------------------------------------------------------------------------------------------------------


def test_messages_come_out_in_order_across_pulls_up_to_the_count(pq):
    pq.put(messages(10, 11, 12), 30, 13)
    pq.put(messages(13, 14), 20, 15)
    assert offsets(pq.take(2)) == [10, 11]
    assert offsets(pq.take(10)) == [12, 13, 14]
    assert pq.take(1) is None


def test_a_whole_pull_is_one_batch_when_it_fits(pq):
    pq.put(messages(10, 11, 12), 30, 13)
    pq.put(messages(13), 20, 14)
    assert offsets(pq.take(3)) == [10, 11, 12]
    assert offsets(pq.take(3)) == [13]


def test_the_commit_offset_is_the_oldest_message_not_consumed(pq):
    pq.put(messages(10, 11, 12, 13), 40, 14)
    first, second = pq.take(2), pq.take(1)
    assert pq.commit_offset == 10
    pq.finish(second)
    assert pq.commit_offset == 10
    pq.finish(first)
    assert pq.commit_offset == 13
    pq.finish(pq.take(5))
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
    pq.finish(second)
    assert pq.commit_offset == 10
    assert pq.take(5) is first
    pq.finish(first)
    assert pq.commit_offset == 12


def test_an_end_counts_once_and_strangers_do_not_count(pq):
    pq.put(messages(10, 11), 10, 12)
    batch = pq.take(1)
    pq.finish(batch)
    pq.finish(batch)
    assert pq.held_messages == 1
    assert not pq.give_back(batch)
    assert pq.finish(ReceivedBatch(messages(10), QUEUE, 0, 1, 0, lambda b: None), batch) is None
    assert pq.held_messages == 1


def test_a_paused_queue_hands_out_nothing(pq):
    pq.put(messages(10), 10, 11)
    pq.paused = True
    assert not pq.ready
    assert pq.take(1) is None
    assert pq.full == "paused"
    pq.paused = False
    assert pq.full == ""
    assert offsets(pq.take(1)) == [10]


# --- what is left of a batch ---------------------------------------------------------------------------------------------


def test_what_is_left_of_a_batch_holds_the_commit_offset_until_it_is_sent_back(pq):
    pq.put(messages(10, 11, 12, 13), 40, 14)
    batch = pq.take(4)
    rest = pq.finish(batch, [batch[1], batch[3]])
    assert offsets(rest) == [11, 13]
    assert (pq.commit_offset, pq.held_messages) == (11, 2)
    pq.consumed(rest, [batch[1]])
    assert pq.commit_offset == 13
    pq.consumed(rest, [batch[3]])
    assert pq.commit_offset == 14
    assert (pq.held_messages, pq.held_bytes) == (0, 0)


def test_what_is_left_may_be_handed_out_again_with_one_attempt_more(pq):
    pq.put(messages(10, 11, 12), 30, 13)
    batch = pq.take(3)
    rest = pq.finish(batch, [batch[2]])
    pq.give_back(rest)
    again = pq.take(3)
    assert (offsets(again), again.attempts) == ([12], 1)
    assert offsets(batch) == [10, 11, 12]
    pq.finish(again)
    assert (pq.commit_offset, pq.held_messages) == (13, 0)


def test_what_is_left_keeps_its_place_before_younger_batches(pq):
    pq.put(messages(10, 11, 12), 30, 13)
    first, second = pq.take(1), pq.take(1)
    pq.finish(first, list(first))
    pq.finish(second, list(second))
    assert pq.commit_offset == 10


def test_a_late_end_of_a_batch_that_was_ended_for_it_has_no_effect(pq):
    pq.put(messages(10, 11), 30, 12)
    batch = pq.take(2)
    rest = pq.finish(batch, list(batch))
    assert pq.finish(batch) is None
    assert not pq.give_back(batch)
    assert pq.held_messages == 2
    pq.consumed(rest, list(rest))
    assert pq.held_messages == 0


def test_retry_and_done_decide_about_single_messages(pq):
    pq.put(messages(10, 11, 12), 30, 13)
    batch = pq.take(3)
    assert marks(batch, failed=False) == []
    assert marks(batch, failed=True) == [(10, 0), (11, 0), (12, 0)]
    batch.done(batch[0])
    batch.retry(batch[1], 5)
    assert marks(batch, failed=False) == [(11, 5)]
    assert marks(batch, failed=True) == [(11, 5), (12, 0)]
    batch.done(batch[1])
    assert marks(batch, failed=False) == []


@pytest.mark.parametrize("level", [19, -2, 1.0, True, "3", None])
def test_a_delay_level_that_cannot_be_is_refused(pq, level):
    pq.put(messages(10), 30, 11)
    batch = pq.take(1)
    with pytest.raises(ConfigError, match="delay_level"):
        batch.retry(batch[0], level)
    assert marks(batch, failed=False) == []


def test_a_message_of_another_batch_is_refused(pq):
    pq.put(messages(10, 11), 30, 12)
    batch, other = pq.take(1), pq.take(1)
    with pytest.raises(ConfigError, match="not part of this batch"):
        batch.retry(other[0])
    with pytest.raises(ConfigError, match="not part of this batch"):
        batch.done(other[0])


def test_batches_held_too_long_are_found_but_not_those_that_wait(pq):
    pq.put(messages(10, 11, 12), 30, 13)
    first, second, third = pq.take(1, now=0.0), pq.take(1, now=5.0), pq.take(1, now=9.0)
    assert pq.overdue(6.0) == [first, second]
    pq.give_back(first)
    pq.finish(second, list(second))
    assert pq.overdue(6.0) == []
    assert pq.overdue(10.0) == [third]
    assert pq.take(1, now=8.0) is first
    assert pq.overdue(9.0) == [first]


# --- ordered queues -----------------------------------------------------------------------------------------------------


def test_an_ordered_queue_hands_out_one_batch_at_a_time(ordered):
    ordered.put(messages(10, 11, 12), 30, 13)
    first = ordered.take(1)
    assert not ordered.ready
    assert ordered.take(1) is None
    ordered.finish(first)
    assert offsets(ordered.take(1)) == [11]


def test_nothing_overtakes_what_failed_in_an_ordered_queue(ordered):
    ordered.put(messages(10, 11, 12), 30, 13)
    batch = ordered.take(2)
    rest = ordered.finish(batch, list(batch))
    assert ordered.take(1) is None
    ordered.give_back(rest)
    again = ordered.take(1)
    assert (offsets(again), again.attempts) == ([10, 11], 1)
    ordered.finish(again)
    assert offsets(ordered.take(1)) == [12]


def test_messages_behind_a_failed_one_come_again_with_it_when_ordered(ordered):
    ordered.put(messages(10, 11, 12, 13), 30, 14)
    batch = ordered.take(4)
    batch.retry(batch[1])
    batch.done(batch[2])
    assert marks(batch, failed=False, orderly=True) == [(11, 0), (13, BEHIND)]
    batch.retry(batch[1], DEAD_LETTER)
    assert marks(batch, failed=False, orderly=True) == [(11, DEAD_LETTER)]


def test_an_ordered_queue_that_was_moved_waits_for_the_handler_of_before(ordered):
    ordered.put(messages(10, 11), 30, 12)
    batch = ordered.take(1)
    ordered.seek(50)
    ordered.put(messages(50), 10, 51)
    assert ordered.take(1) is None
    ordered.finish(batch)
    assert offsets(ordered.take(1)) == [50]


# --- moving and limits --------------------------------------------------------------------------------------------------


def test_seek_forgets_what_is_held_and_ends_of_before_have_no_effect(pq):
    pq.put(messages(10, 11, 12, 13), 40, 14)
    old, given = pq.take(1), pq.take(1)
    pq.give_back(given)
    pq.seek(3)
    assert (pq.next_offset, pq.commit_offset, pq.held_messages, pq.held_bytes, pq.full) == (3, 3, 0, 0, "")
    assert pq.persisted != 3
    assert pq.take(1) is None
    pq.put(messages(3), 10, 4)
    pq.finish(old)
    assert not pq.give_back(given)
    assert (pq.commit_offset, pq.held_messages) == (3, 1)


def test_held_messages_and_bytes_return_to_zero(pq):
    pq.put(messages(10, 11, 12), 100, 13)
    pq.put(messages(13, 14), 33, 15)
    assert (pq.held_messages, pq.held_bytes) == (5, 133)
    for count in (2, 2, 1):
        batch = pq.take(count)
        rest = pq.finish(batch, batch[1:])
        if rest:
            pq.consumed(rest, list(rest))
    assert (pq.held_messages, pq.held_bytes) == (0, 0)


def test_pulling_pauses_over_the_limit_of_messages_bytes_or_span(pq):
    pq.put(messages(10, 11, 12, 13, 14), 50, 15)
    assert pq.full == ""
    pq.put(messages(15), 10, 16)
    assert pq.full == "messages"
    batch = pq.take(2)
    assert pq.full == "messages"
    pq.finish(batch)
    assert pq.full == ""
    pq.put(messages(16), 2000, 17)
    assert pq.full == "bytes"


def test_a_message_that_cannot_be_sent_back_stops_the_queue_when_the_span_is_reached(pq):
    pq.put(messages(10), 10, 11)
    batch = pq.take(1)
    stuck = pq.finish(batch, list(batch))
    for i in range(11, 40):
        if pq.full:
            break
        pq.put(messages(i), 1, i + 1)
        pq.finish(pq.take(1))
    assert pq.full == "span"
    assert pq.next_offset == 31
    pq.consumed(stuck, list(stuck))
    assert pq.full == ""


def test_what_no_handler_was_given_is_forgotten_as_if_it_had_not_been_pulled(pq):
    pq.put(messages(10, 11, 12), 30, 13)
    pq.put(messages(13, 14), 20, 15)
    batch = pq.take(2)
    pq.forget()
    assert (pq.held_messages, pq.position, pq.commit_offset) == (2, 12, 10)
    assert not pq.ready
    pq.finish(batch)
    assert (pq.held_messages, pq.held_bytes, pq.commit_offset) == (0, 0, 12)
