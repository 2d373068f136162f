"""Names are checked before they reach a path or the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import ConfigError, InvalidName
from sprocketmq.protocol.names import SYSTEM_GROUPS, Namespace, check_group, check_send_topic, check_tag, check_topic, is_system_topic

ALLOWED = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%|_-"


@given(st.text(ALLOWED, min_size=1, max_size=120))
def test_allowed_characters_make_topic_and_group_names(name):
    assert check_topic(name) == name
    assert check_group(name) == name


@given(st.text(ALLOWED, max_size=20), st.characters(exclude_categories=["Cs"], exclude_characters=ALLOWED), st.text(ALLOWED, max_size=20))
def test_any_other_character_is_refused(before, bad, after):
    for check in (check_topic, check_group):
        with pytest.raises(InvalidName):
            check(before + bad + after)


@pytest.mark.parametrize("name", ["", " ", "../etc/passwd", "a/b", "a\\b", "a\0b", "a.b", "topic\n", "é", None, 5, b"bytes"])
def test_names_that_could_leave_a_directory_or_a_line_are_refused(name):
    for check, kind in ((check_topic, "topic"), (check_group, "group")):
        with pytest.raises(InvalidName) as caught:
            check(name)
        assert caught.value.kind == kind
        assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize(("check", "limit"), [(check_topic, 127), (check_group, 120)])
def test_names_have_a_length_limit(check, limit):
    check("x" * limit)
    with pytest.raises(InvalidName, match=str(limit)):
        check("x" * (limit + 1))


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_retry_and_dead_letter_topics_may_be_longer(prefix):
    check_topic(prefix + "x" * (255 - len(prefix)))
    with pytest.raises(InvalidName, match="255"):
        check_topic(prefix + "x" * (256 - len(prefix)))


def test_internal_topics_take_no_messages():
    assert check_send_topic("BenchmarkTest") == "BenchmarkTest"
    assert check_send_topic("RMQ_SYS_TRACE_TOPIC") == "RMQ_SYS_TRACE_TOPIC"  # clients send their traces there
    for name in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC", "rmq_sys_wheel_timer"):
        assert check_topic(name) == name
        with pytest.raises(InvalidName, match="system topic"):
            check_send_topic(name)
    with pytest.raises(InvalidName, match="the template"):
        check_send_topic("TBW102")


def test_system_topics_are_known_by_name_and_prefix():
    assert is_system_topic("TBW102")
    assert is_system_topic("rmq_sys_wheel_timer")
    assert not is_system_topic("orders")
    assert not is_system_topic("%RETRY%g")


@pytest.mark.parametrize("tag", ["a", "TagA", "été", "a b", "a|b", "x" * 500])
def test_a_tag_is_any_word_a_subscription_can_name(tag):
    assert check_tag(tag) == tag


@pytest.mark.parametrize("tag", ["", " ", " a", "a ", "*", "a||b", "||", "a && b", "a&&b", "a\x01b", "a\x02", None, 5])
def test_tags_no_subscription_could_match_are_refused(tag):
    with pytest.raises(InvalidName):
        check_tag(tag)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("orders", "shop%orders"),
        ("%RETRY%billing", "%RETRY%shop%billing"),
        ("%DLQ%billing", "%DLQ%shop%billing"),
        ("shop%orders", "shop%orders"),
        ("%DLQ%shop%billing", "%DLQ%shop%billing"),
        ("shopping", "shop%shopping"),
        ("market%orders", "shop%market%orders"),
    ],
)
def test_a_namespace_is_put_before_a_name_once_and_taken_away_again(name, full):
    shop = Namespace("shop")
    assert shop(name) == full
    assert shop(shop(name)) == full
    assert shop.remove(full) == name.replace("shop%", "")
    assert Namespace("market").remove(full) == full


@pytest.mark.parametrize("name", ["TBW102", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_wheel_timer", *SYSTEM_GROUPS])
def test_names_of_the_system_have_no_namespace(name):
    assert Namespace("shop")(name) == name


def test_an_empty_namespace_changes_no_name():
    for name in ("orders", "%DLQ%billing", "shop%orders"):
        assert Namespace("")(name) == Namespace("").remove(name) == name


@pytest.mark.parametrize("name", ["shop%", "a%b", " ", "a b", "é", "a/b", None, 5])
def test_a_namespace_that_no_name_can_begin_with_is_refused(name):
    with pytest.raises(InvalidName, match="namespace"):
        Namespace(name)


@pytest.mark.parametrize("name", ["", "a b", None, b"orders"])
def test_a_namespace_refuses_what_is_no_name(name):
    with pytest.raises(InvalidName, match="topic"):
        Namespace("shop")(name)
