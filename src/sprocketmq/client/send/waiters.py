"""Waiters for the outcome of a send: a future of a task or of a thread, or a callback."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import InvalidStateError as BlockingStateError

import msgspec

from sprocketmq.net.loops import ends_program
from sprocketmq.protocol.message import Message, Receipt, SendResult

log = logging.getLogger(__name__)

OnSent = Callable[[SendResult | None, BaseException | None], object]


class WithMessage(msgspec.Struct, eq=False):
    """A waiter with its message, for producers whose hooks look at the messages of a batch."""

    waiter: asyncio.Future[SendResult] | Future[SendResult] | OnSent
    message: Message

    def set_result(self, result: SendResult) -> None:
        """Deliver a result."""
        give_result(self.waiter, result)

    def set_exception(self, error: BaseException) -> None:
        """Deliver an error."""
        give_error(self.waiter, error)


Waiter = asyncio.Future[SendResult] | Future[SendResult] | OnSent | WithMessage

_NOT_WAITING = (asyncio.InvalidStateError, BlockingStateError)


def give_result(waiter: Waiter, result: SendResult) -> None:
    """Give one waiter its result. An exception raised by a callback is logged."""
    if callable(waiter):
        try:
            waiter(result, None)
        except BaseException as e:  # noqa: BLE001 - logged, or raised
            _failed(e)
    else:
        try:
            waiter.set_result(result)
        except _NOT_WAITING:
            _notify_cancelled(waiter)
        except AttributeError:  # the callback is not callable, which ``submit`` does not check, to save time
            log.exception("the callback of a sent message cannot be called")
        except BaseException as e:  # noqa: BLE001 - of a callback of a blocking future, which catches Exception only
            _failed(e)


def give_results(waiters: Sequence[Waiter], receipt: Receipt) -> None:
    """Give each waiter the result of its own message. An exception raised by a callback is logged and affects no other waiter."""
    for index, waiter in enumerate(waiters):
        give_result(waiter, SendResult(receipt, index))


def give_errors(waiters: Sequence[Waiter], error: BaseException) -> None:
    """Give each waiter an error of the same type with the same data, as tasks that raise one object would share its traceback."""
    if len(waiters) == 1:
        give_error(waiters[0], error)
        return
    for waiter in waiters:
        give_error(waiter, copy_error(error))


def give_error(waiter: Waiter, error: BaseException) -> None:
    """Give one waiter an error. A callback is called in the loop's next turn, so that it may send again without recursion."""
    if callable(waiter):
        asyncio.get_running_loop().call_soon(_call_back, waiter, error)
        return
    try:
        waiter.set_exception(error)
    except _NOT_WAITING:
        _notify_cancelled(waiter)
    except AttributeError:
        log.exception("the callback of a sent message cannot be called")
    except BaseException as e:  # noqa: BLE001
        _failed(e)


def copy_error(error: BaseException) -> BaseException:
    """Return an error of the same type with the same data and cause."""
    kind = type(error)
    copy = kind.__new__(kind)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy


def _call_back(callback: OnSent, error: BaseException) -> None:
    try:
        callback(None, error)
    except BaseException as e:  # noqa: BLE001 - logged, or raised
        _failed(e)


def _failed(error: BaseException) -> None:
    if ends_program(error):
        raise error
    log.error("the callback of a sent message raised", exc_info=error)


def _notify_cancelled(waiter: asyncio.Future[SendResult] | Future[SendResult] | WithMessage) -> None:
    """Wake threads that wait for several futures, one of which was cancelled."""
    if isinstance(waiter, Future) and waiter.cancelled():
        waiter.set_running_or_notify_cancel()
