"""``sprocketmq topic``."""

import pytest


def test_a_topic_is_created_listed_routed_and_deleted(cli, mq):
    done = cli("topic", "create", "t1", "--queues", "3")
    assert (done.code, done.out) == (0, "topic t1: 3 queues on broker-a\n")
    assert "t1\tplain\tNORMAL" in cli("topic", "list").out.splitlines()
    route = cli("topic", "route", "t1", "--json").json
    assert route == {
        "topic": "t1",
        "brokers": [
            {
                "broker_name": "broker-a",
                "read_queues": 3,
                "write_queues": 3,
                "perm": 6,
                "queue_type": "plain",
                "message_type": "NORMAL",
                "addresses": {"0": mq.brokers[0]},
            }
        ],
    }
    assert cli("topic", "delete", "t1").out == "topic t1 deleted\n"
    assert "t1" not in cli("topic", "list").out.split()


@pytest.mark.parametrize(
    ("answer", "options", "code"), [(b"y\n", (), 0), (b"n\n", (), 1), (b"\n", (), 1), (b"", (), 1), (b"", ("--yes",), 0), (b"", ("-y",), 0)]
)
def test_delete_asks_at_a_terminal(cli, answer, options, code):
    cli("topic", "create", "asked")
    done = cli("topic", "delete", "asked", *options, stdin=answer, terminal=True)
    assert done.code == code
    assert ("Delete topic asked and all its messages? [y/N]" in done.err) == (not options)
    assert ("asked" in cli("topic", "list").out.split()) == (code == 1)
    if code:
        assert "topic asked is kept: answer y to delete it, or add --yes" in done.err


def test_status_counts_messages_by_queue(cli):
    cli("topic", "create", "t2", "--queues", "1")
    cli("produce", "t2", stdin=b"a\nb\nc\n")
    status = cli("topic", "status", "t2", "--json").json
    assert status["messages"] == 3
    (queue,) = status["queues"]
    assert (queue["broker_name"], queue["queue_id"], queue["min_offset"], queue["max_offset"]) == ("broker-a", 0, 0, 3)
    assert queue["last_update_ms"] > 0
    heading, row = cli("topic", "status", "t2").out.splitlines()
    assert heading.split("\t") == [
        *("broker", "queue", "queue type", "message type", "min offset", "max offset", "messages", "last message")
    ]
    assert row.split("\t")[:7] == ["broker-a", "0", "plain", "NORMAL", "0", "3", "3"]


def test_list_status_and_route_say_of_what_type_a_topic_is(cli):
    attributes = ("--attribute", "queue.type=BatchCQ", "--attribute", "message.type=DELAY")
    cli("topic", "create", "typed", "--queues", "1", *attributes)
    assert {"topic": "typed", "queue_type": "BatchCQ", "message_type": "DELAY"} in cli("topic", "list", "--json").json
    assert "typed\tBatchCQ\tDELAY" in cli("topic", "list").out.splitlines()
    status = cli("topic", "status", "typed", "--json").json
    assert (status["message_type"], status["queues"][0]["queue_type"]) == ("DELAY", "BatchCQ")
    (broker,) = cli("topic", "route", "typed", "--json").json["brokers"]
    assert (broker["message_type"], broker["queue_type"]) == ("DELAY", "BatchCQ")
    for verb in ("status", "route"):
        heading, row = (line.split("\t") for line in cli("topic", verb, "typed").out.splitlines())
        said = dict(zip(heading, row, strict=True))
        assert (said["queue type"], said["message type"]) == ("BatchCQ", "DELAY")


def test_lists_leave_out_rocketmqs_own_topics_unless_asked(cli):
    cli("topic", "create", "mine")
    names = [topic["topic"] for topic in cli("topic", "list", "--json").json]
    assert "mine" in names
    assert "TBW102" not in names
    everything = cli("topic", "list", "--all", "--json").json
    assert {"mine", "TBW102"} <= {topic["topic"] for topic in everything}


def test_create_says_json_too_and_takes_attributes(cli):
    done = cli("topic", "create", "t3", "--queues", "2", "--attribute", "message.type=NORMAL", "--json")
    assert done.json == {"topic": "t3", "queues": 2, "brokers": ["broker-a"], "attributes": {"message.type": "NORMAL"}}
    assert cli("topic", "delete", "t3", "--json").json == {"topic": "t3", "deleted": True}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("topic", "create", "no good"), 2, "topic 'no good' is not valid: only ASCII letters"),
        (("topic", "create", "TBW102"), 2, "topic 'TBW102' is one of RocketMQ's own"),
        (("topic", "delete", "TBW102"), 2, "topic 'TBW102' is one of RocketMQ's own"),
        (("topic", "create", "t", "--queues", "0"), 2, "queues must be a whole number from 1 to"),
        (("topic", "create", "t", "--attribute", "half"), 2, "written NAME=VALUE"),
        (("topic", "list", "--cluster", "nowhere"), 2, "no cluster 'nowhere' is registered"),
        (("topic", "create", "t", "--cluster", "nowhere"), 2, "no cluster 'nowhere' is registered"),
        (("topic", "delete", "missing"), 1, "no nameserver knows a topic 'missing'"),
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
