"""Sends (codes 10, 310 and 320): the hot path.

A send is checked and staged into the store when its frame is decoded; ``staged_sends.py`` commits and answers it.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sprocketmq.broker.acks import wants_wait
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.delay import DelayService
from sprocketmq.broker.flushing import Flusher
from sprocketmq.broker.groups import GroupTable
from sprocketmq.broker.metrics.counters import DELAY, FIFO, NORMAL, TRANSACTION, BrokerCounters
from sprocketmq.broker.new_topics import NewTopics
from sprocketmq.broker.send_rules import SendRefused, SendRules, of_dead_letter, property_value
from sprocketmq.broker.staged_sends import Room, StagedSends, Stored
from sprocketmq.broker.topics import OVERLOAD, Topic, TopicRefused, TopicTable
from sprocketmq.broker.transactions.service import TransactionService
from sprocketmq.errors import FatalError, InvalidMessage, MessageTooLarge, ProtocolError, RemoteProtocolError, RetriableError
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import (
    FLAG_ONEWAY,
    SYSFLAG_COMPRESSED,
    RequestCode,
    ResponseCode,
)
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.headers import SendHeader, SendMessageV1, SendMessageV2
from sprocketmq.protocol.ids import MessageIdFactory
from sprocketmq.protocol.names import DLQ_PREFIX, MAX_TOPIC_LENGTH, RETRY_PREFIX, TIMER_TOPIC
from sprocketmq.protocol.properties import MAX_PROPERTIES_LENGTH, decode_properties, encode_properties
from sprocketmq.protocol.recall import handle_of
from sprocketmq.storage.splitting import scan, split
from sprocketmq.storage.store import MessageStore

if TYPE_CHECKING:
    import asyncio


class SendHandlers:
    """Check sends and stage them into the store and into ``staged``, which commits and answers them.

    ``saved`` returns the task that ends when the topic table is on disk. ``delays`` takes delayed messages, ``transactions`` half ones.
    ``dead_letter`` returns the dead-letter topic for a message that a client sends to a retry topic itself, None while it may be retried.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        counters: BrokerCounters,
        staged: StagedSends,
        *,
        flusher: Flusher[Stored],
        room: Room,
        delays: DelayService,
        transactions: TransactionService,
        dead_letter: Callable[[SendHeader], Topic | None],
        saved: "Callable[[], asyncio.Task[None]]",
    ) -> None:
        self._store = store
        self._topics = topics
        self._counters = counters
        self._staged = staged
        self._flusher = flusher
        self._acks = flusher.acks
        self._room = room
        self._delays = delays
        self._transactions = transactions
        self._dead_letter = dead_letter
        self._unavailable = staged.unavailable
        self.new_topics = NewTopics(
            topics, groups, saved=saved, send=self._send_again, unavailable=staged.unavailable, finish=staged.finish
        )
        self._parked = self.new_topics.parked
        self._counts_compression = config.has_metrics
        self._max_body = config.max_message_bytes
        self._broker_name = config.broker_name
        self._ids = MessageIdFactory()
        self._rules = SendRules(config, delays)
        self._completed = self._rules.completed  # called for every message
        self._too_large = self._rules.too_large
        self._added = encode_properties(self._rules.added_names).decode()
        self._error_ext = staged.error_ext

    def listens_at(self, ip: str, store_host: bytes) -> None:
        """Record the address records and message ids carry; called before the first send."""
        self._ids = MessageIdFactory(ip)
        self._rules.host = ip
        self._staged.listens_at(store_host)

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {
            RequestCode.SEND_MESSAGE: self.send_v1,
            RequestCode.SEND_MESSAGE_V2: self.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.send_v2,
        }

    def send_v1(self, conn: ServerConnection, command: Command) -> None:
        """Take a send with long field names (10)."""
        self._send(conn, command, command.header(SendMessageV1))

    def send_v2(self, conn: ServerConnection, command: Command) -> None:
        """Take a send with one-letter field names (310, 320)."""
        self._send(conn, command, command.header(SendMessageV2))

    def _send_again(self, conn: ServerConnection, command: Command) -> None:
        if command.code == RequestCode.SEND_MESSAGE:
            self.send_v1(conn, command)
        else:
            self.send_v2(conn, command)

    def _send(self, conn: ServerConnection, command: Command, header: SendHeader) -> None:
        try:
            self._stage(conn, command, header)
        except (SendRefused, TopicRefused) as e:
            conn.respond(command, e.code, ext=self._error_ext, remark=e.remark)
        except (MessageTooLarge, InvalidMessage):
            conn.respond(command, ResponseCode.MESSAGE_ILLEGAL, ext=self._error_ext, remark=self._too_large)
        except ProtocolError as e:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, ext=self._error_ext, remark=str(e))
        except (RetriableError, FatalError, OSError) as e:
            self._counters.put_failed += 1
            self._unavailable(conn, command, e)

    # --- checking and staging ---

    def _stage(self, conn: ServerConnection, command: Command, header: SendHeader) -> None:
        name = header.topic
        staged = self._staged
        if staged.busy_until or staged.closing or not self._room.writable:
            staged.refuse_for_now()
        topic = self._topics.get(name)
        if topic is None or (self._parked and name in self._parked):
            self.new_topics.park(conn, command, header, topic)
            return
        if topic.refusal is not None:
            raise SendRefused(*topic.refusal)
        queue_id = header.queue_id
        if queue_id > topic.max_queue_id:
            producer = f"Producer: {conn.peer}"
            raise SendRefused(ResponseCode.INVALID_PARAMETER, f"request queueId[{queue_id}] is illegal, {topic.describe()} {producer}")
        if queue_id < 0:
            queue_id = random.randrange(topic.write_queues)
        body = command.body
        if not body:
            raise SendRefused(ResponseCode.SYSTEM_ERROR, "the message body is empty")
        if len(body) > self._max_body:
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, self._too_large)
        sys_flag, flag = header.sys_flag, header.flag
        if sys_flag:
            sys_flag = self._rules.checked_sys_flag(sys_flag, header.properties)
            if sys_flag & SYSFLAG_COMPRESSED and self._counts_compression:
                self._counters.compressed.add(body, sys_flag)
        sys_flag |= topic.sys_flag
        times = header.reconsume_times or 0
        born = header.born_timestamp_ms
        properties = header.properties
        half = False
        if "_MSG" in properties:  # TRAN_MSG, _SYS_MSG_PRIORITY_
            queue_id, properties, half = self._rules.placed(topic, queue_id, properties, times, batch=bool(header.batch))
        if topic.retry_group is not None and not header.batch and (dead := self._dead_letter(header)) is not None:
            origin = self._topics.get(property_value(properties, "RETRY_TOPIC\x01") or "") or topic
            self._counters.of_group(origin, dead.name.removeprefix(DLQ_PREFIX)).dead_letters += 1
            topic, name, queue_id = dead, dead.name, 0
            properties = of_dead_letter(properties)
        waits = False
        if staged.waits:
            waits = not command.flag & FLAG_ONEWAY and wants_wait(properties)
            if not self._flusher.admits(waits=waits):
                raise SendRefused(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        message_type = FIFO if "__SHARDINGKEY\x01" in properties else NORMAL
        if header.batch:
            self._stage_batch(conn, command, topic, queue_id, flag, sys_flag, born, properties, message_type, waits)
            return

        level = due_ms = 0
        if half:
            pass  # its delay begins when it is committed
        elif "DELAY\x01" in properties or "TIMER_" in properties:
            level, due_ms, properties = self._rules.delay_asked(properties)
        properties = self._completed(properties)
        uniq = property_value(properties, "UNIQ_KEY\x01")
        if not uniq:
            uniq = self._ids.next()
            properties += f"UNIQ_KEY\x01{uniq}\x02"
        stored = (properties + self._added).encode()
        if len(stored) > MAX_PROPERTIES_LENGTH:
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, self._too_large)
        if level or due_ms or half:
            pairs = decode_properties(stored)
            more: dict[str, Any] = {
                "flag": flag,
                "sys_flag": sys_flag,
                "born_timestamp_ms": born,
                "born_host": conn.peer_host,
                "reconsume_times": times,
            }
            if half:
                parked_in, queue_offset, log_offset = self._transactions.stage(
                    topic, queue_id, body, pairs, group=header.producer_group, host=self._rules.host, **more
                )
                size = self._store.commitlog_staged_offset - log_offset
                staged.sends.append((conn, command, parked_in, queue_id, queue_offset, log_offset, uniq, 0, 0, TRANSACTION, size, waits))
                if waits:
                    self._acks.hold()
                return
            delay_s = self._delays.delay_s(level) if level else due_ms / 1000 - self._delays.time.now_ms() / 1000
            self._counters.of_topic(topic).note_delay(delay_s, timed=not level)
            if level:
                queue_offset, log_offset = self._delays.stage(level, name, queue_id, body, pairs, **more)
            else:
                queue_offset, log_offset = self._delays.stage_timed(due_ms, name, queue_id, body, pairs, **more)
            kept, kind = uniq, 0
            if due_ms and (handle := handle_of(name, self._broker_name, due_ms, uniq)):
                kept, kind = staged.timed_answer(queue_id, uniq, log_offset, queue_offset, handle), -1
            message_type = FIFO if message_type is FIFO else DELAY
            size = self._store.commitlog_staged_offset - log_offset
            parked_in = staged.schedule_topic if level else self._topics.get(TIMER_TOPIC) or staged.schedule_topic
            staged.sends.append((conn, command, parked_in, queue_id, queue_offset, log_offset, kept, 0, kind, message_type, size, waits))
            if waits:
                self._acks.hold()
            return
        tag = tags_code(property_value(properties, "TAGS\x01"))
        queue_offset, log_offset = self._store.stage_message(
            name,
            queue_id,
            body,
            stored,
            tags_code=tag,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=born,
            born_host=conn.peer_host,
            reconsume_times=times,
        )
        size = self._store.commitlog_staged_offset - log_offset
        staged.sends.append((conn, command, topic, queue_id, queue_offset, log_offset, uniq, tag, 0, message_type, size, waits))
        if waits:
            self._acks.hold()

    def _stage_batch(
        self,
        conn: ServerConnection,
        command: Command,
        topic: Topic,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born: int,
        properties: str,
        message_type: str,
        waits: bool,
    ) -> None:
        name = topic.name
        sends = self._staged.sends
        if name.startswith(RETRY_PREFIX):
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {name}")
        if len(name) > MAX_TOPIC_LENGTH:
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {len(name)}")
        if "DELAY\x01" in properties or "TIMER_" in properties:
            level, due_ms, properties = self._rules.delay_asked(properties)
            if level or due_ms:
                raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, self._too_large)
        self._rules.check_outer(properties)
        uniq = property_value(properties, "UNIQ_KEY\x01")
        body = command.body
        if uniq and topic.batch_queues:
            # One record for the whole batch; its readers take it apart.
            try:
                count, strings = scan(body)
            except RemoteProtocolError as e:
                raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, f"{self._too_large} {e}") from None
            self._rules.check_members(strings, body)
            properties = self._completed(properties)
            tag = tags_code(property_value(properties, "TAGS\x01"))
            queue_offset, log_offset = self._store.stage_inner_batch(
                name,
                queue_id,
                body,
                (properties + self._added).encode(),
                count=count,
                tags_code=tag,
                flag=flag,
                sys_flag=sys_flag,
                born_timestamp_ms=born,
                born_host=conn.peer_host,
            )
            size = self._store.commitlog_staged_offset - log_offset
            sends.append((conn, command, topic, queue_id, queue_offset, log_offset, uniq, tag, count, message_type, size, waits))
        else:
            columns = split(body)
            self._rules.check_members(columns.text, body)
            queue_offset, log_offsets = self._store.stage_batch(
                name, queue_id, columns, sys_flag=sys_flag, born_timestamp_ms=born, born_host=conn.peer_host
            )
            size = self._store.commitlog_staged_offset - log_offsets[0]
            sends.append((conn, command, topic, queue_id, queue_offset, log_offsets, uniq, None, 0, message_type, size, waits))
        if waits:
            self._acks.hold()
