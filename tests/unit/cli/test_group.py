"""``sprocketmq group``."""

import pytest

from sprocketmq import Message, sync
from sprocketmq.testing import wait_until


@pytest.fixture(scope="module", autouse=True)
def topic(mq):
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        admin.create_topic("read", queues=1, attributes={"queue.type": "BatchCQ"})
        (queue,) = admin.queues("read")
    with sync.Producer("pg", namesrv=mq.namesrv) as producer:
        producer.send_batch([Message("read", b"%d" % n) for n in range(10)])
    return queue


def test_a_group_is_created_listed_shown_and_deleted(cli):
    done = cli("group", "create", "g1", "--max-reconsume-times", "3")
    assert (done.code, done.out) == (0, "group g1: max reconsume times 3, on broker-a\n")
    assert "g1" in cli("group", "list").out.split()
    shown = cli("group", "show", "g1", "--json").json
    (broker,) = shown.pop("brokers")
    assert shown == {"group": "g1", "mode": None, "members": [], "subscriptions": {}}
    assert (broker["broker_name"], broker["enabled"], broker["max_reconsume_times"], broker["orderly"]) == ("broker-a", True, 3, False)
    headings, row, _, members = cli("group", "show", "g1").out.splitlines()
    assert headings.split("\t")[:3] == ["broker", "enabled", "max reconsume times"]
    assert row.split("\t") == ["broker-a", "yes", "3", "1", "no", "yes"]
    assert members == "0 members online"
    assert cli("group", "delete", "g1").out == "group g1 deleted\n"
    assert "g1" not in cli("group", "list").out.split()


def test_lists_leave_out_rocketmqs_own_groups_unless_asked(cli):
    cli("group", "create", "mine")
    assert "mine" in cli("group", "list", "--json").json
    assert "TOOLS_CONSUMER" not in cli("group", "list", "--json").json
    assert {"mine", "TOOLS_CONSUMER"} <= set(cli("group", "list", "--all", "--json").json)


def test_create_and_delete_say_json_too(cli):
    made = cli("group", "create", "g2", "--orderly", "--disabled", "--retry-queues", "2", "--json")
    assert made.json == {"group": "g2", "max_reconsume_times": 16, "brokers": ["broker-a"]}
    (broker,) = cli("group", "show", "g2", "--json").json["brokers"]
    assert (broker["orderly"], broker["enabled"], broker["retry_queues"]) == (True, False, 2)
    assert cli("group", "delete", "g2", "--keep-offsets", "--dead-letters", "--json").json == {"group": "g2", "deleted": True}


def test_members_and_their_subscriptions_are_shown(cli, mq):
    with sync.PushConsumer("online", {"read": "a || b"}, namesrv=mq.namesrv):
        shown = cli("group", "show", "online", "--json").json
        (member,) = shown["members"]
        assert (member["language"], shown["mode"], shown["subscriptions"]["read"]) == ("PYTHON", "CLUSTERING", "a || b")
        printed = cli("group", "show", "online").out
        assert "1 member online, clustering\n" in printed
        assert f"{member['client_id']}\t" in printed
        assert "read\ta || b\n" in printed


def test_progress_counts_messages(cli, mq, topic):
    cli("group", "create", "g3")
    assert cli("group", "progress", "g3").out.splitlines()[-1] == "0 messages behind, 0 in flight, 0.0 consumed/s"
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        admin.commit("g3", topic, 4)
    progress = cli("group", "progress", "g3", "--json").json
    assert (progress["group"], progress["lag"]) == ("g3", 6)
    (queue,) = progress["queues"]
    assert queue.pop("last_consumed_ms") > 0
    place = {"topic": "read", "broker_name": "broker-a", "queue_id": 0}
    assert queue == {**place, "committed_offset": 4, "end_offset": 10, "lag": 6, "in_flight": 0}
    lines = cli("group", "progress", "g3", "--topic", "read").out.splitlines()
    assert lines[0].split("\t") == ["topic", "broker", "queue", "committed", "end", "lag", "in flight", "last consumed"]
    assert lines[1].split("\t")[:7] == ["read", "broker-a", "0", "4", "10", "6", "0"]
    assert lines[-1].startswith("6 messages behind")


@pytest.mark.parametrize(
    ("to", "offset"),
    [
        (("--to", "first"), 0),
        (("--to", "last"), 10),
        (("--to", "0"), 0),
        (("--to", "2100-01-01T00:00:00"), 10),
        (("--offset", "7", "--queue", "0"), 7),
        (("--to", "last", "--queue", "0", "--broker", "broker-a"), 10),
    ],
)
def test_a_group_is_sent_elsewhere(cli, to, offset):
    cli("group", "create", "g4")
    done = cli("group", "reset", "g4", "read", *to, "--json")
    assert done.json == {"group": "g4", "topic": "read", "queues": [{"broker_name": "broker-a", "queue_id": 0, "offset": offset}]}
    assert cli("group", "progress", "g4", "--json").json["lag"] == 10 - offset
    assert cli("group", "reset", "g4", "read", *to).out == f"broker\tqueue\toffset\nbroker-a\t0\t{offset}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("show", "missing"), 1, "no broker knows the consumer group 'missing': create it (sprocketmq group create missing)"),
        (("delete", "missing"), 1, "no broker knows a consumer group 'missing'"),
        (("progress", "missing"), 1, "no broker knows the consumer group 'missing'"),
        (("progress", "g", "--topic", "missing"), 1, "topic 'missing' has no route"),
        (("create", "no good"), 2, "group 'no good' is not valid"),
        (("create", "g", "--max-reconsume-times", "-2"), 2, "max_reconsume_times must be a whole number, -1 or more"),
        (("create", "g", "--cluster", "nowhere"), 2, "no cluster 'nowhere' is registered"),
        (("reset", "g", "read"), 2, "say where to"),
        (("reset", "g", "read", "--to", "first", "--offset", "1", "--queue", "0"), 2, "say where to"),
        (("reset", "g", "read", "--offset", "1"), 2, "an offset belongs to one queue: add --queue"),
        (("reset", "g", "read", "--to", "last", "--broker", "broker-a"), 2, "--broker selects the broker of a queue: add --queue"),
        (("reset", "g", "read", "--to", "whenever"), 2, "--to takes first, last, epoch seconds or a time"),
        (("reset", "g", "read", "--to", "first", "--queue", "3"), 2, "there is no queue 3; the topic has broker-a:0"),
        (("reset", "missing", "read", "--to", "first"), 1, "Group missing does not exist"),
        (("reset", "g", "missing", "--to", "first"), 1, "topic 'missing' has no route"),
        (("polish",), 2, "No such command 'polish'"),
    ],
)
def test_mistakes_are_explained(cli, arguments, code, words):
    done = cli("group", *arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.err


def test_nothing_is_in_flight_of_a_group_without_members(cli, mq):
    cli("produce", "left", stdin=b"1\n2\n3\n")
    with sync.PushConsumer("leavers", "left", namesrv=mq.namesrv, consume_from="first", batch_max=1) as consumer:
        next(consumer.batches())

        def progress():
            return cli("group", "progress", "leavers", "--topic", "left", "--json").json

        wait_until(lambda: progress()["in_flight"] == 3)
    assert (progress()["lag"], progress()["in_flight"]) == (3, 0)
    assert cli("group", "progress", "leavers", "--topic", "left").out.splitlines()[-1].startswith("3 messages behind, 0 in flight")
