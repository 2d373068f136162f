"""Pops and what follows them, at a broker that says what a test wants."""

import asyncio

import pytest
from tests.records import stored

from sprocketmq.clock import ManualClock
from sprocketmq.errors import BrokerError, RemoteProtocolError
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.command import Command
from sprocketmq.proxy.clients import Clients, Identity
from sprocketmq.proxy.codes import Code, PopCode, Refused
from sprocketmq.proxy.receipts import Receipt
from sprocketmq.proxy.receiving import Receiver, checked_invisible, read_pop, tags_of, times_of
from sprocketmq.proxy.renewals import Renewals
from sprocketmq.proxy.schema import MESSAGES, duration
from sprocketmq.testing import eventually

POP_TIME = 1_000_000
ANSWER = {"popTime": str(POP_TIME), "invisibleTime": "60000", "reviveQid": "3", "startOffsetInfo": "0 2 7", "msgOffsetInfo": "0 2 8,9"}
BODY = stored(b"m8", {"TAGS": "a"}, queue_id=2, queue_offset=8, physical_offset=80) + stored(
    b"m9", {"TAGS": "b"}, queue_id=2, queue_offset=9, physical_offset=90
)


class Broker:
    """An upstream whose pops are answered with ``pop``, and that remembers every request."""

    def __init__(self, pop=None):
        self.clock = ManualClock(wall_ms=POP_TIME)
        self.asked = []
        self.pop = pop or Command(0, ext=ANSWER, body=BODY)
        self.go = asyncio.Event()
        self.go.set()
        self.renewed = 0
        self.failure = None

    async def master(self, _topic, _broker_name):
        return "broker:1"

    async def answer(self, _address, code, *, ext, topic="", timeout_s=3.0, body=b""):
        self.asked.append((code, ext))
        if code == PopCode.POP_MESSAGE:
            await self.go.wait()
            return self.pop
        if self.failure is not None:
            raise self.failure
        if code == PopCode.CHANGE_MESSAGE_INVISIBLETIME:
            self.renewed += 1
            ext = {"popTime": str(self.clock.time_ms()), "invisibleTime": ext["invisibleTime"], "reviveQid": "3"}
            return Command(0, ext=ext)
        return Command(0)

    ask = answer

    def requests(self, code):
        return [ext for asked, ext in self.asked if asked == code]


@pytest.fixture
async def receiver():
    background = Background("test")
    yield Receiver(background)
    await background.close()


def request(expression="*", **more):
    wanted = MESSAGES["ReceiveMessageRequest"](batch_size=16, **more)
    wanted.group.name = "g"
    wanted.message_queue.topic.name = "orders"
    wanted.message_queue.broker.name = "broker-a"
    wanted.filter_expression.expression = expression
    return wanted


async def receive(receiver, broker, wanted=None, max_attempts=17):
    return await receiver.receive(broker, wanted or request(), fifo=False, invisible_s=60, poll_s=10, max_attempts=max_attempts)


async def test_a_pop_gives_messages_with_receipts(receiver):
    broker = Broker()
    taken = await receive(receiver, broker)
    assert [popped.message.body for popped in taken] == [b"m8", b"m9"]
    assert [str(popped.receipt) for popped in taken] == [f"7 {POP_TIME} 60000 3 0 broker-a 2 {n} {n}0" for n in (8, 9)]
    (asked,) = broker.requests(PopCode.POP_MESSAGE)
    assert (asked["consumerGroup"], asked["queueId"], asked["maxMsgNums"], asked["pollTime"]) == ("g", "-1", "16", "10000")
    assert (asked["exp"], asked["expType"], asked["order"]) == ("*", "TAG", "false")


async def test_messages_with_other_tags_are_acknowledged(receiver):
    broker = Broker()  # brokers filter by the hash of a tag
    taken = await receive(receiver, broker, request("b || c"))
    assert [popped.message.body for popped in taken] == [b"m9"]
    assert [ext["offset"] for ext in broker.requests(PopCode.ACK_MESSAGE)] == ["8"]


async def test_what_was_delivered_often_enough_becomes_a_dead_letter(receiver):
    body = stored(b"bad", {"UNIQ_KEY": "id-1"}, queue_id=0, queue_offset=3, physical_offset=30, reconsume_times=2)
    broker = Broker(Command(0, ext={**ANSWER, "startOffsetInfo": "0 0 3"}, body=body))
    assert await receive(receiver, broker, max_attempts=2) == []
    (back,) = broker.requests(36)
    assert (back["offset"], back["group"], back["delayLevel"], back["originMsgId"]) == ("30", "g", "-1", "id-1")
    assert len(broker.requests(PopCode.ACK_MESSAGE)) == 1
    assert len(await receive(receiver, Broker(broker.pop), max_attempts=3)) == 1


async def test_what_a_client_that_left_does_not_take_is_put_back(receiver):
    broker = Broker()
    broker.go.clear()
    receiving = asyncio.create_task(receive(receiver, broker))
    await eventually(lambda: broker.asked)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    broker.go.set()
    await eventually(lambda: broker.renewed == 2)
    assert {ext["invisibleTime"] for ext in broker.requests(PopCode.CHANGE_MESSAGE_INVISIBLETIME)} == {"1000"}


async def test_a_receipt_that_has_expired_is_refused_before_the_broker_is_asked(receiver):
    broker = Broker()
    receipt = Receipt(7, POP_TIME - 60_001, 60_000, 3, 0, "broker-a", 2, 8, 80)
    for call in (receiver.acknowledge(broker, "g", "t", receipt), receiver.change(broker, "g", "t", receipt, 10)):
        with pytest.raises(Refused) as refused:
            await call
        assert refused.value.code == Code.INVALID_RECEIPT_HANDLE
    assert broker.asked == []


async def test_a_message_of_a_retry_topic_is_acknowledged_there(receiver):
    own = f"5 {POP_TIME} 60000 3 1 broker-a 0 5"
    body = stored(b"again", {"POP_CK": own}, topic=b"orders", queue_id=0, queue_offset=5, physical_offset=50, reconsume_times=1)
    broker = Broker(Command(0, ext={**ANSWER, "startOffsetInfo": "1 0 5", "msgOffsetInfo": "1 0 5"}, body=body))
    (popped,) = await receive(receiver, broker)
    assert str(popped.receipt) == f"{own} 50"
    assert popped.message.system_properties.delivery_attempt == 2
    await receiver.acknowledge(broker, "g", "orders", popped.receipt)
    (acked,) = broker.requests(PopCode.ACK_MESSAGE)
    assert (acked["topic"], acked["extraInfo"], acked["offset"]) == ("%RETRY%g_orders", own, "5")


def test_answers_without_messages():
    assert read_pop(Command(210), "broker:1", "t", "broker-a") == []
    assert read_pop(Command(19), "broker:1", "t", "broker-a") == []
    with pytest.raises(Refused) as refused:
        read_pop(Command(209), "broker:1", "t", "broker-a")
    assert refused.value.code == Code.TOO_MANY_REQUESTS
    with pytest.raises(BrokerError):
        read_pop(Command(1, remark="no"), "broker:1", "t", "broker-a")


@pytest.mark.parametrize(
    ("ext", "body"),
    [
        ({}, BODY),
        ({**ANSWER, "popTime": "soon"}, BODY),
        ({**ANSWER, "startOffsetInfo": "0 2"}, BODY),
        (ANSWER, BODY[:50]),
        ({**ANSWER, "orderCountInfo": "x"}, BODY),
    ],
)
def test_answers_that_are_no_pop(ext, body):
    with pytest.raises(RemoteProtocolError, match="broker:1 has answered a pop with something else"):
        read_pop(Command(0, ext=ext, body=body), "broker:1", "t", "broker-a")


def test_deliveries_of_pops_in_order():
    found = read_pop(Command(0, ext={**ANSWER, "orderCountInfo": "0 qo2%8 3;0 2 0"}, body=BODY), "broker:1", "t", "broker-a")
    assert [before for _, _, before in found] == [3, None]


def test_tags():
    assert tags_of("*") is None
    assert tags_of("") is None
    assert tags_of(" a || b ") == {"a", "b"}


def test_times_of_a_call():
    assert times_of(request(), None) == (20.0, 0.0)
    assert times_of(request(long_polling_timeout=duration(1)), None)[0] == 5.0
    assert times_of(request(long_polling_timeout=duration(90)), None)[0] == 20.0
    assert times_of(request(long_polling_timeout=duration(20)), 8.0)[0] == 7.5
    assert times_of(request(invisible_duration=duration(30)), None)[1] == 30.0
    with pytest.raises(Refused) as refused:
        times_of(request(), 3.0)
    assert refused.value.code == Code.ILLEGAL_POLLING_TIME
    for seconds in (0, 9.9, -5, 43201, 31_536_000):
        with pytest.raises(Refused) as refused:
            checked_invisible(seconds)
        assert refused.value.code == Code.ILLEGAL_INVISIBLE_TIME


# --- renewals ---


@pytest.fixture
def held(receiver):
    broker = Broker()
    clients = Clients(broker.clock)
    settings = MESSAGES["Settings"](client_type=2)
    settings.subscription.group.name = "g"
    client = clients.put(Identity("c", ""), settings)
    renewals = Renewals(receiver, clients, broker.clock)
    receipt = Receipt(7, POP_TIME, 60_000, 3, 0, "broker-a", 2, 8, 80)
    renewals.hold(client.identity, broker, "g", "orders", receipt)
    return broker, clients, client, renewals, str(receipt)


async def test_a_message_that_is_worked_on_stays_invisible(held):
    broker, _, _, renewals, handle = held
    await renewals.sweep()
    assert broker.renewed == 0  # there is time left
    broker.clock.advance(45)
    await renewals.sweep()
    assert broker.renewed == 1
    broker.clock.advance(45)
    await renewals.sweep()
    assert broker.renewed == 2
    assert renewals.release(handle).pop_time_ms == POP_TIME + 90_000
    assert len(renewals) == 0
    assert str(renewals.release(handle)) == handle


async def test_what_a_client_has_left_behind_is_not_renewed(held):
    broker, clients, client, renewals, _ = held
    clients.remove(client, "test")
    broker.clock.advance(45)
    await renewals.sweep()
    assert (broker.renewed, len(renewals)) == (0, 0)


async def test_a_renewal_that_fails_is_tried_again(held, caplog):
    broker, _, _, renewals, _ = held
    broker.failure = BrokerError(1, "no", address="broker:1")
    broker.clock.advance(45)
    await renewals.sweep()
    assert (len(renewals), "renewal_failed" in caplog.text) == (1, True)
    broker.failure = None
    await renewals.sweep()
    assert broker.renewed == 1


async def test_nothing_is_renewed_for_ever(held):
    broker, _, _, renewals, _ = held
    for _ in range(300):
        broker.clock.advance(45)
        await renewals.sweep()
    assert len(renewals) == 0
