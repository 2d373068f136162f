"""What a session is started with, decided before a JVM is."""

import os
import shlex
import socket

import pytest

from sprocketmq.errors import ConfigError
from sprocketmq.spark.sessions import session
from sprocketmq.spark.sessions.session import _environment, _is_here, _jvm_options, _master_url, _quoted, _shares_classes_otherwise


def test_without_a_master_it_runs_here():
    assert _master_url(None, None, "1g") == "local[*]"
    assert _master_url(None, 3, "512m") == "local[3]"
    assert _master_url("local[2]", None, "1g") == "local[2]"


def test_a_master_that_answers_is_taken_as_it_is():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"spark://127.0.0.1:{server.getsockname()[1]}"
        assert _master_url(url, 2, "1g") == url
        dead = f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}"
        assert _master_url(dead, None, "1g") == dead, "one of several is enough"


def test_a_master_that_does_not_answer_is_named_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"no Spark master answers at spark://127.0.0.1:{port} .*refused.*is it running"):
        _master_url(f"spark://127.0.0.1:{port}", None, "1g")


@pytest.mark.parametrize("master", ["spark://host", "spark://host:", "spark://:7077", "spark://host:port", "spark://host:70777"])
def test_an_address_that_cannot_be_one_is_refused(master):
    with pytest.raises(ConfigError, match="it has to look like spark://HOST:PORT"):
        _master_url(master, None, "1g")


def test_a_server_of_spark_connect_is_no_master():
    with pytest.raises(ConfigError, match=r"sc://host:15002 is a server of Spark Connect, not a master: .*remote\('sc://host:15002'\)"):
        _master_url("sc://host:15002", None, "1g")


def test_sizes_and_counts_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="cores is 0"):
        _master_url(None, 0, "1g")
    with pytest.raises(ConfigError, match="both say how many tasks"):
        _master_url("local[2]", 2, "1g")
    for memory in ("much", "1", "1.5g", "-1g", ""):
        with pytest.raises(ConfigError, match="a number with a unit"):
            _master_url(None, None, memory)


def test_only_a_session_of_this_machine_stays_on_loopback():
    assert _is_here("local[*]")
    assert _is_here("spark://127.0.0.1:7077")
    assert _is_here("spark://localhost:7077")
    assert not _is_here("spark://spark-master:7077")
    assert not _is_here("yarn")


def test_the_users_own_jvm_options_win(monkeypatch):
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    usual = _jvm_options("", quick=False, stacks=False, archive=["-XX:SharedArchiveFile=a"])
    assert usual[0] == "-XX:+UseParallelGC"
    assert any(option.startswith("-Dlog4j2.configurationFile=file:") for option in usual)
    assert "-Dsprocketmq.stacks=none" in usual
    assert "-Dsprocketmq.stacks=full" in _jvm_options("", quick=False, stacks=True, archive=[])
    assert usual[-1] == "-XX:SharedArchiveFile=a"
    assert "-XX:TieredStopAtLevel=1" in _jvm_options("", quick=True, stacks=False, archive=[])
    own = _jvm_options("-XX:+UseG1GC -Dlog4j2.configurationFile=mine.xml", quick=True, stacks=False, archive=[])
    assert own == ["-XX:TieredStopAtLevel=1"]


def test_log_settings_in_a_configuration_directory_of_the_users_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert any("log4j2" in option for option in _jvm_options("", quick=True, stacks=False, archive=[]))
    (tmp_path / "log4j2.properties").write_text("rootLogger.level = debug\n")
    assert not any("log4j2" in option for option in _jvm_options("", quick=True, stacks=False, archive=[]))


def test_class_data_of_the_users_own_is_left_alone():
    assert _shares_classes_otherwise("-Xshare:off", {})
    assert _shares_classes_otherwise("-XX:SharedArchiveFile=mine.jsa", {})
    assert _shares_classes_otherwise("", {"spark.driver.extraClassPath": "/jars/mine.jar"})
    assert not _shares_classes_otherwise("-Dx=1", {"spark.driver.memory": "2g"})


def test_a_path_with_spaces_reaches_the_jvm_in_one_piece():
    options = ["-XX:+UseSerialGC", "-XX:SharedArchiveFile=/home/a user/spark.jsa"]
    assert shlex.split(" ".join(map(_quoted, options))) == options


def test_the_environment_is_as_it_was_after_the_start(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/before")
    monkeypatch.delenv("SPARK_LAUNCHER_OPTS", raising=False)
    with _environment({"JAVA_HOME": "/wrapper", "SPARK_LAUNCHER_OPTS": "-Xshare:auto"}):
        assert (os.environ["JAVA_HOME"], os.environ["SPARK_LAUNCHER_OPTS"]) == ("/wrapper", "-Xshare:auto")
    assert os.environ["JAVA_HOME"] == "/before"
    assert "SPARK_LAUNCHER_OPTS" not in os.environ


def test_a_machine_that_lacks_something_is_told_before_anything_is_started(monkeypatch):
    def missing():
        raise ConfigError("Spark needs the package pyarrow")

    monkeypatch.setattr(session, "check_packages", missing)
    with pytest.raises(ConfigError, match="pyarrow"):
        session.session()


def test_the_settings_of_the_log_are_a_file_that_is_there():
    assert session._LOG_SETTINGS.is_file()
