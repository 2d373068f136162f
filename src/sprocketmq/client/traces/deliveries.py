"""SubBefore and SubAfter records: one of each for every message that a handler gets."""

from collections.abc import Sequence
from typing import NamedTuple

from sprocketmq.client.hooks import ClientHooks, HandleEvent
from sprocketmq.client.instance import Instance
from sprocketmq.client.traces.config import TraceConfig
from sprocketmq.client.traces.cpu_budget import CpuBudget
from sprocketmq.client.traces.sampling import Sampler
from sprocketmq.client.traces.writer import TraceWriter
from sprocketmq.errors import ProtocolError
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.properties import KEYS, MSG_REGION, TRACE_ON
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.protocol.traces import DEFAULT_REGION, ConsumeCode, SubAfterTrace, SubBeforeTrace

# How many records that were not made another thread counts before it wakes the event loop to tell.
_MISSED_AT_ONCE = 1000


class _Delivery(NamedTuple):
    message: ReceivedMessage
    msg_id: str
    keys: str


class _Call(NamedTuple):
    """One handler call with messages that are traced."""

    request_id: str
    deliveries: list[_Delivery]


class DeliveryTraces(ClientHooks):
    """Makes the records of a consumer of ``group``. Handlers may run in other threads than the event loop of ``instance``."""

    def __init__(self, config: TraceConfig, group: str, instance: Instance, writer: TraceWriter) -> None:
        self._topic = config.topic
        self._group = group
        self._instance = instance
        self._writer = writer
        self._sampler = Sampler(config.sample)
        self._budget = CpuBudget(config.cpu_share)
        self._missed = 0.0
        self._request_ids = MessageIdFactory()

    def handling(self, event: HandleEvent) -> object:
        """Record that the messages are handed to a handler."""
        return self._begin(event.topic, event.messages)

    def handled(self, event: HandleEvent, token: object) -> None:
        """Record what the handler made of them. A message that it gave to ``retry``, or whose loop was left, has failed."""
        if not isinstance(token, _Call):
            return
        code = ConsumeCode.SUCCESS
        if event.timed_out:
            code = ConsumeCode.TIME_OUT
        elif event.error is not None:
            code = ConsumeCode.EXCEPTION
        retried = {id(message) for message in event.retried}
        self._end(token, event.duration_s, event.message_count, code, retried, all_failed=event.left)

    def polled(self, topic: str, messages: Sequence[ReceivedMessage]) -> None:
        """Record messages that are handed out by ``poll``: nobody says when and how they were handled, so they count as consumed."""
        call = self._begin(topic, messages)
        if call is not None:
            self._end(call, 0.0, len(messages), ConsumeCode.SUCCESS, set())

    def _begin(self, topic: str, messages: Sequence[ReceivedMessage]) -> _Call | None:
        if topic == self._topic or not self._writer.open:  # no traces of traces
            return None
        if not self._budget.begin():
            self._missed += 2 * len(messages) * self._sampler.share
            here = self._instance.here
            if here or self._missed > _MISSED_AT_ONCE:
                count = int(self._missed)
                self._missed -= count
                if here:
                    self._writer.drop(count)
                else:
                    self._instance.soon(self._writer.drop, count)
            return None
        try:
            deliveries = self._chosen(messages)
            if not deliveries:
                return None
            call = _Call(self._request_ids.next(), deliveries)
            now = self._instance.clock.time_ms()
            self._add(
                [
                    SubBeforeTrace(
                        now,
                        message.properties.get(MSG_REGION) or DEFAULT_REGION,
                        self._group,
                        call.request_id,
                        msg_id,
                        message.reconsume_times,
                        keys,
                    ).encode()
                    for message, msg_id, keys in deliveries
                ],
                deliveries,
            )
        finally:
            self._budget.end(len(messages))
        return call

    def _end(self, call: _Call, duration_s: float, count: int, code: ConsumeCode, retried: set[int], *, all_failed: bool = False) -> None:
        cost_ms = max(0, round(duration_s * 1000 / max(1, count)))
        now = self._instance.clock.time_ms()
        records = []
        for message, msg_id, keys in call.deliveries:
            failed = all_failed or id(message) in retried
            outcome = ConsumeCode.SUCCESS if not failed else ConsumeCode.FAILED if code is ConsumeCode.SUCCESS else code
            records.append(SubAfterTrace(call.request_id, msg_id, cost_ms, not failed, keys, outcome, now, self._group).encode())
        self._add(records, call.deliveries)

    def _chosen(self, messages: Sequence[ReceivedMessage]) -> list[_Delivery]:
        """Return the messages to be traced: those that the sample has, unless their broker has switched traces off."""
        chosen = []
        chooses = self._sampler.chooses
        for message in messages:
            try:
                msg_id = message.unique_key or message.offset_msg_id
                if chooses(msg_id) and message.properties.get(TRACE_ON) != "false":
                    chosen.append(_Delivery(message, msg_id, message.properties.get(KEYS, "")))
            except ProtocolError:  # damaged: the handler will see that
                continue
        return chosen

    def _add(self, records: list[str], deliveries: list[_Delivery]) -> None:
        if self._instance.here:
            self._take(records, deliveries)
        else:
            self._instance.soon(self._take, records, deliveries)

    def _take(self, records: list[str], deliveries: list[_Delivery]) -> None:
        for record, delivery in zip(records, deliveries, strict=True):
            self._writer.add(record, delivery.msg_id, delivery.keys)
