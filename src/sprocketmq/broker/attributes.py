"""Attributes of topics and groups: the language of changes, and what each key may hold (docs/internals/requests.md#topic-attributes).

A change is ``+key=value`` (add or alter) or ``-key`` (delete); those of a topic are joined by commas. Error texts are the reference's,
because tools show them to people.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sprocketmq.errors import ConfigError

QUEUE_TYPE = "queue.type"
CLEANUP_POLICY = "cleanup.policy"
MESSAGE_TYPE = "message.type"
RESERVE_TIME = "reserve.time"
PRIORITY_FACTOR = "priority.factor"
LITE_EXPIRATION = "lite.topic.expiration"
BATCH_QUEUES = "BatchCQ"

_MAX_LONG = 2**63 - 1


class AttributeRefused(ConfigError):
    """An attribute change that is malformed, unknown or not allowed."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """What one key may hold: one of ``choices``, or else a whole number from ``low`` to ``high``."""

    changeable: bool
    choices: tuple[str, ...] = ()
    low: int = -1
    high: int = _MAX_LONG

    def check(self, value: str) -> None:
        if self.choices:
            if value not in self.choices:
                raise AttributeRefused(f"value is not in set: [{', '.join(self.choices)}]")
            return
        try:
            number = int(value)
        except ValueError:
            raise AttributeRefused(f'For input string: "{value}"') from None
        if not self.low <= number <= self.high:
            raise AttributeRefused(f"value is not in range({self.low}, {self.high})")


ATTRIBUTES: Mapping[str, Attribute] = {
    QUEUE_TYPE: Attribute(changeable=False, choices=("SimpleCQ", BATCH_QUEUES)),
    CLEANUP_POLICY: Attribute(changeable=False, choices=("DELETE", "COMPACTION")),
    MESSAGE_TYPE: Attribute(
        changeable=True, choices=("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED")
    ),
    RESERVE_TIME: Attribute(changeable=True),
    LITE_EXPIRATION: Attribute(changeable=True, high=43200),
}
# Attributes of groups: the percentage of pops of a priority topic that follow the priorities.
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {PRIORITY_FACTOR: Attribute(changeable=True, low=0, high=100)}


def not_done(key: str, value: str) -> str:
    """Return why a topic cannot be given an attribute although it is valid, or "" when it can."""
    if key == RESERVE_TIME and int(value) != -1:
        return "Update topic reserveTime not supported: this broker keeps the messages of all topics for fileReservedTime"
    if key == LITE_EXPIRATION and int(value) != -1:
        return f"this broker has no lite topics; leave out +{key}"
    if key == MESSAGE_TYPE and value == "LITE":
        return f"this broker has no lite topics; choose another {key}"
    return ""


def parse_changes(text: str | None) -> dict[str, str]:
    """Return the changes of ``+key=value,-key`` with their signs: ``{"+key": "value", "-key": ""}``. Raises AttributeRefused."""
    changes: dict[str, str] = {}
    for item in (text or "").split(","):
        if not item:
            continue
        key, equals, value = item.partition("=")
        if equals and "+" not in key:
            raise AttributeRefused(f"add/alter attribute format is wrong: {key}")
        if not equals and "-" not in key:
            raise AttributeRefused(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise AttributeRefused(f"key duplication: {key}")
        changes[key] = value
    return changes


def change_attributes(
    current: Mapping[str, str] | None, changes: Mapping[str, str], known: Mapping[str, Attribute] = ATTRIBUTES
) -> dict[str, str]:
    """Return the attributes after ``changes``, whose keys have signs; ``current`` is None for a topic or group that is being created.

    Raises AttributeRefused for unknown keys and values, for deleting what is not there, and for naming an unchangeable key of an
    existing topic, even with the value it has.
    """
    seen: set[str] = set()
    result = dict(current or {})
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key or sign not in "+-":
            raise AttributeRefused("kv string format wrong.")
        if key in seen:
            raise AttributeRefused(f"key duplication: {key}")
        seen.add(key)
        if sign == "-" and current is None:
            raise AttributeRefused(f"only add attribute is supported while creating topic. key: {key}")
        attribute = known.get(key)
        if attribute is None:
            raise AttributeRefused(f"unsupported key: {key}")
        if current is not None and not attribute.changeable:
            raise AttributeRefused(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "+":
            attribute.check(value)
            result[key] = value
        elif key not in result:
            raise AttributeRefused(f"attempt to delete a nonexistent key: {key}")
        else:
            del result[key]
    return result
