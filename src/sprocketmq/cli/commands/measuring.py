"""``sprocketmq bench``: its commands."""

from pathlib import Path
from typing import Annotated

import typer

from sprocketmq.cli.cluster_options import for_any_cluster
from sprocketmq.cli.commands.options import Json
from sprocketmq.cli.target import Target

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
