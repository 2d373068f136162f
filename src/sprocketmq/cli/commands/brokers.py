"""``sprocketmq cluster``, ``cluster config``, ``failover``, ``doctor`` and ``top``: their commands."""

from typing import Annotated

import typer

from sprocketmq.cli.cluster_options import for_cluster
from sprocketmq.cli.commands.options import Json
from sprocketmq.cli.target import Target

Where = Annotated[str, typer.Argument(metavar="WHERE", help="Name of a broker, HOST:PORT of one, or 'namesrv'.")]

cluster_app = typer.Typer(
    name="cluster",
    help="Show all brokers: role, address, version, and how far slaves are behind their masters.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
config_app = typer.Typer(
    name="config", help="Show and change settings of running brokers and nameservers.", no_args_is_help=True, rich_markup_mode=None
)
cluster_app.add_typer(config_app)


@cluster_app.callback()
@for_cluster
def cluster(target: Target, context: typer.Context, json: Json = False) -> None:
    """Show all brokers: role, address, version, and how far slaves are behind their masters."""
    if context.invoked_subcommand is None:
        from sprocketmq.cli import cluster as it

        it.show(target, as_json=json)


@config_app.command("get")
@for_cluster
def config_get(
    target: Target,
    where: Where,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these settings.")] = None,
    json: Json = False,
) -> None:
    """Show the settings of a broker or nameserver, under Apache's names."""
    from sprocketmq.cli import cluster_config as it

    it.get(target, where, keys or [], as_json=json)


@config_app.command("set")
@for_cluster
def config_set(
    target: Target,
    where: Where,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="New values, by Apache's names.")],
    json: Json = False,
) -> None:
    """Change settings while a broker or nameserver runs; each takes all changes or none."""
    from sprocketmq.cli import cluster_config as it

    it.change(target, where, settings, as_json=json)


@for_cluster
def failover(
    target: Target,
    broker_name: Annotated[str, typer.Argument(metavar="BROKER_NAME", help="Name of the broker whose master is replaced.")],
    to: Annotated[int | None, typer.Option(min=1, metavar="ID", help="Promote this slave; default: the one with most of the log.")] = None,
    accept_loss: Annotated[int, typer.Option(min=0, metavar="BYTES", help="Promote a slave that lacks up to so much of the log.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
    json: Json = False,
) -> None:
    """Make a slave the master. The former master is fenced: when it comes back it follows."""
    from sprocketmq.cli import failover as it

    it.failover(target, broker_name, to=to, accept_loss=accept_loss, dry_run=dry_run, as_json=json)


@for_cluster
def doctor(target: Target, json: Json = False) -> None:
    """Look at the whole cluster, and say what is wrong and what to do: addresses, clocks, disks, routes, groups left behind."""
    from sprocketmq.cli import doctor as it

    raise typer.Exit(it.doctor(target, as_json=json))


@for_cluster
def top(
    target: Target,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="Time between two samples.")] = 2.0,
    rows: Annotated[int, typer.Option(min=1, max=1000, help="Rows of each table.")] = 10,
    once: Annotated[bool, typer.Option("--once", help="Print the rates of one interval, and end.")] = False,
    json: Json = False,
) -> None:
    """Show live rates: brokers, topics with messages per send, groups with their lag, and the queues that lag most."""
    from sprocketmq.cli import top as it

    raise typer.Exit(it.top(target, interval_s=interval, rows=rows, once=once, as_json=json))
