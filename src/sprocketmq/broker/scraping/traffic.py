"""Metrics of messages and requests: messages in and out, and latencies of answers. The names are those of RIP-46."""

from collections.abc import Iterator

from sprocketmq.broker.metrics.counters import GroupCounters, TopicCounters
from sprocketmq.broker.metrics.exposition import COUNTER, HISTOGRAM, Metric, Row
from sprocketmq.broker.scraping.sources import Sources
from sprocketmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUPS, is_system_topic

_IN = ("topic", "message_type", "is_system")
_OUT = ("topic", "consumer_group", "is_system")
_STORE = ("storage_type", "storage_medium")
_DISK = ("local", "disk")
# Topics of one step: less than half a millisecond of work.
_TOPICS_PER_STEP = 500
# The status of entries in the journal of pops; what could not be written there is answered with an error, and not counted.
_NOTED = "PUT_OK"
_INTERNAL = (RETRY_PREFIX, DLQ_PREFIX)


def truth(value: object) -> str:
    """Return a boolean in the form used in labels."""
    return "true" if value else "false"


def is_system(topic: str, group: str) -> str:
    """Return the label of a group that reads a topic."""
    return truth(is_system_topic(topic) or group in SYSTEM_GROUPS or group.startswith("CID_RMQ_SYS_"))


def _topics(sources: Sources) -> Iterator[TopicCounters | None]:
    """Yield the counters of each topic, and None where others may have a turn."""
    for number, topic in enumerate(sources.counted):
        if number % _TOPICS_PER_STEP == 0:
            yield None
        yield topic


def _groups(sources: Sources) -> Iterator[GroupCounters | None]:
    for topic in _topics(sources):
        if topic is None:
            yield None
        else:
            yield from list(topic.groups.values())
    yield sources.counters.other_groups


def _put(sources: Sources, field: str) -> Iterator[Row]:
    for topic in _topics(sources):
        if topic is None:
            yield None
            continue
        internal = topic.name.startswith(_INTERNAL)
        for kind, counters in list(topic.by_type.items()):
            if not internal or kind == "delay":  # as in the reference, what clients and brokers store there is not counted
                yield (topic.name, kind, truth(topic.is_system)), getattr(counters, field)


def _got(sources: Sources, field: str) -> Iterator[Row]:
    for group in _groups(sources):
        if group is None:
            yield None
        elif group.get_requests:
            yield (group.topic, group.group, is_system(group.topic, group.group)), getattr(group, field)


def _dead_letters(sources: Sources) -> Iterator[Row]:
    for group in _groups(sources):
        if group is None:
            yield None
        elif group.dead_letters:
            yield (group.group, group.topic, is_system(group.topic, group.group)), group.dead_letters


def _rpc(sources: Sources) -> Iterator[Row]:
    for kind in sources.latencies.kinds:
        result = "oneway" if kind.oneway else "success"
        yield ("remoting", kind.request, kind.response, truth(kind.long_polling), result), kind.latency


def _creations(sources: Sources) -> Iterator[Row]:
    for (succeeded, system), took in list(sources.latencies.topics.items()):
        yield ("success" if succeeded else "failure", truth(system)), took


def _group_creations(sources: Sources) -> Iterator[Row]:
    for succeeded, took in list(sources.latencies.groups.items()):
        yield ("success" if succeeded else "failure",), took


def _delays(sources: Sources) -> Iterator[Row]:
    for topic in _topics(sources):
        if topic is None:
            yield None
        elif topic.delays is not None:
            yield (*_DISK, topic.name), topic.delays


def _timers(sources: Sources, field: str) -> Iterator[Row]:
    for topic in _topics(sources):
        if topic is None:
            yield None
        elif count := getattr(topic, field):
            yield (*_DISK, topic.name), count


def _finishes(sources: Sources) -> Iterator[Row]:
    for topic in _topics(sources):
        if topic is None:
            yield None
        elif topic.finish is not None:
            yield (topic.name,), topic.finish


def _pops_noted(sources: Sources) -> Iterator[Row]:
    for group in _groups(sources):
        if group is None:
            yield None
            continue
        for kind, count in (("CK", group.pop_checkpoints), ("ACK", group.pop_acks)):
            if count:
                yield (group.group, group.topic, kind, _NOTED), count


def _popped_again(sources: Sources) -> Iterator[Row]:
    for group in _groups(sources):
        if group is None:
            yield None
        elif group.pop_again:
            yield (group.group, group.topic, _NOTED), group.pop_again


def _outcomes(sources: Sources, field: str) -> Iterator[Row]:
    for topic in _topics(sources):
        if topic is None:
            yield None
        elif count := getattr(topic, field):
            yield (topic.name,), count


TRAFFIC = (
    Metric("rocketmq_messages_in_total", COUNTER, _IN, "Messages stored; a batch counts its members.", lambda s: _put(s, "messages")),
    Metric("rocketmq_throughput_in_total", COUNTER, _IN, "Bytes of the records stored.", lambda s: _put(s, "bytes")),
    Metric("rocketmq_message_size", HISTOGRAM, _IN, "Mean record size of each send, in bytes.", lambda s: _put(s, "sizes")),
    Metric("rocketmq_messages_out_total", COUNTER, _OUT, "Messages that groups got.", lambda s: _got(s, "get_messages")),
    Metric("rocketmq_throughput_out_total", COUNTER, _OUT, "Bytes of the records that groups got.", lambda s: _got(s, "get_bytes")),
    Metric(
        "rocketmq_send_to_dlq_messages_total",
        COUNTER,
        ("consumer_group", "topic", "is_system"),
        "Messages that became dead letters, by their first topic.",
        _dead_letters,
    ),
    Metric(
        "rocketmq_rpc_latency_milliseconds",
        HISTOGRAM,
        ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
        "Time from reading a request to its answer.",
        _rpc,
    ),
    Metric(
        "rocketmq_topic_create_execution_time_milliseconds",
        HISTOGRAM,
        ("invocation_status", "is_system"),
        "Time that creating or changing a topic took.",
        _creations,
    ),
    Metric(
        "rocketmq_consumer_group_create_execution_time_milliseconds",
        HISTOGRAM,
        ("invocation_status",),
        "Time that creating or changing a consumer group took.",
        _group_creations,
    ),
    Metric("rocketmq_commit_messages_total", COUNTER, ("topic",), "Transactions that were committed.", lambda s: _outcomes(s, "commits")),
    Metric(
        "rocketmq_rollback_messages_total", COUNTER, ("topic",), "Transactions that were rolled back.", lambda s: _outcomes(s, "rollbacks")
    ),
    Metric(
        "rocketmq_finish_message_latency_milliseconds",
        HISTOGRAM,
        ("topic",),
        "Time from making a message to the commit of its transaction.",
        _finishes,
    ),
    Metric("rocketmq_delay_message_latency_seconds", HISTOGRAM, (*_STORE, "topic"), "Delays that messages asked for.", _delays),
    Metric("rocketmq_timer_enqueue_total", COUNTER, (*_STORE, "topic"), "Messages for a certain time.", lambda s: _timers(s, "timed_in")),
    Metric(
        "rocketmq_timer_dequeue_total", COUNTER, (*_STORE, "topic"), "Messages delivered at their time.", lambda s: _timers(s, "timed_out")
    ),
    Metric(
        "rocketmq_pop_revive_in_message_total",
        COUNTER,
        ("consumer_group", "topic", "revive_message_type", "put_status"),
        "What was noted of pops: CK pops of a queue and changed invisible times, ACK acknowledged messages.",
        _pops_noted,
    ),
    Metric(
        "rocketmq_pop_revive_retry_messages_total",
        COUNTER,
        ("consumer_group", "topic", "put_status"),
        "Messages popped again, as they were not acknowledged in time.",
        _popped_again,
    ),
)
