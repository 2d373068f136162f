"""What a replay decides before it asks anybody, and how it tells what it did."""

import pytest

from sprocketmq.errors import ConfigError, InvalidName
from sprocketmq.spark.jobs.replay import ReplaySummary, _check_arguments, _target, _tasks


@pytest.mark.parametrize(
    ("source", "to", "elsewhere", "only_group", "target"),
    [
        ("orders", "copy", None, False, "copy"),
        ("orders", "orders", None, False, "orders"),
        ("orders", None, "h:1", False, "orders"),
        ("%DLQ%billing", None, None, False, None),
        ("%DLQ%billing", None, "h:1", False, None),
        ("%RETRY%billing", None, None, False, None),
        ("%DLQ%billing", "orders", None, False, "orders"),
        ("%DLQ%billing", None, None, True, "%RETRY%billing"),
    ],
)
def test_where_messages_go(source, to, elsewhere, only_group, target):
    assert _target(source, to, elsewhere, only_group=only_group) == target


@pytest.mark.parametrize(
    ("source", "to", "elsewhere", "only_group", "words"),
    [
        ("orders", None, None, False, "say where the messages of 'orders' are to go"),
        ("orders", None, None, True, "is for the dead letters of a group"),
        ("%DLQ%billing", "orders", None, True, "give neither another topic nor another cluster"),
        ("a/b", "orders", None, False, "only ASCII letters"),
        ("orders", "SCHEDULE_TOPIC_XXXX", None, False, "system topic"),
    ],
)
def test_what_cannot_be_a_target(source, to, elsewhere, only_group, words):
    with pytest.raises((ConfigError, InvalidName), match=words):
        _target(source, to, elsewhere, only_group=only_group)


def test_dead_letters_do_not_become_dead_letters_again():
    with pytest.raises(ConfigError, match="name another topic"):
        _check_arguments(None, None, None, {}, "%DLQ%g", "%DLQ%g", None)
    _check_arguments(None, None, None, {}, "%DLQ%g", "%DLQ%g", "another:9876")


@pytest.mark.parametrize("name", ["topic", "nameserver", "dedupId", "ORDERED"])
def test_options_that_the_job_settles_are_refused(name):
    with pytest.raises(ConfigError, match="settled by the job itself"):
        _check_arguments(None, None, None, {name: "x"}, "copy", "orders", None)


def test_the_summary_says_what_went_where():
    summary = ReplaySummary("%DLQ%g", {"a": 1200, "b": 3}, False, 1_700_000_000_123, 1_700_000_001_000, 2.5)
    assert summary.rows() == [
        ("source", "%DLQ%g"),
        ("messages sent", "1,203"),
        ("to a", "1,200"),
        ("to b", "3"),
        ("stored", "2023-11-14 22:13:20.123 UTC to 2023-11-14 22:13:21.000 UTC"),
        ("time", "2.5 s"),
    ]
    assert summary.as_dict()["messages"] == 1203
    nothing = ReplaySummary("T", {}, True, None, None, 0.1)
    assert nothing.rows() == [("source", "T"), ("messages would be sent", "0"), ("time", "0.1 s")]


def test_progress_counts_the_tasks_of_all_stages():
    class Info:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    class Tracker:
        def getJobIdsForGroup(self, group):
            return [1, 2, 3]

        def getJobInfo(self, job):
            return {1: Info(stageIds=[10, 11]), 2: Info(stageIds=[12])}.get(job)

        def getStageInfo(self, stage):
            return {10: Info(numCompletedTasks=4, numTasks=4), 11: Info(numCompletedTasks=1, numTasks=2)}.get(stage)

    assert _tasks(Tracker(), "g") == (5, 6)
