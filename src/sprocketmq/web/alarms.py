"""The alarms of a cluster, from its newest sample (pure)."""

from collections.abc import Sequence
from itertools import groupby

from sprocketmq.web.samples import Alarm, BrokerView

DISK_WARN, DISK_BAD = 0.75, 0.85
# The backlog of an index or a slave that is still normal.
BEHIND_BYTES = 16 << 20
WAITING_SENDS = 1000
MAX_ALARMS = 100


def alarms_of(brokers: Sequence[BrokerView]) -> list[Alarm]:
    """Return the alarms of all brokers, the worst first."""
    found: list[Alarm] = []
    for name, group in groupby(brokers, key=lambda broker: broker.name):
        members = list(group)
        if all(broker.id != 0 or broker.gone for broker in members):
            found.append(Alarm("no_master", "bad", {"broker": name}))
        for broker in members:
            found += _of_broker(broker)
    if not brokers:
        found.append(Alarm("no_brokers", "bad"))
    return sorted(found, key=lambda alarm: alarm.level != "bad")[:MAX_ALARMS]


def _of_broker(broker: BrokerView) -> list[Alarm]:
    where: dict[str, str | int | float] = {"broker": broker.name, "address": broker.address}
    if broker.problem:
        return [Alarm("away", "bad", {**where, "reason": broker.problem})]
    found = []
    if broker.disk_used is not None and broker.disk_used >= DISK_WARN:
        level = "bad" if broker.disk_used >= DISK_BAD else "warn"
        found.append(Alarm("disk", level, {**where, "percent": round(broker.disk_used * 100)}))
    if broker.writable is False:
        found.append(Alarm("not_writable", "bad", where))
    if broker.dispatch_behind is not None and broker.dispatch_behind > BEHIND_BYTES:
        found.append(Alarm("index_behind", "warn", {**where, "bytes": broker.dispatch_behind}))
    if broker.sends_waiting is not None and broker.sends_waiting > WAITING_SENDS:
        found.append(Alarm("sends_waiting", "warn", {**where, "count": broker.sends_waiting}))
    if broker.following not in ("", "following", "master"):
        found.append(Alarm("not_following", "warn", {**where, "state": broker.following}))
    if broker.behind_bytes is not None and broker.behind_bytes > BEHIND_BYTES:
        found.append(Alarm("slave_behind", "warn", {**where, "bytes": broker.behind_bytes}))
    return found
