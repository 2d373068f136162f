"""kill -9 of a landing and all below it while producers run: every message is in the table once, and readers only ever see whole batches.

``SPROCKETMQ_SPARK_FAULTS`` and ``SPROCKETMQ_SPARK_FAULT_SEED`` as in test_restarts.py; the steps between two renames are killed one by one in
tests/unit/spark/test_land.py, without Spark.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

import pyarrow.parquet as pq
import pytest
from tests import processes

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.spark.jobs.land import landed_files
from sprocketmq.spark.jobs.land.table import is_table, read_table

KILLS = max(2, int(os.environ.get("SPROCKETMQ_SPARK_FAULTS", "10")) // 5)
SEED = os.environ.get("SPROCKETMQ_SPARK_FAULT_SEED") or str(random.randrange(1 << 32))
TOPIC = "orders"
# On a busy machine everything takes its time; this bounds what would otherwise hang.
LIMIT_S = 300.0

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(0 if KILLS > 2 else 900)]


class Producing:
    """Sends forty numbered messages every ``pause_s`` in a thread until it is ended; ``sent`` are those the broker acknowledged."""

    def __init__(self, namesrv: str, pause_s: float = 0.02) -> None:
        self.sent: list[bytes] = []
        self._namesrv = namesrv
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with sync.Producer("landing", namesrv=self._namesrv) as producer:
            while not self._ended.wait(self._pause_s):
                bodies = [b"%08d" % number for number in range(len(self.sent), len(self.sent) + 40)]
                producer.send_batch([Message(TOPIC, body) for body in bodies])
                self.sent += bodies


def start(table: Path, namesrv: str, log: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sprocketmq", "pipeline", "land", TOPIC, "--to", str(table), "--namesrv", namesrv, "--columns", "body"]
    with log.open("ab") as said:
        return subprocess.Popen([*command, "--cores", "2", "--memory", "512m", *more], stdout=said, stderr=said)


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    processes.kill(processes.descendants(process.pid))
    process.kill()
    process.wait(120)


def batches(table: Path) -> int:
    return len(read_table(table).batches) if is_table(table) else 0


def bodies(table: Path) -> list[bytes]:
    return sorted(body for file in landed_files(table) for body in pq.ParquetFile(file).read()["body"].to_pylist())


def test_a_landing_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    table, log = tmp_path / "table", tmp_path / "land.log"
    with LocalCluster() as mq:
        mq.create_topic(TOPIC, queues=3)
        with Producing(mq.namesrv) as producing:
            for _ in range(KILLS):
                before = batches(table)
                process = start(table, mq.namesrv, log, "--every", "0.05", "--batch", "3000", "--compact-after", "5")
                try:
                    deadline = time.monotonic() + LIMIT_S
                    while batches(table) == before or chance.random() < 0.9:
                        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
                        assert time.monotonic() < deadline, f"no batch landed (seed {SEED}): {log.read_text(errors='replace')[-4000:]}"
                        time.sleep(0.02)
                finally:
                    kill(process)
                seen = bodies(table)
                assert len(seen) == len(set(seen)), f"seed {SEED}"
                assert len(seen) == read_table(table).rows, f"seed {SEED}"
        process = start(table, mq.namesrv, log)
        try:
            assert process.wait(LIMIT_S) == 0, log.read_text(errors="replace")[-4000:]
        finally:
            if process.poll() is None:
                kill(process)
        assert bodies(table) == producing.sent, f"seed {SEED}"
        assert sorted(pq.read_table(table)["body"].to_pylist()) == producing.sent, f"seed {SEED}"
        assert not list((table / "_sprocketmq").glob("staging/*"))
