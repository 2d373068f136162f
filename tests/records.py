"""Stored records for tests that only look at some of their fields."""

from __future__ import annotations

from typing import Any

from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import encode_record, pack_host

HOST = pack_host("127.0.0.1", 1)


def stored(body: bytes, properties: dict[str, str] | bytes = b"", **fields: Any) -> bytes:
    """Return a record with this body; ``fields`` are arguments of ``encode_record``."""
    if isinstance(properties, dict):
        properties = encode_properties(properties)
    usual = {"topic": b"t", "queue_id": 0, "queue_offset": 0, "physical_offset": 0}
    hosts = {"born_timestamp_ms": 1, "born_host": HOST, "store_timestamp_ms": 1, "store_host": HOST}
    return encode_record(body=body, properties=properties, **{**usual, **hosts, **fields})
