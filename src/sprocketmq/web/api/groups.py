"""The page *Groups*: all consumer groups, how far those that are shown have read, one group with members and queues, and resets.

A number that a broker did not report is None, never 0: a group whose broker is down has an unknown lag.
"""

from functools import partial

import msgspec

from sprocketmq.errors import ConfigError, GroupNotFound, SprocketError
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.bodies import ConsumeStats, SubscriptionGroupConfig, TopicStats
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUPS
from sprocketmq.web.api.group_members import Member, members_of
from sprocketmq.web.api.rates import Rates, catch_up_s, rates_of
from sprocketmq.web.api.reader import ClusterReader, Json, reader_of
from sprocketmq.web.calls import Call, Route

# Rows that one request may ask about; queues that are shown, and those whose oldest waiting message is read.
MAX_ROWS = 100
MAX_QUEUES_SHOWN = 1024
MAX_QUEUES_READ = 32
# Queues of one reset.
MAX_RESET = 4096

GROUPS_AGE_S = 5.0


class QueueOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One queue of a reset, and the offset that the group is moved to."""

    broker: str
    queue: int
    offset: int


# --- reading ---


async def list_groups(reader: ClusterReader) -> Json:
    """Return a row for each consumer group that a broker knows, online or not, by name; and the brokers whose groups are missing."""
    found, missing = await _table(reader, GROUPS_AGE_S)
    return {"groups": [_row(name, configs) for name, configs in sorted(found.items())], "missing": missing}


async def _table(reader: ClusterReader, max_age_s: float) -> tuple[dict[str, dict[str, SubscriptionGroupConfig]], dict[str, str]]:
    async def load() -> tuple[dict[str, dict[str, SubscriptionGroupConfig]], dict[str, str]]:
        tables, missing = await reader.ask_all(reader.admin.groups_on)
        found: dict[str, dict[str, SubscriptionGroupConfig]] = {}
        for broker, table in sorted(tables.items()):
            for group, config in table.items():
                found.setdefault(group, {})[broker] = config
        return found, missing

    return await reader.kept("groups", max_age_s, load)


def _row(name: str, configs: dict[str, SubscriptionGroupConfig]) -> Json:
    first = next(iter(configs.values()), None)
    return {
        "name": name,
        "kind": "system" if name in SYSTEM_GROUPS else "normal",
        "enabled": None if first is None else all(config.consume_enable for config in configs.values()),
        "orderly": None if first is None else first.consume_message_orderly,
        "max_retries": None if first is None else first.retry_max_times,
        "brokers": list(configs),
    }


async def group_figures(reader: ClusterReader, names: list[str]) -> Json:
    """Return the progress of groups. A figure that no broker reported is None; ``unknown`` has the reasons."""
    if len(names) > MAX_ROWS:
        raise ConfigError(f"ask for the figures of up to {MAX_ROWS} groups at once, not {len(names)}")
    figures = await all_of(_figures(reader, name) for name in names)
    return {"groups": dict(zip(names, figures, strict=True))}


async def _figures(reader: ClusterReader, group: str) -> Json:
    stats, missing = await reader.ask_all(lambda address: reader.admin.consume_stats_on(address, group))
    members, no_members = await reader.ask_all(lambda address: reader.admin.members_on(address, group))
    online = {connection.client_id for found in members.values() if found for connection in found.connection_set}
    return {
        **await _progress(reader, group, stats, partial=bool(missing)),
        "members": len(online) if online or not no_members else None,
        "unknown": no_members | missing,
    }


async def _progress(reader: ClusterReader, group: str, stats: dict[str, ConsumeStats], *, partial: bool) -> Json:
    """Return the figures of a group: its lag, the longest wait, its rates, and its dead letters."""
    own = {queue: offset for one in stats.values() for queue, offset in one.offset_table.items() if queue.topic != RETRY_PREFIX + group}
    retries = {queue: offset for one in stats.values() for queue, offset in one.offset_table.items() if queue.topic == RETRY_PREFIX + group}
    lag = sum(max(0, offset.broker_offset - offset.consumer_offset) for offset in own.values())
    waiting = [offset for offset in own.values() if offset.broker_offset > offset.consumer_offset]
    now_ms = reader.clock.time_ms()
    retry_lag = sum(max(0, offset.broker_offset - offset.consumer_offset) for offset in retries.values())
    rates: Rates | None = None
    if stats and not partial:
        totals = sum(offset.broker_offset for offset in own.values()), sum(offset.consumer_offset for offset in own.values())
        rates = rates_of(reader, f"{group} {len(own)}", *totals)
    return {
        "topics": sorted({queue.topic for queue in own}),
        "lag": lag if stats else None,
        "partial": bool(stats) and partial,
        # The newest consumed message is older than the oldest one that waits, so this is a bound from above.
        "behind_s_most": _oldest(now_ms, [offset.last_timestamp for offset in waiting]) if stats else None,
        "retry_lag": retry_lag if stats and (retries or not partial) else None,
        "dead_letters": await _dead_letters(reader, group),
        "consumed_per_s": rates.consumed if rates else sum(one.consume_tps for one in stats.values()) if stats else None,
        "stored_per_s": rates.stored if rates else None,
        "catch_up_s": catch_up_s(lag, rates) if rates else None,
    }


def _oldest(now_ms: int, times_ms: list[int]) -> float | None:
    """Return the seconds since the earliest of these times; 0 for none, None when one of them is unknown."""
    if any(time_ms <= 0 for time_ms in times_ms):
        return None
    return max((max(0, now_ms - time_ms) / 1000 for time_ms in times_ms), default=0.0)


async def _dead_letters(reader: ClusterReader, group: str) -> int | None:
    """Return how many dead letters of a group are stored; None when a broker that may have some does not answer."""
    topic = DLQ_PREFIX + group
    table, missing = await reader.topic_table()
    stats, unknown = await reader.ask_all(lambda address: reader.admin.topic_stats_on(address, topic), table.get(topic, ()))
    if missing or unknown:
        return None
    return sum(max(0, offset.max_offset - offset.min_offset) for one in stats.values() for offset in one.offset_table.values())


async def group_detail(reader: ClusterReader, group: str) -> Json:
    """Return one group: settings, figures, members, and each queue with the member that has it. Raises GroupNotFound."""
    table, missing = await _table(reader, GROUPS_AGE_S)
    if group not in table:  # the group may be new
        table, missing = await _table(reader, 0.0)
    configs = table.get(group, {})
    if not configs and not missing:
        raise GroupNotFound(group)
    stats, unknown = await reader.ask_all(lambda address: reader.admin.consume_stats_on(address, group))
    progress = await _progress(reader, group, stats, partial=bool(unknown or missing))
    found, subscriptions, no_members = await members_of(reader, group)
    rows = await _queue_rows(reader, stats, found)
    read = [row["behind_s"] for row in rows if row["lag"]]
    return {
        **_row(group, configs),
        **progress,
        "settings": [
            {
                "broker": name,
                "enabled": config.consume_enable,
                "broadcast": config.consume_broadcast_enable,
                "orderly": config.consume_message_orderly,
                "retry_queues": config.retry_queue_nums,
                "max_retries": config.retry_max_times,
            }
            for name, config in configs.items()
        ],
        "member_rows": [member.as_json() for member in found],
        "members": len(found) if found or not no_members else None,
        "subscriptions": subscriptions,
        "queue_rows": rows[:MAX_QUEUES_SHOWN],
        "more_queues": max(0, len(rows) - MAX_QUEUES_SHOWN),
        "behind_s": None if any(one is None for one in read) or not stats else max(read, default=0.0),
        "unknown": {**missing, **no_members, **unknown},
    }


async def _queue_rows(reader: ClusterReader, stats: dict[str, ConsumeStats], members: list[Member]) -> list[Json]:
    """Return a row for each queue, the largest lag first; of the first MAX_QUEUES_READ with how long the oldest message waits."""
    offsets = sorted(
        ((queue, offset) for one in stats.values() for queue, offset in one.offset_table.items()),
        key=lambda entry: (entry[1].consumer_offset - entry[1].broker_offset, entry[0]),
    )
    owners = {queue: member for member in members for queue in member.queues}
    begins: dict[MessageQueue, int] = {}
    for topic in sorted({queue.topic for queue, _ in offsets}):
        brokers = sorted({queue.broker_name for queue, _ in offsets if queue.topic == topic})
        answers, _ = await reader.ask_all(partial(_topic_stats, reader, topic), brokers)
        begins.update({queue: one.min_offset for answer in answers.values() for queue, one in answer.offset_table.items()})
    late = [(queue, offset.consumer_offset) for queue, offset in offsets if offset.broker_offset > offset.consumer_offset]
    waits = await all_of(_waits_s(reader, queue, max(offset, begins.get(queue, 0))) for queue, offset in late[:MAX_QUEUES_READ])
    behind = dict(zip([queue for queue, _ in late], waits, strict=False))
    rows = []
    for queue, offset in offsets:
        begin = begins.get(queue)
        lag = max(0, offset.broker_offset - offset.consumer_offset)
        owner = owners.get(queue)
        rows.append(
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "committed": offset.consumer_offset,
                "end": offset.broker_offset,
                "lag": lag,
                "behind_s": behind.get(queue) if lag else 0.0,
                "in_flight": max(0, offset.pull_offset - offset.consumer_offset) if members else 0,
                "expired_unread": max(0, begin - offset.consumer_offset) if begin is not None else None,
                "owner": None if owner is None else owner.client_id,
            }
        )
    return rows


async def _topic_stats(reader: ClusterReader, topic: str, address: str) -> TopicStats:
    return await reader.admin.topic_stats_on(address, topic)


async def _waits_s(reader: ClusterReader, queue: MessageQueue, offset: int) -> float | None:
    """Return for how many seconds the message at an offset has been stored; None when it cannot be read."""
    try:
        brokers = await reader.brokers()
        message = await reader.ask(brokers.get(queue.broker_name, ""), lambda _: reader.admin.message_at(queue, offset))
    except SprocketError:
        return None
    return None if message is None else max(0, reader.clock.time_ms() - message.store_timestamp_ms) / 1000


# --- resets ---


async def preview_reset(reader: ClusterReader, group: str, topic: str, to: str | float) -> Json:
    """Return what a reset would move, by queue, and change nothing. ``to`` is first, last or a time in epoch seconds."""
    targets = await reader.admin.reset_targets(topic, to)
    committed = await reader.admin.committed(group, topic)
    members, no_members = await reader.ask_all(lambda address: reader.admin.members_on(address, group))
    rows = []
    for queue, offset in targets.items():
        before = committed.get(queue)
        rows.append(
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "committed": before,
                "offset": offset,
                "moves": None if before is None else offset - before,
            }
        )
    moves = [row["moves"] for row in rows if row["moves"] is not None]
    return {
        "group": group,
        "topic": topic,
        "queues": rows,
        "again": sum(-move for move in moves if isinstance(move, int) and move < 0),
        "skipped": sum(move for move in moves if isinstance(move, int) and move > 0),
        "never_committed": sum(1 for row in rows if row["committed"] is None),
        "online": any(members.values()) or (None if no_members else False),
    }


async def reset(reader: ClusterReader, group: str, topic: str, offsets: list[QueueOffset]) -> Json:
    """Move a group to the offsets of a preview. Raises ConfigError for none or too many."""
    if not 1 <= len(offsets) <= MAX_RESET:
        raise ConfigError(f"a reset moves 1 to {MAX_RESET} queues, not {len(offsets)}: ask for a preview first")
    await reader.admin.reset_to(group, {MessageQueue(topic, one.broker, one.queue): one.offset for one in offsets})
    return {"group": group, "topic": topic, "queues": len(offsets)}


# --- calls ---


async def _list(call: Call) -> Json:
    return await list_groups(await reader_of(call))


async def _figures_of(call: Call) -> Json:
    return await group_figures(await reader_of(call), call.texts("names"))


async def _detail(call: Call) -> Json:
    return await group_detail(await reader_of(call), call.text("group"))


async def _preview(call: Call) -> Json:
    to: str | float = call.choice("to", ("first", "last", "time"))
    if to == "time":
        to = call.number("time_ms", most=1 << 53) / 1000
    return await preview_reset(await reader_of(call), call.text("group"), call.text("topic"), to)


async def _reset(call: Call) -> Json:
    try:
        offsets = msgspec.convert(call.arguments.get("offsets"), list[QueueOffset])
    except msgspec.ValidationError as e:
        raise ConfigError(f"offsets must be a list of queues with their new offsets: {e}") from None
    return await reset(await reader_of(call), call.text("group"), call.text("topic"), offsets)


ROUTES = (
    Route("GET", "/api/groups", _list),
    Route("POST", "/api/groups/figures", _figures_of, changes=False),
    Route("GET", "/api/group", _detail),
    Route("GET", "/api/group/preview", _preview),
    Route("POST", "/api/group/reset", _reset, confirm="group"),
)
