"""The context of a trace in the properties of messages: ``traceparent`` and ``tracestate``, as Apache's Java agent has them."""

import logging
from collections.abc import Iterable, Mapping
from itertools import islice

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import Link, get_current_span

from sprocketmq.errors import SprocketError
from sprocketmq.protocol.message import Message
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH
from sprocketmq.protocol.records import ReceivedMessage

log = logging.getLogger(__name__)

# Links of one span; a batch may have more messages. The SDK keeps 128 as well, unless it is configured otherwise.
MAX_LINKS = 128
# The properties that a propagator may add are dropped in this order while a message has no room for them; then all others.
DROPPED_FIRST = ("tracestate", "baggage")
# Bytes that message ids and the properties of brokers need besides.
_RESERVE = 2048


class Injector:
    """Adds the context of a span to messages, within the limit of their properties."""

    def __init__(self) -> None:
        self._warned = False

    def properties(self, message: Message, context: Context) -> dict[str, str] | None:
        """Return the properties of ``message`` with ``context``; None when there is none, or no room for any of it.

        What the message had from another context is replaced.
        """
        carrier: dict[str, str] = {}
        propagate.inject(carrier, context)
        if not carrier:
            return None
        names = {"traceparent", *DROPPED_FIRST, *carrier}
        kept = {name: value for name, value in message.properties.items() if name not in names}
        keys = (message.keys,) if isinstance(message.keys, str) else message.keys
        room = (
            MAX_PROPERTIES_LENGTH - _RESERVE - _size(kept) - sum(len(key.encode()) + 1 for key in keys) - len((message.tag or "").encode())
        )
        for name in DROPPED_FIRST:
            if _size(carrier) > room and carrier.pop(name, None) is not None:
                self._warn(name)
        if _size(carrier) > room:
            self._warn("traceparent")
            return None
        return kept | carrier

    def _warn(self, name: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "%s of the trace does not fit into a message: all properties together may take %d bytes; the message is sent without it."
                " Further messages without it are not logged",
                name,
                MAX_PROPERTIES_LENGTH,
            )


def _size(properties: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in properties.items())


def context_of(message: ReceivedMessage | Message) -> Context:
    """Return the context in which a message was created; an empty one when it carries none, or one that cannot be read."""
    try:
        return propagate.extract(message.properties, Context())
    except (SprocketError, ValueError, TypeError):  # properties that are damaged, or that a propagator cannot read
        return Context()


def links_to(messages: Iterable[ReceivedMessage | Message]) -> list[Link]:
    """Return links to the contexts in which ``messages`` were created, at most 128; those without a context are left out."""
    contexts = (get_current_span(context_of(message)).get_span_context() for message in messages)
    return [Link(context) for context in islice((context for context in contexts if context.is_valid), MAX_LINKS)]
