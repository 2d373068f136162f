"""All users and their policies as one immutable value, and the changes that make another one of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sprocketmq.errors import FatalError
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.credentials import Secret
from sprocketmq.security.policies import Policy, PolicyEntry, PolicyType
from sprocketmq.security.resources import parse_pattern
from sprocketmq.security.users import MAX_SECRETS, User, UserStatus, UserType

MAX_USERS = 100_000
# Entries of one user. All users together are limited by the length of the file.
MAX_ENTRIES = 100_000

SUBJECT_PREFIX = "User:"
NO_SUBJECT = "The subject is not exist."
NO_ACL = "The acl is not exist."
USER_EXISTS = "The user is existed"
LAST_SUPER = "User {} is the last enabled Super user: make another one first, or nobody could change users and policies any more"


class ChangeRefused(FatalError):
    """A change of users or policies that cannot be made; ``code`` is the response code that says so."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark


@dataclass(frozen=True)
class AccessTables:
    """Users by name, and the policies of each user by name. A method that changes something returns other tables."""

    users: Mapping[str, User] = field(default_factory=dict)
    policies: Mapping[str, tuple[Policy, ...]] = field(default_factory=dict)

    @property
    def super_users(self) -> list[str]:
        """The names of the Super users that are enabled."""
        return [user.username for user in self.users.values() if user.is_super and user.enabled]

    # --- users ---

    def create_user(self, user: User) -> "AccessTables":
        """Add ``user``. Raises ChangeRefused when there is one of that name."""
        if user.username in self.users:
            raise ChangeRefused(ResponseCode.NO_PERMISSION, USER_EXISTS)
        if len(self.users) >= MAX_USERS:
            raise ChangeRefused(ResponseCode.NO_PERMISSION, f"there are {MAX_USERS} users, the limit: delete some first")
        return replace(self, users={**self.users, user.username: user})

    def update_user(
        self,
        username: str,
        *,
        secret: Secret | None = None,
        keep_previous: bool = False,
        type: UserType | None = None,  # noqa: A002 - the member's name
        status: UserStatus | None = None,
    ) -> "AccessTables":
        """Change what is given. With ``keep_previous`` the newest of the old secrets stays valid beside the new one.

        Repeating a change changes nothing. Raises ChangeRefused for an unknown user, and when no enabled Super user would be left.
        """
        user = self.users.get(username)
        if user is None:
            raise ChangeRefused(ResponseCode.NO_PERMISSION, "The user is not exist")
        secrets = user.secrets
        if secret is not None:
            kept = [one for one in user.secrets if one != secret] if keep_previous else []
            secrets = (secret, *kept)[:MAX_SECRETS]
        changed = replace(user, secrets=secrets, type=type or user.type, status=status or user.status)
        return self._unless_nobody_rules(username, replace(self, users={**self.users, username: changed}))

    def delete_user(self, username: str) -> "AccessTables":
        """Remove a user with its policies; an unknown one is none already. Raises ChangeRefused for the last enabled Super user."""
        users = {name: user for name, user in self.users.items() if name != username}
        policies = {name: of_user for name, of_user in self.policies.items() if name != username}
        return self._unless_nobody_rules(username, AccessTables(users, policies))

    def _unless_nobody_rules(self, username: str, changed: "AccessTables") -> "AccessTables":
        if self.super_users and not changed.super_users:
            raise ChangeRefused(ResponseCode.NO_PERMISSION, LAST_SUPER.format(username))
        return changed

    # --- policies ---

    def put_entries(self, username: str, policy_type: PolicyType, entries: Iterable[PolicyEntry]) -> "AccessTables":
        """Add entries to a user's policy; one with the same resource replaces the old one. Raises ChangeRefused for an unknown user."""
        if username not in self.users:
            raise ChangeRefused(ResponseCode.NO_PERMISSION, f"The subject of {SUBJECT_PREFIX}{username} is not exist.")
        by_type = {policy.type: policy for policy in self.policies.get(username, ())}
        kept = {entry.pattern: entry for entry in by_type[policy_type].entries} if policy_type in by_type else {}
        kept.update((entry.pattern, entry) for entry in entries)
        if len(kept) > MAX_ENTRIES:
            raise ChangeRefused(ResponseCode.NO_PERMISSION, f"a policy has at most {MAX_ENTRIES} entries: use prefixes such as Topic:a*")
        by_type[policy_type] = Policy(policy_type, tuple(kept.values()))
        return self._with_policies(username, by_type.values())

    def delete_policies(self, username: str, policy_type: PolicyType | None = None, resource: str | None = None) -> "AccessTables":
        """Remove a user's policies: all, those of one type, or only the entry for ``resource``.

        Raises ChangeRefused for an unknown user and when there is nothing to remove, ConfigError for a malformed resource.
        """
        if username not in self.users:
            raise ChangeRefused(ResponseCode.NO_PERMISSION, NO_SUBJECT)
        pattern = parse_pattern(resource) if resource else None
        left: list[Policy] = []
        found = False
        for policy in self.policies.get(username, ()):
            entries = policy.entries
            if policy_type in (None, policy.type):
                entries = tuple(entry for entry in entries if pattern is not None and entry.pattern != pattern)
            found |= len(entries) < len(policy.entries)
            left.append(Policy(policy.type, entries))
        if not found:
            raise ChangeRefused(ResponseCode.NO_PERMISSION, NO_ACL)
        return self._with_policies(username, left)

    def _with_policies(self, username: str, policies: Iterable[Policy]) -> "AccessTables":
        changed = {name: of_user for name, of_user in self.policies.items() if name != username}
        if of_user := tuple(policy for policy in policies if policy.entries):
            changed[username] = of_user
        return replace(self, policies=changed)


def subject_name(subject: str) -> str:
    """Return the user name of ``User:name``. Raises ChangeRefused for another kind of subject."""
    kind, colon, name = subject.strip().partition(":")
    if kind.lower() != "user" or not colon or not name.strip():
        raise ChangeRefused(ResponseCode.NO_PERMISSION, f"The subject {subject!r} is not valid: write User:NAME")
    return name.strip()
