"""The diagnosis of ``sprocketmq doctor``: pure functions from facts to findings."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sprocketmq.client.admin import BrokerState
from sprocketmq.errors import ConfigError
from sprocketmq.net.address import format_address, is_loopback, is_wildcard, parse_address
from sprocketmq.protocol.bodies import ClusterInfo, TopicRoute

# A broker's clock is known to the second only; delayed messages, retention and searches by time go by it.
CLOCK_S = 5.0
DISK_WARNING_RATIO = 0.75
DISK_FULL_RATIO = 0.90
DISPATCH_BEHIND_BYTES = 64 << 20
SEND_WAITS_MS = 1000
# Fewer open files limit connections and segments.
OPEN_FILES = 4096
SLOW_ANSWER_S = 1.0
READ_WRITE = 6


class Level(StrEnum):
    """The severity of a finding; a failure makes the command end with exit code 1."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """One finding: its subject, the observation, and what to do next ("" for nothing)."""

    level: Level
    subject: str
    text: str
    next_step: str = ""


@dataclass(frozen=True)
class NamesrvFacts:
    """The answer of one nameserver, and its latency; ``problem`` when there was none, ``refused`` when the login was the reason."""

    address: str
    cluster: ClusterInfo = field(default_factory=ClusterInfo)
    answered_s: float = 0.0
    problem: str = ""
    refused: bool = False


@dataclass(frozen=True)
class Port:
    """A port that a broker announces besides the one for clients; ``problem`` when it takes no connection from this machine."""

    name: str
    address: str
    problem: str = ""


HA, METRICS = "HA port", "metrics port"


@dataclass(frozen=True)
class BrokerFacts:
    """The facts that one registered broker reports.

    ``skew_s`` is how far its clock is ahead of this machine's; None when not known. ``ports`` are those of ``announced_ports``, tried.
    """

    state: BrokerState
    runtime: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    skew_s: float | None = None
    ports: Sequence[Port] = ()


@dataclass(frozen=True)
class GroupFacts:
    """A consumer group: its lag, its members online, and the messages in its dead letter queue."""

    group: str
    lag: int
    members: int
    dead_letters: int


def check_namesrvs(namesrvs: Iterable[NamesrvFacts]) -> Iterator[Finding]:
    """Check each nameserver, and whether all know the same brokers at the same addresses."""
    known: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    answering = []
    for one in namesrvs:
        subject = f"nameserver {one.address}"
        if one.problem:
            step = "give this command a login that it takes (--secure DIR)" if one.refused else "start it, or correct --namesrv"
            yield Finding(Level.FAILURE, subject, one.problem, step)
            continue
        answering.append(one.address)
        slow = one.answered_s > SLOW_ANSWER_S
        count = sum(len(data.broker_addrs) for data in one.cluster.broker_addr_table.values())
        text = f"answered in {one.answered_s * 1000:.0f} ms, knows {count} broker{'' if count == 1 else 's'}"
        yield Finding(Level.WARNING if slow else Level.OK, subject, text, "look at its machine and the network" if slow else "")
        if not count:
            yield Finding(Level.FAILURE, subject, "no broker is registered", f"start one: sprocketmq broker --namesrv {one.address}")
        for name, data in one.cluster.broker_addr_table.items():
            for broker_id, address in data.broker_addrs.items():
                known[name, broker_id][one.address] = address
    for (name, broker_id), by_namesrv in sorted(known.items()):
        subject = f"broker {name} {broker_id}"
        if len(set(by_namesrv.values())) > 1:
            where = ", ".join(f"{address} at nameserver {namesrv}" for namesrv, address in by_namesrv.items())
            yield Finding(Level.FAILURE, subject, f"two brokers have this name: {where}", "give one of them another --name or --broker-id")
        for namesrv in answering:
            if namesrv not in by_namesrv:
                text = f"nameserver {namesrv} does not know it, others do"
                yield Finding(Level.WARNING, subject, text, f"add {namesrv} to the broker's --namesrv, or look at its log")


def check_brokers(brokers: Iterable[BrokerFacts]) -> Iterator[Finding]:
    """Check each broker by itself, then all of them beside each other."""
    brokers = list(brokers)
    for one in brokers:
        yield from check_broker(one)
    with_slaves = {one.state.broker_name for one in brokers if not one.state.is_master}
    for one in brokers:
        yield from check_ports(one, has_slaves=one.state.broker_name in with_slaves)
    masters = {one.state.broker_name for one in brokers if one.state.is_master and not one.state.problem}
    for name in sorted({one.state.broker_name for one in brokers} - masters):
        text = "no master answers: messages can be read from its slaves, and none can be sent"
        yield Finding(Level.FAILURE, f"broker {name}", text, f"start its master, or: sprocketmq failover {shlex.quote(name)}")
    versions = {one.state.version for one in brokers if one.state.version}
    if len(versions) > 1:
        text = f"different versions: {', '.join(sorted(versions))}"
        yield Finding(Level.WARNING, "brokers", text, "finish the upgrade, or check that it is wanted")
    by_address = defaultdict(set)
    for one in brokers:
        by_address[one.state.address].add(f"{one.state.broker_name} {one.state.broker_id}")
    for address, names in sorted(by_address.items()):
        if len(names) > 1:
            text = f"registered as {' and as '.join(sorted(names))}"
            yield Finding(Level.FAILURE, f"address {address}", text, "an entry is stale, or two brokers advertise one address")


def check_broker(facts: BrokerFacts) -> Iterator[Finding]:
    """Check one broker: reachable, who it says it is, clock, disk, how far it is behind."""
    state, runtime = facts.state, facts.runtime
    subject = f"broker {state.broker_name} {state.broker_id} at {state.address}"
    if state.problem:
        step = "is it running, and does this machine reach the address it advertises (--advertise)?"
        yield Finding(Level.FAILURE, subject, state.problem, step)
        return
    found = list(_problems(facts, subject, runtime))
    if not any(one.level is Level.FAILURE for one in found):
        yield Finding(Level.OK, subject, f"{state.role.lower() or 'role unknown'}, version {state.version or 'unknown'}")
    yield from found


def _problems(facts: BrokerFacts, subject: str, runtime: Mapping[str, str]) -> Iterator[Finding]:
    state = facts.state
    name = facts.settings.get("brokerName", state.broker_name)
    if name != state.broker_name:
        text = f"answers as broker {name}"
        yield Finding(Level.FAILURE, subject, text, "two brokers have used this address: wait for the entry to expire, or restart both")
    if facts.skew_s is not None and abs(facts.skew_s) > CLOCK_S:
        text = f"its clock is {abs(facts.skew_s):.0f} s {'ahead of' if facts.skew_s > 0 else 'behind'} this machine's"
        step = "set the clocks by NTP: delays, retention and searches by time go by the broker's"
        yield Finding(Level.WARNING, subject, text, step)
    ratio = number(runtime.get("commitLogDiskRatio"))
    if runtime.get("diskWritable") == "false":
        yield Finding(Level.FAILURE, subject, "its disk is too full, sends are refused", "free space, or shorten file_reserved_hours")
    elif ratio is not None and ratio >= DISK_WARNING_RATIO:
        level = Level.FAILURE if ratio >= DISK_FULL_RATIO else Level.WARNING
        yield Finding(level, subject, f"its disk is {ratio:.0%} full", "free space, or shorten file_reserved_hours")
    behind = number(runtime.get("dispatchBehindBytes"))
    if behind is not None and behind > DISPATCH_BEHIND_BYTES:
        yield Finding(Level.WARNING, subject, f"queues and index are {behind:,.0f} bytes behind the log", "look at its disk and its load")
    waits = number(runtime.get("sendThreadPoolQueueHeadWaitTimeMills"))
    if waits is not None and waits > SEND_WAITS_MS:
        text = f"its oldest send waits for {waits / 1000:.1f} s"
        yield Finding(Level.WARNING, subject, text, "look at its disk, and with SYNC_MASTER at its slaves")
    permission = number(facts.settings.get("brokerPermission"))
    if permission is not None and permission != READ_WRITE:
        text = {4: "it is read-only", 2: "it is write-only"}.get(int(permission), "it is neither readable nor writable")
        yield Finding(Level.WARNING, subject, text, "set brokerPermission to 6 if that is not wanted")
    copies, in_sync = number(facts.settings.get("inSyncReplicas")), state.in_sync_slaves
    if state.role == "SYNC_MASTER" and copies is not None and in_sync is not None and in_sync < copies - 1:
        text = f"slaves in sync: {in_sync}, and sends wait for {copies - 1:.0f}: none is answered SEND_OK"
        yield Finding(Level.WARNING, subject, text, "start its slaves, or see what their logs say")
    if not state.is_master:
        if state.following not in ("", "following"):
            text = f"does not follow its master: {state.following}"
            yield Finding(Level.FAILURE, subject, text, "its log says why; docs/guide/replication.md says what to do")
        elif state.in_sync is False:
            missing = "an unknown part" if state.behind_bytes is None else f"{state.behind_bytes:,} bytes"
            yield Finding(Level.WARNING, subject, f"lacks {missing} of its master's log and is not in sync", "wait, or look at its log")


def announced_ports(state: BrokerState, runtime: Mapping[str, str], settings: Mapping[str, str]) -> list[Port]:
    """Return the ports that a broker announces for its slaves and for scrapes, as far as another machine can reach them."""
    found = []
    host = _host(state.address)
    # Apache's brokers do not say where they listen for slaves, but on which port.
    ha = runtime.get("haAddress", _at(settings.get("brokerIP2") or host, settings.get("haListenPort")))
    if state.is_master and _host(ha):
        found.append(Port(HA, ha))
    if settings.get("metricsExporterType", "").upper() in {"PROM", "2"}:
        listens = settings.get("metricsPromExporterHost") or host
        if not is_loopback(listens) or is_loopback(host):
            metrics = _at(host if is_wildcard(listens) else listens, settings.get("metricsPromExporterPort"))
            if metrics:
                found.append(Port(METRICS, metrics))
    return found


def check_ports(facts: BrokerFacts, *, has_slaves: bool) -> Iterator[Finding]:
    """Check the ports of a broker that answers; that for slaves when it has some registered, or waits for them as a SYNC_MASTER."""
    state = facts.state
    if state.problem:
        return
    subject = f"broker {state.broker_name} {state.broker_id} at {state.address}"
    needed = state.is_master and (has_slaves or state.role == "SYNC_MASTER")
    if needed and not any(port.name == HA for port in facts.ports):
        text = "it announces no HA port, so that no slave can follow it"
        yield Finding(Level.FAILURE, subject, text, "give it ha_port (Apache's: haListenPort)")
    for port in facts.ports:
        if port.name == HA and not needed:
            continue
        text = f"{port.name} {port.address}"
        if not port.problem:
            yield Finding(Level.OK, subject, f"{text} takes connections")
        elif port.name == METRICS:
            step = "open it for Prometheus, or correct metrics_host and metrics_port"
            yield Finding(Level.WARNING, subject, f"{text} is not reached from here: {port.problem}", step)
        else:
            level = Level.WARNING if state.slaves else Level.FAILURE
            step = "nothing, if only its slaves are to reach it" if state.slaves else "open it for the slaves, or correct --advertise"
            yield Finding(level, subject, f"{text} is not reached from here: {port.problem}", step)


def _host(address: str) -> str:
    try:
        return parse_address(address)[0]
    except ConfigError:
        return ""


def _at(host: str, port: str | None) -> str:
    """Return an address, "" for a port that is unknown or may be any free one."""
    address = format_address(host.strip("[]"), int(port)) if port and port.isascii() and port.isdigit() else ""
    return address if _host(address) else ""


def check_routes(routes: Mapping[str, TopicRoute], examined: int, total: int) -> Iterator[Finding]:
    """Check that each topic has queues at masters; ``examined`` of ``total`` topics were looked at."""
    broken = False
    for topic, route in sorted(routes.items()):
        masters = {data.broker_name for data in route.broker_datas if 0 in data.broker_addrs}
        writable = [queue for queue in route.queue_datas if queue.perm & 2 and queue.write_queue_nums > 0]
        if not writable:
            broken = True
            yield Finding(Level.WARNING, f"topic {topic}", "no broker has writable queues of it", "alter its queues or its permission")
        elif not any(queue.broker_name in masters for queue in writable):
            broken = True
            yield Finding(Level.FAILURE, f"topic {topic}", "none of its brokers has a master", "see the brokers above")
    if not broken:
        text = f"{examined:,} of {total:,} looked at, each can be sent to" if examined < total else f"all {total:,} can be sent to"
        yield Finding(Level.OK, "topics", text)


def check_groups(groups: Iterable[GroupFacts], total: int) -> Iterator[Finding]:
    """Check for lag without online members, and for dead letters; ``total`` groups exist."""
    groups = list(groups)
    for one in groups:
        if one.lag and not one.members:
            text = f"{one.lag:,} message{'' if one.lag == 1 else 's'} behind, and no member is online"
            fix = f"start its consumers, or: sprocketmq group delete {shlex.quote(one.group)}"
            yield Finding(Level.WARNING, f"group {one.group}", text, fix)
        if one.dead_letters:
            text = f"{one.dead_letters:,} dead letter{'' if one.dead_letters == 1 else 's'}"
            yield Finding(Level.WARNING, f"group {one.group}", text, f"sprocketmq consume '%DLQ%{one.group}' --from first")
    looked = f"{len(groups):,} of {total:,} looked at" if len(groups) < total else f"{total:,} looked at"
    yield Finding(Level.OK, "groups", looked)


def check_machine(open_files: int) -> Iterator[Finding]:
    """Check the limits of this machine: how many files a server may have open, 0 for no limit."""
    if 0 < open_files < OPEN_FILES:
        text = f"a server may have {open_files:,} open files"
        yield Finding(
            Level.WARNING,
            "this machine",
            text,
            f"a broker here should have {OPEN_FILES:,} or more: raise the hard limit (ulimit -Hn, or LimitNOFILE of a systemd unit)",
        )


def clock_skew(runtime: Mapping[str, str], now_ms: float) -> float | None:
    """Return how many seconds the broker's clock is ahead of ``now_ms``, to about a second: its start plus the time it has been up."""
    boot = number(runtime.get("bootTimestamp"))
    parts = re.findall(r"(\d+) (days|hours|minutes|seconds)", runtime.get("runtime", ""))
    if boot is None or len(parts) != 4:
        return None
    units = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
    up_s = sum(int(count) * units[unit] for count, unit in parts)
    return boot / 1000 + up_s + 0.5 - now_ms / 1000


def number(text: str | None) -> float | None:
    """Return the number that a broker wrote, None for anything else, such as the units of another version."""
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
