"""Write the pages of ``docs/reference`` that are made from the code: ``python -m docs.tools.reference``. A test compares them with it.

``commands.md`` has the options of every command, ``client-options.md`` the arguments of every client class, ``errors.md`` all errors.
"""

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import typer.main

from sprocketmq import AdminClient, Batching, Producer, PullConsumer, PushConsumer, TlsConfig, TraceConfig, errors
from sprocketmq.cli import demo, serving, serving_verbs
from sprocketmq.cli.commands import app
from sprocketmq.cli.config import data_directory
from sprocketmq.embedded import LocalCluster

HERE = str(data_directory())  # of this machine
PAGES = Path(__file__).parents[1] / "reference"
ARGPARSED = {verb: serving.parser_of(verb) for verb in serving_verbs.DESCRIPTIONS} | {"demo": demo.parser()}


def shown() -> set[str]:
    """Return the names that the pages of the API show."""
    pages = (page.read_text(encoding="utf-8") for page in PAGES.glob("api-*.md"))
    return {name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}


def cell(text: object) -> str:
    """Return a text for a cell of a table."""
    return " ".join(str(text).replace("|", "\\|").replace("<", "&lt;").split())


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines) + "\n"


# --- commands -----------------------------------------------------------------------------------------------------------


def command_page() -> str:
    """Return the page of commands and options."""
    parts = [
        "# Commands and options\n",
        "Made from the code. How to use the commands: [the command line](../guide/cli.md). `sprocketmq COMMAND --help` prints the same.\n",
    ]
    for name, command in commands(typer.main.get_command(app), "sprocketmq"):
        verb = name.partition(" ")[2]
        parts.append(f"## {name}\n")
        if verb in ARGPARSED:
            parts.append(f"{sentence(ARGPARSED[verb].description)}\n")
            rows = [argparse_row(action) for action in ARGPARSED[verb]._actions]  # noqa: SLF001 - argparse has no public list of them
        else:
            parts.append(f"{sentence(command.help)}\n")
            rows = [click_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        if rows := [row for row in rows if row[0] not in ("`-h`, `--help`", "`--help`")]:
            parts.append(table(("argument or option", "default", "meaning"), rows))
    return "\n".join(parts)


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield each command that does something, with its whole name."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for verb, child in children.items():
        yield from commands(child, f"{name} {verb}")


def sentence(text: str | None) -> str:
    return at_home(" ".join((text or "").replace("<", "&lt;").split()))


def at_home(text: str) -> str:
    """Return a help text with the data directory of a usual Linux system."""
    return text.replace(HERE, "~/.local/share/sprocketmq")


def argparse_row(action: argparse.Action) -> tuple[str, str, str]:
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    names = [f"`{option}{value}`" for option in action.option_strings if not option.startswith("--no-")] or [
        f"`{action.metavar or action.dest}`"
    ]
    default = "" if action.default in (None, False, [], argparse.SUPPRESS) else f"`{action.default}`"
    return cell(", ".join(names)), at_home(default), at_home(cell(action.help or ""))


def click_row(parameter: Any) -> tuple[str, str, str]:
    argument = parameter.param_type_name == "argument"
    if argument:
        shown = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        flag = getattr(parameter, "is_flag", False)
        value = "" if flag else f" {parameter.metavar or 'VALUE'}"
        shown = ", ".join(f"`{option}{value}`" for option in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    given = default is not None and not callable(default) and default not in (False, (), []) and type(default).__name__ != "Sentinel"
    default = getattr(default, "value", default)
    if parameter.required:
        said = "required"
    elif given:
        said = f"`{'yes' if default is True else default}`"
    else:
        said = f"`${parameter.envvar}`" if parameter.envvar else ""
    return cell(shown), at_home(cell(said)), at_home(cell(getattr(parameter, "help", "") or ""))


# --- client options -----------------------------------------------------------------------------------------------------


def option_page() -> str:
    """Return the page with the arguments of the classes that users construct."""
    parts = [
        "# Client options\n",
        "Made from the code: the arguments of each class, their types and defaults. The classes of `sprocketmq.sync` take the same.",
        "Each class says what they mean: [producing](api-producing.md), [consuming](api-consuming.md), [administration](api-admin.md).\n",
    ]
    for kind in (Producer, Batching, PushConsumer, PullConsumer, AdminClient, TlsConfig, TraceConfig, LocalCluster):
        parts.append(f"## {kind.__name__}\n")
        parts.append(table(("argument", "type", "default"), [*arguments(kind)]))
    return "\n".join(parts)


def arguments(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, type as it is written, and default of each argument of a class."""
    source = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    if is_dataclass(kind):
        annotated = [part for part in ast.walk(source) if isinstance(part, ast.AnnAssign)]
        written = {ast.unparse(part.target): ast.unparse(part.annotation) for part in annotated}
        defaults = {field.name: field.default if field.default is not MISSING else None for field in fields(kind) if field.init}
    else:
        function = next(part for part in ast.walk(source) if isinstance(part, ast.FunctionDef) and part.name == "__init__")
        every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        written = {argument.arg: ast.unparse(argument.annotation) for argument in every if argument.annotation}
        defaults = {parameter.name: parameter.default for parameter in inspect.signature(kind).parameters.values()}
    for name, default in defaults.items():
        if name in written and name != "clock":
            yield f"`{name}`", f"`{cell(written[name])}`", "required" if default is inspect.Parameter.empty else f"`{default!r}`"


# --- errors -------------------------------------------------------------------------------------------------------------

NEXT_STEPS = {
    "ProtocolError": "Do not repeat the call. A peer or a file has bytes that the format does not allow, or a value does not fit it.",
    "RetriableError": "Nothing was stored: repeat the call later, or elsewhere. Producers have done so up to `retries` times already.",
    "FatalError": "Change something first: repeating the same call does not help.",
    "MaybeStoredError": "The message may be stored or not. Send it again if a repeat does no harm, and let consumers drop repeats.",
    "ConfigError": "Correct the argument, option, name or environment that the text names. It is a `ValueError` as well.",
}


def error_page() -> str:
    """Return the page of errors: under the base that says whether to try again, each error with its text and attributes."""
    parts = [
        "# Errors\n",
        "Made from the code. All errors are in `sprocketmq.errors` and derive from `SprocketError`; catch one of these five to decide",
        "what to do next. Words in capitals stand for values, which the error has as attributes. What servers and commands say beyond",
        "these is in [troubleshooting](../guide/troubleshooting.md).\n",
    ]
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and kind.__module__ == errors.__name__]
    for base, next_step in NEXT_STEPS.items():
        parts.append(f"## {base}\n\n{summary(getattr(errors, base))} **{next_step}**\n")
        for kind in kinds:
            if kind.__name__ != base and issubclass(kind, getattr(errors, base)):
                parts.append(f"### {kind.__name__}\n\n{summary(kind)}\n")
                parts += [f"> {' '.join(text.split()).replace('<', '&lt;')}\n" for text in [*texts(kind), *advice(kind)]]
                if attributes := error_attributes(kind):
                    parts.append(f"Data: {', '.join(f'`{name}`' for name in attributes)}.\n")
    return "\n".join(parts)


def error_attributes(kind: type) -> list[str]:
    """Return the names of the attributes that an error takes in its constructor."""
    made = "__init__" in {name for base in kind.__mro__ if base.__module__ == errors.__name__ for name in vars(base)}
    return (
        [name for name in inspect.signature(kind).parameters if name not in ("args", "kwargs", "message", "option", "next_step")]
        if made
        else []
    )


def advice(kind: type) -> list[str]:
    """Return what an error adds to its text, one for each problem."""
    found = vars(kind).get("_ADVICE", "")
    return [f"... {said}".replace("{detail}", "DETAIL") for said in (found.values() if isinstance(found, dict) else [found]) if said]


def summary(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").replace("``", "`").replace("<", "&lt;")


def texts(kind: type) -> Iterator[str]:
    """Yield the texts that a class passes to its base, with the names of values in capitals."""
    if "__init__" not in vars(kind):
        return
    source = ast.parse(textwrap.dedent(inspect.getsource(vars(kind)["__init__"])))
    local = {
        part.targets[0].id: part.value
        for part in ast.walk(source)
        if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name)
    }
    for call in ast.walk(source):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "__init__" and call.args:
            text = call.args[-1] if "SprocketError" in ast.unparse(call.func) else call.args[0]
            for option in branches(text):
                if isinstance(option, ast.JoinedStr | ast.Constant) and len(said := template(option, local)) > len("MESSAGE"):
                    yield said


def branches(text: ast.expr) -> Iterator[ast.expr]:
    if isinstance(text, ast.IfExp):
        yield from branches(text.body)
        yield from branches(text.orelse)
    else:
        yield text


def template(text: ast.expr, local: dict[str, ast.expr]) -> str:
    if isinstance(text, ast.Constant):
        return str(text.value)
    if not isinstance(text, ast.JoinedStr):
        return "..."
    parts = (placeholder(part.value, local) if isinstance(part, ast.FormattedValue) else ast.literal_eval(part) for part in text.values)
    return "".join(parts)


def placeholder(value: ast.expr, local: dict[str, ast.expr]) -> str:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "_word":
        value = value.args[0]
    if isinstance(value, ast.Name) and value.id in local:
        options = [template(option, {}) for option in branches(local[value.id]) if isinstance(option, ast.JoinedStr | ast.Constant)]
        said = max(options, key=len, default=value.id.upper())
        return said if len(options) < 2 or min(options, key=len) == "" else "|".join(options)
    named = [part for part in ast.walk(value) if isinstance(part, ast.Name | ast.Attribute)]
    own = [part.attr for part in named if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)]
    own = [name for name in own if name not in ("join", "format")] or [part.id for part in named if isinstance(part, ast.Name)]
    return own[0].upper() if own else "..."


GENERATED = {"commands.md": command_page, "client-options.md": option_page, "errors.md": error_page}

if __name__ == "__main__":
    for page, make in GENERATED.items():
        (PAGES / page).write_text(make(), encoding="utf-8")
