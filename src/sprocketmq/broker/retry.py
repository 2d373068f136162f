"""Messages given back by consumers (CONSUMER_SEND_MSG_BACK, 36): retries, and dead letters for those that fail too often.

::

    orders ---> consumer fails ---36---> parked, level 3 + times ---> %RETRY%group ---> consumer fails ---36---> ...
                                                                                             |
                                                  %DLQ%group <--- after retryMaxTimes, or asked for at once

A message of an inner batch is retried alone, as a plain record: ``originMsgId`` names it by its unique key. A copy points to the record it
was made from, so a repeated request (its first answer was lost, the broker was killed) stores nothing the second time, as long
as the table of copies (copies.py) has the first.
"""

import logging
import random
from collections.abc import Callable
from typing import Any

from sprocketmq.broker.cold_reads import ColdRecords
from sprocketmq.broker.copies import CopyTable, record_of
from sprocketmq.broker.delay import DelayService
from sprocketmq.broker.groups import GroupRefused, GroupTable
from sprocketmq.broker.metrics.counters import BrokerCounters
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.send_rules import SendRefused
from sprocketmq.broker.staged_sends import StagedSends
from sprocketmq.broker.topics import FAQ, Topic, TopicRefused, TopicTable
from sprocketmq.errors import FatalError, InvalidMessage, MessageTooLarge, ProtocolError, RetriableError
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.batch import BatchEntry, split_batch
from sprocketmq.protocol.bodies import SubscriptionGroupConfig
from sprocketmq.protocol.codes import SYSFLAG_INNER_BATCH, SYSFLAG_NEED_UNWRAP, SYSFLAG_TRANSACTION_MASK, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.headers import SendBack, SendHeader
from sprocketmq.protocol.names import APACHE_TIMER_TOPIC, DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from sprocketmq.protocol.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    decode_properties,
    encode_properties,
    find_property,
)
from sprocketmq.protocol.records import ReceivedMessage, Record
from sprocketmq.security.requirements import SUB, Allows, topic_context
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)

# A message that failed n times before waits the delay of level 3 + n.
FIRST_LEVEL = 3
# No consumer can have received a message from these: it waits there for its delivery time or its transaction.
_PARKED_IN = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, APACHE_TIMER_TOPIC, HALF_TOPIC, "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"})
_NOT_COPIED = SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP | SYSFLAG_TRANSACTION_MASK


class RetryRules:
    """The retry limits of groups, and the topics of their retries and dead letters."""

    def __init__(self, topics: TopicTable, groups: GroupTable) -> None:
        self._topics = topics
        self._groups = groups

    def group(self, name: str) -> SubscriptionGroupConfig:
        """Return a group. Raises SendRefused when there is none."""
        try:
            group = self._groups.find(name)
        except GroupRefused as e:
            raise SendRefused(e.code, e.remark) from None
        if group is None:
            raise SendRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {FAQ}")
        return group

    def retry_topic(self, group: SubscriptionGroupConfig) -> Topic:
        """Return the retry topic of a group, made if need be. Raises TopicRefused when it takes no messages."""
        return self._writable(self._topics.create_internal(RETRY_PREFIX + group.group_name, group.retry_queue_nums))

    def dead_letter_topic(self, group: SubscriptionGroupConfig) -> Topic:
        """Return the dead-letter topic of a group, made if need be: one queue. Raises TopicRefused when it takes no messages."""
        return self._writable(self._topics.create_internal(DLQ_PREFIX + group.group_name, 1))

    @staticmethod
    def _writable(topic: Topic) -> Topic:
        if topic.refusal is not None:
            raise TopicRefused(*topic.refusal)
        return topic

    def dead_letter(self, header: SendHeader) -> Topic | None:
        """Return the dead-letter topic for a client's own send to a retry topic when it failed too often, else None. Raises SendRefused."""
        group = self.group(header.topic.removeprefix(RETRY_PREFIX))
        limit = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        return self.dead_letter_topic(group) if (header.reconsume_times or 0) > limit else None


class RetryHandlers:
    """Answer 36."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        rules: RetryRules,
        sends: StagedSends,
        delays: DelayService,
        offsets: OffsetTable,
        copies: CopyTable,
        counters: BrokerCounters,
        cold: ColdRecords,
        *,
        allows: Allows | None = None,
    ) -> None:
        self._cold = cold
        self._store = store
        self._topics = topics
        self._allows = allows
        self._copies = copies
        self._counters = counters
        self._rules = rules
        self._sends = sends
        self._delays = delays
        self._offsets = offsets

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, conn: ServerConnection, command: Command) -> None:
        """Answer 36: store a copy of a message for later, or as a dead letter; answered when the copy is as durable as a send."""
        header = command.header(SendBack)
        self._cold.when_in_memory(conn, command, header.offset, lambda: self._give_back(conn, command, header))

    def _give_back(self, conn: ServerConnection, command: Command, header: SendBack) -> None:
        try:
            self._stage(conn, command, header)
        except (SendRefused, TopicRefused) as e:
            conn.respond(command, e.code, remark=e.remark)
        except (MessageTooLarge, InvalidMessage):
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark="MESSAGE_ILLEGAL")
        except ProtocolError as e:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=str(e))
        except (RetriableError, FatalError, OSError) as e:
            remark = f"service not available now. It may be caused by: {e}"
            conn.respond(command, ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)

    def _stage(self, conn: ServerConnection, command: Command, header: SendBack) -> None:
        group = self._rules.group(header.group)
        if group.retry_queue_nums <= 0:
            conn.respond(command, ResponseCode.SUCCESS)  # a group without retries
            return
        waits = self._sends.check_takes()
        record = self._store.record_at(header.offset) if 0 <= header.offset < self._store.commitlog_visible_offset else None
        if record is None:
            raise SendRefused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        message = Record(record, 0, len(record))
        message.verify_crc()
        if self._allows is not None and not self._allows(conn, command, topic_context(message.topic, SUB)):
            # Otherwise a consumer could have messages of other topics copied to its own retry topic.
            remark = f"the message at {header.offset} is of a topic that this user may not read: it cannot be given back"
            raise SendRefused(ResponseCode.NO_PERMISSION, remark)
        if message.topic in _PARKED_IN:
            remark = f"the message at {header.offset} waits in {message.topic}, no consumer has got it: it cannot be given back"
            raise SendRefused(ResponseCode.NO_PERMISSION, remark)
        times = message.reconsume_times
        flag, body, raw = message.flag, message.stored_body, message.raw_properties
        origin = message.offset_msg_id
        if message.sys_flag & SYSFLAG_INNER_BATCH:
            flag, body, raw = _member(message, header.origin_msg_id)
            origin = header.origin_msg_id or origin
        properties = decode_properties(raw)
        properties.setdefault(RETRY_TOPIC, message.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, origin)
        properties[WAIT] = "false"
        properties.pop(TRAN_MSG, None)  # a consumer that received the message knows that its transaction was committed
        limit = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        dead = times >= limit or header.delay_level < 0
        topic = self._rules.dead_letter_topic(group) if dead else self._rules.retry_topic(group)
        log_offset, uniq = message.commitlog_offset, properties.get(UNIQ_KEY, "")
        copy = self._copy(group.group_name, topic.name, log_offset, uniq, dead=dead)
        if copy is not None:
            if waits and copy >= self._store.commitlog_flushed_offset:
                self._sends.stage_answer(
                    conn, command, None, 0, 0, size=0, waits=True
                )  # nothing new is stored, but the answer is as durable as the first one
            else:
                conn.respond(command, ResponseCode.SUCCESS)
            return
        more: dict[str, Any] = {
            "copied_from": log_offset,
            "flag": flag,
            "sys_flag": message.sys_flag & ~_NOT_COPIED,
            "born_timestamp_ms": message.born_timestamp_ms,
            "born_host": message.raw_hosts[0],
            "reconsume_times": times + 1,
        }
        if dead:
            properties[DELAY] = "0"
            tag = tags_code(properties.get("TAGS"))
            placed = self._store.stage_copy(topic.name, 0, body, encode_properties(properties), tags_code=tag, **more)
            size = self._store.commitlog_staged_offset - placed[1]
            self._sends.stage_answer(conn, command, topic, 0, tag, size=size, waits=waits)
        else:
            level = header.delay_level or FIRST_LEVEL + times
            placed = self._delays.stage(level, topic.name, random.randrange(group.retry_queue_nums), body, properties, **more)
            size = self._store.commitlog_staged_offset - placed[1]
            self._sends.stage_answer(conn, command, None, 0, 0, size=size, waits=waits)
        self._copies.note(topic.name, log_offset, uniq, placed[1])
        given_back = self._counters.of_group(self._topics.get(properties[RETRY_TOPIC]) or topic, group.group_name)
        given_back.sent_back += 1
        given_back.dead_letters += dead

    def _copy(self, group: str, topic: str, log_offset: int, uniq: str, *, dead: bool) -> int | None:
        """Return the log offset of the existing dead letter of a message, or of its copy that the group has yet to get; None without one.

        A group that has been through its retry and reads the message once more, its offset having been set back, may fail again.
        """
        copy = self._copies.copy_of(topic, log_offset, uniq)
        if copy is None:
            return None
        if copy >= self._store.commitlog_max_offset:
            self._sends.finish()  # it was requested in this turn of the loop, and only a commit shows whether it exists
        found = record_of(self._store, copy, copied_from=log_offset)
        try:
            if found is None or found.properties.get(UNIQ_KEY, "") != uniq:
                return None
            if dead:
                return copy if self._is_in_queue(topic, found) else None
            if found.properties.get(REAL_TOPIC) != topic or not self._is_in_queue(SCHEDULE_TOPIC, found):
                return None
            if self._delays.waits(found):
                return copy
            retry = record_of(self._store, self._copies.delivery_of(copy), copied_from=copy)
            if retry is None or not self._is_in_queue(topic, retry):
                return None
            return copy if retry.queue_offset >= (self._offsets.get(group, topic, retry.queue_id) or 0) else None
        except OSError as e:
            log.warning("a queue of %s cannot be read: %s", topic, e)
            return None

    def _is_in_queue(self, topic: str, message: ReceivedMessage) -> bool:
        """Return whether a queue has a record, or will when it is on the disk: the log also has records of deleted topics."""
        if message.raw_topic != topic.encode():
            return False
        log_offset = message.commitlog_offset
        if log_offset >= self._store.commitlog_visible_offset:
            return True
        units = self._store.units(topic, message.queue_id, message.queue_offset, 1)
        return bool(units) and units[0][0] == log_offset


def _member(batch: ReceivedMessage, uniq: str | None) -> BatchEntry:
    """Return the message of an inner batch with the unique key ``uniq``. Raises SendRefused when there is none."""
    wanted = (uniq or "").encode()
    for entry in split_batch(batch.stored_body) if wanted else ():
        if find_property(entry.properties, b"UNIQ_KEY") == wanted:
            return entry
    raise SendRefused(ResponseCode.SYSTEM_ERROR, "MESSAGE_ILLEGAL")
