"""The producer of transactions: messages that consumers get when the program's own work is done (docs/guide/transactions.md)."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sprocketmq.client.arguments import check_number
from sprocketmq.client.hook_calls import HookCalls
from sprocketmq.client.instance import Instance, response_error
from sprocketmq.client.send.encoding import MessageEncoder
from sprocketmq.client.send.outbox import MASTER_PAUSE_S, Outbox
from sprocketmq.client.send.producer import Producer
from sprocketmq.client.send.queue_choice import lone_queue_of
from sprocketmq.client.send.request_reply import with_properties
from sprocketmq.client.send.requests import SendRequest
from sprocketmq.client.send.transaction_checks import Check, TransactionChecks
from sprocketmq.errors import (
    BrokerError,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    InvalidMessage,
    MaybeStoredError,
    NoMaster,
    RequestTimeout,
    SprocketError,
    TransactionEnded,
    TransactionNotBegun,
)
from sprocketmq.net.client import Connection
from sprocketmq.protocol.codes import SYSFLAG_TRANSACTION_PREPARED, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import EndTransaction
from sprocketmq.protocol.ids import parse_offset_msg_id
from sprocketmq.protocol.message import Message, Receipt, SendResult, SendStatus, TransactionOutcome, unsendable
from sprocketmq.protocol.properties import CHECK_IMMUNITY, PRODUCER_GROUP, TRAN_MSG

log = logging.getLogger(__name__)

# How long the check of a transaction may take.
CHECK_TIMEOUT_S = 30.0
MAX_CHECK_AFTER_S = 3 * 86_400.0
END_TIMEOUT_S = 3.0
# A block that raises does not wait for longer: the broker asks about what it has not heard.
ROLLBACK_TIMEOUT_S = 1.0


class Transaction:
    """A transaction whose half message is stored: no consumer sees it before ``commit``.

    ``outcome`` is UNKNOWN until it is told. A transaction whose outcome is never told is asked about by the broker (``check``).
    """

    def __init__(self, group: str, instance: Instance, message: Message, receipt: Receipt) -> None:
        self._group = group
        self._instance = instance
        self.message = message
        self._receipt = receipt
        self.outcome: TransactionOutcome = TransactionOutcome.UNKNOWN
        self.deferred: bool = False

    def __repr__(self) -> str:
        return f"<Transaction {self.id} to {self._receipt.topic!r}, {'deferred' if self.deferred else self.outcome.name}>"

    @property
    def id(self) -> str:
        """The id of the transaction, and of its message."""
        return self._receipt.msg_ids[0]

    @property
    def result(self) -> SendResult:
        """Where the half message is stored; ``queue_offset`` is that in the broker's queue of halves."""
        return SendResult(self._receipt, 0)

    async def commit(self, *, timeout_s: float = END_TIMEOUT_S) -> None:
        """Let consumers have the message.

        Raises TransactionEnded when an outcome was told before; BrokerError or another error of the broker when it refuses; ConnectFailed
        or NoMaster when none heard it within ``timeout_s``; and MaybeStoredError when it does not answer: whether it has heard is unknown,
        and it asks if not (``check``).
        """
        await self._end(TransactionOutcome.COMMIT, timeout_s)

    async def rollback(self, *, timeout_s: float = END_TIMEOUT_S) -> None:
        """Forget the message; raises as ``commit`` does."""
        await self._end(TransactionOutcome.ROLLBACK, timeout_s)

    def defer(self) -> None:
        """Leave the outcome to the check: the block of ``transaction`` then ends without telling one."""
        self._check_open()
        self.deferred = True

    def _check_open(self) -> None:
        if self.outcome is not TransactionOutcome.UNKNOWN:
            raise TransactionEnded(self.id, self.outcome.name)

    async def _end(self, outcome: TransactionOutcome, timeout_s: float) -> None:
        check_number("timeout_s", timeout_s, over=0)
        self._check_open()
        self.outcome = outcome
        receipt = self._receipt
        header = EndTransaction(
            producer_group=self._group,
            half_offset=receipt.queue_offset,
            commit_log_offset=parse_offset_msg_id(receipt.offset_msg_ids)[2],
            commit_or_rollback=int(outcome),
            msg_id=self.id,
            topic=receipt.topic,
            transaction_id=self.id,
            broker_name=receipt.broker_name,
        )
        try:
            await self._tell(header, timeout_s)
        except (RequestTimeout, ConnectionLost) as e:
            asks = f"broker {receipt.broker_name} has not answered to the {outcome.name.lower()} of transaction {self.id}"
            raise MaybeStoredError(f"{asks}: if it has not heard of it, it asks the check", cause=e) from e
        except SprocketError as e:
            if not isinstance(e, BrokerError):
                self.outcome = TransactionOutcome.UNKNOWN
            raise

    async def _tell(self, header: EndTransaction, timeout_s: float) -> None:
        """Tell the master of the broker that has the half message. Until it has one that hears, its route is looked up again."""
        instance, topic, name = self._instance, self._receipt.topic, self._receipt.broker_name
        deadline = instance.clock.monotonic() + timeout_s
        route = await instance.route(topic)
        while True:
            left = deadline - instance.clock.monotonic()
            failure: SprocketError = NoMaster([name])
            try:
                if (address := route.masters.get(name)) is not None:
                    # Not tried again once it was heard: Apache's broker would store a message twice that is committed twice.
                    answer = await instance.ask(address, RequestCode.END_TRANSACTION, ext=to_ext(header), timeout_s=max(left, 0.001))
                    if answer.code == ResponseCode.SUCCESS:
                        return
                    if answer.code != ResponseCode.SLAVE_NOT_AVAILABLE:  # that is a slave now, and has done nothing
                        raise response_error(answer, address, topic)
            except ConnectFailed as e:
                failure = e
            if left <= MASTER_PAUSE_S:
                raise failure
            await instance.timers.sleep(MASTER_PAUSE_S)
            route = await instance.fetch_route(topic) or route


class TransactionProducer(Producer):
    """A producer that also sends messages in transactions: consumers get them when, and only if, the program has committed.

    ``check`` is called with the message of a transaction that has had no outcome for a while, for instance because the program that began
    it has died: any producer of the group may be asked. It returns a TransactionOutcome, or a coroutine of one, and is asked again later
    when it returns UNKNOWN, raises, or takes longer than ``check_timeout_s``. At most 16 calls run at a time.

    Takes all arguments of ``Producer``.

    Example::

        from sprocketmq import Message, TransactionOutcome, TransactionProducer

        paid = set()

        def check(message):
            return TransactionOutcome.COMMIT if message.keys[0] in paid else TransactionOutcome.ROLLBACK

        async with TransactionProducer("shop", check, namesrv="127.0.0.1:9876") as producer:
            async with producer.transaction(Message("payments", b"3 apples", keys=["order-17"])) as transaction:
                paid.add("order-17")  # what has to happen together with the message
            print(transaction.outcome)
    """

    def __init__(self, group: str, check: Check, *, check_timeout_s: float = CHECK_TIMEOUT_S, **options: Any) -> None:
        if not callable(check):
            raise ConfigError(f"check must be a function of a message that returns a TransactionOutcome, not {check!r}")
        check_number("check_timeout_s", check_timeout_s, over=0)
        self._check = check
        self._check_timeout_s = check_timeout_s
        super().__init__(group, **options)

    def _brokers_requests(self) -> Callable[[Connection, Command], None]:
        otherwise = super()._brokers_requests()
        self._checks = TransactionChecks(self._check, self.group, timeout_s=self._check_timeout_s, otherwise=otherwise, clock=self._clock)
        return self._checks.handle

    def _prepare(self, local_ip: str) -> None:
        super()._prepare(local_ip)
        self._checks.start(self._instance)
        self._halves = Halves(self.group, self._instance, self._outbox, self._encoder, self._hooks)

    async def begin(self, message: Message, *, check_after_s: float | None = None, timeout_s: float | None = None) -> Transaction:
        """Store the half message of a transaction, and return the transaction, whose outcome is then to be told.

        The broker asks for an outcome that it does not hear for its ``transaction_timeout_s`` (6 s), or for ``check_after_s``, in whole
        seconds. Raises what ``send`` raises; InvalidMessage for a message with a delay; TransactionNotBegun when it is not stored as safely
        as its broker was asked to.
        """
        timeout_s = self._checked_timeout(timeout_s)
        if check_after_s is not None:
            check_number("check_after_s", check_after_s, over=0, most=MAX_CHECK_AFTER_S)
        try:
            if self._hooks is not None:
                message = self._hooks.created(message)
            if message.delay_level or message.deliver_at_ms is not None:
                raise InvalidMessage("a message in a transaction cannot have a delay: its consumers get it at the commit")
            self._publishers.check(message.topic, lone_queue_of(message))
        except (AttributeError, TypeError, ConfigError) as e:
            raise unsendable(message, e) from None
        if self._room.full:
            await self._wait_for_room(timeout_s)
        await self._halves.introduce(message.topic, timeout_s)
        return await self._halves.send(message, timeout_s, check_after_s)

    @asynccontextmanager
    async def transaction(
        self, message: Message, *, check_after_s: float | None = None, timeout_s: float | None = None
    ) -> AsyncIterator[Transaction]:
        """Begin a transaction, commit it when the block ends, and roll it back when the block raises.

        A block may tell the outcome itself, or leave it to the check (``defer``). Raises what ``begin`` and ``commit`` raise; a rollback
        that fails is only logged, as the block's own error counts, and the broker asks.
        """
        transaction = await self.begin(message, check_after_s=check_after_s, timeout_s=timeout_s)
        try:
            yield transaction
        except BaseException:
            await _roll_back(transaction)
            raise
        if transaction.outcome is TransactionOutcome.UNKNOWN and not transaction.deferred:
            await transaction.commit()


async def _roll_back(transaction: Transaction) -> None:
    if transaction.outcome is not TransactionOutcome.UNKNOWN or transaction.deferred:
        return
    try:
        await transaction.rollback(timeout_s=ROLLBACK_TIMEOUT_S)
    except SprocketError as e:
        log.warning("transaction %s is not rolled back, the broker asks about it: %s", transaction.id, e)


class Halves:
    """Sends the half messages of one producer."""

    def __init__(self, group: str, instance: Instance, outbox: Outbox, encoder: MessageEncoder, hooks: HookCalls | None) -> None:
        self._group = group
        self._instance = instance
        self._outbox = outbox
        self._encoder = encoder
        self._hooks = hooks
        # The brokers at which this producer is registered, by address, and the connection used.
        self._known: dict[str, Connection] = {}

    async def introduce(self, topic: str, timeout_s: float) -> None:
        """Register this producer at the brokers of a topic before its first half message, because they check with registered producers."""
        instance = self._instance
        route = instance.routes.get(topic) or (await self._outbox.open(topic, timeout_s)).route
        peek = instance.brokers.peek
        if all(address in self._known and peek(address) is self._known[address] for address in route.masters.values()):
            return
        try:
            async with asyncio.timeout(timeout_s):
                await instance.heartbeat_now()
        except TimeoutError:
            return  # the next round of heartbeats registers it
        for address in route.masters.values():
            conn = peek(address)
            if conn is not None:
                self._known[address] = conn

    async def send(self, message: Message, timeout_s: float, check_after_s: float | None) -> Transaction:
        """Send a half message, and return its transaction."""
        uniq_key, properties, body, sys_flag = self._encoder.single(message)
        added = {TRAN_MSG: "true", PRODUCER_GROUP: self._group}
        if check_after_s is not None:
            added[CHECK_IMMUNITY] = str(math.ceil(check_after_s))
        text = with_properties(properties, added)
        request = SendRequest(message.topic, lone_queue_of(message), body, text, uniq_key, timeout_s, self._outbox)
        request.in_order = False
        request.sys_flag, request.flag = sys_flag | SYSFLAG_TRANSACTION_PREPARED, message.flag
        room, request.size = self._outbox.room, len(message.body)
        room.messages += 1
        room.bytes += request.size
        if self._hooks is not None:
            request.messages = (message,)
        receipt = await self._outbox.deliver(request)
        transaction = Transaction(self._group, self._instance, message, receipt)
        if receipt.status is not SendStatus.SEND_OK:
            await _roll_back(transaction)
            raise TransactionNotBegun(uniq_key, receipt.status.name)
        return transaction
