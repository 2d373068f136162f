"""The demo from its command line, with few flights: it passes when nothing is lost, and fails by name when one flight is."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sprocketmq.cli import demo as command
from sprocketmq.demo import pipeline, run
from sprocketmq.demo.outcome import Outcome
from sprocketmq.demo.verify import Check

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

LIMIT = 1200


@pytest.fixture
def shared_session(spark, monkeypatch):
    """Use the session of the tests, which is warm, and few batches."""
    monkeypatch.setattr(run, "_start_spark", lambda settings, output: spark)
    monkeypatch.setattr(run, "_stop_spark", lambda session: None)
    monkeypatch.setattr(run, "_warm_up", lambda *_: None)
    monkeypatch.setattr(run, "MIN_BATCHES", 2)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")  # as in the demo's own session
    yield
    spark.conf.set("spark.sql.session.timeZone", zone)


def test_the_demo_passes_its_own_checks_and_leaves_a_table_a_plot_and_a_report(shared_session, tmp_path, capsys):
    output = tmp_path / "out"
    code = command.run(["--output", str(output), "--limit", str(LIMIT), "--keep", "--json"])
    printed = json.loads(capsys.readouterr().out)
    kept = printed.pop("cluster")
    try:  # also when checks failed: the cluster is there then, too
        assert code == 0
        assert printed == json.loads((output / "report.json").read_text())
        assert printed["passed"]
        assert len(printed["checks"]) == 9
        assert printed["flights"] == printed["produce"]["messages"] == printed["table"]["rows"] == LIMIT
        assert 0 < printed["produce"]["batches"] < LIMIT / 2
        assert printed["table"]["rows_when_sent"] <= printed["table"]["taken_when_sent"] <= LIMIT
        assert LIMIT / 2 <= printed["restart"]["rows_when_stopped"] < LIMIT, "the query was stopped half way"
        assert printed["days"]["closed"] == sum(1 for _ in pq.read_table(output / "days", partitioning=None)["day"]) == 6
        assert 0 < printed["days"]["batches_when_stopped"] < printed["days"]["batches"]
        assert (output / "delays.png").read_bytes().startswith(b"\x89PNG")
        delays = pq.read_table(output / "delays.parquet")
        assert sum(delays["flights"].to_pylist()) == LIMIT
        said = subprocess.run(
            [sys.executable, "-m", "sprocketmq", "topic", "status", "flights", "--namesrv", kept["namesrv"], "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.count("broker-a") == run.QUEUES, "the cluster goes on and has the flights"
    finally:
        process = run._left_running.pop()
        assert process.pid == kept["pid"]
        process.terminate()
        assert process.wait(120) == 0


@pytest.mark.long
def test_a_flight_the_query_loses_makes_the_demo_fail_and_is_named(shared_session, tmp_path, monkeypatch, capsys):
    write = pipeline.FlightQuery._write
    monkeypatch.setattr(pipeline.FlightQuery, "_write", lambda self, batch, number: write(self, batch.where("seq != 777"), number))
    assert command.run(["--output", str(tmp_path / "out"), "--limit", str(LIMIT), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    failed = {check["name"]: check["detail"] for check in report["checks"] if not check["passed"]}
    assert set(failed) == {"rows in the table == messages acknowledged", "statistics == those computed from the source data"}
    assert "1 missing: " in failed["rows in the table == messages acknowledged"]
    assert "(number 777, queue " in failed["rows in the table == messages acknowledged"]


def test_a_failed_check_is_shown_and_is_the_exit_code(monkeypatch, tmp_path, capsys):
    import pyarrow as pa

    def outcome(settings, console):
        report = {
            "produce": {"messages": 2, "batches": 1, "seconds": 1.0, "messages_per_s": 2.0},
            "table": {"rows": 1, "seconds": 1.0, "rows_per_s": 1.0, "batches": 1, "taken_when_sent": 1, "rows_when_sent": 0},
            "restart": {"rows_when_stopped": 1, "repeated_batches": [3]},
            "days": {"closed": 1, "seconds": 1.0, "batches": 2, "batches_when_stopped": 1, "repeated_batches": [1]},
            "spark_start_s": 1.0,
            "warm_up_s": 1.0,
            "warm_up_flights": 1,
            "elapsed_s": 3.0,
            "output": str(settings.output),
        }
        return Outcome([Check("rows", False, "1 missing: UA1 of 2013-01-01")], report, pa.table({}))

    monkeypatch.setattr(run, "run_demo", outcome)
    assert command.run(["--output", str(tmp_path)]) == 1
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "FAIL" in shown
    assert "1 missing: UA1 of 2013-01-01" in shown
    assert "repeating batch 3" in shown


def test_a_directory_in_use_is_refused_without_a_traceback(tmp_path):
    (tmp_path / "mine").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "sprocketmq", "demo", "--output", str(tmp_path)], capture_output=True, text=True, check=False, cwd=Path.cwd()
    )
    assert done.returncode == 2
    assert "choose another directory with --output" in done.stderr
    assert "Traceback" not in done.stderr
