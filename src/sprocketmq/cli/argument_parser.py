"""The parser of commands that do without typer, as they must start at once. Its errors look like those of the other commands."""

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from sprocketmq.cli.errors import EXIT_USAGE


class ArgumentParser(argparse.ArgumentParser):
    """A parser of options only, without abbreviations. ``settings`` are names that ``--set`` takes, for those who try them as options."""

    def __init__(self, verb: str, *, settings: Iterable[str] = (), **arguments: Any) -> None:
        super().__init__(prog=f"sprocketmq {verb}", allow_abbrev=False, **arguments)
        self._settings = frozenset(settings)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the options, or end the process with what is wrong."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self._refusal(unknown[0]))
        return options

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where to read on, and end the process with exit code 2."""
        print(f"Usage: {self.prog} [OPTIONS]\nTry '{self.prog} -h' for help.\n\nError: {message}", file=sys.stderr)
        sys.exit(EXIT_USAGE)

    def _refusal(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"Got unexpected extra argument ({argument})"
        option = argument.partition("=")[0]
        setting = option.lstrip("-").replace("-", "_")
        if setting in self._settings:
            return f"No such option: {option} (it is a setting: --set {setting}=VALUE)"
        near = difflib.get_close_matches(option, self._option_string_actions, 1)
        return f"No such option: {option}" + (f" (did you mean {near[0]}?)" if near else "")
