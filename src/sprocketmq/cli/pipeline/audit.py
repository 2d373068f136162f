"""``sprocketmq pipeline audit``: compare the queues and the key index of a store with its commit log, with Spark."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sprocketmq.cli.pipeline import DEFAULT_MEMORY, Cores, Json, Master, Memory, SparkOptions, run_spark_job

if TYPE_CHECKING:
    from sprocketmq.spark.jobs.audit.merge import AuditFinding


def command(
    directory: Annotated[str, typer.Argument(metavar="STORE", help="Directory of the store, visible to all workers.")],
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Also write the report as one HTML page.")] = None,
    index: Annotated[bool, typer.Option(help="Also check the key index.")] = True,
    split_mib: Annotated[int, typer.Option(min=0, metavar="MIB", help="How much of the log a task reads; 0: automatic.")] = 0,
    master: Master = None,
    cores: Cores = None,
    memory: Memory = DEFAULT_MEMORY,
    json: Json = False,
) -> None:
    """Compare queues and key index of a store with its commit log, with Spark: gaps, duplicates, orphans, damage.

    Nothing is changed, and a broker may be running. The exit code is 0 when there are no errors or warnings, else 1.
    """
    from sprocketmq.errors import ConfigError
    from sprocketmq.spark.jobs.audit import audit, check_request

    check_request(directory, split_bytes=split_mib << 20)
    if html is not None and not os.path.isdir(os.path.dirname(os.path.abspath(html))):
        raise ConfigError(f"--html {html}: there is no such directory to write the file in")
    summary = run_spark_job(
        f"auditing {directory}",
        lambda spark, report: audit(spark, directory, index=index, split_bytes=split_mib << 20, progress=report),
        spark=SparkOptions(master, cores, memory),
        as_json=json,
    )
    if html is not None:
        summary.save_html(html)
    if not json:
        _print(summary.findings)
    if not summary.ok:
        raise typer.Exit(1)


def _print(findings: "tuple[AuditFinding, ...]") -> None:
    """Print findings: a table on a terminal, else a line of tab-separated fields for each."""
    from sprocketmq.cli.output import clean

    rows = []
    for found in findings:
        queue = "" if found.topic is None else clean(found.topic) + ("" if found.queue_id is None else f"/{found.queue_id}")
        where = clean(found.path) + ("" if found.position is None else f", byte {found.position}")
        offset = "" if found.queue_offset is None else str(found.queue_offset)
        rows.append((found.severity, found.kind, queue, offset, f"{found.count}", where, clean(found.what), clean(found.next_step)))
    if not rows:
        return
    if not sys.stdout.isatty():
        for row in (("severity", "kind", "queue", "offset", "count", "where", "what", "next"), *rows):
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"error": "red", "warning": "yellow", "note": "blue"}
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("severity", "kind", "queue", "offset", "count"):
        table.add_column(name, no_wrap=name != "queue", overflow="fold", justify="right" if name in ("offset", "count") else "left")
    table.add_column("what, where, and what next", overflow="fold", ratio=1)
    for severity, kind, queue, offset, count, where, what, following in rows:
        text = Text(f"{what}\n{where}")
        text.append(f"\nnext: {following}" if following else "", style="dim")
        table.add_row(Text(severity, style=colours[severity]), kind, Text(queue), offset, count, text)
    Console().print(table)
