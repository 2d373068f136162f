"""What shells are told when somebody presses Tab: bash runs the script that it gets, zsh and fish ask as their scripts do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sprocketmq.cli.serving_verbs import DESCRIPTIONS

COMMAND = [sys.executable, "-m", "sprocketmq"]


def said(command, **environ):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command, env=os.environ | {"PATH": path} | environ, capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL
    )
    assert done.stderr == ""
    return done.stdout


def bash(line):
    words = " ".join(f"'{word}'" for word in line.split(" "))
    script = """eval "$(_SPROCKETMQ_COMPLETE=source_bash sprocketmq)"
        COMP_WORDS=(TYPED) COMP_CWORD=LAST
        _sprocketmq_completion sprocketmq
        printf "%s\\n" "${COMPREPLY[@]}" """
    return said(["bash", "-c", script.replace("TYPED", words).replace("LAST", str(line.count(" ")))]).split()


def zsh(line):
    printed = said(COMMAND, _SPROCKETMQ_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)
    assert printed.startswith("_arguments "), "what the script evaluates"
    return re.findall(r'^(?:_arguments .*\(\()?"([^"]*)"', printed, re.MULTILINE)


def fish(line):
    ask = {"_SPROCKETMQ_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": line}
    return [one.partition("\t")[0] for one in said(COMMAND, **ask).splitlines()]


def options(text):
    """Return the options that a help of argparse describes."""
    described = re.findall(r"^ {2}(?:-h, )?(--\S+?)(?:,| |$)(?: (--no-[\w-]+))?", text, re.MULTILINE)
    return sorted(name for names in described for name in names if name)


@pytest.mark.parametrize("shell", [bash, zsh, fish])
def test_a_shell_completes_commands_and_their_options(shell):
    assert shell("sprocketmq se") == ["serve", "secure"]
    assert shell("sprocketmq serve --names") == ["--namesrv-port"]
    assert shell("sprocketmq topic create orders --que") == ["--queues"]


@pytest.mark.parametrize("shell", [bash, zsh, fish])
def test_a_shell_is_told_no_option_again_that_was_typed(shell):
    assert shell("sprocketmq proxy --tls-only --tls-") == ["--tls-ca", "--tls-cert", "--tls-key"]


@pytest.mark.parametrize("verb", [*DESCRIPTIONS, "demo"])
def test_every_option_that_a_command_s_help_describes_is_completed_as_one_line(cli, verb):
    shown = cli(verb, "--help")
    assert shown.code == 0
    assert sorted(fish(f"sprocketmq {verb} --")) == options(shown.out)


@pytest.mark.parametrize("part", ["sprocketmq.cli.serving", "sprocketmq.cli.config", "asyncio", "ssl", "msgspec", "pydantic"])
def test_what_a_shell_asks_imports_neither_servers_nor_clients_nor_other_slow_packages(part):
    program = f"import sys; import sprocketmq.cli.commands; print({part!r} in sys.modules)"
    assert said([sys.executable, "-c", program]) == "False\n"
