"""Names and attributes by OpenTelemetry's conventions for messaging and for RocketMQ (in development; those of version 1.30)."""

import os
from collections.abc import Sequence

from sprocketmq.protocol.message import Message

SCHEMA_URL = "https://opentelemetry.io/schemas/1.30.0"
SYSTEM = "rocketmq"

# In seconds, as the conventions advise.
DURATION_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

Value = str | int | Sequence[str]
Attributes = dict[str, Value]

# The names of operations in the conventions before 1.26, for OTEL_SEMCONV_STABILITY_OPT_IN=messaging/dup.
_OLD_OPERATIONS = {"create": "create", "send": "publish", "receive": "receive", "process": "process", "settle": "settle"}


def wants_old_names() -> bool:
    """Return whether OTEL_SEMCONV_STABILITY_OPT_IN asks for the attributes of older conventions besides those of today."""
    return "messaging/dup" in [word.strip() for word in os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(",")]


def operation(name: str, kind: str, topic: str, *, group: str = "", client_id: str = "", old_names: bool = False) -> Attributes:
    """Return the attributes of an operation on a topic; ``group`` is that of a consumer."""
    found: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "messaging.rocketmq.namespace": "",
    }
    if group:
        found["messaging.consumer.group.name"] = group
    if client_id:
        found["messaging.client.id"] = client_id
    if old_names:
        found["messaging.operation"] = _OLD_OPERATIONS[kind]
        if group:
            found["messaging.rocketmq.client_group"] = group
        if client_id:
            found["messaging.client_id"] = client_id
    return found


def metric(name: str, topic: str, *, group: str = "", address: str = "", error: str = "") -> Attributes:
    """Return the attributes of a measurement: few values each, so without queues, clients and messages."""
    found: Attributes = {"messaging.system": SYSTEM, "messaging.operation.name": name, "messaging.destination.name": topic}
    if group:
        found["messaging.consumer.group.name"] = group
    if error:
        found["error.type"] = error
    return found | server(address)


def server(address: str) -> Attributes:
    """Return the attributes of the broker at ``address`` (``HOST:PORT``), none when it is not known."""
    host, _, port = address.rpartition(":")
    return {"server.address": host.strip("[]"), "server.port": int(port)} if host and port.isdecimal() else {}


def message(sent: Message) -> Attributes:
    """Return the attributes of one message that is sent."""
    delayed = bool(sent.delay_level) or sent.deliver_at_ms is not None
    found: Attributes = {"messaging.message.body.size": len(sent.body), "messaging.rocketmq.message.type": "delay" if delayed else "normal"}
    if sent.tag:
        found["messaging.rocketmq.message.tag"] = sent.tag
    if sent.keys:
        found["messaging.rocketmq.message.keys"] = [sent.keys] if isinstance(sent.keys, str) else list(sent.keys)
    if sent.delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = sent.delay_level
    if sent.deliver_at_ms is not None:
        found["messaging.rocketmq.message.delivery_timestamp"] = sent.deliver_at_ms
    return found
