"""``serve --dashboard PORT`` and ``serve --grpc PORT``: processes of their own beside the brokers, which take no time from them."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sprocketmq.cli.config import LOOPBACK_HOST, Settings
from sprocketmq.cli.logs import LogOptions, wrap_line
from sprocketmq.errors import ConfigError
from sprocketmq.net.address import parse_address
from sprocketmq.processes.supervisor import Supervisor

# The option of ``serve`` and the field of the ready line, by verb.
_NAMES = {"dashboard": "dashboard", "proxy": "grpc"}


class ServedBeside:
    """The supervised process of ``verb`` at ``place``, which is ``PORT`` or ``HOST:PORT``; its log lines go to ``put``.

    Raises ConfigError for another place.
    """

    def __init__(self, verb: str, place: str, settings: Settings, *, insecure: bool, logs: LogOptions, put: Callable[[str], None]) -> None:
        self._verb, self._field = verb, _NAMES[verb]
        self._host, self._port = _place(self._field, place)
        self._supervisor = Supervisor(restart=True, say=lambda name, line: put(wrap_line(name, line, logs.format)))
        self._options = ["--host", self._host, "--log-level", logs.level, "--log-format", logs.format]
        if settings.secure is not None:
            self._options += ["--secure", str(settings.secure)]
        elif settings.tls_mode == "enforcing":
            authority = settings.tls_ca_file
            self._options += ["--tls-ca", str(Path(authority).expanduser().absolute())] if authority else ["--tls"]
        if insecure:
            self._options.append("--insecure")

    def start(self, namesrv: str) -> str:
        """Start it and return its part of the ready line. Blocks; raises ChildFailed."""

        def command(before: Mapping[str, str]) -> Sequence[str]:
            port = _port(before[self._field]) if before else self._port
            return [self._verb, "--namesrv", namesrv, "--port", str(port), *self._options]

        self._supervisor.start({self._verb: command})
        return f" {self._field}={self._supervisor.ready(self._verb)[self._field]}"

    def stop(self) -> None:
        """Stop it; also ends a start that is under way. Blocks."""
        self._supervisor.stop()


def served_beside(options: argparse.Namespace, settings: Settings, *, logs: LogOptions, put: Callable[[str], None]) -> list[ServedBeside]:
    """Return the processes that the command line asks for. Raises ConfigError."""
    return [
        ServedBeside(verb, place, settings, insecure=options.insecure, logs=logs, put=put)
        for verb, option in _NAMES.items()
        if (place := getattr(options, option, None)) is not None
    ]


def _port(shown: str) -> int | None:
    return urlsplit(shown if "://" in shown else f"//{shown}").port


def _place(option: str, text: str) -> tuple[str, int]:
    if text.isascii() and text.isdigit() and int(text) <= 65535:
        return LOOPBACK_HOST, int(text)
    try:
        return parse_address(text)
    except (ConfigError, ValueError):
        raise ConfigError(f"--{option} takes a port, or HOST:PORT, not {text!r}") from None
