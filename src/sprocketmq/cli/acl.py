"""``sprocketmq acl``: what users may do."""

import difflib
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from sprocketmq.cli.output import clean, print_json, print_table
from sprocketmq.cli.target import Target
from sprocketmq.cli.user_places import Changes, Place, RightRow, collect, places, places_word
from sprocketmq.errors import ConfigError
from sprocketmq.security.policies import Action, Decision, PolicyType, policy_entry
from sprocketmq.security.resources import ResourceType, parse_pattern
from sprocketmq.security.tables import NO_ACL

COLUMNS = ("user", "resource", "actions", "from", "decision", "where")


@dataclass(frozen=True)
class Resources:
    """The resources that options name. Raises ConfigError for a type that does not exist, or when nothing is named."""

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    clusters: Sequence[str] = ()
    others: Sequence[str] = ()

    def patterns(self) -> list[str]:
        """Return them as ``Type:name``."""
        named = ((ResourceType.TOPIC, self.topics), (ResourceType.GROUP, self.groups), (ResourceType.CLUSTER, self.clusters))
        texts = [f"{kind}:{name.strip()}" for kind, names in named for name in names]
        for text in self.others:
            kind, colon, name = text.partition(":")
            texts.append(f"{_known(ResourceType, kind, 'resource type')}:{name}" if colon else text)
        if not texts:
            raise ConfigError("say on what: --topic, --group, --cluster, or --resource TYPE:NAME")
        return list(dict.fromkeys(str(parse_pattern(text)) for text in texts))


def list_rights(target: Target, username: str | None, users_file: Path | None, *, as_json: bool) -> int:
    """Print the rights of all users, or of one."""
    with places(target, users_file) as found:
        rows, code = collect(found, lambda place: place.rights(username))
        if as_json:
            print_json([_facts(row) | {"places": names} for row, names in rows])
        else:
            print_table(COLUMNS, (_cells(row, places_word(names, found)) for row, names in rows))
    return code


def _facts(row: RightRow) -> dict[str, object]:
    return {
        "username": row.username,
        "resource": row.resource,
        "actions": list(row.actions),
        "source_ips": list(row.source_ips),
        "decision": row.decision,
        "policy_type": row.policy_type,
    }


def _cells(row: RightRow, where: str) -> tuple[str, ...]:
    decision = row.decision if row.policy_type == PolicyType.CUSTOM else f"{row.decision} (by default)"
    return (clean(row.username), clean(row.resource), ",".join(row.actions), clean(",".join(row.source_ips)) or "anywhere", decision, where)


def grant(
    target: Target,
    username: str,
    resources: Resources,
    actions: str,
    sources: Sequence[str],
    users_file: Path | None,
    *,
    deny: bool,
    as_json: bool,
) -> int:
    """Add rights at every broker. Actions are added to those of an entry for the same resource and addresses. Raises ConfigError."""
    named = [_known(Action, text, "action") for text in actions.split(",") if text.strip()]
    decision = Decision.DENY if deny else Decision.ALLOW
    entries = [policy_entry(pattern, named, decision, sources) for pattern in resources.patterns()]
    wanted = [RightRow(username, entry.resource, tuple(map(str, entry.actions)), entry.source_ips, decision) for entry in entries]
    with places(target, users_file) as found:
        changes = Changes(as_json)
        for place in found:

            def act(place: Place = place) -> str:
                rows = _merged(wanted, place.rights(username))
                place.grant(username, rows)
                verb = "may not" if deny else "may"
                return "; ".join(f"{username} {verb} {','.join(row.actions)} on {row.resource}{_from(row)}" for row in rows)

            changes.make(place, act)
    return changes.end(username=username)


def _from(row: RightRow) -> str:
    return f" from {', '.join(row.source_ips)}" if row.source_ips else ""


def _merged(wanted: Iterable[RightRow], there: Iterable[RightRow]) -> list[RightRow]:
    """Return ``wanted`` with the actions that the entries for the same resource, decision and addresses have already."""
    known = {replace(row, actions=()): row.actions for row in there}
    return [replace(row, actions=tuple(dict.fromkeys((*known.get(replace(row, actions=()), ()), *row.actions)))) for row in wanted]


def revoke(target: Target, username: str, resources: Resources, users_file: Path | None, *, everything: bool, as_json: bool) -> int:
    """Remove rights at every broker: the entries of exactly these resources, or all. Raises ConfigError when none has any of them."""
    if everything and resources != Resources():
        raise ConfigError("--all takes every right away: leave --topic, --group, --cluster and --resource out")
    patterns: list[str | None] = [None] if everything else list(resources.patterns())
    with places(target, users_file) as found:
        changes = Changes(as_json)
        for place in found:
            for pattern in patterns:

                def act(place: Place = place, pattern: str | None = pattern) -> str:
                    place.revoke(username, pattern)
                    return f"{username} has no rights any more" if pattern is None else f"{username} has no entry for {pattern} any more"

                changes.make(place, act, harmless=(NO_ACL, f"{username} has no such entry"))
    if not changes.done and not changes.failed:
        raise ConfigError(f"user {username} has no such rights; `sprocketmq acl list {shlex.quote(username)}` shows those there are")
    return changes.end(username=username)


def _known(kind: type[StrEnum], text: str, what: str) -> str:
    """Return the member that ``text`` names, in any case. Raises ConfigError with the nearest one."""
    by_name = {member.lower(): member.value for member in kind}
    name = text.strip().lower()
    if name in by_name:
        return by_name[name]
    alike = difflib.get_close_matches(name, by_name, n=1, cutoff=0.5)
    hint = f"did you mean {by_name[alike[0]]}?" if alike else f"use one of {', '.join(by_name.values())}"
    raise ConfigError(f"{what} {text.strip()!r} is not known; {hint}")
