"""The archive of classes is made once, used after, and whatever happens to it never keeps a session from starting."""

import json
import os
import struct
import subprocess
import time

import pytest

from sprocketmq.spark.sessions import class_data
from sprocketmq.spark.sessions.class_data import MAX_OTHERS, ClassData
from sprocketmq.spark.sessions.jre import Java

WHOLE = struct.pack("=I", 0xF00BABA8) + b"classes" * 1000


@pytest.fixture
def spark_home(tmp_path):
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "spark-core.jar").write_bytes(b"jar")
    return str(tmp_path / "spark")


@pytest.fixture
def java(tmp_path):
    """A Java that has an archive of its own classes."""
    return fake_java(tmp_path / "java", "exit 0")


def fake_java(home, script):
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    (home / "bin" / "java").chmod(0o755)
    return Java(str(home), 17, 'openjdk version "17.0.1"')


@pytest.fixture
def start(java, spark_home, tmp_path, monkeypatch):
    for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_PREPEND_CLASSES"):
        monkeypatch.delenv(name, raising=False)
    return lambda: ClassData(java, spark_home, tmp_path / "cache")


def file_of(options, flag):
    return next((option.removeprefix(f"-XX:{flag}=") for option in options if option.startswith(f"-XX:{flag}=")), None)


def run_to_its_end(data, classes=1000, content=WHOLE):
    """Do what a session does that writes an archive."""
    path = file_of(data.options(), "ArchiveClassesAtExit")
    data.ended(classes)
    with open(path, "wb") as file:
        file.write(content)
    return path


def test_the_first_session_writes_the_archive_and_the_second_uses_it(start):
    run_to_its_end(start())
    options = start().options()
    assert file_of(options, "ArchiveClassesAtExit") is None
    with open(file_of(options, "SharedArchiveFile"), "rb") as file:
        assert file.read() == WHOLE


def test_an_archive_that_is_still_being_written_is_left_alone(start):
    path = run_to_its_end(start(), content=bytes(len(WHOLE)))
    assert file_of(start().options(), "SharedArchiveFile") is None
    with open(path, "wb") as file:
        file.write(WHOLE)
    assert file_of(start().options(), "SharedArchiveFile") is not None


def test_the_archive_of_a_session_that_was_killed_is_not_used(start):
    path = file_of(start().options(), "ArchiveClassesAtExit")
    with open(path, "wb") as file:
        file.write(WHOLE)
    assert file_of(start().options(), "SharedArchiveFile") is None
    os.utime(path, (time.time() - 7200,) * 2)
    start().options()
    assert not os.path.exists(path)


def test_of_two_that_were_written_at_once_the_larger_is_kept(start):
    small, large = start(), start()
    paths = [file_of(data.options(), "ArchiveClassesAtExit") for data in (small, large)]
    assert len(set(paths)) == 2, "each has a file of its own"
    for data, path, classes in zip((small, large), paths, (500, 2000), strict=True):
        data.ended(classes)
        with open(path, "wb") as file:
            file.write(WHOLE + bytes([classes // 500]))
    used = file_of(start().options(), "SharedArchiveFile")
    with open(used, "rb") as file:
        assert file.read()[-1] == 4
    assert not any(map(os.path.exists, paths))


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:-1] + b"!", lambda content: b""])
def test_an_archive_that_was_damaged_since_is_made_again(start, damage):
    run_to_its_end(start())
    used = file_of(start().options(), "SharedArchiveFile")
    with open(used, "wb") as file:
        file.write(damage(WHOLE))
    assert file_of(start().options(), "ArchiveClassesAtExit") is not None
    run_to_its_end(start())
    assert file_of(start().options(), "SharedArchiveFile") == used


def test_papers_that_make_no_sense_mean_no_archive(start, tmp_path):
    run_to_its_end(start())
    used = file_of(start().options(), "SharedArchiveFile")
    papers = used.replace(".jsa", ".json")
    for text in ("", "[]", "{}", '{"size": null, "crc": 0}'):
        with open(papers, "w") as file:
            file.write(text)
        assert file_of(start().options(), "SharedArchiveFile") is None


def test_a_session_that_loads_much_more_has_a_better_one_made_three_times_at_most(start):
    classes = 1000
    run_to_its_end(start(), classes)
    for _ in range(2):
        using = start()
        assert file_of(using.options(), "SharedArchiveFile")
        classes *= 2
        using.ended(classes)
        run_to_its_end(start(), classes)
    using = start()
    using.options()
    using.ended(classes * 2)
    assert file_of(start().options(), "SharedArchiveFile")


def test_a_session_that_loads_hardly_more_leaves_it_as_it_is(start):
    run_to_its_end(start(), 1000)
    using = start()
    using.options()
    using.ended(1200)
    assert file_of(start().options(), "SharedArchiveFile")


def test_another_spark_or_java_has_another_archive(start, spark_home, java, tmp_path):
    run_to_its_end(start())
    start().options()
    with open(f"{spark_home}/jars/another.jar", "wb") as file:
        file.write(b"jar")
    assert file_of(start().options(), "SharedArchiveFile") is None
    newer = Java(java.home, 17, 'openjdk version "17.0.2"')
    assert file_of(ClassData(newer, spark_home, tmp_path / "cache").options(), "SharedArchiveFile") is None


def test_archives_nobody_used_for_a_month_go_when_another_comes(start, tmp_path):
    old = tmp_path / "cache" / "class-data" / "0123456789abcdef"
    old.mkdir(parents=True)
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    run_to_its_end(start())
    start().options()
    assert not old.exists()


def test_of_many_archives_those_used_last_are_kept(start, tmp_path):
    others = [tmp_path / "cache" / "class-data" / f"{n:016x}" for n in range(MAX_OTHERS + 3)]
    now = time.time()
    for age_s, other in enumerate(others):
        other.mkdir(parents=True)
        os.utime(other, (now - age_s,) * 2)
    run_to_its_end(start())
    assert file_of(start().options(), "SharedArchiveFile")
    assert [other.exists() for other in others] == [True] * MAX_OTHERS + [False] * 3


def test_a_runtime_without_an_archive_of_its_own_gets_one(spark_home, tmp_path):
    script = 'case "$*" in *-Xshare:on*) exit 1 ;; *-Xshare:dump*) for a do case $a in -XX:SharedArchiveFile=*) echo base > "${a#*=}" ;; esac; done ;; esac'
    java = fake_java(tmp_path / "bare", script)
    options = ClassData(java, spark_home, tmp_path / "cache").options()
    base = file_of(options, "SharedArchiveFile")
    assert base.endswith("base.jsa")
    assert os.path.exists(base)
    assert file_of(options, "ArchiveClassesAtExit")


def test_a_java_that_cannot_write_archives_starts_without(spark_home, tmp_path):
    assert ClassData(fake_java(tmp_path / "bare", "exit 1"), spark_home, tmp_path / "cache").options() == []


def test_a_cache_that_cannot_be_written_means_no_archive(java, spark_home, tmp_path):
    (tmp_path / "cache").write_text("a file where a directory should be")
    data = ClassData(java, spark_home, tmp_path / "cache")
    assert data.options() == []
    data.ended(1000)


def test_directories_on_the_class_path_mean_no_archive(start, spark_home, monkeypatch):
    os.makedirs(f"{spark_home}/conf")
    assert start().options(), "an empty one is none"
    with open(f"{spark_home}/conf/spark-defaults.conf", "w") as file:
        file.write("spark.ui.enabled false\n")
    assert start().options() == []
    monkeypatch.setenv("SPARK_CONF_DIR", spark_home + "/nowhere")
    assert start().options()
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert start().options() == []


def test_a_jvm_that_is_gone_at_the_end_is_no_trouble(start, monkeypatch):
    calls = []
    monkeypatch.setattr(class_data.atexit, "register", calls.append)
    data = start()
    path = file_of(data.options(), "ArchiveClassesAtExit")

    def gone():
        raise ConnectionRefusedError

    class_data.note_at_exit(data, gone)
    calls.pop()()
    assert not os.path.exists(path.replace(".jsa", ".json"))
    class_data.note_at_exit(data, lambda: 4711)
    calls.pop()()
    with open(path.replace(".jsa", ".json")) as file:
        assert json.load(file) == {"classes": 4711}


def test_a_base_archive_that_takes_too_long_means_no_archive(start, monkeypatch):
    def too_long(*_, **__):
        raise subprocess.TimeoutExpired("java", 60)

    monkeypatch.setattr(class_data.subprocess, "run", too_long)
    assert start().options() == []
