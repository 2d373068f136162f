"""The load of one worker: messages of all its producers, at a rate or as many as their client accepts."""

import asyncio
import itertools
import struct
import time
from collections.abc import Sequence

from sprocketmq.omb.driver import OmbProducer
from sprocketmq.omb.pacing import Alarm, Limiter
from sprocketmq.omb.plan import STAMP_BYTES, WorkerPlan
from sprocketmq.omb.tally import Sent, Tally

_STAMP = struct.Struct(">Q")
# After so many messages the loop reads responses.
BURST = 64
# Messages that are due within this time share one intended time, that of the first, and one stamp.
SHARED_S = 100e-6
# A wake-up costs 30 us: above 10,000 messages/s they come together for a full burst, or for this long.
GATHER_S = 500e-6


class Load:
    """Sends while it is told to."""

    def __init__(self, plan: WorkerPlan, producers: Sequence[OmbProducer], tally: Tally) -> None:
        self._rate = plan.rate
        self._tally = tally
        self._producers = list(producers)
        self._next_producer = itertools.cycle(self._producers)
        self._tails = [payload[STAMP_BYTES:] for payload in plan.payloads]
        self._next_tail = itertools.cycle(self._tails)
        self._next_key = itertools.cycle([key.encode() for key in plan.keys] or [None])
        self._next_tag = itertools.cycle(plan.tags or (None,))
        self._same = len(self._tails) == 1 and not plan.keys and not plan.tags
        self._sending = asyncio.Event()
        self._limiter: Limiter | None = None
        gather_s = min(GATHER_S, BURST / plan.rate) if plan.rate * SHARED_S > 1 else 0.0
        self._gather_ns = int(gather_s * 1e9)
        self._burst = max(1, min(BURST, int(plan.rate * SHARED_S))) if plan.rate else BURST

    def begin(self) -> None:
        """Send from now on; messages that were due while the load was on hold are not made up for."""
        self._limiter = Limiter(self._rate, time.perf_counter_ns()) if self._rate else None
        self._sending.set()

    def hold(self) -> None:
        """Send nothing until ``begin``."""
        self._sending.clear()

    async def probe(self) -> None:
        """Send one message by each producer."""
        for producer in self._producers:
            await self._send(producer, 1, time.perf_counter_ns())

    async def run(self) -> None:
        """Send until cancelled."""
        alarm = Alarm()
        try:
            while True:
                await self._sending.wait()
                if self._limiter is None:
                    await self._send(next(self._next_producer), self._burst, time.perf_counter_ns())
                    await asyncio.sleep(0)
                    continue
                due = self._limiter.due(time.perf_counter_ns())
                if not due:
                    await alarm.until(self._limiter.next_ns + self._gather_ns)
                    continue
                for _ in range(0, min(due, BURST), self._burst):
                    count = min(due, self._burst)
                    due -= count
                    await self._send(next(self._next_producer), count, self._limiter.take(count))
                await asyncio.sleep(0)
        finally:
            alarm.close()

    async def _send(self, producer: OmbProducer, count: int, intended_ns: int) -> None:
        """Send ``count`` messages that were due at ``intended_ns``; with a rate, waiting for room counts as their delay."""
        tally = self._tally
        done = Sent(tally, intended_ns)
        stamp = _STAMP.pack(time.time_ns() // 1000)
        send = producer.send
        size = 0
        key: bytes | None = None
        tag: str | None = None
        payload = stamp + self._tails[0]
        for _ in range(count):
            if not self._same:
                payload = stamp + next(self._next_tail)
                key = next(self._next_key)
                tag = next(self._next_tag)
            while not send(key, payload, done, tag):
                await producer.room()
                await asyncio.sleep(0)  # even if it returned at once
                if self._limiter is None:  # at the maximum rate a message is due when there is room
                    done = Sent(tally, time.perf_counter_ns())
                    stamp = _STAMP.pack(time.time_ns() // 1000)
                    payload = stamp + payload[STAMP_BYTES:]
            size += len(payload)
        tally.sent_bytes += size
        if self._limiter is not None:
            delay = time.perf_counter_ns() - intended_ns
            tally.delay_ns.extend([delay] * count)
