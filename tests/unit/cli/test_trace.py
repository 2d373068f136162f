"""``sprocketmq trace``."""

import pytest

from sprocketmq import Message, sync
from sprocketmq.cli.trace import BAR_WIDTH, Event, bar
from sprocketmq.protocol.traces import TRACE_TOPIC, ConsumeCode, PubTrace, SubAfterTrace, SubBeforeTrace

BASE = 1_795_229_551_000


def _write(mq, *records, keys):
    with sync.Producer("tracer", namesrv=mq.namesrv) as producer:
        producer.send(Message(TRACE_TOPIC, "".join(record.encode() for record in records).encode(), keys=keys))


@pytest.fixture(scope="module", autouse=True)
def traces(mq):
    _write(
        mq,
        PubTrace(BASE, "DefaultRegion", "pg", "orders", "M1", "red", "k1", "10.0.0.1:10911", 5, 12, 0, "O1", True, "10.0.0.5"),
        SubBeforeTrace(BASE + 100, "DefaultRegion", "cg", "R1", "M1", 0, "k1"),
        SubAfterTrace("R1", "M1", 9, False, "k1", ConsumeCode.EXCEPTION, BASE + 109, "cg"),
        SubBeforeTrace(BASE + 1000, "DefaultRegion", "cg", "R2", "M1", 1, "k1"),
        SubAfterTrace("R2", "M1", 4, True, "k1", ConsumeCode.SUCCESS, BASE + 1004, "cg"),
        SubBeforeTrace(BASE + 2000, "DefaultRegion", "others", "R3", "M1", 0, "k1"),
        keys=["M1"],
    )


def test_the_life_of_a_message_is_printed_in_order(cli):
    done = cli("trace", "M1")
    assert done.code == 0
    heading, columns, *rows = done.out.splitlines()
    assert heading == "message M1 of topic orders, 5 bytes, tag red, keys k1"
    assert columns.split("\t") == ["time", "after", "what", "group", "client", "took"]
    cells = [row.split("\t") for row in rows]
    assert [(row[1], row[2], row[3], row[5]) for row in cells] == [
        ("+0 ms", "sent to 10.0.0.1:10911", "pg", "12 ms"),
        ("+100 ms", "delivery 1: failed (exception)", "cg", "9 ms"),
        ("+1000 ms", "delivery 2: consumed", "cg", "4 ms"),
        ("+2000 ms", "delivery 1: not ended, or its end was not traced", "others", "-"),
    ]
    assert cells[0][4] == "10.0.0.5"


def test_json_has_the_same(cli):
    trace = cli("trace", "M1", "--json").json
    assert (trace["msg_id"], trace["topic"], trace["trace_topic"]) == ("M1", "orders", TRACE_TOPIC)
    assert [(d["group"], d["success"], d["outcome"]) for d in trace["deliveries"]] == [
        ("cg", False, "EXCEPTION"),
        ("cg", True, "SUCCESS"),
        ("others", None, None),
    ]
    assert trace["sends"][0]["time_ms"] == BASE


def test_produce_and_consume_write_traces_when_asked_to(cli):
    assert cli("produce", "traced", "--trace", "--key", "k7", stdin=b"one\ntwo\n").code == 0
    done = cli("consume", "traced", "--from", "first", "--group", "cg-traced", "--count", "2", "--json", "--trace")
    for message in done.json_lines:
        trace = cli("trace", message["msg_id"], "--json").json
        assert [(send["group"], send["topic"], send["keys"]) for send in trace["sends"]] == [("sprocketmq-cli", "traced", "k7")]
        assert [(delivery["group"], delivery["success"]) for delivery in trace["deliveries"]] == [("cg-traced", True)]
    assert "--trace traces what a consumer group gets: add --group" in cli("consume", "traced", "--trace").err


def test_a_message_without_a_trace_is_one_sentence(cli):
    done = cli("trace", "M2")
    assert done.code == 1
    assert f"no trace of message M2 in topic {TRACE_TOPIC}" in done.err
    assert cli("trace", "M1", "--until", "1").code == 1


def test_bad_arguments_and_a_missing_topic(cli):
    assert "is not a message id" in cli("trace", "two words").err
    assert "--since takes" in cli("trace", "M1", "--since", "yesterday").err
    done = cli("trace", "M1", "--topic", "Nowhere")
    assert done.code == 1
    assert "nothing is traced here: there is no topic Nowhere" in done.err
    assert "produce --trace" in done.err


def test_hostile_records_reach_no_terminal(cli, mq):
    evil = "\x1b[31mred\n"
    _write(
        mq,
        PubTrace(2**62, evil, evil, "orders", "M3", evil, evil, evil, 5, -7, 99, evil, False),
        SubBeforeTrace(-(2**62), "r", evil, "R", "M3", 0, evil),
        keys=["M3"],
    )
    done = cli("trace", "M3")
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "not stored safely by" in done.out


@pytest.mark.parametrize(
    ("start", "end", "drawn"),
    [
        (0, 0, "█" + "·" * (BAR_WIDTH - 1)),
        (0, 100, "█" * BAR_WIDTH),
        (50, 75, "·" * 16 + "█" * 8 + "·" * 8),
        (100, 100, "·" * (BAR_WIDTH - 1) + "█"),
    ],
)
def test_bars_show_when_it_was(start, end, drawn):
    assert bar(Event(start, end, "", "", "", ""), 0, 100) == drawn


def test_a_bar_of_a_single_moment():
    assert bar(Event(5, 5, "", "", "", ""), 5, 5) == "█" + "·" * (BAR_WIDTH - 1)
