"""What the log says of brokers that do not answer."""

import logging

import pytest

from sprocketmq.client.outages import Outages
from sprocketmq.clock import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def outages(clock):
    return Outages(clock)


def pull_fails(outages, clock):
    outages.failed("broker a", clock.monotonic(), "group g", ConnectionError("refused"))


def test_an_outage_is_logged_once_however_many_pulls_meet_it_and_once_when_it_is_over(outages, clock, caplog):
    for _ in range(8):
        pull_fails(outages, clock)
        clock.advance(1)
    for _ in range(8):
        outages.answered("broker a", "group g")
    assert caplog.messages == [
        "group g: cannot pull from broker a, trying again until it answers: refused",
        "group g: connected again to broker a after 8.0 s",
    ]


def test_each_outage_has_lines_of_its_own_and_each_broker_too(outages, clock, caplog):
    for _ in range(2):
        pull_fails(outages, clock)
        outages.failed("broker b", clock.monotonic(), "group g", ConnectionError("refused"))
        clock.advance(1)
        outages.answered("broker a", "group g")
    assert [message.split(": ")[1].split(",")[0] for message in caplog.messages] == [
        "cannot pull from broker a",
        "cannot pull from broker b",
        "connected again to broker a after 1.0 s",
        "cannot pull from broker a",
        "connected again to broker a after 1.0 s",
    ]


def test_a_pull_that_fails_after_others_were_answered_is_no_new_outage(outages, clock, caplog):
    pull_fails(outages, clock)
    asked_at = clock.monotonic()
    clock.advance(1)
    outages.answered("broker a", "group g")
    outages.failed("broker a", asked_at, "group g", ConnectionError("refused"))
    assert len(caplog.messages) == 2
    assert outages.level_of(None) == logging.WARNING


def test_what_follows_from_an_outage_is_not_news_until_nobody_pulls_there_any_more(outages, clock):
    assert outages.level_of(None) == logging.WARNING
    pull_fails(outages, clock)
    assert outages.level_of(None) == logging.DEBUG
    outages.forget("broker a")
    assert outages.level_of(None) == logging.WARNING


def test_a_failure_beside_pulls_of_the_same_broker_is_left_to_them(outages):
    outages.pulled("broker a", 1)
    assert outages.level_of("broker a") == logging.DEBUG
    assert outages.level_of("broker b") == outages.level_of(None) == logging.WARNING
    outages.pulled("broker a", -1)
    assert outages.level_of("broker a") == logging.WARNING
