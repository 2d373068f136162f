"""How far behind a reader is: from a group, a checkpoint, a query's progress and a landed table."""

import io
import json
import sys

import pytest
import rich
from rich.console import Console

from sprocketmq import Message, sync
from sprocketmq.cli.app import main
from sprocketmq.cli.pipeline import lag as cli
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ConfigError, ConnectFailed, GroupNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.jobs.lag import Lag, LagReader, NoProgress, QueueLag, checkpoint_offsets, lag, progress_offsets, rates
from sprocketmq.spark.jobs.land.table import TableSpec
from sprocketmq.spark.jobs.land.table_errors import NotALandingTable
from sprocketmq.spark.jobs.land.table_writer import TableWriter
from sprocketmq.spark.source.offsets import WrongCheckpoint, encode_offsets

Q0, Q1 = (MessageQueue("T", "broker-a", i) for i in range(2))


@pytest.fixture(scope="module")
def mq():
    with LocalCluster() as running:
        running.create_topic("T", queues=2)
        with sync.Producer("tests", namesrv=running.namesrv) as producer:
            for queue in producer.queues("T"):
                producer.send_batch([Message("T", b"x", queue=queue) for _ in range(10)])
        yield running


# --- what follows from numbers ------------------------------------------------------------------------------------------


def test_lag_and_loss_of_a_queue():
    assert (QueueLag(Q0, 4, 0, 10).lag, QueueLag(Q0, 4, 0, 10).lost) == (6, 0)
    assert (QueueLag(Q0, 4, 7, 10).lag, QueueLag(Q0, 4, 7, 10).lost) == (3, 3), "what was removed is not there to be read"
    assert QueueLag(Q0, None, 2, 10).lag == 8, "a queue the reader does not know yet is read from its beginning"
    assert QueueLag(Q0, 4, None, None).lag == 0
    assert QueueLag(Q0, 12, 0, 10).lag == 0


def looked(at_s, *numbers):
    return Lag("table", "t", tuple(QueueLag(queue, *both) for queue, both in zip((Q0, Q1), numbers, strict=False)), at_s)


def test_rates_between_two_looks():
    before, after = looked(10.0, (0, 0, 100), (0, 0, 10)), looked(12.0, (50, 0, 120), (10, 0, 10))
    assert rates(before, after) == (30.0, 10.0)
    assert rates(before, before) == (0.0, 0.0)
    assert rates(looked(1.0), after) == (0.0, 0.0)


def test_a_look_in_one_line():
    before, after = looked(10.0, (0, 0, 1000)), looked(20.0, (500, 0, 1200))
    assert cli.line(before, None) == "table t: 1,000 messages behind"
    assert cli.line(after, before) == "table t: 700 messages behind; 50/s read, 20/s added, at the end in 23 s"
    assert (
        cli.line(looked(1.0, (0, 5, None)), None)
        == "table t: 0 messages behind, 5 removed before they were read, 1 queue not there any more"
    )
    assert [cli._duration(seconds) for seconds in (5, 600, 36_000)] == ["5 s", "10 min", "10.0 h"]


# --- checkpoints --------------------------------------------------------------------------------------------------------


def write_checkpoint(root, batches, finished):
    for name in ("offsets", "commits"):
        (root / name).mkdir()
    for number, sources in batches.items():
        (root / "offsets" / str(number)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *sources]))
    for number in finished:
        (root / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (root / "offsets" / ".2.crc").write_text("x")


def ours(**offsets):
    return json.dumps(encode_offsets({MessageQueue("T", "broker-a", int(name[1:])): offset for name, offset in offsets.items()}, 2))


def test_a_query_stands_at_the_end_of_its_last_finished_batch(tmp_path):
    write_checkpoint(tmp_path, {9: [ours(q0=1)], 10: ['{"logOffset":3}', ours(q0=5, q1=6)], 11: [ours(q0=9)]}, (9, 10))
    assert checkpoint_offsets(tmp_path) == {Q0: 5, Q1: 6}


def test_a_directory_without_progress_says_so(tmp_path):
    with pytest.raises(NoProgress, match="it has no directory offsets; name the query's checkpointLocation"):
        checkpoint_offsets(tmp_path)
    write_checkpoint(tmp_path, {0: [ours(q0=1)]}, ())
    with pytest.raises(NoProgress, match="has not finished a batch yet"):
        checkpoint_offsets(tmp_path)
    with pytest.raises(ConfigError, match="is not a directory of a file system"):
        checkpoint_offsets("s3://bucket/checkpoint")


def test_a_checkpoint_of_other_sources_is_refused(tmp_path):
    write_checkpoint(tmp_path, {0: ['{"logOffset":3}', "17", "-"]}, (0,))
    with pytest.raises(WrongCheckpoint, match="has no offsets of the rocketmq source"):
        checkpoint_offsets(tmp_path)


# --- a query's progress -------------------------------------------------------------------------------------------------


def test_progress_of_a_query_or_of_a_listener():
    progress = {"name": None, "id": "7f", "sources": [{"endOffset": ours(q0=5)}, {"endOffset": None}]}

    class Query:
        name, id = "q", "7f"
        lastProgress = progress  # noqa: N815 - Spark's name

    assert progress_offsets(Query()) == progress_offsets(progress) == ("7f", {Q0: 5})
    Query.lastProgress = None
    with pytest.raises(NoProgress, match="query q: it has not finished a batch yet"):
        progress_offsets(Query())
    with pytest.raises(WrongCheckpoint):
        progress_offsets({"name": "q", "sources": [{"endOffset": "3"}]})


# --- against a broker ---------------------------------------------------------------------------------------------------


def test_a_group_s_lag(mq):
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        admin.create_group("readers")
        for queue, offset in zip(admin.queues("T"), (3, 10), strict=True):
            admin.commit("readers", queue, offset)
    found = lag(mq.namesrv, group="readers")
    assert [(one.queue, one.position, one.begin, one.end, one.lag) for one in found.queues] == [(Q0, 3, 0, 10, 7), (Q1, 10, 0, 10, 0)]
    assert (found.lag, found.lost, found.gone) == (7, 0, 0)
    assert found.rows() == [("group", "readers"), ("queues", "2"), ("messages behind", "7")]
    with pytest.raises(GroupNotFound):
        lag(mq.namesrv, group="nobody")


def test_a_query_s_lag_counts_queues_it_does_not_know_and_those_that_are_gone(mq, tmp_path):
    gone = MessageQueue("T", "broker-z", 0)
    write_checkpoint(tmp_path, {0: [json.dumps(encode_offsets({Q0: 4, gone: 9}))]}, (0,))
    found = lag(mq.namesrv, checkpoint=tmp_path)
    assert [(one.queue, one.position, one.end, one.lag) for one in found.queues] == [(Q0, 4, 10, 6), (Q1, None, 10, 10), (gone, 9, None, 0)]
    assert found.as_dict()["queues"][0]["lag"] == 6
    assert ("queues not there any more", "1") in found.rows()


def test_a_topic_that_was_deleted_is_gone(mq, tmp_path):
    progress = {"name": "q", "sources": [{"endOffset": encode_offsets({MessageQueue("Deleted", "broker-a", 0): 4})}]}
    found = lag(mq.namesrv, query=progress)
    assert (found.kind, found.what, found.gone, found.lag) == ("query", "q", 1, 0)


def test_a_table_s_lag(mq, tmp_path):
    with TableWriter(tmp_path / "t") as writer:
        writer.open()
        writer.create(TableSpec(("T",), ("body",), (), encode_offsets({Q0: 0, Q1: 2})))
    assert lag(mq.namesrv, table=tmp_path / "t").lag == 18
    with pytest.raises(NotALandingTable):
        lag(mq.namesrv, table=tmp_path)


@pytest.mark.parametrize(
    ("whose", "says"),
    [
        ({}, "say whose lag: one of group, checkpoint, table and query"),
        ({"group": "g", "table": "t"}, "query, not group and table"),
        ({"table": "t", "topic": "T"}, "topic goes with group"),
    ],
)
def test_whose_lag_must_be_said_once(whose, says):
    with pytest.raises(ConfigError, match=says):
        LagReader("127.0.0.1:1", **whose)


# --- the command --------------------------------------------------------------------------------------------------------


def run(capfd, *arguments):
    code = main(["pipeline", "lag", *arguments])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return code, out, err


def test_the_command_prints_a_table_or_json(mq, tmp_path, capfd):
    write_checkpoint(tmp_path, {0: [ours(q0=4, q1=10)]}, (0,))
    code, out, _ = run(capfd, "--checkpoint", str(tmp_path), "--namesrv", mq.namesrv)
    assert (code, out.splitlines()[1:]) == (
        0,
        ["T\tbroker-a\t0\t4\t10\t6\t0", "T\tbroker-a\t1\t10\t10\t0\t0", "", f"checkpoint {tmp_path}: 6 messages behind"],
    )
    code, out, _ = run(capfd, "--checkpoint", str(tmp_path), "--namesrv", mq.namesrv, "--json", "--watch", "--count", "2", "--every", "0.1")
    first, second = map(json.loads, out.splitlines())
    assert (code, first["lag"], second["lag"], second["read_per_s"]) == (0, 6, 6, 0.0)
    assert "read_per_s" not in first


def test_the_command_refuses_what_cannot_be(mq, tmp_path, capfd):
    assert run(capfd)[::2] == (2, "sprocketmq: say whose lag: one of --group, --checkpoint and --table\n")
    code, _, err = run(capfd, "--group", "nobody", "--namesrv", mq.namesrv)
    assert code == 1
    assert err.startswith("sprocketmq: no broker knows the consumer group 'nobody'")
    assert run(capfd, "--checkpoint", str(tmp_path), "--namesrv", mq.namesrv)[0] == 1


def test_watching_outlives_a_broker_that_does_not_answer(capfd):
    answers = [looked(1.0, (0, 0, 9)), ConnectFailed("h:1", "broker", "refused"), looked(2.0, (9, 0, 9))]
    slept = []

    def read():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cli.look_again_and_again(read, every_s=5, looks=3, as_json=False, sleep=slept.append)
    out, err = capfd.readouterr()
    assert slept == [5, 5]
    assert "cannot connect to h:1" in err
    assert "looking again in 5 s" in err
    assert out.splitlines()[-1] == "table t: 0 messages behind; 9/s read, 0/s added"


def test_a_terminal_is_drawn_on_whatever_richs_own_console_was_made_for(monkeypatch):
    monkeypatch.setattr(rich, "_console", Console(file=io.StringIO()))  # made when nobody looked
    monkeypatch.setenv("TERM", "xterm")
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    drawn = []
    cli.look_again_and_again(
        lambda: looked(1.0, (0, 0, 9)), every_s=1, looks=2, as_json=False, sleep=lambda _: drawn.append(terminal.getvalue())
    )
    assert "9 messages behind" in drawn[0]


def test_ctrl_c_ends_watching(capfd):
    def interrupt(seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # which the command reports
        cli.look_again_and_again(lambda: looked(1.0, (0, 0, 9)), every_s=1, looks=None, as_json=True, sleep=interrupt)
    assert json.loads(capfd.readouterr()[0])["lag"] == 9


def test_a_terminal_gets_a_live_table(monkeypatch, capfd):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    looks = iter([looked(1.0, (0, 0, 9), (3, 4, 5)), looked(2.0, (9, 0, 9), (5, 4, None))])
    cli.look_again_and_again(lambda: next(looks), every_s=1, looks=2, as_json=False, sleep=lambda seconds: None)
    assert "1 queue not there any more" in capfd.readouterr()[0]
