"""SubBefore and SubAfter records: one of each for every message that a handler receives."""

import logging
from collections.abc import Sequence
from threading import get_ident
from typing import NamedTuple

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

log = logging.getLogger(__name__)

_LAST_BYTES = [f"{value:02X}" for value in range(256)]
_BYTE_OF = {text: value for value, text in enumerate(_LAST_BYTES)}
# The number of skipped records that another thread counts before it wakes the event loop to report them.
_MISSED_AT_ONCE = 1000


class _Delivery(NamedTuple):
    message: ReceivedMessage
    msg_id: str
    keys: str


class TracedCall(NamedTuple):
    """One handler call with messages that are traced; ``message_count`` has the others too."""

    request_id: str
    deliveries: list[_Delivery]
    message_count: int


class DeliveryTraces:
    """Makes the records of a consumer of ``group``. Handlers may run in other threads than the event loop of ``instance``."""

    def __init__(self, config: TraceConfig, group: str, instance: Instance, writer: TraceWriter) -> None:
        self._topic = config.topic
        self._group = group
        self._instance = instance
        self._writer = writer
        self._sampler = Sampler(config.sample)
        self._budget = CpuBudget(config.cpu_share)
        self._missed = 0.0
        self._failed = False
        self._request_ids = MessageIdFactory()

    def handling(self, topic: str, messages: Sequence[ReceivedMessage]) -> TracedCall | None:
        """Record that the messages are handed to a handler. Returns the state for ``handled``, None when it need not be called."""
        if topic == self._topic or not self._writer.open:  # no traces of traces
            return None
        if not self._budget.begin():
            self._miss(2 * len(messages) * self._sampler.share)
            return None
        try:
            return self._begin(messages)
        except Exception as e:  # noqa: BLE001 - the messages are handled nevertheless
            self._log_failure(e)
            return None
        finally:
            self._budget.end(len(messages))

    def handled(
        self,
        call: TracedCall,
        duration_s: float,
        *,
        retried: Sequence[ReceivedMessage] = (),
        timed_out: bool = False,
        error: BaseException | None = None,
        left: bool = False,
    ) -> None:
        """Record the outcome of the handler. A message that it gave to ``retry``, or whose loop was left, has failed."""
        code = ConsumeCode.SUCCESS
        if timed_out:
            code = ConsumeCode.TIME_OUT
        elif error is not None:
            code = ConsumeCode.EXCEPTION
        self._budget.begin_anyway()
        try:
            self._end(call, duration_s, code, {id(message) for message in retried}, all_failed=left)
        except Exception as e:  # noqa: BLE001 - as above
            self._log_failure(e)
        finally:
            self._budget.end(len(call.deliveries))

    def polled(self, topic: str, messages: Sequence[ReceivedMessage]) -> None:
        """Record messages that ``poll`` returns: how they are handled stays unknown, so they count as consumed."""
        call = self.handling(topic, messages)
        if call is not None:
            self.handled(call, 0.0)

    def _log_failure(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            log.error("a message that group %s consumes could not be traced; further failures are not logged", self._group, exc_info=error)

    def _miss(self, records: float) -> None:
        """Count records that were not made."""
        self._missed += records
        here = get_ident() == self._instance.home or self._instance.here
        if here or self._missed > _MISSED_AT_ONCE:
            count = int(self._missed)
            self._missed -= count
            if here:
                self._writer.drop(count)
            else:
                self._instance.soon(self._writer.drop, count)

    def _begin(self, messages: Sequence[ReceivedMessage]) -> TracedCall | None:
        deliveries = self._chosen(messages)
        if not deliveries:
            return None
        call = TracedCall(self._request_ids.next(), deliveries, len(messages))
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
        return call

    def _end(self, call: TracedCall, duration_s: float, code: ConsumeCode, retried: set[int], *, all_failed: bool) -> None:
        cost_ms = max(0, round(duration_s * 1000 / max(1, call.message_count)))
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
        at, count = 0, len(messages)
        while at < count:
            message = messages[at]
            try:
                msg_id = message.unique_key or message.offset_msg_id
                if not chooses(msg_id):
                    at = _end_of_run(messages, at, msg_id)
                    continue
                if message.properties.get(TRACE_ON) != "false":
                    chosen.append(_Delivery(message, msg_id, message.properties.get(KEYS, "")))
            except ProtocolError:  # damaged: the handler will raise
                pass
            at += 1
        return chosen

    def _add(self, records: list[str], deliveries: list[_Delivery]) -> None:
        if self._instance.here:
            self._take(records, deliveries)
        else:
            self._instance.soon(self._take, records, deliveries)

    def _take(self, records: list[str], deliveries: list[_Delivery]) -> None:
        for record, delivery in zip(records, deliveries, strict=True):
            self._writer.add(record, delivery.msg_id, delivery.keys)


def _end_of_run(messages: Sequence[ReceivedMessage], at: int, msg_id: str) -> int:
    """Return the index after those messages from ``at`` on, whose id is ``msg_id``, that are traced or not as it is.

    A batch has consecutive ids. So when the id of a later message is as far on as the message is, the ones between are not looked at.
    """
    prefix, number = msg_id[:-2], _BYTE_OF.get(msg_id[-2:], 255)

    def goes_on(step: int) -> bool:
        try:
            return messages[at + step].unique_key == prefix + _LAST_BYTES[number + step]
        except ProtocolError:
            return False

    longest = min(255 - number, len(messages) - 1 - at)
    if longest < 1 or not goes_on(1):
        return at + 1
    if goes_on(longest):
        return at + longest + 1
    inside, outside = 1, longest
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if goes_on(middle):
            inside = middle
        else:
            outside = middle
    return at + inside + 1
