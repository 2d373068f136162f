"""The common part of ``dashboard`` and ``proxy``, the servers in front of a cluster: options, and running until they are stopped."""

import argparse
import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from sprocketmq.cli.config import LOOPBACK_HOST, Settings
from sprocketmq.cli.errors import EXIT_OK
from sprocketmq.cli.logs import logging_to
from sprocketmq.cli.serving_options import LOG_SETTINGS, add_cluster_options, add_log_options, log_options, port_number
from sprocketmq.cli.serving_verbs import DESCRIPTIONS
from sprocketmq.cli.stopping import on_stop_signals, print_ready, watch_stdin
from sprocketmq.cli.variables import OptionsWithVariables
from sprocketmq.net.loops import new_event_loop
from sprocketmq.net.own_process import settle_own_process
from sprocketmq.net.sockets import raise_descriptor_limit


class Server(Protocol):
    """A server."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def parser_in_front(verb: str, ready: str, default_port: int) -> OptionsWithVariables:
    """Return a parser with the options of the cluster and the address; ``ready`` is the form of the line that is printed."""
    p = OptionsWithVariables(
        verb,
        description=f"{DESCRIPTIONS[verb]} Prints one line `{ready}` when it is ready. SIGTERM and SIGINT stop it cleanly (exit code 0).",
    )
    add_cluster_options(p)
    p.add_argument("--host", default=LOOPBACK_HOST, help=f"address to listen on (default {LOOPBACK_HOST})")
    p.add_argument("--port", type=port_number, default=default_port, help=f"port to listen on (default {default_port}; 0: any free one)")
    return p


def add_run_options(p: argparse.ArgumentParser) -> None:
    """Add the options about logs, the configuration and standard input, which come last."""
    add_log_options(p)
    p.add_argument("--show-config", action="store_true", help="print all options and where each comes from, as TOML, and exit")
    p.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input ends, for parent processes")


def run_in_front(
    known: OptionsWithVariables, arguments: Sequence[str], serve: Callable[[argparse.Namespace], Coroutine[Any, Any, int]]
) -> int:
    """Read the options, call ``serve`` with them and return the exit code. Raises SprocketError when it cannot start."""
    options, sources = known.read(arguments)
    if options.show_config:
        print(known.as_toml(options, sources))
        return EXIT_OK
    raise_descriptor_limit()
    settings = Settings()
    for name in LOG_SETTINGS:
        if (value := getattr(options, name)) is not None:
            settings.put(name, value, sources[name])
    with logging_to(log_options(settings)), asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serve(options))


async def serve_until_stopped(server: Server, stop: asyncio.Event, announce: Callable[[], str], *, with_stdin: bool) -> None:
    """Start ``server``, print the line that ``announce`` returns, and stop it after a signal or when ``stop`` is set.

    ``with_stdin``: also at the end of standard input.
    """
    with on_stop_signals(lambda _: stop.set()):
        if with_stdin:
            watch_stdin(asyncio.get_running_loop(), stop)
        await server.start()
        try:
            print_ready(announce())
            settle_own_process()
            await stop.wait()
        finally:
            await server.stop()


def certificate_of(directory: Path | None) -> tuple[Path, Path] | tuple[None, None]:
    """Return the files of the certificate and the key of the servers in ``--secure DIR``, if they are there."""
    if directory is not None:
        certificate, key = directory / "server.pem", directory / "server.key"
        if certificate.exists() and key.exists():
            return certificate, key
    return None, None
