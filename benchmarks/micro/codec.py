"""What the codecs cost: nanoseconds for one frame, header, record or message. ``python -m benchmarks.micro.codec``.

Each figure is processor time in the fastest of several rounds: what the code costs, whatever else runs. Bodies are 1 KiB unless named;
``mixed`` ones have 512 to 1,536 bytes, and tags and keys.
"""

import random
import sys
import time
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.report import write_result
from sprocketmq.client.consume.pull_requests import locate_messages
from sprocketmq.protocol.batch import encode_batch, scan_batch, split_batch, split_columns
from sprocketmq.protocol.bodies import HeartbeatData, ProducerData, TopicRoute
from sprocketmq.protocol.codes import SerializeType
from sprocketmq.protocol.command import Command, decode_command, encode_command, encode_head, to_ext
from sprocketmq.protocol.compression import CompressionType, compress, compression_flag, decompress
from sprocketmq.protocol.frame import FrameBuffer
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.headers import PullRequest, SendMessageV2, SendResponse
from sprocketmq.protocol.ids import MessageIdFactory, offset_msg_id
from sprocketmq.protocol.properties import decode_properties, encode_properties, find_property
from sprocketmq.protocol.records import decode_records, encode_record, pack_host, walk_records

ROUNDS = 5
ROUND_SECONDS = 0.05

BODY = bytes(range(256)) * 4
PROPERTIES = {"UNIQ_KEY": "C00002025F9530946E09679C8AA40012", "WAIT": "true", "TAGS": "TagA"}
RAW_PROPERTIES = encode_properties(PROPERTIES)
HOST = pack_host("127.0.0.1", 10911)
SEND = SendMessageV2("pg", "bench", 3, 1_700_000_000_000, properties=RAW_PROPERTIES.decode(), batch=False, broker_name="broker-a")
PULL = {
    "consumerGroup": "cg",
    "topic": "bench",
    "queueId": "3",
    "queueOffset": "123456",
    "maxMsgNums": "32",
    "sysFlag": "3",
    "commitOffset": "123400",
    "suspendTimeoutMillis": "15000",
    "subVersion": "1700000000000",
    "expressionType": "TAG",
}
SENT = {"msgId": "7F00000100002A9F0000000000001000", "queueId": "3", "queueOffset": "123456", "transactionId": PROPERTIES["UNIQ_KEY"]}
IN_FRAMES = 64
IN_BATCH = 100


def nanoseconds(action: Callable[[], object], units: int) -> float:
    """Return the fastest round's nanoseconds for one of the ``units`` an ``action`` handles."""
    timer = timeit.Timer(action, timer=time.process_time)
    once = max(timer.timeit(20) / 20, 1e-7)
    number = max(1, int(ROUND_SECONDS / once))
    return min(timer.repeat(ROUNDS, number)) / number / units * 1e9


def frames(command: Command) -> Callable[[], object]:
    stream = encode_command(command) * IN_FRAMES
    buffer = FrameBuffer()

    def receive() -> object:
        space = buffer.get_buffer()
        space[: len(stream)] = stream
        return buffer.received(len(stream))

    return receive


def record(queue_offset: int, body: bytes = BODY, properties: bytes = RAW_PROPERTIES, sys_flag: int = 0) -> bytes:
    return encode_record(
        topic=b"bench",
        body=body,
        properties=properties,
        queue_id=3,
        queue_offset=queue_offset,
        physical_offset=queue_offset * 1200,
        born_timestamp_ms=1_700_000_000_000,
        born_host=HOST,
        store_timestamp_ms=1_700_000_000_001,
        store_host=HOST,
        sys_flag=sys_flag,
    )


def mixed_messages(count: int) -> list[tuple[int, bytes, bytes]]:
    """Return flag, body and properties of messages with bodies of several sizes, tags and keys."""
    chance = random.Random(18)
    return [
        (0, chance.randbytes(chance.randint(512, 1536)), encode_properties({"KEYS": f"order-{i}"} | PROPERTIES | {"TAGS": "ab"[i & 1]}))
        for i in range(count)
    ]


def actions() -> dict[str, tuple[Callable[[], object], int]]:
    """Return what is measured: an action, and how many units it handles, by name."""
    send = Command(310, ext=to_ext(SEND), body=BODY)
    send_binary = Command(310, ext=to_ext(SEND), body=BODY, serialize=SerializeType.ROCKETMQ)
    answer = Command(0, flag=1, ext=SENT)
    json_send = encode_command(send)[4:]
    binary_send = encode_command(send_binary)[4:]
    json_pull = encode_command(Command(11, ext=PULL))[4:]
    json_sent = encode_command(answer)[4:]
    ready = encode_head(0, opaque=1, ext=SENT).partition(b'"extFields":')[2].partition(b"}")[0] + b"}"
    messages = [(0, BODY, RAW_PROPERTIES)] * IN_BATCH
    batch = encode_batch(messages)
    pulled = b"".join(record(i) for i in range(IN_FRAMES))
    inner = record(0, batch, b"INNER_NUM\x01100\x02", 192)
    mixed = mixed_messages(IN_BATCH)
    mixed_pulled = b"".join(record(i, body, properties) for i, (_, body, properties) in enumerate(mixed))
    mixed_inner = record(0, encode_batch(mixed), b"INNER_NUM\x01100\x02", 192)
    tags = frozenset({b"a"})
    ids = MessageIdFactory("192.0.2.2", 1)
    text = (b"the quick brown fox jumps over the lazy dog %d; " * 100)[:4096]
    heartbeat = HeartbeatData("192.0.2.2@1", [ProducerData("pg")]).encode()
    route = (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"c","enableActingMaster":false}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}'
    )
    packed = {kind: compress(text, kind) for kind in CompressionType}
    table: dict[str, tuple[Callable[[], Any], int]] = {
        "frame decode, JSON send": (frames(send), IN_FRAMES),
        "frame decode, binary send": (frames(send_binary), IN_FRAMES),
        "frame decode, JSON send answer": (frames(answer), IN_FRAMES),
        "header decode, JSON send": (lambda: decode_command(json_send).header(SendMessageV2), 1),
        "header decode, binary send": (lambda: decode_command(binary_send).header(SendMessageV2), 1),
        "header decode, JSON pull": (lambda: decode_command(json_pull).header(PullRequest), 1),
        "header decode, JSON send answer": (lambda: decode_command(json_sent).header(SendResponse), 1),
        "head encode, fields as ready JSON": (lambda: encode_head(0, opaque=1, flag=1, ext=ready, body_length=1024), 1),
        "head encode, fields as a map": (lambda: encode_head(0, opaque=1, flag=1, ext=SENT, body_length=1024), 1),
        "head encode, binary": (lambda: encode_head(0, opaque=1, flag=1, ext=SENT, serialize=SerializeType.ROCKETMQ), 1),
        "typed header to fields": (lambda: to_ext(SEND), 1),
        "record encode": (lambda: record(5), 1),
        "record walk": (lambda: walk_records(pulled), IN_FRAMES),
        "record decode, lazily": (lambda: decode_records(pulled), IN_FRAMES),
        "record decode and body": (lambda: [m.body for m in decode_records(pulled)], IN_FRAMES),
        "record decode, body, tag, offset": (lambda: [(m.body, m.tag, m.queue_offset) for m in decode_records(pulled)], IN_FRAMES),
        "record decode and CRC": (lambda: decode_records(pulled, verify_crc=True), IN_FRAMES),
        "inner batch decode and body": (lambda: [m.body for m in decode_records(inner)], IN_BATCH),
        "mixed records decode and body": (lambda: [m.body for m in decode_records(mixed_pulled)], IN_BATCH),
        "mixed records, body, tag, offset": (lambda: [(m.body, m.tag, m.queue_offset) for m in decode_records(mixed_pulled)], IN_BATCH),
        "mixed records chosen by tag": (lambda: list(locate_messages(mixed_pulled, "", 0, tags)), IN_BATCH),
        "mixed inner batch decode and body": (lambda: [m.body for m in decode_records(mixed_inner)], IN_BATCH),
        "mixed inner batch, body, tag, offset": (lambda: [(m.body, m.tag, m.queue_offset) for m in decode_records(mixed_inner)], IN_BATCH),
        "mixed inner batch chosen by tag": (lambda: list(locate_messages(mixed_inner, "", 0, tags)), IN_BATCH),
        "batch encode, a message": (lambda: encode_batch(messages), IN_BATCH),
        "batch split, a message": (lambda: split_batch(batch), IN_BATCH),
        "batch split into columns, a message": (lambda: split_columns(batch), IN_BATCH),
        "batch scanned, a message": (lambda: scan_batch(batch), IN_BATCH),
        "properties encode": (lambda: encode_properties(PROPERTIES), 1),
        "properties decode": (lambda: decode_properties(RAW_PROPERTIES), 1),
        "property find": (lambda: find_property(RAW_PROPERTIES, b"TAGS"), 1),
        "client id": (ids.next, 1),
        "client id, of a hundred": (lambda: ids.take(100), 100),
        "offset id": (lambda: offset_msg_id(HOST, 123_456_789), 1),
        "CRC of 1 KiB": (lambda: crc32(BODY), 1),
        "route decode": (lambda: TopicRoute.decode(route), 1),
        "heartbeat decode": (lambda: HeartbeatData.decode(heartbeat), 1),
    }
    for kind, data in packed.items():
        table[f"{kind.name.lower()} compress 4 KiB"] = (partial(compress, text, kind), 1)
        table[f"{kind.name.lower()} decompress 4 KiB"] = (partial(decompress, data, compression_flag(kind)), 1)
    return table


def main() -> int:
    figures = {}
    for name, (action, units) in actions().items():
        figures[name] = round(nanoseconds(action, units), 1)
        print(f"{name:<36}{figures[name]:>12,.1f} ns{1e9 / figures[name]:>16,.0f} /s", flush=True)
    path = write_result("micro-codec", {"unit": "ns", "rounds": ROUNDS, "figures": figures})
    print(f"written to {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
