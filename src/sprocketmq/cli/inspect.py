"""``sprocketmq inspect``: what is in a file of a store, or in a whole store, as a table, in full, as marked hex or as JSON lines."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from sprocketmq.cli.output import plural, print_json, print_table
from sprocketmq.errors import ConfigError, RemoteProtocolError
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.index.slot_count import hash_slots_of
from sprocketmq.storage.inspect.index_items import index_chain
from sprocketmq.storage.inspect.items import PREVIEW_BYTES, Item, NotAStoreFile
from sprocketmq.storage.inspect.overview import Overview, overview_of
from sprocketmq.storage.inspect.record_items import inner_messages, sys_flag_names
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.inspect.store_file import StoreFile, identify, items_of

DEFAULT_LIMIT = 20
_TEXT_COLUMN = 40


@dataclass(frozen=True)
class Options:
    """What to show: ``limit`` None is the default of the output, 0 is everything."""

    path: str
    offset: int | None = None
    limit: int | None = None
    topic: str | None = None
    full: bool = False
    hex: bool = False
    json: bool = False


def run(options: Options) -> int:
    """Print what is at the path and return 0. Raises NotAStoreFile for anything a store does not have, OSError for what cannot be read."""
    path = os.path.abspath(options.path)
    if options.offset is not None and options.offset < 0:
        raise ConfigError(f"--offset counts from 0, {options.offset} is nowhere")
    if os.path.isdir(path):
        store = StoreDirectory(path)
        if options.offset is None and options.topic is None and not options.hex and not options.full:
            _print_overview(overview_of(store), as_json=options.json)
        else:
            _print_log(store, options)
        return 0
    if not os.path.isfile(path):
        reason = "it is neither a file nor a directory" if os.path.exists(path) else "there is no such file or directory"
        raise NotAStoreFile(path, reason)
    file = identify(path)
    with FileView(REAL_FS, path) as view:
        if options.topic is not None and file.kind not in ("commitlog", "dispatched"):
            raise ConfigError(f"--topic chooses among messages; {path} is no commit log file (it is: {_KIND_NAMES[file.kind]})")
        rows: list[tuple[object, ...]] = []
        limit = _limit_of(options)
        if file.kind == "index" and limit is not None:
            limit += 2  # its header and its slots are always shown
        printer = _Printer(file, view, options, rows, limit)
        printer.print(items_of(file, view, offset=options.offset, topic=options.topic))
        printer.finish()
    return 0


def _print_log(store: StoreDirectory, options: Options) -> None:
    """Print messages of a store: the one at a log position and what follows, those of one topic, or all from the beginning."""
    if not store.segments:
        raise NotAStoreFile(store.root, "its commit log has no file")
    first = store.segments[0][0]
    offset = first if options.offset is None else options.offset
    if store.segment_at(offset) is None:
        end = store.segments[-1][0] + store.segment_bytes
        raise NotAStoreFile(store.root, f"log position {offset} is not in its commit log, which holds {first} to {end - 1}")
    rows: list[tuple[object, ...]] = []
    left = _limit_of(options)
    printer = None
    for start, entry in store.segments:
        if start + store.segment_bytes <= offset or left == 0:
            continue
        file = StoreFile(f"{store.root}/commitlog/{entry.name}", "commitlog", start, store.segment_bytes, root=store.root)
        with FileView(REAL_FS, file.path) as view:
            printer = _Printer(file, view, options, rows, left)
            printer.print(items_of(file, view, offset=offset if start < offset else None, topic=options.topic))
            left = printer.left
    if printer is not None:
        printer.finish()


def _limit_of(options: Options) -> int | None:
    if options.limit is None:
        return None if options.json else DEFAULT_LIMIT
    return options.limit or None


_KIND_NAMES = {
    "commitlog": "commit log",
    "consumequeue": "consume queue",
    "batchconsumequeue": "batch consume queue",
    "index": "key index",
    "checkpoint": "checkpoint",
    "dispatched": "queue snapshot",
    "abort": "abort marker",
    "lock": "lock file",
    "json": "configuration",
    "text": "text",
}


class _Printer:
    """Prints the items of one file in the form that was asked for."""

    def __init__(self, file: StoreFile, view: FileView, options: Options, rows: list[tuple[object, ...]], left: int | None) -> None:
        self._file = file
        self._view = view
        self._options = options
        self._rows = rows
        self._more = False
        self.left = left

    def print(self, items: Iterator[Item]) -> None:
        """Print the items, no more than the limit."""
        chosen = (item for item in items if self._wanted(item))
        shown = chosen if self.left is None else islice(chosen, self.left)
        if self._options.json:
            for item in shown:
                self._count()
                print_json(self._as_json(item))
        elif self._options.hex:
            from sprocketmq.cli.hexdump import print_hex

            for item in shown:
                self._count()
                print_hex(item, self._view, title=_title(item), shown=_shown)
        elif self._options.full:
            for item in shown:
                self._count()
                self._print_full(item)
        else:
            self._print_table(shown)
        self._more = self.left == 0 and self._options.limit is None and next(chosen, None) is not None

    def finish(self) -> None:
        """Print the table, and how to see more when there is more."""
        if self._rows:
            print_table(_TABLES.get(self._file.kind, (("what", "value"), _fields_rows))[0], self._rows)
        if self._more:
            print("... more follows: --limit N shows more, --limit 0 everything, --offset N starts elsewhere")

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1

    def _wanted(self, item: Item) -> bool:
        topic = self._options.topic
        if topic is None:
            return True
        return bool(item.problem) or item.get("topic") == topic

    def _as_json(self, item: Item) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": item.kind, "offset": item.number, "at": item.file_pos, "length": item.length}
        for field in item.fields:
            if field.name == "body":
                name, value = next(iter(field.value.items()))
                found["body" if name == "text" else "body_base64"] = value
                if field.length > PREVIEW_BYTES:
                    found["body_cut"] = True
            else:
                found[field.name] = field.value
        if "sys_flag" in found:
            found["sys_flags"] = sys_flag_names(found["sys_flag"])
        if self._options.full and item.kind == "record":
            found |= self._inner(item)
        if self._options.hex and item.length:
            found["hex"] = self._view.read(item.file_pos, min(item.length, PREVIEW_BYTES)).hex()
        if item.problem:
            found["problem"] = item.problem
        return found

    def _inner(self, item: Item) -> dict[str, Any]:
        try:
            messages = inner_messages(self._view, item)
        except RemoteProtocolError as e:
            return {"inner_problem": str(e)}
        return {"messages": messages} if messages else {}

    def _print_full(self, item: Item) -> None:
        print(_title(item))
        for field in item.fields:
            if field.name == "properties":
                for name, value in field.value.items():
                    print(f"  property {clean(name)} = {clean(value)}")
            else:
                print(f"  {field.name.replace('_', ' '):<22}{_shown(field.name, field.value)}")
        inner = self._inner(item) if item.kind == "record" else {}
        for message in inner.get("messages", ()):
            body = clean(message.get("text") or message.get("base64") or "")
            print(
                f"  message at {message['queue_offset']}: {plural(message['body_length'], 'byte')}, {message['properties']!r}: {body[:200]}"
            )
        if "inner_problem" in inner:
            print(f"  problem inside: {inner['inner_problem']}")
        if item.kind == "entry" and (slots := hash_slots_of(self._view)) and item.get("slot") is not None:
            print(f"  entries of this slot   {' -> '.join(map(str, index_chain(self._view, slots, item.get('key_hash'), limit=32)))}")
        print()

    def _print_table(self, items: Iterator[Item]) -> None:
        row = _TABLES.get(self._file.kind, ((), _fields_rows))[1]
        for item in items:
            self._count()
            if item.kind == "json":
                _print_config(os.path.basename(self._file.path), item.get("value"))
                return
            if item.kind == "header":
                for name, value in ((f.name, f.value) for f in item.fields):
                    print(f"{name.replace('_', ' ')}: {_shown(name, value)}")
                if item.problem:
                    print(f"problem: {item.problem}")
            elif item.kind == "slots":
                print(f"slots: {item.get('slots')}")
            else:
                self._rows += row(item)


def _title(item: Item) -> str:
    problem = f": {item.problem}" if item.problem else ""
    return f"{item.kind} {item.number}, byte {item.file_pos} of the file, {plural(item.length, 'byte')}{problem}"


def _shown(name: str, value: Any) -> str:
    """Return a field's value for people."""
    if name.endswith(("timestamp_ms", "_at_ms")) and isinstance(value, int):
        return f"{value} ({_time(value)})" if value else "0"
    if name == "sys_flag":
        return " ".join([str(value), *(f"({n})" for n in sys_flag_names(value))])
    if name == "body":
        kind, text = next(iter(value.items()))
        return clean(text) if kind == "text" else f"base64 {text}"
    return clean(str(value)) if not isinstance(value, int) else str(value)


def _time(ms: int) -> str:
    if not 0 < ms < 1 << 46:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000)) + f".{ms % 1000:03d}"


def clean(text: str) -> str:
    """Return text that cannot move the cursor of a terminal, or anything else but be shown."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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
            _time(item.get("store_timestamp_ms")),
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
        (item.number, item.get("physical_offset"), item.get("size"), code if code is not None else _time(item.get("deliver_at_ms") or 0))
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
            _time(item.get("store_timestamp_ms")),
        )
    ]


def _entry_rows(item: Item) -> list[tuple[object, ...]]:
    if item.kind != "entry":
        return [(item.number, "", "", "", "", f"({item.kind}) {item.problem}".strip())]
    slot = "-" if item.get("slot") is None else item.get("slot")
    when = item.problem or _time(item.get("timestamp_ms"))
    return [(item.number, item.get("key_hash"), slot, item.get("previous"), item.get("physical_offset"), when)]


def _fields_rows(item: Item) -> list[tuple[object, ...]]:
    if item.problem:
        return [(item.kind, item.problem)]
    if item.kind in ("queue", "deletion"):
        return [(f"{item.kind} {item.number}", ", ".join(f"{f.name.replace('_', ' ')} {_shown(f.name, f.value)}" for f in item.fields))]
    return [(f.name.replace("_", " "), _shown(f.name, f.value)) for f in item.fields]


_TABLES: dict[str, tuple[tuple[str, ...], _Rows]] = {
    "commitlog": (("position", "bytes", "topic", "queue", "offset", "stored", "tag", "keys", "body"), _record_rows),
    "consumequeue": (("offset", "position", "bytes", "tag code"), _unit_rows),
    "batchconsumequeue": (("base", "count", "position", "bytes", "tag code", "stored"), _batch_unit_rows),
    "index": (("entry", "hash", "slot", "previous", "position", "time"), _entry_rows),
}


def _print_config(name: str, value: Any) -> None:
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


def _print_overview(overview: Overview, *, as_json: bool) -> None:
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
                _time(q.first_time_ms),
                _time(q.last_time_ms),
                q.files,
            )
            for q in overview.queues
        ],
    )
    print()
    print_table(("file", "bytes"), [(clean(name), size) for name, size in overview.files])
