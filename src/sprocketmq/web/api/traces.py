"""The page Traces: the life of one message as a time line, from what producers and consumers wrote to the trace topic."""

from sprocketmq.client import AdminClient
from sprocketmq.client.admin.traces import MessageTrace, TracedDelivery, TracedSend
from sprocketmq.errors import TopicNotFound
from sprocketmq.protocol.traces import TRACE_TOPIC
from sprocketmq.web.api.message_views import Json, cut
from sprocketmq.web.api.messages import time_limit
from sprocketmq.web.calls import Call, Route

MAX_EVENTS = 500


async def life(admin: AdminClient, msg_id: str, trace_topic: str = "", begin_ms: int | None = None, end_ms: int | None = None) -> Json:
    """Return the events of a message in the order of time, each with its beginning and its duration where they are known.

    ``missing`` says why there may be nothing: the trace topic does not exist. Raises ConfigError for an invalid message id, and what
    asking the brokers raises.
    """
    try:
        async with time_limit():
            trace = await admin.trace(msg_id.strip(), topic=trace_topic or None, begin_ms=begin_ms, end_ms=end_ms)
    except TopicNotFound:
        missing = trace_topic or TRACE_TOPIC
        return {
            "msg_id": cut(msg_id),
            "topic": "",
            "trace_topic": missing,
            "missing": "topic",
            "begin_ms": None,
            "end_ms": None,
            "events": [],
        }
    events = _events(trace)
    starts = [event["begin_ms"] for event in events if event["begin_ms"] is not None]
    ends = [event["end_ms"] for event in events if event["end_ms"] is not None]
    return {
        "msg_id": cut(msg_id),
        "topic": cut(trace.topic),
        "trace_topic": trace.trace_topic,
        "missing": None if events else "records",
        "begin_ms": min(starts + ends, default=None),
        "end_ms": max(starts + ends, default=None),
        "left_out": max(0, len(events) - MAX_EVENTS),
        "events": events[:MAX_EVENTS],
    }


def _events(trace: MessageTrace) -> list[Json]:
    events = [_sent(send) for send in trace.sends] + [_delivered(delivery) for delivery in trace.deliveries]
    events += [
        {
            "kind": "transaction",
            "begin_ms": one.time_ms,
            "end_ms": one.time_ms,
            "group": cut(one.group),
            "client": cut(one.client_host),
            "success": one.state != "UNKNOW",
            "outcome": cut(one.state),
            "facts": {"transaction_id": cut(one.transaction_id), "from_check": one.from_check},
        }
        for one in trace.transactions
    ]
    events += [
        {
            "kind": "recall",
            "begin_ms": one.time_ms,
            "end_ms": one.time_ms,
            "group": cut(one.group),
            "client": cut(one.client_host),
            "success": one.success,
            "outcome": "",
            "facts": {},
        }
        for one in trace.recalls
    ]
    return sorted(events, key=lambda event: (event["begin_ms"] if event["begin_ms"] is not None else event["end_ms"] or 0, event["kind"]))


def _sent(send: TracedSend) -> Json:
    return {
        "kind": "send",
        "begin_ms": send.time_ms,
        "end_ms": send.time_ms + max(0, send.cost_ms),
        "group": cut(send.group),
        "client": cut(send.client_host),
        "success": send.success,
        "outcome": cut(send.message_type),
        "facts": {
            "topic": cut(send.topic),
            "tag": cut(send.tags),
            "keys": cut(send.keys),
            "stored_at": cut(send.store_host),
            "body_bytes": send.body_bytes,
            "cost_ms": send.cost_ms,
            "offset_msg_id": cut(send.offset_msg_id),
        },
    }


def _delivered(delivery: TracedDelivery) -> Json:
    return {
        "kind": "delivery",
        "begin_ms": delivery.time_ms,
        "end_ms": delivery.end_ms,
        "group": cut(delivery.group),
        "client": cut(delivery.client_host),
        "success": delivery.success,
        "outcome": delivery.outcome or "",
        "facts": {"retry_times": delivery.retry_times, "cost_ms": delivery.cost_ms, "request_id": cut(delivery.request_id)},
    }


async def life_route(call: Call) -> object:
    """Answer with the life of a message."""
    begin_ms, end_ms = call.number("begin_ms", 0), call.number("end_ms", 0)
    return await life(await call.admin(), call.text("id"), call.text("trace_topic", ""), begin_ms or None, end_ms or None)


ROUTES = (Route("GET", "/api/trace", life_route),)
