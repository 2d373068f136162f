"""Source, sink and jobs on a cluster master: executors are other processes, which import, connect and read by themselves."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.spark.bare_python import bare_python
from tests.spark.secured import SECRET, USER, secured_cluster
from tests.spark.standalone import StandaloneCluster
from tests.unit.spark import store_jobs

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.spark.sessions.session import launch_environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
TOPICS = ("ClusterPlain", "ClusterLists")
MESSAGES = 500
# What docs/guide/spark-clusters.md asks for.
ON_EXECUTORS = ("msgspec", "numpy", "pyarrow", "pandas")


@pytest.fixture
def filled():
    """A cluster of ours with two topics, one of batch queues; yields it and what its topics hold."""
    with (
        LocalCluster(default_topic_queues=4) as mq,
        sync.AdminClient(namesrv=mq.namesrv) as admin,
        sync.Producer("pg", namesrv=mq.namesrv) as producer,
    ):
        admin.create_topic(TOPICS[0], queues=4)
        admin.create_topic(TOPICS[1], queues=4, attributes={"queue.type": "BatchCQ"})
        admin.create_topic("ClusterCopies", queues=2)
        held = []
        for topic in TOPICS:
            for first in range(0, MESSAGES, 50):
                messages = [Message(topic, b"%s %d" % (topic.encode(), i), tag="t", keys=[f"k{i}"]) for i in range(first, first + 50)]
                results = producer.send_batch(messages)
                held += [[topic, r.queue_id, r.queue_offset, m.body.decode()] for m, r in zip(messages, results, strict=True)]
        yield mq, sorted(held)


def run_job(home: Path, mq: LocalCluster, master: str, *, whole: bool) -> dict[str, Any]:
    plan = {"master": master, "nameserver": mq.namesrv, "topics": TOPICS, "copies": "ClusterCopies", "home": str(home), "whole": whole}
    return run_module("tests.spark.cluster_job", plan, home)


def run_module(name: str, plan: dict[str, Any], home: Path) -> dict[str, Any]:
    with (home / "job.log").open("w+") as said:
        job = subprocess.run([sys.executable, "-m", name, json.dumps(plan)], cwd=ROOT, stdout=subprocess.PIPE, stderr=said, check=False)
        said.seek(0)
        assert job.returncode == 0, said.read()[-4000:]
    return json.loads(job.stdout.splitlines()[-1])


def test_source_sink_and_landing_run_on_executors_of_their_own(tmp_path, filled):
    mq, held = filled
    found = run_job(tmp_path, mq, "local-cluster[2,1,512]", whole=False)
    assert found["read"] == held
    assert len(found["tasks"]) == 2
    assert min(found["tasks"].values()) >= 1, "both executors read"
    assert sorted(message.body.decode() for message in mq.messages("ClusterCopies")) == sorted(body for *_, body in held)
    assert found["landed rows"] == len(held)


@pytest.mark.long
def test_source_sink_stream_and_landing_run_on_the_executors_of_a_cluster(tmp_path, filled):
    mq, held = filled
    store_jobs.filled(tmp_path / "store", 150)
    files = store_jobs.queue_files(tmp_path / "store")
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        found = run_job(tmp_path, mq, cluster.url, whole=True)
    assert found["read"] == held
    assert len(found["tasks"]) == 2
    assert min(found["tasks"].values()) >= 1, "both executors read"
    bodies = sorted(body for *_, body in held)
    assert found["streamed"] == bodies, "what the sink wrote is what the stream reads"
    assert found["batches"] == 4
    assert found["landed rows"] == len(held)
    assert (found["rebuilt units"], found["audit"]) == (200, "in order")
    assert store_jobs.queue_files(tmp_path / "store") == files


@pytest.mark.long
def test_executors_of_a_cluster_read_write_stream_and_land_with_credentials_they_resolve_themselves(tmp_path, monkeypatch):
    """What the driver finds by a relative name the executors do not, as they have directories of their own."""
    home = tmp_path / "driver"
    for directory in (home, home / "events"):
        directory.mkdir()
    monkeypatch.setenv("READER_ACCESS_KEY", USER)
    monkeypatch.setenv("READER_SECRET_KEY", SECRET)
    with secured_cluster(home) as secured, StandaloneCluster(tmp_path / "cluster") as cluster:
        secured.admin.create_topic("Secured", queues=4)
        secured.admin.create_topic("SecuredCopies", queues=2)
        secured.producer.send_batch([Message("Secured", b"%d" % n) for n in range(400)])
        shipped = secured.write_credentials(SECRET, "shipped.json")
        plan = {"master": cluster.url, "nameserver": secured.namesrv, "topic": "Secured", "copies": "SecuredCopies"}
        found = run_module("tests.spark.secured_job", plan | {"prefix": "READER", "home": str(home)}, home)
    assert found["by environment"] == found["by directory"] == found["landed"] == list(range(400))
    assert sorted(map(int, found["streamed"])) == list(range(400)), "what the sink wrote is what the stream reads"
    assert found["batches"] == 2
    on_executor = f"option 'credentials.file' of the rocketmq format: on executor host {socket.gethostname()}, "
    assert found["missing on executors"].startswith(on_executor + "the file of credentials credentials.json cannot be read: ")
    assert found["shipped"].startswith(on_executor + "shipped.json holds a secret and others may read it")
    # Spark puts a copy of a shipped file into the executors' directories.
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in ("credentials.json", shipped.name)]
    assert any(path.parent.name == "events" or path.parent.parent.name == "events" for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def zipped(home: Path) -> tuple[list[str], dict[str, str]]:
    """Make a zip of the package; return the options and the environment with which spark-submit ships it."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(home)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = home.glob("sprocketmq-*.whl")
    wheel.rename(home / "sprocketmq.zip")
    python = bare_python(home / "python", *ON_EXECUTORS)
    shown = subprocess.run([python, "-c", "import sprocketmq"], capture_output=True, text=True, check=False)
    assert "No module named 'sprocketmq'" in shown.stderr
    # Spark plans streams in processes of the driver that do not see --py-files.
    environment = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "PYTHONPATH": str(home / "sprocketmq.zip")}
    return ["--py-files", "sprocketmq.zip"], environment


def packed(home: Path) -> tuple[list[str], dict[str, str]]:
    """Make an archive of a Python that has the package; return the options and the environment with which spark-submit ships it."""
    python = Path(bare_python(home / "python", *ON_EXECUTORS))
    (packages,) = (home / "python").glob("lib/python*/site-packages")
    for name in ("sprocketmq", "pyspark_rocketmq", "pyspark_rocketmq_store"):
        (packages / name).symlink_to(ROOT / "src" / name)
    with tarfile.open(home / "environment.tar.gz", "w:gz") as archive:
        archive.add(home / "python", arcname=".")
    environment = {"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_DRIVER_PYTHON": str(python)}
    return ["--archives", "environment.tar.gz#environment"], environment


@pytest.mark.long
@pytest.mark.parametrize(("ship", "where"), [(zipped, ".zip/sprocketmq/"), (packed, "/environment/lib/")])
def test_executors_have_the_package_from_what_spark_submit_ships(unspaced, filled, monkeypatch, ship, where):
    """docs/guide/spark-clusters.md: of the package's dependencies those that are named there are enough."""
    mq, held = filled
    monkeypatch.delenv("PYTHONPATH", raising=False)
    options, own = ship(unspaced)
    environment = os.environ | launch_environment() | own
    plan = {"nameserver": mq.namesrv, "topic": TOPICS[0], "copies": "ClusterCopies", "home": str(unspaced)}
    with StandaloneCluster(unspaced / "cluster") as cluster, (unspaced / "job.log").open("w") as log:
        options += ["--master", cluster.url, "--driver-memory", "512m", "--executor-memory", "512m"]
        command = [f"{environment['SPARK_HOME']}/bin/spark-submit", *options, str(ROOT / "tests/spark/shipped_job.py"), json.dumps(plan)]
        job = subprocess.run(command, cwd=unspaced, env=environment, stdout=subprocess.PIPE, stderr=log, check=False)
    # spark-submit writes what Python says to standard output.
    assert job.returncode == 0, job.stdout.decode()[:4000] + (unspaced / "job.log").read_text()[-2000:]
    found = json.loads(job.stdout.splitlines()[-1])
    bodies = sorted(body for topic, *_, body in held if topic == TOPICS[0])
    assert all(where in path for path in found["executors"]), found["executors"]
    assert found["read"] == bodies
    assert sorted(message.body.decode() for message in mq.messages("ClusterCopies")) == bodies
    assert (found["streamed"], found["landed"]) == (MESSAGES, MESSAGES)
