"""Recalls of messages that wait for their delivery time (code 370).

A recall is stored as a marker among the timed messages, due when its message is: it waits with them, and moves to slaves with them.
Messages with a marker are dropped when they are due, which is before their markers are, as these are stored later.
"""

import logging
from collections.abc import Callable

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.delay import DelayService
from sprocketmq.broker.send_rules import MAX_TIMER_MS, SendRefused
from sprocketmq.broker.staged_sends import StagedSends
from sprocketmq.broker.topics import TopicTable
from sprocketmq.errors import FatalError, InvalidMessage, MessageTooLarge, ProtocolError, RemoteProtocolError, RetriableError
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import RecallMessage
from sprocketmq.protocol.properties import MSG_REGION, TAGS, TIMER_DEL_UNIQKEY, UNIQ_KEY
from sprocketmq.protocol.recall import RecallHandle
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)

_MARKER = b"0"
_MARKER_TAG = "_RECALL_TAG_"


class RecallHandlers:
    """Answers 370."""

    def __init__(self, config: BrokerConfig, store: MessageStore, topics: TopicTable, delays: DelayService, staged: StagedSends) -> None:
        self._broker_name = config.broker_name
        self._region = config.region
        self._enabled = config.recall_message_enable
        self._store = store
        self._topics = topics
        self._delays = delays
        self._staged = staged

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.RECALL_MESSAGE: self.recall}

    def recall(self, conn: ServerConnection, command: Command) -> None:
        """Take back a message; answered when that is as durable as a send. Whether the message still waits is not checked."""
        header = command.header(RecallMessage)
        try:
            self._recall(conn, command, header)
        except SendRefused as e:
            conn.respond(command, e.code, remark=e.remark)
        except (MessageTooLarge, InvalidMessage, ProtocolError) as e:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=str(e))
        except (RetriableError, FatalError, OSError) as e:
            remark = f"service not available now. It may be caused by: {e}"
            conn.respond(command, ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)

    def _recall(self, conn: ServerConnection, command: Command, header: RecallMessage) -> None:
        if not self._enabled:
            raise SendRefused(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden: recall_message_enable is false")
        waits = self._staged.check_takes() and not command.flag & FLAG_ONEWAY
        topic = self._topics.get(header.topic)
        if topic is None:
            raise SendRefused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist")
        handle = self._handle(header)
        if self._delays.timers.full:
            raise SendRefused(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]too many messages wait for a time of their own, recall this one later")
        self._staged.finish()  # messages of other senders must not fail together with this one
        store = self._store
        pairs = {TAGS: _MARKER_TAG, UNIQ_KEY: handle.uniq_key, TIMER_DEL_UNIQKEY: handle.uniq_key}
        begin = store.commitlog_staged_offset
        _, log_offset = self._delays.stage_timed(
            handle.time_ms - 1,
            topic.name,
            0,
            _MARKER,
            pairs,
            flag=0,
            sys_flag=0,
            born_timestamp_ms=self._delays.time.now_ms(),
            born_host=conn.peer_host,
        )
        size = store.commitlog_staged_offset - begin
        self._staged.stage_answer(
            conn, command, None, 0, 0, size=size, waits=waits, ext={"msgId": handle.uniq_key, MSG_REGION: self._region}
        )
        self._staged.finish()
        if store.commitlog_max_offset > log_offset:
            self._delays.timers.recall(topic.name, handle.uniq_key)

    def _handle(self, header: RecallMessage) -> RecallHandle:
        try:
            handle = RecallHandle.parse(header.recall_handle)
        except RemoteProtocolError as e:
            raise SendRefused(ResponseCode.ILLEGAL_OPERATION, f"recall handle is invalid: {e}") from None
        if handle.topic != header.topic:
            raise SendRefused(ResponseCode.ILLEGAL_OPERATION, f"recall failed, topic not match: the handle is of topic {handle.topic}")
        if handle.broker_name != self._broker_name:
            remark = f"recall failed, broker service not available: the handle is of broker {handle.broker_name}"
            raise SendRefused(ResponseCode.ILLEGAL_OPERATION, remark)
        left_ms = handle.time_ms - self._delays.time.now_ms()
        if not 0 < left_ms < MAX_TIMER_MS:
            raise SendRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid: the message is due already")
        return handle
