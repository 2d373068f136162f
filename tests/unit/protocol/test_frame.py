"""A byte stream cut into commands: any pieces, any order of sizes, bounded memory, foreign protocols recognised."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.command import MAX_FRAME_LENGTH, Command, encode_command
from sprocketmq.protocol.frame import FrameBuffer, FrameError, ReceiveBuffer, describe_foreign

commands = st.builds(
    Command,
    st.integers(0, 400),
    opaque=st.integers(0, 2**31 - 1),
    ext=st.dictionaries(st.text("abc", min_size=1), st.text("xyz", min_size=1), max_size=3),
    body=st.binary(max_size=300),
    serialize=st.sampled_from([0, 1]),
)


def summary(found: list[Command]) -> list[tuple[object, ...]]:
    return [(c.code, c.opaque, c.ext, bytes(c.body)) for c in found]


@given(st.lists(commands, max_size=6), st.lists(st.integers(1, 400), min_size=1, max_size=20), st.integers(16, 600))
def test_any_cut_of_the_stream_gives_the_same_commands(sent, sizes, capacity):
    stream = b"".join(map(encode_command, sent))
    buffer = FrameBuffer(ReceiveBuffer(capacity))
    seen = []
    pos = turn = 0
    while pos < len(stream):
        size = sizes[turn % len(sizes)]
        seen += buffer.feed(stream[pos : pos + size])
        pos += size
        turn += 1
    assert summary(seen) == summary(sent)
    assert buffer.pending == 0


@given(st.lists(commands, min_size=1, max_size=6), st.integers(16, 600))
def test_received_in_place_gives_the_same_commands(sent, capacity):
    stream = b"".join(map(encode_command, sent))
    buffer = FrameBuffer(ReceiveBuffer(capacity))
    seen = []
    pos = 0
    while pos < len(stream):
        space = buffer.get_buffer()
        count = min(len(space), len(stream) - pos)
        assert count > 0
        space[:count] = stream[pos : pos + count]
        seen += summary(buffer.received(count))
        pos += count
    assert seen == summary(sent)


def test_fed_bodies_are_copies():
    buffer = FrameBuffer()
    (first,) = buffer.feed(encode_command(Command(1, body=b"first")))
    buffer.feed(encode_command(Command(2, body=b"other")))
    assert first.body == b"first"


def test_an_incomplete_frame_waits():
    frame = encode_command(Command(1, body=b"abc"))
    buffer = FrameBuffer()
    assert buffer.feed(frame[:-1]) == []
    assert buffer.pending == len(frame) - 1
    assert summary(buffer.feed(frame[-1:])) == [(1, 0, {}, b"abc")]
    assert buffer.pending == 0


@pytest.mark.parametrize("length", [0, 1, 3, -1, MAX_FRAME_LENGTH + 1, 1 << 24 | 1, 2**31 - 1, -(2**31)])
def test_an_impossible_length_is_refused_at_once(length):
    with pytest.raises(FrameError, match="frame length"):
        FrameBuffer().feed(struct.pack(">i", length))


def test_the_largest_length_is_accepted_and_allocates_nothing_before_bytes_come():
    buffer = FrameBuffer(ReceiveBuffer(1024))
    assert buffer.feed(struct.pack(">iI", MAX_FRAME_LENGTH, 200) + b"\0" * 100) == []
    assert len(buffer.get_buffer()) < 2048


@pytest.mark.parametrize(("length", "header"), [(1000, 0), (1000, 997), (1000, 0xFFFFFF), (4, 1)])
def test_what_cannot_begin_a_frame_is_refused_before_the_rest_comes(length, header):
    with pytest.raises(FrameError, match="header length"):
        FrameBuffer().feed(struct.pack(">iI", length, header) + b"{")


def test_a_large_frame_grows_the_buffer_and_gives_the_memory_back():
    buffer = FrameBuffer(ReceiveBuffer(1024))
    frame = encode_command(Command(1, body=bytes(100_000)))
    (command,) = buffer.feed(frame)
    assert len(command.body) == 100_000
    assert len(buffer.get_buffer()) == 1024


def test_commands_before_a_bad_frame_are_handed_over_with_the_error():
    good = encode_command(Command(7, body=b"kept"))
    with pytest.raises(FrameError) as caught:
        FrameBuffer().feed(good + good + struct.pack(">i", 0))
    assert summary(caught.value.commands) == [(7, 0, {}, b"kept")] * 2


def test_commands_of_earlier_pieces_come_once():
    buffer = FrameBuffer(ReceiveBuffer(64))
    good = encode_command(Command(7, body=b"kept"))
    with pytest.raises(FrameError) as caught:
        buffer.feed(good * 3 + struct.pack(">i", -5))
    assert len(caught.value.commands) == 3


def test_a_header_that_does_not_parse_is_a_frame_error():
    with pytest.raises(FrameError, match="JSON header") as caught:
        FrameBuffer().feed(struct.pack(">II", 6, 2) + b"[]")
    assert isinstance(caught.value, RemoteProtocolError)
    assert caught.value.commands == []


@pytest.mark.parametrize(
    ("first", "name"),
    [
        (b"GET / HTTP/1.1\r\n", "an HTTP request"),
        (b"POST /x HTTP/1.1\r\n", "an HTTP request"),
        (b"HTTP/1.1 400 Bad Request\r\n", "an HTTP response"),
        (b"PRI * HTTP/2.0\r\n", "an HTTP/2 (gRPC) request"),
        (b"SSH-2.0-x\r\n", "an SSH banner"),
        (b"\x16\x03\x01\x02\x00\x01", "a TLS handshake"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "a TLS alert"),
        (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00", "an HTTP/2 (gRPC) server"),
    ],
)
def test_foreign_protocols_are_named(first, name):
    assert describe_foreign(first) == name
    with pytest.raises(FrameError) as caught:
        FrameBuffer().feed(first + bytes(2000))
    assert caught.value.looks_like == name


def test_our_own_frames_look_like_nothing_foreign():
    for serialize in (0, 1):
        assert describe_foreign(encode_command(Command(1, serialize=serialize))[:9]) == ""


def test_a_long_frame_takes_its_buffer_from_the_last_one_and_patience_ends_that():
    receive = ReceiveBuffer(1024, patience=3)
    buffer = FrameBuffer(receive)
    long = encode_command(Command(1, body=b"x" * 5000))
    for _ in range(5):
        assert len(buffer.feed(long)) == 1
        assert receive.spare_bytes == len(long)
    for _ in range(3):
        assert receive.spare_bytes
        assert len(buffer.feed(encode_command(Command(1)))) == 1
    buffer.get_buffer()
    assert receive.spare_bytes == 0


def test_without_patience_no_buffer_of_a_long_frame_is_kept():
    receive = ReceiveBuffer(1024)
    assert len(FrameBuffer(receive).feed(encode_command(Command(1, body=bytes(5000))))) == 1
    assert receive.spare_bytes == 0


RETAINED_LIMIT = 16 << 10


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(encode_command(Command(1, body=bytes(4 << 20))), id="a frame of 4 MiB"),
        pytest.param(encode_command(Command(1, body=bytes(1000))) * 5000, id="many small frames"),
        pytest.param(encode_command(Command(1, body=bytes(1000))) * 5000 + encode_command(Command(1, body=bytes(1000)))[:900], id="a rest"),
    ],
)
@pytest.mark.parametrize("patience", [0, 64])
def test_between_two_reads_a_connection_keeps_only_its_incomplete_frame(stream, patience):
    receive = ReceiveBuffer(patience=patience)
    connections = [FrameBuffer(receive) for _ in range(20)]
    for buffer in connections:
        buffer.feed(stream)
    assert all(buffer.retained_bytes <= min(RETAINED_LIMIT, len(stream)) for buffer in connections)
    assert receive.spare_bytes <= MAX_FRAME_LENGTH + 4


@pytest.mark.parametrize("arrived", [100, 30_000, 40_000, 300_000, 2_000_000])
def test_half_a_frame_costs_a_few_times_what_arrived_of_it(arrived):
    buffer = FrameBuffer(ReceiveBuffer())
    buffer.feed(encode_command(Command(1, body=bytes(8 << 20)))[:arrived])
    assert buffer.pending == arrived
    assert arrived <= buffer.retained_bytes <= 4 * arrived


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400)), min_size=1, max_size=60),
    st.lists(st.lists(commands, min_size=1, max_size=4), min_size=3, max_size=3),
    st.integers(16, 600),
)
def test_connections_that_take_turns_in_one_buffer_do_not_disturb_each_other(turns, sent, capacity):
    receive = ReceiveBuffer(capacity, patience=2)
    buffers = [FrameBuffer(receive) for _ in sent]
    streams = [b"".join(map(encode_command, each)) for each in sent]
    taken = [0] * len(sent)
    seen = [[] for _ in sent]
    for who, size in [*turns, *((one, 100_000) for one, stream in enumerate(streams) for _ in stream)]:
        rest = streams[who][taken[who] : taken[who] + size]
        space = buffers[who].get_buffer()
        count = min(len(space), len(rest))
        space[:count] = rest[:count]
        seen[who] += summary(buffers[who].received(count))
        taken[who] += count
    assert seen == [summary(each) for each in sent]
