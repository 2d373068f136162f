"""Policies: the actions that a user may do with resources, and from which addresses. ``PolicyIndex.decide`` evaluates them.

Of the entries that match a resource, the peer's address and at least one of the wanted actions, the most specific decides alone::

    Topic:orders  <  Topic:ord*  <  Topic:o*  <  Topic:*  <  *       of the same rank: Deny before Allow

The entries of Custom policies come first; those of Default policies are looked at when no Custom entry matches.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from sprocketmq.errors import ConfigError
from sprocketmq.security.resources import Match, Resource, ResourcePattern, ResourceType, parse_pattern
from sprocketmq.security.users import member_named

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_SOURCES = 1000


class Action(StrEnum):
    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(StrEnum):
    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(StrEnum):
    CUSTOM = "Custom"
    DEFAULT = "Default"


class Verdict(Enum):
    """The decision of a user's policies about one context."""

    ALLOWED = "allowed"
    DENIED = "the decision is deny"
    UNMATCHED = "no matched policies"


class Context(NamedTuple):
    """What a request needs: one of ``actions`` on one resource."""

    type: ResourceType
    name: str
    actions: frozenset[Action]

    @property
    def resource(self) -> Resource:
        return Resource(self.type, self.name)


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One rule. Without ``source_ips`` it applies to every peer; build it by ``policy_entry``."""

    pattern: ResourcePattern
    actions: tuple[Action, ...]
    decision: Decision
    source_ips: tuple[str, ...] = ()
    networks: tuple[Network, ...] = field(default=(), repr=False, compare=False)

    @property
    def resource(self) -> str:
        return str(self.pattern)

    def applies(self, actions: frozenset[Action], source: Address | None) -> bool:
        """Return whether it holds one of ``actions`` and is valid for a peer at ``source``."""
        if Action.ALL not in self.actions and actions.isdisjoint(self.actions):
            return False
        return not self.source_ips or (source is not None and any(source in network for network in self.networks))


@dataclass(frozen=True, slots=True)
class Policy:
    """Entries of one type, at most one for each pattern."""

    type: PolicyType
    entries: tuple[PolicyEntry, ...]


def policy_entry(resource: str, actions: Iterable[str], decision: str, source_ips: Iterable[str] = ()) -> PolicyEntry:
    """Return the entry that texts describe. Unknown actions are ignored, as in the reference. Raises ConfigError."""
    pattern = parse_pattern(resource)
    sources = tuple(text.strip() for text in source_ips if text.strip())
    if len(sources) > MAX_SOURCES:
        raise ConfigError(f"an entry has {len(sources)} source addresses, the limit is {MAX_SOURCES}: use networks such as 10.0.0.0/8")
    return PolicyEntry(
        pattern, parse_actions(actions), member_named(Decision, decision, "decision"), sources, tuple(map(_network, sources))
    )


def parse_actions(texts: Iterable[str]) -> tuple[Action, ...]:
    """Return the known actions that ``texts`` name, in any case. Raises ConfigError when there is none, and for ``Any``."""
    found: dict[Action, None] = {}
    known = {action.lower(): action for action in Action}
    for text in texts:
        name = text.strip().lower()
        if name == "any":
            raise ConfigError("the action Any is not allowed: use All")
        if name in known:
            found[known[name]] = None
    if not found:
        raise ConfigError(f"an entry has no known action: use one or more of {', '.join(Action)}")
    return tuple(found)


def source_address(host: str) -> Address | None:
    """Return the address of a peer; an IPv4 one that is written as IPv6 is the IPv4 one. None for a host that is not an address."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _network(text: str) -> Network:
    try:
        return ip_network(text.strip("[]"), strict=False)
    except ValueError:
        raise ConfigError(f"source address {text!r} is not valid: write an IP address, or a network such as 10.0.0.0/8") from None


class PolicyIndex:
    """The policies of one user, ordered for lookups: the time of ``decide`` does not grow with the number of policies."""

    def __init__(self, policies: Iterable[Policy] = ()) -> None:
        types: dict[PolicyType, _Entries] = {}
        self.asks_source = False
        for policy in policies:
            entries = types.setdefault(policy.type, _Entries())
            for entry in policy.entries:
                entries.add(entry)
                self.asks_source |= bool(entry.source_ips)
        self._by_type = [types[policy_type] for policy_type in PolicyType if policy_type in types]

    def decide(self, context: Context, source: Address | None) -> Verdict:
        """Return the decision of the policies; ``source`` is the peer's address."""
        for entries in self._by_type:
            for rank in entries.ranks(context.type, context.name):
                decisions = {entry.decision for entry in rank if entry.applies(context.actions, source)}
                if decisions:
                    return Verdict.DENIED if Decision.DENY in decisions else Verdict.ALLOWED
        return Verdict.UNMATCHED


class _Entries:
    """The entries of one policy type by the resources they match."""

    def __init__(self) -> None:
        self._literals: dict[tuple[ResourceType, str], list[PolicyEntry]] = {}
        self._prefixes: dict[tuple[ResourceType, str], list[PolicyEntry]] = {}
        self._lengths: dict[ResourceType, list[int]] = {}  # of the prefixes, longest first
        self._of_type: dict[ResourceType, list[PolicyEntry]] = {}
        self._of_all: list[PolicyEntry] = []

    def add(self, entry: PolicyEntry) -> None:
        pattern = entry.pattern
        if pattern.type is None:
            self._of_all.append(entry)
        elif pattern.match is Match.LITERAL:
            self._literals.setdefault((pattern.type, pattern.name), []).append(entry)
        elif pattern.match is Match.ANY:
            self._of_type.setdefault(pattern.type, []).append(entry)
        else:
            lengths = self._lengths.setdefault(pattern.type, [])
            if len(pattern.name) not in lengths:
                lengths.append(len(pattern.name))
                lengths.sort(reverse=True)
            self._prefixes.setdefault((pattern.type, pattern.name), []).append(entry)

    def ranks(self, resource_type: ResourceType, name: str) -> Iterator[list[PolicyEntry]]:
        """Yield the entries that match a resource, those of the same rank together, the most specific first."""
        if literal := self._literals.get((resource_type, name)):
            yield literal
        for length in self._lengths.get(resource_type, ()):
            if length <= len(name) and (prefixed := self._prefixes.get((resource_type, name[:length]))):
                yield prefixed
        if of_type := self._of_type.get(resource_type):
            yield of_type
        if self._of_all:
            yield self._of_all
