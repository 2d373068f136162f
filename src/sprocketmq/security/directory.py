"""The directory of ``sprocketmq secure init``: everything that servers and clients of one secured cluster need (docs/guide/security.md).

::

    DIR/ca.pem  server.pem                          certificates: the authority's, the servers'
    DIR/ca.key  server.key                          their keys
    DIR/users.json                                  users and policies
    DIR/inner.json                                  credentials with which servers log in at one another
    DIR/settings.toml                               settings of servers, with paths relative to DIR
    DIR/client/ca.pem  credentials.json             for clients: the Super user admin
"""

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from sprocketmq.errors import ConfigError
from sprocketmq.net.address import is_loopback, own_address
from sprocketmq.protocol.credentials import Secret
from sprocketmq.security.certificates import AUTHORITY_DAYS, KeyPair, check_days, check_host, hosts_of, issue, make_authority, valid_until
from sprocketmq.security.tables import AccessTables
from sprocketmq.security.user_file import create_users_file
from sprocketmq.security.users import User, UserType, new_secret

SERVER_DAYS = 825
ADMIN, INNER = "admin", "inner"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")

SETTINGS = """\
# `sprocketmq serve --secure DIR` reads this; paths are relative to DIR.
tls_mode = "enforcing"
tls_cert_file = "server.pem"
tls_key_file = "server.key"
tls_ca_file = "ca.pem"
authentication_enabled = true
authorization_enabled = true
users_file = "users.json"
inner_credentials_file = "inner.json"
"""


@dataclass(frozen=True)
class SecureDirectory:
    """The paths of such a directory, whether or not it exists."""

    root: Path

    @property
    def authority(self) -> Path:
        return self.root / "ca.pem"

    @property
    def authority_key(self) -> Path:
        return self.root / "ca.key"

    @property
    def certificate(self) -> Path:
        return self.root / "server.pem"

    @property
    def key(self) -> Path:
        return self.root / "server.key"

    @property
    def users(self) -> Path:
        return self.root / "users.json"

    @property
    def inner_credentials(self) -> Path:
        return self.root / "inner.json"

    @property
    def settings(self) -> Path:
        return self.root / "settings.toml"

    @property
    def client(self) -> Path:
        """The files for a client machine: a directory of its own."""
        return self.root / "client"


@dataclass(frozen=True)
class Issued:
    """The hosts and expiry of a server certificate."""

    hosts: list[str]
    until: datetime


def create(root: Path, hosts: Sequence[str] = (), days: int = SERVER_DAYS) -> Issued:
    """Make a directory with an authority, a server certificate, and the users admin and inner; ``hosts`` are added to this machine's.

    Raises ConfigError for one that is not empty or cannot be written, and for hosts and days that cannot be; nothing is left behind then.
    """
    check_new(root)
    names = list(dict.fromkeys((*LOOPBACK_HOSTS, *own_hosts(), *map(check_host, hosts))))
    authority = make_authority(max(check_days(days), AUTHORITY_DAYS) + 1)
    server = issue(authority, names, days)
    temporary: Path | None = None
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))  # with the mode 0700
        _fill(SecureDirectory(temporary), authority, server)
        # Also replaces an empty directory; one that got files meanwhile stays as it is.
        temporary.rename(root)
    except OSError as e:
        raise ConfigError(f"cannot make the directory {root}: {e.strerror or e}") from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return Issued(names, valid_until(server.certificate))


def renew(root: Path, hosts: Sequence[str] = (), days: int = SERVER_DAYS) -> Issued:
    """Replace the server certificate and its key by new ones for the same hosts and ``hosts``, signed by the same authority.

    Raises ConfigError when that is not possible; the old ones stay then.
    """
    files = SecureDirectory(root)
    authority = KeyPair(_read(files.authority), _read(files.authority_key))
    try:
        before = hosts_of(_read(files.certificate)) if files.certificate.exists() else [*LOOPBACK_HOSTS, *own_hosts()]
    except ConfigError as e:
        raise ConfigError(f"{files.certificate}: {e}; remove it to make one for this machine and the --host names") from None
    names = list(dict.fromkeys((*before, *map(check_host, hosts))))
    try:
        server = issue(authority, names, days)
    except ConfigError as e:
        raise ConfigError(f"{root}: {e}") from None
    try:
        # A server that reads between the two finds that they do not belong together, and tries again.
        replace_file(files.key, server.key, 0o600)
        replace_file(files.certificate, server.certificate, 0o644)
    except OSError as e:
        raise ConfigError(f"cannot write to {root}: {e.strerror or e}") from None
    return Issued(names, valid_until(server.certificate))


def check_new(root: Path) -> None:
    """Raise ConfigError unless ``root`` can be made: it does not exist, or is an empty directory."""
    try:
        taken = next(root.iterdir(), None)
    except FileNotFoundError:
        return
    except OSError as e:
        raise ConfigError(f"{root} cannot be used: {e.strerror or e}") from None
    if taken is None:
        return
    if SecureDirectory(root).authority_key.exists():
        raise ConfigError(f"{root} is such a directory already: use it with --secure, or make new certificates with `secure renew {root}`")
    raise ConfigError(f"{root} is not empty ({taken.name} is in it): name a new directory")


def own_hosts() -> list[str]:
    """Return the name of this machine and the address that it tells clients, as far as it has them."""
    hosts = []
    name = socket.gethostname()
    with contextlib.suppress(ConfigError):
        hosts.append(check_host(name))
    address = own_address("0.0.0.0")  # noqa: S104 - asks for the address, binds nothing
    return hosts if is_loopback(address) else [*hosts, address]


def write_client(root: Path, authority: bytes | None, access_key: str, secret: Secret) -> None:
    """Write what a client needs into ``root``, which is made with the mode 0700. Raises OSError, FileExistsError for credentials there."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = msgspec.json.encode({"access_key": access_key, "secret_key": secret.reveal()})
    write_new(root / "credentials.json", msgspec.json.format(text, indent=2) + b"\n", 0o600)
    if authority is not None:
        replace_file(root / "ca.pem", authority, 0o644)


def write_new(path: Path, text: bytes, mode: int) -> None:
    """Write a file that does not exist yet. Raises OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        _set_mode(file.fileno(), mode)
        file.write(text)


def replace_file(path: Path, text: bytes, mode: int) -> None:
    """Replace a file as a whole. Raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _set_mode(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _set_mode(descriptor: int, mode: int) -> None:
    """Set the mode of a new file, which depends on the process's mask otherwise. Windows has access lists in its place."""
    if sys.platform != "win32":
        os.fchmod(descriptor, mode)


def _fill(files: SecureDirectory, authority: KeyPair, server: KeyPair) -> None:
    write_new(files.authority, authority.certificate, 0o644)
    write_new(files.authority_key, authority.key, 0o600)
    write_new(files.certificate, server.certificate, 0o644)
    write_new(files.key, server.key, 0o600)
    write_new(files.settings, SETTINGS.encode(), 0o644)
    secrets = {ADMIN: new_secret(), INNER: new_secret()}
    users = {name: User(name, (secret,), UserType.SUPER) for name, secret in secrets.items()}
    create_users_file(files.users, AccessTables(users))
    write_client(files.client, authority.certificate, ADMIN, secrets[ADMIN])
    inner = msgspec.json.encode({"access_key": INNER, "secret_key": secrets[INNER].reveal()})
    write_new(files.inner_credentials, msgspec.json.format(inner, indent=2) + b"\n", 0o600)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist: name a directory of `sprocketmq secure init` that still has the key of its authority"
        ) from None
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror or e}") from None
