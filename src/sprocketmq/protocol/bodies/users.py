"""Users and policies (3001 to 3010)."""

from msgspec import field

from sprocketmq.protocol.bodies.base import Body


class UserInfo(Body):
    """One user (3001 to 3005). Brokers of ours never send ``password``; ``keep_previous`` is ours too.

    With ``keep_previous`` a new password of 3002 is valid beside the one before.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None
    keep_previous: bool | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r}, {self.user_type}, {self.user_status})"


class PolicyEntryInfo(Body):
    """One entry of a policy; ``resource`` is such as ``Topic:t*``."""

    resource: str
    actions: list[str] = field(default_factory=list)
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Body):
    """The entries of one type, Custom where none is given."""

    entries: list[PolicyEntryInfo] = field(default_factory=list)
    policy_type: str | None = None


class AclInfo(Body):
    """The policies of one subject, ``User:name`` (3006 to 3010)."""

    subject: str | None = None
    policies: list[PolicyInfo] = field(default_factory=list)
