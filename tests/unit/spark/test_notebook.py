"""A streaming query's progress reports become figures, a live picture and a plot."""

import io
import json
import sys
import types
from pathlib import Path

import pytest

from sprocketmq.clock import ManualClock
from sprocketmq.errors import ConfigError, FatalError
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark import notebook
from sprocketmq.spark.notebook import QueryHistory, batch_figures, watch
from sprocketmq.spark.source.offsets import encode_offsets
from sprocketmq.spark.version_checks import MissingPackage

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(3)]


@pytest.fixture(autouse=True)
def spark_reports_latest_offsets(monkeypatch):
    monkeypatch.setattr(notebook, "spark_version", lambda: (4, 2, 0))


def report(batch, rows, end, latest, *, second=0):
    """Make a progress report as Spark does: offsets are JSON in JSON."""
    return {
        "id": "0", "runId": "1", "name": "q",
        "timestamp": f"2026-11-21T12:00:{batch + second:02d}.500Z",
        "batchId": batch,
        "durationMs": {"triggerExecution": 2000},
        "sources": [
            {
                "description": "rocketmq",
                "numInputRows": rows,
                "processedRowsPerSecond": rows / 2,
                "startOffset": "null",
                "endOffset": json.dumps(encode_offsets(dict(zip(QUEUES, end, strict=True)))),
                "latestOffset": json.dumps(encode_offsets(dict(zip(QUEUES, latest, strict=True)))),
            }
        ],
    }  # fmt: skip


class Query:
    """A streaming query that has made one more report at each look, and ends after the last."""

    name = "orders"

    def __init__(self, *reports, failure=None):
        self._left = list(reports)
        self.recentProgress = []
        self._failure = failure

    def awaitTermination(self, timeout=None):
        if self._left:
            self.recentProgress.append(self._left.pop(0))
        elif self._failure is not None:
            raise self._failure
        return not self._left and self._failure is None


def test_a_report_tells_rows_and_how_far_each_queue_is_behind():
    figures = batch_figures(report(4, 600, (100, 200, 300), (100, 250, 1300)))
    assert (figures.batch_id, figures.rows, figures.rows_per_s, figures.duration_ms) == (4, 600, 300.0, 2000)
    assert figures.lag == {QUEUES[0]: 0, QUEUES[1]: 50, QUEUES[2]: 1000}


def test_a_source_of_another_kind_has_no_lag():
    other = report(1, 5, (0, 0, 0), (0, 0, 0))
    other["sources"] = [
        {"endOffset": "17", "latestOffset": "null"},
        {"endOffset": '{"logOffset": 3}', "latestOffset": '{"logOffset": 4}'},
        {"endOffset": None, "latestOffset": "not json"},
    ]
    assert batch_figures(other).lag == {}


def test_a_report_that_comes_again_counts_once():
    history = QueryHistory("orders")
    first = report(1, 600, (1, 1, 1), (1, 1, 1))
    assert history.add(first)
    assert not history.add(first)
    idle = report(1, 0, (1, 1, 1), (2, 1, 1), second=10)
    assert history.add(idle), "Spark reports an idle query with the number of its last batch"
    assert (history.rows, history.rows_per_s, sum(history.lag.values())) == (600, 300.0, 1)


def test_the_queues_that_are_behind_most_come_first():
    history = QueryHistory("orders")
    queues = [MessageQueue("orders", "broker-a", number) for number in range(20)]
    progress = report(1, 1, (0, 0, 0), (0, 0, 0))
    progress["sources"][0] |= {
        "endOffset": json.dumps(encode_offsets(dict.fromkeys(queues, 0))),
        "latestOffset": json.dumps(encode_offsets({queue: 1000 * queue.queue_id for queue in queues})),
    }
    history.add(progress)
    table = history.table()
    assert table[0] == ("orders/broker-a/19", "19,000")
    assert table[-1] == ("8 more queues", "28,000")
    assert len(table) == notebook.SHOWN_QUEUES + 1


def test_watching_takes_in_every_report_until_the_query_ends():
    history = watch(Query(report(0, 10, (10, 0, 0), (10, 10, 0)), report(1, 10, (10, 10, 0), (10, 10, 0))))
    assert (history.name, history.rows, len(history.batches)) == ("orders", 20, 2)


def test_watching_stops_after_some_time_or_when_interrupted(monkeypatch):
    clock = ManualClock()
    monkeypatch.setattr(notebook, "time", clock)

    class Endless(Query):
        def awaitTermination(self, timeout=None):
            clock.advance(timeout)
            return super().awaitTermination(timeout)

    endless = Endless(*[report(number, 1, (0, 0, 0), (0, 0, 0)) for number in range(50)])
    assert len(watch(endless, seconds=notebook.POLL_S * 2.5).batches) == 3
    assert watch(Query(report(0, 7, (0, 0, 0), (0, 0, 0)), failure=KeyboardInterrupt())).rows == 7
    with pytest.raises(ConfigError, match="seconds is 0"):
        watch(endless, seconds=0)


def test_a_query_that_fails_says_why_in_one_sentence():
    class StreamingQueryException(Exception):
        __module__ = "pyspark.errors.exceptions.captured"

    trace = "Traceback (most recent call last):\n  File x\nsprocketmq.errors.TopicNotFound: topic 'orders' has no route\n"
    with pytest.raises(FatalError, match=r"^topic 'orders' has no route$"):
        watch(Query(failure=StreamingQueryException(trace)))
    with pytest.raises(ZeroDivisionError):
        watch(Query(failure=ZeroDivisionError()))


def test_a_terminal_shows_bar_speed_and_lag(monkeypatch):
    from rich import console

    out = io.StringIO()
    real = console.Console
    monkeypatch.setattr(console, "Console", lambda **_: real(file=out, force_terminal=True, width=100))
    watch(Query(report(0, 600, (100, 200, 300), (100, 250, 1300))))
    text = out.getvalue()
    assert "600 rows, 300 rows/s, 1,050 behind" in text
    assert "orders/broker-a/2" in text
    assert "1,000" in text


def test_a_notebook_shows_it_below_the_cell(monkeypatch):
    shown = []
    handle = types.SimpleNamespace(update=shown.append)
    display = types.SimpleNamespace(HTML=str, display=lambda *_, **__: handle)
    monkeypatch.setattr(notebook, "notebook_shell", lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    query = Query(report(0, 600, (100, 200, 300), (100, 250, 1300)))
    query.name = "<orders>"
    watch(query)
    assert "&lt;orders&gt;: batch 0, 600 rows" in shown[-1]
    assert "<progress max='1650' value='600'" in shown[-1]
    assert "<td>orders/broker-a/1</td>" in shown[-1]


def test_the_plot_has_speed_and_lag(tmp_path):
    history = watch(Query(*[report(number, 100 * number, (number, 0, 0), (10, 10, 10)) for number in range(5)]))
    figure = history.plot()
    speed, behind = figure.axes
    assert list(speed.lines[0].get_ydata()) == [0, 50, 100, 150, 200]
    assert [line.get_label() for line in behind.lines] == ["all queues", *map(notebook.queue_label, QUEUES)]
    figure.savefig(tmp_path / "query.png")
    assert Path(tmp_path / "query.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in history._repr_html_()


def test_a_query_without_batches_has_a_plot_too():
    assert "no batch" in QueryHistory("orders").summary()
    assert len(QueryHistory("orders").plot().axes) == 1


def test_no_lag_is_shown_where_spark_reports_none(monkeypatch):
    monkeypatch.setattr(notebook, "spark_version", lambda: (4, 1, 1))
    history = watch(Query(report(0, 600, (100, 200, 300), (100, 200, 300))))
    assert history.lag == {}
    assert history.summary() == "orders: batch 0, 600 rows, 300 rows/s"
    assert len(history.plot().axes) == 1
    assert "<progress" not in history._repr_html_()


def test_without_matplotlib_the_plot_says_what_to_install(monkeypatch):
    monkeypatch.setattr("sprocketmq.spark.version_checks.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"the plot needs the package matplotlib.*pip install 'sprocketmq\[notebook\]'"):
        QueryHistory("orders").plot()
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)
    assert "base64" not in QueryHistory("orders")._repr_html_()
