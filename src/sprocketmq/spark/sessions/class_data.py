"""A faster start of the JVM: Spark's classes, loaded and checked once, kept in an archive in the user's cache (class-data sharing).

The first session of a kind (Java build, Spark, its jars) has its JVM write the archive when it ends; later ones map it. Nothing here may
keep a session from starting: whatever is wrong with the cache means no archive, and the JVM itself passes over one that does not fit.

    KEY/base.jsa        Java's own classes, for a runtime that comes without them
    KEY/build-ID.jsa    being written by the JVM of a session that ended, or ends
    KEY/build-ID.json   said by that session before it ended: how many classes it had loaded
    KEY/spark.jsa       the archive in use, and
    KEY/spark.json      its size and checksum: a file that was cut or changed since is not mapped
"""

import atexit
import contextlib
import hashlib
import json
import logging
import mmap
import os
import shutil
import struct
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from isal import isal_zlib

from sprocketmq.spark.sessions.jre import Java, cache_directory

log = logging.getLogger(__name__)

# A JVM that writes an archive puts the head there last: with its magic number in place the file is whole.
_MAGIC = struct.Struct("=I")
_DYNAMIC_ARCHIVE = 0xF00BABA8

# What a session that used the archive loaded beside it decides whether the next one makes a better one, so often at most.
OUTGROWN = 1.3
MAX_BUILDS = 3
# A build nobody finished, and archives of a Java or Spark that is gone.
ABANDONED_S = 3600.0
UNUSED_S = 30 * 86400.0

# Not a word about archives: they are nobody's concern, and a JVM that starts or stops talks on standard output.
_SILENT = "-Xlog:disable"


class ClassData:
    """The archive for one Java and one Spark. ``options`` tells how to start the JVM, ``ended`` is called before it goes."""

    def __init__(self, java: Java, spark_home: str, directory: Path | None = None) -> None:
        self._java = java
        self._home = Path(directory or cache_directory(), "class-data", _key(java, spark_home))
        self._spark_home = spark_home
        self._build: Path | None = None
        self._used: dict[str, Any] | None = None

    def options(self) -> list[str]:
        """Return the JVM's options: to use the archive, or to write one, or none at all where neither is possible."""
        try:
            if not _plain_class_path(self._spark_home):
                return []
            self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._adopt()
            self._used = self._in_use()
            if self._used is not None:
                return [f"-XX:SharedArchiveFile={self._archive}", "-Xshare:auto", _SILENT]
            build = self._home / f"build-{uuid.uuid4().hex[:12]}.jsa"
            options = [f"-XX:ArchiveClassesAtExit={build}", "-Xshare:auto", _SILENT]
            base = self._base()
            if base is not None:
                options.insert(0, f"-XX:SharedArchiveFile={base}")
            self._build = build
        except (OSError, subprocess.SubprocessError) as e:
            log.debug("no class-data archive: %s", e)
            return []
        return options

    def ended(self, classes: int) -> None:
        """Note that the JVM started with these options is about to end and has loaded so many classes."""
        with contextlib.suppress(OSError):
            if self._build is not None:
                _write(self._build.with_suffix(".json"), {"classes": classes})
            elif self._used is not None and classes > OUTGROWN * self._used["classes"] and self._used["builds"] < MAX_BUILDS:
                # The archive stays for those who start before the next one is there; its papers say that it is to be replaced.
                _write(self._papers, {**self._used, "outgrown": True})

    @property
    def _archive(self) -> Path:
        return self._home / "spark.jsa"

    @property
    def _papers(self) -> Path:
        return self._home / "spark.json"

    def _in_use(self) -> dict[str, Any] | None:
        """Return the papers of the archive in use; None when there is none, it is not what was written, or a better one is due."""
        papers = _numbers(self._papers, "size", "crc", "classes", "builds")
        if papers is None or not self._archive.exists() or (papers["size"], papers["crc"]) != _checksum(self._archive):
            self._papers.unlink(missing_ok=True)
            self._archive.unlink(missing_ok=True)
            return None
        if papers.get("outgrown"):
            return None
        os.utime(self._home)
        return papers

    def _adopt(self) -> None:
        """Put a finished build in place, the one with the most classes; drop the others, and builds that nobody finished."""
        finished: list[tuple[int, Path]] = []
        now = time.time()
        for build in self._home.glob("build-*"):
            note = _numbers(build.with_suffix(".json"), "classes")
            if build.suffix == ".jsa" and note is not None and _is_whole(build):
                finished.append((note["classes"], build))
            elif now - build.stat().st_mtime > ABANDONED_S:
                build.unlink(missing_ok=True)
        if not finished:
            return
        classes, best = max(finished)
        before = _numbers(self._papers, "builds")
        size, crc = _checksum(best)
        _sync(best)
        # Archive first: papers of another archive fit no checksum, and what fits none is made again.
        best.replace(self._archive)
        _write(self._papers, {"size": size, "crc": crc, "classes": classes, "builds": 1 if before is None else before["builds"] + 1})
        for _, build in finished:
            build.unlink(missing_ok=True)
            build.with_suffix(".json").unlink(missing_ok=True)
        for other in self._home.parent.iterdir():
            if other != self._home and now - other.stat().st_mtime > UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)

    def _base(self) -> Path | None:
        """Return the archive of Java's own classes to build on, made here when the runtime has none; None when it has one."""
        base = self._home / "base.jsa"
        if base.exists():
            return base
        java = str(Path(self._java.home, "bin", "java"))
        if subprocess.run([java, "-Xshare:on", "-version"], capture_output=True, timeout=60, check=False).returncode == 0:
            return None
        fresh = self._home / f"build-{uuid.uuid4().hex[:12]}.base"
        command = [java, "-Xshare:dump", f"-XX:SharedArchiveFile={fresh}"]
        subprocess.run(command, capture_output=True, timeout=120, check=True)
        fresh.replace(base)
        return base


def note_at_exit(data: ClassData, loaded: Callable[[], int]) -> None:
    """Have ``data`` told at the end of this process how many classes the JVM has loaded; ``loaded`` may fail, the JVM may be gone."""

    def tell() -> None:
        with contextlib.suppress(Exception):
            data.ended(loaded())

    atexit.register(tell)


def _key(java: Java, spark_home: str) -> str:
    """Return a name that is another one when Java, Spark or one of its jars is."""
    digest = hashlib.sha256(f"{java.home}\n{java.build}\n{spark_home}\n".encode())
    for jar in sorted(os.scandir(Path(spark_home, "jars")), key=lambda entry: entry.name):
        status = jar.stat()
        digest.update(f"{jar.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _plain_class_path(spark_home: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether Spark's class path is its jars alone: the JVM archives nothing when directories with files are on it."""
    if any(environ.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_PREPEND_CLASSES")):
        return False
    configuration = Path(environ.get("SPARK_CONF_DIR") or Path(spark_home, "conf"))
    return not (configuration.is_dir() and any(configuration.iterdir()))


def _is_whole(archive: Path) -> bool:
    with archive.open("rb") as file:
        head = file.read(_MAGIC.size)
    return len(head) == _MAGIC.size and _MAGIC.unpack(head)[0] == _DYNAMIC_ARCHIVE


def _checksum(path: Path) -> tuple[int, int]:
    """Return size and CRC-32 of a file: 160 MB in a twentieth of a second, and the JVM then finds them in memory."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return 0, 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return size, isal_zlib.crc32(content)


def _numbers(path: Path, *names: str) -> dict[str, Any] | None:
    """Return a JSON object that has these numbers; None when there is none, or it has not."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) and all(isinstance(value.get(name), int) for name in names) else None


def _write(path: Path, value: Mapping[str, Any]) -> None:
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}")
    fresh.write_text(json.dumps(value), encoding="utf-8")
    fresh.replace(path)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
