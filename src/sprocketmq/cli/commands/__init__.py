"""The typer application: the tree of commands, one module a subject.

Every command but the serving ones runs from here; those are listed for ``--help`` and completion, and run by ``cli.serving``, which
is imported only when a shell asks for their options: it takes longer than all of this.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

import sprocketmq
from sprocketmq.cli import demo
from sprocketmq.cli.commands import brokers, messages, stores
from sprocketmq.cli.commands.argparsed import add_command
from sprocketmq.cli.commands.groups import group_app
from sprocketmq.cli.commands.measuring import bench_app
from sprocketmq.cli.commands.security import acl_app, secure_app, user_app
from sprocketmq.cli.commands.topics import topic_app
from sprocketmq.cli.pipeline import pipeline_app
from sprocketmq.cli.serving_verbs import DESCRIPTIONS

app = typer.Typer(
    name="sprocketmq",
    help="Apache RocketMQ's batch model, native to Python: broker, nameserver and tools.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and exit.")] = False,
) -> None:
    """Handle the options that come before a command."""
    if version:
        typer.echo(f"sprocketmq {sprocketmq.__version__}")
        raise typer.Exit


def _serving_parser(verb: str) -> argparse.ArgumentParser:
    from sprocketmq.cli import serving

    return serving.parser_of(verb)


def _serve(verb: str, arguments: Sequence[str]) -> int:
    from sprocketmq.cli import serving

    return serving.run(verb, arguments)


for _verb, _description in DESCRIPTIONS.items():
    add_command(app, _verb, description=_description, parser=partial(_serving_parser, _verb), run=partial(_serve, _verb))
for _command in (
    brokers.failover,
    brokers.doctor,
    brokers.top,
    messages.produce,
    messages.consume,
    messages.query,
    messages.trace,
    stores.inspect,
    stores.verify,
    stores.rebuild,
):
    app.command(_command.__name__)(_command)
add_command(app, "demo", description=demo.DESCRIPTION, parser=demo.parser, run=demo.run)
for _group in (brokers.cluster_app, topic_app, group_app, secure_app, user_app, acl_app, bench_app, pipeline_app):
    app.add_typer(_group)
