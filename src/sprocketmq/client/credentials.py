"""Where a client's credentials and TLS settings come from.

Each of the two is taken from the first place that has it:

1. the arguments ``credentials=`` and ``tls=``
2. the directory named by ``secure=``, as ``sprocketmq secure init`` makes it: ``credentials.json`` and ``ca.pem`` in its ``client/``, or in
   the directory itself
3. the environment: ``SPROCKETMQ_ACCESS_KEY``, ``SPROCKETMQ_SECRET_KEY`` and ``SPROCKETMQ_SECURITY_TOKEN``
4. the directory named by ``SPROCKETMQ_SECURE``
5. ``credentials.json`` and ``ca.pem`` in ``~/.config/sprocketmq``

A file is read again after a server has refused a request. Nothing is ever read from an address or from the value of a command-line option.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.directories import home_directory
from sprocketmq.errors import AuthenticationFailed, AuthorizationFailed, BrokerError, ConfigError, SecretFileExposed
from sprocketmq.net.login import Login
from sprocketmq.net.tls import TlsConfig
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.credentials import Credentials, CredentialsSource

ACCESS_KEY_VARIABLE = "SPROCKETMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE = "SPROCKETMQ_SECRET_KEY"  # noqa: S105 - a name
SECURITY_TOKEN_VARIABLE = "SPROCKETMQ_SECURITY_TOKEN"  # noqa: S105 - a name
SECURE_VARIABLE = "SPROCKETMQ_SECURE"

CREDENTIALS_FILE = "credentials.json"
CA_FILE = "ca.pem"
CLIENT_DIRECTORY = "client"

# A file of credentials is a few hundred bytes.
MAX_FILE_BYTES = 64 << 10

# Parts of the remarks of answers with code 16, in lower case: of SprocketMQ's and Apache's brokers, and of Apache's up to 5.2 (the second
# line of each).
_LOGIN_REMARKS = (
    "check signature failed", "username cannot be null",
    "accesskey", "signature", "acl client info",
)  # fmt: skip
_UNKNOWN_USER = re.compile(r"user:.* (is not found|not found|is disabled)\.?$").search
_RIGHTS_REMARKS = (
    "has no permission to access", "authorization failed", "authorization context error",
    "no default permission", "no permission for",
)  # fmt: skip

CredentialsArgument = Credentials | CredentialsSource | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """What a client signs its requests with, and how it encrypts its connections; None: not at all."""

    credentials: Credentials | CredentialsSource | None = None
    tls: TlsConfig | None = None

    def login(self, clock: Clock = SYSTEM_CLOCK) -> Login | None:
        """Return what signs the requests of one client. Raises what the source of the credentials raises."""
        return None if self.credentials is None else Login(self.credentials, clock)


NO_SECURITY = ClientSecurity()


def resolve(
    *,
    credentials: CredentialsArgument | None = None,
    tls: bool | TlsConfig | None = None,
    secure: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ClientSecurity:
    """Return the security of a client with these arguments (see the module).

    ``credentials`` may be Credentials, a function that returns them, or the path of a file (see ``read_credentials``). ``tls=False`` turns
    TLS off, whatever else is set. Raises ConfigError for arguments, files and variables that are wrong, SecretFileExposed for a file of
    credentials that others may read.
    """
    directory = None if secure is None else _Directory(Path(secure), "secure")
    return ClientSecurity(_credentials(credentials, directory, environment), _tls(tls, directory, environment))


def read_credentials(path: str | os.PathLike[str]) -> Credentials:
    """Return the credentials in a file.

    It is JSON with ``access_key``, ``secret_key`` and perhaps ``security_token``; or, when its name ends in ``.yml`` or ``.yaml``, Apache's
    ``tools.yml`` with ``accessKey``, ``secretKey`` and perhaps ``securityToken``.

    Raises ConfigError naming the file and the key that is wrong, SecretFileExposed when group or others may read it.
    """
    text = read_secret_file(path)
    if os.fspath(path).endswith((".yml", ".yaml")):
        fields, names = _yaml_fields(text), ("accessKey", "secretKey", "securityToken")
    else:
        fields, names = _json_fields(path, text), ("access_key", "secret_key", "security_token")
    access, secret, token = (fields.get(name) for name in names)
    for name, value in zip(names, (access, secret), strict=False):
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{os.fspath(path)}: {name} is missing or not a text: it must be a text that is not empty")
    try:
        return Credentials(access, secret, token or None)  # type: ignore[arg-type]
    except ConfigError as e:
        raise ConfigError(f"{os.fspath(path)}: {e}") from None


def read_secret_file(path: str | os.PathLike[str]) -> str:
    """Return the text of a file that only its owner may read. Raises ConfigError, or SecretFileExposed."""
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise SecretFileExposed(name, mode)
            return file.read(MAX_FILE_BYTES).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not a text file: it must be in UTF-8") from None
    except OSError as e:
        raise ConfigError(f"the file of credentials {name} cannot be read: {e.strerror or e}") from None


def read_key_password(path: str | os.PathLike[str]) -> str:
    """Return the password of a private key from a file that only its owner may read. Raises ConfigError, or SecretFileExposed."""
    password = read_secret_file(path).rstrip("\r\n")
    if not password:
        raise ConfigError(f"{os.fspath(path)} is empty: write the password of the key to it, or do not name it")
    return password


def access_error(remark: str | None, address: str) -> BrokerError:
    """Return the error of an answer with code 16, by its remark.

    Brokers use the code for three things: they do not accept the login, the user lacks a right, or a broker or topic takes no messages or
    gives none at present, whoever asks. Only the last is a plain BrokerError.
    """
    text = (remark or "").lower()
    kind: type[BrokerError] = BrokerError
    if any(part in text for part in _LOGIN_REMARKS) or _UNKNOWN_USER(text):
        kind = AuthenticationFailed
    elif any(part in text for part in _RIGHTS_REMARKS):
        kind = AuthorizationFailed
    return kind(ResponseCode.NO_PERMISSION, remark, address=address)


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory with the files of a client, and what named it; None for the one in the home directory, which need not have any.

    ``path`` is None for a user without a home directory.
    """

    path: Path | None
    named_by: str | None

    def file(self, name: str) -> Path | None:
        """Return the path of a file, None when there is none. Raises ConfigError when there should be one."""
        if self.path is None:
            return None
        if self.named_by is None and not os.access(self.path, os.X_OK):
            return None  # no such directory, or HOME is that of another user
        client = self.path / CLIENT_DIRECTORY
        path = (client if client.is_dir() else self.path) / name
        if path.exists():
            return path
        if self.named_by is None:
            return None
        raise ConfigError(f"{self.named_by} is {str(self.path)!r}, and {path} does not exist: name a directory of 'sprocketmq secure init'")


def _ambient_directory(environment: Mapping[str, str]) -> _Directory:
    named = environment.get(SECURE_VARIABLE)
    if named:
        return _Directory(Path(named), SECURE_VARIABLE)
    base, home = environment.get("XDG_CONFIG_HOME"), home_directory()
    path = Path(base) if base else home / ".config" if home else None
    return _Directory(path and path / "sprocketmq", None)


def _credentials(
    given: CredentialsArgument | None, directory: _Directory | None, environment: Mapping[str, str]
) -> Credentials | CredentialsSource | None:
    if isinstance(given, Credentials) or callable(given):
        return given
    if given is not None:
        if not isinstance(given, str | os.PathLike):
            raise ConfigError(
                f"credentials must be Credentials, a function that returns them, or the path of a file, not {type(given).__name__}"
            )
        return partial(read_credentials, given)
    if directory is None:
        if environment.get(ACCESS_KEY_VARIABLE) or environment.get(SECRET_KEY_VARIABLE):
            return _from_environment(environment)
        directory = _ambient_directory(environment)
    file = directory.file(CREDENTIALS_FILE)
    return None if file is None else partial(read_credentials, file)


def _tls(given: bool | TlsConfig | None, directory: _Directory | None, environment: Mapping[str, str]) -> TlsConfig | None:
    if given is False:
        return None
    if given is not None and given is not True and not isinstance(given, TlsConfig):
        raise ConfigError(f"tls must be True, False or a TlsConfig, not {type(given).__name__}")
    config = given if isinstance(given, TlsConfig) else TlsConfig() if given else None
    if config is not None and (config.ca_file is not None or not config.verify):
        return config
    authority = (directory or _ambient_directory(environment)).file(CA_FILE)
    return config if authority is None else replace(config or TlsConfig(), ca_file=authority)


def _from_environment(environment: Mapping[str, str]) -> Credentials:
    for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE):
        if not environment.get(name):
            raise ConfigError(f"{name} is not set, or empty, and the other of the two keys is set: set both, or none")
    token = environment.get(SECURITY_TOKEN_VARIABLE)
    try:
        return Credentials(environment[ACCESS_KEY_VARIABLE], environment[SECRET_KEY_VARIABLE], token or None)
    except ConfigError as e:
        raise ConfigError(f"in the environment (SPROCKETMQ_...): {e}") from None


def _json_fields(path: str | os.PathLike[str], text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError:
        # The parser's own text may quote the file.
        raise ConfigError(f"{os.fspath(path)} is not a JSON object with access_key and secret_key") from None


def _yaml_fields(text: str) -> dict[str, object]:
    """Return the ``key: value`` lines of a YAML file; nothing else stands in a tools.yml."""
    fields: dict[str, object] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and not name.lstrip().startswith("#"):
            fields[name.strip()] = _unquoted(value.strip())
    return fields


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()
