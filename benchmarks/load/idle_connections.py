"""Measure what an idle connection costs `sprocketmq serve`: anonymous memory of the process, with 1,500 connections that fell silent.

Before it falls silent, a connection sends nothing, a heartbeat, a message of 1 MiB, or pulls a message of 1 MiB; those of the nameserver
send nothing, or ask for a route. Each case has a server of its own. Exits 1 when one costs more than 16 KiB a connection.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.load.sides import serve
from benchmarks.report import write_result
from sprocketmq.net.address import parse_address
from sprocketmq.net.client import Connection, ConnectionPool
from sprocketmq.protocol.bodies import ClusterInfo, ConsumerData, HeartbeatData, ProducerData, build_subscription
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.frame import ReceiveBuffer
from sprocketmq.protocol.headers import SendMessageV2

CONNECTIONS = 1_500
GOAL_KIB = 16.0
TOPIC = "IdleTest"
BODY = bytes(1 << 20)
# Connections that are busy at the same time; the others wait for their turn.
AT_ONCE = 4
WARM_ROUNDS = 50
TIMEOUT_S = 60.0
# Until what a broker does behind its answers is over. The first message makes a broker hold the slots of an index file: 20 MB, once.
SETTLED_S = 1.0

Act = Callable[[int, Connection], Awaitable[None]]


async def ask(conn: Connection, code: int, ext: dict[str, str], body: bytes = b"") -> None:
    answer = await conn.request(code, ext=ext, body=body, timeout_s=TIMEOUT_S)
    if answer.code != 0:
        raise RuntimeError(f"request {code} ended with {answer.code}: {answer.remark}")


async def nothing(_number: int, conn: Connection) -> None:
    pass


async def heartbeat(number: int, conn: Connection) -> None:
    consumer = ConsumerData(f"idle_consumers_{number % 100}", subscription_data_set=[build_subscription(TOPIC, "*", 1)])
    await ask(conn, 34, {}, HeartbeatData(f"client-{number}", [ProducerData("idle_producers")], [consumer]).encode())


async def send(_number: int, conn: Connection) -> None:
    await ask(conn, 310, to_ext(SendMessageV2("idle_producers", TOPIC, 0, 1_700_000_000_000, properties="", batch=False)), BODY)


async def pull(_number: int, conn: Connection) -> None:
    ext = {"consumerGroup": "idle", "topic": TOPIC, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4"}
    ext |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
    await ask(conn, 11, ext)


async def route(_number: int, conn: Connection) -> None:
    await ask(conn, 105, {"topic": "TBW102"})


CASES: dict[str, tuple[str, Act]] = {
    "broker_nothing": ("broker", nothing),
    "broker_heartbeat": ("broker", heartbeat),
    "broker_send_1_mib": ("broker", send),
    "broker_pull_1_mib": ("broker", pull),
    "namesrv_nothing": ("namesrv", nothing),
    "namesrv_route": ("namesrv", route),
}


def anonymous_kib(pid: int) -> int:
    """Return the memory of the process that no file stands behind, so that the mapped log does not count."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))


async def broker_address(namesrv: str) -> str:
    pool = ConnectionPool(expected="nameserver")
    answer = await (await pool.get(namesrv)).request(106, timeout_s=TIMEOUT_S)
    await pool.close()
    (broker,) = ClusterInfo.decode(answer.body).broker_addr_table.values()
    return broker.broker_addrs[0]


async def cost(namesrv: str, pid: int, where: str, act: Act, count: int) -> dict[str, Any]:
    """Open ``count`` connections, let each do its part, and return what the process grew by."""
    address = namesrv if where == "namesrv" else await broker_address(namesrv)
    host, port = parse_address(address)
    loop = asyncio.get_running_loop()
    receive = ReceiveBuffer()

    async def connect() -> Connection:
        _, conn = await loop.create_connection(lambda: Connection(loop, address, receive, expected=where), host, port)
        return conn

    connections = [await connect() for _ in range(AT_ONCE)]
    if where == "broker":
        await send(0, connections[0])  # topic and files are there, and a message to pull
    for _ in range(WARM_ROUNDS):  # what the process keeps whatever the number of connections, such as freed memory
        await asyncio.gather(*(act(number, conn) for number, conn in enumerate(connections)))
    await asyncio.sleep(SETTLED_S)
    before = anonymous_kib(pid)
    busy = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Connection:
        async with busy:
            conn = await connect()
            await act(number, conn)
            return conn

    connections += await asyncio.gather(*(one(number) for number in range(AT_ONCE, AT_ONCE + count)))
    await asyncio.sleep(SETTLED_S)
    after = anonymous_kib(pid)
    lost = sum(conn.closed for conn in connections)
    for conn in connections:
        conn.close()
    if lost:
        raise RuntimeError(f"{lost} of {count} connections were closed")
    return {
        "before_mib": round(before / 1024, 1),
        "after_mib": round(after / 1024, 1),
        "kib_per_connection": round((after - before) / count, 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the result file, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help=f"connections at the same time (default {CONNECTIONS})")
    parser.add_argument("--case", choices=CASES, action="append", help="one case only; may be given again")
    options = parser.parse_args(arguments)
    cases: dict[str, dict[str, Any]] = {}
    for name in options.case or CASES:
        with tempfile.TemporaryDirectory(prefix="sprocketmq-idle-") as directory, serve(Path(directory)) as (namesrv, pid):
            cases[name] = asyncio.run(cost(namesrv, pid, *CASES[name], options.connections))
        print(f"{name:20} {cases[name]['kib_per_connection']:8.2f} KiB a connection  (goal at most {GOAL_KIB:g})", flush=True)
    missed = [name for name, case in cases.items() if case["kib_per_connection"] > GOAL_KIB]
    write_result("load-idle-connections", {"connections": options.connections, "goal_kib": GOAL_KIB, "missed": missed, "cases": cases})
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
