"""``sprocketmq failover``: a slave becomes the master, by hand."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sprocketmq import sync
from sprocketmq.broker.replication.roles import promotion_epoch
from sprocketmq.cli.output import plural, print_json
from sprocketmq.cli.target import Target
from sprocketmq.client.admin import BrokerState
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import ConfigError, FatalError

# How long the nameservers may take to learn of the new master.
REGISTER_TIMEOUT_S = 10.0
POLL_S = 0.05
# How long a slave of a running master may take to receive the master's log as of the start of the command.
CATCH_UP_S = 3.0
# Timeout of a broker's answer: a master whose machine is down takes all of it.
ANSWER_TIMEOUT_S = 1.0
# States of a slave whose log is not its master's.
OTHER_LOG = ("diverged", "refused")


@dataclass(frozen=True)
class FailoverPlan:
    """The slave to promote, and the known loss: bytes of the former master's log that the slave does not have."""

    slave: BrokerState
    former: BrokerState | None
    epoch: int
    lost_bytes: int

    @property
    def former_answers(self) -> bool:
        """Whether the former master is alive."""
        return self.former is not None and not self.former.problem


def plan_failover(broker_name: str, states: Sequence[BrokerState], to: int | None = None) -> FailoverPlan:
    """Choose the slave with the newest epoch and the longest log, or the one with id ``to``. Raises ConfigError or FatalError."""
    group = [state for state in states if state.broker_name == broker_name]
    if not group:
        known = ", ".join(sorted({state.broker_name for state in states})) or "none"
        raise ConfigError(f"no broker {broker_name!r} is registered (brokers there: {known})")
    former = next((state for state in group if state.is_master), None)
    slaves = [state for state in group if not state.is_master]
    alive = [state for state in slaves if not reason_against(state)]
    if to is not None:
        if to not in (state.broker_id for state in slaves):
            ids = ", ".join(str(state.broker_id) for state in slaves) or "none"
            raise ConfigError(f"broker {broker_name} has no slave {to} (its slaves: {ids})")
        alive = [state for state in alive if state.broker_id == to]
    if not alive:
        problems = "; ".join(f"slave {state.broker_id}: {reason_against(state)}" for state in slaves if to in (None, state.broker_id))
        raise FatalError(f"broker {broker_name} has no slave that could be promoted" + (f" ({problems})" if problems else ""))
    slave = max(alive, key=lambda state: (state.epoch or 0, state.log_end or 0, -state.broker_id))
    known_end = max((state.log_end or 0) + (state.behind_bytes or 0) for state in group if state.following not in OTHER_LOG)
    return FailoverPlan(
        slave,
        former,
        promotion_epoch(max(state.epoch or 0 for state in group)),
        max(0, known_end - (slave.log_end or 0)),
    )


def reason_against(state: BrokerState) -> str:
    """Return why a slave cannot be promoted, or ""."""
    if state.problem or state.log_end is None:
        return state.problem or "it does not tell where its log ends"
    if state.epoch is None:
        return "it has no epochs: it is Apache's, or has followed no master yet"
    if state.following in OTHER_LOG:
        return f"its log is not its master's ({state.following})"
    return ""


def failover(
    target: Target,
    broker_name: str,
    *,
    to: int | None,
    accept_loss: int,
    dry_run: bool,
    timeout_s: float = REGISTER_TIMEOUT_S,
    as_json: bool,
) -> None:
    """Promote a slave and print what happened. Raises FatalError when more than ``accept_loss`` bytes would be lost."""
    with sync.AdminClient(**target.options, timeout_s=ANSWER_TIMEOUT_S) as admin:
        plan = plan_failover(broker_name, admin.brokers(), to)
        if plan.former_answers:
            plan = _caught_up(admin, plan, accept_loss)
        slave = plan.slave
        if plan.lost_bytes > accept_loss:
            raise FatalError(
                f"slave {slave.broker_id} of {broker_name} ({slave.address}) lacks {plural(plan.lost_bytes, 'byte')} of its master's log:"
                f" wait until it has them (`sprocketmq cluster`), or give them up with --accept-loss {plan.lost_bytes}"
            )
        took_s = 0.0
        if not dry_run:
            began = SYSTEM_CLOCK.monotonic()
            admin.change_master(slave.address, slave.address, plan.epoch)
            _wait_registered(admin, broker_name, slave.address, timeout_s)
            took_s = SYSTEM_CLOCK.monotonic() - began
    if as_json:
        print_json(
            {
                "broker_name": broker_name,
                "master": slave.address,
                "epoch": plan.epoch,
                "log_end": slave.log_end,
                "lost_bytes": plan.lost_bytes,
                "former_master": plan.former.address if plan.former is not None else None,
                "former_master_answers": plan.former_answers,
                "dry_run": dry_run,
                "seconds": round(took_s, 3),
            }
        )
        return
    if dry_run:
        print(f"{broker_name}: slave {slave.broker_id} ({slave.address}) would become the master, with epoch {plan.epoch}")
    else:
        print(f"{broker_name}: {slave.address}, slave {slave.broker_id} so far, is the master since epoch {plan.epoch} ({took_s:.1f} s)")
    print(loss_told(plan))


def _caught_up(admin: sync.AdminClient, plan: FailoverPlan, accept_loss: int) -> FailoverPlan:
    """Wait briefly until the slave has the current log of its running master, which sends later messages before it is replaced."""
    known_end = (plan.slave.log_end or 0) + plan.lost_bytes
    deadline = SYSTEM_CLOCK.monotonic() + CATCH_UP_S
    while plan.lost_bytes > accept_loss and SYSTEM_CLOCK.monotonic() < deadline:
        time.sleep(POLL_S)
        states = admin.brokers(plan.slave.broker_name)
        slave = next((state for state in states if state.address == plan.slave.address and not reason_against(state)), None)
        if slave is None or slave.is_master:
            break
        plan = replace(plan, slave=slave, lost_bytes=max(0, known_end - (slave.log_end or 0)))
    return plan


def _wait_registered(admin: sync.AdminClient, broker_name: str, address: str, timeout_s: float) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + timeout_s
    while True:
        data = admin.cluster().broker_addr_table.get(broker_name)
        if data is not None and data.broker_addrs.get(0) == address:
            return
        if SYSTEM_CLOCK.monotonic() >= deadline:
            raise FatalError(f"{address} is the master, but after {timeout_s:g} s the nameserver does not have it: look at its log")
        time.sleep(POLL_S)


def loss_told(plan: FailoverPlan) -> str:
    """Return the sentence about what may be lost."""
    known = f"{plural(plan.lost_bytes, 'byte')} of the former master's log {'is' if plan.lost_bytes == 1 else 'are'} lost"
    if not plan.lost_bytes:
        known = "nothing is known to be lost: the slave had all that is known of the former master's log"
    if plan.former is None or not plan.former_answers:
        return f"{known}; what an ASYNC_MASTER acknowledged after its last word to a slave is lost as well"
    return f"{known}; what an ASYNC_MASTER acknowledged in this moment may be lost as well"
