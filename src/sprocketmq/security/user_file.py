"""The file of users and policies, ``users.json``: how it is read, replaced as a whole, and watched for changes.

::

    {"users": [{"username": "admin", "secrets": ["..."], "type": "Super", "status": "enable"}],
     "policies": [{"subject": "User:app", "type": "Custom", "entries": [
       {"resource": "Topic:t*", "actions": ["Pub"], "source_ips": [], "decision": "Allow"}]}]}

It holds secrets in clear text, as signatures cannot be checked without: a file that others may read is refused. Several brokers of one
machine may share a file: each change locks it, reads it again, and replaces it.
"""

import asyncio
import contextlib
import logging
import os
import shlex
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from sprocketmq.errors import ConfigError, SecretFileExposed
from sprocketmq.events import event
from sprocketmq.protocol.credentials import Secret
from sprocketmq.security.policies import PolicyEntry, PolicyType, policy_entry
from sprocketmq.security.tables import SUBJECT_PREFIX, AccessTables, ChangeRefused, subject_name
from sprocketmq.security.users import User, UserStatus, UserType, member_named

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 << 20
NEXT_STEP = "`sprocketmq secure init DIR` makes one with an admin user"

Stamp = tuple[int, int, int]


class _Entry(msgspec.Struct):
    resource: str
    actions: list[str]
    source_ips: list[str] = []
    decision: str = "Allow"


class _Policy(msgspec.Struct):
    subject: str
    entries: list[_Entry]
    type: str = PolicyType.CUSTOM


class _User(msgspec.Struct):
    username: str
    secrets: list[str]
    type: str = UserType.NORMAL
    status: str = UserStatus.ENABLE


class _File(msgspec.Struct):
    users: list[_User] = []
    policies: list[_Policy] = []


_decode = msgspec.json.Decoder(_File).decode


# --- text ---


def decode_tables(text: bytes) -> AccessTables:
    """Return the tables that the file's text describes. Raises ConfigError, which never quotes the text: it holds secrets."""
    try:
        file = _decode(text)
    except msgspec.ValidationError as e:
        raise ConfigError(str(e)) from None  # names a member and its type, not its value
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise ConfigError("it is not JSON") from None
    users: dict[str, User] = {}
    for item in file.users:
        user = User(
            item.username,
            tuple(map(Secret, item.secrets)),
            member_named(UserType, item.type, "user type"),
            member_named(UserStatus, item.status, "user status"),
        )
        if user.username in users:
            raise ConfigError(f"user {user.username} stands in it twice: remove one of them")
        users[user.username] = user
    tables = AccessTables(users)
    for policy in file.policies:
        entries = [policy_entry(entry.resource, entry.actions, entry.decision, entry.source_ips) for entry in policy.entries]
        try:
            tables = tables.put_entries(subject_name(policy.subject), member_named(PolicyType, policy.type, "policy type"), entries)
        except ChangeRefused as e:
            raise ConfigError(f"policy of {policy.subject!r}: {e.remark}") from None
    return tables


def encode_tables(tables: AccessTables) -> bytes:
    """Return the file's text, with secrets."""
    users = [
        {
            "username": user.username,
            "secrets": [secret.reveal() for secret in user.secrets],
            "type": user.type.value,
            "status": user.status.value,
        }
        for user in tables.users.values()
    ]
    policies = [
        {"subject": f"{SUBJECT_PREFIX}{name}", "type": policy.type.value, "entries": [_entry_tree(entry) for entry in policy.entries]}
        for name, of_user in tables.policies.items()
        for policy in of_user
    ]
    return msgspec.json.format(msgspec.json.encode({"users": users, "policies": policies}), indent=2) + b"\n"


def _entry_tree(entry: PolicyEntry) -> dict[str, Any]:
    return {
        "resource": entry.resource,
        "actions": [action.value for action in entry.actions],
        "source_ips": list(entry.source_ips),
        "decision": entry.decision.value,
    }


# --- file ---


def read_users_file(path: str | Path) -> AccessTables:
    """Return the content of the file. Raises ConfigError, and SecretFileExposed when others than its owner may read it."""
    return _read(Path(path))[0]


def create_users_file(path: str | Path, tables: AccessTables) -> None:
    """Write a new file of mode 0600. Raises ConfigError when there is one already, or it cannot be written."""
    path = Path(path)
    if path.exists():
        raise ConfigError(f"{path} exists already: change it with `sprocketmq user` and `sprocketmq acl`, or remove it first")
    try:
        _replace(path, encode_tables(tables))
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e.strerror or e}") from None


def change_users_file(path: str | Path, change: Callable[[AccessTables], AccessTables]) -> AccessTables:
    """Replace the file's content by ``change`` of it, and return that; no other process changes the file meanwhile.

    Raises what ``change`` raises, ConfigError and SecretFileExposed as for reading; OSError when it cannot be written: the old file stands
    then.
    """
    return _change(Path(path), change)[0]


def _change(path: Path, change: Callable[[AccessTables], AccessTables]) -> tuple[AccessTables, Stamp]:
    with _locked(path):
        tables = change(_read(path)[0])
        _replace(path, encode_tables(tables))
        return tables, _stamp(path.stat())


def _read(path: Path) -> tuple[AccessTables, Stamp]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o077:
                raise SecretFileExposed(str(path), stat.S_IMODE(status.st_mode))
            text = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"the file of users {path} does not exist: {NEXT_STEP}") from None
    except OSError as e:
        raise ConfigError(f"the file of users {path} cannot be read: {e.strerror or e}") from None
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"the file of users {path} is longer than {MAX_FILE_BYTES >> 20} MiB: use prefixes such as Topic:a* in policies")
    try:
        return decode_tables(text), _stamp(status)
    except ConfigError as e:
        raise ConfigError(f"the file of users {path} is not valid: {e}") from None


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _replace(path: Path, text: bytes) -> None:
    """Put a file of mode 0600 with ``text`` in the place of ``path``, durably and at once. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp gives it the mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    if os.name == "posix":
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file of users against other processes; the lock is a file beside it, which is never replaced."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        yield
        return
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class UserStore:
    """The users and policies of a running server. ``tables`` is the current content.

    ``changed`` is called in the loop after every change, with the names of the users that are no longer what they were.
    """

    def __init__(self, path: str | Path, changed: Callable[[set[str]], None] = lambda _: None) -> None:
        self.path = Path(path)
        self.tables = AccessTables()
        self._changed = changed
        self._changing = asyncio.Lock()
        self._stamp: Stamp | None = None
        self._failed: Stamp | None = None

    def open(self) -> None:
        """Read the file; blocks. Raises ConfigError when it cannot be used, or has no Super user that is enabled."""
        tables, self._stamp = _read(self.path)
        if not tables.super_users:
            raise ConfigError(
                f"the file of users {self.path} has no enabled Super user, so that nobody could administer:"
                f" `sprocketmq user create NAME --admin --users-file {shlex.quote(str(self.path))}` makes one"
            )
        self.tables = tables

    @property
    def is_stale(self) -> bool:
        """Whether the file was replaced since it was read; costs one look at its directory entry."""
        try:
            stamp = _stamp(self.path.stat())
        except OSError:
            return False  # the last content stays valid
        return stamp not in (self._stamp, self._failed)

    async def reload(self) -> None:
        """Take over the content of the file, read in another thread. When it cannot be used, one line is logged and nothing changes."""
        async with self._changing:
            with contextlib.suppress(OSError):
                self._failed = _stamp(self.path.stat())
            try:
                changed = self._adopt(*await asyncio.to_thread(_read, self.path))
            except ConfigError as e:
                event(log, logging.ERROR, "users_reload_failed", path=self.path, reason=f"users and policies stay as they were: {e}")
            else:
                event(log, logging.INFO, "users_reloaded", path=self.path, users=sorted(changed))

    async def change(self, change: Callable[[AccessTables], AccessTables]) -> None:
        """Change the file as ``change_users_file`` does, in another thread, then the tables here. Raises the same.

        When the change is refused, the content of the file is adopted: another server may have made the same change.
        """
        async with self._changing:
            try:
                self._adopt(*await asyncio.to_thread(_change, self.path, change))
            except ChangeRefused:
                self._adopt(*await asyncio.to_thread(_read, self.path))
                raise

    def _adopt(self, tables: AccessTables, stamp: Stamp) -> set[str]:
        before, self.tables, self._stamp, self._failed = self.tables, tables, stamp, None
        changed = changed_names(before, tables)
        self._changed(changed)
        return changed


def changed_names(before: AccessTables, after: AccessTables) -> set[str]:
    """Return the names of users that differ, or whose policies do."""
    names = before.users.keys() | after.users.keys()
    return {
        name for name in names if before.users.get(name) != after.users.get(name) or before.policies.get(name) != after.policies.get(name)
    }
