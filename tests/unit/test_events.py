"""Log lines with a name and fields: one line each, whatever the values are."""

import logging
from pathlib import Path

from sprocketmq.events import MAX_VALUE_LENGTH, event, fields_of, text_of

LOG = logging.getLogger("events")


def logged(caplog, **fields):
    caplog.clear()
    event(LOG, logging.WARNING, "happened", **fields)
    (record,) = caplog.records
    return record


def test_the_text_has_name_and_fields_and_quotes_only_what_needs_it(caplog):
    record = logged(caplog, topic="orders", peer="[::1]:4711", share=0.12345678, ok=True, none=None, path=Path("/a/b"), many=["a", "b"])
    assert record.getMessage() == "happened topic=orders peer=[::1]:4711 share=0.123457 ok=true path=/a/b many=a,b"
    assert record.event == "happened"
    assert record.fields == {"topic": "orders", "peer": "[::1]:4711", "share": 0.123457, "ok": True, "path": "/a/b", "many": "a,b"}
    assert (record.funcName, record.filename) == ("logged", "test_events.py")
    assert logged(caplog, reason='say "no"', empty="", city="東京").getMessage() == r'happened reason="say \"no\"" empty="" city=東京'


def test_no_value_begins_a_line_of_its_own_or_a_field(caplog):
    text = logged(caplog, topic="a\nb\r\x1b[2J\u202e\x00 level=ERROR", name="x=y").getMessage()
    assert text == r'happened topic="a\nb\r\x1b[2J\u202e\x00 level=ERROR" name="x=y"'
    assert text.isprintable()


def test_a_value_is_cut_and_lone_surrogates_are_written_as_escapes(caplog):
    record = logged(caplog, topic="x" * 100_000)
    assert len(record.getMessage()) < MAX_VALUE_LENGTH + 100
    assert "(99000 more characters)" in record.getMessage()
    assert logged(caplog, name="\udcff").fields == {"name": r"\udcff"}


def test_a_level_that_is_off_costs_no_text(caplog):
    class Untouchable:
        def __str__(self):
            raise AssertionError

    event(LOG, logging.DEBUG, "happened", value=Untouchable())
    assert not caplog.records


def test_the_fields_of_a_line_are_read_again():
    fields = {"store": '/my files/"a\\b"/mq', "broker": "127.0.0.1:10911", "empty": "", "sum": "a=b"}
    assert fields_of(text_of("ready", fields)) == fields
