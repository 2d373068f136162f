"""Evaluation of the parts of an expression; strings are compared with literals as Apache's broker compares them.

Properties are strings. A string is converted to the type of the other side, as Java converts it; one that cannot be ends the evaluation
(``NoMatch``), whatever the rest of the expression says.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from operator import eq, ge, gt, le, lt

Properties = Mapping[str, str]
Value = str | int | float | bool | None
# A part of an expression: its value for a message with these properties; None is SQL's NULL.
Part = Callable[[Properties], Value]

_INT32 = range(-(1 << 31), 1 << 31)
_INT64 = range(-(1 << 63), 1 << 63)
_INTEGER = re.compile(r"[+-]?[0-9]{1,32}\Z")
_DOUBLE = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)\Z")
_MAX_DOUBLE_TEXT = 400

ORDERINGS: dict[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


class NoMatch(Exception):
    """The message does not match, because a value cannot be compared."""


def _integer(text: str, allowed: range) -> int:
    if _INTEGER.match(text) is None or (number := int(text)) not in allowed:
        raise NoMatch
    return number


def double(text: str) -> float:
    """Return the number that Java reads from a text. Raises NoMatch when it is none."""
    text = text.strip(" \t\r\n\f")
    if len(text) > _MAX_DOUBLE_TEXT or _DOUBLE.match(text) is None:
        raise NoMatch
    return float(text.rstrip("fFdD") if text[-1] in "fFdD" else text)


def _converted(text: str, other: float | bool) -> float:
    """Return a property's value as the type of what it is compared with. Raises NoMatch."""
    if isinstance(other, bool):
        return text.lower() == "true"
    if isinstance(other, int):
        return _integer(text, _INT32 if other in _INT32 else _INT64)
    return double(text)


def _compared(compare: Callable[[float, float], bool], left: str | float | bool, right: str | float | bool) -> bool:
    """Compare two values; booleans are numbers in Python, but not in SQL. Raises NoMatch."""
    if isinstance(left, str):
        return (
            _numbers(compare, double(left), double(right)) if isinstance(right, str) else _numbers(compare, _converted(left, right), right)
        )
    if isinstance(right, str):
        if isinstance(left, bool):
            raise NoMatch
        return _numbers(compare, left, _converted(right, left))
    return isinstance(left, bool) == isinstance(right, bool) and _numbers(compare, left, right)


def _numbers(compare: Callable[[float, float], bool], left: float, right: float) -> bool:
    """Compare two numbers as Java does: NaN is equal to itself, and greater than all others."""
    if left != left or right != right:  # noqa: PLR0124 - only NaN is not equal to itself
        return compare(left != left, right != right)  # noqa: PLR0124
    return compare(left, right)


def ordering(sign: str, left: Part, right: Part) -> Part:
    """Return ``left < right`` and the like; null when one side is null."""
    compare = ORDERINGS[sign]

    def evaluate(pairs: Properties) -> Value:
        a, b = left(pairs), right(pairs)
        return None if a is None or b is None else _compared(compare, a, b)

    return evaluate


def equality(left: Part, right: Part) -> Part:
    """Return ``left = right``: null when only the left side is null, false when only the right one is."""

    def evaluate(pairs: Properties) -> Value:
        a, b = left(pairs), right(pairs)
        if a is None:
            return True if b is None else None
        if b is None:
            return False
        if isinstance(a, str) and isinstance(b, str):
            return a == b
        return _compared(eq, a, b)

    return evaluate


def negation(part: Part) -> Part:
    """Return ``NOT part``."""

    def evaluate(pairs: Properties) -> Value:
        value = part(pairs)
        return None if value is None else not value

    return evaluate


def is_null(part: Part) -> Part:
    """Return ``part IS NULL``."""
    return lambda pairs: part(pairs) is None


def conjunction(parts: Sequence[Part]) -> Part:
    """Return the parts joined by AND."""

    def evaluate(pairs: Properties) -> Value:
        unknown = False
        for part in parts:
            value = part(pairs)
            if value is None:
                unknown = True
            elif not value:
                return False
        return None if unknown else True

    return evaluate


def disjunction(parts: Sequence[Part]) -> Part:
    """Return the parts joined by OR."""

    def evaluate(pairs: Properties) -> Value:
        unknown = False
        for part in parts:
            value = part(pairs)
            if value is None:
                unknown = True
            elif value:
                return True
        return None if unknown else False

    return evaluate


def truth(part: Part) -> Part:
    """Return a property as a condition: its text is never true."""
    return lambda pairs: None if part(pairs) is None else False


def minus(part: Part) -> Part:
    """Return ``-part``: null for anything but a number."""

    def evaluate(pairs: Properties) -> Value:
        value = part(pairs)
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None

    return evaluate


def membership(name: str, texts: frozenset[str], *, negated: bool) -> Part:
    """Return ``name IN ('a', 'b')``; null without the property."""

    def evaluate(pairs: Properties) -> Value:
        value = pairs.get(name)
        return None if value is None else (value in texts) != negated

    return evaluate


def search(kind: str, part: Part, pattern: str, *, negated: bool) -> Part:
    """Return ``part CONTAINS 'pattern'`` and the like: false, also when negated, without a text or a pattern."""
    found: Callable[[str], bool] = {
        "CONTAINS": lambda text: pattern in text,
        "STARTSWITH": lambda text: text.startswith(pattern),
        "ENDSWITH": lambda text: text.endswith(pattern),
    }[kind]

    def evaluate(pairs: Properties) -> Value:
        value = part(pairs)
        return isinstance(value, str) and bool(pattern) and found(value) != negated

    return evaluate
