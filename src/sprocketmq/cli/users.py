"""``sprocketmq user``: users. Secrets are generated, written to files, and shown only on request."""

import contextlib
import shlex
from dataclasses import dataclass
from pathlib import Path

from sprocketmq.cli.output import clean, print_json, print_table
from sprocketmq.cli.target import Target
from sprocketmq.cli.user_places import Changes, Place, collect, places, places_word
from sprocketmq.client.credentials import read_credentials, read_secret_file, resolve
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.credentials import Secret
from sprocketmq.security.directory import write_client
from sprocketmq.security.tables import USER_EXISTS
from sprocketmq.security.users import UserStatus, UserType, check_username, new_secret, secret_problem

COLUMNS = ("user", "type", "status", "where")


def list_users(target: Target, users_file: Path | None, *, as_json: bool) -> int:
    """Print the users, and at which brokers they exist."""
    with places(target, users_file) as found:
        rows, code = collect(found, lambda place: place.users())
        if as_json:
            print_json([{"username": row.username, "type": row.type, "status": row.status, "places": names} for row, names in rows])
        else:
            cells = ((clean(row.username), row.type, row.status, places_word(names, found)) for row, names in rows)
            print_table(COLUMNS, cells)
    return code


@dataclass(frozen=True)
class SecretOptions:
    """The origin and destination of a user's secret: generated unless ``secret_file`` has it; written to ``out``, or shown."""

    out: Path | None = None
    secret_file: Path | None = None
    show: bool = False


class NewSecret:
    """A new secret, written to a file before any broker has it, so that it cannot get lost. Raises ConfigError."""

    def __init__(self, username: str, options: SecretOptions, authority: Path | None) -> None:
        self._options = options
        self._file: Path | None = None
        if options.secret_file is not None:
            self.secret = _secret_in(options.secret_file)
        elif options.out is None and not options.show:
            raise ConfigError("say where the secret goes: --out DIR writes it to DIR/credentials.json, --show prints it")
        else:
            self.secret = new_secret()
        if options.out is None:
            return
        file = options.out / "credentials.json"
        if file.exists():
            raise ConfigError(f"{file} exists already: name another directory with --out, or pass what it has with --secret-file {file}")
        try:
            write_client(options.out, authority.read_bytes() if authority is not None else None, username, self.secret)
        except OSError as e:
            raise ConfigError(f"cannot write to {options.out}: {e.strerror or e}") from None
        self._file = file

    def withdraw(self) -> None:
        """Remove the file of a secret that no broker took."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()

    def tell(self, username: str, *, failed: int) -> None:
        """Print where the secret is; ``failed`` is the number of brokers that do not have it."""
        if self._file is not None:
            print(f"the credentials of {username} are in {self._options.out}")
            if failed:
                print(f"repeat the command with --secret-file {shlex.quote(str(self._file))} instead of --out, for the brokers that failed")
        if self._options.show:
            print(f"secret: {self.secret.reveal()}")

    def facts(self) -> dict[str, object]:
        """Return the same for JSON."""
        shown: dict[str, object] = {"secret_key": self.secret.reveal()} if self._options.show else {}
        return shown | ({"credentials": str(self._file)} if self._file is not None else {})


def _secret_in(path: Path) -> Secret:
    """Return the secret of a file: the one of credentials, or its only line."""
    text = read_secret_file(path)
    secret = read_credentials(path).secret_key if text.lstrip().startswith("{") else Secret(text.strip())
    if problem := secret_problem(secret.reveal()):
        raise ConfigError(f"{path}: {problem}")
    return secret


def _authority(target: Target, users_file: Path | None) -> Path | None:
    """Return the certificate that clients trust: the one in use, or the one beside a file of users."""
    if users_file is not None:
        path = users_file.parent / "ca.pem"
        return path if path.is_file() else None
    options = target.options
    tls = resolve(credentials=options["credentials"], tls=options["tls"], secure=options["secure"]).tls
    return Path(tls.ca_file) if tls is not None and tls.ca_file is not None else None


def create(target: Target, username: str, options: SecretOptions, users_file: Path | None, *, admin: bool, as_json: bool) -> int:
    """Create a user at every broker. Raises ConfigError for an invalid name or secret."""
    check_username(username)
    user_type = UserType.SUPER if admin else UserType.NORMAL
    with places(target, users_file) as found:
        new = NewSecret(username, options, _authority(target, users_file))
        changes = Changes(as_json)
        for place in found:

            def act(place: Place = place) -> str:
                place.create(username, new.secret, user_type)
                return f"user {username} created"

            changes.make(place, act, harmless=(USER_EXISTS, f"user {username} exists already, and keeps its secret"))
    if not changes.done:
        new.withdraw()
        update = f"`sprocketmq user update {shlex.quote(username)} --new-secret`"
        raise ConfigError(f"user {username} was not created; {update} gives one that exists another secret")
    if not as_json:
        new.tell(username, failed=changes.failed)
    return changes.end(username=username, type=str(user_type), **new.facts())


@dataclass(frozen=True)
class UserChange:
    """What changes; None stays as it is."""

    new_secret: bool = False
    keep_previous: bool = False
    admin: bool | None = None
    enabled: bool | None = None

    def __post_init__(self) -> None:
        if not self.new_secret and self.admin is None and self.enabled is None:
            raise ConfigError("say what to change: --new-secret, --admin or --no-admin, --enable or --disable")
        if self.keep_previous and not self.new_secret:
            raise ConfigError("--keep-previous goes with --new-secret: the secret before stays valid beside it")


def update(target: Target, username: str, change: UserChange, options: SecretOptions, users_file: Path | None, *, as_json: bool) -> int:
    """Change a user at every broker."""
    if not change.new_secret and options != SecretOptions():
        raise ConfigError("--out, --show and --secret-file go with --new-secret")
    user_type = None if change.admin is None else UserType.SUPER if change.admin else UserType.NORMAL
    status = None if change.enabled is None else UserStatus.ENABLE if change.enabled else UserStatus.DISABLE
    with places(target, users_file) as found:
        new = NewSecret(username, options, _authority(target, users_file)) if change.new_secret else None
        secret = new.secret if new is not None else None
        changes = Changes(as_json)
        for place in found:

            def act(place: Place = place) -> str:
                place.update(username, secret, user_type, status, keep_previous=change.keep_previous)
                return f"user {username} changed"

            changes.make(place, act)
    if new is not None:
        if not changes.done:
            new.withdraw()
        elif not as_json:
            new.tell(username, failed=changes.failed)
    return changes.end(username=username, **(new.facts() if new is not None else {}))


def delete(target: Target, username: str, users_file: Path | None, *, as_json: bool) -> int:
    """Delete a user with its rights at every broker. Raises ConfigError when there is none of that name."""
    with places(target, users_file) as found:
        rows, code = collect(found, lambda place: place.users())
        if not code and username not in (row.username for row, _ in rows):
            known = ", ".join(sorted({row.username for row, _ in rows}))
            raise ConfigError(f"there is no user {username!r} (users there: {known})")
        changes = Changes(as_json)
        for place in found:

            def act(place: Place = place) -> str:
                place.delete(username)
                return f"user {username} deleted"

            changes.make(place, act)
    return changes.end(username=username)
