"""Metrics of a broker's current state: tables, clients, lags, store. All are computed when scraped. Names as in RIP-46."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

from sprocketmq.broker.clients import language_name
from sprocketmq.broker.metrics.exposition import GAUGE, Metric, Row
from sprocketmq.broker.pop.state import PopQueue
from sprocketmq.broker.scraping.lags import Lag
from sprocketmq.broker.scraping.sources import Sources
from sprocketmq.broker.scraping.traffic import is_system
from sprocketmq.protocol.records import Record

_STORE = ("storage_type", "storage_medium")
_DISK = ("local", "disk")
_GROUP = ("consumer_group", "topic", "is_retry", "is_system")
_CONSUME_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
# The processors of the reference. Here only sends that wait for disk or replicas, and pulls that wait for the disk, are ever queued.
_PROCESSORS = (
    *("send", "async_put", "pull", "ack", "query_message", "client_manager", "heartbeat", "lite_pull", "transaction", "consumer_manager"),
    *("admin", "reply"),
)
# Seconds until timed messages are due.
_TIMER_BOUNDS_S = (5, 60, 300, 900, 3600, 14400, 28800, 86400)
_TIMERS_PER_STEP = 2000


def version_name(ordinal: int) -> str:
    """Return the name of a client's version: the reference counts its releases and snapshots from 3.0.0 on, ten of each kind a minor."""
    release, is_snapshot = divmod(ordinal - 12, 2)
    if not 100 <= release < 300:  # earlier ones were named otherwise, and there are no later ones
        return f"ordinal_{ordinal}"
    name = f"v{release // 100 + 3}_{release // 10 % 10}_{release % 10}"
    return name if is_snapshot else f"{name}_snapshot"


def _watermarks(sources: Sources) -> Iterator[Row]:
    queued = {
        "send": sources.acks.waiting + sum(map(len, sources.new_topics.parked.values())),
        "pull": sources.pulls.cold_count + sources.pops.cold_count,
    }
    for processor in _PROCESSORS:
        yield (processor,), queued.get(processor, 0)


def _one(read: Callable[[Sources], float]) -> Callable[[Sources], Iterator[Row]]:
    def rows(sources: Sources) -> Iterator[Row]:
        yield (), read(sources)

    return rows


def _stored(read: Callable[[Sources], float | None]) -> Callable[[Sources], Iterator[Row]]:
    def rows(sources: Sources) -> Iterator[Row]:
        value = read(sources)
        if value is not None:
            yield _DISK, value

    return rows


def _producers(sources: Sources) -> Iterator[Row]:
    kinds = Counter((member.language, member.version) for members in sources.clients.producers.values() for member in members.values())
    for (language, version), count in kinds.items():
        yield (language_name(language).lower(), version_name(version), "remoting"), count


def _consumers(sources: Sources) -> Iterator[Row]:
    for group in list(sources.clients.consumers.values()):
        kinds = Counter((member.language, member.version) for member in group.members.values())
        mode = _CONSUME_MODES.get(group.consume_type, "push")
        for (language, version), count in kinds.items():
            yield (language_name(language).lower(), version_name(version), "remoting", group.name, mode, is_system("", group.name)), count


def _lag(field: str) -> Callable[[Sources], Iterator[Row]]:
    def rows(sources: Sources) -> Iterator[Row]:
        for lag in sources.lags:
            yield _labels(lag), getattr(lag, field)

    return rows


def _labels(lag: Lag) -> tuple[str, ...]:
    return lag.group, lag.topic, "false", is_system(lag.topic, lag.group)


def _used_bytes(sources: Sources) -> float | None:
    try:
        total, free = sources.fs.usage(str(sources.config.store.root))
    except OSError:
        return None
    return total - free


def _reserve_ms(sources: Sources) -> float | None:
    try:
        record = sources.store.record_at(sources.store.commitlog_min_offset)
    except OSError:
        return None
    if record is None:
        return None
    return max(0, sources.clock.time_ms() - Record(record, 0, len(record)).store_timestamp_ms)


def _overdue_ms(sources: Sources) -> float:
    due_ms = sources.delays.timers.next_ms
    return max(0, sources.clock.time_ms() - due_ms) if due_ms is not None else 0


def _timers_by_time(sources: Sources) -> Iterator[Row]:
    counts = [0] * (len(_TIMER_BOUNDS_S) + 1)
    now_ms = sources.clock.time_ms()
    for number, due_ms in enumerate(sources.delays.timers.due_times()):
        counts[bisect_left(_TIMER_BOUNDS_S, (due_ms - now_ms) / 1000)] += 1
        if number % _TIMERS_PER_STEP == 0:
            yield None
    for bound, count in zip(_TIMER_BOUNDS_S, counts, strict=False):
        yield (*_DISK, str(bound)), count


def _timing(sources: Sources) -> Iterator[Row]:
    waiting = dict(sources.delays.timers.by_topic)
    for number, topic in enumerate(sources.counted):
        if topic.timed_in or topic.timed_out or topic.name in waiting:
            yield (*_DISK, topic.name), waiting.pop(topic.name, 0)
        if number % _TIMERS_PER_STEP == 0:
            yield None
    for name, count in waiting.items():  # since before the start
        yield (*_DISK, name), count


def _pops(read: Callable[[PopQueue], int]) -> Callable[[Sources], Iterator[Row]]:
    def rows(sources: Sources) -> Iterator[Row]:
        count = 0
        for number, queue in enumerate(sources.pops.queues()):
            count += read(queue)
            if number % _TIMERS_PER_STEP == 0:
                yield None
        yield (), count

    return rows


def _no_revival(_: Sources) -> Iterator[Row]:
    yield ("0",), 0  # the revive queue that receipts name


def _halves(sources: Sources) -> Iterator[Row]:
    for number, (topic, count) in enumerate(list(sources.transactions.open_halves.by_topic.items())):
        yield (topic,), count
        if number % _TIMERS_PER_STEP == 0:
            yield None


STATE = (
    Metric("rocketmq_processor_watermark", GAUGE, ("processor",), "Requests that wait.", _watermarks),
    Metric("rocketmq_broker_permission", GAUGE, (), "Permission bits: 4 read, 2 write.", _one(lambda s: s.topics.permission)),
    Metric("rocketmq_topic_number", GAUGE, (), "Topics, those of the system included.", _one(lambda s: len(s.topics))),
    Metric("rocketmq_consumer_group_number", GAUGE, (), "Consumer groups, those of the system included.", _one(lambda s: len(s.groups))),
    Metric(
        "rocketmq_producer_connections", GAUGE, ("language", "version", "protocol_type"), "Producers in all groups, online now.", _producers
    ),
    Metric(
        "rocketmq_consumer_connections",
        GAUGE,
        ("language", "version", "protocol_type", "consumer_group", "consume_mode", "is_system"),
        "Consumers that are online.",
        _consumers,
    ),
    Metric("rocketmq_consumer_lag_messages", GAUGE, _GROUP, "Messages that a group has not consumed.", _lag("messages")),
    Metric("rocketmq_consumer_inflight_messages", GAUGE, _GROUP, "Messages that a group got and has not consumed.", _lag("inflight")),
    Metric("rocketmq_consumer_ready_messages", GAUGE, _GROUP, "Messages that a group has not got yet.", _lag("ready")),
    Metric(
        "rocketmq_consumer_lag_latency_milliseconds",
        GAUGE,
        _GROUP,
        "Age of the oldest message that a group has not consumed.",
        _lag("latency_ms"),
    ),
    Metric(
        "rocketmq_consumer_queueing_latency_milliseconds",
        GAUGE,
        _GROUP,
        "Age of the oldest message that a group has not got yet.",
        _lag("queueing_ms"),
    ),
    Metric("rocketmq_half_messages", GAUGE, ("topic",), "Half messages whose transactions have no outcome yet.", _halves),
    Metric("rocketmq_storage_size_bytes", GAUGE, _STORE, "Bytes used on the file system of the store.", _stored(_used_bytes)),
    Metric(
        "rocketmq_storage_flush_behind_bytes",
        GAUGE,
        _STORE,
        "Bytes of the log that are not known to be on the disk.",
        _stored(lambda s: s.flusher.unflushed),
    ),
    Metric(
        "rocketmq_storage_dispatch_behind_bytes",
        GAUGE,
        _STORE,
        "Bytes of the log that are in no queue or key index yet.",
        _stored(lambda s: s.replication.dispatch_lag[0]),
    ),
    Metric("rocketmq_storage_message_reserve_time_milliseconds", GAUGE, _STORE, "Age of the oldest message.", _stored(_reserve_ms)),
    Metric("rocketmq_timer_enqueue_lag", GAUGE, _STORE, "Timed messages that are not in the timer yet: none.", _stored(lambda _: 0)),
    Metric("rocketmq_timer_enqueue_latency_milliseconds", GAUGE, _STORE, "How long those have waited: not at all.", _stored(lambda _: 0)),
    Metric("rocketmq_timer_dequeue_lag", GAUGE, _STORE, "Messages that wait for their time.", _stored(lambda s: s.delays.timers.waiting)),
    Metric("rocketmq_timer_dequeue_latency_milliseconds", GAUGE, _STORE, "How late the next one of them is.", _stored(_overdue_ms)),
    Metric(
        "rocketmq_timer_message_snapshot",
        GAUGE,
        (*_STORE, "timer_bound_s"),
        "Messages that are due before this bound and after the one below it.",
        _timers_by_time,
    ),
    Metric("rocketmq_timing_messages", GAUGE, (*_STORE, "topic"), "Messages that wait for their time, by topic.", _timing),
    Metric(
        "rocketmq_pop_checkpoint_buffer_size",
        GAUGE,
        (),
        "Messages that were popped and are not acknowledged, all in memory.",
        _pops(lambda queue: len(queue.flights)),
    ),
    Metric(
        "rocketmq_pop_offset_buffer_size",
        GAUGE,
        (),
        "Offsets that were popped, and are not committed until all before them are acknowledged.",
        _pops(lambda queue: queue.next - queue.floor),
    ),
    Metric(
        "rocketmq_pop_revive_lag_milliseconds",
        GAUGE,
        ("queue_id",),
        "Messages whose invisible time has passed and that cannot be popped yet: none.",
        _no_revival,
    ),
    Metric("rocketmq_pop_revive_latency_milliseconds", GAUGE, ("queue_id",), "How long those have waited: not at all.", _no_revival),
)
