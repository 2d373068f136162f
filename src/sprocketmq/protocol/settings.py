"""Settings as text (25, 26, 318, 319): lines of ``key=value``, and the typed allow-list that requests to change them are read against."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sprocketmq.errors import FatalError
from sprocketmq.protocol.codes import ResponseCode

Value = bool | int
# The prefix of environment variables with server settings. Not SPROCKETMQ_ alone: Kubernetes sets SPROCKETMQ_PORT for a service of this
# name.
SETTING_VARIABLE = "SPROCKETMQ_SET_"
MASKED = "******"
MAX_BODY_BYTES = 64 << 10
_SHOWN_CHARACTERS = 60
_SWITCHES = {"true": True, "false": False}


class ChangeRefused(FatalError):
    """A refused request to change settings; ``code`` is the response code, and nothing has changed."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


@dataclass(frozen=True)
class Switch:
    """A setting that is true or false."""

    def read(self, text: str) -> bool:
        """Return the value. Raises ValueError."""
        if text.lower() not in _SWITCHES:
            raise ValueError("must be true or false")
        return _SWITCHES[text.lower()]


@dataclass(frozen=True)
class Whole:
    """A setting that is a whole number from ``low`` to ``high``."""

    low: int
    high: int

    def read(self, text: str) -> int:
        """Return the value. Raises ValueError."""
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= len(str(self.high)) and self.low <= int(text) <= self.high:
            return int(text)
        raise ValueError(f"must be a whole number from {self.low} to {self.high}")


@dataclass(frozen=True)
class OneOf:
    """A setting that is one of a few numbers."""

    numbers: tuple[int, ...]

    def read(self, text: str) -> int:
        """Return the value. Raises ValueError."""
        for number in self.numbers:
            if text == str(number):
                return number
        raise ValueError(f"must be one of {', '.join(map(str, self.numbers))}")


Kind = Switch | Whole | OneOf


def to_text(value: object) -> str:
    """Return a value in the form of these lines: ``true``, ``false``, or its own text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def encode_settings(settings: Mapping[str, object]) -> bytes:
    """Return one line for each setting. Line breaks inside a value become blanks, so that a value cannot forge another setting.

    Bytes of a path that are no text are shown as escapes.
    """
    lines = (f"{name}={' '.join(to_text(value).splitlines())}\n" for name, value in settings.items())
    return "".join(lines).encode(errors="backslashreplace")


def decode_settings(body: bytes | memoryview) -> dict[str, str]:
    """Return the settings of a body; lines that are comments or have no ``=`` are left out."""
    return dict(_pairs(line for line in _lines(body) if "=" in line))


def read_changes(body: bytes | memoryview, allowed: Mapping[str, Kind], *, server: str, page: str) -> dict[str, Value]:
    """Return the new values that a request asks for. Raises ChangeRefused, naming the first key that cannot be changed.

    ``server`` and ``page`` are for the error: which server it is, and the page that describes its other settings.
    """
    if len(body) > MAX_BODY_BYTES:
        raise ChangeRefused(ResponseCode.INVALID_PARAMETER, f"the settings have {len(body)} bytes, the limit is {MAX_BODY_BYTES}")
    values: dict[str, Value] = {}
    for line in _lines(body):
        if "=" not in line:
            raise ChangeRefused(ResponseCode.INVALID_PARAMETER, f"write key=value, not {_shown(line)}; nothing was changed")
        ((key, text),) = _pairs([line])
        kind = allowed.get(key)
        if kind is None:
            remark = (
                f"{_shown(key)} cannot be changed while the {server} runs; nothing was changed. Requests may change"
                f" {', '.join(sorted(allowed))}. Other settings are given when it starts: {page}"
            )
            raise ChangeRefused(ResponseCode.NO_PERMISSION, remark)
        if key in values:
            raise ChangeRefused(ResponseCode.INVALID_PARAMETER, f"{key} is given twice; nothing was changed")
        try:
            values[key] = kind.read(text)
        except ValueError as e:
            raise ChangeRefused(ResponseCode.INVALID_PARAMETER, f"{key} {e}, not {_shown(text)}; nothing was changed") from None
    return values


def _lines(body: bytes | memoryview) -> list[str]:
    lines = (line.strip() for line in bytes(body).decode("utf-8", "replace").split("\n"))
    return [line for line in lines if line and line[0] not in "#!"]


def _pairs(lines: Iterable[str]) -> list[tuple[str, str]]:
    parts = (line.partition("=") for line in lines)
    return [(key.strip(), text.strip()) for key, _, text in parts]


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")
