"""Queries for single messages."""

from sprocketmq.client.admin.topics import TopicAdmin
from sprocketmq.client.arguments import check_number, check_queue
from sprocketmq.client.message_lookup import BATCHES_SEARCHED, KEY, TAG, UNIQUE, Lookup, with_key
from sprocketmq.errors import (
    ConfigError,
    RemoteProtocolError,
)
from sprocketmq.net.address import format_address
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import QueryMessage, ResumeCheck, ViewMessage
from sprocketmq.protocol.ids import parse_offset_msg_id
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import DISCARDED_HALVES_TOPIC
from sprocketmq.protocol.records import ReceivedMessage, decode_records

# Brokers return at most this many messages for one key.
MAX_FOUND = 64


class MessageQueries(TopicAdmin):
    """Messages by key, tag, id and offset."""

    _lookup: Lookup

    async def query_by_key(
        self, topic: str, key: str, *, max_count: int = MAX_FOUND, begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> list[ReceivedMessage]:
        """Return the newest messages of ``topic`` that have ``key`` among their keys or as id, the oldest of them first.

        At most ``max_count``, which brokers limit to 64 each, stored in ``[begin_ms, end_ms]`` (wall-clock milliseconds). Of a batch that
        is stored whole only the messages with the key. Batches without their messages' keys are searched, within limits. Raises
        TopicNotFound.
        """
        return (await self._query(topic, key, max_count, begin_ms, end_ms, KEY))[-max_count:]

    async def query_by_tag(
        self, topic: str, tag: str, *, max_count: int = MAX_FOUND, begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> list[ReceivedMessage]:
        """Return the newest messages of ``topic`` with a tag, otherwise as ``query_by_key``."""
        return (await self._query(topic, tag, max_count, begin_ms, end_ms, TAG))[-max_count:]

    async def query_by_unique_key(self, topic: str, msg_id: str) -> list[ReceivedMessage]:
        """Return the messages of ``topic`` with this id (``SendResult.msg_id``): one, unless it was sent again; none for an unknown id.

        The id of a batch that is stored whole gives all its messages. A message inside one is searched for around the time in its id.
        Raises TopicNotFound.
        """
        return await self._query(topic, msg_id, MAX_FOUND, 0, 2**63 - 1, UNIQUE)

    async def view_message(self, topic: str, msg_id: str) -> ReceivedMessage | None:
        """Return the message of ``topic`` with an id, the producer's (``msg_id``) or the broker's (``offset_msg_id``), or None.

        The messages of a batch that is stored whole share the broker's id: this returns the first, ``messages_at`` all. Of a message that
        was sent again the last stored copy is returned. Raises TopicNotFound.
        """
        route = await self._route(topic)
        try:
            ip, port, _ = parse_offset_msg_id(msg_id)
        except RemoteProtocolError:
            pass  # probably a producer's id
        else:
            if format_address(ip, port) in route.masters.values():
                found = [message for message in await self.messages_at(msg_id) if message.topic == topic]
                if found:
                    return found[0]
        found = await self.query_by_unique_key(topic, msg_id)
        return found[-1] if found else None

    async def messages_at(self, offset_msg_id: str) -> list[ReceivedMessage]:
        """Return the message with a broker's id (``SendResult.offset_msg_id``) from the broker that it names; none if it is gone.

        Of a batch that is stored whole all messages, as they share the id. Raises ConfigError for an invalid id.
        """
        address, physical = self._place(offset_msg_id)
        response = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, to_ext(ViewMessage(physical)))
        if response.code == ResponseCode.SYSTEM_ERROR and (response.remark or "").startswith("can not find message"):
            return []
        return decode_records(bytes(self._expect_success(response, address).body), verify_crc=True)

    async def resume_transaction(self, offset_msg_id: str) -> None:
        """Make a broker check a transaction again that it has given up on.

        ``offset_msg_id`` is the broker's id of the half message in the topic ``TRANS_CHECK_MAX_TIME_TOPIC``. Resuming it twice makes two
        transactions. Raises ConfigError for an invalid id, TopicNotFound when the transaction's topic is gone, BrokerError when the message
        is not there.
        """
        address, _ = self._place(offset_msg_id)
        response = await self._ask(
            address, RequestCode.RESUME_CHECK_HALF_MESSAGE, to_ext(ResumeCheck(offset_msg_id, DISCARDED_HALVES_TOPIC))
        )
        self._expect_success(response, address, DISCARDED_HALVES_TOPIC)

    def _place(self, offset_msg_id: str) -> tuple[str, int]:
        """Return the broker's address and the log offset in its message id. Raises ConfigError for an invalid one."""
        try:
            ip, port, log_offset = parse_offset_msg_id(offset_msg_id)
        except RemoteProtocolError as e:
            raise ConfigError(str(e)) from None
        self._instance.check()
        return format_address(ip, port), log_offset

    async def message_at(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """Return the message at an offset of a queue, or None; it may be inside a batch. Raises TopicNotFound."""
        check_queue(queue)
        check_number("offset", offset, least=0, whole=True)
        await self._route(queue.topic)
        result = await self._lookup.pull(queue, offset, max_messages=1)
        return next((message for message in result.messages if message.queue_offset == offset), None)

    async def _query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, kind: str) -> list[ReceivedMessage]:
        """Query every broker; the batch queues of those that do not search batches are read."""
        check_number("max_count", max_count, least=1, most=0x7FFFFFFF, whole=True)
        brokers = (await self._route(topic)).readers
        ext = to_ext(QueryMessage(topic, key, max_count, begin_ms, end_ms, kind, kind == UNIQUE))
        responses = await all_of(self._ask(address, RequestCode.QUERY_MESSAGE, ext) for address in brokers.values())
        found: dict[tuple[str, int, int], ReceivedMessage] = {}
        not_searched = set()
        for (name, address), response in zip(brokers.items(), responses, strict=True):
            if BATCHES_SEARCHED not in (response.ext or {}):
                not_searched.add(name)
            if response.code != ResponseCode.QUERY_NOT_FOUND:
                for message in with_key(bytes(self._expect_success(response, address, topic).body), name, key, kind):
                    found[name, message.queue_id, message.queue_offset] = message
        if not_searched and not (found and kind == UNIQUE):
            queues = [queue for queue in await self._batch_queues(topic) if queue.broker_name in not_searched]
            for message in await self._lookup.search(queues, key, kind, max_count, begin_ms, end_ms):
                found[message.broker_name, message.queue_id, message.queue_offset] = message
        return sorted(found.values(), key=lambda m: (m.store_timestamp_ms, m.commitlog_offset, m.queue_offset))

    async def _batch_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of ``topic`` on brokers where it has batch queues."""
        configs = await self.topic_config(topic)
        return [queue for queue in await self.queues(topic) if configs[queue.broker_name].has_batch_queues]
