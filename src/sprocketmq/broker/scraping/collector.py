"""Builds the page that Prometheus scrapes, in steps, so that no send waits for it."""

import asyncio
import logging
from collections.abc import AsyncIterator

from sprocketmq.broker.metrics.exposition import Metric, Writer, read_labels
from sprocketmq.broker.scraping.lags import Lags
from sprocketmq.broker.scraping.own import OWN
from sprocketmq.broker.scraping.sources import Sources
from sprocketmq.broker.scraping.state import STATE
from sprocketmq.broker.scraping.traffic import TRAFFIC
from sprocketmq.events import event

log = logging.getLogger(__name__)

METRICS: tuple[Metric, ...] = (*TRAFFIC, *STATE, *OWN)
# The end of each page of the reference's exporter.
_TARGET_INFO = "# TYPE target_info gauge\ntarget_info 1\n"


class Collector:
    """Writes all metrics of one broker."""

    def __init__(self, sources: Sources) -> None:
        config = sources.config
        labels = {"cluster": config.cluster_name, "node_type": "broker", "node_id": config.broker_name, "otel_scope_name": "broker-meter"}
        self._sources = sources
        self._writer = Writer(labels | read_labels(config.metrics_label), config.metrics_max_series)
        self._lags = Lags(sources.store, sources.topics, sources.clients, sources.offsets, sources.threads, sources.clock)
        self._warned: set[str] = set()
        self._max_series = config.metrics_max_series

    async def pieces(self) -> AsyncIterator[str]:
        """Yield the page in pieces; the loop has a turn between them."""
        sources = self._sources
        sources.counted = [topic.counters for topic in sources.topics if topic.counters is not None]
        sources.lags = [lag async for lag in self._lags.all()]
        for metric in METRICS:
            for piece in self._writer.pieces(metric, metric.rows(sources)):
                if piece:
                    yield piece
                await asyncio.sleep(0)
        yield _TARGET_INFO
        for name in self._writer.over - self._warned:
            self._warned.add(name)
            event(log, logging.WARNING, "metrics_over_limit", metric=name, max_series=self._max_series)
