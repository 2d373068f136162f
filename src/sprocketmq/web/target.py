"""The cluster that a dashboard shows, and how its clients connect to it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from sprocketmq.client.credentials import CredentialsArgument, resolve
from sprocketmq.net.tls import TlsConfig


class ClientArguments(TypedDict):
    """The arguments that every client takes."""

    namesrv: str | Sequence[str] | None
    credentials: CredentialsArgument | None
    tls: bool | TlsConfig


@dataclass(frozen=True)
class ClusterTarget:
    """Where the cluster is, and the dashboard's own credentials and TLS settings; the arguments are those of ``AdminClient``.

    With credentials of its own the dashboard asks every viewer to log in, and uses its own only for the statistics of *Overview*.
    """

    namesrv: str | Sequence[str] | None = None
    credentials: CredentialsArgument | None = None
    tls: bool | TlsConfig | None = None
    secure: str | os.PathLike[str] | None = None

    def resolved(self) -> ClientArguments:
        """Return the arguments for clients, with what the environment adds. Raises ConfigError for invalid settings."""
        security = resolve(credentials=self.credentials, tls=self.tls, secure=self.secure)
        return {"namesrv": self.namesrv, "credentials": security.credentials, "tls": security.tls or False}
