"""Message ids: unique whatever the clock does, readable by others."""

import contextlib
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.clock import ManualClock
from sprocketmq.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from sprocketmq.protocol.ids import MessageIdFactory, month_start_ms, offset_msg_id, parse_offset_msg_id, parse_uniq_key
from sprocketmq.protocol.records import pack_host

# Noon of the 17th, so that no time zone is near a month's border.
NOON = 1_700_222_400_000

addresses = st.ip_addresses().map(str)


@pytest.fixture
def clock():
    return ManualClock(NOON)


# --- client ids ---------------------------------------------------------------------------------------------------------


def test_an_id_holds_address_process_time_and_counter(clock):
    ids = MessageIdFactory("192.0.2.2", 0x15F95, clock)
    assert parse_uniq_key(ids.next(), now_ms=NOON + 1) == ("192.0.2.2", 0x5F95, NOON, 1)
    clock.advance(2.5)
    assert parse_uniq_key(ids.next(), now_ms=NOON + 5000) == ("192.0.2.2", 0x5F95, NOON + 2500, 2)


def test_the_reference_example_reads_as_documented():
    ip, pid, time_ms, counter = parse_uniq_key("C00002025F9530946E09679C8AA40012", now_ms=1_795_229_360_000)
    assert (ip, pid, counter) == ("192.0.2.2", 0x5F95, 0x12)
    assert time_ms is not None
    assert time_ms - month_start_ms(time_ms) == 0x679C8AA4


def test_ids_are_upper_case_hex_of_16_or_28_bytes():
    for ip, length in (("192.0.2.2", 32), ("fd00::2", 56), ("fe80::1%eth0", 56)):
        text = MessageIdFactory(ip, 1).next()
        assert len(text) == length
        assert set(text) <= set("0123456789ABCDEF")


def test_the_byte_layout_is_the_rulers(clock):
    text = MessageIdFactory("192.0.2.2", 7, clock).next()
    assert text[:12] == "C00002020007"
    assert int(text[20:28], 16) == NOON - month_start_ms(NOON)
    assert text[28:] == "0001"


@given(addresses, st.integers(0, 65535))
def test_any_address_and_process_can_be_read_back(ip, pid):
    found_ip, found_pid, _, counter = parse_uniq_key(MessageIdFactory(ip, pid).next())
    assert pack_host(found_ip, 0) == pack_host(ip, 0)
    assert (found_pid, counter) == (pid, 1)


def test_without_an_address_or_a_process_they_are_random():
    assert MessageIdFactory().next()[:20] != MessageIdFactory().next()[:20]


def test_what_is_no_address_is_refused():
    with pytest.raises(LocalProtocolError, match="not an IP address"):
        MessageIdFactory("localhost")


def test_ids_stay_unique_when_the_counter_wraps_within_a_millisecond(clock):
    ids = MessageIdFactory("192.0.2.2", 1, clock)
    made = [ids.next() for _ in range(70_000)] + list(ids.take(140_000))
    assert len(set(made)) == len(made) == 210_000


def test_ids_stay_unique_when_the_clock_goes_back(clock):
    ids = MessageIdFactory("192.0.2.2", 1, clock)
    made = set()
    for _ in range(5):
        made.update(ids.take(60_000))
        clock.advance(0.001)
        made.update(ids.take(30_000))
        clock.jump_wall(-0.002)
    assert len(made) == 450_000


def test_taking_many_is_the_same_as_taking_one_by_one(clock):
    ids = MessageIdFactory("192.0.2.2", 1, clock)
    taken = [ids.next(), *ids.take(3), ids.next()]
    assert [parse_uniq_key(i, now_ms=NOON + 1)[3] for i in taken] == [1, 2, 3, 4, 5]
    assert list(ids.take(0)) == []


@pytest.mark.parametrize("before", [0, 250, 65_530])
def test_ids_taken_together_are_read_in_every_way(clock, before):
    ids = MessageIdFactory("192.0.2.2", 1, clock)
    ids.take(before)
    taken = ids.take(300)
    texts = list(taken)
    assert len(taken) == len(set(texts)) == 300
    assert [taken[i] for i in range(300)] == texts
    assert (taken[-1], taken[-300], taken[3:7], taken[::-50]) == (texts[-1], texts[0], texts[3:7], texts[::-50])
    assert [beginning + end for beginning, ends in taken.pieces() for end in ends] == [f"{text}\x02".encode() for text in texts]
    assert sorted(texts) == texts, "in order, also where the counter wraps"
    for outside in (300, -301):
        with pytest.raises(IndexError, match="of 300"):
            taken[outside]


def test_ids_taken_by_threads_at_the_same_time_differ(clock):
    ids = MessageIdFactory("192.0.2.2", 1, clock)
    numbers = iter([5, 7, 8, 300])  # as the counter gives them out when another thread comes between
    ids._count = numbers
    assert [parse_uniq_key(i, now_ms=NOON + 1)[3] for i in ids.take(4)] == [5, 7, 8, 300]


def test_a_reset_factory_makes_different_ids(clock):
    ids = MessageIdFactory("192.0.2.2", 1, clock)
    before = ids.next()
    ids.reset(1)
    after = ids.next()
    assert before[:12] == after[:12]
    assert before[12:20] != after[12:20]


def test_threads_never_get_the_same_id():
    ids = MessageIdFactory("192.0.2.2", 1)
    made: list[str] = []

    def work() -> None:
        made.extend([ids.next() for _ in range(5000)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 20_000


def test_a_new_month_starts_the_span_again(clock):
    ids = MessageIdFactory("192.0.2.2", 1, clock)
    for _ in range(3):
        clock.advance(31 * 86_400)
        now = clock.time_ms()
        text = ids.next()
        assert int(text[20:28], 16) == now - month_start_ms(now)
        assert parse_uniq_key(text, now_ms=now + 1)[2] == now


def test_an_id_of_last_month_is_placed_there(clock):
    made = MessageIdFactory("192.0.2.2", 1, clock).next()
    later = month_start_ms(NOON + 31 * 86_400_000) + 3_600_000
    assert parse_uniq_key(made, now_ms=later)[2] == NOON


def test_a_span_longer_than_a_month_is_no_time():
    assert parse_uniq_key("C00002025F9530946E09FFFFFFFF0012")[2] is None


def test_a_month_starts_at_local_midnight():
    local = time.localtime(month_start_ms(NOON) / 1000)
    assert (local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec) == (1, 0, 0, 0)


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "0" * 55, "g" * 32, "0" * 30 + " 0", "٣" * 32, "0 " * 16])
def test_text_that_is_no_id_is_refused(text):
    with pytest.raises(RemoteProtocolError, match="hex digits"):
        parse_uniq_key(text)
    with pytest.raises(RemoteProtocolError, match="hex digits"):
        parse_offset_msg_id(text)


@given(st.text(max_size=60))
def test_arbitrary_text_gives_an_id_or_a_protocol_error(text):
    for parse in (parse_uniq_key, parse_offset_msg_id):
        with contextlib.suppress(ProtocolError):
            parse(text)


# --- broker ids ---------------------------------------------------------------------------------------------------------


def test_the_reference_offset_id_reads_as_documented():
    assert parse_offset_msg_id("7F00000100006D070000000000000653") == ("127.0.0.1", 27911, 0x653)
    assert offset_msg_id(pack_host("127.0.0.1", 27911), 0x653) == "7F00000100006D070000000000000653"


@given(addresses, st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_an_offset_id_parses_to_what_it_was_made_of(ip, port, physical):
    text = offset_msg_id(pack_host(ip, port), physical)
    found_ip, found_port, found = parse_offset_msg_id(text)
    assert (pack_host(found_ip, 0), found_port, found) == (pack_host(ip, 0), port, physical)


@pytest.mark.parametrize(
    "text", ["7F000001" + "00010000" + "0" * 16, "7F000001" + "FFFFFFFF" + "0" * 16, "7F000001" + "00006D07" + "F" * 16]
)
def test_an_impossible_port_or_offset_is_refused(text):
    with pytest.raises(RemoteProtocolError, match="not an offset message id"):
        parse_offset_msg_id(text)


def test_a_host_of_another_length_is_refused():
    with pytest.raises(LocalProtocolError, match="8 or 20"):
        offset_msg_id(b"1234", 0)
