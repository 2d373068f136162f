"""One send request: the message or batch in it, where it goes, how often it was tried, and what happens after each try.

::

    WAITING --written to a connection--> SENT --the answer says stored, or the failure is final--> ENDED
       ^                                   |
       +--- refused for now, or no answer -+        WAITING --no time or no queue is left--> ENDED

    how a try ended                          next
    code 0, 10, 11, 12                       stored; 10 to 12 are tried on another broker once more when the producer asks for that
    code in RETRY_CODES                      another broker, or the same after a pause, a longer one if it is busy; counts as a try
    code 16 for want of a login or a right   final, unless the credentials were renewed meanwhile
    connection lost, no answer in time       the same, and from then on the outcome is unknown: MaybeStoredError instead of a failure
    no connection to the broker              the same, but counts as no try: nothing was sent
    another code, or another error           final

``SendRequest`` decides and never waits; ``Outbox`` does what was decided. Only ENDED is kept in a field: nothing depends on the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import msgspec

from sprocketmq.client.hook_calls import SendCall
from sprocketmq.client.instance import response_error
from sprocketmq.client.send.batch import Batch
from sprocketmq.client.send.queue_choice import Target
from sprocketmq.client.send.results import STATUSES
from sprocketmq.client.send.waiters import Waiter
from sprocketmq.errors import (
    AccessRefused,
    BrokerBusy,
    ConnectFailed,
    ConnectionLost,
    InvalidMessage,
    MaybeStoredError,
    NotRocketMQ,
    RequestTimeout,
    SendTimeout,
    SprocketError,
)
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.protocol.ids import MessageIds
from sprocketmq.protocol.message import Message, MessageQueue, Receipt

RETRY_PAUSE_S = 0.1
RETRY_PAUSE_MAX_S = 0.5
# A broker that is busy after a slow write refuses all sends for up to a second: the two retries of a producer last longer.
BUSY_PAUSE_S = 0.3
BUSY_PAUSE_MAX_S = 1.0
# A timer may end this much before its time.
OUT_OF_TIME_S = 0.001

# Answers after which another broker, or the same one a moment later, is asked (docs/internals/client.md#a-send).
RETRY_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
# Those that concern the topic, not the broker.
_TOPIC_CODES = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION})


@dataclass(frozen=True, slots=True)
class Failure:
    """A try that did not store the message as asked: its error, whether another try may help, and whether the broker is to blame."""

    error: SprocketError
    passing: bool
    broker_at_fault: bool


def read_failure(outcome: SprocketError | Command, address: str, topic: str, *, renewed: bool = False) -> Failure:
    """Return what an answer other than SUCCESS, or a missing answer, means. ``renewed``: the client has other credentials since."""
    if not isinstance(outcome, Command):
        passing = isinstance(outcome, ConnectFailed | ConnectionLost | RequestTimeout | NotRocketMQ)
        return Failure(outcome, passing, passing)
    code = outcome.code
    error = response_error(outcome, address, topic)
    if isinstance(error, AccessRefused):
        return Failure(error, renewed, False)
    weakly_stored = code in STATUSES
    passing = weakly_stored or (code in RETRY_CODES and not queue_is_gone(outcome))
    about_topic = code in _TOPIC_CODES
    if passing and not about_topic:
        error = BrokerBusy(code, outcome.remark, address=address)
    return Failure(error, passing, passing and not weakly_stored and not about_topic)


def queue_is_gone(answer: SprocketError | Command) -> bool:
    """Return whether an answer refuses the queue: the topic has fewer than the client believed. Brokers before 5.4 answer SYSTEM_ERROR."""
    codes = (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)
    return isinstance(answer, Command) and answer.code in codes and "queueId[" in (answer.remark or "")


class Listener(Protocol):
    """Who handles how the tries of a request end."""

    def stored(self, request: "SendRequest", response: Command) -> None: ...

    def failed(self, request: "SendRequest", outcome: SprocketError | Command) -> None: ...


class BatchListener(Protocol):
    """Who handles the end of a request that carries a batch of an accumulator."""

    def ended(self, batch: Batch[Waiter]) -> None:
        """Record that a batch was answered or has failed, before its waiters get the outcome."""
        ...

    def told(self) -> None:
        """Go on after they got it."""
        ...


# A struct, as a class with a constructor in Python takes several times as long to make: there is one for each message without batching.
class SendRequest(msgspec.Struct, eq=False):
    """One request from the call to its outcome. A connection sees it as the ``Receiver`` of the answer.

    ``ids`` is the id of its message, or those of its batch. ``deadline`` is a time of the event loop and covers all tries. ``count``
    messages with ``size`` bytes of bodies take room in the outbox until the request ends. ``in_order``: it may not leave before earlier
    requests of its topic that wait for a route or a connection. ``waiter`` gets the outcome; without one, each member of ``gathered`` gets
    that of its message.
    """

    topic: str
    queue: MessageQueue | None
    body: bytes | memoryview
    properties: bytes
    ids: str | MessageIds
    timeout_s: float
    listener: Listener
    count: int = 1
    size: int = 0
    sys_flag: int = 0
    flag: int = 0
    batch: bool = False
    in_order: bool = True
    waiter: Waiter | None = None
    born_timestamp_ms: int | None = None  # None: the time of each try
    # AutoBatch: the accumulator's batch in this request, and who handles its end.
    gathered: Batch[Waiter] | None = None
    gathering: "BatchListener | None" = None
    # For hooks: the messages in it; and what the end of the request is reported with.
    messages: Sequence[Message] = ()
    observed: SendCall | None = None
    # --- on its way, which ``Outbox.launch`` begins ---
    deadline: float = 0.0
    ended: bool = False
    target: Target | None = None
    sent_at: float = 0.0
    signed_by: Credentials | None = None
    tries: int = 0
    failed_connects: int = 0
    # Why the latest try failed that did not only run out of time.
    error: SprocketError | None = None
    # The latest error after which the message may be stored.
    unsure: SprocketError | None = None
    # The latest answer that said stored, but not as safely as asked, and where.
    weakly_stored: tuple[Command, Target] | None = None
    receipt: Receipt | None = None

    # --- what the connection calls (``Receiver``) ---

    def done(self) -> bool:
        """Return whether an answer is of no interest any more."""
        return self.ended

    def set_result(self, response: Command) -> None:
        """Pass on an answer."""
        if response.code:
            self.listener.failed(self, response)
        else:
            self.listener.stored(self, response)

    def set_exception(self, error: SprocketError) -> None:
        """Pass on why there is no answer."""
        self.listener.failed(self, error)

    # --- decisions ---

    def count_failure(self, failure: Failure, *, retries: int, now: float) -> None:
        """Record a try that failed. Raises the error of the request when there is no other try."""
        error = failure.error
        if isinstance(error, ConnectFailed):
            self.failed_connects += 1
        else:
            self.tries += 1
        if isinstance(error, ConnectionLost | RequestTimeout):
            self.unsure = error
        out_of_time = self.deadline - now < OUT_OF_TIME_S
        if self.error is None or not (out_of_time and isinstance(error, ConnectFailed | SendTimeout)):
            self.error = error
        if not failure.passing or self.tries > retries or out_of_time:
            self.give_up()

    def next_try(self, *, now: float) -> float:
        """Choose the queue of the next try and return the pause before it, in seconds. Raises the request's error when there is none."""
        last = self.target
        assert last is not None
        publisher = last.publisher
        try:
            target = publisher.next_elsewhere(last.broker_name) if self.queue is None else publisher.pinned(self.queue)
        except InvalidMessage:
            self.give_up()
        self.target = target
        all_unreachable = self.failed_connects and self.failed_connects % max(1, len(publisher.route.masters)) == 0
        if target.broker_name != last.broker_name and not all_unreachable:
            return 0.0
        left = self.deadline - now
        pause: float
        if isinstance(self.error, BrokerBusy) and self.error.code == ResponseCode.SYSTEM_BUSY:
            pause = min(BUSY_PAUSE_MAX_S, BUSY_PAUSE_S * 3 ** (self.tries - 1), left / 2)
        else:
            pause = min(RETRY_PAUSE_MAX_S, RETRY_PAUSE_S * 2 ** (self.tries + self.failed_connects - 1))
        if pause >= left:
            self.give_up()
        return pause

    def give_up(self) -> NoReturn:
        """Raise MaybeStoredError when any try was not answered, else ``error``."""
        assert self.error is not None
        unsure = self.unsure
        if unsure is None:
            raise self.error
        address: str = getattr(unsure, "address", self.target.address if self.target is not None else "")
        raise MaybeStoredError(
            f"no answer from broker {address} for a send to {self.topic!r} within {self.timeout_s:g} s ({unsure}): it may be stored or not",
            address=address,
            cause=unsure,
        ) from self.error
