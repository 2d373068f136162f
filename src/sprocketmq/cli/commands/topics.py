"""``sprocketmq topic``: its commands."""

from typing import Annotated

import typer

from sprocketmq.cli.commands.options import DEFAULT_NAMESRV, Json, Namesrv, Topic

topic_app = typer.Typer(name="topic", help="Create, list, show and delete topics.", no_args_is_help=True, rich_markup_mode=None)


@topic_app.command("list")
def topic_list(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Annotated[str | None, typer.Option(help="Only topics of this cluster.")] = None,
    system: Annotated[bool, typer.Option("--all", help="Include RocketMQ's own topics.")] = False,
    json: Json = False,
) -> None:
    """List topics, one per line, with the type of their queues and messages."""
    from sprocketmq.cli import topic

    topic.list_topics(namesrv, cluster=cluster, system=system, as_json=json)


@topic_app.command("create")
def topic_create(
    name: Topic,
    queues: Annotated[int, typer.Option(help="Queues on each broker.")] = 8,
    cluster: Annotated[str | None, typer.Option(help="Only on brokers of this cluster.")] = None,
    broker: Annotated[str | None, typer.Option(help="Only on this broker.")] = None,
    attribute: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A topic attribute; may be repeated.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Create a topic, or change one that exists."""
    from sprocketmq.cli import topic

    topic.create(namesrv, name, queues=queues, cluster=cluster, broker=broker, attributes=attribute or [], as_json=json)


@topic_app.command("delete")
def topic_delete(name: Topic, namesrv: Namesrv = DEFAULT_NAMESRV, json: Json = False) -> None:
    """Delete a topic and its messages."""
    from sprocketmq.cli import topic

    topic.delete(namesrv, name, as_json=json)


@topic_app.command("route")
def topic_route(name: Topic, namesrv: Namesrv = DEFAULT_NAMESRV, json: Json = False) -> None:
    """Show the brokers of a topic."""
    from sprocketmq.cli import topic

    topic.route(namesrv, name, as_json=json)


@topic_app.command("status")
def topic_status(name: Topic, namesrv: Namesrv = DEFAULT_NAMESRV, json: Json = False) -> None:
    """Show every queue of a topic: first and next offset, messages, time of the last message."""
    from sprocketmq.cli import topic

    topic.status(namesrv, name, as_json=json)
