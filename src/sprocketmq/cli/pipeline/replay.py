"""``sprocketmq pipeline replay``: send stored messages again."""

from pathlib import Path
from typing import Annotated

import typer

from sprocketmq.cli.cluster_options import for_cluster
from sprocketmq.cli.pipeline import DEFAULT_MEMORY, Cores, Json, Master, Memory, SparkOptions, run_spark_job, security_of
from sprocketmq.cli.target import Target


@for_cluster
def command(
    target: Target,
    source: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="The topic to read.")] = None,
    dead_letters: Annotated[str | None, typer.Option(metavar="GROUP", help="Read the dead letters of a consumer group instead.")] = None,
    to: Annotated[str | None, typer.Option(metavar="TOPIC", help="Target topic. Default for dead letters: their original topics.")] = None,
    to_namesrv: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Nameserver of another cluster to send to.")] = None,
    to_secure: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --to-namesrv: credentials and trusted certificate for that cluster.")
    ] = None,
    only_group: Annotated[
        bool, typer.Option("--only-group", help="Send dead letters to the group's retry topic, so that no other group gets them.")
    ] = False,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only messages stored at or after this time; epoch seconds or ISO 8601.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only messages stored before this time.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="Only messages with this tag; may be repeated.")] = None,
    key: Annotated[list[str] | None, typer.Option(metavar="KEY", help="Only messages with this key; may be repeated.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only messages that meet this condition on the columns of the source.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most N messages, the oldest first.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing; print what would be sent.")] = False,
    keep_ids: Annotated[bool, typer.Option("--keep-ids", help="Keep message ids, to copy a topic.")] = False,
    keep_queues: Annotated[bool, typer.Option("--keep-queues", help="Send each message to the queue with its original number.")] = False,
    mark: Annotated[bool, typer.Option("--mark/--no-mark", help="Add property REPLAYED_FROM.")] = True,
    option: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the sink, such as sendMode=single.")] = None,
    master: Master = None,
    cores: Cores = None,
    memory: Memory = DEFAULT_MEMORY,
    json: Json = False,
) -> None:
    """Send stored messages again: dead letters, a period of time, or a topic to another topic or cluster.

    Try it with --dry-run first. Messages keep body, tag, keys and properties.
    """
    from sprocketmq.cli.consume import seconds_of
    from sprocketmq.errors import ConfigError
    from sprocketmq.protocol.names import DLQ_PREFIX
    from sprocketmq.spark.version_checks import check_packages

    check_packages()
    from sprocketmq.cli.pipeline.land import source_options
    from sprocketmq.spark.jobs.replay import check_request, check_source, replay

    def time_ms(name: str, text: str | None) -> int | None:
        return None if text is None else round(seconds_of(text, name) * 1000)

    if (source is None) == (dead_letters is None):
        raise ConfigError("name one thing to read: a topic, or --dead-letters GROUP")
    topic = source if source is not None else f"{DLQ_PREFIX}{dead_letters}"
    given = source_options(option or [], None)
    begin, end = time_ms("--since", since), time_ms("--until", until)
    if to_secure is not None and to_namesrv is None:
        raise ConfigError("--to-secure goes with --to-namesrv; leave it out")
    # Report wrong arguments before a session starts.
    check_request(
        topic,
        to=to,
        to_nameserver=to_namesrv,
        only_group=only_group,
        since_ms=begin,
        until_ms=end,
        limit=limit,
        options=given,
    )
    check_source(topic, target.namesrv, security_of(target))
    run_spark_job(
        f"replaying {topic}",
        lambda spark, report: replay(
            spark,
            topic,
            nameserver=target.namesrv,
            secure=security_of(target),
            to=to,
            to_nameserver=to_namesrv,
            to_secure=None if to_secure is None else str(to_secure.absolute()),
            only_group=only_group,
            since_ms=begin,
            until_ms=end,
            tags=tag or (),
            keys=key or (),
            where=where,
            limit=limit,
            dry_run=dry_run,
            keep_ids=keep_ids,
            keep_queues=keep_queues,
            mark=mark,
            options=given,
            progress=report,
        ),
        spark=SparkOptions(master, cores, memory),
        as_json=json,
    )
