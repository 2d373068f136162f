"""Users without a home directory, as containers run them: the defaults that lie there, and what is said when there is no other."""

import json
import os
import pwd
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sprocketmq.cli.app import main
from sprocketmq.client.consume.offset_files import default_directory
from sprocketmq.client.credentials import ClientSecurity, resolve
from sprocketmq.directories import home_directory
from sprocketmq.errors import ConfigError
from sprocketmq.spark import session
from sprocketmq.spark.sessions.jre import cache_directory, wrap_java


@pytest.fixture
def homeless(monkeypatch):
    """Run as a user whom the system does not know."""

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_the_home_directory_is_the_users(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert home_directory() == Path("/home/somebody")


def test_a_server_wants_a_directory(homeless, capsys):
    assert main(["serve", "--port", "0", "--namesrv-port", "0"]) == 2
    assert "has no home directory: name a directory (--store DIR), or set XDG_DATA_HOME" in capsys.readouterr().err
    assert main(["serve", "--help"]) == 0
    assert "directory to keep messages in (this user has no home directory" in " ".join(capsys.readouterr().out.split())


def test_a_directory_that_is_named_is_enough(homeless, tmp_path, capsys):
    assert main(["serve", "--store", str(tmp_path), "--show-config"]) == 0
    assert json.dumps(str(tmp_path)) in capsys.readouterr().out


def test_a_client_has_no_credentials_there(homeless):
    assert resolve(environment={}) == ClientSecurity()


def test_a_home_that_is_another_users_has_none_for_this_one(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert resolve(environment={}) == ClientSecurity()


def test_a_broadcasting_consumer_wants_a_directory(homeless):
    with pytest.raises(ConfigError, match="offsets_dir="):
        default_directory()


def test_java_is_wrapped_for_this_process_only(homeless, tmp_path):
    assert not os.access(cache_directory(), os.F_OK)
    assert Path(wrap_java(str(tmp_path)), "bin", "java").is_file()


def test_spark_is_refused_to_a_user_without_a_name(monkeypatch):
    """Hadoop's login, with which Spark begins, fails in a way that tells nobody what is missing."""

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(
        ConfigError, match=f"Spark cannot start for user {os.getuid()}, of whom this system has no entry: add one to /etc/passwd"
    ):
        session()
