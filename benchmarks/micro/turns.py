"""What a turn of an event loop costs: asyncio's own loop and uvloop, beside sockets without a loop. ``python -m benchmarks.micro.turns``.

One byte goes over a socket pair to a second process and back: ``sockets`` with blocking calls, the floor of the system; ``protocol`` where
each side answers from the callback that received the byte; ``task`` where one side has a task that awaits each answer, as a lone awaited
send does. ``hop`` is a callback by ``call_soon``, ``wake`` a task that waits for a future, ``timer`` one that is made and cancelled; each of
them in one process, without sockets. Figures are microseconds: by the clock for bytes, of processor time for the rest.
"""

import asyncio
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, cast

import uvloop

from benchmarks.report import spread, write_result

TRIPS = 5_000
CALLS = 50_000
ROUNDS = 7
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Echo(asyncio.Protocol):
    """Sends back what it receives; ``ended`` resolves when the peer is gone."""

    def __init__(self, ended: "asyncio.Future[None]") -> None:
        self._ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set_result(None)


class Asking(asyncio.Protocol):
    """Sends a byte ``trips`` times, each after the answer to the one before; with a ``waiter`` the answer resolves it instead."""

    def __init__(self, trips: int) -> None:
        self.left = trips
        self.taken: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def ask(self) -> None:
        self._began = time.perf_counter()
        self.transport.write(b"x")

    def data_received(self, data: bytes) -> None:
        if self.waiter is not None:
            self.waiter.set_result(None)
            return
        self.taken.append(time.perf_counter() - self._began)
        self.left -= 1
        if self.left:
            self.ask()
        else:
            self.ended.set_result(None)


def echo_bytes(name: str, sock: socket.socket) -> None:
    """Send back every byte until the peer closes: the second process. ``name`` is that of a loop, or ``sockets``."""
    if name == "sockets":
        while data := sock.recv(1):
            sock.send(data)
        return

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(lambda: Echo(ended), sock=sock)
        await ended

    with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
        runner.run(serve())


def ask_sockets(sock: socket.socket) -> list[float]:
    """Return the seconds of each round trip with blocking calls."""
    taken = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        sock.send(b"x")
        sock.recv(1)
        taken.append(time.perf_counter() - began)
    return taken


async def ask_protocol(sock: socket.socket) -> list[float]:
    """Return the same with a loop, each byte sent from the callback that received the one before."""
    _, asking = await asyncio.get_running_loop().create_connection(lambda: Asking(TRIPS), sock=sock)
    asking.ask()
    await asking.ended
    asking.transport.close()
    return asking.taken


async def ask_task(sock: socket.socket) -> list[float]:
    """Return the same for a task that awaits each answer."""
    loop = asyncio.get_running_loop()
    _, asking = await loop.create_connection(lambda: Asking(TRIPS), sock=sock)
    taken = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        asking.waiter = loop.create_future()
        asking.transport.write(b"x")
        await asking.waiter
        taken.append(time.perf_counter() - began)
    asking.transport.close()
    return taken


def round_trips(context: SpawnContext, name: str, ask: Callable[[socket.socket], Any]) -> float:
    """Return the median microseconds of a byte there and back, with an echo in another process."""
    here, there = socket.socketpair()
    process: SpawnProcess = context.Process(target=echo_bytes, args=(name, there))
    process.start()
    there.close()
    try:
        if name == "sockets":
            taken = ask(here)
        else:
            with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
                taken = runner.run(ask(here))
    finally:
        here.close()
        process.join()
    return float(statistics.median(taken)) * 1e6


async def hops() -> None:
    """Let a callback schedule the next one, CALLS times."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    left = CALLS

    def hop() -> None:
        nonlocal left
        left -= 1
        if left:
            loop.call_soon(hop)
        else:
            ended.set_result(None)

    loop.call_soon(hop)
    await ended


async def wakes() -> None:
    """Await CALLS futures that a callback resolves: a hop for the callback, and one for the task."""
    loop = asyncio.get_running_loop()
    for _ in range(CALLS):
        future: asyncio.Future[None] = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future


async def timers() -> None:
    """Make and cancel CALLS timers."""
    loop = asyncio.get_running_loop()
    for _ in range(CALLS):
        loop.call_later(3.0, print).cancel()


def processor_us(name: str, work: Callable[[], Awaitable[None]]) -> float:
    """Return the microseconds of processor time that one of CALLS takes."""

    async def timed() -> float:
        began = time.process_time()
        await work()
        return time.process_time() - began

    with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
        return runner.run(timed()) / CALLS * 1e6


def main() -> int:
    """Measure everything in rounds, print the medians and write the result file."""
    context = multiprocessing.get_context("spawn")
    figures: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        figures.setdefault("sockets", []).append(round_trips(context, "sockets", ask_sockets))
        for name in LOOPS:
            figures.setdefault(f"{name} protocol", []).append(round_trips(context, name, ask_protocol))
            figures.setdefault(f"{name} task", []).append(round_trips(context, name, ask_task))
            for call, work in (("hop", hops), ("wake", wakes), ("timer", timers)):
                figures.setdefault(f"{name} {call}", []).append(processor_us(name, work))
    for figure, values in figures.items():
        print(f"{figure:18} {statistics.median(values):7.2f} us")
    write_result("micro-turns", {"figures": {name: spread(values, 2) for name, values in figures.items()}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
