"""Seeded runs of nameserver, broker, producer and consumer in virtual time, with crashes, cuts and stops: every promise holds in each.

``SPROCKETMQ_SIMULATION_SEEDS`` sets how many runs (300 by default), ``SPROCKETMQ_SIMULATION_SEED`` which. A failure is made shorter and
printed with its trace; ``python -m tests.simulation SEED`` repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulation.course import Outcome, explain, shrink
from tests.simulation.logs import make_log_plan
from tests.simulation.plan import make_plan, make_replicated_plan

SEEDS = int(os.environ.get("SPROCKETMQ_SIMULATION_SEEDS", "300"))
SEED = os.environ.get("SPROCKETMQ_SIMULATION_SEED", "1")
SHARDS = 6


KINDS = {"cluster": make_plan, "replicated": make_replicated_plan, "logs": make_log_plan}
# Seeds that once found something.
FOUND = {
    "cluster": ("20261126.5595",),
    "logs": ("logs18", "logs31", "logs112", "logs560", "logs902", "1795390431.405", "20261126.613"),
    "replicated": (
        "1.176",
        "1.485",
        "1.536",
        "20261126.162",
        "20261126.659",
        "20261126.780",
        "20261126.841",
        "20261126.1494",
        "20261126.1716",
        "20261126.2552",
        "20261126.2890",
        "20261126.5907",
    ),
}


def expect_no_problem(outcome: Outcome) -> None:
    if outcome.problem:
        pytest.fail(f"{outcome.problem}\n{outcome.plan}\nmade shorter:\n{explain(shrink(outcome.plan))}")


@pytest.mark.timeout(0 if SEEDS > 300 else 600)
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("kind", KINDS)
def test_no_seed_breaks_a_promise(kind: str, shard: int) -> None:
    print(f"SPROCKETMQ_SIMULATION_SEED={SEED}")
    acknowledged = crashes = runs = 0
    cpu_s = virtual_s = 0.0
    for number in range(shard, SEEDS // len(KINDS), SHARDS):
        outcome = KINDS[kind](f"{SEED}.{number}").run()
        expect_no_problem(outcome)
        runs += 1
        acknowledged += outcome.acknowledged
        crashes += outcome.crashes
        cpu_s += outcome.cpu_s
        virtual_s += outcome.virtual_s
    print(f"{runs} runs, {acknowledged} acknowledged messages, {crashes} crashes, {virtual_s:.0f} s in {cpu_s:.1f} s of CPU time")
    assert acknowledged >= 10 * runs


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind, seeds in FOUND.items() for seed in seeds])
def test_what_was_found_once_stays_mended(kind: str, seed: str) -> None:
    expect_no_problem(KINDS[kind](seed).run())


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_trace_in_every_process(kind: str) -> None:
    seeds = [f"{SEED}.{number}" for number in range(0, 40, 8)]
    here = [KINDS[kind](seed).run().digest for seed in seeds]
    assert len(set(here)) == len(seeds)
    program = (
        "import sys; from tests.simulation.test_seeds import *; print(*(KINDS[sys.argv[1]](seed).run().digest for seed in sys.argv[2:]))"
    )
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", program, kind, *reversed(seeds)]
        output = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True).stdout
        assert output.split()[::-1] == here
