"""``sprocketmq group``: list, show, create, delete, progress, reset."""

import time

from sprocketmq import sync
from sprocketmq.cli.consume import start_of
from sprocketmq.cli.output import plural, print_json, print_table
from sprocketmq.cli.target import Target
from sprocketmq.client.admin import QueueProgress
from sprocketmq.errors import ConfigError, FatalError, GroupNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import SYSTEM_GROUPS


def list_groups(target: Target, *, cluster: str | None, system: bool, as_json: bool) -> None:
    """Print group names; RocketMQ's own ones only with ``system``."""
    with sync.AdminClient(**target.options) as admin:
        names = [name for name in admin.groups(cluster=cluster) if system or name not in SYSTEM_GROUPS]
    if as_json:
        print_json(names)
    else:
        for name in names:
            print(name)


def show(target: Target, group: str, *, as_json: bool) -> None:
    """Print the settings of a group, its members online, and their subscriptions. Raises GroupNotFound."""
    with sync.AdminClient(**target.options) as admin:
        configs = admin.group_config(group)
        online = admin.consumers(group)
    members = [
        {"client_id": c.client_id, "address": c.client_addr, "language": c.language, "version": c.version} for c in online.connection_set
    ]
    subscriptions = {topic: data.sub_string for topic, data in sorted(online.subscription_table.items())}
    brokers = [
        {
            "broker_name": name,
            "enabled": c.consume_enable,
            "max_reconsume_times": c.retry_max_times,
            "retry_queues": c.retry_queue_nums,
            "orderly": c.consume_message_orderly,
            "broadcast": c.consume_broadcast_enable,
            "consume_timeout_minutes": c.consume_timeout_minute,
        }
        for name, c in sorted(configs.items())
    ]
    if as_json:
        mode = online.message_model if members else None
        print_json({"group": group, "brokers": brokers, "mode": mode, "members": members, "subscriptions": subscriptions})
        return
    print_table(
        ("broker", "enabled", "max reconsume times", "retry queues", "orderly", "broadcast"),
        [
            (b["broker_name"], *(_yes(b["enabled"]), b["max_reconsume_times"], b["retry_queues"]), _yes(b["orderly"]), _yes(b["broadcast"]))
            for b in brokers
        ],
    )
    print(f"\n{plural(len(members), 'member')} online" + (f", {online.message_model.lower()}" if members else ""))
    if members:
        print_table(("client", "address", "language"), [(m["client_id"], m["address"], m["language"]) for m in members])
        print()
        print_table(("topic", "subscription"), list(subscriptions.items()))


def create(
    target: Target,
    group: str,
    *,
    max_reconsume_times: int,
    retry_queues: int,
    orderly: bool,
    enabled: bool,
    cluster: str | None,
    broker: str | None,
    as_json: bool,
) -> None:
    """Create or change a group."""
    with sync.AdminClient(**target.options) as admin:
        admin.create_group(
            group,
            max_reconsume_times=max_reconsume_times,
            retry_queues=retry_queues,
            orderly=orderly,
            enabled=enabled,
            cluster=cluster,
            broker=broker,
        )
        brokers = sorted(admin.group_config(group))
    if as_json:
        print_json({"group": group, "max_reconsume_times": max_reconsume_times, "brokers": brokers})
    else:
        print(f"group {group}: max reconsume times {max_reconsume_times}, on {', '.join(brokers)}")


def delete(target: Target, group: str, *, keep_offsets: bool, dead_letters: bool, as_json: bool) -> None:
    """Delete a group. Raises FatalError when there is none: a misspelt name should not look deleted."""
    with sync.AdminClient(**target.options) as admin:
        try:
            admin.group_config(group)
        except GroupNotFound as e:
            raise FatalError(f"no broker knows a consumer group {group!r}: nothing was deleted") from e
        admin.delete_group(group, offsets=not keep_offsets, dead_letters=dead_letters)
    if as_json:
        print_json({"group": group, "deleted": True})
    else:
        print(f"group {group} deleted")


def progress(target: Target, group: str, topic: str | None, *, as_json: bool) -> None:
    """Print how far a group has read each queue. Raises GroupNotFound, TopicNotFound."""
    with sync.AdminClient(**target.options) as admin:
        found = admin.progress(group, topic)
        if not found.queues:
            admin.group_config(group)  # raises for a group that does not exist
    if as_json:
        queues = [
            {
                "topic": q.queue.topic,
                "broker_name": q.queue.broker_name,
                "queue_id": q.queue.queue_id,
                "committed_offset": q.committed_offset,
                "end_offset": q.end_offset,
                "lag": q.lag,
                "in_flight": q.in_flight,
                "last_consumed_ms": q.last_consumed_ms,
            }
            for q in found.queues
        ]
        print_json({"group": group, "lag": found.lag, "in_flight": found.in_flight, "consume_tps": found.consume_tps, "queues": queues})
        return
    print_table(
        ("topic", "broker", "queue", "committed", "end", "lag", "in flight", "last consumed"),
        [
            (q.queue.topic, q.queue.broker_name, q.queue.queue_id, q.committed_offset, q.end_offset, q.lag, q.in_flight, _when(q))
            for q in found.queues
        ],
    )
    print(f"\n{plural(found.lag, 'message')} behind, {found.in_flight:,} in flight, {found.consume_tps:,.1f} consumed/s")


def reset(
    target: Target, group: str, topic: str, *, to: str | None, offset: int | None, queue: int | None, broker: str | None, as_json: bool
) -> None:
    """Move a group to a time, the beginning or the end, or an offset of one queue. Raises ConfigError, TopicNotFound."""
    if (to is None) == (offset is None):
        raise ConfigError("say where to continue: --to first, last or a time, or --offset N with --queue")
    if offset is not None and queue is None:
        raise ConfigError("an offset belongs to one queue: add --queue")
    if broker is not None and queue is None:
        raise ConfigError("--broker selects the broker of a queue: add --queue")
    with sync.AdminClient(**target.options) as admin:
        one = None if queue is None else queue_with(admin.queues(topic), queue, broker)
        if offset is not None:
            assert one is not None
            admin.reset_offset(group, one, offset)
            places = {one: offset}
        else:
            places = admin.reset_offsets(group, topic, start_of(to or "", "--to"), queue=one)
    if as_json:
        queues = [{"broker_name": q.broker_name, "queue_id": q.queue_id, "offset": o} for q, o in places.items()]
        print_json({"group": group, "topic": topic, "queues": queues})
    else:
        print_table(("broker", "queue", "offset"), [(q.broker_name, q.queue_id, o) for q, o in places.items()])


def queue_with(queues: list[MessageQueue], queue_id: int, broker: str | None) -> MessageQueue:
    """Return the queue with a number, on ``broker`` if several have it. Raises ConfigError."""
    fitting = [queue for queue in queues if queue.queue_id == queue_id and broker in (None, queue.broker_name)]
    if len(fitting) != 1:
        known = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues)
        problem = "several brokers have a queue" if fitting else "there is no queue"
        raise ConfigError(f"{problem} {queue_id}{f' on {broker}' if broker else ''}; the topic has {known}: use --queue and --broker")
    return fitting[0]


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _when(progress: QueueProgress) -> str:
    stored_ms = progress.last_consumed_ms
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stored_ms / 1000)) if stored_ms > 0 else "-"
