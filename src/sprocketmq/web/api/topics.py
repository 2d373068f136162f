"""The page *Topics*: all topics, what is stored in those that are shown, one topic with its queues, and changes.

The list comes from one request per broker (21) and one to the nameserver (206), so that 10,000 topics are listed as fast as ten. Rates and
numbers of messages take requests for each topic; the page asks for the rows that are on the screen.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from sprocketmq.errors import ConfigError, SprocketError, TopicNotFound
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.bodies import BrokerStats, ClusterInfo, StatsWindow, TopicConfig, TopicStats
from sprocketmq.protocol.codes import PERM_READ, PERM_WRITE
from sprocketmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from sprocketmq.web.api.reader import ClusterReader, Json, reader_of
from sprocketmq.web.calls import Call, Route

# Rows that one request may ask about, queues and groups that are shown of one topic.
MAX_ROWS = 100
MAX_QUEUES_SHOWN, MAX_GROUPS_SHOWN = 1024, 200
# Limits of the sample that shows the tags of a topic.
TAG_MESSAGES, TAG_BYTES, TAG_TIMEOUT_S = 256, 2 << 20, 5.0
MAX_TAGS_SHOWN = 50

MESSAGE_TYPES = ("", "UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION")


# --- reading ---


async def list_topics(reader: ClusterReader) -> Json:
    """Return a row for each topic, by name, and the brokers whose topics are missing.

    A topic that only the nameserver knows has no number of queues: the brokers that have it did not answer.
    """
    table, missing = await reader.topic_table()
    names = set(table)
    problem = ""
    try:
        names.update(await reader.kept("topic names", 5.0, reader.admin.topics))
    except SprocketError as e:  # Apache's nameserver may be configured not to list topics
        problem = str(e)
    cluster = await reader.cluster()
    reserved = reserved_names(cluster)
    rows = [_row(name, table.get(name, {}), reserved) for name in sorted(names)]
    return {"topics": rows, "missing": missing, "problem": problem}


def _row(name: str, configs: dict[str, TopicConfig], reserved: set[str]) -> Json:
    first = next(iter(configs.values()), None)
    return {
        "name": name,
        "kind": kind_of(name, reserved),
        "type": type_of(configs),
        "queues": sum(config.read_queue_nums for config in configs.values()) if configs else None,
        "perm": None if first is None else first.perm,
        "brokers": list(configs),
    }


def reserved_names(cluster: ClusterInfo) -> set[str]:
    """Return the topics that brokers register for tools: named like brokers and clusters, and one of each cluster for replies."""
    clusters = cluster.cluster_addr_table
    return {*cluster.broker_addr_table, *clusters, *(f"{name}_REPLY_TOPIC" for name in clusters)}


def kind_of(name: str, reserved: set[str]) -> str:
    """Return the kind of a topic: dlq, retry, system (of RocketMQ itself, or named like a broker or cluster) or normal."""
    if name.startswith(DLQ_PREFIX):
        return "dlq"
    if name.startswith(RETRY_PREFIX):
        return "retry"
    return "system" if is_system_topic(name) or name in reserved else "normal"


def type_of(configs: dict[str, TopicConfig]) -> str | None:
    """Return how a topic stores messages: plain, batch, mixed where brokers differ, None when no broker has answered."""
    types = {"batch" if config.has_batch_queues else "plain" for config in configs.values()}
    return "mixed" if len(types) > 1 else next(iter(types), None)


async def topic_figures(reader: ClusterReader, names: list[str]) -> Json:
    """Return the size and growth of topics. A figure that no broker reported is None; ``unknown`` has the reasons.

    ``rate`` counts messages per second in the last minute, ``batch`` messages per send request, ``bytes`` is the number of messages times
    the mean size of those sent lately.
    """
    if len(names) > MAX_ROWS:
        raise ConfigError(f"ask for the figures of up to {MAX_ROWS} topics at once, not {len(names)}")
    table, missing = await reader.topic_table()
    figures = await all_of(_figures(reader, name, list(table.get(name, ())), missing) for name in names)
    return {"topics": dict(zip(names, figures, strict=True))}


async def _figures(reader: ClusterReader, topic: str, brokers: list[str], away: Mapping[str, str]) -> Json:
    if not brokers:
        return {"unknown": away or {"": "no broker has this topic: it may have been deleted"}}
    stats, missing = await reader.ask_all(lambda address: reader.admin.topic_stats_on(address, topic), brokers)
    numbers, no_numbers = await reader.ask_all(lambda address: reader.admin.counter_on(address, "TOPIC_PUT_NUMS", topic), brokers)
    sizes, _ = await reader.ask_all(lambda address: reader.admin.counter_on(address, "TOPIC_PUT_SIZE", topic), brokers)
    messages = _messages(stats.values()) if stats else None
    mean = mean_size(numbers, sizes)
    return {
        "messages": messages,
        "newest_ms": max((queue.last_update_timestamp for one in stats.values() for queue in one.offset_table.values()), default=None),
        "rate": sum(counter.stats_minute.tps for counter in numbers.values() if counter) if numbers else None,
        "batch": batch_size(numbers),
        "bytes": 0 if messages == 0 else round(messages * mean) if messages is not None and mean is not None else None,
        "unknown": no_numbers | missing,
    }


def _messages(stats: Iterable[TopicStats]) -> int:
    return sum(max(0, queue.max_offset - queue.min_offset) for one in stats for queue in one.offset_table.values())


def batch_size(counters: Mapping[str, BrokerStats | None]) -> float | None:
    """Return the messages per send request over all brokers, of the longest time that they tell; None without sends."""
    windows = [_longest(counter) for counter in counters.values() if counter]
    requests = sum(window.sum / window.avgpt for window in windows if window.avgpt > 0)
    messages = sum(window.sum for window in windows if window.avgpt > 0)
    return messages / requests if requests else None


def mean_size(numbers: Mapping[str, BrokerStats | None], sizes: Mapping[str, BrokerStats | None]) -> float | None:
    """Return the mean bytes of a stored message, of the brokers that count both messages and bytes; None without any."""
    count = total = 0
    for name, size in sizes.items():
        number = numbers.get(name)
        if size and number:
            for one, other in zip(_windows(number), _windows(size), strict=True):
                if one.sum and other.sum:
                    count, total = count + one.sum, total + other.sum
                    break
    return total / count if count else None


def _windows(counter: BrokerStats) -> tuple[StatsWindow, StatsWindow, StatsWindow]:
    return counter.stats_day, counter.stats_hour, counter.stats_minute


def _longest(counter: BrokerStats) -> StatsWindow:
    """Return the window of a day, or of less while a broker has not filled it."""
    return next((window for window in _windows(counter) if window.sum), counter.stats_minute)


async def topic_detail(reader: ClusterReader, topic: str) -> Json:
    """Return one topic with its settings, queues and groups. Raises TopicNotFound."""
    table, missing = await reader.topic_table(topic)
    configs = table.get(topic, {})
    if not configs and not missing:
        raise TopicNotFound(topic)
    stats, unknown = await reader.ask_all(lambda address: reader.admin.topic_stats_on(address, topic), configs)
    readers, no_groups = await reader.ask_all(lambda address: reader.admin.groups_of_topic_on(address, topic), configs)
    queues = [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "begin": offset.min_offset,
            "end": offset.max_offset,
            "newest_ms": offset.last_update_timestamp or None,
        }
        for one in stats.values()
        for queue, offset in sorted(one.offset_table.items())
    ]
    groups = sorted({group for found in readers.values() for group in found})
    cluster = await reader.cluster()
    return {
        **_row(topic, configs, reserved_names(cluster)),
        "settings": [
            {
                "broker": name,
                "read_queues": config.read_queue_nums,
                "write_queues": config.write_queue_nums,
                "perm": config.perm,
                "order": config.order,
                "attributes": config.attributes,
            }
            for name, config in configs.items()
        ],
        "queue_rows": queues[:MAX_QUEUES_SHOWN],
        "more_queues": max(0, len(queues) - MAX_QUEUES_SHOWN),
        "groups": groups[:MAX_GROUPS_SHOWN],
        "more_groups": max(0, len(groups) - MAX_GROUPS_SHOWN),
        "figures": await _figures(reader, topic, list(configs), missing),
        "unknown": {**missing, **no_groups, **unknown},
    }


async def sample_tags(reader: ClusterReader, topic: str) -> Json:
    """Return how often each tag occurs among the newest messages of ``topic``, at most TAG_MESSAGES of them, and their mean size."""
    found = await reader.admin.search(topic, max_count=TAG_MESSAGES, max_scanned=TAG_MESSAGES, max_bytes=TAG_BYTES, timeout_s=TAG_TIMEOUT_S)
    tags = Counter(message.tag or "" for message in found.messages)
    size = sum(len(message.body) for message in found.messages)
    return {
        "messages": len(found.messages),
        "tags": [{"tag": tag, "count": count} for tag, count in tags.most_common(MAX_TAGS_SHOWN)],
        "more_tags": max(0, len(tags) - MAX_TAGS_SHOWN),
        "mean_body_bytes": size / len(found.messages) if found.messages else None,
        "unreachable": list(found.unreachable),
    }


# --- changing ---


async def create_topic(reader: ClusterReader, topic: str, *, queues: int, perm: int, batch: bool, message_type: str, broker: str) -> Json:
    """Create a topic on every master, or on one broker. Raises ConfigError when it exists there."""
    reader.forget()
    table, _ = await reader.topic_table()
    if any(not broker or name == broker for name in table.get(topic, ())):
        raise ConfigError(f"topic {topic!r} exists already: change it instead")
    attributes = {"queue.type": "BatchCQ"} if batch else {}
    if message_type:
        attributes["message.type"] = message_type
    try:
        await reader.admin.create_topic(topic, queues=queues, perm=perm, attributes=attributes, broker=broker or None)
    finally:
        reader.forget()
    return {"topic": topic}


async def alter_topic(reader: ClusterReader, topic: str, *, queues: int, perm: int, message_type: str, broker: str) -> Json:
    """Change queues, permission and message type of a topic on the brokers that have it, or on one of them. Raises TopicNotFound."""
    reader.forget()
    table, missing = await reader.topic_table()
    brokers = [name for name in table.get(topic, ()) if broker in ("", name)]
    if missing and (not broker or broker in missing):
        name = broker or min(missing)
        raise ConfigError(f"not all brokers tell their topics ({name}: {missing[name]}): wait until they do, or choose another broker")
    if not brokers:
        raise TopicNotFound(topic)
    attributes = {"message.type": message_type} if message_type else {}
    try:
        for name in brokers:
            await reader.admin.create_topic(topic, queues=queues, perm=perm, attributes=attributes, broker=name)
    finally:
        reader.forget()
    return {"topic": topic, "brokers": brokers}


async def delete_topic(reader: ClusterReader, topic: str) -> Json:
    """Delete a topic and its messages. Raises ConfigError for RocketMQ's own."""
    cluster = await reader.cluster()
    if kind_of(topic, reserved_names(cluster)) == "system":
        raise ConfigError(f"{topic!r} is a topic of RocketMQ itself: it is not deleted here")
    try:
        await reader.admin.delete_topic(topic)
    finally:
        reader.forget()
    return {"topic": topic}


# --- calls ---


async def _list(call: Call) -> Json:
    return await list_topics(await reader_of(call))


async def _figures_of(call: Call) -> Json:
    return await topic_figures(await reader_of(call), call.texts("names"))


async def _detail(call: Call) -> Json:
    return await topic_detail(await reader_of(call), call.text("topic"))


async def _tags(call: Call) -> Json:
    return await sample_tags(await reader_of(call), call.text("topic"))


async def _create(call: Call) -> Json:
    return await create_topic(
        await reader_of(call),
        call.text("topic"),
        queues=call.number("queues", 8, least=1, most=65_536),
        perm=call.number("perm", PERM_READ | PERM_WRITE, most=7),
        batch=call.flag("batch"),
        message_type=call.choice("message_type", MESSAGE_TYPES, ""),
        broker=call.text("broker", ""),
    )


async def _alter(call: Call) -> Json:
    return await alter_topic(
        await reader_of(call),
        call.text("topic"),
        queues=call.number("queues", least=1, most=65_536),
        perm=call.number("perm", most=7),
        message_type=call.choice("message_type", MESSAGE_TYPES, ""),
        broker=call.text("broker", ""),
    )


async def _delete(call: Call) -> Json:
    return await delete_topic(await reader_of(call), call.text("topic"))


ROUTES = (
    Route("GET", "/api/topics", _list),
    Route("POST", "/api/topics/figures", _figures_of, changes=False),
    Route("GET", "/api/topic", _detail),
    Route("GET", "/api/topic/tags", _tags),
    Route("POST", "/api/topic/create", _create),
    Route("POST", "/api/topic/alter", _alter),
    Route("POST", "/api/topic/delete", _delete, confirm="topic"),
)
