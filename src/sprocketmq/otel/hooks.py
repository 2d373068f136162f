"""Hooks that make spans and metrics (docs/guide/observing-clients.md)."""

import time
from collections.abc import Sequence
from contextvars import Token

import msgspec
from opentelemetry import context as current
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider, get_tracer, set_span_in_context

from sprocketmq._version import __version__
from sprocketmq.client.hooks import ClientHooks, GiveBackEvent, HandleEvent, PullEvent, SendEvent
from sprocketmq.otel import conventions
from sprocketmq.otel.carrier import Injector, context_of, links_to
from sprocketmq.otel.conventions import Attributes
from sprocketmq.protocol.message import Message

_SCOPE = "sprocketmq.otel"
_TIMED_OUT = "consume_timeout"


class _CreatedMessage(Message, kw_only=True, eq=False, gc=False):
    """A message with the span of its creation, which lasts until the message leaves."""

    span: Span | None = None


class _Sending(msgspec.Struct, eq=False):
    span: Span


class _Handling(msgspec.Struct, eq=False):
    span: Span
    token: Token[Context] | None


class OpenTelemetryHooks(ClientHooks):
    """Makes the spans and metrics of the clients it is given to: ``Producer(..., hooks=[OpenTelemetryHooks()])``.

    Without arguments it uses the global providers. One object may serve any number of clients. Spans by default:

    * ``send TOPIC`` (PRODUCER) for a message that is sent by itself. For a batch, ``create TOPIC`` (PRODUCER) for each message and
      ``send TOPIC`` (CLIENT) for the request, with links to them. The context of the message's span travels in its properties.
    * ``receive TOPIC`` (CLIENT) for each pull that found messages, with links to the spans that created them.
    * ``process TOPIC`` (CONSUMER) around each handler call, with the same links; the span is current in the handler. That of a single
      message continues the message's trace. In a ``batches()`` loop the span is not current.
    * ``give_back TOPIC`` (CLIENT) for messages that are given back.

    Metrics: ``messaging.client.operation.duration``, ``messaging.client.sent.messages``, ``messaging.client.consumed.messages`` and
    ``messaging.process.duration``.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
        self._tracer = get_tracer(_SCOPE, __version__, tracer_provider, schema_url=conventions.SCHEMA_URL)
        meter = get_meter(_SCOPE, __version__, meter_provider, schema_url=conventions.SCHEMA_URL)
        self._old_names = conventions.wants_old_names()
        self._injector = Injector()
        self._durations = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=conventions.DURATION_BOUNDS,
        )
        self._process_durations = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of processing operation.",
            explicit_bucket_boundaries_advisory=conventions.DURATION_BOUNDS,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", unit="{message}", description="Number of messages producer attempted to send to the broker."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", unit="{message}", description="Number of messages that were delivered to the application."
        )

    # --- sending ---

    def message_created(self, message: Message) -> Message | None:
        """Start the span of the message's creation and add its context to a copy of the message."""
        span = self._tracer.start_span(
            f"create {message.topic}",
            kind=SpanKind.PRODUCER,
            attributes=self._operation("create", "create", message.topic) | conventions.message(message),
        )
        properties = self._injector.properties(message, set_span_in_context(span))
        if properties is None and not span.is_recording():
            return None
        fields = {name: getattr(message, name) for name in Message.__struct_fields__}
        if properties is not None:
            fields["properties"] = properties
        return _CreatedMessage(**fields, span=span)

    def sending(self, event: SendEvent) -> _Sending:
        """Start the span of a request, or make that of its only message into one."""
        name = f"send {event.topic}"
        spans = [message.span for message in event.messages if isinstance(message, _CreatedMessage) and message.span is not None]
        if event.message_count == 1 and len(spans) == 1:
            span = spans[0]
            span.update_name(name)
            span.set_attributes(self._operation("send", "send", event.topic, client_id=event.client_id))
            for message_id in event.message_ids:
                span.set_attribute("messaging.message.id", message_id)
            return _Sending(span)
        for created, message_id in zip(spans, event.message_ids, strict=False):
            created.set_attribute("messaging.message.id", message_id)
            created.end()
        attributes = self._operation("send", "send", event.topic, client_id=event.client_id)
        attributes["messaging.batch.message_count"] = event.message_count
        span = self._tracer.start_span(
            name,
            # A batch that was gathered from several callers belongs to the trace of none of them.
            context=Context() if event.gathered else None,
            kind=SpanKind.CLIENT if spans else SpanKind.PRODUCER,
            attributes=attributes,
            links=links_to(event.messages),
        )
        return _Sending(span)

    def sent(self, event: SendEvent, token: object) -> None:
        """End the span of a request and measure it."""
        error = "" if event.error is None else type(event.error).__qualname__
        if isinstance(token, _Sending):
            span = token.span
            if event.queue is not None:
                span.set_attribute("messaging.destination.partition.id", str(event.queue.queue_id))
            span.set_attributes(conventions.server(event.address))
            self._end(span, error, event.error)
        attributes = conventions.metric("send", event.topic, address=event.address, error=error)
        self._durations.record(event.duration_s, attributes)
        self._sent.add(event.message_count, attributes)

    # --- consuming ---

    def pulled(self, event: PullEvent) -> None:
        """Make the span of a pull that found messages, and measure it and those that failed."""
        error = "" if event.error is None else type(event.error).__qualname__
        if event.messages or error:
            attributes = conventions.metric("receive", event.topic, group=event.group, address=event.address, error=error)
            self._durations.record(event.duration_s, attributes)
        if not event.messages:
            return
        self._consumed.add(event.message_count, attributes)
        span = self._span("receive", "receive", event, kind=SpanKind.CLIENT, context=Context(), links=links_to(event.messages))
        span.set_attributes(conventions.server(event.address))
        span.end()

    def handling(self, event: HandleEvent) -> _Handling:
        """Start the span of a batch and make it current for its handler."""
        links = links_to(event.messages)
        parent: Context | None = None
        if not event.iterated:
            # The handler is called from a task of the consumer: what is current there is of no interest.
            parent = context_of(event.messages[0]) if len(event.messages) == 1 else Context()
        span = self._span("process", "process", event, kind=SpanKind.CONSUMER, context=parent, links=links, began_earlier=False)
        token = None
        if not event.iterated:
            token = current.attach(set_span_in_context(span, parent))
        return _Handling(span, token)

    def handled(self, event: HandleEvent, token: object) -> None:
        """End the span of a batch and measure its handler."""
        error = type(event.error).__qualname__ if event.error is not None else _TIMED_OUT if event.timed_out else ""
        if isinstance(token, _Handling):
            if token.token is not None:
                current.detach(token.token)
            self._end(token.span, error, event.error)
        self._process_durations.record(event.duration_s, conventions.metric("process", event.topic, group=event.group, error=error))

    def given_back(self, event: GiveBackEvent) -> None:
        """Make the span of messages that were given back, and measure it."""
        error = "" if event.error is None else type(event.error).__qualname__
        span = self._span("give_back", "settle", event, kind=SpanKind.CLIENT, context=Context(), links=links_to(event.messages))
        self._end(span, error, event.error)
        self._durations.record(event.duration_s, conventions.metric("give_back", event.topic, group=event.group, error=error))

    # --- parts ---

    def _operation(self, name: str, kind: str, topic: str, *, group: str = "", client_id: str = "") -> Attributes:
        return conventions.operation(name, kind, topic, group=group, client_id=client_id, old_names=self._old_names)

    def _span(
        self,
        name: str,
        operation: str,
        event: PullEvent | HandleEvent | GiveBackEvent,
        *,
        kind: SpanKind,
        context: Context | None,
        links: Sequence[Link],
        began_earlier: bool = True,
    ) -> Span:
        """Start a span of received messages, which ``began_earlier`` if the event tells of its end."""
        attributes = self._operation(name, operation, event.topic, group=event.group, client_id=event.client_id)
        attributes["messaging.destination.partition.id"] = str(event.queue.queue_id)
        attributes["messaging.batch.message_count"] = event.message_count
        if event.message_count == 1:
            attributes["messaging.message.id"] = event.messages[0].msg_id
        return self._tracer.start_span(
            f"{name} {event.topic}",
            context=context,
            kind=kind,
            attributes=attributes,
            links=links,
            start_time=time.time_ns() - int(event.duration_s * 1e9) if began_earlier else None,
        )

    @staticmethod
    def _end(span: Span, error: str, raised: BaseException | None) -> None:
        if error:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, str(raised or "the handler took longer than consume_timeout_s")))
        span.end()
