"""``sprocketmq produce`` and ``sprocketmq consume``."""

import base64
import fcntl
import io
import json
import os
import pty
import signal
import subprocess
import sys
import termios

import pytest
from tests.waiting import freeze, next_millisecond

from sprocketmq import Message, sync
from sprocketmq.cli.errors import EXIT_USAGE
from sprocketmq.embedded import LocalCluster
from sprocketmq.testing import wait_until


@pytest.fixture
def topic(request):
    return f"t-{abs(hash(request.node.name))}"


def test_each_line_is_a_message(cli, mq, topic):
    done = cli("produce", topic, "--tag", "new", "--key", "k1", "--key", "k2", stdin=b"one\r\n\ntwo\nlast without end")
    assert done.code == 0
    assert done.out.startswith(f"sent 3 messages to {topic} in ")
    assert "1 empty line skipped" in done.out
    messages = mq.messages(topic, count=3)
    assert [m.body for m in messages] == [b"one", b"two", b"last without end"]
    assert {m.tag for m in messages} == {"new"}
    assert messages[0].keys == ["k1", "k2"]


def test_messages_that_are_not_on_the_slaves_are_told(cli):
    with LocalCluster(replicas=1, role="SYNC_MASTER") as mq:
        mq.create_topic("orders", queues=1)
        mq.stop_broker("broker-a-1")
        done = cli("produce", "orders", "--namesrv", mq.namesrv, stdin=b"a\nb\n")
        assert done.code == 0
        assert done.out.endswith("; 2 of them stored with status SLAVE_NOT_AVAILABLE\n")
        assert cli("produce", "orders", "--namesrv", mq.namesrv, "--json", stdin=b"c\n").json["statuses"] == {"SLAVE_NOT_AVAILABLE": 1}


def test_the_json_summary_says_where_messages_went(cli, topic):
    done = cli("produce", topic, "--json", stdin=b"a\nb\nc\n")
    summary = done.json
    assert (summary["topic"], summary["messages"], summary["bytes"], summary["batches"]) == (topic, 3, 3, 1)
    assert sum(q["messages"] for q in summary["queues"]) == 3
    assert all(q["last_offset"] - q["first_offset"] == q["messages"] - 1 for q in summary["queues"])
    assert summary["failures"] == []


def test_a_new_topic_gets_plain_queues_as_from_any_producer(cli, mq, topic):
    summary = cli("produce", topic, "--json", stdin=b"a\nb\nc\n").json
    assert (summary["messages"], summary["batches"]) == (3, 1)
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        assert not admin.topic_config(topic)["broker-a"].attributes
    assert len({m.offset_msg_id for m in mq.messages(topic, count=3)}) == 3


@pytest.mark.parametrize("way", [(), ("--no-batch",)])
def test_batch_queues_that_are_asked_for_are_made_and_lines_share_their_records(cli, mq, topic, way):
    for _ in range(2):
        assert cli("produce", topic, "--batch-queues", *way, stdin=b"a\nb\nc\n").code == 0
    messages = mq.messages(topic, count=6)
    assert len({m.offset_msg_id for m in messages}) == (6 if way else 2)
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        assert admin.topic_config(topic)["broker-a"].attributes == {"queue.type": "BatchCQ"}


def test_batch_queues_cannot_be_asked_for_where_a_topic_has_plain_ones(cli, mq, topic):
    mq.create_topic(topic)
    done = cli("produce", topic, "--batch-queues", stdin=b"a\n")
    assert (done.code, done.out) == (EXIT_USAGE, "")
    assert f"topic '{topic}' has plain queues on broker-a" in done.err
    assert mq.messages(topic) == []


def test_no_topic_is_made_where_brokers_make_none(tmp_path, command):
    (tmp_path / "lines").write_bytes(b"a\nb\n")
    with LocalCluster(auto_create_topic=False) as strict:
        code, out, err = command("produce", "orders", "--file", tmp_path / "lines", "--namesrv", strict.namesrv)
    assert code == 1
    assert out.startswith("sent 0 messages")
    assert "lines 1 to 2 not sent: topic 'orders' has no route" in err


def test_a_thousand_lines_arrive_once_each(cli, mq, topic):
    lines = [b"%d" % i for i in range(1000)]
    assert cli("produce", topic, stdin=b"\n".join(lines)).code == 0
    assert sorted(m.body for m in mq.messages(topic, count=1000)) == sorted(lines)


def test_a_file_can_be_one_message(cli, mq, topic, tmp_path):
    body = os.urandom(100_000)
    (tmp_path / "blob").write_bytes(body)
    assert cli("produce", topic, "--whole", "--file", str(tmp_path / "blob")).code == 0
    assert [m.body for m in mq.messages(topic, count=1)] == [body]
    out = tmp_path / "out"
    done = cli("consume", topic, "--from", "first", "--count", "1", "--raw", "--output", str(out))
    assert done.out == f"wrote 1 message to {out}\n"
    assert out.read_bytes() == body


def test_json_lines_carry_tags_keys_and_properties(cli, mq, topic):
    lines = [
        {"body": "text ✓", "tag": "a", "keys": ["k"], "properties": {"source": "web"}},
        {"body_base64": base64.b64encode(b"\xff\x00").decode()},
    ]
    assert cli("produce", topic, "--jsonl", "--tag", "other", stdin="\n".join(map(json.dumps, lines)).encode()).code == 0
    second, first = sorted(mq.messages(topic, count=2), key=lambda m: m.body, reverse=True)
    assert (first.body.decode(), first.tag, first.keys, first.properties["source"]) == ("text ✓", "a", ["k"], "web")
    assert (second.body, second.tag) == (b"\xff\x00", "other")


def test_what_consume_prints_as_json_produce_takes_back(cli, mq, topic):
    with sync.Producer("pg", namesrv=mq.namesrv) as producer:
        producer.send_batch([Message(topic, b"\xff\xfe", "a", ["k"], {"p": "q"}), Message(topic, b"text", properties={"x": "y"})])
    printed = cli("consume", topic, "--from", "first", "--count", "2", "--json").out
    copy = topic + "-copy"
    assert cli("produce", copy, "--jsonl", stdin=printed.encode()).code == 0
    second, first = sorted(mq.messages(copy, count=2), key=lambda m: m.body)
    assert (first.body, first.tag, first.keys, first.properties["p"]) == (b"\xff\xfe", "a", ["k"], "q")
    assert (second.body, second.tag, second.properties["x"]) == (b"text", None, "y")


def test_consume_prints_a_line_for_each_message_and_stops_at_count(cli, topic):
    cli("produce", topic, stdin=b"a\nb\nc\nd\n")
    done = cli("consume", topic, "--from", "first", "--count", "3")
    assert (done.code, done.out) == (0, "a\nb\nc\n")


def test_json_lines_say_everything_about_a_message(cli, mq, topic):
    cli("produce", topic, "--tag", "a", stdin=b"x\n")
    (line,) = cli("consume", topic, "--from", "first", "--count", "1", "--json").json_lines
    (message,) = mq.messages(topic)
    assert line == {
        "topic": topic,
        "broker_name": "broker-a",
        "queue_id": message.queue_id,
        "queue_offset": 0,
        "tag": "a",
        "keys": [],
        "properties": {},
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "reconsume_times": 0,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
        "body": "x",
    }


def test_consume_stops_after_a_silence_and_fails_only_when_a_count_was_asked_for(cli, topic):
    cli("produce", topic, stdin=b"a\n")
    done = cli("consume", topic, "--from", "first", "--timeout", "2")
    assert (done.code, done.out) == (0, "a\n")
    done = cli("consume", topic, "--from", "first", "--timeout", "2", "--count", "2")
    assert (done.code, done.out) == (1, "a\n")
    assert "only 1 message of 2 arrived" in done.err


def test_consume_filters_by_tag(cli, topic):
    cli("produce", topic, "--tag", "a", stdin=b"1\n2\n")
    cli("produce", topic, "--tag", "b", stdin=b"3\n")
    assert cli("consume", topic, "--from", "first", "--tag", "b || c", "--count", "1").out == "3\n"


def test_consume_starts_at_a_time(cli, mq, topic):
    mq.create_topic(topic, queues=1)
    cli("produce", topic, stdin=b"early\n")
    next_millisecond()
    cli("produce", topic, stdin=b"late\n")
    late = mq.messages(topic)[1].store_timestamp_ms
    assert cli("consume", topic, "--from", str(late / 1000), "--count", "1").out == "late\n"
    assert cli("consume", topic, "--from", "2020-01-01", "--count", "2").out == "early\nlate\n"


def test_a_group_goes_on_where_it_stopped_without_loss_or_repetition(cli, topic):
    cli("produce", topic, stdin=b"".join(b"%d\n" % i for i in range(10)))
    first = cli("consume", topic, "--group", "g1", "--from", "first", "--count", "4").out.split()
    rest = cli("consume", topic, "--group", "g1", "--from", "first", "--count", "6", "--timeout", "5").out.split()
    assert sorted(first + rest) == [str(i) for i in range(10)]


def test_a_message_that_comes_again_after_a_failure_is_told_of(cli, mq, topic):
    cli("produce", topic, stdin=b"good\nbad\n")
    with sync.PushConsumer("g-retries", topic, namesrv=mq.namesrv, consume_from="first") as consumer:
        for batch in consumer.batches():
            for message in batch:
                if message.body == b"bad":
                    batch.retry(message, delay_level=1)
            batch.ack()
            break
    done = cli("consume", topic, "--group", "g-retries", "--count", "1", "--timeout", "10", "--json")
    assert (done.code, done.json["body"], done.json["reconsume_times"]) == (0, "bad", 1)
    assert done.err == "sprocketmq: 1 of 1 message were delivered again after a failure; see reconsume_times in the output of --json\n"


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        (("no good",), b"", EXIT_USAGE, "topic 'no good' is not valid"),
        (("SCHEDULE_TOPIC_XXXX",), b"", EXIT_USAGE, "system topic that does not take messages"),
        (("t", "--tag", "a||b"), b"", EXIT_USAGE, "tag 'a||b' is not valid"),
        (("t", "--group", "no good"), b"", EXIT_USAGE, "group 'no good' is not valid"),
        (("t", "--key", ""), b"", EXIT_USAGE, "key '' is not valid: a key is one word"),
        (("t", "--key", "a b"), b"", EXIT_USAGE, "key 'a b' is not valid: a key is one word"),
        (("t", "--jsonl", "--whole"), b"", EXIT_USAGE, "exclude each other"),
        (("t", "--whole"), b"", 1, "the input is empty"),
        (("t", "--whole"), b"x" * (10 << 20), 1, "the input has more than 4194304 bytes, the limit of a message"),
        (("t",), b"short\n" + b"x" * (10 << 20) + b"\n", 1, "line 2 has more than 4194304 bytes, the limit of a message"),
        (("t", "--file", "/nowhere/x"), b"", 1, "No such file or directory: /nowhere/x"),
        (("t", "--jsonl"), b"[1]\n", 1, "line 1 is not a message: Expected `object`, got `array`"),
        (("t", "--jsonl"), b"not json\n", 1, "line 1 is not a message: JSON is malformed"),
        (("t", "--jsonl"), b'{"tag":"a"}\n', 1, 'either "body" (text) or "body_base64"'),
        (("t", "--jsonl"), b'{"body":""}\n', 1, "at least one byte"),
        (("t", "--jsonl"), b'{"body":"a","tags":"x"}\n', 1, "unknown field `tags`"),
        (("t", "--jsonl"), b'{"body_base64":"?"}\n', 1, "is not base64"),
    ],
)
def test_bad_input_to_produce_is_explained(cli, arguments, stdin, code, words):
    done = cli("produce", *arguments, stdin=stdin)
    assert done.code == code
    assert words in done.err


def test_lines_before_a_bad_one_are_sent_and_counted(cli, mq, topic):
    done = cli("produce", topic, "--jsonl", stdin=b'{"body":"good"}\nbad\n{"body":"never"}\n')
    assert done.code == 1
    assert "line 2 is not a message" in done.err
    assert done.out.startswith("sent 1 message to")
    assert [m.body for m in mq.messages(topic)] == [b"good"]


def test_a_message_the_broker_refuses_is_named_by_its_lines(cli, mq, topic):
    done = cli("produce", topic, "--jsonl", "--json", stdin=b'{"body":"a"}\n{"body":"b","properties":{"TAGS":"x"}}\n')
    assert done.code == 1
    assert "line 2 not sent: the property 'TAGS' belongs to RocketMQ" in done.err
    assert done.json["messages"] == 1
    assert len(done.json["failures"]) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("missing", "--count", "1"), 1, "topic 'missing' has no route"),
        (("no good",), EXIT_USAGE, "topic 'no good' is not valid"),
        *(
            (("t", "--from", time), EXIT_USAGE, f"a time such as 2024-05-01T12:00:00, not {time!r}")
            for time in ("yesterday", "nan", "inf", "1e300", "-5")
        ),
        (("t", "--raw", "--json"), EXIT_USAGE, "--raw and --json exclude each other"),
        (("t", "--group", "no good"), EXIT_USAGE, "group 'no good' is not valid"),
        (("t", "--count", "0"), EXIT_USAGE, "'--count'"),
        (("t", "--output", "/nowhere/x"), 1, "No such file or directory: /nowhere/x"),
    ],
)
def test_bad_input_to_consume_is_explained(cli, arguments, code, words):
    done = cli("consume", *arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.err


def start(mq, *arguments, **streams):
    return subprocess.Popen([sys.executable, "-m", "sprocketmq", *arguments], env=os.environ | {"NAMESRV_ADDR": mq.namesrv}, **streams)


def test_lines_of_a_slow_pipe_are_sent_as_they_come_and_consumed_as_they_arrive(mq, topic):
    mq.create_topic(topic)
    with (
        start(mq, "consume", topic, "--from", "first", "--count", "2", stdout=subprocess.PIPE) as reader,
        start(mq, "produce", topic, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as writer,
    ):
        for line in (b"one\n", b"two\n"):  # the second is written only when the first has come all the way
            writer.stdin.write(line)
            writer.stdin.flush()
            assert reader.stdout.readline() == line
        writer.stdin.close()
        assert (reader.wait(120), writer.wait(120)) == (0, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("batch", ["--batch", "--no-batch"])
def test_a_produce_that_is_stopped_says_what_was_sent(mq, spawn, topic, number, batch):
    writer = spawn(mq, "produce", topic, batch, "--json")
    writer.stdin.write(b"one\ntwo\nnot a whole line")
    writer.stdin.flush()
    mq.messages(topic, count=2)
    writer.send_signal(number)
    out, err = writer.stdout.read(), writer.stderr.read()
    assert (writer.wait(120), err.decode()) == (128 + number, f"sprocketmq: stopped by {number.name} before the input ended\n")
    summary = json.loads(out)
    assert (summary["messages"], summary["unknown"], summary["failures"]) == (2, 0, [])
    assert sorted(m.body for m in mq.messages(topic)) == [b"one", b"two"]


def test_a_produce_that_is_stopped_twice_does_not_wait_for_answers_and_counts_them_as_unknown(spawn, topic):
    with LocalCluster(in_process=False) as cluster:
        cluster.create_topic(topic)
        writer = spawn(cluster, "produce", topic, "--no-batch", "--json")
        writer.stdin.write(b"one\n")
        writer.stdin.flush()
        cluster.messages(topic, count=1)
        (broker,) = cluster.pids
        freeze(broker)  # it takes requests, and answers none
        try:
            writer.stdin.write(b"two\n")
            writer.stdin.flush()
            wait_until(lambda: not unread(writer.stdin))
            writer.terminate()
            writer.send_signal(signal.SIGINT)
            writer.wait(120)
        finally:
            os.kill(broker, signal.SIGCONT)
    summary = json.loads(writer.stdout.read())
    assert (writer.returncode, summary["messages"], summary["unknown"]) == (1, 1, 1)
    error = writer.stderr.read()
    assert b"line 2 may be stored or not: " in error
    assert b"closed here" in error, "not a time-out"


def unread(pipe):
    """Return how many bytes the other end has not read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_an_interrupted_consume_ends_cleanly(cli, mq, topic):
    cli("produce", topic, stdin=b"a\n")
    with start(mq, "consume", topic, "--from", "first", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout.readline() == b"a\n"
        reader.terminate()
        out, err = reader.communicate(timeout=120)
    assert (reader.returncode, out, err) == (143, b"", b"sprocketmq: stopped by SIGTERM\n")


def test_a_reader_that_goes_away_is_no_reason_to_complain(cli, mq, topic):
    cli("produce", topic, stdin=b"".join(b"%d\n" % i for i in range(1000)))
    with start(mq, "consume", topic, "--from", "first", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        reader.stdout.readline()
        reader.stdout.close()
        cli("produce", topic, stdin=b"".join(b"%d\n" % i for i in range(1000)))
        assert reader.stderr.read() == b""
        reader.wait(120)


def test_progress_is_shown_on_a_terminal_only(cli, mq, topic, tmp_path):
    assert cli("produce", topic, stdin=b"a\n").err == ""
    (tmp_path / "lines").write_bytes(b"".join(b"%d\n" % i for i in range(500)))
    ours, theirs = pty.openpty()
    with start(mq, "produce", topic, "--file", str(tmp_path / "lines"), stdout=subprocess.PIPE, stderr=theirs) as writer:
        os.close(theirs)
        shown = io.BytesIO()
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # how Linux says that the other end is closed
                break
            if not chunk:
                break
            shown.write(chunk)
        out, _ = writer.communicate(timeout=120)
    os.close(ours)
    assert b"sending" in shown.getvalue()
    assert b"500 messages" in shown.getvalue()
    assert out.startswith(b"sent 500 messages")
