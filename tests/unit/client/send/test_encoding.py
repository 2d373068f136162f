import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.client.send.encoding import EncodedBatch, MessageEncoder
from sprocketmq.client.send.results import BatchResults
from sprocketmq.client.send.send_header import HEADER, header_prefix
from sprocketmq.errors import BatchError, InvalidMessage, InvalidName, MessageTooLarge
from sprocketmq.protocol.batch import MAX_BATCH_COUNT, encode_batch, split_batch
from sprocketmq.protocol.compression import CompressionType, decompress
from sprocketmq.protocol.headers import SendMessageV2
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.message import Message, MessageQueue, Receipt, SendStatus
from sprocketmq.protocol.properties import decode_properties

QUEUE = MessageQueue("orders", "broker-a", 3)


def encoder(limit: int = 4 << 20, compression: CompressionType | None = CompressionType.ZLIB, over: int = 4096) -> MessageEncoder:
    return MessageEncoder(MessageIdFactory("127.0.0.1", 1), max_message_bytes=limit, compression=compression, compress_over_bytes=over)


def properties_of(message: Message) -> dict[str, str]:
    uniq_key, text, _, _ = encoder().single(message)
    properties = decode_properties(msgspec.json.decode(text, type=str).encode())
    assert properties.pop("UNIQ_KEY") == uniq_key
    return properties


# --- header -------------------------------------------------------------------------------------------------------------


def test_a_header_made_from_its_template_reads_as_the_fields_it_was_made_of():
    for batch in (False, True):
        text = HEADER % (header_prefix("pg", QUEUE, batch=batch), 769, 1_700_000_000_123, -5, b'"A\\u0001b\\u0002"')
        assert msgspec.json.decode(text, type=SendMessageV2, strict=False) == SendMessageV2(
            producer_group="pg",
            topic="orders",
            queue_id=3,
            born_timestamp_ms=1_700_000_000_123,
            sys_flag=769,
            flag=-5,
            properties="A\x01b\x02",
            reconsume_times=0,
            unit_mode=False,
            batch=batch,
            broker_name="broker-a",
        )
        assert all(isinstance(value, str) for value in msgspec.json.decode(text).values())


def test_a_header_survives_names_with_percent_signs_and_quotes():
    queue = MessageQueue("%RETRY%g|x", 'bro"ker\\', 0)
    head = msgspec.json.decode(HEADER % (header_prefix("%pg%d", queue, batch=False), 0, 1, 0, b'""'))
    assert (head["a"], head["b"], head["n"]) == ("%pg%d", "%RETRY%g|x", 'bro"ker\\')


# --- properties ---------------------------------------------------------------------------------------------------------


def test_properties_hold_tag_keys_wait_and_the_users_own():
    message = Message("t", b"x", tag="a", keys=["k1", "k2"], properties={"color": 'grün "red"'}, wait_store_ok=False)
    assert properties_of(message) == {"TAGS": "a", "KEYS": "k1 k2", "WAIT": "false", "color": 'grün "red"'}
    assert properties_of(Message("t", b"x")) == {"WAIT": "true"}
    assert properties_of(Message("t", b"x", keys="alone")) == {"WAIT": "true", "KEYS": "alone"}


def test_delays_travel_as_properties():
    assert properties_of(Message("t", b"x", delay_level=3)) == {"WAIT": "true", "DELAY": "3"}
    assert properties_of(Message("t", b"x", deliver_at_ms=1_700_000_000_123)) == {"WAIT": "true", "TIMER_DELIVER_MS": "1700000000123"}
    assert properties_of(Message("t", b"x", tag="a", keys=["k"], delay_level=1)) == {"TAGS": "a", "KEYS": "k", "WAIT": "true", "DELAY": "1"}


def test_ids_differ_from_message_to_message():
    made = encoder()
    assert len({made.single(Message("t", b"x"))[0] for _ in range(1000)}) == 1000


@pytest.mark.parametrize("tag", ["", " a", "a||b", "*", "a\x01b", 5])
def test_a_bad_tag_is_refused(tag):
    with pytest.raises(InvalidName):
        encoder().single(Message("t", b"x", tag=tag))


@pytest.mark.parametrize("key", ["", "two words", "a\x02", 7, None])
def test_a_bad_key_is_refused(key):
    with pytest.raises(InvalidMessage, match="key"):
        encoder().single(Message("t", b"x", keys=[key]))


@pytest.mark.parametrize(
    "properties", [{"TAGS": "a"}, {"UNIQ_KEY": "a"}, {"a\x01": "b"}, {"a": "b\x02"}, {"": "b"}, {"a": 5}, {"a": "\ud800"}]
)
def test_a_bad_property_is_refused(properties):
    with pytest.raises(InvalidMessage):
        encoder().single(Message("t", b"x", properties=properties))


@pytest.mark.parametrize(("name", "advice"), [("DELAY", "delay_level"), ("TIMER_DELIVER_MS", "deliver_at_ms"), ("PGROUP", "another name")])
def test_a_property_of_rocketmq_is_refused_with_what_to_use_instead(name, advice):
    with pytest.raises(InvalidMessage, match=f"{name}.*{advice}"):
        encoder().single(Message("t", b"x", properties={name: "3"}))


def test_text_that_is_not_unicode_is_refused_and_named_in_a_batch():
    with pytest.raises(InvalidMessage):
        encoder().single(Message("t", b"x", tag="\udcff"))
    with pytest.raises(InvalidMessage) as e:
        encoder().batch([Message("t", b"x"), Message("t", b"x", keys=["\udcff"])])
    assert e.value.index == 1


def test_properties_over_the_limit_are_refused_also_as_a_long_tag():
    for message in (Message("t", b"x", properties={"a": "é" * 17_000}), Message("t", b"x", tag="x" * 40_000)):
        with pytest.raises(InvalidMessage, match="32767"):
            encoder().single(message)
        with pytest.raises(InvalidMessage, match="32767"):
            encoder().batch([message])


def test_the_table_of_tags_is_bounded():
    made = encoder()
    for i in range(10_000):
        made.single(Message("t", b"x", tag=f"tag{i}"))
    assert len(made._heads) <= 4096
    assert len(made._tails) <= 4096


# --- bodies -------------------------------------------------------------------------------------------------------------


def test_a_body_from_4096_bytes_on_is_compressed_with_zlib_level_5():
    assert encoder().single(Message("t", b"x" * 4095))[2:] == (b"x" * 4095, 0)
    _, _, body, flag = encoder().single(Message("t", b"x" * 4096))
    assert flag == 769
    assert body[:2] == b"\x78\x5e"
    assert decompress(body, flag) == b"x" * 4096


@pytest.mark.parametrize(("kind", "flag"), [(CompressionType.LZ4, 257), (CompressionType.ZSTD, 513)])
def test_other_compressions_can_be_chosen(kind, flag):
    _, _, body, sys_flag = encoder(compression=kind, over=10).single(Message("t", b"y" * 10))
    assert sys_flag == flag
    assert decompress(body, sys_flag) == b"y" * 10


def test_compression_can_be_off():
    assert encoder(compression=None).single(Message("t", b"x" * 100_000))[2:] == (b"x" * 100_000, 0)


def test_an_empty_body_and_one_over_the_limit_are_refused():
    with pytest.raises(InvalidMessage, match="empty"):
        encoder().single(Message("t", b""))
    with pytest.raises(MessageTooLarge) as e:
        encoder(limit=100).single(Message("t", b"x" * 101))
    assert (e.value.size, e.value.limit) == (101, 100)


# --- batches ------------------------------------------------------------------------------------------------------------

messages = st.lists(
    st.builds(
        Message,
        st.just("t"),
        st.binary(min_size=1, max_size=300),
        st.sampled_from([None, "a", "täg", "x" * 120]),
        st.lists(st.sampled_from(["k1", "schlüssel"]), max_size=2),
        st.dictionaries(
            st.sampled_from(["p", "q"]), st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1), max_size=2
        ),
        flag=st.integers(-(2**31), 2**31 - 1),
    ),
    min_size=1,
    max_size=12,
)


@given(messages, st.integers(900, 3000))
def test_a_batch_is_split_by_exact_size_in_order_and_reads_back_as_its_messages(batch: list[Message], limit: int):
    parts = encoder(limit=limit).batch(batch)
    entries = [split_batch(part.body) for part in parts]
    assert all(len(part.body) <= limit for part in parts)
    for part, following in zip(parts, entries[1:], strict=False):
        assert len(part.body) + 22 + len(following[0].body) + len(following[0].properties) > limit  # nothing more would have fitted
    for part, members in zip(parts, entries, strict=True):
        assert encode_batch(members) == part.body
        assert [decode_properties(entry.properties)["UNIQ_KEY"] for entry in members] == list(part.uniq_keys)
    flat = [entry for members in entries for entry in members]
    assert [(e.flag, bytes(e.body)) for e in flat] == [(m.flag, m.body) for m in batch]
    for entry, message in zip(flat, batch, strict=True):
        properties = decode_properties(entry.properties)
        assert properties["WAIT"] == "true"
        assert properties.get("TAGS") == message.tag
        assert properties.get("KEYS", "").split() == list(message.keys)
        assert {name: properties[name] for name in message.properties} == dict(message.properties)


def test_a_batch_that_fits_to_the_byte_is_one_request_and_one_byte_more_makes_two():
    batch = [Message("t", b"x" * 100) for _ in range(10)]
    (whole,) = encoder().batch(batch)
    assert len(encoder(limit=len(whole.body)).batch(batch)) == 1
    assert len(encoder(limit=len(whole.body) - 1).batch(batch)) == 2


def test_a_batch_has_at_most_32767_messages_a_request():
    parts = encoder().batch([Message("t", b"x")] * (MAX_BATCH_COUNT + 1))
    assert [len(part.uniq_keys) for part in parts] == [MAX_BATCH_COUNT, 1]


def test_bodies_in_a_batch_are_never_compressed():
    (part,) = encoder().batch([Message("t", b"x" * 10_000)])
    assert len(part.body) > 10_000


def test_an_empty_batch_is_refused():
    with pytest.raises(BatchError, match="empty"):
        encoder().batch([])


@pytest.mark.parametrize(
    ("odd", "word"),
    [
        (Message("other", b"x"), "topic"),
        (Message("t", b"x", queue=MessageQueue("t", "a", 1)), "queue"),
        (Message("t", b"x", wait_store_ok=False), "wait_store_ok"),
        (Message("t", b"x", delay_level=3), "later"),
        (Message("t", b"x", deliver_at_ms=1_700_000_000_000), "later"),
    ],
)
def test_a_message_that_does_not_belong_to_its_batch_is_named(odd, word):
    with pytest.raises(BatchError, match=word) as e:
        encoder().batch([Message("t", b"x"), Message("t", b"x"), odd])
    assert e.value.index == 2


@pytest.mark.parametrize("index", [0, 1])
def test_a_retry_topic_takes_no_batches(index):
    with pytest.raises(BatchError, match="retry") as e:
        encoder().batch([*[Message("t", b"x")] * index, Message("%RETRY%g", b"x")])
    assert e.value.index == index


def test_of_several_broken_rules_the_first_of_the_references_order_is_named():
    odd = Message("%RETRY%g", b"x", wait_store_ok=False, delay_level=1)
    for broken, word in ((None, "later"), ("delay_level", "retry"), ("topic", "wait_store_ok")):
        if broken == "delay_level":
            odd.delay_level = 0
        elif broken == "topic":
            odd.topic = "t"
        with pytest.raises(BatchError, match=word):
            encoder().batch([Message("t", b"x"), odd])


@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize(
    ("odd", "error", "word"),
    [
        (Message("t", b"x", tag="a||b"), InvalidName, "tag"),
        (Message("t", b"x", tag=["a"]), InvalidName, "tag"),
        (Message("t", b"x", tag="\udcff"), InvalidMessage, "valid text"),
        (Message("t", b"x", keys=["two words"]), InvalidMessage, "key"),
        (Message("t", b"x", keys=7), InvalidMessage, "keys"),
        (Message("t", b"x", properties=[1]), InvalidMessage, "mapping"),
        (Message("t", b"x", properties={"a": "b\x02"}), InvalidMessage, "0x02"),
        (Message("t", b"x", properties={"DELAY": "3"}), InvalidMessage, "DELAY"),
        (Message("t", b"x", properties={"a": "x" * 40_000}), InvalidMessage, "32767"),
        (Message("t", b"x", flag=2**31), InvalidMessage, "flag"),
        (Message("t", b"x", flag="1"), InvalidMessage, "flag"),
        (Message("t", b""), InvalidMessage, "empty"),
        (Message("t", b"x" * 5000), MessageTooLarge, "5[0-9]{3} bytes"),
        (None, InvalidMessage, "None"),
        ("text", InvalidMessage, "str"),
    ],
    ids=repr,
)
def test_every_error_about_a_message_says_which_one_it_is(odd, error, word, index):
    batch = [Message("t", b"x"), Message("t", b"x"), Message("t", b"x")]
    batch[index] = odd
    with pytest.raises(error, match=f"message {index} of the batch.*{word}") as e:
        encoder(limit=4096).batch(batch)
    assert e.value.index == index


def test_a_bad_topic_is_the_first_messages():
    with pytest.raises(InvalidName, match=r"message 0.*topic") as e:
        encoder().batch([Message("a b", b"x")])
    assert e.value.index == 0


def test_a_message_too_large_for_any_batch_is_named():
    with pytest.raises(MessageTooLarge) as e:
        encoder(limit=200).batch([Message("t", b"x"), Message("t", b"x" * 150)])
    assert e.value.index == 1
    assert e.value.size > 200
    with pytest.raises(InvalidMessage) as empty:
        encoder().batch([Message("t", b"x"), Message("t", b"")])
    assert empty.value.index == 1


def test_the_outer_properties_of_a_batch_are_wait_and_an_id_of_its_own():
    made = encoder()
    (part,) = made.batch([Message("t", b"x")])
    outer = outer_of(made, part)
    assert outer.pop("UNIQ_KEY") > part.uniq_keys[0]
    assert outer == {"WAIT": "true"}


def outer_of(made: MessageEncoder, part: EncodedBatch) -> dict[str, str]:
    return decode_properties(msgspec.json.decode(made.outer_properties(wait_store_ok=True, tag=part.tag, keys=part.keys)).encode())


def test_a_batch_is_found_by_the_keys_of_all_its_messages():
    made = encoder()
    (part,) = made.batch(
        [Message("t", b"x", keys=["a", "b"]), Message("t", b"x"), Message("t", b"x", keys="c"), Message("t", b"x", keys=["b"])]
    )
    assert outer_of(made, part)["KEYS"] == "a b c"


@pytest.mark.parametrize(
    ("tags", "common"),
    [(["a", "a"], "a"), (["a", "b"], None), (["a", None], None), ([None, "a"], None), (["a", "b", "a"], None), ([None, None], None)],
)
def test_a_batch_has_the_tag_that_all_its_messages_have(tags, common):
    made = encoder()
    (part,) = made.batch([Message("t", b"x", tag=tag) for tag in tags])
    assert outer_of(made, part).get("TAGS") == common


@given(messages, st.integers(900, 3000))
def test_each_request_is_found_by_what_its_own_messages_are_found_by(batch: list[Message], limit: int):
    made = encoder(limit=limit)
    for part in made.batch(batch):
        members = [decode_properties(entry.properties) for entry in split_batch(part.body)]
        outer = outer_of(made, part)
        assert set(outer.get("KEYS", "").split()) == {key for member in members for key in member.get("KEYS", "").split()}
        tags = {member.get("TAGS") for member in members}
        assert outer.get("TAGS") == (tags.pop() if len(tags) == 1 else None)


def test_each_request_of_a_split_batch_has_the_keys_and_the_tag_of_its_own_messages():
    batch = [Message("t", b"x" * 300, tag="ab"[i > 1], keys=[f"k{i}"]) for i in range(4)]
    made = encoder(limit=900)
    parts = made.batch(batch)
    assert [(outer_of(made, part)["TAGS"], outer_of(made, part)["KEYS"]) for part in parts] == [("a", "k0 k1"), ("b", "k2 k3")]


def test_a_batch_ends_where_its_keys_would_be_too_long_for_one_property_string():
    batch = [Message("t", b"x", keys=[f"{i}-{'k' * 5000}"]) for i in range(12)]
    made = encoder()
    parts = made.batch(batch)
    assert sum(len(part.uniq_keys) for part in parts) == 12
    assert len(parts) == 3
    for part in parts:
        assert len(outer_of(made, part)["KEYS"]) <= 28 << 10
    (alone,) = made.batch([Message("t", b"x", keys=["k" * 32_000])])
    assert len(outer_of(made, alone)["KEYS"]) == 32_000


@given(messages)
def test_an_entry_made_by_itself_is_that_of_a_batch(batch: list[Message]):
    made = encoder()
    (part,) = made.batch(batch)
    entries = [made.entry(message) for message in batch]
    assert [size for size, *_ in entries] == [len(head + body + front) + 33 for _, head, body, front, _ in entries]
    assert (
        b"".join(
            head + body + front + key.encode() + b"\x02" for (_, head, body, front, _), key in zip(entries, part.uniq_keys, strict=True)
        )
        == part.body
    )
    assert [united for *_, united in entries] == [sum(len(key.encode()) + 1 for key in message.keys) for message in batch]


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        (Message("t", b""), InvalidMessage),
        (Message("t", b"x", tag="a||b"), InvalidName),
        (Message("t", b"x", tag=[]), InvalidName),
        (Message("t", b"x", tag="x" * 40_000), InvalidMessage),
        (Message("t", b"x", keys=["a b"]), InvalidMessage),
        (Message("t", b"x", keys=["\udcff"]), InvalidMessage),
        (Message("t", b"x", flag=2**31), InvalidMessage),
        (Message("t", b"x", properties={"a": "x" * 32_740}), InvalidMessage),
    ],
    ids=repr,
)
def test_an_entry_of_a_bad_message_is_refused(odd, error):
    with pytest.raises(error):
        encoder().entry(odd)


@pytest.mark.parametrize("flag", [2**31, -(2**31) - 1, 1.5, "1"])
def test_a_flag_that_has_no_32_bits_is_refused(flag):
    with pytest.raises(InvalidMessage, match="flag"):
        encoder().single(Message("t", b"x", flag=flag))


# --- results ------------------------------------------------------------------------------------------------------------


def test_each_message_of_a_plain_batch_has_its_own_ids_and_offset():
    results = BatchResults("t")
    results.add(Receipt(SendStatus.SEND_OK, ["U0", "U1"], "P0,P1", "t", "broker-a", 2, 40))
    results.add(Receipt(SendStatus.FLUSH_DISK_TIMEOUT, ["U2"], "P2", "t", "broker-b", 5, 7))
    assert [(r.msg_id, r.offset_msg_id, r.broker_name, r.queue_id, r.queue_offset) for r in results] == [
        ("U0", "P0", "broker-a", 2, 40),
        ("U1", "P1", "broker-a", 2, 41),
        ("U2", "P2", "broker-b", 5, 7),
    ]
    assert results.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert results[-1] == results[2]
    assert results[0:2] == list(results)[:2]
    assert results == list(results)
    assert len(results) == 3
    with pytest.raises(IndexError):
        results[3]


def test_messages_of_an_inner_batch_share_the_record_but_not_the_offset():
    results = BatchResults("t")
    results.add(Receipt(SendStatus.SEND_OK, ["U0", "U1", "U2"], "P", "t", "a", 0, 9))
    assert [(r.msg_id, r.offset_msg_id, r.queue_offset) for r in results] == [("U0", "P", 9), ("U1", "P", 10), ("U2", "P", 11)]
