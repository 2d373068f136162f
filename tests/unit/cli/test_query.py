"""``sprocketmq query``."""

import time

import pytest

from sprocketmq import Message, sync


@pytest.fixture(scope="module", autouse=True)
def topic(mq):
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        admin.create_topic("asked", queues=2)
    with sync.Producer("pg", namesrv=mq.namesrv) as producer:
        return [producer.send(Message("asked", b"body %d" % n, tag="red", keys=["all", f"k{n}"])) for n in range(4)]


def test_messages_are_printed_by_key(cli):
    assert cli("query", "asked", "k2").out == "body 2\n"
    assert sorted(cli("query", "asked", "all").out.splitlines()) == [f"body {n}" for n in range(4)]
    assert cli("query", "asked", "k3", "--raw").out == "body 3"
    assert len(cli("query", "asked", "all", "--count", "2").out.splitlines()) == 2


def test_json_has_every_field_and_produce_takes_it_back(cli, topic):
    done = cli("query", "asked", "k1", "--json")
    (message,) = done.json_lines
    assert (message["topic"], message["body"], message["tag"], message["keys"]) == ("asked", "body 1", "red", ["all", "k1"])
    assert (message["msg_id"], message["offset_msg_id"]) == (topic[1].msg_id, topic[1].offset_msg_id)
    assert cli("produce", "copied", "--jsonl", stdin=done.out.encode()).code == 0
    assert cli("query", "copied", "k1").out == "body 1\n"


def test_messages_are_printed_by_either_id(cli, topic):
    assert cli("query", "asked", topic[0].msg_id).out == "body 0\n"
    assert cli("query", "asked", topic[0].offset_msg_id).out == "body 0\n"
    assert cli("query", "copied2", topic[0].offset_msg_id).code == 1


def test_messages_are_printed_by_tag_and_by_place(cli, topic):
    assert sorted(cli("query", "asked", "--tag", "red").out.splitlines()) == [f"body {n}" for n in range(4)]
    where = ("--queue", str(topic[2].queue_id), "--offset", str(topic[2].queue_offset))
    assert cli("query", "asked", *where).out == "body 2\n"
    assert cli("query", "asked", *where, "--broker", "broker-a", "--json").json["msg_id"] == topic[2].msg_id


def test_a_message_inside_a_batch_is_printed_alone(cli, mq):
    cli("topic", "create", "bulk", "--queues", "1", "--attribute", "queue.type=BatchCQ")
    with sync.Producer("pg", namesrv=mq.namesrv) as producer:
        sent = producer.send_batch([Message("bulk", b"inner %d" % n, tag="blue", keys=[f"k{n}"]) for n in range(3)])
    assert cli("query", "bulk", "k1").out == "inner 1\n"
    assert cli("query", "bulk", sent[2].msg_id).out == "inner 2\n"
    assert cli("query", "bulk", sent[0].offset_msg_id).out == "inner 0\ninner 1\ninner 2\n", "they share the broker's id"
    assert cli("query", "bulk", "--tag", "blue", "--count", "2").out == "inner 1\ninner 2\n"
    assert cli("query", "bulk", "--queue", "0", "--offset", "1").out == "inner 1\n"


def test_times_bound_the_answer(cli):
    later = str(time.time() + 60)
    assert len(cli("query", "asked", "all", "--until", later).out.splitlines()) == 4
    assert cli("query", "asked", "all", "--since", later).code == 1
    assert len(cli("query", "asked", "all", "--since", "2024-05-01T12:00:00").out.splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("asked", "nothing"), 1, "no message of topic asked with key or id nothing"),
        (("missing", "k"), 1, "topic 'missing' has no route"),
        (("asked", "k", "--since", "first"), 2, "--since takes epoch seconds"),
        (("asked", "k", "--until", "tomorrow"), 2, "--until takes"),
        (("asked",), 2, "ask for one thing: a key or an id, --tag TAG, or --queue N with --offset N"),
        (("asked", "k", "--tag", "red"), 2, "ask for one thing"),
        (("asked", "--queue", "0"), 2, "ask for one thing"),
        (("asked", "k", "--broker", "broker-a"), 2, "--broker selects the broker of a queue: add --queue N and --offset N"),
        (("asked", "--tag", "green"), 1, "no message of topic asked with tag green"),
        (("asked", "--queue", "0", "--offset", "99"), 1, "no message of topic asked at offset 99 of queue 0"),
        (("asked", "--queue", "7", "--offset", "0"), 2, "there is no queue 7; the topic has broker-a:0, broker-a:1"),
        (("asked", "k", "--count", "0"), 2, "--count"),
    ],
)
def test_wrong_questions_are_told(cli, arguments, code, words):
    done = cli("query", *arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
