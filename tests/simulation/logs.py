"""Replication alone, in virtual time: the logs of a master and two slaves, without brokers around them.

One master writes, two slaves follow; machines are killed, lose power, are cut off, and now and then a slave is promoted by hand. What was
acknowledged by the rule of SYNC_MASTER (the master's copy and one more) must be in the log at the end, and all logs must be equal.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.simulation.course import BrokenPromise, Course, Outcome, carry_out
from tests.simulation.plan import MODES, Fault, fewer, random_moments

from sprocketmq.broker.replication import follower
from sprocketmq.broker.replication.follower import Follower, FollowerState, Master
from sprocketmq.broker.replication.master import ReplicationMaster
from sprocketmq.broker.replication.roles import promotion_epoch
from sprocketmq.broker.replication.stream import WHOLE_LOG, MasterLog
from sprocketmq.errors import ConnectFailed, SprocketError
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.storage.config import StoreConfig, dump_pretty
from sprocketmq.storage.store import MessageStore
from sprocketmq.testing.rig.network import Network, Process
from sprocketmq.testing.rig.simulated_disk import KILL_MODES, SimFileSystem
from sprocketmq.testing.rig.small_store import BATCH_TOPIC, HOST, SMALL_FILES, TOPICS_FILE, read_queue
from sprocketmq.testing.rig.virtual_loop import LoopClock

HA_PORT = 10912
NODES = ("one", "two", "three")
IPS = dict(zip(NODES, ("10.0.1.1", "10.0.1.2", "10.0.1.3"), strict=True))
TOPIC = "plain"
QUEUES = 2
SETTLE_S = 200.0


@dataclass(frozen=True)
class LogPlan:
    """One run."""

    seed: str
    flush: str
    compare_bytes: int
    duration_s: float
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"seed {self.seed}: logs, {self.flush}, {self.compare_bytes} bytes compared, {self.duration_s:g} s",
                *(f"  {fault}" for fault in self.faults),
            ]
        )

    def shorter(self) -> list[LogPlan]:
        """Return plans that are a little simpler than this one."""
        found = [replace(self, faults=faults) for faults in fewer(self.faults)]
        if self.duration_s > 0.25:
            found.append(replace(self, duration_s=self.duration_s / 2))
        return found

    def run(self) -> Outcome:
        return carry_out(self, LogSimulation)


def make_log_plan(seed: str) -> LogPlan:
    """Return the plan of a seed.

    A machine loses power only where nothing depends on it: with SYNC_FLUSH, as a slave's copy is in its memory, and without a promotion.
    """
    rng = random.Random(f"{seed} log plan")
    flush = rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
    duration_s = rng.choice((1.0, 2.0, 4.0))
    promotes = rng.random() < 0.5
    power = flush == "SYNC_FLUSH" and not promotes
    kinds = ["kill", "kill", "crash at call", "reset", "reset", "block", "block", "slow", "freeze", "stop"]
    kinds += ["power", "power"] * power + ["promote", "promote", "promote"] * promotes
    faults = []
    for at_s, for_s in random_moments(rng, duration_s, rng.choice((0, 1, 2, 3, 4, 6))):
        kind = rng.choice(kinds)
        node = rng.choice(NODES)
        if kind in {"kill", "power"}:
            fault = Fault(at_s, kind, (node,), for_s, rng.choice(MODES[kind]))
        elif kind == "crash at call":
            fault = Fault(at_s, kind, (node,), for_s, rng.choice(MODES["kill"] + (MODES["power"] if power else ())), rng.randrange(1, 40))
        elif kind in {"freeze", "stop", "promote"}:
            fault = Fault(at_s, kind, (node,), for_s)
        else:
            pair = tuple(rng.sample(NODES, 2))
            mode = {"block": ("both", "one way"), "slow": ("0.01", "0.1", "0.5")}.get(kind, ("",))
            fault = Fault(at_s, kind, pair, 0.0 if kind == "reset" else for_s, rng.choice(mode))
        faults.append(fault)
    return LogPlan(seed, flush, rng.choice((1000, 64 << 10)), duration_s, tuple(faults))


class Node:
    """One machine with a store that leads or follows, or is down."""

    def __init__(self, simulation: LogSimulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.machine = simulation.network.machine(name, IPS[name])
        self.clock = LoopClock(simulation.loop)
        self.fs = SimFileSystem(clock=self.clock)
        self.config = StoreConfig(Path("/store"), flush_disk_type=simulation.plan.flush, **SMALL_FILES)
        self.process: Process | None = None
        self.store: MessageStore
        self.master: ReplicationMaster | None = None
        self.follower: Follower | None = None
        self.flushed_end = 0
        self._rng = random.Random(f"{simulation.plan.seed} disk of {name}")
        self._work: list[asyncio.Task[Any]] = []

    @property
    def up(self) -> bool:
        return self.process is not None

    @property
    def end(self) -> int:
        return self.store.commitlog_max_offset

    # --- life ---

    async def start(self) -> None:
        """Start in the role that the directory of the simulation says."""
        if self.up:
            return
        if not self.machine.powered:
            self.machine.switch_on()
        process = self.process = self.machine.start(self.name)
        self.master = self.follower = None
        store = self.store = MessageStore(self.config, fs=self.fs, clock=self.clock)
        store.store_host = HOST
        if not self.fs.exists(f"{self.config.root}/config/topics.json"):
            self.fs.put(f"{self.config.root}/config/topics.json", dump_pretty(TOPICS_FILE))
        report = store.open()
        store.declare_batch_topic(BATCH_TOPIC)
        self.flushed_end = store.commitlog_flushed_offset
        self.simulation.trace.note(f"{self.name} starts, log {store.commitlog_min_offset} to {self.end}, epochs {store.epochs.entries}")
        if self.simulation.leader is self:
            if not report.clean or not store.epochs.entries:
                store.epochs.begin(store.epochs.following, report.sound_end)
            if self.process is not process:
                return  # it crashed in the middle of that
            await process.run(self._lead())
        else:
            process.call(self._follow)
        self._work = [process.run(self._flush_often(process))]

    async def _lead(self) -> None:
        self.master = ReplicationMaster(
            self.store, name=self.name, acked=self._acked, heartbeat_s=1.0, housekeeping_s=5.0, clock=self.clock
        )
        await self.master.start(self.machine.ip, HA_PORT)

    def _follow(self) -> None:
        simulation = self.simulation
        self.replica = self.store.follow()
        self.follower = Follower(
            self.store,
            self.replica,
            find=simulation.find,
            ask=lambda _: simulation.ask(self),
            name=self.name,
            heartbeat_s=1.0,
            housekeeping_s=5.0,
            clock=self.clock,
        )
        self.follower.start()

    async def stop(self, *, clean: bool = True) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        self.simulation.trace.note(f"{self.name} stops")
        self.simulation.gone(self)
        if process.frozen:
            process.resume()
        await process.run(self._shut(self.store, self.master, self.follower, self._work, clean=clean))
        process.kill()

    @staticmethod
    async def _shut(
        store: MessageStore, master: ReplicationMaster | None, follower: Follower | None, work: list[asyncio.Task[Any]], *, clean: bool
    ) -> None:
        for task in work:
            task.cancel()
        if follower is not None:
            await follower.stop()
        if master is not None:
            await master.stop()
        if clean:
            store.close()
        else:
            store.abandon()

    def crash_at(self, call: int, mode: str) -> None:
        """Crash in the middle of a call to the disk, counted from now."""
        fs, due = self.fs, self.fs.calls + call

        def on_call(*_: str) -> None:
            if fs.calls >= due and self.fs is fs:
                self.crash(mode)

        fs.on_call = on_call

    def crash(self, mode: str) -> None:
        """Lose the process, or with it all power, in this instant."""
        process = self.process
        if process is None or (mode not in KILL_MODES and not self.flushed_end):
            return  # slaves refuse a master that has lost all of its log: it could be any empty store
        self.simulation.trace.note(f"{self.name} crashes, {mode}, log end {self.end}")
        self.simulation.gone(self)
        fs, self.fs = self.fs, self.fs.crash(self._rng, mode)
        fs.on_call = None
        self.fs.clock = self.clock
        self.process = None
        self.simulation.crashes += 1
        if mode in KILL_MODES:
            process.kill()
        else:
            self.machine.switch_off()
        process.run(self._shut(self.store, self.master, self.follower, self._work, clean=False))

    async def _flush_often(self, process: Process) -> None:
        """Flush as a broker does: the log soon, queues and index now and then."""
        while process.alive:
            await asyncio.sleep(self._rng.choice((0.002, 0.02, 0.1)))
            store = self.store
            end = await asyncio.to_thread(partial(store.flush, thorough=True) if self._rng.random() < 0.05 else store.flush_log)
            store.publish(end)
            self.flushed_end = max(self.flushed_end, end)
            self._acked()

    # --- acknowledging ---

    def _acked(self) -> None:
        if self.master is None or self.process is None or not self.process.alive:
            return
        replicated = self.master.replicated(1)
        if not self.simulation.loses_power:
            most = max(node.held for node in self.simulation.nodes if node is not self)
            self.simulation.check(
                replicated <= max(most, WHOLE_LOG), f"{self.name} counts {replicated} as replicated, no slave has more than {most}"
            )
        self.simulation.acknowledge(min(replicated, self.flushed_end if self.simulation.plan.flush == "SYNC_FLUSH" else self.end))

    @property
    def held(self) -> int:
        """How much of the log it has, or had when it went down."""
        return self.replica.end if self.follower is not None else self.end


class LogSimulation(Course):
    """The machines and the course of one run."""

    plan: LogPlan

    def prepare(self) -> None:
        self.loses_power = any(fault.mode in MODES["power"] for fault in self.plan.faults)
        self.network = Network(self.loop, seed=self.plan.seed, trace=self.trace)
        self.nodes = [Node(self, name) for name in NODES]
        self.by_name = {node.name: node for node in self.nodes}
        self.leader = self.nodes[0]
        self._rng = random.Random(f"{self.plan.seed} writer")
        self._waiting: list[tuple[int, str, tuple[str, int], int]] = []
        self._sent: dict[str, bytes] = {}
        self._stored: dict[str, tuple[tuple[str, int], int]] = {}
        self._restarts: set[asyncio.Task[None]] = set()
        self._promoting = False

    async def find(self) -> Master | None:
        """Tell a slave where its master is, as a nameserver does."""
        return Master(f"{self.leader.machine.ip}:{HA_PORT}", self.leader.name)

    async def ask(self, slave: Node) -> MasterLog:
        """Tell a slave about the log of its master, as the master does."""
        leader = self.leader
        one, other = slave.machine.ip, leader.machine.ip
        await asyncio.sleep(0.001)
        if not leader.up or leader.master is None or self.network.is_blocked(one, other) or self.network.is_blocked(other, one):
            raise ConnectFailed(leader.name, "broker", "it is out of reach")
        epochs = leader.store.epochs.entries
        segments = leader.store.segments()
        begin, size = (segments[0][0], segments[0][1]) if segments else (leader.end, None)
        return MasterLog(begin, leader.end, epochs or None, size)

    # --- writing ---

    async def _write(self) -> None:
        rng, number = self._rng, 0
        while not self.over_writing:
            await asyncio.sleep(rng.choice((0.0, 0.001, 0.01, 0.05)))
            leader = self.leader
            if not leader.up or leader.master is None or leader.process is None or leader.process.frozen or self._promoting:
                continue
            staged = []
            for _ in range(rng.choice((1, 1, 2, 5))):
                topic, queue_id, size = rng.choice((TOPIC, BATCH_TOPIC)), rng.randrange(QUEUES), rng.choice((1, 1, 4))
                staged += leader.process.call(self._stage, leader.store, (topic, queue_id), size, number)
                number += size
            try:
                leader.store.commit()
            except SprocketError as e:
                self.problems.append(f"{leader.name} cannot write: {e!r}")
                return
            if leader.process is None:
                continue  # it crashed in the middle of that
            self.trace.note(f"{leader.name} has {staged[0][0]} to {staged[-1][0]}, log end {leader.end}")
            self._waiting += [(leader.end, *one) for one in staged]
            leader.process.call(leader.master.wrote)

    def _stage(self, store: MessageStore, key: tuple[str, int], size: int, number: int) -> list[tuple[str, tuple[str, int], int]]:
        rng = self._rng
        identities = [f"{number + i}" for i in range(size)]
        bodies = [f"{identity} ".encode() + rng.randbytes(rng.choice((0, 30, 200, 900))) for identity in identities]
        self._sent |= dict(zip(identities, bodies, strict=True))
        texts = [encode_properties({"KEYS": identity}) for identity in identities]
        common: dict[str, Any] = {"tags_code": 0, "born_timestamp_ms": 1, "born_host": HOST}
        if size == 1:
            offset, _ = store.stage_message(*key, bodies[0], texts[0], **common)
        elif key[0] == BATCH_TOPIC:
            batch = encode_batch([(0, body, text) for body, text in zip(bodies, texts, strict=True)])
            offset, _ = store.stage_inner_batch(*key, batch, texts[0], count=size, **common)
        else:
            offsets = [store.stage_message(*key, body, text, **common)[0] for body, text in zip(bodies, texts, strict=True)]
            offset = offsets[0]
        return [(identity, key, offset + i) for i, identity in enumerate(identities)]

    def acknowledge(self, end: int) -> None:
        """Acknowledge what waits and ends at ``end`` or before it."""
        if self._waiting and self._waiting[0][0] <= end:
            self.trace.note(f"acknowledged up to {end}")
        while self._waiting and self._waiting[0][0] <= end:
            _, identity, key, offset = self._waiting.pop(0)
            self._stored[identity] = (key, offset)

    def gone(self, node: Node) -> None:
        """Forget what waited for an answer of a master that is no more."""
        if node is self.leader:
            self._waiting.clear()

    @property
    def acknowledged(self) -> int:
        return len(self._stored)

    # --- the course ---

    async def main(self) -> None:
        self.over_writing = False
        with patch.object(follower, "COMPARE_BYTES", self.plan.compare_bytes):
            await self._course()

    async def _course(self) -> None:
        for node in self.nodes:
            await node.start()
        began = self.loop.time()
        writing = self.loop.create_task(self._write())
        for fault in self.plan.faults:
            await asyncio.sleep(max(0.0, began + fault.at_s - self.loop.time()))
            self.trace.note(f"fault: {fault}")
            self._restarts.add(self.loop.create_task(self._suffer(fault)))
        await asyncio.sleep(max(0.0, began + self.plan.duration_s - self.loop.time()))
        self.over_writing = True
        await writing
        await asyncio.gather(*self._restarts)
        await self._heal()
        await self._settle()
        self._compare()
        for node in self.nodes:
            await node.stop()

    async def _suffer(self, fault: Fault) -> None:
        node = self.by_name[fault.machines[0]]
        kind = fault.kind
        if kind == "stop":
            await node.stop()
        elif kind == "crash at call":
            node.crash_at(fault.number, fault.mode)
        elif kind in {"kill", "power"}:
            node.crash(fault.mode)
        elif kind == "promote":
            await self._promote()
            return
        elif kind == "freeze":
            process = node.process
            if process is not None:
                process.freeze()
                await asyncio.sleep(fault.for_s)
                process.resume()
            return
        else:
            one, other = (IPS[name] for name in fault.machines)
            if kind == "reset":
                for transport in self.network.connections_between(one, other):
                    self.network.reset(transport)
                return
            if kind == "block":
                self.network.block(one, other, one_way=fault.mode == "one way")
            else:
                self.network.slow_down(one, other, float(fault.mode))
            await asyncio.sleep(fault.for_s)
            self.network.heal()
            return
        await asyncio.sleep(fault.for_s)
        await node.start()

    async def _promote(self) -> None:
        """Make the slave that has most the master; the others follow it, the old master as soon as it is told."""
        slaves = [node for node in self.nodes if node is not self.leader]
        if self._promoting or not all(node.up and node.process is not None and not node.process.frozen for node in slaves):
            return
        if self.leader.end and not any(node.end for node in slaves):
            return  # a broker refuses: the old master could not follow
        self._promoting = True
        old = self.leader
        # The other slave must be told first: the old master could go on and acknowledge with its help.
        for node in slaves:
            if node.process is not None and node.follower is not None:
                await node.process.run(node.follower.stop())
        if not all(node.up for node in slaves):  # killed meanwhile
            for node in slaves:
                if node.up and node.process is not None:
                    node.process.call(node._follow)
            self._promoting = False
            return
        new = max(slaves, key=lambda node: node.end)
        self._waiting.clear()  # what is not acknowledged now never will be
        self.leader = new
        new.follower = None
        new.store.lead()
        new.store.epochs.begin(promotion_epoch(new.store.epochs.last.number), new.end)
        self.trace.note(f"{new.name} is promoted at {new.end}, epochs {new.store.epochs.entries}")
        if new.process is not None:
            await new.process.run(new._lead())
        for node in slaves:
            if node is not new and node.process is not None:
                node.process.call(node._follow)
        if old.up and old.process is not None and not old.process.frozen:
            await old.stop(clean=True)
            await old.start()
        elif old.up:
            old.crash("keep")
            await old.start()
        self._promoting = False

    async def _heal(self) -> None:
        self.trace.note("everything heals")
        self.network.heal()
        for node in self.nodes:
            node.fs.on_call = None
            if node.process is not None and node.process.frozen:
                node.process.resume()
            await node.start()

    async def _settle(self) -> None:
        """Wait until both slaves have what the master has, and dispatched it."""
        slaves = [node for node in self.nodes if node is not self.leader]
        for _ in range(int(SETTLE_S / 0.25)):
            end = self.leader.end
            if (
                self.leader.master is not None
                and self.leader.master.replicated(len(slaves)) >= end  # the slave of an empty log reports 1
                and all(
                    node.follower is not None
                    and node.follower.state is FollowerState.FOLLOWING
                    and node.end == end
                    and node.replica.dispatched_end == end
                    for node in slaves
                )
            ):
                return
            await asyncio.sleep(0.25)
        states = [
            f"{node.name} {node.follower.state.name if node.follower else 'leads'} at {node.end} ({node.replica.dispatched_end if node.follower else ''}): {node.follower.reason if node.follower else ''}"
            for node in self.nodes
        ]
        raise BrokenPromise(f"the slaves do not follow: {'; '.join(states)}")

    # --- checks ---

    def _compare(self) -> None:
        leader = self.leader
        whole = log_bytes(leader.store)
        for node in self.nodes:
            if node is leader:
                continue
            held = log_bytes(node.store)
            begin = leader.store.commitlog_min_offset
            at = next((i for i, (a, b) in enumerate(zip(held, whole, strict=False)) if a != b), min(len(held), len(whole)))
            self.check(held == whole, f"the log of {node.name} differs from the master's at {begin + at}")
            self.check(
                node.store.epochs.entries == leader.store.epochs.entries,
                f"{node.name} has epochs {node.store.epochs.entries}, the master {leader.store.epochs.entries}",
            )
        queues = {node.name: self._queues(node) for node in self.nodes}
        for name, found in queues.items():
            self.check(found == queues[leader.name], f"the queues of {name} differ from the master's")
        found = queues[leader.name]
        for key, bodies in found.items():
            for body in bodies.values():
                identity = body.partition(b" ")[0].decode()
                self.check(self._sent.get(identity) == body, f"{key} has {body[:20]!r}, which nobody sent")
        for identity, (key, offset) in self._stored.items():
            self.check(
                found[key].get(offset) == self._sent[identity],
                f"{identity} was acknowledged at {key} {offset} and is not there: {found[key].get(offset, b'nothing')[:10]!r}",
            )

    def _queues(self, node: Node) -> dict[tuple[str, int], dict[int, bytes]]:
        node.store.publish(node.store.flush_log())
        return {
            (topic, queue_id): read_queue(node.store, (topic, queue_id))[2] for topic in (TOPIC, BATCH_TOPIC) for queue_id in range(QUEUES)
        }


def log_bytes(store: MessageStore) -> bytes:
    found, log_offset = [], store.commitlog_min_offset
    while data := store.raw(log_offset, 1 << 20):
        found.append(bytes(data))
        log_offset += len(data)
    return b"".join(found)
