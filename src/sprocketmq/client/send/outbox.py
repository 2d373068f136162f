"""The path of all send requests to the brokers: the first try, retries, and the outcome.

``launch`` writes a request at once when the route and the connection are there. Otherwise a background task gets them first: one task
for each topic, which keeps the order of its requests, or one for a request that needs no order or is tried again.
"""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import replace

from sprocketmq.client.hook_calls import HookCalls, SendCall
from sprocketmq.client.instance import Instance
from sprocketmq.client.loop_bound import OPEN
from sprocketmq.client.send.older_brokers import OlderBrokers
from sprocketmq.client.send.queue_choice import Publisher, Publishers, Target
from sprocketmq.client.send.requests import SendRequest, queue_is_gone, read_failure
from sprocketmq.client.send.results import STATUSES, read_receipt
from sprocketmq.client.send.room import Room
from sprocketmq.client.send.send_header import HEADER
from sprocketmq.client.send.waiters import copy_error, give_error, give_errors, give_result, give_results
from sprocketmq.client.stats import ProducerCounts
from sprocketmq.client.traces.sends import SendTraces, SentRequest
from sprocketmq.errors import (
    ClientClosed,
    ConfigError,
    ConnectFailed,
    MaybeStoredError,
    NameserverUnavailable,
    NoBroker,
    NoMaster,
    RetriableError,
    SendQueueFull,
    SendTimeout,
    SprocketError,
    TopicNotFound,
)
from sprocketmq.net.client import Connection
from sprocketmq.protocol.batch import split_batch
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue, Receipt, SendResult
from sprocketmq.protocol.names import check_send_topic

CONNECT_PATIENCE_S = 1.0
# After this time a topic whose brokers have no master is looked up again, and a chosen queue without one tried again.
MASTER_PAUSE_S = 0.2

# One-way sends wait while a connection holds more bytes than this that its socket has not taken, and look again after a pause.
ONEWAY_BACKLOG_BYTES = 1 << 20
ONEWAY_PAUSE_S = 0.002

_SINGLE, _BATCH = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)


class Outbox:
    """Sends the requests of one producer to the brokers and gives their waiters the outcome, once.

    ``retries`` counts further tries after one that a broker refused for now or did not answer. A message that was stored, but with less
    durability than the broker was asked for, is sent to another broker too with ``retry_another_broker_when_not_store_ok``. ``traces``
    records what was stored, after the waiters got their results.
    """

    def __init__(
        self,
        instance: Instance,
        publishers: Publishers,
        room: Room,
        counts: ProducerCounts,
        *,
        retries: int,
        retry_another_broker_when_not_store_ok: bool = False,
        hooks: HookCalls | None = None,
        traces: SendTraces | None = None,
    ) -> None:
        self.room = room
        self.counts = counts
        self._hooks = hooks
        self._traces = traces
        self._instance = instance
        self._brokers = instance.brokers
        self._login = instance.brokers.login
        self._publishers = publishers
        self._by_topic = publishers.by_topic
        self._faults = publishers.faults
        self._retries = retries
        self._retry_not_ok = retry_another_broker_when_not_store_ok
        self._now_ms = instance.clock.time_ms
        self._older = OlderBrokers(instance)
        # Requests that wait for their topic's route or for a connection, in order; each has a task.
        self._backlogs: dict[str, deque[SendRequest]] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, on the loop of the producer."""
        self.loop = loop
        self._now = loop.time

    # --- to a broker ---

    def launch(self, request: SendRequest) -> None:
        """Write a request now, or let a task do so when the route or the connection is not there yet. Its waiters get every error.

        Its ``timeout_s`` begins now.
        """
        if self._hooks is not None:
            self._report_start(self._hooks, request)
        now = self.loop.time()
        request.deadline = now + request.timeout_s
        topic = request.topic
        publisher = self._by_topic.get(topic)
        if publisher is not None and topic not in self._backlogs:
            target = request.target
            if target is None:
                queue = request.queue
                try:
                    request.target = target = publisher.next() if queue is None else publisher.pinned(queue)
                except ConfigError as e:
                    self.fail(request, e)
                    return
                except NoMaster as e:
                    self.failed(request, e)
                    return
            conn = self._brokers.peek(target.address)
            if conn is not None and self._older.known(conn, request):
                self._write(request, target, conn, now)
                return
        if request.in_order:
            self._queue(request)
        else:
            self._carry_on(request, 0.0)

    async def deliver(self, request: SendRequest) -> Receipt:
        """Launch a request, wait for its end, and return where it is stored. Raises its error; a caller that is cancelled abandons it."""
        ended: asyncio.Future[SendResult] = self.loop.create_future()
        request.waiter = ended
        self.launch(request)
        try:
            await ended
        except asyncio.CancelledError:
            self.abandon(request)
            raise
        assert request.receipt is not None
        return request.receipt

    def _write(self, request: SendRequest, target: Target, conn: Connection, now: float) -> None:
        """Send a request on ``conn``; it fails when it cannot be written as a frame, or its broker cannot do what it asks for."""
        request.sent_at = now
        if self._login is not None:
            request.signed_by = self._login.current
        born = request.born_timestamp_ms
        if born is None:
            born = self._now_ms()
        batch = request.batch
        try:
            properties = self._older.properties(conn, request)
            ext = HEADER % (target.batch_prefix if batch else target.prefix, request.sys_flag, born, request.flag, properties)
            conn.request_for(request, _BATCH if batch else _SINGLE, ext=ext, body=request.body, timeout_s=request.deadline - now)
        except SprocketError as e:
            self.fail(request, e)

    async def write_oneway(self, request: SendRequest) -> None:
        """Write a request without an answer; its listener and its waiter are not called.

        Raises what getting a route or a connection raises, SendQueueFull when its broker accepts nothing before its timeout, and
        InvalidMessage when the broker cannot do what it asks for.
        """
        deadline = request.deadline = self._now() + request.timeout_s
        queue = request.queue
        while True:
            publisher = self._by_topic.get(request.topic) or await self.open(request.topic, deadline - self._now())
            try:
                target = publisher.next() if queue is None else publisher.pinned(queue)
                break
            except NoMaster as e:
                await self._wait_for_master(deadline, e)
        conn = await self._connected(request, target.address)
        while conn.write_backlog > ONEWAY_BACKLOG_BYTES:
            if self._now() >= deadline:
                raise SendQueueFull("bytes", ONEWAY_BACKLOG_BYTES)
            await self._instance.timers.sleep(ONEWAY_PAUSE_S)
            conn = await self._connected(request, target.address)
        properties = self._older.properties(conn, request)
        ext = HEADER % (target.prefix, request.sys_flag, self._now_ms(), request.flag, properties)
        conn.oneway(_SINGLE, ext=ext, body=request.body)
        self.counts.oneway += 1

    async def drain_oneway(self, timeout_s: float) -> None:
        """Wait until sockets have taken what one-way sends wrote, up to ``timeout_s`` seconds."""
        deadline = self._now() + timeout_s
        for conn in self._brokers.open_connections():
            conn.flush()
            while conn.write_backlog and self._now() < deadline:
                await self._instance.timers.sleep(ONEWAY_PAUSE_S)

    async def _connect_and_write(self, request: SendRequest, unreachable: dict[str, ConnectFailed]) -> SprocketError | None:
        """Get the route and the connection of a request and write it.

        Returns the error when there is no connection, or no master of its chosen queue; None when the request left or has ended.

        A broker in ``unreachable`` (address, error) is not waited for again.
        """
        target = request.target
        if target is None:
            queue = request.queue
            try:
                publisher = self._by_topic.get(request.topic) or await self.open(request.topic, request.deadline - self.loop.time())
                request.target = target = publisher.next() if queue is None else publisher.pinned(queue)
            except NoMaster as e:
                return e
            except SprocketError as e:
                self.fail(request, e)
                return None
        address = target.address
        try:
            if address in unreachable and self._brokers.peek(address) is None:
                raise copy_error(unreachable[address])
            conn = await self._connected(request, address)
            now = self.loop.time()
            if request.deadline <= now:
                raise SendTimeout(address, request.timeout_s)
        except ConfigError as e:
            self.fail(request, e)
            return None
        except SprocketError as e:
            if isinstance(e, ConnectFailed):
                unreachable[address] = e
            return e
        if not request.done():  # a task that waited for it may have been cancelled meanwhile
            self._write(request, target, conn, now)
        return None

    async def open(self, topic: str, budget_s: float) -> Publisher:
        """Return the queues of ``topic``, asking for its route when needed, and again while no broker is there or none has a master.

        Raises InvalidName, TopicNotFound, TopicReadOnly, and NoBroker, NoMaster or NameserverUnavailable when ``budget_s`` is over.
        """
        check_send_topic(topic)
        deadline = self.loop.time() + budget_s
        missing: NoBroker | NoMaster | None = None
        while True:
            try:
                return self._publishers.add(await self._instance.publish_route(topic, budget_s=deadline - self.loop.time()))
            except (NoBroker, NoMaster) as e:
                missing = e
            except NameserverUnavailable:  # perhaps only because little time was left
                if missing is None:
                    raise
            await self._wait_for_master(deadline, missing)

    async def _wait_for_master(self, deadline: float, error: NoBroker | NoMaster) -> None:
        """Wait until a broker, or its master, may be known, or raise ``error`` when that is after ``deadline``."""
        if self.loop.time() + MASTER_PAUSE_S >= deadline:
            raise error
        await self._instance.timers.sleep(MASTER_PAUSE_S)

    async def _connected(self, request: SendRequest, address: str) -> Connection:
        """Return the connection to ``address`` when ``request`` may be written on it.

        Raises what ``connect`` raises, and ConnectFailed when the broker does not say what it has to be asked before.
        """
        while True:
            conn = self._brokers.peek(address) or await self.connect(address, request.deadline)
            if self._older.known(conn, request):
                return conn
            await self._older.ask(conn, request, self._patience(request.deadline))

    async def connect(self, address: str, deadline: float) -> Connection:
        """Return the connection to ``address``, opening it when there is none. Raises what the pool raises.

        It waits a second, or a third of the time left until ``deadline`` if that is more: a broker that does not even refuse must leave
        time for another. The attempt itself goes on, and a later call may find it successful.
        """
        limit = self._patience(deadline)
        try:
            async with asyncio.timeout(limit):
                return await self._brokers.get(address)
        except TimeoutError:
            raise ConnectFailed(address, "broker", f"no answer within {limit:.2g} s") from None

    def _patience(self, deadline: float) -> float:
        """Return for how many seconds a broker may keep a request that is not sent yet: others may take it before ``deadline``."""
        remaining = max(0.0, deadline - self.loop.time())
        return min(remaining, max(CONNECT_PATIENCE_S, remaining / 3))

    # --- requests that wait in order ---

    def _queue(self, request: SendRequest) -> None:
        topic = request.topic
        backlog = self._backlogs.get(topic)
        if backlog is None:
            backlog = self._backlogs[topic] = deque()
            task = self._instance.spawn(self._work_off(topic, backlog), f"first sends to {topic}")
            task.add_done_callback(lambda _: self._worked_off(topic, backlog))
        backlog.append(request)

    async def _work_off(self, topic: str, backlog: "deque[SendRequest]") -> None:
        """Send what came before its topic's route or a connection was there, in order."""
        # Each broker that does not answer is waited for once; the others' requests to it are tried elsewhere at once.
        unreachable: dict[str, ConnectFailed] = {}
        try:
            while backlog:
                if topic not in self._by_topic:
                    await self.open(topic, backlog[0].deadline - self.loop.time())
                request = backlog[0]  # it stays in the backlog until it is sent
                error = None if request.done() else await self._connect_and_write(request, unreachable)
                backlog.popleft()
                if error is not None:
                    self.failed(request, error)
        except Exception as e:  # noqa: BLE001 - every request gets its outcome, whatever the error
            while backlog:
                self.fail(backlog.popleft(), copy_error(e))
        finally:
            del self._backlogs[topic]

    def _worked_off(self, topic: str, backlog: "deque[SendRequest]") -> None:
        """Fail the remaining requests when the task was cancelled, perhaps before it ever ran."""
        if self._backlogs.get(topic) is backlog:
            del self._backlogs[topic]
        while backlog:
            self._interrupted(backlog.popleft())

    # --- requests with a task of their own ---

    def _carry_on(self, request: SendRequest, pause_s: float) -> None:
        task = self._instance.spawn(self._carry(request, pause_s), f"a send to {request.topic}")
        task.add_done_callback(lambda task: self._carried(request, task))

    async def _carry(self, request: SendRequest, pause_s: float | None) -> None:
        """Write a request after a pause, getting route and connection first."""
        while pause_s is not None and not request.done():
            if pause_s:
                await self._instance.timers.sleep(pause_s)
            if request.done():
                return
            error = await self._connect_and_write(request, {})
            if error is None:
                return
            pause_s = self._after(request, error)

    def _carried(self, request: SendRequest, task: "asyncio.Task[None]") -> None:
        if task.cancelled():  # perhaps before it ever ran
            self._interrupted(request)
        elif (error := task.exception()) is not None:
            self.fail(request, error)

    def _interrupted(self, request: SendRequest) -> None:
        """Fail a request whose task was cancelled."""
        if request.sent_at:
            error: SprocketError = MaybeStoredError(f"the producer was closed while a message to {request.topic!r} was being sent")
        elif self._instance.state != OPEN:
            error = ClientClosed("the producer was closed before the message was sent")
        else:
            error = RetriableError("the task that was to send the message was cancelled: the message is not sent")
        self.fail(request, error)

    # --- the end of a try ---

    def failed(self, request: SendRequest, outcome: SprocketError | Command) -> None:
        """Handle a failed try: end the request, or try again in the background."""
        pause_s = self._after(request, outcome)
        if pause_s is not None:
            self._carry_on(request, pause_s)

    def _after(self, request: SendRequest, outcome: SprocketError | Command) -> float | None:
        """Return the pause before the next try of a request; None when there is none and the request has ended."""
        target = request.target
        if target is None:
            assert isinstance(outcome, NoMaster)
            return self._without_master(request, outcome)
        if isinstance(outcome, Command):
            if self._faults is not None:
                self._faults.answered(target.broker_name, self.loop.time() - request.sent_at)
            if outcome.code in STATUSES:
                another = self._retry_not_ok and request.queue is None and target.publisher.has_other(target.broker_name)
                if not another:
                    self.stored(request, outcome)
                    return None
                request.weakly_stored = outcome, target
            elif outcome.code == ResponseCode.GO_AWAY:
                self._brokers.drop(target.address)
        renewed = self._login is not None and self._login.current is not request.signed_by
        failure = read_failure(outcome, target.address, request.topic, renewed=renewed)
        again = False
        if queue_is_gone(outcome):
            self._forget_queue(target)
            # Not chosen by the caller, or for a whole batch of ordering keys.
            again = type(request.queue) is not MessageQueue
            failure = replace(failure, passing=again)
        if failure.broker_at_fault and self._faults is not None:
            self._faults.failed(target.broker_name)
        now = self.loop.time()
        try:
            request.count_failure(failure, retries=self._retries, now=now)
            if again:
                request.target = None
                return 0.0
            self._instance.refresh_soon(request.topic)
            return request.next_try(now=now)
        except NoMaster as e:
            return self._without_master(request, e)
        except SprocketError as e:
            if isinstance(failure.error, TopicNotFound):  # the next send asks for the route again
                self._by_topic.pop(request.topic, None)
                self._instance.routes.pop(request.topic, None)
            if request.weakly_stored is not None:
                response, request.target = request.weakly_stored
                self.stored(request, response)
            else:
                self.fail(request, e)
            return None

    def _without_master(self, request: SendRequest, error: NoMaster) -> float | None:
        """Return the pause until the chosen queue of a request may have a master; None when no time is left, and the request has failed."""
        request.target = None
        request.error = error
        if self.loop.time() + MASTER_PAUSE_S < request.deadline:
            return MASTER_PAUSE_S
        try:
            request.give_up()
        except SprocketError as e:
            self.fail(request, e)
        return None

    def _forget_queue(self, target: Target) -> None:
        """Make the next send look up the route of a topic whose known route has a queue that the topic does not have."""
        topic = target.publisher.topic
        publisher = self._by_topic.get(topic)
        if publisher is not None and MessageQueue(topic, target.broker_name, target.queue_id) in publisher.route.publish_queues:
            del self._by_topic[topic]
            self._instance.routes.pop(topic, None)

    # --- the end of a request ---

    def stored(self, request: SendRequest, response: Command) -> None:
        """End a request that a broker has stored; its waiters get their results."""
        target = request.target
        assert target is not None
        if self._faults is not None and not response.code:  # ``_after`` has recorded answers with other codes
            self._faults.answered(target.broker_name, self.loop.time() - request.sent_at)
        try:
            request.receipt = receipt = read_receipt(response, request.ids, request.topic, target)
        except SprocketError as e:
            self.fail(request, e)
            return
        if target.publisher.provisional:
            self._instance.refresh_soon(request.topic)
        self._end(request, None)
        try:
            if request.waiter is not None:
                give_result(request.waiter, SendResult(receipt, 0))
            elif request.gathered is not None:
                give_results(request.gathered.members, receipt)
        finally:
            room = self.room
            if room.told or not room.messages:
                room.wake()
            if request.gathering is not None:
                request.gathering.told()
        traces = self._traces
        if traces is not None and not traces.resting and (chosen := traces.chosen(request.ids)):
            duration_s = self.loop.time() - (request.deadline - request.timeout_s)
            written = SentRequest(request.topic, request.ids, request.body, request.properties, request.batch, target.address, duration_s)
            traces.stored(written, chosen, receipt, response)

    def fail(self, request: SendRequest, error: BaseException) -> None:
        """End a request with an error; nothing happens when it has ended already."""
        if request.ended:
            return
        self._end(request, error)
        try:
            if request.waiter is not None:
                give_error(request.waiter, error)
            elif request.gathered is not None:
                give_errors(request.gathered.members, error)
        finally:
            self._told(request)

    def abandon(self, request: SendRequest) -> None:
        """End a request whose only waiter has been cancelled. It may be stored; it is not tried again."""
        if not request.ended:
            self._end(request, asyncio.CancelledError())
            self._told(request)

    def _told(self, request: SendRequest) -> None:
        self.room.wake()
        if request.gathering is not None:
            request.gathering.told()

    def _end(self, request: SendRequest, error: BaseException | None) -> None:
        request.ended = True
        if error is None:
            counts = self.counts
            ids = request.ids
            if type(ids) is str:
                counts.single += 1
            else:
                counts.batch(len(ids))
            counts.bytes += len(request.body)
            if request.tries or request.failed_connects:
                counts.retries += request.tries + request.failed_connects
            # As in ``DurationCounts.add``, which would double the cost: without batching there is a request for each message.
            latency_s = self._now() - request.deadline + request.timeout_s
            latency = counts.latency
            latency.counts[int(latency_s * 1e6).bit_length()] += 1
            latency.total_s += latency_s
            if latency_s > latency.longest_s:  # noqa: PLR1730 - as above
                latency.longest_s = latency_s
        else:
            tries = request.tries + request.failed_connects
            self.counts.failed(error, tries - 1 if tries else 0)
        if self._hooks is not None and request.observed is not None:
            self._report_end(self._hooks, request, request.observed, error)
        room = self.room
        room.give_back(request.count, request.size)
        if room.on_freed is not None:
            room.on_freed(request.count, request.size)
        if request.gathered is not None and request.gathering is not None:
            request.gathering.ended(request.gathered)

    # --- hooks ---

    def _report_start(self, hooks: HookCalls, request: SendRequest) -> None:
        ids = request.ids
        count = 1 if type(ids) is str else len(ids)
        if not ids and request.batch:  # encoded by the program, perhaps incorrectly: only the broker checks it
            with suppress(SprocketError):
                count = len(split_batch(request.body))
        request.observed = hooks.sending(
            request.topic,
            request.messages,
            ((ids,) if ids else ()) if type(ids) is str else ids,
            message_count=count,
            body_bytes=len(request.body),
            gathered=request.gathered is not None,
        )

    def _report_end(self, hooks: HookCalls, request: SendRequest, call: SendCall, error: BaseException | None) -> None:
        target = request.target
        receipt = request.receipt if error is None else None
        queue = None
        if target is not None:
            queue = MessageQueue(request.topic, target.broker_name, target.queue_id if receipt is None else receipt.queue_id)
        # The successful try is not one of the failed ones.
        tries = request.tries + request.failed_connects + (1 if error is None else 0)
        hooks.sent(call, queue, target.address if target is not None else "", tries, receipt, error)
