"""The Spark examples and the Spark program of the README run as printed: in the session of the tests, or by Spark's own command."""

import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sprocketmq import Message, sync
from sprocketmq.spark.sessions.session import launch_environment
from sprocketmq.spark.version_checks import spark_version

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples"
PIPELINE = EXAMPLES / "spark_pipelines"


@pytest.fixture
def state_store(spark):
    """Give the session its store for state back after the test."""
    name = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(name)
    yield
    spark.conf.set(name, before)


def test_a_topic_is_read_as_a_table_and_in_sql(spark, capsys):
    runpy.run_path(str(EXAMPLES / "spark" / "read_a_topic.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "| new|   20|" in said
    assert "Row(orders=30)" in said


def test_the_readmes_spark_program_runs(spark, rocketmq, capfd):
    with sync.Producer("numbers", namesrv=rocketmq.namesrv) as producer:
        producer.send_batch([Message("numbers", b"%d" % number, tag="demo") for number in range(1, 1001)])
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    program = next(text for text in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "sprocketmq.spark" in text)
    assert "127.0.0.1:9876" in program
    exec(program.replace("127.0.0.1:9876", rocketmq.namesrv), {})
    assert "500500" in capfd.readouterr().out
    assert len(rocketmq.messages("copies", count=1000)) == 1000


@pytest.mark.skipif(spark_version() < (4, 2), reason="one micro-batch ends no session, and Spark 4.0 has no transformWithState for rows")
@pytest.mark.usefixtures("state_store")
def test_tries_are_counted_in_sessions(spark, capsys):
    runpy.run_path(str(EXAMPLES / "spark" / "tries_of_an_order.py"), run_name="__main__")
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("|")][1:]
    assert [[cell.strip() for cell in row] for row in rows] == [["o1", "1", "0"], ["o1", "3", "240"], ["o2", "1", "0"]]


@pytest.mark.long
def test_the_declared_pipeline_takes_in_a_topic(rocketmq, unspaced):
    shutil.copytree(PIPELINE, unspaced / "orders")
    spec = unspaced / "orders" / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/sprocketmq-orders", (unspaced / "storage").as_uri()))
    with sync.Producer("pipeline", namesrv=rocketmq.namesrv) as producer:
        producer.send_batch([Message("orders", b"a teapot", tag="FR" if number % 2 else "IT", keys=[f"o{number}"]) for number in range(20)])
    environment = (
        os.environ
        | launch_environment()
        | {"NAMESRV_ADDR": rocketmq.namesrv, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    )
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    command = ["spark-pipelines", "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False, env=environment, cwd=unspaced / "orders")
    assert done.returncode == 0, done.stderr[-3000:]
    warehouse = unspaced / "orders" / "spark-warehouse"
    assert pq.read_table(warehouse / "orders").num_rows == 20
    counts = pq.read_table(warehouse / "orders_per_country").to_pylist()
    assert sorted((row["country"], row["count"]) for row in counts) == [("FR", 10), ("IT", 10)]
