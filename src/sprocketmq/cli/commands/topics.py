"""``sprocketmq topic``: its commands."""

import sys
from typing import Annotated

import typer

from sprocketmq.cli.cluster_options import for_cluster
from sprocketmq.cli.commands.options import Json, Topic
from sprocketmq.cli.target import Target

topic_app = typer.Typer(name="topic", help="Create, list, show and delete topics.", no_args_is_help=True, rich_markup_mode=None)


@topic_app.command("list")
@for_cluster
def topic_list(
    target: Target,
    cluster: Annotated[str | None, typer.Option(help="Only topics of this cluster.")] = None,
    system: Annotated[bool, typer.Option("--all", help="Include RocketMQ's own topics.")] = False,
    json: Json = False,
) -> None:
    """List topics, one per line, with the type of their queues and messages."""
    from sprocketmq.cli import topic

    topic.list_topics(target, cluster=cluster, system=system, as_json=json)


@topic_app.command("create")
@for_cluster
def topic_create(
    target: Target,
    name: Topic,
    queues: Annotated[int, typer.Option(help="Queues on each broker.")] = 8,
    cluster: Annotated[str | None, typer.Option(help="Only on brokers of this cluster.")] = None,
    broker: Annotated[str | None, typer.Option(help="Only on this broker.")] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A topic attribute, as queue.type=BatchCQ for batch queues; may be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Create a topic, or change one that exists."""
    from sprocketmq.cli import topic

    topic.create(target, name, queues=queues, cluster=cluster, broker=broker, attributes=attribute or [], as_json=json)


@topic_app.command("delete")
@for_cluster
def topic_delete(
    target: Target,
    name: Topic,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask at a terminal.")] = False,
    json: Json = False,
) -> None:
    """Delete a topic and its messages. Asks first when standard input is a terminal."""
    from sprocketmq.cli import topic

    topic.delete(target, name, ask=not yes and sys.stdin.isatty(), as_json=json)


@topic_app.command("route")
@for_cluster
def topic_route(target: Target, name: Topic, json: Json = False) -> None:
    """Show the brokers of a topic."""
    from sprocketmq.cli import topic

    topic.route(target, name, as_json=json)


@topic_app.command("status")
@for_cluster
def topic_status(target: Target, name: Topic, json: Json = False) -> None:
    """Show every queue of a topic: first and next offset, messages, time of the last message."""
    from sprocketmq.cli import topic

    topic.status(target, name, as_json=json)
