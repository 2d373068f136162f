"""Parse the options of all formats from Spark's text values. Errors name the option and its allowed values."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Never, TypeVar, overload

from sprocketmq.errors import ConfigError, InvalidName
from sprocketmq.net.address import parse_addresses
from sprocketmq.protocol.names import check_group
from sprocketmq.protocol.settings import to_text

CLIENT_PREFIX = "rocketmq.client."

_W = TypeVar("_W", bound=str)

# More digits than any option needs; Python refuses to parse thousands.
_WHOLE = re.compile(r"-?[0-9]{1,100}")
_MEASURED = re.compile(r"([0-9]{1,100})\s*([a-z]*)", re.IGNORECASE)
# The number of characters of a value that errors quote.
_QUOTED = 200
_BYTES = {unit + tail: 1 << 10 * i for i, unit in enumerate(("", "k", "m", "g", "t")) for tail in ("", "b", "ib")}
_MS = {"": 1, "ms": 1, "s": 1000, "sec": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
# Features of other clients that ours lacks. For these the error does not suggest a misspelling.
_UNSUPPORTED = ("acl", "namespace")
# Parts of the names under which other clients and connectors take secrets, in lower case and without punctuation.
_SECRETS = ("accesskey", "secretkey", "securitytoken", "secret", "password", "apikey")
_NO_SECRETS = (
    "credentials are not given as options, which end up in query plans and logs; put them into a file that the driver and every executor"
    " have, and name it with option credentials.file, or name environment variables with credentials.env"
)
_KEY_REFUSED = (
    "passwords are not given as options, which end up in query plans and logs; write it to a file, and name that with option"
    " tls.key.password.file"
)


class OptionError(ConfigError):
    """An option is missing or unknown, contradicts another, or has an invalid value."""

    def __init__(self, option: str, problem: str, format: str = "rocketmq") -> None:  # noqa: A002 - Spark's word
        super().__init__(f"option {option!r} of the {format} format: {problem}")
        self.option = option
        self.problem = problem
        self.format = format

    def __reduce__(self) -> tuple[type["OptionError"], tuple[str, str, str]]:
        return type(self), (self.option, self.problem, self.format)


class Values:
    """The options of one read or write.

    ``names`` are all known options; one that ends in a dot is a prefix (``rocketmq.client.``). Options are case-insensitive, as in Spark.
    Raises OptionError for an unknown option, with the one that was probably meant.
    """

    def __init__(self, options: Mapping[str, str], names: Iterable[str], format: str = "rocketmq") -> None:  # noqa: A002 - Spark's word
        self.format = format
        known = list(names)
        self._names = {name.lower(): name for name in known if not name.endswith(".")}
        prefixes = tuple(name.lower() for name in known if name.endswith("."))
        self._given: dict[str, str] = {}
        for name, value in options.items():
            if not isinstance(name, str):
                raise self.error(repr(name), "the name of an option is text")
            self._given[name.lower()] = self._as_text(name, value)
        for name in options:
            low = name.lower()
            if low not in self._names and "credentials.file" in self._names and _carries_secret(low):
                raise self.error(name, _KEY_REFUSED if low == "tls.key.password" else _NO_SECRETS)
            if low not in self._names and not low.startswith(prefixes):
                near = difflib.get_close_matches(low, self._names, 1)
                hint = f"; did you mean {self._names[near[0]]!r}?" if near else "."
                raise self.error(name, f"there is no such option{hint} The options are {', '.join(known)}")

    def _as_text(self, name: str, value: object) -> str:
        """Return a value as Spark's ``option`` would hand it on."""
        if isinstance(value, str | int | float):
            return to_text(value)
        raise self.error(name, f"its value is text or a number, not {value!r}")

    def error(self, name: str, problem: str) -> OptionError:
        """Return the error to raise for an option."""
        return OptionError(name, problem, self.format)

    def given(self, name: str) -> bool:
        """Return whether the option is given."""
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
        """Return the stripped value. Raises OptionError when it is empty."""
        value = self._given.get(name.lower())
        if value is None:
            return default
        if not value.strip():
            raise self.error(name, "it is empty; give it a value, or leave it out")
        return value.strip()

    def required(self, name: str, what: str) -> str:
        """Return the stripped value. Raises OptionError with ``what`` it must be when it is missing or empty."""
        value = self._given.get(name.lower(), "").strip()
        if not value:
            raise self.error(name, f"it is required: {what}")
        return value

    @overload
    def integer(self, name: str, default: None, low: int, high: int | None = None, what: str = "") -> int | None: ...
    @overload
    def integer(self, name: str, default: int, low: int, high: int | None = None, what: str = "") -> int: ...
    def integer(self, name: str, default: int | None, low: int, high: int | None = None, what: str = "") -> int | None:
        """Return an integer from ``low`` to ``high`` inclusive (``high`` None: no limit). ``what`` names it in errors."""
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
        """Return whether the value is ``true``, not ``false``, in any case."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise self.error(name, f"{text!r} is neither true nor false")
        return text.lower() == "true"

    def word(self, name: str, choices: Iterable[_W], default: _W) -> _W:
        """Return the given one of ``choices``, case-insensitive, in the spelling of ``choices``."""
        text = self.text(name)
        if text is None:
            return default
        by_lower = {choice.lower(): choice for choice in choices}
        if text.lower() not in by_lower:
            raise self.error(name, f"{text!r} is not one of {', '.join(by_lower.values())}")
        return by_lower[text.lower()]

    def items(self, name: str, what: str) -> tuple[str, ...]:
        """Return comma-separated items, stripped and without repetitions. Raises OptionError with ``what`` when there is none."""
        found = tuple(dict.fromkeys(part for piece in self._given.get(name.lower(), "").split(",") if (part := piece.strip())))
        if not found:
            raise self.error(name, f"it is required: {what}")
        return found

    def columns(self, known: Iterable[str], default: tuple[str, ...], name: str = "columns") -> tuple[str, ...]:
        """Return the given columns in their order and in the spelling of ``known``, or ``default``."""
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
        """Return the value parsed as JSON, None when not given. Raises OptionError for invalid JSON and for duplicate names."""
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
            raise self.error(name, f"{word} is not a JSON number")

        try:
            return json.loads(text, object_pairs_hook=once, parse_constant=no_number)
        except json.JSONDecodeError as e:
            raise self.error(name, f"{shortened(text)!r} is not JSON: {e.msg} at character {e.pos}") from None
        except OptionError:
            raise
        except (RecursionError, ValueError):
            raise self.error(name, f"{shortened(text)!r} is nested too deeply, or has a number that is too long") from None

    def prefixed(self, prefix: str) -> dict[str, str]:
        """Return the options that begin with ``prefix``, keyed by the rest of the name in lower case, as Spark passes it."""
        low = prefix.lower()
        return {name[len(low) :]: value for name, value in self._given.items() if name.startswith(low)}

    def nameserver(self, name: str = "nameserver") -> str:
        """Return the checked nameserver addresses, joined by semicolons."""
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
        """Return the options ``rocketmq.client.*`` for the client as sorted (keyword argument, text).

        ``known`` are the allowed keyword arguments; ``max_message_bytes`` may also be written ``maxMessageBytes``.
        """
        arguments = {argument.replace("_", "").lower(): argument for argument in known}
        found = {}
        for name, value in sorted(self.prefixed(CLIENT_PREFIX).items()):
            argument = arguments.get(name.replace("_", ""))
            if argument is None:
                there = ", ".join(f"{CLIENT_PREFIX}{camel(argument)}" for argument in arguments.values())
                why = "the client cannot do that" if any(word in name for word in _UNSUPPORTED) else "the client has no such setting"
                if name in ("tls", "ssl", "usetls"):
                    why = "give option tls instead"
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


def _carries_secret(name: str) -> bool:
    plain = re.sub("[^a-z0-9]", "", name)
    return any(word in plain for word in _SECRETS) or plain in ("credentials", "token", "ak", "sk")


def shortened(text: str) -> str:
    """Return a value for an error text, cut after 200 characters."""
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def camel(argument: str) -> str:
    """Return a keyword argument (``max_bytes``) in the spelling of options (``maxBytes``)."""
    first, *rest = argument.split("_")
    return first + "".join(word.capitalize() for word in rest)
