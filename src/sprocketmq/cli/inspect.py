"""``sprocketmq inspect``: a store or one of its files as a table, in full, as marked hex or as JSON lines."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sprocketmq.cli.inspect_tables import TABLES, field_text, fields_rows, print_config, print_overview
from sprocketmq.cli.output import clean, plural, print_json, print_table
from sprocketmq.errors import ConfigError, RemoteProtocolError
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.index.slot_count import hash_slots_of
from sprocketmq.storage.inspect.index_items import index_chain
from sprocketmq.storage.inspect.items import PREVIEW_BYTES, Item, NotAStoreFile
from sprocketmq.storage.inspect.overview import overview_of
from sprocketmq.storage.inspect.record_items import inner_messages, sys_flag_names
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.inspect.store_file import StoreFile, identify, items_of

DEFAULT_LIMIT = 20


@dataclass(frozen=True)
class InspectOptions:
    """What to show: ``limit`` None is the default of the output, 0 is everything."""

    path: str
    offset: int | None = None
    limit: int | None = None
    topic: str | None = None
    full: bool = False
    hex: bool = False
    json: bool = False


def run(options: InspectOptions) -> int:
    """Print the content of the path and return 0. Raises NotAStoreFile for a file that is not part of a store, OSError."""
    path = os.path.abspath(options.path)
    if options.offset is not None and options.offset < 0:
        raise ConfigError(f"--offset counts from 0, so it cannot be {options.offset}")
    if os.path.isdir(path):
        store = StoreDirectory(path)
        if options.offset is None and options.topic is None and not options.hex and not options.full:
            print_overview(overview_of(store), as_json=options.json)
        else:
            _print_log(store, options)
        return 0
    if not os.path.isfile(path):
        reason = "it is neither a file nor a directory" if os.path.exists(path) else "there is no such file or directory"
        raise NotAStoreFile(path, reason)
    file = identify(path)
    with FileView(REAL_FS, path) as view:
        if options.topic is not None and file.kind not in ("commitlog", "dispatched"):
            raise ConfigError(f"--topic chooses among messages; {path} is not a commit log file (it is: {_KIND_NAMES[file.kind]})")
        rows: list[tuple[object, ...]] = []
        limit = _limit_of(options)
        if file.kind == "index" and limit is not None:
            limit += 2  # its header and its slots are always shown
        printer = _Printer(file, view, options, rows, limit)
        printer.print(items_of(file, view, offset=options.offset, topic=options.topic))
        printer.finish()
    return 0


def _print_log(store: StoreDirectory, options: InspectOptions) -> None:
    """Print messages of a store: the one at a log offset and what follows, those of one topic, or all from the beginning."""
    if not store.segments:
        raise NotAStoreFile(store.root, "its commit log has no file")
    first = store.segments[0][0]
    offset = first if options.offset is None else options.offset
    if store.segment_at(offset) is None:
        end = store.segments[-1][0] + store.segment_bytes
        raise NotAStoreFile(store.root, f"log offset {offset} is not in its commit log, which holds {first} to {end - 1}")
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


def _limit_of(options: InspectOptions) -> int | None:
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
    """Prints the items of one file in the selected form."""

    def __init__(self, file: StoreFile, view: FileView, options: InspectOptions, rows: list[tuple[object, ...]], left: int | None) -> None:
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
                print_hex(item, self._view, title=_title(item), shown=field_text)
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
            print_table(TABLES.get(self._file.kind, (("what", "value"), fields_rows))[0], self._rows)
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
                print(f"  {field.name.replace('_', ' '):<22}{field_text(field.name, field.value)}")
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
        row = TABLES.get(self._file.kind, ((), fields_rows))[1]
        for item in items:
            self._count()
            if item.kind == "json":
                print_config(os.path.basename(self._file.path), item.get("value"))
                return
            if item.kind == "header":
                for name, value in ((f.name, f.value) for f in item.fields):
                    print(f"{name.replace('_', ' ')}: {field_text(name, value)}")
                if item.problem:
                    print(f"problem: {item.problem}")
            elif item.kind == "slots":
                print(f"slots: {item.get('slots')}")
            else:
                self._rows += row(item)


def _title(item: Item) -> str:
    problem = f": {item.problem}" if item.problem else ""
    return f"{item.kind} {item.number}, byte {item.file_pos} of the file, {plural(item.length, 'byte')}{problem}"
