"""Blocks of the documentation that need a system which is not there: their syntax, and what they name of ours."""

import ast
import configparser
import inspect
import re
import shlex
import subprocess
import tomllib
from itertools import pairwise

import pytest
import typer
import yaml
from tests.documented import BLOCKS, LEFT_OUT, ROOT

from sprocketmq.cli import demo, serving
from sprocketmq.cli.commands import app
from sprocketmq.cli.serving_verbs import DESCRIPTIONS
from sprocketmq.spark.jobs.land import land

FOUND = [block for block in BLOCKS if block.name in LEFT_OUT]
PROMPT = re.compile(r"^(\w*\$ +)", re.MULTILINE)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
PARSERS = {verb: serving.parser_of(verb) for verb in DESCRIPTIONS} | {"demo": demo.parser()}


def lines(block):
    """Return the command lines of a block of a shell: without prompts and comments, each in words, pipelines in their parts."""
    text = PROMPT.sub("", block.text).replace("\\\n", " ")
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|")
        lexer.whitespace_split = True
        part = []
        for word in lexer:
            if word == "|":
                yield part
                part = []
            else:
                part.append(word)
        if part:
            yield part


def ours(words):
    """Return the arguments of ``sprocketmq`` in a command line, which may be one of kubectl or docker; None without any."""
    if words[0] == "sprocketmq":
        return words[1:]
    if "--" in words and words[words.index("--") + 1] == "sprocketmq":
        return words[words.index("--") + 2 :]
    if words[:2] == ["docker", "run"]:  # the entry point of the image is sprocketmq
        return words[words.index("mq-image") + 1 :]
    return None


def accept(arguments):
    """Parse a command line as the command does, and raise what it would say."""
    verb, *rest = arguments
    if verb in PARSERS:
        PARSERS[verb].parse_args(rest)
        return
    command, name = typer.main.get_command(app), "sprocketmq"
    context = typer.Context(command, info_name=name)
    while (child := getattr(command, "get_command", lambda *_: None)(context, arguments[0] if arguments else "")) is not None:
        command, (name, *arguments) = child, arguments
        context = typer.Context(command, info_name=name, parent=context)
    if hasattr(command, "get_command") and arguments and not arguments[0].startswith("-"):
        raise ValueError(f"no such command: {arguments[0]}")
    command.make_context(name, list(arguments), parent=context.parent)


def test_a_command_line_that_is_not_accepted_fails_here():
    with pytest.raises(SystemExit):
        accept(["serve", "--no-such-option"])
    for wrong in (["topic", "create", "--no-such-option", "t"], ["topic", "no-such-verb"], ["no-such-verb"]):
        with pytest.raises(Exception, match=r"(?i)no such"):
            accept(wrong)


@pytest.mark.parametrize("block", [block for block in FOUND if block.language in ("sh", "bash", "console")], ids=str)
def test_a_shell_parses_the_block_and_our_command_takes_its_options(block):
    subprocess.run(["bash", "-n", "-c", PROMPT.sub("", block.text)], check=True, timeout=30)
    for words in lines(block):
        if (arguments := ours(words)) is not None:
            accept(arguments)


@pytest.mark.parametrize("block", [block for block in FOUND if "pip install" in block.text or "make " in block.text], ids=str)
def test_extras_and_targets_that_are_installed_or_made_exist(block):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in lines(block):
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), words
        if words[:2] == ["pip", "install"]:
            named = [name for word in words for extras in re.findall(r"\[(.*)\]", word) for name in extras.split(",")]
            assert set(named) <= EXTRAS.keys(), words


@pytest.mark.parametrize("block", [block for block in FOUND if block.text.startswith(("kubectl", "docker"))], ids=str)
def test_files_and_names_that_are_given_to_kubectl_and_docker_exist(block):
    deployed = [one for path in (ROOT / "deploy/kubernetes").glob("*.yaml") for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    names = {f"{one['kind'].lower()}/{one['metadata']['name']}" for one in deployed}
    for words in lines(block):
        for option, value in pairwise(words):
            if option in ("-f", "--file"):
                assert (ROOT / value).is_file(), words
        assert {word for word in words if re.fullmatch(r"(statefulset|deployment)/\S+", word)} <= names, words
        if words[:2] == ["kubectl", "exec"]:
            assert f"statefulset/{words[2].removesuffix('-0')}" in names


@pytest.mark.parametrize("block", [block for block in FOUND if "mqadmin" in block.text], ids=str)
def test_a_command_of_mqadmin_is_in_the_table_of_those_that_work(block):
    table = (ROOT / "docs/guide/mqadmin.md").read_text(encoding="utf-8")
    for words in lines(block):
        if "mqadmin" in words:
            assert f"| `{words[words.index('mqadmin') + 1]}` | works" in table


@pytest.mark.parametrize("block", [block for block in FOUND if block.language == "python"], ids=str)
def test_a_fragment_is_python_and_calls_what_there_is(block):
    tree = ast.parse(block.text)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "land":
            inspect.signature(land).bind(*call.args, **{word.arg: word.value for word in call.keywords})
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), str(block), "exec"), {})


@pytest.mark.parametrize("block", [block for block in FOUND if block.language in ("toml", "ini")], ids=str)
def test_a_file_for_another_program_has_its_format(block):
    if block.language == "toml":
        assert tomllib.loads(block.text)
        return
    unit = configparser.ConfigParser()
    unit.optionxform = str
    unit.read_string(block.text)
    accept(shlex.split(unit["Service"]["ExecStart"])[1:])


def test_every_block_that_is_left_out_is_checked():
    checked = {"sh", "bash", "console", "python", "toml", "ini"}
    assert {block.language for block in FOUND} <= checked
