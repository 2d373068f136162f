"""Moving AutoBatch's batches from the accumulator to the outbox when they are full or due."""

import msgspec

from sprocketmq.client.instance import Instance
from sprocketmq.client.send.accumulator import Accumulator
from sprocketmq.client.send.batch import Batch
from sprocketmq.client.send.encoding import MessageEncoder
from sprocketmq.client.send.outbox import Outbox
from sprocketmq.client.send.requests import SendRequest
from sprocketmq.client.send.waiters import Waiter, WithMessage
from sprocketmq.clock import Clock


class Gathering:
    """Sends the batches of one accumulator when they are due. ``timeout_s`` begins when a batch leaves.

    ``with_messages``: the members of batches bring their messages along (``WithMessage``), for hooks.
    """

    def __init__(
        self,
        accumulator: Accumulator[Waiter],
        encoder: MessageEncoder,
        outbox: Outbox,
        instance: Instance,
        clock: Clock,
        timeout_s: float,
        *,
        with_messages: bool = False,
    ) -> None:
        self._with_messages = with_messages
        self.accumulator = accumulator
        self._encoder = encoder
        self._outbox = outbox
        self._instance = instance
        self._clock = clock
        self._timeout_s = timeout_s
        self._waking = self._turn_ending = self._due_set = False

    def wake(self) -> None:
        """Send the batches that are ready, and schedule the open ones."""
        if self._waking:  # a batch may fail while it is launched; the loop below goes on with the next
            return
        accumulator = self.accumulator
        batch = accumulator.take()
        if batch is not None:
            self._waking = True
            try:
                while batch is not None:
                    self._outbox.launch(self._request_of(batch))
                    batch = accumulator.take()
            finally:
                self._waking = False
        if accumulator.eager:
            self._end_turn_soon()
        elif not self._due_set and (due := accumulator.next_due()) is not None:
            self._due_set = True
            self._instance.timers.call_later(due - self._clock.monotonic(), self._expire)

    def flush(self) -> None:
        """Send every batch now."""
        self.accumulator.flush()
        self.wake()

    def ended(self, batch: Batch[Waiter]) -> None:
        """Record that a batch was answered or has failed, before its waiters get the outcome."""
        self.accumulator.done(batch)

    def told(self) -> None:
        """Send what has gathered at the end of the turn: tasks that were just answered may send more in it (adaptive mode)."""
        if self.accumulator.eager:
            self._end_turn_soon()

    def _request_of(self, batch: Batch[Waiter]) -> SendRequest:
        """Return the request that takes a batch to its broker.

        A batch of one is sent as an ordinary message, which costs the broker and its readers less.
        """
        encoder = self._encoder
        topic, tag, wait_store_ok, queue = batch.key
        count = len(batch.members)
        ids = encoder.ids.take(count)
        if count > 1:
            flag, body = 0, batch.encode(ids)
            properties = encoder.outer_properties(wait_store_ok=wait_store_ok, tag=tag, keys=batch.merged_keys)
        else:
            flag, body, text = batch.only(ids[0])
            properties = msgspec.json.encode(text)
        request = SendRequest(
            topic,
            queue,
            body,
            properties,
            ids if count > 1 else ids[0],
            self._timeout_s,
            self._outbox,
            count=count,
            size=batch.body_bytes,
            flag=flag,
            batch=count > 1,
            gathered=batch,
            gathering=self,
            messages=[member.message for member in batch.members if isinstance(member, WithMessage)] if self._with_messages else (),
        )
        batch.clear()
        return request

    def _end_turn_soon(self) -> None:
        if not self._turn_ending:
            self._turn_ending = True
            self._outbox.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_ending = False
        self.accumulator.end_turn()
        self.wake()
        for conn in self._instance.brokers.open_connections():
            conn.flush()  # the turn is over: waiting for another would only add to the latency

    def _expire(self) -> None:
        self._due_set = False
        self.accumulator.expire()
        self.wake()
