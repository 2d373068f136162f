"""Commands that parse with argparse, listed among those of typer: for ``--help``, and so that shells complete their options.

Their options are made from the parser of argparse when a shell asks for them, so that other commands import none of this.
"""

import argparse
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand


def add_command(
    app: typer.Typer, verb: str, *, description: str, parser: Callable[[], argparse.ArgumentParser], run: Callable[[Sequence[str]], int]
) -> None:
    """Add a command whose words ``run`` takes, and parses as ``parser()`` does."""

    class Argparsed(TyperCommand):
        def get_params(self, ctx: Any) -> list[Any]:
            return [*super().get_params(ctx), *_options(verb, parser())]

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if ctx.resilient_parsing:  # a shell completes what is typed
                super().parse_args(ctx, args)
            else:
                ctx.args = list(args)
            return args

    def command(context: typer.Context) -> None:
        raise typer.Exit(run(context.args))

    app.command(verb, cls=Argparsed, help=description, add_help_option=False)(command)


def _options(verb: str, parser: argparse.ArgumentParser) -> list[Any]:
    """Return what ``parser`` accepts as parameters of a command of typer."""

    def accepts(**_: object) -> None: ...

    parameters = {action.dest: _annotation(action) for action in parser._actions}  # noqa: SLF001 - argparse has no public list of them
    kind = inspect.Parameter.KEYWORD_ONLY
    accepts.__annotations__ = parameters
    accepts.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, default=None, annotation=annotation) for name, annotation in parameters.items()]
    )
    single = typer.Typer(add_completion=False)
    single.command(verb, add_help_option=False)(accepts)
    return typer.main.get_command(single).params


def _annotation(action: argparse.Action) -> Any:
    told = (action.help or "") % vars(action)
    if isinstance(action, argparse.BooleanOptionalAction):
        return Annotated[bool | None, typer.Option("/".join(action.option_strings), help=told)]
    if action.nargs == 0:
        return Annotated[bool | None, typer.Option(*action.option_strings, help=told)]
    metavar = action.metavar if isinstance(action.metavar, str) else None
    value = typer.Option(*action.option_strings, metavar=metavar, help=told)
    return Annotated[Path | None, value] if action.type is Path else Annotated[str | None, value]
