"""``sprocketmq inspect``, ``verify`` and ``rebuild``."""

from typing import Annotated

import typer

from sprocketmq.cli.commands.options import Json

StorePath = Annotated[str, typer.Argument(metavar="DIR", help="The store's directory.")]


def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A store's directory, or any file in one.")],
    offset: Annotated[
        int | None, typer.Option(metavar="N", help="Start here: a log offset, a queue offset, or the number of an index entry.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Show this many; 0 for all. Default: 20, and all with --json.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only messages of this topic.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every field, and the messages inside batches.")] = False,
    as_hex: Annotated[bool, typer.Option("--hex", help="Show bytes, with the fields marked.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
) -> None:
    """Show the content of a store or one of its files. Nothing is changed; a broker may be running."""
    from sprocketmq.cli import inspect

    options = inspect.InspectOptions(path, offset=offset, limit=limit, topic=topic, full=full, hex=as_hex, json=json)
    raise typer.Exit(inspect.run(options))


def verify(
    directory: StorePath,
    index: Annotated[bool, typer.Option("--index/--no-index", help="Also compare the key index with the messages' keys.")] = True,
    json: Json = False,
) -> None:
    """Check a store: every record, every queue entry, the key index, offsets. Nothing is changed; a broker may be running.

    Exit code 0: in order. 1: problems, each with its remedy. 2: the store could not be checked.
    """
    from sprocketmq.cli import verify

    raise typer.Exit(verify.run(directory, index=index, as_json=json))


def rebuild(
    directory: StorePath,
    to: Annotated[str | None, typer.Option(metavar="NEW", help="Write the new files here and only read DIR; default: in place.")] = None,
    only: Annotated[
        str | None, typer.Option(metavar="PARTS", help="Any of consumequeue, batchconsumequeue, index, checkpoint, separated by commas.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Processes that read the log; 0: one per core, at most 4.")] = 0,
    json: Json = False,
) -> None:
    """Rebuild queues, key index and checkpoint from the commit log. No broker may be running on the store."""
    from sprocketmq.cli import rebuild

    raise typer.Exit(rebuild.run(directory, to=to, only=only, workers=workers, as_json=json))
