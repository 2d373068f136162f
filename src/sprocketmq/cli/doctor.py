"""``sprocketmq doctor``: look at the whole cluster, and say what is wrong and what to do about it."""

import asyncio
import contextlib
import itertools
import os
import platform
import sys
import time
from collections.abc import Awaitable, Iterable
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import sprocketmq
from sprocketmq.cli.diagnosis import (
    BrokerFacts,
    Finding,
    GroupFacts,
    Level,
    NamesrvFacts,
    Port,
    announced_ports,
    check_brokers,
    check_groups,
    check_machine,
    check_namesrvs,
    check_routes,
    clock_skew,
)
from sprocketmq.cli.output import clean, plural, print_json
from sprocketmq.cli.target import Target
from sprocketmq.cli.topic import users_topics
from sprocketmq.client.admin import AdminClient, BrokerState
from sprocketmq.errors import AccessRefused, BrokerError, ConfigError, FatalError, RetriableError, SprocketError
from sprocketmq.net.address import parse_address, parse_addresses
from sprocketmq.net.sockets import raise_descriptor_limit
from sprocketmq.protocol.bodies import TopicRoute
from sprocketmq.protocol.names import DLQ_PREFIX, SYSTEM_GROUPS

# Limits of what is examined in a large cluster, so that a check takes seconds.
MAX_TOPICS = 2000
MAX_GROUPS = 500
AT_A_TIME = 16
ANSWER_S = 5.0
EXTRAS = ("uvloop", "pyspark", "pyarrow", "prometheus-client", "opentelemetry-api", "starlette")

_T = TypeVar("_T")


def doctor(target: Target, *, as_json: bool) -> int:
    """Print the findings, worst last, and return the exit code: 1 with a failure among them."""
    findings = [*check_machine(raise_descriptor_limit()), *asyncio.run(_examine(target))]
    findings.sort(key=lambda one: list(Level).index(one.level))
    failed = sum(one.level is Level.FAILURE for one in findings)
    if as_json:
        print_json({"versions": versions(), "findings": [asdict(one) for one in findings]})
        return 1 if failed else 0
    print(" ".join(f"{name}={text}" for name, text in versions().items()))
    for one in findings:
        step = f"\n         -> {clean(one.next_step)}" if one.next_step else ""
        print(f"{one.level:8} {clean(one.subject)}: {clean(one.text)}{step}")
    warned = sum(one.level is Level.WARNING for one in findings)
    print(f"{plural(failed, 'failure')}, {plural(warned, 'warning')}")
    return 1 if failed else 0


def versions() -> dict[str, str]:
    """Return the versions of SprocketMQ, Python, the system, and the optional packages that are installed."""
    found = {"sprocketmq": sprocketmq.__version__, "python": platform.python_version(), "system": f"{sys.platform}-{platform.machine()}"}
    for name in EXTRAS:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


async def _examine(target: Target) -> list[Finding]:
    addresses = list(parse_addresses(target.namesrv))
    namesrvs = await _each(_ask_namesrv(target, address) for address in addresses)
    findings = list(check_namesrvs(namesrvs))
    answering = [one.address for one in namesrvs if not one.problem and one.cluster.broker_addr_table]
    if not answering:
        return findings
    options = target.options
    options["namesrv"] = ";".join(answering)
    async with AdminClient(**options) as admin:
        try:
            states = await admin.brokers()
            findings += check_brokers(await _each(_ask_broker(admin, state) for state in states))
            every = await admin.topics()
            topics = users_topics(every, await admin.cluster())
            looked = topics[:MAX_TOPICS]
            routes = await _each(_ask_route(admin, topic) for topic in looked)
            known = {topic: route for topic, route in zip(looked, routes, strict=True) if route is not None}
            findings += check_routes(known, len(looked), len(topics))
            dead = {topic.removeprefix(DLQ_PREFIX) for topic in every if topic.startswith(DLQ_PREFIX)}
            groups = [name for name in await admin.groups() if name not in SYSTEM_GROUPS]
            found = await _each(_ask_group(admin, name, name in dead) for name in groups[:MAX_GROUPS])
            findings += check_groups([one for one in found if one is not None], len(groups))
        except SprocketError as e:
            findings.append(Finding(Level.FAILURE, "cluster", str(e), "the checks after this one were left out"))
    return findings


async def _each(asked: Iterable[Awaitable[_T]]) -> list[_T]:
    """Await all, ``AT_A_TIME`` at a time."""
    asked = iter(asked)
    found: list[_T] = []
    while part := list(itertools.islice(asked, AT_A_TIME)):
        found += await asyncio.gather(*part)
    return found


async def _ask_namesrv(target: Target, address: str) -> NamesrvFacts:
    options = target.options
    options["namesrv"] = address
    try:
        async with asyncio.timeout(2 * ANSWER_S), AdminClient(**options) as admin:
            began = time.monotonic()
            cluster = await admin.cluster()
            return NamesrvFacts(address, cluster, time.monotonic() - began)
    except ConfigError:
        raise
    except TimeoutError:
        return NamesrvFacts(address, problem=f"no answer within {2 * ANSWER_S:g} s")
    except SprocketError as e:
        return NamesrvFacts(address, problem=str(e), refused=isinstance(e, AccessRefused))


async def _ask_broker(admin: AdminClient, state: BrokerState) -> BrokerFacts:
    if state.problem:
        return BrokerFacts(state)
    try:
        before = time.time()
        runtime = await admin.broker_runtime(state.address)
        now_ms = (before + time.time()) * 500
        settings = await admin.broker_config(state.address)
    except (BrokerError, RetriableError) as e:
        return BrokerFacts(replace(state, problem=str(e)))
    ports = await asyncio.gather(*(_try_port(port) for port in announced_ports(state, runtime, settings)))
    return BrokerFacts(state, runtime, settings, clock_skew(runtime, now_ms), ports)


async def _try_port(port: Port) -> Port:
    """Connect to a port, and leave at once."""
    host, number = parse_address(port.address)
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(host, number)
    except TimeoutError:
        return replace(port, problem=f"no answer within {ANSWER_S:g} s")
    except OSError as e:
        return replace(port, problem=os.strerror(e.errno) if e.errno and e.errno > 0 else str(e))
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return port


async def _ask_route(admin: AdminClient, topic: str) -> TopicRoute | None:
    try:
        return await admin.route(topic)
    except (FatalError, RetriableError):  # deleted meanwhile, or its nameserver went away: the brokers' checks say so
        return None


async def _ask_group(admin: AdminClient, group: str, has_dead_letters: bool) -> GroupFacts | None:
    try:
        progress = await admin.progress(group)
        members = len((await admin.consumers(group)).connection_set) if progress.lag else 0
        dead = 0
        if has_dead_letters:
            stats = await admin.topic_stats(DLQ_PREFIX + group)
            dead = sum(queue.max_offset - queue.min_offset for queue in stats.offset_table.values())
        return GroupFacts(group, progress.lag, members, dead)
    except (FatalError, RetriableError):
        return None
