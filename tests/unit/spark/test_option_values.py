"""Options of every format are read by the same rules, and refused by name."""

import pickle

import pytest

from sprocketmq.spark.option_values import OptionError, Values

NAMES = ("path", "count", "size", "delay", "flag", "mode", "columns", "where", "nameserver", "group", "rocketmq.client.")


def values(**given):
    return Values({name.replace("__", "."): value for name, value in given.items()}, NAMES, "rocketmq-store")


def test_names_are_taken_in_any_case_and_blanks_around_values_fall_off():
    taken = values(PATH=" /tmp ", Count=" 7")
    assert (taken.text("path"), taken.integer("count", None, 0), taken.given("COUNT")) == ("/tmp", 7, True)
    assert (taken.text("mode"), taken.text("mode", "x"), taken.integer("size", 5, 0), taken.given("mode")) == (None, "x", 5, False)


@pytest.mark.parametrize(
    ("text", "size"), [("4194304", 4194304), ("4m", 4 << 20), ("4MiB", 4 << 20), ("4 mb", 4 << 20), ("1g", 1 << 30), ("0", 0), ("8k", 8192)]
)
def test_sizes_have_units_of_1024(text, size):
    assert values(size=text).size("size", 1, 0) == size


@pytest.mark.parametrize(
    ("text", "ms"), [("1500", 1500), ("1500ms", 1500), ("30s", 30_000), ("15m", 900_000), ("2 min", 120_000), ("1h", 3_600_000)]
)
def test_times_have_units(text, ms):
    assert values(delay=text).milliseconds("delay", 1, 0) == ms


def test_words_and_columns_come_in_their_own_spelling():
    assert values(mode="UnWrap").word("mode", ("unwrap", "raw"), "raw") == "unwrap"
    assert values().word("mode", ("unwrap", "raw"), "raw") == "raw"
    assert values(columns="queueoffset, BODY").columns(("body", "queueOffset"), ("body",)) == ("queueOffset", "body")
    assert values().columns(("body", "queueOffset"), ("body",)) == ("body",)
    assert values(path=" a, b,,a ").items("path", "paths") == ("a", "b")


def test_client_settings_are_known_by_either_spelling():
    taken = values(rocketmq__client__TimeoutS="3", rocketmq__client__max_message_bytes="5")
    assert taken.client_options(("timeout_s", "max_message_bytes")) == (("max_message_bytes", "5"), ("timeout_s", "3"))
    assert taken.prefixed("rocketmq.client.") == {"timeouts": "3", "max_message_bytes": "5"}


def test_one_of_several_options_is_chosen():
    assert values(path="x").only_one_of("path", "count") == "path"
    assert values().only_one_of("path", "count") is None
    with pytest.raises(OptionError, match=r"option 'count' .* cannot be given together with 'path'"):
        values(path="x", count="1").only_one_of("path", "count")


@pytest.mark.parametrize(
    ("option", "value", "read", "says"),
    [
        ("path", " ", lambda v: v.text("path"), "it is empty"),
        ("path", " ", lambda v: v.required("path", "a directory"), "it is required: a directory"),
        ("path", ",", lambda v: v.items("path", "directories"), "it is required: directories"),
        ("count", "7x", lambda v: v.integer("count", None, 1), "'7x' is not a whole number of at least 1"),
        ("count", "1_000", lambda v: v.integer("count", None, 1), "is not a whole number"),
        ("count", "0", lambda v: v.integer("count", None, 1, what="tasks"), "'0' is not a whole number of at least 1 (tasks)"),
        ("count", "9", lambda v: v.integer("count", None, 1, 8), "'9' is not a whole number from 1 to 8"),
        ("size", "4x", lambda v: v.size("size", 1, 1), "'4x' is not a number of bytes"),
        ("size", "1.5m", lambda v: v.size("size", 1, 1), "'1.5m' is not a number of bytes"),
        ("size", "1k", lambda v: v.size("size", 1, 1, 1000), "from 1 to 1000"),
        ("delay", "soon", lambda v: v.milliseconds("delay", 1, 1), "'soon' is not a time"),
        ("flag", "maybe", lambda v: v.boolean("flag", default=True), "'maybe' is neither true nor false"),
        ("mode", "cooked", lambda v: v.word("mode", ("unwrap", "raw"), "raw"), "'cooked' is not one of unwrap, raw"),
        ("columns", "body,x", lambda v: v.columns(("body",), ("body",)), "there is no column 'x'; the columns are body"),
        ("columns", "body,Body", lambda v: v.columns(("body",), ("body",)), "'body' is named twice"),
        ("count", "9" * 5000, lambda v: v.integer("count", None, 1), f"'{'9' * 200}...' is not a whole number of at least 1"),
        ("size", "9" * 5000, lambda v: v.size("size", 1, 1), "...' is not a number of bytes"),
        ("where", "{", lambda v: v.json("where"), "is not JSON"),
        ("where", f'{{"a": {"9" * 5000}}}', lambda v: v.json("where"), "has a number that is too long"),
        ("where", "[" * 100_000, lambda v: v.json("where"), "nested too deeply"),
        ("where", '{"a": 1, "a": 2}', lambda v: v.json("where"), "'a' is named twice in the same JSON object"),
        ("where", '{"a": NaN}', lambda v: v.json("where"), "NaN is not a JSON number"),
        ("nameserver", "localhost", lambda v: v.nameserver(), "'localhost' is not an address"),
        ("nameserver", " ", lambda v: v.nameserver(), "it is required"),
        ("group", "a b", lambda v: v.group("group", "g"), "only ASCII letters"),
    ],
)
def test_what_cannot_be_is_refused_by_name(option, value, read, says):
    with pytest.raises(OptionError) as caught:
        read(values(**{option: value}))
    assert caught.value.option == option
    assert str(caught.value).startswith(f"option '{option}' of the rocketmq-store format: ")
    assert says in str(caught.value)


def test_an_unknown_name_is_refused_with_the_one_that_was_meant():
    with pytest.raises(OptionError, match=r"'Colums'.*did you mean 'columns'\? The options are path, count"):
        values(Colums="x")
    with pytest.raises(OptionError, match=r"no such option\. The options are"):
        values(frobnicate="x")


def test_what_the_client_cannot_do_is_refused_saying_so():
    with pytest.raises(
        OptionError, match=r"rocketmq\.client\.namespace.*the client cannot do that; what can be passed on is rocketmq\.client\.timeoutS"
    ):
        values(rocketmq__client__namespace="x").client_options(("timeout_s",))
    with pytest.raises(OptionError, match=r"the client has no such setting; what can be passed on is nothing"):
        values(rocketmq__client__colour="x").client_options(())


def test_a_refusal_survives_the_way_from_a_worker():
    error = pickle.loads(pickle.dumps(OptionError("path", "it is empty", "rocketmq-store")))
    assert (error.option, error.problem, error.format) == ("path", "it is empty", "rocketmq-store")


def test_values_are_text_or_what_spark_makes_text_of():
    values = Values({"Rows": 4, "wait": True, "share": 0.5}, ["rows", "wait", "share"])
    assert (values.integer("rows", None, 1), values.boolean("wait", False), values.text("share")) == (4, True, "0.5")
    for options in ({"rows": None}, {"rows": [4]}, {5: "4"}):
        with pytest.raises(OptionError, match=r"its value is text or a number|the name of an option is text"):
            Values(options, ["rows"])
