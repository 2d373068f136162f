"""Pull loops: one for each queue that a consumer owns, ahead of its handlers within flow control.

See docs/internals/consumers.md#pulling-a-queue.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from sprocketmq.client.consume.consumer_stats import QueueStats
from sprocketmq.client.consume.process_queue import ProcessQueue
from sprocketmq.client.consume.pull_requests import PullResult, PullStatus, pull_template, read_pull, subscription_tags
from sprocketmq.client.consume.pull_room import BrokerRoom, PullRoom
from sprocketmq.client.hook_calls import HookCalls
from sprocketmq.client.instance import ASK_PAUSE_S, Instance, response_error
from sprocketmq.client.outages import broker_label
from sprocketmq.client.routes import MASTER_ID, Route
from sprocketmq.client.stats import ConsumerCounts
from sprocketmq.errors import AccessRefused, BrokerError, ClientClosed, ConnectionLost, RetriableError, SprocketError, TopicNotFound
from sprocketmq.net.client import Connection
from sprocketmq.net.tasks import Kept
from sprocketmq.protocol.bodies import SubscriptionData
from sprocketmq.protocol.codes import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, LanguageCode, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import RETRY_PREFIX
from sprocketmq.protocol.records import ReceivedMessage

log = logging.getLogger(__name__)

# How long a broker may hold a pull. Ours may hold the next one twice as long when a queue has had no messages for that time, up to what
# it allows: an idle queue then costs both sides a pull each two minutes.
SUSPEND_MS = 15_000
LONGEST_SUSPEND_MS = 120_000
# How long an answer may take beyond that.
ANSWER_S = 15.0
PULL_PAUSE_S = 1.0
# The pause doubles while the broker refuses this client, up to this: brokers close connections that fail to log in too often.
LONGEST_DENIED_PAUSE_S = 15.0
# Pause before a broker is asked again that has found nothing and held nothing: a slave that lags behind does so.
STALL_PAUSE_S = 0.2
# The language that SprocketMQ's brokers name in their responses.
OWN_LANGUAGE = LanguageCode.PYTHON
# How often queues are checked. One that is idle for IDLE_S is logged, and again after twice the time, up to once an hour.
WATCH_S = 5.0
IDLE_S = 60.0
LONGEST_IDLE_PAUSE_S = 3600.0
# A broker may refuse a group at first, before its heartbeat arrives; this many refusals in a row are final.
REFUSALS = 5

_NOT_KNOWN_YET = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
)
_BUSY = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY})
# A plain integer: formatting an enum member takes many times as long.
_PULL_MESSAGE = int(RequestCode.PULL_MESSAGE)
_NO_PERMISSION = int(ResponseCode.NO_PERMISSION)
_FOR_GOOD = _NOT_KNOWN_YET | {ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}


def _rests(pq: ProcessQueue) -> bool:
    """Whether no pull of the queue may leave: asked after a wait, in which it may have been dropped or paused."""
    return pq.dropped or bool(pq.full)


@dataclass(frozen=True, slots=True)
class PullSize:
    """The limits of one pull."""

    messages: int
    size_bytes: int


_FULL = {
    "paused": "it is paused",
    "messages": "{pq.held_messages} messages of it wait for handlers, the limit is {pq.limits.messages}",
    "bytes": "{pq.held_bytes} bytes of it wait for handlers, the limit is {pq.limits.size_bytes}",
    "span": "offset {pq.commit_offset} is not consumed, and pulls are {pq.limits.span} ahead of it",
}


class _Loop:
    """The loop of one queue, and its state. Times are monotonic seconds."""

    __slots__ = (
        "asking",
        "broker",
        "conn",
        "denials",
        "error",
        "failing",
        "flags",
        "idle_since",
        "kept",
        "lacking",
        "pq",
        "refusals",
        "room",
        "route",
        "suspend_ms",
        "template",
        "warned_s",
    )

    kept: Kept

    def __init__(self, pq: ProcessQueue, broker: BrokerRoom, now: float) -> None:
        self.pq = pq
        # What else its broker is about to send.
        self.broker = broker
        # The connection to the queue's master, while the topic's route stays the same and it is open.
        self.conn: Connection | None = None
        self.route: Route | None = None
        # The header's text for all pulls with these flags that may be held this long.
        self.template = b""
        self.suspend_ms = SUSPEND_MS
        self.flags = -1
        # Whether a pull is in flight, or held by the broker.
        self.asking = False
        # The error of the last failed pull, and whether no pull has succeeded since.
        self.error: BaseException | None = None
        self.failing = False
        self.refusals = 0
        # How often the broker refused this client since the last pull that succeeded.
        self.denials = 0
        # Whether a slave answers that does not have the next message.
        self.lacking = False
        # Set while the cache is full; resolved when there is room again.
        self.room: asyncio.Future[None] | None = None
        # When the last pull was answered, and how long the queue had been idle when that was last logged.
        self.idle_since = now
        self.warned_s = 0.0

    @property
    def probes(self) -> bool:
        """Whether the next pull is to be answered at once: a broker that is back then shows it before the queue's next message comes.

        After a refusal the broker may hold the pull, because this member may have lost the queue and may not commit before it knows.
        """
        return self.failing and not self.denials

    def why_idle(self) -> str:
        """Return why the queue is not pulled; empty when it is."""
        if self.failing:
            return f"its pulls fail: {self.error}"
        if self.asking:
            return ""
        if not self.kept.alive:
            return "its pull loop has ended"
        full = self.pq.full
        return _FULL[full].format(pq=self.pq) if full else ""


class PullLoops:
    """Pulls every queue from ``begin`` until ``end``.

    ``found(pq)`` is called when messages arrive; ``lost()`` when a queue's topic has no route any more; ``refused(error)`` when a broker
    refuses the group for good, which ends the loop of that queue. A user who has lost a right, or is unknown, may get access again: the
    loop goes on then, and ``denied(error)`` is called after each try. With ``commits`` each pull carries the commit offset. With
    ``sends_subscription`` it carries the subscription, for clients that may send no heartbeat. ``may_take`` tells whether messages of a
    queue may be handed out now; a full queue that may not has lost its lock.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscriptions: Mapping[str, SubscriptionData],
        size: PullSize,
        *,
        found: Callable[[ProcessQueue], None],
        lost: Callable[[], None],
        refused: Callable[[SprocketError], None],
        denied: Callable[[AccessRefused], None] = lambda _: None,
        may_take: Callable[[ProcessQueue], bool] = lambda _: True,
        commits: bool = True,
        sends_subscription: bool = False,
        counts: ConsumerCounts,
        hooks: HookCalls | None = None,
    ) -> None:
        self._counts = counts
        self._hooks = hooks
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._size = size
        self._found = found
        self._lost = lost
        self._refused = refused
        self._denied = denied
        self._may_take = may_take
        self._commits = commits
        self._flags = PULL_SUSPEND | (PULL_SUBSCRIPTION if sends_subscription else 0)
        self._loops: dict[MessageQueue, _Loop] = {}
        self._room = PullRoom()

    def begin(self, pq: ProcessQueue) -> None:
        """Start pulling ``pq`` at its ``next_offset``."""
        former = self._loops.get(pq.queue)
        if former is None:
            self._instance.outages.pulled(broker_label(pq.queue), 1)
            broker = self._room.joined(pq.queue.broker_name)
        else:
            broker = former.broker
        loop = self._loops[pq.queue] = _Loop(pq, broker, self._instance.clock.monotonic())
        loop.kept = self._instance.keep(f"pull loop of {pq.queue}", partial(self._pull_on, loop))

    def end(self, pq: ProcessQueue) -> None:
        """Stop pulling ``pq``; a pull in flight is dropped. Harmless when it was stopped before."""
        loop = self._loops.pop(pq.queue, None)
        if loop is not None:
            self._instance.outages.pulled(broker_label(pq.queue), -1)
            loop.kept.stop()
            self._room.left(pq.queue.broker_name)
            self._instance.outages.forget(broker_label(pq.queue))

    def go_on(self, pq: ProcessQueue) -> None:
        """Wake the loop of a queue whose cache was full."""
        loop = self._loops.get(pq.queue)
        if loop is not None and loop.room is not None and not loop.room.done():
            loop.room.set_result(None)

    # --- queues that are not pulled ---

    def watch(self, held: Callable[[], Iterable[ProcessQueue]]) -> None:
        """Check each 5 s that the queues that ``held`` returns are pulled, and log which are not and why."""

        async def look() -> None:
            self.check(held())

        self._instance.every(WATCH_S, look, "watch over pull loops")

    def check(self, held: Iterable[ProcessQueue]) -> None:
        """Log which of ``held`` are idle and why, and restart loops that have ended."""
        now = self._instance.clock.monotonic()
        for pq in list(held):
            loop = self._loops.get(pq.queue)
            if loop is None or (not loop.kept.alive and loop.refusals < REFUSALS):
                log.error("consumer group %s: %s is held and not pulled: its pull loop is gone; it is started again", self._group, pq.queue)
                self.begin(pq)
                continue
            if loop.room is not None and not loop.room.done() and not pq.full:
                log.error("consumer group %s: the pull loop of %s was not told that there is room; it continues", self._group, pq.queue)
                self.go_on(pq)
            idle_s = now - loop.idle_since
            if idle_s < IDLE_S or pq.paused or idle_s < min(2 * loop.warned_s, loop.warned_s + LONGEST_IDLE_PAUSE_S):
                continue
            why = self._why_idle(loop)
            if why:
                log.warning("consumer group %s: %s idle for %.0f s: %s", self._group, pq.queue, idle_s, why)
                loop.warned_s = idle_s

    def stats(self, pq: ProcessQueue) -> QueueStats:
        """Return the state of a queue."""
        loop = self._loops.get(pq.queue)
        now = self._instance.clock.monotonic()
        why = self._why_idle(loop) if loop is not None else "it is being released: its handler still has messages of it"
        since = loop.idle_since if loop is not None else pq.pulled_at
        return QueueStats(
            pq.queue,
            pq.commit_offset,
            pq.next_offset,
            pq.held_messages,
            pq.held_bytes,
            idle_s=now - since if why else 0.0,
            why_idle=why,
            last_error=str(loop.error) if loop is not None and loop.error is not None else "",
            in_flight=pq.in_flight,
        )

    def _why_idle(self, loop: _Loop) -> str:
        why = loop.why_idle()
        if why and not loop.failing and not loop.pq.paused and not self._may_take(loop.pq):
            return f"this member has lost its lock for now, and {why}"
        return why

    # --- one queue ---

    async def _pull_on(self, loop: _Loop) -> None:
        pq = loop.pq
        queue = pq.queue
        tags = subscription_tags(self._subscriptions[queue.topic])
        routes, login = self._instance.routes, self._instance.brokers.login
        broker_id = MASTER_ID
        # The bytes that the next pull is expected to bring at once: as many as the last one, while there is more behind them.
        expected = 0
        while not pq.dropped:
            if pq.full:
                loop.room = asyncio.get_running_loop().create_future()
                try:
                    await loop.room
                finally:
                    loop.room = None
                continue
            if expected:
                await loop.broker.take(expected)
                if _rests(pq):
                    loop.broker.give_back(expected)
                    continue
            # A member that had no access may have lost the queue to another one, which has committed since.
            commit = pq.commit_offset if self._commits and not loop.denials else 0
            pq.pulled_at = self._instance.clock.monotonic()
            try:
                loop.asking = True
                try:
                    # Most pulls go to a master that is connected: a queue then keeps one coroutine in memory, not five.
                    answer = None
                    conn = loop.conn
                    if broker_id != MASTER_ID:
                        conn = None
                    elif conn is None or conn.closed or routes.get(queue.topic) is not loop.route:
                        conn = self._connect(loop)
                    if conn is not None:
                        credentials = None if login is None else login.current
                        try:
                            header = self._header(loop, commit, broker_id)
                            answer = await conn.request(_PULL_MESSAGE, ext=header, timeout_s=loop.suspend_ms / 1000 + ANSWER_S)
                        except ConnectionLost:
                            pass
                        else:
                            address = conn.address
                            if answer.code in _BUSY:
                                answer = None
                                await self._instance.timers.sleep(ASK_PAUSE_S)
                            elif answer.code == _NO_PERMISSION and login is not None and login.current is not credentials:
                                answer = None
                    if answer is None:
                        conn = None
                        answer, address = await self._pull(loop, commit, broker_id)
                finally:
                    loop.asking = False
                    if expected:
                        loop.broker.give_back(expected)
                        expected = 0
                response, answer = answer, None
                if response.code in _FOR_GOOD:
                    error = self._refusal(loop, response, address)
                    if loop.refusals >= REFUSALS:
                        self._refused(error)
                        return
                    if response.code in _NOT_KNOWN_YET:
                        await self._instance.heartbeat_now()
                    raise error
                result = read_pull(response, address, queue, pq.next_offset, tags)
                messages = result.located
            except ClientClosed:
                return  # pauses end at once then, and retries would never stop
            except SprocketError as e:
                await self._instance.timers.sleep(self._failed(loop, e))
                continue
            probed = loop.probes
            messages = self._answered(loop, result, messages, address)
            if conn is not None or self._is_master(queue, address):
                if commit and broker_id == MASTER_ID:
                    pq.persisted = max(pq.persisted, commit)
                    pq.persisted_at = address
            else:
                result.came_from_slave()
            broker_id = result.suggested_broker_id
            if result.status is PullStatus.OFFSET_MOVED:
                if result.from_master or pq.next_offset == 0:
                    await self._move(pq, result)
                else:
                    await self._wait_for_master(loop, result, address)
                continue
            loop.lacking = False
            pq.broker_is_ours = response.language == OWN_LANGUAGE
            pq.put(messages, len(result.body), result.next_offset)
            if result.next_offset < result.max_offset:
                expected = len(result.body)
            if messages:
                if loop.suspend_ms != SUSPEND_MS:
                    self._suspend(loop, SUSPEND_MS)
                self._found(pq)
            elif result.status is not PullStatus.FOUND and result.next_offset == result.offset and not probed:
                if pq.broker_is_ours and loop.idle_since - pq.pulled_at >= loop.suspend_ms / 1000:
                    self._suspend(loop, min(2 * loop.suspend_ms, LONGEST_SUSPEND_MS))
                await self._pause_unless_held(loop, result, address)
            del response, result, messages  # otherwise they would stay in memory until the next pull is answered

    @staticmethod
    def _refusal(loop: _Loop, response: Command, address: str) -> SprocketError:
        """Return the error of a refused pull, counted unless it is a missing right: with ``REFUSALS`` in a row the loop ends."""
        error = response_error(response, address)
        if not isinstance(error, AccessRefused):
            loop.refusals += 1
            if loop.refusals >= REFUSALS:
                loop.error, loop.failing = error, True
        return error

    def _failed(self, loop: _Loop, error: SprocketError) -> float:
        """Record and report a failed pull. Returns the seconds until the next one."""
        queue = loop.pq.queue
        who = f"consumer group {self._group}"
        pause = PULL_PAUSE_S
        if isinstance(error, AccessRefused):
            level = self._instance.outages.refused(error)
            log.log(level, "%s: pull of %s refused, trying again until access is given back: %s", who, queue, error)
            pause = min(LONGEST_DENIED_PAUSE_S, PULL_PAUSE_S * 2**loop.denials)
            loop.denials = min(loop.denials + 1, 16)
            self._denied(error)
        elif isinstance(error, RetriableError):
            self._instance.outages.failed(broker_label(queue), loop.pq.pulled_at, who, error)
        else:
            # Only the first failure is a warning, as a retry follows each second. A broker that has just started knows no group
            # before its heartbeat; when it keeps refusing, that is reported as a refusal.
            expected = loop.failing or (isinstance(error, BrokerError) and error.code in _NOT_KNOWN_YET)
            level = logging.DEBUG if expected else logging.WARNING
            log.log(level, "%s: pull of %s failed, retrying every %g s: %s", who, queue, PULL_PAUSE_S, error)
        loop.error, loop.failing = error, True
        self._suspend(loop, SUSPEND_MS)
        self._counts.pull_failures.add(error)
        if self._hooks is not None:
            self._hooks.pulled(queue, loop.pq.pulled_at, error=error)
        if isinstance(error, TopicNotFound):
            self._lost()
        return pause

    def _answered(self, loop: _Loop, result: PullResult, messages: Sequence[ReceivedMessage], address: str) -> Sequence[ReceivedMessage]:
        """Record and report a pull that was answered. Returns its messages; those of a retry topic with their own topic restored."""
        pq, queue = loop.pq, loop.pq.queue
        now = self._instance.clock.monotonic()
        if loop.failing:
            self._instance.outages.answered(broker_label(queue), f"consumer group {self._group}")
        if loop.denials:
            self._instance.outages.allowed(address, f"consumer group {self._group}")
            self._instance.heartbeat_soon()  # the broker may have dropped this member from its group
        if loop.warned_s:
            log.warning("consumer group %s: %s is pulled again after %.0f s", self._group, queue, now - loop.idle_since)
            loop.warned_s = 0.0
        loop.broker.quickest_s = min(loop.broker.quickest_s, now - pq.pulled_at)
        loop.idle_since = now
        loop.failing = False
        loop.refusals = 0
        loop.denials = 0
        if queue.topic.startswith(RETRY_PREFIX):
            messages = list(messages)
            for message in messages:
                message.restored = True
        self._counts.pulled(len(messages), len(result.body))
        if self._hooks is not None:
            self._hooks.pulled(queue, pq.pulled_at, messages=messages, body_bytes=len(result.body), address=address)
        return messages

    def _connect(self, loop: _Loop) -> Connection | None:
        """Look up the open connection to the master of the queue; None while there is none, which ``_pull`` handles."""
        queue = loop.pq.queue
        route = loop.route = self._instance.routes.get(queue.topic)
        former, loop.conn = loop.conn, None
        if route is not None and (address := route.masters.get(queue.broker_name)) is not None and address not in route.away:
            loop.conn = self._instance.brokers.peek(address)
        if former is not None and former is not loop.conn:
            loop.broker.quickest_s = inf  # it may be somewhere else
        return loop.conn

    @staticmethod
    def _suspend(loop: _Loop, suspend_ms: int) -> None:
        loop.suspend_ms, loop.flags = suspend_ms, -1  # the template is rebuilt

    def _header(self, loop: _Loop, commit: int, broker_id: int) -> bytes:
        """Return the header of the next pull as JSON text."""
        flags = self._flags | (PULL_COMMIT_OFFSET if commit and broker_id == MASTER_ID else 0)
        if loop.probes:
            flags &= ~PULL_SUSPEND
        if flags != loop.flags:
            queue = loop.pq.queue
            loop.flags = flags
            loop.template = pull_template(
                self._group,
                queue,
                max_bytes=self._size.size_bytes,
                sys_flag=flags,
                suspend_ms=loop.suspend_ms,
                subscription=self._subscriptions[queue.topic],
            )
        return loop.template % (loop.pq.next_offset, self._size.messages, commit)

    async def _pull(self, loop: _Loop, commit: int, broker_id: int) -> tuple[Command, str]:
        """Pull from whichever broker can be reached; see ``Instance.ask_broker``."""
        queue, header = loop.pq.queue, self._header(loop, commit, broker_id)
        return await self._instance.ask_broker(
            queue.topic, queue.broker_name, _PULL_MESSAGE, ext=header, broker_id=broker_id, timeout_s=loop.suspend_ms / 1000 + ANSWER_S
        )

    def _is_master(self, queue: MessageQueue, address: str) -> bool:
        route = self._instance.routes.get(queue.topic)
        return route is None or route.addresses.get(queue.broker_name, {}).get(MASTER_ID) == address

    async def _pause_unless_held(self, loop: _Loop, result: PullResult, address: str) -> None:
        """Pause after an answer without messages that came at once, unless another broker is asked next."""
        now = self._instance.clock.monotonic()
        route = self._instance.routes.get(result.queue.topic)
        if route is None or route.address(result.queue.broker_name, result.suggested_broker_id) == address:
            await self._instance.timers.sleep(max(0.0, loop.pq.pulled_at + STALL_PAUSE_S - now))

    async def _wait_for_master(self, loop: _Loop, result: PullResult, address: str) -> None:
        """Pause because a slave no longer has the next message: skipping it would lose messages that the master may have."""
        if not loop.lacking:
            loop.lacking = True
            log.warning(
                "consumer group %s: the slave at %s has %s from %d on only and not %d: waiting for the master",
                self._group,
                address,
                result.queue,
                result.min_offset,
                result.offset,
            )
        await self._instance.timers.sleep(PULL_PAUSE_S)

    async def _move(self, pq: ProcessQueue, result: PullResult) -> None:
        """Continue where the broker says: its queue begins later, ends earlier, or an operator has reset the offset."""
        if not pq.next_offset and result.next_offset == result.min_offset:  # where a group starts that has consumed nothing
            log.info("consumer group %s: %s begins at %d", self._group, pq.queue, result.min_offset)
        else:
            why = "was reset" if result.min_offset <= pq.next_offset <= result.max_offset else "is out of range"
            log.warning(
                "consumer group %s: offset %d of %s %s, continuing at %d", self._group, pq.next_offset, pq.queue, why, result.next_offset
            )
        if result.next_offset > pq.next_offset:
            pq.put([], 0, result.next_offset)  # cached messages stay valid
        elif result.next_offset < pq.next_offset:
            pq.seek(result.next_offset)
        else:
            await self._instance.timers.sleep(PULL_PAUSE_S)  # the broker names the offset that it refuses
