"""Metrics beyond RIP-46: batches, waits of sends, refusals, backlogs."""

from collections import Counter
from collections.abc import Callable, Iterator

from sprocketmq.broker.metrics.exposition import COUNTER, GAUGE, HISTOGRAM, Metric, Row, Value
from sprocketmq.broker.replies.handlers import DELIVERED, ILLEGAL, NOT_TAKEN, OVERLOADED, REQUESTER_GONE
from sprocketmq.broker.scraping.sources import Sources
from sprocketmq.protocol.codes import ResponseCode

# These codes answer a request that was done, or say how to continue. Any other code is a refusal.
_NO_REFUSALS = {
    code.name.lower()
    for code in (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.NO_MESSAGE,
        ResponseCode.CONSUMER_NOT_ONLINE,
    )
}


def _one(read: Callable[[Sources], Value]) -> Callable[[Sources], Iterator[Row]]:
    def rows(sources: Sources) -> Iterator[Row]:
        yield (), read(sources)

    return rows


def _batches(sources: Sources) -> Iterator[Row]:
    yield ("records",), sources.counters.batches
    yield ("one_record",), sources.counters.inner_batches


def _refusals(sources: Sources) -> Iterator[Row]:
    reasons: Counter[str] = Counter()
    for kind in sources.latencies.kinds:
        if kind.response not in _NO_REFUSALS:
            reasons[kind.response] += kind.latency.count
    for server in sources.servers:
        reasons["connection_refused"] += server.refused_connections
        reasons["broken_frame"] += server.broken_connections
    for reason, count in reasons.items():
        yield (reason,), count


def _replicas(sources: Sources) -> Iterator[Row]:
    for slave in sources.replication.slaves:
        yield (slave.address,), slave.behind_bytes
    if sources.role.is_slave and sources.replication.follower is not None:
        yield (sources.address(),), sources.replication.follower.behind_bytes


def _replies(sources: Sources) -> Iterator[Row]:
    for outcome in (DELIVERED, REQUESTER_GONE, NOT_TAKEN, OVERLOADED, ILLEGAL):
        yield (outcome,), sources.counters.replies[outcome]


OWN = (
    Metric(
        "sprocketmq_batch_messages",
        HISTOGRAM,
        ("stored_as",),
        "Messages of each batch, by whether it became many records or one (batch queues).",
        _batches,
    ),
    Metric("sprocketmq_batch_bytes", HISTOGRAM, (), "Bytes of the body of each batch.", _one(lambda s: s.counters.batch_bytes)),
    Metric(
        "sprocketmq_compression_saved_bytes_total",
        COUNTER,
        (),
        "Bytes that compressed bodies saved, an estimate from one in 64 of them.",
        _one(lambda s: round(s.counters.compressed.saved_bytes)),
    ),
    Metric("sprocketmq_send_commit_seconds", HISTOGRAM, (), "How long each send waited for its commit.", _one(lambda s: s.counters.commit)),
    Metric(
        "sprocketmq_send_flush_seconds",
        HISTOGRAM,
        (),
        "How long sends waited for disk and replicas after that (SYNC_FLUSH, SYNC_MASTER).",
        _one(lambda s: s.counters.flush),
    ),
    Metric("sprocketmq_replies_total", COUNTER, ("outcome",), "Replies to requests, by what became of them.", _replies),
    Metric("sprocketmq_held_pulls", GAUGE, (), "Pulls that wait for a message.", _one(lambda s: s.pulls.held_count)),
    Metric(
        "sprocketmq_loop_lag_seconds",
        GAUGE,
        (),
        "Longest delay of the event loop in the last 15 seconds.",
        _one(lambda s: s.loop_lag.longest_s),
    ),
    Metric(
        "sprocketmq_index_behind_bytes",
        GAUGE,
        (),
        "Bytes of the log that are not in the key index.",
        _one(lambda s: s.store.index_lag[0]),
    ),
    Metric(
        "sprocketmq_queue_behind_bytes",
        GAUGE,
        (),
        "Bytes of the log that are in no queue yet: on slaves only.",
        _one(lambda s: s.replication.queue_behind_bytes),
    ),
    Metric("sprocketmq_replica_lag_bytes", GAUGE, ("slave",), "Bytes of the master's log that a slave does not have.", _replicas),
    Metric("sprocketmq_refusals_total", COUNTER, ("reason",), "Requests refused, by response code; connections, too.", _refusals),
)
