"""Damaged input: every decoder of the protocol gives a value or a ProtocolError, never anything else, whole or byte by byte.

Recorded frames are mutated from a seed that is printed. ``SPROCKETMQ_FUZZ_SEED`` repeats a run, ``SPROCKETMQ_FUZZ_SECONDS`` makes it
a long one (``make fuzz``), shared between the decoders.
"""

import contextlib
import inspect
import os
import random
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fuzz.mutations import mutate

from sprocketmq.errors import ProtocolError
from sprocketmq.protocol import bodies, headers
from sprocketmq.protocol.batch import encode_batch, split_batch
from sprocketmq.protocol.command import MAX_FRAME_LENGTH, Command, decode_command, encode_command, encode_head
from sprocketmq.protocol.compression import CompressionType, compress, decompress
from sprocketmq.protocol.frame import FrameBuffer, FrameError, ReceiveBuffer
from sprocketmq.protocol.ids import parse_offset_msg_id, parse_uniq_key
from sprocketmq.protocol.jsondialect import dumps_with_queue_keys, loads
from sprocketmq.protocol.properties import decode_properties, encode_properties, find_property
from sprocketmq.protocol.records import ReceivedMessage, Record, decode_records, unpack_host, walk_records

SECONDS = float(os.environ.get("SPROCKETMQ_FUZZ_SECONDS", "0"))
SEED = int(os.environ.get("SPROCKETMQ_FUZZ_SEED") or (random.SystemRandom().randrange(1 << 32) if SECONDS else 2013))
CASES = 3000  # of the short form, for each decoder
SLOW_SECONDS = 5.0  # of processor time, which no input of a few KiB may take

FRAMES = Path(__file__).parents[1] / "fixtures" / "frames" / "frames.zip"
with zipfile.ZipFile(FRAMES) as archive:
    RECORDED = [archive.read(name) for name in archive.namelist()]
COMMANDS = [FrameBuffer().feed(frame)[0] for frame in RECORDED]

HEADER_KINDS = [
    kind for _, kind in inspect.getmembers(headers, inspect.isclass) if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct
]
BODY_KINDS = [kind for _, kind in inspect.getmembers(bodies, inspect.isclass) if issubclass(kind, bodies.Body)]
MESSAGE_FIELDS = [name for name, value in vars(ReceivedMessage).items() if isinstance(value, property)]

# --- decoders -----------------------------------------------------------------------------------------------------------


def fields(command: Command) -> tuple[Any, ...]:
    try:
        ext: Any = command.ext
    except ProtocolError as e:
        ext = str(e)
    return (
        *(command.code, command.opaque, command.flag, command.version, command.language, command.remark, command.serialize),
        *(ext, bytes(command.body)),
    )


def feed_in(pieces: list[bytes]) -> tuple[list[tuple[Any, ...]], str]:
    buffer = FrameBuffer(ReceiveBuffer(512))
    seen: list[tuple[Any, ...]] = []
    for piece in pieces:
        try:
            seen += map(fields, buffer.feed(piece))
        except FrameError as e:
            return seen + list(map(fields, e.commands)), "refused"
    return seen, f"waits with {buffer.pending}"


def frame_stream(rng: random.Random, data: bytes) -> None:
    whole = feed_in([data])
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 6)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert feed_in(pieces) == whole
    if len(data) < 3000 and rng.random() < 0.2:
        assert feed_in([data[i : i + 1] for i in range(len(data))]) == whole
    # What a receiver does that gets a bad frame's bytes straight into its buffer.
    buffer = FrameBuffer(max_frame=MAX_FRAME_LENGTH)
    space = buffer.get_buffer()
    space[: len(data)] = data
    buffer.received(len(data))


def one_command(rng: random.Random, data: bytes) -> None:
    command = decode_command(data)
    for kind in rng.sample(HEADER_KINDS, 4):
        refused_or_value(lambda kind=kind: command.header(kind))
    assert isinstance(command.ext, dict)
    again = decode_command(encode_command(command)[4:])
    if command.serialize == 0:
        assert fields(again)[0] == command.code
        assert again.ext == command.ext
    else:
        assert fields(again) == fields(command)


def typed_header(rng: random.Random, data: bytes) -> None:
    head = encode_head(1, opaque=1, ext=data)
    command = decode_command(head[4:])
    for kind in rng.sample(HEADER_KINDS, 8):
        refused_or_value(lambda kind=kind: command.header(kind))
    assert isinstance(command.ext, dict)


def stored_records(rng: random.Random, data: bytes) -> None:
    refused_or_value(lambda: walk_records(data))
    # A walk needs sizes and magic numbers only; what lies between them is looked at when a field is touched.
    if len(data) >= 8:
        message = Record(data, 0, min(len(data), 91 + rng.randrange(400)))
        for name in MESSAGE_FIELDS:
            refused_or_value(lambda name=name: getattr(message, name))
        refused_or_value(message.verify_crc)
        refused_or_value(lambda: repr(message))
    for found in decode_records(data, broker_name="broker-a"):
        for name in MESSAGE_FIELDS:
            refused_or_value(lambda name=name, found=found: getattr(found, name))
    decode_records(data, verify_crc=True)


def batch_body(rng: random.Random, data: bytes) -> None:
    entries = split_batch(data)
    for entry in entries:
        refused_or_value(lambda entry=entry: decode_properties(entry.properties))
    again = split_batch(encode_batch(entries))
    assert [tuple(e) for e in again] == [tuple(e) for e in entries]


def property_string(rng: random.Random, data: bytes) -> None:
    for name in (b"TAGS", b"KEYS", b"UNIQ_KEY"):
        raw = find_property(data, name)
        assert raw is None or raw in data
    pairs = decode_properties(data)
    assert decode_properties(encode_properties(pairs)) == pairs


def json_body(rng: random.Random, data: bytes) -> None:
    for kind in rng.sample(BODY_KINDS, 6):
        refused_or_value(lambda kind=kind: kind.decode(data))
    kind = rng.choice(BODY_KINDS)
    body = kind.decode(data)
    again = kind.decode(body.encode())
    assert again == body or "nan" in str(body) or "inf" in str(body)


def json_dialect(rng: random.Random, data: bytes) -> None:
    value = loads(data)
    dumps_with_queue_keys(value)


def compressed_registration(rng: random.Random, data: bytes) -> None:
    packed = zlib.compress(data, 1)
    refused_or_value(lambda: bodies.RegisterBrokerBody.decode_compressed(packed, 401))
    bodies.RegisterBrokerBody.decode_compressed(packed).encode()


def compressed_body(rng: random.Random, data: bytes) -> None:
    for flag in (0x001, 0x101, 0x201, 0x301, 0x401, 0x701):
        refused_or_value(lambda flag=flag: decompress(data, flag, max_bytes=100_000))
    kind = {0x04: 0x101, 0x28: 0x201}.get(data[0] if data else 0, 0x301)
    assert len(decompress(data, kind, max_bytes=5000)) <= 5000


def message_ids(rng: random.Random, data: bytes) -> None:
    text = data.decode("latin-1")
    refused_or_value(lambda: parse_uniq_key(text))
    refused_or_value(lambda: unpack_host(data))
    parse_offset_msg_id(text)


def refused_or_value(action: Callable[[], Any]) -> None:
    with contextlib.suppress(ProtocolError):
        action()


REGISTRATION = b"".join(
    [
        *(struct.pack(">i", len(part)) + part for part in (b'{"counter":1,"stateVersion":0,"timestamp":5}',)),
        struct.pack(">i", 1),
        *(struct.pack(">i", len(part)) + part for part in (b'T 4 4 6 SINGLE_TAG {"queue.type":"BatchCQ"}', b"[]")),
        struct.pack(">i", 1),
        *(struct.pack(">i", len(part)) + part for part in (b'{"topic":"T"}',)),
    ]
)
BODIES = [bytes(c.body) for c in COMMANDS if c.body]
TEXT = bytes(range(256)) * 4
TARGETS: dict[str, tuple[Callable[[random.Random, bytes], None], list[bytes]]] = {
    "frames": (frame_stream, [a + b for a, b in zip(RECORDED, RECORDED[1:] + RECORDED[:1], strict=True)]),
    "command": (one_command, [frame[4:] for frame in RECORDED]),
    "typed header": (typed_header, [msgspec.json.encode(c.ext) for c in COMMANDS if c.ext]),
    "records": (stored_records, [b for b in BODIES if b[4:8] in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")]),
    "batch": (batch_body, [bytes(c.body) for c in COMMANDS if c.code == 320]),
    "properties": (property_string, [c.ext["i"].encode() for c in COMMANDS if c.ext.get("i")]),
    "bodies": (json_body, [b for b in BODIES if b[:1] == b"{"]),
    "dialect": (json_dialect, [b for b in BODIES if b[:1] == b"{"] + [b'{0:1,{"topic":"t","brokerName":"b","queueId":0}:[1,{}]}']),
    "registration": (compressed_registration, [REGISTRATION]),
    "compression": (compressed_body, [compress(d, k) for d in (b"", b"x" * 4096, TEXT) for k in CompressionType]),
    "ids": (message_ids, [b"7F00000100006D070000000000000653", b"C00002025F9530946E09679C8AA40012", b"\x7f\0\0\1\0\0\x6d\x07", b"0" * 56]),
}


def test_the_corpora_are_not_empty():
    assert all(corpus for _, corpus in TARGETS.values())


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_input_gives_a_value_or_a_protocol_error(target):
    check, corpus = TARGETS[target]
    print(f"fuzz {target}: SPROCKETMQ_FUZZ_SEED={SEED}")
    rng = random.Random(f"{SEED} {target}")
    started = time.monotonic()
    case = refused = 0
    while time.monotonic() - started < SECONDS / len(TARGETS) if SECONDS else case < CASES:
        data = mutate(rng, rng.choice(corpus), corpus)
        case += 1
        before = time.process_time()
        try:
            check(rng, data)
        except ProtocolError:
            refused += 1
        except Exception as e:
            raise AssertionError(f"case {case} of seed {SEED}: {type(e).__name__}: {e}; input {data.hex()}") from e
        assert time.process_time() - before < SLOW_SECONDS, f"case {case} of seed {SEED} is slow; input {data.hex()}"
    print(f"fuzz {target}: {case} cases, {refused} refused")
    assert 0 < refused < case


# Not among them: a recorded JSON body has one shape of many, a 320 may hold a plain body, and the ids are of three kinds.
@pytest.mark.parametrize("target", ["frames", "command", "typed header", "records", "properties", "dialect", "compression", "registration"])
def test_undamaged_input_is_accepted(target):
    check, corpus = TARGETS[target]
    rng = random.Random(0)
    for data in corpus:
        check(rng, data)


@pytest.mark.parametrize("target", ["frames", "command", "records", "batch", "properties", "dialect", "compression", "registration"])
def test_every_prefix_gives_a_value_or_a_protocol_error(target):
    check, corpus = TARGETS[target]
    rng = random.Random(0)
    for data in rng.sample(corpus, min(len(corpus), 6)):
        for end in range(min(len(data), 1500)):
            refused_or_value(lambda data=data, end=end: check(rng, data[:end]))
