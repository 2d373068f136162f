"""The tokenizer for SQL92 expressions."""

import re
from typing import NamedTuple

from sprocketmq.errors import SprocketError

# Longer expressions, and those with more words, are refused: what a message costs grows with them.
MAX_LENGTH = 4 << 10
MAX_TOKENS = 400

KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "IS", "NULL", "CONTAINS", "STARTSWITH", "ENDSWITH"})

_TOKEN = re.compile(
    r"""
      (?P<space>   [ \t\r\n\f]+ | --[^\n]* | /\*.*?\*/ )
    | (?P<float>   [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<integer> [0-9]+[lL]? )
    | (?P<string>  '(?:[^']|'')*' )
    | (?P<name>    [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<sign>    <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE | re.DOTALL,
)


class ExpressionRefused(SprocketError):
    """An expression outside RocketMQ's SQL92 dialect; ``position`` is the index of the first offending character."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"{reason}, at character {position + 1}")
        self.position = position


class Token(NamedTuple):
    """``kind`` is ``float``, ``integer``, ``string``, ``name``, a keyword, a sign, or ``end``."""

    kind: str
    text: str
    position: int

    @property
    def shown(self) -> str:
        """The token as an error names it."""
        return self.text if self.kind == "end" else repr(self.text)


def tokens_of(expression: str) -> list[Token]:
    """Return the words of an expression, the last of kind ``end``. Raises ExpressionRefused."""
    if len(expression) > MAX_LENGTH:
        raise ExpressionRefused(f"the expression has {len(expression)} characters, at most {MAX_LENGTH} are allowed", MAX_LENGTH)
    tokens: list[Token] = []
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None and expression[at] == "'":
            raise ExpressionRefused("the text in quotes does not end", at)
        if found is None:
            raise ExpressionRefused(f"{expression[at]!r} has no meaning here", at)
        kind, text = str(found.lastgroup), found.group()
        if kind == "name" and text.upper() in KEYWORDS:
            kind = text.upper()
        elif kind == "sign":
            kind = text
        if kind != "space":
            tokens.append(Token(kind, text, at))
            if len(tokens) > MAX_TOKENS:
                raise ExpressionRefused(f"the expression has more than {MAX_TOKENS} words", at)
        at = found.end()
    tokens.append(Token("end", "the end", at))
    return tokens
