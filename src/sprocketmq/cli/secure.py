"""``sprocketmq secure``: the directory with everything that servers and clients of a secured cluster need."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from sprocketmq.cli.output import print_json
from sprocketmq.security import directory
from sprocketmq.security.directory import ADMIN, Issued


def init(root: Path, hosts: Sequence[str], days: int, *, as_json: bool) -> None:
    """Make the directory and print what it is for. Raises ConfigError."""
    issued = directory.create(root, hosts, days)
    if as_json:
        print_json(_facts(root, issued))
        return
    print(_certificates(root, issued))
    made = shlex.quote(str(root))
    print(f"servers:  sprocketmq serve --secure {made}")
    print(f"clients:  sprocketmq cluster --secure {made}    (user {ADMIN}; other machines need {root / 'client'} only)")


def renew(root: Path, hosts: Sequence[str], days: int, *, as_json: bool) -> None:
    """Replace the server certificate. Raises ConfigError."""
    issued = directory.renew(root, hosts, days)
    if as_json:
        print_json(_facts(root, issued))
        return
    print(_certificates(root, issued))
    print("running servers use it for new connections; copy server.pem and server.key to servers on other machines")


def _facts(root: Path, issued: Issued) -> dict[str, object]:
    return {"directory": str(root), "hosts": issued.hosts, "valid_until": issued.until.isoformat()}


def _certificates(root: Path, issued: Issued) -> str:
    return f"{root}: a server certificate for {', '.join(issued.hosts)}, valid until {issued.until:%Y-%m-%d}"
