"""Options that name credentials and TLS files, and what they become in the process that connects.

Options get into query plans, event logs and pickled readers, so they only refer to a secret: by a file, a directory or a prefix of
environment variables. The driver, to plan, and each executor, to read and send, resolve the reference on their own machine.
"""

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from sprocketmq.client.credentials import ClientSecurity, CredentialsArgument, read_key_password, resolve
from sprocketmq.errors import AccessRefused, AuthenticationFailed, ConfigError, FatalError, SprocketError
from sprocketmq.net.tls import TlsConfig, client_context
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.spark.option_values import OptionError, Values

SECURITY_NAMES = (
    *("secure", "credentials.file", "credentials.env"),
    *("tls", "tls.ca.file", "tls.cert.file", "tls.key.file", "tls.key.password.file", "tls.verify"),
)

# The security of a cluster as an argument of jobs: a directory, or options by their names.
Secure = str | os.PathLike[str] | Mapping[str, str]

_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,60}")
_NEEDS_TLS = ("tls.ca.file", "tls.cert.file", "tls.key.file", "tls.key.password.file", "tls.verify")


class UserRefused(FatalError):
    """A server refused a request because of ``user`` (None: it had no credentials); ``option`` says where its credentials come from."""

    def __init__(self, user: str | None, option: str, address: str, remark: str, advice: str) -> None:
        who = "a client without credentials" if user is None else f"user {user!r} {option}"
        super().__init__(f"{address or 'the server'} refused {who}: {remark.strip().rstrip('.') or 'no reason given'}; {advice}")
        self.user = user
        self.option = option
        self.address = address
        self.remark = remark
        self.advice = advice

    def __reduce__(self) -> tuple[type["UserRefused"], tuple[str | None, str, str, str, str]]:
        return type(self), (self.user, self.option, self.address, self.remark, self.advice)


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """The security options of one read or write: references only.

    What they leave open comes from the environment of the process and from ``~/.config/sprocketmq``, as for every client.
    """

    secure: str | None = None
    credentials_file: str | None = None
    credentials_env: str | None = None
    tls: bool | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password_file: str | None = None
    verify: bool = True

    def resolve(self) -> ClientSecurity:
        """Return what the options refer to on this machine.

        Raises OptionError naming option and machine for what is missing or wrong there.
        """
        tls: bool | TlsConfig | None = self.tls
        login: CredentialsArgument | None = self.credentials_file
        if self.credentials_env is not None:
            login = partial(_from_environment, self.credentials_env)
        try:
            if self.ca_file is not None or self.cert_file is not None or not self.verify:
                password = None if self.key_password_file is None else read_key_password(self.key_password_file)
                tls = TlsConfig(self.ca_file, self.cert_file, self.key_file, password, verify=self.verify)
            found = resolve(credentials=login, tls=tls, secure=self.secure)
            found.login()
            client_context(found.tls)
        except ConfigError as e:
            raise OptionError(self._option_in(str(e)), f"on {_this_machine()}, {e}") from None
        return found

    def refused(self, error: AccessRefused) -> UserRefused:
        """Return the error that names the user whom a server refused, and the option that refers to the user."""
        user = None
        with contextlib.suppress(SprocketError):
            source = self.resolve().credentials
            credentials = source if isinstance(source, Credentials) or source is None else source()
            user = None if credentials is None else credentials.access_key
        if user is None:
            advice = "name the credentials of a user with option credentials.file, credentials.env or secure"
        elif isinstance(error, AuthenticationFailed):
            advice = "check the secret there, and that the user exists and is enabled"
        else:
            advice = "have the right granted (sprocketmq acl grant), or name the credentials of another user"
        return UserRefused(user, self._login_from, error.address, error.remark, advice)

    @property
    def _login_from(self) -> str:
        if self.credentials_file is not None:
            return "of option credentials.file"
        if self.credentials_env is not None:
            return "of option credentials.env"
        return "of option secure" if self.secure is not None else "of the environment"

    def _option_in(self, text: str) -> str:
        """Return the option whose value a message mentions, else the first that is given."""
        given = {
            "credentials.file": self.credentials_file, "credentials.env": self.credentials_env, "tls.ca.file": self.ca_file,
            "tls.key.password.file": self.key_password_file, "tls.key.file": self.key_file, "tls.cert.file": self.cert_file,
            "secure": self.secure,
        }  # fmt: skip
        named = [name for name, value in given.items() if value is not None]
        return next((name for name in named if str(given[name]) in text), named[0] if named else "secure")


NO_OPTIONS = SecurityOptions()


def parse_security(values: Values) -> SecurityOptions:
    """Return the checked security options of a read or write. Raises OptionError.

    Looks at no file: files are on the machines that use them.
    """
    prefix = values.text("credentials.env")
    if prefix is not None and not _PREFIX.fullmatch(prefix):
        raise values.error(
            "credentials.env",
            "it must be the beginning of the names of environment variables, in letters, digits and '_': with ORDERS the executors"
            " read ORDERS_ACCESS_KEY, ORDERS_SECRET_KEY and, if it is set, ORDERS_SECURITY_TOKEN",
        )
    values.only_one_of("credentials.file", "credentials.env")
    files = {name: _path(values, name) for name in SECURITY_NAMES if name == "secure" or name.endswith(".file")}
    tls = values.boolean("tls", True) if values.given("tls") else None
    if tls is False:
        for name in _NEEDS_TLS:
            if values.given(name):
                raise values.error(name, "it cannot be given together with tls=false; leave one of them out")
    for name in ("tls.key.file", "tls.key.password.file"):
        if files[name] is not None and files["tls.cert.file"] is None:
            raise values.error(name, "it goes with tls.cert.file; give that, too, or leave it out")
    verify = values.boolean("tls.verify", True)
    if not verify and values.given("tls.ca.file"):
        raise values.error("tls.ca.file", "with tls.verify=false no certificate is verified; leave one of them out")
    return SecurityOptions(
        secure=files["secure"],
        credentials_file=files["credentials.file"],
        credentials_env=prefix,
        tls=tls,
        ca_file=files["tls.ca.file"],
        cert_file=files["tls.cert.file"],
        key_file=files["tls.key.file"],
        key_password_file=files["tls.key.password.file"],
        verify=verify,
    )


def security_options(secure: Secure | None) -> dict[str, str]:
    """Return the options for the argument ``secure`` of a job. Raises ConfigError for a mapping with options of another kind."""
    if secure is None:
        return {}
    if not isinstance(secure, Mapping):
        return {"secure": os.fspath(secure)}
    Values(secure, SECURITY_NAMES)
    return dict(secure)


def with_security(options: Mapping[str, str], secure: Secure | None) -> dict[str, str]:
    """Return ``options`` and those for the argument ``secure``. Raises ConfigError when an option is given in both."""
    if not isinstance(options, Mapping):
        raise ConfigError(f"options must be a mapping of names to values, not {options!r}")
    added = security_options(secure)
    given = {str(name).lower() for name in options}
    for name in added:
        if name.lower() in given:
            raise ConfigError(f"option {name!r} is given, and so is the argument secure, which settles it: leave one of them out")
    return {**added, **options}


def parse_secure(secure: Secure | None) -> SecurityOptions:
    """Return the checked argument ``secure`` of a job. Raises OptionError."""
    return parse_security(Values(security_options(secure), SECURITY_NAMES))


def _path(values: Values, name: str) -> str | None:
    path = values.text(name)
    if path is not None and (path.startswith("{") or not path.isprintable()):
        raise values.error(name, "it must be the name of a file, not what is in the file")
    return path


def _from_environment(prefix: str) -> Credentials:
    access, secret, token = (f"{prefix}_{name}" for name in ("ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN"))
    for name in (access, secret):
        if not os.environ.get(name):
            raise ConfigError(f"environment variable {name} is not set, or empty ({prefix} is its prefix): set it where the process starts")
    try:
        return Credentials(os.environ[access], os.environ[secret], os.environ.get(token) or None)
    except ConfigError as e:
        raise ConfigError(f"in the environment variables {prefix}_...: {e}") from None


def _this_machine() -> str:
    from pyspark import TaskContext

    return f"{'driver' if TaskContext.get() is None else 'executor'} host {socket.gethostname()}"
