"""The one connection of a Python process to a RocketMQ cluster, shared by everything Spark runs in it."""

import atexit
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from sprocketmq.arrow.offsets import first_since
from sprocketmq.client import AdminClient, PullConsumer
from sprocketmq.client.consume.prepared_pulls import PreparedPulls
from sprocketmq.client.consume.pull import PULL_TIMEOUT_S
from sprocketmq.client.consume.pull_requests import ExpressionType, PullResult, pull_subscription
from sprocketmq.client.consume.replica_choice import ReadFrom
from sprocketmq.errors import (
    AccessRefused,
    BrokerError,
    ConfigError,
    NameserverUnavailable,
    NoBroker,
    RetriableError,
    SprocketError,
    TopicNotFound,
)
from sprocketmq.net.loops import LoopThread
from sprocketmq.net.tasks import Background, all_of
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_group, is_system_topic
from sprocketmq.spark.security import NO_OPTIONS, SecurityOptions
from sprocketmq.spark.source.offsets import Offsets

if TYPE_CHECKING:
    import asyncio

_R = TypeVar("_R")

# Filter of a topic's messages: ("TAG", "a || b") or ("SQL92", "price > 3"); None for all messages.
Filter = tuple[ExpressionType, str]
EVERYTHING: Filter = ("TAG", "*")

# Settings of the client that ``rocketmq.client.*`` may pass on.
CLIENT_OPTIONS = ("timeout_s",)

# Queues whose pull request (what all pulls of one queue share) is cached.
PULLED_QUEUES = 256

# Pause between attempts to find a nameserver.
NAMESERVER_PAUSE_S = 0.2


class TopicGone(TopicNotFound):
    """The brokers are reachable and the topic is not there: it was deleted."""


class FilterRefused(ConfigError):
    """A filter that is malformed, or that a broker does not accept."""


def client_settings(options: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Return the settings in ``options`` (pairs of CLIENT_OPTIONS and text). Raises ConfigError naming an invalid one.

    ``timeout_s``: seconds that the answer to one pull may take beyond the broker's hold time; 0.1 to 600.
    """
    settings = {"timeout_s": PULL_TIMEOUT_S}
    for name, text in options:
        if name not in settings:
            raise ConfigError(f"the client has no setting {name!r}; it has {', '.join(CLIENT_OPTIONS)}")
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0.1 <= value <= 600:
            raise ConfigError(f"rocketmq.client.{name}: {text!r} is not a number of seconds from 0.1 to 600")
        settings[name] = value
    return settings


def check_filter(filter: Filter | None) -> None:  # noqa: A002 - the option's word
    """Raise FilterRefused for a malformed filter, without asking a broker."""
    if filter is not None:
        kind, expression = filter
        try:
            pull_subscription("T", expression, kind)
        except ConfigError as e:
            raise FilterRefused(str(e)) from None


class ClusterAccess:
    """Queues, offsets and pulls of one cluster, for blocking code.

    The client runs on an event loop in its own thread, so pulls go on while the calling thread decodes. Any thread may call.
    Every method except ``pull`` waits for its answers, within the client's time limits; the requests of one call are sent together.
    Raises what the client raises. Lost connections are made again when needed, and routes are refreshed when a broker has moved. Only a
    cluster that moves to other nameserver addresses needs a new access object.
    """

    def __init__(
        self,
        nameserver: str,
        group: str,
        client_options: Iterable[tuple[str, str]] = (),
        security: SecurityOptions = NO_OPTIONS,
    ) -> None:
        self._timeout_s = client_settings(client_options)["timeout_s"]
        self._security = security
        found = security.resolve()
        self._consumer = PullConsumer(group, namesrv=nameserver, credentials=found.credentials, tls=found.tls or False)
        # Connects on first use: tasks never need it.
        self._admin = AdminClient(namesrv=nameserver, credentials=found.credentials, tls=found.tls or False)
        self._background = Background("Spark reader")
        # The cached pull requests. A task reads queues one after the other, so few are needed.
        self._prepare_pulls = lru_cache(maxsize=PULLED_QUEUES)(partial(_prepare_pulls, self._consumer, self._timeout_s))
        self.thread = LoopThread("sprocketmq-spark").start()
        try:
            self._run(self._consumer.start)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect and end the thread. Harmless when closed already."""
        if not self.thread.alive:
            return
        try:
            self.thread.run(self._end)
        finally:
            self.thread.stop()

    async def _end(self) -> None:
        await self._consumer.close()
        await self._admin.close()
        await self._background.close()

    # --- topics and queues ---

    def topics(self) -> list[str]:
        """Return all ordinary topics, sorted: without system, retry and dead-letter topics."""
        found = self._administer(self._admin.topics)
        return [name for name in found if not is_system_topic(name) and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))]

    def topic_exists(self, topic: str) -> bool:
        """Return whether a nameserver knows a route of ``topic``, retry and dead-letter topics included."""
        try:
            self._administer(lambda: self._admin.queues(topic))
        except (TopicNotFound, NoBroker):
            return False
        return True

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """Return the readable queues of ``topics``, in order. Raises TopicNotFound."""
        return sorted(queue for found in self._all(self._consumer.queues, topics) for queue in found)

    # --- offsets ---

    def earliest(self, queues: Iterable[MessageQueue]) -> Offsets:
        """Return the offset of the first message of each queue."""
        asked = list(queues)
        return dict(zip(asked, self._all(self._consumer.min_offset, asked), strict=True))

    def latest(self, queues: Iterable[MessageQueue]) -> Offsets:
        """Return the offset each queue's next message will get."""
        asked = list(queues)
        return dict(zip(asked, self._all(self._consumer.max_offset, asked), strict=True))

    def offsets_from_slave(self, queue: MessageQueue) -> bool:
        """Return whether a slave gave the last answer about offsets of ``queue``: it may lack messages that the master has."""
        return self._consumer.offsets_from_slave(queue)

    def at_time(self, queues: Sequence[MessageQueue], timestamp_ms: int) -> Offsets:
        """Return for each queue the offset of its first message stored at ``timestamp_ms`` or later, or its end."""
        latest = self.latest(queues)

        async def since(queue: MessageQueue) -> int:
            return await first_since(self._consumer, queue, timestamp_ms, latest[queue])

        return dict(zip(queues, self._all(since, queues), strict=True))

    def group_offsets(self, group: str, queues: Iterable[MessageQueue]) -> Offsets:
        """Return the committed offsets of a consumer group, for those of ``queues`` that have one."""
        check_group(group)
        asked = list(queues)

        async def of_topic(topic: str) -> dict[MessageQueue, int | None]:
            return await self._admin.committed(group, topic)

        known = self._administer_all(of_topic, sorted({queue.topic for queue in asked}))
        committed = {queue: offset for found in known for queue, offset in found.items()}
        return {queue: offset for queue in asked if (offset := committed.get(queue)) is not None}

    def commit_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit ``offsets`` for a consumer group and wait for the brokers. All queues are tried before an error is raised.

        Raises BrokerError for a group that a broker does not know. This access's own group is created by a pull, where brokers allow it.
        """
        check_group(group)

        async def commit(item: tuple[MessageQueue, int]) -> None:
            try:
                await self._admin.commit(group, *item)
            except BrokerError as e:
                if e.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST or group != self._consumer.group:
                    raise
                # A broker learns of a group by its first pull, and nothing of this queue was pulled yet.
                await self._consumer.pull(*item, max_messages=1, max_bytes=1)
                await self._admin.commit(group, *item)

        self._administer_all(commit, offsets.items())

    # --- messages ---

    def check_filter(self, queues: Iterable[MessageQueue], filter: Filter | None) -> None:  # noqa: A002
        """Ask each broker of ``queues`` to validate ``filter``. Raises FilterRefused with the broker's name and its answer."""
        check_filter(filter)
        if filter is None or filter[0] == "TAG":
            return
        first = {(queue.topic, queue.broker_name): queue for queue in sorted(queues, reverse=True)}

        async def ask(queue: MessageQueue) -> None:
            try:
                await self._consumer.check_expression(queue, filter[1], filter[0])
            except AccessRefused:
                raise
            except BrokerError as e:
                hint = ""
                if e.code == ResponseCode.SYSTEM_ERROR:
                    hint = ". Brokers filter by SQL92 with enablePropertyFilter=true only: filter by tag, or in Spark"
                raise FilterRefused(
                    f"broker {queue.broker_name} does not take the {filter[0]} expression {filter[1]!r} for topic {queue.topic}:"
                    f" {e.remark.strip()}{hint}"
                ) from None

        self._all(ask, first.values())

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        hold_ms: int,
        *,
        filter: Filter | None = None,  # noqa: A002
        read_from: ReadFrom = "master",
    ) -> "Future[PullResult] | PullAnswer":
        """Ask for messages.

        Calls in the loop thread, such as callbacks of an earlier answer, get a PullAnswer; calls in other threads get a Future, which may
        be cancelled at any time.

        The answer's errors are those of the client's ``pull``, and TopicGone when the topic was deleted. TopicNotFound alone does not tell:
        a topic also has no route while its only broker is away.
        """
        asked = (queue, offset, max_messages, max_bytes, hold_ms, filter, read_from)
        if threading.get_ident() == self.thread.ident:
            return self._begin_pull(asked)
        future: Future[PullResult] = Future()
        self.thread.call_soon(self._begin_pull_for, future, asked)
        return future

    def _begin_pull_for(self, future: "Future[PullResult]", asked: "_Asked") -> None:
        self._begin_pull(asked).add_done_callback(partial(_copy, future))

    def _begin_pull(self, asked: "_Asked") -> "PullAnswer":
        """Send a pull in this turn of the loop. Pulls that need a connection, a retry or a reason for failure take the slow path."""
        queue, offset, max_messages, max_bytes, hold_ms, filter, read_from = asked  # noqa: A001
        answer = PullAnswer(asked, self._pull_patiently)
        try:
            pulls = self._prepare_pulls(queue, max_bytes, filter, read_from)
            if hold_ms or not answer.sent(pulls, pulls.send(answer, offset, max_messages)):
                self._pull_patiently(answer)
        except Exception as e:  # noqa: BLE001 - the caller waits for an answer, whatever the error
            answer.settle(e)
        return answer

    def _pull_patiently(self, answer: "PullAnswer") -> None:
        def ended(task: "asyncio.Task[PullResult]") -> None:
            answer.settle(CancelledError() if task.cancelled() else task.exception() or task.result())

        self._background.spawn(self._pull(answer.asked), "pull", awaited=True).add_done_callback(ended)

    async def _pull(self, asked: "_Asked") -> PullResult:
        queue, offset, max_messages, max_bytes, hold_ms, filter, read_from = asked  # noqa: A001
        kind, expression = filter or EVERYTHING
        try:
            return await self._consumer.pull(
                queue,
                offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                expression=expression,
                expression_type=kind,
                read_from=read_from,
                wait_ms=hold_ms,
                timeout_s=self._timeout_s,
            )
        except TopicNotFound as e:
            if await self._is_gone(queue):
                raise TopicGone(queue.topic, e.namesrv) from None
            raise
        except AccessRefused as e:
            raise self._security.refused(e) from None

    async def _is_gone(self, queue: MessageQueue) -> bool:
        """Return whether the queue's broker is registered without the queue. A broker always registers with all its topics."""
        try:
            await self._admin.start()
            try:
                there = await self._admin.queues(queue.topic)
            except TopicNotFound:
                there = []
            if queue in there:
                await self._consumer.queues(queue.topic)  # refreshes the route: another broker may have answered at an old address
                return False
            return queue.broker_name in (await self._admin.cluster()).broker_addr_table
        except RetriableError:
            return False

    # --- the loop ---

    def _all(self, ask: Callable[[Any], Awaitable[_R]], about: Iterable[Any]) -> list[_R]:
        """Send all requests at once and return the answers. The first error is raised after the last answer."""
        return self._run(lambda: all_of(map(ask, about)))

    def _administer(self, ask: Callable[[], Awaitable[_R]]) -> _R:
        return self._administer_all(lambda _: ask(), (None,))[0]

    def _administer_all(self, ask: Callable[[Any], Awaitable[_R]], about: Iterable[Any]) -> list[_R]:
        self._run(self._admin.start)
        return self._all(ask, about)

    def _run(self, make: Callable[[], Coroutine[Any, Any, _R]]) -> _R:
        try:
            return self.thread.run(make)
        except AccessRefused as e:
            raise self._security.refused(e) from None


# The arguments of ``ClusterAccess.pull``, in their order.
_Asked = tuple[MessageQueue, int, int, int, int, Filter | None, ReadFrom]


class PullAnswer:
    """The answer to a pull that was sent in the loop thread: the part of a Future that one thread needs, at a fraction of its cost.

    Only the loop thread calls ``done`` and adds a callback, at most one, which must not raise. Once it is done any thread may take its
    result. The connection delivers the response to it (``net.client.Receiver``).
    """

    __slots__ = ("_address", "_callback", "_otherwise", "_pulls", "asked", "outcome")

    def __init__(self, asked: _Asked, otherwise: "Callable[[PullAnswer], None]") -> None:
        """``otherwise`` is called when the request brings no result: it takes the slow path."""
        self.asked = asked
        self._otherwise = otherwise
        self._callback: Callable[[PullAnswer], object] | None = None
        self.outcome: PullResult | BaseException | None = None

    def sent(self, pulls: PreparedPulls, address: str | None) -> bool:
        """Note the address the request was sent to; tell whether it was sent."""
        self._pulls = pulls
        self._address = address or ""
        return address is not None

    def done(self) -> bool:
        return self.outcome is not None

    def result(self) -> PullResult:
        """Return the result or raise the error, without waiting. Raises InvalidStateError while there is neither."""
        outcome = self.outcome
        if type(outcome) is PullResult:
            return outcome
        try:
            raise outcome if isinstance(outcome, BaseException) else InvalidStateError("this pull is not answered yet")
        finally:
            del self, outcome  # otherwise the error's traceback would refer to the error

    def add_done_callback(self, callback: "Callable[[PullAnswer], object]", /) -> None:
        """Call ``callback`` with this answer when it is done, at once when it is already."""
        if self.outcome is None:
            self._callback = callback
        else:
            callback(self)

    def settle(self, outcome: PullResult | BaseException) -> None:
        self.outcome = outcome
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self)

    def set_result(self, response: Command, /) -> None:
        try:
            result = self._pulls.read(response, self._address, self.asked[1])
        except Exception:  # noqa: BLE001 - the slow path finds out what is wrong
            self._otherwise(self)
        else:
            self.settle(result)

    def set_exception(self, _: SprocketError, /) -> None:
        self._otherwise(self)


def _prepare_pulls(
    consumer: PullConsumer,
    timeout_s: float,
    queue: MessageQueue,
    max_bytes: int,
    filter: Filter | None,  # noqa: A002
    read_from: ReadFrom,
) -> PreparedPulls:
    kind, expression = filter or EVERYTHING
    return consumer.prepare_pulls(
        queue, max_bytes=max_bytes, expression=expression, expression_type=kind, read_from=read_from, timeout_s=timeout_s
    )


def _copy(future: "Future[PullResult]", answer: PullAnswer) -> None:
    """Give a future the outcome of ``answer`` unless who waits for it has given up, which may happen at any moment."""
    try:
        if isinstance(answer.outcome, BaseException):
            future.set_exception(answer.outcome)
        else:
            future.set_result(answer.result())
    except InvalidStateError:
        pass


_open: dict[tuple[int, str, str, tuple[tuple[str, str], ...], SecurityOptions], ClusterAccess] = {}
_lock = threading.Lock()


def cluster_access(
    nameserver: str,
    group: str,
    client_options: Iterable[tuple[str, str]] = (),
    *,
    security: SecurityOptions = NO_OPTIONS,
    patience_s: float = 0.0,
) -> ClusterAccess:
    """Return this process's access to the cluster, made on first use.

    Spark's Python workers live on from task to task, so connections do too. A forked child makes its own. ``client_options`` as for
    ``client_settings``. Nameservers that do not answer are asked again for ``patience_s`` seconds: a task that is new to its process should
    get over what one that is connected would not notice. Raises ConfigError, UserRefused, and what finding a nameserver raises.
    """
    key = (os.getpid(), nameserver, group, tuple(client_options), security)
    deadline = time.monotonic() + patience_s
    with _lock:
        while (access := _open.get(key)) is None:
            try:
                access = ClusterAccess(nameserver, group, key[3], security)
            except NameserverUnavailable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(NAMESERVER_PAUSE_S)
                continue
            if not any(pid == os.getpid() for pid, *_ in _open):
                atexit.register(close_access)
            _open[key] = access
        return access


def close_access() -> None:
    """Close what ``cluster_access`` opened in this process."""
    with _lock:
        for key in [key for key in _open if key[0] == os.getpid()]:
            _open.pop(key).close()
