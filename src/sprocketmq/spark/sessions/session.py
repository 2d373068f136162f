"""Create a Spark session with the best settings for this package, wherever Python runs."""

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sprocketmq.errors import ConfigError, FatalError
from sprocketmq.spark.errors import DEBUG_VARIABLE, explain, show_errors_briefly
from sprocketmq.spark.sessions.class_data import ClassData, note_at_exit
from sprocketmq.spark.sessions.jre import find_java
from sprocketmq.spark.sessions.jvm_process import ended_unless_started
from sprocketmq.spark.version_checks import check_packages, spark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The fast compiler without the optimising one, and the serial garbage collector: least overhead for short sessions.
QUICK_JVM: tuple[str, ...] = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
STEADY_JVM: tuple[str, ...] = ("-XX:+UseParallelGC",)
# Spark first starts a small JVM that assembles the command line of the main one.
_LAUNCHER_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"

_JVM_OPTIONS = "spark.driver.extraJavaOptions"
# On a local disk Spark starts a `chmod` process for each file it creates. This manager needs fewer for checkpoint files, which makes a
# small micro-batch 20 % shorter.
_CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_LOCAL_CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_LOCAL_CHECKPOINT_FILES_OF_40 = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
# Unix sockets between the JVM and its Python workers: 30 % faster than TCP over loopback for a scan of whole messages.
_UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
# The module that starts Python workers.
_DAEMON = "spark.python.daemon.module"
_LOG_SETTINGS = Path(__file__).parents[1] / "log4j2.properties"
_CONNECT_TIMEOUT_S = 5.0


def session(
    app_name: str = "sprocketmq",
    *,
    master: str | None = None,
    cores: int | None = None,
    memory: str = "1g",
    shuffle_partitions: int = 2,
    quick_start: bool = False,
    log_file: str | os.PathLike[str] | None = None,
    conf: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Return a Spark session that reads and writes RocketMQ, in this process or on the cluster of ``master`` ("spark://HOST:PORT").

    ``cores`` is the number of concurrent tasks (None: all cores), ``memory`` the heap of this process's JVM. ``quick_start`` starts sooner
    and uses less CPU at first, at a lower top speed (the JVM's fast compiler and its simplest garbage collector). ``log_file`` receives
    standard error of the JVM and of Spark's Python workers, and that of this process while the JVM starts. ``conf`` is applied last and
    wins; JVM options in it are added to those set here. A session that already runs is returned unchanged.

    Raises MissingPackage and NoJava naming what to install, ConfigError for an invalid argument, FatalError when Spark did not start. From
    then on uncaught errors of Spark are shown as one sentence, see sprocketmq.spark.errors.
    """
    check_packages()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    show_errors_briefly()
    running = _running(master)
    if running is not None:
        return running
    url = _master_url(master, cores, memory)
    # Without this, workers run the first "python3" on the search path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings: dict[str, str] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
    }
    if _is_here(url):
        # Otherwise Spark resolves the host name, which may be slow, or give an address that is not this machine's.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if url.startswith("local"):
        settings[_CHECKPOINT_FILES] = _LOCAL_CHECKPOINT_FILES_OF_40 if spark_version() < (4, 1) else _LOCAL_CHECKPOINT_FILES
        if os.environ["PYSPARK_PYTHON"] == sys.executable:  # another may have no sprocketmq
            settings[_DAEMON] = "sprocketmq.spark.sessions.daemon"
        # Sockets are files in Java's temporary directory, whose name may be too long for one where the user chose it.
        chosen = (conf or {}).get(_JVM_OPTIONS, "") + os.environ.get("JAVA_TOOL_OPTIONS", "")
        if hasattr(socket, "AF_UNIX") and "java.io.tmpdir" not in chosen:
            settings[_UNIX_SOCKETS] = "true"
    if cores is not None and not url.startswith("local"):
        settings["spark.cores.max"] = str(cores)
    given = dict(conf or {})
    jvm = None
    launch: dict[str, str] = {}
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Started by spark-submit, which runs the JVM and whose command line names the master.
        settings = {} if master is None else {"spark.master": master}
    else:
        settings["spark.master"] = url
        if SparkContext._gateway is None:  # noqa: SLF001 - PySpark has no public name for it
            _check_user()
            jvm = _Jvm(given, quick=quick_start, stacks=log_file is not None or bool(os.environ.get(DEBUG_VARIABLE)))
            launch = jvm.environment
            settings |= {"spark.driver.memory": memory, _JVM_OPTIONS: jvm.options}
            given.pop(_JVM_OPTIONS, None)
    builder: Any = SparkSession.builder.appName(app_name)
    for name, value in (settings | given).items():
        builder = builder.config(name, value)
    try:
        with _environment(launch), ended_unless_started(), contextlib.nullcontext() if log_file is None else _stderr_to(log_file):
            spark: SparkSession = builder.getOrCreate()
    except Exception as e:
        where = "is above, on standard error" if log_file is None else f"is in {os.fspath(log_file)}"
        raise FatalError(f"Spark did not start: {explain(e) or e}; what the JVM said {where}") from e
    if jvm is not None and jvm.class_data is not None:
        note_at_exit(jvm.class_data, lambda: _loaded_classes(spark))
    _register_formats(spark)
    return spark


def _register_formats(spark: "SparkSession") -> None:
    """Register both formats where Spark does not look for them: it has a shell find its Python, and writes the path without quotes."""
    python = os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON") or "python3"
    if shlex.quote(python) == python or os.name != "posix":
        return
    found = subprocess.run(["/bin/sh", "-c", f"command -v {python}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if found.returncode == 0:
        return
    from pyspark_rocketmq import DefaultSource as Topics
    from pyspark_rocketmq_store import DefaultSource as Stores

    for source in (Topics, Stores):
        spark.dataSource.register(source)


def _check_user() -> None:
    """Raise ConfigError for a user whom the system has no name of: Hadoop's login, which Spark begins with, fails without one."""
    if os.name != "posix":
        return
    import pwd

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise ConfigError(
            f"Spark cannot start for user {os.getuid()}, of whom this system has no entry: add one to /etc/passwd, which containers do in"
            " their image or when they start, or run this as another user"
        ) from None


def launch_environment() -> dict[str, str]:
    """Return the environment variables with which Spark's own commands (spark-submit, spark-pipelines, pyspark) run on this machine.

    Java, Python for driver and workers, loopback, and a PATH that finds the commands. Raises MissingPackage and NoJava.
    """
    check_packages()
    from pyspark.find_spark_home import _find_spark_home

    spark_home = str(_find_spark_home())
    return {
        "JAVA_HOME": find_java().quiet().home,
        "SPARK_HOME": spark_home,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "PATH": os.pathsep.join([os.path.join(spark_home, "bin"), os.environ.get("PATH", os.defpath)]),  # noqa: PTH118
    }


class _Jvm:
    """How to start the JVM: ``options`` for Spark, ``environment`` variables, and the class-data archive if there is one."""

    def __init__(self, conf: Mapping[str, str], *, quick: bool, stacks: bool) -> None:
        java = find_java()
        os.environ["JAVA_HOME"] = java.home
        from pyspark.find_spark_home import _find_spark_home

        spark_home = str(_find_spark_home())
        java = java.quiet()
        own = conf.get(_JVM_OPTIONS, "")
        self.class_data = None if _shares_classes_otherwise(own, conf) else ClassData(java, spark_home)
        archive = [] if self.class_data is None else self.class_data.options()
        options = _jvm_options(own, quick=quick, stacks=stacks, archive=archive)
        self.options = " ".join([*map(_quoted, options), own]).strip()
        self.environment = {
            "JAVA_HOME": java.home,
            "SPARK_HOME": spark_home,
            "SPARK_LAUNCHER_OPTS": os.environ.get("SPARK_LAUNCHER_OPTS", _LAUNCHER_JVM),
        }


def _running(master: str | None) -> "SparkSession | None":
    """Return the session of this process, or None. Raises ConfigError when it runs on another master than ``master``."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    if is_remote():
        # A Spark Connect client: session and Java run elsewhere.
        return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    context = SparkContext._active_spark_context  # noqa: SLF001 - PySpark has no public name for it
    if context is None or context._jsc is None:  # noqa: SLF001 - PySpark has no public name for it
        return None
    if master is not None and context.master != master:
        raise ConfigError(f"a Spark session on {context.master} runs in this process already: stop it before asking for one on {master}")
    spark = SparkSession.builder.getOrCreate()
    _register_formats(spark)
    return spark


def _master_url(master: str | None, cores: int | None, memory: str) -> str:
    """Return the master URL after checking the arguments and that a standalone master is reachable."""
    if cores is not None and cores < 1:
        raise ConfigError(f"cores is {cores}, it has to be at least 1 (None: every core)")
    if not re.fullmatch(r"\d+[kmgt]b?", memory, re.IGNORECASE):
        raise ConfigError(f"memory is {memory!r}, it has to be a number with a unit, such as '512m' or '2g'")
    if master is None:
        return f"local[{cores or '*'}]"
    if master == "local" or master.startswith("local["):
        if cores is not None:
            raise ConfigError(f"cores={cores} and master={master!r} both say how many tasks run at a time: leave one out")
        return master
    if master.startswith("sc://"):
        raise ConfigError(
            f"{master} is a server of Spark Connect, not a master: start the session with"
            f" SparkSession.builder.remote({master!r}).getOrCreate(); formats and jobs work with it"
        )
    if master.startswith("spark://"):
        _reach(master)
    return master


def _reach(master: str) -> None:
    """Raise ConfigError unless one of the masters accepts connections. Spark itself would try for a minute, with a worse error."""
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(f"master is {master!r}, it has to look like spark://HOST:PORT, with commas between several HOST:PORT")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S):
                return
        except OSError as e:
            reasons.append(f"{address}: {e.strerror or e}")
    raise ConfigError(f"no Spark master answers at {master} ({'; '.join(reasons)}): is it running, and are host and port right?")


def _is_here(url: str) -> bool:
    """Return whether everything runs on this machine. Workers elsewhere must reach this process by an address other than loopback."""
    return url.startswith("local") or re.match(r"spark://(localhost|127\.[\d.]+|\[::1\]):", url) is not None


def _shares_classes_otherwise(own_options: str, conf: Mapping[str, str]) -> bool:
    """Return whether the user's settings configure class-data sharing, or change the class path of the archive."""
    return "-Xshare" in own_options or "SharedArchiveFile" in own_options or "spark.driver.extraClassPath" in conf


def _jvm_options(own: str, *, quick: bool, stacks: bool, archive: Sequence[str]) -> list[str]:
    """Return the JVM options: compiler and collector unless the user's options name one, quiet logs, and the class-data archive.

    Without ``stacks`` the log shows errors as one line: the stack trace is in the Python exception.
    """
    chosen = QUICK_JVM if quick else STEADY_JVM
    if re.search(r"-XX:\+Use\w+GC", own):
        chosen = tuple(option for option in chosen if "GC" not in option)
    # Spark's default settings log messages at every start. The user's own log4j2.properties take precedence.
    logs = []
    if "log4j" not in own and not _has_own_logging():
        logs = [f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}", f"-Dsprocketmq.stacks={'full' if stacks else 'none'}"]
    return [*chosen, *logs, *archive]


def _has_own_logging() -> bool:
    directory = os.environ.get("SPARK_CONF_DIR")
    return directory is not None and any(Path(directory).glob("log4j2.*"))


def _quoted(option: str) -> str:
    """Return an option quoted for Spark's launcher."""
    return f'"{option}"' if " " in option else option


def _loaded_classes(spark: "SparkSession") -> int:
    """Return the number of classes that the JVM of ``spark`` has loaded so far."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public name for it
    return int(jvm.java.lang.management.ManagementFactory.getClassLoadingMXBean().getTotalLoadedClassCount())


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the block runs, for processes started in it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _stderr_to(path: str | os.PathLike[str]) -> Iterator[None]:
    """Redirect standard error to a file while the block runs; a JVM started in it keeps the redirection."""
    sys.stderr.flush()
    own = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(file, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(own, 2)
        os.close(own)
        os.close(file)
