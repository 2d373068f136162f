r"""The format of ``java.util.Properties``, in which Apache's brokers and nameservers read their settings.

::

    # a comment, as is a line that begins with !
    brokerName = broker-a           the blanks around = do not count; : and a blank separate, too
    namesrvAddr=10.0.0.1:9876;\
                10.0.0.2:9876       a line that ends with \ goes on in the next one, without its leading blanks
    regionId=\u5317                 \t \n \r \f and \uXXXX are single characters, any other \c is c
"""

import re
from typing import NamedTuple

from sprocketmq.errors import ConfigError

_BLANKS = " \t\f"
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# A key ends at the first separator that has no backslash before it.
_KEY = re.compile(r"((?:\\.|[^\\ \t\f=:])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


class Property(NamedTuple):
    """One assignment and the number of the line where it begins, from 1."""

    line: int
    key: str
    value: str


def parse_properties(text: str) -> list[Property]:
    r"""Return the assignments of ``text`` in their order, repeated keys included; trailing blanks of values are dropped.

    Java keeps trailing blanks, and its brokers strip them where they can. Raises ConfigError for a ``\u`` without four digits.
    """
    found = []
    lines = enumerate(re.split(r"\r\n|\r|\n", text), 1)
    for number, first in lines:
        whole = first.lstrip(_BLANKS)
        if not whole or whole[0] in "#!":
            continue
        while _goes_on(whole):
            whole = whole[:-1] + next(lines, (0, ""))[1].lstrip(_BLANKS)
        match = _KEY.fullmatch(whole)
        assert match is not None, "the last group takes anything"
        key, value = (_unescape(part, number) for part in match.groups())
        found.append(Property(number, key, value.rstrip()))
    return found


def _goes_on(line: str) -> bool:
    """Whether a line ends with an odd number of backslashes; the others are pairs that stand for one each."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str, line: int) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] != "u":
            return _CHARACTERS.get(code, code)
        if len(code) == 1:
            raise ConfigError(rf"line {line}: \u needs four hexadecimal digits; write \\ for a backslash")
        return chr(int(code[1:], 16))

    return _ESCAPE.sub(one, text)
