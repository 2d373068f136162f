"""kill -9 of a landing into a Delta and an Iceberg table, again and again, while a producer runs: no row is lost, and none is there twice.

``make spark-tables`` runs it with the versions of Spark that the formats have releases for; Spark downloads them from Maven Central.
``SPROCKETMQ_TABLE_KILLS`` sets how many kills there are for each format, ``SPROCKETMQ_SPARK_FAULT_SEED`` repeats their choices.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.spark_faults import progress
from tests.spark_faults.test_landing import LIMIT_S, TOPIC, Producing, kill

from sprocketmq.embedded import LocalCluster
from sprocketmq.spark.version_checks import spark_version

KILLS = int(os.environ.get("SPROCKETMQ_TABLE_KILLS", "0"))
SEED = os.environ.get("SPROCKETMQ_SPARK_FAULT_SEED") or str(random.randrange(1 << 32))
ROOT = Path(__file__).parents[2]
PACKAGES = {
    "delta": {(4, minor): f"io.delta:delta-spark_4.{minor}_2.13:4.4.0" for minor in (0, 1, 2)},
    "iceberg": {
        (4, 0): "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
        (4, 1): "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    },
}

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(0 if KILLS > 10 else 900),
    pytest.mark.skipif(KILLS == 0, reason="it downloads packages: make spark-tables"),
]


def start(plan: dict[str, object], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as said:
        command = [sys.executable, "-m", "tests.spark_faults.land_with_spark", json.dumps(plan)]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE if plan["to the end"] else said, stderr=said)


def tail(home: Path) -> str:
    return "\n".join(path.read_text(errors="replace")[-3000:] for path in home.glob("*.log"))


FORMS = [form for form, releases in PACKAGES.items() if spark_version()[:2] in releases]


@pytest.mark.parametrize("form", FORMS or PACKAGES)
def test_a_landing_into_a_table_of_another_format_loses_and_doubles_nothing(form: str, tmp_path: Path) -> None:
    package = PACKAGES[form].get(spark_version()[:2])
    assert package is not None, f"{form} has no release for Spark {spark_version()}: make spark-tables takes one that it has"
    chance = random.Random(f"{SEED} {form}")
    log, checkpoint = tmp_path / "land.log", tmp_path / "checkpoint"
    under_way = 0
    with LocalCluster() as mq:
        mq.create_topic(TOPIC, queues=3)
        plan = {"nameserver": mq.namesrv, "topic": TOPIC, "home": str(tmp_path), "format": form, "package": package, "to the end": False}
        # A minute passes between two kills: no more than the last landing can read back.
        with Producing(mq.namesrv, pause_s=0.1) as producing:
            for _ in range(KILLS):
                aim = progress.committed(checkpoint) + chance.randrange(1, 4)
                process = start(plan, log)
                try:
                    deadline = time.monotonic() + LIMIT_S
                    while progress.committed(checkpoint) < aim or chance.random() < 0.8:
                        assert process.poll() is None, tail(tmp_path)
                        assert time.monotonic() < deadline, f"no batch landed (seed {SEED}): {tail(tmp_path)}"
                        time.sleep(0.02)
                finally:
                    kill(process)
                under_way += progress.planned(checkpoint) > progress.committed(checkpoint)
        process = start({**plan, "to the end": True}, log)
        try:
            said, _ = process.communicate(timeout=3 * LIMIT_S)
            assert process.returncode == 0, tail(tmp_path)
        finally:
            if process.poll() is None:
                kill(process)
        print(f"{form}, seed {SEED}: {KILLS} kills, {under_way} in a micro-batch, {len(producing.sent)} messages")
        found, sent = json.loads(said), [body.decode() for body in producing.sent]
        twice = len(found) - len(set(found))
        assert (len(found), twice) == (len(sent), 0), f"seed {SEED}: messages in the table and how many are there twice"
        assert found == sent, f"seed {SEED}"
