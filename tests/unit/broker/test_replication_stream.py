"""Decisions about the stream: what a master accepts from a slave, and where a slave begins, as tables."""

from dataclasses import dataclass

import pytest

from sprocketmq.broker.replication.stream import (
    MARK_INTERVAL_S,
    MAX_MARKS,
    Allowance,
    Cut,
    FurtherBack,
    Marks,
    MasterLog,
    Pauses,
    Rate,
    Refusal,
    SlaveProgress,
    Start,
    part,
    plan,
)
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.storage.replica.epochs import Epoch

# --- the master's side --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "sent"),
    [(0, 65536 * 2), (65536, 65536), (100_000, 100_000), (152_401, 152_401)],
)
def test_the_first_report_says_where_to_begin_and_0_means_the_last_file(report, sent):
    progress = SlaveProgress()
    progress.begin(report, 0, 152_401, 65536)
    assert (progress.sent, progress.acked) == (sent, sent)


def test_an_empty_log_may_be_asked_for_as_a_whole():
    progress = SlaveProgress()
    progress.begin(1, 0, 0, 1)
    assert progress.sent == 1


@pytest.mark.parametrize("report", [-1, -(1 << 63), 65535, 152_402, (1 << 63) - 1])
def test_a_first_report_outside_the_log_is_refused(report):
    with pytest.raises(RemoteProtocolError, match=str(report)):
        SlaveProgress().begin(report, 65536, 152_401, 65536)


def test_what_a_slave_acknowledges_was_sent_to_it_and_never_goes_back():
    progress = SlaveProgress()
    progress.begin(1000, 0, 2000, 65536)
    progress.sent = 1500
    assert progress.take(1200)
    assert not progress.take(1200)
    assert progress.acked == 1200
    assert not progress.take(0)  # the reference's slave, while its log is empty
    for wrong in (1501, 1199, -1, -5, 1 << 62):
        with pytest.raises(RemoteProtocolError, match="acknowledges"):
            progress.take(wrong)
    assert progress.acked == 1200
    assert progress.take(1500)


def test_marks_tell_since_when_bytes_exist_that_a_slave_lacks():
    marks = Marks()
    assert marks.since(0) is None
    for second in range(5):
        marks.note(10.0 + second, 100 * second)
    assert marks.since(0) == 11.0
    assert marks.since(250) == 13.0
    assert marks.since(400) is None
    marks.forget(200)
    assert marks.since(0) == 13.0


def test_marks_are_bounded_and_thinned_out():
    marks = Marks()
    for n in range(100 * MAX_MARKS):
        marks.note(n * MARK_INTERVAL_S * 1.01, n + 1)
    assert len(marks._marks) <= MAX_MARKS
    end = 100 * MAX_MARKS
    assert marks.since(end // 2) == pytest.approx(end // 2 * MARK_INTERVAL_S * 1.01, rel=0.02)


def test_an_allowance_adds_up_to_one_second_at_most():
    allowance = Allowance(1000, 5.0)
    assert allowance.available(5.0) == 1000
    allowance.take(1600)
    assert allowance.available(5.0) == -600
    assert allowance.available(5.5) == -100
    assert allowance.available(5.7) == 100
    assert allowance.available(99.0) == 1000
    assert allowance.step == 100


def test_a_rate_is_that_between_the_last_two_notes():
    rate = Rate()
    rate.note(1.0, 5000)
    assert rate.per_second == 0
    rate.note(3.0, 9000)
    assert rate.per_second == 2000
    rate.note(3.0, 9000)
    assert rate.per_second == 2000
    rate.note(4.0, 100)  # cut back, or another connection
    assert rate.per_second == 0


def test_pauses_grow_while_the_reason_stays_the_same():
    pauses = Pauses()
    network, disk = (0.2, 5.0), (1.0, 10.0)
    assert [pauses.following(network) for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert [pauses.following(disk), pauses.following(disk), pauses.following(network)] == [1.0, 2.0, 0.2]
    pauses.following(network)
    pauses.reset()
    assert pauses.following(network) == 0.2


# --- where a slave begins -----------------------------------------------------------------------------------------------

RECORD = 100
FILE = 1 << 20


@dataclass
class Log:
    """A slave's log of records of RECORD bytes."""

    end: int

    def record_boundary(self, log_offset):
        return min(log_offset, self.end) // RECORD * RECORD


def start(end, master, *, begin=0, epochs=(), compare_bytes=1000):
    return plan(Log(end), begin, FILE, tuple(Epoch(*one) for one in epochs), master, compare_bytes)


def master(begin, end, epochs=None, segment_bytes=None):
    return MasterLog(begin, end, tuple(Epoch(*one) for one in epochs) if epochs is not None else None, segment_bytes)


@pytest.mark.parametrize(
    ("case", "begun", "report"),
    [
        # an empty slave takes the whole log, from where the master's begins
        ({"end": 0, "master": master(0, 5000)}, Start(0, 0, 0), 1),
        ({"end": 0, "master": master(FILE, 2 * FILE)}, Start(FILE, FILE, FILE), FILE),
        ({"end": 0, "master": None}, Start(0, 0, 0), 1),
        ({"end": 0, "master": master(0, 0)}, Start(0, 0, 0), 1),
        # one with a log compares its last records, from a boundary on
        ({"end": 5000, "master": master(0, 9000)}, Start(4000, 5000, 0), 4000),
        ({"end": 5050, "master": master(0, 9000)}, Start(4000, 5050, 0), 4000),
        ({"end": 800, "master": master(0, 9000)}, Start(0, 800, 0), 1),
        ({"end": 5000, "master": None}, Start(4000, 5000, 0), 4000),
        ({"end": 5000, "master": master(4500, 9000), "begin": 300}, Start(4500, 5000, 4500), 4500),
        ({"end": 5000, "master": master(0, 9000), "compare_bytes": 4000}, Start(1000, 5000, 0), 1000),
        # a master whose log ends earlier, without epochs: compared up to there, and its heartbeats tell the rest
        ({"end": 5000, "master": master(0, 3000)}, Start(2000, 5000, 0), 2000),
        # equal epochs, and a master that is one epoch ahead of this slave's end
        ({"end": 5000, "master": master(0, 9000, [(1, 0)]), "epochs": [(1, 0)]}, Start(4000, 5000, 0), 4000),
        ({"end": 5000, "master": master(0, 9000, [(1, 0), (2, 5000)]), "epochs": [(1, 0)]}, Start(4000, 5000, 0), 4000),
        # by the epochs the logs diverge at 3000: the master began epoch 2 there
        ({"end": 5000, "master": master(0, 9000, [(1, 0), (2, 3000)]), "epochs": [(1, 0)]}, Start(2000, 5000, 0), 2000),
        # the same, and both deleted what was before
        ({"end": 5000, "master": master(3500, 9000, [(1, 0), (2, 3000)]), "epochs": [(1, 0)]}, Start(3500, 5000, 3500), 3500),
        # the master lost its end: the same epoch, and less log
        ({"end": 5000, "master": master(0, 3000, [(1, 0)]), "epochs": [(1, 0)]}, Start(2000, 5000, 0), 2000),
        # no epoch in common: compared like without
        ({"end": 5000, "master": master(0, 9000, [(7, 0)]), "epochs": [(5, 0)]}, Start(4000, 5000, 0), 4000),
        # no epochs here: compared, then taken over
        ({"end": 5000, "master": master(0, 9000, [(1, 0), (2, 3000)])}, Start(4000, 5000, 0), 4000),
        # nothing can be compared, but the epochs agree up to this log's end
        ({"end": 5000, "master": master(5000, 9000, [(1, 0)]), "epochs": [(1, 0)]}, Start(5000, 5000, 5000), 5000),
    ],
)
def test_where_a_slave_begins(case, begun, report):
    found = start(**case)
    assert found == begun
    assert isinstance(found, Start)
    assert found.report == report


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ({"end": 5000, "master": master(6000, 9000)}, "nothing can be compared"),
        ({"end": 5000, "master": master(5000, 9000)}, "nothing can be compared"),
        ({"end": 5000, "master": master(0, 9000, [(1, 0)]), "epochs": [(1, 0), (2, 4000)]}, "older master"),
        ({"end": 5000, "master": master(0, 9000, segment_bytes=FILE * 2)}, "files of 2097152 bytes, this one of 1048576"),
    ],
)
def test_a_master_that_must_not_be_followed(case, says):
    found = start(**case)
    assert isinstance(found, Refusal)
    assert says in found.reason
    assert not found.diverged


@pytest.mark.parametrize(
    ("begun", "log_offset", "may_cut", "decision"),
    [
        (Start(4000, 5000, 0), 4730, True, Cut(4700)),
        (Start(4000, 5000, 0), 4700, True, Cut(4700)),
        (Start(4000, 5000, 0), 4099, True, FurtherBack()),
        (Start(0, 5000, 0), 99, True, "another store's log"),
        (Start(0, 5000, 0), 99, False, "another store's log"),
        (Start(0, 5000, 0), 130, True, Cut(100)),
        (Start(4000, 5000, 4000), 4001, True, "another store's log"),
        (Start(4000, 5000, 0), 4730, False, "the logs diverge at 4730"),
        (Start(4000, 5000, 0), 4001, False, "the logs diverge at 4001"),
    ],
)
def test_what_is_done_with_a_log_that_parts_from_the_masters(begun, log_offset, may_cut, decision):
    found = part(Log(5000), begun, log_offset, 9000, may_cut=may_cut)
    if isinstance(decision, str):
        assert isinstance(found, Refusal)
        assert decision in found.reason
        assert "5000" in found.reason
        assert "9000" in found.reason
        assert found.diverged is decision.startswith("the logs diverge")
    else:
        assert found == decision
