"""The options of commands that talk to a cluster: its nameservers, credentials and TLS."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from sprocketmq.cli.target import Target
from sprocketmq.errors import ConfigError

DEFAULT_NAMESRV = "127.0.0.1:9876"

Namesrv = Annotated[str, typer.Option(envvar="NAMESRV_ADDR", metavar="HOST:PORT", help="Nameservers, several joined by ';'.")]
OptionalNamesrv = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Measure the brokers of these nameservers; default: an embedded one.")
]

_P = ParamSpec("_P")
_SECURITY: dict[str, Any] = {
    "secure": Annotated[
        Path | None, typer.Option(metavar="DIR", help="Credentials and trusted certificate, from `secure init` or `user create`.")
    ],
    "access_key_file": Annotated[Path | None, typer.Option(metavar="FILE", help="Credentials as JSON, or Apache's tools.yml.")],
    "tls": Annotated[bool | None, typer.Option("--tls/--no-tls", help="Encrypt connections, and verify who the servers are.")],
    "tls_ca": Annotated[Path | None, typer.Option(metavar="FILE", help="Trust certificates of this authority; implies --tls.")],
}


def for_cluster(command: Callable[Concatenate[Target, _P], None]) -> Callable[..., None]:
    """Add the options of a Target to a command, which receives it as its first argument."""
    return _with_target(command, Namesrv, DEFAULT_NAMESRV)


def for_any_cluster(command: Callable[Concatenate[Target | None, _P], None]) -> Callable[..., None]:
    """Do the same for a command that starts a broker of its own, and gets None, when no nameserver is given."""
    return _with_target(command, OptionalNamesrv, None)


def _with_target(command: Callable[..., None], namesrv_option: Any, default_namesrv: str | None) -> Callable[..., None]:
    @wraps(command)
    def run(*, namesrv: str | None, **options: Any) -> None:
        security = {name: options.pop(name) for name in _SECURITY}
        if namesrv is None and any(value is not None for value in security.values()):
            raise ConfigError("the options for credentials and TLS are for brokers that run already: add --namesrv HOST:PORT")
        command(Target(namesrv, **security) if namesrv is not None else None, **options)

    kind = inspect.Parameter.KEYWORD_ONLY
    first, *own = inspect.signature(command).parameters.values()
    added = {"namesrv": namesrv_option, **_SECURITY}
    defaults = {"namesrv": default_namesrv}
    shared = [inspect.Parameter(name, kind, default=defaults.get(name), annotation=of) for name, of in added.items()]
    # --json stays the last one.
    at = next((i for i, one in enumerate(own) if one.name == "json"), len(own))
    parameters = [one.replace(kind=kind) for one in own]
    parameters[at:at] = shared
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {name: of for name, of in command.__annotations__.items() if name not in (first.name, "return")} | added
    return run
