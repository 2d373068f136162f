"""A network of simulated machines: connections in memory that are slow, cut, blocked and healed.

::

    network = Network(loop, seed=7, trace=Trace(loop.time))
    machine = network.machine("broker", "10.0.1.1")
    process = machine.start("broker")
    await process.run(broker.start())     # everything it starts belongs to the process
    network.block("10.0.1.1", "10.0.2.1")     # a partition: nothing arrives, nothing is reported
    process.kill()                            # kill -9: peers see their connections end

What can happen:

* Bytes arrive late, in pieces of any length; in order on one connection, in any order on several.
* Between two machines nothing arrives for a time (``block``, also in one direction): connections stay open, and what was sent arrives
  after ``heal``. Connecting waits.
* A connection is reset (``reset``): both sides lose it at different times, and what was under way is lost.
* A process is stopped for a time (``freeze``) or killed; a machine loses power (``switch_off``), of which nobody hears anything.
"""

import asyncio
import errno
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context, copy_context
from typing import Any, TypeVar

from sprocketmq.testing.rig.sim_transport import Address, SimTransport
from sprocketmq.testing.rig.trace import Trace
from sprocketmq.testing.rig.virtual_loop import VirtualHandle, VirtualLoop, owner

_T = TypeVar("_T")

FIRST_FREE_PORT = 40_000
# Typical one-way latency, and the latency of the one piece in SLOW_ONE_IN that a switch holds up.
LATENCY_S = 0.0005
SLOW_LATENCY_S = 0.03
SLOW_ONE_IN = 50


class Process:
    """A running program: its tasks and callbacks, its connections and listeners."""

    def __init__(self, machine: "Machine", name: str) -> None:
        self.machine = machine
        self.name = name
        self.frozen = False
        self.alive = True
        self.parked: deque[VirtualHandle] = deque()
        self.connections: dict[SimTransport, None] = {}
        self.listeners: dict[int, _Listener] = {}
        self.context = copy_context()
        self.context.run(owner.set, self)

    def run(self, work: Awaitable[_T], name: str = "") -> "asyncio.Task[_T]":
        """Run ``work`` as a task of this process."""

        async def wait() -> _T:
            return await work

        return self.machine.network.loop.create_task(wait(), name=f"{self.name}: {name}", context=self.context.copy())

    def call(self, function: Callable[..., _T], *args: Any) -> _T:
        """Call a function as this process does."""
        return self.context.copy().run(function, *args)

    def freeze(self) -> None:
        """Stop it, as SIGSTOP does."""
        self.frozen = True

    def resume(self) -> None:
        self.machine.network.loop.resume(self)

    def kill(self) -> None:
        """Cut it off from its connections, whose peers see them end: after all bytes that were sent, or at once.

        Its tasks go on, and reach nobody: end them.
        """
        self._leave()
        for transport in list(self.connections):
            if transport.out.rng.random() < 0.5:
                transport.out.lose_unsent()
                transport.out.end()
            else:
                transport.out.break_off()
                transport.peer.reset_soon()

    def vanish(self) -> None:
        """Cut it off from its connections, of which their peers hear nothing until the machine is back and they send something."""
        self._leave()
        for transport in list(self.connections):
            transport.out.break_off()

    def _leave(self) -> None:
        self.alive = False
        for listener in list(self.listeners.values()):
            listener.close()
        for transport in list(self.connections):
            transport.dead = True
            transport.pause_reading()
            transport.peer.out.break_off()
        if self.frozen:
            self.resume()


class _Socket:
    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address


class _Listener(asyncio.AbstractServer):
    """Accepts connections at one port of a machine."""

    def __init__(self, process: Process, port: int, factory: Callable[[], asyncio.BaseProtocol], context: Context) -> None:
        self.process = process
        self.port = port
        self.factory = factory
        self.context = context
        self.sockets = (_Socket((process.machine.ip, port)),)

    def close(self) -> None:
        self.process.listeners.pop(self.port, None)
        if self.process.machine.listeners.get(self.port) is self:
            del self.process.machine.listeners[self.port]

    async def wait_closed(self) -> None:
        """Return: ``close`` has closed it."""

    async def start_serving(self) -> None:
        """Return: it listens from the start."""

    async def serve_forever(self) -> None:
        await asyncio.Event().wait()

    def is_serving(self) -> bool:
        return self.process.machine.listeners.get(self.port) is self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.process.machine.network.loop


class Machine:
    """One computer with an IP address; ``powered`` tells whether it runs."""

    def __init__(self, network: "Network", name: str, ip: str) -> None:
        self.network = network
        self.name = name
        self.ip = ip
        self.powered = True
        self.listeners: dict[int, _Listener] = {}
        self._processes: list[Process] = []
        self._next_port = FIRST_FREE_PORT

    def start(self, name: str) -> Process:
        """Return a new process."""
        process = Process(self, name)
        self._processes.append(process)
        return process

    def switch_off(self) -> None:
        """Lose power: its processes end, and their peers hear nothing of it."""
        self.powered = False
        for process in self._processes:
            if process.alive:
                process.vanish()

    def switch_on(self) -> None:
        """Have power again; what peers send on connections of before is answered by a reset."""
        self.powered = True
        self.network.proceed()

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port


class Network:
    """The machines and what is between them."""

    def __init__(self, loop: VirtualLoop, *, seed: str, trace: Trace) -> None:
        self.loop = loop
        self.trace = trace
        self.machines: dict[str, Machine] = {}
        self.slow_s: dict[tuple[str, str], float] = {}
        self._seed = seed
        self._connections = 0
        self._open: dict[SimTransport, None] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._waiting: list[Callable[[], None]] = []
        self._healed = asyncio.Event()
        loop.network = self

    def machine(self, name: str, ip: str) -> Machine:
        """Add a machine."""
        machine = self.machines[ip] = Machine(self, name, ip)
        return machine

    # --- faults ---

    def is_blocked(self, source: str, target: str) -> bool:
        """Return whether what ``source`` sends does not arrive at ``target`` for now."""
        return (source, target) in self._blocked or not (self.machines[source].powered and self.machines[target].powered)

    def block(self, source: str, target: str, *, one_way: bool = False) -> None:
        """Let nothing from ``source`` arrive at ``target``, nor the other way round unless ``one_way``."""
        self._blocked.add((source, target))
        if not one_way:
            self._blocked.add((target, source))

    def heal(self) -> None:
        """Remove all blocks and delays."""
        self._blocked.clear()
        self.slow_s.clear()
        self.proceed()

    def proceed(self) -> None:
        """Go on wherever something is no longer blocked."""
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            action()
        self._healed.set()
        self._healed = asyncio.Event()

    def when_healed(self, action: Callable[[], None]) -> None:
        """Call ``action`` when something that was blocked no longer is."""
        self._waiting.append(action)

    def slow_down(self, source: str, target: str, seconds: float) -> None:
        """Let everything between two machines take ``seconds`` longer."""
        self.slow_s[source, target] = self.slow_s[target, source] = seconds

    def connections_between(self, one: str, other: str) -> Iterator[SimTransport]:
        """Return one end of each connection between two machines."""
        return (transport for transport in list(self._open) if transport.host == one and transport.peer.host == other)

    def reset(self, transport: SimTransport) -> None:
        """Reset one connection: either side notices after a latency of its own."""
        transport.out.break_off()
        transport.peer.out.break_off()
        transport.reset_soon()
        transport.peer.reset_soon()

    def latency_s(self, source: str, target: str, rng: random.Random) -> float:
        """Return how long the next piece takes."""
        latency = SLOW_LATENCY_S if rng.randrange(SLOW_ONE_IN) == 0 else LATENCY_S
        return latency * (0.2 + rng.random()) + self.slow_s.get((source, target), 0.0)

    # --- the loop's calls ---

    def _process(self) -> Process:
        process = owner.get()
        if not isinstance(process, Process):
            raise TypeError("only a process of a simulated machine can use the network: start it by Process.run")
        return process

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        process = self._process()
        here = process.machine.ip
        if host not in self.machines:
            raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
        self._connections += 1
        number = self._connections
        rng = random.Random(f"{self._seed} connection {number}")
        while self.is_blocked(here, host) or self.is_blocked(host, here) or not process.alive:
            await self._healed.wait()
        await asyncio.sleep(self.latency_s(here, host, rng))
        listener = self.machines[host].listeners.get(port)
        if listener is None or not process.alive:
            await asyncio.sleep(self.latency_s(host, here, rng))
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        local, remote = (here, process.machine.free_port()), (host, port)
        client = SimTransport(self, local, remote, copy_context())
        server = SimTransport(self, remote, local, listener.context.copy())
        protocol = factory()
        accepted = server.context.run(listener.factory)
        name = f"{number} {process.machine.name}-{self.machines[host].name}"
        client.connect(server, protocol, f"{name} >", random.Random(f"{self._seed} connection {number} >"))
        server.connect(client, accepted, f"{name} <", random.Random(f"{self._seed} connection {number} <"))
        self.trace.note(f"{name} connected to port {port}")
        for transport, its_process in ((client, process), (server, listener.process)):
            self._open[transport] = None
            its_process.connections[transport] = None
            transport.on_closed = self._closed
        self.loop.call_soon(accepted.connection_made, server, context=server.context)
        protocol.connection_made(client)
        return client, protocol

    def _closed(self, transport: SimTransport) -> None:
        self._open.pop(transport, None)
        process = transport.context.get(owner)
        if isinstance(process, Process):
            process.connections.pop(transport, None)

    async def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.AbstractServer:
        process = self._process()
        machine = process.machine
        if not process.alive:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if host not in {machine.ip, "0.0.0.0"}:  # noqa: S104 - the wildcard of every machine
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        port = port or machine.free_port()
        if port in machine.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = _Listener(process, port, factory, copy_context())
        machine.listeners[port] = process.listeners[port] = listener
        return listener
