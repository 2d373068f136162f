"""The ledger tells apart what is lost, invented, wrong, doubled, misplaced and out of order."""

import pytest

from sprocketmq.testing.ledger import Ledger, LedgerMismatch


def ledger_of(*identities: str) -> Ledger:
    ledger = Ledger(seed=42)
    for offset, identity in enumerate(identities):
        ledger.sent(identity, identity.encode(), lane="one")
        ledger.acknowledged(identity, queue="q", offset=offset)
    return ledger


def test_balanced_books_are_fine() -> None:
    ledger = ledger_of("a", "b")
    ledger.sent("unanswered", b"")
    for offset, identity in enumerate("ab"):
        ledger.received(identity, identity.encode(), queue="q", offset=offset)
    report = ledger.check()
    report.raise_if_bad()
    assert (report.sent, report.acknowledged, report.received) == (3, 2, 2)


def test_every_kind_of_trouble_is_named_with_its_first_ids_and_the_seed() -> None:
    ledger = ledger_of("a", "b", "c", "d", "e")
    ledger.received("a", b"other", queue="q", offset=0)
    ledger.received("b", b"b", queue="q", offset=4)
    ledger.received("c", b"c", queue="q", offset=2)
    ledger.received("c", b"c", queue="q", offset=3)
    ledger.received("never sent", b"", queue="q", offset=9)
    report = ledger.check()
    assert report.problems() == {
        "lost": ("d", "e"),
        "phantom": ("never sent",),
        "wrong": ("a",),
        "misplaced": ("b",),
        "disordered": ("b",),
        "duplicates": ("c",),
    }
    assert "duplicates" not in report.problems(duplicates_allowed=True)
    with pytest.raises(LedgerMismatch, match=r"seed 42.*2 lost, first d, e.*1 phantom, first never sent"):
        report.raise_if_bad()


def test_order_counts_within_one_lane_and_queue_only() -> None:
    ledger = Ledger()
    for identity, lane in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a")):
        ledger.sent(identity, b"", lane=lane)
    ledger.received("a2", b"", queue="q", offset=0)
    ledger.received("b1", b"", queue="q", offset=1)
    ledger.received("a3", b"", queue="q", offset=2)
    ledger.received("a1", b"", queue="other", offset=0)
    ledger.check().raise_if_bad()


def test_an_id_is_used_once() -> None:
    ledger = ledger_of("a")
    with pytest.raises(ValueError, match="used before"):
        ledger.sent("a", b"")
