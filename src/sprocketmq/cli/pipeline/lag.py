"""``sprocketmq pipeline lag``: how far a reader is behind its topics, once or live."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sprocketmq.cli.cluster_options import for_cluster
from sprocketmq.cli.pipeline import Json, security_of
from sprocketmq.cli.target import Target

if TYPE_CHECKING:
    from sprocketmq.spark.jobs.lag import Lag

COLUMNS = ("topic", "broker", "queue", "read to", "end", "behind", "lost")


@for_cluster
def command(
    target: Target,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="A consumer group.")] = None,
    topic: Annotated[str | None, typer.Option(help="With --group: only this topic.")] = None,
    checkpoint: Annotated[str | None, typer.Option(metavar="DIR", help="A streaming query, by its checkpoint directory.")] = None,
    table: Annotated[str | None, typer.Option(metavar="DIR", help="A table written by `land`.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until interrupted.")] = False,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="With --watch: interval.")] = 2.0,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --watch: end after N times.")] = None,
    json: Json = False,
) -> None:
    """Show how far a consumer group, a streaming query or a landed table is behind the end of its topics. Needs no Spark session."""
    from sprocketmq.errors import ConfigError
    from sprocketmq.spark.jobs.lag import LagReader

    if sum(one is not None for one in (group, checkpoint, table)) != 1:
        raise ConfigError("say whose lag: one of --group, --checkpoint and --table")
    if topic is not None and group is None:
        raise ConfigError("--topic goes with --group: a query and a table have their own topics; leave it out")
    if not watch and count is not None:
        raise ConfigError("--count goes with --watch; leave it out")
    secure = security_of(target)
    with LagReader(target.namesrv, group=group, topic=topic, checkpoint=checkpoint, table=table, secure=secure) as reader:
        if watch:
            look_again_and_again(reader.read, every_s=every, looks=count, as_json=json)
        else:
            show(reader.read(), None, as_json=json)


def look_again_and_again(
    read: "Callable[[], Lag]", *, every_s: float, looks: int | None, as_json: bool, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Show a lag every ``every_s`` seconds, ``looks`` times or until interrupted: in place on a terminal, else one after the other.

    When a broker or nameserver does not answer, the error is printed and the next attempt follows; permanent errors are raised.
    """
    from sprocketmq.cli.errors import fail
    from sprocketmq.cli.output import live_display
    from sprocketmq.errors import RetriableError

    live = live_display() if sys.stdout.isatty() and not as_json else None
    before = None
    done = 0
    if live is not None:
        live.start()
    try:
        while True:
            try:
                now = read()
            except RetriableError as e:
                fail(f"{e}; looking again in {every_s:g} s")
            else:
                if live is None:
                    show(now, before, as_json=as_json)
                else:
                    live.update(_rendered(now, before), refresh=True)
                before = now
            done += 1
            if looks is not None and done >= looks:
                return
            sleep(every_s)
    finally:
        if live is not None:
            live.stop()


def show(now: "Lag", before: "Lag | None", *, as_json: bool) -> None:
    """Print one measurement: a table and a line below it, or a JSON document."""
    from sprocketmq.cli.output import print_json, print_table
    from sprocketmq.spark.jobs.lag import rates

    if as_json:
        value = now.as_dict()
        if before is not None:
            value["read_per_s"], value["added_per_s"] = (round(rate, 1) for rate in rates(before, now))
        print_json(value)
        sys.stdout.flush()
        return
    print_table(COLUMNS, _cells(now))
    print(f"\n{line(now, before)}", flush=True)


def line(now: "Lag", before: "Lag | None") -> str:
    """Return a measurement as one line; with the one ``before``, also the rate and when the end will be reached."""
    from sprocketmq.cli.output import plural
    from sprocketmq.spark.jobs.lag import rates

    text = f"{now.kind} {now.what}: {plural(now.lag, 'message')} behind"
    if now.lost:
        text += f", {now.lost:,} removed before they were read"
    if now.gone:
        text += f", {plural(now.gone, 'queue')} not there any more"
    if before is not None:
        read, added = rates(before, now)
        text += f"; {read:,.0f}/s read, {added:,.0f}/s added"
        if now.lag and read > added:
            text += f", at the end in {_duration(now.lag / (read - added))}"
    return text


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _cells(now: "Lag") -> list[tuple[str, ...]]:
    return [
        (
            one.queue.topic,
            one.queue.broker_name,
            str(one.queue.queue_id),
            "-" if one.position is None else f"{one.position:,}",
            "gone" if one.end is None else f"{one.end:,}",
            f"{one.lag:,}",
            f"{one.lost:,}",
        )
        for one in now.queues
    ]


def _rendered(now: "Lag", before: "Lag | None") -> Any:
    """Return the table for a terminal: the 40 queues with the greatest lag, greatest first."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for i, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if i < 2 else "right", no_wrap=True)
    ordered = sorted(zip(now.queues, _cells(now), strict=True), key=lambda pair: -pair[0].lag)
    shown = ordered[:40]
    for one, cells in shown:
        table.add_row(*map(Text, cells), style="red" if one.lost or one.end is None else "yellow" if one.lag else "")
    more = [Text(f"and {len(ordered) - len(shown)} queues less far behind")] if len(ordered) > len(shown) else []
    return Group(table, *more, Text(), Text(line(now, before), style="bold"))
