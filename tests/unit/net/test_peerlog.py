"""Warnings that peers cause: one for each of them in some seconds, a limit for all, and the number of the rest."""

import logging

import pytest

from sprocketmq.clock import ManualClock
from sprocketmq.net.peerlog import INTERVAL_S, MAX_KEYS, MAX_LINES, PeerLog


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def peer_log(clock):
    return PeerLog(logging.getLogger("peers"), clock.monotonic)


def test_a_peer_gets_one_line_and_the_next_one_says_how_many_were_left_out(peer_log, clock, caplog):
    for number in range(1235):
        peer_log.warning("10.0.0.1", "closing %s: %s", "10.0.0.1:4711", number)
    assert caplog.messages == ["closing 10.0.0.1:4711: 0"]
    clock.advance(INTERVAL_S)
    peer_log.warning("10.0.0.1", "closing again")
    assert caplog.messages[1:] == ["1,234 more warnings like these in 10 s were left out, 1,234 of them about 10.0.0.1", "closing again"]


def test_a_sweep_tells_the_number_when_nobody_warns_any_more(peer_log, clock, caplog):
    peer_log.warning("10.0.0.1", "first")
    peer_log.warning("10.0.0.1", "second")
    peer_log.sweep()
    assert caplog.messages == ["first"]
    clock.advance(INTERVAL_S)
    peer_log.sweep()
    peer_log.sweep()
    assert caplog.messages == ["first", "1 more warnings like these in 10 s were left out, 1 of them about 10.0.0.1"]


def test_many_peers_have_a_limit_together_and_bounded_memory(peer_log, clock, caplog):
    for number in range(MAX_KEYS + 500):
        peer_log.warning(f"peer {number}", "closing")
    assert len(caplog.messages) == MAX_LINES
    assert len(peer_log._left_out) <= MAX_KEYS + 1
    clock.advance(INTERVAL_S)
    peer_log.sweep()
    assert caplog.messages[MAX_LINES].startswith(f"{MAX_KEYS + 500 - MAX_LINES:,} more warnings")
    assert not peer_log._left_out
