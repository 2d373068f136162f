"""Hooks: methods that a client calls for each send, pull, handler call and give-back (docs/guide/observing-clients.md)."""

from collections.abc import Sequence

import msgspec

from sprocketmq.protocol.message import Message, MessageQueue, Receipt
from sprocketmq.protocol.records import ReceivedMessage


class SendEvent(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One request that takes messages of ``topic`` to a broker: a single message, or a batch.

    ``messages`` are the messages as they were encoded, in order, and ``message_ids`` their ids. ``gathered``: AutoBatch put them together,
    so they may come from several callers. ``body_bytes`` counts the body of the request, with what encoding a batch adds.

    What is known at the end only: ``queue`` and the broker's ``address``, None and empty when no broker was chosen; ``tries``, the number
    of attempts; ``duration_s``, all of them together; ``receipt``, what the broker answered; ``error``, None for messages that are stored.
    A sender that was cancelled leaves a CancelledError.

    Of requests that the program encodes itself (``send_encoded``) ``messages`` and ``message_ids`` are empty.
    """

    group: str
    client_id: str
    topic: str
    messages: Sequence[Message]
    message_ids: Sequence[str]
    message_count: int
    body_bytes: int
    gathered: bool
    queue: MessageQueue | None = None
    address: str = ""
    tries: int = 0
    duration_s: float = 0.0
    receipt: Receipt | None = None
    error: BaseException | None = None


class _ReceivedEvent(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    group: str
    client_id: str
    queue: MessageQueue
    messages: Sequence[ReceivedMessage]
    body_bytes: int
    duration_s: float = 0.0
    error: BaseException | None = None

    @property
    def topic(self) -> str:
        """The topic of the queue: ``%RETRY%group`` for messages that are delivered again."""
        return self.queue.topic

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return len(self.messages)

    @property
    def message_ids(self) -> list[str]:
        """The ids of the messages, in order."""
        return [message.msg_id for message in self.messages]


class PullEvent(_ReceivedEvent, frozen=True, kw_only=True, eq=False):
    """The end of one pull of ``queue``, which the broker at ``address`` answered; empty when none did.

    ``messages`` is empty when there were none, or when the pull failed with ``error``. ``duration_s`` includes the time that the broker
    held the pull because there was no message.
    """

    address: str = ""


class HandleEvent(_ReceivedEvent, frozen=True, kw_only=True, eq=False):
    """A batch of ``queue`` with a handler, or in the body of a ``batches()`` loop (``iterated``).

    ``attempts`` counts how often the batch was handed out before in this process. What is known at the end only: ``duration_s``; ``error``,
    what the handler raised; ``retried``, the messages that are to be delivered again; ``timed_out``; and ``left``: a loop was left by
    ``break`` or an exception, so that the batch is handed out again.
    """

    attempts: int
    iterated: bool = False
    retried: Sequence[ReceivedMessage] = ()
    timed_out: bool = False
    left: bool = False


class GiveBackEvent(_ReceivedEvent, frozen=True, kw_only=True, eq=False):
    """The end of giving ``messages`` of ``queue`` back to a broker, which has stored all but ``failed`` of them.

    ``dead_letters``: an orderly consumer gave them up, so they were published to the topic of dead letters. ``error`` is the last error.
    """

    failed: Sequence[ReceivedMessage] = ()
    dead_letters: bool = False


class ClientHooks:
    """Methods that a client calls while it works: derive a class, override what you need, and pass objects of it as ``hooks=[...]``.

    The methods are plain functions and must not block: most run on the event loop of the client. One that raises is logged, once for each
    object, and counted in ``stats()``; neither the program's calls nor its messages are affected. Each method that returns something for
    a later one gets it back as ``token``; that later method is not called when the first one raised.
    """

    def message_created(self, message: Message) -> Message | None:
        """Look at a message before it is encoded, once for each message and with the caller's context variables, also with AutoBatch.

        May return a changed copy (``msgspec.structs.replace``) with other properties, keys or tag. None leaves the message as it is. The
        message may still be refused, and is not sent then.
        """

    def sending(self, event: SendEvent) -> object:
        """Look at a request before its first try. Returns the token for ``sent``."""

    def sent(self, event: SendEvent, token: object) -> None:
        """Look at the end of a request, before its senders get their results."""

    def pulled(self, event: PullEvent) -> None:
        """Look at the end of a pull, also of those without messages."""

    def handling(self, event: HandleEvent) -> object:
        """Look at a batch before a handler gets it, in the task or thread that calls the handler. Returns the token for ``handled``."""

    def handled(self, event: HandleEvent, token: object) -> None:
        """Look at the end of a handler call, in the same task."""

    def given_back(self, event: GiveBackEvent) -> None:
        """Look at the end of giving failed messages back to a broker."""
