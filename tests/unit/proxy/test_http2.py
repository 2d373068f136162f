"""HTTP/2 of the gRPC endpoint, frame by frame. h2spec, which tests servers from outside, finds what is in docs/adr/0005."""

import random

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.proxy import frames
from tests.unit.proxy.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    frame,
    number,
    settings,
    window,
)

from sprocketmq.proxy import http2
from sprocketmq.proxy.header_fields import literal_fields
from sprocketmq.proxy.http2 import PREFACE, ConnectionFault, ErrorCode, Session

FIELDS = {":method": "POST", ":scheme": "http", ":path": "/service/method", "te": "trailers", "content-type": "application/grpc"}
ANSWER, TRAILERS = literal_fields((":status", "200")), literal_fields(("grpc-status", "0"))
DEFAULT_WINDOW = 65_535


class Served:
    """A session, what it reports, and an encoder of its client."""

    def __init__(self, *, greeted=True):
        self.session = Session(self)
        self.encoder = hpack.Encoder()
        self.events = []
        self.streams = {}
        self.session.take()
        if greeted:
            self.session.receive(PREFACE + settings())
            self.session.take()

    def opened(self, stream, fields):
        self.streams[stream.id] = stream
        self.events.append(("opened", stream.id, fields, stream.ended))

    def received(self, stream, data):
        self.session.credit(stream, len(data))
        self.events.append(("received", stream.id, data, stream.ended))

    def reset(self, stream):
        self.events.append(("reset", stream.id))

    def drained(self, stream):
        self.events.append(("drained", stream.id))

    def headers(self, stream=1, flags=END_HEADERS, fields=None):
        return frame(HEADERS, flags, stream, self.encoder.encode(frames.fields() if fields is None else fields))

    def open(self, stream=1):
        self.session.receive(self.headers(stream))
        return self.streams[stream]

    def sent(self):
        return frames.parted(self.session.take())

    def fault(self, data):
        with pytest.raises(ConnectionFault) as raised:
            self.session.receive(data)
        return raised.value.code


@pytest.fixture
def served():
    return Served()


def test_it_announces_what_it_takes():
    announced = frames.parted(Session(Served()).take())
    assert [one.kind for one in announced] == [SETTINGS, WINDOW_UPDATE]
    assert len(announced[0].payload) == 4 * 6
    assert announced[1].number() == http2.CONNECTION_WINDOW - DEFAULT_WINDOW


@pytest.mark.parametrize("size", [1, 2, 7, 24, 1000])
def test_a_request_arrives_in_pieces_of_any_size(size):
    served = Served(greeted=False)
    bytes_of_it = PREFACE + settings() + served.headers() + frame(DATA, 0, 1, b"abc") + frame(DATA, END_STREAM, 1, b"de")
    for at in range(0, len(bytes_of_it), size):
        served.session.receive(bytes_of_it[at : at + size])
    assert served.events == [
        ("opened", 1, FIELDS, False),
        ("received", 1, b"abc", False),
        ("received", 1, b"de", True),
    ]
    assert served.session.retained_bytes == 0
    assert [(one.kind, one.flags) for one in served.sent()] == [(SETTINGS, ACK)]


def test_an_answer_with_its_trailers(served):
    stream = served.open()
    served.session.receive(frame(DATA, END_STREAM, 1, b"x"))
    served.session.answer(stream, ANSWER)
    served.session.send(stream, b"hello", TRAILERS)
    sent = served.sent()
    assert [(one.kind, one.flags) for one in sent] == [(HEADERS, END_HEADERS), (DATA, 0), (HEADERS, END_HEADERS | END_STREAM)]
    assert frames.decoded(sent[0].payload) == {":status": "200"}
    assert sent[1].payload == b"hello"
    assert frames.decoded(sent[2].payload) == {"grpc-status": "0"}
    assert not served.session.streams


def test_padding_priorities_and_parts_of_a_header_block(served):
    block = served.encoder.encode(frames.fields())
    padded = bytes((3,)) + bytes(5) + block[:10] + bytes(3)
    served.session.receive(frame(HEADERS, PADDED | WITH_PRIORITY, 1, padded))
    served.session.receive(frame(CONTINUATION, 0, 1, block[10:20]) + frame(CONTINUATION, END_HEADERS, 1, block[20:]))
    served.session.receive(frame(DATA, PADDED | END_STREAM, 1, bytes((2,)) + b"abc" + bytes(2)))
    assert served.events == [("opened", 1, FIELDS, False), ("received", 1, b"abc", True)]


def test_trailers_end_a_request(served):
    served.open()
    served.session.receive(served.headers(flags=END_HEADERS | END_STREAM, fields=[("checksum", "1")]))
    assert served.events[1:] == [("received", 1, b"", True)]


@pytest.mark.parametrize(
    "fields",
    [
        [("te", "trailers"), *frames.fields()],
        [(":path", "/again"), *frames.fields()],
        [(":unknown", "1"), *frames.fields()],
        [one for one in frames.fields() if one[0] != ":method"],
        [one for one in frames.fields() if one[0] != ":scheme"],
        frames.fields(path=""),
        frames.fields(Capital="1"),
        frames.fields(connection="close"),
        [*frames.fields(), ("te", "gzip")],
    ],
)
def test_header_fields_that_no_request_has_refuse_their_stream_alone(served, fields):
    served.session.receive(served.headers(1, fields=fields))
    assert [(one.kind, one.stream, one.number()) for one in served.sent()] == [(RST_STREAM, 1, ErrorCode.PROTOCOL_ERROR)]
    served.session.receive(frame(DATA, END_STREAM, 1, b"was on its way"))
    served.open(3)
    assert served.events == [("opened", 3, FIELDS, False)]


def test_trailers_that_none_are(served):
    for stream, flags, fields in ((1, END_HEADERS, [("a", "b")]), (3, END_HEADERS | END_STREAM, [(":path", "/")])):
        served.open(stream)
        served.session.receive(served.headers(stream, flags, fields))
        assert served.events[-1] == ("reset", stream)
        assert served.sent()[-1].number() == ErrorCode.PROTOCOL_ERROR


def test_a_stream_that_its_client_has_ended_takes_no_more(served):
    for stream, more in ((1, lambda: frame(DATA, 0, 1, b"x")), (3, lambda: served.headers(3, END_HEADERS | END_STREAM))):
        served.session.receive(served.headers(stream, END_HEADERS | END_STREAM) + more())
        assert served.events[-1] == ("reset", stream)
        assert served.sent()[-1].number() == ErrorCode.STREAM_CLOSED


# The other side's faults, which end the connection: frames after a request on stream 1 that is still open.
FAULTS = [
    ("a frame too large", frame(DATA, 0, 1, bytes(http2.MAX_FRAME_BYTES + 1)), ErrorCode.FRAME_SIZE_ERROR),
    ("data on no stream", frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("data on a stream of the server", frame(DATA, 0, 2, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("data on an idle stream", frame(DATA, 0, 5, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("data with too much padding", frame(DATA, PADDED, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
    ("data that should have padding", frame(DATA, PADDED, 1), ErrorCode.PROTOCOL_ERROR),
    ("header fields on no stream", frame(HEADERS, END_HEADERS, 0), ErrorCode.PROTOCOL_ERROR),
    ("header fields on a stream of the server", frame(HEADERS, END_HEADERS, 2), ErrorCode.PROTOCOL_ERROR),
    ("half a priority in a header", frame(HEADERS, END_HEADERS | WITH_PRIORITY, 3, b"123"), ErrorCode.FRAME_SIZE_ERROR),
    ("a header that is no HPACK", frame(HEADERS, END_HEADERS, 3, b"\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
    ("an index of no field", frame(HEADERS, END_HEADERS, 3, b"\x80"), ErrorCode.COMPRESSION_ERROR),
    ("a table too large", frame(HEADERS, END_HEADERS, 3, b"\x3f\xe2\x7f"), ErrorCode.COMPRESSION_ERROR),
    ("an interrupted header", frame(HEADERS, 0, 3) + frame(PING, payload=bytes(8)), ErrorCode.PROTOCOL_ERROR),
    ("a header continued elsewhere", frame(HEADERS, 0, 3) + frame(CONTINUATION, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("empty continuations", frame(HEADERS, 0, 3) + frame(CONTINUATION, 0, 3), ErrorCode.ENHANCE_YOUR_CALM),
    ("a priority of nothing", frame(PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
    ("half a priority", frame(PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
    ("a reset of nothing", frame(RST_STREAM, 0, 0, number(8)), ErrorCode.PROTOCOL_ERROR),
    ("a reset of an idle stream", frame(RST_STREAM, 0, 5, number(8)), ErrorCode.PROTOCOL_ERROR),
    ("half a reset", frame(RST_STREAM, 0, 1, b"x"), ErrorCode.FRAME_SIZE_ERROR),
    ("settings of a stream", frame(SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    ("half a setting", frame(SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    ("an acknowledgement with settings", frame(SETTINGS, ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
    ("a window too large", settings(initial_window_size=1 << 31), ErrorCode.FLOW_CONTROL_ERROR),
    ("frames too small", settings(max_frame_size=1), ErrorCode.PROTOCOL_ERROR),
    ("frames too large", settings(max_frame_size=1 << 24), ErrorCode.PROTOCOL_ERROR),
    ("half a push", settings(enable_push=2), ErrorCode.PROTOCOL_ERROR),
    (
        "windows that become too large",
        window((1 << 31) - 1 - DEFAULT_WINDOW, 1) + settings(initial_window_size=70_000),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    ("a push", frame(PUSH_PROMISE, END_HEADERS, 1, number(2)), ErrorCode.PROTOCOL_ERROR),
    ("a ping of a stream", frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    ("half a ping", frame(PING, payload=bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    ("a farewell of a stream", frame(GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    ("half a farewell", frame(GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    ("no more window", window(0), ErrorCode.PROTOCOL_ERROR),
    ("too much window", window((1 << 31) - 1), ErrorCode.FLOW_CONTROL_ERROR),
    ("half a window", frame(WINDOW_UPDATE, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR),
    ("the window of an idle stream", window(1, 5), ErrorCode.PROTOCOL_ERROR),
]


@pytest.mark.parametrize(("frame_of_it", "code"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_faults_that_end_the_connection(served, frame_of_it, code):
    served.open()
    assert served.fault(frame_of_it) is code


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", PREFACE[:-1] + b"x", b"\0" * 100])
def test_what_is_no_http2(start):
    assert Served(greeted=False).fault(start) is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("first", [frame(PING, payload=bytes(8)), frame(SETTINGS, ACK)])
def test_settings_come_first(first):
    assert Served(greeted=False).fault(PREFACE + first) is ErrorCode.PROTOCOL_ERROR


def test_header_fields_are_bounded(served):
    block = served.encoder.encode([("name", "x" * http2.MAX_HEADER_BYTES)], huffman=False)
    parts = [block[at : at + 4_000] for at in range(0, len(block), 4_000)]
    assert (
        served.fault(frame(HEADERS, 0, 1, parts[0]) + b"".join(frame(CONTINUATION, 0, 1, part) for part in parts[1:]))
        is ErrorCode.ENHANCE_YOUR_CALM
    )
    bomb = Served()
    # The field is sent once, and then named again and again by one byte.
    first = bomb.encoder.encode([("name", "x" * 4_000)], huffman=False)
    again = bomb.encoder.encode([("name", "x" * 4_000)])
    assert bomb.fault(frame(HEADERS, END_HEADERS, 1, first + again * 100)) is ErrorCode.ENHANCE_YOUR_CALM


def test_a_stream_does_not_open_twice(served):
    stream = served.open()
    served.session.receive(frame(DATA, END_STREAM, 1, b""))
    served.session.answer(stream, ANSWER, last=True)
    assert served.fault(served.headers(1)) is ErrorCode.STREAM_CLOSED


def test_what_comes_for_a_stream_that_was_answered_early_is_ignored(served):
    stream = served.open()
    served.session.answer(stream, ANSWER, last=True)
    assert [(one.kind, one.flags) for one in served.sent()] == [(HEADERS, END_HEADERS | END_STREAM), (RST_STREAM, 0)]
    late = frame(DATA, 0, 1, b"late") + window(10, 1) + served.headers(1, END_HEADERS | END_STREAM, [("a", "b")])
    served.session.receive(late + frame(RST_STREAM, 0, 1, number(8)))
    assert [event[0] for event in served.events] == ["opened"]
    assert served.sent() == []


def test_pings_settings_and_frames_of_other_kinds(served):
    served.session.receive(frame(PING, 0, 0, b"abcdefgh") + frame(PING, ACK, 0, bytes(8)) + frame(0xAB, 0xFF, 7, b"whatever"))
    served.session.receive(settings(header_table_size=0, enable_push=0) + frame(PRIORITY, 0, 9, bytes(5)))
    assert [(one.kind, one.flags, one.payload) for one in served.sent()] == [(PING, ACK, b"abcdefgh"), (SETTINGS, ACK, b"")]


# --- flow control ---


def test_data_waits_for_the_stream_and_the_connection(served):
    served.session.receive(settings(initial_window_size=10))
    one, other = served.open(1), served.open(3)
    served.session.take()
    served.session.send(one, b"a" * 25, TRAILERS)
    served.session.send(other, b"b" * 25)
    assert [(f.stream, f.payload) for f in served.sent()] == [(1, b"a" * 10), (3, b"b" * 10)]
    served.session.receive(window(100, 1))
    assert [(f.kind, f.stream, f.payload) for f in served.sent()] == [
        (DATA, 1, b"a" * 15),
        (HEADERS, 1, TRAILERS),
        (RST_STREAM, 1, number(0)),
    ]
    served.session.send(other, b"c")
    assert served.sent() == [], "after what waits already"
    served.session.receive(settings(initial_window_size=13))
    assert [(f.kind, f.payload) for f in served.sent()] == [(SETTINGS, b""), (DATA, b"b" * 3)]
    served.session.receive(settings(initial_window_size=0) + window(12, 3))
    assert [f.kind for f in served.sent()] == [SETTINGS], "13 fewer and 12 more leave nothing"
    served.session.receive(window(14, 3))
    assert [(f.kind, f.payload) for f in served.sent()] == [(DATA, b"b" * 12 + b"c")]
    assert [event for event in served.events if event[0] == "drained"] == [("drained", 1), ("drained", 3)]


def test_streams_take_turns_when_the_connection_is_full(served):
    served.session.receive(settings(initial_window_size=1 << 20))
    one, other = served.open(1), served.open(3)
    served.session.send(one, b"a" * 100_000)
    served.session.send(other, b"b" * 100_000)
    served.session.take()
    served.session.receive(window(40_000))
    assert [(f.stream, len(f.payload)) for f in served.sent()] == [(1, 16_384), (3, 16_384), (1, 7_232)]
    assert one.pending
    assert other.pending


def test_nothing_is_given_out_during_a_pause(served):
    stream = served.open()
    served.session.paused = True
    served.session.send(stream, b"hello")
    served.session.receive(window(10))
    assert served.sent() == []
    served.session.resume()
    assert [f.payload for f in served.sent()] == [b"hello"]


def test_frames_are_no_larger_than_the_client_takes(served):
    served.session.receive(settings(max_frame_size=20_000))
    stream = served.open()
    served.session.take()
    served.session.send(stream, bytes(50_000))
    assert [len(f.payload) for f in served.sent()] == [20_000, 20_000, 10_000]


def test_windows_open_again_as_data_is_taken(served):
    stream = served.open()
    for _ in range(2 * http2.CONNECTION_WINDOW // http2.MAX_FRAME_BYTES):
        served.session.receive(frame(DATA, 0, 1, bytes(http2.MAX_FRAME_BYTES)))
    opened = {0: 0, 1: 0}
    for one in served.sent():
        opened[one.stream] += one.number()
    assert opened == {0: 2 * http2.CONNECTION_WINDOW, 1: 2 * http2.CONNECTION_WINDOW}
    assert stream.receive_window == http2.STREAM_WINDOW


def test_data_beyond_the_windows(served, monkeypatch):
    monkeypatch.setattr(Session, "credit", lambda *_: None)
    served.open()
    for _ in range(http2.STREAM_WINDOW // http2.MAX_FRAME_BYTES):
        served.session.receive(frame(DATA, 0, 1, bytes(http2.MAX_FRAME_BYTES)))
    served.session.receive(frame(DATA, 0, 1, b"x"))
    assert served.events[-1] == ("reset", 1)
    assert served.sent()[-1].number() == ErrorCode.FLOW_CONTROL_ERROR


def test_a_window_that_becomes_too_large_resets_its_stream(served):
    for stream, more, code in ((1, (1 << 31) - 1, ErrorCode.FLOW_CONTROL_ERROR), (3, 0, ErrorCode.PROTOCOL_ERROR)):
        served.open(stream)
        served.session.receive(window(more, stream))
        assert served.events[-1] == ("reset", stream)
        assert served.sent()[-1].number() == code


# --- bounds ---


def test_streams_are_bounded(served, monkeypatch):
    monkeypatch.setattr(http2, "MAX_STREAMS", 2)
    served.open(1)
    served.open(3)
    served.session.receive(served.headers(5))
    assert [(one.kind, one.stream, one.number()) for one in served.sent()] == [(RST_STREAM, 5, ErrorCode.REFUSED_STREAM)]
    served.session.receive(frame(RST_STREAM, 0, 1, number(8)))
    served.open(7)


def test_resets_are_bounded(served, monkeypatch):
    monkeypatch.setattr(http2, "MAX_RESETS", 3)
    opened = [served.headers(stream) + frame(RST_STREAM, 0, stream, number(8)) for stream in range(1, 15, 2)]
    served.session.receive(b"".join(opened[:3]))
    served.session.calm()
    served.session.receive(b"".join(opened[3:6]))
    assert served.fault(opened[6]) is ErrorCode.ENHANCE_YOUR_CALM
    assert [event[0] for event in served.events] == ["opened", "reset"] * 7


def test_a_session_that_leaves_finishes_what_it_has(served):
    stream = served.open(1)
    served.session.leave()
    served.session.receive(served.headers(3))
    served.session.receive(frame(DATA, END_STREAM, 1, b"x"))
    served.session.answer(stream, ANSWER, last=True)
    assert [(one.kind, one.stream) for one in served.sent()] == [(GOAWAY, 0), (RST_STREAM, 3), (HEADERS, 1)]


def test_a_client_that_leaves(served):
    served.session.receive(frame(GOAWAY, 0, 0, bytes(8)))
    assert served.session.leaving


@given(st.binary(max_size=300), st.integers(0, 2**32))
def test_whatever_comes_is_taken_or_ends_the_connection(noise, seed):
    served = Served()
    chance = random.Random(seed)
    stream = served.open()
    data = (
        served.headers(3, END_HEADERS | END_STREAM)
        + settings(initial_window_size=100)
        + frame(DATA, PADDED, 1, b"\x01abc\0")
        + window(5, 1)
    )
    broken = bytearray(data + frame(chance.randrange(11), chance.randrange(256), chance.randrange(6), noise))
    for _ in range(chance.randrange(4)):
        broken[chance.randrange(len(broken))] = chance.randrange(256)
    try:
        served.session.receive(bytes(broken))
        if 1 in served.session.streams:
            served.session.send(stream, b"x" * 1000, TRAILERS)
        served.session.receive(bytes(broken))
    except ConnectionFault as fault:
        served.session.leave(fault.code, str(fault))
    assert frames.parted(served.session.take())
    assert served.session.retained_bytes <= len(broken) * 2
