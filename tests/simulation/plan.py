"""What a simulated run is made of: settings, ways to send, and faults at given times. A seed gives a plan, and a plan can be made for_ser.

Every fault ends by itself: what it stopped or cut goes on after ``for_s``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tests.simulation.course import Outcome, carry_out

MODES = {"kill": ("keep", "cut"), "power": ("drop", "reorder", "torn")}
BROKERS = ("broker", "slave-1", "slave-2")
WAYS = ("single", "submitted", "batch", "lists", "auto", "delayed")
# What happens to the master before one of its slaves is promoted; or to that slave meanwhile, at a call to its disk.
PROMOTIONS = ("master lives", "master stops", "master is killed", "master is cut off from servers", "master is isolated", "slave crashes")


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at ``at_s``: ``kind`` is one of KINDS, ``machines`` whom it concerns, ``mode`` how (see ``faults.py``)."""

    at_s: float
    kind: str
    machines: tuple[str, ...]
    for_s: float = 0.0
    mode: str = ""
    number: int = 0

    def __str__(self) -> str:
        more = [f"for {self.for_s:g} s"] * bool(self.for_s) + [self.mode] * bool(self.mode) + [f"at call {self.number}"] * bool(self.number)
        return f"{self.at_s:6.3f} s  {self.kind} {' '.join(self.machines)} {', '.join(more)}".rstrip()


def fewer(faults: tuple[Fault, ...]) -> list[tuple[Fault, ...]]:
    """Return each half of the faults, then all but each one."""
    half = len(faults) // 2
    halves = [faults[:half], faults[half:]] if half > 1 else []
    return halves + [faults[:i] + faults[i + 1 :] for i in range(len(faults))]


def random_moments(rng: random.Random, duration_s: float, count: int) -> list[tuple[float, float]]:
    """Return ``count`` moments in the order of time, and how long what begins then takes."""
    moments = sorted(round(rng.uniform(0, duration_s), 3) for _ in range(count))
    return [(at_s, round(rng.choice((0.05, 0.3, 1.0, 4.0)) * rng.uniform(0.5, 1.5), 3)) for at_s in moments]


@dataclass(frozen=True)
class Plan:
    """One run."""

    seed: str
    flush: str
    ways: tuple[str, ...]
    duration_s: float
    faults: tuple[Fault, ...]
    slaves: int = 0

    @property
    def loses_power(self) -> bool:
        """Whether a disk may lose what was not synced."""
        return any(fault.mode in MODES["power"] for fault in self.faults)

    @property
    def promotes(self) -> bool:
        """Whether a slave becomes the master."""
        return any(fault.kind == "promote" for fault in self.faults)

    def shorter(self) -> list[Plan]:
        """Return plans that are a little simpler than this one, the simplest first."""
        found = [replace(self, faults=faults) for faults in fewer(self.faults)]
        if len(self.ways) > 1:
            found += [replace(self, ways=self.ways[:i] + self.ways[i + 1 :]) for i in range(len(self.ways))]
        if self.duration_s > 0.25:
            found.append(replace(self, duration_s=self.duration_s / 2))
        return found

    def run(self) -> Outcome:
        from tests.simulation.cluster import Cluster

        return carry_out(self, Cluster)

    def __str__(self) -> str:
        head = f"seed {self.seed}: {self.slaves} slaves, {self.flush}, {self.duration_s:g} s, sends: {' '.join(self.ways)}"
        return "\n".join([head, *(f"  {fault}" for fault in self.faults)])


def make_replicated_plan(seed: str) -> Plan:
    """Return the plan of a seed, for a SYNC_MASTER with two slaves, one of which is promoted in every third plan."""
    plan = make_plan(seed, slaves=2)
    rng = random.Random(f"{seed} promotions")
    if rng.random() > 1 / 3:
        return plan
    # What a slave has is in its memory until it flushes: where one becomes the master, no machine loses power.
    faults = [replace(fault, kind="kill", mode="keep", number=0) if fault.mode in MODES["power"] else fault for fault in plan.faults]
    for at_s, for_s in random_moments(rng, plan.duration_s, rng.choice((1, 1, 2))):
        mode = rng.choice(PROMOTIONS)
        faults.append(Fault(at_s, "promote", (), for_s, mode, rng.randrange(1, 40) if mode == "slave crashes" else 0))
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))


def make_plan(seed: str, *, slaves: int = 0) -> Plan:
    """Return the plan of a seed."""
    rng = random.Random(f"{seed} plan")
    flush = rng.choice(("SYNC_FLUSH", "SYNC_FLUSH", "ASYNC_FLUSH"))
    duration_s = rng.choice((1.0, 2.0, 4.0))
    ways = tuple(sorted(rng.sample(WAYS, rng.randrange(1, 4)), key=WAYS.index))
    moments = random_moments(rng, duration_s, rng.choice((0, 1, 2, 3, 5)))
    return Plan(seed, flush, ways, duration_s, tuple(_fault(rng, at_s, for_s, flush, slaves) for at_s, for_s in moments), slaves)


def _fault(rng: random.Random, at_s: float, for_s: float, flush: str, slaves: int) -> Fault:
    broker = rng.choice(BROKERS[: slaves + 1]) if slaves else BROKERS[0]
    machines = ("producer", "consumer", "nameserver")
    kinds = ["kill", "kill", "crash at call", "stop", "reset", "reset", "block", "slow", "freeze", "clock", "nameserver"]
    if flush == "SYNC_FLUSH":  # with ASYNC_FLUSH the loss of power may lose what was acknowledged
        kinds += ["power", "power"]
    kind = rng.choice(kinds)
    if kind in {"kill", "power"}:
        return Fault(at_s, kind, (broker,), for_s, rng.choice(MODES[kind]))
    if kind == "crash at call":
        modes = MODES["kill"] + (MODES["power"] if flush == "SYNC_FLUSH" else ())
        return Fault(at_s, kind, (broker,), for_s, rng.choice(modes), rng.randrange(1, 60))
    if kind == "stop":
        return Fault(at_s, kind, (broker,), for_s)
    if kind == "nameserver":
        return Fault(at_s, kind, ("nameserver",), for_s)
    if kind == "freeze":
        return Fault(at_s, kind, (rng.choice((broker, *machines)),), for_s)
    if kind == "clock":
        return Fault(at_s, kind, (rng.choice((broker, *machines)),), mode=rng.choice(("-3600", "-1", "1", "3600")))
    others = machines + tuple(name for name in BROKERS[: slaves + 1] if name != broker)
    pair = (broker, rng.choice(others))
    if kind == "block":
        return Fault(at_s, kind, pair if rng.random() < 0.5 else pair[::-1], for_s, rng.choice(("both", "one way")))
    if kind == "slow":
        return Fault(at_s, kind, pair, for_s, rng.choice(("0.01", "0.1", "0.5")))
    return Fault(at_s, kind, pair)
