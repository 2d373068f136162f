"""Keys hashed thousands at a time have the same hashes as one by one."""

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.protocol.hashing import java_hash
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.storage.chunks import KeyEntries
from sprocketmq.storage.index import key_hashing
from sprocketmq.storage.index.key_hashing import entries_of_topics


def key_hash(text: str) -> int:
    magnitude = abs(java_hash(text))
    return 0 if magnitude == 1 << 31 else magnitude


def expected_keys(topic: str, properties: bytes) -> list[str]:
    pairs = {}
    for piece in properties.decode("utf-8", "replace").split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            pairs[name] = value
    keys = [f"{topic}#{pairs['UNIQ_KEY']}"] if "UNIQ_KEY" in pairs else []
    keys += [f"{topic}#{word}" for word in pairs.get("KEYS", "").split(" ") if word]
    return keys + ([f"{topic}#T#{pairs['TAGS']}"] if "TAGS" in pairs else [])


def entries(topic: str, properties: list[bytes]) -> KeyEntries:
    count = len(properties)
    return entries_of_topics([topic.encode()], np.zeros(count, np.int64), properties, np.arange(count) * 1000, np.arange(count) + 7)


def unique_key_hashes(topic: str, values: list[bytes]) -> list[int]:
    """Return the hashes of records that only have a unique key."""
    hashes: list[int] = entries(topic, [b"UNIQ_KEY\x01" + value + b"\x02" for value in values]).hashes.tolist()
    return hashes


def check(topic: str, properties: list[bytes]) -> None:
    """Compare with hashing one by one, once as usual and once with strings of one length always tried as a table."""
    for fewest in (key_hashing._MIN_ALIKE, 1):
        with patch.object(key_hashing, "_MIN_ALIKE", fewest):
            compare(topic, properties)


def compare(topic: str, properties: list[bytes]) -> None:
    found = entries(topic, properties)
    wanted = [(key_hash(key), i * 1000, i + 7) for i, p in enumerate(properties) for key in expected_keys(topic, p)]
    assert list(zip(found.hashes.tolist(), found.log_offsets.tolist(), found.times_ms.tolist(), strict=True)) == wanted
    assert (found.hashes.dtype, found.log_offsets.dtype, found.times_ms.dtype) == (np.int32, np.int64, np.int64)


plain_text = st.text(st.characters(exclude_characters="\x01\x02"), min_size=1, max_size=40)
plain_bytes = st.binary(min_size=1, max_size=12).filter(lambda value: not set(value) & {1, 2})


@given(st.text(max_size=20), st.lists(plain_text, max_size=30))
def test_hashes_equal_java(topic: str, values: list[str]) -> None:
    topic, *values = (text.encode("utf-8", "replace").decode() for text in (topic, *values))
    assert unique_key_hashes(topic, [value.encode() for value in values]) == [key_hash(f"{topic}#{value}") for value in values]


@given(st.lists(plain_bytes, max_size=8))
def test_bytes_that_are_not_text_hash_with_replacement_characters(values: list[bytes]) -> None:
    assert unique_key_hashes("t", values) == [key_hash("t#" + value.decode("utf-8", "replace")) for value in values]


def test_the_smallest_hash_has_no_positive_counterpart_and_becomes_zero() -> None:
    assert java_hash("t#BEHMU\\^") == -(1 << 31)
    assert unique_key_hashes("t", [b"BEHMU\\^", b"a"]) == [0, key_hash("t#a")]


def test_long_values_hash_as_well() -> None:
    values = [b"v" * n for n in (32_767, 70_000, 1)]
    assert unique_key_hashes("t", values) == [key_hash("t#" + value.decode()) for value in values]


names = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "XKEYS", "KEYS2", "MY_UNIQ_KEY", "S", "é"])
texts = st.text("ab é\U0001f600 ", max_size=9)


@given(st.sampled_from(["orders", "commandes-é", "%RETRY%g"]), st.lists(st.lists(st.tuples(names, texts), max_size=6), max_size=9))
def test_keys_of_property_strings(topic: str, records: list[list[tuple[str, str]]]) -> None:
    check(topic, ["".join(f"{name}\x01{value}\x02" for name, value in pairs).encode() for pairs in records])


@given(st.lists(st.text("\x01\x02KEYSTAG UNIQ_\xe9", max_size=40), max_size=6))
def test_keys_of_malformed_property_strings(records: list[str]) -> None:
    check("t", [record.encode() for record in records])


@given(st.lists(st.binary(max_size=30).map(lambda junk: b"TAGS\x01a\x02" + junk), max_size=6))
def test_keys_of_property_strings_that_are_not_text(records: list[bytes]) -> None:
    check("t", records)


@given(
    st.lists(st.tuples(names, texts), max_size=4),
    st.lists(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("ab \x01\x02é\0")), max_size=2), max_size=12),
)
def test_keys_of_nearly_identical_property_strings(pairs: list[tuple[str, str]], changes: list[list[tuple[int, str]]]) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    strings = []
    for some in changes:
        string = text
        for at, char in some:
            string = string[:at] + char + string[at + 1 :] if at < len(string) else string
        strings.append(string.encode())
    check("t", strings)


def test_keys_of_many_strings_with_one_layout() -> None:
    plain = [b"UNIQ_KEY\x01%08X\x02KEYS\x01k%03d shared\x02TAGS\x01t%d\x02" % (i, i, i % 3) for i in range(200)]
    check("t", plain)
    odd = [(1, b"TAGS\x01t\x02"), (70, b""), (71, plain[5].replace(b" ", b"-")), (72, plain[6].replace(b"0", b" ")), (150, plain[7][:-1])]
    for at, string in odd:
        plain[at] = string
    check("t", plain)


def test_a_missing_last_separator_does_not_join_values() -> None:
    check("t", [b"KEYS\x01a b", b"TAGS\x01x", b"", b"UNIQ_KEY\x01u\x02KEYS\x01c"])


def test_the_last_value_of_a_repeated_property_counts() -> None:
    check("t", [b"KEYS\x01a\x02KEYS\x01b\x02", b"TAGS\x01x\x02TAGS\x01\x02"])


def test_records_of_several_topics_keep_their_order() -> None:
    topics = ["a", "long-topic", "é"]
    owners = [2, 0, 1, 0, 2, 1]
    strings = [encode_properties({"UNIQ_KEY": f"u{i}", "KEYS": f"k{i} shared", "TAGS": "t" * (i % 3)}) for i in range(6)]
    found = entries_of_topics([t.encode() for t in topics], np.array(owners), strings, np.arange(6), np.arange(6))
    assert found.hashes.tolist() == [key_hash(key) for o, s in zip(owners, strings, strict=True) for key in expected_keys(topics[o], s)]


def test_no_keys_make_no_entries() -> None:
    assert [len(column) for column in entries("t", [])] == [0, 0, 0]
    assert [len(column) for column in entries("t", [b"", b"WAIT\x01true\x02"])] == [0, 0, 0]
