"""``serve``, ``namesrv`` and ``broker``: the server processes; and the way to ``dashboard`` and ``proxy``.

They parse with argparse and import only what they run, so `serve` is ready a quarter of a second after its process starts.
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from sprocketmq._version import __version__
from sprocketmq.cli.config import Settings
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, fail
from sprocketmq.cli.logs import LogOptions, logging_to, takes_text
from sprocketmq.cli.serving_beside import ServedBeside, served_beside
from sprocketmq.cli.serving_options import broker_config, check_reach, kv_file, log_options, parser, read_settings
from sprocketmq.cli.serving_security import access_word, add_initial_users, ready_fields, security_of, warn_of_names
from sprocketmq.cli.stopping import on_stop_signals, print_ready, watch_stdin
from sprocketmq.errors import NotOnWindows, SprocketError
from sprocketmq.events import event, quoted
from sprocketmq.net.address import format_address, is_wildcard, own_address, parse_address
from sprocketmq.net.loops import new_event_loop
from sprocketmq.net.own_process import settle_own_process
from sprocketmq.net.sockets import raise_descriptor_limit
from sprocketmq.processes.members import check_arrangement, members_of

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30.0
# A slave is ready when it follows its master, or after this time without one.
FOLLOW_TIMEOUT_S = 5.0


class _Server(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def parser_of(verb: str) -> argparse.ArgumentParser:
    """Return the parser of a serving verb."""
    if verb == "dashboard":
        from sprocketmq.cli import dashboard

        return dashboard.parser()
    if verb == "proxy":
        from sprocketmq.cli import proxy

        return proxy.parser()
    return parser(verb)


def run(verb: str, arguments: Sequence[str]) -> int:
    """Run a serving verb until it is stopped and return its exit code. Raises SprocketError when it cannot start."""
    if sys.platform == "win32" and not {"-h", "--help"}.intersection(arguments):
        raise NotOnWindows
    if verb == "dashboard":
        from sprocketmq.cli.dashboard import run_dashboard

        return run_dashboard(arguments)
    if verb == "proxy":
        from sprocketmq.cli.proxy import run_proxy

        return run_proxy(arguments)
    options = parser(verb).parse_args(arguments)
    settings = read_settings(verb, options)
    if options.show_config:
        print(settings.as_toml(), end="")
        return EXIT_OK
    check_reach(settings, insecure=options.insecure)
    raise_descriptor_limit()
    several = verb == "serve" and (options.brokers > 1 or options.replicas)
    logs = log_options(settings, process=verb if several else "")
    with logging_to(logs) as writer, _logged_failure(verb, logs), asyncio.Runner(loop_factory=new_event_loop) as runner:
        beside = served_beside(options, settings, logs=logs, put=writer.put)
        if several:
            from sprocketmq.cli.serving_many import ManyServers, serve_many

            cluster = ManyServers(
                settings,
                brokers=options.brokers,
                replicas=options.replicas,
                insecure=options.insecure,
                logs=logs,
                put=writer.put,
                beside=beside,
            )
            return runner.run(serve_many(cluster, stop_with_stdin=options.stop_with_stdin))
        take_over = getattr(options, "take_over", False)
        return runner.run(_serve(verb, settings, take_over=take_over, stop_with_stdin=options.stop_with_stdin, beside=beside))


@contextlib.contextmanager
def _logged_failure(verb: str, logs: LogOptions) -> Iterator[None]:
    """Log why a server cannot start, if that goes to a file: standard error gets the reason anyway."""
    try:
        yield
    except SprocketError as e:
        if logs.file is not None:
            event(log, logging.ERROR, "start_failed", verb=verb, reason=e)
        raise


async def _serve(verb: str, settings: Settings, *, take_over: bool, stop_with_stdin: bool, beside: list[ServedBeside]) -> int:
    """Start the servers of ``verb``, print the ready line, and stop on a signal (0) or when the store fails (1)."""
    stop = asyncio.Event()
    why = "standard input ended"

    def stop_by(number: signal.Signals) -> None:
        nonlocal why
        why = number.name
        stop.set()

    with on_stop_signals(stop_by):
        if stop_with_stdin:
            watch_stdin(asyncio.get_running_loop(), stop)
        failure = await _serve_until(stop, verb, settings, take_over=take_over, beside=beside)
    event(log, logging.INFO, "stopped", verb=verb, reason=failure or why)
    return EXIT_OK if failure is None else EXIT_FAILURE


async def _serve_until(
    stop: asyncio.Event, verb: str, settings: Settings, *, take_over: bool, beside: list[ServedBeside]
) -> SprocketError | None:
    """Serve until ``stop`` is set, or return why the store failed."""
    security = security_of(settings)
    add_initial_users(settings)
    config = replace(broker_config(settings), take_over=take_over) if verb != "namesrv" else None
    if config is not None:
        check_arrangement(config.store.root, members_of(1, 0))
    started: list[_Server] = []
    ends: list[Callable[[], Awaitable[Any]]] = [stop.wait]
    ready = "ready"
    try:
        if verb != "broker":
            from sprocketmq.namesrv.server import NameServer, NameServerConfig

            server_config = NameServerConfig(
                settings.host,
                settings.namesrv_port,
                settings.max_connections,
                tls=security.tls,
                security=security.access,
                cluster_name=settings.cluster_name,
            )
            nameserver = NameServer(server_config, kv_file=kv_file(settings, config))
            await nameserver.start()
            started.append(nameserver)
            if config is not None:
                config = replace(config, namesrv=(_reachable(nameserver.address), *config.namesrv))
            host = settings.advertise or (own_address(settings.host) if is_wildcard(settings.host) else "")
            shown = _shown(nameserver.address, host)
            warn_of_names(settings, parse_address(shown)[0])
            ready += f" namesrv={shown}"
        if config is not None:
            from sprocketmq.broker.server import Broker

            broker = Broker(config)
            await broker.start()
            started.append(broker)
            ends.append(broker.wait_failed)
            if config.role == "SLAVE":  # not a former master, whose successor may start later
                await _until_first([stop.wait(), broker.replication.settle(FOLLOW_TIMEOUT_S)])
            warn_of_names(settings, parse_address(broker.address)[0])
            ready += f" broker={broker.address}"
            if broker.metrics is not None:
                ready += f" metrics={broker.metrics.address}"
        for process in beside:
            ready += await asyncio.to_thread(process.start, _reachable(nameserver.address))
        listens = ready.removeprefix("ready ")
        ready += ready_fields(settings)
        if config is not None:
            ready += f" store={quoted(config.store.root)}"
        event(
            log,
            logging.INFO,
            "started",
            verb=verb,
            version=__version__,
            listens=listens,
            tls=settings.tls_mode,
            access_control=access_word(settings),
            store=config.store.root if config is not None else None,
            settings=settings.changes(),
        )
        print_ready(ready)
        settle_own_process()
        failure = await _until_first([end() for end in ends])
        if failure is not None:
            for handler in logging.getLogger().handlers:
                handler.flush()  # the reason stands below what led to it
            if takes_text(timeout_s=1.0):  # a pipe that nobody reads does not keep a broker whose store failed
                fail(f"{failure}; stopping")
        return failure
    finally:
        for process in beside:
            await asyncio.to_thread(process.stop)
        for server in reversed(started):
            await asyncio.wait_for(server.stop(), STOP_TIMEOUT_S)


async def _until_first(waits: list[Awaitable[Any]]) -> SprocketError | None:
    """Wait for the first of ``waits`` and return its result if that is a SprocketError."""
    tasks = [asyncio.ensure_future(w) for w in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        if isinstance(failure := task.result(), SprocketError):
            return failure
    return None


def _reachable(address: str) -> str:
    """Return the address at which this process reaches a server that listens on all interfaces."""
    host, _, port = address.rpartition(":")
    return {"0.0.0.0": f"127.0.0.1:{port}", "[::]": f"[::1]:{port}"}.get(host, address)  # noqa: S104 - compared, not bound


def _shown(address: str, advertise: str) -> str:
    host, port = parse_address(address)
    return format_address(advertise, port) if advertise and is_wildcard(host) else address
