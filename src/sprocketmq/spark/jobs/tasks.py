"""Run a function over items as Spark tasks, with progress: for jobs that work on files instead of rows.

A failure in a task is returned as a value (``TaskFailure``), so that the driver raises it as one of our errors, and Spark does not repeat
tasks that cannot succeed.
"""

import os
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sprocketmq._version import __version__
from sprocketmq.errors import FatalError, StoreNotWritable
from sprocketmq.spark.same_version import check_driver_version

if TYPE_CHECKING:
    import threading

    import pyarrow as pa
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


def over_connect(spark: "SparkSession") -> bool:
    """Return whether a session is a Spark Connect session: its driver is in another process, perhaps on another machine."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def tasks_at_a_time(spark: "SparkSession") -> int:
    """Return the number of concurrent tasks."""
    if not over_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    from pyspark.sql import functions as f

    # A client of Spark Connect cannot ask for the number, but a range has as many partitions.
    (last,) = spark.range(1 << 16).select(f.spark_partition_id().alias("partition")).agg(f.max("partition")).collect()[0]
    return int(last) + 1


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
    tasks end (over Spark Connect, as they and all before them end). An interrupt cancels the tasks. Raises what Spark raises.
    """
    if not items:
        return []
    from pyspark import InheritableThread, cloudpickle

    context = None if over_connect(spark) else spark.sparkContext
    done: Any = _Sum() if context is None else context.accumulator(0)
    group = f"sprocketmq-{uuid.uuid4()}"
    outcome: dict[int, R] = {}
    failed: list[BaseException] = []
    # A DataFrame, because clients of Spark Connect have no RDDs. A range of n rows in n partitions has one row in each.
    one = _task(work, [cloudpickle.dumps(item) for item in items], None if context is None else done.add)
    frame = spark.range(0, len(items), 1, len(items)).mapInArrow(one, "item LONG, noted LONG, result BINARY")

    def run() -> None:
        try:
            if context is None:
                spark.addTag(group)
                rows: Iterable[Any] = frame.toLocalIterator()
            else:
                context.setJobGroup(group, title, interruptOnCancel=True)
                rows = frame.collect()
            for item, noted, result in rows:
                outcome[item] = pickle.loads(result)  # noqa: S301 - from our own task
                if context is None:
                    done.add(noted)
        except BaseException as e:  # noqa: BLE001 - raised in the thread that waits
            failed.append(e)

    thread: threading.Thread = InheritableThread(target=run, session=spark, name="sprocketmq-job", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            if on_progress is not None:
                on_progress(int(done.value))
    except BaseException:
        if context is None:
            spark.interruptTag(group)
        else:
            context.cancelJobGroup(group)
        thread.join()
        raise
    if failed:
        raise failed[0]
    return [outcome[i] for i in range(len(items))]


class _Sum:
    """A sum of the driver, with the interface of an accumulator."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> None:
        self.value += amount


def _task(
    work: Callable[[T, Callable[[int], None]], R], pickled: Sequence[bytes], add: Callable[[int], None] | None
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """Return a function for ``mapInArrow`` that does the work of the items whose numbers it is given."""
    driver = __version__

    def one(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        from pyspark import cloudpickle

        check_driver_version(driver)
        for batch in batches:
            for item in batch.column(0).to_pylist():
                noted: list[int] = []
                result = work(pickle.loads(pickled[item]), noted.append)  # noqa: S301 - from our own driver
                if add is not None:
                    add(sum(noted))
                columns = {"item": [item], "noted": [sum(noted)], "result": [cloudpickle.dumps(result)]}
                yield pa.RecordBatch.from_pydict(columns)

    return one
