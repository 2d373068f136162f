"""Run a function over items as Spark tasks, with progress: for jobs that work on files instead of rows.

A failure in a task is returned as a value (``TaskFailure``), so that the driver raises it as one of our errors, and Spark does not repeat
tasks that cannot succeed.
"""

import os
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sprocketmq._version import __version__
from sprocketmq.errors import ConfigError, FatalError, StoreNotWritable
from sprocketmq.spark.same_version import check_driver_version

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_POLL_S = 0.1
UNSEEN = "unseen"
REFUSED = "refused"


class StoreNotShared(FatalError):
    """A Spark worker does not see the files of the store."""

    def __init__(self, host: str, path: str, reason: str) -> None:
        super().__init__(
            f"the Spark worker on {host} does not see {path} ({reason}): a store must be on a file system that all workers have at the same"
            " path; run the job on the store's own machine (master local[*]) or mount it on every worker"
        )
        self.host = host
        self.path = path
        self.reason = reason


class StoreUnreadable(FatalError):
    """A file of a store cannot be read on a worker."""

    def __init__(self, host: str, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be read on {host}: {reason}; look at the file's permissions, and at the disk")
        self.host = host
        self.path = path
        self.reason = reason


class TaskFailure(NamedTuple):
    """Why a task gave up: it does not see a file (``UNSEEN``), or cannot read or write it (``REFUSED``)."""

    kind: str
    host: str
    path: str
    reason: str


def failure_of(error: OSError, kind: str = REFUSED, path: str = "") -> TaskFailure:
    """Return an OSError of a worker as a TaskFailure. ``path`` is used when the error does not name a file."""
    import platform

    return TaskFailure(kind, platform.node(), str(error.filename or path), error.strerror or str(error))


def results_or_raise(found: Sequence["R | TaskFailure"], root: str, *, writing: bool) -> "list[R]":
    """Return the results of tasks, or raise for the first that gave up. ``root`` is the store, or the directory written to.

    Raises StoreNotShared, StoreUnreadable, StoreNotWritable, FatalError for a file that was removed during the job.
    """
    results: list[R] = []
    for one in found:
        if not isinstance(one, TaskFailure):
            results.append(one)
        elif one.kind == UNSEEN and os.path.exists(one.path):  # noqa: PTH110
            raise StoreNotShared(one.host, one.path, one.reason)
        elif one.kind == UNSEEN:
            raise FatalError(f"{one.path} was removed meanwhile, as brokers do with expired files; run the job again")
        elif writing and "/commitlog/" not in one.path:
            raise StoreNotWritable(root, f"{one.path} on {one.host}: {one.reason}", option="--to")
        else:
            raise StoreUnreadable(one.host, one.path, one.reason)
    return results


def tasks_at_a_time(spark: "SparkSession") -> int:
    """Return the number of concurrent tasks. Raises ConfigError for a session without a local driver (Spark Connect)."""
    return int(_context_of(spark).defaultParallelism)


def _context_of(spark: "SparkSession") -> Any:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError("this job needs a Spark session with its driver in this process, not one of Spark Connect")
    return spark.sparkContext


def run_tasks(
    spark: "SparkSession",
    title: str,
    work: Callable[[T, Callable[[int], None]], R],
    items: Sequence[T],
    *,
    on_progress: Callable[[int], None] | None = None,
) -> list[R]:
    """Run ``work(item, note)`` as one task for each item and return the results in order.

    ``work`` is a function of a module, or a partial of one. ``on_progress`` is called with the sum of the amounts passed to ``note``, as
    tasks end. An interrupt cancels the tasks. Raises what Spark raises.
    """
    if not items:
        return []
    context = _context_of(spark)
    done = context.accumulator(0)
    group = f"sprocketmq-{uuid.uuid4()}"
    outcome: list[tuple[int, R]] = []
    failed: list[BaseException] = []

    driver = __version__

    def one(pair: tuple[int, T]) -> tuple[int, R]:
        check_driver_version(driver)
        return pair[0], work(pair[1], done.add)

    def run() -> None:
        try:
            context.setJobGroup(group, title, interruptOnCancel=True)
            outcome.extend(context.parallelize(list(enumerate(items)), len(items)).map(one).collect())
        except BaseException as e:  # noqa: BLE001 - raised in the thread that waits
            failed.append(e)

    from pyspark import InheritableThread

    thread: threading.Thread = InheritableThread(target=run, name="sprocketmq-job", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            if on_progress is not None:
                on_progress(int(done.value))
    except BaseException:
        context.cancelJobGroup(group)
        thread.join()
        raise
    if failed:
        raise failed[0]
    return [result for _, result in sorted(outcome, key=lambda pair: pair[0])]
