"""``sprocketmq bench batch``: the same messages sent in four ways, side by side."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sprocketmq import AdminClient, Batching, Producer
from sprocketmq.cli.bench_board import Board
from sprocketmq.cli.bench_load import WAYS, BenchOptions, Figures, Load, Way
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, EXIT_SIGNAL, fail
from sprocketmq.cli.output import print_json
from sprocketmq.cli.stopping import on_stop_signals
from sprocketmq.cli.target import Target
from sprocketmq.errors import TopicNotFound
from sprocketmq.net.loops import new_event_loop
from sprocketmq.omb.cpu import cpu_s

# Sending for this long before measuring opens connections and files.
WARM_S = 0.5
MASTER_ID = 0

__all__ = ["BenchOptions", "run"]


class MeasuredBroker:
    """The broker that is measured: its disk usage and CPU time if it was started here, only the length of its log otherwise."""

    def __init__(self, target: Target, store: Path | None, pids: Sequence[int]) -> None:
        self.target = target
        self._store = store
        self._pids = pids

    async def disk_bytes(self, admin: AdminClient) -> int | None:
        """Return its disk usage: blocks of all files of the store, or the lengths of all masters' logs; None if unknown."""
        if self._store is not None:
            return _allocated(self._store)
        brokers = (await admin.cluster()).broker_addr_table.values()
        masters = [address for broker in brokers if (address := broker.broker_addrs.get(MASTER_ID)) is not None]
        lengths = [(await admin.broker_runtime(address)).get("commitLogMaxOffset") for address in masters]
        known = [int(length) for length in lengths if length is not None and length.isdigit()]
        return sum(known) if known and len(known) == len(lengths) else None

    def cpu_s(self) -> float | None:
        """Return the CPU seconds of its processes so far; None if unknown."""
        return cpu_s(self._pids)


def _allocated(directory: Path) -> int | None:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            blocks = getattr(path.stat(), "st_blocks", None)
            if blocks is None:
                return None
            total += 512 * blocks
    return total


@contextlib.contextmanager
def _broker(target: Target | None) -> Iterator[MeasuredBroker]:
    """Yield the broker to measure; without ``target`` run one in its own process."""
    if target is not None:
        yield MeasuredBroker(target, None, ())
        return
    from sprocketmq.embedded import LocalCluster

    with LocalCluster(in_process=False) as cluster:
        yield MeasuredBroker(Target(cluster.namesrv), cluster.store, cluster.pids)


def run(options: BenchOptions, *, as_json: bool) -> int:
    """Measure all ways, print them and draw the plot. Returns 1 when a send failed, 128 plus the number of a signal that ended it."""
    with _broker(options.target) as broker:
        with Board(as_json=as_json) as board, asyncio.Runner(loop_factory=new_event_loop) as runner:
            stopped_by = runner.run(_measure_until_stopped(broker, options, board))
        if stopped_by is not None:
            fail(f"stopped by {stopped_by.name}")
            return EXIT_SIGNAL + stopped_by
        if as_json:
            print_json(_facts(options) | {"ways": [asdict(one) for one in board.done]})
        else:
            board.finish()
    if options.plot is not None:
        options.plot.write_text(plot(board.done, options), encoding="utf-8")
        if not as_json:
            print(f"plot written to {options.plot}")
    failed = [one for one in board.done if one.errors]
    for one in failed:
        fail(f"{one.way}: {one.errors:,} sends failed, the first: {one.first_error}")
    return EXIT_FAILURE if failed else EXIT_OK


async def _measure_until_stopped(broker: MeasuredBroker, options: BenchOptions, board: Board) -> signal.Signals | None:
    """Measure; return the signal that ended it early. The topics are deleted in any case."""
    measuring = asyncio.ensure_future(_measure(broker, options, board))
    came: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        came.append(number)
        measuring.cancel()

    with on_stop_signals(stop):
        await asyncio.wait([measuring])
    if measuring.cancelled():
        return came[0]
    measuring.result()
    return None


async def _measure(broker: MeasuredBroker, options: BenchOptions, board: Board) -> None:
    async with AdminClient(**broker.target.options) as admin:
        topics: list[str] = []
        try:
            for way in WAYS:
                topics.append(f"bench-{os.getpid()}-{way.name}")
                attributes = {"queue.type": "BatchCQ"} if way.batch_queues else {}
                await admin.create_topic(topics[-1], queues=options.queues, attributes=attributes)
                board.done.append(await _measure_way(way, topics[-1], broker, admin, options, board))
                board.show()
        finally:
            for topic in topics:
                with contextlib.suppress(TopicNotFound):
                    await admin.delete_topic(topic)


async def _measure_way(way: Way, topic: str, broker: MeasuredBroker, admin: AdminClient, options: BenchOptions, board: Board) -> Figures:
    batching = Batching() if way.batching else None
    async with Producer("sprocketmq-bench", **broker.target.options, batching=batching, max_in_flight=options.in_flight) as producer:
        await Load(producer, topic, way, options).run(min(WARM_S, options.seconds), options.messages)
        load = Load(producer, topic, way, options)
        disk, cpu = await broker.disk_bytes(admin), broker.cpu_s()
        following = asyncio.ensure_future(board.follow(load))
        try:
            await load.run(options.seconds, options.messages)
        finally:
            following.cancel()
        cpu_after, disk_after = broker.cpu_s(), await broker.disk_bytes(admin)
        return load.figures(
            None if disk is None or disk_after is None else disk_after - disk, None if cpu is None or cpu_after is None else cpu_after - cpu
        )


def _facts(options: BenchOptions) -> dict[str, Any]:
    return {
        "broker": options.target.namesrv if options.target else "embedded",
        "body_bytes": options.body_bytes,
        "in_flight": options.in_flight,
        "batch": options.batch,
        "queues": options.queues,
        "cores": os.cpu_count(),
    }


def plot(done: Sequence[Figures], options: BenchOptions) -> str:
    """Return the figures as an SVG document."""
    from sprocketmq.cli.barchart import Panel, draw

    titles = [way.title for way in WAYS]

    def rows(*names: str) -> list[tuple[str, list[float | None]]]:
        return [(title, [getattr(one, name) for name in names]) for title, one in zip(titles, done, strict=True)]

    where = f"broker at {options.target.namesrv}" if options.target else "embedded broker in its own process"
    return draw(
        "Sending in batches",
        f"bodies of {options.body_bytes:,} bytes, {options.in_flight:,} messages in flight, {options.queues} queues, {os.cpu_count()}"
        f" cores, {where}",
        [
            Panel("Messages per second", rows("messages_per_s"), "{:,.0f}".format),
            Panel("Latency, milliseconds", rows("p50_ms", "p99_ms", "p999_ms"), "{:.1f}".format, ("p50", "p99", "p99.9")),
            Panel("Bytes on disk per message", rows("disk_bytes_per_message"), "{:,.0f}".format),
            Panel("Broker CPU per message, microseconds", rows("broker_cpu_us_per_message"), "{:.1f}".format),
        ],
    )
