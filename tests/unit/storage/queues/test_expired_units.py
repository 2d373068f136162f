"""What is damaged is not taken for what has left the log."""

from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.protocol.layout import FILLER_SIZE
from sprocketmq.storage.queues.expired_units import first_kept

SIZE = 100
ZEROS, ONES, FILLER, FAR = (0, 0), (-1, -1), (0, FILLER_SIZE), (1 << 62, SIZE)
BEFORE_THE_LOG = (5, SIZE)  # as sound as any that has left


def kept(units, left, low=0):
    """Return ``first_kept`` of units where ``left`` have left the log, when none is damaged."""
    return first_kept(low, len(units), units.__getitem__, left * SIZE, len(units) * SIZE)


@given(count=st.integers(1, 40), left=st.integers(0, 40), low=st.integers(0, 40))
def test_sound_units(count, left, low):
    left, low = min(left, count), min(low, count)
    assert kept([(n * SIZE, SIZE) for n in range(count)], left, low) == max(left, low)


@given(
    count=st.integers(1, 40),
    left=st.integers(0, 40),
    damage=st.dictionaries(st.integers(0, 39), st.sampled_from([ZEROS, ONES, FILLER, FAR]), max_size=20),
)
def test_a_damaged_unit_is_kept_unless_one_after_it_has_left(count, left, damage):
    left = min(left, count)
    damage = {n: unit for n, unit in damage.items() if n < count}
    last = max((n for n in range(left) if n not in damage), default=-1)
    assert kept([damage.get(n, (n * SIZE, SIZE)) for n in range(count)], left) == last + 1


@given(count=st.integers(1, 40), left=st.integers(0, 40), flipped=st.sets(st.integers(0, 19)))
def test_single_units_that_seem_to_have_left_hide_nothing(count, left, flipped):
    left = min(left, count)
    units = [(n * SIZE, SIZE) if n < left or n // 2 not in flipped or n % 2 else BEFORE_THE_LOG for n in range(count)]
    first = kept(units, left)
    assert all(units[n] == BEFORE_THE_LOG or n < left for n in range(first))
