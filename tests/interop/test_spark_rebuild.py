"""Apache's broker starts on a store whose index files Spark made, serves all of it, and goes on writing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.interop import apache, stores
from tests.interop.compare import variety
from tests.interop.reading import java_pull_all
from tests.interop.test_stores import (
    CLUSTER,
    Moving,
    append_by_apaches_client,
    assert_admin_tool_tells,
    assert_java_reads,
    assert_queries_find,
    write,
)

from sprocketmq.storage.inspect.verification import verify

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def moving(home: Path, own_namesrv: apache.ApacheNamesrv) -> Moving:
    port = apache.broker_port()
    return Moving(home, own_namesrv.address, f"moving-{port}", port)


def drop_derived(root: Path) -> None:
    """Remove everything that follows from the commit log, and Apache's notes about it."""
    for name in ("consumequeue", "batchconsumequeue", "index", "checkpoint", "dispatched"):
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def rebuilt(spark: Any, root: Path, **options: Any) -> None:
    from sprocketmq.spark.jobs.audit import audit
    from sprocketmq.spark.jobs.rebuild_index import rebuild_index

    assert rebuild_index(spark, root, split_bytes=100_000, **options).damaged == ()
    assert audit(spark, root).errors == 0


def test_apaches_broker_serves_a_store_of_ours_that_spark_rebuilt(java: apache.JavaClient, moving: Moving, spark: Any) -> None:
    names = stores.Names("rebuilt")
    said = stores.write_in_a_process(moving.store, moving.port, names, "clean")
    drop_derived(moving.store)
    rebuilt(spark, moving.store, config=stores.store_config(moving.store))
    with moving.apaches("between", stores.APACHE_SETTINGS):
        assert_java_reads(java, moving.namesrv, said)
        assert_queries_find(java, moving.namesrv, names, said)
        assert_admin_tool_tells(java, moving.namesrv, names, said)
        append_by_apaches_client(java, moving.namesrv, names, said, b"apache")
    assert [found for found in verify(str(moving.store)).findings if found.severity == "error"] == []


@pytest.mark.long
async def test_apaches_broker_goes_on_with_its_own_store_after_spark_rebuilt_it(
    java: apache.JavaClient, moving: Moving, spark: Any
) -> None:
    namesrv, topic, batch = moving.namesrv, "RebuiltByPlain", "RebuiltByBatch"
    with moving.apaches("before"):
        java.mqadmin("updateTopic", "-n", namesrv, "-c", CLUSTER, "-t", topic, "-r", "3", "-w", "3")
        java.mqadmin("updateTopic", "-n", namesrv, "-c", CLUSTER, "-t", batch, "-r", "2", "-w", "2", "-a", "+queue.type=BatchCQ")
        for name in (topic, batch):
            await write(java, namesrv, name, 200)
        before = {name: java_pull_all(java, namesrv, name) for name in (topic, batch)}
    rebuilt(spark, moving.store)
    with moving.apaches("after"):
        assert {name: java_pull_all(java, namesrv, name) for name in (topic, batch)} == before
        java.send(namesrv, variety(topic))
        assert len(java_pull_all(java, namesrv, topic)) == len(before[topic]) + len(variety(topic))
    assert [found for found in verify(str(moving.store)).findings if found.severity == "error"] == []
