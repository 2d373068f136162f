"""Which messages of a batch are traced when a consumer gets it, and what a failure to trace them does."""

import logging
import random
from types import SimpleNamespace

import pytest

from sprocketmq.client.traces.config import TraceConfig
from sprocketmq.client.traces.deliveries import DeliveryTraces
from sprocketmq.client.traces.sampling import Sampler
from sprocketmq.clock import ManualClock
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.ids import MessageIdFactory


class Writer:
    """Takes records and keeps the ids of their messages."""

    def __init__(self, error: Exception | None = None) -> None:
        self.open = True
        self.ids: list[str] = []
        self.dropped = 0
        self._error = error

    def drop(self, count: int) -> None:
        self.dropped += count

    def add(self, record: str, msg_id: str, keys: str = "") -> None:
        if self._error is not None:
            raise self._error
        self.ids.append(msg_id)


class Damaged:
    @property
    def unique_key(self) -> str:
        raise RemoteProtocolError("record is cut short")


def message(msg_id: str, **properties: str) -> SimpleNamespace:
    return SimpleNamespace(unique_key=msg_id, offset_msg_id="", properties=properties, reconsume_times=0)


def traces(writer: Writer, share: float) -> DeliveryTraces:
    instance = SimpleNamespace(here=True, home=0, clock=ManualClock())
    return DeliveryTraces(TraceConfig(sample=share, cpu_share=1), "cg", instance, writer)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_the_sample_of_a_batch_is_that_of_its_messages_one_by_one(seed):
    rng = random.Random(seed)
    clock = ManualClock()
    factories = [MessageIdFactory(f"10.0.0.{number}", number, clock) for number in range(3)]
    share = rng.choice([0.05, 0.3, 0.7])
    ids: list[str] = []
    while len(ids) < 600:
        ids += rng.choice(factories).take(rng.choice([1, 1, 2, 31, 64, 300]))
        if rng.random() < 0.3:
            rng.choice(factories).take(rng.randrange(1, 300))  # these went to another queue
        if rng.random() < 0.3:
            clock.advance(0.001)
    writer = Writer()
    traces(writer, share).handling("t", [message(one) for one in ids])  # type: ignore[list-item]
    chooses = Sampler(share).chooses
    assert writer.ids == [one for one in ids if chooses(one)]


@pytest.mark.parametrize("foreign", ["", "x", "no hex", "7F00000100002A9F0000000000000xyz"])
def test_damaged_messages_and_other_ids_in_a_batch_end_no_more_than_its_runs(foreign):
    sampler = Sampler(0.5)
    factory = MessageIdFactory("10.0.0.1", 1)
    runs: list[list[str]] = []
    while len({sampler.chooses(run[0]) for run in runs}) < 2:
        runs.append([one for one in factory.take(256) if one[-2:] != "00"])
    ids = [one for run in runs for one in run]
    messages = [message(one) for one in ids]
    for at in (3, 100, len(messages) - 2):
        messages[at:at] = [Damaged(), message(foreign)]  # type: ignore[list-item]
    writer = Writer()
    traces(writer, 0.5).handling("t", messages)  # type: ignore[arg-type]
    expected = [one for one in ids if sampler.chooses(one)]
    assert [one for one in writer.ids if one not in ("", foreign)] == expected


def test_a_failure_to_trace_is_logged_once_and_harms_no_batch(caplog):
    found = traces(Writer(RuntimeError("no room")), 1.0)
    with caplog.at_level(logging.ERROR):
        assert found.handling("t", [message("7F00000100002A9F00000000000000AA")]) is None  # type: ignore[list-item]
        found.polled("t", [message("7F00000100002A9F00000000000000AB")])  # type: ignore[list-item]
    assert [record.getMessage() for record in caplog.records] == [
        "a message that group cg consumes could not be traced; further failures are not logged"
    ]
