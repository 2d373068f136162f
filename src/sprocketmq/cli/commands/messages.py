"""``sprocketmq produce``, ``consume``, ``query`` and ``trace``."""

from pathlib import Path
from typing import Annotated

import typer

from sprocketmq.cli.cluster_options import for_cluster
from sprocketmq.cli.commands.options import Json, Topic
from sprocketmq.cli.target import Target


@for_cluster
def produce(
    target: Target,
    topic: Topic,
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read this file instead of standard input.")] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Each line is a JSON object with body, tag, keys, properties.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Send all of the input as one message.")] = False,
    tag: Annotated[str | None, typer.Option(help="Tag of every message.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Key of every message; may be repeated.")] = None,
    batch: Annotated[bool, typer.Option("--batch/--no-batch", help="Gather messages into batches, or send each on its own.")] = True,
    batch_queues: Annotated[
        bool, typer.Option("--batch-queues", help="Create a missing topic with batch queues, which store each batch as one record.")
    ] = False,
    group: Annotated[str, typer.Option(help="Producer group.")] = "sprocketmq-cli",
    trace: Annotated[bool, typer.Option("--trace", help="Write a trace of each message, for `sprocketmq trace`.")] = False,
    json: Json = False,
) -> None:
    """Send standard input to a topic, one message for each line by default. Empty lines are skipped.

    Brokers create a missing topic with plain queues, unless --batch-queues is given. SIGINT and SIGTERM end the input: lines that were read
    are sent, answered and counted.
    """
    from sprocketmq.cli import produce

    options = produce.ProduceOptions(
        topic,
        file,
        jsonl=jsonl,
        whole=whole,
        tag=tag,
        keys=tuple(key or ()),
        batch=batch,
        batch_queues=batch_queues,
        group=group,
        trace=trace,
    )
    raise typer.Exit(produce.run(target, options, as_json=json))


@for_cluster
def consume(
    target: Target,
    topic: Topic,
    start: Annotated[
        str, typer.Option("--from", metavar="first|last|TIME", help="Where to start; TIME in epoch seconds or ISO 8601.")
    ] = "last",
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many messages.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.0, metavar="SECONDS", help="Stop after this long without a message.")] = None,
    tag: Annotated[str, typer.Option(metavar="EXPRESSION", help="Only messages with these tags: 'a || b'.")] = "*",
    group: Annotated[str | None, typer.Option(help="Read as a member of this consumer group, and commit its offsets.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of standard output.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write bodies unchanged, without line ends.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="With --group: write a trace of each message, for `sprocketmq trace`.")] = False,
    json: Json = False,
) -> None:
    """Print the messages of a topic, one per line, until interrupted or as the options say.

    Without --group no committed offset changes. With --json every line is an object that `produce --jsonl` accepts.
    """
    from sprocketmq.cli import consume

    options = consume.ConsumeOptions(
        topic,
        start=start,
        count=count,
        timeout_s=timeout,
        expression=tag,
        group=group,
        output=output,
        raw=raw,
        as_json=json,
        trace=trace,
    )
    raise typer.Exit(consume.run(target, options, as_json=json))


@for_cluster
def query(
    target: Target,
    topic: Topic,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="A message key or a message id.", show_default=False)] = None,
    tag: Annotated[str | None, typer.Option(help="Messages with this tag instead.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, metavar="N", help="With --offset: the message at an offset of this queue.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="The message's offset in --queue.")] = None,
    broker: Annotated[str | None, typer.Option(help="The queue's broker, if several have a queue of that number.")] = None,
    count: Annotated[int, typer.Option(min=1, max=64, help="Print at most this many, the newest.")] = 64,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Stored at this time or later; epoch seconds or ISO 8601.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Stored at this time or earlier.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write bodies unchanged, without line ends.")] = False,
    json: Json = False,
) -> None:
    """Print the messages of a topic with a key, id, tag or offset, one per line, the oldest first. Exit code 1 when there are none.

    An id is the producer's or the broker's. Messages inside batches are found like all others. With --json every line is an object that
    `produce --jsonl` accepts.
    """
    from sprocketmq.cli import query

    options = query.QueryOptions(
        topic, key, count=count, since=since, until=until, raw=raw, tag=tag, queue=queue, offset=offset, broker=broker
    )
    raise typer.Exit(query.run(target, options, as_json=json))


@for_cluster
def trace(
    target: Target,
    msg_id: Annotated[str, typer.Argument(metavar="ID", help="The producer's id of a message, as `consume --json` shows it.")],
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="The topic that traces are in: RMQ_SYS_TRACE_TOPIC if not given.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Traces stored at this time or later; epoch seconds or ISO 8601.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Traces stored at this time or earlier.")] = None,
    json: Json = False,
) -> None:
    """Show the life of a message as a time line: when it was sent, which groups got it, what their handlers made of it.

    Only messages of clients with tracing switched on have a trace, Apache's clients included. Exit code 1 when there is none.
    """
    from sprocketmq.cli import trace

    raise typer.Exit(trace.run(target, trace.TraceOptions(msg_id, topic, since, until), as_json=json))
