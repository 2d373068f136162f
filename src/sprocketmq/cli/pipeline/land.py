"""``sprocketmq pipeline land``: write topics into a table, once or continuously."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from sprocketmq.cli.cluster_options import for_cluster
from sprocketmq.cli.pipeline import DEFAULT_MEMORY, Cores, Json, Master, Memory, SparkOptions, run_spark_job, security_of
from sprocketmq.cli.target import Target


@for_cluster
def command(
    target: Target,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics to land.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The table: a directory, a URI, or the name of an Iceberg table.")],
    every: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="SECONDS", help="Repeat at this interval until interrupted. Default: land once what is available."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="first|last|TIME",
            help="Where a new table begins. Default: first. An existing table continues where it ended.",
        ),
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="NAMES", help="Columns of a new table, separated by commas.")] = None,
    partition_by: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Partitions of a new table: topic, date, or topic,date.")
    ] = None,
    format: Annotated[str, typer.Option("--format", metavar="FORMAT", help="parquet, delta or iceberg.")] = "parquet",  # noqa: A002
    writer: Annotated[
        str | None, typer.Option(metavar="direct|spark", help="Written by the reading tasks (parquet in a shared directory), or by Spark.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum messages of a batch.")] = 1_000_000,
    compact_after: Annotated[int | None, typer.Option(min=2, metavar="N", help="Merge small files whenever N batches have them.")] = None,
    compression: Annotated[str, typer.Option(metavar="CODEC", help="snappy, zstd, lz4, gzip or none.")] = "snappy",
    sync: Annotated[bool, typer.Option("--sync", help="Flush each batch to the disk before it counts, against power loss.")] = False,
    checkpoint: Annotated[str | None, typer.Option(metavar="DIR", help="With --writer spark: directory of the checkpoint.")] = None,
    option: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the source; may be repeated.")] = None,
    master: Master = None,
    cores: Cores = None,
    memory: Memory = DEFAULT_MEMORY,
    json: Json = False,
) -> None:
    """Land topics into a table, each message exactly once, also after a crash. The next run continues where this one ended."""
    from sprocketmq.spark.version_checks import check_packages

    check_packages()
    from sprocketmq.spark.jobs.land import plan_landing

    # Report wrong arguments before a session starts.
    plan = plan_landing(
        topics,
        to,
        nameserver=target.namesrv,
        secure=security_of(target),
        format=format,
        writer=writer,
        columns=columns,
        partition_by=partition_by,
        batch_messages=batch,
        every_s=every,
        compact_after=compact_after,
        compression=compression,
        sync=sync,
        checkpoint=checkpoint,
        options=source_options(option or [], start),
    )
    if every is None:  # a service that starts beside its brokers waits for them, as long as the option pullTimeoutMs says
        plan.check_topics()

    def work(spark: Any, report: Any) -> Any:
        with stopped_by_signals(every is not None) as stop:
            return plan.run(spark, stop=stop, progress=report)

    run_spark_job(f"landing {', '.join(topics)}", work, spark=SparkOptions(master, cores, memory), as_json=json)


def source_options(pairs: list[str], start: str | None) -> dict[str, str]:
    """Return the options of the source from ``--option`` and ``--from``. Raises ConfigError."""
    from sprocketmq.cli.consume import start_of
    from sprocketmq.errors import ConfigError

    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name.strip() and equals):
            raise ConfigError(f"--option takes NAME=VALUE, not {pair!r}")
        options[name.strip()] = value
    if start is None:
        return options
    given = next((name for name in options if name.lower().startswith("starting")), None)
    if given is not None:
        raise ConfigError(f"--from and --option {given}=... say the same thing: leave one out")
    place = start_of(start, "--from")
    if isinstance(place, str):
        return {**options, "startingOffsets": {"first": "earliest", "last": "latest"}[place]}
    return {**options, "startingTimestamp": str(round(place * 1000))}


@contextlib.contextmanager
def stopped_by_signals(wanted: bool) -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets if ``wanted``; a second signal has its usual effect."""
    stop = threading.Event()
    if not wanted:
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(*_: object) -> None:
        stop.set()
        restore()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        restore()
