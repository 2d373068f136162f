"""Finds single messages inside batches that are stored whole, for brokers that do not search batches."""

import contextlib

from sprocketmq.client.consume.offsets import OffsetRequests
from sprocketmq.client.consume.pull_requests import PullResult, PullStatus, pull_header, read_pull
from sprocketmq.client.instance import Instance
from sprocketmq.clock import Clock
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.bodies import build_subscription
from sprocketmq.protocol.codes import PULL_SUBSCRIPTION, RequestCode
from sprocketmq.protocol.ids import STORED_AFTER_MS, parse_uniq_key
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.records import ReceivedMessage, Record, decode_records, walk_records

# The kinds of queries of request 12.
KEY, UNIQUE, TAG = "K", "U", "T"
# SprocketMQ's brokers set this field in their answer when they have searched batches.
BATCHES_SEARCHED = "batchesSearched"
# Limits of one search: bytes, and messages per read.
MAX_SEARCHED_BYTES = 64 << 20
SEARCHED_AT_ONCE = 1024
# The group that every broker has for tools.
TOOLS_GROUP = "TOOLS_CONSUMER"


class Lookup:
    """Searches batch queues. All methods raise what ``Instance.ask_broker`` raises, BrokerError or BrokerBusy."""

    def __init__(self, instance: Instance, offsets: OffsetRequests, clock: Clock) -> None:
        self._instance = instance
        self._offsets = offsets
        self._clock = clock

    async def search(
        self, queues: list[MessageQueue], key: str, kind: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[ReceivedMessage]:
        """Return messages of ``queues`` that have a key, id or tag, stored in ``[begin_ms, end_ms]``, of the last 64 MiB at most.

        An id is searched for around the time it was made, anything else from the newest message back.
        """
        made_ms = None
        if kind != TAG:
            with contextlib.suppress(RemoteProtocolError):  # most keys are not ids
                _, _, made_ms, _ = parse_uniq_key(key, now_ms=self._clock.time_ms())
        if made_ms is not None:
            found = await self._search_around(made_ms, queues, key)
        else:
            found = []
            for queue in queues:
                found += await self._search_back(queue, key, kind, max_count, begin_ms, MAX_SEARCHED_BYTES // len(queues))
        return [message for message in found if begin_ms <= message.store_timestamp_ms <= end_ms]

    async def _search_around(self, made_ms: int, queues: list[MessageQueue], msg_id: str) -> list[ReceivedMessage]:
        budget = MAX_SEARCHED_BYTES
        for start, stop in STORED_AFTER_MS:
            for queue in queues:
                offset = await self._offsets.offset_at(queue, made_ms + start)
                while budget > 0:
                    result = await self.pull(queue, offset)
                    if result.status is not PullStatus.FOUND:
                        break
                    budget -= len(result.body)
                    messages = decode_records(result.body, broker_name=queue.broker_name)
                    if found := [message for message in messages if message.properties.get("UNIQ_KEY") == msg_id]:
                        return found
                    if messages[-1].store_timestamp_ms > made_ms + stop:
                        break
                    offset = result.next_offset
        return []

    async def _search_back(
        self, queue: MessageQueue, key: str, kind: str, max_count: int, begin_ms: int, budget: int
    ) -> list[ReceivedMessage]:
        found: dict[int, ReceivedMessage] = {}  # by offset, as two pulls may return the same batch
        end, low = await self._offsets.max_offset(queue), await self._offsets.min_offset(queue)
        while low < end and budget > 0 and len(found) < max_count:
            start = offset = max(low, end - SEARCHED_AT_ONCE)
            oldest_ms = None
            while offset < end:
                result = await self.pull(queue, offset)
                if result.status is not PullStatus.FOUND:
                    break
                budget -= len(result.body)
                found |= {message.queue_offset: message for message in with_key(result.body, queue.broker_name, key, kind)}
                if oldest_ms is None:
                    oldest_ms = Record(result.body, 0, len(result.body)).store_timestamp_ms
                offset = result.next_offset
            if oldest_ms is not None and oldest_ms < begin_ms:
                break
            end = start
        return list(found.values())

    async def pull(self, queue: MessageQueue, offset: int, *, max_messages: int = SEARCHED_AT_ONCE) -> PullResult:
        """Return the messages of a queue from ``offset`` on, about 1 MiB at most."""
        header = pull_header(
            TOOLS_GROUP,
            queue,
            offset,
            max_messages=max_messages,
            max_bytes=1 << 20,
            sys_flag=PULL_SUBSCRIPTION,
            subscription=build_subscription(queue.topic, "*", 0),
        )
        response, address = await self._instance.ask_broker(queue.topic, queue.broker_name, RequestCode.PULL_MESSAGE, ext=header)
        return read_pull(response, address, queue, offset, None)


def with_key(body: bytes, broker_name: str, key: str, kind: str) -> list[ReceivedMessage]:
    """Return the messages with a key, id or tag; Apache's brokers compare hashes only.

    Of a batch these are the messages that have it, or all if only the batch itself has it.
    """

    def has_key(message: ReceivedMessage) -> bool:
        if kind == TAG:
            return message.tag == key
        return message.properties.get("UNIQ_KEY") == key or (kind == KEY and key in message.keys)

    found = []
    for at, size in walk_records(body):
        record = Record(body, at, size, broker_name)
        record.verify_crc()
        messages = decode_records(memoryview(body)[at : at + size], broker_name=broker_name)
        matching = [message for message in messages if has_key(message)]
        found += matching or (messages if has_key(record) else [])
    return found
