"""Topics read as Arrow batches without Spark: everything once, with the columns of Spark's source; and nothing is left behind."""

import gc
import threading
import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.ports import address_of, hold

from sprocketmq import Message, MessageQueue, arrow, sync
from sprocketmq.arrow import topics as topics_module
from sprocketmq.arrow.schema import COLUMNS, arrow_schema
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ConfigError, InvalidName, NameserverUnavailable, TopicNotFound
from sprocketmq.testing import wait_until


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(auto_create_topic=False) as running:
        running.create_topic("orders", queues=4)
        running.create_topic("batches", queues=2, attributes={"queue.type": "BatchCQ"})
        running.create_topic("empty", queues=2)
        for topic in ("orders", "batches"):
            send(running, topic, 300)
        yield running


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    wait_until(lambda: not any(thread.name == "sprocketmq-arrow" for thread in threading.enumerate()))


def send(cluster, topic, count, *, first=0):
    with sync.Producer("pg", namesrv=cluster.namesrv) as producer:
        for start in range(first, first + count, 10):
            producer.send_batch([Message(topic, b"%d" % n, f"t{n % 3}", [f"k{n}"], {"n": str(n)}) for n in range(start, start + 10)])


def bodies(batches):
    return sorted(int(body) for batch in batches for body in batch["body"].to_pylist())


@pytest.mark.parametrize("topic", ["orders", "batches"])
def test_every_message_is_read_once_with_the_columns_of_the_source(cluster, topic):
    table = arrow.read_topic(topic, namesrv=cluster.namesrv, columns=list(COLUMNS), batch_rows=37).to_table()
    assert table.schema == arrow_schema(list(COLUMNS))
    rows = {int(row["body"]): row for row in table.to_pylist()}
    assert sorted(rows) == list(range(300))
    assert table.num_rows == 300
    row = rows[7]
    assert (row["topic"], row["tags"], row["keys"], dict(row["properties"])["n"]) == (topic, "t1", "k7", "7")
    assert max(batch.num_rows for batch in table.to_batches()) <= 37


def test_a_start_and_an_end_are_offsets_or_times(cluster):
    with sync.PullConsumer("cg", namesrv=cluster.namesrv) as consumer:
        ends = {queue: consumer.max_offset(queue) for queue in consumer.queues("orders")}
    [first, *_] = sorted(ends)
    part = arrow.read_topic(
        "orders", namesrv=cluster.namesrv, start={first: 2}, end={first: 5}, columns=["queueId", "queueOffset"]
    ).to_table()
    assert part.to_pydict() == {"queueId": [first.queue_id] * 3, "queueOffset": [2, 3, 4]}
    assert arrow.read_topic("orders", namesrv=cluster.namesrv, start=time.time() + 3600).to_table().num_rows == 0
    assert arrow.read_topic("batches", namesrv=cluster.namesrv, start=time.time() + 3600).to_table().num_rows == 0
    assert arrow.read_topic("orders", namesrv=cluster.namesrv, start=datetime(2020, 1, 1, tzinfo=UTC)).to_table().num_rows == 300
    assert arrow.read_topic("orders", namesrv=cluster.namesrv, start="last").to_table().num_rows == 0


def test_tags_choose_messages(cluster):
    found = bodies(arrow.read_topic("orders", namesrv=cluster.namesrv, tags="t0 || t2"))
    assert found == [n for n in range(300) if n % 3 != 1]


def test_tags_choose_batches_of_one_tag_in_batch_queues(cluster):
    """The broker has the tag of a batch; one of several tags has none."""
    cluster.create_topic("tagged", queues=1, attributes={"queue.type": "BatchCQ"})
    send(cluster, "tagged", 10)
    with sync.Producer("pg", namesrv=cluster.namesrv) as producer:
        for tag, first in (("t0", 100), ("t1", 200), ("t2", 300)):
            producer.send_batch([Message("tagged", b"%d" % n, tag) for n in range(first, first + 3)])
    assert bodies(arrow.read_topic("tagged", namesrv=cluster.namesrv, tags="t0 || t2")) == [100, 101, 102, 300, 301, 302]
    assert len(bodies(arrow.read_topic("tagged", namesrv=cluster.namesrv))) == 19


def test_a_topic_without_messages_has_a_schema_and_no_rows(cluster):
    batches = arrow.read_topic("empty", namesrv=cluster.namesrv)
    assert batches.schema == arrow_schema()
    assert list(batches) == []


def test_libraries_read_it_as_an_arrow_stream(cluster):
    assert pa.table(arrow.read_topic("orders", namesrv=cluster.namesrv)).num_rows == 300
    frame = arrow.read_topic("orders", namesrv=cluster.namesrv, columns=["tags", "queueOffset"]).to_reader().read_pandas()
    assert frame.groupby("tags").size().to_dict() == {"t0": 100, "t1": 100, "t2": 100}


# --- stopping in the middle ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [arrow.read_topic, arrow.follow])
@pytest.mark.parametrize("stop", ["close", "with", "drop", "throw"])
def test_a_read_that_stops_in_the_middle_leaves_nothing_behind(cluster, read, stop):
    batches = read("orders", namesrv=cluster.namesrv, start="first", batch_rows=5)
    assert next(batches).num_rows == 5
    if stop == "close":
        batches.close()
        batches.close()
    elif stop == "with":
        with batches:
            next(batches)
    elif stop == "throw":
        with pytest.raises(ZeroDivisionError), batches:
            raise ZeroDivisionError
    else:
        del batches
        gc.collect()
        return
    assert list(batches) == [], "it has ended"


def test_another_thread_ends_a_follow_that_waits(cluster):
    batches = arrow.follow("empty", namesrv=cluster.namesrv)
    ended = []
    reader = threading.Thread(target=lambda: ended.append(list(batches)))
    reader.start()
    wait_until(lambda: any(thread.name == "sprocketmq-arrow" for thread in threading.enumerate()))
    batches.close()
    reader.join(60)
    assert ended == [[]]


def test_nothing_is_opened_before_the_first_batch(cluster):
    batches = arrow.read_topic("orders", namesrv=cluster.namesrv)
    assert not any(thread.name == "sprocketmq-arrow" for thread in threading.enumerate())
    batches.close()


# --- following ----------------------------------------------------------------------------------------------------------


def test_a_follower_gets_what_is_sent_later_and_what_new_queues_have(cluster, monkeypatch):
    monkeypatch.setattr(topics_module, "QUEUES_EVERY_S", 0.05)
    cluster.create_topic("live", queues=1)
    send(cluster, "live", 20)
    with arrow.follow("live", namesrv=cluster.namesrv, start="first") as batches:
        found = []
        while len(found) < 20:
            found += next(batches)["body"].to_pylist()
        cluster.create_topic("live", queues=3)
        send(cluster, "live", 100, first=20)
        while len(found) < 120:
            found += next(batches)["body"].to_pylist()
    assert sorted(map(int, found)) == list(range(120))


def test_a_follower_begins_with_the_next_message(cluster):
    cluster.create_topic("later", queues=1)
    send(cluster, "later", 10)
    with arrow.follow("later", namesrv=cluster.namesrv) as batches:
        ended = threading.Event()

        def keep_sending():
            first = 100
            while not ended.is_set():
                send(cluster, "later", 10, first=first)
                first += 10

        sender = threading.Thread(target=keep_sending)
        sender.start()
        try:
            assert int(next(batches)["body"][0].as_py()) >= 100
        finally:
            ended.set()
            sender.join()


@pytest.mark.parametrize("sent", [0, 10])
def test_a_topic_that_goes_away_ends_a_follow_in_one_sentence(cluster, sent):
    name = f"gone-{sent}"
    cluster.create_topic(name, queues=2)
    send(cluster, name, 10)
    with arrow.follow(name, namesrv=cluster.namesrv, start="first") as batches:
        assert sum(next(batches).num_rows for _ in range(1)) == 10
        with sync.AdminClient(namesrv=cluster.namesrv) as admin:
            admin.delete_topic(name)
        with pytest.raises(arrow.TopicGone) as gone:
            next(batches)
    assert str(gone.value) == f"topic '{name}' was deleted while it was being read: read it again when it has been created anew"


def test_messages_that_are_gone_are_reported_or_left_out(cluster):
    [queue] = [queue for queue in _queues(cluster, "orders") if queue.queue_id == 0]
    beyond = {queue: 10_000}
    with pytest.raises(arrow.MessagesMissing, match="missing='skip' reads on behind them"):
        list(arrow.read_topic("orders", namesrv=cluster.namesrv, start=beyond, end={queue: 10_010}))
    assert list(arrow.read_topic("orders", namesrv=cluster.namesrv, start=beyond, end={queue: 10_010}, missing="skip")) == []


def _queues(cluster, topic):
    with sync.PullConsumer("cg", namesrv=cluster.namesrv) as consumer:
        return consumer.queues(topic)


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"columns": ["body", "nope"]}, "no column 'nope'"),
        ({"columns": "body"}, r"must be a list of names"),
        ({"columns": []}, "at least one column"),
        ({"columns": ["body", "body"]}, "each only once"),
        ({"start": "begin"}, "start must be 'first', 'last', a time or offsets, not 'begin'"),
        ({"end": None}, "end must be"),
        ({"start": datetime(2020, 1, 1)}, "its zone"),
        ({"start": float("nan")}, "start must be 'first', 'last', a time or offsets, not nan"),
        ({"start": {}}, "start names no queue to read"),
        ({"end": {"orders": 5}}, "end must give offsets for queues of topic 'orders'"),
        ({"start": {MessageQueue("other", "broker-a", 0): 5}}, "for queues of topic 'orders'"),
        ({"start": {MessageQueue("orders", "broker-a", 0): -1}}, "must be a whole number from 0 to"),
        ({"missing": "ignore"}, "'fail' or 'skip'"),
        ({"batch_rows": 0}, "batch_rows"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, reason):
    with pytest.raises(ConfigError, match=reason):
        arrow.read_topic("orders", namesrv="127.0.0.1:1", **arguments)


def test_names_are_checked_at_once():
    with pytest.raises(InvalidName):
        arrow.follow("no topic", namesrv="127.0.0.1:1")
    with pytest.raises(InvalidName):
        arrow.read_topic("orders", namesrv="127.0.0.1:1", group="no group")


def test_an_unknown_topic_and_a_missing_nameserver_are_named(cluster):
    with pytest.raises(TopicNotFound, match="'nowhere'"):
        next(arrow.read_topic("nowhere", namesrv=cluster.namesrv))
    with hold() as held, pytest.raises(NameserverUnavailable):
        next(arrow.follow("orders", namesrv=address_of(held)))


@pytest.mark.parametrize("read", [arrow.read_topic, arrow.follow])
def test_a_queue_that_is_not_there_is_refused(cluster, read):
    with pytest.raises(ConfigError, match="topic 'orders' has no queue 9 on broker 'broker-a' now"):
        next(read("orders", namesrv=cluster.namesrv, start={MessageQueue("orders", "broker-a", 9): 0}))


def test_a_queue_that_is_not_named_is_not_read(cluster):
    with arrow.follow("orders", namesrv=cluster.namesrv, start={MessageQueue("orders", "broker-a", 1): 0}, batch_rows=1000) as batches:
        assert set(next(batches)["queueId"].to_pylist()) == {1}
