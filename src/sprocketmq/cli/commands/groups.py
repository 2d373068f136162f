"""``sprocketmq group``: its commands."""

from typing import Annotated

import typer

from sprocketmq.cli.cluster_options import for_cluster
from sprocketmq.cli.commands.options import Group, Json, Topic
from sprocketmq.cli.target import Target

group_app = typer.Typer(
    name="group", help="Create, list, show, reset and delete consumer groups.", no_args_is_help=True, rich_markup_mode=None
)


@group_app.command("list")
@for_cluster
def group_list(
    target: Target,
    cluster: Annotated[str | None, typer.Option(help="Only groups of this cluster's brokers.")] = None,
    system: Annotated[bool, typer.Option("--all", help="Include RocketMQ's own groups.")] = False,
    json: Json = False,
) -> None:
    """List consumer groups, one per line."""
    from sprocketmq.cli import group

    group.list_groups(target, cluster=cluster, system=system, as_json=json)


@group_app.command("show")
@for_cluster
def group_show(target: Target, name: Group, json: Json = False) -> None:
    """Show the settings of a group and its members that are online."""
    from sprocketmq.cli import group

    group.show(target, name, as_json=json)


@group_app.command("create")
@for_cluster
def group_create(
    target: Target,
    name: Group,
    max_reconsume_times: Annotated[int, typer.Option(metavar="N", help="Failures after which a message becomes a dead letter.")] = 16,
    retry_queues: Annotated[int, typer.Option(metavar="N", help="Queues of the group's retry topic; 0 drops messages that fail.")] = 1,
    orderly: Annotated[bool, typer.Option("--orderly", help="Members consume each queue in order.")] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="The group gets no messages.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Only on brokers of this cluster.")] = None,
    broker: Annotated[str | None, typer.Option(help="Only on this broker.")] = None,
    json: Json = False,
) -> None:
    """Create a consumer group, or change one that exists."""
    from sprocketmq.cli import group

    group.create(
        target,
        name,
        max_reconsume_times=max_reconsume_times,
        retry_queues=retry_queues,
        orderly=orderly,
        enabled=not disabled,
        cluster=cluster,
        broker=broker,
        as_json=json,
    )


@group_app.command("delete")
@for_cluster
def group_delete(
    target: Target,
    name: Group,
    keep_offsets: Annotated[bool, typer.Option("--keep-offsets", help="A new group of this name continues where this one was.")] = False,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="Also delete its dead letters.")] = False,
    json: Json = False,
) -> None:
    """Delete a consumer group with its retry topic and offsets. Stop its members first."""
    from sprocketmq.cli import group

    group.delete(target, name, keep_offsets=keep_offsets, dead_letters=dead_letters, as_json=json)


@group_app.command("progress")
@for_cluster
def group_progress(
    target: Target,
    name: Group,
    topic: Annotated[str | None, typer.Option(help="Only this topic; default: all topics the group has read.")] = None,
    json: Json = False,
) -> None:
    """Show how far a group has read each queue, and its lag."""
    from sprocketmq.cli import group

    group.progress(target, name, topic, as_json=json)


@group_app.command("reset")
@for_cluster
def group_reset(
    target: Target,
    name: Group,
    topic: Topic,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="first|last|TIME", help="Where to continue; TIME (epoch seconds or ISO 8601): at messages stored then or later."
        ),
    ] = None,
    offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="Continue at this offset of --queue.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only this queue.")] = None,
    broker: Annotated[str | None, typer.Option(help="The queue's broker, if several have a queue of that number.")] = None,
    json: Json = False,
) -> None:
    """Move a group to other offsets of a topic; running members follow."""
    from sprocketmq.cli import group

    group.reset(target, name, topic, to=to, offset=offset, queue=queue, broker=broker, as_json=json)
