"""``sprocketmq pipeline rebuild-index``: rebuild the queues and the key index of a store from its commit log, with Spark."""

from typing import Annotated

import typer

from sprocketmq.cli.pipeline import DEFAULT_MEMORY, Cores, Json, Master, Memory, SparkOptions, run_spark_job


def command(
    directory: Annotated[str, typer.Argument(metavar="STORE", help="Directory of the store, visible to all workers.")],
    to: Annotated[str | None, typer.Option(metavar="DIR", help="Write the files there; the store is only read and may be in use.")] = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Any of consumequeue,batchconsumequeue,index,checkpoint. Default: all.")
    ] = None,
    split_mib: Annotated[int, typer.Option(min=0, metavar="MIB", help="How much of the log a task reads; 0: automatic.")] = 0,
    master: Master = None,
    cores: Cores = None,
    memory: Memory = DEFAULT_MEMORY,
    json: Json = False,
) -> None:
    """Rebuild ConsumeQueues, BatchConsumeQueues and key index of a store from its commit log, with Spark.

    The store must not be in use, except with --to. New files are written beside the old ones, checked against the log, and replace them.
    """
    from sprocketmq.cli.rebuild import parts_of
    from sprocketmq.spark.jobs.rebuild_index import check_request, rebuild_index

    what = parts_of(only)
    check_request(directory, to=to, what=what, split_bytes=split_mib << 20)
    run_spark_job(
        f"rebuilding {directory}",
        lambda spark, report: rebuild_index(spark, directory, to=to, what=what, split_bytes=split_mib << 20, progress=report),
        spark=SparkOptions(master, cores, memory),
        as_json=json,
    )
