"""Trace records are gathered and written; what finds no room or no broker is dropped and counted, and nobody waits."""

import asyncio

import pytest

from sprocketmq.client.instance import Instance
from sprocketmq.client.loop_bound import CLOSED, CLOSING, OPEN
from sprocketmq.client.traces.config import TraceConfig, TraceStats, trace_config
from sprocketmq.client.traces.cpu_budget import MAX_CREDIT_S, CpuBudget
from sprocketmq.client.traces.writer import MAX_BODY_CHARS, MAX_IN_FLIGHT, MAX_KEYS_BYTES, WARNING_S, TraceWriter
from sprocketmq.clock import ManualClock
from sprocketmq.errors import ConfigError, InvalidName, NameserverUnavailable, TopicNotFound
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH
from sprocketmq.protocol.traces import TRACE_TOPIC


class FakeProducer:
    """Keeps messages until the test answers them."""

    def __init__(self):
        self.sent = []
        self.callbacks = []
        self.refusal = None
        self.closed = False

    async def start(self):
        if self.refusal is not None:
            raise self.refusal

    async def close(self):
        self.closed = True

    def submit(self, message, callback):
        self.sent.append(message)
        self.callbacks.append(callback)

    def answer(self, error=None):
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback(None, error)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def instance(clock):
    made = Instance("127.0.0.1:9", kind="Producer", clock=clock)
    made.state = OPEN
    yield made
    made.state = CLOSED
    await made.close()


@pytest.fixture
def producer():
    return FakeProducer()


@pytest.fixture
def writer_with(instance, producer):
    return lambda **settings: TraceWriter(TraceConfig(**settings), "pg", instance, lambda: producer)


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_records_are_written_together_after_the_delay(writer_with, producer, clock, instance):
    writer = writer_with(max_delay_s=1.0)
    writer.add("r1\x02", "M1", "k1 k2")
    writer.add("r2\x02", "M2", "k1")
    clock.advance(0.9)
    instance.timers.run_due()
    await turns()
    assert producer.sent == []
    clock.advance(0.2)
    instance.timers.run_due()
    await turns()
    (message,) = producer.sent
    assert (message.topic, message.body, message.keys) == (TRACE_TOPIC, b"r1\x02r2\x02", ["M1", "k1", "k2", "M2"])
    assert writer.stats() == TraceStats(written=0, dropped=0, waiting=2)
    producer.answer()
    assert writer.stats() == TraceStats(written=2, dropped=0, waiting=0)


async def test_a_message_is_written_when_it_is_full(writer_with, producer):
    writer = writer_with()
    for n in range(3):
        writer.add("x" * (MAX_BODY_CHARS // 2), f"M{n}")
    await turns()
    assert [len(message.body) for message in producer.sent] == [MAX_BODY_CHARS // 2 * 2]


async def test_keys_never_overflow_the_properties(writer_with, producer):
    writer = writer_with(max_waiting=5000)
    for n in range(4000):
        writer.add("r\x02", f"{n:032}", "k" * 100)
    await turns()
    for _ in range(10):
        producer.answer()
    assert len(producer.sent) > 3
    for message in producer.sent:
        size = len(" ".join(message.keys))
        assert size <= MAX_KEYS_BYTES < MAX_PROPERTIES_LENGTH - 4000


async def test_long_or_unprintable_keys_of_a_message_are_left_out(writer_with, producer, instance, clock):
    writer = writer_with()
    writer.add("r\x02", "M1", " ".join("k" * 500 + str(n) for n in range(10)))
    writer.add("r\x02", "M2", "good bad\x07")
    clock.advance(2)
    instance.timers.run_due()
    await turns()
    assert producer.sent[0].keys == ["M1", "M2", "good"]


async def test_records_beyond_the_bound_are_dropped_and_counted(writer_with, producer):
    writer = writer_with(max_waiting=10)
    for n in range(25):
        writer.add("r\x02", f"M{n}")
    assert writer.room == 0
    assert writer.stats() == TraceStats(dropped=15, waiting=10)


async def test_at_most_some_messages_are_on_the_way(writer_with, producer):
    writer = writer_with()
    for n in range(MAX_IN_FLIGHT + 3):
        writer.add("x" * MAX_BODY_CHARS, f"M{n}")
    await turns()
    assert len(producer.sent) == MAX_IN_FLIGHT
    producer.answer()
    assert len(producer.sent) == MAX_IN_FLIGHT + 2


async def test_failures_are_one_line_of_log_and_counted(writer_with, producer, caplog, clock):
    writer = writer_with()
    for n in range(8):
        writer.add("x" * MAX_BODY_CHARS, f"M{n}")
    await turns()
    producer.answer(TopicNotFound(TRACE_TOPIC))
    producer.answer(TopicNotFound(TRACE_TOPIC))
    (line,) = [record.message for record in caplog.records]
    assert f"traces of group pg cannot be written to topic {TRACE_TOPIC}" in line
    assert writer.stats().dropped == 7
    assert TRACE_TOPIC in writer.stats().problem
    writer.add("x" * MAX_BODY_CHARS, "M9")
    await turns()
    producer.answer()
    assert writer.stats().problem == ""
    clock.advance(WARNING_S / 2)
    writer.add("x" * MAX_BODY_CHARS, "M10")
    producer.answer(TopicNotFound(TRACE_TOPIC))
    assert len(caplog.records) == 1, "a broker that comes and goes does not fill the log"


async def test_without_a_nameserver_records_are_dropped_and_it_is_looked_for_now_and_then(writer_with, producer, caplog, clock):
    producer.refusal = NameserverUnavailable(("127.0.0.1:9",))
    writer = writer_with()
    for n in range(4):
        writer.add("x" * MAX_BODY_CHARS, f"M{n}")
        await turns()
    assert writer.stats().dropped == 3
    assert len(caplog.records) == 1
    producer.refusal = None
    clock.advance(10)
    writer.add("x" * MAX_BODY_CHARS, "M5")
    await turns()
    producer.answer()
    assert writer.stats().written == 1


async def test_a_producer_that_refuses_a_message_at_once(writer_with, producer):
    writer = writer_with()

    def refuse(message, callback):
        raise InvalidName("topic", "t", "it is blank")

    producer.submit = refuse
    writer.add("x" * MAX_BODY_CHARS, "M1")
    writer.add("r", "M2")
    await turns()
    assert writer.stats() == TraceStats(dropped=1, waiting=1, problem=writer.stats().problem)


async def test_closing_writes_what_is_there(writer_with, producer, instance):
    writer = writer_with(close_timeout_s=60)
    writer.add("r1\x02", "M1")
    instance.state = CLOSING
    writer.add("r2\x02", "M2")
    closing = asyncio.ensure_future(writer.close())
    await turns()
    producer.answer()
    await closing
    assert producer.closed
    assert writer.stats() == TraceStats(written=2)
    writer.add("r3\x02", "M3")
    assert writer.stats() == TraceStats(written=2, dropped=1)
    await writer.close()


async def test_closing_ends_within_its_bound_when_nobody_answers(writer_with, producer):
    writer = writer_with(close_timeout_s=0.01)
    writer.add("r1\x02", "M1")
    await writer.close()
    assert producer.closed
    assert writer.stats() == TraceStats(dropped=1)
    producer.answer()
    assert writer.stats() == TraceStats(dropped=1), "a late answer counts nothing twice"


async def test_closing_without_any_record_starts_no_producer(instance):
    writer = TraceWriter(TraceConfig(), "pg", instance, lambda: pytest.fail("no producer is needed"))
    await writer.close()


# --- settings ---


@pytest.mark.parametrize(
    "settings",
    [{"sample": 1.5}, {"sample": -1}, {"max_waiting": 0}, {"cpu_share": 0}, {"cpu_share": 2}, {"max_delay_s": 0}, {"close_timeout_s": 0}],
)
def test_settings_that_cannot_be(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        TraceConfig(**settings)


def test_a_topic_that_takes_no_messages():
    with pytest.raises(InvalidName):
        TraceConfig(topic="SCHEDULE_TOPIC_XXXX")


def test_what_the_argument_stands_for():
    assert trace_config(False) is None
    assert trace_config(True) == TraceConfig()
    assert trace_config(TraceConfig(sample=0)) is None
    with pytest.raises(ConfigError, match="trace must be True, False or a TraceConfig, not 'yes'"):
        trace_config("yes")


# --- the share of time ---


def test_work_stops_when_the_share_is_used_up_and_goes_on_later():
    now = [100.0]
    budget = CpuBudget(0.1, lambda: now[0])
    assert budget.begin()
    assert not budget.over()
    now[0] += MAX_CREDIT_S + 0.01
    assert budget.over()
    budget.end(10_000)
    assert not budget.begin()
    now[0] += 0.04
    assert not budget.begin(), "less than half of the debt is paid"
    now[0] += 0.045
    assert not budget.begin(), "work rests until there is enough for some records"
    assert now[0] < budget.rests_until
    now[0] += 0.003
    assert now[0] >= budget.rests_until
    assert budget.begin()


def test_what_has_to_be_done_counts_too():
    now = [100.0]
    budget = CpuBudget(0.1, lambda: now[0])
    budget.begin_anyway()
    now[0] += MAX_CREDIT_S + 0.001
    budget.end(1_000)
    assert not budget.begin()


def test_an_interruption_is_not_paid_for():
    now = [100.0]
    budget = CpuBudget(0.1, lambda: now[0])
    assert budget.begin()
    now[0] += 60
    budget.end(10)
    assert budget.begin()


def test_a_share_of_one_is_no_limit():
    now = [100.0]
    budget = CpuBudget(1, lambda: now[0])
    for _ in range(3):
        assert budget.begin()
        now[0] += 60
        assert not budget.over()
        budget.end(1)
