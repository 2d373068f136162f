"""Options of every format of this package, taken out of Spark's text: each refusal names the option and what it may be."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Never, TypeVar, overload

from sprocketmq.errors import ConfigError, InvalidName
from sprocketmq.net.address import parse_addresses
from sprocketmq.protocol.names import check_group

CLIENT_PREFIX = "rocketmq.client."

_W = TypeVar("_W", bound=str)

# As many digits as any option has a use for: Python refuses to read thousands.
_WHOLE = re.compile(r"-?[0-9]{1,100}")
_MEASURED = re.compile(r"([0-9]{1,100})\s*([a-z]*)", re.IGNORECASE)
# Longer values are cut where an error quotes them.
_QUOTED = 200
_BYTES = {unit + tail: 1 << 10 * i for i, unit in enumerate(("", "k", "m", "g", "t")) for tail in ("", "b", "ib")}
_MS = {"": 1, "ms": 1, "s": 1000, "sec": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
# What users of other clients look for and ours cannot do: a bare "no such option" would send them looking for the right spelling.
_NOT_DONE = ("accesskey", "secretkey", "securitytoken", "acl", "tls", "ssl", "namespace", "credential")


class OptionError(ConfigError):
    """An option is missing, unknown, contradicts another, or has a value it cannot have."""

    def __init__(self, option: str, problem: str, format: str = "rocketmq") -> None:  # noqa: A002 - Spark's word
        super().__init__(f"option {option!r} of the {format} format: {problem}")
        self.option = option
        self.problem = problem
        self.format = format

    def __reduce__(self) -> tuple[type["OptionError"], tuple[str, str, str]]:
        return type(self), (self.option, self.problem, self.format)


class Values:
    """The options of one read or write.

    ``names`` are all there are, by their own spelling; one that ends in a dot is the beginning of names (``rocketmq.client.``). Options
    are taken in any case, as Spark does. Raises OptionError for one that there is not, with the one that was probably meant.
    """

    def __init__(self, options: Mapping[str, str], names: Iterable[str], format: str = "rocketmq") -> None:  # noqa: A002 - Spark's word
        self.format = format
        known = list(names)
        self._names = {name.lower(): name for name in known if not name.endswith(".")}
        prefixes = tuple(name.lower() for name in known if name.endswith("."))
        self._given = {name.lower(): value for name, value in options.items()}
        for name in options:
            low = name.lower()
            if low not in self._names and not low.startswith(prefixes):
                near = difflib.get_close_matches(low, self._names, 1)
                hint = f"; did you mean {self._names[near[0]]!r}?" if near else "."
                raise self.error(name, f"there is no such option{hint} The options are {', '.join(known)}")

    def error(self, name: str, problem: str) -> OptionError:
        """Return the refusal of an option, to be raised."""
        return OptionError(name, problem, self.format)

    def given(self, name: str) -> bool:
        """Tell whether the option is there."""
        return name.lower() in self._given

    def only_one_of(self, *names: str) -> str | None:
        """Return the one of ``names`` that is given, None when none is. Raises OptionError naming both when two are."""
        given = [name for name in names if self.given(name)]
        if len(given) > 1:
            raise self.error(given[1], f"it cannot be given together with {given[0]!r}; leave one of them out")
        return given[0] if given else None

    @overload
    def text(self, name: str, default: None = None) -> str | None: ...
    @overload
    def text(self, name: str, default: str) -> str: ...
    def text(self, name: str, default: str | None = None) -> str | None:
        """Return the value without blanks around it. Raises OptionError when nothing is left."""
        value = self._given.get(name.lower())
        if value is None:
            return default
        if not value.strip():
            raise self.error(name, "it is empty; give it a value, or leave it out")
        return value.strip()

    def required(self, name: str, what: str) -> str:
        """Return the value without blanks around it. Raises OptionError, which says ``what`` it must be, when there is none."""
        value = self._given.get(name.lower(), "").strip()
        if not value:
            raise self.error(name, f"it is required: {what}")
        return value

    @overload
    def integer(self, name: str, default: None, low: int, high: int | None = None, what: str = "") -> int | None: ...
    @overload
    def integer(self, name: str, default: int, low: int, high: int | None = None, what: str = "") -> int: ...
    def integer(self, name: str, default: int | None, low: int, high: int | None = None, what: str = "") -> int | None:
        """Return a whole number from ``low`` to ``high``, both included (``high`` None: no limit). ``what`` says what it counts."""
        text = self.text(name)
        if text is None:
            return default
        number = int(text) if _WHOLE.fullmatch(text) else None
        if number is None or number < low or (high is not None and number > high):
            self._refuse_number(name, text, "a whole number", low, high, what)
        return number

    def size(self, name: str, default: int, low: int, high: int | None = None) -> int:
        """Return a number of bytes: ``4194304``, or with a unit of 1024: ``4096k``, ``4m``, ``4 MiB``, ``1g``."""
        return self._measured(name, default, low, high, _BYTES, 'a number of bytes ("4194304", "4096k", "4m", "1g")')

    def milliseconds(self, name: str, default: int, low: int, high: int | None = None) -> int:
        """Return a time in milliseconds: ``1500``, or with a unit: ``1500ms``, ``30s``, ``15m``, ``1h``."""
        return self._measured(name, default, low, high, _MS, 'a time in milliseconds, or with a unit ("1500ms", "30s", "15m", "1h")')

    def boolean(self, name: str, default: bool) -> bool:
        """Return whether the value is ``true``; it may be ``false`` otherwise, in any case."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise self.error(name, f"{text!r} is neither true nor false")
        return text.lower() == "true"

    def word(self, name: str, choices: Iterable[_W], default: _W) -> _W:
        """Return the one of ``choices`` that was given in any case, by its own spelling."""
        text = self.text(name)
        if text is None:
            return default
        by_lower = {choice.lower(): choice for choice in choices}
        if text.lower() not in by_lower:
            raise self.error(name, f"{text!r} is not one of {', '.join(by_lower.values())}")
        return by_lower[text.lower()]

    def items(self, name: str, what: str) -> tuple[str, ...]:
        """Return what stands between commas, each once, without blanks around it. Raises OptionError, which says ``what``, when nothing does."""
        found = tuple(dict.fromkeys(part for piece in self._given.get(name.lower(), "").split(",") if (part := piece.strip())))
        if not found:
            raise self.error(name, f"it is required: {what}")
        return found

    def columns(self, known: Iterable[str], default: tuple[str, ...], name: str = "columns") -> tuple[str, ...]:
        """Return the columns that are named, in the given order and by their own spelling, or ``default``."""
        if not self.given(name):
            return default
        by_lower = {column.lower(): column for column in known}
        chosen: list[str] = []
        for piece in self.text(name, "").split(","):
            column = by_lower.get(piece.strip().lower())
            if column is None:
                raise self.error(name, f"there is no column {piece.strip()!r}; the columns are {', '.join(by_lower.values())}")
            if column in chosen:
                raise self.error(name, f"{column!r} is named twice")
            chosen.append(column)
        return tuple(chosen)

    def json(self, name: str) -> Any:
        """Return the value as JSON, None when the option is not there. Raises OptionError for what is no JSON, or names a thing twice."""
        text = self.text(name)
        if text is None:
            return None

        def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) < len(pairs):
                twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
                raise self.error(name, f"{twice!r} is named twice in the same JSON object")
            return found

        def no_number(word: str) -> Never:
            raise self.error(name, f"{word} is no JSON number")

        try:
            return json.loads(text, object_pairs_hook=once, parse_constant=no_number)
        except json.JSONDecodeError as e:
            raise self.error(name, f"{shortened(text)!r} is not JSON: {e.msg} at character {e.pos}") from None
        except OptionError:
            raise
        except (RecursionError, ValueError):
            raise self.error(name, f"{shortened(text)!r} is nested too deeply, or has a number that is too long") from None

    def prefixed(self, prefix: str) -> dict[str, str]:
        """Return the options that begin with ``prefix`` by the rest of their name, in lower case, as Spark hands them over."""
        low = prefix.lower()
        return {name[len(low) :]: value for name, value in self._given.items() if name.startswith(low)}

    def nameserver(self, name: str = "nameserver") -> str:
        """Return the addresses of the nameservers, each checked, joined by semicolons."""
        text = self.required(name, '"host:port", several separated by semicolons')
        try:
            return ";".join(parse_addresses(text))
        except ConfigError as e:
            raise self.error(name, str(e)) from None

    def group(self, name: str, default: str) -> str:
        """Return a consumer or producer group."""
        try:
            return check_group(self.text(name, default))
        except InvalidName as e:
            raise self.error(name, str(e)) from None

    def client_options(self, known: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Return what ``rocketmq.client.*`` passes on to the client: (keyword argument, text), in order.

        ``known`` are the keyword arguments that can be given; ``max_message_bytes`` is written so, or as ``maxMessageBytes``.
        """
        arguments = {argument.replace("_", "").lower(): argument for argument in known}
        found = {}
        for name, value in sorted(self.prefixed(CLIENT_PREFIX).items()):
            argument = arguments.get(name.replace("_", ""))
            if argument is None:
                there = ", ".join(f"{CLIENT_PREFIX}{camel(argument)}" for argument in arguments.values())
                why = "the client cannot do that" if any(word in name for word in _NOT_DONE) else "the client has no such setting"
                raise self.error(f"{CLIENT_PREFIX}{name}", f"{why}; what can be passed on is {there or 'nothing'}")
            found[argument] = value
        return tuple(found.items())

    def _measured(self, name: str, default: int, low: int, high: int | None, units: Mapping[str, int], what: str) -> int:
        text = self.text(name)
        if text is None:
            return default
        parts = _MEASURED.fullmatch(text)
        factor = units.get(parts[2].lower()) if parts else None
        if parts is None or factor is None:
            raise self.error(name, f"{shortened(text)!r} is not {what}")
        number = int(parts[1]) * factor
        if number < low or (high is not None and number > high):
            self._refuse_number(name, text, what, low, high, "")
        return number

    def _refuse_number(self, name: str, text: str, kind: str, low: int, high: int | None, what: str) -> Never:
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise self.error(name, f"{shortened(text)!r} is not {kind} {bounds}" + (f" ({what})" if what else ""))


def shortened(text: str) -> str:
    """Return a value as errors quote it: the beginning of a long one."""
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def camel(argument: str) -> str:
    """Return a keyword argument, ``max_bytes``, as options are written: ``maxBytes``."""
    first, *rest = argument.split("_")
    return first + "".join(word.capitalize() for word in rest)
