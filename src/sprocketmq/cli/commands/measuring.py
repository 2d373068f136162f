"""``sprocketmq bench``: its commands."""

from pathlib import Path
from typing import Annotated

import typer

from sprocketmq.cli.cluster_options import for_any_cluster
from sprocketmq.cli.commands.options import Json
from sprocketmq.cli.target import Target
from sprocketmq.errors import ConfigError

bench_app = typer.Typer(name="bench", help="Measure brokers.", no_args_is_help=True, rich_markup_mode=None)


@bench_app.callback()
def bench() -> None:
    """Measure brokers."""


@bench_app.command("batch")
@for_any_cluster
def bench_batch(
    target: Target | None,
    seconds: Annotated[float, typer.Option(min=0.1, max=600.0, help="Send for this long in each way.")] = 3.0,
    messages: Annotated[int | None, typer.Option(min=1, help="Send at most this many in each way.")] = None,
    size: Annotated[int, typer.Option(min=1, max=4 << 20, metavar="BYTES", help="Size of each body.")] = 1024,
    in_flight: Annotated[int, typer.Option(min=1, max=100_000, help="Messages in flight at a time.")] = 1000,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Messages in each explicit batch.")] = 100,
    queues: Annotated[int, typer.Option(min=1, max=256, help="Queues of each topic.")] = 8,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write a chart to this file.")] = None,
    json: Json = False,
) -> None:
    """Send the same messages singly, in explicit batches, with AutoBatch, and with AutoBatch to batch queues, side by side.

    Latencies are per message, with explicit batches per batch. For brokers that were not started here, CPU time is unknown, and disk usage
    is the growth of their logs, whoever writes to them. Exit code 1 when a send failed.
    """
    from sprocketmq.cli import bench

    options = bench.BenchOptions(target, seconds, messages, body_bytes=size, in_flight=in_flight, batch=batch, queues=queues, plot=plot)
    raise typer.Exit(bench.run(options, as_json=json))


@bench_app.command("omb")
@for_any_cluster
def bench_omb(
    target: Target | None,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORKLOAD]", help="A workload file, or a name that --list shows; result files with --compare."),
    ] = None,
    driver: Annotated[str, typer.Option(help="Whose client to measure.", metavar="sprocketmq|apache|kafka")] = "sprocketmq",
    driver_config: Annotated[Path | None, typer.Option(metavar="FILE.yaml", help="Settings of the driver.")] = None,
    option: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="One setting of the driver; may be repeated.")] = None,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="Measure for this long, such as 30s or 5m.")] = None,
    warm_up: Annotated[str | None, typer.Option(metavar="TIME", help="Send for this long before measuring.")] = None,
    producer_workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that send.")] = 1,
    consumer_workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that receive.")] = 1,
    server_pid: Annotated[list[int] | None, typer.Option(metavar="PID", help="Count the CPU time of this server; may be repeated.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the result here.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the picture here; default: beside the result.")] = None,
    workloads: Annotated[bool, typer.Option("--list", help="Show the workloads that come with the package.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Show result files beside each other.")] = False,
    json: Json = False,
) -> None:
    """Run a workload of the OpenMessaging benchmark: producers and consumers in processes of their own, rates, latencies, CPU time.

    Ctrl-C ends the run early, and what was measured is written. Exit code 1 when a send failed.
    """
    from sprocketmq.cli import omb

    if workloads:
        raise typer.Exit(omb.show_list(as_json=json))
    if compare:
        raise typer.Exit(omb.compare(files or [], plot, as_json=json))
    if files is None or len(files) != 1:
        raise ConfigError("name one workload: a file, or one that sprocketmq bench omb --list shows")
    options = omb.OmbOptions(
        files[0],
        target,
        driver,
        driver_config,
        option or (),
        duration,
        warm_up,
        producer_workers,
        consumer_workers,
        server_pid or (),
        output,
    )
    raise typer.Exit(omb.run(options, plot, as_json=json))
