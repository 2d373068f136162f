from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sprocketmq.client.send.batching import ACT, ALONE, MAX_UNITED_BYTES, OTHERWISE, STAYS, Accumulator, Batching
from sprocketmq.client.send.encoding import MessageEncoder
from sprocketmq.clock import ManualClock
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.batch import split_batch
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.layout import BATCH_ENTRY_HEAD
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.protocol.properties import decode_properties

KEY = ("t", None, True, None)
FRONT = b"\x00\x2aUNIQ_KEY\x01"
ID_BYTES = 32
OVERHEAD = 20 + len(FRONT) + ID_BYTES + 1


def entry(body: bytes):
    size = OVERHEAD + len(body)
    return size, BATCH_ENTRY_HEAD.pack(size, 0, 0, 0, len(body)), body, FRONT, 0


def gathering(clock=None, *, max_message_bytes=4 << 20, **options):
    return Accumulator(Batching(**options), clock or ManualClock(), max_message_bytes=max_message_bytes)


def put(accumulator, body=b"x", member="m", *, key=KEY, keys=()):
    united = len(" ".join(keys).encode()) + 1 if keys else 0
    return accumulator.add(key, (*entry(body)[:4], united), member, keys=keys)


def put_plain(accumulator, body=b"x", member="m", *, key=KEY):
    """As the producer adds a message with nothing but a body: the short way, once there is such a message in the open batch."""
    topic, tag, wait_store_ok, queue = key
    outcome = accumulator.join(Message(topic, body, tag=tag, wait_store_ok=wait_store_ok, queue=queue), member)
    if outcome != OTHERWISE:
        return outcome
    return accumulator.add(key, entry(body), member, plain=True)


def taken(accumulator):
    batches = []
    while (batch := accumulator.take()) is not None:
        batches.append(batch)
    return batches


# --- configuration ------------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_reference():
    assert Batching() == Batching(max_bytes=32768, max_delay_ms=10, total_max_bytes=33554432, adaptive=False)


@pytest.mark.parametrize(
    "options", [{"max_bytes": 1}, {"max_bytes": 2 << 20}, {"max_delay_ms": 1}, {"max_delay_ms": 30_000}, {"total_max_bytes": 1}]
)
def test_values_at_the_bounds_are_taken(options):
    assert Batching(**options)


@pytest.mark.parametrize("name", ["max_bytes", "max_delay_ms", "total_max_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "10", None, True])
def test_a_value_that_cannot_be_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=name):
        Batching(**{name: value})


@pytest.mark.parametrize("options", [{"max_bytes": (2 << 20) + 1}, {"max_delay_ms": 30_001}])
def test_a_value_over_its_bound_is_refused(options):
    with pytest.raises(ConfigError, match="from 1 to"):
        Batching(**options)


# --- when batches leave -------------------------------------------------------------------------------------------------


def test_the_first_message_of_a_batch_asks_for_attention_and_the_others_do_not():
    accumulator = gathering()
    assert [put(accumulator) for _ in range(3)] == [ACT, STAYS, STAYS]
    assert accumulator.take() is None


def test_the_short_way_opens_a_batch_like_the_one_that_left_last():
    clock = ManualClock()
    accumulator = gathering(clock, max_delay_ms=10)
    message = Message("t", b"x")
    assert accumulator.join(message, "a") == OTHERWISE, "what may be wrong with the topic is not known yet"
    for name in "aa":
        put_plain(accumulator, member=name)
    accumulator.flush()
    clock.advance(1)
    assert [accumulator.join(message, name) for name in "bc"] == [ACT, STAYS]
    assert accumulator.next_due() == clock.monotonic() + 0.01
    accumulator.flush()
    batches = taken(accumulator)
    assert [batch.members for batch in batches] == [["a", "a"], ["b", "c"]]
    assert [len(batch.encode(some_ids(len(batch.members)))) for batch in batches] == [batch.size for batch in batches]
    assert accumulator.join(Message("t", b"x" * 40_000), "large") == OTHERWISE
    assert accumulator.join(Message("t", b"x", tag="other"), "another key") == OTHERWISE


def test_the_short_way_opens_no_second_batch_of_a_key():
    accumulator = gathering()
    for name in "aa":
        put_plain(accumulator, member=name)
    accumulator.flush()
    put(accumulator, member="b")
    assert accumulator.join(Message("t", b"x"), "c") == OTHERWISE
    put_plain(accumulator, member="c")
    accumulator.flush()
    assert [batch.members for batch in taken(accumulator)] == [["a", "a"], ["b", "c"]]


def test_the_short_way_opens_no_batch_for_a_chosen_queue_nor_while_nothing_is_on_its_way_in_adaptive_mode():
    queue = MessageQueue("t", "a", 0)
    pinned = gathering()
    for _ in range(2):
        put_plain(pinned, key=("t", None, True, queue))
    pinned.flush()
    assert pinned.join(Message("t", b"x", queue=queue), "m") == OTHERWISE, "the queue may be gone"
    adaptive = gathering(adaptive=True)
    for _ in range(2):
        put_plain(adaptive)
    adaptive.flush()
    (batch,) = taken(adaptive)
    assert adaptive.join(Message("t", b"x"), "m") == ACT
    adaptive.flush()
    adaptive.done(batch)
    adaptive.done(adaptive.take())
    assert adaptive.join(Message("t", b"x"), "m") == OTHERWISE, "it may leave alone, and at once"


@pytest.mark.parametrize("tag", [None, "TagA"])
@pytest.mark.parametrize("keys", [["order-1"], ("Bestellung-ä",), "order-1"])
def test_the_short_way_makes_of_one_key_what_the_encoder_makes_of_it(tag, keys):
    encoder = MessageEncoder(MessageIdFactory("127.0.0.1", 1), max_message_bytes=4 << 20, compression=None, compress_over_bytes=4096)
    message = Message("t", b"body", tag=tag, keys=keys)
    key = ("t", tag, True, None)
    words = (keys,) if isinstance(keys, str) else keys
    short, long = gathering(), gathering()
    for accumulator in (short, long):
        entry = encoder.entry(message)
        assert accumulator.add(key, entry, "m", keys=words, common=encoder.common(tag)) == ACT
    assert short.join(message, "m") == STAYS
    assert long.add(key, encoder.entry(message), "m", keys=words) == STAYS
    for accumulator in (short, long):
        accumulator.flush()
    batch, expected, ids = short.take(), long.take(), some_ids(2)
    assert batch.encode(ids) == expected.encode(ids)
    assert (batch.size, batch.united, batch.united_bytes) == (expected.size, expected.united, expected.united_bytes)


@pytest.mark.parametrize("keys", [["two", "keys"], ["a b"], ["tab\t"], [""], [7], ["\udc80"], {"set"}, 7, ["k" * MAX_UNITED_BYTES]])
def test_the_short_way_leaves_keys_that_are_not_one_plain_word_to_the_long_one(keys):
    accumulator = gathering(max_bytes=1 << 20)
    for _ in range(2):
        put_plain(accumulator)
    held = accumulator.held_bytes
    assert accumulator.join(Message("t", b"x", keys=keys), "m") == OTHERWISE
    assert accumulator.held_bytes == held


def test_a_batch_leaves_when_its_delay_is_over_and_not_before():
    clock = ManualClock()
    accumulator = gathering(clock, max_delay_ms=10)
    assert accumulator.next_due() is None
    put(accumulator, member="a")
    assert accumulator.next_due() == clock.monotonic() + 0.01
    clock.advance(0.009)
    put(accumulator, member="b")
    accumulator.expire()
    assert accumulator.take() is None
    clock.advance(0.002)
    accumulator.expire()
    assert [batch.members for batch in taken(accumulator)] == [["a", "b"]]
    assert accumulator.next_due() is None


def test_batches_are_due_in_the_order_they_were_opened():
    clock = ManualClock()
    accumulator = gathering(clock, max_delay_ms=10)
    for name in "abc":
        put(accumulator, member=name, key=("t", name, True, None))
        clock.advance(0.004)
    accumulator.expire()
    assert [batch.members for batch in taken(accumulator)] == [["a"]]
    clock.advance(0.004)
    accumulator.expire()
    assert [batch.members for batch in taken(accumulator)] == [["b"]]
    assert accumulator.next_due() is not None


def test_a_jump_of_the_wall_clock_changes_nothing():
    clock = ManualClock()
    accumulator = gathering(clock)
    put(accumulator)
    clock.jump_wall(3600)
    accumulator.expire()
    assert accumulator.take() is None
    clock.jump_wall(-7200)
    clock.advance(0.01)
    accumulator.expire()
    assert len(taken(accumulator)) == 1


def test_a_batch_never_has_more_than_its_limit():
    accumulator = gathering(max_bytes=1000)
    for length in (300, 300, 900, 10, 500, 500, 1):
        put(accumulator, b"x" * length)
    accumulator.flush()
    batches = taken(accumulator)
    # The fourth leaves as it has no room for another of 500 bytes.
    assert [batch.size for batch in batches] == [600 + 2 * OVERHEAD, 900 + OVERHEAD, 510 + 2 * OVERHEAD, 500 + OVERHEAD, 1 + OVERHEAD]
    assert all(batch.size <= 1000 for batch in batches)


def test_a_batch_without_room_for_another_like_its_last_leaves_at_once():
    accumulator = gathering(max_bytes=3 * (OVERHEAD + 100))
    assert [put(accumulator, b"x" * 100) for _ in range(4)] == [ACT, STAYS, ACT, ACT]
    assert [len(batch.members) for batch in taken(accumulator)] == [3]


def test_a_message_as_large_as_a_batch_may_be_fills_one_and_one_larger_goes_alone():
    accumulator = gathering(max_bytes=OVERHEAD + 10)
    assert put(accumulator, b"x" * 10) == ACT
    assert [batch.size for batch in taken(accumulator)] == [OVERHEAD + 10]
    assert put(accumulator, b"x" * 11) == ALONE
    assert accumulator.take() is None


def test_a_batch_is_bounded_by_the_size_of_a_message_too():
    accumulator = gathering(max_bytes=2000, max_message_bytes=OVERHEAD + 100)
    assert put(accumulator, b"x" * 101) == ALONE
    assert put(accumulator, b"x" * 100) == ACT
    assert len(taken(accumulator)) == 1


def test_what_was_gathered_before_a_message_that_goes_alone_leaves_before_it():
    accumulator = gathering(max_bytes=1000)
    put(accumulator, member="first")
    assert put(accumulator, b"x" * 2000, "large") == ALONE
    assert [batch.members for batch in taken(accumulator)] == [["first"]]
    put(accumulator, member="second")
    assert accumulator.alone(KEY) == ALONE
    assert [batch.members for batch in taken(accumulator)] == [["second"]]
    assert accumulator.alone(KEY) == ALONE
    assert accumulator.take() is None
    assert accumulator.stats().direct == 3


def test_only_messages_with_the_same_key_share_a_batch():
    accumulator = gathering()
    queue = MessageQueue("t", "b", 0)
    kinds = [("t", None, True, None), ("u", None, True, None), ("t", "a", True, None), ("t", None, False, None), ("t", None, True, queue)]
    for kind in kinds * 2:
        put(accumulator, key=kind, member=kind)
    accumulator.flush()
    batches = taken(accumulator)
    assert [batch.key for batch in batches] == kinds
    assert all(batch.members == [batch.key] * 2 for batch in batches)


# --- what is held -------------------------------------------------------------------------------------------------------


def test_messages_beyond_the_total_go_alone_until_a_batch_is_done():
    size = OVERHEAD + 100
    accumulator = gathering(max_bytes=2 * size, total_max_bytes=3 * size)
    assert [put(accumulator, b"x" * 100) for _ in range(4)] == [ACT, ACT, ACT, ALONE]
    first, second = taken(accumulator)
    assert accumulator.held_bytes == 3 * size
    assert put(accumulator, b"x" * 100) == ALONE
    accumulator.done(first)
    assert put(accumulator, b"x" * 100) == ACT
    accumulator.done(second)
    assert accumulator.held_bytes == size


def test_a_total_smaller_than_any_message_batches_nothing_and_holds_nothing():
    accumulator = gathering(total_max_bytes=1)
    assert put(accumulator) == ALONE
    assert (accumulator.held_bytes, accumulator.next_due()) == (0, None)


# --- keys ---------------------------------------------------------------------------------------------------------------


def test_the_keys_of_all_messages_are_united_each_once():
    accumulator = gathering()
    for keys in (["a", "b"], [], ["b", "c"]):
        put(accumulator, keys=keys)
    accumulator.flush()
    assert list(accumulator.take().united) == ["a", "b", "c"]


def test_a_batch_whose_keys_are_full_leaves_before_the_next_message_with_keys():
    accumulator = gathering(max_bytes=1 << 20)
    word = "é" * 4000  # 8,000 bytes
    assert [put(accumulator, member=i, keys=[f"{i}{word}"]) for i in range(4)] == [ACT, STAYS, STAYS, ACT]
    assert [batch.members for batch in taken(accumulator)] == [[0, 1, 2]]


def test_a_message_with_more_keys_than_a_batch_can_name_goes_alone():
    accumulator = gathering(max_bytes=1 << 20)
    assert put(accumulator, keys=["k" * MAX_UNITED_BYTES]) == ALONE
    assert put(accumulator, key=("t", "g" * 20_000, True, None), keys=["k" * 10_000]) == ALONE
    assert accumulator.held_bytes == 0


# --- what a batch is made of --------------------------------------------------------------------------------------------


def some_ids(amount):
    """Return ids that do not all begin alike: the second is the first of a new row of 256."""
    factory = MessageIdFactory("127.0.0.1", 1)
    factory.take(254)
    return factory.take(amount)


def test_a_batch_is_encoded_in_the_order_of_its_messages_each_with_its_id():
    accumulator = gathering()
    bodies = [b"one", b"two\x02\n", b"three"]
    for body in bodies:
        put(accumulator, body)
    accumulator.flush()
    batch = accumulator.take()
    ids = some_ids(3)
    data = batch.encode(ids)
    assert len(data) == batch.size
    entries = split_batch(data)
    assert [bytes(one.body) for one in entries] == bodies
    assert [decode_properties(one.properties)["UNIQ_KEY"] for one in entries] == list(ids)


def test_plain_entries_and_others_stand_in_the_order_of_their_messages():
    mixed, spelled_out = gathering(), gathering()
    for i, way in enumerate((put_plain, put, put_plain, put, put_plain)):
        way(mixed, b"%d" % i * (i + 1))
        put(spelled_out, b"%d" % i * (i + 1))
    ids = some_ids(5)
    for accumulator in (mixed, spelled_out):
        accumulator.flush()
    batch, expected = mixed.take(), spelled_out.take()
    assert batch.encode(ids) == expected.encode(ids)
    assert batch.size == expected.size == len(batch.encode(ids))
    assert (len(batch.rare), len(expected.rare)) == (2, 5)


def test_the_only_message_of_a_batch_is_told_apart_with_its_flag_and_properties():
    accumulator = gathering()
    put_plain(accumulator, b"plain")
    accumulator.flush()
    text = f"UNIQ_KEY\x01{'A' * ID_BYTES}\x02"
    assert accumulator.take().only("A" * ID_BYTES) == (0, b"plain", text)
    size, _, body, front, _ = entry(b"flagged")
    accumulator.add(KEY, (size, BATCH_ENTRY_HEAD.pack(size, 0, 0, 7, len(body)), body, front, 0), "m")
    accumulator.flush()
    assert accumulator.take().only("A" * ID_BYTES) == (7, b"flagged", text)


# --- adaptive mode ------------------------------------------------------------------------------------------------------


def test_an_adaptive_batch_leaves_at_the_end_of_the_turn_while_nothing_is_on_its_way():
    accumulator = gathering(adaptive=True)
    assert not accumulator.eager
    assert put(accumulator, member="a") == ACT
    assert accumulator.eager
    put(accumulator, member="b")
    accumulator.end_turn()
    assert [batch.members for batch in taken(accumulator)] == [["a", "b"]]
    assert not accumulator.eager


def test_an_adaptive_batch_gathers_while_one_of_its_key_is_on_its_way_and_leaves_with_the_answer():
    accumulator = gathering(adaptive=True)
    put(accumulator, member="a")
    accumulator.end_turn()
    (flying,) = taken(accumulator)
    put(accumulator, member="b")
    put(accumulator, member="other", key=("u", None, True, None))
    accumulator.end_turn()
    assert [batch.members for batch in taken(accumulator)] == [["other"]]
    put(accumulator, member="c")
    accumulator.done(flying)
    assert accumulator.take() is None
    assert accumulator.eager
    put(accumulator, member="who was answered")  # may have more to send in the same turn
    accumulator.end_turn()
    assert [batch.members for batch in taken(accumulator)] == [["b", "c", "who was answered"]]


def test_a_lone_message_leaves_at_once_and_what_comes_meanwhile_gathers():
    accumulator = gathering(adaptive=True, max_bytes=1000, total_max_bytes=1500)
    assert not accumulator.lone(KEY, 1001)
    assert accumulator.lone(KEY, 900)
    assert accumulator.held_bytes == 900
    assert not accumulator.lone(KEY, 1)
    put(accumulator, member="a")
    assert not accumulator.lone(("u", None, True, None), 900)  # too much is held
    accumulator.end_turn()
    assert accumulator.take() is None
    accumulator.lone_done(KEY, 900)
    assert not accumulator.lone(KEY, 1)  # the open batch goes first
    accumulator.end_turn()
    (batch,) = taken(accumulator)
    accumulator.done(batch)
    assert accumulator.held_bytes == 0
    assert accumulator.lone(KEY, 1)
    assert accumulator.stats().histogram == {1: 3}


def test_no_message_is_lone_without_adaptive_mode():
    assert not gathering().lone(KEY, 1)


def test_an_adaptive_batch_does_not_wait_for_an_answer_longer_than_its_delay():
    clock = ManualClock()
    accumulator = gathering(clock, adaptive=True, max_delay_ms=10)
    put(accumulator)
    accumulator.end_turn()
    taken(accumulator)
    put(accumulator, member="late")
    clock.advance(0.01)
    accumulator.expire()
    assert [batch.members for batch in taken(accumulator)] == [["late"]]


def test_an_adaptive_batch_waits_for_the_last_answer_of_its_key():
    size = OVERHEAD + 1
    accumulator = gathering(adaptive=True, max_bytes=2 * size)
    for member in range(5):
        put(accumulator, member=member)
    first, second = taken(accumulator)
    accumulator.end_turn()  # the fifth message gathers: two batches are on their way
    assert accumulator.take() is None
    accumulator.done(first)
    assert accumulator.take() is None
    accumulator.done(second)
    accumulator.end_turn()
    assert [batch.members for batch in taken(accumulator)] == [[4]]


# --- counters -----------------------------------------------------------------------------------------------------------


def test_the_counters_tell_batches_messages_sizes_and_how_long_they_lingered():
    clock = ManualClock()
    accumulator = gathering(clock, max_delay_ms=100)
    for count, linger in ((1, 0.01), (2, 0.02), (3, 0.03), (9, 0.04)):
        for _ in range(count):
            put(accumulator)
        clock.advance(linger)
        accumulator.flush()
    put(accumulator, b"x" * 40_000)
    stats = accumulator.stats()
    assert (stats.batches, stats.messages, stats.direct) == (4, 15, 1)
    assert stats.histogram == {1: 1, 2: 2, 8: 1}
    assert stats.linger_ms_mean == pytest.approx(25)
    assert stats.linger_ms_max == pytest.approx(40)
    assert stats.held_bytes == accumulator.held_bytes > 0


# --- any sequence of events ---------------------------------------------------------------------------------------------

_KEYS = st.sampled_from([("t", None, True, None), ("t", "a", True, None), ("u", None, False, None)])


class Gathering(RuleBasedStateMachine):
    """Whatever comes in whatever order: every message is in one batch once or sent alone, and held bytes are those of what is here."""

    LIMIT, TOTAL = 1000, 4000

    def __init__(self):
        super().__init__()
        self.clock = ManualClock()
        self.adaptive = self.make()
        self.next_member = 0
        self.expected = {}  # by key, what must still leave, in order
        self.flying = []
        self.lonely = []

    def make(self, *, adaptive=False):
        self.accumulator = gathering(self.clock, max_bytes=self.LIMIT, total_max_bytes=self.TOTAL, adaptive=adaptive)
        return adaptive

    def waiting(self):
        return sum(size for entries in self.expected.values() for _, size in entries)

    def collect(self):
        for batch in taken(self.accumulator):
            left, self.expected[batch.key] = self.expected[batch.key][: len(batch.members)], self.expected[batch.key][len(batch.members) :]
            assert batch.members == [member for member, _ in left]
            assert 0 < batch.size == sum(size for _, size in left) <= self.LIMIT
            assert len(batch.encode(some_ids(len(left)))) == batch.size
            self.flying.append(batch)

    @rule(key=_KEYS, length=st.integers(1, 1200), keys=st.none() | st.lists(st.text("ab", min_size=1, max_size=3), max_size=2))
    def add(self, key, length, keys):
        held = self.accumulator.held_bytes
        size = OVERHEAD + length
        if keys is None:
            outcome = put_plain(self.accumulator, b"x" * length, self.next_member, key=key)
        else:
            outcome = put(self.accumulator, b"x" * length, self.next_member, key=key, keys=keys)
        assert (outcome == ALONE) == (size > self.LIMIT or held + size > self.TOTAL)
        if outcome != ALONE:
            self.expected.setdefault(key, []).append((self.next_member, size))
        self.next_member += 1
        if outcome == STAYS:
            assert self.accumulator.take() is None
        self.collect()
        if outcome == ALONE:
            assert not self.expected.get(key)

    @rule(key=_KEYS, size=st.integers(1, 1200))
    def lone(self, key, size):
        idle = not self.expected.get(key) and key not in [k for k, _ in self.lonely] and key not in [b.key for b in self.flying]
        fits = size <= self.LIMIT and self.accumulator.held_bytes + size <= self.TOTAL
        taken = self.accumulator.lone(key, size)
        assert taken == (self.adaptive and idle and fits)
        if taken:
            self.lonely.append((key, size))
            self.next_member += 1

    @precondition(lambda self: self.lonely)
    @rule()
    def a_lone_message_is_answered_or_fails(self):
        self.accumulator.lone_done(*self.lonely.pop())
        self.collect()

    @rule(key=_KEYS)
    def alone(self, key):
        self.accumulator.alone(key)
        self.collect()
        assert not self.expected.get(key)

    @rule(ms=st.integers(0, 12))
    def time_passes(self, ms):
        self.clock.advance(ms / 1000)
        self.accumulator.expire()
        self.collect()
        due = self.accumulator.next_due()
        assert (due is None) == (not any(self.expected.values()))
        assert due is None or due > self.clock.monotonic()

    @rule()
    def turn_ends(self):
        self.accumulator.end_turn()
        self.collect()
        if self.adaptive:
            flying = {batch.key for batch in self.flying} | {key for key, _ in self.lonely}
            assert all(key in flying for key, entries in self.expected.items() if entries)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def a_batch_is_answered_or_fails(self, data):
        batch = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        self.accumulator.done(batch)
        self.collect()

    @rule()
    def flush(self):
        self.accumulator.flush()
        self.collect()
        assert not any(self.expected.values())

    @invariant()
    def held_bytes_are_those_of_messages_that_wait_or_are_on_their_way(self):
        flying = sum(batch.size for batch in self.flying) + sum(size for _, size in self.lonely)
        assert self.accumulator.held_bytes == self.waiting() + flying <= self.TOTAL

    def teardown(self):
        self.flush()
        while self.flying:
            self.accumulator.done(self.flying.pop())
        while self.lonely:
            self.accumulator.lone_done(*self.lonely.pop())
        assert self.accumulator.held_bytes == 0
        assert self.accumulator.next_due() is None
        assert self.accumulator._flying == self.accumulator.open == {}
        stats = self.accumulator.stats()
        assert Counter(dict(stats.histogram)).total() == stats.batches
        assert stats.messages + stats.direct >= self.next_member


class AdaptiveGathering(Gathering):
    def make(self, *, adaptive=True):
        return super().make(adaptive=adaptive)


TestGathering = Gathering.TestCase
TestAdaptiveGathering = AdaptiveGathering.TestCase
TestGathering.settings = TestAdaptiveGathering.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
