"""Looking into any file of a store without a store: what is in it, byte by byte, and where it stops making sense.

Everything here opens files read-only, reads them in pieces of at most a megabyte, believes no length before it was compared with what
the file has, and never raises for what a file contains: content that cannot be right becomes an item that says why. So it works on stores
of Apache's broker, on damaged and hostile files, and on files that a running broker is writing.

An ``Item`` is one thing in a file (a record, a unit, an index entry, a stretch of zeros) with its fields and where each of them lies.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import Any, NamedTuple

from sprocketmq.errors import ConfigError, RemoteProtocolError
from sprocketmq.protocol.batch import split_batch
from sprocketmq.protocol.codes import (
    SYSFLAG_BORN_HOST_V6,
    SYSFLAG_COMPRESSED,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_NEED_UNWRAP,
    SYSFLAG_STORE_HOST_V6,
    SYSFLAG_TRANSACTION_MASK,
)
from sprocketmq.protocol.jsondialect import loads
from sprocketmq.protocol.names import SCHEDULE_TOPIC
from sprocketmq.protocol.properties import decode_properties
from sprocketmq.protocol.records import FIXED_OVERHEAD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from sprocketmq.storage.checkpoint import FILE_BYTES as CHECKPOINT_BYTES
from sprocketmq.storage.checkpoint import Checkpoint
from sprocketmq.storage.file_view import WINDOW_BYTES, ZEROS, FileView, occurrences
from sprocketmq.storage.fs import REAL_FS, FileSystem
from sprocketmq.storage.index.index_format import ENTRY as INDEX_ENTRY
from sprocketmq.storage.index.index_format import HEADER as INDEX_HEADER
from sprocketmq.storage.index.index_format import NAME_DIGITS
from sprocketmq.storage.index.slot_count import hash_slots_of
from sprocketmq.storage.log.recovery import sector_lost
from sprocketmq.storage.log.segments import parse_segment_name, segment_entries, segment_size_of
from sprocketmq.storage.queues.consume_queue import FILLER_SIZE
from sprocketmq.storage.queues.consume_queue import UNIT as QUEUE_UNIT
from sprocketmq.storage.snapshot import FILE_NAME as DISPATCHED
from sprocketmq.storage.snapshot import VERSION as DISPATCHED_VERSION
from sprocketmq.storage.snapshot import Snapshot

# physical offset, size, tag code, store time, base offset, count, compacted offset, reserved
BATCH_UNIT = Struct(">qiqqqhii")

# What is read at once, and how much of a body or a damaged stretch an item carries.
PREVIEW_BYTES = 4096
# Configuration files are small: this is some 200,000 topics.
MAX_JSON_BYTES = 64 << 20
# Nested forgeries could make the search for the next record compare checksums for hours; past this many bytes only short ones are believed.
SEARCH_BUDGET_BYTES = 4 << 30
_ALWAYS_SEARCHED_BYTES = 64 << 10

_HEAD = Struct(">iiiiiqqiq")  # a record's first 48 bytes
_IDENTITY = Struct(">ii20xq")  # size, magic, place in the log
_INT = Struct(">i")
_SHORT = Struct(">h")
_LONG = Struct(">q")
_MAGICS = (_INT.pack(MAGIC_V1), _INT.pack(MAGIC_V2))
_PROPERTY_CRC = b"__CRC32#\x01"
PROPERTY_CRC_BYTES = 20

_MAGIC_NAMES = {MAGIC_V1: "record v1", MAGIC_V2: "record v2", MAGIC_BLANK: "blank"}
_TRANSACTION_NAMES = {0x4: "prepared", 0x8: "commit", 0xC: "rollback"}
_COMPRESSION_NAMES = {0x100: "lz4", 0x200: "zstd"}


class NotAStoreFile(ConfigError):
    """A path that no part of a store is at."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class Field(NamedTuple):
    """One field of an item: ``at`` bytes behind the item's first, ``length`` bytes long; ``value`` is what JSON can hold."""

    name: str
    at: int
    length: int
    value: Any


class Item(NamedTuple):
    """One thing in a file. ``place`` is what people call it by: log position, queue offset, entry number; ``at`` its first byte in the file.

    ``kind``: record, blank, unit, filler, header, slots, entry, fields, queue, deletion, json, text, unwritten (zeros) or damaged.
    ``problem`` says what cannot be right about it.
    """

    kind: str
    place: int
    at: int
    length: int
    fields: tuple[Field, ...] = ()
    problem: str = ""

    def get(self, name: str) -> Any:
        """Return the value of a field, None when the item has none of that name."""
        return next((field.value for field in self.fields if field.name == name), None)


# --- the commit log -----------------------------------------------------------------------------------------------------


def dissect(view: FileView, at: int, base: int, room: int, *, check_crc: bool = True) -> Item:
    """Return the record at byte ``at`` of a segment that begins at log position ``base``, ``room`` bytes before the segment's end.

    The item's fields go as far as they make sense; ``problem`` says what is wrong with the first that does not. A record without
    problem has size, magic, position, lengths, body CRC and (when it carries one) property CRC right.
    """
    found: list[Field] = []

    def item(problem: str = "", *, length: int = 0) -> Item:
        size = found[0].value if found else 0
        end = max((f.at + f.length for f in found), default=0)
        return Item("damaged" if problem else "record", base + at, at, length or (size if not problem else end), tuple(found), problem)

    head = view.read(at, _HEAD.size)
    if len(head) < _HEAD.size or room < FIXED_OVERHEAD:
        return item(f"only {min(len(head), room)} bytes are left, a record has at least {FIXED_OVERHEAD}")
    size, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born_time = _HEAD.unpack(head)
    found.append(Field("size", 0, 4, size))
    found.append(Field("magic", 4, 4, _MAGIC_NAMES.get(magic, f"{magic & 0xFFFFFFFF:#010x}")))
    if magic not in (MAGIC_V1, MAGIC_V2):
        return item(f"magic {magic & 0xFFFFFFFF:#010x} is not a record's (0xdaa320a7 or 0xdaa320ab)")
    found.append(Field("body_crc", 8, 4, crc))
    found.append(Field("queue_id", 12, 4, queue_id))
    found.append(Field("flag", 16, 4, flag))
    found.append(Field("queue_offset", 20, 8, queue_offset))
    found.append(Field("physical_offset", 28, 8, physical))
    found.append(Field("sys_flag", 36, 4, sys_flag))
    found.append(Field("born_timestamp_ms", 40, 8, born_time))
    if size < FIXED_OVERHEAD:
        return item(f"size {size} is impossible, a record has at least {FIXED_OVERHEAD} bytes")
    if size > room:
        return item(f"size {size} runs past the segment's end, {room} bytes are left")
    if at + size > view.size:
        return item(f"size {size} runs past the file's end, {view.size - at} bytes are left")
    if physical != base + at:
        return item(f"it says it lies at {physical}, but it is at {base + at}")
    if queue_id < 0 or queue_offset < 0:
        return item(f"queue id {queue_id} or queue offset {queue_offset} is negative")
    born_bytes = 20 if sys_flag & SYSFLAG_BORN_HOST_V6 else 8
    store_bytes = 20 if sys_flag & SYSFLAG_STORE_HOST_V6 else 8
    body_at = 72 + born_bytes + store_bytes
    middle = view.read(at + 48, body_at - 48)
    store_time = _LONG.unpack_from(middle, born_bytes)[0]
    found.append(Field("born_host", 48, born_bytes, _host(middle[:born_bytes])))
    found.append(Field("store_timestamp_ms", 48 + born_bytes, 8, store_time))
    found.append(Field("store_host", 56 + born_bytes, store_bytes, _host(middle[born_bytes + 8 : born_bytes + 8 + store_bytes])))
    found.append(Field("reconsume_times", body_at - 16, 4, _INT.unpack_from(middle, len(middle) - 16)[0]))
    found.append(Field("prepared_offset", body_at - 12, 8, _LONG.unpack_from(middle, len(middle) - 12)[0]))
    (body_length,) = _INT.unpack_from(middle, len(middle) - 4)
    found.append(Field("body_length", body_at - 4, 4, body_length))
    version2 = magic == MAGIC_V2
    topic_at = body_at + body_length + (2 if version2 else 1)
    if body_length < 0 or topic_at + 2 > size:
        return item(f"body length {body_length} does not fit a record of {size} bytes")
    found.append(Field("body", body_at, body_length, _text(view.read(at + body_at, min(body_length, PREVIEW_BYTES)))))
    prefix = view.read(at + body_at + body_length, 2)
    topic_length = _SHORT.unpack(prefix)[0] if version2 else prefix[0]
    found.append(Field("topic_length", body_at + body_length, topic_at - body_at - body_length, topic_length))
    props_at = topic_at + topic_length + 2
    if topic_length <= 0 or props_at > size:
        return item(f"topic length {topic_length} does not fit a record of {size} bytes")
    found.append(Field("topic", topic_at, topic_length, view.read(at + topic_at, topic_length).decode("utf-8", "replace")))
    (props_length,) = _SHORT.unpack(view.read(at + props_at - 2, 2))
    found.append(Field("properties_length", props_at - 2, 2, props_length))
    if props_length < 0 or props_at + props_length != size:
        return item(f"property length {props_length} does not make up a record of {size} bytes")
    properties = view.read(at + props_at, props_length)
    found.append(Field("properties", props_at, props_length, _properties(properties)))
    if sector_lost(properties, base + at + props_at):
        return item("of the properties a whole disk sector is zeros: the write was torn", length=size)
    if check_crc:
        if body_length and (actual := view.crc(at + body_at, body_length)) != crc:
            return item(f"the body's CRC is {actual}, the record says {crc}", length=size)
        stated = property_crc(properties)
        if stated is not None and (actual := view.crc(at, size - PROPERTY_CRC_BYTES)) != stated:
            return item(f"the record's CRC is {actual}, its property __CRC32# says {stated}", length=size)
    return item()


def property_crc(properties: bytes) -> int | None:
    """Return the whole record's CRC as its last property states it (ten digits, the lowest first), or None without one."""
    tail = properties[-PROPERTY_CRC_BYTES:]
    if len(tail) != PROPERTY_CRC_BYTES or not tail.startswith(_PROPERTY_CRC) or tail[-1] != 2 or not tail[9:19].isdigit():
        return None
    return int(tail[9:19][::-1])


def log_items(view: FileView, base: int, *, segment_bytes: int = 0, start: int = 0) -> Iterator[Item]:
    """Yield what is in one segment from byte ``start`` on: records, what is damaged between them, its BLANK or its unwritten rest.

    ``segment_bytes`` is the length segments have (default: the file's own). ``start`` should be where an item begins.
    """
    segment_bytes = max(segment_bytes, view.size)
    at = start
    while at < view.size:
        room = segment_bytes - at
        head = view.read(at, 8)
        if head == ZEROS[: len(head)] and view.data_from(at) >= view.size:
            yield Item("unwritten", base + at, at, view.size - at)
            return
        if len(head) == 8 and _INT.unpack_from(head, 4)[0] == MAGIC_BLANK:
            left = _INT.unpack(head[:4])[0]
            marks = (Field("size", 0, 4, left), Field("magic", 4, 4, "blank"))
            if left == room:
                yield Item("blank", base + at, at, view.size - at, marks)
                return
            problem = f"a BLANK of {left} bytes where {room} are left in the segment"
            found = Item("damaged", base + at, at, 8, marks, problem)
        else:
            found = dissect(view, at, base, room)
        if found.problem:
            end = next_record(view, at, base, segment_bytes)
            yield found._replace(length=end - at)
            at = end
        else:
            yield found
            at += found.length


def topic_items(view: FileView, base: int, topic: str, *, segment_bytes: int = 0, start: int = 0) -> Iterator[Item]:
    """Yield the records of one topic in a segment from byte ``start`` on, and what is damaged."""
    from sprocketmq.storage.inspect.log_windows import parse_window

    name = topic.encode()
    segment_bytes = max(segment_bytes, view.size)
    at = start
    while at < view.size:
        window, used = parse_window(view.read(at, WINDOW_BYTES), base + at)
        for physical, found in zip(window.physicals.tolist(), window.topics, strict=True):
            if found == name:
                yield dissect(view, physical - base, base, segment_bytes - (physical - base))
        at += used
        if not used:
            item = next(log_items(view, base, segment_bytes=segment_bytes, start=at))
            if item.problem or item.get("topic") == topic:
                yield item
            at += item.length


def next_record(view: FileView, at: int, base: int, segment_bytes: int, *, since_ms: int = 0) -> int:
    """Return where the next whole, valid record behind ``at`` begins, or the file's size when there is none.

    One with a store time before ``since_ms`` is a remnant of a log that once was longer, and does not count.
    """
    budget = SEARCH_BUDGET_BYTES
    begin = at + 1
    while begin < view.size:
        begin = max(begin, view.data_from(begin) - 7)
        window = view.read(begin, WINDOW_BYTES)
        if len(window) < FIXED_OVERHEAD:
            break
        for candidate in sorted(begin + i - 4 for magic in _MAGICS for i in occurrences(window, magic)):
            if candidate <= at:
                continue
            # All but the checksum first: of bytes that only look like a magic number, none gets as far as the checksum.
            found = dissect(view, candidate, base, segment_bytes - candidate, check_crc=False)
            if not found.problem and found.get("store_timestamp_ms") >= since_ms:
                budget -= found.length
                if budget < 0 and found.length > _ALWAYS_SEARCHED_BYTES:
                    continue
                if not dissect(view, candidate, base, segment_bytes - candidate).problem:
                    return candidate
        if len(window) < WINDOW_BYTES:
            break
        begin += len(window) - 7  # so that a record's head across the border is seen
    return view.size


def sys_flag_names(sys_flag: int) -> list[str]:
    """Return what the bits of a sysFlag mean, in words."""
    names = []
    if sys_flag & SYSFLAG_COMPRESSED:
        names.append(_COMPRESSION_NAMES.get(sys_flag & 0x700, "zlib"))
    if sys_flag & SYSFLAG_TRANSACTION_MASK:
        names.append(_TRANSACTION_NAMES[sys_flag & SYSFLAG_TRANSACTION_MASK])
    if sys_flag & (SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP):
        names.append("inner batch")
    if sys_flag & (SYSFLAG_BORN_HOST_V6 | SYSFLAG_STORE_HOST_V6):
        names.append("ipv6")
    return names


def inner_messages(view: FileView, record: Item, *, limit: int = 64 << 20) -> list[dict[str, Any]]:
    """Return the messages inside an inner batch's record: queue offset, body length, body (its beginning) and properties of each.

    Empty for any other record. Raises RemoteProtocolError for a body that is no batch, or larger than ``limit``.
    """
    if not (record.get("sys_flag") or 0) & SYSFLAG_INNER_BATCH:
        return []
    body = next(field for field in record.fields if field.name == "body")
    if body.length > limit:
        raise RemoteProtocolError(f"the batch has {body.length} bytes, at most {limit} are looked into")
    parts = []
    done = 0
    while done < body.length and (data := view.read(record.at + body.at + done, body.length - done)):
        parts.append(data)
        done += len(data)
    base = record.get("queue_offset")
    return [
        {
            "queue_offset": base + i,
            "flag": entry.flag,
            "body_length": len(entry.body),
            **_text(bytes(entry.body[:PREVIEW_BYTES])),
            "properties": _properties(entry.properties),
        }
        for i, entry in enumerate(split_batch(b"".join(parts)))
    ]


def _host(data: bytes) -> str:
    port = _INT.unpack(data[-4:])[0]
    return f"{IPv4Address(data[:4])}:{port}" if len(data) == 8 else f"[{IPv6Address(data[:16])}]:{port}"


def _text(data: bytes) -> dict[str, str]:
    """Return a stretch of bytes as JSON can hold it: as text when it is text, else in base64."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError as e:
        if len(data) == PREVIEW_BYTES and e.start > len(data) - 4:  # the cut went through a character
            return {"text": data[: e.start].decode()}
    from base64 import b64encode

    return {"base64": b64encode(data).decode()}


def _properties(data: bytes) -> dict[str, str]:
    try:
        return decode_properties(data)
    except RemoteProtocolError:
        return decode_properties(data.decode("utf-8", "replace").encode())


# --- queues -------------------------------------------------------------------------------------------------------------


def queue_items(view: FileView, first_offset: int, *, start: int = 0, topic: str = "") -> Iterator[Item]:
    """Yield the units of a consume queue's file from byte ``start`` on; ``first_offset`` is the queue offset of the file's first unit."""
    code_name = "deliver_at_ms" if topic == SCHEDULE_TOPIC else "tags_code"
    at = start - start % QUEUE_UNIT.size
    while at + QUEUE_UNIT.size <= view.size:
        physical, size, code = QUEUE_UNIT.unpack(view.read(at, QUEUE_UNIT.size))
        place = first_offset + at // QUEUE_UNIT.size
        if not (physical or size or code) and (end := view.data_from(at)) > at:
            end -= end % QUEUE_UNIT.size
            yield Item("unwritten", place, at, end - at)
            at = end
            continue
        found = (Field("physical_offset", 0, 8, physical), Field("size", 8, 4, size), Field(code_name, 12, 8, code))
        if physical == 0 and size == FILLER_SIZE:
            yield Item("filler", place, at, QUEUE_UNIT.size, found)
        elif physical < 0 or size <= 0:
            yield Item("damaged", place, at, QUEUE_UNIT.size, found, f"place {physical} or size {size} is impossible")
        else:
            yield Item("unit", place, at, QUEUE_UNIT.size, found)
        at += QUEUE_UNIT.size
    if at < view.size:
        yield _odd_rest(view, first_offset + at // QUEUE_UNIT.size, at)


def batch_queue_items(view: FileView, *, start: int = 0) -> Iterator[Item]:
    """Yield the units of a batch consume queue's file from byte ``start`` on."""
    at = start - start % BATCH_UNIT.size
    while at + BATCH_UNIT.size <= view.size:
        data = view.read(at, BATCH_UNIT.size)
        if data == ZEROS[: BATCH_UNIT.size] and (end := view.data_from(at)) > at:
            end -= end % BATCH_UNIT.size
            yield Item("unwritten", at // BATCH_UNIT.size, at, end - at)
            at = end
            continue
        physical, size, code, time_ms, base, count, compacted, reserved = BATCH_UNIT.unpack(data)
        found = (
            Field("physical_offset", 0, 8, physical),
            Field("size", 8, 4, size),
            Field("tags_code", 12, 8, code),
            Field("store_timestamp_ms", 20, 8, time_ms),
            Field("base_offset", 28, 8, base),
            Field("count", 36, 2, count),
            Field("compacted_offset", 38, 4, compacted),
            Field("reserved", 42, 4, reserved),
        )
        if physical < 0 or size <= 0 or base < 0 or count <= 0:
            problem = f"place {physical}, size {size}, base {base} or count {count} is impossible"
            yield Item("damaged", at // BATCH_UNIT.size, at, BATCH_UNIT.size, found, problem)
        else:
            yield Item("unit", base, at, BATCH_UNIT.size, found)
        at += BATCH_UNIT.size
    if at < view.size:
        yield _odd_rest(view, at // BATCH_UNIT.size, at)


def _odd_rest(view: FileView, place: int, at: int) -> Item:
    return Item("damaged", place, at, view.size - at, (), f"{view.size - at} bytes at the end are no whole unit")


# --- the key index ------------------------------------------------------------------------------------------------------


def index_items(view: FileView, slots: int | None, *, first_entry: int = 1) -> Iterator[Item]:
    """Yield an index file's header, its slots as one item, and its entries from ``first_entry`` on.

    An entry's ``slot`` and ``newest`` (whether the slot points to it) are derived. Entry 0 is never used.
    """
    if view.size < INDEX_HEADER.size:
        yield Item("damaged", 0, 0, view.size, (), f"{view.size} bytes are too few for the header of {INDEX_HEADER.size}")
        return
    begin_ms, end_ms, begin, end, used, count = INDEX_HEADER.unpack(view.read(0, INDEX_HEADER.size))
    problem = ""
    capacity = (view.size - INDEX_HEADER.size - 4 * (slots or 0)) // INDEX_ENTRY.size
    if not 0 <= count <= capacity:
        problem = f"the next entry's number {count} is impossible, the file has room for {capacity}"
    elif slots is None and count > 1:
        problem = "no number of hash slots fits the file"
    yield Item(
        "header",
        0,
        0,
        INDEX_HEADER.size,
        (
            Field("begin_timestamp_ms", 0, 8, begin_ms),
            Field("end_timestamp_ms", 8, 8, end_ms),
            Field("begin_physical_offset", 16, 8, begin),
            Field("end_physical_offset", 24, 8, end),
            Field("used_slots", 32, 4, used),
            Field("next_entry", 36, 4, count),
        ),
        problem,
    )
    if slots is None:
        return
    yield Item("slots", 0, INDEX_HEADER.size, 4 * slots, (Field("slots", 0, 4 * slots, slots),))
    entries_at = INDEX_HEADER.size + 4 * slots
    for number in range(max(first_entry, 1), min(count, capacity)):
        at = entries_at + INDEX_ENTRY.size * number
        data = view.read(at, INDEX_ENTRY.size)
        if len(data) < INDEX_ENTRY.size:
            return
        key_hash, physical, seconds, previous = INDEX_ENTRY.unpack(data)
        found = (
            Field("key_hash", 0, 4, key_hash),
            Field("physical_offset", 4, 8, physical),
            Field("seconds", 12, 4, seconds),
            Field("previous", 16, 4, previous),
            Field("slot", 0, 0, key_hash % slots if key_hash >= 0 else None),
            Field("timestamp_ms", 0, 0, begin_ms + seconds * 1000),
        )
        problem = ""
        if key_hash < 0 or physical < 0 or seconds < 0:
            problem = f"hash {key_hash}, place {physical} or seconds {seconds} is negative"
        elif not 0 <= previous < number:
            problem = f"previous entry {previous} does not come before entry {number}"
        yield Item("entry", number, at, INDEX_ENTRY.size, found, problem)


def index_chain(view: FileView, slots: int, key_hash: int, *, limit: int = 1000) -> list[int]:
    """Return the entries a lookup of ``key_hash`` walks, the newest first; it ends at an impossible link."""
    entries_at = INDEX_HEADER.size + 4 * slots
    (number,) = _INT.unpack(view.read(INDEX_HEADER.size + 4 * (key_hash % slots), 4))
    chain: list[int] = []
    capacity = (view.size - entries_at) // INDEX_ENTRY.size
    while 0 < number < capacity and len(chain) < limit and (not chain or number < chain[-1]):
        chain.append(number)
        number = INDEX_ENTRY.unpack(view.read(entries_at + INDEX_ENTRY.size * number, INDEX_ENTRY.size))[3]
    return chain


# --- small files --------------------------------------------------------------------------------------------------------


def small_items(view: FileView, kind: str) -> Iterator[Item]:
    """Yield what is in a checkpoint, the ``dispatched`` file, ``abort``, ``lock`` or a configuration file."""
    if kind == "checkpoint":
        yield _checkpoint_item(view)
    elif kind == DISPATCHED:
        yield from _dispatched_items(view)
    elif kind == "json":
        yield _json_item(view)
    else:
        data = view.read(0, PREVIEW_BYTES)
        text = data.decode("utf-8", "replace")
        problem = ""
        if kind == "abort" and data and not (data.strip().isdigit() and len(data) < 20):
            problem = "it should hold a process id, or nothing"
        yield Item("text", 0, 0, view.size, (Field("text", 0, len(data), text),), problem)


def _checkpoint_item(view: FileView) -> Item:
    data = view.read(0, CHECKPOINT_BYTES)
    names = [field.name for field in fields(Checkpoint)]
    if len(data) < 8 * len(names):
        return Item("damaged", 0, 0, len(data), (), f"{len(data)} bytes are too few, a checkpoint has {CHECKPOINT_BYTES}")
    values = Struct(f">{len(names)}q").unpack_from(data)
    found = tuple(Field(name, 8 * i, 8, value) for i, (name, value) in enumerate(zip(names, values, strict=True)))
    return Item("fields", 0, 0, len(data), found, "a field is negative: the file counts as missing" if min(values) < 0 else "")


def _dispatched_items(view: FileView) -> Iterator[Item]:
    data = view.read_all(MAX_JSON_BYTES)
    snapshot = Snapshot.decode(data) if data is not None else None
    version = _INT.unpack_from(data, 4)[0] if data is not None and len(data) >= 8 else None
    if snapshot is None:
        problem = "it is damaged or cut short: the next start reads the whole log instead"
        if data is not None and data[:4] == b"SPMQ" and version is not None and version > DISPATCHED_VERSION:
            problem = f"version {version} is newer than this SprocketMQ knows ({DISPATCHED_VERSION})"
        yield Item("damaged", 0, 0, view.size, (), problem)
        return
    head = (
        Field("version", 4, 4, version),
        Field("position", 8, 8, snapshot.position),
        Field("last_record", 16, 16, list(snapshot.last_record)),
        Field("queues", 32, 4, len(snapshot.queues)),
        Field("deletions", 36, 4, len(snapshot.deleted)),
    )
    yield Item("fields", 0, 0, view.size, head)
    for number, state in enumerate(snapshot.queues):
        values = {f.name: getattr(state, f.name) for f in fields(state)}
        shown = tuple(Field(name, 0, 0, list(v) if isinstance(v, tuple) else v) for name, v in values.items() if _plain(v))
        yield Item("queue", number, 0, 0, shown)
    for number, (topic, position) in enumerate(snapshot.deleted.items()):
        yield Item("deletion", number, 0, 0, (Field("topic", 0, 0, topic), Field("position", 0, 0, position)))


def _plain(value: object) -> bool:
    return isinstance(value, str | int | bool) or (isinstance(value, tuple) and all(isinstance(v, int) for v in value))


def _json_item(view: FileView) -> Item:
    data = view.read_all(MAX_JSON_BYTES)
    if data is None:
        return Item("damaged", 0, 0, view.size, (), f"{view.size} bytes are more than a configuration file can have ({MAX_JSON_BYTES})")
    try:
        value = loads(data)
    except RemoteProtocolError as e:
        return Item("damaged", 0, 0, view.size, (), str(e))
    return Item("json", 0, 0, view.size, (Field("value", 0, view.size, value),))


# --- what a path is -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoreFile:
    """What a file is. ``kind``: commitlog, consumequeue, batchconsumequeue, index, checkpoint, dispatched, abort, lock, json or text.

    ``start`` is what its name says, for files that are named so; ``root`` the store it belongs to, empty when it lies elsewhere.
    """

    path: str
    kind: str
    start: int = 0
    segment_bytes: int = 0
    topic: str = ""
    queue_id: int = 0
    root: str = ""


_SMALL = {"checkpoint": "checkpoint", DISPATCHED: DISPATCHED, "abort": "abort", "abort.bak": "abort", "lock": "lock"}


def identify(path: str, fs: FileSystem = REAL_FS) -> StoreFile:
    """Say what the file at ``path`` (absolute) is: by its place in a store, else by its name and content.

    Raises NotAStoreFile when it is nothing a store has, OSError when it cannot be read.
    """
    parts = path.split("/")
    name = parts[-1]
    start = parse_segment_name(name)
    with FileView(fs, path) as view:
        if start is not None:
            if len(parts) > 2 and parts[-2] in ("commitlog", "damaged"):
                siblings = segment_entries(fs.list("/".join(parts[:-1]))) if parts[-2] == "commitlog" else []
                size = segment_size_of(siblings) if len(siblings) > 1 else None
                return StoreFile(path, "commitlog", start, size or view.size, root="/".join(parts[:-2]))
            if len(parts) > 4 and parts[-4] in ("consumequeue", "batchconsumequeue"):
                queue_id = int(parts[-2]) if parts[-2].isascii() and parts[-2].isdigit() else 0
                return StoreFile(path, parts[-4], start, view.size, parts[-3], queue_id, "/".join(parts[:-4]))
        elif len(parts) > 2 and parts[-2] == "index" and name.isdigit() and len(name) == NAME_DIGITS:
            return StoreFile(path, "index", root="/".join(parts[:-2]))
        elif name in _SMALL:
            return StoreFile(path, _SMALL[name], root="/".join(parts[:-1]))
        elif name.removesuffix(".bak").removesuffix(".tmp").endswith(".json"):
            return StoreFile(path, "json", root="/".join(parts[:-2]) if parts[-2] == "config" else "")
        kind = _kind_by_content(view)
        if kind is None:
            raise NotAStoreFile(
                path,
                "this is no file of a store; name a commit log, queue, index, checkpoint or configuration file, or the store's directory",
            )
        if kind == "commitlog" and start is None:  # a copy under another name: its first record says where it lay
            start = _LONG.unpack(view.read(28, 8))[0]
        return StoreFile(path, kind, start or 0, view.size)


def _kind_by_content(view: FileView) -> str | None:
    head = view.read(0, FIXED_OVERHEAD)
    if not head:
        return None
    if head[:4] == b"SPMQ":
        return DISPATCHED
    if head.lstrip()[:1] in (b"{", b"["):
        return "json"
    if len(head) == FIXED_OVERHEAD and head[4:8] in _MAGICS:
        return "commitlog"
    if view.size == CHECKPOINT_BYTES and view.data_from(48) == view.size:
        return "checkpoint"
    if len(head) >= INDEX_HEADER.size and INDEX_HEADER.unpack_from(head)[5] > 1 and hash_slots_of(view) is not None:
        return "index"
    if view.size % BATCH_UNIT.size == 0 and all(not i.problem and i.kind != "filler" for i in _first(batch_queue_items(view))):
        return "batchconsumequeue" if head[42:46] == b"\0\0\0\0" and head[38:42] == b"\xff\xff\xff\xff" else None
    if view.size % QUEUE_UNIT.size == 0 and head.strip(b"\0") and all(not i.problem for i in _first(queue_items(view, 0))):
        return "consumequeue"
    return None


def _first(items: Iterator[Item]) -> list[Item]:
    return [item for item, _ in zip(items, range(8), strict=False)]


def items_of(file: StoreFile, view: FileView, *, offset: int | None = None, topic: str | None = None) -> Iterator[Item]:
    """Yield what is in a file, from ``offset`` on; of a log's records, with ``topic``, only those of one topic.

    ``offset`` is a log position for the commit log (the record that holds it comes first), a queue offset for queues, an entry's number
    for an index file; other files take none. Raises NotAStoreFile when the file has no such offset.
    """
    if file.kind == "commitlog":
        start = 0 if offset is None else _item_start(file, view, offset)
        if topic is not None:
            return topic_items(view, file.start, topic, segment_bytes=file.segment_bytes, start=start)
        return log_items(view, file.start, segment_bytes=file.segment_bytes, start=start)
    if file.kind == "consumequeue":
        return _queue_from(file, view, offset)
    if file.kind == "batchconsumequeue":
        return _batch_queue_from(view, offset)
    if file.kind == "index":
        return index_items(view, hash_slots_of(view), first_entry=offset or 1)
    if offset is not None:
        raise NotAStoreFile(file.path, f"--offset means nothing for this kind of file ({file.kind})")
    return small_items(view, file.kind)


def _item_start(file: StoreFile, view: FileView, offset: int) -> int:
    """Return the byte of a segment where the record (or what else is there) begins that holds log position ``offset``."""
    wanted = offset - file.start
    if not 0 <= wanted < max(view.size, 1):
        raise NotAStoreFile(
            file.path, f"log position {offset} is not in this file, which holds {file.start} to {file.start + view.size - 1}"
        )
    if not dissect(view, wanted, file.start, file.segment_bytes - wanted, check_crc=False).problem:
        return wanted
    unpack = _IDENTITY.unpack_from
    at = 0
    while True:  # from head to head, as long as each says rightly where it lies
        window = view.read(at, WINDOW_BYTES)
        pos, begin = 0, at
        while len(window) - pos >= _IDENTITY.size:
            size, magic, physical = unpack(window, pos)
            if magic not in (MAGIC_V1, MAGIC_V2) or physical != file.start + at or size < FIXED_OVERHEAD:
                break
            if at + size > wanted:
                return at
            at += size
            pos += size
        if at == begin:
            break
    for item in log_items(view, file.start, segment_bytes=file.segment_bytes, start=at):
        if item.at + item.length > wanted:
            return item.at
    return at


def _queue_from(file: StoreFile, view: FileView, offset: int | None) -> Iterator[Item]:
    first = file.start // QUEUE_UNIT.size
    if offset is None:
        return queue_items(view, first, topic=file.topic)
    at = (offset - first) * QUEUE_UNIT.size
    if not 0 <= at < view.size:
        last = first + view.size // QUEUE_UNIT.size - 1
        raise NotAStoreFile(file.path, f"queue offset {offset} is not in this file, which holds {first} to {last}")
    return queue_items(view, first, start=at, topic=file.topic)


def _batch_queue_from(view: FileView, offset: int | None) -> Iterator[Item]:
    items = batch_queue_items(view)
    if offset is None:
        return items
    return (i for i in items if i.kind != "unit" or i.place + i.get("count") > offset)
