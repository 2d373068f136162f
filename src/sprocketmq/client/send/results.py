"""What a broker's answer says of the messages it has stored."""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import overload

from sprocketmq.client.send.queue_choice import Target
from sprocketmq.errors import MaybeStoredError, ProtocolError
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import SendResponse
from sprocketmq.protocol.ids import MessageIds
from sprocketmq.protocol.message import Receipt, SendResult, SendStatus

# By response code. Every one of these means stored; only SEND_OK means as safely as the broker was asked to.
STATUSES = {status.value: status for status in SendStatus}
_SEND_OK = SendStatus.SEND_OK


def read_receipt(response: Command, ids: str | MessageIds, topic: str, target: Target) -> Receipt:
    """Return where the messages with these ids are stored, by an answer whose code is one of STATUSES.

    Raises MaybeStoredError for an answer without the fields that say where.
    """
    try:
        stored = response.header(SendResponse)
    except ProtocolError as e:
        raise MaybeStoredError(
            f"broker {target.address} answered that a message is stored, but not where ({e}): look for the message by its key",
            address=target.address,
            cause=e,
        ) from e
    code = response.code
    status = STATUSES[code] if code else _SEND_OK
    msg_ids = (ids,) if type(ids) is str else ids
    place = (stored.queue_id, stored.queue_offset)
    return Receipt(status, msg_ids, stored.msg_id, topic, target.broker_name, *place, stored.recall_handle or "")


class BatchResults(Sequence[SendResult]):
    """The results of a batch, one for each message, in order; each is built when it is asked for.

    Compares equal to any sequence with the same results.
    """

    __slots__ = ("_length", "_receipts", "broker_name", "status", "topic")

    def __init__(self, topic: str, broker_name: str = "") -> None:
        self.topic: str = topic
        self.broker_name: str = broker_name
        self.status: SendStatus = SendStatus.SEND_OK
        self._receipts: list[tuple[int, Receipt]] = []  # with the place of its first message
        self._length = 0

    def add(self, receipt: Receipt) -> None:
        """Append the results of one batch request. The worst status of all requests becomes that of the whole."""
        self._receipts.append((self._length, receipt))
        self._length += len(receipt.msg_ids)
        self.broker_name = receipt.broker_name
        if receipt.status is not SendStatus.SEND_OK:
            self.status = receipt.status

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> SendResult: ...
    @overload
    def __getitem__(self, index: slice) -> list[SendResult]: ...
    def __getitem__(self, index: int | slice) -> SendResult | list[SendResult]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        at = index + self._length if index < 0 else index
        if not 0 <= at < self._length:
            raise IndexError(f"result {index} of a batch of {self._length}")
        start, receipt = next(pair for pair in reversed(self._receipts) if pair[0] <= at)
        return SendResult(receipt, at - start)

    def __iter__(self) -> Iterator[SendResult]:
        for _, receipt in self._receipts:
            yield from map(SendResult, repeat(receipt), range(len(receipt.msg_ids)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._length} results in {self.topic!r}, {self.status.name}>"
