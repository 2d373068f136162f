"""Writing a stored record, and following the sizes of concatenated records."""

from ipaddress import IPv4Address, IPv6Address, ip_address

from sprocketmq.errors import LocalProtocolError, RemoteProtocolError
from sprocketmq.protocol.codes import SYSFLAG_ANY_HOST_V6, SYSFLAG_BORN_HOST_V6, SYSFLAG_STORE_HOST_V6
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.layout import (
    FIXED_OVERHEAD,
    HEAD_BYTES_WITHOUT_HOSTS,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    INT16,
    INT32,
    INT64,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_HEAD,
    RECORD_LAYOUT,
    TWO_INT32,
)
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH

MAGICS = frozenset({MAGIC_V1, MAGIC_V2})
_BORN_HOST_AT = RECORD_LAYOUT.offset("born_host")
_AFTER_HOSTS = RECORD_LAYOUT.part("reconsume_times", "prepared_offset", "body_length", start="reconsume_times")
_pack_head = RECORD_HEAD.pack
_pack_int16 = INT16.pack


def pack_host(ip: str, port: int) -> bytes:
    """Return a host as stored: 8 bytes for an IPv4 address, 20 for an IPv6 one. Raises LocalProtocolError when ``ip`` is not an address."""
    try:
        return ip_address(ip.partition("%")[0]).packed + INT32.pack(port)
    except ValueError:
        raise LocalProtocolError(f"{ip!r} is not an IP address") from None


def unpack_host(data: bytes | memoryview) -> tuple[str, int]:
    """Return ``(ip, port)`` of a stored host of 8 or 20 bytes."""
    raw = bytes(data)
    if len(raw) == HOST_V4_BYTES:
        return str(IPv4Address(raw[:4])), INT32.unpack_from(raw, 4)[0]
    if len(raw) == HOST_V6_BYTES:
        return str(IPv6Address(raw[:16])), INT32.unpack_from(raw, 16)[0]
    raise RemoteProtocolError(f"a host has 8 or 20 bytes, not {len(raw)}")


def encode_record(
    *,
    topic: bytes,
    body: bytes | memoryview,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
) -> bytes:
    """Return one stored record. The host-family bits of ``sys_flag`` are set from the host lengths; a topic over 127 bytes makes it v2."""
    sys_flag &= ~SYSFLAG_ANY_HOST_V6
    if len(born_host) == HOST_V6_BYTES:
        sys_flag |= SYSFLAG_BORN_HOST_V6
    if len(store_host) == HOST_V6_BYTES:
        sys_flag |= SYSFLAG_STORE_HOST_V6
    if len(properties) > MAX_PROPERTIES_LENGTH:
        raise LocalProtocolError(f"the properties take {len(properties)} bytes, the limit is {MAX_PROPERTIES_LENGTH}")
    if len(topic) > 127:
        magic, topic_head = MAGIC_V2, _pack_int16(len(topic))
    else:
        magic, topic_head = MAGIC_V1, bytes((len(topic),))
    tail = topic_head + topic + _pack_int16(len(properties)) + properties
    size = HEAD_BYTES_WITHOUT_HOSTS + len(born_host) + len(store_host) + len(body) + len(tail)
    head = (size, magic, crc32(body), queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp_ms)
    rest = (reconsume_times, prepared_offset, len(body))
    if sys_flag & SYSFLAG_ANY_HOST_V6:
        packed = b"".join(
            (
                _pack_head(*head, b"", 0, b"", 0, 0, 0)[:_BORN_HOST_AT],
                born_host,
                INT64.pack(store_timestamp_ms),
                store_host,
                _AFTER_HOSTS.pack(*rest),
            )
        )
    else:
        packed = _pack_head(*head, born_host, store_timestamp_ms, store_host, *rest)
    return b"".join((packed, body, tail))


def walk_records(data: bytes | memoryview) -> list[tuple[int, int]]:
    """Return ``(position, size)`` of each record of concatenated records.

    Raises RemoteProtocolError when a size is impossible or a magic number is not a record's.
    """
    total = len(data)
    unpack = TWO_INT32.unpack_from
    magics = MAGICS
    found: list[tuple[int, int]] = []
    add = found.append
    pos = 0
    while total - pos >= FIXED_OVERHEAD:
        size, magic = unpack(data, pos)
        if magic not in magics or size < FIXED_OVERHEAD or size > total - pos:
            raise damage_at(data, pos)
        add((pos, size))
        pos += size
    if pos < total:
        raise damage_at(data, pos)
    return found


def damage_at(data: bytes | memoryview, pos: int) -> RemoteProtocolError:
    """Return the error for the invalid record at ``pos``."""
    left = len(data) - pos
    if left < FIXED_OVERHEAD:
        return RemoteProtocolError(f"record at byte {pos} is cut short: {left} bytes are left")
    size, magic = TWO_INT32.unpack_from(data, pos)
    if magic not in MAGICS:
        return RemoteProtocolError(f"record at byte {pos} has magic {magic & 0xFFFFFFFF:#x}")
    return RemoteProtocolError(f"record at byte {pos} has an impossible size {size}")


def host_text(raw: bytes) -> str:
    """Return a stored host as ``ip:port``, an IPv6 address in brackets."""
    ip, port = unpack_host(raw)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
