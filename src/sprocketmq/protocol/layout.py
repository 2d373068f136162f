"""Every fixed byte layout of the wire, the commit log, the queues and the index, each described once.

A ``Layout`` names the fields of one layout in order. Its ``struct.Struct`` and, in ``storage/layout_arrays.py``, its numpy dtype are made
from that description, so a format changes here and nowhere else. Integers are big-endian and signed unless the ruler says otherwise,
and there is no padding. What follows a fixed layout (bodies, names, properties) is drawn beside it.

Code that runs per message or frame binds the methods it calls, as in ``_pack_head = RECORD_HEAD.pack``: CPython 3.11 and 3.12 compile a
method call on an imported name to an attribute access and a bound method, which costs 40 ns more.

The flags of ``sys_flag`` are in ``codes.py``.
"""

import struct
from struct import Struct
from typing import NamedTuple

INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")
TWO_INT32 = Struct(">ii")


class Field(NamedTuple):
    """One field: its name, its ``struct`` code (``8s`` for 8 raw bytes) and the offset of its first byte."""

    name: str
    code: str
    offset: int

    @property
    def size(self) -> int:
        """Length in bytes."""
        return struct.calcsize(">" + self.code)


class Layout:
    """Consecutive fields, given as ``(name, struct code)``. ``struct`` packs all of them, ``size`` is their length in bytes."""

    __slots__ = ("fields", "size", "struct")

    def __init__(self, *fields: tuple[str, str]) -> None:
        self.fields: dict[str, Field] = {}
        offset = 0
        for name, code in fields:
            self.fields[name] = field = Field(name, code, offset)
            offset += field.size
        self.struct = Struct(self.format())
        self.size = offset

    def format(self, *names: str) -> str:
        """Return the ``struct`` format of some fields from the first byte on, of all without names; skipped bytes are pad bytes."""
        return self._format(names or tuple(self.fields), 0)

    def part(self, *names: str, start: str = "") -> Struct:
        """Return the Struct of some fields in order, skipping the others. It begins at the first byte, or at the field ``start``."""
        return Struct(self._format(names, self.fields[start].offset if start else 0))

    def offset(self, name: str) -> int:
        """Return the offset of a field's first byte."""
        return self.fields[name].offset

    def _format(self, names: tuple[str, ...], offset: int) -> str:
        codes = [">"]
        for name in names:
            field = self.fields[name]
            if field.offset < offset:
                raise ValueError(f"field {name!r} begins at byte {field.offset}, before byte {offset}: name the fields in their order")
            if field.offset > offset:
                codes.append(f"{field.offset - offset}x")
            codes.append(field.code)
            offset = field.offset + field.size
        return "".join(codes)


# --- the stored record: what a commit log holds and what a pull returns ---
#
# 0     4      8     12     16    20      28      36      40      48      56      64      72       76       84
# +-----+------+-----+------+-----+-------+-------+-------+-------+-------+-------+-------+--------+--------+------+
# |size |magic | crc |queue |flag | queue | log   |sysFlag| born  | born  | store | store |recon-  |prepared|body  |
# |i32  |i32   | i32 |id i32|i32  | offset| offset|i32    | time  | host  | time  | host  |sume    |offset  |length|
# |     |      |     |      |     | i64   | i64   |       | ms i64| 8|20  | ms i64| 8|20  |times   |i64     |i32   |
# |     |      |     |      |     |       |       |       |       |       |       |       |i32     |        |      |
# +-----+------+-----+------+-----+-------+-------+-------+-------+-------+-------+-------+--------+--------+------+
# 88 body, then topic length (v1: u8, v2: i16), topic, property length (i16), properties
#
# A host is an IPv4 address and an i32 port (8 bytes), or an IPv6 address and an i32 port (20 bytes; sysFlag bits 4 and 5). The layout
# is that of two IPv4 hosts, as nearly all records have them; with an IPv6 host, what follows it is 12 bytes later.

RECORD_LAYOUT = Layout(
    ("size", "i"),
    ("magic", "i"),
    ("crc", "i"),
    ("queue_id", "i"),
    ("flag", "i"),
    ("queue_offset", "q"),
    ("log_offset", "q"),
    ("sys_flag", "i"),
    ("born_time_ms", "q"),
    ("born_host", "8s"),
    ("store_time_ms", "q"),
    ("store_host", "8s"),
    ("reconsume_times", "i"),
    ("prepared_offset", "q"),
    ("body_length", "i"),
)
RECORD_HEAD = RECORD_LAYOUT.struct
RECORD_HEAD_BYTES = RECORD_LAYOUT.size

HOST_V4_BYTES = 8
HOST_V6_BYTES = 20
HEAD_BYTES_WITHOUT_HOSTS = RECORD_HEAD_BYTES - 2 * HOST_V4_BYTES

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB: topic length in two bytes
MAGIC_BLANK = -875286124  # 0xCBD43194: the rest of a segment is unused; only size and magic are written
BLANK = RECORD_LAYOUT.part("size", "magic")

# Record v1 with two IPv4 hosts: head, topic length and property length.
FIXED_OVERHEAD = RECORD_HEAD_BYTES + 3
# With limits of 4 MiB for a body and 32 KiB for properties, anything near this is damage.
MAX_RECORD_SIZE = 64 << 20

# The prepared offset of a copy of the record at log offset 0, as 0 means that the record is no copy.
COPY_OF_FIRST = -1


# --- the entry of a batch body: inner messages back to back, without count or padding ---
#
# 0       4      8     12     16       20          20+n   22+n
# +-------+------+-----+------+--------+-----------+------+-------------+
# | size  | magic| crc | flag | n      | body (n)  | p    | properties  |    size = 22 + n + p, this field included;
# | i32   | i32 0|i32 0| i32  | i32    |           | i16  | (p)         |    readers ignore magic and crc
# +-------+------+-----+------+--------+-----------+------+-------------+

BATCH_ENTRY_LAYOUT = Layout(("size", "i"), ("magic", "i"), ("crc", "i"), ("flag", "i"), ("body_length", "i"))
BATCH_ENTRY_HEAD_BYTES = BATCH_ENTRY_LAYOUT.size
BATCH_ENTRY_OVERHEAD = BATCH_ENTRY_HEAD_BYTES + INT16.size


# --- the unit of a ConsumeQueue ---
#
# 0                     8          12                  20
# +---------------------+----------+--------------------+
# | log offset of the   | its size | tag code           |    unit of queue offset q: byte 20 q of the queue's stream of files
# | record i64          | i32      | i64                |
# +---------------------+----------+--------------------+

QUEUE_UNIT_LAYOUT = Layout(("log_offset", "q"), ("size", "i"), ("tags_code", "q"))
QUEUE_UNIT = QUEUE_UNIT_LAYOUT.struct
QUEUE_UNIT_BYTES = QUEUE_UNIT_LAYOUT.size
# A unit without a record, with which the reference fills the part of a first file that lies before the queue's first offset.
FILLER_SIZE = 0x7FFFFFFF
# Tag codes are 32-bit hashes; smaller values are addresses of units in consumequeue_ext.
LOWEST_TAGS_CODE = -(1 << 31)


# --- the unit of a BatchConsumeQueue ---
#
# 0               8        12              20              28              36       38          42         46
# +---------------+--------+---------------+---------------+---------------+--------+-----------+----------+
# | log offset of | its    | tag code      | store time    | first queue   | queue  | compacted | reserved |    unit k: byte 46 k of the
# | the record    | size   |               | ms            | offset        | offsets| offset, -1| 0        |    queue's stream of files
# | i64           | i32    | i64           | i64           | i64           | i16    | i32       | i32      |
# +---------------+--------+---------------+---------------+---------------+--------+-----------+----------+

BATCH_UNIT_LAYOUT = Layout(
    ("log_offset", "q"),
    ("size", "i"),
    ("tags_code", "q"),
    ("store_time_ms", "q"),
    ("queue_offset", "q"),
    ("count", "h"),
    ("compacted_offset", "i"),
    ("reserved", "i"),
)
BATCH_UNIT = BATCH_UNIT_LAYOUT.struct
BATCH_UNIT_BYTES = BATCH_UNIT_LAYOUT.size


# --- the index file: a header, S slots, and room for N entries ---
#
# 0          8          16         24         32         36         40                40 + 4 S                 40 + 4 S + 20 N
# +----------+----------+----------+----------+----------+----------+-----------------+--------------------------+
# | store    | store    | log      | log      | number of| number of| slots: number   | entries; the one with    |
# | time of  | time of  | offset of| offset of| slots in | the next | of the newest   | number 0 is never used,  |
# | the first| the last | the first| the last | use      | entry,   | entry, 0: none  | so a file holds N - 1    |
# | entry, ms| entry, ms| entry    | entry    |          | from 1 on|                 |                          |
# | i64      | i64      | i64      | i64      | i32      | i32      | i32 each        | 20 bytes each            |
# +----------+----------+----------+----------+----------+----------+-----------------+--------------------------+
#
# 0          4                     12         16         20
# +----------+---------------------+----------+----------+
# | key hash | log offset of the   | seconds  | previous |    slot = key hash modulo S; seconds since the header's first time, at
# | i32      | record i64          | i32      | entry i32|    least 0; previous: the next older entry of its slot, 0: none
# +----------+---------------------+----------+----------+

INDEX_HEADER_LAYOUT = Layout(
    ("begin_ms", "q"),
    ("end_ms", "q"),
    ("begin_log_offset", "q"),
    ("end_log_offset", "q"),
    ("used_slots", "i"),
    ("next_entry", "i"),
)
INDEX_HEADER = INDEX_HEADER_LAYOUT.struct
INDEX_HEADER_BYTES = INDEX_HEADER_LAYOUT.size
INDEX_SLOT = INT32
INDEX_ENTRY_LAYOUT = Layout(("key_hash", "i"), ("log_offset", "q"), ("seconds", "i"), ("previous", "i"))
INDEX_ENTRY = INDEX_ENTRY_LAYOUT.struct
INDEX_ENTRY_BYTES = INDEX_ENTRY_LAYOUT.size


# --- the checkpoint file ---
#
# 0                8                 16                24                 32                 40                   48    4096
# +----------------+-----------------+-----------------+------------------+------------------+--------------------+-----+
# | commit log     | consume queues  | index files     | master's flushed | last valid record| newest record whose| 0   |
# | flushed up to  | flushed up to   | flushed up to   | offset (slaves)  | found by recovery| queue entry is on  |     |
# | this store time| this store time | this store time |                  |                  | the disk           |     |
# | i64            | i64             | i64             | i64              | i64              | i64                |     |
# +----------------+-----------------+-----------------+------------------+------------------+--------------------+-----+

CHECKPOINT_LAYOUT = Layout(
    ("commitlog_timestamp_ms", "q"),
    ("queues_timestamp_ms", "q"),
    ("index_timestamp_ms", "q"),
    ("master_flushed_offset", "q"),
    ("confirm_offset", "q"),
    ("queues_physical_offset", "q"),
)
CHECKPOINT = CHECKPOINT_LAYOUT.struct
CHECKPOINT_FILE_BYTES = 4096


# --- Apache's timed messages ---
#
# One message of timerlog/*. magic: 1, with 2 to be parked anew, with 4 the marker of a recall; another number after a file's last unit.
#
# 0     4          12       16             24         28           36        40           44         52
# +-----+----------+--------+--------------+----------+------------+---------+------------+----------+
# |size | previous | magic  | time of the  | due so   | log offset | size of | hash of    | reserved |
# | i32 | of its   | i32    | wheel ms i64 | much     | of the     | the     | its topic  | i64      |
# |     | slot i64 |        |              | later ms | record i64 | record  | i32        |          |
# |     |          |        |              | i32      |            | i32     |            |          |
# +-----+----------+--------+--------------+----------+------------+---------+------------+----------+
#
# config/timercheck
#
# 0              8                16              24                 32                                 56
# +--------------+----------------+---------------+------------------+----------------------------------+
# | what is due  | timerlog       | next message  | the same of the  | data version: state, time, count |
# | earlier was  | flushed up to  | of the queue  | master i64       | 3 times i64                      |
# | delivered ms | i64            | to take i64   |                  |                                  |
# +--------------+----------------+---------------+------------------+----------------------------------+

TIMER_UNIT_LAYOUT = Layout(
    ("size", "i"),
    ("previous", "q"),
    ("magic", "i"),
    ("wheel_ms", "q"),
    ("later_ms", "i"),
    ("log_offset", "q"),
    ("record_size", "i"),
    ("topic_hash", "i"),
    ("reserved", "q"),
)
TIMER_MAGIC_MAX = 7
TIMER_CHECKPOINT_LAYOUT = Layout(
    ("delivered_ms", "q"),
    ("flushed_pos", "q"),
    ("queue_offset", "q"),
    ("master_queue_offset", "q"),
    ("state_version", "q"),
    ("version_ms", "q"),
    ("version_counter", "q"),
)


# --- a remoting command on the wire ---
#
# 0      4           5         8           8+H
# +------+-----------+---------+-----------+--------+
# | L    | serialise | H       | header    | body   |       L = 4 + H + body length
# | i32  | u8        | u24     | (H)       |        |       serialise type and H are read as one u32
# +------+-----------+---------+-----------+--------+
#
# binary header
# 0       2          3         5        9      13     17      17+R  21+R
# +-------+----------+---------+--------+------+------+-------+-----+--------------------------------------+
# | code  | language | version | opaque | flag | R    | remark| E   | entries: i16 k, key, i32 v, value    |
# | i16   | i8       | i16     | i32    | i32  | i32  | (R)   | i32 | back to back, E bytes in all         |
# +-------+----------+---------+--------+------+------+-------+-----+--------------------------------------+

FRAME_LAYOUT = Layout(("length", "i"), ("type_and_header_length", "I"))
FRAME_HEAD = FRAME_LAYOUT.struct
BINARY_HEADER_LAYOUT = Layout(("code", "h"), ("language", "b"), ("version", "h"), ("opaque", "i"), ("flag", "i"), ("remark_length", "i"))
BINARY_HEADER = BINARY_HEADER_LAYOUT.struct


# --- replication: the connection between a slave and the HA port of its master ---
#
# a report of the slave                a transfer of the master
# 0                   8                0                   8          12           12+n
# +-------------------+                +-------------------+----------+------------+
# | its log has all   |                | log offset of the | n        | log bytes  |    n = 0: a heartbeat, with the offset that comes next
# | before this log   |                | first byte        | i32      | (n)        |
# | offset i64        |                | i64               |          |            |
# +-------------------+                +-------------------+----------+------------+
#
# With a shared secret the master begins with a transfer from log offset -1, of a nonce. The slave answers, before its first report, with a
# report of -1, a nonce of its own and its proof; the master ends the exchange with a transfer from log offset -2, of its proof.

REPORT = INT64
TRANSFER_LAYOUT = Layout(("log_offset", "q"), ("size", "i"))
TRANSFER_HEAD = TRANSFER_LAYOUT.struct
TRANSFER_HEAD_BYTES = TRANSFER_LAYOUT.size
NONCE_BYTES = 32
PROOF_BYTES = 32
PROOF_LAYOUT = Layout(("report", "q"), ("nonce", f"{NONCE_BYTES}s"), ("proof", f"{PROOF_BYTES}s"))
