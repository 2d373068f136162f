"""Trace records: those that Apache's producer wrote are read and written alike; what no writer would write is left out."""

import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.protocol.frame import FrameBuffer
from sprocketmq.protocol.traces import (
    MAX_TRACE_BYTES,
    MAX_TRACE_RECORDS,
    ConsumeCode,
    EndTransactionTrace,
    MessageType,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
    decode_traces,
)

FRAMES = Path(__file__).parents[2] / "fixtures" / "frames" / "frames.zip"

RECORDED = PubTrace(
    timestamp_ms=1795229551024,
    region="DefaultRegion",
    group="fx_trace_producer",
    topic="FxPlain",
    msg_id="C00002025F9530946E09679D21AD0027",
    tags="TagA",
    keys="trk",
    store_host="127.0.0.1:27911",
    body_bytes=11,
    cost_ms=15,
    message_type=MessageType.NORMAL,
    offset_msg_id="7F00000100006D070000000000002E69",
    success=True,
)

ONE_OF_EACH: list[TraceRecord] = [
    RECORDED,
    SubBeforeTrace(1795229551024, "DefaultRegion", "readers", "R1", "M1", 2, "k1 k2"),
    SubAfterTrace("R1", "M1", 7, False, "k1 k2", ConsumeCode.EXCEPTION, 1795229551031, "readers"),
    EndTransactionTrace(5, "r", "g", "t", "M2", "tag", "k", "10.0.0.1:10911", MessageType.COMMIT, "T9", "COMMIT_MESSAGE", True),
    RecallTrace(6, "r", "g", "t", "M3", True),
]


def recorded_body(name: str) -> bytes:
    with zipfile.ZipFile(FRAMES) as archive:
        (command,) = FrameBuffer().feed(archive.read(name))
    return bytes(command.body)


def test_a_record_of_apaches_producer_is_read():
    body = recorded_body("send-v2-trace-data.bin.request.bin")
    assert decode_traces(body) == [RECORDED]


@pytest.mark.parametrize("name", ["send-v2-trace-data.bin.request.bin", "send-v2-trace-data.json.request.bin"])
def test_a_record_is_written_as_apaches_producer_writes_it(name: str):
    body = recorded_body(name)
    (record,) = decode_traces(body)
    assert record.encode().encode() == body


@pytest.mark.parametrize("record", ONE_OF_EACH, ids=lambda record: type(record).__name__)
def test_each_kind_is_read_as_it_was_written(record: TraceRecord):
    assert decode_traces(record.encode().encode()) == [record]


def test_records_of_one_message_are_chosen():
    body = "".join(record.encode() for record in ONE_OF_EACH).encode()
    assert decode_traces(body) == ONE_OF_EACH
    assert decode_traces(body, "M1") == ONE_OF_EACH[1:3]
    assert decode_traces(body, "R1") == []


def test_a_message_is_found_in_the_joined_ids_of_a_batch():
    joined = b"Pub\x011\x01r\x01g\x01t\x01A1,A2,A3\x01null\x01null\x01h\x015\x011\x010\x01O1,O2,O3\x01true\x02"
    (record,) = decode_traces(joined, "A2")
    assert isinstance(record, PubTrace)
    assert record.msg_id == "A1,A2,A3"
    assert decode_traces(joined, "A") == []


def test_absent_and_empty_fields():
    record = PubTrace(1, "r", "g", "t", "M", "", "", "h", 5, 1, 0, "", True)
    assert record.encode() == "Pub\x011\x01r\x01g\x01t\x01M\x01null\x01null\x01h\x015\x011\x010\x01null\x01true\x02"
    assert decode_traces(record.encode().encode()) == [record]
    assert SubBeforeTrace(1, "r", "g", "R", "M", 0, "").encode().endswith("\x010\x01null\x02")


def test_separators_inside_a_field_do_not_make_fields():
    record = SubBeforeTrace(1, "r", "g", "R", "M", 0, "a\x01b\x02c")
    assert decode_traces(record.encode().encode()) == [SubBeforeTrace(1, "r", "g", "R", "M", 0, "a b c")]


def test_records_of_other_versions():
    without_offset_id = b"Pub\x011\x01r\x01g\x01t\x01M\x01a\x01k\x01h\x015\x011\x010\x01true\x02"
    with_client_host = b"Pub\x011\x01r\x01g\x01t\x01M\x01a\x01k\x01h\x015\x011\x010\x01O\x01true\x0110.0.0.9\x02"
    later = b"Pub\x011\x01r\x01g\x01t\x01M\x01a\x01k\x01h\x015\x011\x010\x01O\x01true\x0110.0.0.9\x01new\x01newer\x02"
    assert [getattr(record, "client_host", None) for record in decode_traces(without_offset_id + with_client_host + later)] == [
        "",
        "10.0.0.9",
        "10.0.0.9",
    ]
    oldest, middle, cloud = decode_traces(
        b"SubAfter\x01R\x01M\x017\x01true\x01k\x02SubAfter\x01R\x01M\x017\x01true\x01k\x014\x02SubAfter\x01R\x01M\x017\x01true\x01k\x014\x01\x02"
    )
    assert oldest == SubAfterTrace("R", "M", 7, True, "k")
    assert middle == cloud == SubAfterTrace("R", "M", 7, True, "k", ConsumeCode.FAILED)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x02\x02\x02",
        b"\x01" * 100,
        b"Pub\x02",
        b"Pub\x01now\x01r\x01g\x01t\x01M\x01a\x01k\x01h\x015\x011\x010\x01O\x01true\x02",
        b"Pub\x01" + b"9" * 5000 + b"\x01r\x01g\x01t\x01M\x01a\x01k\x01h\x015\x011\x010\x01O\x01true\x02",
        "Pub\x01\u0661\x01r\x01g\x01t\x01M\x01a\x01k\x01h\x015\x011\x010\x01O\x01true\x02".encode(),
        b"SubBefore\x011\x01r\x01g\x01R\x01M\x01-\x01k\x02",
        b"Unknown\x011\x01r\x01g\x01R\x01M\x010\x01k\x02",
    ],
    ids=["empty", "ends", "separators", "cut", "not a number", "long number", "other digits", "sign", "unknown kind"],
)
def test_what_is_no_record_is_left_out(body: bytes):
    good = RECORDED.encode().encode()
    assert decode_traces(body) == []
    assert decode_traces(body + b"\x02" + good) == [RECORDED]
    assert decode_traces(good + body) == [RECORDED]


def test_a_hostile_body_is_read_within_bounds():
    assert len(decode_traces(b"Recall\x011\x01r\x01g\x01t\x01M\x01true\x02" * (MAX_TRACE_RECORDS + 1))) == MAX_TRACE_RECORDS
    assert decode_traces(b"x" * MAX_TRACE_BYTES + b"\x02" + RECORDED.encode().encode()) == []


@given(st.binary(max_size=2000))
def test_any_bytes_are_read(body: bytes):
    decode_traces(body)
    decode_traces(body, "M")


@given(
    st.lists(
        st.sampled_from(["Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall", "1", "-1", "M", "null", "true", "", "é"]), max_size=30
    )
)
def test_any_fields_are_read_and_written_again(fields: list[str]):
    for record in decode_traces("\x01".join(fields).encode()):
        assert decode_traces(record.encode().encode()) == [record]
