"""A worker's memory does not grow with what it reads: the whole range of a task passes through it, pull by pull."""

from __future__ import annotations

import os

import psutil
import pytest
from tests.processes import kill, peak_rss_bytes, task_workers

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster

pytestmark = pytest.mark.spark

BODY_BYTES = 256 << 10
MESSAGES = 2400
LIMIT_BYTES = 400_000_000


def test_a_range_larger_than_the_limit_is_read_below_it(spark):
    with LocalCluster() as mq, sync.AdminClient(namesrv=mq.namesrv) as admin, sync.Producer("pg", namesrv=mq.namesrv) as producer:
        admin.create_topic("Large", queues=1)
        body = os.urandom(BODY_BYTES)
        for _ in range(0, MESSAGES, 8):
            producer.send_batch([Message("Large", body) for _ in range(8)])
        workers = task_workers(os.getpid())  # they may have grown with tasks of other tests
        kill(workers)
        _, left = psutil.wait_procs(workers, timeout=30)
        assert not left
        rows = spark.read.format("rocketmq").options(nameserver=mq.namesrv, subscribe="Large", maxPartitions="1").load()
        count, size = rows.selectExpr("count(*)", "sum(length(body))").first()
        assert (count, size) == (MESSAGES, MESSAGES * BODY_BYTES)
        assert size > 1.5 * LIMIT_BYTES
        peaks = [peak_rss_bytes(worker.pid) for worker in task_workers(os.getpid())]
    assert peaks, "Spark keeps its workers for the next tasks"
    assert max(peaks) < LIMIT_BYTES, f"a worker took {max(peaks):,} bytes"
