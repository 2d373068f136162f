from collections import Counter, deque
from types import MappingProxyType

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sprocketmq.client.send.accumulator import QUEUED, SEND_AT_ONCE, SEND_SINGLY, WAKE, Accumulator
from sprocketmq.client.send.batching import Batching
from sprocketmq.client.send.encoding import MAX_MERGED_KEYS_BYTES, MessageEncoder
from sprocketmq.clock import ManualClock
from sprocketmq.errors import ConfigError, InvalidMessage, InvalidName
from sprocketmq.protocol.batch import split_batch
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.layout import BATCH_ENTRY_OVERHEAD
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.protocol.names import check_send_topic
from sprocketmq.protocol.properties import decode_properties

KEY = ("t", None, True, None)
ENCODER = MessageEncoder(MessageIdFactory("127.0.0.1", 1), max_message_bytes=4 << 20, compression=None, compress_over_bytes=4096)
OVERHEAD = 22 + len(b"WAIT\x01true\x02UNIQ_KEY\x01\x02") + 32


def check(topic, queue):
    check_send_topic(topic)


def gathering(clock=None, *, max_message_bytes=4 << 20, **options):
    return Accumulator(Batching(**options), clock or ManualClock(), ENCODER, check, max_message_bytes=max_message_bytes)


def message_of(body, key, **fields):
    topic, tag, wait_store_ok, queue = key
    return Message(topic, body, tag=tag, wait_store_ok=wait_store_ok, queue=queue, **fields)


def put(accumulator, body=b"x", member="m", *, key=KEY, **fields):
    return accumulator.add(message_of(body, key, **fields), member)


def entry(message, uniq_key):
    """Return a message as the encoder makes an entry of it, with its id."""
    _, head, body, prefix, _ = ENCODER.entry(message)
    return b"".join([head, body, prefix, uniq_key.encode(), b"\x02"])


def taken(accumulator):
    batches = []
    while (batch := accumulator.take()) is not None:
        batches.append(batch)
    return batches


# --- configuration ------------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_reference():
    assert Batching() == Batching(max_bytes=None, max_delay_ms=10, total_max_bytes=33554432, adaptive=False)


@pytest.mark.parametrize(
    "options", [{"max_bytes": 1}, {"max_bytes": 2 << 20}, {"max_delay_ms": 1}, {"max_delay_ms": 30_000}, {"total_max_bytes": 1}]
)
def test_values_at_the_bounds_are_taken(options):
    assert Batching(**options)


@pytest.mark.parametrize("name", ["max_bytes", "max_delay_ms", "total_max_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "10", True])
def test_a_value_that_cannot_be_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=name):
        Batching(**{name: value})


@pytest.mark.parametrize("options", [{"max_bytes": (2 << 20) + 1}, {"max_delay_ms": 30_001}])
def test_a_value_over_its_bound_is_refused(options):
    with pytest.raises(ConfigError, match="from 1 to"):
        Batching(**options)


# --- when batches leave -------------------------------------------------------------------------------------------------


def test_the_first_message_of_a_batch_wakes_the_caller_and_the_others_do_not():
    accumulator = gathering()
    assert [put(accumulator) for _ in range(3)] == [WAKE, QUEUED, QUEUED]
    assert accumulator.take() is None


def test_a_batch_like_the_one_that_left_last_is_opened_in_its_own_time():
    clock = ManualClock()
    accumulator = gathering(clock, max_delay_ms=10)
    for name in "aa":
        put(accumulator, member=name)
    accumulator.flush()
    clock.advance(1)
    assert [put(accumulator, member=name) for name in "bc"] == [WAKE, QUEUED]
    assert accumulator.next_due() == clock.monotonic() + 0.01
    accumulator.flush()
    batches = taken(accumulator)
    assert [batch.members for batch in batches] == [["a", "a"], ["b", "c"]]
    assert [len(batch.encode(some_ids(len(batch.members)))) for batch in batches] == [batch.size for batch in batches]


def test_a_key_has_one_open_batch():
    accumulator = gathering()
    for name in "aa":
        put(accumulator, member=name)
    accumulator.flush()
    put(accumulator, member="b", flag=1)
    put(accumulator, member="c")
    accumulator.flush()
    assert [batch.members for batch in taken(accumulator)] == [["a", "a"], ["b", "c"]]


def test_a_chosen_queue_is_checked_again_for_each_batch_as_routes_change():
    checked = []
    queue = MessageQueue("t", "a", 0)
    accumulator = Accumulator(
        Batching(), ManualClock(), ENCODER, lambda topic, queue: checked.append((topic, queue)), max_message_bytes=1 << 20
    )
    for _ in range(2):
        for _ in range(3):
            put(accumulator, key=("t", None, True, queue))
        accumulator.flush()
    assert checked == [("t", queue)] * 2


@pytest.mark.parametrize("tag", [None, "TagA"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"keys": ["order-1"]},
        {"keys": ("Bestellung-ä",)},
        {"keys": "order-1"},
        {"keys": ["two", "keys"]},
        {"keys": {"set"}},
        {"flag": 7},
        {"properties": {"region": "eu"}},
        {"properties": {"region": "eu"}, "keys": ["k"]},
        {"wait_store_ok": False, "keys": ["k"]},
    ],
)
def test_each_message_of_a_batch_is_what_the_encoder_makes_of_it(tag, fields):
    accumulator = gathering()
    messages = [Message("t", body, tag=tag, **fields) for body in (b"one", b"two\x02\n", b"three")]
    for message in messages:
        accumulator.add(message, "m")
    accumulator.flush()
    batch, ids = accumulator.take(), some_ids(3)
    data = batch.encode(ids)
    assert data == b"".join(map(entry, messages, ids))
    assert len(data) == batch.size
    keys = fields.get("keys", ())
    assert list(batch.merged_keys) == ([keys] if isinstance(keys, str) else list(keys))


@pytest.mark.parametrize("order", [1, -1])
def test_messages_with_and_without_keys_and_properties_share_a_batch(order):
    kinds = [
        {},
        {"keys": ["k1"]},
        {"properties": {"region": "eu", "city": "ä"}},
        {"properties": {"region": ""}},
        {"properties": {"region": "us"}, "keys": "k2"},
        {"flag": 7, "properties": {"region": "eu"}},
        {"properties": MappingProxyType({"region": "eu"}), "keys": ["k3", "k4"]},
        {"properties": {"region": "x" * 32_000}},
    ]
    accumulator = gathering(max_bytes=1 << 20)
    messages = [Message("t", b"%d" % i * i, tag="a", **fields) for i in (1, 2) for fields in kinds][::order]
    for message in messages:
        accumulator.add(message, "m")
    accumulator.flush()
    batch, ids = accumulator.take(), some_ids(16)
    size, bodies = batch.size, batch.body_bytes
    data = batch.encode(ids)
    assert data == b"".join(map(entry, messages, ids))
    assert (len(data), bodies) == (size, sum(len(message.body) for message in messages))
    assert set(batch.merged_keys) == {"k1", "k2", "k3", "k4"}


@pytest.mark.parametrize("value", ["a\x02b", "\x01", "\udc80", 7, None, "x" * 40_000])
def test_a_bad_property_is_refused_also_when_its_name_was_good_before(value):
    accumulator = gathering(max_bytes=1 << 20)
    for _ in range(3):
        put(accumulator, properties={"region": "eu"})
    held = accumulator.held_bytes
    with pytest.raises(InvalidMessage):
        put(accumulator, properties={"region": value})
    with pytest.raises(InvalidMessage, match="belongs to RocketMQ"):
        put(accumulator, properties={"region": "eu", "TAGS": "a"})
    assert accumulator.held_bytes == held


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"keys": ["a b"]}, InvalidMessage),
        ({"keys": ["tab\t"]}, InvalidMessage),
        ({"keys": [""]}, InvalidMessage),
        ({"keys": [7]}, InvalidMessage),
        ({"keys": ["\udc80"]}, InvalidMessage),
        ({"keys": 7}, InvalidMessage),
        ({"flag": 1 << 40}, InvalidMessage),
        ({"topic": "a b"}, InvalidName),
        ({"topic": ["t"]}, InvalidName),
        ({"tag": "a||b"}, InvalidName),
        ({"body": b""}, InvalidMessage),
    ],
)
def test_a_bad_message_is_refused_and_changes_nothing(fields, error):
    accumulator = gathering(max_bytes=1 << 20)
    for _ in range(2):
        put(accumulator)
    held = accumulator.held_bytes
    with pytest.raises(error):
        accumulator.add(Message(**{"topic": "t", "body": b"x"} | fields), "m")
    assert accumulator.held_bytes == held
    accumulator.flush()
    assert [batch.members for batch in taken(accumulator)] == [["m", "m"]]


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


def gathered(accumulator, amount, *, key=KEY):
    """Add ``amount`` KiB in messages of 1 KiB each, and return the batches that left."""
    for _ in range(amount):
        put(accumulator, bytes(1024 - OVERHEAD), key=key)
    return taken(accumulator)


def test_without_a_limit_of_ones_own_batches_grow_to_half_of_what_is_unanswered_of_their_key():
    accumulator = gathering()
    first = gathered(accumulator, 32)
    assert [batch.size for batch in first] == [32 << 10]
    assert [batch.size >> 10 for batch in gathered(accumulator, 1242)] == [32, 32, 48, 72, 108, 162, 243, 256, 256]


def test_without_a_limit_of_ones_own_batches_grow_to_a_sixteenth_of_all_that_is_unanswered():
    accumulator = gathering()
    sixteenth = sum(batch.size for batch in gathered(accumulator, 1000)) >> 14
    assert sixteenth > 32
    other = ("other", None, True, None)
    assert [batch.size >> 10 for batch in gathered(accumulator, sixteenth, key=other)] == [sixteenth]


def busy(accumulator, count):
    """Let ``count`` batches of one message each be unanswered, and return them."""
    for number in range(count):
        put(accumulator, key=(f"busy-{number}", None, True, None))
    accumulator.flush()
    return taken(accumulator)


def test_a_batch_that_is_due_waits_while_32_are_unanswered_and_leaves_with_an_answer():
    clock = ManualClock()
    accumulator = gathering(clock)
    first, *_ = busy(accumulator, 32)
    put(accumulator)
    clock.advance(0.01)
    accumulator.expire()
    put(accumulator)
    assert accumulator.take() is None
    assert not accumulator.eager
    accumulator.done(first)
    assert accumulator.eager
    accumulator.end_turn()
    assert [len(batch.members) for batch in taken(accumulator)] == [2]
    assert not accumulator.eager


def test_each_answer_lets_the_batch_leave_that_has_waited_longest():
    clock = ManualClock()
    accumulator = gathering(clock)
    first, second, *_ = busy(accumulator, 32)
    for topic in "abc":
        put(accumulator, key=(topic, None, True, None))
    clock.advance(0.01)
    accumulator.expire()
    assert accumulator.take() is None
    for answered, topic in ((first, "a"), (second, "b")):
        accumulator.done(answered)
        accumulator.end_turn()
        assert [batch.topic for batch in taken(accumulator)] == [topic]
        assert not accumulator.eager


def test_a_batch_that_waits_for_an_answer_leaves_without_one_after_four_delays():
    clock = ManualClock()
    accumulator = gathering(clock)
    busy(accumulator, 32)
    put(accumulator)
    began = clock.monotonic()
    for due in (0.01, 0.02, 0.03):
        clock.advance(accumulator.next_due() - clock.monotonic())
        assert clock.monotonic() - began == pytest.approx(due)
        accumulator.expire()
        assert accumulator.take() is None
    clock.advance(accumulator.next_due() - clock.monotonic() + 1e-9)
    accumulator.expire()
    assert len(taken(accumulator)) == 1


def test_a_batch_that_is_opened_while_another_waits_for_an_answer_is_due_in_time():
    clock = ManualClock()
    accumulator = gathering(clock)
    busy(accumulator, 32)
    put(accumulator)
    clock.advance(0.01)
    accumulator.expire()
    clock.advance(0.005)
    put(accumulator, key=("other", None, True, None))
    assert accumulator.next_due() <= clock.monotonic() + 0.01


def test_batches_with_a_limit_wait_for_no_answer():
    clock = ManualClock()
    accumulator = gathering(clock, max_bytes=32 << 10)
    busy(accumulator, 32)
    put(accumulator)
    clock.advance(0.01)
    accumulator.expire()
    assert len(taken(accumulator)) == 1


def test_senders_that_wait_for_their_answers_do_not_all_wait_for_one_batch():
    accumulator = gathering()
    in_flight = deque(gathered(accumulator, 256))
    for _ in range(100):  # who was answered sends again
        batch = in_flight.popleft()
        accumulator.done(batch)
        in_flight += gathered(accumulator, len(batch.members))
        assert max(one.size for one in in_flight) <= 128 << 10


def test_batches_are_small_again_when_all_is_answered():
    accumulator = gathering()
    for batch in gathered(accumulator, 512):
        accumulator.done(batch)
    accumulator.flush()
    for batch in taken(accumulator):
        accumulator.done(batch)
    assert [batch.size >> 10 for batch in gathered(accumulator, 32)] == [32]


@pytest.mark.parametrize("options", [{"max_bytes": 32 << 10}, {"max_message_bytes": 32 << 10}])
def test_batches_with_a_limit_do_not_grow(options):
    assert {batch.size >> 10 for batch in gathered(gathering(**options), 512)} == {32}


def test_a_batch_without_room_for_another_like_its_last_leaves_at_once():
    accumulator = gathering(max_bytes=3 * (OVERHEAD + 100))
    assert [put(accumulator, b"x" * 100) for _ in range(4)] == [WAKE, QUEUED, WAKE, WAKE]
    assert [len(batch.members) for batch in taken(accumulator)] == [3]


def test_a_message_as_large_as_a_batch_may_be_fills_one_and_one_larger_goes_alone():
    accumulator = gathering(max_bytes=OVERHEAD + 10)
    assert put(accumulator, b"x" * 10) == WAKE
    assert [batch.size for batch in taken(accumulator)] == [OVERHEAD + 10]
    assert put(accumulator, b"x" * 11) == SEND_SINGLY
    assert accumulator.take() is None


def test_a_batch_is_bounded_by_the_size_of_a_message_too():
    accumulator = gathering(max_bytes=2000, max_message_bytes=OVERHEAD + 100)
    assert put(accumulator, b"x" * 101) == SEND_SINGLY
    assert put(accumulator, b"x" * 100) == WAKE
    assert len(taken(accumulator)) == 1


def test_what_was_gathered_before_a_message_that_goes_alone_leaves_before_it():
    accumulator = gathering(max_bytes=1000)
    put(accumulator, member="first")
    assert put(accumulator, b"x" * 2000, "large") == SEND_SINGLY
    assert [batch.members for batch in taken(accumulator)] == [["first"]]
    put(accumulator, member="second")
    assert put(accumulator, delay_level=3) == SEND_SINGLY
    assert [batch.members for batch in taken(accumulator)] == [["second"]]
    assert put(accumulator, deliver_at_ms=1) == SEND_SINGLY
    assert put(accumulator, key=("%RETRY%g", None, True, None)) == SEND_SINGLY
    assert accumulator.take() is None
    assert accumulator.stats().direct == 4


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
    assert [put(accumulator, b"x" * 100) for _ in range(4)] == [WAKE, WAKE, WAKE, SEND_SINGLY]
    first, second = taken(accumulator)
    assert accumulator.held_bytes == 3 * size
    assert put(accumulator, b"x" * 100) == SEND_SINGLY
    accumulator.done(first)
    assert put(accumulator, b"x" * 100) == WAKE
    accumulator.done(second)
    assert accumulator.held_bytes == size


def test_a_total_smaller_than_any_message_batches_nothing_and_holds_nothing():
    accumulator = gathering(total_max_bytes=1)
    assert put(accumulator) == SEND_SINGLY
    assert (accumulator.held_bytes, accumulator.next_due()) == (0, None)


# --- keys ---------------------------------------------------------------------------------------------------------------


def test_the_keys_of_all_messages_are_merged_each_once():
    accumulator = gathering()
    for keys in (["a", "b"], [], ["b", "c"]):
        put(accumulator, keys=keys)
    accumulator.flush()
    assert list(accumulator.take().merged_keys) == ["a", "b", "c"]


def test_a_batch_whose_keys_are_full_leaves_before_the_next_message_with_keys():
    accumulator = gathering(max_bytes=1 << 20)
    word = "é" * 4000  # 8,000 bytes
    assert [put(accumulator, member=i, keys=[f"{i}{word}"]) for i in range(4)] == [WAKE, QUEUED, QUEUED, WAKE]
    assert [batch.members for batch in taken(accumulator)] == [[0, 1, 2]]


def test_a_message_with_more_keys_than_a_batch_can_name_goes_alone():
    accumulator = gathering(max_bytes=1 << 20)
    assert put(accumulator, keys=["k" * MAX_MERGED_KEYS_BYTES]) == SEND_SINGLY
    assert put(accumulator, key=("t", "g" * 20_000, True, None), keys=["k" * 10_000]) == SEND_SINGLY
    assert accumulator.held_bytes == 0


# --- what a batch is made of --------------------------------------------------------------------------------------------


def some_ids(amount):
    """Return ids that do not all begin alike: the second is the first of a new row of 256."""
    factory = MessageIdFactory("127.0.0.1", 1)
    factory.take(254)
    return factory.take(amount)


def test_a_batch_is_encoded_in_the_order_of_its_messages_each_with_its_id():
    accumulator = gathering()
    messages = [Message("t", b"one"), Message("t", b"two", keys=["k"]), Message("t", b"three"), Message("t", b"four", flag=1)]
    for message in messages:
        accumulator.add(message, "m")
    accumulator.flush()
    batch, ids = accumulator.take(), some_ids(4)
    data = batch.encode(ids)
    assert data == b"".join(map(entry, messages, ids))
    entries = split_batch(data)
    assert [bytes(one.body) for one in entries] == [b"one", b"two", b"three", b"four"]
    assert [decode_properties(one.properties)["UNIQ_KEY"] for one in entries] == list(ids)
    assert (list(batch.fronts), list(batch.special)) == ([1], [3])


def test_the_only_message_of_a_batch_is_told_apart_with_its_flag_and_properties():
    accumulator = gathering()
    text = f"WAIT\x01true\x02UNIQ_KEY\x01{'A' * 32}\x02"
    cases = (({}, (0, b"x", text)), ({"flag": 7}, (7, b"x", text)), ({"keys": "k"}, (0, b"x", f"KEYS\x01k\x02{text}")))
    for fields, expected in (*cases, *cases):
        put(accumulator, **fields)
        accumulator.flush()
        assert accumulator.take().only("A" * 32) == expected


# --- adaptive mode ------------------------------------------------------------------------------------------------------


def put_first(accumulator, body=b"x", *, key=KEY):
    """Add the first message of a key, which leaves at once, and return it."""
    assert put(accumulator, body, key=key) == SEND_AT_ONCE
    return accumulator.lone(message_of(body, key))


def test_the_first_message_leaves_at_once_and_what_comes_meanwhile_gathers_until_its_answer():
    accumulator = gathering(adaptive=True)
    first = put_first(accumulator)
    assert accumulator.held_bytes == BATCH_ENTRY_OVERHEAD + 1
    assert put(accumulator, member="b") == WAKE
    other = put_first(accumulator, key=("u", None, True, None))
    accumulator.end_turn()
    assert put(accumulator, member="c") == QUEUED
    accumulator.done(other)
    assert not accumulator.eager
    accumulator.done(first)
    assert accumulator.take() is None
    assert accumulator.eager
    put(accumulator, member="answered just now")  # a task may send more in the same turn
    accumulator.end_turn()
    assert not accumulator.eager
    (batch,) = taken(accumulator)
    assert batch.members == ["b", "c", "answered just now"]
    accumulator.done(batch)
    assert accumulator.held_bytes == 0
    put_first(accumulator)
    assert accumulator.stats().histogram == {1: 3, 2: 1}


def test_a_message_for_which_there_is_no_room_is_sent_singly_in_adaptive_mode_too():
    accumulator = gathering(adaptive=True, max_bytes=1000, total_max_bytes=1500)
    assert put(accumulator, b"x" * 1001) == SEND_SINGLY
    put_first(accumulator, b"x" * 900)
    assert put(accumulator, b"x" * 900, key=("u", None, True, None)) == SEND_SINGLY


def test_no_message_leaves_at_once_without_adaptive_mode():
    assert put(gathering()) == WAKE


def test_an_adaptive_batch_does_not_wait_for_an_answer_longer_than_its_delay():
    clock = ManualClock()
    accumulator = gathering(clock, adaptive=True, max_delay_ms=10)
    put_first(accumulator)
    put(accumulator, member="late")
    clock.advance(0.01)
    accumulator.expire()
    assert [batch.members for batch in taken(accumulator)] == [["late"]]


def test_an_adaptive_batch_waits_for_the_last_answer_of_its_key():
    size = OVERHEAD + 1
    accumulator = gathering(adaptive=True, max_bytes=2 * size)
    flying = put_first(accumulator)
    for member in range(5):
        put(accumulator, member=member)
    first, second = taken(accumulator)
    accumulator.done(flying)
    accumulator.end_turn()  # the fifth message gathers: two batches are in flight
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

    @rule(key=_KEYS, length=st.integers(1, 1200), keys=st.lists(st.text("ab", min_size=1, max_size=3), max_size=2), flag=st.integers(0, 1))
    def add(self, key, length, keys, flag):
        held = self.accumulator.held_bytes
        message = message_of(b"x" * length, key, keys=keys, flag=flag)
        size = ENCODER.entry(message)[0]
        idle = not self.expected.get(key) and key not in [batch.key for batch in self.flying]
        added = self.accumulator.add(message, self.next_member)
        fits = size <= self.LIMIT and held + size <= self.TOTAL
        if added is SEND_AT_ONCE:
            assert self.adaptive
            assert idle
            self.flying.append(self.accumulator.lone(message))
        elif added is SEND_SINGLY:
            assert not fits
        else:
            assert fits
            assert not (self.adaptive and idle)
            self.expected.setdefault(key, []).append((self.next_member, size))
        self.next_member += 1
        if added is QUEUED:
            assert self.accumulator.take() is None
        self.collect()
        if added is SEND_SINGLY:
            assert not self.expected.get(key)

    @rule(key=_KEYS)
    def add_delayed(self, key):
        assert put(self.accumulator, key=key, delay_level=1) == SEND_SINGLY
        self.next_member += 1
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
            flying = {batch.key for batch in self.flying}
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
        flying = sum(batch.size for batch in self.flying)
        assert self.accumulator.held_bytes == self.waiting() + flying <= self.TOTAL

    def teardown(self):
        self.flush()
        while self.flying:
            self.accumulator.done(self.flying.pop())
        assert self.accumulator.held_bytes == 0
        assert self.accumulator.next_due() is None
        assert self.accumulator.open == {}
        if self.adaptive:
            for key in self.expected:  # nothing counts as in flight any more
                put_first(self.accumulator, key=key)
        stats = self.accumulator.stats()
        assert Counter(dict(stats.histogram)).total() == stats.batches
        assert stats.messages + stats.direct == self.next_member + (len(self.expected) if self.adaptive else 0)


class AdaptiveGathering(Gathering):
    def make(self, *, adaptive=True):
        return super().make(adaptive=adaptive)


TestGathering = Gathering.TestCase
TestAdaptiveGathering = AdaptiveGathering.TestCase
TestGathering.settings = TestAdaptiveGathering.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
