"""The largest memory of any Python worker while one batch read takes a topic range of 4 GiB, by default in two tasks.

Twice: 1 KiB messages in a topic of batch queues, and 1 MiB messages in a plain topic. The peak is what the system has noted for each process
(VmHWM of /proc/PID/status). The broker's store needs 9 GiB of disk while the benchmark runs.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

from tests.processes import peak_rss_bytes, task_workers

from benchmarks.load.sides import serve
from benchmarks.report import write_result
from sprocketmq import AdminClient, Message, Producer
from sprocketmq.spark import session

GOAL_MB = 400.0
GIB = 4.0
TASKS = 2
QUEUES = 4
# Body bytes, messages of a batch, attributes of the topic.
TOPICS: dict[str, tuple[int, int, dict[str, str]]] = {
    "MemoryLists": (1 << 10, 1000, {"queue.type": "BatchCQ"}),
    "MemoryLarge": (1 << 20, 1, {}),
}
SAMPLE_S = 0.2


def fill(namesrv: str, gib: float) -> dict[str, int]:
    """Fill every topic with so many GiB of bodies; return the numbers of messages."""

    async def send() -> dict[str, int]:
        counts = {}
        async with AdminClient(namesrv=namesrv) as admin, Producer("bench", namesrv=namesrv) as producer:
            for topic, (body_bytes, of_batch, attributes) in TOPICS.items():
                await admin.create_topic(topic, queues=QUEUES, attributes=attributes)
                sends = max(1, round(gib * (1 << 30) / body_bytes / of_batch / QUEUES))
                body = os.urandom(body_bytes)
                for queue in await producer.queues(topic):
                    messages = [Message(topic, body, queue=queue) for _ in range(of_batch)]
                    for _ in range(sends):
                        await producer.send_batch(messages)
                counts[topic] = sends * of_batch * QUEUES
        return counts

    return asyncio.run(send())


class Peaks:
    """The peak of each Python worker below this process, looked at while the block runs."""

    def __init__(self) -> None:
        self.mb: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.look()

    def look(self) -> None:
        """Take down the peaks of the workers that there are."""
        for worker in task_workers(os.getpid()):
            self.mb[worker.pid] = max(self.mb.get(worker.pid, 0.0), peak_rss_bytes(worker.pid) / 1e6)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.look()


def main() -> int:
    """Measure, write the result file, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gib", type=float, default=GIB, help=f"size of each topic ({GIB:g})")
    parser.add_argument("--directory", type=Path, help="where the store goes (a temporary directory)")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="sprocketmq-bench-", dir=options.directory))
    try:
        with serve(directory) as (namesrv, _):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                counts = pool.submit(fill, namesrv, options.gib).result()
            return run(namesrv, counts, directory, options.gib)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(namesrv: str, counts: dict[str, int], directory: Path, gib: float) -> int:
    """Read each topic in one batch and note the peaks."""
    figures: dict[str, Any] = {}
    spark = session("spark-memory", master=f"local[{TASKS}]", conf={"spark.sql.warehouse.dir": str(directory / "warehouse")})
    try:
        for topic, count in counts.items():
            rows = spark.read.format("rocketmq").options(nameserver=namesrv, subscribe=topic, maxPartitions=str(TASKS)).load()
            began = time.perf_counter()
            with Peaks() as peaks:
                found = rows.selectExpr("count(*)", "sum(length(body))").first()
            elapsed = time.perf_counter() - began
            body_bytes = TOPICS[topic][0]
            if found is None or tuple(found) != (count, count * body_bytes):
                raise RuntimeError(f"the read of {topic} found {found}, {count} messages of {body_bytes} bytes were sent")
            figures[topic] = {
                "messages": count,
                "body_bytes": body_bytes,
                "peak_mb": round(max(peaks.mb.values()), 1),
                "workers": len(peaks.mb),
                "rows_per_s": round(count / elapsed),
                "mb_per_s": round(count * body_bytes / elapsed / 1e6),
            }
            print(f"{topic:12} {figures[topic]}", flush=True)
    finally:
        spark.stop()
    worst = max(one["peak_mb"] for one in figures.values())
    write_result(
        "spark-memory",
        {"what": f"{gib:g} GiB of bodies read in one batch by {TASKS} tasks", "goal_below_mb": GOAL_MB, "peak_mb": worst, **figures},
    )
    print(f"peak of a worker {worst:.0f} MB, goal below {GOAL_MB:.0f}{'' if worst < GOAL_MB else ': MISSED'}")
    return 0 if worst < GOAL_MB else 1


if __name__ == "__main__":
    sys.exit(main())
