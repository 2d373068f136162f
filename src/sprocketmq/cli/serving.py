"""``serve``, ``namesrv`` and ``broker``: the server processes.

They parse with argparse and import only what they run, so `serve` is ready a quarter of a second after its process starts.
"""

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sprocketmq.cli.config import LOOPBACK_HOST, Settings, data_directory
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, fail
from sprocketmq.cli.stopping import on_stop_signals, print_ready, watch_stdin
from sprocketmq.errors import ConfigError, SprocketError
from sprocketmq.net.address import format_address, is_loopback, is_wildcard, own_address, parse_address, parse_addresses
from sprocketmq.net.loops import new_event_loop

if TYPE_CHECKING:
    from sprocketmq.broker.config import BrokerConfig
    from sprocketmq.storage.config import ConfigFile

STOP_TIMEOUT_S = 30.0

DESCRIPTIONS = {
    "serve": "Run a nameserver and a broker in one process, or several brokers in processes of their own.",
    "namesrv": "Run a nameserver.",
    "broker": "Run a broker that registers at running nameservers.",
}
_READY = {
    "serve": "ready namesrv=HOST:PORT broker=HOST:PORT store=DIR",
    "namesrv": "ready namesrv=HOST:PORT",
    "broker": "ready broker=HOST:PORT store=DIR",
}


class _Server(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of one verb. Options left out are None, so that the configuration file counts."""
    p = argparse.ArgumentParser(
        prog=f"sprocketmq {verb}",
        description=f"{DESCRIPTIONS[verb]} Prints one line `{_READY[verb]}` when it is ready. "
        "SIGTERM and SIGINT stop it cleanly (exit code 0).",
        epilog="A port of 0 means any free port. The command line overrides the configuration file.",
        allow_abbrev=False,
    )
    p.add_argument("--host", help=f"address to listen on (default {LOOPBACK_HOST})")
    if verb == "serve":
        p.add_argument("--namesrv-port", type=_port, metavar="PORT", help="port of the nameserver (default 9876)")
        p.add_argument("--brokers", type=_count, metavar="N", default=1, help="how many brokers; several run in supervised child processes")
    if verb == "broker":
        p.add_argument("--take-over", action="store_true", help="replace a live broker of the same name, which gets no more traffic then")
        p.add_argument("--namesrv", metavar="HOST:PORT[;HOST:PORT]", help="nameservers to register at (default: NAMESRV_ADDR)")
    default_port = 9876 if verb == "namesrv" else 10911
    p.add_argument("--port", type=_port, help=f"port of the {'nameserver' if verb == 'namesrv' else 'broker'} (default {default_port})")
    kept, name = ("key-value configuration", "namesrv-PORT") if verb == "namesrv" else ("messages", "BROKER_NAME")
    p.add_argument("--store", metavar="DIR", help=f"directory to keep {kept} in (default {data_directory()}/{name})")
    if verb != "namesrv":
        p.add_argument("--name", metavar="BROKER_NAME", help="name of the broker (default broker-a)")
        p.add_argument("--cluster", metavar="CLUSTER_NAME", help="name of the cluster (default DefaultCluster)")
        p.add_argument(
            "--advertise",
            metavar="HOST",
            help="host that clients connect to (default: --host, or the first real address for a wildcard)",
        )
    p.add_argument("--config", metavar="FILE", type=Path, help="file with settings: TOML, or Apache's broker.conf")
    p.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="one setting, named as in a configuration file")
    p.add_argument("--insecure", action="store_true", help="allow a --host that other machines can reach: there is no authentication yet")
    p.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input ends, for parent processes")
    return p


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write a number from 0 (any free port) to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of brokers: write 1 or more")
    return int(text)


def run(arguments: Sequence[str]) -> int:
    """Run a serving verb until it is stopped and return its exit code. Raises SprocketError when it cannot start."""
    verb = arguments[0]
    options = parser(verb).parse_args(arguments[1:])
    settings = _settings(verb, options)
    _check_reach(settings, insecure=options.insecure)
    logging.basicConfig(
        stream=sys.stderr, level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if verb == "serve" and options.brokers > 1:
            from sprocketmq.cli.serving_many import serve_many

            return runner.run(
                serve_many(settings, brokers=options.brokers, insecure=options.insecure, stop_with_stdin=options.stop_with_stdin)
            )
        take_over = getattr(options, "take_over", False)
        return runner.run(_serve(verb, settings, take_over=take_over, stop_with_stdin=options.stop_with_stdin))


def _settings(verb: str, options: argparse.Namespace) -> Settings:
    settings = Settings()
    if verb == "broker":
        settings.namesrv = os.environ.get("NAMESRV_ADDR", "")
    if options.config is not None:
        settings.put_file(options.config, for_namesrv=verb == "namesrv")
    for assignment in options.set:
        settings.put_text(assignment, "--set")
    named = {"host": "host", "store": "store", "name": "broker_name", "cluster": "cluster_name", "advertise": "advertise"}
    named |= {"namesrv": "namesrv", "namesrv_port": "namesrv_port", "port": "namesrv_port" if verb == "namesrv" else "port"}
    for option, key in named.items():
        value = getattr(options, option, None)
        if value is not None:
            settings.put(key, value, f"--{option.replace('_', '-')}")
    if verb == "serve" and "namesrv" in settings.explicit:
        _take_own_address(settings)
    if verb == "broker" and not settings.namesrv:
        raise ConfigError("no nameserver to register at: pass --namesrv HOST:PORT, or run `sprocketmq serve`, which includes one")
    return settings


def _take_own_address(settings: Settings) -> None:
    """Make the port of this machine's address in ``namesrv`` the port of the own nameserver; the broker registers at the others, too.

    Raises ConfigError when all the addresses are those of other machines.
    """
    addresses = parse_addresses(settings.namesrv)
    own = next((address for address in addresses if _is_here(parse_address(address)[0])), None)
    if own is None:
        raise ConfigError(
            f"`sprocketmq serve` runs a nameserver of its own, and {settings.namesrv} is none of this machine's addresses: run `sprocketmq"
            " broker` to register there only"
        )
    if "namesrv_port" not in settings.explicit:
        settings.namesrv_port = parse_address(own)[1]
    settings.namesrv = ";".join(address for address in addresses if address != own)


def _is_here(host: str) -> bool:
    """Tell whether ``host`` is an address of this machine: only then a socket can be bound to it."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _check_reach(settings: Settings, *, insecure: bool) -> None:
    """Raise ConfigError for a host that other machines can reach, unless ``insecure``."""
    host = settings.host
    if not is_loopback(host) and not insecure:
        raise ConfigError(
            f"--host {host} lets other machines in, and this broker has neither authentication nor encryption: anyone who can connect"
            " can read, write and delete every message. Add --insecure if only machines you trust can reach it"
        )


def _broker_config(settings: Settings) -> "BrokerConfig":
    from sprocketmq.broker.config import BrokerConfig
    from sprocketmq.storage.config import StoreConfig

    root = Path(settings.store).expanduser().absolute() if settings.store else data_directory() / settings.broker_name
    said = vars(settings)
    own = {"root", "store", "advertise", "namesrv"}
    store = {f.name: said[f.name] for f in fields(StoreConfig) if f.name in said and f.name not in own}
    broker = {f.name: said[f.name] for f in fields(BrokerConfig) if f.name in said and f.name not in own}
    return BrokerConfig(
        store=StoreConfig(root=root, **store),
        advertise=settings.advertise or None,
        namesrv=parse_addresses(settings.namesrv) if settings.namesrv else (),
        **broker,
    )


def _kv_file(settings: Settings, broker: "BrokerConfig | None") -> "ConfigFile | None":
    """Return the file of a nameserver's key-value configuration; None for a nameserver on any free port without --store."""
    from sprocketmq.storage.config import KV_CONFIG_FILE, ConfigFile

    if broker is not None:
        return ConfigFile(broker.store.root / KV_CONFIG_FILE)
    if settings.store:
        return ConfigFile(Path(settings.store).expanduser().absolute() / KV_CONFIG_FILE)
    return ConfigFile(data_directory() / f"namesrv-{settings.namesrv_port}" / KV_CONFIG_FILE) if settings.namesrv_port else None


async def _serve(verb: str, settings: Settings, *, take_over: bool, stop_with_stdin: bool) -> int:
    """Start the servers of ``verb``, print the ready line, and stop on a signal (0) or when the store fails (1)."""
    stop = asyncio.Event()
    with on_stop_signals(lambda _: stop.set()):
        if stop_with_stdin:
            watch_stdin(asyncio.get_running_loop(), stop)
        return await _serve_until(stop, verb, settings, take_over=take_over)


async def _serve_until(stop: asyncio.Event, verb: str, settings: Settings, *, take_over: bool) -> int:
    config = replace(_broker_config(settings), take_over=take_over) if verb != "namesrv" else None
    started: list[_Server] = []
    ends: list[Callable[[], Awaitable[Any]]] = [stop.wait]
    ready = "ready"
    try:
        if verb != "broker":
            from sprocketmq.namesrv.server import NameServer, NameServerConfig

            server_config = NameServerConfig(settings.host, settings.namesrv_port, settings.max_connections)
            nameserver = NameServer(server_config, kv_file=_kv_file(settings, config))
            await nameserver.start()
            started.append(nameserver)
            if config is not None:
                config = replace(config, namesrv=(_reachable(nameserver.address), *config.namesrv))
            host = settings.advertise or (own_address(settings.host) if is_wildcard(settings.host) else "")
            ready += f" namesrv={_shown(nameserver.address, host)}"
        if config is not None:
            from sprocketmq.broker.server import Broker

            broker = Broker(config)
            await broker.start()
            started.append(broker)
            ends.append(broker.wait_failed)
            ready += f" broker={broker.address} store={broker.config.store.root}"
        print_ready(ready)
        return await _until_first([end() for end in ends])
    finally:
        for server in reversed(started):
            await asyncio.wait_for(server.stop(), STOP_TIMEOUT_S)


async def _until_first(waits: list[Awaitable[Any]]) -> int:
    """Wait for the first of ``waits`` and return the exit code: 1 if its result is a SprocketError."""
    tasks = [asyncio.ensure_future(w) for w in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        if isinstance(failure := task.result(), SprocketError):
            fail(f"{failure}; stopping")
            return EXIT_FAILURE
    return EXIT_OK


def _reachable(address: str) -> str:
    """Return the address at which this process reaches a server that listens on all interfaces."""
    host, _, port = address.rpartition(":")
    return {"0.0.0.0": f"127.0.0.1:{port}", "[::]": f"[::1]:{port}"}.get(host, address)  # noqa: S104 - compared, not bound


def _shown(address: str, advertise: str) -> str:
    host, port = parse_address(address)
    return format_address(advertise, port) if advertise and is_wildcard(host) else address
