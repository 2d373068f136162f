"""What traces cost a client without sockets: microseconds of processor time for one message. ``python -m benchmarks.micro.traces``.

Producers as in ``benchmarks.micro.client``, and a push consumer whose queue is filled from pulled bodies of 256 messages: traces off, of 1 %
of the messages, and of all, in turns; ``unlimited``
without a limit to their share of the time. ``consume_32`` has a handler that takes 32 messages at a time, ``consume_batchcq`` inner batches.
Trace messages are made and go nowhere. ``traced`` is the share of the records that were made: the rest was dropped to keep to ``cpu_share``.
"""

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import uvloop

from benchmarks.micro import client
from benchmarks.report import spread, write_result
from sprocketmq import Batching, Message, Producer, PushConsumer, TraceConfig
from sprocketmq.client.consume.process_queue import CacheLimits, ProcessQueue
from sprocketmq.client.consume.pull_requests import locate_messages
from sprocketmq.client.loop_bound import OPEN
from sprocketmq.client.traces.writer import TraceWriter
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.codes import SYSFLAG_INNER_BATCH, SYSFLAG_NEED_UNWRAP
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.message import MessageQueue, SendResult
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import encode_record, pack_host

KINDS: dict[str, bool | TraceConfig] = {
    "off": False,
    "1%": TraceConfig(sample=0.01),
    "1% unlimited": TraceConfig(sample=0.01, cpu_share=1),
    "all": True,
    "all unlimited": TraceConfig(cpu_share=1),
}
# Messages of a pull, and of the batches that they were sent in.
PULLED, TOGETHER = 256, 64
PULLS = 235
REPEATS = 5
ROUNDS = 5


class Figure(NamedTuple):
    """Microseconds of a message, and how many records were made and dropped."""

    us: float
    made: int
    dropped: int


class _Nowhere:
    """Takes the trace messages."""

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def submit(self, message: Message, callback: Callable[[SendResult | None, BaseException | None], object], /) -> None:
        callback(None, None)


async def measure(work: Callable[[], Awaitable[int]], writer: TraceWriter | None) -> Figure:
    """Do the work once and return its cost; ``work`` returns the number of its messages."""
    before = writer.stats() if writer is not None else None
    gc.collect()
    began = time.process_time()
    messages = await work()
    us = (time.process_time() - began) / messages * 1e6
    if writer is None or before is None:
        return Figure(us, 0, 0)
    after = writer.stats()
    return Figure(us, after.written + after.waiting - before.written - before.waiting, after.dropped - before.dropped)


async def produce(trace: bool | TraceConfig, *, auto_batch: bool, submits: bool) -> Figure:
    """Send with a producer, by ``submit`` or by awaiting tasks."""
    producer = Producer("pg", namesrv=client.ADDRESS, batching=Batching() if auto_batch else None, tls=False, trace=trace)
    await client.connect(producer)
    writer = producer._trace_writer
    if writer is not None:
        writer._make_producer = _Nowhere

    async def work() -> int:
        await (client.submit_with_callbacks if submits else client.send)(producer)
        return client.MESSAGES

    await work()
    figure = await measure(work, writer)
    producer._instance.producer_groups.clear()  # there is nobody to unregister from
    await producer.close()
    return figure


def pulled_body(ids: MessageIdFactory, offset: int, *, inner: bool) -> bytes:
    """Return what a pull of PULLED messages from ``offset`` on brings: sent in batches of TOGETHER, whose ids follow each other."""
    host = pack_host("127.0.0.1", 10_911)
    records = []
    for start in range(0, PULLED, TOGETHER):
        properties = [encode_properties({"WAIT": "true", "UNIQ_KEY": one}) for one in ids.take(TOGETHER)]
        bodies = [client.BODY] * TOGETHER
        if inner:
            bodies = [encode_batch([(0, body, text) for body, text in zip(bodies, properties, strict=True)])]
            properties = [b""]
        records += [
            encode_record(
                topic=b"t",
                body=body,
                properties=text,
                queue_id=0,
                queue_offset=offset + start + number,
                physical_offset=(offset + start + number) * 1200,
                born_timestamp_ms=1_700_000_000_000,
                born_host=host,
                store_timestamp_ms=1_700_000_000_001,
                store_host=host,
                sys_flag=SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP if inner else 0,
            )
            for number, (body, text) in enumerate(zip(bodies, properties, strict=True))
        ]
    return b"".join(records)


async def consume(trace: bool | TraceConfig, *, batch_max: int, inner: bool = False) -> Figure:
    """Have a push consumer's handler take messages as they come out of pulls."""
    consumer = PushConsumer("cg", "t", namesrv=client.ADDRESS, batch_max=batch_max, tls=False, trace=trace)
    instance, ready = consumer._instance, consumer.ready
    instance._loop, instance.state = asyncio.get_running_loop(), OPEN
    writer = consumer._trace_writer
    if writer is not None:
        writer._make_producer = _Nowhere
    queue = MessageQueue("t", "broker-a", 0)
    pq = ProcessQueue(queue, 0, CacheLimits(messages=10 * PULLED), consumer.outcomes.acknowledge)
    consumer._member.queues[queue] = pq
    consumer._member.may_take = lambda pq: True  # type: ignore[method-assign]
    ids = MessageIdFactory("127.0.0.1", 1)
    bodies = [pulled_body(ids, number * PULLED, inner=inner) for number in range(PULLS)]
    taken = 0
    drained = asyncio.Event()

    def handle(batch: list[Any]) -> None:
        nonlocal taken
        taken += len(batch)
        if taken % PULLED == 0:
            drained.set()

    async def work() -> int:
        for number in range(REPEATS * PULLS):
            if number % PULLS == 0:
                pq.seek(0)
            body = bodies[number % PULLS]
            messages = locate_messages(body, "broker-a", pq.next_offset, None)
            drained.clear()
            pq.put(messages, len(body), pq.next_offset + PULLED)
            ready.offer(pq)
            await drained.wait()
        return REPEATS * PULLS * PULLED

    listening = consumer.listen(handle)
    await work()
    figure = await measure(work, writer)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    return figure


WORKS: dict[str, Callable[[bool | TraceConfig], Awaitable[Figure]]] = {
    "auto_batch": lambda trace: produce(trace, auto_batch=True, submits=True),
    "single_submit": lambda trace: produce(trace, auto_batch=False, submits=True),
    "single_256_tasks": lambda trace: produce(trace, auto_batch=False, submits=False),
    "consume_256": lambda trace: consume(trace, batch_max=256),
    "consume_32": lambda trace: consume(trace, batch_max=32),
    "consume_batchcq_256": lambda trace: consume(trace, batch_max=256, inner=True),
}


def main() -> int:
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.micro.traces", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("--only", default="", help="measure only works whose name has this in it, and write no JSON")
    options = p.parse_args()
    result: dict[str, dict[str, Any]] = {}
    for name, work in WORKS.items():
        if options.only not in name:
            continue
        figures: dict[str, list[Figure]] = {kind: [] for kind in KINDS}
        for _ in range(ROUNDS):
            for kind, trace in KINDS.items():
                figures[kind].append(uvloop.run(work(trace)))  # type: ignore[arg-type]
        result[name] = {}
        off = min(one.us for one in figures["off"])
        for kind, found in figures.items():
            made, dropped = sum(one.made for one in found), sum(one.dropped for one in found)
            traced = made / (made + dropped) if made + dropped else 0.0
            least = min(one.us for one in found)
            result[name][kind] = {"us_per_message": spread([one.us for one in found]), "traced": round(traced, 3)}
            print(f"{name:20} {kind:14} {least:7.3f} us a message   {least / off - 1:+7.1%}   traced {traced:.3f}", flush=True)
    if not options.only:
        write_result("micro-traces", {"figures": result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
