"""Messages from clients to brokers: sends, ends of transactions, recalls; and brokers' checks of unfinished transactions."""

import logging
from itertools import count
from typing import NamedTuple, Self

import msgspec

from sprocketmq.client.instance import response_error
from sprocketmq.client.routes import Route
from sprocketmq.client.send.send_header import HEADER, header_prefix
from sprocketmq.errors import ProtocolError, RemoteProtocolError, SprocketError
from sprocketmq.events import event
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.ids import parse_offset_msg_id
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.properties import SHARDING_KEY, TIMER_DELIVER_MS, encode_properties
from sprocketmq.protocol.recall import RecallHandle
from sprocketmq.protocol.records import ReceivedMessage, decode_records
from sprocketmq.proxy.clients import Clients
from sprocketmq.proxy.codes import COMMIT, FROM_SERVER_CHECK, OK, ROLLBACK, Code, MessageType, Refused, code_of_broker, status, status_of
from sprocketmq.proxy.messages import (
    TRANSACTION_ID,
    body_of,
    check_type,
    delivered,
    properties_of,
    queue_of_group,
    topic_of,
    type_of,
    types_of,
)
from sprocketmq.proxy.receipts import NORMAL, Receipt
from sprocketmq.proxy.schema import Proto, RecallMessageResponse, SendMessageResponse, SendResultEntry, TelemetryCommand
from sprocketmq.proxy.upstream import Upstream

log = logging.getLogger(__name__)

MAX_MESSAGES = 1_000
SEND_TIMEOUT_S = 3.0

# Requests to brokers, and one from them.
SEND_MESSAGE_V2, END_TRANSACTION, CHECK_TRANSACTION_STATE, RECALL_MESSAGE = 310, 37, 39, 370
# Bits of a sysFlag.
_TRANSACTION_PREPARED, _TRANSACTION_COMMIT, _TRANSACTION_ROLLBACK = 4, 8, 12
_STORED = (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)


class Transaction(NamedTuple):
    """The place of a transaction's half message; clients carry it as text, so that the endpoint keeps no state."""

    broker_name: str
    half_offset: int
    log_offset: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a transaction id from a client. Raises Refused."""
        broker_name, _, places = text.rpartition("@")
        half, _, log_offset = places.partition("-")
        if not broker_name or not half.isdecimal() or not log_offset.isdecimal() or len(places) > 40:
            raise Refused(Code.INVALID_TRANSACTION_ID, "this is not a transaction id: give it back as the send returned it")
        return cls(broker_name, int(half), int(log_offset))

    def __str__(self) -> str:
        return f"{self.broker_name}@{self.half_offset}-{self.log_offset}"


class Sender:
    """Sends for clients. ``clients`` are asked about transactions that were not ended."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._turn = count()

    async def send(self, upstream: Upstream, request: Proto) -> Proto:
        """Send the messages of a request, one after the other, and answer with an entry for each."""
        if not request.messages or len(request.messages) > MAX_MESSAGES:
            raise Refused(Code.BAD_REQUEST, f"a request has 1 to {MAX_MESSAGES} messages")
        topic = topic_of(request.messages[0].topic)
        if any(message.topic != request.messages[0].topic for message in request.messages):
            raise Refused(Code.BAD_REQUEST, "all messages of a request go to one topic")
        prepared = []
        allowed = types_of((await upstream.topic_config(topic)).attributes)
        for message in request.messages:
            pairs = properties_of(message, topic)
            check_type(topic, type_of(pairs), allowed)
            prepared.append((pairs, body_of(message), message))
        route = await upstream.route(topic)
        entries = []
        for pairs, body, message in prepared:
            entries.append(await self._send_one(upstream, route, pairs, body, message))
        codes = {entry.status.code for entry in entries}
        outcome = entries[0].status if len(codes) == 1 else status(Code.MULTIPLE_RESULTS)
        return SendMessageResponse(status=outcome, entries=entries)

    async def _send_one(self, upstream: Upstream, route: Route, pairs: dict[str, str], body: bytes, message: Proto) -> Proto:
        kind = type_of(pairs)
        try:
            queues = route.publish_queues
            route.check_writable()
            queue = queue_of_group(pairs[SHARDING_KEY], queues) if SHARDING_KEY in pairs else queues[next(self._turn) % len(queues)]
            response = await self._store(upstream, route, queue, pairs, body, kind)
        except SprocketError as e:
            return SendResultEntry(status=status_of(e), message_id=message.system_properties.message_id)
        fields = response.ext or {}
        entry = SendResultEntry(
            status=OK if response.code == ResponseCode.SUCCESS else status(code_of_broker(response.code), response.remark or ""),
            message_id=message.system_properties.message_id,
            offset=int(fields.get("queueOffset") or 0),
            recall_handle=fields.get("recallHandle") or "",
        )
        if kind is MessageType.TRANSACTION:
            _, _, log_offset = parse_offset_msg_id(fields.get("msgId", ""))
            entry.transaction_id = str(Transaction(queue.broker_name, entry.offset, log_offset))
        return entry

    async def _store(
        self, upstream: Upstream, route: Route, queue: MessageQueue, pairs: dict[str, str], body: bytes, kind: MessageType
    ) -> Command:
        topic = route.topic
        flag = _TRANSACTION_PREPARED if kind is MessageType.TRANSACTION else 0
        text = msgspec.json.encode(encode_properties(pairs).decode())
        ext = HEADER % (header_prefix(topic, queue, batch=False), flag, upstream.clock.time_ms(), 0, text)
        if kind is MessageType.TRANSACTION:
            upstream.produces(topic)
        address = route.masters[queue.broker_name]
        response = await upstream.answer(address, SEND_MESSAGE_V2, ext=ext, body=body, topic=topic, timeout_s=SEND_TIMEOUT_S)
        if response.code in _STORED:
            return response
        if response.code == ResponseCode.MESSAGE_ILLEGAL and TIMER_DELIVER_MS in pairs:
            raise Refused(Code.ILLEGAL_DELIVERY_TIME, response.remark or "the broker does not take this delivery time")
        raise response_error(response, address, topic)

    # --- transactions ---

    async def end(self, upstream: Upstream, request: Proto) -> None:
        """Commit a transaction or roll it back. Returns when the request to the broker has been sent."""
        topic = topic_of(request.topic)
        transaction = Transaction.parse(request.transaction_id)
        if request.resolution not in (COMMIT, ROLLBACK):
            raise Refused(Code.BAD_REQUEST, "the resolution of a transaction is COMMIT or ROLLBACK")
        address = await upstream.master(topic, transaction.broker_name)
        fields = {
            "topic": topic,
            "producerGroup": topic,
            "tranStateTableOffset": str(transaction.half_offset),
            "commitLogOffset": str(transaction.log_offset),
            "commitOrRollback": str(_TRANSACTION_COMMIT if request.resolution == COMMIT else _TRANSACTION_ROLLBACK),
            "fromTransactionCheck": "true" if request.source == FROM_SERVER_CHECK else "false",
            "msgId": request.message_id,
            "transactionId": request.message_id,
            "bname": transaction.broker_name,
        }
        await upstream.oneway(address, END_TRANSACTION, ext=fields)

    def check(self, command: Command, user: str) -> None:
        """Forward a broker's check of an unfinished transaction to a producer of its topic; brokers ask again."""
        fields = command.ext or {}
        try:
            message = decode_records(command.body)[0]
            half, log_offset = int(fields.get("tranStateTableOffset", "")), int(fields.get("commitLogOffset", ""))
        except (ProtocolError, ValueError, IndexError) as e:
            event(log, logging.WARNING, "transaction_check_unreadable", reason=e)
            return
        transaction = Transaction(fields.get("bname") or message.broker_name, half, log_offset)
        command_to_client = TelemetryCommand()
        recover = command_to_client.recover_orphaned_transaction_command
        recover.transaction_id = str(transaction)
        recover.message.CopyFrom(_half(message, transaction))
        for producer in self._clients.producers(message.topic, user):
            if producer.tell(command_to_client):
                return
        event(log, logging.INFO, "transaction_check_undelivered", topic=message.topic, reason="no producer of the topic is connected")

    # --- recalls ---

    async def recall(self, upstream: Upstream, request: Proto) -> Proto:
        """Take back a message that waits for its delivery time."""
        topic = topic_of(request.topic)
        check_type(topic, MessageType.DELAY, types_of((await upstream.topic_config(topic)).attributes))
        broker_name = _broker_of_handle(request.recall_handle, topic)
        address = await upstream.master(topic, broker_name)
        fields = {"topic": topic, "recallHandle": request.recall_handle, "producerGroup": topic, "bname": broker_name}
        response = await upstream.ask(address, RECALL_MESSAGE, ext=fields, topic=topic)
        return RecallMessageResponse(status=OK, message_id=(response.ext or {}).get("msgId", ""))


def _half(message: ReceivedMessage, transaction: Transaction) -> Proto:
    receipt = Receipt(0, 0, 0, 0, NORMAL, transaction.broker_name, message.queue_id, message.queue_offset, transaction.log_offset)
    shown = delivered(message, message.topic, receipt, 0, None)
    shown.system_properties.ClearField("receipt_handle")
    shown.system_properties.message_id = message.properties.get(TRANSACTION_ID) or message.msg_id
    return shown


def _broker_of_handle(handle: str, topic: str) -> str:
    """Return the broker that a recall handle names. Raises Refused."""
    try:
        parsed = RecallHandle.parse(handle)
    except RemoteProtocolError as e:
        raise Refused(Code.BAD_REQUEST, str(e)) from None
    if parsed.topic != topic:
        raise Refused(Code.BAD_REQUEST, f"this recall handle is not one of topic {topic!r}")
    return parsed.broker_name
