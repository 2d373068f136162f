"""Pops, peeks, notifications, and the number of waiting pops (200050, 200052, 200054, 200055); the others are in ``receipts.py``."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import lru_cache

from sprocketmq.broker.clients import tag_filter
from sprocketmq.broker.cold_reads import ColdReads, DiskReads
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.filters.refusals import FilterRefused, condition_of, is_sql
from sprocketmq.broker.filters.sql92 import Condition
from sprocketmq.broker.groups import GroupRefused, GroupTable
from sprocketmq.broker.metrics.counters import BrokerCounters
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.pop.journal import Journal
from sprocketmq.broker.pop.popping import MAX_LOADS, ORDERLY, Popping, Taken
from sprocketmq.broker.pop.receipts import PopRefused, ReceiptHandlers, checked_invisible, no_topic
from sprocketmq.broker.pop.state import PopQueue
from sprocketmq.broker.pop.waiting import PopWaiter, PopWaiters
from sprocketmq.broker.topics import FAQ, OVERLOAD, Topic, TopicTable
from sprocketmq.clock import Clock
from sprocketmq.errors import InvalidName, SprocketError
from sprocketmq.events import event
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import SubscriptionGroupConfig, build_subscription
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import PollingInfo, PopNotification, PopPeek, PopRequest
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.store import ColdRead, MessageStore, NotInMemory

log = logging.getLogger(__name__)

JOURNAL = "config/pop.journal"
MAX_COUNT = 32
# A pop that arrives this long after its deadline is not started, as in the reference.
LATE_MS = 500
MAX_POLL_MS = 120_000
# Bytes of an answer that its client has not read; see ``pull.MAX_UNREAD_BYTES``.
MAX_BACKLOG_BYTES = 32 << 20

NOTHING = "NO_MESSAGE_IN_QUEUE"
_EMPTY = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}


@lru_cache(maxsize=4096)
def _parse_expression(topic: str, expression: str) -> frozenset[int] | None:
    return tag_filter(build_subscription(topic, expression, 0))


# A pop with this much is answered at once, not with the others of this turn: the client reads it meanwhile.
EARLY_BYTES = 16 << 10


class PopHandlers:
    """Answers the requests. ``soon`` runs a call at the end of this turn of the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        counters: BrokerCounters,
        *,
        disk: DiskReads,
        fs: FileSystem,
        clock: Clock,
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._counters = counters
        self._clock = clock
        self._max_bytes = config.max_transfer_bytes_on_message_in_memory
        self._journal = Journal(f"{config.store.root}/{JOURNAL}", fs, soon=soon)
        self._popping = Popping(config.broker_name, store, offsets, self._journal, max_bytes=lambda: self._max_bytes, clock=clock)
        self._receipts = ReceiptHandlers(store, topics, self._popping, self._journal, counters, wake=self.arrived, clock=clock)
        self._waiters = PopWaiters(
            clock, serve=self._serve_waiting, expire=self._answer_nothing, due=lambda topic: self._popping.is_due(topic.name)
        )
        self._cold: ColdReads[PopWaiter] = ColdReads(disk, self._loaded)

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        calls: dict[int, Callable[[ServerConnection, Command], None]] = {
            RequestCode.POP_MESSAGE: self._pop,
            RequestCode.PEEK_MESSAGE: self._peek,
            RequestCode.NOTIFICATION: self._notification,
            RequestCode.POLLING_INFO: self._polling_info,
            **self._receipts.calls(),
        }
        return {code: self._refusing(call, code) for code, call in calls.items()}

    @staticmethod
    def _refusing(call: Callable[[ServerConnection, Command], None], code: int) -> Callable[[ServerConnection, Command], None]:
        # The Java client wants these fields in every answer to a pop.
        ext = _EMPTY if code in (RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE) else {}

        def handle(conn: ServerConnection, command: Command) -> None:
            try:
                call(conn, command)
            except (PopRefused, GroupRefused) as e:
                conn.respond(command, e.code, ext=ext, remark=e.remark)

        return handle

    # --- life ---

    def open(self) -> None:
        """Load the state from the journal. An unreadable journal is set aside: groups continue at their committed offsets."""
        try:
            self._popping.load()
        except (OSError, SprocketError, ValueError, TypeError) as e:
            self._popping.clear()
            event(log, logging.ERROR, "pop_journal_failed", path=JOURNAL, reason=e)

    def take_settings(self, config: BrokerConfig) -> None:
        """Use the limits of ``config`` from now on."""
        self._max_bytes = config.max_transfer_bytes_on_message_in_memory

    def keep_short(self) -> None:
        """Replace a long journal by a snapshot."""
        try:
            self._popping.keep_short()
        except (OSError, SprocketError) as e:
            event(log, logging.ERROR, "pop_journal_failed", path=JOURNAL, reason=e)

    def arrived(self, topic: Topic) -> None:
        """Wake the pops of a topic that has a new message."""
        if topic.pops:
            self._waiters.wake(topic)

    def topic_deleted(self, topic: Topic) -> None:
        """Forget the state of a topic, and answer the pops that wait for its messages."""
        self._popping.topic_deleted(topic.name)
        waiting = [waiter for waiter in self._waiters if waiter.topic is topic]
        for waiter in waiting:
            self._waiters.release(waiter)
        for waiter in waiting + self._cold.drop(lambda waiter: waiter.topic is topic):
            waiter.conn.respond(waiter.command, ResponseCode.TOPIC_NOT_EXIST, ext=_EMPTY, remark=no_topic(topic.name), since=waiter.since)

    def access_changed(self, refusal: Callable[[ServerConnection, Command], str]) -> None:
        """Refuse the waiting pops for which ``refusal`` returns a reason: users or policies have changed."""
        waiting = list(self._waiters)
        refused = {waiter: remark for waiter in [*waiting, *self._cold.waiting] if (remark := refusal(waiter.conn, waiter.command))}
        self._cold.drop(lambda waiter: waiter in refused)
        for waiter in waiting:
            if waiter in refused:
                self._waiters.release(waiter)
        for waiter, remark in refused.items():
            waiter.conn.respond(waiter.command, ResponseCode.NO_PERMISSION, ext=_EMPTY, remark=remark, since=waiter.since)

    def disconnected(self, conn: ServerConnection) -> None:
        """Forget the pops of a connection that ended."""
        self._waiters.disconnected(conn)
        if len(self._cold):
            self._cold.drop(lambda waiter: waiter.conn is conn)

    @property
    def cold_count(self) -> int:
        """How many pops wait for the disk."""
        return len(self._cold)

    @property
    def waiting_count(self) -> int:
        """How many pops wait for messages."""
        return self._waiters.count

    def queues(self) -> Iterator[PopQueue]:
        """Yield the state of each group at each queue."""
        return iter(self._popping)

    def close(self) -> None:
        """Stop the timer and close the journal."""
        self._waiters.close()
        self._cold.close()
        self._popping.stopped()
        self._journal.close()

    def discard(self) -> None:
        """Forget the state: this broker is a slave, and the master keeps the positions of groups."""
        self._popping.clear()
        with contextlib.suppress(OSError):
            self._journal.remove()

    def abandon(self) -> None:
        """Stop like a killed process: what is not written is lost."""
        self._waiters.close()
        self._cold.close()
        self._journal.abandon()

    # --- pops ---

    def _topic(self, name: str, queue_id: int) -> Topic:
        """Return a topic that may be read, with the queue. Raises PopRefused."""
        topic = self._topics.get(name)
        if topic is None:
            raise PopRefused(ResponseCode.TOPIC_NOT_EXIST, no_topic(name))
        if not topic.readable:
            raise PopRefused(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
        if topic.unsupported:
            raise PopRefused(ResponseCode.SYSTEM_ERROR, f"topic[{name}] cannot be read: {topic.unsupported}")
        if not -1 <= queue_id < topic.read_queues:
            remark = f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.read_queues}]"
            raise PopRefused(ResponseCode.INVALID_PARAMETER, remark)
        return topic

    def _group(self, name: str, topic: str) -> SubscriptionGroupConfig:
        group = self._groups.find(name)
        if group is None:
            raise PopRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist, {FAQ}")
        if not group.consume_enable:
            raise PopRefused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")
        if not self._groups.may_read(name, topic):
            raise PopRefused(ResponseCode.NO_PERMISSION, f"the consumer group[{name}] is forbidden for topic[{topic}]")
        return group

    @staticmethod
    def _filters(topic: Topic, kind: str | None, expression: str | None) -> tuple[frozenset[int] | None, Condition | None]:
        """Return the tags, or the condition, of a pop; as in the reference, pops have conditions whatever the settings say."""
        try:
            if is_sql(kind):
                condition = condition_of(kind, expression, filters=True)
                return None, condition if topic.retry_group is None else None  # those of retry topics met it before
            return _parse_expression(topic.name, expression or "*"), None
        except FilterRefused as e:
            raise PopRefused(e.code, e.remark) from None
        except InvalidName:
            raise PopRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed") from None

    def _poll_s(self, poll_ms: int, born_ms: int) -> float:
        """Return how long a request may wait. Raises PopRefused when its deadline has passed."""
        now = self._clock.time_ms()
        born = born_ms or now
        if now - born - poll_ms > LATE_MS:
            raise PopRefused(ResponseCode.POLLING_TIMEOUT, f"the broker[{poll_ms}] poll message is timeout")
        # The client's clock may be wrong; it waits no longer than it said.
        return min(max(poll_ms, 0), MAX_POLL_MS, max(born + poll_ms - now - 50, 0)) / 1000

    def _pop(self, conn: ServerConnection, command: Command) -> None:
        """Answer 200050, at once or when there is a message."""
        header = command.header(PopRequest)
        poll_s = self._poll_s(header.poll_time_ms, header.born_time_ms)
        if not 0 < header.max_msg_nums <= MAX_COUNT:
            remark = f"the broker's pop message num is {header.max_msg_nums}: it is 1 to {MAX_COUNT}"
            raise PopRefused(ResponseCode.INVALID_PARAMETER, remark)
        invisible_ms = checked_invisible(header.invisible_time_ms)
        topic = self._topic(header.topic, header.queue_id)
        waiter = PopWaiter(
            conn,
            command,
            self._group(header.consumer_group, header.topic),
            topic,
            header.queue_id,
            max_count=header.max_msg_nums,
            invisible_ms=invisible_ms,
            init_mode=header.init_mode,
            filters=self._filters(topic, header.exp_type, header.exp),
            order=header.order,
            attempt_id=header.attempt_id or "",
        )
        if conn.write_backlog > MAX_BACKLOG_BYTES:
            raise PopRefused(ResponseCode.POLLING_TIMEOUT, "unread responses pile up")
        waiter.deadline = self._clock.monotonic() + poll_s
        self._serve_or_hold(waiter)

    def _serve_or_hold(self, waiter: PopWaiter) -> None:
        if self._serve(waiter, waits=False):
            return
        if waiter.deadline <= self._clock.monotonic():
            self._answer_nothing(waiter)
        elif not self._waiters.admits(waiter):
            if waiter.notifies:
                waiter.conn.respond(waiter.command, ResponseCode.SUCCESS, ext={"hasMsg": "false", "pollingFull": "true"})
            else:
                raise PopRefused(ResponseCode.POLLING_FULL, NOTHING)
        else:
            self._waiters.hold(waiter)

    def _serve(self, waiter: PopWaiter, *, waits: bool = True) -> bool:
        """Answer a pop if there are messages for it; return whether it was answered, or will be when they are in memory."""
        if waiter.peeks:
            self._serve_peek(waiter)
            return True
        if waiter.notifies:
            if not self._popping.has_messages(waiter):
                return False
            if waits:
                self._waiters.release(waiter)
            waiter.conn.respond(waiter.command, ResponseCode.SUCCESS, ext={"hasMsg": "true", "pollingFull": "false"}, since=waiter.since)
            return True
        try:
            taken = self._popping.pop(waiter)
        except NotInMemory as e:
            if waits:
                self._waiters.release(waiter)
            self._wait_for_disk(waiter, e.cold)
            return True
        if taken is None:
            return False
        if waits:
            self._waiters.release(waiter)
        self._count(waiter, taken)
        self._journal.when_written(lambda failure: self._answer(waiter, taken, failure))
        if taken.size > EARLY_BYTES:
            self._journal.write()
            waiter.conn.flush()
        return True

    def _wait_for_disk(self, waiter: PopWaiter, cold: ColdRead) -> None:
        if not self._cold.begin(waiter, cold):
            waiter.conn.respond(waiter.command, ResponseCode.SYSTEM_BUSY, ext=_EMPTY, remark=OVERLOAD, since=waiter.since)

    def _loaded(self, waiter: PopWaiter) -> None:
        """Repeat a pop whose first messages are in memory now."""
        try:
            self._serve_or_hold(waiter)
        except PopRefused as e:
            waiter.conn.respond(waiter.command, e.code, ext=_EMPTY, remark=e.remark, since=waiter.since)
        except Exception as e:
            log.exception("a pop of topic %s, which waited for the disk, cannot be answered", waiter.topic.name)
            self._answer_error(waiter, e)

    @staticmethod
    def _answer_error(waiter: PopWaiter, error: Exception) -> None:
        remark = f"internal error: {type(error).__name__}: {error}"
        waiter.conn.respond(waiter.command, ResponseCode.SYSTEM_ERROR, ext=_EMPTY, remark=remark, since=waiter.since)

    def _serve_waiting(self, waiter: PopWaiter) -> bool:
        """Do the same for a waiting pop; if it fails, the pop is answered with the error and the others continue."""
        try:
            return self._serve(waiter)
        except Exception as e:
            log.exception("a waiting pop of topic %s cannot be answered", waiter.topic.name)
            self._waiters.release(waiter)
            self._answer_error(waiter, e)
            return True

    def _answer(self, waiter: PopWaiter, taken: Taken, failure: object) -> None:
        if failure is not None:
            # They stay invisible for their time: what the client does not get now is delivered then.
            waiter.conn.respond(waiter.command, ResponseCode.SYSTEM_ERROR, ext=_EMPTY, remark=f"the pop cannot be kept: {failure}")
            return
        noted = self._counters.of_group(waiter.topic, waiter.group.group_name)
        noted.pop_checkpoints += taken.queues
        noted.pop_again += taken.again
        ext = {
            "popTime": str(taken.popped_ms),
            "invisibleTime": str(waiter.invisible_ms),
            "reviveQid": str(ORDERLY if waiter.order else 0),
            "restNum": str(taken.rest),
            "startOffsetInfo": taken.starts,
            "msgOffsetInfo": taken.offsets,
        }
        if waiter.order:
            ext["orderCountInfo"] = taken.deliveries
        waiter.conn.respond(waiter.command, ResponseCode.SUCCESS, ext=ext, remark="FOUND", body=taken.records, since=waiter.since)

    def _count(self, waiter: PopWaiter, taken: Taken) -> None:
        counters = self._counters
        counters.get_found += 1
        counters.get_messages += taken.messages
        counters.get_bytes += taken.size
        got = counters.of_group(waiter.topic, waiter.group.group_name)
        got.get_requests += 1
        got.get_messages += taken.messages
        got.get_bytes += taken.size

    def _answer_nothing(self, waiter: PopWaiter) -> None:
        self._counters.get_missed += 1
        if waiter.notifies:
            waiter.conn.respond(waiter.command, ResponseCode.SUCCESS, ext={"hasMsg": "false", "pollingFull": "false"}, since=waiter.since)
        else:
            waiter.conn.respond(waiter.command, ResponseCode.POLLING_TIMEOUT, ext=_EMPTY, remark=NOTHING, since=waiter.since)

    def _notification(self, conn: ServerConnection, command: Command) -> None:
        """Answer 200054: whether there is a message to pop, at once or as soon as there is one."""
        header = command.header(PopNotification)
        topic = self._topic(header.topic, header.queue_id)
        waiter = PopWaiter(
            conn,
            command,
            self._group(header.consumer_group, header.topic),
            topic,
            header.queue_id,
            max_count=1,
            invisible_ms=1,
            init_mode=1,
            filters=self._filters(topic, header.exp_type, header.exp),
            order=header.order,
            attempt_id=header.attempt_id or "",
            notifies=True,
        )
        waiter.deadline = self._clock.monotonic() + self._poll_s(header.poll_time_ms, header.born_time_ms)
        self._serve_or_hold(waiter)

    def _peek(self, conn: ServerConnection, command: Command) -> None:
        """Answer 200052: the next messages, without taking them."""
        header = command.header(PopPeek)
        if not 0 < header.max_msg_nums <= MAX_COUNT:
            raise PopRefused(
                ResponseCode.INVALID_PARAMETER, f"the broker's peek message num is {header.max_msg_nums}: it is 1 to {MAX_COUNT}"
            )
        topic = self._topic(header.topic, header.queue_id)
        waiter = PopWaiter(
            conn,
            command,
            self._group(header.consumer_group, header.topic),
            topic,
            header.queue_id,
            max_count=header.max_msg_nums,
            invisible_ms=1,
            init_mode=1,
            filters=(None, None),
            order=False,
            attempt_id="",
            peeks=True,
        )
        self._serve_peek(waiter)

    def _serve_peek(self, waiter: PopWaiter) -> None:
        """Answer a peek, or have what it lacks read from the disk first."""
        group, topic = waiter.group.group_name, waiter.topic.name
        records: list[memoryview | bytes] = []
        rest = 0
        queues = range(waiter.topic.read_queues) if waiter.queue_id < 0 else (waiter.queue_id,)
        for queue_id in queues:
            state = self._popping.find(group, topic, queue_id)
            committed = self._offsets.get(group, topic, queue_id)
            offset = state.next if state is not None else max(committed or 0, self._store.min_offset(topic, queue_id), 0)
            high = self._store.max_offset(topic, queue_id)
            count = min(waiter.max_count - len(records), high - offset)
            if count > 0 and waiter.loads < MAX_LOADS * len(queues):
                cold = self._store.find_cold(topic, queue_id, offset, count, count)
                if cold is not None and cold.waits:
                    self._wait_for_disk(waiter, cold)
                    return
            while len(records) < waiter.max_count and offset < high:
                record = self._popping.message(topic, queue_id, offset)
                offset += 1
                if record is not None:
                    records.append(record)
            rest += max(high - offset, 0)
        if records:
            code, ext, remark = ResponseCode.SUCCESS, {**_EMPTY, "restNum": str(rest)}, "FOUND"
        else:
            code, ext, remark = ResponseCode.PULL_NOT_FOUND, _EMPTY, NOTHING
        waiter.conn.respond(waiter.command, code, ext=ext, remark=remark, body=records, since=waiter.since)

    def _polling_info(self, conn: ServerConnection, command: Command) -> None:
        """Answer 200055: how many pops of a group wait."""
        header = command.header(PollingInfo)
        topic = self._topic(header.topic, header.queue_id)
        count = self._waiters.waiting(header.consumer_group, topic, header.queue_id)
        conn.respond(command, ResponseCode.SUCCESS, ext={"pollingNum": str(count)})
