"""Prometheus' text format, as its own parser reads what is written here."""

import pytest
from tests.scraping import Page

from sprocketmq.broker.metrics.counters import Histogram
from sprocketmq.broker.metrics.exposition import COUNTER, GAUGE, HISTOGRAM, Metric, Writer, read_labels
from sprocketmq.errors import ConfigError


def written(metric, rows, *, max_series=1000):
    writer = Writer({"cluster": "c"}, max_series)
    return Page("".join(writer.pieces(metric, rows))), writer


@pytest.mark.parametrize("topic", ["orders", 'a"b', "a\\b", "a\nb", "a\\nb", "%RETRY%cg", "äß中文", "}", "a,b=c"])
def test_any_label_value_is_read_back(topic):
    page, _ = written(Metric("m_total", COUNTER, ("topic",), "Text.", list), [((topic,), 3)])
    assert page.samples == [("m_total", {"cluster": "c", "topic": topic}, 3.0)]


def test_a_histogram_is_cumulative():
    sizes = Histogram((1, 10))
    sizes.add(1)
    sizes.add(5, 2)
    sizes.add(50)
    page, _ = written(Metric("m", HISTOGRAM, (), "Text.", list), [((), sizes)])
    assert page.values("m_bucket", "le") == {("1.0",): 1, ("10.0",): 3, ("+Inf",): 4}
    assert (page.value("m_count"), page.value("m_sum")) == (4, 61)
    assert page.families()["m"].bounds == (1, 10, float("inf"))


def test_what_is_over_the_limit_is_added_up():
    rows = [((f"t{number}",), number) for number in range(10)]
    metric = Metric("m", GAUGE, ("topic",), "Text.", list)
    page, writer = written(metric, rows, max_series=7)
    assert page.values("m", "topic") == {**{(f"t{number}",): number for number in range(7)}, ("other",): 7 + 8 + 9}
    assert writer.over == {"m"}
    list(writer.pieces(metric, rows[:7]))
    assert writer.over == set()


def test_histograms_over_the_limit_are_added_up():
    rows = [((f"t{number}",), Histogram((10,))) for number in range(3)]
    for _, histogram in rows:
        histogram.add(5)
    page, _ = written(Metric("m", HISTOGRAM, ("topic",), "Text.", list), rows, max_series=1)
    assert page.values("m_bucket", "topic", le="10.0") == {("t0",): 1, ("other",): 2}
    assert page.value("m_sum", topic="other") == 10


def test_a_metric_without_rows_has_no_text():
    assert written(Metric("m", GAUGE, (), "Text.", list), [])[0].families() == {}


def test_many_rows_come_in_pieces():
    rows = [((str(number),), number) for number in range(1000)]
    pieces = list(Writer({}, 10_000).pieces(Metric("m", GAUGE, ("n",), "Text.", list), [*rows[:500], None, *rows[500:]]))
    assert len(pieces) > 4
    assert "" in pieces
    assert max(piece.count("\n") for piece in pieces) < 300


def test_labels_of_a_setting():
    assert read_labels("") == {}
    assert read_labels("env:prod,zone: b:1") == {"env": "prod", "zone": " b:1"}


@pytest.mark.parametrize("text", ["env", "1a:b", "a-b:c", "cluster:x", "le:x", "__a:b", ":x", "env:prod,,zone"])
def test_labels_that_prometheus_would_not_take_are_refused(text):
    with pytest.raises(ConfigError, match="metrics_label has"):
        read_labels(text)
