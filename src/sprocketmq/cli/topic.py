"""``sprocketmq topic``: list, create, delete, route, status."""

import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

from sprocketmq import sync
from sprocketmq.cli.output import plural, print_json, print_table
from sprocketmq.cli.target import Target
from sprocketmq.errors import ConfigError, FatalError, RetriableError, TopicNotFound
from sprocketmq.protocol.bodies import ClusterInfo, TopicConfig
from sprocketmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_topic, is_system_topic

# The attribute for the type of a topic's queues, and its value for batch queues; without it they are plain.
QUEUE_TYPE = "queue.type"
BATCH_QUEUES = "BatchCQ"


class TopicType(NamedTuple):
    """The type of a topic on one broker: ``queues`` is "plain" or "BatchCQ", ``messages`` the attribute message.type (default NORMAL)."""

    queues: str
    messages: str


def type_of(config: TopicConfig) -> TopicType:
    """Return the type of a topic from its configuration on a broker."""
    batch = config.attributes.get(QUEUE_TYPE) == BATCH_QUEUES
    return TopicType(BATCH_QUEUES if batch else "plain", config.attributes.get("message.type", "NORMAL"))


def _together(types: Iterable[TopicType]) -> TopicType:
    """Return one type for several brokers: values that differ are joined by a slash; "?" if unknown."""
    queues, messages = zip(*types, strict=True) if (types := list(types)) else ((), ())
    return TopicType("/".join(sorted(set(queues))) or "?", "/".join(sorted(set(messages))) or "?")


def _types(admin: sync.AdminClient, topic: str) -> dict[str, TopicType]:
    """Return the type of a topic by broker; empty when a broker does not answer, as the rest can be shown all the same."""
    try:
        return {broker: type_of(config) for broker, config in admin.topic_config(topic).items()}
    except RetriableError:
        return {}


_UNKNOWN = TopicType("?", "?")


def list_topics(target: Target, *, cluster: str | None, system: bool, as_json: bool) -> None:
    """Print topics and their types; RocketMQ's own ones, and those named for brokers and clusters, only with ``system``."""
    with sync.AdminClient(**target.options) as admin:
        names = admin.topics(cluster=cluster)
        if not names and cluster is not None and cluster not in (clusters := admin.cluster().cluster_addr_table):
            raise ConfigError(
                f"no cluster {cluster!r} is registered at {target.namesrv} (clusters there: {', '.join(sorted(clusters)) or 'none'})"
            )
        configs = admin.topic_configs() if names else {}
        if not system:
            names = users_topics(names, admin.cluster())
    types = [(name, _together(map(type_of, configs.get(name, {}).values()))) for name in names]
    if as_json:
        print_json([{"topic": name, "queue_type": of.queues, "message_type": of.messages} for name, of in types])
    else:
        print_table(("topic", "queue type", "message type"), [(name, *of) for name, of in types])


def users_topics(names: Iterable[str], info: ClusterInfo) -> list[str]:
    """Return the topics that users made: not RocketMQ's own ones, those named for brokers and clusters, retries or dead letters."""
    own = {*info.broker_addr_table, *info.cluster_addr_table}
    own |= {f"{name}_REPLY_TOPIC" for name in info.cluster_addr_table}
    internal = (RETRY_PREFIX, DLQ_PREFIX)
    return [name for name in names if not is_system_topic(name) and name not in own and not name.startswith(internal)]


def create(
    target: Target, topic: str, *, queues: int, cluster: str | None, broker: str | None, attributes: list[str], as_json: bool
) -> None:
    """Create or change a topic. Raises ConfigError for attributes that are not ``NAME=VALUE``."""
    pairs = {}
    for text in attributes:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise ConfigError(f"an attribute is written NAME=VALUE, not {text!r}")
        pairs[name] = value
    _refuse_system(topic)
    with sync.AdminClient(**target.options) as admin:
        admin.create_topic(topic, queues=queues, attributes=pairs, cluster=cluster, broker=broker)
        brokers = sorted(queue.broker_name for queue in admin.route(topic).queue_datas)
    if as_json:
        print_json({"topic": topic, "queues": queues, "brokers": brokers, "attributes": pairs})
    else:
        print(f"topic {topic}: {plural(queues, 'queue')} on {', '.join(brokers)}")


def delete(target: Target, topic: str, *, ask: bool, as_json: bool) -> None:
    """Delete a topic, with ``ask`` after a question on stderr.

    Raises FatalError when there is none, as a misspelt name should not look deleted, and when the answer is not yes.
    """
    check_topic(topic)
    _refuse_system(topic)
    with sync.AdminClient(**target.options) as admin:
        try:
            admin.route(topic)
        except TopicNotFound as e:
            raise FatalError(f"no nameserver knows a topic {topic!r} (asked: {e.namesrv or target.namesrv}): nothing was deleted") from e
        if ask and not _confirmed(f"Delete topic {topic} and all its messages?"):
            raise FatalError(f"topic {topic} is kept: answer y to delete it, or add --yes")
        admin.delete_topic(topic)
    if as_json:
        print_json({"topic": topic, "deleted": True})
    else:
        print(f"topic {topic} deleted")


def _confirmed(question: str) -> bool:
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def route(target: Target, topic: str, *, as_json: bool) -> None:
    """Print the brokers of a topic."""
    with sync.AdminClient(**target.options) as admin:
        found = admin.route(topic)
        types = _types(admin, topic)
    addresses = {broker.broker_name: sorted(broker.broker_addrs.items()) for broker in found.broker_datas}
    queues = sorted(found.queue_datas, key=lambda q: q.broker_name)
    if as_json:
        brokers = [
            {
                "broker_name": q.broker_name,
                "read_queues": q.read_queue_nums,
                "write_queues": q.write_queue_nums,
                "perm": q.perm,
                "queue_type": types.get(q.broker_name, _UNKNOWN).queues,
                "message_type": types.get(q.broker_name, _UNKNOWN).messages,
                "addresses": {str(broker_id): address for broker_id, address in addresses.get(q.broker_name, ())},
            }
            for q in queues
        ]
        print_json({"topic": topic, "brokers": brokers})
        return
    print_table(
        ("broker", "read queues", "write queues", "perm", "queue type", "message type", "address"),
        [
            (
                *(q.broker_name, q.read_queue_nums, q.write_queue_nums, _perm(q.perm)),
                *types.get(q.broker_name, _UNKNOWN),
                " ".join(a for _, a in addresses.get(q.broker_name, ())),
            )
            for q in queues
        ],
    )


def status(target: Target, topic: str, *, as_json: bool) -> None:
    """Print the offsets of a topic's queues."""
    with sync.AdminClient(**target.options) as admin:
        table = sorted(admin.topic_stats(topic).offset_table.items())
        types = _types(admin, topic)
    together = _together(types.values())
    if as_json:
        queues = [
            {
                "broker_name": q.broker_name,
                "queue_id": q.queue_id,
                "queue_type": types.get(q.broker_name, _UNKNOWN).queues,
                "min_offset": o.min_offset,
                "max_offset": o.max_offset,
                "messages": o.max_offset - o.min_offset,
                "last_update_ms": o.last_update_timestamp,
            }
            for q, o in table
        ]
        messages = sum(o.max_offset - o.min_offset for _, o in table)
        print_json({"topic": topic, "message_type": together.messages, "messages": messages, "queues": queues})
        return
    print_table(
        ("broker", "queue", "queue type", "message type", "min offset", "max offset", "messages", "last message"),
        [
            (
                *(q.broker_name, q.queue_id, *types.get(q.broker_name, _UNKNOWN)),
                *(o.min_offset, o.max_offset, o.max_offset - o.min_offset, _when(o.last_update_timestamp)),
            )
            for q, o in table
        ],
    )


def _refuse_system(topic: str) -> None:
    if is_system_topic(topic):
        raise ConfigError(f"topic {topic!r} is one of RocketMQ's own topics, which brokers manage themselves: choose another name")


def _perm(perm: int) -> str:
    return ("R" if perm & 4 else "-") + ("W" if perm & 2 else "-")


def _when(timestamp_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp_ms / 1000)) if timestamp_ms > 0 else "-"
