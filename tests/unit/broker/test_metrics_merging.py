"""One page of metrics from the pages of several processes."""

from tests.scraping import Page

from sprocketmq.broker.metrics.exposition import COUNTER, GAUGE, Metric, Writer
from sprocketmq.broker.scraping.merging import merge, samples_of

IN = Metric("in_total", COUNTER, ("topic",), "Messages in.", lambda: ())
HELD = Metric("held", GAUGE, (), "Pulls held.", lambda: ())


def page(process, *metrics):
    writer = Writer({"process": process}, 10)
    return (
        "".join(piece for metric, *rows in metrics for piece in writer.pieces(metric, rows)) + "# TYPE target_info gauge\ntarget_info 1\n"
    )


def merged(*pages):
    return "".join(merge(map(samples_of, pages)))


def test_samples_of_a_metric_stand_together_below_one_header():
    one = page("a", (IN, (("x",), 1), (("y",), 2)), (HELD, ((), 3)))
    other = page("b", (IN, (("x",), 4)), (HELD, ((), 5)))
    lines = merged(one, other).splitlines()
    assert lines == [
        "# HELP in_total Messages in.",
        "# TYPE in_total counter",
        'in_total{process="a",topic="x"} 1',
        'in_total{process="a",topic="y"} 2',
        'in_total{process="b",topic="x"} 4',
        "# HELP held Pulls held.",
        "# TYPE held gauge",
        'held{process="a"} 3',
        'held{process="b"} 5',
        "# TYPE target_info gauge",
        "target_info 1",
    ]


def test_a_metric_that_only_one_page_has_is_kept():
    found = Page(merged(page("a", (HELD, ((), 3))), page("b", (IN, (("x",), 4)))))
    assert found.value("held", process="a") == 3
    assert found.value("in_total", process="b") == 4


def test_one_page_stays_as_it_is():
    text = page("a", (IN, (("# HELP",), 1), (("line\n# HELP feed",), 2)), (HELD, ((), 3)))
    assert merged(text) == text


def test_no_pages_are_an_empty_page():
    assert merged() == ""
    assert merged("") == ""
