"""``sprocketmq pipeline compact``: merge the small files of a landed table into large ones."""

from typing import Annotated, Any

import typer

from sprocketmq.cli.pipeline import DEFAULT_MEMORY, Cores, Json, Master, Memory, SparkOptions, run_spark_job


def command(
    table: Annotated[str, typer.Argument(metavar="DIR", help="A table written by `land`.")],
    file_mib: Annotated[int, typer.Option(min=1, metavar="MIB", help="Size that files grow to.")] = 256,
    compression: Annotated[str, typer.Option(metavar="CODEC", help="snappy, zstd, lz4, gzip or none.")] = "snappy",
    sync: Annotated[bool, typer.Option("--sync", help="Flush new files to the disk before they count, against power loss.")] = False,
    master: Master = None,
    cores: Cores = None,
    memory: Memory = DEFAULT_MEMORY,
    json: Json = False,
) -> None:
    """Merge the small files of a landed table into large ones. Readers that use its list of files see each row once at any moment."""
    from sprocketmq.spark.jobs.land.compaction import check_request

    check_request(table, compression)

    def work(spark: Any, report: Any) -> Any:
        from sprocketmq.spark.jobs.land import compact

        return compact(spark, table, file_bytes=file_mib << 20, compression=compression, sync=sync, progress=report)

    run_spark_job(f"compacting {table}", work, spark=SparkOptions(master, cores, memory), as_json=json)
