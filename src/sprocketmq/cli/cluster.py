"""``sprocketmq cluster``: the brokers, their roles, and how far slaves follow."""

from typing import Any

from sprocketmq import sync
from sprocketmq.cli.output import clean, print_json, print_table
from sprocketmq.cli.target import Target
from sprocketmq.client.admin import BrokerState
from sprocketmq.errors import BrokerError, RetriableError

COLUMNS = ("broker", "id", "role", "address", "version", "epoch", "log end", "behind bytes", "behind ms", "in sync")


def show(target: Target, *, as_json: bool) -> None:
    """Print one line for each registered broker; those that do not answer have a sentence below."""
    with sync.AdminClient(**target.options) as admin:
        brokers = admin.brokers()
        if as_json:
            print_json([facts(state) | {"epochs": epochs(admin, state)} for state in brokers])
            return
    print_table(COLUMNS, [row(state) for state in brokers])
    for state in brokers:
        if state.problem:
            print(f"{state.broker_name} {state.broker_id}: {clean(state.problem)}")


def epochs(admin: sync.AdminClient, state: BrokerState) -> list[dict[str, int]]:
    """Return where each epoch of a broker's log begins; nothing for a broker without epochs, or that does not answer any more."""
    if state.epoch is None:
        return []
    try:
        found = admin.broker_epochs(state.address).epoch_list
    except (BrokerError, RetriableError):
        return []
    return [{"epoch": entry.epoch, "start": entry.start_offset} for entry in found]


def facts(state: BrokerState) -> dict[str, Any]:
    """Return the JSON object of a broker; null means unknown, or not applicable to its role."""
    return {
        "broker_name": state.broker_name,
        "broker_id": state.broker_id,
        "cluster": state.cluster,
        "address": state.address,
        "role": state.role or None,
        "version": state.version or None,
        "epoch": state.epoch,
        "log_end": state.log_end,
        "following": state.following or None,
        "behind_bytes": state.behind_bytes,
        "behind_ms": state.behind_ms,
        "in_sync": state.in_sync,
        "in_sync_slaves": state.in_sync_slaves,
        "slaves": [
            {"address": slave.addr, "acknowledged": slave.slave_ack_offset, "behind_bytes": slave.diff, "in_sync": slave.in_sync}
            for slave in state.slaves
        ],
        "problem": state.problem or None,
    }


def row(state: BrokerState) -> tuple[object, ...]:
    """Return the line of a broker: a master has the number of its slaves that are in sync, of those that are connected."""
    if state.is_master:
        in_sync = f"{state.in_sync_slaves} of {len(state.slaves)}" if state.slaves else "-"
    else:
        in_sync = {True: "yes", False: "no", None: "?"}[state.in_sync]
        if state.following not in ("", "following"):
            in_sync += f" ({clean(state.following)})"
    who = (state.broker_name, state.broker_id, clean(state.role) or "?", state.address, clean(state.version) or "?")
    numbers = (_number(number) for number in (state.log_end, state.behind_bytes, state.behind_ms))
    return (*who, "-" if state.epoch is None else state.epoch, *numbers, in_sync)


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
