"""TLS and access control of the serving verbs, made from settings; secrets are read from their files."""

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sprocketmq.cli.config import Settings
from sprocketmq.errors import ConfigError

if TYPE_CHECKING:
    from sprocketmq.net.server_tls import ServerTls
    from sprocketmq.net.tls import TlsConfig
    from sprocketmq.security.config import SecurityConfig

log = logging.getLogger(__name__)

ENFORCING = "enforcing"


@dataclass(frozen=True)
class ServerSecurity:
    """TLS of a server's ports, TLS of its own connections to other servers, and who may use it; None: nothing of the kind."""

    tls: "ServerTls | None" = None
    tls_client: "TlsConfig | None" = None
    access: "SecurityConfig | None" = None


def security_of(settings: Settings) -> ServerSecurity:
    """Return TLS and access control for these settings. Raises ConfigError, SecretFileExposed for a secret that others may read."""
    return ServerSecurity(_tls(settings), _tls_client(settings), _access(settings))


def _tls(settings: Settings) -> "ServerTls | None":
    if settings.tls_mode == "disabled":
        return None
    from sprocketmq.net.server_tls import ServerTls, TlsMode

    return ServerTls(
        mode=TlsMode(settings.tls_mode),
        cert_file=_path(settings.tls_cert_file),
        key_file=_path(settings.tls_key_file),
        key_password=_key_password(settings),
        ca_file=_path(settings.tls_ca_file),
        client_auth=settings.tls_client_auth,
    )


def _tls_client(settings: Settings) -> "TlsConfig | None":
    """Return how it connects to nameservers and its master: encrypted when it accepts nothing else itself."""
    if settings.tls_mode != ENFORCING:
        return None
    from sprocketmq.net.tls import TlsConfig

    authority = _path(settings.tls_ca_file)
    if settings.tls_client_auth == "none":
        return TlsConfig(ca_file=authority)
    # Servers that ask clients for a certificate ask this one as well.
    return TlsConfig(
        ca_file=authority,
        cert_file=_path(settings.tls_cert_file),
        key_file=_path(settings.tls_key_file),
        key_password=_key_password(settings),
    )


def _access(settings: Settings) -> "SecurityConfig | None":
    if not settings.authentication_enabled and not settings.authorization_enabled:
        if settings.users_file:
            raise ConfigError("users_file is set, but nobody has to log in: set authentication_enabled and authorization_enabled as well")
        return None
    from sprocketmq.client.credentials import read_credentials
    from sprocketmq.security.config import SecurityConfig

    inner = _path(settings.inner_credentials_file)
    credentials = read_credentials(inner) if inner is not None else settings.inner_credentials
    return SecurityConfig(
        authentication_enabled=settings.authentication_enabled,
        authorization_enabled=settings.authorization_enabled,
        users_file=_users_file(settings),
        inner_credentials=credentials,
    )


def _users_file(settings: Settings) -> Path | None:
    """Return the file of users: with users in Apache's configuration file, by default beside what the broker knows."""
    if settings.users_file or not settings.initial_users:
        return _path(settings.users_file)
    return settings.store_root / "config" / "users.json"


def add_initial_users(settings: Settings) -> None:
    """Add the users of Apache's configuration file as Super users; those that exist stay as they are. Raises ConfigError."""
    path = _users_file(settings)
    if path is None or not settings.initial_users or not settings.authentication_enabled:
        return
    from sprocketmq.security.tables import AccessTables
    from sprocketmq.security.user_file import change_users_file, create_users_file
    from sprocketmq.security.users import User, UserType

    def added(tables: AccessTables) -> AccessTables:
        for one in settings.initial_users:
            if one.access_key not in tables.users:
                tables = tables.create_user(User(one.access_key, (one.secret_key,), UserType.SUPER))
        return tables

    if path.exists():
        change_users_file(path, added)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        create_users_file(path, added(AccessTables()))


def _key_password(settings: Settings) -> str | None:
    path = _path(settings.tls_key_password_file)
    if path is None:
        return None
    from sprocketmq.client.credentials import read_key_password

    return read_key_password(path)


def _path(text: str) -> Path | None:
    return Path(text).expanduser().absolute() if text else None


def ready_fields(settings: Settings) -> str:
    """Return TLS and access control for the ready line, "" when both are off."""
    if settings.tls_mode == "disabled" and not settings.authentication_enabled:
        return ""
    return f" tls={settings.tls_mode} access_control={access_word(settings)}"


def access_word(settings: Settings) -> str:
    """Return ``off``, ``on`` or ``logins-only``."""
    if not settings.authentication_enabled:
        return "off"
    return "on" if settings.authorization_enabled else "logins-only"


def warn_of_names(settings: Settings, host: str) -> None:
    """Log a warning when the certificate is not for ``host``, which clients are told to connect to: they would refuse it."""
    path = _path(settings.tls_cert_file)
    if settings.tls_mode == "disabled" or path is None:
        return
    from sprocketmq.security.certificates import covers, hosts_of

    hosts = hosts_of(path.read_bytes())
    if not covers(hosts, host):
        made = settings.secure
        renewing = f"`sprocketmq secure renew {shlex.quote(str(made))} --host {host}`" if made else "a certificate that names it"
        log.warning(
            "clients connect to %s, and refuse the certificate in %s, which is for %s: use %s", host, path, ", ".join(hosts), renewing
        )
