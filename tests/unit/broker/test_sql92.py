"""SQL92 expressions: the grammar, what does not parse, and what a message's properties make of them."""

import operator
import random

import pytest

from sprocketmq.broker.filters import tokens
from sprocketmq.broker.filters.sql92 import compile_sql
from sprocketmq.broker.filters.tokens import ExpressionRefused

PAIRS = {"a": "1", "b": "text", "c": "1.5", "t": "true", "big": "3000000000", "e": "", "KEYS": "k1 k2", "$x_1": "y"}


def matches(expression, **pairs):
    return compile_sql(expression).matches(pairs or PAIRS)


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "a = 1",
            "a=1",
            "1 = a",
            "a <> 2",
            "a > 0",
            "a >= 1",
            "a < 2",
            "a <= 1",
            "0 < a",
            "a = '1'",
            "a = 1L",
            "a > -1",
            "a > +0",
            "a = 1.0",
        ),
        *(
            "c > 1.4",
            "c < 1.6",
            "c = 1.5",
            "c > 1e-3",
            "c < .5e1",
            "c < 2.",
            "a BETWEEN 1 AND 2",
            "a between 0 and 1",
            "a NOT BETWEEN 2 AND 3",
        ),
        *(
            "b = 'text'",
            "b IN ('x', 'text')",
            "b NOT IN ('x')",
            "b CONTAINS 'ex'",
            "b STARTSWITH 'te'",
            "b ENDSWITH 'xt'",
            "b NOT CONTAINS 'y'",
        ),
        *(
            "b NOT STARTSWITH 'x'",
            "b NOT ENDSWITH 'x'",
            "b IS NOT NULL",
            "none IS NULL",
            "t = TRUE",
            "b = FALSE",
            "t <> FALSE",
            "TRUE",
            "NOT FALSE",
        ),
        *("a = 1 AND b = 'text'", "a = 2 OR b = 'text'", "NOT (a = 2)", "(a = 1)", "a = 1 AND (b = 'x' OR c > 1.0)", "big > 2147483648"),
        *(
            "KEYS CONTAINS 'k2'",
            "$x_1 = 'y'",
            "a = c OR a < c",
            "'it''s' = 'it''s'",
            "a = 1 -- a comment",
            "a /* one */ = /* two \n lines */ 1",
        ),
        *(
            "1 = 1",
            "1 < 2.5",
            "2147483648 > 1",
            "a > 0 AND a > 0 AND a > 0",
            "none = 1 OR a = 1",
            "NOT (none = 1 AND a = 2)",
            "none IS NULL = TRUE",
        ),
        *("(none = 1) IS NULL", "a = 1 = TRUE", "none = none2", "'1' = 1", "NOT b", "a >\t0\r\n", "-a IS NULL", "a IN ('1')"),
    ],
)
def test_conditions_that_are_met(expression):
    assert matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        *("a = 2", "a <> 1", "a > 1", "a < 1", "c = 1", "c > 1", "b > 1", "b > 1 OR a = 1", "FALSE", "NOT TRUE"),
        *("none = 1", "none <> 1", "none > 1", "none IN ('x')", "none NOT IN ('x')", "none CONTAINS 'x'", "none NOT CONTAINS 'x'"),
        *("b CONTAINS ''", "b NOT CONTAINS ''", "a CONTAINS '2'", "NOT (none = 1)", "none = 1 AND a = 1", "none", "b", "t", "NOT none"),
        *("big > 1", "big = 1", "TRUE = t", "a = TRUE AND a = 2", "-a = -1", "NOT a = 1", "a BETWEEN 2 AND 3", "a NOT BETWEEN 0 AND 1"),
        *("b = c AND a = 2", "b > c", "e = 1", "1 = none", "none IS NOT NULL", "a IS NULL", "A = 1"),
    ],
)
def test_conditions_that_are_not_met(expression):
    assert not matches(expression)


@pytest.mark.parametrize(
    ("expression", "reason", "position"),
    [
        ("", "a value is expected, not the end", 0),
        ("  ", "a value is expected", 2),
        ("a >", "a value is expected", 3),
        ("a = NULL", "IS NULL or IS NOT NULL", 4),
        ("NULL <> a", "IS NULL or IS NOT NULL", 0),
        ("1", "a condition is expected", 0),
        ("'x'", "a condition is expected", 0),
        ("a AND 1", "a condition is expected", 6),
        ("'x' OR a", "a condition is expected", 0),
        ("NOT 1", "a condition is expected", 4),
        ("a > 'x'", "only numbers and properties", 4),
        ("a < TRUE", "only numbers and properties", 4),
        ("a < NULL", "only numbers and properties", 4),
        ("(a = 1) < 2", "only numbers and properties", 1),
        ("a BETWEEN 5 AND 1", "the first one is larger", 10),
        ("a BETWEEN NULL AND 1", "nothing is between NULL", 10),
        ("a BETWEEN 1", "AND, as in BETWEEN 1 AND 9", 11),
        ("a BETWEEN 'a' AND 'b'", "only numbers and properties", 10),
        ("1 IN ('x')", "only a property can be IN a list", 0),
        ("a IN ()", "a text in quotes is expected", 6),
        ("a IN (1)", "a text in quotes is expected", 6),
        ("a IN ('x'", ", or ) is expected", 9),
        ("a CONTAINS 1", "a text in quotes after CONTAINS", 11),
        ("TRUE = 1", "a truth value cannot be compared", 7),
        ("a LIKE 'x'", "AND, OR, a comparison or the end is expected, not 'LIKE'", 2),
        ("a != 1", "'!' has no meaning here", 2),
        ("a + 1 = 2", "AND, OR, a comparison or the end is expected, not '+'", 2),
        ("a = 0.0", "0.0 is not a number that can be written here", 4),
        ("a = 1e999", "1e999 is not a number that can be written here", 4),
        ("a = 9223372036854775808", "more than 64 bits", 4),
        ("a = -9223372036854775809", "more than 64 bits", 5),
        ("a = " + "9" * 400, "more than 64 bits", 4),
        ("a = 'x", "the text in quotes does not end", 4),
        ("(a = 1", ") is expected", 6),
        ("a = 1)", "AND, OR, a comparison or the end is expected, not ')'", 5),
        ("a IS 1", "NULL is expected", 5),
        ("a NOT 1", "AND, OR, a comparison or the end is expected, not 'NOT'", 2),
        ("a = \x00", "has no meaning here", 4),
        ("a = 1;", "';' has no meaning here", 5),
    ],
)
def test_what_is_no_expression_is_refused_with_its_place(expression, reason, position):
    with pytest.raises(ExpressionRefused) as caught:
        compile_sql(expression)
    assert reason in str(caught.value)
    assert caught.value.position == position
    assert f"at character {position + 1}" in str(caught.value)


def test_the_least_number_has_64_bits():
    assert matches("a = -9223372036854775808", a="-9223372036854775808")
    assert matches("a = 9223372036854775807", a="9223372036854775807")


@pytest.mark.parametrize("value", ["1.5", "x", "", " 1", "1 ", "0x1", "1L", "4294967297", "9" * 500, "1_0", "١"])
def test_a_value_that_is_no_32_bit_integer_ends_the_evaluation(value):
    assert not matches("a <> 7 OR b = 'x'", a=value, b="x")


@pytest.mark.parametrize(
    ("value", "is_number"), [(" 1.5 ", True), ("1e0", True), ("2d", True), ("NaN", True), ("Infinity", True), ("inf", False), ("", False)]
)
def test_a_value_is_a_double_as_java_reads_it(value, is_number):
    assert matches("a > 0.5", a=value) == is_number


def test_nan_is_greater_than_every_number_and_equal_to_itself():
    assert matches("a > b", a="NaN", b="Infinity")
    assert matches("a >= b AND a <= b", a="NaN", b="NaN")
    assert not matches("a < 1.5", a="NaN")


# --- bounds ---


def test_expressions_are_bounded():
    with pytest.raises(ExpressionRefused, match="4097 characters, at most 4096"):
        compile_sql("a" * 4097)
    with pytest.raises(ExpressionRefused, match="65536 characters"):
        compile_sql("a = 1 OR " * 7281 + "a = 1  ")
    with pytest.raises(ExpressionRefused, match="more than 400 words"):
        compile_sql("a=1 OR " * 120 + "a=1")
    for open_, close in (("(", ")"), ("NOT ", ""), ("- ", "")):
        with pytest.raises(ExpressionRefused, match="nested more than 50 deep"):
            compile_sql(open_ * 60 + "a" + close * 60)
    assert matches("(" * 40 + "a = 1" + ")" * 40)


@pytest.mark.parametrize("text", ["'" * 4095, "(" * 4000, "/*" * 2000, "NOT " * 1000, "--" * 2000, "1" * 4000, "a AND " * 600, "a=" * 2000])
def test_what_is_long_and_strange_is_refused_at_once(text):
    with pytest.raises(ExpressionRefused):
        compile_sql(text)


def test_any_bytes_give_a_condition_or_a_refusal():
    rng = random.Random(1)
    words = [
        "a",
        "b",
        "1",
        "'x'",
        "AND",
        "OR",
        "NOT",
        "(",
        ")",
        "=",
        "<>",
        "<",
        "IN",
        "IS",
        "NULL",
        "BETWEEN",
        ",",
        "TRUE",
        "-",
        "CONTAINS",
        "\x00",
        "'",
        "1.5",
    ]
    compiled = 0
    for _ in range(5_000):
        text = " ".join(rng.choice(words) for _ in range(rng.randrange(1, 9)))
        try:
            compile_sql(text).matches(PAIRS)
        except ExpressionRefused:
            continue
        compiled += 1
    assert compiled > 50


# --- against a plain evaluation ---


def test_conditions_equal_a_plain_evaluation_of_three_values():
    """Random conditions over properties that are integers or missing, beside an evaluation of the same tree."""
    rng = random.Random(7)
    signs = {"=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}

    def grow(depth):
        kind = rng.randrange(5 if depth else 3)
        name = rng.choice("abc")
        if kind == 0:
            sign, number = rng.choice([*signs]), rng.randrange(4)
            return f"{name} {sign} {number}", lambda row: None if row[name] is None else signs[sign](row[name], number)
        if kind == 1:
            negated = rng.random() < 0.5
            return f"{name} IS {'NOT ' * negated}NULL", lambda row: (row[name] is None) != negated
        if kind == 2:
            low, high = sorted((rng.randrange(4), rng.randrange(4)))
            return f"{name} BETWEEN {low} AND {high}", lambda row: None if row[name] is None else low <= row[name] <= high
        left, plain_left = grow(depth - 1)
        if kind == 3:
            return f"NOT ({left})", lambda row: None if plain_left(row) is None else not plain_left(row)
        right, plain_right = grow(depth - 1)
        word = rng.choice(["AND", "OR"])

        def joined(row):
            values = {plain_left(row), plain_right(row)}
            decisive = word == "OR"
            return decisive if decisive in values else None if None in values else not decisive

        return f"({left}) {word} ({right})", joined

    for _ in range(2_000):
        text, plain = grow(4)
        row = {name: rng.choice([None, 0, 1, 2, 3]) for name in "abc"}
        pairs = {name: str(value) for name, value in row.items() if value is not None}
        assert compile_sql(text).matches(pairs) == (plain(row) is True), (text, row)


def test_compiled_expressions_are_kept():
    assert compile_sql("a = 77") is compile_sql("a = 77")
    assert tokens.MAX_TOKENS >= compile_sql("a = 77").words == 4
