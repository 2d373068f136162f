"""A simulated run of a broker, its nameserver and its clients: a plan is carried out, everything heals, and what is there is checked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.simulation.clients import GROUP, QUEUES, TOPICS, Operator, Receiver, Sender, create_topics, identity_of
from tests.simulation.course import BrokenPromise, Course
from tests.simulation.logs import log_bytes
from tests.simulation.machines import HA_PORT, SimBroker, SimNameServer
from tests.simulation.plan import BROKERS, Fault, Plan

from sprocketmq.broker.replication.follower import FollowerState
from sprocketmq.broker.replication.roles import Role
from sprocketmq.storage.store import MessageStore
from sprocketmq.testing.ledger import Ledger, LedgerReport
from sprocketmq.testing.rig.network import Network, Process
from sprocketmq.testing.rig.small_store import read_queue

# The virtual time within which everything must have arrived once nothing fails any more.
SETTLE_S = 120.0
SETTLE_STEP_S = 0.25
IPS = {
    "nameserver": "10.0.0.1",
    "broker": "10.0.1.1",
    "slave-1": "10.0.1.2",
    "slave-2": "10.0.1.3",
    "producer": "10.0.2.1",
    "consumer": "10.0.2.2",
    "operator": "10.0.2.3",
}
# How soon a slave comes back that crashes while one is promoted.
RESTART_S = 0.5
# How long the load goes on after a promotion.
AFTER_PROMOTION_S = 1.0
# What may keep a broker from answering: a promotion waits until it is over, as an operator does who does not want to lose anything.
SILENCING = {"kill", "power", "crash at call", "stop", "freeze", "block", "slow"}


class Cluster(Course):
    """The machines and the course of one run."""

    plan: Plan

    def prepare(self) -> None:
        plan = self.plan
        self.network = Network(self.loop, seed=plan.seed, trace=self.trace)
        self.nameserver = SimNameServer(self.network, IPS["nameserver"])
        self.brokers = {
            name: SimBroker(
                self.network, name, IPS[name], seed=plan.seed, flush=plan.flush, nameserver=self.nameserver.address, **self._role(number)
            )
            for number, name in enumerate(BROKERS[: plan.slaves + 1])
        }
        self.broker = self.brokers["broker"]
        self.ledger = Ledger(seed=plan.seed)
        namesrv = self.nameserver.address
        self.sender = Sender(self.network, IPS["producer"], seed=plan.seed, nameserver=namesrv, ledger=self.ledger)
        self.receiver = Receiver(self.network, IPS["consumer"], nameserver=namesrv)
        self.operator = Operator(self.network, IPS["operator"], nameserver=namesrv) if plan.promotes else None
        self.overtaken: set[str] = set()
        self._undisturbed = asyncio.Lock()
        self._restarts: set[asyncio.Task[None]] = set()

    @property
    def servers(self) -> tuple[SimNameServer | SimBroker, ...]:
        return self.nameserver, *self.brokers.values()

    @property
    def slaves(self) -> list[SimBroker]:
        return [broker for broker in self.brokers.values() if broker is not self.broker]

    def _role(self, number: int) -> dict[str, Any]:
        if not self.plan.slaves:
            return {}
        role: dict[str, Any] = {"role": Role.SLAVE, "broker_id": number} if number else {"role": Role.SYNC_MASTER, "slave_timeout_s": 1.0}
        return {**role, "ha_port": HA_PORT, "ha_heartbeat_s": 1.0, "ha_housekeeping_s": 5.0}

    @property
    def acknowledged(self) -> int:
        return len(self.sender.acknowledged)

    # --- the run ---

    async def main(self) -> None:
        """Start, let it work and fail, heal, and check."""
        await self.nameserver.start()
        for broker in self.brokers.values():
            await broker.start()
        await self.sender.process.run(create_topics(self.nameserver.address, self.sender.clock))
        watching = self.loop.create_task(self._watch_offsets())
        began = self.loop.time()
        sending = self.sender.process.run(self.sender.run(self.plan.ways))
        receiving = self.receiver.process.run(self.receiver.run())
        for fault in self.plan.faults:
            await asyncio.sleep(max(0.0, began + fault.at_s - self.loop.time()))
            self.trace.note(f"fault: {fault}")
            self._restarts.add(self.loop.create_task(self._suffer(fault)))
        await asyncio.sleep(max(0.0, began + self.plan.duration_s - self.loop.time()))
        if self.operator is not None:
            await asyncio.gather(*self._restarts)
            await asyncio.sleep(AFTER_PROMOTION_S)
        self.sender.stopped = True
        await asyncio.gather(*self._restarts)
        await self._heal()
        await sending
        await self._settle(receiving)
        await self._close(receiving)
        watching.cancel()
        for server in self.servers:
            await server.ended()
            self.problems += server.problems
            if isinstance(server, SimBroker):
                self.crashes += server.crashes
        self._check_messages()

    async def _suffer(self, fault: Fault) -> None:
        """Let a fault happen, and end."""
        if fault.kind == "promote":
            async with self._undisturbed:
                await self._promote(fault)
        elif self.operator is not None and fault.kind in SILENCING and not {*BROKERS}.isdisjoint(fault.machines):
            async with self._undisturbed:
                await self._happen(fault)
        else:
            await self._happen(fault)

    async def _promote(self, fault: Fault) -> None:
        """Lose the master or not, promote a slave, and let the former master return."""
        assert self.operator is not None
        master, mode = self.master, fault.mode
        returning = self.loop.create_task(self._lose(master, fault))
        crashing = (lambda slave: slave.crash_at(fault.number, "keep")) if mode == "slave crashes" else None
        promoting = self.operator.process.run(self.operator.promote(self.brokers, crashing))
        while not (promoting.done() and returning.done()):
            await asyncio.wait([promoting, returning], timeout=RESTART_S)
            for slave in self.brokers.values():
                if slave is not master or returning.done():
                    await slave.start()
        await asyncio.gather(returning, promoting)

    async def _lose(self, master: SimBroker, fault: Fault) -> None:
        mode, network = fault.mode, self.network
        if mode == "master stops":
            await master.stop()
        elif mode == "master is killed":
            master.crash("keep")
        elif mode in {"master is cut off from servers", "master is isolated"}:
            servers = [server.machine.ip for server in self.servers if server is not master]
            for ip in servers if mode == "master is cut off from servers" else [ip for ip in IPS.values() if ip != master.machine.ip]:
                network.block(master.machine.ip, ip)
        await asyncio.sleep(fault.for_s)
        network.heal()
        await master.start()

    async def _happen(self, fault: Fault) -> None:
        kind, network = fault.kind, self.network
        if kind in {"kill", "power", "crash at call", "stop"}:
            broker = self.brokers[fault.machines[0]]
            if kind == "stop":
                await broker.stop()
            elif kind == "crash at call":
                broker.crash_at(fault.number, fault.mode)
            else:
                broker.crash(fault.mode)
            await asyncio.sleep(fault.for_s)
            await broker.start()
        elif kind == "nameserver":
            self.nameserver.kill()
            await asyncio.sleep(fault.for_s)
            if self.nameserver.process is None:
                await self.nameserver.start()
        elif kind == "freeze":
            process = self._process(fault.machines[0])
            if process is not None:
                process.freeze()
                await asyncio.sleep(fault.for_s)
                process.resume()
        elif kind == "clock":
            self._clock(fault.machines[0]).jump_wall(float(fault.mode))
        else:
            one, other = (IPS[name] for name in fault.machines)
            if kind == "reset":
                for transport in network.connections_between(one, other):
                    network.reset(transport)
                return
            if kind == "block":
                network.block(one, other, one_way=fault.mode == "one way")
            else:
                network.slow_down(one, other, float(fault.mode))
            await asyncio.sleep(fault.for_s)
            network.heal()

    def _process(self, name: str) -> Process | None:
        return self._machine(name).process

    def _clock(self, name: str) -> Any:
        return self._machine(name).clock

    def _machine(self, name: str) -> Any:
        return {"nameserver": self.nameserver, **self.brokers, "producer": self.sender, "consumer": self.receiver}[name]

    async def _heal(self) -> None:
        self.trace.note("everything heals")
        self.network.heal()
        if self.nameserver.process is None:
            await self.nameserver.start()
        for broker in self.brokers.values():
            broker.fs.on_call = None
            await broker.start()

    async def _settle(self, receiving: asyncio.Task[None]) -> None:
        """Wait until the consumer has everything that was acknowledged."""
        for _ in range(int(SETTLE_S / SETTLE_STEP_S)):
            missing = [identity for identity in self.sender.acknowledged if identity not in self.receiver.seen]
            in_step = self._in_step()
            if in_step and missing and self.operator is not None:
                self.overtaken = self._overtaken() - self.receiver.seen
                missing = [identity for identity in missing if identity not in self.overtaken]
            if in_step and not missing:
                return
            if receiving.done():
                break
            await asyncio.sleep(SETTLE_STEP_S)
        reason = f", it ended with {receiving.exception()!r}" if receiving.done() else ""
        behind = [
            f"{slave.name} at {slave.log_end}, queues {slave.visible(TOPICS, QUEUES)}, epochs {[*map(tuple, slave.epochs)]},"
            f" {slave.follower.state.name if slave.follower else 'no slave'} {slave.follower.reason if slave.follower else ''}"
            for slave in (self.broker, *self.slaves)
        ]
        self.check(missing, f"the slaves do not follow {self.broker.name}: {'; '.join(behind)}")
        raise BrokenPromise(f"the consumer has not got {len(missing)} acknowledged messages: {', '.join(missing[:5])}{reason}")

    def _overtaken(self) -> set[str]:
        """Return the messages in whose places the consumer has read others.

        Readers see what a master stores without its slaves, and tells its sender so. Its successor has other messages in these places.
        """
        assert self.broker.broker is not None
        store = self.broker.broker.store
        read = {(queue, offset) for _, _, queue, offset in self.receiver.got}
        return {
            identity_of(body)
            for topic in TOPICS
            for queue_id in range(QUEUES)
            for offset, body in read_queue(store, (topic, queue_id))[2].items()
            if (f"{topic}/{queue_id}", offset) in read
        }

    async def _close(self, receiving: asyncio.Task[None]) -> None:
        await self.receiver.process.run(self.receiver.close())
        await receiving
        for broker in self.brokers.values():
            await broker.stop()
        await self.nameserver.stop()

    @property
    def master(self) -> SimBroker:
        """The broker that leads in the newest epoch, or did last."""
        newest = max(self.brokers.values(), key=lambda broker: broker.leads_since)
        if newest.leads_since >= 0:
            self.broker = newest
        return self.broker

    def _in_step(self) -> bool:
        """Return whether all slaves have what the master has."""
        return self.master is self.broker and all(
            slave.follower is not None
            and slave.follower.state is FollowerState.FOLLOWING
            and slave.log_end == self.broker.log_end
            and slave.visible(TOPICS, QUEUES) == self.broker.visible(TOPICS, QUEUES)
            and slave.epochs == self.broker.epochs  # else it follows what the master was before it lost power
            for slave in self.slaves
        )

    async def _watch_offsets(self) -> None:
        """What a slave has copied of a group's progress never goes back, whatever happens to the master, until the slave is restarted.

        A promoted slave may have copied less of it than another one: the group reads the rest again.
        """
        highest: dict[tuple[str, int, str, int], int] = {}
        while not self.over and self.operator is None:
            for slave in self.slaves:
                broker = slave.broker
                if broker is None or not broker.replication.metadata.synced:
                    continue
                for topic in TOPICS:
                    for queue_id in range(QUEUES):
                        key = (slave.name, id(broker), topic, queue_id)
                        offset = broker.offsets.get(GROUP, topic, queue_id) or 0
                        if offset < highest.get(key, 0):
                            self.problems.append(f"{slave.name}: offset of {topic}/{queue_id} goes back from {highest[key]} to {offset}")
                        highest[key] = offset
            await asyncio.sleep(0.05)

    # --- checks ---

    def _check_messages(self) -> None:
        self.check(not self.sender.disordered, f"acknowledged out of order: {self.sender.disordered[:5]}")
        self.check(not self.sender.final, f"failed for good: {self.sender.final[:5]}")
        for identity, body, queue, offset in self.receiver.got:
            self.ledger.received(identity, body, queue=queue, offset=offset)
        consumed = self.ledger.check()
        self._report("consumed", replace(consumed, lost=tuple(one for one in consumed.lost if one not in self.overtaken)))
        self.ledger.read_again()
        store = self._opened(self.broker)
        whole = log_bytes(store)
        for slave in self.slaves:
            copy = self._opened(slave)
            self.check(log_bytes(copy) == whole, f"the log of {slave.name} is not the master's")
            ours, theirs = copy.epochs.entries, store.epochs.entries
            self.check(ours == theirs, f"{slave.name} has epochs {ours}, the master {theirs}")
            copy.abandon()
        try:
            for topic in TOPICS:
                for queue_id in range(QUEUES):
                    low, high, found = read_queue(store, (topic, queue_id))
                    gaps = set(range(low, high)) - found.keys()
                    # A loss of power may take a message that was never flushed and leave a later one.
                    self.check(not gaps or self.plan.loses_power, f"{topic}/{queue_id} has gaps at {sorted(gaps)}")
                    self.check(low == 0 or self.plan.loses_power, f"{topic}/{queue_id} begins at {low}")
                    for offset, body in found.items():
                        self.ledger.received(identity_of(body), body, queue=f"{topic}/{queue_id}", offset=offset)
        finally:
            store.abandon()
        stored = self.ledger.check()
        self._report("stored", stored)
        # Only what the broker delivers later by itself may be there twice, after a crash between delivering and noting it.
        twice = [identity for identity in stored.duplicates if not identity.startswith("delayed")]
        self.check(not twice, f"stored twice: {twice[:5]}")

    @staticmethod
    def _opened(broker: SimBroker) -> MessageStore:
        store = MessageStore(broker.config.store, fs=broker.fs, clock=broker.clock)
        store.open()
        return store

    def _report(self, what: str, report: LedgerReport) -> None:
        problems = report.problems(duplicates_allowed=True)
        self.check(not problems, f"{what}: {problems}")
