"""A client of Spark Connect: source, sink, streams and jobs, with the driver in another process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.spark import store_jobs

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.spark.version_checks import spark_version

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
MESSAGES = 500


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, Any]:
    """What one client of a Connect server found; starting one takes longer than everything that is asked of it."""
    home = tmp_path_factory.mktemp("connect")
    store_jobs.filled(home / "store", 150)
    with (
        LocalCluster() as mq,
        sync.AdminClient(namesrv=mq.namesrv) as admin,
        sync.Producer("pg", namesrv=mq.namesrv) as producer,
    ):
        for topic in ("Remote", "RemoteCopies", "RemoteReplayed"):
            admin.create_topic(topic, queues=2)
        producer.send_batch([Message("Remote", b"%03d" % i, tag="t", keys=[f"k{i}"]) for i in range(MESSAGES)])
        plan = {"nameserver": mq.namesrv, "topic": "Remote", "copies": "RemoteCopies", "replayed": "RemoteReplayed", "home": str(home)}
        command = [sys.executable, "-m", "tests.spark.connect_job", json.dumps(plan)]
        with (home / "job.log").open("w") as log:
            job = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, check=False)
        # What Python says is between the stack traces of the JVM.
        assert job.returncode == 0, re.sub(r"\n\s*(at |\w+(\.[\w$]+)+\().*", "", (home / "job.log").read_text())[-4000:]
        result = json.loads(job.stdout.splitlines()[-1])
        assert result["session"].startswith("pyspark.sql.connect")
        return result | {"replay": sorted(message.body.decode() for message in mq.messages("RemoteReplayed"))}


BODIES = [f"{i:03}" for i in range(MESSAGES)]


def test_source_and_sink_work_over_spark_connect(found):
    assert found["read"] == BODIES
    assert found["written"] == BODIES
    assert found["refused"].startswith("option 'colums'")


def test_a_stream_reads_what_is_available_in_several_batches(found):
    assert found["streamed"] == BODIES
    assert found["batches"] >= (2 if spark_version() >= (4, 2) else 1)
    assert found["watched"] == MESSAGES, "what watch shows"


def test_tasks_run_report_progress_fail_and_end_over_spark_connect(found):
    assert found["at a time"] == 2
    assert found["doubled"] == [0, 2, 4, 6, 8, 10]
    assert found["told"] == 15
    assert "13 is too much" in found["failed"]
    assert found["interrupted"]


def test_jobs_work_over_spark_connect(found):
    assert (found["landed direct"], found["landed spark"], found["landed rows"]) == (MESSAGES, MESSAGES, MESSAGES)
    assert found["replayed"] == MESSAGES
    assert found["replay"] == BODIES
    assert (found["rebuilt"], found["audit"], found["queues"]) == (200, "in order", 3)
