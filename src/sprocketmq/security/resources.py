"""Resources that policies are about: topics, groups and clusters, and the patterns that stand for several of them."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from sprocketmq.errors import ConfigError
from sprocketmq.security.users import member_named

# The name of no resource: stands for all of a type, where a request leaves out the name.
EVERY_NAME = "*"
MAX_RESOURCE_LENGTH = 512


class ResourceType(StrEnum):
    """No request asks for a Namespace; the reference's tools can store policies about one."""

    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Resource(NamedTuple):
    """One resource, under the name that it has on the wire."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


class Match(IntEnum):
    """The kinds of patterns, by how their name is compared."""

    LITERAL = 0
    PREFIX = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class ResourcePattern:
    """``*`` (every resource: ``type`` None), ``Type:*``, ``Type:prefix*``, or ``Type:name``. ``name`` is the prefix or the name."""

    type: ResourceType | None
    match: Match
    name: str

    def __str__(self) -> str:
        if self.type is None:
            return "*"
        return f"{self.type}:{self.name}{'' if self.match is Match.LITERAL else '*'}"


def parse_pattern(text: str) -> ResourcePattern:
    """Return the pattern that ``text`` writes; of a text with several ``*`` the part before the first is the prefix. Raises ConfigError."""
    text = text.strip()
    if text == EVERY_NAME:
        return ResourcePattern(None, Match.ANY, "")
    kind, colon, name = text.partition(":")
    name = name.strip()
    if len(text) > MAX_RESOURCE_LENGTH or not text.isprintable():
        raise ConfigError(f"a resource of {len(text)} characters is not valid: use at most {MAX_RESOURCE_LENGTH} printable ones")
    if not colon or not name:
        raise ConfigError(f"resource {text!r} names nothing: write Topic:NAME, Topic:PREFIX*, Topic:* (also Group, Cluster) or *")
    resource_type = member_named(ResourceType, kind, "resource type")
    if name == EVERY_NAME:
        return ResourcePattern(resource_type, Match.ANY, "")
    prefix, star, _ = name.partition("*")
    return ResourcePattern(resource_type, Match.PREFIX if star else Match.LITERAL, prefix)
