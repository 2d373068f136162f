"""The producer of transactions for blocking code."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from sprocketmq import client
from sprocketmq.client.send.transaction_checks import CHECKS_AT_ONCE
from sprocketmq.client.send.transactions import CHECK_TIMEOUT_S, END_TIMEOUT_S
from sprocketmq.client.send.transactions import Transaction as AsyncTransaction
from sprocketmq.errors import ConfigError
from sprocketmq.net.tasks import share
from sprocketmq.protocol.message import Message, SendResult, TransactionOutcome
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.sync.faces import failure_of
from sprocketmq.sync.producer import Producer


class Transaction:
    """``sprocketmq.Transaction`` for blocking code."""

    def __init__(self, producer: "TransactionProducer", transaction: AsyncTransaction) -> None:
        self._producer = producer
        self._transaction = transaction

    def __repr__(self) -> str:
        return repr(self._transaction).replace("<", "<sync.", 1)

    @property
    def id(self) -> str:
        """The id of the transaction, and of its message."""
        return self._transaction.id

    @property
    def message(self) -> Message:
        """The message."""
        return self._transaction.message

    @property
    def outcome(self) -> TransactionOutcome:
        """The outcome; UNKNOWN until it is committed or rolled back."""
        return self._transaction.outcome

    @property
    def result(self) -> SendResult:
        """Where the half message is stored."""
        return self._transaction.result

    def commit(self, *, timeout_s: float = END_TIMEOUT_S) -> None:
        """Make the message visible to consumers. Raises what the async ``commit`` raises."""
        self._producer.wait_for(partial(self._transaction.commit, timeout_s=timeout_s))

    def rollback(self, *, timeout_s: float = END_TIMEOUT_S) -> None:
        """Forget the message. Raises what the async ``rollback`` raises."""
        self._producer.wait_for(partial(self._transaction.rollback, timeout_s=timeout_s))

    def defer(self) -> None:
        """Leave the outcome to the check: the block of ``transaction`` then ends without telling one."""
        self._transaction.defer()


class TransactionProducer(Producer):
    """``sprocketmq.TransactionProducer`` for blocking code; ``check`` is called in a thread, and is a plain function.

    A call that goes on after ``check_timeout_s`` keeps its thread, of which there are 16: while all are taken, nothing is checked.
    """

    def __init__(
        self,
        group: str,
        check: Callable[[ReceivedMessage], TransactionOutcome],
        *,
        check_timeout_s: float = CHECK_TIMEOUT_S,
        **options: Any,
    ) -> None:
        if not callable(check):
            raise ConfigError(f"check must be a function of a message that returns a TransactionOutcome, not {check!r}")
        pool = ThreadPoolExecutor(CHECKS_AT_ONCE, thread_name_prefix="sprocketmq-check")
        taken = 0

        def call(message: ReceivedMessage) -> TransactionOutcome:
            try:
                return check(message)
            except BaseException as e:  # noqa: BLE001
                raise failure_of(e, "the check", "itself")  # noqa: B904

        async def in_thread(message: ReceivedMessage) -> TransactionOutcome:
            nonlocal taken
            if taken >= CHECKS_AT_ONCE:
                raise RuntimeError(f"all {CHECKS_AT_ONCE} threads are taken by checks that have not returned")
            taken += 1
            running = asyncio.get_running_loop().run_in_executor(pool, call, message)
            running.add_done_callback(done)
            return await share(running, lambda: RuntimeError("the producer was closed"))

        def done(call: "asyncio.Future[TransactionOutcome]") -> None:
            nonlocal taken
            taken -= 1
            if not call.cancelled():
                call.exception()  # a call that took too long has no waiter any more

        self._pool = pool
        self._transactions = client.TransactionProducer(group, in_thread, check_timeout_s=check_timeout_s, **options)
        self._wrap(self._transactions)

    def begin(self, message: Message, *, check_after_s: float | None = None, timeout_s: float | None = None) -> Transaction:
        """Store the half message of a transaction, and return the transaction. Raises what the async ``begin`` raises."""
        self._open_thread()
        begin = partial(self._transactions.begin, message, check_after_s=check_after_s, timeout_s=timeout_s)
        return Transaction(self, self._call(begin))

    @contextmanager
    def transaction(self, message: Message, *, check_after_s: float | None = None, timeout_s: float | None = None) -> Iterator[Transaction]:
        """Begin a transaction, commit it when the block ends, and roll it back when the block raises; see the async ``transaction``."""
        self._open_thread()
        context = self._transactions.transaction(message, check_after_s=check_after_s, timeout_s=timeout_s)
        transaction = Transaction(self, self._call(context.__aenter__))
        try:
            yield transaction
        except BaseException as e:
            self._call(partial(context.__aexit__, type(e), e, e.__traceback__))
            raise
        self._call(partial(context.__aexit__, None, None, None))

    def wait_for(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine that a method of one of this producer's transactions returns, and wait until it ends."""
        self._call(make)

    def _leave(self) -> None:
        super()._leave()
        self._pool.shutdown(wait=False, cancel_futures=True)
