"""Replays: what is sent where, what stays as it was, and that a second replay can be told from the first."""

import json
import time
from itertools import count

import pytest

from sprocketmq import Message, sync
from sprocketmq.cli.app import main
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ConfigError, FatalError, TopicNotFound
from sprocketmq.spark.jobs.replay import NoOrigin, replay

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_numbers = count()


@pytest.fixture(scope="module")
def mq():
    """A cluster whose groups give up on a message after the first try."""
    with LocalCluster(message_delay_level="1s 1s 1s 1s") as running:
        yield running


@pytest.fixture
def topic(mq):
    name = f"Replay{next(_numbers)}"
    mq.create_topic(name, queues=2)
    return name


def send(mq, topic, numbers):
    with sync.Producer("tests", namesrv=mq.namesrv) as producer:
        queues = producer.queues(topic)
        for n in numbers:
            producer.send(Message(topic, b"%d" % n, f"tag{n % 2}", (f"key{n}",), {"number": str(n)}, flag=n, queue=queues[n % len(queues)]))


def stored(mq, topic):
    """Return the messages of a topic, in the order of their numbers."""
    found = []
    with sync.PullConsumer("reader", namesrv=mq.namesrv) as consumer:
        for queue in consumer.queues(topic):
            offset = 0
            while (result := consumer.pull(queue, offset)).messages:
                found += result.messages
                offset = result.next_offset
    return sorted(found, key=lambda message: int(message.body))


def dead_letters(mq, topic, group, numbers):
    """Have a group give up on messages of a topic; return the name of its dead-letter topic."""
    send(mq, topic, numbers)
    letters = f"%DLQ%{group}"
    mq.create_topic(letters, queues=1)
    failed = 0
    with sync.PushConsumer(group, topic, namesrv=mq.namesrv, consume_from="first") as consumer:
        for batch in consumer.batches():
            for message in batch:
                batch.retry(message, delay_level=-1)
            failed += len(batch)
            if failed == len(numbers):
                batch.ack()
                break
        with sync.PullConsumer("reader", namesrv=mq.namesrv) as reader:
            [queue] = reader.queues(letters)
            assert reader.pull(queue, len(numbers) - 1, wait_ms=30_000).messages, "the last of them has arrived"
    return letters


def test_dead_letters_go_back_to_where_they_came_from(spark, mq, topic):
    letters = dead_letters(mq, topic, "failing", range(6))
    before = stored(mq, topic)
    looked = replay(spark, letters, nameserver=mq.namesrv, dry_run=True)
    assert (looked.targets, looked.dry_run, len(stored(mq, topic))) == ({topic: 6}, True, 6)
    done = []
    summary = replay(spark, letters, nameserver=mq.namesrv, progress=done.append)
    assert (summary.targets, summary.messages, summary.dry_run) == ({topic: 6}, 6, False)
    assert (done[-1].done, done[-1].total, done[-1].unit) == (6, 6, "messages")
    again = stored(mq, topic)
    assert len(again) == 12
    ids = {message.msg_id for message in before}
    for first, second in ((a, b) if a.msg_id in ids else (b, a) for a, b in zip(again[::2], again[1::2], strict=True)):
        assert (second.body, second.tag, second.keys, second.flag) == (first.body, first.tag, first.keys, first.flag)
        assert second.properties["number"] == first.properties["number"]
        assert second.properties["REPLAYED_FROM"].startswith(f"{letters}:broker-a:0:")
        assert second.reconsume_times == 0
    replay(spark, letters, nameserver=mq.namesrv)
    assert len(stored(mq, topic)) == 18
    assert len({message.msg_id for message in stored(mq, topic)}) == 12, "a replay that is repeated sends the same ids"


def test_dead_letters_for_their_group_alone_do_not_reach_others(spark, mq, topic):
    letters = dead_letters(mq, topic, "alone", range(3))
    summary = replay(spark, letters, nameserver=mq.namesrv, only_group=True)
    assert summary.targets == {"%RETRY%alone": 3}
    assert len(stored(mq, topic)) == 3
    with sync.PushConsumer("alone", {topic: "*"}, namesrv=mq.namesrv) as consumer:
        found = []
        for batch in consumer.batches():
            found += [(message.topic, int(message.body)) for message in batch]
            if len(found) == 3:
                break
    assert sorted(found) == [(topic, n) for n in range(3)], "they come as messages of the topic they belong to"


def test_a_stretch_of_time_with_filters(spark, mq, topic):
    send(mq, topic, range(10))
    middle = stored(mq, topic)[-1].store_timestamp_ms + 1
    while int(time.time() * 1000) <= middle:
        pass
    send(mq, topic, range(10, 20))
    mq.create_topic(target := f"{topic}Copy", queues=2)

    def numbers(**more):
        summary = replay(spark, topic, nameserver=mq.namesrv, to=target, dry_run=True, **more)
        return summary.messages

    assert numbers() == 20
    assert numbers(since_ms=middle) == 10
    assert numbers(until_ms=middle) == 10
    assert numbers(tags=["tag1"]) == 10
    assert numbers(keys=["key3", "key12"]) == 2
    assert numbers(where="properties['number'] > '17' AND length(body) = 2") == 2
    assert numbers(limit=4) == 4
    summary = replay(spark, topic, nameserver=mq.namesrv, to=target, since_ms=middle, tags=["tag0"], limit=2, mark=False, keep_ids=True)
    assert summary.targets == {target: 2}
    assert middle <= summary.first_stored_ms <= summary.last_stored_ms
    sources = {message.msg_id: message for message in stored(mq, topic)}
    copies = stored(mq, target)
    assert [int(message.body) for message in copies] == [10, 12]
    for copy in copies:
        assert copy.properties["number"] == sources[copy.msg_id].properties["number"], "the ids are the first ones"
        assert "REPLAYED_FROM" not in copy.properties


def test_to_another_cluster_queue_by_queue(spark, mq, topic):
    send(mq, topic, range(10))
    with LocalCluster() as other:
        with pytest.raises(TopicNotFound):
            replay(spark, topic, nameserver=mq.namesrv, to_nameserver=other.namesrv)
        other.create_topic(topic, queues=2)
        assert replay(spark, topic, nameserver=mq.namesrv, to_nameserver=other.namesrv, keep_queues=True).messages == 10
        places = [(message.queue_id, message.queue_offset, message.body) for message in stored(other, topic)]
    assert places == [(message.queue_id, message.queue_offset, message.body) for message in stored(mq, topic)]


def test_what_cannot_be_replayed_is_refused_before_anything_is_sent(spark, mq, topic):
    def refused(words, source=topic, error=ConfigError, **more):
        with pytest.raises(error, match=words):
            replay(spark, source, nameserver=mq.namesrv, **more)

    refused("say where the messages of")
    refused("is for the dead letters of a group", only_group=True)
    refused("give neither", "%DLQ%g", only_group=True, to="X")
    refused("the end must be later", to=topic, since_ms=5, until_ms=5)
    refused("limit must be 1 or more", to=topic, limit=0)
    refused("settled by the job itself", to=topic, options={"topic": "x"})
    refused("dead letters, or retries, once more", "%DLQ%g", to="%DLQ%g")
    refused("consumer group 'nobody' has no dead letters", "%DLQ%nobody", FatalError)
    send(mq, topic, range(1))
    refused("has no route", error=TopicNotFound, to="NotThere")
    refused("nonsense", error=FatalError, to=topic, where="nonsense = 1")
    with sync.Producer("tests", namesrv=mq.namesrv) as producer:
        mq.create_topic("%DLQ%odd", queues=1)
        producer.send(Message("%DLQ%odd", b"1"))
    refused("1 messages of %DLQ%odd do not say which topic they came from", "%DLQ%odd", NoOrigin)


def test_the_command_asks_for_one_thing_to_read(capsys):
    assert main(["pipeline", "replay"]) == 2
    assert "name one thing to read" in capsys.readouterr().err
    assert main(["pipeline", "replay", "T", "--dead-letters", "g"]) == 2
    assert main(["pipeline", "replay", "T", "--since", "yesterday"]) == 2
    assert "--since takes" in capsys.readouterr().err


def test_the_command_replays(spark, mq, topic, capsys, monkeypatch):
    send(mq, topic, range(4))
    mq.create_topic(target := f"{topic}Copy", queues=2)
    # The session of the tests serves; a command of its own would start and stop another JVM.
    monkeypatch.setattr("sprocketmq.spark.session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    assert main(["pipeline", "replay", topic, "--to", target, "--tag", "tag1", "--namesrv", mq.namesrv, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["targets"], printed["messages"], printed["dry_run"]) == ({target: 2}, 2, False)
    assert main(["pipeline", "replay", topic, "--to", target, "--dry-run", "--namesrv", mq.namesrv]) == 0
    assert "messages would be sent\t4" in capsys.readouterr().out
    assert len(stored(mq, target)) == 2
