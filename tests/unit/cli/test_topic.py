"""``sprocketmq topic``."""

import pytest


def test_a_topic_is_created_listed_routed_and_deleted(cli, mq):
    done = cli("topic", "create", "t1", "--queues", "3")
    assert (done.code, done.out) == (0, "topic t1: 3 queues on broker-a\n")
    assert "t1" in cli("topic", "list").out.split()
    route = cli("topic", "route", "t1", "--json").json
    assert route == {
        "topic": "t1",
        "brokers": [{"broker_name": "broker-a", "read_queues": 3, "write_queues": 3, "perm": 6, "addresses": {"0": mq.brokers[0]}}],
    }
    assert cli("topic", "delete", "t1").out == "topic t1 deleted\n"
    assert "t1" not in cli("topic", "list").out.split()


def test_status_counts_messages_by_queue(cli):
    cli("topic", "create", "t2", "--queues", "1")
    cli("produce", "t2", stdin=b"a\nb\nc\n")
    status = cli("topic", "status", "t2", "--json").json
    assert status["messages"] == 3
    (queue,) = status["queues"]
    assert (queue["broker_name"], queue["queue_id"], queue["min_offset"], queue["max_offset"]) == ("broker-a", 0, 0, 3)
    assert queue["last_update_ms"] > 0
    heading, row = cli("topic", "status", "t2").out.splitlines()
    assert heading.split("\t") == ["broker", "queue", "min offset", "max offset", "messages", "last message"]
    assert row.split("\t")[:5] == ["broker-a", "0", "0", "3", "3"]


def test_lists_leave_out_rocketmqs_own_topics_unless_asked(cli):
    cli("topic", "create", "mine")
    names = cli("topic", "list", "--json").json
    assert "mine" in names
    assert "TBW102" not in names
    everything = cli("topic", "list", "--all", "--json").json
    assert {"mine", "TBW102"} <= set(everything)
    assert cli("topic", "list", "--cluster", "nowhere", "--json").json == []


def test_create_says_json_too_and_takes_attributes(cli):
    done = cli("topic", "create", "t3", "--queues", "2", "--attribute", "message.type=NORMAL", "--json")
    assert done.json == {"topic": "t3", "queues": 2, "brokers": ["broker-a"], "attributes": {"message.type": "NORMAL"}}
    assert cli("topic", "delete", "t3", "--json").json == {"topic": "t3", "deleted": True}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("topic", "create", "no good"), 2, "topic 'no good' is not valid: only ASCII letters"),
        (("topic", "create", "t", "--queues", "0"), 2, "queues must be from 1 to"),
        (("topic", "create", "t", "--attribute", "half"), 2, "written NAME=VALUE"),
        (("topic", "create", "t", "--cluster", "nowhere"), 2, "no cluster 'nowhere' is registered"),
        (("topic", "delete", "missing"), 1, "topic 'missing' has no route"),
        (("topic", "route", "missing"), 1, "topic 'missing' has no route"),
        (("topic", "status", "missing"), 1, "sprocketmq topic create missing"),
        (("topic", "status"), 2, "Missing argument 'TOPIC'"),
        (("topic", "polish"), 2, "No such command 'polish'"),
        (("topic", "list", "--namesrv", "nonsense"), 2, "'nonsense' is not an address: write HOST:PORT"),
    ],
)
def test_mistakes_are_explained(cli, arguments, code, words):
    done = cli(*arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
