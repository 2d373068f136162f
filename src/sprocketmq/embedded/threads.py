"""The servers of a LocalCluster on one event loop in a thread of this process."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from sprocketmq.broker.server import Broker
from sprocketmq.embedded.plan import STOP_TIMEOUT_S, ClusterFailed, ClusterPlan
from sprocketmq.namesrv.server import NameServer
from sprocketmq.net.loops import LoopThread
from sprocketmq.processes.members import Member
from sprocketmq.storage.config import ConfigFile

# How long the start waits until the slaves follow.
FOLLOW_TIMEOUT_S = 5.0


class ThreadServers:
    """Nameserver and brokers on one event loop in a daemon thread."""

    def __init__(self, plan: ClusterPlan) -> None:
        self._plan = plan
        self.namesrv: str = ""
        self.brokers: dict[str, str] = {}
        self._namesrv: NameServer | None = None
        self._brokers: dict[str, Broker] = {}
        self._starting: set[asyncio.Task[Any]] = set()
        self._thread = LoopThread("sprocketmq-cluster")

    def start(self) -> None:
        self._thread.start()
        self._do(self._start, self._plan.start_timeout_s)

    def stop(self) -> None:
        self._end(self._stop)

    def kill(self) -> None:
        self._end(self._abort)

    def stop_broker(self, name: str) -> None:
        broker = self._brokers.pop(self._plan.member(name).name, None)
        if broker is not None:
            self._do(broker.stop)

    def kill_broker(self, name: str) -> None:
        broker = self._brokers.pop(self._plan.member(name).name, None)
        if broker is not None:
            self._do(broker.abort)

    def start_broker(self, name: str) -> None:
        member = self._plan.member(name)
        if name not in self._brokers:
            self._do(partial(self._start_broker, member))

    def stop_namesrv(self) -> None:
        namesrv, self._namesrv = self._namesrv, None
        if namesrv is not None:
            self._do(namesrv.stop)

    def start_namesrv(self) -> None:
        if self._namesrv is None:
            self._do(self._start_namesrv)

    def _do(self, make: Callable[[], Coroutine[Any, Any, None]], timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Run the coroutine that ``make`` returns on the cluster's loop. Raises ClusterFailed when it takes longer than ``timeout_s``."""
        self._wait(self._thread.submit(make), timeout_s)

    def _wait(self, future: Future[None], timeout_s: float) -> None:
        try:
            future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise ClusterFailed(
                f"the embedded cluster did not answer within {timeout_s:g} s: is another process using up the machine?"
            ) from None

    def _end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._thread.alive:
            return

        async def end() -> None:
            await self._give_up_starts()
            await work()

        future = self._thread.submit(end)
        try:
            self._wait(future, STOP_TIMEOUT_S)
        except KeyboardInterrupt:
            # Stores are closed all the same; a second interrupt ends this wait as well.
            with contextlib.suppress(Exception):
                self._wait(future, STOP_TIMEOUT_S)
            raise
        finally:
            self._thread.stop(STOP_TIMEOUT_S)

    async def _give_up_starts(self) -> None:
        """Cancel the starts that are under way, those whose caller was interrupted, and wait until they have cleaned up."""
        starting = [task for task in self._starting if not task.done()]
        for task in starting:
            if not task.cancelling():  # a second time would cut short its cleaning up
                task.cancel()
        if starting:
            await asyncio.wait(starting)

    async def _start(self) -> None:
        await self._start_namesrv()
        for member in (*self._plan.masters, *self._plan.slaves):
            await self._start_broker(member)
        await asyncio.gather(*(broker.replication.settle(FOLLOW_TIMEOUT_S) for broker in self._brokers.values()))

    async def _start_namesrv(self) -> None:
        port = int(self.namesrv.rpartition(":")[2]) if self.namesrv else self._plan.namesrv_port
        namesrv = NameServer(self._plan.namesrv_config(port), kv_file=ConfigFile(self._plan.kv_file))
        await namesrv.start()
        self._namesrv = namesrv
        self.namesrv = namesrv.address

    async def _start_broker(self, member: Member) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        config = self._plan.broker_config(self.namesrv, member)
        if member.name in self.brokers:
            config = replace(config, port=int(self.brokers[member.name].rpartition(":")[2]))
        broker = Broker(config)
        await broker.start()
        self._brokers[member.name] = broker
        self.brokers[member.name] = broker.address

    @property
    def pids(self) -> list[int]:
        return [os.getpid()]

    async def _stop(self) -> None:
        brokers, self._brokers = self._brokers, {}
        try:
            # Slaves first, or they would log that their master is gone.
            for broker in sorted(brokers.values(), key=lambda broker: not broker.role.is_slave):
                await broker.stop()
        finally:
            if self._namesrv is not None:
                await self._namesrv.stop()

    async def _abort(self) -> None:
        for broker in self._brokers.values():
            await broker.abort()
        if self._namesrv is not None:
            await self._namesrv.stop()
