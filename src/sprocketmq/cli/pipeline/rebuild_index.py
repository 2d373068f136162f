"""``sprocketmq pipeline rebuild-index``: make the index files of a store anew from its commit log, with Spark."""

from typing import Annotated

import typer

from sprocketmq.cli.pipeline import DEFAULT_MEMORY, Cores, Json, Master, Memory, SparkOptions, run_spark_job


def command(
    directory: Annotated[str, typer.Argument(metavar="STORE", help="The store's directory, where every worker sees it.")],
    to: Annotated[str | None, typer.Option(metavar="DIR", help="Make the files there; the store is only read, also in use.")] = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Of consumequeue,batchconsumequeue,index,checkpoint. Default: all.")
    ] = None,
    split_mib: Annotated[int, typer.Option(min=0, metavar="MIB", help="How much of the log a task reads; 0: as fits.")] = 0,
    master: Master = None,
    cores: Cores = None,
    memory: Memory = DEFAULT_MEMORY,
    json: Json = False,
) -> None:
    """Make ConsumeQueues, BatchConsumeQueues and key index of a store anew from its commit log, with Spark.

    The store must not be in use, except with --to. New files are made beside the old ones, checked against the log, and take their places.
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
