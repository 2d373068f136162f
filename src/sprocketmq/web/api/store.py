"""The page *Store*: for each broker its log segments, queues, key index and disk, and when segments expire.

All brokers report the bounds of their log and the use of their disk (28), and how long they keep messages (26). Segments with
their times, numbers of queues and the fill of the index are keys that SprocketMQ's brokers add to 28; of others they are None, and
``unknown`` is true.
"""

import re

from sprocketmq.errors import SprocketError
from sprocketmq.net.tasks import all_of
from sprocketmq.web.api.reader import ClusterReader, Json, reader_of
from sprocketmq.web.calls import Call, Route

HOUR_MS = 3_600_000
_CAPACITY = re.compile(r"Total : ([0-9.]+) (B|[KMGTPE]iB), Free : ([0-9.]+) (B|[KMGTPE]iB)\.")
_UNITS = {"B": 1, **{f"{letter}iB": 1 << 10 * power for power, letter in enumerate("KMGTPE", 1)}}


async def list_stores(reader: ClusterReader) -> Json:
    """Return the store of each registered broker, by name and id; one that does not answer has its ``problem``."""
    cluster = await reader.cluster()
    registered = [
        (name, broker_id, address)
        for name, data in sorted(cluster.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]
    return {"stores": await all_of(_store(reader, *broker) for broker in registered), "now_ms": reader.clock.time_ms()}


async def _store(reader: ClusterReader, name: str, broker_id: int, address: str) -> Json:
    head: Json = {"broker": name, "id": broker_id, "address": address, "problem": ""}
    try:
        runtime = await reader.ask(address, reader.admin.broker_runtime)
    except SprocketError as e:
        return {**head, "problem": str(e)}
    try:
        config = await reader.ask(address, reader.admin.broker_config)
    except SprocketError:  # needs more rights than 28
        config = {}
    return {**head, **store_of(runtime, config)}


def store_of(runtime: dict[str, str], config: dict[str, str]) -> Json:
    """Return the facts about a store in a broker's runtime information and settings. Missing ones are None."""
    begin, end = _number(runtime.get("commitLogMinOffset")), _number(runtime.get("commitLogMaxOffset"))
    segment_bytes = _number(config.get("mappedFileSizeCommitLog"))
    keep_ms = _hours_ms(config.get("fileReservedTime"))
    segments = segments_of(runtime.get("storeSegments", ""), keep_ms)
    total, free = capacity_of(runtime.get("commitLogDirCapacity", ""))
    earliest = _number(runtime.get("earliestMessageTimeStamp"))
    return {
        "version": runtime.get("brokerVersionDesc", ""),
        "own": "storeSegments" in runtime,
        "log_begin": begin,
        "log_end": end,
        "log_bytes": None if begin is None or end is None else end - begin,
        "segment_bytes": segment_bytes,
        "segment_count": _number(runtime.get("storeSegmentCount")) or _segment_count(begin, end, segment_bytes),
        "segments": segments,
        "earliest_ms": earliest if earliest is not None and earliest > 0 else None,
        "keep_ms": keep_ms,
        "delete_when": config.get("deleteWhen"),
        "clean_at_ratio": _number(config.get("diskMaxUsedSpaceRatio")),
        "disk_total": total,
        "disk_free": free,
        "disk_ratio": _ratio(runtime.get("commitLogDiskRatio")),
        "queue_count": _number(runtime.get("storeQueueCount")),
        "batch_topic_count": _number(runtime.get("storeBatchTopicCount")),
        "index_entries": _number(runtime.get("indexEntries")),
        "index_room": _number(runtime.get("indexRoom")),
        "index_behind_bytes": _number(runtime.get("dispatchBehindBytes")),
        "index_failure": runtime.get("indexFailure", ""),
        "index_enabled": {"true": True, "false": False}.get(config.get("messageIndexEnable", "").lower()),
        "flush_behind": runtime.get("remainHowManyDataToFlush"),
        "writable": {"true": True, "false": False}.get(runtime.get("diskWritable", "")),
    }


def segments_of(text: str, keep_ms: int | None) -> list[Json] | None:
    """Return the oldest segments with the earliest time at which each may be deleted; None when a broker does not report them.

    A segment may go when it was last written ``keep_ms`` ago; the broker deletes in its hours, or sooner when its disk fills up.
    """
    segments: list[Json] = []
    for piece in filter(None, text.split(";")):
        numbers = [_number(part) for part in piece.split(",")]
        if len(numbers) != 3 or None in numbers:
            return None
        start, size, written_ms = numbers
        expires = None if keep_ms is None or written_ms is None else written_ms + keep_ms
        segments.append({"start": start, "bytes": size, "written_ms": written_ms, "expires_ms": expires})
    return segments or None


def capacity_of(text: str) -> tuple[int | None, int | None]:
    """Return total and free bytes of ``Total : 252.0 GiB, Free : 231.0 GiB.``; None for other texts."""
    found = _CAPACITY.fullmatch(text.strip())
    if found is None:
        return None, None
    total, total_unit, free, free_unit = found.groups()
    try:
        return round(float(total) * _UNITS[total_unit]), round(float(free) * _UNITS[free_unit])
    except ValueError:
        return None, None


def _segment_count(begin: int | None, end: int | None, segment_bytes: int | None) -> int | None:
    if begin is None or end is None or not segment_bytes or segment_bytes <= 0 or end < begin:
        return None
    return -(-end // segment_bytes) - begin // segment_bytes


def _number(text: str | None) -> int | None:
    """Return a whole number of at most 19 digits, None for anything else: brokers of other versions send texts of other forms."""
    return int(text) if text is not None and len(text) <= 20 and re.fullmatch("-?[0-9]{1,19}", text) else None


def _ratio(text: str | None) -> float | None:
    try:
        ratio = float(text or "")
    except ValueError:
        return None
    return ratio if 0 <= ratio <= 1 else None


def _hours_ms(text: str | None) -> int | None:
    try:
        hours = float(text or "")
    except ValueError:
        return None
    return round(hours * HOUR_MS) if 0 <= hours < 1 << 32 else None


async def _list(call: Call) -> Json:
    return await list_stores(await reader_of(call))


ROUTES = (Route("GET", "/api/stores", _list),)
