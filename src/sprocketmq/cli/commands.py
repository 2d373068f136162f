"""The typer application: every verb but the serving ones runs from here; those are listed for `--help` and run by ``serving``."""

from pathlib import Path
from typing import Annotated

import typer

import sprocketmq
from sprocketmq.cli import serving
from sprocketmq.cli.pipeline import pipeline_app

app = typer.Typer(
    name="sprocketmq",
    help="Apache RocketMQ's batch model, native to Python: broker, nameserver and tools.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
topic_app = typer.Typer(name="topic", help="Look after topics.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(topic_app)
group_app = typer.Typer(name="group", help="Look after consumer groups.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(group_app)
bench_app = typer.Typer(name="bench", help="Measure.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(bench_app)
app.add_typer(pipeline_app)

DEFAULT_NAMESRV = "127.0.0.1:9876"

Namesrv = Annotated[str, typer.Option(envvar="NAMESRV_ADDR", metavar="HOST:PORT", help="Nameservers, several joined by ';'.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.")]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"sprocketmq {sprocketmq.__version__}")
        raise typer.Exit


_PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _list_serving_verb(verb: str) -> None:
    def command(context: typer.Context) -> None:
        raise typer.Exit(serving.run([verb, *context.args]))

    app.command(verb, help=serving.DESCRIPTIONS[verb], context_settings=_PASS_ON, add_help_option=False)(command)


for _verb in serving.DESCRIPTIONS:
    _list_serving_verb(_verb)


# --- topics -------------------------------------------------------------------------------------------------------------


@topic_app.command("list")
def topic_list(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Annotated[str | None, typer.Option(help="Only topics of this cluster.")] = None,
    system: Annotated[bool, typer.Option("--all", help="Also RocketMQ's own topics.")] = False,
    json: Json = False,
) -> None:
    """List topics, one a line, with the type of their queues and messages."""
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
    """Show which brokers hold a topic."""
    from sprocketmq.cli import topic

    topic.route(namesrv, name, as_json=json)


@topic_app.command("status")
def topic_status(name: Topic, namesrv: Namesrv = DEFAULT_NAMESRV, json: Json = False) -> None:
    """Show every queue of a topic: first and next offset, messages, time of the last one."""
    from sprocketmq.cli import topic

    topic.status(namesrv, name, as_json=json)


# --- groups -------------------------------------------------------------------------------------------------------------


@group_app.command("list")
def group_list(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Annotated[str | None, typer.Option(help="Only groups of this cluster's brokers.")] = None,
    system: Annotated[bool, typer.Option("--all", help="Also RocketMQ's own groups.")] = False,
    json: Json = False,
) -> None:
    """List consumer groups, one a line."""
    from sprocketmq.cli import group

    group.list_groups(namesrv, cluster=cluster, system=system, as_json=json)


@group_app.command("show")
def group_show(name: Group, namesrv: Namesrv = DEFAULT_NAMESRV, json: Json = False) -> None:
    """Show how a group is set up, and who is online in it."""
    from sprocketmq.cli import group

    group.show(namesrv, name, as_json=json)


@group_app.command("create")
def group_create(
    name: Group,
    max_reconsume_times: Annotated[int, typer.Option(metavar="N", help="Failures after which a message becomes a dead letter.")] = 16,
    retry_queues: Annotated[int, typer.Option(metavar="N", help="Queues of the group's retry topic; 0: what fails is dropped.")] = 1,
    orderly: Annotated[bool, typer.Option("--orderly", help="Its members consume each queue in order.")] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="It gets no messages.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Only on brokers of this cluster.")] = None,
    broker: Annotated[str | None, typer.Option(help="Only on this broker.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Create a consumer group, or change one that exists."""
    from sprocketmq.cli import group

    group.create(
        namesrv,
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
def group_delete(
    name: Group,
    keep_offsets: Annotated[bool, typer.Option("--keep-offsets", help="A group of this name then goes on where this one was.")] = False,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="Also delete its dead letters.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Delete a consumer group with its retry topic and offsets. Stop its members first."""
    from sprocketmq.cli import group

    group.delete(namesrv, name, keep_offsets=keep_offsets, dead_letters=dead_letters, as_json=json)


@group_app.command("progress")
def group_progress(
    name: Group,
    topic: Annotated[str | None, typer.Option(help="Only this topic; default: all the group has read from.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Show how far a group has read each queue, and how many messages it lacks."""
    from sprocketmq.cli import group

    group.progress(namesrv, name, topic, as_json=json)


@group_app.command("reset")
def group_reset(
    name: Group,
    topic: Topic,
    to: Annotated[
        str | None,
        typer.Option(metavar="first|last|TIME", help="Go on there; TIME in epoch seconds or ISO 8601: what was stored then or later."),
    ] = None,
    offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="Go on at this offset of --queue.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only this queue.")] = None,
    broker: Annotated[str | None, typer.Option(help="The queue's broker, where several have one of that number.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Have a group go on elsewhere in a topic, also while members run."""
    from sprocketmq.cli import group

    group.reset(namesrv, name, topic, to=to, offset=offset, queue=queue, broker=broker, as_json=json)


# --- messages -----------------------------------------------------------------------------------------------------------


@app.command("produce")
def produce(
    topic: Topic,
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read this file instead of standard input.")] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Each line is a JSON object with body, tag, keys, properties.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="All of the input is one message.")] = False,
    tag: Annotated[str | None, typer.Option(help="Tag of every message.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Key of every message; may be repeated.")] = None,
    batch: Annotated[bool, typer.Option("--batch/--no-batch", help="Gather messages into batches, or send each by itself.")] = True,
    batch_queues: Annotated[
        bool, typer.Option("--batch-queues", help="Create a missing topic, with batch queues, which store a batch as one record.")
    ] = False,
    group: Annotated[str, typer.Option(help="Producer group.")] = "sprocketmq-cli",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Send standard input to a topic: a message for each line, unless told otherwise. Empty lines are left out.

    A topic that does not exist yet is created by the brokers, with plain queues, unless --batch-queues asks for others. SIGINT and SIGTERM
    end the input: what was read is sent, answered and counted.
    """
    from sprocketmq.cli import produce

    options = produce.Options(
        topic, file, jsonl=jsonl, whole=whole, tag=tag, keys=tuple(key or ()), batch=batch, batch_queues=batch_queues, group=group
    )
    raise typer.Exit(produce.run(namesrv, options, as_json=json))


@app.command("consume")
def consume(
    topic: Topic,
    start: Annotated[
        str, typer.Option("--from", metavar="first|last|TIME", help="Where to start; TIME in epoch seconds or ISO 8601.")
    ] = "last",
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many messages.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.0, metavar="SECONDS", help="Stop after so long without a message.")] = None,
    tag: Annotated[str, typer.Option(metavar="EXPRESSION", help="Only these tags: 'a || b'.")] = "*",
    group: Annotated[str | None, typer.Option(help="Read as a member of this consumer group, which remembers what was read.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of standard output.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write bodies as they are, without line ends.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Print the messages of a topic, one a line; until interrupted, unless told otherwise.

    Without --group nobody's position changes. With --json every line is an object that `produce --jsonl` reads back.
    """
    from sprocketmq.cli import consume

    options = consume.Options(
        topic, start=start, count=count, timeout_s=timeout, expression=tag, group=group, output=output, raw=raw, as_json=json
    )
    raise typer.Exit(consume.run(namesrv, options, as_json=json))


@app.command("query")
def query(
    topic: Topic,
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="One of the messages' keys, or a message id.", show_default=False)
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Messages with this tag instead.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, metavar="N", help="With --offset: the message at a place of this queue.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="The message's place in --queue.")] = None,
    broker: Annotated[str | None, typer.Option(help="The queue's broker, where several have one of that number.")] = None,
    count: Annotated[int, typer.Option(min=1, max=64, help="At most so many, the newest.")] = 64,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Stored at this time or later; epoch seconds or ISO 8601.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Stored at this time or earlier.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write bodies as they are, without line ends.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Print the messages of a topic that have a key, an id, a tag or a place, one a line, the oldest first. Exit code 1 when there are none.

    An id is the one their producer gave them, or the broker's. Messages inside batches are found like all others. With --json every line is
    an object that `produce --jsonl` reads back.
    """
    from sprocketmq.cli import query

    options = query.Options(topic, key, count=count, since=since, until=until, raw=raw, tag=tag, queue=queue, offset=offset, broker=broker)
    raise typer.Exit(query.run(namesrv, options, as_json=json))


# --- measuring ---------------------------------------------------------------------------------------------------------


@bench_app.callback()
def bench() -> None:
    """Measure what a broker and this machine can do."""


@bench_app.command("batch")
def bench_batch(
    seconds: Annotated[float, typer.Option(min=0.1, max=600.0, help="Send for so long in each way.")] = 3.0,
    messages: Annotated[int | None, typer.Option(min=1, help="Send at most so many in each way.")] = None,
    size: Annotated[int, typer.Option(min=1, max=4 << 20, metavar="BYTES", help="Size of a message's body.")] = 1024,
    in_flight: Annotated[int, typer.Option(min=1, max=100_000, help="Messages on their way at a time.")] = 1000,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Messages of an explicit batch.")] = 100,
    queues: Annotated[int, typer.Option(min=1, max=256, help="Queues of the topics.")] = 8,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the figures into this file.")] = None,
    namesrv: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Measure the brokers of these nameservers; default: one started for it.")
    ] = None,
    json: Json = False,
) -> None:
    """Send the same messages singly, in explicit batches, with AutoBatch, and with AutoBatch to batch queues, side by side.

    Latencies are those of a message; with explicit batches, of a batch. Other brokers tell neither their CPU time nor more of their
    disks than the growth of their logs, whoever fills them. Exit code 1 when a send failed.
    """
    from sprocketmq.cli import bench

    options = bench.Options(namesrv, seconds, messages, body_bytes=size, in_flight=in_flight, batch=batch, queues=queues, plot=plot)
    raise typer.Exit(bench.run(options, as_json=json))


# --- stores on disk -----------------------------------------------------------------------------------------------------


StorePath = Annotated[str, typer.Argument(metavar="DIR", help="The store's directory.")]


@app.command("inspect")
def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A store's directory, or any file in one.")],
    offset: Annotated[
        int | None, typer.Option(metavar="N", help="Start here: a log position, a queue offset, or the number of an index entry.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Show so many; 0 for all. Default: 20, and all with --json.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only messages of this topic.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Every field of each, and the messages inside batches.")] = False,
    as_hex: Annotated[bool, typer.Option("--hex", help="The bytes, with the fields marked.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Show what is in a store, or in any of its files. Nothing is changed; a broker may be running."""
    from sprocketmq.cli import inspect

    options = inspect.Options(path, offset=offset, limit=limit, topic=topic, full=full, hex=as_hex, json=json)
    raise typer.Exit(inspect.run(options))


@app.command("verify")
def verify(
    directory: StorePath,
    index: Annotated[bool, typer.Option("--index/--no-index", help="Also compare the key index with the messages' keys.")] = True,
    json: Json = False,
) -> None:
    """Check a store: every record, every queue entry, the key index, offsets. Nothing is changed; a broker may be running.

    Exit code 0: in order. 1: problems, each with what helps. 2: it could not be checked.
    """
    from sprocketmq.cli import verify

    raise typer.Exit(verify.run(directory, index=index, as_json=json))


@app.command("rebuild")
def rebuild(
    directory: StorePath,
    to: Annotated[str | None, typer.Option(metavar="NEW", help="Put the new files here and only read DIR; default: in place.")] = None,
    only: Annotated[
        str | None, typer.Option(metavar="PARTS", help="consumequeue, batchconsumequeue, index, checkpoint; commas between them.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Processes that read the log; 0: one a core, at most 4.")] = 0,
    json: Json = False,
) -> None:
    """Make queues, key index and checkpoint anew from the commit log. No broker may be running on the store."""
    from sprocketmq.cli import rebuild

    raise typer.Exit(rebuild.run(directory, to=to, only=only, workers=workers, as_json=json))


@app.command("demo", context_settings=_PASS_ON, add_help_option=False)
def demo(context: typer.Context) -> None:
    """Run the main job: 336,776 flights through a broker and Spark into a table."""
    from sprocketmq.cli import demo

    raise typer.Exit(demo.run(context.args))
