"""Every frame recorded from Apache RocketMQ decodes to what its index says, and encodes back to the same fields in the same layout."""

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol import bodies, headers
from sprocketmq.protocol.batch import encode_batch, split_batch
from sprocketmq.protocol.codes import LanguageCode, SerializeType
from sprocketmq.protocol.command import Command, encode_head, to_ext
from sprocketmq.protocol.compression import CompressionType, compress, decompress
from sprocketmq.protocol.frame import FrameBuffer
from sprocketmq.protocol.ids import offset_msg_id, parse_offset_msg_id, parse_uniq_key
from sprocketmq.protocol.jsondialect import dumps_with_queue_keys, loads
from sprocketmq.protocol.properties import decode_properties, encode_properties
from sprocketmq.protocol.records import ReceivedMessage, Record, decode_records, encode_record, pack_host, walk_records

FIXTURES = Path(__file__).parents[2] / "fixtures" / "frames"
with zipfile.ZipFile(FIXTURES / "frames.zip") as archive:
    RAW = {name: archive.read(name) for name in archive.namelist()}
INDEX: list[dict[str, Any]] = json.loads((FIXTURES / "index.json").read_text(encoding="utf-8"))["frames"]

# (entry, its "request" or "response", the two as a test id)
SIDES = [(entry, entry[side], side) for entry in INDEX for side in ("request", "response") if entry.get(side)]


def sides_with_body(*kinds: str) -> list[Any]:
    return [as_param(*s) for s in SIDES if s[1]["body"] and s[1]["body"]["kind"] in kinds]


def as_param(entry: dict[str, Any], described: dict[str, Any], side: str) -> Any:
    return pytest.param(entry, described, side, id=f"{entry['name']}-{side}")


every_frame = pytest.mark.parametrize(("entry", "described", "side"), [as_param(*s) for s in SIDES])


def decode(described: dict[str, Any]) -> Command:
    commands = FrameBuffer().feed(RAW[described["file"]])
    assert len(commands) == 1
    return commands[0]


def serialization(entry: dict[str, Any], described: dict[str, Any]) -> SerializeType:
    return SerializeType[described.get("serialization") or entry["requestSerialization"]]


def test_every_recorded_file_is_indexed_and_the_other_way_round():
    assert {described["file"] for _, described, _ in SIDES} == set(RAW)


# --- headers ------------------------------------------------------------------------------------------------------------


@every_frame
def test_header_decodes_to_its_index(entry, described, side):
    command = decode(described)
    assert command.code == described["code"]
    assert command.flag == described["flag"]
    assert command.opaque == described["opaque"]
    assert command.version == described["version"]
    assert command.remark == described["remark"]
    assert command.serialize == serialization(entry, described)
    assert command.is_response == (side == "response")
    assert command.is_oneway == (side == "request" and described["flag"] == 2)
    if side == "request":
        language = described["language"]
        assert command.language == (LanguageCode[language] if isinstance(language, str) else language)
    expected = described["ext"] or {}
    if command.serialize == SerializeType.ROCKETMQ:
        expected = {name: value for name, value in expected.items() if value}  # an empty binary value reads as absent
    assert command.ext == expected
    assert len(command.body) == described["bodyLength"]


@every_frame
def test_header_encodes_back_to_the_same_fields_in_the_same_layout(entry, described, side):
    raw = RAW[described["file"]]
    command = decode(described)
    head = encode_head(
        described["code"],
        opaque=described["opaque"],
        flag=described["flag"],
        ext=described["ext"],
        remark=described["remark"],
        body_length=described["bodyLength"],
        language=command.language,
        version=described["version"],
        serialize=command.serialize,
    )
    length, word = struct.unpack_from(">ii", raw)
    ours = struct.unpack_from(">ii", head)
    header = raw[8 : 8 + (word & 0xFFFFFF)]
    assert len(head) == 8 + (ours[1] & 0xFFFFFF)
    assert ours[0] == 4 + (len(head) - 8) + described["bodyLength"]
    assert ours[1] >> 24 == word >> 24
    if command.serialize == SerializeType.JSON:
        assert json.loads(head[8:]) == json.loads(header)
    else:
        fixed, entries = binary_parts(header)
        our_fixed, our_entries = binary_parts(head[8:])
        assert our_fixed == fixed
        assert our_entries == sorted(set(entries))
        if len(entries) == len(set(entries)):  # the request with a signature repeats entries
            assert ours == (length, word)


def binary_parts(header: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return the fixed part with the remark, and the extension entries in name order."""
    (remark_length,) = struct.unpack_from(">i", header, 13)
    at = 17 + remark_length
    (ext_length,) = struct.unpack_from(">i", header, at)
    fixed, rest = header[:at], header[at + 4 :]
    assert len(rest) == ext_length
    entries = []
    while rest:
        (n,) = struct.unpack_from(">h", rest)
        (m,) = struct.unpack_from(">i", rest, 2 + n)
        entries.append((rest[2 : 2 + n], rest[6 + n : 6 + n + m]))
        rest = rest[6 + n + m :]
    return fixed, sorted(entries)


REQUEST_HEADERS: dict[int, type[msgspec.Struct]] = {
    10: headers.SendMessageV1,
    11: headers.PullRequest,
    12: headers.QueryMessage,
    14: headers.QueryConsumerOffset,
    15: headers.UpdateConsumerOffset,
    17: headers.CreateTopic,
    21: headers.PageRequest,
    29: headers.SearchOffset,
    30: headers.QueueRequest,
    31: headers.QueueRequest,
    32: headers.QueueRequest,
    33: headers.ViewMessage,
    35: headers.UnregisterClient,
    38: headers.ConsumerGroupRequest,
    40: headers.ConsumerGroupRequest,
    100: headers.KvConfig,
    101: headers.KvConfig,
    102: headers.KvConfig,
    103: headers.RegisterBroker,
    104: headers.BrokerIdentity,
    105: headers.RouteRequest,
    201: headers.PageRequest,
    202: headers.TopicRequest,
    203: headers.ConsumerGroupRequest,
    204: headers.ProducerGroupRequest,
    205: headers.BrokerNameRequest,
    207: headers.DeleteSubscriptionGroup,
    208: headers.ConsumeStatsRequest,
    215: headers.TopicRequest,
    216: headers.DeleteTopicInNamesrv,
    219: headers.KvNamespace,
    221: headers.ConsumerStatusRequest,
    222: headers.ResetOffset,
    223: headers.ConsumerStatusRequest,
    224: headers.ClusterRequest,
    300: headers.TopicRequest,
    307: headers.RunningInfoRequest,
    309: headers.ConsumeDirectly,
    310: headers.SendMessageV2,
    320: headers.SendMessageV2,
    322: headers.BrokerIdentity,
    327: headers.BrokerNameRequest,
    343: headers.GroupRequest,
    351: headers.TopicRequest,
    352: headers.GroupRequest,
    361: headers.PullRequest,
}
RESPONSE_HEADERS: dict[int, type[msgspec.Struct]] = {
    10: headers.SendResponse,
    11: headers.PullResponse,
    14: headers.OffsetResponse,
    29: headers.OffsetResponse,
    30: headers.OffsetResponse,
    31: headers.OffsetResponse,
    32: headers.TimestampResponse,
    310: headers.SendResponse,
    320: headers.SendResponse,
    361: headers.PullResponse,
}
# Labels any request or answer may carry, and members only later features use; they are ignored by name.
FREE_FIELDS = {
    "bname",
    "ReqT",
    "lo",
    "ns",
    "nsd",
    "oway",
    "MSG_REGION",
    "TRACE_ON",
    "AccessKey",
    "Signature",
    "SecurityToken",
    "recallHandle",
}
FREE_FIELDS |= {"committed", "topicSysFlag", "groupSysFlag", "forbiddenType", "offsetDelta", "topicList", "dataVersion"}

typed = [
    as_param(*s)
    for s in SIDES
    if not s[0]["name"].startswith("missing-required-field")
    and (s[0]["code"] in (REQUEST_HEADERS if s[2] == "request" else RESPONSE_HEADERS))
    and (s[2] == "request" or s[1]["code"] in (0, 19, 20, 21))
]


@pytest.mark.parametrize(("entry", "described", "side"), typed)
def test_typed_header_reads_and_writes_the_recorded_fields(entry, described, side):
    kind = (REQUEST_HEADERS if side == "request" else RESPONSE_HEADERS)[entry["code"]]
    command = decode(described)
    header = command.header(kind)
    written = to_ext(header)
    recorded = command.ext
    optional = kind.__struct_encode_fields__[-len(kind.__struct_defaults__) :] if kind.__struct_defaults__ else ()
    for name, value in written.items():
        if name in recorded:
            assert value == recorded[name], name
        else:
            assert name in optional, name
    unknown = {name for name in recorded if name not in written} - FREE_FIELDS
    assert not unknown
    assert msgspec.convert(written, kind, strict=False) == header


@pytest.mark.parametrize("name", ["missing-required-field.json", "missing-required-field.bin"])
def test_a_request_without_a_required_field_names_it(name):
    command = FrameBuffer().feed(RAW[f"{name}.request.bin"])[0]
    with pytest.raises(RemoteProtocolError, match="queueId"):
        command.header(REQUEST_HEADERS[command.code])


# --- bodies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("entry", "described", "side"), sides_with_body("batch"))
def test_batch_body_splits_into_its_messages_and_joins_byte_for_byte(entry, described, side):
    body = decode(described).body
    entries = split_batch(body)
    expected = described["body"]["messages"]
    assert_inner_messages(entries, expected)
    assert encode_batch(entries) == bytes(body)


def assert_inner_messages(entries: Any, expected: list[dict[str, Any]]) -> None:
    assert len(entries) == len(expected)
    for entry, message in zip(entries, expected, strict=True):
        assert entry.flag == message["flag"]
        assert bytes(entry.body).decode() == message["body"]
        assert decode_properties(entry.properties) == message["properties"]
        assert 22 + len(entry.body) + len(entry.properties) == message["totalSize"]


@pytest.mark.parametrize(("entry", "described", "side"), sides_with_body("stored-messages"))
def test_stored_messages_decode_to_their_index_and_encode_byte_for_byte(entry, described, side):
    body = decode(described).body
    expected = described["body"]["messages"]
    found = walk_records(body)
    assert [size for _, size in found] == [m["totalSize"] for m in expected]
    for (pos, size), message in zip(found, expected, strict=True):
        record = Record(body, pos, size, "broker-a")
        assert_record(record, message)
        raw = bytes(body[pos : pos + size])
        assert encode_again(record) == raw
        if "inner" in message:
            entries = split_batch(record.stored_body)
            assert_inner_messages(entries, message["inner"])
            assert encode_batch(entries) == bytes(record.stored_body)


def assert_record(record: ReceivedMessage, message: dict[str, Any]) -> None:
    assert record.body_crc == message["bodyCrc"]
    assert record.queue_id == message["queueId"]
    assert record.flag == message["flag"]
    assert record.queue_offset == message["queueOffset"]
    assert record.commitlog_offset == message["physicalOffset"]
    assert record.sys_flag == message["sysFlag"]
    assert record.born_timestamp_ms == message["bornTimestamp"]
    assert record.born_host == message["bornHost"]
    assert record.store_timestamp_ms == message["storeTimestamp"]
    assert record.store_host == message["storeHost"]
    assert record.reconsume_times == message["reconsumeTimes"]
    assert record.prepared_offset == message["preparedTransactionOffset"]
    assert record.topic == message["topic"]
    assert record.properties == message["properties"]
    assert len(record.stored_body) == message["bodyLength"]
    if "bodyText" in message:
        assert bytes(record.stored_body).decode() == message["bodyText"]
    record.verify_crc()
    ip, _, port = message["storeHost"].rpartition(":")
    assert parse_offset_msg_id(record.offset_msg_id) == (ip, int(port), message["physicalOffset"])
    assert record.offset_msg_id == offset_msg_id(pack_host(ip, int(port)), message["physicalOffset"])


def encode_again(record: ReceivedMessage) -> bytes:
    hosts = []
    for text in (record.born_host, record.store_host):
        ip, _, port = text.rpartition(":")
        hosts.append(pack_host(ip.strip("[]"), int(port)))
    return encode_record(
        topic=record.topic.encode(),
        body=record.stored_body,
        properties=record.raw_properties,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.commitlog_offset,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=hosts[0],
        store_timestamp_ms=record.store_timestamp_ms,
        store_host=hosts[1],
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times,
        prepared_offset=record.prepared_offset,
    )


@pytest.mark.parametrize(("entry", "described", "side"), sides_with_body("stored-messages"))
def test_messages_of_inner_batches_are_unwrapped_with_their_own_offsets(entry, described, side):
    expected = []
    for message in described["body"]["messages"]:
        inner = message.get("inner") or [message]
        expected += [(message["queueOffset"] + i, m["properties"]) for i, m in enumerate(inner)]
    messages = decode_records(decode(described).body, broker_name="broker-a", verify_crc=True)
    assert [(m.queue_offset, m.properties) for m in messages] == expected


R, S = "request", "response"
JSON_BODIES: dict[tuple[int, str], type[bodies.Body]] = {
    (21, S): bodies.TopicConfigTable,
    (34, R): bodies.HeartbeatData,
    (38, S): bodies.ConsumerIdList,
    (41, R): bodies.LockBatchRequest,
    (41, S): bodies.LockBatchResponse,
    (42, R): bodies.LockBatchRequest,
    (43, S): bodies.ConsumerOffsets,
    (46, R): bodies.CheckClientConfig,
    (103, R): bodies.RegisterBrokerBody,
    (105, S): bodies.TopicRoute,
    (106, S): bodies.ClusterInfo,
    (200, R): bodies.SubscriptionGroupConfig,
    (201, S): bodies.SubscriptionGroupTable,
    (202, S): bodies.TopicStats,
    (203, S): bodies.ConsumerConnection,
    (204, S): bodies.ProducerConnection,
    (206, S): bodies.TopicList,
    (208, S): bodies.ConsumeStats,
    (219, S): bodies.KvTable,
    (221, S): bodies.ConsumerStatus,
    (222, S): bodies.ResetOffsets,
    (223, S): bodies.ConsumerStatus,
    (224, S): bodies.TopicList,
    (300, S): bodies.GroupList,
    (304, S): bodies.TopicList,
    (305, S): bodies.TopicList,
    (307, S): bodies.ConsumerRunningInfo,
    (309, S): bodies.ConsumeDirectlyResult,
    (322, R): bodies.DataVersion,
    (322, S): bodies.DataVersion,
    (328, S): bodies.ProducerTable,
    (343, S): bodies.TopicList,
    (351, S): bodies.TopicConfig,
    (352, S): bodies.SubscriptionGroupConfig,
}


def with_text_keys(tree: Any) -> Any:
    """Return ``tree`` with integer keys as text: readers take either, so they are the same field."""
    if isinstance(tree, dict):
        return {(str(key) if isinstance(key, int) else key): with_text_keys(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [with_text_keys(value) for value in tree]
    return tree


@pytest.mark.parametrize(("entry", "described", "side"), sides_with_body("json", "lenient-json"))
def test_json_body_reads_and_writes_the_recorded_tree(entry, described, side):
    raw = bytes(decode(described).body)
    tree = loads(raw)
    if described["body"]["kind"] == "json":
        assert tree == described["body"]["value"]
        assert json.loads(raw) == tree
    else:
        assert raw.decode() == described["body"]["text"]
        with pytest.raises(ValueError, match="Expecting"):
            json.loads(raw)
    assert with_text_keys(loads(dumps_with_queue_keys(tree))) == with_text_keys(tree)
    if kind := JSON_BODIES.get((entry["code"], side)):
        body = kind.decode(raw)
        assert with_text_keys(loads(body.encode())) == with_text_keys(tree)
        assert kind.decode(body.encode()) == body


@pytest.mark.parametrize(("entry", "described", "side"), sides_with_body("message-body", "raw", "properties-text"))
def test_plain_bodies_are_passed_on_untouched(entry, described, side):
    body = bytes(decode(described).body)
    expected = described["body"]
    if "hex" in expected:
        assert body.hex().startswith(expected["hex"].rstrip("."))  # the index shows the beginning of long bodies
        assert len(body) == expected["length"]
    else:
        assert body.decode() == expected["text"]


@pytest.mark.parametrize(("entry", "described", "side"), sides_with_body("binary-i64"))
def test_binary_number_bodies_are_passed_on_untouched(entry, described, side):
    assert list(struct.unpack(">7q", decode(described).body)) == described["body"]["values"]


COMPRESSED = [as_param(*s) for s in SIDES if s[2] == "request" and s[0]["code"] == 310 and int((s[1]["ext"] or {}).get("f", "0")) & 1]


@pytest.mark.parametrize(("entry", "described", "side"), COMPRESSED)
def test_compressed_bodies_inflate_and_compress_back(entry, described, side):
    command = decode(described)
    sys_flag = command.header(headers.SendMessageV2).sys_flag
    body = bytes(command.body)
    assert decompress(body, sys_flag) == b"x" * 4096
    ours = compress(b"x" * 4096, CompressionType(sys_flag >> 8 & 7))
    assert ours[:4] == body[:4]
    assert decompress(ours, sys_flag) == b"x" * 4096


def test_all_three_kinds_of_compression_were_recorded():
    assert {int(p.values[1]["ext"]["f"]) for p in COMPRESSED} == {257, 513, 769}


def test_compressed_messages_of_a_pull_inflate():
    messages = decode_records(FrameBuffer().feed(RAW["pull-compressed.json.response.bin"])[0].body)
    assert [m.body for m in messages] == [b"x" * 4096] * 3


# --- properties and ids -------------------------------------------------------------------------------------------------

PROPERTY_STRINGS = sorted(
    {text for _, described, _ in SIDES if (text := (described["ext"] or {}).get("i") or (described["ext"] or {}).get("properties"))}
)


@pytest.mark.parametrize("text", PROPERTY_STRINGS, ids=range(len(PROPERTY_STRINGS)))
def test_property_strings_of_sends_read_and_write_the_same_pairs(text):
    pairs = decode_properties(text.encode())
    assert pairs
    again = encode_properties(pairs)
    assert decode_properties(again) == pairs
    # The one pair the recordings hold that readers drop is an empty KEYS of the asynchronous batcher.
    assert sorted(again.decode().split("\x02")) == sorted(text.replace("KEYS\x01\x02", "").split("\x02"))


def test_recorded_client_ids_hold_address_process_and_time():
    ids = {decode_properties(text.encode()).get("UNIQ_KEY") for text in PROPERTY_STRINGS} - {None}
    assert {len(i) for i in ids} == {32, 56}
    for text in ids:
        ip, _pid, time_ms, _counter = parse_uniq_key(text, now_ms=1_795_300_000_000)
        assert ip in ("192.0.2.2", "fd00::2")
        assert time_ms is not None
        assert abs(time_ms - 1_795_229_400_000) < 31 * 86_400_000
