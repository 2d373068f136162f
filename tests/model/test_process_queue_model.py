"""The queue of a consumer against a model of it: whatever handlers do, nothing is lost, nothing is committed too early, all is accounted."""

from types import SimpleNamespace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sprocketmq.client.consume.process_queue import CacheLimits, ProcessQueue
from sprocketmq.client.consume.received_batch import ReceivedBatch
from sprocketmq.protocol.message import MessageQueue

QUEUE = MessageQueue("t", "a", 0)
LIMITS = CacheLimits(messages=20, size_bytes=2000, span=60)


class Consuming(RuleBasedStateMachine):
    """Messages go from waiting to handled, and are consumed, returned, left over, or forgotten by a seek."""

    @initialize(serial=st.booleans(), start=st.integers(0, 5))
    def begin(self, serial: bool, start: int) -> None:
        self.pq = ProcessQueue(QUEUE, start, LIMITS, lambda batch: None, serial=serial)
        self.serial = serial
        # Every offset that is pulled and not consumed.
        self.open: set[int] = set()
        self.next = start
        self.committed = start
        self.handling: list[ReceivedBatch] = []
        self.leftovers: list[ReceivedBatch] = []
        self.returned: list[list[int]] = []
        self.stale: list[ReceivedBatch] = []
        self.handed: set[int] = set()

    @precondition(lambda self: not self.pq.full)
    @rule(amount=st.integers(0, 6), gap=st.integers(0, 3), size=st.integers(1, 99))
    def pull(self, amount: int, gap: int, size: int) -> None:
        offsets = list(range(self.next, self.next + amount))
        self.next += amount + gap
        self.pq.put([SimpleNamespace(queue_offset=offset) for offset in offsets], size if amount else 0, self.next)
        self.open.update(offsets)

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        batch = self.pq.take(count)
        if batch is None:
            return
        offsets = [m.queue_offset for m in batch]
        assert offsets == sorted(offsets)
        assert set(offsets) <= self.open
        assert not set(offsets) & {m.queue_offset for other in self.handling for m in other}
        if self.returned:
            assert offsets == self.returned.pop(0)
        else:
            assert len(batch) <= count
            assert not set(offsets) & self.handed
            assert offsets == sorted(self.open - self.handed)[: len(offsets)]
        if self.serial:
            assert not self.handling
            assert not self.leftovers
            assert offsets[0] == min(self.open)
        self.handed.update(offsets)
        self.handling.append(batch)

    @precondition(lambda self: self.handling)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        batch = self.handling.pop(data.draw(st.integers(0, len(self.handling) - 1)))
        kept = data.draw(st.lists(st.sampled_from(list(batch)), unique_by=id))
        kept = [m for m in batch if m in kept]
        rest = self.pq.finish(batch, kept)
        self.open -= {m.queue_offset for m in batch if m not in kept}
        assert (rest is None) == (not kept)
        if rest is not None:
            assert list(rest) == kept
            assert rest.attempts == batch.attempts + 1
            self.leftovers.append(rest)
        self.stale.append(batch)

    @precondition(lambda self: self.leftovers)
    @rule(data=st.data())
    def send_back(self, data: st.DataObject) -> None:
        rest = data.draw(st.sampled_from(self.leftovers))
        sent = data.draw(st.lists(st.sampled_from(list(rest)), unique_by=id))
        self.pq.consumed(rest, sent)
        self.open -= {m.queue_offset for m in sent}
        if not rest:
            self.leftovers.remove(rest)

    @precondition(lambda self: self.leftovers)
    @rule()
    def have_leftovers_again(self) -> None:
        rest = self.leftovers.pop(0)
        assert self.pq.give_back(rest)
        self.returned.append([m.queue_offset for m in rest])

    @precondition(lambda self: self.handling)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        batch = self.handling.pop(data.draw(st.integers(0, len(self.handling) - 1)))
        assert self.pq.give_back(batch)
        assert not self.pq.give_back(batch)
        self.returned.append([m.queue_offset for m in batch])

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def end_what_has_ended(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.stale))
        before = (self.pq.commit_offset, self.pq.held_messages)
        assert self.pq.finish(batch, list(batch)) is None
        assert not self.pq.give_back(batch)
        assert (self.pq.commit_offset, self.pq.held_messages) == before

    @precondition(lambda self: not (self.serial and self.handling))
    @rule(offset=st.integers(0, 100))
    def seek(self, offset: int) -> None:
        self.pq.seek(offset)
        self.stale += self.handling + self.leftovers
        self.handling.clear()
        self.leftovers.clear()
        self.returned.clear()
        self.open.clear()
        self.handed.clear()
        self.next = self.committed = offset

    @invariant()
    def nothing_is_committed_before_it_is_consumed(self) -> None:
        commit = self.pq.commit_offset
        assert commit == (min(self.open) if self.open else self.next)
        assert commit >= self.committed
        self.committed = commit

    @invariant()
    def everything_is_accounted_for(self) -> None:
        assert self.pq.held_messages == len(self.open)
        assert self.pq.held_bytes >= 0
        if not self.open:
            assert self.pq.held_bytes == 0

    def teardown(self) -> None:
        """All that is left can still be consumed."""
        for batch in self.handling:
            self.pq.finish(batch)
        for rest in self.leftovers:
            self.pq.consumed(rest, list(rest))
        while (batch := self.pq.take(4)) is not None:
            self.pq.finish(batch)
        assert (self.pq.held_messages, self.pq.held_bytes, self.pq.commit_offset) == (0, 0, self.next)


TestConsuming = Consuming.TestCase
TestConsuming.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
