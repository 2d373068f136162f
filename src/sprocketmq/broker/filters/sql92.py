"""SQL92 expressions as RocketMQ's consumers write them, parsed into a function of a message's properties.

::

    condition   or                        and ("OR" and)*
    and         equal ("AND" equal)*
    equal       compared (("=" | "<>") compared | "IS" ["NOT"] "NULL")*
    compared    single ((">" | ">=" | "<" | "<=") single | ["NOT"] "BETWEEN" single "AND" single
                        | ["NOT"] "IN" "(" string ("," string)* ")" | ["NOT"] ("CONTAINS" | "STARTSWITH" | "ENDSWITH") string)*
    single      ("+" | "-" | "NOT") single | literal | name | "(" or ")"

``NOT a = 1`` is therefore ``(NOT a) = 1``, as at Apache's broker. There is no LIKE, no ``!=`` and no arithmetic.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from sprocketmq.broker.filters.tokens import ExpressionRefused, Token, tokens_of
from sprocketmq.broker.filters.values import (
    ORDERINGS,
    NoMatch,
    Part,
    Properties,
    Value,
    conjunction,
    disjunction,
    equality,
    is_null,
    membership,
    minus,
    negation,
    ordering,
    search,
    truth,
)

MAX_DEPTH = 50
# Compiled expressions that are kept: a group's members bring the same one with each pull.
_KEPT = 256

_TWO_TO_63 = 1 << 63
_SEARCHES = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_NO_CONSTANT: Final = object()


class Condition:
    """A compiled expression; ``words`` is how many it has, which its evaluation is paid by."""

    __slots__ = ("_part", "text", "words")

    def __init__(self, text: str, part: Part, words: int) -> None:
        self.text = text
        self.words = words
        self._part = part

    def matches(self, pairs: Properties) -> bool:
        """Return whether a message with these properties passes: only if the expression is true, not if it is null."""
        try:
            return self._part(pairs) is True
        except NoMatch:
            return False


@lru_cache(_KEPT)
def compile_sql(expression: str) -> Condition:
    """Return a compiled expression. Raises ExpressionRefused with what is wrong, and where."""
    tokens = tokens_of(expression)
    return Condition(expression, _Parser(tokens).whole(), len(tokens))


class _Node:
    """A part of an expression. ``condition`` says whether it is true, false or null; a ``name`` may stand for one."""

    __slots__ = ("at", "condition", "constant", "evaluate", "name")

    def __init__(self, evaluate: Part, at: Token, *, condition: bool = False, constant: object = _NO_CONSTANT, name: str = "") -> None:
        self.evaluate = evaluate
        self.at = at
        self.condition = condition
        self.constant = constant
        self.name = name

    @property
    def is_constant(self) -> bool:
        return self.constant is not _NO_CONSTANT

    @property
    def number(self) -> int | float | None:
        """The constant, if it is a number."""
        return self.constant if isinstance(self.constant, int | float) and not isinstance(self.constant, bool) else None


def _constant(value: Value, at: Token) -> _Node:
    return _Node(lambda _: value, at, condition=isinstance(value, bool), constant=value)


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    # --- words ---

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _takes(self, *kinds: str) -> Token | None:
        token = self._token
        if token.kind not in kinds:
            return None
        self._next += 1
        return token

    def _must(self, kind: str, what: str) -> Token:
        token = self._takes(kind)
        if token is None:
            raise ExpressionRefused(f"{what} is expected, not {self._token.shown}", self._token.position)
        return token

    # --- the grammar ---

    def whole(self) -> Part:
        node = self._or()
        self._must("end", "AND, OR, a comparison or the end")
        return self._condition(node)

    @staticmethod
    def _condition(node: _Node) -> Part:
        if node.name:
            return truth(node.evaluate)
        if not node.condition:
            raise ExpressionRefused("a condition is expected, which is true or false", node.at.position)
        return node.evaluate

    def _or(self) -> _Node:
        return self._joined("OR", self._and, disjunction)

    def _and(self) -> _Node:
        return self._joined("AND", self._equal, conjunction)

    def _joined(self, word: str, operand: Callable[[], _Node], join: Callable[[list[Part]], Part]) -> _Node:
        first = operand()
        if self._token.kind != word:
            return first
        parts = [self._condition(first)]
        while self._takes(word):
            parts.append(self._condition(operand()))
        return _Node(join(parts), first.at, condition=True)

    def _equal(self) -> _Node:
        left = self._compared()
        for _ in range(len(self._tokens)):
            if sign := self._takes("=", "<>"):
                right = self._compared()
                left = self._equality(left, sign, right)
            elif self._takes("IS"):
                negated = self._takes("NOT") is not None
                self._must("NULL", "NULL")
                null = is_null(left.evaluate)
                left = _Node(negation(null) if negated else null, left.at, condition=True)
            else:
                break
        return left

    @staticmethod
    def _equality(left: _Node, sign: Token, right: _Node) -> _Node:
        for side in (left, right):
            if side.constant is None:
                raise ExpressionRefused("nothing is equal to NULL: write IS NULL or IS NOT NULL", side.at.position)
        if left.is_constant and right.is_constant and left.condition and not right.condition:
            raise ExpressionRefused("a truth value cannot be compared with this", right.at.position)
        equal = equality(left.evaluate, right.evaluate)
        return _Node(equal if sign.kind == "=" else negation(equal), left.at, condition=True)

    def _compared(self) -> _Node:
        left = self._single()
        for _ in range(len(self._tokens)):
            if sign := self._takes(*ORDERINGS):
                left = self._ordering(left, sign.kind, self._single())
                continue
            negated = self._token.kind == "NOT"
            word = self._tokens[self._next + 1] if negated else self._token
            if word.kind not in ("BETWEEN", "IN", *_SEARCHES):
                break
            self._next += 1 + negated
            if word.kind == "BETWEEN":
                left = self._between(left, negated=negated)
            elif word.kind == "IN":
                left = self._in(left, negated=negated)
            else:
                pattern = _text(self._must("string", f"a text in quotes after {word.kind}"))
                left = _Node(search(word.kind, left.evaluate, pattern, negated=negated), left.at, condition=True)
        return left

    @staticmethod
    def _ordering(left: _Node, sign: str, right: _Node) -> _Node:
        for side in (left, right):
            if side.condition or (side.is_constant and side.number is None):
                raise ExpressionRefused("only numbers and properties are less or greater than others", side.at.position)
        return _Node(ordering(sign, left.evaluate, right.evaluate), left.at, condition=True)

    def _between(self, value: _Node, *, negated: bool) -> _Node:
        low = self._single()
        self._must("AND", "AND, as in BETWEEN 1 AND 9,")
        high = self._single()
        for side in (low, high):
            if side.constant is None:
                raise ExpressionRefused("nothing is between NULL and something", side.at.position)
        if low.number is not None and high.number is not None and low.number > high.number:
            raise ExpressionRefused("nothing is between these numbers, the first one is larger", low.at.position)
        if negated:
            sides = [self._ordering(value, "<", low).evaluate, self._ordering(value, ">", high).evaluate]
            return _Node(disjunction(sides), value.at, condition=True)
        sides = [self._ordering(value, ">=", low).evaluate, self._ordering(value, "<=", high).evaluate]
        return _Node(conjunction(sides), value.at, condition=True)

    def _in(self, value: _Node, *, negated: bool) -> _Node:
        if not value.name:
            raise ExpressionRefused("only a property can be IN a list", value.at.position)
        self._must("(", "( after IN")
        texts = [_text(self._must("string", "a text in quotes"))]
        while self._takes(","):
            texts.append(_text(self._must("string", "a text in quotes")))
        self._must(")", ", or )")
        return _Node(membership(value.name, frozenset(texts), negated=negated), value.at, condition=True)

    def _single(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionRefused(f"the expression is nested more than {MAX_DEPTH} deep", self._token.position)
        try:
            return self._single_below()
        finally:
            self._depth -= 1

    def _single_below(self) -> _Node:
        token = self._token
        self._next += 1
        match token.kind:
            case "+":
                return self._single()
            case "-":
                return self._negative(token)
            case "NOT":
                return _Node(negation(self._condition(self._single())), token, condition=True)
            case "(":
                inner = self._or()
                self._must(")", ")")
                return inner
            case "name":
                name = token.text
                return _Node(lambda pairs: pairs.get(name), token, name=name)
            case "string":
                return _constant(_text(token), token)
            case "integer":
                return _constant(_integer(token, sign=1), token)
            case "float":
                return _constant(_float(token), token)
            case "TRUE" | "FALSE":
                return _constant(token.kind == "TRUE", token)
            case "NULL":
                return _constant(None, token)
        raise ExpressionRefused(f"a value is expected, not {token.shown}", token.position)

    def _negative(self, sign: Token) -> _Node:
        if self._token.kind == "integer":
            token = self._token
            self._next += 1
            return _constant(-_integer(token, sign=-1), sign)
        operand = self._single()
        if operand.number is not None:
            return _constant(-operand.number, sign)
        return _Node(minus(operand.evaluate), sign)


def _text(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")


def _integer(token: Token, *, sign: int) -> int:
    number = int(token.text.rstrip("lL")) if len(token.text) <= 20 else _TWO_TO_63 + 1
    if number >= _TWO_TO_63 + (sign < 0):
        raise ExpressionRefused("the number has more than 64 bits", token.position)
    return number


def _float(token: Token) -> float:
    number = float(token.text)
    if not 0.0 < number < float("inf"):
        raise ExpressionRefused(f"{token.text} is not a number that can be written here: use 0, or one that a double holds", token.position)
    return number
