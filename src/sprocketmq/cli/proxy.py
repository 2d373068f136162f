"""``sprocketmq proxy``: RocketMQ's gRPC API in front of a cluster."""

import argparse
import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sprocketmq.cli.errors import EXIT_OK
from sprocketmq.cli.in_front import add_run_options, certificate_of, parser_in_front, run_in_front, serve_until_stopped
from sprocketmq.cli.target import Target
from sprocketmq.cli.variables import OptionsWithVariables
from sprocketmq.errors import ConfigError
from sprocketmq.events import event
from sprocketmq.net.address import is_loopback

if TYPE_CHECKING:
    from sprocketmq.client.credentials import ClientSecurity
    from sprocketmq.net.server_tls import ServerTls
    from sprocketmq.proxy.users import Users

log = logging.getLogger(__name__)

DEFAULT_PORT = 8081


def parser() -> OptionsWithVariables:
    """Return the parser of the command line."""
    p = parser_in_front("proxy", "ready grpc=HOST:PORT", DEFAULT_PORT)
    p.add_argument("--advertise", metavar="HOST:PORT", help="address that clients are told to use (default: the one they asked at)")
    p.add_argument(
        "--users",
        metavar="FILE",
        type=Path,
        help="who may use it, as JSON; default: the user of --secure or --access-key-file",
    )
    p.add_argument(
        "--tls-cert", metavar="FILE", type=Path, help="certificate (default: that of --secure DIR, or one that clients cannot verify)"
    )
    p.add_argument("--tls-key", metavar="FILE", type=Path, help="its key")
    p.add_argument("--tls-only", action="store_true", help="refuse clients that do not encrypt")
    p.add_argument("--insecure", action="store_true", help="allow a --host that other machines can reach without TLS and users")
    add_run_options(p)
    return p


def run_proxy(arguments: Sequence[str]) -> int:
    """Serve gRPC clients until it is stopped and return the exit code. Raises SprocketError when it cannot start."""
    return run_in_front(parser(), arguments, _serve)


async def _serve(options: argparse.Namespace) -> int:
    try:
        from sprocketmq.proxy.server import EndpointServer
    except ImportError as e:
        raise ConfigError(f"the gRPC endpoint needs packages that are not installed ({e.name}): pip install 'sprocketmq[grpc]'") from None
    from sprocketmq.client.credentials import resolve

    target = Target(options.namesrv, options.secure, options.access_key_file, options.tls, options.tls_ca).options
    security = resolve(credentials=target["credentials"], tls=target["tls"], secure=target["secure"])
    users = _users(options, security)
    tls = _tls(options)
    if not is_loopback(options.host) and not options.insecure and (tls is None or not options.tls_only or not users):
        raise ConfigError(
            f"--host {options.host} lets other machines in: add --tls-only with --tls-cert FILE and --tls-key FILE, and --users FILE; or"
            " --insecure if only machines you trust can reach it"
        )
    server = EndpointServer(
        target["namesrv"],
        host=options.host,
        port=options.port,
        security=security,
        users=users,
        tls=tls,
        advertised=options.advertise,
    )

    def announce() -> str:
        event(log, logging.INFO, "started", verb="proxy", address=server.address, namesrv=options.namesrv, access_control=bool(users))
        return f"ready grpc={server.address}"

    await serve_until_stopped(server, asyncio.Event(), announce, with_stdin=options.stop_with_stdin)
    event(log, logging.INFO, "stopped", verb="proxy")
    return EXIT_OK


def _users(options: argparse.Namespace, security: "ClientSecurity") -> "Users":
    """Return the users that may call: those in the file, else the user whose credentials the endpoint has, else everybody."""
    from sprocketmq.protocol.credentials import Credentials
    from sprocketmq.proxy.users import Users, read_users

    if options.users is not None:
        return read_users(options.users)
    own = security.credentials
    own = own if own is None or isinstance(own, Credentials) else own()
    return Users({} if own is None else {own.access_key: own})


def _tls(options: argparse.Namespace) -> "ServerTls | None":
    """Return the certificate to use: the named one, or that of the servers in ``--secure DIR``; None for one made at the start."""
    from sprocketmq.net.server_tls import ServerTls, TlsMode
    from sprocketmq.proxy.server import ALPN

    if (options.tls_cert is None) != (options.tls_key is None):
        raise ConfigError("--tls-cert and --tls-key belong together: give both, or none")
    certificate, key = (options.tls_cert, options.tls_key) if options.tls_cert is not None else certificate_of(options.secure)
    if certificate is None:
        if options.tls_only:
            raise ConfigError("--tls-only needs a certificate that clients can verify: add --tls-cert FILE and --tls-key FILE")
        return None
    return ServerTls(TlsMode.ENFORCING if options.tls_only else TlsMode.PERMISSIVE, certificate, key, alpn=ALPN)
