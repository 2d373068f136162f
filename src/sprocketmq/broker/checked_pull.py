"""One checked pull, and the response code of what was read for it."""

from sprocketmq.broker.filters.sql92 import Condition
from sprocketmq.broker.inner_batches import members_of
from sprocketmq.broker.topics import Topic
from sprocketmq.broker.waiting_request import WaitingRequest
from sprocketmq.errors import FatalError
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import SubscriptionGroupConfig
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.storage.store import ReadResult, ReadStatus

_FOUND = ReadStatus.FOUND
_AT_END = ReadStatus.OFFSET_OVERFLOW_ONE
_EMPTY = ReadStatus.NO_MESSAGE_IN_QUEUE
_AGAIN = {ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING}


class PullRefused(FatalError):
    """A pull to be answered with an error code and without queue data."""

    def __init__(self, code: int, remark: str, *, forbidden_type: int | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.forbidden_type = forbidden_type


class Pull(WaitingRequest):
    """One checked pull: what to read, and whom to answer.

    It wants messages with ``tag_codes``, or those that meet ``condition``; without either, all of them. It may be held for ``suspend_s``
    seconds. ``max_units`` limits a read to what was loaded from the disk in ``loads`` steps. ``tick``, ``held``, ``due`` and ``woken`` are
    for a held one.
    """

    __slots__ = (
        "condition",
        "due",
        "group",
        "held",
        "max_bytes",
        "max_count",
        "max_units",
        "offset",
        "own_subscription",
        "queue_id",
        "suspend_s",
        "tag_codes",
        "tick",
        "topic",
        "woken",
    )

    held: bool
    due: bool  # its deadline has passed: the next read answers it, whatever that finds
    woken: bool  # it is queued for another read

    def __init__(
        self,
        conn: ServerConnection,
        command: Command,
        group: SubscriptionGroupConfig,
        topic: Topic,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
        *,
        condition: Condition | None = None,
        own_subscription: bool,
        suspend_s: float,
    ) -> None:
        super().__init__(conn, command)
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.tag_codes = tag_codes
        self.condition = condition
        self.own_subscription = own_subscription
        self.suspend_s = suspend_s
        self.max_units: int | None = None
        self.tick = 0


def response_code(status: ReadStatus, offset: int) -> int:
    """Return the response code for a read of ``offset`` that ended with ``status``."""
    if status is _FOUND:
        return ResponseCode.SUCCESS
    if status in _AGAIN:
        return ResponseCode.PULL_RETRY_IMMEDIATELY
    if status is _AT_END or (status is _EMPTY and offset == 0):
        return ResponseCode.PULL_NOT_FOUND
    return ResponseCode.PULL_OFFSET_MOVED


def from_the_asked_offset(pull: Pull, result: ReadResult) -> ReadResult:
    """Return what was read without the messages before the requested one, where that lies inside a batch.

    Consumers receive whole batches and skip what they did not ask for; tools show the first message they receive. Raises
    RemoteProtocolError for a batch that cannot be taken apart.
    """
    size = int.from_bytes(result.buffers[0][:4], "big")
    members = members_of(result.buffers[0][:size], first_offset=pull.offset)[: pull.max_count]
    if not members:
        return result
    offset = pull.offset + len(members)
    return ReadResult(_FOUND, offset, result.min_offset, result.max_offset, [memoryview(b"".join(members))], len(members))
