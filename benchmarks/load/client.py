"""Put load on a broker with our client: one JSON command a line on standard input, one JSON answer a line on standard output.

The counterpart of the Java driver's ``load_single`` and ``load_batch``, with the same arguments and answers.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from sprocketmq import AdminClient, Message, Producer

Call = Callable[[], Awaitable[int]]


async def measure(command: dict[str, Any], call: Call) -> dict[str, Any]:
    """Repeat ``call`` from ``senders`` coroutines; count what completed in the ``measure_s`` seconds after ``warm_s`` of the same."""
    clock = time.perf_counter
    begin = clock() + command["warm_s"]
    end = begin + command["measure_s"]
    latencies: list[float] = []
    failures: list[str] = []
    messages = 0

    async def sender() -> None:
        nonlocal messages
        before = clock()
        while before < end:
            try:
                count = await call()
            except Exception as e:
                failures.append(f"{type(e).__name__}: {e}")
                before = clock()
                continue
            after = clock()
            if begin <= after < end:
                messages += count
                latencies.append(after - before)
            before = after

    await asyncio.gather(*(sender() for _ in range(command["senders"])))
    latencies.sort()
    return {
        "messages": messages,
        "elapsed_s": command["measure_s"],
        "calls": len(latencies),
        "p50_ms": quantile(latencies, 0.50) * 1000,
        "p99_ms": quantile(latencies, 0.99) * 1000,
        "errors": len(failures),
        "first_error": failures[0] if failures else None,
    }


def quantile(ordered: list[float], q: float) -> float:
    """Return the q-quantile of ordered values; 0 when there are none."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


async def run(command: dict[str, Any], producer: Producer) -> Any:
    """Carry out one command."""
    topic = command["topic"]
    match command["op"]:
        case "create_topic":
            async with AdminClient(namesrv=command["namesrv"]) as admin:
                await admin.create_topic(topic, queues=command["queues"])
            return None
        case "load_single":
            body = b"x" * command["body_bytes"]

            async def single() -> int:
                await producer.send(Message(topic, body))
                return 1

            return await measure(command, single)
        case "load_batch":
            body = b"x" * command["body_bytes"]
            size = command["batch"]

            async def batch() -> int:
                await producer.send_batch([Message(topic, body) for _ in range(size)])
                return int(size)

            return await measure(command, batch)
        case other:
            raise ValueError(f"no such op: {other}")


async def main(namesrv: str) -> None:
    """Serve commands until standard input ends."""
    loop = asyncio.get_running_loop()
    async with Producer("load_producer", namesrv=namesrv) as producer:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command = json.loads(line)
            answer: dict[str, Any] = {"id": command["id"]}
            try:
                answer["value"] = await run(command, producer)
            except Exception as e:
                answer["error"] = f"{type(e).__name__}: {e}"
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
