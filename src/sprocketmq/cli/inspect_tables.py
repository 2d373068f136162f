"""The tables of ``sprocketmq inspect``: rows of each kind of file, configuration files, and the overview of a store."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sprocketmq.cli.output import clean, plural, print_json, print_table
from sprocketmq.storage.inspect.items import Item
from sprocketmq.storage.inspect.overview import Overview
from sprocketmq.storage.inspect.record_items import sys_flag_names

_TEXT_COLUMN = 40


def field_text(name: str, value: Any) -> str:
    """Return a field's value as text to read."""
    if name.endswith(("timestamp_ms", "_at_ms")) and isinstance(value, int):
        return f"{value} ({time_text(value)})" if value else "0"
    if name == "sys_flag":
        return " ".join([str(value), *(f"({n})" for n in sys_flag_names(value))])
    if name == "body":
        kind, text = next(iter(value.items()))
        return clean(text) if kind == "text" else f"base64 {text}"
    return clean(str(value)) if not isinstance(value, int) else str(value)


def time_text(ms: int) -> str:
    """Return a time in epoch milliseconds as local date and time; "-" for one that is not plausible."""
    if not 0 < ms < 1 << 46:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000)) + f".{ms % 1000:03d}"


_Rows = Callable[[Item], list[tuple[object, ...]]]


def _record_rows(item: Item) -> list[tuple[object, ...]]:
    if item.kind != "record":
        return [(item.number, item.length, f"({item.kind})", "", "", "", "", "", item.problem)]
    properties = item.get("properties")
    body = item.get("body")
    text = body.get("text")
    shown = clean(text[:_TEXT_COLUMN]) if text is not None else "(binary)"
    flags = sys_flag_names(item.get("sys_flag"))
    return [
        (
            item.number,
            item.length,
            clean(item.get("topic")),
            item.get("queue_id"),
            item.get("queue_offset"),
            time_text(item.get("store_timestamp_ms")),
            clean(properties.get("TAGS", "")[:_TEXT_COLUMN]),
            clean(properties.get("KEYS", "")[:_TEXT_COLUMN]),
            " ".join([*(f"({flag})" for flag in flags), shown]),
        )
    ]


def _unit_rows(item: Item) -> list[tuple[object, ...]]:
    if item.kind != "unit":
        count = item.length // 20
        last = f" to {item.number + count - 1}" if count > 1 else ""
        return [(f"{item.number}{last}", "", "", f"({item.kind}) {item.problem}".strip())]
    code = item.get("tags_code")
    return [
        (
            item.number,
            item.get("physical_offset"),
            item.get("size"),
            code if code is not None else time_text(item.get("deliver_at_ms") or 0),
        )
    ]


def _batch_unit_rows(item: Item) -> list[tuple[object, ...]]:
    if item.kind != "unit":
        return [(f"byte {item.file_pos}", "", "", "", "", f"({item.kind}) {item.problem}".strip())]
    return [
        (
            item.number,
            item.get("count"),
            item.get("physical_offset"),
            item.get("size"),
            item.get("tags_code"),
            time_text(item.get("store_timestamp_ms")),
        )
    ]


def _entry_rows(item: Item) -> list[tuple[object, ...]]:
    if item.kind != "entry":
        return [(item.number, "", "", "", "", f"({item.kind}) {item.problem}".strip())]
    slot = "-" if item.get("slot") is None else item.get("slot")
    when = item.problem or time_text(item.get("timestamp_ms"))
    return [(item.number, item.get("key_hash"), slot, item.get("previous"), item.get("physical_offset"), when)]


def fields_rows(item: Item) -> list[tuple[object, ...]]:
    """Return one row per field of ``item``."""
    if item.problem:
        return [(item.kind, item.problem)]
    if item.kind in ("queue", "deletion"):
        return [(f"{item.kind} {item.number}", ", ".join(f"{f.name.replace('_', ' ')} {field_text(f.name, f.value)}" for f in item.fields))]
    return [(f.name.replace("_", " "), field_text(f.name, f.value)) for f in item.fields]


TABLES: dict[str, tuple[tuple[str, ...], _Rows]] = {
    "commitlog": (("log offset", "bytes", "topic", "queue", "offset", "stored", "tag", "keys", "body"), _record_rows),
    "consumequeue": (("offset", "log offset", "bytes", "tag code"), _unit_rows),
    "batchconsumequeue": (("base", "count", "log offset", "bytes", "tag code", "stored"), _batch_unit_rows),
    "index": (("entry", "hash", "slot", "previous", "log offset", "time"), _entry_rows),
}


def print_config(name: str, value: Any) -> None:
    """Print a configuration file: the known ones as tables, others as JSON."""
    name = name.removesuffix(".bak").removesuffix(".tmp")
    table = (
        value.get({"topics.json": "topicConfigTable", "consumerOffset.json": "offsetTable"}.get(name, ""))
        if isinstance(value, dict)
        else None
    )
    if name == "topics.json" and isinstance(table, dict):
        rows = [
            (
                clean(str(topic)),
                found.get("readQueueNums"),
                found.get("writeQueueNums"),
                found.get("perm"),
                clean(" ".join(f"{k}={v}" for k, v in (found.get("attributes") or {}).items())),
            )
            for topic, found in table.items()
            if isinstance(found, dict) and isinstance(found.get("attributes") or {}, dict)
        ]
        print_table(("topic", "read queues", "write queues", "perm", "attributes"), rows)
    elif name == "consumerOffset.json" and isinstance(table, dict):
        offsets = [
            (clean(str(key).partition("@")[2]), clean(str(key).partition("@")[0]), queue, offset)
            for key, queues in table.items()
            if isinstance(queues, dict)
            for queue, offset in queues.items()
        ]
        print_table(("group", "topic", "queue", "offset"), offsets)
    else:
        import json

        print(json.dumps(value, indent=2, ensure_ascii=True))


def print_overview(overview: Overview, *, as_json: bool) -> None:
    """Print the overview of a store as text or JSON."""
    if as_json:
        print_json(asdict(overview))
        return
    end = overview.log_end if overview.log_end_known else f"at least {overview.log_end}"
    print(f"store        {overview.root}")
    print(f"written by   {overview.written_by}")
    print(f"state        {overview.state}")
    print(
        f"commit log   {overview.log_start} to {end}, {plural(overview.segments, 'file')} of {overview.segment_bytes:,} bytes"
        if overview.segments
        else "commit log   empty"
    )
    print(f"key index    {plural(overview.index_files, 'file')}, {overview.index_bytes:,} bytes")
    for note in overview.notes:
        print(f"also         {note}")
    print()
    print_table(
        ("topic", "queue", "kind", "min", "max", "messages", "first stored", "last stored", "files"),
        [
            (
                clean(q.topic),
                q.queue_id,
                q.kind,
                q.min_offset,
                q.max_offset,
                q.max_offset - q.min_offset,
                time_text(q.first_time_ms),
                time_text(q.last_time_ms),
                q.files,
            )
            for q in overview.queues
        ],
    )
    print()
    print_table(("file", "bytes"), [(clean(name), size) for name, size in overview.files])
