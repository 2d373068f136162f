"""``sprocketmq secure``: its commands."""

from pathlib import Path
from typing import Annotated

import typer

from sprocketmq.cli.commands.options import Json

secure_app = typer.Typer(
    name="secure", help="Make certificates, credentials and settings of a secured cluster.", no_args_is_help=True, rich_markup_mode=None
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory.")]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", metavar="NAME", help="A host name or IP address that servers are reached at; may be repeated.")
]
Days = Annotated[int, typer.Option(metavar="N", help="How long the certificate of the servers is valid.")]


@secure_app.command("init")
def secure_init(directory: Directory, host: Hosts = None, days: Days = 825, json: Json = False) -> None:
    """Make a directory for --secure: a certificate authority, a server certificate, an administrator, and settings that use them."""
    from sprocketmq.cli import secure

    secure.init(directory, host or [], days, as_json=json)


@secure_app.command("renew")
def secure_renew(directory: Directory, host: Hosts = None, days: Days = 825, json: Json = False) -> None:
    """Make a new server certificate by the same authority, for the same hosts and --host. Running servers take it over."""
    from sprocketmq.cli import secure

    secure.renew(directory, host or [], days, as_json=json)
