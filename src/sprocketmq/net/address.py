"""Addresses as text: ``host:port``, IPv6 literals in brackets, several joined by ``;``."""

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address

from sprocketmq.errors import ConfigError

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
# Documentation addresses. Connecting a datagram socket sends nothing, but selects the source address of the default route.
_ANYWHERE = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}


def parse_address(text: str) -> tuple[str, int]:
    """Return ``(host, port)`` of ``host:port`` or ``[v6]:port``. Raises ConfigError saying what an address looks like."""
    if not isinstance(text, str):
        raise ConfigError(f"an address is text, HOST:PORT, not {text!r}")
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{text!r} is not an address: write HOST:PORT, for example 127.0.0.1:9876")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 literal."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of ``a:1;b:2`` (commas are accepted too), each checked. Raises ConfigError when there is none."""
    addresses = tuple(dict.fromkeys(part.strip() for part in text.replace(",", ";").split(";") if part.strip()))
    if not addresses:
        raise ConfigError("no nameserver address given: write HOST:PORT, several joined by ';'")
    for address in addresses:
        parse_address(address)
    return addresses


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``."""
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def is_wildcard(host: str) -> bool:
    """Return whether ``host`` stands for all addresses of the machine: a server can listen on it, but no client can connect to it."""
    if host in ("", "*"):
        return True
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_unspecified
    except ValueError:
        return False


def bind_host(host: str) -> str:
    """Return ``host`` in the form for sockets: ``*`` and no host are all IPv4 addresses."""
    return "0.0.0.0" if host in ("", "*") else host.removeprefix("[").removesuffix("]")  # noqa: S104 - what the user asked for


def advertise_problem(host: str) -> str:
    """Return why ``host`` cannot be advertised to clients, or ""."""
    if is_wildcard(host):
        return "it stands for all addresses of a machine; name the one that clients connect to"
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        if not _HOST_NAME.fullmatch(host):
            return "it is neither a host name nor an IP address (the port is added to it)"
    return ""


def own_address(host: str, peers: Iterable[str] = ()) -> str:
    """Return the address under which other machines reach a server that listens on the wildcard ``host``.

    It is the source address for packets to the first of ``peers`` (``host:port``) on another machine, else the first address of this
    machine that is not a loopback address; 127.0.0.1 or ::1 when there is none.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    others = [target for target in map(parse_address, peers) if not is_loopback(target[0])]
    for name, port in [*others, _ANYWHERE[family]]:
        try:
            address = socket.getaddrinfo(name, port, family, socket.SOCK_DGRAM)[0][4]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                found = str(probe.getsockname()[0])
        except OSError:
            continue
        if not is_loopback(found):
            return found
    try:
        addresses = [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, family, socket.SOCK_STREAM)]
    except OSError:
        addresses = []
    return next((address for address in addresses if not is_loopback(address)), "::1" if family == socket.AF_INET6 else "127.0.0.1")
