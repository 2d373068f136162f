"""Settings as text, and the allow-list that changes are read against."""

import pytest

from sprocketmq.protocol.settings import (
    MAX_BODY_BYTES,
    ChangeRefused,
    OneOf,
    Switch,
    Whole,
    decode_settings,
    encode_settings,
    read_changes,
)

ALLOWED = {"on": Switch(), "size": Whole(1, 100), "perm": OneOf((2, 4, 6))}


def changes(text):
    return read_changes(text.encode(), ALLOWED, server="broker", page="the page")


def test_settings_survive_as_text():
    assert encode_settings({"a": True, "b": 7, "c": "x=y"}) == b"a=true\nb=7\nc=x=y\n"
    assert decode_settings(b"#comment\n a = true \r\nb=7\n\nnot a setting\nc=x=y") == {"a": "true", "b": "7", "c": "x=y"}


def test_a_line_break_in_a_value_makes_no_other_setting():
    assert decode_settings(encode_settings({"a": "1\nb=2\rc=3"})) == {"a": "1 b=2 c=3"}


def test_values_are_read_by_their_kind():
    assert changes("on=TRUE\nsize= 100\n\n#size=0\nperm=4\n") == {"on": True, "size": 100, "perm": 4}
    assert changes("") == {}


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("on=yes", 29, "on must be true or false, not 'yes'; nothing was changed"),
        ("size=101", 29, "size must be a whole number from 1 to 100, not '101'; nothing was changed"),
        ("size=-1", 29, "size must be a whole number from 1 to 100, not '-1'; nothing was changed"),
        ("size=1e2", 29, "size must be a whole number from 1 to 100, not '1e2'; nothing was changed"),
        ("size=" + "9" * 5000, 29, f"size must be a whole number from 1 to 100, not '{'9' * 60}...'; nothing was changed"),
        ("perm=3", 29, "perm must be one of 2, 4, 6, not '3'; nothing was changed"),
        ("on", 29, "write key=value, not 'on'; nothing was changed"),
        ("on=true\non=false", 29, "on is given twice; nothing was changed"),
        ("on=true\n" * 10_000, 29, f"the settings have 80000 bytes, the limit is {MAX_BODY_BYTES}"),
        (
            "on=true\nrocketmqHome=/tmp",
            16,
            (
                "'rocketmqHome' cannot be changed while the broker runs; nothing was changed. Requests may change on, perm, size."
                " Other settings are given when it starts: the page"
            ),
        ),
    ],
)
def test_what_cannot_be_changed_is_refused_by_name(text, code, remark):
    with pytest.raises(ChangeRefused) as refused:
        changes(text)
    assert (refused.value.code, refused.value.remark) == (code, remark)
