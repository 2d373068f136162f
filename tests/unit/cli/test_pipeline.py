"""What all jobs of ``sprocketmq pipeline`` share: how they are listed, run, shown, and how they fail."""

import io
import sys
from dataclasses import dataclass

import pytest

from sprocketmq.cli import errors, pipeline
from sprocketmq.cli.pipeline import JobBar, run_job
from sprocketmq.errors import ConfigError, FatalError
from sprocketmq.spark.jobs.progress import JobProgress


@dataclass(frozen=True)
class Landed:
    rows_landed: int

    def rows(self):
        return [("rows", f"{self.rows_landed:,}"), ("where", "[tables]/orders")]

    def as_dict(self):
        return {"rows": self.rows_landed}


class FromSpark(Exception):
    __module__ = "pyspark.errors.exceptions.captured"


def test_every_job_is_listed_and_tells_its_options(command):
    code, out, _ = command("pipeline", "--help")
    assert code == 0
    for job in pipeline.JobGroup().list_commands(None):
        assert f"  {job} " in out
        code, options, _ = command("pipeline", job, "--help")
        assert code == 0
        assert "--json" in options


def test_a_job_there_is_not_is_wrong_usage(command):
    code, _, err = command("pipeline", "no-such-job")
    assert code == 2
    assert "No such command 'no-such-job'" in err


def test_a_job_prints_its_summary_and_returns_it(capsys):
    told = []

    def work(report):
        report(JobProgress(5, 10, "messages", "queue 3"))
        told.append(report)
        return Landed(1234)

    assert run_job("landing", work) == Landed(1234)
    assert told
    assert capsys.readouterr().out == "rows\t1,234\nwhere\t[tables]/orders\n"
    run_job("landing", lambda report: Landed(7), as_json=True)
    assert capsys.readouterr().out == '{"rows": 7}\n'


def test_on_a_terminal_the_summary_is_a_table(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    pipeline.show(Landed(1234), as_json=False)
    shown = sys.stdout.getvalue()
    assert "1,234" in shown
    assert "[tables]/orders" in shown, "brackets are text, not markup"


def test_the_bar_shows_how_much_of_what_is_done_and_how_fast(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "160")
    with JobBar("landing orders", shown=True) as bar:
        bar(JobProgress(500, 2000, "messages", "queue 3"))
        bar._bar.refresh()
        bar(JobProgress(600, None, "messages"))
    shown = sys.stderr.getvalue()
    assert "landing orders" in shown
    assert "500 of 2,000 messages" in shown
    assert "queue 3" in shown


@pytest.mark.parametrize(
    ("raised", "expected", "said"),
    [
        (ConfigError("option x is wrong"), ConfigError, "option x is wrong"),
        (FromSpark("Traceback (most recent call last):\nsprocketmq.errors.TopicNotFound: no route"), FatalError, "no route"),
        (FromSpark("Traceback (most recent call last):\nsprocketmq.errors.ConfigError: wrong"), ConfigError, "wrong"),
        (PermissionError(13, "Permission denied", "/table"), PermissionError, "Permission denied"),
    ],
)
def test_a_job_that_fails_raises_one_sentence(raised, expected, said):
    def work(report):
        raise raised

    with pytest.raises(expected, match=said) as caught:
        run_job("landing", work)
    assert "\n" not in str(caught.value)


def test_an_error_of_spark_that_a_command_lets_through_is_one_line(capsys):
    assert errors.report(FromSpark("Traceback (most recent call last):\nsprocketmq.errors.TopicNotFound: no route")) == 1
    assert errors.report(FromSpark("Traceback (most recent call last):\nsprocketmq.errors.ConfigError: wrong")) == 2
    assert capsys.readouterr().err == "sprocketmq: no route\nsprocketmq: wrong\n"


def test_the_environment_of_sparks_own_commands_is_printed_for_a_shell_and_as_json(command, monkeypatch):
    monkeypatch.setattr(
        "sprocketmq.spark.sessions.session.launch_environment", lambda: {"JAVA_HOME": "/my java", "PATH": "/spark/bin:/bin"}
    )
    assert command("pipeline", "env") == (0, "export JAVA_HOME='/my java'\nexport PATH=/spark/bin:/bin\n", "")
    assert command("pipeline", "env", "--json")[1] == '{"JAVA_HOME": "/my java", "PATH": "/spark/bin:/bin"}\n'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("land", "t", "--to", "{tmp}/table", "--compression", "zip"), "compression is 'zip', and must be one of snappy"),
        (("land", "t", "--to", "{tmp}/table", "--option", "half"), "--option takes NAME=VALUE, not 'half'"),
        (("land", "t", "--to", "{tmp}/file"), "it is a file"),
        (("compact", "{tmp}/nowhere"), "is not a landed table: it has no _sprocketmq/table.json; name a directory that was landed to"),
        (("compact", "{tmp}/nowhere", "--compression", "zip"), "compression is 'zip', and must be one of snappy"),
        (("lag",), "say whose lag: one of --group, --checkpoint and --table"),
        (("lag", "--group", "g", "--table", "{tmp}"), "say whose lag: one of --group, --checkpoint and --table"),
        (("lag", "--table", "{tmp}", "--topic", "t"), "--topic goes with --group"),
        (("lag", "--group", "g", "--count", "2"), "--count goes with --watch"),
        (("replay",), "name one thing to read: a topic, or --dead-letters GROUP"),
        (("replay", "t"), "say where the messages of 't' are to go"),
        (("replay", "no good", "--to", "t"), "topic 'no good' is not valid"),
        (("replay", "t", "--to", "u", "--option", "half"), "--option takes NAME=VALUE, not 'half'"),
        (("replay", "t", "--to", "u", "--option", "topic=v"), "option 'topic' of the sink is settled by the job itself"),
        (("replay", "t", "--to", "u", "--since", "first"), "--since takes epoch seconds or a time"),
        (("replay", "t", "--to", "u", "--since", "2", "--until", "1"), "the end must be later than the beginning"),
        (("replay", "t", "--only-group"), "only_group is for the dead letters of a group"),
        (("audit", "{tmp}/nowhere"), "no store in this directory"),
        (("rebuild-index", "{tmp}/nowhere"), "no store in this directory"),
        (("rebuild-index", "{tmp}", "--only", "queues"), "--only takes consumequeue"),
    ],
)
def test_wrong_usage_is_said_before_spark_starts(command, monkeypatch, tmp_path, arguments, said):
    def started(*_args, **_kwargs):
        raise AssertionError("Spark was started")

    monkeypatch.setattr("sprocketmq.spark.session", started)
    (tmp_path / "file").write_text("x")
    code, out, err = command("pipeline", *(argument.format(tmp=tmp_path) for argument in arguments))
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_replay_of_a_topic_there_is_not_is_refused_before_spark_starts(cli, monkeypatch):
    monkeypatch.setattr("sprocketmq.spark.session", None)
    done = cli("pipeline", "replay", "missing", "--to", "t")
    assert (done.code, done.out) == (1, "")
    assert "topic 'missing' has no route" in done.err
    done = cli("pipeline", "replay", "--dead-letters", "g")
    assert (done.code, done.out) == (1, "")
    assert "consumer group 'g' has no dead letters" in done.err


def test_a_landing_of_a_topic_there_is_not_is_refused_before_spark_starts(cli, monkeypatch, tmp_path):
    monkeypatch.setattr("sprocketmq.spark.session", None)
    done = cli("pipeline", "land", "missing", "--to", str(tmp_path / "table"))
    assert (done.code, done.out) == (1, "")
    assert "topic 'missing' has no route" in done.err
    assert not (tmp_path / "table").exists()
