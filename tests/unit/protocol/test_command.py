"""One command: header serialisations, extension fields, typed headers, limits."""

import json
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import LocalProtocolError, RemoteProtocolError
from sprocketmq.protocol.codes import FLAG_RESPONSE, LanguageCode, RequestCode, SerializeType
from sprocketmq.protocol.command import MAX_FRAME_LENGTH, Command, decode_command, encode_command, encode_head, encode_success, to_ext
from sprocketmq.protocol.headers import PullRequest, QueueRequest, SendMessageV2

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]))
filled = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
ext_maps = st.dictionaries(filled, filled, max_size=8)
languages = st.sampled_from(LanguageCode)


def json_command(header: object, body: bytes = b"") -> Command:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return decode_command(struct.pack(">I", len(raw)) + raw + body)


def binary_header(code=1, language=3, version=513, opaque=7, flag=0, remark=b"", ext=b"") -> bytes:
    return struct.pack(">hbhiii", code, language, version, opaque, flag, len(remark)) + remark + struct.pack(">i", len(ext)) + ext


def binary_command(header: bytes, body: bytes = b"") -> Command:
    return decode_command(struct.pack(">I", 0x0100_0000 | len(header)) + header + body)


# --- both ways ----------------------------------------------------------------------------------------------------------


@given(int32, int32, int32, int32, languages, st.none() | text, ext_maps, st.binary(max_size=64))
def test_a_json_command_decodes_to_what_was_encoded(code, opaque, flag, version, language, remark, ext, body):
    frame = encode_command(
        Command(code, opaque=opaque, flag=flag, version=version, language=language, remark=remark, ext=ext, body=body),
    )
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    command = decode_command(frame[4:])
    assert (command.code, command.opaque, command.flag, command.version) == (code, opaque, flag, version)
    assert (command.language, command.remark, command.ext, bytes(command.body)) == (language, remark, ext, body)
    assert command.serialize == SerializeType.JSON


@given(int16, int32, int32, int16, languages, st.none() | filled, ext_maps, st.binary(max_size=64))
def test_a_binary_command_decodes_to_what_was_encoded(code, opaque, flag, version, language, remark, ext, body):
    frame = encode_command(
        Command(
            code,
            opaque=opaque,
            flag=flag,
            version=version,
            language=language,
            remark=remark,
            ext=ext,
            body=body,
            serialize=SerializeType.ROCKETMQ,
        ),
    )
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    command = decode_command(frame[4:])
    assert (command.code, command.opaque, command.flag, command.version) == (code, opaque, flag, version)
    assert (command.language, command.remark, command.ext, bytes(command.body)) == (language, remark, ext, body)
    assert command.serialize == SerializeType.ROCKETMQ


@given(ext_maps)
def test_ready_made_fields_and_a_map_give_the_same_header(ext):
    ready = encode_head(1, opaque=2, ext=msgspec.json.encode(ext))
    assert ready == encode_head(1, opaque=2, ext=ext)


@given(ext_maps, st.integers(0, 2**31 - 1))
def test_the_short_way_to_an_answer_gives_the_same_frame(ext, opaque):
    ready = msgspec.json.encode(ext)
    assert encode_success(opaque, ready) == encode_head(0, opaque=opaque, flag=FLAG_RESPONSE, ext=ready)


def test_a_command_without_fields_carries_none_and_one_with_an_empty_map_carries_it():
    assert "extFields" not in json.loads(encode_head(34, opaque=1)[8:])
    assert json.loads(encode_head(34, opaque=1, ext={})[8:])["extFields"] == {}


def test_a_json_header_is_written_as_the_reference_writes_it():
    head = encode_head(105, opaque=13, ext={"topic": "FxPlain"}, language=LanguageCode.JAVA)
    assert head[8:] == (
        b'{"code":105,"extFields":{"topic":"FxPlain"},"flag":0,"language":"JAVA","opaque":13,"serializeTypeCurrentRPC":"JSON","version":513}'
    )
    assert struct.unpack_from(">II", head) == (134, 130)


def test_a_binary_header_has_its_fields_where_the_ruler_says():
    head = encode_head(105, opaque=13, flag=2, ext={"topic": "T"}, remark="no", serialize=SerializeType.ROCKETMQ)
    assert head[8:] == bytes.fromhex("0069 03 0201 0000000d 00000002 00000002 6e6f 0000000c 0005 746f706963 00000001 54")


def test_control_characters_of_property_strings_travel_in_json():
    command = decode_command(encode_head(310, opaque=1, ext={"i": "TAGS\x01a\x02"})[4:])
    assert command.ext == {"i": "TAGS\x01a\x02"}


# --- what we refuse to write --------------------------------------------------------------------------------------------


def test_a_frame_over_the_limit_is_refused_before_it_is_written():
    with pytest.raises(LocalProtocolError, match="16777216"):
        encode_head(310, opaque=1, body_length=MAX_FRAME_LENGTH)


def test_a_frame_of_exactly_the_limit_is_written():
    head_length = len(encode_head(310, opaque=1)) - 8
    head = encode_head(310, opaque=1, body_length=MAX_FRAME_LENGTH - 4 - head_length)
    assert struct.unpack_from(">i", head)[0] == MAX_FRAME_LENGTH


@pytest.mark.parametrize("code", [32768, 200052, -32769])
def test_a_code_over_16_bits_is_refused_in_a_binary_header(code):
    with pytest.raises(LocalProtocolError, match="16 bits"):
        encode_head(code, opaque=1, serialize=SerializeType.ROCKETMQ)


@pytest.mark.parametrize("fields", [{"version": 40_000}, {"language": 200}, {"opaque": 2**31}, {"flag": 2**40}])
def test_a_number_that_does_not_fit_a_binary_header_is_refused(fields):
    with pytest.raises(LocalProtocolError):
        encode_head(1, **{"opaque": 1, "serialize": SerializeType.ROCKETMQ, **fields})


@pytest.mark.parametrize("serialize", SerializeType)
def test_text_that_is_not_unicode_is_refused_in_fields(serialize):
    with pytest.raises(LocalProtocolError, match="UTF-8"):
        encode_head(1, opaque=1, ext={"topic": "\ud800"}, serialize=serialize)


@pytest.mark.parametrize("serialize", SerializeType)
def test_a_remark_with_undecodable_bytes_of_a_file_name_still_travels(serialize):
    command = decode_command(encode_head(1, opaque=1, remark="cannot open \udcff", serialize=serialize)[4:])
    assert command.remark == "cannot open ?"


def test_ready_made_json_fields_are_refused_in_a_binary_header():
    with pytest.raises(LocalProtocolError, match="binary"):
        encode_head(1, opaque=1, ext=b"{}", serialize=SerializeType.ROCKETMQ)


def test_a_field_name_over_its_16_bit_length_is_refused():
    with pytest.raises(LocalProtocolError, match="32767"):
        encode_head(1, opaque=1, ext={"x" * 32768: "1"}, serialize=SerializeType.ROCKETMQ)


# --- what we accept -----------------------------------------------------------------------------------------------------


def test_a_json_header_may_leave_out_everything_but_the_code():
    command = json_command({"code": 34})
    assert (command.opaque, command.flag, command.version, command.language) == (0, 0, 0, LanguageCode.JAVA)
    assert command.remark is None
    assert command.ext == {}


def test_unknown_members_and_languages_are_accepted():
    command = json_command({"code": 34, "language": "KLINGON", "serializeTypeCurrentRPC": "X", "more": [1, {"a": None}]})
    assert command.language == LanguageCode.OTHER


def test_a_language_may_be_a_number():
    assert json_command({"code": 34, "language": 9}).language == LanguageCode.GO


def test_field_values_may_be_json_numbers_booleans_and_null():
    command = json_command({"code": 30, "extFields": {"topic": "T", "queueId": 3, "lo": False, "x": None, "y": 1.5}})
    assert command.ext == {"topic": "T", "queueId": "3", "lo": "false", "y": "1.5"}
    assert command.header(QueueRequest) == QueueRequest("T", 3)


def test_a_number_where_text_is_wanted_is_read_as_text():
    assert json_command({"code": 30, "extFields": {"topic": 12, "queueId": "3"}}).header(QueueRequest) == QueueRequest("12", 3)


def test_null_fields_are_no_fields():
    assert json_command({"code": 30, "extFields": None}).ext == {}


def test_empty_names_and_values_of_a_binary_header_read_as_absent():
    ext = struct.pack(">hi1s", 0, 1, b"v") + struct.pack(">h1si", 1, b"k", 0) + struct.pack(">h1si1s", 1, b"a", 1, b"b")
    assert binary_command(binary_header(ext=ext)).ext == {"a": "b"}


def test_an_empty_body_is_an_empty_body():
    assert len(json_command({"code": 1}).body) == 0


def test_the_body_is_a_view_of_the_frame():
    frame = bytearray(encode_command(Command(1, body=b"abc"))[4:])
    command = decode_command(frame)
    frame[-1] = ord("z")
    assert bytes(command.body) == b"abz"


# --- what we refuse to read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [b"", b"\0", b"\0\0\0"])
def test_a_frame_without_a_header_length_is_refused(frame):
    with pytest.raises(RemoteProtocolError, match="header length"):
        decode_command(frame)


def test_a_header_longer_than_its_frame_is_refused():
    with pytest.raises(RemoteProtocolError, match="longer than its frame"):
        decode_command(struct.pack(">I", 3) + b"{}")


@pytest.mark.parametrize("kind", [2, 3, 127, 128, 255])
def test_an_unknown_serialisation_is_refused(kind):
    with pytest.raises(RemoteProtocolError, match=f"serialisation {kind}"):
        decode_command(struct.pack(">I", kind << 24 | 2) + b"{}")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"{",
        b"{}",
        b'{"code":null}',
        b'{"code":"x"}',
        b'{"code":1e99}',
        b'{"code":2147483648}',
        b'{"code":1}x',
        b"\xff\xfe",
    ],
)
def test_a_json_header_that_is_no_object_with_a_code_is_refused(header):
    with pytest.raises(RemoteProtocolError):
        json_command(header)


def test_deep_nesting_is_refused():
    with pytest.raises(RemoteProtocolError):
        json_command(b'{"code":1,"x":' + b"[" * 100_000)


@pytest.mark.parametrize("fields", [[], "x", 5, {"a": []}, {"a": {}}])
def test_fields_that_are_no_map_of_scalars_are_refused_when_they_are_touched(fields):
    command = json_command({"code": 1, "extFields": fields})
    with pytest.raises(RemoteProtocolError):
        _ = command.ext


@pytest.mark.parametrize("size", range(21))
def test_a_binary_header_cut_before_its_fixed_end_is_refused(size):
    with pytest.raises(RemoteProtocolError, match="21 bytes"):
        binary_command(binary_header()[:size])


@pytest.mark.parametrize("remark_length", [-1, 1, 2**31 - 1, -(2**31)])
def test_an_impossible_remark_length_is_refused(remark_length):
    header = struct.pack(">hbhiii", 1, 3, 513, 7, 0, remark_length) + struct.pack(">i", 0)
    with pytest.raises(RemoteProtocolError, match="remark length"):
        binary_command(header)


@pytest.mark.parametrize("ext_length", [-1, 1, 2**31 - 1, -(2**31)])
def test_an_impossible_extension_length_is_refused(ext_length):
    header = struct.pack(">hbhiii", 1, 3, 513, 7, 0, 0) + struct.pack(">i", ext_length)
    with pytest.raises(RemoteProtocolError, match="extension length"):
        binary_command(header)


@pytest.mark.parametrize(
    "ext",
    [
        b"\0",
        struct.pack(">h", 1),
        struct.pack(">h1s", 1, b"k"),
        struct.pack(">hi", -1, 0),
        struct.pack(">hi", 5, 0),
        struct.pack(">h1si", 1, b"k", -1),
        struct.pack(">h1si", 1, b"k", 1),
        struct.pack(">h1si", 1, b"k", 2**31 - 1),
    ],
)
def test_an_extension_entry_that_runs_past_the_header_is_refused(ext):
    with pytest.raises(RemoteProtocolError, match="extension"):
        binary_command(binary_header(ext=ext))


def test_a_binary_header_that_is_not_utf8_is_refused():
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        binary_command(binary_header(remark=b"\xff"))
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        binary_command(binary_header(ext=struct.pack(">h1si1s", 1, b"k", 1, b"\xff")))


# --- typed headers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serialize", SerializeType)
def test_a_missing_required_field_is_named(serialize):
    command = decode_command(encode_head(30, opaque=1, ext={"topic": "T"}, serialize=serialize)[4:])
    with pytest.raises(RemoteProtocolError, match="queueId"):
        command.header(QueueRequest)


@pytest.mark.parametrize("serialize", SerializeType)
@pytest.mark.parametrize("value", ["", "x", "1.5", "2147483648", "-2147483649", "٣", "9" * 30])
def test_a_malformed_number_is_refused_with_its_name(serialize, value):
    command = decode_command(encode_head(30, opaque=1, ext={"topic": "T", "queueId": value}, serialize=serialize)[4:])
    with pytest.raises(RemoteProtocolError, match="queueId"):
        command.header(QueueRequest)


def test_numbers_of_64_bits_keep_their_range():
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": str(2**63 - 1), "maxMsgNums": "1", "sysFlag": "0"}
    assert decode_command(encode_head(11, opaque=1, ext=fields)[4:]).header(PullRequest).queue_offset == 2**63 - 1
    fields["queueOffset"] = str(2**63)
    with pytest.raises(RemoteProtocolError, match="queueOffset"):
        decode_command(encode_head(11, opaque=1, ext=fields)[4:]).header(PullRequest)


def test_typed_fields_are_written_as_the_wire_has_them():
    header = SendMessageV2("g", "T", 3, 1_700_000_000_000, batch=True, unit_mode=False)
    assert to_ext(header) == {
        "a": "g",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "3",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "",
        "k": "false",
        "m": "true",
    }


def test_a_command_describes_itself_without_its_body():
    command = Command(RequestCode.HEART_BEAT, opaque=5, flag=2, body=b"secret")
    assert repr(command) == "Command(oneway code=34 opaque=5 remark=None body=6 bytes)"
    assert repr(Command(0, flag=1)).startswith("Command(response")
    assert repr(Command(34)).startswith("Command(request")
