"""Damage to bytes: flipped bits, edge values in place of lengths, pieces cut out, put in, or taken from other inputs."""

import random
import struct

EDGES = (0, 1, -1, 2, 3, 4, 21, 22, 91, 127, 128, 255, 256, 32767, 32768, 65535, 1 << 24, (1 << 24) + 1, 2**31 - 1, -(2**31))
JSON_PIECES = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"null",
    b"true",
    b"-",
    b"1e999",
    b"\\ud800",
    b"\x00",
    b"9" * 30,
    b'{"a":',
    b"0.5",
    b"\xff",
)


def mutate(rng: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(raw) + 1)
        kind = rng.randrange(9)
        if kind == 0 and raw:
            raw[at % len(raw)] = rng.randrange(256)
        elif kind == 1 and raw:
            raw[at % len(raw)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            edge = rng.choice(EDGES) + rng.choice((0, 0, 0, len(raw)))
            raw[at : at + 4] = struct.pack(">I", edge & 0xFFFFFFFF)
        elif kind == 3:
            raw[at : at + 2] = struct.pack(">H", rng.choice(EDGES) & 0xFFFF)
        elif kind == 4:
            del raw[at:]
        elif kind == 5:
            del raw[at : at + rng.randrange(1, 17)]
        elif kind == 6:
            raw[at:at] = rng.randbytes(rng.randrange(1, 17))
        elif kind == 7:
            other = rng.choice(corpus)
            start = rng.randrange(len(other) + 1)
            raw[at : at + rng.randrange(9)] = other[start : start + rng.randrange(200)]
        else:
            raw[at:at] = rng.choice(JSON_PIECES)
    return bytes(raw)
