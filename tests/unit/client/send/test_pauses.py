"""How long a send waits before it tries the same broker again."""

import pytest

from sprocketmq.broker.staged_sends import MAX_BUSY_S
from sprocketmq.client.routes import Route
from sprocketmq.client.send.producer import RETRIES, SEND_TIMEOUT_S
from sprocketmq.client.send.queue_choice import Publisher
from sprocketmq.client.send.requests import SendRequest, read_failure
from sprocketmq.errors import BrokerBusy, ConnectFailed, SprocketError
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue

QUEUE = MessageQueue("t", "a", 0)
LONE_BROKER = Route("t", (QUEUE,), (QUEUE,), {"a": {0: "a:1"}})
BUSY = Command(ResponseCode.SYSTEM_BUSY, remark="busy")


class Nobody:
    def stored(self, request: SendRequest, response: Command) -> None: ...

    def failed(self, request: SendRequest, outcome: SprocketError | Command) -> None: ...


def request_of(timeout_s: float) -> SendRequest:
    target = Publisher("g", LONE_BROKER).next()
    return SendRequest("t", None, b"x", b'""', "id", timeout_s, Nobody(), deadline=timeout_s, target=target)


def pauses(request: SendRequest, *outcomes: Command | SprocketError) -> list[float]:
    """Return the pause after each failed try; ``request`` began at 0, and a try takes no time."""
    now, found = 0.0, []
    for outcome in outcomes:
        request.count_failure(read_failure(outcome, "a:1", "t"), retries=RETRIES, now=now)
        found.append(request.next_try(now=now))
        now += found[-1]
    return found


def test_the_retries_of_a_send_outlast_a_broker_that_is_busy():
    assert sum(pauses(request_of(SEND_TIMEOUT_S), *[BUSY] * RETRIES)) > MAX_BUSY_S


def test_a_send_with_little_time_left_waits_for_half_of_it():
    assert pauses(request_of(0.4), BUSY, BUSY) == [0.2, 0.1]


def test_a_busy_broker_gets_no_more_tries_than_allowed():
    with pytest.raises(BrokerBusy):
        pauses(request_of(60.0), *[BUSY] * (RETRIES + 1))


def test_other_failures_are_retried_sooner():
    for outcome in (Command(ResponseCode.SERVICE_NOT_AVAILABLE), ConnectFailed("a:1", "broker", "refused")):
        assert pauses(request_of(SEND_TIMEOUT_S), outcome, outcome) == [0.1, 0.2]
