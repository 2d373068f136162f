"""Users: a name, the secrets that sign their requests, and whether policies apply to them."""

import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from sprocketmq.errors import ConfigError
from sprocketmq.protocol.credentials import Secret

MIN_SECRET_LENGTH = 16
MAX_SECRET_LENGTH = 1024
MAX_USERNAME_LENGTH = 128
# A user has two valid secrets while clients change from one to the other.
MAX_SECRETS = 2
GENERATED_BYTES = 32

_E = TypeVar("_E", bound=StrEnum)


class UserType(StrEnum):
    """Policies do not apply to a Super user, who may do everything."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    """The requests of a disabled user are refused."""

    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class User:
    """One user. Raises ConfigError for a name or a secret that is not acceptable."""

    username: str
    secrets: tuple[Secret, ...]
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    def __post_init__(self) -> None:
        check_username(self.username)
        if not 1 <= len(self.secrets) <= MAX_SECRETS:
            raise ConfigError(f"user {self.username} has {len(self.secrets)} secrets: give 1, or {MAX_SECRETS} while clients change over")
        for secret in self.secrets:
            if problem := secret_problem(secret.reveal()):
                raise ConfigError(f"user {self.username}: {problem}")

    @property
    def enabled(self) -> bool:
        return self.status is UserStatus.ENABLE

    @property
    def is_super(self) -> bool:
        return self.type is UserType.SUPER


def new_secret() -> Secret:
    """Return a new random secret: 32 bytes as URL-safe Base64."""
    return Secret(secrets.token_urlsafe(GENERATED_BYTES))


def check_username(name: str) -> str:
    """Return ``name``, or raise ConfigError when no user can have it: it stands in policies, log lines and lists joined by commas."""
    if not name.strip():
        raise ConfigError("the user name is blank: give a name")
    if len(name) > MAX_USERNAME_LENGTH:
        raise ConfigError(f"the user name has {len(name)} characters, the limit is {MAX_USERNAME_LENGTH}")
    if not name.isprintable() or set(name) & set(" ,;:/"):
        raise ConfigError(f"the user name {name!r} is not valid: use printable characters other than blanks and , ; : /")
    return name


def secret_problem(text: str) -> str:
    """Return why ``text`` cannot be a secret, "" when it can."""
    if len(text) < MIN_SECRET_LENGTH:
        return (
            f"a secret of {len(text)} characters can be guessed: use at least {MIN_SECRET_LENGTH},"
            " or let `sprocketmq user create` generate one"
        )
    if len(text) > MAX_SECRET_LENGTH:
        return f"a secret has at most {MAX_SECRET_LENGTH} characters, not {len(text)}"
    return ""


def member_named(kind: type[_E], text: str, what: str) -> _E:
    """Return the member of ``kind`` with the value ``text``, in any case. Raises ConfigError that calls it a ``what``."""
    for member in kind:
        if member.lower() == text.strip().lower():
            return member
    raise ConfigError(f"{what} {text!r} is not known: use one of {', '.join(kind)}")
