"""``serve --dashboard PORT``: the dashboard of the served cluster, in a supervised process of its own that takes no time from a broker."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sprocketmq.cli.config import LOOPBACK_HOST, Settings
from sprocketmq.cli.logs import LogOptions, wrap_line
from sprocketmq.errors import ConfigError
from sprocketmq.net.address import parse_address
from sprocketmq.processes.supervisor import Supervisor

NAME = "dashboard"


class ServedDashboard:
    """The process of a dashboard at ``place``, which is ``PORT`` or ``HOST:PORT``. Its log lines go to ``put``. Raises ConfigError."""

    def __init__(self, place: str, settings: Settings, *, insecure: bool, logs: LogOptions, put: Callable[[str], None]) -> None:
        self._host, self._port = _place(place)
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
            port = urlsplit(before[NAME]).port if before else self._port
            return [NAME, "--namesrv", namesrv, "--port", str(port), *self._options]

        self._supervisor.start({NAME: command})
        return f" {NAME}={self._supervisor.ready(NAME)[NAME]}"

    def stop(self) -> None:
        """Stop it; also ends a start that is under way. Blocks."""
        self._supervisor.stop()


def _place(text: str) -> tuple[str, int]:
    if text.isascii() and text.isdigit() and int(text) <= 65535:
        return LOOPBACK_HOST, int(text)
    try:
        return parse_address(text)
    except (ConfigError, ValueError):
        raise ConfigError(f"--dashboard takes a port, or HOST:PORT, not {text!r}") from None
