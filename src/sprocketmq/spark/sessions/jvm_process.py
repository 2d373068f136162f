"""The JVM that Spark starts for this process: it ends when its start is interrupted.

``launch_gateway`` of PySpark starts ``spark-submit``, which becomes the JVM, and waits for a file with its port. Interrupted there, it
removes the file's directory and forgets the process: the JVM then fails to write the file, and stays.
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
    """End a JVM that is started inside when the block is left by anything that is raised, so that the next start finds nothing of it."""
    from pyspark import java_gateway

    processes: list[subprocess.Popen[Any]] = []

    def start(*args: Any, **kwargs: Any) -> subprocess.Popen[Any]:
        # spark-submit is a shell script with children of its own: all of them are one group.
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
    """Keep SIGINT and SIGTERM back: one between the start of a process and the note of its id would leave it without an owner."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python's handlers run in the main thread alone
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
    """End the group of a process that leads one."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _forget_gateway() -> None:
    """Have PySpark start another JVM next time."""
    from pyspark import SparkContext

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    SparkContext._active_spark_context = None
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
