"""The simulation finds faults: each of these is planted in the code, and a seed among those of ``make test`` has to break a promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.course import shrink
from tests.simulation.logs import make_log_plan
from tests.simulation.plan import make_replicated_plan
from tests.simulation.test_seeds import SEED

from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.replicating import Replication
from sprocketmq.broker.replication import follower
from sprocketmq.broker.replication.master import ReplicationMaster
from sprocketmq.broker.replication.stream import Start
from sprocketmq.protocol.bodies import ConsumerOffsets
from sprocketmq.storage.replica.epochs import EpochFile
from sprocketmq.storage.replica.replica import Replica

Plant = Callable[[pytest.MonkeyPatch], None]
# Each kind of run has a third of the seeds of `make test`.
SEEDS_OF_A_KIND = 100


def acknowledged_before_the_replica_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent to the slaves counts as received."""

    def sent(self: ReplicationMaster, count: int) -> int:
        return sorted((slave.sent for slave in self.slaves), reverse=True)[count - 1] if len(self.links) >= count else 0

    monkeypatch.setattr(ReplicationMaster, "replicated", sent)


def followed_without_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave goes on at its own end, as the reference does."""

    def plan(held: Any, begin: int, *_: Any, **__: Any) -> Start:
        return Start(held.end, held.end, begin)

    monkeypatch.setattr(follower, "plan", plan)


def epochs_that_are_not_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(self: EpochFile, entries: Any) -> None:
        self.entries = entries

    monkeypatch.setattr(EpochFile, "_save", save)


def truncated_one_record_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first record that differs stays."""
    truncate = Replica.truncate

    def short(self: Replica, log_offset: int) -> None:
        following = log_offset
        while following < self.end and self.record_boundary(following) == self.record_boundary(log_offset):
            following += 64
        truncate(self, following)

    monkeypatch.setattr(Replica, "truncate", short)


def offsets_overwritten_by_the_old_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave takes whatever its master says, also one that was killed before it saved its offsets."""
    merge = OffsetTable.merge

    def overwrite(self: OffsetTable, theirs: ConsumerOffsets, *, rewound: bool) -> list[tuple[str, int, int]]:
        if self.own is not None:
            self.own = {}
        return merge(self, theirs, rewound=False)

    monkeypatch.setattr(OffsetTable, "merge", overwrite)


def promoted_without_telling_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former master goes on with the help of the other slave, whatever that one has."""

    async def freeze(self: Replication, former: str, epoch: int) -> None:
        """Do nothing."""

    monkeypatch.setattr(Replication, "_freeze", freeze)


PLANTS = {
    acknowledged_before_the_replica_has_it: make_log_plan,
    followed_without_comparing: make_log_plan,
    epochs_that_are_not_on_the_disk: make_log_plan,
    truncated_one_record_short: make_log_plan,
    offsets_overwritten_by_the_old_master: make_replicated_plan,
    promoted_without_telling_anybody: make_replicated_plan,
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for number in range(SEEDS_OF_A_KIND):
        if problem := PLANTS[plant](f"{SEED}.{number}").run().problem:
            print(f"found by seed {SEED}.{number}: {problem}")
            return
    pytest.fail(f"no seed of {SEEDS_OF_A_KIND} noticed {plant.__name__}")


def test_a_run_that_finds_a_planted_fault_is_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledged_before_the_replica_has_it(monkeypatch)
    plans = (make_log_plan(f"{SEED}.{number}") for number in range(SEEDS_OF_A_KIND))
    long = next(plan for plan in plans if len(plan.faults) > 2 and plan.run().problem)
    found = shrink(long)
    assert found.problem
    assert set(found.plan.faults) < set(long.faults)
    assert found.plan.duration_s <= long.duration_s
    assert found.plan.run().digest == found.digest
    assert not any(shorter.run().problem for shorter in found.plan.shorter())
    print(f"{long}\nis as short as this:\n{found.plan}")
