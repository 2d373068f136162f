"""The cluster that a command talks to: where it is, how to log in there, and whether connections are encrypted."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from sprocketmq.errors import ConfigError

if TYPE_CHECKING:
    from sprocketmq.net.tls import TlsConfig


class ClientOptions(TypedDict):
    """The arguments that every client takes."""

    namesrv: str
    credentials: Path | None
    tls: "bool | TlsConfig | None"
    secure: Path | None


@dataclass(frozen=True)
class Target:
    """The options ``--namesrv``, ``--secure``, ``--access-key-file``, ``--tls`` and ``--tls-ca``.

    For None, the environment and ``~/.config`` are used. Raises ConfigError for options that contradict each other.
    """

    namesrv: str
    secure: Path | None = None
    access_key_file: Path | None = None
    tls: bool | None = None
    tls_ca: Path | None = None

    def __post_init__(self) -> None:
        if self.tls is False and self.tls_ca is not None:
            raise ConfigError("--no-tls and --tls-ca exclude each other: leave one of them out")

    @property
    def options(self) -> ClientOptions:
        """The arguments for a client: ``Producer(group, **target.options)``."""
        return {"namesrv": self.namesrv, "credentials": self.access_key_file, "tls": self._tls(), "secure": self.secure}

    def _tls(self) -> "bool | TlsConfig | None":
        if self.tls_ca is None:
            return self.tls
        from sprocketmq.net.tls import TlsConfig

        return TlsConfig(ca_file=self.tls_ca)
