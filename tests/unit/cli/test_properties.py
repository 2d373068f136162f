"""The format of ``java.util.Properties``; expected values are what Java 17 reads, except for trailing blanks, which Java keeps."""

import pytest

from sprocketmq.cli.properties import parse_properties
from sprocketmq.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("a=b", "a", "b"),
        ("a = b", "a", "b"),
        ("\t a:b", "a", "b"),
        ("a b", "a", "b"),
        ("a  =  b c  ", "a", "b c"),
        ("a", "a", ""),
        ("a=", "a", ""),
        ("a==b", "a", "=b"),
        ("a : = b", "a", "= b"),
        ("=b", "", "b"),
        (r"a\ b=c", "a b", "c"),
        (r"a\=b\:c=d", "a=b:c", "d"),
        (r"path=C:\\store\\log", "path", r"C:\store\log"),
        (r"path=C:\store", "path", "C:store"),
        (r"a=\u5317\tb\nc", "a", "北\tb\nc"),
        ("a=1;\\\n   2;\\\r\n\t3", "a", "1;2;3"),
        ("a=b\\", "a", "b"),
        ("a=b\\\\\nc=d", "a", "b\\"),
        ("a=b # no comment", "a", "b # no comment"),
    ],
)
def test_a_line_is_read_as_java_reads_it(text, key, value):
    assert parse_properties(text)[0] == (1, key, value)


def test_comments_and_empty_lines_are_left_out_and_lines_are_numbered():
    text = "# one\n  ! two\n\na=1\r\nb=2,\\\n  # no comment\r# three\nc=3\n"
    assert parse_properties(text) == [(4, "a", "1"), (5, "b", "2,# no comment"), (8, "c", "3")]


def test_an_escape_that_java_refuses_is_refused():
    with pytest.raises(ConfigError, match=r"line 2: \\u needs four hexadecimal digits"):
        parse_properties("a=1\nb=C:\\users")
