"""Stored messages as JSON for the pages: one line of a list, all about one message, and a part of its body.

Nothing in a message is trusted: the answer describes what cannot be decoded, and each text has a limit.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from sprocketmq.errors import ProtocolError
from sprocketmq.protocol.codes import SYSFLAG_COMPRESSED
from sprocketmq.protocol.compression import CompressionType, decompress
from sprocketmq.protocol.properties import RESERVED
from sprocketmq.protocol.records import ReceivedMessage

# The part of a body that a page shows; the rest is downloaded.
SHOWN_BYTES = 64 << 10
# The first bytes of a body that a list shows as text, and what is inflated to get them.
PREVIEW_BYTES, PREVIEW_INFLATED_BYTES = 200, 64 << 10
# Messages of a batch that are drawn around the shown one.
DRAWN_MEMBERS = 64
MAX_TEXT = 1000

Json = dict[str, Any]


def as_line(message: ReceivedMessage) -> Json:
    """Return what a list shows of a message. A record that cannot be decoded has ``damage`` instead of its properties and body."""
    line: Json = {
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "log_offset": message.commitlog_offset,
        "inner": message.is_inner,
        "store_ms": message.store_timestamp_ms,
    }
    try:
        line |= {
            "topic": message.topic,
            "msg_id": cut(message.msg_id),
            "tag": cut(message.tag or ""),
            "keys": [cut(key) for key in message.keys[:20]],
            "retries": message.reconsume_times,
            "stored_bytes": len(message.stored_body),
            "compression": compression_of(message),
            **_preview(message),
        }
    except ProtocolError as e:
        line["damage"] = str(e)
    return line


def as_lines(messages: Sequence[ReceivedMessage]) -> list[Json]:
    """Return the lines of a list; messages whose record is also another line's are marked as parts of a batch."""
    lines = [as_line(message) for message in messages]
    records: dict[tuple[str, int], int] = {}
    for line in lines:
        place = line["broker"], line["log_offset"]
        records[place] = records.get(place, 0) + 1
    for line in lines:
        line["inner"] = line["inner"] or records[line["broker"], line["log_offset"]] > 1
    return lines


def as_detail(message: ReceivedMessage, batch: Sequence[ReceivedMessage]) -> Json:
    """Return all about a message, without its body. ``batch`` are the messages of its record."""
    line = as_line(message)
    properties = {} if "damage" in line else message.properties
    return line | {
        "offset_msg_id": message.offset_msg_id,
        "born_ms": message.born_timestamp_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "record_bytes": message.store_size,
        "properties": user_properties(properties),
        "system_properties": {name: cut(value) for name, value in properties.items() if name in RESERVED},
        "batch": _drawn(message, batch) if len(batch) > 1 or message.is_inner else None,
    }


def body_part(message: ReceivedMessage) -> Json:
    """Return the first SHOWN_BYTES of the body in base64, and the size of it all. It inflates: call it in a thread."""
    try:
        body = message.body
    except ProtocolError as e:
        part = bytes(message.stored_body[:SHOWN_BYTES])
        stored_bytes = len(message.stored_body)
        return {"bytes": stored_bytes, "part": _base64(part), "damage": str(e)}
    return {"bytes": len(body), "part": _base64(body[:SHOWN_BYTES]), "damage": None}


def user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a message's sender has chosen."""
    return {name: value for name, value in properties.items() if name not in RESERVED}


def compression_of(message: ReceivedMessage) -> str | None:
    """Return the name of the body's compression, None when it is stored as it was sent."""
    if message.is_inner or not message.sys_flag & SYSFLAG_COMPRESSED:
        return None
    kind = message.sys_flag >> 8 & 7 or CompressionType.ZLIB
    return CompressionType(kind).name if kind in set(CompressionType) else f"type {kind}"


def cut(text: str) -> str:
    """Return a text of at most MAX_TEXT characters."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _preview(message: ReceivedMessage) -> Json:
    stored = message.stored_body
    if compression_of(message) is None:
        body, size = bytes(stored[:PREVIEW_BYTES]), len(stored)
    elif len(stored) > PREVIEW_INFLATED_BYTES:
        return {"bytes": None, "preview": None}
    else:
        try:
            whole = decompress(stored, message.sys_flag, max_bytes=PREVIEW_INFLATED_BYTES)
        except ProtocolError:  # too large to inflate for a list, or damaged: the message's own page shows it
            return {"bytes": None, "preview": None}
        body, size = whole[:PREVIEW_BYTES], len(whole)
    text = body.decode(errors="replace")
    # The cut may split a character; binary data is not shown as text.
    return {"bytes": size, "preview": text.rstrip("\ufffd") if text.count("\ufffd") <= 1 else None}


def _drawn(message: ReceivedMessage, batch: Sequence[ReceivedMessage]) -> Json:
    """Return the place of a message in its batch, and the sizes of those around it."""
    place = next((i for i, each in enumerate(batch) if each.queue_offset == message.queue_offset), 0)
    first = max(0, min(place - DRAWN_MEMBERS // 2, len(batch) - DRAWN_MEMBERS))
    return {
        "index": place,
        "count": len(batch),
        "first_offset": batch[0].queue_offset if batch else message.queue_offset,
        "bytes": sum(len(each.stored_body) for each in batch),
        "record_bytes": batch[0].store_size if message.is_inner else None,
        "drawn_from": first,
        "drawn": [
            {"offset": each.queue_offset, "bytes": len(each.stored_body), "msg_id": cut(each.msg_id), "tag": cut(each.tag or "")}
            for each in batch[first : first + DRAWN_MEMBERS]
        ],
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
