"""Measure crowds: idle connections beside an honest sender, consumers that divide queues among themselves, and consumers that wait.

connections   10,000 clients connect, send one heartbeat each and fall silent; a sender has 1,000 messages/s, each due at its time, alone and
              beside them. Goals: the broker's process takes at most 200 MB in all, and the sender's p99 is at most 1.2 times that alone.
members       5,000 push consumers, 50 in each of 100 groups, start on a topic of 100 queues; then a tenth of them leaves. Goals: 30 s after
              the first started, and 30 s after the last left, every queue has one owner in each group, and no member two more than another.
waiting       1,000 push consumers, 10 in each of 100 groups, wait for messages in 100 topics of 100 queues: 10,000 held pulls, a heartbeat and
              a route look-up each 30 s, a rebalance each 20 s. It is measured when pulls are held for two minutes. Goals: the server's process,
              broker and nameserver, takes at most 2 % of a core, and 600 MB.

Consumers have an instance each, as programs on many machines do, in four processes. Exits 1 when a goal is missed.
"""

import argparse
import asyncio
import contextlib
import gc
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.load.idle_connections import broker_address, heartbeat
from benchmarks.load.rounds import verdict
from benchmarks.load.scale import process_facts
from benchmarks.load.sides import OurClient, serve
from benchmarks.processor import cpu_s
from benchmarks.report import spread, write_result
from sprocketmq import AdminClient, PushConsumer
from sprocketmq.net.address import parse_address
from sprocketmq.net.client import Connection
from sprocketmq.protocol.frame import ReceiveBuffer

TOPIC = "Crowd"
GROUPS, QUEUES = 100, 100
WORKERS = 4
MEMORY_MB, P99_RATIO, BALANCE_S = 200, 1.2, 30.0
WAITING_MEMBERS, WAITING_CORES, WAITING_MB = 1000, 0.02, 600
# After 15, 30 and 60 s without a message pulls are held for 120 s.
HELD_LONGEST_S, HOLD_S = 110.0, 120.0
# Clients that connect or start at the same time in one process.
AT_ONCE = 64
GIVE_UP_S = 180.0
POLL_S = 0.25


def rss_mb(pid: int) -> float:
    """Return the resident memory of a process, without the pages of files."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")) / 1000


async def make_topic(namesrv: str) -> None:
    """Create the topic that all groups read."""
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)


async def each(count: int, work: Any, at_once: int = AT_ONCE) -> list[Any]:
    """Call ``work(number)`` for each number, ``at_once`` at a time."""
    room = asyncio.Semaphore(at_once)

    async def one(number: int) -> Any:
        async with room:
            return await work(number)

    return await asyncio.gather(*(one(number) for number in range(count)))


# --- idle connections ---


async def be_idle(namesrv: str, count: int, pipe: Pipe) -> None:
    """Hold ``count`` silent connections until told to end."""
    address = await broker_address(namesrv)
    host, port = parse_address(address)
    loop, receive = asyncio.get_running_loop(), ReceiveBuffer()

    async def connect(number: int) -> Connection:
        _, conn = await loop.create_connection(lambda: Connection(loop, address, receive, expected="broker"), host, port)
        await heartbeat(number, conn)
        return conn

    connections = await each(count, connect)
    pipe.send(count)
    await loop.run_in_executor(None, pipe.recv)
    pipe.send(sum(conn.closed for conn in connections))
    for conn in connections:
        conn.close()


def idle(namesrv: str, count: int, pipe: Pipe) -> None:
    """Be the process of the idle connections."""
    uvloop.run(be_idle(namesrv, count, pipe))


@contextlib.contextmanager
def crowd(namesrv: str, count: int) -> Iterator[None]:
    """Have ``count`` idle connections while the block runs. Raises RuntimeError when the broker closes some."""
    pipe, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=idle, args=(namesrv, count, theirs))
    process.start()
    pipe.recv()
    try:
        yield
    finally:
        pipe.send(None)
        lost = pipe.recv()
        process.join()
    if lost:
        raise RuntimeError(f"the broker closed {lost} of {count} idle connections")


def measure_connections(options: argparse.Namespace) -> dict[str, Any]:
    """Return memory and p99 with the verdicts."""
    limit = ("--set", f"max_connections={options.connections + 1000}")
    with tempfile.TemporaryDirectory() as directory, serve(Path(directory), *limit) as (namesrv, pid):
        uvloop.run(make_topic(namesrv))
        client = OurClient(namesrv)
        load = {"topic": TOPIC, "body_bytes": 1024, "rate": 1000, "warm_s": 1.0, "measure_s": options.seconds}
        alone, beside, memory = [], [], []
        try:
            client.call("load_open", **load)
            for number in range(options.rounds):
                alone.append(client.call("load_open", **load)["p99_ms"])
                with crowd(namesrv, options.connections):
                    beside.append(client.call("load_open", **load)["p99_ms"])
                    memory.append(rss_mb(pid))
                print(f"round {number + 1}  p99 {alone[-1]:.2f} ms alone, {beside[-1]:.2f} ms beside, {memory[-1]:.0f} MB", flush=True)
        finally:
            client.stop()
    figures = {"p99_alone_ms": spread(alone), "p99_beside_ms": spread(beside), "memory_mb": spread(memory, 1)}
    ratio = figures["p99_beside_ms"]["median"] / figures["p99_alone_ms"]["median"]
    found = {
        "p99": verdict(ratio, P99_RATIO, at_most=True),
        "memory_mb": verdict(figures["memory_mb"]["median"], MEMORY_MB, at_most=True),
    }
    return {"connections": options.connections, **figures, "verdicts": found}


# --- members ---


async def be_members(namesrv: str, numbers: Sequence[int], groups: int, pipe: Pipe) -> None:
    """Run the members with these numbers. Answers each command: "owners", "leave", and None to end."""
    loop = asyncio.get_running_loop()
    members: dict[int, PushConsumer] = {}

    async def start(at: int) -> None:
        number = numbers[at]
        members[number] = consumer = PushConsumer(f"crowd_{number % groups}", TOPIC, namesrv=namesrv)
        await consumer.start()
        consumer.listen(lambda _: None)

    await each(len(numbers), start)
    pipe.send("started")
    while (command := await loop.run_in_executor(None, pipe.recv)) is not None:
        if command == "leave":
            leaving = [members.pop(number) for number in numbers if number // groups % 10 == 0]
            await each_closed(leaving)
            pipe.send(len(leaving))
        else:
            owners = [(number % groups, [q.queue_id for q in m.assignment if q.topic == TOPIC]) for number, m in members.items()]
            pipe.send(owners)
    await each_closed(list(members.values()))


async def each_closed(consumers: Sequence[PushConsumer]) -> None:
    """Close all of them."""
    await each(len(consumers), lambda at: consumers[at].close())


def member_process(namesrv: str, numbers: Sequence[int], groups: int, pipe: Pipe) -> None:
    """Be one process of members, without the full collections of a program that has a thousand consumers: each stands for a program."""
    gc.disable()
    uvloop.run(be_members(namesrv, numbers, groups, pipe))


def balanced(owners: list[tuple[int, list[int]]], groups: int, members: int) -> bool:
    """Return whether all members are there, each queue of each group has one owner, and no member two more than another."""
    queues: dict[int, Counter[int]] = {group: Counter() for group in range(groups)}
    sizes: dict[int, list[int]] = {group: [] for group in range(groups)}
    for group, mine in owners:
        queues[group].update(mine)
        sizes[group].append(len(mine))
    if len(owners) != members:
        return False
    return all(len(one) == QUEUES and one.total() == QUEUES for one in queues.values()) and all(
        max(found) - min(found) <= 1 for found in sizes.values()
    )


def wait_balanced(pipes: Sequence[Pipe], groups: int, members: int, since: float) -> float:
    """Return the seconds from ``since`` until the groups are balanced. Raises TimeoutError after GIVE_UP_S."""
    while True:
        owners: list[tuple[int, list[int]]] = []
        for pipe in pipes:
            pipe.send("owners")
            owners += pipe.recv()
        took = time.monotonic() - since
        if balanced(owners, groups, members):
            return took
        if took > GIVE_UP_S:
            raise TimeoutError(f"the groups were not balanced after {GIVE_UP_S:g} s")
        time.sleep(POLL_S)


def measure_members(options: argparse.Namespace) -> dict[str, Any]:
    """Return how long balancing took, with the verdicts."""
    limit = ("--set", f"max_connections={2 * options.members + 1000}")
    with tempfile.TemporaryDirectory() as directory, serve(Path(directory), *limit) as (namesrv, pid):
        uvloop.run(make_topic(namesrv))
        spawn = multiprocessing.get_context("spawn")
        pipes, processes = [], []
        began, cpu_before = time.monotonic(), cpu_s(pid)
        for worker in range(WORKERS):
            pipe, theirs = multiprocessing.Pipe()
            numbers = range(worker, options.members, WORKERS)
            process = spawn.Process(target=member_process, args=(namesrv, numbers, options.groups, theirs))
            process.start()
            pipes.append(pipe)
            processes.append(process)
        for pipe in pipes:
            pipe.recv()
        started_s = time.monotonic() - began
        joined_s = wait_balanced(pipes, options.groups, options.members, began)
        broker_ms = (cpu_s(pid) - cpu_before) / options.members * 1000
        client_ms = sum(cpu_s(process.pid) for process in processes if process.pid) / options.members * 1000
        print(f"{options.members:,} members: started after {started_s:.1f} s, balanced after {joined_s:.1f} s", flush=True)
        print(f"CPU of a member that joins: {client_ms:.1f} ms in its process, {broker_ms:.1f} ms in the server", flush=True)
        for pipe in pipes:
            pipe.send("leave")
        left = sum(pipe.recv() for pipe in pipes)
        left_s = wait_balanced(pipes, options.groups, options.members - left, time.monotonic())
        print(f"{left:,} left: balanced after {left_s:.1f} s; the broker has {rss_mb(pid):.0f} MB", flush=True)
        memory = rss_mb(pid)
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()
    found = {"joined": verdict(joined_s, BALANCE_S, at_most=True), "left": verdict(left_s, BALANCE_S, at_most=True)}
    figures = {"started_s": round(started_s, 2), "joined_s": round(joined_s, 2), "left_s": round(left_s, 2), "broker_mb": round(memory, 1)}
    cpu = {"join_client_ms": round(client_ms, 2), "join_broker_ms": round(broker_ms, 2)}
    return {"members": options.members, "groups": options.groups, "queues": QUEUES, **figures, **cpu, "verdicts": found}


# --- waiting ---


async def be_waiting(namesrv: str, numbers: Sequence[int], pipe: Pipe) -> None:
    """Run the members with these numbers until told to end; those of a group share the queues of its topic."""
    loop = asyncio.get_running_loop()
    members: list[PushConsumer] = []

    async def start(at: int) -> None:
        number = numbers[at] % GROUPS
        consumer = PushConsumer(f"waiting_{number}", f"{TOPIC}_{number}", namesrv=namesrv)
        await consumer.start()
        consumer.listen(lambda _: None)
        members.append(consumer)

    await each(len(numbers), start, at_once=4)
    pipe.send(None)
    while await loop.run_in_executor(None, pipe.recv):
        pipe.send(sum(len(member.assignment) for member in members))
    await each_closed(members)


def waiting_process(namesrv: str, numbers: Sequence[int], pipe: Pipe) -> None:
    """Be one process of members that wait."""
    uvloop.run(be_waiting(namesrv, numbers, pipe))


async def make_topics(namesrv: str) -> None:
    """Create a topic for each group."""
    async with AdminClient(namesrv=namesrv) as admin:
        for number in range(GROUPS):
            await admin.create_topic(f"{TOPIC}_{number}", queues=QUEUES)


def measure_waiting(options: argparse.Namespace) -> dict[str, Any]:
    """Return what members that wait cost the server, with the verdicts."""
    with tempfile.TemporaryDirectory() as directory, serve(Path(directory)) as (namesrv, pid):
        uvloop.run(make_topics(namesrv))
        spawn = multiprocessing.get_context("spawn")
        pipes, processes = [], []
        for worker in range(WORKERS):
            pipe, theirs = multiprocessing.Pipe()
            process = spawn.Process(target=waiting_process, args=(namesrv, range(worker, WAITING_MEMBERS, WORKERS), theirs))
            process.start()
            pipes.append(pipe)
            processes.append(process)
        for pipe in pipes:
            pipe.recv()
        began = time.monotonic()
        while True:
            for pipe in pipes:
                pipe.send(True)
            owned = sum(pipe.recv() for pipe in pipes)
            if owned == GROUPS * QUEUES:
                break
            if time.monotonic() - began > GIVE_UP_S:
                raise TimeoutError(f"the members own {owned:,} of {GROUPS * QUEUES:,} queues after {GIVE_UP_S:g} s")
            time.sleep(POLL_S)
        time.sleep(HELD_LONGEST_S)
        before = cpu_s(pid)
        time.sleep(options.waiting_seconds)
        cores = (cpu_s(pid) - before) / options.waiting_seconds
        memory = process_facts(pid)["rss_mb"]
        for pipe in pipes:
            pipe.send(False)
        for process in processes:
            process.join()
    print(f"{WAITING_MEMBERS:,} members wait in {GROUPS * QUEUES:,} queues: {cores:.2%} of a core, {memory:.0f} MB", flush=True)
    found = {"cores": verdict(cores, WAITING_CORES, at_most=True), "memory_mb": verdict(memory, WAITING_MB, at_most=True)}
    return {
        "members": WAITING_MEMBERS,
        "queues": GROUPS * QUEUES,
        "cores": round(cores, 4),
        "memory_mb": round(memory, 1),
        "verdicts": found,
    }


def main() -> int:
    """Parse options, run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000, help="idle connections (10,000)")
    parser.add_argument("--members", type=int, default=5_000, help="consumers, a multiple of ten times the groups (5,000)")
    parser.add_argument("--groups", type=int, default=GROUPS, help="groups of the consumers that join (100)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds beside the idle connections (5)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of sends in a round (5)")
    parser.add_argument("--only", choices=("connections", "members", "waiting"), help="measure one of the three")
    parser.add_argument("--waiting-seconds", type=float, default=HOLD_S, help="how long waiting members are measured (120)")
    options = parser.parse_args()
    measures = {"connections": measure_connections, "members": measure_members, "waiting": measure_waiting}
    figures = {name: measure(options) for name, measure in measures.items() if options.only in (None, name)}
    verdicts = {f"{name}, {what}": one for name, found in figures.items() for what, one in found["verdicts"].items()}
    write_result("load-crowds" if options.only is None else f"load-crowds-{options.only}", figures)
    for name, one in verdicts.items():
        print(f"{name}: {one['ratio']:g} (goal at most {one['goal']:g}): {'reached' if one['reached'] else 'MISSED'}")
    return 0 if all(one["reached"] for one in verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
