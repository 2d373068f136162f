"""Sends (codes 10, 310 and 320): the hot path.

A send is checked and staged into the store when its frame is decoded; ``finish`` commits with one write everything that one read of the
socket brought. It is answered then, or when disk and replicas have it, as the mode says (acks.py): never before its bytes are in the log.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from sprocketmq.broker.acks import LOST, wants_wait
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.delay import Arrival, DelayService
from sprocketmq.broker.flushing import Flusher
from sprocketmq.broker.groups import GroupTable
from sprocketmq.broker.metrics.counters import DELAY, DELIVERY_GROUP, FIFO, NORMAL, BrokerCounters
from sprocketmq.broker.send_rules import SendRefused, SendRules, of_dead_letter, property_value
from sprocketmq.broker.topics import Topic, TopicRefused, TopicTable, check_topic_name, topic_not_exist
from sprocketmq.errors import FatalError, InvalidMessage, MessageTooLarge, ProtocolError, RemoteProtocolError, RetriableError, StoreFailed
from sprocketmq.events import event
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.batch import scan_batch, split_columns
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
from sprocketmq.protocol.names import DLQ_PREFIX, MAX_TOPIC_LENGTH, RETRY_PREFIX, SCHEDULE_TOPIC, SEND_FORBIDDEN_TOPICS, TIMER_TOPIC
from sprocketmq.protocol.properties import (
    MAX_PROPERTIES_LENGTH,
    MSG_REGION,
    TRACE_ON,
    decode_properties,
    encode_properties,
)
from sprocketmq.storage.store import MessageStore

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

# The number of queues that the topic of parked messages is listed with, as in the reference.
_SCHEDULE_QUEUES = 18
# Bodies of sends that wait until their new topic is saved; beyond this, sends are answered with SYSTEM_BUSY.
MAX_PARKED_BYTES = 64 << 20
# After a write that took too long, sends are refused for the same time again, at most this long.
MAX_BUSY_S = 1.0
OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
PAGE_CACHE_BUSY = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"


class Room(Protocol):
    """Whether the disk has room for messages."""

    writable: bool
    refusal: str

    def disk_refused(self, error: BaseException) -> None:
        """Note that a write failed."""
        ...


class Stored(NamedTuple):
    """A send that is written and waits for disk or replicas: connection, request, the fields of the answer, if any, and since when."""

    conn: ServerConnection
    command: Command
    ext: bytes | None
    since: float


# A staged send: connection, request, topic, queue id, queue offset, log offset (a list for a batch stored as single messages), unique key,
# tag code (None for several), number of messages of an inner batch (else 0; negative for an answer without fields), type of the message
# and bytes of its records (0: nothing new is stored), whether the answer waits for disk or replicas. A tuple, because one is made for
# every send.
_Staged = tuple[ServerConnection, Command, Topic, int, int, int | list[int], str | None, int | None, int, str, int, bool]


class SendHandlers:
    """Stage sends, commit them together, answer them.

    ``arrived`` is called for each message that becomes visible, with topic, queue id, and tag code or None for several. ``saved`` returns
    the task that ends when the topic table is on disk. ``flusher`` takes sends that wait, ``delays`` delayed messages.
    ``dead_letter`` returns the dead-letter topic for a message that a client sends to a retry topic itself, None while it may be retried.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        counters: BrokerCounters,
        *,
        flusher: Flusher[Stored],
        room: Room,
        delays: DelayService,
        dead_letter: Callable[[SendHeader], Topic | None],
        arrived: Callable[[Topic, int, int | None], None],
        saved: "Callable[[], asyncio.Task[None]]",
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._counters = counters
        self._arrived = arrived
        self._saved = saved
        self._counts_compression = config.has_metrics
        self._flusher = flusher
        self._acks = flusher.acks
        self._waits = flusher.acks.waits
        self._room = room
        self._delays = delays
        self._dead_letter = dead_letter
        # What is committed and not published yet, while the store holds back: by queue, what arrived and between which ends of the log.
        self._seen_late = store.holds_back
        self._unseen: dict[tuple[Topic, int], tuple[int | None, int, int]] = {}
        self.closing = False
        self._slow_s = config.os_page_cache_busy_timeout_ms / 1000
        self._busy_until = self._slow_took_s = 0.0
        self._max_body = config.max_message_bytes
        self._staged: list[_Staged] = []
        self._schedule_topic = topics.create_internal(SCHEDULE_TOPIC, _SCHEDULE_QUEUES)
        # Sends that wait until the topic they create is on the disk, by its name.
        self.parked: dict[str, list[tuple[ServerConnection, Command]]] = {}
        self.parked_bytes = 0
        self._failing = False
        self._ids = MessageIdFactory()
        self._rules = SendRules(config, delays)
        self._completed = self._rules.completed  # called for every message
        self._too_large = self._rules.too_large
        self._added = encode_properties(self._rules.added_names).decode()
        self._region = config.region.replace("%", "%%").encode()
        self._error_ext = msgspec.json.encode({TRACE_ON: "true", MSG_REGION: config.region})
        self._single = self._several = self._inner = b""
        self._host_hex = ""

    def listens_at(self, ip: str, store_host: bytes) -> None:
        """Take note of the address records and message ids carry; called before the first send."""
        self._ids = MessageIdFactory(ip)
        self._rules.host = ip
        self._host_hex = store_host.hex().upper()
        msg_id = self._host_hex.encode() + b"%016X"
        fields = b'"TRACE_ON":"true","MSG_REGION":"' + self._region + b'","queueOffset":"%d"}'
        self._single = b'{"queueId":"%d","transactionId":"%b","msgId":"' + msg_id + b'",' + fields
        self._several = b'{"queueId":"%d",%b"msgId":"%b",' + fields
        self._inner = b'{"queueId":"%d","batchUniqId":"%b","transactionId":"%b","msgId":"' + msg_id + b'",' + fields

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
        if self._busy_until or self.closing or not self._room.writable:
            self._refuse_for_now()
        topic = self._topics.get(name)
        if topic is None or (self.parked and name in self.parked):
            self._await_topic(conn, command, header, topic)
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
            sys_flag = self._rules.checked_sys_flag(sys_flag)
            if sys_flag & SYSFLAG_COMPRESSED and self._counts_compression:
                self._counters.compressed.add(body, sys_flag)
        sys_flag |= topic.sys_flag
        times = header.reconsume_times or 0
        born = header.born_timestamp_ms
        properties = header.properties
        if "_MSG" in properties:  # TRAN_MSG, _SYS_MSG_PRIORITY_
            queue_id, properties = self._rules.placed(topic, queue_id, properties, times, batch=bool(header.batch))
        if topic.retry_group is not None and not header.batch and (dead := self._dead_letter(header)) is not None:
            origin = self._topics.get(property_value(properties, "RETRY_TOPIC\x01") or "") or topic
            self._counters.of_group(origin, dead.name.removeprefix(DLQ_PREFIX)).dead_letters += 1
            topic, name, queue_id = dead, dead.name, 0
            properties = of_dead_letter(properties)
        waits = False
        if self._waits:
            waits = not command.flag & FLAG_ONEWAY and wants_wait(properties)
            if not self._flusher.admits(waits=waits):
                raise SendRefused(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        message_type = FIFO if "__SHARDINGKEY\x01" in properties else NORMAL
        if header.batch:
            self._stage_batch(conn, command, topic, queue_id, flag, sys_flag, born, properties, message_type, waits)
            return

        level = due_ms = 0
        if "DELAY\x01" in properties or "TIMER_" in properties:
            level, due_ms, properties = self._rules.delay_asked(properties)
        properties = self._completed(properties)
        uniq = property_value(properties, "UNIQ_KEY\x01")
        if not uniq:
            uniq = self._ids.next()
            properties += f"UNIQ_KEY\x01{uniq}\x02"
        stored = (properties + self._added).encode()
        if len(stored) > MAX_PROPERTIES_LENGTH:
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, self._too_large)
        if level or due_ms:
            pairs = decode_properties(stored)
            more: dict[str, Any] = {
                "flag": flag,
                "sys_flag": sys_flag,
                "born_timestamp_ms": born,
                "born_host": conn.peer_host,
                "reconsume_times": times,
            }
            delay_s = self._delays.delay_s(level) if level else due_ms / 1000 - self._delays.time.now_ms() / 1000
            self._counters.of_topic(topic).note_delay(delay_s, timed=not level)
            if level:
                queue_offset, log_offset = self._delays.stage(level, name, queue_id, body, pairs, **more)
            else:
                queue_offset, log_offset = self._delays.stage_timed(due_ms, name, queue_id, body, pairs, **more)
            message_type = FIFO if message_type is FIFO else DELAY
            size = self._store.commitlog_staged_offset - log_offset
            parked_in = self._schedule_topic if level else self._topics.get(TIMER_TOPIC) or self._schedule_topic
            self._staged.append((conn, command, parked_in, queue_id, queue_offset, log_offset, uniq, 0, 0, message_type, size, waits))
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
        self._staged.append((conn, command, topic, queue_id, queue_offset, log_offset, uniq, tag, 0, message_type, size, waits))
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
        if name.startswith(RETRY_PREFIX):
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {name}")
        if len(name) > MAX_TOPIC_LENGTH:
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {len(name)}")
        if "DELAY\x01" in properties or "TIMER_" in properties:
            level, due_ms, properties = self._rules.delay_asked(properties)
            if level or due_ms:
                raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, self._too_large)
        if "INNER_" in properties and (property_value(properties, "INNER_NUM\x01") or property_value(properties, "INNER_BASE\x01")):
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, self._too_large)
        uniq = property_value(properties, "UNIQ_KEY\x01")
        body = command.body
        if uniq and topic.batch_queues:
            # One record for the whole batch; its readers take it apart.
            try:
                count, strings = scan_batch(body)
            except RemoteProtocolError as e:
                raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, f"{self._too_large} {e}") from None
            if b"M" in strings or b"L" in strings:
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
            self._staged.append((conn, command, topic, queue_id, queue_offset, log_offset, uniq, tag, count, message_type, size, waits))
        else:
            columns = split_columns(body)
            strings = b"".join(columns.properties)
            if b"M" in strings or b"L" in strings:
                self._rules.check_members(strings, body)
            queue_offset, log_offsets = self._store.stage_batch(
                name, queue_id, columns, sys_flag=sys_flag, born_timestamp_ms=born, born_host=conn.peer_host
            )
            size = self._store.commitlog_staged_offset - log_offsets[0]
            self._staged.append((conn, command, topic, queue_id, queue_offset, log_offsets, uniq, None, 0, message_type, size, waits))
        if waits:
            self._acks.hold()

    def _refuse_for_now(self) -> None:
        """Raise SendRefused when no send may be taken at the moment."""
        if self.closing:
            raise SendRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now. It may be caused by: the broker is stopping")
        if not self._room.writable:
            raise SendRefused(ResponseCode.SERVICE_NOT_AVAILABLE, self._room.refusal)
        if self._busy_until > self._counters.now():
            raise SendRefused(ResponseCode.SYSTEM_BUSY, PAGE_CACHE_BUSY)
        self._busy_until = 0.0

    # --- topics that come to life with their first message ---

    def _await_topic(self, conn: ServerConnection, command: Command, header: SendHeader, topic: Topic | None) -> None:
        """Create the topic; its sends go on once its entry is on disk, or a crash could leave messages without a topic."""
        name = header.topic
        size = len(command.body)
        if self.parked_bytes + size > MAX_PARKED_BYTES:
            raise SendRefused(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        if topic is None:
            check_topic_name(name)
            if name in SEND_FORBIDDEN_TOPICS:
                raise SendRefused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
            if name.startswith(RETRY_PREFIX) and self._groups.find(name.removeprefix(RETRY_PREFIX)) is None:
                raise SendRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
            if self._topics.create_for_send(name, header.default_topic, header.default_topic_queue_nums) is None:
                raise topic_not_exist(name)
            self.parked[name] = []
            self._saved().add_done_callback(lambda done: self._resume(name, done))
        self.parked_bytes += size
        command.body = bytes(command.body)
        self.parked[name].append((conn, command))

    def _resume(self, name: str, saving: "asyncio.Task[None]") -> None:
        waiting = self.parked.pop(name)
        error = OSError("the save of the topic table was cancelled") if saving.cancelled() else saving.exception()
        for conn, command in waiting:
            self.parked_bytes -= len(command.body)
            if conn.closed:
                continue
            try:
                if error is not None:
                    self._unavailable(conn, command, error)
                elif command.code == RequestCode.SEND_MESSAGE:
                    self.send_v1(conn, command)
                else:
                    self.send_v2(conn, command)
            except Exception as e:  # the others wait, too
                log.exception("a send that waited for topic %s failed", name)
                self._unavailable(conn, command, e)
        self.finish()

    # --- committing and answering ---

    def finish(self) -> None:
        """Commit what is staged and answer what need not wait; with one error for all when the store cannot write."""
        staged = self._staged
        if not staged:
            return
        self._staged = []
        counters = self._counters
        began = counters.now()
        try:
            self._store.commit()
        except (RetriableError, FatalError, OSError) as e:
            if not self._failing:  # a full disk refuses thousands a second; say it once
                self._failing = True
                event(log, logging.WARNING, "sends_refused", reason=e)
            counters.put_failed += len(staged)
            self._acks.release(sum(one[-1] for one in staged))
            if isinstance(e, StoreFailed):
                self._flusher.fail(e)
            else:
                self._room.disk_refused(e)
            for conn, command, *_ in staged:
                self._unavailable(conn, command, e)
            return
        self._flusher.wrote()
        if self._failing:
            self._failing = False
            event(log, logging.WARNING, "sends_accepted_again")
        counters.put_requests += len(staged)
        now = counters.now()
        took = now - began
        counters.max_commit_s = max(counters.max_commit_s, took)
        counters.commit.add(took, len(staged))
        if took > self._slow_s:
            self._note_slow(took)
        ext: bytes | None
        single = self._single
        waiting: list[Stored] = []
        messages = body_bytes = 0
        run_topic, run_type, run_messages, run_bytes = staged[0][2], staged[0][9], 0, 0
        run_sizes: list[int] = []  # of consecutive sends to one topic, which are counted together
        for conn, command, topic, queue_id, queue_offset, log_offset, uniq, _, inner, message_type, size, waits in staged:
            body_bytes += len(command.body)
            if type(log_offset) is int:
                count = 1
                if inner < 0:
                    ext = None
                elif inner:
                    count = inner
                    counters.note_batch(counters.inner_batches, count, len(command.body))
                    text = _json_text(uniq or "")
                    ext = self._inner % (queue_id, text, text, log_offset, queue_offset)
                else:
                    ext = single % (queue_id, _json_text(uniq or ""), log_offset, queue_offset)
            else:
                count = len(log_offset)  # type: ignore[arg-type]
                counters.note_batch(counters.batches, count, len(command.body))
                # The ids differ in their last 16 digits only.
                ids = self._host_hex + _offsets_of(count).pack(*log_offset).hex(",", 8).upper().replace(",", "," + self._host_hex)  # type: ignore[misc]
                transaction = b'"transactionId":"%b",' % _json_text(uniq) if uniq else b""
                ext = self._several % (queue_id, transaction, ids.encode(), queue_offset)
            if size:
                if topic is not run_topic or message_type is not run_type:
                    if run_sizes:
                        counters.of_type(run_topic, run_type).add(run_messages, run_bytes, run_sizes, took)
                        messages += run_messages
                    run_topic, run_type, run_messages, run_bytes, run_sizes = topic, message_type, 0, 0, []
                run_messages += count
                run_bytes += size
                run_sizes.append(size if count == 1 else size // count)
            if waits:
                command.body = b""  # a view would keep a receive buffer alive
                waiting.append(Stored(conn, command, ext, now))
            else:
                conn.respond(command, 0, ext=ext)
        if run_sizes:
            counters.of_type(run_topic, run_type).add(run_messages, run_bytes, run_sizes, took)
        counters.put_messages += messages + run_messages
        counters.put_bytes += body_bytes
        if self._seen_late:
            self._note_unseen([(topic, queue_id, tag) for _, _, topic, queue_id, _, _, _, tag, *_ in staged])
        if waiting or self._acks.replicas:
            self._flusher.wait(waiting)
        if self._seen_late:
            return
        for _, _, topic, queue_id, _, _, _, tag, _, _, _, _ in staged:
            if topic.held and queue_id in topic.held:
                self._arrived(topic, queue_id, tag)

    def check_takes(self) -> bool:
        """Tell whether what is staged now is answered later than its commit. Raises SendRefused when nothing may be staged."""
        if self._busy_until or self.closing or not self._room.writable:
            self._refuse_for_now()
        if self._waits and not self._flusher.admits(waits=True):
            raise SendRefused(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        return self._waits

    def staged(
        self, conn: ServerConnection, command: Command, topic: Topic | None, queue_id: int, tag: int, *, size: int, waits: bool
    ) -> None:
        """Answer ``command``, without fields, once the message that was staged for it is stored; without a topic it was parked.

        ``size`` is that of its record, 0 for an answer that waits for an older record.
        """
        message_type = NORMAL if topic is not None else DELAY
        self._staged.append((conn, command, topic or self._schedule_topic, queue_id, 0, 0, None, tag, -1, message_type, size, waits))
        if waits:
            self._acks.hold()

    def committed(self, arrivals: list[Arrival], size: int, timed: int) -> None:
        """Take note of messages of ``size`` bytes that the broker itself committed; the last ``timed`` of them were for a certain time."""
        self._flusher.wrote()
        counters = self._counters
        counters.put_messages += len(arrivals)
        counters.put_bytes += size
        mean = size // max(1, len(arrivals))
        delayed = len(arrivals) - timed
        if delayed:
            parked = counters.of_group(self._schedule_topic, DELIVERY_GROUP)
            parked.get_requests += 1
            parked.get_messages += delayed
            parked.get_bytes += delayed * mean
        for topic, _, _ in arrivals[delayed:]:
            counters.of_topic(topic).timed_out += 1
        for topic, _, _ in arrivals:
            counters.of_topic(topic).of_type(DELAY).add(1, mean, [mean], 0.0)
        if self._seen_late:
            self._note_unseen(arrivals)
        if self._acks.replicas:
            self._flusher.wait([])
        if self._seen_late:
            return
        for topic, queue_id, tag in arrivals:
            if topic.held and queue_id in topic.held:
                self._arrived(topic, queue_id, tag)

    def answer(self, sends: list[Stored], code: int) -> None:
        """Answer sends that have waited, with the code that ``acks.py`` gives them."""
        if code == LOST:
            self._counters.put_failed += len(sends)
            cause = "the disk failed, or this broker is no longer the master: whether the message is stored is unknown"
            remark = f"service not available now. It may be caused by: {cause}"
            for conn, command, *_ in sends:
                conn.respond(command, code, ext=self._error_ext, remark=remark)
            return
        now = self._counters.now()
        for since, count in Counter([stored.since for stored in sends]).items():
            self._counters.flush.add(now - since, count)
        for conn, command, ext, since in sends:
            conn.respond(command, code, ext=ext, since=since)

    def mode_changed(self) -> None:
        """Take note that ``acks`` waits for something else than before, and the store may hold back."""
        self._waits = self._acks.waits
        self._seen_late = self._store.holds_back

    def give_up(self) -> None:
        """Answer what is staged with an error, and store nothing of it: this broker is no longer the master."""
        staged, self._staged = self._staged, []
        self._store.discard()
        self._acks.release(sum(one[-1] for one in staged))
        for conn, command, *_ in staged:
            self._unavailable(conn, command, FatalError("this broker is no longer the master"))

    def close(self) -> None:
        """Commit what is staged, and take nothing more."""
        self.finish()
        self.closing = True

    def busy_ms(self) -> int:
        """Return how long the write took after which sends are refused at the moment; 0 when they are not."""
        return round(self._slow_took_s * 1000) if self._busy_until > self._counters.now() else 0

    def _note_slow(self, took_s: float) -> None:
        event(log, logging.WARNING, "slow_commit", took_s=took_s)
        self._slow_took_s = took_s
        self._busy_until = self._counters.now() + min(took_s, MAX_BUSY_S)

    def _note_unseen(self, arrivals: list[tuple[Topic, int, int | None]]) -> None:
        end = self._store.commitlog_max_offset
        unseen = self._unseen
        for topic, queue_id, tag in arrivals:
            known = unseen.get((topic, queue_id))
            if known is None:
                unseen[topic, queue_id] = (tag, end, end)
            else:
                unseen[topic, queue_id] = (tag if tag == known[0] else None, known[1], end)

    def published(self, end: int) -> None:
        """Wake the pulls on what became visible, the log up to ``end``."""
        unseen = self._unseen
        if not unseen:
            return
        self._unseen = {}
        for (topic, queue_id), (tag, first, last) in unseen.items():
            if last > end:
                self._unseen[topic, queue_id] = (tag, last, last)
            if first <= end and queue_id in topic.held:
                self._arrived(topic, queue_id, tag)

    def _unavailable(self, conn: ServerConnection, command: Command, error: BaseException) -> None:
        remark = f"service not available now. It may be caused by: {error}"
        conn.respond(command, ResponseCode.SERVICE_NOT_AVAILABLE, ext=self._error_ext, remark=remark)


@lru_cache(maxsize=256)
def _offsets_of(count: int) -> Struct:
    """Return the layout of ``count`` log offsets in a row."""
    return Struct(f">{count}q")


def _json_text(value: str) -> bytes:
    # Message ids are hex, but a client may send any text.
    return value.encode() if value.isalnum() else msgspec.json.encode(value)[1:-1]
