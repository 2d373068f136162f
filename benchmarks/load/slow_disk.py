"""Send beside requests about old messages while the disk is slow: what they cost the senders.

Reads of the broker are limited by a control group, as a disk that turns limits them. For 150 reads a second (version 1 of control groups,
as root; the device is that of the directory of the store)::

    mkdir /sys/fs/cgroup/blkio/slow
    echo "254:0 150" > /sys/fs/cgroup/blkio/slow/blkio.throttle.read_iops_device
    python -m benchmarks.load.slow_disk --cgroup /sys/fs/cgroup/blkio/slow

Without ``--cgroup`` the disk is as fast as it is. The store has 0.5 GiB of old messages; then 75 messages with one key, 800 KB apart; then
80 MB more, as the end of the log counts as in memory. Before each figure the broker is stopped, the page cache of the files dropped, and the
broker started; a client sends 500 messages a second, each by itself, first alone, then beside one of these:

pulls   a pull consumer reads the old messages, as fast as it can
pops    the same by pops of 32 messages, which are acknowledged
query   the 64 newest messages with the key are queried
times   the offset of a time is searched for in each of the eight queues
groups  it is asked how far each of 60 groups is, which are at different places of the old messages: eight times of messages each
due     300 delayed messages that lie 200 KB apart, and have 80 MB after them, are due
checks  the producers of 300 transactions, whose half messages lie like that, are to be asked for their outcomes

Exits 1 when the median over the rounds of the longest send is more than 500 ms beside any of them.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.load.cold_reads import GIB, QUEUES, READ, Serving, figures, send
from benchmarks.load.stores import fill, give_back
from benchmarks.report import spread, write_result
from sprocketmq import Message, TransactionOutcome, TransactionProducer

GOAL_MS = 500.0
SCATTERED = 300
EACH_KEYED = 4
FILLER_BYTES = 200_000
END_FILLERS = 420
RATE = 500.0
ALONE_S = 5.0
DELAY_S = 15
TIMEOUT_S = 60.0

READ_POPS = """
import asyncio, json, sys
from benchmarks.load.popping import BATCH_ACK, FOUND, acknowledged, pop, receipts
from sprocketmq import AdminClient
from sprocketmq.net.client import ConnectionPool

async def read(namesrv, count, at_once):
    taken = 0
    async with AdminClient(namesrv=namesrv) as admin:
        broker, = (await admin.cluster()).broker_addr_table.values()
    pool = ConnectionPool(expected="broker")
    conn = await pool.get(broker.broker_addrs[0])
    async def work():
        nonlocal taken
        while taken < count:
            answer = await pop(conn, "far_behind", "old")
            if answer is not None:
                taken += sum(len(offsets) for _, _, offsets in receipts(answer.ext))
                body = acknowledged("far_behind", "old", broker.broker_name, answer.ext)
                acked = await conn.request(BATCH_ACK, ext={}, body=body, timeout_s=60)
                assert acked.code == FOUND, acked.remark
    await asyncio.gather(*(work() for _ in range(at_once)))
    print(json.dumps({"messages": taken}), flush=True)
    await pool.close()

asyncio.run(read(sys.argv[1], int(sys.argv[2]), 4))
"""
QUERY = """
import asyncio, json, sys
from sprocketmq import AdminClient

async def query(namesrv):
    async with AdminClient(namesrv=namesrv) as admin:
        print(json.dumps({"messages": len(await admin.query_by_key("keyed", "common", max_count=64))}), flush=True)

asyncio.run(query(sys.argv[1]))
"""
TIMES = """
import asyncio, json, sys
from sprocketmq import PullConsumer

async def search(namesrv):
    async with PullConsumer("far_behind", namesrv=namesrv) as consumer:
        found = []
        for queue in await consumer.queues("old"):
            (first,) = (await consumer.pull(queue, 0, max_messages=1)).messages
            found.append(await consumer.offset_at(queue, first.store_timestamp_ms + 1000))
        print(json.dumps({"offsets": found}), flush=True)

asyncio.run(search(sys.argv[1]))
"""


GROUPS = """
import asyncio, json, sys
from sprocketmq import AdminClient

async def ask(namesrv, groups):
    async with AdminClient(namesrv=namesrv, timeout_s=60) as admin:
        queues = (await admin.topic_stats("old")).offset_table
        names = [f"group-{number}" for number in range(groups)]
        for number, name in enumerate(names):
            await admin.create_group(name)
            for queue, offsets in queues.items():
                await admin.commit(name, queue, offsets.max_offset * (number + 1) // (groups + 1))
        found = await asyncio.gather(*(admin.progress(name, "old") for name in names))
        print(json.dumps({"times": sum(queue.last_consumed_ms > 0 for group in found for queue in group.queues)}), flush=True)

asyncio.run(ask(sys.argv[1], int(sys.argv[2])))
"""


async def add(namesrv: str, work: str) -> None:
    """Send messages that are delayed, half messages, or messages with the key, with others between and after them."""
    async with TransactionProducer("filling", lambda _: TransactionOutcome.UNKNOWN, namesrv=namesrv, compression=None) as producer:
        filler = os.urandom(FILLER_BYTES)
        for number in range(SCATTERED):
            if work == "due":
                await producer.send(Message("due", b"x" * 1000, delay_level=1))
            elif work == "checks":
                await producer.begin(Message("due", b"x" * 1000))
            keyed = work == "query" and number % EACH_KEYED == 0
            await producer.send(Message("keyed", filler, keys=["common"] if keyed else []))
        for _ in range(END_FILLERS):
            await producer.send(Message("last", filler))


def make_store(root: Path, gib: float) -> int:
    """Fill a store as the module says, and return how many old messages it has."""
    count = fill(root, int(gib * GIB), "old", queues=QUEUES)
    serving = Serving(root)
    try:
        asyncio.run(add(serving.namesrv, "query"))
    finally:
        serving.stop()
    return count


def drop_cache(root: Path) -> None:
    give_back(path for path in root.rglob("*") if path.is_file())


def one(root: Path, cgroup: Path | None, program: list[str]) -> dict[str, Any]:
    """Take one figure: sends alone, then beside a program."""
    drop_cache(root)
    serving = Serving(root, cgroup=cgroup)
    try:
        alone = figures(asyncio.run(send(serving.namesrv, RATE, lambda spent: spent > ALONE_S, timeout_s=TIMEOUT_S)))
        command = [sys.executable, "-c", program[0], serving.namesrv, *program[1:]]
        began = time.monotonic()
        working = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        beside = figures(asyncio.run(send(serving.namesrv, RATE, lambda _: working.poll() is not None, timeout_s=TIMEOUT_S)))
        seconds = time.monotonic() - began
        assert working.stdout is not None
        found = json.loads(working.stdout.read() or '{"failed": true}')
    finally:
        serving.stop()
    return {"alone": alone, "beside": beside, "seconds": round(seconds, 2), "found": found}


def when_due(root: Path, cgroup: Path | None, work: str) -> dict[str, Any]:
    """Take the figure of delayed messages or checks: sends from before the first is due until after the last."""
    serving = Serving(root, delay_levels=f"{DELAY_S}s", transaction_timeout_s=DELAY_S, cgroup=cgroup)
    try:
        began = time.monotonic()
        asyncio.run(add(serving.namesrv, work))
        left = 2 * DELAY_S - (time.monotonic() - began)
        drop_cache(root)
        beside = figures(asyncio.run(send(serving.namesrv, RATE, lambda spent: spent > left, timeout_s=TIMEOUT_S)))
    finally:
        serving.stop()
    return {"beside": beside, "seconds": round(left, 2)}


def main() -> int:
    """Measure, write the result file, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cgroup", type=Path, help="directory of a control group whose reads are limited")
    parser.add_argument("--gib", type=float, default=0.5, help="size of the old messages (0.5)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with a store of its own (3)")
    parser.add_argument("--directory", type=Path, help="where the stores are made: a disk, as a tmpfs keeps everything in memory")
    options = parser.parse_args()
    taken: dict[str, list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="sprocketmq-slow-disk-", dir=options.directory) as directory:
            root = Path(directory) / "store"
            count = make_store(root, options.gib)
            programs = {
                "pulls": [READ],
                "pops": [READ_POPS, str(count)],
                "query": [QUERY],
                "times": [TIMES],
                "groups": [GROUPS, "60"],
                "due": None,
                "checks": None,
            }
            for work, program in programs.items():
                found = when_due(root, options.cgroup, work) if program is None else one(root, options.cgroup, program)
                taken.setdefault(work, []).append(found)
                print(
                    f"round {number + 1}  {work:6} p99 {found['beside']['p99_ms']:8.1f} ms, longest {found['beside']['max_ms']:8.1f} ms",
                    flush=True,
                )
    works: dict[str, Any] = {}
    for work, rounds in taken.items():
        longest, p99 = (spread((found["beside"][name] for found in rounds), 1) for name in ("max_ms", "p99_ms"))
        works[work] = {"longest_ms": longest, "p99_ms": p99, "missed": longest["median"] > GOAL_MS, "rounds": rounds}
        print(f"{work:6} longest send {longest['median']:.1f} ms (goal at most {GOAL_MS:g}){', MISSED' if works[work]['missed'] else ''}")
    setting = {"gib": options.gib, "rate": RATE, "limited": options.cgroup is not None, "goal_longest_ms": GOAL_MS}
    write_result("load-slow-disk", {**setting, "works": works})
    return 1 if any(found["missed"] for found in works.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
