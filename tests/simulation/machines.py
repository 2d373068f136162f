"""The servers of a simulated run: a nameserver and a broker that can be stopped, killed, cut off from power and started again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.broker.replication.follower import Follower
from sprocketmq.errors import BrokerNameTaken, SprocketError
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.replica.epochs import Epoch
from sprocketmq.testing.rig.network import Machine, Network, Process
from sprocketmq.testing.rig.simulated_disk import KILL_MODES, SimFileSystem
from sprocketmq.testing.rig.small_store import SMALL_FILES
from sprocketmq.testing.rig.virtual_loop import LoopClock, LoopFlusher

NAMESERVER_PORT = 9876
BROKER_PORT = 10911
HA_PORT = 10912


class Server:
    """A server on a machine of its own. ``problems`` collects what must not happen."""

    def __init__(self, network: Network, name: str, ip: str) -> None:
        self.network = network
        self.loop = network.loop
        self.machine: Machine = network.machine(name, ip)
        self.clock = LoopClock(self.loop)
        self.process: Process | None = None
        self.problems: list[str] = []
        self._ending: set[asyncio.Task[Any]] = set()

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def address(self) -> str:
        raise NotImplementedError

    def end(self, task: asyncio.Task[Any]) -> None:
        """Let a dead process end what it holds in memory."""
        self._ending.add(task)

    async def ended(self) -> None:
        """Wait until nothing of dead processes is left."""
        for outcome in await asyncio.gather(*self._ending, return_exceptions=True):
            if isinstance(outcome, Exception):
                self.problems.append(f"{self.name}: a killed process could not be ended: {outcome!r}")


class SimNameServer(Server):
    """The nameserver: all it knows is in memory."""

    def __init__(self, network: Network, ip: str) -> None:
        super().__init__(network, "nameserver", ip)
        self._server: NameServer

    @property
    def address(self) -> str:
        return f"{self.machine.ip}:{NAMESERVER_PORT}"

    async def start(self) -> None:
        self.process = self.machine.start("nameserver")
        self._server = self.process.call(lambda: NameServer(NameServerConfig(self.machine.ip, NAMESERVER_PORT), clock=self.clock))
        await self.process.run(self._server.start())

    async def stop(self) -> None:
        if self.process is not None:
            await self.process.run(self._server.stop())
            self.process = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.end(self.process.run(self._server.stop()))
            self.process = None


class SimBroker(Server):
    """A broker and its disk. ``settings`` go to BrokerConfig; ``opened`` is called with each broker that has started."""

    def __init__(self, network: Network, name: str, ip: str, *, seed: str, flush: str, nameserver: str, **settings: Any) -> None:
        super().__init__(network, name, ip)
        self._rng = random.Random(f"{seed} disk of {name}")
        self.fs = SimFileSystem(clock=self.clock)
        store = StoreConfig(Path("/store"), flush_disk_type=flush, **SMALL_FILES)
        self.config = BrokerConfig(
            store=store, host=ip, port=BROKER_PORT, namesrv=(nameserver,), flush_interval_s=0.1, register_interval_s=5.0, **settings
        )
        self.broker: Broker | None = None
        self.crashes = 0
        self._starting: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return f"{self.machine.ip}:{BROKER_PORT}"

    @property
    def log_end(self) -> int:
        """Where its log ends, -1 while it is down."""
        return self.broker.store.commitlog_max_offset if self.broker is not None else -1

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The epochs of its log, none while it is down."""
        return self.broker.store.epochs.entries if self.broker is not None else ()

    def visible(self, topics: Iterable[str], queues: int) -> list[int]:
        """Return up to where readers see each queue."""
        return [self.broker.store.max_offset(topic, n) for topic in topics for n in range(queues)] if self.broker is not None else []

    @property
    def leads_since(self) -> int:
        """The epoch that it leads in; -1 while it follows or is down."""
        broker = self.broker
        return broker.store.epochs.last.number if broker is not None and broker.replication.master is not None else -1

    @property
    def follower(self) -> Follower | None:
        return self.broker.replication.follower if self.broker is not None else None

    async def start(self) -> None:
        """Start the broker, unless it runs; return when it takes traffic, or is gone again."""
        if self.broker is not None:
            return
        if not self.machine.powered:
            self.machine.switch_on()
        process = self.process = self.machine.start(self.name)
        broker = self.broker = process.call(lambda: Broker(self.config, fs=self.fs, clock=self.clock, flush_worker=LoopFlusher(self.loop)))
        starting = self._starting = process.run(broker.start())
        try:
            await asyncio.wait([starting])
        except asyncio.CancelledError:
            self.crash("keep")
            raise
        if process.alive and isinstance(starting.exception(), BrokerNameTaken) and self.config.broker_id:
            # While it was away a former master was given its id: do what the error says.
            self.network.trace.note(f"{self.name} gets another id: {starting.exception()}")
            self.config = replace(self.config, broker_id=self.config.broker_id + 10)
            self.broker = self.process = None
            process.kill()
            await self.start()
        elif process.alive and (error := starting.exception()) is not None:
            self.problems.append(f"{self.name} does not start: {error!r}")
            self.network.trace.note(f"{self.name} does not start: {error!r}")
        elif process.alive:
            self.network.trace.note(
                f"{self.name} has started, log {broker.store.commitlog_min_offset} to {broker.store.commitlog_max_offset}"
            )

    async def stop(self) -> None:
        """Stop it as SIGTERM does, unless it is not running or not up yet."""
        broker, process = self.broker, self.process
        if broker is None or process is None or self._starting is None or not self._starting.done():
            return
        self.network.trace.note(f"{self.name} stops")
        stopping = process.run(broker.stop())
        await asyncio.wait([stopping])
        if not process.alive:  # killed meanwhile
            stopping.exception()
            return
        self.broker = None
        if (error := stopping.exception()) is not None:
            self.problems.append(f"{self.name} does not stop: {error!r}")
        process.kill()

    def crash_at(self, call: int, mode: str) -> None:
        """Crash in the middle of a call to the disk, counted from now."""
        due = self.fs.calls + call
        fs = self.fs

        def on_call(*_: str) -> None:
            if fs.calls >= due and self.fs is fs:
                self.crash(mode)

        fs.on_call = on_call

    def crash(self, mode: str) -> None:
        """Lose the process, or with it all power, in this instant; the disk keeps what ``mode`` says."""
        broker, process = self.broker, self.process
        if broker is None or process is None:
            return
        if mode not in KILL_MODES and broker.replication.master is not None and not broker.store.commitlog_flushed_offset:
            return  # slaves refuse a master that has lost all of its log: it could be any empty store
        self.network.trace.note(f"{self.name} crashes, {mode}, log end {broker.store.commitlog_max_offset}")
        fs, self.fs = self.fs, self.fs.crash(self._rng, mode)
        fs.on_call = None
        self.fs.clock = self.clock
        self.broker = self.process = None
        self.crashes += 1
        if mode in KILL_MODES:
            process.kill()
        else:
            self.machine.switch_off()
        self.end(process.run(self._bury(broker, self._starting)))

    async def _bury(self, broker: Broker, starting: asyncio.Task[None] | None) -> None:
        if starting is not None and not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
        if starting is not None and not starting.cancelled():
            starting.exception()
        with contextlib.suppress(SprocketError):
            await broker.abort()
