"""The stored record, in a commit log and in the answer to a pull (docs/internals/messages.md); ``protocol/layout.py`` draws its bytes."""

from sprocketmq.protocol.records.encoding import encode_record, pack_host, unpack_host, walk_records
from sprocketmq.protocol.records.locating import LocatedMessages, decode_records, locate_records
from sprocketmq.protocol.records.received import ReceivedMessage, Record

__all__ = [
    "LocatedMessages",
    "ReceivedMessage",
    "Record",
    "decode_records",
    "encode_record",
    "locate_records",
    "pack_host",
    "unpack_host",
    "walk_records",
]
