"""Options of a command by variables of the environment, and where each of them came from: ``dashboard`` and ``proxy``.

``serve``, ``namesrv`` and ``broker`` have settings instead (``config.py``), which a file may give as well.
"""

import argparse
import difflib
import json
import os
from collections.abc import Sequence
from typing import Any

from sprocketmq.cli.argument_parser import ArgumentParser
from sprocketmq.errors import ConfigError

# Not variables: they belong to one command line.
_ONLY_TYPED = ("help", "show_config", "stop_with_stdin")
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_NOT_GIVEN = object()


class OptionsWithVariables(ArgumentParser):
    """A parser each of whose options may also be a variable, ``SPROCKETMQ_VERB_SET_OPTION``; the command line overrides them.

    A flag is 1 or 0; an option that may be repeated has its values joined by ``,``.
    """

    def __init__(self, verb: str, **arguments: Any) -> None:
        self._prefix = f"SPROCKETMQ_{verb.upper()}_SET_"
        self._added: dict[str, argparse.Action] = {}
        super().__init__(verb, **arguments)
        self.epilog = (
            f"Each option may also be a variable of the environment, such as {self._prefix}PORT=8000; the command line overrides it."
        )

    def add_argument(self, *names: Any, **arguments: Any) -> argparse.Action:
        """Add an option."""
        action = super().add_argument(*names, **arguments)
        self._added[action.dest] = action
        return action

    def read(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, dict[str, str]]:
        """Return the options, and by name where those come from that are not defaults. Raises ConfigError for a variable it cannot use."""
        options = self.parse_args(arguments, argparse.Namespace(**dict.fromkeys(self._added, _NOT_GIVEN)))
        given = self._variables()
        sources = {}
        for name, action in self._added.items():
            if getattr(options, name) is not _NOT_GIVEN:
                sources[name] = max(action.option_strings, key=len)
            elif name in given:
                setattr(options, name, given[name])
                sources[name] = self._variable(name)
            else:
                setattr(options, name, action.default)
        return options, sources

    def as_toml(self, options: argparse.Namespace, sources: dict[str, str]) -> str:
        """Return all options with where they come from."""
        lines = [
            f"{name} = {_toml(getattr(options, name))}  # {sources.get(name, 'default')}" for name in self._added if name not in _ONLY_TYPED
        ]
        return "\n".join(lines)

    def _variable(self, name: str) -> str:
        return self._prefix + name.upper()

    def _variables(self) -> dict[str, Any]:
        found = {}
        known = {self._variable(name): name for name in self._added if name not in _ONLY_TYPED}
        for variable in sorted(name for name in os.environ if name.startswith(self._prefix)):
            if variable not in known:
                meant = difflib.get_close_matches(variable.removeprefix(self._prefix), [name.upper() for name in known.values()], 1)
                advice = f": did you mean {self._prefix}{meant[0]}?" if meant else "; remove it"
                raise ConfigError(f"{variable} is not an option of `{self.prog}`{advice}")
            found[known[variable]] = _value(self._added[known[variable]], variable, os.environ[variable])
        return found


def _value(action: argparse.Action, variable: str, text: str) -> Any:
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        if text.lower() not in _YES + _NO:
            raise ConfigError(f"{variable}={text!r}: write 1 or 0")
        return text.lower() in _YES
    convert = action.type if callable(action.type) else str
    texts = text.split(",") if isinstance(action.default, list) else [text]
    try:
        values = [convert(one) for one in texts if one or not isinstance(action.default, list)]
    except (argparse.ArgumentTypeError, ValueError) as e:
        reason = str(e) if isinstance(e, argparse.ArgumentTypeError) else f"{text!r} is not a number"
        raise ConfigError(f"{variable}: {reason}") from None
    return values if isinstance(action.default, list) else values[0]


def _toml(value: object) -> str:
    return json.dumps("" if value is None else value, ensure_ascii=False, default=str)  # the same in TOML for such values
