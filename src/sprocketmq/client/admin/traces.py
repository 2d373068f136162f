"""Queries for message traces: what became of one message, from what producers and consumers wrote to the trace topic."""

from collections.abc import Iterable
from dataclasses import dataclass

from sprocketmq.client.admin.messages import MAX_FOUND, MessageQueries
from sprocketmq.errors import ConfigError, RemoteProtocolError
from sprocketmq.protocol.names import check_topic
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.protocol.traces import (
    TRACE_TOPIC,
    ConsumeCode,
    EndTransactionTrace,
    MessageType,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
    decode_traces,
)

# A message id is a key of trace messages, so it must not contain the separator of keys.
MAX_ID_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class TracedSend:
    """A producer sent the message: when the send began, how long it took, and where the message was stored.

    ``client_host`` is the producer's address, ``store_host`` the broker's. ``success``: stored as safely as the broker was asked to.
    """

    time_ms: int
    group: str
    topic: str
    tags: str
    keys: str
    client_host: str
    store_host: str
    region: str
    body_bytes: int
    cost_ms: int
    message_type: str
    offset_msg_id: str
    success: bool


@dataclass(frozen=True, slots=True)
class TracedDelivery:
    """A handler call of a consumer group got the message.

    ``time_ms`` is when it began, ``end_ms`` when it ended, ``cost_ms`` how long it took (a call for several messages is divided among them)
    and ``outcome`` a name of ConsumeCode. Fields are None as long as the trace of the beginning or of the end is not there: the handler may
    still be at work, or the record was lost.
    """

    group: str
    request_id: str
    time_ms: int | None
    end_ms: int | None
    retry_times: int | None
    client_host: str
    cost_ms: int | None = None
    success: bool | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class TracedTransaction:
    """A transaction was decided, by its producer or (``from_check``) by its answer to the broker's question."""

    time_ms: int
    group: str
    topic: str
    state: str
    transaction_id: str
    from_check: bool
    client_host: str


@dataclass(frozen=True, slots=True)
class TracedRecall:
    """A delayed message was recalled."""

    time_ms: int
    group: str
    topic: str
    success: bool
    client_host: str


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """What the trace topic has about one message; all lists are in the order of time. Times are wall-clock milliseconds of the clients."""

    msg_id: str
    trace_topic: str
    sends: list[TracedSend]
    deliveries: list[TracedDelivery]
    transactions: list[TracedTransaction]
    recalls: list[TracedRecall]

    @property
    def found(self) -> bool:
        """Whether there is any record of the message."""
        return bool(self.sends or self.deliveries or self.transactions or self.recalls)

    @property
    def topic(self) -> str:
        """The message's topic, as far as a record names it; else empty."""
        topics = [
            *(send.topic for send in self.sends),
            *(transaction.topic for transaction in self.transactions),
            *(recall.topic for recall in self.recalls),
        ]
        return next(filter(None, topics), "")


class TraceQueries(MessageQueries):
    """Message traces."""

    async def trace(self, msg_id: str, *, topic: str | None = None, begin_ms: int | None = None, end_ms: int | None = None) -> MessageTrace:
        """Return what the trace topic has about the message with this id (``SendResult.msg_id``); nothing for one that was not traced.

        ``topic`` is the trace topic, RMQ_SYS_TRACE_TOPIC by default; ``begin_ms`` and ``end_ms`` limit the search to traces stored between
        these times (wall-clock milliseconds). Each broker is asked for its newest 64 trace messages about the id. Traces are
        written by clients, so they are there some seconds after the event, and anybody who may send to the topic decides what is in them.
        Raises TopicNotFound when no broker has the trace topic.
        """
        given: object = msg_id
        if not isinstance(given, str) or not msg_id or len(msg_id) > MAX_ID_LENGTH or not msg_id.isprintable() or " " in msg_id:
            raise ConfigError(f"{msg_id!r:.82} is not a message id: give SendResult.msg_id, or the msg_id of a received message")
        trace_topic = check_topic(TRACE_TOPIC if topic is None else topic)
        begin_ms, end_ms = begin_ms or 0, 2**63 - 1 if end_ms is None else end_ms
        messages = await self.query_by_key(trace_topic, msg_id, max_count=MAX_FOUND, begin_ms=begin_ms, end_ms=end_ms)
        return collect(msg_id, trace_topic, messages)


def collect(msg_id: str, trace_topic: str, messages: Iterable[ReceivedMessage]) -> MessageTrace:
    """Return what these trace messages say about one message. Records that were written twice count once."""
    records: dict[TraceRecord, str] = {}  # and the host of the client that wrote each
    for message in messages:
        try:
            found, host = decode_traces(message.body, msg_id), message.born_host
        except RemoteProtocolError:  # damaged, or it does not inflate
            continue
        for record in found:
            records.setdefault(record, host)
    trace = MessageTrace(msg_id, trace_topic, [], [], [], [])
    started: dict[str, tuple[SubBeforeTrace, str]] = {}
    ended: dict[str, tuple[SubAfterTrace, str]] = {}
    for record, host in records.items():
        match record:
            case PubTrace():
                trace.sends.append(_send(record, host))
            case SubBeforeTrace():
                started[record.request_id] = record, host
            case SubAfterTrace():
                ended[record.request_id] = record, host
            case EndTransactionTrace():
                trace.transactions.append(
                    TracedTransaction(
                        record.timestamp_ms, record.group, record.topic, record.state, record.transaction_id, record.from_check, host
                    )
                )
            case RecallTrace():
                trace.recalls.append(TracedRecall(record.timestamp_ms, record.group, record.topic, record.success, host))
    for request_id in started | ended:
        trace.deliveries.append(_delivery(request_id, started.get(request_id), ended.get(request_id)))
    trace.sends.sort(key=lambda send: send.time_ms)
    trace.deliveries.sort(key=lambda delivery: (delivery.time_ms or delivery.end_ms or 0, delivery.group))
    trace.transactions.sort(key=lambda transaction: transaction.time_ms)
    trace.recalls.sort(key=lambda recall: recall.time_ms)
    return trace


def _send(record: PubTrace, host: str) -> TracedSend:
    return TracedSend(
        time_ms=record.timestamp_ms,
        group=record.group,
        topic=record.topic,
        tags=record.tags,
        keys=record.keys,
        client_host=record.client_host or host,
        store_host=record.store_host,
        region=record.region,
        body_bytes=record.body_bytes,
        cost_ms=record.cost_ms,
        message_type=_name_of(MessageType, record.message_type),
        offset_msg_id=record.offset_msg_id,
        success=record.success,
    )


def _delivery(request_id: str, start: tuple[SubBeforeTrace, str] | None, end: tuple[SubAfterTrace, str] | None) -> TracedDelivery:
    before, after = start and start[0], end and end[0]
    client_host = start[1] if start else end[1] if end else ""
    group = (before and before.group) or (after and after.group) or ""
    end_ms = None
    if after:
        # Records of old clients have no time.
        end_ms = after.timestamp_ms or (before.timestamp_ms + after.cost_ms if before else None)
    return TracedDelivery(
        group=group,
        request_id=request_id,
        time_ms=before.timestamp_ms if before else None,
        end_ms=end_ms,
        retry_times=before.retry_times if before else None,
        client_host=client_host,
        cost_ms=after.cost_ms if after else None,
        success=after.success if after else None,
        outcome=_name_of(ConsumeCode, after.code) if after else None,
    )


def _name_of(kind: type[MessageType] | type[ConsumeCode], number: int) -> str:
    try:
        return kind(number).name
    except ValueError:
        return str(number)
