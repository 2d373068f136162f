"""JSON as RocketMQ writes it: bare integers and whole queues as keys."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import LocalProtocolError, RemoteProtocolError
from sprocketmq.protocol.jsondialect import MAX_DEPTH, dumps_with_queue_keys, loads
from sprocketmq.protocol.message import MessageQueue

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
int64 = st.integers(-(2**63), 2**63 - 1)
scalars = st.none() | st.booleans() | int64 | text | st.floats(allow_nan=False, allow_infinity=False)
queues = st.tuples(text, text, st.integers(0, 1000))
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4) | st.dictionaries(queues, inner, max_size=4),
    max_leaves=12,
)
strict_trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12)


@given(trees)
def test_a_tree_with_queue_keys_reads_back_as_it_was(tree):
    assert loads(dumps_with_queue_keys(tree)) == tree


@given(strict_trees)
def test_strict_json_is_read_and_written_as_everyone_does(tree):
    assert loads(json.dumps(tree)) == tree
    assert json.loads(dumps_with_queue_keys(tree)) == tree


@given(strict_trees)
def test_the_tolerant_reader_agrees_with_the_strict_one(tree):
    # One bare key makes the whole text not strict, so our own parser reads all of it.
    assert loads(b"{0:%b}" % json.dumps(tree, indent=1).encode()) == {0: tree}
    assert loads(b"{0:%b}" % json.dumps(tree, ensure_ascii=False).encode()) == {0: tree}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{0:"a",-1:"b","2":"c"}', {0: "a", -1: "b", "2": "c"}),
        (b'{"b":{0:"127.0.0.1:10911"}}', {"b": {0: "127.0.0.1:10911"}}),
        (b'{{"brokerName":"b","queueId":0,"topic":"t"}:5}', {("t", "b", 0): 5}),
        (b'{{"topic":"t","x":[],"queueId":"7","brokerName":"b"} : {1:2}}', {("t", "b", 7): {1: 2}}),
        (b' { 1 : [ 1 , -2.5e1 , true , false , null , "x\\u0001\\n" ] } ', {1: [1, -25.0, True, False, None, "x\x01\n"]}),
        (b"{1:{},2:[]}", {1: {}, 2: []}),
        (b"[{1:2}]", [{1: 2}]),
        ('{1:"é\\ud83d\\ude00"}'.encode(), {1: "é😀"}),
    ],
)
def test_keys_may_be_bare_integers_and_whole_queues(raw, expected):
    assert loads(raw) == expected
    assert loads(raw.decode()) == expected
    assert loads(memoryview(raw)) == expected
    assert loads(bytearray(raw)) == expected


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b" ", b"{", b"[", b'"', b"}", b"{1", b"{1:", b"{1:2", b"{1:2,", b"{1:2,}", b"{,}", b"[1,", b"[1,]", b"[1 2]", b"{1 2}"),
        *(b"{1:2}x", b"{1:2}{", b"{a:1}", b"{'a':1}", b"{1.5:1}", b"{1e3:1}", b"{-:1}", b"{01:1}", b"{null:1}", b"{[]:1}", b"{{}:1}"),
        *(b'{{"topic":"t"}:1}', b'{{"topic":1,"brokerName":"b","queueId":0}:1}', b'{{"topic":"t","brokerName":"b","queueId":true}:1}'),
        *(
            b"{1:nul}",
            b"{1:NaN}",
            b"{1:Infinity}",
            b"{1:+1}",
            b"{1:.5}",
            b"{1:1.}",
            b"{1:\x00}",
            b'{1:"\x01"}',
            b'{1:"\\x"}',
            b'{1:"\\u12"}',
        ),
        *(b'{1:"\\ud800"}', b'{1:"abc', b"\xff", b'{1:"\xff"}', b"{1:" + b"9" * 5000 + b"}"),
    ],
)
def test_everything_else_is_refused(raw):
    with pytest.raises(RemoteProtocolError):
        loads(raw)


@pytest.mark.parametrize("opening", [b"[", b"{1:", b'{"a":', b"{{"])
def test_deep_nesting_is_refused_quickly(opening):
    with pytest.raises(RemoteProtocolError, match=r"deep|parse"):
        loads(b"{1:" + opening * 100_000)


def test_nesting_up_to_the_limit_is_read():
    value = loads(b"{1:" * MAX_DEPTH + b"0" + b"}" * MAX_DEPTH)
    for _ in range(MAX_DEPTH):
        value = value[1]
    assert value == 0


def test_queue_keys_are_written_as_objects():
    expected = b'{{"brokerName":"b","queueId":0,"topic":"t"}:5}'
    assert dumps_with_queue_keys({MessageQueue("t", "b", 0): 5}) == expected
    assert dumps_with_queue_keys({("t", "b", 0): 5}) == expected
    assert dumps_with_queue_keys({"table": {}, "list": [], "n": {1: None}}) == b'{"table":{},"list":[],"n":{"1":null}}'


@pytest.mark.parametrize(
    "value", [{b"x": 1}, {1.5: 1}, {None: 1}, {("t", "b"): 1}, {("t", "b", "x"): 1}, object(), {1: "\ud800"}, {"\ud800": 1}, {True: 1}]
)
def test_values_without_a_form_are_refused(value):
    with pytest.raises(LocalProtocolError, match="cannot be written"):
        dumps_with_queue_keys(value)


def test_a_value_that_holds_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(LocalProtocolError):
        dumps_with_queue_keys(loop)
