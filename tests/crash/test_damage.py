"""Flipped bits and shortened files of every kind: the store opens, no wrong body is delivered, at most the damaged record is lost.

``SPROCKETMQ_CRASH_FLIPS`` sets how many bits (500 by default), ``SPROCKETMQ_CRASH_SEED`` which. A failure says how to repeat it alone.
"""

import os
import random

import pytest

from sprocketmq.testing.rig.damage import KINDS, Damage

FLIPS = int(os.environ.get("SPROCKETMQ_CRASH_FLIPS", "500"))
SEED = os.environ.get("SPROCKETMQ_CRASH_SEED", "1")
# The log is where damage can hurt: it gets half of the flips, the derived and small files share the others.
SHARES = {kind: 0.5 if kind == "log" else 0.5 / (len(KINDS) - 1) for kind in KINDS}
# Every so many flips another store is filled.
FLIPS_A_STORE = 250


@pytest.mark.timeout(0 if FLIPS > 500 else 600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_costs_no_more_than_its_record(kind: str) -> None:
    print(f"SPROCKETMQ_CRASH_SEED={SEED}")
    count = max(10, round(FLIPS * SHARES[kind]))
    for i in range(count):
        if i % FLIPS_A_STORE == 0:
            damage = Damage(f"{SEED}.{i // FLIPS_A_STORE}", steps=25)
        damage.flip(kind, random.Random(f"{SEED} {kind} {i}"), clean=i % 2 == 0)
    print(f"{count} bits of the {kind} flipped")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(2))
def test_a_log_that_ends_at_any_byte_of_its_last_three_records_keeps_all_before(part: int) -> None:
    damage = Damage(f"{SEED}.tail", steps=10)
    positions = damage.tail(3)
    assert len(positions) > 100
    for position in positions[part::2]:
        damage.cut_log(position)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "log"])
def test_a_derived_file_of_any_length_or_none_costs_nothing(kind: str) -> None:
    print(f"SPROCKETMQ_CRASH_SEED={SEED}")
    rng = random.Random(f"{SEED} cut {kind}")
    damage = Damage(f"{SEED}.cut", steps=15)
    for clean in (True, False):
        for path in damage.paths(kind, clean=clean)[:3]:
            size = len(damage.disks[clean].read(path))
            for length in {0, 1, size - 1, size + 1, *(rng.randrange(size + 1) for _ in range(3))}:
                damage.cut(path, max(0, length), clean=clean)
            damage.remove(path, clean=clean)
