"""Gives failed messages back to the broker, which delivers them again later (docs/internals/delay.md#giving-a-message-back-36)."""

import asyncio
import logging
import random
from collections.abc import Sequence

from sprocketmq.client.consume.process_queue import ProcessQueue
from sprocketmq.client.consume.received_batch import BROKER_DECIDES, DEAD_LETTER
from sprocketmq.client.hook_calls import HookCalls
from sprocketmq.client.instance import Instance, response_error
from sprocketmq.client.loop_bound import OPEN
from sprocketmq.client.stats import ConsumerCounts
from sprocketmq.errors import BrokerError, ConnectFailed, ConnectionLost, RequestTimeout, SprocketError
from sprocketmq.protocol import headers
from sprocketmq.protocol.codes import SYSFLAG_COMPRESSED, SYSFLAG_COMPRESSION_MASK, RequestCode, ResponseCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import RETRY_PREFIX
from sprocketmq.protocol.properties import DELAY, RETRY_TOPIC, encode_properties
from sprocketmq.protocol.records import ReceivedMessage

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
# How often, and how far apart, a give-back to a SprocketMQ broker that does not answer is repeated.
RESENDS = 10
RESEND_S = 1.0
# Concurrent requests for one batch.
AT_ONCE = 32
# Delay level of the first retry; each further one is a level higher: 10 s, 30 s, 1 min ...
FIRST_LEVEL = 3
# The producer group under which clients of every language publish messages that a broker did not take back.
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"

_STORED = frozenset(
    {ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT}
)
# Properties that a copy must not have: they would make it a transaction or timer message, or invalidate its checksum.
_LEFT_OUT = ("TRAN_MSG", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "__CRC32#")


class GiveBacks:
    """Sends messages back for one consumer group; one that was delivered again ``max_times`` becomes a dead letter.

    The broker copies the record itself (request 36). A message of an inner batch has no record of its own: SprocketMQ's broker finds it by
    its id and copies it; for other brokers the client publishes it to the group's retry topic. It does the same when a broker refuses.
    """

    def __init__(self, instance: Instance, group: str, *, max_times: int, counts: ConsumerCounts, hooks: HookCalls | None = None) -> None:
        self._counts = counts
        self._hooks = hooks
        self._instance = instance
        self._group = group
        self._retry_topic = RETRY_PREFIX + group
        self._max_times = max_times
        # Brokers that are taken for SprocketMQ and refused a message of an inner batch.
        self._refusing: set[str] = set()

    async def send(self, pq: ProcessQueue, messages: Sequence[tuple[ReceivedMessage, int]]) -> list[ReceivedMessage]:
        """Send back messages of ``pq``, each with its delay level, and return those that a broker has stored. Failures are logged."""
        sent: list[ReceivedMessage] = []
        failed: list[ReceivedMessage] = []
        error: BaseException | None = None
        began = self._instance.clock.monotonic()
        for start in range(0, len(messages), AT_ONCE):
            piece = messages[start : start + AT_ONCE]
            results = await asyncio.gather(*(self._one(pq, message, level) for message, level in piece), return_exceptions=True)
            for (message, _), result in zip(piece, results, strict=True):
                if result is None:
                    sent.append(message)
                else:
                    failed.append(message)
                    error = result
                    expected = isinstance(result, SprocketError)
                    log.log(
                        logging.WARNING if expected else logging.ERROR,
                        "consumer group %s: message %s of %s was not taken back: %s",
                        self._group,
                        message.msg_id,
                        pq.queue,
                        result if expected else repr(result),
                        exc_info=None if expected else result,
                    )
        self._counts.given_back += len(sent)
        self._counts.give_back_failures += len(failed)
        if self._hooks is not None:
            self._hooks.given_back(pq.queue, began, [message for message, _ in messages], failed, error)
        if sent and self._retry_topic not in self._instance.routes:
            self._instance.refresh_soon(self._retry_topic)
        return sent

    async def _one(self, pq: ProcessQueue, message: ReceivedMessage, delay_level: int) -> None:
        broker = pq.queue.broker_name
        if message.is_inner and (not pq.broker_is_ours or broker in self._refusing):
            await self.publish(message, delay_level)
            return
        try:
            await self._return_surely(pq, message, delay_level)
        except SprocketError as e:
            if message.is_inner and isinstance(e, BrokerError):
                self._refusing.add(broker)
            log.info("consumer group %s: %s did not take back %s, publishing it instead: %s", self._group, broker, message.msg_id, e)
            await self.publish(message, delay_level)

    async def _return_surely(self, pq: ProcessQueue, message: ReceivedMessage, delay_level: int) -> None:
        for tries_left in range(RESENDS, -1, -1):
            try:
                await self._return(pq.queue, message, delay_level)
            except (ConnectFailed, ConnectionLost, RequestTimeout):
                # It may be stored. SprocketMQ's broker makes no second copy, so repeating is safe, and publishing might not be.
                if not tries_left or not pq.broker_is_ours or pq.dropped or self._instance.state != OPEN:
                    raise
            else:
                return
            await self._instance.timers.sleep(RESEND_S)

    async def _return(self, queue: MessageQueue, message: ReceivedMessage, delay_level: int) -> None:
        header = headers.SendBack(
            message.commitlog_offset,
            self._group,
            delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self._max_times,
            broker_name=queue.broker_name,
        )
        response, address = await self._instance.ask_broker(
            queue.topic, queue.broker_name, RequestCode.CONSUMER_SEND_MSG_BACK, ext=to_ext(header), reads=False, timeout_s=TIMEOUT_S
        )
        if response.code != ResponseCode.SUCCESS:
            raise response_error(response, address, queue.topic)

    async def make_dead_letter(self, queue: MessageQueue, message: ReceivedMessage) -> None:
        """Publish a message that an orderly consumer gives up as a dead letter. Raises the error of the last broker tried."""
        began = self._instance.clock.monotonic()
        error: BaseException | None = None
        try:
            await self.publish(message, DEAD_LETTER)
        except BaseException as e:
            error = e
            self._counts.give_back_failures += 1
            raise
        else:
            self._counts.dead_letters += 1
        finally:
            if self._hooks is not None:
                failed = [] if error is None else [message]
                self._hooks.given_back(queue, began, [message], failed, error, dead_letters=True)

    async def publish(self, message: ReceivedMessage, delay_level: int = BROKER_DECIDES) -> None:
        """Publish a copy to the group's retry topic, on any broker. Raises the error of the last broker tried."""
        route = await self._instance.publish_route(self._retry_topic)
        queues = random.sample(route.publish_queues, len(route.publish_queues))
        tries = list({queue.broker_name: queue for queue in queues}.values())[:3]
        for queue in tries:
            try:
                await self._publish_to(queue, route.masters[queue.broker_name], message, delay_level)
            except SprocketError:
                if queue is tries[-1]:
                    raise
            else:
                return

    async def _publish_to(self, queue: MessageQueue, address: str, message: ReceivedMessage, delay_level: int) -> None:
        times = message.reconsume_times + 1
        # A broker makes a dead letter of a message that exceeds its limit.
        limit = min(self._max_times, times - 1) if delay_level == DEAD_LETTER else self._max_times
        properties = {name: value for name, value in message.properties.items() if name not in _LEFT_OUT}
        properties.setdefault("ORIGIN_MESSAGE_ID", message.msg_id)
        properties[RETRY_TOPIC] = message.topic
        properties["RECONSUME_TIME"] = str(times)
        properties["MAX_RECONSUME_TIMES"] = str(limit)
        properties[DELAY] = str(delay_level if delay_level > 0 else FIRST_LEVEL + message.reconsume_times)
        header = headers.SendMessageV2(
            INNER_PRODUCER,
            self._retry_topic,
            queue.queue_id,
            self._instance.clock.time_ms(),
            sys_flag=0 if message.is_inner else message.sys_flag & (SYSFLAG_COMPRESSED | SYSFLAG_COMPRESSION_MASK),
            flag=message.flag,
            properties=encode_properties(properties).decode(),
            reconsume_times=times,
            unit_mode=False,
            max_reconsume_times=limit,
            batch=False,
            broker_name=queue.broker_name,
        )
        response = await self._instance.ask(
            address, RequestCode.SEND_MESSAGE_V2, ext=to_ext(header), body=bytes(message.stored_body), timeout_s=TIMEOUT_S
        )
        if response.code not in _STORED:
            raise response_error(response, address, self._retry_topic)
