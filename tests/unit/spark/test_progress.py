"""Reports of a streaming query's progress."""

import logging
import pickle

import pytest
from tests import ports

from sprocketmq import sync
from sprocketmq.clock import ManualClock
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import RemoteProtocolError, TopicNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.progress_reports import MAX_REPORT_BYTES, MAX_SLOWEST, MAX_TOPICS, ProgressReport, decode_report
from sprocketmq.spark.security import NO_OPTIONS
from sprocketmq.spark.source import progress
from sprocketmq.spark.source.progress import ProgressReporter
from sprocketmq.testing import wait_until

Q0, Q1 = (MessageQueue("orders", "broker-a", n) for n in range(2))


@pytest.fixture
def quiet(monkeypatch):
    """Reporters that note, and never send."""
    monkeypatch.setattr(ProgressReporter, "_send_reports", lambda self: None)


def reporter(nameserver="127.0.0.1:1", **options):
    return ProgressReporter(nameserver, "spark-progress", "to lake", NO_OPTIONS, **options)


def test_a_report_adds_up_what_was_noted(quiet):
    clock = ManualClock()
    one = reporter(clock=clock)
    assert one.report() is None
    one.note({Q0: 10, Q1: 5}, {Q0: 10, Q1: 25})
    one.note({Q0: 10, Q1: 5}, {Q0: 12, Q1: 25})
    one.note({Q0: 12, Q1: 15}, {Q0: 12, Q1: 40})
    made = one.report()
    assert (made.batches, made.read, made.lag, made.queues) == (1, 12, 25, 2)
    assert [(t.topic, t.queues, t.position, t.end) for t in made.topics] == [("orders", 2, 27, 52)]
    assert [(place.queue, place.position, place.end) for place in made.slowest] == [(1, 15, 40)]
    assert (made.at_ms, made.state, one.report("stopped").state) == (clock.time_ms(), "running", "stopped")


def test_a_report_of_many_queues_is_small_and_comes_back(quiet):
    one = reporter()
    queues = {MessageQueue(f"topic-{n:03}" + "x" * 100, "b" * 100, n): n for n in range(10_000)}
    one.note(queues, dict.fromkeys(queues, 10**15))
    made = one.report()
    assert (len(made.topics), len(made.slowest)) == (MAX_TOPICS, MAX_SLOWEST)
    assert len(made.encode()) < 20 << 10
    assert decode_report(made.encode()) == made


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b"[" * 50_000, b"\xff", b'{"query": 1}', b" " * (MAX_REPORT_BYTES + 1)], ids=lambda body: repr(body[:12])
)
def test_what_is_no_report_is_refused(body):
    with pytest.raises(RemoteProtocolError):
        decode_report(body)


def test_a_task_gets_a_reporter_that_has_noted_nothing(quiet):
    one = reporter()
    one.note({Q0: 1}, {Q0: 2})
    assert pickle.loads(pickle.dumps(one)).report() is None


def test_reports_reach_the_topic_and_the_last_one_says_stopped():
    with LocalCluster() as mq, sync.AdminClient(namesrv=mq.namesrv) as admin:
        admin.create_topic("spark-progress", queues=1)
        one = reporter(mq.namesrv)
        one.note({Q0: 10}, {Q0: 30})

        def reports() -> list[ProgressReport]:
            return [decode_report(message.body) for message in admin.search("spark-progress").messages]

        wait_until(reports)
        assert (reports()[0].query, reports()[0].lag, reports()[0].state) == ("to lake", 20, "running")
        assert admin.query_by_key("spark-progress", "to_lake")
        one.note({Q0: 30}, {Q0: 30})
        one.close()
        wait_until(lambda: reports()[0].state == "stopped")
        assert (reports()[0].batches, reports()[0].read, reports()[0].lag) == (1, 20, 0)


def test_a_cluster_that_is_away_is_logged_once_and_waited_for_by_nobody(caplog, monkeypatch):
    monkeypatch.setattr(progress, "FAILURE_PAUSE_S", 0.01)
    monkeypatch.setattr(progress, "CLOSE_TIMEOUT_S", 60.0)
    attempts = []
    start = sync.Producer.start
    monkeypatch.setattr(sync.Producer, "start", lambda self: (attempts.append(1), start(self)))
    with ports.hold() as held, caplog.at_level(logging.WARNING, logger=progress.log.name):
        one = reporter(f"127.0.0.1:{held.getsockname()[1]}")
        one.note({Q0: 1}, {Q0: 2})
        wait_until(lambda: len(attempts) > 2)
        one.close()
    assert len([record for record in caplog.records if "no progress reports" in record.message]) == 1


def test_a_topic_that_is_not_there_is_not_made_by_a_broker_that_makes_none(caplog):
    with LocalCluster(auto_create_topic=False) as mq, sync.AdminClient(namesrv=mq.namesrv) as admin:
        with caplog.at_level(logging.WARNING, logger=progress.log.name):
            one = reporter(mq.namesrv)
            one.note({Q0: 1}, {Q0: 2})
            wait_until(lambda: "TopicNotFound" in caplog.text)
            one.close()
        with pytest.raises(TopicNotFound):
            admin.queues("spark-progress")
