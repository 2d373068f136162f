"""Log lines with a name and fields, for every layer: ``topic_created topic=orders queues=8 peer=10.0.0.7:40112``.

docs/guide/logs.md lists all events; a test compares the list with the code. They are records of the standard ``logging``, so that
programs that embed a server keep their handlers. ``record.event`` and ``record.fields`` hold the name and the values.
"""

import logging
from collections.abc import Mapping
from enum import Enum
from types import TracebackType
from typing import TypeAlias

# A value that is longer is cut: names and reasons may come from a peer.
MAX_VALUE_LENGTH = 1_000

_ExcInfo: TypeAlias = bool | BaseException | tuple[type[BaseException], BaseException, TracebackType | None]
# Characters of values that stand without quotes, besides letters and digits.
_BARE = str.maketrans("", "", "_-./:@%+,[]*|#$~")


def event(log: logging.Logger, level: int, name: str, /, *, exc_info: _ExcInfo | None = None, **fields: object) -> None:
    """Log one event. Fields that are None are left out, long values are cut.

    ``exc_info`` adds a traceback, as in the methods of ``log``.
    """
    if log.isEnabledFor(level):
        said = {key: _plain(value) for key, value in fields.items() if value is not None}
        log.log(level, text_of(name, said), exc_info=exc_info, stacklevel=2, extra={"event": name, "fields": said})


def text_of(name: str, fields: Mapping[str, object]) -> str:
    """Return ``name key=value ...`` on one line: values with special characters are in double quotes, with Python's escapes."""
    return " ".join([name, *(f"{key}={quoted(value)}" for key, value in fields.items())])


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of a line that ``text_of`` wrote, as text. Raises ValueError for quotes that do not end."""
    import shlex  # for few programs: all import this module

    return dict(word.split("=", 1) for word in shlex.split(line) if "=" in word)


def escaped(text: str) -> str:
    """Return ``text`` with line breaks, control characters and invisible characters as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def _plain(value: object) -> str | int | float | bool:
    """Return what a JSON line holds for a field."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(f"{value:.6g}")
    text = ",".join(map(str, value)) if isinstance(value, list | tuple | set | frozenset) else str(value)
    if len(text) > MAX_VALUE_LENGTH:
        text = f"{text[:MAX_VALUE_LENGTH]}... ({len(text) - MAX_VALUE_LENGTH} more characters)"
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def quoted(value: object) -> str:
    """Return a value as ``text_of`` writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    if text.translate(_BARE).isalnum():
        return text
    return '"' + escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
