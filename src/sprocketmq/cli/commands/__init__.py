"""The typer application: the tree of commands, one module a subject.

Every command but ``serve``, ``namesrv``, ``broker`` and ``dashboard`` runs from here; those are listed for
``--help`` and run by ``cli.serving``.
"""

from typing import Annotated

import typer

import sprocketmq
from sprocketmq.cli import serving
from sprocketmq.cli.commands import brokers, messages, stores
from sprocketmq.cli.commands.demo import demo
from sprocketmq.cli.commands.groups import group_app
from sprocketmq.cli.commands.measuring import bench_app
from sprocketmq.cli.commands.options import PASS_ON
from sprocketmq.cli.commands.security import acl_app, secure_app, user_app
from sprocketmq.cli.commands.topics import topic_app
from sprocketmq.cli.pipeline import pipeline_app
from sprocketmq.cli.serving_options import DESCRIPTIONS

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


def _list_serving_verb(verb: str) -> None:
    def command(context: typer.Context) -> None:
        raise typer.Exit(serving.run([verb, *context.args]))

    app.command(verb, help=DESCRIPTIONS[verb], context_settings=PASS_ON, add_help_option=False)(command)


for _verb in DESCRIPTIONS:
    _list_serving_verb(_verb)
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
app.command("demo", context_settings=PASS_ON, add_help_option=False)(demo)
for _group in (brokers.cluster_app, topic_app, group_app, secure_app, user_app, acl_app, bench_app, pipeline_app):
    app.add_typer(_group)
