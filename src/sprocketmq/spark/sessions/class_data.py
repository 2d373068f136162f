"""Start the JVM faster with class-data sharing: Spark's loaded and verified classes are kept in an archive in the user's cache.

The JVM of the first session of a kind (Java build, Spark, its jars) writes the archive when it ends; later sessions map it. Nothing here
may prevent a session from starting: with any problem of the cache there is no archive, and the JVM ignores an archive that does not fit.

    KEY/base.jsa        Java's own classes, for a runtime that ships without them
    KEY/build-ID.jsa    being written by the JVM of a session that is ending or has ended
    KEY/build-ID.json   written by that session before it ended: the number of loaded classes
    KEY/spark.jsa       the archive in use, and
    KEY/spark.json      its size and checksum: a truncated or changed file is not mapped
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

from sprocketmq.protocol.hashing import full_crc32
from sprocketmq.spark.sessions.jre import Java, cache_directory

log = logging.getLogger(__name__)

# The JVM writes the head of an archive last: a file with this magic number is complete.
_MAGIC = struct.Struct("=I")
_DYNAMIC_ARCHIVE = 0xF00BABA8

# A session that loads this many times the archived classes has the archive rebuilt, at most MAX_BUILDS times.
OUTGROWN = 1.3
MAX_BUILDS = 3
# Age after which an unfinished build is deleted.
ABANDONED_S = 3600.0
# Archives of other Javas or Sparks that are kept, those used last, and for how long without use. Each new environment of Python has one.
MAX_OTHERS = 7
UNUSED_S = 30 * 86400.0

# Suppresses messages about archives, which the JVM would print to standard output at start and end.
_SILENT = "-Xlog:disable"


class ClassData:
    """The archive for one Java and one Spark. ``options`` are the JVM options to start with; ``ended`` is called before the JVM ends."""

    def __init__(self, java: Java, spark_home: str, directory: Path | None = None) -> None:
        self._java = java
        self._home = Path(directory or cache_directory(), "class-data", _key(java, spark_home))
        self._spark_home = spark_home
        self._build: Path | None = None
        self._used: dict[str, Any] | None = None

    def options(self) -> list[str]:
        """Return the JVM options that use the archive or write one, or none where neither is possible."""
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
        """Record that the JVM started with these options is about to end, with its number of loaded ``classes``."""
        with contextlib.suppress(OSError):
            if self._build is not None:
                _write(self._build.with_suffix(".json"), {"classes": classes})
            elif self._used is not None and classes > OUTGROWN * self._used["classes"] and self._used["builds"] < MAX_BUILDS:
                # The archive stays for sessions that start before the next one exists; its metadata marks it for replacement.
                _write(self._metadata, {**self._used, "outgrown": True})

    @property
    def _archive(self) -> Path:
        return self._home / "spark.jsa"

    @property
    def _metadata(self) -> Path:
        return self._home / "spark.json"

    def _in_use(self) -> dict[str, Any] | None:
        """Return the metadata of the archive in use; None when there is none, when it was altered, or when it is to be replaced."""
        metadata = _numbers(self._metadata, "size", "crc", "classes", "builds")
        if metadata is None or not self._archive.exists() or (metadata["size"], metadata["crc"]) != _checksum(self._archive):
            self._metadata.unlink(missing_ok=True)
            self._archive.unlink(missing_ok=True)
            return None
        if metadata.get("outgrown"):
            return None
        os.utime(self._home)
        return metadata

    def _adopt(self) -> None:
        """Install the finished build with the most classes; delete other builds and abandoned ones."""
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
        before = _numbers(self._metadata, "builds")
        size, crc = _checksum(best)
        _sync(best)
        # Archive first: with the old metadata the checksum does not match, and the archive is built again.
        best.replace(self._archive)
        _write(self._metadata, {"size": size, "crc": crc, "classes": classes, "builds": 1 if before is None else before["builds"] + 1})
        for _, build in finished:
            build.unlink(missing_ok=True)
            build.with_suffix(".json").unlink(missing_ok=True)
        others = sorted(((other.stat().st_mtime, other) for other in self._home.parent.iterdir() if other != self._home), reverse=True)
        for place, (used, other) in enumerate(others):
            if place >= MAX_OTHERS or now - used > UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)

    def _base(self) -> Path | None:
        """Return the base archive of Java's own classes, created when the runtime ships without one; None when it has one."""
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
    """Call ``data.ended`` at process exit with the number of loaded classes; ``loaded`` may fail, as the JVM may have ended."""

    def tell() -> None:
        with contextlib.suppress(Exception):
            data.ended(loaded())

    atexit.register(tell)


def _key(java: Java, spark_home: str) -> str:
    """Return a directory name that changes with Java, Spark, and each of its jars."""
    digest = hashlib.sha256(f"{java.home}\n{java.build}\n{spark_home}\n".encode())
    for jar in sorted(os.scandir(Path(spark_home, "jars")), key=lambda entry: entry.name):
        status = jar.stat()
        digest.update(f"{jar.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _plain_class_path(spark_home: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether Spark's class path consists of its jars only: with non-empty directories on it the JVM archives nothing."""
    if any(environ.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_PREPEND_CLASSES")):
        return False
    configuration = Path(environ.get("SPARK_CONF_DIR") or Path(spark_home, "conf"))
    return not (configuration.is_dir() and any(configuration.iterdir()))


def _is_whole(archive: Path) -> bool:
    with archive.open("rb") as file:
        head = file.read(_MAGIC.size)
    return len(head) == _MAGIC.size and _MAGIC.unpack(head)[0] == _DYNAMIC_ARCHIVE


def _checksum(path: Path) -> tuple[int, int]:
    """Return size and CRC-32 of a file: 160 MB take 50 ms, and the JVM then finds it in the page cache."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return 0, 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return size, full_crc32(content)


def _numbers(path: Path, *names: str) -> dict[str, Any] | None:
    """Return a JSON object that contains these integers, or None."""
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
