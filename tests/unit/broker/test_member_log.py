"""The lines of the log about clients: who joins, who leaves, and few of them however many there are."""

import logging

import pytest

from sprocketmq.broker.clients import ClientRegistry
from sprocketmq.clock import ManualClock
from sprocketmq.net.peerlog import INTERVAL_S, MAX_LINES
from sprocketmq.protocol.bodies import ConsumerData
from sprocketmq.protocol.command import Command

HEARTBEAT = Command(34)


class Conn:
    close_reason = "closed by the peer"

    def __init__(self, number):
        self.peer = f"10.0.{number // 250}.{number % 250}:5000"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def clients(clock, caplog):
    caplog.set_level(logging.INFO)
    return ClientRegistry(clock)


def test_a_client_joins_once_and_leaves_with_a_reason(clients, caplog):
    one = Conn(1)
    for _ in range(2):
        clients.join_consumer(ConsumerData("cg"), one, "c1", HEARTBEAT)
        clients.join_producer("pg", one, "c1", HEARTBEAT)
    clients.leave(one, producer_group="pg")
    clients.drop(one)
    common = "client=c1 peer=10.0.0.1:5000"
    assert caplog.messages == [
        f"client_joined role=consumer group=cg {common} language=PYTHON",
        f"client_joined role=producer group=pg {common} language=PYTHON",
        f"client_left role=producer group=pg {common} reason=unregistered",
        f'client_left role=consumer group=cg {common} reason="closed by the peer"',
    ]


def test_ten_thousand_clients_write_a_few_lines(clients, clock, caplog):
    members = [Conn(number) for number in range(10_000)]
    for number, each in enumerate(members):
        clients.join_consumer(ConsumerData(f"group{number % 50}"), each, f"client{number}", HEARTBEAT)
        clients.join_producer("producers", each, f"client{number}", HEARTBEAT)
        clients.log_rebalanced(f"group{number % 50}")
    clock.advance(INTERVAL_S)
    clients.expire()
    for each in members:
        clients.drop(each)
    clock.advance(INTERVAL_S)
    clients.expire()
    assert not clients.consumers
    assert len(caplog.records) <= 3 * MAX_LINES + 5
    counts = {record.fields["of"]: record.fields["count"] for record in caplog.records if record.event == "events_left_out"}
    assert counts == {
        "client_joined": 20_000 - MAX_LINES,
        "client_left": 20_000 - MAX_LINES,
        "group_rebalanced": 10_000 - MAX_LINES,
    }


def test_a_group_of_many_clients_leaves_lines_for_others(clients, caplog):
    for number in range(1_000):
        clients.join_consumer(ConsumerData("big"), Conn(number), f"client{number}", HEARTBEAT)
        clients.log_rebalanced("big")
    clients.log_rebalanced("small")
    assert caplog.messages[-1] == "group_rebalanced group=small members=0"
