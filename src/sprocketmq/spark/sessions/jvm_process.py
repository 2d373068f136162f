"""End the JVM that Spark starts for this process when its start is interrupted.

``launch_gateway`` of PySpark starts ``spark-submit``, which becomes the JVM, and waits for a file with its port. When interrupted there it
removes the file's directory and forgets the process: the JVM fails to write the file, and keeps running.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def ended_unless_started() -> Iterator[None]:
    """Kill a JVM that is started in the block when the block raises, so that the next start is clean."""
    from pyspark import java_gateway

    processes: list[subprocess.Popen[Any]] = []

    def start(*args: Any, **kwargs: Any) -> subprocess.Popen[Any]:
        # spark-submit is a shell script with children: start all of them in one process group.
        with _interrupts_later():
            processes.append(subprocess.Popen(*args, **kwargs, start_new_session=True))
        return processes[-1]

    module: Any = java_gateway
    original = module.Popen
    module.Popen = start
    try:
        yield
    except BaseException:
        for process in processes:
            _kill(process)
        if processes:
            _forget_gateway()
        raise
    finally:
        module.Popen = original


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Delay SIGINT and SIGTERM: between the start of a process and the note of its id they would leave it running."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs signal handlers only in the main thread
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda arrived, _: came.append(arrived))
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for arrived in came:
            signal.raise_signal(arrived)


def _kill(process: "subprocess.Popen[Any]") -> None:
    """Kill the process group of a group leader."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _forget_gateway() -> None:
    """Make PySpark start a new JVM next time."""
    from pyspark import SparkContext

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None  # noqa: SLF001 - PySpark has no public name for it
    SparkContext._active_spark_context = None  # noqa: SLF001 - PySpark has no public name for it
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
