"""Calls the hooks of one client: makes the events, and keeps what hooks raise away from the program."""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from sprocketmq.client.hooks import ClientHooks, GiveBackEvent, HandleEvent, PullEvent, SendEvent
from sprocketmq.client.instance import Instance
from sprocketmq.errors import ConfigError
from sprocketmq.net.loops import ends_program
from sprocketmq.protocol.message import Message, MessageQueue, Receipt
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH, RESERVED
from sprocketmq.protocol.records import ReceivedMessage

log = logging.getLogger(__name__)

# A hook that takes longer is logged, as nothing else runs on the event loop meanwhile.
SLOW_S = 0.1
# Bytes of the properties that a message gets when it is encoded: its id, WAIT, a delay, and those that brokers add.
_OWN_PROPERTIES = 1024

_METHODS = ("message_created", "sending", "sent", "pulled", "handling", "handled", "given_back")
# Fields that a hook must not change: destination, time and body of a message.
_FIXED = ("topic", "body", "queue", "ordering_key", "flag", "delay_level", "deliver_at_ms", "wait_store_ok")


class _Raised:
    """The token of a hook whose first method raised: its second one is not called."""


_RAISED = _Raised()

# A hook's method, and the one that gets its token.
_Pair = tuple[Callable[[Any], object], Callable[[Any, object], None]]


class DeliveryTraces(Protocol):
    """Makes traces of the batches that handlers receive."""

    def handling(self, topic: str, messages: Sequence[ReceivedMessage], /) -> Any:
        """Return the state for ``handled``, None when it need not be called."""

    def handled(
        self,
        call: Any,
        duration_s: float,
        /,
        *,
        retried: Sequence[ReceivedMessage],
        timed_out: bool,
        error: BaseException | None,
        left: bool,
    ) -> None: ...


class SendCall(msgspec.Struct, eq=False):
    """A request whose ``sending`` was called: its event, when it began, and the token of each hook."""

    event: SendEvent
    began: float
    tokens: list[object]


class HandlerCall(msgspec.Struct, eq=False):
    """A batch whose ``handling`` was called: its event, when it began, the token of each hook, and what its traces need.

    ``event`` is None when only traces are made of it.
    """

    event: HandleEvent | None
    began: float
    tokens: list[object]
    traced: Any


class HookCalls:
    """The hooks of one client of ``group``. Each event is made only when a hook overrides its method.

    ``failures`` counts the calls that raised or returned something unusable, ``slow`` those that took longer than ``SLOW_S``.
    ``traces`` are made of what handlers get; a batch that has none, and no hook, costs next to nothing.
    """

    def __init__(self, hooks: Sequence[ClientHooks], group: str, instance: Instance, traces: DeliveryTraces | None = None) -> None:
        self._traces = traces
        self.failures: int = 0
        self.slow: int = 0
        self._group = group
        self._instance = instance
        self._now = instance.clock.monotonic
        # The hooks that were logged, and the reasons.
        self._logged: set[tuple[int, str]] = set()

        def overriding(*names: str) -> list[ClientHooks]:
            return [hook for hook in hooks if any(getattr(type(hook), name) is not getattr(ClientHooks, name) for name in names)]

        self._created: list[Callable[[Message], Message | None]] = [hook.message_created for hook in overriding("message_created")]
        self._sends: list[_Pair] = [(hook.sending, hook.sent) for hook in overriding("sending", "sent")]
        self._pulled = [hook.pulled for hook in overriding("pulled")]
        self._handlers: list[_Pair] = [(hook.handling, hook.handled) for hook in overriding("handling", "handled")]
        self._given_back = [hook.given_back for hook in overriding("given_back")]

    # --- sending ---

    def created(self, message: Message) -> Message:
        """Return ``message`` after the changes of hooks. Changes that would make it invalid are refused. Any thread may call."""
        given: object = message
        if not isinstance(given, Message) or not _is_mapping(given.properties):
            return message  # sending it raises the error that describes the problem
        for hook in self._created:
            before = [getattr(message, name) for name in _FIXED]
            changed = self._call(hook, message)
            for name, value in zip(_FIXED, before, strict=True):
                if getattr(message, name) is not value:
                    setattr(message, name, value)
                    self._failed(hook, f"changed the field {name!r} of a message, which was undone: return a copy, and leave that field")
            if changed is None or changed is message or changed is _RAISED:
                continue
            reason = _unusable(changed, message, before)
            if reason:
                self._failed(hook, f"returned {reason}: the message is sent as it was")
            elif isinstance(changed, Message):
                message = changed
        return message

    def sending(
        self,
        topic: str,
        messages: Sequence[Message],
        message_ids: Sequence[str],
        *,
        message_count: int,
        body_bytes: int,
        gathered: bool,
    ) -> SendCall | None:
        """Call ``sending`` and return the state for ``sent``."""
        if not self._sends:
            return None
        event = SendEvent(
            group=self._group,
            client_id=self._instance.client_id,
            topic=topic,
            messages=messages,
            message_ids=message_ids,
            message_count=message_count,
            body_bytes=body_bytes,
            gathered=gathered,
        )
        return SendCall(event, self._now(), [self._call(sending, event) for sending, _ in self._sends])

    def sent(
        self, call: SendCall, queue: MessageQueue | None, address: str, tries: int, receipt: Receipt | None, error: BaseException | None
    ) -> None:
        """Call ``sent``."""
        ended = self._now()
        event = msgspec.structs.replace(
            call.event, queue=queue, address=address, tries=tries, duration_s=ended - call.began, receipt=receipt, error=error
        )
        self._call_second(self._sends, event, call.tokens)

    # --- consuming ---

    def pulled(
        self,
        queue: MessageQueue,
        began: float,
        *,
        messages: Sequence[ReceivedMessage] = (),
        body_bytes: int = 0,
        address: str = "",
        error: BaseException | None = None,
    ) -> None:
        """Call ``pulled``; ``began`` is a time of the client's clock."""
        if self._pulled:
            event = PullEvent(
                group=self._group,
                client_id=self._instance.client_id,
                queue=queue,
                messages=messages,
                body_bytes=body_bytes,
                duration_s=self._now() - began,
                error=error,
                address=address,
            )
            for pulled in self._pulled:
                self._call(pulled, event)

    def handling(
        self, queue: MessageQueue, messages: Sequence[ReceivedMessage], body_bytes: int, attempts: int, *, iterated: bool = False
    ) -> HandlerCall | None:
        """Call ``handling`` and return the state for ``handled``."""
        traced = None if self._traces is None else self._traces.handling(queue.topic, messages)
        if not self._handlers:
            return None if traced is None else HandlerCall(None, self._now(), [], traced)
        event = HandleEvent(
            group=self._group,
            client_id=self._instance.client_id,
            queue=queue,
            messages=messages,
            body_bytes=body_bytes,
            attempts=attempts,
            iterated=iterated,
        )
        return HandlerCall(event, self._now(), [self._call(handling, event) for handling, _ in self._handlers], traced)

    def handled(
        self,
        call: HandlerCall,
        *,
        retried: Sequence[ReceivedMessage],
        timed_out: bool,
        error: BaseException | None = None,
        left: bool = False,
    ) -> None:
        """Call ``handled``."""
        duration_s = self._now() - call.began
        if self._traces is not None and call.traced is not None:
            self._traces.handled(call.traced, duration_s, retried=retried, timed_out=timed_out, error=error, left=left)
        if call.event is None:
            return
        event = msgspec.structs.replace(call.event, retried=retried, timed_out=timed_out, error=error, left=left, duration_s=duration_s)
        self._call_second(self._handlers, event, call.tokens)

    def given_back(
        self,
        queue: MessageQueue,
        began: float,
        messages: Sequence[ReceivedMessage],
        failed: Sequence[ReceivedMessage],
        error: BaseException | None,
        *,
        dead_letters: bool = False,
    ) -> None:
        """Call ``given_back``; ``began`` is a time of the client's clock."""
        if self._given_back:
            event = GiveBackEvent(
                group=self._group,
                client_id=self._instance.client_id,
                queue=queue,
                messages=messages,
                body_bytes=sum(len(message.stored_body) for message in messages),
                duration_s=self._now() - began,
                error=error,
                failed=failed,
                dead_letters=dead_letters,
            )
            for given_back in self._given_back:
                self._call(given_back, event)

    # --- calling ---

    def _call(self, hook: Callable[..., object], *arguments: object) -> object:
        began = self._now()
        try:
            return hook(*arguments)
        except BaseException as e:
            if ends_program(e):
                raise
            self._failed(hook, "raised", e)
            return _RAISED
        finally:
            took = self._now() - began
            if took > SLOW_S:
                self.slow += 1
                if self._is_first(hook, "slow"):
                    log.warning("%s took %.3f s, during which nothing else ran on its thread: hooks must not block", _name(hook), took)

    def _call_second(self, pairs: list[_Pair], event: object, tokens: list[object]) -> None:
        # In reverse order: what the first methods entered has to be left.
        for (_, second), token in zip(reversed(pairs), reversed(tokens), strict=True):
            if token is not _RAISED:
                self._call(second, event, token)

    def _failed(self, hook: Callable[..., object], what: str, error: BaseException | None = None) -> None:
        self.failures += 1
        if self._is_first(hook, "failed"):
            log.error("%s %s; further failures of this hook are only counted", _name(hook), what, exc_info=error)

    def _is_first(self, hook: Callable[..., object], what: str) -> bool:
        key = id(getattr(hook, "__self__", hook)), what
        first = key not in self._logged
        self._logged.add(key)
        return first


def hook_calls(hooks: Sequence[ClientHooks], group: str, instance: Instance, traces: DeliveryTraces | None = None) -> HookCalls | None:
    """Return the caller of ``hooks`` and maker of ``traces``, None when there are neither."""
    return HookCalls(hooks, group, instance, traces) if hooks or traces is not None else None


def check_hooks(hooks: Sequence[ClientHooks]) -> None:
    """Raise ConfigError for anything that is not a hook."""
    if isinstance(hooks, ClientHooks) or not isinstance(hooks, Sequence):
        raise ConfigError(f"hooks must be a list of ClientHooks, not {hooks!r}")
    for hook in hooks:
        if not isinstance(hook, ClientHooks):
            raise ConfigError(f"a hook must be an object of a class derived from ClientHooks, not {hook!r}")
        for name in _METHODS:
            if inspect.iscoroutinefunction(getattr(hook, name)):
                raise ConfigError(f"{type(hook).__name__}.{name} is a coroutine function: hooks are plain functions that nobody awaits")


def _name(hook: Callable[..., object]) -> str:
    return f"the hook {type(getattr(hook, '__self__', hook)).__name__}.{getattr(hook, '__name__', '')}"


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _unusable(changed: object, message: Message, fixed: list[object]) -> str:
    """Return why a hook's message cannot be sent instead of ``message``; empty when it can."""
    if not isinstance(changed, Message):
        return f"a {type(changed).__name__} and no Message"
    for name, value in zip(_FIXED, fixed, strict=True):
        if getattr(changed, name) != value:
            return f"a message with another {name}"
    if not _is_mapping(changed.properties):
        return "a message whose properties are not a mapping"
    total = _OWN_PROPERTIES
    try:
        for name, value in changed.properties.items():
            text = f"{name}{value}"
            total += len(text.encode()) + 2
            if message.properties.get(name) == value:
                continue
            if type(name) is not str or type(value) is not str or not name or "\x01" in text or "\x02" in text or name in RESERVED:
                return f"a message with the property {name!r}, which cannot be sent"
        total += sum(len(str(word).encode()) + 1 for word in changed.keys) + len(str(changed.tag).encode())
    except (TypeError, UnicodeEncodeError):
        return "a message with text that cannot be sent"
    if total > MAX_PROPERTIES_LENGTH:
        return f"a message whose properties take about {total} bytes, over the limit of {MAX_PROPERTIES_LENGTH}"
    return ""
