"""Streaming queries that read what is there and end, alike with every version of Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sprocketmq.spark.version_checks import spark_version


def run_available(start: Callable[[], Any]) -> list[Any]:
    """Await the query that ``start`` starts with trigger(availableNow=True); return the progress of its micro-batches with rows.

    Before Spark 4.2 such a query is one micro-batch: it is started again until one has no rows.
    """
    done: list[Any] = []
    while True:
        query = start()
        query.awaitTermination()
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        done += batches
        if spark_version() >= (4, 2) or not batches:
            return done
