"""Events that peers cause: one for each of them in some seconds, a limit for all, and the number of the rest."""

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
        peer_log.event("10.0.0.1", "closed", peer="10.0.0.1:4711", reason=number)
    assert caplog.messages == ["closed peer=10.0.0.1:4711 reason=0"]
    clock.advance(INTERVAL_S)
    peer_log.event("10.0.0.1", "closed")
    assert caplog.messages[1:] == ["events_left_out of=closed count=1234 interval_s=10 most_about=10.0.0.1 most=1234", "closed"]


def test_a_sweep_tells_the_number_when_no_event_follows(peer_log, clock, caplog):
    peer_log.event("10.0.0.1", "closed")
    peer_log.event("10.0.0.1", "closed")
    peer_log.sweep()
    assert caplog.messages == ["closed"]
    clock.advance(INTERVAL_S)
    peer_log.sweep()
    peer_log.sweep()
    assert caplog.messages == ["closed", "events_left_out of=closed count=1 interval_s=10 most_about=10.0.0.1 most=1"]


def test_many_peers_have_a_limit_together_and_bounded_memory(peer_log, clock, caplog):
    for number in range(MAX_KEYS + 500):
        peer_log.event(f"peer {number}", "closed")
    assert len(caplog.messages) == MAX_LINES
    assert sum(map(len, peer_log._left_out.values())) <= MAX_KEYS + 1
    clock.advance(INTERVAL_S)
    peer_log.sweep()
    assert caplog.messages[MAX_LINES].startswith(f"events_left_out of=closed count={MAX_KEYS + 500 - MAX_LINES} ")
    assert not peer_log._left_out


def test_events_are_counted_by_name_under_one_limit(peer_log, clock, caplog):
    for number in range(1_000):
        peer_log.event(f"client {number}", "joined")
        peer_log.event(f"client {number}", "left")
    clock.advance(INTERVAL_S)
    peer_log.sweep()
    summary = caplog.messages[MAX_LINES:]
    assert [line.split(" interval")[0] for line in summary] == [f"events_left_out of={name} count=995" for name in ("joined", "left")]
