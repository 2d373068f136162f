"""Messages from brokers to clients: pops with long polling, acknowledgements, invisible times and dead letters."""

import asyncio
import logging
from typing import NamedTuple

from sprocketmq.client.instance import response_error
from sprocketmq.errors import ClientClosed, ProtocolError, RemoteProtocolError, SprocketError
from sprocketmq.net.tasks import Background, share
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import SendBack
from sprocketmq.protocol.properties import POP_CK
from sprocketmq.protocol.records import ReceivedMessage, decode_records
from sprocketmq.proxy.codes import FILTER_SQL, Code, PopCode, Refused
from sprocketmq.proxy.messages import delivered, topic_of
from sprocketmq.proxy.receipts import Receipt, deliveries_of, kind_of, offsets_of
from sprocketmq.proxy.schema import Proto, seconds_of
from sprocketmq.proxy.upstream import Upstream

log = logging.getLogger(__name__)

MAX_BATCH = 32
MIN_POLL_S, MAX_POLL_S = 5.0, 20.0
MIN_INVISIBLE_S, MAX_INVISIBLE_S = 10.0, 12 * 3600.0
# Messages that could not be delivered to a disconnected client become visible again after this.
RELEASE_S = 1.0
# How long an answer may take beyond the time the broker holds a pop.
ANSWER_S = 3.0

_POLLING_FULL, _POLLING_TIMEOUT = 209, 210
_POP_FROM_LATEST = "1"


class Popped(NamedTuple):
    """One message for a consumer, and its receipt."""

    message: Proto
    receipt: Receipt


class Receiver:
    """Pops for clients. Tasks of ``background`` make the messages of disconnected clients visible again."""

    def __init__(self, background: Background) -> None:
        self._background = background

    async def receive(
        self, upstream: Upstream, request: Proto, *, fifo: bool, invisible_s: float, poll_s: float, max_attempts: int
    ) -> list[Popped]:
        """Return the messages of one pop, which then await acknowledgement; none when there were none in time."""
        topic, group = topic_of(request.message_queue.topic), request.group.name
        broker_name = request.message_queue.broker.name
        if not broker_name:
            broker_name = next(iter((await upstream.route(topic)).masters), "")
        address = await upstream.master(topic, broker_name)
        expression = request.filter_expression
        invisible_ms = round(invisible_s * 1000)
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": "-1",
            "maxMsgNums": str(min(max(request.batch_size, 1), MAX_BATCH)),
            "invisibleTime": str(invisible_ms),
            "pollTime": str(round(poll_s * 1000)),
            "bornTime": str(upstream.clock.time_ms()),
            "initMode": _POP_FROM_LATEST,
            "expType": "SQL92" if expression.type == FILTER_SQL else "TAG",
            "exp": expression.expression or "*",
            "order": "true" if fifo else "false",
        }
        if request.attempt_id:
            fields["attemptId"] = request.attempt_id
        asked = upstream.answer(address, PopCode.POP_MESSAGE, ext=fields, topic=topic, timeout_s=poll_s + ANSWER_S)
        pop = self._background.spawn(asked, f"a pop of {topic}", awaited=True)
        try:
            answer = await share(pop, lambda: ClientClosed("the endpoint stops"))
        except asyncio.CancelledError:
            # The client has disconnected; what the broker hands out now would stay invisible for the whole time.
            self._background.spawn(self._put_back(upstream, pop, topic, group, broker_name), f"messages of {topic} that nobody takes")
            raise
        found = read_pop(answer, address, topic, broker_name)
        taken: list[Popped] = []
        tags = None if expression.type == FILTER_SQL else tags_of(expression.expression)
        for message, receipt, before in found:
            if tags is not None and message.tag not in tags:
                await self.acknowledge(upstream, group, topic, receipt)
                continue
            shown = delivered(message, topic, receipt, receipt.invisible_ms, before)
            if shown.system_properties.delivery_attempt > max_attempts:
                await self.bury(upstream, group, topic, receipt, shown.system_properties.message_id)
                continue
            taken.append(Popped(shown, receipt))
        return taken

    async def _put_back(self, upstream: Upstream, pop: "asyncio.Task[Command]", topic: str, group: str, broker_name: str) -> None:
        try:
            found = read_pop(await pop, "", topic, broker_name)
        except SprocketError:
            return
        await self.release(upstream, group, topic, [receipt for _, receipt, _ in found])

    async def release(self, upstream: Upstream, group: str, topic: str, receipts: list[Receipt]) -> None:
        """Make messages visible again that were not delivered to their client."""
        for receipt in receipts:
            try:
                await self.change(upstream, group, topic, receipt, RELEASE_S)
            except SprocketError as e:
                log.debug("a message of %s stays invisible until its invisible time has passed: %s", topic, e)

    async def acknowledge(self, upstream: Upstream, group: str, topic: str, receipt: Receipt) -> None:
        """Acknowledge a message at its broker. Raises Refused when it has become visible again meanwhile."""
        self._check(upstream, receipt)
        address = await upstream.master(topic, receipt.broker_name)
        await upstream.ask(address, PopCode.ACK_MESSAGE, ext=_fields(group, topic, receipt), topic=topic)

    async def change(
        self, upstream: Upstream, group: str, topic: str, receipt: Receipt, invisible_s: float, *, suspend: bool = False
    ) -> Receipt:
        """Make a message visible again ``invisible_s`` from now, and return its new receipt."""
        self._check(upstream, receipt)
        address = await upstream.master(topic, receipt.broker_name)
        fields = {**_fields(group, topic, receipt), "invisibleTime": str(round(invisible_s * 1000))}
        if suspend:
            fields["suspend"] = "true"
        answer = await upstream.ask(address, PopCode.CHANGE_MESSAGE_INVISIBLETIME, ext=fields, topic=topic)
        try:
            popped, invisible, revive = (int((answer.ext or {})[name]) for name in ("popTime", "invisibleTime", "reviveQid"))
        except (KeyError, ValueError):
            raise RemoteProtocolError(f"broker {address} has changed an invisible time and answered without the new one") from None
        return receipt.renewed(popped, invisible, revive)

    async def bury(self, upstream: Upstream, group: str, topic: str, receipt: Receipt, msg_id: str) -> None:
        """Make a message a dead letter of its group."""
        address = await upstream.master(topic, receipt.broker_name)
        header = SendBack(
            offset=receipt.log_offset,
            group=group,
            delay_level=-1,
            origin_msg_id=msg_id,
            origin_topic=receipt.topic(group, topic),
            max_reconsume_times=0,
            broker_name=receipt.broker_name,
        )
        await upstream.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, ext=to_ext(header), topic=topic)
        await self.acknowledge(upstream, group, topic, receipt)

    @staticmethod
    def _check(upstream: Upstream, receipt: Receipt) -> None:
        if receipt.expires_ms < upstream.clock.time_ms():
            raise Refused(Code.INVALID_RECEIPT_HANDLE, "the receipt handle has expired: the message is delivered again")


def _fields(group: str, topic: str, receipt: Receipt) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": receipt.topic(group, topic),
        "queueId": str(receipt.queue_id),
        "extraInfo": receipt.extra_info,
        "offset": str(receipt.queue_offset),
        "bname": receipt.broker_name,
    }


def read_pop(answer: Command, address: str, topic: str, broker_name: str) -> list[tuple[ReceivedMessage, Receipt, int | None]]:
    """Return the messages of an answer to a pop, each with its receipt and the deliveries that the broker counted.

    Raises Refused when too many pops wait at the broker, and the error of an answer that refuses the pop.
    """
    if answer.code in (_POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
        return []
    if answer.code == _POLLING_FULL:
        raise Refused(Code.TOO_MANY_REQUESTS, "too many receive calls wait at the broker: use fewer, or longer polling")
    if answer.code != ResponseCode.SUCCESS:
        raise response_error(answer, address, topic)
    fields = answer.ext or {}
    try:
        popped, invisible, revive = (int(fields[name]) for name in ("popTime", "invisibleTime", "reviveQid"))
        starts = offsets_of(fields.get("startOffsetInfo", ""))
        deliveries = deliveries_of(fields.get("orderCountInfo", ""))
        found = []
        for message in decode_records(answer.body):
            if message.is_inner:
                raise Refused(Code.NOT_IMPLEMENTED, f"the broker of topic {topic!r} pops whole batches of its batch queues")
            place = (message.queue_id, message.queue_offset)
            if POP_CK in message.properties:
                receipt = Receipt.parse(f"{message.properties[POP_CK]} {message.commitlog_offset}")
            else:
                kind = kind_of(message.topic)
                start = starts.get((kind, message.queue_id), [message.queue_offset])[0]
                receipt = Receipt(start, popped, invisible, revive, kind, broker_name, *place, message.commitlog_offset)
            found.append((message, receipt, deliveries.get(place)))
    except (KeyError, ValueError, ProtocolError) as e:
        raise RemoteProtocolError(f"broker {address} has answered a pop with something else: {e}") from None
    return found


def tags_of(expression: str) -> frozenset[str | None] | None:
    """Return the tags that an expression names; None when it matches every message."""
    tags = [tag for part in expression.split("||") if (tag := part.strip())]
    return None if not tags or tags == ["*"] else frozenset(tags)


def times_of(request: Proto, left_s: float | None) -> tuple[float, float]:
    """Return how long a receive call may wait and for how long its messages are invisible, in seconds. Raises Refused."""
    poll_s = seconds_of(request.long_polling_timeout) if request.HasField("long_polling_timeout") else MAX_POLL_S
    poll_s = min(max(poll_s, MIN_POLL_S), MAX_POLL_S)
    if left_s is not None:
        if left_s < MIN_POLL_S:
            raise Refused(Code.ILLEGAL_POLLING_TIME, f"the call ends in {left_s:.1f} s: give it at least {MIN_POLL_S:g} s")
        poll_s = min(poll_s, max(left_s - 0.5, MIN_POLL_S / 2))
    if request.auto_renew or not request.HasField("invisible_duration"):
        return poll_s, 0.0
    return poll_s, checked_invisible(seconds_of(request.invisible_duration))


def checked_invisible(seconds: float) -> float:
    """Return the invisible time that a client asks for. Raises Refused."""
    if not MIN_INVISIBLE_S <= seconds <= MAX_INVISIBLE_S:
        raise Refused(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"messages are invisible for {MIN_INVISIBLE_S:g} to {MAX_INVISIBLE_S:g} s, not {seconds:g} s",
        )
    return seconds
