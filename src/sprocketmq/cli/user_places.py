"""The places of users and policies: each broker and nameserver of a cluster has its own, and ``--users-file`` names a file.

Commands read and change all places in the same way, and say which of them failed.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from sprocketmq import sync
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, fail
from sprocketmq.cli.output import clean, print_json
from sprocketmq.cli.target import Target
from sprocketmq.errors import BrokerError, FatalError, SprocketError
from sprocketmq.net.address import parse_addresses
from sprocketmq.protocol.bodies import AclInfo, PolicyEntryInfo, PolicyInfo
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.credentials import Secret
from sprocketmq.security.policies import PolicyEntry, PolicyType, policy_entry
from sprocketmq.security.tables import SUBJECT_PREFIX, AccessTables, ChangeRefused
from sprocketmq.security.user_file import change_users_file, read_users_file
from sprocketmq.security.users import User, UserStatus, UserType

_T = TypeVar("_T")


@dataclass(frozen=True, order=True)
class UserRow:
    """A user, without secrets."""

    username: str
    type: str
    status: str


@dataclass(frozen=True, order=True)
class RightRow:
    """One entry of a policy: what a user may do with a resource, or may not."""

    username: str
    resource: str
    actions: tuple[str, ...]
    source_ips: tuple[str, ...]
    decision: str
    policy_type: str = PolicyType.CUSTOM


class Place(Protocol):
    """One set of users and policies. Methods raise SprocketError when it cannot be read or changed.

    Of a ``quiet`` one only failures are printed: nameservers have what brokers have.
    """

    @property
    def name(self) -> str: ...

    @property
    def quiet(self) -> bool: ...

    def users(self) -> list[UserRow]: ...

    def rights(self, username: str | None) -> list[RightRow]: ...

    def create(self, username: str, secret: Secret, user_type: UserType) -> None: ...

    def update(
        self, username: str, secret: Secret | None, user_type: UserType | None, status: UserStatus | None, *, keep_previous: bool
    ) -> None: ...

    def delete(self, username: str) -> None: ...

    def grant(self, username: str, rights: Sequence[RightRow]) -> None: ...

    def revoke(self, username: str, resource: str | None) -> None: ...


@dataclass(frozen=True)
class ServerUsers:
    """Those of a broker or nameserver."""

    name: str
    address: str
    admin: sync.AdminClient
    quiet: bool = False

    def users(self) -> list[UserRow]:
        return [
            UserRow(info.username or "", info.user_type or UserType.NORMAL, info.user_status or "")
            for info in self.admin.users(self.address)
        ]

    def rights(self, username: str | None) -> list[RightRow]:
        found = self.admin.acls(self.address)
        rows = [row for info in found for row in _rows(info)]
        return [row for row in rows if username in (None, row.username)]

    def create(self, username: str, secret: Secret, user_type: UserType) -> None:
        self.admin.create_user(self.address, username, secret, user_type=user_type)

    def update(
        self, username: str, secret: Secret | None, user_type: UserType | None, status: UserStatus | None, *, keep_previous: bool
    ) -> None:
        self.admin.update_user(self.address, username, secret=secret, user_type=user_type, status=status, keep_previous=keep_previous)

    def delete(self, username: str) -> None:
        self.admin.delete_user(self.address, username)

    def grant(self, username: str, rights: Sequence[RightRow]) -> None:
        entries = [PolicyEntryInfo(row.resource, list(row.actions), list(row.source_ips) or None, row.decision) for row in rights]
        self.admin.put_acl(self.address, AclInfo(f"{SUBJECT_PREFIX}{username}", [PolicyInfo(entries)]))

    def revoke(self, username: str, resource: str | None) -> None:
        self.admin.delete_acl(self.address, f"{SUBJECT_PREFIX}{username}", resource)


def _rows(info: AclInfo) -> Iterator[RightRow]:
    username = (info.subject or "").partition(":")[2]
    for policy in info.policies:
        for entry in policy.entries:
            sources = tuple(entry.source_ips or ())
            yield RightRow(
                username, entry.resource, tuple(entry.actions), sources, entry.decision or "", policy.policy_type or PolicyType.CUSTOM
            )


@dataclass(frozen=True)
class FileUsers:
    """Those of a file. Running servers that use it take changes over."""

    path: Path
    quiet: bool = False

    @property
    def name(self) -> str:
        return str(self.path)

    def users(self) -> list[UserRow]:
        return [UserRow(user.username, user.type, user.status) for user in self._tables().users.values()]

    def rights(self, username: str | None) -> list[RightRow]:
        return [
            RightRow(name, entry.resource, tuple(map(str, entry.actions)), entry.source_ips, entry.decision, policy.type)
            for name, policies in self._tables().policies.items()
            if username in (None, name)
            for policy in policies
            for entry in policy.entries
        ]

    def create(self, username: str, secret: Secret, user_type: UserType) -> None:
        self._change(lambda tables: tables.create_user(User(username, (secret,), user_type)))

    def update(
        self, username: str, secret: Secret | None, user_type: UserType | None, status: UserStatus | None, *, keep_previous: bool
    ) -> None:
        self._change(lambda tables: tables.update_user(username, secret=secret, keep_previous=keep_previous, type=user_type, status=status))

    def delete(self, username: str) -> None:
        self._change(lambda tables: tables.delete_user(username))

    def grant(self, username: str, rights: Sequence[RightRow]) -> None:
        entries: list[PolicyEntry] = [policy_entry(row.resource, row.actions, row.decision, row.source_ips) for row in rights]
        self._change(lambda tables: tables.put_entries(username, PolicyType.CUSTOM, entries))

    def revoke(self, username: str, resource: str | None) -> None:
        self._change(lambda tables: tables.delete_policies(username, resource=resource))

    def _tables(self) -> AccessTables:
        return read_users_file(self.path)

    def _change(self, change: Callable[[AccessTables], AccessTables]) -> None:
        change_users_file(self.path, change)


@contextlib.contextmanager
def places(target: Target, users_file: Path | None) -> Iterator[list[Place]]:
    """Yield the file, or all brokers that are registered, slaves included, and the nameservers. Raises FatalError without a broker."""
    if users_file is not None:
        yield [FileUsers(users_file)]
        return
    with sync.AdminClient(**target.options) as admin:
        found: list[Place] = [
            ServerUsers(name if broker_id == 0 else f"{name}-{broker_id}", address, admin)
            for name, broker in sorted(admin.cluster().broker_addr_table.items())
            for broker_id, address in sorted(broker.broker_addrs.items())
        ]
        if not found:
            raise FatalError(f"no broker is registered at {target.namesrv}: start one, or change a file with --users-file")
        yield [*found, *_nameservers(admin, target.namesrv)]


def _nameservers(admin: sync.AdminClient, namesrv: str) -> Iterator[ServerUsers]:
    """Yield the nameservers that have users: Apache's have none."""
    for address in parse_addresses(namesrv):
        try:
            admin.user(address, "")
        except BrokerError as e:
            if e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                continue
        except SprocketError:
            pass  # it is one of the places, and the change there fails
        yield ServerUsers(f"namesrv {address}", address, admin, quiet=True)


def remark_of(error: SprocketError) -> str:
    """Return what a broker or file said, without what a client adds."""
    return (error.remark or "") if isinstance(error, BrokerError | ChangeRefused) else str(error)


@dataclass
class Changes:
    """The outcome of one change at each place."""

    as_json: bool
    done: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        self._facts: list[dict[str, object]] = []

    def make(self, place: Place, act: Callable[[], str], *, harmless: tuple[str, str] | None = None) -> None:
        """Run ``act`` and print the sentence that it returns. ``harmless``: the remark of a refusal that is not a failure, its sentence."""
        try:
            text = act()
        except SprocketError as e:
            text = clean(remark_of(e) or str(e))
            if harmless is not None and harmless[0] in text:
                text = harmless[1]
            else:
                self.failed += 1
                self._facts.append({"place": place.name, "done": False, "problem": text})
                if not self.as_json:
                    fail(f"{place.name}: {text}")
                return
        else:
            self.done += 1
        self._facts.append({"place": place.name, "done": True, "text": text})
        if not self.as_json and not place.quiet:
            print(f"{place.name}: {text}")

    def end(self, **facts: object) -> int:
        """Print JSON if that is wanted, and return the exit code."""
        if self.as_json:
            print_json({**facts, "places": self._facts})
        return EXIT_FAILURE if self.failed else EXIT_OK


def collect(found: Sequence[Place], read: Callable[[Place], list[_T]]) -> tuple[list[tuple[_T, list[str]]], int]:
    """Return each row with the places that have it, and an exit code: 1 when a place could not be read, which is printed."""
    where: dict[_T, list[str]] = {}
    code = EXIT_OK
    for place in found:
        try:
            rows = read(place)
        except SprocketError as e:
            fail(f"{place.name}: {clean(remark_of(e) or str(e))}")
            code = EXIT_FAILURE
            continue
        for row in rows:
            where.setdefault(row, []).append(place.name)
    return sorted(where.items(), key=lambda item: str(item[0])), code


def places_word(names: Sequence[str], found: Sequence[Place]) -> str:
    """Return ``all``, or the names of the places that have something."""
    return "all" if len(names) == len(found) else ", ".join(names)
