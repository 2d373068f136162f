"""Explicit requests: batches given as lists of messages, and bodies that the caller has encoded.

Each waits for its answer; it takes room as one message does.
"""

from collections.abc import Iterable, Sequence

import msgspec

from sprocketmq.client.arguments import LARGEST_OFFSET, check_number, check_queue
from sprocketmq.client.hook_calls import HookCalls
from sprocketmq.client.send.encoding import EncodedBatch, MessageEncoder
from sprocketmq.client.send.outbox import Outbox
from sprocketmq.client.send.queue_choice import queue_of
from sprocketmq.client.send.requests import SendRequest
from sprocketmq.client.send.results import BatchResults
from sprocketmq.errors import BatchPartlySent, InvalidMessage, NotAMessage, SprocketError
from sprocketmq.protocol.ids import MessageIds
from sprocketmq.protocol.message import Message, MessageQueue, SendResult


class ExplicitBatches:
    """Sends such requests of one producer."""

    def __init__(self, encoder: MessageEncoder, outbox: Outbox, hooks: HookCalls | None) -> None:
        self._encoder = encoder
        self._outbox = outbox
        self._hooks = hooks

    def encode(self, messages: Iterable[Message]) -> tuple[Sequence[Message], list[EncodedBatch]]:
        """Return the messages after the changes of hooks, and encoded. Raises what ``MessageEncoder.batch`` raises, and NotAMessage."""
        if isinstance(messages, Message | str | bytes | type) or not isinstance(messages, Iterable):
            raise NotAMessage(f"send_batch takes a list of messages, not {type(messages).__name__}: send takes a single Message")
        batch = messages if isinstance(messages, list | tuple) else list(messages)
        if self._hooks is not None:
            batch = [self._hooks.created(message) for message in batch]
        return batch, self._encoder.batch(batch)

    async def send(self, batch: Sequence[Message], encoded: list[EncodedBatch], timeout_s: float) -> BatchResults:
        """Send what ``encode`` returned, one request after the other, each within ``timeout_s``.

        Raises what ``Producer.send_batch`` raises once the messages are encoded.
        """
        first = batch[0]
        queue = queue_of(first)
        results = BatchResults(first.topic)
        size = sum([len(part.body) for part in encoded])
        before: SendRequest | None = None
        first_index = 0
        self._take_room(size)
        try:
            for part in encoded:
                properties = self._encoder.outer_properties(wait_store_ok=first.wait_store_ok, tag=part.tag, keys=part.keys)
                request = self._request(first.topic, queue, part.body, properties, part.uniq_keys, timeout_s, batch=True)
                if before is not None:
                    request.target = before.target
                before = request
                if self._hooks is not None:
                    request.messages = batch[first_index : first_index + len(part.uniq_keys)]
                    first_index += len(part.uniq_keys)
                results.add(await self._outbox.deliver(request))
        except SprocketError as e:
            if len(results):
                address = before.target.address if before is not None and before.target is not None else ""
                raise BatchPartlySent(results, len(batch), address=address, cause=e) from e
            raise
        finally:
            self._free_room(size)
        return results

    async def send_encoded(
        self,
        topic: str,
        body: bytes | memoryview,
        properties: str,
        *,
        batch: bool,
        queue: MessageQueue | None,
        flag: int,
        born_timestamp_ms: int | None,
        timeout_s: float,
    ) -> SendResult:
        """Send one encoded request; see ``Producer.send_encoded``."""
        if not isinstance(body, bytes | bytearray | memoryview):  # writing it would break the connection for everything else on it
            raise InvalidMessage(f"the body must be bytes, not {type(body).__name__}")
        if queue is not None:
            check_queue(queue)
        check_number("flag", flag, least=-(2**31), most=2**31 - 1, whole=True)
        if born_timestamp_ms is not None:
            check_number("born_timestamp_ms", born_timestamp_ms, least=0, most=LARGEST_OFFSET, whole=True)
        request = self._request(topic, queue, body, msgspec.json.encode(properties), "", timeout_s, batch=batch)
        request.flag = flag
        request.born_timestamp_ms = born_timestamp_ms
        self._take_room(len(body))
        try:
            return SendResult(await self._outbox.deliver(request), 0)
        finally:
            self._free_room(len(body))

    def _request(
        self,
        topic: str,
        queue: MessageQueue | None,
        body: bytes | memoryview,
        properties: bytes,
        ids: str | MessageIds,
        timeout_s: float,
        *,
        batch: bool,
    ) -> SendRequest:
        """Return a request whose room the caller accounts for, without an order relative to others."""
        return SendRequest(topic, queue, body, properties, ids, timeout_s, self._outbox, count=0, batch=batch, in_order=False)

    def _take_room(self, size: int) -> None:
        room = self._outbox.room
        room.messages += 1
        room.bytes += size

    def _free_room(self, size: int) -> None:
        room = self._outbox.room
        room.give_back(1, size)
        room.wake()
