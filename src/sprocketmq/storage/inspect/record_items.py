"""Inspecting one record of the commit log, field by field, up to the first field that cannot be right."""

from ipaddress import IPv4Address, IPv6Address
from typing import Any

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.batch import split_batch
from sprocketmq.protocol.codes import (
    SYSFLAG_BORN_HOST_V6,
    SYSFLAG_COMPRESSED,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_NEED_UNWRAP,
    SYSFLAG_STORE_HOST_V6,
    SYSFLAG_TRANSACTION_MASK,
)
from sprocketmq.protocol.layout import FIXED_OVERHEAD, INT16, INT32, INT64, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_LAYOUT
from sprocketmq.protocol.properties import decode_properties
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.inspect.items import PREVIEW_BYTES, Field, Item, preview
from sprocketmq.storage.log.recovery import sector_lost

# What precedes the hosts.
_HEAD = RECORD_LAYOUT.part("size", "magic", "crc", "queue_id", "flag", "queue_offset", "log_offset", "sys_flag", "born_time_ms")
_PROPERTY_CRC = b"__CRC32#\x01"
PROPERTY_CRC_BYTES = 20

_MAGIC_NAMES = {MAGIC_V1: "record v1", MAGIC_V2: "record v2", MAGIC_BLANK: "blank"}
_TRANSACTION_NAMES = {0x4: "prepared", 0x8: "commit", 0xC: "rollback"}
_COMPRESSION_NAMES = {0x100: "lz4", 0x200: "zstd"}


def dissect(view: FileView, file_pos: int, segment_start: int, room: int, *, check_crc: bool = True) -> Item:
    """Return the record at ``file_pos`` of the segment that begins at log offset ``segment_start``, ``room`` bytes before its end.

    The item has the fields up to the first that is wrong, and ``problem`` says what is wrong with that one. A record without a problem has
    the right size, magic, log offset, lengths, body CRC and (when it carries one) property CRC.
    """
    found: list[Field] = []

    def item(problem: str = "", *, length: int = 0) -> Item:
        size = found[0].value if found else 0
        end = max((f.pos + f.length for f in found), default=0)
        return Item(
            "damaged" if problem else "record",
            segment_start + file_pos,
            file_pos,
            length or (size if not problem else end),
            tuple(found),
            problem,
        )

    head = view.read(file_pos, _HEAD.size)
    if len(head) < _HEAD.size or room < FIXED_OVERHEAD:
        return item(f"only {min(len(head), room)} bytes are left, a record has at least {FIXED_OVERHEAD}")
    size, magic, crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_time = _HEAD.unpack(head)
    found.append(Field("size", 0, 4, size))
    found.append(Field("magic", 4, 4, _MAGIC_NAMES.get(magic, f"{magic & 0xFFFFFFFF:#010x}")))
    if magic not in (MAGIC_V1, MAGIC_V2):
        return item(f"magic {magic & 0xFFFFFFFF:#010x} is not a record's (0xdaa320a7 or 0xdaa320ab)")
    found.append(Field("body_crc", 8, 4, crc))
    found.append(Field("queue_id", 12, 4, queue_id))
    found.append(Field("flag", 16, 4, flag))
    found.append(Field("queue_offset", 20, 8, queue_offset))
    found.append(Field("physical_offset", 28, 8, log_offset))
    found.append(Field("sys_flag", 36, 4, sys_flag))
    found.append(Field("born_timestamp_ms", 40, 8, born_time))
    if size < FIXED_OVERHEAD:
        return item(f"size {size} is impossible, a record has at least {FIXED_OVERHEAD} bytes")
    if size > room:
        return item(f"size {size} runs past the segment's end, {room} bytes are left")
    if file_pos + size > view.size:
        return item(f"size {size} runs past the file's end, {view.size - file_pos} bytes are left")
    if log_offset != segment_start + file_pos:
        return item(f"it says it lies at {log_offset}, but it is at {segment_start + file_pos}")
    if queue_id < 0 or queue_offset < 0:
        return item(f"queue id {queue_id} or queue offset {queue_offset} is negative")
    born_bytes = 20 if sys_flag & SYSFLAG_BORN_HOST_V6 else 8
    store_bytes = 20 if sys_flag & SYSFLAG_STORE_HOST_V6 else 8
    body_pos = 72 + born_bytes + store_bytes
    middle = view.read(file_pos + 48, body_pos - 48)
    store_time = INT64.unpack_from(middle, born_bytes)[0]
    found.append(Field("born_host", 48, born_bytes, _host(middle[:born_bytes])))
    found.append(Field("store_timestamp_ms", 48 + born_bytes, 8, store_time))
    found.append(Field("store_host", 56 + born_bytes, store_bytes, _host(middle[born_bytes + 8 : born_bytes + 8 + store_bytes])))
    found.append(Field("reconsume_times", body_pos - 16, 4, INT32.unpack_from(middle, len(middle) - 16)[0]))
    found.append(Field("prepared_offset", body_pos - 12, 8, INT64.unpack_from(middle, len(middle) - 12)[0]))
    (body_length,) = INT32.unpack_from(middle, len(middle) - 4)
    found.append(Field("body_length", body_pos - 4, 4, body_length))
    version2 = magic == MAGIC_V2
    topic_pos = body_pos + body_length + (2 if version2 else 1)
    if body_length < 0 or topic_pos + 2 > size:
        return item(f"body length {body_length} does not fit a record of {size} bytes")
    found.append(Field("body", body_pos, body_length, preview(view.read(file_pos + body_pos, min(body_length, PREVIEW_BYTES)))))
    prefix = view.read(file_pos + body_pos + body_length, 2)
    topic_length = INT16.unpack(prefix)[0] if version2 else prefix[0]
    found.append(Field("topic_length", body_pos + body_length, topic_pos - body_pos - body_length, topic_length))
    props_pos = topic_pos + topic_length + 2
    if topic_length <= 0 or props_pos > size:
        return item(f"topic length {topic_length} does not fit a record of {size} bytes")
    found.append(Field("topic", topic_pos, topic_length, view.read(file_pos + topic_pos, topic_length).decode("utf-8", "replace")))
    (props_length,) = INT16.unpack(view.read(file_pos + props_pos - 2, 2))
    found.append(Field("properties_length", props_pos - 2, 2, props_length))
    if props_length < 0 or props_pos + props_length != size:
        return item(f"property length {props_length} does not make up a record of {size} bytes")
    properties = view.read(file_pos + props_pos, props_length)
    found.append(Field("properties", props_pos, props_length, _properties(properties)))
    if sector_lost(properties, segment_start + file_pos + props_pos):
        return item("of the properties a whole disk sector is zeros: the write was torn", length=size)
    if check_crc:
        if body_length and (actual := view.crc(file_pos + body_pos, body_length)) != crc:
            return item(f"the body's CRC is {actual}, the record says {crc}", length=size)
        stated = property_crc(properties)
        if stated is not None and (actual := view.crc(file_pos, size - PROPERTY_CRC_BYTES)) != stated:
            return item(f"the record's CRC is {actual}, its property __CRC32# says {stated}", length=size)
    return item()


def property_crc(properties: bytes) -> int | None:
    """Return the CRC of the whole record that its last property states (ten digits, the lowest first), None without that property."""
    tail = properties[-PROPERTY_CRC_BYTES:]
    if len(tail) != PROPERTY_CRC_BYTES or not tail.startswith(_PROPERTY_CRC) or tail[-1] != 2 or not tail[9:19].isdigit():
        return None
    return int(tail[9:19][::-1])


def sys_flag_names(sys_flag: int) -> list[str]:
    """Return the names of the bits that are set in a sysFlag."""
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
    """Return queue offset, body length, beginning of the body, and properties of each message in the record of an inner batch.

    Empty for any other record. Raises RemoteProtocolError for a body that is not a batch, or larger than ``limit``.
    """
    if not (record.get("sys_flag") or 0) & SYSFLAG_INNER_BATCH:
        return []
    body = next(field for field in record.fields if field.name == "body")
    if body.length > limit:
        raise RemoteProtocolError(f"the batch has {body.length} bytes, at most {limit} are looked into")
    parts = []
    done = 0
    while done < body.length and (data := view.read(record.file_pos + body.pos + done, body.length - done)):
        parts.append(data)
        done += len(data)
    first = record.get("queue_offset")
    return [
        {
            "queue_offset": first + i,
            "flag": entry.flag,
            "body_length": len(entry.body),
            **preview(bytes(entry.body[:PREVIEW_BYTES])),
            "properties": _properties(entry.properties),
        }
        for i, entry in enumerate(split_batch(b"".join(parts)))
    ]


def _host(data: bytes) -> str:
    port = INT32.unpack(data[-4:])[0]
    return f"{IPv4Address(data[:4])}:{port}" if len(data) == 8 else f"[{IPv6Address(data[:16])}]:{port}"


def _properties(data: bytes) -> dict[str, str]:
    try:
        return decode_properties(data)
    except RemoteProtocolError:
        return decode_properties(data.decode("utf-8", "replace").encode())
