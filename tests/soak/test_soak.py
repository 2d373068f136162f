"""A mixed load for a long time on a nameserver, a master and a slave, each a process: memory, files and threads stay as they are.

Nameserver and slave are restarted again and again meanwhile. ``SPROCKETMQ_SOAK_SECONDS`` sets for how long (15 by default),
``SPROCKETMQ_SOAK_SEED`` repeats the choices. Growth is judged from half an hour on: before, processes still grow to the size that they work
with. Prints what each process takes, and writes all samples to ``SPROCKETMQ_SOAK_SAMPLES`` when that names a file.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from tests.ports import LOOPBACK, free_ports

from sprocketmq.testing.serving import BrokerProcess, ServeProcess

SECONDS = float(os.environ.get("SPROCKETMQ_SOAK_SECONDS", "15"))
SEED = int(os.environ.get("SPROCKETMQ_SOAK_SEED") or random.SystemRandom().randrange(1 << 32))
SAMPLES = os.environ.get("SPROCKETMQ_SOAK_SAMPLES")
LONG_S = 1800.0
# A chore comes this often, and a restart, of nameserver and slave in turns.
CHORE_S = min(10.0, SECONDS / 10)
RESTART_S = min(300.0, SECONDS / 3)
SAMPLE_S = min(5.0, SECONDS / 10)
# A process with fewer samples was restarted a moment ago.
FEW = 6
# Goals: a process grows by at most this much in ten minutes, and has no more files open or threads at the end than this beyond before.
GROWTH_BYTES = 1 << 20
MORE_FILES = MORE_THREADS = 8
# Files of the log expire after three minutes, so that they come and go; delays are short.
SETTINGS = {
    "commitlog_segment_bytes": 16 << 20,
    "consumequeue_segment_bytes": 20 * 3000,
    "batchqueue_segment_bytes": 46 * 1000,
    "file_reserved_hours": 0.05,
    "delete_when": ";".join(f"{hour:02}" for hour in range(24)),
    "clean_interval_s": 1.0,
    "message_delay_level": "1s 1s 2s 2s 2s 2s",
    "transaction_timeout_s": 1.0,
    "transaction_check_interval_s": 1.0,
    "os_page_cache_busy_timeout_ms": 60_000,
}


class Namesrv(ServeProcess):
    """A nameserver that comes back at its port."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self.port = free_ports()
        self.address = f"{LOOPBACK}:{self.port}"

    def _arguments(self) -> list[str]:
        return ["namesrv", "--port", str(self.port)]


class Sample(NamedTuple):
    """What a process has: memory of its own in bytes, open files, threads."""

    at_s: float
    memory: int
    files: int
    threads: int


class Watch:
    """The samples of one process. One that is restarted begins anew."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 0
        self.samples: list[Sample] = []

    def look(self, pid: int, at_s: float) -> None:
        if pid != self.pid:
            self.pid = pid
            self.samples.clear()
        memory = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        if memory is not None:  # it has not ended just now
            process = psutil.Process(pid)
            self.samples.append(Sample(at_s, int(memory[1]) << 10, process.num_fds(), process.num_threads()))

    def growth(self) -> float:
        """Return by how many bytes memory grows in ten minutes, in the second half: the slope of a line through the samples."""
        if len(self.samples) < FEW:
            return 0.0
        later = self.samples[len(self.samples) // 2 :]
        return 600 * statistics.linear_regression([s.at_s for s in later], [s.memory for s in later]).slope

    def more(self, which: str) -> float:
        """Return how much more of something there is in the last third than in the one before it."""
        if len(self.samples) < FEW:
            return 0.0
        third = len(self.samples) // 3
        values = [getattr(sample, which) for sample in self.samples]
        return statistics.median(values[2 * third :]) - statistics.median(values[third : 2 * third])

    def __str__(self) -> str:
        if not self.samples:
            return f"{self.name:<8} not looked at"
        last = self.samples[-1]
        return (
            f"{self.name:<8} {last.memory / 2**20:6.1f} MiB ({self.growth() / 2**20:+.2f} in 10 min)   {last.files:4} files"
            f" ({self.more('files'):+.0f})   {last.threads:3} threads ({self.more('threads'):+.0f})   {len(self.samples)} samples"
        )


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Namesrv, BrokerProcess, BrokerProcess, int]]:
    """A nameserver, a SYNC_MASTER and its slave, ready, and the port of the master's metrics."""
    port = free_ports()
    metrics = {"metrics_exporter": "prom", "metrics_port": port}
    with ExitStack() as running:
        namesrv = running.enter_context(Namesrv(tmp_path / "namesrv"))
        namesrv.start()

        def broker(name: str, **settings: object) -> BrokerProcess:
            process = BrokerProcess(tmp_path / name, namesrv=namesrv.address, **SETTINGS, **settings)
            process.start()
            return running.enter_context(process)

        master = broker("master", role="SYNC_MASTER", ha_port=0, **metrics)
        yield namesrv, master, broker("slave", role="SLAVE", broker_id=1), port


@pytest.mark.timeout(SECONDS + 600)
def test_a_mixed_load_leaves_nothing_behind(servers: tuple[Namesrv, BrokerProcess, BrokerProcess, int], tmp_path: Path) -> None:
    print(f"\n{SECONDS:g} s, seed {SEED}")
    namesrv, master, slave, metrics_port = servers
    load_log = (tmp_path / "load.log").open("w+")
    arguments = (namesrv.address, metrics_port, SECONDS, CHORE_S, SEED)
    load = subprocess.Popen(
        [sys.executable, "-m", "tests.soak.load", *map(str, arguments)], stdout=subprocess.PIPE, stderr=load_log, text=True
    )
    watches = {name: Watch(name) for name in ("load", "namesrv", "master", "slave")}
    began = time.monotonic()
    restarts = 0
    try:
        while load.poll() is None:
            at_s = time.monotonic() - began
            if at_s < SECONDS:
                if at_s > (restarts + 1) * RESTART_S:
                    (namesrv, slave)[restarts % 2].start()
                    restarts += 1
                pids = {"load": load.pid, "namesrv": namesrv.pid, "master": master.pid, "slave": slave.pid}
                for name, watch in watches.items():
                    watch.look(pids[name], at_s)
                    if SAMPLES and watch.samples:
                        with Path(SAMPLES).open("a") as file:
                            print(json.dumps([name, *watch.samples[-1]]), file=file)
            try:
                load.wait(SAMPLE_S)
            except subprocess.TimeoutExpired:
                continue
        assert load.stdout is not None
        said = load.stdout.read()
        load_log.seek(0)
        assert load.returncode == 0, f"seed {SEED}: the load ended with {load.returncode}\n{load_log.read()[-5000:]}"
    finally:
        load.kill()
        load.wait(60)
        assert load.stdout is not None
        load.stdout.close()
        load_log.close()
    report = json.loads(said)
    print(report["counts"], f"{restarts} restarts", sep="\n")
    assert report["failures"] == []
    assert report["tasks"] == []
    print(*watches.values(), sep="\n")
    for watch in (watches["load"], watches["master"]):
        assert SECONDS < LONG_S or watch.growth() < GROWTH_BYTES, watch
        assert SECONDS < LONG_S or watch.more("files") <= MORE_FILES, watch
        assert SECONDS < LONG_S or watch.more("threads") <= MORE_THREADS, watch
    for server in servers[:3]:
        assert not re.search("^.* ERROR .*$|Traceback", server.said(), re.MULTILINE), server.said()[-5000:]
