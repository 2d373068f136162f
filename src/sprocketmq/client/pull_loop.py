"""Pulls of the queues a group member has: one loop for each, ahead of the handlers as far as flow control lets it (client-behaviour, section 9.4)."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sprocketmq.client.instance import Instance
from sprocketmq.client.process_queue import ProcessQueue
from sprocketmq.client.pulling import PullResult, PullStatus, pull_header, read_pull, subscription_tags
from sprocketmq.client.routes import MASTER_ID
from sprocketmq.errors import BrokerError, SprocketError, TopicNotFound
from sprocketmq.protocol.bodies import SubscriptionData
from sprocketmq.protocol.codes import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, LanguageCode, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import RETRY_PREFIX

log = logging.getLogger(__name__)

SUSPEND_MS = 15_000
PULL_TIMEOUT_S = 30.0
PULL_PAUSE_S = 1.0
# What our brokers say they are written in.
OWN_LANGUAGE = LanguageCode.PYTHON
# A broker may refuse a group for a moment, as it has not heard of it yet; after this many times in a row it means it.
REFUSALS = 5

_NOT_KNOWN_YET = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
)
_FOR_GOOD = _NOT_KNOWN_YET | {ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}


@dataclass(frozen=True, slots=True)
class PullSize:
    """What one pull asks for."""

    messages: int
    size_bytes: int


class PullLoops:
    """Pull every queue that was begun until it is ended.

    ``found(pq)`` is called when messages came; ``lost()`` when a queue's topic has no route any more; ``refused(error)`` when a broker
    refuses the group for good, which ends the loop of that queue. With ``commits`` each pull tells the broker what was consumed,
    with ``tells`` what is subscribed to, which no heartbeat may have told it.
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
        commits: bool = True,
        tells: bool = False,
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._size = size
        self._found = found
        self._lost = lost
        self._refused = refused
        self._commits = commits
        self._flags = PULL_SUSPEND | (PULL_SUBSCRIPTION if tells else 0)
        self._loops: dict[MessageQueue, asyncio.Task[None]] = {}
        self._waiting: dict[MessageQueue, asyncio.Future[None]] = {}

    def begin(self, pq: ProcessQueue) -> None:
        """Pull ``pq`` from its ``next_offset`` on."""
        self._loops[pq.queue] = self._instance.spawn(self._loop(pq))

    def end(self, pq: ProcessQueue) -> None:
        """Pull ``pq`` no more; a pull under way is given up. Harmless when it was ended."""
        self._waiting.pop(pq.queue, None)
        loop = self._loops.pop(pq.queue, None)
        if loop is not None and loop is not asyncio.current_task():
            loop.cancel()

    def go_on(self, pq: ProcessQueue) -> None:
        """Wake the loop of a queue that was too full to be pulled."""
        waiting = self._waiting.pop(pq.queue, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _loop(self, pq: ProcessQueue) -> None:
        queue = pq.queue
        tags = subscription_tags(self._subscriptions[queue.topic])
        broker_id = MASTER_ID
        refusals = 0
        failing = False
        restored = queue.topic.startswith(RETRY_PREFIX)
        while not pq.dropped:
            if pq.full:
                waiting = self._waiting[queue] = asyncio.get_running_loop().create_future()
                await waiting
                continue
            commit = pq.commit_offset if self._commits else 0
            pq.pulled_at = self._instance.clock.monotonic()
            try:
                response, address = await self._pull(pq, commit, broker_id)
                if response.code in _FOR_GOOD:
                    refusals += 1
                    error = BrokerError(response.code, response.remark, address=address)
                    if refusals >= REFUSALS:
                        self._refused(error)
                        return
                    if response.code in _NOT_KNOWN_YET:
                        await self._instance.heartbeat_soon()
                    raise error
                result = read_pull(response, address, queue, pq.next_offset, tags)
                messages = result.located
            except SprocketError as e:
                # Once for each outage: every queue comes by here each second while it lasts.
                level = logging.DEBUG if failing else logging.WARNING
                log.log(level, "consumer group %s: pull of %s failed, again every %g s: %s", self._group, queue, PULL_PAUSE_S, e)
                failing = True
                if isinstance(e, TopicNotFound):
                    self._lost()
                await self._instance.timers.sleep(PULL_PAUSE_S)
                continue
            refusals = 0
            failing = False
            if commit and broker_id == MASTER_ID:
                pq.persisted = max(pq.persisted, commit)
            broker_id = result.suggested_broker_id
            if result.status is PullStatus.OFFSET_MOVED:
                await self._move(pq, result)
                continue
            pq.broker_is_ours = response.language == OWN_LANGUAGE
            if restored:
                messages = list(messages)
                for message in messages:
                    message.restored = True
            pq.put(messages, len(result.body), result.next_offset)
            if messages:
                self._found(pq)
            del response, result, messages  # they are the consumer's now, and free when it is done with them

    async def _pull(self, pq: ProcessQueue, commit: int, broker_id: int) -> tuple[Command, str]:
        queue = pq.queue
        header = pull_header(
            self._group,
            queue,
            pq.next_offset,
            max_messages=self._size.messages,
            max_bytes=self._size.size_bytes,
            sys_flag=self._flags | (PULL_COMMIT_OFFSET if commit and broker_id == MASTER_ID else 0),
            commit_offset=commit,
            suspend_ms=SUSPEND_MS,
            subscription=self._subscriptions[queue.topic],
        )
        return await self._instance.ask_broker(
            queue.topic, queue.broker_name, RequestCode.PULL_MESSAGE, ext=header, broker_id=broker_id, timeout_s=PULL_TIMEOUT_S
        )

    async def _move(self, pq: ProcessQueue, result: PullResult) -> None:
        """Go on where the broker says: its queue begins later, ends earlier, or an operator has reset the offset."""
        why = "was reset" if result.min_offset <= pq.next_offset <= result.max_offset else "is out of range"
        log.warning("consumer group %s: offset %d of %s %s, going on at %d", self._group, pq.next_offset, pq.queue, why, result.next_offset)
        if result.next_offset > pq.next_offset:
            pq.put([], 0, result.next_offset)  # what was pulled before stays valid
        elif result.next_offset < pq.next_offset:
            pq.seek(result.next_offset)
        else:
            await self._instance.timers.sleep(PULL_PAUSE_S)  # a broker that contradicts itself
