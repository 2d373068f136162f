"""Addresses as text: ``host:port``, IPv6 literals in brackets, several joined by ``;``."""

from sprocketmq.errors import ConfigError


def parse_address(text: str) -> tuple[str, int]:
    """Return ``(host, port)`` of ``host:port`` or ``[v6]:port``. Raises ConfigError saying what an address looks like."""
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
