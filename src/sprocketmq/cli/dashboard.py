"""``sprocketmq dashboard``: a cluster in the browser."""

import argparse
import asyncio
import logging
import socket
from collections.abc import Sequence
from pathlib import Path

from sprocketmq.cli.errors import EXIT_OK
from sprocketmq.cli.in_front import add_run_options, certificate_of, parser_in_front, run_in_front, serve_until_stopped
from sprocketmq.cli.target import Target
from sprocketmq.cli.variables import OptionsWithVariables
from sprocketmq.errors import ConfigError
from sprocketmq.events import event
from sprocketmq.net.address import is_loopback, is_wildcard

log = logging.getLogger(__name__)

DEFAULT_PORT = 8080


def parser() -> OptionsWithVariables:
    """Return the parser of the command line."""
    p = parser_in_front("dashboard", "ready dashboard=URL", DEFAULT_PORT)
    p.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[], help="a name under which browsers reach it; may be repeated"
    )
    p.add_argument("--https-cert", metavar="FILE", type=Path, help="certificate for HTTPS (default beyond loopback: that of --secure DIR)")
    p.add_argument("--https-key", metavar="FILE", type=Path, help="its key")
    p.add_argument("--read-only", action="store_true", help="refuse everything that changes the cluster")
    p.add_argument("--insecure", action="store_true", help="allow a --host that other machines can reach without HTTPS and logins")
    add_run_options(p)
    return p


def run_dashboard(arguments: Sequence[str]) -> int:
    """Serve the dashboard until it is stopped and return the exit code. Raises SprocketError when it cannot start."""
    return run_in_front(parser(), arguments, _serve)


async def _serve(options: argparse.Namespace) -> int:
    try:
        from sprocketmq.web.server import DashboardServer, login_needed
    except ImportError as e:
        raise ConfigError(f"the dashboard needs packages that are not installed ({e.name}): pip install 'sprocketmq[dashboard]'") from None
    from sprocketmq.web.target import ClusterTarget

    target = ClusterTarget(**Target(options.namesrv, options.secure, options.access_key_file, options.tls, options.tls_ca).options)
    certificate, key = _https(options)
    if not is_loopback(options.host) and not options.insecure:
        if certificate is None:
            raise ConfigError(
                f"--host {options.host} lets other machines in, and logins would be sent in plain text: add --https-cert FILE and"
                " --https-key FILE, or --insecure if only machines you trust can reach it"
            )
        if not await login_needed(target):
            raise ConfigError(
                f"--host {options.host} lets other machines in, and the cluster at {options.namesrv} has no access control, so that"
                " everybody could change it: secure the cluster, or add --insecure if only machines you trust can reach it"
            )
    stop = asyncio.Event()
    server = DashboardServer(
        target,
        host=options.host,
        port=options.port,
        read_only=options.read_only,
        allowed_hosts=_names(options),
        certificate=certificate,
        key=key,
        failed=stop.set,
    )

    def announce() -> str:
        event(log, logging.INFO, "started", verb="dashboard", address=server.url, namesrv=options.namesrv, read_only=options.read_only)
        return f"ready dashboard={server.url}"

    await serve_until_stopped(server, stop, announce, with_stdin=options.stop_with_stdin)
    if server.failure is not None:
        raise server.failure
    event(log, logging.INFO, "stopped", verb="dashboard")
    return EXIT_OK


def _https(options: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """Return the files for HTTPS: those that are named, or, beyond loopback, those of the servers in ``--secure DIR``."""
    if (options.https_cert is None) != (options.https_key is None):
        raise ConfigError("--https-cert and --https-key belong together: give both, or none")
    if options.https_cert is None and not is_loopback(options.host):
        return certificate_of(options.secure)
    return options.https_cert, options.https_key


def _names(options: argparse.Namespace) -> list[str]:
    """Return the names, beside addresses and localhost, under which browsers may reach it."""
    if is_loopback(options.host):
        return list(options.allow_host)
    return [*options.allow_host, socket.gethostname(), *([] if is_wildcard(options.host) else [options.host])]
